//! Tasks, and the pieces of which they consist. A task is a flush of one node, or a merge of all levels of a range.
//!
//! ```text
//!   Flush       source   [░░░░░░│ run 7        ]      ░ flushed already     │ where the next piece begins
//!               children [ run 8 ][ run 2 ][ run 3 ]  a piece: a part of the source, and what one child has there
//!
//!   Sweep       root … leaf, all levels in the range of one leaf ──▶ the leaf
//!   Rewrite     the slices of one node in a range ──▶ the same node
//! ```
//!
//! 1. A piece begins at the first key of the source that is left. It ends at the end of the child, or where its inputs
//!    have about as many bytes as a piece may have.
//! 2. The inputs are merged into a run, which replaces them by one swap of the root. So a task needs temporary space for
//!    one piece only, and a crash loses the work on at most one piece. Whatever is left of the source is still there.
//! 3. If the source and the child do not overlap, the slices of the source are moved to the child as they are.
//! 4. A part that could not be read is *stuck*. Pieces end before it, and continue behind it. In its range, data stays
//!    above it, and is neither flushed nor swept.
//!
//! Invariant: a message is in the inputs or in the output of a piece, never in both. The inputs of a piece are in
//! neighbouring nodes of one path, and in the root they are the oldest ones (in a rewrite of the root, the newest ones).
//! Therefore newer messages stay above older ones.

use std::sync::Arc;

use super::node::{Node, run_of};
use super::shape::Limits;
use crate::base::{KeyRange, OwnerId, Result, Seqno};
use crate::index::runs::sequence::{cut_to, joined_ranges, may_be_neighbours, sequences_of};
use crate::index::runs::{MergeJob, Part, Stuck};
use crate::run::RunSlice;

/// Parts that have on average fewer bytes than σ/LEAST_MOVED are not moved but rewritten, because every part uses memory.
const LEAST_MOVED: u64 = 16;

/// The purpose of a task.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Moves data of the nodes of height `from` to their children. A height above that of the root means the root.
    Flush {
        /// The height of the source.
        from: u32,
    },
    /// Merges all levels into the leaves.
    Sweep {
        /// A range is merged only if it has runs with a smaller identity than this. `None`: in any case.
        before: Option<OwnerId>,
    },
    /// Writes the data of the nodes of height `at` anew.
    Rewrite {
        /// The height of the nodes. A height above that of the root means the root.
        at: u32,
    },
}

/// What follows a flush.
#[derive(Clone, Debug)]
pub enum Next {
    /// Flush the node of this height that contains the lower bound of the range, if it is over σ.
    Flush(u32, KeyRange),
    /// Write the rest of the node of this height anew.
    Rewrite(u32, KeyRange),
}

/// A task.
pub struct Task {
    /// The number of the task, unique in the index.
    pub id: u64,
    /// What the task does.
    pub kind: Kind,
    /// The height of the source when the task began. The root may grow while it is flushed.
    pub began_at: u32,
    /// The key range of the task when it began.
    pub whole: KeyRange,
    /// The key range that is still to be processed.
    pub rest: KeyRange,
    /// The newest message in the slices of the root that belong to the task. Memtables that arrive later wait.
    pub upto: Seqno,
    /// The request that the task serves, identified by the limit of the request (`Forced::before`).
    pub request: Option<OwnerId>,
    /// Whether a piece of the task is done.
    pub has_worked: bool,
    /// The state of the current piece.
    pub slot: Slot,
}

/// The state of the current piece of a task. A task has at most one piece in progress.
#[derive(Default)]
pub enum Slot {
    /// The next piece can begin.
    #[default]
    Idle,
    /// The piece waits between two steps.
    Parked(Box<Merge>),
    /// A thread works on the piece.
    Working,
}

/// The merge of a piece.
pub struct Merge {
    pub(super) task: u64,
    pub(super) piece: Piece,
    pub(super) bytes: u64,
    /// Whether a caller has requested the task.
    pub(super) is_requested: bool,
    pub(super) job: MergeJob,
}

/// A piece of a task.
pub struct Piece {
    /// The keys of the piece. They are in the range of one node of height `to`.
    pub range: KeyRange,
    /// The height of the highest node whose data is in the piece.
    pub from: u32,
    /// The height of the node that receives the output.
    pub to: u32,
    /// The inputs, newest first. Only the part in `range` counts.
    pub inputs: Vec<Part>,
    /// Whether nothing more arrives in the node that receives the output.
    pub is_last: bool,
    /// The slices of the output, if the inputs can be moved.
    pub moved: Option<Vec<Part>>,
}

impl Piece {
    /// The runs of the inputs.
    pub fn runs(&self) -> Vec<OwnerId> {
        self.inputs.iter().map(|part| run_of(&part.slice)).collect()
    }

    /// The slices of the inputs, oldest first, as a merge takes them.
    pub fn slices(&self) -> Vec<Arc<RunSlice>> {
        self.inputs.iter().rev().map(|part| part.slice.clone()).collect()
    }
}

impl Task {
    /// A task that has not begun.
    pub fn new(id: u64, kind: Kind, range: KeyRange, upto: Seqno, root: &Node) -> Task {
        let (whole, rest) = (range.clone(), range);
        let mut task =
            Task { id, kind, began_at: 0, whole, rest, upto, request: None, has_worked: false, slot: Slot::Idle };
        task.began_at = task.source_height(root);
        task
    }

    /// The height of the node from which the task takes its data.
    pub fn source_height(&self, root: &Node) -> u32 {
        match self.kind {
            Kind::Flush { from } => from.min(root.height),
            Kind::Rewrite { at } => at.min(root.height),
            Kind::Sweep { .. } => root.height,
        }
    }

    /// Estimated bytes that are still to be merged. Slices that are partly in the rest count whole.
    pub fn bytes(&self, root: &Arc<Node>) -> u64 {
        let from = self.source_height(root);
        let (least, most) = match self.kind {
            Kind::Flush { .. } => (from - 1, from),
            Kind::Rewrite { .. } => (from, from),
            Kind::Sweep { .. } => (0, from),
        };
        bytes_between(root, &self.rest, least, most)
    }

    /// Removes a finished piece from the rest of the task. Returns whether any keys are left.
    pub fn pass(&mut self, piece: &KeyRange) -> bool {
        if piece.to.is_empty() || piece.to == self.rest.to {
            return false;
        }
        debug_assert!(piece.to > self.rest.from, "each piece advances the task");
        self.rest.from.clone_from(&piece.to);
        !self.rest.is_empty()
    }
}

/// Estimated bytes of the nodes with heights from `least` to `most` in `range`.
fn bytes_between(node: &Arc<Node>, range: &KeyRange, least: u32, most: u32) -> u64 {
    let own = if node.height <= most { node.parts_in(range).map(|part| part.bytes).sum() } else { 0 };
    if node.height <= least {
        return own;
    }
    own + node.children_in(range).iter().map(|child| bytes_between(child, range, least, most)).sum::<u64>()
}

/// What a search for the next piece knows.
pub struct Search<'s> {
    /// The root of the tree.
    pub root: &'s Arc<Node>,
    /// The limits of the shape.
    pub limits: Limits,
    /// The slices that cannot be read.
    pub stuck: &'s Stuck,
    /// The bytes of a piece.
    pub target: u64,
}

impl Search<'_> {
    /// The next piece of a task; `None` if nothing in its rest can be done.
    ///
    /// # Errors
    /// If an inner block of a run cannot be read.
    pub fn next_piece(&self, task: &Task) -> Result<Option<Piece>> {
        let mut rest = task.rest.clone();
        while !rest.is_empty() {
            let found = match task.kind {
                Kind::Flush { .. } => self.flush_piece(task, &rest)?,
                Kind::Sweep { before } => self.sweep_piece(&rest, before)?,
                Kind::Rewrite { .. } => self.rewrite_piece(task, &rest)?,
            };
            match found {
                Found::Piece(piece) => return Ok(Some(*piece)),
                Found::NothingUpTo(end) if end.is_empty() || end == rest.to => return Ok(None),
                Found::NothingUpTo(end) => {
                    assert!(end > rest.from, "a search goes upwards");
                    rest.from = end;
                }
            }
        }
        Ok(None)
    }

    /// The end of the keys from `rest.from` on for which the same slices are stuck.
    fn until_stuck<'p>(&self, parts: impl Iterator<Item = &'p Part>, rest: &KeyRange) -> KeyRange {
        let bounds = parts.filter(|part| self.stuck.holds(&part.slice));
        let bounds = bounds.flat_map(|part| [part.slice.range().from.clone(), part.slice.range().to.clone()]);
        let end = bounds.filter(|key| *key > rest.from && !key.is_empty()).min();
        end.map_or(rest.clone(), |end| KeyRange::new(rest.from.clone(), end).intersect(rest))
    }

    fn is_stuck<'p>(&self, mut parts: impl Iterator<Item = &'p Part>, range: &KeyRange) -> bool {
        parts.any(|part| part.slice.range().overlaps(range) && self.stuck.holds(&part.slice))
    }

    /// The next piece of a flush.
    fn flush_piece(&self, task: &Task, rest: &KeyRange) -> Result<Found> {
        let from = task.source_height(self.root);
        let source = *self.root.path_to(&rest.from, from).last().expect("a path has nodes");
        let span = rest.intersect(&source.range);
        let has_keys = |part: &Part| part.slice.run().meta().range_tombstones > 0 || part.slice.may_hold_some(&span);
        let is_due =
            |part: &&Part| has_keys(part) && (!source.is_root || part.slice.run().meta().max_seqno <= task.upto);
        let due = || source.parts_in(&span).filter(is_due);
        let Some(low) = due().map(|part| part.slice.low()).min() else {
            return Ok(Found::NothingUpTo(span.to));
        };
        let low = low.max(span.from.as_slice()).to_vec();
        let child = &source.children[source.child_for(&low)];
        let left = KeyRange::new(low, span.to.clone()).intersect(&child.range);
        assert!(!left.is_empty(), "the first key is in the range of its child");
        // All keys before the next bound of a stuck slice have the same readable slices.
        let until = self.until_stuck(due().chain(child.parts.within(&left)), &left);
        let all: Vec<&Part> = due().filter(|part| part.slice.range().overlaps(&until)).collect();
        // Below a stuck slice of the root, only the older slices can go down.
        let usable = all.iter().rposition(|part| self.stuck.holds(&part.slice)).map_or(0, |at| at + 1);
        let source_parts: Vec<&Part> = all[usable..].to_vec();
        if source_parts.is_empty() || self.is_stuck(child.parts.iter(), &until) {
            return Ok(Found::NothingUpTo(until.to));
        }
        let touched = self.touched(&source_parts, child, &until, &span.from);
        let (to, is_whole) = (child.height, touched.to == left.to || until.to == left.to);
        let moved = match self.moved(&source_parts, child, &touched) {
            // A merge finds out which of the inputs is damaged.
            Err(e) if e.is_damage() => None,
            moved => moved?,
        };
        if let Some(moved) = moved {
            let inputs = inputs(source_parts, child.parts.within(&touched));
            let piece = Piece { range: touched, from, to, inputs, is_last: is_whole, moved: Some(moved) };
            return Ok(Found::piece(piece));
        }
        let mut sequences = sequences_of(source_parts.iter().copied());
        sequences.push(child.parts.within(&touched).to_vec().into());
        let range = cut_to(&sequences, &touched, self.target)?;
        let is_last = range == touched && is_whole;
        let source_parts = source_parts.into_iter().filter(|part| part.slice.range().overlaps(&range)).collect();
        let inputs = inputs(source_parts, child.parts.within(&range));
        Ok(Found::piece(Piece { range, from, to, inputs, is_last, moved: None }))
    }

    /// The keys that a flush of `source` rewrites in `child`: from the first to the last key of the source in `until`,
    /// extended to whole slices of the child, so that narrow flushes do not cut the child into ever more slices.
    fn touched(&self, source: &[&Part], child: &Node, until: &KeyRange, start: &[u8]) -> KeyRange {
        let mut range = until.clone();
        let first = child.parts.within(until).first().map(|part| part.slice.range());
        if let Some(first) = first.filter(|first| first.contains(&until.from)) {
            range.from = first.from.clone().max(start.to_vec()).min(until.from.clone());
        }
        let ends = source.iter().map(|part| {
            let (meta, own) = (part.slice.run().meta(), part.slice.range());
            let is_short = meta.range_tombstones == 0 && until.is_above(&meta.last_key) && own.is_above(&meta.last_key);
            if is_short { Some(meta.last_key.as_slice()) } else { None }
        });
        // Without a last key of every slice, the piece extends to the end of the child.
        let Some(last) = ends.collect::<Option<Vec<&[u8]>>>().and_then(|ends| ends.into_iter().max()) else {
            return range;
        };
        let next = child.parts.within(until).iter().find(|part| {
            let own = part.slice.range();
            own.contains(last) || own.from.as_slice() > last
        });
        if let Some(next) = next.map(|part| part.slice.range()) {
            let end = if next.contains(last) { &next.to } else { &next.from };
            if !end.is_empty() && until.is_above(end) && *end > range.from {
                range.to.clone_from(end);
            }
        }
        range
    }

    /// The slices that the child has in `range` after the slices of the source have moved there, in key order. `None` if
    /// they overlap, or if they are too small, or if a leaf would get messages that a merge into the leaf would resolve.
    fn moved(&self, source: &[&Part], child: &Node, range: &KeyRange) -> Result<Option<Vec<Part>>> {
        let is_plain = |part: &&Part| {
            let meta = part.slice.run().meta();
            let garbage = meta.deletes + meta.merges + meta.range_tombstones;
            garbage == 0 && meta.puts + meta.blob_puts == meta.keys
        };
        if child.is_leaf() && !source.iter().all(is_plain) {
            return Ok(None);
        }
        let mut clipped = Vec::with_capacity(source.len());
        for part in source {
            clipped.extend(part.clip(range)?);
        }
        let bytes: u64 = clipped.iter().map(|part| part.bytes).sum();
        if clipped.is_empty() || bytes * LEAST_MOVED < self.limits.dtree_bytes * clipped.len() as u64 {
            return Ok(None);
        }
        let own = child.parts.clipped(range)?;
        let all: Vec<&Part> = clipped.iter().chain(own.iter()).collect();
        let mut order: Vec<&RunSlice> = all.iter().map(|part| &*part.slice).collect();
        order.sort_unstable_by_key(|slice| slice.low());
        if !order.windows(2).all(|pair| may_be_neighbours(pair[0], pair[1])) {
            return Ok(None);
        }
        let mut moved = Vec::with_capacity(all.len());
        for (at, range) in joined_ranges(&all) {
            moved.extend(all[at].clip(&range)?);
        }
        Ok(Some(moved))
    }

    /// The next piece of a sweep: everything on the path to a leaf, in a part of its range.
    fn sweep_piece(&self, rest: &KeyRange, before: Option<OwnerId>) -> Result<Found> {
        let path = self.root.path_to(&rest.from, 0);
        let leaf = *path.last().expect("a path has nodes");
        let span = rest.intersect(&leaf.range);
        let until = self.until_stuck(path.iter().flat_map(|node| node.parts_in(&span)), &span);
        let parts = || path.iter().flat_map(|node| node.parts_in(&until));
        let is_old = |part: &Part| before.is_none_or(|before| run_of(&part.slice) < before);
        if !parts().any(is_old) || self.is_stuck(parts(), &until) {
            return Ok(Found::NothingUpTo(until.to));
        }
        let sequences = sequences_of(parts());
        let range = cut_to(&sequences, &until, self.target)?;
        let inputs = parts().filter(|part| part.slice.range().overlaps(&range)).cloned().collect();
        let is_last = range.to == leaf.range.to || range.to == rest.to;
        Ok(Found::piece(Piece { range, from: self.root.height, to: 0, inputs, is_last, moved: None }))
    }

    /// The next piece of a rewrite: the slices of one node. In the root, these are the slices above the stuck ones.
    fn rewrite_piece(&self, task: &Task, rest: &KeyRange) -> Result<Found> {
        let at = task.source_height(self.root);
        let node = *self.root.path_to(&rest.from, at).last().expect("a path has nodes");
        let span = rest.intersect(&node.range);
        let until = self.until_stuck(node.parts_in(&span), &span);
        let parts: Vec<&Part> = node.parts_in(&until).take_while(|part| !self.stuck.holds(&part.slice)).collect();
        let is_idle = if node.is_root { parts.len() < 2 } else { parts.is_empty() };
        if is_idle {
            return Ok(Found::NothingUpTo(until.to));
        }
        let sequences = sequences_of(parts.iter().copied());
        let range = cut_to(&sequences, &until, self.target)?;
        let inputs = parts.into_iter().filter(|part| part.slice.range().overlaps(&range)).cloned().collect();
        Ok(Found::piece(Piece { range, from: at, to: at, inputs, is_last: true, moved: None }))
    }
}

/// The result of one look at the beginning of a range.
enum Found {
    Piece(Box<Piece>),
    /// Nothing before this key can be done.
    NothingUpTo(Vec<u8>),
}

impl Found {
    fn piece(piece: Piece) -> Found {
        assert!(!piece.range.is_empty() && !piece.inputs.is_empty(), "a piece has keys and inputs");
        Found::Piece(Box::new(piece))
    }
}

fn inputs(source: Vec<&Part>, below: &[Part]) -> Vec<Part> {
    source.into_iter().chain(below).cloned().collect()
}
