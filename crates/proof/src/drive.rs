//! Runs scripts on stores, opens images, and reads the whole contents of stores.

use std::collections::{BTreeMap, VecDeque};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use pandodb::base::sync::stand_for_thread;
use pandodb::device::Device;
use pandodb::device::sim::{SimDevice, SimImage};
use pandodb::{
    AddI64, Compression, Durability, Error, IndexKind, IndexOptions, Keyspace, KeyspaceOptions, Mode, Result, Snapshot,
    Store, StoreBuilder, TransactionOptions,
};

use crate::indexes;
use crate::script::{BLOB_THRESHOLD, End, Op, SUMS, Script, State, Step, mix};

/// The sizes of a store, and a few other options.
#[derive(Clone, Copy, Debug)]
pub struct Sizes {
    /// Memtable size in bytes.
    pub memtable: usize,
    /// Log segment size in bytes.
    pub segment: u64,
    /// Bytes reserved for work on a full disk.
    pub reserve: u64,
    /// Number of log streams. The driver alternates between writers, one for each stream.
    pub streams: usize,
    /// The seed for drawing the index of new keyspaces. With `None`, new keyspaces have the default index with small
    /// options.
    pub index: Option<u64>,
    /// Paper mode or product mode.
    pub mode: Mode,
    /// Compression of the bottom level of an index.
    pub compression: Compression,
}

/// Draws the compression from a number: one of three stores uses LZ4.
pub fn compression(number: u64) -> Compression {
    if mix(number ^ 0x006c_7a34).is_multiple_of(3) { Compression::Lz4 } else { Compression::None }
}

impl Sizes {
    /// The smallest sizes, so that a short script packs, flushes and splits.
    pub const TINY: Sizes = Sizes {
        memtable: 4 << 10,
        segment: 8 << 10,
        reserve: 16 << 10,
        streams: 2,
        index: None,
        mode: Mode::Product,
        compression: Compression::None,
    };
    /// [`Sizes::TINY`] in paper mode.
    pub const PAPER: Sizes = Sizes { mode: Mode::Paper, ..Sizes::TINY };
    /// A memtable that holds a few dozen commits, so that the log is long.
    pub const LOGGY: Sizes = Sizes { memtable: 64 << 10, segment: 16 << 10, ..Sizes::TINY };

    /// [`Sizes::LOGGY`] in paper mode. In this mode, memtable leaves are split while their messages are durable only in
    /// the log.
    pub const LOGGY_PAPER: Sizes = Sizes { mode: Mode::Paper, ..Sizes::LOGGY };

    /// These sizes with 1 to 3 log streams; the number of streams is derived from the argument.
    #[must_use]
    pub fn with_streams(self, number: u64) -> Sizes {
        Sizes { streams: 1 + (mix(number ^ 0x0073_7472_6561_6d73) % 3) as usize, ..self }
    }

    /// These sizes with an index and a compression drawn from a seed.
    #[must_use]
    pub fn drawn(self, seed: u64) -> Sizes {
        Sizes { index: Some(seed), compression: compression(seed), ..self }
    }

    /// The index type of new keyspaces.
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

    /// The builder of a store of these sizes on `device`, without background threads.
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

    /// Opens a store on a device, without background threads.
    ///
    /// # Errors
    /// The error of opening the store.
    pub fn open(self, device: Arc<dyn Device>) -> Result<Store> {
        self.builder(device).open()
    }

    /// Opens the store of an image.
    ///
    /// # Errors
    /// The error of opening the store.
    pub fn open_image(self, image: &SimImage, seed: u64) -> Result<(Arc<SimDevice>, Store)> {
        let device = SimDevice::from_image(image, seed);
        let store = self.open(device.clone())?;
        Ok((device, store))
    }
}

/// The options of the keyspace `name`.
pub fn options(name: &str) -> KeyspaceOptions {
    let options = KeyspaceOptions::new().blob_threshold(BLOB_THRESHOLD);
    if name == SUMS { options.merge(AddI64) } else { options }
}

/// Reads all keyspaces of a store.
///
/// # Errors
/// The error of the first read that fails.
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

/// Compacts every keyspace and checks that `verify` has read every allocated page that is not in quarantine. The check
/// finds two mistakes: an allocated page that nothing refers to, which would be lost for ever, and a page that `verify`
/// skips, in which damage would go unnoticed. The caller must not hold snapshots or scans of the store.
///
/// # Errors
/// The outer result holds the first error of the store. The inner result describes the damage that `verify` found, or
/// the difference in bytes.
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
        (true, false) => Err(format!("{taken} bytes are allocated, but verify has read {seen}; {report:?}")),
    })
}

/// The size of both superblocks together, in bytes.
const SUPERBLOCK_BYTES: u64 = 2 * 4096;

/// Runs `work` and turns a panic into an error.
///
/// # Errors
/// The message of the panic.
pub fn calmly<T>(work: impl FnOnce() -> T) -> Result<T, String> {
    catch_unwind(AssertUnwindSafe(work)).map_err(|panic| {
        let text = panic.downcast_ref::<String>().cloned();
        let text = text.or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).to_owned()));
        format!("PANIC: {}", text.unwrap_or_else(|| "without a message".into()))
    })
}

/// Runs a script on a store. One thread does all the work and alternates between writers; there is one writer per log
/// stream.
pub struct Driver {
    /// The store, which is replaced when the script reopens it.
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
    /// The error of opening the store.
    pub fn open(sizes: Sizes, device: Arc<dyn Device>) -> Result<Driver> {
        Driver::open_with(sizes, device, sizes.index())
    }

    /// Opens a store on the device, with `index` for new keyspaces.
    ///
    /// # Errors
    /// The error of opening the store.
    pub fn open_with(sizes: Sizes, device: Arc<dyn Device>, index: IndexOptions) -> Result<Driver> {
        let store = sizes.builder(device.clone()).index(index.clone()).open()?;
        Ok(Driver { store, sizes, index, device, snapshots: VecDeque::new(), commits: 0 })
    }

    /// Performs one step. `before` is the state before the step.
    ///
    /// # Errors
    /// The error of the store.
    ///
    /// # Panics
    /// If a snapshot or a backup does not have the expected contents.
    pub fn step(&mut self, step: &Step, before: &State) -> Result<()> {
        match step {
            Step::Commit(ops, durability) => self.commit(ops, *durability),
            Step::Transact(ops, durability, end) => self.transact(ops, *durability, *end, before),
            Step::Create(name) => self.store.keyspace_with(name, options(name)).map(|_| ()),
            Step::Drop(name) => self.store.drop_keyspace(name),
            Step::LoadSorted(name, rows) => {
                let rows = rows.iter().map(|(key, value)| (key, value));
                self.keyspace(name)?.load_sorted(rows).map(|_| ())
            }
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

    /// Closes the store and opens it again. If closing or opening fails, `self.store` remains the closed store.
    fn reopen(&mut self) -> Result<()> {
        self.snapshots.clear();
        self.store.clone().close()?;
        self.store = self.sizes.builder(self.device.clone()).index(self.index.clone()).open()?;
        Ok(())
    }

    /// Copies the store to another device and reads the copy.
    fn backup(&self, before: &State) -> Result<()> {
        let target = SimDevice::new(0);
        self.store.backup_with(self.sizes.builder(target.clone()))?;
        let copy = self.sizes.open(target)?;
        assert_eq!(&contents(&copy)?, before, "a backup has the wrong contents");
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

    /// Runs a transaction. After each operation, reads what the operation has changed; reads a whole keyspace at the end.
    fn transact(&mut self, ops: &[Op], durability: Durability, end: End, before: &State) -> Result<()> {
        self.commits += 1;
        stand_for_thread((mix(self.commits) % self.sizes.streams as u64) as usize);
        let tx = self.store.begin(TransactionOptions::new().durability(durability))?;
        let cause = if end == End::Conflict { ops.last() } else { None };
        let inside = &ops[..ops.len() - usize::from(cause.is_some())];
        if let Some(Op::Put(name, key, _)) = cause {
            let found = tx.get(&self.keyspace(name)?, key)?;
            assert_eq!(found.as_deref(), before.0[*name].get(key).map(Vec::as_slice), "a read of a transaction");
        }
        let mut state = before.clone();
        for op in inside {
            let (keyspace, key) = (self.keyspace(op.keyspace())?, op.key());
            match op {
                Op::Put(_, key, value) => tx.put(&keyspace, key, value)?,
                Op::Add(key, delta) => tx.merge(&keyspace, key, delta.to_le_bytes())?,
                Op::Delete(_, key) => tx.delete(&keyspace, key)?,
                Op::DeleteRange(_, from, to) => tx.delete_range(&keyspace, &from[..]..&to[..])?,
            }
            state.apply_op(op);
            let found = tx.get(&keyspace, key)?;
            let expected = state.0[op.keyspace()].get(key).map(Vec::as_slice);
            assert_eq!(found.as_deref(), expected, "a transaction reads what {op:?} has changed");
        }
        if let Some(op) = inside.last() {
            let found = read_all(tx.range(&self.keyspace(op.keyspace())?, ..)?)?;
            assert_eq!(found, state.0[op.keyspace()], "keyspace {} in a transaction", op.keyspace());
        }
        if end == End::Rollback {
            tx.rollback();
            return Ok(());
        }
        let Some(cause) = cause else { return tx.commit() };
        self.commit(std::slice::from_ref(cause), durability)?;
        // A transaction without writes has no conflict.
        match tx.commit() {
            Err(Error::Conflict { .. }) => Ok(()),
            Ok(()) => {
                assert!(
                    inside.is_empty(),
                    "a transaction was committed although {cause:?} had changed what it had read"
                );
                Ok(())
            }
            Err(other) => Err(other),
        }
    }

    /// Reads the oldest snapshot and releases it. Skips keyspaces that were dropped or created after the snapshot was
    /// taken.
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

/// The mark of a step in the recorded history. A step has an even mark at its beginning, and an odd mark at its
/// acknowledgement.
pub fn mark_of(step: usize, acknowledged: bool) -> u64 {
    2 * step as u64 + u64::from(acknowledged)
}

/// Runs a whole script on a recording device, with marks, and closes the store.
///
/// # Errors
/// Describes the failure, which may be a panic.
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
            return Err("the contents of the running store differ from what was written".into());
        }
        driver.store.close().map_err(|e| format!("closing: {e}"))
    };
    calmly(run)?
}
