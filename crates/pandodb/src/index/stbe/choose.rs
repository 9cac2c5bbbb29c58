//! Chooses the next compaction: a pure function from a trunk to a list of candidates (002 §3.4, "Flush then compact").
//!
//! * The root is never compacted, unless it is a leaf.
//! * In an inner node, only newly arrived branches (`fresh`) are compacted, as one group. Therefore no message is
//!   compacted twice on one level. A group never includes branches on both sides of a child's `next`, so each child
//!   still needs all branches of the group or none. The ranges of children that need none of these branches are left
//!   out of the compaction.
//! * A leaf has one large run, and small runs that together have at most a third of its size. Newly arrived branches
//!   are compacted with each other. Everything in the leaf is compacted when the small runs have a third of the large
//!   run's size. This compaction also starts when deletes in the small runs hide a quarter of the large run. Deletes
//!   have few bytes, so the size of the small runs alone would not start the compaction ([`super::deletes`]). A request
//!   of a caller compacts everything in the leaf; a request for scans sometimes only the small runs ([`super::scans`]).
//! * A branch that an earlier compaction could not read (*stuck*) is never compacted. In a leaf, the branches newer
//!   than a stuck branch are still compacted with each other, as if the stuck branch and all older branches did not
//!   exist.
//! * Runs with disjoint key ranges are not merged, because a point lookup reads at most one of these runs. Exceptions:
//!   there are too many such runs, or the node is a leaf and much of their data is garbage.
//! * A leaf is compacted at once when range tombstones cover a quarter of its data. A run counts as covered if the
//!   range tombstones of a newer run cover it completely.
//! * In paper mode ([`Policy::Paper`]) leaves are tiered: nine compacted runs become one, regardless of their bytes and
//!   deletes.
//! * A single run is rewritten only if it is fresh and consists mostly of deletes, or if a caller requested its range
//!   ([`super::Stbe`] keeps the requests as `forced`).

use std::cmp::Reverse;
use std::sync::Arc;

use super::deletes::entries;
use super::jobs::{Candidate, Cause, Merging, Stuck};
use super::node::{Branch, Node, Trim, Waits, is_heavy};
use super::trunk::concerns;
use crate::base::{KeyRange, SeededBug, Seqno};
use crate::index::Debt;
use crate::index::runs::Forced;
use crate::index::runs::deletes::WASTE;
use crate::run::RunSlice;

/// If a leaf has more compacted runs than this number, all its runs are merged, regardless of their size. Newly arrived
/// runs do not count, because compacting them with each other costs only their own size.
const LEAF_RUNS: usize = 8;
/// Maximum number of runs with disjoint key ranges that are not merged. When data is loaded in key order, a leaf can
/// receive this number of memtables before it is split.
const MOST_APART: usize = 24;

/// The compaction policy.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Policy {
    /// The fastest policy that we measured: a leaf has one large run and small runs, and disjoint runs are not merged
    /// (decision 0010).
    #[default]
    Product,
    /// The policy of 002 §3.4: leaves are tiered like all nodes, and newly arrived runs are always compacted once.
    Paper,
}

/// The compactions to choose from.
///
/// Every root swap needs the number of waiting bytes, and every worker needs the most urgent compaction. Each node
/// caches both answers for its subtree ([`Waits`]). Therefore only new nodes and the path to the chosen compaction are
/// visited, not the whole trunk.
pub struct Choice<'a> {
    /// The trunk's root.
    pub root: &'a Arc<Node>,
    /// The compaction policy. It must not change between calls on one trunk, because nodes cache results that were
    /// computed with it.
    pub policy: Policy,
    /// The requests of callers and of scans.
    pub forced: &'a [Forced],
    /// Branches that could not be read. They are excluded.
    pub stuck: &'a Stuck,
    /// Compactions in progress. Candidates that conflict with these compactions are excluded.
    pub merging: &'a [Merging],
}

impl Choice<'_> {
    /// All candidates, the most urgent first.
    pub fn all(&self) -> Vec<Candidate> {
        let mut found = Vec::new();
        self.root.walk(&mut |node| found.extend(self.of_node(node)));
        found.sort_by_key(|candidate| Reverse(candidate.urgency()));
        found
    }

    /// The most urgent candidate.
    pub fn first(&self) -> Option<Candidate> {
        if !self.is_plain() {
            return self.all().into_iter().next();
        }
        let mut best = None;
        self.look(self.root, &mut best);
        debug_assert_eq!(
            best.as_ref().map(Candidate::ids),
            self.all().first().map(Candidate::ids),
            "the cached search and the full search find the same candidate"
        );
        best
    }

    /// The bytes of all candidates, by their causes. Each candidate counts as at least 1 byte, because runs with only
    /// range tombstones have 0 bytes but still need to be compacted.
    pub fn debt(&self) -> Debt {
        if self.is_plain() {
            let all = self.waits(self.root).bytes;
            let taken = self.taken(self.root);
            assert!(taken <= all, "compactions in progress of {taken} bytes among all {all}");
            let debt = Debt { work_bytes: all - taken, ..Debt::default() };
            debug_assert_eq!(debt, self.sums(), "cached sums equal the sums of a full walk");
            return debt;
        }
        self.sums()
    }

    fn sums(&self) -> Debt {
        let mut debt = Debt::default();
        self.all().iter().for_each(|candidate| *candidate.cause.part(&mut debt) += candidate.weight());
        debt
    }

    /// Whether some leaf still has a compaction that `request` asks for.
    pub(super) fn is_open(&self, request: &Forced) -> bool {
        self.is_open_in(self.root, request)
    }

    fn is_open_in(&self, node: &Arc<Node>, request: &Forced) -> bool {
        if !node.range.overlaps(&request.range) {
            return false;
        }
        if node.is_leaf() {
            let candidate = in_leaf(node, self.policy, std::slice::from_ref(request), self.stuck);
            return candidate.is_some_and(|candidate| candidate.cause != Cause::Due);
        }
        node.children.iter().any(|child| self.is_open_in(&child.node, request))
    }

    /// Whether the cached sums are valid, because there is no request and no stuck branch.
    fn is_plain(&self) -> bool {
        self.forced.is_empty() && self.stuck.is_empty()
    }

    /// The candidates of one node, without the candidates that conflict with a compaction in progress.
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

    /// The compactions that wait in a subtree. Compactions in progress are included.
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
        // Do not cache the sum of the root: the root's own branches are not candidates, but under a new root this node
        // is an ordinary node, whose branches are candidates.
        if Arc::ptr_eq(node, self.root) { count() } else { *node.waits.get_or_init(count) }
    }

    /// Bytes of the candidates that conflict with compactions in progress.
    fn taken(&self, node: &Arc<Node>) -> u64 {
        let overlaps = |merging: &Merging| merging.live.iter().any(|live| live.overlaps(&node.range));
        if !self.merging.iter().any(overlaps) || self.waits(node).bytes == 0 {
            return 0;
        }
        let own: u64 =
            self.in_node(node).iter().filter(|candidate| self.is_taken(candidate)).map(Candidate::weight).sum();
        own + node.children.iter().map(|child| self.taken(&child.node)).sum::<u64>()
    }

    /// Replaces `best` if the subtree has a more urgent candidate.
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

fn cause_of(request: &Forced) -> Cause {
    if request.optional { Cause::Optional } else { Cause::Requested }
}

fn in_leaf(leaf: &Node, policy: Policy, requests: &[Forced], stuck: &Stuck) -> Option<Candidate> {
    let begin = leaf.branches.iter().rposition(|branch| stuck.holds(branch)).map_or(0, |i| i + 1);
    debug_assert!(leaf.is_leaf() && begin <= leaf.branches.len());
    let branches = &leaf.branches[begin..];
    // The requests: why, and the first branch that each asks to compact. Callers come before scans.
    let asked = requests.iter().filter_map(|request| {
        let from = usize::from(request.keeps_oldest && begin == 0);
        let chosen = branches.get(from..)?;
        let is_useful = !request.keeps_oldest || chosen.len() > 1;
        (is_useful && concerns(request, leaf, chosen)).then(|| (cause_of(request), from))
    });
    // What a request has flushed to the leaf may make a compaction due, so a requested leaf has no other cause.
    let (from, cause) = match (due_in_leaf(leaf, begin, policy), asked.min()) {
        (Some(0), Some((cause, _))) => (0, cause),
        (_, Some((cause, from))) if branches.len() > from + 1 => (from, cause),
        (_, Some((cause, 0))) if needs_rewrite(&branches[0]) => (0, cause),
        (Some(from), None) => (from, Cause::Due),
        _ => return None,
    };
    Some(Candidate {
        branches: branches[from..].to_vec(),
        live: vec![KeyRange::clone(&leaf.range)],
        height: 0,
        bottom: begin + from == 0 || SeededBug::TombstoneDroppedAboveOlder.is_on(),
        bytes: branches[from..].iter().map(|branch| branch.bytes).sum(),
        cause,
        trim: Trim::Ends,
    })
}

/// The compaction of a leaf that is due without a request: the index, after `begin`, of its first branch.
fn due_in_leaf(leaf: &Node, begin: usize, policy: Policy) -> Option<usize> {
    let branches = &leaf.branches[begin..];
    match branches.len() {
        0 => None,
        1 => (begin == 0 && policy == Policy::Product && is_mostly_tombstones(leaf)).then_some(0),
        _ => {
            let old = branches.iter().rposition(|branch| !branch.fresh).map_or(0, |i| i + 1);
            let (first, total) = (branches[0].bytes, branches.iter().map(|branch| branch.bytes).sum::<u64>());
            debug_assert!(first <= total, "the whole is at least as large as a part");
            let weighs = policy == Policy::Product && is_heavy(first, total - first);
            let shadowed = begin == 0 && policy == Policy::Product && is_shadowed_by_deletes(leaf);
            let heavy = weighs || shadowed || old > LEAF_RUNS;
            let useless = begin == 0 && is_wasteful(branches);
            let wiped = wiped_bytes(branches);
            let wiped = wiped > 0 && wiped * WASTE >= total;
            if wiped || (heavy && (useless || !may_stay_apart(branches, policy))) {
                return Some(0);
            }
            (!may_stay_apart(&branches[old..], policy)).then_some(old)
        }
    }
}

/// Whether the deletes of a leaf's newer runs hide much of it. The compaction that this triggers drops these deletes,
/// so each delete triggers a compaction only once.
fn is_shadowed_by_deletes(leaf: &Node) -> bool {
    let deletes: u64 = leaf.branches[1..].iter().map(|branch| branch.deletes.count()).sum();
    deletes > 0 && deletes * WASTE >= entries(leaf)
}

/// Whether a leaf's only run consists mostly of deletes. These deletes hide nothing, because no older data exists.
/// After the rewrite the run is no longer fresh. Therefore deletes that snapshots still need do not trigger another
/// rewrite.
fn is_mostly_tombstones(leaf: &Node) -> bool {
    let deletes = leaf.branches[0].deletes.count();
    leaf.branches[0].fresh && deletes > 0 && deletes * WASTE >= entries(leaf)
}

/// Whether rewriting a single run at the bottom would drop any data.
fn needs_rewrite(branch: &Branch) -> bool {
    let meta = branch.slice.run().meta();
    meta.deletes + meta.merges + meta.range_tombstones > 0 || meta.puts + meta.blob_puts > meta.keys
}

/// Whether a compaction at the bottom would drop much of these runs (deletes, superseded versions, operands). Such a
/// compaction is worth its cost even if the key ranges of the runs are disjoint.
pub(super) fn is_wasteful(branches: &[Branch]) -> bool {
    let (mut useless, mut all) = (0, 0);
    for meta in branches.iter().map(|branch| branch.slice.run().meta()) {
        let superseded = (meta.puts + meta.blob_puts).saturating_sub(meta.keys);
        useless += meta.deletes + meta.merges + meta.range_tombstones + superseded;
        all += meta.entries() + meta.range_tombstones;
    }
    branches.len() > 1 && useless * WASTE >= all
}

/// Whether the range tombstones of a branch together cover all of `range`, so that all older data in this range can be
/// dropped.
pub(super) fn is_covered_by_range_delete(branch: &Branch, range: &KeyRange) -> bool {
    wiped_by(branch, range).is_some()
}

/// The smallest and the largest seqno of the range tombstones of a branch that together cover `range`; `None` if they
/// do not cover it.
pub(super) fn wiped_by(branch: &Branch, range: &KeyRange) -> Option<(Seqno, Seqno)> {
    if branch.slice.run().meta().range_tombstones == 0 {
        return None;
    }
    // Unreadable tombstones cover nothing.
    let mut tombstones = branch.slice.tombstones(range).unwrap_or_default();
    tombstones.sort_by(|a, b| a.range.from.cmp(&b.range.from));
    let (mut rest, mut least, mut largest) = (range.clone(), Seqno::MAX, Seqno(0));
    for tombstone in tombstones {
        if tombstone.range.from > rest.from {
            return None;
        }
        (least, largest) = (least.min(tombstone.seqno), largest.max(tombstone.seqno));
        if tombstone.range.covers(&rest) {
            debug_assert!(least <= largest, "seqnos of the tombstones in order");
            return Some((least, largest));
        }
        rest.from = rest.from.max(tombstone.range.to);
    }
    None
}

/// The total bytes of the branches of a leaf that are completely covered by the range tombstones of a newer branch.
/// `branches` are ordered oldest first. Each branch is compared by its own range, not by the range of the leaf. The
/// reason: a leaf that was merged from two leaves holds branches of both, and the tombstones of each branch cover at
/// most the range of its old leaf.
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
    // Skip runs with only range tombstones: such runs have 0 bytes, and thousands of them may exist after a large range
    // delete.
    (0..branches.len()).filter(|&at| branches[at].bytes > 0 && is_wiped(at)).map(|at| branches[at].bytes).sum()
}

/// Whether merging these runs gains nothing because the runs are few and their key ranges are disjoint. Such runs arise
/// when data is loaded in key order.
pub(super) fn may_stay_apart(branches: &[Branch], policy: Policy) -> bool {
    let most = if policy == Policy::Paper { 1 } else { MOST_APART };
    if branches.len() > most {
        return false;
    }
    have_no_common_key(branches.iter().map(|branch| &*branch.slice))
}

/// Whether the key ranges of all slices are disjoint. The call does no I/O.
pub(super) fn have_no_common_key<'a>(slices: impl Iterator<Item = &'a RunSlice>) -> bool {
    let mut slices: Vec<&RunSlice> = slices.collect();
    slices.sort_unstable_by_key(|slice| slice.low());
    slices.windows(2).all(|pair| pair[0].is_before(pair[1]))
}

fn in_inner(node: &Node, policy: Policy, stuck: &Stuck, found: &mut Vec<Candidate>) {
    debug_assert!(!node.is_leaf());
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
                    _ => live.push(KeyRange::clone(range)),
                }
            }
            debug_assert!(to >= from + 2, "one run is not compacted above the leaves");
            debug_assert!(live.windows(2).all(|pair| pair[0].to < pair[1].from), "ranges apart, in order");
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
                    cause: Cause::Due,
                    trim: Trim::Ends,
                });
            }
        }
        from = to.max(from + 1);
    }
}
