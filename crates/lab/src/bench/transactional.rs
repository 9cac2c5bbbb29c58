//! Transactional workloads in the bench: loads the rows of a [`Program`], runs and times its workers, and compares the
//! sums in the store with the committed transactions.
//!
//! ```text
//!   load: rows in batches ─▶ settle ─▶ workers: draw, run (timed), draw, run … ─▶ settle ─▶ check of the sums
//! ```
//!
//! The latency of a transaction is the time from its first begin to its commit, with all attempts. A worker ends after
//! its share of the operations, if the plan has a number of operations or no time limit, or when the time is up. Steps
//! that found nothing to do are not counted.

use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use super::client::{Outcome, Shared};
use super::recorder::{OpClass, Recorder};
use super::watch::Tick;
use super::{Bench, Measured};
use crate::engine::{Engine, Need, Result, Session, Write};
use crate::line::{Line, TransactionFigures};
use crate::record::mix;
use crate::txn::{self, Program, Settings, Step, StepKind, Tally, Worker};
use crate::workload::{Kind, Transactional, Workload};

/// The number of rows of a batch of the load.
const BATCH: usize = 1000;
const MILLISECOND: Duration = Duration::from_millis(1);

/// A loaded program.
pub(super) struct Loaded {
    kind: Transactional,
    program: Box<dyn Program>,
    /// Bytes of the keys and values of the loaded rows.
    bytes: u64,
}

/// The counts of one thread.
#[derive(Clone, Copy, Debug, Default)]
pub struct Counts {
    committed: u64,
    rolled_back: u64,
    /// The attempts of all transactions, also of those that found nothing to do.
    attempts: u64,
    attempts_max: u64,
    /// The transactions with these attempts.
    transactions: u64,
    gave_up: u64,
    tally: Tally,
}

impl Counts {
    fn count(&mut self, step: &Step) {
        self.transactions += 1;
        self.attempts += step.attempts.count;
        self.attempts_max = self.attempts_max.max(step.attempts.count);
        self.gave_up += step.attempts.gave_up;
        if step.kind != StepKind::Idle {
            self.committed += u64::from(step.attempts.committed);
            self.rolled_back += u64::from(!step.attempts.committed);
        }
    }

    fn add(&mut self, other: &Counts) {
        self.committed += other.committed;
        self.rolled_back += other.rolled_back;
        self.attempts += other.attempts;
        self.attempts_max = self.attempts_max.max(other.attempts_max);
        self.transactions += other.transactions;
        self.gave_up += other.gave_up;
        self.tally.add(&other.tally);
    }
}

/// The sum of the counts of all threads.
fn total(measured: &Measured) -> Counts {
    let mut sum = Counts::default();
    measured.clients.iter().for_each(|client| sum.add(&client.transactions));
    sum
}

impl Bench<'_> {
    /// Loads the rows of a transactional workload into the empty store. Returns `None` for any other workload.
    pub(super) fn load_program(&self, workload: &Workload, engine: &dyn Engine) -> Result<Option<Loaded>> {
        let Kind::Transactions(kind) = workload.kind else { return Ok(None) };
        let settings = Settings {
            records: self.plan.records,
            dist: self.plan.dist.unwrap_or(workload.dist),
            seed: self.plan.seed,
            threads: self.plan.threads,
            value_len: self.plan.value_len,
            hot: self.plan.hot,
            warehouses: self.plan.warehouses,
            merges: engine.transactions().is_some_and(|capability| capability.merges),
        };
        let program = txn::open(kind, settings);
        let mut load =
            Load { session: engine.session()?, in_batches: engine.lacks(Need::Batch).is_none(), rows: vec![] };
        let mut bytes = 0;
        program.rows(&mut |key, value| {
            bytes += (key.len() + value.len()) as u64;
            load.put(key, value)
        })?;
        load.commit()?;
        drop(load);
        engine.settle()?;
        Ok(Some(Loaded { kind, program, bytes }))
    }

    /// Runs the workers until they end or the time limit is reached.
    pub(super) fn play_program(
        &self,
        loaded: &Loaded,
        engine: &dyn Engine,
        seconds: Option<f64>,
        tick: &mut dyn FnMut(&Tick),
    ) -> Result<Measured> {
        let threads = self.plan.threads.max(1) as u64;
        let ops = self.plan.ops.or(seconds.is_none().then_some(self.records));
        let share = |thread: u64| ops.map_or(u64::MAX, |ops| ops / threads + u64::from(thread < ops % threads));
        let client = |shared: &Shared<'_>, thread: u64, recorder: Recorder| {
            let (mut session, worker) = (engine.session()?, loaded.program.worker(thread as usize));
            run(shared, session.as_mut(), worker, share(thread), recorder)
        };
        let of = ops.unwrap_or(u64::MAX);
        let (clients, control, seen) = self.drive(engine, (of, seconds, 0.0), tick, &client)?;
        let name = loaded.kind.has_transactions() as u64 + self.plan.hot + (self.plan.warehouses << 32);
        let digest = mix(self.plan.seed ^ mix(threads ^ mix(self.records ^ mix(name))));
        Ok(Measured { clients, streams: Vec::new(), digest, control, seen })
    }
}

impl Loaded {
    /// Fills in the figures of the transactions. Compares the sums, and returns a complaint for each wrong sum.
    ///
    /// # Errors
    /// The engine's error.
    pub(super) fn finish(&self, line: &mut Line, measured: &Measured, engine: &dyn Engine) -> Result<Vec<String>> {
        let counts = total(measured);
        let capability = engine.transactions().filter(|_| self.kind.has_transactions());
        line.transactions = Some(TransactionFigures {
            isolation: capability.map_or("none", |capability| capability.isolation.name()).to_owned(),
            scheme: capability.map_or("none", |capability| capability.scheme.name()).to_owned(),
            committed: counts.committed,
            rolled_back: counts.rolled_back,
            attempts_mean: counts.attempts as f64 / counts.transactions.max(1) as f64,
            attempts_max: counts.attempts_max,
            conflicts: counts.attempts - counts.transactions,
            gave_up: counts.gave_up,
        });
        let complaints = self.program.check(engine.session()?.as_mut(), &counts.tally)?;
        (line.checked_answers, line.wrong_answers) =
            (line.checked_answers + 1, line.wrong_answers + complaints.len() as u64);
        Ok(complaints)
    }

    /// Bytes of the keys and values that are in the store after the workload.
    pub(super) fn live_bytes(&self, measured: &Measured) -> u64 {
        let born: i64 = measured.clients.iter().map(|client| client.born).sum();
        self.bytes.saturating_add_signed(born)
    }
}

/// Rows that are not yet written.
struct Load<'a> {
    session: Box<dyn Session + 'a>,
    in_batches: bool,
    rows: Vec<(Vec<u8>, Vec<u8>)>,
}

impl Load<'_> {
    fn put(&mut self, key: &[u8], value: &[u8]) -> Result<()> {
        if !self.in_batches {
            return self.session.put(key, value);
        }
        self.rows.push((key.to_vec(), value.to_vec()));
        if self.rows.len() == BATCH { self.commit() } else { Ok(()) }
    }

    fn commit(&mut self) -> Result<()> {
        if !self.rows.is_empty() {
            let writes: Vec<Write> = self.rows.iter().map(|(key, value)| Write::Put(key, value)).collect();
            self.session.write_batch(&writes)?;
            self.rows.clear();
        }
        Ok(())
    }
}

/// Runs the transactions of one thread.
fn run(
    shared: &Shared,
    session: &mut dyn Session,
    mut worker: Box<dyn Worker + '_>,
    share: u64,
    recorder: Recorder,
) -> Result<Outcome> {
    const REPORT: u64 = 64;
    let mut out = Outcome::of(recorder);
    let (mut steps, mut reported) = (0, 0);
    while steps < share && !shared.stop.load(Relaxed) {
        worker.draw();
        let began = Instant::now();
        let step = worker.run(session)?;
        let ended = Instant::now();
        out.user_bytes += step.written;
        out.born += step.born;
        if !matches!(step.kind, StepKind::Aside | StepKind::Waiting) {
            out.transactions.count(&step);
        }
        if matches!(step.kind, StepKind::Idle | StepKind::Waiting) {
            std::thread::yield_now();
            continue;
        }
        steps += 1;
        if step.kind == StepKind::Aside {
            continue;
        }
        let took = ended - began;
        out.end = ended - shared.started;
        out.recorder.record(if step.kind == StepKind::Read { OpClass::Read } else { OpClass::Write }, out.end, took);
        out.ops += 1;
        if took >= MILLISECOND {
            shared.slowest.fetch_max(took.as_nanos() as u64, Relaxed);
        }
        if took >= MILLISECOND || out.ops - reported >= REPORT {
            shared.done.fetch_add(out.ops - reported, Relaxed);
            reported = out.ops;
        }
    }
    out.transactions.tally = worker.tally();
    Ok(out)
}
