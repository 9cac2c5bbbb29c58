//! [`Spans`]: the leaf pages of a run that slices still need.
//!
//! ```text
//!   leaves     |------------------------------------------|
//!   slices       |=====A=====|       |====B====|
//!                       |==C==|
//!   owned        |============|       |=========|              the rest was freed with its last slice
//! ```
//!
//! A slice spans the leaf pages from the leaf of its lower bound to the end of the leaf of its upper bound. New slices
//! are made only from existing slices, so a page that no slice spans will never be requested again. Such a page is
//! freed immediately, long before the run is dropped. (SplinterDB keeps all pages of a shared run and takes 3–4 times
//! the size of the data.) Inner blocks, filter, tombstones and footer are freed with the run.
//!
//! Steps: call [`Spans::add`] with the span of each new slice; when the slice is dropped, call [`Spans::release`] with
//! the same span, and then [`Spans::settle`].
//!
//! Invariants: each span is inside `owned`; after [`Spans::settle`], `owned` is the union of the spans. Spans and
//! `owned` are half-open ranges; the ranges of `owned` are sorted, disjoint and not adjacent. This module does no I/O.
//! Source: 002 §3.4 (branch sharing); [decision 0024](../../../../docs/decisions/0024-clipped-run-references.md).

use crate::base::SeededBug;
use crate::base::sync::is_unwinding;

/// A half-open range of leaf positions.
pub(super) type PageRange = std::ops::Range<u64>;

/// The leaf pages of one run.
#[derive(Debug)]
pub(super) struct Spans {
    owned: Vec<PageRange>,
    live: Vec<PageRange>,
}

impl Spans {
    /// Creates the state of a run that owns all `leaf_pages` and has no slice yet.
    pub(super) fn new(leaf_pages: u64) -> Spans {
        Spans {
            owned: if leaf_pages > 0 { std::iter::once(0..leaf_pages).collect() } else { Vec::new() },
            live: Vec::new(),
        }
    }

    /// The owned pages.
    pub(super) fn owned(&self) -> &[PageRange] {
        &self.owned
    }

    /// Adds the span of a slice. Returns `false`, and changes nothing, if not all pages of the span are owned.
    pub(super) fn add(&mut self, span: PageRange) -> bool {
        if !span.is_empty() {
            if !self.owned.iter().any(|owned| owned.start <= span.start && span.end <= owned.end) {
                return false;
            }
            self.live.push(span);
            debug_assert!(pages(&union(&self.live)) <= pages(&self.owned), "only owned pages are spanned");
        }
        true
    }

    /// Removes the span of a slice. Returns `true` if some pages of the span may not be needed any more. In this case,
    /// [`Spans::settle`] must be called.
    pub(super) fn release(&mut self, span: &PageRange) -> bool {
        if span.is_empty() {
            return false;
        }
        let at = self.live.iter().position(|live| live == span).expect("a released span was added");
        self.live.swap_remove(at);
        // Usually the span of another slice covers this span. For example, a part that was clipped for an estimate is
        // dropped while the original slice still exists.
        !self.live.iter().any(|live| live.start <= span.start && span.end <= live.end)
    }

    /// Removes all pages that no slice spans from `owned`, and returns them.
    pub(super) fn settle(&mut self) -> Vec<PageRange> {
        let forgotten = usize::from(SeededBug::FreedWhileSpanned.is_on() && self.live.len() > 1);
        let needed = union(&self.live[forgotten..]);
        let gone = subtract(&self.owned, &needed);
        let sum = pages(&needed) + pages(&gone);
        // Slices are dropped while a panic unwinds, and a second panic would abort the process.
        assert!(sum == pages(&self.owned) || is_unwinding(), "each owned page is either needed or given up");
        self.owned = needed;
        gone
    }
}

/// The number of pages in disjoint ranges.
fn pages(ranges: &[PageRange]) -> u64 {
    ranges.iter().map(|range| range.end - range.start).sum()
}

/// Sorted, disjoint ranges that cover the same pages.
fn union(ranges: &[PageRange]) -> Vec<PageRange> {
    let mut sorted = ranges.to_vec();
    sorted.sort_unstable_by_key(|range| range.start);
    let mut out: Vec<PageRange> = Vec::new();
    for range in sorted {
        match out.last_mut() {
            Some(last) if range.start <= last.end => last.end = last.end.max(range.end),
            _ => out.push(range),
        }
    }
    debug_assert!(out.is_sorted_by(|a, b| a.end < b.start), "ranges are maximal");
    out
}

/// The pages that are in `from` and not in `removed`. Both must be sorted and disjoint.
fn subtract(from: &[PageRange], removed: &[PageRange]) -> Vec<PageRange> {
    let mut out = Vec::new();
    let mut cuts = removed.iter().peekable();
    for range in from {
        let mut start = range.start;
        while let Some(cut) = cuts.next_if(|cut| cut.end <= range.end) {
            if start < cut.start {
                out.push(start..cut.start);
            }
            start = start.max(cut.end);
        }
        let end = cuts.peek().map_or(range.end, |cut| cut.start.min(range.end));
        if start < end {
            out.push(start..end);
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_are_freed_when_their_last_span_is_released() {
        let mut spans = Spans::new(100);
        for span in [0..100, 10..40, 30..60, 80..90] {
            assert!(spans.add(span));
        }
        let release = |spans: &mut Spans, span| if spans.release(&span) { spans.settle() } else { Vec::new() };
        assert_eq!(release(&mut spans, 0..100), [0..10, 60..80, 90..100]);
        assert_eq!(spans.owned(), [10..60, 80..90]);
        assert!(!spans.add(50..85), "a page of the span was freed");
        assert!(spans.add(10..20));
        assert!(release(&mut spans, 10..40).iter().eq([&(20..30)]));
        for last in [30..60, 80..90, 10..20] {
            assert_eq!(release(&mut spans, last.clone()), [last]);
        }
        assert!(spans.owned().is_empty() && !spans.add(0..1) && spans.add(0..0));
    }

    #[test]
    fn settling_keeps_exactly_the_spanned_pages() {
        let mut spans = Spans::new(50);
        assert!(spans.add(5..10) && spans.add(20..30));
        assert_eq!(spans.settle(), [0..5, 10..20, 30..50]);
        assert_eq!(spans.settle(), []);
    }
}
