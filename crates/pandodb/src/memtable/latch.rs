//! The latch of a node: one word that readers use for optimistic validation and writers use to exclude each other.
//!
//! ```text
//!   word     | version, 62 bits | claimed | locked |
//!
//!   reader   v = read() ─▶ loads ─▶ is_still(v)?   no: discard the loaded values, restart from the root
//!   writer   v = read() ─▶ loads ─▶ lock(v)?       no: as above; yes: the values are valid, no other thread stores
//!   split    v = read() ─▶ claim(v) ─▶ builds the right half while readers continue ─▶ lock ─▶ stores
//! ```
//!
//! A *claim* excludes other writers but not readers (002 §3.6.2, §3.6.1). The release of a lock makes a new version.
//! The release of a claim that was not turned into a lock makes no new version. A thread only tries to take a latch. If
//! it fails, it releases the latches that it holds and restarts. A thread never waits while it holds a latch, so there
//! is no deadlock.
//!
//! The guarded data are atomics, stored with `Release` under the lock and loaded with `Acquire` by readers. So if a
//! reader has loaded a value that was stored under a lock, its later validation sees that the latch is locked or has a
//! newer version. Optimistic reads therefore need no fence, and no value is ever torn.
//!
//! Source: 002 §3.6.2; Leis, Haubenschild, Neumann, *Optimistic Lock Coupling*, 2019.

use crate::base::sync::{AtomicU64, Ordering, relax};
use crate::base::{SeededBug, seeded};

const LOCKED: u64 = 1;
const CLAIMED: u64 = 2;
/// The difference between two successive versions.
const STEP: u64 = 4;

const _: () = assert!(STEP.is_power_of_two() && LOCKED | CLAIMED == STEP - 1, "versions lie above the state bits");

/// The state of a node between two changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Version(u64);

/// The latch of a node; see the module documentation.
#[derive(Debug)]
pub(super) struct Latch(AtomicU64);

impl Latch {
    /// Creates a free latch.
    pub(super) fn new() -> Latch {
        Latch(AtomicU64::new(0))
    }

    /// The current version. Spins while the latch is locked. A latch is usually locked for tens of nanoseconds.
    #[inline]
    pub(super) fn read(&self) -> Version {
        let mut turn = 0;
        loop {
            let word = self.0.load(Ordering::Acquire);
            if word & LOCKED == 0 {
                return Version(word & !CLAIMED);
            }
            relax(turn);
            turn += 1;
        }
    }

    /// Whether the node has not changed since `version`. If so, the values that were loaded since then are consistent.
    #[inline]
    pub(super) fn is_still(&self, version: Version) -> bool {
        self.0.load(Ordering::Acquire) & !CLAIMED == version.0 || SeededBug::ChangedNodeTrusted.is_on()
    }

    /// Locks the latch if the node has not changed since `version` and no other thread has locked or claimed the latch.
    #[inline]
    pub(super) fn lock(&self, version: Version) -> Option<Locked<'_>> {
        debug_assert!(version.0.is_multiple_of(STEP), "a version has no state bits");
        let taken = self.0.compare_exchange(version.0, version.0 | LOCKED, Ordering::Acquire, Ordering::Relaxed);
        // Create the guard only on success. After a failure, dropping a guard would release another thread's latch.
        taken.is_ok().then(|| Locked { latch: self, version })
    }

    /// Claims the latch, under the same conditions as [`Latch::lock`]. Readers may continue.
    pub(super) fn claim(&self, version: Version) -> Option<Claimed<'_>> {
        debug_assert!(version.0.is_multiple_of(STEP), "a version has no state bits");
        let taken = self.0.compare_exchange(version.0, version.0 | CLAIMED, Ordering::Acquire, Ordering::Relaxed);
        taken.is_ok().then(|| Claimed { latch: self, version })
    }
}

/// The right to store into a node; dropping it makes a new version.
#[derive(Debug)]
#[must_use]
pub(super) struct Locked<'a> {
    latch: &'a Latch,
    version: Version,
}

impl Drop for Locked<'_> {
    #[inline]
    fn drop(&mut self) {
        self.latch.0.store(self.version.0.wrapping_add(STEP), Ordering::Release);
    }
}

/// The right to lock a node later; dropping it leaves the version as it was.
#[derive(Debug)]
#[must_use]
pub(super) struct Claimed<'a> {
    latch: &'a Latch,
    version: Version,
}

impl<'a> Claimed<'a> {
    /// Turns the claim into a lock, which also excludes readers.
    pub(super) fn lock(self) -> Locked<'a> {
        let (latch, version) = (self.latch, self.version);
        std::mem::forget(self);
        latch.0.store(version.0 | seeded!(SplitWhileRead: CLAIMED, LOCKED), Ordering::Relaxed);
        Locked { latch, version }
    }
}

impl Drop for Claimed<'_> {
    fn drop(&mut self) {
        self.latch.0.store(self.version.0, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_claim_admits_readers_and_a_lock_makes_a_new_version() {
        let latch = Latch::new();
        let first = latch.read();
        let claimed = latch.claim(first).expect("free");
        assert!(latch.read() == first && latch.is_still(first));
        assert!(latch.claim(first).is_none() && latch.lock(first).is_none());
        drop(claimed);
        let claimed = latch.claim(first).expect("as it was");
        let locked = claimed.lock();
        assert!(!latch.is_still(first) && latch.lock(first).is_none());
        drop(locked);
        let second = latch.read();
        assert!(first != second && !latch.is_still(first) && latch.is_still(second));
        assert!(latch.lock(first).is_none());
        drop(latch.lock(second).expect("free"));
        assert!(!latch.is_still(second));
    }
}
