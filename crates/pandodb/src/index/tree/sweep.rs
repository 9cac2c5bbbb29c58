//! [`Sweep`]: the ranges that a job cleans: those of range tombstones that every read point sees, and those that a caller
//! wants rewritten.
//!
//! ```text
//!   tombstones that all see ─┐
//!   requested ranges ────────┴─▶ ranges ──▶ each unit in them: kept, dropped unread, or read ──▶ swept ─▶ tombstones that
//!                                                                                                          are left
//! ```
//!
//! Invariant: a tombstone is removed for a range only after every message of the range was seen by the sweep.

use std::collections::VecDeque;

use super::feed::is_below;
use crate::base::range::subtract;
use crate::base::{Fragments, KeyRange, RangeTombstone, seeded};
use crate::index::pages::{Totals, Unit};
use crate::resolve::Stripes;

/// A unit that a sweep drops unread counts as this number of swept bytes, so that one job drops a bounded number.
const DROPPED_UNIT: u64 = 128;

/// The ranges that a job cleans.
pub(super) struct Sweep {
    /// The tombstones that every read point sees: disjoint and in order, each with the newest seqno.
    seen: Vec<RangeTombstone>,
    /// The ranges to clean, disjoint and in order.
    ranges: VecDeque<KeyRange>,
    /// Whether units are rewritten if a rewrite would drop messages, not only for tombstones.
    is_requested: bool,
    swept: Vec<KeyRange>,
    /// Bytes of entries that the sweep has read.
    bytes: u64,
    /// After this number of bytes, no further units are cleaned.
    most: u64,
}

impl Sweep {
    /// A sweep of the ranges of `tombstones` that all read points see, and of the ranges `requested`; with `None`, of no
    /// range. It ends after about `most` bytes.
    pub(super) fn new(
        tombstones: &[RangeTombstone],
        keep: &Stripes,
        requested: Option<Vec<KeyRange>>,
        most: u64,
    ) -> Sweep {
        let seen = seen_by_all(tombstones, keep).newest();
        let is_requested = requested.as_ref().is_some_and(|requested| !requested.is_empty());
        let ranges = match requested {
            Some(requested) => {
                let ranges = seen.iter().map(|tombstone| tombstone.range.clone());
                union(ranges.chain(requested).collect()).into()
            }
            None => VecDeque::new(),
        };
        Sweep { seen, ranges, is_requested, swept: Vec::new(), bytes: 0, most }
    }

    /// Counts bytes that the sweep has read.
    pub(super) fn add(&mut self, bytes: u64) {
        self.bytes += bytes;
    }

    /// Whether the sweep has read as much as it may.
    pub(super) fn is_over(&self) -> bool {
        self.bytes >= self.most
    }

    /// The smallest key to clean below `to`.
    pub(super) fn next(&self, to: Option<&[u8]>) -> Option<&[u8]> {
        self.ranges.front().map(|range| range.from.as_slice()).filter(|key| is_below(key, to))
    }

    /// Whether some key of a range is to be cleaned.
    pub(super) fn overlaps(&self, range: &KeyRange) -> bool {
        let first = self.ranges.partition_point(|sweep| !sweep.to.is_empty() && sweep.to <= range.from);
        self.ranges.get(first).is_some_and(|sweep| sweep.overlaps(range))
    }

    /// Counts a unit that is dropped unread.
    pub(super) fn add_dropped(&mut self) {
        self.bytes += DROPPED_UNIT;
    }

    /// The ranges that were cleaned completely.
    pub(super) fn into_swept(self) -> Vec<KeyRange> {
        self.swept
    }

    /// Whether rewriting a unit would remove anything.
    pub(super) fn is_worth_reading(&self, unit: &Unit) -> bool {
        let mut totals = Totals::default();
        unit.leaves.iter().for_each(|leaf| totals += leaf.page.totals);
        let range = range_of(unit);
        // The newest message may be newer than the messages that the tombstone hides.
        let is_covered = self.tombstone_in(&range).is_some();
        is_covered || self.is_requested && totals.deletes + totals.older > 0
    }

    /// The first tombstone that every read point sees and that overlaps a range.
    fn tombstone_in(&self, range: &KeyRange) -> Option<&RangeTombstone> {
        let ends_before = |tombstone: &RangeTombstone| {
            !tombstone.range.to.is_empty() && tombstone.range.to.as_slice() <= range.from.as_slice()
        };
        let at = self.seen.partition_point(ends_before);
        self.seen.get(at).filter(|tombstone| tombstone.range.overlaps(range))
    }

    /// Whether all messages of a unit are hidden from all readers, and none of them refers to a large value.
    pub(super) fn is_dead(&self, unit: &Unit) -> bool {
        let range = range_of(unit);
        let newest = unit.leaves.iter().map(|leaf| leaf.page.totals.newest).max().unwrap_or_default();
        let no_values = unit.leaves.iter().all(|leaf| leaf.page.totals.large_values == 0);
        let is_hidden = self
            .tombstone_in(&range)
            .is_some_and(|tombstone| tombstone.seqno > newest && tombstone.range.covers(&range));
        no_values && is_hidden
    }

    /// Records that the ranges to sweep are done below `to`. Once the sweep is over, no further range counts as done, because
    /// the job passes units unseen.
    pub(super) fn sweep_to(&mut self, to: Option<&[u8]>) {
        while let Some(range) = self.ranges.front_mut() {
            match to {
                Some(to) if range.from.as_slice() >= to => break,
                Some(to) if range.to.is_empty() || range.to.as_slice() > to => {
                    let done = KeyRange::new(std::mem::replace(&mut range.from, to.to_vec()), to);
                    self.swept.push(done);
                    break;
                }
                _ => self.swept.extend(self.ranges.pop_front()),
            }
        }
        if self.is_over() {
            self.ranges.clear();
        }
    }
}

/// The tombstones whose effect is the same for all read points.
pub(super) fn seen_by_all(tombstones: &[RangeTombstone], keep: &Stripes) -> Fragments {
    let is_seen = |tombstone: &&RangeTombstone| keep.stripe_of(tombstone.seqno) == 0;
    Fragments::build_from(tombstones.iter().filter(is_seen))
}

/// The tombstones that are still needed after some ranges were swept.
pub(super) fn remaining(tombstones: &[RangeTombstone], swept: &[KeyRange], keep: &Stripes) -> Vec<RangeTombstone> {
    let swept = seeded!(TreeTombstonesForgotten: vec![KeyRange::all()], union(swept.to_vec()));
    let mut rest = Vec::new();
    for tombstone in tombstones {
        if keep.stripe_of(tombstone.seqno) != 0 {
            rest.push(tombstone.clone());
            continue;
        }
        let parts = subtract(&tombstone.range, &swept);
        rest.extend(parts.into_iter().map(|range| RangeTombstone { range, seqno: tombstone.seqno }));
    }
    rest
}

/// The keys of a unit.
fn range_of(unit: &Unit) -> KeyRange {
    KeyRange::new(unit.from.as_slice(), unit.to.as_deref().unwrap_or_default())
}

/// The union of ranges, as disjoint ranges in order that do not touch.
pub(super) fn union(mut ranges: Vec<KeyRange>) -> Vec<KeyRange> {
    ranges.retain(|range| !range.is_empty());
    ranges.sort_by(|a, b| a.from.cmp(&b.from));
    let mut out: Vec<KeyRange> = Vec::new();
    for range in ranges {
        match out.last_mut() {
            Some(last) if last.to.is_empty() => break,
            Some(last) if range.from <= last.to => {
                if range.to.is_empty() || range.to > last.to {
                    last.to = range.to;
                }
            }
            _ => out.push(range),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ranges(pairs: &[(&str, &str)]) -> Vec<KeyRange> {
        pairs.iter().map(|(from, to)| KeyRange::new(from.as_bytes(), to.as_bytes())).collect()
    }

    #[test]
    fn ranges_are_joined_and_subtracted() {
        assert_eq!(union(ranges(&[("d", "f"), ("a", "b"), ("b", "c"), ("e", "g")])), ranges(&[("a", "c"), ("d", "g")]));
        assert_eq!(union(ranges(&[("d", ""), ("a", "e"), ("x", "z")])), ranges(&[("a", "")]));
        let whole = KeyRange::new("b", "y");
        assert_eq!(subtract(&whole, &ranges(&[("a", "c"), ("d", "f")])), ranges(&[("c", "d"), ("f", "y")]));
        assert_eq!(subtract(&whole, &ranges(&[("c", "")])), ranges(&[("b", "c")]));
        assert_eq!(subtract(&whole, &ranges(&[("a", "z")])), ranges(&[]));
        assert_eq!(subtract(&KeyRange::all(), &ranges(&[("", "c")])), ranges(&[("c", "")]));
    }
}
