//! `sim`: tests the guarantees of the engine under crashes, faults, damage and concurrency.
//!
//! The command runs units of the harnesses of `pandodb-proof` on all cores and prints the number of cases. A broken
//! guarantee is a failure with exit code 3. The lines before the failure give the seed, a minimised history, and the
//! command that reproduces the failure.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Mutex;
use std::time::Duration;

use pandodb::{IndexKind, StoreBuilder};
use pandodb_proof::report::Column;
use pandodb_proof::soak::{self, Soak, Total, Until};
use pandodb_proof::{Kind, Tally, Unit, crash, disk, indexes};
use serde::Serialize;

use crate::args::{SimArgs, SimChildArgs};
use crate::failure::{Failure, Outcome};
use crate::output;

/// The result of one kind, as one line of JSON.
#[derive(Debug, Serialize)]
struct Line<'a> {
    kind: &'a str,
    seed: u64,
    units: u64,
    seconds: f64,
    runs: u64,
    what: &'static str,
    rate: f64,
    /// The hours that a complete soak takes at this rate.
    soak_hours: f64,
    counts: &'a BTreeMap<String, u64>,
    digest: String,
    failures: usize,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    found: Vec<Found<'a>>,
}

#[derive(Debug, Serialize)]
struct Found<'a> {
    seed: u64,
    what: &'a str,
    history: &'a [String],
    replay: String,
}

/// The fraction of the total time that a kind gets.
fn share(kind: Kind) -> f64 {
    match kind {
        Kind::Crash => 0.25,
        Kind::Faults => 0.15,
        Kind::Corrupt => 0.15,
        Kind::Model => 0.1,
        Kind::Histories => 0.1,
        Kind::Kill => 0.15,
        Kind::Disk => 0.05,
        Kind::Verify => 0.05,
    }
}

/// Runs the requested kinds of tests.
///
/// # Errors
/// [`Failure::Corruption`] if a guarantee was broken.
pub fn run(args: &SimArgs) -> Outcome {
    if args.seconds.is_some_and(|seconds| !(0.0..1e9).contains(&seconds)) {
        return Err(Failure::Misuse("--seconds must be a number of seconds, such as 60".into()));
    }
    if let Some(kind) = args.index {
        indexes::use_only(kind);
    }
    if let Some(dir) = &args.dir {
        return run_on_disk(args, dir);
    }
    let kinds = args.kind.kinds();
    let alone = kinds.len() == 1;
    let mut broken = 0;
    for kind in kinds {
        let total = run_kind(args, kind, alone)?;
        print(&total, kind, args.json)?;
        broken += total.tally.failures.len();
        if args.ci {
            complete(&total, kind)?;
        }
    }
    match broken {
        0 => Ok(()),
        n => Err(Failure::Corruption(format!(
            "{n} broken guarantees; the lines above give the command that reproduces each"
        ))),
    }
}

/// Runs one seed of `disk` on the file system of a directory.
fn run_on_disk(args: &SimArgs, dir: &Path) -> Outcome {
    if args.kind.kinds() != [Kind::Disk] {
        return Err(Failure::Misuse("--dir works with `pando sim disk` only".into()));
    }
    let plan = disk::Plan::of(args.seed);
    let options = |builder: StoreBuilder| args.memory_budget.into_iter().fold(builder, StoreBuilder::memory_budget);
    match disk::run_in(dir, plan, &options) {
        Ok(seen) => output::line(format!("ok {plan:?} {seen:?}")),
        Err(e) => Err(Failure::Corruption(format!("{plan:?}: {e}"))),
    }
}

/// Checks the requirements of `--ci` other than the number of runs.
fn complete(total: &Total, kind: Kind) -> Outcome {
    let (units, inside) = (total.next - total.seed, total.tally.counted("crashes inside recovery"));
    let short = |what: String| Err(Failure::Corruption(format!("{}: {what}", kind.name())));
    let least = least_of_each(kind);
    let few = |index: &IndexKind| total.tally.counted(&indexes::counter(*index)) < least;
    if let Some(index) = IndexKind::all().find(|index| indexes::only().is_none() && few(index)) {
        return short(format!("fewer than {least} of the {} used index {index}", kind.what()));
    }
    match kind {
        Kind::Crash if units < crash::units_of_three_letters() => {
            short(format!("{units} units do not cover all short histories"))
        }
        Kind::Crash if inside < 25_000 => short(format!("only {inside} crashes inside recovery")),
        Kind::Kill if total.tally.counted("batches") == 0 => short("the killed processes wrote nothing".into()),
        _ => Ok(()),
    }
}

/// The number of runs that each index type must have in continuous integration: a third of an even share of the goal.
fn least_of_each(kind: Kind) -> u64 {
    kind.goal(Column::Ci) / (3 * IndexKind::all().len() as u64)
}

fn run_kind(args: &SimArgs, kind: Kind, alone: bool) -> Outcome<Total> {
    let failed = |e: std::io::Error| Failure::io("reading or writing the state of the simulation", &e);
    let goal = |column| Some(kind.goal(column));
    let until = Until {
        time: args.seconds.map(|seconds| Duration::from_secs_f64(if alone { seconds } else { seconds * share(kind) })),
        runs: args.runs.or_else(|| if args.ci { goal(Column::Ci) } else { None }),
        units: args.units,
        least: if kind == Kind::Crash && args.ci { crash::units_of_three_letters() } else { 0 },
        each: if args.ci { least_of_each(kind) } else { 0 },
    };
    let runs = until.runs.or_else(|| if args.soak { goal(Column::Soak) } else { None });
    let bounded = until.time.is_some() || runs.is_some() || until.units.is_some();
    let until = Until { runs, units: if bounded { until.units } else { Some(1) }, ..until };
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let bar = output::spinner("");
    let shown = Mutex::new(());
    let progress = |total: &Total| {
        let _one = shown.lock();
        let count = output::count(total.tally.runs);
        bar.set_message(format!("{}: {count} {}, {:.0} a second", kind.name(), kind.what(), total.rate()));
    };
    let unit = |unit: &Unit| -> Tally { pandodb_proof::run(kind, &Unit { steps: args.steps.clone(), ..unit.clone() }) };
    let state = args.state.as_deref();
    let threads = args.threads.unwrap_or(cores);
    let soak = Soak { kind, run: &unit, threads, until, state, progress: &progress };
    let start = match state {
        Some(folder) => Total::load(folder, kind, args.seed).map_err(failed)?,
        None => Total::new(kind, args.seed),
    };
    let total = soak.go(start).map_err(failed)?;
    bar.finish_and_clear();
    Ok(total)
}

fn print(total: &Total, kind: Kind, json: bool) -> Outcome {
    let tally = &total.tally;
    if json {
        let found = tally.failures.iter().map(|failure| Found {
            seed: failure.seed,
            what: &failure.what,
            history: &failure.history,
            replay: failure.replay(kind),
        });
        return output::json(&Line {
            kind: kind.name(),
            seed: total.seed,
            units: total.next - total.seed,
            seconds: total.seconds,
            runs: tally.runs,
            what: kind.what(),
            rate: total.rate(),
            soak_hours: kind.goal(Column::Soak) as f64 / total.rate() / 3600.0,
            counts: &tally.counts,
            digest: format!("{:016x}", tally.digest),
            failures: tally.failures.len(),
            found: found.collect(),
        });
    }
    output::line(format_args!(
        "{:8} {} {} in {:.1} s ({:.0} a second), seeds {} to {}, digest {:016x}: {} failures\n         {}",
        kind.name(),
        output::count(tally.runs),
        kind.what(),
        total.seconds,
        total.rate(),
        total.seed,
        total.next.saturating_sub(1),
        tally.digest,
        tally.failures.len(),
        tally.words(),
    ))?;
    tally.failures.iter().try_for_each(|failure| output::line(soak::describe(kind, failure)))
}

/// Runs the process that `sim kill` kills.
///
/// # Errors
/// The errors of the store.
pub fn child(args: &SimChildArgs) -> Outcome {
    if let Some(kind) = args.index {
        indexes::use_only(kind);
    }
    Ok(pandodb_proof::kill::child(&args.store, args.seed, args.round)?)
}
