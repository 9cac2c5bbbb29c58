//! Writes the pages of a run one after the other: allocates extents in steps, gathers blocks into large writes, gives
//! back what it did not need.
//!
//! ```text
//!   extents    |■■■■■■■■□□□□|        |■■■■|      ■ placed   □ allocated, not placed yet
//!   positions   0 1 2 …                8 …       a position is the number of placed pages before it
//!                        └ buffer: placed pages that are contiguous and not written yet
//! ```
//!
//! A block never lies across two extents that do not touch. Where it does not fit, the rest of the extent is given back
//! and the block opens the next one, so that positions have no gaps. Dropped before [`PageWriter::finish`], it gives
//! everything back: nothing durable can have reached it.

use std::sync::Arc;

use crate::base::{BlockAddr, EXTENT_PAGES, Extent, OwnerId, PAGE, PageNo, Result};
use crate::device::AlignedBuf;
use crate::pool::{Keep, Pool};
use crate::space::{BlockKind, DataFile};

/// The most that is allocated ahead, and written at a time: 1 MiB.
const STEP_PAGES: u32 = 256;
/// A run that fills gaps on a full disk takes no more of them once it has this many extents: each node that reaches the run stores all
/// of them.
const MOST_SHORT: usize = 64;
/// A run is written in so many pieces at least, as far as whole extents allow: who merges in steps writes in steps, too.
const LEAST_WRITES: u64 = 8;

/// A block's place.
#[derive(Clone, Copy, Debug)]
pub(super) struct Placed {
    /// The pages of the run before it.
    pub(super) position: u64,
    /// Where it is in the file.
    pub(super) addr: BlockAddr,
}

pub(super) struct PageWriter {
    data: Arc<DataFile>,
    /// Gets a copy of each block that searches pass.
    pool: Option<Arc<Pool>>,
    /// The blocks that it was offered.
    offered: Vec<PageNo>,
    owner: OwnerId,
    /// What the run will probably take in all.
    expected_pages: u64,
    /// The most that is gathered for one write.
    buffer_pages: u32,
    /// Extents with placed pages; the last one is open.
    extents: Vec<Extent>,
    /// Pages of the last extent that are not placed yet.
    free_pages: u32,
    /// Pages placed in all extents.
    placed_pages: u64,
    /// `filled` pages of it, from page `buffer_start` on, wait to be written.
    buffer: AlignedBuf,
    filled: u32,
    buffer_start: PageNo,
}

impl PageWriter {
    pub(super) fn new(data: Arc<DataFile>, owner: OwnerId, expected_bytes: u64) -> PageWriter {
        let expected_pages = expected_bytes.div_ceil(PAGE as u64);
        let buffer_pages = (expected_pages / LEAST_WRITES).clamp(EXTENT_PAGES.into(), STEP_PAGES.into()) as u32;
        PageWriter {
            data,
            pool: None,
            offered: Vec::new(),
            owner,
            expected_pages,
            buffer_pages,
            extents: Vec::new(),
            free_pages: 0,
            placed_pages: 0,
            buffer: AlignedBuf::zeroed(0),
            filled: 0,
            buffer_start: PageNo(0),
        }
    }

    /// Offers inner blocks and filters to the pool as they are written: lookups need not read them back.
    pub(super) fn cache_in(&mut self, pool: Arc<Pool>) {
        self.pool = Some(pool);
    }

    /// The extents so far; the last one may still be longer than it will be.
    pub(super) fn extents(&self) -> &[Extent] {
        &self.extents
    }

    /// Pages placed so far.
    pub(super) fn placed_pages(&self) -> u64 {
        self.placed_pages
    }

    /// Finds a place for a block.
    pub(super) fn place(&mut self, pages: u32) -> Result<Placed> {
        assert!(pages > 0, "a block has pages");
        while self.free_pages < pages {
            self.extend(pages)?;
        }
        let last = self.extents.last().expect("an extent is open");
        let page = PageNo(last.end() - u64::from(self.free_pages));
        let position = self.placed_pages;
        self.free_pages -= pages;
        self.placed_pages += u64::from(pages);
        Ok(Placed { position, addr: BlockAddr { page, pages } })
    }

    /// Allocates the next step, large enough for `pages`.
    fn extend(&mut self, pages: u32) -> Result<()> {
        let left = self.expected_pages.saturating_sub(self.placed_pages + u64::from(self.free_pages));
        let step = left.clamp(u64::from(EXTENT_PAGES), u64::from(STEP_PAGES)) as u32;
        let step = step.max(pages).next_multiple_of(EXTENT_PAGES);
        let least = if self.extents.len() < MOST_SHORT { pages } else { step };
        let extent = self.data.alloc_some(least, step)?;
        match self.extents.last_mut() {
            Some(last) if last.end() == extent.start.0 => {
                last.pages += extent.pages;
                self.free_pages += extent.pages;
            }
            _ => {
                self.trim();
                self.extents.push(extent);
                self.free_pages = extent.pages;
            }
        }
        Ok(())
    }

    /// Gives back what of the open extent was not placed.
    fn trim(&mut self) {
        if let Some(last) = self.extents.last_mut() {
            let rest = Extent { start: PageNo(last.end() - u64::from(self.free_pages)), pages: self.free_pages };
            last.pages -= rest.pages;
            self.data.give_back(rest);
            if last.pages == 0 {
                self.extents.pop();
            }
        }
        self.free_pages = 0;
    }

    /// Writes a block to its place, sealed: `fill` writes the body. Blocks come in the order in which they were placed.
    pub(super) fn write(&mut self, placed: Placed, kind: BlockKind, fill: impl FnOnce(&mut [u8])) -> Result<()> {
        let addr = placed.addr;
        let next = self.buffer_start.0 + u64::from(self.filled);
        if next != addr.page.0 || self.filled + addr.pages > self.buffer_pages {
            self.flush()?;
            self.buffer_start = addr.page;
        }
        if addr.pages > self.buffer_pages {
            let mut block = AlignedBuf::zeroed(addr.pages as usize);
            fill(&mut block);
            self.data.seal_block(&mut block, addr, self.owner, kind);
            self.data.write(addr.page, block)?;
            self.buffer_start = PageNo(addr.page.0 + u64::from(addr.pages));
            return Ok(());
        }
        if self.buffer.pages() < (self.filled + addr.pages) as usize {
            self.grow_buffer(addr.pages);
        }
        let block = &mut self.buffer[self.filled as usize * PAGE..][..addr.bytes()];
        fill(block);
        self.data.seal_block(block, addr, self.owner, kind);
        if let (Some(pool), BlockKind::RunInner | BlockKind::RunFilter) = (&self.pool, kind) {
            pool.offer(self.owner, addr, Keep::Long, block);
            self.offered.push(addr.page);
        }
        self.filled += addr.pages;
        Ok(())
    }

    /// Finds a place for a block and writes it there.
    pub(super) fn append(&mut self, pages: u32, kind: BlockKind, fill: impl FnOnce(&mut [u8])) -> Result<Placed> {
        let placed = self.place(pages)?;
        self.write(placed, kind, fill)?;
        Ok(placed)
    }

    /// A small run does with a small buffer: doubles it, up to a full one.
    fn grow_buffer(&mut self, pages: u32) {
        let want = (self.filled + pages).max(self.filled * 2).clamp(EXTENT_PAGES, self.buffer_pages);
        let mut larger = AlignedBuf::zeroed(want as usize);
        let filled = self.filled as usize * PAGE;
        larger[..filled].copy_from_slice(&self.buffer[..filled]);
        self.buffer = larger;
    }

    fn flush(&mut self) -> Result<()> {
        if self.filled > 0 {
            let mut buffer = std::mem::take(&mut self.buffer);
            buffer.truncate(self.filled as usize);
            self.filled = 0;
            self.buffer = self.data.write(self.buffer_start, buffer)?;
        }
        Ok(())
    }

    /// Gives back the rest of the open extent, after which nothing more is placed: the extents are final.
    pub(super) fn close(&mut self) -> &[Extent] {
        self.trim();
        &self.extents
    }

    /// Writes what is still in the buffer, and lets go of the extents: they are the caller's now.
    pub(super) fn finish(mut self) -> Result<Vec<Extent>> {
        self.close();
        self.flush()?;
        self.offered.clear();
        Ok(std::mem::take(&mut self.extents))
    }
}

impl Drop for PageWriter {
    fn drop(&mut self) {
        // Nobody will ask for what is of no run.
        if let Some(pool) = &self.pool {
            self.offered.drain(..).for_each(|page| pool.forget(self.owner, page));
        }
        self.extents.drain(..).for_each(|extent| self.data.discard(extent));
    }
}
