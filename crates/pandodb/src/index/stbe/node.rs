//! Trunk nodes: the branches of each part of the key space (002 §3.4, "Node structure").
//!
//! ```text
//!   Node  range [from, to)   height 1
//!     branches (oldest first)     b0   b1   b2   b3
//!     child 0  next = 2            ·    ·   live live    b0, b1 were flushed to it already
//!     child 1  next = 0          live live  live live    so b0 and b1 are clipped to child 1's range
//! ```
//!
//! A branch is a run clipped to the node's range. It is *live* for a child if its place in the list is at or after
//! the child's `next`. Once it is dead for the children at one end of its range, it is clipped to the rest
//! ([`Node::trim`]): the children that needed those pages keep or free them. Nodes are immutable; a change clones the
//! node ([`Node::edit`]) and the path above it, and swaps the root.
//!
//! Invariants ([`Node::assert_valid`]): children partition the node's range in order, each one level below; no `next` lies beyond
//! the end; a leaf has no children; every branch's clip lies inside the range, and covers each child that waits for it.

use std::ops::Range;
use std::sync::Arc;

use super::choose::Waits;
use crate::base::sync::OnceLock;
use crate::base::{Error, KeyRange, Result, SeededBug};
use crate::index::runs::{Deletes, MapletRef, Stored};
use crate::run::{Run, RunSlice};
use crate::space::DataFile;

/// The identity of a branch: kept when the branch is flushed to a child or shared by a split, so that a compaction
/// finds its inputs after such changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct BranchId(pub u64);

/// A run, clipped, in a node's list.
#[derive(Clone)]
pub struct Branch {
    /// Its identity.
    pub id: BranchId,
    /// It came by a flush and has not been compacted on this level yet.
    pub fresh: bool,
    /// The run and the keys of it that belong to the branch.
    pub slice: Arc<RunSlice>,
    /// Estimated bytes that it holds for the node. A flush passes the estimate to the child, which never increases
    /// it: a slice counts whole pages, so that the parts of a small one would add up to more than the whole.
    pub bytes: u64,
    /// Estimated bytes for each child of the node, `bytes` in sum; empty in a leaf.
    pub weights: Arc<[u64]>,
    /// Its point deletes.
    pub deletes: Deletes,
    /// The maplet that lookups ask before the run; without one they ask the run's own filter.
    pub route: Option<MapletRef>,
}

/// Which parts of branches a node releases.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Trim {
    /// Branches that no child needs, and unneeded ends of others.
    Ends,
    /// Also parts between two children that need the branch: used when disk space is short. It makes more branches,
    /// each of which costs readers a comparison.
    Holes,
}

/// A child of an inner node.
#[derive(Clone)]
pub struct Child {
    /// The node.
    pub node: Arc<Node>,
    /// The first branch of the parent that is live for the child, by its place in the list.
    pub next: u64,
}

/// A node of the trunk.
pub struct Node {
    /// Its key range.
    pub range: KeyRange,
    /// Levels below it: 0 for a leaf.
    pub height: u32,
    /// Oldest first.
    pub branches: Vec<Branch>,
    /// In key order; empty in a leaf.
    pub children: Vec<Child>,
    /// The error, if neither copy of the node could be read: then only its range is known. Only in a store that is
    /// open for reading.
    pub lost: Option<Error>,
    /// Cached compaction debt of this subtree; set on first use.
    pub(super) waits: OnceLock<Waits>,
    stored: OnceLock<(Stored, Arc<DataFile>)>,
}

impl Node {
    /// A node that is not on disk.
    pub fn new(range: KeyRange, height: u32) -> Node {
        let (branches, children) = (Vec::new(), Vec::new());
        Node { range, height, branches, children, lost: None, waits: OnceLock::new(), stored: OnceLock::new() }
    }

    /// A node that cannot be read.
    pub fn lost(range: KeyRange, height: u32, error: Error) -> Node {
        let mut node = Node::new(range, height);
        node.lost = Some(error);
        node
    }

    /// A copy to change: a new node that is not on disk.
    pub fn edit(&self) -> Node {
        Node {
            range: self.range.clone(),
            height: self.height,
            branches: self.branches.clone(),
            children: self.children.clone(),
            lost: self.lost.clone(),
            waits: OnceLock::new(),
            stored: OnceLock::new(),
        }
    }

    /// Whether it has no children.
    pub fn is_leaf(&self) -> bool {
        self.height == 0
    }

    /// The place after the last branch.
    pub fn end(&self) -> u64 {
        self.branches.len() as u64
    }

    /// The branches that are live for a child, oldest first.
    pub fn live(&self, child: &Child) -> &[Branch] {
        &self.branches[child.next as usize..]
    }

    /// The index of the child whose range contains `key`.
    pub fn child_for(&self, key: &[u8]) -> usize {
        debug_assert!(!self.is_leaf());
        self.children.partition_point(|child| child.node.range.from.as_slice() <= key).saturating_sub(1)
    }

    /// Estimated live bytes for the `i`-th child.
    pub fn live_bytes(&self, i: usize) -> u64 {
        self.live(&self.children[i]).iter().map(|branch| branch.weights[i]).sum()
    }

    /// Live branches of the `i`-th child that hold something for it.
    pub fn live_branches(&self, i: usize) -> usize {
        self.live(&self.children[i]).iter().filter(|branch| branch.weights[i] > 0).count()
    }

    /// Estimated bytes that the node itself holds: live for some child, or all of a leaf.
    pub fn own_bytes(&self) -> u64 {
        if self.is_leaf() {
            self.branches.iter().map(|branch| branch.bytes).sum()
        } else {
            (0..self.children.len()).map(|i| self.live_bytes(i)).sum()
        }
    }

    /// A branch of the node from a slice of at most `bytes`. Walks the top of the run through the pool.
    pub fn branch(&self, id: BranchId, fresh: bool, slice: Arc<RunSlice>, bytes: u64) -> Result<Branch> {
        let bytes = bytes.min(slice.bytes());
        let weights = self.weigh(&slice, bytes)?;
        let deletes = Deletes::guess(&slice, bytes);
        Ok(Branch { id, fresh, slice, bytes, weights, deletes, route: None })
    }

    /// Estimates how `bytes` of `slice` are divided among the children: by their pages, 0 only for a child that
    /// cannot hold anything of it.
    fn weigh(&self, slice: &Arc<RunSlice>, bytes: u64) -> Result<Arc<[u64]>> {
        let pages = self.children.iter().map(|child| weight(slice, &child.node.range)).collect::<Result<Vec<u64>>>()?;
        Ok(share(bytes, &pages).into())
    }

    /// Re-estimates what each branch holds for each child, after children have changed.
    pub fn weigh_all(&mut self) -> Result<()> {
        for i in 0..self.branches.len() {
            self.branches[i].weights = self.weigh(&self.branches[i].slice, self.branches[i].bytes)?;
        }
        Ok(())
    }

    /// Advances children past branches that hold nothing for them, and releases what no child needs: branches, ends
    /// of branches, and with [`Trim::Holes`] the parts between. Without the first step, a child that is never flushed
    /// to would keep all branches.
    ///
    /// # Errors
    /// As [`RunSlice::clip`]. It reads inner blocks at the borders of children, as the flushes to them do.
    pub fn trim(&mut self, how: Trim) -> Result<()> {
        if self.is_leaf() {
            return Ok(());
        }
        for i in 0..self.children.len() {
            // All the way or not at all: a compaction must not find a child's position between its inputs.
            if self.live_branches(i) <= usize::from(SeededBug::ForgottenForChild.is_on()) {
                self.children[i].next = self.end();
            }
        }
        let branches = std::mem::take(&mut self.branches);
        let mut kept_before = Vec::with_capacity(branches.len() + 1);
        for (place, branch) in branches.into_iter().enumerate() {
            kept_before.push(self.end());
            let kept = match how {
                Trim::Ends => self.narrowed(branch, place)?.into_iter().collect(),
                Trim::Holes => self.pieces(branch, place)?,
            };
            self.branches.extend(kept);
        }
        kept_before.push(self.end());
        for child in &mut self.children {
            child.next = kept_before[child.next as usize];
        }
        Ok(())
    }

    /// Whether the `i`-th child still needs a part of the branch at that place.
    fn waits(&self, i: usize, branch: &Branch, place: usize) -> bool {
        self.children[i].next <= place as u64 && branch.weights[i] > 0
    }

    /// The branch at that place, cut into pieces: one for each stretch of children that still need it. No piece holds
    /// the parts of children between two stretches, which were flushed already. The pieces keep the identity of the
    /// branch and are adjacent in the list, so that a compaction in progress finds its inputs. If the pieces would
    /// hold as many pages, the branch stays in one piece, as [`Node::narrowed`] leaves it.
    fn pieces(&self, branch: Branch, place: usize) -> Result<Vec<Branch>> {
        let mut stretches: Vec<Range<usize>> = Vec::new();
        let mut goes_on = false;
        for (i, weight) in branch.weights.iter().enumerate() {
            if self.waits(i, &branch, place) {
                match stretches.last_mut().filter(|_| goes_on) {
                    Some(stretch) => stretch.end = i + 1,
                    None => stretches.push(i..i + 1),
                }
                goes_on = true;
            } else if *weight > 0 {
                goes_on = false;
            }
        }
        let Some(hull) = self.narrowed(branch, place)? else { return Ok(Vec::new()) };
        if stretches.len() < 2 {
            return Ok(vec![hull]);
        }
        let mut pieces = Vec::with_capacity(stretches.len());
        for Range { start, end } in stretches {
            let keys = KeyRange::new(
                self.children[start].node.range.from.clone(),
                self.children[end - 1].node.range.to.clone(),
            );
            let slice = match hull.slice.clip(&keys) {
                Err(e) if e.is_damage() => return Ok(vec![hull]),
                slice => slice?,
            };
            let inside = |(i, &weight): (usize, &u64)| if (start..end).contains(&i) { weight } else { 0 };
            let weights: Arc<[u64]> = hull.weights.iter().enumerate().map(inside).collect();
            let deletes = hull.deletes.share(start..end, |key| self.child_for(key));
            let bytes = weights.iter().sum();
            pieces.extend(slice.map(|slice| Branch { slice, bytes, weights, deletes, ..hull.clone() }));
        }
        let pages: u64 = pieces.iter().map(|piece| piece.slice.held_pages()).sum();
        Ok(if pages < hull.slice.held_pages() { pieces } else { vec![hull] })
    }

    /// The branch at that place, clipped to the children that still need it and those between them; `None` if no
    /// child does.
    fn narrowed(&self, branch: Branch, place: usize) -> Result<Option<Branch>> {
        let mut waiting = (0..self.children.len()).filter(|&i| self.waits(i, &branch, place));
        let Some(first) = waiting.next() else { return Ok(None) };
        let last = waiting.last().filter(|_| !SeededBug::ClippedToFirst.is_on()).unwrap_or(first);
        let hull =
            KeyRange::new(self.children[first].node.range.from.clone(), self.children[last].node.range.to.clone());
        // A branch that cannot be measured stays as it is: damaged blocks above the leaves release nothing.
        let clipped = match branch.slice.clip(&hull) {
            Err(e) if e.is_damage() => None,
            clipped => clipped?,
        };
        let is_less = |part: &Arc<RunSlice>| part.held_pages() < branch.slice.held_pages();
        let Some(slice) = clipped.filter(is_less) else { return Ok(Some(branch)) };
        let inside = |(i, &weight): (usize, &u64)| if (first..=last).contains(&i) { weight } else { 0 };
        let weights: Arc<[u64]> = branch.weights.iter().enumerate().map(inside).collect();
        Ok(Some(Branch { slice, bytes: weights.iter().sum(), weights, ..branch }))
    }

    /// The maplets of its branches, each once if its branches are adjacent.
    pub fn maplets(&self) -> impl Iterator<Item = &Arc<Run>> {
        let routes = self.branches.iter().filter_map(|branch| branch.route.as_ref());
        routes
            .scan(None, |before, route| {
                let id = Some(route.maplet.meta().id);
                Some((std::mem::replace(before, id) != id).then_some(&route.maplet))
            })
            .flatten()
    }

    /// Where the node is on disk, if it was written.
    pub fn stored(&self) -> Option<Stored> {
        self.stored.get().map(|(stored, _)| *stored)
    }

    /// Records where the node was written (or read). From now on dropping it frees its pages.
    pub fn set_stored(&self, stored: Stored, data: &Arc<DataFile>) {
        let fresh = self.stored.set((stored, data.clone())).is_ok();
        assert!(fresh, "a node is written once");
    }

    /// The first invariant that the node breaks, if any.
    pub fn problem(&self) -> Option<&'static str> {
        if self.lost.is_some() {
            return None;
        }
        if self.is_leaf() != self.children.is_empty() {
            return Some("only a leaf has no children");
        }
        let mut from = &self.range.from;
        for child in &self.children {
            if &child.node.range.from != from {
                return Some("children partition the range");
            }
            if child.node.height + 1 != self.height {
                return Some("children stand one level below");
            }
            if child.next > self.end() {
                return Some("a child's next branch is in the list");
            }
            from = &child.node.range.to;
        }
        if !self.is_leaf() && from != &self.range.to {
            return Some("children partition the range");
        }
        if self.branches.iter().any(|branch| !self.range.covers(branch.slice.range())) {
            return Some("a branch is clipped to its node");
        }
        if self.branches.iter().any(|branch| branch.weights.len() != self.children.len()) {
            return Some("a branch is weighed for every child");
        }
        let short = |(place, branch): (usize, &Branch)| {
            (0..self.children.len()).any(|i| {
                // A lost child may count as several adjacent branches, of which not all are live.
                let child = &self.children[i].node;
                child.lost.is_none() && self.waits(i, branch, place) && !branch.slice.range().covers(&child.range)
            })
        };
        self.branches.iter().enumerate().any(short).then_some("a branch covers the children that wait for it")
    }

    /// Checks the invariants.
    pub fn assert_valid(&self) {
        assert_eq!(self.problem(), None, "an invariant of the trunk is broken");
    }

    /// Visits the node and everything below it, parents first.
    pub fn walk(self: &Arc<Node>, visit: &mut dyn FnMut(&Arc<Node>)) {
        visit(self);
        self.children.iter().for_each(|child| child.node.walk(visit));
    }
}

/// Estimated bytes of `slice` inside `range`: 0 only if it holds nothing there.
pub fn weight(slice: &Arc<RunSlice>, range: &KeyRange) -> Result<u64> {
    let least = u64::from(!SeededBug::WeightlessTombstones.is_on());
    Ok(slice.clip(range)?.map_or(0, |part| part.bytes().max(least)))
}

/// Divides `bytes` in proportion to `parts`; every part that is not 0 gets at least 1.
pub fn share(bytes: u64, parts: &[u64]) -> Vec<u64> {
    let sum: u64 = parts.iter().sum();
    let part = |&part: &u64| match part {
        0 => 0,
        part => ((u128::from(bytes) * u128::from(part) / u128::from(sum)) as u64).max(1),
    };
    parts.iter().map(part).collect()
}

impl Drop for Node {
    fn drop(&mut self) {
        if let Some((stored, data)) = self.stored.take() {
            stored.twin.free(&data);
        }
    }
}
