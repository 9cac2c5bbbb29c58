//! Implements [`Index`] for a tree to which commits write directly.

use std::sync::Arc;

use super::state::HotTree;
use super::write::{Choice, Point};
use crate::base::{Error, KeyRange, OwnerId, Result, Seqno};
use crate::index::tree::index::TreeCheckpoint;
use crate::index::{
    Checkpoint, Cut, Debt, DirectWriter, Estimate, Index, IndexStats, IndexType, IndexView, Inspect, Progress, Room,
    SalvagePiece, SealedBatch, Verification,
};
use crate::resolve::Stripes;

/// A job in the background writes at least 1/`SHARE` of the bytes that may be in memory, so that the inner pages are
/// written for many leaves.
const SHARE: usize = 8;
/// On a full disk, a job writes at most this part of the free space.
const PIECES: u64 = 8;

impl HotTree {
    /// The seqno as of which a background job may write: what is visible, but nothing that the next checkpoint does not
    /// describe.
    fn point(&self, visible: Seqno) -> Point<'_> {
        let at = self.horizons.oldest_point().map_or(visible, |oldest| oldest.min(visible));
        Point::new(&self.horizons, at)
    }

    /// Writes cold ranges of about `bytes` bytes, unless another thread writes.
    fn cool(&self, bytes: usize, keep: &dyn Fn() -> Stripes) -> Result<Progress> {
        let idle = Progress { idle: true, ..Progress::default() };
        let Some(_writing) = self.writing.try_lock() else { return Ok(idle) };
        if self.stuck.lock().is_some() {
            // The index can do no work, so no thread may wait for its work.
            self.shared.tree.owing.change(|own| {
                (own.work_bytes, own.requested_bytes, own.optional_bytes) = (0, 0, 0);
            });
            return Ok(idle);
        }
        let point = self.point(keep().horizon);
        match self.write(Choice::Cold(bytes), &point, keep) {
            // The replaced pages are kept until a checkpoint.
            Ok(Some(bytes)) => Ok(Progress { bytes, merged: bytes, ..Progress::default() }),
            Ok(None) => {
                self.note_no_work();
                Ok(idle)
            }
            Err(e) if e.is_damage() => {
                self.note_damage(&e);
                Progress::unless_damage(e)
            }
            Err(e) => Err(e),
        }
    }

    /// After a search that found no work: what remains is the memory above the limit, if all ranges are in use.
    fn note_no_work(&self) {
        let tree = &self.shared.tree;
        let inner = tree.inner.lock();
        let is_requested = !inner.requested.is_empty();
        tree.owing.change(|own| {
            (own.work_bytes, own.optional_bytes) = (0, 0);
            own.requested_bytes = if is_requested { own.requested_bytes } else { 0 };
        });
        drop(inner);
        self.note_debt();
    }

    /// After damage, no job sweeps any more.
    fn note_damage(&self, error: &Error) {
        let tree = &self.shared.tree;
        tree.inner.lock().damage.get_or_insert_with(|| error.clone());
        tree.owing.change(|own| (own.work_bytes, own.requested_bytes, own.optional_bytes) = (0, 0, 0));
    }
}

impl Index for HotTree {
    fn index_type(&self) -> &'static IndexType {
        self.shared.tree.index_type()
    }

    fn ingest(&self, _: SealedBatch) {
        unreachable!("no message of the keyspace is in a memtable");
    }

    fn direct(&self) -> Option<&dyn DirectWriter> {
        Some(self)
    }

    fn view(&self) -> Arc<dyn IndexView> {
        self.horizons.current.load_full()
    }

    fn with_view(&self, look: &mut dyn FnMut(&dyn IndexView)) {
        look(&**self.horizons.current.load());
    }

    fn stored_through(&self) -> Seqno {
        self.opened_through
    }

    fn debt(&self) -> Debt {
        self.shared.tree.debt()
    }

    fn step(&self, _: u64, keep: &dyn Fn() -> Stripes) -> Result<Progress> {
        if self.debt().total() == 0 {
            return Ok(Progress { idle: true, ..Progress::default() });
        }
        let most = self.most_bytes();
        let over = self.shared.bytes().saturating_sub(most);
        self.cool(if over > 0 { over + most / SHARE } else { 0 }, keep)
    }

    fn relieve(&self, room: Room, keep: &dyn Fn() -> Stripes) -> Result<Progress> {
        let piece = usize::try_from(room.bytes / PIECES).unwrap_or(usize::MAX);
        self.cool(piece.min(self.shared.bytes()), keep)
    }

    fn on_idle(&self) {
        let tree = &self.shared.tree;
        tree.on_idle();
        if !self.shared.tombstones_to(Seqno::MAX).is_empty() && tree.inner.lock().damage.is_none() {
            tree.owing.change(|own| own.optional_bytes = own.optional_bytes.max(1));
        }
    }

    fn compact(&self, range: &KeyRange) -> Result<()> {
        self.shared.tree.compact(range)
    }

    fn begin_checkpoint(&self, cut: Seqno) -> Box<dyn Checkpoint + '_> {
        Box::new(HotCheckpoint { tree: self, point: Point::new(&self.horizons, cut) })
    }

    fn clear(&self) {
        let mut ranges = self.shared.directory.lock().write();
        let frozen = Arc::new(self.shared.frozen(&ranges));
        self.horizons.freeze(|view| view.freeze(&frozen));
        let mut values = Vec::new();
        for range in ranges.take() {
            let mut contents = range.contents.write();
            values.extend(contents.values());
            self.shared.forget(&mut contents);
        }
        self.shared.drop_tombstones_to(Seqno::MAX);
        self.shared.tree.remove_all(values);
    }

    fn estimate(&self, range: &KeyRange) -> Result<Estimate> {
        self.shared.tree.estimate(range)
    }

    fn entries(&self) -> (u64, u64) {
        self.shared.tree.entries()
    }

    fn stats(&self) -> IndexStats {
        let mut stats = self.shared.tree.stats();
        let ranges = self.shared.directory.lock().read().count() as u64;
        stats.gauge("leaves_in_memory", ranges, "Leaves that are in memory, as rows to which commits write.");
        stats.gauge("leaf_bytes_in_memory", self.shared.bytes() as u64, "Bytes of memory that these leaves take.");
        stats
    }

    fn inspect(&self) -> &dyn Inspect {
        self
    }
}

/// The state that the next root record describes: all messages up to a seqno.
struct HotCheckpoint<'a> {
    tree: &'a HotTree,
    point: Point<'a>,
}

impl Checkpoint for HotCheckpoint<'_> {
    fn through(&self) -> Seqno {
        match *self.tree.stuck.lock() {
            Some(_) => self.tree.opened_through,
            None => self.point.at,
        }
    }

    fn write(self: Box<Self>, keep: &dyn Fn() -> Stripes) -> Result<Cut> {
        let HotTree { shared, writing, stuck, .. } = self.tree;
        let _writing = writing.lock();
        if stuck.lock().is_none() {
            let written = self.tree.write(Choice::Changed, &self.point, keep);
            match written {
                Err(e) if e.is_damage() => {
                    // Without a sweep, the job perhaps does not need the damaged page.
                    self.tree.note_damage(&e);
                    self.tree.write(Choice::Changed, &self.point, keep)?;
                }
                other => drop(other?),
            }
            let mut inner = shared.tree.inner.lock();
            inner.world.through = inner.world.through.max(self.point.at);
        }
        let world = shared.tree.inner.lock().world.clone();
        Box::new(TreeCheckpoint { tree: &shared.tree, world }).write(keep)
    }
}

impl Inspect for HotTree {
    fn pin(&self) -> Box<dyn Verification + '_> {
        self.shared.tree.pin()
    }

    fn describe(&self, object: Option<OwnerId>, out: &mut String) -> bool {
        self.shared.tree.describe(object, out)
    }

    /// A salvage keeps the messages of the log in memtables, so none are in memory here.
    fn salvage(&self) -> Vec<SalvagePiece> {
        self.shared.tree.salvage()
    }
}
