//! [`Scans`]: what the scans of a tree cost, and the leaves that are compacted because of it.
//!
//! ```text
//!   a scan of a leaf ──first leaves of runs──▶ Node::paid ── the price of a compaction ──▶ wanted ──▶ Trunk::forced
//! ```
//!
//! A scan reads at least one leaf block of each run on the path to its keys. If these runs were compacted into one run, the
//! scan would read only one such first block. So the first blocks of the other runs are *unneeded*. Further blocks of a run
//! hold rows that the scan would read after a compaction, too.
//!
//! 1. Each scan adds the bytes of the first block of each run but one to a counter of the leaf.
//! 2. When the counter reaches the *price* of the compaction, half of its bytes, the leaf is *wanted*, and the counter
//!    starts again at zero. So such compactions process about twice the bytes of the unneeded blocks that scans have read,
//!    whatever the pattern of scans and writes.
//! 3. If there are more than two runs, and all of them but the oldest together have less than a third of its bytes, a
//!    compaction of the newer runs saves nearly as much as one of all runs, and costs much less. So it has a counter and a
//!    price of its own, a quarter of its bytes. Of r - 1 unneeded blocks it saves all but one, which goes to the first
//!    counter.
//! 4. A worker that has nothing else to do turns the wanted leaves into requests, one at a time: everything above the
//!    leaf is flushed to it and compacted in it (`choose`).
//!
//! Invariant: the bytes of the wanted leaves are part of the tree's optional debt, until a worker takes them. Locks:
//! `wanted`, under which only the locks of the debt are taken. Source: the competitive argument of the ski rental
//! problem; "read-triggered compaction" of other engines counts reads in a similar way.

use std::collections::VecDeque;
use std::sync::Arc;

use super::node::{Node, is_heavy};
use crate::base::KeyRange;
use crate::base::sync::{Counter, Mutex, Ordering::Relaxed};
use crate::index::Debt;
use crate::index::owed::Owing;
use crate::run::ScanHabits;

/// The price of a compaction of all runs is 1/`PRICE` of its bytes.
const PRICE: u64 = 2;
/// The price of a compaction of the newer runs is 1/`PRICE_OF_NEWER` of its bytes.
const PRICE_OF_NEWER: u64 = 4;
/// Newer runs count as at least 1/`LEAST` of the oldest run, because a compaction also costs what does not depend on its
/// bytes.
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

    /// Notes that a scan has read `spare` bytes more than it would have read if all runs on the path to `leaf` were one
    /// run.
    pub(super) fn note(&self, leaf: &Node, path: PathSize, spare: u64) {
        debug_assert!(leaf.is_leaf(), "scans read leaves");
        if !self.compact {
            return;
        }
        let PathSize { runs, oldest, newer } = path;
        let separate = runs > 2 && !is_heavy(oldest, newer);
        let to_newer = if separate { spare - spare / (runs as u64 - 1) } else { 0 };
        if pays(&leaf.paid.whole, spare - to_newer, (oldest + newer) / PRICE) {
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
                if other.keeps_oldest && !keeps_oldest && other.range == leaf.range {
                    self.owing.change(|own| own.optional_bytes += bytes.saturating_sub(other.bytes));
                    (other.keeps_oldest, other.bytes) = (false, bytes.max(other.bytes));
                }
            }
            None => {
                wanted.push_back(Wanted { range: leaf.range.clone(), keeps_oldest, bytes });
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

/// Adds `spare` to a counter. If the counter reaches the price, this takes everything from it and returns true.
fn pays(counter: &Counter, spare: u64, price: u64) -> bool {
    let price = price.max(1);
    // Of several scans that reach the price at the same time, the first one takes all.
    counter.fetch_add(spare, Relaxed) + spare >= price && counter.swap(0, Relaxed) >= price
}
