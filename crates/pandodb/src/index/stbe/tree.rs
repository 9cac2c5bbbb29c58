//! [`Stbe`] is one tree. It claims work, does compactions in steps, and swaps the root.
//!
//! Locks: `inner` is held while a root is built, but never while data is merged. The lock of the pack queue is a leaf
//! lock.

use std::sync::Arc;

use super::choose::{Choice, Policy};
use super::install::Install;
use super::jobs::{Candidate, Merge, Merging, Stuck};
use super::node::{Branch, BranchId, Node};
use super::persist;
use super::read::StbeView;
use super::rebalance::{Pieces, RebalanceCounters, Rebalancer, Shape};
use super::route::{RouteJob, Routes};
use super::scans::{Scans, Wanted, path_to};
use super::trunk::Trunk;
use crate::base::sync::{ArcSwap, AtomicU64, Counter, Mutex, Ordering::Relaxed};
use crate::base::{Extent, KeyRange, OwnerId, Result, Seqno, events};
use crate::index::blobs::{BlobMap, Fanout};
use crate::index::deferred_frees::DeferredFrees;
use crate::index::owed::Owing;
use crate::index::runs::{Forced, Output, PackJob, PackQueue, Packs};
use crate::index::{Core, Debt, Progress, RootRecord, SealedBatch};
use crate::resolve::{Operator, Stripes};
use crate::rows::IndexRows;
use crate::run::RunSlice;
use crate::space::Prefetch;

/// Approximate memory of an index without any run, including the keyspace that it belongs to.
const EMPTY_BYTES: usize = size_of::<Stbe>() + size_of::<StbeView>() + size_of::<Node>() + 1536;

/// Number of heights for which compactions are counted separately; the last counter includes all greater heights.
pub(super) const HEIGHTS: usize = 8;
/// The identity of a tree's first branch.
pub(super) const FIRST_BRANCH: u64 = 1;

/// One size-tiered Bε-tree.
pub struct Stbe {
    pub(super) core: Core,
    /// The rows of this index in the row cache.
    pub(super) rows: Arc<IndexRows>,
    pub(super) shape: Shape,
    /// Folds operands. Without an operator the operands are kept unfolded.
    pub(super) operator: Option<Operator>,
    pub(super) published: ArcSwap<StbeView>,
    pub(super) inner: Mutex<Inner>,
    pub(super) queue: PackQueue,
    /// Bytes of memtables that are queued or being packed, and of compactions that are waiting or in progress.
    pub(super) owing: Arc<Owing>,
    pub(super) branch_ids: AtomicU64,
    pub(super) counters: Counters,
}

#[derive(Default)]
pub(super) struct Counters {
    pub(super) rebalance: RebalanceCounters,
    pub(super) packed_bytes: Counter,
    pub(super) compacted_by_height: [Counter; HEIGHTS],
    pub(super) filter_bytes: Counter,
    pub(super) maplet_bytes: Counter,
    pub(super) wasted_bytes: Counter,
    pub(super) compactions: Counter,
}

/// The state that `inner` guards.
pub struct Inner {
    pub(super) trunk: Trunk,
    /// Compactions in progress. `parked` holds the job between steps and is `None` while a thread works on it.
    pub(super) merging: Vec<Merging>,
    pub(super) routes: Routes,
    /// Branches that a compaction could not read. Compactions exclude these branches until the store is reopened or a
    /// caller asks for a compaction.
    pub(super) stuck: Stuck,
    pub(super) next_ticket: u64,
    /// When the disk is full, leaves are compacted in key order. The next leaf to compact is the first one whose range
    /// begins at or after this key.
    pub(super) relieved_to: Vec<u8>,
    /// Whether compactions are done before the next memtable is packed, because the disk is full.
    pub(super) sweeping: bool,
    /// Bytes compacted on a full disk since the last memtable was packed or since the last call of `compact`.
    pub(super) swept: u64,
    /// The limit of `swept`. Above this limit, a waiting memtable is packed before any further compaction.
    pub(super) most_swept: u64,
    /// The snapshots and the newest read point that existed when the last pack or compaction began. A reader that
    /// starts later gets a read point that is equal or newer.
    pub(super) keep: Stripes,
    /// Whether the keyspace was dropped. If so, the outputs of jobs in progress are discarded.
    pub(super) cleared: bool,
}

/// A claimed piece of work.
pub(super) enum Claim {
    Pack(Box<PackJob>),
    Merge(u64, Box<Merge>),
    MapletRef(Box<RouteJob>),
    /// The work could not be started, because an input cannot be read.
    Damage(crate::Error),
}

impl Stbe {
    /// Makes a tree without messages. The keyspace has no messages up to `through`, so the tree counts as containing
    /// every message up to `through`.
    pub fn create(core: Core, shape: Shape, operator: Option<Operator>, through: Seqno) -> Stbe {
        let owing = Arc::new(Owing::new(core.share.clone()));
        let trunk = Trunk {
            root: Arc::new(Node::new(KeyRange::all(), 0)),
            through,
            horizon: Seqno(0),
            blobs: BlobMap::new(core.pool.clone(), Fanout::of_memtable(shape.memtable_bytes)),
            forced: Vec::new(),
            deferred_frees: DeferredFrees::new(&core),
            scans: Arc::new(Scans::new(owing.clone(), shape.policy == Policy::Product)),
        };
        Stbe::around(core, shape, operator, trunk, owing, FIRST_BRANCH)
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
        let owing = Arc::new(Owing::new(core.share.clone()));
        let trunk = Trunk {
            root: loaded.root,
            through: record.through,
            horizon: Seqno(0),
            blobs: loaded.blobs.with_fanout(Fanout::of_memtable(shape.memtable_bytes)),
            forced: Vec::new(),
            deferred_frees: DeferredFrees::new(&core),
            scans: Arc::new(Scans::new(owing.clone(), shape.policy == Policy::Product)),
        };
        let stbe = Stbe::around(core, shape, operator, trunk, owing, loaded.next_branch);
        stbe.recount(&mut stbe.inner.lock());
        Ok(stbe)
    }

    pub(super) fn around(
        core: Core,
        shape: Shape,
        operator: Option<Operator>,
        trunk: Trunk,
        owing: Arc<Owing>,
        next_branch: u64,
    ) -> Stbe {
        debug_assert!(trunk.forced.is_empty(), "a request does not survive closing the store");
        let rows = Arc::new(core.rows.of_index(trunk.through));
        let view = StbeView::of(&trunk, &rows);
        core.pool.hold(EMPTY_BYTES);
        Stbe {
            owing,
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

    /// Claims the next piece of work. Memtables come first, because they use memory. Maplets come next, because making
    /// one takes little time. Parked compactions follow, and new compactions come last.
    pub(super) fn claim(&self, keep: &dyn Fn() -> Stripes) -> Result<Option<Claim>> {
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
        let mut candidate = self.choice(&inner).first();
        if candidate.is_none() && self.request_wanted(&mut inner)? {
            candidate = self.choice(&inner).first();
        }
        let Some(candidate) = candidate else { return Ok(None) };
        // In nodes above the leaves, a message is compacted at most once per level. Leaves are not checked, because
        // their messages are rewritten repeatedly as the leaves grow.
        let twice = candidate.height > 0 && candidate.branches.iter().any(|branch| !branch.fresh);
        assert!(!twice, "what was compacted on this level already is not compacted here again");
        Ok(Some(self.begin_merge(&mut inner, candidate, keep)))
    }

    /// Requests the compaction of a leaf that scans want, unless such a request is open. Returns whether it did. One at a
    /// time, because as long as a request is open, each root swap flushes all new data of its range to the leaf, in
    /// small pieces. REQUIRES: the caller holds `inner`.
    fn request_wanted(&self, inner: &mut Inner) -> Result<bool> {
        let mut trunk = inner.trunk.clone();
        // A compaction that met damage has left its request behind. The damaged inputs are excluded now, so the request
        // may have nothing left to compact.
        if self.drop_fulfilled(inner, &mut trunk) {
            return Ok(false);
        }
        let Some(first) = trunk.scans.take_first() else { return Ok(false) };
        let (mut requested, mut next) = (Ok(false), Some(first));
        // A leaf may need no compaction any more.
        while let (Ok(false), Some(Wanted { range, keeps_oldest, .. })) = (&requested, next.take()) {
            // Since the scans paid, another compaction may have left nothing to do.
            if keeps_oldest && path_to(&trunk.root, &range).1.runs <= 2 {
                next = trunk.scans.take_first();
                continue;
            }
            let before = self.core.ids.next();
            trunk.forced.push(Forced { range, before, optional: true, keeps_oldest });
            requested = self.rebalance(inner, &mut trunk).map(|()| self.drop_fulfilled(inner, &mut trunk));
            if matches!(requested, Ok(false)) {
                next = trunk.scans.take_first();
            }
        }
        // Publish in any case, because the debt still includes the wanted leaves.
        let trunk = if requested.is_ok() { trunk } else { inner.trunk.clone() };
        self.publish(inner, trunk, &[]);
        requested
    }

    /// Removes the requests that are fulfilled. Returns whether an optional one is left. REQUIRES: the caller holds
    /// `inner`.
    fn drop_fulfilled(&self, inner: &Inner, trunk: &mut Trunk) -> bool {
        let choice = Choice {
            root: &trunk.root,
            policy: self.shape.policy,
            forced: &[],
            stuck: &inner.stuck,
            merging: &inner.merging,
        };
        trunk.forced.retain(|request| choice.is_open(request));
        trunk.forced.iter().any(|request| request.optional)
    }

    /// The compactions that could start now. REQUIRES: the caller holds `inner`.
    pub(super) fn choice<'a>(&self, inner: &'a Inner) -> Choice<'a> {
        let Trunk { root, forced, .. } = &inner.trunk;
        Choice { root, policy: self.shape.policy, forced, stuck: &inner.stuck, merging: &inner.merging }
    }

    /// Recomputes the compaction debt after a root swap. REQUIRES: the caller holds `inner`.
    pub(super) fn recount(&self, inner: &mut Inner) {
        let mut debt = self.choice(inner).debt();
        inner.merging.iter().for_each(|merging| *merging.cause.part(&mut debt) += merging.bytes.max(1));
        debt.work_bytes += self.route_bytes(inner);
        inner.trunk.scans.set_debt(|own| *own = Debt { memory_bytes: own.memory_bytes, ..debt });
    }

    pub(super) fn step_merge(&self, ticket: u64, mut merge: Box<Merge>, budget: u64) -> Result<Progress> {
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
                debug_assert!(merging.parked.is_none(), "only the thread that claimed a job parks it");
                merging.parked = Some(merge);
                // The debt is an estimate. The estimate stays above 0 until the job is done, because threads that wait
                // for the job poll the debt.
                let cause = merging.cause;
                self.owing.change(|own| {
                    let debt = cause.part(own);
                    *debt = debt.saturating_sub(bytes).max(1);
                });
            }
            return Ok(Progress { bytes, ..Progress::default() });
        }
        let Merge { candidate, job } = *merge;
        match job.finish().and_then(|output| self.install(ticket, &candidate, output)) {
            Ok(()) => Ok(Progress { bytes, ..Progress::default() }),
            Err(e) => Progress::unless_damage(self.give_up_merge(ticket, &candidate, None, e)),
        }
    }

    /// Removes a compaction that failed, and excludes its inputs if they are damaged.
    pub(super) fn give_up_merge(
        &self,
        ticket: u64,
        candidate: &Candidate,
        run: Option<OwnerId>,
        error: crate::Error,
    ) -> crate::Error {
        let mut inner = self.inner.lock();
        debug_assert!(inner.merging.iter().any(|merging| merging.ticket == ticket), "a claimed job is in the list");
        inner.merging.retain(|merging| merging.ticket != ticket);
        inner.leave(candidate, run, &error);
        self.recount(&mut inner);
        error
    }

    /// Replaces the inputs of a compaction by its output and swaps the root.
    pub(super) fn install(&self, ticket: u64, candidate: &Candidate, output: Output) -> Result<()> {
        let slice = output.open(&self.core)?;
        let mut inner = self.inner.lock();
        if inner.cleared {
            inner.merging.retain(|merging| merging.ticket != ticket);
            return Ok(());
        }
        assert!(output.meta.is_some() || output.kept_blobs.is_empty(), "only messages of a run name large values");
        let mut trunk = inner.trunk.clone();
        let done = Install { candidate, output: slice, deletes: output.deletes.clone(), id: self.branch_id() };
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

    pub(super) fn branch_id(&self) -> BranchId {
        BranchId(self.branch_ids.fetch_add(1, Relaxed))
    }

    /// Rebalances `trunk`, except in ranges where compactions in progress forbid it. REQUIRES: the caller holds
    /// `inner`.
    pub(super) fn rebalance(&self, inner: &Inner, trunk: &mut Trunk) -> Result<()> {
        self.rebalance_with(inner, trunk, None)
    }

    /// Like [`Stbe::rebalance`], but also flushes all branches in the range of `pieces` to its leaf and splits the
    /// leaf. REQUIRES: the caller holds `inner`.
    pub(super) fn rebalance_with(&self, inner: &Inner, trunk: &mut Trunk, pieces: Option<&Pieces>) -> Result<()> {
        let cut = pieces.iter().map(|pieces| pieces.range.clone());
        let merging: Vec<KeyRange> = inner.merging.iter().flat_map(|merging| merging.live.iter().cloned()).collect();
        let busy: Vec<KeyRange> = merging.iter().cloned().chain(cut.clone()).collect();
        let forced: Vec<KeyRange> = trunk.forced.iter().map(|request| request.range.clone()).chain(cut).collect();
        let rebalancer = Rebalancer {
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
        match rebalancer.rebalance_root(&trunk.root) {
            Ok(root) => trunk.root = root,
            // A damaged block of an old run may prevent rebalancing, but must not prevent attaching new data. The
            // unchanged root is correct, but lookups are slower. Reads of the damaged range and `verify` report the
            // damage.
            Err(e) if e.is_corruption() => {}
            Err(e) => return Err(e),
        }
        Ok(())
    }

    /// Publishes a new trunk. This is the only function that changes the view that readers pin. The large values in
    /// `dropped` are freed when the last older view is gone. REQUIRES: the caller holds `inner`.
    pub(super) fn publish(&self, inner: &mut Inner, mut trunk: Trunk, dropped: &[Extent]) {
        self.drop_fulfilled(inner, &mut trunk);
        assert!(trunk.through >= inner.trunk.through, "a root swap never loses messages");
        assert!(trunk.horizon >= inner.trunk.horizon, "a horizon never decreases");
        assert_eq!(*trunk.root.range, KeyRange::all(), "the root holds all keys");
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
        // In the root, filters are merged into maplets, and these are merged into larger maplets. So the filter must
        // allow two rounds of merging.
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
        assert_eq!(run.is_some(), output.meta.is_some(), "the run of the output, and no other");
        assert!(run.is_some() || output.kept_blobs.is_empty(), "only messages of a run name large values");
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
    /// Excludes damaged inputs from later compactions, because these compactions would fail again. `run` is the damaged
    /// run, if known. REQUIRES: the caller holds `inner`.
    pub(super) fn leave(&mut self, candidate: &Candidate, run: Option<OwnerId>, error: &crate::Error) {
        if error.is_damage() {
            let damaged = |branch: &&Branch| run.is_none_or(|run| branch.slice.run().meta().id == run);
            self.stuck.add(candidate.branches.iter().filter(damaged));
        }
    }
}
