//! [`Fragments`]: range tombstones in a form in which the tombstones that cover a key are found quickly.
//!
//! The bounds of all tombstones cut the key space into *fragments*. Within one fragment every key is covered by the
//! same tombstones.
//!
//! ```text
//!   tombstones      9 |-------------------|           fragments        [a,c)  [c,f)  [f,k)  [k,∞)
//!                           5 |----------------|      their seqnos      9      9,5     5      –
//!                     a       c           f    k
//! ```
//!
//! Storing the seqnos of all covering tombstones with each fragment would need quadratic memory if ranges are nested.
//! For example, a queue that deletes `..t` for an ever larger `t` has n tombstones over its first fragment, n − 1 over
//! the second, and so on. So the fragments are the leaves of a segment tree. A tombstone is recorded at the O(log n)
//! nodes whose spans together equal its range:
//!
//! 1. [`Fragments::build`] sorts the bounds, numbers them, walks the tombstones newest first and appends each seqno to
//!    the lists of its nodes. Time and memory are O(n log n). If all ranges are disjoint, each tombstone has one node.
//! 2. [`Fragments::covering`] finds the key's fragment by binary search and climbs from the leaf of this fragment to
//!    the root. In the list of each node on this path it searches for the newest seqno at or below the read point. The
//!    time is O(log² n).
//!
//! Invariants: bounds are sorted and distinct; every list is newest first; the lists on the path from a leaf to the
//! root hold exactly the tombstones that cover the fragment of the leaf. (A seqno occurs twice if the input has
//! overlapping pieces of one clipped tombstone.)
//!
//! [`FragmentSweep`] caches the result for the last fragment, which saves searches if keys are looked up in order.
//! [`FragmentSet`] accepts insertions. [`Cover`](super::Cover) asks several sets at once.
//!
//! Source: the segment tree (Bentley, "Solutions to Klee's rectangle problems", 1977), stored bottom-up in an array.

use std::sync::Arc;

use super::ids::Seqno;
use super::message::RangeTombstone;
use super::range::KeyRange;

/// The value of [`Span::to`] that means "above all keys".
const UNBOUNDED: u32 = u32::MAX;

/// A tombstone, with the numbers of its bounds instead of the bounds.
#[derive(Clone, Copy, Debug)]
struct Span {
    from: u32,
    /// [`UNBOUNDED`], or the number of the bound at which the range ends (exclusive).
    to: u32,
    seqno: Seqno,
}

/// An immutable set of range tombstones.
#[derive(Clone, Debug, Default)]
pub struct Fragments {
    /// The distinct bounds in ascending order, concatenated.
    bytes: Vec<u8>,
    /// The end of each bound in `bytes`.
    ends: Vec<usize>,
    /// The tombstones, newest first.
    spans: Vec<Span>,
    /// Node `v` of the segment tree has the list `seqnos[starts[v]..starts[v + 1]]`. If there are `m` fragments,
    /// fragment `i` is the leaf `m + i`; the parent of `v` is `v / 2`; node 0 is not used.
    starts: Vec<u32>,
    seqnos: Vec<Seqno>,
}

impl Fragments {
    /// Builds the set from `tombstones` in any order. Empty ranges are ignored, and duplicates are kept once. O(n log
    /// n).
    pub fn build(tombstones: &[RangeTombstone]) -> Fragments {
        Fragments::build_from(tombstones)
    }

    /// As [`Fragments::build`], for tombstones that are not in one slice.
    pub fn build_from<'a>(tombstones: impl IntoIterator<Item = &'a RangeTombstone>) -> Fragments {
        let parts = tombstones.into_iter().map(|t| (&t.range.from[..], &t.range.to[..], t.seqno));
        Fragments::from_parts(parts.collect())
    }

    /// One set with all tombstones of `sets`.
    fn union(sets: &[Arc<Fragments>]) -> Fragments {
        Fragments::from_parts(sets.iter().flat_map(|set| set.parts()).collect())
    }

    /// The tombstones as (from, to, seqno), newest first.
    fn parts(&self) -> impl Iterator<Item = (&[u8], &[u8], Seqno)> {
        self.spans.iter().map(|span| (self.bound(span.from), self.bound(span.to), span.seqno))
    }

    fn from_parts(mut parts: Vec<(&[u8], &[u8], Seqno)>) -> Fragments {
        parts.retain(|(from, to, _)| to.is_empty() || from < to);
        parts.sort_unstable_by(|a, b| b.2.cmp(&a.2).then_with(|| (a.0, a.1).cmp(&(b.0, b.1))));
        parts.dedup();
        let mut bounds: Vec<&[u8]> = parts.iter().map(|part| part.0).collect();
        bounds.extend(parts.iter().map(|part| part.1).filter(|to| !to.is_empty()));
        bounds.sort_unstable();
        bounds.dedup();
        assert!(bounds.len() < UNBOUNDED as usize / 2, "the nodes of the tree are numbered by u32");
        let number = |bound: &[u8]| bounds.partition_point(|&b| b < bound) as u32;
        let spans = parts
            .iter()
            .map(|&(from, to, seqno)| Span {
                from: number(from),
                to: if to.is_empty() { UNBOUNDED } else { number(to) },
                seqno,
            })
            .collect::<Vec<_>>();
        debug_assert!(spans.iter().all(|span: &Span| span.from < span.to), "empty ranges were removed");
        let ends = bounds
            .iter()
            .scan(0, |end, bound| {
                *end += bound.len();
                Some(*end)
            })
            .collect();
        let ends: Vec<usize> = ends;
        let mut fragments = Fragments { bytes: bounds.concat(), ends, spans, starts: Vec::new(), seqnos: Vec::new() };
        assert_eq!(fragments.ends.last().copied().unwrap_or(0), fragments.bytes.len(), "the bounds fill the bytes");
        fragments.fill_tree();
        fragments
    }

    /// Records every span at its nodes. The first pass counts the seqnos of each node, and the second pass fills the
    /// lists.
    fn fill_tree(&mut self) {
        let leaves = self.ends.len();
        let mut starts = vec![0u32; 2 * leaves + 1];
        for span in &self.spans {
            for_each_node(leaves, *span, |node| starts[node + 1] += 1);
        }
        let mut total = 0u32;
        for start in &mut starts {
            total = total.checked_add(*start).expect("fewer than 2^32 notes: 2^27 tombstones and more");
            *start = total;
        }
        let mut next = starts.clone();
        self.seqnos = vec![Seqno(0); total as usize];
        for span in &self.spans {
            for_each_node(leaves, *span, |node| {
                self.seqnos[next[node] as usize] = span.seqno;
                next[node] += 1;
            });
        }
        debug_assert!(next.iter().zip(&starts[1..]).all(|(next, end)| next == end), "both passes visit the same nodes");
        self.starts = starts;
        debug_assert!(
            (0..2 * leaves).all(|node| self.list(node).is_sorted_by(|a, b| a >= b)),
            "lists are newest first"
        );
    }

    /// Whether there are no tombstones.
    pub fn is_empty(&self) -> bool {
        self.spans.is_empty()
    }

    /// The number of distinct tombstones.
    pub fn len(&self) -> usize {
        self.spans.len()
    }

    /// The memory that the set occupies, in bytes.
    pub fn bytes(&self) -> usize {
        self.bytes.len()
            + self.ends.len() * size_of::<usize>()
            + self.spans.len() * size_of::<Span>()
            + self.starts.len() * size_of::<u32>()
            + self.seqnos.len() * size_of::<Seqno>()
    }

    /// The seqno of the newest tombstone at or below `at` that covers `key`; 0 if there is none.
    #[inline]
    pub fn covering(&self, key: &[u8], at: Seqno) -> Seqno {
        if self.spans.is_empty() {
            return Seqno(0);
        }
        self.fragment_of(key).map_or(Seqno(0), |fragment| self.newest_at(fragment, at))
    }

    /// The fragment around `key` as its first key and its exclusive end (empty: no end), and the seqno of the newest
    /// tombstone at or below `at` that covers this fragment; 0 if there is none. O(log² n).
    pub(super) fn around(&self, key: &[u8], at: Seqno) -> (&[u8], &[u8], Seqno) {
        let fragment = self.fragment_of(key);
        let next = fragment.map_or(0, |fragment| fragment + 1);
        let from = fragment.map_or(&[][..], |fragment| self.bound(fragment as u32));
        let to = if next == self.ends.len() { &[][..] } else { self.bound(next as u32) };
        debug_assert!(from <= key && (to.is_empty() || key < to), "the fragment holds the key");
        (from, to, fragment.map_or(Seqno(0), |fragment| self.newest_at(fragment, at)))
    }

    /// The tombstones clipped to `range`, newest first, without the tombstones that do not overlap `range`. Compares
    /// two numbers for each tombstone of the set, and keys only for the tombstones that are returned.
    pub fn clipped(&self, range: &KeyRange) -> Vec<RangeTombstone> {
        if self.spans.is_empty() || range.is_empty() {
            return Vec::new();
        }
        // The fragments from `first` to before `end` overlap the range. Each tombstone consists of whole fragments.
        let first = self.fragment_of(&range.from).map_or(0, |fragment| fragment as u32);
        let end = if range.to.is_empty() { UNBOUNDED } else { self.bounds_below(&range.to) };
        let cut = |span: &Span| {
            let range = KeyRange::new(self.bound(span.from), self.bound(span.to)).intersect(range);
            debug_assert!(!range.is_empty(), "the tombstone has a fragment that overlaps the range");
            RangeTombstone { range, seqno: span.seqno }
        };
        self.spans.iter().filter(|span| span.from < end && span.to > first).map(cut).collect()
    }

    /// Disjoint tombstones in key order that together cover the same keys as this set. Each has the seqno of the newest
    /// tombstone of this set that covers its range. O(n log n).
    pub fn newest(&self) -> Vec<RangeTombstone> {
        let mut out: Vec<RangeTombstone> = Vec::new();
        for fragment in 0..self.ends.len() {
            let seqno = self.newest_at(fragment, Seqno(u64::MAX));
            if seqno == Seqno(0) {
                continue;
            }
            let from = self.bound(fragment as u32);
            let to = if fragment + 1 == self.ends.len() { &[][..] } else { self.bound(fragment as u32 + 1) };
            debug_assert!(
                out.last().is_none_or(|last| !last.range.to.is_empty() && last.range.to[..] <= *from),
                "fragments are disjoint and in key order"
            );
            match out.last_mut() {
                Some(last) if last.seqno == seqno && last.range.to == from => last.range.to = to.to_vec(),
                _ => out.push(RangeTombstone { range: KeyRange::new(from, to), seqno }),
            }
        }
        out
    }

    /// Bound number `i`; empty for [`UNBOUNDED`].
    #[inline]
    fn bound(&self, i: u32) -> &[u8] {
        if i == UNBOUNDED {
            return &[];
        }
        let i = i as usize;
        let start = if i == 0 { 0 } else { self.ends[i - 1] };
        &self.bytes[start..self.ends[i]]
    }

    /// The fragment that holds `key`; `None` if `key` is before the first bound.
    #[inline]
    fn fragment_of(&self, key: &[u8]) -> Option<usize> {
        let (mut low, mut high) = (0, self.ends.len());
        while low < high {
            let mid = (low + high) / 2;
            if self.bound(mid as u32) <= key { low = mid + 1 } else { high = mid }
        }
        debug_assert!(low == 0 || self.bound(low as u32 - 1) <= key, "the fragment begins at or before the key");
        debug_assert!(low == self.ends.len() || key < self.bound(low as u32), "the next fragment begins after the key");
        low.checked_sub(1)
    }

    /// The number of bounds that are less than `key`.
    fn bounds_below(&self, key: &[u8]) -> u32 {
        let at_or_below = self.fragment_of(key).map_or(0, |fragment| fragment as u32 + 1);
        at_or_below - u32::from(at_or_below > 0 && self.bound(at_or_below - 1) == key)
    }

    #[inline]
    fn list(&self, node: usize) -> &[Seqno] {
        &self.seqnos[self.starts[node] as usize..self.starts[node + 1] as usize]
    }

    #[inline]
    fn newest_at(&self, fragment: usize, at: Seqno) -> Seqno {
        debug_assert!(fragment < self.ends.len(), "fragment {fragment} of {}", self.ends.len());
        let mut newest = Seqno(0);
        let mut node = self.ends.len() + fragment;
        while node > 0 {
            let list = self.list(node);
            let first = list.partition_point(|&seqno| seqno > at);
            newest = newest.max(list.get(first).copied().unwrap_or_default());
            node /= 2;
        }
        newest
    }

    fn gather(&self, fragment: usize, out: &mut Vec<Seqno>) {
        debug_assert!(fragment < self.ends.len(), "fragment {fragment} of {}", self.ends.len());
        let start = out.len();
        let mut node = self.ends.len() + fragment;
        while node > 0 {
            out.extend_from_slice(self.list(node));
            node /= 2;
        }
        out[start..].sort_unstable_by(|a, b| b.cmp(a));
    }
}

/// Calls `visit` with the nodes whose spans together equal `span`, in a bottom-up segment tree over `leaves` fragments.
#[inline]
fn for_each_node(leaves: usize, span: Span, mut visit: impl FnMut(usize)) {
    debug_assert!((span.from as usize) < leaves, "each bound begins a fragment");
    let mut low = leaves + span.from as usize;
    let mut high = leaves + (span.to as usize).min(leaves);
    while low < high {
        if low % 2 == 1 {
            visit(low);
            low += 1;
        }
        if high % 2 == 1 {
            high -= 1;
            visit(high);
        }
        low /= 2;
        high /= 2;
    }
}

/// Looks up keys one after the other; ascending order is the fastest. The amortised cost is O(1) while the keys are in
/// the same fragment. The first lookup in a different fragment costs as much as [`Fragments::covering`], plus the time
/// to copy the seqnos.
#[derive(Clone, Debug)]
pub struct FragmentSweep {
    fragments: Arc<Fragments>,
    /// The number of the current fragment plus 1; 0 before the first bound.
    after: usize,
    seqnos: Vec<Seqno>,
}

impl FragmentSweep {
    /// A sweep that starts before the first fragment.
    pub fn new(fragments: Arc<Fragments>) -> FragmentSweep {
        FragmentSweep { fragments, after: 0, seqnos: Vec::new() }
    }

    /// The seqnos of all tombstones that cover `key`, newest first.
    #[inline]
    pub fn seqnos(&mut self, key: &[u8]) -> &[Seqno] {
        let fragments = &*self.fragments;
        let starts_before = |i: usize| i < fragments.ends.len() && fragments.bound(i as u32) <= key;
        let mut after = self.after;
        if after > 0 && !starts_before(after - 1) {
            after = fragments.fragment_of(key).map_or(0, |fragment| fragment + 1);
        } else {
            while starts_before(after) {
                after += 1;
            }
        }
        debug_assert_eq!(
            after.checked_sub(1),
            fragments.fragment_of(key),
            "a sweep and a search find the same fragment"
        );
        if after != self.after {
            self.after = after;
            self.seqnos.clear();
            if let Some(fragment) = after.checked_sub(1) {
                fragments.gather(fragment, &mut self.seqnos);
            }
        }
        &self.seqnos
    }

    /// The same as [`Fragments::covering`].
    #[inline]
    pub fn covering(&mut self, key: &[u8], at: Seqno) -> Seqno {
        let seqnos = self.seqnos(key);
        let first = seqnos.partition_point(|&seqno| seqno > at);
        seqnos.get(first).copied().unwrap_or_default()
    }
}

/// A growing set of range tombstones. The set consists of O(log n) immutable [`Fragments`], each at least twice as
/// large as the next one. An insertion costs O(log² n) amortised. A clone, which serves as a snapshot, costs O(log n).
#[derive(Clone, Debug, Default)]
pub struct FragmentSet {
    parts: Vec<Arc<Fragments>>,
}

impl FragmentSet {
    /// An empty set.
    pub fn new() -> FragmentSet {
        FragmentSet::default()
    }

    /// Adds a tombstone. An empty range is ignored.
    pub fn insert(&mut self, tombstone: &RangeTombstone) {
        let new = Fragments::build(std::slice::from_ref(tombstone));
        if new.is_empty() {
            return;
        }
        // First determine all parts that have to be merged (from `from` on), and then merge them in a single step.
        let mut len = new.len();
        self.parts.push(Arc::new(new));
        let mut from = self.parts.len() - 1;
        while from > 0 && self.parts[from - 1].len() < 2 * len {
            from -= 1;
            len += self.parts[from].len();
        }
        self.merge_from(from);
        debug_assert!(self.parts.windows(2).all(|pair| pair[0].len() >= 2 * pair[1].len()), "O(log n) parts");
    }

    fn merge_from(&mut self, from: usize) {
        if from + 1 < self.parts.len() {
            let union = Fragments::union(&self.parts[from..]);
            let lens = || self.parts[from..].iter().map(|part| part.len());
            // Several parts may hold the same tombstone.
            debug_assert!(
                lens().max() <= Some(union.len()) && union.len() <= lens().sum(),
                "a union loses no tombstone"
            );
            self.parts.truncate(from);
            self.parts.push(Arc::new(union));
        }
    }

    /// The memory that the set occupies, in bytes.
    pub fn bytes(&self) -> usize {
        self.parts.iter().map(|part| part.bytes()).sum()
    }

    /// The seqno of the newest tombstone at or below `at` that covers `key`; 0 if there is none. O(log³ n).
    pub fn covering(&self, key: &[u8], at: Seqno) -> Seqno {
        self.parts.iter().map(|part| part.covering(key, at)).max().unwrap_or_default()
    }

    /// The sets whose union is this set: O(log n) of them. A caller that keeps clones of them has a snapshot.
    pub fn sets(&self) -> &[Arc<Fragments>] {
        &self.parts
    }

    /// The parts of the tombstones that are in `range`, in no particular order.
    pub fn clipped(&self, range: &KeyRange) -> impl Iterator<Item = RangeTombstone> {
        self.parts.iter().flat_map(|part| part.clipped(range))
    }

    /// All tombstones as one set. Merges the parts in O(n log n); costs nothing if there is only one part.
    pub fn unify(&mut self) -> Arc<Fragments> {
        self.merge_from(0);
        self.parts.first().cloned().unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn key() -> impl Strategy<Value = Vec<u8>> {
        prop::collection::vec(0u8..4, 0..4)
    }

    fn brute(tombstones: &[RangeTombstone], key: &[u8]) -> Vec<Seqno> {
        let mut all: Vec<Seqno> =
            tombstones.iter().filter(|t| !t.range.is_empty() && t.range.contains(key)).map(|t| t.seqno).collect();
        all.sort_unstable_by(|a, b| b.cmp(a));
        all
    }

    fn list(fragments: &Fragments, key: &[u8]) -> Vec<Seqno> {
        let mut out = Vec::new();
        if let Some(fragment) = fragments.fragment_of(key) {
            fragments.gather(fragment, &mut out);
        }
        out
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(300))]
        #[test]
        fn all_queries_agree_with_brute_force(
            bounds in prop::collection::vec((key(), key()), 0..20),
            mut keys in prop::collection::vec(prop::collection::vec(0u8..4, 1..5), 1..40),
            window in (key(), key()),
        ) {
            let tombstones: Vec<RangeTombstone> = (1u64..)
                .zip(bounds)
                .map(|(i, (from, to))| RangeTombstone { range: KeyRange::new(from, to), seqno: Seqno(10 * i) })
                .collect();
            let all = Arc::new(Fragments::build(&tombstones));
            let mut set = FragmentSet::new();
            tombstones.iter().for_each(|t| set.insert(t));
            let window = KeyRange::new(window.0, window.1);
            let clipped = Fragments::build(&all.clipped(&window));
            let newest = all.newest();
            prop_assert!(newest.windows(2).all(|w| !w[0].range.to.is_empty() && w[0].range.to <= w[1].range.from));
            let newest = Fragments::build(&newest);
            let mut sweep = FragmentSweep::new(all.clone());
            keys.sort();
            keys.push(vec![1]);
            for key in &keys {
                let expect = brute(&tombstones, key);
                prop_assert_eq!(&list(&all, key), &expect);
                prop_assert_eq!(sweep.seqnos(key), &expect[..]);
                prop_assert_eq!(list(&newest, key), expect.first().copied().into_iter().collect::<Vec<_>>());
                let inside = if window.contains(key) { expect.clone() } else { Vec::new() };
                prop_assert_eq!(list(&clipped, key), inside);
                for at in [0, 9, 10, 55, 100, 205] {
                    let best = expect.iter().copied().find(|&s| s <= Seqno(at)).unwrap_or_default();
                    prop_assert_eq!(all.covering(key, Seqno(at)), best);
                    prop_assert_eq!(set.covering(key, Seqno(at)), best);
                    prop_assert_eq!(sweep.covering(key, Seqno(at)), best);
                }
            }
            prop_assert_eq!(set.unify().len(), all.len());
            prop_assert_eq!(set.unify().clipped(&KeyRange::all()), all.clipped(&KeyRange::all()));
        }
    }

    #[test]
    fn nested_ranges_do_not_need_quadratic_memory() {
        let tombstones: Vec<RangeTombstone> = (1..=20_000u64)
            .map(|i| RangeTombstone { range: KeyRange::new([], i.to_be_bytes()), seqno: Seqno(i) })
            .collect();
        let all = Fragments::build(&tombstones);
        assert!(all.bytes() < 20_000 * 200, "{} bytes", all.bytes());
        assert_eq!(all.covering(&19_998u64.to_be_bytes(), Seqno::MAX), Seqno(20_000));
        assert_eq!(all.covering(&5u64.to_be_bytes(), Seqno(6)), Seqno(6));
        assert_eq!(all.covering(&5u64.to_be_bytes(), Seqno(5)), Seqno(0));
        let mut set = FragmentSet::new();
        tombstones.iter().for_each(|t| set.insert(t));
        assert!(set.parts.len() <= 16);
        assert_eq!(set.covering(&5u64.to_be_bytes(), Seqno(6)), Seqno(6));
    }
}
