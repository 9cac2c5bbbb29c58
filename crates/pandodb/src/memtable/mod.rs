//! The memtable holds the newest messages of a keyspace in memory, in order.
//!
//! ```text
//!   insert ─▶ ┌ tree ─────────────────┐   ┌ arena ────────────┐   ┌ range tombstones ───┐
//!             │ B+-tree of heads and  │──▶│ records in chunks │   │ Fragments, each part │
//!             │ references, 64 a node │   │ of 1 MiB, recycled│   │ twice the next       │
//!             └───────────────────────┘   └───────────────────┘   └──────────────────────┘
//! ```
//!
//! 1. A point message is copied to the arena and its reference is inserted into the tree, in the order (key ascending,
//!    seqno descending).
//! 2. A range tombstone goes to a separate [`FragmentSet`], so an insertion costs O(log² n), and searches for point
//!    messages do not encounter range tombstones.
//! 3. A lookup visits the versions of its key, newest first. A cursor copies messages, one leaf at a time. Its next
//!    call resumes at the position at which the previous call stopped.
//! 4. The owner of a full memtable seals it. A sealed memtable takes no more writes, and stays readable until the last
//!    reader drops it. When it is dropped, its chunks return to the [`ChunkPool`].
//!
//! Many writers and readers use a memtable concurrently. In the tree, a writer latches a leaf while it inserts a slot,
//! and readers latch nothing (`tree`). Range tombstones have a lock of their own, which no thread takes while there are
//! no range tombstones. Both structures are consistent at every moment. A reader sees every message whose insertion had
//! finished when the read began. A reader may see messages that are being inserted, but never a part of a message.
//!
//! | file | content |
//! | --- | --- |
//! | `tree` | descent to a leaf, insertion, splits |
//! | `node` | a node's slots, heads, prefix and fences |
//! | `latch` | versions, claims and locks of nodes |
//! | `table` | nodes and chunks by number, found without a lock |
//! | `arena`, `record` | memory and layout of messages |
//!
//! There is no `unsafe` code. Nodes and records consist of atomics, whose relaxed, acquire and release accesses are
//! plain moves on x86-64. The cost of this design is that a message is copied before it is passed to the reader
//! (decision 0015).
//!
//! Invariants: a (key, seqno) occurs once; inserted messages are never removed or changed, so a position stays valid;
//! the charged memory shrinks only when range tombstones are merged.
//!
//! Source: 002 §3.6.2, where the memtable is a B-tree like the branches, with preemptive and shadow splitting. This
//! memtable has optimistic latches instead of the paper's distributed latches.

mod arena;
mod cursor;
mod latch;
mod node;
mod record;
mod table;
mod tree;

#[cfg(test)]
mod tests;

use std::sync::Arc;

use arena::Tally;
pub use arena::{CHUNK_BYTES, ChunkPool};
pub use cursor::Cursor;
use node::{NONE, SLOTS};
use record::{LINE, Record, Scratch};
use tree::Tree;

use crate::base::sync::{AtomicUsize, Once, Ordering, RwLock};
use crate::base::{Entry, EntryBlock, FragmentSet, Fragments, KeyRange, Kind, RangeTombstone, Seqno};

/// A target with this seqno sorts before all versions of its key.
const NEWEST: Seqno = Seqno(u64::MAX);

/// A search target: a key and a seqno, in the order of messages.
#[derive(Clone, Copy, Debug)]
struct Target<'a> {
    key: &'a [u8],
    seqno: Seqno,
}

/// What a writer learns from the insertion of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Inserted {
    /// The generation of the message's leaf, or `None` if the memtable already held a newer message of the same key.
    pub generation: Option<u64>,
    /// Whether the message is an operand, and the memtable probably holds many older messages of the same key. This is
    /// checked at one of 64 insertions of operands, so that it costs almost nothing. If the caller folds the messages
    /// whenever this is `true`, it folds each key with a long chain of operands after about 64 further operands.
    pub is_long: bool,
}

/// The range tombstones of a memtable.
#[derive(Debug)]
struct Ranges {
    set: FragmentSet,
    tally: Tally,
}

/// Point messages and range tombstones of one keyspace, shared by any number of writers and readers.
#[derive(Debug)]
pub struct Memtable {
    id: u64,
    chunks: Arc<ChunkPool>,
    /// The tree. The tree is created for the first message, so a keyspace without writes takes almost no memory.
    tree: Once<Box<Tree>>,
    ranges: RwLock<Ranges>,
    /// Memory charged for range tombstones, readable without the lock.
    range_bytes: AtomicUsize,
    /// The number of range tombstones, readable without the lock. While it is 0, no thread takes the lock.
    tombstones: AtomicUsize,
}

impl Memtable {
    /// Creates an empty memtable that takes its memory from `chunks`. `id` is the memtable's number in its keyspace.
    /// This number appears in messages to users. It also appears in the log of paper mode, because generations are
    /// comparable only between leaves of the same memtable.
    pub fn new(id: u64, chunks: Arc<ChunkPool>) -> Memtable {
        let ranges = Ranges { set: FragmentSet::new(), tally: Tally::default() };
        let (range_bytes, tombstones) = (AtomicUsize::new(0), AtomicUsize::new(0));
        Memtable { id, chunks, tree: Once::new(), ranges: RwLock::new(ranges), range_bytes, tombstones }
    }

    /// The identity given to [`Memtable::new`].
    pub fn id(&self) -> u64 {
        self.id
    }

    /// Adds a copy of a point message. Takes about 0.4 µs; O(log n). Several threads may insert concurrently.
    ///
    /// Returns the generation of the message's leaf, and whether the message continues a long chain of operands. If two
    /// messages of a key both have a generation, the newer message has the higher generation, even if leaves were split
    /// between the two insertions (002 §3.6.4). (If the newer message had been inserted first, the older message would
    /// have no generation.) Versions of a key may be in several leaves. The newest version goes to the leaf of the
    /// previous newest version, or to a leaf that was split from that leaf. Each half of a split inherits the
    /// generation.
    ///
    /// # Panics
    /// If the memtable already holds the message's (key, seqno), if the message is a range delete, or if its key or
    /// value is over the limit. Callers check these limits before a write gets a seqno.
    pub fn insert(&self, entry: Entry<'_>) -> Inserted {
        assert!(entry.kind != Kind::RangeDelete, "range tombstones are kept apart: insert_range");
        self.tree_to_write().insert(&entry)
    }

    /// Returns the tree, if it was created. A reader that must see some message finds the tree, because the tree was
    /// set before any message became visible.
    fn tree(&self) -> Option<&Tree> {
        self.tree.get().map(|tree| &**tree)
    }

    #[inline]
    fn tree_to_write(&self) -> &Tree {
        match self.tree() {
            Some(tree) => tree,
            None => self.plant(),
        }
    }

    #[cold]
    fn plant(&self) -> &Tree {
        // If several threads execute this line, one of them sets the cell. The trees of the other threads are empty and
        // are dropped. The tree is not created inside the cell's initialization lock, because an explorer may switch
        // threads while a tree is created.
        let _ = self.tree.set(Box::new(Tree::new(self.chunks.clone())));
        self.tree.get().expect("it was set")
    }

    /// Adds a range tombstone; an empty range is ignored. O(log² n) amortised.
    pub fn insert_range(&self, tombstone: &RangeTombstone) {
        if tombstone.range.is_empty() {
            return;
        }
        let mut ranges = self.ranges.write();
        ranges.set.insert(tombstone);
        debug_assert_eq!(
            ranges.set.covering(&tombstone.range.from, tombstone.seqno),
            tombstone.seqno,
            "readers find the tombstone"
        );
        let bytes = tombstone.range.from.len() + tombstone.range.to.len();
        ranges.tally = ranges.tally.and(Tally::of(tombstone.seqno, bytes));
        self.range_bytes.store(ranges.set.bytes(), Ordering::Relaxed);
        self.tombstones.fetch_add(1, Ordering::Release);
    }

    /// Visits the messages of `key` with a seqno up to `at`, newest first, until `visit` returns false. Range
    /// tombstones are ignored: see [`Memtable::covering`]. No latch is held while `visit` is called.
    pub fn get(&self, key: &[u8], at: Seqno, visit: &mut dyn FnMut(Entry<'_>) -> bool) {
        let Some(tree) = self.tree() else { return };
        let mut scratch = Scratch::new();
        // Passes a record to `visit` if the record belongs to the key. Returns whether it belongs to the key and
        // `visit` wants more messages.
        let mut show = |at| {
            let record = tree.arena.record(at);
            record.is_of(key) && visit(record.copied(&mut scratch))
        };
        let newest = tree.next(Target { key, seqno: at });
        if newest == NONE || !show(newest) {
            return;
        }
        // Most lookups return before this line. A caller that wants more than one version may want many versions.
        let seqno = tree.arena.record(newest).seqno();
        debug_assert!(seqno <= at, "a message that the reader does not see");
        let mut batch = tree.ahead(Target { key, seqno }, true);
        while batch.refs().iter().all(|&at| show(at)) && batch.fence != NONE {
            batch = tree.beyond(batch.fence, false);
        }
    }

    /// The seqno of the newest range tombstone up to `at` that covers `key`; 0 if there is none. Costs O(log³ n) for n
    /// range tombstones, and nothing if there are none.
    #[inline]
    pub fn covering(&self, key: &[u8], at: Seqno) -> Seqno {
        if self.tombstones.load(Ordering::Acquire) == 0 {
            return Seqno(0);
        }
        let newest = self.ranges.read().set.covering(key, at);
        debug_assert!(newest <= at, "a tombstone that the reader does not see");
        newest
    }

    /// Appends the sets that hold the range tombstones, for scans. Costs O(log n), and nothing if there are no range
    /// tombstones. The sets do not change: later tombstones are not in them.
    pub fn tombstones(&self, out: &mut Vec<Arc<Fragments>>) {
        if self.tombstones.load(Ordering::Acquire) > 0 {
            let before = out.len();
            out.extend_from_slice(self.ranges.read().set.sets());
            debug_assert!(out.len() > before, "tombstones are counted after their insertion");
        }
    }

    /// All range tombstones as one set, for packing. Costs O(n log n) after an insertion of a range
    /// tombstone, and nothing otherwise. Takes the lock of the range tombstones exclusively, unless there are no range
    /// tombstones.
    pub fn fragments(&self) -> Arc<Fragments> {
        match self.tombstones.load(Ordering::Acquire) {
            0 => Arc::default(),
            _ => {
                // The charged memory is updated by the next write and not here, because a caller that adds up the
                // charged memory twice without a write in between must get the same sum.
                let all = self.ranges.write().set.unify();
                debug_assert!(!all.is_empty(), "tombstones are counted after their insertion");
                all
            }
        }
    }

    /// Appends to `out` the next messages of `range`, with all versions, in order. If `reverse` is set, the order is
    /// exactly the opposite.
    ///
    /// The first appended message is the next message after the position `after`, in the direction of the scan. No
    /// message needs to exist at `after`, and `after` may be outside of the range. Without `after`, the scan starts at
    /// the range's first message, or at its last message if `reverse` is set. The call stops at the end of the range,
    /// after `max_entries` messages, or after the message with which the appended bytes reach `max_bytes`. If nothing
    /// is appended, the range has no further message. Costs O(log n) for every 64 messages, plus the time for copying
    /// them. A message that is being inserted concurrently may or may not be included.
    pub fn fill(
        &self,
        range: &KeyRange,
        after: Option<(&[u8], Seqno)>,
        reverse: bool,
        max_entries: usize,
        max_bytes: usize,
        out: &mut EntryBlock,
    ) {
        assert!(max_entries > 0 && max_bytes > 0, "nothing appended would read as the end");
        let end = (out.len().saturating_add(max_entries), out.bytes().saturating_add(max_bytes));
        let Some(tree) = self.tree() else { return };
        let arena = &tree.arena;
        let mut push = |at| {
            let record = arena.record(at);
            let inside = is_inside(record, range, reverse);
            if inside {
                record.append_to(out);
            }
            inside && out.len() < end.0 && out.bytes() < end.1
        };
        let mut batch = if reverse { last(tree, range, after) } else { first(tree, range, after) };
        debug_assert!(after.is_none_or(|(key, _)| !key.is_empty()), "a position is that of a message");
        // A short read may end within a leaf, so fetching the whole leaf could load records that it does not return.
        let fetches_leaves = max_entries.min(max_bytes / LINE) > SLOTS;
        loop {
            let refs = batch.refs();
            if fetches_leaves {
                arena.fetch(refs);
            }
            let go_on = if reverse { refs.iter().rev().all(|&at| push(at)) } else { refs.iter().all(|&at| push(at)) };
            if !go_on || batch.fence == NONE {
                return;
            }
            batch = tree.beyond(batch.fence, reverse);
        }
    }

    /// The memory in bytes that a memtable with at least one message takes in addition to [`Memtable::bytes`]. This
    /// memory counts against the budget, but not towards the size at which a memtable is sealed. If it counted,
    /// memtables of a few messages would be sealed and packed as tiny runs.
    pub const LEAST_BYTES: usize = Tree::EMPTY_BYTES;

    /// The fill level in bytes: messages, the nodes that they required, and range tombstones. Only writes change it;
    /// writing a range tombstone may decrease it. Takes no lock.
    pub fn bytes(&self) -> usize {
        self.tree().map_or(0, Tree::bytes) + self.range_bytes.load(Ordering::Relaxed)
    }

    /// Memory taken, in bytes: [`Memtable::bytes`] plus the memory of an empty tree.
    pub fn taken_bytes(&self) -> usize {
        self.bytes() + self.tree().map_or(0, |_| Self::LEAST_BYTES)
    }

    /// The number of point messages. The number may include messages that are being inserted.
    pub fn len(&self) -> usize {
        self.tree().map_or(0, |tree| tree.tally().count)
    }

    /// Whether the memtable holds neither messages nor range tombstones.
    pub fn is_empty(&self) -> bool {
        self.seqno_range().is_none()
    }

    /// The least and the greatest seqno of all messages and range tombstones; `None` if the memtable is empty.
    pub fn seqno_range(&self) -> Option<(Seqno, Seqno)> {
        self.tally().seqnos
    }

    /// Bytes of keys, values and bounds of ranges, as the user wrote them.
    pub fn logical_bytes(&self) -> u64 {
        self.tally().logical_bytes
    }

    /// The tally of all messages and range tombstones.
    fn tally(&self) -> Tally {
        let points = self.tree().map(Tree::tally).unwrap_or_default();
        points.and(self.ranges.read().tally)
    }
}

/// Returns the first batch of a forward scan of `range` that continues after the position `after`.
fn first(tree: &Tree, range: &KeyRange, after: Option<(&[u8], Seqno)>) -> tree::Batch {
    match after {
        Some((key, seqno)) if key >= &range.from[..] => tree.ahead(Target { key, seqno }, true),
        _ => tree.ahead(Target { key: &range.from, seqno: NEWEST }, false),
    }
}

/// Returns the first batch of a backward scan of `range` that continues before the position `after`.
fn last(tree: &Tree, range: &KeyRange, after: Option<(&[u8], Seqno)>) -> tree::Batch {
    match after {
        Some((key, seqno)) if range.is_above(key) => tree.behind(Some(Target { key, seqno })),
        _ if range.to.is_empty() => tree.behind(None),
        _ => tree.behind(Some(Target { key: &range.to, seqno: NEWEST })),
    }
}

/// Whether a record of a scan that began in `range` is still inside it.
#[inline]
fn is_inside(record: Record<'_>, range: &KeyRange, reverse: bool) -> bool {
    let before = |key: &[u8]| record.order(Target { key, seqno: NEWEST }).is_lt();
    if reverse { !before(&range.from) } else { range.to.is_empty() || before(&range.to) }
}
