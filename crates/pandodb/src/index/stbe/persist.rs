//! The trunk on disk: one block a node, written when a checkpoint first meets it, never changed.
//!
//! Path copying makes checkpoints incremental by itself: a node that is still the same object stays where it is.
//!
//! Root record (integers varint): `version (1) | node id | page | pages | next branch id | count | (gap, length)…`, the
//! pairs being the pages of large values, each range's start relative to the end of the one before.
//!
//! Node block, after the 16-byte header: body length u32, then the body:
//!
//! ```text
//!  from | to | height | branch count | child count
//!  for each branch: id | fresh (0, 1) | run description | slice | a weight for each child
//!  for each child:  dead branches before its first live one | node id | page | pages
//! ```
//!
//! A run that several nodes share is described in each; on opening they become one object again. Trust nothing: depth and
//! order are bounded and checked before a node is believed.

use std::collections::HashMap;
use std::sync::Arc;

use super::node::{Branch, BranchId, Child, Node, Stored};
use crate::base::codec::{Reader, put_bytes, put_varint};
use crate::base::{BlockAddr, Error, Extent, KeyRange, PAGE, PageNo, Result, RunId};
use crate::device::AlignedBuf;
use crate::index::{Core, RootRecord};
use crate::run::{Run, RunMeta, RunSlice};
use crate::space::ranges::RangeSet;
use crate::space::{BLOCK_HEADER, BlockKind};

const VERSION: u64 = 1;
/// Where the body of a node starts in its block.
const BODY: usize = BLOCK_HEADER + 4;
/// No branch holds more bytes than this for a child, so that sums do not overflow.
const MAX_WEIGHT: u64 = 1 << 48;
/// No tree has handed out so many identities of branches; as many again are left.
const MAX_BRANCH: u64 = 1 << 62;
/// No tree is higher: a fan-out of 2 reaches any size below this.
const MAX_HEIGHT: u64 = 64;

/// Writes the nodes under `root` that are not on disk yet; returns the root record.
pub fn store(core: &Core, root: &Arc<Node>, blobs: &RangeSet, next_branch: u64) -> Result<Vec<u8>> {
    let stored = store_node(core, root)?;
    Ok(encode_root(stored, blobs, next_branch))
}

fn encode_root(stored: Stored, blobs: &RangeSet, next_branch: u64) -> Vec<u8> {
    let mut out = Vec::new();
    put_varint(&mut out, VERSION);
    put_stored(&mut out, stored);
    put_varint(&mut out, next_branch);
    put_varint(&mut out, blobs.len() as u64);
    let mut end = 0;
    for (start, len) in blobs.iter() {
        put_varint(&mut out, start - end);
        put_varint(&mut out, len);
        end = start + len;
    }
    out
}

fn put_stored(out: &mut Vec<u8>, stored: Stored) {
    put_varint(out, stored.id.0);
    put_varint(out, stored.addr.page.0);
    put_varint(out, stored.addr.pages.into());
}

fn get_stored(reader: &mut Reader<'_>) -> Result<Stored> {
    let id = RunId(reader.varint()?);
    let page = PageNo(reader.varint_max(1 << 48)?);
    let pages = reader.varint_max(u32::MAX.into())? as u32;
    Ok(Stored { id, addr: BlockAddr { page, pages } })
}

/// Children first, so that a node's block can name theirs.
fn store_node(core: &Core, node: &Arc<Node>) -> Result<Stored> {
    if let Some(stored) = node.stored() {
        return Ok(stored);
    }
    let children = node.children.iter().map(|child| store_node(core, &child.node)).collect::<Result<Vec<_>>>()?;
    let body = encode(node, &children);
    let pages = (BODY + body.len()).div_ceil(PAGE) as u32;
    let place = core.data.alloc(pages)?;
    let stored = Stored { id: core.ids.next(), addr: BlockAddr { page: place.start, pages } };
    let mut buf = AlignedBuf::zeroed(pages as usize);
    buf[BLOCK_HEADER..BODY].copy_from_slice(&(body.len() as u32).to_le_bytes());
    buf[BODY..BODY + body.len()].copy_from_slice(&body);
    core.data.seal_block(&mut buf, stored.addr, stored.id, BlockKind::Node);
    if let Err(e) = core.data.write(stored.addr.page, buf) {
        core.data.give_back(place);
        return Err(e);
    }
    node.set_stored(stored, &core.data);
    Ok(stored)
}

fn encode(node: &Node, children: &[Stored]) -> Vec<u8> {
    let mut out = Vec::new();
    put_bytes(&mut out, &node.range.from);
    put_bytes(&mut out, &node.range.to);
    put_varint(&mut out, node.height.into());
    put_varint(&mut out, node.branches.len() as u64);
    put_varint(&mut out, node.children.len() as u64);
    for branch in &node.branches {
        put_varint(&mut out, branch.id.0);
        put_varint(&mut out, branch.fresh.into());
        branch.slice.run().meta().encode(&mut out);
        branch.slice.encode(&mut out);
        branch.weights.iter().for_each(|weight| put_varint(&mut out, *weight));
    }
    for (child, stored) in node.children.iter().zip(children) {
        put_varint(&mut out, child.next - node.first);
        put_stored(&mut out, *stored);
    }
    out
}

/// A trunk from disk.
pub struct Loaded {
    /// The root.
    pub root: Arc<Node>,
    /// Pages of large values.
    pub blobs: RangeSet,
    /// Every branch has a smaller identity.
    pub next_branch: u64,
}

/// Reads the trunk that a root record names and marks every page that it reaches.
pub fn load(core: &Core, record: &RootRecord) -> Result<Loaded> {
    let mut reader = Reader::new(&record.bytes, "root record");
    if reader.varint()? != VERSION {
        return Err(reader.corrupt("unknown version"));
    }
    let stored = get_stored(&mut reader)?;
    let next_branch = reader.varint_max(MAX_BRANCH)?;
    let mut blobs = RangeSet::default();
    let mut end = 0u64;
    for _ in 0..reader.count(2)? {
        let start = reader.varint_max(1 << 48)? + end;
        let len = reader.varint_max(1 << 48)?;
        if len == 0 || start < end || start + len > 1 << 48 {
            return Err(reader.corrupt("ranges of large values are not in order"));
        }
        blobs.insert(start, len);
        end = start + len;
    }
    if !reader.is_empty() {
        return Err(reader.corrupt("trailing bytes"));
    }
    let mut loader = Loader { core, next_branch, runs: HashMap::new() };
    let root = loader.node(stored, None, &KeyRange::all())?;
    if root.range != KeyRange::all() {
        return Err(core.data.corrupt(stored.addr, BlockKind::Node.name(), "a root that does not hold every key"));
    }
    for run in loader.runs.values() {
        run.settle()?;
    }
    for (start, len) in blobs.iter() {
        super::extents((start, len)).try_for_each(|extent| core.data.mark(extent))?;
    }
    Ok(Loaded { root, blobs, next_branch })
}

struct Loader<'a> {
    core: &'a Core,
    next_branch: u64,
    runs: HashMap<RunId, Arc<Run>>,
}

impl Loader<'_> {
    /// Reads a node and everything below it. A child stands one level below its parent and inside its range, so the
    /// recursion ends.
    fn node(&mut self, stored: Stored, height: Option<u32>, within: &KeyRange) -> Result<Arc<Node>> {
        let data = &self.core.data;
        let bad = |detail: &str| data.corrupt(stored.addr, BlockKind::Node.name(), detail);
        let buf = data.read_block(stored.addr, stored.id, BlockKind::Node)?;
        data.mark(Extent { start: stored.addr.page, pages: stored.addr.pages })?;
        let len = u32::from_le_bytes([buf[BLOCK_HEADER], buf[17], buf[18], buf[19]]) as usize;
        let body = buf[BODY..].get(..len).ok_or_else(|| bad("the body exceeds the block"))?;
        let mut reader = Reader::new(body, BlockKind::Node.name());
        let node = self
            .decode(&mut reader, height, within)
            .map_err(|e: Error| e.in_file(crate::space::data::DATA_FILE, stored.addr.page.offset() + BODY as u64))?;
        if let Some(problem) = node.problem() {
            return Err(bad(problem));
        }
        node.set_stored(stored, data);
        Ok(Arc::new(node))
    }

    fn decode(&mut self, reader: &mut Reader<'_>, height: Option<u32>, within: &KeyRange) -> Result<Node> {
        let range = KeyRange::new(reader.bytes()?, reader.bytes()?);
        if range.is_empty() || !within.covers(&range) {
            return Err(reader.corrupt("the node lies outside its parent"));
        }
        let own = reader.varint_max(MAX_HEIGHT)? as u32;
        if height.is_some_and(|height| height != own) {
            return Err(reader.corrupt(format!("height {own} where {height:?} was expected")));
        }
        let branch_count = reader.count(4)?;
        let child_count = reader.count(4)?;
        if (own == 0) != (child_count == 0) {
            return Err(reader.corrupt("only a leaf has no children"));
        }
        let mut node = Node::new(range, own);
        for _ in 0..branch_count {
            let id = BranchId(reader.varint()?);
            if id.0 >= self.next_branch {
                return Err(reader.corrupt(format!("branch {} has an identity that is still to be given out", id.0)));
            }
            let fresh = reader.varint_max(1)? == 1;
            let run = self.run(RunMeta::decode(reader)?, reader)?;
            let slice = RunSlice::restore(run, reader)?;
            let weights = (0..child_count).map(|_| reader.varint_max(MAX_WEIGHT)).collect::<Result<Arc<[u64]>>>()?;
            node.branches.push(Branch { id, fresh, slice, weights });
        }
        for _ in 0..child_count {
            let next = reader.varint_max(branch_count as u64)?;
            let stored = get_stored(reader)?;
            let child = self.node(stored, Some(own - 1), &node.range)?;
            node.children.push(Child { node: child, next });
        }
        if !reader.is_empty() {
            return Err(reader.corrupt("trailing bytes"));
        }
        Ok(node)
    }

    /// The run of that description; nodes that share it get the same object.
    fn run(&mut self, meta: RunMeta, reader: &Reader<'_>) -> Result<Arc<Run>> {
        if let Some(run) = self.runs.get(&meta.id) {
            if *run.meta() != meta {
                return Err(reader.corrupt(format!("two nodes describe run {} differently", meta.id)));
            }
            return Ok(run.clone());
        }
        let run = Run::reopen(self.core.data.clone(), self.core.pool.clone(), meta)?;
        self.runs.insert(run.meta().id, run.clone());
        Ok(run)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::index::stbe::node::Child;

    fn stored(id: u64, page: u64) -> Stored {
        Stored { id: RunId(id), addr: BlockAddr { page: PageNo(page), pages: 1 } }
    }

    fn hex(bytes: &[u8]) -> String {
        bytes.iter().map(|byte| format!("{byte:02x}")).collect()
    }

    #[test]
    fn golden_bytes_of_a_root_record() {
        let mut blobs = RangeSet::default();
        blobs.insert(40, 3);
        blobs.insert(300, 2);
        assert_eq!(hex(&encode_root(stored(9, 200), &blobs, 77)), "0109c801014d022803810202");
    }

    #[test]
    fn golden_bytes_of_a_trunk_node() {
        let leaf = |from: &[u8], to: &[u8]| Arc::new(Node::new(KeyRange::new(from, to), 0));
        let mut root = Node::new(KeyRange::all(), 1);
        let children = [leaf(b"", b"k"), leaf(b"k", &KeyRange::all().to)];
        root.children = children.into_iter().map(|node| Child { node, next: 0 }).collect();
        assert_eq!(hex(&encode(&root.children[0].node, &[])), "00016b000000");
        assert_eq!(hex(&encode(&root, &[stored(5, 33), stored(6, 300)])), "0000010002000521010006ac0201");
    }
}
