//! Online backup: copies a store consistently into a new store, while the source stays in use.
//!
//! ```text
//!   source: snapshot ─▶ for each keyspace: iterate ─▶ batches of 1 MiB ─▶ target: memtables ─▶ settle, close
//! ```
//!
//! The copy is logical: every keyspace is iterated at one snapshot and written into a new store. This has three
//! consequences. The copy is compacted. Every block of the source that holds live data is read and checked. Operands
//! are folded into values.
//!
//! A keyspace whose index stores keys in the order of a hash ([`KeyCodec::Hashed`]) is copied in the same way.
//! [`Keyspace::iter`] works for every index and returns all keys in the order in which the index stores them. Therefore
//! a backup does not use [`IndexView::drain`], which returns unresolved messages.
//!
//! [`KeyCodec::Hashed`]: crate::base::KeyCodec::Hashed
//! [`IndexView::drain`]: crate::index::IndexView::drain

use std::path::Path;

use super::builder::StoreBuilder;
use super::handle::Store;
use super::keyspace::Keyspace;
use super::options::{Durability, KeyspaceOptions};
use super::snapshot::Snapshot;
use crate::base::{Error, Result};

/// The copy is committed in batches of about this number of bytes.
const BATCH_BYTES: usize = 1 << 20;

/// The amount of data that a backup copied.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BackupReport {
    /// Number of keyspaces.
    pub keyspaces: u64,
    /// Number of keys that have a value.
    pub records: u64,
    /// Bytes of keys and values.
    pub bytes: u64,
}

/// # Backup
impl Store {
    /// Copies the current state of the store into a new store in the directory `to`. This store stays in use during the
    /// copy.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] if `to` is a store that has keyspaces. Also the errors of reading this store and of
    /// writing the copy.
    pub fn backup(&self, to: impl AsRef<Path>) -> Result<BackupReport> {
        backup(self, to.as_ref(), None)
    }

    /// Like [`Store::backup`], but copies only the keyspaces with these names, all as of the same moment.
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
    /// [`Error::NoKeyspace`] if one of the keyspaces does not exist; in that case nothing is created. Otherwise the
    /// errors of [`Store::backup`].
    pub fn backup_keyspaces(&self, to: impl AsRef<Path>, names: &[impl AsRef<str>]) -> Result<BackupReport> {
        let names: Vec<&str> = names.iter().map(AsRef::as_ref).collect();
        backup(self, to.as_ref(), Some(&names))
    }

    /// Like [`Store::backup`], but copies into the store that `target` opens, with the settings and on the device of
    /// `target`. Merge operators of the application must be registered with `target`.
    ///
    /// # Errors
    /// The errors of [`Store::backup`].
    pub fn backup_with(&self, target: StoreBuilder) -> Result<BackupReport> {
        backup_with(self, target, None)
    }
}

/// Copies the keyspaces whose names are in `only`, or all keyspaces.
fn backup(store: &Store, to: &Path, only: Option<&[&str]>) -> Result<BackupReport> {
    let mut builder = StoreBuilder::new(to);
    builder.operators = store.engine.operators.clone();
    builder.config.memory_budget = (store.engine.config.memory_budget / 4).max(8 << 20);
    backup_with(store, builder, only)
}

fn backup_with(store: &Store, builder: StoreBuilder, only: Option<&[&str]>) -> Result<BackupReport> {
    // Check first whether the handles may be used, so that a failure creates nothing.
    store.engine.access.check()?;
    let snapshot = store.snapshot();
    for name in only.unwrap_or_default() {
        // Check the names before the target is created, so that a failed backup leaves nothing behind.
        store.open_keyspace(name)?.ok_or_else(|| Error::NoKeyspace { name: (*name).to_owned() })?;
    }
    let copy = builder.open()?;
    if !copy.keyspaces().is_empty() {
        return Err(Error::invalid("the target of a backup must be a new store; name a directory that does not exist"));
    }
    let mut report = BackupReport::default();
    for info in store.keyspaces() {
        if only.is_some_and(|only| !only.contains(&info.name.as_str())) {
            continue;
        }
        let Some(from) = store.open_keyspace(&info.name)? else { continue };
        let mut options = KeyspaceOptions::new().index(info.index);
        options = options.blob_threshold(from.state.blob_threshold);
        if let Some((name, _)) = &from.state.operator_name {
            let operator = from.state.operator()?;
            debug_assert_eq!(operator.name(), name);
            options.operator = Some(operator.inner().clone());
        }
        let into = copy.keyspace_with(&info.name, options)?;
        assert_eq!(into.operator(), from.operator(), "a copy has the operator of its source");
        assert_eq!(into.state.blob_threshold, from.state.blob_threshold, "a copy has the threshold of its source");
        copy_keyspace(&copy, &from, &into, &snapshot, &mut report)?;
        report.keyspaces += 1;
    }
    assert_eq!(copy.keyspaces().len() as u64, report.keyspaces, "the copy has the keyspaces of the report");
    copy.settle()?;
    copy.close()?;
    Ok(report)
}

fn copy_keyspace(
    copy: &Store,
    from: &Keyspace,
    into: &Keyspace,
    snapshot: &Snapshot,
    report: &mut BackupReport,
) -> Result<()> {
    let mut batch = copy.batch().trusting();
    let mut held = 0;
    let mut rows = from.at(snapshot).iter();
    while let Some((key, value)) = rows.next_row()? {
        batch.put(into, key, value);
        held += key.len() + value.len();
        report.records += 1;
        report.bytes += (key.len() + value.len()) as u64;
        if held >= BATCH_BYTES {
            batch.commit(Durability::None)?;
            held = 0;
        }
    }
    batch.commit(Durability::None)
}
