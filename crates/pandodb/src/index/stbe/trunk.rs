//! [`Trunk`]: the state that a root swap replaces. A clone costs O(1). A checkpoint, a verification and a view each
//! keep a clone.

use std::sync::Arc;

use super::node::{Branch, Node};
use super::scans::Scans;
use crate::base::Seqno;
use crate::index::blobs::BlobMap;
use crate::index::deferred_frees::DeferredFrees;
use crate::index::runs::Forced;

/// The state that a root swap replaces.
#[derive(Clone)]
pub(super) struct Trunk {
    pub(super) root: Arc<Node>,
    pub(super) through: Seqno,
    pub(super) horizon: Seqno,
    /// The map of the pages of large values that runs of this root refer to.
    pub(super) blobs: BlobMap,
    /// Ranges to compact, because callers asked for it or because scans would be faster.
    pub(super) forced: Vec<Forced>,
    /// Receives the large values that the next root swap drops. These values are freed when older views are gone.
    pub(super) deferred_frees: Arc<DeferredFrees>,
    /// What scans used lately, and what they cost. All roots share it.
    pub(super) scans: Arc<Scans>,
}

/// Whether a request to compact a range concerns these branches of a leaf.
pub(super) fn concerns(request: &Forced, leaf: &Node, branches: &[Branch]) -> bool {
    let is_old = |branch: &Branch| branch.slice.run().meta().id < request.before;
    request.range.overlaps(&leaf.range) && branches.iter().any(is_old)
}
