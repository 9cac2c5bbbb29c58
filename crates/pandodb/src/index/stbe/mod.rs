//! `stbe`: the size-tiered Bε-tree over immutable packed branches (002 §3.3–3.6), the default index.
//!
//! ```text
//!               root: one run per memtable, newest last       ── packed, never compacted here
//!              /      |       \      flush = hand over references
//!        inner        …        inner    newly arrived branches are compacted once
//!       /     \               /    \
//!    leaf    leaf    …     leaf    leaf   one large run, small ones of at most a third of it
//! ```
//!
//! 1. Pack a sealed memtable into a run (`runs::PackJob`) and attach the run to a new root (`Stbe::attach`).
//! 2. Rebalance the trunk (`rebalance`): flush references as far down as the triggers require, split leaves `k` ways,
//!    merge small nodes, grow or shrink the root.
//! 3. Compact the newly arrived branches of each node (`choose`, `runs::MergeJob`), concurrently with readers. The
//!    output replaces its inputs in every node that holds them by then (`install`): a split or a flush during a
//!    compaction does not waste its work.
//! 4. A checkpoint writes the nodes that are not on disk yet (`persist`). Unchanged nodes keep their pages.
//!
//! Invariants: `through` and the root change in one swap; a message is live in exactly one node of a path; a node of
//! the published root is never changed. Costs, in blocks of B records, F the fan-out, m the memtable, N the data: each
//! message is written about once per level, on log_F(N/m) levels; a lookup reads about one leaf block, plus the false
//! positives of the filters of at most 3F runs per level.
//!
//! Locks: `inner` (trunk and jobs) is held while a root is built, never while data is merged. `queue` is a leaf lock.

mod check;
mod choose;
mod deletes;
#[cfg(test)]
mod golden;
mod install;
mod jobs;
pub mod node;
mod options;
pub mod persist;
mod read;
mod rebalance;
mod relieve;
mod route;
#[cfg(test)]
mod tests;
mod trunk;

use std::collections::HashSet;
use std::sync::Arc;

use self::check::PinnedTrunk;
use self::choose::Choice;
use self::jobs::{Candidate, Merge, Merging, Stuck};
use self::node::{Branch, BranchId, Node};
use self::read::StbeView;
use self::rebalance::{Pieces, RebalanceCounters, Rebalancer};
use self::route::{RouteJob, Routes};
use self::trunk::{Forced, Trunk};
use super::blobs::{BlobMap, Fanout};
use super::deferred_frees::DeferredBlobFrees;
use super::owed::Owing;
use super::runs::{Output, PackJob, PackQueue, Packs, blobs_of, describe_run};
use super::{
    Checkpoint, Core, Cut, Debt, Estimate, Index, IndexStats, IndexType, IndexView, Inspect, Progress, Room,
    RootRecord, SalvagePiece, SealedBatch, Verification,
};
use crate::base::sync::{ArcSwap, AtomicU64, Counter, Mutex, Ordering::Relaxed};
use crate::base::{Extent, KeyRange, OwnerId, Result, Seqno, events};
use crate::resolve::{Operator, Stripes};
use crate::rows::IndexRows;
use crate::run::{RunMeta, RunSlice};
use crate::space::Prefetch;
use crate::space::ranges::extents;

pub use self::choose::Policy;
pub use self::options::{StbeOptions, TYPE};
pub use self::rebalance::Shape;

/// Approximate memory of an index without any run, including the keyspace that it belongs to.
const EMPTY_BYTES: usize = size_of::<Stbe>() + size_of::<StbeView>() + size_of::<Node>() + 1536;

/// Number of heights for which compactions are counted separately; the last counter includes all greater heights.
const HEIGHTS: usize = 8;
/// The names of these counters, leaves first.
const COMPACTED_AT: [&str; HEIGHTS] = [
    "compacted_at_height_0",
    "compacted_at_height_1",
    "compacted_at_height_2",
    "compacted_at_height_3",
    "compacted_at_height_4",
    "compacted_at_height_5",
    "compacted_at_height_6",
    "compacted_at_height_7",
];

/// The identity of a tree's first branch.
const FIRST_BRANCH: u64 = 1;

/// One size-tiered Bε-tree.
pub struct Stbe {
    core: Core,
    /// Frequently read rows.
    rows: Arc<IndexRows>,
    shape: Shape,
    /// Folds operands. Without an operator they are kept unfolded.
    operator: Option<Operator>,
    published: ArcSwap<StbeView>,
    inner: Mutex<Inner>,
    queue: PackQueue,
    /// Bytes of memtables that are queued or being packed, and of compactions that are waiting or in progress.
    owing: Owing,
    branch_ids: AtomicU64,
    counters: Counters,
}

#[derive(Default)]
struct Counters {
    rebalance: RebalanceCounters,
    packed_bytes: Counter,
    compacted_by_height: [Counter; HEIGHTS],
    filter_bytes: Counter,
    maplet_bytes: Counter,
    wasted_bytes: Counter,
    compactions: Counter,
}

/// The state that `inner` guards.
pub struct Inner {
    trunk: Trunk,
    /// Compactions in progress. `parked` holds the job between steps and is `None` while a thread works on it.
    merging: Vec<Merging>,
    routes: Routes,
    /// Branches that a compaction could not read. Compactions exclude them until the store is reopened or a caller asks
    /// for a compaction.
    stuck: Stuck,
    next_ticket: u64,
    /// On a full disk, leaves are compacted in key order; the next one starts at this key or after it.
    relieved_to: Vec<u8>,
    /// Compactions come before the next memtable is packed.
    sweeping: bool,
    /// Bytes compacted on a full disk since the last memtable was packed or the last call of `compact`.
    swept: u64,
    /// The limit of `swept`: above it, a waiting memtable is packed before any further compaction.
    most_swept: u64,
    /// The snapshots and the newest read point when the last pack or compaction began. Later readers start at that read
    /// point or above.
    keep: Stripes,
    /// The keyspace was dropped: outputs of jobs in progress are discarded.
    cleared: bool,
}

/// A claimed piece of work.
enum Claim {
    Pack(Box<PackJob>),
    Merge(u64, Box<Merge>),
    MapletRef(Box<RouteJob>),
    /// The work could not be started, because an input cannot be read.
    Damage(crate::Error),
}

impl Stbe {
    /// An empty tree that contains every message up to `through` (there is none).
    pub fn create(core: Core, shape: Shape, operator: Option<Operator>, through: Seqno) -> Stbe {
        let trunk = Trunk {
            root: Arc::new(Node::new(KeyRange::all(), 0)),
            through,
            horizon: Seqno(0),
            blobs: BlobMap::new(core.pool.clone(), Fanout::of_memtable(shape.memtable_bytes)),
            forced: Vec::new(),
            deferred_frees: DeferredBlobFrees::new(core.data.clone()),
        };
        Stbe::around(core, shape, operator, trunk, FIRST_BRANCH)
    }

    /// Opens the tree that a checkpoint wrote.
    ///
    /// # Errors
    /// [`crate::Error::Corruption`] if a node or the record itself is damaged.
    pub fn open(
        core: Core,
        shape: Shape,
        operator: Option<Operator>,
        record: &RootRecord,
        prefetch: &mut Prefetch,
    ) -> Result<Stbe> {
        if record.bytes.is_empty() {
            return Ok(Stbe::create(core, shape, operator, record.through));
        }
        let loaded = persist::load(&core, record, prefetch)?;
        let trunk = Trunk {
            root: loaded.root,
            through: record.through,
            horizon: Seqno(0),
            blobs: loaded.blobs.with_fanout(Fanout::of_memtable(shape.memtable_bytes)),
            forced: Vec::new(),
            deferred_frees: DeferredBlobFrees::new(core.data.clone()),
        };
        let stbe = Stbe::around(core, shape, operator, trunk, loaded.next_branch);
        stbe.recount(&mut stbe.inner.lock());
        Ok(stbe)
    }

    fn around(core: Core, shape: Shape, operator: Option<Operator>, trunk: Trunk, next_branch: u64) -> Stbe {
        let rows = Arc::new(core.rows.of_index(trunk.through));
        let view = StbeView::of(&trunk, &rows);
        core.pool.hold(EMPTY_BYTES);
        Stbe {
            owing: Owing::new(core.share.clone()),
            core,
            rows,
            shape,
            operator,
            published: ArcSwap::from_pointee(view),
            inner: Mutex::new(Inner {
                trunk,
                merging: Vec::new(),
                routes: Routes::default(),
                stuck: Stuck::default(),
                next_ticket: 0,
                relieved_to: Vec::new(),
                sweeping: false,
                swept: 0,
                keep: Stripes::default(),
                most_swept: 0,
                cleared: false,
            }),
            queue: PackQueue::default(),
            branch_ids: AtomicU64::new(next_branch),
            counters: Counters::default(),
        }
    }

    /// Claims the next piece of work: first memtables, because they use memory; then maplets, because they are short;
    /// then parked compactions; then new ones.
    fn claim(&self, keep: &dyn Fn() -> Stripes) -> Result<Option<Claim>> {
        let mut inner = self.inner.lock();
        if let Some(job) = self.claim_pack(&mut inner, keep) {
            return Ok(Some(Claim::Pack(job)));
        }
        if let Some(claim) = self.claim_route(&mut inner) {
            return Ok(Some(claim));
        }
        if let Some(merging) = inner.merging.iter_mut().find(|merging| merging.parked.is_some()) {
            let job = merging.parked.take().expect("just seen");
            return Ok(Some(Claim::Merge(merging.ticket, job)));
        }
        let Some(candidate) = self.choice(&inner).first() else {
            return Ok(None);
        };
        // Leaves are rewritten as they grow. Above them a message is compacted once per level.
        let twice = candidate.height > 0 && candidate.branches.iter().any(|branch| !branch.fresh);
        assert!(!twice, "what was compacted on this level already is not compacted here again");
        Ok(Some(self.begin_merge(&mut inner, candidate, keep)))
    }

    /// The compactions that could start now. REQUIRES: the caller holds `inner`.
    fn choice<'a>(&self, inner: &'a Inner) -> Choice<'a> {
        let Trunk { root, forced, .. } = &inner.trunk;
        Choice { root, policy: self.shape.policy, forced, stuck: &inner.stuck, merging: &inner.merging }
    }

    /// Recomputes the compaction debt after a root swap. REQUIRES: the caller holds `inner`.
    fn recount(&self, inner: &mut Inner) {
        let (waiting, requested) = self.choice(inner).bytes();
        let working: u64 = inner.merging.iter().map(|merging| merging.bytes.max(1)).sum();
        let routes = self.route_bytes(inner);
        self.owing.change(|own| {
            own.work_bytes = waiting + working + routes;
            own.requested_bytes = requested;
        });
    }

    fn step_merge(&self, ticket: u64, mut merge: Box<Merge>, budget: u64) -> Result<Progress> {
        let (bytes, done) = match merge.job.step(budget) {
            Ok(stepped) => stepped,
            Err(e) => {
                let Merge { candidate, job } = *merge;
                let failed = job.failed;
                // Free the pages that the job has written before another thread retries it.
                drop(job);
                return Progress::unless_damage(self.give_up_merge(ticket, &candidate, failed, e));
            }
        };
        if !done {
            let mut inner = self.inner.lock();
            if inner.cleared {
                inner.merging.retain(|merging| merging.ticket != ticket);
            } else if let Some(merging) = inner.merging.iter_mut().find(|merging| merging.ticket == ticket) {
                merging.parked = Some(merge);
                // The debt is an estimate. It stays above 0 until the job is done, because threads that wait for the
                // job poll the debt.
                self.owing.change(|own| own.work_bytes = own.work_bytes.saturating_sub(bytes).max(1));
            }
            return Ok(Progress { bytes, ..Progress::default() });
        }
        let Merge { candidate, job } = *merge;
        match job.finish().and_then(|output| self.install(ticket, &candidate, output)) {
            Ok(()) => Ok(Progress { bytes, ..Progress::default() }),
            Err(e) => Progress::unless_damage(self.give_up_merge(ticket, &candidate, None, e)),
        }
    }

    /// Removes a compaction that failed; excludes its inputs if they are damaged.
    fn give_up_merge(
        &self,
        ticket: u64,
        candidate: &Candidate,
        run: Option<OwnerId>,
        error: crate::Error,
    ) -> crate::Error {
        let mut inner = self.inner.lock();
        inner.merging.retain(|merging| merging.ticket != ticket);
        inner.leave(candidate, run, &error);
        self.recount(&mut inner);
        error
    }

    /// Replaces the inputs of a compaction by its output and swaps the root.
    fn install(&self, ticket: u64, candidate: &Candidate, output: Output) -> Result<()> {
        let slice = output.open(&self.core)?;
        let mut inner = self.inner.lock();
        if inner.cleared {
            inner.merging.retain(|merging| merging.ticket != ticket);
            return Ok(());
        }
        let mut trunk = inner.trunk.clone();
        let done = install::Install { candidate, output: slice, deletes: output.deletes.clone(), id: self.branch_id() };
        let placed = done.replace(&mut trunk.root)?;
        assert!(placed || output.dropped_blobs.is_empty(), "inputs under compaction stay in the trunk");
        trunk.blobs.remove_all(&output.dropped_blobs, &self.core.data)?;
        trunk.horizon = trunk.horizon.max(output.horizon);
        let at = inner.merging.iter().position(|merging| merging.ticket == ticket).expect("claimed");
        let merging = inner.merging.swap_remove(at);
        if let Err(e) = self.rebalance(&inner, &mut trunk) {
            inner.merging.push(merging);
            return Err(e);
        }
        self.counters.compactions.fetch_add(1, Relaxed);
        let height = (candidate.height as usize).min(HEIGHTS - 1);
        self.counters.compacted_by_height[height].fetch_add(output.bytes(), Relaxed);
        self.counters.filter_bytes.fetch_add(output.filter_bytes(), Relaxed);
        if !placed {
            self.counters.wasted_bytes.fetch_add(output.bytes(), Relaxed);
        }
        self.publish(&mut inner, trunk, &output.dropped_blobs);
        drop(inner);
        events::compacted(candidate.height, candidate.branches.len(), candidate.bytes, output.bytes());
        Ok(())
    }

    fn branch_id(&self) -> BranchId {
        BranchId(self.branch_ids.fetch_add(1, Relaxed))
    }

    /// Rebalances `trunk`, except where compactions in progress forbid it. REQUIRES: the caller holds `inner`.
    fn rebalance(&self, inner: &Inner, trunk: &mut Trunk) -> Result<()> {
        self.tend_with(inner, trunk, None)
    }

    /// As [`Stbe::rebalance`], except that all branches in the range of `pieces` are flushed to its leaf, and the leaf
    /// is split. REQUIRES: the caller holds `inner`.
    fn tend_with(&self, inner: &Inner, trunk: &mut Trunk, pieces: Option<&Pieces>) -> Result<()> {
        let cut = pieces.iter().map(|pieces| pieces.range.clone());
        let merging: Vec<KeyRange> = inner.merging.iter().flat_map(|merging| merging.live.iter().cloned()).collect();
        let busy: Vec<KeyRange> = merging.iter().cloned().chain(cut.clone()).collect();
        let forced: Vec<KeyRange> = trunk.forced.iter().map(|request| request.range.clone()).chain(cut).collect();
        let tender = Rebalancer {
            shape: self.shape,
            ids: &self.branch_ids,
            counters: &self.counters.rebalance,
            busy: &busy,
            merging: &merging,
            keep: &inner.keep,
            forced: &forced,
            pieces,
        };
        // A flush may drop data that a reader with an older read point needs. The raised horizon makes that reader
        // retry.
        trunk.horizon = trunk.horizon.max(inner.keep.horizon);
        match tender.tend_root(&trunk.root) {
            Ok(root) => trunk.root = root,
            // A damaged block of an old run prevents rebalancing, but must not prevent attaching new data: the
            // unchanged root is correct, only slower. Reads of the damaged range and `verify` report the damage.
            Err(e) if e.is_corruption() => {}
            Err(e) => return Err(e),
        }
        Ok(())
    }

    /// Publishes a new trunk. This is the only function that changes the view that readers pin. The large values in
    /// `dropped` are freed when the last older view is gone. REQUIRES: the caller holds `inner`.
    fn publish(&self, inner: &mut Inner, mut trunk: Trunk, dropped: &[Extent]) {
        let Trunk { root, forced, .. } = &trunk;
        let all = Choice { root, policy: self.shape.policy, forced, stuck: &inner.stuck, merging: &[] };
        if !forced.is_empty() && all.bytes().1 == 0 {
            trunk.forced.clear();
        }
        trunk.deferred_frees = inner.trunk.deferred_frees.succeed(dropped);
        inner.trunk = trunk;
        self.published.store(Arc::new(StbeView::of(&inner.trunk, &self.rows)));
        inner.routes.resume();
        self.recount(inner);
    }
}

impl Packs for Stbe {
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
        let root = &inner.trunk.root;
        let bottom = root.is_leaf() && root.branches.is_empty();
        // In the root, maplets are merged into larger maplets: two rounds.
        let filter = self.filter(2);
        inner.keep.clone_from(&keep);
        Box::new(PackJob::new(&self.core, &self.rows, batch, filter, keep, self.operator.clone(), bottom))
    }

    /// Attaches the run of a packed memtable to the root, rebalances the trunk and swaps the root.
    fn attach(
        &self,
        inner: &mut Inner,
        batch: &SealedBatch,
        run: Option<Arc<RunSlice>>,
        output: &Output,
    ) -> Result<()> {
        let mut trunk = inner.trunk.clone();
        if let Some(slice) = run {
            let mut root = trunk.root.edit();
            let bytes = slice.bytes();
            let branch = root.branch(self.branch_id(), true, slice, bytes)?;
            root.branches.push(Branch { deletes: output.deletes.clone(), ..branch });
            trunk.root = Arc::new(root);
        }
        assert!(batch.through >= trunk.through, "memtables are attached in order");
        trunk.through = batch.through;
        trunk.horizon = trunk.horizon.max(output.horizon);
        trunk.blobs.insert_all(&output.kept_blobs);
        self.rebalance(inner, &mut trunk)?;
        self.counters.packed_bytes.fetch_add(output.bytes(), Relaxed);
        self.counters.filter_bytes.fetch_add(output.filter_bytes(), Relaxed);
        inner.routes.rest(false);
        self.publish(inner, trunk, &output.dropped_blobs);
        Ok(())
    }

    fn free_values(&self, inner: &mut Inner, dropped: &[Extent]) {
        let trunk = inner.trunk.clone();
        self.publish(inner, trunk, dropped);
    }
}

impl Drop for Stbe {
    fn drop(&mut self) {
        self.core.pool.let_go(EMPTY_BYTES);
    }
}

impl Inner {
    /// Excludes damaged inputs from compactions, which would fail again. `run` is the damaged run, if known. REQUIRES:
    /// the caller holds `inner`.
    fn leave(&mut self, candidate: &Candidate, run: Option<OwnerId>, error: &crate::Error) {
        if error.is_damage() {
            let damaged = |branch: &&Branch| run.is_none_or(|run| branch.slice.run().meta().id == run);
            self.stuck.add(candidate.branches.iter().filter(damaged));
        }
    }
}

impl Index for Stbe {
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
            Some(Claim::Merge(ticket, job)) => self.step_merge(ticket, job, budget),
            Some(Claim::MapletRef(job)) => self.step_route(job, budget),
            Some(Claim::Damage(e)) => Progress::unless_damage(e),
            None => Ok(Progress { idle: true, ..Progress::default() }),
        }
    }

    fn relieve(&self, room: Room, keep: &dyn Fn() -> Stripes) -> Result<Progress> {
        self.relieve_in(room, keep)
    }

    fn on_idle(&self) {
        let mut inner = self.inner.lock();
        if inner.routes.rest(true) {
            self.recount(&mut inner);
        }
    }

    fn begin_checkpoint(&self) -> Box<dyn Checkpoint + '_> {
        let inner = self.inner.lock();
        Box::new(TrunkCheckpoint {
            index: self,
            trunk: inner.trunk.clone(),
            next_branch: self.branch_ids.load(Relaxed),
        })
    }

    fn compact(&self, range: &KeyRange) -> Result<()> {
        let mut inner = self.inner.lock();
        // An explicit request retries what was excluded because of damage.
        inner.stuck = Stuck::default();
        inner.swept = 0;
        inner.routes.forgive();
        let mut trunk = inner.trunk.clone();
        trunk.forced.push(Forced { range: range.clone(), before: self.core.ids.next() });
        self.rebalance(&inner, &mut trunk)?;
        self.publish(&mut inner, trunk, &[]);
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
        let count = |counter: &Counter| counter.load(Relaxed);
        let Counters {
            rebalance,
            packed_bytes,
            compacted_by_height,
            filter_bytes,
            maplet_bytes,
            wasted_bytes,
            compactions,
        } = &self.counters;
        stats.packed_bytes = count(packed_bytes);
        stats.compacted_bytes = compacted_by_height.iter().map(count).sum();
        stats.compactions = count(compactions);
        stats.debt = self.debt();
        for (name, bytes) in COMPACTED_AT.into_iter().zip(compacted_by_height) {
            stats.counter(name, count(bytes), "Bytes written by compactions in nodes of that height; 0: leaves.");
        }
        stats.counter("filter_bytes", count(filter_bytes), "Bytes of filters written by packing and compactions.");
        stats.counter("maplet_bytes", count(maplet_bytes), "Bytes of maplets written.");
        stats.counter("wasted_bytes", count(wasted_bytes), "Bytes of compaction outputs that were obsolete when done.");
        stats.counter("flushes", count(&rebalance.flushes), "Flushes of branch references from a node to a child.");
        stats.counter("splits", count(&rebalance.splits), "Nodes split.");
        stats.counter("merges", count(&rebalance.merges), "Nodes merged.");
        let inner = self.inner.lock();
        let mut damaged = HashSet::new();
        // Skip the walk if nothing is damaged: workers wait for this lock.
        if !inner.stuck.is_empty() {
            inner.trunk.root.walk(&mut |node| {
                let stuck = node.branches.iter().filter(|branch| inner.stuck.holds(branch));
                damaged.extend(stuck.map(|branch| branch.slice.run().meta().id));
            });
        }
        stats.damaged = damaged.len() as u64;
        stats
    }

    fn clear(&self) {
        let mut inner = self.inner.lock();
        inner.cleared = true;
        let unpacked = self.queue.clear();
        self.owing.end();
        inner.merging.retain(|merging| merging.parked.is_none());
        inner.routes.clear();
        let mut trunk = inner.trunk.clone();
        trunk.root = Arc::new(Node::new(KeyRange::all(), 0));
        let mut blobs: Vec<Extent> = trunk.blobs.take().iter().flat_map(extents).collect();
        self.rows.begin(Seqno::MAX);
        self.rows.remove_where(|_, _| true);
        blobs.extend(unpacked.iter().flat_map(|batch| blobs_of(&batch.memtable)));
        self.publish(&mut inner, trunk, &blobs);
    }

    fn inspect(&self) -> &dyn Inspect {
        self
    }
}

impl Inspect for Stbe {
    fn pin(&self) -> Box<dyn Verification + '_> {
        let trunk = self.inner.lock().trunk.clone();
        Box::new(PinnedTrunk::new(&self.core, trunk))
    }

    fn describe(&self, object: Option<OwnerId>, out: &mut String) -> bool {
        let Some(id) = object else {
            check::describe(&self.published.load(), out);
            return true;
        };
        let run = self.run(id);
        run.iter().for_each(|meta| describe_run(meta, out));
        run.is_some()
    }

    fn salvage(&self) -> Vec<SalvagePiece> {
        let mut pieces = Vec::new();
        check::salvage(&self.published.load().root, &[], &mut pieces);
        pieces
    }
}

impl Stbe {
    /// The description of a run or maplet of the current root.
    fn run(&self, id: OwnerId) -> Option<RunMeta> {
        let mut found = None;
        self.published.load().root.walk(&mut |node| {
            let runs = node.branches.iter().map(|branch| branch.slice.run()).chain(node.maplets());
            found = found.take().or_else(|| runs.map(|run| run.meta()).find(|meta| meta.id == id).cloned());
        });
        found
    }
}

/// The trunk that the next root record describes.
struct TrunkCheckpoint<'a> {
    index: &'a Stbe,
    trunk: Trunk,
    /// Every branch of the trunk has a smaller identity.
    next_branch: u64,
}

impl Checkpoint for TrunkCheckpoint<'_> {
    fn through(&self) -> Seqno {
        self.trunk.through
    }

    fn write(self: Box<Self>) -> Result<Cut> {
        let Stbe { core, rows, .. } = self.index;
        let TrunkCheckpoint { trunk, next_branch, .. } = &*self;
        // A tree that never held a message needs no block.
        let untouched = *next_branch == FIRST_BRANCH && trunk.root.stored().is_none() && trunk.blobs.is_empty();
        let bytes = match untouched {
            true => Vec::new(),
            false => persist::store(core, &trunk.root, &trunk.blobs, *next_branch)?,
        };
        let pin = Arc::new(StbeView::of(trunk, rows));
        Ok(Cut { root: RootRecord { through: trunk.through, bytes }, pin })
    }
}
