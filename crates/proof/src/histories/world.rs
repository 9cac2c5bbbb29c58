//! The store of a history, the device of the store, and the clock that records the newest seqnos that were seen and
//! acknowledged.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};

use pandodb::device::sim::SimDevice;
use pandodb::device::{Device, FileDevice, MemDevice};
use pandodb::{AddU64, Append, Durability, Error, Keyspace, KeyspaceOptions, Mode, Result, Store, StoreBuilder};

use super::hasty::HastyDevice;
use super::log::{BLOB_THRESHOLD, Domain, LISTS, Log, NAMES, ROWS, SUMS, Space, decode, number};
use crate::drive::Sizes;
use crate::script::Rng;

/// The device of the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// In memory.
    Memory,
    /// In memory, with a clock so fast that scans often move to a newer view.
    Hasty,
    /// In a temporary directory.
    Directory,
    /// On the simulated device. The store has no background threads, so client threads do the background work. Crash
    /// images are taken while the clients run.
    Simulator,
}

/// The parameters of a history.
#[derive(Clone, Copy, Debug)]
pub struct Plan {
    /// The seed, which determines everything except how threads interleave.
    pub seed: u64,
    /// The device of the store.
    pub place: Place,
    /// Number of client threads; the disturber is one more thread.
    pub threads: u64,
    /// Number of background threads of the store.
    pub workers: usize,
    /// Number of distinct keys of a keyspace.
    pub keys: u32,
    /// Sizes of the store.
    pub sizes: Sizes,
    /// Number of windows. After each window, all threads stop and the window is checked.
    pub windows: u64,
    /// Number of transactions of all clients together in a window.
    pub transactions: u64,
    /// Percentage of synced commits.
    pub synced: u64,
    /// Percentage of transactions that the store validates. The others read at a snapshot and commit a batch.
    pub validated: u64,
}

impl Plan {
    /// The plan drawn from a seed.
    pub fn of(seed: u64, place: Place) -> Plan {
        let mut rng = Rng(seed ^ 0x0068_6973_746f_7279);
        // The memtable is larger on a real disk, because each pack requires a checkpoint, and a checkpoint needs a few
        // syncs.
        let memtable =
            if place == Place::Directory { 64 << 10 } else { [4 << 10, 8 << 10, 32 << 10][rng.below(3) as usize] };
        let segment = (memtable as u64 / 2).max(8 << 10);
        let mode = if seed % 4 == 3 { Mode::Paper } else { Mode::Product };
        let sizes = Sizes { memtable, segment, mode, ..Sizes::TINY };
        let sizes = sizes.with_streams(seed).drawn(seed);
        let (windows, transactions) = match place {
            // With tiny memtables, writers mostly wait for background work.
            Place::Memory if memtable < 8 << 10 => (3, 2_500),
            Place::Memory => (3, 10_000),
            Place::Hasty | Place::Directory => (2, 5_000),
            Place::Simulator => (2, 2_500),
        };
        Plan {
            seed,
            place,
            threads: 2 + rng.below(3),
            workers: if place == Place::Simulator { 0 } else { [1, 1, 2, 4][rng.below(4) as usize] },
            keys: [64, 512, 4096][rng.below(3) as usize],
            sizes,
            windows,
            transactions,
            synced: if place == Place::Directory { 1 } else { 20 },
            validated: if (seed / 8 + seed).is_multiple_of(2) { 60 } else { 0 },
        }
    }
}

/// The newest seqno known to be visible, buffered and synced. Every acknowledgement and every snapshot advances the
/// clock. Each thread reads the clock before each operation.
#[derive(Debug, Default)]
pub(super) struct Clock {
    shown: AtomicU64,
    buffered: AtomicU64,
    synced: AtomicU64,
}

impl Clock {
    /// The seqno below which no operation that begins now may have its point.
    pub fn now(&self) -> u64 {
        self.shown.load(SeqCst)
    }

    /// Records that all commits up to `seqno` are visible.
    pub fn show(&self, seqno: u64) {
        self.shown.fetch_max(seqno, SeqCst);
    }

    /// Records that all commits up to `seqno` were acknowledged with this durability.
    pub fn acknowledge(&self, seqno: u64, durability: Durability) {
        self.show(seqno);
        if durability >= Durability::Buffered {
            self.buffered.fetch_max(seqno, SeqCst);
        }
        if durability == Durability::Synced {
            self.synced.fetch_max(seqno, SeqCst);
        }
    }

    /// The seqno up to which all commits must survive a kill, or a power cut if `cut` is set.
    pub fn promised(&self, cut: bool) -> u64 {
        if cut { self.synced.load(SeqCst) } else { self.buffered.load(SeqCst) }
    }
}

/// A store with the keyspaces that all threads share.
pub(super) struct World {
    pub plan: Plan,
    pub clock: Clock,
    pub store: Store,
    pub spaces: Vec<Keyspace>,
    /// Handles of the previous opening of the store, which must return [`Error::Closed`].
    orphans: Vec<Keyspace>,
    pub sim: Option<Arc<SimDevice>>,
    device: Arc<dyn Device>,
}

/// The options of a keyspace.
pub(super) fn options(space: Space) -> KeyspaceOptions {
    let options = KeyspaceOptions::new().blob_threshold(BLOB_THRESHOLD);
    match space {
        LISTS => options.merge(Append),
        SUMS => options.merge(AddU64),
        _ => options,
    }
}

fn open_spaces(store: &Store) -> Result<Vec<Keyspace>> {
    [ROWS, LISTS, SUMS].into_iter().map(|space| store.keyspace_with(NAMES[space as usize], options(space))).collect()
}

impl World {
    /// Creates an empty store. Only [`Place::Directory`] uses `dir`.
    pub fn new(plan: Plan, dir: &Path) -> Result<World> {
        let sim = (plan.place == Place::Simulator).then(|| SimDevice::new(plan.seed));
        let device: Arc<dyn Device> = match (&sim, plan.place) {
            (Some(sim), _) => sim.clone(),
            (None, Place::Directory) => {
                let failed = |e: std::io::Error| pandodb::Error::io("open", "", None, &e);
                Arc::new(FileDevice::open(dir, true).map_err(failed)?)
            }
            (None, Place::Hasty) => Arc::new(HastyDevice(MemDevice::new())),
            _ => MemDevice::new(),
        };
        let store = World::builder(&plan, device.clone()).open()?;
        Ok(World {
            spaces: open_spaces(&store)?,
            orphans: Vec::new(),
            store,
            clock: Clock::default(),
            sim,
            device,
            plan,
        })
    }

    /// The builder of a store of the plan.
    pub fn builder(plan: &Plan, device: Arc<dyn Device>) -> StoreBuilder {
        plan.sizes.builder(device).background_threads(plan.workers)
    }

    /// Closes the store and opens it again.
    pub fn reopen(&mut self) -> Result<()> {
        self.orphans = std::mem::take(&mut self.spaces);
        self.store.clone().close()?;
        self.store = World::builder(&self.plan, self.device.clone()).open()?;
        self.spaces = open_spaces(&self.store)?;
        Ok(())
    }

    /// Calls every operation on a handle of the previous opening. Returns `None` if every call returns
    /// [`Error::Closed`] as required, otherwise the wrong result.
    pub fn ask_orphan(&self, key: &[u8]) -> Option<String> {
        let orphan = self.orphans.get(key.len() % self.orphans.len().max(1))?;
        let said = |answer: Result<()>| (!matches!(answer, Err(Error::Closed))).then(|| format!("{answer:?}"));
        let entry = orphan.range(key..).next().map_or(Ok(()), |entry| entry.map(drop));
        said(orphan.get(key).map(drop)).or_else(|| said(entry)).or_else(|| said(orphan.put(key, [0; 8])))
    }

    /// Returns the newest visible seqno, and records it in the clock.
    pub fn visible(&self) -> u64 {
        let seqno = self.store.snapshot().seqno();
        self.clock.show(seqno);
        seqno
    }
}

/// Reads the shared keyspaces of a store completely, and records these reads as one look.
pub(super) fn read_whole(store: &Store, keys: u32, log: &mut Log) -> Result<()> {
    for space in [ROWS, LISTS, SUMS] {
        let keyspace = store.open_keyspace(NAMES[space as usize])?;
        let mut seen = Vec::new();
        if let Some(keyspace) = keyspace {
            for entry in keyspace.iter() {
                let (key, value) = entry?;
                let mut items = Vec::new();
                decode(space, &value, &mut items);
                seen.push((number(&key), items));
            }
        }
        log.read(space, Domain::Span(0, keys), seen.iter().map(|(key, items)| (*key, items.as_slice())));
    }
    Ok(())
}
