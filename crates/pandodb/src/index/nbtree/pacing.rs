//! Pacing: how many bytes of merges writers pay for each byte they write.
//!
//! ```text
//!   shape of the tree ─▶ work of the costliest cascade ─┐
//!   bytes of merges, compared with it ─▶ usual share ───┴▶ usual work × (1 + late / 2) ─▶ deadline
//!   cascades that are not done in time ─▶ late ─────────────────────────────┘
//! ```
//!
//! 1. A full root must pass its data on before it is full again, so each write pays for its share (001 §5.1,
//!    "Deamortization"). A flush of the root and the flushes that follow it are a *cascade*. The source charges every write
//!    for the costliest cascade, which flushes a node on every level. Most cascades are cheaper, because they end at a
//!    level that has room. If writers paid for the costliest one, the flushes would be done long before the root is full:
//!    writers would be slow while the flushes run, and fast in between.
//! 2. So writers pay for the *usual* work: the work of the costliest cascade, multiplied by the share of it that cascades
//!    really took, a mean over the data of about [`MEMORY`] cascades. The work of the costliest cascade is estimated from
//!    the path of the largest children.
//! 3. A costly cascade is not done when the next data arrives: it is *late*. Writers pay half of what is late in addition
//!    to the usual work. Meanwhile the root has more than one memtable.
//! 4. Sweeps, and nodes that are written ahead for a checkpoint, count as work too, because writers do it as well.
//!
//! Invariant: while flushes are due or in progress, the deadline changes only when data arrives.

use std::sync::Arc;

use super::node::Node;
use super::task::{Kind, Next, Task};
use super::tree::{Inner, Nbtree};
use crate::base::Seqno;
use crate::index::Deadline;
use crate::index::runs::Part;

/// The mean includes the data of about this many cascades.
const MEMORY: u64 = 4;
/// The usual work is at least 1/`LEAST_SHARE` of the work of the costliest cascade. Data that moves without a merge costs no
/// work, so without this limit writers would pay almost nothing when merges begin again.
const LEAST_SHARE: u64 = 4;
/// Writers pay at most this many times the work of the costliest cascades. What is left of a burst or of a sorted load may
/// take longer than one memtable.
const MOST_TIMES: f64 = 2.0;

/// What earlier cascades took, and what writers pay now.
#[derive(Debug, Default)]
pub(super) struct Pacing {
    /// The work that writers have to pay for; `None` if all flushes are done.
    pub(super) deadline: Option<Deadline>,
    /// The work of the costliest cascades for the bytes that arrived, and the bytes of work that was done for them. Bytes
    /// that arrived earlier count less.
    costliest: u64,
    worked: u64,
    /// The same two numbers for the bytes that arrived last.
    expected: u64,
    since: u64,
    /// The newest message of the tree when the deadline was computed.
    through: Seqno,
}

impl Pacing {
    /// Records `bytes` of work.
    pub(super) fn work(&mut self, bytes: u64) {
        self.since = self.since.saturating_add(bytes);
    }

    /// Records that `bytes` arrived. The costliest cascades that follow `within` bytes work on `most` bytes.
    fn arrive(&mut self, bytes: u64, within: u64, most: u64) {
        let memory = MEMORY.saturating_mul(within);
        let fade = |sum: u64, new: u64| scaled(sum, memory, memory.saturating_add(bytes)).saturating_add(new);
        self.costliest = fade(self.costliest, std::mem::replace(&mut self.expected, scaled(most, bytes, within)));
        // The merges of a sorted load are work for bytes that have not arrived in this way.
        self.worked = fade(self.worked, std::mem::take(&mut self.since)).min(self.costliest);
    }

    /// The usual work, if the costliest cascades work on `most` bytes. `known` bytes are added to both sums: while little
    /// was measured, cascades count as costly.
    fn usual(&self, most: u64, known: u64) -> u64 {
        let usual = scaled(most, self.worked.saturating_add(known), self.costliest.saturating_add(known));
        usual.clamp(most / LEAST_SHARE, most)
    }
}

/// `number` · `share` / `whole`.
fn scaled(number: u64, share: u64, whole: u64) -> u64 {
    u64::try_from(u128::from(number) * u128::from(share) / u128::from(whole.max(1))).unwrap_or(u64::MAX)
}

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
            let children = node.children.iter().map(|child| child.bytes()).sum::<u64>();
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
        let is_new = |part: &&Part| flushed.is_none_or(|task| part.slice.run().meta().max_seqno > task.upto);
        let new: u64 = root.parts.iter().filter(is_new).map(|part| part.bytes).sum();
        begun as f64 / most.max(1) as f64 + new as f64 / self.between_cascades() as f64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SIGMA: u64 = 1 << 20;

    #[test]
    fn at_first_the_costliest_cascade_is_paid_for_and_then_the_usual_share() {
        let (mut pacing, most) = (Pacing::default(), 20 * SIGMA);
        let usual = |pacing: &Pacing| pacing.usual(most, MEMORY * SIGMA) as f64 / most as f64;
        pacing.arrive(SIGMA, SIGMA, most);
        assert!((usual(&pacing) - 1.0).abs() < 0.01, "nothing was measured yet");
        for _ in 0..30 {
            pacing.work(most / 2);
            pacing.arrive(SIGMA, SIGMA, most);
        }
        assert!((0.5..0.56).contains(&usual(&pacing)), "{}", usual(&pacing));
        for _ in 0..30 {
            pacing.arrive(SIGMA, SIGMA, most);
        }
        assert!((usual(&pacing) - 0.25).abs() < 0.01, "moves are cheap, but merges may follow");
    }

    #[test]
    fn the_merges_of_a_load_are_forgotten_soon_and_no_number_overflows() {
        let (mut pacing, most) = (Pacing::default(), 20 * SIGMA);
        pacing.work(1000 * most);
        for _ in 0..20 {
            pacing.work(most / 2);
            pacing.arrive(SIGMA, SIGMA, most);
        }
        assert!(pacing.usual(most, MEMORY * SIGMA) < most * 6 / 10);
        pacing.work(u64::MAX);
        pacing.arrive(u64::MAX, 0, u64::MAX);
        pacing.arrive(u64::MAX, u64::MAX, u64::MAX);
        assert_eq!(pacing.usual(u64::MAX, u64::MAX), u64::MAX);
        assert_eq!(pacing.usual(0, 0), 0);
    }
}
