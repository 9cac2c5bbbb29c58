//! Reading: the view of a tree, the point lookup and the scan.
//!
//! A lookup goes from the root to a leaf. In the root it searches every slice that may hold the key, and in every other
//! node at most one. A scan goes from leaf to leaf. In the range of each leaf, it merges the slices of the path.

use std::collections::HashSet;
use std::ops::ControlFlow;
use std::sync::Arc;

use super::node::{Node, run_of};
use super::world::World;
use crate::base::sync::Once;
use crate::base::{HashedKey, KeyRange, PAGE, RangeTombstone, Result, Seqno};
use crate::index::deferred_frees::DeferredFrees;
use crate::index::runs::{Path, PathProbe, Piece, Pieces, PiecewiseCursor, Stop, changed_on};
use crate::index::{Changes, Estimate, IndexStats, IndexView, Lookup, Probe, RawCursor};
use crate::rows::IndexRows;
use crate::run::{ScanHabits, Spare};

/// An immutable tree and the counters that belong to it.
pub struct NbtreeView {
    /// The root.
    pub root: Arc<Node>,
    through: Seqno,
    horizon: Seqno,
    /// Bytes of large values.
    blob_bytes: u64,
    /// Messages and point tombstones, counted when they are first requested.
    counted: Once<(u64, u64)>,
    rows: Arc<IndexRows>,
    scans: Arc<ScanHabits>,
    /// No function reads this field. While the view exists, the field keeps the large values allocated that later swaps
    /// drop.
    _deferred_frees: Arc<DeferredFrees>,
}

impl NbtreeView {
    pub(super) fn of(world: &World, rows: &Arc<IndexRows>) -> NbtreeView {
        NbtreeView {
            root: world.root.clone(),
            through: world.through,
            horizon: world.horizon,
            blob_bytes: world.blobs.pages() * PAGE as u64,
            counted: Once::new(),
            rows: rows.clone(),
            scans: world.scans.clone(),
            _deferred_frees: world.deferred_frees.clone(),
        }
    }

    /// Estimated contents of all slices inside `range`.
    pub(super) fn estimate(&self, range: &KeyRange) -> Result<Estimate> {
        let mut sum = Estimate::default();
        let mut nodes = vec![&self.root];
        while let Some(node) = nodes.pop() {
            for part in node.parts_in(range) {
                let (bytes, entries) = part.slice.estimate(range)?;
                sum.bytes += bytes;
                sum.entries += entries;
            }
            nodes.extend(node.children_in(range));
        }
        Ok(sum)
    }

    pub(super) fn stats(&self) -> IndexStats {
        let mut stats = IndexStats::default();
        let (mut runs, mut nodes, mut leaves, mut largest) = (HashSet::new(), 0, 0, 0);
        self.root.walk(&mut |node| {
            nodes += 1;
            leaves += u64::from(node.is_leaf());
            largest = largest.max(node.bytes());
            for part in node.parts.iter() {
                let (run, meta) = (part.slice.run(), part.slice.run().meta());
                if runs.insert(meta.id) {
                    stats.search_bytes += meta.search_bytes();
                    stats.disk_bytes += run.owned().iter().map(|extent| extent.bytes()).sum::<u64>();
                }
                // This assumes that all parts of a run are alike.
                let (entries, all) = (part.slice.entries(), meta.entries().max(1));
                let share = |count: u64| (u128::from(count) * u128::from(entries) / u128::from(all)) as u64;
                stats.entries += entries;
                stats.tombstones += share(meta.deletes);
                stats.logical_bytes += share(meta.key_bytes + meta.value_bytes + meta.blob_bytes);
            }
        });
        stats.disk_bytes += self.blob_bytes;
        let levels = u64::from(self.root.height) + u64::from(!self.root.parts.is_empty());
        stats.gauge("levels", levels.max(1), "Levels of nodes that hold data; 1 for an empty index.");
        stats.gauge("nodes", nodes, "Nodes of the s-tree.");
        stats.gauge("leaves", leaves, "Leaves of the s-tree.");
        stats.gauge("largest_node_bytes", largest, "Bytes of data of the largest node.");
        stats.gauge("root_runs", self.root.parts.len() as u64, "Packed memtables that wait in the root.");
        stats.gauge("runs", runs.len() as u64, "Distinct runs.");
        let most = self.root.parts.len() as u64 + u64::from(self.root.height);
        stats.gauge("max_runs_on_path", most, "Maximum number of runs that one lookup may read.");
        stats
    }

    /// The number of messages in runs, and the number of point tombstones among them. They are counted only once for
    /// each view.
    pub(super) fn entries(&self) -> (u64, u64) {
        *self.counted.get_or_init(|| {
            let stats = self.stats();
            debug_assert!(stats.tombstones <= stats.entries, "tombstones are among the messages: {stats:?}");
            (stats.entries, stats.tombstones)
        })
    }
}

impl IndexView for NbtreeView {
    fn through(&self) -> Seqno {
        self.through
    }

    fn horizon(&self) -> Seqno {
        self.horizon
    }

    fn probe<'v>(&'v self, _: &Lookup<'_>) -> Box<dyn Probe<'v> + 'v> {
        Box::new(PathProbe::new(NodesPath::new(&self.root), &self.rows, self.through))
    }

    fn offer_row(&self, key: &[u8], hash: u64, value: &[u8], seqno: Seqno) {
        self.rows.offer(key, hash, value, seqno, self.through);
    }

    fn cursor(self: Arc<Self>, range: Arc<KeyRange>, reverse: bool) -> Result<Box<dyn RawCursor>> {
        Ok(Box::new(PiecewiseCursor::new(self, range, reverse)))
    }

    fn changed(self: Arc<Self>, key: HashedKey<'_>, since: Seqno, changes: Changes) -> Result<bool> {
        changed_on(NodesPath::new(&self.root), key, since, changes)
    }

    fn cursor_since(self: Arc<Self>, range: &KeyRange, since: Seqno) -> Result<Box<dyn RawCursor>> {
        Ok(Box::new(PiecewiseCursor::new(self, range.into(), false).since(since)))
    }

    fn tombstones(&self, range: &KeyRange, out: &mut Vec<RangeTombstone>) -> Result<()> {
        self.root.tombstones(range, out)
    }
}

/// The path of a key from the root to a leaf.
struct NodesPath<'v> {
    node: &'v Node,
    /// The index of the slice of the node to look at next.
    next: usize,
}

impl<'v> NodesPath<'v> {
    fn new(root: &'v Node) -> NodesPath<'v> {
        NodesPath { node: root, next: 0 }
    }
}

impl<'v> Path<'v> for NodesPath<'v> {
    fn stop(&mut self, key: &[u8]) -> Result<Option<Stop<'v>>> {
        loop {
            let node: &'v Node = self.node;
            if let Some(error) = &node.lost {
                return Err(error.clone());
            }
            if let Some((at, part)) = node.part_for(key, self.next) {
                self.next = at;
                return Ok(Some(Stop { slice: &part.slice, route: None }));
            }
            if node.children.is_empty() {
                return Ok(None);
            }
            (self.node, self.next) = (&node.children[node.child_for(key)], 0);
        }
    }

    fn advance(&mut self) {
        self.next += 1;
    }

    fn ahead(&self, key: &[u8], visit: &mut dyn FnMut(Stop<'v>) -> ControlFlow<()>) {
        let (mut node, mut next) = (self.node, self.next);
        loop {
            while let Some((at, part)) = node.part_for(key, next) {
                if visit(Stop { slice: &part.slice, route: None }).is_break() {
                    return;
                }
                next = at + 1;
            }
            if node.children.is_empty() || node.lost.is_some() {
                return;
            }
            (node, next) = (&node.children[node.child_for(key)], 0);
        }
    }
}

impl Pieces for NbtreeView {
    /// The piece at the beginning of `rest`, or at the end of `rest` for a reverse scan: the range of the leaf there.
    fn piece(&self, rest: &KeyRange, reverse: bool) -> Result<Piece> {
        let mut node = &self.root;
        let mut path: Vec<&Arc<Node>> = Vec::new();
        loop {
            if let Some(error) = &node.lost {
                return Err(error.clone());
            }
            path.push(node);
            let children = node.children_in(rest);
            let Some(child) = (if reverse { children.last() } else { children.first() }) else { break };
            node = child;
        }
        let range = node.range.intersect(rest);
        debug_assert!(!range.is_empty(), "a piece has keys of the rest");
        let mut slices = Vec::new();
        for (depth, node) in path.iter().enumerate() {
            for part in node.parts_in(&range) {
                // The children of a node that a slice overlaps get an equal number of its bytes.
                let shares = path[depth..].iter().filter(|node| !node.is_leaf());
                let leaves = shares.map(|node| node.children_in(part.slice.range()).len().max(1) as u64);
                slices.push((part.slice.clone(), part.slice.bytes() / leaves.product::<u64>().max(1)));
            }
        }
        Ok(Piece { range: Arc::new(range), slices })
    }

    fn habits(&self) -> &ScanHabits {
        &self.scans
    }

    /// Scans cause no merges: each node is flushed when it is full.
    fn note_spare(&self, _: &KeyRange, _: Spare) {}

    fn rows(&self) -> &IndexRows {
        &self.rows
    }
}

/// The description of the run `id`, if the tree has this run.
pub(super) fn run(root: &Arc<Node>, id: crate::base::OwnerId) -> Option<crate::run::RunMeta> {
    let mut found = None;
    root.walk(&mut |node| {
        let part = node.parts.iter().find(|part| run_of(&part.slice) == id);
        found = found.take().or_else(|| part.map(|part| part.slice.run().meta().clone()));
    });
    found
}
