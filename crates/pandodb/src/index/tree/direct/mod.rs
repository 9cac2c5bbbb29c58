//! [`HotTree`]: a tree of pages to which commits write directly, without a memtable in front of it.
//!
//! ```text
//!   commit ──▶ leaf in memory, under its latch          in memory:  ranges of keys, each with all its messages
//!                 │ changed ones: checkpoint                        ▲ heat: read a leaf
//!                 │ cold ones: background                           │
//!                 ▼                                                 │
//!               job ──▶ new pages, new root (copied on write) ──────┘        on disk
//! ```
//!
//! The source latches pages on the way down the tree (000 §5.2). Here only leaves change in memory. Everything above
//! them is immutable, so a descent takes no latch at all, and a split is work of the job that writes a leaf.
//!
//! 1. A commit brings the leaves of its keys into memory before it draws its seqnos ([`DirectWriter`]). A leaf in
//!    memory is a range of keys with *all* messages of these keys. It hides whatever the tree on disk has for them, so
//!    it need not fit the pages there: the leaf on disk may be divided or joined meanwhile, and the range may grow.
//! 2. The commit inserts its messages into the ranges, each under the latch of its range.
//! 3. A lookup searches the range with the key, if one is in memory; else the tree on disk. A scan alternates between
//!    both.
//! 4. A checkpoint fixes a seqno while commits are stopped, and nothing else happens then. After that a job writes the
//!    messages up to this seqno of all ranges that have changed, in several jobs. Until they are done, folds in memory
//!    keep what a read at this seqno needs. So no contents are copied when the cut is taken.
//! 5. If the ranges take too much memory, a job in the background writes cold ones, which then leave memory. If they
//!    take much more, commits do it themselves.
//! 6. Range tombstones are kept in memory until the next job, which gives them to the tree on disk. A sweep also cleans
//!    the ranges in memory.
//! 7. If damage keeps a job from writing a range, the index is *stuck*: commits are refused, and checkpoints describe
//!    the state of the last checkpoint again, whose pages the index keeps. So the log keeps the later messages.
//!
//! | file | contents |
//! | --- | --- |
//! | [`hot`](crate::index::hot) | the ranges and their messages |
//! | `shared` | the tree on disk, the ranges, range tombstones |
//! | `horizons` | how far folds may go |
//! | `state` | the parts of the tree; brings ranges into memory |
//! | `writer` | commits |
//! | `write` | jobs that write ranges |
//! | `view`, `reads`, `cursor` | readers |
//! | `index` | the functions that the store calls |
//!
//! Invariants: a range in memory has every message of its keys that was applied; ranges are disjoint; a root is
//! published, and ranges are added or removed, only while the directory is held for writing.
//!
//! Locks, in the order in which a thread takes them: `writing`; the directory; then either `inner` of the tree and the
//! contents of one range, or `hand` and the contents of one range, or the range tombstones, or the list of older views.
//! `checking` is taken alone, and the store's counts of space below it. The locks of the debt, of `described`, of `stuck`
//! and of the points are taken last. No lock but `writing` is held while a page is read or written, and none while a
//! commit waits for the log.
//!
//! [`DirectWriter`]: crate::index::DirectWriter

mod cursor;
mod horizons;
mod index;
mod reads;
mod shared;
mod state;
#[cfg(test)]
mod tests;
mod view;
mod write;
mod writer;

pub use self::state::HotTree;
