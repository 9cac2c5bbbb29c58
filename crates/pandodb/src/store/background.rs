//! [`Background`] holds the threads that do background work, and the failures of this work.
//!
//! Locks: `workers`, `idle`, `trouble` and `damage` are taken one at a time, for a few instructions. They are the last
//! locks in the lock order. The scheduler has locks of its own.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use crate::base::sync::Mutex;
use crate::base::{Error, KeyspaceId, Seqno};
use crate::device::JoinHandle;
use crate::sched::Scheduler;

/// The time for which the store must have no work before idle-time work starts.
const IDLE_BEFORE: Duration = Duration::from_millis(90);

/// The state of background work.
pub(crate) struct Background {
    pub scheduler: Arc<Scheduler>,
    workers: Mutex<Vec<Box<dyn JoinHandle>>>,
    /// The time since which no work existed, and the newest seqno at that time; `None` if the store is not idle.
    idle: Mutex<Option<(Duration, Seqno)>>,
    /// The last failure after which background work is retried. Statistics and waiting threads read it.
    trouble: Mutex<Option<Error>>,
    /// For each keyspace, the first damage that its compactions have found and that was not reported to a caller yet.
    damage: Mutex<BTreeMap<KeyspaceId, Error>>,
}

impl Background {
    /// The state of a store without threads.
    pub(crate) fn new(scheduler: Scheduler) -> Background {
        Background {
            scheduler: Arc::new(scheduler),
            workers: Mutex::default(),
            idle: Mutex::default(),
            trouble: Mutex::default(),
            damage: Mutex::default(),
        }
    }

    /// Adds a thread that [`Background::join`] waits for.
    pub(crate) fn add(&self, worker: Box<dyn JoinHandle>) {
        self.workers.lock().push(worker);
    }

    /// Stops the scheduler and waits for all threads. REQUIRES: the caller holds no lock.
    pub(crate) fn join(&self) {
        self.scheduler.stop();
        let workers = std::mem::take(&mut *self.workers.lock());
        workers.into_iter().for_each(|worker| worker.join());
    }

    /// Records that a turn found no work at the time `now`. Returns whether neither work nor a write has occurred for
    /// some time.
    pub(crate) fn has_rested(&self, now: Duration, visible: Seqno) -> bool {
        let mut idle = self.idle.lock();
        match *idle {
            Some((since, seqno)) if seqno == visible => now.saturating_sub(since) >= IDLE_BEFORE,
            _ => {
                *idle = Some((now, visible));
                false
            }
        }
    }

    /// Records that a step succeeded: the last failure is over, and the store is not idle.
    pub(crate) fn note_success(&self) {
        self.clear_trouble();
        self.idle.lock().take();
    }

    /// The last failure, if background work has not succeeded since then.
    pub(crate) fn trouble(&self) -> Option<Error> {
        self.trouble.lock().clone()
    }

    /// Whether background work has failed since its last success.
    pub(crate) fn has_trouble(&self) -> bool {
        self.trouble.lock().is_some()
    }

    /// Records a failure.
    pub(crate) fn set_trouble(&self, error: Error) {
        *self.trouble.lock() = Some(error);
    }

    /// Deletes the record of the last failure.
    pub(crate) fn clear_trouble(&self) {
        self.trouble.lock().take();
    }

    /// Records damage that a compaction of a keyspace found.
    pub(crate) fn note_damage(&self, keyspace: KeyspaceId, damage: Error) {
        assert!(damage.is_damage(), "only damage lets a compaction go on without an input: {damage}");
        self.damage.lock().entry(keyspace).or_insert(damage);
    }

    /// Returns the damage of a keyspace that was not reported yet. This damage then counts as reported.
    pub(crate) fn take_damage_of(&self, keyspace: KeyspaceId) -> Option<Error> {
        self.damage.lock().remove(&keyspace)
    }

    /// Returns the first damage that was not reported yet. The damage of all keyspaces then counts as reported.
    pub(crate) fn take_damage(&self) -> Option<Error> {
        std::mem::take(&mut *self.damage.lock()).into_values().next()
    }

    /// The first damage that was not reported yet.
    pub(crate) fn damage(&self) -> Option<Error> {
        self.damage.lock().values().next().cloned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn background() -> Background {
        Background::new(Scheduler::new(1 << 20))
    }

    #[test]
    fn a_store_has_rested_when_no_write_came_for_some_time() {
        let background = background();
        let rested = |ms, seqno| background.has_rested(Duration::from_millis(ms), Seqno(seqno));
        assert!(!rested(0, 1) && !rested(89, 1) && rested(90, 1));
        assert!(!rested(100, 2) && !rested(189, 2) && rested(190, 2), "a write begins a new wait");
        background.note_success();
        assert!(!rested(200, 2), "work does, too");
    }

    #[test]
    fn the_first_damage_of_each_keyspace_is_reported_once() {
        let background = background();
        let damage = |detail: &str| Error::corruption("leaf", 0, detail.to_owned());
        background.note_damage(KeyspaceId(1), damage("a"));
        background.note_damage(KeyspaceId(1), damage("b"));
        background.note_damage(KeyspaceId(2), damage("c"));
        assert_eq!(background.damage(), Some(damage("a")));
        assert_eq!(background.take_damage_of(KeyspaceId(1)), Some(damage("a")));
        assert_eq!(background.take_damage_of(KeyspaceId(1)), None);
        assert_eq!(background.take_damage(), Some(damage("c")));
        assert_eq!(background.take_damage(), None);
    }

    #[test]
    fn a_success_ends_the_trouble() {
        let background = background();
        background.set_trouble(Error::DiskFull { op: "log" });
        assert!(background.has_trouble());
        background.note_success();
        assert_eq!(background.trouble(), None);
    }
}
