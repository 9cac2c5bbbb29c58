//! [`Recorder`]: the latencies of one thread, and the number of its operations in each bucket of time.

use std::time::Duration;

use hdrhistogram::Histogram;

use crate::line::LatencyFigures;

/// Milliseconds of a bucket. The bucket is short enough to show a stall of 0.1 s.
pub const BUCKET_MS: u64 = 100;

/// The class of an operation. Latencies are recorded by class.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OpClass {
    /// Put, delete, merge.
    Write,
    /// Get.
    Read,
    /// Scan.
    Scan,
}

impl OpClass {
    /// All classes.
    pub const ALL: [OpClass; 3] = [OpClass::Write, OpClass::Read, OpClass::Scan];

    /// The name in a line of results.
    pub fn name(self) -> &'static str {
        match self {
            OpClass::Write => "write",
            OpClass::Read => "read",
            OpClass::Scan => "scan",
        }
    }
}

/// A histogram of latencies with three significant digits, from a nanosecond to an hour.
#[derive(Debug)]
pub struct Latencies(Histogram<u64>);

impl Default for Latencies {
    fn default() -> Latencies {
        const HOUR_NS: u64 = 3_600_000_000_000;
        let mut counts = Histogram::new_with_bounds(1, HOUR_NS, 3).expect("constant bounds that the crate accepts");
        // This call touches all pages of the counts at once, so that the resident size of the process does not depend
        // on the latencies that are recorded later.
        counts.reset();
        Latencies(counts)
    }
}

impl Latencies {
    fn record(&mut self, time: Duration) {
        self.0.saturating_record(u64::try_from(time.as_nanos()).unwrap_or(u64::MAX));
    }

    fn add(&mut self, other: &Latencies) {
        self.0.add(&other.0).expect("the same bounds");
    }

    /// The size of the counts in bytes. All of the counts are resident.
    fn bytes(&self) -> u64 {
        (self.0.distinct_values() * size_of::<u64>()) as u64
    }

    /// The figures of the histogram, which are all zero if nothing was measured.
    pub fn figures(&self) -> LatencyFigures {
        if self.0.is_empty() {
            return LatencyFigures::default();
        }
        let us = |ns: u64| ns as f64 / 1e3;
        let at = |share| us(self.0.value_at_quantile(share));
        LatencyFigures {
            count: self.0.len(),
            mean_us: self.0.mean() / 1e3,
            p50_us: at(0.5),
            p90_us: at(0.9),
            p99_us: at(0.99),
            p99_9_us: at(0.999),
            p99_99_us: at(0.9999),
            max_us: us(self.0.max()),
        }
    }
}

/// The measurements of one thread. The measurements of several threads can be added up with [`Recorder::add`].
#[derive(Debug, Default)]
pub struct Recorder {
    /// Latencies of each [`OpClass`].
    by_class: [Latencies; 3],
    /// For each bucket, the number of operations and the latency of the slowest operation in nanoseconds.
    buckets: Vec<(u64, u64)>,
}

impl Recorder {
    /// Records an operation that ended `at` after the start and took `latency`.
    pub fn record(&mut self, class: OpClass, at: Duration, latency: Duration) {
        self.by_class[class as usize].record(latency);
        let bucket = (at.as_millis() as u64 / BUCKET_MS) as usize;
        if bucket >= self.buckets.len() {
            self.buckets.resize(bucket + 1, (0, 0));
        }
        let (ops, slowest) = &mut self.buckets[bucket];
        *ops += 1;
        *slowest = (*slowest).max(latency.as_nanos() as u64);
    }

    /// Adds the measurements of another thread.
    pub fn add(&mut self, other: &Recorder) {
        self.by_class.iter_mut().zip(&other.by_class).for_each(|(mine, theirs)| mine.add(theirs));
        if other.buckets.len() > self.buckets.len() {
            self.buckets.resize(other.buckets.len(), (0, 0));
        }
        for (mine, theirs) in self.buckets.iter_mut().zip(&other.buckets) {
            *mine = (mine.0 + theirs.0, mine.1.max(theirs.1));
        }
    }

    /// Clears all measurements without freeing memory.
    pub fn clear(&mut self) {
        self.by_class.iter_mut().for_each(|class| class.0.reset());
        self.buckets.clear();
    }

    /// Bytes of memory that the recorder takes: about 800 KiB.
    pub fn bytes(&self) -> u64 {
        let buckets = self.buckets.capacity() * size_of::<(u64, u64)>();
        self.by_class.iter().map(Latencies::bytes).sum::<u64>() + buckets as u64
    }

    /// The latencies of all operations.
    pub fn all(&self) -> LatencyFigures {
        let mut all = Latencies::default();
        self.by_class.iter().for_each(|class| all.add(class));
        all.figures()
    }

    /// The latencies of each class with at least one operation.
    pub fn by_class(&self) -> impl Iterator<Item = (&'static str, LatencyFigures)> + '_ {
        let figures = OpClass::ALL.into_iter().map(|class| (class.name(), self.by_class[class as usize].figures()));
        figures.filter(|(_, figures)| figures.count > 0)
    }

    /// The number of operations in each bucket.
    pub fn ops(&self) -> Vec<u64> {
        self.buckets.iter().map(|(ops, _)| *ops).collect()
    }

    /// The slowest operation of each bucket, in microseconds.
    pub fn slowest_us(&self) -> Vec<f64> {
        self.buckets.iter().map(|(_, ns)| *ns as f64 / 1e3).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn latencies_and_buckets_add_up() {
        let (mut one, mut two) = (Recorder::default(), Recorder::default());
        for i in 1..=1000u64 {
            one.record(OpClass::Write, Duration::from_millis(i), Duration::from_micros(i));
        }
        two.record(OpClass::Read, Duration::from_millis(2500), Duration::from_secs(2));
        assert!((500 << 10..1 << 20).contains(&two.bytes()), "{}", two.bytes());
        one.add(&two);
        let all = one.all();
        assert_eq!((all.count, one.ops().iter().sum::<u64>(), one.ops().len()), (1001, 1001, 26));
        assert!((all.p50_us - 500.0).abs() < 2.0 && (all.max_us - 2e6).abs() < 2e3, "{all:?}");
        assert!((one.slowest_us()[25] - 2e6).abs() < 1.0 && one.slowest_us()[20] == 0.0, "the stall is in its bucket");
        let by: Vec<_> = one.by_class().map(|(name, figures)| (name, figures.count)).collect();
        assert_eq!(by, [("write", 1000), ("read", 1)]);
        let bytes = one.bytes();
        one.clear();
        assert_eq!((one.all().count, one.ops().len(), one.bytes()), (0, 0, bytes));
    }
}
