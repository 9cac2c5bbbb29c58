//! [`Trunk`]: the state that a root swap replaces. A clone costs O(1). A checkpoint, a verification and a view each
//! keep a clone.

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
    /// The map of the pages of large values that runs of this root refer to.
    pub(super) blobs: BlobMap,
    /// Ranges that callers asked to compact fully.
    pub(super) forced: Vec<Forced>,
    /// Receives the large values that the next root swap drops. These values are freed when older views are gone.
    pub(super) deferred_frees: Arc<DeferredBlobFrees>,
}

/// A caller's request to compact a range fully.
#[derive(Clone, Debug)]
pub struct Forced {
    /// The key range of the request.
    pub range: KeyRange,
    /// The request rewrites runs with a smaller identity than this limit. The outputs have larger identities. So they
    /// are not rewritten again, even if they still hold old versions that snapshots need.
    pub before: OwnerId,
}

impl Forced {
    pub(super) fn concerns(&self, leaf: &Node, branches: &[Branch]) -> bool {
        self.range.overlaps(&leaf.range) && branches.iter().any(|branch| branch.slice.run().meta().id < self.before)
    }
}
