//! Whether who waits for a read watches for its end, or sleeps until it.
//!
//! A read of a few pages takes a fast disk not much longer than it takes to put a thread to sleep, let its core go idle and
//! wake both; on a virtual machine half as long again. So who waits looks, over and over, whether the read has ended. That
//! is in vain where the disk is slow, and where others want the core: who never sleeps is not woken before them. Both show
//! in the same way, a read that is not there after [`LONGEST`], because the disk takes longer or because the one
//! who looked was not let to look.
//!
//! ```text
//!   lost, in µs:  + what was watched in vain
//!                 − 20 for each read that was watched well
//!   after a watch in vain, so many waits sleep:  lost / 10, twice as many as would make up for it
//! ```

use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::time::Duration;

/// Nobody watches for longer, unless he is kept from looking.
pub(super) const LONGEST: Duration = Duration::from_micros(300);
/// What a read that is watched well saves, in microseconds: measured on a virtual machine.
const SAVED: u32 = 20;
/// No more is held against watching, in microseconds: a second.
const MOST_LOST: u32 = 1_000_000;

/// What all who wait for reads of a device have seen so far. A figure that two of them change at once may miss one of the
/// changes, which does no harm.
#[derive(Debug, Default)]
pub(super) struct Patience {
    /// Waits that still are to sleep.
    rests: AtomicU32,
    /// Microseconds that watching has cost, less what it has saved.
    lost: AtomicU32,
}

impl Patience {
    /// Whether to watch for a read that is to be waited for.
    pub(super) fn watches(&self) -> bool {
        let rests = self.rests.load(Relaxed);
        if rests > 0 {
            self.rests.store(rests - 1, Relaxed);
        }
        rests == 0
    }

    /// Notes how long somebody has watched, whether the read has ended or not.
    pub(super) fn watched(&self, took: Duration) {
        let lost = self.lost.load(Relaxed);
        if took < LONGEST {
            if lost > 0 {
                self.lost.store(lost.saturating_sub(SAVED), Relaxed);
            }
        } else {
            let lost = (u128::from(lost) + took.as_micros()).min(MOST_LOST.into()) as u32;
            self.lost.store(lost, Relaxed);
            self.rests.store(2 * lost / SAVED, Relaxed);
        }
    }
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
                patience.watched(took(watched));
            }
        }
        watched
    }

    #[test]
    fn a_fast_disk_is_watched_in_spite_of_a_hiccup_now_and_then() {
        let patience = Patience::default();
        let hiccup = |read| Duration::from_micros(if read % 1000 == 0 { 500 } else { 50 });
        assert!(watched(&patience, 100_000, hiccup) > 94_000);
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
    fn what_is_held_against_it_is_bounded() {
        let patience = Patience::default();
        patience.watched(Duration::from_secs(1 << 40));
        assert_eq!(watched(&patience, 2 * MOST_LOST / SAVED, |_| LONGEST), 0);
        assert!(patience.watches());
    }
}
