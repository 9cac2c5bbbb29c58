//! The value that a reader sees of a key's messages, and the messages that a compaction must keep so that it does not
//! change.
//!
//! * [`operator`]: merge operators, the built-in ones, and the wrapper that contains their failures.
//! * [`read`]: one key at one read point: collect operands from newest to oldest until a base, then do one full merge.
//! * [`fold`]: one key at all read points that are still in use: the fewest messages that give the same results.
//!
//! ```text
//!   seqno   12 merge   9 merge   7 put   5 merge   3 delete        read at 12: merge(put, [9, 12])
//!   snapshots      ^10                ^6                           fold keeps:  12 merge | 9 put' | 5 put'
//! ```
//!
//! The main invariant: for every read point in use, [`read`] over the output of [`fold`] gives the same result as over
//! its input. The tests check it on random histories, folded at once and in steps. Source: the upserts of 000 Table
//! 5.1.

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
