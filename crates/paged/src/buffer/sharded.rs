//! A page buffer without the one lock of 2Q: a sharded table, and a policy that is told of hits by marks.
//!
//! 1. A hit holds the shared lock of one shard, counts a pin, and marks the frame.
//! 2. A miss takes an empty frame, or a victim of the policy. The victim is pinned and written without a lock. Under the
//!    exclusive lock of the victim's shard, the miss checks that no other thread has pinned or changed it; otherwise the
//!    victim enters the policy again.
//! 3. The page enters its shard, latched exclusively, unless another thread was faster; it is read without a lock.
//!
//! Locks: at most one shard; under it the room of the store and the latch of an unpinned frame. The lock of the policy
//! is taken without any other.

use std::path::Path;

use super::replacement::Policy;
use super::store::{Place, Store, Table, create_page};
use super::{BufferConfig, Counts, PageBuffer};
use crate::error::Result;
use crate::frame::{PageNo, Pinned, WritePage};
use crate::mistake::Mistake;
use crate::sync::{Ordering, RwLock};

const SHARDS: usize = 64;

/// The buffer.
#[derive(Debug)]
pub struct Sharded {
    store: Store,
    shards: Box<[RwLock<Table>]>,
    policy: Policy,
}

impl Sharded {
    /// Creates the buffer and its file.
    pub(crate) fn create(config: &BufferConfig, path: &Path, policy: Policy) -> Result<Sharded> {
        let store = Store::create(config, path)?;
        let shards = std::iter::repeat_with(|| RwLock::new(Table::default())).take(SHARDS).collect();
        Ok(Sharded { store, shards, policy })
    }

    #[inline]
    fn shard(&self, page: PageNo) -> &RwLock<Table> {
        // The table uses other bits of the hash.
        &self.shards[(page.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 58) as usize % SHARDS]
    }

    #[inline]
    fn hit(&self, table: &Table, page: PageNo) -> Option<Pinned<'_>> {
        let frame = self.store.frames.get(*table.get(&page)?);
        let pinned = frame.pin();
        if !frame.marked.load(Ordering::Relaxed) {
            frame.marked.store(true, Ordering::Relaxed);
        }
        Some(pinned)
    }

    fn miss(&self, page: PageNo, fresh: bool) -> Result<Pinned<'_>> {
        self.store.check()?;
        let frame_no = self.empty_frame()?;
        let mut table = self.shard(page).write();
        if let Some(pinned) = self.hit(&table, page) {
            drop(table);
            self.store.put_back(frame_no);
            return Ok(pinned);
        }
        let frame = self.store.frames.get(frame_no);
        debug_assert!(frame.is_unpinned(), "an empty frame is not pinned");
        let pinned = frame.pin();
        let mut latch = frame.latch.write();
        frame.holds.store(page, Ordering::Relaxed);
        frame.marked.store(false, Ordering::Relaxed);
        table.insert(page, frame_no);
        drop(table);
        let loaded = self.store.load(frame, page, &mut latch, fresh);
        drop(latch);
        loaded?;
        self.policy.enter(frame_no);
        Ok(pinned)
    }

    /// A frame without a page. Evicts a page if there is no room.
    fn empty_frame(&self) -> Result<u32> {
        loop {
            let place = self.store.place();
            if let Place::Frame(frame) = place {
                return Ok(frame);
            }
            let Some(victim) = self.policy.victim(&self.store.frames) else { return Ok(self.store.overflow()) };
            if !self.evict(victim)? {
                self.store.restarted();
                self.policy.enter(victim);
                continue;
            }
            self.store.evicted();
            if place == Place::Full {
                return Ok(victim);
            }
            self.store.release(victim);
        }
    }

    /// Removes the page of a victim. Returns `false` if another thread uses it.
    fn evict(&self, victim: u32) -> Result<bool> {
        let frame = self.store.frames.get(victim);
        let pinned = frame.pin();
        let holds = frame.holds.load(Ordering::Relaxed);
        if frame.dirty.load(Ordering::Relaxed) {
            self.store.write_back(frame, || ())?;
        }
        let mut table = self.shard(holds).write();
        let pins = frame.pins.load(Ordering::Acquire);
        let unused = pins == 1 && !frame.dirty.load(Ordering::Relaxed) || Mistake::PinnedVictimEvicted.is_on();
        if unused {
            let removed = table.remove(&holds);
            assert_eq!(removed, Some(victim), "the table leads to the victim");
        }
        drop(table);
        drop(pinned);
        Ok(unused)
    }
}

impl PageBuffer for Sharded {
    #[inline]
    fn pin(&self, page: PageNo) -> Result<Pinned<'_>> {
        let pinned = self.hit(&self.shard(page).read(), page);
        match pinned {
            Some(pinned) => {
                self.store.check()?;
                Ok(pinned)
            }
            None => self.miss(page, false),
        }
    }

    fn create(&self) -> Result<WritePage<'_>> {
        create_page(&self.store, |page| self.miss(page, true))
    }

    fn counts(&self) -> Counts {
        self.store.counts()
    }
}
