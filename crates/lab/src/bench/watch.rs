//! [`Watch`]: samples progress, debt and memory of a running workload every 100 ms, and ends the workload at its time
//! limit.

use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use super::client::Shared;
use super::recorder::BUCKET_MS;
use super::system;
use crate::engine::Engine;

/// The progress of a workload.
#[derive(Clone, Copy, Debug)]
pub struct Tick {
    /// The number of finished operations. Threads report fast operations in steps of up to 64.
    pub done: u64,
    /// The total number of operations of the workload. If the time limit is reached earlier, fewer operations are done.
    pub of: u64,
    /// The elapsed share of the time limit; 0 without a time limit.
    pub time_share: f64,
    /// The time since the start.
    pub elapsed: Duration,
    /// The number of operations that ended in the last bucket.
    pub last: u64,
    /// The latency of the slowest operation of the last bucket, if it took a millisecond or more.
    pub slowest: Duration,
    /// Bytes of pending background work, if the engine reports it.
    pub debt: Option<u64>,
}

/// The samples of a workload, one number for each bucket.
#[derive(Debug, Default)]
pub struct Seen {
    /// Bytes of pending background work; empty if the engine does not report it.
    pub debt_bytes: Vec<u64>,
    /// Bytes of memory of the process.
    pub rss_bytes: Vec<u64>,
}

/// Samples one workload, from the thread that started it.
pub struct Watch<'a> {
    engine: &'a dyn Engine,
    shared: &'a Shared<'a>,
    of: u64,
    end: Option<Duration>,
    /// The samples taken up to now.
    pub seen: Seen,
}

impl<'a> Watch<'a> {
    /// Creates a sampler for a workload of `of` operations. If `seconds` is given, the workload ends after this time.
    pub fn new(engine: &'a dyn Engine, shared: &'a Shared<'a>, of: u64, seconds: Option<f64>) -> Watch<'a> {
        Watch { engine, shared, of, end: seconds.map(Duration::from_secs_f64), seen: Seen::default() }
    }

    /// Samples until all clients are done.
    pub fn run(&mut self, is_done: impl Fn() -> bool, tick: &mut dyn FnMut(&Tick)) {
        let bucket = Duration::from_millis(BUCKET_MS);
        let mut last = 0;
        while !is_done() {
            let elapsed = self.shared.started.elapsed();
            let next = bucket * (elapsed.as_millis() as u32 / BUCKET_MS as u32 + 1);
            // The time limit may lie between the ends of two buckets.
            let until = self.end.filter(|end| *end > elapsed).map_or(next, |end| next.min(end));
            wait(until.saturating_sub(elapsed), &is_done);
            let elapsed = self.shared.started.elapsed();
            if self.end.is_some_and(|end| elapsed >= end) {
                self.shared.stop.store(true, Relaxed);
            }
            let done = self.shared.done.load(Relaxed);
            let debt = self.engine.debt();
            self.seen.debt_bytes.extend(debt);
            self.seen.rss_bytes.push(system::rss_bytes());
            tick(&Tick {
                done,
                of: self.of,
                time_share: self.end.map_or(0.0, |end| elapsed.as_secs_f64() / end.as_secs_f64()),
                elapsed,
                last: done - last,
                slowest: Duration::from_nanos(self.shared.slowest.swap(0, Relaxed)),
                debt,
            });
            last = done;
        }
    }
}

/// Sleeps for `time` or until `is_done`.
fn wait(time: Duration, is_done: impl Fn() -> bool) {
    const STEP: Duration = Duration::from_millis(5);
    let started = Instant::now();
    while started.elapsed() < time && !is_done() {
        std::thread::sleep(STEP.min(time.saturating_sub(started.elapsed())));
    }
}
