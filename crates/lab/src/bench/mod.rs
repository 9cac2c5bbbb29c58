//! The bench: runs workloads on one engine, one after the other. The results of each workload are one [`Line`].
//!
//! ```text
//!   Plan ─▶ for each workload: prepare (fresh store, load, reopen cold, warm up)
//!                              clients: stream → engine → latencies, checks        one thread each
//!                              sampler: debt, memory, progress, control            every 100 ms, from the caller's thread
//!                              settle, figures ─▶ Line ─▶ Observer
//! ```
//!
//! Latencies cover the operations alone: keys and values are generated before an operation, and answers are checked
//! after it. The rate of a workload, in contrast, includes the time for generating and for checking. This is the same
//! for all engines. A *closed loop* (the default) starts an operation when the previous operation has ended. An *open
//! loop* ([`Plan::rate`]) starts an operation when it is due, and measures the latency from the due time. So the
//! latency includes the time that an operation waits because earlier operations have stalled.

mod client;
mod control;
mod indexed;
pub mod recorder;
pub mod system;
#[cfg(test)]
mod tests;
mod transactional;
mod verify;
mod watch;

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};

use self::client::{Client, Outcome, Shared};
use self::control::Control;
use self::recorder::{BUCKET_MS, Recorder};
pub use self::watch::Tick;
use self::watch::{Seen, Watch};
use crate::engine::{Engine, Failure, Figures, Mode, Opener, Result, Setup};
use crate::line::{Asked, Line, Series};
use crate::record::{MIN_KEY, Shape, mix};
use crate::workload::{DataSet, Dist, Kind, Leaves, Start, Stream, StreamPlan, Transactional, Workload, World};

/// The state of the caches when a workload starts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Cache {
    /// The caches stay as the previous workload left them.
    #[default]
    AsIs,
    /// The store was closed and reopened, and its files were dropped from the page cache.
    Cold,
    /// Before the measurement, the same kinds of operations were run for [`Plan::warm_up`], with another seed.
    Warm,
}

impl Cache {
    /// The name in a line of results and on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Cache::AsIs => "as-is",
            Cache::Cold => "cold",
            Cache::Warm => "warm",
        }
    }
}

/// The workloads and all settings of a bench.
#[derive(Clone, Debug)]
pub struct Plan {
    /// The workloads, in the order in which they run.
    pub workloads: Vec<&'static Workload>,
    /// Rows of a load.
    pub records: u64,
    /// Total operations of all threads, for workloads that do not process all records ([`Workload::is_whole`]). The
    /// default is the number of records.
    pub ops: Option<u64>,
    /// Seconds after which a workload ends. A workload that processes all records ignores this limit.
    pub seconds: Option<f64>,
    /// Client threads, at most 255.
    pub threads: usize,
    /// The settings for opening the engine.
    pub setup: Setup,
    /// The distribution that replaces the default distribution of each workload.
    pub dist: Option<Dist>,
    /// Bytes of a key.
    pub key_len: usize,
    /// Bytes of a value.
    pub value_len: usize,
    /// The share of a value that is zeros, in percent. The zeros make the value compressible.
    pub zeros: f64,
    /// Seed of all random choices.
    pub seed: u64,
    /// Operations per second that all threads together issue (open loop). With `None`, each thread issues an operation
    /// as soon as its previous operation has ended (closed loop).
    pub rate: Option<f64>,
    /// The state of the caches.
    pub cache: Cache,
    /// Seconds of the warm-up for [`Cache::Warm`].
    pub warm_up: f64,
    /// The share of the insertions of `load-mixed` that are in key order, in percent.
    pub seq_share: f64,
    /// The number of customers of the hot set of `smallbank`.
    pub hot: u64,
    /// The number of warehouses of `neworder` and `payment`.
    pub warehouses: u64,
    /// The limit of the memory cgroup of the process, if the process has one. The limit is only printed.
    pub memory_limit: Option<u64>,
    /// The existing directory in which stores are created.
    pub directory: PathBuf,
    /// If PandoDB gets the memory that a rival really took: the rival and this memory. The memory replaces the budget of
    /// `setup`, whereas the lines of results still have the budget of `setup`, so that a report shows them next to the
    /// lines of the rival.
    pub matched: Option<Matched>,
}

/// The memory that a rival took, as the budget of PandoDB.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Matched {
    /// The name of the rival.
    pub rival: String,
    /// The memory in bytes.
    pub memory: usize,
}

/// The maximum of every setting that is given in seconds.
const LONGEST: f64 = 1e9;
/// The maximum number of rows and operations.
const MOST: u64 = 1 << 40;
const MOST_WAREHOUSES: u64 = 1 << 16;
const LONGEST_VALUE: usize = 64 << 20;
/// The maximum number of threads, because each thread may have a queue, and the number of a queue has one byte.
pub const MOST_THREADS: usize = 255;

impl Plan {
    /// Checks that all settings are within bounds.
    ///
    /// # Errors
    /// Names the setting and its bounds.
    pub fn check(&self) -> Result<()> {
        let seconds = |time: f64| (0.0..=LONGEST).contains(&time);
        let complaint = if !(1..=MOST).contains(&self.records) || self.ops.is_some_and(|ops| ops > MOST) {
            format!("records must be 1 to {MOST}, operations at most {MOST}")
        } else if !(1..=MOST_THREADS).contains(&self.threads) {
            format!("threads must be 1 to {MOST_THREADS}")
        } else if self.setup.deterministic && self.threads > 1 {
            "a deterministic bench must have one thread".to_owned()
        } else if !seconds(self.seconds.unwrap_or(0.0)) || !seconds(self.warm_up) {
            format!("seconds must be 0 to {LONGEST}")
        } else if self.rate.is_some_and(|rate| !(1e-3..=1e12).contains(&rate)) {
            "the rate must be 0.001 to 1e12 operations a second".to_owned()
        } else if !(0.0..=100.0).contains(&self.seq_share) {
            "the share in key order must be a percentage from 0 to 100".to_owned()
        } else if !(1..=MOST).contains(&self.hot) || !(1..=MOST_WAREHOUSES).contains(&self.warehouses) {
            format!("the hot set must have 1 to {MOST} customers, and there must be 1 to {MOST_WAREHOUSES} warehouses")
        } else if !(0.0..=100.0).contains(&self.zeros) {
            "the share of zeros must be a percentage from 0 to 100".to_owned()
        } else if self.key_len < MIN_KEY || self.key_len > pandodb::MAX_KEY {
            format!("keys must have {MIN_KEY} to {} bytes", pandodb::MAX_KEY)
        } else if !(1..=LONGEST_VALUE).contains(&self.value_len) {
            format!("values must have 1 to {LONGEST_VALUE} bytes, since an empty value cannot be checked")
        } else {
            return Ok(());
        };
        Err(complaint.into())
    }
}

impl Default for Plan {
    fn default() -> Plan {
        Plan {
            workloads: Vec::new(),
            records: 1_000_000,
            ops: None,
            seconds: None,
            threads: 1,
            setup: Setup { memory_budget: 256 << 20, mode: Mode::Product, deterministic: false },
            dist: None,
            key_len: 24,
            value_len: 100,
            zeros: 0.0,
            seed: 1,
            rate: None,
            cache: Cache::AsIs,
            warm_up: 5.0,
            seq_share: 50.0,
            hot: 100,
            warehouses: 10,
            memory_limit: None,
            directory: PathBuf::from("."),
            matched: None,
        }
    }
}

impl Plan {
    /// The settings that a line of results of this workload has.
    pub fn asked(&self, workload: &Workload) -> Asked {
        let shape = self.shape(workload.set);
        let (key_len, value_len) = shape.longest();
        Asked {
            records: self.records_of(workload.set, &shape),
            key_len,
            value_len,
            zeros: self.zeros,
            dist: self.dist.unwrap_or(workload.dist).name().to_owned(),
            seed: self.seed,
            memory_budget: self.setup.memory_budget as u64,
            cache: self.cache.name().to_owned(),
            rate: self.rate.unwrap_or(0.0),
            seq_share: if workload.kind == Kind::LoadMixed { self.seq_share } else { 0.0 },
            deterministic: self.setup.deterministic,
            memory_limit: self.memory_limit.unwrap_or(0),
            hot: if workload.kind == Kind::Transactions(Transactional::SmallBank) { self.hot } else { 0 },
            warehouses: match workload.kind {
                Kind::Transactions(kind) if kind.has_warehouses() => self.warehouses,
                _ => 0,
            },
        }
    }

    /// The shape of the records of a data set.
    fn shape(&self, set: DataSet) -> Shape {
        set.shape(self.key_len, self.value_len, self.zeros)
    }

    /// The number of records of a data set: about as many bytes as the main set has.
    fn records_of(&self, set: DataSet, shape: &Shape) -> u64 {
        set.records(shape, self.records, (self.key_len + self.value_len) as u64)
    }

    /// The settings for opening the engine.
    fn opening(&self) -> Setup {
        let memory_budget = self.matched.as_ref().map_or(self.setup.memory_budget, |matched| matched.memory);
        Setup { memory_budget, ..self.setup.clone() }
    }
}

/// Receives the progress and the results of a bench. For example, an observer may be a progress bar or write lines to a
/// file.
pub trait Observer {
    /// A phase that is not measured starts: loading, reopening or settling.
    fn prepares(&mut self, _what: &str) {}
    /// A workload starts.
    fn starts(&mut self, _workload: &Workload) {}
    /// Reports the progress. Called every 100 ms.
    fn tick(&mut self, _tick: &Tick) {}
    /// A workload has ended; `line` has its results.
    fn ends(&mut self, line: &Line);
}

/// Collects all lines of results.
impl Observer for Vec<Line> {
    fn ends(&mut self, line: &Line) {
        self.push(line.clone());
    }
}

/// An error of the engine that ended a bench.
#[derive(Debug)]
pub struct Stopped {
    /// The workload.
    pub workload: &'static str,
    /// The engine.
    pub engine: String,
    /// The error.
    pub source: Failure,
}

impl std::fmt::Display for Stopped {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} of {}: {}", self.workload, self.engine, self.source)
    }
}

impl std::error::Error for Stopped {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        Some(&*self.source)
    }
}

/// Measures all workloads of a plan on an engine.
///
/// # Errors
/// [`Stopped`], with the engine's first error. The observer has received the lines of earlier workloads.
pub fn run(plan: &Plan, opener: &dyn Opener, observer: &mut dyn Observer) -> Result<()> {
    plan.check()?;
    let mut world = World::new(DataSet::Main, plan.records);
    world.holds = None;
    let mut bench = Bench {
        plan,
        opener,
        shape: plan.shape(DataSet::Main),
        records: plan.records,
        store: plan.directory.join(opener.name()),
        engine: None,
        world,
        lab_bytes: 0,
        recorders: RefCell::default(),
    };
    for workload in &plan.workloads {
        let failed = |source| Stopped { workload: workload.name, engine: opener.name(), source };
        bench.measure(workload, observer).map_err(failed)?;
    }
    match bench.engine.take() {
        Some(engine) => engine.close(),
        None => Ok(()),
    }
}

struct Bench<'a> {
    plan: &'a Plan,
    opener: &'a dyn Opener,
    /// The shape of the records of the current data set.
    shape: Shape,
    /// The number of records of the current data set.
    records: u64,
    store: PathBuf,
    engine: Option<Box<dyn Engine>>,
    world: World,
    /// The resident size of the process, in bytes, before the first store was opened.
    lab_bytes: u64,
    /// Empty recorders of clients that have ended. They are not freed, because the allocator would keep their memory,
    /// and the lab would count this memory as memory of the store.
    recorders: RefCell<Vec<Recorder>>,
}

/// A reading of all counters, before or after a workload.
struct Reading {
    inside: Figures,
    device: Option<(u64, u64)>,
    process: BTreeMap<String, u64>,
    processor: Duration,
}

impl Reading {
    fn take(engine: &dyn Engine) -> Result<Reading> {
        Ok(Reading {
            inside: engine.figures()?,
            device: engine.device_bytes(),
            process: system::process_io(),
            processor: system::processor_time(),
        })
    }

    /// The increase of all counters since the reading `before`.
    fn since(self, before: &Reading) -> Reading {
        let less = |after: BTreeMap<String, u64>, before: &BTreeMap<String, u64>| {
            let less = |(name, n): (String, u64)| {
                let n = n.saturating_sub(before.get(&name).copied().unwrap_or(0));
                (name, n)
            };
            after.into_iter().map(less).collect()
        };
        let counters = less(self.inside.counters, &before.inside.counters);
        let device = self.device.zip(before.device);
        Reading {
            inside: Figures { counters, gauges: self.inside.gauges },
            device: device.map(|(after, before)| (after.0 - before.0, after.1 - before.1)),
            process: less(self.process, &before.process),
            processor: self.processor.saturating_sub(before.processor),
        }
    }

    /// Bytes (read, written) on the device.
    fn bytes(&self) -> (u64, u64) {
        let of = |name: &str| self.process.get(name).copied().unwrap_or(0);
        self.device.unwrap_or((of("read_bytes"), of("write_bytes")))
    }
}

/// The results of the clients and the sampler.
struct Measured {
    clients: Vec<Outcome>,
    streams: Vec<Stream>,
    /// The digest of the operations of all threads.
    digest: u64,
    control: Duration,
    seen: Seen,
}

impl Bench<'_> {
    /// Prepares the store for a workload, runs the workload, and passes the line of results to the observer.
    fn measure(&mut self, workload: &'static Workload, observer: &mut dyn Observer) -> Result<()> {
        if !self.prepare(workload, observer)? {
            return Ok(());
        }
        let engine = self.engine.as_deref().expect("prepared");
        if let Some(why) = refusal(workload, engine, &self.shape) {
            observer.ends(&Line { refused: Some(why), ..self.line(workload, engine) });
            return Ok(());
        }
        // A workload that needs a new store has no warm-up, because the warm-up would write to the store.
        if self.plan.cache == Cache::Warm && workload.start != Start::Fresh && !workload.is_whole() {
            observer.prepares("warm up");
            let seconds = Some(self.plan.warm_up);
            let warm = self.play(workload, engine, !self.plan.seed, seconds, &mut |_| {})?;
            engine.settle()?;
            self.keep_account(workload, &warm);
            self.keep_recorders(warm);
        }
        let engine = self.engine.as_deref().expect("prepared");
        if matches!(workload.kind, Kind::Transactions(_)) {
            observer.prepares("load");
        }
        let program = self.load_program(workload, engine)?;
        observer.starts(workload);
        let mut line = self.line(workload, engine);
        system::reset_peak_rss();
        let before = Reading::take(engine)?;
        let started = Instant::now();
        let seconds = if workload.is_whole() { None } else { self.plan.seconds };
        let mut tick = |tick: &Tick| observer.tick(tick);
        let measured = match &program {
            Some(program) => self.play_program(program, engine, seconds, &mut tick)?,
            None => self.play(workload, engine, self.plan.seed, seconds, &mut tick)?,
        };
        let mut recorder = Recorder::default();
        fill(&mut line, &measured, &mut recorder);
        if workload.writes() {
            observer.prepares("pay what is owed");
            engine.settle()?;
            line.settled_seconds = started.elapsed().as_secs_f64();
        }
        let reading = Reading::take(engine)?.since(&before);
        let user_bytes: u64 = measured.clients.iter().map(|client| client.user_bytes).sum();
        self.keep_account(workload, &measured);
        let engine = self.engine.as_deref().expect("prepared");
        let contents = (&self.shape, &self.world, self.records);
        let (checked, wrong) = verify::check(workload, engine, &measured, contents)?;
        (line.checked_answers, line.wrong_answers) = (line.checked_answers + checked, line.wrong_answers + wrong);
        let complaints = match &program {
            Some(program) => program.finish(&mut line, &measured, engine)?,
            None => Vec::new(),
        };
        let (read, written) = reading.bytes();
        line.write_amplification = ratio(written, user_bytes);
        line.read_bytes_per_op = ratio(read, line.ops);
        let live = program.map_or_else(|| self.world.live_bytes(&self.shape), |program| program.live_bytes(&measured));
        line.space_amplification = ratio(system::disk_bytes(&self.store)?, live);
        line.peak_rss_bytes = system::peak_rss_bytes();
        let recorders = measured.clients.iter().map(|client| &client.recorder).chain([&recorder]);
        line.lab_bytes = self.lab_bytes + recorders.map(Recorder::bytes).sum::<u64>();
        line.cpu_s_per_million = reading.processor.as_secs_f64() * 1e6 / line.ops.max(1) as f64;
        (line.process_io, line.inside) = (reading.process, reading.inside);
        self.keep_recorders(measured);
        observer.ends(&line);
        if complaints.is_empty() { Ok(()) } else { Err(complaints.join("; ").into()) }
    }

    /// Keeps the recorders of clients that have ended, so that the next clients can reuse them.
    fn keep_recorders(&self, measured: Measured) {
        self.recorders.borrow_mut().extend(measured.clients.into_iter().map(|mut client| {
            client.recorder.clear();
            client.recorder
        }));
    }

    /// Brings the store to the contents that the workload needs, and the caches to the state that the plan requests.
    /// Returns whether this was possible; if not, the observer has received the refusal.
    fn prepare(&mut self, workload: &'static Workload, observer: &mut dyn Observer) -> Result<bool> {
        if workload.start == Start::Fresh {
            return self.start_afresh(workload.set).map(|()| true);
        }
        if self.world.holds != Some(workload.start) || self.world.set != workload.set {
            let before = match workload.start {
                Start::Thinned => Workload::find("delete").expect("in the catalogue"),
                _ => workload.loader(),
            };
            self.measure(before, observer)?;
            if self.world.holds != Some(workload.start) {
                // The engine cannot load the rows, so it cannot run the workload either.
                let engine = self.engine.as_deref().expect("prepared");
                let why = refusal(before, engine, &self.shape).unwrap_or_else(|| "the rows could not be loaded".into());
                observer.ends(&Line { refused: Some(why), ..self.line(workload, engine) });
                return Ok(false);
            }
        }
        if self.plan.cache == Cache::Cold && self.opener.survives_close() {
            observer.prepares("reopen, drop the page cache");
            if let Some(engine) = self.engine.take() {
                engine.close()?;
            }
            system::drop_page_cache(&self.store)?;
            self.engine = Some(self.opener.open(&self.store, &self.plan.opening())?);
        }
        Ok(true)
    }

    fn start_afresh(&mut self, set: DataSet) -> Result<()> {
        if let Some(engine) = self.engine.take() {
            engine.close()?;
        }
        remove(&self.store)?;
        let failed = |e| format!("cannot create {}: {e}", self.store.display());
        std::fs::create_dir_all(&self.store).map_err(failed)?;
        std::fs::write(mark_of(&self.store), "a store of the bench; it may be removed\n").map_err(failed)?;
        if set != self.world.set {
            self.shape = self.plan.shape(set);
            self.records = self.plan.records_of(set, &self.shape);
        }
        self.world = World::new(set, self.records);
        // This size is measured only before the first store is opened. Later, the allocator may still hold memory of an
        // earlier store.
        if self.lab_bytes == 0 {
            self.lab_bytes = system::rss_bytes();
        }
        self.engine = Some(self.opener.open(&self.store, &self.plan.opening())?);
        Ok(())
    }

    /// Runs the clients until they end or the time limit is reached. Samples the state of the engine while the clients
    /// run.
    fn play(
        &self,
        workload: &'static Workload,
        engine: &dyn Engine,
        seed: u64,
        seconds: Option<f64>,
        tick: &mut dyn FnMut(&Tick),
    ) -> Result<Measured> {
        let plan = self.plan;
        let threads = plan.threads.max(1) as u64;
        let (world, records) = (&self.world, self.records);
        let ops = plan.ops.unwrap_or(records);
        let stream_plan = |thread| StreamPlan {
            workload,
            dist: plan.dist.unwrap_or(workload.dist),
            seed,
            threads,
            thread,
            ops,
            records,
            rows: world.rows,
            next_row: world.next_row,
            seq_share: plan.seq_share,
        };
        let digest = (0..threads).fold(0, |sum, thread| mix(sum ^ Stream::digest_of(stream_plan(thread))));
        // Workloads that process all records only prepare the store for other workloads, so the requested rate does not
        // apply to them.
        let rate = plan.rate.filter(|_| !workload.is_whole()).unwrap_or(0.0) / threads as f64;
        let client = |shared: &Shared<'_>, thread: u64, recorder: Recorder| {
            let (turn, mut stream) = (thread as f64 / threads as f64, Stream::new(stream_plan(thread)));
            let outcome = Client::new(shared, engine.session()?, turn, recorder).run(&mut stream)?;
            Ok((outcome, stream))
        };
        let of = ops.max(if workload.is_whole() { self.records } else { 0 });
        let (results, control, seen) = self.drive(engine, (of, seconds, rate), tick, &client)?;
        let (clients, streams) = results.into_iter().unzip();
        Ok(Measured { clients, streams, digest, control, seen })
    }

    /// Runs `client` on each thread, and samples the engine meanwhile, until all clients have ended. Sets the stop flag of
    /// the clients after `seconds`, or if a client fails. `of` is the number of operations for the progress, and `rate` is
    /// the rate of one thread.
    fn drive<T: Send>(
        &self,
        engine: &dyn Engine,
        (of, seconds, rate): (u64, Option<f64>, f64),
        tick: &mut dyn FnMut(&Tick),
        client: &(dyn Fn(&Shared<'_>, u64, Recorder) -> Result<T> + Sync),
    ) -> Result<(Vec<T>, Duration, Seen)> {
        let threads = self.plan.threads.max(1);
        let (stop, done, slowest) = (AtomicBool::new(false), AtomicU64::new(0), AtomicU64::new(0));
        let (shape, world, records, started) = (&self.shape, &self.world, self.records, Instant::now());
        let (stop, done, slowest) = (&stop, &done, &slowest);
        let shared = Shared { shape, world, records, threads, started, stop, done, slowest, rate };
        let control = Control::start();
        let mut watch = Watch::new(engine, &shared, of, seconds);
        let results = std::thread::scope(|scope| {
            let clients: Vec<_> = (0..threads as u64)
                .map(|thread| {
                    let (shared, recorder) = (&shared, self.recorders.borrow_mut().pop().unwrap_or_default());
                    scope.spawn(move || {
                        let result = client(shared, thread, recorder);
                        if result.is_err() {
                            shared.stop.store(true, Relaxed);
                        }
                        result
                    })
                })
                .collect();
            watch.run(|| clients.iter().all(|client| client.is_finished()), tick);
            clients.into_iter().map(|client| client.join().map_err(|_| "a client panicked")).collect::<Vec<_>>()
        });
        let (control, seen) = (control.stop(), watch.seen);
        let results = results.into_iter().map(|result| result?).collect::<Result<Vec<T>>>()?;
        Ok((results, control, seen))
    }

    /// Updates the expected contents of the store.
    fn keep_account(&mut self, workload: &Workload, measured: &Measured) {
        let threads = measured.streams.len() as u64;
        let inserted = || measured.streams.iter().map(Stream::inserted);
        let world = &mut self.world;
        let born: i64 = measured.clients.iter().map(|client| client.born).sum();
        world.live = world.live.saturating_add_signed(born);
        match workload.kind {
            Kind::Load | Kind::LoadSortedRows | Kind::LoadPoints | Kind::LoadIndexed => {
                (world.rows, world.next_row) = (self.records, self.records);
            }
            Kind::Thin => world.thinned = self.records,
            Kind::Mix(_) => {
                // All rows up to the last row of the slowest thread exist. New rows get numbers above the last row of
                // the fastest thread.
                let (least, most) = (inserted().min().unwrap_or(0), inserted().max().unwrap_or(0));
                if world.rows == world.next_row {
                    world.rows = world.next_row + least * threads;
                }
                world.next_row += most * threads;
            }
            _ => {}
        }
        world.holds = match workload.leaves {
            Leaves::Rows => Some(Start::Rows),
            Leaves::Thinned => Some(Start::Thinned),
            Leaves::Other => None,
        };
    }

    /// A line without results.
    fn line(&self, workload: &Workload, engine: &dyn Engine) -> Line {
        let plan = self.plan;
        Line {
            workload: workload.name.to_owned(),
            engine: self.opener.engine(),
            index: self.opener.index(),
            mode: plan.setup.mode,
            apart: !self.opener.survives_kill(),
            threads: plan.threads,
            asked: plan.asked(workload),
            matched: plan.matched.as_ref().map_or(String::new(), |matched| matched.rival.clone()),
            given_memory: plan.matched.as_ref().map_or(0, |matched| matched.memory as u64),
            configuration: engine.configuration().into_iter().collect(),
            commit: system::commit().to_owned(),
            at: SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_secs()),
            machine: system::machine(&plan.directory),
            ..Line::default()
        }
    }
}

/// Fills in the results of the clients and the sampler.
fn fill(line: &mut Line, measured: &Measured, recorder: &mut Recorder) {
    let clients = || measured.clients.iter();
    clients().for_each(|client| recorder.add(&client.recorder));
    line.ops = clients().map(|client| client.ops).sum();
    line.seconds = clients().map(|client| client.end).max().unwrap_or_default().as_secs_f64();
    line.ops_per_s = if line.seconds > 0.0 { line.ops as f64 / line.seconds } else { 0.0 };
    line.latency = recorder.all();
    line.latency_by = recorder.by_class().map(|(name, figures)| (name.to_owned(), figures)).collect();
    line.control_max_us = measured.control.as_secs_f64() * 1e6;
    line.checked_answers = clients().map(|client| client.checked).sum();
    line.wrong_answers = clients().map(|client| client.wrong).sum();
    line.found = clients().map(|client| client.found).sum();
    line.stream = format!("{:016x}", measured.digest);
    line.series = Series {
        bucket_ms: BUCKET_MS,
        ops: recorder.ops(),
        max_us: recorder.slowest_us(),
        debt_bytes: measured.seen.debt_bytes.clone(),
        rss_bytes: measured.seen.rss_bytes.clone(),
    };
}

/// The reason why an engine cannot run a workload, or `None`.
fn refusal(workload: &Workload, engine: &dyn Engine, shape: &Shape) -> Option<String> {
    if let Some(why) = workload.needs().iter().find_map(|need| engine.lacks(*need)) {
        return Some(why.to_owned());
    }
    let ((key, value), (most_key, most_value)) = (shape.longest(), engine.longest());
    let fits = key <= most_key && value <= most_value;
    (!fits)
        .then(|| format!("keys of {key} B and values of {value} B are over the limits {most_key} B and {most_value} B"))
}

fn ratio(of: u64, to: u64) -> f64 {
    if to == 0 { 0.0 } else { of as f64 / to as f64 }
}

/// Removes an engine's store from the directory of a plan, if the store exists.
///
/// # Errors
/// If the store cannot be removed, or was not created by a bench.
pub fn remove_store(directory: &Path, opener: &dyn Opener) -> Result<()> {
    remove(&directory.join(opener.name()))
}

/// The path of the file that marks a store as created by a bench. Only such stores are removed.
fn mark_of(store: &Path) -> PathBuf {
    store.with_extension("bench")
}

fn remove(store: &Path) -> Result<()> {
    if !store.exists() {
        return Ok(());
    }
    if !mark_of(store).exists() {
        return Err(format!(
            "{} exists and was not created by a bench; choose another directory for the store",
            store.display()
        )
        .into());
    }
    let failed = |e| format!("cannot remove {}: {e}", store.display());
    std::fs::remove_dir_all(store).map_err(failed)?;
    Ok(std::fs::remove_file(mark_of(store)).map_err(failed)?)
}
