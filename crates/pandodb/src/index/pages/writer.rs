//! [`TreeWriter`]: writes new pages of a tree to fresh space, and remembers the pages that they replace.
//!
//! ```text
//!   leaves        ──▶ one stream of large writes; compressed if the index asks for it and this saves a page
//!   inner pages   ──▶ two copies, at least an extent apart, written at once
//! ```
//!
//! A job writes pages in key order, so neighbouring leaves are neighbours in the file until a later job rewrites some
//! of them. A writer that is dropped before [`TreeWriter::finish`] frees everything that it wrote.

use std::sync::Arc;

use super::inner::{Child, encode, pages_for, totals_of};
use super::reference::{PageRef, Root, Totals};
use super::source::PageSource;
use crate::base::{BlobRef, BlockAddr, Entry, Extent, Kind, OwnerId, PageNo, Result};
use crate::blocks::BlockSource;
use crate::device::AlignedBuf;
use crate::pool::{Keep, Pool};
use crate::run::pages::PageWriter;
use crate::run::slots::CONTINUED;
use crate::run::{Compression, Compressor, LeafBuilder};
use crate::space::{BlockKind, DataFile};

/// Writes the pages of one job.
pub struct TreeWriter {
    leaves: PageWriter,
    /// Compresses leaves; `None` if leaves are stored uncompressed.
    compressor: Option<Box<Compressor>>,
    /// The inner pages that were written.
    inners: Written,
    mark: u32,
    written: u64,
    leaf_count: u64,
    /// The memory for an inner page.
    buffer: AlignedBuf,
}

/// Pages that a job has written. They are freed when this object is dropped, unless [`Written::keep`] is called.
pub struct Written {
    data: Arc<DataFile>,
    pool: Arc<Pool>,
    owner: OwnerId,
    extents: Vec<Extent>,
    bytes: u64,
    /// Whether a superblock may reach the pages.
    is_described: bool,
}

impl Written {
    /// All pages that were written.
    pub fn extents(&self) -> &[Extent] {
        &self.extents
    }

    /// The bytes of these pages.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Says that a superblock may reach the pages from now on, although they are not published. If they are freed, they
    /// are not reused before other superblocks were written.
    pub fn set_described(&mut self) {
        self.is_described = true;
    }

    /// Keeps the pages, because a published root reaches them.
    pub fn keep(&mut self) {
        self.extents.clear();
    }
}

impl Drop for Written {
    fn drop(&mut self) {
        for extent in self.extents.drain(..) {
            // The next job of this tree may write other pages to the same addresses.
            (extent.start.0..extent.end()).for_each(|page| self.pool.forget(self.owner, PageNo(page)));
            if self.is_described { self.data.free(extent) } else { self.data.discard(extent) }
        }
    }
}

/// The sums over the entries of a leaf, which are in order.
pub fn totals_of_entries<'a>(entries: impl Iterator<Item = Entry<'a>>) -> Totals {
    let mut totals = Totals::default();
    let mut last: Option<&[u8]> = None;
    for entry in entries {
        totals.entries += 1;
        totals.deletes += u64::from(entry.kind == Kind::Delete);
        totals.older += u64::from(last == Some(entry.key));
        totals.newest = totals.newest.max(entry.seqno);
        let mut bytes = (entry.key.len() + entry.value.len()) as u64;
        if entry.kind == Kind::BlobPut {
            totals.large_values += 1;
            bytes += BlobRef::decode(entry.value).map_or(0, |blob| blob.len);
        }
        totals.bytes += bytes;
        last = Some(entry.key);
    }
    totals
}

impl TreeWriter {
    /// The writer of the job with the identity `job`. `expected_bytes` of leaves is a hint for allocation. Without it,
    /// the writer allocates no page before it needs it.
    pub fn new(source: &PageSource, job: OwnerId, expected_bytes: Option<u64>) -> TreeWriter {
        let (data, pool, owner) = (source.data().clone(), source.shared_pool().clone(), source.owner());
        let leaves = PageWriter::new(data.clone(), owner, expected_bytes.unwrap_or(0));
        let mut leaves = if expected_bytes.is_none() { leaves.frugal() } else { leaves };
        leaves.cache_in(pool.clone());
        #[expect(clippy::cast_possible_truncation, reason = "a mark is the low half of an identity")]
        let mark = job.0 as u32;
        let inners = Written { data, pool, owner, extents: Vec::new(), bytes: 0, is_described: false };
        let buffer = AlignedBuf::default();
        TreeWriter { leaves, compressor: None, inners, mark, written: 0, leaf_count: 0, buffer }
    }

    /// Sets the compression of leaves. To be called before the first leaf.
    #[must_use]
    pub fn with_compression(mut self, compression: Compression) -> TreeWriter {
        assert_eq!(self.leaf_count, 0, "the compression is set before the first leaf");
        self.compressor = (compression == Compression::Lz4).then(Box::default);
        self
    }

    /// Bytes that were written.
    pub fn written(&self) -> u64 {
        self.written
    }

    /// Leaves that were written.
    pub fn leaf_count(&self) -> u64 {
        self.leaf_count
    }

    /// Writes a leaf. A warm leaf is also offered to the pool. `flags` are those of [`LeafBuilder::encode`].
    ///
    /// # Errors
    /// An I/O error or a full disk.
    pub fn leaf(&mut self, leaf: &LeafBuilder, flags: u16, is_warm: bool) -> Result<PageRef> {
        assert!(!leaf.is_empty(), "a leaf has entries");
        let (mark, memory_pages) = (self.mark, leaf.pages());
        let addr = match self.compressed_leaf(leaf, flags, is_warm)? {
            Some(addr) => addr,
            None => {
                let fill = |block: &mut [u8]| leaf.encode(block, mark, flags);
                let addr = self.leaves.append(memory_pages, BlockKind::TreeLeaf, fill)?.addr;
                if is_warm {
                    self.leaves.offer_last(addr, Keep::Short);
                }
                addr
            }
        };
        self.written += addr.bytes() as u64;
        self.leaf_count += 1;
        let is_continued = flags & CONTINUED != 0;
        let totals = totals_of_entries(leaf.entries());
        Ok(PageRef { addr, memory_pages, second: None, mark, is_continued, totals })
    }

    /// Writes a leaf compressed, if leaves are to be compressed and this saves a page.
    fn compressed_leaf(&mut self, leaf: &LeafBuilder, flags: u16, is_warm: bool) -> Result<Option<BlockAddr>> {
        let Some(compressor) = &mut self.compressor else { return Ok(None) };
        let Some(pages) = compressor.compress_page(leaf, self.mark, flags) else { return Ok(None) };
        let addr = self.leaves.append(pages, BlockKind::TreeCompressedLeaf, |block| compressor.fill(block))?.addr;
        if is_warm {
            self.leaves.offer(addr, Keep::Short, compressor.in_memory(BlockKind::TreeLeaf));
        }
        Ok(Some(addr))
    }

    /// Writes both copies of an inner page with these children and this buffer.
    ///
    /// # Errors
    /// An I/O error or a full disk.
    pub fn inner(&mut self, children: &[Child], buffer: Option<&Root>, level: u32) -> Result<PageRef> {
        let (pages, mark) = (pages_for(children, buffer), self.mark);
        let Written { data, pool, owner, extents, .. } = &mut self.inners;
        let first = data.alloc(pages)?;
        extents.push(first);
        let second = data.alloc_apart(pages, first)?;
        extents.push(second);
        let mut buf = std::mem::take(&mut self.buffer);
        if buf.pages() != pages as usize {
            buf = AlignedBuf::zeroed(pages as usize);
        }
        encode(children, buffer, level, mark, &mut buf);
        for extent in [first, second] {
            let addr = BlockAddr { page: extent.start, pages };
            data.seal_block(&mut buf, addr, *owner, BlockKind::TreeInner);
            if extent == first {
                pool.offer(*owner, addr, Keep::Long, &buf);
            }
            buf = data.write(addr.page, buf)?;
            self.written += addr.bytes() as u64;
        }
        self.buffer = buf;
        let (addr, totals) = (BlockAddr { page: first.start, pages }, totals_of(children, buffer));
        Ok(PageRef { addr, memory_pages: pages, second: Some(second.start), mark, is_continued: false, totals })
    }

    /// Writes what is still in memory. The pages belong to the caller from now on.
    ///
    /// # Errors
    /// An I/O error or a full disk. All pages are freed.
    pub fn finish(self) -> Result<Written> {
        let TreeWriter { leaves, mut inners, written, .. } = self;
        inners.extents.extend(leaves.finish()?);
        inners.bytes = written;
        Ok(inners)
    }
}
