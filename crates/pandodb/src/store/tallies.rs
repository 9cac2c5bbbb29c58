//! Counters and histograms of an open store, which many threads update concurrently.
//!
//! Each thread updates one of [`TALLIES`] tallies, which is chosen by the number of the thread. Each tally has its own
//! cache lines, so that threads do not contend for them. A reader adds up all tallies.
//!
//! Invariant: counters only grow. Each counter is read atomically, but the counters are read one after the other. So a
//! sum may lack operations in progress.

use std::time::Duration;

use super::watermark::CachePadded;
use crate::base::sync::{AtomicU64, Counter, Ordering::Relaxed, thread_number};
use crate::base::{Error, KeyRange, Result};

/// The counters since this opening.
#[derive(Default)]
pub(crate) struct Figures {
    pub writes: Tallies<WriteTally>,
    /// Bytes that users wrote and bytes that the store wrote, both before this opening.
    pub earlier: (u64, u64),
    /// Bytes of log that a read-only opening found.
    pub log_found: Counter,
    /// Operations that the opening replayed from the log.
    pub replayed: Counter,
    /// Duration of the opening in microseconds.
    pub opening_us: Counter,
    pub blob_bytes: AtomicU64,
    pub checkpoint_bytes: Counter,
    pub checkpoints: Counter,
    pub reads: Tallies<ReadTally>,
    pub transactions: TransactionFigures,
    /// How long threads hold the sequencer to draw a ticket; one of [`SAMPLED`] is measured.
    pub sequencer: Histogram,
}

/// One draw of this number is measured.
pub(crate) const SAMPLED: u64 = 64;

/// Counts of transactions since this opening.
#[derive(Default)]
pub(crate) struct TransactionFigures {
    pub(crate) by_thread: Tallies<TransactionTally>,
    pub(crate) bytes: AtomicU64,
    /// The number of the next savepoint.
    pub(crate) savepoints: AtomicU64,
    pub(crate) key_conflicts: Counter,
    pub(crate) range_conflicts: Counter,
    pub(crate) reruns: Counter,
    pub(crate) searched_again: Counter,
}

impl TransactionFigures {
    /// The number of open transactions.
    pub(crate) fn open(&self) -> u64 {
        // In this order, so that the difference is never negative.
        let ended = self.by_thread.sum(|tally| &tally.ended);
        self.by_thread.sum(|tally| &tally.begun).saturating_sub(ended)
    }

    /// Counts the end of a commit.
    pub(crate) fn count<T>(&self, committed: &Result<T>) {
        let counter = match committed {
            Ok(_) => &self.by_thread.mine().commits,
            Err(Error::Conflict { from, to, .. }) if KeyRange::new(&**from, &**to) == KeyRange::point(from) => {
                &self.key_conflicts
            }
            Err(Error::Conflict { .. }) => &self.range_conflicts,
            Err(_) => return,
        };
        counter.fetch_add(1, Relaxed);
    }
}

/// Latencies of one kind of operation in microseconds, over the whole time since this opening of the store. Percentiles
/// are upper bounds, at most 7 % too high. All percentiles are 0 before the first operation.
#[non_exhaustive]
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Latency {
    /// Counter: operations.
    pub count: u64,
    /// 50 % of the operations took at most this time.
    pub p50_us: f64,
    /// 99 % of the operations took at most this time.
    pub p99_us: f64,
    /// 99.9 % of the operations took at most this time.
    pub p99_9_us: f64,
    /// 99.99 % of the operations took at most this time.
    pub p99_99_us: f64,
    /// The time of the slowest operation. It never falls.
    pub max_us: f64,
}

/// Number of sub-buckets for each power of two. The upper bound of a bucket is about 6 % above its lower bound.
const SUB: u64 = 1 << SUB_BITS;
const SUB_BITS: u64 = 4;
const BUCKETS: usize = 64 * SUB as usize;
/// A duration that is longer than this number of nanoseconds is recorded as this number, so that the bounds of buckets
/// fit into 64 bits.
const LONGEST: u64 = u64::MAX >> 1;

/// A histogram of durations into which many threads record. Buckets are log-linear in nanoseconds; counters are
/// relaxed.
pub(crate) struct Histogram {
    buckets: Vec<Counter>,
    max: Counter,
}

impl Default for Histogram {
    fn default() -> Histogram {
        Histogram { buckets: (0..BUCKETS).map(|_| Counter::new(0)).collect(), max: Counter::new(0) }
    }
}

/// The bucket of a duration in nanoseconds. REQUIRES: the duration is at most [`LONGEST`].
fn bucket(nanos: u64) -> usize {
    if nanos < SUB {
        return nanos as usize;
    }
    let power = 63 - nanos.leading_zeros() as u64;
    debug_assert!(power >= SUB_BITS, "smaller durations have buckets of their own");
    let sub = (nanos >> (power - SUB_BITS)) & (SUB - 1);
    ((power - SUB_BITS + 1) * SUB + sub) as usize
}

/// The upper bound of a bucket, in nanoseconds.
fn bound(bucket: usize) -> u64 {
    let bucket = bucket as u64;
    if bucket < SUB {
        return bucket;
    }
    let (power, sub) = (bucket / SUB + SUB_BITS - 1, bucket % SUB);
    debug_assert!(power < 63, "no duration is above LONGEST");
    ((SUB + sub + 1) << (power - SUB_BITS)) - 1
}

impl Histogram {
    pub(crate) fn record(&self, time: Duration) {
        let nanos = u64::try_from(time.as_nanos()).unwrap_or(LONGEST).min(LONGEST);
        let bucket = bucket(nanos);
        debug_assert!(bucket < BUCKETS && bound(bucket) >= nanos, "{nanos} ns in bucket {bucket}");
        self.buckets[bucket].fetch_add(1, Relaxed);
        if self.max.load(Relaxed) < nanos {
            self.max.fetch_max(nanos, Relaxed);
        }
    }

    /// The latencies of this histogram.
    pub(crate) fn summary(&self) -> Latency {
        Histogram::summary_of(&[self])
    }

    /// Computes the latencies of several histograms as if they were one histogram.
    fn summary_of(parts: &[&Histogram]) -> Latency {
        let sum = |i: usize| parts.iter().map(|part| part.buckets[i].load(Relaxed)).sum();
        let counts: Vec<u64> = (0..BUCKETS).map(sum).collect();
        let count: u64 = counts.iter().sum();
        let max = parts.iter().map(|part| part.max.load(Relaxed)).max().unwrap_or(0);
        let at = |share: f64| {
            let rank = (count as f64 * share).ceil() as u64;
            let mut sum = 0;
            for (i, n) in counts.iter().enumerate() {
                sum += n;
                if sum >= rank && *n > 0 {
                    return bound(i).min(max) as f64 / 1000.0;
                }
            }
            assert_eq!(count, 0, "every rank is within the sum of all buckets");
            0.0
        };
        let latency = Latency {
            count,
            p50_us: at(0.5),
            p99_us: at(0.99),
            p99_9_us: at(0.999),
            p99_99_us: at(0.9999),
            max_us: max as f64 / 1000.0,
        };
        let percentiles = [latency.p50_us, latency.p99_us, latency.p99_9_us, latency.p99_99_us, latency.max_us];
        assert!(percentiles.is_sorted(), "percentiles ascend: {latency:?}");
        latency
    }
}

/// The number of tallies. Up to this number of threads can update counters without contention.
const TALLIES: usize = 8;

/// One `T` for each of [`TALLIES`] groups of threads. Each `T` has its own cache lines.
#[derive(Default)]
pub(crate) struct Tallies<T>([CachePadded<T>; TALLIES]);

/// Counters of commits.
#[derive(Default)]
pub(crate) struct WriteTally {
    user_bytes: Counter,
    pub latency: Histogram,
}

/// Counters of transactions that each transaction changes.
#[derive(Default)]
pub(crate) struct TransactionTally {
    pub begun: Counter,
    pub ended: Counter,
    pub commits: Counter,
}

/// Counters of point lookups.
#[derive(Default)]
pub(crate) struct ReadTally {
    pub gets: Counter,
    pub probed_blocks: Counter,
    pub filters: Counter,
    pub leaves: Counter,
    pub false_positives: Counter,
    pub latency: Histogram,
}

impl<T> Tallies<T> {
    /// The tally of the calling thread.
    #[inline]
    pub(crate) fn mine(&self) -> &T {
        &self.0[thread_number() % TALLIES]
    }

    pub(crate) fn sum(&self, of: impl Fn(&T) -> &Counter) -> u64 {
        self.0.iter().map(|tally| of(tally).load(Relaxed)).sum()
    }

    pub(crate) fn latency(&self, of: impl Fn(&T) -> &Histogram) -> Latency {
        Histogram::summary_of(&self.0.each_ref().map(|tally| of(tally)))
    }
}

impl Tallies<WriteTally> {
    /// Records a commit of `user_bytes` bytes of keys and values that took `time`.
    pub(crate) fn record(&self, user_bytes: u64, time: Duration) {
        let tally = self.mine();
        tally.user_bytes.fetch_add(user_bytes, Relaxed);
        tally.latency.record(time);
    }

    /// Bytes of keys and values since this opening.
    pub(crate) fn user_bytes(&self) -> u64 {
        self.sum(|tally| &tally.user_bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buckets_bound_what_they_hold() {
        for nanos in (0..100_000).chain((10..60).map(|shift| (1u64 << shift) + 12345)) {
            let upper = bound(bucket(nanos));
            assert!(upper >= nanos && upper as f64 <= nanos as f64 * 1.07 + 1.0, "{nanos} in a bucket up to {upper}");
        }
    }

    #[test]
    fn percentiles_of_a_known_distribution() {
        let histogram = Histogram::default();
        (1..=1000).for_each(|us| histogram.record(Duration::from_micros(us)));
        let summary = Histogram::summary_of(&[&histogram]);
        assert_eq!((summary.count, summary.max_us), (1000, 1000.0));
        assert!((500.0..535.0).contains(&summary.p50_us) && (990.0..1000.1).contains(&summary.p99_us), "{summary:?}");
    }
}
