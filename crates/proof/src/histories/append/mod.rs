//! The black box: clients append to lists and add to a set, during crashes and faults. The checkers use only what the
//! clients observe.
//!
//! The crate `adya` checks the lists (it finds the anomalies of Elle). The reads at a snapshot are one transaction, a
//! batch is another, and each takes effect at one point in real time. Transactions of the store read and append
//! ([`transact`]). In one half of the histories they are serialisable, and `adya` checks against `strict-serializable`,
//! the strongest model. In the other half they run under snapshot isolation, and `adya` checks against
//! `strong-snapshot-isolation`. [`sets`] checks the sets.
//!
//! All clients run on one thread, on the simulated device. The seed chooses the client that acts next, so it determines
//! the history. For example, one client takes a snapshot, others commit, and the first client continues its reads. A
//! failed write with an unknown result is recorded as `info`; only a write that the store has refused is recorded as
//! `fail`.

mod transact;

use std::collections::BTreeMap;
use std::sync::Arc;

use adya::history::{Interner, Mop, Op, OpType, ReadValue, Scalar};
use adya::{History, Opts, Valid, Workload};
use pandodb::device::sim::{CrashChoice, Fault, FaultKind, OpClass, SimDevice};
use pandodb::{Append, Durability, Error, Isolation, Keyspace, KeyspaceOptions, Range, Result, Snapshot, Store};

use self::transact::Running;
use super::client::Canary;
use super::sets::{self, Add, Fate, Scan};
use crate::drive::{Sizes, calmly};
use crate::report::{Failure, Tally};
use crate::script::Rng;

/// Number of clients.
const CLIENTS: usize = 5;
/// Number of steps. Most steps do one part of a transaction.
const STEPS: u64 = 6_000;
/// The number of lists that clients append to at the same time.
const LISTS: u64 = 6;
/// Average final length of a list.
const LONGEST: u64 = 40;
/// The models of `adya` for the two kinds of isolation.
const SERIALISABLE: &str = "strict-serializable";
const SNAPSHOT: &str = "strong-snapshot-isolation";
/// The faults of the device. None of these faults loses a write that the device reported as done.
const FAULTS: [FaultKind; 8] = [
    FaultKind::IoError(OpClass::Read),
    FaultKind::IoError(OpClass::Write),
    FaultKind::IoError(OpClass::Sync),
    FaultKind::FailedSync,
    FaultKind::StorageFull,
    FaultKind::ShortTransfer,
    FaultKind::Interrupted,
    FaultKind::ClockJump,
];

/// The current operation of a client.
enum Doing {
    Nothing,
    /// Reading these lists at a snapshot, from the last list to the first. The last field holds the reads that are
    /// already done.
    Reading(Snapshot, Vec<i64>, Vec<Mop>),
    /// About to commit these elements.
    Appending(Vec<(i64, i64)>),
    /// About to commit this batch (an index into `adds`) to the set.
    Adding(usize),
    /// Scanning the set, backward if the flag is true. The last field holds the elements seen up to now.
    Scanning(Box<Range>, bool, Scan),
    /// Running a transaction.
    Transacting(Box<Running>),
}

struct Client {
    process: i64,
    doing: Doing,
}

/// The keyspaces: two hold lists, one holds the set.
struct Spaces {
    lists: [Keyspace; 2],
    set: Keyspace,
}

impl Spaces {
    fn open(store: &Store) -> Result<Spaces> {
        let lists = |name| store.keyspace_with(name, KeyspaceOptions::new().merge(Append));
        Ok(Spaces { lists: [lists("lists")?, lists("more")?], set: store.keyspace("set")? })
    }

    fn of(&self, list: i64) -> &Keyspace {
        &self.lists[list as usize % 2]
    }
}

struct Bench {
    seed: u64,
    rng: Rng,
    device: Arc<SimDevice>,
    /// `None` between a crash and its recovery.
    open: Option<(Store, Spaces)>,
    /// Whether crashes are power cuts as well as kills. If so, every commit is synced.
    cuts: bool,
    /// The isolation of all transactions.
    isolation: Isolation,
    canary: Option<Canary>,
    clients: Vec<Client>,
    processes: i64,
    appended: i64,
    ops: Vec<Op>,
    names: Interner,
    adds: Vec<Add>,
    scans: Vec<Scan>,
    now: u64,
    tally: Tally,
}

/// Runs the black box of a seed.
pub(super) fn run(seed: u64, canary: Option<Canary>) -> Tally {
    match calmly(|| Bench::new(seed, canary).and_then(Bench::run)) {
        Ok(Ok(bench)) => {
            let mut tally = bench.judge();
            tally.failures.iter_mut().for_each(|failure| failure.seed = seed);
            tally
        }
        Ok(Err(e)) | Err(e) => {
            let mut tally = Tally::default();
            tally.fail(seed, e);
            tally
        }
    }
}

fn list_key(list: i64) -> Vec<u8> {
    format!("list{list:06}").into_bytes()
}

/// The key of an element. Keys are hashed, so that they are not in the order in which elements are added.
fn set_key(element: u64) -> Vec<u8> {
    let mut key = Rng(element).next_u64().to_be_bytes().to_vec();
    key.extend(element.to_be_bytes());
    key
}

impl Bench {
    fn new(seed: u64, canary: Option<Canary>) -> Result<Bench, String> {
        let mut bench = Bench {
            seed,
            rng: Rng(seed ^ 0x6170_7065_6e64),
            device: SimDevice::new(seed),
            open: None,
            cuts: (seed / 8).is_multiple_of(2),
            isolation: if (seed / 16).is_multiple_of(2) { Isolation::Serializable } else { Isolation::Snapshot },
            canary,
            clients: Vec::new(),
            processes: 0,
            appended: 0,
            ops: Vec::new(),
            names: Interner::default(),
            adds: Vec::new(),
            scans: Vec::new(),
            now: 0,
            tally: Tally::default(),
        };
        bench.start()?;
        for _ in 0..CLIENTS {
            let process = bench.next_process();
            bench.clients.push(Client { process, doing: Doing::Nothing });
        }
        Ok(bench)
    }

    fn start(&mut self) -> Result<(), String> {
        let opened =
            Sizes::TINY.drawn(self.seed).open(self.device.clone()).and_then(|store| Ok((Spaces::open(&store)?, store)));
        let (spaces, store) = opened.map_err(|e| format!("it does not open: {e}"))?;
        self.open = Some((store, spaces));
        Ok(())
    }

    fn next_process(&mut self) -> i64 {
        self.processes += 1;
        self.processes
    }

    fn run(mut self) -> Result<Bench, String> {
        for _ in 0..STEPS {
            self.now += 1;
            match self.rng.below(1000) {
                0..=3 => {
                    let kind = FAULTS[self.rng.below(FAULTS.len() as u64) as usize];
                    let nth = self.rng.below(12);
                    self.tally.count("faults that struck", self.device.faults_struck());
                    self.device.set_fault(Some(Fault::once(kind, nth)));
                }
                4..=6 => self.crash()?,
                7..=12 => self.maintain()?,
                _ => {
                    let client = self.rng.below(CLIENTS as u64) as usize;
                    self.advance(client)?;
                }
            }
        }
        self.crash()?;
        self.read_all()?;
        Ok(self)
    }

    fn store(&self) -> &(Store, Spaces) {
        self.open.as_ref().expect("a store between crashes")
    }

    // ---- faults ----

    /// Handles an error. Returns `Ok(true)` if the operation certainly had no effect, and `Ok(false)` if it may have
    /// had an effect. Reopens a store that may refuse further writes.
    fn suffer(&mut self, error: &Error) -> Result<bool, String> {
        match error {
            Error::DiskFull { .. } => Ok(true),
            Error::Poisoned { .. } => self.crash().map(|()| true),
            Error::Io { .. } | Error::Indeterminate { .. } => self.crash().map(|()| false),
            other => Err(format!("after {} steps: {other}", self.now)),
        }
    }

    /// Kills the process, cuts the power, or only closes the store; opens the store again afterwards. The current
    /// operation of each client is recorded as failed, because no client has submitted its commit yet.
    fn crash(&mut self) -> Result<(), String> {
        for client in 0..CLIENTS {
            self.leave(client);
        }
        self.tally.count("faults that struck", self.device.faults_struck());
        self.device.set_fault(None);
        let roll = self.rng.below(if self.cuts { 3 } else { 2 });
        let image = match roll {
            0 => None,
            1 => Some(self.device.image()),
            _ => {
                let pending = self.device.pending().len() as u64;
                let kept: Vec<usize> = (0..pending as usize).filter(|_| self.rng.chance(50)).collect();
                Some(self.device.crash_image(&CrashChoice::only(kept)))
            }
        };
        self.open = None;
        if let Some(image) = image {
            self.device = SimDevice::from_image(&image, self.rng.next_u64());
        }
        self.tally.count(["reopenings", "kills", "power cuts"][roll as usize], 1);
        self.start()
    }

    fn maintain(&mut self) -> Result<(), String> {
        let roll = self.rng.below(5);
        let (store, spaces) = self.store();
        let done = match roll {
            0 => store.checkpoint(),
            1 => store.settle(),
            2 => spaces.lists[0].compact(..),
            3 => spaces.set.compact(..),
            _ => store.persist(Durability::Synced),
        };
        match done {
            Ok(()) => Ok(()),
            Err(e) => self.suffer(&e).map(|_| ()),
        }
    }

    // ---- clients ----

    fn note(&mut self, client: usize, kind: OpType, value: Vec<Mop>) {
        let index = self.ops.len() as u64;
        let process = Some(self.clients[client].process);
        self.ops.push(Op { index, kind, process, value, time: None });
        if kind != OpType::Invoke {
            self.tally.runs += 1;
            self.tally.count("list transactions", 1);
        }
        if kind != OpType::Ok && kind != OpType::Invoke {
            self.tally.count(if kind == OpType::Info { "unknown" } else { "refused" }, 1);
        }
        if kind == OpType::Info {
            // The operation may still be in progress, so the process of this operation must not run another operation.
            self.clients[client].process = self.next_process();
        }
    }

    fn reads(&mut self, lists: &[i64]) -> Vec<Mop> {
        lists
            .iter()
            .map(|list| Mop::Read { key: self.names.intern(Scalar::Int(*list)), value: ReadValue::Nil })
            .collect()
    }

    fn appends(&mut self, elements: &[(i64, i64)]) -> Vec<Mop> {
        let mut id = |number: i64| self.names.intern(Scalar::Int(number));
        elements.iter().map(|(list, element)| Mop::Append { key: id(*list), value: id(*element) }).collect()
    }

    /// Cancels the current operation of a client.
    fn leave(&mut self, client: usize) {
        match std::mem::replace(&mut self.clients[client].doing, Doing::Nothing) {
            Doing::Nothing | Doing::Scanning(..) => {}
            Doing::Reading(_, left, seen) => {
                let mut value = seen;
                value.extend(self.reads(&left));
                self.note(client, OpType::Fail, value);
            }
            Doing::Appending(elements) => {
                let value = self.appends(&elements);
                self.note(client, OpType::Fail, value);
            }
            Doing::Adding(add) => self.adds[add].fate = Fate::Refused,
            Doing::Transacting(running) => self.abandon(client, *running),
        }
    }

    fn advance(&mut self, client: usize) -> Result<(), String> {
        match std::mem::replace(&mut self.clients[client].doing, Doing::Nothing) {
            Doing::Nothing => self.begin(client),
            Doing::Reading(snapshot, left, seen) => self.read(client, snapshot, left, seen),
            Doing::Appending(elements) => self.append(client, &elements),
            Doing::Adding(add) => self.add(add),
            Doing::Scanning(range, reverse, scan) => self.scan(client, range, reverse, scan),
            Doing::Transacting(running) => self.go_on(client, running),
        }
    }

    /// Draws one of the lists that clients append to now.
    fn draw_list(&mut self) -> i64 {
        self.appended / (LISTS * LONGEST) as i64 * LISTS as i64 + self.rng.below(LISTS) as i64
    }

    fn begin(&mut self, client: usize) -> Result<(), String> {
        let doing = match self.rng.below(16) {
            10.. => return self.begin_transaction(client),
            0..=3 => {
                let mut lists: Vec<i64> = (0..1 + self.rng.below(4)).map(|_| self.draw_list()).collect();
                lists.sort_unstable();
                lists.dedup();
                let value = self.reads(&lists);
                self.note(client, OpType::Invoke, value);
                Doing::Reading(self.store().0.snapshot(), lists, Vec::new())
            }
            4..=7 => {
                let count = 1 + self.rng.below(4) as i64;
                let elements = (0..count).map(|i| (self.draw_list(), self.appended + i)).collect::<Vec<_>>();
                self.appended += count;
                let value = self.appends(&elements);
                self.note(client, OpType::Invoke, value);
                Doing::Appending(elements)
            }
            8 => {
                let first = self.adds.iter().map(|add| add.elements.len() as u64).sum::<u64>();
                let elements = (first..=first + self.rng.below(4)).collect();
                self.adds.push(Add { asked: self.now, fate: Fate::Unknown, elements });
                Doing::Adding(self.adds.len() - 1)
            }
            _ => {
                let range = Box::new(self.store().1.set.iter());
                let scan = Scan { asked: self.now, done: 0, elements: Vec::new() };
                Doing::Scanning(range, self.rng.chance(50), scan)
            }
        };
        self.clients[client].doing = doing;
        Ok(())
    }

    fn read(
        &mut self,
        client: usize,
        snapshot: Snapshot,
        mut left: Vec<i64>,
        mut seen: Vec<Mop>,
    ) -> Result<(), String> {
        let list = *left.last().expect("a list to read");
        let late = self.canary == Some(Canary::LateSnapshot);
        let snapshot = if late { self.store().0.snapshot() } else { snapshot };
        let found = self.store().1.of(list).at(&snapshot).get(list_key(list));
        match found {
            Ok(value) => {
                left.pop();
                let bytes = value.as_deref().unwrap_or(&[]);
                let (words, rest) = bytes.as_chunks::<8>();
                if !rest.is_empty() {
                    return Err(format!("list {list} has {} bytes", bytes.len()));
                }
                let elements = words.iter().map(|word| self.names.intern(Scalar::Int(i64::from_le_bytes(*word))));
                let value = ReadValue::List(elements.collect());
                seen.push(Mop::Read { key: self.names.intern(Scalar::Int(list)), value });
            }
            Err(e) => {
                self.clients[client].doing = Doing::Reading(snapshot, left, seen);
                self.leave(client);
                return self.suffer(&e).map(|_| ());
            }
        }
        if left.is_empty() {
            self.note(client, OpType::Ok, seen);
        } else {
            self.clients[client].doing = Doing::Reading(snapshot, left, seen);
        }
        Ok(())
    }

    fn durability(&mut self) -> Durability {
        if self.cuts || self.rng.chance(20) { Durability::Synced } else { Durability::Buffered }
    }

    fn append(&mut self, client: usize, elements: &[(i64, i64)]) -> Result<(), String> {
        let durability = self.durability();
        let (store, spaces) = self.store();
        let mut batch = store.batch();
        for (list, element) in elements {
            batch.merge(spaces.of(*list), list_key(*list), element.to_le_bytes());
        }
        let committed = batch.commit(durability);
        // The batch holds a handle of the store, and an error leads to a reopening of the store.
        drop(batch);
        let kind = match committed {
            Ok(()) if self.canary == Some(Canary::CommittedAnyway) && self.rng.chance(1) => OpType::Fail,
            Ok(()) => OpType::Ok,
            Err(e) if self.suffer(&e)? => OpType::Fail,
            Err(_) => OpType::Info,
        };
        let value = self.appends(elements);
        self.note(client, kind, value);
        Ok(())
    }

    fn add(&mut self, add: usize) -> Result<(), String> {
        let durability = self.durability();
        let (store, spaces) = self.store();
        let mut batch = store.batch();
        self.adds[add]
            .elements
            .iter()
            .for_each(|element| batch.put(&spaces.set, set_key(*element), element.to_le_bytes()));
        let committed = batch.commit(durability);
        drop(batch);
        let fate = match committed {
            Ok(()) => Fate::Added(self.now),
            Err(e) if self.suffer(&e)? => Fate::Refused,
            Err(_) => Fate::Unknown,
        };
        self.adds[add].fate = fate;
        self.tally.runs += 1;
        self.tally.count("set transactions", 1);
        Ok(())
    }

    /// Continues a scan of the set. A scan that fails is not recorded.
    fn scan(&mut self, client: usize, mut range: Box<Range>, reverse: bool, mut scan: Scan) -> Result<(), String> {
        for _ in 0..1 + self.rng.below(60) {
            match if reverse { range.next_back() } else { range.next() } {
                Some(Ok((_, value))) => {
                    let element = value[..].try_into().map_err(|_| format!("an element of {} bytes", value.len()))?;
                    scan.elements.push(u64::from_le_bytes(element));
                }
                Some(Err(e)) => {
                    drop(range);
                    return self.suffer(&e).map(|_| ());
                }
                None => {
                    scan.done = self.now;
                    if self.canary == Some(Canary::BlindScan) && self.rng.chance(10) {
                        scan.elements.pop();
                    }
                    self.scans.push(scan);
                    self.tally.runs += 1;
                    self.tally.count("set transactions", 1);
                    return Ok(());
                }
            }
        }
        self.clients[client].doing = Doing::Scanning(range, reverse, scan);
        Ok(())
    }

    // ---- the end ----

    /// Reads all lists and the set once more at the end.
    fn read_all(&mut self) -> Result<(), String> {
        let lists: Vec<i64> = (0..self.appended / LONGEST as i64 + LISTS as i64).collect();
        for lists in lists.chunks(8) {
            let value = self.reads(lists);
            self.note(0, OpType::Invoke, value);
            self.now += 1;
            let snapshot = self.store().0.snapshot();
            self.clients[0].doing = Doing::Reading(snapshot, lists.to_vec(), Vec::new());
            while matches!(self.clients[0].doing, Doing::Reading(..)) {
                self.advance(0)?;
            }
        }
        let range = Box::new(self.store().1.set.iter());
        self.clients[0].doing = Doing::Scanning(range, false, Scan { asked: self.now, done: 0, elements: Vec::new() });
        while matches!(self.clients[0].doing, Doing::Scanning(..)) {
            self.now += 1;
            self.advance(0)?;
        }
        Ok(())
    }

    fn judge(self) -> Tally {
        let mut tally = self.tally;
        if let Err(wrong) = sets::check(&self.adds, &self.scans) {
            tally.fail(0, format!("the set: {wrong:?}"));
        }
        let model = match self.isolation {
            Isolation::Serializable => SERIALISABLE,
            Isolation::Snapshot => SNAPSHOT,
        };
        tally.failures.extend(judge(&History::from_ops(self.ops, self.names), model));
        tally
    }
}

/// Checks a history of lists with `adya` against a model. Returns the anomalies as failures.
fn judge(history: &History, model: &str) -> Vec<Failure> {
    let opts = Opts { models: vec![model.into()], ..Opts::default() };
    let report = adya::check(history, Workload::ListAppend, &opts);
    if report.valid == Valid::True {
        return Vec::new();
    }
    // Any result other than "valid" is a failure, even if `adya` could not decide.
    let words: BTreeMap<_, _> = report.anomalies.iter().map(|(kind, found)| (kind, found.first())).collect();
    let failure = |kind: &str, explanation: &str| Failure {
        seed: 0,
        what: format!("the lists: {kind}"),
        history: explanation.lines().map(str::to_owned).collect(),
        steps: None,
    };
    words.into_iter().map(|(kind, first)| failure(kind, first.map_or("", |first| &first.explanation))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Under snapshot isolation the store permits write skew, and the checker finds it. It finds nothing that snapshot
    /// isolation forbids.
    #[test]
    fn the_checker_finds_write_skew_under_snapshot_isolation() {
        let bench = Bench::new(23, None).and_then(Bench::run).expect("a run");
        assert_eq!(bench.isolation, Isolation::Snapshot);
        println!("{}", bench.tally.words());
        let history = History::from_ops(bench.ops, bench.names);
        let whats = |model| judge(&history, model).into_iter().map(|failure| failure.what).collect::<Vec<_>>();
        assert_eq!(whats(SNAPSHOT), [""; 0]);
        for model in ["serializable", SERIALISABLE] {
            println!("{model}: {:?}", whats(model));
            assert!(whats(model).iter().any(|what| what.contains("G2-item") || what.contains("write-skew")));
        }
    }
}
