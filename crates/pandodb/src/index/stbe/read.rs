//! Reading: the view of a tree and the point lookup (002 §3.3).
//!
//! A lookup goes down the trunk, which is in memory ([`TrunkPath`]). At each node, the lookup searches the branches
//! that are live for the next child on the path, the newest branch first. A scan reads one leaf after another. For each
//! leaf, the scan merges the branches that are live on the path to the leaf ([`Pieces`]).

use std::ops::ControlFlow;
use std::sync::Arc;

use super::node::{Branch, Child, Node};
use super::scans::{Scans, path_to};
use super::trunk::Trunk;
use crate::base::sync::Once;
use crate::base::{HashedKey, KeyRange, RangeTombstone, Result, Seqno};
use crate::index::deferred_frees::DeferredFrees;
use crate::index::runs::{Path, PathProbe, Piece, Pieces, PiecewiseCursor, Stop, changed_on};
use crate::index::{Changes, Estimate, IndexStats, IndexView, Lookup, Probe, RawCursor};
use crate::rows::IndexRows;
use crate::run::{RunSlice, ScanHabits, Spare};

/// An immutable root and the counters that belong to it.
pub struct StbeView {
    /// The trunk.
    pub root: Arc<Node>,
    through: Seqno,
    horizon: Seqno,
    /// Bytes of large values.
    blob_bytes: u64,
    /// Messages and point tombstones, counted when they are first requested.
    pub(super) counted: Once<(u64, u64)>,
    rows: Arc<IndexRows>,
    scans: Arc<Scans>,
    /// No function reads this field. While the view exists, the field keeps the large values allocated that later swaps
    /// drop.
    _deferred_frees: Arc<DeferredFrees>,
}

impl StbeView {
    pub(super) fn of(trunk: &Trunk, rows: &Arc<IndexRows>) -> StbeView {
        StbeView {
            rows: rows.clone(),
            scans: trunk.scans.clone(),
            root: trunk.root.clone(),
            through: trunk.through,
            horizon: trunk.horizon,
            blob_bytes: trunk.blobs.pages() * crate::base::PAGE as u64,
            counted: Once::new(),
            _deferred_frees: trunk.deferred_frees.clone(),
        }
    }

    /// Estimated contents of the live parts of all branches inside `range`.
    pub(super) fn estimate(&self, range: &KeyRange) -> Result<Estimate> {
        let mut sum = Estimate::default();
        let mut add = |branch: &Branch, within: &KeyRange| -> Result<()> {
            if let Some(part) = branch.slice.clip(&within.intersect(range))? {
                sum.bytes += part.bytes();
                sum.entries += part.entries();
            }
            Ok(())
        };
        let mut result = Ok(());
        self.root.walk(&mut |node| {
            if result.is_err() || !node.range.overlaps(range) {
                return;
            }
            result = if node.is_leaf() {
                node.branches.iter().try_for_each(|branch| add(branch, &node.range))
            } else {
                node.children
                    .iter()
                    .try_for_each(|child| node.live(child).iter().try_for_each(|branch| add(branch, &child.node.range)))
            };
        });
        result.map(|()| sum)
    }

    pub(super) fn stats(&self) -> IndexStats {
        let mut stats = IndexStats::default();
        let (mut nodes, mut runs, mut maplets) = (0, 0, 0);
        let mut seen = std::collections::HashSet::new();
        self.root.walk(&mut |node| {
            nodes += 1;
            for branch in &node.branches {
                let run = branch.slice.run();
                if seen.insert(run.meta().id) {
                    runs += 1;
                    stats.search_bytes += run.meta().search_bytes();
                    stats.disk_bytes += run.owned().iter().map(|extent| extent.bytes()).sum::<u64>();
                }
            }
            for maplet in node.maplets().filter(|maplet| seen.insert(maplet.meta().id)) {
                maplets += 1;
                stats.search_bytes += maplet.meta().search_bytes();
                stats.disk_bytes += maplet.meta().disk_bytes();
            }
        });
        stats.disk_bytes += self.blob_bytes;
        stats.gauge("levels", u64::from(self.root.height) + 1, "Levels of the tree; 1 while the root is a leaf.");
        stats.gauge("nodes", nodes, "Nodes of the trunk.");
        stats.gauge("runs", runs, "Distinct runs.");
        stats.gauge("maplets", maplets, "Maplets; each covers several runs.");
        stats.gauge("max_runs_on_path", runs_on_path(&self.root), "Maximum number of runs that one lookup may read.");
        for_live_parts(&self.root, &mut |part| {
            let meta = part.slice.run().meta();
            stats.entries += part.entries;
            stats.tombstones += part.share(meta.deletes);
            stats.logical_bytes += part.share(meta.key_bytes + meta.value_bytes + meta.blob_bytes);
        });
        stats
    }

    /// The number of messages in runs, and the number of point tombstones among them. They are counted only once for
    /// each view.
    pub(super) fn entries(&self) -> (u64, u64) {
        *self.counted.get_or_init(|| {
            let (mut entries, mut tombstones) = (0, 0);
            for_live_parts(&self.root, &mut |part| {
                entries += part.entries;
                tombstones += part.share(part.slice.run().meta().deletes);
            });
            debug_assert!(tombstones <= entries, "{tombstones} tombstones among {entries} messages");
            (entries, tombstones)
        })
    }
}

/// A branch, and the number of its messages that are live in its node.
struct LivePart<'a> {
    slice: &'a crate::run::RunSlice,
    entries: u64,
}

impl LivePart<'_> {
    /// The live share of `count` messages of the run, assuming that all parts of the run are alike.
    fn share(&self, count: u64) -> u64 {
        let all = self.slice.run().meta().entries().max(1);
        (u128::from(count) * u128::from(self.entries) / u128::from(all)) as u64
    }
}

fn for_live_parts(root: &Arc<Node>, visit: &mut dyn FnMut(LivePart<'_>)) {
    root.walk(&mut |node| {
        for (i, branch) in node.branches.iter().enumerate() {
            let all = branch.slice.entries();
            let entries = if node.is_leaf() {
                all
            } else {
                let total: u64 = branch.weights.iter().sum::<u64>().max(1);
                let live: u64 = (0..node.children.len())
                    .filter(|&c| node.children[c].next <= i as u64)
                    .map(|c| branch.weights[c])
                    .sum();
                debug_assert!(live <= total, "the live part of a branch is at most the branch");
                (u128::from(all) * u128::from(live) / u128::from(total)) as u64
            };
            visit(LivePart { slice: &branch.slice, entries });
        }
    });
}

/// Maximum number of live branches on a path from `node` to a leaf.
fn runs_on_path(node: &Node) -> u64 {
    if node.children.is_empty() {
        return node.branches.len() as u64;
    }
    (0..node.children.len())
        .map(|i| node.live_branches(i) as u64 + runs_on_path(&node.children[i].node))
        .max()
        .unwrap_or(0)
}

impl IndexView for StbeView {
    fn through(&self) -> Seqno {
        self.through
    }

    fn horizon(&self) -> Seqno {
        self.horizon
    }

    fn probe<'v>(&'v self, lookup: &Lookup<'_>) -> Box<dyn Probe<'v> + 'v> {
        Box::new(PathProbe::new(TrunkPath::new(&self.root, lookup.key), &self.rows, self.through))
    }

    fn offer_row(&self, key: &[u8], hash: u64, value: &[u8], seqno: Seqno) {
        self.rows.offer(key, hash, value, seqno, self.through);
    }

    fn cursor(self: Arc<Self>, range: Arc<KeyRange>, reverse: bool) -> Result<Box<dyn RawCursor>> {
        Ok(Box::new(PiecewiseCursor::new(self, range, reverse)))
    }

    fn changed(self: Arc<Self>, key: HashedKey<'_>, since: Seqno, changes: Changes) -> Result<bool> {
        changed_on(TrunkPath::new(&self.root, key.key), key, since, changes)
    }

    fn cursor_since(self: Arc<Self>, range: &KeyRange, since: Seqno) -> Result<Box<dyn RawCursor>> {
        Ok(Box::new(PiecewiseCursor::new(self, range.into(), false).since(since)))
    }

    fn tombstones(&self, range: &KeyRange, out: &mut Vec<RangeTombstone>) -> Result<()> {
        let mut result = Ok(());
        self.root.walk(&mut |node| {
            // Skip runs without tombstones first: most runs have none, and every scan calls this function.
            let with_some = |(_, branch): &(usize, &Branch)| branch.slice.run().meta().range_tombstones > 0;
            for (i, branch) in node.branches.iter().enumerate().filter(with_some) {
                let part = range.intersect(branch.slice.range());
                // Children for which the branch is dead have already received its tombstones.
                let live = |child: &Child| child.next <= i as u64 && child.node.range.overlaps(&part);
                // Skip a run that has no keys in the requested range, because its tombstones may be unreadable.
                let here = node.is_leaf() && !part.is_empty();
                if result.is_ok() && (here || node.children.iter().any(live)) {
                    result = branch.slice.tombstones(&part).map(|found| out.extend(found));
                }
            }
        });
        result
    }
}

/// The path of a key down the trunk. At each node, the path contains the branches that are live for the next child, the
/// newest branch first.
struct TrunkPath<'v> {
    node: &'v Node,
    /// Index of the child whose range contains the key.
    child: usize,
    /// Index of the oldest branch that is live for the key.
    live_from: usize,
    /// The branches below this index have not been searched yet.
    next: usize,
}

impl<'v> TrunkPath<'v> {
    fn new(root: &'v Node, key: &[u8]) -> TrunkPath<'v> {
        let (child, live_from) = way(root, key);
        debug_assert!(live_from <= root.branches.len(), "the first live branch is in the list or at its end");
        TrunkPath { node: root, child, live_from, next: root.branches.len() }
    }
}

fn stop_at(branch: &Branch) -> Stop<'_> {
    Stop { slice: &branch.slice, route: branch.route.as_ref() }
}

impl<'v> Path<'v> for TrunkPath<'v> {
    #[inline]
    fn stop(&mut self, key: &[u8]) -> Result<Option<Stop<'v>>> {
        loop {
            if let Some(error) = &self.node.lost {
                return Err(error.clone());
            }
            let node: &'v Node = self.node;
            if self.next > self.live_from {
                return Ok(Some(stop_at(&node.branches[self.next - 1])));
            }
            if node.is_leaf() {
                return Ok(None);
            }
            *self = TrunkPath::new(&node.children[self.child].node, key);
        }
    }

    #[inline]
    fn advance(&mut self) {
        debug_assert!(self.next > self.live_from, "a stop was returned before");
        self.next -= 1;
    }

    fn ahead(&self, key: &[u8], visit: &mut dyn FnMut(Stop<'v>) -> ControlFlow<()>) {
        let (mut node, mut live_from, mut child) = (self.node, self.live_from, self.child);
        while node.lost.is_none() {
            for branch in node.branches[live_from..].iter().rev() {
                if visit(stop_at(branch)).is_break() {
                    return;
                }
            }
            if node.is_leaf() {
                return;
            }
            node = &node.children[child].node;
            (child, live_from) = way(node, key);
        }
    }
}

/// The index of the child whose range contains the key, and the index of the oldest branch that is live for this child.
fn way(node: &Node, key: &[u8]) -> (usize, usize) {
    if node.children.is_empty() {
        return (0, 0);
    }
    let child = node.child_for(key);
    (child, node.children[child].next as usize)
}

impl Pieces for StbeView {
    /// A leaf, with all branches that are live on the path to it.
    fn piece(&self, rest: &KeyRange, reverse: bool) -> Result<Piece> {
        let with_bytes = |branch: &Branch| (branch.slice.clone(), branch.slice.bytes());
        let mut slices: Vec<(Arc<RunSlice>, u64)> = Vec::new();
        let mut node: &Arc<Node> = &self.root;
        while !node.children.is_empty() {
            let i = if reverse { last_child(node, rest) } else { node.child_for(&rest.from) };
            let child = &node.children[i];
            slices.extend(node.live(child).iter().map(with_bytes));
            // A slice of an inner node has about the same number of bytes for each child.
            slices.iter_mut().for_each(|(_, bytes)| *bytes /= node.children.len() as u64);
            node = &child.node;
        }
        if let Some(error) = &node.lost {
            return Err(error.clone());
        }
        slices.extend(node.branches.iter().map(with_bytes));
        debug_assert!(node.range.overlaps(rest), "the leaf has keys of the rest");
        Ok(Piece { range: node.range.clone(), slices })
    }

    fn habits(&self) -> &ScanHabits {
        &self.scans.habits
    }

    fn note_spare(&self, piece: &KeyRange, spare: Spare) {
        let (leaf, path) = path_to(&self.root, piece);
        debug_assert!(*leaf.range == *piece, "a piece is a leaf");
        self.scans.note(leaf, path, spare);
    }

    fn rows(&self) -> &IndexRows {
        &self.rows
    }
}

/// The index of the child with the largest keys of `range`.
fn last_child(node: &Node, range: &KeyRange) -> usize {
    debug_assert!(!node.children.is_empty() && !range.is_empty());
    if range.to.is_empty() {
        return node.children.len() - 1;
    }
    node.children.partition_point(|child| child.node.range.from < range.to).saturating_sub(1)
}
