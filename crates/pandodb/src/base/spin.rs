//! [`SpinPolicy`]: decides whether a thread that has a short wait spins (busy-polls) or sleeps.
//!
//! A read of a few pages from a fast disk takes little longer than putting a thread to sleep, letting its core become
//! idle, and waking both again. On a virtual machine, the read takes 1.5 times as long if the thread sleeps. A timer
//! that wakes a writer after some microseconds may be tens of microseconds late. In both cases a thread had better spin
//! until the wait is over.
//!
//! Spinning is slower than sleeping if the disk is slow, or if other threads need the core: the scheduler preempts a
//! thread that never sleeps. Both cases have the same symptom: a spin takes [`LONGEST`] or more, either because the
//! wait is long or because the spinning thread was preempted.
//!
//! ```text
//!           saved ◀──────────────┼──────────────▶ lost         a failed spin moves it right by the time taken,
//!  at most 20 ms                 │         at most 1 s          a successful one moves it left by the time saved
//!            no consequence      │  after a failed spin, the next (lost / 10 µs) waits sleep
//! ```
//!
//! Steps: [`SpinPolicy::should_spin`] decides whether this wait spins. After a spin the caller reports the result by
//! [`SpinPolicy::record_success`] or [`SpinPolicy::record_miss`].
//!
//! A successful spin for a read saves 20 µs, so (lost / 10 µs) is twice the number of successful reads that would
//! compensate the loss. Saved time absorbs rare losses: threads continue to spin if a spinning thread is preempted only
//! occasionally.
//!
//! Invariant: the balance stays between `-20 ms` (saved) and 1 s (lost). The balance is stored with an offset of 20 ms,
//! so the stored number is never negative.

use std::time::Duration;

use super::sync::{AtomicU32, AtomicU64, Ordering::Relaxed};

/// The longest time of a spin, unless the spinning thread is preempted.
pub const LONGEST: Duration = Duration::from_micros(300);
/// The time that a successful spin for a read saves, as measured on a virtual machine.
pub const READ_SAVED: Duration = Duration::from_micros(20);
/// The upper bound of the lost time.
const MOST_LOST: Duration = Duration::from_secs(1);
/// The upper bound of the saved time.
const MOST_SAVED: Duration = Duration::from_millis(20);

const _: () =
    assert!(READ_SAVED.as_nanos() < LONGEST.as_nanos(), "a failed spin loses more than a successful one saves");
const _: () = assert!(MOST_SAVED.as_nanos() < MOST_LOST.as_nanos(), "saved time never outweighs the greatest loss");
const _: () =
    assert!(2 * MOST_LOST.as_nanos() / READ_SAVED.as_nanos() <= u32::MAX as u128, "rests are counted by `u32`");

/// The history of one kind of wait, shared by all threads that have such waits. If two threads update a field at the
/// same time, one of the updates may be lost. Such a loss does no harm.
#[derive(Debug)]
pub struct SpinPolicy {
    /// The number of waits that will sleep before a thread spins again.
    rests: AtomicU32,
    /// In nanoseconds: [`MOST_SAVED`] plus the lost time minus the saved time. Never negative.
    balance: AtomicU64,
}

impl Default for SpinPolicy {
    fn default() -> SpinPolicy {
        SpinPolicy { rests: AtomicU32::new(0), balance: AtomicU64::new(nanos(MOST_SAVED)) }
    }
}

impl SpinPolicy {
    /// Whether the next wait would spin. This call changes no state.
    pub fn is_enabled(&self) -> bool {
        self.rests.load(Relaxed) == 0
    }

    /// Whether this wait should spin; otherwise the caller sleeps. A result of `false` counts as one of the waits that
    /// sleep.
    pub fn should_spin(&self) -> bool {
        let rests = self.rests.load(Relaxed);
        if rests > 0 {
            self.rests.store(rests - 1, Relaxed);
        }
        rests == 0
    }

    /// Records a successful spin that saved the time `saved` compared with sleeping, by the caller's estimate.
    pub fn record_success(&self, saved: Duration) {
        let balance = self.balance.load(Relaxed);
        if balance > 0 {
            self.balance.store(balance.saturating_sub(nanos(saved)), Relaxed);
        }
    }

    /// Records a failed spin that took the time `lost`: the wait was too long, or the thread was preempted.
    pub fn record_miss(&self, lost: Duration) {
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

    /// Simulates one wait for each of `reads` reads. The n-th wait that spins takes `took(n)`. Returns the number of
    /// waits that spun.
    fn watched(patience: &SpinPolicy, reads: u32, took: impl Fn(u32) -> Duration) -> u32 {
        let mut watched = 0;
        for _ in 0..reads {
            if patience.should_spin() {
                watched += 1;
                match took(watched) {
                    long if long >= LONGEST => patience.record_miss(long),
                    _ => patience.record_success(READ_SAVED),
                }
            }
        }
        watched
    }

    #[test]
    fn reads_of_a_fast_disk_spin_in_spite_of_rare_outliers() {
        let patience = SpinPolicy::default();
        let hiccup = |read| Duration::from_micros(if read % 1000 == 0 { 10_000 } else { 50 });
        assert_eq!(watched(&patience, 100_000, hiccup), 100_000);
    }

    #[test]
    fn reads_of_a_slow_disk_sleep() {
        let patience = SpinPolicy::default();
        assert!(watched(&patience, 100_000, |_| LONGEST) < 100);
    }

    #[test]
    fn preempted_spins_become_rare_and_spinning_resumes_when_the_core_is_free() {
        let patience = SpinPolicy::default();
        // Simulate a shared core: a thread that has spun for a whole time slice is preempted for the next time slice.
        let shared = |read| Duration::from_micros(if read % 80 == 0 { 4000 } else { 50 });
        assert!(watched(&patience, 100_000, shared) < 5_000);
        watched(&patience, 100_000, |_| Duration::from_micros(50));
        assert_eq!(watched(&patience, 1_000, |_| Duration::from_micros(50)), 1_000);
    }

    #[test]
    fn lost_and_saved_time_are_bounded() {
        let patience = SpinPolicy::default();
        patience.record_miss(Duration::from_secs(1 << 40));
        let rests = 2 * (MOST_LOST.as_micros() / READ_SAVED.as_micros()) as u32;
        assert_eq!(watched(&patience, rests, |_| LONGEST), 0);
        assert!(patience.is_enabled());
        patience.record_success(Duration::from_secs(1 << 40));
        patience.record_miss(MOST_SAVED);
        assert!(patience.is_enabled(), "the saved time covers the loss");
        patience.record_miss(LONGEST);
        assert!(!patience.is_enabled());
    }
}
