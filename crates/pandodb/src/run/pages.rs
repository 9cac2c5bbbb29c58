//! [`PageWriter`]: writes the pages of a run, or new pages of a tree, one after the other. The writer allocates extents in steps, collects
//! blocks into large writes, and frees the pages that it did not need.
//!
//! ```text
//!   extents    |■■■■■■■■□□□□|        |■■■■|      ■ placed   □ allocated, not placed yet
//!   positions   0 1 2 …                8 …       a position is the number of placed pages before it
//!                        └ buffer: placed pages that are contiguous and not written yet
//! ```
//!
//! Steps: [`PageWriter::place`] assigns a position and an address to a block, [`PageWriter::write`] writes the block at
//! this address, and [`PageWriter::append`] does both; [`PageWriter::finish`] writes the blocks that are still in the
//! buffer.
//!
//! Invariants: a block does not cross from an extent to one that is not adjacent. If a block does not fit into the open
//! extent, the rest of the extent is freed and does not count in positions, and the block begins the next extent. A
//! writer that is dropped before [`PageWriter::finish`] frees all its pages. This is safe because no durable data can
//! refer to them. Source: 002 §3.3.

use std::sync::Arc;

use crate::base::{BlockAddr, EXTENT_PAGES, Extent, OwnerId, PAGE, PageNo, Result};
use crate::device::AlignedBuf;
use crate::pool::{Keep, Pool};
use crate::space::{BlockKind, DataFile};

/// The most pages of one allocation and of one write: 1 MiB.
const STEP_PAGES: u32 = 256;
/// On a full disk, a run may use short extents to fill gaps, but only while it has fewer extents than this, because
/// each node that refers to the run stores all its extents.
const MOST_SHORT: usize = 64;
/// A run is written in at least this many writes, unless the writes would become shorter than [`LEAST_PAGES`]. So a merge
/// that works in small steps also writes in small steps.
const LEAST_WRITES: u64 = 8;
/// The fewest pages that are collected for one write: 32 KiB, and half of it after [`PageWriter::write_often`].
const LEAST_PAGES: u32 = 8;
/// After [`PageWriter::write_often`] there are this many times as many writes.
const OFTEN: u32 = 2;

const _: () = assert!(STEP_PAGES.is_multiple_of(EXTENT_PAGES), "whole extents are allocated and written");

/// The position and the address of a block.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Placed {
    /// The number of the run's pages before the block.
    pub(crate) position: u64,
    /// The address of the block in the file.
    pub(crate) addr: BlockAddr,
}

pub(crate) struct PageWriter {
    data: Arc<DataFile>,
    /// The pool that receives a copy of each inner and filter block, and of some leaves.
    pool: Option<Arc<Pool>>,
    /// The first pages of the blocks that were offered to the pool.
    offered: Vec<PageNo>,
    owner: OwnerId,
    /// The estimated number of pages of the run.
    expected_pages: u64,
    /// Whether pages are allocated only for the next block.
    is_frugal: bool,
    /// The most pages that are collected for one write. Grows with the longest block, up to an extent.
    buffer_pages: u32,
    /// Extents with placed pages. The last extent is still open.
    extents: Vec<Extent>,
    /// The number of pages of the last extent that are not placed yet.
    free_pages: u32,
    /// The number of pages that are placed, in all extents.
    placed_pages: u64,
    /// Collects pages for one large write. The first `filled` pages of the buffer are not written yet; their place in
    /// the file begins at `buffer_start`.
    buffer: AlignedBuf,
    filled: u32,
    buffer_start: PageNo,
}

/// The pages that are collected for one write of a run of `expected` pages, with `times` as many writes as usual.
fn buffer_pages(expected: u64, times: u32) -> u32 {
    let pages = u32::try_from(expected / (LEAST_WRITES * u64::from(times))).unwrap_or(STEP_PAGES);
    pages.clamp(LEAST_PAGES / times, STEP_PAGES)
}

impl PageWriter {
    pub(crate) fn new(data: Arc<DataFile>, owner: OwnerId, expected_bytes: u64) -> PageWriter {
        let expected_pages = expected_bytes.div_ceil(PAGE as u64);
        PageWriter {
            data,
            pool: None,
            offered: Vec::new(),
            owner,
            expected_pages,
            is_frugal: false,
            buffer_pages: buffer_pages(expected_pages, 1),
            extents: Vec::new(),
            free_pages: 0,
            placed_pages: 0,
            buffer: AlignedBuf::zeroed(0),
            filled: 0,
            buffer_start: PageNo(0),
        }
    }

    /// Offers blocks to the pool when they are written, so that lookups need not read them: inner blocks, filters, and the
    /// leaves for which [`PageWriter::offer_last`] is called.
    pub(crate) fn cache_in(&mut self, pool: Arc<Pool>) {
        self.pool = Some(pool);
    }

    /// Writes in shorter pieces. Has no effect after the first block.
    pub(crate) fn write_often(&mut self) {
        if self.placed_pages == 0 {
            self.buffer_pages = buffer_pages(self.expected_pages, OFTEN);
        }
    }

    /// Allocates no more pages than each block needs, so that a small writer takes little space on a full disk.
    pub(crate) fn frugal(mut self) -> PageWriter {
        self.is_frugal = true;
        self
    }

    /// The extents that are allocated so far. The last extent may still be trimmed.
    pub(crate) fn extents(&self) -> &[Extent] {
        &self.extents
    }

    /// The number of pages that are placed so far.
    pub(crate) fn placed_pages(&self) -> u64 {
        self.placed_pages
    }

    /// Assigns a position and an address to a block.
    pub(crate) fn place(&mut self, pages: u32) -> Result<Placed> {
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

    /// Allocates the next pages, enough for a block of `pages` pages.
    fn extend(&mut self, pages: u32) -> Result<()> {
        let left = self.expected_pages.saturating_sub(self.placed_pages + u64::from(self.free_pages));
        let step = u32::try_from(left).unwrap_or(STEP_PAGES).clamp(EXTENT_PAGES, STEP_PAGES);
        let step = if self.is_frugal { pages } else { step.max(pages).next_multiple_of(EXTENT_PAGES) };
        let least = if self.extents.len() < MOST_SHORT { pages } else { step };
        let extent = self.data.alloc_some(least, step)?;
        assert!((least..=step).contains(&extent.pages), "an extent of {} pages for {least} to {step}", extent.pages);
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

    /// Frees the pages of the open extent that were not placed.
    fn trim(&mut self) {
        if let Some(last) = self.extents.last_mut() {
            assert!(self.free_pages <= last.pages, "the free pages are those of the last extent");
            let rest = Extent { start: PageNo(last.end() - u64::from(self.free_pages)), pages: self.free_pages };
            last.pages -= rest.pages;
            self.data.give_back(rest);
            if last.pages == 0 {
                self.extents.pop();
            }
        }
        self.free_pages = 0;
    }

    /// Seals a block and writes it to its address; `fill` writes the body. Blocks must be written in the order in which
    /// they were placed.
    pub(crate) fn write(&mut self, placed: Placed, kind: BlockKind, fill: impl FnOnce(&mut [u8])) -> Result<()> {
        let addr = placed.addr;
        assert!(placed.position + u64::from(addr.pages) <= self.placed_pages, "a block is placed before it is written");
        let next = self.buffer_start.0 + u64::from(self.filled);
        if next != addr.page.0 || self.filled + addr.pages > self.buffer_pages {
            self.flush()?;
            self.buffer_start = addr.page;
            // A long block is also collected, so that it can be offered to the pool.
            self.buffer_pages = self.buffer_pages.max(addr.pages.min(EXTENT_PAGES));
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
        self.filled += addr.pages;
        debug_assert!(self.filled <= self.buffer_pages && self.filled as usize <= self.buffer.pages());
        if matches!(kind, BlockKind::RunInner | BlockKind::RunFilter) {
            self.offer_last(addr, Keep::Long);
        }
        Ok(())
    }

    /// Offers the block that was written last to the pool, unless the block is longer than the buffer.
    pub(crate) fn offer_last(&mut self, addr: BlockAddr, keep: Keep) {
        if let (Some(pool), Some(first)) = (&self.pool, self.filled.checked_sub(addr.pages)) {
            debug_assert_eq!(self.buffer_start.0 + u64::from(first), addr.page.0, "the block is the last one");
            pool.offer(self.owner, addr, keep, &self.buffer[first as usize * PAGE..][..addr.bytes()]);
            self.offered.push(addr.page);
        }
    }

    /// Offers a block to the pool. `bytes` are the bytes that the pool holds, which may be more than those at `addr`.
    pub(crate) fn offer(&mut self, addr: BlockAddr, keep: Keep, bytes: &[u8]) {
        if let Some(pool) = &self.pool {
            pool.offer(self.owner, addr, keep, bytes);
            self.offered.push(addr.page);
        }
    }

    /// Assigns a position and an address to a block, and writes the block at this address.
    pub(crate) fn append(&mut self, pages: u32, kind: BlockKind, fill: impl FnOnce(&mut [u8])) -> Result<Placed> {
        let placed = self.place(pages)?;
        self.write(placed, kind, fill)?;
        Ok(placed)
    }

    /// Doubles the buffer, up to its full size, so that a small run uses a small buffer.
    fn grow_buffer(&mut self, pages: u32) {
        let want =
            (self.filled + pages).max(self.filled * 2).clamp(LEAST_PAGES.min(self.buffer_pages), self.buffer_pages);
        let mut larger = AlignedBuf::zeroed(want as usize);
        let filled = self.filled as usize * PAGE;
        larger[..filled].copy_from_slice(&self.buffer[..filled]);
        self.buffer = larger;
    }

    fn flush(&mut self) -> Result<()> {
        if self.filled > 0 {
            let mut buffer = std::mem::take(&mut self.buffer);
            buffer.truncate(self.filled as usize);
            assert_eq!(buffer.pages(), self.filled as usize, "exactly the collected pages are written");
            self.filled = 0;
            self.buffer = self.data.write(self.buffer_start, buffer)?;
        }
        Ok(())
    }

    /// Frees the rest of the open extent and returns the final extents. No block may be placed after this call.
    pub(crate) fn close(&mut self) -> &[Extent] {
        self.trim();
        let pages = self.extents.iter().map(|extent| u64::from(extent.pages)).sum::<u64>();
        assert_eq!(pages, self.placed_pages, "the extents have exactly the placed pages");
        &self.extents
    }

    /// Writes the rest of the buffer and returns the extents.
    pub(crate) fn finish(mut self) -> Result<Vec<Extent>> {
        self.close();
        self.flush()?;
        self.offered.clear();
        Ok(std::mem::take(&mut self.extents))
    }
}

impl Drop for PageWriter {
    fn drop(&mut self) {
        // No run will refer to the blocks of this writer, so remove them from the pool.
        if let Some(pool) = &self.pool {
            self.offered.drain(..).for_each(|page| pool.forget(self.owner, page));
        }
        self.extents.drain(..).for_each(|extent| self.data.discard(extent));
    }
}
