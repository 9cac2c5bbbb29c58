//! [`Extents`] lists the pages that an index over runs owns. Each page is listed once.

use std::collections::HashSet;

use crate::base::{Extent, OwnerId};
use crate::index::blobs::PinnedMap;
use crate::index::stored::Stored;
use crate::run::Run;

/// Reports extents to a visitor. If several nodes hold the same run, the pages of this run are reported only once.
pub struct Extents<'v> {
    visit: &'v mut dyn FnMut(Extent),
    /// The runs and maplets that were already reported.
    runs: HashSet<OwnerId>,
}

impl<'v> Extents<'v> {
    /// Makes a list that has not reported any pages yet.
    pub fn new(visit: &'v mut dyn FnMut(Extent)) -> Extents<'v> {
        Extents { visit, runs: HashSet::new() }
    }

    /// Reports both copies of a block of the structure.
    pub fn stored(&mut self, stored: Stored) {
        stored.copies.extents().into_iter().for_each(&mut *self.visit);
    }

    /// Reports the pages that a run or maplet owns.
    pub fn run(&mut self, run: &Run) {
        if self.runs.insert(run.meta().id) {
            debug_assert!(run.owned().iter().all(|extent| extent.pages > 0), "an extent has pages");
            run.owned().into_iter().for_each(&mut *self.visit);
        }
    }

    /// Reports both copies of the nodes of the map of large values, and the pages of the values.
    pub fn large_values(&mut self, blobs: &PinnedMap) {
        blobs.stored.iter().for_each(|stored| self.stored(*stored));
        blobs.values().for_each(&mut *self.visit);
    }
}
