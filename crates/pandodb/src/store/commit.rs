//! The commit of a write: the part that runs under the sequencer, the part that runs concurrently with other commits,
//! and the condition for the end of the commit.
//!
//! ```text
//!            check ─▶ admission: wait for background work                       each thread for itself
//!            indexes without memtables prepare their operations (`direct`)
//!            reservation in its stream of the log (a full disk shows here, with no effect)
//!  ┌ sequencer ─────────────────────────────────────────────────────────┐       one at a time: some
//!  │ keyspaces alive? ─▶ seqnos ─▶ ticket                               │       tens of nanoseconds
//!  └────────────────────────────────────────────────────────────────────┘
//!            record, encoded into the stream's buffer                           one at a time in a stream
//!            memtables, prepared operations ─▶ log.write of that stream         concurrently
//!            ─▶ ticket finished ─▶ all before it, too ─▶ visible
//!            ─▶ earlier lazy records in other streams written, or log.sync, if the write asks for it
//!
//!  seal, checkpoint, drop …: sequencer, and then wait until all tickets are finished (`Writer::quiesce`)
//! ```
//!
//! The value of a put is copied three times: into the buffer of the stream, into the memtable, and from the buffer into
//! the log file. The lock of the stream's state (not its append lock) is released between the reservation and the
//! append. Otherwise a thread that holds the sequencer might wait for a ticket whose owner needs this lock in order to
//! write.
//!
//! 1. A ticket is drawn in the order of seqnos, while the commit holds an append reservation for its record. Once the
//!    ticket is drawn, the commit either completes or poisons the store. The reservation includes the stream's append
//!    lock, so records are in ascending order in each stream.
//! 2. Operations are applied to the active memtable. The active memtable cannot change during this step: sealing first
//!    quiesces the sequencer, so no memtable is sealed between the draw of a ticket and its end.
//! 3. `visible` advances to a commit's last seqno once this commit and all earlier commits are applied, in the log, and
//!    written as far as requested ([`Watermark`]). It never advances to a seqno in the middle of a batch, and never
//!    past a seqno whose commit is not complete. When `visible` has advanced, the commit returns.
//!
//! **Failures.** Before the ticket is drawn, a failure has no effect: a full disk is an ordinary error. A failure after
//! the draw, even a panic, poisons the store and gives up the ticket ([`Ticket`]). Later commits in flight end with the
//! error `Indeterminate`, none of them becomes visible, and no thread waits without end.
//!
//! Invariants: `visible` covers only complete commits that are applied and in the log. A thread that holds [`Quiesced`]
//! finds every assigned seqno applied and visible. A newer container holds only higher seqnos than an older container.
//!
//! [`Quiesced`]: super::writer::Quiesced
//! [`Watermark`]: super::watermark::Watermark

use std::sync::Arc;

use super::direct::{DirectOps, Ready};
use super::engine::Engine;
use super::footprints::{Footprint, MAX_KEYS, MAX_LISTED};
use super::options::Durability;
use super::read::fold_ahead;
use super::relief::may_use_reserve;
use super::state::{Applied, KeyspaceState};
use super::tallies::SAMPLED;
use super::validation::Validation;
use super::writer::Ticket;
use crate::base::slab::MemorySource;
use crate::base::sync::Ordering::Relaxed;
use crate::base::{Error, KeyspaceId, Kind, Result, SeededBug, Seqno, events, seeded};
use crate::index::Mode;
use crate::pool::Pool;
use crate::wal::{AppendReservation, KEEP_BYTES, Log, Ops, Tag, Tags, op_bytes, put_op, tagged_bytes};

/// The operations of a commit, and the information about them that the checks of the commit need.
pub(crate) struct Payload<'a> {
    pub ops: PayloadOps<'a>,
    /// Bytes of keys and values.
    pub bytes: u64,
    /// Whether the commit has only deletes. If so, it may use the emergency reserve.
    pub frees: bool,
    /// The keyspaces of the operations.
    pub keyspaces: &'a [Arc<KeyspaceState>],
    /// What must not have changed, if the commit is that of a transaction.
    pub validation: Option<&'a Validation<'a>>,
}

/// A commit that is applied: its ticket, the stream that must be written before it is complete, and its long chains.
type Begun<'a, 'p> = (Ticket<'a>, Option<u32>, LongChains<'p>);

/// The keys of a commit that have many operands in a memtable, with their keyspaces.
type LongChains<'a> = Vec<(&'a KeyspaceState, &'a [u8])>;

/// The operations of a commit.
#[derive(Clone, Copy)]
pub(crate) enum PayloadOps<'a> {
    /// One operation that is not encoded yet. It is encoded directly into the log's buffer.
    One(OneOp<'a>),
    /// Several operations in encoded form, and their number.
    Many(&'a [u8], u32),
}

/// A single operation.
#[derive(Clone, Copy)]
pub(crate) struct OneOp<'a> {
    pub keyspace: &'a KeyspaceState,
    pub kind: Kind,
    pub key: &'a [u8],
    pub value: &'a [u8],
}

/// The memory of a record of at least this number of bytes in the buffer of its stream is reserved from the pool.
const LARGE_RECORD: u64 = KEEP_BYTES as u64;

/// The memory of a large record in the buffer of its stream, reserved from the pool until the commit has ended.
struct CopyInLog<'a> {
    pool: &'a Pool,
    bytes: usize,
}

impl CopyInLog<'_> {
    /// For a record of about `bytes` bytes.
    #[inline]
    fn of(bytes: u64, pool: &Pool) -> Option<CopyInLog<'_>> {
        (bytes >= LARGE_RECORD).then(|| {
            let bytes = usize::try_from(bytes).expect("the record is in memory");
            pool.reserve(bytes);
            CopyInLog { pool, bytes }
        })
    }
}

impl Drop for CopyInLog<'_> {
    fn drop(&mut self) {
        self.pool.release(self.bytes);
    }
}

impl<'p> Payload<'p> {
    /// The operations on each keyspace that is written directly.
    fn direct_ops(&self) -> Result<Vec<DirectOps<'p>>> {
        if !self.keyspaces.iter().any(|keyspace| keyspace.is_direct) {
            return Ok(Vec::new());
        }
        let mut direct: Vec<DirectOps<'p>> = Vec::new();
        match self.ops {
            PayloadOps::One(op) => {
                let mut ops = DirectOps::new(op.keyspace);
                ops.push(0, op.kind, op.key, op.value);
                direct.push(ops);
            }
            PayloadOps::Many(record, _) => {
                for (number, op) in (0..).zip(Ops::new(record)) {
                    let op = op?;
                    let Some(keyspace) = self.direct_keyspace(op.keyspace) else { continue };
                    let at = direct.iter().position(|ops| ops.are_on(keyspace)).unwrap_or_else(|| {
                        direct.push(DirectOps::new(keyspace));
                        direct.len() - 1
                    });
                    direct[at].push(number, op.kind, op.key, op.value);
                }
            }
        }
        Ok(direct)
    }

    /// The keyspace with this id, if it is written directly.
    fn direct_keyspace(&self, id: KeyspaceId) -> Option<&'p KeyspaceState> {
        self.keyspaces.iter().find(|keyspace| keyspace.id == id).filter(|keyspace| keyspace.is_direct).map(|it| &**it)
    }

    /// The keys of the operations, for transactions.
    fn footprint(&self) -> Footprint {
        let (mut footprint, mut buf) = (Footprint::default(), Vec::new());
        match self.ops {
            PayloadOps::One(op) if op.kind == Kind::RangeDelete => footprint.add_range(op.keyspace.id),
            PayloadOps::One(op) => {
                let codec = op.keyspace.codec;
                seeded!(FootprintLacksPut: (), footprint.add(op.keyspace.id, codec.hashed(codec.stored(op.key, &mut buf))));
            }
            PayloadOps::Many(record, count) if count as usize <= MAX_KEYS => {
                for op in Ops::new(record).flatten() {
                    let keyspace = self.keyspaces.iter().find(|keyspace| keyspace.id == op.keyspace);
                    let keyspace = keyspace.expect("a batch knows the keyspaces that it names");
                    let key = keyspace.codec.stored(op.key, &mut buf);
                    match op.kind {
                        Kind::RangeDelete => footprint.add_range(keyspace.id),
                        _ if count as usize <= MAX_LISTED => footprint.add(keyspace.id, keyspace.codec.hashed(key)),
                        _ => footprint.add_to_filter(keyspace.id, keyspace.codec.hash(key)),
                    }
                }
            }
            PayloadOps::Many(..) => self.keyspaces.iter().for_each(|keyspace| footprint.add_range(keyspace.id)),
        }
        footprint
    }

    /// The approximate number of bytes that the operations add to memtables. For a large value these are the bytes of
    /// its reference, because the value itself is never compacted.
    fn memory_bytes(&self) -> u64 {
        match self.ops {
            PayloadOps::One(op) => (op.key.len() + op.value.len()) as u64,
            PayloadOps::Many(record, _) => record.len() as u64,
        }
    }
}

impl PayloadOps<'_> {
    /// The number of operations. Each operation takes a seqno.
    fn count(&self) -> u32 {
        match self {
            PayloadOps::One(_) => 1,
            PayloadOps::Many(_, count) => *count,
        }
    }

    /// The number of bytes of the encoded form.
    fn encoded_bytes(&self) -> usize {
        match self {
            PayloadOps::One(op) => op_bytes(op.keyspace.id, op.kind, op.key, op.value),
            PayloadOps::Many(record, _) => record.len(),
        }
    }

    /// Appends the encoded form.
    fn encode(&self, out: &mut Vec<u8>) {
        match self {
            PayloadOps::One(op) => put_op(out, op.keyspace.id, op.kind, op.key, op.value),
            PayloadOps::Many(record, _) => out.extend_from_slice(record),
        }
    }
}

impl Engine {
    /// Applies all operations of `payload`, or none. Returns the seqno of the last operation.
    pub(crate) fn commit(&self, payload: Payload<'_>, durability: Durability) -> Result<Seqno> {
        self.try_commit(payload, durability).inspect_err(|e| {
            if let Error::DiskFull { op } = e {
                events::disk_full(op);
            }
        })
    }

    fn try_commit(&self, payload: Payload<'_>, durability: Durability) -> Result<Seqno> {
        debug_assert!(!payload.keyspaces.is_empty() && payload.ops.count() > 0, "a commit writes something");
        let log = self.check_writable()?;
        let started = self.device.now();
        let bytes = payload.memory_bytes();
        self.admit(bytes, payload.frees, started)?;
        let last = match payload.validation {
            Some(validation) => self.write_validated(log, &payload, validation, durability)?,
            None => self.write(log, &payload, durability)?.expect("nothing is validated"),
        };
        self.seal_if_full();
        if log.wants_segment() {
            self.background.scheduler.wake();
        }
        if durability == Durability::Synced {
            log.sync(last).inspect_err(|e| self.poison(e))?;
        }
        self.figures.writes.record(payload.bytes, self.device.now().saturating_sub(started));
        Ok(last)
    }

    /// Writes the payload of a transaction. Before that, searches for changes of what the transaction has read, until
    /// the search is complete when the payload is written.
    ///
    /// # Errors
    /// [`Error::Conflict`] if there is such a change.
    #[inline(never)]
    fn write_validated(
        &self,
        log: &Log,
        payload: &Payload<'_>,
        validation: &Validation<'_>,
        durability: Durability,
    ) -> Result<Seqno> {
        loop {
            let searched = self.access.confirm(validation.search(&self.writer));
            let written = searched.and_then(|()| self.write(log, payload, durability));
            if let Some(last) = written.inspect_err(|e| self.await_conflict(e))? {
                return Ok(last);
            }
            self.figures.transactions.searched_again.fetch_add(1, Relaxed);
        }
    }

    /// Waits until a conflicting change is visible. A transaction that began before that would meet it again.
    #[cold]
    fn await_conflict(&self, error: &Error) {
        if matches!(error, Error::Conflict { .. }) {
            self.writer.catch_up();
        }
    }

    /// Logs and applies a payload. Returns the last seqno of the payload, after this seqno has become visible; `None`,
    /// without any effect, if the validation of a transaction must search again.
    fn write(&self, log: &Log, payload: &Payload<'_>, durability: Durability) -> Result<Option<Seqno>> {
        seeded!(BatchInParts: self.write_parts(log, payload, durability), self.write_whole(log, payload, durability))
    }

    /// Writes each operation as a record of its own (the seeded bug `BatchInParts`).
    fn write_parts(&self, log: &Log, payload: &Payload<'_>, durability: Durability) -> Result<Option<Seqno>> {
        let PayloadOps::Many(record, count @ 2..) = payload.ops else {
            return self.write_whole(log, payload, durability);
        };
        let (head, rest) = record.split_at(Ops::first_bytes(record));
        if self.write_whole(log, &Payload { ops: PayloadOps::Many(head, 1), ..*payload }, durability)?.is_none() {
            return Ok(None);
        }
        let rest = Payload { ops: PayloadOps::Many(rest, count - 1), validation: None, ..*payload };
        self.write_parts(log, &rest, durability)
    }

    /// Writes the payload as one record.
    fn write_whole(&self, log: &Log, payload: &Payload<'_>, durability: Durability) -> Result<Option<Seqno>> {
        let _copy = CopyInLog::of(payload.memory_bytes(), &self.core.pool);
        let direct = payload.direct_ops()?;
        let ready = self.prepare(&direct, payload.frees)?;
        let begun = match self.config.mode {
            Mode::Product => self.log_and_apply(log, payload, ready, durability)?,
            Mode::Paper => self.apply_and_log(log, payload, ready, durability)?,
        };
        let Some((ticket, due, long)) = begun else { return Ok(None) };
        let last = ticket.last;
        if let Some(stream) = due {
            // Write the log only now, after the memtables were changed. In the meantime other commits may have appended
            // their records, and a single write by one thread includes all records of the stream.
            log.write(stream, last).inspect_err(|e| self.poison(e))?;
        }
        ticket.finish()?;
        debug_assert!(self.snapshots.visible() >= last, "a commit returns when it is visible");
        // The commit is visible, so its operands may be folded. Nothing depends on whether this succeeds.
        long.iter().for_each(|(keyspace, key)| fold_ahead(self, keyspace, key, payload.ops.count()));
        if due.is_some() && durability != Durability::Synced {
            // At this point the records of all earlier commits are appended to their streams. The records of commits
            // that requested a write are already written. This call writes the other records. A commit that did not
            // request a write, but filled the buffer of its stream, also writes the other streams. Therefore a kill
            // loses at most the contents of the buffers. A sync writes all streams anyway.
            log.write_before(last).inspect_err(|e| self.poison(e))?;
        }
        if !direct.is_empty() {
            self.note_direct(payload.ops.encoded_bytes() as u64);
        }
        Ok(Some(last))
    }

    /// Draws the seqnos of a payload, appends its record to the log and applies its operations. Returns the stream that
    /// must be written before the commit is complete. An error before the draw of the ticket leaves the store
    /// unchanged, unless the device failed.
    fn log_and_apply<'p>(
        &self,
        log: &Log,
        payload: &Payload<'p>,
        ready: Ready<'_>,
        durability: Durability,
    ) -> Result<Option<Begun<'_, 'p>>> {
        let (ops, bytes) = (&payload.ops, payload.ops.encoded_bytes());
        let reservation = self.reserve_log(log, bytes, payload.frees, durability)?;
        let Some(ticket) = self.draw(payload)? else { return Ok(None) };
        debug_assert_eq!(ticket.last.0 - ticket.first.0 + 1, u64::from(ops.count()), "each operation takes a seqno");
        let lazy = durability == Durability::None;
        let due = reservation.append_with(ticket.first, ops.count(), bytes, lazy, |out| ops.encode(out));
        let due = due.inspect_err(|e| self.poison(e))?;
        let long = self.apply(payload, ready, ticket.first, |_| ()).inspect_err(|e| self.poison(e))?;
        Ok(Some((ticket, due, long)))
    }

    /// Logs the creation of a keyspace, which takes a seqno like a write. Returns the seqno once the record is durable.
    pub(super) fn log_creation(&self, created: &[u8]) -> Result<Seqno> {
        let log = self.check_writable()?;
        let reservation = self.reserve_log(log, created.len(), false, Durability::Synced)?;
        let ticket = self.writer.draw(1, None, false, |_| self.check_writable().map(|_| true))?;
        let ticket = ticket.expect("nothing is validated");
        let due = reservation.append_created(ticket.first, created).inspect_err(|e| self.poison(e))?;
        let seqno = ticket.last;
        if let Some(stream) = due {
            log.write(stream, seqno).inspect_err(|e| self.poison(e))?;
        }
        ticket.finish()?;
        seeded!(CreationNotSynced: Ok(()), log.sync(seqno)).inspect_err(|e| self.poison(e))?;
        Ok(seqno)
    }

    /// In paper mode, the record is appended after the operations were inserted into memtables, because the record
    /// contains the generations of the leaves that the operations changed (002 §3.6.4). Operations without a memtable
    /// have no generation. The stream's append lock is held during the insertion.
    fn apply_and_log<'p>(
        &self,
        log: &Log,
        payload: &Payload<'p>,
        ready: Ready<'_>,
        durability: Durability,
    ) -> Result<Option<Begun<'_, 'p>>> {
        let count = payload.ops.count();
        let mut record = Vec::with_capacity(payload.ops.encoded_bytes());
        payload.ops.encode(&mut record);
        let reservation = self.reserve_log(log, tagged_bytes(record.len(), count), payload.frees, durability)?;
        let Some(ticket) = self.draw(payload)? else { return Ok(None) };
        let mut tags = Tags { life: log.epoch(), tags: Vec::with_capacity(count as usize) };
        let applied = self.apply(payload, ready, ticket.first, |tag| tags.tags.push(tag));
        let long = applied.inspect_err(|e| self.poison(e))?;
        assert_eq!(tags.tags.len(), count as usize, "each operation has a tag");
        let tagged = tags.encode(ticket.first, &record);
        let due = reservation.append(ticket.first, count, &tagged, durability == Durability::None);
        let due = due.inspect_err(|e| self.poison(e))?;
        Ok(Some((ticket, due, long)))
    }

    /// Draws the seqnos and the ticket of a payload; `None` if the validation must search again. Only if this call
    /// returns a ticket, the store is changed.
    fn draw(&self, payload: &Payload<'_>) -> Result<Option<Ticket<'_>>> {
        let footprint = self.writer.footprints.are_wanted().then(|| payload.footprint());
        let is_quiet = payload.validation.is_some_and(Validation::wants_quiet);
        // A quiet validation waits under the sequencer, so it is always measured.
        let mut measured_from = is_quiet.then(|| self.device.now());
        let drawn = self.writer.draw(payload.ops.count(), footprint.as_ref(), is_quiet, |sequencer| {
            if sequencer.next_ticket() % SAMPLED == 0 {
                measured_from.get_or_insert_with(|| self.device.now());
            }
            // Dropping a keyspace quiesces the sequencer. Therefore a keyspace exists either for the whole commit or
            // not at all.
            payload.keyspaces.iter().try_for_each(|keyspace| keyspace.check_alive())?;
            self.check_writable()?;
            payload.validation.map_or(Ok(true), |validation| validation.check(&self.writer, sequencer))
        });
        if let Some(from) = measured_from {
            self.figures.sequencer.record(self.device.now().saturating_sub(from));
        }
        drawn
    }

    /// Reserves space in the log for a record of `bytes` bytes. On a full disk this call fails, before the commit has
    /// any effect.
    pub(super) fn reserve_log<'a>(
        &self,
        log: &'a Log,
        bytes: usize,
        frees: bool,
        durability: Durability,
    ) -> Result<AppendReservation<'a>> {
        let to_sync = durability == Durability::Synced;
        self.refuse_if_short(frees)?;
        let may_take = |bytes| if frees { self.check_space_to_free(bytes) } else { self.check_space(bytes) };
        let reservation = match log.reserve(bytes, to_sync, &may_take) {
            Err(Error::DiskFull { .. }) if may_use_reserve(frees) && !full_disk_is_final() => {
                self.room_to_free(&|forced| {
                    let may_take = |bytes| if forced { Ok(()) } else { self.check_space_to_free(bytes) };
                    log.reserve(bytes, to_sync, &may_take)
                })
            }
            other => other,
        };
        reservation.inspect_err(|e| match e {
            Error::InvalidArgument { .. } | Error::TooManyFiles { .. } | Error::Closed => {}
            Error::DiskFull { .. } if !full_disk_is_final() => {}
            e => self.poison(e),
        })
    }

    /// Applies a commit's operations to the memtables and to the indexes without memtables, concurrently with other
    /// commits. Calls `note` for each operation, in order, with the leaf that the operation changed.
    fn apply<'p>(
        &self,
        payload: &Payload<'p>,
        ready: Ready<'_>,
        first: Seqno,
        mut note: impl FnMut(Option<Tag>),
    ) -> Result<LongChains<'p>> {
        let mut long = Vec::new();
        let mut apply = |keyspace: &'p KeyspaceState, kind, key, value, seqno| {
            if keyspace.is_direct {
                return note(None);
            }
            let Applied { tag, is_long } = keyspace.apply(kind, key, value, seqno);
            note(tag);
            if is_long && !self.folds.is_off() {
                long.push((keyspace, key));
            }
        };
        match payload.ops {
            PayloadOps::One(op) => apply(op.keyspace, op.kind, op.key, op.value, first),
            PayloadOps::Many(record, count) => {
                let mut keyspace = payload.keyspaces.first();
                let mut seqno = first;
                for op in Ops::new(record) {
                    let op = op?;
                    if keyspace.is_none_or(|keyspace| keyspace.id != op.keyspace) {
                        keyspace = payload.keyspaces.iter().find(|keyspace| keyspace.id == op.keyspace);
                    }
                    let keyspace = keyspace.expect("a batch knows the keyspaces that it names");
                    apply(keyspace, op.kind, op.key, op.value, seqno);
                    seqno = seqno.next();
                }
                assert_eq!(seqno.0 - first.0, u64::from(count), "each operation takes a seqno");
            }
        }
        ready.apply(first);
        payload.keyspaces.iter().for_each(|keyspace| self.keyspaces.charge_growth(keyspace));
        Ok(long)
    }

    /// Applies one operation to a keyspace's memtable. REQUIRES: no other thread writes, because the store is being
    /// opened.
    pub(crate) fn insert(&self, keyspace: &KeyspaceState, kind: Kind, key: &[u8], value: &[u8], seqno: Seqno) {
        keyspace.apply(kind, key, value, seqno);
        self.keyspaces.charge_growth(keyspace);
    }
}

/// Whether a full disk poisons the store (a seeded bug).
fn full_disk_is_final() -> bool {
    SeededBug::FullDiskPoisons.is_on()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_large_records_reserve_memory_and_only_for_a_while() {
        let pool = Pool::new(16 << 20);
        assert!(CopyInLog::of(LARGE_RECORD - 1, &pool).is_none());
        let copies = [CopyInLog::of(LARGE_RECORD, &pool), CopyInLog::of(3 * LARGE_RECORD, &pool)];
        assert_eq!(pool.lent() as u64, 4 * LARGE_RECORD);
        drop(copies);
        assert_eq!(pool.lent(), 0);
    }
}
