//! The functions of an array that begin a task, process it piece by piece, and end it. See [`super::task`].

use std::ops::RangeInclusive;
use std::sync::Arc;

use super::array::{Claim, Cola, Inner};
use super::choose::{self, MAX_LEVEL};
use super::table::{Layer, LayerId, Table};
use super::task::{Begun, Merge, Piece, Slot, Task, inputs_of, next_piece};
use crate::Error;
use crate::base::sync::Ordering::Relaxed;
use crate::base::{KeyRange, OwnerId, Result, SeededBug, events};
use crate::index::Progress;
use crate::index::runs::sequence::joined_ranges;
use crate::index::runs::{Inputs, MergeJob, Output, Part};
use crate::resolve::Stripes;
use crate::run::{Compression, RunSlice};

/// The inputs of a piece have about as many bytes as two memtables, but this number is limited to this range.
const PIECE: RangeInclusive<u64> = 64 << 10..=64 << 20;
impl Cola {
    /// Begins the next task. A caller's request is served as soon as no task is in progress; otherwise the levels
    /// determine the task. REQUIRES: the caller holds `inner`.
    pub(super) fn begin_task(&self, inner: &mut Inner) -> Result<Begun> {
        let table = inner.world.table.clone();
        let all = || table.layers.iter().map(|layer| layer.id).collect::<Vec<_>>();
        let last = || {
            let level = self.sizes.growth.level_for(table.bytes());
            table.layers.last().map_or(level, |oldest| level.max(oldest.level)).min(MAX_LEVEL)
        };
        let request = inner.world.forced.iter().find(|request| inner.requested(request) > 0).cloned();
        let before = request.as_ref().map(|request| request.before);
        let (layers, level, rest) = match request {
            Some(_) if !inner.tasks.is_empty() => return Ok(Begun::Nothing),
            Some(request) => (all(), last(), request.range),
            None if inner.tasks.is_empty() && choose::is_mostly_deletes(&table) && !inner.is_stuck() => {
                (all(), last(), KeyRange::all())
            }
            None => match self.next_choice(inner) {
                Some(choice) if self.move_parts(inner, &choice)? => return Ok(Begun::Moved),
                Some(choice) => (choice.layers, choice.level, KeyRange::all()),
                None => return Ok(Begun::Nothing),
            },
        };
        assert!(!layers.is_empty() && level <= MAX_LEVEL, "a task has inputs, and a level for its output");
        if rest == KeyRange::all() {
            self.raise(inner, &layers, level);
        }
        let rewrite = before.is_some() || layers.len() == 1;
        inner.add_task(Task { layers, level, rest, rewrite, request: before, ..Task::default() });
        Ok(Begun::Task)
    }

    /// Changes the level of these layers to `level`. REQUIRES: the caller holds `inner`.
    fn raise(&self, inner: &mut Inner, ids: &[LayerId], level: u32) {
        let mut layers = inner.world.table.layers.clone();
        layers
            .iter_mut()
            .filter(|layer| ids.contains(&layer.id))
            .for_each(|layer| layer.level = layer.level.max(level));
        let mut world = inner.world.clone();
        world.table = Arc::new(Table::new(layers));
        self.publish(inner, world, &[]);
    }

    /// Joins layers with disjoint key ranges without moving data. Returns whether that was possible. REQUIRES: the
    /// caller holds `inner`.
    fn move_parts(&self, inner: &mut Inner, choice: &choose::Choice) -> Result<bool> {
        let table = inner.world.table.clone();
        let parts: Vec<&Part> = inputs_of(&table, &choice.layers).flat_map(|layer| layer.parts.iter()).collect();
        if parts.iter().any(|part| inner.stuck.holds(&part.slice)) || !choose::may_move(&parts, self.sizes.growth) {
            return Ok(false);
        }
        let mut moved = Vec::with_capacity(parts.len());
        for (at, range) in joined_ranges(&parts) {
            match parts[at].slice.clip(&range) {
                Ok(slice) => moved.extend(slice.map(Part::new)),
                Err(e) if e.is_damage() => return Ok(false),
                Err(e) => return Err(e),
            }
        }
        let mut layers = table.layers.clone();
        let first = layers.iter().position(|layer| choice.layers.contains(&layer.id)).expect("chosen from this table");
        layers.retain(|layer| !choice.layers.contains(&layer.id));
        assert!(first <= layers.len(), "the inputs were neighbours");
        layers.insert(first, Layer { id: inner.layer_id(), level: choice.level, parts: moved.into() });
        let mut world = inner.world.clone();
        world.table = Arc::new(Table::new(layers));
        self.counters.moved.fetch_add(1, Relaxed);
        self.publish(inner, world, &[]);
        Ok(true)
    }

    /// Claims the next piece of a task in progress. This is a parked piece, or a new piece of about `most` bytes.
    /// REQUIRES: the caller holds `inner`.
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
        if let Some(at) = inner.tasks.iter().position(|task| matches!(task.slot, Slot::Idle)) {
            let table = inner.world.table.clone();
            let task = &inner.tasks[at];
            let target = most.unwrap_or((2 * self.sizes.growth.memtable_bytes).clamp(*PIECE.start(), *PIECE.end()));
            match next_piece(&table, task, &inner.stuck, target)? {
                None => {
                    self.finish_task(inner, at);
                    return Ok(Some(Claim::Moved));
                }
                Some(piece) => {
                    // Skip keys at which nothing can be compacted.
                    debug_assert!(!piece.range.is_empty() && !piece.layers.is_empty(), "a piece has keys and inputs");
                    debug_assert!(piece.range.from >= inner.tasks[at].rest.from, "a task goes upwards");
                    inner.tasks[at].rest.from.clone_from(&piece.range.from);
                    return Ok(Some(self.begin_piece(inner, at, piece, keep)));
                }
            }
        }
        Ok(None)
    }

    /// Ends a task without further pieces. The parts of the inputs that remain cannot be read. They already have the
    /// output's level. REQUIRES: the caller holds `inner`.
    fn finish_task(&self, inner: &mut Inner, at: usize) {
        let task = inner.tasks.swap_remove(at);
        assert!(matches!(task.slot, Slot::Idle), "a task ends between two pieces");
        let mut world = inner.world.clone();
        task.end(&mut world);
        self.publish(inner, world, &[]);
    }

    /// Begins the compaction of a piece. REQUIRES: the caller holds `inner`.
    fn begin_piece(&self, inner: &mut Inner, at: usize, piece: Piece, keep: &dyn Fn() -> Stripes) -> Claim {
        let table = inner.world.table.clone();
        let Piece { layers, range } = piece;
        let inputs: Vec<&Part> = inputs_of(&table, &layers).flat_map(|layer| layer.parts_in(&range)).collect();
        let oldest =
            table.layers.iter().rposition(|layer| layers.contains(&layer.id)).expect("inputs stay in the table");
        let older = table.layers[oldest + 1..].iter().any(|layer| !layer.parts_in(&range).is_empty());
        let bottom = !older || SeededBug::LevelTombstoneDropped.is_on();
        // The merge takes its inputs oldest first.
        let slices: Vec<Arc<RunSlice>> = inputs.iter().rev().map(|part| part.slice.clone()).collect();
        let bytes = inputs.iter().map(|part| part.bytes_in(&range)).sum();
        let from = Inputs { slices: slices.clone(), live: vec![range.clone()], bottom, bytes };
        inner.keep = keep();
        assert!(matches!(inner.tasks[at].slot, Slot::Idle), "a task has at most one piece in progress");
        let task = inner.tasks[at].id;
        let job = MergeJob::new(&self.core, from, self.filter(), inner.keep.clone(), self.sizes.operator.clone());
        // Compress only the last level, because most of the data stays there for a long time.
        let compression = if bottom { self.sizes.compression } else { Compression::None };
        match job.map(|job| job.with_compression(compression)) {
            Ok(job) => {
                inner.tasks[at].slot = Slot::Working;
                Claim::Merge(Box::new(Merge { task, layers, range, slices, bytes, job }))
            }
            Err((run, e)) => {
                self.leave(inner, &layers, &range, &slices, Some(run), &e);
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
        let Merge { task, layers, range, slices, bytes: of_inputs, job } = *merge;
        let (count, level) = (slices.len(), self.level_of(task));
        let installed = job.finish().and_then(|output| {
            let bytes = output.bytes();
            self.install(task, &layers, &range, output).map(|()| bytes)
        });
        match installed {
            Ok(written) => {
                events::compacted(level, count, of_inputs, written);
                Ok(progress)
            }
            Err(e) => Progress::unless_damage(self.give_up(task, &layers, &range, &slices, None, e)),
        }
    }

    fn level_of(&self, task: u64) -> u32 {
        self.inner.lock().tasks.iter().find(|other| other.id == task).map_or(0, |task| task.level)
    }

    /// Replaces the inputs of a piece by its output and swaps the table.
    fn install(&self, id: u64, layers: &[LayerId], range: &KeyRange, output: Output) -> Result<()> {
        let slice = output.open(&self.core)?;
        let mut inner = self.inner.lock();
        let Some(at) = inner.tasks.iter().position(|task| task.id == id).filter(|_| !inner.cleared) else {
            inner.tasks.retain(|task| task.id != id);
            self.counters.wasted_bytes.fetch_add(output.bytes(), Relaxed);
            return Ok(());
        };
        let mut world = inner.world.clone();
        let kept = usize::from(SeededBug::LevelInputKept.is_on() && layers.len() > 1);
        assert!(matches!(inner.tasks[at].slot, Slot::Working), "a claimed piece is installed");
        assert!(kept < layers.len(), "a piece has inputs");
        assert!(output.meta.is_some() || output.kept_blobs.is_empty(), "only messages of a run name large values");
        let level = inner.tasks[at].level;
        world.table = Arc::new(world.table.replaced(&layers[kept..], range, slice.as_ref(), level)?);
        world.blobs.remove_all(&output.dropped_blobs, &self.core.data)?;
        world.horizon = world.horizon.max(output.horizon);
        let task = &mut inner.tasks[at];
        task.slot = Slot::Idle;
        if !task.pass(range) {
            inner.tasks.swap_remove(at).end(&mut world);
        }
        self.counters.compactions.fetch_add(1, Relaxed);
        self.counters.compacted_bytes.fetch_add(output.bytes(), Relaxed);
        self.counters.filter_bytes.fetch_add(output.filter_bytes(), Relaxed);
        self.publish(&mut inner, world, &output.dropped_blobs);
        Ok(())
    }

    fn give_up_merge(&self, merge: Merge, error: Error) -> Error {
        let Merge { task, layers, range, slices, job, .. } = merge;
        let failed = job.failed;
        // Free the pages that the job has written before another thread retries it.
        drop(job);
        self.give_up(task, &layers, &range, &slices, failed, error)
    }

    /// Handles a piece that failed. After damage the inputs of the piece are stuck, and the task continues without
    /// these inputs. After any other error the piece is retried.
    fn give_up(
        &self,
        id: u64,
        layers: &[LayerId],
        range: &KeyRange,
        slices: &[Arc<RunSlice>],
        failed: Option<OwnerId>,
        error: Error,
    ) -> Error {
        let mut inner = self.inner.lock();
        if inner.cleared {
            inner.tasks.retain(|task| task.id != id);
            return error;
        }
        if let Some(task) = inner.tasks.iter_mut().find(|task| task.id == id) {
            task.slot = Slot::Idle;
        }
        self.leave(&mut inner, layers, range, slices, failed, &error);
        self.recount(&mut inner);
        error
    }

    /// Excludes damaged inputs from later compactions, because these compactions would fail again. The inputs are cut
    /// at the ends of the piece, so that only the keys of the piece are excluded. `failed` is the damaged run, if
    /// known. REQUIRES: the caller holds `inner`.
    fn leave(
        &self,
        inner: &mut Inner,
        layers: &[LayerId],
        range: &KeyRange,
        slices: &[Arc<RunSlice>],
        failed: Option<OwnerId>,
        error: &Error,
    ) {
        if !error.is_damage() {
            return;
        }
        let is_damaged = |run: OwnerId| failed.is_none_or(|failed| failed == run);
        let mut table = inner.world.table.clone();
        for &id in layers {
            let holds = |layer: &Layer| {
                layer.id == id && layer.parts_in(range).iter().any(|part| is_damaged(run_of(&part.slice)))
            };
            if table.layers.iter().any(holds)
                && let Ok(cut) = table.cut(id, range)
            {
                table = Arc::new(cut);
            }
        }
        for part in inputs_of(&table, layers).flat_map(|layer| layer.parts_in(range)) {
            if is_damaged(run_of(&part.slice)) {
                inner.stuck.add(&part.slice);
            }
        }
        // Also record the original slices, in case the slices could not be cut.
        slices.iter().filter(|slice| is_damaged(run_of(slice))).for_each(|slice| inner.stuck.add(slice));
        if !Arc::ptr_eq(&table, &inner.world.table) {
            let mut world = inner.world.clone();
            world.table = table;
            self.publish(inner, world, &[]);
        }
    }
}

impl Inner {
    /// Adds a task. REQUIRES: the caller holds `inner`.
    pub(super) fn add_task(&mut self, mut task: Task) {
        assert!(!task.layers.is_empty() && task.level <= MAX_LEVEL, "a task has inputs, and a level for its output");
        debug_assert!(self.tasks.iter().all(|other| other.id < self.next_task), "identities ascend");
        task.id = self.next_task;
        self.next_task += 1;
        // The newest task comes first, because it is urgent or is the only task that can begin.
        self.tasks.insert(0, task);
    }
}

/// The run identity of a slice.
fn run_of(slice: &Arc<RunSlice>) -> OwnerId {
    slice.run().meta().id
}
