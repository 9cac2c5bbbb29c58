//! [`Weighing`]: the weights of the new messages in a range of keys, summed up once, for the pages of several levels.
//!
//! ```text
//!   messages   a b c d e f g h i j k l …         one pass over the memtable
//!   marks      ▲       ▲     ▲       ▲           the weight of all messages through the key, every `step` bytes
//!   parts      ├───────────┼──────────┼───       of a page, or of a page below it
//! ```
//!
//! A page with a buffer chooses children by the weights of the messages for them. Reading a memtable for its weights
//! costs as much as applying it. So the first page of a path reads the messages, and the pages below it use the marks.
//! The weight of a part is then the difference between two marks. It is wrong by less than a step at each bound,
//! and the errors of adjacent parts cancel each other out.
//!
//! A message that a newer one of its key hides does not count, because the buffer will not hold it. If a snapshot needs
//! older messages, all of them count.
//!
//! Invariants: a part with a positive weight has a message; the weights of adjacent parts add up to that of both
//! together.

use crate::base::{Entry, Kind};
use crate::index::pages::waiting::weight;

/// The most marks. If there are more, every second one is dropped.
const MOST_MARKS: usize = 1 << 14;

/// The weights of the messages in a range of keys.
pub(super) struct Weighing {
    from: Vec<u8>,
    to: Option<Vec<u8>>,
    /// The bytes between two marks.
    step: u64,
    /// Keys of messages in ascending order, each with the weight of all messages up to those of the key.
    marks: Vec<(Vec<u8>, u64)>,
    total: u64,
    /// Whether messages that a newer one hides count.
    counts_hidden: bool,
    last_key: Vec<u8>,
    is_hidden: bool,
}

impl Weighing {
    /// The weights of no message yet, for the keys from `from` to `to`.
    pub(super) fn new(from: Vec<u8>, to: Option<Vec<u8>>, step: u64, counts_hidden: bool) -> Weighing {
        let (marks, last_key) = (Vec::new(), Vec::new());
        Weighing { from, to, step: step.max(1), marks, total: 0, counts_hidden, last_key, is_hidden: false }
    }

    /// Adds the next message in the order of messages.
    pub(super) fn add(&mut self, message: &Entry<'_>) {
        debug_assert!(message.key >= &self.last_key[..], "messages are added in order");
        let is_same = message.key == &self.last_key[..];
        if is_same && self.is_hidden {
            return;
        }
        if !is_same {
            if self.total - self.marks.last().map_or(0, |&(_, through)| through) >= self.step {
                self.mark();
            }
            self.last_key.clear();
            self.last_key.extend_from_slice(message.key);
        }
        self.is_hidden = !self.counts_hidden && message.kind != Kind::Merge;
        self.total += weight(message);
    }

    /// Ends the additions. So the last mark is at the last key, and a part behind it has no weight.
    pub(super) fn finish(mut self) -> Weighing {
        if self.marks.last().map_or(0, |&(_, through)| through) < self.total {
            self.mark();
        }
        self
    }

    /// Marks the last key, whose messages were all added.
    fn mark(&mut self) {
        if self.marks.len() == MOST_MARKS {
            let mut is_kept = false;
            self.marks.retain(|_| {
                is_kept = !is_kept;
                is_kept
            });
            // Further marks are as far apart as those that are left.
            self.step = (2 * self.step).max(self.total / self.marks.len() as u64);
        }
        self.marks.push((self.last_key.clone(), self.total));
    }

    /// Whether the messages from `from` to `to` were added.
    pub(super) fn covers(&self, from: &[u8], to: Option<&[u8]>) -> bool {
        let ends_inside = self.to.as_deref().is_none_or(|end| to.is_some_and(|to| to <= end));
        self.from.as_slice() <= from && ends_inside
    }

    /// The weight of the messages below `key`: that of the last mark below it. `None` stands for the end of the
    /// range.
    fn below(&self, key: Option<&[u8]>) -> u64 {
        let Some(key) = key.filter(|&key| self.to.as_deref().is_none_or(|to| key < to)) else { return self.total };
        let at = self.marks.partition_point(|(mark, _)| mark.as_slice() < key);
        at.checked_sub(1).map_or(0, |at| self.marks[at].1)
    }

    /// The weights of the messages from `next` to `to`, for the parts that begin at `bounds`. `next` is the key of a
    /// message. A part may get no weight although it has messages.
    pub(super) fn of_parts(&self, bounds: &[Vec<u8>], next: &[u8], to: Option<&[u8]>) -> Vec<u64> {
        debug_assert!(self.covers(next, to), "the messages were added");
        let ends = bounds.iter().skip(1).map(|bound| Some(bound.as_slice())).chain([to]);
        let weights = bounds.iter().zip(ends).map(|(from, end)| {
            let from = next.max(from);
            let is_empty = end.is_some_and(|end| end <= from);
            if is_empty { 0 } else { self.below(end) - self.below(Some(from)) }
        });
        weights.collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::Seqno;

    fn message(key: &[u8], seqno: u64, kind: Kind, value: usize) -> (Vec<u8>, Seqno, Kind, Vec<u8>) {
        (key.to_vec(), Seqno(seqno), kind, vec![0; value])
    }

    fn weighed(messages: &[(Vec<u8>, Seqno, Kind, Vec<u8>)], step: u64, counts_hidden: bool) -> Weighing {
        let mut weighing = Weighing::new(Vec::new(), None, step, counts_hidden);
        for (key, seqno, kind, value) in messages {
            weighing.add(&Entry { key, seqno: *seqno, kind: *kind, value });
        }
        weighing.finish()
    }

    fn rows(count: u32) -> Vec<(Vec<u8>, Seqno, Kind, Vec<u8>)> {
        (0..count).map(|i| message(&i.to_be_bytes(), 1, Kind::Put, 80 + i as usize % 40)).collect()
    }

    fn bounds(step: u32, count: u32) -> Vec<Vec<u8>> {
        (0..count).map(|i| (i * step).to_be_bytes().to_vec()).collect()
    }

    #[test]
    fn parts_are_weighed_up_to_a_step_and_a_message_at_each_bound() {
        let messages = rows(10_000);
        for step in [1, 100, 4096] {
            let weighing = weighed(&messages, step, false);
            let bounds = bounds(997, 10);
            let to = 9_500u32.to_be_bytes();
            for first in [0u32, 500, 3_000, 9_400] {
                let weights = weighing.of_parts(&bounds, &first.to_be_bytes(), Some(&to));
                for (i, &estimate) in weights.iter().enumerate() {
                    let (from, end) = (first.max(997 * i as u32), (997 * (i as u32 + 1)).min(9_500));
                    let exact: u64 = (from..end).map(|i| 20 + 80 + u64::from(i) % 40).sum();
                    assert!(estimate.abs_diff(exact) <= step + 140, "part {i}: {estimate} instead of {exact}");
                    assert!(estimate == 0 || exact > 0, "a part with a weight has a message");
                }
            }
        }
    }

    #[test]
    fn a_message_that_a_newer_one_hides_has_no_weight() {
        let of = |kind, seqno| message(b"a", seqno, kind, 84 - 1);
        let chain = [of(Kind::Merge, 9), of(Kind::Merge, 8), of(Kind::Put, 7), of(Kind::Put, 6), of(Kind::Merge, 5)];
        assert_eq!(weighed(&chain, 1, false).total, 300, "two operands and the base");
        assert_eq!(weighed(&chain, 1, true).total, 500, "snapshots need all");
        assert_eq!(weighed(&[of(Kind::Delete, 3), of(Kind::Put, 2)], 1, false).total, 100);
        let other = message(b"b", 4, Kind::Put, 83);
        assert_eq!(weighed(&[of(Kind::Put, 3), other], 1, false).total, 200, "another key");
    }

    #[test]
    fn a_part_without_messages_has_no_weight() {
        let hot = |seqno| message(b"k", seqno, Kind::Put, 83);
        for step in [1, 150, 4096] {
            let weighing = weighed(&[message(b"a", 1, Kind::Put, 83), hot(3), hot(2)], step, true);
            let bounds = [b"".to_vec(), b"b".to_vec(), b"l".to_vec()];
            let weights = weighing.of_parts(&bounds, b"a", None);
            assert_eq!(weights.iter().sum::<u64>(), 300);
            assert!(weights[1] >= 200 && weights[2] == 0, "{weights:?}");
        }
    }

    #[test]
    fn many_marks_are_thinned_out() {
        let count = 3 * MOST_MARKS as u32;
        let weighing = weighed(&rows(count), 1, false);
        assert!(weighing.marks.len() <= MOST_MARKS && weighing.marks.is_sorted());
        let exact: u64 = (0..count).map(|i| 20 + 80 + u64::from(i) % 40).sum();
        let half = (count / 2).to_be_bytes().to_vec();
        let weights = weighing.of_parts(&[Vec::new(), half], &0u32.to_be_bytes(), None);
        assert_eq!(weights.iter().sum::<u64>(), exact);
        assert!(weights[0].abs_diff(weights[1]) < 1000, "{weights:?}");
    }

    #[test]
    fn only_ranges_inside_are_covered() {
        let within = |from: &[u8], to: Option<&[u8]>| {
            Weighing::new(b"c".into(), to.map(Into::into), 1, false).covers(from, Some(b"m"))
        };
        assert!(within(b"c", Some(b"m")) && within(b"d", Some(b"x")) && within(b"d", None));
        assert!(!within(b"b", None) && !within(b"d", Some(b"l")));
        assert!(!Weighing::new(b"c".into(), Some(b"x".into()), 1, false).covers(b"d", None));
    }
}
