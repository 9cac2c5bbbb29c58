//! Recovery: reads the log from the last checkpoint to the end of the log, and starts a new epoch.
//!
//! ```text
//!   log ─ first pass: what do the records name, where does it end? ─▶ marks of large values, created keyspaces
//!       ─ second pass: records above each keyspace's `through` ─▶ memtables (full ones are packed)
//!       ─▶ superblock of a new epoch ─▶ new log ─▶ if large values were copied, or the log is long: pack, checkpoint
//! ```
//!
//! Segments whose records the index holds are not read. The second pass finds the segments in memory, if the log is short.
//!
//! No lock is contended, because only this thread uses the store. The old log is never overwritten; records and large
//! values that are needed are copied.

use super::checkpoint::IDS_AHEAD;
use super::engine::Engine;
use super::generations::Generations;
use super::replay::{Replayer, Survey};
use super::state::KeyspaceState;
use crate::base::sync::Ordering::Relaxed;
use crate::base::{BlockAddr, Error, Extent, MAX_EPOCH, Result, SeededBug, Seqno, events};
use crate::index::{Mode as IndexMode, SortedLoader};
use crate::sched::BACKGROUND_STEP;
use crate::space::data::DATA_FILE;
use crate::wal::{Claims, Log, LogOptions, Mode, ReplayReport, RereadDevice, Visit, replay};

/// If an opening finds more log segments than this number, it packs their content, because each short-lived opening
/// leaves a segment.
const MAX_OLD_SEGMENTS: usize = 16;
/// If an opening finds more log segments than this number, it also packs the memtables that wait for the merge of a
/// sorted load.
const MOST_OLD_SEGMENTS: usize = 4 * MAX_OLD_SEGMENTS;
/// Memtables that wait for the merge of a sorted load stay in memory if all sealed memtables together have at most this
/// number of times the size of the smallest full memtable, which is half of the memory budget.
const MOST_KEPT: u64 = 4;
/// A recovery keeps at most this many bytes of the log between its passes, and at most this part of the memory budget.
const MOST_LOG_KEPT: usize = 64 << 20;
const LOG_KEPT_PART: usize = 8;

impl Engine {
    /// Recovers from the last checkpoint to the end of the log, and starts a new epoch.
    pub(super) fn recover(&mut self) -> Result<events::Recovery> {
        let recovered = self.replay_log()?;
        let last = recovered.report.last;
        if !self.config.salvage {
            self.check_not_ahead(last)?;
        }
        assert!(recovered.first_moved.is_none_or(|first| first <= last), "a replayed record is in the log");
        self.figures.log_found.store(recovered.report.segments.iter().map(|segment| segment.bytes).sum(), Relaxed);
        self.writer.continue_after(last);
        self.log_cut.clone_from(&recovered.report.cut);
        self.snapshots.set_visible(last);
        if !self.config.read_only {
            self.begin_epoch(&recovered)?;
            self.settle_moved(&recovered.moved)?;
            if recovered.report.segments.len() > MAX_OLD_SEGMENTS {
                self.shorten_log(recovered.report.segments.len() <= MOST_OLD_SEGMENTS)?;
            }
        }
        let report = &recovered.report;
        let (segments, torn) = (report.segments.len() as u64, report.torn.is_some());
        Ok(events::Recovery { records: report.records, bytes: report.bytes, segments, torn })
    }

    /// Refuses a catalogue that includes more than the log, which ends at `last`. A seqno must be assigned only once. A
    /// keyspace that already held seqnos above the end of the log would ignore new messages with these seqnos.
    fn check_not_ahead(&self, last: Seqno) -> Result<()> {
        let root = self.checkpointer.root.lock();
        let keyspaces = self.keyspaces.read();
        let ahead = keyspaces.values().find(|keyspace| keyspace.index.stored_through() > last);
        let detail = if let Some(keyspace) = ahead {
            let (name, through) = (&keyspace.name, keyspace.index.stored_through());
            format!("keyspace `{name}` holds all up to seqno {through}, the log ends at {last}")
        } else if root.catalog.cut > last {
            format!("it includes creations up to seqno {}, the log ends at {last}", root.catalog.cut)
        } else {
            return Ok(());
        };
        let at = root.superblock.catalog.0[0].page.offset();
        Err(Error::corruption("catalogue", 0, detail).in_file(DATA_FILE, at))
    }

    /// Passes over the log twice. A log that is short enough is read from the disk once. The first pass finds the objects that the records refer to and the end of the log; the
    /// second pass applies the records. The second pass may pack memtables, which allocates pages. Therefore all large
    /// values of the log must be marked before the second pass.
    fn replay_log(&mut self) -> Result<Recovered> {
        let (claims, next_id, cut) = {
            let root = self.checkpointer.root.lock();
            let from = root.catalog.through();
            let superblock = &root.superblock;
            let closed = superblock.clean.then_some(superblock.epoch);
            (Claims { from, durable: superblock.durable, closed }, root.next_id, root.catalog.cut)
        };
        let store = self.core.data.store_id();
        let order = Generations::default();
        let mut survey = Survey { engine: self, durable: claims.durable, cut, next_id, order, damaged: None };
        let (look, replay_in) = match (self.config.salvage, self.config.read_only) {
            (true, _) => (Mode::Salvage, Mode::Salvage),
            (false, true) => (Mode::Read, Mode::Read),
            (false, false) => (Mode::Read, Mode::Recover),
        };
        let kept_bytes = MOST_LOG_KEPT.min(self.config.memory_budget / LOG_KEPT_PART);
        let device = RereadDevice::new(self.device.clone(), kept_bytes);
        let seen = replay(&device, store, claims, look, &mut |record| survey.record(record));
        let (next_id, damaged) = (survey.next_id, survey.damaged.take());
        let seen = seen.map_err(|e| damaged.filter(|_| e.is_corruption()).unwrap_or(e))?;
        self.checkpointer.root.lock().next_id = next_id;
        if !self.config.read_only {
            self.core.data.begin_replay();
        }
        let mut replayer = Replayer {
            engine: self,
            durable: seen.durable,
            moved: Vec::new(),
            first_moved: None,
            owed: self.debt().work_bytes,
            log_bytes: seen.bytes,
            is_full: false,
        };
        let mut report = replay(&device, store, claims, replay_in, &mut |record| {
            if record.first > seen.last { Ok(Visit::Stop) } else { replayer.record(record) }
        })?;
        self.core.data.end_replay();
        if report.last != seen.last {
            let detail = format!("the log ended at seqno {} and a moment later at {}", seen.last, report.last);
            return Err(Error::corruption("log", report.last.0, detail));
        }
        // If only the first pass reports the damage at which the log ends, use its report, because both passes ended at
        // the same record.
        report.cut = report.cut.or(seen.cut);
        let (moved, first_moved) = (replayer.moved, replayer.first_moved);
        if first_moved.is_some() {
            self.core.data.sync()?;
        }
        Ok(Recovered { report, moved, first_moved })
    }

    /// Packs the replayed memtables and takes a checkpoint, so that no needed log record refers to the old pages of a
    /// copied large value. Then frees these pages.
    fn settle_moved(&self, moved: &[Extent]) -> Result<()> {
        if moved.is_empty() {
            return Ok(());
        }
        self.checkpointer.moved.lock().extend_from_slice(moved);
        match self.pack_all(false).and_then(|()| self.checkpoint()) {
            // The list is empty if the checkpoint does not cover the log because of damage.
            Ok(()) => self.checkpointer.moved.lock().drain(..).for_each(|extent| self.core.data.free(extent)),
            Err(e) if may_keep_memtables(&e) => {
                self.keep_moved()?;
                self.core.data.sync()?;
            }
            Err(e) => return Err(e),
        }
        Ok(())
    }

    /// Writes the copied large values to their old pages again, because the log still refers to these pages. The next
    /// sync makes them durable. The pages stay allocated until the next opening.
    pub(super) fn keep_moved(&self) -> Result<()> {
        for extent in std::mem::take(&mut *self.checkpointer.moved.lock()) {
            let buf = self.core.data.read(BlockAddr { page: extent.start, pages: extent.pages })?;
            self.core.data.write(extent.start, buf)?;
        }
        Ok(())
    }

    /// Packs every memtable, except those that wait for the merge of a sorted load and fit into memory. On a full disk,
    /// and if a page is damaged that a memtable needs, memtables stay in memory, even above their budget, so that a
    /// user can open the store and delete data. The reserve remains available for these deletes.
    pub(super) fn pack_or_keep(&self) -> Result<()> {
        match self.pack_all(true) {
            Err(e) if may_keep_memtables(&e) => Ok(()),
            other => other,
        }
    }

    /// Starts a new epoch: writes its superblock into the older or damaged slot, then starts the log.
    fn begin_epoch(&mut self, recovered: &Recovered) -> Result<()> {
        let report = recovered.report.clone();
        // The old pages of a copied large value may not be durable. Therefore no superblock may state that the record
        // which refers to them is durable, until a checkpoint refers to the copy.
        let durable = recovered.first_moved.map_or(report.last, |first| Seqno(first.0 - 1));
        let root = self.checkpointer.root.get_mut();
        let epoch = root.superblock.epoch.max(report.epoch) + 1;
        if epoch > MAX_EPOCH {
            return Err(Error::Unsupported { detail: format!("epoch {epoch}: the store has been opened too often") });
        }
        assert!(epoch > report.epoch, "segments of an earlier epoch are never taken for new ones");
        let mut superblock = root.superblock.clone();
        superblock.generation += 1 + u64::from(SeededBug::OpenedFromIsOverwritten.is_on());
        superblock.epoch = epoch;
        superblock.clean = false;
        superblock.durable = superblock.durable.max(durable);
        superblock.next_run_id = self.core.ids.peek() + IDS_AHEAD;
        if !superblock.is_bounded() {
            let detail = "its superblock has no room for further numbers; salvage the store into a new one".into();
            return Err(Error::Unsupported { detail });
        }
        self.core.data.write_superblock(&superblock)?;
        root.superblock = superblock;
        let options = LogOptions {
            segment_bytes: self.config.segment(),
            streams: self.config.streams(),
            tagged: self.config.mode == IndexMode::Paper,
            mapped: self.config.mapped_log,
        };
        self.writer.log = Some(
            Log::start(
                self.device.clone(),
                root.superblock.store_id,
                root.superblock.epoch,
                report.last,
                report.next_segment,
                report.segments,
                options,
            )?
            .with_data(self.core.data.clone()),
        );
        Ok(())
    }
}

impl Engine {
    /// Packs the replayed memtables and takes a checkpoint, so that repeated short openings do not accumulate segments.
    /// On a full disk the log is kept, and also if a page is damaged that a memtable needs. `may_leave` is that of
    /// [`Engine::pack_all`].
    fn shorten_log(&self, may_leave: bool) -> Result<()> {
        let packed = self.pack_all(may_leave).and_then(|()| self.checkpoint());
        match packed {
            Err(e) if may_keep_memtables(&e) => Ok(()),
            other => other,
        }
    }

    /// Seals and packs every memtable. A damaged page of one keyspace does not keep those of others from being packed.
    /// If a sorted load waits to be merged, packing the memtables of its keyspace would first merge the whole load.
    /// With `may_leave`, these memtables stay in memory if they fit, and background work packs them later.
    fn pack_all(&self, may_leave: bool) -> Result<()> {
        let keyspaces = self.keyspaces.all();
        {
            let sequencer = self.writer.quiesce();
            keyspaces.iter().for_each(|keyspace| self.seal(&sequencer, keyspace));
        }
        let merges = |keyspace: &KeyspaceState| keyspace.index.loader().is_some_and(SortedLoader::has_waiting_load);
        let (waiting, others): (Vec<_>, Vec<_>) = keyspaces.iter().partition(|keyspace| merges(keyspace));
        let fits = || self.debt().memory_bytes <= MOST_KEPT * self.config.least_memtable() as u64;
        let mut damage = None;
        for keyspace in others.into_iter().chain(waiting) {
            if may_leave && merges(keyspace) && fits() {
                continue;
            }
            match self.pack_sealed_memtables(keyspace) {
                Err(e) if e.is_damage() => damage = Some(e),
                other => other?,
            }
        }
        damage.map_or(Ok(()), Err)
    }

    fn pack_sealed_memtables(&self, keyspace: &KeyspaceState) -> Result<()> {
        let mut packed = Ok(());
        while packed.is_ok() && keyspace.index.debt().memory_bytes > 0 {
            packed = keyspace.index.step(BACKGROUND_STEP, &|| self.snapshots.stripes()).map(drop);
        }
        drop(keyspace.retire_sealed());
        packed?;
        assert!(keyspace.containers.load().sealed.is_empty(), "the index holds what was packed");
        Ok(())
    }
}

/// Whether a store opens although its memtables could not be packed for this reason.
fn may_keep_memtables(error: &Error) -> bool {
    matches!(error, Error::DiskFull { .. }) || error.is_damage()
}

/// The result of a recovery.
struct Recovered {
    report: ReplayReport,
    /// The old pages of the large values that were copied.
    moved: Vec<Extent>,
    /// The seqno of the first record with a large value that was not known to be durable.
    first_moved: Option<Seqno>,
}
