//! `bench`: measures PandoDB on this machine.

use std::fs::OpenOptions;
use std::io::Write;
use std::path::PathBuf;

use indicatif::ProgressBar;
use pandodb_lab::bench::{self, Observer, Plan, Tick};
use pandodb_lab::engine::Setup;
use pandodb_lab::line::Line;
use pandodb_lab::pando::Pando;
use pandodb_lab::workload::{ALL, TRANSACTIONS, Workload};

use crate::args::{BenchArgs, BenchCommand};
use crate::failure::{Failure, Outcome};
use crate::output;

/// Measures workloads, lists them, or writes a report.
///
/// # Errors
/// Misuse, and errors of files. Wrong results of the store are returned as corruption.
pub fn run(args: &BenchArgs) -> Outcome {
    match &args.command {
        Some(BenchCommand::Report(report)) => super::bench_report::run(report),
        None if args.list => list(),
        None => measure(args),
    }
}

fn list() -> Outcome {
    let all = ALL.iter().chain(TRANSACTIONS);
    let lines: Vec<String> = all.map(|workload| format!("{:19} {}", workload.name, workload.about)).collect();
    output::line(lines.join("\n"))
}

fn measure(args: &BenchArgs) -> Outcome {
    let (directory, _temporary) = directory(args)?;
    let plan = Plan {
        memory_limit: None,
        workloads: args.workloads.clone(),
        records: args.records,
        ops: args.ops,
        seconds: (args.seconds != 0.0).then_some(args.seconds),
        threads: usize::from(args.threads),
        setup: Setup { memory_budget: args.memory_budget, mode: args.mode.into(), deterministic: args.deterministic },
        dist: args.dist.map(Into::into),
        key_len: usize::from(args.key_len),
        value_len: args.value_len,
        zeros: args.zeros,
        seed: args.seed,
        rate: args.rate,
        cache: args.cache.into(),
        warm_up: args.warm_up,
        seq_share: args.seq_share,
        hot: args.hot,
        warehouses: args.warehouses,
        directory,
        matched: None,
    };
    plan.check().map_err(|e| Failure::Misuse(e.to_string()))?;
    let out = match &args.out {
        Some(path) => {
            let file = OpenOptions::new().create(true).append(true).open(path);
            Some(file.map_err(|e| Failure::io(format!("cannot open {}", path.display()), &e))?)
        }
        None => None,
    };
    let mut show =
        Show { bar: output::spinner("starting"), out, json: args.json, wrong: 0, failed: None, headed: false };
    let opener = Pando::new(args.index.clone()).io(args.io.into()).isolation(args.isolation.into());
    let (filters, compression, memtable) = (args.filters, args.compression, args.memtable);
    let pool_policy = args.pool_policy;
    let opener = opener.tuned(move |mut builder| {
        builder = builder.compression(compression.into()).pool_policy(pool_policy);
        if let Some(filters) = filters {
            builder = builder.filters(filters.into());
        }
        if let Some(bytes) = memtable {
            builder = builder.memtable_bytes(bytes);
        }
        builder
    });
    let result = bench::run(&plan, &opener, &mut show);
    show.bar.finish_and_clear();
    result.map_err(|e| stopped(&*e))?;
    match (show.failed, show.wrong) {
        (Some(failure), _) => Err(failure),
        (None, 0) => Ok(()),
        (None, wrong) => Err(Failure::Corruption(format!(
            "{wrong} results were wrong, so the figures are invalid; `pando verify` checks a store kept with --store"
        ))),
    }
}

/// Converts a failure of the lab. If the failure contains an error of the engine, this error determines the kind of the
/// failure.
pub(super) fn stopped(error: &(dyn std::error::Error + 'static)) -> Failure {
    let engine = error.source().and_then(|source| source.downcast_ref::<pandodb::Error>());
    match engine.map(|error| Failure::from(error.clone())) {
        Some(Failure::Misuse(_)) => Failure::Misuse(error.to_string()),
        Some(Failure::Corruption(_)) => Failure::Corruption(error.to_string()),
        _ => Failure::Io(error.to_string()),
    }
}

/// The directory of the store. If this directory is temporary, also returns the guard that removes it.
fn directory(args: &BenchArgs) -> Outcome<(PathBuf, Option<tempfile::TempDir>)> {
    match &args.store {
        Some(path) => {
            std::fs::create_dir_all(path).map_err(|e| Failure::io(format!("cannot create {}", path.display()), &e))?;
            Ok((path.clone(), None))
        }
        // The store is not in the system's temporary directory, because that directory is often in memory.
        None => {
            let temporary = tempfile::Builder::new().prefix("pando-bench-").tempdir_in(".");
            let temporary = temporary
                .map_err(|e| Failure::io("cannot create a temporary directory in the current directory", &e))?;
            Ok((temporary.path().to_owned(), Some(temporary)))
        }
    }
}

/// Shows progress and results.
struct Show {
    bar: ProgressBar,
    out: Option<std::fs::File>,
    json: bool,
    headed: bool,
    wrong: u64,
    failed: Option<Failure>,
}

impl Observer for Show {
    fn prepares(&mut self, what: &str) {
        self.bar.set_message(what.to_owned());
    }

    fn starts(&mut self, workload: &Workload) {
        self.bar.set_message(format!("{}: {}", workload.name, workload.about));
        self.bar.set_prefix(workload.name);
    }

    fn tick(&mut self, tick: &Tick) {
        let rate = tick.last * 10;
        let share = (tick.done as f64 / tick.of.max(1) as f64).max(tick.time_share) * 100.0;
        let debt = tick.debt.map_or(String::new(), |debt| format!("   debt {}", output::bytes(debt)));
        let stall = match tick.slowest.as_micros() {
            0 => String::new(),
            us => format!("   slowest {}", output::micros(us as f64)),
        };
        self.bar.set_message(format!(
            "{:19} {share:3.0} %   {}/s   {} done{stall}{debt}",
            self.bar.prefix(),
            output::count(rate),
            output::count(tick.done)
        ));
    }

    fn ends(&mut self, line: &Line) {
        self.wrong += line.wrong_answers;
        if let Err(failure) = self.write(line) {
            self.failed.get_or_insert(failure);
        }
    }
}

impl Show {
    fn write(&mut self, line: &Line) -> Outcome {
        let json = serde_json::to_string(line)
            .map_err(|e| Failure::Misuse(format!("a result line cannot be written as JSON: {e}")))?;
        if let Some(out) = &mut self.out {
            writeln!(out, "{json}").map_err(|e| Failure::io("cannot write the result lines", &e))?;
        }
        self.bar.suspend(|| {
            if self.json {
                return output::line(&json);
            }
            if !std::mem::replace(&mut self.headed, true) {
                output::line(head())?;
            }
            output::line(row(line))?;
            line.transactions.as_ref().map_or(Ok(()), |transactions| output::line(format!("{:19} {transactions}", "")))
        })
    }
}

fn head() -> String {
    format!(
        "{:19} {:>11} {:>10} {:>9} {:>9} {:>9} {:>9} {:>6} {:>9} {:>6} {:>9}",
        "workload", "operations", "per second", "p50", "p99", "p99.9", "slowest", "write", "read", "space", "memory"
    )
}

fn row(line: &Line) -> String {
    if let Some(why) = &line.refused {
        return format!("{:19} not measured: {why}", line.workload);
    }
    let latency = &line.latency;
    format!(
        "{:19} {:>11} {:>10} {:>9} {:>9} {:>9} {:>9} {:>6.2} {:>9} {:>6.2} {:>9}{}",
        line.workload,
        output::count(line.ops),
        output::count(line.ops_per_s as u64),
        output::micros(latency.p50_us),
        output::micros(latency.p99_us),
        output::micros(latency.p99_9_us),
        output::micros(latency.max_us),
        line.write_amplification,
        format!("{:.0} B/op", line.read_bytes_per_op),
        line.space_amplification,
        output::bytes(line.peak_rss_bytes),
        if line.wrong_answers > 0 { format!("  {} WRONG ANSWERS", line.wrong_answers) } else { String::new() }
    )
}
