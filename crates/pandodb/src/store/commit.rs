//! The commit of a write: its part under the sequencer, its concurrent part, and when it counts.
//!
//! ```text
//!            check ─▶ pay for background work ─▶ encode                         each thread for itself
//!            room in its stream of the log (a full disk shows here, with no effect)
//!  ┌ sequencer ─────────────────────────────────────────────────────────┐       one at a time: some
//!  │ keyspaces alive? ─▶ seqnos ─▶ ticket                               │       tens of nanoseconds
//!  └────────────────────────────────────────────────────────────────────┘
//!            record into the stream's buffer                                    one at a time in a stream
//!            memtables ─▶ log.write of that stream                              beside each other
//!            ─▶ ticket finished ─▶ all before it, too ─▶ visible
//!            ─▶ what is lazy before it in other streams, or log.sync, if the write asks for it
//!
//!  seal, checkpoint, drop …: sequencer, and then wait until all tickets are finished (`Engine::quiesce`)
//! ```
//!
//! 1. A ticket is drawn in the order of seqnos, while the commit holds an append reservation for its record: from
//!    then on the commit counts, or the store is poisoned. The reservation includes the stream's append lock, so
//!    records ascend in each stream.
//! 2. Operations are applied to the active memtable. It is the right one: sealing quiesces the sequencer first, so no
//!    memtable is sealed between a ticket and its end.
//! 3. `visible` advances to a commit's last seqno once this commit and all earlier ones are applied, in the log, and
//!    written as far as they asked for ([`Watermark`]): never into a batch, never past a gap. Then the commit
//!    returns.
//!
//! **Failures.** Before the ticket nothing has happened: a full disk is an ordinary error. After it the store is
//! poisoned and the ticket is given up, also by a panic ([`CommitTicket`]): later commits in flight end as
//! `Indeterminate`, none of them becomes visible, and no thread waits for ever.
//!
//! Invariants: `visible` covers only complete commits that are applied and in the log; a thread that holds
//! [`Quiesced`] finds everything below `next` applied and visible; a newer container holds only higher seqnos.
//!
//! [`Watermark`]: super::watermark::Watermark

use std::cell::Cell;
use std::cmp::Reverse;
use std::sync::Arc;

use super::engine::{Engine, MAX_SEALED};
use super::keyspace::KeyspaceState;
use super::options::Durability;
use crate::base::sync::{
    EXPLORED, MutexGuard,
    Ordering::{AcqRel, Acquire, Relaxed},
};
use crate::base::{Entry, Error, KeyRange, Kind, RangeTombstone, Result, SeededBug, Seqno, events};
use crate::index::Mode;
use crate::index::SealedBatch;
use crate::memtable::Memtable;
use crate::wal::{AppendReservation, Log, Ops, Tag, Tags, put_op, tagged_bytes};

/// The most commits in flight; further threads wait. Small under the explorer, so that threads do wait there.
pub(super) const UNDER_WAY: usize = if EXPLORED { 2 } else { 64 };
/// A memtable whose large values take this many times its size is sealed: replay has to read them back.
const BLOB_FACTOR: u64 = 8;
/// If memtables are small, memtables with this fraction of the memory of all of them are sealed at a time.
const SEALED_AT_ONCE: u64 = 4;
/// The fixed memory of all active memtables ([`Memtable::LEAST_BYTES`] each) may take a quarter of the memory budget before some are
/// sealed.
const MANY_SHARE: u64 = 4;
/// A thread's record buffer is freed if one operation made it longer than this.
const KEEP_BYTES: usize = 64 << 10;

thread_local! {
    /// The record of a single operation, kept for its memory. Taken out while it is used: under the explorer all
    /// threads share one system thread.
    static RECORD: Cell<Vec<u8>> = const { Cell::new(Vec::new()) };
}

/// The state that the lock `sequencer` guards.
pub(crate) struct Sequencer {
    pub next: Seqno,
    /// The ticket of the next commit.
    ticket: u64,
    /// Tickets below this have a slot in the watermark's ring.
    limit: u64,
}

impl Sequencer {
    pub(super) fn new() -> Sequencer {
        Sequencer { next: Seqno(1), ticket: 0, limit: 0 }
    }
}

/// The sequencer, held while all seqnos that it gave out are applied, and visible unless the store is poisoned.
pub(crate) struct Quiesced<'a>(MutexGuard<'a, Sequencer>);

impl std::ops::Deref for Quiesced<'_> {
    type Target = Sequencer;

    fn deref(&self) -> &Sequencer {
        &self.0
    }
}

/// A commit between its ticket and its end. However it ends, no thread waits for it afterwards.
struct CommitTicket<'a> {
    engine: &'a Engine,
    ticket: u64,
    first: Seqno,
    last: Seqno,
    /// The stream that must be written before the commit counts.
    due: Option<u32>,
    /// The commit succeeded.
    whole: bool,
}

impl CommitTicket<'_> {
    /// The commit is applied and written: waits for all earlier commits, and makes it visible.
    fn finish(mut self) -> Result<()> {
        self.whole = true;
        let Engine { watermark, snapshots, poison, .. } = self.engine;
        watermark.finish(self.ticket);
        watermark.wait(self.ticket + 1);
        if watermark.is_given_up(self.ticket) {
            // Its record follows one that may be missing: after the next opening both are there, or this one is not.
            let first = poison.get().cloned().unwrap_or_else(|| "an earlier commit failed".into());
            return Err(Error::Indeterminate { first });
        }
        snapshots.advance(self.last);
        Ok(())
    }
}

impl Drop for CommitTicket<'_> {
    fn drop(&mut self) {
        if !self.whole {
            // An error has poisoned the store already, with its message; a panic has not.
            self.engine
                .poison(&Error::Poisoned { first: "a commit panicked; please report it with its message".into() });
            self.engine.watermark.give_up(self.ticket);
        }
    }
}

/// The operations of a commit, and its checks.
pub(crate) struct Payload<'a> {
    pub ops: PayloadOps<'a>,
    /// Bytes of keys and values.
    pub bytes: u64,
    /// It only deletes, so it may use the emergency reserve.
    pub frees: bool,
    /// The keyspaces of its operations.
    pub keyspaces: &'a [Arc<KeyspaceState>],
}

impl Payload<'_> {
    /// About the bytes that it adds to memtables. For a large value these are the bytes of its reference: the value
    /// itself is never compacted.
    fn memory_bytes(&self) -> u64 {
        match &self.ops {
            PayloadOps::One(op) => (op.key.len() + op.value.len()) as u64,
            PayloadOps::Many(record, _) => record.len() as u64,
        }
    }
}

/// The operations of a commit.
pub(crate) enum PayloadOps<'a> {
    /// One operation, not encoded yet.
    One(OneOp<'a>),
    /// Several operations, encoded, and their number.
    Many(&'a [u8], u32),
}

/// A single operation.
pub(crate) struct OneOp<'a> {
    pub keyspace: &'a KeyspaceState,
    pub kind: Kind,
    pub key: &'a [u8],
    pub value: &'a [u8],
}

impl Engine {
    /// Applies the operations of `payload`, all or none; returns the seqno of the last one.
    pub(crate) fn commit(&self, payload: Payload<'_>, durability: Durability) -> Result<Seqno> {
        self.try_commit(payload, durability).inspect_err(|e| {
            if let Error::DiskFull { op } = e {
                events::disk_full(op);
            }
        })
    }

    fn try_commit(&self, payload: Payload<'_>, durability: Durability) -> Result<Seqno> {
        let log = self.check_writable()?;
        let started = self.device.now();
        self.admit(payload.memory_bytes(), payload.frees, started)?;
        let last = match &payload.ops {
            PayloadOps::One(op) => {
                // A thread that is ending may have no buffer any more.
                let mut record = RECORD.try_with(Cell::take).unwrap_or_default();
                record.clear();
                put_op(&mut record, op.keyspace.id, op.kind, op.key, op.value);
                let last = self.write(log, &payload, &record, 1, durability);
                if record.capacity() <= KEEP_BYTES {
                    let _ = RECORD.try_with(|kept| kept.set(record));
                }
                last?
            }
            PayloadOps::Many(record, count) => self.write(log, &payload, record, *count, durability)?,
        };
        self.seal_if_full();
        if log.wants_segment() {
            self.scheduler.wake();
        }
        if durability == Durability::Synced {
            log.sync(last).inspect_err(|e| self.poison(e))?;
        }
        self.figures.writes.record(payload.bytes, self.device.now().saturating_sub(started));
        Ok(last)
    }

    /// Logs and applies one record; returns its last seqno when it is visible.
    fn write(
        &self,
        log: &Log,
        payload: &Payload<'_>,
        record: &[u8],
        count: u32,
        durability: Durability,
    ) -> Result<Seqno> {
        if count > 1 && SeededBug::BatchInParts.is_on() {
            let (head, rest) = record.split_at(Ops::first_bytes(record));
            self.write(log, payload, head, 1, durability)?;
            return self.write(log, payload, rest, count - 1, durability);
        }
        let place = match self.config.mode {
            Mode::Product => self.log_and_apply(log, payload, record, count, durability)?,
            Mode::Paper => self.apply_and_log(log, payload, record, count, durability)?,
        };
        if let Some(stream) = place.due {
            // After the memtables: other commits append meanwhile, and the first thread that writes does so for the
            // whole stream.
            log.write(stream, place.last).inspect_err(|e| self.poison(e))?;
        }
        let (last, was_due) = (place.last, place.due.is_some());
        place.finish()?;
        if was_due && durability != Durability::Synced {
            // Now everything before this commit is appended. Records that asked to be written are written; this call
            // is for the others. A lazy commit that filled its stream's buffer writes the other streams, too, so that
            // a kill loses buffers and no more. A sync writes all of them anyway.
            log.write_before(last).inspect_err(|e| self.poison(e))?;
        }
        Ok(last)
    }

    /// Gives a record its seqnos, appends it to the log and applies it. An error before the ticket has no effect,
    /// unless the device failed.
    fn log_and_apply(
        &self,
        log: &Log,
        payload: &Payload<'_>,
        record: &[u8],
        count: u32,
        durability: Durability,
    ) -> Result<CommitTicket<'_>> {
        let room = self.room(log, record.len(), payload.frees, durability)?;
        let mut place = self.draw(payload, count)?;
        place.due =
            room.append(place.first, count, record, durability == Durability::None).inspect_err(|e| self.poison(e))?;
        self.apply(payload, record, place.first, |_| ()).inspect_err(|e| self.poison(e))?;
        Ok(place)
    }

    /// Logs the creation of a keyspace, which takes a seqno like a write; returns the seqno once the record is
    /// durable.
    pub(super) fn log_creation(&self, created: &[u8]) -> Result<Seqno> {
        let log = self.check_writable()?;
        let room = self.room(log, created.len(), false, Durability::Synced)?;
        let mut place =
            self.draw(&Payload { ops: PayloadOps::Many(&[], 1), bytes: 0, frees: false, keyspaces: &[] }, 1)?;
        place.due = room.append_created(place.first, created).inspect_err(|e| self.poison(e))?;
        if let Some(stream) = place.due {
            log.write(stream, place.last).inspect_err(|e| self.poison(e))?;
        }
        let seqno = place.last;
        place.finish()?;
        if !SeededBug::CreationNotSynced.is_on() {
            log.sync(seqno).inspect_err(|e| self.poison(e))?;
        }
        Ok(seqno)
    }

    /// Paper mode: the record is appended after the insertions, since it carries the generations of the leaves that
    /// they changed (002 §3.6.4). The stream's append lock is held meanwhile.
    fn apply_and_log(
        &self,
        log: &Log,
        payload: &Payload<'_>,
        record: &[u8],
        count: u32,
        durability: Durability,
    ) -> Result<CommitTicket<'_>> {
        let room = self.room(log, tagged_bytes(record.len(), count), payload.frees, durability)?;
        let mut place = self.draw(payload, count)?;
        let mut tags = Tags { life: log.epoch(), tags: Vec::with_capacity(count as usize) };
        let applied = self.apply(payload, record, place.first, |tag| tags.tags.push(tag));
        applied.inspect_err(|e| self.poison(e))?;
        let tagged = tags.encode(place.first, record);
        place.due =
            room.append(place.first, count, &tagged, durability == Durability::None).inspect_err(|e| self.poison(e))?;
        Ok(place)
    }

    /// Draws seqnos and a ticket: the whole part of a commit under the sequencer. An error has no effect.
    fn draw(&self, payload: &Payload<'_>, count: u32) -> Result<CommitTicket<'_>> {
        let mut sequencer = self.sequencer.lock();
        // Dropping a keyspace quiesces the sequencer, so a keyspace exists for the whole commit or not at all.
        payload.keyspaces.iter().try_for_each(|keyspace| keyspace.check_alive())?;
        self.check_writable()?;
        if sequencer.ticket == sequencer.limit {
            // A thread that holds a ticket, and has appended its record, needs neither the sequencer nor an append
            // lock to finish, so this wait ends.
            self.watermark.wait_for_slot(sequencer.ticket);
            sequencer.limit = self.watermark.limit();
        }
        let first = sequencer.next;
        let last = Seqno(first.0 + u64::from(count) - 1);
        let ticket = sequencer.ticket;
        sequencer.next = last.next();
        sequencer.ticket += 1;
        Ok(CommitTicket { engine: self, ticket, first, last, due: None, whole: false })
    }

    /// An append reservation for a record of `bytes` bytes. A full disk shows here, before anything is accepted.
    fn room<'a>(
        &self,
        log: &'a Log,
        bytes: usize,
        frees: bool,
        durability: Durability,
    ) -> Result<AppendReservation<'a>> {
        let to_sync = durability == Durability::Synced;
        if !frees && self.reserve.is_short() {
            // A close takes the sequencer, too, so no reserve is filled in a store that is closed.
            let _sequencer = self.sequencer.lock();
            self.check_writable()?;
            self.keep_back()?;
        }
        let may_take = |bytes| if frees { self.check_space_to_free(bytes) } else { self.check_space(bytes) };
        let room = match log.reserve(bytes, to_sync, &may_take) {
            Err(Error::DiskFull { .. }) if frees && !full_disk_is_final() => self.room_to_free(&|forced| {
                let may_take = |bytes| if forced { Ok(()) } else { self.check_space_to_free(bytes) };
                log.reserve(bytes, to_sync, &may_take)
            }),
            room => room,
        };
        room.inspect_err(|e| match e {
            Error::InvalidArgument { .. } | Error::TooManyFiles { .. } | Error::Closed => {}
            Error::DiskFull { .. } if !full_disk_is_final() => {}
            e => self.poison(e),
        })
    }

    /// Applies a commit's operations to the memtables, concurrently with other commits; calls `note` for each, in
    /// order, with the leaf that it changed.
    fn apply(
        &self,
        payload: &Payload<'_>,
        record: &[u8],
        first: Seqno,
        mut note: impl FnMut(Option<Tag>),
    ) -> Result<()> {
        match &payload.ops {
            PayloadOps::One(op) => note(op.keyspace.apply(op.kind, op.key, op.value, first)),
            PayloadOps::Many(..) => {
                let mut keyspace = payload.keyspaces.first();
                for (op, i) in Ops::new(record).zip(0u64..) {
                    let op = op?;
                    if keyspace.is_none_or(|keyspace| keyspace.id != op.keyspace) {
                        keyspace = payload.keyspaces.iter().find(|keyspace| keyspace.id == op.keyspace);
                    }
                    let keyspace = keyspace.expect("a batch knows the keyspaces that it names");
                    note(keyspace.apply(op.kind, op.key, op.value, Seqno(first.0 + i)));
                }
            }
        }
        payload.keyspaces.iter().for_each(|keyspace| self.charge_growth(keyspace));
        Ok(())
    }

    /// Applies one operation to a keyspace's memtable while no other thread writes: during an opening.
    pub(crate) fn insert(&self, keyspace: &KeyspaceState, kind: Kind, key: &[u8], value: &[u8], seqno: Seqno) {
        keyspace.apply(kind, key, value, seqno);
        self.charge_growth(keyspace);
    }

    // ---- memory ----

    /// Bytes in all active memtables.
    pub(crate) fn active(&self) -> u64 {
        // If range tombstones made a memtable smaller, the subtraction may be seen before the addition that it
        // belongs to.
        self.active_bytes.load(Relaxed).cast_signed().max(0).cast_unsigned()
    }

    /// Active memtables that are not empty.
    pub(crate) fn occupied(&self) -> u64 {
        self.occupied.load(Relaxed).cast_signed().max(0).cast_unsigned()
    }

    /// Whether active memtables have reached their limit of memory, or their fixed memory takes too much of the
    /// budget.
    pub(crate) fn is_filled(&self) -> bool {
        let limit = self.config.memtable() as u64;
        let active = self.active();
        let least = self.occupied() * Memtable::LEAST_BYTES as u64;
        active >= limit || active + least >= limit + self.config.memory_budget as u64 / MANY_SHARE
    }

    /// Charges the growth of a keyspace's active memtable, concurrently with other threads that do the same.
    fn charge_growth(&self, keyspace: &KeyspaceState) {
        loop {
            // Loaded before the memtable's size: if it is unchanged afterwards, the size is the newer figure.
            let before = keyspace.charged.load(Acquire);
            let bytes = keyspace.active_bytes() as u64;
            if bytes == before {
                return;
            }
            if keyspace.charged.compare_exchange(before, bytes, AcqRel, Relaxed).is_ok() {
                return self.change_active(before, bytes);
            }
        }
    }

    /// Sets the bytes that a keyspace's active memtable is charged for. REQUIRES: the sequencer is quiesced, or no
    /// other thread has the store.
    pub(crate) fn charge(&self, keyspace: &KeyspaceState, bytes: u64) {
        self.change_active(keyspace.charged.swap(bytes, AcqRel), bytes);
    }

    fn change_active(&self, before: u64, after: u64) {
        if after >= before {
            self.active_bytes.fetch_add(after - before, Relaxed);
        } else {
            self.active_bytes.fetch_sub(before - after, Relaxed);
        }
        match (before, after) {
            (0, 1..) => self.occupied.fetch_add(1, Relaxed),
            (1.., 0) => self.occupied.fetch_sub(1, Relaxed),
            _ => 0,
        };
    }

    // ---- sealing ----

    /// Takes the sequencer and waits until all seqnos that it gave out are applied and visible: for a cut, and for
    /// conclusions from `next` or from an empty memtable. REQUIRES: the caller holds no ticket.
    pub(crate) fn quiesce(&self) -> Quiesced<'_> {
        #[cfg(test)]
        super::keyspaces::tests::SETTLED.set(super::keyspaces::tests::SETTLED.get() + 1);
        let sequencer = self.sequencer.lock();
        if !SeededBug::SealTooSoon.is_on() {
            self.watermark.wait(sequencer.ticket);
            if sequencer.ticket == 0 || !self.watermark.is_given_up(sequencer.ticket - 1) {
                self.snapshots.advance(Seqno(sequencer.next.0 - 1));
            }
        }
        Quiesced(sequencer)
    }

    /// Whether memtables must be sealed, and whether all of them, because they refer to too many bytes of large
    /// values.
    fn is_full(&self) -> Option<bool> {
        let limit = self.config.memtable() as u64;
        let active = self.active();
        let heavy = self.figures.blob_bytes.load(Relaxed) >= limit * BLOB_FACTOR;
        if !heavy && !self.is_filled() {
            return None;
        }
        // Too many memtables wait already: a larger memtable is better than a longer queue, as long as memory allows
        // it.
        let crowded = self.debt().memory_bytes > limit * MAX_SEALED && active < limit * 2;
        (!crowded).then_some(heavy)
    }

    /// Seals the largest memtables when their common budget is used up, or all if they refer to too many bytes of
    /// large values. One is enough if it is large; of small ones as many are sealed as make room for some time, since
    /// each call walks all keyspaces.
    fn seal_if_full(&self) {
        if self.is_full().is_none() {
            return;
        }
        let sequencer = self.quiesce();
        // Several threads find the same: only the first of them seals.
        let Some(heavy) = self.is_full() else { return };
        if heavy {
            self.keyspaces.all().iter().for_each(|keyspace| self.seal(&sequencer, keyspace));
            self.figures.blob_bytes.store(0, Relaxed);
            return;
        }
        let least = Memtable::LEAST_BYTES as u64;
        let sized = |keyspace: Arc<KeyspaceState>| (keyspace.active_bytes() as u64, keyspace);
        let mut keyspaces: Vec<_> =
            self.keyspaces.all().into_iter().map(sized).filter(|(bytes, _)| *bytes > 0).collect();
        keyspaces.sort_by_key(|(bytes, keyspace)| (Reverse(*bytes), keyspace.id));
        let mut sealed = 0;
        for (bytes, keyspace) in keyspaces {
            self.seal(&sequencer, &keyspace);
            sealed += bytes + least;
            if sealed >= self.config.memtable() as u64 / SEALED_AT_ONCE {
                break;
            }
        }
    }

    /// Seals a keyspace's memtable and hands it to the index. REQUIRES: the sequencer is quiesced, so that the cut is
    /// exact.
    pub(crate) fn seal(&self, sequencer: &Quiesced<'_>, keyspace: &KeyspaceState) {
        let old = keyspace.containers.load_full();
        // A memtable that holds a half applied commit must not become a run.
        let whole = sequencer.ticket == 0 || !self.watermark.is_given_up(sequencer.ticket - 1);
        if old.active.is_empty() || !whole {
            return;
        }
        let through = Seqno(sequencer.next.0 - 1);
        debug_assert!(
            old.active.seqno_range().is_some_and(|(low, high)| low.0 > old.active.id() && high <= through),
            "a memtable holds what was written between two seals"
        );
        let fresh = Arc::new(Memtable::new(through.0, self.chunks.clone()));
        self.charge(keyspace, fresh.bytes() as u64);
        let batch = SealedBatch::new(old.active.clone(), through);
        keyspace.push_sealed(batch.clone(), fresh);
        keyspace.index.ingest(batch);
        self.scheduler.wake();
    }
}

/// Whether a full disk poisons the store (a seeded bug).
fn full_disk_is_final() -> bool {
    SeededBug::FullDiskPoisons.is_on()
}

impl KeyspaceState {
    /// Applies one operation to the active memtable. Returns the leaf that it changed, where paper mode needs it.
    fn apply(&self, kind: Kind, key: &[u8], value: &[u8], seqno: Seqno) -> Option<Tag> {
        let memtable = &self.containers.load().active;
        if kind == Kind::RangeDelete {
            memtable.insert_range(&RangeTombstone { range: KeyRange::new(key, value), seqno });
            return None;
        }
        let mut buf = Vec::new();
        let key = self.codec.stored(key, &mut buf);
        let generation = memtable.insert(Entry { key, seqno, kind, value })?;
        Some(Tag { memtable: Seqno(memtable.id()), generation })
    }
}
