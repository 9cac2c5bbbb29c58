//! Background work is done in turns. A turn is one step of at most a given number of bytes, so that every thread checks
//! the state of the store often.
//!
//! ```text
//!   checkpoint thread:  row cache shrinks ─▶ log segments are preallocated ─▶ a checkpoint, if one is due
//!   worker:             disk full? relief ─▶ too much uncovered? checkpoint ─▶ a step of the keyspace with the most debt
//!                       ─▶ nothing to do for some time? idle-time work
//!   no threads:         a writer does both; a turn is a step of a checkpoint's preparation, a checkpoint or a small step
//! ```
//!
//! Every turn holds the lock `gate` shared, so a close waits until the turn ends.

use std::sync::Arc;
use std::time::Duration;

use super::engine::Engine;
use super::state::KeyspaceState;
use crate::base::sync::{EXPLORED, MutexGuard, Ordering::Relaxed, relax};
use crate::base::{Error, Result, events};
use crate::index::Progress;
use crate::memtable::Memtable;
use crate::sched::Turn;

/// Workers pack at most this number of the smallest full memtables, or other memtables of the same total size. They
/// then wait for the checkpoint that covers these memtables. The reason: until this checkpoint, the log of these
/// memtables and freed pages are kept.
const MOST_UNCOVERED: u64 = 8;

/// The longest time that a thread waits for the last users of a memtable, and the most times that it looks.
const MOST_WAIT: Duration = Duration::from_millis(1);
const MOST_WAITS: u32 = 128;

impl Engine {
    /// Does one turn of the work that does not count as background debt: reclaims memory that the row cache returns,
    /// preallocates log segments, and takes a checkpoint if one is due. If `ahead` is not 0, a turn first writes about
    /// `ahead` bytes of what the checkpoint would write, and returns. Once nothing is left to write ahead, a turn takes
    /// the checkpoint.
    ///
    /// [`Turn::Idle`]: no checkpoint is due, another thread has the turn, or an earlier turn found the disk full, so that
    /// [`Engine::relieve`] takes the checkpoint. [`Turn::Stuck`]: the checkpoint failed; after a full disk its request
    /// stays.
    pub(crate) fn checkpoint_turn(&self, ahead: u64) -> Turn {
        self.core.rows.shrink();
        if !self.prepare_log() {
            return Turn::Stuck;
        }
        if !self.checkpointer.is_due() || self.pressure.pressed.load(Relaxed) {
            return Turn::Idle;
        }
        let Some(turn) = self.checkpointer.try_turn() else { return Turn::Idle };
        // On an almost full disk only the checkpoint itself writes, because it may use the reserve.
        if ahead > 0 && !self.is_tight() {
            match self.write_ahead(ahead) {
                Ok(None) => return Turn::Idle,
                Ok(Some(0)) | Err(Error::DiskFull { .. }) => {}
                Ok(Some(written)) => return Turn::Worked(written),
                Err(e) => return self.note_trouble(e),
            }
        }
        self.take_checkpoint(turn)
    }

    /// Takes a checkpoint if one is due. It counts as a turn that worked, so a writer that does the work itself does no
    /// step in the same turn. If the disk is full, the request stays. REQUIRES: the caller has the checkpointer's turn.
    fn take_checkpoint(&self, _turn: MutexGuard<'_, ()>) -> Turn {
        if self.writer.poison.is_set() || self.access.is_closed() {
            return Turn::Stuck;
        }
        if !self.checkpointer.accept() {
            return Turn::Idle;
        }
        self.checkpointer.begin();
        self.share_dead_ranges();
        let result = self.checkpoint();
        if matches!(result, Err(Error::DiskFull { .. })) {
            self.checkpointer.request();
        }
        result.map_or_else(|e| self.note_trouble(e), |()| Turn::Worked(1))
    }

    /// Writes about `most` bytes of what the indexes would write in a checkpoint. Returns the bytes written, which are 0
    /// if nothing is left; `None` if another thread has locked the root. REQUIRES: the caller has the checkpointer's turn.
    fn write_ahead(&self, most: u64) -> Result<Option<u64>> {
        let Some(_root) = self.checkpointer.root.try_lock() else { return Ok(None) };
        let (before, mut written, mut result) = (self.core.data.stats().root_bytes, 0, Ok(()));
        for keyspace in self.keyspaces.all() {
            if written >= most || result.is_err() {
                break;
            }
            result = keyspace.index.write_ahead(most - written).map(|bytes| written += bytes);
        }
        self.figures.checkpoint_bytes.fetch_add(self.core.data.stats().root_bytes - before, Relaxed);
        result.map(|()| Some(written))
    }

    /// If a keyspace found no memory for a dead range, drops the ranges that are not used in all keyspaces.
    fn share_dead_ranges(&self) {
        if self.dead_ranges.was_refused() {
            self.keyspaces.all().iter().for_each(|keyspace| keyspace.dead_ranges.drop_unused());
        }
    }

    /// Preallocates log segments. Returns `false` if the store is poisoned or closed.
    fn prepare_log(&self) -> bool {
        // While the reserve is short, do not preallocate: work that frees space needs the rest of the disk.
        if self.is_writable()
            && let Some(log) = self.writer.log.as_ref().filter(|_| !self.reserve.is_short())
            && let Err(e) = log.prepare(&|bytes| self.check_space(bytes))
        {
            self.poison(&e);
        }
        self.is_writable()
    }

    /// Does one turn of background work: a step of the keyspace with the largest debt.
    pub(crate) fn turn(&self, budget: u64) -> Turn {
        // On a full disk, only one thread at a time works, in small pieces. Otherwise a checkpoint comes first if too
        // much was packed since the last checkpoint. The checkpoint may free space, and the amount of work that it has
        // to do must stay bounded. Log segments are also preallocated here, because they are needed even while a
        // checkpoint waits for the disk.
        if (self.pressure.pressed.load(Relaxed) || self.is_tight()) && self.is_writable() {
            return self.relieve();
        }
        let waits = self.checkpointer.uncovered() >= MOST_UNCOVERED * self.config.least_memtable() as u64;
        if waits && self.take_checkpoint(self.checkpointer.wait_for_turn()) == Turn::Stuck || !self.prepare_log() {
            return Turn::Stuck;
        }
        self.core.rows.shrink();
        // Keyspaces with sealed memtables come first, because sealed memtables hold memory.
        let (mut rank, mut damage) = (None, None);
        while let Some(next) = self.core.share.owed.next(rank) {
            rank = Some(next);
            // A keyspace that is being dropped still has debt until its index is cleared.
            let Some(keyspace) = self.keyspaces.get(next.1) else { continue };
            let _step = events::step(&keyspace.name);
            match keyspace.index.step(budget, &|| self.snapshots.stripes()) {
                Ok(progress) if progress.idle => {}
                Ok(progress) => return Turn::Worked(self.note_progress(&keyspace, progress).max(1)),
                // Another thread is taking or preparing a checkpoint, which may free the missing space.
                Err(Error::DiskFull { .. }) if self.checkpointer.try_turn().is_none() => {
                    drop(self.checkpointer.wait_for_turn());
                    return Turn::Worked(1);
                }
                Err(Error::DiskFull { op }) => {
                    self.press(op);
                    return self.relieve();
                }
                // A damaged page of one keyspace must not stop the work of the others.
                Err(e) if e.is_damage() => damage = Some(e),
                Err(e) => return self.end_in_trouble(e),
            }
        }
        if let Some(e) = damage {
            return self.end_in_trouble(e);
        }
        if self.is_at_rest() {
            if self.keyspaces.active() > self.config.least_memtable() as u64 {
                self.seal_filled();
                return Turn::Worked(1);
            }
            if self.checkpointer.direct() > self.config.least_memtable() as u64 {
                self.checkpointer.request();
                return self.take_checkpoint(self.checkpointer.wait_for_turn());
            }
            if self.core.pool.forget_freed() {
                return Turn::Worked(1);
            }
            self.chunks.trim();
            self.share_dead_ranges();
            match self.core.data.punch_at_rest() {
                Ok(true) => return Turn::Worked(1),
                Ok(false) => {}
                Err(e) => return self.note_trouble(e),
            }
            self.keyspaces.all().iter().for_each(|keyspace| keyspace.index.on_idle());
        }
        Turn::Idle
    }

    /// Ends a turn that has failed.
    fn end_in_trouble(&self, error: Error) -> Turn {
        let turn = self.note_trouble(error);
        if self.checkpointer.is_due() {
            self.background.scheduler.wake();
        }
        turn
    }

    /// Accounts for a successful step of a keyspace's index. Returns the bytes that the step processed.
    pub(super) fn note_progress(&self, keyspace: &KeyspaceState, progress: Progress) -> u64 {
        assert!(!progress.idle, "a step that did something is no idle step");
        if progress.absorbed.is_some() {
            self.free_memtables(&keyspace.retire_sealed());
        }
        let packed = progress.absorbed.unwrap_or(0) + progress.merged;
        if packed > 0 {
            let uncovered = self.checkpointer.note_packed(packed);
            // Do not request a checkpoint for every small memtable, so that many small memtables share one checkpoint.
            let is_last = progress.absorbed.is_some() && self.debt().memory_bytes == 0;
            if uncovered >= self.config.least_memtable() as u64 / 4 || is_last {
                self.checkpointer.request();
                self.background.scheduler.wake();
            }
        }
        if let Some(damage) = progress.damage {
            events::failed(&keyspace.name, &damage);
            self.background.note_damage(keyspace.id, damage);
        }
        self.background.note_success();
        progress.bytes
    }

    /// Waits a moment for the lookups that still use memtables, so that the caller uses them last. The last user frees
    /// a memtable, which takes tens of milliseconds if it is large. An iterator may use it for longer, and frees it
    /// then. A writer that does the work of background threads does not wait. A sorted load may wait while commits wait
    /// for it.
    fn free_memtables(&self, retired: &[Arc<Memtable>]) {
        let started = self.device.now();
        let may_wait = || !EXPLORED && self.config.background_threads > 0 && self.device.now() - started < MOST_WAIT;
        let is_in_use = || retired.iter().any(|memtable| Arc::strong_count(memtable) > 1);
        (0..MOST_WAITS).take_while(|_| is_in_use() && may_wait()).for_each(relax);
    }

    /// Whether neither background work nor a write has occurred for some time. A store without workers does no
    /// idle-time work.
    fn is_at_rest(&self) -> bool {
        self.config.background_threads > 0 && self.background.has_rested(self.device.now(), self.snapshots.visible())
    }

    /// Does one turn of a store without background threads: if a checkpoint is due, a step of its preparation or the
    /// checkpoint, otherwise a step of at most `most` bytes.
    pub(crate) fn turn_alone(&self, most: u64) -> Turn {
        let budget = self.background.scheduler.step(most);
        assert!(budget > 0, "a step of no bytes makes no progress");
        self.guarded(&|it| match it.checkpoint_turn(budget) {
            Turn::Idle => it.turn(budget),
            other => other,
        })
    }

    /// Runs one turn of a background thread. A panic in the turn is a bug of the engine. The panic must neither end the
    /// process of the application nor leave writers waiting for a thread that has ended. Therefore the panic poisons
    /// the store.
    pub(crate) fn guarded(&self, turn: &dyn Fn(&Engine) -> Turn) -> Turn {
        let _gate = self.gate.read();
        let turn = std::panic::AssertUnwindSafe(|| turn(self));
        std::panic::catch_unwind(turn).unwrap_or_else(|_| {
            self.writer.poison.set_text("background work panicked; please report it with the message on stderr".into());
            Turn::Stuck
        })
    }

    /// Records that background work found the disk full.
    fn press(&self, op: &str) {
        if !self.pressure.pressed.swap(true, Relaxed) {
            events::disk_full(op);
        }
    }

    /// Records a failure of background work. An error of the device poisons the store; after other errors the work is
    /// retried later.
    pub(super) fn note_trouble(&self, error: Error) -> Turn {
        match &error {
            Error::DiskFull { op } => self.press(op),
            // A block that was just written could not be read. Do not poison the store, because the work will be
            // repeated.
            damage if damage.is_damage() => {}
            // The work itself did not fail: the store was poisoned or closed during the work. Do not poison a store
            // that is being closed, because its close would then not make all data durable.
            Error::Poisoned { .. } | Error::Closed => {}
            _ => self.poison(&error),
        }
        self.background.set_trouble(error);
        Turn::Stuck
    }
}
