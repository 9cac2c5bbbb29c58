//! [`Block`]: a shared, immutable block, and [`PinnedBlock`]: one that a user holds.

use std::ops::Deref;
use std::sync::Arc;

use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout};

use crate::base::PAGE;
use crate::base::sync::{AtomicU64, Mutex, Ordering::Relaxed};

/// What keeping a block costs beside its bytes: slot, map entry, reference counts, the allocator's share.
const OVERHEAD: usize = 160;

/// An immutable block of whole pages; cloning it copies a reference. Dereferences to its bytes.
#[derive(Clone)]
pub struct Block(Arc<Body>);

#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C, align(64))]
struct CacheLine([u8; 64]);

/// Frames of one page that are kept to be used again. Blocks come and go in all threads, and an allocator with an arena for each
/// thread does not give to one what another has freed: without this a pool grows with the threads that have used it.
const SPARE: usize = 64;

/// What the blocks of a pool share.
#[derive(Default)]
pub(super) struct Home {
    /// Bytes that users pin.
    pub pinned: AtomicU64,
    spare: Mutex<Vec<Vec<CacheLine>>>,
}

impl Home {
    /// A frame with these bytes.
    fn frame(&self, bytes: &[u8]) -> Vec<CacheLine> {
        debug_assert!(bytes.len().is_multiple_of(PAGE), "whole pages");
        let spare = if bytes.len() == PAGE { self.spare.lock().pop() } else { None };
        let mut frame = spare
            .unwrap_or_else(|| CacheLine::new_vec_zeroed(bytes.len() / size_of::<CacheLine>()).expect("out of memory"));
        frame.as_mut_slice().as_mut_bytes().copy_from_slice(bytes);
        frame
    }

    fn take_back(&self, frame: Vec<CacheLine>) {
        if size_of_val(frame.as_slice()) == PAGE {
            let mut spare = self.spare.lock();
            if spare.len() < SPARE {
                spare.push(frame);
            }
        }
    }
}

struct Body {
    /// A copy of what the device read into, which is aligned to pages: an allocator puts its book-keeping, and so most of a
    /// page of nothing, between two such buffers, and a pool of them takes twice what it says. Lines of filters want no more
    /// than this.
    lines: Vec<CacheLine>,
    home: Arc<Home>,
}

impl Drop for Body {
    fn drop(&mut self) {
        self.home.take_back(std::mem::take(&mut self.lines));
    }
}

impl Block {
    pub(super) fn new(bytes: &[u8], home: Arc<Home>) -> Block {
        Block(Arc::new(Body { lines: home.frame(bytes), home }))
    }

    /// What the pool charges for the block, in bytes.
    pub(super) fn cost(&self) -> usize {
        self.len() + OVERHEAD
    }

    /// The number of pages.
    pub fn pages(&self) -> u32 {
        (self.len() / PAGE) as u32
    }

    /// A guard for a user, who may hold it for long: counted in the pool's pinned bytes until it is dropped.
    pub fn pin(&self) -> PinnedBlock {
        self.0.home.pinned.fetch_add(self.len() as u64, Relaxed);
        PinnedBlock(self.clone())
    }
}

impl Deref for Block {
    type Target = [u8];
    #[inline]
    fn deref(&self) -> &[u8] {
        self.0.lines.as_slice().as_bytes()
    }
}

impl std::fmt::Debug for Home {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Home({} bytes pinned)", self.pinned.load(Relaxed))
    }
}

impl std::fmt::Debug for Block {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Block({} pages)", self.pages())
    }
}

/// A block that a user holds. Dereferences to its bytes.
#[derive(Debug)]
pub struct PinnedBlock(Block);

impl Clone for PinnedBlock {
    fn clone(&self) -> PinnedBlock {
        self.0.pin()
    }
}

impl Deref for PinnedBlock {
    type Target = [u8];
    #[inline]
    fn deref(&self) -> &[u8] {
        &self.0
    }
}

impl Drop for PinnedBlock {
    fn drop(&mut self) {
        let before = self.0.0.home.pinned.fetch_sub(self.0.len() as u64, Relaxed);
        debug_assert!(before >= self.0.len() as u64, "a pin is counted once");
    }
}
