//! The segment manager (000 §5.1.1): blocks of one size in one file.
//!
//! ```text
//!   file   │ segment 0 │  segment 1   │    segment 2     │          each 1.25 times as long as the one before
//!           used ▲ fresh              free: 17, 12
//! ```
//!
//! 1. A block is allocated from the free list of a segment, or from the fresh blocks of the last one.
//! 2. If no block is free, a new segment is added behind the last one, and the file grows once for all of its blocks.
//! 3. Blocks are read and written at their position, without a lock. The page buffer takes care that a block is not
//!    read and written at the same time.
//!
//! The source links deleted blocks into a list. Here the list is in memory, because nothing of a tree survives the
//! process.
//!
//! Invariants: ranges of segments are disjoint and ascend; a block is in use, or free, or fresh, and nothing else.
//! Locks: the list of segments first, then one segment. Neither is held during I/O, except when the file grows.

use std::fs::{File, OpenOptions};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;

use crate::block::ALIGN;
use crate::error::{Error, Result};
use crate::sync::{AtomicU64, Mutex, Ordering, RwLock};

/// Blocks of the first segment.
const FIRST: u64 = 64;

/// The number of a block, which is also the identity of the page in it.
pub type BlockNo = u64;

/// A range of blocks of the file.
#[derive(Debug)]
struct Segment {
    start: BlockNo,
    len: u64,
    state: Mutex<State>,
}

/// The blocks of a segment that are not in use.
#[derive(Debug, Default)]
struct State {
    /// Blocks from here on were never in use.
    used: u64,
    /// Deleted blocks.
    free: Vec<BlockNo>,
}

/// The file and its segments.
#[derive(Debug)]
pub struct Segments {
    file: File,
    block: usize,
    segments: RwLock<Vec<Segment>>,
    /// The number of deleted blocks. While it is 0, only the last segment is searched.
    deleted: AtomicU64,
}

impl Segments {
    /// Creates the file. With `direct`, reads and writes bypass the page cache of the system.
    ///
    /// # Errors
    /// [`Error::Layout`] if direct I/O is not possible with this size, and the errors of the file system.
    pub fn create(path: &Path, block: usize, direct: bool) -> Result<Segments> {
        if direct && !block.is_multiple_of(ALIGN) {
            return Err(Error::Layout(format!("direct I/O needs pages of a multiple of {ALIGN} bytes, not {block}")));
        }
        let flags = if direct { rustix::fs::OFlags::DIRECT.bits() as i32 } else { 0 };
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(true)
            .custom_flags(flags)
            .open(path)
            .map_err(|e| Error::io(format!("create {}", path.display()), e))?;
        Ok(Segments { file, block, segments: RwLock::new(Vec::new()), deleted: AtomicU64::new(0) })
    }

    /// Allocates a block. Its content is undefined.
    ///
    /// # Errors
    /// The errors of the file system when the file grows.
    pub fn allocate(&self) -> Result<BlockNo> {
        loop {
            let known = {
                let segments = self.segments.read();
                if let Some(block) = self.allocate_in(&segments) {
                    return Ok(block);
                }
                segments.len()
            };
            self.grow(known)?;
        }
    }

    fn allocate_in(&self, segments: &[Segment]) -> Option<BlockNo> {
        let searched = if self.deleted.load(Ordering::Relaxed) == 0 { 1 } else { segments.len() };
        segments.iter().rev().take(searched).find_map(|segment| {
            let mut state = segment.state.lock();
            if let Some(block) = state.free.pop() {
                self.deleted.fetch_sub(1, Ordering::Relaxed);
                return Some(block);
            }
            let fresh = state.used < segment.len;
            state.used += u64::from(fresh);
            fresh.then(|| segment.start + state.used - 1)
        })
    }

    /// Adds a segment, unless another thread has added one to the `known` ones.
    fn grow(&self, known: usize) -> Result<()> {
        let mut segments = self.segments.write();
        if segments.len() != known {
            return Ok(());
        }
        let (start, len) = segments.last().map_or((0, FIRST), |last| (last.start + last.len, last.len + last.len / 4));
        let bytes = (start + len) * self.block as u64;
        self.file.set_len(bytes).map_err(|e| Error::io(format!("extend the file to {bytes} bytes"), e))?;
        segments.push(Segment { start, len, state: Mutex::default() });
        Ok(())
    }

    /// Returns a block to the free list of its segment.
    ///
    /// # Panics
    /// If the block is not in use.
    pub fn delete(&self, block: BlockNo) {
        let segments = self.segments.read();
        let i = segments.partition_point(|segment| segment.start <= block);
        assert!(i > 0, "a block of no segment");
        let segment = &segments[i - 1];
        let mut state = segment.state.lock();
        assert!(block < segment.start + state.used, "only allocated blocks are deleted");
        debug_assert!(!state.free.contains(&block), "a block is deleted once");
        state.free.push(block);
        self.deleted.fetch_add(1, Ordering::Relaxed);
    }

    /// Reads a block.
    ///
    /// # Errors
    /// The errors of the file system.
    pub fn read(&self, block: BlockNo, bytes: &mut [u8]) -> Result<()> {
        assert_eq!(bytes.len(), self.block);
        let at = block * self.block as u64;
        self.file.read_exact_at(bytes, at).map_err(|e| Error::io(format!("read block {block}"), e))
    }

    /// Writes a block.
    ///
    /// # Errors
    /// The errors of the file system.
    pub fn write(&self, block: BlockNo, bytes: &[u8]) -> Result<()> {
        assert_eq!(bytes.len(), self.block);
        let at = block * self.block as u64;
        self.file.write_all_at(bytes, at).map_err(|e| Error::io(format!("write block {block}"), e))
    }

    /// Bytes of a block.
    pub fn block_bytes(&self) -> usize {
        self.block
    }

    /// The number of blocks in use.
    pub fn in_use(&self) -> u64 {
        let segments = self.segments.read();
        let used: u64 = segments.iter().map(|segment| segment.state.lock().used).sum();
        used - self.deleted.load(Ordering::Relaxed)
    }
}

#[cfg(all(test, not(feature = "explore")))]
mod tests {
    use super::*;

    #[test]
    fn segments_grow_and_deleted_blocks_are_reused() {
        let dir = tempfile::tempdir().unwrap();
        let segments = Segments::create(&dir.path().join("pages"), 128, false).unwrap();
        let blocks: Vec<_> = (0..200).map(|_| segments.allocate().unwrap()).collect();
        assert_eq!(blocks, (0..200).collect::<Vec<_>>());
        let lens: Vec<_> = segments.segments.read().iter().map(|segment| segment.len).collect();
        assert_eq!(lens, [64, 80, 100], "each segment is 1.25 times as long as the one before");
        for &block in &blocks {
            segments.write(block, &[block as u8; 128]).unwrap();
        }
        let mut bytes = [0; 128];
        segments.read(70, &mut bytes).unwrap();
        assert_eq!(bytes, [70; 128]);
        [3, 150, 70].iter().for_each(|&block| segments.delete(block));
        assert_eq!(segments.in_use(), 197);
        let mut again: Vec<_> = (0..4).map(|_| segments.allocate().unwrap()).collect();
        again.sort_unstable();
        assert_eq!(segments.in_use(), 201);
        // The last segment is searched first, and has fresh blocks besides the deleted one.
        assert!(again.contains(&150) && again.iter().all(|block| *block >= 150), "{again:?}");
    }

    #[test]
    fn threads_never_get_the_same_block() {
        let dir = tempfile::tempdir().unwrap();
        let segments = Segments::create(&dir.path().join("pages"), 128, false).unwrap();
        let mut all = std::thread::scope(|scope| {
            let allocate = || {
                (0..1000)
                    .map(|i| {
                        let block = segments.allocate().unwrap();
                        if i % 3 == 0 {
                            segments.delete(block);
                            return None;
                        }
                        Some(block)
                    })
                    .collect::<Vec<_>>()
            };
            let threads: Vec<_> = (0..4).map(|_| scope.spawn(allocate)).collect();
            threads.into_iter().flat_map(|thread| thread.join().unwrap()).flatten().collect::<Vec<_>>()
        });
        let count = all.len();
        all.sort_unstable();
        all.dedup();
        assert_eq!((all.len(), segments.in_use()), (count, count as u64));
    }

    #[test]
    fn direct_io_needs_aligned_sizes() {
        let dir = tempfile::tempdir().unwrap();
        let error = Segments::create(&dir.path().join("pages"), 1000, true).expect_err("refused");
        assert!(matches!(error, Error::Layout(_)));
    }
}
