//! Rebalancing the trunk: one pass flushes, splits, merges and trims nodes, and makes a new root from an old one (002
//! §3.4–3.5).
//!
//! Steps for an inner node. The flush happens on the way down, the other steps on the way up:
//! 1. *Flush* while a trigger holds. There are three triggers. First, the node has more than `F` units of live
//!    data; in this case it flushes to the child with the most data. Second, a child has more than `3F` live branches.
//!    Third, deletes in the node hide much data of a leaf below the node ([`super::deletes`]). A flush passes
//!    references: the child's list of branches grows, and the parent's `next` advances. A branch may delete all keys of
//!    the child by range tombstones that every reader sees. Then the flush drops the older branches and the child's own
//!    branches, instead of passing them on. Dropping them frees space without a compaction ([`Rebalancer::wiped`]).
//! 2. Rebalance the children, including those that just received branches, so that references reach their lowest node
//!    before anything is compacted (*flush-then-compact*).
//! 3. *Merge* neighbours if one of them is too small. If an inner node has fewer than `F/2` children, but has together
//!    with its neighbour too many children for one node, it takes some children from the neighbour. *Split* nodes that
//!    are too large. A leaf is split `k` ways by clipping its runs. An inner node with more than `F` children is split
//!    into equal parts that share its branches. A root that was split gets a new root above it. A root with one child
//!    and no live branches is removed.
//! 4. *Trim*: remove whole branches, and the ends of branches, that no child needs any more (decision 0024).
//!
//! The algorithm of the source latches one node after the other. Therefore it splits nodes on the way down, before they
//! are full. Here the pass works on copies, and the root is swapped once. Therefore splits propagate upwards in the
//! same pass, and nodes never need space for `F + H` children.
//!
//! Invariant: a pass changes which nodes hold the references, never which messages a reader sees.

use std::sync::Arc;

use super::choose::{Policy, is_covered_by_range_delete, is_wasteful, may_stay_apart, wiped_by};
use super::deletes::shadowed_child;
use super::node::{Branch, BranchId, Child, Node, Trim, share};
use crate::base::sync::{AtomicU64, Counter, Ordering::Relaxed};
use crate::base::{KeyRange, Result, SeededBug};
use crate::filter::Filters;
use crate::resolve::Stripes;
use crate::run::Compression;

/// Runs with more range tombstones than this limit are not searched for a tombstone that covers a child, because the
/// tombstones are probably small.
const MOST_TOMBSTONES: u64 = 256;
/// The maximum number of passes. It is larger than the number of levels of any trunk.
const MAX_PASSES: usize = 64;

/// The sizes and settings that determine the structure of a tree.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    /// `F`: the maximum number of children of a node. A node flushes at `F` · `m` bytes of live data.
    pub fanout: usize,
    /// `m`: the unit of sizes, in bytes: the size of a memtable for which the sizes of nodes are chosen.
    pub memtable_bytes: u64,
    /// Target size of a leaf, in bytes.
    pub leaf_bytes: u64,
    /// The policy by which leaves are compacted.
    pub policy: Policy,
    /// Filters of new runs.
    pub filters: Filters,
    /// The number of neighbours that are merged into one maplet. The neighbours are single runs at first, and smaller
    /// maplets later.
    pub maplet_width: usize,
    /// Compression of the leaf blocks that compactions in trunk leaves write.
    pub compression: Compression,
}

impl Shape {
    /// Live bytes above which a node flushes.
    pub fn flush_bytes(&self) -> u64 {
        self.memtable_bytes * self.fanout as u64
    }

    /// If a node has more live branches than this number for one child, it flushes to this child. This bounds the
    /// number of runs on a search path.
    pub fn flush_branches(&self) -> usize {
        3 * self.fanout
    }
}

/// Counts of rebalancing steps, for the statistics.
#[derive(Debug, Default)]
pub struct RebalanceCounters {
    /// Flushes to a child.
    pub flushes: Counter,
    /// Splits of nodes.
    pub splits: Counter,
    /// Merges of two nodes.
    pub merges: Counter,
}

/// A leaf that is to be split into pieces of about `bytes` bytes, regardless of the size of the leaf. This is used if
/// disk space is short.
#[derive(Clone, Debug)]
pub struct Pieces {
    /// The key range of the leaf.
    pub range: KeyRange,
    /// Target size of a piece.
    pub bytes: u64,
}

/// One pass over a trunk.
pub struct Rebalancer<'a> {
    /// The sizes that shape the tree.
    pub shape: Shape,
    /// Source of branch identities.
    pub ids: &'a AtomicU64,
    /// Receives the counts.
    pub counters: &'a RebalanceCounters,
    /// Ranges of compactions in progress and of the leaf to split. Nodes in these ranges are not merged, because a
    /// merge gives new identities to their branches.
    pub busy: &'a [KeyRange],
    /// Ranges of compactions in progress. Their inputs must not be dropped, because the outputs will replace them.
    pub merging: &'a [KeyRange],
    /// Read points. Data that a range delete covers must not be dropped if one of these points is older than the range
    /// delete.
    pub keep: &'a Stripes,
    /// Ranges in which all branches are flushed to the leaves.
    pub forced: &'a [KeyRange],
    /// The leaf to split, if disk space is short.
    pub pieces: Option<&'a Pieces>,
}

impl Rebalancer<'_> {
    /// Rebalances the tree under `root` until a pass changes nothing. Returns `root` itself if no pass changed
    /// anything.
    pub fn rebalance_root(&self, root: &Arc<Node>) -> Result<Arc<Node>> {
        let mut root = root.clone();
        // When two nodes are merged, their parent may become small enough to be merged as well. This can repeat on each
        // level, so at most one pass per level is needed. All passes except the first change few nodes.
        for _ in 0..MAX_PASSES {
            let next = self.pass(&root)?;
            if Arc::ptr_eq(&next, &root) {
                break;
            }
            root = next;
        }
        Ok(root)
    }

    fn pass(&self, root: &Arc<Node>) -> Result<Arc<Node>> {
        let mut tops = self.rebalance(root)?;
        while tops.len() > 1 {
            let mut top = Node::new(root.range.clone(), tops[0].height + 1);
            top.children = tops.into_iter().map(|node| Child { node, next: 0 }).collect();
            tops = self.split_inner(Arc::new(top))?;
        }
        let mut top = tops.pop().expect("a tree has a root");
        assert_eq!(top.range, root.range, "a pass keeps the keys of the tree");
        while let [only] = &top.children[..]
            && top.live(only).is_empty()
        {
            top = only.node.clone();
        }
        top.assert_valid();
        Ok(top)
    }

    /// Rebalances the subtree of `node`. Returns the nodes that replace `node`, in key order.
    fn rebalance(&self, node: &Arc<Node>) -> Result<Vec<Arc<Node>>> {
        if node.is_leaf() {
            return self.split_leaf(node.clone());
        }
        let mut draft: Option<Node> = None;
        while let Some(i) = self.choose_flush(draft.as_ref().unwrap_or(node)) {
            self.flush(draft.get_or_insert_with(|| node.edit()), i)?;
        }
        let children = draft.as_ref().unwrap_or(node).children.clone();
        let mut rebalanced = Vec::with_capacity(children.len());
        for child in &children {
            let nodes = self.rebalance(&child.node)?;
            debug_assert!(!nodes.is_empty(), "a subtree is replaced, never removed");
            debug_assert_eq!(nodes[0].range.from, child.node.range.from, "the replacement has the same keys");
            debug_assert!(nodes.iter().all(|new| new.height == child.node.height));
            rebalanced.extend(nodes.into_iter().map(|node| Child { node, next: child.next }));
        }
        let same = rebalanced.len() == children.len()
            && rebalanced.iter().zip(&children).all(|(new, old)| Arc::ptr_eq(&new.node, &old.node));
        if !same {
            let draft = draft.get_or_insert_with(|| node.edit());
            let reshaped = rebalanced.len() != children.len();
            draft.children = rebalanced;
            if reshaped {
                draft.weigh_all()?;
            }
        }
        while let Some(i) = self.choose_merge(draft.as_ref().unwrap_or(node)) {
            self.merge_children(draft.get_or_insert_with(|| node.edit()), i)?;
        }
        let Some(mut draft) = draft else { return Ok(vec![node.clone()]) };
        draft.trim(if self.pieces.is_some() { Trim::Holes } else { Trim::Ends })?;
        self.split_inner(Arc::new(draft))
    }

    /// The child to flush to next, if a trigger holds.
    fn choose_flush(&self, node: &Node) -> Option<usize> {
        let live: Vec<u64> = (0..node.children.len()).map(|i| node.live_bytes(i)).collect();
        let fullest = (0..live.len()).max_by_key(|&i| live[i]).filter(|&i| live[i] > 0)?;
        if live.iter().sum::<u64>() > self.shape.flush_bytes() {
            return Some(fullest);
        }
        let crowded = (0..live.len()).find(|&i| {
            let child = &node.children[i];
            // Branches without data for the child also count, because the node keeps every branch that is live for any
            // child.
            let many = node.live(child).len() > self.shape.flush_branches();
            live[i] > 0 && (many || self.forced.iter().any(|range| range.overlaps(&child.node.range)))
        });
        let product = self.shape.policy == Policy::Product;
        crowded.or_else(|| product.then(|| wiped_child(node).or_else(|| shadowed_child(node))).flatten())
    }

    /// Flushes all branches that are live for the `i`-th child.
    fn flush(&self, node: &mut Node, i: usize) -> Result<()> {
        let child = &node.children[i];
        let mut taker = child.node.edit();
        assert_eq!(taker.height + 1, node.height, "a flush goes one level down");
        let mut skipped = usize::from(SeededBug::FlushSkipsBranch.is_on() && node.live_branches(i) > 1);
        if let Some(wiped) = self.wiped(node, i) {
            skipped = wiped;
            taker.branches.clear();
            taker.children.iter_mut().for_each(|child| child.next = 0);
        }
        for branch in node.live(child).iter().filter(|branch| branch.weights[i] > 0).skip(skipped) {
            let Some(slice) = branch.slice.clip(&taker.range)? else { continue };
            let handed = taker.branch(branch.id, true, slice, branch.weights[i])?;
            let deletes = branch.deletes.share(i..i + 1, |key| node.child_for(key));
            taker.branches.push(Branch { deletes, route: branch.route.clone(), ..handed });
        }
        debug_assert!(taker.branches.iter().all(|branch| taker.range.covers(branch.slice.range())));
        node.children[i] = Child { node: Arc::new(taker), next: node.end() };
        debug_assert!(node.live(&node.children[i]).is_empty(), "the child has received every branch");
        self.counters.flushes.fetch_add(1, Relaxed);
        Ok(())
    }

    /// Looks for a branch whose range tombstones cover the whole range of the `i`-th child. Returns its index among the
    /// branches that would be flushed to this child. The branches before that index, and the child's own branches, can
    /// be dropped. Returns `None` if the dropped data refers to large values, because only a compaction finds the large
    /// values to free.
    fn wiped(&self, node: &Node, i: usize) -> Option<usize> {
        let child = &node.children[i];
        let range = &child.node.range;
        if self.shape.policy == Policy::Paper || self.merging.iter().any(|merging| merging.overlaps(range)) {
            return None;
        }
        let handed: Vec<&Branch> = node.live(child).iter().filter(|branch| branch.weights[i] > 0).collect();
        let (at, least) = (0..handed.len()).rev().filter(|&at| few_tombstones(handed[at])).find_map(|at| {
            let (least, largest) = wiped_by(handed[at], range)?;
            let is_seen = self.keep.stripe_of(largest) == 0 || SeededBug::WipedForSnapshots.is_on();
            is_seen.then_some((at, least))
        })?;
        let goes = |branch: &Branch| {
            let meta = branch.slice.run().meta();
            meta.blob_puts == 0 && meta.max_seqno < least
        };
        (handed[..at].iter().all(|branch| goes(branch)) && child.node.branches.iter().all(goes)).then_some(at)
    }

    /// Splits a leaf by clipping its runs if its size is over 3 times the target size, or over 1½ times if it needs no
    /// compaction.
    fn split_leaf(&self, leaf: Arc<Node>) -> Result<Vec<Arc<Node>>> {
        let bytes = leaf.own_bytes();
        let pieces = self.pieces.filter(|pieces| pieces.range.covers(&leaf.range));
        let target = pieces.map_or(self.shape.leaf_bytes, |pieces| pieces.bytes.min(self.shape.leaf_bytes));
        let is_compact = || may_stay_apart(&leaf.branches, self.shape.policy) && !is_wasteful(&leaf.branches);
        let may_wait = pieces.is_none() && bytes <= 3 * target;
        if bytes <= target + target / 2 || may_wait && !is_compact() {
            return Ok(vec![leaf]);
        }
        assert!(target > 0, "a leaf has a target size");
        let keys = quantiles(&leaf, bytes.div_ceil(target))?;
        if keys.is_empty() {
            return Ok(vec![leaf]);
        }
        debug_assert!(keys.windows(2).all(|pair| pair[0] < pair[1]), "pivots ascend");
        debug_assert!(keys.iter().all(|key| leaf.range.contains(key)), "pivots lie inside the leaf");
        self.counters.splits.fetch_add(1, Relaxed);
        let bounds: Vec<&[u8]> = std::iter::once(leaf.range.from.as_slice())
            .chain(keys.iter().map(Vec::as_slice))
            .chain(std::iter::once(leaf.range.to.as_slice()))
            .collect();
        let mut parts: Vec<Node> =
            bounds.windows(2).map(|pair| Node::new(KeyRange::new(pair[0], pair[1]), 0)).collect();
        assert_eq!(parts.len(), keys.len() + 1, "each pivot divides two leaves");
        for branch in &leaf.branches {
            let slices = parts.iter().map(|part| branch.slice.clip(&part.range)).collect::<Result<Vec<_>>>()?;
            let pages: Vec<u64> = slices.iter().map(|slice| slice.as_ref().map_or(0, |slice| slice.bytes())).collect();
            for (i, (slice, bytes)) in slices.into_iter().zip(share(branch.bytes, &pages)).enumerate() {
                let place = |key: &[u8]| keys.partition_point(|cut| cut.as_slice() <= key);
                let deletes = branch.deletes.share(i..i + 1, place);
                parts[i].branches.extend(slice.map(|slice| Branch { slice, bytes, deletes, ..branch.clone() }));
            }
        }
        Ok(parts.into_iter().map(Arc::new).collect())
    }

    /// Splits an inner node of more than `F` children into equal parts that share its branches.
    fn split_inner(&self, node: Arc<Node>) -> Result<Vec<Arc<Node>>> {
        let count = node.children.len();
        if count <= self.shape.fanout {
            return Ok(vec![node]);
        }
        self.counters.splits.fetch_add(1, Relaxed);
        let parts = count.div_ceil(self.shape.fanout);
        assert!(parts >= 2, "a node of {count} children is split into several");
        (0..parts).map(|part| part_of(&node, part * count / parts, (part + 1) * count / parts).map(Arc::new)).collect()
    }

    /// The index of the first of two neighbouring children to merge.
    fn choose_merge(&self, node: &Node) -> Option<usize> {
        (1..node.children.len()).map(|i| i - 1).find(|&i| {
            let (a, b) = (&node.children[i].node, &node.children[i + 1].node);
            let small = if node.height == 1 {
                let (x, y) = (a.own_bytes() + node.live_bytes(i), b.own_bytes() + node.live_bytes(i + 1));
                x.min(y) < self.shape.leaf_bytes / 4 && x + y < self.shape.leaf_bytes / 2
            } else {
                a.children.len().min(b.children.len()) < self.shape.fanout.div_ceil(2)
            };
            let both = KeyRange::new(a.range.from.clone(), b.range.to.clone());
            small && !self.busy.iter().any(|range| range.overlaps(&both))
        })
    }

    /// Merges the `i`-th child and its right neighbour, after flushing to both. If the result has too many children, it
    /// is split into two nodes with equal numbers of children.
    fn merge_children(&self, node: &mut Node, i: usize) -> Result<()> {
        assert!(i + 1 < node.children.len(), "a child is merged with its right neighbour");
        for j in [i, i + 1] {
            if !node.live(&node.children[j]).is_empty() {
                self.flush(node, j)?;
            }
        }
        debug_assert!((i..i + 2).all(|j| node.live(&node.children[j]).is_empty()), "both have received every branch");
        let merged = self.join(&node.children[i].node, &node.children[i + 1].node);
        let next = node.end();
        // Each half of more than F children has at least F/2, so the halves are not merged again.
        let nodes = if merged.is_leaf() { vec![Arc::new(merged)] } else { self.split_inner(Arc::new(merged))? };
        node.children.splice(i..i + 2, nodes.into_iter().map(|node| Child { node, next }));
        self.counters.merges.fetch_add(1, Relaxed);
        node.weigh_all()
    }

    /// Joins two neighbours. Their branches are clipped to disjoint ranges. Therefore the concatenated list has the
    /// branches of every single key in the right order. The branches get new identities, because a branch that an
    /// earlier split shared between `a` and `b` would otherwise be in the list twice.
    pub(super) fn join(&self, a: &Node, b: &Node) -> Node {
        assert!(a.height == b.height && a.range.to == b.range.from, "merging nodes that are not neighbours");
        let mut node = Node::new(KeyRange::new(a.range.from.clone(), b.range.to.clone()), a.height);
        let (left, right) = (a.children.len(), b.children.len());
        let padded = |before: usize, weights: &[u64], after: usize| -> Arc<[u64]> {
            [vec![0; before], weights.to_vec(), vec![0; after]].concat().into()
        };
        let id = || BranchId(self.ids.fetch_add(1, Relaxed));
        node.branches.extend(a.branches.iter().map(|branch| Branch {
            id: id(),
            weights: padded(0, &branch.weights, right),
            ..branch.clone()
        }));
        node.branches.extend(b.branches.iter().map(|branch| Branch {
            id: id(),
            weights: padded(left, &branch.weights, 0),
            ..branch.clone()
        }));
        let shift = a.branches.len() as u64;
        node.children.extend(a.children.iter().map(|c| Child { node: c.node.clone(), next: c.next }));
        node.children.extend(b.children.iter().map(|c| Child { node: c.node.clone(), next: c.next + shift }));
        assert_eq!(node.children.len(), left + right, "no child is lost");
        assert_eq!(node.branches.len(), a.branches.len() + b.branches.len(), "no branch is lost");
        node
    }
}

/// Whether a branch has range tombstones, but few enough that one of them may cover a large range.
fn few_tombstones(branch: &Branch) -> bool {
    (1..=MOST_TOMBSTONES).contains(&branch.slice.run().meta().range_tombstones)
}

/// The first child whose whole range is covered by range tombstones of a branch that is live for this child. The data
/// below the child can be dropped at once.
fn wiped_child(node: &Node) -> Option<usize> {
    if !node.branches.iter().any(few_tombstones) {
        return None;
    }
    (0..node.children.len()).find(|&i| {
        let child = &node.children[i];
        node.live(child)
            .iter()
            .filter(|branch| few_tombstones(branch))
            .any(|branch| branch.weights[i] > 0 && is_covered_by_range_delete(branch, &child.node.range))
    })
}

/// The part of an inner node with the children `from..to`. Branches are clipped, and they stay live for the same
/// children.
pub(super) fn part_of(node: &Node, from: usize, to: usize) -> Result<Node> {
    assert!(from < to && to <= node.children.len(), "a part has children");
    let children = &node.children[from..to];
    let range = KeyRange::new(children[0].node.range.from.clone(), children[children.len() - 1].node.range.to.clone());
    let mut part = Node::new(range, node.height);
    // Branches without data in the part are removed, so each `next` is recomputed for the branches that remain.
    let mut kept_before = Vec::with_capacity(node.branches.len() + 1);
    for branch in &node.branches {
        kept_before.push(part.branches.len() as u64);
        if let Some(slice) = branch.slice.clip(&part.range)? {
            let weights: Arc<[u64]> = branch.weights[from..to].into();
            let (bytes, deletes) = (weights.iter().sum(), branch.deletes.share(from..to, |key| node.child_for(key)));
            part.branches.push(Branch { slice, bytes, weights, deletes, ..branch.clone() });
        }
    }
    kept_before.push(part.branches.len() as u64);
    assert_eq!(kept_before.len(), node.branches.len() + 1, "a position for every branch, and the end");
    part.children = children
        .iter()
        .map(|child| {
            let next = kept_before[child.next as usize];
            let again = u64::from(SeededBug::LiveAgainAfterSplit.is_on());
            Child { node: child.node.clone(), next: next.saturating_sub(again) }
        })
        .collect();
    part.trim(Trim::Ends)?;
    Ok(part)
}

/// Up to `parts - 1` keys, strictly inside a leaf's range, that divide the leaf into pieces of about equal bytes.
fn quantiles(leaf: &Node, parts: u64) -> Result<Vec<Vec<u8>>> {
    assert!(parts > 0, "a leaf is divided into pieces");
    let mut marks: Vec<(Vec<u8>, u64)> = Vec::new();
    for branch in &leaf.branches {
        // Ignore a run whose upper blocks cannot be read.
        let keys = match branch.slice.split_keys(parts as usize * 16) {
            Err(e) if e.is_damage() => Vec::new(),
            keys => keys?,
        };
        let weight = branch.bytes / (keys.len() as u64 + 1);
        // The first key of a run is also a possible split key. A run of one page has no other possible split key.
        let first = (branch.slice.low().to_vec(), weight);
        marks.extend(keys.into_iter().map(|key| (key, weight)).chain([first]));
    }
    marks.sort_unstable();
    let total: u64 = marks.iter().map(|(_, weight)| weight).sum();
    let mut keys: Vec<Vec<u8>> = Vec::new();
    let mut sum = 0;
    for (key, weight) in marks {
        sum += weight;
        let cut = (keys.len() as u64 + 1) * total / parts;
        if sum > cut && keys.len() as u64 + 1 < parts && key > leaf.range.from && leaf.range.is_above(&key) {
            if keys.last() == Some(&key) {
                continue;
            }
            keys.push(key);
        }
    }
    assert!((keys.len() as u64) < parts, "n pieces have fewer than n pivots");
    Ok(keys)
}
