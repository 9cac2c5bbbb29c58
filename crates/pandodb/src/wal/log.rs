//! The log writer: a set of streams, and syncs that make all of them durable together.
//!
//! ```text
//!   thread a ─▶ stream 0 │ 4 │ 5 │   │   │ 8 │   │       each thread has a stream (some share one);
//!   thread b ─▶ stream 1 │   │   │ 6 │   │   │ 9 │       records to be synced go to stream 0
//!   thread c ─▶ stream 2 │   │   │   │ 7 │   │   │
//!                                    ▲ sync(7): write the buffers of all streams, end their blocks, sync them,
//!                                      `durable` = 7. Not 9: the caller guarantees only that 7 and below are appended.
//! ```
//!
//! **Group commit.** A thread that wants a seqno durable and finds no sync running becomes the leader. The leader takes
//! the highest seqno that any thread wants durable, writes the buffers of all streams, and ends their blocks. Then it
//! syncs the files that have new bytes. During the sync it holds no lock, and other threads append to later blocks.
//! Threads that want a seqno durable meanwhile wait. When they wake, either their seqno is durable, or one of them
//! leads the next sync. There is no timer: a group consists of the requests that arrived during the previous sync.
//!
//! **Records to be synced go to the first stream.** Several streams are faster for records that only go to the page
//! cache or stay in memory, because the streams are written concurrently. Several streams are slower for records that
//! wait for a sync, because each file needs a sync of its own. So all records that wait for a sync go to stream 0. If
//! there are no other records, a sync affects only one file, whatever the number of streams.
//!
//! **Claims of durability.** A caller of [`Log::sync`] guarantees that its seqno and all lower ones are appended, in
//! any stream: a commit calls [`Log::sync`] when the watermark has passed the commit's seqno. So a sync may claim the
//! requested seqno to be durable, but no higher one, although some streams are durable beyond it: a seqno between the
//! two may have been appended to another stream after the sync had examined that stream. The seqno that a record states
//! as durable was claimed by such a sync. So all streams are durable through it, even if the record's own stream is
//! durable beyond it.
//!
//! **Lazy records before a buffered one.** A buffered commit writes its own stream. Earlier buffered commits have also
//! written their streams. But the records of earlier *lazy* commits, which were acknowledged without any durability,
//! may still be in the buffer of another stream. If these records were lost, the recovered log would end before the
//! buffered commit. So the buffered commit first waits until all earlier commits have finished, because then their
//! records are appended. After that it writes, in every stream, the lazy records below its own seqno
//! ([`Log::write_before`]).
//!
//! Source: our own design; one log per thread follows 002 §3.6.4.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Arc;

use super::SegmentInfo;
use super::common::{Common, MayTake};
use super::format::{BLOCK, segment_name};
use super::stream::{AppendReservation, Ready, Stream};
use super::{MAX_STREAMS, SEGMENT_BYTES};
use crate::base::sync::{
    AtomicBool, AtomicU64, Condvar, Counter, Mutex, MutexGuard, OnceLock, Ordering, thread_number,
};
use crate::base::{Error, MAX_EPOCH, Result, SeededBug, Seqno, StoreId, seeded};
use crate::device::Device;
use crate::space::DataFile;

/// The layout of the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LogOptions {
    /// The number of bytes preallocated for a segment: a multiple of 4,096, from 8 KiB to 16 GiB. A record that does
    /// not fit into such a segment gets a larger segment.
    pub segment_bytes: u64,
    /// The number of streams to write, 1 to [`MAX_STREAMS`]. Existing segments of other streams are still replayed, and
    /// are discarded when a checkpoint covers them.
    pub streams: usize,
    /// Whether records carry the generations of the leaves into which they were inserted. If so, payloads have the
    /// format of [`super::tags`], otherwise the format of [`super::ops`].
    pub tagged: bool,
    /// Whether the device may write records without a system call for each record
    /// ([`OpenHow::small_writes`](crate::device::OpenHow)).
    pub mapped: bool,
}

impl Default for LogOptions {
    fn default() -> LogOptions {
        LogOptions { segment_bytes: 16 << 20, streams: 1, tagged: false, mapped: true }
    }
}

/// The log of a store, open for writing. All methods may be called concurrently from any thread.
#[derive(Debug)]
pub struct Log {
    /// The file with the large values to which records refer.
    data: Option<Arc<DataFile>>,
    common: Common,
    streams: Box<[Stream]>,
    group: Mutex<Group>,
    /// Notified when a sync ends, successfully or not.
    synced: Condvar,
}

/// The state of group commit.
#[derive(Debug)]
struct Group {
    /// The highest seqno that any thread wants durable. This seqno and all lower ones are appended.
    wanted: Seqno,
    /// Whether a thread is leading a sync.
    syncing: bool,
}

impl Log {
    /// Begins a new epoch above `last`, the seqno through which the log is durable. `epoch` is one above the epoch in
    /// the report of [`super::replay()`]. `next_segment` is at least the number in that report, and `old` are the
    /// segments of all streams in that report. Does no I/O: the first reservation in a stream creates its first
    /// segment, so that a store can be opened on a full disk.
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
            return Err(Error::invalid(format!("log_streams is {streams}, must be from 1 to {MAX_STREAMS}")));
        }
        if epoch > MAX_EPOCH {
            return Err(Error::Unsupported { detail: format!("epoch {epoch}: the log has been opened too often") });
        }
        assert!(epoch > 0 && last <= Seqno::MAX);
        assert!(next_segment > 0, "segments are numbered from 1");
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
            streams: (0..).take(streams).map(|number| Stream::new(number, last)).collect(),
            group: Mutex::new(Group { wanted: last, syncing: false }),
            synced: Condvar::new(),
        })
    }

    /// Makes every sync of the log sync the large values in `data` first: a record must not count as durable before the
    /// values to which it refers.
    #[must_use]
    pub fn with_data(mut self, data: Arc<DataFile>) -> Log {
        self.data = Some(data);
        self
    }

    /// The epoch of this writer. In tagged records, the epoch also identifies the memtables into which the operations
    /// were inserted.
    pub fn epoch(&self) -> u32 {
        self.common.epoch
    }

    /// Takes the append lock of a stream, and reserves space in that stream for one record with up to `payload_bytes`
    /// payload bytes, in a new segment if necessary. The stream is this thread's own stream or, if `to_sync` is set,
    /// the first stream, so that one sync of one file is enough for all waiting threads. The caller draws the record's
    /// seqno after this call. From then on, the append can fail only because of an earlier failure of the device.
    ///
    /// `may_take` is called with the size of a new segment before the segment is created; its error is returned.
    ///
    /// # Errors
    /// After `DiskFull`, `TooManyFiles` and `InvalidArgument` nothing has changed. `Poisoned` is returned after an
    /// earlier failure, and `Closed` after a close. An `Io` error poisons the log.
    pub fn reserve(&self, payload_bytes: usize, to_sync: bool, may_take: MayTake<'_>) -> Result<AppendReservation<'_>> {
        let stream = if to_sync { &self.streams[0] } else { self.own() };
        match stream.reserve(&self.common, payload_bytes, may_take) {
            // Another stream may still have space in its segment. The record may go to any stream, because its seqno is
            // drawn only after the reservation.
            Err(full) if full.is_refusal() => {
                let mut others = self.streams.iter().filter(|other| !std::ptr::eq(*other, stream));
                others.find_map(|other| other.reserve(&self.common, payload_bytes, may_take).ok()).ok_or(full)
            }
            room => room,
        }
    }

    /// The stream of the calling thread.
    fn own(&self) -> &Stream {
        match &self.streams[..] {
            [only] => only,
            all => &all[thread_number() % all.len()],
        }
    }

    /// Returns when all records in `stream` (the result of [`AppendReservation::append`]) through `through` are in the
    /// page cache. This thread or another one writes them, together with earlier lazy records of the stream, by one
    /// write.
    ///
    /// # Errors
    /// `Io`, which poisons the log; `Indeterminate` if an operation of another thread failed before the records were
    /// written.
    pub fn write(&self, stream: u32, through: Seqno) -> Result<()> {
        self.streams[stream as usize].write(&self.common, through)
    }

    /// Returns when all records through `through` are in the page cache. The caller guarantees that these records are
    /// appended. If they already are in the page cache, the call costs one load per stream.
    ///
    /// # Errors
    /// As [`Log::write`].
    pub fn write_before(&self, through: Seqno) -> Result<()> {
        let streams = seeded!(LazyLeftBehind: &[], &self.streams[..]);
        streams.iter().try_for_each(|stream| stream.write(&self.common, through))
    }

    /// Writes the lazy records, by one write to the page cache for each stream.
    ///
    /// # Errors
    /// `Poisoned` after an earlier failure; `Io` poisons the log.
    pub fn flush(&self) -> Result<()> {
        self.streams.iter().try_for_each(|stream| stream.flush(&self.common))
    }

    /// Returns when all records through `through` are durable in every stream. The caller guarantees that these records
    /// are appended. Returns immediately if they already are durable, otherwise after at most two rounds of syncs.
    ///
    /// # Errors
    /// `Indeterminate` if a write or sync failed before `through` was durable, even if it failed before this call,
    /// because the appended record may survive in spite of the failure. No sync is retried.
    ///
    /// # Panics
    /// If the record with the seqno `through` was not appended yet.
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

    /// Syncs all streams for all waiting threads. A failure is recorded in `poison`. A panic of the device poisons the
    /// log and is then resumed.
    /// REQUIRES: the caller holds `group`, and no sync is running. The lock is released during the sync.
    fn lead(&self, group: &mut MutexGuard<'_, Group>) {
        let mut target = group.wanted;
        assert!(target > self.durable(), "a thread leads only a sync that it needs");
        let others = std::mem::replace(&mut group.syncing, true);
        assert!(!others, "only one thread leads a sync");
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
        // Wake the waiting threads even if the sync failed.
        let own = std::mem::replace(&mut group.syncing, false);
        self.synced.notify_all();
        assert!(own, "the leader ends its own sync");
        if let Err(panic) = result {
            resume_unwind(panic);
        }
    }

    /// Writes and syncs all streams. Then all records through `target` are durable.
    /// REQUIRES: the caller is the only sync leader (`group.syncing`) and does not hold `group`.
    fn sync_streams(&self, target: &mut Seqno) -> Result<()> {
        let forgets = SeededBug::SyncForgetsStreams.is_on();
        let streams = if forgets { std::slice::from_ref(self.own()) } else { &self.streams[..] };
        let ready: Vec<Ready> = streams.iter().map(|stream| stream.ready(&self.common)).collect::<Result<_>>()?;
        let reach = ready.iter().map(|ready| ready.through).max().unwrap_or_default();
        assert!(*target <= reach || forgets, "sync of {target}, of which only {reach} was appended");
        *target = seeded!(SyncClaimsPastGap: reach, *target);
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
        // If a concurrent append has failed, its record is above the target, so the synced records are durable
        // nevertheless.
        seeded!(FailedSyncForgiven: Ok(()), synced)?;
        debug_assert_eq!(streams.len(), ready.len(), "each stream was made ready");
        streams.iter().zip(&ready).for_each(|(stream, ready)| stream.note_sync(ready));
        Ok(())
    }

    /// Frees the preallocated space behind the last records, and removes the segments that were created in advance.
    /// This is the last call of a store before a clean close. If records are appended nevertheless, they go to new
    /// segments.
    ///
    /// # Errors
    /// `Io` if a file cannot be cut; its records are still intact.
    pub fn trim(&self) -> Result<()> {
        self.streams.iter().try_for_each(|stream| stream.trim(&self.common))
    }

    /// Refuses reservations from now on. A late writer must not create a segment in a closed store, because another
    /// opener may already have the store open.
    pub fn close(&self) {
        self.streams.iter().for_each(Stream::close);
    }

    /// All records through this seqno survive a power cut, in every stream.
    pub fn durable(&self) -> Seqno {
        Seqno(self.common.durable.load(Ordering::Acquire))
    }

    /// Removes each segment whose records are all at or below `seqno`, except the current segments. Returns the number
    /// of removed segments. Call this function when a durable checkpoint covers these records. The directory is not
    /// synced: if a removed segment reappears after a crash, replay visits none of its records.
    ///
    /// The header of a later epoch makes all records of earlier epochs above its `start` void. These records would
    /// become valid again if they still existed when the last segment with such a header is removed. So segments are
    /// removed in the order of their numbers, across all streams, and the last one stays until this epoch has a durable
    /// header of its own.
    ///
    /// # Errors
    /// `Io`; the next call tries the remaining segments again.
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

    /// The number of bytes of the log on disk: the older segments, and the current ones up to their last records.
    pub fn retained_bytes(&self) -> u64 {
        let older = self.common.older.lock().iter().map(|info| info.bytes).sum::<u64>();
        older + self.streams.iter().map(Stream::current_bytes).sum::<u64>()
    }

    /// Starts a new segment in each stream. If a reservation is in use in a stream, or if the disk is full, the next
    /// reservation in this stream starts the segment. Does nothing if the current segment has no records.
    ///
    /// # Errors
    /// `Poisoned` after an earlier failure; `Io` poisons the log.
    #[cfg(test)]
    pub(super) fn roll(&self) -> Result<()> {
        self.streams.iter().try_for_each(|stream| stream.roll(&self.common))
    }

    /// Creates the next segments of streams that will soon need one, so that writers need not wait while a segment is
    /// created. A failure to create a segment is not an error: the writer creates the segment when it needs it.
    ///
    /// # Errors
    /// `Poisoned` after an earlier failure, or if the sync of the directory failed in this call.
    pub fn prepare(&self, may_take: MayTake<'_>) -> Result<()> {
        self.streams.iter().try_for_each(|stream| stream.prepare(&self.common, may_take))
    }

    /// Removes the segments that [`Log::prepare`] has created and that no writer has taken yet. Called when the disk is
    /// full, to free their space. As long as a stream's current segment stays the same, [`Log::prepare`] creates no
    /// further segments for this stream. Returns whether there were such segments.
    pub fn discard_preallocated(&self) -> bool {
        self.streams.iter().fold(false, |any, stream| stream.discard_preallocated(&self.common) | any)
    }

    /// Whether any stream has come to need a call of [`Log::prepare`] since the last call of this function.
    pub fn wants_segment(&self) -> bool {
        let wants = &self.common.wants_segment;
        wants.load(Ordering::Relaxed) && wants.swap(false, Ordering::Relaxed)
    }

    /// The number of bytes written since the log was started, for write amplification.
    pub fn written_bytes(&self) -> u64 {
        self.common.written_bytes.load(Ordering::Relaxed)
    }

    /// All records through this seqno are at least in the page cache. Some streams may have written records with higher
    /// seqnos, too.
    #[cfg(test)]
    pub(super) fn written(&self) -> Seqno {
        let reaches: Vec<_> = self.streams.iter().map(Stream::reach).collect();
        let pending = reaches.iter().filter_map(|reach| reach.1).min();
        pending.map_or_else(|| reaches.iter().map(|reach| reach.0).max().unwrap_or_default(), |at| Seqno(at.0 - 1))
    }
}
