//! [`Sizes`]: the settings of a tree.

use crate::index::IndexType;
use crate::index::pages::{InnerLimits, LeafLimits, Levels};
use crate::index::spec::Settings;
use crate::resolve::Operator;
use crate::run::Compression;

/// With memtables of less than this many bytes for each byte of a leaf or of a buffer, these are smaller. Only tests
/// have such memtables; their trees should have several levels.
const MEMTABLE_PER_LEAF: u64 = 8;
const MEMTABLE_PER_BUFFER: u64 = 4;
/// The least bytes of a leaf and of a buffer in such a tree.
const LEAST_BYTES: u64 = 256;
/// An inner page has at most one child for this many bytes of the memtable, for the same reason.
const MEMTABLE_PER_CHILD: u64 = 1024;
/// The least limit on the number of children of an inner page.
const FEWEST_CHILDREN: usize = 4;
/// With memtables of less than this many bytes, some jobs run in pieces. Only tests have such memtables; they should
/// meet crashes and faults between two pieces.
const TINY_MEMTABLE: u64 = 6 << 10;
/// The least bytes of a piece of a job on a full disk, and of a piece of a merge. Besides its leaves, each piece writes
/// the inner pages above them, and a merge also takes a checkpoint. So smaller pieces would write many times the bytes
/// of their rows.
pub(super) const LEAST_PIECE: u64 = 32 << 10;

/// The settings of a tree.
#[derive(Clone)]
pub struct Sizes {
    /// The type of the index.
    pub kind: &'static IndexType,
    /// The sizes of leaves.
    pub leaf: LeafLimits,
    /// The sizes of inner pages, and which of them have buffers.
    pub levels: Levels,
    /// The bytes of messages in the buffer of a page, above which some are passed on.
    pub buffer_bytes: u64,
    /// The compression of leaves.
    pub compression: Compression,
    /// The unit of sizes of the store.
    pub memtable_bytes: u64,
    /// The bytes of a piece, if some jobs run in pieces although the disk is not full.
    pub piece_bytes: Option<u64>,
    /// Folds operands. Without an operator the operands are kept unfolded.
    pub operator: Option<Operator>,
}

/// A number of bytes as a length in memory.
fn length(bytes: u64) -> usize {
    usize::try_from(bytes).unwrap_or(usize::MAX)
}

impl Sizes {
    /// The bytes of a piece of a merge, unless the disk is full.
    pub(super) fn merge_piece(&self) -> u64 {
        self.memtable_bytes.max(LEAST_PIECE)
    }

    /// The settings of a tree of the type `kind` with leaves of `leaf` bytes. With tiny memtables, everything is
    /// smaller.
    pub fn new(kind: &'static IndexType, settings: &Settings, leaf: u64, levels: Levels, buffer_bytes: u64) -> Sizes {
        let memtable = settings.memtable_bytes;
        let leaf = length((memtable / MEMTABLE_PER_LEAF).max(LEAST_BYTES).min(leaf));
        let most = length(memtable / MEMTABLE_PER_CHILD).max(FEWEST_CHILDREN);
        let few =
            |limits: InnerLimits| InnerLimits { children: limits.children.clamp(FEWEST_CHILDREN, most), ..limits };
        Sizes {
            kind,
            leaf: LeafLimits::new(leaf),
            levels: Levels { plain: few(levels.plain), buffered: few(levels.buffered), ..levels },
            buffer_bytes: buffer_bytes.min((memtable / MEMTABLE_PER_BUFFER).max(LEAST_BYTES)),
            compression: settings.compression(),
            memtable_bytes: memtable,
            piece_bytes: (memtable < TINY_MEMTABLE).then_some(4 * leaf as u64),
            operator: settings.operator.clone(),
        }
    }
}
