//! A page buffer whose hits need no page table: a thread that has latched the parent of a page finds the frame from the
//! parent's hint (`crate::hints`, 000 §8.5). Everything else is the sharded buffer with CLOCK.
//!
//! 1. A hit through a hint counts a pin, checks that the frame has the page, and marks the frame. It takes no lock, and
//!    writes to no memory that requests of other pages write to.
//! 2. Without a hint, or with a wrong one, the request uses the table and sets the hint.
//!
//! Locks: those of [`Sharded`]. An eviction does not exclude hits through hints by a lock, but by a bit of the frame
//! (`Pinned::try_empty`).

use std::path::Path;

use super::replacement::Policy;
use super::sharded::Sharded;
use super::{BufferConfig, Counts, PageBuffer, Released};
use crate::error::Result;
use crate::frame::{PageNo, Pinned, ReadPage, WritePage};
use crate::hints::{Child, Hints};

/// The buffer.
#[derive(Debug)]
pub struct Swizzled {
    pages: Sharded,
}

impl Swizzled {
    /// Creates the buffer and its file.
    ///
    /// # Errors
    /// The errors of the file.
    pub fn create(config: &BufferConfig, path: &Path) -> Result<Swizzled> {
        Ok(Swizzled { pages: Sharded::create(config, path, Policy::clock())? })
    }

    /// Pins the child if it is in memory.
    #[inline]
    fn find(&self, hints: &Hints, child: Child) -> Option<Pinned<'_>> {
        if let Some(pinned) = hints.get(child).and_then(|frame| self.pages.find_in(frame, child.no)) {
            return Some(pinned);
        }
        let (frame, pinned) = self.pages.find(child.no)?;
        hints.set(child, frame);
        Some(pinned)
    }
}

impl PageBuffer for Swizzled {
    fn pin(&self, page: PageNo) -> Result<Pinned<'_>> {
        self.pages.pin(page)
    }

    fn create(&self) -> Result<WritePage<'_>> {
        self.pages.create()
    }

    fn counts(&self) -> Counts {
        self.pages.counts()
    }

    fn pin_child(&self, hints: &Hints, child: Child) -> Result<Pinned<'_>> {
        if let Some(pinned) = self.find(hints, child) {
            self.pages.check()?;
            return Ok(pinned);
        }
        let (frame, pinned) = self.pages.miss(child.no, false)?;
        hints.set(child, frame);
        Ok(pinned)
    }

    fn pin_child_unlatched<'a>(&'a self, parent: ReadPage<'a>, child: Child) -> Result<Released<'a>> {
        let found = self.find(parent.hints(), child);
        let (parent, version) = parent.unlatch();
        let child = match found {
            Some(pinned) => {
                self.pages.check()?;
                pinned
            }
            // The hint is set by the next descent, since the parent is not latched any more.
            None => self.pages.pin(child.no)?,
        };
        Ok(Released { parent, version, child })
    }
}
