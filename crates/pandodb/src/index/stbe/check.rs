//! Verification and description of a trunk: reads everything, changes nothing.

use std::collections::HashSet;
use std::fmt::Write;
use std::sync::Arc;

use super::node::{Branch, Node, Stored};
use super::read::StbeView;
use crate::base::{BlobRef, BlockAddr, KeyRange, Kind, Result, RunId, SeededBug, key_hash};
use crate::index::{Core, Part, Visitor};
use crate::run::{ReadAhead, RunCursor, RunSlice, maplet};
use crate::space::BlockKind;
use crate::space::data::DATA_FILE;
use crate::space::ranges::RangeSet;

/// Bytes read ahead while every leaf is read.
const READ_AHEAD: usize = 256 << 10;

/// A node, and where it is on disk. A checkpoint may give it a place later, in pages that something else has left since.
type Placed = (Arc<Node>, Option<Stored>);

/// The nodes below `root` as they are now.
pub(super) fn nodes(root: &Arc<Node>) -> Vec<Placed> {
    let mut nodes = Vec::new();
    root.walk(&mut |node| nodes.push((node.clone(), node.stored())));
    nodes
}

/// Reads every node, every block of every run, every large value; reports pages, blocks, live messages and problems. The caller
/// keeps the trunk.
pub(super) fn verify(core: &Core, nodes: &[Placed], blobs: &RangeSet, visit: &mut dyn Visitor) -> Result<()> {
    let mut runs = HashSet::new();
    let mut named = RangeSet::default();
    let mut complete = true;
    for (node, stored) in nodes {
        if let Some(error) = &node.lost {
            visit.problem(error.clone());
            complete = false;
        }
        if let Some(problem) = node.problem() {
            visit.problem(crate::Error::corruption("trunk node", 0, problem));
        }
        if let Some(stored) = stored {
            stored.twin.extents().into_iter().for_each(|extent| visit.extent(extent));
            for addr in stored.twin.0 {
                match core.data.read_block(addr, stored.id, BlockKind::Node) {
                    Ok(buf) => visit.block(BlockKind::Node, buf.len() as u64),
                    Err(e) => visit.problem(e),
                }
            }
        }
        for branch in &node.branches {
            let run = branch.slice.run();
            if runs.insert(run.meta().id) {
                run.owned().into_iter().for_each(|extent| visit.extent(extent));
                run.verify(&mut |kind, checked| match checked {
                    Ok(bytes) => visit.block(kind, bytes),
                    Err(e) => visit.problem(e),
                });
            }
        }
        for maplet in node.maplets().filter(|maplet| runs.insert(maplet.meta().id)) {
            maplet.owned().into_iter().for_each(|extent| visit.extent(extent));
            maplet.verify(&mut |kind, checked| match checked {
                Ok(bytes) => visit.block(kind, bytes),
                Err(e) => visit.problem(e),
            });
        }
        complete &= verify_live(core, node, &mut named, visit);
    }
    for (start, len) in blobs.iter() {
        super::extents((start, len)).for_each(|extent| visit.extent(extent));
    }
    // Messages that could not be read were reported; which values they name is not known.
    if complete && named != *blobs {
        let detail = "the pages that messages name are not the pages that the trunk accounts for";
        visit.problem(crate::Error::corruption("large values", 0, detail).in_file(DATA_FILE, 0));
    }
    Ok(())
}

/// Walks every message that is live in a node, in each child's range apart. Whether all could be read.
fn verify_live(core: &Core, node: &Arc<Node>, named: &mut RangeSet, visit: &mut dyn Visitor) -> bool {
    let (mut complete, mut known) = (true, Known::default());
    let parts: Vec<(KeyRange, usize)> = if node.is_leaf() {
        vec![(node.range.clone(), 0)]
    } else {
        node.children.iter().map(|c| (c.node.range.clone(), c.next as usize)).collect()
    };
    for (range, from) in parts {
        for branch in &node.branches[from..] {
            let result = (|| -> Result<()> {
                if !branch.slice.range().overlaps(&range) {
                    return Ok(());
                }
                let mut sound = true;
                let mut cursor = RunCursor::new(branch.slice.clone(), &range, false, ReadAhead::Streaming(READ_AHEAD))?;
                while let Some(entry) = cursor.entry() {
                    visit.entry(&entry);
                    if sound && let Err(e) = known.check(branch, entry.key) {
                        visit.problem(e);
                        sound = false;
                    }
                    if entry.kind == Kind::BlobPut {
                        verify_blob(core, entry.value, named, visit)?;
                    }
                    cursor.advance()?;
                }
                Ok(())
            })();
            if let Err(e) = result {
                complete = false;
                visit.problem(e);
            }
        }
    }
    complete
}

/// The maplet that was verified last, with its pages; without any if they cannot be read, which is reported elsewhere.
#[derive(Default)]
struct Known(Option<(RunId, Vec<Vec<u8>>)>);

impl Known {
    /// A maplet must know the keys of its runs.
    fn check(&mut self, branch: &Branch, key: &[u8]) -> Result<()> {
        let Some(route) = &branch.route else { return Ok(()) };
        let (meta, hash) = (route.maplet.meta(), key_hash(key));
        if self.0.as_ref().is_none_or(|(id, _)| *id != meta.id) {
            self.0 = Some((meta.id, maplet::pages(&route.maplet).unwrap_or_default()));
        }
        let pages = self.0.as_ref().map_or(&[][..], |(_, pages)| pages);
        let page = pages.get(meta.filter.page_of(hash) as usize);
        match page.and_then(|page| maplet::ask(Some(page), hash)) {
            Some(values) if !values.contains(route.value) => {
                let detail = format!("maplet {} does not know a key of run {}", meta.id, branch.slice.run().meta().id);
                Err(route.maplet.data().corrupt(maplet::page_for(&route.maplet, hash)?, "maplet", detail))
            }
            _ => Ok(()),
        }
    }
}

fn verify_blob(core: &Core, value: &[u8], named: &mut RangeSet, visit: &mut dyn Visitor) -> Result<()> {
    let blob = BlobRef::decode(value)?;
    let extent = blob.extent();
    if named.overlaps(extent.start.0, extent.pages.into()) {
        let addr = BlockAddr { page: extent.start, pages: extent.pages };
        visit.problem(core.data.corrupt(addr, BlockKind::Blob.name(), "two messages name the same pages"));
        return Ok(());
    }
    named.insert(extent.start.0, extent.pages.into());
    if SeededBug::VerifySkipsLargeValues.is_on() {
        return Ok(());
    }
    match core.data.read_blob(&blob) {
        Ok(buf) => visit.block(BlockKind::Blob, buf.len() as u64),
        Err(e) => visit.problem(e),
    }
    Ok(())
}

/// The leaves in key order, each with the runs that are live on the path to it, the newest first.
pub(super) fn parts(node: &Arc<Node>, above: &[Arc<RunSlice>], out: &mut Vec<Part>) {
    let live = |branches: &[Branch]| {
        let own = branches.iter().rev().map(|branch| branch.slice.clone());
        above.iter().cloned().chain(own).collect::<Vec<_>>()
    };
    if node.children.is_empty() {
        out.push(Part { range: node.range.clone(), slices: live(&node.branches), lost: node.lost.clone() });
    }
    node.children.iter().for_each(|child| parts(&child.node, &live(node.live(child)), out));
}

/// Prints the trunk, a line a node and a line a branch.
pub(super) fn describe(view: &StbeView, out: &mut String) {
    describe_node(out, &view.root, 0);
}

fn describe_node(out: &mut String, node: &Node, depth: usize) {
    let pad = "  ".repeat(depth);
    if let Some(error) = &node.lost {
        let _ = writeln!(out, "{pad}LOST: {error}");
    }
    let place = node.stored().map_or("not on disk".into(), |s| {
        format!("node {} at pages {} and {}", s.id, s.twin.0[0].page, s.twin.0[1].page)
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

/// A key, cut to what fits on a line.
fn short(key: &[u8]) -> String {
    let cut = &key[..key.len().min(32)];
    format!("{}{}", cut.escape_ascii(), if cut.len() < key.len() { "…" } else { "" })
}
