//! [`Roots`] has the catalogue and the trunks that the newest superblock refers to. They are read without taking a
//! lock, reading the log or writing anything.
//!
//! [`Roots`] is for tools that only inspect a store ([`crate::check`]). A writer may have the store open and modify it
//! during the read. Therefore a block is accepted only if its checksum is right, and the caller retries if a writer has
//! reused blocks during the read.

use std::path::Path;
use std::sync::Arc;

use super::builder::StoreBuilder;
use super::catalog::Catalog;
use super::extents;
use super::found::{Found, core};
use crate::base::{Error, Result};
use crate::device::Device;
use crate::index::Index;
use crate::space::data::DATA_FILE;
use crate::space::{Prefetch, Superblock};

/// Memory budget for the inspected blocks, in bytes.
const MEMORY: usize = 64 << 20;

/// The roots of a store as of one superblock.
pub(crate) struct Roots {
    pub superblock: Superblock,
    pub catalog: Catalog,
    /// The index of each keyspace, in the order of the catalogue. These indexes have no merge operators, so they can be
    /// inspected but not queried.
    pub indexes: Vec<Arc<dyn Index>>,
}

impl Roots {
    /// Reads the newest intact superblock, its catalogue, and the trunk of each keyspace.
    ///
    /// # Errors
    /// The errors of a read-only opening. If both copies of a trunk node are damaged, this call returns no error; see
    /// [`Roots::loss`].
    pub(crate) fn read(device: &dyn Device) -> Result<Roots> {
        let config = StoreBuilder::new(Path::new("")).read_only(true).memory_budget(MEMORY).config;
        let found = Found::read(device, &config)?;
        let core = core(&config, &found);
        assert!(config.read_only && !core.repair, "an inspection writes nothing");
        let at = found.superblock.catalog.0[0].page.offset();
        let mut prefetch = Prefetch::new(core.data.clone());
        let mut indexes: Vec<Arc<dyn Index>> = Vec::with_capacity(found.catalog.keyspaces.len());
        for record in &found.catalog.keyspaces {
            let options = &record.identity.index;
            let settings = options.settings(config.unit() as u64, None);
            let index = options.kind().index_type().build(&core, &settings, &record.root, &mut prefetch);
            indexes.push(index.map_err(|e| e.in_file(DATA_FILE, at))?);
        }
        assert_eq!(indexes.len(), found.catalog.keyspaces.len(), "each keyspace has its index");
        extents::mark(&core, indexes.iter().map(|index| &**index))?;
        Ok(Roots { superblock: found.superblock, catalog: found.catalog, indexes })
    }

    /// Returns the reason why a trunk node could not be read, if there is such a node.
    pub(crate) fn loss(&self) -> Option<Error> {
        self.indexes.iter().find_map(|index| index.inspect().salvage().into_iter().find_map(|piece| piece.lost))
    }
}
