//! [`HotView`]: what readers see. A key is looked up in memory first; if no range in memory has the key, the tree on
//! disk is searched.
//!
//! A thread that publishes a root, adds or removes ranges, or moves range tombstones to the tree on disk holds the
//! directory for writing. So a reader that holds the directory for reading finds ranges, root and tombstones that
//! belong together ([`HotView::look`]). What it found stays right for its read point after it has released the
//! directory: the messages that the read point needs were all applied before the read began.
//!
//! When the keyspace is dropped, living views keep the last state.
//!
//! The row cache is not used: a job would have to remove the rows of all keys that it writes.

use std::sync::Arc;

use super::shared::{Frozen, Shared};
use crate::base::sync::OnceLock;
use crate::base::{FragmentSet, Result, Seqno, seeded};
use crate::index::hot::{HotRange, Ranges};
use crate::index::tree::view::TreeView;

/// A state of the index that readers pin. Unlike the views of other indexes it is not immutable: later writes are in
/// it, too. Readers ignore messages above their read point.
pub struct HotView {
    pub(super) shared: Arc<Shared>,
    horizon: Seqno,
    /// Set when the keyspace is dropped.
    frozen: OnceLock<Arc<Frozen>>,
}

impl HotView {
    pub(super) fn new(shared: Arc<Shared>, horizon: Seqno) -> HotView {
        HotView { shared, horizon, frozen: OnceLock::new() }
    }

    /// The smallest read point for reads without a snapshot.
    pub(super) fn horizon(&self) -> Seqno {
        self.horizon
    }

    /// A view of the current state with another horizon.
    pub(super) fn with_horizon(&self, horizon: Seqno) -> HotView {
        HotView::new(self.shared.clone(), horizon)
    }

    /// From now on, the view shows `frozen`. REQUIRES: the caller holds the directory for writing.
    pub(super) fn freeze(&self, frozen: &Arc<Frozen>) {
        let _ = self.frozen.set(frozen.clone());
    }

    /// Calls `look` with the ranges in memory, the root, and the range tombstones in memory.
    pub(super) fn look<T>(&self, look: impl FnOnce(&Ranges, &Arc<TreeView>, &FragmentSet) -> T) -> T {
        self.shared.look(|ranges, tree, tombstones| match self.frozen.get() {
            Some(frozen) => look(&frozen.ranges, &frozen.tree, &frozen.tombstones),
            None => look(ranges, tree, tombstones),
        })
    }

    /// The newest range tombstone at or below `at` that covers `key`, the range in memory with the key, and the root.
    pub(super) fn find(&self, key: &[u8], at: Seqno) -> (Seqno, Option<Arc<HotRange>>, Arc<TreeView>) {
        let early = seeded!(HotStaleRoot: Some(self.shared.tree.published.load_full()), None);
        self.look(|ranges, tree, tombstones| {
            let covering = tombstones.covering(key, at).max(tree.tombstones.covering(key, at));
            (covering, ranges.find(key).cloned(), early.unwrap_or_else(|| tree.clone()))
        })
    }

    pub(super) fn check_readable(&self) -> Result<()> {
        self.look(|_, tree, _| tree.check_readable())
    }
}
