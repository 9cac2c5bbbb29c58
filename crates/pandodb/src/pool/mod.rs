//! The buffer pool: the one cache of immutable blocks, inside one number of bytes.
//!
//! ```text
//!   (owner, page) ──hash──▶ shard 0 … 15, each behind its own lock
//!                             map   (owner, page) → slot
//!                             ring  [frame][frame][  ][frame] …     hand ──▶
//! ```
//!
//! Steps of a read ([`Pool::get`]): look into the shard; if the block is missing, let go of the lock, load it, lock
//! again and insert it, unless another thread was faster: then its block is used. I/O never happens under a lock.
//!
//! * **The key is the owner's identity and the page.** Identities are never reused within a store, so a page that was
//!   freed and written again by another owner has another key: a stale frame can never be hit. Nobody has to tell the
//!   pool that a run died; its frames are not asked for any more and age out.
//! * **CLOCK** (`002 §3.6.1`): a hit gives the frame its chances back; the hand takes one from each frame that it passes
//!   and evicts the first that has none. A leaf has one, and starts with none, so that one read once goes before one
//!   read twice. A block above the leaves has more ([`Keep`]): it saves reads for hundreds of them.
//! * The capacity is one for all shards. A shard that is over its sixteenth pays first, then the shards in turn.
//! * A block over an eighth of the capacity is handed out without being cached.
//! * A block that is evicted while somebody holds it lives until the last holder lets go; blocks that a *user* holds
//!   for long are counted ([`Block::pin`]), and past a quarter of the capacity new guards should copy
//!   ([`Pool::should_copy`]).
//!
//! Locks: the shards' only, one at a time, nothing else is locked inside.

mod block;
mod shard;
#[cfg(test)]
mod tests;

use std::sync::Arc;

use block::Home;
pub use block::{Block, PinnedBlock};
use shard::{FrameKey, Shard};

use crate::base::sync::{AtomicUsize, Mutex, Ordering::Relaxed};
use crate::base::{BlockAddr, PageNo, Result, RunId};
use crate::device::AlignedBuf;

/// Shards, each with a lock of its own.
const SHARDS: usize = 16;

/// The buffer pool. Shared by everything that reads blocks, through an `Arc`.
#[derive(Debug)]
pub struct Pool {
    shards: [Mutex<Shard>; SHARDS],
    /// What the frames may be charged with, in bytes.
    capacity: AtomicUsize,
    /// What the frames are charged with. Changed under the shard's lock, read without.
    bytes: AtomicUsize,
    /// The shard that pays next when the pool as a whole is over its capacity.
    next_victim: AtomicUsize,
    home: Arc<Home>,
}

/// How long a block is worth keeping.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Keep {
    /// A leaf.
    Short,
    /// A block that searches pass on their way to many leaves: a filter's, an inner one, tombstones.
    Long,
}

impl Keep {
    /// How often the hand passes a frame that was just hit.
    fn chances(self) -> u8 {
        match self {
            Keep::Short => 1,
            Keep::Long => 4,
        }
    }
}

/// Figures of the pool.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PoolStats {
    /// Bytes charged: the cached blocks and what it costs to keep them.
    pub bytes: u64,
    /// The most that may be charged, in bytes.
    pub capacity: u64,
    /// Blocks in the cache.
    pub blocks: u64,
    /// Lookups that found their block.
    pub hits: u64,
    /// Lookups that did not.
    pub misses: u64,
    /// Blocks that were thrown out to make room.
    pub evictions: u64,
    /// Bytes of blocks that users hold.
    pub pinned_bytes: u64,
}

impl Pool {
    /// A pool that keeps at most `capacity_bytes`, overhead included.
    pub fn new(capacity_bytes: usize) -> Pool {
        Pool {
            shards: std::array::from_fn(|_| Mutex::default()),
            capacity: AtomicUsize::new(capacity_bytes),
            bytes: AtomicUsize::new(0),
            next_victim: AtomicUsize::new(0),
            home: Arc::default(),
        }
    }

    fn shard(&self, key: FrameKey) -> &Mutex<Shard> {
        // The map inside a shard uses the low and the highest bits of the same hash.
        &self.shards[(key.hash() >> 40) as usize % SHARDS]
    }

    /// The block at `addr` of `owner`: from the cache, or loaded by `load` (outside every lock) and cached.
    ///
    /// # Errors
    /// Those of `load`; nothing is cached then.
    pub fn get(
        &self,
        owner: RunId,
        addr: BlockAddr,
        keep: Keep,
        load: impl FnOnce() -> Result<AlignedBuf>,
    ) -> Result<Block> {
        match self.peek(owner, addr.page) {
            Some(block) => Ok(block),
            None => Ok(self.insert(owner, addr, keep, load()?)),
        }
    }

    /// The block if it is cached; counts as a hit or a miss.
    #[inline]
    pub fn peek(&self, owner: RunId, page: PageNo) -> Option<Block> {
        let key = FrameKey::new(owner, page);
        self.shard(key).lock().hit(key)
    }

    /// Caches a block that was read from `addr`. If another thread was faster, its block is kept and handed out.
    pub fn insert(&self, owner: RunId, addr: BlockAddr, keep: Keep, buf: AlignedBuf) -> Block {
        debug_assert_eq!(buf.len(), addr.bytes(), "a block is cached whole");
        let key = FrameKey::new(owner, addr.page);
        let block = Block::new(&buf, self.home.clone());
        let (capacity, cost) = (self.capacity.load(Relaxed), block.cost());
        if cost > capacity / 8 {
            return block;
        }
        {
            let mut shard = self.shard(key).lock();
            if let Some(first) = shard.find(key) {
                return first;
            }
            let mut total = self.bytes.fetch_add(cost, Relaxed) + cost;
            while total > capacity && shard.bytes() + cost > capacity / SHARDS {
                let Some(freed) = shard.evict() else { break };
                total = self.bytes.fetch_sub(freed, Relaxed) - freed;
            }
            shard.insert(key, block.clone(), keep);
        }
        self.shrink_to(capacity);
        block
    }

    /// Evicts, shard after shard, until the pool is within `capacity` bytes.
    fn shrink_to(&self, capacity: usize) {
        let mut empty = 0;
        while self.bytes.load(Relaxed) > capacity && empty < SHARDS {
            let at = self.next_victim.fetch_add(1, Relaxed) % SHARDS;
            match self.shards[at].lock().evict() {
                Some(freed) => {
                    self.bytes.fetch_sub(freed, Relaxed);
                    empty = 0;
                }
                None => empty += 1,
            }
        }
    }

    /// Changes the capacity, and evicts down to it.
    pub fn set_capacity(&self, capacity_bytes: usize) {
        self.capacity.store(capacity_bytes, Relaxed);
        self.shrink_to(capacity_bytes);
    }

    /// Throws a block out, if it is cached: for what will surely not be asked for again.
    pub fn forget(&self, owner: RunId, page: PageNo) {
        let key = FrameKey::new(owner, page);
        let mut shard = self.shard(key).lock();
        if let Some(freed) = shard.remove(key) {
            self.bytes.fetch_sub(freed, Relaxed);
        }
    }

    /// Whether users hold so much that a new guard should copy its value instead of pinning a block.
    pub fn should_copy(&self) -> bool {
        self.home.pinned.load(Relaxed) > self.capacity.load(Relaxed) as u64 / 4
    }

    /// Figures. Takes each shard's lock in turn.
    pub fn stats(&self) -> PoolStats {
        let mut stats = PoolStats {
            bytes: self.bytes.load(Relaxed) as u64,
            capacity: self.capacity.load(Relaxed) as u64,
            pinned_bytes: self.home.pinned.load(Relaxed),
            ..PoolStats::default()
        };
        for shard in &self.shards {
            shard.lock().add_to(&mut stats);
        }
        stats
    }
}
