//! [`RunCursor`]: the messages of one slice in a range, in order or in exact reverse.
//!
//! Steps: walk from the root to the leaf of the starting bound, then from leaf to leaf by position ([`super::leaves`]).
//! On entering a leaf, two searches cut its entries to the range: the *window*. The cursor stands at the window's first
//! entry (the last, in reverse); when the window is empty it goes on to the next leaf, unless this one holds an entry
//! beyond the range, which ends the cursor.
//!
//! A *pending* cursor has not read anything yet; it knows a key that nothing of it comes before. Of runs without a common
//! key, which a load in key order leaves side by side, a merge opens one after the other.
//!
//! Invariant: while the cursor stands at an entry, `key` is that entry's key, `slot` its place, and the window is not
//! empty.

use std::cmp::Ordering;
use std::ops::Range;
use std::sync::Arc;

use super::inner::Child;
use super::leaf::Slot;
use super::leaves::{Leaves, ReadAhead, Want};
use super::slice::RunSlice;
use crate::base::range::successor;
use crate::base::{Entry, KeyRange, Kind, Result, SeededBug, Seqno};

/// A cursor over one slice.
pub struct RunCursor {
    slice: Arc<RunSlice>,
    range: KeyRange,
    reverse: bool,
    leaves: Leaves,
    /// Entries of the current leaf that are inside the range and not passed yet.
    window: Range<usize>,
    /// The range goes on beyond the current leaf.
    more: bool,
    prefix_len: usize,
    key: Vec<u8>,
    slot: Option<Slot>,
    /// Nothing was read yet.
    pending: bool,
}

impl RunCursor {
    /// A cursor at the first entry of `slice` in `range`; at the last one if `reverse`.
    ///
    /// # Errors
    /// I/O errors and [`crate::Error::Corruption`].
    pub fn new(slice: Arc<RunSlice>, range: &KeyRange, reverse: bool, readahead: ReadAhead) -> Result<RunCursor> {
        let mut cursor = RunCursor::pending(slice, range, reverse, readahead);
        cursor.open()?;
        Ok(cursor)
    }

    /// The same without reading anything, to be opened when its turn comes.
    pub fn pending(slice: Arc<RunSlice>, range: &KeyRange, reverse: bool, readahead: ReadAhead) -> RunCursor {
        let range = slice.range().intersect(range);
        let leaves = Leaves::new(readahead, reverse, slice.span());
        let meta = slice.run().meta();
        // Where no key of the run is in the range the cursor is at its end, and nothing has to be read to know it. A run of
        // range tombstones has no keys.
        let inside = range.from <= meta.last_key && range.is_above(&meta.first_key);
        let pending = !range.is_empty() && meta.leaf_pages > 0 && inside;
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
            pending,
        }
    }

    /// Goes to the first entry, if nothing was read yet.
    ///
    /// # Errors
    /// I/O errors and [`crate::Error::Corruption`]; the cursor is past the end then.
    pub fn open(&mut self) -> Result<()> {
        if !std::mem::take(&mut self.pending) {
            return Ok(());
        }
        let bound = if self.reverse { self.range.to.clone() } else { self.range.from.clone() };
        self.start(&bound)
    }

    /// Of a pending cursor: a key that no entry comes before, in the cursor's direction; between the run's first and last.
    pub fn outlook(&self) -> Option<&[u8]> {
        let meta = self.slice.run().meta();
        self.pending.then(|| match self.reverse {
            false if SeededBug::OutlookTooFar.is_on() => &meta.last_key,
            false => meta.first_key.as_slice().max(&self.range.from),
            true if self.range.is_above(&meta.last_key) => &meta.last_key,
            true => &self.range.to,
        })
    }

    /// The entry at which the cursor stands; `None` past the end.
    #[inline]
    pub fn entry(&self) -> Option<Entry<'_>> {
        let slot = self.slot.as_ref()?;
        let value = &self.leaves.bytes()[slot.value()];
        Some(Entry { key: &self.key, seqno: slot.seqno, kind: slot.kind, value })
    }

    /// Goes to the next entry (downwards, in reverse). Past the end it stays there. About 30 ns within a leaf.
    ///
    /// # Errors
    /// I/O errors and [`crate::Error::Corruption`]; the cursor is past the end then.
    #[inline]
    pub fn advance(&mut self) -> Result<()> {
        if self.slot.is_none() {
            return Ok(());
        }
        if self.reverse {
            self.window.end -= 1;
        } else {
            self.window.start += 1;
        }
        self.settle()
    }

    /// Goes to the first entry whose key is at or above `key`; in reverse to the last one whose key is at or below it.
    /// Never leaves the range. Within the current leaf it costs a search, else a walk from the root.
    ///
    /// # Errors
    /// I/O errors and [`crate::Error::Corruption`]; the cursor is past the end then.
    pub fn seek(&mut self, key: &[u8]) -> Result<()> {
        self.pending = false;
        if self.reverse {
            let after = successor(key);
            let bound = if self.range.is_above(&after) { after } else { self.range.to.clone() };
            if key < self.range.from.as_slice() {
                self.end();
                return Ok(());
            }
            return self.seek_bound(bound);
        }
        if !self.range.is_above(key) {
            self.end();
            return Ok(());
        }
        self.seek_bound(key.max(&self.range.from).to_vec())
    }

    /// Bytes of the leaves that the cursor has been in: the measure of work done.
    pub fn passed_bytes(&self) -> u64 {
        self.leaves.passed_bytes()
    }

    /// The slice under the cursor.
    pub fn slice(&self) -> &Arc<RunSlice> {
        &self.slice
    }

    fn end(&mut self) {
        self.slot = None;
        self.window = 0..0;
        self.leaves.let_go();
    }

    /// Goes to the first entry at or above `bound`; in reverse, to the last one below it.
    fn seek_bound(&mut self, bound: Vec<u8>) -> Result<()> {
        if !self.leaves.current().is_empty() && !bound.is_empty() {
            let leaf = self.leaves.leaf();
            let at = leaf.search(&bound);
            // With entries on both sides in this leaf, no other leaf can hold the place.
            if 0 < at && at < leaf.len() {
                let inside = self.inside();
                self.window =
                    if self.reverse { inside.start..at.min(inside.end) } else { at.max(inside.start)..inside.end };
                return self.settle();
            }
        }
        self.leaves.restart();
        self.start(&bound)
    }

    /// Walks to the leaf of a bound of the direction, and stands at the first entry from there on.
    fn start(&mut self, bound: &[u8]) -> Result<()> {
        self.end();
        let span = self.slice.span();
        if span.is_empty() || self.range.is_empty() {
            return Ok(());
        }
        let run = self.slice.run();
        let Child { position, pages, .. } = match (bound.is_empty(), self.reverse) {
            (true, false) => run.leaf_at(span.start)?,
            (true, true) => run.leaf_at(span.end - 1)?,
            (false, _) => run.leaf_of(bound)?,
        };
        self.leaves.fetch(run, Want::Exact(position, pages))?;
        self.enter(Some(bound))?;
        self.settle()
    }

    /// The entries of the current leaf that are inside the range.
    fn inside(&self) -> Range<usize> {
        let leaf = self.leaves.leaf();
        let from = if self.range.from.is_empty() { 0 } else { leaf.search(&self.range.from) };
        let to = if self.range.to.is_empty() { leaf.len() } else { leaf.search(&self.range.to) };
        from..to.max(from)
    }

    /// Takes the current leaf's window, cut at `bound` too. Its keys must be among those of the run: who merges runs compares
    /// only what they do not all share.
    fn enter(&mut self, bound: Option<&[u8]>) -> Result<()> {
        let leaf = self.leaves.leaf();
        let meta = self.slice.run().meta();
        if leaf.search(&meta.first_key) > 0 || leaf.search_after(&meta.last_key) < leaf.len() {
            return Err(self.slice.run().corrupt("a leaf with keys beyond those of the run"));
        }
        let mut window = self.inside();
        self.more = if self.reverse { window.start == 0 } else { window.end == leaf.len() };
        if let Some(bound) = bound.filter(|bound| !bound.is_empty()) {
            let at = leaf.search(bound);
            if self.reverse {
                window.end = window.end.min(at);
            } else {
                window.start = window.start.max(at);
            }
        }
        self.window = window;
        self.prefix_len = leaf.prefix().len();
        self.key.clear();
        self.key.extend_from_slice(leaf.prefix());
        Ok(())
    }

    /// Stands at the window's entry.
    #[inline]
    fn stand(&mut self) {
        let i = if self.reverse { self.window.end - 1 } else { self.window.start };
        let leaf = self.leaves.leaf();
        let slot = leaf.slot(i);
        self.key.truncate(self.prefix_len);
        self.key.extend_from_slice(leaf.rest(&slot));
        self.slot = Some(slot);
    }

    /// Stands at the window's entry, or at the next leaf's if the window is empty.
    #[inline]
    fn settle(&mut self) -> Result<()> {
        if self.window.is_empty() {
            return self.next_leaf();
        }
        self.stand();
        Ok(())
    }

    /// Whether the current entry comes after another one, in the cursor's direction. Within a leaf the leaf's own check has
    /// seen to that; who merges runs relies on it for all of them.
    fn follows(&self, (key, seqno): &(Vec<u8>, Seqno)) -> bool {
        let before = Entry { key, seqno: *seqno, kind: Kind::Delete, value: &[] };
        let order = self.entry().map(|entry| before.order(&entry));
        order == Some(if self.reverse { Ordering::Greater } else { Ordering::Less })
    }

    /// Goes on to the next leaf with an entry in the range.
    #[cold]
    fn next_leaf(&mut self) -> Result<()> {
        let last = self.slot.take().map(|slot| (std::mem::take(&mut self.key), slot.seqno));
        let span = self.slice.span();
        while self.more {
            let current = self.leaves.current();
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
            self.leaves.fetch(self.slice.run(), want)?;
            self.enter(None)?;
            if !self.window.is_empty() {
                self.stand();
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
