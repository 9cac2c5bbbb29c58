//! One shard of the pool: a map of slots and the CLOCK ring over them. Pure bookkeeping, no lock and no I/O.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hash, Hasher};

use super::{Block, Keep, PoolStats};
use crate::base::{PageNo, RunId, SeededBug};

/// Who wrote the block, and where it starts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct FrameKey {
    pub(super) owner: RunId,
    pub(super) page: PageNo,
}

impl FrameKey {
    /// The key of a block.
    #[inline]
    pub(super) fn new(owner: RunId, page: PageNo) -> FrameKey {
        FrameKey { owner: if SeededBug::PoolForgetsOwner.is_on() { RunId(0) } else { owner }, page }
    }

    /// All 64 bits are usable. Neither number is chosen by a user, so nothing stronger is needed.
    #[inline]
    pub(super) fn hash(self) -> u64 {
        let mixed = (self.owner.0.rotate_left(32) ^ self.page.0).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        (mixed ^ (mixed >> 29)).wrapping_mul(0xbf58_476d_1ce4_e5b9) ^ (mixed >> 32)
    }
}

impl Hash for FrameKey {
    #[inline]
    fn hash<H: Hasher>(&self, state: &mut H) {
        state.write_u64(FrameKey::hash(*self));
    }
}

/// Hands through the hash that the key has computed.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Through(u64);

impl Hasher for Through {
    fn write(&mut self, _: &[u8]) {
        unreachable!("a frame key is hashed as one number");
    }
    #[inline]
    fn write_u64(&mut self, hash: u64) {
        self.0 = hash;
    }
    #[inline]
    fn finish(&self) -> u64 {
        self.0
    }
}

#[derive(Debug)]
struct Frame {
    key: FrameKey,
    block: Block,
    keep: Keep,
    /// How often the hand passes it by.
    chances: u8,
}

/// Invariant: `map` names exactly the occupied slots of `ring`, `vacant` the others; `bytes` is the sum of their costs.
#[derive(Debug, Default)]
pub(super) struct Shard {
    map: HashMap<FrameKey, u32, BuildHasherDefault<Through>>,
    ring: Vec<Option<Frame>>,
    vacant: Vec<u32>,
    hand: usize,
    bytes: usize,
    hits: u64,
    misses: u64,
    evictions: u64,
}

impl Shard {
    /// Bytes that the shard's frames are charged with.
    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    /// A lookup, counted; a hit is remembered for the hand.
    #[inline]
    pub(super) fn hit(&mut self, key: FrameKey) -> Option<Block> {
        let Some(&slot) = self.map.get(&key) else {
            self.misses += 1;
            return None;
        };
        self.hits += 1;
        let frame = self.ring[slot as usize].as_mut().expect("the map names occupied slots");
        frame.chances = frame.keep.chances();
        Some(frame.block.clone())
    }

    /// A lookup that does not count.
    pub(super) fn find(&self, key: FrameKey) -> Option<Block> {
        let slot = *self.map.get(&key)?;
        self.ring[slot as usize].as_ref().map(|frame| frame.block.clone())
    }

    /// Adds a block whose key is not there.
    pub(super) fn insert(&mut self, key: FrameKey, block: Block, keep: Keep) {
        self.bytes += block.cost();
        // A leaf starts without a chance: one that is read once goes before one that is read twice.
        let chances = keep.chances() - Keep::Short.chances();
        let frame = Some(Frame { key, block, keep, chances });
        let slot = match self.vacant.pop() {
            Some(slot) => {
                self.ring[slot as usize] = frame;
                slot
            }
            None => {
                self.ring.push(frame);
                (self.ring.len() - 1) as u32
            }
        };
        let old = self.map.insert(key, slot);
        assert!(old.is_none(), "a block is cached once");
    }

    /// Removes a block; returns what it was charged with.
    pub(super) fn remove(&mut self, key: FrameKey) -> Option<usize> {
        let slot = self.map.remove(&key)?;
        let frame = self.ring[slot as usize].take().expect("the map names occupied slots");
        self.vacant.push(slot);
        let cost = frame.block.cost();
        self.bytes -= cost;
        Some(cost)
    }

    /// Moves the hand to the next frame that has no chance left, and removes that; `None` if there is no
    /// frame.
    pub(super) fn evict(&mut self) -> Option<usize> {
        if self.map.is_empty() {
            return None;
        }
        // As many rounds as a frame has chances, and one, at most.
        loop {
            self.hand = if self.hand >= self.ring.len() { 0 } else { self.hand };
            let slot = self.hand;
            self.hand += 1;
            match &mut self.ring[slot] {
                Some(frame) if frame.chances > 0 => frame.chances -= 1,
                Some(frame) => {
                    let key = frame.key;
                    self.evictions += 1;
                    return self.remove(key);
                }
                None => {}
            }
        }
    }

    /// Adds the shard's counters to `stats`.
    pub(super) fn add_to(&self, stats: &mut PoolStats) {
        stats.blocks += self.map.len() as u64;
        stats.hits += self.hits;
        stats.misses += self.misses;
        stats.evictions += self.evictions;
    }
}
