//! The maplet: a filter that shows, with one page read, which of several runs may hold a key.
//!
//! ```text
//!   R filters:   hash ─▶ page of run 0 │ hash ─▶ page of run 1 │ … R pages, R cache misses, R possible false positives
//!   maplet:      hash ─▶ one page ─▶ values 2, 5: search runs 2 and 5
//!
//!   merge        input 0: pages ─▶ (prefix, value) ─┐ renumber
//!                input 1: pages ─▶ (prefix, value) ─┼──▶ the share of one page of the result ─▶ sort ─▶ page
//!                …                                  ┘      page after page, a page of each input in memory
//! ```
//!
//! A maplet is a quotient filter whose entries also hold a small value; `filter::page` implements its pages and probes.
//! If a key is in several runs, it has one entry for each of them. A probe returns all values of a key in ascending
//! order and without duplicates ([`values`]). A caller that wants the newest run first gives this run the smallest
//! value.
//!
//! Steps: hashes with values are added ([`MapletBuilder::add`]), sorted, and written as pages
//! ([`MapletBuilder::build`]). [`Merge`] merges several maplets or filters into one maplet. A merge does not need the
//! keys, because the pages of its inputs hold prefixes of the hashes in order. Flushes and compactions that combine
//! branches merge their filters in this way.
//!
//! If all runs together have n entries, a fingerprint has ⌈log₂ n⌉ + 9 bits, so a probe returns at most 1/512 wrong
//! values on average. A filter of one run has only ⌈log₂ n⌉ + 8 bits. A maplet needs a ninth bit because the number of
//! entries varies more from page to page than in a filter of one run: for example, a key that is in eight runs puts
//! eight entries into one page. With the ninth bit, a page that drops a bit still has a rate of 1/256. *A merge does
//! not make fingerprints longer*: if the filters of runs were built without room for a merge, the merged maplet is only
//! as precise as their fingerprints. So filters that will be merged are built with room for the merge.
//!
//! Invariant: a probe for a hash returns every value that was added with this hash; after a merge, it returns the
//! renumbered values.
//!
//! Source: the filter follows 002 §3.6.3; the values follow the routing filters of 002 ch. 2 and SplinterDB's later
//! work.
//!
//! ```
//! use pandodb::base::{PAGE, key_hash};
//! use pandodb::filter::maplet::{MapletBuilder, values};
//!
//! let mut builder = MapletBuilder::new(7); // values 0 to 7
//! builder.add(key_hash(b"apple"), 2);
//! builder.add(key_hash(b"apple"), 5);
//! builder.add(key_hash(b"pear"), 0);
//! let (meta, pages) = builder.build();
//! let hash = key_hash(b"apple");
//! let mut runs = Vec::new();
//! let sound = values(&pages[meta.page_of(hash) as usize * PAGE..][..PAGE], hash, &mut |run| runs.push(run));
//! assert!(sound && runs == [2, 5]);
//! ```

use std::iter::Peekable;
use std::vec::IntoIter;

use super::page::{Fingerprint, MAX_BITS, Page, PageEncoder};
use super::quotient::{QuotientMeta, fingerprint_bits, write_pages};
use crate::base::{Error, PAGE, Result};
use crate::device::AlignedBuf;

/// The number of bits of a maplet's fingerprint beyond ⌈log₂ n⌉.
const RATE_BITS: u32 = 9;
/// A page has room for its share of the entries if the share is at most this many standard deviations above the mean. A
/// page with a larger share drops bits; the ninth bit of the fingerprint compensates for this.
const SLACK: u64 = 2;

/// Passes each value of a hash to `found` once, in ascending order. `page` is the verified block with the number
/// [`QuotientMeta::page_of`]. Returns `false` if the page is malformed. In this case the caller must search every run
/// and ignore the passed values.
#[inline]
pub fn values(page: &[u8], hash: u64, found: &mut impl FnMut(u8)) -> bool {
    let looked = Page::open(page).and_then(|page| {
        page.look(hash, |value| {
            found(value);
            true
        })
    });
    looked.is_some()
}

/// The number of bits of a fingerprint for a merge of `room` entries; 0 if `room` is 0.
pub(super) fn bits_for_room(room: u64) -> u32 {
    if room == 0 { 0 } else { fingerprint_bits(room, RATE_BITS) }
}

fn value_bits(max_value: u8) -> u32 {
    8 - max_value.leading_zeros()
}

/// Collects hashes with their values. Costs 16 bytes an entry.
#[derive(Debug)]
pub struct MapletBuilder {
    entries: Vec<(u64, u8)>,
    max_value: u8,
    room: u64,
}

impl MapletBuilder {
    /// Creates a builder without entries. Values are at most `max_value`.
    pub fn new(max_value: u8) -> MapletBuilder {
        MapletBuilder { entries: Vec::new(), max_value, room: 0 }
    }

    /// Makes the fingerprints long enough for a merge of `room` entries in total.
    #[must_use]
    pub fn with_room(self, room: u64) -> MapletBuilder {
        MapletBuilder { room, ..self }
    }

    /// Adds a key by its [`crate::base::key_hash`]. Keys may be added in any order. A pair (hash, value) that is added
    /// twice counts once.
    ///
    /// # Panics
    /// If the value exceeds the `max_value` given to [`MapletBuilder::new`].
    #[inline]
    pub fn add(&mut self, hash: u64, value: u8) {
        assert!(value <= self.max_value, "value {value} in a maplet for 0 to {}", self.max_value);
        self.entries.push((hash, value));
    }

    /// The number of entries that were added.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether no entry was added.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Returns the maplet: one block per page, without block headers. Does not sort the entries if they were added in
    /// order.
    pub fn build(mut self) -> (QuotientMeta, AlignedBuf) {
        if !self.entries.is_sorted() {
            self.entries.sort_unstable();
        }
        self.entries.dedup();
        let entries = self.entries.len() as u64;
        let bits = fingerprint_bits(entries, RATE_BITS).max(bits_for_room(self.room));
        let value_bits = value_bits(self.max_value);
        let hashes = self.entries.chunk_by(|a, b| a.0 == b.0).count().max(1) as u64;
        let mut meta = QuotientMeta::sized(entries, entries.div_ceil(hashes), bits, value_bits, SLACK);
        let print = |&(hash, value): &(u64, u8)| Fingerprint { low: hash, high: hash, value };
        let (buf, written) = write_pages(&meta, value_bits, &self.entries, print);
        meta.entries = written;
        (meta, buf)
    }
}

/// A filter or maplet that is an input of a merge.
#[derive(Debug)]
pub struct Input<I> {
    /// The description of the input.
    pub meta: QuotientMeta,
    /// The verified pages of the input, in order.
    pub pages: I,
    /// The new value for each old value, indexed by old value. All keys of a filter that is not a maplet have the old
    /// value 0. `None` drops the entries with this old value.
    pub values: Vec<Option<u8>>,
}

#[derive(Debug)]
struct Source<I> {
    input: Input<I>,
    /// The next page.
    page: u32,
    prints: Peekable<IntoIter<Fingerprint>>,
}

impl<I: Iterator<Item = Result<B>>, B: AsRef<[u8]>> Source<I> {
    /// Moves the entries that begin at or before `last` to `out`, and renumbers them.
    fn drain(&mut self, last: u64, out: &mut Vec<Fingerprint>) -> Result<()> {
        loop {
            while let Some(print) = self.prints.next_if(|print| print.low <= last) {
                let renumbered = self.input.values.get(usize::from(print.value));
                let renumbered = renumbered.ok_or_else(|| self.corrupt("a value out of range"))?;
                out.extend(renumbered.map(|value| Fingerprint { value, ..print }));
            }
            if self.prints.peek().is_some() || self.page == self.input.meta.pages {
                return Ok(());
            }
            let page = self.input.pages.next().ok_or_else(|| self.corrupt("pages are missing"))??;
            self.page += 1;
            let prints = self.read(page.as_ref()).ok_or_else(|| self.corrupt("an inconsistent page"))?;
            self.prints = prints.into_iter().peekable();
        }
    }

    /// The entries of the last page that was read.
    fn read(&self, bytes: &[u8]) -> Option<Vec<Fingerprint>> {
        let (meta, number) = (&self.input.meta, self.page - 1);
        let page = Page::open(bytes).filter(|_| meta.is_sound())?;
        let belongs = page.first() == meta.share(number).0 && page.bits() == u32::from(meta.bits);
        if belongs { page.fingerprints(meta.hashes(number).1) } else { None }
    }

    fn corrupt(&self, detail: &str) -> Error {
        let page = u64::from(self.page.saturating_sub(1));
        Error::corruption("filter block", page * PAGE as u64, detail)
    }
}

/// Merges several filters and maplets into one maplet, page by page, without their keys.
///
/// ```
/// use pandodb::base::{PAGE, key_hash};
/// use pandodb::filter::maplet::{Input, Merge, values};
/// use pandodb::filter::quotient::QuotientBuilder;
///
/// let filter = |keys: [&str; 2]| {
///     let mut builder = QuotientBuilder::new().with_room(4);
///     keys.iter().for_each(|key| builder.add(key_hash(key.as_bytes())));
///     builder.build()
/// };
/// let ((old_meta, old), (new_meta, new)) = (filter(["apple", "pear"]), filter(["fig", "pear"]));
/// let mut merge = Merge::new(
///     vec![
///         Input { meta: new_meta, pages: new.chunks_exact(PAGE).map(Ok), values: vec![Some(0)] },
///         Input { meta: old_meta, pages: old.chunks_exact(PAGE).map(Ok), values: vec![Some(1)] },
///     ],
///     0,
/// )?;
/// let (meta, mut page) = (merge.meta(), [0; PAGE]);
/// assert!(meta.pages == 1 && merge.next_page(&mut page)?);
/// let mut runs = Vec::new();
/// assert!(values(&page, key_hash(b"pear"), &mut |run| runs.push(run)));
/// assert_eq!(runs, [0, 1]);
/// assert!(!merge.next_page(&mut page)?);
/// # Ok::<(), pandodb::Error>(())
/// ```
#[derive(Debug)]
pub struct Merge<I> {
    sources: Vec<Source<I>>,
    meta: QuotientMeta,
    value_bits: u32,
    /// The next page of the result.
    page: u32,
    entries: u64,
    prints: Vec<Fingerprint>,
    encoder: PageEncoder,
}

impl<I: Iterator<Item = Result<B>>, B: AsRef<[u8]>> Merge<I> {
    /// Starts a merge. If the fingerprints of the inputs are long enough for later merges of `room` entries in total,
    /// the fingerprints of the result are, too.
    ///
    /// # Errors
    /// [`Error::Corruption`] if no builder can have produced the description of an input.
    pub fn new(inputs: Vec<Input<I>>, room: u64) -> Result<Merge<I>> {
        if let Some(input) = inputs.iter().find(|input| !input.meta.is_sound()) {
            return Err(Error::corruption("filter", 0, format!("invalid description: {:?}", input.meta)));
        }
        let entries = inputs.iter().map(|input| input.meta.entries).sum::<u64>();
        let longest = inputs.iter().map(|input| u32::from(input.meta.bits)).max().unwrap_or(0);
        let bits = fingerprint_bits(entries, RATE_BITS).max(bits_for_room(room)).min(longest).clamp(1, MAX_BITS);
        let greatest = inputs.iter().flat_map(|input| input.values.iter().copied().flatten()).max();
        let value_bits = value_bits(greatest.unwrap_or(0));
        // How many inputs a key is in, on average, is known only after the merge. So assume a number between the
        // extremes.
        let together = (inputs.len() as u64).isqrt();
        let meta = QuotientMeta::sized(entries, together, bits, value_bits, SLACK);
        if !meta.is_sound() {
            let detail = format!("{entries} entries with fingerprints of {bits} bits");
            return Err(Error::corruption("filter", 0, detail));
        }
        let sources =
            inputs.into_iter().map(|input| Source { input, page: 0, prints: Vec::new().into_iter().peekable() });
        Ok(Merge {
            sources: sources.collect(),
            meta,
            value_bits,
            page: 0,
            entries: 0,
            prints: Vec::new(),
            encoder: PageEncoder::default(),
        })
    }

    /// The result's description. `entries` is an upper bound until the last page was written, and is exact after that.
    pub fn meta(&self) -> QuotientMeta {
        if self.page == self.meta.pages { QuotientMeta { entries: self.entries, ..self.meta } } else { self.meta }
    }

    /// Writes the next page of the result except for its block header. Returns `false`, and writes nothing, if no page
    /// is left.
    ///
    /// # Errors
    /// The errors of reading the inputs' pages, and [`Error::Corruption`] if the contents of a page contradict each
    /// other. After an error, the merge must be dropped.
    pub fn next_page(&mut self, page: &mut [u8]) -> Result<bool> {
        if self.page == self.meta.pages {
            return Ok(false);
        }
        let (first, last) = self.meta.hashes(self.page);
        // Fingerprints with fewer bits may extend from the previous page into this page, so keep them.
        self.prints.retain(|print| print.high >= first);
        for source in &mut self.sources {
            source.drain(last, &mut self.prints)?;
        }
        debug_assert!(self.prints.iter().all(|print| print.low <= last), "an entry of a later page");
        let (share, bits) = (self.meta.share(self.page), u32::from(self.meta.bits));
        self.entries += self.encoder.encode(page, share, bits, self.value_bits, &self.prints) as u64;
        self.page += 1;
        Ok(true)
    }
}
