//! A list of messages on the way from a buffer to a child, in ascending order of keys, with one message a key.
//!
//! The values are in a vector of their own, so that a batch has two allocations.

use crate::message::{Message, Op, Stored, merge};

/// The fields of a message without its value.
#[derive(Clone, Copy, Debug)]
struct Head {
    key: u64,
    stamp: u64,
    op: Op,
}

/// Messages in ascending order of keys.
#[derive(Clone, Debug, Default)]
pub struct Batch {
    width: usize,
    heads: Vec<Head>,
    values: Vec<u8>,
}

impl Batch {
    /// An empty batch for values of `width` bytes.
    pub fn new(width: usize) -> Batch {
        Batch { width, ..Batch::default() }
    }

    /// The number of messages.
    #[inline]
    pub fn len(&self) -> usize {
        self.heads.len()
    }

    /// Whether there are no messages.
    pub fn is_empty(&self) -> bool {
        self.heads.is_empty()
    }

    /// The key of the message `i`.
    #[inline]
    pub fn key(&self, i: usize) -> u64 {
        self.heads[i].key
    }

    /// The keys, in ascending order.
    #[inline]
    pub fn keys(&self) -> impl Iterator<Item = u64> + '_ {
        self.heads.iter().map(|head| head.key)
    }

    /// The message `i`.
    #[inline]
    pub fn get(&self, i: usize) -> Message<'_> {
        let value = &self.values[i * self.width..(i + 1) * self.width];
        let Head { key, stamp, op } = self.heads[i];
        Message { key, stamp, op, value }
    }

    /// All messages.
    pub fn iter(&self) -> impl Iterator<Item = Message<'_>> {
        (0..self.len()).map(|i| self.get(i))
    }

    /// Appends a message whose key is the greatest.
    #[inline]
    pub fn push(&mut self, message: Message<'_>) {
        debug_assert!(self.heads.last().is_none_or(|last| last.key < message.key), "ascending keys");
        debug_assert_eq!(message.value.len(), self.width);
        self.heads.push(Head { key: message.key, stamp: message.stamp, op: message.op });
        self.values.extend_from_slice(message.value);
    }

    /// Removes the messages from the message `i` on, and returns them.
    pub fn split_off(&mut self, i: usize) -> Batch {
        debug_assert!(i <= self.len());
        Batch { width: self.width, heads: self.heads.split_off(i), values: self.values.split_off(i * self.width) }
    }

    /// Removes the messages with keys from `key` on, and returns them.
    pub fn split_off_key(&mut self, key: u64) -> Batch {
        self.split_off(self.heads.partition_point(|head| head.key < key))
    }

    /// The union of both batches; messages of `newer` are merged into those of `older`.
    pub fn union(older: &Batch, newer: &Batch) -> Batch {
        let mut all = Batch::new(older.width);
        let (mut i, mut j) = (0, 0);
        while i < older.len() || j < newer.len() {
            if j == newer.len() || i < older.len() && older.key(i) <= newer.key(j) {
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

    /// Appends a message, or merges it into the last one if both have the same key.
    #[inline]
    pub fn push_or_merge(&mut self, message: Message<'_>) {
        match self.heads.last_mut().filter(|head| head.key == message.key) {
            Some(head) => {
                let from = self.values.len() - self.width;
                let mut stored = Stored { stamp: head.stamp, op: head.op, value: &mut self.values[from..] };
                merge(&mut stored, message);
                (head.stamp, head.op) = (stored.stamp, stored.op);
            }
            None => self.push(message),
        }
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
        assert_eq!(batch.keys().collect::<Vec<_>>(), [1, 5, 9]);
        assert_eq!((batch.get(1).stamp, batch.get(1).value), (3, &[2][..]));
        let right = batch.split_off_key(5);
        assert_eq!((batch.len(), right.len()), (1, 2));
        assert_eq!(right.iter().map(|message| message.key).collect::<Vec<_>>(), [5, 9]);
        assert!(!right.is_empty());
    }
}
