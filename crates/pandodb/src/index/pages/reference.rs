//! [`PageRef`]: everything that a parent knows about a page: its address, the mark of the job that wrote it, and sums
//! over the messages below it.
//!
//! ```text
//!   first page − base varint │ 2 · pages + is continued varint │ mark varint │ [inner page] second copy varint
//!   entries │ deletes │ older │ large values │ bytes │ newest seqno          sums, varints
//! ```
//!
//! A compressed leaf has two lengths: its pages on disk, and its pages in memory. Its reference has three numbers in
//! the place of the second one:
//!
//! ```text
//!   is continued varint (the page count is 0) │ pages varint │ pages in memory varint
//! ```
//!
//! The *mark* is the low half of the identity of the job that wrote the page. The page holds the same number. So a page
//! that an earlier job of the same tree wrote to the same address fails its check, although its owner is right.
//!
//! The pages of a sorted load are written before the load has a seqno: leaves hold [`Seqno::UNASSIGNED`], and so do the
//! references in inner pages. All messages below such a page have one seqno, so it is the *newest seqno* of the
//! reference to the page. The reference to the root of the load gets it when the load is attached. Every reader views a
//! page through its reference ([`PageRef::leaf`], [`PageRef::inner`]), which replaces 0 by this seqno. Blocks in the
//! pool are as on disk.

use std::ops::AddAssign;

use crate::base::codec::{Reader, put_varint, varint_len};
use crate::base::{BlockAddr, Extent, PAGE, PageNo, Result, Seqno};
use crate::run::{Leaf, MOST_TREE_PAGES};
use crate::space::{BlockKind, MAX_BLOCK_PAGES};

/// Upper limit of page numbers.
pub const MAX_PAGE: u64 = 1 << 48;

/// Sums over the messages below a page.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Totals {
    /// Messages.
    pub entries: u64,
    /// Point deletes among them. A rewrite of their page drops them when no snapshot needs them.
    pub deletes: u64,
    /// Messages that are not the newest of their key. A rewrite drops them when no snapshot needs them.
    pub older: u64,
    /// References to large values.
    pub large_values: u64,
    /// Bytes of keys and values, large values included.
    pub bytes: u64,
    /// The seqno of the newest message.
    pub newest: Seqno,
}

impl Totals {
    fn numbers(&self) -> [u64; 6] {
        let Totals { entries, deletes, older, large_values, bytes, newest } = *self;
        [entries, deletes, older, large_values, bytes, newest.0]
    }
}

impl AddAssign for Totals {
    fn add_assign(&mut self, other: Totals) {
        self.entries = self.entries.saturating_add(other.entries);
        self.deletes = self.deletes.saturating_add(other.deletes);
        self.older = self.older.saturating_add(other.older);
        self.large_values = self.large_values.saturating_add(other.large_values);
        self.bytes = self.bytes.saturating_add(other.bytes);
        self.newest = self.newest.max(other.newest);
    }
}

/// The root of a tree, or of a buffer, that is not empty.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Root {
    /// The root page.
    pub page: PageRef,
    /// The level of the root page; 0 if it is a leaf.
    pub level: u32,
}

/// A reference to a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PageRef {
    /// The address of the page, or of its first copy, with its pages on disk.
    pub addr: BlockAddr,
    /// The number of pages in memory. For a compressed leaf, it is larger than the number of pages on disk.
    pub memory_pages: u32,
    /// The first page of the second copy; `None` for a leaf, which has one copy.
    pub second: Option<PageNo>,
    /// The mark of the job that wrote the page.
    pub mark: u32,
    /// Whether the page is a leaf that begins with messages of the last key of the leaf before.
    pub is_continued: bool,
    /// Sums over the messages below the page.
    pub totals: Totals,
}

impl PageRef {
    /// The addresses of the copies.
    pub fn copies(&self) -> impl Iterator<Item = BlockAddr> {
        std::iter::once(self.addr).chain(self.second.map(|page| BlockAddr { page, ..self.addr }))
    }

    /// The pages of all copies.
    pub fn extents(&self) -> impl Iterator<Item = Extent> {
        self.copies().map(|addr| Extent { start: addr.page, pages: addr.pages })
    }

    /// Whether the page is a leaf that is stored compressed.
    #[inline]
    pub fn is_compressed(&self) -> bool {
        self.memory_pages != self.addr.pages
    }

    /// The bytes of the page in memory.
    #[inline]
    pub fn memory_bytes(&self) -> usize {
        self.memory_pages as usize * PAGE
    }

    /// The kind of the block on disk.
    #[inline]
    pub fn stored_kind(&self) -> BlockKind {
        match self.second {
            Some(_) => BlockKind::TreeInner,
            None if self.is_compressed() => BlockKind::TreeCompressedLeaf,
            None => BlockKind::TreeLeaf,
        }
    }

    /// Views the bytes of the leaf to which this reference leads.
    #[inline]
    pub fn leaf<'a>(&self, bytes: &'a [u8]) -> Leaf<'a> {
        debug_assert!(self.totals.newest > Seqno::UNASSIGNED, "the root of a load is stamped before it is read");
        Leaf::of(bytes).stamped(self.totals.newest)
    }

    /// The numbers between the address and the mark, and how many they are.
    fn lengths(&self) -> ([u64; 3], usize) {
        let (pages, flag) = (u64::from(self.addr.pages), u64::from(self.is_continued));
        match self.is_compressed() {
            true => ([flag, pages, self.memory_pages.into()], 3),
            false => ([2 * pages + flag, 0, 0], 1),
        }
    }

    /// Decodes what [`PageRef::lengths`] returned: the pages on disk, the pages in memory, and whether the page is
    /// continued.
    fn decode_lengths(reader: &mut Reader<'_>, is_leaf: bool) -> Result<(u32, u32, bool)> {
        let pages_and_flag = reader.varint_max(2 * u64::from(MAX_BLOCK_PAGES) + 1)?;
        let (mut pages, is_continued) = (pages_and_flag / 2, pages_and_flag % 2 == 1);
        let mut memory_pages = pages;
        if pages == 0 && is_leaf {
            pages = reader.varint_max(MOST_TREE_PAGES as u64)?;
            memory_pages = reader.varint_max(MOST_TREE_PAGES as u64)?;
            if pages >= memory_pages {
                return Err(reader.corrupt("a compressed leaf that is not shorter than in memory"));
            }
        }
        if pages == 0 || is_continued && !is_leaf {
            return Err(reader.corrupt("the length of a page is out of bounds"));
        }
        #[expect(clippy::cast_possible_truncation, reason = "both numbers were checked")]
        let (pages, memory_pages) = (pages as u32, memory_pages as u32);
        Ok((pages, memory_pages, is_continued))
    }

    /// The length of the encoded form in bytes, if `base` is the smallest first page of the parent's children.
    pub fn encoded_len(&self, base: u64) -> usize {
        let second = self.second.map_or(0, |page| varint_len(page.0));
        let (lengths, count) = self.lengths();
        varint_len(self.addr.page.0 - base)
            + lengths[..count].iter().copied().map(varint_len).sum::<usize>()
            + varint_len(self.mark.into())
            + second
            + self.totals.numbers().into_iter().map(varint_len).sum::<usize>()
    }

    /// Appends the encoded form.
    pub fn encode(&self, base: u64, out: &mut Vec<u8>) {
        put_varint(out, self.addr.page.0 - base);
        let (lengths, count) = self.lengths();
        lengths[..count].iter().for_each(|&number| put_varint(out, number));
        put_varint(out, self.mark.into());
        if let Some(page) = self.second {
            put_varint(out, page.0);
        }
        self.totals.numbers().into_iter().for_each(|sum| put_varint(out, sum));
    }

    /// Decodes the form that [`PageRef::encode`] wrote. `is_leaf` says that the page is a leaf.
    ///
    /// # Errors
    /// [`Error::Corruption`](crate::Error::Corruption) if bytes are missing or a number is out of bounds.
    pub fn decode(reader: &mut Reader<'_>, base: u64, is_leaf: bool) -> Result<PageRef> {
        let first = base.saturating_add(reader.varint_max(MAX_PAGE)?);
        let (pages, memory_pages, is_continued) = PageRef::decode_lengths(reader, is_leaf)?;
        let mark = reader.varint_max(u32::MAX.into())?;
        let second = if is_leaf { None } else { Some(PageNo(reader.varint_max(MAX_PAGE)?)) };
        if first > MAX_PAGE {
            return Err(reader.corrupt("the address of a page is out of bounds"));
        }
        #[expect(clippy::cast_possible_truncation, reason = "the number was checked")]
        let mark = mark as u32;
        let totals = Totals {
            entries: reader.varint()?,
            deletes: reader.varint()?,
            older: reader.varint()?,
            large_values: reader.varint()?,
            bytes: reader.varint()?,
            newest: Seqno(reader.varint_max(Seqno::BELIEVED.0)?),
        };
        if [totals.deletes, totals.older, totals.large_values].into_iter().any(|count| count > totals.entries) {
            return Err(reader.corrupt("the sums of a page contradict each other"));
        }
        let addr = BlockAddr { page: PageNo(first), pages };
        Ok(PageRef { addr, memory_pages, second, mark, is_continued, totals })
    }
}

#[cfg(test)]
pub mod tests {
    use super::*;

    /// A reference with small numbers. `level` 0 is a leaf.
    pub fn sample(page: u64, level: u32) -> PageRef {
        PageRef {
            addr: BlockAddr { page: PageNo(page), pages: 2 },
            memory_pages: 2,
            second: (level > 0).then_some(PageNo(page + 64)),
            mark: 7,
            is_continued: false,
            totals: Totals { entries: 5, deletes: 1, older: 2, large_values: 0, bytes: 300, newest: Seqno(90) },
        }
    }

    #[test]
    fn golden_bytes_of_a_reference() {
        let hex = |reference: PageRef| {
            let mut out = Vec::new();
            reference.encode(100, &mut out);
            assert_eq!(out.len(), reference.encoded_len(100));
            let decoded = PageRef::decode(&mut Reader::new(&out, "test"), 100, reference.second.is_none());
            assert_eq!(decoded.unwrap(), reference);
            out.iter().map(|byte| format!("{byte:02x}")).collect::<String>()
        };
        assert_eq!(hex(sample(110, 0)), "0a040705010200ac025a");
        assert_eq!(hex(sample(110, 1)), "0a0407ae0105010200ac025a");
        assert_eq!(hex(PageRef { memory_pages: 5, ..sample(110, 0) }), "0a0002050705010200ac025a", "compressed");
        let continued = PageRef { memory_pages: 5, is_continued: true, ..sample(110, 0) };
        assert_eq!(hex(continued), "0a0102050705010200ac025a");
    }

    #[test]
    fn impossible_lengths_of_a_compressed_leaf_are_refused() {
        let decode = |pages: u64, memory_pages: u64, is_leaf: bool| {
            let (mut out, mut sums) = (Vec::new(), Vec::new());
            sample(110, u32::from(!is_leaf)).encode(0, &mut sums);
            [110, 0, pages, memory_pages].into_iter().for_each(|number| put_varint(&mut out, number));
            // The sample has its address and its number of pages in 1 byte each.
            out.extend_from_slice(&sums[2..]);
            PageRef::decode(&mut Reader::new(&out, "test"), 0, is_leaf)
        };
        let most = MOST_TREE_PAGES as u64;
        assert!(decode(1, 2, true).is_ok() && decode(most - 1, most, true).is_ok());
        for (pages, memory_pages) in [(0, 2), (2, 2), (3, 2), (1, most + 1), (1, u64::MAX), (u64::MAX, 1)] {
            assert!(decode(pages, memory_pages, true).is_err(), "{pages} pages, {memory_pages} in memory");
        }
        assert!(decode(1, 2, false).is_err(), "an inner page");
    }

    #[test]
    fn a_reference_with_impossible_numbers_is_refused() {
        let mut out = Vec::new();
        let mut reference = sample(110, 0);
        reference.totals.older = 6;
        reference.encode(0, &mut out);
        assert!(PageRef::decode(&mut Reader::new(&out, "test"), 0, true).is_err());
        assert!(PageRef::decode(&mut Reader::new(&out[..4], "test"), 0, true).is_err(), "cut off");
    }
}
