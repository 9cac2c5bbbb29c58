//! [`World`]: the state that a swap of the table replaces. A clone costs O(1) and is what a checkpoint, a verification
//! and a view keep.

use std::sync::Arc;

use super::table::Table;
use crate::base::{KeyRange, OwnerId, Seqno};
use crate::index::blobs::BlobMap;
use crate::index::deferred_frees::DeferredBlobFrees;

/// The state that a swap of the table replaces.
#[derive(Clone)]
pub(super) struct World {
    pub(super) table: Arc<Table>,
    pub(super) through: Seqno,
    pub(super) horizon: Seqno,
    /// Pages of large values that runs of the table name.
    pub(super) blobs: BlobMap,
    /// Ranges that callers asked to compact fully.
    pub(super) forced: Vec<Forced>,
    /// Receives the large values that the next swap drops; they are freed when older views are gone.
    pub(super) deferred_frees: Arc<DeferredBlobFrees>,
}

/// A caller's request to compact a range fully.
#[derive(Clone, Debug)]
pub(super) struct Forced {
    pub(super) range: KeyRange,
    /// Runs with a smaller identity are to be rewritten. The outputs have larger identities and are not rewritten
    /// again, even if they still hold garbage for snapshots.
    pub(super) before: OwnerId,
}
