//! What an index is built on and fed with: the shared parts of the store, and sealed memtables.

use std::sync::Arc;

use super::owed;
use crate::base::sync::{AtomicU64, Ordering::Relaxed};
use crate::base::{KeyspaceId, OwnerId, Seqno};
use crate::memtable::Memtable;
use crate::pool::Pool;
use crate::rows::RowCache;
use crate::space::DataFile;

/// A memtable that takes no more writes, handed over for good.
#[derive(Clone)]
pub struct SealedBatch {
    /// The messages.
    pub memtable: Arc<Memtable>,
    /// Every message of the keyspace up to here is in this batch or an older one.
    pub through: Seqno,
    /// What packing it counts as, in bytes of debt. Fixed, unlike the memory that the memtable takes.
    pub bytes: u64,
}

impl SealedBatch {
    /// A batch of a memtable that holds the last messages up to `through`.
    pub fn new(memtable: Arc<Memtable>, through: Seqno) -> SealedBatch {
        SealedBatch { bytes: memtable.bytes() as u64, memtable, through }
    }
}

/// What an index stands on.
#[derive(Clone)]
pub struct Core {
    /// The data file.
    pub data: Arc<DataFile>,
    /// The buffer pool.
    pub pool: Arc<Pool>,
    /// The row cache.
    pub rows: Arc<RowCache>,
    /// Hands out identities of runs and trunk nodes.
    pub ids: Arc<IdSource>,
    /// The store is open for writing: a damaged copy of a metadata block is written anew when it is met.
    pub repair: bool,
    /// Where the index that is built on this adds what it owes.
    pub share: owed::Share,
}

impl Core {
    /// The same for the index of keyspace `id`.
    pub fn of(&self, id: KeyspaceId) -> Core {
        let share = owed::Share { owed: self.share.owed.clone(), id };
        Core { share, ..self.clone() }
    }
}

/// The source of identities that are never reused within a store.
#[derive(Debug)]
pub struct IdSource(AtomicU64);

impl IdSource {
    /// The next identity is `next`.
    pub fn new(next: u64) -> IdSource {
        IdSource(AtomicU64::new(next.max(1)))
    }

    /// An identity that nobody had before.
    pub fn next(&self) -> OwnerId {
        OwnerId(self.0.fetch_add(1, Relaxed))
    }

    /// The identity that will be given out next: what a superblock records.
    pub fn peek(&self) -> u64 {
        self.0.load(Relaxed)
    }
}
