//! Verification and description of a trunk. Both read the whole trunk and change nothing.

use std::fmt::Write;
use std::sync::Arc;

use super::node::{Branch, Node};
use super::read::StbeView;
use super::trunk::Trunk;
use crate::base::{Extent, KeyRange, Result};
use crate::index::blobs::PinnedMap;
use crate::index::runs::check::{Checker, short, sources};
use crate::index::runs::{Extents, Stop};
use crate::index::stored::Stored;
use crate::index::{Core, SalvagePiece, Verification, Visitor};
use crate::run::RunSlice;
use crate::space::BlockKind;

/// A node, and its address on disk if the node was on disk when the verification began. An address that a checkpoint
/// assigns later is not used, because the pages at this address may be freed before the verification ends.
type Placed = (Arc<Node>, Option<Stored>);

/// A root of the tree, pinned for a verification.
pub(super) struct PinnedTrunk<'a> {
    core: &'a Core,
    /// The whole trunk. Its deferred frees keep the large values allocated that compactions drop during the
    /// verification.
    _trunk: Trunk,
    /// The nodes of the trunk, parents first.
    nodes: Vec<Placed>,
    blobs: PinnedMap,
}

impl PinnedTrunk<'_> {
    /// Pins a root. No checkpoint may run during the call.
    pub fn new(core: &Core, trunk: Trunk) -> PinnedTrunk<'_> {
        let mut nodes = Vec::new();
        trunk.root.walk(&mut |node| nodes.push((node.clone(), node.stored())));
        assert!(*nodes[0].0.range == KeyRange::all(), "the walk begins with the root");
        let blobs = trunk.blobs.pin();
        PinnedTrunk { core, _trunk: trunk, nodes, blobs }
    }
}

impl Verification for PinnedTrunk<'_> {
    fn for_each_extent(&self, visit: &mut dyn FnMut(Extent)) {
        let mut extents = Extents::new(visit);
        for (node, stored) in &self.nodes {
            stored.iter().for_each(|stored| extents.stored(*stored));
            node.branches.iter().for_each(|branch| extents.run(branch.slice.run()));
            node.maplets().for_each(|maplet| extents.run(maplet));
        }
        extents.large_values(&self.blobs);
    }

    /// Reads every node, every block of every run and every large value.
    fn check(&self, visit: &mut dyn Visitor) -> Result<()> {
        let mut checker = Checker::new(self.core, visit);
        self.nodes.iter().for_each(|placed| check_node(&mut checker, placed));
        checker.finish(&self.blobs);
        Ok(())
    }
}

fn check_node(checker: &mut Checker<'_>, (node, stored): &Placed) {
    if let Some(error) = &node.lost {
        checker.lost(error.clone());
    }
    if let Some(problem) = node.problem() {
        checker.problem(crate::Error::corruption("trunk node", 0, problem));
    }
    if let Some(stored) = stored {
        checker.stored(*stored, BlockKind::TrunkNode);
    }
    node.branches.iter().for_each(|branch| checker.run(branch.slice.run()));
    node.maplets().for_each(|maplet| checker.run(maplet));
    debug_assert!(node.children.iter().all(|child| child.next <= node.end()), "checked when the node was read");
    // The branches that are live for each child.
    let of_children = node.children.iter().map(|child| (&child.node.range, child.next as usize));
    let of_leaf = node.is_leaf().then_some((&node.range, 0));
    for (range, from) in of_children.chain(of_leaf) {
        for branch in &node.branches[from..] {
            checker.live(Stop { slice: &branch.slice, route: branch.route.as_ref() }, range);
        }
    }
}

/// Appends the leaves under `node` to `out`, in key order. Each leaf gets the runs that are live on the path to it.
/// Runs of higher nodes come first, and within a node newer runs come first.
pub(super) fn salvage(node: &Arc<Node>, above: &[Arc<RunSlice>], out: &mut Vec<SalvagePiece>) {
    let live = |branches: &[Branch]| {
        let own = branches.iter().rev().map(|branch| branch.slice.clone());
        above.iter().cloned().chain(own).collect::<Vec<_>>()
    };
    if node.children.is_empty() {
        let (range, sources) = (KeyRange::clone(&node.range), sources(live(&node.branches), &node.range));
        out.push(SalvagePiece { range, sources, lost: node.lost.clone() });
    }
    node.children.iter().for_each(|child| salvage(&child.node, &live(node.live(child)), out));
}

/// Prints the trunk: one line per node and one line per branch.
pub(super) fn describe(view: &StbeView, out: &mut String) {
    describe_node(out, &view.root, 0);
}

fn describe_node(out: &mut String, node: &Node, depth: usize) {
    let pad = "  ".repeat(depth);
    if let Some(error) = &node.lost {
        let _ = writeln!(out, "{pad}LOST: {error}");
    }
    let place = node.stored().map_or("not on disk".into(), |s| {
        format!("node {} at pages {} and {}", s.id, s.copies.0[0].page, s.copies.0[1].page)
    });
    let to = if node.range.to.is_empty() { "∞".into() } else { short(&node.range.to) };
    let (from, height) = (short(&node.range.from), node.height);
    let bytes = if node.is_leaf() { node.branches.iter().map(|b| b.slice.bytes()).sum() } else { node.own_bytes() };
    let _ = writeln!(out, "{pad}[{from} .. {to}) height {height} bytes {bytes} ({place})");
    for (i, branch) in node.branches.iter().enumerate() {
        let live = node.children.iter().filter(|child| child.next <= i as u64).count();
        let fresh = if branch.fresh { " fresh" } else { "" };
        let live = if node.is_leaf() { String::new() } else { format!(" live for {live} of {}", node.children.len()) };
        let (run, slice) = (branch.slice.run().meta().id, &branch.slice);
        let (id, bytes, entries) = (branch.id.0, slice.bytes(), slice.entries());
        let route = branch.route.as_ref().map_or(String::new(), |r| format!(" maplet {}", r.maplet.meta().id));
        let _ = writeln!(out, "{pad}  branch {id} run {run} bytes {bytes} entries {entries}{fresh}{live}{route}");
    }
    node.children.iter().for_each(|child| describe_node(out, &child.node, depth + 1));
}
