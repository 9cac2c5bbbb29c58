//! [`RangeSet`]: a set of numbers stored as maximal ranges, for free extents and live large values.
//!
//! Steps: [`RangeSet::insert`] joins a range with its neighbours; [`RangeSet::remove`] splits the range that contains
//! the removed range. Invariant: no range is empty, and the ranges are disjoint and not adjacent.

use std::collections::BTreeMap;
use std::ops::Range;

use crate::base::{Extent, PageNo};

/// A set of `u64`, stored as disjoint, non-adjacent ranges: start → length.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RangeSet {
    ranges: BTreeMap<u64, u64>,
}

impl RangeSet {
    /// Adds `start..start + len` and joins it with its neighbours.
    ///
    /// # Panics
    /// If one of the numbers is already in the set.
    pub fn insert(&mut self, mut start: u64, mut len: u64) {
        if len == 0 {
            return;
        }
        if let Some((&before, &size)) = self.ranges.range(..start).next_back() {
            assert!(before + size <= start, "{start}+{len} is in the set already");
            if before + size == start {
                self.ranges.remove(&before);
                (start, len) = (before, len + size);
            }
        }
        if let Some((&after, &size)) = self.ranges.range(start..).next() {
            assert!(start + len <= after, "{start}+{len} is in the set already");
            if start + len == after {
                self.ranges.remove(&after);
                len += size;
            }
        }
        self.ranges.insert(start, len);
        debug_assert!(self.contains(start, len) && !self.overlaps(start + len, 1), "ranges are maximal");
    }

    /// Removes `start..start + len`.
    ///
    /// # Panics
    /// If one of the numbers is not in the set.
    pub fn remove(&mut self, start: u64, len: u64) {
        if len == 0 {
            return;
        }
        let found = self.ranges.range(..=start).next_back().map(|(&at, &size)| (at, size));
        let (at, size) =
            found.filter(|(at, size)| start + len <= at + size).expect("the removed numbers are in the set");
        self.ranges.remove(&at);
        if at < start {
            self.ranges.insert(at, start - at);
        }
        if start + len < at + size {
            self.ranges.insert(start + len, at + size - start - len);
        }
        debug_assert!(!self.overlaps(start, len), "the removed numbers are not in the set");
    }

    /// Whether all numbers of `start..start + len` are in the set.
    pub fn contains(&self, start: u64, len: u64) -> bool {
        self.ranges.range(..=start).next_back().is_some_and(|(&at, &size)| start + len <= at + size)
    }

    /// Whether any number of `start..start + len` is in the set.
    pub fn overlaps(&self, start: u64, len: u64) -> bool {
        self.ranges.range(..start + len).next_back().is_some_and(|(&at, &size)| at + size > start)
    }

    /// The start of the first `len` consecutive numbers that are in the set and not in `avoid`.
    pub fn first_fit_outside(&self, len: u64, avoid: Range<u64>) -> Option<u64> {
        self.ranges.iter().find_map(|(&start, &size)| {
            let end = start + size;
            let before = start..end.min(avoid.start);
            let after = start.max(avoid.end)..end;
            // If `avoid` is `0..0`, `after` is the whole range.
            [before, after].into_iter().find(|part| part.start + len <= part.end).map(|part| part.start)
        })
    }

    /// The last range: (start, length).
    pub fn last(&self) -> Option<(u64, u64)> {
        self.ranges.last_key_value().map(|(&start, &len)| (start, len))
    }

    /// All ranges in order: (start, length).
    pub fn iter(&self) -> impl Iterator<Item = (u64, u64)> + '_ {
        self.ranges.iter().map(|(&start, &len)| (start, len))
    }

    /// The number of ranges.
    pub fn len(&self) -> usize {
        self.ranges.len()
    }

    /// Whether the set is empty.
    pub fn is_empty(&self) -> bool {
        self.ranges.is_empty()
    }
}

/// A range of pages as extents of at most `u32::MAX` pages.
pub fn extents((start, len): (u64, u64)) -> impl Iterator<Item = Extent> {
    let step = u64::from(u32::MAX);
    (0..len.div_ceil(step)).map(move |i| {
        let pages = u32::try_from(len - i * step).unwrap_or(u32::MAX);
        Extent { start: PageNo(start + i * step), pages }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_join_and_split() {
        let mut set = RangeSet::default();
        set.insert(10, 5);
        set.insert(20, 5);
        set.insert(15, 5);
        assert_eq!(set.iter().collect::<Vec<_>>(), [(10, 15)]);
        set.remove(12, 3);
        assert_eq!(set.iter().collect::<Vec<_>>(), [(10, 2), (15, 10)]);
        assert!(set.contains(15, 10) && !set.contains(11, 2) && !set.contains(0, 1));
        assert_eq!((set.first_fit_outside(3, 0..0), set.first_fit_outside(11, 0..0)), (Some(15), None));
        assert_eq!((set.first_fit_outside(3, 16..18), set.first_fit_outside(3, 19..24)), (Some(18), Some(15)));
        assert_eq!((set.first_fit_outside(6, 18..19), set.last()), (Some(19), Some((15, 10))));
    }

    #[test]
    #[should_panic(expected = "in the set already")]
    fn inserting_an_overlapping_range_panics() {
        let mut set = RangeSet::default();
        set.insert(10, 5);
        set.insert(14, 2);
    }
}
