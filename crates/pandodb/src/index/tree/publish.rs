//! [`Tree`] is one B+-tree. This module claims jobs and publishes roots.
//!
//! Locks: `inner` is held while a job is claimed or published, but not while pages are read, written or freed.

use std::collections::{HashSet, VecDeque};
use std::sync::Arc;

use super::job::{Done, Job, LargeValues, Pieces, Stage, Tools, Wanted};
use super::sizes::Sizes;
use super::sweep::{seen_by_all, union};
use super::view::{TreeView, estimate};
use super::world::{Described, World};
use crate::base::range::subtract;
use crate::base::sync::{ArcSwap, Counter, Mutex, Ordering::Relaxed};
use crate::base::{BlockAddr, Error, Extent, Fragments, KeyRange, OwnerId, PAGE, Result, Seqno, events, seeded};
use crate::blocks::BlockSource;
use crate::index::blobs::{BlobMap, Fanout};
use crate::index::cached_rows::RowUpdates;
use crate::index::deferred_frees::DeferredFrees;
use crate::index::owed::Owing;
use crate::index::pages::{Description, PageSource};
use crate::index::runs::blobs_of;
use crate::index::{Core, Progress, RootRecord, SealedBatch};
use crate::resolve::Stripes;
use crate::rows::IndexRows;
use crate::space::Prefetch;

/// Approximate memory of an empty index, including the keyspace that it belongs to.
const EMPTY_BYTES: usize = size_of::<Tree>() + size_of::<TreeView>() + 1536;

/// With [`Sizes::piece_bytes`], one of this number of memtables is applied in pieces.
const IN_PIECES: u64 = 8;

/// One B+-tree.
pub struct Tree {
    pub(super) core: Core,
    pub(super) sizes: Sizes,
    pub(super) source: Arc<PageSource>,
    /// The rows of this index in the row cache.
    pub(super) rows: Arc<IndexRows>,
    pub(super) published: ArcSwap<TreeView>,
    pub(super) inner: Mutex<Inner>,
    /// Bytes of memtables that wait or are being applied, and of ranges to sweep.
    pub(super) owing: Owing,
    pub(super) counters: Counters,
}

#[derive(Default)]
pub(super) struct Counters {
    pub(super) applied_bytes: Counter,
    pub(super) swept_bytes: Counter,
    pub(super) sweeps: Counter,
    pub(super) replaced_pages: Counter,
    pub(super) leaves: Counter,
}

/// The state that `inner` guards.
pub(super) struct Inner {
    pub(super) world: World,
    pub(super) batches: VecDeque<SealedBatch>,
    pub(super) slot: Slot,
    /// Ranges that a caller wants rewritten, disjoint and in order.
    pub(super) requested: Vec<KeyRange>,
    /// The error that made a page unreadable for a sweep. No sweep starts until the store is reopened or a caller asks
    /// for a compaction. Memtables are still applied, as long as their leaves can be read.
    pub(super) damage: Option<Error>,
    /// The error that made a page unreadable for which the oldest memtable has messages. The memtable cannot be applied
    /// until the store is reopened or a caller asks for a compaction.
    pub(super) stuck: Option<Error>,
    /// Whether the keyspace was dropped. If so, the result of the job in progress is discarded.
    pub(super) cleared: bool,
}

/// The job of the tree. At most one job exists, because a job rewrites the tree that it started from.
#[derive(Default)]
pub(super) enum Slot {
    #[default]
    Nothing,
    /// The job waits for its next step.
    Parked(Box<Job>),
    /// A thread works on the job.
    Working,
    /// A job that runs in pieces has published a piece, or has failed after that. The next job continues behind the
    /// last piece.
    Interrupted(Box<Pieces>),
}

impl Tree {
    /// Makes a tree without messages. The keyspace has no messages up to `through`, so the tree counts as containing
    /// every message up to `through`.
    pub fn create(core: Core, sizes: Sizes, through: Seqno) -> Tree {
        let empty = || BlobMap::new(core.pool.clone(), Fanout::PAGE);
        let (pages, blobs) = (empty(), empty());
        let owner = core.ids.next();
        let description = Description { owner, root: None, loaded: None, pages, blobs, tombstones: Vec::new() };
        Tree::around(core, sizes, description, through, None)
    }

    /// Opens the tree that a checkpoint wrote.
    ///
    /// # Errors
    /// [`Error::Corruption`] if the description of the tree, or a node of its maps, is damaged. A store that is open
    /// for reading opens without the tree.
    pub fn open(core: Core, sizes: Sizes, record: &RootRecord, prefetch: &mut Prefetch) -> Result<Tree> {
        match Description::load(&core, record, prefetch) {
            Ok((description, stored)) => {
                let tree = Tree::around(core, sizes, description, record.through, None);
                tree.inner.lock().world.described.set_stored(stored);
                Ok(tree)
            }
            Err(e) if !core.repair && e.is_damage() => {
                let empty = || BlobMap::new(core.pool.clone(), Fanout::PAGE);
                let (pages, blobs) = (empty(), empty());
                let description =
                    Description { owner: OwnerId(0), root: None, loaded: None, pages, blobs, tombstones: Vec::new() };
                Ok(Tree::around(core, sizes, description, record.through, Some(e)))
            }
            Err(e) => Err(e),
        }
    }

    fn around(core: Core, sizes: Sizes, from: Description, through: Seqno, lost: Option<Error>) -> Tree {
        let fanout = Fanout::of_memtable(sizes.memtable_bytes);
        let source = Arc::new(PageSource::new(core.data.clone(), core.pool.clone(), from.owner));
        let world = World {
            root: from.root,
            loaded: from.loaded,
            // Most rows have no large values. Whatever the sums say, the pages of the load are in the map.
            loaded_bytes: from
                .loaded
                .map_or(0, |root| root.page.totals.bytes.min(from.pages.pages().saturating_mul(PAGE as u64))),
            through,
            horizon: Seqno(0),
            buffered_from: sizes.levels.buffered_from,
            tombstones: Arc::new(Fragments::build(&from.tombstones)),
            pages: from.pages.with_fanout(fanout.with_bitmaps()),
            blobs: from.blobs.with_fanout(fanout),
            lost,
            described: Arc::new(Described::new(core.data.clone())),
            deferred_frees: DeferredFrees::new(&core),
        };
        let rows = Arc::new(core.rows.of_index(through));
        let view = TreeView::of(&world, &source, &rows);
        core.pool.hold(EMPTY_BYTES);
        let owing = Owing::new(core.share.clone());
        let tree = Tree {
            core,
            sizes,
            source,
            rows,
            published: ArcSwap::from_pointee(view),
            inner: Mutex::new(Inner {
                world,
                batches: VecDeque::new(),
                slot: Slot::Nothing,
                requested: Vec::new(),
                damage: None,
                stuck: None,
                cleared: false,
            }),
            owing,
            counters: Counters::default(),
        };
        // Whether a snapshot needs the tombstones is found out by the first sweep.
        tree.look_at_tombstones(&tree.inner.lock());
        tree.note_loaded(&tree.inner.lock());
        tree
    }

    /// Counts the tombstones as optional work: a sweep will find out which of them every reader sees. REQUIRES: the
    /// caller holds `inner`.
    pub(super) fn look_at_tombstones(&self, inner: &Inner) {
        if !inner.world.tombstones.is_empty() && inner.damage.is_none() {
            self.owing.change(|own| own.optional_bytes = own.optional_bytes.max(1));
        }
    }

    /// Counts the load that waits to be merged as work. REQUIRES: the caller holds `inner`.
    pub(super) fn note_loaded(&self, inner: &Inner) {
        let waiting = inner.world.waiting_bytes();
        self.owing.change(|own| own.work_bytes = own.work_bytes.max(waiting));
    }

    /// Claims the job in progress, or starts the next one: a merge if the tree of a load waits, else for the oldest
    /// memtable, else a sweep if there is something to sweep. With `piece_bytes`, the job runs in pieces; a job in
    /// progress that does not is dropped, and its space is freed. With `no_sweep`, the same happens to a sweep in
    /// progress, and no sweep starts.
    ///
    /// # Errors
    /// The damage that keeps the load from being merged, or the oldest memtable from being applied.
    pub(super) fn claim(
        &self,
        piece_bytes: Option<u64>,
        no_sweep: bool,
        keep: &dyn Fn() -> Stripes,
    ) -> Result<Option<Box<Job>>> {
        // The job is dropped after the lock is released, because it frees its pages.
        let mut unneeded = None;
        let mut inner = self.inner.lock();
        let Tree { core, sizes, source, .. } = self;
        match std::mem::replace(&mut inner.slot, Slot::Working) {
            Slot::Parked(job) if (piece_bytes.is_none() || job.is_in_pieces()) && !(no_sweep && job.is_sweep()) => {
                return Ok(Some(job));
            }
            Slot::Working => return Ok(None),
            Slot::Interrupted(pieces) if inner.stuck.is_none() => {
                let piece_bytes = piece_bytes.unwrap_or(pieces.piece_bytes);
                let pieces = Pieces { piece_bytes, ..*pieces };
                let (from, batch) = (inner.world.clone(), inner.batches.front().cloned());
                let tools =
                    Tools { core, sizes, source, rows: &self.row_updates(batch.as_ref()), index_rows: &self.rows };
                return Ok(Some(Box::new(Job::resume(tools, from, batch, keep(), pieces))));
            }
            Slot::Interrupted(pieces) => {
                inner.slot = Slot::Interrupted(pieces);
                return Err(inner.stuck.clone().expect("looked at"));
            }
            Slot::Parked(job) => unneeded = Some(job),
            Slot::Nothing => {}
        }
        let merges = inner.world.loaded.is_some();
        let batch = inner.batches.front().filter(|_| !merges).cloned();
        let packs = merges || batch.is_some();
        let stripes = keep();
        if packs && inner.stuck.is_some() || !packs && (no_sweep || !self.has_sweep(&inner, &stripes)) {
            inner.slot = Slot::Nothing;
            return inner.stuck.clone().filter(|_| packs).map_or(Ok(None), Err);
        }
        let is_chosen = |_: &u64| batch.as_ref().is_some_and(|batch| batch.through.0.is_multiple_of(IN_PIECES));
        let piece_bytes = piece_bytes.or(sizes.piece_bytes.filter(is_chosen));
        // A page that cannot be read must not keep memtables from being applied.
        let requested = if packs { Vec::new() } else { inner.requested.clone() };
        let wanted = Wanted { hot: None, parts: None, sweeps: inner.damage.is_none(), requested };
        let from = inner.world.clone();
        let tools = Tools { core, sizes, source, rows: &self.row_updates(batch.as_ref()), index_rows: &self.rows };
        drop(inner);
        drop(unneeded);
        Ok(Some(Box::new(Job::new(tools, from, batch, stripes, wanted, piece_bytes))))
    }

    /// Makes the row cache ready for a job that applies `batch`. A sweep or a merge changes no row. REQUIRES: the
    /// caller holds `inner`, so that the memtable is not that of a dropped keyspace; no other job exists.
    fn row_updates(&self, batch: Option<&SealedBatch>) -> RowUpdates {
        batch.map_or_else(RowUpdates::default, |batch| RowUpdates::begin(&self.rows, batch))
    }

    /// Whether a sweep would do anything. If not, sweeps no longer count as debt. REQUIRES: the caller holds `inner`.
    fn has_sweep(&self, inner: &Inner, keep: &Stripes) -> bool {
        let tombstones = inner.world.tombstones.clipped(&KeyRange::all());
        let has_any = !seen_by_all(&tombstones, keep).is_empty() || !inner.requested.is_empty();
        let is_due = has_any && inner.damage.is_none() && inner.world.lost.is_none();
        if !is_due {
            self.owing.change(|own| {
                (own.work_bytes, own.requested_bytes, own.optional_bytes) = (0, 0, 0);
            });
        }
        is_due
    }

    /// Continues a claimed job. A complete job is published.
    pub(super) fn work(&self, mut job: Box<Job>, budget: u64) -> Result<Progress> {
        let kind = (job.is_sweep(), job.merges());
        let (bytes, stage) = match job.step(budget) {
            Ok(stepped) => stepped,
            Err(e) => {
                // Free the pages that the job has written before another thread starts it again.
                let pieces = job.take_pieces();
                drop(job);
                return self.give_up(kind, pieces, e);
            }
        };
        if stage == Stage::Busy {
            let mut inner = self.inner.lock();
            // The job of a dropped keyspace ends. The memtables of the keyspace are gone already.
            inner.slot = if inner.cleared { Slot::Nothing } else { Slot::Parked(job) };
            return Ok(Progress { bytes, ..Progress::default() });
        }
        let (batch, from, mut pieces) = (job.batch.clone(), job.from.clone(), job.take_pieces());
        let published = job.finish(stage).and_then(|done| {
            let merged = from.loaded.map_or(0, |_| done.changed_bytes());
            self.publish_job(&from, batch.as_ref(), done, &mut pieces).map(|()| merged)
        });
        let absorbed = batch.filter(|_| stage == Stage::Complete).map(|batch| batch.bytes);
        match published {
            Ok(merged) => Ok(Progress { bytes: bytes.max(1), absorbed, merged, ..Progress::default() }),
            Err(e) => self.give_up(kind, pieces, e),
        }
    }

    /// Ends a job that failed. Its memtable is applied again by the next job, from the last published piece on. After
    /// damage, no job sweeps any more. If a memtable cannot be applied even so, or if a load cannot be merged, the
    /// index is stuck.
    fn give_up(&self, (is_sweep, merges): (bool, bool), pieces: Option<Pieces>, error: Error) -> Result<Progress> {
        let mut inner = self.inner.lock();
        inner.slot = match pieces {
            Some(pieces) if !inner.cleared => Slot::Interrupted(Box::new(pieces)),
            _ => Slot::Nothing,
        };
        if !error.is_damage() {
            return Err(error);
        }
        let was_swept = inner.damage.is_none();
        inner.damage.get_or_insert_with(|| error.clone());
        let waiting = inner.world.waiting_bytes();
        self.owing.change(|own| (own.work_bytes, own.requested_bytes, own.optional_bytes) = (waiting, 0, 0));
        if is_sweep || was_swept && !merges {
            // The next job for this memtable sweeps nothing. Perhaps it does not need the damaged page.
            return Progress::unless_damage(error);
        }
        inner.stuck = Some(error.clone());
        Err(error)
    }

    /// Publishes the result of a job, unless the keyspace was dropped.
    fn publish_job(
        &self,
        from: &World,
        batch: Option<&SealedBatch>,
        mut done: Done,
        pieces: &mut Option<Pieces>,
    ) -> Result<()> {
        let sweep_bytes = self.sweep_bytes(&done);
        // No other job changes the maps, so they are computed without the lock.
        let mut world = from.clone();
        world.pages.insert_all(done.written.extents());
        let gone = joined(seeded!(TreeMapKeepsReplaced: Vec::new(), done.replaced.clone()));
        world.pages.remove_all(&gone, &self.core.data)?;
        let is_known = |extent: &&Extent| world.blobs.contains(extent.start.0, extent.pages.into());
        let (known, unknown): (Vec<Extent>, Vec<Extent>) = done.values.dropped.iter().partition(is_known);
        check_values(&self.core, batch, &unknown)?;
        world.blobs.remove_all(&known, &self.core.data)?;
        let in_pieces = pieces.is_some();
        let mut values = pieces.take().map_or_else(LargeValues::default, |pieces| pieces.values);
        values.append(LargeValues { dropped: unknown, ..std::mem::take(&mut done.values) });
        if done.rest.is_none() {
            world.blobs.insert_all(&values.kept);
        }
        let mut inner = self.inner.lock();
        let is_sweep = batch.is_none() && from.loaded.is_none();
        // A load that was attached meanwhile makes a sweep useless. No load is attached during other jobs.
        if inner.cleared || is_sweep && inner.world.through != from.through {
            inner.slot = Slot::Nothing;
            return Ok(());
        }
        assert!(inner.world.has_same_rows(from), "one job at a time changes the root");
        self.count(done.written.bytes(), &done.replaced, done.leaves, is_sweep || !done.swept.is_empty());
        world.root = done.root;
        world.set_loaded(seeded!(RestOfLoadLost: None, done.loaded));
        world.tombstones = Arc::new(std::mem::take(&mut done.tombstones));
        world.horizon = world.horizon.max(done.keep.horizon);
        if is_sweep {
            inner.requested = inner.requested.iter().flat_map(|range| subtract(range, &done.swept)).collect();
        }
        done.written.keep();
        if let Some(rest) = done.rest.take() {
            // The memtable and the log still own the values that the memtable has brought.
            let old = self.publish(&mut inner, world, &done.replaced, &known);
            inner.slot = Slot::Interrupted(Box::new(Pieces { values, ..rest }));
            drop(inner);
            drop(old);
            return Ok(());
        }
        if let Some(batch) = batch {
            assert!(batch.through >= world.through, "memtables are applied in order");
            world.through = batch.through;
            let first = inner.batches.pop_front().expect("the memtable was applied");
            debug_assert!(Arc::ptr_eq(&first.memtable, &batch.memtable), "the oldest memtable is applied");
            if in_pieces && self.sizes.piece_bytes.is_none() {
                // The pieces have kept old versions. On a full disk, they are removed at once.
                inner.requested = union(inner.requested.drain(..).chain([KeyRange::all()]).collect());
            }
        }
        inner.slot = Slot::Nothing;
        values.new_values.drain(..).for_each(|mut values| values.keep());
        values.dropped.extend(known);
        let old = self.publish(&mut inner, world, &done.replaced, &values.dropped);
        self.note_debt(&inner, batch.map_or(0, |batch| batch.bytes), sweep_bytes);
        drop(inner);
        drop(old);
        if let Some(batch) = batch {
            events::packed(batch.bytes, done.written.bytes());
        }
        Ok(())
    }

    /// Updates the debt after a job. REQUIRES: the caller holds `inner`.
    pub(super) fn note_debt(&self, inner: &Inner, applied: u64, sweep_bytes: u64) {
        let is_requested = !inner.requested.is_empty();
        self.owing.change(|own| {
            own.memory_bytes = own.memory_bytes.saturating_sub(applied);
            own.work_bytes = sweep_bytes.saturating_add(inner.world.waiting_bytes());
            own.optional_bytes = 0;
            own.requested_bytes = if is_requested { own.requested_bytes.max(1) } else { 0 };
        });
    }

    pub(super) fn count(&self, bytes: u64, replaced: &[Extent], leaves: u64, is_sweep: bool) {
        let written = if is_sweep { &self.counters.swept_bytes } else { &self.counters.applied_bytes };
        written.fetch_add(bytes, Relaxed);
        self.counters.sweeps.fetch_add(u64::from(is_sweep), Relaxed);
        let pages: u64 = replaced.iter().map(|extent| u64::from(extent.pages)).sum();
        self.counters.replaced_pages.fetch_add(pages, Relaxed);
        self.counters.leaves.fetch_add(leaves, Relaxed);
    }

    /// Bytes of the leaves that a sweep still has to visit because of tombstones that all readers see. A tombstone
    /// whose range cannot be estimated counts as one byte.
    pub(super) fn sweep_bytes(&self, done: &Done) -> u64 {
        let seen = seen_by_all(&done.tombstones.clipped(&KeyRange::all()), &done.keep);
        let mut bytes = 0u64;
        for tombstone in seen.newest() {
            let estimate = estimate(done.root, &self.source, &tombstone.range).unwrap_or_default();
            bytes = bytes.saturating_add(estimate.bytes.max(1));
        }
        bytes
    }

    /// Publishes a new state. This is the only function that changes the view that readers pin. The pages and large
    /// values are freed when the last older view is gone. REQUIRES: the caller holds `inner`.
    #[must_use = "dropping the old view may free many pages, so it is dropped without the lock"]
    pub(super) fn publish(
        &self,
        inner: &mut Inner,
        mut world: World,
        pages: &[Extent],
        values: &[Extent],
    ) -> Arc<TreeView> {
        assert!(world.through >= inner.world.through, "a swap never loses messages");
        assert!(world.horizon >= inner.world.horizon, "a horizon never decreases");
        assert!(world.lost.is_none(), "a tree that cannot be read is never changed");
        let owner = self.source.owner();
        let later = seeded!(TreePagesFreedAtOnce: self.free_at_once(pages), pages);
        let frees = later.iter().map(|extent| (owner, *extent));
        let frees = frees.chain(values.iter().map(|extent| (OwnerId::VALUES, *extent)));
        world.deferred_frees = inner.world.deferred_frees.succeed_with(frees);
        // A checkpoint has described the state with a load before it is published.
        if Arc::ptr_eq(&world.described, &inner.world.described) {
            let described = || Arc::new(Described::new(self.core.data.clone()));
            world.described = seeded!(TreeDescriptionRepeated: world.described.clone(), described());
        }
        inner.world = world;
        self.published.swap(Arc::new(TreeView::of(&inner.world, &self.source, &self.rows)))
    }

    /// Frees pages that readers may still need. Only a seeded bug calls this.
    fn free_at_once(&self, pages: &[Extent]) -> &[Extent] {
        pages.iter().for_each(|extent| self.core.data.free(*extent));
        &[]
    }

    /// Removes everything, because the keyspace was dropped. `values` are large values that are not in the tree yet.
    pub(super) fn remove_all(&self, mut values: Vec<Extent>) {
        let mut inner = self.inner.lock();
        inner.cleared = true;
        self.owing.end();
        // The memtable of the job in progress is still in the queue.
        values.extend(inner.batches.drain(..).flat_map(|batch| blobs_of(&batch.memtable)));
        if !matches!(inner.slot, Slot::Working) {
            inner.slot = Slot::Nothing;
        }
        let mut world = inner.world.clone();
        let all =
            |map: &mut BlobMap| -> Vec<Extent> { map.take().iter().flat_map(crate::space::ranges::extents).collect() };
        let pages = all(&mut world.pages);
        values.extend(all(&mut world.blobs));
        (world.root, world.tombstones) = (None, Arc::default());
        world.set_loaded(None);
        inner.requested.clear();
        self.rows.begin(Seqno::MAX);
        self.rows.remove_where(|_, _| true);
        let old = self.publish(&mut inner, world, &pages, &values);
        drop(inner);
        drop(old);
    }
}

/// The same pages as fewer extents, in order.
pub(super) fn joined(mut extents: Vec<Extent>) -> Vec<Extent> {
    extents.sort_unstable_by_key(|extent| extent.start);
    let mut out: Vec<Extent> = Vec::new();
    for extent in extents {
        match out.last_mut() {
            Some(last) if last.end() == extent.start.0 && last.pages < u32::MAX - extent.pages => {
                last.pages += extent.pages;
            }
            _ => out.push(extent),
        }
    }
    out
}

/// Checks that large values which are in no map have come with the memtable.
///
/// # Errors
/// [`Error::Corruption`] if another message has referred to them. Then they may belong to another index.
fn check_values(core: &Core, batch: Option<&SealedBatch>, unknown: &[Extent]) -> Result<()> {
    if unknown.is_empty() {
        return Ok(());
    }
    let brought: HashSet<Extent> = batch.map_or(Vec::new(), |batch| blobs_of(&batch.memtable)).into_iter().collect();
    match unknown.iter().find(|extent| !brought.contains(extent)) {
        None => Ok(()),
        Some(extent) => {
            let addr = BlockAddr { page: extent.start, pages: extent.pages };
            let detail = "a message names pages that the map of large values does not contain";
            Err(core.data.corrupt(addr, "large values", detail))
        }
    }
}

impl Drop for Tree {
    fn drop(&mut self) {
        self.core.pool.let_go(EMPTY_BYTES);
    }
}
