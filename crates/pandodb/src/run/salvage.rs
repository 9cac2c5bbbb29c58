//! [`Salvager`]: reads all messages of a slice that are still readable, and reports the key ranges of the unreadable
//! messages.
//!
//! ```text
//!   leaves      | good |/////|/////| good | good |//////|
//!   pieces      entries  lost [a, b)  entries entries  lost [c, end of the run]
//! ```
//!
//! Steps: walk the leaves by position, without the blocks above the leaves. A leaf's header contains the length of the
//! leaf. The checksum shows that the leaf was written by this run at this position. After a damaged leaf, try each
//! following page until a valid leaf begins.
//!
//! Invariant: each lost key is inside a reported range. The range begins just above the last key before the damage, or
//! at this key if its messages continue in the damaged leaves. The range ends just below the first key after the
//! damage, or at this key if its messages began in the damaged leaves.
//!
//! This module does not read range tombstones; for them, see [`super::Run::fragments`]. Source: [decision
//! 0011](../../../../docs/decisions/0011-twins-and-salvage.md).

use std::sync::Arc;

use super::leaf::Leaf;
use super::slice::RunSlice;
use super::spans::PageRange;
use crate::base::range::successor;
use crate::base::{BlockAddr, Entry, EntryBlock, Error, KeyRange, PAGE, PageNo, Result, key_hash};
use crate::blocks::BlockSource;
use crate::device::AlignedBuf;
use crate::space::{BlockKind, to_usize};

/// The number of pages of one read.
const CHUNK: u64 = 64;

/// A step of a salvage.
#[derive(Debug)]
pub enum Piece {
    /// The messages of a leaf were appended. All messages that precede the last appended message have been appended,
    /// except messages in reported ranges.
    Entries,
    /// The messages of keys in this range cannot be read, because of this error. The damage affects no other keys.
    Lost(KeyRange, Error),
    /// The end of the slice.
    End,
}

/// Reads the undamaged parts of a slice.
pub struct Salvager {
    slice: Arc<RunSlice>,
    range: KeyRange,
    /// The position of the leaf to try next.
    position: u64,
    /// Messages at or after `position` have no key below this key.
    from: Vec<u8>,
    chunk: Option<(AlignedBuf, PageRange)>,
    /// The bytes in memory of the leaf that was read last, if they differ from its bytes on disk.
    unpacked: Vec<u8>,
}

impl Salvager {
    /// Creates a salvager that starts at the first message of `slice` in `range`.
    pub fn new(slice: Arc<RunSlice>, range: &KeyRange) -> Salvager {
        let meta = slice.run().meta();
        let range = slice.range().intersect(range);
        let span = slice.span();
        let position = if range.is_empty() || !range.is_above(&meta.first_key) || range.from > meta.last_key {
            span.end
        } else if range.from <= meta.first_key {
            span.start
        } else {
            // Skip the leaves before the range. If the inner blocks cannot be read, walk through these leaves, too.
            let found = slice.run().leaf_of(&range.from).ok().map(|leaf| leaf.position);
            found.filter(|position| span.contains(position)).unwrap_or(span.start)
        };
        let from = range.from.clone().max(meta.first_key.clone());
        Salvager { slice, range, position, from, chunk: None, unpacked: Vec::new() }
    }

    /// Whether the run can hold messages of a key, according to its filter. Returns `true` if the filter cannot be
    /// read.
    pub fn may_hold(&self, key: &[u8]) -> bool {
        let (run, filter) = (self.slice.run(), self.slice.run().meta().filter);
        let hash = key_hash(key);
        let page = || run.load(run.address(filter.first + u64::from(filter.page_of(hash)), 1)?, BlockKind::RunFilter);
        filter.pages == 0 || page().map_or(true, |page| filter.may_contain(&page, hash))
    }

    /// Appends the messages of the next leaf to `out`, or returns the range of keys that are lost before the next
    /// readable leaf.
    pub fn next(&mut self, out: &mut EntryBlock) -> Piece {
        let end = self.slice.span().end;
        while self.position < end {
            match self.leaf_at(self.position) {
                Ok(leaf) => {
                    let before = out.len();
                    self.position = self.take(&leaf, out);
                    assert!(self.position >= leaf.end, "the salvage advances");
                    if out.len() > before {
                        return Piece::Entries;
                    }
                }
                Err(error) => {
                    let range = self.pass_damage().intersect(&self.range);
                    if !range.is_empty() {
                        return Piece::Lost(range, error);
                    }
                }
            }
        }
        Piece::End
    }

    /// Appends the entries of a leaf that are in the range. Returns the position at which to continue.
    fn take(&mut self, at: &PageRange, out: &mut EntryBlock) -> u64 {
        let leaf = self.leaf(at);
        let first = if self.range.from.is_empty() { 0 } else { leaf.search(&self.range.from) };
        let last = if self.range.to.is_empty() { leaf.len() } else { leaf.search(&self.range.to) };
        let (mut key, beyond) = (Vec::new(), last < leaf.len());
        for i in first..last {
            leaf.key(i, &mut key);
            let slot = leaf.slot(i);
            out.push(Entry { key: &key, seqno: slot.seqno, kind: slot.kind, value: leaf.value(&slot) });
        }
        leaf.key(leaf.len() - 1, &mut key);
        let from = if leaf.continues() { key } else { successor(&key) };
        let next = if beyond { self.slice.span().end } else { at.end };
        self.from = from.max(std::mem::take(&mut self.from));
        next
    }

    /// Moves to the next readable leaf, or to the end. Returns the range of the keys that may have been in the skipped
    /// pages.
    fn pass_damage(&mut self) -> KeyRange {
        let span = self.slice.span();
        for position in self.position + 1..span.end {
            if let Ok(at) = self.leaf_at(position) {
                let leaf = self.leaf(&at);
                let (mut first, from) = (Vec::new(), self.from.clone());
                leaf.key(0, &mut first);
                if leaf.is_continued() {
                    first.push(0);
                }
                self.position = position;
                self.from.clone_from(&first);
                return KeyRange::new(from, first);
            }
        }
        self.position = span.end;
        KeyRange::new(std::mem::take(&mut self.from), successor(&self.slice.run().meta().last_key))
    }

    /// Reads and checks the leaf that begins at a position. Returns the positions of the leaf's pages.
    fn leaf_at(&mut self, position: u64) -> Result<PageRange> {
        let run = self.slice.run().clone();
        let (extent, first_page) = run.extent_at(position)?;
        let end = extent.end.min(self.slice.span().end);
        let page = PageNo(first_page.0 + position - extent.start);
        if !self.holds(&(position..position + 1)) {
            // If the device cannot read one of the pages, read only the first page, so that an unreadable page does not
            // make its readable neighbours unreadable.
            let long = self.read(page, position..end.min(position + CHUNK));
            long.or_else(|_| self.read(page, position..position + 1))?;
        }
        let header = self.bytes(&(position..position + 1));
        let (kind, pages) = run.data().claimed(header);
        let at = position..position + u64::from(pages);
        let is_leaf = kind.is_some_and(|kind| [BlockKind::RunLeaf, BlockKind::RunCompressedLeaf].contains(&kind));
        if !is_leaf || pages == 0 || at.end > end {
            let found = BlockAddr { page, pages: 1 };
            return Err(run.data().corrupt(found, BlockKind::RunLeaf.name(), "checksum mismatch or not a leaf"));
        }
        if !self.holds(&at) {
            self.read(page, at.clone())?;
        }
        let mut unpacked = std::mem::take(&mut self.unpacked);
        let checked = run.check_leaf(self.bytes(&at), BlockAddr { page, pages }, &mut unpacked);
        self.unpacked = unpacked;
        checked.map(|()| at)
    }

    /// The leaf that was read last, at these positions.
    fn leaf(&self, at: &PageRange) -> Leaf<'_> {
        Leaf::of(if self.unpacked.is_empty() { self.bytes(at) } else { &self.unpacked })
    }

    fn holds(&self, at: &PageRange) -> bool {
        self.chunk.as_ref().is_some_and(|(_, held)| held.start <= at.start && at.end <= held.end)
    }

    fn read(&mut self, page: PageNo, at: PageRange) -> Result<()> {
        self.chunk = None;
        let pages = u32::try_from(at.end - at.start).expect("the pages are inside an extent");
        let buf = self.slice.run().read(BlockAddr { page, pages })?;
        assert_eq!(buf.pages(), pages as usize, "a read returns the requested pages");
        self.chunk = Some((buf, at));
        Ok(())
    }

    /// The bytes of pages that were read.
    fn bytes(&self, at: &PageRange) -> &[u8] {
        let (buf, held) = self.chunk.as_ref().expect("the pages were read");
        debug_assert!(self.holds(at), "positions {at:?} are not among {held:?}");
        &buf[to_usize(at.start - held.start) * PAGE..to_usize(at.end - held.start) * PAGE]
    }
}
