//! [`Prefetch`]: reads several blocks concurrently, before the caller needs them one after the other.
//!
//! ```text
//!   ask(addresses) ──▶ all reads in flight together ──▶ kept by address ──read_block──▶ checked and handed out, once
//!                                                       not requested, or not readable ──▶ read by itself
//! ```
//!
//! Opening a store walks a tree from parents to children. If each block were read alone, the walk would wait for the
//! disk at each node. Reading all roots, or all children of a node, concurrently takes little longer than reading one
//! block.
//!
//! Steps: call [`Prefetch::ask`] for several blocks, then call [`Prefetch::read_block`] for each of them.
//!
//! Invariant: the result is the same as that of [`DataFile::read_block`]. A failed prefetch is ignored, because the
//! error is reported when the block is read again. Source: [decision
//! 0021](../../../../docs/decisions/0021-reads-in-flight.md).

use std::collections::HashMap;
use std::sync::Arc;

use super::data::DataFile;
use super::kind::BlockKind;
use crate::base::{BlockAddr, OwnerId, PageNo, Result};
use crate::device::{AlignedBuf, Read};

/// The most pages that one call of [`Prefetch::ask`] reads.
const MOST_PAGES: u32 = 1024;

/// A data file, and its blocks that were prefetched.
pub struct Prefetch {
    data: Arc<DataFile>,
    blocks: HashMap<PageNo, AlignedBuf>,
}

impl Prefetch {
    /// Creates an empty prefetch cache for a file.
    pub fn new(data: Arc<DataFile>) -> Prefetch {
        Prefetch { data, blocks: HashMap::new() }
    }

    /// The data file.
    pub fn data(&self) -> &Arc<DataFile> {
        &self.data
    }

    /// Reads blocks concurrently and keeps them. Skips blocks that cannot be read. Reads at most [`MOST_PAGES`] pages
    /// in total and skips the remaining blocks, because a damaged parent may refer to any number of blocks.
    pub fn ask(&mut self, addresses: &[BlockAddr]) {
        let mut reads = self.data.reads();
        let mut room = MOST_PAGES;
        for (tag, addr) in addresses.iter().enumerate() {
            let Some(left) = room.checked_sub(addr.pages) else { break };
            room = left;
            if let Ok(buf) = self.data.begin_read(*addr, AlignedBuf::default()) {
                reads.submit(Read { tag, offset: addr.page.offset(), buf });
            }
        }
        while let Some((tag, read)) = reads.complete() {
            if let Ok(buf) = read {
                assert_eq!(buf.len(), addresses[tag].bytes(), "a read returns the buffer that was submitted");
                self.blocks.insert(addresses[tag].page, buf);
            }
        }
    }

    /// Returns a checked block. A prefetched block is returned once; a second call reads the block from the file.
    ///
    /// # Errors
    /// As [`DataFile::read_block`].
    pub fn read_block(&mut self, addr: BlockAddr, owner: OwnerId, kind: BlockKind) -> Result<AlignedBuf> {
        let kept = self.blocks.remove(&addr.page).filter(|buf| buf.len() == addr.bytes());
        let Some(buf) = kept else { return self.data.read_block(addr, owner, kind) };
        self.data.check_block(&buf, addr, owner, kind)?;
        Ok(buf)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::{Extent, StoreId};
    use crate::device::mem::MemDevice;

    #[test]
    fn read_block_returns_the_same_blocks_with_and_without_prefetching() {
        let data = DataFile::create(&*MemDevice::new(), "data", StoreId([1; 16])).unwrap();
        let block = |owner: u64, pages: u32| {
            let Extent { start: page, pages } = data.alloc(pages).unwrap();
            let addr = BlockAddr { page, pages };
            let mut buf = AlignedBuf::zeroed(pages as usize);
            buf[100] = owner as u8;
            data.seal_block(&mut buf, addr, OwnerId(owner), BlockKind::TrunkNode);
            data.write(page, buf).unwrap();
            addr
        };
        let blocks: Vec<BlockAddr> = (1..20).map(|owner| block(owner, 1 + owner as u32 % 3)).collect();
        let outside = BlockAddr { page: PageNo(1 << 40), pages: 1 };
        let mut prefetch = Prefetch::new(data.clone());
        prefetch.ask(&[&blocks[..12], &[outside]].concat());
        let reads = data.stats().reads;
        for (addr, owner) in blocks.iter().zip(1..) {
            assert_eq!(prefetch.read_block(*addr, OwnerId(owner), BlockKind::TrunkNode).unwrap()[100], owner as u8);
            assert!(prefetch.read_block(*addr, OwnerId(99), BlockKind::TrunkNode).is_err(), "the owner is checked");
        }
        assert_eq!(data.stats().reads - reads, 19 + 7, "twelve blocks were prefetched");
        assert!(prefetch.read_block(outside, OwnerId(1), BlockKind::TrunkNode).is_err());
        // A block that was prefetched with another length is read again.
        let (long, short) = (blocks[1], BlockAddr { pages: 1, ..blocks[1] });
        assert!(long.pages > 1);
        prefetch.ask(&[short]);
        assert!(prefetch.read_block(long, OwnerId(2), BlockKind::TrunkNode).is_ok());
    }
}
