//! Limits on the size of a node, in entries and in encoded bytes. They apply to the format on disk and to the nodes in
//! memory.

use crate::base::PAGE;
use crate::base::codec::varint_len;
use crate::index::stored::LENGTH;
use crate::space::BLOCK_HEADER;

/// Start and length of a range of pages.
pub type PageRange = (u64, u64);

/// The maximum size of the body of a node's block, in bytes.
pub const MAX_BODY: usize = PAGE - BLOCK_HEADER - LENGTH;
/// Upper limit of page numbers and counts of pages.
pub const MAX_PAGE: u64 = 1 << 48;
/// Upper limit of the height. Even with the smallest fan-out, a map of this height has room for more ranges than a
/// store can ever have.
pub const MAX_HEIGHT: u64 = 40;
/// The bytes that a node's height and its number of entries take.
const HEAD: usize = 1 + 2;
/// The maximum encoded size of a page number, or of a number of pages, in bytes.
pub const PAGE_VARINT: usize = 7;
/// The maximum encoded size of a child's entry, in bytes. The entry has the gap, the two sums, and the address, which
/// consists of owner, length and two pages.
const CHILD_BYTES: usize = 3 * PAGE_VARINT + (10 + 1 + 2 * PAGE_VARINT);
/// The maximum encoded size of all ranges of a leaf, in bytes.
pub const MAX_RANGE_BYTES: usize = MAX_BODY - HEAD;

const _: () = assert!(MAX_PAGE < 1 << (7 * PAGE_VARINT));
const _: () = assert!(MAX_HEIGHT < 1 << 7 && MAX_RANGES < 1 << 14 && MAX_CHILDREN < 1 << 14, "they fit HEAD");
const _: () = assert!(HEAD + PAGE_VARINT + 2 + 8 * MAX_WORDS <= MAX_BODY, "the longest bitmap fits one page");
const _: () = assert!(HEAD + MAX_CHILDREN * CHILD_BYTES <= MAX_BODY, "the largest inner node fits one page");

/// The encoded size of these consecutive ranges of a leaf, in bytes. `end` is the page before which the range in front
/// of them ends.
pub fn range_bytes(mut end: u64, ranges: impl Iterator<Item = PageRange>) -> usize {
    let mut bytes = 0;
    for (start, len) in ranges {
        bytes += varint_len(start - end) + varint_len(len);
        end = start + len;
    }
    bytes
}

/// Maximum number of ranges in a leaf. In a typical fragmented file a range takes 2 to 4 bytes, so a full leaf fills
/// most of its page.
pub const MAX_RANGES: usize = 1024;
/// Maximum number of children of an inner node. In the worst case the encoded form of such a node fits one page
/// (checked above at compile time).
pub const MAX_CHILDREN: usize = 88;
/// Maximum number of words of a bitmap. The bitmap fills a page, together with the page of its first bit and its
/// length. A bitmap of this size has the pages of 125 MiB.
pub const MAX_WORDS: usize = 500;
/// The smallest valid fan-out. Below this fan-out, nodes have too few entries to be split and merged.
const MIN_FANOUT: usize = 4;
/// If memtables are small, the fan-out is one entry per this number of bytes of the memtable.
const MEMTABLE_BYTES_PER_ENTRY: u64 = 1024;

/// The maximum number of entries in a node. This is a setting of the open map, not of the format: a node on disk may
/// have any number of entries up to the format's limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fanout {
    /// The maximum number of ranges in a leaf.
    pub ranges: usize,
    /// The maximum number of children of an inner node.
    pub children: usize,
    /// The maximum number of words of a bitmap; 0: leaves are never bitmaps.
    pub words: usize,
}

impl Fanout {
    /// The fan-out for nodes that fill a page.
    pub const PAGE: Fanout = Fanout { ranges: MAX_RANGES, children: MAX_CHILDREN, words: 0 };

    /// A fan-out of at most `entries` in each node, within the bounds of the format.
    pub fn new(entries: usize) -> Fanout {
        let entries = entries.max(MIN_FANOUT);
        Fanout { ranges: entries.min(MAX_RANGES), children: entries.min(MAX_CHILDREN), words: 0 }
    }

    /// The same fan-out, but a leaf with too many ranges becomes a bitmap if the bitmap fits. For sets of many short
    /// ranges, as the pages of a tree.
    #[must_use]
    pub fn with_bitmaps(self) -> Fanout {
        Fanout { words: (self.ranges * 2).min(MAX_WORDS), ..self }
    }

    /// The fan-out for an index with memtables of `memtable_bytes`. For memtables of 1 MiB or more it is the maximum.
    /// Tests of whole stores use tiny memtables and little data. Their maps get small nodes, so that the tests cover
    /// maps with several levels.
    pub fn of_memtable(memtable_bytes: u64) -> Fanout {
        Fanout::new((memtable_bytes / MEMTABLE_BYTES_PER_ENTRY).min(MAX_RANGES as u64) as usize)
    }
}

/// Sums over the ranges below a node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Totals {
    /// The number of ranges.
    pub ranges: u64,
    /// The number of pages in these ranges.
    pub pages: u64,
}
