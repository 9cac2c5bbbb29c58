//! The buffer pool: the one cache of immutable blocks, inside one number of bytes (002 §3.6.1).
//!
//! ```text
//!   (owner, page) ──hash──▶ chain ──▶ frame ──▶ block         a hit: no lock, nothing written that others read
//!                                       │
//!   frames  [■][■][□][■]…[■][■] …     ──┴─ chances            hands of 64 frames ──▶
//! ```
//!
//! Steps of a read ([`Pool::get`]): follow the chain and guard the block (`table`). If it is missing, look once more under
//! the chain's lock; then, without a lock, load it, make room (`hand`) and link it, unless another thread was faster: then
//! its block is used. I/O never happens under a lock.
//!
//! * **The key is the owner's identity and the page.** Identities are never reused within a store, so a page that was
//!   freed and written again by another owner has another key, and each block carries its own: a stale frame can never be hit.
//!   Nobody has to tell the pool that a run died; its frames are not asked for any more and age out. (Runs tell it of their blocks above
//!   the leaves all the same, which have more chances than they deserve then.)
//! * **CLOCK** (`002 §3.6.1`): a hit gives the frame its chances back; the hand takes one from each frame that it passes
//!   and evicts the first that has none. A leaf has one, and starts with none, so that one read once goes before one
//!   read twice. A block above the leaves has more ([`Keep`]): it saves reads for hundreds of them.
//! * **Room is made before it is taken**: who caches a block charges it, evicts until the sum is within the capacity, and
//!   links only then.
//! * A leaf that was compressed on disk is kept, and charged, as it was before.
//! * A block over an eighth of the capacity is handed out without being cached, and so is one for which there is no room
//!   since everything is on its way.
//! * A block that is evicted while somebody holds it lives until the last holder lets go; blocks that a *user* holds
//!   for long are counted ([`Block::pin`]), and past a quarter of the capacity new guards should copy
//!   ([`Pool::should_copy`]).
//!
//! **Lending**: memtables come and go, and blocks use what they leave ([`Lender`]). A block of one page is a slot
//! of a [`Slab`](crate::base::Slab), so that what is evicted for them is memory indeed.
//!
//! What of the source is not here: dirty pages, hence write locks and their claims; its counters of readers. Blocks never
//! change, and `arc_swap` guards them ([decision 0019](../../../../docs/decisions/0019-pool-concurrency.md)).
//!
//! Locks: a group's hand, under it a chain's, that of free frames, or that of the slab; nothing else is locked inside.

mod block;
mod hand;
mod key;
mod table;
#[cfg(test)]
mod tests;

use std::sync::Arc;

pub use block::{Block, PinnedBlock};
use block::{Body, Home, OVERHEAD};
use hand::Hands;
use key::FrameKey;
use table::Table;

use crate::base::slab::Lender;
use crate::base::sync::{AtomicUsize, Counter, EXPLORED, Ordering::Relaxed, thread_number};
use crate::base::{BlockAddr, Ghosts, OwnerId, PAGE, PageNo, Result};
use crate::device::AlignedBuf;

/// Groups of threads that count what they find without meeting each other.
const TALLIES: usize = 8;

/// The buffer pool. Shared by everything that reads blocks, through an `Arc`.
#[derive(Debug)]
pub struct Pool {
    table: Table,
    /// What the frames may be charged with, in bytes.
    capacity: AtomicUsize,
    /// How much of that others have borrowed.
    lent: AtomicUsize,
    /// Of this, what structures take as long as they exist.
    held: AtomicUsize,
    tallies: [Tally; TALLIES],
    /// What frames are charged with, those included for which room is being made.
    bytes: Charged,
    hands: Hands,
    ghosts: Ghosts,
    home: Arc<Home>,
}

/// What changes with each miss, away from what each hit reads.
#[derive(Debug, Default)]
#[repr(align(64))]
struct Charged(AtomicUsize);

/// What some threads have looked for.
#[derive(Debug, Default)]
#[repr(align(64))]
struct Tally {
    hits: Counter,
    misses: Counter,
    /// Blocks put into the cache, and taken out; the latter to make room, or not.
    linked: Counter,
    unlinked: Counter,
    evictions: Counter,
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
    /// The most that may be charged now, in bytes: without what is lent to memtables and rows.
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
    /// A pool that keeps at most `capacity_bytes`, overhead included. Allocates 4 to 8 bytes for each page of them; the rest as
    /// blocks come.
    pub fn new(capacity_bytes: usize) -> Pool {
        let blocks = capacity_bytes / (PAGE + OVERHEAD);
        Pool {
            table: Table::new(blocks),
            capacity: AtomicUsize::new(capacity_bytes),
            lent: AtomicUsize::new(0),
            held: AtomicUsize::new(0),
            tallies: Default::default(),
            bytes: Charged::default(),
            hands: Hands::new(),
            ghosts: Ghosts::new(capacity_bytes / Pool::GHOSTS, PAGE, 1),
            home: Arc::new(Home::new(blocks)),
        }
    }

    /// With one hand for all threads: the same blocks go for the same requests, whichever threads make them.
    #[must_use]
    pub fn with_one_hand(mut self) -> Pool {
        self.hands.one();
        self
    }

    #[inline]
    fn tally(&self) -> &Tally {
        // The explorer's threads all run on one, and are numbered at a price.
        &self.tallies[if EXPLORED { 0 } else { thread_number() % TALLIES }]
    }

    /// The block at `addr` of `owner`: from the cache, or loaded by `load` (outside every lock) and cached. A hit takes about
    /// 20 ns beside what the processor's caches miss.
    ///
    /// # Errors
    /// Those of `load`; nothing is cached then.
    #[inline]
    pub fn get(
        &self,
        owner: OwnerId,
        addr: BlockAddr,
        keep: Keep,
        load: impl FnOnce() -> Result<AlignedBuf>,
    ) -> Result<Block> {
        match self.peek(owner, addr.page) {
            Some(block) => Ok(block),
            None => Ok(self.insert(owner, addr, keep, &load()?)),
        }
    }

    /// The block if it is cached; counts as a hit or a miss.
    #[inline]
    pub fn peek(&self, owner: OwnerId, page: PageNo) -> Option<Block> {
        let key = FrameKey::new(owner, page);
        let hash = key.hash();
        let found = self.table.find(key, hash).or_else(|| self.table.find_locked(key, hash));
        let tally = self.tally();
        if found.is_some() { &tally.hits } else { &tally.misses }.fetch_add(1, Relaxed);
        found.map(Block::guarded)
    }

    /// Looks for several blocks at once: `found[i]` becomes `wanted[i]`, if that is cached and nothing is in the way; which does not say that
    /// it is not cached. At most [`Pool::TOGETHER`]. Costs little more than for one, where memory is what one waits for.
    #[inline]
    pub fn peek_several(&self, wanted: &[(OwnerId, PageNo)], found: &mut [Option<Block>]) {
        let mut keys = [(FrameKey::NONE, 0); Pool::TOGETHER];
        let mut guards = [const { None }; Pool::TOGETHER];
        let count = wanted.len().min(Pool::TOGETHER);
        for (key, (owner, page)) in keys.iter_mut().zip(wanted) {
            let name = FrameKey::new(*owner, *page);
            *key = (name, name.hash());
        }
        self.table.find_several(&keys[..count], &mut guards[..count]);
        let mut hits = 0;
        for (found, guard) in found.iter_mut().zip(guards).take(count) {
            *found = guard.map(Block::guarded);
            hits += u64::from(found.is_some());
        }
        self.tally().hits.fetch_add(hits, Relaxed);
    }

    /// The share of the capacity that is never lent: one in so many.
    pub const LEAST_SHARE: usize = 4;

    /// What left the pool within so much of its capacity is remembered: one part in so many. Whoever compares himself with the pool has to
    /// remember as much.
    pub const GHOSTS: usize = 16;

    /// Bytes that others have borrowed.
    pub fn lent(&self) -> usize {
        self.lent.load(Relaxed)
    }

    /// Lends `bytes` to a structure that is not a cache and takes them as long as it exists: an index, the description of a run. Never evicts by
    /// itself, so it may be called under any lock; the next block that comes finds less room.
    pub fn hold(&self, bytes: usize) {
        self.held.fetch_add(bytes, Relaxed);
        self.lent.fetch_add(bytes, Relaxed);
    }

    /// The structure is gone.
    pub fn let_go(&self, bytes: usize) {
        self.held.fetch_sub(bytes, Relaxed);
        self.take_back(bytes);
    }

    /// Bytes that structures take as long as they exist.
    pub fn held(&self) -> usize {
        self.held.load(Relaxed)
    }

    /// Blocks that were read, of which a pool larger by a sixteenth would have had about so many.
    pub fn ghosts_found(&self) -> u64 {
        self.ghosts.found()
    }

    /// Blocks that are looked for together at most.
    pub const TOGETHER: usize = table::MOST_TOGETHER;

    /// Caches a copy of a block that was read from `addr`, as it is to be handed out: longer than there, if it was compressed. If another
    /// thread was faster, its block is kept and handed out.
    pub fn insert(&self, owner: OwnerId, addr: BlockAddr, keep: Keep, bytes: &[u8]) -> Block {
        self.ghosts.came(FrameKey::new(owner, addr.page).hash());
        // A leaf starts without a chance: one that is read once goes before one that is read twice.
        self.put(owner, addr, keep, keep.chances() - Keep::Short.chances(), bytes)
    }

    /// Caches a copy of a block that nobody has asked for yet, but probably will: it goes first if nobody does.
    pub fn offer(&self, owner: OwnerId, addr: BlockAddr, keep: Keep, bytes: &[u8]) {
        let key = FrameKey::new(owner, addr.page);
        if self.table.find(key, key.hash()).is_none() {
            self.put(owner, addr, keep, 0, bytes);
        }
    }

    /// The pool's capacity in bytes, including what it has lent to memtables, rows and keyspaces.
    pub fn size(&self) -> usize {
        self.capacity.load(Relaxed)
    }

    /// What blocks may be charged with now, in bytes: what is not lent, but a quarter of the whole at least.
    fn capacity(&self) -> usize {
        let whole = self.capacity.load(Relaxed);
        whole.saturating_sub(self.lent.load(Relaxed)).max(whole / Pool::LEAST_SHARE)
    }

    /// Whether so many bytes of blocks of a page each can be cached without throwing anything out.
    pub fn has_room(&self, bytes: usize) -> bool {
        self.bytes.0.load(Relaxed) + bytes / PAGE * (PAGE + OVERHEAD) <= self.capacity()
    }

    fn put(&self, owner: OwnerId, addr: BlockAddr, keep: Keep, chances: u8, bytes: &[u8]) -> Block {
        debug_assert!(bytes.len() >= addr.bytes(), "a block is cached whole");
        let key = FrameKey::new(owner, addr.page);
        let hash = key.hash();
        let body = Body::new(key, keep, bytes, self.home.clone());
        let (capacity, cost) = (self.capacity(), body.cost());
        if cost > capacity / 8 {
            return Block::counted(body);
        }
        if let Some(first) = self.table.find(key, hash) {
            return Block::guarded(first);
        }
        let Some(number) = self.make_room(cost, capacity) else { return Block::counted(body) };
        match self.table.link(number, hash, &body, chances) {
            Ok(()) => {
                self.tally().linked.fetch_add(1, Relaxed);
                Block::counted(body)
            }
            Err(first) => {
                self.bytes.0.fetch_sub(cost, Relaxed);
                self.hands.give_back(&self.table, number);
                Block::guarded(first)
            }
        }
    }

    /// Charges `cost`, evicts until that is within `capacity` bytes, and finds a frame; charges nothing if there is no room.
    fn make_room(&self, cost: usize, capacity: usize) -> Option<u32> {
        self.bytes.0.fetch_add(cost, Relaxed);
        let mut frame = None;
        if !self.shrink_to(capacity, &mut frame) {
            self.bytes.0.fetch_sub(cost, Relaxed);
            frame.into_iter().for_each(|number| self.hands.give_back(&self.table, number));
            return None;
        }
        Some(frame.unwrap_or_else(|| self.hands.frame(&self.table)))
    }

    /// Evicts until the pool is within `capacity` bytes; one of the frames that become free goes into `frame`. `false` if
    /// nothing is left to evict.
    fn shrink_to(&self, capacity: usize, frame: &mut Option<u32>) -> bool {
        if self.bytes.0.load(Relaxed) <= capacity {
            return true;
        }
        self.hands.evict(&self.table, |number, hash, cost| {
            self.ghosts.left(hash, cost);
            let before = self.bytes.0.fetch_sub(cost, Relaxed);
            let tally = self.tally();
            tally.unlinked.fetch_add(1, Relaxed);
            tally.evictions.fetch_add(1, Relaxed);
            if let Some(number) = frame.replace(number) {
                self.hands.give_back(&self.table, number);
            }
            before - cost > capacity
        })
    }

    /// Changes the capacity, and evicts down to it. One far above that of the beginning makes lookups longer.
    pub fn set_capacity(&self, capacity_bytes: usize) {
        self.capacity.store(capacity_bytes, Relaxed);
        self.evict_down();
    }

    fn evict_down(&self) {
        let mut frame = None;
        self.shrink_to(self.capacity(), &mut frame);
        frame.into_iter().for_each(|number| self.hands.give_back(&self.table, number));
    }

    /// Throws a block out, if it is cached: for what will surely not be asked for again.
    pub fn forget(&self, owner: OwnerId, page: PageNo) {
        let key = FrameKey::new(owner, page);
        if let Some((number, cost)) = self.table.remove(key, key.hash()) {
            self.bytes.0.fetch_sub(cost, Relaxed);
            self.tally().unlinked.fetch_add(1, Relaxed);
            self.hands.give_back(&self.table, number);
        }
    }

    /// Whether users hold so much that a new guard should copy its value instead of pinning a block.
    pub fn should_copy(&self) -> bool {
        self.home.pinned.load(Relaxed) > self.capacity() as u64 / 4
    }

    /// Figures. Takes no lock: exact when nobody else is at work.
    pub fn stats(&self) -> PoolStats {
        let sum = |of: fn(&Tally) -> &Counter| self.tallies.iter().map(|tally| of(tally).load(Relaxed)).sum::<u64>();
        PoolStats {
            bytes: self.bytes.0.load(Relaxed) as u64,
            capacity: self.capacity() as u64,
            blocks: sum(|tally| &tally.linked).saturating_sub(sum(|tally| &tally.unlinked)),
            hits: sum(|tally| &tally.hits),
            misses: sum(|tally| &tally.misses),
            evictions: sum(|tally| &tally.evictions),
            pinned_bytes: self.home.pinned.load(Relaxed),
        }
    }
}

impl Lender for Pool {
    /// Lends `bytes` of the capacity to who needs memory for something else, and evicts as much. Below a quarter of the capacity nothing is
    /// evicted any more: so much a reader needs whatever happens, and the borrower goes over what both may have.
    fn lend(&self, bytes: usize) {
        self.lent.fetch_add(bytes, Relaxed);
        self.evict_down();
    }

    /// Gets `bytes` back that were lent; blocks fill them as they come.
    fn take_back(&self, bytes: usize) {
        let before = self.lent.fetch_sub(bytes, Relaxed);
        debug_assert!(before >= bytes, "nobody returns more than he has borrowed");
    }
}
