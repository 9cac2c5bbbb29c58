//! Computes the costs of recorded accesses in two models of external memory, for any block size.
//!
//! ```text
//!   accesses (file, offset, length, direction) ──cut into blocks of B──▶ LRU of M/B blocks ──▶ Transfers { reads, writes }
//!                                              └──one I/O each, 1 + αx──▶ setups
//! ```
//!
//! * **External memory** (DAM; Aggarwal and Vitter, 002 ch. 1, 004 §2): a memory of M bytes, blocks of B bytes; each
//!   block transfer costs 1, all else is free. Reading a block that is not in memory is a transfer. Writing back a
//!   changed block is also a transfer; it happens at the eviction of the block or at the end. If a block stays in
//!   memory between several writes to it, these writes together cost one transfer. If a write covers only a part of a
//!   block that was accessed before but is not in memory, the block is read first. A block that was never accessed is
//!   new and is not read.
//! * **Affine** (Bender et al., cited by 002 ch. 1 and 4): an I/O of x bytes costs 1 + αx setups.
//!
//! Invariants: more memory never costs more, because a larger LRU contains all blocks of a smaller one. If every access
//! is one aligned block and no block is accessed twice, the number of transfers equals the number of accesses.

use std::collections::{HashMap, HashSet};

use pandodb::device::counting::{Access, FileClass};
use serde::{Deserialize, Serialize};

/// The parameters of the model: a memory and its blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Memory {
    /// B, the size of a block in bytes.
    pub block: u64,
    /// M, the size of the memory in bytes. At least one block fits into the memory.
    pub bytes: u64,
}

/// The number of block transfers between memory and device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Transfers {
    /// Transfers from the device into memory.
    pub reads: u64,
    /// Transfers from memory to the device.
    pub writes: u64,
}

impl Transfers {
    /// The sum of reads and writes.
    pub fn total(self) -> u64 {
        self.reads + self.writes
    }
}

/// The block transfers of accesses. The memory is empty at the start, and all changed blocks are written back at the
/// end.
///
/// # Panics
/// If the block size is 0.
pub fn transfers<'a>(accesses: impl IntoIterator<Item = &'a Access>, memory: Memory) -> Transfers {
    assert!(memory.block > 0, "a block has bytes");
    let mut lru = Lru::new((memory.bytes / memory.block).max(1) as usize);
    let mut known: HashSet<Block> = HashSet::new();
    let mut count = Transfers::default();
    for access in accesses.into_iter().filter(|access| access.len > 0) {
        let end = access.offset + access.len;
        for number in access.offset / memory.block..=(end - 1) / memory.block {
            let block = Block { file: file_of(access), number };
            let whole = access.offset <= number * memory.block && end >= (number + 1) * memory.block;
            let new = known.insert(block);
            let (hit, evicted_dirty) = lru.touch(block, access.is_write);
            count.writes += u64::from(evicted_dirty);
            count.reads += u64::from(!hit && (!access.is_write || !(whole || new)));
        }
    }
    count.writes += lru.dirty();
    count
}

/// Identifies a file. All openings of the data file count as one file. Each opening of any other file counts as a new
/// file.
fn file_of(access: &Access) -> (FileClass, u32) {
    (access.class, if access.class == FileClass::Data { 0 } else { access.file })
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Block {
    file: (FileClass, u32),
    number: u64,
}

const NONE: usize = usize::MAX;

/// The blocks in memory, as a list from the least to the most recently used.
struct Lru {
    capacity: usize,
    places: HashMap<Block, usize>,
    slots: Vec<Slot>,
    oldest: usize,
    newest: usize,
}

struct Slot {
    block: Block,
    dirty: bool,
    older: usize,
    newer: usize,
}

impl Lru {
    fn new(capacity: usize) -> Lru {
        Lru { capacity, places: HashMap::new(), slots: Vec::new(), oldest: NONE, newest: NONE }
    }

    /// Accesses a block. Returns whether the block was in memory, and whether a changed block was evicted to make room.
    fn touch(&mut self, block: Block, write: bool) -> (bool, bool) {
        if let Some(&place) = self.places.get(&block) {
            self.unlink(place);
            self.link(place);
            self.slots[place].dirty |= write;
            return (true, false);
        }
        let slot = Slot { block, dirty: write, older: NONE, newer: NONE };
        let (place, evicted_dirty) = if self.slots.len() < self.capacity {
            self.slots.push(slot);
            (self.slots.len() - 1, false)
        } else {
            let place = self.oldest;
            self.unlink(place);
            let evicted = std::mem::replace(&mut self.slots[place], slot);
            self.places.remove(&evicted.block);
            (place, evicted.dirty)
        };
        self.places.insert(block, place);
        self.link(place);
        (false, evicted_dirty)
    }

    fn unlink(&mut self, place: usize) {
        let (older, newer) = (self.slots[place].older, self.slots[place].newer);
        if older == NONE {
            self.oldest = newer
        } else {
            self.slots[older].newer = newer
        }
        if newer == NONE { self.newest = older } else { self.slots[newer].older = older }
    }

    fn link(&mut self, place: usize) {
        (self.slots[place].older, self.slots[place].newer) = (self.newest, NONE);
        if self.newest == NONE {
            self.oldest = place
        } else {
            self.slots[self.newest].newer = place
        }
        self.newest = place;
    }

    fn dirty(&self) -> u64 {
        self.slots.iter().filter(|slot| slot.dirty).count() as u64
    }
}

/// The affine model: the cost of each byte of an I/O, in setups.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Affine {
    /// α for reads.
    pub read: f64,
    /// α for writes.
    pub write: f64,
}

impl Default for Affine {
    /// The values for the machine on which the project was measured. It does 16,500 random reads of 4 KiB per second,
    /// one after the other, so each read takes 60.6 µs. Sequential reads have 6.4 GB/s, so the transfer of 4 KiB takes
    /// 0.6 µs of this time, and a setup takes 60 µs. Therefore a byte read costs 1 / 6.4 GB/s / 60 µs = 2.6·10⁻⁶
    /// setups. Sequential writes have 3.3 GB/s (2.8 to 3.8), so a byte written costs 5.1·10⁻⁶ setups. A read of 384 KB
    /// or a write of 198 KB spends half of its time on the setup and half on the transfer.
    fn default() -> Affine {
        const READ_BYTES_PER_S: f64 = 6.4e9;
        const WRITE_BYTES_PER_S: f64 = 3.3e9;
        let setup = 1.0 / 16_500.0 - 4096.0 / READ_BYTES_PER_S;
        Affine { read: 1.0 / READ_BYTES_PER_S / setup, write: 1.0 / WRITE_BYTES_PER_S / setup }
    }
}

impl Affine {
    /// The cost of accesses, in setups.
    pub fn cost<'a>(&self, accesses: impl IntoIterator<Item = &'a Access>) -> f64 {
        let cost = |access: &Access| 1.0 + access.len as f64 * if access.is_write { self.write } else { self.read };
        accesses.into_iter().map(cost).sum()
    }
}

#[cfg(test)]
mod tests {
    use rand::{Rng, SeedableRng};
    use rand_xoshiro::Xoshiro256PlusPlus;

    use super::*;

    fn access(offset: u64, len: u64, is_write: bool) -> Access {
        Access { file: 0, class: FileClass::Data, offset, len, is_write }
    }

    fn count(accesses: &[Access], block: u64, blocks: u64) -> (u64, u64) {
        let count = transfers(accesses, Memory { block, bytes: block * blocks });
        (count.reads, count.writes)
    }

    #[test]
    fn transfers_equal_those_worked_out_by_hand() {
        // Blocks have 10 bytes, and the memory has two blocks. Two reads are in block 0, one read spans blocks 0 and 1,
        // and then block 2 evicts block 0.
        let reads = [access(0, 3, false), access(5, 2, false), access(8, 4, false), access(20, 1, false)];
        assert_eq!(count(&reads, 10, 2), (3, 0));
        let again = [&reads[..], &[access(0, 1, false)]].concat();
        assert_eq!(count(&again, 10, 2), (4, 0));
        assert_eq!(count(&again, 10, 3), (3, 0));
        // Ten writes of a tenth of a block each are one transfer. If another block is accessed between two of these
        // writes, a memory of one block must read the block again.
        let parts: Vec<Access> = (0..10).map(|i| access(i, 1, true)).collect();
        assert_eq!(count(&parts, 10, 1), (0, 1));
        let torn: Vec<Access> = parts.iter().flat_map(|&part| [part, access(30, 10, true)]).collect();
        assert_eq!(count(&torn, 10, 2), (0, 2));
        assert_eq!(count(&torn, 10, 1), (9, 20));
        // A read of a block that was written and evicted costs one transfer in each direction.
        let back = [access(0, 10, true), access(10, 10, true), access(0, 10, false)];
        assert_eq!(count(&back, 10, 1), (1, 2));
        assert_eq!(count(&back, 10, 2), (0, 2));
    }

    #[test]
    fn openings_of_the_data_file_are_one_file_and_others_are_not() {
        let log = |file| Access { file, class: FileClass::Log, offset: 0, len: 10, is_write: true };
        assert_eq!(count(&[log(1), log(2), log(1)], 10, 2), (0, 2));
        let data = |file| Access { file, ..access(0, 10, false) };
        assert_eq!(count(&[data(1), data(2)], 10, 1), (1, 0));
    }

    #[test]
    fn accesses_of_one_block_are_one_transfer_each() {
        let accesses: Vec<Access> = (0..1000).map(|i| access(i * 4096, 4096, i % 3 == 0)).collect();
        for blocks in [1, 7, 2000] {
            let writes = accesses.iter().filter(|access| access.is_write).count() as u64;
            assert_eq!(count(&accesses, 4096, blocks), (1000 - writes, writes));
        }
    }

    #[test]
    fn more_memory_never_costs_more() {
        let mut rng = Xoshiro256PlusPlus::seed_from_u64(7);
        for _ in 0..50 {
            let accesses: Vec<Access> = (0..400)
                .map(|_| access(rng.next_u64() % 600, 1 + rng.next_u64() % 40, rng.next_u64().is_multiple_of(2)))
                .collect();
            let costs: Vec<(u64, u64)> = (1..=64).map(|blocks| count(&accesses, 10, blocks)).collect();
            assert!(costs.windows(2).all(|pair| pair[1].0 <= pair[0].0 && pair[1].1 <= pair[0].1), "{costs:?}");
        }
    }

    #[test]
    fn an_affine_setup_is_worth_a_few_hundred_kilobytes() {
        let affine = Affine::default();
        assert!((2.5e-6..2.7e-6).contains(&affine.read) && (5.0e-6..5.2e-6).contains(&affine.write), "{affine:?}");
        let half = (1.0 / affine.read) as u64;
        assert!((affine.cost(&[access(0, half, false)]) - 2.0).abs() < 1e-3);
        assert!((affine.cost(&[access(0, 1, true), access(1, 1, true)]) - 2.0).abs() < 1e-3);
    }
}
