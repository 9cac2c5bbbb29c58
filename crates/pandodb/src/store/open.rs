//! Opening: turns a directory into a running store.
//!
//! 1. Take the lock of the directory.
//! 2. Create the store if there is none. The data file is written under another name and renamed, so a crash leaves
//!    either no store or a complete store.
//! 3. Read the superblocks and the catalogue ([`Found`]). If the newer superblock or its catalogue is damaged, the
//!    older pair is used. The log that the older pair needs still exists.
//! 4. Open the indexes, then mark the pages that the indexes own (`extents`).
//! 5. Recover the log (`recover`).
//! 6. Start the background threads.
//!
//! Cost: proportional to the log since the last checkpoint and to the nodes of the indexes, but not to the amount of
//! data.

use std::collections::HashMap;
use std::sync::Arc;

use super::access::Access;
use super::background::Background;
use super::catalog::KeyspaceRecord;
use super::checkpointer::Checkpointer;
use super::config::Config;
use super::create::{build, registered};
use super::dead_ranges::Allowance;
use super::engine::Engine;
use super::extents;
use super::folds::Folds;
use super::found::{Found, core};
use super::initial::{refuse_or_create, unless_foreign};
use super::keyspaces::Keyspaces;
use super::pressure::Pressure;
use super::queues::Queues;
use super::reserve::Reserve;
use super::shared::Shared;
use super::snapshot::Snapshots;
use super::tallies::Figures;
use super::threads;
use super::writer::Writer;
use crate::base::sync::{AtomicBool, AtomicUsize, Mutex, Ordering::Relaxed, RwLock, with_helpers};
use crate::base::{BlockAddr, Error, Result, events};
use crate::device::{Device, Io, LockMode};
use crate::index::Core;
use crate::memtable::ChunkPool;
use crate::resolve::MergeOperator;
use crate::sched::Scheduler;
use crate::space::data::DATA_FILE;
use crate::space::{DataFile, Prefetch};

/// Number of keyspaces whose first blocks are read together.
const KEYSPACES_TOGETHER: usize = 64;
/// The maximum number of threads that help to read keyspaces.
const MOST_HELPERS: usize = 3;

/// Opens the store on a device. Creates the store if the configuration says so.
pub(crate) fn open(
    device: Arc<dyn Device>,
    mut config: Config,
    operators: HashMap<String, Arc<dyn MergeOperator>>,
) -> Result<Shared> {
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
    // Open the reserve before the log is replayed, because on a full disk the replay may need the space of the reserve.
    let reserve = open_reserve(&*device, &mut config, &found.data)?;
    let core = core(&config, &found);
    let chunks = core.chunks.clone();
    let dead_ranges = Arc::new(Allowance::new(config.dead_ranges()));
    let keyspaces = keyspaces(&config, &core, &chunks, &dead_ranges, &operators, &found)?;
    reserve.note_store(&core.data.stats());
    let earlier = (found.catalog.user_bytes, found.catalog.written_bytes);
    let snapshots: Arc<Snapshots> = Arc::default();
    let scheduler = Scheduler::new(config.least_memtable() as u64).watching(config.io != Io::Sleeping);
    let mut engine = Engine {
        device: device.clone(),
        core,
        chunks,
        operators,
        keyspaces,
        writer: Writer::new(snapshots.clone()),
        checkpointer: Checkpointer::new(found.root()),
        background: Background::new(scheduler),
        pressure: Pressure::default(),
        reserve,
        figures: Figures { earlier, ..Figures::default() },
        queues: Queues::default(),
        folds: Folds::new(config.folds()),
        dead_ranges,
        log_cut: None,
        access: Access::new(),
        closing: AtomicBool::new(false),
        config,
        snapshots,
        gate: RwLock::new(()),
        lock: Mutex::new(Some(lock)),
    };
    let (all, table) = (engine.keyspaces.all(), &engine.keyspaces);
    all.iter().for_each(|keyspace| table.charge(keyspace, keyspace.active_bytes() as u64));
    let recovery = engine.recover()?;
    // From here on an error drops the handle. This closes the store and ends the threads that were started.
    assert_eq!(engine.snapshots.visible(), engine.writer.quiesce().last(), "readers see everything that was recovered");
    let engine = Shared(Arc::new(engine));
    threads::start(&engine.0)?;
    let took = device.now().saturating_sub(began);
    engine.figures.opening_us.store(u64::try_from(took.as_micros()).unwrap_or(u64::MAX), Relaxed);
    events::opened(engine.keyspaces.read().len(), recovery, took);
    Ok(engine)
}

/// Opens the reserve. The disk space of the store is computed from the sizes of the reserve and of the data file, and
/// from the free space. The default sizes are derived from this disk space.
fn open_reserve(device: &dyn Device, config: &mut Config, data: &DataFile) -> Result<Reserve> {
    if config.read_only {
        return Ok(Reserve::none());
    }
    let reserve = Reserve::open(device, config.reserve())?;
    let occupied = data.occupied()?.saturating_add(reserve.bytes());
    config.disk_bytes = config.disk_bytes.map(|free| free.saturating_add(occupied));
    Ok(reserve.with_shares(config.shares()))
}

/// Opens the keyspaces of the catalogue, and marks the pages of their indexes as used. If there are many keyspaces, the
/// first blocks of several keyspaces are read concurrently, and several threads decode the blocks.
fn keyspaces(
    config: &Config,
    core: &Core,
    chunks: &Arc<ChunkPool>,
    allowance: &Arc<Allowance>,
    operators: &HashMap<String, Arc<dyn MergeOperator>>,
    found: &Found,
) -> Result<Keyspaces> {
    let keyspaces = Keyspaces::default();
    let groups: Vec<&[KeyspaceRecord]> = found.catalog.keyspaces.chunks(KEYSPACES_TOGETHER).collect();
    let next = AtomicUsize::new(0);
    // The error of the first group of keyspaces, in the order of the groups, that has an error. Groups are started in
    // this order, so all groups before this group were also opened. Therefore the result does not depend on timing.
    let failed: Mutex<Option<(usize, Error)>> = Mutex::default();
    let read_group = |group: &[KeyspaceRecord], prefetch: &mut Prefetch| -> Result<()> {
        let first: Vec<BlockAddr> = group.iter().flat_map(|record| record.first_blocks(core)).collect();
        prefetch.ask(&first);
        for record in group {
            let at = found.superblock.catalog.0[0].page.offset();
            let operator = registered(operators, &record.identity);
            let state = build(core, config.unit() as u64, chunks, allowance, operator, record, prefetch);
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
    // A store without background threads must be deterministic, so it uses no helpers.
    let helpers = if config.background_threads == 0 { 0 } else { groups.len().saturating_sub(1).min(MOST_HELPERS) };
    with_helpers(helpers, read_groups);
    if let Some((_, error)) = failed.lock().take() {
        return Err(error);
    }
    match extents::mark(core, keyspaces.all().iter().map(|keyspace| &*keyspace.index)) {
        // Ignore this error in a salvage: marks matter only for allocation, and a salvage allocates nothing.
        Err(e) if !config.salvage => Err(e),
        _ => Ok(keyspaces),
    }
}
