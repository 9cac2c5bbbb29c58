//! [`TwoQueueLocked`]: the page buffer of 000 §5.1.2 as its source describes it: 2Q, with one reader-writer lock around
//! the hash table and both queues. A baseline for measurements: every lookup writes the cache line of the lock.
//!
//! ```text
//!   get ─▶ shared lock: look up ─found─▶ count a reference, move the frame to the LRU queue
//!            └missing─▶ exclusive lock: look up again, choose a victim ─▶ no lock: load
//!                         ─▶ exclusive lock: look up again, check the victim again ─▶ evict, link
//! ```
//!
//! Steps of [`Pool::get`] under this policy:
//!
//! 1. Look up the block under the shared lock. If it is cached, count a reference (the source's *pin*).
//! 2. Otherwise take the exclusive lock and look up again, because another thread may have cached the block between the
//!    two locks. If the pool is full, choose a victim: the oldest block of the FIFO queue that is not in use, or if
//!    there is none, of the LRU queue.
//! 3. Load the block without any lock.
//! 4. Take the exclusive lock again and check two conditions. If another thread has cached the block during the load,
//!    use that block. If the victim was requested, evicted or is in use since step 2, choose another one. Then evict
//!    and link.
//!
//! The source does not say how a hit updates the queues while it holds the shared lock only. Its update procedure runs
//! at each access, so here the queues have a mutex of their own inside the reader-writer lock, and every hit takes
//! both. The source writes a changed page before it evicts the page, and that write is a part of its I/O in step 3.
//! Blocks of this pool never change, so step 3 only reads.
//!
//! Invariants, under the exclusive lock: the queues hold exactly the frames of the chains. A block that a reader holds
//! has more references than that of its frame, and is not evicted, because every reader counts its reference under the
//! lock.
//!
//! Locks: the reader-writer lock first; under it the mutex of the queues and the lock of the free frames; under the
//! mutex the lock of one chain at a time.
//!
//! Source: 000 §5.1.2; [decision 0082](../../../../docs/decisions/0082-pool-policies.md).

use super::block::{Block, OVERHEAD};
use super::free::FreeFrames;
use super::key::FrameKey;
use super::queues::Queues;
use super::replacement::Replacement;
use super::table::{Evicted, Table};
use super::{Keep, Pool};
use crate::base::sync::{Mutex, Ordering::Relaxed, RwLock};
use crate::base::{BlockAddr, OwnerId, Result, SeededBug};
use crate::device::AlignedBuf;

/// 2Q under one reader-writer lock.
#[derive(Debug, Default)]
pub(super) struct TwoQueueLocked {
    /// Guards the chains of the table and the queues. Lookups hold it shared, changes hold it exclusively.
    pub(super) buffer: RwLock<()>,
    queues: Mutex<Queues>,
}

/// A frame that was chosen for eviction, and the stamp that it had then.
#[derive(Clone, Copy, Debug)]
pub(super) struct Victim {
    number: u32,
    stamp: u64,
}

impl TwoQueueLocked {
    /// Looks up a block, counts a reference to it, and notes the access in the queues.
    /// REQUIRES: the caller holds the reader-writer lock, shared or exclusively.
    pub(super) fn find(&self, table: &Table, key: FrameKey, hash: u64) -> Option<Block> {
        let (number, body) = table.seek(key, hash, usize::MAX)?;
        let block = Block::guarded(body).keep();
        self.queues.lock().access(number);
        Some(block)
    }

    /// Chooses the next victim, without evicting it.
    /// REQUIRES: the caller holds the reader-writer lock exclusively.
    fn choose(&self, table: &Table) -> Option<Victim> {
        let queues = self.queues.lock();
        let number = queues.victims().find(|number| !table.is_in_use(*number))?;
        Some(Victim { number, stamp: queues.stamp(number) })
    }

    /// Takes a victim that was chosen earlier out of its chain, unless it was requested or left since, or is in use.
    /// REQUIRES: the caller holds the reader-writer lock exclusively.
    pub(super) fn evict_chosen(&self, table: &Table, victim: Victim) -> Option<Evicted> {
        let Victim { number, stamp } = victim;
        let mut queues = self.queues.lock();
        if queues.stamp(number) != stamp && !SeededBug::VictimNotCheckedAgain.is_on() {
            return None;
        }
        let evicted = table.evict_unused(number)?;
        queues.remove(number);
        Some(evicted)
    }
}

impl Replacement for TwoQueueLocked {
    fn enter(&self, number: u32) {
        self.queues.lock().enter(number);
    }

    fn leave(&self, number: u32) {
        self.queues.lock().remove(number);
    }

    /// REQUIRES: the caller holds the reader-writer lock exclusively.
    fn evict(&self, table: &Table, _: &FreeFrames) -> Option<Evicted> {
        self.choose(table).and_then(|victim| self.evict_chosen(table, victim))
    }
}

/// The lookups of a pool under this policy.
impl Pool {
    /// [`Pool::get`] under this policy.
    #[cold]
    pub(super) fn get_locked(
        &self,
        locked: &TwoQueueLocked,
        (owner, addr, keep): (OwnerId, BlockAddr, Keep),
        load: impl FnOnce() -> Result<AlignedBuf>,
    ) -> Result<Block> {
        let key = FrameKey::new(owner, addr.page);
        let victim = match self.look_twice(locked, key, addr.bytes() + OVERHEAD) {
            Ok(found) => return Ok(found),
            Err(victim) => victim,
        };
        let buf = load()?;
        self.ghosts.came(key.hash());
        Ok(self.put(owner, addr, keep, 0, &buf, victim.as_ref()))
    }

    /// Evicts a victim that was chosen before a block was loaded, if the pool still has no room for this block and the
    /// victim may still be evicted. Otherwise the caller chooses other victims, if it needs some.
    /// REQUIRES: the caller holds the lock exclusively.
    #[cold]
    pub(super) fn evict_chosen(&self, victim: &Victim, cost: usize, capacity: usize) {
        let locked = self.locked().expect("only this policy chooses victims before a load");
        if self.bytes.0.load(Relaxed) + cost > capacity
            && let Some(evicted) = locked.evict_chosen(&self.table, *victim)
        {
            self.count_eviction(evicted.hash, evicted.cost);
            self.free.give_back(&self.table, evicted.number);
        }
    }

    /// [`Pool::peek`] under this policy.
    #[cold]
    pub(super) fn peek_locked(&self, locked: &TwoQueueLocked, key: FrameKey) -> Option<Block> {
        self.look_twice(locked, key, 0).ok()
    }

    /// [`Pool::peek_several`] under this policy, for blocks with these keys and hashes.
    #[cold]
    pub(super) fn peek_several_locked(
        &self,
        locked: &TwoQueueLocked,
        wanted: &[(FrameKey, u64)],
        found: &mut [Option<Block>],
    ) {
        debug_assert!(found.len() >= wanted.len(), "each wanted block has a place for its result");
        let _held = locked.buffer.read();
        for ((key, hash), found) in wanted.iter().zip(found) {
            *found = locked.find(&self.table, *key, *hash);
            self.tally().hits.fetch_add(u64::from(found.is_some()), Relaxed);
        }
    }

    /// Looks up a block under the shared lock and, if it is missing, once more under the exclusive lock. If it is
    /// missing again, returns the victim that has to leave for a block that is charged `cost` bytes, if there must be
    /// one.
    fn look_twice(&self, locked: &TwoQueueLocked, key: FrameKey, cost: usize) -> Result<Block, Option<Victim>> {
        let hash = key.hash();
        let shared = {
            let _held = locked.buffer.read();
            locked.find(&self.table, key, hash)
        };
        let found = shared.ok_or(()).or_else(|()| {
            let _held = locked.buffer.write();
            let is_full = || self.bytes.0.load(Relaxed) + cost > self.capacity();
            locked
                .find(&self.table, key, hash)
                .ok_or_else(|| (cost > 0 && is_full()).then(|| locked.choose(&self.table)).flatten())
        });
        let tally = self.tally();
        if found.is_ok() { &tally.hits } else { &tally.misses }.fetch_add(1, Relaxed);
        found
    }
}
