//! One stream of the log: its turn, its buffers, its segments.
//!
//! ```text
//!  turn ─▶ room ─▶ (seqno) ─▶ append ──▶ buffer ──write──▶ page cache      then the set syncs: `log`
//!  one at  or       drawn     encode,    lazy: stays       `pending` goes on
//!  a time  DiskFull by the    crc        until 64 KiB
//!                   caller
//! ```
//!
//! **The turn** is held from before a seqno is drawn until its record is in the buffer, so that the records of a stream go up
//! although nobody holds the sequencer meanwhile. A thread that has a stream to itself never waits for it.
//!
//! **One writes, others append.** Whoever needs a record in the page cache and finds nobody writing takes the whole buffer
//! and writes it without the lock, while others append to a second one. Who comes meanwhile waits, and finds itself
//! covered or writes what has gathered. So records reach the file in their order, and no append waits for such a write; only
//! who leads a sync, or begins a segment, writes under the lock.
//!
//! **Rolling.** A full segment is cut to its length and joins the older ones; if it has bytes that are not durable yet,
//! the next sync syncs it before the current one counts. Its successors have been made ahead by then ([`Stream::prepare`]): up to
//! four in a stream that fills one after the other, since a disk may stand still for longer than it takes to fill one. If there is none,
//! it is made now.

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Arc;

use super::SegmentInfo;
use super::format::{BLOCK, Head, Header, MAX_NUMBER, MAX_PAYLOAD, RecordKind, put_record, record_bytes, segment_name};
use super::log::MayTake;
use crate::base::sync::{AtomicBool, AtomicU64, Condvar, Counter, Mutex, MutexGuard, OnceLock, Ordering, linger};
use crate::base::{Error, Result, SeededBug, Seqno, StoreId};
use crate::device::{Device, File, OpenHow, write_all_at};

/// A lazy buffer is written when it holds this many bytes.
const LAZY_BYTES: usize = 64 << 10;
/// A buffer that one large record made longer than this is given back.
const KEEP_BYTES: usize = 1 << 20;
/// The next segment is made ahead when one part of the current one in so many is used: early, since the disk may be busy.
const WANTS_NEXT: u64 = 4;
/// So many are made ahead at most: as many as the stream has filled lately, so that a small log stays small;
const MOST_AHEAD: u64 = 4;
/// and not more bytes than this, but one.
const AHEAD_BYTES: u64 = 32 << 20;
/// No record waits for its write.
const NOTHING: u64 = u64::MAX;

/// What the streams of a log share.
#[derive(Debug)]
pub(super) struct Common {
    pub device: Arc<dyn Device>,
    pub store: StoreId,
    pub epoch: u32,
    /// The seqno after which the epoch begins.
    pub start: Seqno,
    pub segment_bytes: u64,
    /// Whether records of operations are tagged.
    pub tagged: bool,
    /// Whether segments are opened for small writes.
    pub mapped: bool,
    /// The number of the next segment, of whatever stream.
    pub next_segment: AtomicU64,
    /// Whether the header of a segment of this life is durable.
    pub has_header: AtomicBool,
    /// Everything through here is durable, in every stream: what a record may claim.
    pub durable: AtomicU64,
    /// Segments that nobody writes any more, of all streams and earlier lives.
    pub older: Mutex<Vec<SegmentInfo>>,
    pub written_bytes: Counter,
    /// A segment has been filled so far that the next one may be made ahead.
    pub wants_segment: AtomicBool,
    /// The first failure, in words.
    pub poison: OnceLock<String>,
}

impl Common {
    pub fn check(&self) -> Result<()> {
        match self.poison.get() {
            Some(first) => Err(Error::Poisoned { first: first.clone() }),
            None => Ok(()),
        }
    }

    /// Fails if something failed before: for who asks about a record that was appended.
    pub fn check_appended(&self) -> Result<()> {
        match self.poison.get() {
            Some(first) => Err(Error::Indeterminate { first: first.clone() }),
            None => Ok(()),
        }
    }

    /// Remembers the first failure.
    pub fn poison(&self, error: Error) -> Error {
        let _ = self.poison.set(error.to_string());
        error
    }

    /// As [`Common::poison`], but want of space, or of a free file, is no failure.
    fn poison_unless_refused(&self, error: Error) -> Error {
        if error.is_refusal() { error } else { self.poison(error) }
    }

    /// Bytes of a new segment that has to hold a record of so many.
    fn capacity_for(&self, bytes: u64) -> u64 {
        self.segment_bytes.max(BLOCK + bytes.next_multiple_of(BLOCK))
    }

    /// Creates the next segment of a stream, with records after that seqno if it is known yet: when this returns, its file,
    /// space and header are durable. It leaves nothing behind if it fails.
    fn create_segment(&self, stream: u32, after: Option<Seqno>, bytes: u64) -> Result<Segment> {
        let number = self.next_segment.fetch_add(1, Ordering::Relaxed);
        if number > MAX_NUMBER {
            let detail = "the log has run out of segment numbers".to_owned();
            return Err(Error::Unsupported { detail });
        }
        let name = segment_name(stream, number);
        let capacity = self.capacity_for(bytes);
        let header = Header { stream, number, epoch: self.epoch, start: self.start, after };
        match self.create_file(&name, capacity, &header) {
            Ok(file) => {
                self.has_header.store(true, Ordering::Release);
                self.written_bytes.fetch_add(BLOCK, Ordering::Relaxed);
                let seed = header.seed(self.store);
                let last = after.unwrap_or(self.start);
                Ok(Segment { file, name, number, seed, capacity, end: BLOCK, last })
            }
            Err(error) => {
                self.remove_unused(&name);
                Err(error)
            }
        }
    }

    /// Removes a segment without records. If this fails, the next replay removes it.
    fn remove_unused(&self, name: &str) {
        let _ = self.device.remove(name);
    }

    fn create_file(&self, name: &str, capacity: u64, header: &Header) -> Result<Arc<dyn File>> {
        let how = OpenHow { write: true, create_new: true, small_writes: self.mapped, ..OpenHow::default() };
        let file = self.device.open(name, how).map_err(|e| Error::io("create", name, None, &e))?;
        file.allocate(0, capacity).map_err(|e| Error::io("allocate", name, Some(0), &e))?;
        write_all_at(&*file, 0, &header.encode(self.store)).map_err(|e| Error::io("write", name, Some(0), &e))?;
        file.sync().map_err(|e| Error::io("sync", name, None, &e))?;
        if header.after.is_none() && SeededBug::SegmentAheadNotSynced.is_on() {
            return Ok(file);
        }
        // A failed sync of the directory may lose other new names and removals, too, even if only space was missing. So the
        // error is final, both for a writer and for background work.
        let synced = self.device.sync_dir();
        synced.map_err(|e| self.poison(Error::final_io("sync", &self.device.path(), None, &e)))?;
        Ok(file)
    }
}

/// One stream. In cache lines of its own, since its threads are others than its neighbours'.
#[derive(Debug)]
#[repr(align(128))]
pub(super) struct Stream {
    number: u32,
    /// Held by who has room for a record and does not know its seqno yet.
    turn: Mutex<()>,
    state: Mutex<State>,
    /// Taken after the state, or alone, by whoever creates a segment or removes those that were made ahead: the numbers of a stream's
    /// segments go up in the order in which they are used.
    making: Mutex<Making>,
    /// What was made ahead, in the order of numbers. Taken last, for a moment: who needs one that is there does not wait for the
    /// next one to be made.
    ahead: Mutex<VecDeque<Segment>>,
    /// Notified when a write without the lock ends, well or not, if somebody waits for it.
    idle: Condvar,
    /// Somebody writes what was the buffer, without the lock. Changed under it.
    writing: AtomicBool,
    /// The first seqno that is appended and not in the page cache; [`NOTHING`] if there is none. Changed under the lock.
    pending: AtomicU64,
}

/// What the lock guards.
#[derive(Debug)]
struct State {
    current: Option<Segment>,
    /// Older segments with bytes that may not be durable.
    unsynced: Vec<SyncFile>,
    /// Encoded records that end at the current segment's `end` and that nobody writes yet.
    buffer: Vec<u8>,
    /// The first seqno in the buffer, if it holds any.
    first: Seqno,
    /// The other buffer, empty, for its memory; without any while it is written.
    spare: Vec<u8>,
    /// How many wait for the end of a write.
    waiting: usize,
    /// The last seqno of this stream.
    appended: Seqno,
    /// This stream is durable through here; of others that says nothing.
    synced: Seqno,
    /// Room waits for its append: the current segment must stay.
    reserved: bool,
    /// The next reservation starts a new segment.
    roll_wanted: bool,
    /// Nothing is created any more.
    closed: bool,
}

/// What is known of the segments that were made.
#[derive(Debug, Default)]
struct Making {
    /// The number of the segment that was current when somebody last looked.
    current: u64,
    /// Nothing more is made while that is the current one: it was tried in vain, or given up.
    over: bool,
    /// How many different ones were current when somebody looked, since something made ahead was removed.
    filled: u64,
}

/// A file to be synced, by its name.
type SyncFile = (String, Arc<dyn File>);

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

    /// Whether so much of it is used that the next one may be made: an owner of a small store never pays for two.
    fn wants_next(&self) -> bool {
        self.end >= self.capacity / WANTS_NEXT
    }

    /// Whether a record of so many bytes fits, even if a sync ends the block before it is appended.
    fn fits(&self, bytes: u64) -> bool {
        self.end.next_multiple_of(BLOCK) + bytes <= self.capacity
    }
}

/// What a sync has to make durable of a stream.
#[derive(Debug)]
pub(super) struct Ready {
    /// The segments, the older first.
    pub files: Vec<SyncFile>,
    /// How many of them are closed.
    closed: usize,
    /// The stream's last seqno in them.
    pub through: Seqno,
}

/// Room for one record in a stream, whose turn it is: until it is used or dropped nobody else appends there.
#[derive(Debug)]
#[must_use = "room is for a record"]
pub struct Room<'a> {
    common: &'a Common,
    stream: &'a Stream,
    /// Payload bytes.
    bytes: usize,
    _turn: Option<MutexGuard<'a, ()>>,
}

impl Room<'_> {
    /// Appends the record of the seqnos from `first` on, which must be above all of the stream, to the buffer. The stream
    /// that is to be written by [`super::Log::write`], if it is: unless `lazy`, or once much has gathered. No I/O.
    ///
    /// # Errors
    /// `Poisoned` after an earlier failure: then nothing was appended.
    ///
    /// # Panics
    /// If the seqno is not above those of the stream, or the payload longer than its room.
    pub fn append(self, first: Seqno, count: u32, payload: &[u8], lazy: bool) -> Result<Option<u32>> {
        let kind = if self.common.tagged { RecordKind::Tagged } else { RecordKind::Ops };
        self.append_as(kind, first, count, payload, lazy)
    }

    /// The same for a record that creates a keyspace: one seqno.
    ///
    /// # Errors
    /// As [`Room::append`].
    pub fn append_created(self, first: Seqno, payload: &[u8]) -> Result<Option<u32>> {
        self.append_as(RecordKind::Created, first, 1, payload, false)
    }

    fn append_as(self, kind: RecordKind, first: Seqno, count: u32, payload: &[u8], lazy: bool) -> Result<Option<u32>> {
        assert!(payload.len() <= self.bytes, "{} bytes where {} have room", payload.len(), self.bytes);
        let due = self.stream.append(self.common, kind, first, count, payload, lazy)?;
        Ok(due.then_some(self.stream.number))
    }
}

impl Stream {
    pub fn new(number: u32, last: Seqno) -> Stream {
        let state = State {
            current: None,
            unsynced: Vec::new(),
            buffer: Vec::with_capacity(2 * LAZY_BYTES),
            first: last,
            spare: Vec::with_capacity(2 * LAZY_BYTES),
            waiting: 0,
            appended: last,
            synced: last,
            reserved: false,
            roll_wanted: false,
            closed: false,
        };
        Stream {
            number,
            turn: Mutex::new(()),
            state: Mutex::new(state),
            making: Mutex::default(),
            ahead: Mutex::default(),
            idle: Condvar::new(),
            writing: AtomicBool::new(false),
            pending: AtomicU64::new(NOTHING),
        }
    }

    /// See [`super::Log::reserve`].
    pub fn reserve<'a>(&'a self, common: &'a Common, bytes: usize, may_take: MayTake<'_>) -> Result<Room<'a>> {
        let turn = (!SeededBug::AppendOutOfTurn.is_on()).then(|| self.turn.lock());
        self.make_room(common, &mut self.state.lock(), bytes, may_take)?;
        Ok(Room { common, stream: self, bytes, _turn: turn })
    }

    fn make_room(
        &self,
        common: &Common,
        state: &mut MutexGuard<'_, State>,
        payload_bytes: usize,
        may_take: MayTake<'_>,
    ) -> Result<()> {
        if payload_bytes > MAX_PAYLOAD {
            let detail = format!("a batch of {payload_bytes} bytes; the log takes {MAX_PAYLOAD} in one, split it");
            return Err(Error::invalid(detail));
        }
        let bytes = record_bytes(payload_bytes);
        common.check()?;
        if state.closed {
            return Err(Error::Closed);
        }
        state.reserved = false;
        let fits = |state: &State| state.current.as_ref().is_some_and(|segment| segment.fits(bytes));
        if !fits(state) || state.roll_wanted {
            self.wait_for_writer(common, state)?;
            let fits = fits(state);
            let replaced =
                may_take(common.capacity_for(bytes)).and_then(|()| self.replace_segment(common, state, bytes));
            match replaced {
                // There is room where we are: a full disk can wait.
                Err(e) if fits && e.is_refusal() => {}
                result => result?,
            }
        }
        state.reserved = true;
        Ok(())
    }

    /// Whether the record is to be written.
    fn append(
        &self,
        common: &Common,
        kind: RecordKind,
        first: Seqno,
        count: u32,
        payload: &[u8],
        lazy: bool,
    ) -> Result<bool> {
        let mut state = self.state.lock();
        common.check()?;
        let state = &mut *state;
        assert!(count > 0 && first > state.appended, "record {first} after {}", state.appended);
        let bytes = record_bytes(payload.len());
        let segment = state.current.as_mut().expect("room was made");
        assert!(segment.end + bytes <= segment.capacity, "a reservation covers the append");
        let mut durable = Seqno(common.durable.load(Ordering::Acquire));
        if SeededBug::OwnSyncClaimedForAll.is_on() && state.synced == state.appended {
            durable = Seqno(first.0 - 1);
        }
        let head = Head { length: payload.len() as u32, count, first, durable, kind };
        assert!(head.last() <= Seqno::MAX && head.durable < first);
        if state.buffer.is_empty() {
            state.first = first;
            if !self.writing.load(Ordering::Relaxed) {
                self.pending.store(first.0, Ordering::Release);
            }
        }
        put_record(&mut state.buffer, segment.seed, segment.end, &head, payload);
        let wanted = segment.wants_next();
        segment.end += bytes;
        if segment.wants_next() && !wanted {
            common.wants_segment.store(true, Ordering::Relaxed);
        }
        segment.last = head.last();
        state.appended = head.last();
        state.reserved = false;
        Ok(!lazy || state.buffer.len() >= LAZY_BYTES)
    }

    /// Returns when all that was appended here through `through` is in the page cache, by one write, this thread's or
    /// another's. At once, without the lock, if it is.
    pub fn write(&self, common: &Common, through: Seqno) -> Result<()> {
        let mut round = 0;
        if SeededBug::BufferedStaysInMemory.is_on() {
            return Ok(());
        }
        while self.pending.load(Ordering::Acquire) <= through.0 {
            // Whoever writes is done in a moment, and then what has gathered since is ours to write.
            if self.writing.load(Ordering::Acquire) && linger(&mut round) {
                continue;
            }
            let mut state = self.state.lock();
            if self.pending.load(Ordering::Relaxed) > through.0 {
                break;
            }
            common.check_appended()?;
            if !self.writing.load(Ordering::Relaxed) {
                return self.write_unlocked(common, &mut state);
            }
            if SeededBug::WriteNotAwaited.is_on() {
                break;
            }
            self.rest(&mut state);
        }
        Ok(())
    }

    /// Writes what was appended lazily.
    pub fn flush(&self, common: &Common) -> Result<()> {
        let mut state = self.state.lock();
        common.check()?;
        self.wait_for_writer(common, &mut state)?;
        self.write_out(common, &mut state)
    }

    /// Writes everything and ends the block; what is to be synced for it.
    pub fn ready(&self, common: &Common) -> Result<Ready> {
        let mut state = self.state.lock();
        self.wait_for_writer(common, &mut state)?;
        self.write_out(common, &mut state)?;
        let state = &mut *state;
        let mut files = state.unsynced.clone();
        let closed = files.len();
        if let Some(segment) = state.current.as_mut().filter(|segment| segment.last > state.synced) {
            if !SeededBug::SyncedBlockShared.is_on() {
                segment.end = segment.end.next_multiple_of(BLOCK);
            }
            files.push((segment.name.clone(), Arc::clone(&segment.file)));
        }
        Ok(Ready { files, closed, through: state.appended })
    }

    /// What was ready is durable. A segment closed during the sync stands behind these, and is synced again.
    pub fn note_sync(&self, ready: &Ready) {
        let mut state = self.state.lock();
        debug_assert!(ready.through >= state.synced);
        state.synced = ready.through;
        state.unsynced.drain(..ready.closed);
    }

    /// See [`super::Log::prepare`].
    pub fn prepare(&self, common: &Common, may_take: MayTake<'_>) -> Result<()> {
        common.check()?;
        let most = MOST_AHEAD.min(AHEAD_BYTES / common.segment_bytes).max(1);
        loop {
            let state = self.state.lock();
            // One that was made for a long record says nothing of the next.
            let wants = |segment: &&Segment| segment.wants_next() && segment.capacity <= common.segment_bytes;
            let current = state.current.as_ref().filter(wants).filter(|_| !state.closed);
            let Some(current) = current.map(|segment| segment.number) else { return Ok(()) };
            // Nobody who only appends is to wait for what follows.
            drop(state);
            // For one segment at a time, so that who waits for one gets it. Whoever has the lock now makes one, or will be asked
            // again.
            let Some(mut making) = self.making.try_lock() else { return Ok(()) };
            // What another has seen since is newer.
            if making.current < current {
                *making = Making { current, over: false, filled: making.filled + 1 };
            }
            if making.over || self.ahead.lock().len() as u64 >= making.filled.min(most) {
                return Ok(());
            }
            let made = may_take(common.segment_bytes).and_then(|()| common.create_segment(self.number, None, 0));
            match made {
                Ok(segment) => self.ahead.lock().push_back(segment),
                // Nothing was lost by it: the writer will make its segment, and see.
                Err(_) => {
                    making.over = true;
                    return common.check();
                }
            }
        }
    }

    /// See [`super::Log::give_up_prepared`].
    pub fn give_up_prepared(&self, common: &Common) -> bool {
        let current = self.state.lock().current.as_ref().map_or(0, |segment| segment.number);
        let mut making = self.making.lock();
        *making = Making { current: making.current.max(current), over: true, filled: 0 };
        self.remove_ahead(common, &mut making)
    }

    /// Removes what was made ahead. Whether there was any.
    fn remove_ahead(&self, common: &Common, making: &mut Making) -> bool {
        let unused = std::mem::take(&mut *self.ahead.lock());
        unused.iter().for_each(|segment| common.remove_unused(&segment.name));
        if !unused.is_empty() {
            making.filled = 0;
        }
        !unused.is_empty()
    }

    /// See [`super::Log::trim`].
    pub fn trim(&self, common: &Common) -> Result<()> {
        let mut state = self.state.lock();
        common.check()?;
        self.wait_for_writer(common, &mut state)?;
        state.roll_wanted = true;
        self.remove_ahead(common, &mut self.making.lock());
        let Some(segment) = &mut state.current else { return Ok(()) };
        segment.capacity = segment.end.next_multiple_of(BLOCK);
        segment
            .file
            .set_len(segment.capacity)
            .map_err(|e| Error::final_io("cut", &segment.name, Some(segment.capacity), &e))
    }

    /// Refuses room from now on.
    pub fn close(&self) {
        self.state.lock().closed = true;
    }

    /// See [`super::Log::roll`].
    pub fn roll(&self, common: &Common) -> Result<()> {
        let mut state = self.state.lock();
        common.check()?;
        self.wait_for_writer(common, &mut state)?;
        if state.current.as_ref().is_none_or(Segment::is_empty) {
            return Ok(());
        }
        if state.reserved {
            state.roll_wanted = true;
            return Ok(());
        }
        match self.replace_segment(common, &mut state, 0) {
            Err(e) if e.is_refusal() => {
                state.roll_wanted = true;
                Ok(())
            }
            result => result,
        }
    }

    /// Bytes of the current segment, up to its last record.
    pub fn current_bytes(&self) -> u64 {
        self.state.lock().current.as_ref().map_or(0, |segment| segment.end)
    }

    /// The last seqno that was appended here, and the first of those that are not written.
    #[cfg(test)]
    pub fn reach(&self) -> (Seqno, Option<Seqno>) {
        let state = self.state.lock();
        let pending = self.pending.load(Ordering::Relaxed);
        (state.appended, (pending != NOTHING).then_some(Seqno(pending)))
    }

    /// Waits for the end of a write without the lock.
    fn rest(&self, state: &mut MutexGuard<'_, State>) {
        state.waiting += 1;
        self.idle.wait(state);
        state.waiting -= 1;
    }

    /// Waits until nobody writes without the lock: for those who write under it, or move the segment's end.
    fn wait_for_writer(&self, common: &Common, state: &mut MutexGuard<'_, State>) -> Result<()> {
        while self.writing.load(Ordering::Relaxed) {
            self.rest(state);
        }
        common.check()
    }

    /// Where the buffer belongs.
    fn place(state: &State) -> Option<(&Segment, u64)> {
        let segment = state.current.as_ref().filter(|_| !state.buffer.is_empty())?;
        let at = segment.end - state.buffer.len() as u64;
        debug_assert!(at >= BLOCK && segment.end <= segment.capacity);
        Some((segment, at))
    }

    /// Writes the buffer to the current segment, under the lock. Nobody writes without it.
    fn write_out(&self, common: &Common, state: &mut State) -> Result<()> {
        debug_assert!(!self.writing.load(Ordering::Relaxed));
        let Some((segment, at)) = Stream::place(state) else { return Ok(()) };
        let done = write_all_at(&*segment.file, at, &state.buffer)
            .map_err(|e| Error::final_io("write", &segment.name, Some(at), &e));
        let mut buffer = std::mem::take(&mut state.buffer);
        let written = done.map(|()| buffer.len());
        empty(&mut buffer);
        state.buffer = buffer;
        self.note_write(common, state, written)
    }

    /// Writes the buffer to the current segment, without the lock. A panic of the device poisons, and goes on.
    fn write_unlocked(&self, common: &Common, state: &mut MutexGuard<'_, State>) -> Result<()> {
        let Some((segment, at)) = Stream::place(state) else { return Ok(()) };
        let file = Arc::clone(&segment.file);
        let spare = std::mem::take(&mut state.spare);
        let mut buffer = std::mem::replace(&mut state.buffer, spare);
        self.writing.store(true, Ordering::Release);
        let work = || catch_unwind(AssertUnwindSafe(|| write_all_at(&*file, at, &buffer)));
        let result = MutexGuard::unlocked(state, work);
        // Still the segment that was written: to replace it one waits for the writer.
        let name = || state.current.as_ref().map_or_else(String::new, |segment| segment.name.clone());
        let written = match &result {
            Ok(Ok(())) => Ok(buffer.len()),
            Ok(Err(e)) => Err(Error::final_io("write", &name(), Some(at), e)),
            Err(_) => Err(Error::Poisoned { first: format!("the device panicked in a write to `{}`", name()) }),
        };
        empty(&mut buffer);
        state.spare = buffer;
        let noted = self.note_write(common, state, written);
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

    /// Notes what became of a write of so many bytes: what is in the buffer now comes next.
    fn note_write(&self, common: &Common, state: &mut State, written: Result<usize>) -> Result<()> {
        let bytes = written.map_err(|error| common.poison(error))?;
        common.written_bytes.fetch_add(bytes as u64, Ordering::Relaxed);
        let pending = if state.buffer.is_empty() { NOTHING } else { state.first.0 };
        self.pending.store(pending, Ordering::Release);
        Ok(())
    }

    /// The segment that was made ahead, if a record of so many bytes fits, or a new one; with records after that seqno.
    fn take_segment(&self, common: &Common, after: Seqno, bytes: u64) -> Result<Segment> {
        let made = || {
            let mut ahead = self.ahead.lock();
            ahead.front().filter(|segment| segment.fits(bytes))?;
            ahead.pop_front().map(|segment| Segment { last: after, ..segment })
        };
        if let Some(segment) = made() {
            return Ok(segment);
        }
        // One that is being made is waited for: another one would take longer.
        let mut making = self.making.lock();
        if let Some(segment) = made() {
            return Ok(segment);
        }
        self.remove_ahead(common, &mut making);
        let created = common.create_segment(self.number, Some(after), bytes);
        created.map_err(|error| common.poison_unless_refused(error))
    }

    /// Puts a new segment with room for `bytes` in the place of the current one. `DiskFull` has no effect.
    fn replace_segment(&self, common: &Common, state: &mut State, bytes: u64) -> Result<()> {
        self.write_out(common, state)?;
        let segment = self.take_segment(common, state.appended, bytes)?;
        if let Some(old) = state.current.replace(segment) {
            let len = old.end.next_multiple_of(BLOCK);
            let info = SegmentInfo { stream: self.number, number: old.number, last: old.last, bytes: len };
            common.older.lock().push(info);
            // Whatever becomes of the cut, the next sync is of this one, too.
            if old.last > state.synced {
                state.unsynced.push((old.name.clone(), old.file.clone()));
            }
            if let Err(e) = old.file.set_len(len) {
                let error = Error::final_io("cut", &old.name, Some(len), &e);
                return Err(common.poison(error));
            }
        }
        state.roll_wanted = false;
        Ok(())
    }
}

/// Empties a buffer, and gives back the memory that one large record made it take.
fn empty(buffer: &mut Vec<u8>) {
    buffer.clear();
    if buffer.capacity() > KEEP_BYTES {
        buffer.shrink_to(2 * LAZY_BYTES);
    }
}
