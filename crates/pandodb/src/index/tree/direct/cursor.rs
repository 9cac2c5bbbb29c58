//! [`HotCursor`]: a scan of the ranges in memory, and of the tree on disk between them.
//!
//! ```text
//!   keys        ────────────────────────────────────────────────▶
//!   in memory        [ range ]      [ range ][ range ]
//!   on disk     ······         ······                 ···········   a cursor for each gap
//! ```
//!
//! When the scan comes to a gap, it loads the root that belongs to it ([`super::view`]) and reads the whole gap there,
//! even if a part of it gets into memory meanwhile.

use std::sync::Arc;

use super::view::HotView;
use crate::base::range::successor;
use crate::base::{Entry, EntryBlock, KeyRange, Result, Seqno};
use crate::index::RawCursor;
use crate::index::hot::{HotRange, Ranges};
use crate::index::tree::levels::cursor_of;

/// A scan in one direction.
pub(super) struct HotCursor {
    view: Arc<HotView>,
    /// The range with which the cursor was made.
    whole: Arc<KeyRange>,
    /// The keys that were not returned yet; `None` at the end.
    rest: Option<KeyRange>,
    reverse: bool,
    since: Seqno,
    /// Keys whose messages the reader does not need if they are older than the seqno.
    covered: Option<(KeyRange, Seqno)>,
    /// A gap that is being read on disk.
    gap: Option<Box<dyn RawCursor>>,
}

/// The next part of a scan.
enum Part {
    Memory(Arc<HotRange>),
    Disk(KeyRange),
}

impl HotCursor {
    pub(super) fn new(view: Arc<HotView>, range: Arc<KeyRange>, reverse: bool, since: Seqno) -> HotCursor {
        let rest = Some((*range).clone()).filter(|range| !range.is_empty());
        HotCursor { view, whole: range, rest, reverse, since, covered: None, gap: None }
    }

    /// The first part of `rest`, in the direction of the scan.
    fn next_part(&self, ranges: &Ranges, rest: &KeyRange) -> Part {
        if self.reverse {
            let to = Some(rest.to.as_slice()).filter(|to| !to.is_empty());
            return match ranges.before(to) {
                Some(range) if range.keys.to.is_empty() || to.is_some_and(|to| range.keys.to.as_slice() >= to) => {
                    Part::Memory(range.clone())
                }
                Some(range) => Part::Disk(rest.intersect(&KeyRange::new(range.keys.to.as_slice(), []))),
                None => Part::Disk(rest.clone()),
            };
        }
        match (ranges.find(&rest.from), ranges.after(&rest.from)) {
            (Some(range), _) => Part::Memory(range.clone()),
            (None, Some(range)) => Part::Disk(rest.intersect(&KeyRange::new([], range.keys.from.as_slice()))),
            (None, None) => Part::Disk(rest.clone()),
        }
    }

    /// Removes a part that was read from the rest.
    fn pass(&mut self, part: &KeyRange) {
        let rest = self.rest.take().expect("a part was left");
        let (from, to) = match self.reverse {
            true if part.from.is_empty() => return,
            true => (rest.from, part.from.clone()),
            false if part.to.is_empty() => return,
            false => (part.to.clone(), rest.to),
        };
        self.rest = Some(KeyRange::new(from, to)).filter(|rest| !rest.is_empty());
    }

    /// Continues with the next part: copies it from memory, or opens it on disk.
    fn enter(&mut self, out: &mut EntryBlock) -> Result<()> {
        let Some(rest) = self.rest.clone() else { return Ok(()) };
        let (part, tree) = self.view.look(|ranges, tree, _| (self.next_part(ranges, &rest), tree.clone()));
        match part {
            Part::Memory(range) => {
                range.touch();
                let keys = range.keys.intersect(&rest);
                let contents = range.contents.read();
                if contents.is_divided {
                    return Ok(());
                }
                let entries = contents.entries(&keys.from, Some(keys.to.as_slice()).filter(|to| !to.is_empty()));
                if self.reverse {
                    let all: Vec<Entry<'_>> = entries.collect();
                    all.into_iter().rev().for_each(|entry| out.push(entry));
                } else {
                    entries.for_each(|entry| out.push(entry));
                }
                self.pass(&keys);
            }
            Part::Disk(keys) => {
                tree.check_readable()?;
                let mut cursor = cursor_of(tree, Arc::new(keys.clone()), self.reverse, self.since);
                if let Some((range, seqno)) = &self.covered {
                    cursor.leave_out(range, *seqno)?;
                }
                self.gap = Some(cursor);
                self.pass(&keys);
            }
        }
        Ok(())
    }
}

impl RawCursor for HotCursor {
    fn fill(&mut self, max_bytes: usize, out: &mut EntryBlock) -> Result<()> {
        let stop = out.bytes() + max_bytes;
        while out.bytes() < stop {
            if let Some(gap) = &mut self.gap {
                let before = out.len();
                gap.fill(stop - out.bytes(), out)?;
                if out.len() == before {
                    self.gap = None;
                }
                continue;
            }
            if self.rest.is_none() {
                return Ok(());
            }
            self.enter(out)?;
        }
        Ok(())
    }

    fn seek(&mut self, key: &[u8]) -> Result<()> {
        self.gap = None;
        let bound = if self.reverse { KeyRange::new([], successor(key)) } else { KeyRange::new(key, []) };
        self.rest = Some(self.whole.intersect(&bound)).filter(|rest| !rest.is_empty());
        Ok(())
    }

    fn leave_out(&mut self, range: &KeyRange, seqno: Seqno) -> Result<()> {
        self.covered = Some((range.clone(), seqno));
        self.gap.as_mut().map_or(Ok(()), |gap| gap.leave_out(range, seqno))
    }
}
