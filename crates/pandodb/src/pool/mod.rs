//! The buffer pool: the only cache of immutable blocks. The capacity of the pool is a number of bytes (002 §3.6.1).
//!
//! ```text
//!   (owner, page) ──hash──▶ chain ──▶ frame ──▶ block         a hit: no lock, nothing written that others read
//!                                       │
//!   frames  [■][■][□][■]…[■][■] …     ──┴─ chances            hands of 64 frames ──▶
//! ```
//!
//! Replacement policies ([`PoolPolicy`]) are behind the trait `replacement::Replacement`. The default is CLOCK. Only
//! the policy `two_queue_locked` takes a lock at a hit, and this page describes the pool under the other policies.
//!
//! Steps of a read ([`Pool::get`]):
//!
//! 1. Follow the chain without a lock and guard the block (`table`).
//! 2. If the block is not found, search once more under the chain's lock.
//! 3. If the block is still not found, load it without holding a lock, evict other blocks to make room (`hand`), and
//!    link the loaded block into the chain. If another thread has linked the same block during the load, use the block
//!    of that thread.
//!
//! I/O never happens under a lock.
//!
//! Invariants:
//!
//! * **The key is the owner's identity and the page.** Identities are never reused within a store. So if a page is
//!   freed and another owner writes it, the new block has another key. Each block carries its key, so a lookup never
//!   returns the old block. So the pool need not be informed that pages were freed. A run nevertheless calls
//!   [`Pool::forget_pages`] for the pages that it frees, because their blocks would occupy memory until the hand has
//!   passed them once or several times. Most of these blocks are removed later (`unneeded`).
//! * **CLOCK** (`002 §3.6.1`): a hit sets the chances of a frame to their maximum. The hand takes one chance from each
//!   frame that it passes and evicts frames without chances. A leaf has at most one chance and starts with none, so
//!   that a leaf that was read once is evicted before a leaf that was read twice. A block above the leaves has more
//!   chances ([`Keep`]), because it is needed for the reads of hundreds of leaves.
//! * **Scans cache their leaves on probation** (`probation`): in a full pool, at most an eighth of the capacity holds
//!   leaves that one scan entered and nothing has hit since.
//! * **Memory is charged before it is used**: to cache a block, a thread first charges the pool for the block, and
//!   evicts other blocks until the charged bytes are within the capacity. The thread links the block only after this.
//! * A leaf that is compressed on disk is cached, and charged, uncompressed.
//! * A block over an eighth of the capacity is returned without being cached. A smaller block is also returned without
//!   being cached if the pool finds nothing to evict.
//! * An evicted block stays in memory until its last holder drops it. Blocks that a *user* holds for long are counted
//!   ([`Block::pin`]). When the counted blocks exceed a quarter of the capacity, new guards should copy values instead
//!   of pinning blocks ([`Pool::should_copy`]).
//!
//! **Reservations** ([`MemorySource`]): memtables and the row cache reserve a part of the capacity; blocks use the
//! rest. A block of one page is a slot of a [`Slab`](crate::base::Slab). The memory of removed blocks stays with the
//! slab for the next blocks, and is returned to the operating system when memory is reserved.
//!
//! This pool lacks two parts of the cache in 002. There are no dirty pages, write locks and claims, because blocks
//! never change. There are no counters of readers, because the guards of `arc_swap` replace them ([decision
//! 0019](../../../../docs/decisions/0019-pool-concurrency.md)).
//!
//! Locks: the lock of a group's hand, or of the queues of a 2Q policy, is taken first; only the reader-writer lock of
//! `two_queue_locked` is taken before that. While a thread holds the lock of a hand or of these queues, it may take the
//! lock of a chain. While a thread holds the lock of a chain, of the free frames or of the slab, it takes no other
//! lock. The locks of the queues of `probation` and of `unneeded` are held without any other lock of the pool.

mod block;
mod free;
mod hand;
mod key;
mod policy;
mod probation;
mod queues;
mod replacement;
mod strategy;
mod table;
#[cfg(test)]
mod tests;
mod two_queue;
mod two_queue_locked;
mod unneeded;

use std::sync::Arc;

pub use block::{Block, PinnedBlock};
use block::{Body, Home, OVERHEAD};
use free::FreeFrames;
use hand::Hands;
use key::FrameKey;
pub use policy::PoolPolicy;
use probation::Probation;
use replacement::Replacement;
use strategy::Strategy;
use table::Table;
use two_queue_locked::{TwoQueueLocked, Victim};
use unneeded::Unneeded;

use crate::base::slab::MemorySource;
use crate::base::sync::{AtomicUsize, Counter, EXPLORED, Guard, Ordering::Relaxed, thread_number};
use crate::base::{BlockAddr, Ghosts, OwnerId, PAGE, PageNo, Result};
use crate::device::AlignedBuf;

/// The number of groups of threads. Each group counts hits and misses in a cache line of its own.
const TALLIES: usize = 8;

/// The number of freed pages whose blocks are removed at once when a range of pages is freed. A run of one gigabyte has
/// about a thousand ranges.
const FORGOTTEN_AT_ONCE: usize = 8;
/// The number of freed pages whose blocks are removed when a block is inserted.
const FORGOTTEN_AT_INSERTION: usize = 16;
/// An insertion also removes the blocks of this part of the freed pages, so that their number stays bounded.
const BACKLOG: usize = 1024;
/// The number of freed pages whose blocks are removed, before other blocks are evicted, when memory is reserved.
const FORGOTTEN_FOR_MEMORY: usize = 1024;

/// The buffer pool. All readers of blocks share it through an `Arc`.
#[derive(Debug)]
pub struct Pool {
    table: Table,
    /// The capacity in bytes, reserved bytes included.
    capacity: AtomicUsize,
    /// Bytes of the capacity that memtables, the row cache and other structures have reserved.
    lent: AtomicUsize,
    /// The part of `lent` that structures hold for their whole existence ([`Pool::hold`]).
    held: AtomicUsize,
    tallies: [Tally; TALLIES],
    /// Bytes charged for blocks, including the blocks for which room is being made.
    bytes: Charged,
    free: FreeFrames,
    strategy: Strategy,
    ghosts: Ghosts,
    probation: Probation,
    unneeded: Unneeded,
    home: Arc<Home>,
}

/// A counter that each miss writes. The counter has a cache line of its own, apart from the fields that each hit reads.
#[derive(Debug, Default)]
#[repr(align(64))]
struct Charged(AtomicUsize);

/// Counts of one group of threads.
#[derive(Debug, Default)]
#[repr(align(64))]
struct Tally {
    hits: Counter,
    misses: Counter,
    /// The number of blocks that were put into the cache. The next two fields count the blocks that were removed for
    /// any reason, and the blocks that were removed to make room.
    linked: Counter,
    unlinked: Counter,
    evictions: Counter,
}

/// How long a block is worth keeping.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Keep {
    /// A leaf.
    Short,
    /// A block that many searches read: a filter block, an inner node, or a block of range tombstones.
    Long,
}

impl Keep {
    /// The number of times that the hand passes a frame after a hit before it evicts the block.
    const fn ref_count(self) -> u8 {
        match self {
            Keep::Short => 1,
            Keep::Long => 4,
        }
    }
}

const _: () = assert!(Keep::Short.ref_count() < Keep::Long.ref_count(), "blocks above the leaves stay longer");
const _: () = assert!(Pool::LEAST_SHARE > 1 && Pool::GHOSTS > 1, "reservations and ghosts are parts of the capacity");

/// Statistics of the pool.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PoolStats {
    /// Bytes charged for the cached blocks, including their overhead.
    pub bytes: u64,
    /// The most bytes that may be charged now: the size of the pool without the bytes that memtables and rows reserve.
    pub capacity: u64,
    /// Blocks in the cache.
    pub blocks: u64,
    /// Lookups that found their block.
    pub hits: u64,
    /// Lookups that did not find their block.
    pub misses: u64,
    /// Blocks that were evicted to make room.
    pub evictions: u64,
    /// Bytes of blocks that users hold.
    pub pinned_bytes: u64,
}

impl Pool {
    /// Creates a pool that keeps at most `capacity_bytes`, overhead included, and evicts by CLOCK. Allocates 4 to 8
    /// bytes for each page of the capacity immediately, and the memory of a block when the block is cached.
    pub fn new(capacity_bytes: usize) -> Pool {
        Pool::with_policy(capacity_bytes, PoolPolicy::Clock)
    }

    /// Creates a pool as [`Pool::new`] does, with another replacement policy. The queues of 2Q take up to 24 bytes for
    /// each frame, which are not charged.
    ///
    /// ```
    /// use pandodb::pool::{Pool, PoolPolicy};
    /// let pool = Pool::with_policy(1 << 20, PoolPolicy::TwoQueue);
    /// assert_eq!(pool.stats().blocks, 0);
    /// ```
    pub fn with_policy(capacity_bytes: usize, policy: PoolPolicy) -> Pool {
        let blocks = capacity_bytes / (PAGE + OVERHEAD);
        let home = Arc::new(Home::new(blocks));
        home.keep_within(|| capacity_bytes);
        Pool {
            table: Table::new(blocks),
            capacity: AtomicUsize::new(capacity_bytes),
            lent: AtomicUsize::new(0),
            held: AtomicUsize::new(0),
            tallies: Default::default(),
            bytes: Charged::default(),
            free: FreeFrames::new(),
            strategy: Strategy::new(policy),
            ghosts: Ghosts::new(capacity_bytes / Pool::GHOSTS, PAGE, 1).remembering(Pool::GHOSTS as u64 / 2),
            probation: Probation::default(),
            unneeded: Unneeded::default(),
            home,
        }
    }

    /// Uses one hand for all threads, so that evictions do not depend on which threads make the requests. The evictions
    /// of the other policies never do. To be called before the pool is used.
    #[must_use]
    pub fn with_one_hand(mut self) -> Pool {
        debug_assert_eq!(self.free.about(), 0, "the pool was not used yet");
        if let Strategy::Clock(hands) = &mut self.strategy {
            **hands = Hands::one();
        }
        self
    }

    #[inline]
    fn tally(&self) -> &Tally {
        // The explorer runs all threads on one thread, where `thread_number` is expensive.
        &self.tallies[if EXPLORED { 0 } else { thread_number() % TALLIES }]
    }

    /// Returns the block at `addr` of `owner` from the cache, or loads it with `load` (without holding a lock) and
    /// caches it. A hit takes about 20 ns plus cache misses.
    ///
    /// # Errors
    /// The errors of `load`. If `load` fails, nothing is cached.
    #[inline]
    pub fn get(
        &self,
        owner: OwnerId,
        addr: BlockAddr,
        keep: Keep,
        load: impl FnOnce() -> Result<AlignedBuf>,
    ) -> Result<Block> {
        if let Some(locked) = self.locked() {
            return self.get_locked(locked, (owner, addr, keep), load);
        }
        match self.peek(owner, addr.page) {
            Some(block) => Ok(block),
            None => Ok(self.insert(owner, addr, keep, &load()?)),
        }
    }

    /// Returns the block if it is cached. Counts as a hit or a miss.
    #[inline]
    pub fn peek(&self, owner: OwnerId, page: PageNo) -> Option<Block> {
        let key = FrameKey::new(owner, page);
        if let Some(locked) = self.locked() {
            return self.peek_locked(locked, key);
        }
        let hash = key.hash();
        let found = self.table.find(key, hash).or_else(|| self.table.find_locked(key, hash));
        let tally = self.tally();
        if found.is_some() { &tally.hits } else { &tally.misses }.fetch_add(1, Relaxed);
        found.map(Block::guarded)
    }

    /// Looks up several blocks in one call: sets `found[i]` to the block `wanted[i]` if that block is found. The call
    /// may miss a cached block while the block's chain changes. Looks up at most [`Pool::TOGETHER`] blocks. Their cache
    /// misses overlap, so the call costs little more than the lookup of one block.
    #[inline]
    pub fn peek_several(&self, wanted: &[(OwnerId, PageNo)], found: &mut [Option<Block>]) {
        let mut keys = [(FrameKey::NONE, 0); Pool::TOGETHER];
        let mut guards = [const { None }; Pool::TOGETHER];
        let count = wanted.len().min(Pool::TOGETHER);
        debug_assert!(found.len() >= count, "each wanted block has a place for its result");
        for (key, (owner, page)) in keys.iter_mut().zip(wanted) {
            let name = FrameKey::new(*owner, *page);
            *key = (name, name.hash());
        }
        if let Some(locked) = self.locked() {
            return self.peek_several_locked(locked, &keys[..count], found);
        }
        self.table.find_several(&keys[..count], &mut guards[..count]);
        let mut hits = 0;
        for (found, guard) in found.iter_mut().zip(guards).take(count) {
            *found = guard.map(Block::guarded);
            hits += u64::from(found.is_some());
        }
        self.tally().hits.fetch_add(hits, Relaxed);
    }

    /// The bytes for blocks, and for everything that is reserved.
    pub fn budget(&self) -> usize {
        self.capacity.load(Relaxed)
    }

    /// At least 1/`LEAST_SHARE` of the capacity stays available to blocks, even if more than the rest is reserved.
    pub const LEAST_SHARE: usize = 4;

    /// The pool remembers the keys of the most recently evicted blocks, until the sizes of these blocks add up to
    /// 1/`GHOSTS` of its capacity. A cache whose misses are compared with the pool's misses must remember the same
    /// share of its own entries.
    pub const GHOSTS: usize = 16;

    /// Bytes of the capacity that memtables, the row cache and other structures have reserved.
    pub fn lent(&self) -> usize {
        self.lent.load(Relaxed)
    }

    /// Reserves `bytes` for the whole existence of a structure that is not a cache, such as an index or the description
    /// of a run. The call evicts no blocks, so it may be made under any lock but that of the slab. Instead, the next
    /// thread that caches a block evicts other blocks.
    pub fn hold(&self, bytes: usize) {
        self.held.fetch_add(bytes, Relaxed);
        self.lent.fetch_add(bytes, Relaxed);
        self.home.keep_within(|| self.capacity());
    }

    /// Releases `bytes` that were reserved by [`Pool::hold`].
    pub fn let_go(&self, bytes: usize) {
        let before = self.held.fetch_sub(bytes, Relaxed);
        debug_assert!(before >= bytes, "{bytes} of {before} bytes that structures hold are released");
        self.release(bytes);
    }

    /// Bytes that structures hold for their whole existence.
    pub fn held(&self) -> usize {
        self.held.load(Relaxed)
    }

    /// The approximate number of misses that a pool larger by 1/[`Pool::GHOSTS`] would have avoided.
    pub fn ghosts_found(&self) -> u64 {
        self.ghosts.found()
    }

    /// The most blocks that [`Pool::peek_several`] looks up.
    pub const TOGETHER: usize = table::MOST_TOGETHER;

    /// Caches a copy of a block that was read from `addr`. `bytes` are the uncompressed bytes, which may be more than
    /// `addr` has on disk. If another thread has cached the block already, the copy of that thread is returned.
    pub fn insert(&self, owner: OwnerId, addr: BlockAddr, keep: Keep, bytes: &[u8]) -> Block {
        self.ghosts.came(FrameKey::new(owner, addr.page).hash());
        // A leaf starts without a chance, so that a leaf that was read once is evicted before a leaf that was read
        // twice.
        self.put(owner, addr, keep, keep.ref_count() - Keep::Short.ref_count(), bytes, None)
    }

    /// Caches a copy of a block that was not requested yet but probably will be. The block starts without chances, so
    /// it is evicted early if no lookup hits it.
    pub fn offer(&self, owner: OwnerId, addr: BlockAddr, keep: Keep, bytes: &[u8]) {
        let key = FrameKey::new(owner, addr.page);
        let held = self.shared();
        let found = self.find(self.locked(), key, key.hash());
        drop(held);
        if found.is_none() {
            self.put(owner, addr, keep, 0, bytes, None);
        }
    }

    /// The pool's capacity in bytes, including the bytes that memtables, rows and keyspaces have reserved.
    pub fn size(&self) -> usize {
        self.capacity.load(Relaxed)
    }

    /// The most bytes that may be charged for blocks now: the capacity without the reserved bytes, but at least
    /// 1/[`Pool::LEAST_SHARE`] of the capacity. Unlimited if no block is ever evicted.
    fn capacity(&self) -> usize {
        if self.strategy.keeps_all() {
            return usize::MAX;
        }
        let whole = self.capacity.load(Relaxed);
        whole.saturating_sub(self.lent.load(Relaxed)).max(whole / Pool::LEAST_SHARE)
    }

    /// Caches a copy of a leaf that a scan has read and entered, if it is worth its memory (`probation`):
    ///
    /// * if the leaf fits without evicting another block, it is cached;
    /// * if the leaf was evicted lately, it is cached like a leaf that was hit;
    /// * otherwise, the leaf is cached on probation, unless the scan is `long`.
    ///
    /// A long scan passes many leaves and uses each of them once, so it may bring back only leaves that were evicted
    /// within the last 1/[`Pool::GHOSTS`] of the capacity.
    pub fn insert_scanned(&self, owner: OwnerId, addr: BlockAddr, long: bool, bytes: &[u8]) {
        let key = FrameKey::new(owner, addr.page);
        let hash = key.hash();
        let back = if long { self.ghosts.came_recently(hash) } else { self.ghosts.came(hash) };
        if back {
            self.put(owner, addr, Keep::Short, Keep::Short.ref_count(), bytes, None);
            return;
        }
        let cost = bytes.len() + OVERHEAD;
        let on_probation = || {
            // The FIFO queue of 2Q is a probation of its own.
            !long
                && (!self.strategy.is_clock()
                    || self.probation.enter(key, cost, self.capacity(), |old| self.dismiss(old)))
        };
        if self.has_room(bytes.len()) || on_probation() {
            self.put(owner, addr, Keep::Short, 0, bytes, None);
        }
    }

    /// Evicts a block that leaves probation, if nothing hit it.
    /// REQUIRES: the policy is CLOCK.
    fn dismiss(&self, key: FrameKey) {
        debug_assert!(self.strategy.is_clock(), "the frame need not leave the policy");
        if let Some((number, cost)) = self.table.remove_unhit(key, key.hash()) {
            self.count_eviction(key.hash(), cost);
            self.free.give_back(&self.table, number);
        }
    }

    /// Returns the block if it is cached, without recording a hit or a miss: the block is evicted as if this call had
    /// not been made. May miss a cached block while the block's chain changes.
    #[inline]
    pub fn glance(&self, owner: OwnerId, page: PageNo) -> Option<Block> {
        let key = FrameKey::new(owner, page);
        let _held = self.shared();
        let (_, found) = self.table.seek(key, key.hash(), table::FAR)?;
        Some(self.handed(found))
    }

    /// Removes the blocks that begin in these pages from the cache, now or later. Called when the pages are freed.
    /// REQUIRES: the owner never uses these pages for other blocks.
    pub fn forget_pages(&self, owner: OwnerId, pages: std::ops::Range<u64>) {
        debug_assert!(pages.start <= pages.end, "pages ascend");
        if !pages.is_empty() {
            self.unneeded.push(owner, pages);
            self.forget_some(FORGOTTEN_AT_ONCE);
        }
    }

    /// Removes the blocks of at most `most` of the queued pages. May leave a block whose chain changes at the same
    /// time; the hand evicts it later.
    fn forget_some(&self, mut most: usize) {
        while most > 0
            && !self.unneeded.is_empty()
            && let Some((owner, pages)) = self.unneeded.pop(most)
        {
            for page in pages.map(PageNo) {
                most -= 1;
                // Most pages are not cached, and `glance` takes no lock.
                if self.glance(owner, page).is_some() {
                    self.forget(owner, page);
                }
            }
        }
    }

    /// Removes some blocks of the queued pages. Returns whether there were such pages.
    pub fn forget_freed(&self) -> bool {
        let any = !self.unneeded.is_empty();
        self.forget_some(FORGOTTEN_FOR_MEMORY);
        any
    }

    /// Whether `bytes` of blocks of one page each can be cached without evicting anything.
    pub fn has_room(&self, bytes: usize) -> bool {
        let has_room = || self.bytes.0.load(Relaxed) + bytes / PAGE * (PAGE + OVERHEAD) <= self.capacity();
        has_room() || {
            self.forget_some(FORGOTTEN_AT_INSERTION.max(bytes / PAGE));
            has_room()
        }
    }

    /// A block for a reader. Under a policy with a lock, the reader counts a reference, so that an eviction sees that
    /// the block is in use.
    /// REQUIRES: the caller holds the lock of the policy, if it has one.
    #[inline]
    fn handed(&self, body: Guard<Arc<Body>>) -> Block {
        let block = Block::guarded(body);
        if self.locked().is_some() { block.keep() } else { block }
    }

    /// Looks up a block and records a hit. May miss a block while its chain changes.
    /// REQUIRES: the caller holds the lock of the policy, if it has one.
    fn find(&self, locked: Option<&TwoQueueLocked>, key: FrameKey, hash: u64) -> Option<Block> {
        match locked {
            None => self.table.find(key, hash).map(Block::guarded),
            Some(locked) => locked.find(&self.table, key, hash),
        }
    }

    /// Takes the lock of the policy, if it has one, shared with other lookups.
    #[inline]
    fn shared(&self) -> Option<impl Sized + '_> {
        self.locked().map(|locked| locked.buffer.read())
    }

    /// Takes the lock of the policy exclusively, if it has one. The holder may change chains and evict blocks.
    fn exclusive(&self) -> Option<impl Sized + '_> {
        self.locked().map(|locked| locked.buffer.write())
    }

    /// The policy, if its lookups take a lock.
    #[inline]
    fn locked(&self) -> Option<&TwoQueueLocked> {
        match &self.strategy {
            Strategy::TwoQueueLocked(locked) => Some(locked),
            _ => None,
        }
    }

    /// Caches a copy of a block, unless it is too large, nothing can be evicted for it, or it is cached already. Evicts
    /// `victim` first, which was chosen before the block was loaded, if this is still allowed.
    fn put(
        &self,
        owner: OwnerId,
        addr: BlockAddr,
        keep: Keep,
        chances: u8,
        bytes: &[u8],
        victim: Option<&Victim>,
    ) -> Block {
        debug_assert!(bytes.len() >= addr.bytes(), "a block is cached whole");
        let key = FrameKey::new(owner, addr.page);
        let hash = key.hash();
        self.forget_some(FORGOTTEN_AT_INSERTION + self.unneeded.pages() / BACKLOG);
        let body = Body::new(key, keep, bytes, self.home.clone());
        let (capacity, cost) = (self.capacity(), body.cost());
        if cost > capacity / 8 {
            return Block::counted(body);
        }
        let locked = self.locked();
        let _held = locked.map(|locked| locked.buffer.write());
        if let Some(first) = self.find(locked, key, hash) {
            return first;
        }
        if let Some(victim) = victim {
            self.evict_chosen(victim, cost, capacity);
        }
        let Some(number) = self.make_room(cost, capacity) else { return Block::counted(body) };
        self.strategy.enter(number);
        match self.table.link(number, hash, &body, chances) {
            Ok(()) => {
                self.tally().linked.fetch_add(1, Relaxed);
                Block::counted(body)
            }
            Err(first) => {
                self.uncharge(cost);
                self.strategy.leave(number);
                self.free.give_back(&self.table, number);
                self.handed(first)
            }
        }
    }

    /// Charges `cost`, evicts blocks until the charged bytes are at most `capacity`, and returns a frame. If no block
    /// is left to evict, charges nothing and returns `None`.
    fn make_room(&self, cost: usize, capacity: usize) -> Option<u32> {
        self.bytes.0.fetch_add(cost, Relaxed);
        let mut frame = None;
        if !self.shrink_to(capacity, &mut frame) {
            self.uncharge(cost);
            frame.into_iter().for_each(|number| self.free.give_back(&self.table, number));
            return None;
        }
        Some(frame.unwrap_or_else(|| self.free.frame(&self.table)))
    }

    /// Subtracts the cost of a block from the charged bytes; returns the bytes that remain charged.
    /// REQUIRES: the cost was charged, and no other thread subtracts it.
    fn uncharge(&self, cost: usize) -> usize {
        let before = self.bytes.0.fetch_sub(cost, Relaxed);
        assert!(before >= cost, "{cost} bytes of a block were charged, and {before} bytes are charged in all");
        before - cost
    }

    /// Evicts blocks until the pool is within `capacity` bytes and puts one of the freed frames into `frame`. Returns
    /// `false` if no block is left to evict.
    fn shrink_to(&self, capacity: usize, frame: &mut Option<u32>) -> bool {
        debug_assert!(frame.is_none(), "the caller has no frame yet");
        if self.bytes.0.load(Relaxed) <= capacity {
            return true;
        }
        while let Some(evicted) = self.strategy.evict(&self.table, &self.free) {
            let left = self.count_eviction(evicted.hash, evicted.cost);
            if let Some(number) = frame.replace(evicted.number) {
                self.free.give_back(&self.table, number);
            }
            if left <= capacity {
                return true;
            }
        }
        false
    }

    /// Counts the eviction of a block; returns the bytes that remain charged.
    // Always inlined, as `Hands::evict` is.
    #[inline(always)]
    fn count_eviction(&self, hash: u64, cost: usize) -> usize {
        self.ghosts.left(hash, cost);
        let left = self.uncharge(cost);
        let tally = self.tally();
        tally.unlinked.fetch_add(1, Relaxed);
        tally.evictions.fetch_add(1, Relaxed);
        left
    }

    /// Changes the capacity, and evicts blocks until the pool is within the new capacity. A capacity far above the
    /// initial one makes chains longer, and therefore lookups slower.
    pub fn set_capacity(&self, capacity_bytes: usize) {
        self.capacity.store(capacity_bytes, Relaxed);
        self.evict_down();
    }

    fn evict_down(&self) {
        let (capacity, mut frame) = (self.capacity(), None);
        if self.bytes.0.load(Relaxed) > capacity {
            self.forget_some(FORGOTTEN_FOR_MEMORY);
        }
        let held = self.exclusive();
        self.shrink_to(capacity, &mut frame);
        drop(held);
        frame.into_iter().for_each(|number| self.free.give_back(&self.table, number));
        self.home.keep_within(|| self.capacity());
    }

    /// Removes the blocks of all pages that were freed.
    #[cfg(test)]
    pub fn forget_all(&self) {
        self.forget_some(usize::MAX);
    }

    /// Removes a block from the cache, if it is cached. Callers use this for blocks that will not be requested again.
    pub fn forget(&self, owner: OwnerId, page: PageNo) {
        let key = FrameKey::new(owner, page);
        let _held = self.exclusive();
        if let Some((number, cost)) = self.table.remove(key, key.hash()) {
            self.uncharge(cost);
            self.tally().unlinked.fetch_add(1, Relaxed);
            self.strategy.leave(number);
            self.free.give_back(&self.table, number);
        }
    }

    /// Whether users hold more than a quarter of the capacity, so that a new guard should copy its value instead of
    /// pinning a block.
    pub fn should_copy(&self) -> bool {
        self.home.pinned.load(Relaxed) > self.capacity() as u64 / 4
    }

    /// Returns the statistics. Takes no lock. The counts are exact only while no other thread uses the pool.
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

impl MemorySource for Pool {
    /// Reserves `bytes` of the capacity and evicts blocks until the remaining blocks fit into the rest of the capacity.
    /// A quarter of the capacity always stays available to blocks. So if more than three quarters are reserved, blocks
    /// and reservations together may exceed the capacity.
    fn reserve(&self, bytes: usize) {
        self.lent.fetch_add(bytes, Relaxed);
        self.evict_down();
    }

    /// Releases `bytes` that were reserved. Does not read any block.
    fn release(&self, bytes: usize) {
        let before = self.lent.fetch_sub(bytes, Relaxed);
        debug_assert!(before >= bytes, "at most the reserved bytes are released");
        self.home.keep_within(|| self.capacity());
    }
}
