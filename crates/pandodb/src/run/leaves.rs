//! Leaves in a row: fetches the leaf that a cursor asks for, in either direction, reading ahead as it is told.
//!
//! ```text
//!   Scan        | 8 KiB | 16 KiB | 32 KiB | 64 KiB | 128 KiB | 256 KiB | 256 KiB …      (the pool is asked first)
//!   Wide        | 16 KiB | 32 KiB …                                                     (the same)
//!   Streaming   | n bytes | n bytes …
//!   Staggered   | m bytes | n bytes | n bytes …
//!                                     └ half of it passed, going up: the next one is begun
//! ```
//!
//! Leaves are read in chunks past the pool, since one long scan would wash it out; but a scan looks into the pool first, and
//! puts its first two leaves there: most scans are short, and what they touch is worth keeping. Two pages cost a device
//! hardly more than one, and save most short scans a second read. The leaves after these it puts there as long as nothing
//! has to go for them, so that a store which fits into memory is scanned in memory. A compaction streams, and never touches the pool. A
//! chunk stays inside one extent and inside the span of the cursor's slice, beyond which pages may belong to someone else by
//! now.
//!
//! Once a cursor has come so far that it will probably go on, the next chunk is read while it walks through this one,
//! where the device can do that. If it does not go on, that read is let go of.
//!
//! Leaves follow one another by position. Going up, a leaf's length stands in its header; going down, the leaf above
//! has noted the length of the one below. A length is believed only within its chunk, and its block only after all
//! checks.
//!
//! All lengths here are those on disk. A compressed leaf is unpacked when it becomes the current one, beside its chunk.

use super::inner::Child;
use super::leaf::Leaf;
use super::reader::Run;
use super::spans::PageRange;
use crate::base::{BlockAddr, PAGE, PageNo, Result};
use crate::blocks::BlockSource;
use crate::device::{AlignedBuf, Read, Reads};
use crate::pool::Block;
use crate::space::data::stored_pages as block_pages;

/// How a cursor reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReadAhead {
    /// For users' scans: chunks that double from 8 to 256 KiB, what the pool has from there.
    Scan,
    /// The same from 16 KiB on: of the runs that are scanned together, the one that holds most.
    Wide,
    /// For compactions: chunks of so many bytes, past the pool.
    Streaming(usize),
    /// The same, but for the length of the first chunk: so that the inputs of a merge do not all read at the same time.
    Staggered(usize, usize),
}

impl ReadAhead {
    fn is_scan(self) -> bool {
        matches!(self, ReadAhead::Scan | ReadAhead::Wide)
    }
}

fn pages_of(bytes: usize) -> u64 {
    (bytes / PAGE).max(1) as u64
}

/// The first chunk of a scan, that of a wide one, and the largest, in pages.
const SCAN_PAGES: u64 = 2;
const WIDE_PAGES: u64 = 4;
const MOST_PAGES: u64 = 64;
/// The first leaves of a scan are put into the pool.
const POOLED_LEAVES: u32 = 2;
/// Leaves that a cursor passes without asking for a queue again, after it got none: the system may have none at all.
const AHEAD_RESTS: u32 = 1_000;
/// Who is in a chunk of so many pages has come far enough for the next one to be begun early.
const AHEAD_FROM_PAGES: u64 = 8;

/// Pages that are in memory, by position.
enum Held {
    Nothing,
    Pooled(Block),
    Chunk(AlignedBuf, PageRange),
}

/// The next chunk, on its way.
struct Ahead {
    reads: Reads,
    addr: BlockAddr,
    range: PageRange,
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
    ahead: Option<Ahead>,
    /// Downwards nothing is read ahead.
    ahead_is_vain: bool,
    /// Leaves that are passed before it is tried again, after there was no queue to be had.
    ahead_rests: u32,
    /// The buffer of the chunk before, to be used again.
    spare: AlignedBuf,
    /// The current leaf, if it is one of the chunk and was compressed.
    unpacked: Vec<u8>,
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
            ahead: None,
            ahead_is_vain: reverse,
            ahead_rests: 0,
            spare: AlignedBuf::default(),
            unpacked: Vec::new(),
            passed_bytes: 0,
        };
        leaves.restart();
        leaves
    }

    /// The next leaf is not the neighbour of the current one.
    pub(super) fn restart(&mut self) {
        self.streak = 0;
        self.ahead = None;
        self.next_chunk = match self.readahead {
            ReadAhead::Scan => SCAN_PAGES,
            ReadAhead::Wide => WIDE_PAGES,
            ReadAhead::Streaming(bytes) | ReadAhead::Staggered(bytes, _) => pages_of(bytes),
        };
    }

    /// There is no current leaf any more. A compaction that is done with an input holds nothing of it while it goes on with
    /// others.
    pub(super) fn let_go(&mut self) {
        if !self.readahead.is_scan() {
            (self.held, self.current) = (Held::Nothing, 0..0);
            (self.ahead, self.spare, self.unpacked) = (None, AlignedBuf::default(), Vec::new());
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
            Held::Chunk(..) if !self.unpacked.is_empty() => &self.unpacked,
            Held::Chunk(buf, range) => {
                let from = (self.current.start - range.start) as usize * PAGE;
                let to = (self.current.end - range.start) as usize * PAGE;
                &buf[from..to]
            }
        }
    }

    /// Whether the current leaf was compressed; said of leaves out of a chunk only.
    pub(super) fn is_unpacked(&self) -> bool {
        !self.unpacked.is_empty()
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
        let pages = known.map(|(_, pages)| pages);
        if !self.take_pooled(run, start, pages)? {
            self.fetch_chunked(run, start, pages)?;
        }
        self.passed(run)
    }

    /// Counts the current leaf, which was fetched a moment ago.
    fn passed(&mut self, run: &Run) -> Result<()> {
        self.streak += 1;
        self.passed_bytes += (self.current.end - self.current.start) * PAGE as u64;
        if self.readahead.is_scan() && matches!(self.held, Held::Chunk(..)) {
            let pages = (self.current.end - self.current.start) as u32;
            if self.streak <= POOLED_LEAVES || run.pool().has_room(self.bytes().len()) {
                run.cache_leaf(run.address(self.current.start, pages)?, self.bytes());
            }
        }
        self.read_ahead(run);
        Ok(())
    }

    /// Goes to the leaf that a walk through inner blocks has found, if it is at hand; else says what is to be read, to be
    /// handed to [`Leaves::take`].
    pub(super) fn open(&mut self, run: &Run, child: Child) -> Result<Option<BlockAddr>> {
        let Child { position, pages, .. } = child;
        if self.holds(position) || position < self.span.start || position >= self.span.end {
            return self.fetch(run, Want::Exact(position, pages)).map(|()| None);
        }
        self.current = 0..0;
        if self.take_pooled(run, position, Some(pages))? {
            return self.passed(run).map(|()| None);
        }
        self.chunk(run, position, u64::from(pages)).map(|(_, addr)| Some(addr))
    }

    /// Goes to that leaf with what was read.
    pub(super) fn take(&mut self, run: &Run, child: Child, buf: AlignedBuf) -> Result<()> {
        let (range, addr) = self.chunk(run, child.position, u64::from(child.pages))?;
        assert_eq!(buf.pages(), addr.pages as usize, "what was asked for is taken");
        self.hold(buf, range);
        self.fetch_chunked(run, child.position, Some(child.pages))?;
        self.passed(run)
    }

    fn holds(&self, position: u64) -> bool {
        matches!(&self.held, Held::Chunk(_, range) if range.contains(&position))
    }

    /// Takes the leaf from the pool if a scan finds it there.
    fn take_pooled(&mut self, run: &Run, start: u64, known: Option<u32>) -> Result<bool> {
        if !self.readahead.is_scan() || self.holds(start) {
            return Ok(false);
        }
        let Some(block) = run.peek_leaf(run.address(start, 1)?.page) else { return Ok(false) };
        let pages = block_pages(&block);
        let end = start + u64::from(pages);
        if known.is_some_and(|known| known != pages) || end > self.span.end {
            return Err(run.corrupt("a leaf of another length"));
        }
        self.current = start..end;
        self.held = Held::Pooled(block.keep());
        Ok(true)
    }

    /// Takes the leaf from the chunk, or from the next one.
    fn fetch_chunked(&mut self, run: &Run, start: u64, known: Option<u32>) -> Result<()> {
        let (extent, first_page) = run.extent_at(start)?;
        let end_of_all = extent.end.min(self.span.end);
        let mut pages = known;
        loop {
            if let Held::Chunk(buf, range) = &self.held
                && range.contains(&start)
            {
                let pages = *pages.get_or_insert(stored_pages(buf, range, start));
                let end = start + u64::from(pages);
                if pages == 0 || end > end_of_all {
                    return Err(run.corrupt("a leaf across the end of its extent or slice"));
                }
                if end <= range.end {
                    let at = (start - range.start) as usize * PAGE;
                    let bytes = &buf[at..at + pages as usize * PAGE];
                    let page = PageNo(first_page.0 + start - extent.start);
                    run.check_leaf(bytes, BlockAddr { page, pages }, &mut self.unpacked)?;
                    self.current = start..end;
                    return Ok(());
                }
            }
            // The second round, if the leaf is longer than the chunk was, reads as much as it says.
            self.next(run, start, u64::from(pages.unwrap_or(1)))?;
        }
    }

    /// The chunk with the leaf at `start`, which has `least` pages: its positions, and where it is in the file.
    fn chunk(&self, run: &Run, start: u64, least: u64) -> Result<(PageRange, BlockAddr)> {
        let (extent, first_page) = run.extent_at(start)?;
        let bounds = extent.start.max(self.span.start)..extent.end.min(self.span.end);
        if start >= bounds.end || least > bounds.end - start {
            return Err(run.corrupt("a leaf across the end of its extent or slice"));
        }
        let range = if self.reverse {
            (start + least).saturating_sub(self.next_chunk).clamp(bounds.start, start)..start + least
        } else {
            start..(start + self.next_chunk.max(least)).min(bounds.end)
        };
        let page = PageNo(first_page.0 + range.start - extent.start);
        let pages = (range.end - range.start) as u32;
        Ok((range, BlockAddr { page, pages }))
    }

    /// Reads the chunk with the leaf at `start`, or takes it, if that is what was read ahead.
    fn next(&mut self, run: &Run, start: u64, least: u64) -> Result<()> {
        if let Some(Ahead { mut reads, addr, range }) = self.ahead.take()
            && range.start == start
            && start + least <= range.end
        {
            let (_, read) = reads.complete().expect("it is on its way");
            self.hold(run.data().end_read(addr, read)?, range);
            return Ok(());
        }
        let (range, addr) = self.chunk(run, start, least)?;
        let buf = run.data().read_into(addr, std::mem::take(&mut self.spare))?;
        self.hold(buf, range);
        Ok(())
    }

    /// Makes a chunk the current one; the next will be longer.
    fn hold(&mut self, buf: AlignedBuf, range: PageRange) {
        if let Held::Chunk(before, _) = std::mem::replace(&mut self.held, Held::Chunk(buf, range)) {
            self.spare = before;
        }
        match self.readahead {
            ReadAhead::Scan | ReadAhead::Wide => self.next_chunk = (self.next_chunk * 2).min(MOST_PAGES),
            ReadAhead::Staggered(_, bytes) => self.next_chunk = pages_of(bytes),
            ReadAhead::Streaming(_) => {}
        }
    }

    /// Begins to read the next chunk, if half of this one has been passed. What is wrong with it is told when it is wanted.
    fn read_ahead(&mut self, run: &Run) {
        if self.ahead_is_vain || self.ahead.is_some() {
            return;
        }
        if self.ahead_rests > 0 {
            self.ahead_rests -= 1;
            return;
        }
        let Held::Chunk(buf, range) = &self.held else { return };
        let pages = range.end - range.start;
        if pages < AHEAD_FROM_PAGES || self.current.end - range.start < pages / 2 {
            return;
        }
        // Where the next chunk begins: at the first leaf that does not end in this one. The lengths are not checked yet; if one
        // is wrong, what is read ahead is not what will be wanted.
        let mut next = self.current.end;
        while next < range.end {
            let pages = u64::from(stored_pages(buf, range, next));
            if pages == 0 || pages > range.end - next {
                break;
            }
            next += pages;
        }
        if next >= self.span.end {
            return;
        }
        let Ok((range, addr)) = self.chunk(run, next, 1) else { return };
        let mut reads = run.data().reads();
        if !reads.has_queue() {
            self.ahead_rests = AHEAD_RESTS;
            return;
        }
        let Ok(buf) = run.data().begin_read(addr, std::mem::take(&mut self.spare)) else { return };
        reads.submit(Read { tag: 0, offset: addr.page.offset(), buf });
        reads.start();
        self.ahead = Some(Ahead { reads, addr, range });
    }
}

/// How many pages the leaf at `position` says that it has. Not checked yet: only used to know how much to check.
fn stored_pages(buf: &[u8], range: &PageRange, position: u64) -> u32 {
    block_pages(&buf[(position - range.start) as usize * PAGE..])
}
