//! [`Engine`]: the state of an open store; admission of writes, turns of background work, poisoning, closing. Commits
//! are in `commit`.
//!
//! Lock order: `gate` (shared) → `checkpointing` → `durable_root` (checkpoint, create, drop) → a stream's append lock
//! (commit) → `sequencer` → `keyspaces` → an index's `inner` → its `queue` → the data file's map. A thread that
//! applies a commit holds none of these, except its stream's append lock until its record is in the buffer: the
//! sequencer waits for the ticket (`Engine::quiesce`). Readers take none of these locks, except the map's if they
//! drop the last reference to a run.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Duration;

use super::access::Access;
use super::catalog::{Catalog, most_bytes_of};
use super::commit::Sequencer;
use super::keyspace::KeyspaceState;
use super::keyspaces::Keyspaces;
use super::options::Config;
use super::pressure::Pressure;
use super::reserve::Reserve;
use super::snapshot::Snapshots;
use super::stats::{ReadTally, Tallies, WriteTally};
use super::watermark::{CachePadded, Watermark};
use crate::base::sync::{AtomicBool, AtomicU64, Counter, Mutex, MutexGuard, OnceLock, Ordering::Relaxed, RwLock};
use crate::base::{Error, KeyspaceId, Result, SeededBug, Seqno, events};
use crate::device::{Device, JoinHandle, LockGuard};
use crate::index::{Core, Debt, Progress};
use crate::memtable::ChunkPool;
use crate::resolve::{MergeOperator, in_operator};
use crate::sched::{self, Load, Scheduler, Turn};
use crate::space::Superblock;
use crate::wal::Log;

/// Sealed memtables that may wait before writers are throttled hard.
pub(super) const MAX_SEALED: u64 = 3;

/// Workers pack at most this many memtables, or as many bytes of smaller ones, before they wait for the checkpoint
/// that covers them: until then the log and freed pages are kept.
const MOST_UNCOVERED: u64 = 8;

/// How long the store must be idle before idle-time work starts.
const REST: Duration = Duration::from_millis(90);

/// One open store.
pub(crate) struct Engine {
    pub device: Arc<dyn Device>,
    pub core: Core,
    pub config: Config,
    pub operators: HashMap<String, Arc<dyn MergeOperator>>,
    /// `None` in a store that was opened for reading.
    pub log: Option<Log>,
    pub snapshots: Arc<Snapshots>,
    pub keyspaces: Keyspaces,
    /// Gives out seqnos. All callers but commits take it with [`Engine::quiesce`].
    pub sequencer: CachePadded<Mutex<Sequencer>>,
    /// Up to which ticket all commits are applied.
    pub watermark: Watermark,
    pub durable_root: Mutex<DurableRoot>,
    pub scheduler: Arc<Scheduler>,
    pub chunks: Arc<ChunkPool>,
    pub reserve: Reserve,
    pub pressure: Pressure,
    pub poison: OnceLock<String>,
    pub workers: Mutex<Vec<Box<dyn JoinHandle>>>,
    /// Bytes in all active memtables. Commits add and subtract in any order: read it through [`Engine::active`].
    pub active_bytes: CachePadded<AtomicU64>,
    /// Active memtables that are not empty, counted in the same way: read it through [`Engine::occupied`].
    pub occupied: CachePadded<AtomicU64>,
    /// Since when there has been no work, and the newest seqno then.
    pub idle: Mutex<Option<(Duration, Seqno)>>,
    /// A checkpoint is due.
    pub checkpoint_due: AtomicBool,
    /// Held by the thread that takes a checkpoint.
    pub checkpointing: Mutex<()>,
    /// Bytes of memtables packed since the last checkpoint began.
    pub uncovered: AtomicU64,
    /// The last failure of background work that was not final, for the statistics.
    pub trouble: Mutex<Option<Error>>,
    /// The first damage that compactions of each keyspace met and that was not reported yet.
    pub damage: Mutex<BTreeMap<KeyspaceId, Error>>,
    /// The damage at which the log was cut, in a store that was opened for a salvage.
    pub log_cut: Option<Error>,
    pub figures: Figures,
    /// A close has begun: it packs all memtables.
    pub closing: AtomicBool,
    /// Whether the handles may be used.
    pub access: Access,
    /// Held shared by threads that write to the data file without the sequencer; a close takes it before it releases
    /// the store's lock.
    pub gate: RwLock<()>,
    /// The store's lock on the directory, until it is closed.
    pub lock: Mutex<Option<Box<dyn LockGuard>>>,
}

/// The durable root: what checkpoints know of the disk.
pub(crate) struct DurableRoot {
    /// The superblock that was written last,
    pub superblock: Superblock,
    /// and its catalogue.
    pub catalog: Catalog,
    /// The log is needed above this by the older superblock.
    pub older_through: Seqno,
    /// The id of the next keyspace. Ahead of the catalogue's while a creation is in the log only.
    pub next_id: u32,
    /// Names that the older superblock's catalogue still holds, of keyspaces that were dropped.
    pub dropped: Vec<String>,
    /// Creations that are in the log only.
    pub logged: u64,
    /// The most bytes that they will take in the catalogue.
    pub logged_bytes: u64,
}

impl DurableRoot {
    /// The most bytes that the next catalogues will take, if no keyspace is created or altered.
    pub fn most_catalog_bytes(&self) -> u64 {
        most_bytes_of(&self.catalog, self.superblock.catalog_len) + self.logged_bytes
    }
}

/// Counters since this opening.
#[derive(Default)]
pub(crate) struct Figures {
    pub writes: Tallies<WriteTally>,
    /// Bytes that users wrote before this opening, and bytes that the store wrote for them.
    pub earlier: (u64, u64),
    /// Bytes of log that a store which is open for reading has found.
    pub log_found: Counter,
    /// Operations that the opening found only in the log, and applied again.
    pub replayed: Counter,
    /// How long the opening took, in microseconds.
    pub opening_us: Counter,
    pub blob_bytes: AtomicU64,
    pub checkpoint_bytes: Counter,
    pub checkpoints: Counter,
    pub reads: Tallies<ReadTally>,
}

impl Engine {
    /// The log; every store that is open for writing has one.
    fn log(&self) -> Result<&Log> {
        self.log.as_ref().ok_or(Error::ReadOnly)
    }

    /// Fails if the store takes no writes.
    pub(crate) fn check_writable(&self) -> Result<&Log> {
        self.access.check()?;
        if let Some(first) = self.poison.get() {
            return Err(Error::Poisoned { first: first.clone() });
        }
        self.log()
    }

    /// Records the first failure; no write is accepted after it.
    pub(crate) fn poison(&self, error: &Error) {
        if SeededBug::PoisonIgnored.is_on() {
            return;
        }
        let first = match error {
            // The log failed before the store noticed it.
            Error::Poisoned { first } | Error::Indeterminate { first } => first.clone(),
            other => other.to_string(),
        };
        self.set_poison(first);
    }

    fn set_poison(&self, first: String) {
        if let Ok(()) = self.poison.set(first) {
            events::poisoned(self.poison.get().map_or("", |first| first));
        }
    }

    /// Throttles a writer that arrived at `now` for the work that its bytes cause.
    pub(super) fn admit(&self, bytes: u64, frees: bool, now: Duration) -> Result<()> {
        let debt = self.debt();
        if debt.total() == 0 {
            return Ok(());
        }
        let memtable = self.config.memtable() as u64;
        // Work that cannot continue must not fill the memory; writes that only delete may go a little further.
        let limit = memtable * (MAX_SEALED + if frees { 3 } else { 1 });
        if debt.memory_bytes > limit
            && let Some(trouble) = self.trouble.lock().clone()
        {
            return Err(trouble);
        }
        let room = memtable.saturating_sub(self.active());
        let crowd = (debt.memory_bytes / memtable).saturating_sub(MAX_SEALED - 1);
        // An ordinary write on a full disk is refused later, and is not throttled for it.
        if !frees && self.reserve.is_short() {
            return Ok(());
        }
        let (work, rate) = if self.is_stalled() { (0, 0) } else { (debt.work_bytes, self.core.share.owed.rate()) };
        let load = Load { memory: debt.memory_bytes, work, rate, room, memtable, crowd };
        let price = load.price(bytes);
        if self.config.background_threads > 0 {
            let waited = self.scheduler.pay(price, load.patience(bytes), now, &|| self.device.now());
            events::waited(waited, debt.memory_bytes, debt.work_bytes);
        } else {
            self.work_off(price)?;
        }
        Ok(())
    }

    /// Without workers: the writer does the steps itself.
    fn work_off(&self, price: u64) -> Result<()> {
        let mut due = self.scheduler.account().charge(price);
        while due > 0 {
            match self.turn_alone(sched::FOREGROUND_STEP) {
                Turn::Worked(bytes) => self.scheduler.account().earn(bytes.max(1)),
                Turn::Idle | Turn::Stuck => self.scheduler.account().clear(),
            }
            due = self.scheduler.account().due();
        }
        Ok(())
    }

    /// The debt of all keyspaces. A sum that indexes keep up to date: no lock, no walk.
    #[inline]
    pub(crate) fn debt(&self) -> Debt {
        self.core.share.owed.sum()
    }

    /// One turn of unmetered work: memory that the row cache returns, log segments to preallocate, and a checkpoint
    /// that is due. Returns at once if another thread takes a checkpoint.
    pub(crate) fn checkpoint_turn(&self) -> Turn {
        self.core.rows.shrink();
        if !self.prepare_log() {
            return Turn::Stuck;
        }
        let one = self.checkpoint_due.load(Relaxed).then(|| self.checkpointing.try_lock()).flatten();
        one.map_or(Turn::Idle, |one| self.take_checkpoint(one))
    }

    /// Takes a checkpoint if one is due.
    fn take_checkpoint(&self, _one: MutexGuard<'_, ()>) -> Turn {
        if self.poison.get().is_some() || self.access.is_closed() {
            return Turn::Stuck;
        }
        if !self.checkpoint_due.swap(false, Relaxed) {
            return Turn::Idle;
        }
        self.uncovered.store(0, Relaxed);
        let Err(e) = self.checkpoint() else { return Turn::Idle };
        let turn = self.note_trouble(e);
        // Disk space was freed.
        self.checkpoint_due.fetch_or(matches!(turn, Turn::Worked(_)), Relaxed);
        turn
    }

    /// Preallocates log segments. `false` if the store is poisoned or closed.
    fn prepare_log(&self) -> bool {
        // Not in the space that freeing work needs.
        if self.is_writable()
            && let Some(log) = self.log.as_ref().filter(|_| !self.reserve.is_short())
            && let Err(e) = log.prepare(&|bytes| self.check_space(bytes))
        {
            self.poison(&e);
        }
        self.is_writable()
    }

    fn is_writable(&self) -> bool {
        self.poison.get().is_none() && !self.access.is_closed()
    }

    /// One turn of background work: a step of the keyspace with the largest debt.
    pub(crate) fn turn(&self, budget: u64) -> Turn {
        // The next checkpoint may free the space that a full disk lacks, and it must not get too much to cover. Log
        // segments are needed also while a checkpoint waits for the disk.
        if (self.pressure.pressed.load(Relaxed) || self.is_tight()) && self.is_writable() {
            return self.relieve();
        }
        let waits = self.uncovered.load(Relaxed) >= MOST_UNCOVERED * self.config.memtable() as u64;
        if waits && self.take_checkpoint(self.checkpointing.lock()) == Turn::Stuck || !self.prepare_log() {
            return Turn::Stuck;
        }
        self.core.rows.shrink();
        // Memtables first, of any keyspace: they hold memory.
        let mut rank = None;
        while let Some(next) = self.core.share.owed.next(rank) {
            rank = Some(next);
            // A keyspace that is being dropped has debt until it is cleared.
            let Some(keyspace) = self.keyspaces.get(next.2) else { continue };
            let _step = events::step(&keyspace.name);
            match keyspace.index.step(budget, &|| self.snapshots.stripes()) {
                Ok(progress) if progress.idle => {}
                Ok(progress) => return Turn::Worked(self.note_progress(&keyspace, progress).max(1)),
                // The checkpoint in progress may free the missing space.
                Err(Error::DiskFull { .. }) if self.checkpointing.try_lock().is_none() => {
                    drop(self.checkpointing.lock());
                    return Turn::Worked(1);
                }
                Err(Error::DiskFull { op }) => {
                    self.press(op);
                    return self.relieve();
                }
                Err(e) => {
                    let turn = self.note_trouble(e);
                    if self.checkpoint_due.load(Relaxed) {
                        self.scheduler.wake();
                    }
                    return turn;
                }
            }
        }
        if self.is_at_rest() {
            self.chunks.trim();
            self.keyspaces.all().iter().for_each(|keyspace| keyspace.index.on_idle());
        }
        Turn::Idle
    }

    /// A step of a keyspace's index succeeded: returns the bytes that it worked through.
    pub(super) fn note_progress(&self, keyspace: &KeyspaceState, progress: Progress) -> u64 {
        if let Some(bytes) = progress.absorbed {
            keyspace.retire_sealed();
            let uncovered = self.uncovered.fetch_add(bytes, Relaxed) + bytes;
            // Many small memtables share one checkpoint.
            if uncovered >= self.config.memtable() as u64 / 4 || self.debt().memory_bytes == 0 {
                self.checkpoint_due.store(true, Relaxed);
                self.scheduler.wake();
            }
        }
        if let Some(damage) = progress.damage {
            events::failed(&keyspace.name, &damage);
            self.damage.lock().entry(keyspace.id).or_insert(damage);
        }
        self.trouble.lock().take();
        self.idle.lock().take();
        progress.bytes
    }

    /// Whether there has been no work for some time, and no write. A store without workers does no idle-time work.
    fn is_at_rest(&self) -> bool {
        if self.config.background_threads == 0 {
            return false;
        }
        let (now, visible) = (self.device.now(), self.snapshots.visible());
        let mut idle = self.idle.lock();
        match *idle {
            Some((since, seqno)) if seqno == visible => now.saturating_sub(since) >= REST,
            _ => {
                *idle = Some((now, visible));
                false
            }
        }
    }

    /// A turn of a store without background threads: all kinds of work, each with a step of at most `budget` bytes.
    pub(crate) fn turn_alone(&self, most: u64) -> Turn {
        let budget = self.scheduler.step(most);
        self.guarded(&|it| match it.checkpoint_turn() {
            Turn::Idle => it.turn(budget),
            other => other,
        })
    }

    /// A turn of a background thread. A panic in it is a bug of the engine: it must neither end the host process nor
    /// leave writers waiting for a thread that has ended, so it poisons the store.
    pub(crate) fn guarded(&self, turn: &dyn Fn(&Engine) -> Turn) -> Turn {
        let _gate = self.gate.read();
        let turn = std::panic::AssertUnwindSafe(|| turn(self));
        std::panic::catch_unwind(turn).unwrap_or_else(|_| {
            self.set_poison("background work panicked; please report it with the message on stderr".into());
            Turn::Stuck
        })
    }

    /// Background work met a full disk.
    fn press(&self, op: &str) {
        if !self.pressure.pressed.swap(true, Relaxed) {
            events::disk_full(op);
        }
    }

    /// A failure of background work: final if the device refused, else the work is tried again later.
    pub(super) fn note_trouble(&self, error: Error) -> Turn {
        match &error {
            Error::DiskFull { op } => self.press(op),
            // A block that was just written could not be read back: it is written again.
            damage if damage.is_damage() => {}
            // This work did not fail: another failure came before, or the store was closed meanwhile. If the latter
            // counted as a failure, the close would not make everything durable.
            Error::Poisoned { .. } | Error::Closed => {}
            _ => self.poison(&error),
        }
        *self.trouble.lock() = Some(error);
        Turn::Stuck
    }

    /// Packs all memtables, so that the next opening has nothing to replay; stops the workers and closes the log at
    /// an exact end. Reads in progress end as `Closed`; the close does not wait for them.
    pub(crate) fn close(&self) -> Result<()> {
        self.access.check()?;
        if self.closing.swap(true, Relaxed) {
            return Err(Error::Closed);
        }
        let _closing = events::closing();
        let began = self.device.now();
        if self.log.is_some() && self.poison.get().is_none() {
            // Memtables that do not fit on a full disk stay in the log. Other failures have poisoned the store, and
            // are returned below.
            let _ = self.checkpoint_all();
        }
        self.access.close();
        self.scheduler.stop();
        let workers = std::mem::take(&mut *self.workers.lock());
        workers.into_iter().for_each(|worker| worker.join());
        let ended = match self.poison.get() {
            _ if self.log.is_none() => Ok(()),
            Some(first) => Err(Error::Poisoned { first: first.clone() }),
            None => self.write_clean_end().inspect_err(|e| self.poison(e)),
        };
        self.log.iter().for_each(Log::close);
        // In a poisoned store a checkpoint may be in progress, and a commit that still writes to the log.
        drop(self.durable_root.lock());
        drop(self.quiesce());
        let _gate = self.gate.write();
        self.check_owed();
        self.core.data.close();
        self.lock.lock().take();
        events::closed(ended.is_ok(), self.device.now().saturating_sub(began));
        ended
    }

    /// At rest the total debt equals the sum over all keyspaces. REQUIRES: the caller holds the gate exclusively.
    fn check_owed(&self) {
        if cfg!(debug_assertions) {
            let (_root, _sequencer) = (self.durable_root.lock(), self.quiesce());
            let debts = self.keyspaces.all().iter().map(|keyspace| keyspace.index.debt().total()).sum::<u64>();
            assert_eq!(self.debt().total(), debts, "what is owed is added up as indexes change it");
        }
    }
}

/// The state that the handles of a store share. Workers hold the engine, never this, so the last handle that is
/// dropped closes the store on its own thread and waits for the workers.
pub(crate) struct Shared(pub Arc<Engine>);

impl std::ops::Deref for Shared {
    type Target = Engine;

    fn deref(&self) -> &Engine {
        &self.0
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        let engine = self.0.clone();
        if engine.access.is_inherited() {
            // The parent process continues to use the files. No memory is freed: threads that are not in this process
            // may hold its locks.
            let lock = engine.lock.try_lock().and_then(|mut lock| lock.take());
            drop(lock);
            std::mem::forget(engine);
        } else if in_operator() {
            // A merge operator that drops the last handle may run on a thread that the close waits for.
            let close = engine.clone();
            let closer = engine.device.spawn("pando-close", Box::new(move || drop(close.close())));
            if closer.is_err() {
                // Without a thread the store stays open until the process ends, as after a kill: no acknowledged
                // write is lost.
                std::mem::forget(engine);
            }
        } else {
            // A caller that needs the result calls `Store::close`; a drop cannot return one.
            let _ = engine.close();
        }
    }
}
