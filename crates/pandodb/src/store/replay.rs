//! The two passes that an opening makes over the log. [`Survey`] finds the objects that the records refer to and the
//! end of the log. [`Replayer`] applies the records to memtables and to indexes without memtables.

use super::engine::Engine;
use super::generations::Generations;
use super::state::KeyspaceState;
use crate::base::sync::Ordering::Relaxed;
use crate::base::{BlobRef, Entry, Error, Extent, Kind, Result, SeededBug, Seqno};
use crate::sched::{BACKGROUND_STEP, SPREAD};
use crate::wal::{Record, RecordKind, Visit};

/// The first pass over the log. It checks the order of the records and the objects that the records refer to. It also
/// makes the keyspaces whose creations are recorded, and marks the pages of large values.
pub(super) struct Survey<'a> {
    pub(super) engine: &'a Engine,
    /// The log is known to have been durable up to this seqno.
    pub(super) durable: Seqno,
    /// The cut of the catalogue.
    pub(super) cut: Seqno,
    pub(super) next_id: u32,
    pub(super) order: Generations,
    /// The error of an unreadable large value. The replay ends before the record with this value, unless later records
    /// prove that the value had been durable. If they do, the opening fails with this error.
    pub(super) damaged: Option<Error>,
}

impl Survey<'_> {
    pub(super) fn record(&mut self, record: &Record<'_>) -> Result<Visit> {
        self.durable = self.durable.max(record.durable);
        if record.kind == RecordKind::Created {
            return self.engine.recover_creation(record, self.cut, &mut self.next_id);
        }
        self.order.check(record)?;
        let (keyspaces, data) = (self.engine.keyspaces.read(), &self.engine.core.data);
        let mut blobs = Vec::new();
        // All large values of a record are checked before any of them is marked. If one of them was never written to
        // the disk, the log ends before the record.
        for (op, seqno) in record.ops().zip(record.first.0..) {
            let op = op?;
            let Some(keyspace) = keyspaces.get(&op.keyspace) else {
                if op.keyspace.0 >= self.next_id {
                    let detail = format!("seqno {seqno} names unknown keyspace {}", op.keyspace);
                    return Err(Error::corruption("log record", 0, detail));
                }
                continue;
            };
            if op.kind != Kind::BlobPut || Seqno(seqno) <= keyspace.index.stored_through() {
                continue;
            }
            let blob = BlobRef::decode(op.value)?;
            if Seqno(seqno) > self.durable
                && let Err(e) = data.read_blob(&blob)
            {
                if !e.is_corruption() {
                    return Err(e);
                }
                self.damaged = Some(e);
                return Ok(Visit::Stop);
            }
            blobs.push(blob);
        }
        // Marking fails with `Corruption` if two messages refer to the same page.
        blobs.iter().try_for_each(|blob| data.mark(blob.extent()))?;
        Ok(Visit::Continue)
    }
}

/// The second pass over the log: applies log records to memtables and to indexes without memtables.
///
/// A large value that is not known to be durable is **copied** to new pages, and the message then refers to the copy.
/// The reason: a successful read does not prove that the value is on the disk. If a sync failed before the crash, the
/// system may keep the value only in its page cache and never write it. The old pages are not overwritten, because a
/// crash during the write could damage a value that *is* durable. If there is no space for a copy, the value is written
/// to its old pages again.
pub(super) struct Replayer<'a> {
    pub(super) engine: &'a Engine,
    /// The log was known to be durable up to this seqno.
    pub(super) durable: Seqno,
    pub(super) moved: Vec<Extent>,
    pub(super) first_moved: Option<Seqno>,
    /// The compaction debt that existed before the replay, in bytes.
    pub(super) owed: u64,
    /// The bytes of all records.
    pub(super) log_bytes: u64,
    /// Whether a compaction has found the disk full. If so, no further compaction is tried.
    pub(super) is_full: bool,
}

impl Replayer<'_> {
    /// Writes a large value again, so that the next sync makes it durable. Returns the message that refers to the
    /// written value.
    fn rescue(&mut self, blob: &BlobRef) -> Result<Vec<u8>> {
        let data = &self.engine.core.data;
        let buf = data.read_blob(blob)?;
        let mut message = Vec::with_capacity(16);
        match data.write_blob(&buf[..blob.len as usize]) {
            Ok(copy) => {
                self.moved.push(blob.extent());
                copy.encode(&mut message);
            }
            Err(Error::DiskFull { .. }) => {
                data.write(blob.page, buf)?;
                blob.encode(&mut message);
            }
            Err(e) => return Err(e),
        }
        Ok(message)
    }

    pub(super) fn record(&mut self, record: &Record<'_>) -> Result<Visit> {
        assert!(record.first > self.engine.snapshots.visible(), "records are replayed in the order of seqnos");
        let keyspaces = self.engine.keyspaces.read();
        for (op, seqno) in record.ops().zip(record.first.0..) {
            let op = op?;
            let seqno = Seqno(seqno);
            let Some(keyspace) = keyspaces.get(&op.keyspace) else { continue };
            if seqno <= keyspace.index.stored_through() && !SeededBug::ReplayIgnoresThrough.is_on() {
                continue;
            }
            let doubtful = seqno > self.durable && !SeededBug::LargeValueNotRescued.is_on();
            if op.kind == Kind::BlobPut && doubtful && !self.engine.config.read_only {
                self.first_moved.get_or_insert(record.first);
                let message = self.rescue(&BlobRef::decode(op.value)?)?;
                self.apply(keyspace, Entry { key: op.key, seqno, kind: op.kind, value: &message })?;
            } else {
                self.apply(keyspace, Entry { key: op.key, seqno, kind: op.kind, value: op.value })?;
            }
        }
        drop(keyspaces);
        self.engine.snapshots.set_visible(Seqno(record.first.0 + u64::from(record.count) - 1));
        self.make_room(record)?;
        Ok(Visit::Continue)
    }

    /// Applies a message. A salvage reads indexes as they are on the disk, so it keeps all messages in memtables.
    fn apply(&self, keyspace: &KeyspaceState, message: Entry<'_>) -> Result<()> {
        let engine = self.engine;
        engine.figures.replayed.fetch_add(1, Relaxed);
        if keyspace.is_direct && !engine.config.salvage {
            return engine.replay_direct(keyspace, &message);
        }
        engine.insert(keyspace, message.kind, message.key, message.value, message.seqno);
        Ok(())
    }

    /// Keeps the replay within the memory budget: packs memtables when they are full, and lets indexes without
    /// memtables work off their debt.
    fn make_room(&mut self, record: &Record<'_>) -> Result<()> {
        let engine = self.engine;
        if engine.config.read_only {
            return Ok(());
        }
        if !engine.is_filled() {
            return if engine.checkpointer.direct() > 0 { self.compact() } else { Ok(()) };
        }
        engine.writer.continue_after(Seqno(record.first.0 + u64::from(record.count) - 1));
        engine.pack_or_keep()?;
        self.compact()
    }

    /// Compacts while the debt that the replay has caused exceeds the debt that writers may cause. Without these
    /// compactions, a log of thousands of memtables (written under a larger budget) would leave thousands of runs in
    /// each leaf of the tree. The nodes of the tree would then not fit into memory.
    ///
    /// Debt from before the opening is left to background work, except a sorted load in a tree of pages: it is merged
    /// before memtables are packed that do not fit into memory. Each replayed memtable causes compactions of at most
    /// four times [`SPREAD`] units. Therefore the time of an opening is proportional to the log, and perhaps to such a
    /// load. If the disk may be too small for packing and compaction, no compaction is done.
    fn compact(&mut self) -> Result<()> {
        let engine = self.engine;
        let most = SPREAD * engine.config.unit() as u64;
        if engine.debt().work_bytes <= self.owed + most {
            return Ok(());
        }
        let is_short = || engine.device.available().is_some_and(|room| room < 2 * self.log_bytes);
        let mut worked = 0;
        for keyspace in engine.keyspaces.all() {
            while engine.debt().work_bytes > self.owed + most && worked < 4 * most && !self.is_full && !is_short() {
                match keyspace.index.step(BACKGROUND_STEP, &|| engine.snapshots.stripes()) {
                    Ok(progress) if progress.idle => break,
                    Ok(progress) => worked += engine.note_progress(&keyspace, progress).max(1),
                    // The store opens even if the disk is full. Background work will later find the full disk and
                    // report it.
                    Err(Error::DiskFull { .. }) => self.is_full = true,
                    Err(e) if e.is_damage() => break,
                    Err(e) => return Err(e),
                }
            }
        }
        Ok(())
    }
}
