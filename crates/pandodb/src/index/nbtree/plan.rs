//! Decides which task comes next, and counts the debt.
//!
//! ```text
//!   root over σ ─▶ flush the first σ bytes of the root ─▶ advanced: flush the largest child over σ ─▶ … ─▶ leaves
//!                                                         basic: flush every child over σ
//! ```
//!
//! 1. A flush of the root and the flushes that follow it are a *cascade*: at most one flush for each level (001 §5.1,
//!    "Single Recursive Call"); in paper mode, every full child is flushed. A level receives about σ bytes and passes
//!    about σ bytes on, so that the d-trees of siblings have at most (f+1)σ bytes together.
//! 2. The work of a cascade should be done before the root is full again, or before the next memtable if that is larger.
//!    The module `deadline` computes what each write pays for it.
//! 3. Requests of callers, and leaves that hold much garbage, are swept. The pieces of sweeps and flushes take turns.
//! 4. The basic version (§3) flushes every child over σ, and writes the rest of the source anew after each flush.

use std::sync::Arc;

use super::garbage;
use super::node::{Node, run_of};
use super::task::{Kind, Next, Search, Slot, Task};
use super::tree::{Inner, Nbtree};
use super::world::World;
use crate::base::sync::Ordering::Relaxed;
use crate::base::{KeyRange, Result, Seqno};
use crate::index::Mode;
use crate::index::runs::Forced;
use crate::index::runs::sequence::{cut_above, sequences_of};
use crate::run::RunSlice;

/// If damage keeps slices in the root, they are merged with each other once there are this many more than twice the number
/// of memtables that make σ.
const MOST_SLICES: u64 = 16;
/// The minimum and maximum number of bytes of a piece.
const PIECE: std::ops::RangeInclusive<u64> = 64 << 10..=64 << 20;

/// After a cascade, nodes with more than 12/5 of σ are flushed, until they have less.
const CROWDED_FIFTHS: u64 = 12;
/// A flush takes the rest of a node along if it is at most 1/SMALL_REST of what the flush moves anyway.
const SMALL_REST: u64 = 8;

impl Nbtree {
    /// The bytes of a piece. A piece has as many bytes as a d-tree, so that a d-tree is written sequentially. The limits
    /// keep the temporary space of a merge small.
    pub(super) fn piece_bytes(&self) -> u64 {
        self.sizes.limits.dtree_bytes.clamp(*PIECE.start(), *PIECE.end())
    }

    /// Begins the next flush and the next sweep, if there is none in progress. REQUIRES: the caller holds `inner`.
    pub(super) fn begin_tasks(&self, inner: &mut Inner) -> Result<()> {
        let is_sweep = |task: &Task| matches!(task.kind, Kind::Sweep { .. });
        let (mut sweeps, mut flushes) = (0, 0);
        inner.tasks.iter().for_each(|task| if is_sweep(task) { sweeps += 1 } else { flushes += 1 });
        let may_flush = !inner.cascade.is_empty() || self.is_flush_due(inner) || self.has_piled_up(inner);
        let may_sweep = !inner.garbage.is_empty() || !inner.world.forced.is_empty();
        let (may_flush, may_sweep) = (flushes == 0 && may_flush, sweeps == 0 && may_sweep);
        if may_flush {
            self.begin_flush(inner)?;
        }
        if may_sweep {
            self.begin_sweep(inner);
        }
        if may_flush || may_sweep {
            // Work that was counted but is not worth a task any more must not count as debt.
            self.recount(inner);
        }
        Ok(())
    }

    /// Begins the flush that follows the last one, or a flush of the root.
    fn begin_flush(&self, inner: &mut Inner) -> Result<bool> {
        let root = inner.world.root.clone();
        while let Some(next) = inner.cascade.pop() {
            match next {
                Next::Rewrite(at, range) => {
                    inner.add_task(Kind::Rewrite { at }, range, Seqno::MAX);
                    return Ok(true);
                }
                Next::Flush(from, range) => {
                    let node = *root.path_to(&range.from, from).last().expect("a path has nodes");
                    let is_full = node.height == from && !node.is_root && node.bytes() > self.sizes.limits.dtree_bytes;
                    if is_full {
                        let rest = self.first_of(inner, node, inner.quantum)?;
                        inner.quantum = bytes_of(node, &rest).max(self.sizes.limits.dtree_bytes);
                        inner.add_task(Kind::Flush { from }, rest, Seqno::MAX);
                        return Ok(true);
                    }
                }
            }
        }
        if self.is_flush_due(inner) {
            // Each level passes on at least as much as it has received, so that no level fills up.
            // After a burst of writes the root has several times σ, and half of it goes down at once.
            let quantum = self.sizes.limits.dtree_bytes.max(root.bytes() / 2);
            let (rest, upto) = (self.first_of(inner, &root, quantum)?, inner.world.through);
            inner.quantum = bytes_of(&root, &rest).max(quantum);
            inner.add_task(Kind::Flush { from: u32::MAX }, rest, upto);
            return Ok(true);
        }
        let has_piled_up = self.has_piled_up(inner);
        if has_piled_up {
            inner.add_task(Kind::Rewrite { at: u32::MAX }, KeyRange::all(), Seqno::MAX);
        }
        Ok(has_piled_up)
    }

    /// Begins a sweep for a request, or of a leaf with much garbage.
    fn begin_sweep(&self, inner: &mut Inner) -> bool {
        let root = inner.world.root.clone();
        if let Some(request) = inner.world.forced.iter().find(|request| inner.requested(request) > 0).cloned() {
            inner.add_task(Kind::Sweep { before: Some(request.before) }, request.range, Seqno::MAX);
            inner.tasks[0].request = Some(request.before);
            return true;
        }
        while let Some(range) = inner.garbage.pop_front() {
            // The leaf may have been split or joined meanwhile, so several leaves may be in the range.
            if let Some(leaf) = garbage::leaves(&root, &range).into_iter().next() {
                if !leaf.to.is_empty() && (range.to.is_empty() || leaf.to < range.to) {
                    inner.garbage.push_front(KeyRange::new(leaf.to.clone(), range.to));
                }
                inner.add_task(Kind::Sweep { before: None }, leaf, Seqno::MAX);
                return true;
            }
        }
        false
    }

    /// Whether the root is over σ, and a flush would move something.
    pub(super) fn is_flush_due(&self, inner: &Inner) -> bool {
        let is_full = inner.world.root.bytes() >= self.sizes.limits.dtree_bytes;
        is_full && inner.fruitless != Some(inner.world.through)
    }

    /// Whether damage keeps too many slices in the root.
    pub(super) fn has_piled_up(&self, inner: &Inner) -> bool {
        let usual = self.sizes.limits.dtree_bytes / self.sizes.memtable_bytes.max(1);
        let root = &inner.world.root;
        let above = root.parts.iter().take_while(|part| !inner.stuck.holds(&part.slice)).count() as u64;
        !inner.stuck.is_empty() && above > 2 * usual + MOST_SLICES && inner.fruitless != Some(inner.world.through)
    }

    /// The range of the first `bytes` bytes of a node (001 §4.1); all of it, if it has little more.
    fn first_of(&self, inner: &Inner, node: &Node, bytes: u64) -> Result<KeyRange> {
        if !inner.stuck.is_empty() {
            // The first bytes may be those that cannot go down.
            return Ok(KeyRange::clone(&node.range));
        }
        cut_above(&sequences_of(node.parts.iter()), &node.range, bytes, bytes + bytes / SMALL_REST)
    }

    /// Ends a task. After a flush, the flushes of its children follow. REQUIRES: the caller holds `inner`.
    pub(super) fn end_task(&self, inner: &mut Inner, world: &mut World, at: usize) {
        let task = inner.tasks.remove(at);
        assert!(matches!(task.slot, Slot::Idle), "a task ends between two pieces");
        world.forced.retain(|request| task.request != Some(request.before));
        let is_of_root = matches!(task.kind, Kind::Flush { from: u32::MAX } | Kind::Rewrite { at: u32::MAX });
        if is_of_root && !task.has_worked {
            inner.fruitless = Some(world.through);
        }
        let Kind::Flush { .. } = task.kind else { return };
        self.counters.flushes.fetch_add(1, Relaxed);
        let height = task.source_height(&world.root);
        if height >= 2 {
            // If the root has grown, the nodes that received data first are lower.
            let least = task.began_at.min(height).max(2) - 1;
            inner.cascade.extend(self.followers(&world.root, least, height, &task.whole));
        }
        if inner.cascade.is_empty() && task.has_worked {
            inner.cascade.extend(self.crowded(&world.root));
        }
        if self.sizes.mode == Mode::Paper && height < world.root.height {
            inner.cascade.push(Next::Rewrite(height, task.whole));
        }
    }

    /// The flush of the inner node with the most data, if it has more than a cascade should leave in it. Only bursts of
    /// writes and sorted loads fill nodes so far.
    fn crowded(&self, root: &Arc<Node>) -> Option<Next> {
        let mut most: Option<&Arc<Node>> = None;
        root.walk(&mut |node| {
            let is_inner = !node.is_root && !node.is_leaf();
            if is_inner && most.is_none_or(|most| most.bytes() < node.bytes()) {
                most = Some(node);
            }
        });
        let most = most.filter(|node| node.bytes() * 5 > self.sizes.limits.dtree_bytes * CROWDED_FIFTHS)?;
        Some(Next::Flush(most.height, KeyRange::clone(&most.range)))
    }

    /// The children to flush after a flush of the nodes of height `height` in `range`. Also children outside of the range
    /// count, which only an earlier flush has reached.
    fn followers(&self, root: &Arc<Node>, least: u32, height: u32, range: &KeyRange) -> Vec<Next> {
        let mut full: Vec<&Arc<Node>> = Vec::new();
        let mut search = vec![root];
        while let Some(node) = search.pop() {
            let receives = |child: &&Arc<Node>| (least..height).contains(&child.height);
            let is_full = |child: &&Arc<Node>| child.bytes() > self.sizes.limits.dtree_bytes;
            let children = if node.height > height { node.children_in(range) } else { &node.children };
            full.extend(children.iter().filter(receives).filter(is_full));
            search.extend(children.iter().filter(|child| child.height > least));
        }
        if self.sizes.mode == Mode::Product {
            full.sort_by_key(|node| std::cmp::Reverse(node.bytes()));
            full.truncate(1);
        }
        full.into_iter().map(|node| Next::Flush(node.height, KeyRange::clone(&node.range))).collect()
    }

    /// Recomputes the debt after a change. REQUIRES: the caller holds `inner`.
    pub(super) fn recount(&self, inner: &mut Inner) {
        let is_flushing = inner.tasks.iter().any(|task| !matches!(task.kind, Kind::Sweep { .. }));
        self.set_deadline(inner, is_flushing);
        let root = &inner.world.root;
        let full = self.sizes.limits.dtree_bytes;
        // What a caller has requested is counted as such.
        let own_tasks = inner.tasks.iter().filter(|task| task.request.is_none());
        let working: u64 = own_tasks.map(|task| task.bytes(root).max(1)).sum();
        let following: u64 = inner.cascade.iter().map(|_| full).sum();
        // Counted with the children, like a flush in progress. Otherwise workers would always prefer keyspaces whose flush
        // has begun.
        let waiting = if self.is_flush_due(inner) && !is_flushing { of_flush(root).max(1) } else { 0 };
        let piled = u64::from(self.has_piled_up(inner) && !is_flushing);
        let garbage: u64 = inner.garbage.iter().map(|_| full).sum();
        let requested: u64 = inner.world.forced.iter().map(|request| inner.requested(request)).sum();
        let deadline = inner.pacing.deadline;
        self.owing.change(|own| {
            own.work_bytes = working + following + waiting + piled + garbage;
            own.requested_bytes = requested;
            own.deadline = deadline;
        });
    }
}

/// Estimated bytes that a flush of all data of a node merges.
fn of_flush(node: &Node) -> u64 {
    node.bytes() + node.children.iter().map(|child| child.bytes()).sum::<u64>()
}

/// Estimated bytes of a node's own data in `range`.
fn bytes_of(node: &Node, range: &KeyRange) -> u64 {
    node.parts_in(range).map(|part| part.bytes_in(range)).sum()
}

impl Inner {
    /// Adds a task in front of the others. REQUIRES: the caller holds `inner`.
    pub(super) fn add_task(&mut self, kind: Kind, range: KeyRange, upto: Seqno) {
        debug_assert!(!range.is_empty(), "a task has keys");
        self.tasks.insert(0, Task::new(self.next_task, kind, range, upto, &self.world.root));
        self.next_task += 1;
    }

    /// Bytes that still have to be rewritten for a request. These are the bytes of the readable old runs in the range of
    /// the request.
    pub(super) fn requested(&self, request: &Forced) -> u64 {
        let mut bytes = 0;
        self.world.root.walk(&mut |node| {
            let old = node.parts_in(&request.range).filter(|part| self.is_old(&part.slice, request));
            bytes += old.map(|part| part.bytes.max(1)).sum::<u64>();
        });
        bytes
    }

    fn is_old(&self, slice: &RunSlice, request: &Forced) -> bool {
        run_of(slice) < request.before && !self.stuck.holds(slice)
    }

    /// A search for pieces in the current tree.
    pub(super) fn search<'s>(&'s self, root: &'s Arc<Node>, tree: &Nbtree, target: u64) -> Search<'s> {
        Search { root, limits: tree.sizes.limits, stuck: &self.stuck, target }
    }
}
