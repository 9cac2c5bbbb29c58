//! Sealing: a full memtable becomes immutable and is passed to the index of its keyspace, which packs it.
//!
//! ```text
//!   active memtable ── sequencer quiesced: the cut is exact ──▶ sealed, handed to the index ── packed ──▶ retired
//!   fresh memtable  ◀──────────────────────────────────────────────┘
//! ```
//!
//! All keyspaces share one memory limit for memtables ([`Engine::seal_at`]). If no write comes for some time, memtables
//! above the least limit are sealed, so that the pool gets their memory back. Locks: first the sequencer, which is
//! quiesced, then the table of keyspaces.

use std::cmp::Reverse;
use std::sync::Arc;

use super::admission::MAX_SEALED;
use super::engine::Engine;
use super::state::KeyspaceState;
use super::writer::Quiesced;
use crate::base::sync::Ordering::Relaxed;
use crate::index::SealedBatch;
use crate::memtable::Memtable;

/// Memtables are sealed if their large values are this number of times as large as their memory limit, because a replay
/// has to read these values.
const BLOB_FACTOR: u64 = 8;
/// If the memtables are small, several memtables are sealed at a time, which together have at least 1/SEALED_AT_ONCE of
/// the memory limit.
const SEALED_AT_ONCE: u64 = 4;
/// The fixed memory of all active memtables ([`Memtable::LEAST_BYTES`] each) may take 1/MANY_SHARE of the memory budget
/// before some of them are sealed.
const MANY_SHARE: u64 = 4;

const _: () = assert!(BLOB_FACTOR > 0 && SEALED_AT_ONCE > 0 && MANY_SHARE > 0);

impl Engine {
    /// The memory limit of the active memtables in bytes. Memtables that wait to be packed take their memory from the
    /// same part of the budget, so the limit falls while they wait. It does not fall below `Config::least_memtable`,
    /// because each seal has a fixed cost. On a full disk it has this least value, because a smaller memtable needs
    /// less space when it is packed.
    pub(super) fn seal_at(&self) -> u64 {
        let (least, largest) = (self.config.least_memtable() as u64, self.config.largest_memtable() as u64);
        if self.pressure.pressed.load(Relaxed) || self.reserve.is_short() {
            return least;
        }
        let shared = (largest + largest / 2).saturating_sub(self.debt().memory_bytes);
        let limit = largest.min(shared).max(least);
        assert!((least..=largest).contains(&limit), "{limit} bytes");
        limit
    }

    /// Whether the active memtables have reached their memory limit, or the fixed memory of all active memtables takes
    /// too much of the budget.
    pub(crate) fn is_filled(&self) -> bool {
        let limit = self.seal_at();
        let active = self.keyspaces.active();
        let least = self.keyspaces.occupied() * Memtable::LEAST_BYTES as u64;
        active >= limit || active + least >= limit + self.config.memory_budget as u64 / MANY_SHARE
    }

    /// Whether memtables must be sealed. Returns `None` if no memtable must be sealed. Otherwise the value says whether
    /// all memtables must be sealed, because they refer to too many bytes of large values.
    fn is_full(&self) -> Option<bool> {
        let (least, limit) = (self.config.least_memtable() as u64, self.seal_at());
        let active = self.keyspaces.active();
        let heavy = self.figures.blob_bytes.load(Relaxed) >= least * BLOB_FACTOR;
        if !heavy && !self.is_filled() {
            return None;
        }
        // If too many memtables already wait, do not seal: a larger memtable is better than a longer queue, as long as
        // memory allows it.
        let crowded = self.debt().memory_bytes > limit * MAX_SEALED && active < limit * 2;
        (!crowded).then_some(heavy)
    }

    /// Seals the largest memtables when the active memtables have reached their common limit. Seals all memtables if
    /// they refer to too many bytes of large values. If the memtables are small, the call seals several of them, until
    /// these have a certain fraction of the limit. The reason: each call walks all keyspaces, so there should be few
    /// calls.
    pub(super) fn seal_if_full(&self) {
        if self.is_full().is_none() {
            return;
        }
        let sequencer = self.writer.quiesce();
        // Several threads may find the memtables full, but only the first of these threads seals.
        let Some(heavy) = self.is_full() else { return };
        if heavy {
            self.keyspaces.all().iter().for_each(|keyspace| self.seal(&sequencer, keyspace));
            self.figures.blob_bytes.store(0, Relaxed);
            if self.checkpointer.direct() > 0 {
                self.request_checkpoint();
            }
            return;
        }
        let least = Memtable::LEAST_BYTES as u64;
        let sized = |keyspace: Arc<KeyspaceState>| (keyspace.active_bytes() as u64, keyspace);
        let mut keyspaces: Vec<_> =
            self.keyspaces.all().into_iter().map(sized).filter(|(bytes, _)| *bytes > 0).collect();
        keyspaces.sort_by_key(|(bytes, keyspace)| (Reverse(*bytes), keyspace.id));
        let mut sealed = 0;
        for (bytes, keyspace) in keyspaces {
            self.seal(&sequencer, &keyspace);
            sealed += bytes + least;
            if sealed >= self.seal_at() / SEALED_AT_ONCE {
                break;
            }
        }
        if sequencer.is_whole() {
            self.keyspaces.check_sums();
        }
    }

    /// Seals all memtables that are not empty. Returns whether there are any.
    pub(super) fn seal_filled(&self) -> bool {
        let sequencer = self.writer.quiesce();
        let keyspaces = self.keyspaces.all();
        let filled: Vec<_> = keyspaces.iter().filter(|keyspace| keyspace.active_bytes() > 0).collect();
        filled.iter().for_each(|keyspace| self.seal(&sequencer, keyspace));
        !filled.is_empty()
    }

    /// Seals the memtable of a keyspace and passes it to the index. REQUIRES: the sequencer is quiesced, so that the
    /// cut is exact.
    pub(crate) fn seal(&self, sequencer: &Quiesced<'_>, keyspace: &KeyspaceState) {
        let old = keyspace.containers.load_full();
        // A memtable that holds only a part of a failed commit must not become a run.
        if old.active.is_empty() || !sequencer.is_whole() {
            return;
        }
        let through = sequencer.last();
        debug_assert!(
            old.active.seqno_range().is_some_and(|(low, high)| low.0 > old.active.id() && high <= through),
            "a memtable holds what was written between two seals"
        );
        let fresh = Arc::new(Memtable::new(through.0, self.chunks.clone()));
        self.keyspaces.charge(keyspace, fresh.bytes() as u64);
        let batch = SealedBatch::new(old.active.clone(), through).with_inline_bytes(keyspace.blob_threshold);
        keyspace.push_sealed(batch.clone(), fresh);
        keyspace.index.ingest(batch);
        self.background.scheduler.wake();
    }
}
