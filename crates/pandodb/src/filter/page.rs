//! One page of a quotient filter or maplet. A page is a small filter of its own, over the page's share of the hashes.
//!
//! ```text
//!   hash, 64 bits   | fingerprint: the leading `bits`                      | unused   |
//!   fingerprint − first of this page, without its last `dropped` bits = cell
//!   cell            | quotient             | remainder                     |
//!
//!   page, 4 KiB     | block header 16 | head 16 | 16 samples of 2 | counts | entries | zeros |
//!   head            | first fingerprint u64 | entries u16 | quotients u16 | remainder bits u8 | value bits u8
//!                   | bits u8 | dropped u8 |                                                       little-endian
//!   counts          for each quotient a 0 for each of its entries, then a 1: whole words of 64 bits
//!   entries         remainder and, below it, value; sorted by quotient, remainder, value; packed without gaps
//! ```
//!
//! Steps of a probe:
//!
//! 1. The hash gives a quotient and a remainder.
//! 2. The last sample at or before the quotient gives the number of entries before the sampled quotient, and so the
//!    position of this quotient in the counts.
//! 3. Counting ones from the sampled position finds the start of the quotient's own zeros ([`Page::entries_of`]).
//! 4. The entries of the quotient are compared with the remainder.
//!
//! A probe touches three cache lines: the first one holds head and samples, the others hold a part of the counts and a
//! part of the entries.
//!
//! Quotient filters that allow insertions leave slots empty, and mark runs and shifts with two or three bits for each
//! slot (002 §3.6.3 refers to Pandey et al.). The filter of an immutable run never changes, so it needs no empty slots.
//! Instead, this filter stores the number of entries of each quotient in unary, which takes one bit for each entry and
//! one bit for each quotient. No entry is shifted, and the entries of a quotient are all in one page.
//!
//! *Overfull pages.* The number of hashes per page varies. If the hashes of a page do not fit, the encoder shortens all
//! their fingerprints by one bit, and repeats this, until the remaining distinct entries fit ([`PageEncoder::encode`]).
//! Such a page has more false positives, but no false negatives. In the extreme case, all entries have the same
//! shortened fingerprint and at most 256 distinct values, which fit into a page.
//!
//! Invariants: the number of ones in the counts is the number of quotients, and the number of zeros is the number of
//! entries. A reader accepts pages with arbitrary bytes: every position is checked to be inside the page before it is
//! read, and every loop ends at the end of the page.
//!
//! Source: 002 §3.6.3.

use crate::base::PAGE;
use crate::space::BLOCK_HEADER;

/// The offset of the samples, which follow the head.
const SAMPLES_AT: usize = BLOCK_HEADER + 16;
/// The number of samples. The samples fill the rest of the first cache line.
const SAMPLES: usize = 16;
/// The offset of the counts.
const COUNTS_AT: usize = SAMPLES_AT + 2 * SAMPLES;
/// The most bits of a fingerprint, and also of an entry. Wherever an entry of this width begins within a byte, a load
/// of eight bytes contains the whole entry.
pub(super) const MAX_BITS: u32 = 56;
/// The most bits of a value.
pub(super) const MAX_VALUE_BITS: u32 = 8;

const _: () = assert!(COUNTS_AT == 64 && PAGE * 8 <= u16::MAX as usize);

/// An entry as the range of hashes that it represents (all hashes that begin with the entry's fingerprint), and its
/// value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Fingerprint {
    pub(super) low: u64,
    /// The last hash of the range.
    pub(super) high: u64,
    pub(super) value: u8,
}

/// The checked fields of a page's head. All offsets that are derived from these fields are inside the page.
#[derive(Clone, Copy, Debug)]
struct Head {
    first: u64,
    entries: usize,
    quotients: usize,
    remainder_bits: u32,
    value_bits: u32,
    bits: u32,
    dropped: u32,
}

impl Head {
    /// The size of the counts in bytes.
    fn counts_bytes(&self) -> usize {
        (self.entries + self.quotients).div_ceil(64) * 8
    }

    /// The number of bits of an entry.
    fn width(&self) -> u32 {
        self.remainder_bits + self.value_bits
    }

    /// The number of bytes that the whole page uses.
    fn used(&self) -> usize {
        COUNTS_AT + self.counts_bytes() + (self.entries * self.width() as usize).div_ceil(8)
    }

    /// The number of quotients from one sample to the next.
    fn stride(&self) -> usize {
        self.quotients.div_ceil(SAMPLES + 1)
    }

    /// The value of an entry.
    #[inline]
    #[expect(clippy::cast_possible_truncation, reason = "a value has at most 8 bits")]
    fn value_of(&self, entry: u64) -> u8 {
        (entry & ((1 << self.value_bits) - 1)) as u8
    }

    fn write(&self, page: &mut [u8]) {
        let head = &mut page[BLOCK_HEADER..SAMPLES_AT];
        head[..8].copy_from_slice(&self.first.to_le_bytes());
        let entries = u16::try_from(self.entries).expect("a page has fewer than 2^16 entries");
        let quotients = u16::try_from(self.quotients).expect("a page has fewer than 2^16 quotients");
        head[8..10].copy_from_slice(&entries.to_le_bytes());
        head[10..12].copy_from_slice(&quotients.to_le_bytes());
        for (byte, field) in head[12..].iter_mut().zip([self.remainder_bits, self.value_bits, self.bits, self.dropped])
        {
            *byte = u8::try_from(field).expect("a width of at most 64 bits");
        }
    }
}

/// A page with a well-formed head.
#[derive(Clone, Copy, Debug)]
pub(super) struct Page<'a> {
    bytes: &'a [u8],
    head: Head,
}

impl<'a> Page<'a> {
    /// Parses a page's head; `None` if [`PageEncoder::encode`] cannot have written it.
    #[inline]
    pub(super) fn open(bytes: &'a [u8]) -> Option<Page<'a>> {
        let bytes = bytes.get(..PAGE)?;
        let word = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().expect("eight bytes"));
        let (first, rest) = (word(BLOCK_HEADER), word(BLOCK_HEADER + 8));
        let byte = |at: usize| u32::from(rest.to_le_bytes()[at]);
        let head = Head {
            first,
            entries: (rest & 0xffff) as usize,
            quotients: (rest >> 16 & 0xffff) as usize,
            remainder_bits: byte(4),
            value_bits: byte(5),
            bits: byte(6),
            dropped: byte(7),
        };
        let sound = (1..=MAX_BITS).contains(&head.bits)
            && head.dropped <= head.bits
            && head.value_bits <= MAX_VALUE_BITS
            && head.width() <= MAX_BITS
            && head.quotients > 0
            && head.first >> head.bits == 0
            && head.used() <= PAGE;
        sound.then_some(Page { bytes, head })
    }

    /// The smallest fingerprint of this page's share, whether or not an entry has it.
    pub(super) fn first(&self) -> u64 {
        self.head.first
    }

    /// The number of bits of a fingerprint before this page dropped any bits.
    pub(super) fn bits(&self) -> u32 {
        self.head.bits
    }

    /// The number of entries.
    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.head.entries
    }

    /// Passes the values of the entries that match a hash to `found`, in ascending order, until `found` returns
    /// `false`. Returns `None` if the contents of the page contradict each other.
    #[inline]
    pub(super) fn look(&self, hash: u64, mut found: impl FnMut(u8) -> bool) -> Option<()> {
        let head = &self.head;
        let (quotient, remainder) = self.place_of(hash)?;
        let (from, to) = self.entries_of(quotient)?;
        for i in from..to {
            let entry = self.entry(i);
            let here = entry >> head.value_bits;
            if here == remainder && !found(head.value_of(entry)) || here > remainder {
                break;
            }
        }
        Some(())
    }

    /// The quotient and the remainder of a hash in this page.
    #[inline]
    fn place_of(&self, hash: u64) -> Option<(usize, u64)> {
        let head = &self.head;
        let fingerprint = hash >> (64 - head.bits);
        let cell = (fingerprint >> head.dropped).checked_sub(head.first >> head.dropped)?;
        let quotient = usize::try_from(cell >> head.remainder_bits).ok().filter(|&q| q < head.quotients)?;
        Some((quotient, cell & ((1 << head.remainder_bits) - 1)))
    }

    /// The entries with this quotient, as a range; `None` if the counts contradict the head.
    #[inline]
    fn entries_of(&self, quotient: usize) -> Option<(usize, usize)> {
        let stride = self.head.stride();
        let sample = quotient / stride;
        let before = self.sample(sample);
        let start = self.after_ones(sample * stride + before, u32::try_from(quotient - sample * stride).ok()?)?;
        let (mut index, mut word) = self.word_from(start)?;
        while word == 0 {
            index += 1;
            word = self.word(index)?;
        }
        let end = index * 64 + word.trailing_zeros() as usize;
        let from = start.checked_sub(quotient)?;
        let to = from + (end - start);
        (to <= self.head.entries).then_some((from, to))
    }

    /// Loads the words that a probe for the hash reads first: the counts of the hash's stretch ([`Page::sample`]), and
    /// the entries at the position that the sample suggests. A caller that probes several pages calls this function for
    /// all pages first, so that their cache misses overlap.
    #[inline]
    pub(super) fn prefetch(&self, hash: u64) -> u64 {
        let Some((quotient, _)) = self.place_of(hash) else { return 0 };
        let (stride, stretch) = (self.head.stride(), quotient / self.head.stride());
        let (before, within) = (self.sample(stretch), quotient - stretch * stride);
        let entry = before + within * self.head.entries / self.head.quotients;
        let entry = if entry < self.head.entries { self.entry(entry) } else { 0 };
        self.word((stretch * stride + before) / 64).unwrap_or(0) ^ entry
    }

    /// The number of entries before the first quotient of this stretch. A stretch consists of the quotients from one
    /// sample to the next.
    #[inline]
    fn sample(&self, stretch: usize) -> usize {
        match stretch {
            0 => 0,
            _ => {
                let at = SAMPLES_AT + 2 * (stretch - 1);
                usize::from(u16::from_le_bytes([self.bytes[at], self.bytes[at + 1]]))
            }
        }
    }

    /// The position in the counts just after the next `ones` ones, counted from the position `place` on.
    #[inline]
    fn after_ones(&self, place: usize, mut ones: u32) -> Option<usize> {
        if ones == 0 {
            return Some(place);
        }
        let (mut index, mut word) = self.word_from(place)?;
        loop {
            let here = word.count_ones();
            if here >= ones {
                return Some(index * 64 + select(word, ones - 1) as usize + 1);
            }
            ones -= here;
            index += 1;
            word = self.word(index)?;
        }
    }

    /// A word of the counts.
    #[inline]
    fn word(&self, index: usize) -> Option<u64> {
        if index * 8 >= self.head.counts_bytes() {
            return None;
        }
        let at = COUNTS_AT + index * 8;
        Some(u64::from_le_bytes(self.bytes[at..at + 8].try_into().expect("eight bytes")))
    }

    /// The index of the word of the counts that contains this position, and the word with the bits before the position
    /// cleared.
    #[inline]
    fn word_from(&self, place: usize) -> Option<(usize, u64)> {
        Some((place / 64, self.word(place / 64)? & (u64::MAX << (place % 64))))
    }

    /// The entry with the index `i`.
    /// REQUIRES: `i` is below the head's number of entries.
    #[inline]
    fn entry(&self, i: usize) -> u64 {
        let width = self.head.width();
        let bit = i * width as usize;
        let at = COUNTS_AT + self.head.counts_bytes() + bit / 8;
        let word = match self.bytes.get(at..at + 8) {
            Some(bytes) => u64::from_le_bytes(bytes.try_into().expect("eight bytes")),
            // Near the end of a full page, fewer than eight bytes are left to load.
            None => self.bytes[at..].iter().rev().fold(0, |word, &byte| word << 8 | u64::from(byte)),
        };
        word >> (bit % 8) & ((1 << width) - 1)
    }

    /// All entries in order, as the ranges of hashes that they represent. `last` is the last hash of this page, and no
    /// range extends beyond `last`. Returns `None` if the contents of the page contradict each other.
    pub(super) fn fingerprints(&self, last: u64) -> Option<Vec<Fingerprint>> {
        let head = &self.head;
        let first = head.first << (64 - head.bits);
        // A probe for a hash beyond the page's last quotient finds no entry. So a page whose share includes such hashes
        // is malformed and must not be merged.
        let end = last >> (64 - head.bits) >> head.dropped;
        let cells = end.checked_sub(head.first >> head.dropped)?;
        if cells >> head.remainder_bits != head.quotients as u64 - 1 {
            return None;
        }
        // The number of hashes that an entry represents, minus one.
        let beside = u64::MAX >> (head.bits - head.dropped);
        let mut all: Vec<Fingerprint> = Vec::with_capacity(head.entries);
        let mut place = 0;
        for quotient in 0..head.quotients {
            let end = self.after_ones(place, 1)?;
            let (from, to) = (place - quotient, (end - 1).checked_sub(quotient)?);
            let begins = quotient.is_multiple_of(head.stride());
            if to > head.entries || begins && self.sample(quotient / head.stride()) != from {
                return None;
            }
            for entry in (from..to).map(|i| self.entry(i)) {
                let cell = (quotient as u64).checked_mul(1 << head.remainder_bits)?;
                let cell = cell.checked_add(entry >> head.value_bits)?;
                let prefix = (head.first >> head.dropped).checked_add(cell)?;
                if prefix >> (head.bits - head.dropped) != 0 {
                    return None;
                }
                let low = prefix.checked_shl(64 - head.bits + head.dropped).unwrap_or(0);
                let (high, low) = (low | beside, low.max(first));
                let print = Fingerprint { low, high: high.min(last), value: head.value_of(entry) };
                if print.low > print.high || all.last().is_some_and(|before| *before >= print) {
                    return None;
                }
                all.push(print);
            }
            place = end;
        }
        (all.len() == head.entries).then_some(all)
    }
}

/// The position of the `n`-th one of a word, counted from 0.
/// REQUIRES: the word has more than `n` ones.
#[inline]
#[expect(clippy::cast_possible_truncation, reason = "the position of a byte in a word is below 64")]
fn select(word: u64, n: u32) -> u32 {
    const ONES: u64 = 0x0101_0101_0101_0101;
    const HIGH: u64 = 0x8080_8080_8080_8080;
    debug_assert!(n < word.count_ones(), "a one that is there");
    // For each byte, count the ones of the word up to the end of this byte. Then count the bytes whose count is at most
    // n.
    let pairs = word - (word >> 1 & 0x5555_5555_5555_5555);
    let nibbles = (pairs & 0x3333_3333_3333_3333) + (pairs >> 2 & 0x3333_3333_3333_3333);
    let sums = ((nibbles + (nibbles >> 4)) & 0x0f0f_0f0f_0f0f_0f0f).wrapping_mul(ONES);
    let at_most = (((u64::from(n).wrapping_mul(ONES) | HIGH) - sums) & HIGH) >> 7;
    let byte = at_most.wrapping_mul(ONES) >> 56 << 3;
    let mut left = u64::from(n) - (sums << 8 >> byte & 0xff);
    let mut bits = word >> byte & 0xff;
    while left > 0 {
        bits &= bits - 1;
        left -= 1;
    }
    byte as u32 + bits.trailing_zeros()
}

/// The number of remainder bits with which `entries` entries, in a range of `cells` cells, take the least space in a
/// page; `None` if the entries do not fit into a page with any number of remainder bits.
pub(super) fn remainder_bits(entries: usize, cells: u64, value_bits: u32) -> Option<u32> {
    debug_assert!(cells > 0, "a page represents at least one fingerprint");
    let used = |remainder_bits: u32| {
        let quotients = usize::try_from(((cells - 1) >> remainder_bits) + 1).ok()?;
        let head = Head { first: 0, entries, quotients, remainder_bits, value_bits, bits: 0, dropped: 0 };
        (quotients <= PAGE * 8 && entries <= PAGE * 8 && head.used() <= PAGE).then(|| (head.used(), remainder_bits))
    };
    (0..=MAX_BITS - value_bits).filter_map(used).min().map(|(_, remainder_bits)| remainder_bits)
}

/// Writes pages. The encoder reuses its memory from page to page.
#[derive(Debug, Default)]
pub(super) struct PageEncoder {
    /// The cell of each entry, and the entry's value in the lower bits.
    cells: Vec<u64>,
}

impl PageEncoder {
    /// Writes the page for the fingerprints of `bits` bits from `first` to `last`, except for its block header.
    /// `prints` that extend beyond this range are clipped. Returns the number of entries.
    pub(super) fn encode(
        &mut self,
        page: &mut [u8],
        (first, last): (u64, u64),
        bits: u32,
        value_bits: u32,
        prints: &[Fingerprint],
    ) -> usize {
        assert!(page.len() == PAGE && first <= last && (1..=MAX_BITS).contains(&bits) && value_bits <= MAX_VALUE_BITS);
        for dropped in 0..=bits {
            if !self.collect(first, last, bits, value_bits, dropped, prints) {
                continue;
            }
            let cells = (last >> dropped) - (first >> dropped) + 1;
            if let Some(remainder_bits) = remainder_bits(self.cells.len(), cells, value_bits) {
                let quotients =
                    usize::try_from((cells - 1) >> remainder_bits).expect("the quotients fit into a page") + 1;
                let entries = self.cells.len();
                self.write(page, Head { first, entries, quotients, remainder_bits, value_bits, bits, dropped });
                let reader = Page::open(page).map(|page| (page.head.entries, page.head.first));
                assert_eq!(reader, Some((entries, first)), "readers accept the page");
                return entries;
            }
        }
        unreachable!("a fingerprint without bits leaves one cell with at most 256 values")
    }

    /// Collects the distinct entries, sorted, without the last `dropped` bits of their fingerprints. Returns `false` if
    /// prints with fewer bits would have to be entered in too many cells.
    fn collect(
        &mut self,
        first: u64,
        last: u64,
        bits: u32,
        value_bits: u32,
        dropped: u32,
        prints: &[Fingerprint],
    ) -> bool {
        self.cells.clear();
        let cell = |hash: u64| ((hash >> (64 - bits)).clamp(first, last) >> dropped) - (first >> dropped);
        let mut more = 0;
        for print in prints {
            debug_assert!(print.low <= print.high && u64::from(print.value) >> value_bits == 0, "{print:?}");
            let (from, to) = (cell(print.low), cell(print.high));
            more += to - from;
            if more > PAGE as u64 {
                return false;
            }
            self.cells.extend((from..=to).map(|cell| cell << value_bits | u64::from(print.value)));
        }
        if !self.cells.is_sorted() {
            self.cells.sort_unstable();
        }
        self.cells.dedup();
        true
    }

    fn write(&self, page: &mut [u8], head: Head) {
        debug_assert!(head.used() <= PAGE);
        page[BLOCK_HEADER..].fill(0);
        head.write(page);
        let mut set = |place: usize| page[COUNTS_AT + place / 8] |= 1 << (place % 8);
        let mut samples = [0u16; SAMPLES];
        let stride = head.stride();
        let (mut quotient, mut sample, mut next_sample) = (0, 0, stride);
        let mut end_one = |quotient: &mut usize, entries: usize| {
            let place = *quotient + entries;
            *quotient += 1;
            if *quotient == next_sample && *quotient < head.quotients {
                samples[sample] = u16::try_from(entries).expect("a page has fewer than 2^16 entries");
                (sample, next_sample) = (sample + 1, next_sample + stride);
            }
            place
        };
        for (i, cell) in self.cells.iter().enumerate() {
            let own = usize::try_from(cell >> head.width()).expect("a quotient of this page");
            debug_assert!(own < head.quotients, "quotient {own} of {}", head.quotients);
            while quotient < own {
                set(end_one(&mut quotient, i));
            }
        }
        while quotient < head.quotients {
            set(end_one(&mut quotient, head.entries));
        }
        for (sample, bytes) in samples.iter().zip(page[SAMPLES_AT..].chunks_exact_mut(2)) {
            bytes.copy_from_slice(&sample.to_le_bytes());
        }
        self.write_entries(&mut page[COUNTS_AT + head.counts_bytes()..], head.width());
    }

    /// Writes the lowest `width` bits of each cell, without gaps.
    #[expect(clippy::cast_possible_truncation, reason = "the lower word is written first")]
    fn write_entries(&self, mut to: &mut [u8], width: u32) {
        // Complete words are written once. If each entry was added to the bytes in memory, each load would wait for the
        // store before it, because a processor cannot forward a stored word to a load that overlaps it partly.
        let (mut pending, mut bits) = (0u128, 0);
        for cell in &self.cells {
            pending |= u128::from(cell & ((1 << width) - 1)) << bits;
            bits += width;
            if bits >= u64::BITS {
                let (word, rest) = to.split_first_chunk_mut::<8>().expect("the entries fit into the page");
                *word = (pending as u64).to_le_bytes();
                (to, pending, bits) = (rest, pending >> u64::BITS, bits - u64::BITS);
            }
        }
        to.iter_mut().zip(pending.to_le_bytes()).for_each(|(byte, last)| *byte = last);
    }
}
