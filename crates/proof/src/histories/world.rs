//! The store under a history, its device, and the clock by which threads know what was before what.

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

/// Where the store lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// In memory.
    Memory,
    /// In memory, where time runs so fast that scans change worlds all the time.
    Hasty,
    /// In a directory of its own.
    Directory,
    /// On a simulated machine, which has no threads of its own: the clients do the work behind their writes, and images are
    /// taken while they run.
    Simulator,
}

/// What a history is like.
#[derive(Clone, Copy, Debug)]
pub struct Plan {
    /// Everything follows from it, but for how threads meet.
    pub seed: u64,
    /// Where the store lies.
    pub place: Place,
    /// Client threads; one more disturbs them.
    pub threads: u64,
    /// Threads for background work.
    pub workers: usize,
    /// Distinct keys of a keyspace.
    pub keys: u32,
    /// Sizes of the store.
    pub sizes: Sizes,
    /// How often everybody stops, and all is checked.
    pub windows: u64,
    /// Transactions of all clients together in a window.
    pub transactions: u64,
    /// Of 100 commits, how many are synced.
    pub synced: u64,
}

impl Plan {
    /// The history of a seed.
    pub fn of(seed: u64, place: Place) -> Plan {
        let mut rng = Rng(seed ^ 0x0068_6973_746f_7279);
        // On a real disk each pack costs a checkpoint, and that a few syncs.
        let memtable =
            if place == Place::Directory { 64 << 10 } else { [4 << 10, 8 << 10, 32 << 10][rng.below(3) as usize] };
        let segment = (memtable as u64 / 2).max(8 << 10);
        let mode = if seed % 4 == 3 { Mode::Paper } else { Mode::Product };
        let sizes = Sizes { memtable, segment, mode, ..Sizes::TINY };
        let sizes = sizes.with_streams(seed).drawn(seed);
        let (windows, transactions) = match place {
            // With tiny memtables, writers mostly wait for the work behind them.
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
        }
    }
}

/// What is known to be there: pushed forward by every acknowledgement and every snapshot, asked before the next operation.
#[derive(Debug, Default)]
pub(super) struct Clock {
    shown: AtomicU64,
    buffered: AtomicU64,
    synced: AtomicU64,
}

impl Clock {
    /// Nothing that begins now may stand before this seqno.
    pub fn now(&self) -> u64 {
        self.shown.load(SeqCst)
    }

    /// A snapshot has shown everything up to `seqno`.
    pub fn show(&self, seqno: u64) {
        self.shown.fetch_max(seqno, SeqCst);
    }

    /// Everything up to `seqno` was acknowledged as this durable.
    pub fn acknowledge(&self, seqno: u64, durability: Durability) {
        self.show(seqno);
        if durability >= Durability::Buffered {
            self.buffered.fetch_max(seqno, SeqCst);
        }
        if durability == Durability::Synced {
            self.synced.fetch_max(seqno, SeqCst);
        }
    }

    /// What a killed process must leave; what a power cut must leave.
    pub fn promised(&self, cut: bool) -> u64 {
        if cut { self.synced.load(SeqCst) } else { self.buffered.load(SeqCst) }
    }
}

/// A store with the keyspaces that everybody shares.
pub(super) struct World {
    pub plan: Plan,
    pub clock: Clock,
    pub store: Store,
    pub spaces: Vec<Keyspace>,
    /// Of the life before: they must say that it is over.
    orphans: Vec<Keyspace>,
    pub sim: Option<Arc<SimDevice>>,
    device: Arc<dyn Device>,
}

/// How a keyspace is created.
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
    /// An empty store; `dir` is for [`Place::Directory`].
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

    /// How a store of the plan is opened.
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

    /// What a handle of the life before answers about a key; `None` if it says, as it must, that its store was closed.
    pub fn ask_orphan(&self, key: &[u8]) -> Option<String> {
        let orphan = self.orphans.get(key.len() % self.orphans.len().max(1))?;
        let said = |answer: Result<()>| (!matches!(answer, Err(Error::Closed))).then(|| format!("{answer:?}"));
        let entry = orphan.range(key..).next().map_or(Ok(()), |entry| entry.map(drop));
        said(orphan.get(key).map(drop)).or_else(|| said(entry)).or_else(|| said(orphan.put(key, [0; 8])))
    }

    /// The newest seqno that readers see.
    pub fn visible(&self) -> u64 {
        let seqno = self.store.snapshot().seqno();
        self.clock.show(seqno);
        seqno
    }
}

/// Notes all that a store holds in the shared keyspaces as reads of one look.
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
