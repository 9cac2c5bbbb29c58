//! [`Common`]: the state that all streams of a log share, and [`Segment`]: a segment file that a stream writes.
//!
//! Steps of a new segment ([`Common::create_segment`]): draw its number, allocate its space, write its header, sync the
//! file, and sync the directory. Only after these steps does a stream append records to the segment.
//!
//! Invariants: the first failure poisons the log, and no later operation succeeds; a number is drawn once, so no two
//! segments have the same name; a segment's `end` is between the end of its header and its capacity.
//!
//! Source: our own design; one log per thread follows 002 §3.6.4.

use std::sync::Arc;

use super::SegmentInfo;
use super::format::{BLOCK, FileName, Header, MAX_NUMBER, MAX_PAYLOAD, MAX_SEGMENT, record_bytes, segment_name};
use crate::base::sync::{AtomicBool, AtomicU64, Counter, Mutex, OnceLock, Ordering};
use crate::base::{Error, Result, Seqno, StoreId, seeded};
use crate::device::{Device, File, OpenHow, write_all_at};

/// A check that is called with the size of a segment in bytes, before space for that segment is allocated.
pub type MayTake<'a> = &'a dyn Fn(u64) -> Result<()>;

/// The next segment is created in advance when 1/WANTS_NEXT of the current one is used. This is early, because a busy
/// disk may take long to create it.
const WANTS_NEXT: u64 = 4;
const _: () = assert!(2 * BLOCK + record_bytes(MAX_PAYLOAD) <= MAX_SEGMENT, "a segment can hold the longest record");

/// State that the streams of a log share.
#[derive(Debug)]
pub(super) struct Common {
    pub device: Arc<dyn Device>,
    pub store: StoreId,
    pub epoch: u32,
    /// The last seqno before this epoch.
    pub start: Seqno,
    pub segment_bytes: u64,
    /// Whether records carry generations of leaves ([`super::tags`]).
    pub tagged: bool,
    /// Whether segments are opened for small writes.
    pub mapped: bool,
    /// The number of the next segment of any stream.
    pub next_segment: AtomicU64,
    /// Whether a segment header of this epoch is durable.
    pub has_header: AtomicBool,
    /// All records through this seqno are durable in every stream, so records may claim it.
    pub durable: AtomicU64,
    /// Segments that are no longer written, of all streams, including segments of earlier epochs.
    pub older: Mutex<Vec<SegmentInfo>>,
    pub written_bytes: Counter,
    /// Whether enough of a segment has been filled that the next segment may be created in advance.
    pub wants_segment: AtomicBool,
    /// The text of the first failure.
    pub poison: OnceLock<String>,
}

impl Common {
    pub fn check(&self) -> Result<()> {
        match self.poison.get() {
            Some(first) => Err(Error::Poisoned { first: first.clone() }),
            None => Ok(()),
        }
    }

    /// Fails if an earlier operation failed. Called by a thread whose record was already appended.
    pub fn check_appended(&self) -> Result<()> {
        match self.poison.get() {
            Some(first) => Err(Error::Indeterminate { first: first.clone() }),
            None => Ok(()),
        }
    }

    /// Records the first failure, and returns `error`.
    pub fn poison(&self, error: Error) -> Error {
        let _ = self.poison.set(error.to_string());
        error
    }

    /// As [`Common::poison`], but a lack of space or of file descriptors does not count as a failure.
    pub fn poison_unless_refused(&self, error: Error) -> Error {
        if error.is_refusal() { error } else { self.poison(error) }
    }

    /// The size of a new segment that must have space for a record of `bytes` bytes.
    pub fn capacity_for(&self, bytes: u64) -> u64 {
        debug_assert!(self.segment_bytes.is_multiple_of(BLOCK), "segments are whole blocks");
        self.segment_bytes.max(BLOCK + bytes.next_multiple_of(BLOCK))
    }

    /// Creates the next segment of a stream. `after` is the last seqno before the records of the segment, if it is
    /// known yet. When this function succeeds, the file, its space and its header are durable. If it fails, it leaves
    /// no file behind.
    /// REQUIRES: the caller holds `making` of the stream.
    pub fn create_segment(&self, stream: u32, after: Option<Seqno>, bytes: u64) -> Result<Segment> {
        assert!(after.is_none_or(|after| after >= self.start), "records of an epoch come after its start");
        let number = self.next_segment.fetch_add(1, Ordering::Relaxed);
        if number > MAX_NUMBER {
            let detail = "the log has run out of segment numbers".to_owned();
            return Err(Error::Unsupported { detail });
        }
        let name = segment_name(stream, number);
        let capacity = self.capacity_for(bytes);
        assert!(capacity <= MAX_SEGMENT, "replay accepts a segment of {capacity} bytes");
        let header = Header { stream, number, epoch: self.epoch, start: self.start, after };
        match self.create_file(&name, capacity, &header) {
            Ok(file) => {
                self.has_header.store(true, Ordering::Release);
                self.written_bytes.fetch_add(BLOCK, Ordering::Relaxed);
                let seed = header.seed(self.store);
                let last = after.unwrap_or(self.start);
                let segment = Segment { file, name, number, seed, capacity, end: BLOCK, last };
                assert!(segment.fits(bytes), "a new segment has room for the record that it is created for");
                Ok(segment)
            }
            Err(error) => {
                self.remove_unused(&name);
                Err(error)
            }
        }
    }

    /// Removes a segment without records. If the removal fails, the next replay removes the segment.
    pub fn remove_unused(&self, name: &str) {
        let _ = self.device.remove(name);
    }

    fn create_file(&self, name: &str, capacity: u64, header: &Header) -> Result<Arc<dyn File>> {
        let block = header.encode(self.store);
        let parsed = FileName { stream: header.stream, number: header.number, unfinished: false };
        let decoded = Header::decode(&block, self.store, parsed);
        assert!(decoded.is_ok_and(|decoded| decoded == *header), "replay will read the header that is written");
        let how = OpenHow { write: true, create_new: true, small_writes: self.mapped, ..OpenHow::default() };
        let file = self.device.open(name, how).map_err(|e| Error::io("create", name, None, &e))?;
        file.allocate(0, capacity).map_err(|e| Error::io("allocate", name, Some(0), &e))?;
        write_all_at(&*file, 0, &block).map_err(|e| Error::io("write", name, Some(0), &e))?;
        file.sync().map_err(|e| Error::io("sync", name, None, &e))?;
        // A failed sync of the directory may also lose other new names and removals, even if it failed only for lack of
        // space. So the error is final, whether a writer or background work called this function.
        let sync = || self.device.sync_dir();
        let synced = seeded!(SegmentAheadNotSynced: header.after.map_or(Ok(()), |_| sync()), sync());
        synced.map_err(|e| self.poison(Error::final_io("sync", &self.device.path(), None, &e)))?;
        Ok(file)
    }
}

/// A segment that a stream writes.
#[derive(Debug)]
pub(super) struct Segment {
    pub file: Arc<dyn File>,
    pub name: String,
    pub number: u64,
    /// The seed of the checksums of the segment's records.
    pub seed: u32,
    /// The number of preallocated bytes.
    pub capacity: u64,
    /// The offset of the next record.
    pub end: u64,
    /// The highest seqno of the segment's records. While the segment has no record, this is the last seqno before the
    /// segment.
    pub last: Seqno,
}

impl Segment {
    /// Whether the segment has no record.
    #[cfg(test)]
    pub fn is_empty(&self) -> bool {
        self.end == BLOCK
    }

    /// Whether 1/WANTS_NEXT of the segment is used, so that the next segment may be created in advance. So a small store
    /// never allocates two segments.
    pub fn wants_next(&self) -> bool {
        debug_assert!(BLOCK <= self.end && self.end <= self.capacity, "the next record is inside the segment");
        self.end >= self.capacity / WANTS_NEXT
    }

    /// Whether a record of `bytes` bytes fits into the segment, even if a sync ends the current block before the record
    /// is appended.
    pub fn fits(&self, bytes: u64) -> bool {
        self.end.next_multiple_of(BLOCK) + bytes <= self.capacity
    }
}
