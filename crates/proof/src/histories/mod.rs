//! Isolation tests. A *white box* records what many threads do, together with the seqnos of their operations, and
//! replays this record on a model. A *black box* runs clients with crashes and faults, and checks only what the clients
//! observe.
//!
//! ```text
//!  seed ─▶ Plan ─▶ clients ┐                                    commits by seqno ─▶ model ─┐
//!                          ├─ MemDevice, directory, simulator ─▶ logs                      ├─ the same? ─▶ Tally
//!          disturber ──────┘   workers, tiny sizes              looks by point ────────────┘
//! ```
//!
//! | seeds, of 8 | box | store |
//! | --- | --- | --- |
//! | 0 to 3 | white | in memory, 2 to 4 clients, 1 to 4 workers |
//! | 4 | white | in memory, like 0 to 3, but with a clock so fast that scans often move to a newer view |
//! | 5 | white | in a directory |
//! | 6 | white | simulated device without workers: client threads do the background work; images of kills and power cuts are recovered while the clients run |
//! | 7 | black | simulated device, with faults and crashes; clients take turns on one thread |
//!
//! In one half of the white boxes, 60 % of the transactions are real ones, serialisable or under snapshot isolation. All
//! other transactions are an atomic batch after reads at a snapshot; of these, the last commit of a key wins.
//!
//! In a white box, the seed determines the operations but not how threads interleave. So the same seed may not
//! reproduce a failure; therefore the report of a failure contains the wrong read and the commits around the read. A
//! black box is deterministic.
//!
//! The checkers are tested too: with a hand-made history of each anomaly, and with clients that lie ([`Canary`]).

mod append;
pub mod check;
mod client;
mod disturber;
mod hasty;
pub mod log;
mod name;
mod serial;
pub mod sets;
#[cfg(test)]
mod tests;
mod transactor;
mod world;

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use pandodb::Isolation;

pub use self::client::Canary;
pub use self::world::{Place, Plan};

use self::check::Checker;
use self::client::Client;
use self::log::{Log, Outcome, txn};
use self::world::{World, read_whole};
use crate::drive::calmly;
use crate::indexes;
use crate::report::{Failure, Tally, Unit};

/// Runs a unit. Ignores a choice of steps, because this harness does not minimise failures.
pub fn run(unit: &Unit) -> Tally {
    let place = match unit.seed % 8 {
        7 => {
            let mut tally = append::run(unit.seed, None);
            indexes::count(indexes::kind(unit.seed), &mut tally);
            return tally;
        }
        6 => Place::Simulator,
        5 => Place::Directory,
        4 => Place::Hasty,
        _ => Place::Memory,
    };
    run_plan(&Plan::of(unit.seed, place), None)
}

/// Runs the black box of a seed with clients that lie. Only [`Canary::LateSnapshot`], [`Canary::CommittedAnyway`],
/// [`Canary::BlindScan`] and [`Canary::SkewedTransaction`] have an effect.
pub fn run_black_box(seed: u64, canary: Canary) -> Tally {
    append::run(seed, Some(canary))
}

/// Runs a plan, with clients that lie if `canary` is given.
pub fn run_plan(plan: &Plan, canary: Option<Canary>) -> Tally {
    let mut tally = Tally::default();
    match calmly(|| record_and_check(plan, canary, &mut tally)) {
        Ok(Ok(())) => {}
        Ok(Err(e)) => tally.fail(plan.seed, format!("the store failed although nothing was broken: {e}")),
        Err(panic) => tally.fail(plan.seed, panic),
    }
    indexes::count(plan.sizes.kind(), &mut tally);
    tally
}

fn record_and_check(plan: &Plan, canary: Option<Canary>, tally: &mut Tally) -> pandodb::Result<()> {
    let dir = tempfile::tempdir().expect("a directory for temporary files");
    let mut world = World::new(*plan, &dir.path().join("s"))?;
    let mut checker = Checker::new(plan.keys, world.visible());
    for window in 0..plan.windows {
        let mut logs = record(&world, window, canary);
        logs.push(control(&world, window, 0)?);
        count(tally, &logs);
        checker.window(&logs);
        if checker.findings.is_empty() && (window % 2 == 1 || window + 1 == plan.windows) {
            count_work(tally, &world)?;
            world.reopen()?;
            tally.count("reopenings", 1);
            checker.window(&[control(&world, window, 1)?]);
        }
        if !checker.findings.is_empty() {
            break;
        }
    }
    let to_failure = |finding: check::Finding| Failure {
        seed: plan.seed,
        what: format!("{finding}"),
        history: finding.history,
        steps: None,
    };
    let clean = checker.findings.is_empty();
    tally.failures.extend(checker.findings.into_iter().map(to_failure));
    if clean && !world.store.verify()?.is_clean() {
        tally.fail(plan.seed, "verify finds damage after the store was closed and opened".into());
    }
    Ok(())
}

/// Records one window: all clients and the disturber run concurrently.
fn record(world: &World, window: u64, canary: Option<Canary>) -> Vec<Log> {
    let (done, threads) = (AtomicBool::new(false), world.plan.threads);
    let first = window << 32;
    std::thread::scope(|scope| {
        let clients: Vec<_> = (0..threads)
            .map(|thread| {
                scope.spawn(move || {
                    let mut client = Client::new(world, thread, first, canary);
                    client.run(world.plan.transactions / threads);
                    client.log
                })
            })
            .collect();
        let done = &done;
        let disturber = scope.spawn(move || disturber::disturb(world, threads, first, done));
        let joined: Vec<_> = clients.into_iter().map(|client| client.join()).collect();
        done.store(true, Relaxed);
        let logs = joined.into_iter().chain([disturber.join()]);
        logs.map(|log| log.unwrap_or_else(|panic| std::panic::resume_unwind(panic))).collect()
    })
}

/// Reads everything while no other operation runs.
fn control(world: &World, window: u64, round: u64) -> pandodb::Result<Log> {
    let mut log = Log::default();
    let floor = world.clock.now();
    read_whole(&world.store, world.plan.keys, &mut log)?;
    let seqno = world.visible();
    log.look(txn(world.plan.threads + 1, 2 * window + round), floor, (seqno, seqno), 0);
    Ok(log)
}

/// Adds to the tally the background work that the store has done since it was opened.
fn count_work(tally: &mut Tally, world: &World) -> pandodb::Result<()> {
    let stats = world.store.stats()?;
    tally.count("checkpoints", stats.checkpoints);
    for keyspace in &stats.keyspaces {
        tally.count("compactions", keyspace.index.compactions);
        tally.count("flushes", keyspace.index.figure("flushes"));
        tally.count("splits", keyspace.index.figure("splits"));
    }
    Ok(())
}

fn count(tally: &mut Tally, logs: &[Log]) {
    for log in logs {
        let distinct = |txns: &mut dyn Iterator<Item = u64>| {
            let mut txns: Vec<u64> = txns.collect();
            txns.sort_unstable();
            txns.dedup();
            txns.len() as u64
        };
        let looks = log.looks.iter().map(|look| look.txn);
        tally.runs += distinct(&mut looks.chain(log.commits.iter().map(|commit| commit.txn)));
        let commits = |of: &dyn Fn(&log::Commit) -> bool| log.commits.iter().filter(|commit| of(commit)).count() as u64;
        tally.count("commits", commits(&|_| true));
        let committed = |isolation| commits(&|c| c.isolation == Some(isolation) && matches!(c.outcome, Outcome::At(_)));
        tally.count("serialisable commits", committed(Isolation::Serializable));
        tally.count("commits under snapshot isolation", committed(Isolation::Snapshot));
        tally.count("conflicts", commits(&|commit| matches!(commit.outcome, Outcome::Conflict(_))));
        tally.count("writes", log.writes.len() as u64);
        tally.count("reads", log.reads.len() as u64);
        tally.count("values seen", log.entries.len() as u64);
        tally.count("copies", log.copies);
        tally.count("crashes", log.crashes);
    }
}
