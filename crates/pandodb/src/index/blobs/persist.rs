//! The map on disk: one block of one page per node, in two copies ([`crate::space::mirrored`]). The first checkpoint
//! that includes a node writes the node's block. The block is never changed afterwards.
//!
//! Persisted forms (integers varint):
//!
//! ```text
//!  in a root record:  levels (0: no large values, and nothing follows) | ranges | pages | address of the root
//!
//!  node block, after the 16-byte header: body length u32, then the body:
//!
//!    leaf:   height (0) | count | for each range:  gap | length
//!            height (0) | 0     | first page | count | for each word: u64
//!    inner:  height     | count | for each child:  gap | ranges | pages | address
//!
//!  address:  owner id | pages (1) | page of copy 0 | page of copy 1       (crate::index::stored)
//! ```
//!
//! The second form of a leaf is a bitmap. Bit i of word w is page `first page + 64·w + i`; the first page is a multiple
//! of 64. A gap in a leaf is the distance from the end of the previous range. The gap of the first range is its
//! distance from page 0. A gap in an inner node is the distance from the first page of the previous child. The gap of
//! the first child is its distance from page 0. `ranges` and `pages` are sums over the ranges below the child or root.
//!
//! ```text
//!   a leaf of 40+3 and 300+2:            00 02 | 28 03 | 81 02 02
//!   its parent, whose other child
//!   holds 500+1, 502+1, 504+1:           01 02 | 28 02 05 (owner 2, pages 2, 65) | cc 03 03 03 (owner 3, pages 3, 66)
//! ```
//!
//! Decoding trusts no field: height, order, sums and bounds are checked before a node is used. No node is reached
//! twice, because the first pages of children ascend.

use std::collections::HashSet;
use std::sync::Arc;

use super::BlobMap;
use super::bits::{Bits, WORD};
use super::layout::{
    Fanout, MAX_BODY, MAX_CHILDREN, MAX_HEIGHT, MAX_PAGE, MAX_RANGES, MAX_WORDS, PAGE_VARINT, PageRange, Totals,
};
use super::node::{Child, Entries, Node, end_of};
use crate::base::codec::{Reader, put_varint};
use crate::base::{BlockAddr, Result, SeededBug};
use crate::index::Core;
use crate::index::stored::{LENGTH, Stored};
use crate::space::{BlockKind, Prefetch};

const KIND: BlockKind = BlockKind::LargeValueMap;
/// The description of the map in a root record.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MapRoot(Option<Top>);

/// The root of a map that is not empty.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Top {
    height: u32,
    totals: Totals,
    stored: Stored,
}

impl MapRoot {
    /// The maximum length of the persisted form, in bytes. The form has the number of levels, the two sums, and the
    /// address, which consists of owner, length and two pages.
    pub const MAX_BYTES: usize = 1 + 2 * PAGE_VARINT + (10 + 5 + 2 * PAGE_VARINT);

    /// Appends the persisted form.
    pub fn encode(self, out: &mut Vec<u8>) {
        let Some(Top { height, totals, stored }) = self.0 else { return out.push(0) };
        assert!(u64::from(height) <= MAX_HEIGHT && totals.pages >= totals.ranges, "as an opening requires");
        put_varint(out, u64::from(height) + 1);
        put_varint(out, totals.ranges);
        put_varint(out, totals.pages);
        stored.encode(out);
    }

    /// Decodes the form that [`MapRoot::encode`] wrote.
    ///
    /// # Errors
    /// [`Error::Corruption`] if bytes are missing or a number is out of bounds.
    pub fn decode(reader: &mut Reader<'_>) -> Result<MapRoot> {
        let Some(height) = reader.varint_max(MAX_HEIGHT + 1)?.checked_sub(1) else { return Ok(MapRoot(None)) };
        let totals = decode_totals(reader)?;
        Ok(MapRoot(Some(Top { height: height as u32, totals, stored: Stored::decode(reader)? })))
    }

    /// The blocks that [`BlobMap::load`] reads first.
    pub fn first_blocks(self, core: &Core) -> impl Iterator<Item = BlockAddr> {
        self.0.into_iter().flat_map(|top| top.stored.first_reads(core))
    }
}

fn decode_totals(reader: &mut Reader<'_>) -> Result<Totals> {
    let totals = Totals { ranges: reader.varint_max(MAX_PAGE)?, pages: reader.varint_max(MAX_PAGE)? };
    if totals.ranges == 0 || totals.pages < totals.ranges {
        return Err(reader.corrupt("the sums count no ranges, or fewer pages than ranges"));
    }
    Ok(totals)
}

impl BlobMap {
    /// Writes the nodes that are not on disk yet. Returns the part of the root record that describes the map.
    ///
    /// # Errors
    /// The errors of [`MirroredBlock::write`]. Nodes that were written before the error count as written: the next call
    /// does not write them again.
    pub fn store(&self, core: &Core) -> Result<MapRoot> {
        let Some(root) = &self.root else { return Ok(MapRoot(None)) };
        let stored = store_node(core, root)?;
        Ok(MapRoot(Some(Top { height: root.height, totals: root.totals, stored })))
    }

    /// Reads the map of a root record.
    ///
    /// # Errors
    /// [`Error::Corruption`] if both copies of a node are damaged, or a node contradicts its parent. In a store that is
    /// open for reading, there is no such error; instead the map marks the node as lost.
    pub fn load(core: &Core, root: MapRoot, prefetch: &mut Prefetch) -> Result<BlobMap> {
        let empty = BlobMap::new(core.pool.clone(), Fanout::PAGE);
        let Some(Top { height, totals, stored }) = root.0 else { return Ok(empty) };
        let expected = Expected { height, totals, first: None, below: MAX_PAGE + 1 };
        let root = Some(Loader { core, prefetch, seen: HashSet::new() }.node_or_loss(stored, expected)?);
        Ok(BlobMap { root, ..empty })
    }
}

/// Writes children first, because a node's block contains their addresses.
fn store_node(core: &Core, node: &Arc<Node>) -> Result<Stored> {
    if let Some(stored) = node.stored() {
        return Ok(stored);
    }
    let children: Vec<Stored> = match &node.entries {
        Entries::Children(children) => {
            children.iter().map(|child| store_node(core, &child.node)).collect::<Result<_>>()?
        }
        _ => Vec::new(),
    };
    assert!(!node.is_empty() && node.totals.ranges > 0, "a node on disk holds ranges");
    let stored = Stored::write(core, KIND, |body| {
        encode(node, &children, body);
        assert!(body.len() <= LENGTH + MAX_BODY, "a node of {} bytes does not fit one page", body.len());
    })?;
    node.set_stored(stored, &core.data);
    Ok(stored)
}

fn encode(node: &Node, children: &[Stored], out: &mut Vec<u8>) {
    put_varint(out, node.height.into());
    let mut before = 0;
    match &node.entries {
        Entries::Ranges(ranges) => {
            let stale = usize::from(SeededBug::LargeValueMapStale.is_on() && ranges.len() > 1);
            let ranges = &ranges[..ranges.len() - stale];
            put_varint(out, ranges.len() as u64);
            debug_assert!(ranges.windows(2).all(|pair| end_of(pair[0]) < pair[1].0), "ranges in order, apart");
            for range in ranges {
                put_varint(out, range.0 - before);
                put_varint(out, range.1);
                before = end_of(*range);
            }
        }
        Entries::Bits(bits) => {
            put_varint(out, 0);
            put_varint(out, bits.base());
            put_varint(out, bits.words().len() as u64);
            bits.words().iter().for_each(|word| out.extend_from_slice(&word.to_le_bytes()));
        }
        Entries::Children(entries) => {
            put_varint(out, entries.len() as u64);
            assert_eq!(entries.len(), children.len(), "an address for every child");
            debug_assert!(entries.windows(2).all(|pair| pair[0].first < pair[1].first), "children in order");
            for (child, stored) in entries.iter().zip(children) {
                put_varint(out, child.first - before);
                put_varint(out, child.totals.ranges);
                put_varint(out, child.totals.pages);
                stored.encode(out);
                before = child.first;
            }
        }
        Entries::Lost(_) => unreachable!("a map with a lost node is never written"),
    }
}

/// A parent's description of a node.
#[derive(Clone, Copy)]
struct Expected {
    height: u32,
    totals: Totals,
    /// The first page of the node's first range. It is `None` for the root, for which this page is not recorded.
    first: Option<u64>,
    /// All ranges of the node end below this page.
    below: u64,
}

struct Loader<'a> {
    core: &'a Core,
    prefetch: &'a mut Prefetch,
    /// The pages of the nodes that were read. A node with two parents could make the load exponentially long.
    seen: HashSet<crate::base::PageNo>,
}

impl Loader<'_> {
    /// Reads a node. If both copies of the node are damaged, a store that is open for reading continues without the
    /// node. A store that is open for writing gets an error, because it must know every used page.
    fn node_or_loss(&mut self, stored: Stored, expected: Expected) -> Result<Arc<Node>> {
        match self.node(stored, expected) {
            Err(e) if !self.core.repair && e.is_damage() => {
                let pool = self.core.pool.clone();
                Ok(Arc::new(Node::lost(expected.height, expected.totals, e, pool)))
            }
            node => node,
        }
    }

    /// Reads a node and everything below it. The recursion ends, because every child must be exactly one level below
    /// its parent.
    fn node(&mut self, stored: Stored, expected: Expected) -> Result<Arc<Node>> {
        let data = self.core.data.clone();
        let bad = |detail: &str| stored.corrupt(&data, KIND, detail);
        if stored.copies.0[0].pages != 1 {
            return Err(bad("a node of the map must have one page"));
        }
        if !self.seen.insert(stored.copies.0[0].page) {
            return Err(bad("a node has two parents"));
        }
        let buf = stored.read(self.core, self.prefetch, KIND)?;
        let node = stored.decode_body(&buf, &data, KIND, |reader| self.decode(reader, expected))?;
        if node.totals != expected.totals || expected.first.is_some_and(|first| node.first() != Some(first)) {
            return Err(bad("a node and its parent disagree about its first page or its sums"));
        }
        stored.copies.adopt(&data);
        node.set_stored(stored, &data);
        Ok(Arc::new(node))
    }

    fn decode(&mut self, reader: &mut Reader<'_>, expected: Expected) -> Result<Node> {
        let height = reader.varint_max(MAX_HEIGHT)? as u32;
        if height != expected.height {
            return Err(reader.corrupt(format!("height {height} where {} was expected", expected.height)));
        }
        let pool = self.core.pool.clone();
        if height == 0 { Ok(Node::of_leaf(leaf(reader, expected)?, pool)) } else { self.inner(reader, expected) }
    }

    fn inner(&mut self, reader: &mut Reader<'_>, expected: Expected) -> Result<Node> {
        let count = reader.varint_max(MAX_CHILDREN as u64)?;
        let mut places: Vec<(u64, Totals, Stored)> = Vec::with_capacity(count as usize);
        for _ in 0..count {
            let gap = reader.varint_max(MAX_PAGE)?;
            let before = places.last().map_or(0, |(first, ..)| *first);
            if (gap == 0 && !places.is_empty()) || before + gap >= expected.below {
                return Err(reader.corrupt("children of a node are not in order, or outside their parent"));
            }
            places.push((before + gap, decode_totals(reader)?, Stored::decode(reader)?));
        }
        if places.is_empty() || !reader.is_empty() {
            return Err(reader.corrupt("no children, or trailing bytes"));
        }
        let blocks: Vec<BlockAddr> = places.iter().flat_map(|(.., stored)| stored.first_reads(self.core)).collect();
        self.prefetch.ask(&blocks);
        let mut children = Vec::with_capacity(places.len());
        for (i, &(first, totals, stored)) in places.iter().enumerate() {
            let below = places.get(i + 1).map_or(expected.below, |(next, ..)| *next);
            let of_child = Expected { height: expected.height - 1, totals, first: Some(first), below };
            children.push(Child { first, totals, node: self.node_or_loss(stored, of_child)? });
        }
        Ok(Node::inner(children, self.core.pool.clone()))
    }
}

fn leaf(reader: &mut Reader<'_>, expected: Expected) -> Result<Entries> {
    match reader.count(2)?.min(MAX_RANGES + 1) {
        0 => Ok(Entries::Bits(bits(reader, expected)?)),
        count => Ok(Entries::Ranges(ranges(reader, count, expected)?)),
    }
}

fn bits(reader: &mut Reader<'_>, expected: Expected) -> Result<Bits> {
    let (base, count) = (reader.varint_max(MAX_PAGE)?, reader.varint_max(MAX_WORDS as u64)?);
    if !base.is_multiple_of(WORD) {
        return Err(reader.corrupt(format!("a bitmap begins at page {base}, which is not a multiple of {WORD}")));
    }
    let words = (0..count).map(|_| reader.u64()).collect::<Result<Vec<u64>>>()?;
    let bits = Bits::of_words(base, words);
    let last = bits.floor(u64::MAX);
    if last.is_none_or(|last| end_of(last) >= expected.below) || !reader.is_empty() {
        return Err(reader.corrupt("a bitmap without pages, with pages outside its node, or trailing bytes"));
    }
    Ok(bits)
}

fn ranges(reader: &mut Reader<'_>, count: usize, expected: Expected) -> Result<Vec<PageRange>> {
    let mut ranges: Vec<PageRange> = Vec::with_capacity(count);
    for _ in 0..count {
        let before = ranges.last().map_or(0, |range| end_of(*range));
        let (gap, len) = (reader.varint_max(MAX_PAGE)?, reader.varint_max(MAX_PAGE)?);
        if len == 0 || (gap == 0 && !ranges.is_empty()) || before + gap + len >= expected.below {
            return Err(reader.corrupt("ranges of large values are empty, touch, or lie outside their node"));
        }
        ranges.push((before + gap, len));
    }
    if ranges.len() > MAX_RANGES || !reader.is_empty() {
        return Err(reader.corrupt("too many ranges, or trailing bytes"));
    }
    Ok(ranges)
}
