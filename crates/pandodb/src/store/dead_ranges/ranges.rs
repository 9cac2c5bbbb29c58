//! [`Ranges`] are the dead ranges themselves: disjoint ranges of keys, each with the seqno since which it is dead.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::ops::Bound::{Excluded, Included, Unbounded};
use std::sync::Arc;

use crate::base::range::successor;
use crate::base::sync::{AtomicBool, AtomicUsize, Ordering::Relaxed};
use crate::base::{KeyRange, SeededBug, Seqno};

/// At most this many ranges stay apart although they are adjacent.
const MOST_ADJACENT: usize = 16;
/// The memory of a range besides its bounds, about.
const RANGE_BYTES: usize = 96;

/// The memory that the dead ranges of all keyspaces of a store may take.
#[derive(Debug)]
pub(crate) struct Allowance {
    used: AtomicUsize,
    most: usize,
    /// Whether a range was not learned for lack of memory since [`Allowance::was_refused`] was last called.
    refused: AtomicBool,
}

impl Allowance {
    /// `most` is in bytes.
    pub(crate) fn new(most: usize) -> Allowance {
        Allowance { used: AtomicUsize::new(0), most, refused: AtomicBool::new(false) }
    }

    /// Whether some keyspace lacked memory since the last call. Then unused ranges of all keyspaces should be dropped.
    pub(crate) fn was_refused(&self) -> bool {
        self.refused.load(Relaxed) && self.refused.swap(false, Relaxed)
    }

    #[cfg(test)]
    pub(super) fn used(&self) -> usize {
        self.used.load(Relaxed)
    }

    fn has_room(&self, bytes: usize) -> bool {
        self.used.load(Relaxed) + bytes < self.most
    }
}

/// Disjoint ranges of keys without a value. None is empty.
#[derive(Debug)]
pub(super) struct Ranges {
    by_from: BTreeMap<Vec<u8>, Dead>,
    bytes: usize,
    allowance: Arc<Allowance>,
}

/// A dead range without its lower bound.
#[derive(Debug)]
struct Dead {
    /// The upper bound, exclusive. Empty if the range has no end.
    to: Vec<u8>,
    since: Seqno,
    /// Whether a scan has used the range lately.
    is_used: bool,
}

/// The answer to a scan that asks for a dead range at its position.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Skip {
    /// A dead range includes the position, and ends at this bound: its upper bound for a forward scan, its lower bound
    /// for a backward scan. An empty bound means that no key with a value follows.
    To(Vec<u8>),
    /// There is no dead range before this bound. `None`: no dead range follows.
    NoneBefore(Option<Vec<u8>>),
}

impl Dead {
    fn is_above(&self, key: &[u8]) -> bool {
        self.to.is_empty() || key < self.to.as_slice()
    }
}

impl Ranges {
    pub(super) fn new(allowance: Arc<Allowance>) -> Ranges {
        Ranges { by_from: BTreeMap::new(), bytes: 0, allowance }
    }

    pub(super) fn len(&self) -> usize {
        self.by_from.len()
    }

    pub(super) fn includes(&mut self, key: &[u8]) -> bool {
        self.at(key).is_some()
    }

    fn add(&mut self, from: Vec<u8>, dead: Dead) {
        debug_assert!(dead.to.is_empty() || from < dead.to, "a dead range is not empty");
        let bytes = RANGE_BYTES + from.len() + dead.to.len();
        self.bytes += bytes;
        self.allowance.used.fetch_add(bytes, Relaxed);
        let before = self.by_from.insert(from, dead);
        assert!(before.is_none(), "dead ranges are disjoint");
    }

    fn remove(&mut self, from: &[u8]) -> Option<(Vec<u8>, Dead)> {
        let (from, dead) = self.by_from.remove_entry(from)?;
        let bytes = RANGE_BYTES + from.len() + dead.to.len();
        assert!(bytes <= self.bytes, "a range that is removed was counted");
        self.bytes -= bytes;
        self.allowance.used.fetch_sub(bytes, Relaxed);
        Some((from, dead))
    }

    /// The lower bound of the last range that begins below `to`. An empty `to` is above every key.
    fn last_below(&self, to: &[u8]) -> Option<&Vec<u8>> {
        let mut below = match to {
            [] => self.by_from.range::<[u8], _>(..),
            to => self.by_from.range::<[u8], _>((Unbounded, Excluded(to))),
        };
        below.next_back().map(|(from, _)| from)
    }

    /// Searches for a dead range at a position of a scan, see [`DeadRanges::skip`](super::DeadRanges::skip).
    pub(super) fn skip(&mut self, position: &[u8], reverse: bool, at: Seqno) -> Skip {
        let mut position = Cow::Borrowed(position);
        let mut found = false;
        // Pass all adjacent ranges at once.
        while let Some((from, dead)) = if reverse { self.before(&position) } else { self.at(&position) } {
            if dead.since > at && !SeededBug::DeadRangeTooNew.is_on() {
                break;
            }
            dead.is_used = true;
            found = true;
            position = if reverse { from.clone() } else { dead.to.clone() }.into();
            if position.is_empty() {
                break;
            }
        }
        if found {
            return Skip::To(position.into_owned());
        }
        Skip::NoneBefore(if reverse {
            let below = self.last_below(&position).map(|from| (from, &self.by_from[from]));
            below.map(|(from, dead)| {
                let reaches = dead.to.is_empty() || !position.is_empty() && *position <= *dead.to;
                if reaches { from.clone() } else { dead.to.clone() }
            })
        } else {
            let next = self.by_from.range::<[u8], _>((Excluded(&*position), Unbounded)).next();
            next.map(|(from, _)| from.clone())
        })
    }

    /// Records that no key of `learned` has a value from `since` on, unless the memory is used up. What older ranges say
    /// stays as it is, so that scans with older read points still find them. `oldest` is the oldest registered read
    /// point.
    pub(super) fn learn(&mut self, learned: &KeyRange, since: Seqno, oldest: Seqno) {
        debug_assert!(!learned.is_empty(), "a dead range is not empty");
        let bytes = RANGE_BYTES + learned.from.len() + learned.to.len();
        // One range with long bounds should not take the memory of many others.
        if bytes > self.allowance.most / 4 {
            return;
        }
        if !self.allowance.has_room(bytes) {
            self.drop_unused();
        }
        if !self.allowance.has_room(bytes) {
            self.allowance.refused.store(true, Relaxed);
            return;
        }
        let known: Vec<(KeyRange, Seqno)> = self.overlapping(learned);
        for (range, _) in known.iter().filter(|(_, other)| *other > since) {
            self.cut(&range.intersect(learned));
        }
        // The parts of `learned` between the ranges that are at least as old.
        let mut from = learned.from.clone();
        let dead = |to: Vec<u8>| Dead { to, since, is_used: true };
        for (range, _) in known.iter().filter(|(_, other)| *other <= since) {
            if from < range.from {
                self.add(from.clone(), dead(range.from.clone()));
            }
            if range.to.is_empty() {
                return self.join_around(learned, oldest);
            }
            from.clone_from(&range.to);
        }
        if learned.is_above(&from) {
            self.add(from, dead(learned.to.clone()));
        }
        self.join_around(learned, oldest);
    }

    /// The ranges that overlap `range`, in ascending order.
    fn overlapping(&self, range: &KeyRange) -> Vec<(KeyRange, Seqno)> {
        let first = self.last_below(&successor(&range.from)).unwrap_or(&range.from);
        let all = self.by_from.range::<[u8], _>((Included(first.as_slice()), Unbounded));
        all.take_while(|(from, _)| range.is_above(from))
            .map(|(from, dead)| (KeyRange::new(&**from, &*dead.to), dead.since))
            .filter(|(other, _)| other.overlaps(range))
            .collect()
    }

    /// Joins adjacent ranges around `range`. Two ranges become one with the higher of both seqnos. Scans with lower read
    /// points can then no longer use the other range, so ranges with a seqno above the oldest read point are left apart,
    /// unless they are many.
    fn join_around(&mut self, range: &KeyRange, oldest: Seqno) {
        let mut chain = self.chain_around(range);
        let mut most = oldest;
        while chain.len() > 1 {
            let mut i = 0;
            while i + 1 < chain.len() {
                let younger = chain[i].1.max(chain[i + 1].1);
                if younger > most {
                    i += 1;
                    continue;
                }
                let (left, right) = (chain.remove(i), &mut chain[i]);
                let (_, removed) = self.remove(&right.0).expect("the range is known");
                let (from, first) = self.remove(&left.0).expect("the range is known");
                debug_assert!(first.to == right.0, "joined ranges are adjacent");
                let is_used = first.is_used || removed.is_used;
                *right = (from.clone(), younger);
                self.add(from, Dead { to: removed.to, since: younger, is_used });
            }
            if chain.len() <= MOST_ADJACENT {
                break;
            }
            // Too many: join the older half, too. Each round joins at least the oldest pair that is left.
            let mut ages: Vec<Seqno> = chain.iter().map(|(_, since)| *since).collect();
            ages.sort_unstable();
            let middle = ages[ages.len() / 2];
            most = if middle > most { middle } else { Seqno::MAX };
        }
    }

    /// The lower bounds and seqnos of the adjacent ranges that `range` overlaps or touches, in ascending order.
    fn chain_around(&self, range: &KeyRange) -> Vec<(Vec<u8>, Seqno)> {
        let mut chain = Vec::new();
        let up_to = if range.to.is_empty() { Vec::new() } else { successor(&range.to) };
        let mut to = None;
        let mut at = self.last_below(&up_to).cloned();
        // From the last one down, as long as each ends where the one above it begins.
        while let Some(from) = at {
            let dead = &self.by_from[&from];
            let is_adjacent = to.as_ref().is_none_or(|to| dead.to == *to);
            if !is_adjacent && !dead.is_above(&range.from) {
                break;
            }
            if !is_adjacent {
                chain.clear();
            }
            chain.push((from.clone(), dead.since));
            at = if from.is_empty() { None } else { self.last_below(&from).cloned() };
            to = Some(from);
        }
        chain.reverse();
        chain
    }

    /// Removes the keys of `range` from all dead ranges.
    pub(super) fn cut(&mut self, range: &KeyRange) {
        while let Some(from) = self.last_below(&range.to).cloned() {
            if !self.by_from[&from].is_above(&range.from) {
                break;
            }
            let (from, dead) = self.remove(&from).expect("the range was found");
            let Dead { to, since, is_used } = dead;
            let has_rest = !range.to.is_empty() && (to.is_empty() || range.to < to);
            if has_rest && self.allowance.has_room(0) {
                self.add(range.to.clone(), Dead { to, since, is_used });
            }
            if from < range.from {
                self.add(from, Dead { to: range.from.clone(), since, is_used });
                break;
            }
        }
    }

    /// The range that includes the key or bound `position`, with its lower bound.
    fn at(&mut self, position: &[u8]) -> Option<(&Vec<u8>, &mut Dead)> {
        let found = self.by_from.range_mut::<[u8], _>((Unbounded, Included(position))).next_back();
        found.filter(|(_, dead)| dead.is_above(position))
    }

    /// The range that includes the keys directly below `position`, with its lower bound. An empty position is above
    /// every key.
    fn before(&mut self, position: &[u8]) -> Option<(&Vec<u8>, &mut Dead)> {
        let found = match position {
            [] => self.by_from.iter_mut().next_back(),
            position => self.by_from.range_mut::<[u8], _>((Unbounded, Excluded(position))).next_back(),
        };
        found.filter(|(_, dead)| dead.to.is_empty() || !position.is_empty() && position <= dead.to.as_slice())
    }

    /// Drops the ranges that no scan has used since the last call.
    pub(super) fn drop_unused(&mut self) {
        let unused: Vec<Vec<u8>> =
            self.by_from.iter().filter(|(_, dead)| !dead.is_used).map(|(from, _)| from.clone()).collect();
        for from in &unused {
            self.remove(from);
        }
        self.by_from.values_mut().for_each(|dead| dead.is_used = false);
    }

    pub(super) fn check(&self) {
        debug_assert!(
            self.by_from
                .values()
                .zip(self.by_from.keys().skip(1))
                .all(|(dead, next)| !dead.to.is_empty() && dead.to <= *next),
            "dead ranges are disjoint"
        );
    }

    /// The ranges and their seqnos, in ascending order.
    #[cfg(test)]
    pub(super) fn all(&self) -> Vec<(KeyRange, Seqno)> {
        self.by_from.iter().map(|(from, dead)| (KeyRange::new(&**from, &*dead.to), dead.since)).collect()
    }
}

impl Drop for Ranges {
    fn drop(&mut self) {
        self.allowance.used.fetch_sub(self.bytes, Relaxed);
    }
}
