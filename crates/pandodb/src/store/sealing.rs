//! Sealing: a full memtable becomes immutable, and its keyspace's index gets it to pack.
//!
//! ```text
//!   active memtable ── sequencer quiesced: the cut is exact ──▶ sealed, handed to the index ── packed ──▶ retired
//!   fresh memtable  ◀──────────────────────────────────────────────┘
//! ```
//!
//! All keyspaces share one limit. Locks: the sequencer (quiesced), then the table of keyspaces.

use std::cmp::Reverse;
use std::sync::Arc;

use super::admission::MAX_SEALED;
use super::engine::Engine;
use super::state::KeyspaceState;
use super::writer::Quiesced;
use crate::base::sync::Ordering::Relaxed;
use crate::index::SealedBatch;
use crate::memtable::Memtable;

/// A memtable whose large values take this many times its size is sealed: replay has to read them back.
const BLOB_FACTOR: u64 = 8;
/// If memtables are small, memtables with this fraction of the memory of all of them are sealed at a time.
const SEALED_AT_ONCE: u64 = 4;
/// The fixed memory of all active memtables ([`Memtable::LEAST_BYTES`] each) may take a quarter of the memory budget before some are
/// sealed.
const MANY_SHARE: u64 = 4;

const _: () = assert!(BLOB_FACTOR > 0 && SEALED_AT_ONCE > 0 && MANY_SHARE > 0);

impl Engine {
    /// Whether active memtables have reached their limit of memory, or their fixed memory takes too much of the
    /// budget.
    pub(crate) fn is_filled(&self) -> bool {
        let limit = self.config.memtable() as u64;
        let active = self.keyspaces.active();
        let least = self.keyspaces.occupied() * Memtable::LEAST_BYTES as u64;
        active >= limit || active + least >= limit + self.config.memory_budget as u64 / MANY_SHARE
    }

    /// Whether memtables must be sealed, and whether all of them, because they refer to too many bytes of large
    /// values.
    fn is_full(&self) -> Option<bool> {
        let limit = self.config.memtable() as u64;
        let active = self.keyspaces.active();
        let heavy = self.figures.blob_bytes.load(Relaxed) >= limit * BLOB_FACTOR;
        if !heavy && !self.is_filled() {
            return None;
        }
        // Too many memtables wait already: a larger memtable is better than a longer queue, as long as memory allows
        // it.
        let crowded = self.debt().memory_bytes > limit * MAX_SEALED && active < limit * 2;
        (!crowded).then_some(heavy)
    }

    /// Seals the largest memtables when their common budget is used up, or all if they refer to too many bytes of
    /// large values. Small ones are sealed until together they have a fraction of the limit, since each call walks all
    /// keyspaces.
    pub(super) fn seal_if_full(&self) {
        if self.is_full().is_none() {
            return;
        }
        let sequencer = self.writer.quiesce();
        // Several threads may find the memtables full: only the first of them seals.
        let Some(heavy) = self.is_full() else { return };
        if heavy {
            self.keyspaces.all().iter().for_each(|keyspace| self.seal(&sequencer, keyspace));
            self.figures.blob_bytes.store(0, Relaxed);
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
            if sealed >= self.config.memtable() as u64 / SEALED_AT_ONCE {
                break;
            }
        }
        if sequencer.is_whole() {
            self.keyspaces.check_sums();
        }
    }

    /// Seals a keyspace's memtable and hands it to the index. REQUIRES: the sequencer is quiesced, so that the cut is
    /// exact.
    pub(crate) fn seal(&self, sequencer: &Quiesced<'_>, keyspace: &KeyspaceState) {
        let old = keyspace.containers.load_full();
        // A memtable that holds a part of a failed commit must not become a run.
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
        let batch = SealedBatch::new(old.active.clone(), through);
        keyspace.push_sealed(batch.clone(), fresh);
        keyspace.index.ingest(batch);
        self.background.scheduler.wake();
    }
}
