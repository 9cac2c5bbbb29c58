//! [`World`]: the state that a swap of the root replaces. A clone costs O(1). A job, a checkpoint, a verification and a
//! view each keep a clone.

use std::sync::Arc;

use crate::base::sync::OnceLock;
use crate::base::{Error, Fragments, Seqno};
use crate::index::blobs::BlobMap;
use crate::index::deferred_frees::DeferredFrees;
use crate::index::pages::Root;
use crate::index::stored::Stored;
use crate::space::DataFile;

/// The state that a swap of the root replaces.
#[derive(Clone)]
pub(super) struct World {
    /// The root; `None` if the tree is empty.
    pub(super) root: Option<Root>,
    /// The tree of a sorted load that is not merged with the tree of `root` yet. It is newer than that tree, and a job
    /// merges both before it does anything else. `None` if the tree of `root` is empty.
    pub(super) loaded: Option<Root>,
    /// The bytes of the pages of this load, without its large values, which a merge does not move. An estimate after an
    /// opening, and after pieces of a merge. 0 if no load waits.
    pub(super) loaded_bytes: u64,
    pub(super) through: Seqno,
    pub(super) horizon: Seqno,
    /// The lowest level of pages that may have a buffer.
    pub(super) buffered_from: u32,
    /// The range tombstones that may hide messages of the tree.
    pub(super) tombstones: Arc<Fragments>,
    /// The pages of the tree.
    pub(super) pages: BlobMap,
    /// The pages of the large values to which the tree refers.
    pub(super) blobs: BlobMap,
    /// The error that made the description of the tree unreadable. The tree is then empty. Set only in a store that is
    /// open for reading.
    pub(super) lost: Option<Error>,
    /// The description of this state on disk.
    pub(super) described: Arc<Described>,
    /// Receives the pages and large values that the next swap drops. They are freed when older views are gone.
    pub(super) deferred_frees: Arc<DeferredFrees>,
}

impl World {
    /// Replaces the tree of the load by the rows that are not merged yet. Each row counts for the same number of bytes.
    pub(super) fn set_loaded(&mut self, rest: Option<Root>) {
        let rows = |root: Option<Root>| root.map_or(0, |root| root.page.totals.entries);
        let (before, after) = (rows(self.loaded), rows(rest));
        let bytes = u128::from(self.loaded_bytes) * u128::from(after.min(before)) / u128::from(before.max(1));
        self.loaded_bytes = u64::try_from(bytes).expect("no more than before");
        self.loaded = rest;
    }

    /// The bytes of the rows of a load that wait to be merged. More than 0 if a load waits.
    pub(super) fn waiting_bytes(&self) -> u64 {
        self.loaded.map_or(0, |_| self.loaded_bytes.max(1))
    }

    /// Whether both states have the same messages, in the same pages.
    pub(super) fn has_same_rows(&self, other: &World) -> bool {
        (self.root, self.loaded, self.through) == (other.root, other.loaded, other.through)
    }
}

/// The description of a state on disk, once a checkpoint has written it. Dropping the last reference frees its pages.
pub(super) struct Described {
    data: Arc<DataFile>,
    stored: OnceLock<Stored>,
}

impl Described {
    /// A state that is not on disk.
    pub(super) fn new(data: Arc<DataFile>) -> Described {
        Described { data, stored: OnceLock::new() }
    }

    /// The address of the description, if it is on disk.
    pub(super) fn stored(&self) -> Option<Stored> {
        self.stored.get().copied()
    }

    /// Records the address to which the description was written, or from which it was read.
    pub(super) fn set_stored(&self, stored: Stored) {
        assert!(self.stored.set(stored).is_ok(), "a state is described once");
    }
}

impl Drop for Described {
    fn drop(&mut self) {
        if let Some(stored) = self.stored() {
            stored.copies.free(&self.data);
        }
    }
}
