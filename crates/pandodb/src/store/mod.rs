//! The store: what users hold. A store is a directory with keyspaces; all layers below meet here.
//!
//! | file | what |
//! | --- | --- |
//! | `options`, `bounds` | the builder, options of keyspaces, durability; what settings may be |
//! | `open`, `generations`, `checkpoint`, `catalog` | from a directory to a running store, and back to a durable root |
//! | `reserve`, `pressure` | what a full disk refuses, and how space comes back |
//! | `commit`, `watermark` | the sequencer: the life of a write; how far commits beside each other are applied |
//! | `access` | whether the handles may be used |
//! | `engine` | what an open store consists of, background work, poison |
//! | `batch`, `keyspace` | the handles through which one writes |
//! | `read`, `at`, `range`, `scan`, `value`, `snapshot` | the life of a read |
//! | `backup`, `stats`, `roots`, `check` | tools |
//!
//! Handles (`Store`, `Keyspace`, `Snapshot`) are cheap clones of an `Arc`; the last one to go closes the store.

mod access;
mod at;
mod backup;
mod batch;
mod bounds;
pub mod catalog;
mod checkpoint;
mod commit;
mod create;
pub(crate) mod engine;
mod extents;
mod generations;
pub(crate) mod keyspace;
mod keyspaces;
mod open;
mod options;
mod pressure;
mod range;
pub(crate) mod read;
mod reserve;
pub(crate) mod roots;
mod scan;
mod snapshot;
mod stats;
mod value;
mod watermark;

use std::path::Path;
use std::sync::Arc;

pub use self::at::KeyspaceAt;
pub use self::backup::BackupReport;
pub use self::batch::{Batch, MAX_BATCH};
pub use self::keyspace::Keyspace;
pub(crate) use self::options::open_directory;
pub use self::options::{Durability, KeyspaceOptions, StoreBuilder};
pub use self::range::{Keys, Range};
pub use self::snapshot::Snapshot;
pub use self::stats::{BytesByCause, KeyspaceStats, Latency, MemoryStats, StoreStats};
pub use self::value::Value;

use self::engine::Shared;
#[cfg(doc)]
use crate::base::Error;
use crate::base::{Result, Seqno};
use crate::check::VerifyReport;
use crate::index::IndexOptions;

/// An open store. Cheap to clone, usable from any thread; one process writes at a time.
///
/// # Errors of every operation
///
/// Whatever an operation says of its own errors, each one also fails with [`Error::Closed`] on the handles of a store that one of them
/// has closed, with [`Error::Forked`] in a forked child, and with [`Error::Reentrant`] inside a [`MergeOperator`](crate::MergeOperator).
///
/// # Forks
///
/// A store belongs to the process that opened it. In a child that was forked since, every operation on its handles fails with
/// [`Error::Forked`], and dropping them there does nothing to the parent's store; values that were read before the fork stay valid.
/// A child may open stores of its own, but only if no store was busy in the parent at the moment of the fork: otherwise they may wait for
/// ever for a lock that a thread of the parent held. To be safe, fork before you open the first store. As long as it lives and has not dropped the inherited handles it keeps the lock of the
/// parent's store, should the parent be killed; a parent that closes its store releases the lock whatever the child does. Another
/// program that a child becomes (`exec`), as `std::process::Command` has it, inherits nothing.
///
/// # Limits and signals of the process
///
/// Where the process has too many open files, a write that needs a new one is refused with [`Error::TooManyFiles`], and the store goes
/// on; one with 2 streams has up to 20 open. A limit on the size of files (`ulimit -f`) makes the system send SIGXFSZ, which ends the
/// process, as it does any other that writes files: a host that would rather see an error ignores that signal, and gets
/// [`Error::Io`], after which the store refuses writes. Nothing acknowledged is lost either way. What a mapped log means for
/// SIGBUS stands at [`StoreBuilder::mapped_log`].
///
/// # Example
///
/// ```
/// let dir = tempfile::tempdir()?;
/// let path = dir.path().join("demo.pando");
/// let store = pandodb::Store::open(&path)?;
/// let events = store.keyspace("events")?;
/// events.put(b"2024-01-01", b"first")?;
/// let then = store.snapshot();
/// events.delete(b"2024-01-01")?;
/// assert!(events.get(b"2024-01-01")?.is_none());
/// assert!(events.at(&then).contains(b"2024-01-01")?);
/// store.close()?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone)]
pub struct Store {
    pub(crate) engine: Arc<Shared>,
}

impl std::fmt::Debug for Store {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Store").field("path", &self.engine.device.path()).finish()
    }
}

/// A keyspace of a store, without opening it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyspaceInfo {
    /// The name.
    pub name: String,
    /// The identity.
    pub id: u32,
    /// The index that holds its data, with its mode and all options that are not the default.
    pub index: IndexOptions,
    /// The merge operator that it was created with.
    pub operator: Option<String>,
    /// Whether that operator is registered; without it merges can be verified and dumped, not read.
    pub operator_registered: bool,
    /// Values of more bytes than this are stored in extents of their own.
    pub blob_threshold: usize,
}

impl Store {
    /// Opens the store in a directory with the default options, creating it if it does not exist.
    ///
    /// # Errors
    /// As [`StoreBuilder::open`].
    pub fn open(path: impl AsRef<Path>) -> Result<Store> {
        Store::builder(path).open()
    }

    /// Options for opening the store in a directory.
    pub fn builder(path: impl AsRef<Path>) -> StoreBuilder {
        StoreBuilder::new(path.as_ref())
    }

    /// Opens the keyspace of that name, or **creates it** with the default options if there is none. Where a missing
    /// keyspace is a mistake, [`Store::open_keyspace`] finds it without creating it.
    ///
    /// An existing keyspace is opened as it was created, with its merge operator if it has one.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] for an impossible name; what a write can fail with, if it has to be created.
    pub fn keyspace(&self, name: &str) -> Result<Keyspace> {
        if let Some(keyspace) = self.open_keyspace(name)? {
            return Ok(keyspace);
        }
        self.keyspace_with(name, KeyspaceOptions::default())
    }

    /// Opens the keyspace of that name, which must have been created with these options, or creates it with them. A creation
    /// is a record of the log, synced before this returns.
    ///
    /// What must agree with an existing keyspace: the name and version of the merge operator (also its absence:
    /// `KeyspaceOptions::new()` does not open a keyspace of counters, [`Store::keyspace`] does), and whatever `options` set of the
    /// index, its options and the [`KeyspaceOptions::blob_threshold`].
    ///
    /// ```
    /// let dir = tempfile::tempdir()?;
    /// let path = dir.path().join("s");
    /// use pandodb::{AddU64, KeyspaceOptions, Store};
    /// let store = Store::open(&path)?;
    /// store.keyspace_with("views", KeyspaceOptions::new().merge(AddU64))?;
    /// assert!(store.keyspace_with("views", KeyspaceOptions::new()).is_err());
    /// assert_eq!(store.keyspace("views")?.operator(), Some("add_u64"));
    /// assert!(store.open_keyspace("veiws")?.is_none()); // creates nothing
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] for an impossible name, or if the keyspace exists and does not agree with `options`. What
    /// a write can fail with, if it has to be created; the next opening may then find it, empty.
    pub fn keyspace_with(&self, name: &str, options: KeyspaceOptions) -> Result<Keyspace> {
        self.engine.access.check()?;
        let state = match self.engine.find_keyspace(name) {
            Some(state) => state,
            None => self.engine.create_keyspace(name, &options)?,
        };
        state.check_options(&options)?;
        Ok(Keyspace { engine: self.engine.clone(), state })
    }

    /// The keyspace of that name as it was created; `None` if there is none. Creates nothing.
    ///
    /// # Errors
    /// [`Error::Closed`].
    pub fn open_keyspace(&self, name: &str) -> Result<Option<Keyspace>> {
        self.engine.access.check()?;
        Ok(self.engine.find_keyspace(name).map(|state| Keyspace { engine: self.engine.clone(), state }))
    }

    /// All keyspaces, in the order of their creation. None in a forked child.
    pub fn keyspaces(&self) -> Vec<KeyspaceInfo> {
        if self.engine.access.is_inherited() {
            return Vec::new();
        }
        let info = |state: &Arc<keyspace::KeyspaceState>| KeyspaceInfo {
            name: state.name.clone(),
            id: state.id.0,
            index: state.options(),
            operator: state.operator_name.as_ref().map(|(name, _)| name.clone()),
            operator_registered: state.operator_name.is_none() || state.operator.is_some(),
            blob_threshold: state.blob_threshold,
        };
        self.engine.keyspaces.read().values().map(info).collect()
    }

    /// Changes options of a keyspace's index, which it keeps from then on: data that is there stays as it is, and new data follows them
    /// from the next opening of the store on. What `changes` leaves open stays as it was. The type of the index cannot be changed.
    ///
    /// ```
    /// let dir = tempfile::tempdir()?;
    /// use pandodb::{Compression, StbeOptions, Store};
    /// let store = Store::open(dir.path().join("s"))?;
    /// store.keyspace("events")?;
    /// store.alter_keyspace("events", StbeOptions::new().compression(Compression::Lz4))?;
    /// assert_eq!(store.keyspaces()[0].index.value("compression")?, "lz4");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::NoKeyspace`]; [`Error::InvalidArgument`] for another type of index or a value out of bounds; what a checkpoint can fail
    /// with.
    pub fn alter_keyspace(&self, name: &str, changes: impl Into<IndexOptions>) -> Result<()> {
        self.engine.access.check()?;
        self.engine.alter_keyspace(name, &changes.into())
    }

    /// Drops a keyspace with all its data. Its space is given back; open handles to it fail from now on.
    ///
    /// # Errors
    /// [`Error::NoKeyspace`]; what a checkpoint can fail with.
    pub fn drop_keyspace(&self, name: &str) -> Result<()> {
        self.engine.drop_keyspace(name)
    }

    /// An empty batch: writes that become visible and durable together, or not at all.
    pub fn batch(&self) -> Batch {
        Batch::new(self.engine.clone())
    }

    /// A consistent view of all keyspaces as of now.
    pub fn snapshot(&self) -> Snapshot {
        Snapshot(Arc::new(self.engine.snapshots.register()))
    }

    /// Makes every write acknowledged so far as durable as asked.
    ///
    /// # Errors
    /// [`Error::Poisoned`], [`Error::Indeterminate`].
    pub fn persist(&self, durability: Durability) -> Result<()> {
        let log = self.engine.check_writable()?;
        match durability {
            Durability::None => Ok(()),
            Durability::Buffered => log.flush().inspect_err(|e| self.engine.poison(e)),
            Durability::Synced => {
                let last = Seqno(self.engine.quiesce().next.0 - 1);
                self.engine.check_writable()?;
                log.sync(last).inspect_err(|e| self.engine.poison(e))
            }
        }
    }

    /// Moves everything that was written so far from memory and log into the data file, durably: an opening after this replays only what
    /// was written later, and the log before it is deleted. Costs the writing of what is in memory, at most some memtables.
    /// [`Store::close`] does the same; the store takes checkpoints by itself, too, whenever a memtable is full, but leaves what is in
    /// memory there.
    ///
    /// ```
    /// let dir = tempfile::tempdir()?;
    /// let store = pandodb::Store::open(dir.path().join("s"))?;
    /// store.keyspace("k")?.put("a", "b")?;
    /// store.checkpoint()?; // from now on a crash costs the next opening nothing
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::DiskFull`] (nothing is lost, the log keeps what it has), [`Error::Poisoned`], [`Error::Io`].
    pub fn checkpoint(&self) -> Result<()> {
        self.engine.checkpoint_all()
    }

    /// Writes what is in memory as runs and waits for it, without a checkpoint. For benchmarks; users call
    /// [`Store::checkpoint`].
    ///
    /// # Errors
    /// [`Error::Poisoned`], or what the packing failed with.
    #[doc(hidden)]
    pub fn pack(&self) -> Result<()> {
        self.engine.pack()
    }

    /// Waits until all background work is done, then gives freed space back to the file system.
    ///
    /// # Errors
    /// What the background work failed with.
    pub fn settle(&self) -> Result<()> {
        self.engine.settle()
    }

    /// Background work owed, in bytes. 0 in a forked child.
    pub fn debt(&self) -> u64 {
        if self.engine.access.is_inherited() { 0 } else { self.engine.debt().total() }
    }

    /// Copies the store as of now into a new store in directory `to`, while this one stays in use.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] if `to` is a store with keyspaces; what reading and writing can fail with.
    pub fn backup(&self, to: impl AsRef<Path>) -> Result<BackupReport> {
        backup::backup(self, to.as_ref(), None)
    }

    /// As [`Store::backup`], but copies only the keyspaces with these names, all as of the same moment.
    ///
    /// ```
    /// let dir = tempfile::tempdir()?;
    /// # let store = pandodb::Store::open(dir.path().join("s"))?;
    /// store.keyspace("users")?.put("ann", "1")?;
    /// store.keyspace("cache")?.put("page", "…")?;
    /// let report = store.backup_keyspaces(dir.path().join("copy"), &["users"])?;
    /// assert_eq!((report.keyspaces, report.records), (1, 1));
    /// assert!(store.backup_keyspaces(dir.path().join("other"), &["user"]).is_err());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::NoKeyspace`] if one of them does not exist; nothing is created then. As [`Store::backup`].
    pub fn backup_keyspaces(&self, to: impl AsRef<Path>, names: &[impl AsRef<str>]) -> Result<BackupReport> {
        let names: Vec<&str> = names.iter().map(AsRef::as_ref).collect();
        backup::backup(self, to.as_ref(), Some(&names))
    }

    /// As [`Store::backup`], into the store that `target` opens: with its own sizes, on its own device. Operators are to be
    /// registered with `target`.
    ///
    /// # Errors
    /// As [`Store::backup`].
    pub fn backup_with(&self, target: StoreBuilder) -> Result<BackupReport> {
        backup::backup_with(self, target, None)
    }

    /// Reads and checks everything: superblocks, catalogue, every block, every message, the allocation of every page.
    /// Changes nothing.
    ///
    /// # Errors
    /// What keeps it from looking; what it finds wrong is in the report.
    pub fn verify(&self) -> Result<VerifyReport> {
        let access = &self.engine.access;
        access.check()?;
        access.confirm(crate::check::verify(&self.engine))
    }

    /// Figures. Cheap: no I/O but a `stat`.
    ///
    /// # Errors
    /// [`Error::Io`] if the data file cannot be asked for its size.
    pub fn stats(&self) -> Result<StoreStats> {
        let access = &self.engine.access;
        access.check()?;
        access.confirm(self.engine.stats())
    }

    /// Closes the store: moves what is in memory into the data file, as [`Store::checkpoint`] does, and ends the log, so that the
    /// next opening has nothing to replay. On a full disk what does not fit stays in the log, and is replayed. Every other handle,
    /// iterator and snapshot answers [`Error::Closed`] from then on, reads that are under way on other threads included; values
    /// that were read before stay valid. What cannot fail goes on answering from memory: [`Store::keyspaces`], [`Store::debt`],
    /// [`Keyspace::approximate_len`]. Dropping the last handle does the same, but reports no failure.
    ///
    /// # Errors
    /// [`Error::Closed`] if another handle has closed the store or is about to: that one is told how it went. [`Error::Io`], [`Error::Indeterminate`]; [`Error::Poisoned`] after an earlier failure: what was not durable then was
    /// not made durable now.
    pub fn close(self) -> Result<()> {
        self.engine.close()
    }
}
