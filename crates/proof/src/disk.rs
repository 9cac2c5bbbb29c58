//! Tests that a full disk can be emptied again. The disk size, the memory budget, the kind of data and the way to free
//! space are random.
//!
//! ```text
//!  open ─▶ fill until refused ─▶ [reopen] ─▶ read all ─▶ free everything ─▶ [reopen] ─▶ space is freed?
//!                                                         single deletes         ─▶ fill again to a half
//!                                                         delete_range(..)       ─▶ reopen, read all, verify
//!                                                         drop_keyspace
//! ```
//!
//! [`run`] performs these steps on the simulated device, where the seed determines the whole run. [`run_in`] performs
//! them in a directory of a real file system, which the caller has made small.
//!
//! While deletes run, the full disk may prevent memtables from being packed. Even then, the memtables must stay within
//! the memory budget. A run is *stuck* if a deletion is refused 250 times in a row, if `checkpoint` or `settle` fails
//! after all data was deleted, or if the space is not freed.

use std::path::Path;
use std::time::Duration;

use pandodb::device::sim::SimDevice;
use pandodb::{AddI64, Batch, Durability, Error, IndexOptions, Keyspace, KeyspaceOptions, Store, StoreBuilder};

use crate::drive::calmly;
use crate::indexes;
use crate::report::{Tally, Unit};
use crate::script::{Rng, mix};

/// The number of consecutive refusals of a deletion after which a run counts as stuck.
const PATIENCE: u32 = 250;
/// The pause between two tries of an operation on a real disk.
const PAUSE: Duration = Duration::from_millis(20);
/// Number of deletes between two checks of the memory use.
const LOOK: usize = 1000;
/// The total number of refused writes after which a writer that retries stops.
const REFUSALS: u32 = 60;
/// The keyspace of values.
const ROWS: &str = "rows";
/// The keyspace of counters.
const SUMS: &str = "sums";

/// The data that fills the disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fill {
    /// Values of up to 900 bytes, each in a commit of its own.
    Puts,
    /// The same values, in batches of up to 64.
    Batches,
    /// Merges into counters.
    Merges,
    /// Small and large values, counters, overwrites, deletes.
    Mixed,
    /// Values of 16 to 200 KiB.
    Large,
}

/// The ways to delete all data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Free {
    /// Key by key.
    Singles,
    /// By one range delete over all keys.
    Range,
    /// By dropping the keyspaces.
    Drop,
}

/// When the store is closed and opened again. Every run also does so at its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reopen {
    /// Only at the end of the run.
    Never,
    /// On the full disk, before any data is deleted.
    Before,
    /// Before and after all data is deleted.
    Both,
}

/// The parameters of one run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Plan {
    /// The seed of the data.
    pub seed: u64,
    /// The kind of data.
    pub fill: Fill,
    /// The way in which all data is deleted.
    pub free: Free,
    /// The times when the store is reopened.
    pub reopen: Reopen,
    /// Whether the writer retries after the first refusal.
    pub insists: bool,
}

impl Plan {
    /// The plan drawn from a seed.
    pub fn of(seed: u64) -> Plan {
        let mut rng = Rng(seed ^ 0x6469_736b);
        let fill = [Fill::Puts, Fill::Batches, Fill::Merges, Fill::Mixed, Fill::Large][rng.index(5)];
        let free = [Free::Singles, Free::Range, Free::Drop][rng.index(3)];
        let reopen = [Reopen::Never, Reopen::Before, Reopen::Both][rng.index(3)];
        Plan { seed, fill, free, reopen, insists: rng.chance(50) }
    }
}

/// Statistics of a run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Seen {
    /// Records written until the disk was full.
    pub records: u64,
    /// Bytes of data file and log on the full disk.
    pub full_bytes: u64,
    /// Bytes of data file and log after everything was deleted.
    pub empty_bytes: u64,
    /// Freeing operations that were refused and retried.
    pub retried: u64,
    /// Records written after everything was deleted.
    pub again: u64,
}

/// The expected contents of the store.
#[derive(Default)]
struct Model {
    /// The version of each row's value; 0 if the row does not exist.
    rows: Vec<u8>,
    /// The value of each counter.
    sums: Vec<Option<i64>>,
}

/// The key of the `i`-th record: 8 hash digits, so that keys are scattered, then the number.
fn key(i: usize) -> Vec<u8> {
    format!("{:08x}{i:08x}", mix(i as u64) as u32).into_bytes()
}

/// The number of a key.
fn number(key: &[u8]) -> Option<usize> {
    usize::from_str_radix(std::str::from_utf8(key.get(8..)?).ok()?, 16).ok()
}

/// A run in progress.
struct Run<'a> {
    plan: Plan,
    /// Opens the store of this run.
    open: &'a dyn Fn() -> Result<Store, Error>,
    /// Sleeps, so that background threads can work. Does nothing if the store has no background threads.
    pause: &'a dyn Fn(),
    /// With `true`, creates another file that takes the remaining space of the full disk. With `false`, removes that
    /// file.
    squeeze: &'a dyn Fn(bool),
    store: Option<Store>,
    model: Model,
    rng: Rng,
    seen: Seen,
}

/// Prefixes an error with the operation that failed.
fn during<T>(what: &str, result: Result<T, Error>) -> Result<T, String> {
    result.map_err(|e| format!("{what}: {e}"))
}

impl Run<'_> {
    fn store(&self) -> &Store {
        self.store.as_ref().expect("it is open")
    }

    fn rows(&self) -> Result<Keyspace, String> {
        during("opening a keyspace", self.store().keyspace(ROWS))
    }

    fn sums(&self) -> Result<Keyspace, String> {
        during("opening a keyspace", self.store().keyspace_with(SUMS, KeyspaceOptions::new().merge(AddI64)))
    }

    fn reopen(&mut self) -> Result<(), String> {
        let store = self.store.take().expect("it is open");
        during("closing", store.close())?;
        self.store = Some(during("opening again", (self.open)())?);
        Ok(())
    }

    /// The value of a version of a row.
    fn value(&self, i: usize, version: u8) -> Vec<u8> {
        let seed = mix(self.plan.seed ^ ((i as u64) << 8) ^ u64::from(version));
        let large = match self.plan.fill {
            Fill::Large => true,
            Fill::Mixed => seed.is_multiple_of(40),
            _ => false,
        };
        let len = if large { 16_384 + seed % 180_000 } else { (seed >> 8) % 900 };
        let mut rng = Rng(seed);
        let mut value = Vec::with_capacity(len as usize + 8);
        while (value.len() as u64) < len {
            value.extend_from_slice(&rng.next_u64().to_le_bytes());
        }
        value.truncate(len as usize);
        value
    }

    /// Writes one step of the fill phase. Returns the number of records written.
    fn step(&mut self, rows: &Keyspace, sums: &Keyspace) -> Result<usize, Error> {
        let next = self.model.rows.len();
        let die = self.rng.below(100);
        match self.plan.fill {
            Fill::Batches => {
                let count = 1 + self.rng.index(64);
                let mut batch: Batch = self.store().batch();
                (next..next + count).for_each(|i| batch.put(rows, key(i), self.value(i, 1)));
                batch.commit(Durability::Buffered)?;
                self.model.rows.extend(std::iter::repeat_n(1, count));
                Ok(count)
            }
            Fill::Merges => self.add(sums, die < 70),
            Fill::Mixed if die < 15 => self.add(sums, die < 10),
            Fill::Mixed if die < 25 && next > 0 => {
                let i = self.rng.index(next);
                let version = self.model.rows[i] % 200 + 1;
                rows.put(key(i), self.value(i, version))?;
                self.model.rows[i] = version;
                Ok(1)
            }
            Fill::Mixed if die < 35 && next > 0 => {
                let i = self.rng.index(next);
                rows.delete(key(i))?;
                self.model.rows[i] = 0;
                Ok(1)
            }
            _ => {
                rows.put(key(next), self.value(next, 1))?;
                self.model.rows.push(1);
                Ok(1)
            }
        }
    }

    /// Adds to a new or an existing counter.
    fn add(&mut self, sums: &Keyspace, new: bool) -> Result<usize, Error> {
        let count = self.model.sums.len();
        let i = if new || count == 0 { count } else { self.rng.index(count) };
        let delta = self.rng.below(1000) as i64 - 300;
        sums.merge(key(i), delta.to_le_bytes())?;
        if i == count {
            self.model.sums.push(None);
        }
        self.model.sums[i] = Some(self.model.sums[i].unwrap_or(0) + delta);
        Ok(1)
    }

    /// Writes until the disk is full or `most` records are written. Returns the number of records.
    fn fill(&mut self, most: u64) -> Result<u64, String> {
        let (rows, sums) = (self.rows()?, self.sums()?);
        let (mut written, mut refused) = (0, 0);
        while written < most {
            match self.step(&rows, &sums) {
                Ok(records) => written += records as u64,
                Err(Error::DiskFull { .. }) if !self.plan.insists || refused >= REFUSALS => break,
                Err(Error::DiskFull { .. }) => {
                    refused += 1;
                    (self.pause)();
                }
                Err(e) => return Err(format!("filling, after {written} records: {e}")),
            }
        }
        Ok(written)
    }

    /// Reads all contents and compares them with the model.
    fn check(&self, when: &str) -> Result<(), String> {
        let wrong = |what: String| Err(format!("{when}: {what}"));
        let mut found = 0;
        for entry in self.rows()?.iter() {
            let (key, value) = during(when, entry)?;
            let Some(i) = number(&key) else { return wrong(format!("a key that was never written: {key:?}")) };
            let version = self.model.rows.get(i).copied().unwrap_or(0);
            if version == 0 || *value != self.value(i, version) {
                return wrong(format!("row {i} has a wrong value or should not exist"));
            }
            found += 1;
        }
        let expected = self.model.rows.iter().filter(|&&version| version > 0).count();
        if found != expected {
            return wrong(format!("found {found} of {expected} rows"));
        }
        let mut found = 0;
        for entry in self.sums()?.iter() {
            let (key, value) = during(when, entry)?;
            let expected = number(&key).and_then(|i| self.model.sums.get(i).copied().flatten());
            let value = <[u8; 8]>::try_from(&*value).map(i64::from_le_bytes).ok();
            if value.is_none() || value != expected {
                return wrong(format!("a counter is {value:?}, not {expected:?}"));
            }
            found += 1;
        }
        let expected = self.model.sums.iter().flatten().count();
        if found == expected { Ok(()) } else { wrong(format!("found {found} of {expected} counters")) }
    }

    /// Deletes data by `operation`, and retries the operation while it is refused because the disk is full.
    fn insist(&mut self, what: &str, operation: &dyn Fn() -> Result<(), Error>) -> Result<(), String> {
        for _ in 0..PATIENCE {
            match operation() {
                Err(Error::DiskFull { .. }) => {
                    self.seen.retried += 1;
                    (self.pause)();
                }
                other => return during(what, other),
            }
        }
        during(&format!("STUCK: {what}, {PATIENCE} times"), operation())
    }

    fn free_all(&mut self) -> Result<(), String> {
        let (rows, sums) = (self.rows()?, self.sums()?);
        match self.plan.free {
            Free::Range => {
                self.insist("delete_range", &|| rows.delete_range(..))?;
                self.insist("delete_range", &|| sums.delete_range(..))?;
            }
            Free::Drop => {
                let store = self.store().clone();
                self.insist("drop_keyspace", &|| store.drop_keyspace(ROWS))?;
                self.insist("drop_keyspace", &|| store.drop_keyspace(SUMS))?;
            }
            Free::Singles => {
                let live = |live: bool, i: usize| live.then(|| key(i));
                let mut keys: Vec<(bool, Vec<u8>)> = (0..self.model.rows.len())
                    .filter_map(|i| Some((true, live(self.model.rows[i] > 0, i)?)))
                    .chain(
                        (0..self.model.sums.len())
                            .filter_map(|i| Some((false, live(self.model.sums[i].is_some(), i)?))),
                    )
                    .collect();
                if self.plan.seed.is_multiple_of(2) {
                    keys.sort_unstable();
                }
                let count = keys.len();
                for (at, (is_row, key)) in keys.into_iter().enumerate() {
                    let keyspace = if is_row { &rows } else { &sums };
                    self.insist("delete", &|| keyspace.delete(&key))
                        .map_err(|e| format!("delete {at} of {count}: {e}"))?;
                    if at % LOOK == 0 {
                        self.check_memory()?;
                    }
                }
            }
        }
        self.model = Model::default();
        Ok(())
    }

    /// Checks that the memtables stay within the memory budget. On a full disk the store may be unable to pack them.
    fn check_memory(&self) -> Result<(), String> {
        let memory = during("statistics", self.store().stats())?.memory;
        if memory.memtables > memory.budget {
            return Err(format!("memtables take {} of a budget of {} bytes", memory.memtables, memory.budget));
        }
        Ok(())
    }

    /// The size of data file and log in bytes.
    fn bytes(&self) -> Result<u64, String> {
        let stats = during("statistics", self.store().stats())?;
        Ok(stats.disk_bytes + stats.log_bytes)
    }

    /// Performs the whole run and closes the store at the end.
    fn go(&mut self) -> Result<(), String> {
        self.store = Some(during("opening", (self.open)())?);
        self.seen.records = self.fill(u64::MAX)?;
        self.check("reading on the full disk")?;
        self.seen.full_bytes = self.bytes()?;
        if self.plan.reopen != Reopen::Never {
            self.reopen()?;
            self.check("reading after reopening on the full disk")?;
        }
        (self.squeeze)(true);
        self.free_all()?;
        if self.plan.reopen == Reopen::Both {
            self.reopen()?;
        }
        during("STUCK: checkpoint of the emptied store", self.store().checkpoint())?;
        if self.plan.free == Free::Singles {
            // The space of point-deleted entries is freed only by compactions.
            let (rows, sums) = (self.rows()?, self.sums()?);
            during("STUCK: compacting the emptied store", rows.compact(..))?;
            during("STUCK: compacting the emptied store", sums.compact(..))?;
        }
        during("STUCK: settling the emptied store", self.store().settle())?;
        self.check("reading the emptied store")?;
        (self.squeeze)(false);
        self.seen.empty_bytes = self.bytes()?;
        if self.seen.empty_bytes > (self.seen.full_bytes / 16).max(4 << 20) {
            let Seen { full_bytes, empty_bytes, .. } = self.seen;
            return Err(format!(
                "STUCK: {empty_bytes} of {full_bytes} bytes are still used after everything was deleted"
            ));
        }
        // A mixed fill deletes and overwrites some of its records, so `records` is larger than the number of records on
        // the full disk.
        let share = if self.plan.fill == Fill::Mixed { 5 } else { 2 };
        self.seen.again = self.fill(self.seen.records / share)?;
        if self.seen.again < self.seen.records / share {
            return Err(format!("STUCK: only {} of {} records fit again", self.seen.again, self.seen.records));
        }
        self.check("reading after filling again")?;
        self.reopen()?;
        self.check("reading at the end")?;
        let report = during("verifying", self.store().verify())?;
        if !report.is_clean() {
            return Err(format!("verify: {:?}", report.problems));
        }
        let store = self.store.take().expect("it is open");
        during("closing", store.close())
    }
}

fn go(
    plan: Plan,
    open: &dyn Fn() -> Result<Store, Error>,
    pause: &dyn Fn(),
    squeeze: &dyn Fn(bool),
) -> Result<Seen, String> {
    let (model, rng) = (Model::default(), Rng(plan.seed));
    let mut run = Run { plan, open, pause, squeeze, store: None, model, rng, seen: Seen::default() };
    let outcome = calmly(|| run.go());
    outcome.and_then(|result| result).map(|()| run.seen)
}

/// Performs one run in a directory on a small file system, with options chosen by the caller.
///
/// # Errors
/// Describes what was stuck, lost or wrong.
pub fn run_in(dir: &Path, plan: Plan, options: &dyn Fn(StoreBuilder) -> StoreBuilder) -> Result<Seen, String> {
    let index = IndexOptions::from(indexes::only().unwrap_or_default());
    let open = || options(Store::builder(dir.join("store"))).index(index.clone()).open();
    go(plan, &open, &|| std::thread::sleep(PAUSE), &|_| ())
}

/// For a seed: the size of the simulated disk, the memory budget, and the hole unit, all in bytes.
fn sizes(seed: u64) -> (u64, usize, u64) {
    let mut rng = Rng(seed ^ 0x7369_7a65);
    let disk = (3 << 20) + rng.below(5 << 20);
    let budget = [1 << 20, 4 << 20, 16 << 20][rng.index(3)];
    // Two of three disks have the hole unit of most file systems. The third disk has a larger hole unit, as btrfs has,
    // in proportion to the small disk.
    (disk, budget, [4 << 10, 4 << 10, 16 << 10][rng.index(3)])
}

/// Runs a unit of the harness: one simulated disk.
pub fn run(unit: &Unit) -> Tally {
    let plan = Plan::of(unit.seed);
    let (bytes, budget, hole_unit) = sizes(unit.seed);
    let device = SimDevice::new(unit.seed);
    device.set_byte_budget(Some(bytes));
    device.set_hole_unit(hole_unit);
    let index = indexes::options(unit.seed);
    let open = || {
        let builder = Store::builder("sim").device(device.clone()).background_threads(0).memory_budget(budget);
        builder.index(index.clone()).open()
    };
    let mut tally = Tally { runs: 1, ..Tally::default() };
    // In every second run, as soon as the store cannot write any more, a file that does not belong to the store takes
    // all remaining space of the disk.
    let squeeze = |on| {
        if unit.seed.is_multiple_of(2) {
            device.set_byte_budget(Some(if on { device.occupied() } else { bytes }));
        }
    };
    match go(plan, &open, &|| (), &squeeze) {
        Ok(seen) => {
            tally.count("records", seen.records);
            tally.count("refused and tried again", seen.retried);
        }
        Err(e) => tally.fail(
            unit.seed,
            format!("a disk of {bytes} bytes, budget {budget}, holes of {hole_unit}, {index}, {plan:?}: {e}"),
        ),
    }
    indexes::count(index.kind(), &mut tally);
    tally
}
