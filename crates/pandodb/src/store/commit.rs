//! The life of a write: what a commit does under the sequencer, what beside others, and when it counts.
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
//! 1. Tickets are drawn in the order of seqnos, with room for the record in hand: from then on the commit counts, or the
//!    store is poisoned. The room is also the stream's turn, so records go up in each stream.
//! 2. Operations are applied to the active memtable of the moment. That is the right one: a seal is settled first, so
//!    between the ticket and its end no memtable is sealed.
//! 3. `visible` moves to a commit's last seqno once it and all before it are applied, in the log, and as far written as they
//!    asked for ([`Watermark`]): never into a batch, never past a gap. Then the commit returns.
//!
//! **When something fails.** Before the ticket nothing has happened: a full disk is an ordinary error. After it the store
//! is poisoned and the ticket given up, also by a panic ([`CommitTicket`]): later commits that are under way end as `Indeterminate`,
//! none of them becomes visible, and nobody waits for ever.
//!
//! Invariants: `visible` covers only whole commits that are applied and in the log; whoever holds [`Quiesced`] finds everything
//! below `next` applied and visible; a newer container holds only higher seqnos.
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

/// Commits that may be under way at a time: more threads than that wait for each other. Under the explorer so few that they
/// do.
pub(super) const UNDER_WAY: usize = if EXPLORED { 2 } else { 64 };
/// A memtable that names this many times its size in large values is sealed: replay has to read them back.
const BLOB_FACTOR: u64 = 8;
/// Of memtables that are small, one part in so many of the memory of all of them is sealed at a time.
const SEALED_AT_ONCE: u64 = 4;
/// The fixed memory of all active memtables ([`Memtable::LEAST_BYTES`] each) may take a quarter of the memory budget before some are
/// sealed.
const MANY_SHARE: u64 = 4;
/// A thread's buffer that one large operation made longer than this is given back.
const KEEP_BYTES: usize = 64 << 10;

thread_local! {
    /// The record of a single operation, kept for its memory. Taken out while it is used: under the explorer all threads
    /// are one to the system.
    static RECORD: Cell<Vec<u8>> = const { Cell::new(Vec::new()) };
}

/// What the lock `sequencer` guards.
pub(crate) struct Sequencer {
    pub next: Seqno,
    /// The ticket of the next commit.
    ticket: u64,
    /// Tickets below have a slot, as far as is known here.
    limit: u64,
}

impl Sequencer {
    pub(super) fn new() -> Sequencer {
        Sequencer { next: Seqno(1), ticket: 0, limit: 0 }
    }
}

/// The sequencer, held while everything that it gave out is applied, and visible unless the store is poisoned.
pub(crate) struct Quiesced<'a>(MutexGuard<'a, Sequencer>);

impl std::ops::Deref for Quiesced<'_> {
    type Target = Sequencer;

    fn deref(&self) -> &Sequencer {
        &self.0
    }
}

/// A commit between its ticket and its end. However it ends, nobody waits for it afterwards.
struct CommitTicket<'a> {
    engine: &'a Engine,
    ticket: u64,
    first: Seqno,
    last: Seqno,
    /// The stream that is to be written before the commit counts.
    due: Option<u32>,
    /// It has come through.
    whole: bool,
}

impl CommitTicket<'_> {
    /// The commit is applied and written: waits until all before it are, and makes it visible.
    fn finish(mut self) -> Result<()> {
        self.whole = true;
        let Engine { watermark, snapshots, poison, .. } = self.engine;
        watermark.finish(self.ticket);
        watermark.wait(self.ticket + 1);
        if watermark.is_given_up(self.ticket) {
            // It is in the log behind one that may not be: after a reopening both are there, or this one is not.
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
            // An error has poisoned the store already, with its words; a panic comes here without any.
            self.engine
                .poison(&Error::Poisoned { first: "a commit panicked; please report it with its message".into() });
            self.engine.watermark.give_up(self.ticket);
        }
    }
}

/// What a commit applies.
pub(crate) struct Payload<'a> {
    pub ops: PayloadOps<'a>,
    /// Bytes of keys and values.
    pub bytes: u64,
    /// It only deletes, so it may use the space that is kept back.
    pub frees: bool,
    /// The keyspaces that it names.
    pub keyspaces: &'a [Arc<KeyspaceState>],
}

impl Payload<'_> {
    /// About the bytes that it adds to memtables. Of a large value that is a reference: what is written to its place on disk is never compacted.
    fn memory_bytes(&self) -> u64 {
        match &self.ops {
            PayloadOps::One(op) => (op.key.len() + op.value.len()) as u64,
            PayloadOps::Many(record, _) => record.len() as u64,
        }
    }
}

/// The operations of a commit.
pub(crate) enum PayloadOps<'a> {
    /// One, not encoded yet.
    One(OneOp<'a>),
    /// Many, encoded, and how many.
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
            // After the memtables: meanwhile others append, and whoever writes first writes for all of the stream.
            log.write(stream, place.last).inspect_err(|e| self.poison(e))?;
        }
        let (last, was_due) = (place.last, place.due.is_some());
        place.finish()?;
        if was_due && durability != Durability::Synced {
            // Only now is everything before it appended. What asked to be written is: this is for what did not. A lazy commit
            // that filled its stream's buffer takes the others along, so that a kill loses buffers and no more. A sync writes
            // all of them anyway.
            log.write_before(last).inspect_err(|e| self.poison(e))?;
        }
        Ok(last)
    }

    /// Gives a record its seqnos, appends it to the log and applies it. An error before that has no effect, but where the
    /// device failed.
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

    /// Logs the creation of a keyspace, which takes a seqno like a write; returns that when it is durable.
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

    /// As the paper has it: the record is appended after the insertions, since it carries the generations of the leaves that
    /// they met (002 §3.6.4). The turn in the stream is held meanwhile.
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

    /// Draws seqnos and a ticket: all that happens under the sequencer. An error has no effect.
    fn draw(&self, payload: &Payload<'_>, count: u32) -> Result<CommitTicket<'_>> {
        let mut sequencer = self.sequencer.lock();
        // Dropping a keyspace takes the sequencer, too, and waits for those who have a ticket: it is there or not for the whole
        // commit.
        payload.keyspaces.iter().try_for_each(|keyspace| keyspace.check_alive())?;
        self.check_writable()?;
        if sequencer.ticket == sequencer.limit {
            // Whoever has a ticket needs neither the sequencer nor a turn to finish it, once its record is appended; and that
            // takes no lock that is held here.
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

    /// Room in the log for a record of so many bytes. A full disk shows here, before anything is accepted.
    fn room<'a>(
        &self,
        log: &'a Log,
        bytes: usize,
        frees: bool,
        durability: Durability,
    ) -> Result<AppendReservation<'a>> {
        let to_sync = durability == Durability::Synced;
        if !frees && self.reserve.is_short() {
            // A close takes the sequencer, too: nothing is kept back in a store that is closed.
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

    /// Applies a commit's operations to the memtables, beside others; `note` is told of each, in order, where it went.
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

    /// Applies one operation to a keyspace's memtable, while nobody else writes: when a store opens.
    pub(crate) fn insert(&self, keyspace: &KeyspaceState, kind: Kind, key: &[u8], value: &[u8], seqno: Seqno) {
        keyspace.apply(kind, key, value, seqno);
        self.charge_growth(keyspace);
    }

    // ---- memory ----

    /// Bytes in all active memtables.
    pub(crate) fn active(&self) -> u64 {
        // Where range tombstones made a memtable smaller, the subtraction may come before the addition that it belongs to.
        self.active_bytes.load(Relaxed).cast_signed().max(0).cast_unsigned()
    }

    /// Active memtables with something in them.
    pub(crate) fn occupied(&self) -> u64 {
        self.occupied.load(Relaxed).cast_signed().max(0).cast_unsigned()
    }

    /// Whether active memtables hold as much as they may, or take too much of the budget by their number.
    pub(crate) fn is_filled(&self) -> bool {
        let limit = self.config.memtable() as u64;
        let active = self.active();
        let least = self.occupied() * Memtable::LEAST_BYTES as u64;
        active >= limit || active + least >= limit + self.config.memory_budget as u64 / MANY_SHARE
    }

    /// Charges for what a keyspace's active memtable has grown to, beside others who do the same.
    fn charge_growth(&self, keyspace: &KeyspaceState) {
        loop {
            // Asked before the memtable: if it is still the same afterwards, what is put in its place is the newer figure.
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

    /// Sets what a keyspace's active memtable counts for; the caller has settled or is alone.
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

    /// Takes the sequencer and waits until everything that it gave out is applied and visible: what a cut needs, and
    /// whoever concludes from `next` or from an empty memtable. Not for a thread that has a place.
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

    /// Whether memtables are due to be sealed, and all of them because they name too many large values.
    fn is_full(&self) -> Option<bool> {
        let limit = self.config.memtable() as u64;
        let active = self.active();
        let heavy = self.figures.blob_bytes.load(Relaxed) >= limit * BLOB_FACTOR;
        if !heavy && !self.is_filled() {
            return None;
        }
        // Too many wait already: better a larger memtable than a longer queue, until memory speaks against it.
        let crowded = self.debt().memory_bytes > limit * MAX_SEALED && active < limit * 2;
        (!crowded).then_some(heavy)
    }

    /// Seals the largest memtables when the budget of all of them is used up, or all if they name too many large values. One is enough where
    /// it is large; of many small ones as many as make room for a while, since each call walks all keyspaces.
    fn seal_if_full(&self) {
        if self.is_full().is_none() {
            return;
        }
        let sequencer = self.quiesce();
        // Others found the same: only the first of them seals.
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

    /// Seals a keyspace's memtable and hands it to the index. The sequencer is settled, so the cut is exact.
    pub(crate) fn seal(&self, sequencer: &Quiesced<'_>, keyspace: &KeyspaceState) {
        let old = keyspace.containers.load_full();
        // A memtable that a commit has left half applied is not to reach a run.
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

/// Whether a full disk poisons.
fn full_disk_is_final() -> bool {
    SeededBug::FullDiskPoisons.is_on()
}

impl KeyspaceState {
    /// Applies one operation to the active memtable. Where it went, if that says something of its order.
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
