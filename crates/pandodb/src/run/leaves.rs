//! Reads the leaves of a run one after the other, in both directions. Reads ahead as the caller requests
//! ([`ReadAhead`]).
//!
//! ```text
//!   Scan        | 8 KiB | 16 KiB | 32 KiB | 64 KiB | 128 KiB | 256 KiB | 256 KiB …      (the pool is asked first)
//!   Wide        | 16 KiB | 32 KiB …                                                     (the same)
//!   Streaming   | n bytes | n bytes …
//!   Staggered   | m bytes | n bytes | n bytes …
//!                                     └ half of it passed, going up: the read of the next one is submitted
//! ```
//!
//! Steps: call [`Leaves::fetch`] for each leaf. If the leaf is in the current chunk, it is taken from there. Otherwise
//! a scan looks for it in the pool. If it is not there either, it is taken from the next chunk, which was read ahead or
//! is read now.
//!
//! Leaves are read in chunks that bypass the pool, because one long scan would otherwise evict all other blocks. A scan
//! searches the pool first and caches its first two leaves, because most scans are short and their leaves are likely to
//! be requested again. The first read of a scan fetches two pages, which takes hardly longer than one page and saves
//! most short scans a second read. Further leaves of a scan are cached only if the pool has room without evicting, so
//! that a store that fits into memory is scanned from memory. A compaction streams and never uses the pool.
//!
//! When a cursor is likely to continue, the next chunk is read asynchronously while the cursor walks through the
//! current chunk, if the device supports asynchronous reads. If the cursor does not continue, this read is abandoned.
//!
//! Invariants:
//!
//! * A chunk is inside one extent, and inside the span of the cursor's slice, because pages beyond the span may belong
//!   to another owner.
//! * Leaves follow one another by position. For a cursor that goes up, the length of a leaf is in its own header. For a
//!   cursor that goes down, each leaf has recorded the length of the previous leaf. A length that was read from a leaf
//!   is used only within the leaf's chunk, and a leaf is used only after it passed all checks.
//! * All lengths in this module are lengths on disk. When a compressed leaf becomes the current leaf, it is
//!   decompressed into a buffer of its own, outside of the chunk.
//!
//! Source: 002 §3.3 (leaves of a run in extents).

use super::inner::Child;
use super::leaf::Leaf;
use super::reader::Run;
use super::spans::PageRange;
use crate::base::{BlockAddr, PAGE, PageNo, Result};
use crate::blocks::BlockSource;
use crate::device::{AlignedBuf, Read, Reads};
use crate::pool::Block;
use crate::space::data::stored_pages as block_pages;
use crate::space::to_usize;

/// How a cursor reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReadAhead {
    /// For scans by users: chunks whose size doubles from 8 to 256 KiB. Leaves that are in the pool are taken from the
    /// pool.
    Scan,
    /// Like `Scan`, but the first chunk has 16 KiB. Used for the largest of the runs that are scanned together.
    Wide,
    /// For compactions: chunks of this many bytes that bypass the pool.
    Streaming(usize),
    /// Like `Streaming`, but the first chunk has the first number of bytes, and all other chunks have the second. So
    /// the inputs of a merge do not all read at the same time.
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

/// The number of pages of the first chunk of a scan. The next two constants are the numbers of pages of the first chunk
/// of a wide scan and of the largest chunk of a scan.
const SCAN_PAGES: u64 = 2;
const WIDE_PAGES: u64 = 4;
const MOST_PAGES: u64 = 64;
/// The number of leaves at the start of a scan that are cached.
const POOLED_LEAVES: u32 = 2;
/// If a cursor gets no queue for asynchronous reads, it passes this many leaves before it requests a queue again,
/// because the system may never provide one.
const AHEAD_RESTS: u32 = 1_000;
/// A cursor that has reached a chunk of at least this many pages is likely to continue, so the next chunk is read
/// ahead.
const AHEAD_FROM_PAGES: u64 = 8;

const _: () = assert!(0 < SCAN_PAGES && SCAN_PAGES < WIDE_PAGES && WIDE_PAGES < MOST_PAGES, "chunks grow");
const _: () = assert!(WIDE_PAGES < AHEAD_FROM_PAGES && AHEAD_FROM_PAGES <= MOST_PAGES, "long scans read ahead");

/// The pages in memory that hold the current leaf.
enum Held {
    Nothing,
    Pooled(Block),
    Chunk(AlignedBuf, PageRange),
}

/// The next chunk, which is being read.
struct Ahead {
    reads: Reads,
    addr: BlockAddr,
    range: PageRange,
}

/// Selects the leaf to fetch.
#[derive(Clone, Copy, Debug)]
pub(super) enum Want {
    /// The leaf that a walk through inner blocks has found, by its position and number of pages.
    Exact(u64, u32),
    /// The leaf that begins at a position.
    From(u64),
    /// The leaf that ends at a position and has this number of pages.
    Before(u64, u32),
}

pub(super) struct Leaves {
    readahead: ReadAhead,
    reverse: bool,
    span: PageRange,
    held: Held,
    /// The positions of the current leaf; empty if there is none.
    current: PageRange,
    /// The number of leaves that were fetched so far.
    streak: u32,
    next_chunk: u64,
    ahead: Option<Ahead>,
    /// Whether this cursor goes down. Such cursors do not read ahead.
    never_reads_ahead: bool,
    /// The number of leaves to pass before the cursor requests a queue again, if no queue was available.
    ahead_rests: u32,
    /// The buffer of the previous chunk, for reuse.
    spare: AlignedBuf,
    /// The bytes of the current leaf in memory, if the leaf is in the chunk and differs from its bytes on disk
    /// ([`Run::check_leaf`]).
    unpacked: Vec<u8>,
}

impl Leaves {
    pub(super) fn new(readahead: ReadAhead, reverse: bool, span: PageRange) -> Leaves {
        let next_chunk = match readahead {
            ReadAhead::Scan => SCAN_PAGES,
            ReadAhead::Wide => WIDE_PAGES,
            ReadAhead::Streaming(bytes) | ReadAhead::Staggered(bytes, _) => pages_of(bytes),
        };
        Leaves {
            readahead,
            reverse,
            span,
            held: Held::Nothing,
            current: 0..0,
            streak: 0,
            next_chunk,
            ahead: None,
            never_reads_ahead: reverse,
            ahead_rests: 0,
            spare: AlignedBuf::default(),
            unpacked: Vec::new(),
        }
    }

    /// Drops the buffers, unless the cursor belongs to a scan. So a compaction that has finished one of its inputs
    /// frees the memory of this input while it continues with the others.
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

    /// The positions that may be read.
    pub(super) fn span(&self) -> PageRange {
        self.span.clone()
    }

    /// The bytes of the current leaf, checked.
    #[inline]
    pub(super) fn bytes(&self) -> &[u8] {
        match &self.held {
            Held::Nothing => &[],
            Held::Pooled(block) => block,
            Held::Chunk(..) if !self.unpacked.is_empty() => &self.unpacked,
            Held::Chunk(buf, range) => {
                debug_assert!(range.start <= self.current.start && self.current.end <= range.end);
                let from = to_usize(self.current.start - range.start) * PAGE;
                let to = to_usize(self.current.end - range.start) * PAGE;
                &buf[from..to]
            }
        }
    }

    /// The current leaf.
    #[inline]
    pub(super) fn leaf(&self) -> Leaf<'_> {
        Leaf::of(self.bytes())
    }

    /// Fetches a leaf and makes it the current one.
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
        // Until the fetched leaf is checked, there is no current leaf.
        self.current = 0..0;
        let pages = known.map(|(_, pages)| pages);
        if !self.take_pooled(run, start, pages)? {
            self.fetch_chunked(run, start, pages)?;
        }
        self.passed(run)
    }

    /// Called after a leaf was fetched: caches the leaf if the rules for scans allow it, and starts to read ahead.
    fn passed(&mut self, run: &Run) -> Result<()> {
        self.streak += 1;
        debug_assert!(self.span.start <= self.current.start && self.current.end <= self.span.end);
        if self.readahead.is_scan() && matches!(self.held, Held::Chunk(..)) {
            let pages = u32::try_from(self.current.end - self.current.start).expect("a leaf is inside an extent");
            if self.streak <= POOLED_LEAVES || run.pool().has_room(self.bytes().len()) {
                run.cache_leaf(run.address(self.current.start, pages)?, self.bytes());
            }
        }
        self.read_ahead(run);
        Ok(())
    }

    /// Moves to the leaf that a walk through inner blocks has found, if this leaf is in memory. Otherwise returns the
    /// pages to be read; the caller reads them and calls [`Leaves::take`].
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

    /// Moves to the leaf for which [`Leaves::open`] was called, given the pages that it requested.
    pub(super) fn take(&mut self, run: &Run, child: Child, buf: AlignedBuf) -> Result<()> {
        let (range, addr) = self.chunk(run, child.position, u64::from(child.pages))?;
        assert_eq!(buf.pages(), addr.pages as usize, "the buffer has the requested pages");
        self.hold(buf, range);
        self.fetch_chunked(run, child.position, Some(child.pages))?;
        self.passed(run)
    }

    fn holds(&self, position: u64) -> bool {
        matches!(&self.held, Held::Chunk(_, range) if range.contains(&position))
    }

    /// Takes the leaf from the pool, if the cursor scans and the pool has the leaf. Returns whether it did.
    fn take_pooled(&mut self, run: &Run, start: u64, known: Option<u32>) -> Result<bool> {
        if !self.readahead.is_scan() || self.holds(start) {
            return Ok(false);
        }
        let Some(block) = run.peek_leaf(run.address(start, 1)?.page) else { return Ok(false) };
        let pages = block_pages(&block);
        let end = start + u64::from(pages);
        if known.is_some_and(|known| known != pages) || end > self.span.end {
            return Err(run.corrupt("a cached leaf with an unexpected length"));
        }
        self.current = start..end;
        self.held = Held::Pooled(block.keep());
        Ok(true)
    }

    /// Takes the leaf from the current chunk, or from the next chunk.
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
                    let at = to_usize(start - range.start) * PAGE;
                    let bytes = &buf[at..at + pages as usize * PAGE];
                    let page = PageNo(first_page.0 + start - extent.start);
                    run.check_leaf(bytes, BlockAddr { page, pages }, &mut self.unpacked)?;
                    self.current = start..end;
                    return Ok(());
                }
            }
            // If the leaf is longer than the chunk, the second iteration reads as many pages as the leaf's header
            // states.
            self.next(run, start, u64::from(pages.unwrap_or(1)))?;
        }
    }

    /// The chunk for the leaf at `start`, which has at least `least` pages. Returns the positions of the chunk's pages,
    /// and the chunk's address in the file.
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
        let pages = u32::try_from(range.end - range.start).expect("a chunk is inside an extent");
        debug_assert!(range.start <= start && start + least <= range.end, "the chunk has the leaf");
        Ok((range, BlockAddr { page, pages }))
    }

    /// Makes the chunk with the leaf at `start` the current chunk. Uses the chunk that was read ahead, if it fits;
    /// otherwise reads the chunk now.
    fn next(&mut self, run: &Run, start: u64, least: u64) -> Result<()> {
        if let Some(Ahead { mut reads, addr, range }) = self.ahead.take()
            && range.start == start
            && start + least <= range.end
        {
            let (_, read) = reads.complete().expect("a read was submitted");
            self.hold(run.data().end_read(addr, read)?, range);
            return Ok(());
        }
        let (range, addr) = self.chunk(run, start, least)?;
        let buf = run.data().read_into(addr, std::mem::take(&mut self.spare))?;
        self.hold(buf, range);
        Ok(())
    }

    /// Makes a chunk the current chunk, and increases the length of the next chunk.
    fn hold(&mut self, buf: AlignedBuf, range: PageRange) {
        assert_eq!(buf.pages() as u64, range.end - range.start, "the buffer has the pages of the chunk");
        if let Held::Chunk(before, _) = std::mem::replace(&mut self.held, Held::Chunk(buf, range)) {
            self.spare = before;
        }
        match self.readahead {
            ReadAhead::Scan | ReadAhead::Wide => self.next_chunk = (self.next_chunk * 2).min(MOST_PAGES),
            ReadAhead::Staggered(_, bytes) => self.next_chunk = pages_of(bytes),
            ReadAhead::Streaming(_) => {}
        }
    }

    /// Submits the read of the next chunk, if half of this chunk was passed. Errors are reported when the next chunk is
    /// needed.
    fn read_ahead(&mut self, run: &Run) {
        if self.never_reads_ahead || self.ahead.is_some() {
            return;
        }
        debug_assert!(!self.reverse, "only cursors that go up read ahead");
        if self.ahead_rests > 0 {
            self.ahead_rests -= 1;
            return;
        }
        let Held::Chunk(buf, range) = &self.held else { return };
        let pages = range.end - range.start;
        if pages < AHEAD_FROM_PAGES || self.current.end - range.start < pages / 2 {
            return;
        }
        // The next chunk begins at the first leaf that does not end in this chunk. To find this leaf, use the lengths
        // in the headers of leaves that are not checked yet. If such a length is wrong, the pages that are read ahead
        // do not match the next request and are not used.
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

/// The number of pages in the header of the leaf at `position`. This number is not checked yet; it only determines how
/// many bytes are checked.
fn stored_pages(buf: &[u8], range: &PageRange, position: u64) -> u32 {
    debug_assert!(range.contains(&position), "the leaf begins in the chunk");
    block_pages(&buf[to_usize(position - range.start) * PAGE..])
}
