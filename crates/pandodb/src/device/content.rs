//! The bytes of a file in memory, as copy-on-write pages, so that copying a file costs almost nothing.
//!
//! ```text
//!   Content { len, pages }
//!      │ Arc
//!      ▼
//!   top:  [segment 0][  hole  ][segment 2]            one slot per 256 KiB, as long as the last segment in use
//!             │ Arc                 │ Arc
//!             ▼                     ▼
//!         [page|hole|page|…]   [hole|…|page]           64 slots of 4 KiB
//!           │Arc       │Arc            │Arc
//! ```
//!
//! Cloning copies one pointer. A write to a page first unshares the page and the two nodes above it, so it copies at
//! most one top, one segment and one page. A hole of any length occupies no memory.
//!
//! Every level caches the hash of the bytes below it until these bytes change. So hashing a file after a small write
//! reads only one page. The hashes do not depend on which pages are holes: a hole and a page of zeros have the same
//! hash.
//!
//! A [`Patch`] is a write whose bytes are already arranged in pages. Applying a patch to several files shares the pages
//! and their hashes instead of copying bytes. So a test can build thousands of crash images per second.
//!
//! Invariants: no page is wholly beyond `len` rounded up to a page; the bytes of the last page beyond `len` are zero;
//! `pages` is the number of slots that hold a page.

use std::fmt;
use std::ops::Range;
use std::sync::{Arc, LazyLock, OnceLock};

use crate::base::PAGE;
use crate::base::random::mix;

/// The number of slots in a segment.
const SEGMENT_PAGES: usize = 64;

const PAGE_BYTES: u64 = PAGE as u64;

/// The page that all allocated but unwritten pages share.
static ZERO_PAGE: LazyLock<Arc<Page>> = LazyLock::new(|| Arc::new(Page::new([0; PAGE])));

#[derive(Clone)]
struct Page {
    bytes: [u8; PAGE],
    hash: OnceLock<u64>,
}

impl Page {
    fn new(bytes: [u8; PAGE]) -> Page {
        Page { bytes, hash: OnceLock::new() }
    }

    /// The hash of the bytes; 0 if all bytes are zero.
    fn hash(&self) -> u64 {
        *self.hash.get_or_init(|| {
            if self.bytes.iter().all(|byte| *byte == 0) { 0 } else { xxhash_rust::xxh3::xxh3_64(&self.bytes) }
        })
    }
}

#[derive(Clone)]
struct Segment {
    pages: [Option<Arc<Page>>; SEGMENT_PAGES],
    used: u64,
    hash: OnceLock<u64>,
}

impl Default for Segment {
    fn default() -> Segment {
        Segment { pages: [const { None }; SEGMENT_PAGES], used: 0, hash: OnceLock::new() }
    }
}

#[derive(Clone, Default)]
struct Top {
    segments: Vec<Option<Arc<Segment>>>,
    hash: OnceLock<u64>,
}

/// A file's bytes. Cheap to clone; see the module documentation.
#[derive(Clone, Default)]
pub struct Content {
    len: u64,
    pages: u64,
    top: Arc<Top>,
}

impl Content {
    /// The length in bytes, holes included.
    pub fn len(&self) -> u64 {
        self.len
    }

    /// The number of bytes of allocated space: whole pages that are not holes.
    pub fn occupied(&self) -> u64 {
        self.pages * PAGE_BYTES
    }

    /// Copies bytes of the file, from `offset` on, to `buf`. Stops at the end of the file. Returns the number of copied
    /// bytes.
    pub fn read(&self, offset: u64, buf: &mut [u8]) -> usize {
        let n = self.len.saturating_sub(offset).min(buf.len() as u64) as usize;
        let mut rest = &mut buf[..n];
        for (no, within) in pieces(offset, n as u64) {
            let (piece, after) = rest.split_at_mut(within.len());
            match self.page(no) {
                Some(page) => piece.copy_from_slice(&page.bytes[within]),
                None => piece.fill(0),
            }
            rest = after;
        }
        debug_assert!(rest.is_empty(), "{} bytes were not read", rest.len());
        n
    }

    /// Copies `bytes` to `offset`. Extends the file if the bytes end beyond the end of the file.
    pub fn write(&mut self, offset: u64, bytes: &[u8]) {
        let mut rest = bytes;
        for (no, within) in pieces(offset, bytes.len() as u64) {
            let (piece, after) = rest.split_at(within.len());
            self.page_mut(no)[within].copy_from_slice(piece);
            rest = after;
        }
        debug_assert!(rest.is_empty(), "{} bytes were not written", rest.len());
        self.extend_to(offset, bytes.len() as u64);
    }

    /// Writes the part `keep` of a patch. Pages that the patch replaces as a whole are shared with the patch. Positions
    /// in `keep` are counted from the start of the patch.
    pub fn apply(&mut self, patch: &Patch, keep: Range<u64>) {
        assert!(keep.start <= keep.end && keep.end <= patch.len, "part {keep:?} of a patch of {} bytes", patch.len);
        let (offset, len) = (patch.offset + keep.start, keep.end - keep.start);
        let first = patch.offset / PAGE_BYTES;
        for (no, within) in pieces(offset, len) {
            match &patch.pieces[(no - first) as usize] {
                Piece::Whole(page) if within.len() == PAGE => self.put(no, Arc::clone(page)),
                Piece::Whole(page) => self.page_mut(no)[within.clone()].copy_from_slice(&page.bytes[within]),
                Piece::Part { start, bytes } => {
                    let source = &bytes[within.start - start..within.end - start];
                    self.page_mut(no)[within].copy_from_slice(source);
                }
            }
        }
        self.extend_to(offset, len);
    }

    /// Cuts the file, or extends it with a hole.
    pub fn set_len(&mut self, len: u64) {
        if len < self.len {
            self.cut(len);
        }
        self.len = len;
    }

    /// Allocates the holes of a range with zeros, and extends the file to the end of the range.
    pub fn allocate(&mut self, offset: u64, len: u64) {
        for (no, _) in pieces(offset, len) {
            if self.page(no).is_none() {
                self.put(no, Arc::clone(&ZERO_PAGE));
            }
        }
        self.extend_to(offset, len);
    }

    /// Zeros a range. Whole pages of the range become holes, and the length of the file stays the same.
    pub fn punch(&mut self, offset: u64, len: u64) {
        // No page exists past the end, and a punched range may be far longer than the file.
        let len = len.min(self.len.next_multiple_of(PAGE_BYTES).saturating_sub(offset));
        for (no, within) in pieces(offset, len) {
            if within.len() == PAGE {
                self.take(no);
            } else if self.page(no).is_some() {
                self.page_mut(no)[within].fill(0);
            }
        }
    }

    /// The number of bytes of space that a write to the range would newly allocate.
    pub fn missing(&self, offset: u64, len: u64) -> u64 {
        pieces(offset, len).filter(|(no, _)| self.page(*no).is_none()).count() as u64 * PAGE_BYTES
    }

    /// The allocated ranges in ascending order, in bytes. A range that extends past the end of the file is cut there.
    pub fn ranges(&self) -> Vec<Range<u64>> {
        let mut ranges: Vec<Range<u64>> = Vec::new();
        for (index, segment) in self.top.segments.iter().enumerate() {
            let Some(segment) = segment else { continue };
            for (slot, page) in segment.pages.iter().enumerate() {
                if page.is_none() {
                    continue;
                }
                let start = (index * SEGMENT_PAGES + slot) as u64 * PAGE_BYTES;
                let end = (start + PAGE_BYTES).min(self.len);
                match ranges.last_mut() {
                    Some(last) if last.end == start => last.end = end,
                    _ => ranges.push(start..end),
                }
            }
        }
        let sum = ranges.iter().map(|range| range.end - range.start).sum::<u64>();
        debug_assert!(sum <= self.occupied(), "{sum} bytes in {} bytes of pages", self.occupied());
        ranges
    }

    /// A hash of the file's length and bytes. The call reads each page that has changed since the last call, and takes
    /// one step for each segment.
    pub fn hash(&self) -> u64 {
        let bytes = *self.top.hash.get_or_init(|| {
            let segments = self.top.segments.iter().map(|slot| slot.as_deref().map_or(0, segment_hash));
            combine(segments)
        });
        mix(self.len ^ mix(bytes))
    }

    fn page(&self, no: u64) -> Option<&Page> {
        let (index, slot) = place(no);
        self.top.segments.get(index)?.as_ref()?.pages[slot].as_deref()
    }

    /// The segment of a page, unshared and with its cached hash cleared.
    fn segment_mut(&mut self, index: usize) -> &mut Segment {
        let top = Arc::make_mut(&mut self.top);
        top.hash.take();
        if top.segments.len() <= index {
            top.segments.resize(index + 1, None);
        }
        let segment = Arc::make_mut(top.segments[index].get_or_insert_default());
        segment.hash.take();
        segment
    }

    /// The bytes of a page, unshared. If the page is a hole, the page is first allocated with zeros.
    fn page_mut(&mut self, no: u64) -> &mut [u8; PAGE] {
        if self.page(no).is_none() {
            self.put(no, Arc::clone(&ZERO_PAGE));
        }
        let (index, slot) = place(no);
        let page = self.segment_mut(index).pages[slot].as_mut().expect("occupied above");
        let page = Arc::make_mut(page);
        page.hash.take();
        &mut page.bytes
    }

    fn put(&mut self, no: u64, page: Arc<Page>) {
        let (index, slot) = place(no);
        let segment = self.segment_mut(index);
        if segment.pages[slot].replace(page).is_none() {
            segment.used += 1;
            debug_assert!(segment.used <= SEGMENT_PAGES as u64, "a segment counts its pages");
            self.pages += 1;
        }
    }

    fn take(&mut self, no: u64) {
        if self.page(no).is_none() {
            return;
        }
        let (index, slot) = place(no);
        let segment = self.segment_mut(index);
        segment.pages[slot] = None;
        debug_assert!(segment.used > 0, "a segment counts its pages");
        segment.used -= 1;
        self.pages -= 1;
    }

    fn extend_to(&mut self, offset: u64, len: u64) {
        if len > 0 {
            self.len = self.len.max(offset + len);
        }
    }

    /// Drops all bytes from `len` on.
    fn cut(&mut self, len: u64) {
        let whole = len.next_multiple_of(PAGE_BYTES);
        if len < whole {
            self.punch(len, whole - len);
        }
        let (index, slot) = place(whole / PAGE_BYTES);
        let keep = index + usize::from(slot > 0);
        if self.top.segments.len() > keep {
            let top = Arc::make_mut(&mut self.top);
            top.hash.take();
            let dropped: u64 = top.segments.drain(keep..).flatten().map(|segment| segment.used).sum();
            debug_assert!(dropped <= self.pages, "{dropped} of {} pages are dropped", self.pages);
            self.pages -= dropped;
        }
        if slot > 0 {
            for no in 0..(SEGMENT_PAGES - slot) as u64 {
                self.take(whole / PAGE_BYTES + no);
            }
        }
        debug_assert!(self.occupied() <= whole, "no page lies past the end");
    }
}

impl fmt::Debug for Content {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Content({} bytes, {} pages)", self.len, self.pages)
    }
}

/// A write whose bytes are arranged in pages. All files to which the patch is applied share these pages.
#[derive(Clone)]
pub struct Patch {
    offset: u64,
    len: u64,
    pieces: Arc<[Piece]>,
}

/// The effect of a patch on one page.
enum Piece {
    /// Replaces the page.
    Whole(Arc<Page>),
    /// Changes the bytes from `start` on.
    Part { start: usize, bytes: Box<[u8]> },
}

impl Patch {
    /// Arranges `bytes` in pages for a write at `offset`.
    pub fn new(offset: u64, bytes: &[u8]) -> Patch {
        let mut rest = bytes;
        let lay_out = |(_, within): (u64, Range<usize>)| {
            let (piece, after) = rest.split_at(within.len());
            rest = after;
            match piece.try_into() {
                Ok(page) => Piece::Whole(Arc::new(Page::new(page))),
                Err(_) => Piece::Part { start: within.start, bytes: piece.into() },
            }
        };
        let pieces = pieces(offset, bytes.len() as u64).map(lay_out).collect();
        debug_assert!(rest.is_empty(), "{} bytes were not laid out", rest.len());
        Patch { offset, len: bytes.len() as u64, pieces }
    }

    /// The range of the file that the patch writes.
    pub fn range(&self) -> Range<u64> {
        self.offset..self.offset + self.len
    }

    /// A copy of the bytes.
    pub fn to_vec(&self) -> Vec<u8> {
        let bytes = |piece: &'_ Piece| match piece {
            Piece::Whole(page) => page.bytes.to_vec(),
            Piece::Part { bytes, .. } => bytes.to_vec(),
        };
        let bytes: Vec<u8> = self.pieces.iter().flat_map(bytes).collect();
        debug_assert_eq!(bytes.len() as u64, self.len, "the pieces hold all bytes");
        bytes
    }
}

impl fmt::Debug for Patch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Patch({}+{})", self.offset, self.len)
    }
}

/// The segment and the slot of a page.
fn place(no: u64) -> (usize, usize) {
    (no as usize / SEGMENT_PAGES, no as usize % SEGMENT_PAGES)
}

/// The pages that a range touches, each with the touched bytes inside it.
fn pieces(offset: u64, len: u64) -> impl Iterator<Item = (u64, Range<usize>)> {
    let end = offset + len;
    let pages = if len == 0 { 0..0 } else { offset / PAGE_BYTES..end.div_ceil(PAGE_BYTES) };
    pages.map(move |no| {
        let start = no * PAGE_BYTES;
        let within = (offset.max(start) - start) as usize..(end.min(start + PAGE_BYTES) - start) as usize;
        debug_assert!(!within.is_empty() && within.end <= PAGE, "the range touches page {no}");
        (no, within)
    })
}

fn segment_hash(segment: &Segment) -> u64 {
    *segment.hash.get_or_init(|| combine(segment.pages.iter().map(|page| page.as_deref().map_or(0, Page::hash))))
}

/// Combines hashes by position; zeros (holes) do not contribute.
fn combine(hashes: impl Iterator<Item = u64>) -> u64 {
    let weigh = |(index, hash): (usize, u64)| mix(hash.wrapping_add(mix(index as u64 + 1)));
    hashes.enumerate().filter(|(_, hash)| *hash != 0).map(weigh).fold(0, u64::wrapping_add)
}
