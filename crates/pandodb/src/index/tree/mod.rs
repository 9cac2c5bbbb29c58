//! A tree of pages that are replaced one by one. The indexes `btree` and `betree` are such trees: `btree` has no
//! buffers in its inner pages, and `betree` has (sources: 000 §5.2; 002 ch. 5, the insertion buffer in front of a
//! tree).
//!
//! ```text
//!   memtable ──sealed──▶ queue ──▶ job: merges the messages with the leaves that hold their keys
//!                                      │   old leaf + messages ─▶ fold ─▶ new leaves      `index/pages`
//!                                      ▼
//!                               new root, published by one swap ──▶ view
//! ```
//!
//! 1. A sealed memtable waits in a queue. A job applies it: it visits, in key order, each leaf for which the memtable
//!    has messages, and writes new leaves and the inner pages above them to fresh space (`job`). The memtable in
//!    front is an insertion buffer: a leaf is rewritten once for all messages of the memtable that it gets.
//!    In a tree with buffers, a job leaves messages in the buffers of inner pages, and brings those to the leaves that
//!    no longer fit there (`flush`).
//! 2. At the end of the job, one swap of the root publishes the new tree. The replaced pages are freed when the last
//!    reader of an older root is gone.
//! 3. A leaf holds the newest value of each key, and the older versions that a snapshot needs. Versions that no
//!    snapshot needs any more are dropped when their leaf is rewritten the next time.
//! 4. A range delete is one entry in a list of range tombstones, which readers search first. Once no snapshot is older
//!    than the tombstone, the next memtable of the keyspace, or the next idle time, removes the covered messages and
//!    then the tombstone (a *sweep*). A leaf of which all messages are covered is dropped unread, unless it refers to
//!    large values.
//! 5. A checkpoint writes the description of the tree, if it has changed. All pages of a published tree are on disk
//!    already.
//!
//! Invariants: those of [`super::pages`]; at most one job works on a tree, because a job rewrites the tree that it
//! started from; `through` and the root change in one swap; a reader sees each message once: in a leaf or a buffer if
//! its seqno is at most `through`, else in a memtable; on the way from the root to a leaf, the messages of a key become
//! older.
//!
//! Costs, in pages of B rows, for a tree of N rows: a lookup reads log_B N pages, and all but the leaf are usually in
//! the pool. A memtable of m rows rewrites at most min(m, N/B) leaves. A scan of k rows reads k/B leaves, several at a
//! time.
//!
//! Locks: `inner` is held while a job is claimed and while a root is published, but not while pages are read, written
//! or freed.

mod ahead;
mod check;
mod choose;
mod cursor;
mod direct;
mod feed;
mod flush;
mod index;
mod job;
mod levels;
mod load;
mod loaded;
mod merge;
mod parted;
mod publish;
mod read;
mod reading;
mod sizes;
mod space;
mod sweep;
#[cfg(test)]
mod tests;
mod view;
mod weighing;
mod world;

pub use self::direct::HotTree;
pub use self::parted::PartedTree;
pub use self::publish::Tree;
pub use self::sizes::Sizes;
