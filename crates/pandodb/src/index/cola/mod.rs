//! `cola`: the lookahead array over immutable runs, first version (004 §2; capacities as by the COLA's authors).
//!
//! ```text
//!   level 0    one layer per packed memtable       ── two of them make a batch
//!   level 1    one sorted sequence                 2(G−1) memtables
//!   level 2    one sorted sequence                 2(G−1)·G memtables
//!   …          a batch, and every level that it does not fit into, is compacted into the first level with enough space
//! ```
//!
//! 1. A sealed memtable is packed into a run, which becomes the newest layer, of level 0 (`Cola::attach`).
//! 2. [`choose::choose`] makes a *task* of a batch and the levels that it does not fit into. The task is done piece by
//!    piece of the key space: each piece is compacted into a run, which replaces its inputs in that range
//!    (`Cola::install`). So the temporary space, and the work that a crash loses, are limited to one piece.
//! 3. Layers with disjoint key ranges become one layer without moving data.
//! 4. Data that a range tombstone covers, and that no reader can see, is dropped when the tombstone arrives
//!    (`Cola::wipe`).
//! 5. A checkpoint writes the table if it has changed ([`persist`]).
//!
//! Pointers between levels (fractional cascading) are not implemented yet; runs have filters and inner blocks instead.
//!
//! Invariants: those of [`table`]; `through` and the table change in one swap. Costs, in blocks of B records, m the
//! memtable, N the records: a record is written about 1 + ½(G−1)·log_G(N/2m) times; a lookup reads about one leaf, plus
//! the false positives of the filters of about log_G(N/m) + 2 runs.
//!
//! Locks: `inner` (table and tasks) is held while a table is built, never while data is merged. The lock of the pack
//! queue is a leaf lock.

mod check;
pub mod choose;
mod options;
pub mod persist;
mod read;
mod relieve;
pub mod table;
mod task;
#[cfg(test)]
mod tests;
mod world;

use std::sync::Arc;

use self::check::PinnedTable;
use self::choose::{Growth, choose};
use self::read::ColaView;
use self::table::{Layer, LayerId, MOST_TOMBSTONES, Part, Table};
use self::task::{Begun, Merge, Slot, Stuck, Task};
use self::world::{Forced, World};
use super::blobs::{BlobMap, Fanout};
use super::deferred_frees::DeferredBlobFrees;
use super::owed::Owing;
use super::runs::{Output, PackJob, PackQueue, Packs, blobs_of, describe_run};
use super::{
    Checkpoint, Core, Cut, Debt, Estimate, Index, IndexStats, IndexType, IndexView, Inspect, Progress, Room,
    RootRecord, SalvagePiece, SealedBatch, Verification,
};
use crate::base::sync::{ArcSwap, Counter, Mutex, Ordering::Relaxed};
use crate::base::{Error, Extent, KeyRange, OwnerId, Result, SeededBug, Seqno};
use crate::filter::{FilterBuilder, Filters};
use crate::resolve::{Operator, Stripes};
use crate::rows::IndexRows;
use crate::run::{Compression, RunSlice};
use crate::space::Prefetch;
use crate::space::ranges::extents;

pub use self::options::{ColaOptions, TYPE};

/// Approximate memory of an index without any run, including the keyspace that it belongs to.
const EMPTY_BYTES: usize = size_of::<Cola>() + size_of::<ColaView>() + 1536;

/// The settings of an index of this type.
#[derive(Clone)]
pub struct Sizes {
    /// The capacities of the levels.
    pub growth: Growth,
    /// The filters of new runs.
    pub filters: Filters,
    /// The compression of leaf blocks in the last level.
    pub compression: Compression,
    /// Folds operands. Without an operator they are kept unfolded.
    pub operator: Option<Operator>,
}

/// One lookahead array.
pub struct Cola {
    core: Core,
    /// Frequently read rows.
    rows: Arc<IndexRows>,
    sizes: Sizes,
    published: ArcSwap<ColaView>,
    inner: Mutex<Inner>,
    queue: PackQueue,
    /// Bytes of memtables that are queued or being packed, and of tasks that are waiting or in progress.
    owing: Owing,
    counters: Counters,
}

#[derive(Default)]
struct Counters {
    packed_bytes: Counter,
    compacted_bytes: Counter,
    filter_bytes: Counter,
    wasted_bytes: Counter,
    compactions: Counter,
    moved: Counter,
}

/// The state that `inner` guards.
pub struct Inner {
    world: World,
    tasks: Vec<Task>,
    /// Slices that a compaction could not read. Compactions exclude them until the store is reopened or a caller asks
    /// for a compaction.
    stuck: Stuck,
    next_layer: u64,
    next_task: u64,
    /// On a full disk, pieces are compacted in key order; the next one starts at this key.
    relieved_to: Vec<u8>,
    /// The snapshots and the newest read point when the last pack or compaction began. Later readers start at that read
    /// point or above.
    keep: Stripes,
    /// The keyspace was dropped: outputs of jobs in progress are discarded.
    cleared: bool,
}

/// A claimed piece of work.
enum Claim {
    Pack(Box<PackJob>),
    Merge(Box<Merge>),
    /// Finished without moving data: layers were joined, or a task had no pieces left.
    Moved,
    /// The work could not be started, because an input cannot be read.
    Damage(Error),
}

impl Cola {
    /// An empty array that contains every message up to `through` (there is none).
    pub fn create(core: Core, sizes: Sizes, through: Seqno) -> Cola {
        let blobs = BlobMap::new(core.pool.clone(), Fanout::PAGE);
        Cola::around(core, sizes, Table::default(), blobs, through)
    }

    /// Opens the array that a checkpoint wrote.
    ///
    /// # Errors
    /// [`Error::Corruption`] if the table or the record itself is damaged.
    pub fn open(core: Core, sizes: Sizes, record: &RootRecord, prefetch: &mut Prefetch) -> Result<Cola> {
        let loaded = persist::load(&core, record, prefetch)?;
        let cola = Cola::around(core, sizes, loaded.table.with_covers(), loaded.blobs, record.through);
        cola.recount(&mut cola.inner.lock());
        Ok(cola)
    }

    fn around(core: Core, sizes: Sizes, table: Table, blobs: BlobMap, through: Seqno) -> Cola {
        let rows = Arc::new(core.rows.of_index(through));
        let next_layer = table.layers.len() as u64;
        let deferred_frees = DeferredBlobFrees::new(core.data.clone());
        let blobs = blobs.with_fanout(Fanout::of_memtable(sizes.growth.memtable_bytes));
        let world =
            World { table: Arc::new(table), through, horizon: Seqno(0), blobs, forced: Vec::new(), deferred_frees };
        let view = ColaView::of(&world, &rows);
        core.pool.hold(EMPTY_BYTES);
        Cola {
            owing: Owing::new(core.share.clone()),
            core,
            rows,
            sizes,
            published: ArcSwap::from_pointee(view),
            inner: Mutex::new(Inner {
                world,
                tasks: Vec::new(),
                stuck: Stuck::default(),
                next_layer,
                next_task: 0,
                relieved_to: Vec::new(),
                keep: Stripes::default(),
                cleared: false,
            }),
            queue: PackQueue::default(),
            counters: Counters::default(),
        }
    }

    /// Claims the next piece of work: first memtables, because they use memory; then tasks in progress; then a new one.
    fn claim(&self, keep: &dyn Fn() -> Stripes) -> Result<Option<Claim>> {
        let mut inner = self.inner.lock();
        if let Some(job) = self.claim_pack(&mut inner, keep) {
            return Ok(Some(Claim::Pack(job)));
        }
        loop {
            if let Some(claim) = self.claim_piece(&mut inner, None, keep)? {
                return Ok(Some(claim));
            }
            match self.begin_task(&mut inner)? {
                Begun::Nothing => return Ok(None),
                Begun::Moved => return Ok(Some(Claim::Moved)),
                Begun::Task => {}
            }
        }
    }

    fn filter(&self) -> FilterBuilder {
        FilterBuilder::new(self.sizes.filters, 1)
    }

    /// Recomputes the compaction debt after a swap. REQUIRES: the caller holds `inner`.
    fn recount(&self, inner: &mut Inner) {
        let table = &inner.world.table;
        let working: u64 = inner.tasks.iter().map(|task| task.bytes(table).max(1)).sum();
        let waiting = self.next_choice(inner).map_or(0, |choice| {
            let inputs = table.layers.iter().filter(|layer| choice.layers.contains(&layer.id));
            inputs.map(Layer::bytes).sum::<u64>().max(1)
        });
        let lone = if inner.tasks.is_empty() && choose::is_mostly_deletes(table) && !inner.is_stuck() {
            table.bytes().max(1)
        } else {
            0
        };
        let requested: u64 = inner.world.forced.iter().map(|request| inner.requested(request)).sum();
        self.owing.change(|own| {
            own.work_bytes = working + waiting + lone;
            own.requested_bytes = requested;
        });
    }

    /// The next task that could start next to those in progress. REQUIRES: the caller holds `inner`.
    fn next_choice(&self, inner: &Inner) -> Option<choose::Choice> {
        let busy: Vec<LayerId> = inner.tasks.iter().flat_map(|task| task.layers.iter().copied()).collect();
        let below = inner.tasks.iter().map(|task| task.level).min();
        choose(&inner.world.table, self.sizes.growth, &busy, below, !inner.is_stuck())
    }

    /// Drops the data that range tombstones of the newest layer cover, if every reader sees these: it frees space
    /// without a compaction. Does nothing where large values would have to be freed, which only a compaction finds, or
    /// while a task is in progress. REQUIRES: the caller holds `inner`.
    fn wipe(&self, inner: &Inner, mut table: Table) -> Result<Table> {
        let newest = table.layers[0].parts[0].slice.clone();
        let count = newest.run().meta().range_tombstones;
        if count == 0 || count > MOST_TOMBSTONES || !inner.tasks.is_empty() {
            return Ok(table);
        }
        for tombstone in newest.tombstones(&KeyRange::all())? {
            let is_seen = inner.keep.stripe_of(tombstone.seqno) == 0 || SeededBug::LevelWipedForSnapshots.is_on();
            let goes = |part: &Part| {
                let meta = part.slice.run().meta();
                meta.blob_puts == 0 && meta.max_seqno < tombstone.seqno
            };
            let covered = |layer: &Layer| layer.parts_in(&tombstone.range).iter().all(goes);
            if is_seen && table.layers[1..].iter().all(covered) {
                table = match table.wiped(&tombstone.range) {
                    // A damaged block prevents dropping old data, but must not prevent attaching new data.
                    Err(e) if e.is_damage() => continue,
                    wiped => wiped?,
                };
            }
        }
        Ok(table)
    }

    /// Publishes a new table. This is the only function that changes the view that readers pin. The large values in
    /// `dropped` are freed when the last older view is gone. REQUIRES: the caller holds `inner`.
    fn publish(&self, inner: &mut Inner, mut world: World, dropped: &[Extent]) {
        world.deferred_frees = inner.world.deferred_frees.succeed(dropped);
        inner.world = world;
        let met: Vec<bool> = inner.world.forced.iter().map(|request| inner.requested(request) == 0).collect();
        let mut met = met.into_iter();
        inner.world.forced.retain(|_| !met.next().unwrap_or(false));
        self.published.store(Arc::new(ColaView::of(&inner.world, &self.rows)));
        self.recount(inner);
    }
}

impl Packs for Cola {
    type Inner = Inner;

    fn inner(&self) -> &Mutex<Inner> {
        &self.inner
    }

    fn queue(&self) -> &PackQueue {
        &self.queue
    }

    fn owing(&self) -> &Owing {
        &self.owing
    }

    fn core(&self) -> &Core {
        &self.core
    }

    fn is_cleared(inner: &Inner) -> bool {
        inner.cleared
    }

    fn begin_pack(&self, inner: &mut Inner, batch: SealedBatch, keep: Stripes) -> Box<PackJob> {
        let bottom = inner.world.table.layers.is_empty();
        inner.keep.clone_from(&keep);
        let operator = self.sizes.operator.clone();
        Box::new(PackJob::new(&self.core, &self.rows, batch, self.filter(), keep, operator, bottom))
    }

    /// Makes the run of a packed memtable the newest layer, drops the data that its range tombstones cover, and swaps
    /// the table.
    fn attach(
        &self,
        inner: &mut Inner,
        batch: &SealedBatch,
        run: Option<Arc<RunSlice>>,
        output: &Output,
    ) -> Result<()> {
        let mut world = inner.world.clone();
        if let Some(slice) = run {
            let part = Part { deletes: output.deletes.count(), ..Part::new(slice) };
            let id = inner.layer_id();
            let table = world.table.with_newest(Layer { id, level: 0, parts: Arc::new(vec![part]) });
            world.table = Arc::new(self.wipe(inner, table)?.with_covers_of_newest());
        }
        assert!(batch.through >= world.through, "memtables are attached in order");
        world.through = batch.through;
        world.horizon = world.horizon.max(output.horizon).max(inner.keep.horizon);
        world.blobs.insert_all(&output.kept_blobs);
        self.counters.packed_bytes.fetch_add(output.bytes(), Relaxed);
        self.counters.filter_bytes.fetch_add(output.filter_bytes(), Relaxed);
        self.publish(inner, world, &output.dropped_blobs);
        Ok(())
    }

    fn free_values(&self, inner: &mut Inner, dropped: &[Extent]) {
        let world = inner.world.clone();
        self.publish(inner, world, dropped);
    }
}

impl Drop for Cola {
    fn drop(&mut self) {
        self.core.pool.let_go(EMPTY_BYTES);
    }
}

impl Inner {
    fn layer_id(&mut self) -> LayerId {
        self.next_layer += 1;
        LayerId(self.next_layer)
    }

    /// Bytes that a request still has to rewrite: old runs in its range that can be read.
    fn requested(&self, request: &Forced) -> u64 {
        let old = |part: &&Part| part.slice.run().meta().id < request.before && !self.stuck.holds(&part.slice);
        let layers = self.world.table.layers.iter();
        layers.flat_map(|layer| layer.parts_in(&request.range)).filter(old).map(|part| part.bytes.max(1)).sum()
    }

    /// Whether the table has a part that could not be read.
    fn is_stuck(&self) -> bool {
        !self.stuck.is_empty() && self.world.table.parts().any(|part| self.stuck.holds(&part.slice))
    }
}

impl Index for Cola {
    fn index_type(&self) -> &'static IndexType {
        &TYPE
    }

    fn ingest(&self, batch: SealedBatch) {
        self.owing.change(|own| own.memory_bytes += batch.bytes);
        self.queue.push(batch);
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

    fn begin_checkpoint(&self) -> Box<dyn Checkpoint + '_> {
        Box::new(TableCheckpoint { index: self, world: self.inner.lock().world.clone() })
    }

    fn compact(&self, range: &KeyRange) -> Result<()> {
        let mut inner = self.inner.lock();
        // An explicit request retries what was excluded because of damage.
        inner.stuck = Stuck::default();
        let mut world = inner.world.clone();
        world.forced.push(Forced { range: range.clone(), before: self.core.ids.next() });
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
        stats.damaged =
            stuck.map(|part| part.slice.run().meta().id).collect::<std::collections::HashSet<_>>().len() as u64;
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
struct TableCheckpoint<'a> {
    index: &'a Cola,
    world: World,
}

impl Checkpoint for TableCheckpoint<'_> {
    fn through(&self) -> Seqno {
        self.world.through
    }

    fn write(self: Box<Self>) -> Result<Cut> {
        let (Cola { core, rows, sizes, .. }, world) = (self.index, &self.world);
        // A table that never held a message needs no block.
        let untouched = world.table.layers.is_empty() && world.blobs.is_empty();
        let bytes = match untouched {
            true => Vec::new(),
            false => persist::store(core, &world.table, &world.blobs, sizes.growth.factor)?,
        };
        let pin = Arc::new(ColaView::of(world, rows));
        Ok(Cut { root: RootRecord { through: world.through, bytes }, pin })
    }
}

/// The run identity of a slice.
fn run_of(slice: &Arc<RunSlice>) -> OwnerId {
    slice.run().meta().id
}
