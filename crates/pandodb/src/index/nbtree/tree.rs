//! [`Nbtree`] is one tree. This module claims work, attaches memtables and swaps the root.
//!
//! Locks: `inner` is held while a root is built, but never while data is merged. While a thread holds the lock of the
//! pack queue, it takes no other lock.

use std::collections::VecDeque;
use std::sync::Arc;

use super::change::{self, wiped};
use super::garbage;
use super::node::Node;
use super::pacing::Pacing;
use super::persist;
use super::read::NbtreeView;
use super::shape::Limits;
use super::task::{Merge, Next, Task};
use super::world::World;
use crate::base::sync::{ArcSwap, Counter, Mutex, Ordering::Relaxed};
use crate::base::{Error, Extent, KeyRange, Result, SeededBug, Seqno};
use crate::filter::{FilterBuilder, Filters};
use crate::index::blobs::{BlobMap, Fanout};
use crate::index::deferred_frees::DeferredFrees;
use crate::index::owed::Owing;
use crate::index::runs::sequence::MOST_TOMBSTONES;
use crate::index::runs::{Output, PackJob, PackQueue, Packs, Part, Stuck};
use crate::index::{Core, Mode, RootRecord, SealedBatch};
use crate::resolve::{Operator, Stripes};
use crate::rows::IndexRows;
use crate::run::{Compression, RunSlice};
use crate::space::Prefetch;

/// Approximate memory of an index without any run, including the keyspace that it belongs to.
const EMPTY_BYTES: usize = size_of::<Nbtree>() + size_of::<NbtreeView>() + 1536;

/// The settings of an index of this type.
#[derive(Clone)]
pub struct Sizes {
    /// f and σ.
    pub limits: Limits,
    /// The bytes of a full memtable.
    pub memtable_bytes: u64,
    /// The basic or the advanced version of 001.
    pub mode: Mode,
    /// The filters that new runs get, if any.
    pub filters: Option<Filters>,
    /// The compression of the leaf blocks of runs in leaves.
    pub compression: Compression,
    /// Folds operands. Without an operator the operands are kept unfolded.
    pub operator: Option<Operator>,
}

/// One Nested B-tree.
pub struct Nbtree {
    pub(super) core: Core,
    /// The rows of this index in the row cache.
    pub(super) rows: Arc<IndexRows>,
    pub(super) sizes: Sizes,
    /// The smallest f and the smallest σ that were ever in force. Nodes that were written then may still be in the tree.
    pub(super) least: Limits,
    pub(super) published: ArcSwap<NbtreeView>,
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
    pub(super) pieces: Counter,
    pub(super) flushes: Counter,
    pub(super) moved: Counter,
}

/// The state that `inner` guards.
pub struct Inner {
    pub(super) world: World,
    /// The tasks in progress: at most one flush or rewrite, at most one sweep, and at most one sweep of relief. At most
    /// one of them has a piece in progress.
    pub(super) tasks: Vec<Task>,
    /// What follows the flush that has just ended; the last element comes first.
    pub(super) cascade: Vec<Next>,
    /// The bytes that the last flush passed on, at least σ. The flush that follows it passes on at least as much.
    pub(super) quantum: u64,
    /// The ranges of leaves much of whose data is hidden by deletes above them.
    pub(super) garbage: VecDeque<KeyRange>,
    /// Whether the last piece was one of a sweep. Sweeps and flushes take turns.
    pub(super) has_swept: bool,
    /// The `through` of the tree when a flush of the root found nothing that it could move, because of damage. No other
    /// flush of the root begins until more data has arrived.
    pub(super) fruitless: Option<Seqno>,
    /// The work that writers pay for.
    pub(super) pacing: Pacing,
    /// Slices of runs that a merge could not read. Pieces exclude these slices until the store is reopened or a caller
    /// asks for a compaction.
    pub(super) stuck: Stuck,
    pub(super) next_task: u64,
    /// When the disk is full, pieces of the key space are merged in key order. This is the key at which the next piece
    /// starts.
    pub(super) relieved_to: Vec<u8>,
    /// The snapshots and the newest read point that existed when the last pack or merge began. A reader that starts
    /// later gets a read point that is equal or newer.
    pub(super) keep: Stripes,
    /// Whether the keyspace was dropped. If so, the outputs of jobs in progress are discarded.
    pub(super) cleared: bool,
}

/// A claimed piece of work.
pub(super) enum Claim {
    Pack(Box<PackJob>),
    Merge(Box<Merge>),
    /// The work finished without merging data: slices were moved, or a task had no pieces left.
    Moved,
    /// The work could not be started, because an input cannot be read.
    Damage(Error),
}

impl Nbtree {
    /// Makes a tree without messages. The keyspace has no messages up to `through`, so the tree counts as containing
    /// every message up to `through`.
    pub fn create(core: Core, sizes: Sizes, through: Seqno) -> Nbtree {
        let blobs = BlobMap::new(core.pool.clone(), Fanout::PAGE);
        let least = sizes.limits;
        Nbtree::around(core, sizes, least, Arc::new(Node::empty_root()), blobs, through)
    }

    /// Opens the tree that a checkpoint wrote.
    ///
    /// # Errors
    /// [`Error::Corruption`] if a node or the record itself is damaged.
    pub fn open(core: Core, sizes: Sizes, record: &RootRecord, prefetch: &mut Prefetch) -> Result<Nbtree> {
        let loaded = persist::load(&core, record, prefetch)?;
        let least = Limits {
            fanout: loaded.least.fanout.min(sizes.limits.fanout),
            dtree_bytes: loaded.least.dtree_bytes.min(sizes.limits.dtree_bytes),
        };
        let tree = Nbtree::around(core, sizes, least, loaded.root, loaded.blobs, record.through);
        {
            let mut inner = tree.inner.lock();
            inner.garbage = garbage::leaves(&inner.world.root, &KeyRange::all()).into();
            tree.recount(&mut inner);
        }
        Ok(tree)
    }

    fn around(core: Core, sizes: Sizes, least: Limits, root: Arc<Node>, blobs: BlobMap, through: Seqno) -> Nbtree {
        let rows = Arc::new(core.rows.of_index(through));
        let deferred_frees = DeferredFrees::new(&core);
        let blobs = blobs.with_fanout(Fanout::of_memtable(sizes.memtable_bytes));
        let (forced, scans) = (Vec::new(), Arc::default());
        let world = World { root, through, horizon: Seqno(0), blobs, forced, deferred_frees, scans };
        let view = NbtreeView::of(&world, &rows);
        core.pool.hold(EMPTY_BYTES);
        Nbtree {
            owing: Owing::new(core.share.clone()),
            core,
            rows,
            sizes,
            least,
            published: ArcSwap::from_pointee(view),
            inner: Mutex::new(Inner {
                world,
                tasks: Vec::new(),
                cascade: Vec::new(),
                quantum: 0,
                garbage: VecDeque::new(),
                has_swept: false,
                fruitless: None,
                pacing: Pacing::default(),
                stuck: Stuck::default(),
                next_task: 0,
                relieved_to: Vec::new(),
                keep: Stripes::default(),
                cleared: false,
            }),
            queue: PackQueue::default(),
            counters: Counters::default(),
        }
    }

    /// Claims the next piece of work. Memtables come first, because they use memory.
    pub(super) fn claim(&self, keep: &dyn Fn() -> Stripes) -> Result<Option<Claim>> {
        let mut inner = self.inner.lock();
        if let Some(job) = self.claim_pack(&mut inner, keep) {
            return Ok(Some(Claim::Pack(job)));
        }
        self.begin_tasks(&mut inner)?;
        self.claim_piece(&mut inner, None, keep)
    }

    pub(super) fn filter(&self) -> FilterBuilder {
        self.sizes.filters.map_or(FilterBuilder::Nothing, |filters| FilterBuilder::new(filters, 1))
    }

    /// Drops the data that range tombstones of the newest slice cover, if every reader sees these tombstones. This frees
    /// space without a merge. The call does nothing while a piece is in progress. It also does nothing if the data refers
    /// to large values, because only a merge finds the large values to free. REQUIRES: the caller holds `inner`.
    fn wipe(&self, inner: &Inner, mut root: Arc<Node>) -> Result<Arc<Node>> {
        let newest = root.parts.first().expect("a memtable has just arrived").slice.clone();
        let count = newest.run().meta().range_tombstones;
        if count == 0 || count > MOST_TOMBSTONES || !inner.is_idle() {
            return Ok(root);
        }
        for tombstone in newest.tombstones(&KeyRange::all())? {
            let is_seen = inner.keep.stripe_of(tombstone.seqno) == 0 || SeededBug::TreeWipedForSnapshots.is_on();
            if is_seen {
                root = match wiped(&root, &tombstone.range, tombstone.seqno, self.sizes.limits) {
                    // A damaged block may prevent dropping old data, but must not prevent attaching new data.
                    Err(e) if e.is_damage() => continue,
                    wiped => wiped?.unwrap_or(root),
                };
            }
        }
        Ok(root)
    }

    /// Publishes a new root. This is the only function that changes the view that readers pin. The large values in
    /// `dropped` are freed when the last older view is gone. REQUIRES: the caller holds `inner`.
    pub(super) fn publish(&self, inner: &mut Inner, mut world: World, dropped: &[Extent]) {
        assert!(world.through >= inner.world.through, "a swap never loses messages");
        assert!(world.horizon >= inner.world.horizon, "a horizon never decreases");
        assert!(world.root.lost.is_none(), "a tree that cannot be read is never changed");
        world.deferred_frees = inner.world.deferred_frees.succeed(dropped);
        inner.world = world;
        let met: Vec<bool> = inner.world.forced.iter().map(|request| inner.requested(request) == 0).collect();
        let mut met = met.into_iter();
        inner.world.forced.retain(|_| !met.next().unwrap_or(false));
        self.published.store(Arc::new(NbtreeView::of(&inner.world, &self.rows)));
        self.recount(inner);
    }

    /// Adds the slice of new data as the newest slice of the root. REQUIRES: the caller holds `inner`.
    pub(super) fn arrive(&self, inner: &mut Inner, world: &mut World, part: Part) -> Result<()> {
        let (hulls, bytes) = (garbage::hulls(&part), part.bytes);
        world.root = self.wipe(inner, change::with_arrival(&world.root, part))?;
        self.count_arrival(inner, bytes);
        for leaf in hulls.iter().flat_map(|hull| garbage::leaves(&world.root, hull)) {
            if !inner.garbage.contains(&leaf) {
                inner.garbage.push_back(leaf);
            }
        }
        Ok(())
    }
}

impl Packs for Nbtree {
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
        let bottom = inner.world.root.holds_nothing();
        inner.keep.clone_from(&keep);
        let operator = self.sizes.operator.clone();
        Box::new(PackJob::new(&self.core, &self.rows, batch, self.filter(), keep, operator, bottom))
    }

    /// Makes the run of a packed memtable the newest slice of the root, drops the data that its range tombstones cover,
    /// and swaps the root.
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
            self.arrive(inner, &mut world, part)?;
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

impl Drop for Nbtree {
    fn drop(&mut self) {
        self.core.pool.let_go(EMPTY_BYTES);
    }
}
