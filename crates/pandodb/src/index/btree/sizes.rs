//! [`Sizes`]: the settings of a tree.

use crate::index::IndexType;
use crate::index::pages::{LeafLimits, Levels};
use crate::resolve::Operator;
use crate::run::Compression;

/// The settings of an index of this type.
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
