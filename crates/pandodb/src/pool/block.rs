//! [`Block`]: a shared, immutable block, and [`PinnedBlock`]: one that a user holds.

use std::ops::Deref;
use std::sync::Arc;

use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout};

use crate::base::PAGE;
use crate::base::sync::{AtomicU64, Ordering::Relaxed};

/// What keeping a block costs beside its bytes: slot, map entry, reference counts, the allocator's share.
const OVERHEAD: usize = 160;

/// An immutable block of whole pages; cloning it copies a reference. Dereferences to its bytes.
#[derive(Clone)]
pub struct Block(Arc<Body>);

#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C, align(64))]
struct CacheLine([u8; 64]);

struct Body {
    /// A copy of what the device read into, which is aligned to pages: an allocator puts its book-keeping, and so most of a
    /// page of nothing, between two such buffers, and a pool of them takes twice what it says. Lines of filters want no more
    /// than this.
    lines: Vec<CacheLine>,
    pinned: Arc<AtomicU64>,
}

impl Block {
    pub(super) fn new(bytes: &[u8], pinned: Arc<AtomicU64>) -> Block {
        debug_assert!(bytes.len().is_multiple_of(size_of::<CacheLine>()), "whole pages");
        let mut lines = CacheLine::new_vec_zeroed(bytes.len() / size_of::<CacheLine>()).expect("out of memory");
        lines.as_mut_slice().as_mut_bytes().copy_from_slice(bytes);
        Block(Arc::new(Body { lines, pinned }))
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
        self.0.pinned.fetch_add(self.len() as u64, Relaxed);
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
        let before = self.0.0.pinned.fetch_sub(self.0.len() as u64, Relaxed);
        debug_assert!(before >= self.0.len() as u64, "a pin is counted once");
    }
}
