//! The memtable: the newest messages of a keyspace, in memory, in order.
//!
//! ```text
//!   insert ─▶ ┌ tree ─────────────────┐   ┌ arena ────────────┐   ┌ range tombstones ───┐
//!             │ B+-tree of heads and  │──▶│ records in chunks │   │ Fragments, each part │
//!             │ references, 64 a node │   │ of 1 MiB, recycled│   │ twice the next       │
//!             └───────────────────────┘   └───────────────────┘   └──────────────────────┘
//! ```
//!
//! 1. A point message is copied to the arena and its reference put into the tree: (key ascending, seqno descending).
//! 2. A range tombstone goes to a [`FragmentSet`] beside the tree, so that it costs O(log² n) and no search meets it.
//! 3. A lookup visits the versions of its key, newest first, where they lie. A cursor copies the next messages out and
//!    lets go of the lock; it comes back with the position at which it stopped.
//! 4. A full memtable is sealed by whoever holds it: it is not written to any more, and stays readable until the last
//!    reader drops it. Then its chunks go back to the [`ChunkPool`].
//!
//! One lock guards everything (`State`); writers hold it for one message, readers share it for one lookup or one block.
//! Nothing else is locked under it but the pool's free list.
//!
//! Invariants: a (key, seqno) occurs once; nothing is removed or changed once it is in, so a position stays meaningful;
//! the memory charged never shrinks but where range tombstones are merged.
//!
//! Source: 002 §3.6.2, where the memtable is a B-tree like the branches. Node latches instead of the one lock are a later
//! step; heads, prefixes and preemptive splits are ready for it.

mod arena;
mod tree;

#[cfg(test)]
mod tests;

use std::sync::Arc;

pub use arena::{CHUNK_BYTES, ChunkPool};
use tree::{Target, Tree};

use crate::base::sync::{AtomicUsize, Ordering, RwLock};
use crate::base::{Entry, EntryBlock, FragmentSet, Fragments, KeyRange, Kind, RangeTombstone, Seqno};

/// Before all versions of a key.
const NEWEST: Seqno = Seqno(u64::MAX);

/// What the lock guards.
#[derive(Debug)]
struct State {
    tree: Tree,
    tombstones: FragmentSet,
    /// The least and the greatest seqno, of messages and range tombstones.
    seqnos: Option<(Seqno, Seqno)>,
    logical_bytes: u64,
}

impl State {
    fn bytes(&self) -> usize {
        self.tree.bytes() + self.tombstones.bytes()
    }

    /// Accounts for a message or tombstone; returns the memory charged from now on.
    fn account(&mut self, seqno: Seqno, logical_bytes: usize) -> usize {
        let (low, high) = self.seqnos.unwrap_or((seqno, seqno));
        self.seqnos = Some((low.min(seqno), high.max(seqno)));
        self.logical_bytes += logical_bytes as u64;
        self.bytes()
    }
}

/// Point messages and range tombstones of one keyspace, shared by one writer at a time and any number of readers.
#[derive(Debug)]
pub struct Memtable {
    id: u64,
    state: RwLock<State>,
    /// Memory charged, for the budget to read without the lock.
    bytes: AtomicUsize,
    /// How many range tombstones there are, so that keyspaces without any pay nothing for them.
    tombstones: AtomicUsize,
}

impl Memtable {
    /// An empty memtable that takes its memory from `chunks`. `id` is for messages to humans.
    pub fn new(id: u64, chunks: Arc<ChunkPool>) -> Memtable {
        let tree = Tree::new(chunks);
        let bytes = AtomicUsize::new(tree.bytes());
        let state = State { tree, tombstones: FragmentSet::new(), seqnos: None, logical_bytes: 0 };
        Memtable { id, state: RwLock::new(state), bytes, tombstones: AtomicUsize::new(0) }
    }

    /// The identity given to [`Memtable::new`].
    pub fn id(&self) -> u64 {
        self.id
    }

    /// Adds a copy of a point message. About 0.4 µs; O(log n).
    ///
    /// # Panics
    /// If the message's (key, seqno) is already there, if it is a range delete, or if key or value are over their limits:
    /// writes are checked before they get a seqno.
    pub fn insert(&self, entry: Entry<'_>) {
        assert!(entry.kind != Kind::RangeDelete, "range tombstones are kept apart: insert_range");
        let mut state = self.state.write();
        state.tree.insert(&entry);
        let bytes = state.account(entry.seqno, entry.key.len() + entry.value.len());
        self.bytes.store(bytes, Ordering::Relaxed);
    }

    /// Adds a range tombstone; an empty range is ignored. O(log² n) amortised.
    pub fn insert_range(&self, tombstone: &RangeTombstone) {
        if tombstone.range.is_empty() {
            return;
        }
        let mut state = self.state.write();
        state.tombstones.insert(tombstone);
        let bytes = state.account(tombstone.seqno, tombstone.range.from.len() + tombstone.range.to.len());
        self.bytes.store(bytes, Ordering::Relaxed);
        self.tombstones.fetch_add(1, Ordering::Release);
    }

    /// Visits the messages of `key` with a seqno up to `at`, newest first, until `visit` returns false. Range tombstones
    /// are not regarded: see [`Memtable::covering`]. The lock is held meanwhile: `visit` must not insert.
    pub fn get(&self, key: &[u8], at: Seqno, visit: &mut dyn FnMut(Entry<'_>) -> bool) {
        let state = self.state.read();
        let mut gap = state.tree.seek(Target { key, seqno: at }, false);
        while let Some(entry) = state.tree.forward(&mut gap) {
            debug_assert!(entry.key > key || (entry.key == key && entry.seqno <= at), "the seek ended too early");
            if entry.key != key || !visit(entry) {
                return;
            }
        }
    }

    /// The seqno of the newest range tombstone up to `at` that covers `key`; 0 if there is none. Free without tombstones,
    /// O(log³ n) with n of them.
    #[inline]
    pub fn covering(&self, key: &[u8], at: Seqno) -> Seqno {
        match self.tombstones.load(Ordering::Acquire) {
            0 => Seqno(0),
            _ => self.state.read().tombstones.covering(key, at),
        }
    }

    /// All range tombstones as one, for packing. O(n log n) after insertions, free if there were none: a reader that
    /// opens often takes [`Memtable::tombstones`].
    pub fn fragments(&self) -> Arc<Fragments> {
        match self.tombstones.load(Ordering::Acquire) {
            0 => Arc::default(),
            _ => {
                // The memory charged stays as it is until the next write: who adds it up must find the same again.
                self.state.write().tombstones.unify()
            }
        }
    }

    /// A snapshot of the range tombstones. O(log n), whatever was inserted.
    pub fn tombstones(&self) -> FragmentSet {
        match self.tombstones.load(Ordering::Acquire) {
            0 => FragmentSet::new(),
            _ => self.state.read().tombstones.clone(),
        }
    }

    /// Appends to `out` the next messages of `range`, all versions, in order or, if `reverse`, in exact reverse order.
    ///
    /// Starts after the position `after`, which need not exist (or be in the range), or at the range's first or last
    /// message. Ends with the range, after `max_entries`, or with the message that brings what was appended to
    /// `max_bytes`. Nothing appended: the range is done. O(log n) and the output, under the lock once.
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
        let (end_len, end_bytes) = (out.len().saturating_add(max_entries), out.bytes().saturating_add(max_bytes));
        let state = self.state.read();
        let tree = &state.tree;
        let mut gap = if reverse { start_backward(tree, range, after) } else { start_forward(tree, range, after) };
        while out.len() < end_len && out.bytes() < end_bytes {
            let next = if reverse { tree.backward(&mut gap) } else { tree.forward(&mut gap) };
            match next {
                Some(entry) if range.contains(entry.key) => out.push(entry),
                _ => return,
            }
        }
    }

    /// Memory charged to the budget, in bytes: messages, nodes and range tombstones. Only writes change it, and a write
    /// of a range tombstone may make it smaller. Takes no lock.
    pub fn bytes(&self) -> usize {
        self.bytes.load(Ordering::Relaxed)
    }

    /// The number of point messages.
    pub fn len(&self) -> usize {
        self.state.read().tree.len
    }

    /// Whether there are neither messages nor range tombstones.
    pub fn is_empty(&self) -> bool {
        self.state.read().seqnos.is_none()
    }

    /// The least and the greatest seqno of all messages and range tombstones; `None` if there are none.
    pub fn seqno_range(&self) -> Option<(Seqno, Seqno)> {
        self.state.read().seqnos
    }

    /// Bytes of keys, values and bounds of ranges, as the user wrote them.
    pub fn logical_bytes(&self) -> u64 {
        self.state.read().logical_bytes
    }
}

/// Where a forward scan of `range` goes on after `after`.
fn start_forward(tree: &Tree, range: &KeyRange, after: Option<(&[u8], Seqno)>) -> tree::Gap {
    match after {
        Some((key, seqno)) if key >= &range.from[..] => tree.seek(Target { key, seqno }, true),
        _ => tree.seek(Target { key: &range.from, seqno: NEWEST }, false),
    }
}

/// Where a backward scan of `range` goes on before `after`.
fn start_backward(tree: &Tree, range: &KeyRange, after: Option<(&[u8], Seqno)>) -> tree::Gap {
    match after {
        Some((key, seqno)) if range.is_above(key) => tree.seek(Target { key, seqno }, false),
        _ if range.to.is_empty() => tree.edge(true),
        _ => tree.seek(Target { key: &range.to, seqno: NEWEST }, false),
    }
}
