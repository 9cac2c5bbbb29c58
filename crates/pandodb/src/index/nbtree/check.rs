//! Verification and description of a tree. Both read the whole tree and change nothing.

use std::fmt::Write;
use std::sync::Arc;

use super::node::Node;
use super::shape::Limits;
use super::world::World;
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
pub(super) struct PinnedNodes<'a> {
    core: &'a Core,
    /// The whole tree. Its deferred frees keep the large values allocated that merges drop during the verification.
    world: World,
    /// The nodes, parents first.
    nodes: Vec<Placed>,
    /// The smallest f and σ that were ever in force.
    least: Limits,
    blobs: PinnedMap,
}

impl PinnedNodes<'_> {
    /// Pins a root. No checkpoint may run during the call.
    pub fn new(core: &Core, world: World, least: Limits) -> PinnedNodes<'_> {
        let mut nodes = Vec::new();
        world.root.walk(&mut |node| nodes.push((node.clone(), node.stored())));
        assert!(*nodes[0].0.range == KeyRange::all(), "the walk begins with the root");
        let blobs = world.blobs.pin();
        PinnedNodes { core, world, nodes, least, blobs }
    }
}

impl Verification for PinnedNodes<'_> {
    fn for_each_extent(&self, visit: &mut dyn FnMut(Extent)) {
        let mut extents = Extents::new(visit);
        for (node, stored) in &self.nodes {
            stored.iter().for_each(|stored| extents.stored(*stored));
            node.parts.iter().for_each(|part| extents.run(part.slice.run()));
        }
        extents.large_values(&self.blobs);
    }

    /// Reads every node, every block of every run and every large value.
    fn check(&self, visit: &mut dyn Visitor) -> Result<()> {
        let mut checker = Checker::new(self.core, visit);
        self.nodes.iter().for_each(|placed| check_node(&mut checker, placed));
        if let Some(problem) = small_node(&self.world.root, self.least) {
            checker.problem(crate::Error::corruption("node", 0, problem));
        }
        checker.finish(&self.blobs);
        Ok(())
    }
}

fn check_node(checker: &mut Checker<'_>, (node, stored): &Placed) {
    if let Some(error) = &node.lost {
        checker.lost(error.clone());
    }
    if let Some(problem) = node.problem() {
        checker.problem(crate::Error::corruption("node", 0, problem));
    }
    if let Some(stored) = stored {
        checker.stored(*stored, BlockKind::NestedNode);
    }
    for part in node.parts.iter() {
        checker.run(part.slice.run());
        // Only messages in the range of the node are live, so K_{i−1} ≤ key < K_i holds for all that are read.
        checker.live(Stop { slice: &part.slice, route: None }, part.slice.range());
    }
}

/// The first node that is smaller than the structure allows (001 §3.1.1): an inner node with fewer than ⌈f/2⌉ children, or
/// a leaf with less than half of σ, less the slack of a cut. An only child is exempt. A leaf is also exempt if it cannot be
/// joined with a neighbour, because large rows can make cuts uneven.
fn small_node(root: &Arc<Node>, least: Limits) -> Option<String> {
    let mut found = None;
    root.walk(&mut |node| {
        let fits = |at: usize| {
            let pair = [at.checked_sub(1), Some(at + 1)].into_iter().flatten().filter_map(|at| node.children.get(at));
            pair.map(|other| node.children[at].bytes() + other.bytes()).all(|both| both <= least.dtree_bytes)
        };
        let is_small = |at: &usize| {
            let child = &node.children[*at];
            least.is_small(child) && (!child.is_leaf() || fits(*at))
        };
        let small = (0..node.children.len()).filter(|_| node.children.len() > 1).find(is_small);
        let small = small.map(|at| &node.children[at]);
        if let Some(small) = small.filter(|_| found.is_none()) {
            let (from, height) = (short(&small.range.from), small.height);
            let size = match small.is_leaf() {
                true => format!("{} bytes, at least {} expected", small.bytes(), least.least_leaf()),
                false => format!("{} children, at least {} expected", small.children.len(), least.least_children()),
            };
            found = Some(format!("the node of height {height} at [{from} is too small: {size}"));
        }
    });
    found
}

/// The leaves in key order, as one piece each. Each piece has the slices of the path to the leaf, newest first.
pub(super) fn salvage(root: &Arc<Node>) -> Vec<SalvagePiece> {
    let mut pieces = Vec::new();
    root.walk_paths(&mut Vec::new(), &mut |path| {
        let leaf = *path.last().expect("a path has nodes");
        let slices: Vec<Arc<RunSlice>> =
            path.iter().flat_map(|node| node.parts_in(&leaf.range)).map(|part| part.slice.clone()).collect();
        let (range, sources) = (KeyRange::clone(&leaf.range), sources(slices, &leaf.range));
        pieces.push(SalvagePiece { range, sources, lost: leaf.lost.clone() });
    });
    pieces
}

/// Prints the tree: one line per node and one line per slice.
pub(super) fn describe(root: &Arc<Node>, limits: Limits, out: &mut String) {
    let Limits { fanout, dtree_bytes } = limits;
    let _ = writeln!(out, "Nested B-tree: at most {fanout} children, {dtree_bytes} bytes of data in a full node");
    describe_node(out, root, 0);
}

fn describe_node(out: &mut String, node: &Node, depth: usize) {
    let pad = "  ".repeat(depth);
    if let Some(error) = &node.lost {
        let _ = writeln!(out, "{pad}LOST: {error}");
    }
    let absent = if node.is_leaf() { "in the block of its parent" } else { "not on disk" };
    let place = node
        .stored()
        .map_or(absent.into(), |s| format!("node {} at pages {} and {}", s.id, s.copies.0[0].page, s.copies.0[1].page));
    let end = |to: &[u8]| if to.is_empty() { "∞".into() } else { short(to) };
    let (from, to, height, bytes) = (short(&node.range.from), end(&node.range.to), node.height, node.bytes());
    let _ = writeln!(out, "{pad}[{from} .. {to}) height {height} bytes {bytes} ({place})");
    for part in node.parts.iter() {
        let (range, run) = (part.slice.range(), part.slice.run().meta().id);
        let (from, to, bytes, entries) = (short(&range.from), end(&range.to), part.bytes, part.slice.entries());
        let _ = writeln!(out, "{pad}  [{from} .. {to}) run {run} bytes {bytes} entries {entries}");
    }
    node.children.iter().for_each(|child| describe_node(out, child, depth + 1));
}
