//! Leaves in a row: fetches the leaf that a cursor asks for, in either direction, reading ahead as it is told.
//!
//! ```text
//!   Scan        | pool | pool | 32 KiB | 64 KiB | 128 KiB | 256 KiB | 256 KiB …      (the pool is asked first)
//!   Streaming   | n bytes | n bytes …
//!   Staggered   | m bytes | n bytes | n bytes …
//! ```
//!
//! The first two leaves of a scan come through the pool: most scans are short, and what they touch is worth keeping.
//! From then on leaves are read in chunks past the pool, since one long scan would wash it out. A compaction streams,
//! and never touches the pool. A chunk stays inside one extent and inside the span of the cursor's slice, beyond which
//! pages may belong to someone else by now.
//!
//! Leaves follow one another by position. Going up, a leaf's length stands in its header; going down, the leaf above
//! has noted the length of the one below. A length is believed only within its chunk, and its block only after all
//! checks.

use super::inner::Child;
use super::leaf::Leaf;
use super::reader::Run;
use super::spans::PageRange;
use crate::base::{BlockAddr, PAGE, PageNo, Result};
use crate::device::AlignedBuf;
use crate::pool::Block;
use crate::space::BlockKind;

/// How a cursor reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReadAhead {
    /// For users' scans: the first leaves through the pool, then chunks that double from 32 to 256 KiB.
    Scan,
    /// For compactions: chunks of so many bytes, past the pool.
    Streaming(usize),
    /// The same, but for the length of the first chunk: so that the inputs of a merge do not all read at the same time.
    Staggered(usize, usize),
}

fn pages_of(bytes: usize) -> u64 {
    (bytes / PAGE).max(1) as u64
}

/// The first and the largest chunk of a scan, in pages.
const SCAN_PAGES: std::ops::RangeInclusive<u64> = 8..=64;
/// Leaves of a scan that come through the pool.
const POOLED_LEAVES: u32 = 2;

/// Pages that are in memory, by position.
enum Held {
    Nothing,
    Pooled(Block),
    Chunk(AlignedBuf, PageRange),
}

/// Which leaf is wanted.
#[derive(Clone, Copy, Debug)]
pub(super) enum Want {
    /// The one that a walk through inner blocks has found: position and pages.
    Exact(u64, u32),
    /// The one that begins at a position.
    From(u64),
    /// The one of so many pages that ends at a position.
    Before(u64, u32),
}

pub(super) struct Leaves {
    readahead: ReadAhead,
    reverse: bool,
    span: PageRange,
    held: Held,
    /// The current leaf, by position; empty if there is none.
    current: PageRange,
    /// Leaves fetched in a row.
    streak: u32,
    next_chunk: u64,
    passed_bytes: u64,
}

impl Leaves {
    pub(super) fn new(readahead: ReadAhead, reverse: bool, span: PageRange) -> Leaves {
        let mut leaves = Leaves {
            readahead,
            reverse,
            span,
            held: Held::Nothing,
            current: 0..0,
            streak: 0,
            next_chunk: 0,
            passed_bytes: 0,
        };
        leaves.restart();
        leaves
    }

    /// The next leaf is not the neighbour of the current one.
    pub(super) fn restart(&mut self) {
        self.streak = 0;
        self.next_chunk = match self.readahead {
            ReadAhead::Scan => *SCAN_PAGES.start(),
            ReadAhead::Streaming(bytes) | ReadAhead::Staggered(bytes, _) => pages_of(bytes),
        };
    }

    /// There is no current leaf any more. A compaction that is done with an input holds nothing of it while it goes on with
    /// others.
    pub(super) fn let_go(&mut self) {
        if self.readahead != ReadAhead::Scan {
            (self.held, self.current) = (Held::Nothing, 0..0);
        }
    }

    /// The positions of the current leaf.
    pub(super) fn current(&self) -> PageRange {
        self.current.clone()
    }

    /// The positions that it may read.
    pub(super) fn span(&self) -> PageRange {
        self.span.clone()
    }

    /// Bytes of all leaves fetched so far.
    pub(super) fn passed_bytes(&self) -> u64 {
        self.passed_bytes
    }

    /// The bytes of the current leaf, checked.
    #[inline]
    pub(super) fn bytes(&self) -> &[u8] {
        match &self.held {
            Held::Nothing => &[],
            Held::Pooled(block) => block,
            Held::Chunk(buf, range) => {
                let from = (self.current.start - range.start) as usize * PAGE;
                let to = (self.current.end - range.start) as usize * PAGE;
                &buf[from..to]
            }
        }
    }

    /// The current leaf.
    #[inline]
    pub(super) fn leaf(&self) -> Leaf<'_> {
        Leaf::of(self.bytes())
    }

    /// Fetches a leaf, which becomes the current one.
    pub(super) fn fetch(&mut self, run: &Run, want: Want) -> Result<()> {
        let known = match want {
            Want::Exact(position, pages) => Some((position, pages)),
            Want::Before(end, pages) if u64::from(pages) <= end => Some((end - u64::from(pages), pages)),
            Want::Before(..) => return Err(run.corrupt("a leaf before the first")),
            Want::From(_) => None,
        };
        let start = match want {
            Want::From(position) => position,
            _ => known.map_or(0, |(position, _)| position),
        };
        if start < self.span.start || start >= self.span.end {
            return Err(run.corrupt("a leaf outside the span of its slice"));
        }
        // Until the leaf is checked there is none.
        self.current = 0..0;
        self.streak += 1;
        let pooled = self.readahead == ReadAhead::Scan
            && !self.holds(start)
            && self.fetch_pooled(run, start, known.map(|(_, pages)| pages))?;
        if !pooled {
            self.fetch_chunked(run, start, known.map(|(_, pages)| pages))?;
        }
        self.passed_bytes += (self.current.end - self.current.start) * PAGE as u64;
        Ok(())
    }

    fn holds(&self, position: u64) -> bool {
        matches!(&self.held, Held::Chunk(_, range) if range.contains(&position))
    }

    /// Whether the leaf at which a cursor starts comes through the pool: whoever opens it asks for it there and then calls
    /// [`Leaves::take`].
    pub(super) fn wants_pooled(&self, position: u64) -> bool {
        self.readahead == ReadAhead::Scan && !self.holds(position)
    }

    /// Takes the leaf that a walk through inner blocks has found, as the pool has handed it out.
    pub(super) fn take(&mut self, run: &Run, child: Child, block: Block) -> Result<()> {
        self.current = 0..0;
        self.streak += 1;
        self.hold(run, child.position, Some(child.pages), block)?;
        self.passed_bytes += (self.current.end - self.current.start) * PAGE as u64;
        Ok(())
    }

    /// Takes the leaf from the pool if it is there, or while the scan is short. `false`: it is to be read in a chunk.
    fn fetch_pooled(&mut self, run: &Run, start: u64, known: Option<u32>) -> Result<bool> {
        let page = run.address(start, 1)?.page;
        let block = match run.peek_leaf(page) {
            Some(block) => block,
            None if self.streak > POOLED_LEAVES => return Ok(false),
            None => {
                let pages = match known {
                    Some(pages) => pages,
                    None => run.leaf_at(start)?.pages,
                };
                run.load(run.address(start, pages)?, BlockKind::Leaf)?
            }
        };
        self.hold(run, start, known, block)?;
        Ok(true)
    }

    /// Makes a leaf of the pool the current one.
    fn hold(&mut self, run: &Run, start: u64, known: Option<u32>, block: Block) -> Result<()> {
        let end = start + u64::from(block.pages());
        if start < self.span.start || known.is_some_and(|pages| pages != block.pages()) || end > self.span.end {
            return Err(run.corrupt("a leaf of another length, or outside the span of its slice"));
        }
        self.current = start..end;
        self.held = Held::Pooled(block.keep());
        Ok(())
    }

    /// Takes the leaf from the chunk, or reads the next one.
    fn fetch_chunked(&mut self, run: &Run, start: u64, known: Option<u32>) -> Result<()> {
        let (extent, first_page) = run.extent_at(start)?;
        let bounds = extent.start.max(self.span.start)..extent.end.min(self.span.end);
        let mut pages = known;
        loop {
            if let Held::Chunk(buf, range) = &self.held
                && range.contains(&start)
            {
                let at = (start - range.start) as usize * PAGE;
                // Not checked yet: only used to know how much to check.
                let stored = u32::from_le_bytes([buf[at + 8], buf[at + 9], buf[at + 10], buf[at + 11]]);
                let pages = *pages.get_or_insert(stored);
                let end = start + u64::from(pages);
                if pages == 0 || end > bounds.end {
                    return Err(run.corrupt("a leaf across the end of its extent or slice"));
                }
                if end <= range.end {
                    let bytes = &buf[at..at + pages as usize * PAGE];
                    let page = PageNo(first_page.0 + start - extent.start);
                    run.check_leaf(bytes, BlockAddr { page, pages })?;
                    self.current = start..end;
                    return Ok(());
                }
            }
            // The second round, if the leaf is longer than the chunk was, reads as much as it says.
            let least = u64::from(pages.unwrap_or(1));
            if least > bounds.end - start {
                return Err(run.corrupt("a leaf across the end of its extent or slice"));
            }
            let range = if self.reverse {
                (start + least).saturating_sub(self.next_chunk).clamp(bounds.start, start)..start + least
            } else {
                start..(start + self.next_chunk.max(least)).min(bounds.end)
            };
            let page = PageNo(first_page.0 + range.start - extent.start);
            let buf = run.read(BlockAddr { page, pages: (range.end - range.start) as u32 })?;
            self.held = Held::Chunk(buf, range);
            match self.readahead {
                ReadAhead::Scan => self.next_chunk = (self.next_chunk * 2).min(*SCAN_PAGES.end()),
                ReadAhead::Staggered(_, bytes) => self.next_chunk = pages_of(bytes),
                ReadAhead::Streaming(_) => {}
            }
        }
    }
}
