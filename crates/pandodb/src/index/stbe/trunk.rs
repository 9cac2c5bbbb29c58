//! [`Trunk`]: the state that a root swap replaces. A clone costs O(1) and is what a checkpoint, a verification and a view
//! keep.

use std::sync::Arc;

use super::node::{Branch, Node};
use crate::base::{KeyRange, OwnerId, Seqno};
use crate::index::blobs::BlobMap;
use crate::index::deferred_frees::DeferredBlobFrees;

/// The state that a root swap replaces.
#[derive(Clone)]
pub(super) struct Trunk {
    pub(super) root: Arc<Node>,
    pub(super) through: Seqno,
    pub(super) horizon: Seqno,
    /// Pages of large values that runs of this root name.
    pub(super) blobs: BlobMap,
    /// Ranges that callers asked to compact fully.
    pub(super) forced: Vec<Forced>,
    /// Receives the large values that the next root swap drops; they are freed when older views are gone.
    pub(super) deferred_frees: Arc<DeferredBlobFrees>,
}

/// A caller's request to compact a range fully.
#[derive(Clone, Debug)]
pub struct Forced {
    /// The keys.
    pub range: KeyRange,
    /// Runs with a smaller identity are to be rewritten. The outputs have larger identities and are not rewritten
    /// again, even if they still hold garbage for snapshots.
    pub before: OwnerId,
}

impl Forced {
    pub(super) fn concerns(&self, leaf: &Node, branches: &[Branch]) -> bool {
        self.range.overlaps(&leaf.range) && branches.iter().any(|branch| branch.slice.run().meta().id < self.before)
    }
}
