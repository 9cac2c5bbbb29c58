//! Sorted loads: builds a tree of its own from rows in key order, and attaches it as a whole.
//!
//! ```text
//!   rows ──push──▶ Bulk ──finish──▶ tree without seqnos ──stamp(seqno)──▶ its root has the seqno
//!                                                                            │ attach
//!                           the index is empty: it becomes the root ◀────────┤
//!         else: it waits as a second, newer tree, and a job merges both ◀────┘
//! ```
//!
//! 1. The pages of the load are written to fresh space, with the owner of the index. They hold no seqno, because the
//!    seqno is known only when the load is attached. Then only the reference to the root gets it: readers view each
//!    page through its reference ([`crate::index::pages::reference`]).
//! 2. The attachment changes no page. If the index has no messages, the tree of the load becomes its root. Otherwise
//!    readers search both trees, the newer one first, until a job has merged them ([`super::merge`]).
//! 3. The checkpoint that makes the load durable describes the state with the load. Then this state is published. If
//!    the checkpoint fails, readers have seen nothing of the load. If a sweep has published another state in between,
//!    the state with the load is computed again.
//!
//! Invariants: at most one load waits to be merged; while it waits, no job applies a memtable or sweeps; each page of a
//! load that is dropped is freed exactly once.
//!
//! Memory: the last two leaves, at most two inner pages of each level, and a write buffer. It is reserved from the pool
//! for the time of the load. In addition, the lists of the pages that were written grow with the load: 8 bytes for each
//! copy of an inner page and for each extent of leaves or of large values, where neighbouring extents are one.

use std::cell::RefCell;
use std::sync::Arc;

use super::index::TreeCheckpoint;
use super::publish::{Slot, Tree};
use super::world::{Described, World};
use crate::base::sync::Ordering::Relaxed;
use crate::base::{BlobRef, Entry, Extent, KeyRange, Kind, Result, Seqno, range::successor};
use crate::index::pages::{Bulk, LeafSink, Root, TreeWriter, Written};
use crate::index::{Checkpoint, FinishedLoad, Progress, SortedLoad, SortedLoader};
use crate::pool::Pool;
use crate::resolve::Stripes;
use crate::space::LOADED_TREES;

/// Memory of the writer of a load: a write buffer.
const WRITE_BUFFER: usize = 1 << 20;
/// The levels of inner pages for which memory is reserved. With keys of up to 100 bytes and the default sizes, a tree
/// of more levels has more than 10^9 leaves. With very long keys, the levels above need memory that is not reserved.
const LEVELS: usize = 4;

impl SortedLoader for Tree {
    fn begin<'a>(&'a self, expected_bytes: u64) -> Result<Box<dyn SortedLoad<'a> + 'a>> {
        let sizes = &self.sizes;
        let inner = sizes.levels.plain.bytes.max(sizes.levels.buffered.bytes);
        let reserved = Reserved::of(&self.core.pool, WRITE_BUFFER + 4 * sizes.leaf.bytes + 2 * LEVELS * inner);
        let writer = TreeWriter::new(&self.source, self.core.ids.next(), Some(expected_bytes));
        let sink = LeafSink::new(writer.with_compression(sizes.compression), sizes.leaf);
        let bulk = Bulk::new(sink, sizes.levels);
        let keys = KeyRange::new([], []);
        Ok(Box::new(TreeLoad { tree: self, bulk, rows: 0, keys, blobs: Vec::new(), _reserved: reserved }))
    }

    fn pack_one(&self, keep: &dyn Fn() -> Stripes) -> Result<Option<Progress>> {
        let (mut done, mut merged) = (0, 0);
        loop {
            let had_load = self.has_waiting_load();
            let Some(job) = self.claim(None, true, keep)? else { return Ok(None) };
            let progress = self.work(job, u64::MAX)?;
            done += progress.bytes;
            merged += progress.merged;
            let inner = self.inner.lock();
            let is_merged = had_load && inner.world.loaded.is_none() && inner.batches.is_empty();
            if progress.absorbed.is_some() || is_merged || inner.cleared {
                return Ok(Some(Progress { bytes: done, merged, ..progress }));
            }
        }
    }

    fn has_waiting_load(&self) -> bool {
        self.published.load().loaded.is_some()
    }
}

/// Memory of the pool that is reserved for a load.
struct Reserved {
    pool: Arc<Pool>,
    bytes: usize,
}

impl Reserved {
    fn of(pool: &Arc<Pool>, bytes: usize) -> Reserved {
        let bytes = bytes.min(pool.size() / 4);
        pool.hold(bytes);
        Reserved { pool: pool.clone(), bytes }
    }
}

impl Drop for Reserved {
    fn drop(&mut self) {
        self.pool.let_go(self.bytes);
    }
}

/// A load in progress.
struct TreeLoad<'a> {
    tree: &'a Tree,
    bulk: Bulk,
    rows: u64,
    /// The range from the first row to the last one. Without rows it is not set.
    keys: KeyRange,
    /// The large values to which the rows refer. They belong to the caller until the load is attached.
    blobs: Vec<Extent>,
    _reserved: Reserved,
}

impl<'a> SortedLoad<'a> for TreeLoad<'a> {
    fn push(&mut self, entry: &Entry<'_>) -> Result<()> {
        assert!(matches!(entry.kind, Kind::Put | Kind::BlobPut), "a load has only puts");
        assert_eq!(entry.seqno, Seqno::UNASSIGNED, "the seqno is known only when the load is attached");
        assert!(self.rows == 0 || self.keys.to.as_slice() < entry.key, "rows are pushed in key order");
        if self.rows == 0 {
            self.keys.from = entry.key.to_vec();
        }
        self.keys.to.clear();
        self.keys.to.extend_from_slice(entry.key);
        self.rows += 1;
        self.bulk.push(entry)?;
        if entry.kind == Kind::BlobPut {
            add_value(&mut self.blobs, BlobRef::decode(entry.value)?.extent());
        }
        Ok(())
    }

    fn finish(self: Box<Self>) -> Result<Box<dyn FinishedLoad + 'a>> {
        let TreeLoad { tree, bulk, rows, mut keys, blobs, _reserved } = *self;
        let (root, written) = bulk.finish()?;
        let entries = root.map_or(0, |root| root.page.totals.entries);
        assert_eq!(entries, rows, "each row is in the tree");
        keys.to = successor(&keys.to);
        let (at, computed) = (Seqno::UNASSIGNED, RefCell::new(None));
        Ok(Box::new(Finished { tree, root, written, keys, blobs, at, computed }))
    }
}

/// Adds the pages of a large value. Values are written one after another, so most of them join the extent before.
fn add_value(blobs: &mut Vec<Extent>, extent: Extent) {
    match blobs.last_mut() {
        Some(last) if last.end() == extent.start.0 && last.pages.checked_add(extent.pages).is_some() => {
            last.pages += extent.pages;
        }
        _ => blobs.push(extent),
    }
}

/// A load whose pages are written.
struct Finished<'a> {
    tree: &'a Tree,
    /// The root of its tree; `None` if it has no rows.
    root: Option<Root>,
    /// The pages, which are freed unless the load is attached.
    written: Written,
    keys: KeyRange,
    blobs: Vec<Extent>,
    /// The seqno of all rows; [`Seqno::UNASSIGNED`] until it is known.
    at: Seqno,
    /// The state with the load that was computed last, and the description of the state without it from which it was
    /// computed. A checkpoint may have written the description and the maps of the state, so exactly this state is
    /// published.
    computed: RefCell<Option<(World, Arc<Described>)>>,
}

impl Finished<'_> {
    /// The state with the load.
    fn world_with(&self, from: &World) -> World {
        assert!(self.at > from.through, "a load is stamped, and newer than every message of the tree");
        assert!(from.loaded.is_none(), "an earlier load is merged before the next one is attached");
        if let Some((world, of)) = &*self.computed.borrow()
            && Arc::ptr_eq(of, &from.described)
        {
            return world.clone();
        }
        let mut world = from.clone();
        match from.root {
            Some(_) => (world.loaded, world.loaded_bytes) = (self.root, self.written.bytes()),
            None => world.root = self.root,
        }
        world.through = self.at;
        world.pages.insert_all(self.written.extents());
        world.blobs.insert_all(&self.blobs);
        world.described = Arc::new(Described::new(self.tree.core.data.clone()));
        *self.computed.borrow_mut() = Some((world.clone(), from.described.clone()));
        world
    }

    /// Makes the row cache refuse rows of older roots, and drops the rows that the load may have changed.
    fn drop_rows(&self) {
        let rows = &self.tree.rows;
        if rows.begin(self.at) {
            rows.remove_where(|key, _| self.keys.contains(key));
        }
    }
}

impl FinishedLoad for Finished<'_> {
    fn stamp(&mut self, at: Seqno) -> Result<()> {
        assert!(self.at == Seqno::UNASSIGNED && at > Seqno::UNASSIGNED, "a load is stamped once");
        self.at = at;
        self.written.set_described();
        self.tree.core.data.note_feature(LOADED_TREES);
        if let Some(root) = &mut self.root {
            debug_assert_eq!(root.page.totals.newest, Seqno::UNASSIGNED, "no row of a load has a seqno");
            root.page.totals.newest = at;
        }
        Ok(())
    }

    fn begin_checkpoint(&self) -> Result<Box<dyn Checkpoint + '_>> {
        let world = self.world_with(&self.tree.inner.lock().world);
        Ok(Box::new(TreeCheckpoint { tree: self.tree, world }))
    }

    fn attach(mut self: Box<Self>) -> Result<()> {
        let tree = self.tree;
        let mut inner = tree.inner.lock();
        assert!(!inner.cleared, "a keyspace is not dropped while a load is attached");
        assert!(inner.batches.is_empty(), "all memtables were packed before a load is attached");
        let world = self.world_with(&inner.world);
        tree.counters.applied_bytes.fetch_add(self.written.bytes(), Relaxed);
        self.drop_rows();
        // A sweep in progress works on a state without the load. If a thread works on it, its result will be discarded.
        let unneeded = match std::mem::take(&mut inner.slot) {
            Slot::Working => {
                inner.slot = Slot::Working;
                None
            }
            Slot::Parked(sweep) => Some(sweep),
            Slot::Nothing => None,
            Slot::Interrupted(_) => unreachable!("the memtable of an interrupted job was packed"),
        };
        self.written.keep();
        let old = tree.publish(&mut inner, world, &[], &[]);
        tree.note_loaded(&inner);
        drop(inner);
        drop((old, unneeded));
        Ok(())
    }
}
