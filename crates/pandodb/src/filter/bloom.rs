//! The blocked Bloom filter of a run: a probe reads one page, and one cache line of it.
//!
//! ```text
//!   key hash, 64 bits ──× pages──▶ page │ fraction ──× 63──▶ line │ remixed ──▶ 7 × 9 bits of 512
//!
//!   filter block, 4 KiB   | header 16, zeros 48 | line 0 | line 1 | … | line 62 |     64 bytes a line
//! ```
//!
//! Steps: the builder of a run collects one hash per distinct key ([`BloomBuilder::add`]). After the last key it sizes
//! the filter at [`BITS_PER_KEY`] and sets the bits ([`BloomBuilder::build`]). A lookup computes the page from the hash
//! ([`page_of`]), reads that page, and probes it ([`may_contain`]).
//!
//! Invariant: a probe for an added hash is always positive. Others are positive with a probability of about 1 %,
//! against 0.8 % for an unblocked filter, since some blocks of 512 bits get more keys than others.
//!
//! Source: Putze, Sanders and Singler, "Cache-, Hash- and Space-Efficient Bloom Filters", 2007.

use crate::base::{LargeVec, PAGE};
use crate::device::AlignedBuf;
use crate::space::BLOCK_HEADER;

/// Bits of the filter for each distinct key.
pub const BITS_PER_KEY: u64 = 10;
/// Bits that a key sets, all in one line.
const PROBES: u32 = 7;
/// Bytes of a line: a cache line. The first line of a block holds its header, so that the others are aligned.
const LINE: usize = 64;
/// Lines of a filter block.
const LINES: u64 = (PAGE / LINE - 1) as u64;

const _: () = assert!(BLOCK_HEADER <= LINE && LINE * 8 == 1 << 9 && PROBES * 9 < 64);

/// The page to probe for a key with this hash, in a filter of `pages` pages, at least one.
#[inline]
pub fn page_of(hash: u64, pages: u32) -> u32 {
    debug_assert!(pages > 0, "an empty filter has no page to ask");
    place(hash, pages).0
}

/// The page of a hash and the line in it: the high bits of the product determine the page, the low bits the line.
#[inline]
#[expect(clippy::cast_possible_truncation, reason = "the low half of the product is wanted; page and line are small")]
fn place(hash: u64, pages: u32) -> (u32, usize) {
    let wide = u128::from(hash) * u128::from(pages);
    let line = (u128::from(wide as u64) * u128::from(LINES)) >> 64;
    debug_assert!(wide >> 64 < u128::from(pages.max(1)) && line < u128::from(LINES), "page and line are in the filter");
    ((wide >> 64) as u32, line as usize)
}

/// The bits of a hash inside its line, each below 512.
#[inline]
fn bits(hash: u64) -> impl Iterator<Item = usize> {
    // All keys of a line have the same high bits, so mix the hash before slicing it.
    let mut mixed = (hash ^ (hash >> 32)).wrapping_mul(0xd6e8_feb8_6659_fd93);
    mixed = (mixed ^ (mixed >> 32)).wrapping_mul(0xd6e8_feb8_6659_fd93);
    mixed ^= mixed >> 32;
    (0..PROBES).map(move |i| ((mixed >> (9 * i)) & 511) as usize)
}

/// Whether the run may hold a key with this hash. `page` is the block with the number [`page_of`], verified, of a
/// filter of `pages` pages. `false` is certain.
#[inline]
pub fn may_contain(page: &[u8], pages: u32, hash: u64) -> bool {
    let at = LINE + place(hash, pages).1 * LINE;
    let line = &page[at..at + LINE];
    bits(hash).all(|bit| line[bit / 8] & (1 << (bit % 8)) != 0)
}

/// Collects the hashes of a run's keys. Costs 8 bytes a key.
#[derive(Debug, Default)]
pub struct BloomBuilder {
    hashes: LargeVec<u64>,
}

impl BloomBuilder {
    /// No keys yet.
    pub fn new() -> BloomBuilder {
        BloomBuilder::default()
    }

    /// Adds a key by its [`crate::base::key_hash`]; each distinct key once.
    #[inline]
    pub fn add(&mut self, hash: u64) {
        self.hashes.push(hash);
    }

    /// The blocks that the filter needs.
    pub fn pages(&self) -> u32 {
        let bits = self.hashes.len() as u64 * BITS_PER_KEY;
        let pages = bits.div_ceil(LINES * LINE as u64 * 8);
        u32::try_from(pages).expect("a filter has fewer than 2^32 pages")
    }

    /// The filter: [`BloomBuilder::pages`] blocks of one page each, without their block headers.
    pub fn build(self) -> AlignedBuf {
        let pages = self.pages();
        let mut buf = AlignedBuf::zeroed(pages as usize);
        let bytes = &mut buf[..];
        for &hash in self.hashes.iter() {
            let (page, line) = place(hash, pages);
            let at = page as usize * PAGE + LINE + line * LINE;
            let line = &mut bytes[at..at + LINE];
            bits(hash).for_each(|bit| line[bit / 8] |= 1 << (bit % 8));
        }
        let finds = |hash: u64| may_contain(&bytes[page_of(hash, pages) as usize * PAGE..][..PAGE], pages, hash);
        debug_assert!(self.hashes.iter().all(|&hash| finds(hash)), "a probe finds each added key");
        buf
    }
}
