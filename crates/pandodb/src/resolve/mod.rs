//! Resolving the messages of a key: the value that a reader sees, and the messages that a compaction must keep so that
//! readers see the same value.
//!
//! * [`operator`]: merge operators, the built-in operators, and the wrapper that catches the failures of operators.
//! * [`read`] resolves one key at one read point: it collects operands from newest to oldest until a base, then does
//!   one full merge.
//! * [`fold`] resolves one key at all read points that are still in use: it computes the fewest messages that give the
//!   same results.
//!
//! ```text
//!   seqno   12 merge   9 merge   7 put   5 merge   3 delete        read at 12: merge(put, [9, 12])
//!   snapshots      ^10                ^6                           fold keeps:  12 merge | 9 put' | 5 put'
//! ```
//!
//! The main invariant: for every read point in use, [`read`] gives the same result for the output of [`fold`] as for
//! its input. The tests check this invariant on random histories that are folded in one call or in several steps.
//! Source: the upserts of 000 Table 5.1.

pub mod fold;
pub mod operator;
pub mod read;

#[cfg(test)]
mod tests;

pub use fold::{FoldOutput, Stripes, fold_key, fold_newest, prune_tombstones};
pub use operator::{
    AddI64, AddU64, Append, BUILTIN_NAMES, BitOr, Max, MergeOperator, Min, Operator, PutIfAbsent, builtin, in_operator,
};
pub use read::Gather;
