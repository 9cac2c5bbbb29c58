//! [`Watch`]: looks at a running workload every 100 ms: progress, debt, memory; ends it when its time is up.

use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use super::client::Shared;
use super::recorder::BUCKET_MS;
use super::system;
use crate::engine::Engine;

/// How far a workload is.
#[derive(Clone, Copy, Debug)]
pub struct Tick {
    /// Operations done, in steps of up to 64 a thread where they are fast.
    pub done: u64,
    /// Operations in all, if the workload is not ended by the clock.
    pub of: u64,
    /// The share of the time that has passed, where the clock ends it.
    pub time_share: f64,
    /// Since the start.
    pub elapsed: Duration,
    /// Operations done in the last bucket.
    pub last: u64,
    /// The slowest operation of the last bucket that took a millisecond or more.
    pub slowest: Duration,
    /// What the engine owes.
    pub debt: Option<u64>,
}

/// What was seen, a number a bucket.
#[derive(Debug, Default)]
pub struct Seen {
    /// What the engine owed; empty where it does not say.
    pub debt_bytes: Vec<u64>,
    /// What the process held.
    pub rss_bytes: Vec<u64>,
}

/// Watches one workload, from the thread that started it.
pub struct Watch<'a> {
    engine: &'a dyn Engine,
    shared: &'a Shared<'a>,
    of: u64,
    end: Option<Duration>,
    /// So far.
    pub seen: Seen,
}

impl<'a> Watch<'a> {
    /// Will watch a workload of `of` operations, or one that ends after so many seconds.
    pub fn new(engine: &'a dyn Engine, shared: &'a Shared<'a>, of: u64, seconds: Option<f64>) -> Watch<'a> {
        Watch { engine, shared, of, end: seconds.map(Duration::from_secs_f64), seen: Seen::default() }
    }

    /// Watches until all clients are done.
    pub fn run(&mut self, is_done: impl Fn() -> bool, tick: &mut dyn FnMut(&Tick)) {
        let bucket = Duration::from_millis(BUCKET_MS);
        let mut last = 0;
        while !is_done() {
            let elapsed = self.shared.started.elapsed();
            let next = bucket * (elapsed.as_millis() as u32 / BUCKET_MS as u32 + 1);
            // Short workloads end between two buckets.
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

/// Sleeps that long, or until `is_done`.
fn wait(time: Duration, is_done: impl Fn() -> bool) {
    const STEP: Duration = Duration::from_millis(5);
    let started = Instant::now();
    while started.elapsed() < time && !is_done() {
        std::thread::sleep(STEP.min(time.saturating_sub(started.elapsed())));
    }
}
