//! [`MirroredBlock`]: a metadata block that is written twice, so that no single fault destroys it.
//!
//! ```text
//!   parent (superblock, catalogue, trunk node) ── refers to both ──▶ copy 0 … at least one extent apart … copy 1
//!   read: the first copy that passes its checks              repair: reads both, rewrites a damaged one in place
//! ```
//!
//! Every block between the superblock and the runs is mirrored. These blocks are small compared with the data, but
//! without them no data can be found. The two copies are in extents that are not adjacent, unless the disk has too
//! little space for that. So a bad region or a misdirected write does not damage both copies. The copies have the same
//! body, but each has its own checksum, which covers the page number.
//!
//! Invariant: a single fault damages at most one copy. A damaged copy may be repaired in place although a durable root
//! refers to it, because the repair does not touch the intact copy. If the repair fails or is torn, the copy stays
//! damaged. Source: [decision 0011](../../../../docs/decisions/0011-twins-and-salvage.md).

use super::data::DataFile;
use super::kind::{BLOCK_HEADER, BlockKind, MAX_BLOCK_PAGES};
use super::prefetch::Prefetch;
use crate::base::sync::Ordering::Relaxed;
use crate::base::{BlockAddr, Error, Extent, OwnerId, PAGE, Result};
use crate::device::AlignedBuf;

/// The addresses of the two copies of a metadata block. Both have the same length.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MirroredBlock(pub [BlockAddr; 2]);

impl MirroredBlock {
    /// Writes two copies of a block with the body `body`. The copies are not durable before the next sync.
    ///
    /// # Errors
    /// [`Error::TooLarge`] if the block would be so large that it could not be read again; [`Error::DiskFull`] or an
    /// I/O error. If this call fails, no pages stay allocated.
    pub fn write(data: &DataFile, body: &[u8], owner: OwnerId, kind: BlockKind) -> Result<MirroredBlock> {
        let pages = MirroredBlock::pages_of(body.len());
        let Some(pages) = u32::try_from(pages).ok().filter(|pages| *pages <= MAX_BLOCK_PAGES) else {
            let (bytes, limit) = (body.len() as u64, u64::from(MAX_BLOCK_PAGES) * PAGE as u64 - BLOCK_HEADER as u64);
            return Err(Error::TooLarge { what: kind.name(), bytes, limit });
        };
        let first = data.alloc(pages)?;
        let second = data.alloc_apart(pages, first).inspect_err(|_| data.give_back(first))?;
        assert!(first.end() <= second.start.0 || second.end() <= first.start.0, "the copies share no page");
        let mirrored = MirroredBlock([first, second].map(|extent| BlockAddr { page: extent.start, pages }));
        let mut buf = AlignedBuf::zeroed(pages as usize);
        buf[BLOCK_HEADER..BLOCK_HEADER + body.len()].copy_from_slice(body);
        for addr in mirrored.0 {
            data.seal_block(&mut buf, addr, owner, kind);
            buf = data
                .write(addr.page, buf)
                .inspect_err(|_| [first, second].into_iter().for_each(|e| data.discard(e)))?;
            data.root_bytes.fetch_add(addr.bytes() as u64, Relaxed);
        }
        data.mirrored_bytes.fetch_add(mirrored.bytes(), Relaxed);
        Ok(mirrored)
    }

    /// The number of pages of each copy of a block with a body of `body` bytes.
    pub fn pages_of(body: usize) -> usize {
        (BLOCK_HEADER + body).div_ceil(PAGE)
    }

    /// Returns the first copy that passes its checks.
    ///
    /// # Errors
    /// The error of the first copy, if both copies are damaged.
    pub fn read(&self, blocks: &mut Prefetch, owner: OwnerId, kind: BlockKind) -> Result<AlignedBuf> {
        let mut copy = |addr| blocks.read_block(addr, owner, kind);
        copy(self.0[0]).or_else(|first| copy(self.0[1]).map_err(|_| first))
    }

    /// Like [`MirroredBlock::read`], but reads both copies, and rewrites a damaged copy from the intact one.
    ///
    /// # Errors
    /// As [`MirroredBlock::read`]. A failure to rewrite a copy is ignored, because the intact copy is enough.
    pub fn repair(&self, blocks: &mut Prefetch, owner: OwnerId, kind: BlockKind) -> Result<AlignedBuf> {
        let [first, second] = self.0.map(|addr| blocks.read_block(addr, owner, kind));
        let (whole, damaged) = match (first, second) {
            (Ok(buf), Ok(_)) => return Ok(buf),
            (Ok(buf), Err(_)) => (buf, self.0[1]),
            (Err(_), Ok(buf)) => (buf, self.0[0]),
            (Err(first), Err(_)) => return Err(first),
        };
        assert_eq!(whole.len(), damaged.bytes(), "both copies have the same length");
        let mut copy = AlignedBuf::from_bytes(&whole);
        let data = blocks.data();
        data.seal_block(&mut copy, damaged, owner, kind);
        let _ = data.write(damaged.page, copy);
        Ok(whole)
    }

    /// The pages of both copies.
    pub fn extents(&self) -> [Extent; 2] {
        self.0.map(|addr| Extent { start: addr.page, pages: addr.pages })
    }

    /// The bytes of both copies on disk.
    fn bytes(&self) -> u64 {
        self.0.iter().map(|addr| addr.bytes() as u64).sum()
    }

    /// Frees both copies; see [`DataFile::free`].
    pub fn free(&self, data: &DataFile) {
        data.mirrored_bytes.fetch_sub(self.bytes(), Relaxed);
        self.extents().into_iter().for_each(|extent| data.free(extent));
    }

    /// Marks both copies as used; see [`DataFile::mark`].
    ///
    /// # Errors
    /// [`crate::Error::Corruption`] if the pages are beyond the file or are marked already.
    pub fn mark(&self, data: &DataFile) -> Result<()> {
        self.extents().into_iter().try_for_each(|extent| data.mark(extent))?;
        self.adopt(data);
        Ok(())
    }

    /// Adds both copies to the count of mirrored blocks that roots reach. Called for each block that is read when a
    /// store is opened. The pages of the block are marked separately.
    pub fn adopt(&self, data: &DataFile) {
        data.mirrored_bytes.fetch_add(self.bytes(), Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::{EXTENT_PAGES, StoreId};
    use crate::device::mem::MemDevice;

    const OWNER: OwnerId = OwnerId(7);

    fn damage(data: &DataFile, addr: BlockAddr) {
        data.write(addr.page, AlignedBuf::from_bytes(&[0xA5; PAGE])).unwrap();
    }

    fn sample(len: usize) -> (std::sync::Arc<DataFile>, MirroredBlock) {
        let data = DataFile::create(&*MemDevice::new(), "data", StoreId([1; 16])).unwrap();
        let mirrored = MirroredBlock::write(&data, &vec![9; len], OWNER, BlockKind::TrunkNode).unwrap();
        (data, mirrored)
    }

    #[test]
    fn the_copies_are_at_least_an_extent_apart() {
        for len in [10, 5_000, 40 * PAGE, 100 * PAGE] {
            let (data, _) = sample(3);
            for _ in 0..20 {
                let mirrored = MirroredBlock::write(&data, &vec![9; len], OWNER, BlockKind::TrunkNode).unwrap();
                let size = u64::from(EXTENT_PAGES);
                let [a, b] = mirrored.extents().map(|extent| (extent.start.0 / size, extent.end().div_ceil(size)));
                assert!(a.1 < b.0 || b.1 < a.0, "{mirrored:?}: a whole extent is between the copies");
            }
        }
    }

    #[test]
    fn a_block_that_no_opening_accepts_is_refused_before_anything_is_allocated() {
        let (data, _) = sample(3);
        let before = data.stats().allocated_bytes;
        let limit = MAX_BLOCK_PAGES as usize * PAGE - BLOCK_HEADER;
        let refused = MirroredBlock::write(&data, &vec![0; limit + 1], OWNER, BlockKind::LevelTable).unwrap_err();
        assert_eq!(refused, Error::TooLarge { what: "level table", bytes: limit as u64 + 1, limit: limit as u64 });
        assert!(refused.to_string().contains("compact"), "{refused}");
        assert_eq!(data.stats().allocated_bytes, before);
    }

    #[test]
    fn either_copy_can_be_read_and_a_damaged_one_is_repaired() {
        for hit in 0..2 {
            let (data, mirrored) = sample(5_000);
            damage(&data, mirrored.0[hit]);
            let blocks = &mut Prefetch::new(data.clone());
            let body = |buf: AlignedBuf| buf[BLOCK_HEADER..][..5_000].to_vec();
            assert_eq!(mirrored.read(blocks, OWNER, BlockKind::TrunkNode).map(body).unwrap(), [9; 5_000]);
            assert_eq!(mirrored.repair(blocks, OWNER, BlockKind::TrunkNode).map(body).unwrap(), [9; 5_000]);
            damage(&data, mirrored.0[1 - hit]);
            assert_eq!(
                mirrored.read(blocks, OWNER, BlockKind::TrunkNode).map(body).unwrap(),
                [9; 5_000],
                "the repaired copy can be read"
            );
            damage(&data, mirrored.0[hit]);
            assert!(mirrored.read(blocks, OWNER, BlockKind::TrunkNode).is_err());
            assert!(mirrored.repair(blocks, OWNER, BlockKind::TrunkNode).is_err());
        }
    }

    #[test]
    fn both_copies_are_freed() {
        let (data, mirrored) = sample(100);
        assert!(mirrored.extents().into_iter().all(|extent| data.is_taken(extent)));
        let before = data.stats().quarantined_bytes;
        mirrored.free(&data);
        assert_eq!(data.stats().quarantined_bytes, before + 2 * PAGE as u64);
    }
}
