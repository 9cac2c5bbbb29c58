//! What the buffers with a file have in common: frames, the file, and the reads and writes between them.

use std::path::Path;

use super::{BufferConfig, Counts};
use crate::block::Block;
use crate::error::{Error, Result};
use crate::frame::{Frame, Frames, Page, PageNo, Pinned, WritePage};
use crate::hints::Hints;
use crate::mistake::Mistake;
use crate::segment::Segments;
use crate::sync::{AtomicBool, Counter, Mutex, Ordering};

/// Frames and the file.
#[derive(Debug)]
pub struct Store {
    pub frames: Frames,
    pub segments: Segments,
    room: Mutex<Room>,
    capacity: u32,
    failed: AtomicBool,
    reads: Counter,
    writes: Counter,
    evictions: Counter,
    restarts: Counter,
    overflows: Counter,
}

/// The frames without a page.
#[derive(Debug, Default)]
struct Room {
    /// Frames from here on were never used.
    fresh: u32,
    /// Frames without a page.
    free: Vec<u32>,
    /// The number of frames that hold a page, or are about to.
    held: u32,
}

/// A frame for a new page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// This frame is empty.
    Frame(u32),
    /// A page must be evicted first.
    Full,
    /// There are more pages than the capacity.
    Over,
}

fn count(counter: &Counter) {
    counter.fetch_add(1, Ordering::Relaxed);
}

impl Store {
    /// Creates the file.
    pub fn create(config: &BufferConfig, path: &Path) -> Result<Store> {
        if config.frames == 0 {
            return Err(Error::Layout("a page buffer needs at least one page".to_owned()));
        }
        Ok(Store {
            frames: Frames::new(),
            segments: Segments::create(path, config.page, config.direct)?,
            room: Mutex::default(),
            capacity: u32::try_from(config.frames).map_err(|_| Error::Layout("too many pages in memory".to_owned()))?,
            failed: AtomicBool::new(false),
            reads: Counter::new(0),
            writes: Counter::new(0),
            evictions: Counter::new(0),
            restarts: Counter::new(0),
            overflows: Counter::new(0),
        })
    }

    /// Fails if an earlier read or write has failed.
    #[inline]
    pub fn check(&self) -> Result<()> {
        if self.failed.load(Ordering::Relaxed) { Err(Error::Failed) } else { Ok(()) }
    }

    fn note<T>(&self, result: Result<T>) -> Result<T> {
        if result.is_err() {
            self.failed.store(true, Ordering::Relaxed);
        }
        result
    }

    /// An empty frame, if the capacity allows one.
    pub fn place(&self) -> Place {
        let mut room = self.room.lock();
        match room.held.cmp(&self.capacity) {
            std::cmp::Ordering::Less => Place::Frame(take(&mut room)),
            std::cmp::Ordering::Equal => Place::Full,
            std::cmp::Ordering::Greater => Place::Over,
        }
    }

    /// An empty frame above the capacity.
    pub fn overflow(&self) -> u32 {
        count(&self.overflows);
        take(&mut self.room.lock())
    }

    /// Returns an empty frame.
    pub fn put_back(&self, frame: u32) {
        debug_assert!(self.frames.get(frame).is_empty(), "the page was removed");
        let mut room = self.room.lock();
        debug_assert!(room.held > 0 && !room.free.contains(&frame), "the frame was held");
        room.held -= 1;
        room.free.push(frame);
    }

    /// Frees the memory of an empty frame, because there are too many.
    pub fn release(&self, frame: u32) {
        *self.frames.get(frame).latch_empty() = Page::default();
        self.put_back(frame);
    }

    /// Writes the page of a frame to disk, after `unlock` has released the lock of the caller. The frame is pinned by
    /// the caller, and clean afterwards, unless it was changed meanwhile.
    ///
    /// Messages of the front are in the page that is written. If another thread holds the latch, nothing is written. To
    /// wait for it could be a deadlock: that thread may wait for a page below, which the calling thread has latched.
    pub fn write_back(&self, frame: &Frame, unlock: impl FnOnce()) -> Result<()> {
        let page = frame.try_clean();
        unlock();
        let Some(page) = page else { return Ok(()) };
        count(&self.writes);
        if Mistake::DirtyPageDropped.is_on() {
            return Ok(());
        }
        self.note(self.segments.write(page.no, &page.bytes))
    }

    /// Reads a page into its frame, whose latch the caller holds exclusively; a `fresh` page is zero.
    pub fn load(&self, frame: &Frame, page: PageNo, target: &mut Page, fresh: bool) -> Result<()> {
        let len = self.segments.block_bytes();
        if target.bytes.len() != len {
            target.bytes = Block::zeroed(len);
        }
        target.front.release();
        (target.no, target.hints) = (page, Hints::default());
        frame.forget_accesses();
        frame.dirty.store(fresh, Ordering::Relaxed);
        if fresh {
            target.bytes.fill(0);
            return Ok(());
        }
        count(&self.reads);
        self.note(self.segments.read(page, &mut target.bytes))
    }

    /// Counts an eviction.
    pub fn evicted(&self) {
        count(&self.evictions);
    }

    /// Counts an eviction that starts again.
    pub fn restarted(&self) {
        count(&self.restarts);
    }

    /// The counts.
    pub fn counts(&self) -> Counts {
        let load = |counter: &Counter| counter.load(Ordering::Relaxed);
        Counts {
            reads: load(&self.reads),
            writes: load(&self.writes),
            evictions: load(&self.evictions),
            restarts: load(&self.restarts),
            overflows: load(&self.overflows),
            pages: self.segments.in_use(),
        }
    }
}

fn take(room: &mut Room) -> u32 {
    room.held += 1;
    room.free.pop().unwrap_or_else(|| {
        room.fresh += 1;
        room.fresh - 1
    })
}

/// A hasher for page numbers: one multiplication.
#[derive(Clone, Copy, Debug, Default)]
pub struct PageHasher(u64);

impl std::hash::Hasher for PageHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, _: &[u8]) {
        unreachable!("page numbers are hashed as numbers");
    }

    #[inline]
    fn write_u64(&mut self, page: u64) {
        let product = page.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        self.0 = product ^ (product >> 32);
    }
}

/// A table from pages to frames.
pub type Table = std::collections::HashMap<PageNo, u32, std::hash::BuildHasherDefault<PageHasher>>;

/// Creates a page in a new block.
pub fn create_page<'a>(store: &Store, obtain: impl FnOnce(PageNo) -> Result<Pinned<'a>>) -> Result<WritePage<'a>> {
    store.check()?;
    let page = store.note(store.segments.allocate())?;
    let page_guard = obtain(page)?.write();
    debug_assert!(page_guard.iter().all(|&byte| byte == 0), "a new page is zero");
    Ok(page_guard)
}
