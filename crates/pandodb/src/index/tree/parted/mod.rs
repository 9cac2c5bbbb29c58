//! [`PartedTree`]: a Bε-tree to which commits write directly, without a memtable in front of it. The buffers above the
//! children of its root are in memory.
//!
//! ```text
//!   commit ─▶ part of the key, in memory         [ part ][     part     ][ part ]     one for each child of the root
//!                 │ the heaviest ones: background     │           │          │
//!                 │ all: checkpoint                   ▼           ▼          ▼
//!                 └──────────▶ job ──────▶ root │ pages with buffers on disk, copied on write
//! ```
//!
//! In the tree of the source, an insertion goes into the buffer of a node below the root, under the latch of this node
//! (000 §5.2.2, §5.2.3). Here each child of the root has such a buffer in memory, a *part*. A commit reads no page.
//!
//! 1. A part has the messages of its keys that the tree on disk lacks: those in its *active* memtable, into which
//!    commits insert, and those in *sealed* memtables, which wait for a job or are being written. A sealed memtable has a
//!    bound: the newest seqno that it had when it was sealed. A commit whose seqno is at most this bound still inserts
//!    into it. So the messages of the active memtable are newer than those of the sealed ones, and those of the sealed
//!    ones are newer than those of the tree.
//! 2. A range delete is cut at the bounds of the parts. Its pieces move to the tree together with the older messages of
//!    their part. So if the tree has a piece of a range tombstone, it also has all older messages that the piece covers,
//!    and a sweep need not search the memory.
//! 3. If the parts take too much memory, a job writes the heaviest ones. A checkpoint seals all parts while commits are
//!    stopped, and writes them later.
//! 4. A job publishes one `State`: the new root, and parts without the written memtables. The new parts follow the
//!    children of the new root. Where their bounds change, the new parts share the memtables of the old ones, and each
//!    has only its own keys of them.
//! 5. A lookup searches the part of its key, then the tree. A scan merges both, one part after the other.
//! 6. If a page below the root is damaged, or the disk is full, a checkpoint leaves all messages in the buffer of the
//!    root on disk. It then reads and writes no page below the root.
//!
//! | file | contents |
//! | --- | --- |
//! | [`parts`](crate::index::parts) | a part and its memtables; the messages that a job writes |
//! | `shared` | the parts and the root that belong together; the parts after a job |
//! | `state` | the other fields of the index |
//! | `writer` | commits |
//! | `write` | jobs that write parts |
//! | `view`, `reads`, `cursor` | readers |
//! | `index` | the functions that the store calls |
//!
//! Invariants: the parts are disjoint, in order, and have all keys. A message is in one memtable of the part of its key,
//! or in the tree. A part that a newer state lacks takes no more messages. A memtable is written only when all commits up
//! to its bound are applied.
//!
//! Locks, in the order in which a thread takes them: `writing`; `publishing`; then either `inner` of the tree or the
//! memtables of one part. The locks of the debt, of `stuck` and of the cuts are taken last. No lock but `writing` is held
//! while a page is read or written, and none while a commit waits for the log.

mod cursor;
mod index;
mod reads;
mod shared;
mod state;
#[cfg(test)]
mod tests;
mod view;
mod write;
mod writer;

pub use self::state::PartedTree;
