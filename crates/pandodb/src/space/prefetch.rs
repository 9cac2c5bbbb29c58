//! [`Prefetch`]: blocks that are read together before they are needed one after the other.
//!
//! ```text
//!   ask(addresses) ──▶ all reads in flight together ──▶ kept by address ──read_block──▶ checked and handed out, once
//!                                                       not asked for, or not readable ──▶ read by itself
//! ```
//!
//! An opening walks a tree from parents to children. With each read by itself it waits for the disk once for every node; asked
//! for together, all roots and all children of a node take little longer than one.
//!
//! Invariant: what comes out is what [`DataFile::read_block`] gives. A read that fails here is forgotten, and told when it is tried again.

use std::collections::HashMap;
use std::sync::Arc;

use super::data::{BlockKind, DataFile};
use crate::base::{BlockAddr, OwnerId, PageNo, Result};
use crate::device::{AlignedBuf, Read};

/// Pages that are asked for at once.
const MOST_PAGES: u32 = 1024;

/// Blocks of a data file, some of which were read already.
pub struct Prefetch {
    data: Arc<DataFile>,
    blocks: HashMap<PageNo, AlignedBuf>,
}

impl Prefetch {
    /// Nothing was asked for yet.
    pub fn new(data: Arc<DataFile>) -> Prefetch {
        Prefetch { data, blocks: HashMap::new() }
    }

    /// The file.
    pub fn data(&self) -> &Arc<DataFile> {
        &self.data
    }

    /// Reads blocks together and keeps them. What cannot be read is left out, and what is too much: a damaged parent may name anything.
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
                self.blocks.insert(addresses[tag].page, buf);
            }
        }
    }

    /// A block, checked. It is handed out once.
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
    fn blocks_are_those_that_the_file_holds_whether_asked_for_or_not() {
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
            assert!(prefetch.read_block(*addr, OwnerId(99), BlockKind::TrunkNode).is_err(), "it is checked");
        }
        assert_eq!(data.stats().reads - reads, 19 + 7, "twelve were there");
        assert!(prefetch.read_block(outside, OwnerId(1), BlockKind::TrunkNode).is_err());
        // A block of another length than was read is read anew.
        let (long, short) = (blocks[1], BlockAddr { pages: 1, ..blocks[1] });
        assert!(long.pages > 1);
        prefetch.ask(&[short]);
        assert!(prefetch.read_block(long, OwnerId(2), BlockKind::TrunkNode).is_ok());
    }
}
