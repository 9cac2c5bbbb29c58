//! [`Block`]: an immutable block as a reader holds it, and [`PinnedBlock`]: as a user does.
//!
//! A block out of the pool is *guarded*: it stands in one of the few slots that `arc_swap` has for the thread which asked, and
//! costs no reference count, which all readers of a filter would fight for. Who holds blocks for long takes a reference
//! ([`Block::keep`]), lest later lookups of that thread find no slot and have to count.

use std::ops::Deref;
use std::sync::Arc;

use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout};

use super::Keep;
use super::key::FrameKey;
use crate::base::PAGE;
use crate::base::sync::{AtomicU64, Guard, Mutex, Ordering::Relaxed, thread_number};

/// What keeping a block costs beside its bytes: frame, chain, name, reference counts, the allocator's share.
pub(super) const OVERHEAD: usize = 224;

/// An immutable block of whole pages. Dereferences to its bytes.
pub struct Block(Guard<Arc<Body>>);

#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C, align(64))]
struct CacheLine([u8; 64]);

/// Buffers of one page that each group of threads keeps to use them again. Blocks come and go in all threads, and an allocator
/// with an arena for each thread does not give to one what another has freed: without this a pool grows with the threads that
/// have used it.
const SPARE: usize = 8;
/// Groups of threads.
const GROUPS: usize = 8;

/// What a group of threads keeps.
#[derive(Default)]
#[repr(align(64))]
struct Spare(Mutex<Vec<Vec<CacheLine>>>);

/// What the blocks of a pool share.
#[derive(Default)]
pub(super) struct Home {
    /// Bytes that users pin.
    pub pinned: AtomicU64,
    spare: [Spare; GROUPS],
}

impl Home {
    fn spare(&self) -> &Mutex<Vec<Vec<CacheLine>>> {
        &self.spare[thread_number() % GROUPS].0
    }

    /// A buffer with these bytes.
    fn buffer(&self, bytes: &[u8]) -> Vec<CacheLine> {
        debug_assert!(bytes.len().is_multiple_of(PAGE), "whole pages");
        let spare = if bytes.len() == PAGE { self.spare().lock().pop() } else { None };
        let mut buffer = spare
            .unwrap_or_else(|| CacheLine::new_vec_zeroed(bytes.len() / size_of::<CacheLine>()).expect("out of memory"));
        buffer.as_mut_slice().as_mut_bytes().copy_from_slice(bytes);
        buffer
    }

    fn take_back(&self, buffer: Vec<CacheLine>) {
        if size_of_val(buffer.as_slice()) == PAGE {
            let mut spare = self.spare().lock();
            if spare.len() < SPARE {
                spare.push(buffer);
            }
        }
    }
}

/// A block, and whose it is.
pub(super) struct Body {
    pub(super) key: FrameKey,
    pub(super) keep: Keep,
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

impl Body {
    /// A copy of what was read.
    pub(super) fn new(key: FrameKey, keep: Keep, bytes: &[u8], home: Arc<Home>) -> Arc<Body> {
        Arc::new(Body { key, keep, lines: home.buffer(bytes), home })
    }

    /// No block.
    pub(super) fn vacant() -> Body {
        Body { key: FrameKey::NONE, keep: Keep::Short, lines: Vec::new(), home: Arc::default() }
    }

    fn bytes(&self) -> &[u8] {
        self.lines.as_slice().as_bytes()
    }

    /// What the pool charges for the block, in bytes.
    pub(super) fn cost(&self) -> usize {
        size_of_val(self.lines.as_slice()) + OVERHEAD
    }
}

impl Block {
    pub(super) fn guarded(body: Guard<Arc<Body>>) -> Block {
        Block(body)
    }

    pub(super) fn counted(body: Arc<Body>) -> Block {
        Block(Guard::from_inner(body))
    }

    /// The same, for holding it long: by a reference of its own.
    pub fn keep(self) -> Block {
        Block::counted(Guard::into_inner(self.0))
    }

    /// The number of pages.
    pub fn pages(&self) -> u32 {
        (self.len() / PAGE) as u32
    }

    /// A guard for a user, who may hold it for long: counted in the pool's pinned bytes until it is dropped.
    pub fn pin(self) -> PinnedBlock {
        PinnedBlock::new(Guard::into_inner(self.0))
    }
}

impl Deref for Block {
    type Target = [u8];
    #[inline]
    fn deref(&self) -> &[u8] {
        self.0.bytes()
    }
}

impl Clone for Block {
    fn clone(&self) -> Block {
        Block::counted(Arc::clone(&self.0))
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
pub struct PinnedBlock(Arc<Body>);

impl PinnedBlock {
    fn new(body: Arc<Body>) -> PinnedBlock {
        body.home.pinned.fetch_add(body.bytes().len() as u64, Relaxed);
        PinnedBlock(body)
    }
}

impl Clone for PinnedBlock {
    fn clone(&self) -> PinnedBlock {
        PinnedBlock::new(self.0.clone())
    }
}

impl Deref for PinnedBlock {
    type Target = [u8];
    #[inline]
    fn deref(&self) -> &[u8] {
        self.0.bytes()
    }
}

impl Drop for PinnedBlock {
    fn drop(&mut self) {
        let before = self.0.home.pinned.fetch_sub(self.len() as u64, Relaxed);
        debug_assert!(before >= self.len() as u64, "a pin is counted once");
    }
}

impl std::fmt::Debug for PinnedBlock {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "PinnedBlock({} pages)", self.len() / PAGE)
    }
}

impl std::fmt::Debug for Body {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Body({:?}, {:?})", self.key, self.keep)
    }
}
