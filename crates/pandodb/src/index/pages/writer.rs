//! [`TreeWriter`]: writes new pages of a tree to fresh space, and remembers the pages that they replace.
//!
//! ```text
//!   leaves        ──▶ one stream of large writes
//!   inner pages   ──▶ two streams, one for each copy
//! ```
//!
//! A job writes pages in key order, so neighbouring leaves are neighbours in the file until a later job rewrites some of
//! them. A writer that is dropped before [`TreeWriter::finish`] frees everything that it wrote.

use std::sync::Arc;

use super::inner::{Child, encode, pages_for, totals_of};
use super::reference::{PageRef, Totals};
use super::source::PageSource;
use crate::base::{BlobRef, BlockAddr, Entry, Extent, Kind, OwnerId, PAGE, PageNo, Result};
use crate::blocks::BlockSource;
use crate::pool::{Keep, Pool};
use crate::run::LeafBuilder;
use crate::run::pages::PageWriter;
use crate::run::slots::CONTINUED;
use crate::space::{BlockKind, DataFile};

/// Writes the pages of one job.
pub struct TreeWriter {
    leaves: PageWriter,
    /// The streams of the first and of the second copies of inner pages.
    inners: [PageWriter; 2],
    mark: u32,
    written: u64,
    leaf_count: u64,
    data: Arc<DataFile>,
    pool: Arc<Pool>,
    owner: OwnerId,
}

/// Pages that a job has written. They are freed when this object is dropped, unless [`Written::keep`] is called.
pub struct Written {
    data: Arc<DataFile>,
    pool: Arc<Pool>,
    owner: OwnerId,
    extents: Vec<Extent>,
    bytes: u64,
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
            self.data.discard(extent);
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
        let stream = |bytes: Option<u64>| {
            let stream = PageWriter::new(source.data().clone(), source.owner(), bytes.unwrap_or(0));
            let mut stream = if bytes.is_none() { stream.frugal() } else { stream };
            stream.cache_in(source.shared_pool().clone());
            stream
        };
        #[expect(clippy::cast_possible_truncation, reason = "a mark is the low half of an identity")]
        let mark = job.0 as u32;
        TreeWriter {
            leaves: stream(expected_bytes),
            inners: [stream(None), stream(None)],
            mark,
            written: 0,
            leaf_count: 0,
            data: source.data().clone(),
            pool: source.shared_pool().clone(),
            owner: source.owner(),
        }
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
        let fill = |block: &mut [u8]| leaf.encode(block, self.mark, flags);
        let addr = self.leaves.append(leaf.pages(), BlockKind::TreeLeaf, fill)?.addr;
        if is_warm {
            self.leaves.offer_last(addr, Keep::Short);
        }
        self.written += addr.bytes() as u64;
        self.leaf_count += 1;
        let is_continued = flags & CONTINUED != 0;
        Ok(PageRef { addr, second: None, mark: self.mark, is_continued, totals: totals_of_entries(leaf.entries()) })
    }

    /// Writes both copies of an inner page.
    ///
    /// # Errors
    /// An I/O error or a full disk.
    pub fn inner(&mut self, children: &[Child], level: u32) -> Result<PageRef> {
        let (pages, mark) = (pages_for(children), self.mark);
        let mut copies = [BlockAddr::default(); 2];
        for (stream, copy) in self.inners.iter_mut().zip(&mut copies) {
            let fill = |block: &mut [u8]| encode(children, level, mark, block);
            *copy = stream.append(pages, BlockKind::TreeInner, fill)?.addr;
            self.written += u64::from(pages) * PAGE as u64;
        }
        let [addr, second] = copies;
        Ok(PageRef { addr, second: Some(second.page), mark, is_continued: false, totals: totals_of(children) })
    }

    /// Writes what is still in memory. The pages belong to the caller from now on.
    ///
    /// # Errors
    /// An I/O error or a full disk. All pages are freed.
    pub fn finish(self) -> Result<Written> {
        let TreeWriter { leaves, inners, written, data, pool, owner, .. } = self;
        let mut written = Written { data, pool, owner, extents: Vec::new(), bytes: written };
        let mut streams: Vec<PageWriter> = [leaves].into_iter().chain(inners).collect();
        // A stream that fails frees the pages of all streams, because none of them is finished before all are flushed.
        streams.iter_mut().try_for_each(PageWriter::flush)?;
        for stream in streams {
            written.extents.extend(stream.finish()?);
        }
        Ok(written)
    }
}
