//! Online backup: a consistent copy of a store into a new one, while the store is in use.
//!
//! The copy is logical: every keyspace is scanned at one snapshot and written into a fresh store, which thereby comes out
//! compacted, and every block of the source is read and checked on the way. Merges arrive folded.

use std::path::Path;

use super::options::{Durability, KeyspaceOptions};
use super::{Snapshot, Store, StoreBuilder};
use crate::base::{Error, Result};

/// Bytes that are committed to the copy at a time.
const BATCH_BYTES: usize = 1 << 20;

/// What a backup copied.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BackupReport {
    /// Keyspaces.
    pub keyspaces: u64,
    /// Keys with a value.
    pub records: u64,
    /// Bytes of keys and values.
    pub bytes: u64,
}

/// Copies the keyspaces of `only`, or all without it.
pub(super) fn backup(store: &Store, to: &Path, only: Option<&[&str]>) -> Result<BackupReport> {
    let mut builder = StoreBuilder::new(to);
    builder.operators = store.engine.operators.clone();
    builder.config.memory_budget = (store.engine.config.memory_budget / 4).max(8 << 20);
    backup_with(store, builder, only)
}

pub(super) fn backup_with(store: &Store, builder: StoreBuilder, only: Option<&[&str]>) -> Result<BackupReport> {
    // Before anything is created.
    store.engine.access.check()?;
    let snapshot = store.snapshot();
    for name in only.unwrap_or_default() {
        // Before the target is made: a failed backup leaves nothing to clear away.
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
        copy_keyspace(&copy, &from, &into, &snapshot, &mut report)?;
        report.keyspaces += 1;
    }
    copy.settle()?;
    copy.close()?;
    Ok(report)
}

fn copy_keyspace(
    copy: &Store,
    from: &super::Keyspace,
    into: &super::Keyspace,
    snapshot: &Snapshot,
    report: &mut BackupReport,
) -> Result<()> {
    let mut batch = copy.batch().trusting();
    let mut held = 0;
    for entry in from.at(snapshot).iter() {
        let (key, value) = entry?;
        batch.put(into, &key, &value);
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
