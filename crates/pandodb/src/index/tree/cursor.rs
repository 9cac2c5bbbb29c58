//! [`TreeCursor`]: a scan of one root, in order or in reverse order: of the leaves of the tree, or of the buffers of
//! one level.
//!
//! ```text
//!   path: inner page and child number for each level    ─▶ leaves of the lowest inner page, read ahead
//!                                                              │
//!   leaf  [ · · ■ ■ ■ ■ · ]      ■ window: entries inside the range that were not returned yet
//! ```
//!
//! The number of leaves that are read ahead begins at 1 and doubles with each leaf that the scan enters, so a short
//! scan reads little and a long scan keeps the device busy.
//!
//! Invariant: the path leads to the child that is wanted next; the leaves before it, in the direction of the scan, were
//! wanted, or left out because they have no message for the reader.

use std::ops::Range;
use std::sync::Arc;

use super::loaded::{LoadedPages, check_inner};
use super::view::TreeView;
use crate::base::{Entry, EntryBlock, KeyRange, Result, Seqno, seeded};
use crate::blocks::BlockSource;
use crate::index::pages::source::OnceRead;
use crate::index::pages::{Inner, LeafAhead, PageRef, Root};
use crate::index::{IndexView, RawCursor};
use crate::pool::Block;

/// The most leaves that are read ahead.
const MOST_AHEAD: usize = 32;
/// No further leaf is read ahead while the leaves read ahead have this number of bytes.
const MOST_AHEAD_BYTES: usize = 512 << 10;
/// Only a scan of more leaves than this counts as long for the pool.
const LONG: usize = 16;

/// An inner page of the path.
struct Level {
    page: PageRef,
    block: Block,
    /// The child that is visited next; `None` if no child is left.
    next: Option<usize>,
}

/// A scan of one root.
pub(super) struct TreeCursor {
    view: Arc<TreeView>,
    /// The root that is scanned; one of those of the view.
    root: Option<Root>,
    /// The level of the pages whose buffers are scanned; 0 for the leaves of the tree.
    of: u32,
    /// The range with which the cursor was made.
    whole: Arc<KeyRange>,
    /// The part of it from the last seek on.
    range: Arc<KeyRange>,
    reverse: bool,
    /// Pages without a message above this seqno are left out.
    since: Seqno,
    /// No page that is completely behind this key, in the direction of the scan, is entered yet.
    pause: Option<Vec<u8>>,
    /// Keys whose messages the reader does not need if they are older than the seqno.
    covered: Option<(KeyRange, Seqno)>,
    /// The rest of the range, until the path is known.
    start: Option<Arc<KeyRange>>,
    path: Vec<Level>,
    ahead: LeafAhead,
    /// The number of leaves entered since the last seek.
    entered: usize,
    leaf: Option<(PageRef, OnceRead)>,
    window: Range<usize>,
    key: Vec<u8>,
    /// Set if the pages are those of a sorted load that is being merged.
    loaded: Option<LoadedPages>,
}

impl TreeCursor {
    /// A cursor over the messages in `range` that the pages of level `of` below `root` have, without pages that have no
    /// message above `since`. Reads nothing yet. With `since`, the leaves that are read are not cached.
    pub(super) fn new(
        view: Arc<TreeView>,
        (root, of): (Option<Root>, u32),
        range: Arc<KeyRange>,
        reverse: bool,
        since: Seqno,
    ) -> TreeCursor {
        TreeCursor {
            view,
            root,
            of,
            start: Some(range.clone()),
            whole: range.clone(),
            range,
            reverse,
            since,
            pause: None,
            covered: None,
            path: Vec::new(),
            ahead: LeafAhead::default(),
            entered: 0,
            leaf: None,
            window: 0..0,
            key: Vec::new(),
            loaded: None,
        }
    }

    /// A cursor over the rows of the load that waits in `view`, in order, for a job that merges them. It checks the
    /// pages.
    pub(super) fn of_load(view: Arc<TreeView>, range: KeyRange) -> TreeCursor {
        let root = view.loaded;
        let newest = root.map_or(Seqno(1), |root| root.page.totals.newest);
        // All rows are newer than this seqno. With such a seqno, the leaves that are read are not cached.
        let since = Seqno(newest.0 - 1);
        let cursor = TreeCursor::new(view, (root, 0), Arc::new(range), false, since);
        TreeCursor { loaded: Some(LoadedPages::new(newest)), ..cursor }
    }

    /// Finds the path to the first leaf of the range, and wants this leaf.
    fn begin(&mut self, range: &KeyRange) -> Result<()> {
        self.path.clear();
        self.ahead.clear();
        self.entered = 0;
        if let Some(loaded) = &mut self.loaded {
            loaded.restart();
        }
        let Some(root) = self.root.filter(|root| !range.is_empty() && root.level >= self.of) else {
            return Ok(());
        };
        if let Some(loaded) = &self.loaded {
            loaded.reference(&root.page, &self.view.source)?;
        }
        if root.level == 0 {
            self.want(root.page, 0);
            return Ok(());
        }
        self.descend(root.page, root.level, Some(range))
    }

    /// Enters an inner page and the pages below it, down to the page above the leaves that are scanned. With `range`,
    /// enters them at the start of the range; else at their first child in the direction of the scan.
    fn descend(&mut self, mut page: PageRef, mut level: u32, range: Option<&KeyRange>) -> Result<()> {
        let mut is_buffer = false;
        loop {
            let block = self.view.source.page(&page, level)?.keep();
            let inner = page.inner(&block);
            if self.loaded.is_some() {
                check_inner(&inner).map_err(|flaw| self.view.source.corrupt(&page, flaw))?;
            }
            if level == self.of && !is_buffer {
                match inner.buffer() {
                    None => return Ok(()),
                    Some(Root { page, level: 0 }) => {
                        self.want(page, 0);
                        return Ok(());
                    }
                    Some(buffer) => (page, level, is_buffer) = (buffer.page, buffer.level, true),
                }
                continue;
            }
            let at = match (range, self.reverse) {
                (Some(range), false) => inner.search(&range.from),
                (Some(range), true) if !range.to.is_empty() => inner.search(&range.to),
                (_, false) => seeded!(TreeScanSkipsLeaf: 1.min(inner.len() - 1), 0),
                (_, true) => inner.len() - 1,
            };
            let child = inner.page(at);
            let next = if level == 1 { Some(at) } else { self.beside(&inner, at) };
            self.path.push(Level { page, block, next });
            if level == 1 {
                return Ok(());
            }
            if let Some(loaded) = &self.loaded {
                loaded.reference(&child, &self.view.source)?;
            }
            (page, level) = (child, level - 1);
        }
    }

    /// The lower bound of child `at` of the lowest page of the path.
    fn bound_of(&self, at: usize) -> Vec<u8> {
        let (mut at, mut key) = (at, Vec::new());
        for (i, level) in self.path.iter().enumerate().rev() {
            let inner = level.page.inner(&level.block);
            if i + 1 < self.path.len() {
                at = level.next.unwrap_or(inner.len()) - 1;
            }
            if at > 0 {
                inner.separator(at, &mut key);
                break;
            }
        }
        key
    }

    /// The child after child `at`, in the direction of the scan.
    fn beside(&self, inner: &Inner<'_>, at: usize) -> Option<usize> {
        if self.reverse { at.checked_sub(1) } else { Some(at + 1).filter(|&next| next < inner.len()) }
    }

    /// Whether child `at` is beyond the end of the range.
    fn is_beyond(&mut self, inner: &Inner<'_>, at: usize) -> bool {
        if self.reverse {
            // The keys of the child are below the separator of the next child.
            if self.range.from.is_empty() || at + 1 == inner.len() {
                return false;
            }
            inner.separator(at + 1, &mut self.key);
            return self.key.as_slice() <= self.range.from.as_slice();
        }
        if self.range.to.is_empty() || at == 0 {
            return false;
        }
        inner.separator(at, &mut self.key);
        // A leaf that continues the messages of a key has the smallest key above it as its separator.
        let order = self.key.as_slice().cmp(self.range.to.as_slice());
        if inner.page(at).is_continued { order.is_gt() } else { order.is_ge() }
    }

    /// Whether the reader needs no message of child `at`.
    fn is_left_out(&mut self, inner: &Inner<'_>, at: usize, page: &PageRef) -> bool {
        if page.totals.newest <= self.since && self.since > Seqno(0) {
            return true;
        }
        let Some((covered, seqno)) = &self.covered else { return false };
        if page.is_continued || page.totals.newest >= *seqno || at == 0 || at + 1 == inner.len() {
            return false;
        }
        inner.separator(at, &mut self.key);
        let is_above = covered.from.as_slice() <= self.key.as_slice();
        inner.separator(at + 1, &mut self.key);
        is_above && (covered.to.is_empty() || self.key.as_slice() <= covered.to.as_slice())
    }

    /// Whether the scan waits before child `at`, because the child is behind the key at which it pauses.
    fn is_paused(&mut self, inner: &Inner<'_>, at: usize) -> bool {
        let Some(pause) = &self.pause else { return false };
        if self.reverse {
            inner.separator((at + 1).min(inner.len() - 1), &mut self.key);
            return at + 1 < inner.len() && self.key <= *pause;
        }
        inner.separator(at, &mut self.key);
        if inner.page(at).is_continued {
            // The leaf begins with messages of the key before its separator.
            self.key.pop();
        }
        at > 0 && self.key > *pause
    }

    /// Whether no message is left.
    pub(super) fn is_at_end(&self) -> bool {
        self.start.is_none() && self.window.is_empty() && self.ahead.is_empty() && self.path.is_empty()
    }

    /// Appends about `max_bytes` of the next messages to `out`. Appends none if the next page is completely behind
    /// `pause`.
    pub(super) fn fill_to(&mut self, pause: Option<&[u8]>, max_bytes: usize, out: &mut EntryBlock) -> Result<()> {
        self.pause = pause.map(<[u8]>::to_vec);
        self.fill(max_bytes, out)
    }

    /// Appends the messages of the next leaf that has some in the range. Returns the leaf if all its messages were
    /// appended.
    ///
    /// # Errors
    /// If a page cannot be read.
    pub(super) fn fill_leaf(&mut self, out: &mut EntryBlock) -> Result<Option<PageRef>> {
        debug_assert!(self.window.is_empty(), "the cursor is between two leaves");
        let before = out.len();
        while self.next_leaf()? {
            self.drain(usize::MAX, out);
            if out.len() > before {
                let (page, bytes) = self.leaf.as_ref().expect("a leaf was entered");
                let is_whole = out.len() - before == page.leaf(bytes).len();
                return Ok(Some(*page).filter(|_| is_whole));
            }
        }
        Ok(None)
    }

    /// Appends the messages of the window, until `out` has `stop` bytes. Returns whether the window is empty.
    fn drain(&mut self, stop: usize, out: &mut EntryBlock) -> bool {
        let through = self.view.through();
        let Some((page, bytes)) = &self.leaf else { return true };
        let leaf = page.leaf(bytes);
        while !self.window.is_empty() {
            if out.bytes() >= stop {
                return false;
            }
            let at = if self.reverse { self.window.end - 1 } else { self.window.start };
            if self.reverse {
                self.window.end = at;
            } else {
                self.window.start = at + 1;
            }
            let slot = leaf.slot(at);
            // A message above `through` is also in a memtable.
            if slot.seqno > through {
                continue;
            }
            self.key.clear();
            self.key.extend_from_slice(leaf.prefix());
            self.key.extend_from_slice(leaf.rest(&slot));
            out.push(Entry { key: &self.key, seqno: slot.seqno, kind: slot.kind, value: leaf.value(&slot) });
        }
        true
    }

    /// Wants a leaf: child `at` of the lowest page of the path, if there is one.
    fn want(&mut self, page: PageRef, at: usize) {
        let bound = self.loaded.is_some().then(|| self.bound_of(at));
        if let Some((loaded, bound)) = self.loaded.as_mut().zip(bound) {
            loaded.want(bound);
        }
        self.ahead.want(&self.view.source, page);
    }

    /// Wants further leaves, up to the number that the scan reads ahead. Wants at least one, unless none is left.
    fn want_more(&mut self) -> Result<()> {
        let most = (1 << self.entered.min(6)).min(MOST_AHEAD);
        while self.ahead.len() < most && (self.ahead.is_empty() || self.ahead.bytes() < MOST_AHEAD_BYTES) {
            let Some(level) = self.path.last_mut() else { break };
            let Some(at) = level.next else {
                self.path.pop();
                continue;
            };
            let (block, above) = (level.block.clone(), level.page);
            let inner = above.inner(&block);
            if self.is_beyond(&inner, at) {
                self.path.clear();
                break;
            }
            if self.is_paused(&inner, at) {
                break;
            }
            let (page, below) = (inner.page(at), inner.level() - 1);
            if let Some(loaded) = &self.loaded {
                loaded.reference(&page, &self.view.source)?;
            }
            let is_out = self.is_left_out(&inner, at, &page);
            if below > 0 && !is_out && !self.ahead.is_empty() {
                // The page below is read only when the leaves of the last one are used up.
                break;
            }
            let next = self.beside(&inner, at);
            self.path.last_mut().expect("a level is open").next = next;
            match below {
                _ if is_out => {}
                0 => self.want(page, at),
                _ => self.descend(page, below, None)?,
            }
        }
        self.ahead.start();
        Ok(())
    }

    /// Enters the next leaf. Returns `false` at the end of the scan.
    fn next_leaf(&mut self) -> Result<bool> {
        if let Some(range) = self.start.take() {
            self.begin(&range)?;
        }
        self.leaf = None;
        self.want_more()?;
        if self.ahead.is_empty() {
            return Ok(false);
        }
        let page = self.ahead.front().expect("a leaf is wanted");
        let leaf = self.ahead.take(&self.view.source)?;
        self.entered += 1;
        if let OnceRead::Read(buf) = &leaf
            && self.since == Seqno(0)
        {
            let source = &self.view.source;
            source.pool().insert_scanned(source.owner(), page.addr, self.entered > LONG, buf);
            self.view.rows.scanned(1);
        }
        let view = page.leaf(&leaf);
        if let Some(loaded) = &mut self.loaded {
            loaded.enter(&page, &view, &self.view.source)?;
        }
        let from = if self.range.from.is_empty() { 0 } else { view.search(&self.range.from) };
        let to = if self.range.to.is_empty() { view.len() } else { view.search(&self.range.to) };
        self.window = from..to.max(from);
        self.leaf = Some((page, leaf));
        Ok(true)
    }
}

impl RawCursor for TreeCursor {
    fn fill(&mut self, max_bytes: usize, out: &mut EntryBlock) -> Result<()> {
        let stop = out.bytes() + max_bytes;
        while self.drain(stop, out) {
            if !self.next_leaf()? {
                return Ok(());
            }
        }
        Ok(())
    }

    fn seek(&mut self, key: &[u8]) -> Result<()> {
        let rest =
            if self.reverse { KeyRange::new([], crate::base::range::successor(key)) } else { KeyRange::new(key, []) };
        let rest = Arc::new(self.whole.intersect(&rest));
        self.leaf = None;
        self.window = 0..0;
        self.start = Some(rest.clone());
        self.range = rest;
        Ok(())
    }

    fn leave_out(&mut self, range: &KeyRange, seqno: Seqno) -> Result<()> {
        self.covered = Some((range.clone(), seqno));
        Ok(())
    }
}
