//! Reading: the view of a root, the point lookup, and the search for changes.
//!
//! A lookup first asks the range tombstones, then walks from the root to the leaf of the key. Each page comes from the
//! pool, or is requested from the caller.

use std::sync::Arc;

use super::cursor::TreeCursor;
use super::world::World;
use crate::base::{Entry, Error, Fragments, HashedKey, KeyRange, PAGE, RangeTombstone, Result, Seqno};
use crate::index::deferred_frees::DeferredFrees;
use crate::index::pages::{Inner, PageRef, PageSource, Root};
use crate::index::{Base, Changes, Estimate, IndexStats, IndexView, Lookup, Probe, RawCursor, Step};
use crate::pool::Block;
use crate::run::Leaf;

/// An immutable root and what belongs to it.
pub struct BtreeView {
    pub(super) root: Option<Root>,
    pub(super) source: Arc<PageSource>,
    pub(super) tombstones: Arc<Fragments>,
    pub(super) lost: Option<Error>,
    through: Seqno,
    horizon: Seqno,
    page_bytes: u64,
    blob_bytes: u64,
    /// No function reads this field. While the view exists, the field keeps the pages and large values allocated that
    /// later swaps drop.
    _deferred_frees: Arc<DeferredFrees>,
}

impl BtreeView {
    pub(super) fn of(world: &World, source: &Arc<PageSource>) -> BtreeView {
        BtreeView {
            root: world.root,
            source: source.clone(),
            tombstones: world.tombstones.clone(),
            lost: world.lost.clone(),
            through: world.through,
            horizon: world.horizon,
            page_bytes: world.pages.pages() * PAGE as u64,
            blob_bytes: world.blobs.pages() * PAGE as u64,
            _deferred_frees: world.deferred_frees.clone(),
        }
    }

    /// The root, unless the tree is lost.
    pub(super) fn root(&self) -> Result<Option<Root>> {
        self.lost.clone().map_or(Ok(self.root), Err)
    }

    pub(super) fn stats(&self) -> IndexStats {
        let totals = self.root.map(|root| root.page.totals).unwrap_or_default();
        let mut stats = IndexStats {
            entries: totals.entries,
            tombstones: totals.deletes,
            logical_bytes: totals.bytes,
            disk_bytes: self.page_bytes + self.blob_bytes,
            ..IndexStats::default()
        };
        let levels = self.root.map_or(1, |root| u64::from(root.level) + 1);
        stats.gauge("levels", levels, "Levels of pages; 1 for an empty index.");
        stats.gauge("older_versions", totals.older, "Messages that are not the newest of their key.");
        let tombstones = self.tombstones.len() as u64;
        stats.gauge("range_tombstones", tombstones, "Range deletes whose keys were not removed from all leaves yet.");
        stats
    }
}

impl IndexView for BtreeView {
    fn through(&self) -> Seqno {
        self.through
    }

    fn horizon(&self) -> Seqno {
        self.horizon
    }

    fn probe<'v>(&'v self, _: &Lookup<'_>) -> Box<dyn Probe<'v> + 'v> {
        Box::new(TreeProbe { view: self, at: At::Start })
    }

    fn cursor(self: Arc<Self>, range: Arc<KeyRange>, reverse: bool) -> Result<Box<dyn RawCursor>> {
        self.root()?;
        Ok(Box::new(TreeCursor::new(self, range, reverse, Seqno(0))))
    }

    fn tombstones(&self, range: &KeyRange, out: &mut Vec<RangeTombstone>) -> Result<()> {
        self.root()?;
        out.extend(self.tombstones.clipped(range));
        Ok(())
    }

    fn changed(self: Arc<Self>, key: HashedKey<'_>, since: Seqno, changes: Changes) -> Result<bool> {
        changed(&self, key.key, since, changes)
    }

    fn cursor_since(self: Arc<Self>, range: &KeyRange, since: Seqno) -> Result<Box<dyn RawCursor>> {
        self.root()?;
        Ok(Box::new(TreeCursor::new(self, Arc::new(range.clone()), false, since)))
    }
}

/// Whether the tree has a change of `key` with a seqno above `since`. Pages without a newer message are not read.
fn changed(view: &BtreeView, key: &[u8], since: Seqno, changes: Changes) -> Result<bool> {
    let Some(Root { mut page, mut level }) = view.root()? else {
        return Ok(view.tombstones.covering(key, Seqno::MAX) > since);
    };
    if view.tombstones.covering(key, Seqno::MAX) > since {
        return Ok(true);
    }
    let mut after: Vec<PageRef> = Vec::new();
    loop {
        if page.totals.newest <= since {
            return Ok(false);
        }
        let block = view.source.page(&page, level)?;
        if level > 0 {
            let inner = Inner::of(&block);
            let at = inner.search(key);
            page = inner.page(at);
            level -= 1;
            if level == 0 {
                let continued = (at + 1..inner.len()).map(|i| inner.page(i)).take_while(|page| page.is_continued);
                after = continued.collect();
                after.reverse();
            }
            continue;
        }
        let leaf = Leaf::of(&block);
        for i in leaf.find(key) {
            let slot = leaf.slot(i);
            // All older messages of the key have smaller seqnos.
            if slot.seqno <= since {
                return Ok(false);
            }
            // A message above `through` is also in a memtable.
            if slot.seqno <= view.through && changes.include(slot.kind) {
                return Ok(true);
            }
        }
        match after.pop() {
            Some(next) if leaf.continues() => page = next,
            _ => return Ok(false),
        }
    }
}

/// The estimated contents of a range. Reads the inner pages at both ends of the range. Of the leaves at the ends it
/// counts a half.
pub(super) fn estimate(root: Option<Root>, source: &PageSource, range: &KeyRange) -> Result<Estimate> {
    let Some(Root { page, level }) = root else { return Ok(Estimate::default()) };
    let mut sum = Estimate::default();
    add_estimate(&page, level, &KeyRange::all(), source, range, &mut sum)?;
    Ok(sum)
}

fn add_estimate(
    page: &PageRef,
    level: u32,
    keys: &KeyRange,
    source: &PageSource,
    range: &KeyRange,
    sum: &mut Estimate,
) -> Result<()> {
    if !keys.overlaps(range) {
        return Ok(());
    }
    let is_inside = range.covers(keys);
    if is_inside || level == 0 {
        let part = if is_inside { 1 } else { 2 };
        sum.entries = sum.entries.saturating_add(page.totals.entries / part);
        sum.bytes = sum.bytes.saturating_add(page.totals.bytes / part);
        return Ok(());
    }
    let block = source.page(page, level)?;
    let children = Inner::of(&block).children(&keys.from);
    for (i, child) in children.iter().enumerate() {
        let to = children.get(i + 1).map_or(keys.to.as_slice(), |next| next.from.as_slice());
        let keys = KeyRange::new(child.from.as_slice(), to);
        add_estimate(&child.page, level - 1, &keys, source, range, sum)?;
    }
    Ok(())
}

/// The position of a lookup.
enum At {
    /// Nothing was searched yet.
    Start,
    /// A page was requested.
    Page {
        page: PageRef,
        level: u32,
        /// The copy that was requested.
        copy: usize,
        /// The leaves that continue the messages of the last key of the requested leaf, last first.
        after: Vec<PageRef>,
    },
}

/// A point lookup in one root.
struct TreeProbe<'v> {
    view: &'v BtreeView,
    at: At,
}

impl<'v> TreeProbe<'v> {
    /// Requests a page. Pages that the pool has are used at once.
    fn ask(&mut self, page: PageRef, level: u32, copy: usize, after: Vec<PageRef>) -> Step<'v> {
        self.at = At::Page { page, level, copy, after };
        Step::Need(self.view.source.request(&page, level, copy))
    }
}

impl<'v> Probe<'v> for TreeProbe<'v> {
    fn step(&mut self, block: Option<Block>, lookup: &mut Lookup<'_>) -> Result<Step<'v>> {
        let (page, level, copy, after) = match std::mem::replace(&mut self.at, At::Start) {
            At::Start => {
                let root = self.view.root()?;
                lookup.enter(self.view.tombstones.covering(lookup.key, lookup.at));
                let Some(Root { page, level }) = root else {
                    lookup.leave();
                    return Ok(Step::Done);
                };
                return Ok(self.ask(page, level, 0, Vec::new()));
            }
            At::Page { page, level, copy, after } => (page, level, copy, after),
        };
        let source = &self.view.source;
        let good = block.map(|block| source.expect(&block, &page, level).map(|()| block)).transpose();
        let block = match good {
            Ok(Some(block)) => block,
            // The first copy of an inner page is damaged or out of date.
            Ok(None) | Err(_) if copy == 0 && page.second.is_some() => return Ok(self.ask(page, level, 1, after)),
            Ok(None) => return Err(Error::invalid("a page that is not optional was not loaded")),
            Err(e) => return Err(e),
        };
        if level > 0 {
            let inner = Inner::of(&block);
            let at = inner.search(lookup.key);
            let after = match level {
                1 => {
                    let continued = (at + 1..inner.len()).map(|i| inner.page(i)).take_while(|page| page.is_continued);
                    let mut after: Vec<PageRef> = continued.collect();
                    after.reverse();
                    after
                }
                _ => Vec::new(),
            };
            return Ok(self.ask(inner.page(at), level - 1, 0, after));
        }
        lookup.tally.leaves += 1;
        let continues = search(block, lookup)?;
        let mut after = after;
        if !lookup.is_done()
            && continues
            && let Some(next) = after.pop()
        {
            return Ok(self.ask(next, 0, 0, after));
        }
        lookup.leave();
        Ok(Step::Done)
    }
}

/// Collects the messages of a lookup's key in a leaf. A value that was found keeps the guard of its page, which is
/// cheaper than a reference count.
fn search(block: Block, lookup: &mut Lookup<'_>) -> Result<bool> {
    let leaf = Leaf::of(&block);
    let continues = leaf.continues();
    let mut inline = None;
    for i in leaf.find(lookup.key) {
        let slot = leaf.slot(i);
        let entry = Entry { key: lookup.key, seqno: slot.seqno, kind: slot.kind, value: leaf.value(&slot) };
        let note = || {
            inline = Some(slot.value());
            Base::Absent
        };
        if lookup.take(&entry, note)?.is_break() {
            break;
        }
    }
    if let Some(value) = inline {
        lookup.base = Base::Inline(block, value);
    }
    Ok(continues)
}
