//! [`RunCursor`]: iterates over the messages of one slice that are in a range, in order or in reverse order.
//!
//! ```text
//!   leaf  [ · · · ■ ■ ■ ■ ■ · ]      ■ window: entries inside the range that were not passed yet
//!                 ▲ slot, key        the current entry: the first of the window (the last, in reverse)
//! ```
//!
//! Steps: walk from the root to the leaf of the starting bound, then from leaf to leaf by position ([`super::leaves`]).
//! In each leaf, two searches find the entries that are in the range; these entries are the *window*. If the window of
//! a leaf is empty, the cursor continues with the next leaf. If a leaf holds an entry beyond the end of the range, the
//! cursor ends after the window of this leaf.
//!
//! A *pending* cursor has not read anything yet, but it has a bound: none of the cursor's entries precedes the bound.
//! Because of the bounds, a merge can open its cursors as late as possible. For example, if data was loaded in key
//! order, the runs do not overlap, so a merge opens their cursors one after the other. A cursor is opened like a probe:
//! it returns the block that it needs next, and is called again with this block. So a caller that opens several cursors
//! can read their blocks concurrently ([`RunCursor::open_all`]).
//!
//! Invariant: while the cursor is at an entry, `key` is the key of this entry, `slot` is the entry's position in the
//! leaf, and the window is not empty. Source: 002 §3.3.

use std::cmp::Ordering;
use std::ops::Range;
use std::sync::Arc;

use super::inner::{Child, Inner};
use super::leaf::Slot;
use super::leaves::{Leaves, ReadAhead, Want};
use super::scan_use::ScanUse;
use super::slice::RunSlice;
use crate::base::{Entry, Error, KeyRange, Kind, Result, Seqno, seeded};
use crate::blocks::{BlockLoads, Loaded, Need};
use crate::space::BlockKind;

/// The number of key bytes after the prefix of a leaf for which a cursor allocates memory at first.
const USUAL_REST: usize = 32;

/// A cursor over one slice.
pub struct RunCursor {
    slice: Arc<RunSlice>,
    range: Arc<KeyRange>,
    reverse: bool,
    leaves: Leaves,
    /// Entries of the current leaf that are inside the range and were not passed yet.
    window: Range<usize>,
    /// Whether the range may continue beyond the current leaf.
    more: bool,
    prefix_len: usize,
    key: Vec<u8>,
    slot: Option<Slot>,
    /// The progress of opening; `None` once the cursor has reached its first entry or its end.
    opening: Option<Stage>,
}

/// The progress of a cursor towards its first entry.
#[derive(Clone, Copy)]
enum Stage {
    /// No block was requested yet.
    Start,
    /// The inner block of this level was requested.
    Inner(u8),
    /// The first chunk of leaf pages, which contains this leaf, was requested.
    Leaf(Child),
}

/// The keys of `range` behind `covered`, in the direction of a cursor that is inside `covered`.
pub(crate) fn beyond(range: &KeyRange, covered: &KeyRange, reverse: bool) -> KeyRange {
    let far = if reverse { &covered.from } else { &covered.to };
    match (far.is_empty(), reverse) {
        // `covered` has no end on this side.
        (true, _) => KeyRange::none(),
        (false, true) => range.intersect(&KeyRange::new([], far.as_slice())),
        (false, false) => range.intersect(&KeyRange::new(far.as_slice(), [])),
    }
}

impl RunCursor {
    /// Opens a cursor at the first entry of `slice` in `range`. If `reverse` is set, opens it at the last such entry.
    ///
    /// # Errors
    /// I/O errors and [`crate::Error::Corruption`].
    pub fn new(
        slice: Arc<RunSlice>,
        range: impl Into<Arc<KeyRange>>,
        reverse: bool,
        readahead: ReadAhead,
    ) -> Result<RunCursor> {
        let mut cursor = RunCursor::pending(slice, range, reverse, readahead);
        cursor.open()?;
        Ok(cursor)
    }

    /// Creates a cursor without reading anything. [`RunCursor::open`] reads its first block.
    pub fn pending(
        slice: Arc<RunSlice>,
        range: impl Into<Arc<KeyRange>>,
        reverse: bool,
        readahead: ReadAhead,
    ) -> RunCursor {
        let range = slice.range().part_of(&range.into());
        let leaves = Leaves::new(readahead, reverse, slice.span());
        let meta = slice.run().meta();
        // If no key of the run is in the range, the cursor is at its end without a read. A run that holds only range
        // tombstones has no keys.
        let inside = range.from <= meta.last_key && range.is_above(&meta.first_key);
        let pending = !range.is_empty() && meta.leaf_pages > 0 && inside && !slice.span().is_empty();
        let opening = pending.then_some(Stage::Start);
        RunCursor {
            slice,
            range,
            reverse,
            leaves,
            window: 0..0,
            more: false,
            prefix_len: 0,
            key: Vec::new(),
            slot: None,
            opening,
        }
    }

    /// Counts the leaves that the cursor enters in `used`. The cursor must be pending.
    #[must_use]
    pub fn counting(mut self, used: Arc<ScanUse>) -> RunCursor {
        self.leaves.count_in(used);
        self
    }

    /// Moves a pending cursor to its first entry.
    ///
    /// # Errors
    /// I/O errors and [`crate::Error::Corruption`]; the cursor is then past the end.
    pub fn open(&mut self) -> Result<()> {
        let mut landed = None;
        while let Some(need) = self.open_step(landed.take())? {
            let fetched = need.fetch(&**self.slice.run());
            landed = Some(fetched.inspect_err(|_| self.give_up())?);
        }
        Ok(())
    }

    /// Finds the bound that comes first among all pending cursors, in their direction, and opens all pending cursors
    /// that have this bound. The blocks that these cursors need are read concurrently.
    ///
    /// # Errors
    /// I/O errors and [`crate::Error::Corruption`], with the number of the failed cursor. After an error, the failed
    /// cursor is past the end, and other cursors may still be pending.
    pub fn open_all(cursors: &mut [RunCursor]) -> std::result::Result<(), (usize, Error)> {
        let first = cursors.iter().reduce(|a, b| match (a.place(), b.place()) {
            (Some(first), Some(second)) if (second < first) != b.reverse => b,
            (None, _) => b,
            _ => a,
        });
        let Some(first) = first.and_then(RunCursor::place) else { return Ok(()) };
        let is_next = |cursor: &RunCursor| cursor.lower_bound().is_some_and(|key| key == first);
        let slices: Vec<_> = cursors.iter().map(|cursor| is_next(cursor).then(|| cursor.slice.clone())).collect();
        let mut loads = BlockLoads::default();
        for (i, slice) in slices.iter().enumerate() {
            if let Some(slice) = slice {
                cursors[i].open_among(slice, None, &mut loads, i).map_err(|e| (i, e))?;
            }
        }
        while let Some((i, landed)) = loads.next() {
            let slice = slices[i].as_ref().expect("only a cursor with a slice requests blocks");
            let opened = landed.and_then(|landed| cursors[i].open_among(slice, Some(landed), &mut loads, i));
            opened.map_err(|e| {
                cursors[i].give_up();
                (i, e)
            })?;
        }
        Ok(())
    }

    /// Continues to open this cursor until it needs a block that is not in memory, and requests this block. `task` is
    /// the number of this cursor, and `slice` is its slice.
    fn open_among<'r>(
        &mut self,
        slice: &'r RunSlice,
        mut landed: Option<Loaded>,
        loads: &mut BlockLoads<'r>,
        task: usize,
    ) -> Result<()> {
        while let Some(need) = self.open_step(landed.take())? {
            landed = loads.ask(&**slice.run(), need, task).inspect_err(|_| self.give_up())?;
            if landed.is_none() {
                break;
            }
        }
        Ok(())
    }

    /// Continues to open the cursor with the block that the last step has requested. Returns the next block that the
    /// cursor needs; `None` once the cursor is at its first entry or past the end.
    fn open_step(&mut self, landed: Option<Loaded>) -> Result<Option<Need>> {
        let Some(stage) = self.opening.take() else { return Ok(None) };
        let run = self.slice.run();
        let meta = run.meta();
        let child = match stage {
            Stage::Start if meta.height == 0 => Child { position: 0, pages: meta.root.pages, leaf: 0 },
            Stage::Start => {
                self.opening = Some(Stage::Inner(meta.height));
                return Ok(Some(Need::Block(meta.root, BlockKind::RunInner)));
            }
            Stage::Inner(level) => {
                let span = self.slice.span();
                let block = landed.expect("a block was requested").block();
                let edge = self.near_edge();
                let (child, addr) = run.child(&block, level, |inner| match (edge.is_empty(), self.reverse) {
                    (true, false) => inner.search_leaf(span.start),
                    (true, true) => inner.search_leaf(span.end - 1),
                    (false, _) => inner.search(edge),
                })?;
                if level > 1 {
                    self.opening = Some(Stage::Inner(level - 1));
                    return Ok(Some(Need::Block(addr, BlockKind::RunInner)));
                }
                let limit = self.far_edge().and_then(|edge| limit_in(&Inner::of(&block), edge, self.reverse));
                self.leaves.set_limit(limit);
                child
            }
            Stage::Leaf(child) => {
                self.leaves.take(run, child, landed.expect("pages were requested").pages())?;
                return self.arrive().map(|()| None);
            }
        };
        if let Some(addr) = self.leaves.open(run, child)? {
            self.opening = Some(Stage::Leaf(child));
            return Ok(Some(Need::Pages(addr)));
        }
        self.arrive().map(|()| None)
    }

    /// Moves to the first entry. This entry is in the current leaf, or in the next leaf that has an entry in the range.
    fn arrive(&mut self) -> Result<()> {
        debug_assert!(self.opening.is_none() && self.slot.is_none(), "a cursor arrives once");
        self.enter()?;
        self.settle()
    }

    /// The bound at which the cursor starts, in its direction. An empty bound means the end of the slice.
    fn near_edge(&self) -> &[u8] {
        if self.reverse { &self.range.to } else { &self.range.from }
    }

    /// The bound at which the cursor will end. `None` if the cursor ends with its slice, whose span is known.
    fn far_edge(&self) -> Option<&[u8]> {
        let (meta, slice) = (self.slice.run().meta(), self.slice.range());
        let (edge, of_slice) = if self.reverse { (&self.range.from, &slice.from) } else { (&self.range.to, &slice.to) };
        let inside = *edge > meta.first_key && *edge <= meta.last_key;
        (inside && edge != of_slice).then_some(edge)
    }

    /// Looks for the leaf at which the cursor will end, so that the cursor does not read beyond it. Errors do not
    /// matter here: the limit is a hint, and damage is reported when the cursor needs a damaged block.
    #[cold]
    fn seek_limit(&mut self) {
        let leaf = self.far_edge().and_then(|edge| self.slice.run().leaf_of(edge).ok());
        let reverse = self.reverse;
        let limit = leaf.map(|leaf| if reverse { leaf.position } else { leaf.position + u64::from(leaf.pages) });
        self.leaves.set_limit(limit);
    }

    /// Ends a pending cursor after an error.
    fn give_up(&mut self) {
        self.opening = None;
    }

    /// The bound of a pending cursor; `None` if the cursor is not pending. No entry precedes the bound, in the cursor's
    /// direction. The bound is not below the run's first key and not above its last key.
    pub fn lower_bound(&self) -> Option<&[u8]> {
        let meta = self.slice.run().meta();
        self.opening.is_some().then(|| match self.reverse {
            false => seeded!(LowerBoundTooHigh: &meta.last_key, meta.first_key.as_slice().max(&self.range.from)),
            true if self.range.is_above(&meta.last_key) => &meta.last_key,
            true => &self.range.to,
        })
    }

    /// The key of the current entry, or the bound of a pending cursor; `None` past the end.
    pub(super) fn place(&self) -> Option<&[u8]> {
        self.entry().map(|entry| entry.key).or_else(|| self.lower_bound())
    }

    /// The current entry; `None` past the end.
    #[inline]
    pub fn entry(&self) -> Option<Entry<'_>> {
        let slot = self.slot.as_ref()?;
        let value = &self.leaves.bytes()[slot.value()];
        Some(Entry { key: &self.key, seqno: slot.seqno, kind: slot.kind, value })
    }

    /// Whether the next entry is in the current leaf and certainly has another key than the current entry.
    #[inline]
    pub(super) fn is_last_of_key(&self) -> bool {
        let window = &self.window;
        debug_assert!(!self.reverse, "asked by compactions, which go up");
        window.len() > 1 && self.leaves.leaf().differ(window.start, window.start + 1)
    }

    /// Whether the pool has the leaf of the current entry, for compactions.
    #[inline]
    pub(super) fn is_pooled(&self) -> bool {
        self.leaves.is_pooled()
    }

    /// Moves to the next entry in the cursor's direction. Does nothing past the end. Takes about 30 ns within a leaf.
    ///
    /// # Errors
    /// I/O errors and [`crate::Error::Corruption`]; the cursor is then past the end.
    #[inline]
    pub fn advance(&mut self) -> Result<()> {
        if self.slot.is_none() {
            return Ok(());
        }
        debug_assert!(!self.window.is_empty(), "the current entry is in the window");
        if self.reverse {
            self.window.end -= 1;
        } else {
            self.window.start += 1;
        }
        self.settle()
    }

    /// Continues behind the keys of `range` if the cursor is at one of them. If the next key may be in another leaf, the
    /// cursor is then pending again.
    ///
    /// # Errors
    /// I/O errors and [`crate::Error::Corruption`]; the cursor is then past the end.
    pub(super) fn leave(&mut self, range: &KeyRange) -> Result<()> {
        if self.place().is_none_or(|place| !range.contains(place)) {
            return Ok(());
        }
        if self.opening.is_none() && self.leave_within_leaf(range) {
            return self.settle();
        }
        let rest = beyond(&self.range, range, self.reverse);
        let leaves = self.leaves.again();
        let pending = RunCursor::pending(self.slice.clone(), &rest, self.reverse, leaves.readahead());
        *self = RunCursor { leaves, ..pending };
        Ok(())
    }

    /// Removes the keys of `range` from the window, if a key behind them is in the current leaf. Returns whether one is.
    fn leave_within_leaf(&mut self, range: &KeyRange) -> bool {
        let leaf = self.leaves.leaf();
        if self.reverse {
            let at = leaf.search(&range.from).max(self.window.start);
            self.window.end = self.window.end.min(at);
            at > 0 && leaf.order(0, &range.from).is_lt()
        } else {
            let is_inside = !range.to.is_empty() && !leaf.order(leaf.len() - 1, &range.to).is_lt();
            if is_inside {
                self.window.start = leaf.search(&range.to).clamp(self.window.start, self.window.end);
            }
            is_inside
        }
    }

    /// Whether the cursor moves from the last entry to the first.
    pub(super) fn is_reverse(&self) -> bool {
        self.reverse
    }

    /// The cursor's slice.
    pub fn slice(&self) -> &Arc<RunSlice> {
        &self.slice
    }

    fn end(&mut self) {
        self.slot = None;
        self.window = 0..0;
        self.leaves.let_go();
    }

    /// The entries of the current leaf that are inside the range.
    fn inside(&self) -> Range<usize> {
        let leaf = self.leaves.leaf();
        // Most leaves are entirely inside the range. One comparison at each end detects this and saves a search.
        let from = if leaf.order(0, &self.range.from).is_lt() { leaf.search(&self.range.from) } else { 0 };
        let last = leaf.len() - 1;
        let whole = self.range.to.is_empty() || leaf.order(last, &self.range.to).is_lt();
        let to = if whole { leaf.len() } else { leaf.search(&self.range.to) };
        from..to.max(from)
    }

    /// Computes the window of the current leaf. Also checks that the leaf's keys are between the first and last key of
    /// the run, because a merge relies on these two keys.
    fn enter(&mut self) -> Result<()> {
        let leaf = self.leaves.leaf();
        let meta = self.slice.run().meta();
        if leaf.order(0, &meta.first_key).is_lt() || leaf.order(leaf.len() - 1, &meta.last_key).is_gt() {
            return Err(self.slice.run().corrupt("a leaf with keys beyond those of the run"));
        }
        let window = self.inside();
        self.more = if self.reverse { window.start == 0 } else { window.end == leaf.len() };
        debug_assert!(window.end <= leaf.len(), "the window consists of entries of the leaf");
        self.window = window;
        self.prefix_len = leaf.prefix().len();
        self.key.clear();
        self.key.reserve(self.prefix_len + USUAL_REST);
        self.key.extend_from_slice(leaf.prefix());
        Ok(())
    }

    /// Makes the first entry of the window the current entry, or its last entry if the cursor moves in reverse.
    /// REQUIRES: the window is not empty.
    #[inline]
    fn make_current(&mut self) {
        debug_assert!(!self.window.is_empty() && self.key.len() >= self.prefix_len, "the key begins with the prefix");
        let i = if self.reverse { self.window.end - 1 } else { self.window.start };
        let leaf = self.leaves.leaf();
        let slot = leaf.slot(i);
        self.key.truncate(self.prefix_len);
        self.key.extend_from_slice(leaf.rest(&slot));
        self.slot = Some(slot);
    }

    /// Like [`RunCursor::make_current`], but moves to the next leaf if the window is empty.
    #[inline]
    fn settle(&mut self) -> Result<()> {
        if self.window.is_empty() {
            return self.next_leaf();
        }
        self.make_current();
        Ok(())
    }

    /// Whether the current entry follows the given one in the cursor's direction. This check is made between leaves;
    /// within a leaf, the leaf's check ensures the order. Merges rely on the order.
    fn follows(&self, (key, seqno): &(Vec<u8>, Seqno)) -> bool {
        let before = Entry { key, seqno: *seqno, kind: Kind::Delete, value: &[] };
        let order = self.entry().map(|entry| before.order(&entry));
        order == Some(if self.reverse { Ordering::Greater } else { Ordering::Less })
    }

    /// Moves to the next leaf that has an entry in the range.
    #[cold]
    fn next_leaf(&mut self) -> Result<()> {
        let last = self.slot.take().map(|slot| (std::mem::take(&mut self.key), slot.seqno));
        let span = self.slice.span();
        while self.more {
            let current = self.leaves.current();
            debug_assert!(span.start <= current.start && current.end <= span.end, "a leaf of the slice");
            let want = if self.reverse {
                if current.start <= span.start {
                    break;
                }
                Want::Before(current.start, self.leaves.leaf().pages_before())
            } else {
                if current.end >= span.end {
                    break;
                }
                Want::From(current.end)
            };
            if self.leaves.wants_limit() {
                self.seek_limit();
            }
            self.leaves.fetch(self.slice.run(), want)?;
            self.enter()?;
            if !self.window.is_empty() {
                self.make_current();
                return match last {
                    Some(last) if !self.follows(&last) => {
                        self.end();
                        Err(self.slice.run().corrupt("leaves out of order"))
                    }
                    _ => Ok(()),
                };
            }
        }
        self.end();
        Ok(())
    }
}

/// The position at which a cursor will end, if the lowest inner block `inner` shows it. `edge` is the bound at which the
/// cursor ends. If the bound may lie in the leaves of a neighbouring block, the result is `None`.
fn limit_in(inner: &Inner<'_>, edge: &[u8], reverse: bool) -> Option<u64> {
    let at = inner.search(edge);
    debug_assert!(at < inner.len(), "a search ends at a child");
    let Child { position, pages, .. } = inner.child(at);
    match reverse {
        true => (at > 0).then_some(position),
        false => (at + 1 < inner.len()).then(|| position + u64::from(pages)),
    }
}
