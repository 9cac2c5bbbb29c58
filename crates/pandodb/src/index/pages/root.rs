//! [`Description`]: a tree on disk. The description is one block in two copies. Each checkpoint that includes a changed
//! tree writes a new one.
//!
//! Root record (integers varint): `version (1) | address of the description`. The address is defined in
//! [`crate::index::stored`].
//!
//! Body of the description:
//!
//! ```text
//!  owner of the pages │ levels: 0 for an empty tree, else 1 + level of the root page │ [reference to the root page]
//!  map of the tree's pages │ map of large values           crate::index::blobs
//!  count │ for each range tombstone: from │ to │ seqno      lengths before keys
//!  [level of its root │ reference to its root]              the tree of a sorted load that is not merged yet
//! ```
//!
//! The tree stores the set of its pages, because an opening must know every used page and must not read the whole tree.
//! Decoding trusts no field.

use super::inner::MAX_HEIGHT;
use super::reference::{PageRef, Root};
use crate::base::codec::{Reader, put_bytes, put_varint};
use crate::base::{BlockAddr, KeyRange, MAX_KEY, OwnerId, RangeTombstone, Result, Seqno};
use crate::index::blobs::{BlobMap, MapRoot};
use crate::index::stored::Stored;
use crate::index::{Core, RootRecord};
use crate::space::{BlockKind, Prefetch};

const VERSION: u64 = 1;
const KIND: BlockKind = BlockKind::TreeRoot;

/// A tree as a checkpoint describes it.
#[derive(Clone)]
pub struct Description {
    /// The owner of the tree's pages.
    pub owner: OwnerId,
    /// The root; `None` if the tree is empty.
    pub root: Option<Root>,
    /// The tree of a sorted load that is not merged with the tree of `root` yet. It is newer than that tree.
    pub loaded: Option<Root>,
    /// The pages of the tree.
    pub pages: BlobMap,
    /// The pages of the large values to which the tree refers.
    pub blobs: BlobMap,
    /// The range tombstones that still hide messages of the tree.
    pub tombstones: Vec<RangeTombstone>,
}

impl Description {
    /// Writes the description and the nodes of both maps that are not on disk yet.
    ///
    /// # Errors
    /// An I/O error or a full disk.
    pub fn store(&self, core: &Core) -> Result<Stored> {
        let (pages, blobs) = (self.pages.store(core)?, self.blobs.store(core)?);
        Stored::write(core, KIND, |body| self.encode(pages, blobs, body))
    }

    fn encode(&self, pages: MapRoot, blobs: MapRoot, out: &mut Vec<u8>) {
        put_varint(out, self.owner.0);
        put_varint(out, self.root.map_or(0, |root| u64::from(root.level) + 1));
        if let Some(root) = &self.root {
            root.page.encode(0, out);
        }
        pages.encode(out);
        blobs.encode(out);
        put_varint(out, self.tombstones.len() as u64);
        for RangeTombstone { range, seqno } in &self.tombstones {
            put_bytes(out, &range.from);
            put_bytes(out, &range.to);
            put_varint(out, seqno.0);
        }
        if let Some(Root { page, level }) = &self.loaded {
            put_varint(out, u64::from(*level));
            page.encode(0, out);
        }
    }

    /// Reads the description to which a root record refers.
    ///
    /// # Errors
    /// [`Error::Corruption`](crate::Error::Corruption) if both copies of a block are damaged, or a field is out of
    /// bounds.
    pub fn load(core: &Core, record: &RootRecord, prefetch: &mut Prefetch) -> Result<(Description, Stored)> {
        let stored = decode_record(record)?;
        let buf = stored.read(core, prefetch, KIND)?;
        let through = record.through;
        let decode = |reader: &mut Reader<'_>| decode(reader, through);
        let Body { owner, root, loaded, maps, tombstones } = stored.decode_body(&buf, &core.data, KIND, decode)?;
        let blocks: Vec<BlockAddr> = maps.iter().flat_map(|map| map.first_blocks(core)).collect();
        prefetch.ask(&blocks);
        let [pages, blobs] = maps;
        let (pages, blobs) = (BlobMap::load(core, pages, prefetch)?, BlobMap::load(core, blobs, prefetch)?);
        stored.copies.adopt(&core.data);
        Ok((Description { owner, root, loaded, pages, blobs, tombstones }, stored))
    }
}

/// The decoded body of a description.
struct Body {
    owner: OwnerId,
    root: Option<Root>,
    loaded: Option<Root>,
    maps: [MapRoot; 2],
    tombstones: Vec<RangeTombstone>,
}

/// Decodes a reference to the root of a tree. A root always knows the seqno of its newest message.
fn decode_root(reader: &mut Reader<'_>, level: u32) -> Result<Root> {
    let page = PageRef::decode(reader, 0, level == 0)?;
    if page.totals.newest == Seqno::UNASSIGNED {
        return Err(reader.corrupt("a root without a seqno"));
    }
    Ok(Root { page, level })
}

/// Decodes the body of a description. The root record holds all messages up to `through`.
fn decode(reader: &mut Reader<'_>, through: Seqno) -> Result<Body> {
    let owner = OwnerId(reader.varint()?);
    let levels = reader.varint_max(u64::from(MAX_HEIGHT) + 1)?;
    #[expect(clippy::cast_possible_truncation, reason = "the number of levels was checked")]
    let root = match (levels as u32).checked_sub(1) {
        Some(level) => Some(decode_root(reader, level)?),
        None => None,
    };
    let maps = [MapRoot::decode(reader)?, MapRoot::decode(reader)?];
    let count = reader.count(3)?;
    let mut tombstones = Vec::with_capacity(count);
    for _ in 0..count {
        let range = KeyRange::new(reader.bytes()?, reader.bytes()?);
        let seqno = Seqno(reader.varint_max(Seqno::BELIEVED.0)?);
        if range.is_empty() || range.from.len() > MAX_KEY + 1 || range.to.len() > MAX_KEY + 1 {
            return Err(reader.corrupt("a range tombstone without keys, or with a key that is too long"));
        }
        tombstones.push(RangeTombstone { range, seqno });
    }
    let mut loaded = None;
    if !reader.is_empty() {
        #[expect(clippy::cast_possible_truncation, reason = "the level is checked")]
        let level = reader.varint_max(MAX_HEIGHT.into())? as u32;
        let tree = decode_root(reader, level)?;
        if root.is_none() || tree.page.totals.newest > through {
            return Err(reader.corrupt("a sorted load without older messages, or above the seqno of the tree"));
        }
        loaded = Some(tree);
    }
    if !reader.is_empty() {
        return Err(reader.corrupt("trailing bytes"));
    }
    Ok(Body { owner, root, loaded, maps, tombstones })
}

/// The root record of a description.
pub fn encode_record(stored: Stored) -> Vec<u8> {
    let mut out = Vec::new();
    put_varint(&mut out, VERSION);
    stored.encode(&mut out);
    out
}

fn decode_record(record: &RootRecord) -> Result<Stored> {
    let mut reader = Reader::new(&record.bytes, "root record");
    if reader.varint()? != VERSION {
        return Err(reader.corrupt("unknown version"));
    }
    let stored = Stored::decode(&mut reader)?;
    if !reader.is_empty() {
        return Err(reader.corrupt("trailing bytes"));
    }
    Ok(stored)
}

/// The blocks that loading reads first; no blocks if the record is damaged.
pub fn first_blocks(core: &Core, record: &RootRecord) -> Vec<BlockAddr> {
    decode_record(record).map_or(Vec::new(), |stored| stored.first_reads(core).collect())
}
