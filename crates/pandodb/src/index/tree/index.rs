//! Implements [`Index`] for the B+-tree: the functions that the store calls, statistics and checkpoints.

use std::sync::Arc;

use super::check::{self, PinnedTree};
use super::publish::{Counters, Tree};
use super::sizes::LEAST_PIECE;
use super::sweep::union;
use super::view::{TreeView, estimate};
use super::world::World;
use crate::base::sync::{Counter, Ordering::Relaxed};
use crate::base::{KeyRange, OwnerId, Result, Seqno};
use crate::index::pages::{Description, root};
use crate::index::{
    Checkpoint, Cut, Debt, Estimate, Index, IndexStats, IndexType, IndexView, Inspect, Progress, Room, RootRecord,
    SalvagePiece, SealedBatch, SortedLoader, Verification,
};
use crate::resolve::Stripes;

/// A piece of a job takes at most about this part of the free space on a full disk.
const PIECES: u64 = 4;
/// The most bytes of a piece.
const MOST_PIECE: u64 = 16 << 20;

impl Index for Tree {
    fn index_type(&self) -> &'static IndexType {
        self.sizes.kind
    }

    fn ingest(&self, batch: SealedBatch) {
        debug_assert!(batch.through >= self.view().through(), "memtables arrive in the order of seqnos");
        self.owing.change(|own| own.memory_bytes += batch.bytes);
        self.inner.lock().batches.push_back(batch);
    }

    fn loader(&self) -> Option<&dyn SortedLoader> {
        Some(self)
    }

    fn view(&self) -> Arc<dyn IndexView> {
        self.published.load_full()
    }

    fn with_view(&self, look: &mut dyn FnMut(&dyn IndexView)) {
        look(&**self.published.load());
    }

    fn debt(&self) -> Debt {
        self.owing.debt()
    }

    fn step(&self, budget: u64, keep: &dyn Fn() -> Stripes) -> Result<Progress> {
        match self.claim(None, false, keep)? {
            Some(job) => self.work(job, budget),
            None => Ok(Progress { idle: true, ..Progress::default() }),
        }
    }

    /// Applies a piece of a memtable, or sweeps a piece of the deleted ranges.
    fn relieve(&self, room: Room, keep: &dyn Fn() -> Stripes) -> Result<Progress> {
        let piece = (room.bytes / PIECES).clamp(LEAST_PIECE, MOST_PIECE);
        let Some(job) = self.claim(Some(piece), false, keep)? else {
            return Ok(Progress { idle: true, ..Progress::default() });
        };
        self.work(job, u64::MAX)
    }

    fn on_idle(&self) {
        let inner = self.inner.lock();
        self.look_at_tombstones(&inner);
    }

    fn begin_checkpoint(&self, _: Seqno) -> Box<dyn Checkpoint + '_> {
        Box::new(TreeCheckpoint { tree: self, world: self.inner.lock().world.clone() })
    }

    fn compact(&self, range: &KeyRange) -> Result<()> {
        let view = self.published.load_full();
        let bytes = estimate(view.roots()?, &self.source, range)?.bytes.max(1);
        let mut inner = self.inner.lock();
        // An explicit request retries the pages that could not be read.
        (inner.damage, inner.stuck) = (None, None);
        let requested = inner.requested.drain(..).chain([range.clone()]).collect();
        inner.requested = union(requested);
        drop(inner);
        self.owing.change(|own| own.requested_bytes = own.requested_bytes.saturating_add(bytes));
        Ok(())
    }

    fn estimate(&self, range: &KeyRange) -> Result<Estimate> {
        let view = self.published.load_full();
        estimate(view.roots()?, &self.source, range)
    }

    fn entries(&self) -> (u64, u64) {
        let totals = self.published.load().totals();
        (totals.entries, totals.deletes)
    }

    fn stats(&self) -> IndexStats {
        let mut stats = self.published.load().stats();
        let Counters { applied_bytes, swept_bytes, sweeps, replaced_pages, leaves } = &self.counters;
        stats.packed_bytes = applied_bytes.load(Relaxed);
        stats.compacted_bytes = swept_bytes.load(Relaxed);
        stats.compactions = sweeps.load(Relaxed);
        let mut counter = |name, counter: &Counter, about| stats.counter(name, counter.load(Relaxed), about);
        counter("leaves_written", leaves, "Leaves written by memtables and sweeps.");
        counter("replaced_pages", replaced_pages, "Pages of 4 KiB that new pages have replaced.");
        stats.debt = self.debt();
        let inner = self.inner.lock();
        stats.damaged = u64::from(inner.damage.is_some() || inner.stuck.is_some());
        stats
    }

    fn clear(&self) {
        self.remove_all(Vec::new());
    }

    fn inspect(&self) -> &dyn Inspect {
        self
    }
}

impl Inspect for Tree {
    fn pin(&self) -> Box<dyn Verification + '_> {
        let world = self.inner.lock().world.clone();
        Box::new(PinnedTree::new(&self.core, &self.source, world))
    }

    fn describe(&self, object: Option<OwnerId>, out: &mut String) -> bool {
        let world = self.inner.lock().world.clone();
        if object.is_none() {
            check::describe(&world, &self.source, out);
        }
        object.is_none()
    }

    fn salvage(&self) -> Vec<SalvagePiece> {
        check::salvage(&self.published.load_full())
    }
}

/// The state that the next root record describes.
pub(super) struct TreeCheckpoint<'a> {
    pub(super) tree: &'a Tree,
    pub(super) world: World,
}

impl Checkpoint for TreeCheckpoint<'_> {
    fn through(&self) -> Seqno {
        self.world.through
    }

    /// Writes the description of the tree. All its pages are on disk already.
    fn write(self: Box<Self>, _: &dyn Fn() -> Stripes) -> Result<Cut> {
        let (Tree { core, source, rows, .. }, world) = (self.tree, &self.world);
        assert!(world.lost.is_none(), "a lost tree is never written");
        let has_rows = world.root.is_some() || world.loaded.is_some();
        let is_empty = !has_rows && world.blobs.is_empty() && world.tombstones.is_empty();
        let bytes = match world.described.stored() {
            Some(stored) => root::encode_record(stored),
            // A tree that holds nothing needs no block on disk.
            None if is_empty => Vec::new(),
            None => {
                let description = Description {
                    owner: crate::blocks::BlockSource::owner(&**source),
                    root: world.root,
                    loaded: world.loaded,
                    pages: world.pages.clone(),
                    blobs: world.blobs.clone(),
                    tombstones: world.tombstones.clipped(&KeyRange::all()),
                };
                let stored = description.store(core)?;
                world.described.set_stored(stored);
                root::encode_record(stored)
            }
        };
        assert!(bytes.len() <= RootRecord::MAX_BYTES, "the catalogue holds root records of limited size");
        let pin = Arc::new(TreeView::of(world, source, rows));
        Ok(Cut { root: RootRecord { through: world.through, bytes }, pin, damage: None })
    }
}
