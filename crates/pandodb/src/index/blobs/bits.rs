//! [`Bits`]: the ranges of a leaf as a bitmap, one bit for each page.
//!
//! ```text
//!   pages 64 ‥ 127         128 ‥ 191            a 1 is a page of the set; a range is a maximal run of ones
//!   0000000000111100 ‥ 01  1110000000 ‥ 00      here 74+4 and 127+4
//! ```
//!
//! The pages of a tree change one by one, so its ranges are short and many. A bitmap takes one bit for a page, in
//! memory and on disk. A list of ranges takes 16 bytes for each range in memory and two to four bytes on disk.
//!
//! Invariants: the first page of the bitmap is a multiple of 64. The counts of ranges and pages are those of the bits.

use super::layout::PageRange;

/// The pages of one word.
pub const WORD: u64 = 64;

/// A set of pages as a bitmap.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Bits {
    /// The page of the first bit.
    base: u64,
    words: Vec<u64>,
    ranges: u64,
    pages: u64,
}

impl Bits {
    /// The bitmap of these ranges; `None` if there are no ranges, or the bitmap has more than `max_words` words.
    ///
    /// REQUIRES: the ranges ascend and do not touch.
    pub fn of(ranges: &[PageRange], max_words: usize) -> Option<Bits> {
        let (first, last) = (ranges.first()?, ranges.last()?);
        let base = first.0 / WORD * WORD;
        let count = (last.0 + last.1 - base).div_ceil(WORD);
        if count > max_words as u64 {
            return None;
        }
        let mut bits = Bits { base, words: vec![0; count as usize], ranges: ranges.len() as u64, pages: 0 };
        for &(start, len) in ranges {
            bits.set(start, len, true);
            bits.pages += len;
        }
        Some(bits)
    }

    /// The bitmap with these words, and its counts.
    ///
    /// REQUIRES: `base` is a multiple of 64.
    pub fn of_words(base: u64, words: Vec<u64>) -> Bits {
        let (mut ranges, mut pages, mut before) = (0, 0, 0);
        for word in &words {
            // A range begins at each one with a zero in front of it.
            ranges += u64::from((word & !(word << 1 | before >> (WORD - 1))).count_ones());
            pages += u64::from(word.count_ones());
            before = *word;
        }
        Bits { base, words, ranges, pages }
    }

    /// The page of the first bit.
    pub fn base(&self) -> u64 {
        self.base
    }

    /// The words of the bitmap. Bit `i` of word `w` is page `base + 64·w + i`.
    pub fn words(&self) -> &[u64] {
        &self.words
    }

    /// The number of ranges.
    pub fn ranges(&self) -> u64 {
        self.ranges
    }

    /// The number of pages.
    pub fn pages(&self) -> u64 {
        self.pages
    }

    /// Bytes of memory of the words.
    pub fn memory(&self) -> usize {
        self.words.capacity() * size_of::<u64>()
    }

    /// The ranges in order.
    pub fn iter(&self) -> Iter<'_> {
        Iter { bits: self, at: self.base }
    }

    /// The page behind the last bit.
    fn end(&self) -> u64 {
        self.base + self.words.len() as u64 * WORD
    }

    fn has(&self, page: u64) -> bool {
        page.checked_sub(self.base)
            .is_some_and(|bit| self.words.get((bit / WORD) as usize).is_some_and(|word| word >> (bit % WORD) & 1 == 1))
    }

    /// The first page ≥ `from` that is in the set, or that is not in the set if `absent`; [`Bits::end`] if there is
    /// none in the bitmap.
    ///
    /// REQUIRES: `from ≥ base`.
    fn next(&self, from: u64, absent: bool) -> u64 {
        let (mut word, bit) = (((from - self.base) / WORD) as usize, from % WORD);
        let mut mask = u64::MAX << bit;
        while let Some(value) = self.words.get(word) {
            let wanted = if absent { !value } else { *value } & mask;
            if wanted != 0 {
                return self.base + word as u64 * WORD + u64::from(wanted.trailing_zeros());
            }
            (word, mask) = (word + 1, u64::MAX);
        }
        self.end()
    }

    /// The last page ≤ `from` that is in the set, or that is not in the set if `absent`; `None` if there is none in the
    /// bitmap.
    fn last(&self, from: u64, absent: bool) -> Option<u64> {
        let from = from.min(self.end().checked_sub(1)?);
        let (word, bit) = ((from.checked_sub(self.base)? / WORD) as usize, from % WORD);
        let mut mask = u64::MAX >> (WORD - 1 - bit);
        for word in (0..=word).rev() {
            let value = self.words[word];
            let wanted = if absent { !value } else { value } & mask;
            if wanted != 0 {
                return Some(self.base + word as u64 * WORD + u64::from(wanted.ilog2()));
            }
            mask = u64::MAX;
        }
        None
    }

    /// The range that begins at `start`.
    fn range(&self, start: u64) -> PageRange {
        (start, self.next(start, true) - start)
    }

    /// The range with the greatest start ≤ `at`.
    pub fn floor(&self, at: u64) -> Option<PageRange> {
        let inside = self.last(at, false)?;
        let start = self.last(inside, true).map_or(self.base, |gap| gap + 1);
        Some(self.range(start))
    }

    /// The range with the smallest start ≥ `at`.
    pub fn ceiling(&self, at: u64) -> Option<PageRange> {
        let mut from = at.max(self.base);
        if from > self.base && self.has(from - 1) {
            from = self.next(from - 1, true);
        }
        Some(self.next(from, false)).filter(|start| *start < self.end()).map(|start| self.range(start))
    }

    /// Replaces the range that starts at `old`, if given, by `new`. Returns false, and changes nothing, if the new
    /// ranges do not fit into a bitmap of `max_words` words that begins at the same page.
    ///
    /// REQUIRES: the new ranges touch no other range.
    pub fn splice(&mut self, old: Option<u64>, new: &[PageRange], max_words: usize) -> bool {
        let end = new.last().map_or(self.base, |range| range.0 + range.1);
        if new.first().is_some_and(|range| range.0 < self.base) || end - self.base > max_words as u64 * WORD {
            return false;
        }
        if let Some(start) = old {
            assert!(self.has(start), "the leaf holds the range");
            let (start, len) = self.range(start);
            self.set(start, len, false);
            (self.ranges, self.pages) = (self.ranges - 1, self.pages - len);
        }
        let words = (end - self.base).div_ceil(WORD) as usize;
        self.words.resize(words.max(self.words.len()), 0);
        for &(start, len) in new {
            debug_assert!(self.next(start, false) >= start + len, "the pages are not in the map");
            self.set(start, len, true);
            (self.ranges, self.pages) = (self.ranges + 1, self.pages + len);
        }
        true
    }

    fn set(&mut self, start: u64, len: u64, on: bool) {
        let (mut from, end) = (start - self.base, start - self.base + len);
        while from < end {
            let to = end.min((from / WORD + 1) * WORD);
            let mask = u64::MAX >> (WORD - (to - from)) << (from % WORD);
            let word = &mut self.words[(from / WORD) as usize];
            *word = if on { *word | mask } else { *word & !mask };
            from = to;
        }
    }

    /// The first invariant that the bitmap breaks, if any.
    pub fn problem(&self) -> Option<&'static str> {
        let counted = Bits::of_words(self.base, self.words.clone());
        if !self.base.is_multiple_of(WORD) {
            return Some("a bitmap does not begin at a multiple of 64");
        }
        (counted != *self).then_some("the sums of a bitmap are wrong")
    }
}

/// The ranges of a bitmap in order.
pub struct Iter<'a> {
    bits: &'a Bits,
    at: u64,
}

impl Iterator for Iter<'_> {
    type Item = PageRange;

    fn next(&mut self) -> Option<PageRange> {
        let start = self.bits.next(self.at, false);
        if start >= self.bits.end() {
            return None;
        }
        let range = self.bits.range(start);
        self.at = range.0 + range.1;
        Some(range)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::index::testing::Random;

    fn random_ranges(random: &mut Random) -> Vec<PageRange> {
        let mut end = 1000 + random.below(200);
        let mut ranges = Vec::new();
        for _ in 0..1 + random.below(60) {
            let most = if random.below(8) == 0 { 300 } else { 4 };
            let range = (end + 1 + random.below(most), 1 + random.below(most));
            end = range.0 + range.1;
            ranges.push(range);
        }
        ranges
    }

    #[test]
    fn a_bitmap_answers_as_its_ranges_do() {
        let mut random = Random(3);
        for _ in 0..300 {
            let ranges = random_ranges(&mut random);
            let bits = Bits::of(&ranges, 1000).expect("it fits");
            assert!(bits.iter().eq(ranges.iter().copied()));
            assert_eq!((bits.problem(), bits.ranges()), (None, ranges.len() as u64));
            let last = ranges[ranges.len() - 1];
            for at in 900..last.0 + last.1 + 100 {
                let floor = ranges.iter().copied().rfind(|range| range.0 <= at);
                assert_eq!(bits.floor(at), floor, "{at} in {ranges:?}");
                let ceiling = ranges.iter().copied().find(|range| range.0 >= at);
                assert_eq!(bits.ceiling(at), ceiling, "{at} in {ranges:?}");
            }
        }
    }

    #[test]
    fn a_bitmap_holds_only_what_fits() {
        let ranges = [(70, 3), (100, 1), (64 * 11, 64)];
        assert_eq!(Bits::of(&ranges, 10), None);
        let mut bits = Bits::of(&ranges, 11).expect("from page 64 to 767");
        let same = bits.clone();
        assert!(!bits.splice(None, &[(60, 2)], 11), "below the first page");
        assert!(!bits.splice(Some(64 * 11), &[(64 * 11, 65)], 11), "behind the last page");
        assert_eq!(bits, same, "nothing has changed");
        assert!(bits.splice(Some(64 * 11), &[(64 * 11, 65)], 12));
        assert!(bits.splice(Some(70), &[(70, 1), (72, 1)], 12));
        assert!(bits.splice(Some(100), &[], 12));
        assert!(bits.iter().eq([(70, 1), (72, 1), (64 * 11, 65)]));
        assert_eq!((bits.problem(), bits.pages()), (None, 67));
        assert_eq!(Bits::of(&[], 11), None);
    }
}
