//! The calls that wait until background work is done: `pack`, `compact`, `checkpoint_all` and `settle`.
//!
//! Without background threads the caller does the work itself. A wait ends with an error when the work cannot continue.

use std::sync::Arc;
use std::time::Duration;

use super::engine::Engine;
use super::state::KeyspaceState;
use crate::base::sync::relax;
use crate::base::{Error, KeyRange, Result, Seqno};
use crate::index::SortedLoader;
use crate::sched::{BACKGROUND_STEP, Turn};

/// The time that a thread sleeps before it checks the background work again.
const PAUSE: Duration = Duration::from_millis(5);

impl Engine {
    /// Compacts a range completely and waits until this is done.
    pub(crate) fn compact(&self, keyspace: &KeyspaceState, range: &KeyRange) -> Result<()> {
        self.check_writable()?;
        keyspace.check_alive()?;
        if !range.is_empty() && keyspace.index.stats().damaged > 0 {
            // The request makes the index try again what it could not read, also for memtables that wait for this.
            keyspace.index.compact(range)?;
            self.background.clear_trouble();
            // Damage that is still there is found and reported again.
            drop(self.background.take_damage_of(keyspace.id));
        }
        self.pack_keyspace(keyspace)?;
        self.background.clear_trouble();
        if range.is_empty() {
            return Ok(());
        }
        keyspace.index.compact(range)?;
        self.settle_all()?;
        // Damaged inputs are excluded and do not count as debt, so report the damage here.
        self.background.take_damage_of(keyspace.id).map_or(Ok(()), Err)
    }

    /// Packs the memtables of a keyspace and merges an earlier sorted load, and waits until this is done. If the
    /// keyspace has no memtables, takes a checkpoint that writes its pages.
    pub(super) fn pack_keyspace(&self, keyspace: &KeyspaceState) -> Result<()> {
        let through = {
            let sequencer = self.writer.quiesce();
            self.seal(&sequencer, keyspace);
            keyspace.last_sealed()
        };
        let merges = || keyspace.index.loader().is_some_and(SortedLoader::has_waiting_load);
        // Later memtables may wait, too, as long as other threads write.
        self.drain(&|| is_packed(keyspace, through) && (keyspace.check_alive().is_err() || !merges()))?;
        if keyspace.is_direct { self.write_direct() } else { Ok(()) }
    }

    /// Packs every memtable, and waits until this is done. If there were direct writes, takes a checkpoint. The call does
    /// not wait for memtables of later writes, nor for the merge of a sorted load unless a memtable waits for it.
    pub(crate) fn pack(&self) -> Result<()> {
        self.check_writable()?;
        let waiting: Vec<(Arc<KeyspaceState>, Seqno)> = {
            let sequencer = self.writer.quiesce();
            let keyspaces = self.keyspaces.read();
            keyspaces.values().for_each(|keyspace| self.seal(&sequencer, keyspace));
            keyspaces.values().map(|keyspace| (keyspace.clone(), keyspace.last_sealed())).collect()
        };
        self.drain(&|| waiting.iter().all(|(keyspace, through)| is_packed(keyspace, *through)))?;
        self.write_direct()
    }

    /// Packs all memtables and takes two checkpoints, one for each superblock. After both checkpoints, no record that
    /// is older than this call is needed any more, and the old log is removed.
    pub(crate) fn checkpoint_all(&self) -> Result<()> {
        self.pack()?;
        self.checkpoint()?;
        self.checkpoint()
    }

    /// Waits until no debt is left, then releases the pages that wait for superblocks. Returns damage that compactions
    /// have found as an error. Each damage is returned only once.
    pub(crate) fn settle(&self) -> Result<()> {
        self.settle_all()?;
        self.background.take_damage().map_or(Ok(()), Err)
    }

    fn settle_all(&self) -> Result<()> {
        self.check_writable()?;
        // Pages that the last compactions freed wait for two superblocks, and each checkpoint may seal a memtable.
        for _ in 0..4 {
            self.drain(&|| self.debt().total() == 0)?;
            // Wait for all workers: if a keyspace was dropped during a worker's step, the worker holds the runs of this
            // keyspace until the step ends.
            drop(self.gate.write());
            self.checkpoint()?;
            if !self.core.data.has_quarantine() && self.debt().total() == 0 {
                break;
            }
        }
        Ok(())
    }

    /// Waits until `done` returns true. Without background threads, the caller does the work.
    ///
    /// # Errors
    /// The reason why the work cannot continue.
    fn drain(&self, done: &dyn Fn() -> bool) -> Result<()> {
        let (mut seen, mut rounds, mut idle) = (0, 0, 0);
        while !done() {
            self.check_writable()?;
            if self.config.background_threads == 0 {
                if matches!(self.turn_alone(BACKGROUND_STEP), Turn::Worked(_)) {
                    continue;
                }
            } else {
                self.background.scheduler.wake();
                self.background.scheduler.wait(PAUSE);
            }
            match self.obstacle() {
                Some(Error::DiskFull { .. }) if self.may_wait_on(&mut seen, &mut rounds) => {}
                Some(error) => return Err(error),
                // Without background threads, another caller is doing the rest of the work.
                None if self.config.background_threads == 0 => {
                    relax(idle);
                    idle = idle.saturating_add(1);
                }
                None => {}
            }
        }
        Ok(())
    }
}

/// Whether the index of a keyspace holds every message up to `through`. The messages of a dropped keyspace are not
/// waited for.
fn is_packed(keyspace: &KeyspaceState, through: Seqno) -> bool {
    keyspace.check_alive().is_err() || keyspace.index.view().through() >= through
}

#[cfg(test)]
mod tests {
    use crate::device::MemDevice;
    use crate::store::Store;

    /// `pack` once waited only for the oldest of several sealed memtables.
    #[test]
    fn pack_waits_for_every_memtable_that_is_sealed() {
        let store = Store::builder("s").device(MemDevice::new()).background_threads(0).open().expect("open");
        let keyspaces = ["a", "b"].map(|name| store.keyspace(name).expect("created"));
        for keyspace in &keyspaces {
            for key in ["x", "y", "z"] {
                keyspace.put(key, "1").expect("written");
                let sequencer = store.engine.writer.quiesce();
                store.engine.seal(&sequencer, &keyspace.state);
            }
            assert_eq!(keyspace.state.containers.load().sealed.len(), 3);
        }
        store.engine.pack_keyspace(&keyspaces[0].state).expect("packed");
        assert!(keyspaces[0].state.containers.load().sealed.is_empty());
        store.pack().expect("packed");
        assert!(keyspaces[1].state.containers.load().sealed.is_empty());
    }
}
