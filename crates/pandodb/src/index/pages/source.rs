//! [`PageSource`]: reads and checks the pages of one tree, through the pool.
//!
//! A leaf has one copy, an inner page two: damage to one page costs at most the keys of one leaf. If the first copy of
//! an inner page is damaged, readers use the second one; the next job that rewrites the page writes both copies anew.
//!
//! A leaf may be stored compressed ([`PageRef::is_compressed`]). It is decompressed when it is read, so the pool and
//! all readers have leaves that are not compressed. The header of such a leaf has the number of pages on disk, in
//! memory too.

use std::sync::Arc;

use super::inner::{Child, Inner};
use super::reference::PageRef;
use crate::base::{BlockAddr, Error, OwnerId, Result, seeded};
use crate::blocks::{BlockRequest, BlockSource};
use crate::device::AlignedBuf;
use crate::pool::{Block, Keep, Pool};
use crate::run::{Leaf, MOST_TREE_PAGES, unpack_into, unpacked_pages};
use crate::space::data::stored_pages;
use crate::space::{BlockKind, DataFile};

/// The pages of one tree.
pub struct PageSource {
    data: Arc<DataFile>,
    pool: Arc<Pool>,
    owner: OwnerId,
}

/// A leaf that is read once.
pub enum OnceRead {
    /// The pool had the leaf.
    Pooled(Block),
    /// The leaf was read from disk, and decompressed if it is stored compressed.
    Read(AlignedBuf),
}

impl OnceRead {
    /// Whether the pool had the leaf.
    pub fn is_pooled(&self) -> bool {
        matches!(self, OnceRead::Pooled(_))
    }
}

impl std::ops::Deref for OnceRead {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        match self {
            OnceRead::Pooled(block) => block,
            OnceRead::Read(buf) => buf,
        }
    }
}

/// The kind of the pages of a level in memory; level 0 is that of the leaves.
pub fn kind_of(level: u32) -> BlockKind {
    if level == 0 { BlockKind::TreeLeaf } else { BlockKind::TreeInner }
}

/// The kind that a block of this kind has in memory.
fn kind_in_memory(kind: BlockKind) -> BlockKind {
    if kind == BlockKind::TreeCompressedLeaf { BlockKind::TreeLeaf } else { kind }
}

fn keep(kind: BlockKind) -> Keep {
    if kind_in_memory(kind) == BlockKind::TreeLeaf { Keep::Short } else { Keep::Long }
}

impl PageSource {
    /// The source of the pages that `owner` owns.
    pub fn new(data: Arc<DataFile>, pool: Arc<Pool>, owner: OwnerId) -> PageSource {
        PageSource { data, pool, owner }
    }

    /// The pool, to share it.
    pub fn shared_pool(&self) -> &Arc<Pool> {
        &self.pool
    }

    /// The request for copy `copy` of a page. The first copy of an inner page is optional, because there is a second
    /// one.
    pub fn request(&self, page: &PageRef, level: u32, copy: usize) -> BlockRequest<'_> {
        let addr = page.copies().nth(copy).expect("the page has this copy");
        let optional = page.second.is_some() && copy == 0;
        debug_assert_eq!(level == 0, page.second.is_none(), "an inner page has two copies");
        BlockRequest { source: self, addr, kind: page.stored_kind(), optional }
    }

    /// Reads one copy of a page from disk, and checks it. Returns the bytes on disk.
    ///
    /// # Errors
    /// An I/O error, or [`Error::Corruption`].
    pub fn copy(&self, page: &PageRef, level: u32, copy: BlockAddr) -> Result<AlignedBuf> {
        let bytes = self.data.read(copy)?;
        let unpacked = self.unpack(&bytes, copy, page.stored_kind())?;
        self.expect(unpacked.as_ref().unwrap_or(&bytes), page, level)?;
        Ok(bytes)
    }

    /// Reads a page: the first copy that passes its checks.
    ///
    /// # Errors
    /// The error of the last copy, if all copies are damaged. An I/O error.
    pub fn page(&self, page: &PageRef, level: u32) -> Result<Block> {
        let last = usize::from(page.second.is_some());
        for copy in 0..last {
            if let Some(block) = self.request(page, level, copy).load()?
                && self.expect(&block, page, level).is_ok()
            {
                return Ok(block);
            }
        }
        let block = self.request(page, level, last).load()?.expect("the last copy is not optional");
        self.expect(&block, page, level)?;
        Ok(block)
    }

    /// The error for a page that contradicts its parent.
    pub fn corrupt(&self, page: &PageRef, detail: &str) -> Error {
        let kind = if page.second.is_some() { BlockKind::TreeInner } else { BlockKind::TreeLeaf };
        self.data.corrupt(page.addr, kind.name(), detail)
    }

    /// The children of an inner page whose keys are in the range from `from` to `to` (`None`: no end).
    ///
    /// # Errors
    /// [`Error::Corruption`] if a separator is outside this range. As [`PageSource::page`].
    pub fn children(&self, page: &PageRef, level: u32, from: &[u8], to: Option<&[u8]>) -> Result<Vec<Child>> {
        let children = page.inner(&self.page(page, level)?).children(from);
        // A leaf that continues the messages of a key has the smallest key above it as its bound.
        let is_above = |child: &Child| match (to, child.page.is_continued) {
            (None, _) => false,
            (Some(to), true) => child.from.as_slice() > to,
            (Some(to), false) => child.from.as_slice() >= to,
        };
        let is_below = children.get(1).is_some_and(|child| child.from.as_slice() < from);
        if is_below || children.len() > 1 && children.last().is_some_and(is_above) {
            return Err(self.corrupt(page, "a separator outside the page's keys"));
        }
        Ok(children)
    }

    /// Checks that a block is the page that its parent refers to.
    ///
    /// # Errors
    /// [`Error::Corruption`] if another job wrote the block, or if it is of another level or length.
    #[inline]
    pub fn expect(&self, block: &[u8], page: &PageRef, level: u32) -> Result<()> {
        // The field is at the same place in leaves and inner pages.
        let mark = u32::from_le_bytes([block[28], block[29], block[30], block[31]]);
        let is_right = seeded!(TreeMarkIgnored: true, mark == page.mark) && block.len() == page.memory_bytes();
        if is_right && (level == 0 || page.inner(block).level() == level) {
            return Ok(());
        }
        let kind = kind_of(level);
        let detail = "an older page, or one of another level or length, is at this address";
        Err(self.data.corrupt(page.addr, kind.name(), detail))
    }

    /// Checks bytes that were read from `addr`. Returns the page in memory if it differs from these bytes, because it
    /// is compressed on disk.
    ///
    /// # Errors
    /// [`Error::Corruption`] if the bytes are not a valid page of this kind and owner.
    fn unpack(&self, bytes: &[u8], addr: BlockAddr, kind: BlockKind) -> Result<Option<AlignedBuf>> {
        self.data.check_block(bytes, addr, self.owner, kind)?;
        let checked = match kind {
            BlockKind::TreeLeaf => Leaf::check(bytes).map(|_| None),
            BlockKind::TreeInner => Inner::check(bytes).map(|_| None),
            BlockKind::TreeCompressedLeaf => unpack_leaf(bytes).map(Some),
            _ => Err("not a page of a tree"),
        };
        checked.map_err(|flaw| self.data.corrupt(addr, kind.name(), flaw))
    }

    /// Checks that a block from the pool has the requested kind and length on disk.
    fn expect_kind(&self, block: &Block, addr: BlockAddr, kind: BlockKind) -> Result<()> {
        let kind = kind_in_memory(kind);
        if stored_pages(block) == addr.pages && block[4] == kind as u8 {
            return Ok(());
        }
        let detail = format!("the block there has {} pages, kind {}", stored_pages(block), block[4]);
        Err(self.data.corrupt(addr, kind.name(), detail))
    }

    /// A leaf that is read once, if the pool has it. Does not count as a use of the leaf.
    pub fn pooled_leaf(&self, page: &PageRef) -> Option<OnceRead> {
        let block = self.pool.glance(self.owner, page.addr.page)?;
        let is_it =
            self.expect_kind(&block, page.addr, BlockKind::TreeLeaf).and_then(|()| self.expect(&block, page, 0));
        is_it.is_ok().then(|| OnceRead::Pooled(block.keep()))
    }

    /// A leaf for a job, which reads each leaf once: from the pool if it is there, else from disk without caching it.
    ///
    /// # Errors
    /// As [`PageSource::page`].
    pub fn leaf_once(&self, page: &PageRef) -> Result<OnceRead> {
        match self.pooled_leaf(page) {
            Some(leaf) => Ok(leaf),
            None => self.check_once(self.data.read(page.addr)?, page),
        }
    }

    /// Checks a leaf that was read without the pool, and decompresses it if it is stored compressed.
    ///
    /// # Errors
    /// [`Error::Corruption`] if it is not the leaf that `page` refers to.
    pub fn check_once(&self, buf: AlignedBuf, page: &PageRef) -> Result<OnceRead> {
        let leaf = self.unpack(&buf, page.addr, page.stored_kind())?.unwrap_or(buf);
        self.expect(&leaf, page, 0)?;
        Ok(OnceRead::Read(leaf))
    }
}

/// Decompresses a compressed leaf whose checksum was right, and checks the result.
///
/// # Errors
/// A description of the flaw.
pub fn unpack_leaf(stored: &[u8]) -> std::result::Result<AlignedBuf, &'static str> {
    let mut leaf = AlignedBuf::zeroed(unpacked_pages(stored, MOST_TREE_PAGES)?);
    unpack_into(stored, BlockKind::TreeLeaf, &mut leaf)?;
    Leaf::check(&leaf)?;
    Ok(leaf)
}

impl BlockSource for PageSource {
    #[inline]
    fn owner(&self) -> OwnerId {
        self.owner
    }

    fn data(&self) -> &Arc<DataFile> {
        &self.data
    }

    fn pool(&self) -> &Pool {
        &self.pool
    }

    fn cached(&self, addr: BlockAddr, kind: BlockKind) -> Result<Option<Block>> {
        let block = self.pool.peek(self.owner, addr.page);
        block.map(|block| self.expect_kind(&block, addr, kind).map(|()| block)).transpose()
    }

    fn admit(&self, read: BlockAddr, buf: Result<AlignedBuf>, addr: BlockAddr, kind: BlockKind) -> Result<Block> {
        debug_assert_eq!(read, addr, "pages are read one by one");
        let bytes = buf?;
        let page = self.unpack(&bytes, addr, kind)?.unwrap_or(bytes);
        let block = self.pool.insert(self.owner, addr, keep(kind), &page);
        self.expect_kind(&block, addr, kind)?;
        Ok(block)
    }
}
