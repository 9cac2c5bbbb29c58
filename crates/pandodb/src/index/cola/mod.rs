//! `cola`: the lookahead array over immutable runs, first version (source: 004 §2; the capacities follow the COLA's
//! authors).
//!
//! ```text
//!   level 0    one layer per packed memtable       ── two of them make a batch
//!   level 1    one sorted sequence                 2(G−1) memtables
//!   level 2    one sorted sequence                 2(G−1)·G memtables
//!   …          a batch, and every level that it does not fit into, is compacted into the first level with enough space
//! ```
//!
//! 1. A sealed memtable is packed into a run. The run becomes the newest layer, at level 0 (`Cola::attach`).
//! 2. [`choose::choose`] makes a *task* of a batch and of all layers up to the first level that is large enough for all
//!    of this data. The task is processed piece by piece of the key space. Each piece is compacted into a run, which
//!    replaces the inputs in the range of the piece (`Cola::install`). Therefore a task needs temporary space for only
//!    one piece, and a crash loses the work on at most one piece.
//! 3. Layers with disjoint key ranges become one layer without moving data.
//! 4. Data that a range tombstone covers is dropped when the tombstone arrives, unless a reader can still see the data
//!    (`Cola::wipe`).
//! 5. A checkpoint writes the table if it has changed ([`persist`]).
//!
//! Pointers between levels (fractional cascading) are not implemented yet; runs have filters and inner blocks instead.
//!
//! Invariants: the invariants of [`table`] hold; `through` and the table change in one swap. Costs, in blocks of B
//! records, where m is the number of records of a memtable and N is the number of all records: a record is written
//! about 1 + ½(G−1)·log_G(N/2m) times. A lookup probes the filters of about log_G(N/m) + 2 runs. It reads about one
//! leaf, plus one leaf for each false positive of these filters.
//!
//! Locks: `inner` (table and tasks) is held while a table is built, but never while data is merged. The lock of the
//! pack queue is a leaf lock.

mod array;
mod check;
pub mod choose;
mod compact;
mod index;
mod load;
mod options;
pub mod persist;
mod read;
mod relieve;
pub mod table;
mod task;
#[cfg(test)]
mod tests;
mod world;

pub use self::array::{Cola, Sizes};
pub use self::options::{ColaOptions, TYPE};
