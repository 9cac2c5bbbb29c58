//! [`DataFile`]: checked blocks in allocated pages of the data file.
//!
//! Steps for a block: allocate its pages ([`DataFile::alloc`]), fill in its body, seal it ([`DataFile::seal_block`])
//! and write it ([`DataFile::write`]); later read it ([`DataFile::read_block`]); in the end free its pages
//! ([`DataFile::free`], or [`DataFile::give_back`] if no root ever referred to the block).
//!
//! Block header, 16 bytes, little-endian, at the start of every block except superblocks and large values:
//!
//! ```text
//!  0  crc32c u32 over: store id (16), owner u64, page u64, then the block from byte 4 to its end
//!  4  kind u8      5  zeros (3)      8  pages u32      12  zeros (4)
//! ```
//!
//! The header states the number of pages on disk. In memory a compressed leaf has more pages ([`stored_pages`]).
//!
//! Invariants: a page has at most one owner; a freed page is allocated again only after two further superblocks are
//! durable, unless it was allocated and freed within one replay of the log; the address of a block is checked against
//! the length of the file before memory is allocated for the block.
//!
//! Locks: the map has the lock `state`, and syncs have the lock `failed_sync`. No thread takes one of them while it
//! holds the other. Sources: `000 §5.1.1` for the growth of the file; [decision
//! 0004](../../../../docs/decisions/0004-quarantine.md) for the reuse of pages.

use std::collections::VecDeque;
use std::sync::Arc;

use super::kind::{BLOCK_HEADER, BlockKind, MAX_BLOCK_PAGES};
use super::map::PageMap;
use super::superblock::{SLOTS, Superblock};
use crate::base::sync::{
    AtomicBool, AtomicU64, Counter, Mutex,
    Ordering::{Acquire, Relaxed},
    is_unwinding,
};
use crate::base::{BlockAddr, EXTENT_PAGES, Error, Extent, OwnerId, PAGE, PageNo, Result, SeededBug, StoreId, seeded};
use crate::device::{AlignedBuf, Device, File, OpenHow, Read, Reads, write_all_at};

/// The name of the data file.
pub const DATA_FILE: &str = "data";
/// The file grows by at least this many extents (1 MiB).
const MIN_GROWTH: u64 = 8;
const _: () = assert!(SLOTS[1].0 < MIN_GROWTH * EXTENT_PAGES as u64, "a new file has both superblock slots");

/// The number of pages on disk, from the block's header.
#[inline]
pub fn stored_pages(block: &[u8]) -> u32 {
    u32::from_le_bytes([block[8], block[9], block[10], block[11]])
}

/// The data file of a store, with its allocation map. All higher layers share it through an `Arc`.
#[derive(Debug)]
pub struct DataFile {
    pub(super) file: Arc<dyn File>,
    store_id: StoreId,
    /// The length of the file in pages, for readers: a reader must not wait for the lock of the map.
    pages: AtomicU64,
    pub(super) state: Mutex<Space>,
    read_bytes: Counter,
    reads: Counter,
    written_bytes: Counter,
    /// The part of `written_bytes` that belongs to [`MirroredBlock`](super::MirroredBlock)s, of which roots consist.
    pub(super) root_bytes: Counter,
    /// The number of bytes of the mirrored blocks that roots reach now, counting both copies.
    pub(super) mirrored_bytes: Counter,
    /// The incompatible features of the blocks that were written since the store was opened.
    features: AtomicU64,
    /// Whether large values were written since the last sync.
    pub(super) blobs_unsynced: AtomicBool,
    /// The lock is held during each sync. The value is the error of the first sync that failed. A failed sync may mark
    /// pages clean that are not on the disk, and the system reports the error to only one of several concurrent syncs.
    /// A later sync would then succeed without having written these pages. So syncs are serialized, and after a failed
    /// sync no sync succeeds.
    failed_sync: Mutex<Option<String>>,
    /// The number of pages in a unit ([`File::hole_unit`]). Only units that are wholly free are punched.
    pub(super) hole_pages: u32,
    /// Set while disk space is short: allocations then prefer free pages that still occupy disk space.
    pub(super) fills_gaps: AtomicBool,
}

/// The fields that the lock of the map guards.
#[derive(Debug, Default)]
pub(super) struct Space {
    pub(super) map: PageMap,
    /// Extents that were freed since the last checkpoint began.
    dropped: Vec<Extent>,
    /// One list for each of the last checkpoints, oldest first: the extents that were freed before this checkpoint
    /// began and after the previous one began. Each list waits for two superblocks.
    quarantine: VecDeque<Vec<Extent>>,
    quarantined_pages: u64,
    /// During a replay, a copy of the map from the beginning of the replay. Neither the opened superblock nor the log
    /// reaches the pages that are free in this copy.
    before_replay: Option<PageMap>,
    /// Set when the store is closed. The file may then be in use by another opener.
    pub(super) closed: bool,
    /// Set while a store is being opened, until all pages that its roots reach are marked. Unmarked pages may be in
    /// use, so no page is allocated. The indexes of a failed opening free no pages.
    marking: bool,
}

impl Space {
    /// The number of freed pages that wait for superblocks, computed from the lists.
    fn waiting_pages(&self) -> u64 {
        self.quarantine.iter().flatten().chain(&self.dropped).map(|extent| u64::from(extent.pages)).sum()
    }

    /// In a debug build, checks the counters of the map, and checks that quarantined pages count as used.
    fn check(&self) {
        if cfg!(debug_assertions) {
            self.map.check();
        }
        debug_assert!(self.waiting_pages() <= self.quarantined_pages, "each waiting page is counted");
        debug_assert!(self.quarantined_pages <= self.map.taken_pages(), "quarantined pages count as used");
    }
}

/// Statistics of the data file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SpaceStats {
    /// The length of the file in bytes.
    pub file_bytes: u64,
    /// Bytes in allocated pages, including quarantined pages.
    pub allocated_bytes: u64,
    /// Bytes in pages that were freed and wait for superblocks.
    pub quarantined_bytes: u64,
    /// Bytes read since the store was opened.
    pub read_bytes: u64,
    /// The number of reads since the store was opened.
    pub reads: u64,
    /// Bytes written since the store was opened.
    pub written_bytes: u64,
    /// The part of `written_bytes` that belongs to trunk nodes and catalogues.
    pub root_bytes: u64,
    /// Bytes that the trunk nodes and catalogues in use occupy now, counting both copies.
    pub mirrored_bytes: u64,
}

impl DataFile {
    /// Creates the empty data file of a new store under `name`. The superblock slots are marked as used.
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

    /// Wraps the data file of an existing store. Before allocating pages, the caller must mark all pages that roots
    /// reach and call [`DataFile::end_marking`].
    pub fn open(file: Arc<dyn File>, store_id: StoreId) -> Result<Arc<DataFile>> {
        let len = file.len().map_err(|e| Error::io("stat", DATA_FILE, None, &e))?;
        let data = Self::around(file, store_id, len)?;
        data.state.lock().marking = true;
        Ok(data)
    }

    /// Ends marking: the caller has marked all pages that roots reach. From now on pages may be allocated and freed.
    pub fn end_marking(&self) {
        let was_marking = std::mem::take(&mut self.state.lock().marking);
        assert!(was_marking, "the marks are complete once");
    }

    fn around(file: Arc<dyn File>, store_id: StoreId, len: u64) -> Result<Arc<DataFile>> {
        let extent_bytes = u64::from(EXTENT_PAGES) * PAGE as u64;
        let mut state = Space::default();
        state.map.grow(len.div_ceil(extent_bytes).max(MIN_GROWTH));
        // If the map is longer than the file, that is correct: writes extend the file.
        for slot in SLOTS {
            assert!(state.map.take(Extent { start: slot, pages: 1 }));
        }
        let pages = state.map.extents() * u64::from(EXTENT_PAGES);
        let unit = file.hole_unit();
        let fits = unit.is_power_of_two() && (PAGE as u64..=extent_bytes).contains(&unit);
        assert!(fits, "holes of {unit} bytes");
        Ok(Arc::new(DataFile {
            hole_pages: u32::try_from(unit / PAGE as u64).expect("a unit is at most an extent"),
            file,
            store_id,
            pages: AtomicU64::new(pages),
            state: Mutex::new(state),
            read_bytes: Counter::new(0),
            reads: Counter::new(0),
            written_bytes: Counter::new(0),
            root_bytes: Counter::new(0),
            mirrored_bytes: Counter::new(0),
            features: AtomicU64::new(0),
            blobs_unsynced: AtomicBool::new(false),
            failed_sync: Mutex::new(None),
            fills_gaps: AtomicBool::new(false),
        }))
    }

    /// The identity of the store that the file belongs to.
    pub fn store_id(&self) -> StoreId {
        self.store_id
    }

    /// The file itself, for superblocks.
    pub fn file(&self) -> &dyn File {
        &*self.file
    }

    // ---- allocation ----

    /// Allocates `pages` contiguous pages. They begin at an extent boundary if they fill at least one extent. Grows the
    /// file if no free pages fit.
    ///
    /// # Errors
    /// [`Error::DiskFull`] or [`Error::Io`] if the file cannot grow.
    pub fn alloc(&self, pages: u32) -> Result<Extent> {
        let mut state = self.state.lock();
        assert!(!state.marking, "all pages in use are marked before the first allocation");
        if let Some(extent) = state.map.alloc(pages) {
            return Ok(extent);
        }
        let missing =
            u64::from(pages.div_ceil(EXTENT_PAGES)) - state.map.free_tail().min(u64::from(pages / EXTENT_PAGES));
        self.grow(&mut state, missing)?;
        Ok(state.map.alloc(pages).expect("the file has grown by enough"))
    }

    /// If gap filling is on ([`DataFile::fill_gaps`]) and a gap of at least `least` pages is found, allocates up to
    /// `pages` pages of this gap. Otherwise allocates `pages` pages.
    ///
    /// # Errors
    /// As [`DataFile::alloc`].
    pub fn alloc_some(&self, least: u32, pages: u32) -> Result<Extent> {
        assert!(0 < least && least <= pages, "{least} to {pages} pages");
        if self.fills_gaps.load(Relaxed)
            && let Some(gap) = self.state.lock().map.alloc_gap(least, pages)
        {
            return Ok(gap);
        }
        self.alloc(pages)
    }

    /// Like [`DataFile::alloc`], for pages at a distance of at least one extent from `other`. If the disk is too full
    /// for that distance, the pages may be anywhere.
    ///
    /// # Errors
    /// As [`DataFile::alloc`].
    pub fn alloc_apart(&self, pages: u32, other: Extent) -> Result<Extent> {
        let mut state = self.state.lock();
        assert!(!state.marking, "all pages in use are marked before the first allocation");
        if let Some(extent) = state.map.alloc_apart(pages, other) {
            return Ok(extent);
        }
        // At most one of the new extents is too close to `other`.
        match self.grow(&mut state, u64::from(pages.div_ceil(EXTENT_PAGES)) + 1) {
            Ok(()) => Ok(state.map.alloc_apart(pages, other).expect("the file has grown by enough")),
            Err(full @ Error::DiskFull { .. }) => state.map.alloc(pages).ok_or(full),
            Err(e) => Err(e),
        }
    }

    /// Extends the file by at least `missing` extents.
    /// REQUIRES: the caller holds the lock of `state`.
    fn grow(&self, state: &mut Space, missing: u64) -> Result<()> {
        let now = state.map.extents();
        self.set_extents(state, now + missing.max(MIN_GROWTH).max(now / 4))
    }

    /// Frees pages that a root may reach. The pages are reused when neither superblock can reach them.
    pub fn free(&self, extent: Extent) {
        let mut state = self.state.lock();
        if state.marking {
            return;
        }
        debug_assert!(state.map.is_taken(extent) || is_unwinding(), "{extent:?} is freed but not taken");
        let is_unreached = state.before_replay.as_ref().is_some_and(|before| before.is_free(extent));
        if is_unreached || SeededBug::FreedAtOnce.is_on() {
            return state.map.release(extent);
        }
        state.quarantined_pages += u64::from(extent.pages);
        state.dropped.push(extent);
        debug_assert!(
            state.quarantined_pages <= state.map.taken_pages() || is_unwinding(),
            "quarantined pages count as used"
        );
    }

    /// Frees the unused rest of an allocation: pages that were never written and that no root reaches.
    pub fn give_back(&self, extent: Extent) {
        if extent.pages > 0 {
            let mut state = self.state.lock();
            state.map.release_unwritten(extent);
            if self.hole_pages > 1 {
                // Pages of the same unit that were freed earlier may be punched now.
                self.punch_around(&mut state, extent);
            }
        }
    }

    /// Frees written pages to which no root refers, because their run was abandoned. In contrast to
    /// [`DataFile::give_back`], also punches the units of these pages that are wholly free. If punching fails, the
    /// pages are still reused.
    ///
    /// Does not touch the file after the store was closed. The reason is that handles that still exist after the close
    /// may drop unfinished runs, and another opener may already use the pages of these runs. So pages are punched under
    /// the lock that [`DataFile::close`] takes.
    pub fn discard(&self, extent: Extent) {
        if extent.pages > 0 {
            let mut state = self.state.lock();
            state.map.release(extent);
            self.punch_around(&mut state, extent);
        }
    }

    /// Called when the store is closed, before the store's lock is released. From now on no hole is punched.
    pub fn close(&self) {
        self.state.lock().closed = true;
    }

    /// Marks pages that a root reaches as used. Called while a store is opened.
    ///
    /// # Errors
    /// [`Error::Corruption`] if the pages are beyond the file or are marked already.
    pub fn mark(&self, extent: Extent) -> Result<()> {
        // The map grows to the highest page that a root reaches, not to the length of the file, which may be sparse.
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

    /// Begins a replay of the log. The caller has marked all pages to which the opened superblock and the log refer.
    /// From now until [`DataFile::end_replay`], a page that the replay allocates and then frees is reusable at once,
    /// because nothing durable refers to it. Otherwise the replay of a long log would need several times as much disk
    /// space as the log.
    /// REQUIRES: no checkpoint has begun, and no other replay is running.
    pub fn begin_replay(&self) {
        let mut state = self.state.lock();
        assert!(state.before_replay.is_none(), "a store is replayed once");
        assert!(state.quarantine.is_empty(), "no checkpoint begins before the replay");
        state.before_replay = Some(state.map.clone());
    }

    /// Ends the replay. From now on, the log may refer to the large values in pages that are freed.
    pub fn end_replay(&self) {
        self.state.lock().before_replay = None;
    }

    /// Begins a checkpoint. The superblock of this checkpoint will not reach any page that was freed before this call.
    pub fn begin_checkpoint(&self) {
        let mut state = self.state.lock();
        let dropped = std::mem::take(&mut state.dropped);
        state.quarantine.push_back(dropped);
        state.check();
    }

    /// Abandons the most recently begun checkpoint, before that checkpoint wrote its superblock.
    /// REQUIRES: [`DataFile::begin_checkpoint`] was called, and one thread at a time runs a checkpoint.
    pub fn abandon_checkpoint(&self) {
        let mut state = self.state.lock();
        let mut dropped = state.quarantine.pop_back().expect("a checkpoint has begun");
        state.dropped.append(&mut dropped);
        state.check();
    }

    /// Ends a checkpoint whose superblock is durable. Pages that the superblocks of both slots no longer reach become
    /// free, and a long free tail of the file is cut off.
    ///
    /// Wholly free extents are punched. On a file system that can punch single pages, free pages between used ones are
    /// punched only when there are many of them: punching a page takes about as long as writing it, and other writers of
    /// the file wait meanwhile. Most of these pages need no punch of their own, because the rest of their extent becomes
    /// free soon.
    /// REQUIRES: [`DataFile::begin_checkpoint`] was called, and one thread at a time runs a checkpoint.
    pub fn finish_checkpoint(&self) -> Result<()> {
        let holes = {
            let mut state = self.state.lock();
            let mut released = Vec::new();
            while state.quarantine.len() > usize::from(!SeededBug::FreedOneSuperblockEarly.is_on()) {
                released.append(&mut state.quarantine.pop_front().expect("not empty"));
            }
            state.quarantined_pages -= released.iter().map(|extent| u64::from(extent.pages)).sum::<u64>();
            debug_assert_eq!(state.waiting_pages(), state.quarantined_pages, "the counter agrees with the lists");
            self.release_some(&mut state.map, released)
        };
        let punched = self.punch_all(holes.clone())?;
        let mut state = self.state.lock();
        holes.iter().for_each(|hole| state.map.release(*hole));
        punched.into_iter().for_each(|hole| state.map.punched(hole));
        state.check();
        let tail = state.map.free_tail();
        let extents = state.map.extents();
        // A tail that is not longer than the growth step would soon be allocated again.
        if tail > MIN_GROWTH && tail > extents / 4 {
            let keep = extents - tail + MIN_GROWTH;
            self.set_extents(&mut state, keep)?;
        }
        Ok(())
    }

    /// Sets the length of the file and of the map.
    /// REQUIRES: the caller holds the lock of `state`.
    fn set_extents(&self, state: &mut Space, extents: u64) -> Result<()> {
        assert!(extents >= MIN_GROWTH, "the file keeps its first extents, which hold the superblocks");
        let pages = extents * u64::from(EXTENT_PAGES);
        let bytes = PageNo(pages).offset();
        self.file.set_len(bytes).map_err(|e| Error::io("resize", DATA_FILE, Some(bytes), &e))?;
        let now = state.map.extents();
        state.map.shrink(now.saturating_sub(extents));
        state.map.grow(extents);
        assert_eq!(state.map.extents(), extents, "the map covers the file");
        self.pages.store(pages, Relaxed);
        Ok(())
    }

    /// Whether every page of `extent` is allocated.
    pub fn is_taken(&self, extent: Extent) -> bool {
        self.state.lock().map.is_taken(extent)
    }

    /// Whether any freed pages wait for superblocks.
    pub fn has_quarantine(&self) -> bool {
        self.state.lock().quarantined_pages > 0
    }

    /// Returns the statistics.
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
            mirrored_bytes: self.mirrored_bytes.load(Relaxed),
        }
    }

    /// The number of bytes that the file occupies on the device.
    pub fn occupied(&self) -> Result<u64> {
        self.file.occupied().map_err(|e| Error::io("stat", DATA_FILE, None, &e))
    }

    // ---- blocks ----

    /// Writes the buffer at `page` and returns it for reuse. The bytes are durable only after [`DataFile::sync`].
    pub fn write(&self, page: PageNo, buf: AlignedBuf) -> Result<AlignedBuf> {
        debug_assert!(!buf.is_empty() && buf.len().is_multiple_of(PAGE), "whole pages are written");
        self.written_bytes.fetch_add(buf.len() as u64, Relaxed);
        let written = write_all_at(&*self.file, page.offset(), &buf);
        written.map(|()| buf).map_err(|e| Error::io("write", DATA_FILE, Some(page.offset()), &e))
    }

    /// Reads raw pages. The address is checked before memory for the pages is allocated.
    pub fn read(&self, addr: BlockAddr) -> Result<AlignedBuf> {
        self.read_into(addr, AlignedBuf::default())
    }

    /// Like [`DataFile::read`], but reads into `spare` if `spare` has the right length.
    pub fn read_into(&self, addr: BlockAddr, spare: AlignedBuf) -> Result<AlignedBuf> {
        let buf = self.begin_read(addr, spare)?;
        let mut reads = self.reads();
        reads.submit(Read { tag: 0, offset: addr.page.offset(), buf });
        let (_, read) = reads.complete().expect("a submitted read completes");
        self.end_read(addr, read)
    }

    /// A queue for concurrent reads. Each read begins with [`DataFile::begin_read`] and ends with
    /// [`DataFile::end_read`].
    pub fn reads(&self) -> Reads {
        Reads::new(Arc::clone(&self.file))
    }

    /// Returns the buffer for a read of raw pages: `spare` if it has the right length, or else a new buffer. The
    /// address is checked before memory for the pages is allocated.
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

    /// Converts the result of a read of raw pages.
    pub fn end_read(&self, addr: BlockAddr, read: std::io::Result<AlignedBuf>) -> Result<AlignedBuf> {
        read.map_err(|e| match e.kind() {
            std::io::ErrorKind::UnexpectedEof => self.corrupt(addr, "block", "the file ends inside it"),
            _ => Error::io("read", DATA_FILE, Some(addr.page.offset()), &e),
        })
    }

    /// Reads a block and checks that the block has this address, owner and kind.
    pub fn read_block(&self, addr: BlockAddr, owner: OwnerId, kind: BlockKind) -> Result<AlignedBuf> {
        let buf = self.read(addr)?;
        self.check_block(&buf, addr, owner, kind)?;
        Ok(buf)
    }

    /// Checks the header of a block that was read from `addr`.
    pub fn check_block(&self, bytes: &[u8], addr: BlockAddr, owner: OwnerId, kind: BlockKind) -> Result<()> {
        assert_eq!(bytes.len(), addr.bytes(), "all bytes of a block are checked");
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

    /// The kind and the number of pages in the header of an unchecked block. The kind is `None` if its number is
    /// unknown.
    pub fn claimed(&self, bytes: &[u8]) -> (Option<BlockKind>, u32) {
        (BlockKind::from_u8(bytes[4]), stored_pages(bytes))
    }

    /// Fills in the header of a block whose body begins at byte 16.
    pub fn seal_block(&self, bytes: &mut [u8], addr: BlockAddr, owner: OwnerId, kind: BlockKind) {
        assert_eq!(bytes.len(), addr.bytes(), "all bytes of a block are sealed");
        assert!((1..=MAX_BLOCK_PAGES).contains(&addr.pages), "a reader accepts a block of {} pages", addr.pages);
        self.note_feature(kind.feature());
        bytes[..BLOCK_HEADER].fill(0);
        bytes[4] = kind as u8;
        bytes[8..12].copy_from_slice(&addr.pages.to_le_bytes());
        let crc = self.block_crc(bytes, addr.page, owner);
        bytes[..4].copy_from_slice(&crc.to_le_bytes());
        debug_assert_eq!(self.claimed(bytes), (Some(kind), addr.pages), "a reader finds the kind and length");
    }

    fn block_crc(&self, bytes: &[u8], page: PageNo, owner: OwnerId) -> u32 {
        let mut place = [0u8; 32];
        place[..16].copy_from_slice(&self.store_id.0);
        place[16..24].copy_from_slice(&seeded!(ChecksumWithoutOwner: 0, owner.0).to_le_bytes());
        place[24..].copy_from_slice(&seeded!(ChecksumWithoutPlace: 0, page.0).to_le_bytes());
        crc32c::crc32c_append(crc32c::crc32c(&place), &bytes[4..])
    }

    /// The incompatible features of the blocks that were written since the store was opened. A superblock that reaches
    /// these blocks must have these flags.
    pub fn features(&self) -> u64 {
        self.features.load(Relaxed)
    }

    /// Adds an incompatible feature that the next superblock must name.
    pub fn note_feature(&self, feature: u64) {
        self.features.fetch_or(feature, Relaxed);
    }

    /// A corruption error with the name of this file and the offset of the block.
    pub fn corrupt(&self, addr: BlockAddr, what: &'static str, detail: impl Into<String>) -> Error {
        Error::corruption(what, 0, detail).in_file(DATA_FILE, addr.page.offset())
    }

    /// Syncs the file if any large value was written since the last call of this function, so that all large values are
    /// durable.
    ///
    /// # Errors
    /// As [`DataFile::sync`].
    pub fn sync_large_values(&self) -> Result<()> {
        let mut failed = self.failed_sync.lock();
        // A thread that waited for the lock may find that another thread has cleared the flag. In that case the sync of
        // that thread has made the value durable, or has failed, and then `failed` holds its error.
        let unsynced = self.blobs_unsynced.swap(false, Acquire);
        if unsynced || failed.is_some() { self.sync_after(&mut failed) } else { Ok(()) }
    }

    /// Makes all written data durable. A failure is final: the caller poisons the store. This includes a full disk: a
    /// thin-provisioned disk may accept writes and report only during the sync that it is full.
    ///
    /// # Errors
    /// [`Error::Io`] if the device fails, [`Error::Poisoned`] if an earlier sync failed.
    pub fn sync(&self) -> Result<()> {
        self.sync_after(&mut self.failed_sync.lock())
    }

    /// Syncs unless an earlier sync failed.
    /// REQUIRES: the caller holds `failed_sync`, to which `failed` belongs.
    fn sync_after(&self, failed: &mut Option<String>) -> Result<()> {
        if let Some(first) = failed {
            return Err(Error::Poisoned { first: first.clone() });
        }
        let done = self.file.sync().map_err(|e| Error::final_io("sync", DATA_FILE, None, &e));
        done.inspect_err(|e| *failed = Some(e.to_string()))
    }

    /// Writes a superblock to the slot of its generation, and syncs.
    ///
    /// # Errors
    /// As [`DataFile::sync`]. If this call fails, it is unknown whether the superblock is on the disk.
    pub fn write_superblock(&self, superblock: &Superblock) -> Result<()> {
        let at = superblock.slot().offset();
        let page = superblock.encode();
        let decoded = Superblock::decode(&page);
        assert!(decoded.is_ok_and(|decoded| decoded == *superblock), "the next opening will read this superblock");
        write_all_at(&*self.file, at, &page).map_err(|e| Error::io("write", DATA_FILE, Some(at), &e))?;
        self.sync()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::sim::{Fault, FaultKind, SimDevice};

    /// Regression: this error once told the user to free space and retry, although no later sync succeeds.
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

    /// On btrfs, a hole in one part of the range of an earlier write frees no disk space, and data written into the
    /// hole occupies new disk space.
    #[test]
    fn free_pages_of_a_unit_in_use_are_not_punched_but_reused() {
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
        // Free every second page of the first two units.
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
        assert_eq!(sim.occupied(), whole.bytes(), "the pages are written in place");
        again.into_iter().for_each(|extent| data.free(extent));
        (0..8).for_each(|i| data.free(page(2 * i + 1)));
        checkpoints();
        assert_eq!(sim.occupied(), whole.bytes() / 2, "two units are punched");
        // As long as only a part of a unit was discarded, nothing is punched.
        data.discard(Extent { start: PageNo(whole.start.0 + 16), pages: 12 });
        assert_eq!(sim.occupied(), whole.bytes() / 4);
        data.discard(Extent { start: PageNo(whole.start.0 + 28), pages: 4 });
        assert_eq!(sim.occupied(), 0);
    }

    /// Regression, found by the explorer (`sync-large`, `pct:7001031:250`): the sync of a checkpoint fails and loses
    /// the pages of a large value. The commit of that value syncs next. This second sync succeeded although the pages
    /// were lost.
    #[test]
    fn after_a_failed_sync_none_succeeds() {
        let sim = SimDevice::new(1);
        let data = DataFile::create(&*sim, DATA_FILE, StoreId::default()).unwrap();
        let blob = data.write_blob(&[7; 5000]).unwrap();
        sim.set_fault(Some(Fault::once(FaultKind::FailedSync, 0)));
        assert!(matches!(data.sync(), Err(Error::Io { .. })));
        assert!(matches!(data.sync_large_values(), Err(Error::Poisoned { .. })));
        assert!(matches!(data.sync_large_values(), Err(Error::Poisoned { .. })), "also with the flag cleared");
        assert!(matches!(data.sync(), Err(Error::Poisoned { .. })));
        assert_eq!(data.read_blob(&blob).unwrap()[..5000], [7; 5000], "reads still succeed");
    }
}
