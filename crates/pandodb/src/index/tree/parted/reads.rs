//! Implements [`IndexView`] for [`PartView`]: lookups, scans, and the search for changes.

use std::sync::Arc;

use super::cursor::PartCursor;
use super::view::PartView;
use crate::base::{HashedKey, KeyRange, RangeTombstone, Result, Seqno, seeded};
use crate::index::tree::read::{TreeProbe, changed};
use crate::index::tree::view::TreeView;
use crate::index::{Changes, IndexView, Lookup, Probe, RawCursor, Step};
use crate::pool::Block;

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
