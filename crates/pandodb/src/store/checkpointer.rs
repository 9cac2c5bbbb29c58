//! [`Checkpointer`] holds the durable root, and the request for the next checkpoint.
//!
//! Lock order: `turn` → `root`. Creating or dropping a keyspace takes only `root`. Therefore creations, drops and
//! checkpoints never run concurrently.

use super::catalog::{Catalog, most_bytes_of};
use crate::base::sync::{AtomicBool, AtomicU64, Mutex, MutexGuard, Ordering::Relaxed};
use crate::base::{Extent, Seqno};
use crate::space::Superblock;

/// The state of checkpoints.
pub(crate) struct Checkpointer {
    pub root: Mutex<DurableRoot>,
    /// This lock is held by the thread that takes or prepares a checkpoint for background work.
    turn: Mutex<()>,
    due: AtomicBool,
    /// Bytes of memtables packed, and of pages that merges of sorted loads have written or replaced, since the last
    /// checkpoint began.
    uncovered: AtomicU64,
    /// Bytes of log of direct writes since the cut of the last checkpoint.
    direct: AtomicU64,
    /// The bytes of pages to write with which a checkpoint before a direct write found the disk full; 0 if the last one
    /// succeeded.
    pub(super) failed_with: AtomicU64,
    /// The old pages of large values that the replay has copied and whose log no checkpoint has covered yet.
    pub(super) moved: Mutex<Vec<Extent>>,
}

/// The durable root: the state of the last checkpoint on disk.
pub(crate) struct DurableRoot {
    /// The superblock that was written last.
    pub superblock: Superblock,
    /// The catalogue of that superblock.
    pub catalog: Catalog,
    /// The older superblock needs only the log above this seqno.
    pub older_through: Seqno,
    /// The id of the next keyspace. It is larger than the `next_id` of the catalogue while a creation is only in the
    /// log.
    pub next_id: u32,
    /// Names of dropped keyspaces that the catalogue of the older superblock still contains.
    pub dropped: Vec<String>,
    /// The number of creations that are only in the log.
    pub logged: u64,
    /// The maximum number of bytes that these creations will take in the catalogue.
    pub logged_bytes: u64,
}

impl DurableRoot {
    /// The maximum number of bytes that the next catalogues will take, if no keyspace is created or altered.
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
    /// The state for a store that is being opened.
    pub(crate) fn new(root: DurableRoot) -> Checkpointer {
        assert!(root.logged == 0 && root.dropped.is_empty(), "a root that was just read equals its superblock");
        Checkpointer {
            root: Mutex::new(root),
            turn: Mutex::new(()),
            due: AtomicBool::new(false),
            uncovered: AtomicU64::new(0),
            direct: AtomicU64::new(0),
            failed_with: AtomicU64::new(0),
            moved: Mutex::default(),
        }
    }

    /// Requests a checkpoint soon.
    pub(crate) fn request(&self) {
        self.due.store(true, Relaxed);
    }

    /// Whether a checkpoint was requested and has not begun yet.
    pub(crate) fn is_due(&self) -> bool {
        self.due.load(Relaxed)
    }

    /// Accepts the request for a checkpoint, which removes the request. Returns whether there was a request. REQUIRES:
    /// if there was a request, the caller takes a checkpoint or repeats the request.
    pub(crate) fn accept(&self) -> bool {
        self.due.swap(false, Relaxed)
    }

    /// Waits until no other thread has the turn, and takes it.
    pub(crate) fn wait_for_turn(&self) -> MutexGuard<'_, ()> {
        self.turn.lock()
    }

    /// Takes the turn, if no other thread has it.
    pub(crate) fn try_turn(&self) -> Option<MutexGuard<'_, ()>> {
        self.turn.try_lock()
    }

    /// Records that a memtable of `bytes` bytes was packed, or that a merge has written or replaced `bytes` bytes.
    /// Returns the bytes that no checkpoint covers yet.
    pub(crate) fn note_packed(&self, bytes: u64) -> u64 {
        self.uncovered.fetch_add(bytes, Relaxed) + bytes
    }

    /// Bytes that were packed or merged and that no checkpoint covers yet.
    pub(crate) fn uncovered(&self) -> u64 {
        self.uncovered.load(Relaxed)
    }

    /// Records `bytes` bytes of log of direct writes that are applied. Returns the bytes since the last checkpoint.
    pub(crate) fn note_direct(&self, bytes: u64) -> u64 {
        self.direct.fetch_add(bytes, Relaxed) + bytes
    }

    /// Bytes of log of direct writes since the last checkpoint. If it is 0, the root holds all direct writes that were
    /// noted.
    pub(crate) fn direct(&self) -> u64 {
        self.direct.load(Relaxed)
    }

    /// Returns the bytes of log of direct writes that a checkpoint covers whose cut is determined after this call. If
    /// the checkpoint fails, the caller notes them again.
    pub(crate) fn take_direct(&self) -> u64 {
        self.direct.swap(0, Relaxed)
    }

    /// Records that a checkpoint begins. The checkpoint covers everything that was packed before this call. REQUIRES:
    /// the caller has the turn.
    pub(crate) fn begin(&self) {
        self.uncovered.store(0, Relaxed);
    }
}
