//! Implements [`Index`] for a tree to which commits write directly.

use std::sync::Arc;

use super::state::{HotTree, Stuck};
use super::write::{CHECKPOINT_PIECES, Choice, Outcome, Point};
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
/// A commit that writes cold ranges writes this part of the bytes that may be in memory, beside those above the limit.
const COMMIT_PIECES: usize = 32;
/// Commits write cold ranges themselves if the bytes in memory exceed the limit by more than 1/`SLACK` of it.
const SLACK: usize = 4;
/// On a full disk, a job writes at most this part of the free space.
const PIECES: u64 = 8;

/// The outcome of a step that found no work.
const IDLE: Progress = Progress { idle: true, bytes: 0, absorbed: None, merged: 0, damage: None };

impl HotTree {
    /// Writes cold ranges of about `bytes` bytes, unless another thread writes.
    fn cool(&self, bytes: usize, keep: &dyn Fn() -> Stripes) -> Result<Progress> {
        match self.writing.try_lock() {
            Some(_writing) => self.cool_now(bytes, keep),
            None => Ok(IDLE),
        }
    }

    /// Writes cold ranges of about `bytes` bytes. REQUIRES: the caller holds `writing`.
    fn cool_now(&self, bytes: usize, keep: &dyn Fn() -> Stripes) -> Result<Progress> {
        if self.stuck.lock().is_some() {
            self.forget_work();
            return Ok(IDLE);
        }
        let point = Point::oldest(&self.horizons, keep().horizon);
        match self.write(Choice::Cold(bytes), &point, keep) {
            Ok(Outcome { written: 0, freed: 0, .. }) => {
                self.note_no_work();
                Ok(IDLE)
            }
            // The replaced pages are kept until a checkpoint.
            Ok(Outcome { written, freed, .. }) => {
                self.note_debt();
                Ok(Progress { bytes: written + freed, merged: written, ..Progress::default() })
            }
            Err(e) => {
                self.note_damage(&e)?;
                Progress::unless_damage(e)
            }
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

    /// After damage: the index can do no work, so no thread may wait for its work.
    fn forget_work(&self) {
        self.shared.tree.owing.change(|own| {
            (own.work_bytes, own.requested_bytes, own.optional_bytes) = (0, 0, 0);
        });
    }

    /// Notes that a job has failed. After the first damage, jobs no longer sweep, so that they perhaps do not need the
    /// damaged page. A job that meets damage even so would meet it again, so the index is stuck then.
    ///
    /// # Errors
    /// The error, if it is not damage.
    fn note_damage(&self, error: &Error) -> Result<()> {
        if !error.is_damage() {
            return Err(error.clone());
        }
        let was_damaged = self.shared.tree.inner.lock().damage.replace(error.clone()).is_some();
        if was_damaged {
            self.stuck.lock().get_or_insert_with(|| Stuck { error: error.clone(), lacks_messages: false });
        }
        self.forget_work();
        Ok(())
    }

    /// Writes all ranges that have changed, in several jobs, so that no thread waits for all of them. Returns the
    /// damage that keeps the index from writing them.
    ///
    /// # Errors
    /// Other errors of a job.
    fn write_changed(&self, point: &Point<'_>, keep: &dyn Fn() -> Stripes) -> Result<Option<Error>> {
        let bytes = self.piece_bytes(CHECKPOINT_PIECES);
        let mut next = Some(Vec::new());
        while let Some(from) = &next {
            let _writing = self.writing.lock();
            if let Some(stuck) = self.stuck_by() {
                return Ok(Some(stuck));
            }
            match self.write(Choice::Changed { from, bytes }, point, keep) {
                Ok(outcome) => next = outcome.next,
                Err(e) => self.note_damage(&e)?,
            }
        }
        Ok(None)
    }

    /// The bytes in memory above those at which commits write cold ranges themselves.
    fn bytes_over(&self) -> usize {
        let most = self.most_bytes();
        self.shared.bytes().saturating_sub(most + most / SLACK)
    }

    /// Writes cold ranges if the memory is far above the limit. If another thread writes ranges, this call waits until
    /// the job of that thread ends; a checkpoint has several jobs.
    ///
    /// # Errors
    /// If a page cannot be read or written.
    pub(super) fn make_room(&self, keep: &dyn Fn() -> Stripes) -> Result<Progress> {
        if self.bytes_over() == 0 {
            return Ok(IDLE);
        }
        let _writing = self.writing.lock();
        match self.bytes_over() {
            // Another thread has written cold ranges meanwhile.
            0 => Ok(IDLE),
            over => self.cool_now(over + self.piece_bytes(COMMIT_PIECES), keep),
        }
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

    /// An explicit request retries the pages that could not be read.
    fn compact(&self, range: &KeyRange) -> Result<()> {
        self.shared.tree.estimate(range)?;
        let mut stuck = self.stuck.lock();
        if let Some(stuck) = stuck.as_ref().filter(|stuck| stuck.lacks_messages) {
            return Err(stuck.error.clone());
        }
        *stuck = None;
        drop(stuck);
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
        *self.described.lock() = self.shared.tree.inner.lock().world.clone();
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
        stats.damaged = stats.damaged.max(u64::from(self.stuck.lock().is_some()));
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
        self.point.at
    }

    /// Describes the last state again if the index is stuck. The log keeps the later messages then.
    fn write(self: Box<Self>, keep: &dyn Fn() -> Stripes) -> Result<Cut> {
        let HotCheckpoint { tree, point } = *self;
        let damage = tree.write_changed(&point, keep)?;
        let world = if damage.is_some() {
            tree.described.lock().clone()
        } else {
            let mut inner = tree.shared.tree.inner.lock();
            assert!(inner.world.through <= point.at, "no job writes messages above the cut before the checkpoint ends");
            inner.world.through = point.at;
            inner.world.clone()
        };
        let cut = Box::new(TreeCheckpoint { tree: &tree.shared.tree, world: world.clone() }).write(keep)?;
        // The pages of the older state are freed without the lock.
        let older = std::mem::replace(&mut *tree.described.lock(), world);
        drop(older);
        Ok(Cut { damage, ..cut })
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
