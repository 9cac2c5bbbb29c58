//! What a reader sees of the messages of a key, and what a compaction must keep so that it stays the same.
//!
//! * [`operator`]: merge operators, the built-in ones, and the wrapper that contains their failures.
//! * [`read`]: one key at one read point: operands newest to oldest until a base, then one full merge.
//! * [`fold`]: one key at all read points that still matter: the least set of messages that answers each alike.
//!
//! ```text
//!   seqno   12 merge   9 merge   7 put   5 merge   3 delete        read at 12: merge(put, [9, 12])
//!   snapshots      ^10                ^6                           fold keeps:  12 merge | 9 put' | 5 put'
//! ```
//!
//! The golden invariant: for every read point at which someone may read, [`read`] over the output of [`fold`] gives what
//! it gave over the input. The tests show it on random histories, folded at once and in steps.

pub mod fold;
pub mod operator;
pub mod read;

#[cfg(test)]
mod tests;

pub use fold::{FoldOutput, Stripes, fold_key, prune_tombstones};
pub use operator::{
    AddI64, AddU64, Append, BUILTIN_NAMES, BitOr, Max, MergeOperator, Min, Operator, PutIfAbsent, builtin, in_operator,
};
pub use read::Gather;
