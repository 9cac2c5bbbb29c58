//! Operations on the pivots and children of an inner node, and on its buffer.
//!
//! ```text
//!   pivots      30    50    70                      child 0: keys < 30, child 1: 30 ≤ keys < 50, …
//!   children  c0   c1    c2    c3
//!   buffer    4  17 │ 31  33  42 │ 55 │ 90          sorted by key, so the messages for a child are one block
//! ```
//!
//! Invariants: the places of a buffer are a permutation, so each message has a place of its own for its value; pivots
//! ascend; the messages are sorted by key and timestamp, with one message a key, because a message
//! that arrives is merged into the one that is there (000 §5.2.1).

use std::ops::Range;

use crate::batch::Batch;
use crate::hints::Child;
use crate::layout::{BufferLayout, InnerLayout, Kind, Layout, NodeLayout, header};
use crate::message::{Message, Op, Stored, merge};
use crate::mistake::Mistake;

impl InnerLayout {
    /// The index of the child that holds `key`.
    #[inline]
    pub fn child_for(&self, page: &[u8], key: u64) -> usize {
        self.pivots.upper_bound(page, header::count(page), key)
    }

    /// The address of the child `i`.
    #[inline]
    pub fn child(&self, page: &[u8], i: usize) -> u64 {
        debug_assert!(i <= header::count(page), "one more child than pivots");
        self.children.number(page, i)
    }

    /// The child `i`, as the page buffer finds it.
    #[inline]
    pub fn child_slot(&self, page: &[u8], i: usize) -> Child {
        Child { no: self.child(page, i), slot: i, slots: self.pivots_max + 1 }
    }

    /// The number of free slots for pivots.
    #[inline]
    pub fn room(&self, page: &[u8]) -> usize {
        self.pivots_max - header::count(page)
    }

    /// The least key above all keys of the child `i`; `None` for the last child.
    pub fn upper(&self, page: &[u8], i: usize) -> Option<u64> {
        (i < header::count(page)).then(|| self.pivots.number(page, i))
    }

    /// Makes an empty page a node with one child.
    pub fn init(&self, page: &mut [u8], level: u8, kind: Kind, child: u64) {
        assert!(level > 0, "inner nodes are above the leaves");
        header::set_kind(page, level, kind);
        header::set_count(page, 0);
        header::set_messages(page, 0);
        self.children.set_number(page, 0, child);
    }

    /// Adds a pivot and the child to its right, behind the child `i`.
    ///
    /// # Panics
    /// If the node is full.
    pub fn insert(&self, page: &mut [u8], i: usize, pivot: u64, right: u64) {
        let count = header::count(page);
        assert!(count < self.pivots_max, "a node has room before one of its children is split");
        debug_assert!(i == 0 || self.pivots.number(page, i - 1) < pivot, "pivots ascend");
        debug_assert!(i == count || pivot < self.pivots.number(page, i), "pivots ascend");
        self.pivots.open(page, i, 1, count);
        self.children.open(page, i + 1, 1, count + 1);
        self.pivots.set_number(page, i, pivot);
        self.children.set_number(page, i + 1, right);
        header::set_count(page, count + 1);
    }

    /// Moves the pivots behind the middle one to the new node `right`. Returns the middle pivot, which is in neither
    /// half. Buffers are divided by [`BufferLayout::split`].
    pub fn split(&self, left: &mut [u8], right: &mut [u8]) -> u64 {
        let (count, middle) = (header::count(left), header::count(left) / 2);
        assert!(count >= 1, "a node with one child cannot be split");
        let pivot = self.pivots.number(left, middle);
        self.init(right, header::level(left), header::kind(left), self.child(left, middle + 1));
        self.pivots.copy(left, middle + 1..count, right, 0);
        self.children.copy(left, middle + 1..count + 1, right, 0);
        header::set_count(right, count - middle - 1);
        header::set_count(left, middle);
        pivot
    }
}

impl BufferLayout {
    /// Makes the buffer of a new node empty.
    pub fn init(&self, page: &mut [u8]) {
        header::set_messages(page, 0);
        (0..self.slots).for_each(|i| self.places.set_small(page, i, i));
    }

    /// Whether each place is there once.
    pub fn places_are_a_permutation(&self, page: &[u8]) -> bool {
        let mut seen = vec![false; self.slots];
        (0..self.slots).all(|i| {
            let place = self.places.small(page, i);
            place < self.slots && !std::mem::replace(&mut seen[place], true)
        })
    }

    /// The message for `key`.
    #[inline]
    pub fn find<'a>(&self, page: &'a [u8], key: u64) -> Option<Message<'a>> {
        let i = self.keys.find(page, header::messages(page), key).ok()?;
        Some(self.get(page, i))
    }

    /// The message `i`.
    #[inline]
    pub fn get<'a>(&self, page: &'a [u8], i: usize) -> Message<'a> {
        debug_assert!(i < header::messages(page));
        Message {
            key: self.keys.number(page, i),
            stamp: self.stamps.number(page, i),
            op: Op::from_byte(self.ops.get(page, i)[0]),
            value: self.values.get(page, self.places.small(page, i)),
        }
    }

    /// Merges the message into the buffer, if there is one for the key or a free slot. Returns whether it did.
    #[inline]
    pub fn put(&self, page: &mut [u8], message: Message<'_>) -> bool {
        let count = header::messages(page);
        match self.keys.find(page, count, message.key) {
            Ok(i) => self.merge_at(page, i, message),
            Err(_) if count == self.slots => return false,
            Err(i) => {
                let place = self.places.small(page, count);
                for column in [self.keys, self.stamps, self.ops, self.places] {
                    column.open(page, i, 1, count);
                }
                self.places.set_small(page, i, place);
                self.set(page, i, message);
                header::set_messages(page, count + 1);
            }
        }
        true
    }

    fn merge_at(&self, page: &mut [u8], i: usize, newer: Message<'_>) {
        let (stamp, op) = (self.stamps.number(page, i), Op::from_byte(self.ops.get(page, i)[0]));
        let place = self.places.small(page, i);
        let mut stored = Stored { stamp, op, value: self.values.get_mut(page, place) };
        merge(&mut stored, newer);
        let (stamp, op) = (stored.stamp, stored.op);
        self.stamps.set_number(page, i, stamp);
        self.ops.get_mut(page, i)[0] = op as u8;
    }

    fn set(&self, page: &mut [u8], i: usize, message: Message<'_>) {
        self.keys.set_number(page, i, message.key);
        self.stamps.set_number(page, i, message.stamp);
        self.ops.get_mut(page, i)[0] = message.op as u8;
        let place = self.places.small(page, i);
        self.values.get_mut(page, place).copy_from_slice(message.value);
    }

    /// The number of messages after `batch` is merged into the buffer.
    pub fn merged_len(&self, page: &[u8], batch: &Batch) -> usize {
        let count = header::messages(page);
        count + batch.keys().filter(|&key| self.keys.find(page, count, key).is_err()).count()
    }

    /// Merges newer messages into the buffer.
    ///
    /// # Panics
    /// If they do not fit.
    pub fn merge_all(&self, page: &mut [u8], batch: &Batch) {
        /// Up to this many messages, moving the later ones for each message costs less than merging two lists.
        const FEW: usize = 8;
        if batch.len() <= FEW {
            batch.iter().for_each(|message| assert!(self.put(page, message), "the messages fit"));
            return;
        }
        let all = self.union(page, 0..header::messages(page), batch, 0..batch.len());
        assert!(all.len() <= self.slots, "the messages fit");
        all.iter().enumerate().for_each(|(i, message)| self.set(page, i, message));
        header::set_messages(page, all.len());
    }

    /// Merges `len` newer messages with ascending keys into the buffer. Each field of the buffer is moved at most once.
    ///
    /// # Panics
    /// If they do not fit.
    pub fn merge_newer<'m>(&self, page: &mut [u8], len: usize, newer: impl Fn(usize) -> Message<'m>) {
        let count = header::messages(page);
        // The additional messages: where they are inserted, their numbers, and the places of their values.
        let mut added: Vec<(usize, usize, usize)> = Vec::with_capacity(len);
        for j in 0..len {
            let message = newer(j);
            match self.keys.find(page, count, message.key) {
                Ok(i) => self.merge_at(page, i, message),
                Err(i) => added.push((i, j, self.places.small(page, count + added.len()))),
            }
        }
        assert!(count + added.len() <= self.slots, "the messages fit");
        let mut end = count;
        for (before, &(i, j, place)) in added.iter().enumerate().rev() {
            for column in [self.keys, self.stamps, self.ops, self.places] {
                column.open(page, i, before + 1, end);
            }
            self.places.set_small(page, i + before, place);
            self.set(page, i + before, newer(j));
            end = i;
        }
        header::set_messages(page, count + added.len());
    }

    /// The union of messages of the buffer and newer messages of `batch`.
    pub fn union(&self, page: &[u8], held: Range<usize>, batch: &Batch, arrived: Range<usize>) -> Batch {
        let mut all = Batch::new(self.values.bytes(0..1).len());
        let (mut i, mut j) = (held.start, arrived.start);
        while i < held.end || j < arrived.end {
            let first = j == arrived.end || i < held.end && self.keys.number(page, i) <= batch.key(j);
            if first {
                all.push(self.get(page, i));
                i += 1;
            } else {
                all.push_or_merge(batch.get(j));
                j += 1;
            }
        }
        debug_assert!(all.len() <= held.len() + arrived.len());
        all
    }

    /// Removes messages.
    pub fn remove(&self, page: &mut [u8], gone: Range<usize>) {
        let count = header::messages(page);
        let len = gone.len();
        for column in [self.keys, self.stamps, self.ops] {
            column.close(page, gone.clone(), count);
        }
        let places = self.places.bytes(gone.start..count);
        page[places].rotate_left(self.places.bytes(0..len).len());
        header::set_messages(page, count - len);
    }

    /// Moves the messages with keys from `key` on to the empty buffer of the new node `right`.
    pub fn split(&self, left: &mut [u8], right: &mut [u8], key: u64) {
        assert_eq!(header::messages(right), 0, "the right half is new");
        let count = header::messages(left);
        let cut = self.keys.lower_bound(left, count, key);
        let cut = if Mistake::MessagesNotDivided.is_on() { count } else { cut };
        self.init(right);
        for column in [self.keys, self.stamps, self.ops] {
            column.copy(left, cut..count, right, 0);
        }
        for i in cut..count {
            let place = self.places.small(left, i);
            self.values.get_mut(right, i - cut).copy_from_slice(self.values.get(left, place));
        }
        header::set_messages(right, count - cut);
        header::set_messages(left, cut);
    }
}

impl NodeLayout {
    /// Makes an empty page a node with one child and an empty buffer.
    pub fn init(&self, page: &mut [u8], level: u8, child: u64) {
        self.inner.init(page, level, Kind::Buffered, child);
        header::set_class(page, self.class);
        header::set_wanted(page, usize::from(self.class));
        self.buffer.init(page);
    }

    /// Moves pivots and messages behind the middle pivot to the new node `right`. Returns that pivot, which is in neither
    /// half.
    pub fn split(&self, left: &mut [u8], right: &mut [u8]) -> u64 {
        let pivot = self.inner.split(left, right);
        header::set_class(right, self.class);
        header::set_wanted(right, header::wanted(left));
        self.buffer.split(left, right, pivot);
        pivot
    }
}

impl Layout {
    /// Gives a node the layout `to`, in which its pivots and messages have room.
    pub fn move_to(&self, page: &mut [u8], to: &NodeLayout) {
        let (count, messages, wanted) = (header::count(page), header::messages(page), header::wanted(page));
        assert!(count <= to.inner.pivots_max && messages <= to.buffer.slots, "the node fits");
        let (old, from) = (page.to_vec(), self.node(page));
        to.init(page, header::level(&old), from.inner.child(&old, 0));
        from.inner.pivots.copy_to(&old, count, to.inner.pivots, page);
        from.inner.children.copy_to(&old, count + 1, to.inner.children, page);
        header::set_count(page, count);
        (0..messages).for_each(|i| to.buffer.set(page, i, from.buffer.get(&old, i)));
        header::set_messages(page, messages);
        header::set_wanted(page, wanted);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::layout::Sizes;

    fn layout() -> NodeLayout {
        *Layout::new(Sizes { page: 512, value: 8, epsilon: 0.5 }).unwrap().first()
    }

    fn insert(key: u64, stamp: u64) -> Message<'static> {
        Message { key, stamp, op: Op::Insert, value: &[1; 8] }
    }

    #[test]
    fn a_split_of_a_full_node_frees_half_of_each_side() {
        let layout = layout();
        let (mut left, mut right) = (vec![0; 512], vec![0; 512]);
        layout.init(&mut left, 1, 100);
        let n = layout.inner.pivots_max;
        (0..n).for_each(|i| layout.inner.insert(&mut left, i, 10 * (i as u64 + 1), 101 + i as u64));
        (0..6).for_each(|i| assert!(layout.buffer.put(&mut left, insert(7 * i, 1 + i))));
        assert_eq!(layout.inner.child_for(&left, 10), 1);
        assert_eq!(layout.inner.child_for(&left, 9), 0);
        assert_eq!(layout.inner.upper(&left, n), None);
        let pivot = layout.split(&mut left, &mut right);
        for half in [&left, &right] {
            assert_eq!(layout.inner.room(half), n.div_ceil(2), "room for each child that a flush addresses");
        }
        assert!((0..header::messages(&left)).all(|i| layout.buffer.get(&left, i).key < pivot));
        assert!((0..header::messages(&right)).all(|i| layout.buffer.get(&right, i).key >= pivot));
        assert_eq!(header::messages(&left) + header::messages(&right), 6);
    }

    #[test]
    fn a_node_keeps_its_content_when_it_gets_another_epsilon() {
        let layout = Layout::dynamic(Sizes { page: 512, value: 8, epsilon: 0.5 }).unwrap();
        let mut page = vec![0; 512];
        layout.first().init(&mut page, 1, 100);
        (0..3).for_each(|i| layout.first().inner.insert(&mut page, i, 10 * (i as u64 + 1), 101 + i as u64));
        (0..4).for_each(|i| assert!(layout.first().buffer.put(&mut page, insert(7 * (3 - i), 1 + i))));
        let content = |page: &[u8]| {
            let NodeLayout { inner, buffer, .. } = layout.node(page);
            let children: Vec<u64> = (0..=header::count(page)).map(|i| inner.child(page, i)).collect();
            let pivots: Vec<u64> = (0..header::count(page)).map(|i| inner.pivots.number(page, i)).collect();
            let messages: Vec<_> = (0..header::messages(page))
                .map(|i| buffer.get(page, i))
                .map(|message| (message.key, message.stamp, message.op, message.value.to_vec()))
                .collect();
            (children, pivots, messages)
        };
        let before = content(&page);
        assert_eq!((before.0.len(), before.2.len()), (4, 4));
        for to in layout.nodes().iter().filter(|to| to.buffer.slots >= 4) {
            layout.move_to(&mut page, to);
            assert_eq!((content(&page), header::class(&page)), (before.clone(), usize::from(to.class)));
            assert!(to.buffer.places_are_a_permutation(&page));
        }
    }

    #[test]
    fn a_buffer_has_one_message_a_key() {
        let (layout, mut page) = (layout(), vec![0; 512]);
        layout.init(&mut page, 1, 100);
        let slots = layout.buffer.slots as u64;
        (0..slots).for_each(|key| assert!(layout.buffer.put(&mut page, insert(2 * key, 1 + key))));
        assert!(!layout.buffer.put(&mut page, insert(1, 99)), "full");
        assert!(layout.buffer.put(&mut page, insert(2, 99)), "merged");
        assert_eq!(layout.buffer.find(&page, 2).map(|message| message.stamp), Some(99));
        let mut batch = Batch::new(8);
        [2, 3].iter().for_each(|&key| batch.push(insert(key, 200 + key)));
        assert_eq!(layout.buffer.merged_len(&page, &batch), layout.buffer.slots + 1);
        let union = layout.buffer.union(&page, 1..3, &batch, 0..2);
        assert_eq!(union.keys().collect::<Vec<_>>(), [2, 3, 4]);
        layout.buffer.remove(&mut page, 0..4);
        layout.buffer.merge_all(&mut page, &batch);
        assert_eq!(header::messages(&page) as u64, slots - 2);
        assert!(layout.buffer.places_are_a_permutation(&page));
    }

    #[test]
    fn a_merge_of_many_messages_is_that_of_each() {
        let (layout, mut page) = (layout(), vec![0; 512]);
        layout.init(&mut page, 1, 100);
        [40, 10, 30, 20].iter().for_each(|&key| assert!(layout.buffer.put(&mut page, insert(key, key))));
        for keys in [vec![], vec![10], vec![5], vec![99], vec![1, 2, 10, 11, 12, 39, 40, 41], vec![10, 20, 30, 40]] {
            let (mut one, mut other) = (page.clone(), page.clone());
            keys.iter().for_each(|&key| assert!(layout.buffer.put(&mut one, insert(key, 200 + key))));
            layout.buffer.merge_newer(&mut other, keys.len(), |i| insert(keys[i], 200 + keys[i]));
            assert_eq!(header::messages(&one), header::messages(&other), "{keys:?}");
            let all = |page: &[u8]| {
                let get = |i| layout.buffer.get(page, i);
                (0..header::messages(page))
                    .map(|i| (get(i).key, get(i).stamp, get(i).value.to_vec()))
                    .collect::<Vec<_>>()
            };
            assert_eq!(all(&one), all(&other), "{keys:?}");
            assert!(layout.buffer.places_are_a_permutation(&other));
        }
    }
}
