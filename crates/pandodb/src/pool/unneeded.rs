//! [`Unneeded`]: pages that were freed, and whose blocks the pool still has to remove.
//!
//! ```text
//!   a run, or a part of it, is dropped ─▶ ranges of pages ─▶ [ · · · · · · ] ─▶ a few pages at each insertion of a block
//! ```
//!
//! The last user of a large run may be a reader that has just answered a lookup. A run of one gigabyte can have 262,144
//! blocks in the pool, so the reader only queues the pages, and removes the blocks of a few. Threads that insert
//! blocks, ask for room or reserve memory remove the others, as does a background thread when the store rests. Nothing
//! requests these blocks any more, so it only matters that they occupy memory of the pool.
//!
//! Lock: that of the queue, alone.

use std::collections::VecDeque;
use std::ops::Range;

use crate::base::OwnerId;
use crate::base::sync::{AtomicUsize, Mutex, Ordering::Relaxed};

/// The queue of pages.
#[derive(Debug, Default)]
pub(super) struct Unneeded {
    ranges: Mutex<VecDeque<(OwnerId, Range<u64>)>>,
    /// The number of pages of all ranges.
    pages: AtomicUsize,
}

impl Unneeded {
    /// Adds a range of pages of an owner.
    pub(super) fn push(&self, owner: OwnerId, pages: Range<u64>) {
        let count = usize::try_from(pages.end - pages.start).expect("pages of a file");
        let mut ranges = self.ranges.lock();
        ranges.push_back((owner, pages));
        self.pages.fetch_add(count, Relaxed);
    }

    /// Whether there are no pages.
    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.pages() == 0
    }

    /// The number of pages.
    #[inline]
    pub(super) fn pages(&self) -> usize {
        self.pages.load(Relaxed)
    }

    /// Removes at most `most` pages of one range; `None` if there are none.
    pub(super) fn pop(&self, most: usize) -> Option<(OwnerId, Range<u64>)> {
        let mut ranges = self.ranges.lock();
        let (owner, rest) = ranges.front_mut()?;
        let (owner, part) = (*owner, rest.start..rest.end.min(rest.start.saturating_add(most as u64)));
        rest.start = part.end;
        if rest.is_empty() {
            ranges.pop_front();
        }
        let count = usize::try_from(part.end - part.start).expect("pages of a file");
        let before = self.pages.fetch_sub(count, Relaxed);
        debug_assert!(before >= count, "the pages of all ranges are counted");
        Some((owner, part))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_are_removed_in_parts_in_order() {
        let unneeded = Unneeded::default();
        assert!(unneeded.is_empty() && unneeded.pop(3).is_none());
        unneeded.push(OwnerId(1), 10..15);
        unneeded.push(OwnerId(2), 3..4);
        assert_eq!(unneeded.pop(3), Some((OwnerId(1), 10..13)));
        assert_eq!(unneeded.pop(3), Some((OwnerId(1), 13..15)));
        assert!(!unneeded.is_empty());
        assert_eq!(unneeded.pop(3), Some((OwnerId(2), 3..4)));
        assert!(unneeded.is_empty() && unneeded.pop(3).is_none());
    }
}
