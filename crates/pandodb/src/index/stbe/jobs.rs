//! The types that describe compactions of a tree: a compaction that could be started ([`Candidate`]), a compaction in
//! progress ([`Merging`]), and the branches that earlier compactions could not read ([`Stuck`]).

use std::cmp::Reverse;
use std::collections::HashSet;

use super::node::{Branch, BranchId, Node, Trim, Urgency};
use crate::base::KeyRange;
use crate::index::Debt;
use crate::index::runs::{Inputs, MergeJob};

/// Why a compaction is done. Writers wait only for compactions that are due.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Cause {
    /// By the policy.
    Due,
    /// A caller has requested it. It may be due as well.
    Requested,
    /// It would make scans faster. It may be due as well.
    Optional,
}

impl Cause {
    /// The part of a debt to which such compactions belong.
    pub(super) fn part(self, debt: &mut Debt) -> &mut u64 {
        match self {
            Cause::Due => &mut debt.work_bytes,
            Cause::Requested => &mut debt.requested_bytes,
            Cause::Optional => &mut debt.optional_bytes,
        }
    }
}

/// One compaction to do.
#[derive(Clone)]
pub struct Candidate {
    /// The inputs, oldest first. They are neighbours in the list of their node.
    pub branches: Vec<Branch>,
    /// The keys for which the inputs are live in the node, as disjoint ranges in key order.
    pub live: Vec<KeyRange>,
    /// The height of the node.
    pub height: u32,
    /// Whether nothing older than the inputs exists for these keys, so that tombstones can be dropped.
    pub bottom: bool,
    /// Estimated bytes of the inputs.
    pub bytes: u64,
    /// Why the compaction is done.
    pub cause: Cause,
    /// The parts of the inputs that the nodes above remove when the compaction is done.
    pub trim: Trim,
}

impl Candidate {
    /// The identities of the inputs, oldest first.
    pub fn ids(&self) -> Vec<BranchId> {
        self.branches.iter().map(|branch| branch.id).collect()
    }

    /// The inputs for the merge.
    pub fn inputs(&self) -> Inputs {
        assert!(!self.branches.is_empty() && !self.live.is_empty(), "a compaction has inputs and keys");
        let slices = self.branches.iter().map(|branch| branch.slice.clone()).collect();
        Inputs { slices, live: self.live.clone(), bottom: self.bottom, bytes: self.bytes }
    }

    pub(super) fn urgency(&self) -> Urgency {
        debug_assert!(!self.branches.is_empty(), "a compaction has inputs");
        (self.branches.len(), Reverse(self.height))
    }

    /// The bytes that the compaction adds to the debt. A run with only range tombstones has 0 bytes, but counts as 1
    /// byte.
    pub(super) fn weight(&self) -> u64 {
        self.bytes.max(1)
    }

    /// Whether two compactions would read the same message.
    pub fn conflicts(&self, ids: &[BranchId], live: &[KeyRange]) -> bool {
        self.branches.iter().any(|branch| ids.contains(&branch.id))
            && self.live.iter().any(|a| live.iter().any(|b| a.overlaps(b)))
    }
}

/// Branches that a compaction could not read, each with its key range at that time. A branch that was clipped to
/// another range is tried again, because the damage may be outside that range.
#[derive(Default)]
pub struct Stuck(HashSet<(BranchId, KeyRange)>);

impl Stuck {
    /// Adds inputs of a compaction that found damage.
    pub fn add<'a>(&mut self, branches: impl Iterator<Item = &'a Branch>) {
        self.0.extend(branches.map(|branch| (branch.id, branch.slice.range().clone())));
    }

    /// Whether no damaged input is recorded.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Whether the branch, or another piece of it in the same node, is excluded. All pieces count, because an output
    /// replaces all of them.
    pub(super) fn holds_part_of(&self, branch: &Branch, node: &Node) -> bool {
        !self.is_empty() && node.branches.iter().any(|piece| piece.id == branch.id && self.holds(piece))
    }

    /// Whether the branch is excluded.
    pub fn holds(&self, branch: &Branch) -> bool {
        !self.is_empty() && self.0.contains(&(branch.id, branch.slice.range().clone()))
    }
}

/// A compaction in progress.
pub(super) struct Merging {
    pub(super) ticket: u64,
    pub(super) ids: Vec<BranchId>,
    pub(super) live: Vec<KeyRange>,
    /// Estimated bytes of the inputs of this compaction.
    pub(super) bytes: u64,
    /// Why the compaction is done.
    pub(super) cause: Cause,
    /// The job between two steps; `None` while a thread works on it.
    pub(super) parked: Option<Box<Merge>>,
}

/// A compaction in progress, and the branches that its output will replace.
pub(super) struct Merge {
    pub(super) candidate: Candidate,
    pub(super) job: MergeJob,
}
