//! [`Salvager`]: everything of a slice that can still be read, and which keys the rest may have held.
//!
//! ```text
//!   leaves      | good |/////|/////| good | good |//////|
//!   pieces      entries  lost [a, b)  entries entries  lost [c, end of the run]
//! ```
//!
//! It walks the leaves by their positions and needs none of the blocks above them: a leaf says in its header how long it
//! is, and its checksum says that it is the leaf of this run that was written there. Where that fails it tries each
//! following page until one begins a leaf again. What was lost lies between the neighbours: above the last key before it
//! (which counts as lost, too, if it goes on), below the first key after it (which counts as lost if it began before).
//!
//! Range tombstones are not its business: see [`super::Run::fragments`].

use std::sync::Arc;

use super::leaf::Leaf;
use super::slice::RunSlice;
use super::spans::PageRange;
use crate::base::range::successor;
use crate::base::{BlockAddr, Entry, EntryBlock, Error, KeyRange, PAGE, PageNo, Result, key_hash};
use crate::blocks::BlockSource;
use crate::device::AlignedBuf;
use crate::space::BlockKind;

/// Pages read at a time.
const CHUNK: u64 = 64;

/// What comes next in a slice.
#[derive(Debug)]
pub enum Piece {
    /// Messages were appended: all that there are up to the last of them.
    Entries,
    /// Messages of these keys, and of no others, may have stood here; and why they cannot be read.
    Lost(KeyRange, Error),
    /// Nothing more.
    End,
}

/// Reads a slice around its damage.
pub struct Salvager {
    slice: Arc<RunSlice>,
    range: KeyRange,
    /// The leaf to try next.
    position: u64,
    /// Nothing below this can stand in it.
    from: Vec<u8>,
    chunk: Option<(AlignedBuf, PageRange)>,
    /// The leaf that was read last, if it was compressed.
    unpacked: Vec<u8>,
}

impl Salvager {
    /// Starts at the first message of `slice` in `range`.
    pub fn new(slice: Arc<RunSlice>, range: &KeyRange) -> Salvager {
        let meta = slice.run().meta();
        let range = slice.range().intersect(range);
        let span = slice.span();
        let position = if range.is_empty() || !range.is_above(&meta.first_key) || range.from > meta.last_key {
            span.end
        } else if range.from <= meta.first_key {
            span.start
        } else {
            // A short cut; without it the leaves below the range are walked, too.
            let found = slice.run().leaf_of(&range.from).ok().map(|leaf| leaf.position);
            found.filter(|position| span.contains(position)).unwrap_or(span.start)
        };
        let from = range.from.clone().max(meta.first_key.clone());
        Salvager { slice, range, position, from, chunk: None, unpacked: Vec::new() }
    }

    /// Whether the run can hold messages of a key at all: its filter knows, if it can be read.
    pub fn may_hold(&self, key: &[u8]) -> bool {
        let (run, filter) = (self.slice.run(), self.slice.run().meta().filter);
        let hash = key_hash(key);
        let page = || run.load(run.address(filter.first + u64::from(filter.page_of(hash)), 1)?, BlockKind::RunFilter);
        filter.pages == 0 || page().map_or(true, |page| filter.may_contain(&page, hash))
    }

    /// Appends the next leaf's messages to `out`, or says what is lost before the next leaf that can be read.
    pub fn next(&mut self, out: &mut EntryBlock) -> Piece {
        let end = self.slice.span().end;
        while self.position < end {
            match self.leaf_at(self.position) {
                Ok(leaf) => {
                    let before = out.len();
                    self.position = self.take(&leaf, out);
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

    /// Takes what is in the range of a leaf; the position to go on at.
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

    /// Goes to the next leaf that can be read, or to the end: the keys that may have stood before it.
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

    /// The positions of the leaf that begins at one, read and checked.
    fn leaf_at(&mut self, position: u64) -> Result<PageRange> {
        let run = self.slice.run().clone();
        let (extent, first_page) = run.extent_at(position)?;
        let end = extent.end.min(self.slice.span().end);
        let page = PageNo(first_page.0 + position - extent.start);
        if !self.holds(&(position..position + 1)) {
            // One sector that the device refuses must not take its neighbours along.
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

    /// The leaf that was read last, from these positions.
    fn leaf(&self, at: &PageRange) -> Leaf<'_> {
        Leaf::of(if self.unpacked.is_empty() { self.bytes(at) } else { &self.unpacked })
    }

    fn holds(&self, at: &PageRange) -> bool {
        self.chunk.as_ref().is_some_and(|(_, held)| held.start <= at.start && at.end <= held.end)
    }

    fn read(&mut self, page: PageNo, at: PageRange) -> Result<()> {
        self.chunk = None;
        let buf = self.slice.run().read(BlockAddr { page, pages: (at.end - at.start) as u32 })?;
        self.chunk = Some((buf, at));
        Ok(())
    }

    /// Pages that are held.
    fn bytes(&self, at: &PageRange) -> &[u8] {
        let (buf, held) = self.chunk.as_ref().expect("the pages were read");
        &buf[(at.start - held.start) as usize * PAGE..(at.end - held.start) as usize * PAGE]
    }
}
