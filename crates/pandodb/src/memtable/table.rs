//! An append-only table. Values are added once, found by their number without a lock, and never moved.
//!
//! ```text
//!   segments  | 0 | 1 | 2 | 3 | …        segment k holds FIRST × 2^k cells, created on first use
//!               │   │   └─▶ | · · · · · · · · · · · · · · · · |
//!               │   └─────▶ | · · · · · · · · |
//!               └─────────▶ | · · · · |
//! ```
//!
//! Steps of adding a value: a thread takes the next number, fills the cell with this number, and then publishes the
//! number.
//!
//! Invariant: when a thread knows the number of a value, the segment that holds this number exists, and the cell is
//! filled. This requires that the number is published with `Release` and read with `Acquire`. The two users of this
//! table satisfy the requirement. The tree publishes the number of a node in the node's parent or in the anchor. The
//! arena publishes the number of a chunk in references to records. All of these are stored with `Release` and loaded
//! with `Acquire`. `next` only assigns numbers, and no thread uses it to find the values of other threads, so `next`
//! needs no memory ordering (unlike the pool's count of frames, `pool/hand.rs`). No value is freed before the table is
//! dropped, so readers of the memtable need no reference counts or epochs.

use crate::base::sync::{AtomicUsize, EXPLORED, Once, Ordering};

/// The number of cells of the first segment, a power of two. The number is small, because in a store with many
/// keyspaces most keyspaces hold little data.
const FIRST: usize = if EXPLORED { 2 } else { 4 };

const _: () = assert!(FIRST.is_power_of_two(), "the segment of a number follows from its logarithm");

type Segment<T> = Box<[Once<T>]>;

/// An append-only table; see the module documentation. `SEGMENTS` bounds the number of values.
#[derive(Debug)]
pub(super) struct Table<T, const SEGMENTS: usize> {
    segments: [Once<Segment<T>>; SEGMENTS],
    next: AtomicUsize,
}

/// The segment that holds a number, and the index of the number's cell in this segment.
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

    /// The number of assigned numbers.
    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.next.load(Ordering::Relaxed)
    }

    /// Adds `value` and returns its number. No other thread knows this number yet.
    pub(super) fn push(&self, value: T) -> u32 {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        assert!(number < FIRST * ((1 << SEGMENTS) - 1), "a memtable is sealed long before");
        let (segment, at) = place(number as u32);
        let cells = self.segments[segment].get_or_init(|| (0..FIRST << segment).map(|_| Once::new()).collect());
        let set = cells[at].set(value);
        assert!(set.is_ok(), "a number was given out twice");
        number as u32
    }

    /// The value that has the number `number`.
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
