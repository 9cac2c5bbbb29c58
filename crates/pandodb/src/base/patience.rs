//! [`Patience`]: whether who waits for something short watches for it, or sleeps until it.
//!
//! A read of a few pages takes a fast disk not much longer than it takes to put a thread to sleep, let its core go idle and
//! wake both; on a virtual machine half as long again. A writer that has to wait for some microseconds is woken by a timer,
//! which may add tens of them for its own convenience. So who waits looks, over and over, whether it is time. That is in vain
//! where the disk is slow, and where others want the core: who never sleeps is not woken before them. Both show in the same
//! way: more than [`LONGEST`] has gone by, because what is waited for takes longer or because the one who looked was not let
//! to look.
//!
//! ```text
//!            saved ◀──────────────┼──────────────▶ lost              a watch in vain moves it right by the time that it took,
//!   at most 20 ms                 │         at most a second         one that went well moves it left by what it has saved
//!             nothing follows     │  after a watch in vain so many waits sleep: lost / 10 µs
//! ```
//!
//! For reads that is twice as many waits as would make up for it. What was saved bears with hiccups: a core that is taken away
//! now and then for something else is no reason to sleep.

use std::time::Duration;

use super::sync::{AtomicU32, AtomicU64, Ordering::Relaxed};

/// Nobody watches for longer, unless he is kept from looking.
pub const LONGEST: Duration = Duration::from_micros(300);
/// What a read that is watched well saves: measured on a virtual machine.
pub const READ_SAVED: Duration = Duration::from_micros(20);
/// No more is held against watching.
const MOST_LOST: Duration = Duration::from_secs(1);
/// No more speaks for it.
const MOST_SAVED: Duration = Duration::from_millis(20);

/// What all who wait for the same kind of thing have seen so far. A figure that two of them change at once may miss one of the
/// changes, which does no harm.
#[derive(Debug)]
pub struct Patience {
    /// Waits that still are to sleep.
    rests: AtomicU32,
    /// Nanoseconds: [`MOST_SAVED`], and what watching has cost, less what it has saved. Never negative.
    balance: AtomicU64,
}

impl Default for Patience {
    fn default() -> Patience {
        Patience { rests: AtomicU32::new(0), balance: AtomicU64::new(nanos(MOST_SAVED)) }
    }
}

impl Patience {
    /// Whether who has to wait now would watch.
    pub fn is_left(&self) -> bool {
        self.rests.load(Relaxed) == 0
    }

    /// Whether to watch for what is to be waited for: if not, it is slept for.
    pub fn watches(&self) -> bool {
        let rests = self.rests.load(Relaxed);
        if rests > 0 {
            self.rests.store(rests - 1, Relaxed);
        }
        rests == 0
    }

    /// Somebody has watched and was not kept from it, which spared him so much, by his own reckoning.
    pub fn went_well(&self, saved: Duration) {
        let balance = self.balance.load(Relaxed);
        if balance > 0 {
            self.balance.store(balance.saturating_sub(nanos(saved)), Relaxed);
        }
    }

    /// Somebody has watched for so long in vain, or was kept from looking.
    pub fn was_in_vain(&self, lost: Duration) {
        let most = nanos(MOST_SAVED + MOST_LOST);
        let balance = self.balance.load(Relaxed).saturating_add(nanos(lost)).min(most);
        self.balance.store(balance, Relaxed);
        let held = balance.saturating_sub(nanos(MOST_SAVED));
        self.rests.store((2 * held / nanos(READ_SAVED)) as u32, Relaxed);
    }
}

fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Waits `reads` times, each watched read taking what `took` says of its number, and counts those who watched.
    fn watched(patience: &Patience, reads: u32, took: impl Fn(u32) -> Duration) -> u32 {
        let mut watched = 0;
        for _ in 0..reads {
            if patience.watches() {
                watched += 1;
                match took(watched) {
                    long if long >= LONGEST => patience.was_in_vain(long),
                    _ => patience.went_well(READ_SAVED),
                }
            }
        }
        watched
    }

    #[test]
    fn a_fast_disk_is_watched_in_spite_of_a_hiccup_now_and_then() {
        let patience = Patience::default();
        let hiccup = |read| Duration::from_micros(if read % 1000 == 0 { 10_000 } else { 50 });
        assert_eq!(watched(&patience, 100_000, hiccup), 100_000);
    }

    #[test]
    fn a_slow_disk_is_left_alone() {
        let patience = Patience::default();
        assert!(watched(&patience, 100_000, |_| LONGEST) < 100);
    }

    #[test]
    fn where_others_want_the_core_it_is_tried_ever_more_rarely_and_again_when_they_are_gone() {
        let patience = Patience::default();
        // Whoever watches all of a slice loses the next.
        let shared = |read| Duration::from_micros(if read % 80 == 0 { 4000 } else { 50 });
        assert!(watched(&patience, 100_000, shared) < 5_000);
        watched(&patience, 100_000, |_| Duration::from_micros(50));
        assert_eq!(watched(&patience, 1_000, |_| Duration::from_micros(50)), 1_000);
    }

    #[test]
    fn what_is_held_against_it_and_what_speaks_for_it_is_bounded() {
        let patience = Patience::default();
        patience.was_in_vain(Duration::from_secs(1 << 40));
        let rests = 2 * (MOST_LOST.as_micros() / READ_SAVED.as_micros()) as u32;
        assert_eq!(watched(&patience, rests, |_| LONGEST), 0);
        assert!(patience.is_left());
        patience.went_well(Duration::from_secs(1 << 40));
        patience.was_in_vain(MOST_SAVED);
        assert!(patience.is_left(), "that was saved before");
        patience.was_in_vain(LONGEST);
        assert!(!patience.is_left());
    }
}
