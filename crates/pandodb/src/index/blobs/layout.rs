//! The sizes of nodes, in entries and in encoded bytes: limits that the format and the node in memory share.

use crate::base::PAGE;
use crate::base::codec::varint_len;
use crate::index::stored::LENGTH;
use crate::space::BLOCK_HEADER;

/// Start and length of a range of pages.
pub type PageRange = (u64, u64);

/// The longest body.
pub const MAX_BODY: usize = PAGE - BLOCK_HEADER - LENGTH;
/// Upper limit of page numbers and counts of pages.
pub const MAX_PAGE: u64 = 1 << 48;
/// Upper limit of the height: with the smallest fan-out such a map could hold any number of ranges.
pub const MAX_HEIGHT: u64 = 40;
/// Bytes of a height and a count.
const HEAD: usize = 1 + 2;
/// Bytes of a page number, or of a count of pages.
pub const PAGE_VARINT: usize = 7;
/// Bytes of a child: gap, sums, and the address with its owner, length and two pages.
const CHILD_BYTES: usize = 3 * PAGE_VARINT + (10 + 1 + 2 * PAGE_VARINT);
/// Bytes of the ranges of a leaf.
pub const MAX_RANGE_BYTES: usize = MAX_BODY - HEAD;

const _: () = assert!(MAX_PAGE < 1 << (7 * PAGE_VARINT));
const _: () = assert!(MAX_HEIGHT < 1 << 7 && MAX_RANGES < 1 << 14 && MAX_CHILDREN < 1 << 14, "they fit HEAD");
const _: () = assert!(HEAD + MAX_CHILDREN * CHILD_BYTES <= MAX_BODY, "the largest inner node fits one page");

/// Bytes of ranges in a leaf's encoded form; the first range follows page `end`.
pub fn range_bytes(mut end: u64, ranges: impl Iterator<Item = PageRange>) -> usize {
    let mut bytes = 0;
    for (start, len) in ranges {
        bytes += varint_len(start - end) + varint_len(len);
        end = start + len;
    }
    bytes
}

/// Maximum number of ranges in a leaf. In a typical fragmented file a range takes 2 to 4 bytes, so a full leaf uses
/// most of its page.
pub const MAX_RANGES: usize = 1024;
/// Maximum number of children of an inner node. In the worst case its encoded form fits one page (checked above
/// at compile time).
pub const MAX_CHILDREN: usize = 88;
/// The smallest valid fan-out: splitting and merging nodes needs some entries.
const MIN_FANOUT: usize = 4;
/// If memtables are small, nodes get one entry per this many bytes of a memtable.
const MEMTABLE_BYTES_PER_ENTRY: u64 = 1024;

/// The maximum number of entries in a node. A setting of the open map, not of the format: a node on disk may have any
/// number up to the format's limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fanout {
    /// The most ranges in a leaf.
    pub ranges: usize,
    /// The most children of an inner node.
    pub children: usize,
}

impl Fanout {
    /// The fan-out for nodes that fill a page.
    pub const PAGE: Fanout = Fanout { ranges: MAX_RANGES, children: MAX_CHILDREN };

    /// At most `entries` in each node, within the bounds of the format.
    pub fn new(entries: usize) -> Fanout {
        let entries = entries.max(MIN_FANOUT);
        Fanout { ranges: entries.min(MAX_RANGES), children: entries.min(MAX_CHILDREN) }
    }

    /// The fan-out for an index with memtables of that size: the maximum for memtables of 1 MiB or more. Stores with
    /// tiny memtables, which hold little data, get small nodes and thus a map of several levels, because the tests of
    /// whole stores use such stores.
    pub fn of_memtable(memtable_bytes: u64) -> Fanout {
        Fanout::new((memtable_bytes / MEMTABLE_BYTES_PER_ENTRY).min(MAX_RANGES as u64) as usize)
    }
}

/// Sums over the ranges below a node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Totals {
    /// Ranges.
    pub ranges: u64,
    /// Pages in these ranges.
    pub pages: u64,
}
