//! The blocked Bloom filter of a run. A probe reads one cache line of one page.
//!
//! ```text
//!   key hash, 64 bits ──× pages──▶ page │ fraction ──× 63──▶ line │ remixed ──▶ 7 × 9 bits of 512
//!
//!   filter block, 4 KiB   | header 16, zeros 48 | line 0 | line 1 | … | line 62 |     64 bytes a line
//! ```
//!
//! Steps: the builder of a run collects one hash per distinct key ([`BloomBuilder::add`]). After the last key, the
//! builder allocates [`BITS_PER_KEY`] for each key and sets the bits ([`BloomBuilder::build`]). A lookup computes the
//! page from the hash ([`page_of`]), reads that page, and probes it ([`may_contain`]).
//!
//! Invariant: a probe for an added hash is always positive. A probe for any other hash is positive with a probability
//! of about 1 %. An unblocked filter of the same size has 0.8 %. The blocked filter is worse because some of its lines
//! of 512 bits get more keys than others.
//!
//! Source: Putze, Sanders and Singler, "Cache-, Hash- and Space-Efficient Bloom Filters", 2007.

use crate::base::{LargeVec, PAGE};
use crate::device::AlignedBuf;
use crate::space::BLOCK_HEADER;

/// The number of bits of the filter for each distinct key.
pub const BITS_PER_KEY: u64 = 10;
/// The number of bits that a key sets. All of them are in one line.
const PROBES: u32 = 7;
/// The size of a line in bytes: one cache line. The block's header takes up the first line of a block, so that the
/// other lines are aligned to cache lines.
const LINE: usize = 64;
/// The number of lines of a filter block.
const LINES: u64 = (PAGE / LINE - 1) as u64;

const _: () = assert!(BLOCK_HEADER <= LINE && LINE * 8 == 1 << 9 && PROBES * 9 < 64);

/// The page to probe for a key with this hash, in a filter of `pages` pages. `pages` is at least 1.
#[inline]
pub fn page_of(hash: u64, pages: u32) -> u32 {
    debug_assert!(pages > 0, "an empty filter has no page to ask");
    place(hash, pages).0
}

/// The page of a hash, and the line in that page. The high bits of a product determine the page, and its low bits
/// determine the line.
#[inline]
#[expect(clippy::cast_possible_truncation, reason = "the low half of the product is wanted; page and line are small")]
fn place(hash: u64, pages: u32) -> (u32, usize) {
    let wide = u128::from(hash) * u128::from(pages);
    let line = (u128::from(wide as u64) * u128::from(LINES)) >> 64;
    debug_assert!(wide >> 64 < u128::from(pages.max(1)) && line < u128::from(LINES), "page and line are in the filter");
    ((wide >> 64) as u32, line as usize)
}

/// The bits that a hash sets inside its line, each below 512.
#[inline]
fn bits(hash: u64) -> impl Iterator<Item = usize> {
    // All keys of a line have hashes with the same high bits, so mix the hash before it is cut into bit numbers.
    let mut mixed = (hash ^ (hash >> 32)).wrapping_mul(0xd6e8_feb8_6659_fd93);
    mixed = (mixed ^ (mixed >> 32)).wrapping_mul(0xd6e8_feb8_6659_fd93);
    mixed ^= mixed >> 32;
    (0..PROBES).map(move |i| ((mixed >> (9 * i)) & 511) as usize)
}

/// Whether the run may hold a key with this hash. `page` is the verified block with the number [`page_of`], of a filter
/// of `pages` pages. If the result is `false`, the run certainly holds no such key.
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
    /// Creates a builder without keys.
    pub fn new() -> BloomBuilder {
        BloomBuilder::default()
    }

    /// Adds a key by its [`crate::base::key_hash`]. Each distinct key must be added exactly once.
    #[inline]
    pub fn add(&mut self, hash: u64) {
        self.hashes.push(hash);
    }

    /// The number of blocks that the filter needs.
    pub fn pages(&self) -> u32 {
        let bits = self.hashes.len() as u64 * BITS_PER_KEY;
        let pages = bits.div_ceil(LINES * LINE as u64 * 8);
        u32::try_from(pages).expect("a filter has fewer than 2^32 pages")
    }

    /// Returns the filter: [`BloomBuilder::pages`] blocks of one page each. The block headers are not written yet.
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
