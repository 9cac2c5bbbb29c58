//! [`PartCursor`]: a scan of the parts and of the tree on disk, one part after the other.
//!
//! ```text
//!   keys        ────────────────────────────────────────▶
//!   in memory   [   part   ][        part        ][ part ]
//!   on disk     [   tree   ][        tree        ][ tree ]     each with the root that belongs to the part
//! ```
//!
//! Invariant: all messages of a key come from one state.

use std::sync::Arc;

use super::shared::State;
use super::view::PartView;
use crate::base::range::successor;
use crate::base::{EntryBlock, KeyRange, Result, Seqno};
use crate::index::RawCursor;
use crate::index::parts::{Merged, Part};
use crate::index::tree::levels::cursor_of;

/// A scan in one direction.
pub(super) struct PartCursor {
    view: Arc<PartView>,
    /// The range with which the cursor was made.
    whole: Arc<KeyRange>,
    /// The keys of the parts that were not opened yet; `None` at the end.
    rest: Option<KeyRange>,
    reverse: bool,
    /// Pages of the tree without a newer message may be left out.
    since: Seqno,
    /// Keys whose messages the reader does not need if they are older than the seqno.
    covered: Option<(KeyRange, Seqno)>,
    open: Option<Merged>,
}

impl PartCursor {
    pub(super) fn new(view: Arc<PartView>, range: Arc<KeyRange>, reverse: bool, since: Seqno) -> PartCursor {
        let rest = Some((*range).clone()).filter(|range| !range.is_empty());
        PartCursor { view, whole: range, rest, reverse, since, covered: None, open: None }
    }

    /// The first part with keys of `rest`, in the direction of the scan.
    fn next_part<'s>(&self, state: &'s State, rest: &KeyRange) -> &'s Part {
        match (self.reverse, rest.to.as_slice()) {
            (false, _) => state.part_of(&rest.from),
            (true, []) => state.parts.last().expect("the parts have all keys"),
            (true, to) => {
                let at = state.parts.partition_point(|part| part.keys.from.as_slice() < to);
                &state.parts[at.max(1) - 1]
            }
        }
    }

    /// Opens the part with the next keys, in memory and on disk.
    fn open_next(&mut self, rest: &KeyRange) -> Result<()> {
        let state = self.view.state();
        let part = self.next_part(&state, rest);
        let keys = part.keys.intersect(rest);
        debug_assert!(!keys.is_empty(), "the part has keys of the scan");
        let memtables = part.stack.read().in_keys(&keys);
        let (tree, range) = (state.tree.clone(), Arc::new(keys.clone()));
        tree.check_readable()?;
        let mut on_disk = cursor_of(tree, range, self.reverse, self.since);
        if let Some((range, seqno)) = &self.covered {
            on_disk.leave_out(range, *seqno)?;
        }
        self.open = Some(Merged::new(memtables, Some(on_disk), self.reverse));
        let left = match self.reverse {
            true => Some(KeyRange::new(rest.from.as_slice(), keys.from)).filter(|left| !left.to.is_empty()),
            false if keys.to.is_empty() => None,
            false => Some(KeyRange::new(keys.to, rest.to.as_slice())),
        };
        self.rest = left.filter(|left| !left.is_empty());
        Ok(())
    }
}

impl RawCursor for PartCursor {
    fn fill(&mut self, max_bytes: usize, out: &mut EntryBlock) -> Result<()> {
        let stop = out.bytes() + max_bytes;
        while out.bytes() < stop {
            if let Some(open) = &mut self.open {
                let before = out.len();
                open.fill(stop - out.bytes(), out)?;
                if out.len() == before {
                    self.open = None;
                }
                continue;
            }
            let Some(rest) = self.rest.take() else { return Ok(()) };
            if let Err(e) = self.open_next(&rest) {
                self.rest = Some(rest);
                return Err(e);
            }
        }
        Ok(())
    }

    fn seek(&mut self, key: &[u8]) -> Result<()> {
        self.open = None;
        let bound = if self.reverse { KeyRange::new([], successor(key)) } else { KeyRange::new(key, []) };
        self.rest = Some(self.whole.intersect(&bound)).filter(|rest| !rest.is_empty());
        Ok(())
    }

    fn leave_out(&mut self, range: &KeyRange, seqno: Seqno) -> Result<()> {
        self.covered = Some((range.clone(), seqno));
        self.open.as_mut().map_or(Ok(()), |open| open.leave_out(range, seqno))
    }
}
