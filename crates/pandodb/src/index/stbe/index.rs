//! Implements [`Index`] for the tree: the functions that the store calls, statistics and checkpoints.

use std::collections::HashSet;
use std::sync::Arc;

use super::TYPE;
use super::check::{self, PinnedTrunk};
use super::jobs::Stuck;
use super::node::Node;
use super::persist;
use super::read::StbeView;
use super::tree::{Claim, Counters, FIRST_BRANCH, HEIGHTS, Stbe};
use super::trunk::Trunk;
use crate::base::sync::{Counter, Ordering::Relaxed};
use crate::base::{Extent, KeyRange, OwnerId, Result, Seqno};
use crate::index::runs::{Forced, Packs, blobs_of, describe_run};
use crate::index::{
    Checkpoint, Cut, Debt, Estimate, Index, IndexStats, IndexType, IndexView, Inspect, Progress, Room, RootRecord,
    SalvagePiece, SealedBatch, SortedLoader, Verification,
};
use crate::resolve::Stripes;
use crate::run::RunMeta;
use crate::space::ranges::extents;

/// The names of the counters of compacted bytes. There is one counter for each height, beginning with the leaves.
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

impl Index for Stbe {
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

    fn begin_checkpoint(&self, _: Seqno) -> Box<dyn Checkpoint + '_> {
        let inner = self.inner.lock();
        Box::new(TrunkCheckpoint {
            index: self,
            trunk: inner.trunk.clone(),
            next_branch: self.branch_ids.load(Relaxed),
        })
    }

    fn compact(&self, range: &KeyRange) -> Result<()> {
        let mut inner = self.inner.lock();
        // An explicit request retries the branches that were excluded because of damage.
        inner.stuck = Stuck::default();
        inner.swept = 0;
        inner.routes.forgive();
        let mut trunk = inner.trunk.clone();
        trunk.forced.push(Forced {
            range: range.clone(),
            before: self.core.ids.next(),
            optional: false,
            keeps_oldest: false,
        });
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
        // Skip the walk over the tree if no branch is damaged, because workers wait for the lock that is held here.
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
    /// Returns the description of a run or maplet of the current root, if there is one with this identity.
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
pub(super) struct TrunkCheckpoint<'a> {
    pub(super) index: &'a Stbe,
    pub(super) trunk: Trunk,
    /// All branches of the trunk have smaller identities than this one.
    pub(super) next_branch: u64,
}

impl Checkpoint for TrunkCheckpoint<'_> {
    fn through(&self) -> Seqno {
        self.trunk.through
    }

    fn write(self: Box<Self>, _: &dyn Fn() -> Stripes) -> Result<Cut> {
        let Stbe { core, rows, .. } = self.index;
        let TrunkCheckpoint { trunk, next_branch, .. } = &*self;
        // A tree that never held a message needs no block.
        let untouched = *next_branch == FIRST_BRANCH && trunk.root.stored().is_none() && trunk.blobs.is_empty();
        let bytes = match untouched {
            true => Vec::new(),
            false => persist::store(core, &trunk.root, &trunk.blobs, *next_branch)?,
        };
        assert!(bytes.len() <= RootRecord::MAX_BYTES, "the catalogue holds root records of limited size");
        let pin = Arc::new(StbeView::of(trunk, rows));
        Ok(Cut { root: RootRecord { through: trunk.through, bytes }, pin, damage: None })
    }
}
