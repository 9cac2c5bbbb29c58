//! How many point deletes a run holds, and about where, so that an index can estimate what they shadow without
//! reading anything.
//!
//! ```text
//!   keys     a ───── d d d d d d ─── p p p p ─ d d ─────
//!   stretches        └── 6 ────┘               └2┘
//! ```
//!
//! A tombstone weighs next to nothing and hides a whole value, so bytes do not tell when a compaction frees much. The number of
//! deletes does, against the entries below them: where deletes hide a quarter of some data ([`WASTE`]), rewriting it costs a bounded
//! number of bytes for each byte that it frees.
//!
//! Where the deletes of a run lie is noted while the run is written and is not stored: after reopening they count as spread evenly.

use std::sync::Arc;

use crate::base::PAGE;
use crate::run::RunSlice;

/// A compaction is worth it if at least one entry in `WASTE` is garbage.
pub const WASTE: u64 = 4;
/// Stretches that are kept for a run, at the least where it has many deletes; at most it is twice as many.
const STRETCHES: usize = 16;
/// Deletes of a stretch before neighbours are joined.
const FIRST_STRETCH: u64 = 16;

/// Deletes from one key to another, both included.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stretch {
    /// The first deleted key.
    pub from: Arc<[u8]>,
    /// The last one.
    pub to: Arc<[u8]>,
    count: u64,
}

impl Stretch {
    /// How many deletes it holds.
    pub fn count(&self) -> u64 {
        self.count
    }
}

/// The point deletes of a slice, in order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Deletes(Arc<[Stretch]>);

impl Deletes {
    /// What can be said of a slice that fills `bytes`: its part of the run's, spread evenly.
    pub fn guess(slice: &RunSlice, bytes: u64) -> Deletes {
        let (meta, range) = (slice.run().meta(), slice.range());
        let count = in_part(meta.deletes, slice, bytes);
        if count == 0 {
            return Deletes::default();
        }
        let to = if range.is_above(&meta.last_key) { &meta.last_key } else { &range.to };
        Deletes([Stretch { from: slice.low().into(), to: to.as_slice().into(), count }].into())
    }

    /// Where they lie.
    pub fn stretches(&self) -> impl Iterator<Item = &Stretch> {
        self.0.iter()
    }

    /// How many there are.
    pub fn count(&self) -> u64 {
        self.0.iter().map(|stretch| stretch.count).sum()
    }

    /// What falls to `part` of the places in which `place` finds keys. What lies across several is shared evenly.
    pub fn share(&self, part: std::ops::Range<usize>, place: impl Fn(&[u8]) -> usize) -> Deletes {
        let shared = self.0.iter().filter_map(|stretch| {
            let (first, end) = (place(&stretch.from), place(&stretch.to) + 1);
            let common = end.min(part.end).saturating_sub(first.max(part.start)) as u64;
            let count = stretch.count * common / (end - first) as u64;
            (count > 0).then(|| Stretch { count, ..stretch.clone() })
        });
        Deletes(shared.collect())
    }
}

/// The part of a run's `count` that belongs to a slice of `bytes` bytes.
pub fn in_part(count: u64, slice: &RunSlice, bytes: u64) -> u64 {
    let whole = u128::from(slice.run().meta().leaf_pages.max(1)) * PAGE as u128;
    // No entry takes less than a byte, whatever the run's description says: sums do not overflow.
    ((u128::from(count) * u128::from(bytes) / whole) as u64).min(bytes)
}

/// Notes where deletes lie while a run is written.
#[derive(Default)]
pub struct Tally {
    stretches: Vec<Stretch>,
    /// The stretch that is still open.
    from: Vec<u8>,
    to: Vec<u8>,
    count: u64,
    /// log2 of how many times the stretch size has been doubled.
    doubled: u32,
}

impl Tally {
    /// Takes a deleted key; they come in order.
    pub fn push(&mut self, key: &[u8]) {
        if self.count == 0 {
            self.from.clear();
            self.from.extend_from_slice(key);
        }
        self.to.clear();
        self.to.extend_from_slice(key);
        self.count += 1;
        if self.count >= FIRST_STRETCH << self.doubled {
            self.close();
        }
    }

    fn close(&mut self) {
        let (from, to) = (self.from.as_slice().into(), self.to.as_slice().into());
        self.stretches.push(Stretch { from, to, count: std::mem::take(&mut self.count) });
        if self.stretches.len() == 2 * STRETCHES {
            let join = |pair: &[Stretch]| Stretch {
                from: pair[0].from.clone(),
                to: pair[1].to.clone(),
                count: pair[0].count + pair[1].count,
            };
            self.stretches = self.stretches.chunks_exact(2).map(join).collect();
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
