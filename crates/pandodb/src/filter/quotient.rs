//! The quotient filter of a run (002 §3.3, §3.6.3): one page to ask, one in 256 hashes let through by mistake.
//!
//! ```text
//!   key hash ──first `bits` bits──▶ fingerprint ──× pages──▶ page ──▶ quotient, remainder in it      page.rs
//! ```
//!
//! Steps: the builder collects one hash a distinct key ([`QuotientBuilder::add`]), sorts them ([`QuotientSort`]), and cuts the sorted
//! array into pages ([`QuotientPages`]): the order of the hashes is that of pages, quotients and remainders, so that building is one
//! scan. Both can be done a little at a time, since a run may have millions of keys; or at once ([`QuotientBuilder::build`]). A lookup computes the page ([`QuotientMeta::page_of`]), fetches it, and asks it ([`ask`]).
//!
//! A fingerprint has ⌈log₂ n⌉ + 8 bits, so that n of them are one in 256 of all there are, or fewer, at any n; a fixed
//! width would lose that as n grows. Pages are as many as let a share of three standard deviations over the mean fit; the
//! one in a thousand above that makes its fingerprints shorter (`filter::page`), which a sixty-fourth of slack in n pays for.
//!
//! Invariants: a hash that was added is always found. Two hashes with the same fingerprint have the same page.
//!
//! The prefixes of hashes can be had back from the pages, in order: so filters and maplets merge without their keys
//! ([`super::maplet::Merge`]). Prefixes do not grow: what will be merged is built with room for the sum
//! ([`QuotientBuilder::with_room`]), a bit an entry for each doubling.
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

use super::page::{self, Fingerprint, MAX_BITS, Page, PageEncoder};
use crate::base::{LargeVec, PAGE};
use crate::device::AlignedBuf;

/// Bits of a filter's fingerprint beyond ⌈log₂ n⌉: a rate of 2⁻⁸.
const RATE_BITS: u32 = 8;
/// Standard deviations over the mean that a page has room for.
const SLACK: u64 = 3;

/// What has to be known of a quotient filter or maplet to ask it; its pages say the rest themselves.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct QuotientMeta {
    /// Blocks, of one page each; 0: nothing was added.
    pub pages: u32,
    /// Bits of a fingerprint.
    pub bits: u8,
    /// Entries; after a merge at most so many.
    pub entries: u64,
}

impl QuotientMeta {
    /// Which page answers for a key with this hash. Only if there are pages.
    #[inline]
    pub fn page_of(&self, hash: u64) -> u32 {
        debug_assert!(self.pages > 0 && self.is_sound(), "an empty filter has no page to ask");
        // A shift by a field is masked rather than checked: a description of foreign bytes may say anything.
        let fingerprint = hash >> ((64 - u32::from(self.bits)) & 63);
        ((u128::from(fingerprint) * u128::from(self.pages)) >> (self.bits & 63)) as u32
    }

    /// Whether the figures are such as a builder makes.
    pub fn is_sound(&self) -> bool {
        let bits = u32::from(self.bits);
        match self.pages {
            0 => self.entries == 0,
            // An entry takes a bit at least.
            pages => {
                let fits = self.entries <= u64::from(pages) * 8 * crate::base::PAGE as u64;
                (1..=MAX_BITS).contains(&bits) && u64::from(pages) <= 1 << bits && fits
            }
        }
    }

    /// The first and the last fingerprint of a page.
    pub(super) fn share(&self, page: u32) -> (u64, u64) {
        let first = |page: u64| (u128::from(page) << self.bits).div_ceil(u128::from(self.pages)) as u64;
        (first(u64::from(page)), first(u64::from(page) + 1) - 1)
    }

    /// The first and the last hash of a page.
    pub(super) fn hashes(&self, page: u32) -> (u64, u64) {
        let (first, last) = self.share(page);
        let shift = 64 - u32::from(self.bits);
        (first << shift, last << shift | ((1 << shift) - 1))
    }

    /// A description for `entries` entries with fingerprints of `bits` bits: the fewest pages in which a share of `slack`
    /// standard deviations over the mean fits. `together`: how many entries have the same hash and so the same page, on
    /// average; a share varies with its root.
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
        // An entry takes a bit of the counts at least.
        let mut pages = (entries / (PAGE as u64 * 8)).max(1);
        // More pages than fingerprints are in no filter of ours: foreign figures, which are not sound.
        while pages <= 1 << bits && !fits(pages) {
            pages += (pages / 512).max(1);
        }
        let pages = u32::try_from(pages).unwrap_or(u32::MAX);
        QuotientMeta { pages, bits: bits as u8, entries }
    }
}

/// Bits of a fingerprint among `entries` entries: ⌈log₂ n⌉ and `rate_bits`. A sixty-fourth is added to n for the pages that
/// drop a bit.
pub(super) fn fingerprint_bits(entries: u64, rate_bits: u32) -> u32 {
    let entries = entries.max(1);
    let doublings = (entries + entries / 64).next_power_of_two().trailing_zeros();
    (doublings + rate_bits).min(MAX_BITS)
}

/// Cuts what is sorted by its fingerprints into pages, one after the other.
#[derive(Debug)]
pub(super) struct Cutter {
    meta: QuotientMeta,
    value_bits: u32,
    encoder: PageEncoder,
    prints: Vec<Fingerprint>,
    /// The next page,
    page: u32,
    /// and the first item that belongs into it.
    item: usize,
    /// Entries in the pages so far.
    entries: u64,
}

impl Cutter {
    fn new(meta: QuotientMeta, value_bits: u32) -> Cutter {
        Cutter { meta, value_bits, encoder: PageEncoder::default(), prints: Vec::new(), page: 0, item: 0, entries: 0 }
    }

    /// Writes the next page, of zeros so far, of `items`, which are sorted by what `print` makes of them. How many of them it took.
    fn fill<T>(&mut self, page: &mut [u8], items: &[T], print: impl Fn(&T) -> Fingerprint) -> usize {
        let last = self.meta.hashes(self.page).1;
        self.prints.clear();
        self.prints.extend(items[self.item..].iter().map(print).take_while(|print| print.low <= last));
        let (share, bits) = (self.meta.share(self.page), u32::from(self.meta.bits));
        self.entries += self.encoder.encode(page, share, bits, self.value_bits, &self.prints) as u64;
        self.page += 1;
        self.item += self.prints.len();
        self.prints.len()
    }
}

/// Writes the pages of `items`, which are sorted by what `print` makes of them. Returns the entries, too.
pub(super) fn write_pages<T>(
    meta: &QuotientMeta,
    value_bits: u32,
    items: &[T],
    print: impl Fn(&T) -> Fingerprint,
) -> (AlignedBuf, u64) {
    let mut buf = AlignedBuf::zeroed(meta.pages as usize);
    let mut cutter = Cutter::new(*meta, value_bits);
    for page in buf.chunks_exact_mut(PAGE) {
        cutter.fill(page, items, &print);
    }
    debug_assert!(cutter.item == items.len(), "every hash has a page");
    (buf, cutter.entries)
}

/// Whether the run may hold a key with this hash. `page` is the block that [`QuotientMeta::page_of`] named, checked.
/// `false` is certain; a page that makes no sense says "perhaps". Of a maplet: whether any of its runs may.
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

/// Fetches from memory what an [`ask`] about this hash begins with. What it returns means nothing.
#[inline]
pub fn approach(page: &[u8], hash: u64) -> u64 {
    Page::open(page).map_or(0, |page| page.approach(hash))
}

/// Collects the hashes of a run's keys. Costs 8 bytes a key.
#[derive(Debug, Default)]
pub struct QuotientBuilder {
    hashes: LargeVec<u64>,
    room: u64,
}

impl QuotientBuilder {
    /// No keys yet.
    pub fn new() -> QuotientBuilder {
        QuotientBuilder::default()
    }

    /// The fingerprints will be long enough for a merge that has `room` entries in all.
    #[must_use]
    pub fn with_room(self, room: u64) -> QuotientBuilder {
        QuotientBuilder { room, ..self }
    }

    /// Adds a key by its [`crate::base::key_hash`], in any order.
    #[inline]
    pub fn add(&mut self, hash: u64) {
        self.hashes.push(hash);
    }

    /// Hashes added.
    pub fn len(&self) -> usize {
        self.hashes.len()
    }

    /// Whether none was added.
    pub fn is_empty(&self) -> bool {
        self.hashes.is_empty()
    }

    /// Begins to sort the hashes.
    pub fn sort(self) -> QuotientSort {
        let QuotientBuilder { hashes, room } = self;
        QuotientSort { ends: vec![hashes.len()], hashes, room, sorted: 0 }
    }

    /// The filter: one block a page, whose headers are left to be sealed. Costs a sort, and about as much as that again.
    pub fn build(self) -> (QuotientMeta, AlignedBuf) {
        let mut sort = self.sort();
        while !sort.step(usize::MAX).1 {}
        let mut pages = sort.pages();
        let mut buf = AlignedBuf::zeroed(pages.meta().pages as usize);
        for page in buf.chunks_exact_mut(PAGE) {
            pages.fill(page);
        }
        (pages.meta(), buf)
    }
}

/// So many hashes are sorted at a time.
const PART: usize = 1 << 15;

/// A filter whose hashes are being sorted, some at a time: from the first on, in parts that are halved until they are small.
///
/// ```text
///   | sorted |  part  |     next      |             the rest              |     each is below what comes after it
///                     └───────────────┴───────────────────────────────────┴── ends
/// ```
#[derive(Debug)]
pub struct QuotientSort {
    hashes: LargeVec<u64>,
    room: u64,
    /// How many are.
    sorted: usize,
    /// Where the parts end that are not, the first one last.
    ends: Vec<usize>,
}

impl QuotientSort {
    /// Goes through about `most` hashes: through how many, and whether all are sorted. A part that is too large for a step is halved in one
    /// all the same, which looks at each of its hashes some times.
    pub fn step(&mut self, most: usize) -> (usize, bool) {
        let mut done = 0;
        while done < most
            && let Some(&end) = self.ends.last()
        {
            let part = &mut self.hashes[self.sorted..end];
            done += part.len();
            if part.len() > PART {
                let middle = part.len() / 2;
                part.select_nth_unstable(middle);
                self.ends.push(self.sorted + middle);
            } else {
                part.sort_unstable();
                self.sorted = end;
                self.ends.pop();
            }
        }
        (done, self.ends.is_empty())
    }

    /// The pages to be filled.
    ///
    /// # Panics
    /// If not all are sorted.
    pub fn pages(self) -> QuotientPages {
        let QuotientSort { mut hashes, room, ends, .. } = self;
        assert!(ends.is_empty(), "pages follow from sorted hashes");
        hashes.dedup();
        let entries = hashes.len() as u64;
        let bits = fingerprint_bits(entries, RATE_BITS).max(super::maplet::bits_for_room(room));
        QuotientPages { cutter: Cutter::new(QuotientMeta::sized(entries, 1, bits, 0, SLACK), 0), hashes }
    }
}

/// A filter whose pages are being written, one after the other.
#[derive(Debug)]
pub struct QuotientPages {
    hashes: LargeVec<u64>,
    cutter: Cutter,
}

impl QuotientPages {
    /// The description of the filter; its entries are those of the pages so far.
    pub fn meta(&self) -> QuotientMeta {
        QuotientMeta { entries: self.cutter.entries, ..self.cutter.meta }
    }

    /// Pages that are still to be filled.
    pub fn left(&self) -> u32 {
        self.cutter.meta.pages - self.cutter.page
    }

    /// Writes the next page, of zeros so far, but for its header. How many hashes it took.
    ///
    /// # Panics
    /// If none is left.
    pub fn fill(&mut self, page: &mut [u8]) -> usize {
        assert!(self.left() > 0, "a filter has so many pages");
        self.cutter.fill(page, &self.hashes, |&hash| Fingerprint { low: hash, high: hash, value: 0 })
    }
}
