//! Frames: the places of pages in memory, with their latches and pins.
//!
//! ```text
//!   Frame   empty, pins │ dirty │ marked │ holds │ version │ latch( page number, bytes, front, hints )
//!                   ▲ counted before the latch is taken, released after it
//!
//!   empty ──occupy──▶ pinned ◀──pin, unpin──▶ unpinned
//!     ▲                  │
//!     └─── try_empty ────┘   if there is one pin and the page is clean
//! ```
//!
//! * A *pin* keeps the page in its frame. It is counted while the page table is locked, or without a lock if the frame
//!   is known from a hint (`hints`).
//! * A frame without a page is *empty*, which is a bit of the number of pins. A thread that evicts a page replaces its own
//!   pin, if it is the only one, by this bit in one step. A thread that counts a pin without the lock of the table learns
//!   in the same step whether the bit was set. If so, it releases the pin and looks at nothing else in the frame.
//! * The *latch*, a reader-writer lock, guards the bytes.
//! * *dirty*: the page differs from the block on disk. Set before each change of the bytes and after each change of the
//!   front, cleared before the page is written.
//! * The *front* has messages that are not in the bytes yet, under a lock of its own (`front`). A page that is latched
//!   exclusively has an empty front.
//! * The *version* counts changes that readers without the latch must notice: a tree increases it under the exclusive
//!   latch, before other changed pages are released (000 §8.1).
//!
//! Invariants:
//!
//! * A latched page is pinned. A guard therefore drops its latch before its pin.
//! * `holds` changes only while the frame is empty, and the page table leads to each frame that is not. So a thread that
//!   has pinned a frame with a page may read `holds`. If this is the wanted page, then no other frame has it, and this
//!   frame keeps it until the pin is released.
//! * `dirty` is set by threads with a pin. So if a page is clean when the bit is set, it stays clean.

use std::ops::{Deref, DerefMut};

use crate::block::Block;
use crate::front::{Front, LockedFront};
use crate::hints::Hints;
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
    /// The frames of its children.
    pub(crate) hints: Hints,
}

/// The bit of an empty frame, in the number of pins.
const EMPTY: u32 = 1 << 31;

/// The place of a page.
#[derive(Debug)]
pub struct Frame {
    /// The number of pins, and [`EMPTY`]. While this bit is set, the pins are those of threads that have seen the bit and
    /// are about to release them.
    pub(crate) pins: AtomicU32,
    pub(crate) dirty: AtomicBool,
    /// Requested since the replacement policy has looked at it.
    pub(crate) marked: AtomicBool,
    /// The page in this frame, readable without the latch by a thread that has pinned the frame.
    pub(crate) holds: AtomicU64,
    version: AtomicU64,
    /// Lookups that visited the page since its last decision ([`FanOut::Dynamic`](crate::FanOut)).
    reads: Counter,
    /// Messages that the page has passed on since then.
    passed: Counter,
    pub(crate) latch: RwLock<Page>,
}

impl Default for Frame {
    /// A frame without a page.
    fn default() -> Frame {
        Frame {
            pins: AtomicU32::new(EMPTY),
            dirty: AtomicBool::default(),
            marked: AtomicBool::default(),
            holds: AtomicU64::default(),
            version: AtomicU64::default(),
            reads: Counter::default(),
            passed: Counter::default(),
            latch: RwLock::default(),
        }
    }
}

impl Frame {
    /// Counts a pin. The caller has locked the table that leads to this frame, or is the only thread that may evict its
    /// page.
    #[inline]
    pub(crate) fn pin(&self) -> Pinned<'_> {
        let before = self.pins.fetch_add(1, Ordering::Acquire);
        debug_assert!(before & EMPTY == 0, "the frame has a page");
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

    /// Pins the frame if it has this page. The caller needs no lock.
    #[inline]
    pub(crate) fn pin_if_holds(&self, page: PageNo) -> Option<Pinned<'_>> {
        // Acquire: `holds` was stored before the bit was cleared.
        let before = self.pins.fetch_add(1, Ordering::Acquire);
        let pinned = Pinned { frame: self };
        let has_page = before & EMPTY == 0 || Mistake::EmptyFramePinned.is_on();
        let is_wanted = has_page && (self.holds.load(Ordering::Relaxed) == page || Mistake::HintNotChecked.is_on());
        is_wanted.then_some(pinned)
    }

    /// Latches an empty frame exclusively. This never waits, since a thread has a pin while it has the latch.
    pub(crate) fn latch_empty(&self) -> RwLockWriteGuard<'_, Page> {
        debug_assert!(self.is_empty(), "the page was removed");
        self.latch.try_write().expect("the latch of an empty frame is free")
    }

    /// Puts a page into an empty frame, and pins it. The table must lead to the frame. If the bytes of the page are not
    /// in it yet, the caller must have latched it exclusively.
    pub(crate) fn occupy(&self, page: PageNo) -> Pinned<'_> {
        self.holds.store(page, Ordering::Relaxed);
        // One step from the bit to the first pin.
        let before = self.pins.fetch_sub(EMPTY - 1, Ordering::Release);
        debug_assert!(before & EMPTY != 0, "the frame was empty");
        Pinned { frame: self }
    }

    /// Notes a request for the replacement policy.
    #[inline]
    pub(crate) fn mark(&self) {
        if !self.marked.load(Ordering::Relaxed) {
            self.marked.store(true, Ordering::Relaxed);
        }
    }

    /// Whether the frame has no page.
    pub(crate) fn is_empty(&self) -> bool {
        self.pins.load(Ordering::Relaxed) & EMPTY != 0
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
        debug_assert!(before & !EMPTY > 0, "a pin that was not counted");
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

    /// Makes the frame empty, if this is its only pin and the page is clean. Returns whether it did; the pin is released
    /// in any case. Of all threads, only the caller may evict this page, and it has locked the table that leads to it.
    pub(crate) fn try_empty(self) -> bool {
        let pins = &self.frame.pins;
        if Mistake::PinnedVictimEvicted.is_on() {
            pins.fetch_add(EMPTY, Ordering::Relaxed);
            return true;
        }
        // Acquire: a thread that has changed the page has set `dirty` before it released its pin.
        if pins.compare_exchange(1, EMPTY, Ordering::Acquire, Ordering::Relaxed).is_err() {
            return false;
        }
        let frame = self.frame;
        // The bit has replaced the pin.
        std::mem::forget(self);
        let clean = !frame.dirty.load(Ordering::Relaxed);
        if !clean {
            frame.pins.fetch_sub(EMPTY, Ordering::Release);
        }
        clean
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

    /// The frames of its children.
    #[inline]
    pub fn hints(&self) -> &Hints {
        &self.latch.hints
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

    /// Drops the hints, because the number of slots for children changes.
    pub fn forget_hints(&mut self) {
        self.latch.hints = Hints::default();
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

    /// The frames of its children.
    #[inline]
    pub fn hints(&self) -> &Hints {
        &self.latch.hints
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
        let mut page = frame.occupy(3).write();
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

    #[test]
    fn a_frame_is_emptied_if_its_page_is_clean_and_has_one_pin() {
        let frame = Frame::default();
        assert!(frame.is_empty() && frame.pin_if_holds(0).is_none(), "a frame without a page");
        let pinned = frame.occupy(7);
        assert!(frame.pin_if_holds(7).is_some() && frame.pin_if_holds(8).is_none());
        let by_hint = frame.pin_if_holds(7);
        assert!(!pinned.try_empty(), "another thread has pinned it");
        drop(by_hint);
        frame.dirty.store(true, Ordering::Relaxed);
        assert!(!frame.pin().try_empty() && frame.is_unpinned(), "it is dirty");
        frame.dirty.store(false, Ordering::Relaxed);
        assert!(frame.pin().try_empty() && frame.is_empty());
        assert!(frame.pin_if_holds(7).is_none(), "the old page has left");
        let pinned = frame.occupy(8);
        assert!(frame.pin_if_holds(7).is_none() && frame.pin_if_holds(8).is_some());
        drop(pinned);
        assert!(frame.is_unpinned());
    }
}
