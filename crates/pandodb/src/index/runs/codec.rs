//! What the root records of run-based indexes have in common: where a block of the structure is, which runs it names, and the pages of
//! large values.
//!
//! Persisted forms (integers varint):
//!
//! ```text
//!  place of a block:   owner id | pages | page of copy 0 | page of copy 1
//!  large values:       count | (gap, length)…     each range's start relative to the end of the one before
//! ```

use std::collections::HashMap;
use std::sync::Arc;

use crate::base::codec::{Reader, put_varint};
use crate::base::{BlockAddr, OwnerId, PageNo, Result};
use crate::index::Core;
use crate::run::{Run, RunMeta};
use crate::space::ranges::{RangeSet, extents};
use crate::space::{DataFile, Twin};

/// Where a block of an index stands on disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stored {
    /// The owner in the blocks' checksums.
    pub id: OwnerId,
    /// Both copies.
    pub twin: Twin,
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
        Ok(Stored { id, twin: Twin([copy()?, copy()?]) })
    }

    /// The copies that an opening reads: both where a damaged one is to be repaired.
    pub fn copies(self, core: &Core) -> impl Iterator<Item = BlockAddr> {
        self.twin.0.into_iter().take(if core.mend { 2 } else { 1 })
    }
}

/// Appends the persisted form of the pages of large values.
pub fn put_blobs(out: &mut Vec<u8>, blobs: &RangeSet) {
    put_varint(out, blobs.len() as u64);
    let mut end = 0;
    for (start, len) in blobs.iter() {
        put_varint(out, start - end);
        put_varint(out, len);
        end = start + len;
    }
}

/// Decodes what [`put_blobs`] wrote.
///
/// # Errors
/// [`Error::Corruption`](crate::Error::Corruption) if bytes are missing, or ranges are empty, not in order or out of bounds.
pub fn get_blobs(reader: &mut Reader<'_>) -> Result<RangeSet> {
    let mut blobs = RangeSet::default();
    let mut end = 0u64;
    for _ in 0..reader.count(2)? {
        let start = reader.varint_max(1 << 48)? + end;
        let len = reader.varint_max(1 << 48)?;
        if len == 0 || start < end || start + len > 1 << 48 {
            return Err(reader.corrupt("ranges of large values are not in order"));
        }
        blobs.insert(start, len);
        end = start + len;
    }
    Ok(blobs)
}

/// Marks the pages of large values as taken.
///
/// # Errors
/// [`Error::Corruption`](crate::Error::Corruption) if some have an owner already.
pub fn mark_blobs(data: &DataFile, blobs: &RangeSet) -> Result<()> {
    blobs.iter().try_for_each(|range| extents(range).try_for_each(|extent| data.mark(extent)))
}

/// The runs that an opening has met: the structures that share a run get the same object.
pub struct Runs<'a> {
    core: &'a Core,
    met: HashMap<OwnerId, Arc<Run>>,
}

impl<'a> Runs<'a> {
    /// No run yet.
    pub fn new(core: &'a Core) -> Runs<'a> {
        Runs { core, met: HashMap::new() }
    }

    /// The run, or maplet, of that description. `reader` is where it stands, for the error.
    ///
    /// # Errors
    /// [`Error::Corruption`](crate::Error::Corruption) if it is a maplet where a run was expected, or the other way round, or if a run of
    /// that identity was described differently.
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

    /// All slices are restored: marks the pages that each run keeps, and lets the others go.
    ///
    /// # Errors
    /// [`Error::Corruption`](crate::Error::Corruption) if a page has another owner already.
    pub fn settle(&self) -> Result<()> {
        self.met.values().try_for_each(|run| run.settle())
    }
}
