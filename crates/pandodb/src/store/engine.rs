//! The engine behind the handles: what an open store consists of, admission, turns of background work, poison, closing.
//! The life of a write is in `commit`.
//!
//! Lock order: `gate` (shared) → `checkpointing` → `durable_root` (checkpoint, create, drop) → a turn in the log (a commit) → `sequencer` → `keyspaces` → an index's `inner` → its `queue` →
//! the data file's map. Whoever applies a commit holds none of them, but in paper mode its turn: the sequencer waits for it
//! (`Engine::quiesce`).
//! Readers take none of these, but for the map when they are the last to let go of a run.

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

/// Sealed memtables that may wait before writers are held back hard.
pub(super) const MAX_SEALED: u64 = 3;

/// Memtables, or as many bytes of smaller ones, that are packed before a worker waits for the checkpoint that covers them: log, and space that
/// was freed, are kept until then.
const MOST_UNCOVERED: u64 = 8;

/// So long nothing was to be done before what is worth doing only in idle time is.
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
    /// The order of writes. All but commits take it with [`Engine::quiesce`].
    pub sequencer: CachePadded<Mutex<Sequencer>>,
    /// How far what the sequencer gave out is applied.
    pub watermark: Watermark,
    pub durable_root: Mutex<DurableRoot>,
    pub scheduler: Arc<Scheduler>,
    pub chunks: Arc<ChunkPool>,
    pub reserve: Reserve,
    pub pressure: Pressure,
    pub poison: OnceLock<String>,
    pub workers: Mutex<Vec<Box<dyn JoinHandle>>>,
    /// Bytes in all active memtables. Those who apply commits add and subtract in any order: [`Engine::active`] reads it.
    pub active_bytes: CachePadded<AtomicU64>,
    /// Active memtables with something in them, counted in the same way: [`Engine::occupied`] reads it.
    pub occupied: CachePadded<AtomicU64>,
    /// Since when there has been nothing to do, and up to where was written then.
    pub idle: Mutex<Option<(Duration, Seqno)>>,
    /// A checkpoint is due.
    pub checkpoint_due: AtomicBool,
    /// Held by who takes it.
    pub checkpointing: Mutex<()>,
    /// Bytes of memtables packed since the last checkpoint began.
    pub uncovered: AtomicU64,
    /// The last failure of background work that was not final, for the statistics.
    pub trouble: Mutex<Option<Error>>,
    /// The first damage that compactions of each keyspace met and nobody was told of yet.
    pub damage: Mutex<BTreeMap<KeyspaceId, Error>>,
    /// The damage at which the log was cut, in a store that was opened for a salvage.
    pub log_cut: Option<Error>,
    pub figures: Figures,
    /// A close has begun: it packs what is in memory.
    pub closing: AtomicBool,
    /// Whether the handles may be used.
    pub access: Access,
    /// Held shared by whoever writes to the data file without the sequencer; a close takes it before it lets go of the
    /// store's lock.
    pub gate: RwLock<()>,
    /// The store's lock, until it is closed.
    pub lock: Mutex<Option<Box<dyn LockGuard>>>,
}

/// What checkpoints know of the disk.
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

/// Counters of the process.
#[derive(Default)]
pub(crate) struct Figures {
    pub writes: Tallies<WriteTally>,
    /// Bytes that earlier lives wrote: users, and the store for them.
    pub earlier: (u64, u64),
    /// Bytes of log that a store which is only read has found.
    pub log_found: Counter,
    /// Operations that the opening found in the log alone, and applied again.
    pub replayed: Counter,
    /// How long the opening took, in microseconds.
    pub opening_us: Counter,
    pub blob_bytes: AtomicU64,
    pub checkpoint_bytes: Counter,
    pub checkpoints: Counter,
    pub reads: Tallies<ReadTally>,
}

impl Engine {
    /// The log, which every store has that was opened for writing.
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

    /// Notes the first failure after which nothing may be written any more.
    pub(crate) fn poison(&self, error: &Error) {
        if SeededBug::PoisonIgnored.is_on() {
            return;
        }
        let first = match error {
            // The log knew before the store.
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

    /// Makes a writer that came at `now` pay for the work that its bytes cause.
    pub(super) fn admit(&self, bytes: u64, frees: bool, now: Duration) -> Result<()> {
        let debt = self.debt();
        if debt.total() == 0 {
            return Ok(());
        }
        let memtable = self.config.memtable() as u64;
        // Work that cannot go on must not fill the memory; what only deletes may still go a little further.
        let limit = memtable * (MAX_SEALED + if frees { 3 } else { 1 });
        if debt.memory_bytes > limit
            && let Some(trouble) = self.trouble.lock().clone()
        {
            return Err(trouble);
        }
        let room = memtable.saturating_sub(self.active());
        let crowd = (debt.memory_bytes / memtable).saturating_sub(MAX_SEALED - 1);
        // An ordinary write on a full disk is refused, and pays for nothing.
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

    /// Work owed by all keyspaces. A sum that indexes keep up to date: no lock, no walk.
    #[inline]
    pub(crate) fn debt(&self) -> Debt {
        self.core.share.owed.sum()
    }

    /// One turn of what is not paid for: memory that rows give back, segments of the log that will be needed, and a checkpoint that is due. It does not wait for
    /// another who is at that.
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
        // There is room now.
        self.checkpoint_due.fetch_or(matches!(turn, Turn::Worked(_)), Relaxed);
        turn
    }

    /// Makes the segments of the log that will be needed. `false` if nothing may be written any more.
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

    /// One turn of background work: a step of the keyspace that owes the most.
    pub(crate) fn turn(&self, budget: u64) -> Turn {
        // What a full disk lacks may be what the next checkpoint lets go; and what it covers must not become too much. Segments
        // are needed also while a checkpoint waits for the disk.
        if (self.pressure.pressed.load(Relaxed) || self.is_tight()) && self.is_writable() {
            return self.relieve();
        }
        let waits = self.uncovered.load(Relaxed) >= MOST_UNCOVERED * self.config.memtable() as u64;
        if waits && self.take_checkpoint(self.checkpointing.lock()) == Turn::Stuck || !self.prepare_log() {
            return Turn::Stuck;
        }
        self.core.rows.shrink();
        // Memtables first, of whichever keyspace: they hold memory.
        let mut rank = None;
        while let Some(next) = self.core.share.owed.next(rank) {
            rank = Some(next);
            // A keyspace that is being dropped owes until it is cleared.
            let Some(keyspace) = self.keyspaces.get(next.2) else { continue };
            let _step = events::step(&keyspace.name);
            match keyspace.index.step(budget, &|| self.snapshots.stripes()) {
                Ok(progress) if progress.idle => {}
                Ok(progress) => return Turn::Worked(self.note_progress(&keyspace, progress).max(1)),
                // What a checkpoint lets go that is under way may be all that is missing.
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

    /// A step of a keyspace's index went well: how many bytes it worked through.
    pub(super) fn note_progress(&self, keyspace: &KeyspaceState, progress: Progress) -> u64 {
        if let Some(bytes) = progress.absorbed {
            keyspace.retire_sealed();
            let uncovered = self.uncovered.fetch_add(bytes, Relaxed) + bytes;
            // Many small memtables share one.
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

    /// Whether there has been nothing to do for a while, and nobody has written. A store without workers does what it is told.
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

    /// A turn of a store without background threads, with a step of so many bytes at most: everything there is to do.
    pub(crate) fn turn_alone(&self, most: u64) -> Turn {
        let budget = self.scheduler.step(most);
        self.guarded(&|it| match it.checkpoint_turn() {
            Turn::Idle => it.turn(budget),
            other => other,
        })
    }

    /// A turn of a background thread. A panic in it is a mistake of ours: it must not take the host down, nor leave writers
    /// waiting for a thread that is gone, so it poisons the store.
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

    /// A failure of background work: final if the device refused, else something to try again later.
    pub(super) fn note_trouble(&self, error: Error) -> Turn {
        match &error {
            Error::DiskFull { op } => self.press(op),
            // What was just written could not be read back: it is written again.
            damage if damage.is_damage() => {}
            // Not this work failed: something else did before, or the store was closed meanwhile. To count the latter as
            // a failure would keep the close from making everything durable.
            Error::Poisoned { .. } | Error::Closed => {}
            _ => self.poison(&error),
        }
        *self.trouble.lock() = Some(error);
        Turn::Stuck
    }

    /// Packs what is in memory, so that the next opening has nothing to replay; stops the workers and closes the log at an exact
    /// end. Reads that are under way end as `Closed`: nobody waits for them.
    pub(crate) fn close(&self) -> Result<()> {
        self.access.check()?;
        if self.closing.swap(true, Relaxed) {
            return Err(Error::Closed);
        }
        let _closing = events::closing();
        let began = self.device.now();
        if self.log.is_some() && self.poison.get().is_none() {
            // What does not fit on a full disk stays in the log. Other failures have poisoned the store, and are told below.
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
        // In a poisoned store a checkpoint may be under way, and a commit that still writes to the log.
        drop(self.durable_root.lock());
        drop(self.quiesce());
        let _gate = self.gate.write();
        self.check_owed();
        self.core.data.close();
        self.lock.lock().take();
        events::closed(ended.is_ok(), self.device.now().saturating_sub(began));
        ended
    }

    /// At rest, the sum of what is owed is the sum over all keyspaces. The caller holds the gate alone.
    fn check_owed(&self) {
        if cfg!(debug_assertions) {
            let (_root, _sequencer) = (self.durable_root.lock(), self.quiesce());
            let debts = self.keyspaces.all().iter().map(|keyspace| keyspace.index.debt().total()).sum::<u64>();
            assert_eq!(self.debt().total(), debts, "what is owed is added up as indexes change it");
        }
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
        let engine = self.0.clone();
        if engine.access.is_inherited() {
            // The parent goes on with the files. Of the memory nothing is freed: its locks may be held by threads that are not here.
            let lock = engine.lock.try_lock().and_then(|mut lock| lock.take());
            drop(lock);
            std::mem::forget(engine);
        } else if in_operator() {
            // The operator that drops the last handle may run on a thread that the close waits for.
            let close = engine.clone();
            let closer = engine.device.spawn("pando-close", Box::new(move || drop(close.close())));
            if closer.is_err() {
                // Without a thread it stays open until the process ends, as after a kill: nothing acknowledged is lost.
                std::mem::forget(engine);
            }
        } else {
            // A caller who wants to know the outcome calls `Store::close`; here there is nobody to tell.
            let _ = engine.close();
        }
    }
}
