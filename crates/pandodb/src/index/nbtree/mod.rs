//! `nbtree`: the Nested B-tree, a B-tree whose nodes contain sorted data (source: 001).
//!
//! ```text
//!                   memtable                    the root's d-tree begins in memory
//!                      │ pack
//!   root          [ runs, newest first ]        over σ: flush the first σ bytes
//!                  /       │        \
//!   inner      [ d-tree ][ d-tree ][ d-tree ]   only the largest over σ is flushed next
//!               /  │  \
//!   leaves   [ ][ ][ ]                          over σ: split into leaves of about σ/2 to σ
//! ```
//!
//! 1. A sealed memtable is packed into a run, which becomes the newest slice of the root (`Nbtree::attach`).
//! 2. When the root has σ bytes, `plan` begins a flush: the first σ bytes of the root are merged with the d-trees of its
//!    children, in key order, one child at a time. Each merge is a piece of the task, and is published by one swap of the
//!    root (`change`). The source is only clipped ([`node`]).
//! 3. After a flush, the largest child over σ is flushed, and so on down to the leaves.
//! 4. Leaves over σ split, and nodes that are too small are joined, without moving data ([`shape`]).
//! 5. Deletes and operands are messages like all others. They are resolved when they reach a leaf.
//! 6. A checkpoint writes the nodes that have changed ([`persist`]). Without background threads, most of them are written
//!    ahead of it, in steps.
//!
//! Invariants: those of [`node`]; the root and the seqno up to which it holds all messages (`through`) change in one
//! swap; a merge removes its inputs and adds its output in one swap.
//!
//! Costs, in blocks of B records, where N is the number of all records: a record is written about ½·f·log_f(N/σ) times.
//! The usual work of the flushes is reported as a deadline, so each write pays for its share of it (module `pacing`), up to
//! twice f·log_f(N/σ)/B block transfers.
//! Without background threads it does this share itself, in steps. A lookup probes log_f(N/σ) + 1 filters, and reads one
//! leaf block. Without filters it reads one block of each level.
//!
//! Locks: `inner` (root and tasks) is held while a root is built, but never while data is merged. While a thread holds
//! the lock of the pack queue, it takes no other lock.

mod change;
mod check;
mod compact;
mod deadline;
mod garbage;
mod index;
mod load;
pub mod node;
mod options;
mod pacing;
pub mod persist;
mod plan;
mod read;
mod relieve;
pub mod shape;
pub mod task;
#[cfg(test)]
mod tests;
mod tree;
mod world;

pub use self::options::{NbtreeOptions, TYPE};
pub use self::tree::{Nbtree, Sizes};
