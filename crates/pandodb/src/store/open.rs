//! Opening: from a directory to a running store.
//!
//! 1. Take the lock.
//! 2. Create the store if there is none: the data file is written under another name and renamed, so a crash leaves either
//!    no store or a whole one.
//! 3. Read the superblocks and the catalogue; if the newest of both is damaged, the older pair serves: its log is still
//!    there.
//! 4. Open the indexes, then mark the pages that they reach.
//! 5. Survey the log: where it ends, which pages its large values take; then replay it into memtables, each record only
//!    above its keyspace's `through`. Make it durable: records and large values are copied, never written over.
//! 6. Write a superblock of a new epoch, start the log; if large values were copied, pack and take a checkpoint that names
//!    the copies; start the workers.
//!
//! Bounded by the log since the last checkpoint and by the trunk, not by the data.

use std::collections::HashMap;
use std::sync::{Arc, Weak};

use super::Store;
use super::access::Access;
use super::catalog::{Catalog, KeyspaceRecord};
use super::checkpoint::IDS_AHEAD;
use super::commit::{Sequencer, UNDER_WAY};
use super::create::{build, registered};
use super::engine::{DurableRoot, Engine, Figures, Shared};
use super::extents;
use super::generations::Generations;
use super::keyspace::KeyspaceState;
use super::keyspaces::Keyspaces;
use super::options::Config;
use super::pressure::Pressure;
use super::reserve::{RESERVE_FILE, Reserve};
use super::watermark::{CachePadded, Watermark};
use crate::base::sync::{AtomicBool, AtomicU64, AtomicUsize, Mutex, OnceLock, Ordering::Relaxed, RwLock, with_helpers};
use crate::base::{BlobRef, BlockAddr, Error, Extent, Kind, MAX_EPOCH, Result, SeededBug, Seqno, StoreId, events};
use crate::device::{Device, Io, LockMode};
use crate::index::owed::Share;
use crate::index::registry::features as index_features;
use crate::index::{Core, IdSource, Mode as Form};
use crate::memtable::{CHUNK_BYTES, ChunkPool};
use crate::pool::Pool;
use crate::resolve::{MergeOperator, Operator, builtin};
use crate::rows::RowCache;
use crate::sched::{BACKGROUND_STEP, SPREAD, Scheduler, Turn};
use crate::space::data::DATA_FILE;
use crate::space::superblock::{CORE_FEATURES, INDEX_FEATURES};
use crate::space::{DataFile, Prefetch, Superblock};
use crate::wal::{Claims, Log, LogOptions, Mode, Record, RecordKind, ReplayReport, Visit, replay};

/// Segments of log beyond which opening packs what they hold: each life of a short-lived opener leaves one.
const MAX_OLD_SEGMENTS: usize = 16;

/// Keyspaces of which the first blocks are read together.
const KEYSPACES_TOGETHER: usize = 64;
/// Threads that help to read keyspaces, at most.
const MOST_HELPERS: usize = 3;

/// The data file while a store is being created.
const UNFINISHED: &str = "data.new";

/// Opens the store on a device, creating it if the configuration says so.
pub(crate) fn open(
    device: Arc<dyn Device>,
    mut config: Config,
    operators: HashMap<String, Arc<dyn MergeOperator>>,
) -> Result<Store> {
    let _opening = events::opening(&device.path(), config.read_only);
    let began = device.now();
    let mode = if config.read_only { LockMode::Shared } else { LockMode::Exclusive };
    let lock = device.lock(mode).map_err(|e| match e.kind() {
        std::io::ErrorKind::WouldBlock => Error::Locked { path: device.path() },
        _ => Error::io("lock", "lock", None, &e),
    })?;
    let names = device.list().map_err(|e| Error::io("list", "", None, &e))?;
    config.disk_bytes = device.available();
    if !names.iter().any(|name| name == DATA_FILE) {
        refuse_or_create(&*device, &config, &names)?;
    }
    let found = Found::read(&*device, &config).map_err(|e| unless_foreign(&*device, &names, e))?;
    // Open before the log is replayed: on a full disk that may need its space.
    let reserve = open_reserve(&*device, &mut config, &found.data)?;
    let core = core(&config, &found);
    let chunks = chunks(&config, &core.pool);
    let keyspaces = keyspaces(&config, &core, &chunks, &operators, &found)?;
    reserve.note_store(&core.data.stats());
    let earlier = (found.catalog.user_bytes, found.catalog.written_bytes);
    let mut engine = Engine {
        device: device.clone(),
        core,
        operators,
        log: None,
        snapshots: Arc::default(),
        keyspaces,
        sequencer: CachePadded(Mutex::new(Sequencer::new())),
        watermark: Watermark::new(UNDER_WAY),
        durable_root: Mutex::new(found.root()),
        scheduler: Arc::new(Scheduler::new(config.memtable() as u64).watching(config.io != Io::Sleeping)),
        chunks,
        reserve,
        pressure: Pressure::default(),
        poison: OnceLock::new(),
        workers: Mutex::new(Vec::new()),
        active_bytes: CachePadded(AtomicU64::new(0)),
        occupied: CachePadded(AtomicU64::new(0)),
        idle: Mutex::default(),
        checkpoint_due: AtomicBool::new(false),
        checkpointing: Mutex::new(()),
        uncovered: AtomicU64::new(0),
        trouble: Mutex::new(None),
        damage: Mutex::default(),
        log_cut: None,
        figures: Figures { earlier, ..Figures::default() },
        closing: AtomicBool::new(false),
        access: Access::new(),
        config,
        gate: RwLock::new(()),
        lock: Mutex::new(Some(lock)),
    };
    engine.keyspaces.read().values().for_each(|keyspace| engine.charge(keyspace, keyspace.active_bytes() as u64));
    let recovery = engine.recover()?;
    // From here on whatever fails closes it, which ends the threads that were started.
    let engine = Shared(Arc::new(engine));
    start_threads(&engine.0)?;
    let took = device.now().saturating_sub(began);
    engine.figures.opening_us.store(u64::try_from(took.as_micros()).unwrap_or(u64::MAX), Relaxed);
    events::opened(engine.keyspaces.read().len(), recovery, took);
    Ok(Store { engine: Arc::new(engine) })
}

/// The kept-back space; with it and the data file it is known how much disk the store has, which its sizes follow.
fn open_reserve(device: &dyn Device, config: &mut Config, data: &DataFile) -> Result<Reserve> {
    if config.read_only {
        return Ok(Reserve::none());
    }
    let reserve = Reserve::open(device, config.reserve())?;
    let occupied = data.occupied()?.saturating_add(reserve.bytes());
    config.disk_bytes = config.disk_bytes.map(|free| free.saturating_add(occupied));
    Ok(reserve.with_shares(config.shares()))
}

/// The shared parts that the indexes of a store are built on.
pub(super) fn core(config: &Config, found: &Found) -> Core {
    let pool = Arc::new(pool(config));
    Core {
        data: found.data.clone(),
        rows: RowCache::sharing(config.rows(), &pool, config.pool()),
        pool,
        ids: Arc::new(IdSource::new(found.superblock.next_run_id)),
        repair: !config.read_only,
        repairs: Arc::default(),
        share: Share::default(),
    }
}

/// The pool of a store. One without threads of its own is to do the same each time.
fn pool(config: &Config) -> Pool {
    let pool = Pool::new(config.pool());
    if config.background_threads == 0 { pool.with_one_hand() } else { pool }
}

/// The keyspaces of the catalogue. Where there are many, the first reads of several are on their way together, and several threads
/// decode what they bring.
fn keyspaces(
    config: &Config,
    core: &Core,
    chunks: &Arc<ChunkPool>,
    operators: &HashMap<String, Arc<dyn MergeOperator>>,
    found: &Found,
) -> Result<Keyspaces> {
    let keyspaces = Keyspaces::default();
    let groups: Vec<&[KeyspaceRecord]> = found.catalog.keyspaces.chunks(KEYSPACES_TOGETHER).collect();
    let next = AtomicUsize::new(0);
    // The error of the first group that has one: all groups before it were begun earlier.
    let failed: Mutex<Option<(usize, Error)>> = Mutex::default();
    let read_group = |group: &[KeyspaceRecord], prefetch: &mut Prefetch| -> Result<()> {
        let first: Vec<BlockAddr> = group.iter().flat_map(|record| record.first_blocks(core)).collect();
        prefetch.ask(&first);
        for record in group {
            let at = found.superblock.catalog.0[0].page.offset();
            let operator = registered(operators, &record.identity);
            let state = build(core, config.memtable() as u64, chunks, operator, record, prefetch);
            keyspaces.write().insert(Arc::new(state.map_err(|e| e.in_file(DATA_FILE, at))?));
        }
        Ok(())
    };
    let read_groups = || {
        let mut prefetch = Prefetch::new(core.data.clone());
        while failed.lock().is_none() {
            let number = next.fetch_add(1, Relaxed);
            let Some(group) = groups.get(number) else { break };
            if let Err(e) = read_group(group, &mut prefetch) {
                let mut failed = failed.lock();
                if failed.as_ref().is_none_or(|(first, _)| number < *first) {
                    *failed = Some((number, e));
                }
            }
        }
    };
    // A store without threads of its own is to do the same each time.
    let helpers = if config.background_threads == 0 { 0 } else { groups.len().saturating_sub(1).min(MOST_HELPERS) };
    with_helpers(helpers, read_groups);
    if let Some((_, error)) = failed.lock().take() {
        return Err(error);
    }
    match extents::mark(core, keyspaces.all().iter().map(|keyspace| &*keyspace.index)) {
        // A salvage allocates nothing: it copies what it can read.
        Err(e) if !config.salvage => Err(e),
        _ => Ok(keyspaces),
    }
}

/// The memory of a store's memtables.
fn chunks(config: &Config, pool: &Arc<Pool>) -> Arc<ChunkPool> {
    let kept = config.memtable().div_ceil(CHUNK_BYTES) + 1;
    Arc::new(ChunkPool::new(kept).borrowing(pool.clone(), config.memtable()))
}

fn refuse_or_create(device: &dyn Device, config: &Config, names: &[String]) -> Result<()> {
    let no = |detail: &str| Err(Error::NotAStore { path: device.path(), detail: detail.into() });
    if !config.create || config.read_only {
        return no("there is no data file; open it with `create` to make a store");
    }
    if names.iter().any(|name| name.starts_with("wal-")) {
        return no("there is a log but no data file; restore the data file from a backup");
    }
    if let Some(other) = names.iter().find(|name| *name != UNFINISHED) {
        return no(&format!("the directory holds other files (`{other}`); name an empty or new directory"));
    }
    let needed = config.least_disk();
    if let Some(available) = config.disk_bytes.filter(|&available| available < needed) {
        return Err(Error::DiskTooSmall { path: device.path(), needed, available });
    }
    create(device)
}

/// The error of reading the superblocks; or [`Error::NotAStore`] if no file of the directory comes from a store: no
/// beginning of a superblock, no log, no reserve, which every store has that was opened for writing. A damaged store
/// must not be reported as a foreign directory.
fn unless_foreign(device: &dyn Device, names: &[String], error: Error) -> Error {
    let of_a_store = |name: &String| name.starts_with("wal-") || name == RESERVE_FILE;
    let traces = || DataFile::open_raw(device, false).map_or(true, |file| Superblock::has_traces(&*file));
    if !error.is_corruption() || names.iter().any(of_a_store) || traces() {
        return error;
    }
    let detail = "its file `data` is not that of a store, and nothing else in it is; name another directory, or restore the \
                  store from a backup if one was here";
    Error::NotAStore { path: device.path(), detail: detail.into() }
}

/// Makes an empty store, completely or not at all.
fn create(device: &dyn Device) -> Result<()> {
    let fail = |op: &'static str| move |e: std::io::Error| Error::io(op, UNFINISHED, None, &e);
    if device.list().map_err(fail("list"))?.iter().any(|name| name == UNFINISHED) {
        device.remove(UNFINISHED).map_err(fail("remove"))?;
    }
    let mut store_id = StoreId::default();
    store_id.0[..8].copy_from_slice(&device.random().to_le_bytes());
    store_id.0[8..].copy_from_slice(&device.random().to_le_bytes());
    let data = DataFile::create(device, UNFINISHED, store_id)?;
    let (catalog, catalog_len) = Catalog { next_id: 1, ..Catalog::default() }.write(&data, 1)?;
    let mut superblock = Superblock {
        compatible: 0,
        read_only_compatible: 0,
        incompatible: 0,
        store_id,
        generation: 1,
        epoch: 0,
        clean: true,
        durable: Seqno(0),
        next_run_id: 1,
        catalog,
        catalog_len,
        catalog_generation: 1,
        checkpointed_at: now_in_seconds(device),
    };
    // Both slots, so that a single damaged sector never makes a young store unreadable.
    data.write_superblock(&superblock)?;
    superblock.generation = 2;
    data.write_superblock(&superblock)?;
    device.rename(UNFINISHED, DATA_FILE).map_err(fail("rename"))?;
    device.sync_dir().map_err(|e| Error::final_io("sync", "directory", None, &e))
}

/// The time for a superblock, in seconds; 0 if the device has no clock.
pub(super) fn now_in_seconds(device: &dyn Device) -> u64 {
    device.wall_clock().map_or(0, |time| time.as_secs())
}

/// The newest valid superblock with a valid catalogue.
pub(super) struct Found {
    data: Arc<DataFile>,
    pub(super) superblock: Superblock,
    pub(super) catalog: Catalog,
}

impl Found {
    /// What checkpoints know of the disk when the store opens. The first superblock of this life names the same catalogue, in the other
    /// slot.
    fn root(self) -> DurableRoot {
        DurableRoot {
            older_through: self.catalog.through(),
            next_id: self.catalog.next_id,
            dropped: Vec::new(),
            logged: 0,
            logged_bytes: 0,
            superblock: self.superblock,
            catalog: self.catalog,
        }
    }

    pub(super) fn read(device: &dyn Device, config: &Config) -> Result<Found> {
        let file = DataFile::open_raw(device, !config.read_only)?;
        let slots = Superblock::read_slots(&*file, DATA_FILE);
        let mut first_error = None;
        let mut whole: Vec<Superblock> = Vec::new();
        for slot in slots {
            match slot {
                Ok(superblock) => whole.push(superblock),
                Err(e) => first_error = Some(e),
            }
        }
        whole.sort_by_key(|superblock| std::cmp::Reverse(superblock.generation));
        // The newest superblock's claim about the log holds, whichever catalogue is used.
        let durable = whole.iter().map(|superblock| superblock.durable).max().unwrap_or_default();
        let newest = whole.first().map_or(0, |superblock| superblock.generation);
        for mut superblock in whole {
            let data = DataFile::open(file.clone(), superblock.store_id)?;
            check_features(device, config, &superblock, &data)?;
            match Catalog::read(&data, &superblock) {
                Ok(catalog) => {
                    superblock.catalog.mark(&data)?;
                    superblock.durable = durable;
                    // The next superblock overwrites the one that could not be used, not this one.
                    superblock.generation = if superblock.generation == newest { newest } else { newest + 1 };
                    return Ok(Found { data, superblock, catalog });
                }
                // The older catalogue would open the store without the objects that this version does not know.
                Err(e) if !e.is_damage() => return Err(e),
                Err(e) => first_error = first_error.or(Some(e)),
            }
        }
        Err(first_error.expect("no slot was whole, so one had an error"))
    }
}

/// Refuses stores that need a newer version. If only an index type is missing, the error names it.
fn check_features(device: &dyn Device, config: &Config, superblock: &Superblock, data: &Arc<DataFile>) -> Result<()> {
    let incompatible = superblock.incompatible & !(CORE_FEATURES | index_features());
    if incompatible != 0
        && incompatible & !INDEX_FEATURES == 0
        && let Err(unknown @ Error::UnknownIndex { .. }) = Catalog::read(data, superblock)
    {
        return Err(unknown);
    }
    let unknown = if config.read_only { incompatible } else { incompatible | superblock.read_only_compatible };
    if unknown != 0 {
        let detail = format!("it uses features {unknown:#x} that this version does not know; use a newer version");
        return Err(Error::NotAStore { path: device.path(), detail });
    }
    Ok(())
}

/// The registered operator of that name, the user's before the built-in.
pub(crate) fn find_operator(
    operators: &HashMap<String, Arc<dyn MergeOperator>>,
    name: &str,
    version: u32,
) -> Option<Operator> {
    let operator = operators.get(name).cloned().or_else(|| builtin(name))?;
    (operator.version() == version).then(|| Operator::new(operator))
}

impl Engine {
    /// From the last checkpoint to where the log ends, and into a new epoch.
    fn recover(&mut self) -> Result<events::Recovery> {
        let recovered = self.replay_log()?;
        let last = recovered.report.last;
        // A seqno is given out once: a keyspace that holds later ones than the log would take new messages for old.
        let ahead = |keyspace: &&Arc<KeyspaceState>| keyspace.index.view().through() > last;
        let found = self.keyspaces.read().values().find(ahead).cloned();
        if let Some(keyspace) = found.filter(|_| !self.config.salvage) {
            let through = keyspace.index.view().through();
            let detail =
                format!("keyspace `{}` holds all up to seqno {through}, the log ends at {last}", keyspace.name);
            let at = self.durable_root.lock().superblock.catalog.0[0].page.offset();
            return Err(Error::corruption("catalogue", 0, detail).in_file(DATA_FILE, at));
        }
        self.figures.log_found.store(recovered.report.segments.iter().map(|segment| segment.bytes).sum(), Relaxed);
        self.sequencer.lock().next = last.next();
        self.log_cut.clone_from(&recovered.report.cut);
        self.snapshots.set_visible(last);
        if !self.config.read_only {
            self.begin_epoch(&recovered)?;
            self.settle_moved(&recovered.moved)?;
            if recovered.report.segments.len() > MAX_OLD_SEGMENTS {
                self.shorten_log()?;
            }
        }
        let report = &recovered.report;
        let (segments, torn) = (report.segments.len() as u64, report.torn.is_some());
        Ok(events::Recovery { records: report.records, bytes: report.bytes, segments, torn })
    }

    /// Replays the log twice: to find out what the records name and where the log ends, then to apply them. Packing a
    /// memtable in between allocates pages, so all large values of the log must be marked before.
    fn replay_log(&mut self) -> Result<Recovered> {
        let (claims, next_id, cut) = {
            let root = self.durable_root.lock();
            let from = root.catalog.through();
            (Claims { from, durable: root.superblock.durable }, root.next_id, root.catalog.cut)
        };
        let store = self.core.data.store_id();
        let order = Generations::default();
        let mut survey = Survey { engine: self, durable: claims.durable, cut, next_id, order, damaged: None };
        let (look, replay_in) = match (self.config.salvage, self.config.read_only) {
            (true, _) => (Mode::Salvage, Mode::Salvage),
            (false, true) => (Mode::Read, Mode::Read),
            (false, false) => (Mode::Read, Mode::Recover),
        };
        let seen = replay(&*self.device, store, claims, look, &mut |record| survey.record(record));
        let (next_id, damaged) = (survey.next_id, survey.damaged.take());
        let seen = seen.map_err(|e| damaged.filter(|_| e.is_corruption()).unwrap_or(e))?;
        self.durable_root.lock().next_id = next_id;
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
        let mut report = replay(&*self.device, store, claims, replay_in, &mut |record| {
            if record.first > seen.last { Ok(Visit::Stop) } else { replayer.record(record) }
        })?;
        self.core.data.end_replay();
        if report.last != seen.last {
            let detail = format!("the log ended at seqno {} and a moment later at {}", seen.last, report.last);
            return Err(Error::corruption("log", report.last.0, detail));
        }
        // What ended the first pass ended the second one where it had to, without saying why.
        report.cut = report.cut.or(seen.cut);
        let (moved, first_moved) = (replayer.moved, replayer.first_moved);
        if first_moved.is_some() {
            self.core.data.sync()?;
        }
        Ok(Recovered { report, moved, first_moved })
    }

    /// Packs the replayed memtables and takes a checkpoint, so that no log record is needed any more that names a
    /// large value in its old place; then the old places are freed.
    fn settle_moved(&self, moved: &[Extent]) -> Result<()> {
        if moved.is_empty() {
            return Ok(());
        }
        match self.pack_or_keep().and_then(|()| self.checkpoint()) {
            Ok(()) => moved.iter().for_each(|extent| self.core.data.free(*extent)),
            // The log continues to name the old places, so the values are made durable there, and the pages stay
            // allocated until the next opening.
            Err(Error::DiskFull { .. }) => {
                for extent in moved {
                    let buf = self.core.data.read(BlockAddr { page: extent.start, pages: extent.pages })?;
                    self.core.data.write(extent.start, buf)?;
                }
                self.core.data.sync()?;
            }
            Err(e) => return Err(e),
        }
        Ok(())
    }

    /// Packs every memtable. On a full disk they stay in memory, over their budget, so that one can open the store and
    /// delete; the reserve is left for that.
    fn pack_or_keep(&self) -> Result<()> {
        match self.pack_all() {
            Err(Error::DiskFull { .. }) => Ok(()),
            other => other,
        }
    }

    /// Starts a new life: a superblock of the next epoch (into the slot that is older or damaged), then the log.
    fn begin_epoch(&mut self, recovered: &Recovered) -> Result<()> {
        let report = recovered.report.clone();
        // A large value in its old place may not be durable: nothing may claim the record that names it until the
        // checkpoint that names the new place.
        let durable = recovered.first_moved.map_or(report.last, |first| Seqno(first.0 - 1));
        let root = self.durable_root.get_mut();
        let epoch = root.superblock.epoch.max(report.epoch) + 1;
        if epoch > MAX_EPOCH {
            return Err(Error::Unsupported { detail: format!("epoch {epoch}: the store has been opened too often") });
        }
        root.superblock.generation += 1 + u64::from(SeededBug::OpenedFromIsOverwritten.is_on());
        root.superblock.epoch = epoch;
        root.superblock.clean = false;
        root.superblock.durable = root.superblock.durable.max(durable);
        root.superblock.next_run_id = self.core.ids.peek() + IDS_AHEAD;
        self.core.data.write_superblock(&root.superblock)?;
        let options = LogOptions {
            segment_bytes: self.config.segment(),
            streams: self.config.streams(),
            tagged: self.config.mode == Form::Paper,
            mapped: self.config.mapped_log,
        };
        self.log = Some(
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

/// The result of a recovery.
struct Recovered {
    report: ReplayReport,
    /// Old places of large values that were copied to new ones.
    moved: Vec<Extent>,
    /// The first record that names a large value which was not known to be durable.
    first_moved: Option<Seqno>,
}

/// The first pass over the log: checks which objects the records name and their order, makes the keyspaces that they
/// create, and marks the pages of large values.
struct Survey<'a> {
    engine: &'a Engine,
    /// The log is known to have been durable through here.
    durable: Seqno,
    /// The catalogue's.
    cut: Seqno,
    next_id: u32,
    order: Generations,
    /// The error of an unreadable large value before which the log was cut. Reported if later records show that the value had been
    /// durable.
    damaged: Option<Error>,
}

impl Survey<'_> {
    fn record(&mut self, record: &Record<'_>) -> Result<Visit> {
        self.durable = self.durable.max(record.durable);
        if record.kind == RecordKind::Created {
            return self.engine.recover_creation(record, self.cut, &mut self.next_id);
        }
        self.order.check(record)?;
        let (keyspaces, data) = (self.engine.keyspaces.read(), &self.engine.core.data);
        let mut blobs = Vec::new();
        // All large values are checked before any is marked: a record with one that never reached the disk ends the
        // log.
        for (op, seqno) in record.ops().zip(record.first.0..) {
            let op = op?;
            let Some(keyspace) = keyspaces.get(&op.keyspace) else {
                if op.keyspace.0 >= self.next_id {
                    let detail = format!("seqno {seqno} names unknown keyspace {}", op.keyspace);
                    return Err(Error::corruption("log record", 0, detail));
                }
                continue;
            };
            if op.kind != Kind::BlobPut || Seqno(seqno) <= keyspace.index.view().through() {
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
        // Pages that two messages name are corruption, not two owners.
        blobs.iter().try_for_each(|blob| data.mark(blob.extent()))?;
        Ok(Visit::Continue)
    }
}

/// The second pass: applies log records to memtables.
///
/// A large value that is not known to be durable is **copied** to a new place, and the message names that: a sync that
/// failed before the crash may have marked the old pages clean, so reading them back proves nothing about the disk, and
/// writing over them could tear a value that *is* durable. Without space for a copy it is written again in place.
struct Replayer<'a> {
    engine: &'a Engine,
    /// The log was known to be durable through here.
    durable: Seqno,
    moved: Vec<Extent>,
    first_moved: Option<Seqno>,
    /// Bytes that waited to be compacted before the replay.
    owed: u64,
    /// Bytes of all records.
    log_bytes: u64,
    /// A compaction has met a full disk: no other one is tried.
    is_full: bool,
}

impl Replayer<'_> {
    /// Gives a large value a place that the next sync makes durable; the message that names it.
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

    fn record(&mut self, record: &Record<'_>) -> Result<Visit> {
        let keyspaces = self.engine.keyspaces.read();
        for (op, seqno) in record.ops().zip(record.first.0..) {
            let op = op?;
            let seqno = Seqno(seqno);
            let Some(keyspace) = keyspaces.get(&op.keyspace) else { continue };
            if seqno <= keyspace.index.view().through() && !SeededBug::ReplayIgnoresThrough.is_on() {
                continue;
            }
            self.engine.figures.replayed.fetch_add(1, Relaxed);
            let doubtful = seqno > self.durable && !SeededBug::LargeValueNotRescued.is_on();
            if op.kind == Kind::BlobPut && doubtful && !self.engine.config.read_only {
                self.first_moved.get_or_insert(record.first);
                let message = self.rescue(&BlobRef::decode(op.value)?)?;
                self.engine.insert(keyspace, op.kind, op.key, &message, seqno);
            } else {
                self.engine.insert(keyspace, op.kind, op.key, op.value, seqno);
            }
        }
        drop(keyspaces);
        self.engine.snapshots.set_visible(Seqno(record.first.0 + u64::from(record.count) - 1));
        self.make_room(record)?;
        Ok(Visit::Continue)
    }

    /// Keeps replay within the memory budget: full memtables are sealed and packed at once.
    fn make_room(&mut self, record: &Record<'_>) -> Result<()> {
        let engine = self.engine;
        if engine.config.read_only || !engine.is_filled() {
            return Ok(());
        }
        engine.sequencer.lock().next = Seqno(record.first.0 + u64::from(record.count));
        engine.pack_or_keep()?;
        self.compact()
    }

    /// Compacts runs of this replay beyond the debt that writers may have: a log of thousands of memtables, written
    /// under a larger budget, would otherwise leave as many runs in each leaf of the tree, and its nodes would not
    /// fit into memory.
    ///
    /// Debt from before the opening is left to background work, and no memtable pays for more than four times
    /// [`SPREAD`] of its size, so that the time of an opening stays proportional to the log. If the disk may be too
    /// small for both, packing comes first.
    fn compact(&mut self) -> Result<()> {
        let engine = self.engine;
        let most = SPREAD * engine.config.memtable() as u64;
        let is_short = || engine.device.available().is_some_and(|room| room < 2 * self.log_bytes);
        let mut worked = 0;
        for keyspace in engine.keyspaces.all() {
            while engine.debt().work_bytes > self.owed + most && worked < 4 * most && !self.is_full && !is_short() {
                match keyspace.index.step(BACKGROUND_STEP, &|| engine.snapshots.stripes()) {
                    Ok(progress) if progress.idle => break,
                    Ok(progress) => worked += engine.note_progress(&keyspace, progress).max(1),
                    // The store opens all the same; background work will find the same, and tell.
                    Err(Error::DiskFull { .. }) => self.is_full = true,
                    Err(e) if e.is_damage() => break,
                    Err(e) => return Err(e),
                }
            }
        }
        Ok(())
    }
}

impl Engine {
    /// Packs the replayed memtables and takes a checkpoint, so that repeated short openings do not leave ever more
    /// segments. On a full disk the log stays as long as it is.
    fn shorten_log(&self) -> Result<()> {
        let packed = self.pack_all().and_then(|()| self.checkpoint());
        match packed {
            Err(Error::DiskFull { .. }) => Ok(()),
            other => other,
        }
    }

    /// Seals and packs every memtable.
    fn pack_all(&self) -> Result<()> {
        let keyspaces = self.keyspaces.all();
        {
            let sequencer = self.quiesce();
            keyspaces.iter().for_each(|keyspace| self.seal(&sequencer, keyspace));
        }
        for keyspace in &keyspaces {
            while keyspace.index.debt().memory_bytes > 0 {
                keyspace.index.step(BACKGROUND_STEP, &|| self.snapshots.stripes())?;
            }
            keyspace.retire_sealed();
        }
        Ok(())
    }
}

/// The main function of a background thread.
type Body = Box<dyn FnOnce(&Scheduler, Weak<Engine>) + Send>;

/// Starts the background threads. They hold the engine weakly, and end when it is closed, which the drop of the last
/// handle does.
fn start_threads(engine: &Arc<Engine>) -> Result<()> {
    if engine.config.read_only || engine.config.background_threads == 0 {
        return Ok(());
    }
    let start = |name: &str, body: Body| {
        let (scheduler, weak) = (engine.scheduler.clone(), Arc::downgrade(engine));
        let thread = engine.device.spawn(name, Box::new(move || body(&scheduler, weak)));
        thread
            .map(|thread| engine.workers.lock().push(thread))
            .map_err(|e| Error::io("spawn", "background thread", None, &e))
    };
    start(
        "pando-checkpoint",
        Box::new(|scheduler, weak| {
            scheduler.run_unmetered(&|| {
                weak.upgrade().map_or(Turn::Stuck, |engine| engine.guarded(&Engine::checkpoint_turn))
            });
        }),
    )?;
    for i in 0..engine.config.background_threads {
        let device = engine.device.clone();
        start(
            &format!("pando-{i}"),
            Box::new(move |scheduler, weak| {
                let budget = scheduler.step(BACKGROUND_STEP);
                let turn = || weak.upgrade().map_or(Turn::Stuck, |engine| engine.guarded(&|it| it.turn(budget)));
                scheduler.run(&turn, &|| device.now());
            }),
        )?;
    }
    Ok(())
}
