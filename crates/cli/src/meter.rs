//! Measurements of a load: latencies, and the peak memory of the process.

use std::time::Duration;

use hdrhistogram::Histogram;
use serde::Serialize;

/// A histogram of latencies with three significant digits.
#[derive(Debug)]
pub struct Latencies(Histogram<u64>);

/// The figures of a [`Latencies`], in microseconds.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct LatencyFigures {
    /// The number of measurements.
    pub count: u64,
    /// The median latency.
    pub p50_us: f64,
    /// The 99th percentile.
    pub p99_us: f64,
    /// The 99.9th percentile.
    pub p99_9_us: f64,
    /// The maximum latency.
    pub max_us: f64,
}

impl Latencies {
    /// An empty histogram.
    pub fn new() -> Latencies {
        const HOUR_NS: u64 = 3_600_000_000_000;
        Latencies(Histogram::new_with_bounds(1, HOUR_NS, 3).expect("constant bounds that the crate accepts"))
    }

    /// Adds one measurement.
    pub fn record(&mut self, time: Duration) {
        self.0.saturating_record(u64::try_from(time.as_nanos()).unwrap_or(u64::MAX));
    }

    /// The current figures, which are all zero if nothing was measured.
    pub fn figures(&self) -> LatencyFigures {
        let us = |ns: u64| ns as f64 / 1e3;
        LatencyFigures {
            count: self.0.len(),
            p50_us: us(self.0.value_at_quantile(0.5)),
            p99_us: us(self.0.value_at_quantile(0.99)),
            p99_9_us: us(self.0.value_at_quantile(0.999)),
            max_us: us(self.0.max()),
        }
    }
}

/// The peak resident memory of the process in bytes (`VmHWM`). `None` if the system does not report this figure.
pub fn peak_rss_bytes() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
    let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    kib.checked_mul(1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_of_uniform_latencies_are_right() {
        let mut latencies = Latencies::new();
        assert_eq!(latencies.figures().max_us, 0.0);
        for us in 1..=1000 {
            latencies.record(Duration::from_micros(us));
        }
        let figures = latencies.figures();
        assert_eq!(figures.count, 1000);
        assert!((figures.p50_us - 500.0).abs() < 2.0 && (figures.p99_us - 990.0).abs() < 2.0, "{figures:?}");
        assert!((figures.max_us - 1000.0).abs() < 2.0);
    }

    #[test]
    #[cfg(target_os = "linux")]
    fn peak_memory_of_this_process_is_reported() {
        assert!(peak_rss_bytes().unwrap() > 100 << 10);
    }
}
