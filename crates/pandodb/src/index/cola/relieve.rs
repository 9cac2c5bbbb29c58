//! Relief is the background work on a full disk. Relief first does the work that frees the most space in proportion to
//! the space that the work itself uses.
//!
//! ```text
//!   a memtable waits, and a piece would still fit afterwards ─▶ pack it completely: its log segments can go
//!   else: the next piece of the key space, of all layers, in which deletes hide much ─▶ compact it completely, publish
//!   else: a piece of a pending task, if it fits without using the space that deletes will need
//! ```
//!
//! A piece is cut so that its output fits. The inputs of a piece are freed when the piece is published, independently
//! of the rest of their layers. Pieces are compacted in key order, cyclically: the longer a piece was not compacted,
//! the more deletes have reached it.
//!
//! Unfinished outputs are discarded, because other work makes better use of their space. While another thread works on
//! a piece, relief begins no new piece.

use super::array::{Claim, Cola, Inner};
use super::choose::entry_bytes;
use super::table::{Layer, LayerId, Table};
use super::task::{Begun, Slot, Task};

use crate::base::{Error, KeyRange, PAGE, Result};
use crate::index::runs::Packs;
use crate::index::runs::relief::{WORTH, fitting, in_shrinking_room};
use crate::index::{Progress, Room};
use crate::resolve::Stripes;

/// The maximum number of pieces that are examined in one search for a piece that is worth compacting.
const MOST_PIECES: u32 = 256;

impl Cola {
    /// See [`crate::index::Index::relieve`].
    pub(super) fn relieve_in(&self, room: Room, keep: &dyn Fn() -> Stripes) -> Result<Progress> {
        self.give_up_parked();
        let merge =
            |urgent| in_shrinking_room(room, |room| self.merge_one(room, urgent, keep), || self.give_up_parked());
        let waits = self.queue().first_bytes();
        let is_short = waits > 0 && room.bytes < waits + waits / 4 + room.spare;
        if is_short {
            match merge(true) {
                Ok(progress) if progress.idle => {}
                Err(Error::DiskFull { .. }) => {}
                result => return result,
            }
        }
        match self.pack_one(keep) {
            Ok(Some(progress)) => Ok(progress),
            Ok(None) => merge(room.urgent),
            Err(full @ Error::DiskFull { .. }) => match merge(true)? {
                progress if progress.idle => Err(full),
                progress => Ok(progress),
            },
            Err(e) => Err(e),
        }
    }

    /// Discards parked pieces, with their partial outputs. The tasks of these pieces begin smaller pieces later.
    fn give_up_parked(&self) {
        let mut inner = self.inner.lock();
        let parked = inner.tasks.iter_mut().filter(|task| matches!(task.slot, Slot::Parked(_)));
        parked.for_each(|task| task.slot = Slot::Idle);
        self.recount(&mut inner);
    }

    /// Compacts one piece that fits in `room`, from beginning to end.
    fn merge_one(&self, room: Room, urgent: bool, keep: &dyn Fn() -> Stripes) -> Result<Progress> {
        let idle = Progress { idle: true, ..Progress::default() };
        let mut claim = {
            let mut inner = self.inner.lock();
            if inner.cleared || inner.tasks.iter().any(|task| matches!(task.slot, Slot::Working)) {
                return Ok(idle);
            }
            // The space that can be used without using the space that deletes will need.
            let beside = room.bytes.saturating_sub(2 * room.spare);
            let most = if self.add_relief(&mut inner, room.bytes, urgent) {
                Some(fitting(room.bytes))
            } else {
                let fits = fitting(beside);
                if fits < room.spare {
                    return Ok(idle);
                }
                match if inner.tasks.is_empty() { self.begin_task(&mut inner)? } else { Begun::Task } {
                    Begun::Moved => return Ok(Progress::default()),
                    Begun::Nothing => None,
                    Begun::Task => Some(fits),
                }
            };
            let Some(most) = most else { return Ok(idle) };
            self.claim_piece(&mut inner, Some(most.max(PAGE as u64)), keep)?
        };
        let mut done = 0;
        loop {
            let merge = match claim {
                Some(Claim::Merge(merge)) => merge,
                Some(Claim::Damage(e)) => return Progress::unless_damage(e),
                Some(Claim::Moved) => return Ok(Progress { bytes: done, ..Progress::default() }),
                _ => return Ok(if done == 0 { idle } else { Progress { bytes: done, ..Progress::default() } }),
            };
            let progress = self.step_merge(merge, u64::MAX)?;
            done += progress.bytes;
            if progress.damage.is_some() {
                return Ok(Progress { bytes: done, ..progress });
            }
            let mut inner = self.inner.lock();
            // Continue this piece only. The next piece is processed in another turn.
            let parked = inner.tasks.iter().any(|task| matches!(task.slot, Slot::Parked(_)));
            if !parked {
                return Ok(Progress { bytes: done.max(1), ..progress });
            }
            claim = self.claim_piece(&mut inner, None, keep)?;
        }
    }

    /// Adds a task for the next piece of the key space that is worth compacting. If `urgent`, a piece is worth
    /// compacting if it has any data hidden by deletes. Otherwise the hidden data must be so large that the compaction is
    /// worth its cost. Returns whether such a piece exists. REQUIRES: the caller holds `inner`.
    fn add_relief(&self, inner: &mut Inner, room: u64, urgent: bool) -> bool {
        let table = inner.world.table.clone();
        if table.layers.is_empty() {
            return false;
        }
        let layers: Vec<LayerId> = table.layers.iter().map(|layer| layer.id).collect();
        let level = table.layers.last().map_or(1, |oldest| oldest.level.max(1));
        let hidden = entry_bytes(&table);
        let mut from = inner.relieved_to.clone();
        let mut wrapped = false;
        for _ in 0..MOST_PIECES {
            let rest = KeyRange::new(from.clone(), []);
            let range = piece_at(&table, &rest, fitting(room));
            let (bytes, dead) = dead_in(&table, &range, hidden);
            let end = range.to.clone();
            let worth = if urgent { dead > 0 } else { dead * WORTH >= bytes && dead > 0 };
            if worth
                && !table
                    .layers
                    .iter()
                    .any(|layer| layer.parts_in(&range).iter().any(|part| inner.stuck.holds(&part.slice)))
            {
                inner.relieved_to = end;
                inner.add_task(Task { layers, level, rest: range, rewrite: true, ..Task::default() });
                return true;
            }
            if end.is_empty() && (wrapped || inner.relieved_to.is_empty()) {
                return false;
            }
            wrapped |= end.is_empty();
            from = end;
            if wrapped && !from.is_empty() && from > inner.relieved_to {
                return false;
            }
        }
        inner.relieved_to = from;
        false
    }
}

/// The beginning of `rest` in which all layers together hold about `target` bytes. It is cut at the ends of parts. If a
/// single part is larger, its task splits it.
fn piece_at(table: &Table, rest: &KeyRange, target: u64) -> KeyRange {
    let mut ends: Vec<Vec<u8>> =
        table.layers.iter().flat_map(|layer| layer.parts_in(rest)).map(|part| part.slice.range().to.clone()).collect();
    debug_assert!(!rest.is_empty(), "a piece begins at a key");
    ends.retain(|end| !end.is_empty() && *end > rest.from);
    ends.sort_unstable();
    ends.dedup();
    let mut best = None;
    for end in ends {
        let range = KeyRange::new(rest.from.clone(), end);
        let bytes: u64 = table.layers.iter().flat_map(|layer| layer.parts_in(&range)).map(|part| part.bytes).sum();
        if best.is_some() && bytes > target {
            break;
        }
        best = Some(range);
    }
    best.unwrap_or_else(|| rest.clone())
}

/// Returns the bytes of a piece, and the bytes that its compaction would probably drop. Three kinds of data are
/// dropped: entries hidden by deletes of newer layers, data covered by newer range tombstones, and deletes of the
/// oldest layer.
fn dead_in(table: &Table, range: &KeyRange, entry_bytes: u64) -> (u64, u64) {
    let of = |layer: &Layer| {
        layer.parts_in(range).iter().fold((0, 0, 0), |(bytes, deletes, ranges), part| {
            let meta = part.slice.run().meta();
            (bytes + part.bytes, deletes + part.deletes.count(), ranges + meta.range_tombstones)
        })
    };
    let (mut bytes, mut dead, mut newer_ranges) = (0, 0, 0);
    for layer in &table.layers {
        let (own, deletes, ranges) = of(layer);
        if newer_ranges > 0 {
            dead += own;
        }
        bytes += own;
        dead += deletes * entry_bytes.max(1);
        newer_ranges += ranges;
    }
    (bytes, dead.min(bytes))
}
