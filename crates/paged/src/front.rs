//! The front of a node: its newest messages, beside the bytes of its page, with a lock of their own (000 §8.1).
//!
//! ```text
//!   latch of the page, shared:      pivots │ buffer      up to `slots` messages, sorted          older
//!     └─ lock of the front:         front                up to about √slots messages, sorted     newer
//!   latch of the page, exclusive:   fold: front ──▶ buffer
//! ```
//!
//! The source asks for "a node-specific index for the upsert buffers" and "a more granular lock structure". The front is
//! both. It is the upper level of an index of two levels: a message that arrives moves fields of the few messages in the
//! front, not of the whole buffer. And it is a lock inside the node: writers share the latch of the page with readers, so
//! the pivots and the messages in the bytes are read while messages arrive.
//!
//! 1. A writer latches the page shared, locks the front exclusively, takes the next timestamp, and puts its message into
//!    the front.
//! 2. A reader latches the page shared and looks in the front first. Both parts can have a message of a key.
//! 3. A thread that latches the page exclusively *folds* the front: its messages are merged into the buffer in the bytes.
//!    [`Pinned::write`](crate::frame::Pinned::write) does this for all of them, so a flush, a split or a copy of a page
//!    never meets a front.
//!
//! **The front always fits.** The buffer and the front together have at most as many messages as the buffer has slots.
//! So folding needs no flush, and an eviction can fold without the tree. For this, a front has a copy of the layout of
//! the buffer.
//!
//! **Order.** A message gets its timestamp under the lock of the front, so two messages of a key meet in their order. The
//! messages in the bytes got theirs under an earlier exclusive latch, or were folded from this front earlier. So a
//! message of the front is newer than that of the same key in the bytes.
//!
//! **Versions.** A fold moves nothing to another node, and a reader searches both parts under one shared latch, which
//! excludes folds. So a reader with optimistic coupling that has left the node has met each of its messages once, and a
//! fold need not increase the version. A message that arrives after the reader has left is one that the reader need not
//! see, as in a tree without fronts.
//!
//! **Evictions lose no message.** The rule: *if the lock of a front is free and the page is clean, the front is empty.*
//!
//! * A writer sets `dirty` after its message is in the front and before it releases the lock.
//! * [`try_clean`](crate::frame::Frame::try_clean) folds under an exclusive latch, which it gets by a try, and leaves the
//!   page dirty. Then, with the latch shared again, it locks the front, checks that it is empty, and only then clears
//!   `dirty`.
//! * A message that arrives before this check, between both latches, makes the front non-empty: the page stays dirty, and
//!   nothing is written. A message that arrives after the check finds the page clean and makes it dirty again, before
//!   the writer releases its pin. The bytes that are written then are those before this message.
//! * The last step of an eviction (`Pinned::try_empty`) replaces the only pin by the bit of an empty frame, and then loads
//!   `dirty`. A writer that still has its pin prevents this step. One that has released it (release, acquire) has set
//!   `dirty` before. So the page of a frame that becomes empty is clean, no thread can pin it any more, and its front is
//!   empty.
//!
//! **Locks.** The lock of a front is inside the latch of its page, so it cannot be taken without the latch. No thread
//! waits for anything under it.
//!
//! Invariants: `len` is the number of messages in the front; messages of the page and of the front are together at most
//! the slots of the buffer; a page that a [`WritePage`](crate::WritePage) latches has an empty front; leaves and nodes
//! without a buffer have no front.

use std::ops::Range;

use crate::batch::Batch;
use crate::frame::Page;
use crate::layout::{BufferLayout, HEADER, header};
use crate::message::Message;
use crate::mistake::Mistake;
use crate::sync::{AtomicBool, AtomicU32, Ordering, RwLock, RwLockReadGuard, RwLockWriteGuard};

/// The newest messages of a page.
#[derive(Debug, Default)]
pub struct Front {
    /// The number of messages. Changed under the lock; readers that find 0 do not take the lock.
    len: AtomicU32,
    content: RwLock<Content>,
}

/// A page of its own that has only a header and a buffer.
#[derive(Debug, Default)]
pub struct Content {
    shape: Option<FrontLayout>,
    /// Allocated by the first message.
    bytes: Vec<u8>,
}

/// The layouts of a front and of the buffer that it is folded into.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct FrontLayout {
    front: BufferLayout,
    buffer: BufferLayout,
}

impl FrontLayout {
    /// The front for a buffer. An insertion moves half of the front. A fold moves half of the buffer, once for all
    /// messages of the front. The sum for each message is least for √slots messages.
    fn new(buffer: &BufferLayout) -> FrontLayout {
        let slots = buffer.slots.isqrt().max(1);
        FrontLayout { front: BufferLayout::new(HEADER, slots, buffer.value_bytes()), buffer: *buffer }
    }
}

impl Content {
    fn messages(&self) -> usize {
        self.shape.map_or(0, |_| header::messages(&self.bytes))
    }

    /// The message for `key`.
    pub fn find(&self, key: u64) -> Option<Message<'_>> {
        self.shape.as_ref()?.front.find(&self.bytes, key)
    }

    /// The number of messages with keys from `lower` on and below `upper`.
    pub fn count(&self, lower: u64, upper: Option<u64>) -> usize {
        self.range(lower, upper).len()
    }

    fn range(&self, lower: u64, upper: Option<u64>) -> Range<usize> {
        let Some(FrontLayout { front, .. }) = &self.shape else { return 0..0 };
        let count = self.messages();
        let from = front.keys.lower_bound(&self.bytes, count, lower);
        from..upper.map_or(count, |upper| front.keys.lower_bound(&self.bytes, count, upper))
    }

    /// Appends the messages with keys from `lower` on and below `upper`.
    pub fn collect(&self, lower: u64, upper: Option<u64>, batch: &mut Batch) {
        let range = self.range(lower, upper);
        self.shape.iter().for_each(|shape| range.clone().for_each(|i| batch.push(shape.front.get(&self.bytes, i))));
    }
}

impl Front {
    /// Whether there are no messages.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.len.load(Ordering::Acquire) == 0
    }

    /// Locks the front, shared. `None` if it is empty.
    #[inline]
    pub fn read(&self) -> Option<RwLockReadGuard<'_, Content>> {
        (!self.is_empty()).then(|| self.content.read())
    }

    /// Locks the front, exclusively. `dirty` is that of the page.
    pub fn lock<'a>(&'a self, dirty: &'a AtomicBool) -> LockedFront<'a> {
        LockedFront { content: self.content.write(), len: &self.len, dirty }
    }

    /// Locks the front, shared, if it has no messages.
    pub fn lock_if_empty(&self) -> Option<RwLockReadGuard<'_, Content>> {
        let content = self.content.read();
        (content.messages() == 0 || Mistake::FilledFrontCleaned.is_on()).then_some(content)
    }

    /// Frees the memory of the front, because another page enters the frame.
    pub fn release(&mut self) {
        assert!(self.is_empty() || Mistake::FilledFrontCleaned.is_on(), "a page is evicted after its front was folded");
        self.len.store(0, Ordering::Relaxed);
        *self.content.get_mut() = Content::default();
    }
}

impl Page {
    /// Merges the messages of the front into the buffer.
    pub fn fold(&mut self) {
        let Page { bytes, front, .. } = self;
        let content = front.content.get_mut();
        let Some(FrontLayout { front: layout, buffer }) = &content.shape else { return };
        let count = header::messages(&content.bytes);
        if count == 0 {
            // An evicting thread may find that another one was faster. The node may have another layout by now.
            return;
        }
        assert!(header::messages(bytes) + count <= buffer.slots, "the buffer has free slots for its front");
        buffer.merge_newer(bytes, count, |i| layout.get(&content.bytes, i));
        layout.init(&mut content.bytes);
        front.len.store(0, Ordering::Relaxed);
    }

    /// The same, for a page that is about to be evicted.
    pub fn fold_evicted(&mut self) {
        if Mistake::FrontDropped.is_on() {
            self.front = Front::default();
        }
        self.fold();
    }
}

/// A front that is locked exclusively. The caller has latched its page, shared.
#[derive(Debug)]
pub struct LockedFront<'a> {
    content: RwLockWriteGuard<'a, Content>,
    len: &'a AtomicU32,
    dirty: &'a AtomicBool,
}

impl LockedFront<'_> {
    /// The messages.
    pub fn content(&self) -> &Content {
        &self.content
    }

    /// Merges the message into the front, if it has one for the key, or if the front and the buffer of `page` have room.
    /// Returns whether it did. The buffer has the layout `buffer`.
    #[inline]
    pub fn put(&mut self, page: &[u8], buffer: &BufferLayout, message: Message<'_>) -> bool {
        let count = self.content.messages();
        if count == 0 {
            self.fit(buffer);
        }
        let Content { shape, bytes } = &mut *self.content;
        let FrontLayout { front, .. } = shape.as_ref().expect("a front that fits its buffer");
        let is_full = header::messages(page) + count >= buffer.slots;
        if is_full && front.keys.find(bytes, count, message.key).is_err() || !front.put(bytes, message) {
            return false;
        }
        self.len.store(header::messages(bytes) as u32, Ordering::Release);
        if !self.dirty.load(Ordering::Relaxed) {
            self.dirty.store(true, Ordering::Relaxed);
        }
        true
    }

    /// Allocates the front, unless it has the right size already.
    fn fit(&mut self, buffer: &BufferLayout) {
        let content = &mut *self.content;
        if content.shape.is_some_and(|shape| shape.buffer == *buffer) {
            return;
        }
        let shape = FrontLayout::new(buffer);
        content.bytes = vec![0; shape.front.end()];
        shape.front.init(&mut content.bytes);
        content.shape = Some(shape);
    }
}

#[cfg(all(test, not(feature = "explore")))]
mod tests {
    use super::*;
    use crate::block::Block;
    use crate::frame::Frame;
    use crate::layout::{Layout, NodeLayout, Sizes};
    use crate::message::Op;

    /// A clean frame with a node that has an empty buffer.
    fn frame() -> (Frame, NodeLayout) {
        let layout = *Layout::new(Sizes { page: 1024, value: 8, epsilon: 0.0 }).unwrap().first();
        let frame = Frame::default();
        {
            let mut page = frame.latch.write();
            page.bytes = Block::zeroed(1024);
            layout.init(&mut page.bytes, 1, 7);
        }
        drop(frame.occupy(0));
        (frame, layout)
    }

    fn put(frame: &Frame, layout: &NodeLayout, key: u64, stamp: u64) -> bool {
        let page = frame.pin().read();
        let mut front = page.lock_front();
        front.put(&page, &layout.buffer, Message { key, stamp, op: Op::Update, value: &1_u64.to_le_bytes() })
    }

    #[test]
    fn an_empty_front_of_an_old_layout_is_not_folded() {
        let layout = Layout::dynamic(Sizes { page: 1024, value: 8, epsilon: 0.9 }).unwrap();
        let frame = Frame::default();
        {
            let mut page = frame.latch.write();
            page.bytes = Block::zeroed(1024);
            layout.first().init(&mut page.bytes, 1, 7);
        }
        drop(frame.occupy(0));
        assert!(put(&frame, layout.first(), 1, 1));
        let mut page = frame.pin().write();
        layout.move_to(&mut page, &layout.nodes()[0]);
        for key in 2..layout.most_slots() as u64 {
            let message = Message { key, stamp: key, op: Op::Update, value: &[1; 8] };
            assert!(layout.nodes()[0].buffer.put(&mut page, message), "the narrower node has room");
        }
        assert!(header::messages(&page) > layout.first().buffer.slots, "more than the old layout has");
        drop(page);
        frame.latch.try_write().unwrap().fold_evicted();
    }

    #[test]
    fn a_front_is_folded_when_it_is_full_and_never_overfills_the_buffer() {
        let (frame, layout) = frame();
        let (slots, mut folds, mut stamp) = (layout.buffer.slots, 0, 0);
        for key in 0..slots as u64 {
            stamp += 1;
            if !put(&frame, &layout, key * 7 % 101, stamp) {
                drop(frame.pin().write());
                folds += 1;
                assert!(put(&frame, &layout, key * 7 % 101, stamp), "an empty front has room");
            }
        }
        assert!((4..=slots / 4).contains(&folds), "{folds} folds of {slots} messages");
        assert!(!put(&frame, &layout, 1_000, stamp + 1), "the buffer and the front are full");
        let page = frame.pin().write();
        assert_eq!(header::messages(&page), slots);
        assert!(layout.buffer.places_are_a_permutation(&page));
    }

    #[test]
    fn equal_keys_meet_in_the_front_and_when_it_is_folded() {
        let (frame, layout) = frame();
        assert!(put(&frame, &layout, 5, 1));
        drop(frame.pin().write());
        assert!(put(&frame, &layout, 5, 2) && put(&frame, &layout, 5, 3) && put(&frame, &layout, 4, 4));
        let page = frame.pin().read();
        let front = page.front().read().expect("messages");
        assert_eq!((front.count(0, None), front.count(5, None), front.count(0, Some(5))), (2, 1, 1));
        assert_eq!(front.find(5).map(|message| message.value), Some(&2_u64.to_le_bytes()[..]));
        assert_eq!(layout.buffer.find(&page, 5).map(|message| message.stamp), Some(1), "the older one");
        drop(front);
        drop(page);
        let page = frame.pin().write();
        let found = layout.buffer.find(&page, 5).expect("a message");
        assert_eq!((found.value, found.stamp, header::messages(&page)), (&3_u64.to_le_bytes()[..], 3, 2));
    }

    #[test]
    fn a_clean_page_has_an_empty_front() {
        let (frame, layout) = frame();
        assert!(put(&frame, &layout, 5, 1) && frame.dirty.load(Ordering::Relaxed));
        let reader = frame.pin().read();
        assert!(frame.try_clean().is_none(), "a reader prevents the fold");
        drop(reader);
        {
            let page = frame.try_clean().expect("no thread uses the page");
            assert!(page.front.is_empty() && !frame.dirty.load(Ordering::Relaxed));
            assert_eq!(header::messages(&page.bytes), 1);
            assert!(put(&frame, &layout, 6, 2), "messages arrive while the page is written");
        }
        assert!(frame.dirty.load(Ordering::Relaxed), "the page must be written again");
    }
}
