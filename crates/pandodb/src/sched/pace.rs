//! [`Pace`]: how fast the workers usually work, and up to when writers have paid at that pace. It does not wait; writers take no lock.
//!
//! ```text
//!            now        paid_until
//!   ──────────┼──────────────┼─────────▶ time      a charge moves paid_until by price ÷ pace; who finds it more than his slack
//!             │◀── slack ──▶ │                     before him waits until half of that
//! ```
//!
//! The pace is a mean over some seconds, pauses included: so it hardly changes while a worker waits for the disk, and neither do writers. What
//! was written meanwhile makes the debt grow, and the price with it: that is how a pace which was believed too high corrects itself.
//! The first measurement, of a tenth of a second, replaces an assumed pace, so a pause within it does make writers wait.

use std::time::Duration;

use crate::base::sync::{AtomicU64, Mutex, Ordering::Relaxed};

/// So far ahead of the clock writers are before they wait, asleep: less would be little beside what a timer adds.
pub const SLACK_ASLEEP: Duration = Duration::from_micros(200);
/// And so far if they watch the clock. The less, the more often and the more briefly each waits.
pub const SLACK_WATCHING: Duration = Duration::from_micros(10);
/// The pace is what was done in the last so many seconds, older work counting less.
const MEMORY: Duration = Duration::from_secs(2);
/// A measurement lasts so long at least.
const WINDOW: Duration = Duration::from_millis(100);
/// Bytes a second, before anything was measured.
const UNKNOWN: u64 = 256 << 20;
/// The least that is believed, in bytes a second.
const LEAST: u64 = 1 << 20;
/// A measurement counts as one of so long at most: a worker that hung for a minute has not become slow.
const MOST_TOOK: Duration = Duration::from_secs(1);
/// Nobody owes more time than this: what was dear while a disk hung is not to be paid for long after.
const MOST_AHEAD: Duration = Duration::from_secs(1);

/// What writers pay with.
#[derive(Debug)]
pub struct Pace {
    /// Bytes of background work a second.
    rate: AtomicU64,
    /// Up to when what was written is paid for, in nanoseconds of the device's clock.
    paid_until: AtomicU64,
    measured: Mutex<Measured>,
}

/// State of the measurement of the pace.
#[derive(Debug, Default)]
struct Measured {
    window: Option<Window>,
    /// Total time measured, at most [`MEMORY`]: the weight of the pace before in the mean.
    known: Duration,
}

/// Work that is being measured.
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
    /// A writer owes `price` bytes of work. Up to when it has to wait for that, if that is more than `slack` ahead.
    pub fn charge(&self, price: u64, now: Duration, slack: Duration) -> Option<Duration> {
        let now = nanos(now);
        let cost = u128::from(price) * 1_000_000_000 / u128::from(self.rate.load(Relaxed));
        let cost = u64::try_from(cost).unwrap_or(u64::MAX);
        let mut before = self.paid_until.load(Relaxed);
        let paid = loop {
            // Time in which nobody wrote is void.
            let paid = before.max(now).saturating_add(cost).min(now.saturating_add(nanos(MOST_AHEAD)));
            match self.paid_until.compare_exchange_weak(before, paid, Relaxed, Relaxed) {
                Ok(_) => break paid,
                Err(other) => before = other,
            }
        };
        let slack = nanos(slack);
        (paid > now.saturating_add(slack)).then(|| Duration::from_nanos(paid - slack / 2))
    }

    /// Work was done, and has just ended.
    pub fn work(&self, bytes: u64, now: Duration) {
        let mut measured = self.measured.lock();
        // When the first piece after a rest began is not known: it only starts the clock.
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
        self.rate.store(u64::try_from(rate).unwrap_or(u64::MAX).max(LEAST), Relaxed);
        *measured =
            Measured { window: Some(Window { since: now, bytes: 0 }), known: MEMORY.min(measured.known + took) };
    }

    /// There is no work: what comes is not measured against this time, and nothing is owed.
    pub fn rest(&self) {
        self.measured.lock().window.take();
        self.paid_until.store(0, Relaxed);
    }

    /// Bytes of background work a second.
    #[cfg(test)]
    fn rate(&self) -> u64 {
        self.rate.load(Relaxed)
    }
}

fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

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
        // 256 MiB of price at 256 MiB a second, in small writes: a second, whoever sees it.
        for _ in 0..1 << 14 {
            if let Some(until) = pace.charge(16 << 10, now, AHEAD) {
                assert!(until > now && until - now < AHEAD, "a small write waits for little");
                now = until;
            }
        }
        assert!(now > SECOND * 2 - AHEAD && now < SECOND * 2, "{now:?}");
    }

    #[test]
    fn neither_silence_nor_rest_buy_or_leave_anything() {
        let pace = Pace::default();
        assert_eq!(pace.charge(1000, SECOND, AHEAD), None);
        let much = pace.charge(128 * MIB, SECOND * 100, AHEAD).expect("half a second is more than a moment");
        assert!(much > SECOND * 100 + ms(500) - AHEAD, "the time without writers is not paid with");
        for _ in 0..100 {
            assert!(pace.charge(1 << 40, SECOND * 100, AHEAD).is_some());
        }
        assert!(
            pace.charge(1, SECOND * 100, AHEAD) < Some(SECOND * 101),
            "and however dear it was, it is paid in a second"
        );
        pace.rest();
        assert_eq!(pace.charge(1000, SECOND * 100, AHEAD), None, "what is owed for no work is forgiven");
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
        // Nothing for 0.3 seconds.
        work(20_300, 20_301, 100_000);
        let paused = pace.rate();
        assert!(paused > usual * 8 / 10, "{usual} {paused}");
        work(20_301, 40_000, 10_000);
        assert!(pace.rate() < 11_000_000, "{}", pace.rate());
        // An hour without work says nothing.
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
    fn no_figure_is_too_large() {
        let pace = Pace::default();
        pace.work(1, Duration::ZERO);
        for i in 1..100 {
            pace.work(0, SECOND * 1_000_000 * i);
        }
        assert_eq!(pace.rate(), LEAST, "whatever is measured, time comes to an end");
        assert!(pace.charge(u64::MAX, SECOND, AHEAD).is_some());
        assert!(pace.charge(u64::MAX, SECOND * 2, AHEAD).is_some());
        pace.work(u64::MAX / 2, Duration::from_secs(1_000_000_001));
        assert!(pace.rate() > LEAST);
    }
}
