//! [`RunMeta`]: the description of a run. The description contains everything that is not in the run's leaf, inner and
//! filter blocks. Trunk nodes store the description, and so does the run's own footer (002 §3.3).
//!
//! In the persisted form, numbers are varints unless noted, and each byte string is preceded by its length:
//!
//! ```text
//!   id │ extents: count, then (start, pages) each │ leaf pages
//!   root: page, pages │ height u8 │ filter: pages + kind · 2³², first position, then u8 bits of a fingerprint unless
//!   it is a Bloom filter │ tombstones: count, then (page, pages) each
//!   first key bytes │ last key bytes │ min seqno │ max seqno
//!   puts │ deletes │ merges │ blob puts │ range tombstones │ keys │ key bytes │ value bytes │ blob bytes
//! ```
//!
//! Kinds of filters: 0 Bloom, 1 quotient, 2 maplet. A *maplet* on disk is a run without leaves, tombstones and footer;
//! `keys` is the number of its entries. See [`super::maplet`].
//!
//! The footer block holds three parts: its header of 16 bytes, the length of the description in four bytes, and the
//! description.
//!
//! Steps of a reader: [`RunMeta::decode`] decodes all fields and then checks that the fields do not contradict one
//! another.
//!
//! Invariant: the position of a page is the number of the run's pages before it, counted through all extents in order.
//! The run's leaves come first, followed by the inner levels, the filter, the tombstones and the footer.

use std::ops::Range;

use crate::base::codec::{Reader, put_bytes, put_varint};
use crate::base::{BlockAddr, Extent, MAX_KEY, OwnerId, PAGE, PageNo, Result, Seqno};
use crate::filter::{FilterKind, FilterMeta};
use crate::space::{BLOCK_HEADER, BlockKind, DataFile};

use super::inner::MAX_HEIGHT;

/// All page numbers are below this limit.
const PAGE_LIMIT: u64 = 1 << 48;
const _: () = assert!(PAGE_LIMIT.checked_mul(PAGE as u64).is_some(), "a number of bytes has 64 bits");
/// The offset of the description in a footer. The description follows the block's header and the length.
const FOOTER_BODY: usize = BLOCK_HEADER + 4;

/// The description of a run.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RunMeta {
    /// The run's identity, which the checksum of each of its blocks covers.
    pub id: OwnerId,
    /// The extents of the run's pages, in the order of positions.
    pub extents: Vec<Extent>,
    /// The number of leaf pages. The leaves are the first pages of the run.
    pub leaf_pages: u64,
    /// The root block. In a run that holds only range tombstones, the root has 0 pages.
    pub root: BlockAddr,
    /// The number of levels of inner blocks; 0 if the root is a leaf.
    pub height: u8,
    /// The filter of the run's keys.
    pub filter: FilterMeta,
    /// The blocks of the run's range tombstones.
    pub tombstones: Vec<BlockAddr>,
    /// The smallest key; empty if there are no entries.
    pub first_key: Vec<u8>,
    /// The largest key; empty if there are no entries.
    pub last_key: Vec<u8>,
    /// The smallest seqno of all entries and range tombstones; 0 in the footer of a run of a sorted load.
    pub min_seqno: Seqno,
    /// The largest seqno of all entries and range tombstones.
    pub max_seqno: Seqno,
    /// The number of puts with inline values.
    pub puts: u64,
    /// The number of tombstones of single keys.
    pub deletes: u64,
    /// The number of merge operands.
    pub merges: u64,
    /// The number of entries that refer to large values.
    pub blob_puts: u64,
    /// The number of range tombstones.
    pub range_tombstones: u64,
    /// The number of distinct keys.
    pub keys: u64,
    /// The total size of the keys of all entries, in bytes.
    pub key_bytes: u64,
    /// The total size of the values and operands of all entries, as stored inline, in bytes.
    pub value_bytes: u64,
    /// The total size of the large values that entries refer to, in bytes.
    pub blob_bytes: u64,
}

impl RunMeta {
    /// The description of a run of a sorted load, once the seqno of the load is known. The run was built with the seqno
    /// 0 ([`Seqno::UNASSIGNED`]) in all its entries and in its footer. Every reader of the run replaces this seqno by
    /// the seqno of the description, so the blocks need not be written again.
    ///
    /// # Panics
    /// If the run has entries with other seqnos, range tombstones, or several entries of a key.
    #[must_use]
    pub fn stamped(self, at: Seqno) -> RunMeta {
        assert!(self.is_unassigned() && at > Seqno::UNASSIGNED && at <= Seqno::MAX, "a run is stamped once, with {at}");
        assert!(self.range_tombstones == 0 && self.keys == self.entries(), "a load has one entry for each key");
        RunMeta { min_seqno: at, max_seqno: at, ..self }
    }

    /// Whether the entries of the run have no seqno yet.
    pub(super) fn is_unassigned(&self) -> bool {
        self.min_seqno == Seqno::UNASSIGNED && self.max_seqno == Seqno::UNASSIGNED
    }

    /// The seqno that replaces [`Seqno::UNASSIGNED`] in the leaves of the run. `None` if the run has entries with
    /// different seqnos, because such a run is not from a sorted load.
    pub(super) fn stamp(&self) -> Option<Seqno> {
        Some(self.max_seqno).filter(|&at| at == self.min_seqno && at > Seqno::UNASSIGNED)
    }

    /// The number of entries, including superseded entries, but without range tombstones.
    pub fn entries(&self) -> u64 {
        self.puts + self.deletes + self.merges + self.blob_puts
    }

    /// Whether this is the description of a maplet.
    pub fn is_maplet(&self) -> bool {
        matches!(self.filter.kind, FilterKind::Maplet { .. })
    }

    /// The number of pages of all extents.
    pub fn pages(&self) -> u64 {
        self.extents.iter().map(|extent| u64::from(extent.pages)).sum()
    }

    /// The size in bytes of all blocks that are not leaves: filter blocks, inner blocks, and range tombstones.
    pub fn search_bytes(&self) -> u64 {
        self.pages().saturating_sub(self.leaf_pages) * PAGE as u64
    }

    /// The number of bytes that the run occupies on disk, without large values.
    pub fn disk_bytes(&self) -> u64 {
        self.pages() * PAGE as u64
    }

    /// The number of bytes of keys and values, including large values.
    pub fn logical_bytes(&self) -> u64 {
        self.key_bytes + self.value_bytes + self.blob_bytes
    }

    /// The positions of the inner blocks and the filter. A search reads these blocks before a leaf.
    pub(super) fn above_leaves(&self) -> Range<u64> {
        let filter = &self.filter;
        // A run without leaves has neither inner blocks nor a position of a filter.
        self.leaf_pages..(filter.first + u64::from(filter.pages)).max(self.leaf_pages)
    }

    /// The position of the footer, which follows all other blocks, and its number of pages.
    pub(super) fn footer(&self) -> (u64, u64) {
        let position = self.above_leaves().end + self.tombstones.iter().map(|addr| u64::from(addr.pages)).sum::<u64>();
        (position, self.pages().saturating_sub(position))
    }

    /// The counters in the order in which they are stored.
    fn counters(&self) -> [u64; 9] {
        [
            self.puts,
            self.deletes,
            self.merges,
            self.blob_puts,
            self.range_tombstones,
            self.keys,
            self.key_bytes,
            self.value_bytes,
            self.blob_bytes,
        ]
    }

    /// Appends the persisted form of the description to `out`.
    pub fn encode(&self, out: &mut Vec<u8>) {
        put_varint(out, self.id.0);
        put_varint(out, self.extents.len() as u64);
        for extent in &self.extents {
            put_varint(out, extent.start.0);
            put_varint(out, u64::from(extent.pages));
        }
        put_varint(out, self.leaf_pages);
        put_addr(out, self.root);
        out.push(self.height);
        put_filter(out, self.filter);
        put_varint(out, self.tombstones.len() as u64);
        self.tombstones.iter().for_each(|&addr| put_addr(out, addr));
        put_bytes(out, &self.first_key);
        put_bytes(out, &self.last_key);
        put_varint(out, self.min_seqno.0);
        put_varint(out, self.max_seqno.0);
        self.counters().into_iter().for_each(|counter| put_varint(out, counter));
    }

    /// Decodes a description that [`RunMeta::encode`] wrote.
    ///
    /// # Errors
    /// [`crate::Error::Corruption`] if bytes are missing or a field is out of bounds.
    pub fn decode(reader: &mut Reader<'_>) -> Result<RunMeta> {
        let mut meta = RunMeta { id: OwnerId(reader.varint()?), ..RunMeta::default() };
        let count = reader.count(2)?;
        meta.extents.reserve_exact(count);
        for _ in 0..count {
            let BlockAddr { page, pages } = get_addr(reader)?;
            meta.extents.push(Extent { start: page, pages });
        }
        meta.leaf_pages = reader.varint_max(PAGE_LIMIT)?;
        meta.root = get_addr(reader)?;
        meta.height = reader.u8()?;
        meta.filter = get_filter(reader)?;
        let count = reader.count(2)?;
        meta.tombstones.reserve_exact(count);
        for _ in 0..count {
            meta.tombstones.push(get_addr(reader)?);
        }
        meta.first_key = get_key(reader)?;
        meta.last_key = get_key(reader)?;
        meta.min_seqno = Seqno(reader.varint_max(Seqno::MAX.0)?);
        meta.max_seqno = Seqno(reader.varint_max(Seqno::MAX.0)?);
        let mut counter = || reader.varint_max(PAGE_LIMIT * PAGE as u64);
        meta.puts = counter()?;
        meta.deletes = counter()?;
        meta.merges = counter()?;
        meta.blob_puts = counter()?;
        meta.range_tombstones = counter()?;
        meta.keys = counter()?;
        meta.key_bytes = counter()?;
        meta.value_bytes = counter()?;
        meta.blob_bytes = counter()?;
        match meta.flaw() {
            Some(flaw) => Err(reader.corrupt(flaw)),
            None => Ok(meta),
        }
    }

    /// Returns a text that describes a contradiction between fields; `None` if there is no contradiction.
    pub(super) fn flaw(&self) -> Option<&'static str> {
        let pages = self.pages();
        let has_entries = self.leaf_pages > 0;
        let in_extents = |addr: &BlockAddr| {
            addr.pages > 0
                && self.extents.iter().any(|e| e.start <= addr.page && addr.page.0 + u64::from(addr.pages) <= e.end())
        };
        if self.extents.iter().any(|extent| extent.pages == 0) || self.leaf_pages > pages {
            return Some("a run with an empty extent or with more leaves than pages");
        }
        if has_entries != (self.entries() > 0) || has_entries == self.first_key.is_empty() {
            return Some("leaf pages, counts of entries and first key of a run disagree");
        }
        if has_entries && !in_extents(&self.root) || !self.tombstones.iter().all(in_extents) {
            return Some("a block outside the run's extents");
        }
        if self.tombstones.is_empty() != (self.range_tombstones == 0) {
            return Some("range tombstones without a block");
        }
        let filter_fits = self.filter.first + u64::from(self.filter.pages) <= pages;
        if self.height > MAX_HEIGHT || !filter_fits || !self.filter.is_sound(self.keys) {
            return Some("height or filter out of bounds");
        }
        if self.is_maplet() && (has_entries || self.range_tombstones > 0) {
            return Some("a maplet with entries or range tombstones");
        }
        let counts = self.keys <= self.entries() || self.is_maplet();
        if self.first_key > self.last_key || self.min_seqno > self.max_seqno || !counts {
            return Some("bounds or counts that contradict one another");
        }
        None
    }
}

fn put_addr(out: &mut Vec<u8>, addr: BlockAddr) {
    put_varint(out, addr.page.0);
    put_varint(out, u64::from(addr.pages));
}

fn get_addr(reader: &mut Reader<'_>) -> Result<BlockAddr> {
    let page = PageNo(reader.varint_max(PAGE_LIMIT)?);
    #[expect(clippy::cast_possible_truncation, reason = "the reader returns at most `u32::MAX`")]
    let pages = reader.varint_max(u64::from(u32::MAX))? as u32;
    Ok(BlockAddr { page, pages })
}

fn put_filter(out: &mut Vec<u8>, filter: FilterMeta) {
    let (kind, bits) = match filter.kind {
        FilterKind::Bloom => (0, None),
        FilterKind::Quotient { bits } => (1, Some(bits)),
        FilterKind::Maplet { bits } => (2, Some(bits)),
    };
    put_varint(out, u64::from(filter.pages) | kind << 32);
    put_varint(out, filter.first);
    out.extend(bits);
}

fn get_filter(reader: &mut Reader<'_>) -> Result<FilterMeta> {
    let pages = reader.varint_max(3 << 32 | u64::from(u32::MAX))?;
    let first = reader.varint_max(PAGE_LIMIT)?;
    let kind = match pages >> 32 {
        0 => FilterKind::Bloom,
        1 => FilterKind::Quotient { bits: reader.u8()? },
        2 => FilterKind::Maplet { bits: reader.u8()? },
        kind => return Err(reader.corrupt(format!("a filter of the unknown kind {kind}"))),
    };
    #[expect(clippy::cast_possible_truncation, reason = "the upper half is the kind")]
    let pages = pages as u32;
    Ok(FilterMeta { kind, pages, first })
}

fn get_key(reader: &mut Reader<'_>) -> Result<Vec<u8>> {
    let key = reader.bytes()?;
    if key.len() > MAX_KEY {
        return Err(reader.corrupt(format!("a key of {} bytes", key.len())));
    }
    Ok(key.to_vec())
}

/// The number of pages of a footer whose description takes `len` bytes.
pub(super) fn footer_pages(len: usize) -> u32 {
    u32::try_from((FOOTER_BODY + len).div_ceil(PAGE)).expect("a description is shorter than 16 TiB")
}

/// Writes the body of a footer. Does not write the block's header.
pub(super) fn fill_footer(block: &mut [u8], description: &[u8]) {
    let end = FOOTER_BODY + description.len();
    assert!(end <= block.len(), "the footer has {} bytes, {end} are needed", block.len());
    let len = u32::try_from(description.len()).expect("a description is shorter than 4 GiB");
    block[BLOCK_HEADER..FOOTER_BODY].copy_from_slice(&len.to_le_bytes());
    block[FOOTER_BODY..end].copy_from_slice(description);
    block[end..].fill(0);
}

/// Reads the description of the run `owner` from its footer, the last block of its last extent. Inspection and salvage
/// use this function if no readable trunk node refers to the run.
///
/// # Errors
/// [`crate::Error::Corruption`] if the block at `addr` is not the footer of this run.
pub fn read_footer(data: &DataFile, owner: OwnerId, addr: BlockAddr) -> Result<RunMeta> {
    let block = data.read_block(addr, owner, BlockKind::RunFooter)?;
    let mut reader = Reader::new(&block[BLOCK_HEADER..], "run footer");
    let decoded =
        reader.u32().and_then(|len| RunMeta::decode(&mut Reader::new(reader.take(len as usize)?, "run footer")));
    decoded.map_err(|error| data.corrupt(addr, BlockKind::RunFooter.name(), error.to_string()))
}
