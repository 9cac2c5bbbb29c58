//! Compressed leaves of runs and of trees: a leaf, stored as LZ4 in fewer pages.
//!
//! ```text
//!  0  block header (16 bytes, `space::data`), kind "compressed leaf" or "compressed leaf page", pages as stored
//! 16  length u32      bytes of the leaf, its header included, up to the end of its last entry
//! 20  packed u32      bytes of LZ4
//! 24  LZ4 block (without a frame) of the leaf from its byte 16 to its length │ zeros
//! ```
//!
//! All numbers are little-endian. The header's checksum covers the stored bytes and is checked before anything is
//! decompressed. The result of decompression is an ordinary leaf ([`super::leaf`]), except that its header repeats the
//! number of pages *on disk*. A reader needs this number to compute the position of the next leaf.
//!
//! Steps of a builder of a run ([`Compressor`]):
//!
//! 1. Fill a leaf up to the limit that [`Compressor::begin`] returns. The limit is at most 16 KiB. It is computed from
//!    the compression ratio of the previous leaf, so that the compressed leaf just fills whole pages.
//! 2. [`Compressor::compress`] the leaf. If compression saves enough, store the compressed leaf.
//! 3. Otherwise put the messages of the leaf into ordinary leaves. For the next [`RESTS`] leaves, do not try
//!    compression.
//!
//! A tree divides its messages into leaves without regard to compression. It compresses each leaf for which this saves a
//! page ([`Compressor::compress_page`]).
//!
//! Invariants: a compressed leaf takes fewer pages than the uncompressed leaf would take; in a run, the LZ4 bytes are at
//! most three quarters of the uncompressed bytes; the uncompressed leaf has at most [`MOST_PAGES`] pages in a run, and
//! [`MOST_TREE_PAGES`] in a tree, so that damaged bytes on disk cannot make a reader allocate more. Source: [decision
//! 0033](../../../../docs/decisions/0033-lz4-on-bottom-runs.md).

use lz4_flex::block::{CompressTable, compress_into_with_table, decompress_into, get_maximum_output_size};

use super::leaf::LeafBuilder;
use crate::base::PAGE;
use crate::space::data::stored_pages;
use crate::space::{BLOCK_HEADER, BlockKind, MAX_BLOCK_PAGES};

/// How the leaves of new runs at the bottom of an index are stored, and all new leaves of a B+-tree. Existing leaves
/// stay readable with both settings.
#[non_exhaustive]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Compression {
    /// Uncompressed: a lookup reads a leaf of 4 KiB.
    #[default]
    None,
    /// As LZ4, if compression makes a leaf of a run at least a quarter shorter, or saves a page of a leaf of a B+-tree.
    Lz4,
}

/// The offset of the LZ4 bytes in a stored block.
const PACKED: usize = BLOCK_HEADER + 8;
/// The most pages of a compressed leaf of a run in memory: 64 KiB. This is enough for all but the longest inline values.
pub const MOST_PAGES: usize = 16;
/// The most pages of a compressed leaf of a tree in memory: 4 MiB, the size of the longest pages that a user can choose.
pub const MOST_TREE_PAGES: usize = 1024;
/// The size in bytes to which a leaf is filled before it is compressed, unless the messages of a single key take more.
const FULL: usize = 4 * PAGE;
/// The number of ordinary leaves that follow a badly compressible leaf, before compression is tried again. So if data
/// is incompressible, about an eighth of its bytes is compressed without any gain, or more if keys have many messages.
const RESTS: u32 = 32;
/// The number of leaves of a tree that are not compressed after such a leaf. It is smaller, because a job often rewrites
/// few leaves, and neighbouring leaves may differ.
const TREE_RESTS: u32 = 8;

const _: () = assert!(FULL <= MOST_PAGES * PAGE, "a reader accepts a full leaf");
const _: () = assert!(PACKED < PAGE && MOST_TREE_PAGES * PAGE <= u32::MAX as usize, "lengths have four bytes");
const _: () = assert!(MOST_TREE_PAGES <= MAX_BLOCK_PAGES as usize, "the pool holds such a leaf uncompressed, too");

/// The state of a builder of compressed leaves, except for the leaf being filled.
pub struct Compressor {
    /// The uncompressed leaf, in whole pages. The next field (`stored`) holds the leaf as it is stored on disk, also in
    /// whole pages.
    leaf: Vec<u8>,
    stored: Vec<u8>,
    table: CompressTable,
    limit: usize,
    /// The number of ordinary leaves to write before compression is tried again.
    rests: u32,
}

impl Default for Compressor {
    fn default() -> Compressor {
        Compressor { leaf: Vec::new(), stored: Vec::new(), table: CompressTable::small(), limit: FULL, rests: 0 }
    }
}

impl Compressor {
    /// The size in bytes to which the next leaf is filled before it is compressed; `None` if the next leaf will be an
    /// ordinary leaf.
    pub fn begin(&mut self) -> Option<usize> {
        if self.rests > 0 {
            self.rests -= 1;
            return None;
        }
        debug_assert!((PAGE..=FULL).contains(&self.limit), "a leaf is filled up to {} bytes", self.limit);
        Some(self.limit)
    }

    /// Compresses a leaf. Returns the number of pages of the compressed leaf, which [`Compressor::fill`] writes; `None`
    /// if compression does not save enough. `pages_before` and `flags` have the same meaning as in
    /// [`LeafBuilder::encode`]. Takes about 3 ns for each byte.
    pub fn compress(&mut self, leaf: &LeafBuilder, pages_before: u32, flags: u16) -> Option<u32> {
        let pages = leaf.pages() as usize;
        assert!(pages <= MOST_PAGES, "a compressed leaf is bounded");
        let (length, packed) = self.pack(leaf, pages_before, flags);
        let stored = (PACKED + packed).div_ceil(PAGE);
        if packed * 4 > length * 3 || stored >= pages {
            (self.limit, self.rests) = (FULL, RESTS);
            return None;
        }
        self.limit = limit_after(length, packed);
        Some(bounded(stored))
    }

    /// Compresses a leaf of a tree. Returns the number of pages of the compressed leaf; `None` if compression saves no
    /// page. `mark` and `flags` have the same meaning as in [`LeafBuilder::encode`]. After a leaf of incompressible
    /// messages, the next leaves are not compressed, which saves their time.
    pub fn compress_page(&mut self, leaf: &LeafBuilder, mark: u32, flags: u16) -> Option<u32> {
        let pages = leaf.pages() as usize;
        if !(2..=MOST_TREE_PAGES).contains(&pages) {
            return None;
        }
        if self.rests > 0 {
            self.rests -= 1;
            return None;
        }
        let (length, packed) = self.pack(leaf, mark, flags);
        let stored = (PACKED + packed).div_ceil(PAGE);
        if packed * 8 > length * 7 {
            self.rests = TREE_RESTS;
        }
        (stored < pages).then(|| bounded(stored))
    }

    /// The leaf that was compressed last, as the pool holds it: uncompressed, with the kind `kind`, and with the number of
    /// pages on disk in its header.
    pub fn in_memory(&mut self, kind: BlockKind) -> &[u8] {
        let stored = bounded(self.stored.len().div_ceil(PAGE));
        set_header(&mut self.leaf, kind, stored);
        &self.leaf
    }

    /// Compresses a leaf into `stored`. Returns the bytes of the leaf, and the bytes of LZ4.
    fn pack(&mut self, leaf: &LeafBuilder, link: u32, flags: u16) -> (usize, usize) {
        let (length, pages) = (leaf.exact_size(), leaf.pages() as usize);
        self.leaf.resize(pages * PAGE, 0);
        leaf.encode(&mut self.leaf, link, flags);
        let body = &self.leaf[BLOCK_HEADER..length];
        self.stored.clear();
        self.stored.resize(PACKED + get_maximum_output_size(body.len()), 0);
        let packed = compress_into_with_table(body, &mut self.stored[PACKED..], &mut self.table);
        let packed = packed.expect("the output buffer has the maximum size");
        self.stored[BLOCK_HEADER..BLOCK_HEADER + 4].copy_from_slice(&bounded(length).to_le_bytes());
        self.stored[BLOCK_HEADER + 4..PACKED].copy_from_slice(&bounded(packed).to_le_bytes());
        self.stored.truncate(PACKED + packed);
        debug_assert!(self.unpacks(length), "a reader decompresses the leaf");
        (length, packed)
    }

    /// Whether the stored bytes decompress to the leaf, which has `length` bytes.
    fn unpacks(&self, length: usize) -> bool {
        let mut body = vec![0; length - BLOCK_HEADER];
        let unpacked = decompress_into(&self.stored[PACKED..], &mut body);
        unpacked.is_ok_and(|bytes| bytes == body.len()) && body == self.leaf[BLOCK_HEADER..length]
    }

    /// Writes the body of the block that was compressed last into `block`, which has the number of pages that
    /// [`Compressor::compress`] or [`Compressor::compress_page`] returned. Does not write the block's header.
    pub fn fill(&self, block: &mut [u8]) {
        assert_eq!(block.len(), self.stored.len().next_multiple_of(PAGE), "the block has the announced pages");
        block[BLOCK_HEADER..self.stored.len()].copy_from_slice(&self.stored[BLOCK_HEADER..]);
        block[self.stored.len()..].fill(0);
    }
}

fn bounded(number: usize) -> u32 {
    u32::try_from(number).expect("a compressed leaf is bounded")
}

/// The size to which the next leaf is filled, given that a leaf of `length` bytes was compressed to `packed` bytes. The
/// compressed leaf should fill whole pages. A margin of 1/32 is subtracted, because a compressed leaf that is slightly
/// too long would need a further, nearly empty page.
fn limit_after(length: usize, packed: usize) -> usize {
    debug_assert!(0 < packed && packed < length, "compression has saved bytes");
    let full = PACKED + FULL * packed / length;
    let pages = (full + full / 32) / PAGE;
    if pages == 0 {
        return FULL;
    }
    let fits = (pages * PAGE - PACKED) * length / packed;
    (fits - fits / 32).clamp(PAGE, FULL)
}

/// Whether a block that was read as a leaf must be decompressed.
#[inline]
pub(super) fn is_compressed(stored: &[u8]) -> bool {
    stored[4] == BlockKind::RunCompressedLeaf as u8
}

/// Decompresses a compressed leaf of a run whose checksum was correct, into whole pages. [`super::Leaf::check`] must check
/// the result.
///
/// # Errors
/// A description of the flaw. After an error, `leaf` is empty.
pub fn unpack(stored: &[u8], leaf: &mut Vec<u8>) -> Result<(), &'static str> {
    leaf.clear();
    leaf.resize(unpacked_pages(stored, MOST_PAGES)? * PAGE, 0);
    unpack_into(stored, BlockKind::RunLeaf, leaf).inspect_err(|_| leaf.clear())
}

fn number(stored: &[u8], at: usize) -> usize {
    u32::from_le_bytes([stored[at], stored[at + 1], stored[at + 2], stored[at + 3]]) as usize
}

/// The number of pages that a compressed leaf has in memory, at most `most`.
///
/// # Errors
/// A description of the flaw.
pub fn unpacked_pages(stored: &[u8], most: usize) -> Result<usize, &'static str> {
    let pages = number(stored, BLOCK_HEADER).div_ceil(PAGE);
    if pages > most || pages <= stored.len() / PAGE {
        return Err("the length of a compressed leaf is out of bounds");
    }
    Ok(pages)
}

/// Decompresses a compressed leaf into `leaf`, which consists of [`unpacked_pages`] pages of zeros, and gives it the kind
/// `kind`. [`super::Leaf::check`] must check the result.
///
/// # Errors
/// A description of the flaw.
pub fn unpack_into(stored: &[u8], kind: BlockKind, leaf: &mut [u8]) -> Result<(), &'static str> {
    let (length, packed) = (number(stored, BLOCK_HEADER), number(stored, BLOCK_HEADER + 4));
    assert_eq!(leaf.len(), length.next_multiple_of(PAGE), "the leaf has the pages that it needs");
    if packed > stored.len() - PACKED {
        return Err("the length of a compressed leaf is out of bounds");
    }
    match decompress_into(&stored[PACKED..PACKED + packed], &mut leaf[BLOCK_HEADER..length]) {
        Ok(unpacked) if unpacked == length - BLOCK_HEADER => {}
        _ => return Err("a compressed leaf does not decompress to its recorded length"),
    }
    set_header(leaf, kind, stored_pages(stored));
    Ok(())
}

/// Sets the parts of the header of an uncompressed leaf that readers use: the kind and the number of pages on disk.
fn set_header(leaf: &mut [u8], kind: BlockKind, stored_pages: u32) {
    leaf[4] = kind as u8;
    leaf[8..12].copy_from_slice(&stored_pages.to_le_bytes());
}
