//! The writer: a set of streams, and the syncs that make all of them durable together.
//!
//! ```text
//!   thread a ─▶ stream 0 │ 4 │ 5 │   │   │ 8 │   │       each thread has a stream (some share one, by their
//!   thread b ─▶ stream 1 │   │   │ 6 │   │   │ 9 │       numbers); what is to be synced goes to stream 0
//!   thread c ─▶ stream 2 │   │   │   │ 7 │   │   │
//!                                    ▲ sync(7): what the streams hold now is written, each ends its block, all are
//!                                      synced, `durable` = 7. Not 9: whether 8 was appended in time nobody asked.
//! ```
//!
//! **Group commit.** Whoever wants a seqno durable and finds no sync running leads: it takes the highest seqno that anyone
//! wants, writes the buffers of all streams, ends their blocks, and syncs without a lock those that have something new,
//! while appends go on in the blocks after it. Others wait; when they wake, they are covered, or one of them leads the next
//! round. No timer: a batch is what arrived during the sync before it.
//!
//! **Who is to be synced meets in the first stream.** Records that are only to be in the page cache, or nowhere yet, gain by
//! streams: their writes are beside each other. Those that wait for a sync lose, since each file more is a sync more. So they
//! all go to stream 0, and where nobody writes anything else a sync is of one file, however many streams there are.
//!
//! **What may be claimed.** Who asks for a seqno knows that it and all below are appended, in whatever stream: a commit asks
//! when the watermark has passed it. So a sync may claim what it was asked for and no more, though more of some streams is
//! durable then: in a stream that it had looked at already, an earlier seqno may have come later. Records claim what such a
//! sync claimed, for all streams; never what their own stream knows of itself.
//!
//! **What survives a kill.** A commit that has to be in the page cache writes its own stream. Commits before it that have to
//! be there as well did so before they were finished, and it waits until they are. Those that were acknowledged for nothing
//! (*lazy*) may still be in a buffer of another stream; without them the log would end before the commit. So once all before
//! it are finished, hence appended, it asks every stream for lazy ones before its own seqno ([`Log::write_before`]).

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Arc;

use super::SegmentInfo;
use super::format::{BLOCK, segment_name};
use super::stream::{Common, Ready, Room, Stream};
use super::{MAX_STREAMS, SEGMENT_BYTES};
use crate::base::sync::{
    AtomicBool, AtomicU64, Condvar, Counter, Mutex, MutexGuard, OnceLock, Ordering, thread_number,
};
use crate::base::{Error, MAX_EPOCH, Result, SeededBug, Seqno, StoreId};
use crate::device::Device;
use crate::space::DataFile;

/// Asked before space for a segment of so many bytes is taken.
pub type MayTake<'a> = &'a dyn Fn(u64) -> Result<()>;

/// Space may be taken as long as there is some.
pub const UNLIMITED: MayTake<'static> = &|_| Ok(());

/// How the log is laid out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LogOptions {
    /// Bytes preallocated for a segment: a multiple of 4,096, from 8 KiB to 16 GiB. A larger record gets a segment of
    /// its own size.
    pub segment_bytes: u64,
    /// Streams that are written, 1 to [`MAX_STREAMS`]. Whatever there is of others is read and discarded all the same.
    pub streams: usize,
    /// Whether records carry the generations of the leaves that they went to: payloads are those of [`super::tags`] then, else
    /// of [`super::ops`].
    pub tagged: bool,
    /// Whether the device may take records without a system call each ([`OpenHow::small_writes`](crate::device::OpenHow)).
    pub mapped: bool,
}

impl Default for LogOptions {
    fn default() -> LogOptions {
        LogOptions { segment_bytes: 16 << 20, streams: 1, tagged: false, mapped: true }
    }
}

/// The log of a store, open for writing. Everything may be called from any thread at any time.
#[derive(Debug)]
pub struct Log {
    /// Where large values live that records name.
    data: Option<Arc<DataFile>>,
    common: Common,
    streams: Box<[Stream]>,
    group: Mutex<Group>,
    /// Notified when a sync ends, well or not.
    synced: Condvar,
}

/// Those who want something durable.
#[derive(Debug)]
struct Group {
    /// The highest seqno that anyone wants. It and all below are appended.
    wanted: Seqno,
    /// Somebody leads.
    syncing: bool,
}

impl Log {
    /// Begins a new epoch after `last`, through which the log is durable: `epoch` is one above and `next_segment` at
    /// least the report's of [`super::replay()`], `old` are its segments, of whatever streams. Does no I/O; a stream's first
    /// reservation creates its first segment, so that a store opens on a full disk.
    ///
    /// # Errors
    /// `InvalidArgument` for a segment size or a number of streams out of bounds.
    pub fn start(
        device: Arc<dyn Device>,
        store: StoreId,
        epoch: u32,
        last: Seqno,
        next_segment: u64,
        old: Vec<SegmentInfo>,
        options: LogOptions,
    ) -> Result<Log> {
        let LogOptions { segment_bytes, streams, tagged, mapped } = options;
        if !segment_bytes.is_multiple_of(BLOCK) || !SEGMENT_BYTES.contains(&segment_bytes) {
            return Err(Error::invalid(format!(
                "segment_bytes is {segment_bytes}, must be a multiple of 4096 from 8192 to 16 GiB"
            )));
        }
        if !(1..=MAX_STREAMS).contains(&streams) {
            return Err(Error::invalid(format!("{streams} log streams; there may be 1 to {MAX_STREAMS}")));
        }
        if epoch > MAX_EPOCH {
            return Err(Error::Unsupported { detail: format!("epoch {epoch}: the log has been opened too often") });
        }
        assert!(epoch > 0 && last <= Seqno::MAX);
        assert!(
            old.iter().all(|info| info.number < next_segment && info.last <= last.next()),
            "older segments are older"
        );
        let common = Common {
            device,
            store,
            epoch,
            start: last,
            segment_bytes,
            tagged,
            mapped,
            next_segment: AtomicU64::new(next_segment),
            has_header: AtomicBool::new(false),
            durable: AtomicU64::new(last.0),
            older: Mutex::new(old),
            written_bytes: Counter::new(0),
            wants_segment: AtomicBool::new(false),
            poison: OnceLock::new(),
        };
        Ok(Log {
            data: None,
            common,
            streams: (0..streams as u32).map(|number| Stream::new(number, last)).collect(),
            group: Mutex::new(Group { wanted: last, syncing: false }),
            synced: Condvar::new(),
        })
    }

    /// Makes every sync of the log sync the large values in `data` first: a record may only count as durable when what it
    /// names is.
    #[must_use]
    pub fn with_data(mut self, data: Arc<DataFile>) -> Log {
        self.data = Some(data);
        self
    }

    /// The epoch of this writer: the life of the memtables that its records went to.
    pub fn epoch(&self) -> u32 {
        self.common.epoch
    }

    /// Takes the turn in a stream, and makes room there for one record with up to so many payload bytes, in a new segment if
    /// need be: in this thread's own, or, if it is `to_sync`, in the first, since one sync of one file is then enough for
    /// all who wait. The record's seqno is to be drawn after this, and its append has no way to fail then but an earlier
    /// failure of the device.
    ///
    /// `may_take` is asked before a new segment of so many bytes is begun: what it refuses with is returned.
    ///
    /// # Errors
    /// `DiskFull`, `TooManyFiles` and `InvalidArgument` have no effect; `Poisoned` after an earlier failure or a close; `Io` poisons.
    pub fn reserve(&self, payload_bytes: usize, to_sync: bool, may_take: MayTake<'_>) -> Result<Room<'_>> {
        let stream = if to_sync { &self.streams[0] } else { self.own() };
        match stream.reserve(&self.common, payload_bytes, may_take) {
            // Another may have room in its segment; in which one a record stands does not matter, since its seqno is drawn after this.
            Err(full) if full.is_refusal() => {
                let mut others = self.streams.iter().filter(|other| !std::ptr::eq(*other, stream));
                others.find_map(|other| other.reserve(&self.common, payload_bytes, may_take).ok()).ok_or(full)
            }
            room => room,
        }
    }

    /// This thread's stream.
    fn own(&self) -> &Stream {
        match &self.streams[..] {
            [only] => only,
            all => &all[thread_number() % all.len()],
        }
    }

    /// Returns when everything in `stream`, as [`Room::append`] named it, through `through` is in the page cache: by one
    /// write with what was lazy before it, this thread's or another's.
    ///
    /// # Errors
    /// `Io` poisons; `Indeterminate` if another thread's failure came before the write.
    pub fn write(&self, stream: u32, through: Seqno) -> Result<()> {
        self.streams[stream as usize].write(&self.common, through)
    }

    /// Returns when everything through `through`, all of which is appended, is in the page cache. A look at each stream if it
    /// is.
    ///
    /// # Errors
    /// As [`Log::write`].
    pub fn write_before(&self, through: Seqno) -> Result<()> {
        if SeededBug::LazyLeftBehind.is_on() {
            return Ok(());
        }
        self.streams.iter().try_for_each(|stream| stream.write(&self.common, through))
    }

    /// Writes what was appended lazily, by one write to the page cache for each stream.
    ///
    /// # Errors
    /// `Poisoned` after an earlier failure; `Io` poisons.
    pub fn flush(&self) -> Result<()> {
        self.streams.iter().try_for_each(|stream| stream.flush(&self.common))
    }

    /// Returns when everything through `through`, all of which is appended, is durable in every stream: at once if it is,
    /// else after at most two rounds of syncs.
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
        let mut group = self.group.lock();
        group.wanted = group.wanted.max(through);
        loop {
            if through <= self.durable() {
                return Ok(());
            }
            self.common.check_appended()?;
            if group.syncing {
                self.synced.wait(&mut group);
            } else {
                self.lead(&mut group);
            }
        }
    }

    /// Syncs all streams for everyone who waits. A failure is found in `poison`; a panic of the device poisons, and goes on.
    fn lead(&self, group: &mut MutexGuard<'_, Group>) {
        group.syncing = true;
        let mut target = group.wanted;
        let result = MutexGuard::unlocked(group, || {
            let synced = catch_unwind(AssertUnwindSafe(|| self.sync_streams(&mut target)));
            match &synced {
                Ok(Ok(())) => {
                    debug_assert!(target >= self.durable());
                    self.common.durable.store(target.0, Ordering::Release);
                }
                Ok(Err(error)) => drop(self.common.poison(error.clone())),
                Err(_) => {
                    drop(self.common.poison(Error::Poisoned { first: "the device panicked in a sync".into() }));
                }
            }
            synced
        });
        // Whoever waits learns of a failure, too.
        group.syncing = false;
        self.synced.notify_all();
        if let Err(panic) = result {
            resume_unwind(panic);
        }
    }

    /// Writes and syncs whatever any stream holds; all through `target` is among it.
    fn sync_streams(&self, target: &mut Seqno) -> Result<()> {
        let forgets = SeededBug::SyncForgetsStreams.is_on();
        let streams = if forgets { std::slice::from_ref(self.own()) } else { &self.streams[..] };
        let ready: Vec<Ready> = streams.iter().map(|stream| stream.ready(&self.common)).collect::<Result<_>>()?;
        let reach = ready.iter().map(|ready| ready.through).max().unwrap_or_default();
        assert!(*target <= reach || forgets, "sync of {target}, of which only {reach} was appended");
        if SeededBug::SyncClaimsPastGap.is_on() {
            *target = reach;
        }
        let sync = || {
            if let Some(data) = self.data.as_ref().filter(|_| !SeededBug::ValuesAfterTheLog.is_on()) {
                data.sync_large_values()?;
            }
            let files = ready.iter().flat_map(|ready| &ready.files);
            files
                .into_iter()
                .try_for_each(|(name, file)| file.sync().map_err(|e| Error::final_io("sync", name, None, &e)))
        };
        let synced = sync();
        if !SeededBug::FailedSyncForgiven.is_on() {
            // Appends that failed meanwhile lie behind the target: what was synced is durable all the same.
            synced?;
        }
        streams.iter().zip(&ready).for_each(|(stream, ready)| stream.note_sync(ready));
        Ok(())
    }

    /// Gives back what is preallocated behind the last records, and for segments to come: the last call before a clean close. Appending goes on in
    /// new segments.
    ///
    /// # Errors
    /// `Io` if a file cannot be cut; it is whole all the same.
    pub fn trim(&self) -> Result<()> {
        self.streams.iter().try_for_each(|stream| stream.trim(&self.common))
    }

    /// Refuses room from now on: whoever comes late creates no segment in a store that is closed, and perhaps open elsewhere.
    pub fn close(&self) {
        self.streams.iter().for_each(Stream::close);
    }

    /// Everything through here survives the power, in every stream.
    pub fn durable(&self) -> Seqno {
        Seqno(self.common.durable.load(Ordering::Acquire))
    }

    /// Removes the segments, other than the current ones, all of whose records are at or below `seqno`; returns how
    /// many. Call it when a durable checkpoint covers them. The directory is not synced: a segment that comes back
    /// after a crash holds nothing that replay would visit.
    ///
    /// A segment's counted records end where a later epoch begins, and what lies behind is void only as long as that epoch's
    /// header can be read. So segments go in the order of their numbers, whatever their streams, and while this life has no
    /// header of its own the last one stays.
    ///
    /// # Errors
    /// `Io`; the segments that are left are tried again next time.
    pub fn discard_through(&self, seqno: Seqno) -> Result<usize> {
        let Common { older, device, .. } = &self.common;
        let mut gone: Vec<SegmentInfo> = {
            let mut older = older.lock();
            let has_header = self.common.has_header.load(Ordering::Acquire);
            let witness = if has_header { None } else { older.iter().map(|info| info.number).max() };
            older.extract_if(.., |info| info.last <= seqno && Some(info.number) != witness).collect()
        };
        gone.sort_unstable_by_key(|info| info.number);
        for (i, info) in gone.iter().enumerate() {
            let name = segment_name(info.stream, info.number);
            match device.remove(&name) {
                Err(e) if e.kind() != std::io::ErrorKind::NotFound => {
                    older.lock().extend_from_slice(&gone[i..]);
                    return Err(Error::io("remove", &name, None, &e));
                }
                _ => {}
            }
        }
        Ok(gone.len())
    }

    /// Bytes of log that are kept: the older segments, and the current ones up to their last records.
    pub fn retained_bytes(&self) -> u64 {
        let older = self.common.older.lock().iter().map(|info| info.bytes).sum::<u64>();
        older + self.streams.iter().map(Stream::current_bytes).sum::<u64>()
    }

    /// Starts a new segment in each stream, so that a checkpoint can discard the one before it. Waits for the next
    /// reservation where one is in use or the disk is full; does nothing where the current segment has no records.
    ///
    /// # Errors
    /// `Poisoned` after an earlier failure; `Io` poisons.
    pub fn roll(&self) -> Result<()> {
        self.streams.iter().try_for_each(|stream| stream.roll(&self.common))
    }

    /// Makes the next segments of those streams that will soon need one, so that no writer has to wait for the disk at that
    /// moment. A segment that cannot be made is no failure: the writer makes it when it needs it, as it does without this.
    ///
    /// # Errors
    /// `Poisoned` after a failure, also one to sync the directory here.
    pub fn prepare(&self, may_take: MayTake<'_>) -> Result<()> {
        self.streams.iter().try_for_each(|stream| stream.prepare(&self.common, may_take))
    }

    /// Removes what [`Log::prepare`] has made and nobody has taken yet: the disk is full, and its space may be all that is missing. It is
    /// not made again for the current segments. Whether there was any.
    pub fn give_up_prepared(&self) -> bool {
        self.streams.iter().fold(false, |any, stream| stream.give_up_prepared(&self.common) | any)
    }

    /// Whether [`Log::prepare`] has got something to do since this was asked before.
    pub fn wants_segment(&self) -> bool {
        let wants = &self.common.wants_segment;
        wants.load(Ordering::Relaxed) && wants.swap(false, Ordering::Relaxed)
    }

    /// All bytes written since the start, for write amplification.
    pub fn written_bytes(&self) -> u64 {
        self.common.written_bytes.load(Ordering::Relaxed)
    }

    /// Everything through here is in the page cache at least, and more where a stream is ahead of another's buffer.
    #[cfg(test)]
    pub(super) fn written(&self) -> Seqno {
        let reaches: Vec<_> = self.streams.iter().map(Stream::reach).collect();
        let pending = reaches.iter().filter_map(|reach| reach.1).min();
        pending.map_or_else(|| reaches.iter().map(|reach| reach.0).max().unwrap_or_default(), |at| Seqno(at.0 - 1))
    }
}
