//! A list of messages on the way from a buffer to a child, in ascending order of keys, with one message a key.
//!
//! The fields are in separate vectors, as in a page, so that a block of messages moves by four copies.

use crate::message::{Message, Op};

/// Messages in ascending order of keys.
#[derive(Clone, Debug, Default)]
pub struct Batch {
    width: usize,
    keys: Vec<u64>,
    stamps: Vec<u64>,
    ops: Vec<u8>,
    values: Vec<u8>,
}

impl Batch {
    /// An empty batch for values of `width` bytes.
    pub fn new(width: usize) -> Batch {
        Batch { width, ..Batch::default() }
    }

    /// The number of messages.
    pub fn len(&self) -> usize {
        self.keys.len()
    }

    /// Whether there are no messages.
    pub fn is_empty(&self) -> bool {
        self.keys.is_empty()
    }

    /// The keys, in ascending order.
    pub fn keys(&self) -> &[u64] {
        &self.keys
    }

    /// The message `i`.
    #[inline]
    pub fn get(&self, i: usize) -> Message<'_> {
        let value = &self.values[i * self.width..(i + 1) * self.width];
        Message { key: self.keys[i], stamp: self.stamps[i], op: Op::from_byte(self.ops[i]), value }
    }

    /// All messages.
    pub fn iter(&self) -> impl Iterator<Item = Message<'_>> {
        (0..self.len()).map(|i| self.get(i))
    }

    /// Appends a message whose key is the greatest.
    #[inline]
    pub fn push(&mut self, message: Message<'_>) {
        debug_assert!(self.keys.last().is_none_or(|&last| last < message.key), "ascending keys");
        debug_assert_eq!(message.value.len(), self.width);
        self.keys.push(message.key);
        self.stamps.push(message.stamp);
        self.ops.push(message.op as u8);
        self.values.extend_from_slice(message.value);
    }

    /// Removes the messages from the message `i` on, and returns them.
    pub fn split_off(&mut self, i: usize) -> Batch {
        debug_assert!(i <= self.len());
        Batch {
            width: self.width,
            keys: self.keys.split_off(i),
            stamps: self.stamps.split_off(i),
            ops: self.ops.split_off(i),
            values: self.values.split_off(i * self.width),
        }
    }

    /// Removes the messages with keys from `key` on, and returns them.
    pub fn split_off_key(&mut self, key: u64) -> Batch {
        self.split_off(self.keys.partition_point(|&other| other < key))
    }

    /// The union of both batches; messages of `newer` are merged into those of `older`.
    pub fn union(older: &Batch, newer: &Batch) -> Batch {
        let mut all = Batch::new(older.width);
        let (mut i, mut j) = (0, 0);
        while i < older.len() || j < newer.len() {
            if j == newer.len() || i < older.len() && older.keys[i] <= newer.keys[j] {
                all.push(older.get(i));
                i += 1;
            } else {
                all.push_or_merge(newer.get(j));
                j += 1;
            }
        }
        debug_assert!(all.len() <= older.len() + newer.len());
        all
    }

    /// The stored fields of the last message, for a merge.
    pub(crate) fn last_mut(&mut self) -> Option<(u64, crate::message::Stored<'_>, &mut u64, &mut u8)> {
        let i = self.len().checked_sub(1)?;
        let value = &mut self.values[i * self.width..];
        let stored = crate::message::Stored { stamp: self.stamps[i], op: Op::from_byte(self.ops[i]), value };
        Some((self.keys[i], stored, &mut self.stamps[i], &mut self.ops[i]))
    }

    /// Appends a message, or merges it into the last one if both have the same key.
    #[inline]
    pub fn push_or_merge(&mut self, message: Message<'_>) {
        if let Some((key, mut stored, stamp, op)) = self.last_mut().filter(|(key, ..)| *key == message.key) {
            debug_assert_eq!(key, message.key);
            crate::message::merge(&mut stored, message);
            (*stamp, *op) = (stored.stamp, stored.op as u8);
            return;
        }
        self.push(message);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn batches_split_and_merge_equal_keys() {
        let mut batch = Batch::new(1);
        for (key, stamp) in [(1, 1), (5, 2), (5, 3), (9, 4)] {
            batch.push_or_merge(Message { key, stamp, op: Op::Update, value: &[1] });
        }
        assert_eq!(batch.keys(), [1, 5, 9]);
        assert_eq!((batch.get(1).stamp, batch.get(1).value), (3, &[2][..]));
        let right = batch.split_off_key(5);
        assert_eq!((batch.len(), right.len()), (1, 2));
        assert_eq!(right.iter().map(|message| message.key).collect::<Vec<_>>(), [5, 9]);
        assert!(!right.is_empty());
    }
}
