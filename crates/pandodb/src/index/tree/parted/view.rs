//! [`PartView`]: what readers see. A key is looked up in its part first, then in the tree on disk.
//!
//! Part and root come from one [`State`]. An old state stays valid for its readers: its parts keep the messages that its
//! root lacks. Each call uses the current state, so it finds all messages that were applied before.
//!
//! A job drops versions that only readers without a registered read point could need. Such a reader asks for the horizon
//! before and after its read, and repeats the read if the horizon has passed its read point.
//!
//! When the keyspace is dropped, the view keeps the last state.
//!
//! The row cache is not used: a job would have to remove the rows of all keys that it writes.

use std::sync::Arc;

use super::cursor::PartCursor;
use super::state::{Shared, State};
use crate::base::sync::{Guard, OnceLock};
use crate::base::{HashedKey, KeyRange, RangeTombstone, Result, Seqno, seeded};
use crate::index::tree::read::{TreeProbe, changed};
use crate::index::tree::view::TreeView;
use crate::index::{Changes, IndexView, Lookup, Probe, RawCursor, Step};
use crate::pool::Block;

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

impl IndexView for PartView {
    /// All seqnos: a commit is in the index before it is visible.
    fn through(&self) -> Seqno {
        Seqno::MAX
    }

    fn horizon(&self) -> Seqno {
        seeded!(PartHorizonHidden: Seqno(0), self.state().tree.horizon)
    }

    fn probe<'v>(&'v self, _: &Lookup<'_>) -> Box<dyn Probe<'v> + 'v> {
        Box::new(PartProbe { view: self, on_disk: None })
    }

    fn cursor(self: Arc<Self>, range: Arc<KeyRange>, reverse: bool) -> Result<Box<dyn RawCursor>> {
        self.state().tree.check_readable()?;
        Ok(Box::new(PartCursor::new(self, range, reverse, Seqno(0))))
    }

    fn tombstones(&self, range: &KeyRange, out: &mut Vec<RangeTombstone>) -> Result<()> {
        let state = self.state();
        state.tree.check_readable()?;
        for part in state.overlapping(range) {
            part.tombstones(range, |set, keys| out.extend(set.clipped(keys)));
        }
        out.extend(state.tree.tombstones.clipped(range));
        Ok(())
    }

    fn changed(self: Arc<Self>, key: HashedKey<'_>, since: Seqno, changes: Changes) -> Result<bool> {
        let state = self.state();
        let is_new = state.part_of(key.key).has_changed(key.key, since, changes);
        if is_new { Ok(true) } else { changed(&state.tree, key.key, since, changes) }
    }

    fn cursor_since(self: Arc<Self>, range: &KeyRange, since: Seqno) -> Result<Box<dyn RawCursor>> {
        self.state().tree.check_readable()?;
        Ok(Box::new(PartCursor::new(self, Arc::new(range.clone()), false, since)))
    }
}

/// A point lookup.
struct PartProbe<'v> {
    view: &'v PartView,
    /// The lookup in the tree on disk, once the part was searched.
    on_disk: Option<TreeProbe<'v, Arc<TreeView>>>,
}

impl<'v> Probe<'v> for PartProbe<'v> {
    fn step(&mut self, block: Option<Block>, lookup: &mut Lookup<'_>) -> Result<Step<'v>> {
        if let Some(on_disk) = &mut self.on_disk {
            return on_disk.step(block, lookup);
        }
        if lookup.is_done() {
            return Ok(Step::Done);
        }
        let early = seeded!(PartStaleRoot: Some(self.view.state().tree.clone()), None);
        let state = self.view.state();
        state.part_of(lookup.key).search(lookup)?;
        if lookup.is_done() {
            return Ok(Step::Done);
        }
        let tree = early.unwrap_or_else(|| state.tree.clone());
        let on_disk = TreeProbe::new(tree, &self.view.shared.tree.source).without_rows();
        self.on_disk.insert(on_disk).step(None, lookup)
    }
}
