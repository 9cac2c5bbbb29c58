//! [`Cover`]: the range tombstones of several sources, as one scan sees them.
//!
//! ```text
//!   set 1     |---- 9 ----|                       The answer for `key` is the newest tombstone of all sets: 9.
//!   set 2           |------- 5 -------|           It holds for all keys of the intersection of the fragments of `key`:
//!                     key                         `within`, here from the start of 5 to the end of 9.
//! ```
//!
//! 1. A cover keeps the sets of its sources. Nothing is copied, merged or built when a scan opens, so the time to open
//!    a scan does not depend on the number of range tombstones.
//! 2. For the first key of a fragment, [`Cover::newest`] searches every set: O(log² n) for each set.
//! 3. The answer holds until the end of the shortest fragment, so the next keys cost one comparison of bounds.
//!
//! Invariants: `newest` is the newest tombstone at or below `at` for **every** key of `within`; the sets never change.

use std::sync::Arc;

use super::fragments::Fragments;
use super::ids::Seqno;
use super::range::KeyRange;
use super::seeded::seeded;

/// Finds the newest visible range tombstone over each key of a scan, in any order of keys; sorted order is the fastest.
#[derive(Clone, Debug)]
pub struct Cover {
    /// The sets, each with the seqno up to which its tombstones are visible.
    sets: Vec<(Arc<Fragments>, Seqno)>,
    /// The keys for which `newest` is the answer. `None` before the first search.
    within: Option<KeyRange>,
    newest: Seqno,
    /// The number of searches so far.
    searches: u64,
}

impl Cover {
    /// A cover by the tombstones of `sets` with a seqno of at most `at`. O(number of sets).
    pub fn new(sets: Vec<Arc<Fragments>>, at: Seqno) -> Cover {
        Cover::of(sets.into_iter().map(|set| (set, at)).collect())
    }

    /// A cover by sets, each with the seqno up to which its tombstones are visible. O(number of sets).
    pub fn of(mut sets: Vec<(Arc<Fragments>, Seqno)>) -> Cover {
        sets.retain(|(set, _)| !set.is_empty());
        // Without tombstones no key is searched.
        let within = sets.is_empty().then(KeyRange::all);
        Cover { sets, within, newest: Seqno(0), searches: 0 }
    }

    /// Whether there is no tombstone.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.sets.is_empty()
    }

    /// The seqno of the newest tombstone that covers `key`; 0 if there is none.
    #[inline]
    pub fn newest(&mut self, key: &[u8]) -> Seqno {
        let is_known =
            self.within.as_ref().is_some_and(|within| seeded!(CoverPastFragment: true, within.contains(key)));
        if !is_known {
            self.search(key);
        }
        self.newest
    }

    /// What [`Cover::newest`] found last: the keys for which it holds, the newest tombstone over them, and the number of
    /// the search that found them, by which a caller notices the next fragment. `None` if no tombstone covers the keys.
    pub fn found(&self) -> Option<(&KeyRange, Seqno, u64)> {
        let within = self.within.as_ref().filter(|_| self.newest > Seqno(0))?;
        Some((within, self.newest, self.searches))
    }

    fn search(&mut self, key: &[u8]) {
        self.searches += 1;
        let (mut from, mut to, mut newest) = (&[][..], &[][..], Seqno(0));
        for (set, at) in &self.sets {
            let (start, end, seqno) = set.around(key, *at);
            debug_assert!(seqno <= *at, "a tombstone that the scan does not see");
            from = from.max(start);
            if to.is_empty() || (!end.is_empty() && end < to) {
                to = end;
            }
            newest = newest.max(seqno);
        }
        // Reuse the memory of the former bounds.
        let mut within = self.within.take().unwrap_or_else(KeyRange::all);
        within.from.clear();
        within.from.extend_from_slice(from);
        within.to.clear();
        within.to.extend_from_slice(to);
        debug_assert!(within.contains(key), "the key is in the intersection of its fragments");
        (self.within, self.newest) = (Some(within), newest);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::{FragmentSet, RangeTombstone};
    use proptest::prelude::*;

    fn key() -> impl Strategy<Value = Vec<u8>> {
        prop::collection::vec(0u8..4, 0..4)
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(300))]
        #[test]
        fn a_cover_agrees_with_brute_force_in_every_order_of_keys(
            bounds in prop::collection::vec((key(), key()), 0..20),
            sets in 1usize..4,
            keys in prop::collection::vec(prop::collection::vec(0u8..4, 1..5), 1..40),
            at in 0u64..220,
        ) {
            let tombstones: Vec<RangeTombstone> = (1u64..)
                .zip(bounds)
                .map(|(i, (from, to))| RangeTombstone { range: KeyRange::new(from, to), seqno: Seqno(10 * i) })
                .collect();
            let mut growing = vec![FragmentSet::new(); sets];
            for (i, tombstone) in tombstones.iter().enumerate() {
                growing[i % sets].insert(tombstone);
            }
            let parts = growing.iter().flat_map(|set| set.sets().iter().cloned()).collect();
            let mut cover = Cover::new(parts, Seqno(at));
            let mut sorted = keys.clone();
            sorted.sort();
            let backward = sorted.iter().rev();
            for key in sorted.iter().chain(backward).chain(&keys) {
                let covering = tombstones.iter().filter(|t| t.seqno <= Seqno(at) && t.range.contains(key));
                let expect = covering.filter(|t| !t.range.is_empty()).map(|t| t.seqno).max().unwrap_or_default();
                prop_assert_eq!(cover.newest(key), expect, "{:?} in {:?}", key, cover.within);
                prop_assert_eq!(cover.found().is_some(), expect > Seqno(0));
                prop_assert!(cover.found().is_none_or(|(within, newest, _)| within.contains(key) && newest == expect));
            }
        }
    }

    #[test]
    fn keys_of_one_fragment_are_answered_by_one_search() {
        let tombstones = [("b", "f", 5), ("d", "h", 9)]
            .map(|(from, to, seqno)| RangeTombstone { range: KeyRange::new(from, to), seqno: Seqno(seqno) });
        let sets = tombstones.iter().map(|one| Arc::new(Fragments::build(std::slice::from_ref(one)))).collect();
        let mut cover = Cover::new(sets, Seqno(9));
        let expected: [(&[u8], u64, KeyRange); 5] = [
            (b"a", 0, KeyRange::new([], "b")),
            (b"c", 5, KeyRange::new("b", "d")),
            (b"d", 9, KeyRange::new("d", "f")),
            (b"g", 9, KeyRange::new("f", "h")),
            (b"x", 0, KeyRange::new("h", [])),
        ];
        for (key, newest, within) in expected {
            assert_eq!((cover.newest(key), cover.within.as_ref()), (Seqno(newest), Some(&within)), "{key:?}");
        }
        let mut none = Cover::new(vec![Arc::default()], Seqno(9));
        assert_eq!((none.newest(b"a"), none.within.as_ref()), (Seqno(0), Some(&KeyRange::all())), "no set is searched");
    }
}
