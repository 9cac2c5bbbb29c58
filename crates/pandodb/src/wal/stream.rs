//! One stream of the log: its append lock (the *turn*), its buffers, its segments.
//!
//! ```text
//!  turn ─▶ room ─▶ (seqno) ─▶ append ──▶ buffer ──write──▶ page cache      then `log` syncs all streams
//!  one at  or       drawn     encode,    lazy: stays       `pending` advances
//!  a time  DiskFull by the    crc        until 64 KiB
//!                   caller
//! ```
//!
//! **The turn.** A thread holds the turn from before it draws a seqno until its record is in the buffer. So the records
//! of a stream ascend although the sequencer is released in between. A thread that is the only user of its stream never
//! waits for the turn.
//!
//! **One thread writes, others append.** A thread that needs a record in the page cache and finds no write running
//! takes the whole buffer. The thread writes this buffer without holding the lock `state`, while other threads append
//! to a second buffer. A thread that needs its record in the page cache during this write waits until the write has
//! ended. If the write did not include its record, the thread then writes all records that have accumulated. So records
//! reach the file in order, and no append waits for such a write. Only a sync leader, or a thread that begins a
//! segment, writes while it holds the lock.
//!
//! **Rolling.** When a segment is full, it is cut to the length of its records and added to the older segments. If some
//! of its bytes are not durable yet, the next sync includes this segment, before the new current segment counts as
//! durable. Normally, the next segment has already been created in advance ([`Stream::prepare`]). A stream that fills
//! segments quickly has up to four such segments, because a disk may stall for longer than the stream takes to fill one
//! segment. If no segment was created in advance, the next one is created when the current one is full.
//!
//! Invariants: the buffer ends at the current segment's `end`; at most one thread writes at a time (`writing`), and no
//! thread replaces the current segment during that write; the numbers of a stream's segments ascend in the order of
//! their use.
//!
//! Source: our own design; one log per thread follows 002 §3.6.4.

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Arc;

use super::common::{Common, MayTake, Segment};
use super::format::{BLOCK, Head, MAX_PAYLOAD, RecordKind, put_record_with, record_bytes};
use super::{MAX_STREAMS, SegmentInfo};
use crate::base::sync::{AtomicBool, AtomicU64, Condvar, Mutex, MutexGuard, Ordering, linger};
use crate::base::{Error, Result, SeededBug, Seqno, seeded};
use crate::device::{File, write_all_at};

/// A buffer of lazy records is written when it holds this many bytes.
const LAZY_BYTES: usize = 64 << 10;
/// A buffer that one large record made longer than this many bytes is shrunk.
pub const KEEP_BYTES: usize = 1 << 20;
/// The most segments that are created in advance. No more segments are created in advance than the stream has filled
/// recently, so that a small log stays small.
const MOST_AHEAD: u64 = 4;
/// The most bytes of segments created in advance. One such segment is always permitted, whatever its size.
const AHEAD_BYTES: u64 = 32 << 20;
/// The value of `pending` if no record waits to be written.
const NOTHING: u64 = u64::MAX;
const _: () = assert!(NOTHING > Seqno::MAX.0, "no seqno stands for an empty buffer");
const _: () = assert!(2 * LAZY_BYTES <= KEEP_BYTES, "a buffer of lazy records is not shrunk");

/// One stream. Aligned to cache lines of its own, since other threads use the neighbouring streams.
#[derive(Debug)]
#[repr(align(128))]
pub(super) struct Stream {
    number: u32,
    /// The append lock. A thread holds it from the reservation of space for a record until the record is appended.
    turn: Mutex<()>,
    state: Mutex<State>,
    /// Held by a thread that creates a segment, or that removes segments created in advance. A thread takes this lock
    /// alone or while it holds `state`. So the numbers of a stream's segments ascend in the order of their use.
    making: Mutex<Making>,
    /// Segments that were created in advance, in the order of their numbers. This lock is held only briefly and is the
    /// last one in the lock order. So a thread that takes a segment from this list does not wait while another one is
    /// being created.
    ahead: Mutex<VecDeque<Segment>>,
    /// Notified when a write without the lock ends, successfully or not, if any thread waits for the end of the write.
    idle: Condvar,
    /// Whether a thread is writing the other buffer without the lock. Changed under the lock of `state`.
    writing: AtomicBool,
    /// The first seqno that is appended but not yet in the page cache, or [`NOTHING`] if there is none. Changed only
    /// under the lock of `state`.
    pending: AtomicU64,
}

/// The state that the lock `state` guards.
#[derive(Debug)]
struct State {
    current: Option<Segment>,
    /// Older segments with bytes that may not be durable.
    unsynced: Vec<SyncFile>,
    /// Encoded records that end at the current segment's `end`, and that no thread is writing yet.
    buffer: Vec<u8>,
    /// The first seqno in the buffer, if the buffer holds any record.
    first: Seqno,
    /// The second buffer, which is empty and is kept to reuse its memory. While a thread is writing a buffer, this
    /// field has no memory.
    spare: Vec<u8>,
    /// The number of threads that wait for the end of a write.
    waiting: usize,
    /// The last seqno appended to this stream.
    appended: Seqno,
    /// All records of this stream through this seqno are durable. Other streams may not be durable through this seqno.
    synced: Seqno,
    /// Whether a reservation is in use, so that the current segment must not be replaced.
    reserved: bool,
    /// Whether the next reservation starts a new segment.
    roll_wanted: bool,
    /// Whether new reservations are refused.
    closed: bool,
}

impl State {
    /// Checks the invariants.
    fn check(&self) {
        debug_assert!(self.synced <= self.appended, "synced through {}, appended {}", self.synced, self.appended);
        debug_assert!(self.buffer.is_empty() || self.first <= self.appended, "the buffer holds appended records");
        let fits = |segment: &Segment| self.buffer.len() as u64 <= segment.end - BLOCK;
        debug_assert!(self.current.as_ref().map_or(self.buffer.is_empty(), fits), "the buffer ends the segment");
        debug_assert!(self.current.as_ref().is_none_or(|segment| segment.last == self.appended));
    }
}

/// The state of creating segments in advance.
#[derive(Debug, Default)]
struct Making {
    /// The number of the segment that was current at the last call of [`Stream::prepare`].
    current: u64,
    /// Whether no more segments are created as long as segment `current` is the current one, because an attempt failed,
    /// or because segments that were created in advance have been removed.
    over: bool,
    /// The number of different current segments that [`Stream::prepare`] has seen since the last removal of segments
    /// that were created in advance.
    filled: u64,
}

/// A file to be synced, with its name.
type SyncFile = (String, Arc<dyn File>);

/// The files of a stream that a sync has to make durable.
#[derive(Debug)]
pub(super) struct Ready {
    /// The segments, older ones first.
    pub files: Vec<SyncFile>,
    /// The number of files that are older segments, not the current one.
    closed: usize,
    /// The last seqno of this stream in `files`.
    pub through: Seqno,
}

/// Reserved space for one record in a stream, together with the stream's append lock. Until the reservation is used or
/// dropped, no other thread appends to the stream.
#[derive(Debug)]
#[must_use = "a reservation is for a record"]
pub struct AppendReservation<'a> {
    common: &'a Common,
    stream: &'a Stream,
    /// The reserved length of the payload, in bytes.
    bytes: usize,
    _turn: Option<MutexGuard<'a, ()>>,
}

impl AppendReservation<'_> {
    /// Appends the record with the seqnos from `first` on to the buffer; `first` must be above all seqnos of the
    /// stream. If the record is not `lazy`, or if 64 KiB of records have accumulated, returns the number of the stream,
    /// which the caller must then write by [`super::Log::write`]. Does no I/O.
    ///
    /// # Errors
    /// `Poisoned` after an earlier failure; in this case the record was not appended.
    ///
    /// # Panics
    /// If the seqno is not above all seqnos of the stream, or if the payload is longer than the reserved length.
    pub fn append(self, first: Seqno, count: u32, payload: &[u8], lazy: bool) -> Result<Option<u32>> {
        self.append_with(first, count, payload.len(), lazy, |out| out.extend_from_slice(payload))
    }

    /// As [`AppendReservation::append`], for a payload of `bytes` bytes that `encode` appends directly to the stream's
    /// buffer. So the payload is not copied from a buffer of the caller.
    ///
    /// # Errors
    /// As [`AppendReservation::append`].
    ///
    /// # Panics
    /// As [`AppendReservation::append`], or if `encode` appends a number of bytes other than `bytes`.
    #[inline]
    pub fn append_with(
        self,
        first: Seqno,
        count: u32,
        bytes: usize,
        lazy: bool,
        encode: impl FnOnce(&mut Vec<u8>),
    ) -> Result<Option<u32>> {
        let kind = if self.common.tagged { RecordKind::Tagged } else { RecordKind::Ops };
        self.append_as(head(kind, first, count, bytes), lazy, encode)
    }

    /// As [`AppendReservation::append`], for a record that creates a keyspace and takes one seqno.
    ///
    /// # Errors
    /// As [`AppendReservation::append`].
    pub fn append_created(self, first: Seqno, payload: &[u8]) -> Result<Option<u32>> {
        let head = head(RecordKind::Created, first, 1, payload.len());
        self.append_as(head, false, |out| out.extend_from_slice(payload))
    }

    /// As [`AppendReservation::append_created`], for the record of a sorted load.
    ///
    /// # Errors
    /// As [`AppendReservation::append`].
    pub fn append_loaded(self, seqno: Seqno, payload: &[u8]) -> Result<Option<u32>> {
        let head = head(RecordKind::Loaded, seqno, 1, payload.len());
        self.append_as(head, false, |out| out.extend_from_slice(payload))
    }

    #[inline]
    fn append_as(self, head: Head, lazy: bool, encode: impl FnOnce(&mut Vec<u8>)) -> Result<Option<u32>> {
        assert!(head.length as usize <= self.bytes, "{} bytes where {} are reserved", head.length, self.bytes);
        let due = self.stream.append(self.common, head, lazy, encode)?;
        Ok(due.then_some(self.stream.number))
    }
}

/// The head of a record that is not appended yet.
fn head(kind: RecordKind, first: Seqno, count: u32, bytes: usize) -> Head {
    let length = u32::try_from(bytes).expect("a reservation is for at most `MAX_PAYLOAD` bytes");
    Head { length, count, first, durable: Seqno(0), kind }
}

impl Stream {
    pub fn new(number: u32, last: Seqno) -> Stream {
        assert!((number as usize) < MAX_STREAMS && last <= Seqno::MAX);
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
    pub fn reserve<'a>(
        &'a self,
        common: &'a Common,
        bytes: usize,
        may_take: MayTake<'_>,
    ) -> Result<AppendReservation<'a>> {
        let turn = (!SeededBug::AppendOutOfTurn.is_on()).then(|| self.turn.lock());
        self.make_room(common, &mut self.state.lock(), bytes, may_take)?;
        Ok(AppendReservation { common, stream: self, bytes, _turn: turn })
    }

    /// Ensures that the current segment has space for the record.
    /// REQUIRES: the caller holds `turn` and `state`.
    fn make_room(
        &self,
        common: &Common,
        state: &mut MutexGuard<'_, State>,
        payload_bytes: usize,
        may_take: MayTake<'_>,
    ) -> Result<()> {
        if payload_bytes > MAX_PAYLOAD {
            let detail = format!("the batch has {payload_bytes} bytes, the limit is {MAX_PAYLOAD}; split it");
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
                // The current segment has space for the record, so the record can be appended although the disk is
                // full.
                Err(e) if fits && e.is_refusal() => {}
                result => result?,
            }
        }
        debug_assert!(fits(state), "a reservation has room");
        state.reserved = true;
        Ok(())
    }

    /// Encodes a record into the buffer; sets the seqno through which the log is durable in its head. Returns whether
    /// the caller must write the record.
    /// REQUIRES: the caller holds `turn`.
    fn append(&self, common: &Common, mut head: Head, lazy: bool, encode: impl FnOnce(&mut Vec<u8>)) -> Result<bool> {
        let first = head.first;
        let mut state = self.state.lock();
        common.check()?;
        let state = &mut *state;
        assert!(head.count > 0 && first > state.appended, "record {first} after {}", state.appended);
        debug_assert!(state.reserved, "an append follows a reservation");
        let bytes = head.record_bytes();
        let segment = state.current.as_mut().expect("room was made");
        assert!(segment.end + bytes <= segment.capacity, "a reservation covers the append");
        let durable = Seqno(common.durable.load(Ordering::Acquire));
        head.durable = seeded!(
            OwnSyncClaimedForAll: if state.synced == state.appended { Seqno(first.0 - 1) } else { durable },
            durable
        );
        assert!(head.last() <= Seqno::MAX && head.durable < first);
        if state.buffer.is_empty() {
            state.first = first;
            if !self.writing.load(Ordering::Relaxed) {
                self.pending.store(first.0, Ordering::Release);
            }
        }
        put_record_with(&mut state.buffer, segment.seed, segment.end, &head, encode);
        let wanted = segment.wants_next();
        segment.end += bytes;
        if segment.wants_next() && !wanted {
            common.wants_segment.store(true, Ordering::Relaxed);
        }
        segment.last = head.last();
        state.appended = head.last();
        state.reserved = false;
        state.check();
        Ok(!lazy || state.buffer.len() >= LAZY_BYTES)
    }

    /// Returns when all records that were appended to this stream through `through` are in the page cache. This thread
    /// or another one writes these records. Returns immediately, without taking the lock, if they already are in the
    /// page cache.
    pub fn write(&self, common: &Common, through: Seqno) -> Result<()> {
        let mut round = 0;
        let through = seeded!(BufferedStaysInMemory: Seqno(0), through);
        while self.pending.load(Ordering::Acquire) <= through.0 {
            // A running write will probably end soon. If so, this thread can write the records that have accumulated in
            // the meantime.
            if self.writing.load(Ordering::Acquire) && linger(&mut round) {
                continue;
            }
            let mut state = self.state.lock();
            let is_written = self.pending.load(Ordering::Relaxed) > through.0;
            if seeded!(WriteNotAwaited: is_written || self.writing.load(Ordering::Relaxed), is_written) {
                break;
            }
            common.check_appended()?;
            if !self.writing.load(Ordering::Relaxed) {
                return self.write_unlocked(common, &mut state);
            }
            self.rest(&mut state);
        }
        Ok(())
    }

    /// Writes the lazy records.
    pub fn flush(&self, common: &Common) -> Result<()> {
        let mut state = self.state.lock();
        common.check()?;
        self.wait_for_writer(common, &mut state)?;
        self.write_out(common, &mut state)
    }

    /// Writes all records and ends the block. Returns the files to sync.
    pub fn ready(&self, common: &Common) -> Result<Ready> {
        let mut state = self.state.lock();
        self.wait_for_writer(common, &mut state)?;
        self.write_out(common, &mut state)?;
        let state = &mut *state;
        assert!(state.buffer.is_empty(), "a sync follows the write of all records");
        let mut files = state.unsynced.clone();
        let closed = files.len();
        if let Some(segment) = state.current.as_mut().filter(|segment| segment.last > state.synced) {
            segment.end = seeded!(SyncedBlockShared: segment.end, segment.end.next_multiple_of(BLOCK));
            assert!(segment.end <= segment.capacity, "the block that a sync ends is inside the segment");
            files.push((segment.name.clone(), Arc::clone(&segment.file)));
        }
        Ok(Ready { files, closed, through: state.appended })
    }

    /// Notes that the files of `ready` are durable. If a segment became full during the sync, it comes after these
    /// files in the list `unsynced`, so the next sync includes it.
    pub fn note_sync(&self, ready: &Ready) {
        let mut state = self.state.lock();
        assert!(state.synced <= ready.through && ready.through <= state.appended, "a sync covers appended records");
        assert!(ready.closed <= state.unsynced.len(), "only a sync removes unsynced segments");
        state.synced = ready.through;
        state.unsynced.drain(..ready.closed);
        state.check();
    }

    /// See [`super::Log::prepare`].
    pub fn prepare(&self, common: &Common, may_take: MayTake<'_>) -> Result<()> {
        common.check()?;
        let most = MOST_AHEAD.min(AHEAD_BYTES / common.segment_bytes).max(1);
        loop {
            let state = self.state.lock();
            // A segment that was created for a long record does not show how fast the stream fills segments.
            let wants = |segment: &&Segment| segment.wants_next() && segment.capacity <= common.segment_bytes;
            let current = state.current.as_ref().filter(wants).filter(|_| !state.closed);
            let Some(current) = current.map(|segment| segment.number) else { return Ok(()) };
            // Release the lock, so that appending threads do not wait for the following I/O.
            drop(state);
            // Take the lock for one segment at a time, so that a thread that waits for a segment gets it. If another
            // thread holds the lock, that thread creates a segment itself, or `prepare` is called again later.
            let Some(mut making) = self.making.try_lock() else { return Ok(()) };
            // Another thread may have seen a newer current segment.
            if making.current < current {
                *making = Making { current, over: false, filled: making.filled + 1 };
            }
            if making.over || self.ahead.lock().len() as u64 >= making.filled.min(most) {
                return Ok(());
            }
            let made = may_take(common.segment_bytes).and_then(|()| common.create_segment(self.number, None, 0));
            match made {
                Ok(segment) => {
                    let mut ahead = self.ahead.lock();
                    let before = ahead.back().map_or(current, |last| last.number);
                    assert!(before < segment.number, "segment {} is made after {before}", segment.number);
                    ahead.push_back(segment);
                    assert!(ahead.len() as u64 <= MOST_AHEAD, "few segments are made ahead");
                }
                // Not an error: the thread that needs the segment will create it.
                Err(_) => {
                    making.over = true;
                    return common.check();
                }
            }
        }
    }

    /// See [`super::Log::discard_preallocated`].
    pub fn discard_preallocated(&self, common: &Common) -> bool {
        let current = self.state.lock().current.as_ref().map_or(0, |segment| segment.number);
        let mut making = self.making.lock();
        *making = Making { current: making.current.max(current), over: true, filled: 0 };
        self.remove_ahead(common, &mut making)
    }

    /// Removes the segments created in advance. Returns whether there were such segments.
    /// REQUIRES: the caller holds `making`.
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

    /// Refuses reservations from now on.
    pub fn close(&self) {
        self.state.lock().closed = true;
    }

    /// See [`super::Log::roll`].
    #[cfg(test)]
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

    /// The last seqno that was appended to this stream, and the first appended seqno that is not written.
    #[cfg(test)]
    pub fn reach(&self) -> (Seqno, Option<Seqno>) {
        let state = self.state.lock();
        let pending = self.pending.load(Ordering::Relaxed);
        (state.appended, (pending != NOTHING).then_some(Seqno(pending)))
    }

    /// Waits until a write without the lock ends.
    /// REQUIRES: the caller holds `state`. The lock is released during the wait.
    fn rest(&self, state: &mut MutexGuard<'_, State>) {
        state.waiting += 1;
        self.idle.wait(state);
        state.waiting -= 1;
    }

    /// Waits until no thread writes without the lock. Call this function before writing under the lock or moving the
    /// segment's end.
    /// REQUIRES: the caller holds `state`. The lock is released during the wait.
    fn wait_for_writer(&self, common: &Common, state: &mut MutexGuard<'_, State>) -> Result<()> {
        while self.writing.load(Ordering::Relaxed) {
            self.rest(state);
        }
        common.check()
    }

    /// The segment and offset to which the buffer belongs.
    fn place(state: &State) -> Option<(&Segment, u64)> {
        let segment = state.current.as_ref().filter(|_| !state.buffer.is_empty())?;
        let at = segment.end - state.buffer.len() as u64;
        debug_assert!(at >= BLOCK && segment.end <= segment.capacity, "the buffer lies inside the segment");
        debug_assert!(at.is_multiple_of(8) && state.first <= segment.last, "the buffer holds whole records");
        Some((segment, at))
    }

    /// Writes the buffer to the current segment, under the lock.
    /// REQUIRES: the caller holds `state`, and no other thread is writing.
    fn write_out(&self, common: &Common, state: &mut State) -> Result<()> {
        debug_assert!(!self.writing.load(Ordering::Relaxed));
        let Some((segment, at)) = Stream::place(state) else { return Ok(()) };
        let done = write_all_at(&*segment.file, at, &state.buffer)
            .map_err(|e| Error::final_io("write", &segment.name, Some(at), &e));
        let mut buffer = std::mem::take(&mut state.buffer);
        let written = done.map(|()| buffer.len());
        empty(&mut buffer);
        state.buffer = buffer;
        debug_assert!(state.spare.is_empty(), "no write was interrupted");
        self.note_write(common, state, written)
    }

    /// Writes the buffer to the current segment, without the lock. A panic of the device poisons the log and is
    /// resumed.
    /// REQUIRES: the caller holds `state`, and no other thread is writing. The lock is released during the write.
    fn write_unlocked(&self, common: &Common, state: &mut MutexGuard<'_, State>) -> Result<()> {
        let Some((segment, at)) = Stream::place(state) else { return Ok(()) };
        let file = Arc::clone(&segment.file);
        let spare = std::mem::take(&mut state.spare);
        assert!(spare.is_empty(), "the buffer for new records is empty");
        assert!(!self.writing.load(Ordering::Relaxed), "at most one thread writes");
        let mut buffer = std::mem::replace(&mut state.buffer, spare);
        self.writing.store(true, Ordering::Release);
        let work = || catch_unwind(AssertUnwindSafe(|| write_all_at(&*file, at, &buffer)));
        let result = MutexGuard::unlocked(state, work);
        let name = || state.current.as_ref().map_or_else(String::new, |segment| segment.name.clone());
        let written = match &result {
            Ok(Ok(())) => Ok(buffer.len()),
            Ok(Err(e)) => Err(Error::final_io("write", &name(), Some(at), e)),
            Err(_) => Err(Error::Poisoned { first: format!("the device panicked in a write to `{}`", name()) }),
        };
        empty(&mut buffer);
        state.spare = buffer;
        let noted = self.note_write(common, state, written);
        // Clear the flag only after `pending` was updated, because a thread that waits for the writer checks `pending`
        // first.
        self.writing.store(false, Ordering::Release);
        if state.waiting > 0 {
            self.idle.notify_all();
        }
        // A thread that replaces the segment waits for the writer.
        let is_same = |segment: &Segment| Arc::ptr_eq(&segment.file, &file);
        assert!(state.current.as_ref().is_some_and(is_same), "the segment was replaced during a write");
        if let Err(panic) = result {
            resume_unwind(panic);
        }
        noted
    }

    /// Records the result of a write, and sets `pending` to the first record of the present buffer.
    /// REQUIRES: the caller holds `state`.
    fn note_write(&self, common: &Common, state: &mut State, written: Result<usize>) -> Result<()> {
        let bytes = written.map_err(|error| common.poison(error))?;
        common.written_bytes.fetch_add(bytes as u64, Ordering::Relaxed);
        debug_assert!(state.buffer.is_empty() || state.first <= state.appended);
        let pending = if state.buffer.is_empty() { NOTHING } else { state.first.0 };
        self.pending.store(pending, Ordering::Release);
        Ok(())
    }

    /// Returns the next segment that was created in advance, if a record of `bytes` bytes fits into it. Otherwise
    /// creates a segment and returns it. The records of the returned segment have seqnos above `after`.
    /// REQUIRES: the caller holds `state`.
    fn take_segment(&self, common: &Common, after: Seqno, bytes: u64) -> Result<Segment> {
        let made = || {
            let mut ahead = self.ahead.lock();
            ahead.front().filter(|segment| segment.fits(bytes))?;
            ahead.pop_front().map(|segment| Segment { last: after, ..segment })
        };
        if let Some(segment) = made() {
            return Ok(segment);
        }
        // If another thread is creating a segment, wait for it, because creating one more segment would take longer.
        let mut making = self.making.lock();
        if let Some(segment) = made() {
            return Ok(segment);
        }
        self.remove_ahead(common, &mut making);
        let created = common.create_segment(self.number, Some(after), bytes);
        created.map_err(|error| common.poison_unless_refused(error))
    }

    /// Replaces the current segment by one with space for `bytes` bytes. If the disk is full, nothing changes.
    /// REQUIRES: the caller holds `state`, and no other thread is writing.
    fn replace_segment(&self, common: &Common, state: &mut State, bytes: u64) -> Result<()> {
        self.write_out(common, state)?;
        let segment = self.take_segment(common, state.appended, bytes)?;
        let number = segment.number;
        assert!(segment.fits(bytes) && segment.last == state.appended, "the record follows those of the stream");
        if let Some(old) = state.current.replace(segment) {
            assert!(old.number < number, "segments are used in the order of their numbers");
            let len = old.end.next_multiple_of(BLOCK);
            assert!(len <= old.capacity, "a segment is cut, not extended");
            let info = SegmentInfo { stream: self.number, number: old.number, last: old.last, bytes: len };
            common.older.lock().push(info);
            // The next sync includes the old segment, whether or not cutting it succeeds.
            if old.last > state.synced {
                state.unsynced.push((old.name.clone(), old.file.clone()));
            }
            if let Err(e) = old.file.set_len(len) {
                let error = Error::final_io("cut", &old.name, Some(len), &e);
                return Err(common.poison(error));
            }
        }
        state.roll_wanted = false;
        state.check();
        Ok(())
    }
}

/// Empties a buffer, and frees the extra memory that one large record needed.
fn empty(buffer: &mut Vec<u8>) {
    buffer.clear();
    if buffer.capacity() > KEEP_BYTES {
        buffer.shrink_to(2 * LAZY_BYTES);
    }
}
