//! [`Pace`]: the usual speed of the workers, and the time up to which writers have paid at this speed. The functions of
//! this module do not wait, and writers take no lock.
//!
//! ```text
//!            now        paid_until
//!   ──────────┼──────────────┼─────────▶ time      a charge moves paid_until by price ÷ pace; a writer for which it is
//!             │◀── slack ──▶ │                     ahead by more than the slack waits until it is ahead by half the slack
//! ```
//!
//! The pace is a mean over about two seconds, including pauses. So while a worker waits for the disk, the pace hardly
//! changes and writers hardly slow down. The writes made in the meantime increase the debt, and therefore the price. In
//! the same way, a pace that was measured too high corrects itself. The first measurement takes only a tenth of a
//! second and replaces the assumed initial pace, so a pause during this measurement does slow writers down.
//!
//! Invariant: `paid_until` is at most one second ahead of the latest charge. Source: 001 §5.1;
//! [decision 0029](../../../../docs/decisions/0029-writers-pay-by-the-clock.md).

use std::time::Duration;

use crate::base::sync::{AtomicU64, Mutex, Ordering::Relaxed};

/// A writer that would sleep waits only if its payment is this far ahead of the clock. A shorter sleep would be small
/// compared with the inaccuracy of timers.
pub const SLACK_ASLEEP: Duration = Duration::from_micros(200);
/// A writer that would spin waits only if its payment is this far ahead of the clock. With a smaller value there would
/// be more waits, and they would be shorter.
pub const SLACK_WATCHING: Duration = Duration::from_micros(10);
/// The time constant of the mean. Older work counts less.
const MEMORY: Duration = Duration::from_secs(2);
/// The least duration of a measurement.
const WINDOW: Duration = Duration::from_millis(100);
/// The assumed pace before the first measurement, in bytes a second.
const UNKNOWN: u64 = 256 << 20;
/// The least pace, in bytes a second.
const LEAST: u64 = 1 << 20;
/// The greatest weight of one measurement in the mean, so that a worker that once hung for a minute does not count as
/// slow for long.
const MOST_TOOK: Duration = Duration::from_secs(1);
/// The most time that writers may owe. Without this bound, a disk that hung for a while would leave writers with a
/// large debt, which they would pay long after the disk has recovered.
const MOST_AHEAD: Duration = Duration::from_secs(1);

const _: () = assert!(LEAST > 0 && LEAST <= UNKNOWN, "the pace divides prices");
const _: () = assert!(SLACK_WATCHING.as_nanos() <= SLACK_ASLEEP.as_nanos(), "short waits spin");
const _: () = assert!(SLACK_ASLEEP.as_nanos() < MOST_AHEAD.as_nanos(), "a writer can be ahead by more than the slack");
const _: () = assert!(WINDOW.as_nanos() <= MOST_TOOK.as_nanos() && MOST_TOOK.as_nanos() <= MEMORY.as_nanos());

/// The pace of the workers and the payments of the writers.
#[derive(Debug)]
pub struct Pace {
    /// Bytes of background work a second.
    rate: AtomicU64,
    /// The time up to which writers have paid, in nanoseconds of the device's clock.
    paid_until: AtomicU64,
    measured: Mutex<Measured>,
}

/// The state of the measurement of the pace.
#[derive(Debug, Default)]
struct Measured {
    window: Option<Window>,
    /// The total measured time, at most [`MEMORY`]. This is the weight of the old pace in the mean.
    known: Duration,
}

/// A measurement that is in progress.
#[derive(Debug)]
struct Window {
    since: Duration,
    bytes: u64,
}

impl Default for Pace {
    fn default() -> Pace {
        Pace { rate: AtomicU64::new(UNKNOWN), paid_until: AtomicU64::new(0), measured: Mutex::default() }
    }
}

impl Pace {
    /// Charges a writer `price` bytes of work. Returns the time until which the writer must wait; `None` if its payment
    /// is not more than `slack` ahead of `now`.
    pub fn charge(&self, price: u64, now: Duration, slack: Duration) -> Option<Duration> {
        let now = nanos(now);
        let rate = self.rate.load(Relaxed);
        debug_assert!(rate >= LEAST, "a pace of {rate} bytes a second");
        let cost = u128::from(price) * 1_000_000_000 / u128::from(rate);
        let cost = u64::try_from(cost).unwrap_or(u64::MAX);
        let mut before = self.paid_until.load(Relaxed);
        let paid = loop {
            // Time during which no thread wrote gives no credit.
            let paid = before.max(now).saturating_add(cost).min(now.saturating_add(nanos(MOST_AHEAD)));
            match self.paid_until.compare_exchange_weak(before, paid, Relaxed, Relaxed) {
                Ok(_) => break paid,
                Err(other) => before = other,
            }
        };
        let slack = nanos(slack);
        (paid > now.saturating_add(slack)).then(|| Duration::from_nanos(paid - slack / 2))
    }

    /// Records `bytes` of work that ended at `now`.
    pub fn work(&self, bytes: u64, now: Duration) {
        let mut measured = self.measured.lock();
        // The beginning of the first piece of work after a rest is unknown, so this piece only starts the measurement.
        let Some(seen) = measured.window.as_mut() else {
            measured.window = Some(Window { since: now, bytes: 0 });
            return;
        };
        seen.bytes += bytes;
        let took = now.saturating_sub(seen.since);
        if took < WINDOW {
            return;
        }
        let rate_now = u128::from(seen.bytes) * 1_000_000_000 / took.as_nanos();
        let took = took.min(MOST_TOOK);
        let (weight, memory) = (took.as_nanos(), measured.known.as_nanos());
        let before = u128::from(self.rate.load(Relaxed));
        let rate = (before * memory + rate_now * weight) / (memory + weight);
        debug_assert!((before.min(rate_now)..=before.max(rate_now)).contains(&rate), "a mean lies between both");
        self.rate.store(u64::try_from(rate).unwrap_or(u64::MAX).max(LEAST), Relaxed);
        *measured =
            Measured { window: Some(Window { since: now, bytes: 0 }), known: MEMORY.min(measured.known + took) };
    }

    /// Called when there is no work. Stops measuring until there is work again, and cancels the writers' debt.
    pub fn rest(&self) {
        self.measured.lock().window.take();
        self.paid_until.store(0, Relaxed);
    }
}

fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    impl Pace {
        /// Bytes of background work a second.
        fn rate(&self) -> u64 {
            self.rate.load(Relaxed)
        }
    }

    const MIB: u64 = 1 << 20;
    const SECOND: Duration = Duration::from_secs(1);
    const AHEAD: Duration = SLACK_ASLEEP;

    fn ms(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    #[test]
    fn a_writer_that_pays_in_time_goes_at_the_pace_of_the_workers() {
        let pace = Pace::default();
        let mut now = SECOND;
        // A price of 256 MiB at 256 MiB a second, in small writes: one second in total.
        for _ in 0..1 << 14 {
            if let Some(until) = pace.charge(16 << 10, now, AHEAD) {
                assert!(until > now && until - now < AHEAD, "a small write waits for little");
                now = until;
            }
        }
        assert!(now > SECOND * 2 - AHEAD && now < SECOND * 2, "{now:?}");
    }

    #[test]
    fn idle_time_gives_no_credit_and_rest_cancels_the_debt() {
        let pace = Pace::default();
        assert_eq!(pace.charge(1000, SECOND, AHEAD), None);
        let much = pace.charge(128 * MIB, SECOND * 100, AHEAD).expect("half a second is more than a moment");
        assert!(much > SECOND * 100 + ms(500) - AHEAD, "time without writes gives no credit");
        for _ in 0..100 {
            assert!(pace.charge(1 << 40, SECOND * 100, AHEAD).is_some());
        }
        assert!(pace.charge(1, SECOND * 100, AHEAD) < Some(SECOND * 101), "at most one second is owed");
        pace.rest();
        assert_eq!(pace.charge(1000, SECOND * 100, AHEAD), None, "the debt is cancelled");
    }

    #[test]
    fn a_pause_of_the_workers_hardly_changes_the_pace_and_a_slow_disk_does() {
        let pace = Pace::default();
        let work = |from: u64, to: u64, bytes_a_ms: u64| {
            (from..to).for_each(|t| pace.work(bytes_a_ms, ms(t)));
        };
        work(0, 20_000, 100_000);
        let usual = pace.rate();
        assert!((99_000_000..101_000_000).contains(&usual), "{usual}");
        // A pause of 0.3 seconds.
        work(20_300, 20_301, 100_000);
        let paused = pace.rate();
        assert!(paused > usual * 8 / 10, "{usual} {paused}");
        work(20_301, 40_000, 10_000);
        assert!(pace.rate() < 11_000_000, "{}", pace.rate());
        // An hour without work does not change the pace.
        pace.rest();
        work(4_000_000, 4_000_050, 10_000);
        assert!(pace.rate() > 9_000_000);
    }

    #[test]
    fn the_first_measurement_replaces_the_assumed_pace() {
        let pace = Pace::default();
        assert_eq!(pace.rate(), UNKNOWN);
        (0..200).for_each(|t| pace.work(2000, ms(t)));
        assert!(pace.rate() < 2_100_000, "{}", pace.rate());
    }

    #[test]
    fn extreme_prices_and_measurements_do_not_overflow() {
        let pace = Pace::default();
        pace.work(1, Duration::ZERO);
        for i in 1..100 {
            pace.work(0, SECOND * 1_000_000 * i);
        }
        assert_eq!(pace.rate(), LEAST, "the pace has a lower bound");
        assert!(pace.charge(u64::MAX, SECOND, AHEAD).is_some());
        assert!(pace.charge(u64::MAX, SECOND * 2, AHEAD).is_some());
        pace.work(u64::MAX / 2, Duration::from_secs(1_000_000_001));
        assert!(pace.rate() > LEAST);
    }
}
