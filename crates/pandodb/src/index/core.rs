//! The shared parts of the store that an index uses, and the type of sealed memtables.

use std::sync::Arc;

use super::owed;
use super::stored::Repairs;
use crate::base::sync::{AtomicU64, Ordering::Relaxed};
use crate::base::{KeyspaceId, OwnerId, Seqno};
use crate::memtable::{ChunkPool, Memtable};
use crate::pool::Pool;
use crate::rows::RowCache;
use crate::space::DataFile;

/// A memtable that accepts no more writes and is passed to an index.
#[derive(Clone)]
pub struct SealedBatch {
    /// The messages.
    pub memtable: Arc<Memtable>,
    /// Every message of the keyspace up to this seqno is in this batch or in an older batch.
    pub through: Seqno,
    /// The bytes of debt that count until the batch is packed. This number is constant, unlike the memory of the
    /// memtable.
    pub bytes: u64,
    /// Values of at most this many bytes are stored inside the index, next to their keys. The index may store longer
    /// values outside.
    pub inline_bytes: usize,
}

impl SealedBatch {
    /// A batch for a memtable that contains the last messages up to `through`. All values are stored inside the index.
    pub fn new(memtable: Arc<Memtable>, through: Seqno) -> SealedBatch {
        SealedBatch { bytes: memtable.bytes() as u64, memtable, through, inline_bytes: usize::MAX }
    }

    /// Sets [`SealedBatch::inline_bytes`].
    #[must_use]
    pub fn with_inline_bytes(self, inline_bytes: usize) -> SealedBatch {
        SealedBatch { inline_bytes, ..self }
    }
}

/// The parts of the store that an index uses.
#[derive(Clone)]
pub struct Core {
    /// The data file.
    pub data: Arc<DataFile>,
    /// The buffer pool.
    pub pool: Arc<Pool>,
    /// The memory of memtables.
    pub chunks: Arc<ChunkPool>,
    /// The row cache.
    pub rows: Arc<RowCache>,
    /// The source of identities of runs and metadata blocks.
    pub ids: Arc<IdSource>,
    /// Whether the store is open for writing. If so, both copies of a metadata block are read, to repair a damaged
    /// copy.
    pub repair: bool,
    /// The damaged copies of metadata blocks that the opening of the store found. The core repairs them once all pages
    /// are marked.
    pub repairs: Arc<Repairs>,
    /// The account to which the index adds its own debt.
    pub share: owed::Share,
}

impl Core {
    /// The parts that the index of keyspace `id` uses.
    pub fn of(&self, id: KeyspaceId) -> Core {
        let share = owed::Share { owed: self.share.owed.clone(), id };
        Core { share, ..self.clone() }
    }
}

/// Assigns identities that are never reused within a store.
#[derive(Debug)]
pub struct IdSource(AtomicU64);

impl IdSource {
    /// Makes a source whose next identity is `next`.
    pub fn new(next: u64) -> IdSource {
        IdSource(AtomicU64::new(next.max(1)))
    }

    /// A new identity.
    pub fn next(&self) -> OwnerId {
        OwnerId(self.0.fetch_add(1, Relaxed))
    }

    /// The next identity, which a superblock records.
    pub fn peek(&self) -> u64 {
        self.0.load(Relaxed)
    }
}
