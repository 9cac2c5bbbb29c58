//! The creation of a store turns an empty directory into an empty store, completely or not at all.
//!
//! The data file is written under another name, synced and renamed, so a crash leaves either no store or a complete
//! store.

use super::catalog::Catalog;
use super::config::Config;
use super::reserve::RESERVE_FILE;
use crate::base::{Error, Result, StoreId};
use crate::device::Device;
use crate::space::data::DATA_FILE;
use crate::space::{DataFile, Superblock};

/// The name of the data file while a store is being created.
const UNFINISHED: &str = "data.new";

/// Creates a store in a directory that has none.
///
/// # Errors
/// [`Error::NotAStore`] if the settings forbid the creation, or if the directory holds other files.
/// [`Error::DiskTooSmall`] if the disk is too small for a store.
pub(super) fn refuse_or_create(device: &dyn Device, config: &Config, names: &[String]) -> Result<()> {
    let no = |detail: &str| Err(Error::NotAStore { path: device.path(), detail: detail.into() });
    if !config.create || config.read_only {
        return no("there is no data file; open it with `create` to make a store");
    }
    if names.iter().any(|name| name.starts_with("wal-")) {
        return no("there is a log but no data file; restore the data file from a backup");
    }
    if let Some(other) = names.iter().find(|name| *name != UNFINISHED) {
        return no(&format!("the directory holds other files (`{other}`); name an empty or new directory"));
    }
    let needed = config.least_disk();
    if let Some(available) = config.disk_bytes.filter(|&available| available < needed) {
        return Err(Error::DiskTooSmall { path: device.path(), needed, available });
    }
    create(device)
}

/// Returns the error of reading the superblocks, or [`Error::NotAStore`] if no file of the directory comes from a
/// store. A file comes from a store if it begins like a superblock, or if it is a log segment or a reserve (every store
/// that was opened for writing has a reserve). A damaged store must not be reported as a foreign directory.
pub(super) fn unless_foreign(device: &dyn Device, names: &[String], error: Error) -> Error {
    let of_a_store = |name: &String| name.starts_with("wal-") || name == RESERVE_FILE;
    let traces = || DataFile::open_raw(device, false).map_or(true, |file| Superblock::has_traces(&*file));
    if !error.is_corruption() || names.iter().any(of_a_store) || traces() {
        return error;
    }
    let detail = "its file `data` is not that of a store, and nothing else in it is; name another directory, or restore the \
                  store from a backup if one was here";
    Error::NotAStore { path: device.path(), detail: detail.into() }
}

/// Creates an empty store, completely or not at all.
fn create(device: &dyn Device) -> Result<()> {
    let fail = |op: &'static str| move |e: std::io::Error| Error::io(op, UNFINISHED, None, &e);
    if device.list().map_err(fail("list"))?.iter().any(|name| name == UNFINISHED) {
        device.remove(UNFINISHED).map_err(fail("remove"))?;
    }
    let mut store_id = StoreId::default();
    store_id.0[..8].copy_from_slice(&device.random().to_le_bytes());
    store_id.0[8..].copy_from_slice(&device.random().to_le_bytes());
    let data = DataFile::create(device, UNFINISHED, store_id)?;
    let (catalog, catalog_len) = Catalog { next_id: 1, ..Catalog::default() }.write(&data, 1)?;
    let mut superblock = Superblock::first(store_id, catalog, catalog_len);
    superblock.checkpointed_at = now_in_seconds(device);
    // Write both slots, so that a single damaged sector never makes a new store unreadable.
    data.write_superblock(&superblock)?;
    superblock.generation = 2;
    data.write_superblock(&superblock)?;
    device.rename(UNFINISHED, DATA_FILE).map_err(fail("rename"))?;
    device.sync_dir().map_err(|e| Error::final_io("sync", "directory", None, &e))
}

/// The current time for a superblock, in seconds; 0 if the device has no clock.
pub(super) fn now_in_seconds(device: &dyn Device) -> u64 {
    device.wall_clock().map_or(0, |time| time.as_secs())
}
