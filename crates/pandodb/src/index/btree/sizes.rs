//! [`Sizes`]: the settings of a tree.

use crate::index::pages::{InnerLimits, LeafLimits};
use crate::resolve::Operator;

/// The settings of an index of this type.
#[derive(Clone)]
pub struct Sizes {
    /// The sizes of leaves.
    pub leaf: LeafLimits,
    /// The sizes of inner pages.
    pub inner: InnerLimits,
    /// The unit of sizes of the store.
    pub memtable_bytes: u64,
    /// The bytes of a piece, if some jobs run in pieces although the disk is not full.
    pub piece_bytes: Option<u64>,
    /// Folds operands. Without an operator the operands are kept unfolded.
    pub operator: Option<Operator>,
}
