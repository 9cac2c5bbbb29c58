//! Reads the leaves of a run one after the other, in both directions. Reads ahead as the caller requests
//! ([`ReadAhead`]).
//!
//! ```text
//!   Scan        | 8 KiB | 8 KiB | 16 KiB | 32 KiB | 64 KiB | 128 KiB | 256 KiB | 256 KiB …   (the pool is asked first)
//!   Expecting   | n pages | n pages | 2n pages …                                             (the same)
//!   Streaming   | n bytes | n bytes …
//!   Staggered   | m bytes | n bytes | n bytes …
//!                                     └ half of it passed, going up: the read of the next one is submitted
//! ```
//!
//! Steps: call [`Leaves::fetch`] for each leaf. If the leaf is in the current chunk, it is taken from there. Otherwise
//! a scan looks for it in the pool. If it is not there either, it is taken from the next chunk, which was read ahead or
//! is read now.
//!
//! Leaves are read in chunks that bypass the pool. A scan searches the pool first, and caches the leaves that it enters
//! on probation ([`crate::pool`]), until the cursor has passed 256 KiB of its run. From then on the scan is *long*: it
//! caches only leaves that were evicted lately, or for which the pool has room, and its hits do not keep leaves in the
//! pool. So a long scan does not displace the blocks of other readers. A compaction streams and never uses the pool,
//! except that it looks which leaves the pool has ([`Leaves::is_pooled`]).
//!
//! **The length of a chunk.** The first chunk of a scan has the length that the caller expects the scan to use
//! ([`super::ScanHabits`]). Each further chunk is as long as the leaves that the cursor has passed so far, at most 256
//! KiB, so a cursor reads at most as much in vain as it has used, and its first chunk. A chunk of a scan ends at the
//! bound of the scan, if the cursor has found the leaf of the bound ([`Leaves::set_limit`]). It also ends before leaves
//! that are in the pool, if these leaves are at least an eighth of the chunk; a shorter gap costs less than a second
//! read.
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

use std::sync::Arc;

use super::inner::Child;
use super::leaf::Leaf;
use super::reader::Run;
use super::scan_use::{ScanHabits, ScanUse};
use super::spans::PageRange;
use crate::base::{BlockAddr, PAGE, PageNo, Result, seeded};
use crate::blocks::BlockSource;
use crate::device::{AlignedBuf, Read, Reads};
use crate::pool::Block;
use crate::space::data::stored_pages as block_pages;
use crate::space::to_usize;

/// How a cursor reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReadAhead {
    /// For scans by users: chunks of 8 KiB at first, and of 256 KiB later. Leaves that are in the pool are taken from
    /// the pool.
    Scan,
    /// Like `Scan`, but the first chunk has this many pages, 1 to 64.
    Expecting(u32),
    /// For compactions: chunks of this many bytes that bypass the pool.
    Streaming(usize),
    /// Like `Streaming`, but the first chunk has the first number of bytes, and all other chunks have the second. So
    /// the inputs of a merge do not all read at the same time.
    Staggered(usize, usize),
}

impl ReadAhead {
    fn is_scan(self) -> bool {
        matches!(self, ReadAhead::Scan | ReadAhead::Expecting(_))
    }
}

fn pages_of(bytes: usize) -> u64 {
    (bytes / PAGE).max(1) as u64
}

/// The number of pages of the first chunk of a scan that expects nothing else.
const SCAN_PAGES: u64 = 2;
/// The number of pages of the largest chunk of a scan.
const MOST_PAGES: u64 = ScanHabits::MOST;
/// A cursor that has passed more pages than this belongs to a long scan.
const LONG_PAGES: u64 = 64;
/// A chunk ends before leaves in the pool that make up 1/`GAP` of the chunk's pages.
const GAP: u64 = 8;
/// A scan that has passed this many pages looks for the leaf of its bound, which may cost a read.
const LIMIT_FROM_PAGES: u64 = 8;
/// If a cursor gets no queue for asynchronous reads, it passes this many leaves before it requests a queue again,
/// because the system may never provide one.
const AHEAD_RESTS: u32 = 1_000;
/// A cursor that has reached a chunk of at least this many pages is likely to continue, so the next chunk is read
/// ahead.
const AHEAD_FROM_PAGES: u64 = 8;

const _: () = assert!(0 < SCAN_PAGES && SCAN_PAGES < MOST_PAGES && GAP > 1, "chunks grow");
const _: () = assert!(SCAN_PAGES < AHEAD_FROM_PAGES && AHEAD_FROM_PAGES <= MOST_PAGES, "long scans read ahead");

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
    /// The number of pages of the leaves that were fetched so far.
    entered: u64,
    /// The number of pages of the first chunk; for compactions, of the next chunk.
    next_chunk: u64,
    /// The pages that the caller of [`Leaves::open`] reads.
    opened: PageRange,
    /// Where the range of the cursor ends, as far as it is known: the end of its last leaf or, for a cursor that goes
    /// down, the beginning of this leaf.
    limit: Option<u64>,
    /// Whether the cursor has looked for the leaf of its bound, so that it does not look again.
    sought_limit: bool,
    used: Option<Arc<ScanUse>>,
    ahead: Option<Ahead>,
    /// Whether this cursor goes down. Such cursors do not read ahead.
    never_reads_ahead: bool,
    /// The number of leaves to pass before the cursor requests a queue again, if no queue was available.
    ahead_rests: u32,
    /// Whether the pool has the current leaf, for compactions.
    is_pooled: bool,
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
            ReadAhead::Expecting(pages) => u64::from(pages).clamp(1, MOST_PAGES),
            ReadAhead::Streaming(bytes) | ReadAhead::Staggered(bytes, _) => pages_of(bytes),
        };
        Leaves {
            readahead,
            reverse,
            span,
            held: Held::Nothing,
            current: 0..0,
            streak: 0,
            entered: 0,
            next_chunk,
            opened: 0..0,
            limit: None,
            sought_limit: false,
            used: None,
            ahead: None,
            never_reads_ahead: reverse,
            ahead_rests: 0,
            is_pooled: false,
            spare: AlignedBuf::default(),
            unpacked: Vec::new(),
        }
    }

    /// Whether the pool has the current leaf, for compactions: a lookup, a scan or a pack has put it there.
    #[inline]
    pub(super) fn is_pooled(&self) -> bool {
        self.is_pooled
    }

    /// Drops the buffers, unless the cursor belongs to a scan. So a compaction that has finished one of its inputs
    /// frees the memory of this input while it continues with the others.
    pub(super) fn let_go(&mut self) {
        if !self.readahead.is_scan() {
            (self.held, self.current) = (Held::Nothing, 0..0);
            (self.ahead, self.spare, self.unpacked) = (None, AlignedBuf::default(), Vec::new());
        }
    }

    /// A reader of the same leaves that is at none of them, but keeps the pages that this one has read, and continues
    /// what it has counted.
    pub(super) fn again(&mut self) -> Leaves {
        let mut again = Leaves::new(self.readahead, self.reverse, self.span.clone());
        (again.streak, again.entered, again.used) = (self.streak, self.entered, self.used.clone());
        again.held = std::mem::replace(&mut self.held, Held::Nothing);
        again
    }

    /// How the leaves are read.
    pub(super) fn readahead(&self) -> ReadAhead {
        self.readahead
    }

    /// Counts the pages of the leaves in `used` too.
    pub(super) fn count_in(&mut self, used: Arc<ScanUse>) {
        debug_assert!(self.streak == 0, "a scan counts all its leaves");
        self.used = Some(used);
    }

    /// Notes the end of the cursor's last leaf or, for a cursor that goes down, the beginning of this leaf. Chunks do
    /// not extend beyond it. A wrong limit makes reads shorter, and has no other effect.
    pub(super) fn set_limit(&mut self, limit: Option<u64>) {
        self.limit = limit;
    }

    /// Whether the caller should look for the leaf of the cursor's bound and call [`Leaves::set_limit`]. Returns `true`
    /// at most once.
    pub(super) fn wants_limit(&mut self) -> bool {
        let wants = self.readahead.is_scan() && self.limit.is_none() && self.entered >= LIMIT_FROM_PAGES;
        wants && !std::mem::replace(&mut self.sought_limit, true)
    }

    fn is_long(&self) -> bool {
        self.entered > LONG_PAGES
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

    /// Called after a leaf was fetched: counts it, offers it to the pool if a scan has read it, and starts to read
    /// ahead.
    fn passed(&mut self, run: &Run) -> Result<()> {
        self.streak += 1;
        debug_assert!(self.span.start <= self.current.start && self.current.end <= self.span.end);
        let pages = u32::try_from(self.current.end - self.current.start).expect("a leaf is inside an extent");
        self.entered += u64::from(pages);
        if self.readahead.is_scan() {
            let read = matches!(self.held, Held::Chunk(..));
            if let Some(used) = &self.used {
                used.enter(pages.into(), self.streak == 1, read);
            }
            if read {
                let chunk = match &self.held {
                    Held::Chunk(_, range) => range.start,
                    _ => self.current.start,
                };
                let start = seeded!(ScanCachesElsewhere: chunk, self.current.start);
                run.cache_scanned(run.address(start, pages)?, self.is_long(), self.bytes());
            }
        } else {
            let addr = run.address(self.current.start, pages)?;
            self.is_pooled = run.pool().glance(run.meta().id, addr.page).is_some();
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
        let (range, addr) = self.chunk(run, position, u64::from(pages))?;
        self.opened = range;
        Ok(Some(addr))
    }

    /// Moves to the leaf for which [`Leaves::open`] was called, given the pages that it requested.
    pub(super) fn take(&mut self, run: &Run, child: Child, buf: AlignedBuf) -> Result<()> {
        let range = std::mem::replace(&mut self.opened, 0..0);
        assert!(range.contains(&child.position), "`open` has requested the pages of this leaf");
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
        let Some(block) = run.peek_leaf(run.address(start, 1)?.page, !self.is_long()) else { return Ok(false) };
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
        let length = self.chunk_pages();
        let mut range = if self.reverse {
            (start + least).saturating_sub(length).clamp(bounds.start, start)..start + least
        } else {
            start..(start + length.max(least)).min(bounds.end)
        };
        if self.readahead.is_scan() {
            let pooled = |position: u64| {
                let page = PageNo(first_page.0 + position - extent.start);
                run.pool().glance(run.meta().id, page).map(|block| u64::from(block_pages(&block)).max(1))
            };
            range = needed(range, start..start + least, self.limit, self.reverse, pooled);
        }
        let page = PageNo(first_page.0 + range.start - extent.start);
        let pages = u32::try_from(range.end - range.start).expect("a chunk is inside an extent");
        debug_assert!(range.start <= start && start + least <= range.end, "the chunk has the leaf");
        Ok((range, BlockAddr { page, pages }))
    }

    /// Makes the chunk with the leaf at `start` the current chunk. Uses the chunk that was read ahead, if it fits;
    /// otherwise reads the chunk now.
    fn next(&mut self, run: &Run, start: u64, least: u64) -> Result<()> {
        if let Some(Ahead { mut reads, addr, range }) = self.ahead.take()
            && range.contains(&start)
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

    /// The number of pages of the next chunk.
    fn chunk_pages(&self) -> u64 {
        if self.readahead.is_scan() && self.entered > 0 {
            // A cursor that took its first leaves from the pool has passed few pages, but may still expect many.
            let rest = self.next_chunk.saturating_sub(self.entered);
            return self.entered.max(rest).min(MOST_PAGES);
        }
        self.next_chunk
    }

    /// Makes a chunk the current chunk.
    fn hold(&mut self, buf: AlignedBuf, range: PageRange) {
        assert_eq!(buf.pages() as u64, range.end - range.start, "the buffer has the pages of the chunk");
        if let Held::Chunk(before, _) = std::mem::replace(&mut self.held, Held::Chunk(buf, range)) {
            self.spare = before;
        }
        if let ReadAhead::Staggered(_, bytes) = self.readahead {
            self.next_chunk = pages_of(bytes);
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
        if next >= self.span.end.min(self.limit.unwrap_or(self.span.end)) {
            return;
        }
        // A leaf in the pool is not read. The cursor takes it from there and reads on behind it.
        let is_pooled = |addr: BlockAddr| run.pool().glance(run.meta().id, addr.page).is_some();
        if self.readahead.is_scan() && run.address(next, 1).is_ok_and(is_pooled) {
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

/// The part of the pages `range` that a scan reads. It includes the pages `wanted` at one end of the range. It ends at
/// `limit`, and before leaves in the pool that make up 1/`GAP` of the range. `pooled` returns the length of the leaf
/// that begins at a position, if the pool has it.
fn needed(
    range: PageRange,
    wanted: PageRange,
    limit: Option<u64>,
    reverse: bool,
    pooled: impl Fn(u64) -> Option<u64>,
) -> PageRange {
    debug_assert!(range.start <= wanted.start && wanted.end <= range.end, "the chunk has the leaf");
    let gap = ((range.end - range.start) / GAP).max(1);
    let mut in_pool = 0;
    if reverse {
        let low = range.start.max(limit.unwrap_or(0)).min(wanted.start);
        let (mut at, mut first) = (wanted.start, wanted.start);
        while at > low && in_pool < gap {
            at -= 1;
            match pooled(at) {
                // The pages of a longer leaf were passed before its first page.
                Some(pages) => (first, in_pool) = (first.max(at + pages).min(wanted.start), in_pool + pages),
                None => (first, in_pool) = (at, 0),
            }
        }
        return first..range.end;
    }
    let high = range.end.min(limit.unwrap_or(range.end)).max(wanted.end);
    let (mut at, mut end) = (wanted.end, wanted.end);
    while at < high && in_pool < gap {
        match pooled(at) {
            Some(pages) => (at, in_pool) = (at + pages, in_pool + pages),
            None => (at, end, in_pool) = (at + 1, at + 1, 0),
        }
    }
    range.start..end
}

/// The number of pages in the header of the leaf at `position`. This number is not checked yet; it only determines how
/// many bytes are checked.
fn stored_pages(buf: &[u8], range: &PageRange, position: u64) -> u32 {
    debug_assert!(range.contains(&position), "the leaf begins in the chunk");
    block_pages(&buf[to_usize(position - range.start) * PAGE..])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_chunk_ends_at_the_limit_and_before_pooled_leaves() {
        let none = |_: u64| None;
        let up = |limit, pooled: &dyn Fn(u64) -> Option<u64>| needed(0..64, 0..1, limit, false, pooled);
        let down = |limit, pooled: &dyn Fn(u64) -> Option<u64>| needed(0..64, 63..64, limit, true, pooled);
        assert_eq!((up(None, &none), down(None, &none)), (0..64, 0..64));
        assert_eq!((up(Some(10), &none), down(Some(10), &none)), (0..10, 10..64));
        assert_eq!((up(Some(0), &none), down(Some(99), &none)), (0..1, 63..64), "at least the leaf");
        // Seven pooled pages are read over, eight are not.
        let some = |of: PageRange| move |at: u64| of.contains(&at).then_some(1);
        assert_eq!((up(None, &some(20..27)), down(None, &some(20..27))), (0..64, 0..64));
        assert_eq!((up(None, &some(20..28)), down(None, &some(20..28))), (0..20, 28..64));
        // Pooled pages at the far end are not read, however few they are.
        assert_eq!((up(None, &some(62..64)), down(None, &some(0..2))), (0..62, 2..64));
        // The pool knows a longer leaf by its first page.
        let long = |at: u64| (at == 20).then_some(10);
        assert_eq!((up(None, &long), down(None, &long)), (0..20, 30..64));
        // A short chunk ends at the first pooled page.
        assert_eq!(needed(0..4, 0..1, None, false, some(2..3)), 0..2);
        assert_eq!(needed(0..4, 3..4, None, true, some(1..2)), 2..4);
    }
}
