//! The engine behind the handles: the sequencer, the life of a write, admission, sealing, poison.
//!
//! ```text
//!  commit ─▶ check ─▶ pay for background work ─▶ sequencer lock:
//!            log.reserve (a full disk shows here, with no effect)
//!            seqnos ─▶ log.append ─▶ memtables ─▶ visible ─▶ seal if full
//!  ─▶ unlock ─▶ log.sync if the write asks for it
//! ```
//!
//! Invariants: seqnos are given out in the order of the log; `visible` covers only applied writes; a memtable is sealed
//! under the sequencer, so a newer container holds only higher seqnos. A failure between the first byte of a log record
//! and its application poisons the store: reads go on, writes are refused with the first error.
//!
//! Lock order: `durable_root` (checkpoint, create, drop) → `sequencer` → `keyspaces` → an index's `inner` → its `queue` →
//! the data file's map. Readers take none of these, but for the map when they are the last to let go of a run.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use super::catalog::Catalog;
use super::keyspace::KeyspaceState;
use super::options::{Config, Durability};
use super::reserve::Reserve;
use super::snapshot::Snapshots;
use super::stats::Histogram;
use crate::base::sync::{AtomicBool, AtomicU64, Counter, Mutex, MutexGuard, OnceLock, Ordering::Relaxed, RwLock};
use crate::base::{Entry, Error, KeyRange, KeyspaceId, Kind, RangeTombstone, Result, SeededBug, Seqno};
use crate::device::{Device, JoinHandle, LockGuard};
use crate::index::{Core, Debt, SealedBatch};
use crate::memtable::{ChunkPool, Memtable};
use crate::resolve::MergeOperator;
use crate::sched::{self, Load, Scheduler, Turn};
use crate::space::Superblock;
use crate::wal::{Log, Ops};

/// Sealed memtables that may wait before writers are held back hard.
const MAX_SEALED: u64 = 3;
/// A memtable that names this many times its size in large values is sealed: replay has to read them back.
const BLOB_FACTOR: u64 = 8;

/// One open store.
pub(crate) struct Engine {
    pub device: Arc<dyn Device>,
    pub core: Core,
    pub config: Config,
    pub operators: HashMap<String, Arc<dyn MergeOperator>>,
    /// `None` in a store that was opened for reading.
    pub log: Option<Log>,
    pub snapshots: Arc<Snapshots>,
    pub keyspaces: RwLock<BTreeMap<KeyspaceId, Arc<KeyspaceState>>>,
    pub sequencer: Mutex<Sequencer>,
    pub durable_root: Mutex<DurableRoot>,
    pub scheduler: Arc<Scheduler>,
    pub chunks: Arc<ChunkPool>,
    /// Work that met a full disk was tried once more in the space of the reserve, and there has been work to do ever since.
    pub tried_again: AtomicBool,
    pub reserve: Reserve,
    pub poison: OnceLock<String>,
    pub workers: Mutex<Vec<Box<dyn JoinHandle>>>,
    /// Bytes in all active memtables.
    pub active_bytes: AtomicU64,
    /// A checkpoint is due.
    pub checkpoint_due: AtomicBool,
    /// The last failure of background work that was not final, for the statistics.
    pub trouble: Mutex<Option<Error>>,
    /// The first damage that compactions of each keyspace met and nobody was told of yet.
    pub damage: Mutex<BTreeMap<KeyspaceId, Error>>,
    /// The damage at which the log was cut, in a store that was opened for a salvage.
    pub log_cut: Option<Error>,
    pub figures: Figures,
    pub closed: AtomicBool,
    /// Held shared by whoever writes to the data file without the sequencer; a close takes it before it lets go of the
    /// store's lock.
    pub gate: RwLock<()>,
    /// The store's lock, until it is closed.
    pub lock: Mutex<Option<Box<dyn LockGuard>>>,
}

/// What only the sequencer touches.
pub(crate) struct Sequencer {
    pub next: Seqno,
    /// The log payload of a single write, kept for its memory.
    pub payload: Vec<u8>,
}

/// What checkpoints know of the disk.
pub(crate) struct DurableRoot {
    /// The superblock that was written last.
    pub superblock: Superblock,
    pub catalog: Catalog,
    /// The log is needed above this by the older superblock.
    pub older_through: Seqno,
}

/// Counters of the process.
#[derive(Default)]
pub(crate) struct Figures {
    pub user_bytes: Counter,
    /// Bytes that earlier lives wrote: users, and the store for them.
    pub earlier: (u64, u64),
    /// Bytes of log that a store which is only read has found.
    pub log_found: Counter,
    pub blob_bytes: AtomicU64,
    pub checkpoint_bytes: Counter,
    pub checkpoints: Counter,
    pub commits: Counter,
    pub gets: Counter,
    pub probed_blocks: Counter,
    pub filters: Counter,
    pub leaves: Counter,
    pub false_positives: Counter,
    pub write_latency: Histogram,
    pub read_latency: Histogram,
}

impl Engine {
    /// The log, which every store has that was opened for writing.
    fn log(&self) -> Result<&Log> {
        self.log.as_ref().ok_or(Error::ReadOnly)
    }

    /// Fails if the store takes no writes.
    pub(crate) fn check_writable(&self) -> Result<&Log> {
        if let Some(first) = self.poison.get() {
            return Err(Error::Poisoned { first: first.clone() });
        }
        if self.closed.load(Relaxed) {
            return Err(Error::Poisoned { first: "the store was closed".into() });
        }
        self.log()
    }

    /// Notes the first failure after which nothing may be written any more.
    pub(crate) fn poison(&self, error: &Error) {
        if SeededBug::PoisonIgnored.is_on() {
            return;
        }
        let first = match error {
            // The log knew before the store.
            Error::Poisoned { first } => first.clone(),
            other => other.to_string(),
        };
        let _ = self.poison.set(first);
    }

    /// Applies the operations of `payload`, all or none; returns the seqno of the last one.
    pub(crate) fn commit(&self, payload: Payload<'_>, durability: Durability) -> Result<Seqno> {
        let log = self.check_writable()?;
        let started = self.device.now();
        self.admit(payload.bytes, payload.frees)?;
        let mut sequencer = self.sequencer.lock();
        // Dropping a keyspace takes the sequencer, too: from here on it is there or not for the whole commit.
        payload.keyspaces.iter().try_for_each(|keyspace| keyspace.check_alive())?;
        let last = match payload.ops {
            PayloadOps::One(op) => {
                let mut buf = std::mem::take(&mut sequencer.payload);
                buf.clear();
                crate::wal::put_op(&mut buf, op.keyspace.id, op.kind, op.key, op.value);
                let applied = self.apply(log, &mut sequencer, &buf, 1, payload.frees, durability);
                sequencer.payload = buf;
                applied?
            }
            PayloadOps::Many(bytes, count) => {
                self.apply(log, &mut sequencer, bytes, count, payload.frees, durability)?
            }
        };
        self.seal_if_full(&mut sequencer);
        drop(sequencer);
        if durability == Durability::Synced {
            log.sync(last).inspect_err(|e| self.poison(e))?;
        }
        self.figures.commits.fetch_add(1, Relaxed);
        self.figures.user_bytes.fetch_add(payload.bytes, Relaxed);
        self.figures.write_latency.record(self.device.now().saturating_sub(started));
        Ok(last)
    }

    /// Logs and applies; the caller holds the sequencer. Returns the last seqno.
    fn apply(
        &self,
        log: &Log,
        sequencer: &mut MutexGuard<'_, Sequencer>,
        payload: &[u8],
        count: u32,
        frees: bool,
        durability: Durability,
    ) -> Result<Seqno> {
        self.check_writable()?;
        if count > 1 && SeededBug::BatchInParts.is_on() {
            let (head, rest) = payload.split_at(Ops::first_bytes(payload));
            self.apply(log, sequencer, head, 1, frees, durability)?;
            return self.apply(log, sequencer, rest, count - 1, frees, durability);
        }
        if !frees {
            self.keep_back()?;
        }
        // A full disk shows here, before anything is accepted.
        if let Err(e) = log.reserve(payload.len()) {
            let full = matches!(e, Error::DiskFull { .. }) && !SeededBug::FullDiskPoisons.is_on();
            if !(full && frees && !SeededBug::ReserveNotUsed.is_on() && self.reserve.release()?) {
                if !full {
                    self.poison(&e);
                }
                return Err(e);
            }
            log.reserve(payload.len()).inspect_err(|e| {
                if !matches!(e, Error::DiskFull { .. }) {
                    self.poison(e);
                }
            })?;
        }
        let first = sequencer.next;
        let last = Seqno(first.0 + u64::from(count) - 1);
        sequencer.next = last.next();
        log.append(first, count, payload, durability == Durability::None).inspect_err(|e| self.poison(e))?;
        let keyspaces = self.keyspaces.read();
        for (op, i) in Ops::new(payload).zip(0u64..) {
            let op = op.inspect_err(|e| self.poison(e))?;
            if let Some(keyspace) = keyspaces.get(&op.keyspace) {
                self.insert(keyspace, op.kind, op.key, op.value, Seqno(first.0 + i));
            }
        }
        self.snapshots.set_visible(last);
        Ok(last)
    }

    /// Refuses a write that would take the space that was let go for freeing, unless as much can be kept back again.
    pub(crate) fn keep_back(&self) -> Result<()> {
        if self.reserve.is_lent() {
            self.reserve.refill(self.core.data.stats().allocated_bytes);
            if self.reserve.is_lent() {
                return Err(Error::DiskFull { op: "reserve" });
            }
        }
        Ok(())
    }

    /// Applies one operation to a keyspace's memtable.
    pub(crate) fn insert(&self, keyspace: &KeyspaceState, kind: Kind, key: &[u8], value: &[u8], seqno: Seqno) {
        let memtable = &keyspace.containers.load().active;
        if kind == Kind::RangeDelete {
            memtable.insert_range(&RangeTombstone { range: KeyRange::new(key, value), seqno });
        } else {
            memtable.insert(Entry { key, seqno, kind, value });
        }
        self.charge(keyspace, memtable.bytes() as u64);
    }

    /// Sets what a keyspace's active memtable counts for; the caller holds the sequencer or is alone.
    pub(crate) fn charge(&self, keyspace: &KeyspaceState, bytes: u64) {
        let before = keyspace.charged.swap(bytes, Relaxed);
        if bytes >= before {
            self.active_bytes.fetch_add(bytes - before, Relaxed);
        } else {
            self.active_bytes.fetch_sub(before - bytes, Relaxed);
        }
    }

    /// Makes a writer pay for the work that its bytes cause.
    fn admit(&self, bytes: u64, frees: bool) -> Result<()> {
        let debt = self.debt();
        if debt.total() == 0 {
            return Ok(());
        }
        let memtable = self.config.memtable() as u64;
        // Work that cannot go on must not fill the memory; what only deletes may still go a little further.
        let limit = memtable * (MAX_SEALED + if frees { 3 } else { 1 });
        if debt.pack_bytes > limit
            && let Some(trouble) = self.trouble.lock().clone()
        {
            return Err(trouble);
        }
        let room = memtable.saturating_sub(self.active_bytes.load(Relaxed));
        let price = Load { pack: debt.pack_bytes, compact: debt.compact_bytes, room, memtable }.price(bytes);
        if self.config.background_threads > 0 {
            self.scheduler.pay(price);
        } else {
            self.work_off(price)?;
        }
        Ok(())
    }

    /// Without workers: the writer does the steps itself.
    fn work_off(&self, price: u64) -> Result<()> {
        let mut due = self.scheduler.account().charge(price);
        while due > 0 {
            match self.guarded_turn(self.scheduler.step(sched::FOREGROUND_STEP)) {
                Turn::Worked(bytes) => self.scheduler.account().earn(bytes.max(1)),
                Turn::Idle | Turn::Stuck => self.scheduler.account().clear(),
            }
            due = self.scheduler.account().due();
        }
        Ok(())
    }

    /// Work owed by all keyspaces.
    pub(crate) fn debt(&self) -> Debt {
        self.keyspaces.read().values().fold(Debt::default(), |sum, keyspace| {
            let debt = keyspace.index.debt();
            Debt { pack_bytes: sum.pack_bytes + debt.pack_bytes, compact_bytes: sum.compact_bytes + debt.compact_bytes }
        })
    }

    /// Seals the largest memtable when the budget of all of them is used up, or one that names too many large values.
    fn seal_if_full(&self, sequencer: &mut MutexGuard<'_, Sequencer>) {
        let limit = self.config.memtable() as u64;
        let active = self.active_bytes.load(Relaxed);
        let heavy = self.figures.blob_bytes.load(Relaxed) >= limit * BLOB_FACTOR;
        if active < limit && !heavy {
            return;
        }
        // Too many wait already: better a larger memtable than a longer queue, until memory speaks against it.
        if self.debt().pack_bytes > limit * MAX_SEALED && active < limit * 2 {
            return;
        }
        let keyspaces = self.keyspaces.read();
        if heavy {
            keyspaces.values().for_each(|keyspace| self.seal(sequencer, keyspace));
            self.figures.blob_bytes.store(0, Relaxed);
        } else if let Some(largest) = keyspaces.values().max_by_key(|keyspace| keyspace.active_bytes()) {
            self.seal(sequencer, largest);
        }
    }

    /// Seals a keyspace's memtable and hands it to the index. The caller holds the sequencer, so the cut is exact.
    pub(crate) fn seal(&self, sequencer: &mut MutexGuard<'_, Sequencer>, keyspace: &KeyspaceState) {
        let old = keyspace.containers.load_full();
        if old.active.is_empty() {
            return;
        }
        let through = Seqno(sequencer.next.0 - 1);
        let fresh = Arc::new(Memtable::new(through.0, self.chunks.clone()));
        self.charge(keyspace, fresh.bytes() as u64);
        let batch = SealedBatch::new(old.active.clone(), through);
        keyspace.push_sealed(batch.clone(), fresh);
        keyspace.index.ingest(batch);
        self.scheduler.nudge();
    }

    /// One turn of background work: a step of the keyspace that owes the most, or a checkpoint that is due.
    pub(crate) fn turn(&self, budget: u64) -> Turn {
        if self.poison.get().is_some() || self.closed.load(Relaxed) {
            return Turn::Stuck;
        }
        if self.checkpoint_due.swap(false, Relaxed)
            && let Err(e) = self.checkpoint()
        {
            return self.note_trouble(e);
        }
        let mut keyspaces: Vec<Arc<KeyspaceState>> = self.keyspaces.read().values().cloned().collect();
        // Memtables first, whoever they belong to: they hold memory.
        keyspaces.sort_by_key(|keyspace| {
            let debt = keyspace.index.debt();
            std::cmp::Reverse((debt.pack_bytes, debt.compact_bytes))
        });
        for keyspace in keyspaces.iter().filter(|keyspace| keyspace.index.debt().total() > 0) {
            match keyspace.index.step(budget, &|| self.snapshots.stripes()) {
                Ok(progress) if progress.idle => {}
                Ok(progress) => {
                    if progress.packed {
                        keyspace.retire_sealed();
                        self.checkpoint_due.store(true, Relaxed);
                    }
                    if let Some(damage) = progress.damage {
                        self.damage.lock().entry(keyspace.id).or_insert(damage);
                    }
                    self.trouble.lock().take();
                    return Turn::Worked(progress.bytes.max(1));
                }
                Err(e) => return self.note_trouble(e),
            }
        }
        self.tried_again.store(false, Relaxed);
        Turn::Idle
    }

    /// A turn of a worker thread. A panic in it is a mistake of ours: it must not take the host down, nor leave writers
    /// waiting for a thread that is gone, so it poisons the store.
    pub(crate) fn guarded_turn(&self, budget: u64) -> Turn {
        let _gate = self.gate.read();
        let turn = std::panic::AssertUnwindSafe(|| self.turn(budget));
        std::panic::catch_unwind(turn).unwrap_or_else(|_| {
            let _ = self.poison.set("background work panicked; please report it with the message on stderr".into());
            Turn::Stuck
        })
    }

    /// A failure of background work: final if the device refused, else something to try again later.
    fn note_trouble(&self, error: Error) -> Turn {
        match &error {
            Error::DiskFull { .. } => {
                if self.core.data.has_quarantine() {
                    self.checkpoint_due.store(true, Relaxed);
                }
                // What is kept back for this moment lets compactions and the next checkpoint go on.
                match self.reserve.release() {
                    // Now there is room: whoever waits for the work is not to be told of a full disk yet. Once: work
                    // that goes well for some steps, or a checkpoint that keeps the space back again, and the next full disk
                    // would go round for ever.
                    Ok(true) if !self.tried_again.swap(true, Relaxed) => return Turn::Worked(1),
                    Ok(_) => {}
                    Err(e) => self.poison(&e),
                }
            }
            // What was just written could not be read back: it is written again.
            damage if damage.is_damage() => {}
            // Not this work failed: something else did before, or the store was closed meanwhile. To count the latter as
            // a failure would keep the close from making everything durable.
            Error::Poisoned { .. } => {}
            _ => self.poison(&error),
        }
        *self.trouble.lock() = Some(error);
        Turn::Stuck
    }

    /// Stops the workers and closes the log at an exact end.
    pub(crate) fn close(&self) -> Result<()> {
        if self.closed.swap(true, Relaxed) {
            return Ok(());
        }
        self.scheduler.stop();
        let workers = std::mem::take(&mut *self.workers.lock());
        workers.into_iter().for_each(|worker| worker.join());
        let ended = match self.poison.get() {
            _ if self.log.is_none() => Ok(()),
            Some(first) => Err(Error::Poisoned { first: first.clone() }),
            None => self.write_clean_end().inspect_err(|e| self.poison(e)),
        };
        let _gate = self.gate.write();
        self.lock.lock().take();
        ended
    }
}

/// What the handles of a store share. Workers hold the engine, never this, so the last handle to go closes the store on
/// its own thread and waits for the workers.
pub(crate) struct Shared(pub Arc<Engine>);

impl std::ops::Deref for Shared {
    type Target = Engine;

    fn deref(&self) -> &Engine {
        &self.0
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        // A caller who wants to know the outcome calls `Store::close`; here there is nobody to tell.
        let _ = self.0.close();
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
