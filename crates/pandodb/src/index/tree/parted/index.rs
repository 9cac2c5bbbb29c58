//! Implements [`Index`] for a Bε-tree to which commits write directly.

use std::sync::Arc;

use super::state::PartedTree;
use crate::base::sync::Ordering::Relaxed;
use crate::base::{Error, KeyRange, OwnerId, Result, Seqno};
use crate::index::parts::Reach;
use crate::index::tree::index::TreeCheckpoint;
use crate::index::tree::sizes::LEAST_PIECE;
use crate::index::{
    Checkpoint, Cut, Debt, DirectWriter, Estimate, Index, IndexStats, IndexType, IndexView, Inspect, Progress, Room,
    SalvagePiece, SealedBatch, Verification,
};
use crate::resolve::Stripes;

/// A job in the background writes at least 1/`SHARE` of the bytes that may be in memory.
const SHARE: usize = 8;
/// On a full disk, a job writes at most this part of the free space.
const PIECES: u64 = 8;

impl Index for PartedTree {
    fn index_type(&self) -> &'static IndexType {
        self.shared.tree.index_type()
    }

    fn ingest(&self, _: SealedBatch) {
        unreachable!("commits write directly");
    }

    fn direct(&self) -> Option<&dyn DirectWriter> {
        Some(self)
    }

    fn view(&self) -> Arc<dyn IndexView> {
        self.view.load_full()
    }

    fn with_view(&self, look: &mut dyn FnMut(&dyn IndexView)) {
        look(&**self.view.load());
    }

    fn stored_through(&self) -> Seqno {
        self.opened_through
    }

    fn debt(&self) -> Debt {
        self.shared.tree.debt()
    }

    fn step(&self, _: u64, keep: &dyn Fn() -> Stripes) -> Result<Progress> {
        let idle = Progress { idle: true, ..Progress::default() };
        if self.debt().total() == 0 {
            return Ok(idle);
        }
        let most = self.most_bytes();
        let over = self.shared.bytes.load(Relaxed).saturating_sub(most);
        let Some(_writing) = self.writing.try_lock() else { return Ok(idle) };
        self.cool(if over > 0 { over + most / SHARE } else { 0 }, Reach::Buffers, None, keep)
    }

    /// Brings messages of the root's buffer, or of the heaviest part, to the leaves, so that deletes free space. The space
    /// that a checkpoint needs is left to it, because only a checkpoint frees the replaced pages.
    fn relieve(&self, room: Room, keep: &dyn Fn() -> Stripes) -> Result<Progress> {
        let has_messages = self.root_buffer.load(Relaxed) > 0 || self.shared.bytes.load(Relaxed) > 0;
        let room = room.bytes.saturating_sub(self.unwritten_bytes());
        if has_messages && room < LEAST_PIECE {
            return Err(Error::DiskFull { op: "pages" });
        }
        let Some(_writing) = self.writing.try_lock() else {
            return Ok(Progress { idle: true, ..Progress::default() });
        };
        self.cool(
            usize::from(self.root_buffer.load(Relaxed) == 0),
            Reach::Leaves,
            Some((room / PIECES).max(LEAST_PIECE)),
            keep,
        )
    }

    fn on_idle(&self) {
        self.shared.tree.on_idle();
    }

    fn compact(&self, range: &KeyRange) -> Result<()> {
        self.shared.tree.compact(range)?;
        // An explicit request retries the pages that could not be read.
        *self.stuck.lock() = None;
        Ok(())
    }

    fn begin_checkpoint(&self, cut: Seqno) -> Box<dyn Checkpoint + '_> {
        // Before the parts are sealed: a background job seals them again, and then writes nothing above the cut.
        self.cuts.lock().push(cut);
        let _publishing = self.shared.publishing.lock();
        let state = self.shared.current.load_full();
        state.parts.iter().for_each(|part| self.seal(part));
        Box::new(PartCheckpoint { tree: self, cut })
    }

    fn clear(&self) {
        self.remove_all();
        let world = self.shared.tree.inner.lock().world.clone();
        // The pages of the older state are freed without the lock.
        let older = std::mem::replace(&mut *self.described.lock(), world);
        drop(older);
    }

    fn estimate(&self, range: &KeyRange) -> Result<Estimate> {
        self.shared.tree.estimate(range)
    }

    fn entries(&self) -> (u64, u64) {
        self.shared.tree.entries()
    }

    fn stats(&self) -> IndexStats {
        let mut stats = self.shared.tree.stats();
        let parts = self.shared.current.load().parts.len() as u64;
        stats.gauge("parts_in_memory", parts, "Buffers in memory, one for each child of the root.");
        let bytes = self.shared.bytes.load(Relaxed) as u64;
        stats.gauge("part_bytes_in_memory", bytes, "Bytes of the messages in these buffers.");
        stats.damaged = stats.damaged.max(u64::from(self.stuck.lock().is_some()));
        stats
    }

    fn inspect(&self) -> &dyn Inspect {
        self
    }
}

/// The state that the next root record describes: all messages up to a seqno. They are in sealed memtables.
struct PartCheckpoint<'a> {
    tree: &'a PartedTree,
    cut: Seqno,
}

impl Checkpoint for PartCheckpoint<'_> {
    fn through(&self) -> Seqno {
        self.cut
    }

    /// If not even the root can be read, describes the last state again. The log keeps the later messages then.
    fn write(self: Box<Self>, keep: &dyn Fn() -> Stripes) -> Result<Cut> {
        let tree = self.tree;
        let (world, damage) = match tree.write_to(self.cut, keep) {
            Ok(world) => (world, None),
            Err(e) if e.is_damage() => (tree.described.lock().clone(), Some(e)),
            Err(e) => return Err(e),
        };
        let cut = Box::new(TreeCheckpoint { tree: &tree.shared.tree, world: world.clone() }).write(keep)?;
        // The pages of the older state are freed without the lock.
        let older = std::mem::replace(&mut *tree.described.lock(), world);
        drop(older);
        Ok(Cut { damage, ..cut })
    }
}

impl Drop for PartCheckpoint<'_> {
    fn drop(&mut self) {
        let mut cuts = self.tree.cuts.lock();
        let at = cuts.iter().position(|cut| *cut == self.cut).expect("the checkpoint has begun");
        cuts.swap_remove(at);
    }
}

impl Inspect for PartedTree {
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
