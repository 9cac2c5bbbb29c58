//! [`Scans`]: what the scans of a tree cost, and the leaves that are compacted because of it.
//!
//! ```text
//!   a scan ──first blocks of runs──▶ Node::paid ── the price of a compaction ──▶ wanted ──▶ Trunk::forced
//! ```
//!
//! A scan reads at least one leaf block of each run on the path to its keys. If these runs were compacted into one run, the
//! scan would read only one such first block. So the first blocks of the other runs are *unneeded*. Further blocks of a run
//! hold rows that the scan would read after a compaction, too.
//!
//! 1. Each leaf has two counters of the bytes of unneeded blocks: `whole` for a compaction of all runs on the path, and
//!    `newer` for a compaction of all of them but the oldest run. The second compaction saves all unneeded blocks but one.
//!    If there are more than two runs, and the newer runs together have less than a third of the bytes of the oldest one,
//!    it costs much less than the first. Then one unneeded block of each scan is added to `whole`, and the others to
//!    `newer`. Otherwise all are added to `whole`.
//! 2. Each compaction has a price: half of its estimated bytes for all runs, a quarter for the newer runs, but at least
//!    1/64 of the bytes of the oldest run. When a counter reaches the price, the leaf is *wanted*, and the counter starts
//!    again at zero. So the bytes of such compactions are bounded by the bytes of the unneeded blocks that scans have read,
//!    as far as the estimates are right.
//! 3. Newer runs of a third of the oldest one are not considered apart, because the policy compacts the whole leaf when
//!    they have been flushed to it.
//! 4. A worker that has nothing else to do turns the wanted leaves into requests, one at a time: everything above the
//!    leaf is flushed to it and compacted in it (`choose`).
//!
//! Invariant: the bytes of the wanted leaves are part of the tree's optional debt, until a worker takes them. Locks:
//! `wanted`, under which only the locks of the debt are taken. Source: the competitive argument of the ski rental
//! problem; "read-triggered compaction" of other engines counts reads in a similar way.

use std::collections::VecDeque;
use std::sync::Arc;

use super::node::{Branch, Node, is_heavy};
use crate::base::KeyRange;
use crate::base::sync::{Counter, Mutex, Ordering::Relaxed};
use crate::index::Debt;
use crate::index::owed::Owing;
use crate::run::{ScanHabits, Spare};

/// The price of a compaction of all runs is 1/`PRICE` of its bytes.
const PRICE: u64 = 2;
/// The price of a compaction of the newer runs is 1/`PRICE_OF_NEWER` of its bytes.
const PRICE_OF_NEWER: u64 = 4;
/// Newer runs count as at least 1/`LEAST` of the oldest run. Otherwise a few scans would pay for a flush, two root swaps and
/// a run of a few pages each time that a little data has arrived.
const LEAST: u64 = 16;

/// The costs of the scans of one tree. All roots of the tree share them.
pub(super) struct Scans {
    pub(super) habits: ScanHabits,
    owing: Arc<Owing>,
    /// Whether scans cause compactions.
    compact: bool,
    wanted: Mutex<VecDeque<Wanted>>,
}

/// The runs on the path to a leaf that hold data for it: those of the leaf, and those above it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct PathSize {
    /// The number of the runs.
    pub(super) runs: usize,
    /// The bytes of the leaf's oldest run.
    pub(super) oldest: u64,
    /// The estimated bytes that all other runs hold for the leaf.
    pub(super) newer: u64,
}

/// A leaf to compact.
#[derive(Debug)]
pub(super) struct Wanted {
    pub(super) range: KeyRange,
    /// Whether the leaf's oldest run stays as it is.
    pub(super) keeps_oldest: bool,
    /// The bytes to compact.
    bytes: u64,
}

impl Scans {
    pub(super) fn new(owing: Arc<Owing>, compact: bool) -> Scans {
        Scans { habits: ScanHabits::default(), owing, compact, wanted: Mutex::default() }
    }

    /// Notes that a scan has read the leaf blocks `spare` more than it would have read if all runs on the path to `leaf`
    /// were one run.
    pub(super) fn note(&self, leaf: &Node, path: PathSize, spare: Spare) {
        debug_assert!(leaf.is_leaf(), "scans read leaves");
        if !self.compact {
            return;
        }
        let PathSize { runs, oldest, newer } = path;
        // A scan that enters the runs again after a seek has read one block of the oldest run each time.
        let unneeded = spare.leaves.min(runs.saturating_sub(1) as u64);
        let separate = unneeded > 1 && !is_heavy(oldest, newer);
        let to_newer = if separate { spare.bytes - spare.bytes / unneeded } else { 0 };
        if pays(&leaf.paid.whole, spare.bytes - to_newer, (oldest + newer) / PRICE) {
            leaf.paid.newer.store(0, Relaxed);
            self.want(leaf, oldest + newer, false);
        } else if separate && pays(&leaf.paid.newer, to_newer, newer.max(oldest / LEAST) / PRICE_OF_NEWER) {
            self.want(leaf, newer, true);
        }
    }

    /// Adds a leaf to the wanted ones, unless it is there already.
    fn want(&self, leaf: &Node, bytes: u64, keeps_oldest: bool) {
        let bytes = bytes.max(1);
        let mut wanted = self.wanted.lock();
        match wanted.iter_mut().find(|wanted| wanted.range.overlaps(&leaf.range)) {
            Some(other) => {
                if other.keeps_oldest && !keeps_oldest && other.range == *leaf.range {
                    self.owing.change(|own| own.optional_bytes += bytes.saturating_sub(other.bytes));
                    (other.keeps_oldest, other.bytes) = (false, bytes.max(other.bytes));
                }
            }
            None => {
                wanted.push_back(Wanted { range: KeyRange::clone(&leaf.range), keeps_oldest, bytes });
                self.owing.change(|own| own.optional_bytes += bytes);
            }
        }
    }

    /// Takes the leaf that was wanted first. The caller must recount the debt afterwards.
    pub(super) fn take_first(&self) -> Option<Wanted> {
        self.wanted.lock().pop_front()
    }

    /// Forgets the wanted leaves. The caller must recount the debt afterwards.
    pub(super) fn forget(&self) {
        self.wanted.lock().clear();
    }

    /// Sets the debt of the tree, to which this function adds the bytes of the wanted leaves.
    pub(super) fn set_debt(&self, set: impl FnOnce(&mut Debt)) {
        let wanted = self.wanted.lock();
        self.owing.change(|own| {
            set(own);
            own.optional_bytes += wanted.iter().map(|wanted| wanted.bytes).sum::<u64>();
        });
    }
}

/// The leaf with the first key of `range`, and the size of the runs on the path to it.
pub(super) fn path_to<'a>(root: &'a Arc<Node>, range: &KeyRange) -> (&'a Node, PathSize) {
    let (mut node, mut path) = (root, PathSize::default());
    while !node.children.is_empty() {
        let i = node.child_for(&range.from);
        let child = &node.children[i];
        // What is live for a node has about the same number of bytes for each child of the node.
        path.newer /= node.children.len() as u64;
        path.newer += node.live_bytes(i);
        // A run without keys of the leaf is not read by scans of the leaf.
        let holds = |branch: &&Branch| branch.weights[i] > 0 && branch.slice.may_hold_some(range);
        path.runs += node.live(child).iter().filter(holds).count();
        node = &child.node;
    }
    path.runs += node.branches.len();
    path.oldest = node.branches.first().map_or(0, |branch| branch.bytes);
    path.newer += node.own_bytes() - path.oldest;
    (&**node, path)
}

/// Adds `spare` to a counter. If the counter reaches the price, this takes everything from it and returns true.
fn pays(counter: &Counter, spare: u64, price: u64) -> bool {
    let price = price.max(1);
    // Of several scans that reach the price at the same time, the first one takes all.
    counter.fetch_add(spare, Relaxed) + spare >= price && counter.swap(0, Relaxed) >= price
}
