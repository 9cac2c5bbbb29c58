//! [`World`]: the state that a swap of the root replaces. A clone costs O(1). A checkpoint, a verification and a view
//! each keep a clone.

use std::sync::Arc;

use super::node::Node;
use crate::base::Seqno;
use crate::index::blobs::BlobMap;
use crate::index::deferred_frees::DeferredFrees;
use crate::index::runs::Forced;
use crate::run::ScanHabits;

/// The state that a swap of the root replaces.
#[derive(Clone)]
pub(super) struct World {
    pub(super) root: Arc<Node>,
    pub(super) through: Seqno,
    pub(super) horizon: Seqno,
    /// The map of the pages of large values that runs of the tree refer to.
    pub(super) blobs: BlobMap,
    /// Ranges that callers asked to compact fully.
    pub(super) forced: Vec<Forced>,
    /// Receives the large values that the next swap drops. These values are freed when older views are gone.
    pub(super) deferred_frees: Arc<DeferredFrees>,
    /// What scans used lately. All roots share it.
    pub(super) scans: Arc<ScanHabits>,
}
