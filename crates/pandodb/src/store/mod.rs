//! The store: what users hold. A store is a directory with keyspaces; all layers below meet here.
//!
//! | file | what |
//! | --- | --- |
//! | `options` | the builder, options of keyspaces, durability |
//! | `open`, `generations`, `checkpoint`, `catalog`, `reserve` | from a directory to a running store, and back to a durable root |
//! | `commit`, `watermark` | the sequencer: the life of a write; how far commits beside each other are applied |
//! | `engine` | what an open store consists of, background work, poison |
//! | `batch`, `keyspace` | the handles through which one writes |
//! | `read`, `scan`, `value`, `snapshot` | the life of a read |
//! | `backup`, `stats`, `check` | tools |
//!
//! Handles (`Store`, `Keyspace`, `Snapshot`) are cheap clones of an `Arc`; the last one to go closes the store.

mod backup;
mod batch;
pub mod catalog;
mod checkpoint;
mod commit;
pub(crate) mod engine;
mod generations;
pub(crate) mod keyspace;
mod open;
mod options;
pub(crate) mod read;
mod reserve;
mod scan;
mod snapshot;
mod stats;
mod value;
mod watermark;

use std::path::Path;
use std::sync::Arc;

pub use self::backup::BackupReport;
pub use self::batch::Batch;
pub use self::keyspace::{Keyspace, KeyspaceAt};
pub use self::options::{Durability, IndexKind, KeyspaceOptions, Mode, StoreBuilder};
pub use self::scan::Range;
pub use self::snapshot::Snapshot;
pub use self::stats::{BytesByCause, KeyspaceStats, Latency, MemoryStats, StoreStats};
pub use self::value::Value;

use self::engine::Shared;
use crate::base::{Error, Result, Seqno};
use crate::check::VerifyReport;

/// An open store. Cheap to clone, usable from any thread; one process writes at a time.
///
/// ```
/// # let dir = tempfile::tempdir()?;
/// let store = pandodb::Store::open(dir.path().join("demo.pando"))?;
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
    /// The index that holds its data.
    pub index: &'static str,
    /// The merge operator that it was created with.
    pub operator: Option<String>,
    /// Whether that operator is registered; without it merges can be verified and dumped, not read.
    pub operator_registered: bool,
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

    /// The keyspace of that name, created with the default options if it does not exist.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] for an impossible name; what a checkpoint can fail with, if it has to be created.
    pub fn keyspace(&self, name: &str) -> Result<Keyspace> {
        if let Some(keyspace) = self.open_keyspace(name)? {
            return Ok(keyspace);
        }
        self.keyspace_with(name, KeyspaceOptions::default())
    }

    /// The keyspace of that name, created with `options` if it does not exist. Creating one takes two checkpoints.
    ///
    /// # Errors
    /// After any of them but `InvalidArgument` the next opening may find the keyspace, empty: one of the two was taken.
    /// As [`Store::keyspace`]; [`Error::InvalidArgument`] if it exists with another index or operator.
    pub fn keyspace_with(&self, name: &str, options: KeyspaceOptions) -> Result<Keyspace> {
        let state = match self.engine.find_keyspace(name) {
            Some(state) => state,
            None => self.engine.create_keyspace(name, &options)?,
        };
        let wanted = options.operator.as_ref().map(|operator| (operator.name(), operator.version()));
        let stored = state.operator_name.as_ref().map(|(name, version)| (name.as_str(), *version));
        if wanted != stored || state.index.kind() != options.index.name() {
            let words = |operator: Option<(&str, u32)>| match operator {
                Some((name, version)) => format!("operator {name} (version {version})"),
                None => "no operator".to_owned(),
            };
            return Err(Error::invalid(format!(
                "keyspace `{name}` exists with index {} and {}, not with index {} and {}; open it as it is",
                state.index.kind(),
                words(stored),
                options.index.name(),
                words(wanted),
            )));
        }
        Ok(Keyspace { engine: self.engine.clone(), state })
    }

    /// The keyspace of that name as it was created, if it exists.
    ///
    /// # Errors
    /// None today; a lazily opened index may have some.
    pub fn open_keyspace(&self, name: &str) -> Result<Option<Keyspace>> {
        Ok(self.engine.find_keyspace(name).map(|state| Keyspace { engine: self.engine.clone(), state }))
    }

    /// All keyspaces, in the order of their creation.
    pub fn keyspaces(&self) -> Vec<KeyspaceInfo> {
        let info = |state: &Arc<keyspace::KeyspaceState>| KeyspaceInfo {
            name: state.name.clone(),
            id: state.id.0,
            index: state.index.kind(),
            operator: state.operator_name.as_ref().map(|(name, _)| name.clone()),
            operator_registered: state.operator_name.is_none() || state.operator.is_some(),
        };
        self.engine.keyspaces.read().values().map(info).collect()
    }

    /// Drops a keyspace with all its data. Its space is given back; open handles to it fail from now on.
    ///
    /// # Errors
    /// [`Error::NoKeyspace`]; what a checkpoint can fail with.
    pub fn drop_keyspace(&self, name: &str) -> Result<()> {
        self.engine.drop_keyspace(name)
    }

    /// An empty batch.
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
                let last = Seqno(self.engine.settled().next.0 - 1);
                self.engine.check_writable()?;
                log.sync(last).inspect_err(|e| self.engine.poison(e))
            }
        }
    }

    /// Writes a durable root, so that reopening replays only what comes after it. Happens by itself after each packed
    /// memtable; call it to bound the next opening.
    ///
    /// # Errors
    /// [`Error::DiskFull`] (nothing changed), [`Error::Poisoned`], [`Error::Io`].
    pub fn checkpoint(&self) -> Result<()> {
        self.engine.checkpoint()
    }

    /// Writes everything that is in memory as runs, so that nothing of it is in the log alone; what that makes due may go on
    /// behind. Happens by itself whenever a memtable is full: for benchmarks, and before a long pause.
    ///
    /// # Errors
    /// [`Error::Poisoned`], or what the packing failed with.
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

    /// Background work owed, in bytes.
    pub fn debt(&self) -> u64 {
        self.engine.debt().total()
    }

    /// Copies the store as of now into a new store in directory `to`, while this one stays in use.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] if `to` is a store with keyspaces; what reading and writing can fail with.
    pub fn backup(&self, to: impl AsRef<Path>) -> Result<BackupReport> {
        backup::backup(self, to.as_ref())
    }

    /// As [`Store::backup`], into the store that `target` opens: with its own sizes, on its own device. Operators are to be
    /// registered with `target`.
    ///
    /// # Errors
    /// As [`Store::backup`].
    pub fn backup_with(&self, target: StoreBuilder) -> Result<BackupReport> {
        backup::backup_with(self, target)
    }

    /// Reads and checks everything: superblocks, catalogue, every block, every message, the allocation of every page.
    /// Changes nothing.
    ///
    /// # Errors
    /// What keeps it from looking; what it finds wrong is in the report.
    pub fn verify(&self) -> Result<VerifyReport> {
        crate::check::verify(&self.engine)
    }

    /// Figures. Cheap: no I/O but a `stat`.
    ///
    /// # Errors
    /// [`Error::Io`] if the data file cannot be asked for its size.
    pub fn stats(&self) -> Result<StoreStats> {
        self.engine.stats()
    }

    /// Closes the store: makes everything durable and records the exact end of the log. Other handles fail from now on.
    /// Dropping the last handle does the same, but has nobody to tell if it fails.
    ///
    /// # Errors
    /// [`Error::Io`], [`Error::Indeterminate`]; [`Error::Poisoned`] after an earlier failure: what was not durable then was
    /// not made durable now.
    pub fn close(self) -> Result<()> {
        self.engine.close()
    }
}
