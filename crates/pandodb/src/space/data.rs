//! The data file: checked blocks in allocated pages.
//!
//! Steps of a block's life: [`DataFile::alloc`], fill the body, [`DataFile::seal_block`], [`DataFile::write`]; later
//! [`DataFile::read_block`]; in the end [`DataFile::free`] (or [`DataFile::give_back`] if nothing ever reached it).
//!
//! Block header, 16 bytes, little-endian, at the start of every block but the superblocks and large values:
//!
//! ```text
//!  0  crc32c u32 over: store id (16), owner u64, page u64, then the block from byte 4 to its end
//!  4  kind u8      5  zeros (3)      8  pages u32      12  zeros (4)
//! ```
//!
//! The pages are those that the block has on disk. A leaf that was compressed is longer in memory, and still says how long it
//! is here ([`stored_pages`]).
//!
//! Invariants: a page has at most one owner; a freed page is allocated again only after two further superblocks, except a page
//! that was allocated and freed within one replay of the log;
//! everything read is bounded by the file before it is believed.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;

use super::map::PageMap;
use super::superblock::{COMPRESSED_LEAVES, SLOTS, Superblock};
use crate::base::sync::{
    AtomicBool, AtomicU64, Counter, Mutex,
    Ordering::{Acquire, Relaxed, Release},
};
use crate::base::{
    BlobRef, BlockAddr, EXTENT_PAGES, Error, Extent, MAX_VALUE, OwnerId, PAGE, PageNo, Result, SeededBug, StoreId,
};
use crate::device::{AlignedBuf, Device, File, OpenHow, Read, Reads, write_all_at};

/// The name of the data file.
pub const DATA_FILE: &str = "data";
/// Bytes of the header of a block.
pub const BLOCK_HEADER: usize = 16;
/// The largest block, in pages: a value of the greatest size beside a key of the greatest size, with room to spare.
pub const MAX_BLOCK_PAGES: u32 = ((MAX_VALUE + (1 << 20)) / PAGE) as u32;
/// The file grows by at least this many extents (1 MiB).
const MIN_GROWTH: u64 = 8;

/// What a block holds. The numbers are persisted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum BlockKind {
    /// Entries of a run.
    RunLeaf = 1,
    /// Separators and children of a run.
    RunInner = 2,
    /// A page of a run's filter.
    RunFilter = 3,
    /// A run's range tombstones.
    RunTombstones = 4,
    /// A run's description of itself.
    RunFooter = 5,
    /// A node of an index's trunk.
    TrunkNode = 6,
    /// The catalogue of keyspaces.
    Catalog = 7,
    /// A large value; has no header, its checksum stands in the message that names it.
    Blob = 8,
    /// Entries of a run, compressed. Only where the superblock names [`COMPRESSED_LEAVES`].
    RunCompressedLeaf = 9,
    /// A node of an index's map of large values.
    LargeValueMap = 10,
    /// The table of levels of an index that has some. Kinds of index blocks have numbers from 16 on, eight for each type of index.
    LevelTable = 16,
}

impl BlockKind {
    /// The name used in errors and by the inspector.
    pub fn name(self) -> &'static str {
        match self {
            BlockKind::RunLeaf => "leaf block",
            BlockKind::RunInner => "inner block",
            BlockKind::RunFilter => "filter block",
            BlockKind::RunTombstones => "tombstone block",
            BlockKind::RunFooter => "run footer",
            BlockKind::TrunkNode => "trunk node",
            BlockKind::Catalog => "catalogue",
            BlockKind::Blob => "large value",
            BlockKind::RunCompressedLeaf => "compressed leaf block",
            BlockKind::LargeValueMap => "map of large values",
            BlockKind::LevelTable => "level table",
        }
    }

    /// Whether it describes which runs an index consists of.
    pub fn is_node(self) -> bool {
        matches!(self, BlockKind::TrunkNode | BlockKind::LevelTable)
    }

    /// Decodes a persisted kind.
    pub fn from_u8(byte: u8) -> Option<BlockKind> {
        use BlockKind::*;
        let kinds = [
            RunLeaf,
            RunInner,
            RunFilter,
            RunTombstones,
            RunFooter,
            TrunkNode,
            Catalog,
            Blob,
            RunCompressedLeaf,
            LargeValueMap,
            LevelTable,
        ];
        kinds.into_iter().find(|&kind| kind as u8 == byte)
    }
}

/// The pages that a block has on disk, by its header.
#[inline]
pub fn stored_pages(block: &[u8]) -> u32 {
    u32::from_le_bytes([block[8], block[9], block[10], block[11]])
}

/// The one data file of a store, with its allocation map. Shared by all layers above through an `Arc`.
#[derive(Debug)]
pub struct DataFile {
    file: Arc<dyn File>,
    store_id: StoreId,
    /// The length of the file in pages, for readers that must not wait for the map.
    pages: AtomicU64,
    state: Mutex<Space>,
    read_bytes: Counter,
    reads: Counter,
    written_bytes: Counter,
    /// Of these, bytes of [`Twin`](super::Twin)s: what roots are made of.
    pub(super) root_bytes: Counter,
    /// Bytes of twins that roots reach.
    pub(super) twin_bytes: Counter,
    /// A compressed leaf was written in this life of the store.
    compressed: AtomicBool,
    /// Large values were written since the last sync.
    blobs_unsynced: AtomicBool,
    /// Held during each sync, with the first one that failed. A failed sync may have marked pages clean that are not on
    /// the disk, and the system tells only one of those who sync at the same time: a later one would succeed and mean
    /// nothing. So syncs come one after another, and after a failure none succeeds.
    failed_sync: Mutex<Option<String>>,
    /// The pages of [`File::hole_unit`]: only units that are wholly free are punched.
    hole_pages: u32,
    /// Set while disk space is short: what is written takes free pages that still occupy space first.
    fills_gaps: AtomicBool,
}

/// What the map's lock guards.
#[derive(Debug, Default)]
struct Space {
    map: PageMap,
    /// Freed since the last checkpoint began.
    dropped: Vec<Extent>,
    /// Freed before the checkpoints that began since, oldest first; each waits for two superblocks after it.
    quarantine: VecDeque<Vec<Extent>>,
    quarantined_pages: u64,
    /// During a replay, what was taken when it began: the opened superblock and the log name nothing else.
    before_replay: Option<PageMap>,
    /// The file may belong to another opener.
    closed: bool,
}

/// Figures of the data file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SpaceStats {
    /// Bytes of the file's length.
    pub file_bytes: u64,
    /// Bytes in allocated pages, quarantined ones included.
    pub allocated_bytes: u64,
    /// Bytes that are freed but wait for superblocks.
    pub quarantined_bytes: u64,
    /// Bytes read since opening, and the number of reads.
    pub read_bytes: u64,
    /// Reads since opening.
    pub reads: u64,
    /// Bytes written since opening.
    pub written_bytes: u64,
    /// Of these, bytes of trunk nodes and catalogues.
    pub root_bytes: u64,
    /// Bytes that trunk nodes and catalogues take now, both copies, without those that were let go.
    pub twin_bytes: u64,
}

impl DataFile {
    /// Creates the data file of a new store under `name`, with the superblock slots taken. It is empty.
    pub fn create(device: &dyn Device, name: &str, store_id: StoreId) -> Result<Arc<DataFile>> {
        let how = OpenHow { write: true, create_new: true, direct: true, ..OpenHow::default() };
        let file = device.open(name, how).map_err(|e| Error::io("create", name, None, &e))?;
        Self::around(file, store_id, 0)
    }

    /// Opens the raw data file of an existing store, to read its superblocks.
    pub fn open_raw(device: &dyn Device, write: bool) -> Result<Arc<dyn File>> {
        let how = OpenHow { write, create_new: false, direct: true, ..OpenHow::default() };
        device.open(DATA_FILE, how).map_err(|e| Error::io("open", DATA_FILE, None, &e))
    }

    /// Wraps the data file of an existing store. The map is empty but for the superblocks: the caller marks what the
    /// roots reach before it allocates.
    pub fn open(file: Arc<dyn File>, store_id: StoreId) -> Result<Arc<DataFile>> {
        let len = file.len().map_err(|e| Error::io("stat", DATA_FILE, None, &e))?;
        Self::around(file, store_id, len)
    }

    fn around(file: Arc<dyn File>, store_id: StoreId, len: u64) -> Result<Arc<DataFile>> {
        let extent_bytes = u64::from(EXTENT_PAGES) * PAGE as u64;
        let mut state = Space::default();
        state.map.grow(len.div_ceil(extent_bytes).max(MIN_GROWTH));
        // A length that the file does not have yet costs nothing: writes extend it.
        for slot in SLOTS {
            assert!(state.map.take(Extent { start: slot, pages: 1 }));
        }
        let pages = state.map.extents() * u64::from(EXTENT_PAGES);
        let unit = file.hole_unit();
        let fits = unit.is_power_of_two() && (PAGE as u64..=extent_bytes).contains(&unit);
        assert!(fits, "holes of {unit} bytes");
        Ok(Arc::new(DataFile {
            hole_pages: (unit / PAGE as u64) as u32,
            file,
            store_id,
            pages: AtomicU64::new(pages),
            state: Mutex::new(state),
            read_bytes: Counter::new(0),
            reads: Counter::new(0),
            written_bytes: Counter::new(0),
            root_bytes: Counter::new(0),
            twin_bytes: Counter::new(0),
            compressed: AtomicBool::new(false),
            blobs_unsynced: AtomicBool::new(false),
            failed_sync: Mutex::new(None),
            fills_gaps: AtomicBool::new(false),
        }))
    }

    /// The store that the file belongs to.
    pub fn store_id(&self) -> StoreId {
        self.store_id
    }

    /// The file itself, for superblocks.
    pub fn file(&self) -> &dyn File {
        &*self.file
    }

    // ---- allocation ----

    /// Takes `pages` contiguous pages, aligned to an extent if they fill one. Grows the file where there is no gap.
    ///
    /// # Errors
    /// [`Error::DiskFull`] or [`Error::Io`] if the file cannot grow.
    pub fn alloc(&self, pages: u32) -> Result<Extent> {
        let mut state = self.state.lock();
        if let Some(extent) = state.map.alloc(pages) {
            return Ok(extent);
        }
        let missing =
            u64::from(pages.div_ceil(EXTENT_PAGES)) - state.map.free_tail().min(u64::from(pages / EXTENT_PAGES));
        self.grow(&mut state, missing)?;
        Ok(state.map.alloc(pages).expect("the file has grown by enough"))
    }

    /// Allocates `pages`, or between `least` and `pages` if gap filling is on ([`DataFile::fill_gaps`]) and a gap is found.
    ///
    /// # Errors
    /// As [`DataFile::alloc`].
    pub fn alloc_some(&self, least: u32, pages: u32) -> Result<Extent> {
        if self.fills_gaps.load(Relaxed)
            && let Some(gap) = self.state.lock().map.alloc_gap(least, pages)
        {
            return Ok(gap);
        }
        self.alloc(pages)
    }

    /// Turns gap filling on or off. A gap is a free page that was written and still occupies disk space, since other pages of its unit
    /// ([`File::hole_unit`]) are in use. Runs that fill gaps consist of many short extents, so it is for a disk that is full.
    pub fn fill_gaps(&self, fill: bool) {
        self.fills_gaps.store(fill && self.hole_pages > 1, Relaxed);
    }

    /// Bytes of all gaps.
    pub fn gap_bytes(&self) -> u64 {
        if self.hole_pages == 1 {
            return 0;
        }
        self.state.lock().map.gap_pages() * PAGE as u64
    }

    /// As [`DataFile::alloc`], at least an extent away from `other`; anywhere if the disk has no room for that.
    ///
    /// # Errors
    /// As [`DataFile::alloc`].
    pub fn alloc_apart(&self, pages: u32, other: Extent) -> Result<Extent> {
        let mut state = self.state.lock();
        if let Some(extent) = state.map.alloc_apart(pages, other) {
            return Ok(extent);
        }
        // At most one of the new extents is too near.
        match self.grow(&mut state, u64::from(pages.div_ceil(EXTENT_PAGES)) + 1) {
            Ok(()) => Ok(state.map.alloc_apart(pages, other).expect("the file has grown by enough")),
            Err(full @ Error::DiskFull { .. }) => state.map.alloc(pages).ok_or(full),
            Err(e) => Err(e),
        }
    }

    /// Lengthens the file by so many extents at least.
    fn grow(&self, state: &mut Space, missing: u64) -> Result<()> {
        let now = state.map.extents();
        self.set_extents(state, now + missing.max(MIN_GROWTH).max(now / 4))
    }

    /// Lets go of pages that something reached. They are used again when neither superblock can reach them.
    pub fn free(&self, extent: Extent) {
        let mut state = self.state.lock();
        debug_assert!(state.map.is_taken(extent), "{extent:?} is freed but not taken");
        if SeededBug::FreedAtOnce.is_on() {
            return state.map.release(extent);
        }
        if state.before_replay.as_ref().is_some_and(|before| before.is_free(extent)) {
            return state.map.release(extent);
        }
        state.quarantined_pages += u64::from(extent.pages);
        state.dropped.push(extent);
    }

    /// Lets go of pages that nothing durable ever reached, and that were not written: a tail that was not needed.
    pub fn give_back(&self, extent: Extent) {
        if extent.pages > 0 {
            let mut state = self.state.lock();
            state.map.release_unwritten(extent);
            if self.hole_pages > 1 {
                // Pages of the same unit that were freed before may now be punched.
                self.punch_around(&mut state, extent);
            }
        }
    }

    fn punch(&self, hole: &Range<PageNo>) -> std::io::Result<()> {
        self.file.punch_hole(hole.start.offset(), hole.end.offset() - hole.start.offset())
    }

    /// Punches out the units around these pages that are wholly free. If that fails they are reused all the same.
    fn punch_around(&self, state: &mut Space, extent: Extent) {
        if state.closed {
            return;
        }
        let holes: Vec<_> = joined(state.map.freed_by(extent, self.hole_pages)).collect();
        for hole in holes {
            if self.punch(&hole).is_ok() {
                state.map.punched(hole);
            }
        }
    }

    /// Gives the space of all free pages back to the file system: after an opening, pages that nothing reaches may still occupy
    /// some.
    pub fn punch_free(&self) {
        // Under the lock: nobody may allocate and write such a page in between.
        let mut state = self.state.lock();
        if state.closed {
            return;
        }
        let page = |extent: u64| PageNo(extent * u64::from(EXTENT_PAGES));
        let holes: Vec<_> = state.map.free_extents().map(|(start, count)| page(start)..page(start + count)).collect();
        for hole in holes {
            if self.punch(&hole).is_err() {
                return;
            }
            state.map.punched(hole);
        }
    }

    /// As [`DataFile::give_back`], for a build that was given up, whose pages were written: their space goes back to the file system. If it does not, the pages
    /// are reused all the same.
    ///
    /// The file is left alone once the store is closed: handles that outlive it drop unfinished runs, and another opener may have
    /// used their pages. Hence the punch is made under the lock that [`DataFile::close`] takes.
    pub fn discard(&self, extent: Extent) {
        if extent.pages > 0 {
            let mut state = self.state.lock();
            state.map.release(extent);
            self.punch_around(&mut state, extent);
        }
    }

    /// The store is closed, and its lock is about to be released: from now on nothing is punched out of the file.
    pub fn close(&self) {
        self.state.lock().closed = true;
    }

    /// Marks what a root reaches, on opening.
    ///
    /// # Errors
    /// [`Error::Corruption`] if the pages are beyond the file or belong to something else already.
    pub fn mark(&self, extent: Extent) -> Result<()> {
        // The map grows to what is reached, not to the length that a sparse file claims.
        let mut state = self.state.lock();
        if extent.end() <= self.pages.load(Relaxed) {
            state.map.grow(extent.end().div_ceil(EXTENT_PAGES.into()));
        }
        let taken = state.map.take(extent);
        drop(state);
        if taken {
            return Ok(());
        }
        Err(self.corrupt(
            BlockAddr { page: extent.start, pages: extent.pages },
            "allocation",
            format!("{} pages are beyond the file or claimed twice", extent.pages),
        ))
    }

    /// A replay begins: what the opened superblock and the log name is marked as taken. Until [`DataFile::end_replay`], a page that is
    /// allocated and freed is used again at once, since nothing durable names it: else the replay of a long log would need several times
    /// its length of disk.
    pub fn begin_replay(&self) {
        let mut state = self.state.lock();
        state.before_replay = Some(state.map.clone());
    }

    /// The replay is over. From now on the log may name what is freed.
    pub fn end_replay(&self) {
        self.state.lock().before_replay = None;
    }

    /// A checkpoint begins: what was freed until now is out of reach of the superblock that it will write.
    pub fn begin_checkpoint(&self) {
        let mut state = self.state.lock();
        let dropped = std::mem::take(&mut state.dropped);
        state.quarantine.push_back(dropped);
    }

    /// The checkpoint that began last was given up before it wrote its superblock.
    pub fn abandon_checkpoint(&self) {
        let mut state = self.state.lock();
        let mut dropped = state.quarantine.pop_back().expect("a checkpoint has begun");
        state.dropped.append(&mut dropped);
    }

    /// The superblock of the checkpoint that began last is durable: frees what both slots have left behind, punches it
    /// out of the file and cuts off a long free tail.
    pub fn finish_checkpoint(&self) -> Result<()> {
        let mut released = Vec::new();
        let (pages, holes);
        {
            let mut state = self.state.lock();
            while state.quarantine.len() > usize::from(!SeededBug::FreedOneSuperblockEarly.is_on()) {
                released.append(&mut state.quarantine.pop_front().expect("not empty"));
            }
            pages = released.iter().map(|extent| u64::from(extent.pages)).sum::<u64>();
            holes = state.map.take_rest(&mut released, self.hole_pages);
        }
        // Punched while they still count as taken: afterwards they might be allocated and written in between.
        let mut punched = Vec::new();
        for hole in joined(holes.into_iter()) {
            let from = hole.start.offset();
            match self.punch(&hole).map_err(|e| Error::io("punch", DATA_FILE, Some(from), &e)) {
                // A hole can take space itself, where it splits an extent of the file system: the pages are reused unpunched.
                Err(Error::DiskFull { .. }) => {}
                result => result.map(|()| punched.push(hole))?,
            }
        }
        let mut state = self.state.lock();
        for &extent in &released {
            state.map.release(extent);
        }
        punched.into_iter().for_each(|hole| state.map.punched(hole));
        state.quarantined_pages -= pages;
        let tail = state.map.free_tail();
        let extents = state.map.extents();
        // A tail shorter than the growth step would only be asked for again.
        if tail > MIN_GROWTH && tail > extents / 4 {
            let keep = extents - tail + MIN_GROWTH;
            self.set_extents(&mut state, keep)?;
        }
        Ok(())
    }

    /// Sets the length of the file and of the map.
    fn set_extents(&self, state: &mut Space, extents: u64) -> Result<()> {
        let pages = extents * u64::from(EXTENT_PAGES);
        let bytes = PageNo(pages).offset();
        self.file.set_len(bytes).map_err(|e| Error::io("resize", DATA_FILE, Some(bytes), &e))?;
        let now = state.map.extents();
        state.map.shrink(now.saturating_sub(extents));
        state.map.grow(extents);
        self.pages.store(pages, Relaxed);
        Ok(())
    }

    /// Whether every page of `extent` counts as taken.
    pub fn is_taken(&self, extent: Extent) -> bool {
        self.state.lock().map.is_taken(extent)
    }

    /// Whether freed pages wait for superblocks.
    pub fn has_quarantine(&self) -> bool {
        self.state.lock().quarantined_pages > 0
    }

    /// Figures.
    pub fn stats(&self) -> SpaceStats {
        let state = self.state.lock();
        SpaceStats {
            file_bytes: state.map.extents() * u64::from(EXTENT_PAGES) * PAGE as u64,
            allocated_bytes: state.map.taken_pages() * PAGE as u64,
            quarantined_bytes: state.quarantined_pages * PAGE as u64,
            read_bytes: self.read_bytes.load(Relaxed),
            reads: self.reads.load(Relaxed),
            written_bytes: self.written_bytes.load(Relaxed),
            root_bytes: self.root_bytes.load(Relaxed),
            twin_bytes: self.twin_bytes.load(Relaxed),
        }
    }

    /// Bytes that the file occupies on the device.
    pub fn occupied(&self) -> Result<u64> {
        self.file.occupied().map_err(|e| Error::io("stat", DATA_FILE, None, &e))
    }

    // ---- blocks ----

    /// Writes the whole buffer from `page` on and hands it back for reuse. Not durable before [`DataFile::sync`].
    pub fn write(&self, page: PageNo, buf: AlignedBuf) -> Result<AlignedBuf> {
        self.written_bytes.fetch_add(buf.len() as u64, Relaxed);
        let written = write_all_at(&*self.file, page.offset(), &buf);
        written.map(|()| buf).map_err(|e| Error::io("write", DATA_FILE, Some(page.offset()), &e))
    }

    /// Reads raw pages; the length is bounded before anything is allocated for it.
    pub fn read(&self, addr: BlockAddr) -> Result<AlignedBuf> {
        self.read_into(addr, AlignedBuf::default())
    }

    /// The same, into `spare` if that is as long.
    pub fn read_into(&self, addr: BlockAddr, spare: AlignedBuf) -> Result<AlignedBuf> {
        let buf = self.begin_read(addr, spare)?;
        let mut reads = self.reads();
        reads.submit(Read { tag: 0, offset: addr.page.offset(), buf });
        let (_, read) = reads.complete().expect("what was submitted completes");
        self.end_read(addr, read)
    }

    /// For reads beside each other: each begins with [`DataFile::begin_read`] and ends with [`DataFile::end_read`].
    pub fn reads(&self) -> Reads {
        Reads::new(Arc::clone(&self.file))
    }

    /// The buffer for a read of raw pages, which is `spare` if that is as long; the length is bounded before anything is
    /// allocated for it.
    pub fn begin_read(&self, addr: BlockAddr, spare: AlignedBuf) -> Result<AlignedBuf> {
        let pages = self.pages.load(Relaxed);
        if addr.pages == 0 || addr.pages > MAX_BLOCK_PAGES || addr.page.0.saturating_add(addr.pages.into()) > pages {
            return Err(self.corrupt(addr, "block address", format!("{} pages lie outside the file", addr.pages)));
        }
        self.reads.fetch_add(1, Relaxed);
        self.read_bytes.fetch_add(addr.bytes() as u64, Relaxed);
        let pages = addr.pages as usize;
        Ok(if spare.pages() == pages { spare } else { AlignedBuf::to_read(pages) })
    }

    /// What came of a read of raw pages.
    pub fn end_read(&self, addr: BlockAddr, read: std::io::Result<AlignedBuf>) -> Result<AlignedBuf> {
        read.map_err(|e| match e.kind() {
            std::io::ErrorKind::UnexpectedEof => self.corrupt(addr, "block", "the file ends inside it"),
            _ => Error::io("read", DATA_FILE, Some(addr.page.offset()), &e),
        })
    }

    /// Reads a block and checks that it is the one that was written there.
    pub fn read_block(&self, addr: BlockAddr, owner: OwnerId, kind: BlockKind) -> Result<AlignedBuf> {
        let buf = self.read(addr)?;
        self.check_block(&buf, addr, owner, kind)?;
        Ok(buf)
    }

    /// Checks the header of a block that was read from `addr`.
    pub fn check_block(&self, bytes: &[u8], addr: BlockAddr, owner: OwnerId, kind: BlockKind) -> Result<()> {
        assert_eq!(bytes.len(), addr.bytes(), "a block is checked whole");
        let stored = u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]);
        if self.block_crc(bytes, addr.page, owner) != stored {
            return Err(self.corrupt(addr, kind.name(), "checksum mismatch"));
        }
        let pages = stored_pages(bytes);
        if bytes[4] != kind as u8 || pages != addr.pages {
            return Err(self.corrupt(addr, kind.name(), format!("found kind {} of {pages} pages", bytes[4])));
        }
        Ok(())
    }

    /// What the header of an unchecked block claims: its kind, if there is such a kind, and its pages.
    pub fn claimed(&self, bytes: &[u8]) -> (Option<BlockKind>, u32) {
        (BlockKind::from_u8(bytes[4]), stored_pages(bytes))
    }

    /// Fills in the header of a block whose body stands from byte 16 on.
    pub fn seal_block(&self, bytes: &mut [u8], addr: BlockAddr, owner: OwnerId, kind: BlockKind) {
        assert_eq!(bytes.len(), addr.bytes(), "a block is sealed whole");
        if kind == BlockKind::RunCompressedLeaf {
            self.compressed.store(true, Relaxed);
        }
        bytes[..BLOCK_HEADER].fill(0);
        bytes[4] = kind as u8;
        bytes[8..12].copy_from_slice(&addr.pages.to_le_bytes());
        let crc = self.block_crc(bytes, addr.page, owner);
        bytes[..4].copy_from_slice(&crc.to_le_bytes());
    }

    fn block_crc(&self, bytes: &[u8], page: PageNo, owner: OwnerId) -> u32 {
        let mut place = [0u8; 32];
        place[..16].copy_from_slice(&self.store_id.0);
        if !SeededBug::ChecksumWithoutOwner.is_on() {
            place[16..24].copy_from_slice(&owner.0.to_le_bytes());
        }
        if !SeededBug::ChecksumWithoutPlace.is_on() {
            place[24..].copy_from_slice(&page.0.to_le_bytes());
        }
        crc32c::crc32c_append(crc32c::crc32c(&place), &bytes[4..])
    }

    /// The incompatible features that blocks written since opening use. A superblock that reaches such a block names them.
    pub fn features(&self) -> u64 {
        if self.compressed.load(Relaxed) { COMPRESSED_LEAVES } else { 0 }
    }

    /// A corruption error that names this file and the block's offset.
    pub fn corrupt(&self, addr: BlockAddr, what: &'static str, detail: impl Into<String>) -> Error {
        Error::corruption(what, 0, detail).in_file(DATA_FILE, addr.page.offset())
    }

    /// Makes large values durable, if some were written since the last time.
    ///
    /// # Errors
    /// As [`DataFile::sync`].
    pub fn sync_large_values(&self) -> Result<()> {
        let mut failed = self.failed_sync.lock();
        // Whoever waited here finds the flag down and its own value durable, or lost with the sync that failed.
        let unsynced = self.blobs_unsynced.swap(false, Acquire);
        if unsynced || failed.is_some() { self.sync_after(&mut failed) } else { Ok(()) }
    }

    /// Makes everything written durable. A failure is final: the caller poisons the store. So is a full disk here, which a
    /// thin-provisioned one may find out this late: what was promised is not kept.
    ///
    /// # Errors
    /// [`Error::Io`] if the device fails, [`Error::Poisoned`] if it ever did.
    pub fn sync(&self) -> Result<()> {
        self.sync_after(&mut self.failed_sync.lock())
    }

    fn sync_after(&self, failed: &mut Option<String>) -> Result<()> {
        if let Some(first) = failed {
            return Err(Error::Poisoned { first: first.clone() });
        }
        let done = self.file.sync().map_err(|e| Error::final_io("sync", DATA_FILE, None, &e));
        done.inspect_err(|e| *failed = Some(e.to_string()))
    }

    /// Writes a superblock to the slot that its generation says, and syncs.
    ///
    /// # Errors
    /// As [`DataFile::sync`]; whether the superblock reached the disk is not known then.
    pub fn write_superblock(&self, superblock: &Superblock) -> Result<()> {
        let at = superblock.slot().offset();
        write_all_at(&*self.file, at, &superblock.encode()).map_err(|e| Error::io("write", DATA_FILE, Some(at), &e))?;
        self.sync()
    }

    // ---- large values ----

    /// Writes a large value into an extent of its own. Not durable before [`DataFile::sync`].
    pub fn write_blob(&self, value: &[u8]) -> Result<BlobRef> {
        assert!(!value.is_empty() && value.len() <= MAX_VALUE, "large values have 1 byte to 64 MiB");
        let extent = self.alloc(value.len().div_ceil(PAGE) as u32)?;
        match self.write(extent.start, AlignedBuf::from_bytes(value)) {
            Ok(_) => {
                self.blobs_unsynced.store(true, Release);
                Ok(BlobRef { page: extent.start, len: value.len() as u64, crc: crc32c::crc32c(value) })
            }
            Err(e) => {
                self.discard(extent);
                Err(e)
            }
        }
    }

    /// Reads a large value; the first `blob.len` bytes of the buffer are the value.
    pub fn read_blob(&self, blob: &BlobRef) -> Result<AlignedBuf> {
        let buf = self.read(blob.addr())?;
        if crc32c::crc32c(&buf[..blob.len as usize]) != blob.crc && !SeededBug::LargeValueUnchecked.is_on() {
            return Err(self.corrupt(blob.addr(), BlockKind::Blob.name(), "checksum mismatch"));
        }
        Ok(buf)
    }
}

/// Joins extents, which ascend, where they touch.
fn joined(extents: impl Iterator<Item = Extent>) -> impl Iterator<Item = Range<PageNo>> {
    let mut extents = extents.peekable();
    std::iter::from_fn(move || {
        let first = extents.next()?;
        let mut end = first.end();
        while let Some(next) = extents.next_if(|next| next.start.0 == end) {
            end = next.end();
        }
        Some(first.start..PageNo(end))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::sim::{Fault, FaultKind, SimDevice};

    /// It was told as "free space or delete, then retry", though no sync succeeds any more.
    #[test]
    fn a_sync_for_which_there_is_no_space_is_final() {
        let sim = SimDevice::new(3);
        let data = DataFile::create(&*sim, DATA_FILE, StoreId::default()).unwrap();
        data.write_blob(&[7; 5000]).unwrap();
        sim.set_fault(Some(Fault::once(FaultKind::FullSync, 0)));
        let error = data.sync().unwrap_err();
        assert!(matches!(error, Error::Io { op: "sync", kind: std::io::ErrorKind::StorageFull, .. }), "{error}");
        assert!(error.to_string().contains("then reopen the store"), "{error}");
        assert!(matches!(data.sync(), Err(Error::Poisoned { .. })));
    }

    /// On btrfs a hole in a part of what one call has written gives nothing back, and what is written there takes new space.
    #[test]
    fn what_is_free_of_a_unit_in_use_is_left_to_be_written_over() {
        let sim = SimDevice::new(1);
        sim.set_hole_unit(8 * PAGE as u64);
        let data = DataFile::create(&*sim, DATA_FILE, StoreId::default()).unwrap();
        let write = |pages: u32| {
            let extent = data.alloc(pages).unwrap();
            data.write(extent.start, AlignedBuf::zeroed(pages as usize)).unwrap();
            extent
        };
        let checkpoints = || {
            for _ in 0..2 {
                data.begin_checkpoint();
                data.finish_checkpoint().unwrap();
            }
        };
        let whole = write(EXTENT_PAGES);
        let page = |at: u64| Extent { start: PageNo(whole.start.0 + at), pages: 1 };
        assert_eq!(sim.occupied(), whole.bytes());
        // Every second page of the first two units.
        (0..8).for_each(|i| data.free(page(2 * i)));
        checkpoints();
        assert_eq!(sim.occupied(), whole.bytes(), "nothing was punched");
        let again: Vec<Extent> = (0..8).map(|_| data.alloc(1).unwrap()).collect();
        assert!(
            again.iter().all(|extent| extent.end() <= whole.start.0 + 16 || extent.start < whole.start),
            "{again:?}"
        );
        again.iter().filter(|extent| extent.start >= whole.start).for_each(|extent| {
            data.write(extent.start, AlignedBuf::zeroed(1)).unwrap();
        });
        assert_eq!(sim.occupied(), whole.bytes(), "in their old place");
        again.into_iter().for_each(|extent| data.free(extent));
        (0..8).for_each(|i| data.free(page(2 * i + 1)));
        checkpoints();
        assert_eq!(sim.occupied(), whole.bytes() / 2, "two units went as a whole");
        // Given up: the rest of the unit waits for the last page.
        data.discard(Extent { start: PageNo(whole.start.0 + 16), pages: 12 });
        assert_eq!(sim.occupied(), whole.bytes() / 4);
        data.discard(Extent { start: PageNo(whole.start.0 + 28), pages: 4 });
        assert_eq!(sim.occupied(), 0);
    }

    /// Found by the explorer (`sync-large`, `pct:7001031:250`): a checkpoint's sync fails and takes the pages of a large value
    /// with it; the commit of that value syncs next, which succeeds and means nothing.
    #[test]
    fn after_a_failed_sync_none_succeeds() {
        let sim = SimDevice::new(1);
        let data = DataFile::create(&*sim, DATA_FILE, StoreId::default()).unwrap();
        let blob = data.write_blob(&[7; 5000]).unwrap();
        sim.set_fault(Some(Fault::once(FaultKind::FailedSync, 0)));
        assert!(matches!(data.sync(), Err(Error::Io { .. })));
        assert!(matches!(data.sync_large_values(), Err(Error::Poisoned { .. })));
        assert!(matches!(data.sync_large_values(), Err(Error::Poisoned { .. })), "also with the flag down");
        assert!(matches!(data.sync(), Err(Error::Poisoned { .. })));
        assert_eq!(data.read_blob(&blob).unwrap()[..5000], [7; 5000], "reads go on");
    }
}
