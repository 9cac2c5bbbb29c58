//! Replaces the inputs of a compaction by its output, in every node that holds these inputs when the compaction ends.
//!
//! While a compaction was running, its node may have been split. In that case both halves hold the inputs, clipped to
//! their ranges. The inputs may also have been flushed to children, which then hold the inputs, clipped to their
//! ranges. For every key in the candidate's live ranges the output is equivalent to the inputs. Therefore the output
//! replaces the inputs in each node that holds some of them:
//!
//! * in a node whose range is inside the live ranges (a child that received the inputs);
//! * in a node on the candidate's level (the node itself, or its halves), because the inputs were already dead for
//!   children outside the live ranges.
//!
//! A node below the candidate's level and outside the live ranges received the inputs before the compaction began. It
//! keeps the inputs, because the output lacks the keys of this node. A node above the candidate's level flushed the
//! inputs down and keeps them for its other children.

use std::cmp::Ordering;
use std::sync::Arc;

use super::jobs::Candidate;
use super::node::{Branch, BranchId, Node, Trim};
use crate::base::{Result, SeededBug};
use crate::index::runs::Deletes;
use crate::run::RunSlice;

/// A finished compaction to install in the trunk.
pub(super) struct Install<'a> {
    /// The compaction.
    pub candidate: &'a Candidate,
    /// The output; `None` if no data remains.
    pub output: Option<Arc<RunSlice>>,
    /// The point deletes in the output.
    pub deletes: Deletes,
    /// The identity of the output's branch.
    pub id: BranchId,
}

impl Install<'_> {
    /// Replaces the inputs under `root`. Returns whether any node still held them.
    pub fn replace(&self, root: &mut Arc<Node>) -> Result<bool> {
        let range = root.range.clone();
        let ids = self.candidate.ids();
        match self.visit(root, &ids)? {
            Some(changed) => {
                assert_eq!(changed.range, range, "an installation keeps the keys of the tree");
                *root = Arc::new(changed);
                Ok(true)
            }
            None => Ok(false),
        }
    }

    /// The changed node, or `None` if no node of the subtree holds the inputs.
    fn visit(&self, node: &Arc<Node>, ids: &[BranchId]) -> Result<Option<Node>> {
        if !self.candidate.live.iter().any(|range| range.overlaps(&node.range)) {
            return Ok(None);
        }
        let mut draft: Option<Node> = None;
        for i in 0..node.children.len() {
            if let Some(child) = self.visit(&node.children[i].node, ids)? {
                draft.get_or_insert_with(|| node.edit()).children[i].node = Arc::new(child);
            }
        }
        let covered = || self.candidate.live.iter().any(|range| range.covers(&node.range));
        let inherits = match node.height.cmp(&self.candidate.height) {
            Ordering::Greater => false,
            Ordering::Equal => true,
            Ordering::Less => covered(),
        };
        if inherits && let Some((at, count)) = find(&node.branches, ids) {
            let draft = draft.get_or_insert_with(|| node.edit());
            self.splice(draft, at, count)?;
            // A child that received the inputs during the compaction needs nothing of the output here.
            draft.trim(self.candidate.trim)?;
        } else if self.candidate.trim == Trim::Holes
            && let Some(draft) = &mut draft
        {
            // Also trim this node. The pages of the inputs are freed only when no node above holds them for other
            // children.
            draft.trim(Trim::Holes)?;
        }
        Ok(draft)
    }

    /// Replaces the `count` branches that begin at index `at`.
    fn splice(&self, node: &mut Node, at: usize, count: usize) -> Result<()> {
        assert!(count > 0 && at + count <= node.branches.len(), "the inputs are in the list");
        let (from, to) = (at as u64, (at + count) as u64);
        let right = node.range.from > self.candidate.live[0].from;
        let output = match &self.output {
            Some(_) if right && SeededBug::OutputLostInSplit.is_on() => None,
            Some(slice) => slice.clip(&node.range)?,
            None => None,
        };
        let branch = match output {
            Some(slice) => {
                let fresh = node.height < self.candidate.height;
                // If the node has the whole output, its size is known. If the node has a part of the output, the
                // estimates of the inputs are more exact.
                let whole = self.output.as_ref().is_some_and(|output| output.bytes() == slice.bytes());
                let inputs = node.branches[at..at + count].iter().map(|branch| branch.bytes).sum();
                let mut branch = node.branch(self.id, fresh, slice, if whole { u64::MAX } else { inputs })?;
                if whole {
                    branch.deletes = self.deletes.clone();
                }
                Some(branch)
            }
            None => None,
        };
        let left = u64::from(branch.is_some());
        for child in &mut node.children {
            assert!(child.next <= from || child.next >= to, "a child needs all inputs of a compaction, or none");
            if child.next >= to {
                child.next = child.next - count as u64 + left;
            }
        }
        node.branches.splice(at..at + count, branch);
        debug_assert!(node.children.iter().all(|child| child.next <= node.end()), "`next` moves down with the list");
        Ok(())
    }
}

/// The position of the inputs in a list: (index, length). Inputs without data for a node were not flushed to it, so the
/// node may hold only some of the inputs. The inputs that it holds are neighbours.
fn find(branches: &[Branch], ids: &[BranchId]) -> Option<(usize, usize)> {
    let is_input = |branch: &Branch| ids.contains(&branch.id);
    let at = branches.iter().position(is_input)?;
    let count = branches[at..].iter().take_while(|branch| is_input(branch)).count();
    assert!(!branches[at + count..].iter().any(is_input), "the inputs of a compaction are neighbours");
    Some((at, count))
}
