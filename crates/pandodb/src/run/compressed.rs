//! Compressed leaves: a leaf of up to 16 pages, stored as LZ4 in fewer of them.
//!
//! ```text
//!  0  block header (16 bytes, `space::data`), kind "compressed leaf", pages as they are stored
//! 16  length u32      bytes of the leaf, its header included, up to the end of its last entry
//! 20  packed u32      bytes of LZ4
//! 24  LZ4 block (without a frame) of the leaf from its byte 16 to its length │ zeros
//! ```
//!
//! All little-endian. The checksum of the header is over what is stored, and is looked at before anything is unpacked. What was
//! unpacked is a leaf as any other ([`super::leaf`]), with a header that repeats how many pages it has *on disk*: by these leaves
//! follow one another.
//!
//! Steps of a builder ([`Compressor`]): fill a leaf up to [`Compressor::limit`], [`Compressor::compress`] it; if that is worth it
//! the leaf is stored like this, else its messages go into ordinary leaves, as if nothing had been tried, and the next
//! [`RESTS`] leaves are ordinary ones without trying. The limit is 16 KiB, or less, so that what comes out fills whole
//! pages: how much that is the leaf before tells.
//!
//! Invariants: a compressed leaf takes fewer pages than it would take as it was; its LZ4 is at most three quarters of it; it has at
//! most [`MOST_PAGES`] in memory, so that nothing from disk makes a reader allocate more.

use lz4_flex::block::{CompressTable, compress_into_with_table, decompress_into, get_maximum_output_size};

use super::leaf::LeafBuilder;
use super::slots::Flaw;
use crate::base::PAGE;
use crate::space::data::stored_pages;
use crate::space::{BLOCK_HEADER, BlockKind};

/// How the leaves of new runs at the bottom of a tree are stored. Whatever is there already is read all the same.
#[non_exhaustive]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Compression {
    /// As they are: a lookup reads 4 KiB.
    #[default]
    None,
    /// As LZ4, where that makes a leaf a quarter shorter at least.
    Lz4,
}

/// Where LZ4 begins in a stored block.
const PACKED: usize = BLOCK_HEADER + 8;
/// The most pages of a compressed leaf in memory, 64 KiB: room for any inline value but the very longest.
pub const MOST_PAGES: usize = 16;
/// What a leaf is filled to before it is compressed, in bytes, unless a single key has more.
const FULL: usize = 4 * PAGE;
/// Ordinary leaves after one that was not worth it, until it is tried again: about an eighth of the bytes is tried in vain, more where a key has many messages.
const RESTS: u32 = 32;

/// What the builder of a compressed run needs beside a leaf.
pub struct Compressor {
    /// The leaf as it is, and as it is stored: whole pages each.
    leaf: Vec<u8>,
    stored: Vec<u8>,
    table: CompressTable,
    limit: usize,
    /// Leaves until it is tried again.
    rests: u32,
}

impl Default for Compressor {
    fn default() -> Compressor {
        Compressor { leaf: Vec::new(), stored: Vec::new(), table: CompressTable::small(), limit: FULL, rests: 0 }
    }
}

impl Compressor {
    /// The bytes that the next leaf is to have before it is compressed; `None` if it is to be an ordinary one.
    pub fn begin(&mut self) -> Option<usize> {
        if self.rests > 0 {
            self.rests -= 1;
            return None;
        }
        Some(self.limit)
    }

    /// Compresses a leaf: the pages that it takes then, to be filled by [`Compressor::fill`]. `None` if it is not worth it.
    /// `pages_before` and `flags`: see [`LeafBuilder::encode`]. About 3 ns a byte (design §9).
    pub fn compress(&mut self, leaf: &LeafBuilder, pages_before: u32, flags: u16) -> Option<u32> {
        let (length, pages) = (leaf.exact_size(), leaf.pages() as usize);
        assert!(pages <= MOST_PAGES, "a compressed leaf is bounded");
        self.leaf.resize(pages * PAGE, 0);
        leaf.encode(&mut self.leaf, pages_before, flags);
        let body = &self.leaf[BLOCK_HEADER..length];
        self.stored.clear();
        self.stored.resize(PACKED + get_maximum_output_size(body.len()), 0);
        let packed = compress_into_with_table(body, &mut self.stored[PACKED..], &mut self.table);
        let packed = packed.expect("there is room for the worst that may come out");
        let stored = (PACKED + packed).div_ceil(PAGE);
        if packed * 4 > length * 3 || stored >= pages {
            (self.limit, self.rests) = (FULL, RESTS);
            return None;
        }
        self.stored[BLOCK_HEADER..BLOCK_HEADER + 4].copy_from_slice(&(length as u32).to_le_bytes());
        self.stored[BLOCK_HEADER + 4..PACKED].copy_from_slice(&(packed as u32).to_le_bytes());
        self.stored.truncate(PACKED + packed);
        self.limit = limit_after(length, packed);
        Some(stored as u32)
    }

    /// Writes the body of the block that was made last into `block`, which has its pages; the header is left to be sealed.
    pub fn fill(&self, block: &mut [u8]) {
        block[BLOCK_HEADER..self.stored.len()].copy_from_slice(&self.stored[BLOCK_HEADER..]);
        block[self.stored.len()..].fill(0);
    }
}

/// What the next leaf is filled to, when one of `length` bytes came to `packed`: as much as fills whole pages, with a thirty-second to
/// spare, since the last of them would be read and hold hardly anything.
fn limit_after(length: usize, packed: usize) -> usize {
    let full = PACKED + FULL * packed / length;
    let pages = (full + full / 32) / PAGE;
    if pages == 0 {
        return FULL;
    }
    let fits = (pages * PAGE - PACKED) * length / packed;
    (fits - fits / 32).clamp(PAGE, FULL)
}

/// Whether a block that was read as a leaf has to be unpacked.
#[inline]
pub(super) fn is_compressed(stored: &[u8]) -> bool {
    stored[4] == BlockKind::RunCompressedLeaf as u8
}

/// Unpacks a compressed leaf whose checksum was right: whole pages, to be looked at by [`super::Leaf::check`].
///
/// # Errors
/// What is wrong, in words; `leaf` is empty then.
pub fn unpack(stored: &[u8], leaf: &mut Vec<u8>) -> Result<(), &'static str> {
    leaf.clear();
    let unpacked = try_unpack(stored, leaf);
    unpacked.inspect_err(|_| leaf.clear())
}

fn try_unpack(stored: &[u8], leaf: &mut Vec<u8>) -> Result<(), Flaw> {
    let number = |at: usize| u32::from_le_bytes([stored[at], stored[at + 1], stored[at + 2], stored[at + 3]]) as usize;
    let (length, packed) = (number(BLOCK_HEADER), number(BLOCK_HEADER + 4));
    let pages = length.div_ceil(PAGE);
    if pages > MOST_PAGES || pages <= stored.len() / PAGE || packed > stored.len() - PACKED {
        return Err("compressed, and of an impossible length");
    }
    leaf.resize(pages * PAGE, 0);
    match decompress_into(&stored[PACKED..PACKED + packed], &mut leaf[BLOCK_HEADER..length]) {
        Ok(unpacked) if unpacked == length - BLOCK_HEADER => {}
        _ => return Err("compressed, and not to be unpacked to the length that it says"),
    }
    leaf[4] = BlockKind::RunLeaf as u8;
    leaf[8..12].copy_from_slice(&stored_pages(stored).to_le_bytes());
    Ok(())
}
