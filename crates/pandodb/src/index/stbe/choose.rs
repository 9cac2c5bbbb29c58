//! Which branches to compact next: a pure choice from a trunk to a list of candidates (002 §3.4, "Flush then compact").
//!
//! * Never in the root, unless the root is still a leaf.
//! * In an inner node: only branches that have newly arrived (`fresh`), as one group, so that no message is compacted
//!   twice on one level. A group never reaches across the point up to which some child has been flushed, so each child
//!   has all of it or none; the ranges of those that have none are left out.
//! * In a leaf: one large run and small ones of at most a third of its size together. Newly arrived branches are
//!   compacted among themselves, or with everything when the small ones reach a third of the large one, or when their
//!   deletes shadow a quarter of its entries, which bytes do not show ([`super::deletes`]).
//! * Never a branch that an earlier compaction could not read (*stuck*): in a leaf, newer branches are compacted as
//!   if the leaf began after it.
//! * Runs with disjoint keys are not merged, in a leaf or above, because a lookup reads at most one of them; unless
//!   they are too many, or, in a leaf, hold much garbage.
//! * A leaf is compacted at once when range tombstones cover a quarter of it, counting runs that a newer run deletes
//!   completely.
//! * In paper mode ([`Policy::Paper`]) leaves are tiered: nine compacted runs become one; nothing else triggers a
//!   compaction.
//! * A lone run is not rewritten, unless it arrived alone and is mostly deletes, or a caller asked for its range
//!   ([`super::Stbe`] keeps those requests in `forced`).

use std::cmp::Reverse;
use std::collections::HashSet;
use std::sync::Arc;

use super::Merging;
use super::deletes::entries;
use super::node::{Branch, BranchId, Node, Trim};
use crate::base::{KeyRange, OwnerId, SeededBug, Seqno};
use crate::index::runs::Inputs;
use crate::index::runs::deletes::WASTE;
use crate::run::RunSlice;

/// Compacted runs that a leaf may hold before all become one, whatever their sizes. Newly arrived runs do not count:
/// compacting them costs only their own bytes.
const LEAF_RUNS: usize = 8;
/// Runs without a common key that are not merged: as many as a leaf may collect from memtables in key order until it
/// splits.
const MOST_APART: usize = 24;

/// How leaves are maintained, and which compactions are worth their cost.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Policy {
    /// The fastest policy in our measurements: leaves of one large run and small ones; runs with disjoint keys are
    /// not merged (decision 0010).
    #[default]
    Product,
    /// The policy of 002 §3.4: leaves are tiered like all nodes, and each arrival is compacted once.
    Paper,
}

/// The inputs and the target of one compaction.
#[derive(Clone)]
pub struct Candidate {
    /// The inputs, oldest first; neighbours in their node's list.
    pub branches: Vec<Branch>,
    /// The keys for which they are live in the node, in order, disjoint.
    pub live: Vec<KeyRange>,
    /// The node's height.
    pub height: u32,
    /// Nothing older than the inputs exists for these keys: tombstones may go.
    pub bottom: bool,
    /// Estimated bytes of the inputs.
    pub bytes: u64,
    /// Only a caller's request makes it worth its cost.
    pub forced: bool,
    /// What the nodes above release when it is done.
    pub trim: Trim,
}

impl Candidate {
    /// The identities of the inputs, oldest first.
    pub fn ids(&self) -> Vec<BranchId> {
        self.branches.iter().map(|branch| branch.id).collect()
    }

    /// The inputs for the merge.
    pub fn inputs(&self) -> Inputs {
        let slices = self.branches.iter().map(|branch| branch.slice.clone()).collect();
        Inputs { slices, live: self.live.clone(), bottom: self.bottom, bytes: self.bytes }
    }

    fn urgency(&self) -> Urgency {
        (self.branches.len(), Reverse(self.height))
    }

    /// Bytes that it counts as debt: a run that has only range tombstones has none, but is still work.
    fn weight(&self) -> u64 {
        self.bytes.max(1)
    }

    /// Whether two compactions would read the same message.
    pub fn conflicts(&self, ids: &[BranchId], live: &[KeyRange]) -> bool {
        self.branches.iter().any(|branch| ids.contains(&branch.id))
            && self.live.iter().any(|a| live.iter().any(|b| a.overlaps(b)))
    }
}

/// A caller's request to bring a range into its final place.
#[derive(Clone, Debug)]
pub struct Forced {
    /// The keys.
    pub range: KeyRange,
    /// Runs with a smaller identity are rewritten; their outputs are not, even if snapshots keep old versions in
    /// them.
    pub before: OwnerId,
}

impl Forced {
    fn concerns(&self, leaf: &Node, branches: &[Branch]) -> bool {
        self.range.overlaps(&leaf.range) && branches.iter().any(|branch| branch.slice.run().meta().id < self.before)
    }
}

/// Branches that a compaction could not read, each with its key range at that time: once it is clipped to other keys
/// it is tried again, since the damage may be elsewhere.
#[derive(Default)]
pub struct Stuck(HashSet<(BranchId, KeyRange)>);

impl Stuck {
    /// Inputs of a compaction that met damage.
    pub fn add<'a>(&mut self, branches: impl Iterator<Item = &'a Branch>) {
        self.0.extend(branches.map(|branch| (branch.id, branch.slice.range().clone())));
    }

    /// Whether no damaged input is recorded.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Whether the branch is excluded, or another piece of it in the same node: an output replaces all pieces.
    fn holds_part_of(&self, branch: &Branch, node: &Node) -> bool {
        !self.is_empty() && node.branches.iter().any(|piece| piece.id == branch.id && self.holds(piece))
    }

    /// Whether the branch is excluded.
    pub fn holds(&self, branch: &Branch) -> bool {
        !self.is_empty() && self.0.contains(&(branch.id, branch.slice.range().clone()))
    }
}

/// The compactions that can be chosen.
///
/// Every swap of the root asks how many bytes wait, and every worker for the most urgent compaction. Both answers come from sums that
/// nodes keep ([`Waits`]), so that only new nodes and the path to the chosen compaction are visited, not the whole trunk.
pub struct Choice<'a> {
    /// The trunk's root.
    pub root: &'a Arc<Node>,
    /// Compaction policy. Must not change between calls on one trunk: nodes cache results that were computed with it.
    pub policy: Policy,
    /// Requests of callers.
    pub forced: &'a [Forced],
    /// Branches that could not be read; they are excluded.
    pub stuck: &'a Stuck,
    /// Compactions in progress: candidates that conflict with them are excluded.
    pub merging: &'a [Merging],
}

/// The compactions that are due in a node and below it, if there are no requests and no damage. Nodes are immutable,
/// so the cached value stays valid.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Waits {
    /// Bytes of all candidates, each at least one.
    bytes: u64,
    /// The most urgent one.
    first: Option<Urgency>,
}

/// Long lists of branches first: they cost readers the most. Among equals the lower node.
type Urgency = (usize, Reverse<u32>);

impl Choice<'_> {
    /// Everything that can be chosen, the most urgent first.
    pub fn all(&self) -> Vec<Candidate> {
        let mut found = Vec::new();
        self.root.walk(&mut |node| found.extend(self.of_node(node)));
        found.sort_by_key(|candidate| Reverse(candidate.urgency()));
        found
    }

    /// The most urgent one.
    pub fn first(&self) -> Option<Candidate> {
        if !self.is_plain() {
            return self.all().into_iter().next();
        }
        let mut best = None;
        self.look(self.root, &mut best);
        debug_assert_eq!(
            best.as_ref().map(Candidate::ids),
            self.all().first().map(Candidate::ids),
            "the best on the way and the best of all"
        );
        best
    }

    /// Bytes that are due, without and with callers' requests; each candidate counts at least one, since runs with
    /// only range tombstones have no bytes but are work.
    pub fn bytes(&self) -> (u64, u64) {
        if self.is_plain() {
            let all = self.waits(self.root).bytes;
            let waiting = all - self.taken(self.root);
            debug_assert_eq!(waiting, self.sums().0, "sums of nodes and a walk");
            return (waiting, 0);
        }
        self.sums()
    }

    fn sums(&self) -> (u64, u64) {
        self.all().iter().fold((0, 0), |(waiting, requested), candidate| match candidate.forced {
            false => (waiting + candidate.weight(), requested),
            true => (waiting, requested + candidate.weight()),
        })
    }

    /// Whether the cached sums apply: no request and no damage.
    fn is_plain(&self) -> bool {
        self.forced.is_empty() && self.stuck.is_empty()
    }

    /// The candidates of one node; those that conflict with a compaction under way are left out.
    fn of_node(&self, node: &Arc<Node>) -> Vec<Candidate> {
        let mut found = self.in_node(node);
        found.retain(|candidate| !self.is_taken(candidate));
        found
    }

    fn in_node(&self, node: &Arc<Node>) -> Vec<Candidate> {
        let mut found = Vec::new();
        if node.is_leaf() {
            found.extend(in_leaf(node, self.policy, self.forced, self.stuck));
        } else if !Arc::ptr_eq(node, self.root) {
            in_inner(node, self.policy, self.stuck, &mut found);
        }
        found
    }

    fn is_taken(&self, candidate: &Candidate) -> bool {
        self.merging.iter().any(|merging| candidate.conflicts(&merging.ids, &merging.live))
    }

    /// The compactions that are due in a node and below it, whatever is in progress.
    fn waits(&self, node: &Arc<Node>) -> Waits {
        let count = || {
            let mut waits = Waits::default();
            for candidate in self.in_node(node) {
                waits.bytes += candidate.weight();
                waits.first = waits.first.max(Some(candidate.urgency()));
            }
            for child in node.children.iter().map(|child| self.waits(&child.node)) {
                waits.bytes += child.bytes;
                waits.first = waits.first.max(child.first);
            }
            waits
        };
        // A root's own branches are no candidates. Under a new root it is an ordinary node.
        if Arc::ptr_eq(node, self.root) { count() } else { *node.waits.get_or_init(count) }
    }

    /// Bytes of the candidates that conflict with compactions under way.
    fn taken(&self, node: &Arc<Node>) -> u64 {
        let overlaps = |merging: &Merging| merging.live.iter().any(|live| live.overlaps(&node.range));
        if !self.merging.iter().any(overlaps) || self.waits(node).bytes == 0 {
            return 0;
        }
        let own: u64 =
            self.in_node(node).iter().filter(|candidate| self.is_taken(candidate)).map(Candidate::weight).sum();
        own + node.children.iter().map(|child| self.taken(&child.node)).sum::<u64>()
    }

    /// Replaces `best` if a more urgent candidate is in a node or below it.
    fn look(&self, node: &Arc<Node>, best: &mut Option<Candidate>) {
        if self.waits(node).first <= best.as_ref().map(Candidate::urgency) {
            return;
        }
        for candidate in self.of_node(node) {
            if best.as_ref().is_none_or(|best| candidate.urgency() > best.urgency()) {
                *best = Some(candidate);
            }
        }
        node.children.iter().for_each(|child| self.look(&child.node, best));
    }
}

fn in_leaf(leaf: &Node, policy: Policy, forced: &[Forced], stuck: &Stuck) -> Option<Candidate> {
    let begin = leaf.branches.iter().rposition(|branch| stuck.holds(branch)).map_or(0, |i| i + 1);
    let branches = &leaf.branches[begin..];
    let forced = forced.iter().any(|request| request.concerns(leaf, branches));
    let bytes: Vec<u64> = branches.iter().map(|branch| branch.bytes).collect();
    let total: u64 = bytes.iter().sum();
    let candidate = |from: usize, bytes: u64| Candidate {
        branches: branches[from..].to_vec(),
        live: vec![leaf.range.clone()],
        height: 0,
        bottom: begin + from == 0 || SeededBug::TombstoneDroppedAboveOlder.is_on(),
        bytes,
        forced,
        trim: Trim::Ends,
    };
    match branches.len() {
        0 => None,
        1 => {
            let grave = begin == 0 && policy == Policy::Product && is_mostly_tombstones(leaf);
            (grave || forced && needs_rewrite(&branches[0])).then(|| candidate(0, total))
        }
        _ => {
            let old = branches.iter().rposition(|branch| !branch.fresh).map_or(0, |i| i + 1);
            let weighs = policy == Policy::Product && (total - bytes[0]) * 3 >= bytes[0];
            let buried = begin == 0 && policy == Policy::Product && is_shadowed_by_deletes(leaf);
            let heavy = weighs || buried || old > LEAF_RUNS;
            let useless = begin == 0 && is_wasteful(branches);
            let wiped = wiped_bytes(branches);
            let wiped = wiped > 0 && wiped * WASTE >= total;
            if forced || wiped || (heavy && (useless || !may_stay_apart(branches, policy))) {
                return Some(candidate(0, total));
            }
            (!may_stay_apart(&branches[old..], policy)).then(|| candidate(old, bytes[old..].iter().sum()))
        }
    }
}

/// Whether the deletes of a leaf's newer runs shadow much of it. As for the bytes that `weighs` counts, each delete
/// counts once.
fn is_shadowed_by_deletes(leaf: &Node) -> bool {
    let deletes: u64 = leaf.branches[1..].iter().map(|branch| branch.deletes.count()).sum();
    deletes > 0 && deletes * WASTE >= entries(leaf)
}

/// Whether a leaf's only run consists mostly of deletes that shadow nothing. After it has been rewritten it is no
/// longer fresh, and versions that snapshots keep stay.
fn is_mostly_tombstones(leaf: &Node) -> bool {
    let deletes = leaf.branches[0].deletes.count();
    leaf.branches[0].fresh && deletes > 0 && deletes * WASTE >= entries(leaf)
}

/// Whether rewriting a lone run at the bottom would drop anything.
fn needs_rewrite(branch: &Branch) -> bool {
    let meta = branch.slice.run().meta();
    meta.deletes + meta.merges + meta.range_tombstones > 0 || meta.puts + meta.blob_puts > meta.keys
}

/// Whether much of these runs is garbage at the bottom (deleted keys, superseded versions, operands), so that a
/// compaction is worth its cost although no two of them have a key in common.
pub(super) fn is_wasteful(branches: &[Branch]) -> bool {
    let (mut useless, mut all) = (0, 0);
    for meta in branches.iter().map(|branch| branch.slice.run().meta()) {
        let superseded = (meta.puts + meta.blob_puts).saturating_sub(meta.keys);
        useless += meta.deletes + meta.merges + meta.range_tombstones + superseded;
        all += meta.entries() + meta.range_tombstones;
    }
    branches.len() > 1 && useless * WASTE >= all
}

/// Whether the range tombstones of a branch cover a range: older data there can be dropped unread.
pub(super) fn is_covered_by_range_delete(branch: &Branch, range: &KeyRange) -> bool {
    wiped_by(branch, range).is_some()
}

/// The least and the largest seqno of range tombstones of a branch that together cover these keys, if there are such.
pub(super) fn wiped_by(branch: &Branch, range: &KeyRange) -> Option<(Seqno, Seqno)> {
    if branch.slice.run().meta().range_tombstones == 0 {
        return None;
    }
    // Tombstones that cannot be read cover nothing.
    let mut tombstones = branch.slice.tombstones(range).unwrap_or_default();
    tombstones.sort_by(|a, b| a.range.from.cmp(&b.range.from));
    let (mut rest, mut least, mut largest) = (range.clone(), Seqno::MAX, Seqno(0));
    for tombstone in tombstones {
        if tombstone.range.from > rest.from {
            return None;
        }
        (least, largest) = (least.min(tombstone.seqno), largest.max(tombstone.seqno));
        if tombstone.range.covers(&rest) {
            return Some((least, largest));
        }
        rest.from = rest.from.max(tombstone.range.to);
    }
    None
}

/// Bytes of the branches of a leaf, oldest first, that a newer branch covers with a range delete. Each branch is asked for its own range and
/// not for that of the leaf: a leaf that was merged holds what came from each of the old ones, and their tombstones cover no more.
pub(super) fn wiped_bytes(branches: &[Branch]) -> u64 {
    if branches.iter().all(|branch| branch.slice.run().meta().range_tombstones == 0) {
        return 0;
    }
    let is_wiped = |at: usize| {
        let range = branches[at].slice.range();
        branches[at + 1..]
            .iter()
            .any(|newer| newer.slice.range().covers(range) && is_covered_by_range_delete(newer, range))
    };
    // Runs of range tombstones only have no bytes, and there may be thousands after a large range delete.
    (0..branches.len()).filter(|&at| branches[at].bytes > 0 && is_wiped(at)).map(|at| branches[at].bytes).sum()
}

/// Whether merging these runs gains nothing: there are few, and no key is in two of them, as in a load in key order,
/// where they move down to the leaves unchanged.
pub(super) fn may_stay_apart(branches: &[Branch], policy: Policy) -> bool {
    let most = if policy == Policy::Paper { 1 } else { MOST_APART };
    if branches.len() > most {
        return false;
    }
    have_no_common_key(branches.iter().map(|branch| &*branch.slice))
}

/// Whether no key is in two of these runs. No I/O.
pub(super) fn have_no_common_key<'a>(slices: impl Iterator<Item = &'a RunSlice>) -> bool {
    let mut slices: Vec<&RunSlice> = slices.collect();
    slices.sort_unstable_by_key(|slice| slice.low());
    slices.windows(2).all(|pair| pair[0].is_before(pair[1]))
}

fn in_inner(node: &Node, policy: Policy, stuck: &Stuck, found: &mut Vec<Candidate>) {
    let mut from = 0;
    while from < node.branches.len() {
        let mut to = from;
        while to < node.branches.len()
            && node.branches[to].fresh
            && !stuck.holds_part_of(&node.branches[to], node)
            && (to == from || !node.children.iter().any(|child| child.next == to as u64))
        {
            to += 1;
        }
        if !may_stay_apart(&node.branches[from..to], policy) {
            let live_children =
                (0..node.children.len()).filter(|&i| node.children[i].next <= from as u64).collect::<Vec<_>>();
            let mut live: Vec<KeyRange> = Vec::new();
            for &i in &live_children {
                let range = &node.children[i].node.range;
                match live.last_mut() {
                    Some(last) if last.to == range.from => last.to.clone_from(&range.to),
                    _ => live.push(range.clone()),
                }
            }
            let branches = node.branches[from..to].to_vec();
            let bytes: u64 =
                branches.iter().map(|branch| live_children.iter().map(|&i| branch.weights[i]).sum::<u64>()).sum();
            if bytes > 0 {
                found.push(Candidate {
                    branches,
                    live,
                    height: node.height,
                    bottom: false,
                    bytes,
                    forced: false,
                    trim: Trim::Ends,
                });
            }
        }
        from = to.max(from + 1);
    }
}
