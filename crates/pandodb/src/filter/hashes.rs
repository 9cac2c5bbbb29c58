//! [`Hashes`]: collects the hashes of a run's keys and returns them in order, in a few bytes for each key.
//!
//! ```text
//!   hash     | first 8 bits: number of the part | next 32 bits: stored | last 24 bits: not stored |
//!
//!   parts    0 ─▶ chunk ◀─ chunk ◀─ chunk          255 ─▶ chunk ◀─ chunk      each chunk names the one before it
//!   chunks   |  0  |  1  |  2  |  3  | …           256 hashes each, in blocks of 256 KiB
//! ```
//!
//! Steps: [`Hashes::add`] stores the first [`FEW`] hashes as they come. If there are more, each hash goes to the part
//! that its first bits name. [`Hashes::sorted`] ends the collection, and sorts the hashes if they are few. Otherwise
//! [`SortedHashes::up_to`] sorts one part after the other when their hashes are needed, so that sorting is divided into
//! small steps.
//!
//! A quotient filter that is built from hashes uses at most the first [`STORED_BITS`] bits of each, so the last bits
//! are left out of the parts. A part needs 4 bytes for each hash. The blocks are never copied when more hashes come, in
//! contrast to a vector, which for a moment needs its old and its new memory.
//!
//! Invariant: a part has the hashes of its first bits only, so each part is above the parts before it.
//!
//! Source: our own design; the first pass of a radix sort.

use crate::base::LargeVec;

/// The number of bits of a hash that are kept. They suffice for one false positive in 256 with 4 billion keys, or with
/// 2 billion keys in one maplet. With more keys there are more false positives.
pub const STORED_BITS: u32 = PART_BITS + u32::BITS;
const PART_BITS: u32 = 8;
const PARTS: usize = 1 << PART_BITS;
/// Up to this many hashes are not divided into parts.
const FEW: usize = 1 << 15;
/// The number of hashes in a chunk.
const CHUNK: u32 = 256;
/// The number of hashes in a block.
const BLOCK: usize = 1 << 16;

const _: () = assert!(BLOCK.is_multiple_of(CHUNK as usize) && FEW > 0 && STORED_BITS <= u64::BITS);

/// The hashes of a run's keys, in any order. Costs 8 bytes for each of the first 32,768 keys. If there are more keys,
/// costs about 4 bytes for each key, and up to 576 KiB for chunks and a block that are partly filled.
#[derive(Debug, Default)]
pub struct Hashes {
    few: LargeVec<u64>,
    /// Present if there are more than [`FEW`] hashes. Then `few` is empty.
    many: Option<Box<Parts>>,
}

impl Hashes {
    /// Adds a hash.
    #[inline]
    pub fn add(&mut self, hash: u64) {
        match &mut self.many {
            Some(parts) => parts.add(hash),
            None if self.few.len() < FEW => self.few.push(hash),
            None => self.divide().add(hash),
        }
    }

    #[cold]
    fn divide(&mut self) -> &mut Parts {
        let few = std::mem::take(&mut self.few);
        let parts = self.many.insert(Box::default());
        few.iter().for_each(|hash| parts.add(*hash));
        parts
    }

    /// The number of hashes that were added.
    pub fn len(&self) -> usize {
        self.few.len() + self.many.as_ref().map_or(0, |parts| parts.len())
    }

    /// Whether no hash was added.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Ends the collection, to read the hashes in order.
    pub fn sorted(self) -> SortedHashes {
        let mut sorted = self.few;
        sort(&mut sorted, 0);
        SortedHashes { parts: self.many, next_part: 0, sorted, taken: 0 }
    }
}

/// Hashes that are divided by their first bits.
#[derive(Debug)]
struct Parts {
    parts: [Part; PARTS],
    blocks: Vec<LargeVec<u32>>,
    /// For each chunk, the chunk of the same part that was filled before it; [`NO_CHUNK`] if there is none.
    before: Vec<u32>,
}

/// Stands for the chunk of an empty part, and for the chunk before the first chunk of a part.
const NO_CHUNK: u32 = u32::MAX;

#[derive(Clone, Copy, Debug)]
struct Part {
    /// The chunk that is being filled; [`NO_CHUNK`] if the part is empty.
    chunk: u32,
    /// The number of hashes in this chunk.
    filled: u32,
}

impl Default for Parts {
    fn default() -> Parts {
        Parts { parts: [Part { chunk: NO_CHUNK, filled: CHUNK }; PARTS], blocks: Vec::new(), before: Vec::new() }
    }
}

/// The place of the first hash of a chunk.
#[inline]
fn chunk_at(chunk: usize) -> usize {
    chunk * CHUNK as usize
}

impl Parts {
    #[inline]
    #[expect(clippy::cast_possible_truncation, reason = "the last bits of a hash are not stored")]
    fn add(&mut self, hash: u64) {
        let part = &mut self.parts[(hash >> (u64::BITS - PART_BITS)) as usize];
        if part.filled == CHUNK {
            self.before.push(part.chunk);
            *part = Part { chunk: (self.before.len() - 1) as u32, filled: 0 };
            if self.blocks.len() * BLOCK < chunk_at(self.before.len()) {
                self.blocks.push(LargeVec::zeroed(BLOCK));
            }
        }
        let at = chunk_at(part.chunk as usize) + part.filled as usize;
        self.blocks[at / BLOCK][at % BLOCK] = (hash >> (u64::BITS - STORED_BITS)) as u32;
        part.filled += 1;
    }

    fn len(&self) -> usize {
        let free: u32 = self.parts.iter().map(|part| CHUNK - part.filled).sum();
        chunk_at(self.before.len()) - free as usize
    }

    /// Appends the hashes of a part to `to`, in any order, with zeros for the bits that are not stored.
    fn gather(&self, number: usize, to: &mut LargeVec<u64>) {
        let Part { mut chunk, mut filled } = self.parts[number];
        let first_bits = (number as u64) << (u64::BITS - PART_BITS);
        while chunk != NO_CHUNK {
            let at = chunk_at(chunk as usize);
            let stored = &self.blocks[at / BLOCK][at % BLOCK..][..filled as usize];
            let hashes = stored.iter().map(|&bits| first_bits | u64::from(bits) << (u64::BITS - STORED_BITS));
            hashes.for_each(|hash| to.push(hash));
            (chunk, filled) = (self.before[chunk as usize], CHUNK);
        }
    }
}

/// Hashes that are read in order. Of hashes with equal stored bits, one is returned.
#[derive(Debug)]
pub struct SortedHashes {
    parts: Option<Box<Parts>>,
    next_part: usize,
    /// Sorted hashes, of which the first `taken` were returned.
    sorted: LargeVec<u64>,
    taken: usize,
}

impl SortedHashes {
    /// The next hashes, up to and including `last`. Sorts the parts that they are in.
    pub fn up_to(&mut self, last: u64) -> &[u64] {
        while self.sorted.last().is_none_or(|&hash| hash <= last) && self.sort_next() {}
        let from = self.taken;
        self.taken += self.sorted[from..].partition_point(|&hash| hash <= last);
        &self.sorted[from..self.taken]
    }

    /// Whether all hashes were returned.
    pub fn is_done(&self) -> bool {
        let rest = self.parts.as_ref().map_or(&[][..], |parts| &parts.parts[self.next_part..]);
        self.taken == self.sorted.len() && rest.iter().all(|part| part.chunk == NO_CHUNK)
    }

    /// Sorts the next part. Returns `false` if there is none.
    fn sort_next(&mut self) -> bool {
        let Some(parts) = self.parts.as_ref().filter(|_| self.next_part < PARTS) else { return false };
        // These are less than what a page of a filter holds.
        let rest = self.sorted[self.taken..].to_vec();
        (self.sorted, self.taken) = (LargeVec::new(), 0);
        rest.iter().for_each(|hash| self.sorted.push(*hash));
        let from = self.sorted.len();
        parts.gather(self.next_part, &mut self.sorted);
        sort(&mut self.sorted, from);
        self.next_part += 1;
        if self.next_part == PARTS {
            self.parts = None;
        }
        true
    }
}

/// Sorts the hashes from the number `from` on, which are above all others, and keeps one of each group of equal hashes.
fn sort(hashes: &mut LargeVec<u64>, from: usize) {
    hashes[from..].sort_unstable();
    hashes.dedup();
    debug_assert!(hashes.is_sorted(), "parts ascend");
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::random::Rng;

    #[test]
    fn hashes_come_back_in_order() {
        for (seed, count) in [(1, 0), (2, 1), (3, FEW), (4, FEW + 1), (5, 5 * FEW), (6, 300_000)] {
            let mut random = Rng(seed);
            let skew = if seed == 5 { 12 } else { 0 };
            let hashes: Vec<u64> = (0..count).map(|_| random.next_u64() >> skew).collect();
            let mut collected = Hashes::default();
            hashes.iter().for_each(|hash| collected.add(*hash));
            assert_eq!((collected.len(), collected.is_empty()), (count, count == 0));
            let kept = |hash: u64| if count > FEW { hash >> (64 - STORED_BITS) << (64 - STORED_BITS) } else { hash };
            let mut expected: Vec<u64> = hashes.iter().map(|hash| kept(*hash)).collect();
            expected.sort_unstable();
            expected.dedup();
            let (mut sorted, mut read) = (collected.sorted(), Vec::new());
            for bound in 1..=1_000 {
                let last = u64::MAX / 1_000 * bound;
                let next = sorted.up_to(last);
                assert!(next.iter().all(|hash| *hash <= last && read.last() < Some(hash)), "in order, seed {seed}");
                read.extend_from_slice(next);
            }
            read.extend_from_slice(sorted.up_to(u64::MAX));
            assert!(read == expected && sorted.is_done(), "seed {seed}");
        }
    }

    #[test]
    fn many_hashes_need_four_bytes_each() {
        let (mut hashes, mut random) = (Hashes::default(), Rng(9));
        (0..1_000_000).for_each(|_| hashes.add(random.next_u64()));
        let parts = hashes.many.as_ref().expect("many hashes are divided");
        let bytes = parts.blocks.len() * BLOCK * 4 + parts.before.capacity() * 4;
        assert!(bytes <= 4_000_000 + (chunk_at(PARTS) + BLOCK) * 4 + (64 << 10), "{bytes} bytes for a million hashes");
    }
}
