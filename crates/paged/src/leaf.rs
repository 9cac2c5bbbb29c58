//! Operations on the records of a leaf.
//!
//! Invariants: keys ascend; a leaf has at most [`LeafLayout::slots`] records, and a caller makes room by a split
//! *before* it adds records.

use crate::batch::Batch;
use crate::layout::{Kind, LeafLayout, header};
use crate::message::{Message, Op, combine};
use crate::mistake::Mistake;

impl LeafLayout {
    /// The value of `key`.
    #[inline]
    pub fn find<'a>(&self, page: &'a [u8], key: u64) -> Option<&'a [u8]> {
        debug_assert_eq!(header::kind(page), Kind::Leaf);
        let i = self.keys.find(page, header::count(page), key).ok()?;
        Some(self.values.get(page, i))
    }

    /// Whether applying `op` to `key` needs a free slot.
    #[inline]
    pub fn grows(&self, page: &[u8], key: u64, op: Op) -> bool {
        op == Op::Insert && self.keys.find(page, header::count(page), key).is_err()
    }

    /// Whether no slot is free.
    #[inline]
    pub fn is_full(&self, page: &[u8]) -> bool {
        header::count(page) == self.slots
    }

    /// Applies a message as an operation.
    ///
    /// # Panics
    /// If a new record does not fit.
    pub fn apply(&self, page: &mut [u8], message: Message<'_>) {
        let count = header::count(page);
        match (self.keys.find(page, count, message.key), message.op) {
            (Ok(i), Op::Insert) => self.values.get_mut(page, i).copy_from_slice(message.value),
            (Ok(i), Op::Update) => combine(self.values.get_mut(page, i), message.value),
            (Ok(i), Op::Delete) => {
                self.keys.close(page, i..i + 1, count);
                self.values.close(page, i..i + 1, count);
                header::set_count(page, count - 1);
            }
            (Err(i), Op::Insert) => {
                assert!(count < self.slots, "a full leaf is split before a message is applied");
                self.keys.open(page, i, 1, count);
                self.values.open(page, i, 1, count);
                self.keys.set_number(page, i, message.key);
                self.values.get_mut(page, i).copy_from_slice(message.value);
                header::set_count(page, count + 1);
            }
            (Err(_), Op::Update | Op::Delete) => {}
        }
    }

    /// The first key of the right half, if the records and the inserts of `batch` do not fit together; `None` if they
    /// do. The key is the median of the union of both sets of keys, so that each half has room for its messages
    /// (000 §5.2.5).
    pub fn split_key(&self, page: &[u8], batch: &Batch) -> Option<u64> {
        let count = header::count(page);
        let new = || {
            let inserts = batch.iter().filter(|message| self.grows(page, message.key, message.op));
            inserts.map(|message| message.key)
        };
        let total = count + new().count();
        if total <= self.slots {
            return None;
        }
        assert!(total <= 2 * self.slots, "two leaves hold a leaf and a buffer");
        if Mistake::LeafSplitWithoutMessages.is_on() {
            return Some(self.keys.number(page, count / 2));
        }
        let (mut i, mut median) = (0, None);
        let mut fresh = new().peekable();
        for _ in 0..=total / 2 {
            let stored = (i < count).then(|| self.keys.number(page, i));
            median = match (stored, fresh.peek().copied()) {
                (Some(key), Some(other)) if other < key => fresh.next(),
                (Some(key), _) => {
                    i += 1;
                    Some(key)
                }
                (None, _) => fresh.next(),
            };
        }
        assert!(median.is_some(), "a union of {total} keys has a median");
        median
    }

    /// Moves the records with keys from `key` on to the empty leaf `right`.
    pub fn split(&self, left: &mut [u8], right: &mut [u8], key: u64) {
        assert_eq!(header::count(right), 0, "the right half is new");
        let count = header::count(left);
        let cut = self.keys.lower_bound(left, count, key);
        self.keys.copy(left, cut..count, right, 0);
        self.values.copy(left, cut..count, right, 0);
        header::set_kind(right, 0, Kind::Leaf);
        header::set_count(right, count - cut);
        header::set_count(left, cut);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::layout::{Layout, Sizes};

    fn insert(key: u64) -> Message<'static> {
        Message { key, stamp: 1, op: Op::Insert, value: &[7; 8] }
    }

    #[test]
    fn messages_act_as_operations() {
        let leaf = Layout::new(Sizes { page: 256, value: 8, epsilon: 0.5 }).unwrap().leaf;
        let mut page = vec![0; 256];
        for key in [5, 1, 9] {
            leaf.apply(&mut page, insert(key));
        }
        leaf.apply(&mut page, Message { key: 5, stamp: 2, op: Op::Update, value: &[1, 0, 0, 0, 0, 0, 0, 0] });
        leaf.apply(&mut page, Message { key: 6, stamp: 3, op: Op::Update, value: &[1; 8] });
        leaf.apply(&mut page, Message { key: 1, stamp: 4, op: Op::Delete, value: &[0; 8] });
        assert_eq!(leaf.find(&page, 5), Some(&[8, 7, 7, 7, 7, 7, 7, 7][..]));
        assert_eq!((leaf.find(&page, 6), leaf.find(&page, 1), header::count(&page)), (None, None, 2));
        assert!(leaf.grows(&page, 6, Op::Insert) && !leaf.grows(&page, 6, Op::Update));
    }

    #[test]
    fn a_split_leaves_room_for_the_messages_of_each_half() {
        let leaf = Layout::new(Sizes { page: 256, value: 8, epsilon: 0.5 }).unwrap().leaf;
        let mut page = vec![0; 256];
        (0..leaf.slots as u64).for_each(|key| leaf.apply(&mut page, insert(key)));
        assert!(leaf.is_full(&page));
        // All messages are above all records, so the middle of the records would not do.
        let mut batch = Batch::new(8);
        (0..leaf.slots as u64).for_each(|key| batch.push(insert(1_000 + key)));
        let key = leaf.split_key(&page, &batch).expect("too many");
        let mut right = vec![0; 256];
        leaf.split(&mut page, &mut right, key);
        let above = batch.split_off_key(key);
        batch.iter().for_each(|message| leaf.apply(&mut page, message));
        above.iter().for_each(|message| leaf.apply(&mut right, message));
        assert_eq!((header::count(&page), header::count(&right)), (leaf.slots, leaf.slots));
        assert_eq!(leaf.split_key(&page, &Batch::new(8)), None);
    }
}
