//! Common parts of the root records of run-based indexes: the address of a metadata block, and the runs that are
//! described.
//!
//! Persisted form (integers varint):
//!
//! ```text
//!  address of a block:   owner id | pages | page of copy 0 | page of copy 1
//! ```

use std::collections::HashMap;
use std::sync::Arc;

use crate::base::codec::{Reader, put_varint};
use crate::base::{BlockAddr, OwnerId, PageNo, Result};
use crate::index::Core;
use crate::run::{Run, RunMeta};
use crate::space::MirroredBlock;

/// The address of a metadata block of an index on disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stored {
    /// The owner in the blocks' checksums.
    pub id: OwnerId,
    /// Both copies.
    pub twin: MirroredBlock,
}

impl Stored {
    /// Appends the persisted form.
    pub fn encode(self, out: &mut Vec<u8>) {
        put_varint(out, self.id.0);
        put_varint(out, self.twin.0[0].pages.into());
        self.twin.0.iter().for_each(|addr| put_varint(out, addr.page.0));
    }

    /// Decodes what [`Stored::encode`] wrote.
    ///
    /// # Errors
    /// [`Error::Corruption`](crate::Error::Corruption) if bytes are missing or a page is out of bounds.
    pub fn decode(reader: &mut Reader<'_>) -> Result<Stored> {
        let id = OwnerId(reader.varint()?);
        let pages = reader.varint_max(u32::MAX.into())? as u32;
        let mut copy = || Ok(BlockAddr { page: PageNo(reader.varint_max(1 << 48)?), pages });
        Ok(Stored { id, twin: MirroredBlock([copy()?, copy()?]) })
    }

    /// The copies that an opening reads: both if a damaged one is to be repaired.
    pub fn copies(self, core: &Core) -> impl Iterator<Item = BlockAddr> {
        self.twin.0.into_iter().take(if core.repair { 2 } else { 1 })
    }
}

/// The runs found by an opening: all structures that share a run get the same object.
pub struct Runs<'a> {
    core: &'a Core,
    met: HashMap<OwnerId, Arc<Run>>,
}

impl<'a> Runs<'a> {
    /// No run yet.
    pub fn new(core: &'a Core) -> Runs<'a> {
        Runs { core, met: HashMap::new() }
    }

    /// The run or maplet of this description. `reader` supplies the position for errors.
    ///
    /// # Errors
    /// [`Error::Corruption`](crate::Error::Corruption) if a maplet is described where a run was expected, or vice
    /// versa, or if a run of this identity was described differently before.
    pub fn meet(&mut self, meta: RunMeta, maplet: bool, reader: &Reader<'_>) -> Result<Arc<Run>> {
        if meta.is_maplet() != maplet {
            return Err(reader.corrupt("a maplet in the place of a run, or a run in that of a maplet"));
        }
        if let Some(run) = self.met.get(&meta.id) {
            if *run.meta() != meta {
                return Err(reader.corrupt(format!("two nodes describe run {} differently", meta.id)));
            }
            return Ok(run.clone());
        }
        let run = Run::reopen(self.core.data.clone(), self.core.pool.clone(), meta);
        self.met.insert(run.meta().id, run.clone());
        Ok(run)
    }

    /// Call after restoring all slices: marks the pages that each run still needs as used, and drops the others.
    ///
    /// # Errors
    /// [`Error::Corruption`](crate::Error::Corruption) if a page has another owner already.
    pub fn settle(&self) -> Result<()> {
        self.met.values().try_for_each(|run| run.settle())
    }
}
