//! [`Scans`]: what the scans of a tree cost, and the leaves that are compacted because of it.
//!
//! ```text
//!   a scan of a leaf ──first leaves of runs──▶ Node::scanned ── half of a compaction's bytes ──▶ wanted ──▶ Trunk::forced
//! ```
//!
//! A scan reads at least one leaf block of each run on the path to its keys. If these runs were compacted into one run, the
//! scan would read only one such first block. So the first blocks of the other runs are *unneeded*. Further blocks of a run
//! hold rows that the scan would read after a compaction, too.
//!
//! 1. Each scan adds the bytes of the first block of each run but one to a counter of the leaf.
//! 2. When the counter reaches half of the bytes of the compaction, the leaf is *wanted*, and the counter starts again at
//!    zero. So such compactions process at most twice the bytes of the unneeded blocks that scans have read, whatever the
//!    pattern of scans and writes.
//! 3. If there are more than two runs, and all runs but the leaf's oldest one are small, the compaction leaves out the
//!    oldest run. Its price is a quarter of its bytes, because it saves all unneeded blocks but one. The last one is saved
//!    when further scans have paid for a compaction of both runs that remain.
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
use crate::base::sync::{Mutex, Ordering::Relaxed};
use crate::index::Debt;
use crate::index::owed::Owing;
use crate::run::ScanHabits;

/// A leaf is wanted when its scans have read unneeded blocks of 1/`PRICE` of the bytes of its compaction.
const PRICE: u64 = 2;
/// The same for a compaction that leaves out the oldest run. Such compactions are cheaper for what they save.
const PRICE_OF_SMALL: u64 = 4;

/// The costs of the scans of one tree. All roots of the tree share them.
pub(super) struct Scans {
    pub(super) habits: ScanHabits,
    owing: Arc<Owing>,
    /// Whether scans cause compactions.
    compact: bool,
    wanted: Mutex<VecDeque<Wanted>>,
}

/// The runs that a scan of a leaf reads: those of the leaf, and those above it that are live for the leaf.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct PathSize {
    /// The number of the runs.
    pub(super) runs: usize,
    /// Their bytes in the leaf's range.
    pub(super) bytes: u64,
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
        let oldest = leaf.branches.first().map_or(0, |branch| branch.bytes);
        let small = path.bytes.saturating_sub(oldest);
        let keeps_oldest = path.runs > 2 && !is_heavy(oldest, small);
        let (bytes, share) = if keeps_oldest { (small, PRICE_OF_SMALL) } else { (path.bytes, PRICE) };
        let price = (bytes / share).max(1);
        if leaf.scanned.fetch_add(spare, Relaxed) + spare < price || !self.compact {
            return;
        }
        // Of several scans that arrive here at the same time, the first one takes all.
        if leaf.scanned.swap(0, Relaxed) < price {
            return;
        }
        let mut wanted = self.wanted.lock();
        if wanted.iter().all(|wanted| !wanted.range.overlaps(&leaf.range)) {
            let bytes = bytes.max(1);
            wanted.push_back(Wanted { range: leaf.range.clone(), keeps_oldest, bytes });
            self.owing.change(|own| own.optional_bytes += bytes);
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
