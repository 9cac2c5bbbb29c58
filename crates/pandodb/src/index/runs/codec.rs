//! The runs that the blocks of an index describe: opening makes a run that several nodes describe one object again.

use std::collections::HashMap;
use std::sync::Arc;

use crate::base::codec::Reader;
use crate::base::{OwnerId, Result};
use crate::index::Core;
use crate::run::{Run, RunMeta};

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
        let before = self.met.insert(run.meta().id, run.clone());
        assert!(before.is_none(), "a run is opened once");
        Ok(run)
    }

    /// Call after restoring all slices: from now on each run owns the pages that its slices need.
    pub fn take_ownership(&self) {
        self.met.values().for_each(|run| run.take_ownership());
    }
}
