//! The tree on disk: one block per inner node, in two copies ([`crate::space::mirrored`]). The block of a node above
//! leaves includes the leaves. The first checkpoint that includes a node writes the node's block, if it was not
//! written ahead of the checkpoint. The block is never
//! changed afterwards.
//!
//! Path copying makes checkpoints incremental: an unchanged node is the same object and keeps its pages. A change of a leaf
//! also changes its parent, so the parent is written in any case. With a block of its own, each changed leaf would add two
//! pages.
//!
//! Root record (integers varint): `version (1) | f | σ | address of the root | map of large values`. f and σ are the
//! smallest that were ever in force; a verification checks the sizes of nodes with them. The last two fields are defined
//! in [`crate::index::stored`] and [`crate::index::blobs`].
//!
//! Body of a node block ([`crate::index::stored`]):
//!
//! ```text
//!  from | to | height | slice count | child count
//!  for each slice, in key order, but in the root newest first: run description | slice
//!  for each child, in key order:
//!    height 1: upper bound | slice count | slices as above
//!    above:    address of the block of the child
//! ```
//!
//! A run that several nodes share is described in each of these nodes. An opening makes one object from these
//! descriptions. Decoding trusts no field: depth and order are bounded and checked before a node is used.

use std::collections::HashSet;
use std::sync::Arc;

use super::node::Node;
use super::shape::Limits;
use crate::base::codec::{Reader, put_bytes, put_varint};
use crate::base::{BlockAddr, Error, KeyRange, PageNo, Result, SeededBug};
use crate::index::blobs::{BlobMap, MapRoot};
use crate::index::runs::codec::Runs;
use crate::index::runs::{Part, Sequence};
use crate::index::stored::Stored;
use crate::index::{Core, RootRecord};
use crate::run::{RunMeta, RunSlice};
use crate::space::{BlockKind, Prefetch};

const VERSION: u64 = 1;
/// Upper limit of f in a record.
const MAX_FANOUT: u64 = 1 << 16;
/// Upper limit of σ in a record.
const MAX_DTREE: u64 = 1 << 48;
/// Upper limit of the height of a tree. Even with a fan-out of 2, a tree of this height has more leaves than any store
/// needs.
const MAX_HEIGHT: u64 = 64;

/// Writes the nodes under `root` and the nodes of the map of large values, unless they are already on disk. Returns the
/// root record.
pub fn store(core: &Core, root: &Arc<Node>, blobs: &BlobMap, least: Limits) -> Result<Vec<u8>> {
    let stored = store_node(core, root, u64::MAX, &mut 0)?.expect("all nodes are written");
    Ok(encode_root(stored, blobs.store(core)?, least))
}

/// Writes nodes under `root` that are not on disk yet, until about `most` bytes are written. Returns the number of written
/// bytes; 0 if all nodes are on disk.
pub fn store_ahead(core: &Core, root: &Arc<Node>, most: u64) -> Result<u64> {
    let mut written = 0;
    store_node(core, root, most, &mut written)?;
    Ok(written)
}

fn encode_root(stored: Stored, blobs: MapRoot, least: Limits) -> Vec<u8> {
    let mut out = Vec::new();
    put_varint(&mut out, VERSION);
    put_varint(&mut out, least.fanout as u64);
    put_varint(&mut out, least.dtree_bytes);
    stored.encode(&mut out);
    blobs.encode(&mut out);
    out
}

/// Writes the nodes under `node` and then the node, because its block contains their addresses. Begins no block once
/// `written` has reached `most`, and then returns `None`. REQUIRES: the node is not a leaf; no other thread writes nodes.
fn store_node(core: &Core, node: &Arc<Node>, most: u64, written: &mut u64) -> Result<Option<Stored>> {
    if let Some(stored) = node.stored() {
        return Ok(Some(stored));
    }
    assert!(node.lost.is_none(), "a lost node is never written");
    let mut children = Vec::with_capacity(node.children.len());
    for child in node.children.iter().filter(|child| !child.is_leaf()) {
        let Some(stored) = store_node(core, child, most, written)? else { return Ok(None) };
        children.push(stored);
    }
    if *written >= most {
        return Ok(None);
    }
    let stored = Stored::write(core, BlockKind::NestedNode, |body| encode(node, &children, body))?;
    *written += stored.copies.0.iter().map(|copy| copy.bytes() as u64).sum::<u64>();
    node.set_stored(stored, &core.data);
    Ok(Some(stored))
}

fn encode(node: &Node, children: &[Stored], out: &mut Vec<u8>) {
    assert!(!node.is_leaf(), "a leaf is written in the block of its parent");
    assert_eq!(
        if node.height == 1 { 0 } else { node.children.len() },
        children.len(),
        "an address for every inner child"
    );
    debug_assert_eq!(node.problem(), None, "a node is checked before it is written");
    put_bytes(out, &node.range.from);
    put_bytes(out, &node.range.to);
    put_varint(out, node.height.into());
    let missed = usize::from(SeededBug::NewestSliceNotWritten.is_on() && node.is_root && node.parts.len() > 1);
    let parts = &node.parts[missed..];
    put_varint(out, parts.len() as u64);
    put_varint(out, node.children.len() as u64);
    encode_parts(parts, out);
    children.iter().for_each(|child| child.encode(out));
    for leaf in node.children.iter().filter(|child| child.is_leaf()) {
        debug_assert_eq!(leaf.problem(), None, "a leaf is checked before it is written");
        put_bytes(out, &leaf.range.to);
        put_varint(out, leaf.parts.len() as u64);
        encode_parts(&leaf.parts, out);
    }
}

fn encode_parts(parts: &[Part], out: &mut Vec<u8>) {
    for part in parts {
        part.slice.run().meta().encode(out);
        part.slice.encode(out);
    }
}

/// A tree read from disk.
pub struct Loaded {
    /// The root.
    pub root: Arc<Node>,
    /// The smallest f and σ that were in force.
    pub least: Limits,
    /// The map of the pages of large values.
    pub blobs: BlobMap,
}

/// A decoded root record.
struct Root {
    stored: Stored,
    least: Limits,
    blobs: MapRoot,
}

fn decode_root(record: &RootRecord) -> Result<Root> {
    let mut reader = Reader::new(&record.bytes, "root record");
    if reader.varint()? != VERSION {
        return Err(reader.corrupt("unknown version"));
    }
    let fanout = reader.varint_max(MAX_FANOUT)? as usize;
    let least = Limits { fanout, dtree_bytes: reader.varint_max(MAX_DTREE)? };
    let root = Root { least, stored: Stored::decode(&mut reader)?, blobs: MapRoot::decode(&mut reader)? };
    if !reader.is_empty() {
        return Err(reader.corrupt("trailing bytes"));
    }
    Ok(root)
}

/// The blocks that loading a tree reads first; no blocks if the record is damaged.
pub fn first_blocks(core: &Core, record: &RootRecord) -> Vec<BlockAddr> {
    decode_root(record)
        .map_or(Vec::new(), |root| root.stored.first_reads(core).chain(root.blobs.first_blocks(core)).collect())
}

/// Reads the tree of a root record.
pub fn load(core: &Core, record: &RootRecord, prefetch: &mut Prefetch) -> Result<Loaded> {
    let Root { stored, least, blobs } = decode_root(record)?;
    let mut loader = Loader { core, prefetch, runs: Runs::new(core), seen: HashSet::new() };
    let root = match loader.node(stored, None, &KeyRange::all()) {
        Err(e) if loader.may_lose(&e) => Arc::new(Node::lost(KeyRange::all(), 0, e)),
        root => root?,
    };
    loader.runs.take_ownership();
    let blobs = BlobMap::load(core, blobs, prefetch)?;
    Ok(Loaded { root, least, blobs })
}

struct Loader<'a> {
    core: &'a Core,
    prefetch: &'a mut Prefetch,
    runs: Runs<'a>,
    /// The first pages of the nodes that were read. A node with two parents could make the load exponentially long.
    seen: HashSet<PageNo>,
}

impl Loader<'_> {
    /// Reads a node and everything below it. The recursion ends, because every child must be exactly one level below
    /// its parent.
    fn node(&mut self, stored: Stored, height: Option<u32>, within: &KeyRange) -> Result<Arc<Node>> {
        let (core, kind) = (self.core, BlockKind::NestedNode);
        if !self.seen.insert(stored.copies.0[0].page) {
            return Err(stored.corrupt(&core.data, kind, "a node has two parents"));
        }
        let buf = stored.read(core, self.prefetch, kind)?;
        let node = stored.decode_body(&buf, &core.data, kind, |reader| self.decode(reader, height, within))?;
        if let Some(problem) = node.problem() {
            return Err(stored.corrupt(&core.data, kind, problem));
        }
        stored.copies.adopt(&core.data);
        node.set_stored(stored, &core.data);
        Ok(Arc::new(node))
    }

    fn decode(&mut self, reader: &mut Reader<'_>, height: Option<u32>, within: &KeyRange) -> Result<Node> {
        let range = KeyRange::new(reader.bytes()?, reader.bytes()?);
        if range.is_empty() || !within.covers(&range) {
            return Err(reader.corrupt("the node lies outside its parent"));
        }
        // If the root had a smaller range, a scan would never find the end of the keys.
        if height.is_none() && range != *within {
            return Err(reader.corrupt("the range of the root does not include all keys"));
        }
        let own = reader.varint_max(MAX_HEIGHT)? as u32;
        if own == 0 {
            return Err(reader.corrupt("a node without children has a block of its own"));
        }
        if height.is_some_and(|height| height != own) {
            return Err(reader.corrupt(format!("height {own} where {height:?} was expected")));
        }
        let slices = reader.count(4)?;
        let child_count = reader.count(if own == 1 { 2 } else { 4 })?;
        if child_count == 0 || child_count as u64 > MAX_FANOUT {
            return Err(reader.corrupt(format!("a node of height {own} with {child_count} children")));
        }
        let mut node = Node::new(range, own);
        node.is_root = height.is_none();
        node.parts = self.parts(slices, reader)?;
        let mut below = Vec::new();
        if own == 1 {
            self.leaves(child_count, &mut node, reader)?;
        } else {
            below = (0..child_count).map(|_| Stored::decode(reader)).collect::<Result<Vec<Stored>>>()?;
        }
        if !reader.is_empty() {
            return Err(reader.corrupt("trailing bytes"));
        }
        let blocks: Vec<BlockAddr> = below.iter().flat_map(|stored| stored.first_reads(self.core)).collect();
        self.prefetch.ask(&blocks);
        for stored in below {
            match self.node(stored, Some(own - 1), &node.range) {
                Err(e) if self.may_lose(&e) => adopt(&mut node, Err(e)),
                child => adopt(&mut node, Ok(child?)),
            }
        }
        Ok(node)
    }

    /// Decodes `count` slices.
    fn parts(&mut self, count: usize, reader: &mut Reader<'_>) -> Result<Sequence> {
        let mut parts = Vec::with_capacity(count);
        for _ in 0..count {
            let run = self.runs.meet(RunMeta::decode(reader)?, false, reader)?;
            parts.push(Part::new(RunSlice::restore(run, reader)?));
        }
        Ok(parts.into())
    }

    /// Decodes the leaves of a node of height 1.
    fn leaves(&mut self, count: usize, node: &mut Node, reader: &mut Reader<'_>) -> Result<()> {
        let mut from = node.range.from.clone();
        for _ in 0..count {
            let to = reader.bytes()?.to_vec();
            let mut leaf = Node::new(KeyRange::new(from, to.clone()), 0);
            let slices = reader.count(4)?;
            leaf.parts = self.parts(slices, reader)?;
            if leaf.range.is_empty() || !node.range.covers(&leaf.range) {
                return Err(reader.corrupt("a leaf lies outside its parent"));
            }
            if let Some(problem) = leaf.problem() {
                return Err(reader.corrupt(problem));
            }
            node.children.push(Arc::new(leaf));
            from = to;
        }
        Ok(())
    }

    /// Whether the opening continues after this error, which means that both copies of a node are damaged. A store that
    /// is open for reading continues without the node. A store that is open for writing must know every page in use.
    fn may_lose(&self, error: &Error) -> bool {
        !self.core.repair && error.is_damage()
    }
}

/// Adds the next child to a node. Neighbouring lost children become one lost child.
fn adopt(node: &mut Node, child: Result<Arc<Node>>) {
    let last = node.children.last_mut();
    match (child, last) {
        (Ok(child), Some(last)) if last.lost.is_some() => {
            let hole = Arc::get_mut(last).expect("not shared yet");
            Arc::make_mut(&mut hole.range).to.clone_from(&child.range.from);
            node.children.push(child);
        }
        (Ok(child), _) => node.children.push(child),
        (Err(_), Some(last)) if last.lost.is_some() => {}
        (Err(e), last) => {
            let from = last.map_or(&node.range.from, |last| &last.range.to).clone();
            let range = KeyRange::new(from, node.range.to.clone());
            node.children.push(Arc::new(Node::lost(range, node.height - 1, e)));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::OwnerId;
    use crate::space::MirroredBlock;

    fn stored(id: u64, page: u64) -> Stored {
        let place = |page| BlockAddr { page: PageNo(page), pages: 1 };
        Stored { id: OwnerId(id), copies: MirroredBlock([place(page), place(page + 64)]) }
    }

    fn hex(bytes: &[u8]) -> String {
        bytes.iter().map(|byte| format!("{byte:02x}")).collect()
    }

    #[test]
    fn golden_bytes_of_a_root_record() {
        let least = Limits { fanout: 8, dtree_bytes: 1 << 16 };
        assert_eq!(
            hex(&encode_root(stored(9, 200), MapRoot::default(), least)),
            "010880800409 01c80188 0200".replace(' ', "")
        );
    }

    #[test]
    fn golden_bytes_of_a_node() {
        let root = Node::empty_root();
        let bytes = |node: &Node, children: &[Stored]| {
            let mut out = Vec::new();
            encode(node, children, &mut out);
            hex(&out)
        };
        assert_eq!(bytes(&root, &[]), "0000010001 0000".replace(' ', ""));
        let mut above = Node::new(KeyRange::all(), 2);
        above.is_root = true;
        above.children.push(Arc::new(Node::new(KeyRange::all(), 1)));
        assert_eq!(bytes(&above, &[stored(5, 33)]), "0000020001 05012161".replace(' ', ""));
    }
    /// The body of a node of height 1 with all keys and without slices. Its leaves end at these keys.
    fn with_leaves(bounds: &[&str], claims: u64) -> Vec<u8> {
        let mut body = Vec::new();
        [b"", b""].iter().for_each(|bound| put_bytes(&mut body, *bound));
        [1, 0, claims].iter().for_each(|number| put_varint(&mut body, *number));
        for to in bounds {
            put_bytes(&mut body, to.as_bytes());
            put_varint(&mut body, 0);
        }
        body
    }

    #[test]
    fn leaves_that_do_not_partition_their_node_are_refused() {
        let core = crate::index::testing::core(&crate::device::MemDevice::new());
        let problem = |body: &[u8]| {
            let mut prefetch = Prefetch::new(core.data.clone());
            let mut loader =
                Loader { core: &core, prefetch: &mut prefetch, runs: Runs::new(&core), seen: HashSet::new() };
            let node = loader.decode(&mut Reader::new(body, "nested node"), None, &KeyRange::all());
            node.map_or_else(|e| Some(e.to_string()), |node| node.problem().map(str::to_owned))
        };
        assert_eq!(problem(&with_leaves(&["d", "m", ""], 3)), None);
        for (bounds, claims, words) in [
            (&["m", "d", ""][..], 3, "outside its parent"),
            (&["d", "d", ""], 3, "outside its parent"),
            (&["", "", ""], 3, "must partition"),
            (&["d", "m"], 2, "must partition"),
            (&[], 0, "with 0 children"),
            (&["d", "m", ""], 2, "trailing bytes"),
            (&["d"; 70_000], 70_000, "with 70000 children"),
            (&["d", "m", ""], 1 << 40, "nested node"),
        ] {
            let found = problem(&with_leaves(bounds, claims)).unwrap_or_default();
            assert!(found.contains(words), "{} leaves, {claims} claimed: {found}", bounds.len());
        }
    }
}
