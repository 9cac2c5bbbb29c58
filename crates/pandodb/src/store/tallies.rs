//! Counters and histograms of an open store, in a form that many threads write to at once.
//!
//! Each thread counts in one of a few tallies, each in cache lines of its own; a reader adds them up.

use std::time::Duration;

use super::watermark::CachePadded;
use crate::base::sync::{AtomicU64, Counter, Ordering::Relaxed, thread_number};

/// Counters since this opening.
#[derive(Default)]
pub(crate) struct Figures {
    pub writes: Tallies<WriteTally>,
    /// Bytes that users wrote before this opening, and bytes that the store wrote for them.
    pub earlier: (u64, u64),
    /// Bytes of log that a store which is open for reading has found.
    pub log_found: Counter,
    /// Operations that the opening found only in the log, and applied again.
    pub replayed: Counter,
    /// How long the opening took, in microseconds.
    pub opening_us: Counter,
    pub blob_bytes: AtomicU64,
    pub checkpoint_bytes: Counter,
    pub checkpoints: Counter,
    pub reads: Tallies<ReadTally>,
}

/// Latencies of one kind of operation, in microseconds, since this opening of the store: over all of that time, not over the
/// last minute. Percentiles are upper bounds, exact to 7 %; 0 before the first operation.
#[non_exhaustive]
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Latency {
    /// Operations. Counter.
    pub count: u64,
    /// Half took at most this.
    pub p50_us: f64,
    /// 99 % took at most this.
    pub p99_us: f64,
    /// 99.9 % took at most this.
    pub p99_9_us: f64,
    /// 99.99 % took at most this.
    pub p99_99_us: f64,
    /// The slowest took this. Never falls.
    pub max_us: f64,
}

/// Sub-buckets for each power of two: percentiles are exact to about 6 %.
const SUB: u64 = 16;
const BUCKETS: usize = 64 * SUB as usize;

/// A histogram of durations that many threads record into: log-linear buckets of nanoseconds, relaxed counters.
pub(crate) struct Histogram {
    buckets: Vec<Counter>,
    max: Counter,
}

impl Default for Histogram {
    fn default() -> Histogram {
        Histogram { buckets: (0..BUCKETS).map(|_| Counter::new(0)).collect(), max: Counter::new(0) }
    }
}

fn bucket(nanos: u64) -> usize {
    if nanos < SUB {
        return nanos as usize;
    }
    let power = 63 - nanos.leading_zeros() as u64;
    let sub = (nanos >> (power - 4)) & (SUB - 1);
    ((power - 3) * SUB + sub) as usize
}

/// The upper bound of a bucket, in nanoseconds.
fn bound(bucket: usize) -> u64 {
    let bucket = bucket as u64;
    if bucket < SUB {
        return bucket;
    }
    let (power, sub) = (bucket / SUB + 3, bucket % SUB);
    ((SUB + sub + 1) << (power - 4)) - 1
}

impl Histogram {
    pub(crate) fn record(&self, time: Duration) {
        let nanos = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX >> 1);
        self.buckets[bucket(nanos).min(BUCKETS - 1)].fetch_add(1, Relaxed);
        if self.max.load(Relaxed) < nanos {
            self.max.fetch_max(nanos, Relaxed);
        }
    }

    /// Of several as if they were one.
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
            0.0
        };
        Latency {
            count,
            p50_us: at(0.5),
            p99_us: at(0.99),
            p99_9_us: at(0.999),
            p99_99_us: at(0.9999),
            max_us: max as f64 / 1000.0,
        }
    }
}

/// How many threads count without meeting each other.
const TALLIES: usize = 8;

/// What operations are counted in: a tally for each of a few threads, so that they do not fight for its cache lines.
#[derive(Default)]
pub(crate) struct Tallies<T>([CachePadded<T>; TALLIES]);

/// Commits.
#[derive(Default)]
pub(crate) struct WriteTally {
    user_bytes: Counter,
    pub latency: Histogram,
}

/// Point lookups.
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
    /// The tally of this thread.
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
    /// A commit of so many bytes of keys and values took so long.
    pub(crate) fn record(&self, user_bytes: u64, time: Duration) {
        let tally = self.mine();
        tally.user_bytes.fetch_add(user_bytes, Relaxed);
        tally.latency.record(time);
    }

    /// Bytes of keys and values since opening.
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
