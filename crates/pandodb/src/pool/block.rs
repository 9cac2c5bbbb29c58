//! [`Block`]: an immutable block that a reader holds. [`PinnedBlock`]: an immutable block that a user of the store
//! holds.
//!
//! ```text
//!   Pool::get ──▶ Block (guarded: one of the thread's arc_swap slots, no reference count)
//!                   ├─ keep() ──▶ Block (counted: an `Arc` of its own)
//!                   └─ pin()  ──▶ PinnedBlock (an `Arc`, and its bytes are added to the pool's pinned bytes)
//! ```
//!
//! A block from the pool is *guarded*: it occupies one of the few slots that `arc_swap` has for the calling thread.
//! Guarding a block does not update its reference count, so concurrent readers of a filter block do not contend for the
//! count. A caller that holds blocks for long converts the guards into counted references ([`Block::keep`]); otherwise
//! later lookups of the same thread find no free slot and must update reference counts.
//!
//! Invariants: the bytes of a block never change; a block of one page is in a slot of a [`Slab`]; each [`PinnedBlock`]
//! is counted in the pinned bytes exactly once. Source: 002 §3.6.1. Guards replace the paper's counters of readers:
//! [decision 0019](../../../../docs/decisions/0019-pool-concurrency.md).

use std::ops::Deref;
use std::sync::Arc;

use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout};

use super::Keep;
use super::key::FrameKey;
use crate::base::sync::{AtomicU64, Guard, Ordering::Relaxed};
use crate::base::{PAGE, Slab, Slot};

/// The number of bytes that a cached block takes in addition to its data: for its frame, chain, key and reference
/// counts, and for the allocator.
pub(super) const OVERHEAD: usize = 224;

/// An immutable block of whole pages. Dereferences to its bytes.
pub struct Block(Guard<Arc<Body>>);

#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C, align(64))]
struct CacheLine([u8; 64]);

const _: () = assert!(size_of::<CacheLine>() == 64 && PAGE.is_multiple_of(size_of::<CacheLine>()), "whole cache lines");
const _: () = assert!(OVERHEAD < PAGE, "most of the capacity holds the bytes of blocks");

/// The number of cache lines in a page.
const LINES: usize = PAGE / size_of::<CacheLine>();
/// The number of free page slots that the slab keeps in memory for the next blocks, even if the pool has no room.
const SPARE: usize = 64;

/// State that all blocks of a pool share.
pub(super) struct Home {
    /// Bytes of blocks that users hold.
    pub pinned: AtomicU64,
    /// The memory of blocks of one page. Unless leaves are compressed, nearly all blocks have one page.
    pages: Arc<Slab<CacheLine>>,
}

/// The bytes of a block, aligned to cache lines, because a probe of a filter relies on this alignment. A slot of the
/// slab has no allocator header.
enum Lines {
    Page(Slot<CacheLine>),
    More(Box<[CacheLine]>),
}

impl Home {
    /// Creates the state for about `blocks` cached blocks.
    pub fn new(blocks: usize) -> Home {
        // The slab has more than `blocks` slots, because readers may still hold evicted blocks.
        Home { pinned: AtomicU64::new(0), pages: Slab::new(LINES, blocks + blocks / 8 + SPARE, SPARE) }
    }

    /// Keeps the slots of dropped blocks for the next blocks, as long as the memory of all slots and blocks is within
    /// the capacity of the pool.
    pub fn keep_within(&self, capacity: impl FnOnce() -> usize) {
        self.pages.keep_within(|| capacity() / (PAGE + OVERHEAD));
    }

    /// Copies `bytes` into new memory.
    fn lines(&self, bytes: &[u8]) -> Lines {
        debug_assert!(bytes.len().is_multiple_of(PAGE), "whole pages");
        let mut lines = if bytes.len() == PAGE {
            Lines::Page(self.pages.take())
        } else {
            let lines = bytes.len() / size_of::<CacheLine>();
            self.pages.count_beside(bytes.len() / PAGE, 0);
            Lines::More(<[CacheLine]>::new_box_zeroed_with_elems(lines).expect("memory for a block"))
        };
        match &mut lines {
            Lines::Page(lines) => lines.as_mut_bytes(),
            Lines::More(lines) => lines.as_mut_bytes(),
        }
        .copy_from_slice(bytes);
        lines
    }
}

impl Deref for Lines {
    type Target = [CacheLine];
    #[inline]
    fn deref(&self) -> &[CacheLine] {
        match self {
            Lines::Page(lines) => lines,
            Lines::More(lines) => lines,
        }
    }
}

/// A block and its key.
pub(super) struct Body {
    pub(super) key: FrameKey,
    pub(super) keep: Keep,
    lines: Lines,
    home: Arc<Home>,
}

impl Body {
    /// Copies `bytes` into a new block.
    pub(super) fn new(key: FrameKey, keep: Keep, bytes: &[u8], home: Arc<Home>) -> Arc<Body> {
        Arc::new(Body { key, keep, lines: home.lines(bytes), home })
    }

    /// A placeholder for a frame without a block.
    pub(super) fn vacant() -> Body {
        Body {
            key: FrameKey::NONE,
            keep: Keep::Short,
            lines: Lines::More(Box::default()),
            home: Arc::new(Home::new(0)),
        }
    }

    fn bytes(&self) -> &[u8] {
        self.lines.as_bytes()
    }

    /// The bytes that the pool charges for the block.
    pub(super) fn cost(&self) -> usize {
        size_of_val(&*self.lines) + OVERHEAD
    }
}

impl Drop for Body {
    fn drop(&mut self) {
        if let Lines::More(lines) = &self.lines
            && !lines.is_empty()
        {
            self.home.pages.count_beside(0, size_of_val(&**lines) / PAGE);
        }
    }
}

impl Block {
    pub(super) fn guarded(body: Guard<Arc<Body>>) -> Block {
        Block(body)
    }

    pub(super) fn counted(body: Arc<Body>) -> Block {
        Block(Guard::from_inner(body))
    }

    /// Converts the guard into a counted reference, for a caller that holds the block for long.
    pub fn keep(self) -> Block {
        Block::counted(Guard::into_inner(self.0))
    }

    /// The number of pages in memory.
    pub fn pages(&self) -> u32 {
        debug_assert!(self.len().is_multiple_of(PAGE), "a block of {} bytes", self.len());
        (self.len() / PAGE) as u32
    }

    /// A guard that is passed to a user of the store. The user may hold the guard for a long time. The block is counted
    /// in the pool's pinned bytes until the guard is dropped.
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

/// A block that a user of the store holds. Such blocks are counted in the pool's pinned bytes. Dereferences to the
/// block's bytes.
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
