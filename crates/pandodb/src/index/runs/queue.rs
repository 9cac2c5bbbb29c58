//! The queue of sealed memtables to pack, and the functions that start, continue and end a pack job ([`Packs`]).
//! Memtables are packed in order, one at a time.
//!
//! ```text
//!   ingest ──push──▶ waiting: 3 2 1 ──claim──▶ a worker packs 1, in steps ──done──▶ attached
//!                             ▲                    │ park, claim again
//!                             └──── give up ───────┘ on an error 1 becomes the next again
//! ```
//!
//! 1. A worker claims the parked job, or starts one for the oldest memtable ([`Packs::claim_pack`]).
//! 2. The worker processes about `budget` bytes ([`Packs::step_pack`]) and parks the job. This repeats until the run is
//!    complete.
//! 3. The index attaches the run to its root ([`Packs::attach`]), and the memtable no longer counts as debt.
//! 4. After an error the same memtable is packed next again. If the keyspace was dropped during the job, the job ends.
//!    The large values that only its memtable refers to are freed.
//!
//! Invariant: memtables are attached in the order of their arrival, because the next memtable is claimed only after the
//! previous one was attached or returned to the queue.
//!
//! Locks: the lock of the queue is a leaf lock. Jobs are claimed, parked, given up and ended under the lock of the root
//! (`inner`). Therefore the queue and the root always agree whether the keyspace was dropped.

use std::collections::VecDeque;
use std::sync::Arc;

use super::job::{Output, PackJob, blobs_of};
use crate::base::sync::Mutex;
use crate::base::{Error, Extent, Result, events, seeded};
use crate::index::owed::Owing;
use crate::index::{Core, Progress, SealedBatch};
use crate::resolve::Stripes;
use crate::run::RunSlice;

/// The memtables of an index that are not in runs yet.
#[derive(Default)]
pub struct PackQueue(Mutex<Waiting>);

#[derive(Default)]
struct Waiting {
    batches: VecDeque<SealedBatch>,
    packing: Packing,
}

/// The state of the current pack job. At most one memtable is packed at a time.
#[derive(Default)]
enum Packing {
    #[default]
    Nothing,
    /// The parked job waits for its next step.
    Parked(Box<PackJob>),
    /// A thread works on the job.
    Working,
}

impl PackQueue {
    /// Adds the newest memtable.
    pub fn push(&self, batch: SealedBatch) {
        debug_assert!(
            self.0.lock().batches.back().is_none_or(|last| last.through <= batch.through),
            "memtables arrive in the order of seqnos"
        );
        self.0.lock().batches.push_back(batch);
    }

    /// Returns the parked job, or a job that `begin` makes from the oldest memtable. Returns `None` if there is neither
    /// a parked job nor a memtable, or if another thread works on a job.
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

    /// Records that the run of the claimed memtable was attached, or that the memtable was discarded.
    pub fn done(&self) {
        let mut waiting = self.0.lock();
        debug_assert!(matches!(waiting.packing, Packing::Working), "only a claimed job is done");
        waiting.packing = Packing::Nothing;
    }

    /// Returns the claimed memtable to the front of the queue, because it could not be packed.
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

    /// The debt of the memtable that is packed next; 0 if none waits.
    pub fn first_bytes(&self) -> u64 {
        let waiting = self.0.lock();
        match &waiting.packing {
            Packing::Parked(job) => job.batch.bytes,
            _ => waiting.batches.front().map_or(0, |batch| batch.bytes),
        }
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

/// An index that packs memtables into runs. The index supplies the root; this trait starts, continues and ends the
/// jobs.
pub trait Packs {
    /// The state that the lock of the root guards.
    type Inner;

    /// The lock of the root.
    fn inner(&self) -> &Mutex<Self::Inner>;

    /// The memtables to pack.
    fn queue(&self) -> &PackQueue;

    /// The debt of the index.
    fn owing(&self) -> &Owing;

    /// The shared parts of the store.
    fn core(&self) -> &Core;

    /// Whether the keyspace was dropped.
    fn is_cleared(inner: &Self::Inner) -> bool;

    /// Starts to pack a memtable. The versions that are visible at the read points `keep` are kept. REQUIRES: the
    /// caller holds `inner`.
    fn begin_pack(&self, inner: &mut Self::Inner, batch: SealedBatch, keep: Stripes) -> Box<PackJob>;

    /// Publishes a root that holds the run of a packed memtable, or only a new `through` if no run remained. REQUIRES:
    /// the caller holds `inner`.
    ///
    /// # Errors
    /// If an error is returned, the root is unchanged.
    fn attach(
        &self,
        inner: &mut Self::Inner,
        batch: &SealedBatch,
        run: Option<Arc<RunSlice>>,
        output: &Output,
    ) -> Result<()>;

    /// Publishes a root with the same contents. The large values in `dropped` are freed when the last older view is
    /// gone. REQUIRES: the caller holds `inner`.
    fn free_values(&self, inner: &mut Self::Inner, dropped: &[Extent]);

    /// Claims the parked pack job, or starts one for the oldest memtable. REQUIRES: the caller holds `inner`.
    fn claim_pack(&self, inner: &mut Self::Inner, keep: &dyn Fn() -> Stripes) -> Option<Box<PackJob>> {
        self.queue().claim(|batch| self.begin_pack(inner, batch, keep()))
    }

    /// Continues a claimed job for about `budget` bytes. When the run of the job is complete, attaches the run.
    ///
    /// # Errors
    /// After an error the same memtable is packed next again.
    fn step_pack(&self, mut job: Box<PackJob>, budget: u64) -> Result<Progress> {
        let (bytes, done) = match job.step(budget) {
            Ok(stepped) => stepped,
            Err(e) => {
                // Free the pages that the job has written before another worker retries it.
                let batch = job.batch.clone();
                drop(job);
                return Err(self.give_up_pack(batch, e));
            }
        };
        if !done {
            let mut inner = self.inner().lock();
            if Self::is_cleared(&inner) {
                self.end_dropped(&mut inner, &job.batch);
            } else {
                self.queue().park(job);
            }
            return Ok(Progress { bytes, ..Progress::default() });
        }
        let batch = job.batch.clone();
        if let Err(e) = job.finish().and_then(|output| self.finish_pack(&batch, output)) {
            return Err(self.give_up_pack(batch, e));
        }
        self.owing().change(|own| own.memory_bytes = own.memory_bytes.saturating_sub(batch.bytes));
        Ok(Progress { bytes, absorbed: Some(batch.bytes), ..Progress::default() })
    }

    /// Packs the oldest waiting memtable completely. Returns `None` if no memtable waits, or if another thread is
    /// packing.
    ///
    /// # Errors
    /// The errors of [`Packs::step_pack`].
    fn pack_one(&self, keep: &dyn Fn() -> Stripes) -> Result<Option<Progress>> {
        let mut done = 0;
        loop {
            let Some(job) = self.claim_pack(&mut self.inner().lock(), keep) else { return Ok(None) };
            let progress = self.step_pack(job, u64::MAX)?;
            done += progress.bytes;
            // Packing a memtable of a dropped keyspace reduces no debt.
            if progress.absorbed.is_some() || Self::is_cleared(&self.inner().lock()) {
                return Ok(Some(Progress { bytes: done, ..progress }));
            }
        }
    }

    /// Attaches the run of a packed memtable, unless the keyspace was dropped.
    ///
    /// # Errors
    /// After an error the memtable is still claimed.
    fn finish_pack(&self, batch: &SealedBatch, mut output: Output) -> Result<()> {
        let run = output.open(self.core())?;
        let mut inner = self.inner().lock();
        if Self::is_cleared(&inner) {
            self.end_dropped(&mut inner, batch);
            return Ok(());
        }
        debug_assert_eq!(run.is_some(), output.meta.is_some(), "the run of the output is open");
        self.attach(&mut inner, batch, run, &output)?;
        let bytes = output.bytes();
        seeded!(PackedValuesFreed: (), output.new_values.keep());
        self.queue().done();
        drop(inner);
        events::packed(batch.bytes, bytes);
        Ok(())
    }

    /// Returns a memtable that could not be packed to the front of the queue.
    fn give_up_pack(&self, batch: SealedBatch, error: Error) -> Error {
        let mut inner = self.inner().lock();
        // Return the memtable to the queue before another thread can claim the next memtable, because memtables are
        // attached in order.
        if Self::is_cleared(&inner) {
            self.end_dropped(&mut inner, &batch);
        } else {
            self.queue().give_up(batch);
        }
        error
    }

    /// Ends the job of a dropped keyspace: frees the large values that only this memtable refers to. REQUIRES: the
    /// caller holds `inner`.
    fn end_dropped(&self, inner: &mut Self::Inner, batch: &SealedBatch) {
        self.queue().done();
        self.free_values(inner, &blobs_of(&batch.memtable));
    }
}
