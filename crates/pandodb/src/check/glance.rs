//! `glance` reads the statistics of a store that another process may have open for writing.
//!
//! ```text
//! newest superblock ─▶ catalogue ─▶ trunk nodes, which describe their runs        no lock, no log, no write
//!        ▲                 │ a checksum does not match,
//!        └── retry ────────┘ and there is a newer superblock: the writer has reused the pages
//! ```
//!
//! Pages that a superblock reaches are reused only after two further superblocks (`docs/decisions/0004-quarantine.md`).
//! The checksum of each block covers the identity of the block's owner, and this identity is never reused. Therefore a
//! block that passes its checks belongs to the superblock that was read, and the reader notices if a writer has reused
//! pages. If a block fails its checks and no newer superblock was written in the meantime, the block is really damaged,
//! and the damage is reported.
//!
//! Cost: the call reads all trunks. They have a few kilobytes for each gigabyte of data. The writer does not notice the
//! reader.

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use crate::base::{Error, Result};
use crate::device::file::FileDevice;
use crate::device::{Device, File, OpenHow};
use crate::index::{Debt, IndexStats};
use crate::resolve::builtin;
use crate::space::data::DATA_FILE;
use crate::space::{DataFile, Superblock};
use crate::store::KeyspaceInfo;
use crate::store::roots::Roots;

/// Maximum number of attempts. An attempt fails only if the writer completes two checkpoints while the reader reads the
/// trunk.
const TRIES: u32 = 20;

const _: () = assert!(TRIES > 1, "one attempt may meet a checkpoint");

/// The result of [`glance`]: the state of a store at its last checkpoint. Later writes are in the log of the store and
/// are not included.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Glance {
    /// The number of the superblock. Each checkpoint writes one superblock.
    pub generation: u64,
    /// The time of the checkpoint, by the writer's clock. `None` for a device without a clock, or if the version that
    /// took the checkpoint did not record the time.
    pub checkpointed_at: Option<SystemTime>,
    /// Whether the store was closed and has not been opened for writing since then.
    pub clean: bool,
    /// The keyspaces, in the order of creation.
    pub keyspaces: Vec<GlancedKeyspace>,
    /// Bytes of keys and values in runs, including superseded messages.
    pub logical_bytes: u64,
    /// Bytes that the data file occupies on the device now.
    pub disk_bytes: u64,
    /// Bytes that the log's files occupy on the device now.
    pub log_bytes: u64,
    /// Bytes of keys and values that users have ever written.
    pub lifetime_user_bytes: u64,
    /// Bytes that the store has written to the log and the data file since it was created.
    pub lifetime_written_bytes: u64,
}

/// A keyspace in a [`Glance`].
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct GlancedKeyspace {
    /// The name and the options of the keyspace. Here `operator_registered` is true only if the operator is a built-in
    /// one.
    pub info: KeyspaceInfo,
    /// Approximate number of keys.
    pub records: u64,
    /// The statistics of its index. Its counters since opening are 0, and its debt is not known.
    pub index: IndexStats,
}

/// Reads the statistics of the store in a directory, as of its last checkpoint, without opening the store. A writer in
/// another process, or in this process, may run concurrently and does not notice the reader. The call takes no lock,
/// reads no log and writes nothing.
///
/// ```
/// let dir = tempfile::tempdir()?;
/// let path = dir.path().join("s");
/// let store = pandodb::Store::open(&path)?;
/// let keyspace = store.keyspace("events")?;
/// (0..1000u32).try_for_each(|i| keyspace.put(i.to_be_bytes(), [7; 100]))?;
/// store.pack()?;
/// store.checkpoint()?;
///
/// let seen = pandodb::check::glance(&path)?; // the store is still open for writing
/// assert_eq!((seen.keyspaces[0].info.name.as_str(), seen.keyspaces[0].records), ("events", 1000));
/// assert!(seen.checkpointed_at.is_some_and(|at| at.elapsed().is_ok_and(|age| age.as_secs() < 3600)));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Errors
/// [`Error::NotAStore`] if there is no store; [`Error::Corruption`] if the superblocks, the catalogue or a trunk are
/// damaged; [`Error::Locked`] if a writer's checkpoints made all 20 attempts fail.
pub fn glance(path: impl AsRef<Path>) -> Result<Glance> {
    let path = path.as_ref();
    let device = FileDevice::open(path, false).map_err(|_| Error::NotAStore {
        path: path.display().to_string(),
        detail: "there is no such directory".into(),
    })?;
    glance_device(Arc::new(device))
}

/// Like [`glance`], but on any device.
///
/// # Errors
/// The errors of [`glance`].
pub fn glance_device(device: Arc<dyn Device>) -> Result<Glance> {
    let roots = roots(&*device)?;
    if let Some(error) = roots.loss() {
        return Err(error);
    }
    assert_eq!(roots.catalog.keyspaces.len(), roots.indexes.len(), "each keyspace has an index");
    let file = DataFile::open_raw(&*device, false)?;
    let seconds = roots.superblock.checkpointed_at;
    let mut seen = Glance {
        generation: roots.superblock.generation,
        checkpointed_at: UNIX_EPOCH.checked_add(Duration::from_secs(seconds)).filter(|_| seconds > 0),
        clean: roots.superblock.clean,
        keyspaces: Vec::with_capacity(roots.indexes.len()),
        logical_bytes: 0,
        disk_bytes: file.occupied().map_err(|e| Error::io("stat", DATA_FILE, None, &e))?,
        log_bytes: log_bytes(&*device)?,
        lifetime_user_bytes: roots.catalog.user_bytes,
        lifetime_written_bytes: roots.catalog.written_bytes,
    };
    for (record, index) in roots.catalog.keyspaces.iter().zip(&roots.indexes) {
        let operator = record.identity.operator.as_ref().map(|(name, _)| name.clone());
        let info = KeyspaceInfo {
            name: record.identity.name.clone(),
            id: record.identity.id.0,
            index: record.identity.index.clone(),
            operator_registered: operator.as_ref().is_none_or(|name| builtin(name).is_some()),
            operator,
            blob_threshold: usize::try_from(record.identity.blob_threshold).unwrap_or(usize::MAX),
        };
        let index = IndexStats { debt: Debt::default(), ..index.stats() };
        seen.logical_bytes += index.logical_bytes;
        // Each delete in a run counts twice among the entries: as an entry itself, and for the entry that it hides.
        let records = index.entries.saturating_sub(2 * index.tombstones);
        seen.keyspaces.push(GlancedKeyspace { info, records, index });
    }
    Ok(seen)
}

/// Reads the roots of the newest superblock. Retries as long as a writer's checkpoints interfere. If a block is damaged
/// and no newer superblock exists, the result includes the damage.
pub(super) fn roots(device: &dyn Device) -> Result<Roots> {
    let names = device.list().map_err(|e| Error::io("list", "", None, &e))?;
    if !names.iter().any(|name| name == DATA_FILE) {
        return Err(Error::NotAStore { path: device.path(), detail: "there is no data file".into() });
    }
    let file = DataFile::open_raw(device, false)?;
    for _ in 0..TRIES {
        let before = newest(&*file);
        let roots = Roots::read(device);
        let is_damaged = match &roots {
            Ok(roots) => roots.loss().is_some(),
            Err(e) => e.is_damage(),
        };
        if !is_damaged || newest(&*file) == before {
            return roots;
        }
    }
    Err(Error::Locked { path: device.path() })
}

/// The number of the newest valid superblock.
fn newest(file: &dyn File) -> Option<u64> {
    let slots = Superblock::read_slots(file, DATA_FILE);
    slots.into_iter().filter_map(Result::ok).map(|superblock| superblock.generation).max()
}

/// Bytes that the log occupies. Segments may be created and deleted during the call; a deleted segment counts 0.
fn log_bytes(device: &dyn Device) -> Result<u64> {
    let names = device.list().map_err(|e| Error::io("list", "", None, &e))?;
    let mut bytes = 0;
    for name in names.iter().filter(|name| name.starts_with("wal-")) {
        match device.open(name, OpenHow::default()).and_then(|file| file.occupied()) {
            Ok(size) => bytes += size,
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => {}
            Err(e) => return Err(Error::io("stat", name, None, &e)),
        }
    }
    Ok(bytes)
}
