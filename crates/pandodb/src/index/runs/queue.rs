//! The queue of sealed memtables to pack: in order, one at a time.
//!
//! ```text
//!   ingest ──push──▶ waiting: 3 2 1 ──claim──▶ a worker packs 1, in steps ──done──▶ attached
//!                             ▲                    │ park, claim again
//!                             └──── give up ───────┘ on an error 1 becomes the next again
//! ```
//!
//! Invariant: memtables are attached in the order of their arrival, because the next one is claimed only after the last
//! one was attached or requeued.
//!
//! Locks: a leaf lock. An index calls this while it holds the lock of its root, where both must agree.

use std::collections::VecDeque;

use super::job::PackJob;
use crate::base::sync::Mutex;
use crate::index::SealedBatch;

/// The memtables of an index that are not in runs yet.
#[derive(Default)]
pub struct PackQueue(Mutex<Waiting>);

#[derive(Default)]
struct Waiting {
    batches: VecDeque<SealedBatch>,
    packing: Packing,
}

/// At most one memtable is packed at a time.
#[derive(Default)]
enum Packing {
    #[default]
    Nothing,
    /// The job waits for its next step.
    Parked(Box<PackJob>),
    /// A thread works on it.
    Working,
}

impl PackQueue {
    /// Adds the newest memtable.
    pub fn push(&self, batch: SealedBatch) {
        self.0.lock().batches.push_back(batch);
    }

    /// Returns the parked job, or one that `begin` makes of the oldest memtable; `None` if there is none, or another
    /// thread works on it.
    pub fn claim(&self, begin: impl FnOnce(SealedBatch) -> Box<PackJob>) -> Option<Box<PackJob>> {
        let mut waiting = self.0.lock();
        match std::mem::replace(&mut waiting.packing, Packing::Working) {
            Packing::Parked(job) => return Some(job),
            Packing::Working => return None,
            Packing::Nothing => {}
        }
        let Some(batch) = waiting.batches.pop_front() else {
            waiting.packing = Packing::Nothing;
            return None;
        };
        drop(waiting);
        Some(begin(batch))
    }

    /// Parks a claimed job between two steps.
    pub fn park(&self, job: Box<PackJob>) {
        let mut waiting = self.0.lock();
        debug_assert!(matches!(waiting.packing, Packing::Working), "only a claimed job is parked");
        waiting.packing = Packing::Parked(job);
    }

    /// The claimed memtable was attached or discarded.
    pub fn done(&self) {
        let mut waiting = self.0.lock();
        debug_assert!(matches!(waiting.packing, Packing::Working), "only a claimed job is done");
        waiting.packing = Packing::Nothing;
    }

    /// Requeues the claimed memtable, which could not be packed, as the next one.
    pub fn give_up(&self, batch: SealedBatch) {
        let mut waiting = self.0.lock();
        debug_assert!(matches!(waiting.packing, Packing::Working), "only a claimed job is given up");
        debug_assert!(
            waiting.batches.front().is_none_or(|next| batch.through <= next.through),
            "memtables are queued in the order of seqnos"
        );
        waiting.batches.push_front(batch);
        waiting.packing = Packing::Nothing;
    }

    /// Removes all memtables that no thread works on.
    pub fn clear(&self) -> Vec<SealedBatch> {
        let mut waiting = self.0.lock();
        let mut batches: Vec<SealedBatch> = waiting.batches.drain(..).collect();
        match std::mem::take(&mut waiting.packing) {
            Packing::Parked(job) => batches.push(job.batch.clone()),
            other => waiting.packing = other,
        }
        batches
    }
}
