//! Punching: returns the disk space of free pages to the file system, and finds uses for free pages that still occupy
//! disk space.
//!
//! ```text
//!   extent   used │ gap │ gap │ used │ gap …     a gap: a free page between used ones that occupies disk space
//!              └ all 32 pages free ─▶ punched at once, with its neighbours
//!                many gaps in all ─▶ large values are written into gaps; some gaps are punched at each checkpoint,
//!                                    more of them while the store is at rest
//! ```
//!
//! Punching a page takes about as long as writing it, and other writers of the file wait meanwhile. So a long range is
//! punched in pieces, between which the others continue. Random overwrites of values of one page free single pages. If
//! each was punched, overwriting would be three times as slow. Most of these pages need no punch of their own, because
//! the rest of their extent becomes free later.
//!
//! A file system may have a larger unit than a page ([`File::hole_unit`](crate::device::File::hole_unit)). There a free
//! page occupies disk space until its whole unit is free, and gaps are used only on a full disk
//! ([`DataFile::fill_gaps`]).
//!
//! Invariant: a page is punched while it counts as used, or under the lock of the map. Otherwise another thread might
//! allocate and write it before it is punched.

use std::ops::Range;

use super::data::{DATA_FILE, DataFile, Space};
use super::map::PageMap;
use crate::base::sync::Ordering::Relaxed;
use crate::base::{EXTENT_PAGES, Error, Extent, PAGE, PageNo, Result};
use crate::device::ALLOCATED_UNIT;

/// Free pages between used ones are punched when they exceed this share of the used pages. Then half of them is
/// punched.
const MOST_GAPS: u64 = 8;
/// The most ranges of such pages that one checkpoint punches. Background work may have to wait for the checkpoint.
const MOST_PUNCHES: usize = 128;
/// The most pages that are punched in one call: 8 MiB. On ext4 that discards freed blocks, a call took 2.4 ms and another
/// 0.9 ms for each MiB. A background thread that was writing a run waited up to 127 ms for the lock of the file.
const MOST_IN_ONE_CALL: u64 = (8 << 20) / PAGE as u64;
/// If the free pages between used ones exceed this number of sixteenths of the used pages, values are written to ranges
/// of at least this many of them. Short ranges mean many short writes.
const LEAST_GAP: [(u64, u32); 3] = [(5, 1), (3, 2), (1, 4)];

const _: () = assert!((MOST_IN_ONE_CALL * PAGE as u64).is_multiple_of(ALLOCATED_UNIT), "pieces are whole units");

impl DataFile {
    /// Allocates pages for large values: `least` to `pages` contiguous pages. Takes free pages between used ones if there
    /// are many of them.
    ///
    /// # Errors
    /// As [`DataFile::alloc`].
    pub(super) fn alloc_for_values(&self, least: u32, pages: u32) -> Result<Extent> {
        if self.hole_pages == 1 {
            let map = &mut self.state.lock().map;
            let shortest = LEAST_GAP.iter().find(|(share, _)| map.gap_pages() * 16 > map.taken_pages() * share);
            let shortest = shortest.map(|(_, shortest)| least.max(*shortest).min(pages));
            if let Some(gap) = shortest.and_then(|shortest| map.alloc_gap(shortest, pages)) {
                return Ok(gap);
            }
        }
        self.alloc_some(least, pages)
    }

    /// Turns gap filling on or off. A gap is a free page that was written and still occupies disk space, because other
    /// pages of its unit ([`File::hole_unit`]) are in use. Runs that fill gaps consist of many short extents, so gap
    /// filling is only for a full disk.
    pub fn fill_gaps(&self, fill: bool) {
        self.fills_gaps.store(fill && self.hole_pages > 1, Relaxed);
    }

    /// Bytes of all gaps.
    pub fn gap_bytes(&self) -> u64 {
        if self.hole_pages == 1 {
            return 0;
        }
        self.state.lock().map.gap_pages() * PAGE as u64
    }

    /// Marks the pages in `released` as free, except those to punch. Returns the pages to punch, which still count as
    /// used: extents that become wholly free, and some gaps if there are many.
    pub(super) fn release_some(&self, map: &mut PageMap, mut released: Vec<Extent>) -> Vec<Extent> {
        let unit = if self.hole_pages > 1 { self.hole_pages } else { EXTENT_PAGES };
        let mut holes = map.take_rest(&mut released, unit);
        released.iter().for_each(|extent| map.release(*extent));
        holes.iter().for_each(|hole| assert!(map.take(*hole), "the unit {hole:?} is free"));
        if self.hole_pages == 1 {
            map.take_gaps(excess(map), MOST_PUNCHES, &mut holes);
            holes.sort_unstable();
        }
        holes
    }

    /// Punches ranges, which must be in ascending order and count as used. Returns the punched ranges.
    ///
    /// # Errors
    /// The I/O error of a range, except that the disk is full.
    pub(super) fn punch_all(&self, holes: Vec<Extent>) -> Result<Vec<Range<PageNo>>> {
        let mut punched = Vec::new();
        for hole in joined(holes.into_iter()).flat_map(pieces) {
            let from = hole.start.offset();
            match self.punch(&hole).map_err(|e| Error::io("punch", DATA_FILE, Some(from), &e)) {
                // Punching a hole can itself need disk space, when it splits an extent of the file system. Without that
                // space the pages are reused unpunched.
                Err(Error::DiskFull { .. }) => {}
                result => result.map(|()| punched.push(hole))?,
            }
        }
        Ok(punched)
    }

    /// Punches some gaps if there are many. Called while the store is at rest. Returns whether there is more to punch.
    /// REQUIRES: the store is not closed during the call.
    ///
    /// # Errors
    /// As [`DataFile::finish_checkpoint`].
    pub fn punch_at_rest(&self) -> Result<bool> {
        if self.hole_pages > 1 {
            return Ok(false);
        }
        let mut gaps = Vec::new();
        {
            let map = &mut self.state.lock().map;
            map.take_gaps(excess(map), MOST_PUNCHES, &mut gaps);
        }
        let punched = self.punch_all(gaps.clone());
        let map = &mut self.state.lock().map;
        gaps.iter().for_each(|gap| map.release_unwritten(*gap));
        let punched = punched?;
        // If nothing was punched, the disk is full, and another attempt now would fail too.
        let more = !punched.is_empty();
        punched.into_iter().for_each(|hole| map.punched(hole));
        Ok(more && excess(map) > 0)
    }

    pub(super) fn punch(&self, hole: &Range<PageNo>) -> std::io::Result<()> {
        self.file.punch_hole(hole.start.offset(), hole.end.offset() - hole.start.offset())
    }

    /// Punches the wholly free units that contain some of these pages. A failure is ignored, because unpunched pages
    /// can be reused, too.
    /// REQUIRES: the caller holds the lock of `state`.
    pub(super) fn punch_around(&self, state: &mut Space, extent: Extent) {
        if state.closed {
            return;
        }
        let holes: Vec<_> = joined(state.map.freed_by(extent, self.hole_pages)).collect();
        for hole in holes {
            if self.punch(&hole).is_ok() {
                state.map.punched(hole);
            }
        }
    }

    /// Punches all free extents. Called when the disk becomes full, because extents that were already free when the
    /// store was opened may still occupy disk space.
    pub fn punch_free(&self) {
        // Keep the lock, so that no thread allocates and writes such a page before it is punched.
        let mut state = self.state.lock();
        if state.closed {
            return;
        }
        let page = |extent: u64| PageNo(extent * u64::from(EXTENT_PAGES));
        let mut holes: Vec<_> =
            state.map.free_extents().map(|(start, count)| page(start)..page(start + count)).collect();
        let mut gaps = Vec::new();
        if self.hole_pages == 1 {
            state.map.take_gaps(u64::MAX, usize::MAX, &mut gaps);
            gaps.iter().for_each(|gap| state.map.release_unwritten(*gap));
            holes.extend(gaps.iter().map(|gap| gap.start..PageNo(gap.end())));
        }
        for hole in holes {
            if self.punch(&hole).is_err() {
                return;
            }
            state.map.punched(hole);
        }
    }
}

/// The number of gaps to punch: if there are too many, as many as leave half of the permitted number.
fn excess(map: &PageMap) -> u64 {
    let most = map.taken_pages() / MOST_GAPS;
    if map.gap_pages() > most { map.gap_pages() - most / 2 } else { 0 }
}

/// Joins adjacent extents. The extents must be in ascending order.
fn joined(extents: impl Iterator<Item = Extent>) -> impl Iterator<Item = Range<PageNo>> {
    let mut extents = extents.peekable();
    std::iter::from_fn(move || {
        let first = extents.next()?;
        let mut end = first.end();
        while let Some(next) = extents.next_if(|next| next.start.0 == end) {
            end = next.end();
        }
        debug_assert!(extents.peek().is_none_or(|next| next.start.0 > end), "extents ascend");
        Some(first.start..PageNo(end))
    })
}

/// Divides a range into pieces of at most [`MOST_IN_ONE_CALL`] pages.
fn pieces(range: Range<PageNo>) -> impl Iterator<Item = Range<PageNo>> {
    let (start, end) = (range.start.0, range.end.0);
    let starts = (0..(end - start).div_ceil(MOST_IN_ONE_CALL)).map(move |piece| start + piece * MOST_IN_ONE_CALL);
    starts.map(move |from| PageNo(from)..PageNo((from + MOST_IN_ONE_CALL).min(end)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::StoreId;
    use crate::device::AlignedBuf;
    use crate::device::sim::SimDevice;

    #[test]
    fn a_long_range_is_punched_in_pieces() {
        for pages in [1, MOST_IN_ONE_CALL - 1, MOST_IN_ONE_CALL, MOST_IN_ONE_CALL + 1, 5 * MOST_IN_ONE_CALL + 7] {
            let pieces: Vec<_> = pieces(PageNo(3)..PageNo(3 + pages)).collect();
            assert!(pieces.iter().all(|piece| (1..=MOST_IN_ONE_CALL).contains(&(piece.end.0 - piece.start.0))));
            assert!(pieces.windows(2).all(|pair| pair[0].end == pair[1].start), "without gaps");
            let ends = (pieces.first().map(|piece| piece.start), pieces.last().map(|piece| piece.end));
            assert_eq!(ends, (Some(PageNo(3)), Some(PageNo(3 + pages))));
        }
    }

    #[test]
    fn single_free_pages_are_kept_for_values_and_punched_when_there_are_many() {
        let sim = SimDevice::new(1);
        let data = DataFile::create(&*sim, DATA_FILE, StoreId([1; 16])).unwrap();
        let pages = 64 * EXTENT_PAGES;
        let whole = data.alloc(pages).unwrap();
        data.write(whole.start, AlignedBuf::zeroed(pages as usize)).unwrap();
        let before = sim.occupied();
        let page = |at: u32| Extent { start: PageNo(whole.start.0 + u64::from(at)), pages: 1 };
        let checkpoints = || {
            for _ in 0..2 {
                data.begin_checkpoint();
                data.finish_checkpoint().unwrap();
            }
        };
        // A sixteenth of the pages: not punched.
        (0..pages).step_by(16).for_each(|at| data.free(page(at)));
        checkpoints();
        assert_eq!(sim.occupied(), before);
        assert!(!data.punch_at_rest().unwrap(), "there are few gaps");
        // A wholly free extent is punched at once, its gaps included.
        (0..EXTENT_PAGES).filter(|at| at % 16 > 0).for_each(|at| data.free(page(at)));
        checkpoints();
        assert_eq!(sim.occupied(), before - u64::from(EXTENT_PAGES) * PAGE as u64);
        // Half of the pages: checkpoints punch some of them, and values are written into others.
        (EXTENT_PAGES..pages).filter(|at| at % 2 == 1).for_each(|at| data.free(page(at)));
        checkpoints();
        let value = data.alloc_for_values(1, 32).unwrap();
        assert!(value.start >= whole.start && value.end() <= whole.end(), "{value:?} is a gap");
        let used = data.stats().allocated_bytes;
        let mut calls = 0;
        while data.punch_at_rest().unwrap() {
            calls += 1;
        }
        assert!(calls > 1, "at most {MOST_PUNCHES} ranges are punched at a time");
        assert_eq!(data.stats().allocated_bytes, used, "the punched pages are free again");
        let gaps = data.state.lock().map.gap_pages() * PAGE as u64;
        assert!(0 < gaps && gaps <= used / MOST_GAPS, "{gaps} bytes of gaps beside {used} bytes in use");
        data.punch_free();
        assert_eq!(data.state.lock().map.gap_pages(), 0, "a full disk leaves no gap");
    }
}
