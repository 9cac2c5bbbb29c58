//! [`Store`] is the handle of an open store.

use std::sync::Arc;

use super::batch::Batch;
use super::keyspace::Keyspace;
use super::options::{Durability, KeyspaceOptions};
use super::shared::Shared;
use super::snapshot::Snapshot;
use super::state::KeyspaceState;
use super::stats::StoreStats;
use super::txn::{self, ReadAsOf, Transaction, TransactionOptions};
#[cfg(doc)]
use crate::StoreBuilder;
#[cfg(doc)]
use crate::base::Error;
use crate::base::Result;
use crate::check::VerifyReport;
use crate::index::IndexOptions;

/// An open store. Cloning a handle is cheap, and any thread may use it. Only one process at a time can have a store
/// open for writing.
///
/// # Errors of every operation
///
/// In addition to the errors that it documents, every operation fails with [`Error::Closed`] after any handle has
/// closed the store, with [`Error::Forked`] in a forked child, and with [`Error::Reentrant`] inside a
/// [`MergeOperator`](crate::MergeOperator).
///
/// # Forks
///
/// A store belongs to the process that opened it. After a fork, every operation on the child's inherited handles fails
/// with [`Error::Forked`]. Dropping these handles in the child does not affect the parent's store, and values that were
/// read before the fork stay valid.
///
/// A child may open stores of its own only if no thread of the parent was using a store at the moment of the fork.
/// Otherwise the child may wait forever for a lock that such a thread held. To be safe, a process should fork before it
/// opens its first store.
///
/// If the parent is killed, the lock of its store stays held until the child exits or drops the inherited handles. A
/// parent that closes its store releases the lock in every case. A program that is started with `exec`, as by
/// `std::process::Command`, inherits nothing.
///
/// # Limits and signals of the process
///
/// * **Open files.** If a write needs another file when the process has reached its limit of open files, the write
///   fails with [`Error::TooManyFiles`], and the store stays usable. A store with 2 log streams has up to 20 files
///   open.
/// * **File size** (`ulimit -f`). When a file would exceed the limit, the system sends SIGXFSZ, which by default ends
///   the process. If the process ignores this signal, the write fails with [`Error::Io`] instead, and the store refuses
///   further writes. In both cases no acknowledged write is lost.
/// * **SIGBUS.** See [`StoreBuilder::mapped_log`].
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

/// The description of a keyspace, as [`Store::keyspaces`] returns it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyspaceInfo {
    /// The name of the keyspace.
    pub name: String,
    /// The id, which is never reused within a store.
    pub id: u32,
    /// The index type, its mode and all options that differ from the defaults.
    pub index: IndexOptions,
    /// The name of the merge operator with which the keyspace was created.
    pub operator: Option<String>,
    /// Whether this operator is registered. Without it, merges can be verified and dumped, but not read.
    pub operator_registered: bool,
    /// Values longer than this, in bytes, are stored in extents of their own.
    pub blob_threshold: usize,
}

impl Store {
    pub(super) fn new(engine: Shared) -> Store {
        assert!(!engine.access.is_closed(), "a store has just been opened");
        assert_eq!(engine.writer.log.is_none(), engine.config.read_only, "a store has a log if it can be written");
        Store { engine: Arc::new(engine) }
    }

    /// Begins a transaction.
    ///
    /// ```
    /// let dir = tempfile::tempdir()?;
    /// let store = pandodb::Store::open(dir.path().join("s"))?;
    /// let accounts = store.keyspace("accounts")?;
    /// accounts.put("ann", "10")?;
    /// let tx = store.begin(Default::default())?;
    /// assert_eq!(tx.get(&accounts, "ann")?.unwrap(), "10");
    /// tx.put(&accounts, "ann", "9")?;
    /// accounts.put("ann", "20")?;
    /// assert!(matches!(tx.commit(), Err(pandodb::Error::Conflict { .. })));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Closed`]. In a store that accepts no writes, the first write of the transaction fails.
    pub fn begin(&self, options: TransactionOptions) -> Result<Transaction> {
        Transaction::begin(&self.engine, options, ReadAsOf::Beginning, Vec::new())
    }

    /// Like [`Store::begin`], but chooses the read point at the first read, as [`Store::transact`] does. This function
    /// is for test harnesses.
    ///
    /// # Errors
    /// The errors of [`Store::begin`].
    #[doc(hidden)]
    pub fn begin_at_first_read(&self, options: TransactionOptions) -> Result<Transaction> {
        Transaction::begin(&self.engine, options, ReadAsOf::FirstRead, Vec::new())
    }

    /// Runs a closure in a transaction and commits it. If another commit has changed what the closure has read, runs it
    /// again, at most 32 times. If the closure returns an error, nothing is written, and the error is returned. The
    /// closure may run several times, so it must not change anything outside of the transaction that cannot be
    /// repeated. Iterators of the transaction should be dropped before the closure returns, because an open iterator
    /// counts as if it had read its whole range.
    ///
    /// The transaction reads the store as of its first read, or as of its beginning if its isolation is
    /// [`Isolation::Snapshot`](crate::Isolation::Snapshot). A transaction that only writes costs little more than a
    /// batch.
    ///
    /// After two conflicts, the call waits before it runs the closure again: it lets other threads commit that have
    /// lost a conflict over the same key. This usually takes some microseconds. The call stops waiting for a key if no
    /// thread that it waits for ends within 8 ms, and later within up to 64 ms.
    ///
    /// ```
    /// let dir = tempfile::tempdir()?;
    /// let store = pandodb::Store::open(dir.path().join("s"))?;
    /// let places = store.keyspace("places")?;
    /// let moved = store.transact(|tx| {
    ///     let Some(guest) = tx.get(&places, "room 1")? else { return Ok(false) };
    ///     tx.delete(&places, "room 1")?;
    ///     tx.put(&places, "room 2", guest)?;
    ///     Ok(true)
    /// })?;
    /// assert!(!moved);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// The error of the closure; the errors of [`Transaction::commit`].
    pub fn transact<T>(&self, work: impl FnMut(&Transaction) -> Result<T>) -> Result<T> {
        self.transact_with(TransactionOptions::default(), work)
    }

    /// Like [`Store::transact`], with options.
    ///
    /// # Errors
    /// The errors of [`Store::transact`].
    pub fn transact_with<T>(
        &self,
        options: TransactionOptions,
        work: impl FnMut(&Transaction) -> Result<T>,
    ) -> Result<T> {
        txn::transact(&self.engine, options, work)
    }

    /// Opens the keyspace with this name, or **creates it** with the default options if it does not exist. To find a
    /// keyspace without creating it, use [`Store::open_keyspace`].
    ///
    /// An existing keyspace keeps the options and the merge operator with which it was created.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] if the name is not valid. If the keyspace has to be created, also the errors of a
    /// write.
    pub fn keyspace(&self, name: &str) -> Result<Keyspace> {
        if let Some(keyspace) = self.open_keyspace(name)? {
            return Ok(keyspace);
        }
        self.keyspace_with(name, KeyspaceOptions::default())
    }

    /// Opens the keyspace with this name, or creates it with these options if it does not exist. A creation is logged,
    /// and the log is synced before this call returns.
    ///
    /// An existing keyspace must agree with `options` in two ways. Its merge operator must have the same name and
    /// version, or be absent in both: `KeyspaceOptions::new()` does not open a keyspace of counters
    /// ([`Store::keyspace`] does). Every index option and the [`KeyspaceOptions::blob_threshold`] must match, as far as
    /// `options` sets them.
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
    /// [`Error::InvalidArgument`] if the name is not valid, or if the keyspace exists and does not agree with
    /// `options`. If the keyspace has to be created, also the errors of a write. After a failed creation, the next
    /// opening of the store may nevertheless find the keyspace, which is then empty.
    pub fn keyspace_with(&self, name: &str, options: KeyspaceOptions) -> Result<Keyspace> {
        self.engine.access.check()?;
        let state = match self.engine.find_keyspace(name) {
            Some(state) => state,
            None => self.engine.create_keyspace(name, &options)?,
        };
        state.check_options(&options)?;
        Ok(self.handle_of(name, state))
    }

    /// Makes a handle to the keyspace `state`, which was found or created under `name`.
    fn handle_of(&self, name: &str, state: Arc<KeyspaceState>) -> Keyspace {
        assert_eq!(state.name, name, "the table of keyspaces is keyed by their names");
        assert!(state.operator.is_none() || state.operator_name.is_some(), "an operator is stored by its name");
        Keyspace { engine: self.engine.clone(), state }
    }

    /// Opens the keyspace with this name, with the options with which it was created. Returns `None` if the keyspace
    /// does not exist, and creates nothing.
    ///
    /// # Errors
    /// [`Error::Closed`].
    pub fn open_keyspace(&self, name: &str) -> Result<Option<Keyspace>> {
        self.engine.access.check()?;
        Ok(self.engine.find_keyspace(name).map(|state| self.handle_of(name, state)))
    }

    /// Describes all keyspaces, in the order of their creation. Returns an empty list in a forked child.
    pub fn keyspaces(&self) -> Vec<KeyspaceInfo> {
        if self.engine.access.is_inherited() {
            return Vec::new();
        }
        let info = |state: &Arc<KeyspaceState>| KeyspaceInfo {
            name: state.name.clone(),
            id: state.id.0,
            index: state.options(),
            operator: state.operator_name.as_ref().map(|(name, _)| name.clone()),
            operator_registered: state.operator_name.is_none() || state.operator.is_some(),
            blob_threshold: state.blob_threshold,
        };
        let infos: Vec<KeyspaceInfo> = self.engine.keyspaces.read().values().map(info).collect();
        debug_assert!(infos.is_sorted_by(|a, b| a.id < b.id), "ids ascend in the order of creation");
        infos
    }

    /// Changes options of a keyspace's index permanently. Existing data is not rewritten. New data follows the changed
    /// options from the next opening of the store on. Options that `changes` does not set keep their values. The index
    /// type cannot be changed.
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
    /// [`Error::NoKeyspace`] if the keyspace does not exist. [`Error::InvalidArgument`] for another index type or a
    /// value out of bounds. Also the errors of [`Store::checkpoint`].
    pub fn alter_keyspace(&self, name: &str, changes: impl Into<IndexOptions>) -> Result<()> {
        self.engine.access.check()?;
        self.engine.alter_keyspace(name, &changes.into())
    }

    /// Drops a keyspace with all its data, and frees its space. Open handles to the keyspace fail from now on.
    ///
    /// # Errors
    /// [`Error::NoKeyspace`] if the keyspace does not exist. Also the errors of [`Store::checkpoint`].
    pub fn drop_keyspace(&self, name: &str) -> Result<()> {
        self.engine.drop_keyspace(name)
    }

    /// Returns an empty batch. The writes of a batch become visible and durable together, or not at all.
    pub fn batch(&self) -> Batch {
        Batch::new(self.engine.clone())
    }

    /// Returns a consistent view of all keyspaces as of this call.
    pub fn snapshot(&self) -> Snapshot {
        Snapshot(Arc::new(self.engine.snapshots.register()))
    }

    /// Makes every write that was acknowledged before this call at least as durable as `durability`.
    ///
    /// # Errors
    /// [`Error::Poisoned`] after an earlier failure; [`Error::Indeterminate`] if the write or the sync of the log
    /// failed.
    pub fn persist(&self, durability: Durability) -> Result<()> {
        let log = self.engine.check_writable()?;
        match durability {
            Durability::None => Ok(()),
            Durability::Buffered => log.flush().inspect_err(|e| self.engine.poison(e)),
            Durability::Synced => {
                let last = self.engine.writer.quiesce().last();
                self.engine.check_writable()?;
                log.sync(last).inspect_err(|e| self.engine.poison(e))
            }
        }
    }

    /// Moves all data from the memtables and the log into the data file, durably. After this call, an opening replays
    /// only later writes, and the earlier log is deleted. The cost is the cost of writing all memtables to disk.
    ///
    /// [`Store::close`] does the same. The store also takes checkpoints automatically whenever a memtable is full, but
    /// these checkpoints do not write the other memtables to disk.
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
    /// [`Error::DiskFull`] (nothing is lost: the data stays in the log), [`Error::Poisoned`], [`Error::Io`].
    pub fn checkpoint(&self) -> Result<()> {
        self.engine.checkpoint_all()
    }

    /// Writes all memtables as runs and waits until the runs are written. Takes a checkpoint only if there is a keyspace
    /// without memtables that has changed. This function is for
    /// benchmarks; applications call [`Store::checkpoint`].
    ///
    /// # Errors
    /// [`Error::Poisoned`], or the error of the background work that failed.
    #[doc(hidden)]
    pub fn pack(&self) -> Result<()> {
        self.engine.pack()
    }

    /// Waits until all background work is done, then returns free space to the file system.
    ///
    /// # Errors
    /// The error of the background work that failed.
    pub fn settle(&self) -> Result<()> {
        self.engine.settle()
    }

    /// Returns the outstanding background work in bytes, or 0 in a forked child.
    pub fn debt(&self) -> u64 {
        if self.engine.access.is_inherited() { 0 } else { self.engine.debt().total() }
    }

    /// Reads and checks everything: superblocks, catalogue, every block, every message and the allocation of every
    /// page. The call modifies nothing.
    ///
    /// # Errors
    /// If the check cannot run. Damage is not returned as an error, but listed in the report.
    pub fn verify(&self) -> Result<VerifyReport> {
        let access = &self.engine.access;
        access.check()?;
        access.confirm(crate::check::verify(&self.engine))
    }

    /// Returns statistics of the store. The call is cheap: its only I/O is one `stat` of the data file.
    ///
    /// # Errors
    /// [`Error::Io`] if the size of the data file cannot be determined.
    pub fn stats(&self) -> Result<StoreStats> {
        let access = &self.engine.access;
        access.check()?;
        access.confirm(self.engine.stats())
    }

    /// Closes the store: moves all data into the data file, as [`Store::checkpoint`] does, and ends the log, so that
    /// the next opening has nothing to replay. If the disk is full, the data that does not fit stays in the log and is
    /// replayed.
    ///
    /// From this call on, all other handles, iterators and snapshots fail with [`Error::Closed`]. This includes reads
    /// that other threads have in progress. Values that were read before the close stay valid. Operations that cannot
    /// return an error still return results from memory: [`Store::keyspaces`], [`Store::debt`],
    /// [`Keyspace::approximate_len`].
    ///
    /// Dropping the last handle closes the store too, but reports no error.
    ///
    /// # Errors
    /// [`Error::Closed`] if another handle has closed the store, or is closing it. In that case the call of the other
    /// handle returns the result. [`Error::Io`] or [`Error::Indeterminate`] if the data could not be written.
    /// [`Error::Poisoned`] after an earlier failure. In that case writes that were not durable before the close are
    /// still not durable.
    pub fn close(self) -> Result<()> {
        self.engine.close()
    }
}
