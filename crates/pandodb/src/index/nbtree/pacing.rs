//! Pacing: how many bytes of flushes writers pay for each byte they write.
//!
//! ```text
//!   bytes that arrived, bytes of merges ─▶ usual work of a byte ─┐
//!   shape of the tree ─▶ least and greatest work of a byte ──────┴▶ × (1 + lag / 2) ─▶ deadline, until data arrives
//!   flushes that are late, in cascades ─▶ lag ─────────────────────────┘
//! ```
//!
//! 1. A full root must pass its data on before it is full again, so each write pays for its share (001 §5.1,
//!    "Deamortization"). The source charges every write for the costliest cascade. Most cascades are cheaper: they end at a
//!    level that has room. Then the flushes would be done long before the root is full, and writers would be slow while
//!    they run, and fast in between. So writers pay for the *usual* work: the bytes of merges for each byte that arrived,
//!    a mean over about [`MEMORY`] times the data between two cascades.
//! 2. A costly cascade is not done when the next data arrives. Writers pay half of what is late beside the usual work, and
//!    so the root holds more than one memtable for a while.
//! 3. The mean is at most the work of the costliest cascade, and at least a part of it: while little data has arrived yet,
//!    or after data that could be moved without a merge, the mean is too small.
//!
//! Invariant: the rate changes only when data arrives, or when all flushes are done.

use std::sync::Arc;

use super::node::Node;
use super::task::{Kind, Next, Task};
use super::tree::{Inner, Nbtree};
use crate::base::Seqno;
use crate::index::Deadline;

/// The mean includes about the data of this many cascades.
const MEMORY: u64 = 4;
/// The mean is at least 1/`LEAST_SHARE` of the work of the costliest cascade.
const LEAST_SHARE: u64 = 4;
/// Writers pay for at most this many late cascades.
const MOST_LATE: f64 = 2.0;

/// The work of the past, and what writers pay now.
#[derive(Debug, Default)]
pub(super) struct Pacing {
    /// The work that writers have to pay for; `None` if all flushes are done.
    pub(super) deadline: Option<Deadline>,
    /// Bytes that arrived in the root and bytes of merges. Older bytes count less.
    arrived: u64,
    worked: u64,
    /// Bytes of merges since data arrived last.
    since: u64,
    /// The newest message of the tree when the deadline was computed.
    through: Seqno,
}

impl Pacing {
    /// Records `bytes` of a merge.
    pub(super) fn work(&mut self, bytes: u64) {
        self.since = self.since.saturating_add(bytes);
    }

    /// Records that `bytes` arrived. A cascade follows `within` bytes.
    pub(super) fn arrive(&mut self, bytes: u64, within: u64) {
        let memory = u128::from(MEMORY.saturating_mul(within.max(1)));
        let fade = |sum: u64, new: u64| {
            let old = u128::from(sum) * memory / (memory + u128::from(bytes));
            u64::try_from(old).unwrap_or(u64::MAX).saturating_add(new)
        };
        self.arrived = fade(self.arrived, bytes);
        self.worked = fade(self.worked, std::mem::take(&mut self.since));
    }

    /// The usual work for `within` bytes, if the costliest cascade that follows them works on `most` bytes.
    fn usual(&self, within: u64, most: u64) -> u64 {
        let mean = u128::from(self.worked) * u128::from(within) / u128::from(self.arrived.max(1));
        u64::try_from(mean).unwrap_or(u64::MAX).clamp(most / LEAST_SHARE, most)
    }
}

impl Nbtree {
    /// The bytes that are written between two cascades.
    pub(super) fn between_cascades(&self) -> u64 {
        self.sizes.limits.dtree_bytes.max(self.sizes.memtable_bytes)
    }

    /// Sets the deadline after a change. REQUIRES: the caller holds `inner`.
    pub(super) fn set_deadline(&self, inner: &mut Inner, is_flushing: bool) {
        let is_due = is_flushing || !inner.cascade.is_empty() || self.is_flush_due(inner);
        if !is_due {
            inner.pacing.deadline = None;
        } else if inner.pacing.deadline.is_none() || inner.pacing.through < inner.world.through {
            inner.pacing.deadline = Some(self.deadline(inner));
            inner.pacing.through = inner.world.through;
        }
    }

    fn deadline(&self, inner: &Inner) -> Deadline {
        let (within_bytes, full) = (self.between_cascades(), self.sizes.limits.dtree_bytes);
        let cascade = self.costliest(&inner.world.root);
        let most = u128::from(cascade) * u128::from(within_bytes) / u128::from(full.max(1));
        let usual = inner.pacing.usual(within_bytes, u64::try_from(most).unwrap_or(u64::MAX));
        let late = (self.waiting(inner, cascade) - 1.0).clamp(0.0, MOST_LATE);
        Deadline { work_bytes: (usual as f64 * (1.0 + late / 2.0)) as u64, within_bytes }
    }

    /// The work of a flush of `node` and of one full child on each level below it. On each level, it moves σ and rewrites
    /// what the children have.
    fn costliest(&self, mut node: &Arc<Node>) -> u64 {
        let mut work: u64 = 0;
        while let Some(largest) = node.largest_child() {
            let children = node.children.iter().map(|child| child.bytes()).sum::<u64>();
            work = work.saturating_add(self.sizes.limits.dtree_bytes).saturating_add(children);
            node = largest;
        }
        work
    }

    /// The flushes in progress, and those of the data in the root that waits for the next one, in cascades. `cascade` is
    /// the work of the costliest cascade.
    fn waiting(&self, inner: &Inner, cascade: u64) -> f64 {
        let root = &inner.world.root;
        let rest_of = |task: &Task| match task.kind {
            Kind::Flush { .. } => {
                let source = *root.path_to(&task.rest.from, task.source_height(root)).last().expect("a path has nodes");
                task.bytes(root) + source.largest_child().map_or(0, |child| self.costliest(child))
            }
            Kind::Rewrite { .. } => task.bytes(root),
            Kind::Sweep { .. } => 0,
        };
        let begun: u64 = inner.tasks.iter().map(rest_of).sum();
        let following = inner.cascade.iter().map(|next| match next {
            Next::Flush(height, range) => {
                self.costliest(root.path_to(&range.from, *height).last().expect("a path has nodes"))
            }
            Next::Rewrite(..) => self.sizes.limits.dtree_bytes,
        });
        let begun = begun.saturating_add(following.sum());
        let flushed = inner.tasks.iter().find(|task| matches!(task.kind, Kind::Flush { from: u32::MAX }));
        let is_new = |part: &&crate::index::runs::Part| {
            flushed.is_none_or(|task| part.slice.run().meta().max_seqno > task.upto)
        };
        let new: u64 = root.parts.iter().filter(is_new).map(|part| part.bytes).sum();
        begun as f64 / cascade.max(1) as f64 + new as f64 / self.between_cascades() as f64
    }
}
