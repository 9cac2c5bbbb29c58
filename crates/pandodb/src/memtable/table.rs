//! An append-only table: values are added once, found by their number without a lock, and never moved.
//!
//! ```text
//!   segments  | 0 | 1 | 2 | 3 | …        segment k holds FIRST × 2^k cells, created on first use
//!               │   │   └─▶ | · · · · · · · · · · · · · · · · |
//!               │   └─────▶ | · · · · · · · · |
//!               └─────────▶ | · · · · |
//! ```
//!
//! Steps: a thread that pushes takes the next number, fills its cell, and publishes the number afterwards.
//!
//! Invariant: a thread that knows a number finds the segment created and the cell filled. This requires that the number
//! is published with `Release` and read with `Acquire`, which both callers do: numbers of nodes are in their parents'
//! children and in the anchor, numbers of chunks in references to records, and all of these are stored with `Release`
//! and loaded with `Acquire`. No thread learns a number from `next`, so `next` needs no ordering (unlike the pool's
//! count of frames, `pool/hand.rs`). Nothing is freed before the table, so readers of the memtable need no reference
//! counts or epochs.

use crate::base::sync::{AtomicUsize, EXPLORED, Once, Ordering};

/// Cells of the first segment, a power of two. Small, since with many keyspaces most hold little.
const FIRST: usize = if EXPLORED { 2 } else { 4 };

const _: () = assert!(FIRST.is_power_of_two(), "the segment of a number follows from its logarithm");

type Segment<T> = Box<[Once<T>]>;

/// See the module documentation. `SEGMENTS` bounds the number of values.
#[derive(Debug)]
pub(super) struct Table<T, const SEGMENTS: usize> {
    segments: [Once<Segment<T>>; SEGMENTS],
    next: AtomicUsize,
}

/// The segment of a number, and the index in it.
#[inline]
fn place(number: u32) -> (usize, usize) {
    let shifted = number as usize + FIRST;
    let segment = (shifted.ilog2() - FIRST.ilog2()) as usize;
    let at = shifted - (FIRST << segment);
    debug_assert!(at < FIRST << segment, "a number lies in its segment");
    (segment, at)
}

impl<T, const SEGMENTS: usize> Table<T, SEGMENTS> {
    /// An empty table.
    pub(super) fn new() -> Self {
        Table { segments: std::array::from_fn(|_| Once::new()), next: AtomicUsize::new(0) }
    }

    /// How many numbers were assigned.
    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.next.load(Ordering::Relaxed)
    }

    /// Adds `value`; returns its number, which no other thread knows yet.
    pub(super) fn push(&self, value: T) -> u32 {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        assert!(number < FIRST * ((1 << SEGMENTS) - 1), "a memtable is sealed long before");
        let (segment, at) = place(number as u32);
        let cells = self.segments[segment].get_or_init(|| (0..FIRST << segment).map(|_| Once::new()).collect());
        let set = cells[at].set(value);
        assert!(set.is_ok(), "a number was given out twice");
        number as u32
    }

    /// The value with the number `number`.
    ///
    /// # Panics
    /// If there is no such value.
    #[inline]
    pub(super) fn get(&self, number: u32) -> &T {
        let (segment, at) = place(number);
        let cell = self.segments[segment].get().and_then(|cells| cells.get(at)?.get());
        cell.expect("a number that was published")
    }

    /// Removes and returns all values.
    pub(super) fn drain(&mut self) -> impl Iterator<Item = T> {
        self.next = AtomicUsize::new(0);
        let cells = self.segments.iter_mut().filter_map(Once::take).flat_map(|segment| segment.into_vec());
        cells.filter_map(|mut cell| cell.take())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_refers_to_the_pushed_value() {
        let mut table = Table::<u32, 20>::new();
        for number in 0..1000u32 {
            assert_eq!(table.push(number * 3), number);
            assert_eq!(*table.get(number / 2), number / 2 * 3);
        }
        assert_eq!(table.len(), 1000);
        assert!(table.drain().eq((0..1000).map(|number| number * 3)));
        assert_eq!(table.len(), 0);
    }

    #[test]
    fn segments_follow_each_other_without_a_gap() {
        let mut expected = (0, 0);
        for number in 0..10_000 {
            assert_eq!(place(number), expected);
            expected.1 += 1;
            if expected.1 == FIRST << expected.0 {
                expected = (expected.0 + 1, 0);
            }
        }
    }
}
