//! A page buffer without the one lock of 2Q: a sharded table, and a policy that is told of hits by marks.
//!
//! 1. A hit holds the shared lock of one shard, counts a pin, and marks the frame.
//! 2. A miss takes an empty frame, or a victim of the policy. The victim is pinned and written without a lock. Under the
//!    exclusive lock of the victim's shard, the miss empties the frame if no other thread has pinned or changed
//!    it; otherwise the victim enters the policy again.
//! 3. The page enters its shard, latched exclusively, unless another thread was faster; it is read without a lock.
//!
//! Locks: at most one shard; under it the room of the store and the latch of an empty frame, which no thread holds. The
//! lock of the policy is taken without any other.

use std::path::Path;

use super::replacement::Policy;
use super::store::{Place, Store, Table, create_page};
use super::{BufferConfig, Counts, PageBuffer};
use crate::error::Result;
use crate::frame::{PageNo, Pinned, WritePage};
use crate::sync::{Ordering, RwLock};

const SHARDS: usize = 64;

/// A page and its frame.
pub(super) type Found<'a> = (u32, Pinned<'a>);

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
    fn hit(&self, table: &Table, page: PageNo) -> Option<Found<'_>> {
        let frame_no = *table.get(&page)?;
        let pinned = self.store.frames.get(frame_no).pin();
        pinned.frame().mark();
        Some((frame_no, pinned))
    }

    /// Pins the page if it is in memory, or about to be loaded.
    #[inline]
    pub(super) fn find(&self, page: PageNo) -> Option<Found<'_>> {
        self.hit(&self.shard(page).read(), page)
    }

    /// Pins the page if this frame has it.
    #[inline]
    pub(super) fn find_in(&self, frame_no: u32, page: PageNo) -> Option<Pinned<'_>> {
        let pinned = self.store.frames.get(frame_no).pin_if_holds(page)?;
        pinned.frame().mark();
        Some(pinned)
    }

    /// Fails if an earlier read or write has failed.
    #[inline]
    pub(super) fn check(&self) -> Result<()> {
        self.store.check()
    }

    /// Loads a page, or pins it if another thread has loaded it meanwhile.
    pub(super) fn miss(&self, page: PageNo, fresh: bool) -> Result<Found<'_>> {
        self.store.check()?;
        let frame_no = self.empty_frame()?;
        let mut table = self.shard(page).write();
        if let Some(found) = self.hit(&table, page) {
            drop(table);
            self.store.put_back(frame_no);
            return Ok(found);
        }
        let frame = self.store.frames.get(frame_no);
        let mut latch = frame.latch_empty();
        frame.marked.store(false, Ordering::Relaxed);
        table.insert(page, frame_no);
        let pinned = frame.occupy(page);
        drop(table);
        let loaded = self.store.load(frame, page, &mut latch, fresh);
        drop(latch);
        loaded?;
        self.policy.enter(frame_no);
        Ok((frame_no, pinned))
    }

    /// An empty frame. Evicts a page if there is no room.
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

    /// Removes the page of a victim from its frame. Returns `false` if another thread uses it.
    fn evict(&self, victim: u32) -> Result<bool> {
        let frame = self.store.frames.get(victim);
        let pinned = frame.pin();
        let holds = frame.holds.load(Ordering::Relaxed);
        if frame.dirty.load(Ordering::Relaxed) {
            self.store.write_back(frame, || ())?;
        }
        let mut table = self.shard(holds).write();
        let emptied = pinned.try_empty();
        if emptied {
            let removed = table.remove(&holds);
            assert_eq!(removed, Some(victim), "the table leads to the victim");
        }
        Ok(emptied)
    }
}

impl PageBuffer for Sharded {
    #[inline]
    fn pin(&self, page: PageNo) -> Result<Pinned<'_>> {
        match self.find(page) {
            Some((_, pinned)) => {
                self.store.check()?;
                Ok(pinned)
            }
            None => Ok(self.miss(page, false)?.1),
        }
    }

    fn create(&self) -> Result<WritePage<'_>> {
        create_page(&self.store, |page| Ok(self.miss(page, true)?.1))
    }

    fn counts(&self) -> Counts {
        self.store.counts()
    }
}
