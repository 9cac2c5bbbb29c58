//! Sorted sequences of disjoint slices: a level of an array, the data of a node. Both are written, clipped and replaced
//! piece by piece.
//!
//! ```text
//!   sequence      [ run 4   ][ run 5 ][ run 6      ]
//!   remove(░)     [ run 4 ]           [ run 6      ]     slices are clipped; their runs stay as they are
//!   insert        [ run 4 ][  run 9  ][ run 6      ]
//! ```
//!
//! Invariant: the slices are disjoint and in key order, so at most one of them may hold a given key.

use std::collections::HashSet;
use std::ops::Deref;
use std::sync::Arc;

use super::deletes::Deletes;
use crate::base::{KeyRange, OwnerId, PAGE, Result, SeededBug};
use crate::run::RunSlice;

/// If a run has more range tombstones than this limit, the tombstones count as covering nothing, because they are
/// probably small.
pub const MOST_TOMBSTONES: u64 = 256;

/// If the rest of a task is at most 6/4 of a piece, it is processed as one piece.
const LAST_PIECE_QUARTERS: u64 = 6;

const _: () = assert!(LAST_PIECE_QUARTERS >= 4, "a rest of one piece is not split");

/// A slice of a run in a sequence.
#[derive(Clone)]
pub struct Part {
    /// The run and the key range of the slice.
    pub slice: Arc<RunSlice>,
    /// Estimated bytes of the slice.
    pub bytes: u64,
    /// The point deletes in the slice.
    pub deletes: Deletes,
    /// Estimated bytes of older data that the slice's range tombstones covered when the part was added.
    pub covers: u64,
}

impl Part {
    /// Makes the part for a slice.
    pub fn new(slice: Arc<RunSlice>) -> Part {
        let bytes = slice.bytes();
        let deletes = Deletes::guess(&slice, bytes);
        Part { slice, bytes, deletes, covers: 0 }
    }

    /// This part, with `covers` computed for the older sequences. Unreadable tombstones cover nothing.
    pub fn over<'s>(self, older: impl Iterator<Item = &'s Sequence> + Clone) -> Part {
        let count = self.slice.run().meta().range_tombstones;
        if count == 0 || count > MOST_TOMBSTONES {
            return self;
        }
        let tombstones = self.slice.tombstones(self.slice.range()).unwrap_or_default();
        let of_part = |part: &Part, range: &KeyRange| match range.covers(part.slice.range()) {
            true => part.bytes.max(1),
            false => part.slice.estimate(range).map_or(0, |(bytes, _)| bytes),
        };
        let of_range = |range: &KeyRange| {
            let parts = older.clone().flat_map(|sequence| sequence.within(range));
            parts.map(|part| of_part(part, range)).sum::<u64>()
        };
        let covers = tombstones.iter().map(|tombstone| of_range(&tombstone.range)).sum();
        Part { covers, ..self }
    }

    /// This part clipped to `range`; `None` if nothing is left.
    ///
    /// # Errors
    /// The errors of [`RunSlice::clip`].
    pub fn clip(&self, range: &KeyRange) -> Result<Option<Part>> {
        if range.is_empty() {
            return Ok(None);
        }
        let clipped = self.slice.clip(range)?;
        Ok(clipped.map(|slice| {
            let part = Part::new(slice);
            let deletes = self.deletes.clipped(range, (part.bytes, self.bytes.max(1)));
            Part { deletes, ..part }
        }))
    }

    /// Estimated bytes of the part in a range. The result is exact if the range covers the part; otherwise it is an
    /// average share.
    pub fn bytes_in(&self, range: &KeyRange) -> u64 {
        if range.covers(self.slice.range()) {
            return self.bytes;
        }
        self.slice.estimate(range).map_or(self.bytes, |(bytes, _)| bytes)
    }
}

/// Disjoint slices in key order. A clone costs O(1).
#[derive(Clone, Default)]
pub struct Sequence(Arc<Vec<Part>>);

impl Deref for Sequence {
    type Target = [Part];

    fn deref(&self) -> &[Part] {
        &self.0
    }
}

impl From<Vec<Part>> for Sequence {
    /// The parts must be disjoint and in key order; see [`Sequence::is_sorted`].
    fn from(parts: Vec<Part>) -> Sequence {
        Sequence(Arc::new(parts))
    }
}

impl Sequence {
    /// Estimated bytes of all parts.
    pub fn bytes(&self) -> u64 {
        self.iter().map(|part| part.bytes).sum()
    }

    /// Whether the invariant holds.
    pub fn is_sorted(&self) -> bool {
        let apart = |pair: &[Part]| {
            let (left, right) = (pair[0].slice.range(), pair[1].slice.range());
            !left.to.is_empty() && left.to <= right.from
        };
        self.windows(2).all(apart)
    }

    /// The part that may hold `key`. Costs O(log n).
    #[inline]
    pub fn part_for(&self, key: &[u8]) -> Option<&Part> {
        let after = self.partition_point(|part| part.slice.range().from.as_slice() <= key);
        let missed = usize::from(SeededBug::LevelPartMissed.is_on() && after > 1);
        after.checked_sub(1 + missed).map(|at| &self[at]).filter(|part| part.slice.contains(key))
    }

    /// The parts that overlap `range`. Costs O(log n).
    pub fn within(&self, range: &KeyRange) -> &[Part] {
        let ends_before = |part: &Part| !part.slice.range().to.is_empty() && part.slice.range().to <= range.from;
        let first = self.partition_point(ends_before);
        let end = self.partition_point(|part| range.is_above(&part.slice.range().from));
        &self[first.min(end)..end]
    }

    /// Removes everything in `range`.
    ///
    /// # Errors
    /// The errors of [`RunSlice::clip`]. After an error the sequence is unchanged.
    pub fn remove(&mut self, range: &KeyRange) -> Result<()> {
        if self.within(range).is_empty() {
            return Ok(());
        }
        let mut left = Vec::with_capacity(self.len() + 1);
        for part in self.iter() {
            let own = part.slice.range();
            if !own.overlaps(range) {
                left.push(part.clone());
                continue;
            }
            if own.from < range.from {
                left.extend(part.clip(&KeyRange::new(own.from.clone(), range.from.clone()))?);
            }
            if !range.to.is_empty() {
                left.extend(part.clip(&KeyRange::new(range.to.clone(), []).intersect(own))?);
            }
        }
        self.0 = Arc::new(left);
        debug_assert!(self.within(range).is_empty(), "nothing of the range is left");
        Ok(())
    }

    /// Inserts a part into a gap, such as [`Sequence::remove`] makes.
    pub fn insert(&mut self, part: Part) {
        debug_assert!(self.within(part.slice.range()).is_empty(), "the part fits into the gap");
        let at = self.partition_point(|other| other.slice.range().from < part.slice.range().from);
        Arc::make_mut(&mut self.0).insert(at, part);
    }

    /// The part of the sequence in `range`.
    ///
    /// # Errors
    /// The errors of [`RunSlice::clip`].
    pub fn clipped(&self, range: &KeyRange) -> Result<Sequence> {
        let parts = self.within(range).iter().map(|part| match range.covers(part.slice.range()) {
            true => Ok(Some(part.clone())),
            false => part.clip(range),
        });
        Ok(parts.filter_map(Result::transpose).collect::<Result<Vec<Part>>>()?.into())
    }

    /// Splits parts at the ends of `range`, so that the parts inside `range` can be processed separately.
    ///
    /// # Errors
    /// The errors of [`RunSlice::clip`].
    pub fn cut(&mut self, range: &KeyRange) -> Result<()> {
        let middle = self.clipped(range)?;
        self.remove(range)?;
        middle.iter().for_each(|part| self.insert(part.clone()));
        Ok(())
    }
}

/// Slices of runs that could not be read. A slice that was clipped to another range is tried again, because the damage
/// may be outside that range.
#[derive(Default)]
pub struct Stuck(HashSet<(OwnerId, KeyRange)>);

impl Stuck {
    /// Excludes a slice.
    pub fn add(&mut self, slice: &RunSlice) {
        self.0.insert((slice.run().meta().id, slice.range().clone()));
    }

    /// Whether no damaged slice is recorded.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Whether the slice is excluded.
    pub fn holds(&self, slice: &RunSlice) -> bool {
        !self.0.is_empty() && self.0.contains(&(slice.run().meta().id, slice.range().clone()))
    }
}

/// The beginning of `range` that contains about `target` bytes of these sequences. If the range holds at most half as
/// much again, it is returned whole, so that no small rest is left.
///
/// # Errors
/// The errors of [`RunSlice::split_keys`], except damage.
pub fn cut_to(sequences: &[Sequence], range: &KeyRange, target: u64) -> Result<KeyRange> {
    cut_above(sequences, range, target, target.saturating_mul(LAST_PIECE_QUARTERS) / 4)
}

/// Like [`cut_to`], but returns the whole range only if it holds at most `most` bytes.
///
/// # Errors
/// The errors of [`cut_to`].
pub fn cut_above(sequences: &[Sequence], range: &KeyRange, target: u64, most: u64) -> Result<KeyRange> {
    let of_one = |parts: &Sequence| parts.iter().map(|part| part.bytes_in(range)).sum::<u64>();
    let bytes: Vec<u64> = sequences.iter().map(of_one).collect();
    let total: u64 = bytes.iter().sum();
    if total <= most {
        return Ok(range.clone());
    }
    assert!(total > 0, "an empty piece is not cut");
    let largest = (0..sequences.len()).max_by_key(|&at| bytes[at]).expect("bytes are in a sequence");
    // Cut at the key up to which the piece has its share of the largest sequence.
    let share = (u128::from(target) * u128::from(bytes[largest]) / u128::from(total)) as u64;
    let mut before = 0;
    for part in sequences[largest].iter() {
        let own = part.bytes_in(range).max(1);
        if before + own < share {
            before += own;
            continue;
        }
        debug_assert!(before <= share, "the cut lies in this part");
        let pieces = (part.bytes / (share - before).max(PAGE as u64)).max(1) as usize;
        let keys = match part.slice.split_keys(pieces) {
            Err(e) if e.is_damage() => Vec::new(),
            keys => keys?,
        };
        let inside = keys.into_iter().find(|key| *key > range.from && range.contains(key));
        let end = inside.unwrap_or_else(|| part.slice.range().to.clone());
        let end_is_inside = !end.is_empty() && end > range.from && range.is_above(&end);
        return Ok(if end_is_inside { KeyRange::new(range.from.clone(), end) } else { range.clone() });
    }
    Ok(range.clone())
}

/// Divides slices in any order into few sequences of disjoint slices. A cut by [`cut_to`] assumes that each sequence is
/// spread over the whole range, which single slices of a sorted load are not.
pub fn sequences_of<'p>(parts: impl Iterator<Item = &'p Part>) -> Vec<Sequence> {
    let mut sorted: Vec<&Part> = parts.collect();
    sorted.sort_by_key(|part| part.slice.low());
    let mut groups: Vec<Vec<Part>> = Vec::new();
    for part in sorted {
        let ends_before = |group: &&mut Vec<Part>| {
            group.last().is_some_and(|last| !last.slice.range().is_above(&part.slice.range().from))
        };
        match groups.iter_mut().find(ends_before) {
            Some(group) => group.push(part.clone()),
            None => groups.push(vec![part.clone()]),
        }
    }
    groups.into_iter().map(Sequence::from).collect()
}

/// Whether two slices can be in one sequence without moving data, in the order of their keys.
pub fn may_be_neighbours(left: &RunSlice, right: &RunSlice) -> bool {
    left.is_before(right) || SeededBug::LevelMovesOverlap.is_on()
}

/// The key ranges of the parts in a joined sequence, in key order, each with the index of its part. Each range reaches
/// from the first key of its part to the first key of the next part, so that the ranges are disjoint.
pub fn joined_ranges(parts: &[&Part]) -> Vec<(usize, KeyRange)> {
    let mut order: Vec<usize> = (0..parts.len()).collect();
    order.sort_unstable_by_key(|&at| parts[at].slice.low());
    let low = |at: usize| parts[order[at]].slice.low().to_vec();
    let to = |at: usize| if at + 1 < order.len() { low(at + 1) } else { parts[order[at]].slice.range().to.clone() };
    (0..order.len()).map(|at| (order[at], KeyRange::new(low(at), to(at)))).collect()
}
