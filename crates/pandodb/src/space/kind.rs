//! [`BlockKind`]: the kinds of blocks in the data file, the header that all blocks share, and the largest block.
//!
//! The number of a kind is in a block's header and in its checksum, so a block of one kind never passes for a block of
//! another kind. Kinds of blocks that only one type of index has are numbered from 16 on, with eight numbers for each
//! type of index. So a new type of index needs no new format version.

use crate::base::{MAX_KEY, MAX_VALUE, PAGE};

/// The length of a block's header in bytes.
pub const BLOCK_HEADER: usize = 16;
/// The largest number of pages of a block. It is enough for a value and a key of the maximum sizes.
#[expect(clippy::cast_possible_truncation, reason = "the assertion below bounds the product")]
pub const MAX_BLOCK_PAGES: u32 = ((MAX_VALUE + (1 << 20)) / PAGE) as u32;
const _: () = assert!(MAX_BLOCK_PAGES as usize * PAGE == MAX_VALUE + (1 << 20), "the largest block is whole pages");
const _: () = assert!(MAX_BLOCK_PAGES as u64 * (PAGE as u64) < 1 << 32, "offsets in a block have four bytes");
const _: () = assert!(MAX_KEY + BLOCK_HEADER < 1 << 20, "the reserve holds the largest key");
/// The incompatible feature of a store that may have compressed leaves
/// ([`BlockKind::RunCompressedLeaf`](super::BlockKind::RunCompressedLeaf),
/// [`BlockKind::TreeCompressedLeaf`](super::BlockKind::TreeCompressedLeaf)).
pub const COMPRESSED_LEAVES: u64 = 1;
/// The incompatible feature of a store whose runs may have entries without a seqno of their own, because a sorted load
/// built them. The seqno of these entries is in the description of their run.
pub const LOADED_RUNS: u64 = 2;
/// The incompatible feature of a store whose trees of pages may have pages without seqnos, because a sorted load built
/// them. The seqno is in a reference above them.
pub const LOADED_TREES: u64 = 4;

/// The kind of a block. The numbers are persisted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum BlockKind {
    /// Entries of a run.
    RunLeaf = 1,
    /// Separators and children of a run.
    RunInner = 2,
    /// A page of a run's filter.
    RunFilter = 3,
    /// A run's range tombstones.
    RunTombstones = 4,
    /// A run's description.
    RunFooter = 5,
    /// A node of an index's trunk.
    TrunkNode = 6,
    /// The catalogue of keyspaces.
    Catalog = 7,
    /// A large value. It has no header; the message that refers to the value holds its checksum.
    Blob = 8,
    /// Entries of a run, compressed. Such a block occurs only if the superblock has the feature [`COMPRESSED_LEAVES`].
    RunCompressedLeaf = 9,
    /// A node of an index's map of large values.
    LargeValueMap = 10,
    /// Entries of a tree whose pages are rewritten one by one.
    TreeLeaf = 11,
    /// Separators and children of such a tree.
    TreeInner = 12,
    /// The description of such a tree: its root, the pages that it owns, its range tombstones.
    TreeRoot = 13,
    /// Entries of such a tree, compressed. Such a block occurs only if the superblock has the feature
    /// [`COMPRESSED_LEAVES`].
    TreeCompressedLeaf = 14,
    /// The table of levels of an index that has levels. The kinds from 16 on belong to single types of indexes, eight
    /// kinds to each type.
    LevelTable = 16,
    /// A node of an index that is a tree of nodes with sorted data.
    NestedNode = 24,
}

impl BlockKind {
    /// The name of the kind in errors and in the output of the inspector.
    pub fn name(self) -> &'static str {
        match self {
            BlockKind::RunLeaf => "leaf block",
            BlockKind::RunInner => "inner block",
            BlockKind::RunFilter => "filter block",
            BlockKind::RunTombstones => "tombstone block",
            BlockKind::RunFooter => "run footer",
            BlockKind::TrunkNode => "trunk node",
            BlockKind::Catalog => "catalogue",
            BlockKind::Blob => "large value",
            BlockKind::RunCompressedLeaf => "compressed leaf block",
            BlockKind::LargeValueMap => "map of pages",
            BlockKind::TreeLeaf => "leaf page",
            BlockKind::TreeInner => "inner page",
            BlockKind::TreeRoot => "description of a tree",
            BlockKind::TreeCompressedLeaf => "compressed leaf page",
            BlockKind::LevelTable => "level table",
            BlockKind::NestedNode => "nested node",
        }
    }

    /// The incompatible feature bit that a superblock must have if a block of this kind is written. 0 for a kind that
    /// every version supports.
    pub fn feature(self) -> u64 {
        let is_compressed = matches!(self, BlockKind::RunCompressedLeaf | BlockKind::TreeCompressedLeaf);
        if is_compressed { COMPRESSED_LEAVES } else { 0 }
    }

    /// Whether blocks of this kind describe the runs of which an index consists.
    pub fn is_node(self) -> bool {
        matches!(self, BlockKind::TrunkNode | BlockKind::LevelTable | BlockKind::TreeRoot | BlockKind::NestedNode)
    }

    /// Decodes a persisted kind.
    pub fn from_u8(byte: u8) -> Option<BlockKind> {
        use BlockKind::*;
        let kinds = [
            RunLeaf,
            RunInner,
            RunFilter,
            RunTombstones,
            RunFooter,
            TrunkNode,
            Catalog,
            Blob,
            RunCompressedLeaf,
            LargeValueMap,
            TreeLeaf,
            TreeInner,
            TreeRoot,
            TreeCompressedLeaf,
            LevelTable,
            NestedNode,
        ];
        kinds.into_iter().find(|&kind| kind as u8 == byte)
    }
}
