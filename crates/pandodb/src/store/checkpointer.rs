//! [`Checkpointer`]: the durable root, and when the next checkpoint is due.
//!
//! Lock order: `turn` → `root`. Creation and drop of keyspaces take `root` alone, so each excludes the others and every
//! checkpoint.

use super::catalog::{Catalog, most_bytes_of};
use crate::base::Seqno;
use crate::base::sync::{AtomicBool, AtomicU64, Mutex, MutexGuard, Ordering::Relaxed};
use crate::space::Superblock;

/// The state of checkpoints.
pub(crate) struct Checkpointer {
    pub root: Mutex<DurableRoot>,
    /// Held by the thread that takes a checkpoint which background work asked for.
    turn: Mutex<()>,
    due: AtomicBool,
    /// Bytes of memtables packed since the last checkpoint began.
    uncovered: AtomicU64,
}

/// The durable root: the state of the last checkpoint on disk.
pub(crate) struct DurableRoot {
    /// The superblock that was written last,
    pub superblock: Superblock,
    /// and its catalogue.
    pub catalog: Catalog,
    /// The older superblock needs the log above this.
    pub older_through: Seqno,
    /// The id of the next keyspace. Ahead of the catalogue's while a creation is in the log only.
    pub next_id: u32,
    /// Names that the older superblock's catalogue still holds, of keyspaces that were dropped.
    pub dropped: Vec<String>,
    /// Creations that are in the log only.
    pub logged: u64,
    /// The most bytes that they will take in the catalogue.
    pub logged_bytes: u64,
}

impl DurableRoot {
    /// The most bytes that the next catalogues will take, if no keyspace is created or altered.
    pub(crate) fn most_catalog_bytes(&self) -> u64 {
        most_bytes_of(&self.catalog, self.superblock.catalog_len) + self.logged_bytes
    }

    /// Replaces the root after a checkpoint whose superblock is durable.
    pub(crate) fn replace(&mut self, superblock: Superblock, catalog: Catalog) {
        assert!(superblock.generation > self.superblock.generation, "superblocks are numbered in order");
        assert!(superblock.durable >= self.superblock.durable, "what is durable stays durable");
        assert!(
            catalog.cut >= self.catalog.cut && catalog.next_id >= self.catalog.next_id,
            "a checkpoint forgets nothing"
        );
        self.superblock = superblock;
        self.catalog = catalog;
    }
}

impl Checkpointer {
    /// Of a store that is being opened.
    pub(crate) fn new(root: DurableRoot) -> Checkpointer {
        assert!(root.logged == 0 && root.dropped.is_empty(), "a root that was just read equals its superblock");
        Checkpointer {
            root: Mutex::new(root),
            turn: Mutex::new(()),
            due: AtomicBool::new(false),
            uncovered: AtomicU64::new(0),
        }
    }

    /// Asks for a checkpoint soon.
    pub(crate) fn request(&self) {
        self.due.store(true, Relaxed);
    }

    /// Whether a checkpoint was asked for and has not begun.
    pub(crate) fn is_due(&self) -> bool {
        self.due.load(Relaxed)
    }

    /// Withdraws the request for a checkpoint; returns whether there was one. REQUIRES: the caller then takes one, or asks
    /// again.
    pub(crate) fn accept(&self) -> bool {
        self.due.swap(false, Relaxed)
    }

    /// The turn, when no other thread has it.
    pub(crate) fn wait_for_turn(&self) -> MutexGuard<'_, ()> {
        self.turn.lock()
    }

    /// The turn, if no other thread has it.
    pub(crate) fn try_turn(&self) -> Option<MutexGuard<'_, ()>> {
        self.turn.try_lock()
    }

    /// A memtable of so many bytes was packed: returns the bytes that no checkpoint covers yet.
    pub(crate) fn note_packed(&self, bytes: u64) -> u64 {
        self.uncovered.fetch_add(bytes, Relaxed) + bytes
    }

    /// Bytes of memtables that were packed and that no checkpoint covers yet.
    pub(crate) fn uncovered(&self) -> u64 {
        self.uncovered.load(Relaxed)
    }

    /// A checkpoint begins: it covers what was packed before. REQUIRES: the caller has the turn.
    pub(crate) fn begin(&self) {
        self.uncovered.store(0, Relaxed);
    }
}
