//! [`World`]: the expected contents of a store after the workloads that have run.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use super::Start;
use super::set::DataSet;
use super::stream::THINNED;
use crate::record::{Shape, mix};

/// The exact sum is tracked only for one counter out of this number of counters.
const FOLLOWED: u64 = 64;
/// The maximum number of counters. For each counter, one bit records whether it exists.
pub const MOST_COUNTERS: u64 = 1 << 24;

/// The contents of a store.
#[derive(Debug)]
pub struct World {
    /// The kind of contents that the store offers to the next workload, or `None` if no workload can use the contents.
    pub holds: Option<Start>,
    /// The data set of the contents.
    pub set: DataSet,
    /// All rows with numbers below this number were inserted.
    pub rows: u64,
    /// The number of the next new row.
    pub next_row: u64,
    /// The rows with numbers below this number were thinned (only one row in ten was kept).
    pub thinned: u64,
    /// The number of live rows, events and entries.
    pub live: u64,
    /// One bit for each counter, which says whether the counter exists.
    seen: Vec<AtomicU64>,
    /// The sums of the tracked counters.
    sums: Vec<AtomicU64>,
}

impl World {
    /// The contents of a new store for this number of records.
    pub fn new(set: DataSet, records: u64) -> World {
        let atomics = |n: u64| (0..n).map(|_| AtomicU64::new(0)).collect();
        World {
            holds: Some(Start::Fresh),
            set,
            rows: 0,
            next_row: 0,
            thinned: 0,
            live: 0,
            seen: atomics(records.min(MOST_COUNTERS).div_ceil(64)),
            sums: atomics(records.min(MOST_COUNTERS).div_ceil(FOLLOWED)),
        }
    }

    /// Whether a row certainly exists.
    pub fn has_row(&self, number: u64) -> bool {
        number < self.rows && !self.is_deleted(number)
    }

    /// Whether a row existed and was deleted.
    pub fn is_deleted(&self, number: u64) -> bool {
        number < self.thinned && !number.is_multiple_of(THINNED)
    }

    /// Whether at least `limit` entries certainly follow a row, because the row is far enough from the end of the keys.
    pub fn has_so_many_after(&self, number: u64, limit: usize) -> bool {
        const TAIL: u64 = 10;
        mix(number) < u64::MAX / TAIL * (TAIL - 1) && self.live > 2 * TAIL * limit as u64
    }

    /// Whether at least `limit` entries certainly precede a row, because the row is far enough from the start of the keys.
    pub fn has_so_many_before(&self, number: u64, limit: usize) -> bool {
        const HEAD: u64 = 10;
        mix(number) > u64::MAX / HEAD && self.live > 2 * HEAD * limit as u64
    }

    /// Records an addition to a counter.
    pub fn added(&self, number: u64, delta: u64) {
        if let Some(word) = self.seen.get((number / 64) as usize) {
            word.fetch_or(1 << (number % 64), Relaxed);
        }
        if number.is_multiple_of(FOLLOWED)
            && let Some(sum) = self.sums.get((number / FOLLOWED) as usize)
        {
            sum.fetch_add(delta, Relaxed);
        }
    }

    /// The tracked counters that had an addition, with their sums.
    pub fn known_counters(&self) -> impl Iterator<Item = (u64, u64)> + '_ {
        let sums = self.sums.iter().map(|sum| sum.load(Relaxed));
        sums.enumerate().filter(|(_, sum)| *sum > 0).map(|(i, sum)| (i as u64 * FOLLOWED, sum))
    }

    /// Bytes of live keys and values.
    pub fn live_bytes(&self, shape: &Shape) -> u64 {
        let counters: u64 = self.seen.iter().map(|word| u64::from(word.load(Relaxed).count_ones())).sum();
        self.live * self.set.record_bytes(shape) + counters * (shape.key_len as u64 + 8)
    }
}
