//! Implements [`Index`] for the lookahead array: the functions that the store calls, statistics and checkpoints.

use std::collections::HashSet;
use std::sync::Arc;

use super::TYPE;
use super::array::{Claim, Cola, Counters};
use super::check::{self, PinnedTable};
use super::persist;
use super::read::ColaView;
use super::table::Table;
use super::task::Slot;
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

impl Index for Cola {
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
        Box::new(TableCheckpoint { index: self, world: self.inner.lock().world.clone() })
    }

    fn compact(&self, range: &KeyRange) -> Result<()> {
        let mut inner = self.inner.lock();
        // An explicit request retries the slices that were excluded because of damage.
        inner.stuck = Stuck::default();
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
        stats.compactions = self.counters.compactions.load(Relaxed);
        let Counters { filter_bytes, wasted_bytes, moved, .. } = &self.counters;
        let mut counter = |name, counter: &Counter, about| stats.counter(name, counter.load(Relaxed), about);
        counter("filter_bytes", filter_bytes, "Bytes of filters written by packing and compactions.");
        counter("wasted_bytes", wasted_bytes, "Bytes of compaction outputs that were obsolete when done.");
        counter("moves", moved, "Times that layers with disjoint key ranges became one layer without a compaction.");
        stats.debt = self.debt();
        let inner = self.inner.lock();
        let stuck = inner.world.table.parts().filter(|part| inner.stuck.holds(&part.slice));
        stats.damaged = stuck.map(|part| part.slice.run().meta().id).collect::<HashSet<_>>().len() as u64;
        stats
    }

    fn clear(&self) {
        let mut inner = self.inner.lock();
        inner.cleared = true;
        let unpacked = self.queue.clear();
        self.owing.end();
        inner.tasks.retain(|task| matches!(task.slot, Slot::Working));
        let mut world = inner.world.clone();
        world.table = Arc::new(Table::default());
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

impl Inspect for Cola {
    fn pin(&self) -> Box<dyn Verification + '_> {
        let world = self.inner.lock().world.clone();
        Box::new(PinnedTable::new(&self.core, world))
    }

    fn describe(&self, object: Option<OwnerId>, out: &mut String) -> bool {
        let table = self.published.load().table.clone();
        let Some(id) = object else {
            check::describe(&table, self.sizes.growth, out);
            return true;
        };
        let run = table.run(id);
        run.iter().for_each(|meta| describe_run(meta, out));
        run.is_some()
    }

    fn salvage(&self) -> Vec<SalvagePiece> {
        check::salvage(&self.published.load().table)
    }
}

/// The table that the next root record describes.
pub(super) struct TableCheckpoint<'a> {
    pub(super) index: &'a Cola,
    pub(super) world: World,
}

impl Checkpoint for TableCheckpoint<'_> {
    fn through(&self) -> Seqno {
        self.world.through
    }

    fn write(self: Box<Self>, _: &dyn Fn() -> Stripes) -> Result<Cut> {
        let (Cola { core, rows, sizes, .. }, world) = (self.index, &self.world);
        // A table that has never held a message needs no block on disk.
        let untouched = world.table.layers.is_empty() && world.blobs.is_empty();
        let bytes = match untouched {
            true => Vec::new(),
            false => persist::store(core, &world.table, &world.blobs, sizes.growth.factor)?,
        };
        assert!(bytes.len() <= RootRecord::MAX_BYTES, "the catalogue holds root records of limited size");
        let pin = Arc::new(ColaView::of(world, rows));
        Ok(Cut { root: RootRecord { through: world.through, bytes }, pin, damage: None })
    }
}
