//! A task joins several layers into one. It processes the key space piece by piece.
//!
//! ```text
//!   newest   ░░░░░░░░│  run 9
//!            ░░░░░░░░│  run 8          ░ removed inputs; the pieces up to │ are done
//!   oldest   ████████│  run 5          █ outputs of these pieces
//!                     └ rest
//! ```
//!
//! 1. A piece begins at the first remaining key that may exist in a layer other than the oldest input. The piece ends
//!    where its inputs have about [`PIECE`] bytes.
//! 2. A part of an input that could not be read is *stuck*. The pieces on both sides of a stuck part are compacted as
//!    usual. Within the key range of a stuck part, only the layers newer than this part are compacted, with each other.
//! 3. When a task begins, all its inputs get the output's level. Therefore newer tasks only write to levels above that
//!    level, and stuck parts of the inputs are not chosen again. A task ends early if the store closes or the disk is
//!    full. Such a task leaves several layers of one level, which a later task joins.
//!
//! Invariant: a message is in the inputs or in the output of a task, never in both.

use std::sync::Arc;

use super::table::{Layer, LayerId, Table};
use super::world::World;
use crate::base::{KeyRange, OwnerId, Result};
use crate::index::runs::sequence::cut_to;
use crate::index::runs::{MergeJob, Sequence, Stuck};
use crate::run::RunSlice;

/// A task: layers to join into one.
#[derive(Default)]
pub struct Task {
    /// The number of the task, unique in the index.
    pub id: u64,
    /// The input layers, newest first. They are neighbours in the table.
    pub layers: Vec<LayerId>,
    /// The level of the output.
    pub level: u32,
    /// Also compact keys that only the oldest input has. Set for relief, for a request of a caller, and for a task with
    /// a single input, whose deletes hide nothing and can be dropped.
    pub rewrite: bool,
    /// The request that the task serves, identified by the limit of the request (`Forced::before`). When the task ends,
    /// the request counts as done, even if unreadable parts remain.
    pub request: Option<OwnerId>,
    /// The key range that is still to be compacted.
    pub rest: KeyRange,
    /// The state of the current piece.
    pub slot: Slot,
}

/// The state of the current piece of a task. A task has at most one piece in progress.
#[derive(Default)]
pub enum Slot {
    /// The next piece can begin.
    #[default]
    Idle,
    /// The piece waits between two steps.
    Parked(Box<Merge>),
    /// A thread works on the piece.
    Working,
}

/// The compaction of a piece.
pub struct Merge {
    pub(super) task: u64,
    /// The inputs: all layers of the task, or only the layers newer than a stuck part.
    pub(super) layers: Vec<LayerId>,
    pub(super) range: KeyRange,
    /// The input slices.
    pub(super) slices: Vec<Arc<RunSlice>>,
    pub(super) bytes: u64,
    pub(super) job: MergeJob,
}

impl Task {
    /// Estimated bytes that are still to be compacted.
    pub fn bytes(&self, table: &Table) -> u64 {
        inputs_of(table, &self.layers).flat_map(|layer| layer.parts_in(&self.rest)).map(|part| part.bytes).sum()
    }
}

pub(super) fn inputs_of<'t>(table: &'t Table, layers: &'t [LayerId]) -> impl Iterator<Item = &'t Layer> {
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
pub(super) struct Piece {
    pub(super) layers: Vec<LayerId>,
    pub(super) range: KeyRange,
}

impl Task {
    /// Ends the task and the request that it serves.
    pub(super) fn end(self, world: &mut World) {
        world.forced.retain(|request| self.request != Some(request.before));
    }

    /// Removes a finished piece from the rest of the task. Returns whether any keys are left.
    pub(super) fn pass(&mut self, piece: &KeyRange) -> bool {
        debug_assert_eq!(piece.from, self.rest.from, "a piece begins where the rest begins");
        if piece.to.is_empty() || piece.to == self.rest.to {
            return false;
        }
        debug_assert!(piece.to > self.rest.from, "each piece advances the task");
        debug_assert!(self.rest.to.is_empty() || piece.to <= self.rest.to, "a piece lies in the rest");
        self.rest.from.clone_from(&piece.to);
        !self.rest.is_empty()
    }
}

/// The next piece of a task, of about `target` bytes; `None` if nothing in the rest of the task can be compacted.
pub(super) fn next_piece(table: &Table, task: &Task, stuck: &Stuck, target: u64) -> Result<Option<Piece>> {
    let mut rest = task.rest.clone();
    loop {
        let layers: Vec<&Layer> = inputs_of(table, &task.layers).collect();
        let first =
            layers.iter().flat_map(|layer| layer.parts_in(&rest)).map(|part| part.slice.range().from.clone()).min();
        let Some(_) = first else { return Ok(None) };
        // All keys before the next bound of a stuck part have the same readable layers.
        let bounds = layers.iter().flat_map(|layer| layer.parts_in(&rest)).filter(|part| stuck.holds(&part.slice));
        let bounds = bounds.flat_map(|part| [part.slice.range().from.clone(), part.slice.range().to.clone()]);
        let end = bounds.filter(|key| *key > rest.from && !key.is_empty()).min();
        let until = end.map_or(rest.clone(), |end| KeyRange::new(rest.from.clone(), end).intersect(&rest));
        debug_assert!(!until.is_empty(), "the keys up to the next bound");
        let is_stuck = |layer: &&Layer| layer.parts_in(&until).iter().any(|part| stuck.holds(&part.slice));
        let usable: Vec<&Layer> = layers.iter().copied().take_while(|layer| !is_stuck(layer)).collect();
        let with_data = usable.iter().filter(|layer| !layer.parts_in(&until).is_empty()).count();
        let is_blocked = usable.len() < layers.len();
        let wanted = match task.rewrite && !is_blocked {
            true => Some(until.clone()),
            false => from_newer(&usable, &until).filter(|_| with_data > usize::from(is_blocked)),
        };
        if let Some(wanted) = wanted {
            let sequences: Vec<Sequence> = usable.iter().map(|layer| layer.parts_in(&wanted).to_vec().into()).collect();
            let range = cut_to(&sequences, &wanted, target)?;
            return Ok(Some(Piece { layers: usable.iter().map(|layer| layer.id).collect(), range }));
        }
        // The keys before the piece need no compaction.
        if until.to.is_empty() || until.to == rest.to {
            return Ok(None);
        }
        rest.from = until.to;
    }
}

/// The end of `range`, starting at the first key that a layer other than the oldest may have. Data that only the oldest
/// layer has is not moved.
fn from_newer(layers: &[&Layer], range: &KeyRange) -> Option<KeyRange> {
    let (_, newer) = layers.split_last()?;
    let lows = newer.iter().flat_map(|layer| layer.parts_in(range)).map(|part| part.slice.low());
    let first = lows.min()?.max(&range.from);
    let rest = KeyRange::new(first, range.to.clone());
    (!rest.is_empty()).then_some(rest)
}
