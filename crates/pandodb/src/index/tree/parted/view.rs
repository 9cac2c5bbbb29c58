//! [`PartView`]: what readers see. A key is looked up in its part first, then in the tree on disk.
//!
//! Part and root come from one [`State`]. An old state stays valid for its readers: its parts keep the messages that its
//! root lacks. Each call uses the current state, so it finds all messages that were applied before.
//!
//! A job drops versions that only readers without a registered read point could need. Such a reader asks for the horizon
//! before and after its read, and repeats the read if the horizon has passed its read point.
//!
//! When the keyspace is dropped, the view keeps the last state, and the index gets a new view without messages. So the
//! pages of the last state are freed when the last reader that holds the old view drops it.
//!
//! The row cache is not used: a job would have to remove the rows of all keys that it writes.

use std::sync::Arc;

use super::shared::{Shared, State};
use crate::base::sync::{Guard, OnceLock};

/// The view of all readers. Later writes are in it, too; readers ignore messages above their read point.
pub struct PartView {
    pub(super) shared: Arc<Shared>,
    /// Set when the keyspace is dropped.
    frozen: OnceLock<Arc<State>>,
}

impl PartView {
    pub(super) fn new(shared: Arc<Shared>) -> PartView {
        PartView { shared, frozen: OnceLock::new() }
    }

    /// From now on, the view shows `state`.
    pub(super) fn freeze(&self, state: Arc<State>) {
        let _ = self.frozen.set(state);
    }

    /// The current state.
    pub(super) fn state(&self) -> Guard<Arc<State>> {
        // Loaded first: after the keyspace was dropped, the current state is empty.
        let current = self.shared.current.load();
        self.frozen.get().map_or(current, |frozen| Guard::from_inner(frozen.clone()))
    }
}
