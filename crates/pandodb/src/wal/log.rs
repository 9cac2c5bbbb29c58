//! The writer: reserve, append, sync, and segments that come and go.
//!
//! ```text
//!  reserve ─▶ append ──▶ buffer ──write──▶ page cache ──sync──▶ durable
//!  room or    encode,    lazy: stays       `written`            `durable`
//!  DiskFull   crc        until 64 KiB
//! ```
//!
//! **One writes, others append.** Whoever needs a record in the page cache and finds nobody writing takes the whole buffer
//! and writes it without the lock, while others append to a second one. Who comes meanwhile waits, and finds itself
//! covered or writes what has gathered. So records reach the file in their order, and no append waits for such a write; only
//! who leads a sync, or begins a segment, writes under the lock.
//!
//! **Group commit.** Whoever wants a seqno durable and finds no sync running leads: it writes the buffer, ends the
//! block, notes how far the log reaches and syncs without the lock, while appends go on in the blocks after it. Others
//! wait; when they wake, they are covered, or one of them leads the next round. No timer: a batch is what arrived
//! during the sync before it.
//!
//! **Rolling.** A full segment is cut to its length and joins the older ones; if it has bytes that are not durable yet,
//! the next sync syncs it before the current one counts.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Arc;

use super::format::{
    BLOCK, Head, Header, MAX_NUMBER, MAX_PAYLOAD, MAX_SEGMENT, put_record, record_bytes, segment_name,
};
use super::{SegmentInfo, final_error};
use crate::base::sync::{AtomicBool, AtomicU64, Condvar, Mutex, MutexGuard, Ordering, linger};
use crate::base::{Error, MAX_EPOCH, Result, SeededBug, Seqno, StoreId};
use crate::device::{Device, File, OpenHow, write_all_at};
use crate::space::DataFile;

/// The stream that is written.
const STREAM: u32 = 0;
/// A lazy buffer is written when it holds this many bytes.
const LAZY_BYTES: usize = 64 << 10;
/// A buffer that one large record made longer than this is given back.
const KEEP_BYTES: usize = 1 << 20;

/// How the log is laid out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LogOptions {
    /// Bytes preallocated for a segment: a multiple of 4,096, from 8 KiB to 16 GiB. A larger record gets a segment of
    /// its own size.
    pub segment_bytes: u64,
}

impl Default for LogOptions {
    fn default() -> LogOptions {
        LogOptions { segment_bytes: 16 << 20 }
    }
}

/// The log of a store, open for writing. [`Log::reserve`] and [`Log::append`] belong under the sequencer's lock; everything
/// else may be called from any thread at any time.
#[derive(Debug)]
pub struct Log {
    /// Where large values live that records name.
    data: Option<Arc<DataFile>>,
    device: Arc<dyn Device>,
    store: StoreId,
    epoch: u32,
    /// The seqno after which the epoch begins.
    start: Seqno,
    segment_bytes: u64,
    state: Mutex<State>,
    /// Notified when a sync ends, well or not.
    synced: Condvar,
    /// Notified when a write without the lock ends, well or not, if somebody waits for it.
    idle: Condvar,
    /// A copy of the state's `durable`, to be read without the lock.
    durable: AtomicU64,
    /// A copy of the state's `written`, to be read without the lock.
    written: AtomicU64,
    /// Somebody writes what was the buffer, without the lock. Changed under it.
    writing: AtomicBool,
}

/// What the lock guards.
#[derive(Debug)]
struct State {
    current: Option<Segment>,
    older: Vec<SegmentInfo>,
    /// Older segments with bytes that may not be durable.
    unsynced: Vec<(String, Arc<dyn File>)>,
    /// Encoded records that end at the current segment's `end` and that nobody writes yet.
    buffer: Vec<u8>,
    /// The other buffer, empty, for its memory; without any while it is written.
    spare: Vec<u8>,
    /// How many wait for the end of a write.
    waiting: usize,
    next_segment: u64,
    appended: Seqno,
    written: Seqno,
    durable: Seqno,
    written_bytes: u64,
    /// A reservation waits for its append: the current segment must stay.
    reserved: bool,
    /// The next reservation starts a new segment.
    roll_wanted: bool,
    syncing: bool,
    /// The first failure, in words.
    poison: Option<String>,
}

/// The segment that is written.
#[derive(Debug)]
struct Segment {
    file: Arc<dyn File>,
    name: String,
    number: u64,
    seed: u32,
    /// Preallocated bytes.
    capacity: u64,
    /// Where the next record goes.
    end: u64,
    /// The highest seqno in it; before the first record, the one before it.
    last: Seqno,
}

impl Segment {
    fn is_empty(&self) -> bool {
        self.end == BLOCK
    }

    /// Whether a record of so many bytes fits, even if a sync ends the block before it is appended.
    fn fits(&self, bytes: u64) -> bool {
        self.end.next_multiple_of(BLOCK) + bytes <= self.capacity
    }
}

impl State {
    fn check(&self) -> Result<()> {
        match &self.poison {
            Some(first) => Err(Error::Poisoned { first: first.clone() }),
            None => Ok(()),
        }
    }
}

impl Log {
    /// Begins a new epoch after `last`, through which the log is durable: `epoch` is one above and `next_segment` at
    /// least the report's of [`super::replay()`], `old` are its segments. Does no I/O; the first reservation creates the
    /// first segment, so that a store opens on a full disk.
    ///
    /// # Errors
    /// `InvalidArgument` for a segment size out of bounds.
    pub fn start(
        device: Arc<dyn Device>,
        store: StoreId,
        epoch: u32,
        last: Seqno,
        next_segment: u64,
        old: Vec<SegmentInfo>,
        options: LogOptions,
    ) -> Result<Log> {
        let bytes = options.segment_bytes;
        if !bytes.is_multiple_of(BLOCK) || !(2 * BLOCK..=MAX_SEGMENT).contains(&bytes) {
            return Err(Error::invalid(format!(
                "segment_bytes is {bytes}, must be a multiple of 4096 from 8192 to 16 GiB"
            )));
        }
        if epoch > MAX_EPOCH {
            return Err(Error::Unsupported { detail: format!("epoch {epoch}: the log has been opened too often") });
        }
        assert!(epoch > 0 && last <= Seqno::MAX);
        assert!(
            old.iter().all(|info| info.number < next_segment && info.last <= last.next()),
            "older segments are older"
        );
        let state = State {
            current: None,
            older: old,
            unsynced: Vec::new(),
            buffer: Vec::with_capacity(2 * LAZY_BYTES),
            spare: Vec::with_capacity(2 * LAZY_BYTES),
            waiting: 0,
            next_segment,
            appended: last,
            written: last,
            durable: last,
            written_bytes: 0,
            reserved: false,
            roll_wanted: false,
            syncing: false,
            poison: None,
        };
        Ok(Log {
            data: None,
            device,
            store,
            epoch,
            start: last,
            segment_bytes: bytes,
            state: Mutex::new(state),
            synced: Condvar::new(),
            idle: Condvar::new(),
            durable: AtomicU64::new(last.0),
            written: AtomicU64::new(last.0),
            writing: AtomicBool::new(false),
        })
    }

    /// Makes every sync of the log sync the large values in `data` first: a record may only count as durable when what it
    /// names is.
    #[must_use]
    pub fn with_data(mut self, data: Arc<DataFile>) -> Log {
        self.data = Some(data);
        self
    }

    /// Makes room for one record with so many payload bytes, in a new segment if need be. To be followed by its append (or
    /// by another reservation, which replaces this one), which else makes room itself.
    ///
    /// # Errors
    /// `DiskFull` and `InvalidArgument` have no effect; `Poisoned` after an earlier failure; `Io` poisons.
    pub fn reserve(&self, payload_bytes: usize) -> Result<()> {
        self.make_room(&mut self.state.lock(), payload_bytes)
    }

    fn make_room(&self, state: &mut MutexGuard<'_, State>, payload_bytes: usize) -> Result<()> {
        if payload_bytes > MAX_PAYLOAD {
            let detail = format!("a batch of {payload_bytes} bytes; the log takes {MAX_PAYLOAD} in one, split it");
            return Err(Error::invalid(detail));
        }
        let bytes = record_bytes(payload_bytes);
        state.check()?;
        state.reserved = false;
        let fits = |state: &State| state.current.as_ref().is_some_and(|segment| segment.fits(bytes));
        if !fits(state) || state.roll_wanted {
            self.wait_for_writer(state)?;
            let fits = fits(state);
            match self.replace_segment(state, bytes) {
                // There is room where we are: a full disk can wait.
                Err(Error::DiskFull { .. }) if fits => {}
                result => result?,
            }
        }
        state.reserved = true;
        Ok(())
    }

    /// Appends the record of the seqnos from `first` on, which must be the next one, to the buffer. Whether it is to be
    /// written: unless `lazy`, or once much has gathered, the caller is to call [`Log::write`]. Allocates nothing.
    ///
    /// # Errors
    /// As [`Log::reserve`], unless there is a reservation; `Poisoned` after an earlier failure.
    ///
    /// # Panics
    /// If the record is not the next one or longer than its reservation.
    #[must_use = "a record that is due is to be written"]
    pub fn append(&self, first: Seqno, count: u32, payload: &[u8], lazy: bool) -> Result<bool> {
        let mut state = self.state.lock();
        state.check()?;
        if !state.reserved {
            self.make_room(&mut state, payload.len())?;
        }
        let state = &mut *state;
        assert!(count > 0 && first == state.appended.next(), "record {first} after {}", state.appended);
        let bytes = record_bytes(payload.len());
        let segment = state.current.as_mut().expect("room was made");
        assert!(segment.end + bytes <= segment.capacity, "a reservation covers the append");
        let head = Head { length: payload.len() as u32, count, first, durable: state.durable };
        assert!(head.last() <= Seqno::MAX);
        put_record(&mut state.buffer, segment.seed, segment.end, &head, payload);
        segment.end += bytes;
        segment.last = head.last();
        state.appended = head.last();
        state.reserved = false;
        Ok((!lazy && !SeededBug::BufferedStaysInMemory.is_on()) || state.buffer.len() >= LAZY_BYTES)
    }

    /// Returns when everything through `through`, which was appended, is in the page cache at least: it, and what was lazy
    /// before it, by one write, this thread's or another's.
    ///
    /// # Errors
    /// `Io` poisons; `Indeterminate` if another thread's failure came before the write.
    pub fn write(&self, through: Seqno) -> Result<()> {
        let mut round = 0;
        while through > Seqno(self.written.load(Ordering::Acquire)) {
            // Whoever writes is done in a moment, and then what has gathered since is ours to write.
            if self.writing.load(Ordering::Acquire) && linger(&mut round) {
                continue;
            }
            let mut state = self.state.lock();
            assert!(through <= state.appended, "write of {through}, of which only {} was appended", state.appended);
            if through <= state.written {
                break;
            }
            if let Some(first) = &state.poison {
                return Err(Error::Indeterminate { first: first.clone() });
            }
            if !self.writing.load(Ordering::Relaxed) {
                return self.write_unlocked(&mut state);
            }
            if SeededBug::WriteNotAwaited.is_on() {
                break;
            }
            self.rest(&mut state);
        }
        Ok(())
    }

    /// Writes what was appended lazily, by one write to the page cache.
    ///
    /// # Errors
    /// `Poisoned` after an earlier failure; `Io` poisons.
    pub fn flush(&self) -> Result<()> {
        let mut state = self.state.lock();
        state.check()?;
        self.wait_for_writer(&mut state)?;
        self.write_out(&mut state)
    }

    /// Returns when everything through `through` is durable: at once if it is, else after at most two syncs.
    ///
    /// # Errors
    /// `Indeterminate` if a write or sync failed before `through` was durable: also one that failed before this call, since
    /// what was appended is applied, and may survive, whoever noticed first. No sync is tried again.
    ///
    /// # Panics
    /// If `through` was not appended yet.
    pub fn sync(&self, through: Seqno) -> Result<()> {
        if through <= self.durable() || SeededBug::AckBeforeSync.is_on() {
            return Ok(());
        }
        let mut state = self.state.lock();
        if through > state.appended {
            // The append that gave the seqno out is what failed: it was refused without a trace.
            state.check()?;
        }
        assert!(through <= state.appended, "sync of {through}, of which only {} was appended", state.appended);
        loop {
            if through <= state.durable {
                return Ok(());
            }
            if let Some(first) = &state.poison {
                return Err(Error::Indeterminate { first: first.clone() });
            }
            if state.syncing {
                self.synced.wait(&mut state);
            } else if self.writing.load(Ordering::Relaxed) {
                self.rest(&mut state);
            } else {
                self.lead(&mut state);
            }
        }
    }

    /// Gives back what is preallocated behind the last record: the last call before a clean close. Appending goes on in a
    /// new segment.
    ///
    /// # Errors
    /// `Io` if the file cannot be cut; it is whole all the same.
    pub fn trim(&self) -> Result<()> {
        let mut state = self.state.lock();
        state.check()?;
        self.wait_for_writer(&mut state)?;
        state.roll_wanted = true;
        let Some(segment) = &mut state.current else { return Ok(()) };
        segment.capacity = segment.end.next_multiple_of(BLOCK);
        segment
            .file
            .set_len(segment.capacity)
            .map_err(|e| final_error("cut", &segment.name, Some(segment.capacity), &e))
    }

    /// Everything through here survives the power.
    pub fn durable(&self) -> Seqno {
        Seqno(self.durable.load(Ordering::Acquire))
    }

    /// Everything through here is in the page cache at least: it survives the process.
    pub fn written(&self) -> Seqno {
        self.state.lock().written
    }

    /// Removes the segments, other than the current one, all of whose records are at or below `seqno`; returns how
    /// many. Call it when a durable checkpoint covers them. The directory is not synced: a segment that comes back
    /// after a crash holds nothing that replay would visit.
    ///
    /// # Errors
    /// `Io`; the segments that are left are tried again next time.
    pub fn discard_through(&self, seqno: Seqno) -> Result<usize> {
        let gone: Vec<SegmentInfo> = self.state.lock().older.extract_if(.., |info| info.last <= seqno).collect();
        for (i, info) in gone.iter().enumerate() {
            let name = segment_name(info.stream, info.number);
            match self.device.remove(&name) {
                Err(e) if e.kind() != std::io::ErrorKind::NotFound => {
                    self.state.lock().older.extend_from_slice(&gone[i..]);
                    return Err(Error::io("remove", &name, None, &e));
                }
                _ => {}
            }
        }
        Ok(gone.len())
    }

    /// Bytes of log that are kept: the older segments, and the current one up to its last record.
    pub fn retained_bytes(&self) -> u64 {
        let state = self.state.lock();
        let current = state.current.as_ref().map_or(0, |segment| segment.end);
        state.older.iter().map(|info| info.bytes).sum::<u64>() + current
    }

    /// Starts a new segment, so that a checkpoint can discard the one before it. Waits for the next reservation if one
    /// is in use or the disk is full; does nothing if the current segment has no records.
    ///
    /// # Errors
    /// `Poisoned` after an earlier failure; `Io` poisons.
    pub fn roll(&self) -> Result<()> {
        let mut state = self.state.lock();
        state.check()?;
        self.wait_for_writer(&mut state)?;
        if state.current.as_ref().is_none_or(Segment::is_empty) {
            return Ok(());
        }
        if state.reserved {
            state.roll_wanted = true;
            return Ok(());
        }
        match self.replace_segment(&mut state, 0) {
            Err(Error::DiskFull { .. }) => {
                state.roll_wanted = true;
                Ok(())
            }
            result => result,
        }
    }

    /// All bytes written since the start, for write amplification.
    pub fn written_bytes(&self) -> u64 {
        self.state.lock().written_bytes
    }

    /// Remembers the first failure and wakes who waits, so that they learn of it.
    fn poison(&self, state: &mut State, error: Error) -> Error {
        state.poison.get_or_insert_with(|| error.to_string());
        self.synced.notify_all();
        error
    }

    /// Waits for the end of a write without the lock.
    fn rest(&self, state: &mut MutexGuard<'_, State>) {
        state.waiting += 1;
        self.idle.wait(state);
        state.waiting -= 1;
    }

    /// Waits until nobody writes without the lock: for those who write under it, or move the segment's end.
    fn wait_for_writer(&self, state: &mut MutexGuard<'_, State>) -> Result<()> {
        while self.writing.load(Ordering::Relaxed) {
            self.rest(state);
        }
        state.check()
    }

    /// Where the buffer belongs.
    fn place(state: &State) -> Option<(&Segment, u64)> {
        let segment = state.current.as_ref().filter(|_| !state.buffer.is_empty())?;
        let at = segment.end - state.buffer.len() as u64;
        debug_assert!(at >= BLOCK && segment.end <= segment.capacity);
        Some((segment, at))
    }

    /// Writes the buffer to the current segment, under the lock. Nobody writes without it.
    fn write_out(&self, state: &mut State) -> Result<()> {
        debug_assert!(!self.writing.load(Ordering::Relaxed));
        let Some((segment, at)) = Log::place(state) else { return Ok(()) };
        let done = write_all_at(&*segment.file, at, &state.buffer)
            .map_err(|e| final_error("write", &segment.name, Some(at), &e));
        let mut buffer = std::mem::take(&mut state.buffer);
        let written = done.map(|()| (state.appended, buffer.len()));
        empty(&mut buffer);
        state.buffer = buffer;
        self.note_write(state, written)
    }

    /// Writes the buffer to the current segment, without the lock. A panic of the device poisons, and goes on.
    fn write_unlocked(&self, state: &mut MutexGuard<'_, State>) -> Result<()> {
        let Some((segment, at)) = Log::place(state) else { return Ok(()) };
        let file = Arc::clone(&segment.file);
        let through = state.appended;
        let spare = std::mem::take(&mut state.spare);
        let mut buffer = std::mem::replace(&mut state.buffer, spare);
        self.writing.store(true, Ordering::Release);
        let work = || catch_unwind(AssertUnwindSafe(|| write_all_at(&*file, at, &buffer)));
        let result = MutexGuard::unlocked(state, work);
        // Still the segment that was written: to replace it one waits for the writer.
        let name = || state.current.as_ref().map_or_else(String::new, |segment| segment.name.clone());
        let written = match &result {
            Ok(Ok(())) => Ok((through, buffer.len())),
            Ok(Err(e)) => Err(final_error("write", &name(), Some(at), e)),
            Err(_) => Err(Error::Poisoned { first: format!("the device panicked in a write to `{}`", name()) }),
        };
        empty(&mut buffer);
        state.spare = buffer;
        let noted = self.note_write(state, written);
        // After it: who waits for the writer looks at what was written first.
        self.writing.store(false, Ordering::Release);
        if state.waiting > 0 {
            self.idle.notify_all();
        }
        if let Err(panic) = result {
            resume_unwind(panic);
        }
        noted
    }

    /// Notes what became of a write: through which seqno and how many bytes.
    fn note_write(&self, state: &mut State, written: Result<(Seqno, usize)>) -> Result<()> {
        let (through, bytes) = written.map_err(|error| self.poison(state, error))?;
        state.written_bytes += bytes as u64;
        state.written = through;
        self.written.store(through.0, Ordering::Release);
        Ok(())
    }

    /// Syncs everything appended so far. A failure is found in `poison`; a panic of the device poisons, and goes on.
    fn lead(&self, state: &mut MutexGuard<'_, State>) {
        if self.write_out(state).is_err() {
            return;
        }
        let target = state.appended;
        debug_assert!(target == state.written);
        let durable = state.durable;
        let mut files = state.unsynced.clone();
        let closed = files.len();
        if let Some(segment) = state.current.as_mut().filter(|segment| segment.last > durable) {
            if !SeededBug::SyncedBlockShared.is_on() {
                segment.end = segment.end.next_multiple_of(BLOCK);
            }
            files.push((segment.name.clone(), Arc::clone(&segment.file)));
        }
        state.syncing = true;
        let sync = || {
            if let Some(data) = self.data.as_ref().filter(|_| !SeededBug::ValuesAfterTheLog.is_on()) {
                data.sync_large_values()?;
            }
            files.iter().try_for_each(|(name, file)| file.sync().map_err(|e| final_error("sync", name, None, &e)))
        };
        let result = MutexGuard::unlocked(state, || catch_unwind(AssertUnwindSafe(sync)));
        state.syncing = false;
        let result = match result {
            Ok(result) => result,
            Err(panic) => {
                drop(self.poison(state, Error::Poisoned { first: "the device panicked in a sync".into() }));
                resume_unwind(panic);
            }
        };
        let result = if SeededBug::FailedSyncForgiven.is_on() { Ok(()) } else { result };
        match result {
            Ok(()) => {
                // Appends that failed meanwhile lie behind the target: what was synced is durable all the same.
                debug_assert!(target >= state.durable);
                state.durable = target;
                self.durable.store(target.0, Ordering::Release);
                // A segment closed during the sync stands behind these, and is synced again.
                state.unsynced.drain(..closed);
                self.synced.notify_all();
            }
            Err(error) => drop(self.poison(state, error)),
        }
    }

    /// Puts a new segment with room for `bytes` in the place of the current one. `DiskFull` has no effect.
    fn replace_segment(&self, state: &mut State, bytes: u64) -> Result<()> {
        self.write_out(state)?;
        let segment = self.create_segment(state, bytes)?;
        if let Some(old) = state.current.replace(segment) {
            let len = old.end.next_multiple_of(BLOCK);
            state.older.push(SegmentInfo { stream: STREAM, number: old.number, last: old.last, bytes: len });
            // Whatever becomes of the cut, the next sync is of this one, too.
            if old.last > state.durable {
                state.unsynced.push((old.name.clone(), old.file.clone()));
            }
            if let Err(e) = old.file.set_len(len) {
                let error = final_error("cut", &old.name, Some(len), &e);
                return Err(self.poison(state, error));
            }
        }
        state.roll_wanted = false;
        Ok(())
    }

    /// Creates the next segment: when this returns, its file, space and header are durable.
    fn create_segment(&self, state: &mut State, bytes: u64) -> Result<Segment> {
        let number = state.next_segment;
        if number > MAX_NUMBER {
            let detail = "the log has run out of segment numbers".to_owned();
            return Err(self.poison(state, Error::Unsupported { detail }));
        }
        state.next_segment += 1;
        let name = segment_name(STREAM, number);
        let capacity = self.segment_bytes.max(BLOCK + bytes.next_multiple_of(BLOCK));
        let header = Header { stream: STREAM, number, epoch: self.epoch, start: self.start, after: state.appended };
        match self.create_file(&name, capacity, &header) {
            Ok(file) => {
                state.written_bytes += BLOCK;
                let seed = header.seed(self.store);
                Ok(Segment { file, name, number, seed, capacity, end: BLOCK, last: state.appended })
            }
            Err(error @ Error::DiskFull { .. }) => {
                // If this fails too, an empty segment is left, which the next replay removes.
                let _ = self.device.remove(&name);
                Err(error)
            }
            Err(error) => Err(self.poison(state, error)),
        }
    }

    fn create_file(&self, name: &str, capacity: u64, header: &Header) -> Result<Arc<dyn File>> {
        let how = OpenHow { write: true, create_new: true, direct: false };
        let file = self.device.open(name, how).map_err(|e| Error::io("create", name, None, &e))?;
        file.allocate(0, capacity).map_err(|e| Error::io("allocate", name, Some(0), &e))?;
        write_all_at(&*file, 0, &header.encode(self.store)).map_err(|e| Error::io("write", name, Some(0), &e))?;
        file.sync().map_err(|e| Error::io("sync", name, None, &e))?;
        self.device.sync_dir().map_err(|e| Error::io("sync", &self.device.path(), None, &e))?;
        Ok(file)
    }
}

/// Empties a buffer, and gives back the memory that one large record made it take.
fn empty(buffer: &mut Vec<u8>) {
    buffer.clear();
    if buffer.capacity() > KEEP_BYTES {
        buffer.shrink_to(2 * LAZY_BYTES);
    }
}
