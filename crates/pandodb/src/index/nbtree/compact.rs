//! Processes tasks piece by piece. See [`super::task`].

use super::change::replaced;
use super::node::run_of;
use super::task::{Kind, Merge, Piece, Slot, Task};
use super::tree::{Claim, Inner, Nbtree};
use crate::Error;
use crate::base::sync::Ordering::Relaxed;
use crate::base::{OwnerId, Result, SeededBug, events};
use crate::index::Progress;
use crate::index::runs::{Inputs, MergeJob, Output, Part};
use crate::resolve::Stripes;
use crate::run::Compression;

impl Nbtree {
    /// Claims the next piece. This is a parked piece, or a new piece of about `most` bytes. Returns `None` if no task has
    /// a piece, or if another thread works on one. REQUIRES: the caller holds `inner`.
    pub(super) fn claim_piece(
        &self,
        inner: &mut Inner,
        most: Option<u64>,
        keep: &dyn Fn() -> Stripes,
    ) -> Result<Option<Claim>> {
        for task in &mut inner.tasks {
            match std::mem::replace(&mut task.slot, Slot::Working) {
                Slot::Parked(merge) => return Ok(Some(Claim::Merge(merge))),
                other => task.slot = other,
            }
        }
        if !inner.is_idle() || inner.tasks.is_empty() {
            return Ok(None);
        }
        let is_sweep = |task: &Task| matches!(task.kind, Kind::Sweep { .. });
        let at = inner.tasks.iter().position(|task| is_sweep(task) != inner.has_swept).unwrap_or(0);
        inner.has_swept = is_sweep(&inner.tasks[at]);
        let root = inner.world.root.clone();
        let target = most.unwrap_or(self.piece_bytes());
        let found = inner.search(&root, self, target).next_piece(&inner.tasks[at])?;
        let Some(piece) = found else {
            let mut world = inner.world.clone();
            self.end_task(inner, &mut world, at);
            self.publish(inner, world, &[]);
            return Ok(Some(Claim::Moved));
        };
        debug_assert!(piece.range.from >= inner.tasks[at].rest.from, "a task goes upwards");
        // Skip keys at which nothing can be done.
        inner.tasks[at].rest.from.clone_from(&piece.range.from);
        if piece.moved.is_some() {
            self.move_parts(inner, at, &piece)?;
            return Ok(Some(Claim::Moved));
        }
        Ok(Some(self.begin_piece(inner, at, piece, keep)))
    }

    /// Moves the inputs of a piece to the child without merging. REQUIRES: the caller holds `inner`.
    fn move_parts(&self, inner: &mut Inner, at: usize, piece: &Piece) -> Result<()> {
        let mut world = inner.world.clone();
        let moved = piece.moved.as_deref().expect("a piece to move");
        world.root = replaced(&world.root, piece, moved, self.sizes.limits)?;
        self.counters.moved.fetch_add(1, Relaxed);
        self.pass(inner, &mut world, at, piece);
        self.publish(inner, world, &[]);
        Ok(())
    }

    /// Records that a piece of a task is done, and ends the task if it was the last. REQUIRES: the caller holds `inner`.
    fn pass(&self, inner: &mut Inner, world: &mut super::world::World, at: usize, piece: &Piece) {
        let task = &mut inner.tasks[at];
        task.slot = Slot::Idle;
        task.has_worked = true;
        if !task.pass(&piece.range) {
            self.end_task(inner, world, at);
        }
    }

    /// Begins the merge of a piece. REQUIRES: the caller holds `inner`.
    fn begin_piece(&self, inner: &mut Inner, at: usize, piece: Piece, keep: &dyn Fn() -> Stripes) -> Claim {
        // Below a leaf, there is nothing that a delete could hide.
        let bottom = piece.to == 0 || SeededBug::TreeTombstoneDropped.is_on();
        let bytes = piece.inputs.iter().map(|part| part.bytes_in(&piece.range)).sum();
        let from = Inputs { slices: piece.slices(), live: vec![piece.range.clone()], bottom, bytes };
        inner.keep = keep();
        assert!(matches!(inner.tasks[at].slot, Slot::Idle), "a task has at most one piece in progress");
        let (task, is_requested) = (inner.tasks[at].id, inner.tasks[at].request.is_some());
        let job = MergeJob::new(&self.core, from, self.filter(), inner.keep.clone(), self.sizes.operator.clone());
        // Compress only leaves, because most of the data stays there for a long time.
        let compression = if bottom { self.sizes.compression } else { Compression::None };
        match job.map(|job| job.with_compression(compression)) {
            Ok(job) => {
                inner.tasks[at].slot = Slot::Working;
                Claim::Merge(Box::new(Merge { task, piece, bytes, is_requested, job }))
            }
            Err((run, e)) => {
                self.leave(inner, &piece, Some(run), &e);
                self.recount(inner);
                Claim::Damage(e)
            }
        }
    }

    /// Continues a piece. When the piece is complete, its output replaces its inputs.
    pub(super) fn step_merge(&self, mut merge: Box<Merge>, budget: u64) -> Result<Progress> {
        let (bytes, done) = match merge.job.step(budget) {
            Ok(stepped) => stepped,
            Err(e) => return Progress::unless_damage(self.give_up_merge(*merge, e)),
        };
        let progress = Progress { bytes, ..Progress::default() };
        if !merge.is_requested {
            self.inner.lock().pacing.work(bytes);
        }
        if !done {
            let mut inner = self.inner.lock();
            let id = merge.task;
            if inner.cleared {
                inner.tasks.retain(|task| task.id != id);
            } else if let Some(task) = inner.tasks.iter_mut().find(|task| task.id == id) {
                debug_assert!(matches!(task.slot, Slot::Working), "only the thread that claimed a piece parks it");
                task.slot = Slot::Parked(merge);
                // The debt is an estimate. The estimate stays above 0 until the job is done, because threads that wait
                // for the job poll the debt.
                self.owing.change(|own| own.work_bytes = own.work_bytes.saturating_sub(bytes).max(1));
            }
            return Ok(progress);
        }
        let Merge { task, piece, bytes: of_inputs, job, .. } = *merge;
        let installed = job.finish().and_then(|output| {
            let bytes = output.bytes();
            self.install(task, &piece, output).map(|()| bytes)
        });
        match installed {
            Ok(written) => {
                events::compacted(piece.to, piece.inputs.len(), of_inputs, written);
                Ok(progress)
            }
            Err(e) => Progress::unless_damage(self.give_up(task, &piece, None, e)),
        }
    }

    /// Replaces the inputs of a piece by its output and swaps the root.
    fn install(&self, id: u64, piece: &Piece, output: Output) -> Result<()> {
        let slice = output.open(&self.core)?;
        let mut inner = self.inner.lock();
        let Some(at) = inner.tasks.iter().position(|task| task.id == id).filter(|_| !inner.cleared) else {
            inner.tasks.retain(|task| task.id != id);
            self.counters.wasted_bytes.fetch_add(output.bytes(), Relaxed);
            return Ok(());
        };
        let mut world = inner.world.clone();
        assert!(matches!(inner.tasks[at].slot, Slot::Working), "a claimed piece is installed");
        assert!(output.meta.is_some() || output.kept_blobs.is_empty(), "only messages of a run name large values");
        let clipped = slice.as_ref().map(|slice| slice.clip(&piece.range)).transpose()?.flatten();
        let part = clipped.map(|slice| Part { deletes: output.deletes.clone(), ..Part::new(slice) });
        world.root = replaced(&world.root, piece, part.as_slice(), self.sizes.limits)?;
        world.blobs.remove_all(&output.dropped_blobs, &self.core.data)?;
        world.horizon = world.horizon.max(output.horizon);
        self.counters.pieces.fetch_add(1, Relaxed);
        self.counters.compacted_bytes.fetch_add(output.bytes(), Relaxed);
        self.counters.filter_bytes.fetch_add(output.filter_bytes(), Relaxed);
        self.pass(&mut inner, &mut world, at, piece);
        self.publish(&mut inner, world, &output.dropped_blobs);
        Ok(())
    }

    fn give_up_merge(&self, merge: Merge, error: Error) -> Error {
        let Merge { task, piece, job, .. } = merge;
        let failed = job.failed;
        // Free the pages that the job has written before another thread retries it.
        drop(job);
        self.give_up(task, &piece, failed, error)
    }

    /// Handles a piece that failed. After damage the inputs of the piece are stuck, and the task continues without these
    /// inputs. After any other error the piece is retried.
    fn give_up(&self, id: u64, piece: &Piece, failed: Option<OwnerId>, error: Error) -> Error {
        let mut inner = self.inner.lock();
        if inner.cleared {
            inner.tasks.retain(|task| task.id != id);
            return error;
        }
        if let Some(task) = inner.tasks.iter_mut().find(|task| task.id == id) {
            task.slot = Slot::Idle;
        }
        self.leave(&mut inner, piece, failed, &error);
        self.recount(&mut inner);
        error
    }

    /// Excludes damaged inputs from later pieces, because these pieces would fail again. The inputs are cut at the ends
    /// of the piece, so that only the keys of the piece are excluded. `failed` is the damaged run, if known. REQUIRES:
    /// the caller holds `inner`.
    fn leave(&self, inner: &mut Inner, piece: &Piece, failed: Option<OwnerId>, error: &Error) {
        if !error.is_damage() {
            return;
        }
        let is_damaged = |part: &Part| failed.is_none_or(|failed| failed == run_of(&part.slice));
        let damaged: Vec<OwnerId> =
            piece.inputs.iter().filter(|part| is_damaged(part)).map(|part| run_of(&part.slice)).collect();
        // Also exclude the original slices, in case the slices cannot be cut.
        piece.inputs.iter().filter(|part| is_damaged(part)).for_each(|part| inner.stuck.add(&part.slice));
        let Ok(root) = super::change::cut(&inner.world.root, piece, &damaged) else { return };
        for node in root.path_to(&piece.range.from, piece.to) {
            let parts = node.parts_in(&piece.range).filter(|part| damaged.contains(&run_of(&part.slice)));
            parts.for_each(|part| inner.stuck.add(&part.slice));
        }
        let mut world = inner.world.clone();
        world.root = root;
        self.publish(inner, world, &[]);
    }
}

impl Inner {
    /// Whether no piece is in progress.
    pub(super) fn is_idle(&self) -> bool {
        self.tasks.iter().all(|task| matches!(task.slot, Slot::Idle))
    }

    /// The number of runs that could not be read.
    pub(super) fn damaged(&self) -> u64 {
        let mut runs = std::collections::HashSet::new();
        if !self.stuck.is_empty() {
            self.world.root.walk(&mut |node| {
                let stuck = node.parts.iter().filter(|part| self.stuck.holds(&part.slice));
                runs.extend(stuck.map(|part| run_of(&part.slice)));
            });
        }
        runs.len() as u64
    }
}
