//! [`Engine`] is an open store. It consists of parts that do not depend on each other. In the picture, the row above
//! the parts shows the modules with the procedures that use several parts.
//!
//! ```text
//!   handles      Store, Keyspace, Batch, Range, Snapshot
//!                   │
//!   procedures   commit · large_values · admission · sealing · turns · relief · checkpoint · create · waiting · recover
//!                   │
//!   parts        Writer · Keyspaces · Checkpointer · Background · Pressure · Reserve · Access · Folds
//!                   │
//!   layers below index · memtable · wal · space · device
//! ```
//!
//! Lock order: `gate` (shared) → a turn of the checkpointer → its durable root (checkpoint, create, drop) → a stream's
//! append lock (commit) → the sequencer → the table of keyspaces → an index's `inner` → its `queue` → the data file's
//! map. A thread that applies a commit holds none of these locks, except its stream's append lock until its record is
//! in the buffer. The reason is that a thread that holds the sequencer may wait for the ticket of this commit
//! ([`Writer::quiesce`]). Readers take none of these locks. The only exception is the lock of the data file's map,
//! which a reader takes if it drops the last reference to a run.

use std::collections::HashMap;
use std::sync::Arc;

use super::access::Access;
use super::background::Background;
use super::checkpointer::Checkpointer;
use super::config::Config;
use super::dead_ranges::Allowance;
use super::folds::Folds;
use super::keyspaces::Keyspaces;
use super::pressure::Pressure;
use super::queues::Queues;
use super::reserve::Reserve;
use super::snapshot::Snapshots;
use super::tallies::Figures;
use super::writer::Writer;
use crate::base::sync::{AtomicBool, Mutex, RwLock};
use crate::base::{Error, Result};
use crate::device::{Device, LockGuard};
use crate::index::{Core, Debt};
use crate::memtable::ChunkPool;
use crate::resolve::MergeOperator;
use crate::wal::Log;

/// One open store.
pub(crate) struct Engine {
    pub config: Config,
    pub device: Arc<dyn Device>,
    /// The data file and the caches, which all indexes share.
    pub core: Core,
    /// The memory of memtables.
    pub chunks: Arc<ChunkPool>,
    pub operators: HashMap<String, Arc<dyn MergeOperator>>,
    pub snapshots: Arc<Snapshots>,
    pub keyspaces: Keyspaces,
    pub writer: Writer,
    pub checkpointer: Checkpointer,
    pub background: Background,
    pub pressure: Pressure,
    pub reserve: Reserve,
    pub figures: Figures,
    /// The order of threads that update the same keys.
    pub queues: Queues,
    /// The values of keys that have many operands in memtables.
    pub folds: Folds,
    /// The memory for the dead ranges of the keyspaces.
    pub dead_ranges: Arc<Allowance>,
    /// The damage at which the log was cut, in a store that was opened for a salvage.
    pub log_cut: Option<Error>,
    /// Whether the handles may be used.
    pub access: Access,
    /// Whether a close has begun. A close packs all memtables.
    pub closing: AtomicBool,
    /// A lock that threads hold shared while they write to the data file without the sequencer. A close takes it
    /// exclusively before it releases the store's lock.
    pub gate: RwLock<()>,
    /// The lock of the store on its directory; `None` when the store is closed.
    pub lock: Mutex<Option<Box<dyn LockGuard>>>,
}

impl Engine {
    /// Returns the log, or fails if the store accepts no writes.
    #[inline]
    pub(crate) fn check_writable(&self) -> Result<&Log> {
        self.access.check()?;
        self.writer.poison.check()?;
        self.writer.log()
    }

    /// Records the first failure. No later write is accepted.
    pub(crate) fn poison(&self, error: &Error) {
        self.writer.poison.set(error);
    }

    /// Whether the store may be written to: it is neither poisoned nor closed.
    pub(super) fn is_writable(&self) -> bool {
        !self.writer.poison.is_set() && !self.access.is_closed()
    }

    /// Bytes of the log that are on the disk; 0 in a store that was opened for reading.
    pub(super) fn retained_log_bytes(&self) -> u64 {
        self.writer.log.as_ref().map_or(0, Log::retained_bytes)
    }

    /// The debt of all keyspaces. Indexes keep the sum up to date, so this call takes no lock and walks no keyspaces.
    #[inline]
    pub(crate) fn debt(&self) -> Debt {
        self.core.share.owed.sum()
    }
}
