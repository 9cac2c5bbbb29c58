//! The engine behind the handles: what an open store consists of, admission, turns of background work, poison, closing.
//! The life of a write is in `commit`.
//!
//! Lock order: `gate` (shared) → `checkpointing` → `durable_root` (checkpoint, create, drop) → a turn in the log (a commit) → `sequencer` → `keyspaces` → an index's `inner` → its `queue` →
//! the data file's map. Whoever applies a commit holds none of them, but in paper mode its turn: the sequencer waits for it
//! (`Engine::settled`).
//! Readers take none of these, but for the map when they are the last to let go of a run.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Duration;

use super::catalog::Catalog;
use super::commit::Sequencer;
use super::keyspace::KeyspaceState;
use super::options::Config;
use super::reserve::Reserve;
use super::snapshot::Snapshots;
use super::stats::{ReadTally, Tallies, WriteTally};
use super::watermark::{Lone, Watermark};
use crate::base::sync::{AtomicBool, AtomicU64, Counter, Mutex, MutexGuard, OnceLock, Ordering::Relaxed, RwLock};
use crate::base::{Error, KeyspaceId, Result, SeededBug, Seqno};
use crate::device::{Device, JoinHandle, LockGuard};
use crate::index::{Core, Debt};
use crate::memtable::ChunkPool;
use crate::resolve::MergeOperator;
use crate::sched::{self, Load, Scheduler, Turn};
use crate::space::Superblock;
use crate::wal::Log;

/// Sealed memtables that may wait before writers are held back hard.
pub(super) const MAX_SEALED: u64 = 3;

/// Memtables that are packed before a worker waits for the checkpoint that covers them: log, and space that was freed, are kept until then.
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
    pub keyspaces: RwLock<BTreeMap<KeyspaceId, Arc<KeyspaceState>>>,
    /// The order of writes. All but commits take it with [`Engine::settled`].
    pub sequencer: Lone<Mutex<Sequencer>>,
    /// How far what the sequencer gave out is applied.
    pub watermark: Watermark,
    pub durable_root: Mutex<DurableRoot>,
    pub scheduler: Arc<Scheduler>,
    pub chunks: Arc<ChunkPool>,
    /// Work that met a full disk was tried once more in the space of the reserve, and there has been work to do ever since.
    pub tried_again: AtomicBool,
    pub reserve: Reserve,
    pub poison: OnceLock<String>,
    pub workers: Mutex<Vec<Box<dyn JoinHandle>>>,
    /// Bytes in all active memtables. Those who apply commits add and subtract in any order: [`Engine::active`] reads it.
    pub active_bytes: Lone<AtomicU64>,
    /// Since when there has been nothing to do, and up to where was written then.
    pub idle: Mutex<Option<(Duration, Seqno)>>,
    /// A checkpoint is due.
    pub checkpoint_due: AtomicBool,
    /// Held by who takes it.
    pub checkpointing: Mutex<()>,
    /// The last step of background work met a full disk.
    pub pressed: AtomicBool,
    /// Memtables packed since the last checkpoint began.
    pub uncovered: AtomicU64,
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
    pub writes: Tallies<WriteTally>,
    /// Bytes that earlier lives wrote: users, and the store for them.
    pub earlier: (u64, u64),
    /// Bytes of log that a store which is only read has found.
    pub log_found: Counter,
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
            Error::Poisoned { first } | Error::Indeterminate { first } => first.clone(),
            other => other.to_string(),
        };
        let _ = self.poison.set(first);
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
        if debt.pack_bytes > limit
            && let Some(trouble) = self.trouble.lock().clone()
        {
            return Err(trouble);
        }
        let room = memtable.saturating_sub(self.active());
        let crowd = (debt.pack_bytes / memtable).saturating_sub(MAX_SEALED - 1);
        let price = Load { pack: debt.pack_bytes, compact: debt.compact_bytes, room, memtable, crowd }.price(bytes);
        if self.config.background_threads > 0 {
            self.scheduler.pay(price, sched::patience(bytes, crowd), now, &|| self.device.now());
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

    /// Work owed by all keyspaces.
    pub(crate) fn debt(&self) -> Debt {
        self.keyspaces.read().values().fold(Debt::default(), |sum, keyspace| {
            let debt = keyspace.index.debt();
            Debt { pack_bytes: sum.pack_bytes + debt.pack_bytes, compact_bytes: sum.compact_bytes + debt.compact_bytes }
        })
    }

    /// One turn of what is not paid for: memory that rows give back, segments of the log that will be needed, and a checkpoint that is due. It does not wait for
    /// another who is at that.
    pub(crate) fn checkpoint_turn(&self) -> Turn {
        self.core.rows.give_way();
        if !self.prepare_log() {
            return Turn::Stuck;
        }
        let one = self.checkpoint_due.load(Relaxed).then(|| self.checkpointing.try_lock()).flatten();
        one.map_or(Turn::Idle, |one| self.take_checkpoint(one))
    }

    /// Takes a checkpoint if one is due.
    fn take_checkpoint(&self, _one: MutexGuard<'_, ()>) -> Turn {
        if self.poison.get().is_some() || self.closed.load(Relaxed) {
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
        // Not while space is lent to those who free some.
        if self.is_writable()
            && let Some(log) = self.log.as_ref().filter(|_| !self.reserve.is_lent())
            && let Err(e) = log.prepare()
        {
            self.poison(&e);
        }
        self.is_writable()
    }

    fn is_writable(&self) -> bool {
        self.poison.get().is_none() && !self.closed.load(Relaxed)
    }

    /// One turn of background work: a step of the keyspace that owes the most.
    pub(crate) fn turn(&self, budget: u64) -> Turn {
        // What a full disk lacks may be what the next checkpoint lets go; and what it covers must not become too much. Segments
        // are needed also while a checkpoint waits for the disk.
        let waits = self.pressed.load(Relaxed) || self.uncovered.load(Relaxed) >= MOST_UNCOVERED;
        if waits && self.take_checkpoint(self.checkpointing.lock()) == Turn::Stuck || !self.prepare_log() {
            return Turn::Stuck;
        }
        self.core.rows.give_way();
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
                        self.uncovered.fetch_add(1, Relaxed);
                        self.checkpoint_due.store(true, Relaxed);
                        self.scheduler.nudge();
                    }
                    if let Some(damage) = progress.damage {
                        self.damage.lock().entry(keyspace.id).or_insert(damage);
                    }
                    self.trouble.lock().take();
                    self.pressed.store(false, Relaxed);
                    self.idle.lock().take();
                    return Turn::Worked(progress.bytes.max(1));
                }
                // What a checkpoint lets go that is under way may be all that is missing.
                Err(Error::DiskFull { .. }) if self.checkpointing.try_lock().is_none() => {
                    drop(self.checkpointing.lock());
                    return Turn::Worked(1);
                }
                Err(e) => {
                    let turn = self.note_trouble(e);
                    if self.checkpoint_due.load(Relaxed) {
                        self.scheduler.nudge();
                    }
                    return turn;
                }
            }
        }
        self.tried_again.store(false, Relaxed);
        if self.is_at_rest() {
            self.chunks.trim();
            keyspaces.iter().for_each(|keyspace| keyspace.index.rest());
        }
        Turn::Idle
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
            let _ = self.poison.set("background work panicked; please report it with the message on stderr".into());
            Turn::Stuck
        })
    }

    /// A failure of background work: final if the device refused, else something to try again later.
    fn note_trouble(&self, error: Error) -> Turn {
        match &error {
            Error::DiskFull { .. } => {
                self.pressed.store(true, Relaxed);
                if self.core.data.has_quarantine() {
                    self.checkpoint_due.store(true, Relaxed);
                }
                // Whoever fills a segment can make the next one himself.
                if self.log.as_ref().is_some_and(Log::give_up_prepared) {
                    return Turn::Worked(1);
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
        self.log.iter().for_each(Log::close);
        // In a poisoned store a checkpoint may be under way, and a commit that still writes to the log.
        drop(self.durable_root.lock());
        drop(self.settled());
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
