//! [`RunSlice`]: a run clipped to a key range. Trunk nodes reference slices (002 §3.4, "branch sharing").
//!
//! ```text
//!   leaves       |  |  |  |  |  |  |  |          from = f, to = p
//!                 a  d  e  h  k  m  p  t         first keys of the leaves
//!   span               |==============|          from the leaf that may hold f to the end of the one that may hold p
//! ```
//!
//! Steps of a flush: clip a slice to the range of a child ([`RunSlice::clip`]) and reference the clipped slice from the
//! child. No data is moved.
//!
//! Invariant: the leaf pages of a slice's span are not freed as long as the slice exists; see [`super::spans`].
//!
//! The persisted form consists of the bytes of the lower bound, the bytes of the upper bound, and three varints: the
//! span's first page, the span's end, and the live pages. Because the span is stored, reopening a slice needs no I/O.

use std::sync::Arc;

use super::inner::Child;
use super::reader::Run;
use super::spans::PageRange;
use crate::base::codec::{Reader, put_bytes, put_varint};
use crate::base::range::{Heads, head};
use crate::base::{KeyRange, MAX_KEY, PAGE, RangeTombstone, Result, SeededBug, Seqno};

/// A run and the range of its keys that are visible through the slice.
#[derive(Debug)]
pub struct RunSlice {
    run: Arc<Run>,
    range: KeyRange,
    /// The heads of the bounds of `range`. The next field holds the heads of the bounds of a smaller range: the part of
    /// `range` that is between the run's first and last key. Lookups compare heads before they compare full keys.
    heads: Heads,
    key_heads: Heads,
    span: Span,
}

/// The leaf positions that a slice needs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Span {
    first: u64,
    end: u64,
    /// The estimated number of pages that the slice's entries take. The leaf that contains the slice's upper bound is
    /// not counted for this slice, but for the slice above this bound.
    live: u64,
}

impl Span {
    fn pages(&self) -> PageRange {
        self.first..self.end
    }

    fn is_sound(&self) -> bool {
        self.first <= self.end && self.live <= self.end - self.first
    }
}

impl RunSlice {
    /// Creates a slice of a whole run that was just built.
    pub fn whole(run: Arc<Run>) -> Arc<RunSlice> {
        let pages = run.meta().leaf_pages;
        let span = Span { first: 0, end: pages, live: pages };
        Self::register(run, KeyRange::all(), span).expect("a new run has all its pages")
    }

    /// Creates a slice and registers it with its run. Returns `None` if the run has freed pages of the span.
    fn register(run: Arc<Run>, range: KeyRange, span: Span) -> Option<Arc<RunSlice>> {
        assert!(span.is_sound(), "{span:?}");
        if !run.span(span.pages()) {
            return None;
        }
        let meta = run.meta();
        let to = Some(range.to.as_slice()).filter(|to| !to.is_empty());
        let heads = Heads::of(&range.from, to);
        let (first, last) = (meta.first_key.as_slice(), meta.last_key.as_slice());
        let key_heads = match meta.leaf_pages {
            0 => Heads::NONE,
            _ => Heads::of(first.max(&range.from), Some(to.map_or(last, |to| to.min(last)))),
        };
        Some(Arc::new(RunSlice { run, range, heads, key_heads, span }))
    }

    /// Returns the part of the slice in `range`; `None` if this part can hold neither an entry nor a range tombstone.
    /// If the whole slice is in the range, the slice itself is returned. Reads inner blocks through the pool.
    ///
    /// # Errors
    /// I/O errors and [`crate::Error::Corruption`].
    pub fn clip(self: &Arc<RunSlice>, range: &KeyRange) -> Result<Option<Arc<RunSlice>>> {
        if range.covers(&self.range) {
            return Ok(Some(self.clone()));
        }
        let range = self.range.intersect(range);
        let Some(span) = self.measure(&range)? else { return Ok(None) };
        assert!(span.pages().is_empty() || self.spans(&span), "a part needs no leaf that the whole does not");
        match Self::register(self.run.clone(), range, span) {
            Some(slice) => Ok(Some(slice)),
            None => Err(self.run.corrupt("separators that contradict one another")),
        }
    }

    /// Whether all leaves of `part` are among the leaves that the slice spans.
    fn spans(&self, part: &Span) -> bool {
        self.span.first <= part.first && part.end <= self.span.end
    }

    /// The span of the part of the slice in `range`; `None` if this part is certainly empty.
    fn measure(&self, range: &KeyRange) -> Result<Option<Span>> {
        let meta = self.run.meta();
        if range.is_empty() {
            return Ok(None);
        }
        let hull = range.from.as_slice() <= meta.last_key.as_slice() && range.is_above(&meta.first_key);
        if meta.leaf_pages == 0 || !hull {
            // If the range tombstones cannot be read, assume that at least one of them is in the range.
            let covered = self.run.fragments().map_or(true, |fragments| !fragments.clipped(range).is_empty());
            return Ok(covered.then(Span::default));
        }
        // A slice that spans one page has one leaf, and each part of the slice spans the same leaf. So do not read the
        // inner block above the leaf. This saves reads in a store with many short runs and a pool that is too small for
        // all their inner blocks.
        if self.held_pages() == 1 {
            return Ok(Some(self.span));
        }
        let (first, end, live_end) = match self.bounds(range) {
            // If the inner blocks cannot be read, the leaves of the part are unknown. So let the part span all pages of
            // the slice, and count at most one live page for it. Then pages are kept longer than needed, but flushes
            // can continue, and the damaged run hardly affects decisions that are based on sizes.
            Err(e) if e.is_damage() => return Ok(Some(Span { live: 1.min(self.span.live), ..self.span })),
            bounds => bounds?,
        };
        if first < self.span.first || first >= end || end > self.span.end {
            return Err(self.run.corrupt("separators that contradict one another"));
        }
        Ok(Some(Span { first, end, live: live_end.saturating_sub(first).max(1) }))
    }

    /// Returns three positions for the leaves that have keys in a range: the beginning of the first leaf, the end of
    /// the last leaf, and the end of the live leaves. If the range ends inside the run, the last leaf does not count as
    /// live.
    /// REQUIRES: the run has keys between the bounds of the range.
    fn bounds(&self, range: &KeyRange) -> Result<(u64, u64, u64)> {
        let meta = self.run.meta();
        let first = if range.from <= meta.first_key { 0 } else { self.run.leaf_of(&range.from)?.position };
        if range.is_above(&meta.last_key) {
            return Ok((first, meta.leaf_pages, meta.leaf_pages));
        }
        let Child { position, pages, .. } = self.run.leaf_of(&range.to)?;
        let cut = SeededBug::SliceShort.is_on() && position > first;
        Ok((first, position + if cut { 0 } else { u64::from(pages) }, position))
    }

    /// Whether the key is in the interval from the first to the last key that the slice can hold. Does no I/O.
    #[inline]
    pub fn may_hold(&self, key: &[u8]) -> bool {
        self.key_heads.tell(head(key)).unwrap_or_else(|| {
            let meta = self.run.meta();
            let within = || meta.first_key.as_slice() <= key && key <= meta.last_key.as_slice();
            meta.leaf_pages > 0 && self.range.contains(key) && within()
        })
    }

    /// Whether the interval from the first to the last key that the slice can hold has a part in `range`. Does no I/O.
    pub fn may_hold_some(&self, range: &KeyRange) -> bool {
        let meta = self.run.meta();
        let within = || range.from.as_slice() <= meta.last_key.as_slice() && range.is_above(&meta.first_key);
        meta.leaf_pages > 0 && self.range.overlaps(range) && within()
    }

    /// Whether the key is in the slice's range.
    #[inline]
    pub fn contains(&self, key: &[u8]) -> bool {
        self.heads.tell(head(key)).unwrap_or_else(|| self.range.contains(key))
    }

    /// Estimates the size in bytes and the number of the slice's entries in `range`. Both results are 0 only if `range`
    /// contains no entry of the slice. Costs two walks through inner blocks.
    ///
    /// # Errors
    /// I/O errors and [`crate::Error::Corruption`].
    pub fn estimate(&self, range: &KeyRange) -> Result<(u64, u64)> {
        let span = self.measure(&self.range.intersect(range))?;
        Ok(span.map_or((0, 0), |span| (span.live * PAGE as u64, self.entries_in(span.live))))
    }

    /// Returns at most `parts − 1` ascending keys strictly inside the slice that divide the slice into parts of about
    /// equal size. Returns fewer keys if there are few leaves. For a slice of a single leaf, the result is empty, and
    /// nothing is read.
    ///
    /// # Errors
    /// I/O errors and [`crate::Error::Corruption`].
    pub fn split_keys(&self, parts: usize) -> Result<Vec<Vec<u8>>> {
        let Span { first, live, .. } = self.span;
        let parts = parts.min(usize::try_from(live).unwrap_or(usize::MAX));
        self.run.split_keys(&self.range, first..first + live, parts)
    }

    fn entries_in(&self, pages: u64) -> u64 {
        let meta = self.run.meta();
        let share = u128::from(meta.entries()) * u128::from(pages) / u128::from(meta.leaf_pages.max(1));
        u64::try_from(share).expect("a share of a number of 64 bits")
    }

    /// The keys that are visible through the slice.
    pub fn range(&self) -> &KeyRange {
        &self.range
    }

    /// Whether all keys of entries and range tombstones of this slice are below all keys of entries and range
    /// tombstones of `other`. Does no I/O. Returns `false` also if the question cannot be decided without I/O.
    pub fn is_before(&self, other: &RunSlice) -> bool {
        let (low, meta) = (other.low(), self.run.meta());
        let ends_before = meta.range_tombstones == 0 && meta.last_key.as_slice() < low;
        ends_before || !self.range.is_above(low)
    }

    /// A lower bound of all keys of entries and range tombstones of the slice.
    pub fn low(&self) -> &[u8] {
        let meta = self.run.meta();
        match meta.range_tombstones {
            0 => self.range.from.as_slice().max(meta.first_key.as_slice()),
            _ => &self.range.from,
        }
    }

    /// The run.
    pub fn run(&self) -> &Arc<Run> {
        &self.run
    }

    /// The estimated size in bytes of the slice's leaves; 0 if the slice has only range tombstones.
    pub fn bytes(&self) -> u64 {
        self.span.live * PAGE as u64
    }

    /// The number of leaf pages that the slice keeps from being freed.
    pub fn held_pages(&self) -> u64 {
        self.span.end - self.span.first
    }

    /// The estimated number of entries of the slice.
    pub fn entries(&self) -> u64 {
        self.entries_in(self.span.live)
    }

    /// The seqno of the newest range tombstone that covers `key` and has a seqno of at most `at`. The result is 0 if
    /// there is no such tombstone, or if `key` is not in the slice's range.
    ///
    /// # Errors
    /// The errors of [`Run::fragments`].
    #[inline]
    pub fn covering(&self, key: &[u8], at: Seqno) -> Result<Seqno> {
        let fragments = self.run.fragments()?;
        let none = fragments.is_empty() || !self.contains(key);
        Ok(if none { Seqno(0) } else { fragments.covering(key, at) })
    }

    /// The range tombstones of the slice, clipped to the slice's range and to `range`.
    ///
    /// # Errors
    /// The errors of [`Run::fragments`].
    pub fn tombstones(&self, range: &KeyRange) -> Result<Vec<RangeTombstone>> {
        Ok(self.run.fragments()?.clipped(&self.range.intersect(range)))
    }

    /// The leaf positions that the slice needs.
    pub(super) fn span(&self) -> PageRange {
        self.span.pages()
    }

    /// Appends the persisted form of the slice to `out`, without the run.
    pub fn encode(&self, out: &mut Vec<u8>) {
        debug_assert!(self.span.end <= self.run.meta().leaf_pages, "a reader accepts the span {:?}", self.span);
        put_bytes(out, &self.range.from);
        put_bytes(out, &self.range.to);
        for number in [self.span.first, self.span.end, self.span.live] {
            put_varint(out, number);
        }
    }

    /// Restores a slice of a run that [`Run::reopen`] has opened, from the bytes that [`RunSlice::encode`] wrote. Does
    /// no I/O.
    ///
    /// # Errors
    /// [`crate::Error::Corruption`] if the bounds are malformed or the span is outside the run's leaves.
    pub fn restore(run: Arc<Run>, reader: &mut Reader<'_>) -> Result<Arc<RunSlice>> {
        let range = KeyRange::new(reader.bytes()?, reader.bytes()?);
        let leaf_pages = run.meta().leaf_pages;
        let mut number = || reader.varint_max(leaf_pages);
        let span = Span { first: number()?, end: number()?, live: number()? };
        if range.is_empty() || range.from.len().max(range.to.len()) > MAX_KEY + 1 || !span.is_sound() {
            return Err(reader.corrupt("a slice out of bounds"));
        }
        Self::register(run, range, span).ok_or_else(|| reader.corrupt("a slice of pages that the run does not own"))
    }
}

impl Drop for RunSlice {
    fn drop(&mut self) {
        self.run.release(&self.span.pages());
    }
}
