//! [`Found`] is the state that the newest valid superblock describes. It is read when a store is opened, and by tools
//! that only inspect a store.

use std::sync::Arc;

use super::catalog::Catalog;
use super::checkpointer::DurableRoot;
use super::config::Config;
use crate::base::{Error, Result};
use crate::device::Device;
use crate::index::owed::Share;
use crate::index::registry::features as index_features;
use crate::index::{Core, IdSource};
use crate::memtable::{CHUNK_BYTES, ChunkPool};
use crate::pool::Pool;
use crate::rows::RowCache;
use crate::space::data::DATA_FILE;
use crate::space::superblock::{CORE_FEATURES, INDEX_FEATURES};
use crate::space::{DataFile, Superblock};

/// The newest valid superblock that has a valid catalogue.
pub(super) struct Found {
    pub(super) data: Arc<DataFile>,
    pub(super) superblock: Superblock,
    pub(super) catalog: Catalog,
}

impl Found {
    /// The durable root at the time when the store opens. The first superblock of this opening refers to the same
    /// catalogue and is written into the other slot.
    pub(super) fn root(self) -> DurableRoot {
        DurableRoot {
            older_through: self.catalog.through(),
            next_id: self.catalog.next_id,
            dropped: Vec::new(),
            logged: 0,
            logged_bytes: 0,
            superblock: self.superblock,
            catalog: self.catalog,
        }
    }

    /// Reads both superblocks and the catalogue of the newest superblock. If the newest superblock or its catalogue is
    /// damaged, the older superblock and its catalogue are used.
    ///
    /// # Errors
    /// The first damage, if neither superblock has an intact catalogue; [`Error::NotAStore`] or [`Error::UnknownIndex`]
    /// if the store needs a newer version.
    pub(super) fn read(device: &dyn Device, config: &Config) -> Result<Found> {
        let file = DataFile::open_raw(device, !config.read_only)?;
        let slots = Superblock::read_slots(&*file, DATA_FILE);
        let mut first_error = None;
        let mut whole: Vec<Superblock> = Vec::new();
        for slot in slots {
            match slot {
                Ok(superblock) => whole.push(superblock),
                Err(e) => first_error = Some(e),
            }
        }
        whole.sort_by_key(|superblock| std::cmp::Reverse(superblock.generation));
        // The newest superblock says up to which seqno the log was durable. This is valid regardless of which catalogue
        // is used.
        let durable = whole.iter().map(|superblock| superblock.durable).max().unwrap_or_default();
        let newest = whole.first().map_or(0, |superblock| superblock.generation);
        for mut superblock in whole {
            let data = DataFile::open(file.clone(), superblock.store_id)?;
            check_features(device, config, &superblock, &data)?;
            match Catalog::read(&data, &superblock) {
                Ok(catalog) => {
                    superblock.catalog.mark(&data)?;
                    superblock.durable = durable;
                    // An older superblock does not say how the store was closed last.
                    superblock.clean &= superblock.generation == newest;
                    // Choose the generation so that the next superblock overwrites the slot that could not be used, not
                    // the slot of the superblock that is used now.
                    superblock.generation = if superblock.generation == newest { newest } else { newest + 1 };
                    return Ok(Found { data, superblock, catalog });
                }
                // Do not use the older catalogue if this version does not support the newest one: the store would open
                // without the objects that this version does not know.
                Err(e) if !e.is_damage() => return Err(e),
                Err(e) => first_error = first_error.or(Some(e)),
            }
        }
        Err(first_error.expect("no slot was whole, so one had an error"))
    }
}

/// Refuses a store that needs a newer version. If only an index type is missing, the error names this type.
fn check_features(device: &dyn Device, config: &Config, superblock: &Superblock, data: &Arc<DataFile>) -> Result<()> {
    let incompatible = superblock.incompatible & !(CORE_FEATURES | index_features());
    if incompatible != 0
        && incompatible & !INDEX_FEATURES == 0
        && let Err(unknown @ Error::UnknownIndex { .. }) = Catalog::read(data, superblock)
    {
        return Err(unknown);
    }
    let unknown = if config.read_only { incompatible } else { incompatible | superblock.read_only_compatible };
    if unknown != 0 {
        let detail = format!("it uses features {unknown:#x} that this version does not know; use a newer version");
        return Err(Error::NotAStore { path: device.path(), detail });
    }
    Ok(())
}

/// The shared parts from which the indexes of a store are built.
pub(super) fn core(config: &Config, found: &Found) -> Core {
    let pool = Arc::new(pool(config));
    Core {
        data: found.data.clone(),
        rows: RowCache::sharing(config.rows(), &pool, config.pool()),
        chunks: chunks(config, &pool),
        pool,
        ids: Arc::new(IdSource::new(found.superblock.next_run_id)),
        repair: !config.read_only,
        repairs: Arc::default(),
        share: Share::default(),
    }
}

/// The pool of memory for the memtables of a store.
fn chunks(config: &Config, pool: &Arc<Pool>) -> Arc<ChunkPool> {
    let kept = config.unit().div_ceil(CHUNK_BYTES) + 1;
    Arc::new(ChunkPool::new(kept).borrowing(pool.clone(), config.largest_memtable()))
}

/// The pool of a store. A store without background threads must be deterministic, so its pool must be, too.
fn pool(config: &Config) -> Pool {
    let pool = Pool::with_policy(config.pool(), config.pool_policy);
    if config.background_threads == 0 { pool.with_one_hand() } else { pool }
}
