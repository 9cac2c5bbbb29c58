//! `pando demo`: loads real data, queries it, kills a load with SIGKILL and checks every result, in under a minute.
//!
//! 1. Load 231,083 flights as events. The same atomic batches update counters for each airport and each day, by merges
//!    that do not read the counters ([`ledger`]).
//! 2. Run a point query, a range query, a reverse query and a counter query ([`questions`]). The results must equal the
//!    results computed from the plain file ([`flights`]).
//! 3. Start a second load in a child process and kill it in the middle ([`child`]).
//! 4. Reopen. Every acknowledged flight must be in the store. The flights in the store must be the first flights of the
//!    file, without a gap. The counters must equal a recount of the events.
//! 5. Verify the store, print the figures, remove the store.

pub mod child;
mod flights;
mod ledger;
mod questions;
mod stage;

use std::{
    path::{Path, PathBuf},
    time::Instant,
};

use tempfile::TempDir;

use crate::{
    args::DemoArgs,
    failure::{Failure, Outcome},
    meter::{Latencies, peak_rss_bytes},
    output,
};
use flights::{FLIGHTS, Flight};
use ledger::Ledger;
use stage::{Figures, Stage};

/// The number of messages in the batch of one flight.
const MESSAGES_PER_FLIGHT: usize = 4;

/// Runs the demo. The exit code is 0 only if every check passed.
pub fn run(args: &DemoArgs) -> Outcome {
    let started = Instant::now();
    let place = Place::new(args.keep.as_deref())?;
    let mut stage = Stage::new(args.json);
    let flights = flights::read()?;
    let mut figures = first_load(&mut stage, &place.store, &flights)?;
    let acked = child::load_and_kill(&place.store)?;
    stage.say("kill", &format!("a second load, killed by SIGKILL after {} acknowledged flights", count(acked)))?;
    figures.reopen_ms = after_the_kill(&mut stage, &place.store, &flights, acked)?;
    figures.peak_rss_bytes = peak_rss_bytes();
    figures.seconds = started.elapsed().as_secs_f64();
    place.clean_up()?;
    stage.finish(&figures)
}

/// The location of the store, and the temporary directory to remove, if any.
struct Place {
    store: PathBuf,
    temporary: Option<TempDir>,
}

impl Place {
    fn new(keep: Option<&Path>) -> Outcome<Place> {
        if let Some(keep) = keep {
            let mut entries = std::fs::read_dir(keep).into_iter().flatten();
            if entries.next().is_some() || keep.is_file() {
                let keep = keep.display();
                return Err(Failure::Misuse(format!(
                    "`{keep}` is not empty; name a new or empty directory with --keep"
                )));
            }
            return Ok(Place { store: keep.to_owned(), temporary: None });
        }
        let made = tempfile::Builder::new().prefix("pando-demo-").tempdir();
        let temporary = made.map_err(|e| Failure::io("creating a temporary directory", &e))?;
        Ok(Place { store: temporary.path().join("flights"), temporary: Some(temporary) })
    }

    fn clean_up(self) -> Outcome {
        match self.temporary {
            Some(temporary) => temporary.close().map_err(|e| Failure::io("removing the temporary directory", &e)),
            None => Ok(()),
        }
    }
}

fn count(n: usize) -> String {
    output::count(n as u64)
}

/// Loads the flights, runs the queries, and measures. The figures that concern the kill are filled in later.
fn first_load(stage: &mut Stage, path: &Path, flights: &[Flight]) -> Outcome<Figures> {
    let ledger = Ledger::open(path)?;
    let mut latencies = Latencies::new();
    let started = Instant::now();
    for (index, flight) in flights.iter().enumerate() {
        ledger.record(flight, 1, index, &mut latencies)?;
    }
    let seconds = started.elapsed().as_secs_f64();
    stage.say("load", &format!("{} flights of early 2001, each an atomic batch with 3 counters", count(FLIGHTS)))?;
    questions::ask(stage, &ledger, flights)?;
    ledger.store.settle()?;
    let stats = ledger.store.stats()?;
    ledger.close()?;
    Ok(Figures {
        flights: FLIGHTS,
        messages: FLIGHTS * MESSAGES_PER_FLIGHT,
        records_per_second: FLIGHTS as f64 / seconds,
        insert: latencies.figures(),
        write_amplification: stats.write_amplification(),
        space_amplification: stats.space_amplification(),
        levels: stats.keyspaces.iter().map(|k| k.index.figure("levels")).max().unwrap_or(0),
        memory_bytes: stats.memory.memtables + stats.memory.pool + stats.memory.rows,
        memory_budget_bytes: stats.memory.budget,
        peak_rss_bytes: None,
        reopen_ms: 0.0,
        seconds: 0.0,
    })
}

/// Reopens the store after the kill and checks it. Returns the duration of the reopening in milliseconds.
fn after_the_kill(stage: &mut Stage, path: &Path, flights: &[Flight], acked: usize) -> Outcome<f64> {
    let started = Instant::now();
    let ledger = Ledger::open(path)?;
    let reopen_ms = started.elapsed().as_secs_f64() * 1e3;

    let recount = ledger.recount(flights)?;
    let survived = recount.second.iter().filter(|there| **there).count();
    let prefix = recount.second.iter().take_while(|there| **there).count();
    let whole = recount.wrong == 0 && recount.first == FLIGHTS && prefix == survived;
    stage.check(
        "survivors",
        whole && survived >= acked,
        format!(
            "{} flights of the second load are in the store, including all {} acknowledged ones",
            count(survived),
            count(acked)
        ),
    )?;
    stage.check(
        "killed",
        survived < FLIGHTS,
        format!("{} flights of the second load were not written", count(FLIGHTS - survived)),
    )?;

    let counters = ledger.counters()?;
    let off = counters.off(&recount.counters);
    let (all, events) = (count(counters.len()), count(FLIGHTS + survived));
    stage.check("counters", off == 0, format!("{off} of {all} differ from a recount of the {events} events"))?;

    let report = ledger.store.verify()?;
    let problems = report.problems.len();
    stage.check("verify", problems == 0, format!("{problems} problems found in the store"))?;
    ledger.close()?;
    Ok(reopen_ms)
}
