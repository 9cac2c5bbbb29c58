//! The "optimal" buffer (000 §5.1.2): every page is in memory, in the frame with the number of the page. A request
//! takes no lock, and there is no file.

use super::{Counts, PageBuffer};
use crate::block::Block;
use crate::error::{Error, Result};
use crate::frame::{Frames, PageNo, Pinned, WritePage};
use crate::sync::{AtomicU64, Ordering};

/// The buffer.
#[derive(Debug)]
pub struct Optimal {
    frames: Frames,
    /// The number of pages, and the number of the next page.
    pages: AtomicU64,
    page_bytes: usize,
}

impl Optimal {
    /// A buffer for pages of `page_bytes` bytes.
    pub fn new(page_bytes: usize) -> Optimal {
        Optimal { frames: Frames::new(), pages: AtomicU64::new(0), page_bytes }
    }
}

impl PageBuffer for Optimal {
    #[inline]
    fn pin(&self, page: PageNo) -> Result<Pinned<'_>> {
        debug_assert!(page < self.pages.load(Ordering::Relaxed), "the page exists");
        Ok(self.frames.get(page as u32).pin())
    }

    fn create(&self) -> Result<WritePage<'_>> {
        let page = self.pages.fetch_add(1, Ordering::Relaxed);
        let frame = u32::try_from(page).map_err(|_| Error::Layout("more than 2^32 pages".to_owned()))?;
        let frame = self.frames.get(frame);
        {
            let mut latch = frame.latch_empty();
            assert!(latch.bytes.is_empty(), "a page is created once");
            latch.bytes = Block::zeroed(self.page_bytes);
            latch.no = page;
        }
        Ok(frame.occupy(page).write())
    }

    fn counts(&self) -> Counts {
        Counts { pages: self.pages.load(Ordering::Relaxed), ..Counts::default() }
    }
}
