//! The number and approximate position of a run's point deletes. From these an index can estimate without I/O how much
//! data the deletes hide.
//!
//! ```text
//!   keys     a ───── d d d d d d ─── p p p p ─ d d ─────
//!   stretches        └── 6 ────┘               └2┘
//! ```
//!
//! A tombstone has few bytes but hides a whole value. So the bytes of tombstones do not show whether a compaction would
//! free much space. The number of deletes, compared with the number of older entries, does show this. If deletes hide a
//! quarter of some data ([`WASTE`]), rewriting this data costs a bounded number of bytes for each byte that is freed.
//!
//! The positions are recorded while the run is written and are not stored. After a reopening, the deletes of a run
//! count as evenly spread over the run.

use std::sync::Arc;

use crate::base::{KeyRange, PAGE};
use crate::run::RunSlice;

/// Compact when at least 1/WASTE of the entries are garbage.
pub const WASTE: u64 = 4;
/// When a run has twice this number of stretches, neighbouring stretches are joined in pairs, so that this number is
/// left.
const STRETCHES: usize = 16;
/// Initial number of deletes in a stretch.
const FIRST_STRETCH: u64 = 16;

const _: () = assert!(WASTE > 1 && FIRST_STRETCH > 0 && STRETCHES > 0);

/// Deletes in a range of keys, both ends included.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stretch {
    /// The first deleted key.
    pub from: Arc<[u8]>,
    /// The last deleted key.
    pub to: Arc<[u8]>,
    count: u64,
}

impl Stretch {
    /// The number of deletes in the stretch.
    pub fn count(&self) -> u64 {
        self.count
    }
}

impl Stretch {
    /// Whether all, some or none of the stretch is in `range`: `Some(true)`, `Some(false)`, `None`.
    pub fn is_inside(&self, range: &KeyRange) -> Option<bool> {
        let (begins, ends) = (range.contains(&self.from), range.contains(&self.to));
        let spans = *self.from < *range.from && *self.to > *range.from;
        if begins && ends { Some(true) } else { (begins || ends || spans).then_some(false) }
    }

    /// The part of the stretch in `range`, if any. If only a part of the stretch is there, it counts `of` times the deletes
    /// divided by `all`, but at least one.
    fn part_in(&self, range: &KeyRange, (of, all): (u64, u64)) -> Option<Stretch> {
        if self.is_inside(range)? {
            return Some(self.clone());
        }
        let from = if *self.from < *range.from { range.from.as_slice().into() } else { self.from.clone() };
        let to = if range.is_above(&self.to) { self.to.clone() } else { range.to.as_slice().into() };
        // Round up, so that few deletes do not get lost when a slice is cut again and again.
        let count = (u128::from(self.count) * u128::from(of.min(all))).div_ceil(u128::from(all.max(1))) as u64;
        Some(Stretch { from, to, count: count.clamp(1, self.count) })
    }
}

/// The point deletes of a slice, in key order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Deletes(Arc<[Stretch]>);

impl Deletes {
    /// Estimates the deletes of a slice of `bytes` bytes. The estimate assumes that the run's deletes are evenly spread
    /// over the run.
    pub fn guess(slice: &RunSlice, bytes: u64) -> Deletes {
        let (meta, range) = (slice.run().meta(), slice.range());
        let count = in_part(meta.deletes, slice, bytes);
        if count == 0 {
            return Deletes::default();
        }
        let to = if range.is_above(&meta.last_key) { &meta.last_key } else { &range.to };
        Deletes([Stretch { from: slice.low().into(), to: to.as_slice().into(), count }].into())
    }

    /// The stretches in key order.
    pub fn stretches(&self) -> impl Iterator<Item = &Stretch> {
        self.0.iter()
    }

    /// The deletes in `range`, which holds `share.0` of `share.1` bytes of the slice. A stretch that is only partly in the
    /// range counts with this share.
    pub fn clipped(&self, range: &KeyRange, share: (u64, u64)) -> Deletes {
        Deletes(self.stretches().filter_map(|stretch| stretch.part_in(range, share)).collect())
    }

    /// The total number of deletes.
    pub fn count(&self) -> u64 {
        self.0.iter().map(|stretch| stretch.count).sum()
    }

    /// The deletes that belong to the parts with the indexes `part`. `place` returns the index of the part that
    /// contains a key. The deletes of a stretch over several parts are divided evenly among these parts.
    pub fn share(&self, part: std::ops::Range<usize>, place: impl Fn(&[u8]) -> usize) -> Deletes {
        let shared = self.0.iter().filter_map(|stretch| {
            let (first, end) = (place(&stretch.from), place(&stretch.to) + 1);
            debug_assert!(first < end, "a stretch goes from left to right");
            let common = end.min(part.end).saturating_sub(first.max(part.start)) as u64;
            let count = stretch.count * common / (end - first) as u64;
            debug_assert!(count <= stretch.count, "a part has no more deletes than the whole");
            (count > 0).then(|| Stretch { count, ..stretch.clone() })
        });
        Deletes(shared.collect())
    }
}

/// The share of a slice of `bytes` bytes in a number `count` that applies to the whole run.
pub fn in_part(count: u64, slice: &RunSlice, bytes: u64) -> u64 {
    let whole = u128::from(slice.run().meta().leaf_pages.max(1)) * PAGE as u128;
    // Limit the result to the number of bytes, because no entry is smaller than a byte. Then sums do not overflow, even
    // if the description of the run is wrong.
    ((u128::from(count) * u128::from(bytes) / whole) as u64).min(bytes)
}

/// Records the positions of deletes while a run is written.
#[derive(Default)]
pub struct Tally {
    stretches: Vec<Stretch>,
    /// The first key of the stretch to which deletes are still added. The next two fields are its last key and its
    /// number of deletes.
    from: Vec<u8>,
    to: Vec<u8>,
    count: u64,
    /// The base-2 logarithm of the factor by which the stretch size has grown.
    doubled: u32,
}

impl Tally {
    /// Adds a deleted key. The keys must arrive in order.
    pub fn push(&mut self, key: &[u8]) {
        if self.count == 0 {
            self.from.clear();
            self.from.extend_from_slice(key);
        }
        debug_assert!(self.count == 0 || self.to.as_slice() <= key, "keys come in order");
        self.to.clear();
        self.to.extend_from_slice(key);
        self.count += 1;
        if self.count >= FIRST_STRETCH << self.doubled {
            self.close();
        }
    }

    fn close(&mut self) {
        assert!(self.count > 0, "a stretch has deletes");
        let (from, to) = (self.from.as_slice().into(), self.to.as_slice().into());
        self.stretches.push(Stretch { from, to, count: std::mem::take(&mut self.count) });
        if self.stretches.len() == 2 * STRETCHES {
            let join = |pair: &[Stretch]| Stretch {
                from: pair[0].from.clone(),
                to: pair[1].to.clone(),
                count: pair[0].count + pair[1].count,
            };
            self.stretches = self.stretches.chunks_exact(2).map(join).collect();
            assert_eq!(self.stretches.len(), STRETCHES, "neighbours are joined in pairs");
            self.doubled += 1;
        }
    }

    /// The deletes of the finished run.
    pub fn finish(mut self) -> Deletes {
        if self.count > 0 {
            self.close();
        }
        Deletes(self.stretches.into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_delete_is_not_lost_when_its_slice_is_cut_again_and_again() {
        let one = Stretch { from: (*b"b").into(), to: (*b"y").into(), count: 1 };
        let mut deletes = Deletes([one].into());
        for from in b'c'..b'x' {
            // Each cut leaves half of the bytes.
            deletes = deletes.clipped(&KeyRange::new([from], b"z"), (1, 2));
            assert_eq!(deletes.count(), 1, "behind {from}");
        }
        assert_eq!(deletes.clipped(&KeyRange::new(b"z", b""), (1, 2)).count(), 0, "no delete is there");
        let many = Deletes([Stretch { from: (*b"b").into(), to: (*b"y").into(), count: 100 }].into());
        assert_eq!(many.clipped(&KeyRange::new(b"c", b"d"), (3, 7)).count(), 43);
        assert_eq!(many.clipped(&KeyRange::new(b"c", b"d"), (9, 7)).count(), 100, "at most all of them");
    }
}
