//! What the newest superblock reaches: catalogue and trunks, without a lock, without the log, without a write.
//!
//! For whoever only wants to look ([`crate::check`]): a writer may have the store open and go on meanwhile. So each block is
//! believed only by its checksum, and the caller tries again if a checkpoint has overtaken it.

use std::path::Path;
use std::sync::Arc;

use super::StoreBuilder;
use super::catalog::Catalog;
use super::extents;
use super::open::{Found, core};
use crate::base::{Error, Result};
use crate::device::Device;
use crate::index::Index;
use crate::space::data::DATA_FILE;
use crate::space::{Prefetch, Superblock};

/// Memory for the blocks that are looked at, in bytes.
const MEMORY: usize = 64 << 20;

/// The roots of a store as of one superblock.
pub(crate) struct Roots {
    pub superblock: Superblock,
    pub catalog: Catalog,
    /// The index of each keyspace of the catalogue, in its order. They know no merge operators and are to be looked at only.
    pub indexes: Vec<Arc<dyn Index>>,
}

impl Roots {
    /// Reads the newest whole superblock, its catalogue, and the trunk of each keyspace.
    ///
    /// # Errors
    /// As for a read-only opening. A trunk node that is lost in both copies is no error here ([`Roots::loss`]).
    pub(crate) fn read(device: &dyn Device) -> Result<Roots> {
        let config = StoreBuilder::new(Path::new("")).read_only(true).memory_budget(MEMORY).config;
        let found = Found::read(device, &config)?;
        let core = core(&config, &found);
        let at = found.superblock.catalog.0[0].page.offset();
        let mut prefetch = Prefetch::new(core.data.clone());
        let mut indexes: Vec<Arc<dyn Index>> = Vec::with_capacity(found.catalog.keyspaces.len());
        for record in &found.catalog.keyspaces {
            let options = &record.identity.index;
            let settings = options.settings(config.memtable() as u64, None);
            let index = options.kind().index_type().build(&core, &settings, &record.root, &mut prefetch);
            indexes.push(index.map_err(|e| e.in_file(DATA_FILE, at))?);
        }
        extents::mark(&core, indexes.iter().map(|index| &**index))?;
        Ok(Roots { superblock: found.superblock, catalog: found.catalog, indexes })
    }

    /// Why a trunk node could not be read, if one could not.
    pub(crate) fn loss(&self) -> Option<Error> {
        self.indexes.iter().find_map(|index| index.inspect().salvage().into_iter().find_map(|piece| piece.lost))
    }
}
