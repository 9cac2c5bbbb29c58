//! [`PageMap`]: the allocation map, which records the used pages of the data file (000 §5.1.1; [decision
//! 0003](../../../../docs/decisions/0003-allocation-map.md)).
//!
//! ```text
//!   words     [1111 1111 … | 0011 0000 … | 0000 0000 … | 0000 …]     32 bits for each extent, a bit for each page
//!                full         partial (slab)   free ─────────▶
//! ```
//!
//! Steps of an allocation: a small request takes a gap in one of the partly used extents (slabs). A request of an
//! extent or more takes the first range of wholly free extents that is long enough. A small request that no slab can
//! serve does the same.
//!
//! Two search structures are derived from the words of the map: the ranges of wholly free extents, and the set of
//! partly used extents. The map does no I/O.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use super::ranges::RangeSet;
use super::to_usize;
use crate::base::{EXTENT_PAGES, Extent, PageNo};

/// The most slabs that are inspected for a small request before a free extent is taken.
const SLAB_TRIES: usize = 64;
/// The most partly used extents that are searched for a gap.
const GAP_TRIES: usize = 1024;
const _: () = assert!(EXTENT_PAGES == u32::BITS, "the map has a word for each extent");

/// The map of used pages. Invariant: `free` holds exactly the maximal ranges of extents whose word is 0; `partial`
/// holds exactly the extents whose word is neither 0 nor full.
#[derive(Clone, Debug, Default)]
pub struct PageMap {
    words: Vec<u32>,
    /// One bit for each page. For a free page, the bit says that the page occupies disk space, because it was written
    /// since the store was opened and was not punched after that. Such a page is called a gap. The bits of used pages
    /// have no meaning.
    written: Vec<u32>,
    free: RangeSet,
    partial: BTreeSet<u64>,
    taken_pages: u64,
    /// The number of gaps in partly used extents.
    gap_pages: u64,
    /// The extent at which the last search for a gap ended. The next search begins here.
    last_gap: u64,
}

/// The mask of `count` bits of an extent's word, from bit `from` on.
fn mask(from: u32, count: u32) -> u32 {
    debug_assert!(from + count <= EXTENT_PAGES && count > 0);
    (u32::MAX >> (EXTENT_PAGES - count)) << from
}

/// The position of the first bit of the first `count` consecutive zero bits of `word`.
fn find_gap(word: u32, count: u32) -> Option<u32> {
    (0..=EXTENT_PAGES - count).find(|&from| word & mask(from, count) == 0)
}

impl PageMap {
    /// The number of extents that the map covers.
    pub fn extents(&self) -> u64 {
        self.words.len() as u64
    }

    /// The number of used pages.
    pub fn taken_pages(&self) -> u64 {
        self.taken_pages
    }

    /// Extends the map to at least `extents` extents.
    pub fn grow(&mut self, extents: u64) {
        let old = self.extents();
        if extents > old {
            self.words.resize(to_usize(extents), 0);
            self.written.resize(to_usize(extents), 0);
            self.free.insert(old, extents - old);
        }
    }

    /// The ranges of wholly free extents, each as its first extent and the number of extents.
    pub fn free_extents(&self) -> impl Iterator<Item = (u64, u64)> {
        self.free.iter()
    }

    /// The number of wholly free extents at the end of the map.
    pub fn free_tail(&self) -> u64 {
        match self.free.last() {
            Some((start, count)) if start + count == self.extents() => count,
            _ => 0,
        }
    }

    /// Removes `extents` wholly free extents from the end.
    pub fn shrink(&mut self, extents: u64) {
        assert!(extents <= self.free_tail(), "only a free tail can be cut off");
        if extents > 0 {
            self.free.remove(self.extents() - extents, extents);
            self.words.truncate(self.words.len() - to_usize(extents));
            self.written.truncate(self.words.len());
        }
    }

    /// Allocates `pages` contiguous pages; `None` if no free range is long enough. Small requests are served from
    /// slabs; requests of an extent or more begin at an extent.
    pub fn alloc(&mut self, pages: u32) -> Option<Extent> {
        self.alloc_outside(pages, 0..0)
    }

    /// Like [`PageMap::alloc`], but takes no pages from the extents of `other` or from their two neighbouring extents.
    pub fn alloc_apart(&mut self, pages: u32, other: Extent) -> Option<Extent> {
        let size = u64::from(EXTENT_PAGES);
        self.alloc_outside(pages, (other.start.0 / size).saturating_sub(1)..other.end().div_ceil(size) + 1)
    }

    /// Like [`PageMap::alloc`], but takes no pages from the extents in `avoid`.
    fn alloc_outside(&mut self, pages: u32, avoid: Range<u64>) -> Option<Extent> {
        assert!(pages > 0, "an allocation has at least one page");
        if pages < EXTENT_PAGES {
            let slabs = self.partial.iter().filter(|extent| !avoid.contains(extent));
            let slab = slabs.take(SLAB_TRIES).find_map(|&extent| {
                find_gap(self.words[to_usize(extent)], pages)
                    .map(|bit| extent * u64::from(EXTENT_PAGES) + u64::from(bit))
            });
            if let Some(start) = slab {
                let extent = Extent { start: PageNo(start), pages };
                assert!(self.take(extent));
                return Some(extent);
            }
        }
        let want = u64::from(pages.div_ceil(EXTENT_PAGES));
        let start = self.free.first_fit_outside(want, avoid)?;
        let extent = Extent { start: PageNo(start * u64::from(EXTENT_PAGES)), pages };
        assert!(self.take(extent));
        Some(extent)
    }

    /// Allocates a gap: at least `least` and at most `most` contiguous free pages that occupy disk space. `None` if the
    /// inspected extents have none.
    pub fn alloc_gap(&mut self, least: u32, most: u32) -> Option<Extent> {
        if least >= EXTENT_PAGES {
            return None;
        }
        let in_turn = self.partial.range(self.last_gap..).chain(self.partial.range(..self.last_gap));
        let mut last = self.last_gap;
        let found = in_turn.take(GAP_TRIES).find_map(|&at| {
            last = at;
            let gaps = self.gaps(at);
            let most = most.min(gaps.count_ones());
            let longest = (least..=most).rev().find_map(|pages| Some((find_gap(!gaps, pages)?, pages)));
            longest.map(|(from, pages)| (at, from, pages))
        });
        // The next search continues where this search ended, even if this search found no gap.
        self.last_gap = last;
        let (at, from, pages) = found?;
        let extent = Extent { start: PageNo(at * u64::from(EXTENT_PAGES) + u64::from(from)), pages };
        assert!(self.take(extent));
        Some(extent)
    }

    /// The number of free pages that occupy disk space, in partly used extents.
    pub fn gap_pages(&self) -> u64 {
        self.gap_pages
    }

    /// Chooses at least `pages` gaps in partly used extents, or all gaps if there are fewer, but stops after `most`
    /// ranges. Marks them as used, so that they can be punched, and appends them to `taken` in ascending order. Extents
    /// with the most gaps come first: their gaps form the longest ranges, so the fewest calls punch them. O(partly used
    /// extents).
    pub fn take_gaps(&mut self, pages: u64, most: usize, taken: &mut Vec<Extent>) {
        if pages == 0 {
            return;
        }
        let most = taken.len().saturating_add(most);
        let mut chosen = Vec::new();
        let mut sum = 0;
        for share in [4 * EXTENT_PAGES / 5, EXTENT_PAGES / 2, EXTENT_PAGES / 4, 1] {
            chosen.clear();
            sum = 0;
            for &at in &self.partial {
                let gaps = self.gaps(at).count_ones();
                if gaps >= share && sum < pages {
                    sum += u64::from(gaps);
                    chosen.push(at);
                }
            }
            if sum >= pages {
                break;
            }
        }
        debug_assert!(sum >= pages.min(self.gap_pages), "the last round takes any gap");
        for at in chosen {
            let mut gaps = self.gaps(at);
            while gaps != 0 && taken.len() < most {
                let from = gaps.trailing_zeros();
                let count = (gaps >> from).trailing_ones();
                let extent = Extent { start: PageNo(at * u64::from(EXTENT_PAGES) + u64::from(from)), pages: count };
                gaps &= !mask(from, count);
                assert!(self.take(extent), "a gap is free");
                taken.push(extent);
            }
        }
    }

    /// The bits of the gaps in extent `at`.
    fn gaps(&self, at: u64) -> u32 {
        self.written[to_usize(at)] & !self.words[to_usize(at)]
    }

    /// Notes that these pages were punched out of the file and occupy no space.
    pub fn punched(&mut self, pages: Range<PageNo>) {
        for (at, from, count) in pieces_between(pages.start.0, pages.end.0) {
            let written = self.written[to_usize(at)] & !mask(from, count);
            self.set_written(at, written);
        }
    }

    /// Marks pages as used. Returns `false`, and changes nothing, if one of the pages is used already or beyond the
    /// map.
    pub fn take(&mut self, extent: Extent) -> bool {
        if extent.pages == 0 || extent.end() > self.extents() * u64::from(EXTENT_PAGES) {
            return false;
        }
        if pieces(extent).any(|(at, from, count)| self.words[to_usize(at)] & mask(from, count) != 0) {
            return false;
        }
        for (at, from, count) in pieces(extent) {
            let before = self.words[to_usize(at)];
            self.set_word(at, before, before | mask(from, count));
        }
        self.taken_pages += u64::from(extent.pages);
        debug_assert!(self.is_taken(extent) && self.taken_pages <= self.extents() * u64::from(EXTENT_PAGES));
        true
    }

    /// Marks written pages as free.
    ///
    /// # Panics
    /// If one of the pages is not used. A page that is freed twice could get two owners.
    pub fn release(&mut self, extent: Extent) {
        self.release_unwritten(extent);
        for (at, from, count) in pieces(extent) {
            let written = self.written[to_usize(at)] | mask(from, count);
            self.set_written(at, written);
        }
    }

    /// Marks pages as free that were allocated but not written. If a page was a gap before its allocation, it is a gap
    /// again.
    ///
    /// # Panics
    /// As [`PageMap::release`].
    pub fn release_unwritten(&mut self, extent: Extent) {
        for (at, from, count) in pieces(extent) {
            let before = self.words[to_usize(at)];
            let bits = mask(from, count);
            assert!(before & bits == bits, "pages {extent:?} are freed twice");
            self.set_word(at, before, before & !bits);
        }
        debug_assert!(self.is_free(extent) && self.taken_pages >= u64::from(extent.pages));
        self.taken_pages -= u64::from(extent.pages);
    }

    /// Finds the units (of `unit` pages) that will be wholly free after a release. `released` holds the ranges of used
    /// pages that are about to be released. The other pages of these units are free already. Marks these free pages as
    /// used and adds them to `released`, so that they cannot be allocated before the release. Returns the units in
    /// ascending order.
    pub fn take_rest(&mut self, released: &mut Vec<Extent>, unit: u32) -> Vec<Extent> {
        assert!(EXTENT_PAGES.is_multiple_of(unit), "an extent is whole units of {unit} pages");
        if unit == 1 {
            released.sort_unstable();
            return released.clone();
        }
        let mut going = BTreeMap::<u64, u32>::new();
        for (at, from, count) in released.iter().flat_map(|&extent| pieces(extent)) {
            *going.entry(at).or_default() |= mask(from, count);
        }
        let page = |at: u64, bit: u32| PageNo(at * u64::from(EXTENT_PAGES) + u64::from(bit));
        let mut whole = Vec::new();
        for (at, bits) in going {
            for first in (0..EXTENT_PAGES).step_by(unit as usize) {
                let going = bits & mask(first, unit);
                if going == 0 || self.words[to_usize(at)] & mask(first, unit) != going {
                    continue;
                }
                whole.push(Extent { start: page(at, first), pages: unit });
                for bit in (first..first + unit).filter(|bit| going & mask(*bit, 1) == 0) {
                    let extent = Extent { start: page(at, bit), pages: 1 };
                    assert!(self.take(extent));
                    released.push(extent);
                }
            }
        }
        whole
    }

    /// The wholly free units among the units that contain a page of `extent`, in ascending order.
    pub fn freed_by(&self, extent: Extent, unit: u32) -> impl Iterator<Item = Extent> {
        let size = u64::from(unit);
        let units = extent.start.0 / size..extent.end().div_ceil(size);
        let units = units.map(move |at| Extent { start: PageNo(at * size), pages: unit });
        units.filter(|&unit| pieces(unit).all(|(at, from, count)| self.words[to_usize(at)] & mask(from, count) == 0))
    }

    /// Whether every page of `extent` is used.
    pub fn is_taken(&self, extent: Extent) -> bool {
        extent.end() <= self.extents() * u64::from(EXTENT_PAGES)
            && pieces(extent).all(|(at, from, count)| {
                let bits = mask(from, count);
                self.words[to_usize(at)] & bits == bits
            })
    }

    /// Whether no page of `extent` is used. Pages beyond the end of the map count as free.
    pub fn is_free(&self, extent: Extent) -> bool {
        pieces(extent)
            .all(|(at, from, count)| self.words.get(to_usize(at)).is_none_or(|word| word & mask(from, count) == 0))
    }

    /// In a debug build, checks the counter of used pages and the two indexes against the words. O(extents).
    pub(super) fn check(&self) {
        let ones = |word: &u32| u64::from(word.count_ones());
        debug_assert_eq!(self.taken_pages, self.words.iter().map(ones).sum(), "the counter agrees with the words");
        let free = self.words.iter().filter(|word| **word == 0).count();
        debug_assert_eq!(self.free.iter().map(|(_, count)| count).sum::<u64>(), free as u64);
        let partial = self.words.iter().filter(|word| **word != 0 && **word != u32::MAX).count();
        debug_assert_eq!(self.partial.len(), partial, "each partly used extent is in the set");
        debug_assert_eq!(self.words.len(), self.written.len(), "both maps cover the same extents");
        let gaps = self.partial.iter().map(|&at| u64::from(self.gaps(at).count_ones())).sum::<u64>();
        debug_assert_eq!(self.gap_pages, gaps, "the counter agrees with the gaps");
    }

    /// The number of gaps that count in `gap_pages` for extent `at`: none if the extent is wholly free.
    fn counted_gaps(&self, at: u64) -> u64 {
        if self.words[to_usize(at)] == 0 { 0 } else { u64::from(self.gaps(at).count_ones()) }
    }

    fn set_written(&mut self, at: u64, written: u32) {
        let before = self.counted_gaps(at);
        self.written[to_usize(at)] = written;
        self.gap_pages = self.gap_pages + self.counted_gaps(at) - before;
    }

    fn set_word(&mut self, at: u64, before: u32, after: u32) {
        debug_assert_eq!(self.words[to_usize(at)], before, "the indexes follow the word that is replaced");
        let gaps = self.counted_gaps(at);
        self.words[to_usize(at)] = after;
        self.gap_pages = self.gap_pages + self.counted_gaps(at) - gaps;
        if before == 0 && after != 0 {
            self.free.remove(at, 1);
        }
        if before != 0 && after == 0 {
            self.free.insert(at, 1);
        }
        if after != 0 && after != u32::MAX {
            self.partial.insert(at);
        } else {
            self.partial.remove(&at);
        }
    }
}

/// Divides a page range at extent boundaries. Each piece is (extent, first page in the extent, number of pages).
fn pieces(extent: Extent) -> impl Iterator<Item = (u64, u32, u32)> {
    pieces_between(extent.start.0, extent.end())
}

/// Like [`pieces`], for the pages from `start` to `end`.
fn pieces_between(start: u64, end: u64) -> impl Iterator<Item = (u64, u32, u32)> {
    let size = u64::from(EXTENT_PAGES);
    // An empty range has no pieces. Rounding `end` up would give one piece if `start` is inside an extent.
    let last = if start == end { start / size } else { end.div_ceil(size) };
    (start / size..last).map(move |at| {
        let from = start.max(at * size);
        let to = end.min((at + 1) * size);
        #[expect(clippy::cast_possible_truncation, reason = "both numbers are at most the 32 pages of an extent")]
        let piece = (at, (from - at * size) as u32, (to - from) as u32);
        piece
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn extent(start: u64, pages: u32) -> Extent {
        Extent { start: PageNo(start), pages }
    }

    /// Compares the two derived search structures with the words.
    fn check(map: &PageMap) {
        let mut free = RangeSet::default();
        let mut at = 0;
        while at < map.words.len() {
            let run = map.words[at..].iter().take_while(|&&word| word == 0).count();
            if run > 0 {
                free.insert(at as u64, run as u64);
            }
            at += run.max(1);
        }
        assert_eq!(map.free, free);
        let partial: BTreeSet<u64> =
            (0..map.extents()).filter(|&e| map.words[e as usize] != 0 && map.words[e as usize] != u32::MAX).collect();
        assert_eq!(map.partial, partial);
        assert_eq!(map.taken_pages, map.words.iter().map(|word| u64::from(word.count_ones())).sum::<u64>());
    }

    #[test]
    fn small_requests_share_extents_and_large_ones_start_at_one() {
        let mut map = PageMap::default();
        map.grow(8);
        assert_eq!(map.alloc(3), Some(extent(0, 3)));
        assert_eq!(map.alloc(5), Some(extent(3, 5)));
        assert_eq!(map.alloc(70), Some(extent(32, 70)));
        // Small requests are served from the free pages at the end of the last extent that a large request took.
        assert_eq!(map.alloc(25), Some(extent(102, 25)));
        assert_eq!(map.alloc(32 * 5), None);
        check(&map);
        map.release(extent(40, 10));
        assert!(!map.is_taken(extent(39, 2)) && map.is_taken(extent(32, 8)));
        assert!(!map.take(extent(35, 10)), "overlaps taken pages");
        check(&map);
    }

    #[test]
    fn derived_indexes_stay_right_in_random_use() {
        let mut map = PageMap::default();
        let mut held: Vec<Extent> = Vec::new();
        let mut rng = crate::base::random::Rng(7);
        for _ in 0..4000 {
            let pick = rng.index(1 << 31);
            if pick % 3 < 2 || held.is_empty() {
                let pages = [1, 2, 7, 31, 32, 33, 100][pick / 3 % 7];
                let got = map.alloc(pages).unwrap_or_else(|| {
                    map.grow(map.extents() + 5);
                    map.alloc(pages).expect("room after growth")
                });
                assert!(held.iter().all(|e| e.end() <= got.start.0 || got.end() <= e.start.0));
                held.push(got);
            } else {
                map.release(held.swap_remove(pick % held.len()));
            }
        }
        check(&map);
        held.drain(..).for_each(|e| map.release(e));
        assert_eq!((map.taken_pages(), map.free_tail()), (0, map.extents()));
        map.shrink(map.extents() - 1);
        check(&map);
    }

    #[test]
    fn alloc_gap_takes_only_pages_that_occupy_space() {
        let mut map = PageMap::default();
        map.grow(3);
        [extent(0, 30), extent(34, 4), extent(40, 4)].into_iter().for_each(|taken| assert!(map.take(taken)));
        assert_eq!((map.gap_pages(), map.alloc_gap(1, 9)), (0, None), "no free page was ever written");
        [extent(4, 6), extent(20, 2), extent(36, 2)].into_iter().for_each(|freed| map.release(freed));
        assert_eq!(map.gap_pages(), 10);
        assert_eq!(map.alloc_gap(3, 5), Some(extent(4, 5)), "the longest range within the limit");
        assert_eq!(map.alloc_gap(3, 5), None, "the other gaps have 2 pages or less");
        assert_eq!(map.alloc_gap(1, 9), Some(extent(36, 2)), "the search goes on where it ended");
        assert_eq!(map.alloc_gap(2, 9), Some(extent(20, 2)));
        map.release_unwritten(extent(20, 2));
        assert_eq!(map.gap_pages(), 3, "the old contents still occupy space");
        map.punched(PageNo(16)..PageNo(24));
        assert_eq!((map.alloc_gap(1, 9), map.alloc_gap(1, 9), map.gap_pages()), (Some(extent(9, 1)), None, 0));
        check(&map);
        // Free all pages. Extents that are removed from the end of the map lose their gaps.
        [extent(0, 20), extent(22, 8), extent(34, 4), extent(40, 4)].into_iter().for_each(|freed| map.release(freed));
        map.shrink(3);
        map.grow(3);
        assert!(map.take(extent(0, 1)));
        assert_eq!(map.gap_pages(), 0);
    }

    #[test]
    fn take_rest_takes_the_free_pages_of_units_that_become_free() {
        let mut map = PageMap::default();
        map.grow(8);
        for taken in [extent(0, 40), extent(64, 4), extent(100, 96)] {
            assert!(map.take(taken));
        }
        // Extents: 0 full, 1 to 3 partly used, 4 and 5 full, 6 partly used.
        let mut released = vec![extent(30, 10), extent(64, 4), extent(100, 64)];
        assert_eq!(map.take_rest(&mut released, 32), [extent(32, 32), extent(64, 32), extent(96, 32), extent(128, 32)]);
        assert!(map.is_taken(extent(32, 128)), "no page of them is allocated before the release");
        released.iter().for_each(|&extent| map.release(extent));
        assert_eq!((map.taken_pages(), map.is_taken(extent(0, 30)), map.is_taken(extent(164, 32))), (62, true, true));
        check(&map);
        let freed = |start, pages, unit| map.freed_by(extent(start, pages), unit).collect::<Vec<_>>();
        assert_eq!(freed(28, 10, 32), [extent(32, 32)]);
        assert_eq!(freed(150, 20, 32), [extent(128, 32)]);
        assert_eq!(freed(28, 10, 4), [extent(32, 4), extent(36, 4)]);
        assert_eq!(freed(0, 3, 1), []);
        let mut released = vec![extent(5, 12)];
        assert_eq!(map.take_rest(&mut released, 8), [extent(8, 8)], "other units stay in use");
        assert_eq!(released, [extent(5, 12)]);
    }

    #[test]
    fn an_empty_extent_counts_as_taken() {
        let mut map = PageMap::default();
        map.grow(2);
        assert!(map.is_taken(extent(5, 0)) && map.is_taken(extent(32, 0)) && !map.is_taken(extent(65, 0)));
        assert!(!map.take(extent(5, 0)));
    }

    #[test]
    #[should_panic(expected = "freed twice")]
    fn a_double_free_panics() {
        let mut map = PageMap::default();
        map.grow(1);
        let got = map.alloc(2).unwrap();
        map.release(got);
        map.release(got);
    }
}
