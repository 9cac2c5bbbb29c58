//! The latch of a node: one word that lets readers read without writing anything, and lets writers in one by one.
//!
//! ```text
//!   word     | version, 62 bits | claimed | locked |
//!
//!   reader   v = read() ─▶ loads ─▶ is_still(v)?   no: what was loaded is worth nothing, again from the root
//!   writer   v = read() ─▶ loads ─▶ lock(v)?       no: as above; yes: what was loaded holds, and nobody else may store
//!   split    v = read() ─▶ claim(v) ─▶ builds the other half while readers go on ─▶ lock ─▶ stores
//! ```
//!
//! A *claim* keeps other writers out and readers in (002 §3.6.2, §3.6.1). Letting go of a lock makes a new version; of a
//! claim that was never locked, none. Everybody tries and nobody waits with a latch in hand, so there is no deadlock:
//! who fails lets go of what he has and begins again.
//!
//! What a latch guards are atomics, stored with `Release` under the lock and loaded with `Acquire` by readers. Thus whoever
//! loads a value that was stored under a lock also sees the word locked, or a later version, when it validates: optimistic
//! reads need no fence, and no value is ever torn.
//!
//! Source: 002 §3.6.2; Leis, Haubenschild, Neumann, *Optimistic Lock Coupling*, 2019.

use crate::base::SeededBug;
use crate::base::sync::{AtomicU64, Ordering, relax};

const LOCKED: u64 = 1;
const CLAIMED: u64 = 2;
/// One version.
const STEP: u64 = 4;

/// A state of a node between two changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Version(u64);

/// See the module's documentation.
#[derive(Debug)]
pub(super) struct Latch(AtomicU64);

impl Latch {
    /// Nobody holds it.
    pub(super) fn new() -> Latch {
        Latch(AtomicU64::new(0))
    }

    /// The version now; waits while the latch is locked, which is for tens of nanoseconds.
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

    /// Whether nothing has changed since `version`: then what was loaded meanwhile belongs together.
    #[inline]
    pub(super) fn is_still(&self, version: Version) -> bool {
        self.0.load(Ordering::Acquire) & !CLAIMED == version.0 || SeededBug::ChangedNodeTrusted.is_on()
    }

    /// Takes the latch, if nothing has changed since `version` and nobody else has it.
    #[inline]
    pub(super) fn lock(&self, version: Version) -> Option<Locked<'_>> {
        let taken = self.0.compare_exchange(version.0, version.0 | LOCKED, Ordering::Acquire, Ordering::Relaxed);
        // Made only now: a guard that is made in vain would let go of another's latch.
        taken.is_ok().then(|| Locked { latch: self, version })
    }

    /// As [`Latch::lock`], but readers go on.
    pub(super) fn claim(&self, version: Version) -> Option<Claimed<'_>> {
        let taken = self.0.compare_exchange(version.0, version.0 | CLAIMED, Ordering::Acquire, Ordering::Relaxed);
        taken.is_ok().then(|| Claimed { latch: self, version })
    }
}

/// The right to store into a node; dropped, it makes a new version.
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

/// The right to lock a node later; dropped, it leaves everything as it was.
#[derive(Debug)]
#[must_use]
pub(super) struct Claimed<'a> {
    latch: &'a Latch,
    version: Version,
}

impl<'a> Claimed<'a> {
    /// Keeps readers out, too.
    pub(super) fn lock(self) -> Locked<'a> {
        let (latch, version) = (self.latch, self.version);
        std::mem::forget(self);
        if !SeededBug::SplitWhileRead.is_on() {
            latch.0.store(version.0 | LOCKED, Ordering::Relaxed);
        }
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
    fn a_claim_lets_readers_in_and_a_lock_makes_a_version() {
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
