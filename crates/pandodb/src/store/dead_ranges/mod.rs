//! [`DeadRanges`] remembers ranges of keys in which no key has a value, so that scans skip the tombstones in them.
//!
//! ```text
//!   keys       a† b† c† d† … p† q    r    s†           †: the newest message of the key is a tombstone
//!   dead       [ "" ────────── q)                     a scan that begins at "a" seeks to "q" at once
//! ```
//!
//! The case that needs this is a queue: jobs are taken and deleted at its head, and a search for the next job passes
//! the tombstones of all earlier jobs, again and again.
//!
//! 1. A scan that passes many keys without a value *learns* the range of these keys ([`Watch::learn`]). The range ends
//!    at the next key that has a value, or at the end of the scan.
//! 2. Other scans ask for the dead range at their position ([`DeadRanges::skip`]), and continue behind it.
//! 3. A write that may give a key a value cuts the key out of its dead range ([`DeadRanges::revive`]). Deletes cut
//!    nothing.
//!
//! **A dead range has a seqno, `since`.** No key of the range has a value at this seqno, nor at any later seqno that is
//! visible while the range is known. Only scans with a read point that is registered and not below `since` use it.
//!
//! **No write is overlooked.** A write first inserts its message, then calls `revive`, and only then becomes visible. So
//! a scan whose read point includes the write finds the range cut. A range is learned only through a [`Watch`], which
//! the scan starts *before* it pins its memtables and its view. A `revive` that comes after the start of the watch is
//! noted in the watch, and the learned range ends before the noted key. A write that called `revive` before the start
//! had inserted its message before the scan pinned anything. So the scan meets this message, even if it is newer than
//! its read point, and learns no range that includes its key.
//!
//! Scans do not watch before one of them has passed many keys without a value, and stop watching after [`INTEREST`]
//! scans that have not. So other keyspaces pay for this with one fence and one load for each write.
//!
//! Adjacent ranges are joined. The seqno of the joined range is the highest of its parts, so scans with lower read points
//! can no longer use the other parts. Therefore ranges are joined only if their seqnos are not above the oldest registered
//! read point, except that at most a few adjacent ranges are left apart.
//!
//! Invariants: the ranges of a keyspace are disjoint and not empty; their bytes are counted in the [`Allowance`] that
//! all keyspaces of the store share. The ranges are in memory only. Locks: only `known`, under which no other lock is
//! taken.

mod ranges;

use std::sync::Arc;

use self::ranges::Ranges;
pub(crate) use self::ranges::{Allowance, Skip};
use crate::base::range::successor;
use crate::base::sync::{
    AtomicU32, AtomicUsize, EXPLORED, Mutex,
    Ordering::{Relaxed, SeqCst},
    fence,
};
use crate::base::{KeyRange, SeededBug, Seqno, seeded};

/// Whether a scan that has passed `passed` keys without a value, and has also skipped a dead range if `joins`, should
/// learn their range.
pub(crate) fn is_worth_learning(passed: u32, joins: bool) -> bool {
    passed >= LONG || joins && passed >= EXTENSION
}

/// A scan that passes at least this many keys without a value learns their range. A shorter range saves less than a
/// seek costs. Builds with assertions learn shorter ranges, so that the short histories of tests reach this code.
const LONG: u32 = if EXPLORED {
    1
} else if cfg!(debug_assertions) {
    4
} else {
    32
};
/// A scan that skipped a dead range and then passed at least this many further keys extends the range.
const EXTENSION: u32 = if EXPLORED { 1 } else { 8 };
/// The number of scans that watch after a scan that found a long range.
const INTEREST: u32 = 1 << 10;
/// After this many writes, ranges that no scan has used in the meantime are dropped, so that a keyspace that is no
/// longer scanned does not pay for them forever.
const WRITES: u32 = 1 << 20;

/// The dead ranges of a keyspace.
#[derive(Debug)]
pub(crate) struct DeadRanges {
    /// The number of ranges and watches. If it is 0, a write has nothing to do.
    len: AtomicUsize,
    /// The number of scans that will still watch.
    interest: AtomicU32,
    known: Mutex<Known>,
}

/// The state that the lock guards.
#[derive(Debug)]
struct Known {
    ranges: Ranges,
    watches: Vec<Option<Watched>>,
    /// The number of writes since unused ranges were last dropped.
    writes: u32,
}

/// What a [`Watch`] observes.
#[derive(Debug)]
struct Watched {
    range: KeyRange,
    reverse: bool,
    /// Of the keys in `range` that were revived, the first one in the direction of the scan.
    nearest: Option<Vec<u8>>,
}

impl Watched {
    /// Notes that keys of `range` were revived.
    fn note(&mut self, range: &KeyRange) {
        if !self.range.overlaps(range) {
            return;
        }
        let both = self.range.intersect(range);
        let key = if self.reverse { last_of(&both) } else { both.from };
        let is_nearer = |nearest: &Vec<u8>| if self.reverse { key > *nearest } else { key < *nearest };
        if self.nearest.as_ref().is_none_or(is_nearer) {
            self.nearest = Some(key);
        }
    }
}

impl Known {
    fn len(&self) -> usize {
        self.ranges.len() + self.watches.iter().flatten().count()
    }

    /// Counts a write. Now and then drops the ranges that were not used in the meantime.
    fn count_write(&mut self) {
        self.writes += 1;
        if self.writes >= WRITES {
            self.writes = 0;
            self.ranges.drop_unused();
        }
    }
}

impl DeadRanges {
    pub(crate) fn new(allowance: Arc<Allowance>) -> DeadRanges {
        // An explorer tries few scans, so each of them watches.
        let interest = if EXPLORED { INTEREST } else { 0 };
        let known = Known { ranges: Ranges::new(allowance), watches: Vec::new(), writes: 0 };
        DeadRanges { len: AtomicUsize::new(0), interest: AtomicU32::new(interest), known: Mutex::new(known) }
    }

    /// Called for each message that may give `key` a value, after the message was inserted and before it is visible.
    #[inline]
    pub(crate) fn revive(&self, key: &[u8]) {
        // Pairs with the fence in `watch`: either this load finds the watch, or the watching scan, which pins its
        // memtables later, finds the message.
        fence(SeqCst);
        if self.len.load(Relaxed) > 0 && !SeededBug::DeadRangeNotCut.is_on() {
            self.revive_known(key);
        }
    }

    fn revive_known(&self, key: &[u8]) {
        let mut known = self.known.lock();
        let is_watched = known.watches.iter().flatten().any(|watched| watched.range.contains(key));
        if is_watched || known.ranges.includes(key) {
            drop(known);
            self.revive_range(&KeyRange::point(key));
        } else {
            known.count_write();
        }
    }

    /// Like [`DeadRanges::revive`], for keys that were written without passing the memtables.
    pub(crate) fn revive_range(&self, range: &KeyRange) {
        assert!(!range.is_empty() && !range.to.is_empty(), "some keys were written, and one of them is the last one");
        let mut known = self.known.lock();
        known.watches.iter_mut().flatten().for_each(|watched| watched.note(range));
        known.ranges.cut(range);
        known.count_write();
        self.publish(&known);
    }

    /// Called by a scan for which `key` has no value, if a message after its read point gives the key a value. The
    /// message may have been inserted before the start of a watch, and become visible later. So it is noted now.
    pub(crate) fn note(&self, key: &[u8]) {
        if self.len.load(Relaxed) > 0 {
            let key = KeyRange::point(key);
            self.known.lock().watches.iter_mut().flatten().for_each(|watched| watched.note(&key));
        }
    }

    /// Searches for a dead range at a position of a scan with the registered read point `at`. A forward scan is before
    /// the first key that is not below `position`. A backward scan is after the last key below `position`; an empty
    /// position is after every key.
    pub(crate) fn skip(&self, position: &[u8], reverse: bool, at: Seqno) -> Skip {
        if self.len.load(Relaxed) == 0 {
            return Skip::NoneBefore(None);
        }
        self.known.lock().ranges.skip(position, reverse, at)
    }

    /// Starts a watch over `range` for a scan that may learn. Returns `None` if no scan has passed many dead keys
    /// lately. Call this before the scan pins what it reads.
    pub(crate) fn watch_if_useful(self: &Arc<Self>, range: &KeyRange, reverse: bool) -> Option<Watch> {
        let interest = self.interest.load(Relaxed);
        (interest > 0).then(|| {
            // Lost updates do not matter here.
            self.interest.store(interest - 1, Relaxed);
            self.watch(range, reverse)
        })
    }

    /// Starts a watch over `range`. Call this before pinning what is read under the watch.
    pub(crate) fn watch(self: &Arc<Self>, range: &KeyRange, reverse: bool) -> Watch {
        let mut known = self.known.lock();
        let watched = Some(Watched { range: range.clone(), reverse, nearest: None });
        let slot = match known.watches.iter().position(Option::is_none) {
            Some(slot) => {
                known.watches[slot] = watched;
                slot
            }
            None => {
                known.watches.push(watched);
                known.watches.len() - 1
            }
        };
        self.publish(&known);
        drop(known);
        fence(SeqCst);
        Watch { of: self.clone(), slot }
    }

    /// Drops the ranges that no scan has used since the last call.
    pub(crate) fn drop_unused(&self) {
        if self.len.load(Relaxed) > 0 {
            let mut known = self.known.lock();
            known.ranges.drop_unused();
            self.publish(&known);
        }
    }

    /// Called by a scan without a watch that has passed many keys without a value: later scans watch.
    pub(crate) fn ask_for_watches(&self) {
        self.interest.store(INTEREST, Relaxed);
    }

    fn publish(&self, known: &Known) {
        known.ranges.check();
        self.len.store(known.len(), Relaxed);
    }
}

impl Drop for DeadRanges {
    fn drop(&mut self) {
        let known = self.known.get_mut();
        debug_assert!(known.watches.iter().all(Option::is_none), "a watch keeps its ranges alive");
    }
}

/// A key that is not below any key of a bounded range: the key itself if the range has only one key, else its bound.
fn last_of(range: &KeyRange) -> Vec<u8> {
    match range.to.split_last() {
        Some((0, key)) if key == range.from => key.to_vec(),
        _ => range.to.clone(),
    }
}

/// A scan that may learn a dead range observes, through this watch, which keys are revived in the meantime.
#[derive(Debug)]
pub(crate) struct Watch {
    of: Arc<DeadRanges>,
    slot: usize,
}

impl Watch {
    /// Of the keys that were revived since the start of the watch, the first one in the direction of the scan.
    pub(crate) fn nearest(&self) -> Option<Vec<u8>> {
        self.of.known.lock().watches[self.slot].as_ref().and_then(|watched| watched.nearest.clone())
    }

    /// Restricts the watch to the keys of `range`, which must be in its range.
    pub(crate) fn narrow(&self, range: &KeyRange) {
        let mut known = self.of.known.lock();
        let watched = known.watches[self.slot].as_mut().expect("the watch has not ended");
        debug_assert!(watched.range.covers(range), "a watch cannot see what it did not observe");
        watched.range = range.clone();
    }

    /// Records that no key of `range` has a value at the read point `at`, and that no message with a higher seqno gives
    /// one. `oldest` is the oldest registered read point.
    pub(crate) fn learn(&self, mut range: KeyRange, at: Seqno, oldest: Seqno) {
        debug_assert!(oldest <= at, "the scan's own read point is registered");
        if range.is_empty() {
            return;
        }
        let DeadRanges { known, interest, .. } = &*self.of;
        interest.store(INTEREST, Relaxed);
        let mut known = known.lock();
        let watched = known.watches[self.slot].as_mut().expect("the watch has not ended");
        if !watched.range.covers(&range) {
            // The scan has gone back to keys behind its position, because the keys of a damaged store are out of order.
            return;
        }
        let reverse = watched.reverse;
        if let Some(nearest) = seeded!(DeadRangeUnwatched: None, watched.nearest.as_deref()) {
            // Keys behind `nearest` may have been revived, too.
            if reverse {
                range.from = range.from.max(successor(nearest));
            } else if range.is_above(nearest) {
                range.to = nearest.to_vec();
            }
        }
        if !range.is_empty() {
            // The scan will not learn the keys before its position again.
            watched.range = match (reverse, range.from.is_empty(), range.to.is_empty()) {
                (false, _, false) => KeyRange::new(&*range.to, &*watched.range.to),
                (true, false, _) => KeyRange::new(&*watched.range.from, &*range.from),
                // The scan is at its end.
                _ => KeyRange::none(),
            };
            known.ranges.learn(&range, at, oldest);
        }
        self.of.publish(&known);
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        let mut known = self.of.known.lock();
        known.watches[self.slot] = None;
        while known.watches.last().is_some_and(Option::is_none) {
            known.watches.pop();
        }
        self.of.publish(&known);
    }
}

#[cfg(test)]
mod tests;
