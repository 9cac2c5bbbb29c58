//! Relief is the background work on a full disk. Relief first does the work that frees the most space in proportion to
//! the space that the work itself uses.
//!
//! ```text
//!   a memtable waits, and a piece would still fit afterwards ─▶ pack it completely: its log segments can go
//!   else: the next leaf in which deletes hide much, with all levels above it ─▶ merge it completely, publish
//!   else: a piece of a pending task, if it fits without using the space that deletes will need
//! ```
//!
//! A piece is cut so that its output fits. The inputs of a piece are freed when the piece is published. Leaves are merged
//! in key order, cyclically: the longer a leaf was not merged, the more deletes have reached it.
//!
//! Unfinished outputs are discarded, because other work makes better use of their space. While another thread works on
//! a piece, relief begins no new piece.

use super::garbage::{self, sum};
use super::node::Node;
use super::task::{Kind, Slot};
use super::tree::{Claim, Inner, Nbtree};
use crate::base::{Error, KeyRange, PAGE, Result, Seqno};
use crate::index::runs::Packs;
use crate::index::runs::relief::{WORTH, fitting, in_shrinking_room};
use crate::index::{Progress, Room};
use crate::resolve::Stripes;

impl Nbtree {
    /// See [`crate::index::Index::relieve`].
    pub(super) fn relieve_in(&self, room: Room, keep: &dyn Fn() -> Stripes) -> Result<Progress> {
        self.give_up_parked();
        let merge = |urgent| {
            let merged = in_shrinking_room(room, |room| self.merge_one(room, urgent, keep), || self.give_up_parked());
            if matches!(merged, Err(Error::DiskFull { .. })) {
                self.give_up_sweep();
            }
            merged
        };
        let waits = self.queue().first_bytes();
        // Leave room for one merge, and not for more: the memtable may have most of the deletes, without which merges free
        // little.
        let one_merge = room.spare.min(4 * self.sizes.limits.dtree_bytes);
        let is_short = waits > 0 && room.bytes < waits + waits / 4 + one_merge;
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

    /// Ends the sweep of a leaf that does not fit, so that relief tries another leaf next.
    fn give_up_sweep(&self) {
        let mut inner = self.inner.lock();
        inner.tasks.retain(|task| task.kind != Kind::Sweep { before: None } || !matches!(task.slot, Slot::Idle));
        self.recount(&mut inner);
    }

    /// Merges one piece that fits in `room`, from beginning to end.
    fn merge_one(&self, room: Room, urgent: bool, keep: &dyn Fn() -> Stripes) -> Result<Progress> {
        let idle = Progress { idle: true, ..Progress::default() };
        let mut claim = {
            let mut inner = self.inner.lock();
            if inner.cleared || !inner.is_idle() {
                return Ok(idle);
            }
            // The space that can be used without using the space that deletes will need.
            let beside = room.bytes.saturating_sub(2 * room.spare);
            let most = if self.add_relief(&mut inner, urgent) {
                // The new task is a sweep, and its piece comes first.
                inner.has_swept = false;
                fitting(room.bytes)
            } else {
                let fits = fitting(beside);
                if fits < room.spare {
                    return Ok(idle);
                }
                self.begin_tasks(&mut inner)?;
                fits
            };
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
            if inner.is_idle() {
                return Ok(Progress { bytes: done.max(1), ..progress });
            }
            claim = self.claim_piece(&mut inner, None, keep)?;
        }
    }

    /// Adds a sweep of the next leaf that is worth merging. If `urgent`, a leaf is worth merging if deletes above it hide
    /// any of its data. Otherwise the hidden data must be so large that the merge is worth its cost. Returns whether there
    /// is such a leaf. REQUIRES: the caller holds `inner`.
    fn add_relief(&self, inner: &mut Inner, urgent: bool) -> bool {
        // A leaf that is larger than a piece takes several turns. Its sweep ends before that of another leaf begins.
        if inner.tasks.iter().any(|task| matches!(task.kind, Kind::Sweep { before: None })) {
            return true;
        }
        let root = inner.world.root.clone();
        let start = inner.relieved_to.clone();
        let (mut at_or_after, mut before) = (None, None);
        root.walk_paths(&mut Vec::new(), &mut |path| {
            let leaf = *path.last().expect("a path has nodes");
            let place = if leaf.range.from >= start { &mut at_or_after } else { &mut before };
            if place.is_none() && is_worth(path, leaf, urgent, inner) {
                *place = Some(KeyRange::clone(&leaf.range));
            }
        });
        let Some(range) = at_or_after.or(before) else { return false };
        inner.relieved_to.clone_from(&range.to);
        inner.add_task(Kind::Sweep { before: None }, range, Seqno::MAX);
        true
    }
}

/// Whether a merge of a leaf with all levels above would drop enough.
fn is_worth(path: &[&Node], leaf: &Node, urgent: bool, inner: &Inner) -> bool {
    let parts = || path.iter().flat_map(|node| node.parts_in(&leaf.range));
    if parts().any(|part| inner.stuck.holds(&part.slice)) {
        return false;
    }
    let (bytes, dead) = dead_in(path, leaf);
    if urgent { dead > 0 } else { dead > 0 && dead.saturating_mul(WORTH) >= bytes }
}

/// Returns the bytes in the range of a leaf, and the bytes that its merge with all levels above would probably drop. Three
/// kinds of data are dropped: entries hidden by deletes above them, data covered by newer range tombstones, and deletes
/// of the leaf. Both numbers are 0 if there is nothing to drop; then nothing is read.
fn dead_in(path: &[&Node], leaf: &Node) -> (u64, u64) {
    let parts = || path.iter().flat_map(|node| node.parts_in(&leaf.range));
    let of_leaf = sum(leaf.parts.iter().map(|part| part.deletes.count()));
    let deletes = of_leaf.saturating_add(garbage::deletes_above(&path[..path.len() - 1], leaf));
    if deletes == 0 && parts().all(|part| part.slice.run().meta().range_tombstones == 0) {
        return (0, 0);
    }
    let entries = sum(leaf.parts.iter().map(|part| part.slice.entries()));
    let entry_bytes = (leaf.bytes() / entries.max(1)).max(1);
    let (mut bytes, mut dead, mut newer_ranges) = (0, deletes.saturating_mul(entry_bytes), 0);
    for part in parts() {
        let own = part.bytes_in(&leaf.range);
        if newer_ranges > 0 {
            dead = dead.saturating_add(own);
        }
        bytes = own.saturating_add(bytes);
        newer_ranges |= part.slice.run().meta().range_tombstones;
    }
    (bytes, dead.min(bytes))
}
