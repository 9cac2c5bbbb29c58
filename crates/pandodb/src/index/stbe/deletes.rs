//! Estimates how much data the point deletes in a node hide in the leaves below that node
//! ([`crate::index::runs::deletes`]).
//!
//! The number of deletes is divided among the children of the node, then among their children, down to the leaves. If
//! the deletes assigned to a leaf hide at least a quarter of the leaf's entries, the node flushes its branches to the
//! child that is this leaf or has it below it. When the deletes have arrived in the leaf, the leaf is compacted.

use super::node::Node;
use crate::index::runs::deletes::{Stretch, WASTE, in_part};

/// Estimated entries of a leaf.
pub(super) fn entries(leaf: &Node) -> u64 {
    leaf.branches.iter().map(|branch| in_part(branch.slice.run().meta().entries(), &branch.slice, branch.bytes)).sum()
}

/// The first child that is a leaf, or has a leaf below it, in which the deletes of `node` hide much data.
pub(super) fn shadowed_child(node: &Node) -> Option<usize> {
    let mut waiting = Shares::new(node);
    for (place, branch) in (0..).zip(&node.branches) {
        let lives = |i: usize| node.children[i].next <= place && branch.weights[i] > 0;
        branch.deletes.stretches().for_each(|stretch| waiting.add(stretch, stretch.count(), lives));
    }
    waiting.shadowed()
}

/// The deletes of a node, divided among its children.
pub(super) struct Shares<'a> {
    node: &'a Node,
    parts: Vec<Vec<(&'a Stretch, u64)>>,
}

impl<'a> Shares<'a> {
    pub(super) fn new(node: &'a Node) -> Shares<'a> {
        debug_assert!(!node.is_leaf(), "deletes are divided among children");
        Shares { node, parts: vec![Vec::new(); node.children.len()] }
    }

    /// Adds a stretch of deletes to the children for which the stretch is live.
    pub(super) fn add(&mut self, stretch: &'a Stretch, count: u64, lives: impl Fn(usize) -> bool) {
        let (first, last) = (self.node.child_for(&stretch.from), self.node.child_for(&stretch.to));
        debug_assert!(first <= last && last < self.parts.len(), "a stretch goes from left to right");
        let count = count / (last - first + 1) as u64;
        (first..=last).filter(|&i| count > 0 && lives(i)).for_each(|i| self.parts[i].push((stretch, count)));
    }

    /// The deletes for the `i`-th child.
    pub(super) fn of(&self, i: usize) -> &[(&'a Stretch, u64)] {
        &self.parts[i]
    }

    /// The first child that is a leaf, or has a leaf below it, in which the deletes assigned to this leaf hide much
    /// data.
    fn shadowed(&self) -> Option<usize> {
        (0..self.parts.len()).find(|&i| {
            let (child, part) = (&*self.node.children[i].node, &self.parts[i]);
            if part.is_empty() {
                return false;
            }
            if child.is_leaf() {
                return part.iter().map(|(_, count)| count).sum::<u64>() * WASTE >= entries(child);
            }
            let mut below = Shares::new(child);
            part.iter().for_each(|&(stretch, count)| below.add(stretch, count, |_| true));
            below.shadowed().is_some()
        })
    }
}
