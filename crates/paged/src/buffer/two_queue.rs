//! 2Q under one reader-writer lock, as the source has it (000 §5.1.2). This lock is its bottleneck (000 §6.4).
//!
//! 1. A hit holds the lock shared, counts a pin, and records the request in the queues.
//! 2. A miss starts again with the exclusive lock. If there is no room, it chooses a victim: the oldest unpinned page of
//!    the FIFO queue, or else of the LRU queue.
//! 3. A dirty victim is pinned and written without the lock. With the lock again, the miss checks that no other thread
//!    has pinned or changed the victim or loaded the page, and starts again if one has.
//! 4. The page enters the table, latched exclusively, and is read without the lock.
//!
//! The source does not say how a hit may change the queues under the shared lock. As in decision 0082, the queues have a
//! mutex inside.
//!
//! Locks: the state, then the queues, then the room of the store. A latch is taken under these locks only when the frame
//! is empty, so that no thread can hold it.

use std::path::Path;

use super::queues::Queues;
use super::store::{Place, Store, Table, create_page};
use super::{BufferConfig, Counts, PageBuffer};
use crate::error::Result;
use crate::frame::{PageNo, Pinned, WritePage};
use crate::sync::{Mutex, Ordering, RwLock, RwLockWriteGuard};

/// The buffer.
#[derive(Debug)]
pub struct TwoQueue {
    store: Store,
    table: RwLock<Table>,
    queues: Mutex<Queues>,
}

impl TwoQueue {
    /// Creates the buffer and its file.
    ///
    /// # Errors
    /// The errors of the file.
    pub fn create(config: &BufferConfig, path: &Path) -> Result<TwoQueue> {
        let store = Store::create(config, path)?;
        Ok(TwoQueue { store, table: RwLock::new(Table::default()), queues: Mutex::new(Queues::new()) })
    }

    #[inline]
    fn hit(&self, table: &Table, page: PageNo) -> Option<Pinned<'_>> {
        let frame = *table.get(&page)?;
        let pinned = self.store.frames.get(frame).pin();
        self.queues.lock().touch(frame);
        Some(pinned)
    }

    /// Loads a page, or pins it if another thread has loaded it meanwhile.
    fn miss(&self, page: PageNo, fresh: bool) -> Result<Pinned<'_>> {
        loop {
            self.store.check()?;
            let mut table = self.table.write();
            if let Some(pinned) = self.hit(&table, page) {
                return Ok(pinned);
            }
            let frame_no = match self.store.place() {
                Place::Frame(frame) => frame,
                place => {
                    let victim = self.queues.lock().victim(|frame| self.store.frames.get(frame).is_unpinned());
                    match victim {
                        None => self.store.overflow(),
                        Some(victim) => {
                            if self.store.frames.get(victim).dirty.load(Ordering::Relaxed) {
                                self.clean(victim, page, table)?;
                                // The table may have changed, so everything is decided again. The victim is clean now,
                                // and usually still the first.
                                continue;
                            }
                            self.remove(&mut table, victim);
                            if place == Place::Over {
                                self.store.release(victim);
                                continue;
                            }
                            victim
                        }
                    }
                }
            };
            let frame = self.store.frames.get(frame_no);
            let mut latch = frame.latch_empty();
            table.insert(page, frame_no);
            let pinned = frame.occupy(page);
            self.queues.lock().touch(frame_no);
            drop(table);
            self.store.load(frame, page, &mut latch, fresh)?;
            drop(latch);
            return Ok(pinned);
        }
    }

    /// Writes a dirty victim. Another thread may pin or change it during the write; the caller checks that.
    fn clean(&self, victim: u32, wanted: PageNo, table: RwLockWriteGuard<'_, Table>) -> Result<()> {
        let frame = self.store.frames.get(victim);
        let pinned = frame.pin();
        self.store.write_back(frame, || drop(table))?;
        let table = self.table.read();
        let used = frame.pins.load(Ordering::Acquire) > 1 || frame.dirty.load(Ordering::Relaxed);
        if used || table.contains_key(&wanted) {
            self.store.restarted();
        }
        drop(table);
        drop(pinned);
        Ok(())
    }

    /// Removes the page of an unpinned, clean frame.
    fn remove(&self, table: &mut Table, frame: u32) {
        let victim = self.store.frames.get(frame).pin();
        let holds = victim.frame().holds.load(Ordering::Relaxed);
        assert!(victim.try_empty(), "no thread pins a page while the table is locked exclusively");
        let removed = table.remove(&holds);
        assert_eq!(removed, Some(frame), "the table leads to the victim");
        self.queues.lock().remove(frame);
        self.store.evicted();
    }
}

impl PageBuffer for TwoQueue {
    fn pin(&self, page: PageNo) -> Result<Pinned<'_>> {
        {
            let table = self.table.read();
            if let Some(pinned) = self.hit(&table, page) {
                drop(table);
                self.store.check()?;
                return Ok(pinned);
            }
        }
        self.miss(page, false)
    }

    fn create(&self) -> Result<WritePage<'_>> {
        create_page(&self.store, |page| self.miss(page, true))
    }

    fn counts(&self) -> Counts {
        self.store.counts()
    }
}
