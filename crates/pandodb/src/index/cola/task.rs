//! Tasks: several layers become one, piece by piece of the key space.
//!
//! ```text
//!   newest   ░░░░░░░░│  run 9
//!            ░░░░░░░░│  run 8          ░ removed inputs; the pieces up to │ are done
//!   oldest   ████████│  run 5          █ outputs of these pieces
//!                     └ rest
//! ```
//!
//! 1. A piece begins at the first key of the rest that a layer other than the oldest input may have. It ends after
//!    about [`PIECE`] bytes of the inputs.
//! 2. A part of an input that could not be read is *stuck*. The pieces before and after it are compacted as usual.
//!    Within its key range, only the layers newer than it are compacted, among themselves.
//! 3. When a task begins, all its inputs get the output's level. So newer tasks stay above it, and stuck rests of the
//!    inputs are not chosen again. A task that ends early, because the store closes or the disk is full, leaves several
//!    layers of one level, which are chosen again.
//!
//! Invariant: a message is in the inputs or in the output of a task, never in both.

use std::collections::HashSet;
use std::ops::RangeInclusive;
use std::sync::Arc;

use super::choose::{self, MAX_LEVEL};
use super::table::{Layer, LayerId, Part, Table};
use super::world::World;
use super::{Claim, Cola, Inner, run_of};
use crate::Error;
use crate::base::sync::Ordering::Relaxed;
use crate::base::{KeyRange, OwnerId, PAGE, Result, SeededBug, events};
use crate::index::Progress;
use crate::index::runs::{Inputs, MergeJob, Output};
use crate::resolve::Stripes;
use crate::run::{Compression, RunSlice};

/// Bytes of inputs per piece: two memtables, within these bounds.
const PIECE: RangeInclusive<u64> = 64 << 10..=64 << 20;
/// A rest of at most this number of quarters of a piece is not split.
const LAST_PIECE_QUARTERS: u64 = 6;

/// Layers to join into one.
#[derive(Default)]
pub struct Task {
    /// Its number among the tasks of the index.
    pub id: u64,
    /// Newest first; neighbours.
    pub layers: Vec<LayerId>,
    /// The level of the output.
    pub level: u32,
    /// Also compact keys that only the oldest input has: to drop what its own deletes hide, or because a caller asked.
    pub rewrite: bool,
    /// The request that the task serves, named by its limit. When the task ends, the request is done as far as
    /// possible.
    pub request: Option<OwnerId>,
    /// The key range that is still to be compacted.
    pub rest: KeyRange,
    /// The state of its current piece.
    pub slot: Slot,
}

/// The state of the current piece. A task has at most one piece in progress.
#[derive(Default)]
pub enum Slot {
    /// The next piece can begin.
    #[default]
    Idle,
    /// Between two steps.
    Parked(Box<Merge>),
    /// A thread works on it.
    Working,
}

/// The compaction of a piece.
pub struct Merge {
    task: u64,
    /// The inputs: all layers of the task, or those newer than a stuck part.
    layers: Vec<LayerId>,
    range: KeyRange,
    /// The input slices.
    slices: Vec<Arc<RunSlice>>,
    bytes: u64,
    job: MergeJob,
}

/// Slices that could not be read. Once a slice is clipped to another range, it is tried again, since the damage may be
/// outside.
#[derive(Default)]
pub struct Stuck(HashSet<(OwnerId, KeyRange)>);

impl Stuck {
    fn add(&mut self, slice: &RunSlice) {
        self.0.insert((slice.run().meta().id, slice.range().clone()));
    }

    /// Whether no damaged slice is recorded.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Whether the slice is excluded.
    pub fn holds(&self, slice: &RunSlice) -> bool {
        !self.0.is_empty() && self.0.contains(&(slice.run().meta().id, slice.range().clone()))
    }
}

impl Task {
    /// Estimated bytes that are still to be compacted.
    pub fn bytes(&self, table: &Table) -> u64 {
        inputs_of(table, &self.layers).flat_map(|layer| layer.parts_in(&self.rest)).map(|part| part.bytes).sum()
    }
}

fn inputs_of<'t>(table: &'t Table, layers: &'t [LayerId]) -> impl Iterator<Item = &'t Layer> {
    table.layers.iter().filter(|layer| layers.contains(&layer.id))
}

/// The result of starting a task.
pub enum Begun {
    /// There is nothing to do.
    Nothing,
    /// Layers were joined without a compaction.
    Moved,
    /// A task was added.
    Task,
}

/// A piece of a task to compact.
struct Piece {
    layers: Vec<LayerId>,
    range: KeyRange,
}

impl Cola {
    /// Begins the next task: a caller's request once no task is in progress, else the choice of the levels. REQUIRES:
    /// the caller holds `inner`.
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
        if rest == KeyRange::all() {
            self.raise(inner, &layers, level);
        }
        let rewrite = before.is_some() || layers.len() == 1;
        inner.add_task(Task { layers, level, rest, rewrite, request: before, ..Task::default() });
        Ok(Begun::Task)
    }

    /// Raises layers to `level`. REQUIRES: the caller holds `inner`.
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
        for (at, range) in choose::ranges_to_move(&parts) {
            match parts[at].slice.clip(&range) {
                Ok(slice) => moved.extend(slice.map(Part::new)),
                Err(e) if e.is_damage() => return Ok(false),
                Err(e) => return Err(e),
            }
        }
        let mut layers = table.layers.clone();
        let first = layers.iter().position(|layer| choice.layers.contains(&layer.id)).expect("chosen from this table");
        layers.retain(|layer| !choice.layers.contains(&layer.id));
        layers.insert(first, Layer { id: inner.layer_id(), level: choice.level, parts: Arc::new(moved) });
        let mut world = inner.world.clone();
        world.table = Arc::new(Table::new(layers));
        self.counters.moved.fetch_add(1, Relaxed);
        self.publish(inner, world, &[]);
        Ok(true)
    }

    /// Claims the next piece of a task in progress: a parked one, or a new one of about `most` bytes. REQUIRES: the
    /// caller holds `inner`.
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
                    // Skip the keys for which nothing can be compacted.
                    inner.tasks[at].rest.from.clone_from(&piece.range.from);
                    return Ok(Some(self.begin_piece(inner, at, piece, keep)));
                }
            }
        }
        Ok(None)
    }

    /// Ends a task without further pieces. The rest of its inputs cannot be read and has the output's level. REQUIRES:
    /// the caller holds `inner`.
    fn finish_task(&self, inner: &mut Inner, at: usize) {
        let task = inner.tasks.swap_remove(at);
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
        let bytes = inputs.iter().map(|part| bytes_in(part, &range)).sum();
        let from = Inputs { slices: slices.clone(), live: vec![range.clone()], bottom, bytes };
        inner.keep = keep();
        let task = inner.tasks[at].id;
        let job = MergeJob::new(&self.core, from, self.filter(), inner.keep.clone(), self.sizes.operator.clone());
        // The last level holds most of the data, for the longest time: only there compression pays.
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

    /// Continues a piece; when it is complete, replaces its inputs by its output.
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
                task.slot = Slot::Parked(merge);
                // The debt is an estimate. It stays above 0 until the job is done, because threads that wait for the
                // job poll the debt.
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

    /// Handles a piece that failed. After damage its inputs are stuck, and the task continues without them; after any
    /// other error the piece is retried.
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

    /// Excludes damaged inputs from compactions, which would fail again. They are cut at the ends of the piece, so that
    /// only its keys are excluded. `failed` is the damaged run, if known. REQUIRES: the caller holds `inner`.
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
        // Also record the original slices, in case they could not be cut.
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
        task.id = self.next_task;
        self.next_task += 1;
        // The newest task comes first: it is urgent, or the only one that can begin.
        self.tasks.insert(0, task);
    }
}

impl Task {
    /// Ends the task and its request.
    fn end(self, world: &mut World) {
        world.forced.retain(|request| self.request != Some(request.before));
    }

    /// Advances past a finished piece. Returns whether anything is left.
    fn pass(&mut self, piece: &KeyRange) -> bool {
        debug_assert_eq!(piece.from, self.rest.from, "a piece begins where the rest begins");
        if piece.to.is_empty() || piece.to == self.rest.to {
            return false;
        }
        self.rest.from.clone_from(&piece.to);
        !self.rest.is_empty()
    }
}

/// Estimated bytes of a part in a range: exact if the range covers the part, else a share that is right on average.
fn bytes_in(part: &Part, range: &KeyRange) -> u64 {
    if range.covers(part.slice.range()) {
        return part.bytes;
    }
    part.slice.estimate(range).map_or(part.bytes, |(bytes, _)| bytes)
}

/// The next piece of a task, of about `target` bytes; `None` if nothing in its rest can be compacted.
fn next_piece(table: &Table, task: &Task, stuck: &Stuck, target: u64) -> Result<Option<Piece>> {
    let mut rest = task.rest.clone();
    loop {
        let layers: Vec<&Layer> = inputs_of(table, &task.layers).collect();
        let first =
            layers.iter().flat_map(|layer| layer.parts_in(&rest)).map(|part| part.slice.range().from.clone()).min();
        let Some(_) = first else { return Ok(None) };
        // Up to the next bound of a stuck part all keys have the same readable layers.
        let bounds = layers.iter().flat_map(|layer| layer.parts_in(&rest)).filter(|part| stuck.holds(&part.slice));
        let bounds = bounds.flat_map(|part| [part.slice.range().from.clone(), part.slice.range().to.clone()]);
        let end = bounds.filter(|key| *key > rest.from && !key.is_empty()).min();
        let until = end.map_or(rest.clone(), |end| KeyRange::new(rest.from.clone(), end).intersect(&rest));
        let is_stuck = |layer: &&Layer| layer.parts_in(&until).iter().any(|part| stuck.holds(&part.slice));
        let usable: Vec<&Layer> = layers.iter().copied().take_while(|layer| !is_stuck(layer)).collect();
        let with_data = usable.iter().filter(|layer| !layer.parts_in(&until).is_empty()).count();
        let is_blocked = usable.len() < layers.len();
        let wanted = match task.rewrite && !is_blocked {
            true => Some(until.clone()),
            false => from_newer(&usable, &until).filter(|_| with_data > usize::from(is_blocked)),
        };
        if let Some(wanted) = wanted {
            let range = cut_to(&usable, &wanted, target)?;
            return Ok(Some(Piece { layers: usable.iter().map(|layer| layer.id).collect(), range }));
        }
        // These keys need no compaction.
        if until.to.is_empty() || until.to == rest.to {
            return Ok(None);
        }
        rest.from = until.to;
    }
}

/// The end of `range` from the first key that a layer other than the oldest may have: data that only the oldest has is
/// not moved.
fn from_newer(layers: &[&Layer], range: &KeyRange) -> Option<KeyRange> {
    let (_, newer) = layers.split_last()?;
    let lows = newer.iter().flat_map(|layer| layer.parts_in(range)).map(|part| part.slice.low());
    let first = lows.min()?.max(&range.from);
    let rest = KeyRange::new(first, range.to.clone());
    (!rest.is_empty()).then_some(rest)
}

/// The beginning of `range` in which these layers hold about `target` bytes.
fn cut_to(layers: &[&Layer], range: &KeyRange, target: u64) -> Result<KeyRange> {
    let of_layer = |layer: &Layer| layer.parts_in(range).iter().map(|part| bytes_in(part, range)).sum::<u64>();
    let bytes: Vec<u64> = layers.iter().map(|layer| of_layer(layer)).collect();
    let total: u64 = bytes.iter().sum();
    if total * 4 <= target * LAST_PIECE_QUARTERS {
        return Ok(range.clone());
    }
    let largest = (0..layers.len()).max_by_key(|&at| bytes[at]).expect("a task has layers");
    // Cut where the largest layer has its share of the piece.
    let share = (u128::from(target) * u128::from(bytes[largest]) / u128::from(total)) as u64;
    let mut before = 0;
    for part in layers[largest].parts_in(range) {
        let own = bytes_in(part, range).max(1);
        if before + own < share {
            before += own;
            continue;
        }
        let pieces = (part.bytes / (share - before).max(PAGE as u64)).max(1) as usize;
        let keys = match part.slice.split_keys(pieces) {
            Err(e) if e.is_damage() => Vec::new(),
            keys => keys?,
        };
        let inside = keys.into_iter().find(|key| *key > range.from && range.contains(key));
        let end = inside.unwrap_or_else(|| part.slice.range().to.clone());
        let end_is_inside = !end.is_empty() && end > range.from && range.is_above(&end);
        return Ok(if end_is_inside { KeyRange::new(range.from.clone(), end) } else { range.clone() });
    }
    Ok(range.clone())
}
