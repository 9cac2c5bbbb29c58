//! Implements [`Index`] for the Nested B-tree: the functions that the store calls, statistics and checkpoints.

use std::sync::Arc;

use super::TYPE;
use super::check::{self, PinnedNodes};
use super::node::Node;
use super::persist;
use super::read::{self, NbtreeView};
use super::task::Slot;
use super::tree::{Claim, Counters, Nbtree};
use super::world::World;
use crate::base::sync::{Counter, Ordering::Relaxed};
use crate::base::{Extent, KeyRange, OwnerId, Result, Seqno};
use crate::index::runs::{Forced, Packs, Stuck, blobs_of, describe_run};
use crate::index::{
    Checkpoint, Cut, Debt, Estimate, Index, IndexStats, IndexType, IndexView, Inspect, Progress, Room, RootRecord,
    SalvagePiece, SealedBatch, SortedLoader, Verification,
};
use crate::resolve::Stripes;
use crate::space::ranges::extents;

/// A step of at most this many bytes is that of a writer. A writer does only half of it, because this index bounds what a
/// single insert moves (001 §5.1).
const WRITERS_STEP: u64 = 16 << 10;

impl Index for Nbtree {
    fn index_type(&self) -> &'static IndexType {
        &TYPE
    }

    fn ingest(&self, batch: SealedBatch) {
        debug_assert!(batch.through >= self.view().through(), "memtables arrive in the order of seqnos");
        self.owing.change(|own| own.memory_bytes += batch.bytes);
        self.queue.push(batch);
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
        let budget = if budget <= WRITERS_STEP { budget.div_ceil(2) } else { budget };
        match self.claim(keep)? {
            Some(Claim::Pack(job)) => self.step_pack(job, budget),
            Some(Claim::Merge(merge)) => self.step_merge(merge, budget),
            Some(Claim::Moved) => Ok(Progress::default()),
            Some(Claim::Damage(e)) => Progress::unless_damage(e),
            None => Ok(Progress { idle: true, ..Progress::default() }),
        }
    }

    fn relieve(&self, room: Room, keep: &dyn Fn() -> Stripes) -> Result<Progress> {
        self.relieve_in(room, keep)
    }

    /// This index has no idle-time work.
    fn on_idle(&self) {}

    fn begin_checkpoint(&self, _: Seqno) -> Box<dyn Checkpoint + '_> {
        Box::new(TreeCheckpoint { index: self, world: self.inner.lock().world.clone() })
    }

    fn write_ahead(&self, most: u64) -> Result<u64> {
        let root = self.inner.lock().world.root.clone();
        if root.holds_nothing() {
            return Ok(0);
        }
        let written = persist::store_ahead(&self.core, &root, most)?;
        self.inner.lock().pacing.work(written);
        Ok(written)
    }

    fn compact(&self, range: &KeyRange) -> Result<()> {
        let mut inner = self.inner.lock();
        // An explicit request retries the slices that were excluded because of damage.
        inner.stuck = Stuck::default();
        inner.fruitless = None;
        let mut world = inner.world.clone();
        world.forced.push(Forced {
            range: range.clone(),
            before: self.core.ids.next(),
            optional: false,
            keeps_oldest: false,
        });
        self.publish(&mut inner, world, &[]);
        Ok(())
    }

    fn estimate(&self, range: &KeyRange) -> Result<Estimate> {
        self.published.load().estimate(range)
    }

    fn entries(&self) -> (u64, u64) {
        self.published.load().entries()
    }

    fn stats(&self) -> IndexStats {
        let mut stats = self.published.load().stats();
        stats.packed_bytes = self.counters.packed_bytes.load(Relaxed);
        stats.compacted_bytes = self.counters.compacted_bytes.load(Relaxed);
        stats.compactions = self.counters.pieces.load(Relaxed);
        let Counters { filter_bytes, wasted_bytes, moved, flushes, .. } = &self.counters;
        let mut counter = |name, counter: &Counter, about| stats.counter(name, counter.load(Relaxed), about);
        counter("filter_bytes", filter_bytes, "Bytes of filters written by packing and merges.");
        counter("wasted_bytes", wasted_bytes, "Bytes of outputs of merges that were obsolete when done.");
        counter("flushes", flushes, "Flushes of nodes that have ended.");
        counter("moves", moved, "Pieces of flushes whose slices were moved to the child without a merge.");
        stats.debt = self.debt();
        stats.damaged = self.inner.lock().damaged();
        stats
    }

    fn clear(&self) {
        let mut inner = self.inner.lock();
        inner.cleared = true;
        let unpacked = self.queue.clear();
        self.owing.end();
        inner.tasks.retain(|task| matches!(task.slot, Slot::Working));
        inner.cascade.clear();
        inner.garbage.clear();
        let mut world = inner.world.clone();
        world.root = Arc::new(Node::empty_root());
        world.forced.clear();
        let mut blobs: Vec<Extent> = world.blobs.take().iter().flat_map(extents).collect();
        self.rows.begin(Seqno::MAX);
        self.rows.remove_where(|_, _| true);
        blobs.extend(unpacked.iter().flat_map(|batch| blobs_of(&batch.memtable)));
        self.publish(&mut inner, world, &blobs);
    }

    fn inspect(&self) -> &dyn Inspect {
        self
    }
}

impl Inspect for Nbtree {
    fn pin(&self) -> Box<dyn Verification + '_> {
        let world = self.inner.lock().world.clone();
        Box::new(PinnedNodes::new(&self.core, world, self.least))
    }

    fn describe(&self, object: Option<OwnerId>, out: &mut String) -> bool {
        let view: Arc<NbtreeView> = self.published.load_full();
        let Some(id) = object else {
            check::describe(&view.root, self.sizes.limits, out);
            return true;
        };
        let run = read::run(&view.root, id);
        run.iter().for_each(|meta| describe_run(meta, out));
        run.is_some()
    }

    fn salvage(&self) -> Vec<SalvagePiece> {
        check::salvage(&self.published.load().root)
    }
}

/// The tree that the next root record describes.
pub(super) struct TreeCheckpoint<'a> {
    pub(super) index: &'a Nbtree,
    pub(super) world: World,
}

impl Checkpoint for TreeCheckpoint<'_> {
    fn through(&self) -> Seqno {
        self.world.through
    }

    fn write(self: Box<Self>, _: &dyn Fn() -> Stripes) -> Result<Cut> {
        let (Nbtree { core, rows, least, .. }, world) = (self.index, &self.world);
        // A tree that has never held a message needs no block on disk.
        let untouched = world.root.holds_nothing() && world.blobs.is_empty();
        let bytes = match untouched {
            true => Vec::new(),
            false => persist::store(core, &world.root, &world.blobs, *least)?,
        };
        assert!(bytes.len() <= RootRecord::MAX_BYTES, "the catalogue holds root records of limited size");
        let pin = Arc::new(NbtreeView::of(world, rows));
        Ok(Cut { root: RootRecord { through: world.through, bytes }, pin, damage: None })
    }
}
