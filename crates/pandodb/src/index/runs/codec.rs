//! Decodes the runs that the blocks of an index describe. A run that several nodes describe becomes one object.

use std::collections::HashMap;
use std::sync::Arc;

use crate::base::codec::Reader;
use crate::base::{OwnerId, Result};
use crate::index::Core;
use crate::run::{Run, RunMeta};

/// The runs that an opening has found. All structures that share a run get the same object.
pub struct Runs<'a> {
    core: &'a Core,
    met: HashMap<OwnerId, Arc<Run>>,
}

impl<'a> Runs<'a> {
    /// A collection without runs.
    pub fn new(core: &'a Core) -> Runs<'a> {
        Runs { core, met: HashMap::new() }
    }

    /// Returns the run or maplet that `meta` describes. Errors name the current position of `reader`.
    ///
    /// # Errors
    /// [`Error::Corruption`](crate::Error::Corruption) if a maplet is described where a run was expected, or a run
    /// where a maplet was expected. Also if an earlier run with the same identity had another description.
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

    /// Call this when all slices are restored. After the call each run owns the pages that its slices need.
    pub fn take_ownership(&self) {
        self.met.values().for_each(|run| run.take_ownership());
    }
}
