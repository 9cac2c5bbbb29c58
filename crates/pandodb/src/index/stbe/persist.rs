//! The trunk on disk: one block per node, in two copies ([`crate::space::mirrored`]). The first checkpoint that
//! includes a node writes the node's block. The block is never changed afterwards.
//!
//! Path copying makes checkpoints incremental: an unchanged node is the same object and keeps its pages.
//!
//! Root record (integers varint): `version (3) | node | next branch id | map of large values`. The last field is
//! defined in [`crate::index::blobs`]. A node reference is `node id | pages | page of copy 0 | page of copy 1`.
//!
//! Body of a node block ([`crate::index::stored`]):
//!
//! ```text
//!  from | to | height | branch count | child count
//!  for each branch: id | flags (1 fresh, 2 routed, 4 again) | run description | slice | a weight for each child
//!                   if routed: the maplet's description, unless the flag `again` is set | the run's value in it, u8
//!  for each child:  dead branches before its first live one | node
//! ```
//!
//! A run that several nodes share is described in each of these nodes. An opening makes one object from these
//! descriptions. Decoding trusts no field: depth and order are bounded and checked before a node is used.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use super::node::{Branch, BranchId, Child, Node};
use crate::base::codec::{Reader, put_bytes, put_varint};
use crate::base::{BlockAddr, Error, KeyRange, OwnerId, Result};
use crate::index::blobs::{BlobMap, MapRoot};
use crate::index::runs::Deletes;
use crate::index::runs::MapletRef;
use crate::index::runs::codec::Runs;
use crate::index::stored::Stored;
use crate::index::{Core, RootRecord};
use crate::run::{Run, RunMeta, RunSlice};
use crate::space::{BlockKind, Prefetch};

const VERSION: u64 = 3;
/// Flag: the branch has newly arrived.
const FRESH: u64 = 1;
/// Flag: the branch has a maplet reference.
const ROUTED: u64 = 2;
/// Flag: the branch has the same maplet as the nearest earlier branch that has a maplet reference.
const AGAIN: u64 = 4;
/// Upper limit of the bytes that a branch holds for a child.
const MAX_WEIGHT: u64 = 1 << 48;
/// Upper limit of the next branch identity in a record. Enough larger numbers remain for the identities of new
/// branches.
const MAX_BRANCH: u64 = 1 << 62;
/// Upper limit of the height of a tree. Even with a fan-out of 2, a tree of this height has more leaves than any store
/// needs.
const MAX_HEIGHT: u64 = 64;

const _: () = assert!(FRESH.count_ones() == 1 && ROUTED.count_ones() == 1 && AGAIN.count_ones() == 1);
const _: () = assert!((FRESH ^ ROUTED ^ AGAIN).count_ones() == 3, "each flag has a bit of its own");
const _: () = assert!(MAX_BRANCH <= u64::MAX / 2, "new branches get as many identities again");

/// Writes the nodes under `root` and the nodes of the map of large values, unless they are already on disk. Returns the
/// root record.
pub fn store(core: &Core, root: &Arc<Node>, blobs: &BlobMap, next_branch: u64) -> Result<Vec<u8>> {
    let stored = store_node(core, root)?;
    Ok(encode_root(stored, blobs.store(core)?, next_branch))
}

fn encode_root(stored: Stored, blobs: MapRoot, next_branch: u64) -> Vec<u8> {
    let mut out = Vec::new();
    put_varint(&mut out, VERSION);
    stored.encode(&mut out);
    put_varint(&mut out, next_branch);
    blobs.encode(&mut out);
    out
}

/// Writes children first, because a node's block contains their addresses.
fn store_node(core: &Core, node: &Arc<Node>) -> Result<Stored> {
    if let Some(stored) = node.stored() {
        return Ok(stored);
    }
    assert!(node.lost.is_none(), "a lost node is never written");
    let children = node.children.iter().map(|child| store_node(core, &child.node)).collect::<Result<Vec<_>>>()?;
    let stored = Stored::write(core, BlockKind::TrunkNode, |body| encode(node, &children, body))?;
    node.set_stored(stored, &core.data);
    Ok(stored)
}

fn encode(node: &Node, children: &[Stored], out: &mut Vec<u8>) {
    assert_eq!(node.children.len(), children.len(), "an address for every child");
    debug_assert_eq!(node.problem(), None, "a node is checked before it is written");
    put_bytes(out, &node.range.from);
    put_bytes(out, &node.range.to);
    put_varint(out, node.height.into());
    put_varint(out, node.branches.len() as u64);
    put_varint(out, node.children.len() as u64);
    let mut last = None;
    for branch in &node.branches {
        put_varint(out, branch.id.0);
        let routed = match &branch.route {
            None => 0,
            Some(route) if last == Some(route.maplet.meta().id) => ROUTED | AGAIN,
            Some(_) => ROUTED,
        };
        put_varint(out, (u64::from(branch.fresh) * FRESH) | routed);
        branch.slice.run().meta().encode(out);
        branch.slice.encode(out);
        debug_assert_eq!(branch.weights.len(), children.len(), "a weight for every child");
        branch.weights.iter().for_each(|weight| put_varint(out, *weight));
        if let Some(route) = &branch.route {
            if routed & AGAIN == 0 {
                route.maplet.meta().encode(out);
            }
            last = Some(route.maplet.meta().id);
            out.push(route.value);
        }
    }
    for (child, stored) in node.children.iter().zip(children) {
        put_varint(out, child.next);
        stored.encode(out);
    }
}

/// A trunk read from disk.
pub struct Loaded {
    /// The root node.
    pub root: Arc<Node>,
    /// The map of the pages of large values.
    pub blobs: BlobMap,
    /// The next branch identity. All branches have smaller identities.
    pub next_branch: u64,
}

/// A decoded root record.
struct Root {
    stored: Stored,
    next_branch: u64,
    blobs: MapRoot,
}

fn decode_root(record: &RootRecord) -> Result<Root> {
    let mut reader = Reader::new(&record.bytes, "root record");
    if reader.varint()? != VERSION {
        return Err(reader.corrupt("unknown version"));
    }
    let stored = Stored::decode(&mut reader)?;
    let next_branch = reader.varint_max(MAX_BRANCH)?;
    let blobs = MapRoot::decode(&mut reader)?;
    if !reader.is_empty() {
        return Err(reader.corrupt("trailing bytes"));
    }
    Ok(Root { stored, next_branch, blobs })
}

/// The blocks that loading a trunk reads first; no blocks if the record is damaged.
pub fn first_blocks(core: &Core, record: &RootRecord) -> Vec<BlockAddr> {
    decode_root(record)
        .map_or(Vec::new(), |root| root.stored.first_reads(core).chain(root.blobs.first_blocks(core)).collect())
}

/// Reads the trunk of a root record.
pub fn load(core: &Core, record: &RootRecord, prefetch: &mut Prefetch) -> Result<Loaded> {
    let Root { stored, next_branch, blobs } = decode_root(record)?;
    let mut loader =
        Loader { core, prefetch, next_branch, runs: Runs::new(core), routes: HashMap::new(), seen: HashSet::new() };
    let root = match loader.node(stored, None, &KeyRange::all()) {
        Err(e) if loader.may_lose(&e) => Arc::new(Node::lost(KeyRange::all(), 0, e)),
        root => root?,
    };
    loader.runs.take_ownership();
    let blobs = BlobMap::load(core, blobs, prefetch)?;
    Ok(Loaded { root, blobs, next_branch })
}

struct Loader<'a> {
    core: &'a Core,
    prefetch: &'a mut Prefetch,
    next_branch: u64,
    runs: Runs<'a>,
    /// The run for each value of each maplet.
    routes: HashMap<(OwnerId, u8), OwnerId>,
    /// The first pages of the nodes that were read. A node with two parents could make the load exponentially long.
    seen: HashSet<crate::base::PageNo>,
}

impl Loader<'_> {
    /// Reads a node and everything below it. The recursion ends, because every child must be exactly one level below
    /// its parent.
    fn node(&mut self, stored: Stored, height: Option<u32>, within: &KeyRange) -> Result<Arc<Node>> {
        let (core, kind) = (self.core, BlockKind::TrunkNode);
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
        if height.is_some_and(|height| height != own) {
            return Err(reader.corrupt(format!("height {own} where {height:?} was expected")));
        }
        let branch_count = reader.count(4)?;
        let child_count = reader.count(4)?;
        if (own == 0) != (child_count == 0) {
            return Err(reader.corrupt("a node must have children exactly if it is not a leaf"));
        }
        let mut node = Node::new(range, own);
        let mut maplet = None;
        for _ in 0..branch_count {
            let id = BranchId(reader.varint()?);
            if id.0 >= self.next_branch {
                return Err(reader.corrupt(format!("the identity of branch {} is not below the next one", id.0)));
            }
            let flags = reader.varint_max(FRESH | ROUTED | AGAIN)?;
            let run = self.runs.meet(RunMeta::decode(reader)?, false, reader)?;
            let slice = RunSlice::restore(run, reader)?;
            let weights = (0..child_count).map(|_| reader.varint_max(MAX_WEIGHT)).collect::<Result<Vec<u64>>>()?;
            // Limit each part to the size of the whole slice, regardless of the file's contents, so that sums over all
            // parts do not overflow.
            let whole = slice.bytes().max(1);
            let weights: Arc<[u64]> = weights.into_iter().map(|weight| weight.min(whole)).collect();
            // The estimated bytes of a branch of a leaf are not stored. Until the next compaction, the size of the
            // whole pages is used.
            let bytes = if own == 0 { slice.bytes() } else { weights.iter().sum() };
            let route = (flags & ROUTED != 0).then(|| self.route(&slice, flags, &mut maplet, reader)).transpose()?;
            let deletes = Deletes::guess(&slice, bytes);
            node.branches.push(Branch { id, fresh: flags & FRESH != 0, slice, bytes, weights, deletes, route });
        }
        let mut children = Vec::new();
        let below = (0..child_count)
            .map(|_| Ok((reader.varint_max(branch_count as u64)?, Stored::decode(reader)?)))
            .collect::<Result<Vec<(u64, Stored)>>>()?;
        if !reader.is_empty() {
            return Err(reader.corrupt("trailing bytes"));
        }
        let blocks: Vec<BlockAddr> = below.iter().flat_map(|(_, stored)| stored.first_reads(self.core)).collect();
        self.prefetch.ask(&blocks);
        for (next, stored) in below {
            match self.node(stored, Some(own - 1), &node.range) {
                Err(e) if self.may_lose(&e) => children.push((next, Err(e))),
                child => children.push((next, Ok(child?))),
            }
        }
        adopt(&mut node, children);
        Ok(node)
    }

    /// Whether the opening continues after this error, which means that both copies of a node are damaged. A store that
    /// is open for reading continues without the node. A store that is open for writing must know every page in use.
    fn may_lose(&self, error: &Error) -> bool {
        !self.core.repair && error.is_damage()
    }

    /// The maplet reference of a branch. `last` is the maplet that was most recently described in the node.
    fn route(
        &mut self,
        slice: &RunSlice,
        flags: u64,
        last: &mut Option<Arc<Run>>,
        reader: &mut Reader<'_>,
    ) -> Result<MapletRef> {
        if flags & AGAIN == 0 {
            *last = Some(self.runs.meet(RunMeta::decode(reader)?, true, reader)?);
        }
        let maplet = last
            .clone()
            .ok_or_else(|| reader.corrupt("a branch refers to the maplet of an earlier branch, and there is none"))?;
        let (value, run) = (reader.u8()?, slice.run());
        let first = *self.routes.entry((maplet.meta().id, value)).or_insert(run.meta().id);
        if first != run.meta().id {
            return Err(reader.corrupt(format!("maplet {} uses one value for two runs", maplet.meta().id)));
        }
        Ok(MapletRef::new(maplet, value, run))
    }
}

/// Sets the children of a node. Neighbouring lost children become one lost child.
fn adopt(node: &mut Node, children: Vec<(u64, Result<Arc<Node>>)>) {
    let mut kept = Vec::with_capacity(children.len());
    for (i, (next, child)) in children.into_iter().enumerate() {
        let before = node.children.last_mut();
        match (child, before) {
            (Ok(child), Some(before)) if before.node.lost.is_some() => {
                let hole = Arc::get_mut(&mut before.node).expect("not shared yet");
                Arc::make_mut(&mut hole.range).to.clone_from(&child.range.from);
                node.children.push(Child { node: child, next });
                kept.push(i);
            }
            (Ok(child), _) => {
                node.children.push(Child { node: child, next });
                kept.push(i);
            }
            // A branch that is live for all joined children is live for the joined child.
            (Err(_), Some(before)) if before.node.lost.is_some() => before.next = before.next.max(next),
            (Err(e), before) => {
                let from = before.map_or(&node.range.from, |before| &before.node.range.to).clone();
                let range = KeyRange::new(from, node.range.to.clone());
                node.children.push(Child { node: Arc::new(Node::lost(range, node.height - 1, e)), next });
                kept.push(i);
            }
        }
    }
    assert_eq!(kept.len(), node.children.len(), "a weight for every child that is left");
    for branch in &mut node.branches {
        branch.weights = kept.iter().map(|&i| branch.weights[i]).collect();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::PageNo;
    use crate::index::stbe::node::Child;
    use crate::space::MirroredBlock;

    fn stored(id: u64, page: u64) -> Stored {
        Stored {
            id: OwnerId(id),
            copies: MirroredBlock([page, page + 64].map(|page| BlockAddr { page: PageNo(page), pages: 1 })),
        }
    }

    fn hex(bytes: &[u8]) -> String {
        bytes.iter().map(|byte| format!("{byte:02x}")).collect()
    }

    #[test]
    fn golden_bytes_of_a_root_record() {
        let root = encode_root(stored(9, 200), MapRoot::default(), 77);
        assert_eq!(hex(&root), "030901c80188024d00", "the golden bytes of a map are in index::blobs");
    }

    #[test]
    fn golden_bytes_of_a_trunk_node() {
        let leaf = |from: &[u8], to: &[u8]| Arc::new(Node::new(KeyRange::new(from, to), 0));
        let mut root = Node::new(KeyRange::all(), 1);
        let children = [leaf(b"", b"k"), leaf(b"k", &KeyRange::all().to)];
        root.children = children.into_iter().map(|node| Child { node, next: 0 }).collect();
        let bytes = |node: &Node, children: &[Stored]| {
            let mut out = Vec::new();
            encode(node, children, &mut out);
            hex(&out)
        };
        assert_eq!(bytes(&root.children[0].node, &[]), "00016b000000");
        assert_eq!(bytes(&root, &[stored(5, 33), stored(6, 300)]), "00000100020005012161000601ac02ec02");
    }
}
