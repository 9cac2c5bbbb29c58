//! The nodes of the trunk. Each node has a list of runs and a list of children, and knows for which children each run
//! is live (002 §3.4, "Node structure").
//!
//! ```text
//!   Node  range [from, to)   height 1
//!     branches (oldest first)     b0   b1   b2   b3
//!     child 0  next = 2            ·    ·   live live    b0, b1 were flushed to it already
//!     child 1  next = 0          live live  live live    so b0 and b1 are clipped to child 1's range
//! ```
//!
//! A branch is a run clipped to the node's range. It is *live* for a child if its index is at least the child's `next`.
//! Once a branch is no longer live for the children at one end of its range, it is clipped to the rest of the range
//! ([`Node::trim`]). From then on, the pages that only those children need stay allocated because the branches that
//! were flushed to these children refer to the pages. Nodes are immutable. A change clones the node ([`Node::edit`])
//! and the path above it, and swaps the
//! root.
//!
//! Invariants ([`Node::assert_valid`]): The children partition the node's range in order, and each child is one level
//! below the node. No `next` exceeds the number of branches. A leaf has no children. The clip of every branch is inside
//! the node's range, and covers each child for which the branch is live and holds data.

use std::cmp::Reverse;
use std::ops::Range;
use std::sync::Arc;

use crate::base::sync::{Counter, OnceLock};
use crate::base::{Error, KeyRange, Result, SeededBug};
use crate::index::runs::{Deletes, MapletRef};
use crate::index::stored::Stored;
use crate::run::{Run, RunSlice};
use crate::space::DataFile;

/// The identity of a branch. A flush to a child and a split keep the identity, so that a compaction finds its inputs in
/// every node that holds them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct BranchId(pub u64);

/// A clipped run in the list of a node.
#[derive(Clone)]
pub struct Branch {
    /// The identity of the branch.
    pub id: BranchId,
    /// Whether the branch arrived by a flush and has not been compacted on this level yet.
    pub fresh: bool,
    /// The run and the key range of the branch.
    pub slice: Arc<RunSlice>,
    /// Estimated bytes that the branch holds for the node. When a branch is flushed, the parent's estimate for the
    /// child limits the estimate of the child's branch. Without this limit the parts of a small slice would add up to
    /// more than the slice, because a slice counts whole pages.
    pub bytes: u64,
    /// Estimated bytes of the branch for each child of the node. Their sum is `bytes`. In a leaf the list is empty.
    pub weights: Arc<[u64]>,
    /// The point deletes in the branch.
    pub deletes: Deletes,
    /// The maplet that covers the run. If it is `None`, lookups use the run's own filter.
    pub route: Option<MapletRef>,
}

/// The parts of branches that [`Node::trim`] removes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Trim {
    /// Remove whole branches that no child needs any more. In other branches, remove the parts at either end that no
    /// child needs.
    Ends,
    /// In addition, remove the parts of a branch that are not needed but lie between parts that are needed. This is
    /// used when disk space is short. It leaves more branches, and lookups have to check each of these branches.
    Holes,
}

/// A child of an inner node.
#[derive(Clone)]
pub struct Child {
    /// The node of the child.
    pub node: Arc<Node>,
    /// The index of the first branch of the parent that is live for the child.
    pub next: u64,
}

/// A node of the trunk.
pub struct Node {
    /// The key range of the node.
    pub range: Arc<KeyRange>,
    /// The number of levels below the node: 0 for a leaf.
    pub height: u32,
    /// The branches, oldest first.
    pub branches: Vec<Branch>,
    /// The children in key order; empty in a leaf.
    pub children: Vec<Child>,
    /// The error that made both copies of the node unreadable. Such a node has only a range and a height. The field is
    /// set only in a store that is open for reading.
    pub lost: Option<Error>,
    /// What scans of this leaf have paid. The changed copies of a leaf share the counters.
    pub(super) paid: Arc<Paid>,
    /// The cached compaction debt of this subtree; computed on first use.
    pub(super) waits: OnceLock<Waits>,
    stored: OnceLock<(Stored, Arc<DataFile>)>,
}

/// The bytes of unneeded blocks that the scans of a leaf have read, until they pay for a compaction
/// ([`Scans`](super::scans::Scans)).
#[derive(Debug, Default)]
pub(super) struct Paid {
    /// The part for a compaction of all runs on the path but the oldest.
    pub(super) newer: Counter,
    /// The part for a compaction of all runs on the path.
    pub(super) whole: Counter,
}

/// The compactions that wait in a subtree, if there are no requests and no damage. Nodes are immutable, so the cached
/// value stays valid.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Waits {
    /// The bytes of all candidates. Each candidate counts as at least one byte.
    pub(super) bytes: u64,
    /// The most urgent candidate.
    pub(super) first: Option<Urgency>,
}

/// A candidate with more branches comes first, because branches cost readers the most. If the numbers of branches are
/// equal, the candidate of the lower node comes first.
pub(super) type Urgency = (usize, Reverse<u32>);

impl Node {
    /// Makes a node that is not on disk.
    pub fn new(range: impl Into<Arc<KeyRange>>, height: u32) -> Node {
        let range = range.into();
        let (branches, children) = (Vec::new(), Vec::new());
        let (waits, stored) = (OnceLock::new(), OnceLock::new());
        Node { range, height, branches, children, lost: None, paid: Arc::default(), waits, stored }
    }

    /// Makes a node that represents an unreadable node.
    pub fn lost(range: impl Into<Arc<KeyRange>>, height: u32, error: Error) -> Node {
        let mut node = Node::new(range, height);
        node.lost = Some(error);
        node
    }

    /// Makes a copy of the node that can be changed. The copy is a new node, which is not on disk.
    pub fn edit(&self) -> Node {
        assert!(self.lost.is_none(), "a lost node is never changed");
        Node {
            range: self.range.clone(),
            height: self.height,
            branches: self.branches.clone(),
            children: self.children.clone(),
            lost: self.lost.clone(),
            paid: self.paid.clone(),
            waits: OnceLock::new(),
            stored: OnceLock::new(),
        }
    }

    /// Whether the node has no children.
    pub fn is_leaf(&self) -> bool {
        self.height == 0
    }

    /// The number of branches, which is also the index after the last branch.
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

    /// Estimated bytes that are live for the `i`-th child.
    pub fn live_bytes(&self, i: usize) -> u64 {
        debug_assert!(self.branches.iter().all(|branch| branch.weights.len() == self.children.len()));
        self.live(&self.children[i]).iter().map(|branch| branch.weights[i]).sum()
    }

    /// The number of live branches that hold data for the `i`-th child.
    pub fn live_branches(&self, i: usize) -> usize {
        self.live(&self.children[i]).iter().filter(|branch| branch.weights[i] > 0).count()
    }

    /// Estimated bytes of the branches of the node: in a leaf all branches, else the branches that are live for some
    /// child.
    pub fn own_bytes(&self) -> u64 {
        if self.is_leaf() {
            self.branches.iter().map(|branch| branch.bytes).sum()
        } else {
            (0..self.children.len()).map(|i| self.live_bytes(i)).sum()
        }
    }

    /// Makes a branch of the node from a slice of at most `bytes` bytes. Reads the top blocks of the run through the
    /// pool.
    pub fn branch(&self, id: BranchId, fresh: bool, slice: Arc<RunSlice>, bytes: u64) -> Result<Branch> {
        let bytes = bytes.min(slice.bytes());
        let weights = self.weigh(&slice, bytes)?;
        debug_assert_eq!(weights.len(), self.children.len(), "a weight for every child");
        let deletes = Deletes::guess(&slice, bytes);
        Ok(Branch { id, fresh, slice, bytes, weights, deletes, route: None })
    }

    /// Divides `bytes` bytes of `slice` among the children, in proportion to the number of pages that the slice has for
    /// each child. A child gets 0 only if the slice has no page for it.
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

    /// Advances the `next` of each child for which no live branch holds data to the end of the list. Without this step,
    /// a child that never receives a flush would keep all branches. The call then removes everything that no child
    /// needs any more: whole branches, the ends of branches, and with [`Trim::Holes`] also parts inside branches.
    ///
    /// # Errors
    /// The errors of [`RunSlice::clip`]. `trim` reads inner blocks at the bounds of children, as the flushes to these
    /// children do.
    pub fn trim(&mut self, how: Trim) -> Result<()> {
        if self.is_leaf() {
            return Ok(());
        }
        for i in 0..self.children.len() {
            // Advance `next` to the end or not at all. Otherwise the `next` of a child could lie between the inputs of
            // a compaction.
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

    /// Cuts the branch at index `place` into pieces. There is one piece for each sequence of neighbouring children that
    /// still need the branch. No piece includes the range of a child between two such sequences, because this child has
    /// already received its part of the branch. The pieces keep the identity of the branch and are neighbours in the
    /// list, so that a compaction in progress finds its inputs. If the pieces together hold as many pages as the branch
    /// that [`Node::narrowed`] returns, that single branch is returned instead.
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

    /// The branch at index `place`, clipped to the children that still need it and to the children between them; `None`
    /// if no child needs the branch.
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

    /// The maplets that cover the branches of the node. If the branches of a maplet are neighbours, the maplet is
    /// returned only once.
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

    /// Records the address to which the node was written, or from which it was read. After this call, dropping the node
    /// frees its pages.
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
                // A lost child may represent several neighbouring children on disk, and perhaps only some of these
                // children need the branch.
                let child = &self.children[i].node;
                child.lost.is_none() && self.waits(i, branch, place) && !branch.slice.range().covers(&child.range)
            })
        };
        self.branches.iter().enumerate().any(short).then_some("a branch must cover the children that need it")
    }

    /// Asserts that the node's invariants hold.
    pub fn assert_valid(&self) {
        assert_eq!(self.problem(), None, "invariant of a trunk node");
    }

    /// Visits the node and everything below it, parents first.
    pub fn walk(self: &Arc<Node>, visit: &mut dyn FnMut(&Arc<Node>)) {
        visit(self);
        self.children.iter().for_each(|child| child.node.walk(visit));
    }
}

/// Whether the small runs of a leaf together are large enough to be compacted with its large run.
pub fn is_heavy(large: u64, small: u64) -> bool {
    small.saturating_mul(3) >= large
}

/// Estimated bytes of `slice` inside `range`: 0 only if the slice holds nothing in this range.
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
