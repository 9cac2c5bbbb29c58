//! Computes the deadline of the flushes, as the module `pacing` describes.

use std::sync::Arc;

use super::garbage::sum;
use super::node::Node;
use super::pacing::{MEMORY, scaled};
use super::task::{Kind, Next, Task};
use super::tree::{Inner, Nbtree};
use crate::index::Deadline;
use crate::index::runs::Part;

/// Writers pay at most this many times the work of the costliest cascades. What is left of a burst or of a sorted load may
/// take longer than one memtable.
const MOST_TIMES: f64 = 2.0;

impl Nbtree {
    /// The bytes that are written between two cascades.
    fn between_cascades(&self) -> u64 {
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

    /// Counts `bytes` that arrive in the root. REQUIRES: the caller holds `inner`.
    pub(super) fn count_arrival(&self, inner: &mut Inner, bytes: u64) {
        let within = self.between_cascades();
        let most = scaled(self.costliest(&inner.world.root), within, self.sizes.limits.dtree_bytes);
        inner.pacing.arrive(bytes, within, most);
    }

    fn deadline(&self, inner: &Inner) -> Deadline {
        let within_bytes = self.between_cascades();
        let most = scaled(self.costliest(&inner.world.root), within_bytes, self.sizes.limits.dtree_bytes);
        let usual = inner.pacing.usual(most, MEMORY.saturating_mul(within_bytes));
        let late = (self.waiting(inner, most) - 1.0).max(0.0);
        let work = (usual as f64 * (1.0 + late / 2.0)).min(most as f64 * MOST_TIMES);
        Deadline { work_bytes: work as u64, within_bytes }
    }

    /// The work of a flush of `node` and of one full child on each level below it. On each level, it moves σ and rewrites
    /// what the children have.
    fn costliest(&self, mut node: &Arc<Node>) -> u64 {
        let mut work: u64 = 0;
        while let Some(largest) = node.largest_child() {
            let children = sum(node.children.iter().map(|child| child.bytes()));
            work = work.saturating_add(self.sizes.limits.dtree_bytes).saturating_add(children);
            node = largest;
        }
        work
    }

    /// The work in progress, and that of the data in the root which waits for the next flush. The unit is the work that
    /// follows [`Nbtree::between_cascades`] bytes, for which `most` is an upper bound.
    fn waiting(&self, inner: &Inner, most: u64) -> f64 {
        let root = &inner.world.root;
        let rest_of = |task: &Task| match task.kind {
            Kind::Flush { .. } => {
                let source = *root.path_to(&task.rest.from, task.source_height(root)).last().expect("a path has nodes");
                let below = source.largest_child().map_or(0, |child| self.costliest(child));
                task.bytes(root).saturating_add(below)
            }
            Kind::Rewrite { .. } => task.bytes(root),
            Kind::Sweep { .. } => 0,
        };
        let begun = sum(inner.tasks.iter().map(rest_of));
        let following = inner.cascade.iter().map(|next| match next {
            Next::Flush(height, range) => {
                self.costliest(root.path_to(&range.from, *height).last().expect("a path has nodes"))
            }
            Next::Rewrite(..) => self.sizes.limits.dtree_bytes,
        });
        let begun = begun.saturating_add(sum(following));
        let flushed = inner.tasks.iter().find(|task| matches!(task.kind, Kind::Flush { from: u32::MAX }));
        let is_new = |part: &&Part| {
            let is_left = flushed.is_none_or(|task| part.slice.run().meta().max_seqno > task.upto);
            is_left && !inner.stuck.holds(&part.slice)
        };
        let new = sum(root.parts.iter().filter(is_new).map(|part| part.bytes));
        begun as f64 / most.max(1) as f64 + new as f64 / self.between_cascades() as f64
    }
}
