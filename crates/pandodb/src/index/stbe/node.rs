//! Trunk nodes: lists of runs, and the children that each run is live for (002 §3.4, "Node structure").
//!
//! ```text
//!   Node  range [from, to)   height 1
//!     branches (oldest first)     b0   b1   b2   b3
//!     child 0  next = 2            ·    ·   live live    b0, b1 were flushed to it already
//!     child 1  next = 0          live live  live live    so b0 and b1 are clipped to child 1's range
//! ```
//!
//! A branch is a run clipped to the node's range. It is *live* for a child if its index is at least the child's `next`.
//! Once it is dead for the children at an end of its range, it is clipped to the rest ([`Node::trim`]): the pages that
//! only those children need belong to their own branches. Nodes are immutable. A change clones the node
//! ([`Node::edit`]) and the path above it, and swaps the root.
//!
//! Invariants ([`Node::assert_valid`]): children partition the node's range in order, each one level below; no `next`
//! exceeds the number of branches; a leaf has no children; the clip of every branch lies inside the node's range and
//! covers each child that the branch is live for and holds data for.

use std::cmp::Reverse;
use std::ops::Range;
use std::sync::Arc;

use crate::base::sync::OnceLock;
use crate::base::{Error, KeyRange, Result, SeededBug};
use crate::index::runs::{Deletes, MapletRef};
use crate::index::stored::Stored;
use crate::run::{Run, RunSlice};
use crate::space::DataFile;

/// The identity of a branch. A flush to a child and a split keep it, so that a compaction finds its inputs in whichever
/// nodes hold them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct BranchId(pub u64);

/// A run, clipped, in a node's list.
#[derive(Clone)]
pub struct Branch {
    /// Its identity.
    pub id: BranchId,
    /// It arrived by a flush and has not been compacted on this level yet.
    pub fresh: bool,
    /// The run and its key range.
    pub slice: Arc<RunSlice>,
    /// Estimated bytes that it holds for the node. A flush passes its estimate down, and a branch of a child never has
    /// more: a slice counts whole pages, so the parts of a small slice would otherwise add up to more than the slice.
    pub bytes: u64,
    /// Estimated bytes for each child of the node, `bytes` in sum; empty in a leaf.
    pub weights: Arc<[u64]>,
    /// Its point deletes.
    pub deletes: Deletes,
    /// The maplet that covers the run; `None`: lookups use the run's own filter.
    pub route: Option<MapletRef>,
}

/// The parts of branches that [`Node::trim`] removes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Trim {
    /// Whole branches that no child needs any more, and unneeded ends of others.
    Ends,
    /// Also unneeded gaps between children that still need a branch. Used when disk space is short. It makes more
    /// branches, and lookups have to check each of them.
    Holes,
}

/// A child of an inner node.
#[derive(Clone)]
pub struct Child {
    /// The node.
    pub node: Arc<Node>,
    /// The index of the first branch of the parent that is live for the child.
    pub next: u64,
}

/// A node of the trunk.
pub struct Node {
    /// The keys that it holds.
    pub range: KeyRange,
    /// Levels below it: 0 for a leaf.
    pub height: u32,
    /// Oldest first.
    pub branches: Vec<Branch>,
    /// In key order; empty in a leaf.
    pub children: Vec<Child>,
    /// The error that made both copies of the node unreadable. Such a node has a range and nothing else. Only in a
    /// store that is open for reading.
    pub lost: Option<Error>,
    /// Cached compaction debt of this subtree; set on first use.
    pub(super) waits: OnceLock<Waits>,
    stored: OnceLock<(Stored, Arc<DataFile>)>,
}

/// The compactions waiting in a subtree, without requests and damage. Nodes are immutable, so the cached value stays
/// valid.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Waits {
    /// Bytes of all candidates, each at least one.
    pub(super) bytes: u64,
    /// The most urgent one.
    pub(super) first: Option<Urgency>,
}

/// More branches first, since they cost readers the most. Among equals the lower node first.
pub(super) type Urgency = (usize, Reverse<u32>);

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

    /// A copy to change: a new node, not on disk.
    pub fn edit(&self) -> Node {
        assert!(self.lost.is_none(), "a lost node is never changed");
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

    /// The number of branches, which is also the index after the last one.
    pub fn end(&self) -> u64 {
        self.branches.len() as u64
    }

    /// The branches that are live for a child, oldest first.
    pub fn live(&self, child: &Child) -> &[Branch] {
        debug_assert!(child.next <= self.end(), "a child's next branch is in the list or at its end");
        &self.branches[child.next as usize..]
    }

    /// The index of the child whose range contains `key`.
    pub fn child_for(&self, key: &[u8]) -> usize {
        debug_assert!(!self.is_leaf());
        self.children.partition_point(|child| child.node.range.from.as_slice() <= key).saturating_sub(1)
    }

    /// Estimated live bytes for the `i`-th child.
    pub fn live_bytes(&self, i: usize) -> u64 {
        debug_assert!(self.branches.iter().all(|branch| branch.weights.len() == self.children.len()));
        self.live(&self.children[i]).iter().map(|branch| branch.weights[i]).sum()
    }

    /// The number of live branches that hold data for the `i`-th child.
    pub fn live_branches(&self, i: usize) -> usize {
        self.live(&self.children[i]).iter().filter(|branch| branch.weights[i] > 0).count()
    }

    /// Estimated bytes of the branches of the node: live for some child, or all of a leaf.
    pub fn own_bytes(&self) -> u64 {
        if self.is_leaf() {
            self.branches.iter().map(|branch| branch.bytes).sum()
        } else {
            (0..self.children.len()).map(|i| self.live_bytes(i)).sum()
        }
    }

    /// A branch of the node made of a slice of at most `bytes`. Reads the top of the run through the pool.
    pub fn branch(&self, id: BranchId, fresh: bool, slice: Arc<RunSlice>, bytes: u64) -> Result<Branch> {
        let bytes = bytes.min(slice.bytes());
        let weights = self.weigh(&slice, bytes)?;
        debug_assert_eq!(weights.len(), self.children.len(), "a weight for every child");
        let deletes = Deletes::guess(&slice, bytes);
        Ok(Branch { id, fresh, slice, bytes, weights, deletes, route: None })
    }

    /// Estimates how `bytes` of `slice` are shared among the children, in proportion to their pages; 0 only for a child
    /// for which the slice has no page.
    fn weigh(&self, slice: &Arc<RunSlice>, bytes: u64) -> Result<Arc<[u64]>> {
        let pages = self.children.iter().map(|child| weight(slice, &child.node.range)).collect::<Result<Vec<u64>>>()?;
        Ok(share(bytes, &pages).into())
    }

    /// Recomputes the weights of all branches after children have changed.
    pub fn weigh_all(&mut self) -> Result<()> {
        for i in 0..self.branches.len() {
            self.branches[i].weights = self.weigh(&self.branches[i].slice, self.branches[i].bytes)?;
        }
        Ok(())
    }

    /// Advances each child's `next` to the end if no live branch holds data for it, and removes what no child needs any
    /// more: branches, ends of branches, and with [`Trim::Holes`] also gaps. If `next` were not advanced, a child that
    /// never receives a flush would keep all branches.
    ///
    /// # Errors
    /// As [`RunSlice::clip`]. It reads inner blocks at the bounds of children, as the flushes to them do.
    pub fn trim(&mut self, how: Trim) -> Result<()> {
        if self.is_leaf() {
            return Ok(());
        }
        for i in 0..self.children.len() {
            // `next` advances to the end or not at all: a compaction must not find a child's `next` between its inputs.
            if self.live_branches(i) <= usize::from(SeededBug::ForgottenForChild.is_on()) {
                self.children[i].next = self.end();
            }
        }
        let branches = std::mem::take(&mut self.branches);
        let count = branches.len();
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
        assert_eq!(kept_before.len(), count + 1, "a position for every branch, and the end");
        debug_assert!(how == Trim::Holes || self.branches.len() <= count, "a branch is narrowed or removed");
        for child in &mut self.children {
            child.next = kept_before[child.next as usize];
            debug_assert!(child.next <= self.branches.len() as u64, "`next` moves down with the branches");
        }
        Ok(())
    }

    /// Whether the branch at index `place` is live for the `i`-th child and holds data for it.
    fn waits(&self, i: usize, branch: &Branch, place: usize) -> bool {
        self.children[i].next <= place as u64 && branch.weights[i] > 0
    }

    /// Cuts the branch at index `place` into pieces: one for each row of neighbouring children that still need it. No
    /// piece includes the children between two rows, which already received their part. The pieces keep the identity of
    /// the branch and are neighbours in the list, so that a compaction in progress finds its inputs. If the pieces
    /// together hold as many pages as the branch that [`Node::narrowed`] returns, that branch is returned.
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
        debug_assert!(stretches.iter().all(|row| !row.is_empty()) && stretches.is_sorted_by_key(|row| row.start));
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

    /// The branch at index `place`, clipped to the children that still need it and those between them; `None` if no
    /// child does.
    fn narrowed(&self, branch: Branch, place: usize) -> Result<Option<Branch>> {
        let mut waiting = (0..self.children.len()).filter(|&i| self.waits(i, &branch, place));
        let Some(first) = waiting.next() else { return Ok(None) };
        let last = waiting.last().filter(|_| !SeededBug::ClippedToFirst.is_on()).unwrap_or(first);
        debug_assert!(first <= last && last < self.children.len());
        let hull =
            KeyRange::new(self.children[first].node.range.from.clone(), self.children[last].node.range.to.clone());
        // If blocks above the leaves are damaged, the clip cannot be computed: keep the branch unchanged.
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

    /// The maplets that cover its branches. A maplet appears once if its branches are neighbours.
    pub fn maplets(&self) -> impl Iterator<Item = &Arc<Run>> {
        let routes = self.branches.iter().filter_map(|branch| branch.route.as_ref());
        routes
            .scan(None, |before, route| {
                let id = Some(route.maplet.meta().id);
                Some((std::mem::replace(before, id) != id).then_some(&route.maplet))
            })
            .flatten()
    }

    /// The node's address on disk, if it was written.
    pub fn stored(&self) -> Option<Stored> {
        self.stored.get().map(|(stored, _)| *stored)
    }

    /// Records that the node was written (or read). From now on dropping it frees its pages.
    pub fn set_stored(&self, stored: Stored, data: &Arc<DataFile>) {
        assert!(self.lost.is_none(), "a lost node has no block");
        let fresh = self.stored.set((stored, data.clone())).is_ok();
        assert!(fresh, "a node is written once");
    }

    /// The first invariant that the node breaks, if any.
    pub fn problem(&self) -> Option<&'static str> {
        if self.lost.is_some() {
            return None;
        }
        if self.is_leaf() != self.children.is_empty() {
            return Some("a node must have children exactly if it is not a leaf");
        }
        let mut from = &self.range.from;
        for child in &self.children {
            if &child.node.range.from != from {
                return Some("the children must partition the node's range");
            }
            if child.node.height + 1 != self.height {
                return Some("a child must be one level below its parent");
            }
            if child.next > self.end() {
                return Some("a child's next branch must be in the list or at its end");
            }
            from = &child.node.range.to;
        }
        if !self.is_leaf() && from != &self.range.to {
            return Some("the children must partition the node's range");
        }
        if self.branches.iter().any(|branch| !self.range.covers(branch.slice.range())) {
            return Some("a branch must be clipped to its node's range");
        }
        if self.branches.iter().any(|branch| branch.weights.len() != self.children.len()) {
            return Some("a branch must have a weight for every child");
        }
        let short = |(place, branch): (usize, &Branch)| {
            (0..self.children.len()).any(|i| {
                // A lost child may represent several neighbouring children, of which only some need the branch.
                let child = &self.children[i].node;
                child.lost.is_none() && self.waits(i, branch, place) && !branch.slice.range().covers(&child.range)
            })
        };
        self.branches.iter().enumerate().any(short).then_some("a branch must cover the children that need it")
    }

    /// Checks the invariants.
    pub fn assert_valid(&self) {
        assert_eq!(self.problem(), None, "invariant of a trunk node");
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

/// Divides `bytes` in proportion to `parts`. Every part greater than 0 gets at least 1.
pub fn share(bytes: u64, parts: &[u64]) -> Vec<u64> {
    let sum: u64 = parts.iter().sum();
    let part = |&part: &u64| match part {
        0 => 0,
        part => ((u128::from(bytes) * u128::from(part) / u128::from(sum)) as u64).max(1),
    };
    let shares: Vec<u64> = parts.iter().map(part).collect();
    debug_assert!(
        shares.iter().sum::<u64>() <= bytes.saturating_add(parts.len() as u64),
        "the shares add up to the whole, but for rounding"
    );
    shares
}

impl Drop for Node {
    fn drop(&mut self) {
        if let Some((stored, data)) = self.stored.take() {
            stored.copies.free(&data);
        }
    }
}
