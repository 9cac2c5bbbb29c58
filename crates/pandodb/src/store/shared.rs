//! [`Shared`] is the reference that all handles have to the engine. This module also contains the procedure that closes
//! a store.
//!
//! Workers hold the engine, never `Shared`. Therefore dropping the last handle closes the store. The close runs on the
//! thread that drops this handle, and waits for the workers.

use std::sync::Arc;

use super::engine::Engine;
use crate::base::sync::Ordering::Relaxed;
use crate::base::{Error, Result, events};
use crate::index::Debt;
use crate::resolve::in_operator;
use crate::wal::Log;

impl Engine {
    /// Closes the store: packs all memtables, so that the next opening has nothing to replay. Then stops the workers,
    /// and ends the log with a clean superblock. Reads in progress return [`Error::Closed`], and the close does not
    /// wait for them.
    pub(crate) fn close(&self) -> Result<()> {
        self.access.check()?;
        if self.closing.swap(true, Relaxed) {
            return Err(Error::Closed);
        }
        let _closing = events::closing();
        let began = self.device.now();
        if self.writer.log.is_some() && !self.writer.poison.is_set() {
            // Memtables that do not fit on a full disk stay in the log. Other failures have poisoned the store, and
            // are returned below.
            let _ = self.checkpoint_all();
        }
        self.access.close();
        self.background.join();
        let ended = match self.writer.poison.first() {
            _ if self.writer.log.is_none() => Ok(()),
            Some(first) => Err(Error::Poisoned { first: first.clone() }),
            None => self.write_clean_end().inspect_err(|e| self.poison(e)),
        };
        self.writer.log.iter().for_each(Log::close);
        // In a poisoned store a checkpoint may still be in progress, and a commit may still write to the log, so wait
        // for both.
        drop(self.checkpointer.root.lock());
        drop(self.writer.quiesce());
        let _gate = self.gate.write();
        self.check_sums();
        self.core.data.close();
        let lock = self.lock.lock().take();
        assert!(lock.is_some(), "a store is closed once");
        drop(lock);
        events::closed(ended.is_ok(), self.device.now().saturating_sub(began));
        ended
    }

    /// Checks that the totals of debt and memory equal the sums over all keyspaces when no work is in progress.
    /// REQUIRES: the caller holds the gate exclusively.
    fn check_sums(&self) {
        if cfg!(debug_assertions) {
            let (_root, sequencer) = (self.checkpointer.root.lock(), self.writer.quiesce());
            if sequencer.is_whole() {
                self.keyspaces.check_sums();
            }
            // Readers hold no lock here, and their scans may request work meanwhile.
            let owed = |debt: Debt| debt.memory_bytes + debt.work_bytes;
            let debts = self.keyspaces.all().iter().map(|keyspace| owed(keyspace.index.debt())).sum::<u64>();
            assert_eq!(owed(self.debt()), debts, "what is owed is added up as indexes change it");
        }
    }
}

/// The engine, in the form in which the handles of a store hold it.
pub(crate) struct Shared(pub Arc<Engine>);

impl std::ops::Deref for Shared {
    type Target = Engine;

    fn deref(&self) -> &Engine {
        &self.0
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        let engine = self.0.clone();
        if engine.access.is_inherited() {
            // In a forked child, only drop the copy of the lock: the parent process continues to use the files. Free no
            // memory, because the locks of the engine may be held forever, by threads that exist only in the parent.
            let lock = engine.lock.try_lock().and_then(|mut lock| lock.take());
            drop(lock);
            std::mem::forget(engine);
        } else if in_operator() {
            // A merge operator may drop the last handle, and may run on a thread for which the close waits. So run the
            // close on another thread.
            let close = engine.clone();
            let closer = engine.device.spawn("pando-close", Box::new(move || drop(close.close())));
            if closer.is_err() {
                // If no thread can be started, the store stays open until the process ends, as after a kill: no
                // acknowledged write is lost.
                std::mem::forget(engine);
            }
        } else {
            // A caller that needs the result calls `Store::close`, because a drop cannot return a result.
            let _ = engine.close();
        }
    }
}
