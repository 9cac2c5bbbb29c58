//! Reading: the point lookup, and the search for changes.
//!
//! A lookup first searches the row cache and the range tombstones, then walks from the root to the leaf of the key. If
//! a sorted load waits to be merged, its tree is searched before the other one. On its way, the lookup searches the
//! buffer of each page before the child, because the messages in the buffer are newer. Each page comes from the pool,
//! or is requested from the caller. A plain value that was found is offered to the row cache.

use std::ops::Deref;
use std::sync::Arc;

use super::levels::cursor_of;
use super::view::TreeView;
use crate::base::{Entry, Error, HashedKey, KeyRange, RangeTombstone, Result, Seqno, seeded};
use crate::index::cached_rows::{offer, recall};
use crate::index::pages::{Inner, PageRef, PageSource, Root};
use crate::index::{Base, Changes, IndexView, Lookup, Probe, RawCursor, Step};
use crate::pool::Block;

impl IndexView for TreeView {
    fn through(&self) -> Seqno {
        self.through
    }

    fn horizon(&self) -> Seqno {
        self.horizon
    }

    fn probe<'v>(&'v self, _: &Lookup<'_>) -> Box<dyn Probe<'v> + 'v> {
        Box::new(TreeProbe::new(self, &self.source))
    }

    fn offer_row(&self, key: &[u8], hash: u64, value: &[u8], seqno: Seqno) {
        self.rows.offer(key, hash, value, seqno, self.through);
    }

    fn cursor(self: Arc<Self>, range: Arc<KeyRange>, reverse: bool) -> Result<Box<dyn RawCursor>> {
        self.check_readable()?;
        Ok(cursor_of(self, range, reverse, Seqno(0)))
    }

    fn tombstones(&self, range: &KeyRange, out: &mut Vec<RangeTombstone>) -> Result<()> {
        self.check_readable()?;
        out.extend(self.tombstones.clipped(range));
        Ok(())
    }

    fn changed(self: Arc<Self>, key: HashedKey<'_>, since: Seqno, changes: Changes) -> Result<bool> {
        changed(&self, key.key, since, changes)
    }

    fn cursor_since(self: Arc<Self>, range: &KeyRange, since: Seqno) -> Result<Box<dyn RawCursor>> {
        self.check_readable()?;
        Ok(cursor_of(self, Arc::new(range.clone()), false, since))
    }
}

/// Whether the tree has a change of `key` with a seqno above `since`. Pages without a newer message are not read.
pub(super) fn changed(view: &TreeView, key: &[u8], since: Seqno, changes: Changes) -> Result<bool> {
    if view.tombstones.covering(key, Seqno::MAX) > since {
        return Ok(true);
    }
    let Some(Down { mut page, mut level, mut after, mut below }) = Down::start(view)? else { return Ok(false) };
    loop {
        let mut continues = false;
        if page.totals.newest > since {
            let block = view.source.page(&page, level)?;
            if level > 0 {
                let down = Down::search(&page.inner(&block), key, below.take());
                (page, level, after, below) = (down.page, down.level, down.after, down.below);
                continue;
            }
            let leaf = page.leaf(&block);
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
            continues = leaf.continues();
        }
        match (after.pop(), below.take()) {
            (Some(next), rest) if continues => (page, below) = (next, rest),
            (_, Some(Below { page: next, level: next_level, after: next_after })) => {
                (page, level, after) = (next, next_level, next_after);
            }
            (_, None) => return Ok(false),
        }
    }
}

/// A child that is searched after the buffer of its parent, or the root that is searched after the tree of a load.
struct Below {
    page: PageRef,
    level: u32,
    /// The leaves that continue the messages of the last key of the child, last first.
    after: Vec<PageRef>,
}

/// The page that is searched after an inner page.
struct Down {
    page: PageRef,
    level: u32,
    after: Vec<PageRef>,
    below: Option<Below>,
}

impl Down {
    /// The newest root; `None` if the view has no message. A tree that a load has brought is like a buffer: it is
    /// searched before the other tree.
    fn start(view: &TreeView) -> Result<Option<Down>> {
        let mut roots = view.roots()?;
        let Some(Root { page, level }) = roots.next() else { return Ok(None) };
        let older = roots.next().map(|Root { page, level }| Below { page, level, after: Vec::new() });
        Ok(Some(Down { page, level, after: Vec::new(), below: older }))
    }

    /// Searches an inner page for `key`. `below` is set if the page is the inner page of a buffer.
    fn search(inner: &Inner<'_>, key: &[u8], below: Option<Below>) -> Down {
        let at = inner.search(key);
        let (page, level, after) = (inner.page(at), inner.level() - 1, inner.continued_after(at));
        match seeded!(BufferNotSearched: None, inner.buffer().filter(|_| below.is_none())) {
            Some(buffer) => {
                let below = Some(Below { page, level, after });
                Down { page: buffer.page, level: buffer.level, after: Vec::new(), below }
            }
            None => Down { page, level, after, below },
        }
    }
}

/// A point lookup in one root. `V` is a reference to the view, or owns the view.
pub(super) struct TreeProbe<'v, V> {
    view: V,
    source: &'v PageSource,
    /// Whether the row cache is used.
    uses_rows: bool,
    /// The page that was requested, and the number of its copy; `None` if nothing was requested yet.
    asked: Option<(Down, usize)>,
}

impl<'v, V: Deref<Target = TreeView>> TreeProbe<'v, V> {
    /// A lookup that has not begun. `source` are the pages of the tree.
    pub(super) fn new(view: V, source: &'v PageSource) -> TreeProbe<'v, V> {
        TreeProbe { view, source, uses_rows: true, asked: None }
    }

    /// Neither asks the row cache nor offers rows to it.
    pub(super) fn without_rows(self) -> TreeProbe<'v, V> {
        TreeProbe { uses_rows: false, ..self }
    }

    /// Requests a page. Pages that the pool has are used at once.
    fn ask(&mut self, down: Down, copy: usize) -> Step<'v> {
        let request = self.source.request(&down.page, down.level, copy);
        self.asked = Some((down, copy));
        Step::Need(request)
    }
}

impl<'v, V: Deref<Target = TreeView> + Send> Probe<'v> for TreeProbe<'v, V> {
    fn step(&mut self, block: Option<Block>, lookup: &mut Lookup<'_>) -> Result<Step<'v>> {
        let Some((Down { page, level, mut after, below }, copy)) = self.asked.take() else {
            let start = Down::start(&self.view)?;
            if lookup.is_done() || self.uses_rows && recall(&self.view.rows, self.view.through, lookup) {
                return Ok(Step::Done);
            }
            lookup.enter(self.view.tombstones.covering(lookup.key, lookup.at));
            let Some(start) = start else {
                lookup.leave();
                return Ok(Step::Done);
            };
            return Ok(self.ask(start, 0));
        };
        let source = self.source;
        let good = block.map(|block| source.expect(&block, &page, level).map(|()| block)).transpose();
        let block = match good {
            Ok(Some(block)) => block,
            // The first copy of an inner page is damaged or out of date.
            Ok(None) | Err(_) if copy == 0 && page.second.is_some() => {
                return Ok(self.ask(Down { page, level, after, below }, 1));
            }
            Ok(None) => return Err(Error::invalid("a page that is not optional was not loaded")),
            Err(e) => return Err(e),
        };
        if level > 0 {
            return Ok(self.ask(Down::search(&page.inner(&block), lookup.key, below), 0));
        }
        lookup.tally.leaves += 1;
        let continues = search(&page, block, lookup)?;
        if self.uses_rows {
            offer(&self.view.rows, self.view.through, lookup);
        }
        if !lookup.is_done() {
            if continues && let Some(page) = after.pop() {
                return Ok(self.ask(Down { page, level: 0, after, below }, 0));
            }
            if let Some(Below { page, level, after }) = below {
                return Ok(self.ask(Down { page, level, after, below: None }, 0));
            }
        }
        lookup.leave();
        Ok(Step::Done)
    }
}

/// Collects the messages of a lookup's key in a leaf. A value that was found keeps the guard of its page, which is
/// cheaper than a reference count.
fn search(page: &PageRef, block: Block, lookup: &mut Lookup<'_>) -> Result<bool> {
    let leaf = page.leaf(&block);
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
