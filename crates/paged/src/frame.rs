//! Frames: the places of pages in memory, with their latches and pins.
//!
//! ```text
//!   Frame   pins │ dirty │ marked │ version │ latch( page number, bytes, front )
//!             ▲ counted before the latch is taken, released after it
//! ```
//!
//! * A *pin* keeps the page in its frame. It is counted while the page table is locked.
//! * The *latch*, a reader-writer lock, guards the bytes.
//! * *dirty*: the page differs from the block on disk. Set before each change of the bytes and after each change of the
//!   front, cleared before the page is written.
//! * The *front* has messages that are not in the bytes yet, under a lock of its own (`front`). A page that is latched
//!   exclusively has an empty front.
//! * The *version* counts changes that readers without the latch must notice: a tree increases it under the exclusive
//!   latch, before other changed pages are released (000 §8.1).
//!
//! Invariant: a latched page is pinned. A guard therefore drops its latch before its pin.

use std::ops::{Deref, DerefMut};

use crate::block::Block;
use crate::front::{Front, LockedFront};
use crate::mistake::Mistake;
use crate::segment::BlockNo;
use crate::sync::{
    AtomicBool, AtomicU32, AtomicU64, Counter, Once, Ordering, RwLock, RwLockReadGuard, RwLockWriteGuard,
};

/// The number of a page: the number of its block in the file.
pub type PageNo = BlockNo;

/// A page in memory.
#[derive(Debug, Default)]
pub struct Page {
    /// The number of the page, if the frame is in use.
    pub(crate) no: PageNo,
    /// Empty while the frame is unused.
    pub(crate) bytes: Block,
    /// The newest messages, which are not in the bytes.
    pub(crate) front: Front,
}

/// The place of a page.
#[derive(Debug, Default)]
pub struct Frame {
    pub(crate) pins: AtomicU32,
    pub(crate) dirty: AtomicBool,
    /// Requested since the replacement policy has looked at it.
    pub(crate) marked: AtomicBool,
    /// The page in this frame, readable without the latch by a thread that has pinned the frame or removes it.
    pub(crate) holds: AtomicU64,
    version: AtomicU64,
    /// Lookups that visited the page since its last decision ([`FanOut::Dynamic`](crate::FanOut)).
    reads: Counter,
    /// Messages that the page has passed on since then.
    passed: Counter,
    pub(crate) latch: RwLock<Page>,
}

impl Frame {
    /// Counts a pin. The caller has locked the table that leads to this frame, or owns the frame.
    #[inline]
    pub(crate) fn pin(&self) -> Pinned<'_> {
        self.pins.fetch_add(1, Ordering::Acquire);
        Pinned { frame: self }
    }

    /// Sets the counts of accesses to 0.
    pub(crate) fn forget_accesses(&self) {
        self.reads.store(0, Ordering::Relaxed);
        self.passed.store(0, Ordering::Relaxed);
    }

    /// Latches the page, shared, and marks it clean, so that its bytes can be written. `None` if a latch is not free, or
    /// if a message arrives meanwhile. The front is folded first; see `front` for the argument.
    pub(crate) fn try_clean(&self) -> Option<RwLockReadGuard<'_, Page>> {
        let mut page = self.latch.try_read()?;
        if !page.front.is_empty() {
            drop(page);
            self.latch.try_write()?.fold_evicted();
            page = self.latch.try_read()?;
        }
        {
            let _front = page.front.lock_if_empty()?;
            // Cleared before the write: a change after the latch is released sets it again.
            self.dirty.store(false, Ordering::Relaxed);
        }
        Some(page)
    }

    /// Whether no thread has pinned the page.
    #[inline]
    pub(crate) fn is_unpinned(&self) -> bool {
        self.pins.load(Ordering::Acquire) == 0
    }
}

/// A page that stays in memory.
#[derive(Debug)]
pub struct Pinned<'a> {
    frame: &'a Frame,
}

impl Drop for Pinned<'_> {
    #[inline]
    fn drop(&mut self) {
        let before = self.frame.pins.fetch_sub(1, Ordering::Release);
        debug_assert!(before > 0, "a pin that was not counted");
    }
}

impl<'a> Pinned<'a> {
    /// Takes the latch, shared.
    #[inline]
    pub fn read(self) -> ReadPage<'a> {
        ReadPage { latch: self.frame.latch.read(), pinned: self }
    }

    /// Takes the latch, exclusively, and folds the front.
    #[inline]
    pub fn write(self) -> WritePage<'a> {
        let mut latch = self.frame.latch.write();
        if !latch.front.is_empty() && !Mistake::FrontNotFolded.is_on() {
            debug_assert!(self.frame.dirty.load(Ordering::Relaxed), "a page with a front is dirty");
            latch.fold();
        }
        WritePage { latch, pinned: self }
    }

    /// The number of noted changes.
    #[inline]
    pub fn version(&self) -> u64 {
        self.frame.version.load(Ordering::Acquire)
    }

    pub(crate) fn frame(&self) -> &'a Frame {
        self.frame
    }
}

/// A page that is latched, shared.
#[derive(Debug)]
pub struct ReadPage<'a> {
    // The order matters: the latch is dropped before the pin.
    latch: RwLockReadGuard<'a, Page>,
    pinned: Pinned<'a>,
}

impl<'a> ReadPage<'a> {
    /// The number of the page.
    pub fn no(&self) -> PageNo {
        self.latch.no
    }

    /// Counts a lookup. Lookups of other threads at the same time may be lost.
    #[inline]
    pub fn note_read(&self) {
        let reads = &self.pinned.frame.reads;
        reads.store(reads.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
    }

    /// The newest messages.
    #[inline]
    pub(crate) fn front(&self) -> &Front {
        &self.latch.front
    }

    /// Locks the front, for an additional message.
    #[inline]
    pub(crate) fn lock_front(&self) -> LockedFront<'_> {
        self.latch.front.lock(&self.pinned.frame.dirty)
    }

    /// Releases the latch and keeps the pin. Returns the version that the bytes had.
    #[inline]
    pub fn unlatch(self) -> (Pinned<'a>, u64) {
        let version = self.pinned.version();
        drop(self.latch);
        (self.pinned, version)
    }
}

impl Deref for ReadPage<'_> {
    type Target = [u8];

    #[inline]
    fn deref(&self) -> &[u8] {
        &self.latch.bytes
    }
}

/// A page that is latched exclusively.
#[derive(Debug)]
pub struct WritePage<'a> {
    latch: RwLockWriteGuard<'a, Page>,
    pinned: Pinned<'a>,
}

impl WritePage<'_> {
    /// The number of the page.
    pub fn no(&self) -> PageNo {
        self.latch.no
    }

    /// Counts messages that leave the page.
    pub fn note_passed(&mut self, messages: u64) {
        self.pinned.frame.passed.fetch_add(messages, Ordering::Relaxed);
    }

    /// The counted lookups, and the counted messages that have left the page.
    pub fn accesses(&self) -> (u64, u64) {
        let Frame { reads, passed, .. } = self.pinned.frame;
        (reads.load(Ordering::Relaxed), passed.load(Ordering::Relaxed))
    }

    /// Sets both counts to 0.
    pub fn forget_accesses(&mut self) {
        self.pinned.frame.forget_accesses();
    }

    /// Notes a change that readers without the latch must notice.
    #[inline]
    pub fn note_change(&mut self) {
        self.pinned.frame.version.fetch_add(1, Ordering::Release);
    }
}

impl Deref for WritePage<'_> {
    type Target = [u8];

    #[inline]
    fn deref(&self) -> &[u8] {
        &self.latch.bytes
    }
}

impl DerefMut for WritePage<'_> {
    #[inline]
    fn deref_mut(&mut self) -> &mut [u8] {
        if !self.pinned.frame.dirty.load(Ordering::Relaxed) {
            self.pinned.frame.dirty.store(true, Ordering::Relaxed);
        }
        &mut self.latch.bytes
    }
}

/// Frames at addresses that never change: chunks that double in size.
#[derive(Debug)]
pub struct Frames {
    chunks: [Once<Box<[Frame]>>; CHUNKS],
}

const CHUNKS: usize = 32;
/// Frames of the first chunk, as a power of two.
const FIRST_BITS: u32 = 6;

impl Frames {
    /// No frames yet.
    pub fn new() -> Frames {
        Frames { chunks: std::array::from_fn(|_| Once::new()) }
    }

    /// The frame `i`. Chunks are allocated when one of their frames is used first.
    #[inline]
    pub fn get(&self, i: u32) -> &Frame {
        let at = u64::from(i) + (1 << FIRST_BITS);
        let bits = at.ilog2();
        let chunk = self.chunks[(bits - FIRST_BITS) as usize]
            .get_or_init(|| std::iter::repeat_with(Frame::default).take(1 << bits).collect());
        &chunk[(at - (1 << bits)) as usize]
    }
}

#[cfg(all(test, not(feature = "explore")))]
mod tests {
    use super::*;

    #[test]
    fn frames_stay_where_they_are() {
        let frames = Frames::new();
        let first = std::ptr::from_ref(frames.get(0));
        for i in [1, 63, 64, 65, 191, 192, 5_000] {
            frames.get(i).holds.store(u64::from(i), Ordering::Relaxed);
        }
        for i in [1, 63, 64, 65, 191, 192, 5_000] {
            assert_eq!(frames.get(i).holds.load(Ordering::Relaxed), u64::from(i), "frames do not overlap");
        }
        assert_eq!(first, std::ptr::from_ref(frames.get(0)));
    }

    #[test]
    fn a_latched_page_is_pinned_and_a_changed_one_dirty() {
        let frame = Frame::default();
        let mut page = frame.pin().write();
        assert!(!frame.is_unpinned() && !frame.dirty.load(Ordering::Relaxed));
        let _: &mut [u8] = &mut page;
        page.note_change();
        assert!(frame.dirty.load(Ordering::Relaxed));
        drop(page);
        assert!(frame.is_unpinned());
        let (pinned, version) = frame.pin().read().unlatch();
        assert_eq!((pinned.version(), version), (1, 1));
        drop(frame.pin().write());
        drop(pinned);
        assert!(frame.is_unpinned());
    }
}
