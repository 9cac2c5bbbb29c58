//! [`Cola`] is one lookahead array. This module claims work, attaches memtables and swaps the table.
//!
//! Locks: `inner` is held while a table is built, but never while data is merged. The lock of the pack queue is a leaf
//! lock.

use std::sync::Arc;

use super::choose::{self, Growth, choose};
use super::persist;
use super::read::ColaView;
use super::table::{Layer, LayerId, Table};
use super::task::{Begun, Merge, Task};
use super::world::World;
use crate::base::sync::{ArcSwap, Counter, Mutex, Ordering::Relaxed};
use crate::base::{Error, Extent, KeyRange, Result, SeededBug, Seqno};
use crate::filter::{FilterBuilder, Filters};
use crate::index::blobs::{BlobMap, Fanout};
use crate::index::deferred_frees::DeferredFrees;
use crate::index::owed::Owing;
use crate::index::runs::sequence::MOST_TOMBSTONES;
use crate::index::runs::{Forced, Output, PackJob, PackQueue, Packs, Part, Stuck};
use crate::index::{Core, RootRecord, SealedBatch};
use crate::resolve::{Operator, Stripes};
use crate::rows::IndexRows;
use crate::run::{Compression, RunSlice};
use crate::space::Prefetch;

/// Approximate memory of an index without any run, including the keyspace that it belongs to.
const EMPTY_BYTES: usize = size_of::<Cola>() + size_of::<ColaView>() + 1536;

/// The settings of an index of this type.
#[derive(Clone)]
pub struct Sizes {
    /// The capacities of the levels.
    pub growth: Growth,
    /// The filters that new runs get.
    pub filters: Filters,
    /// The compression of leaf blocks in the last level.
    pub compression: Compression,
    /// Folds operands. Without an operator the operands are kept unfolded.
    pub operator: Option<Operator>,
}

/// One lookahead array.
pub struct Cola {
    pub(super) core: Core,
    /// The rows of this index in the row cache.
    pub(super) rows: Arc<IndexRows>,
    pub(super) sizes: Sizes,
    pub(super) published: ArcSwap<ColaView>,
    pub(super) inner: Mutex<Inner>,
    pub(super) queue: PackQueue,
    /// Bytes of memtables that are queued or being packed, and of tasks that are waiting or in progress.
    pub(super) owing: Owing,
    pub(super) counters: Counters,
}

#[derive(Default)]
pub(super) struct Counters {
    pub(super) packed_bytes: Counter,
    pub(super) compacted_bytes: Counter,
    pub(super) filter_bytes: Counter,
    pub(super) wasted_bytes: Counter,
    pub(super) compactions: Counter,
    pub(super) moved: Counter,
}

/// The state that `inner` guards.
pub struct Inner {
    pub(super) world: World,
    pub(super) tasks: Vec<Task>,
    /// Slices of runs that a compaction could not read. Compactions exclude these slices until the store is reopened or
    /// a caller asks for a compaction.
    pub(super) stuck: Stuck,
    pub(super) next_layer: u64,
    pub(super) next_task: u64,
    /// When the disk is full, pieces of the key space are compacted in key order. This is the key at which the next
    /// piece starts.
    pub(super) relieved_to: Vec<u8>,
    /// The snapshots and the newest read point that existed when the last pack or compaction began. A reader that
    /// starts later gets a read point that is equal or newer.
    pub(super) keep: Stripes,
    /// Whether the keyspace was dropped. If so, the outputs of jobs in progress are discarded.
    pub(super) cleared: bool,
}

/// A claimed piece of work.
pub(super) enum Claim {
    Pack(Box<PackJob>),
    Merge(Box<Merge>),
    /// The work finished without moving data: layers were joined, or a task had no pieces left.
    Moved,
    /// The work could not be started, because an input cannot be read.
    Damage(Error),
}

impl Cola {
    /// Makes an array without messages. The keyspace has no messages up to `through`, so the array counts as containing
    /// every message up to `through`.
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

    pub(super) fn around(core: Core, sizes: Sizes, table: Table, blobs: BlobMap, through: Seqno) -> Cola {
        let rows = Arc::new(core.rows.of_index(through));
        let next_layer = table.layers.len() as u64;
        debug_assert!(table.layers.iter().all(|layer| layer.id.0 < next_layer), "an opening numbers the layers");
        let deferred_frees = DeferredFrees::new(&core);
        let blobs = blobs.with_fanout(Fanout::of_memtable(sizes.growth.memtable_bytes));
        let world = World {
            table: Arc::new(table),
            through,
            horizon: Seqno(0),
            blobs,
            forced: Vec::new(),
            deferred_frees,
            scans: Arc::default(),
        };
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

    /// Claims the next piece of work. Memtables come first, because they use memory, and tasks in progress come before
    /// new tasks.
    pub(super) fn claim(&self, keep: &dyn Fn() -> Stripes) -> Result<Option<Claim>> {
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

    pub(super) fn filter(&self) -> FilterBuilder {
        FilterBuilder::new(self.sizes.filters, 1)
    }

    /// Recomputes the compaction debt after a swap. REQUIRES: the caller holds `inner`.
    pub(super) fn recount(&self, inner: &mut Inner) {
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

    /// The next task that can run concurrently with the tasks in progress. REQUIRES: the caller holds `inner`.
    pub(super) fn next_choice(&self, inner: &Inner) -> Option<choose::Choice> {
        let busy: Vec<LayerId> = inner.tasks.iter().flat_map(|task| task.layers.iter().copied()).collect();
        let below = inner.tasks.iter().map(|task| task.level).min();
        choose(&inner.world.table, self.sizes.growth, &busy, below, !inner.is_stuck())
    }

    /// Drops the data that range tombstones of the newest layer cover, if every reader sees these tombstones. This
    /// frees space without a compaction. The call does nothing while a task is in progress. It also does nothing if the
    /// data refers to large values, because only a compaction finds the large values to free. REQUIRES: the caller
    /// holds `inner`.
    pub(super) fn wipe(&self, inner: &Inner, mut table: Table) -> Result<Table> {
        assert_eq!(table.layers[0].parts.len(), 1, "the newest layer is one packed memtable");
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
                    // A damaged block may prevent dropping old data, but must not prevent attaching new data.
                    Err(e) if e.is_damage() => continue,
                    wiped => wiped?,
                };
            }
        }
        Ok(table)
    }

    /// Publishes a new table. This is the only function that changes the view that readers pin. The large values in
    /// `dropped` are freed when the last older view is gone. REQUIRES: the caller holds `inner`.
    pub(super) fn publish(&self, inner: &mut Inner, mut world: World, dropped: &[Extent]) {
        assert!(world.through >= inner.world.through, "a swap never loses messages");
        assert!(world.horizon >= inner.world.horizon, "a horizon never decreases");
        assert!(world.table.lost.is_none(), "a table that cannot be read is never changed");
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
        assert_eq!(run.is_some(), output.meta.is_some(), "the run of the output, and no other");
        assert!(run.is_some() || output.kept_blobs.is_empty(), "only messages of a run name large values");
        let mut world = inner.world.clone();
        if let Some(slice) = run {
            let part = Part { deletes: output.deletes.clone(), ..Part::new(slice) };
            let id = inner.layer_id();
            let table = world.table.with_newest(Layer { id, level: 0, parts: vec![part].into() });
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
    pub(super) fn layer_id(&mut self) -> LayerId {
        self.next_layer += 1;
        let id = LayerId(self.next_layer);
        debug_assert!(self.world.table.layers.iter().all(|layer| layer.id < id), "identities ascend");
        id
    }

    /// Bytes that still have to be rewritten for a request. These are the bytes of the readable old runs in the range
    /// of the request.
    pub(super) fn requested(&self, request: &Forced) -> u64 {
        let old = |part: &&Part| part.slice.run().meta().id < request.before && !self.stuck.holds(&part.slice);
        let layers = self.world.table.layers.iter();
        layers.flat_map(|layer| layer.parts_in(&request.range)).filter(old).map(|part| part.bytes.max(1)).sum()
    }

    /// Whether the table has a part that could not be read.
    pub(super) fn is_stuck(&self) -> bool {
        !self.stuck.is_empty() && self.world.table.parts().any(|part| self.stuck.holds(&part.slice))
    }
}
