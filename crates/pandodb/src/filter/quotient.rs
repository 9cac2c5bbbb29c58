//! The quotient filter of a run (002 §3.3, §3.6.3). A probe reads one page, and one in 256 probes is a false positive.
//!
//! ```text
//!   key hash ──first `bits` bits──▶ fingerprint ──× pages──▶ page ──▶ quotient, remainder in it      page.rs
//! ```
//!
//! Steps: the builder collects one hash per distinct key ([`QuotientBuilder::add`]), and cuts the sorted hashes into
//! pages ([`QuotientPages`]). The order of the hashes is also the order of pages, quotients and remainders, so building
//! is one scan. The pages can be filled one at a time, because a run may have millions of keys, or in one call
//! ([`QuotientBuilder::build`]). A lookup computes the page ([`QuotientMeta::page_of`]), reads this page, and probes it
//! ([`ask`]).
//!
//! A fingerprint has ⌈log₂ n⌉ + 8 bits for n keys, so at most 1/256 of all possible fingerprints occur, for any n. With
//! a fixed number of bits, the false-positive rate would grow with n. The number of pages is chosen so that a page can
//! hold a share of hashes that is three standard deviations above the mean. One page in a thousand has a larger share
//! and shortens its fingerprints (`filter::page`). To compensate for these pages, the number of bits is computed as if
//! n were larger by 1/64.
//!
//! Invariants: a probe for an added hash is always positive. Two hashes with the same fingerprint are in the same page.
//!
//! The prefixes of the hashes can be read back from the pages, in order. So filters and maplets are merged without
//! their keys ([`super::maplet::Merge`]). A merge cannot make the prefixes longer. So a filter that will be merged is
//! built with fingerprints that are long enough for the sum of all entries ([`QuotientBuilder::with_room`]). Each
//! doubling of this sum costs one bit per entry. A builder keeps 40 bits of each hash, so the fingerprints of filters
//! for more than 4 billion keys are no longer.
//!
//! ```
//! use pandodb::base::{PAGE, key_hash};
//! use pandodb::filter::quotient::{QuotientBuilder, ask};
//!
//! let mut builder = QuotientBuilder::new();
//! for i in 0..10_000u32 {
//!     builder.add(key_hash(&i.to_be_bytes()));
//! }
//! let (meta, pages) = builder.build();
//! let may_hold = |i: u32| {
//!     let hash = key_hash(&i.to_be_bytes());
//!     ask(&pages[meta.page_of(hash) as usize * PAGE..][..PAGE], hash)
//! };
//! assert!((0..10_000).all(may_hold));
//! assert!((10_000..20_000).filter(|&i| may_hold(i)).count() <= 10_000 / 256);
//! ```

use super::hashes::{Hashes, STORED_BITS, SortedHashes};
use super::page::{self, Fingerprint, MAX_BITS, Page, PageEncoder};
use crate::base::PAGE;
use crate::device::AlignedBuf;

/// The number of bits of a filter's fingerprint beyond ⌈log₂ n⌉. The false-positive rate is 2⁻⁸.
const RATE_BITS: u32 = 8;
/// A page can hold a share of hashes that is this many standard deviations above the mean.
const SLACK: u64 = 3;

/// The parameters of a quotient filter or maplet that a probe needs before it reads a page. The page holds the other
/// parameters.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct QuotientMeta {
    /// The number of blocks, of one page each; 0 if nothing was added.
    pub pages: u32,
    /// The number of bits of a fingerprint.
    pub bits: u8,
    /// The number of entries; for the result of a merge, an upper bound.
    pub entries: u64,
}

impl QuotientMeta {
    /// The page to probe for a key with this hash.
    /// REQUIRES: the filter has pages.
    #[inline]
    #[expect(clippy::cast_possible_truncation, reason = "the result is below the number of pages")]
    pub fn page_of(&self, hash: u64) -> u32 {
        debug_assert!(self.pages > 0 && self.is_sound(), "an empty filter has no page to ask");
        // Mask the shift to avoid a panic, because a description that was read from disk may hold any number.
        let fingerprint = hash >> ((64 - u32::from(self.bits)) & 63);
        ((u128::from(fingerprint) * u128::from(self.pages)) >> (self.bits & 63)) as u32
    }

    /// Whether a builder could have produced these fields.
    pub fn is_sound(&self) -> bool {
        let bits = u32::from(self.bits);
        match self.pages {
            0 => self.entries == 0,
            // An entry takes at least one bit.
            pages => {
                let fits = self.entries <= u64::from(pages) * 8 * crate::base::PAGE as u64;
                (1..=MAX_BITS).contains(&bits) && u64::from(pages) <= 1 << bits && fits
            }
        }
    }

    /// The first and the last fingerprint of a page.
    pub(super) fn share(&self, page: u32) -> (u64, u64) {
        debug_assert!(page < self.pages, "page {page} of {}", self.pages);
        let first = |page: u64| {
            let first = (u128::from(page) << self.bits).div_ceil(u128::from(self.pages));
            u64::try_from(first).expect("a fingerprint has at most 56 bits")
        };
        (first(u64::from(page)), first(u64::from(page) + 1) - 1)
    }

    /// The first and the last hash of a page.
    pub(super) fn hashes(&self, page: u32) -> (u64, u64) {
        let (first, last) = self.share(page);
        let shift = 64 - u32::from(self.bits);
        (first << shift, last << shift | ((1 << shift) - 1))
    }

    /// Returns a description for `entries` entries with fingerprints of `bits` bits. The description has the smallest
    /// number of pages for which a page can hold a share of entries that is `slack` standard deviations above the mean.
    /// `together` is the average number of entries that have the same hash and are therefore in the same page. The
    /// standard deviation of a share grows with the square root of `together`.
    pub(super) fn sized(entries: u64, together: u64, bits: u32, value_bits: u32, slack: u64) -> QuotientMeta {
        if entries == 0 {
            return QuotientMeta::default();
        }
        let fits = |pages: u64| {
            let mean = entries.div_ceil(pages);
            let share = if pages == 1 { mean } else { mean + slack * (mean * together).isqrt() };
            let cells = (1u64 << bits).div_ceil(pages);
            usize::try_from(share).is_ok_and(|share| page::remainder_bits(share, cells, value_bits).is_some())
        };
        // An entry takes at least one bit of the counts.
        let mut pages = (entries / (PAGE as u64 * 8)).max(1);
        // A builder never makes more pages than there are possible fingerprints, so [`QuotientMeta::is_sound`] rejects
        // a description with more pages.
        while pages <= 1 << bits && !fits(pages) {
            pages += (pages / 512).max(1);
        }
        let pages = u32::try_from(pages).unwrap_or(u32::MAX);
        QuotientMeta { pages, bits: u8::try_from(bits).expect("a fingerprint has at most 56 bits"), entries }
    }
}

/// The number of bits of a fingerprint for n = `entries` entries: ⌈log₂ n⌉ + `rate_bits`. n is increased by 1/64 to
/// compensate for pages that drop a bit.
pub(super) fn fingerprint_bits(entries: u64, rate_bits: u32) -> u32 {
    let entries = entries.max(1);
    let doublings = (entries + entries / 64).next_power_of_two().trailing_zeros();
    (doublings + rate_bits).min(MAX_BITS)
}

/// Cuts items that are sorted by fingerprint into pages, one after the other.
#[derive(Debug)]
pub(super) struct Cutter {
    meta: QuotientMeta,
    value_bits: u32,
    encoder: PageEncoder,
    prints: Vec<Fingerprint>,
    /// The next page.
    page: u32,
    /// The number of entries in the pages that are filled already.
    entries: u64,
}

impl Cutter {
    fn new(meta: QuotientMeta, value_bits: u32) -> Cutter {
        Cutter { meta, value_bits, encoder: PageEncoder::default(), prints: Vec::new(), page: 0, entries: 0 }
    }

    /// The last hash of the next page.
    fn last_hash(&self) -> u64 {
        self.meta.hashes(self.page).1
    }

    /// Fills the next page, which is zeroed, from the first of `items`, which are sorted by their `print` and begin
    /// with the first item of this page. Returns the number of items in this page.
    fn fill<T>(&mut self, page: &mut [u8], items: &[T], print: impl Fn(&T) -> Fingerprint) -> usize {
        assert!(self.page < self.meta.pages, "no page is left to fill");
        let (first, last) = self.meta.hashes(self.page);
        debug_assert!(items.first().is_none_or(|item| print(item).high >= first), "an earlier page has this item");
        self.prints.clear();
        self.prints.extend(items.iter().map(print).take_while(|print| print.low <= last));
        let (share, bits) = (self.meta.share(self.page), u32::from(self.meta.bits));
        self.entries += self.encoder.encode(page, share, bits, self.value_bits, &self.prints) as u64;
        self.page += 1;
        self.prints.len()
    }
}

/// Writes the pages for `items`, which are sorted by their `print`. Returns the pages and the number of entries.
pub(super) fn write_pages<T>(
    meta: &QuotientMeta,
    value_bits: u32,
    items: &[T],
    print: impl Fn(&T) -> Fingerprint,
) -> (AlignedBuf, u64) {
    let mut buf = AlignedBuf::zeroed(meta.pages as usize);
    let mut cutter = Cutter::new(*meta, value_bits);
    let mut item = 0;
    for page in buf.chunks_exact_mut(PAGE) {
        item += cutter.fill(page, &items[item..], &print);
    }
    debug_assert!(item == items.len(), "every hash has a page");
    (buf, cutter.entries)
}

/// Whether the run may hold a key with this hash (for a maplet: whether any of its runs may hold such a key). If the
/// result is `false`, no run holds such a key. For a malformed page, the result is `true`. `page` is the verified block
/// with the number [`QuotientMeta::page_of`].
#[inline]
pub fn ask(page: &[u8], hash: u64) -> bool {
    let mut found = false;
    let sound = Page::open(page).and_then(|page| {
        page.look(hash, |_| {
            found = true;
            false
        })
    });
    found || sound.is_none()
}

/// Prefetches the cache lines that [`ask`] reads first for this hash. The returned value has no meaning.
#[inline]
pub fn prefetch(page: &[u8], hash: u64) -> u64 {
    Page::open(page).map_or(0, |page| page.prefetch(hash))
}

/// Collects the hashes of a run's keys. Costs 4 bytes a key, or 8 if there are few keys.
#[derive(Debug, Default)]
pub struct QuotientBuilder {
    hashes: Hashes,
    room: u64,
}

impl QuotientBuilder {
    /// Creates a builder without keys.
    pub fn new() -> QuotientBuilder {
        QuotientBuilder::default()
    }

    /// Makes the fingerprints long enough for a merge of `room` entries in total, but not longer than 40 bits.
    #[must_use]
    pub fn with_room(self, room: u64) -> QuotientBuilder {
        QuotientBuilder { room, ..self }
    }

    /// Adds a key by its [`crate::base::key_hash`], in any order.
    #[inline]
    pub fn add(&mut self, hash: u64) {
        self.hashes.add(hash);
    }

    /// The number of hashes that were added.
    pub fn len(&self) -> usize {
        self.hashes.len()
    }

    /// Whether no hash was added.
    pub fn is_empty(&self) -> bool {
        self.hashes.is_empty()
    }

    /// Returns the pages of the filter, which are still to be filled. Sorts the hashes if there are at most 32,768.
    pub fn pages(self) -> QuotientPages {
        let entries = self.hashes.len() as u64;
        let bits = fingerprint_bits(entries, RATE_BITS).max(super::maplet::bits_for_room(self.room)).min(STORED_BITS);
        let meta = QuotientMeta::sized(entries, 1, bits, 0, SLACK);
        QuotientPages { cutter: Cutter::new(meta, 0), hashes: self.hashes.sorted() }
    }

    /// Returns the filter: one block per page, without block headers. Takes about twice the time of sorting the hashes.
    pub fn build(self) -> (QuotientMeta, AlignedBuf) {
        let mut pages = self.pages();
        let mut buf = AlignedBuf::zeroed(pages.meta().pages as usize);
        for page in buf.chunks_exact_mut(PAGE) {
            pages.fill(page);
        }
        (pages.meta(), buf)
    }
}

/// A filter whose pages are being written, one after the other.
#[derive(Debug)]
pub struct QuotientPages {
    hashes: SortedHashes,
    cutter: Cutter,
}

impl QuotientPages {
    /// The description of the filter. `entries` counts only the entries of pages that are filled already.
    pub fn meta(&self) -> QuotientMeta {
        QuotientMeta { entries: self.cutter.entries, ..self.cutter.meta }
    }

    /// The number of pages still to be filled.
    pub fn left(&self) -> u32 {
        self.cutter.meta.pages - self.cutter.page
    }

    /// Fills the next page, which is zeroed, except for its block header. Returns the number of hashes in this page. If
    /// there are more than 32,768 hashes, some calls sort 1/256 of them.
    ///
    /// # Panics
    /// If no page is left.
    pub fn fill(&mut self, page: &mut [u8]) -> usize {
        assert!(self.left() > 0, "no page is left to fill");
        let hashes = self.hashes.up_to(self.cutter.last_hash());
        let keys = self.cutter.fill(page, hashes, |&hash| Fingerprint { low: hash, high: hash, value: 0 });
        assert_eq!(keys, hashes.len(), "the page has all hashes of its share");
        assert!(self.left() > 0 || self.hashes.is_done(), "every hash has a page");
        keys
    }
}
