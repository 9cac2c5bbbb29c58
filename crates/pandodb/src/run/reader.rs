//! [`Run`]: an open run. A `Run` loads checked blocks through the pool, finds leaves, and owns the run's pages (002
//! §3.3).
//!
//! Steps of opening: read the range tombstones and split them into fragments. Nothing else is read. If the tombstones
//! cannot be read, the run is opened nevertheless, and every reader that needs the tombstones gets the error
//! ([`Run::fragments`]).
//!
//! [`Run::open`] opens a run that was just built; this run owns all its pages. [`Run::reopen`] opens a run that a root
//! on disk refers to. When the slices of a reopened run have been restored, [`Run::take_ownership`] marks the pages
//! that the slices span in the allocation map. Before this call, the run owns nothing, so that a failed opening frees
//! nothing.
//!
//! Invariants: only checked blocks of the run are put into the pool; a page is freed only once, either when no slice
//! spans the page any more, or when the run is dropped.
//!
//! Locks: the lock of `holdings` is held only while its fields are read or changed. No other lock is taken under it:
//! pages are freed after it is released.

use std::ops::Range;
use std::sync::Arc;

use super::compressed::{is_compressed, unpack};
use super::inner::{Child, Inner};
use super::leaf::{self, Leaf};
use super::meta::RunMeta;
use super::spans::{PageRange, Spans};
use super::tombstones;
use crate::base::sync::{AtomicBool, Mutex, Ordering::Relaxed};
use crate::base::{BlockAddr, Error, Extent, Fragments, KeyRange, OwnerId, PAGE, PageNo, Result};
use crate::blocks::BlockSource;
use crate::device::AlignedBuf;
use crate::pool::{Block, Keep, Pool};
use crate::space::data::stored_pages;
use crate::space::{BlockKind, DataFile, to_usize};

/// Blocks above the leaves are read in aligned groups of this many pages. The number was chosen without measurements.
const AROUND: u64 = 32;

/// An open run. Dropping the last reference frees the run's pages.
pub struct Run {
    data: Arc<DataFile>,
    pool: Arc<Pool>,
    meta: RunMeta,
    /// The position of the first page of each extent.
    starts: Vec<u64>,
    fragments: Result<Arc<Fragments>>,
    /// Whether a group of blocks could not be read or failed its checks. From then on, each block is read alone.
    alone: AtomicBool,
    holdings: Mutex<Holdings>,
}

/// The pages that the run owns.
#[derive(Debug)]
struct Holdings {
    /// Whether the run's pages are marked as used in the allocation map, so that they are freed with the run.
    settled: bool,
    spans: Spans,
}

impl std::fmt::Debug for Run {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Run({}, {} entries, {} pages)", self.meta.id, self.meta.entries(), self.meta.pages())
    }
}

impl Run {
    /// Opens a run that was just built: it owns all its pages.
    ///
    /// # Errors
    /// An I/O error or [`Error::Corruption`] if the run's range tombstones cannot be read. In this case, the run's
    /// pages are not freed.
    pub fn open(data: Arc<DataFile>, pool: Arc<Pool>, meta: RunMeta) -> Result<Arc<Run>> {
        let run = Run::reopen(data, pool, meta);
        run.fragments()?;
        run.holdings.lock().settled = true;
        Ok(run)
    }

    /// Opens a run of an existing store. The run owns nothing before [`Run::take_ownership`] is called.
    pub fn reopen(data: Arc<DataFile>, pool: Arc<Pool>, meta: RunMeta) -> Arc<Run> {
        let starts = meta.extents.iter().scan(0, |next, extent| {
            let start = *next;
            *next += u64::from(extent.pages);
            Some(start)
        });
        let starts = starts.collect();
        let fragments = tombstones::read(&data, &meta).map(|ranges| Arc::new(Fragments::build(&ranges)));
        debug_assert!(meta.leaf_pages <= meta.pages(), "the decoder and the builder check this");
        let holdings = Holdings { settled: false, spans: Spans::new(meta.leaf_pages) };
        let alone = AtomicBool::new(false);
        pool.hold(description_bytes(&meta));
        Arc::new(Run { data, pool, starts, fragments, alone, holdings: Mutex::new(holdings), meta })
    }

    /// The run's description.
    pub fn meta(&self) -> &RunMeta {
        &self.meta
    }

    /// The range tombstones of the run, as fragments.
    ///
    /// # Errors
    /// The error that occurred when the tombstones were read at opening. After such an error, the covered keys are
    /// unknown, so readers must not return older values.
    pub fn fragments(&self) -> Result<&Arc<Fragments>> {
        self.fragments.as_ref().map_err(Error::clone)
    }

    // ---- blocks ----

    /// Checks a block that was read, unpacks it, and caches it.
    fn check_in(&self, addr: BlockAddr, kind: BlockKind, bytes: &[u8]) -> Result<Block> {
        let mut unpacked = Vec::new();
        let bytes = if kind == BlockKind::RunLeaf {
            self.check_leaf(bytes, addr, &mut unpacked)?;
            if unpacked.is_empty() { bytes } else { &unpacked }
        } else {
            self.data.check_block(bytes, addr, self.meta.id, kind)?;
            self.check(bytes, addr, kind)?;
            bytes
        };
        let block = self.pool.insert(self.meta.id, addr, keep(kind), bytes);
        self.expect_kind(&block, addr, kind)?;
        Ok(block)
    }

    fn admit_group(&self, read: BlockAddr, buf: &[u8], addr: BlockAddr, kind: BlockKind) -> Option<Block> {
        assert_eq!(buf.len(), read.bytes(), "the buffer has the pages that were read");
        assert!(read.page <= addr.page, "the requested block is one of those read");
        let asked = &buf[to_usize(addr.page.0 - read.page.0) * PAGE..][..addr.bytes()];
        let block = self.check_in(addr, kind, asked).ok()?;
        let mut page = 0;
        while page < read.pages {
            let rest = &buf[page as usize * PAGE..];
            page += self.offer(rest, PageNo(read.page.0 + u64::from(page)), addr).unwrap_or(1);
        }
        Some(block)
    }

    /// Caches the block that begins at `page`, if this block is valid and is not the requested block `asked`. Returns
    /// the block's number of pages; `None` if no inner or filter block begins at `page`.
    fn offer(&self, bytes: &[u8], page: PageNo, asked: BlockAddr) -> Option<u32> {
        let (kind, pages) = self.data.claimed(bytes);
        let kind = kind.filter(|kind| [BlockKind::RunInner, BlockKind::RunFilter].contains(kind))?;
        let addr = BlockAddr { page, pages };
        let bytes = bytes.get(..addr.bytes()).filter(|bytes| !bytes.is_empty())?;
        if addr != asked {
            self.data.check_block(bytes, addr, self.meta.id, kind).ok()?;
            self.check(bytes, addr, kind).ok()?;
            self.pool.offer(self.meta.id, addr, Keep::Long, bytes);
        }
        Some(pages)
    }

    /// The pages to read when an inner or filter block is requested: the block together with its neighbours of the same
    /// kind. `None` if the block has no such neighbours.
    fn around(&self, addr: BlockAddr) -> Option<BlockAddr> {
        let mut extents = self.starts.iter().zip(&self.meta.extents);
        let end = addr.page.0 + u64::from(addr.pages);
        let (&start, extent) = extents.find(|(_, extent)| extent.start <= addr.page && end <= extent.end())?;
        let position = start + (addr.page.0 - extent.start.0);
        let above = self.meta.above_leaves();
        // Do not read inner and filter blocks together, because searches that use a maplet may not need the filter.
        let first = self.meta.filter.first.max(above.start).min(above.end);
        let same = if position < first { above.start..first } else { first..above.end };
        let group = position / AROUND * AROUND;
        let (from, to) = (same.start.max(start).max(group), same.end.min(start + u64::from(extent.pages)));
        let to = to.min((group + AROUND).max(position + u64::from(addr.pages)));
        if position < from || position + u64::from(addr.pages) > to || to - from <= u64::from(addr.pages) {
            return None;
        }
        let pages = u32::try_from(to - from).expect("the group is inside an extent");
        let around = BlockAddr { page: PageNo(extent.start.0 + from - start), pages };
        debug_assert!(around.page <= addr.page && end <= around.page.0 + u64::from(pages), "the group has the block");
        Some(around)
    }

    /// Caches a leaf that a scan read without the pool, if the rules for scans allow it ([`Pool::insert_scanned`]).
    /// `bytes` are checked and uncompressed.
    pub(super) fn cache_scanned(&self, addr: BlockAddr, long: bool, bytes: &[u8]) {
        debug_assert!(bytes.len() >= addr.bytes(), "a leaf in memory is at least as long as on disk");
        debug_assert_eq!(stored_pages(bytes), addr.pages, "the leaf has the length that its header states");
        self.pool.insert_scanned(self.meta.id, addr, long, bytes);
    }

    /// Returns the leaf at `page` if the pool has it. With `hit`, the leaf stays in the pool longer.
    pub(super) fn peek_leaf(&self, page: PageNo, hit: bool) -> Option<Block> {
        let block = if hit { self.pool.peek(self.meta.id, page) } else { self.pool.glance(self.meta.id, page) }?;
        let addr = BlockAddr { page, pages: stored_pages(&block) };
        self.expect_kind(&block, addr, BlockKind::RunLeaf).is_ok().then_some(block)
    }

    /// Reads a block without the pool, and checks everything except the level of an inner block.
    pub(super) fn read_checked(&self, addr: BlockAddr, kind: BlockKind) -> Result<AlignedBuf> {
        let buf = self.data.read_block(addr, self.meta.id, kind)?;
        self.check(&buf, addr, kind)?;
        Ok(buf)
    }

    /// Reads pages bypassing the pool, unchecked.
    pub(super) fn read(&self, addr: BlockAddr) -> Result<AlignedBuf> {
        self.data.read(addr)
    }

    /// Checks a leaf that was read. If the leaf in memory differs from the leaf on disk, `unpacked` becomes the leaf in
    /// memory. This is so for a compressed leaf, and for a leaf of a sorted load, whose entries get their seqno here.
    /// Otherwise `unpacked` becomes empty, and `bytes` are the leaf. After an error, `unpacked` is empty.
    pub(super) fn check_leaf(&self, bytes: &[u8], addr: BlockAddr, unpacked: &mut Vec<u8>) -> Result<()> {
        unpacked.clear();
        if is_compressed(bytes) {
            self.data.check_block(bytes, addr, self.meta.id, BlockKind::RunCompressedLeaf)?;
            let kind = BlockKind::RunCompressedLeaf.name();
            unpack(bytes, unpacked).map_err(|flaw| self.data.corrupt(addr, kind, flaw))?;
        } else {
            self.data.check_block(bytes, addr, self.meta.id, BlockKind::RunLeaf)?;
        }
        // The leaf is checked with its final seqnos, because the accessors of a leaf rely on seqnos within bounds.
        if let Some(at) = self.meta.stamp()
            && leaf::is_unassigned(if unpacked.is_empty() { bytes } else { unpacked })
        {
            if unpacked.is_empty() {
                unpacked.extend_from_slice(bytes);
            }
            leaf::stamp(unpacked, at);
        }
        if unpacked.is_empty() {
            return self.check(bytes, addr, BlockKind::RunLeaf);
        }
        self.check(unpacked, addr, BlockKind::RunLeaf).inspect_err(|_| unpacked.clear())
    }

    /// Checks that a block from the pool has the requested kind and length. The pool finds a block by its owner and
    /// first page alone, so a damaged reference may lead to a block of another kind or length.
    fn expect_kind(&self, block: &Block, addr: BlockAddr, kind: BlockKind) -> Result<()> {
        if stored_pages(block) == addr.pages && block[4] == kind as u8 {
            return Ok(());
        }
        Err(self.data.corrupt(
            addr,
            kind.name(),
            format!("the block there has {} pages, kind {}", stored_pages(block), block[4]),
        ))
    }

    /// Checks the structure of a block whose checksum was correct.
    fn check(&self, bytes: &[u8], addr: BlockAddr, kind: BlockKind) -> Result<()> {
        let checked = match kind {
            BlockKind::RunLeaf => Leaf::check(bytes).map(drop),
            BlockKind::RunInner => Inner::check(bytes).map(drop),
            BlockKind::RunFilter if bytes.len() == PAGE => Ok(()),
            _ => Err("not a block that lookups read"),
        };
        checked.map_err(|flaw| self.data.corrupt(addr, kind.name(), flaw))
    }

    // ---- places ----

    /// The extent that contains a position. Returns the positions of the extent's pages, and its first page.
    pub(super) fn extent_at(&self, position: u64) -> Result<(PageRange, PageNo)> {
        let at = self.starts.partition_point(|&start| start <= position);
        let found = at.checked_sub(1).map(|at| (self.starts[at], self.meta.extents[at]));
        match found {
            Some((start, extent)) if position < start + u64::from(extent.pages) => {
                Ok((start..start + u64::from(extent.pages), extent.start))
            }
            _ => Err(self.corrupt("a position beyond the run's pages")),
        }
    }

    /// The address in the file of the block at a position.
    pub(super) fn address(&self, position: u64, pages: u32) -> Result<BlockAddr> {
        let (range, page) = self.extent_at(position)?;
        if pages == 0 || u64::from(pages) > range.end - position {
            return Err(self.corrupt("a block across the end of an extent"));
        }
        Ok(BlockAddr { page: PageNo(page.0 + position - range.start), pages })
    }

    /// Creates a corruption error for the run's structure. The address of the error is the address of the run's root.
    pub(super) fn corrupt(&self, detail: &'static str) -> Error {
        self.data.corrupt(self.meta.root, "run", format!("{detail} (run {})", self.meta.id))
    }

    /// The child that `choose` selects in the inner block `block` at `level`, and the child's address.
    pub(super) fn child(
        &self,
        block: &[u8],
        level: u8,
        choose: impl FnOnce(&Inner<'_>) -> usize,
    ) -> Result<(Child, BlockAddr)> {
        let inner = Inner::of(block);
        if inner.level() != u32::from(level) {
            return Err(self.corrupt("an inner block on the wrong level"));
        }
        let child = inner.child(choose(&inner));
        if level == 1 && child.position + u64::from(child.pages) > self.meta.leaf_pages {
            return Err(self.corrupt("a leaf beyond the run's leaves"));
        }
        Ok((child, self.address(child.position, child.pages)?))
    }

    /// Walks from the root to a leaf, through the pool.
    /// REQUIRES: the run has entries.
    pub(super) fn descend(&self, mut choose: impl FnMut(&Inner<'_>) -> usize) -> Result<Child> {
        assert!(self.meta.leaf_pages > 0, "a run without entries has no leaves");
        let mut child = Child { position: 0, pages: self.meta.root.pages, leaf: 0 };
        let mut addr = self.meta.root;
        for level in (1..=self.meta.height).rev() {
            let block = self.load(addr, BlockKind::RunInner)?;
            (child, addr) = self.child(&block, level, &mut choose)?;
        }
        Ok(child)
    }

    /// The leaf that may hold `key`. If several leaves may hold it, returns the first of them.
    pub(super) fn leaf_of(&self, key: &[u8]) -> Result<Child> {
        self.descend(|inner| inner.search(key))
    }

    /// Returns at most `parts − 1` ascending keys strictly inside `range` that divide the leaf positions `pages` into
    /// parts of about equal size. Returns fewer keys if there are few leaves. Reads inner blocks through the pool.
    pub(super) fn split_keys(&self, range: &KeyRange, pages: Range<u64>, parts: usize) -> Result<Vec<Vec<u8>>> {
        let mut keys: Vec<Vec<u8>> = Vec::new();
        let Range { start: from, end: to } = pages;
        for part in 1..parts as u64 {
            let share = u128::from(to.saturating_sub(from)) * u128::from(part) / parts as u128;
            let target = from + u64::try_from(share).expect("a share of a number of 64 bits");
            if target <= from {
                continue;
            }
            let mut key = Vec::new();
            let mut separator = Vec::new();
            self.descend(|inner| {
                let at = inner.search_leaf(target);
                if at > 0 {
                    inner.separator(at, &mut separator);
                    std::mem::swap(&mut key, &mut separator);
                }
                at
            })?;
            let above = keys.last().map_or(&range.from, |last| last);
            if key > *above && range.is_above(&key) {
                keys.push(key);
            }
        }
        Ok(keys)
    }

    // ---- ownership ----

    /// Registers a slice that spans these leaf pages. Returns `false` if some of these pages were freed.
    pub(super) fn span(&self, span: PageRange) -> bool {
        self.holdings.lock().spans.add(span)
    }

    /// Unregisters a slice and frees the leaf pages that no slice spans any more.
    pub(super) fn release(&self, span: &PageRange) {
        let gone = {
            let mut holdings = self.holdings.lock();
            let unneeded = holdings.spans.release(span);
            // Before `take_ownership` is called, the run owns nothing, so there is nothing to free. Later,
            // `take_ownership` considers only the slices that exist at that time.
            if unneeded && holdings.settled { holdings.spans.settle() } else { Vec::new() }
        };
        debug_assert!(gone.iter().all(|range| range.end <= self.meta.leaf_pages), "only leaves are freed early");
        for extent in self.extents_of(&gone) {
            // No slice spans these pages, so no reader caches a block of them any more.
            self.pool.forget_pages(self.meta.id, extent.start.0..extent.end());
            self.data.free(extent);
        }
    }

    /// Takes ownership of the pages that slices span, and of all pages that are not leaves ([`Run::owned`]). Called
    /// after all slices were restored. Other leaf pages are free or belong to other owners. The code that opens the
    /// store marks the owned pages in the allocation map.
    ///
    /// # Panics
    /// If the run owns its pages already.
    pub fn take_ownership(&self) {
        let mut holdings = self.holdings.lock();
        assert!(!holdings.settled, "a run settles once");
        holdings.spans.settle();
        holdings.settled = true;
    }

    /// The leaf pages that slices span.
    pub(super) fn owned_leaves(&self) -> Vec<PageRange> {
        self.holdings.lock().spans.owned().to_vec()
    }

    /// The pages that the run owns: the leaf pages that slices span, and all pages that are not leaves.
    pub fn owned(&self) -> Vec<Extent> {
        self.owned_pages(&self.holdings.lock())
    }

    /// Computes the result of [`Run::owned`].
    /// REQUIRES: the caller holds the lock of `holdings`.
    fn owned_pages(&self, holdings: &Holdings) -> Vec<Extent> {
        let mut ranges = holdings.spans.owned().to_vec();
        debug_assert!(ranges.last().is_none_or(|last| last.end <= self.meta.leaf_pages), "slices span leaves");
        let rest = self.meta.leaf_pages..self.meta.pages();
        match ranges.last_mut() {
            Some(last) if last.end == rest.start => last.end = rest.end,
            _ => ranges.push(rest),
        }
        self.extents_of(&ranges)
    }

    /// The pages at these positions.
    fn extents_of(&self, ranges: &[PageRange]) -> Vec<Extent> {
        let mut out = Vec::new();
        for range in ranges {
            let first = self.starts.partition_point(|&start| start <= range.start).saturating_sub(1);
            for (start, extent) in self.starts[first..].iter().zip(&self.meta.extents[first..]) {
                let (from, to) = (range.start.max(*start), range.end.min(start + u64::from(extent.pages)));
                if from >= to {
                    break;
                }
                let pages = u32::try_from(to - from).expect("the pages are inside an extent");
                out.push(Extent { start: PageNo(extent.start.0 + from - start), pages });
            }
        }
        out
    }
}

impl BlockSource for Run {
    #[inline]
    fn owner(&self) -> OwnerId {
        self.meta.id
    }

    fn data(&self) -> &Arc<DataFile> {
        &self.data
    }

    fn pool(&self) -> &Pool {
        &self.pool
    }

    fn cached(&self, addr: BlockAddr, kind: BlockKind) -> Result<Option<Block>> {
        let block = self.pool.peek(self.meta.id, addr.page);
        block.map(|block| self.expect_kind(&block, addr, kind).map(|()| block)).transpose()
    }

    /// A block above the leaves is read with its neighbours of the same kind, as long as the pool has room for the
    /// neighbours. So a store that was just opened soon caches the blocks that all searches need, with one read for
    /// each [`AROUND`] pages.
    fn read_with(&self, addr: BlockAddr, kind: BlockKind) -> BlockAddr {
        if kind == BlockKind::RunLeaf || self.alone.load(Relaxed) {
            return addr;
        }
        self.around(addr).filter(|around| self.pool.has_room(around.bytes())).unwrap_or(addr)
    }

    fn admit(&self, read: BlockAddr, buf: Result<AlignedBuf>, addr: BlockAddr, kind: BlockKind) -> Result<Block> {
        if read == addr {
            return self.check_in(addr, kind, &buf?);
        }
        if let Some(block) = buf.ok().and_then(|buf| self.admit_group(read, &buf, addr, kind)) {
            return Ok(block);
        }
        self.alone.store(true, Relaxed);
        self.check_in(addr, kind, &self.data.read(addr)?)
    }
}

/// The retention class of a block in the pool.
fn keep(kind: BlockKind) -> Keep {
    if kind == BlockKind::RunLeaf { Keep::Short } else { Keep::Long }
}

/// The approximate memory of an open run in bytes. It includes the run's description, and the slice and the branch
/// through which a node refers to the run.
fn description_bytes(meta: &RunMeta) -> usize {
    const BESIDE: usize = 640;
    let keys = 3 * (meta.first_key.len() + meta.last_key.len());
    size_of::<Run>() + BESIDE + keys + meta.extents.len() * 2 * size_of::<Extent>()
}

impl Drop for Run {
    fn drop(&mut self) {
        self.pool.let_go(description_bytes(&self.meta));
        if self.holdings.get_mut().settled {
            for extent in self.owned() {
                self.pool.forget_pages(self.meta.id, extent.start.0..extent.end());
                self.data.free(extent);
            }
        }
    }
}
