//! Implements [`IndexView`] for [`HotView`]: lookups, scans, and the search for changes.

use std::sync::Arc;

use super::cursor::HotCursor;
use super::view::HotView;
use crate::base::{HashedKey, KeyRange, RangeTombstone, Result, Seqno};
use crate::index::tree::read::{TreeProbe, changed};
use crate::index::tree::view::TreeView;
use crate::index::{Base, Changes, IndexView, Lookup, Probe, RawCursor, Step};
use crate::pool::Block;

impl IndexView for HotView {
    /// All seqnos: a commit is in the index before it is visible.
    fn through(&self) -> Seqno {
        Seqno::MAX
    }

    fn horizon(&self) -> Seqno {
        self.horizon()
    }

    fn probe<'v>(&'v self, _: &Lookup<'_>) -> Box<dyn Probe<'v> + 'v> {
        Box::new(HotProbe { view: self, on_disk: None })
    }

    fn cursor(self: Arc<Self>, range: Arc<KeyRange>, reverse: bool) -> Result<Box<dyn RawCursor>> {
        self.check_readable()?;
        Ok(Box::new(HotCursor::new(self, range, reverse, Seqno(0))))
    }

    fn tombstones(&self, range: &KeyRange, out: &mut Vec<RangeTombstone>) -> Result<()> {
        self.look(|_, tree, tombstones| {
            tree.check_readable()?;
            out.extend(tombstones.clipped(range));
            out.extend(tree.tombstones.clipped(range));
            Ok(())
        })
    }

    fn changed(self: Arc<Self>, key: HashedKey<'_>, since: Seqno, changes: Changes) -> Result<bool> {
        loop {
            let (covering, range, tree) = self.find(key.key, Seqno::MAX);
            let Some(range) = range.filter(|_| covering <= since) else {
                return if covering > since { Ok(true) } else { changed(&tree, key.key, since, changes) };
            };
            let contents = range.contents.read();
            if !contents.is_divided {
                let mut newer = contents.messages(key.key).take_while(|entry| entry.seqno > since);
                return Ok(newer.any(|entry| changes.include(entry.kind)));
            }
        }
    }

    fn cursor_since(self: Arc<Self>, range: &KeyRange, since: Seqno) -> Result<Box<dyn RawCursor>> {
        self.check_readable()?;
        Ok(Box::new(HotCursor::new(self, Arc::new(range.clone()), false, since)))
    }
}

/// A point lookup.
struct HotProbe<'v> {
    view: &'v HotView,
    /// The lookup in the tree on disk, once it is known that the key is not in memory.
    on_disk: Option<TreeProbe<'v, Arc<TreeView>>>,
}

impl<'v> Probe<'v> for HotProbe<'v> {
    fn step(&mut self, block: Option<Block>, lookup: &mut Lookup<'_>) -> Result<Step<'v>> {
        if let Some(on_disk) = &mut self.on_disk {
            return on_disk.step(block, lookup);
        }
        if lookup.is_done() {
            return Ok(Step::Done);
        }
        let key = lookup.key;
        loop {
            let (covering, range, tree) = self.view.find(key, lookup.at);
            lookup.enter(covering);
            let Some(range) = range else {
                let on_disk = TreeProbe::new(tree, &self.view.shared.tree.source).without_rows();
                return self.on_disk.insert(on_disk).step(None, lookup);
            };
            range.touch();
            let contents = range.contents.read();
            if contents.is_divided {
                continue;
            }
            for entry in contents.messages(key) {
                if lookup.take(&entry, || Base::Owned(entry.value.into()))?.is_break() {
                    break;
                }
            }
            lookup.leave();
            return Ok(Step::Done);
        }
    }
}
