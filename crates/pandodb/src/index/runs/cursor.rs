//! A scan over runs, piece by piece of the key space. The structure supplies the runs for each piece.
//!
//! ```text
//!   key space      |── piece 1 ──|── piece 2 ──|── …        a leaf of a trunk, a part of the lowest level
//!   slices         merge of all slices that overlap the piece; the next piece is opened when this one has ended
//! ```
//!
//! A piece holds tens of megabytes, so the cost of the seeks at the ends of a piece is negligible.
//!
//! Invariant: the pieces cover the scanned range once, in the direction of the scan.

use std::sync::Arc;

use crate::base::{EntryBlock, KeyRange, Result, Seqno};
use crate::index::RawCursor;
use crate::rows::IndexRows;
use crate::run::{MergeCursor, ReadAhead, RunCursor, RunSlice, ScanHabits, ScanUse, Spare, beyond};

/// A piece of the key space and the slices that overlap it.
pub struct Piece {
    /// The keys of the piece.
    pub range: Arc<KeyRange>,
    /// The slices in any order. Each has the estimated number of its bytes that are in the piece. The first chunk that
    /// a scan reads from a slice is proportional to this number.
    pub slices: Vec<(Arc<RunSlice>, u64)>,
}

/// A structure that is scanned piece by piece.
pub trait Pieces: Send + Sync {
    /// The piece at the lower end of `rest`, or at the upper end of `rest` if `reverse`. `rest` is not empty.
    ///
    /// # Errors
    /// If the structure cannot be read at that end.
    fn piece(&self, rest: &KeyRange, reverse: bool) -> Result<Piece>;

    /// What the scans of the structure used lately.
    fn habits(&self) -> &ScanHabits;

    /// Notes that a scan of a part of a piece has read the leaves `spare` more than it would have read if all slices of the
    /// piece were one run. The structure may compact them.
    fn note_spare(&self, piece: &KeyRange, spare: Spare);

    /// The row cache of the structure.
    fn rows(&self) -> &IndexRows;
}

/// A cursor over one view. The cursor pins the view.
pub struct PiecewiseCursor<V: Pieces> {
    view: Arc<V>,
    /// The range of the scan.
    range: Arc<KeyRange>,
    /// The part of the range after the current piece; `None` if there is none.
    rest: Option<Arc<KeyRange>>,
    reverse: bool,
    merge: Option<MergeCursor>,
    /// The pages that were used since the cursor was opened or since the last seek. `None` until the first piece.
    used: Option<Arc<ScanUse>>,
    /// The range of the current piece.
    piece: Option<Arc<KeyRange>>,
    /// The range and the seqno of the last call of [`RawCursor::leave_out`], for the pieces that are opened later.
    covered: Option<(KeyRange, Seqno)>,
    /// Runs without a message above this seqno are left out.
    since: Seqno,
}

impl<V: Pieces> PiecewiseCursor<V> {
    /// Makes a cursor over `range`. This call reads no blocks.
    pub fn new(view: Arc<V>, range: Arc<KeyRange>, reverse: bool) -> PiecewiseCursor<V> {
        PiecewiseCursor {
            view,
            rest: Some(range.clone()).filter(|range| !range.is_empty()),
            range,
            reverse,
            merge: None,
            used: None,
            piece: None,
            covered: None,
            since: Seqno(0),
        }
    }

    /// Leaves out the runs that have no message with a seqno above `since`. Such a cursor does not count as a scan.
    pub fn since(mut self, since: Seqno) -> PiecewiseCursor<V> {
        debug_assert!(self.merge.is_none(), "a cursor that was not used yet");
        self.since = since;
        self
    }

    /// Opens the merge for the next piece and removes the piece from `rest`. Returns `false` if nothing is left.
    fn next_piece(&mut self) -> Result<bool> {
        let Some(rest) = &self.rest else { return Ok(false) };
        let piece = self.view.piece(rest, self.reverse)?;
        let range = piece.range.part_of(rest);
        assert!(!range.is_empty(), "a piece includes a part of the rest");
        let used = self.used.get_or_insert_default();
        let total = piece.slices.iter().map(|(_, bytes)| bytes).sum();
        self.piece = Some(piece.range);
        let overlapping = piece
            .slices
            .into_iter()
            .filter(|(slice, _)| slice.range().overlaps(&range) && slice.run().meta().max_seqno > self.since);
        let uncovered = self
            .covered
            .as_ref()
            .map(|(covered, seqno)| (Arc::new(beyond_start(&range, covered, self.reverse)), *seqno));
        let cursors = overlapping.map(|(slice, bytes)| {
            let ahead = ReadAhead::Expecting(self.view.habits().first_pages(used, bytes, total));
            let newest = slice.run().meta().max_seqno;
            let part = uncovered.as_ref().filter(|(_, seqno)| newest < *seqno).map_or(&range, |(part, _)| part);
            RunCursor::pending(slice, part.clone(), self.reverse, ahead).counting(used.clone())
        });
        let mut inputs = MergeCursor::no_inputs();
        inputs.extend(cursors);
        self.merge = Some(MergeCursor::new(inputs, self.reverse).map_err(|(_, e)| e)?);
        self.rest = if Arc::ptr_eq(&range, rest) {
            None
        } else if self.reverse {
            // An empty lower bound means that a reverse scan has ended. As the upper bound of `rest`, it would mean
            // "unbounded".
            Some(KeyRange::new(&*rest.from, &*range.from)).filter(|_| !range.from.is_empty())
        } else {
            Some(KeyRange::new(&*range.to, &*rest.to)).filter(|_| !range.to.is_empty())
        }
        .filter(|rest| !rest.is_empty())
        .map(Arc::new);
        Ok(true)
    }
}

impl<V: Pieces> PiecewiseCursor<V> {
    /// Ends the current piece.
    fn end_piece(&mut self) {
        self.merge = None;
        if let (Some(range), Some(used)) = (self.piece.take(), &self.used)
            && self.since == Seqno(0)
        {
            let spare = used.take_spare();
            if spare.bytes > 0 {
                self.view.note_spare(&range, spare);
            }
        }
    }

    /// Reports what was used since the last call.
    fn report(&mut self) {
        self.end_piece();
        if let Some(used) = self.used.take()
            && self.since == Seqno(0)
        {
            self.view.habits().note(used.behind());
            self.view.rows().scanned(used.leaves_read());
        }
    }
}

impl<V: Pieces> Drop for PiecewiseCursor<V> {
    fn drop(&mut self) {
        self.report();
    }
}

/// `range` without the keys of `covered`, if `covered` includes the end at which a scan of `range` begins.
fn beyond_start(range: &KeyRange, covered: &KeyRange, reverse: bool) -> KeyRange {
    let is_inside = if reverse {
        covered.to.is_empty() || !range.to.is_empty() && range.to <= covered.to && covered.from < range.to
    } else {
        covered.contains(&range.from)
    };
    if is_inside { beyond(range, covered, reverse) } else { range.clone() }
}

impl<V: Pieces> RawCursor for PiecewiseCursor<V> {
    fn fill(&mut self, max_bytes: usize, out: &mut EntryBlock) -> Result<()> {
        let stop = out.bytes() + max_bytes;
        loop {
            if let Some(merge) = &mut self.merge {
                while let Some(entry) = merge.entry() {
                    if out.bytes() >= stop {
                        return Ok(());
                    }
                    out.push(entry);
                    merge.advance()?;
                }
                self.end_piece();
            }
            if !self.next_piece()? {
                return Ok(());
            }
        }
    }

    fn seek(&mut self, key: &[u8]) -> Result<()> {
        // A seek begins a new scan: what was used before it does not predict what is used after it.
        self.report();
        let rest = self.range.intersect(&if self.reverse {
            KeyRange::new([], crate::base::range::successor(key))
        } else {
            KeyRange::new(key, [])
        });
        self.rest = Some(rest).filter(|rest| !rest.is_empty()).map(Arc::new);
        Ok(())
    }

    fn leave_out(&mut self, range: &KeyRange, seqno: Seqno) -> Result<()> {
        self.covered = Some((range.clone(), seqno));
        self.merge.as_mut().map_or(Ok(()), |merge| merge.leave_out(range, seqno))
    }
}
