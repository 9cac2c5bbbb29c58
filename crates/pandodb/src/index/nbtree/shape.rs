//! The shape of the s-tree: which nodes are too large or too small, and how they are split and joined (001 §3.2).
//!
//! ```text
//!   leaf over σ                    ─split─▶  leaves of about σ/2 to σ
//!   inner node, children over f    ─split─▶  two halves; the s-key between them is raised to the parent
//!   leaf under σ/2, or inner node with fewer than ⌈f/2⌉ children  ─join─▶  with a neighbour; too large? split again
//!   root with more than f children ─grow──▶  a root above, one level higher
//!   root with one inner child      ─sink──▶  its grandchildren become its children
//! ```
//!
//! None of these changes moves data: slices are clipped, and both halves refer to the same run. 001 reads and writes a
//! d-tree to split it.
//!
//! The s-key between two halves of an inner node is the lower bound of the right half, and moves up to the parent. The text
//! of 001 also leaves it in the right half. But a node with n children has n−1 s-keys, so it would be one too many there.

use std::ops::Range;
use std::sync::Arc;

use super::node::Node;
use crate::base::{KeyRange, PAGE, Result, SeededBug, seeded};
use crate::index::runs::{Part, Sequence};

/// A part is split into at most this many pieces to find a key near the wanted place.
const MOST_PIECES: u64 = 64;
/// A leaf may have this many pages less than half of σ, because leaves are cut between pages.
const SLACK_PAGES: u64 = 4;
/// A leaf may have 1/SLACK of σ less than half of σ.
const SLACK: u64 = 8;

/// The two numbers that determine the shape.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// f: the most children of a node.
    pub fanout: usize,
    /// σ: the bytes of a full d-tree.
    pub dtree_bytes: u64,
}

impl Limits {
    /// The fewest children of an inner node, the root excepted.
    pub fn least_children(self) -> usize {
        self.fanout.div_ceil(2)
    }

    /// The fewest bytes of a leaf that has a sibling: half of σ, less the slack of a cut.
    pub fn least_leaf(self) -> u64 {
        (self.dtree_bytes / 2).saturating_sub(self.dtree_bytes / SLACK + SLACK_PAGES * PAGE as u64)
    }

    /// Whether a node must be joined with a sibling.
    pub fn is_small(self, node: &Node) -> bool {
        if node.lost.is_some() {
            return false;
        }
        if node.is_leaf() {
            // An empty leaf is always small, also if σ has so few pages that the slack is as large as the half.
            return node.bytes() < self.least_leaf() || node.parts.is_empty();
        }
        node.children.len() < self.least_children()
    }

    /// Whether a node must be split.
    fn is_large(self, node: &Node) -> bool {
        if node.is_leaf() { node.bytes() > self.dtree_bytes } else { node.children.len() > self.fanout }
    }

    /// Restores the limits among siblings: small ones are joined with a neighbour. Inner nodes with too many children are
    /// split, and leaves over σ too if `splits_leaves`. A leaf is not split while a flush still adds to it.
    ///
    /// # Errors
    /// If an inner block of a run cannot be read.
    pub fn balance(self, children: &[Arc<Node>], splits_leaves: bool) -> Result<Vec<Arc<Node>>> {
        let mut out: Vec<Arc<Node>> = Vec::with_capacity(children.len() + 1);
        for child in children {
            let is_joined = out.last().is_some_and(|last| self.joins(last, child));
            if is_joined && let Some(last) = out.pop() {
                self.append(&mut out, self.joined(&last, child)?)?;
                // The children of joined inner nodes may be joined in turn, so that few are left.
                if let [.., before, last] = &out[..]
                    && self.is_small(last)
                    && self.joins(before, last)
                {
                    let joined = self.joined(before, last)?;
                    out.truncate(out.len() - 2);
                    self.append(&mut out, joined)?;
                }
            } else if child.is_leaf() && !splits_leaves || !self.is_large(child) {
                out.push(child.clone());
            } else {
                self.append(&mut out, child.edit())?;
            }
        }
        Ok(out)
    }

    /// Whether two neighbours are joined because one of them is small.
    fn joins(self, left: &Node, right: &Node) -> bool {
        left.lost.is_none() && right.lost.is_none() && (self.is_small(left) || self.is_small(right))
    }

    /// Appends a node, or its parts if it is too large.
    fn append(self, out: &mut Vec<Arc<Node>>, node: Node) -> Result<()> {
        if !self.is_large(&node) {
            out.push(Arc::new(node));
            return Ok(());
        }
        let split = if node.is_leaf() { self.split_leaf(&node)? } else { self.split_inner(&node)? };
        out.extend(split.into_iter().map(Arc::new));
        Ok(())
    }

    /// Splits a leaf into leaves of about equal size, each at most σ and a little more. Large rows may make them uneven.
    fn split_leaf(self, leaf: &Node) -> Result<Vec<Node>> {
        let count = leaf.bytes().div_ceil(self.dtree_bytes.max(1));
        let mut cuts: Vec<Vec<u8>> = Vec::new();
        for at in 1..count {
            let wanted = leaf.bytes() / count * at;
            let key = key_at(&leaf.parts, wanted, leaf.bytes() / count / SLACK)?;
            cuts.extend(key.filter(|key| {
                *key > leaf.range.from && leaf.range.contains(key) && cuts.last().is_none_or(|last| last < key)
            }));
        }
        divide(leaf, &cuts, &[])
    }

    /// Splits an inner node into nodes with about equal numbers of children.
    fn split_inner(self, node: &Node) -> Result<Vec<Node>> {
        let groups = groups(node.children.len(), self.fanout);
        let cuts: Vec<Vec<u8>> =
            groups[1..].iter().map(|group| node.children[group.start].range.from.clone()).collect();
        divide(node, &cuts, &groups)
    }

    /// Joins two neighbours into one node.
    fn joined(self, left: &Node, right: &Node) -> Result<Node> {
        assert_eq!(left.height, right.height, "siblings are of one height");
        let mut node = Node::new(KeyRange::new(left.range.from.clone(), right.range.to.clone()), left.height);
        let of_right: &[Part] = seeded!(JoinForgetsRight: &[], &right.parts);
        node.parts = left.parts.iter().chain(of_right).cloned().collect::<Vec<_>>().into();
        node.children = left.children.iter().chain(&right.children).cloned().collect();
        if !node.is_leaf() {
            // A small node that was an only child has siblings now.
            node.children = self.balance(&node.children, false)?;
        }
        node.assert_valid();
        Ok(node)
    }

    /// The root of a tree whose leaves hold these slices, which are disjoint and in key order.
    ///
    /// # Errors
    /// If an inner block of a run cannot be read.
    pub fn tree_of(self, parts: Vec<Part>) -> Result<Node> {
        let mut root = Node::empty_root();
        let mut leaf = root.children[0].edit();
        leaf.parts = parts.into();
        root.children = self.balance(&[Arc::new(leaf)], true)?;
        self.settle_root(root)
    }

    /// The root after its children have changed: it grows if it has too many children, and sinks if it has only one.
    ///
    /// # Errors
    /// If an inner block of a run cannot be read.
    pub fn settle_root(self, mut root: Node) -> Result<Node> {
        assert!(root.is_root, "only the root grows");
        while root.children.len() > self.fanout {
            let groups = groups(root.children.len(), self.fanout);
            let inner = |group: &Range<usize>| {
                let children = root.children[group.clone()].to_vec();
                let range = hull(&children);
                let mut inner = Node::new(range, root.height);
                inner.children = children;
                Arc::new(inner)
            };
            root.children = groups.iter().map(inner).collect();
            root.height += 1;
        }
        while let [only] = &root.children[..]
            && !only.is_leaf()
            && only.lost.is_none()
        {
            let only = only.clone();
            // The data of the child is older than all data of the root.
            let sunk: &[Part] = seeded!(SinkingForgets: &[], &only.parts);
            root.parts = root.parts.iter().chain(sunk).cloned().collect::<Vec<_>>().into();
            root.children.clone_from(&only.children);
            root.height = only.height;
        }
        root.assert_valid();
        Ok(root)
    }
}

/// Divides `count` children into as few groups of at most `most` as possible, of about equal size.
fn groups(count: usize, most: usize) -> Vec<Range<usize>> {
    let groups = count.div_ceil(most).max(1);
    let start = |group: usize| group * count / groups;
    (0..groups).map(|group| start(group)..start(group + 1)).collect()
}

/// The range from the first to the last of neighbouring nodes.
fn hull(nodes: &[Arc<Node>]) -> KeyRange {
    let (first, last) = (nodes.first().expect("a node has children"), nodes.last().expect("a node has children"));
    KeyRange::new(first.range.from.clone(), last.range.to.clone())
}

/// Divides a node at the keys `cuts`. The i-th node gets the i-th group of children.
fn divide(node: &Node, cuts: &[Vec<u8>], groups: &[Range<usize>]) -> Result<Vec<Node>> {
    let mut from = node.range.from.clone();
    let ends = cuts.iter().chain(std::iter::once(&node.range.to));
    let mut nodes = Vec::with_capacity(cuts.len() + 1);
    for (i, to) in ends.enumerate() {
        let range = KeyRange::new(std::mem::replace(&mut from, to.clone()), to.clone());
        let mut half = Node::new(range, node.height);
        half.parts = node.parts.clipped(&half.range)?;
        if let Some(group) = groups.get(i) {
            let twice = usize::from(SeededBug::SplitKeyInBothHalves.is_on() && i > 0);
            half.children = node.children[group.start - twice..group.end].to_vec();
        }
        half.assert_valid();
        nodes.push(half);
    }
    Ok(nodes)
}

/// A key before which the sequence has about `wanted` bytes: the bound of a part if one is at most `slack` bytes away,
/// else a key inside a part. Returns `None` if the sequence has no such key.
fn key_at(parts: &Sequence, wanted: u64, slack: u64) -> Result<Option<Vec<u8>>> {
    let mut before = 0;
    for (i, part) in parts.iter().enumerate() {
        let after = before + part.bytes;
        if i > 0 && before.abs_diff(wanted) <= slack {
            return Ok(Some(part.slice.range().from.clone()));
        }
        if after < wanted || (after.abs_diff(wanted) <= slack && i + 1 < parts.len()) {
            before = after;
            continue;
        }
        let pieces = (part.bytes / PAGE as u64).clamp(1, MOST_PIECES);
        let keys = match part.slice.split_keys(pieces as usize) {
            Err(e) if e.is_damage() => Vec::new(),
            keys => keys?,
        };
        let share = (wanted - before) as f64 / part.bytes.max(1) as f64;
        let at = (share * (keys.len() + 1) as f64).round() as usize;
        let inside = keys.get(at.clamp(1, keys.len().max(1)) - 1).cloned();
        return Ok(inside.or_else(|| parts.get(i + 1).map(|next| next.slice.range().from.clone())));
    }
    Ok(None)
}
