//! `stbe`: the size-tiered Bε-tree over immutable packed branches (002 §3.3–3.6), the default index.
//!
//! ```text
//!               root: one run per memtable, newest last       ── packed, never compacted here
//!              /      |       \      flush = hand over references
//!        inner        …        inner    newly arrived branches are compacted once
//!       /     \               /    \
//!    leaf    leaf    …     leaf    leaf   one large run, small ones of at most a third of it
//! ```
//!
//! 1. Pack a sealed memtable into a run (`runs::PackJob`) and attach the run to a new root (`Stbe::attach`).
//! 2. Rebalance the trunk (`rebalance`): flush references as far down as the triggers require, split leaves `k` ways,
//!    merge small nodes, and add or remove a level at the root.
//! 3. Compact the newly arrived branches of each node concurrently with readers (`choose`, `runs::MergeJob`). The
//!    output replaces its inputs in every node that holds them at the end of the compaction (`install`). Therefore a
//!    split or a flush during a compaction does not waste its work.
//! 4. A checkpoint writes the nodes that are not on disk yet (`persist`). Unchanged nodes keep their pages.
//!
//! Invariants: `through` and the root change in one swap; a message is live in exactly one node of a path; a node of
//! the published root is never changed. Costs, in blocks of B records, where F is the fan-out, m is the number of
//! records of a memtable and N is the number of all records: each message is written about once per level, on
//! log_F(N/m) levels. A lookup probes the filters of at most 3F runs per level. It reads about one leaf block, plus one
//! leaf block for each false positive of these filters.
//!
//! Locks: `inner` (trunk and jobs) is held while a root is built, but never while data is merged. The lock of `queue`
//! is a leaf lock.

mod check;
mod choose;
mod deletes;
#[cfg(test)]
mod golden;
mod index;
mod install;
mod jobs;
mod load;
mod maplets;
pub mod node;
mod options;
pub mod persist;
mod read;
mod rebalance;
mod relieve;
mod route;
mod scans;
#[cfg(test)]
mod tests;
mod tree;
mod trunk;

pub use self::choose::Policy;
pub use self::options::{StbeOptions, TYPE};
pub use self::rebalance::Shape;
pub use self::tree::Stbe;
