//! [`RunBuilder`]: writes a sorted stream of messages as a run, bottom up, in one pass (002 §3.3).
//!
//! ```text
//!   push ─▶ leaf being filled ─▶ pages ─▶ disk          prepare: last leaf, inner levels, filter
//!            └ separator, position ─▶ children          finish: tombstones, footer
//! ```
//!
//! Steps: call [`RunBuilder::push`] for each message, [`RunBuilder::prepare`] any number of times, and
//! [`RunBuilder::finish`] once. Making the filter of a run of millions of keys takes a quarter of a second. `prepare`
//! makes the filter in small parts, so that a worker can do more urgent work between the calls.
//!
//! Invariants:
//!
//! * A leaf is closed when the next entry would not fit and the leaf is at least 7/8 full. If the leaf is less full, it
//!   grows to make room for the entry, up to 8 pages, so that entries of medium size waste little space.
//! * All messages of a key are in one leaf, which grows as needed, up to 4 MiB. If the messages of a key take more than
//!   that, they continue in the next leaf, and flags in both leaves record this. A single entry of more than 4 MiB has
//!   a leaf of its own.
//! * In a compressed run ([`RunBuilder::with_compression`]) a leaf is *gathered* first, up to 16 KiB, and stored as LZ4
//!   if that saves enough ([`super::compressed`]). Otherwise its messages go into ordinary leaves, by the rules above.
//!   The messages never go into one long ordinary leaf, because every lookup would read the whole leaf.
//! * A builder that is dropped before it is finished frees its pages.
//!
//! Memory: a builder uses 4 bytes for each distinct key (8 if the run has a Bloom filter or few keys), a separator and
//! 24 bytes for each leaf, 8 bytes for each block that is offered to the pool, and one write buffer of at most 1 MiB. The
//! builder of a compressed run also needs memory for two leaves and for a table of 8 or 16 KiB. While a Bloom filter is
//! written, the whole filter (10 bits for each key) is in memory.

use std::cmp::Ordering;
use std::sync::Arc;

use super::compressed::{Compression, Compressor, MOST_PAGES};
use super::inner::{Child, Inner, InnerBuilder, MAX_HEIGHT, MIN_FANOUT, separator};
use super::leaf::{Fit, Leaf, LeafBuilder};
use super::meta::{self, RunMeta};
use super::pages::{PageWriter, Placed};
use super::slots::{CONTINUED, CONTINUES};
use super::tombstones;
use crate::base::codec::Reader;
use crate::base::{
    BlobRef, BlockAddr, Entry, Kind, MAX_KEY, OwnerId, PAGE, RangeTombstone, Result, Seqno, key_hash, seeded,
};
use crate::filter::{FilterBuilder, FilterMaker, FilterMeta, Filters};
use crate::pool::{Keep, Pool};
use crate::space::{BlockKind, DataFile, MAX_BLOCK_PAGES};

/// A leaf does not grow beyond this size to fill its last page.
const GROWN_LEAF: usize = 8 * PAGE;
/// Sorting the hash of a key and writing it to a filter takes about as long as compacting this many bytes.
const HASH_BYTES: u64 = 8;
/// If the messages of one key exceed this many bytes, they are spread over several leaves.
const MAX_GROUP: usize = 4 << 20;

const _: () =
    assert!(GROWN_LEAF <= MAX_GROUP && MOST_PAGES * PAGE <= MAX_GROUP, "the messages of a key may fill a leaf");
const _: () = assert!(MAX_GROUP <= MAX_BLOCK_PAGES as usize * PAGE, "a reader accepts such a leaf");

/// One level of the tree: the level's blocks, and the separator before each block.
#[derive(Default)]
struct Level {
    blocks: Vec<(Child, u32)>,
    separators: Vec<u8>,
}

impl Level {
    fn push(&mut self, child: Child, separator: &[u8]) {
        if let Some((last, len)) = self.blocks.last() {
            assert_eq!(last.position + u64::from(last.pages), child.position, "positions have no gaps");
            let before = &self.separators[self.separators.len() - *len as usize..];
            assert!(before <= separator, "separators ascend");
        }
        let len = u32::try_from(separator.len()).expect("a separator is at most one byte longer than a key");
        self.blocks.push((child, len));
        self.separators.extend_from_slice(separator);
    }

    fn iter(&self) -> impl Iterator<Item = (Child, &[u8])> {
        let mut rest = &self.separators[..];
        self.blocks.iter().map(move |&(child, len)| {
            let (separator, after) = rest.split_at(len as usize);
            rest = after;
            (child, separator)
        })
    }
}

/// The state of the run's filter.
enum Filter {
    /// The hashes of the keys are being collected.
    Gathering(FilterBuilder),
    /// All hashes were collected; the filter is being made.
    Making(FilterMaker),
    /// The filter was written, or the run has none.
    Written,
}

/// Builds one run from messages that are pushed in order.
pub struct RunBuilder {
    pages: PageWriter,
    leaf: LeafBuilder,
    /// The size in bytes up to which the leaf is filled before it is closed or allowed to grow.
    leaf_limit: usize,
    /// The compressor of a compressed run; `None` for other runs.
    compressor: Option<Box<Compressor>>,
    /// Whether the leaf being filled will be compressed.
    gathering: bool,
    /// The separator before the leaf being filled; empty for the first leaf.
    leaf_separator: Vec<u8>,
    pages_before: u32,
    /// [`CONTINUED`] if the first key of the leaf being filled began in the previous leaf, else 0.
    continued: u16,
    leaves: Level,
    filter: Filter,
    tombstones: Vec<RangeTombstone>,
    /// Whether the next messages are requested often.
    is_warm: bool,
    /// The number of such messages in the leaf being filled.
    warm: usize,
    last_key: Vec<u8>,
    last_seqno: Seqno,
    meta: RunMeta,
}

impl RunBuilder {
    /// Starts the run `id`. `expected_bytes` is the run's estimated size on disk; it is only a hint for allocation. The
    /// run gets a Bloom filter unless [`RunBuilder::with_filter`] is called.
    pub fn new(data: Arc<DataFile>, id: OwnerId, expected_bytes: u64) -> RunBuilder {
        RunBuilder {
            pages: PageWriter::new(data, id, expected_bytes),
            leaf: LeafBuilder::default(),
            leaf_limit: PAGE,
            compressor: None,
            gathering: false,
            leaf_separator: Vec::new(),
            pages_before: 0,
            continued: 0,
            leaves: Level::default(),
            filter: Filter::Gathering(FilterBuilder::new(Filters::Bloom, 1)),
            tombstones: Vec::new(),
            is_warm: false,
            warm: 0,
            last_key: Vec::new(),
            last_seqno: Seqno(0),
            meta: RunMeta { id, min_seqno: Seqno::MAX, ..RunMeta::default() },
        }
    }

    /// Sets the run's filter.
    ///
    /// # Panics
    /// If a message was pushed.
    #[must_use]
    pub fn with_filter(self, filter: FilterBuilder) -> RunBuilder {
        assert!(self.last_key.is_empty(), "the filter is set before the first key is pushed");
        RunBuilder { filter: Filter::Gathering(filter), ..self }
    }

    /// Sets whether the run's leaves are compressed.
    ///
    /// # Panics
    /// If a message was pushed.
    #[must_use]
    pub fn with_compression(mut self, compression: Compression) -> RunBuilder {
        assert!(self.last_key.is_empty(), "compression is set before the first key is pushed");
        self.compressor = (compression == Compression::Lz4).then(Box::default);
        self.begin_leaf(PAGE);
        self
    }

    /// Makes the builder offer the run's inner blocks and filter blocks to the pool when it writes them, and the leaves in
    /// which at least half of the messages are warm ([`RunBuilder::set_warm`]).
    #[must_use]
    pub fn cached_in(mut self, pool: Arc<Pool>) -> RunBuilder {
        self.pages.cache_in(pool);
        self
    }

    /// Makes a run of less than 16 MiB be written in more and shorter writes, for merges that work in small steps. Has no
    /// effect after the first block.
    pub fn write_often(&mut self) {
        self.pages.write_often();
    }

    /// Appends a message to the run.
    ///
    /// # Errors
    /// [`crate::Error::DiskFull`] or an I/O error. The builder must then be dropped.
    ///
    /// # Panics
    /// If the message does not strictly follow the previously pushed message, or is not allowed in a run.
    pub fn push(&mut self, entry: Entry<'_>) -> Result<()> {
        assert!((1..=MAX_KEY).contains(&entry.key.len()), "keys have 1 to 65,535 bytes");
        let new_key = match self.last_key.as_slice().cmp(entry.key) {
            Ordering::Less => true,
            Ordering::Equal if entry.seqno < self.last_seqno => false,
            _ => panic!("messages are pushed in order: {} after {}", entry.seqno, self.last_seqno),
        };
        let fit = self.make_room(&entry, new_key)?;
        self.leaf.add(&entry, &fit);
        self.warm += usize::from(self.is_warm);
        debug_assert!(self.leaf.size() <= self.leaf_limit, "room was made for the entry");
        self.count(&entry);
        if new_key {
            let hash = key_hash(entry.key);
            if seeded!(FilterMissesKeys: !hash.is_multiple_of(16), true) {
                let Filter::Gathering(filter) = &mut self.filter else { panic!("the run is complete") };
                filter.add(hash);
            }
            self.meta.keys += 1;
            if self.meta.first_key.is_empty() {
                self.meta.first_key.extend_from_slice(entry.key);
            }
            self.last_key.clear();
            self.last_key.extend_from_slice(entry.key);
        }
        self.last_seqno = entry.seqno;
        Ok(())
    }

    /// Says whether the messages that are pushed next are probably requested soon. Compressed leaves are not offered to the
    /// pool, whatever their messages are.
    #[inline]
    pub fn set_warm(&mut self, is_warm: bool) {
        self.is_warm = is_warm;
    }

    /// Adds a range tombstone. Tombstones may be added in any order.
    pub fn push_tombstone(&mut self, tombstone: RangeTombstone) {
        assert!(!tombstone.range.is_empty(), "a range tombstone covers something");
        self.span_seqno(tombstone.seqno);
        self.meta.range_tombstones += 1;
        self.tombstones.push(tombstone);
    }

    fn span_seqno(&mut self, seqno: Seqno) {
        assert!(seqno <= Seqno::MAX, "a seqno that was assigned");
        self.meta.min_seqno = self.meta.min_seqno.min(seqno);
        self.meta.max_seqno = self.meta.max_seqno.max(seqno);
    }

    fn count(&mut self, entry: &Entry<'_>) {
        self.span_seqno(entry.seqno);
        self.meta.key_bytes += entry.key.len() as u64;
        self.meta.value_bytes += entry.value.len() as u64;
        match entry.kind {
            Kind::Put => self.meta.puts += 1,
            Kind::Merge => self.meta.merges += 1,
            Kind::Delete => {
                assert!(entry.value.is_empty(), "a delete has no value");
                self.meta.deletes += 1;
            }
            Kind::BlobPut => {
                let blob = BlobRef::decode(entry.value).expect("a blob put holds a reference");
                self.meta.blob_puts += 1;
                self.meta.blob_bytes += blob.len;
            }
            Kind::RangeDelete => panic!("range deletes are pushed as tombstones"),
        }
    }

    /// Makes room for `entry`: lets the leaf being filled grow, or closes it. Returns how the entry fits then.
    #[inline]
    fn make_room(&mut self, entry: &Entry<'_>, new_key: bool) -> Result<Fit> {
        let fit = self.leaf.fit(entry);
        if fit.size <= self.leaf_limit {
            return Ok(fit);
        }
        self.make_more_room(entry, new_key, fit)
    }

    /// The rest of [`RunBuilder::make_room`], for an entry that exceeds the limit of the leaf.
    fn make_more_room(&mut self, entry: &Entry<'_>, new_key: bool, fit: Fit) -> Result<Fit> {
        let need = fit.size;
        if self.gathering {
            return self.gather(entry, new_key, fit);
        }
        let grown = need.next_multiple_of(PAGE);
        let may_grow = if self.leaf.is_empty() {
            true
        } else if new_key {
            grown <= GROWN_LEAF && self.leaf.size() * 8 < self.leaf_limit * 7
        } else {
            need <= MAX_GROUP
        };
        if may_grow {
            self.leaf_limit = grown;
            return Ok(fit);
        }
        self.close_leaf(!new_key)?;
        Ok(self.bound_leaf(entry, new_key))
    }

    /// Like [`RunBuilder::make_room`], for a leaf that will be compressed.
    fn gather(&mut self, entry: &Entry<'_>, new_key: bool, fit: Fit) -> Result<Fit> {
        let whole = self.leaf.is_empty() || !new_key;
        if whole && fit.size <= MOST_PAGES * PAGE {
            self.leaf_limit = fit.size.next_multiple_of(PAGE);
            return Ok(fit);
        }
        if !whole && self.close_compressed()? {
            return Ok(self.bound_leaf(entry, new_key));
        }
        self.scatter()?;
        self.make_room(entry, new_key)
    }

    /// Sets the separator before the next leaf, which begins with `entry`, and the size up to which it is filled.
    /// Returns how the entry fits.
    fn bound_leaf(&mut self, entry: &Entry<'_>, new_key: bool) -> Fit {
        self.leaf_separator.clear();
        if new_key {
            self.leaf_separator.extend_from_slice(separator(&self.last_key, entry.key));
        } else {
            self.leaf_separator.extend_from_slice(entry.key);
            self.leaf_separator.push(0);
        }
        let fit = self.leaf.fit(entry);
        self.begin_leaf(fit.size.next_multiple_of(PAGE));
        fit
    }

    /// Begins a leaf whose first entry takes `least` bytes.
    fn begin_leaf(&mut self, least: usize) {
        debug_assert!(self.leaf.is_empty());
        let full = self.compressor.as_mut().and_then(|compressor| compressor.begin());
        let full = full.filter(|_| least <= MOST_PAGES * PAGE);
        self.gathering = full.is_some();
        self.leaf_limit = full.map_or(least, |full| full.max(least));
    }

    /// Compresses and writes the gathered leaf. Returns `false`, and writes nothing, if compression does not save
    /// enough.
    fn close_compressed(&mut self) -> Result<bool> {
        let compressor = self.compressor.as_mut().expect("a leaf is gathered to be compressed");
        let Some(pages) = compressor.compress(&self.leaf, self.pages_before, self.continued) else { return Ok(false) };
        let placed = self.pages.append(pages, BlockKind::RunCompressedLeaf, |block| compressor.fill(block))?;
        let noted = seeded!(LengthInMemoryNoted: self.leaf.pages(), pages);
        self.leaf_is_placed(placed, false);
        self.pages_before = noted;
        Ok(true)
    }

    /// Moves the messages of the gathered leaf into ordinary leaves. The last ordinary leaf is not closed, and is
    /// filled further.
    fn scatter(&mut self) -> Result<()> {
        let is_warm = self.is_leaf_warm();
        let gathered = std::mem::take(&mut self.leaf);
        (self.gathering, self.leaf_limit, self.warm) = (false, PAGE, 0);
        let mut new_key = true;
        for entry in gathered.entries() {
            if !self.leaf.is_empty() {
                new_key = self.last_key != entry.key;
            }
            let fit = self.make_room(&entry, new_key)?;
            self.leaf.add(&entry, &fit);
            self.warm += usize::from(is_warm);
            // The loop sets `last_key` again: after the loop, `last_key` is the key that was pushed last.
            self.last_key.clear();
            self.last_key.extend_from_slice(entry.key);
        }
        Ok(())
    }

    /// Whether the leaf being filled is offered to the pool.
    fn is_leaf_warm(&self) -> bool {
        self.warm > 0 && self.warm * 2 >= self.leaf.len()
    }

    fn close_leaf(&mut self, continues: bool) -> Result<()> {
        let (pages, before, leaf) = (self.leaf.pages(), self.pages_before, &self.leaf);
        let is_warm = self.is_leaf_warm();
        let flags = self.continued | if continues { CONTINUES } else { 0 };
        let placed = self.pages.append(pages, BlockKind::RunLeaf, |block| {
            leaf.encode(block, before, flags);
            debug_assert!(Leaf::check(block).is_ok(), "a reader accepts the leaf");
        })?;
        if is_warm {
            self.pages.offer_last(placed.addr, Keep::Short);
        }
        self.leaf_is_placed(placed, continues);
        Ok(())
    }

    fn leaf_is_placed(&mut self, placed: Placed, continues: bool) {
        assert!(!self.leaf.is_empty(), "a leaf has entries");
        let pages = placed.addr.pages;
        self.continued = if continues { CONTINUED } else { 0 };
        let child = Child { position: placed.position, pages, leaf: placed.position };
        self.leaves.push(child, &self.leaf_separator);
        (self.pages_before, self.warm) = (pages, 0);
        self.leaf.clear();
    }

    /// Closes the last leaf if it has entries.
    fn close_last(&mut self) -> Result<()> {
        while self.gathering && !self.leaf.is_empty() && !self.close_compressed()? {
            self.scatter()?;
        }
        if self.leaf.is_empty() { Ok(()) } else { self.close_leaf(false) }
    }

    /// Does a part of the work of [`RunBuilder::finish`]. The part takes about as long as compacting `budget` bytes. It
    /// may take longer, because some steps cannot be divided: writing the inner levels, building a Bloom filter, and
    /// sorting a part of the hashes. Returns `true` if only a little work is left. No message may be pushed after the
    /// first call.
    ///
    /// # Errors
    /// [`crate::Error::DiskFull`] or an I/O error. The builder must then be dropped.
    pub fn prepare(&mut self, budget: u64) -> Result<bool> {
        if let Filter::Gathering(filter) = &mut self.filter {
            let filter = std::mem::replace(filter, FilterBuilder::new(Filters::Bloom, 1));
            self.close_last()?;
            self.meta.leaf_pages = self.pages.placed_pages();
            self.meta.last_key = std::mem::take(&mut self.last_key);
            if self.meta.leaf_pages > 0 {
                self.write_inner()?;
            }
            // If all entries are in a single page, a filter saves no reads, but it is needed if it will be merged into
            // a maplet.
            let is_wanted = self.meta.leaf_pages > 1 || self.meta.leaf_pages == 1 && filter.is_for_maplets();
            self.filter = if is_wanted { Filter::Making(filter.make()) } else { Filter::Written };
        }
        self.write_filter(usize::try_from(budget / HASH_BYTES).unwrap_or(usize::MAX).max(1))
    }

    /// Writes the rest of the run and returns its description; `None` if nothing was pushed. All blocks are written but
    /// not synced.
    ///
    /// # Errors
    /// [`crate::Error::DiskFull`] or an I/O error. After an error, the run's pages are freed.
    pub fn finish(mut self) -> Result<Option<RunMeta>> {
        while !self.prepare(u64::MAX)? {}
        if self.meta.entries() == 0 && self.tombstones.is_empty() {
            return Ok(None);
        }
        self.write_tombstones()?;
        self.write_footer()?;
        let placed = self.pages.placed_pages();
        self.meta.extents = self.pages.finish()?;
        assert_eq!(self.meta.pages(), placed, "the run has exactly the pages that were placed");
        assert_eq!(self.meta.flaw(), None, "a reader accepts the description");
        Ok(Some(self.meta))
    }

    /// Writes the inner levels until a level has a single block: the root.
    fn write_inner(&mut self) -> Result<()> {
        let mut level = std::mem::take(&mut self.leaves);
        let mut height = 0u8;
        let mut root = None;
        while level.blocks.len() > 1 {
            height += 1;
            assert!(height <= MAX_HEIGHT, "a reader accepts {height} levels");
            let below = level.blocks.len();
            (level, root) = self.write_level(&level, height)?;
            assert!(level.blocks.len() < below, "each level has fewer blocks than the one below");
        }
        let first = level.blocks[0].0;
        // If the run has only one leaf, this leaf is the root and the first block of the run.
        let extents = self.pages.extents();
        self.meta.root = root.unwrap_or(BlockAddr { page: extents[0].start, pages: first.pages });
        self.meta.height = height;
        Ok(())
    }

    /// Writes the inner blocks above `below`. Returns the level of these blocks and the address of its last block.
    fn write_level(&mut self, below: &Level, height: u8) -> Result<(Level, Option<BlockAddr>)> {
        let mut level = Level::default();
        let mut last = None;
        let mut builder = InnerBuilder::new(u32::from(height));
        let mut limit = PAGE;
        let mut first: (Child, &[u8]) = (Child::default(), &[]);
        for (child, separator) in below.iter() {
            let need = builder.size_with(&child, separator);
            if need > limit && builder.len() >= MIN_FANOUT {
                let placed = self.write_block(&mut builder)?;
                level.push(parent_of(&first.0, placed), first.1);
                last = Some(placed.addr);
                limit = PAGE;
            } else if need > limit {
                limit = need.next_multiple_of(PAGE);
            }
            if builder.is_empty() {
                first = (child, separator);
            }
            builder.add(child, separator);
        }
        if !builder.is_empty() {
            let placed = self.write_block(&mut builder)?;
            level.push(parent_of(&first.0, placed), first.1);
            last = Some(placed.addr);
        }
        Ok((level, last))
    }

    fn write_block(&mut self, builder: &mut InnerBuilder) -> Result<Placed> {
        let placed = self.pages.append(builder.pages(), BlockKind::RunInner, |block| {
            builder.encode(block);
            debug_assert!(Inner::check(block).is_ok(), "a reader accepts the inner block");
        })?;
        builder.clear();
        Ok(placed)
    }

    /// Continues to make the filter, for about `most` keys, and for at least one key. Returns whether the filter is
    /// completely written.
    fn write_filter(&mut self, most: usize) -> Result<bool> {
        let Filter::Making(maker) = &mut self.filter else { return Ok(true) };
        let mut keys = 0;
        if self.meta.filter.pages == 0 {
            self.meta.filter = FilterMeta { first: self.pages.placed_pages(), ..maker.meta() };
        }
        while maker.left() > 0 {
            if keys >= most {
                return Ok(false);
            }
            self.pages.append(1, BlockKind::RunFilter, |block| keys += maker.fill(block))?;
        }
        let end = self.meta.filter.first + u64::from(self.meta.filter.pages);
        assert_eq!(self.pages.placed_pages(), end, "all pages of the filter are written");
        self.filter = Filter::Written;
        Ok(true)
    }

    fn write_tombstones(&mut self) -> Result<()> {
        self.tombstones.sort_unstable_by(|a, b| {
            a.range.from.cmp(&b.range.from).then(b.seqno.cmp(&a.seqno)).then(a.range.to.cmp(&b.range.to))
        });
        assert_eq!(self.tombstones.len() as u64, self.meta.range_tombstones, "each range tombstone is counted");
        for (count, items) in tombstones::encode(&self.tombstones) {
            let pages = tombstones::pages(&items);
            let placed =
                self.pages.append(pages, BlockKind::RunTombstones, |block| tombstones::fill(block, count, &items))?;
            self.meta.tombstones.push(placed.addr);
        }
        Ok(())
    }

    /// Writes the description as the run's last block. The size of this block is computed before its position is known,
    /// with room for one more extent.
    fn write_footer(&mut self) -> Result<()> {
        const ONE_EXTENT_MORE: usize = 32;
        let mut body = Vec::new();
        self.meta.extents = self.pages.extents().to_vec();
        self.meta.encode(&mut body);
        let placed = self.pages.place(meta::footer_pages(body.len() + ONE_EXTENT_MORE))?;
        self.meta.extents = self.pages.close().to_vec();
        body.clear();
        self.meta.encode(&mut body);
        assert!(meta::footer_pages(body.len()) <= placed.addr.pages, "the footer has room for the final extents");
        assert_eq!(self.meta.footer(), (placed.position, placed.addr.pages.into()), "a reader finds the footer");
        debug_assert!(RunMeta::decode(&mut Reader::new(&body, "run footer")).is_ok_and(|again| again == self.meta));
        self.pages.write(placed, BlockKind::RunFooter, |block| meta::fill_footer(block, &body))
    }
}

/// The reference to an inner block whose first child is `first`.
fn parent_of(first: &Child, placed: Placed) -> Child {
    Child { position: placed.position, pages: placed.addr.pages, leaf: first.leaf }
}
