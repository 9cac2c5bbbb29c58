//! [`Shared`]: the parts of the index that views share.

use std::sync::Arc;

use crate::base::sync::{AtomicUsize, Ordering::Relaxed, RwLock};
use crate::base::{FragmentSet, FragmentSweep, Fragments, KeyRange, RangeTombstone, Seqno};
use crate::index::hot::{Contents, Counted, Directory, Ranges, Rules};
use crate::index::tree::Tree;
use crate::index::tree::view::TreeView;
use crate::resolve::Stripes;

/// The last state of an index whose keyspace was dropped.
pub(super) struct Frozen {
    pub(super) ranges: Ranges,
    pub(super) tree: Arc<TreeView>,
    pub(super) tombstones: FragmentSet,
}

/// The parts that views share.
pub(super) struct Shared {
    /// The tree on disk.
    pub(super) tree: Tree,
    pub(super) directory: Directory,
    /// The range tombstones that the tree on disk does not have yet.
    tombstones: RwLock<FragmentSet>,
    /// The bytes of all ranges in memory, approximately.
    bytes: AtomicUsize,
    /// The bytes of leaves that writing all changed ranges takes at most.
    unwritten: AtomicUsize,
}

impl Shared {
    pub(super) fn new(tree: Tree) -> Shared {
        let (directory, tombstones) = (Directory::default(), RwLock::default());
        Shared { tree, directory, tombstones, bytes: AtomicUsize::new(0), unwritten: AtomicUsize::new(0) }
    }

    /// The state that views keep when the keyspace is dropped. REQUIRES: the caller holds the directory.
    pub(super) fn frozen(&self, ranges: &Ranges) -> Frozen {
        let (tree, tombstones) = (self.tree.published.load_full(), self.tombstones.read().clone());
        Frozen { ranges: ranges.clone(), tree, tombstones }
    }

    /// The bytes of all ranges in memory, approximately.
    pub(super) fn bytes(&self) -> usize {
        self.bytes.load(Relaxed)
    }

    /// The bytes of leaves that writing all changed ranges takes at most.
    pub(super) fn unwritten(&self) -> usize {
        self.unwritten.load(Relaxed)
    }

    /// Counts a range from now on, because it is in memory.
    pub(super) fn count_new(&self, contents: &mut Contents) {
        contents.begin_count();
        self.count(contents);
    }

    /// Counts a range anew after a change of its contents. Has no effect if the range is not in memory any more: a
    /// commit may hold a range that was removed.
    pub(super) fn count(&self, contents: &mut Contents) {
        let Some((before, after)) = contents.recount(self.tree.sizes.leaf.bytes) else { return };
        self.unwritten.fetch_add(after.unwritten.wrapping_sub(before.unwritten), Relaxed);
        match after.bytes.checked_sub(before.bytes) {
            Some(0) => {}
            Some(more) => {
                self.bytes.fetch_add(more, Relaxed);
                self.tree.core.pool.hold(more);
            }
            None => self.remove_bytes(before.bytes - after.bytes),
        }
    }

    /// Counts a range no longer, because it leaves memory, was divided, or the keyspace was dropped. Readers may still
    /// read it.
    pub(super) fn forget(&self, contents: &mut Contents) {
        let Some(Counted { bytes, unwritten }) = contents.end_count() else { return };
        self.unwritten.fetch_sub(unwritten, Relaxed);
        self.remove_bytes(bytes);
    }

    fn remove_bytes(&self, bytes: usize) {
        let before = self.bytes.fetch_sub(bytes, Relaxed);
        debug_assert!(before >= bytes, "only counted bytes are removed");
        self.tree.core.pool.let_go(bytes);
    }

    /// Calls `look` with the current state. No root is published, and no range is added or removed, during the call.
    pub(super) fn look<T>(&self, look: impl FnOnce(&Ranges, &Arc<TreeView>, &FragmentSet) -> T) -> T {
        let ranges = self.directory.lock().read();
        let tree = self.tree.published.load_full();
        look(&ranges, &tree, &self.tombstones.read())
    }

    /// The range tombstones in memory up to `through`.
    pub(super) fn tombstones_to(&self, through: Seqno) -> Vec<RangeTombstone> {
        let tombstones = self.tombstones.read();
        tombstones.clipped(&KeyRange::all()).filter(|tombstone| tombstone.seqno <= through).collect()
    }

    pub(super) fn add_tombstone(&self, tombstone: &RangeTombstone) {
        self.tombstones.write().insert(tombstone);
    }

    /// Removes the range tombstones up to `through`, because the tree on disk has them.
    pub(super) fn drop_tombstones_to(&self, through: Seqno) {
        let mut set = self.tombstones.write();
        let mut rest = FragmentSet::new();
        for tombstone in set.clipped(&KeyRange::all()).filter(|tombstone| tombstone.seqno > through) {
            rest.insert(&tombstone);
        }
        *set = rest;
    }

    /// All range tombstones, of memory and of the tree on disk.
    pub(super) fn all_tombstones(&self) -> Arc<Fragments> {
        let mut all = self.tombstones_to(Seqno::MAX);
        let tree = self.tree.published.load_full();
        if all.is_empty() {
            return tree.tombstones.clone();
        }
        all.extend(tree.tombstones.clipped(&KeyRange::all()));
        Arc::new(Fragments::build(&all))
    }

    /// Folds a range, and counts the memory that this frees.
    pub(super) fn fold(&self, contents: &mut Contents, keep: &Stripes, tombstones: Arc<Fragments>) {
        let operator = self.tree.sizes.operator.as_ref();
        contents.fold(Rules { keep, operator, tombstones: FragmentSweep::new(tombstones) });
        self.count(contents);
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        self.remove_bytes(self.bytes());
    }
}
