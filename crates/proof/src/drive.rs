//! Runs scripts on stores, opens images, reads them whole.

use std::collections::{BTreeMap, VecDeque};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use pandodb::base::sync::stand_for_thread;
use pandodb::device::Device;
use pandodb::device::sim::{SimDevice, SimImage};
use pandodb::{
    AddI64, Compression, Durability, IndexKind, IndexOptions, Keyspace, KeyspaceOptions, Mode, Result, Snapshot, Store,
    StoreBuilder,
};

use crate::indexes;
use crate::script::{BLOB_THRESHOLD, Op, SUMS, Script, State, Step, mix};

/// The sizes of a store.
#[derive(Clone, Copy, Debug)]
pub struct Sizes {
    /// Bytes of a memtable.
    pub memtable: usize,
    /// Bytes of a log segment.
    pub segment: u64,
    /// Bytes held back for work on a full disk.
    pub reserve: u64,
    /// Streams of the log, and writers that take turns.
    pub streams: usize,
    /// The seed that the index of new keyspaces is drawn from; without it, the default index in a small form.
    pub index: Option<u64>,
    /// Which form of the structures and of the log.
    pub mode: Mode,
    /// How the bottom of the structure is stored.
    pub compression: Compression,
}

/// How the bottom of the tree is stored, by a number: in one of three stores it is compressed.
pub fn compression(number: u64) -> Compression {
    if mix(number ^ 0x006c_7a34).is_multiple_of(3) { Compression::Lz4 } else { Compression::None }
}

impl Sizes {
    /// As small as it gets, so that a short script packs, flushes and splits.
    pub const TINY: Sizes = Sizes {
        memtable: 4 << 10,
        segment: 8 << 10,
        reserve: 16 << 10,
        streams: 2,
        index: None,
        mode: Mode::Product,
        compression: Compression::None,
    };
    /// The same in paper mode.
    pub const PAPER: Sizes = Sizes { mode: Mode::Paper, ..Sizes::TINY };
    /// A memtable that holds a few dozen commits, so that the log is long.
    pub const LOGGY: Sizes = Sizes { memtable: 64 << 10, segment: 16 << 10, ..Sizes::TINY };

    /// The same in paper mode: leaves of its memtables are split while their messages are in the log only.
    pub const LOGGY_PAPER: Sizes = Sizes { mode: Mode::Paper, ..Sizes::LOGGY };

    /// The same with 1 to 3 streams, by a number.
    #[must_use]
    pub fn with_streams(self, number: u64) -> Sizes {
        Sizes { streams: 1 + (mix(number ^ 0x0073_7472_6561_6d73) % 3) as usize, ..self }
    }

    /// The same with an index that is drawn from a seed, compressed or not.
    #[must_use]
    pub fn drawn(self, seed: u64) -> Sizes {
        Sizes { index: Some(seed), compression: compression(seed), ..self }
    }

    /// The type of index of new keyspaces.
    pub fn kind(&self) -> IndexKind {
        self.index().kind()
    }

    /// The index of new keyspaces.
    fn index(&self) -> IndexOptions {
        match self.index {
            Some(seed) => indexes::options(seed),
            None => indexes::small(indexes::only().unwrap_or_default()),
        }
    }

    /// How a store of these sizes on a device is opened, without threads.
    pub fn builder(self, device: Arc<dyn Device>) -> StoreBuilder {
        Store::builder("sim")
            .device(device)
            .background_threads(0)
            .memory_budget(1 << 20)
            .memtable_bytes(self.memtable)
            .segment_bytes(self.segment)
            .log_streams(self.streams)
            .reserve_bytes(self.reserve)
            .index(self.index())
            .mode(self.mode)
            .compression(self.compression)
    }

    /// Opens a store on a device, without threads.
    ///
    /// # Errors
    /// What opening fails with.
    pub fn open(self, device: Arc<dyn Device>) -> Result<Store> {
        self.builder(device).open()
    }

    /// Opens the store of an image.
    ///
    /// # Errors
    /// What opening fails with.
    pub fn open_image(self, image: &SimImage, seed: u64) -> Result<(Arc<SimDevice>, Store)> {
        let device = SimDevice::from_image(image, seed);
        let store = self.open(device.clone())?;
        Ok((device, store))
    }
}

/// How a keyspace of that name is created.
pub fn options(name: &str) -> KeyspaceOptions {
    let options = KeyspaceOptions::new().blob_threshold(BLOB_THRESHOLD);
    if name == SUMS { options.merge(AddI64) } else { options }
}

/// Reads everything.
///
/// # Errors
/// What reading fails with.
pub fn contents(store: &Store) -> Result<State> {
    let mut state = State::default();
    for info in store.keyspaces() {
        let keyspace = store.open_keyspace(&info.name)?.expect("it was listed");
        state.0.insert(info.name, read_all(keyspace.iter())?);
    }
    Ok(state)
}

fn read_all(range: pandodb::Range) -> Result<BTreeMap<Vec<u8>, Vec<u8>>> {
    range.map(|entry| entry.map(|(key, value)| (key.to_vec(), value.to_vec()))).collect()
}

/// Brings everything into the tree and adds up: `verify` must have looked at every page that is taken and not on its way out.
/// A page that nothing reaches is lost for ever; one that `verify` leaves out may rot unseen. Nothing else may hold views of
/// the store.
///
/// # Errors
/// What the store fails with.
pub fn accounts(store: &Store) -> Result<Result<(), String>> {
    for info in store.keyspaces() {
        store.open_keyspace(&info.name)?.expect("it was listed").compact(..)?;
    }
    let report = store.verify()?;
    let stats = store.stats()?;
    let taken = stats.allocated_bytes - stats.quarantined_bytes;
    let seen = report.bytes + SUPERBLOCK_BYTES;
    Ok(match (report.is_clean(), taken == seen) {
        (true, true) => Ok(()),
        (false, _) => Err(format!("verify: {:?}", report.problems)),
        (true, false) => Err(format!("{taken} bytes are taken, verify has seen {seen}; {report:?}")),
    })
}

/// Bytes of both superblocks.
const SUPERBLOCK_BYTES: u64 = 2 * 4096;

/// Runs `work`; a panic becomes an error text.
///
/// # Errors
/// The words of the panic.
pub fn calmly<T>(work: impl FnOnce() -> T) -> Result<T, String> {
    catch_unwind(AssertUnwindSafe(work)).map_err(|panic| {
        let text = panic.downcast_ref::<String>().cloned();
        let text = text.or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).to_owned()));
        format!("PANIC: {}", text.unwrap_or_else(|| "without words".into()))
    })
}

/// A store that runs a script: one thread, which is several writers by turns, as many as the log has streams.
pub struct Driver {
    /// The store, as it is now.
    pub store: Store,
    sizes: Sizes,
    index: IndexOptions,
    device: Arc<dyn Device>,
    snapshots: VecDeque<(Snapshot, State)>,
    commits: u64,
}

impl Driver {
    /// Opens a store on the device.
    ///
    /// # Errors
    /// What opening fails with.
    pub fn open(sizes: Sizes, device: Arc<dyn Device>) -> Result<Driver> {
        Driver::open_with(sizes, device, sizes.index())
    }

    /// The same with this index for new keyspaces.
    ///
    /// # Errors
    /// What opening fails with.
    pub fn open_with(sizes: Sizes, device: Arc<dyn Device>, index: IndexOptions) -> Result<Driver> {
        let store = sizes.builder(device.clone()).index(index.clone()).open()?;
        Ok(Driver { store, sizes, index, device, snapshots: VecDeque::new(), commits: 0 })
    }

    /// Does one step; `before` is the state that it meets.
    ///
    /// # Errors
    /// What the store fails with.
    ///
    /// # Panics
    /// If a snapshot or a copy holds something else than it must.
    pub fn step(&mut self, step: &Step, before: &State) -> Result<()> {
        match step {
            Step::Commit(ops, durability) => self.commit(ops, *durability),
            Step::Create(name) => self.store.keyspace_with(name, options(name)).map(|_| ()),
            Step::Drop(name) => self.store.drop_keyspace(name),
            Step::Checkpoint => self.store.checkpoint(),
            Step::Settle => self.store.settle(),
            Step::Compact(name) => self.keyspace(name)?.compact(..),
            Step::Persist(durability) => self.store.persist(*durability),
            Step::Snapshot => {
                self.snapshots.push_back((self.store.snapshot(), before.clone()));
                Ok(())
            }
            Step::Release => self.release(),
            Step::Backup => self.backup(before),
            Step::Reopen => self.reopen(),
        }
    }

    /// Closes the store, whatever comes of it, and opens it again. If that fails, the closed one stays.
    fn reopen(&mut self) -> Result<()> {
        self.snapshots.clear();
        self.store.clone().close()?;
        self.store = self.sizes.builder(self.device.clone()).index(self.index.clone()).open()?;
        Ok(())
    }

    /// Copies the store to a device of its own and reads the copy.
    fn backup(&self, before: &State) -> Result<()> {
        let target = SimDevice::new(0);
        self.store.backup_with(self.sizes.builder(target.clone()))?;
        let copy = self.sizes.open(target)?;
        assert_eq!(&contents(&copy)?, before, "the copy");
        Ok(())
    }

    fn keyspace(&self, name: &str) -> Result<Keyspace> {
        let keyspace = self.store.open_keyspace(name)?;
        keyspace.ok_or_else(|| pandodb::Error::NoKeyspace { name: name.to_owned() })
    }

    fn commit(&mut self, ops: &[Op], durability: Durability) -> Result<()> {
        self.commits += 1;
        stand_for_thread((mix(self.commits) % self.sizes.streams as u64) as usize);
        let mut batch = self.store.batch();
        for op in ops {
            match op {
                Op::Put(name, key, value) => batch.put(&self.keyspace(name)?, key, value),
                Op::Add(key, delta) => batch.merge(&self.keyspace(SUMS)?, key, delta.to_le_bytes()),
                Op::Delete(name, key) => batch.delete(&self.keyspace(name)?, key),
                Op::DeleteRange(name, from, to) => batch.delete_range(&self.keyspace(name)?, &from[..]..&to[..]),
            }
        }
        batch.commit(durability)
    }

    /// Reads the oldest snapshot and lets it go. Keyspaces that were dropped or created since are not asked.
    fn release(&mut self) -> Result<()> {
        let Some((snapshot, then)) = self.snapshots.pop_front() else { return Ok(()) };
        for name in ["rows", SUMS] {
            let (Some(keyspace), Some(expected)) = (self.store.open_keyspace(name)?, then.0.get(name)) else {
                continue;
            };
            let found = read_all(keyspace.at(&snapshot).iter())?;
            assert_eq!(&found, expected, "keyspace {name} at a snapshot");
        }
        Ok(())
    }
}

/// A mark in the history: step `i` begins (even) or is acknowledged (odd).
pub fn mark_of(step: usize, acknowledged: bool) -> u64 {
    2 * step as u64 + u64::from(acknowledged)
}

/// Runs a whole script on a recording device, with marks, and closes the store.
///
/// # Errors
/// What went wrong, a panic included.
pub fn record(script: &Script, sizes: Sizes, sim: &Arc<SimDevice>, device: Arc<dyn Device>) -> Result<(), String> {
    sim.record();
    let run = || -> Result<(), String> {
        let mut driver = Driver::open(sizes, device).map_err(|e| format!("opening: {e}"))?;
        let mut state = State::default();
        for (i, step) in script.steps.iter().enumerate() {
            sim.mark(mark_of(i, false));
            driver.step(step, &state).map_err(|e| format!("step {i} ({step:?}): {e}"))?;
            sim.mark(mark_of(i, true));
            state.apply(step);
        }
        let found = contents(&driver.store).map_err(|e| format!("reading: {e}"))?;
        if found != state {
            return Err("the running store holds something else than was written".into());
        }
        driver.store.close().map_err(|e| format!("closing: {e}"))
    };
    calmly(run)?
}
