//! `pando-rivals`: lists the engines that are compiled in, and runs the same workloads on several of them.
//!
//! `run` starts a separate process for each engine and each data set, so that the measured memory and caches belong to
//! this engine and this data alone.
//! If a memory cgroup was delegated, the process runs in a group below it. [`pandodb_lab::bench`] does the
//! measurements. `run` appends the lines of results to a file and prints the ratios between the engines.
//!
//! With `--match-memory`, each round also measures PandoDB once for each rival, with the memory that the rival really took
//! as the budget. With `--resume`, measurements whose lines are already in the file are skipped.
#![forbid(unsafe_code)]

use std::env;
use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::num::NonZero;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use clap::{Args, Parser, Subcommand};
use pandodb_lab::bench::{self, Cache, Matched, Observer, Plan};
use pandodb_lab::engine::{Engine, Mode, Result, Setup};
use pandodb_lab::line::Line;
use pandodb_lab::report;
use pandodb_lab::workload::{self, DataSet, Dist, Kind};
use pandodb_rivals::cgroup::{self, Group};
use pandodb_rivals::resume::Measurement;
use pandodb_rivals::{LEAST_BUDGET, Promise, Rival, rival, rivals, size};

/// Measures other stores and PandoDB with the same workloads.
#[derive(Parser)]
#[command(version)]
struct Cli {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Subcommand)]
enum Verb {
    /// Prints the engines that are compiled in, with their versions and settings.
    List {
        /// Memory budget of each engine, such as 256MiB.
        #[arg(long, default_value = "256MiB", value_parser = bytes)]
        memory: usize,
        /// Print names only.
        #[arg(long)]
        names: bool,
    },
    /// Measures workloads on engines, each engine in its own process, and prints the ratios.
    Run(Run),
    /// Measures one engine with one number of threads in this process.
    #[command(hide = true)]
    One(Run),
}

#[derive(Args, Clone, Debug)]
struct Run {
    /// Engines to measure; `list` prints their names. Options may follow the index of PandoDB:
    /// `pando-nbtree:fanout=3,dtree_kib=4096,rocksdb` names two engines.
    #[arg(long, value_delimiter = ',', required = true)]
    engines: Vec<String>,
    /// Workloads or groups of workloads, in the order in which they run; `pando bench --list` lists them.
    #[arg(long, value_delimiter = ',', required = true)]
    workloads: Vec<String>,
    /// Numbers of client threads; each number is measured separately.
    #[arg(long, value_delimiter = ',', default_value = "1")]
    threads: Vec<NonZero<usize>>,
    /// Memory budget of an engine, such as 256MiB.
    #[arg(long, default_value = "256MiB", value_parser = bytes)]
    memory: usize,
    /// Memory that the cgroup allows in addition to the budget, for the program and the lab's own tables.
    #[arg(long, default_value = "64MiB", value_parser = bytes)]
    allowance: usize,
    /// Rows of a load.
    #[arg(long, default_value_t = 1_000_000)]
    records: u64,
    /// Seconds after which a workload ends. Loads and `delete` always run to their end.
    #[arg(long, default_value_t = 10.0)]
    seconds: f64,
    /// Operations per second to issue, counted over all threads (open loop); by default as many as the engine can
    /// execute.
    #[arg(long)]
    rate: Option<f64>,
    /// Distribution of the rows (`uniform`, `zipf`, `latest` or `hotspot`); by default each workload's own distribution.
    #[arg(long, value_parser = dist)]
    dist: Option<Dist>,
    /// Number of rounds over all engines. With several rounds, slow changes of the machine's speed affect all engines.
    #[arg(long, default_value = "1")]
    rounds: NonZero<u32>,
    /// Operations of each workload, except loads and `delete`; by default the number of rows.
    #[arg(long)]
    ops: Option<u64>,
    /// The state of the caches when a workload starts: `cold`, `warm` or `as-is`.
    #[arg(long, default_value = "cold", value_parser = cache)]
    cache: Cache,
    /// Seconds of the warm-up before a warm workload.
    #[arg(long, default_value_t = 5.0)]
    warm_up: f64,
    /// Bytes of a key.
    #[arg(long, default_value_t = 24)]
    key_len: usize,
    /// Bytes of a value.
    #[arg(long, default_value_t = 100)]
    value_len: usize,
    /// Number of customers of the hot set of `smallbank`, to which 90 % of the accesses go.
    #[arg(long, default_value_t = 100)]
    hot: u64,
    /// Number of warehouses of `neworder` and `payment`.
    #[arg(long, default_value_t = 10)]
    warehouses: u64,
    /// Seed of all random choices.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Directory in which a temporary directory for the stores is created.
    #[arg(long, default_value = ".")]
    store: PathBuf,
    /// After the engines of a round, measure PandoDB once more for each rival, with the rival's measured peak memory as the
    /// budget.
    #[arg(long)]
    match_memory: bool,
    /// Skip measurements whose lines are already in the file of --out. The other options must be the same as before.
    #[arg(long)]
    resume: bool,
    /// The rival whose memory PandoDB gets.
    #[arg(long, hide = true, requires = "given_memory")]
    matched: Option<String>,
    /// The memory that this rival took, in bytes.
    #[arg(long, hide = true)]
    given_memory: Option<usize>,
    /// Memory limit of the cgroup that the parent process created.
    #[arg(long, hide = true)]
    memory_limit: Option<u64>,
    /// File to which lines of JSON are appended.
    #[arg(long)]
    out: PathBuf,
    /// Memory cgroup under which groups may be created. Without it, only the engines' own settings limit their memory.
    #[arg(long)]
    cgroup: Option<PathBuf>,
}

/// Parses a size, such as `256MiB`, `1 GiB` or `4096`.
fn bytes(text: &str) -> std::result::Result<usize, String> {
    let text = text.trim();
    let split = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (number, unit) = text.split_at(split);
    let shift = match unit.trim() {
        "" | "B" => 0,
        "KiB" => 10,
        "MiB" => 20,
        "GiB" => 30,
        other => return Err(format!("unknown unit {other:?}; use KiB, MiB or GiB")),
    };
    let number: usize = number.parse().map_err(|_| format!("{text:?} is not a size; write it as 256MiB"))?;
    number.checked_mul(1 << shift).ok_or_else(|| format!("{text} is too large"))
}

fn dist(name: &str) -> std::result::Result<Dist, String> {
    Dist::from_name(name).ok_or_else(|| format!("unknown distribution {name:?}; use uniform, zipf, latest or hotspot"))
}

fn cache(name: &str) -> std::result::Result<Cache, String> {
    let all = [Cache::AsIs, Cache::Cold, Cache::Warm];
    all.into_iter()
        .find(|cache| cache.name() == name)
        .ok_or_else(|| format!("unknown cache state {name:?}; use cold, warm or as-is"))
}

fn main() -> ExitCode {
    let verb = Cli::parse().verb;
    let done =
        cgroup::join_if_asked().map_err(|e| format!("cannot join the cgroup: {e}").into()).and_then(|_| match verb {
            Verb::List { memory, names } => list(memory, names),
            Verb::Run(run) => start(&run.with_options()),
            Verb::One(run) => one(&run.with_options()),
        });
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(why) => {
            eprintln!("pando-rivals: {why}");
            ExitCode::FAILURE
        }
    }
}

impl Run {
    /// Joins the options of an index with its name, since both options and engines are separated by commas.
    fn with_options(self) -> Run {
        let mut engines: Vec<String> = Vec::new();
        for word in self.engines {
            match engines.last_mut() {
                Some(last) if is_ours(last) && !is_ours(&word) && word.contains('=') => {
                    last.push(',');
                    last.push_str(&word);
                }
                _ => engines.push(word),
            }
        }
        Run { engines, ..self }
    }
}

fn promise_in_words(promise: Promise) -> String {
    let mut words = vec![match (promise.survives_close, promise.survives_kill) {
        (_, true) => "acknowledged writes survive a kill".to_owned(),
        (true, false) => "acknowledged writes survive a close, NOT a kill".to_owned(),
        (false, false) => "memory only".to_owned(),
    }];
    if !promise.empty_values {
        words.push("no empty values".into());
    }
    if promise.longest_key < Promise::FULL.longest_key {
        words.push(format!("keys up to {} B", promise.longest_key));
    }
    if promise.longest_value < Promise::FULL.longest_value {
        words.push(format!("values up to {} B", promise.longest_value));
    }
    words.join("; ")
}

fn list(memory: usize, names: bool) -> Result<()> {
    let all = rivals();
    if all.len() == 1 {
        eprintln!("only PandoDB is compiled in: build with --features all, or name some engines as features");
    }
    for Rival { opener, promise } in all {
        println!("{}", opener.name());
        if names {
            continue;
        }
        println!("  {:<40} {}", "promise", promise_in_words(promise));
        let directory = tempfile::tempdir()?;
        let setup = Setup { memory_budget: memory, mode: Mode::Product, deterministic: false };
        let engine: Box<dyn Engine> = opener.open(directory.path(), &setup)?;
        for (name, value) in engine.configuration() {
            println!("  {name:<40} {value}");
        }
        engine.close()?;
    }
    Ok(())
}

/// Checks names and sizes before the first measurement.
fn check(run: &Run) -> Result<()> {
    for name in &run.engines {
        if rival(name).is_none() {
            if let Some(Err(why)) = name.strip_prefix("pando-").map(str::parse::<pandodb::IndexOptions>) {
                return Err(why.into());
            }
            let known: Vec<_> = rivals().iter().map(|r| r.opener.name()).collect();
            return Err(format!("unknown engine {name:?}; compiled in: {}", known.join(", ")).into());
        }
    }
    workload::parse(&run.workloads.join(","))?;
    if run.memory < LEAST_BUDGET {
        return Err(format!("--memory must be at least {}", size(LEAST_BUDGET)).into());
    }
    for threads in &run.threads {
        plan(run, threads.get())?.check()?;
    }
    if run.match_memory && !run.engines.iter().any(|name| is_ours(name)) {
        return Err("--match-memory measures PandoDB, so --engines must name it, such as pando-stbe".into());
    }
    Ok(())
}

fn is_ours(engine: &str) -> bool {
    rival(engine).is_some_and(|rival| !rival.opener.index().is_empty())
}

/// The settings of the lines of an engine. With `matched`, PandoDB has the memory of this rival.
fn measurement(run: &Run, engine: &str, threads: NonZero<usize>, matched: Option<&str>) -> Result<Measurement> {
    let (opener, plan) = (rival(engine).ok_or("no such engine")?.opener, plan(run, threads.get())?);
    let matched = matched.unwrap_or_default().to_owned();
    let who = Line { engine: opener.engine(), index: opener.index(), matched, ..Line::default() }.who();
    let workloads = plan.workloads.iter().map(|workload| (workload.name.to_owned(), plan.asked(workload))).collect();
    Ok(Measurement { who, threads: threads.get(), workloads })
}

fn start(run: &Run) -> Result<()> {
    check(run)?;
    let before = lines_in(&run.out)?.len();
    let place = tempfile::Builder::new().prefix("pando-rivals-").tempdir_in(&run.store)?;
    let mut failed = 0;
    let parts = by_set(run)?;
    for round in 1..=run.rounds.get() {
        for &threads in &run.threads {
            for part in &parts {
                for engine in &run.engines {
                    failed += u32::from(!measure_once(part, place.path(), (engine, threads, round), None)?);
                }
                if run.match_memory {
                    failed += measure_matched(part, place.path(), threads, round)?;
                }
            }
        }
    }
    let before = if run.resume { 0 } else { before };
    let lines = &lines_in(&run.out)?[before..];
    println!("{}", report::table(lines));
    let wrong = lines.iter().filter(|line| line.wrong_answers > 0).count();
    match (failed, wrong) {
        (0, 0) => Ok(()),
        _ => Err(format!("{failed} processes failed, {wrong} workloads returned wrong answers").into()),
    }
}

/// Splits a run by the data sets of its workloads, in the order in which the sets first occur. Each transactional workload
/// is a part of its own. Each part has processes of its own, because an allocator may keep memory of the store of an
/// earlier data set.
fn by_set(run: &Run) -> Result<Vec<Run>> {
    let mut parts: Vec<(Option<DataSet>, Vec<String>)> = Vec::new();
    for workload in workload::parse(&run.workloads.join(","))? {
        let name = workload.name.to_owned();
        let set = (!matches!(workload.kind, Kind::Transactions(_))).then_some(workload.set);
        match parts.iter_mut().find(|(part, _)| set.is_some() && *part == set) {
            Some((_, names)) => names.push(name),
            None => parts.push((set, vec![name])),
        }
    }
    Ok(parts.into_iter().map(|(_, workloads)| Run { workloads, ..run.clone() }).collect())
}

/// Measures PandoDB with the memory of each rival. Returns the number of failed processes.
fn measure_matched(run: &Run, place: &Path, threads: NonZero<usize>, round: u32) -> Result<u32> {
    let mut failed = 0;
    let (ours, rivals): (Vec<&String>, Vec<&String>) = run.engines.iter().partition(|name| is_ours(name));
    for name in rivals {
        let Some(peak) = measurement(run, name, threads, None)?.peak_memory(&lines_in(&run.out)?) else {
            eprintln!("  no measured memory of {name}, so PandoDB is not measured with it");
            continue;
        };
        let memory = usize::try_from(peak)?.max(LEAST_BUDGET);
        for engine in &ours {
            let matched = Matched { rival: name.clone(), memory };
            failed += u32::from(!measure_once(run, place, (engine, threads, round), Some(&matched))?);
        }
    }
    Ok(failed)
}

/// Measures one engine in one round, unless the run is resumed and the lines exist. Returns whether this succeeded.
fn measure_once(
    run: &Run,
    place: &Path,
    (engine, threads, round): (&str, NonZero<usize>, u32),
    matched: Option<&Matched>,
) -> Result<bool> {
    let measurement = measurement(run, engine, threads, matched.map(|matched| matched.rival.as_str()))?;
    let is_done = run.resume && measurement.is_done(&lines_in(&run.out)?, round);
    let memory = matched.map_or(run.memory, |matched| matched.memory) >> 20;
    let skipped = if is_done { ": already measured" } else { "" };
    let first = run.workloads.first().map_or("", String::as_str);
    eprintln!(
        "round {round} of {}: {}, {first} …, {threads} threads, {memory} MiB{skipped}",
        run.rounds, measurement.who
    );
    if is_done { Ok(true) } else { measure(run, place, engine, threads, matched) }
}

fn lines_in(path: &Path) -> Result<Vec<Line>> {
    if path.exists() { report::read(&[path]) } else { Ok(Vec::new()) }
}

/// Measures all workloads of `run` on one engine in a child process. Returns whether the child succeeded. A failure is
/// printed and does not stop the measurement of the other engines.
fn measure(run: &Run, place: &Path, engine: &str, threads: NonZero<usize>, matched: Option<&Matched>) -> Result<bool> {
    let rival = rival(engine).ok_or("checked before")?;
    if run.key_len > rival.promise.longest_key || run.value_len > rival.promise.longest_value {
        eprintln!(
            "  skipped, since the key or value length is over the limit of the engine: {}",
            promise_in_words(rival.promise)
        );
        return Ok(true);
    }
    let memory = matched.map_or(run.memory, |matched| matched.memory);
    let limit = (memory + run.allowance) as u64;
    let group = Group::create(cgroup::delegated(run.cgroup.clone()).as_deref(), limit);
    let mut child = Command::new(env::current_exe()?);
    child.arg("one").args(["--engines", engine]).args(["--workloads", &run.workloads.join(",")]);
    let mut pass = |name: &str, value: String| {
        child.args([name, &value]);
    };
    pass("--threads", threads.to_string());
    pass("--memory", run.memory.to_string());
    pass("--records", run.records.to_string());
    pass("--key-len", run.key_len.to_string());
    pass("--value-len", run.value_len.to_string());
    pass("--hot", run.hot.to_string());
    pass("--warehouses", run.warehouses.to_string());
    pass("--seed", run.seed.to_string());
    pass("--cache", run.cache.name().to_owned());
    pass("--warm-up", run.warm_up.to_string());
    pass("--seconds", run.seconds.to_string());
    run.rate.into_iter().for_each(|rate| pass("--rate", rate.to_string()));
    run.dist.into_iter().for_each(|dist| pass("--dist", dist.name().to_owned()));
    group.iter().for_each(|_| pass("--memory-limit", ((run.memory + run.allowance) as u64).to_string()));
    if let Some(matched) = matched {
        pass("--matched", matched.rival.clone());
        pass("--given-memory", matched.memory.to_string());
    }
    run.ops.into_iter().for_each(|ops| pass("--ops", ops.to_string()));
    child.arg("--store").arg(place).arg("--out").arg(&run.out);
    match &group {
        Ok(group) => group.adopt(&mut child),
        Err(why) => eprintln!("  no memory cgroup: {why}"),
    }
    let status = child.status()?;
    if let Some(killed) = group.as_ref().ok().and_then(Group::killed).filter(|killed| *killed > 0) {
        eprintln!("  {engine}: the kernel killed {killed} processes at the memory limit of the cgroup");
    }
    if !status.success() {
        eprintln!("  {engine}, {threads} threads: {status}; workloads that had ended before are kept");
    }
    bench::remove_store(place, rival.opener.as_ref())?;
    Ok(status.success())
}

/// Measures one engine in this process.
fn one(run: &Run) -> Result<()> {
    let opener = rival(&run.engines[0]).ok_or("no such engine")?.opener;
    let plan = plan(run, run.threads[0].get())?;
    let out = OpenOptions::new().create(true).append(true).open(&run.out)?;
    let mut keep = Keep { out, failed: None };
    bench::run(&plan, opener.as_ref(), &mut keep)?;
    keep.failed.map_or(Ok(()), |e| Err(e.into()))
}

/// The lab's plan for these arguments.
fn plan(run: &Run, threads: usize) -> Result<Plan> {
    Ok(Plan {
        workloads: workload::parse(&run.workloads.join(","))?,
        records: run.records,
        ops: run.ops,
        seconds: Some(run.seconds),
        threads,
        rate: run.rate,
        dist: run.dist,
        memory_limit: run.memory_limit,
        setup: Setup { memory_budget: run.memory, mode: Mode::Product, deterministic: false },
        key_len: run.key_len,
        value_len: run.value_len,
        hot: run.hot,
        warehouses: run.warehouses,
        seed: run.seed,
        cache: run.cache,
        warm_up: run.warm_up,
        directory: run.store.clone(),
        matched: run.matched.clone().zip(run.given_memory).map(|(rival, memory)| Matched { rival, memory }),
        ..Plan::default()
    })
}

/// Writes each line of results to the file, and prints a summary of the line.
struct Keep {
    out: File,
    failed: Option<io::Error>,
}

impl Observer for Keep {
    fn ends(&mut self, line: &Line) {
        let json = serde_json::to_string(line).expect("figures and strings have a JSON form");
        if let Err(e) = writeln!(self.out, "{json}") {
            self.failed.get_or_insert(e);
        }
        let wrong = if line.wrong_answers > 0 { ", WRONG ANSWERS" } else { "" };
        match &line.refused {
            Some(why) => eprintln!("  {:19} refused: {why}", line.workload),
            None => eprintln!(
                "  {:19} {:>9.0}/s, settled {:>9.0}/s, p99 {:.0} us, slowest {:.0} us, memory {} of {} MiB{wrong}",
                line.workload,
                line.ops_per_s,
                line.fair_ops_per_s(),
                line.latency.p99_us,
                line.latency.max_us,
                line.engine_bytes() >> 20,
                line.budget_bytes() >> 20,
            ),
        }
        if let Some(transactions) = &line.transactions {
            let (p50, p99_9) = (line.latency.p50_us, line.latency.p99_9_us);
            eprintln!("  {:19} p50 {p50:.1} us, p99.9 {p99_9:.0} us; {transactions}", "");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_parsed() {
        assert_eq!(bytes("256MiB"), Ok(256 << 20));
        assert_eq!(bytes("1 GiB"), Ok(1 << 30));
        assert_eq!(bytes("4096"), Ok(4096));
        for wrong in ["", "MiB", "1MB", "-1", "99999999999GiB", "1.5GiB"] {
            assert!(bytes(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn the_command_line_is_parsed() {
        let line = "pando-rivals run --engines a,b --workloads load,c,a --threads 1,2 --memory 256MiB --records 10 \
                    --seconds 5 --rounds 3 --out lines.jsonl";
        let Ok(Cli { verb: Verb::Run(run) }) = Cli::try_parse_from(line.split_whitespace()) else { panic!("not read") };
        assert_eq!((run.engines.len(), run.workloads.len(), run.threads.len()), (2, 3, 2));
        assert_eq!((run.memory, run.seconds, run.rounds.get()), (256 << 20, 5.0, 3));
        assert!(check(&run).unwrap_err().to_string().contains("unknown engine \"a\""));
        let run = Run { engines: vec!["pando-stbe".into()], ..run };
        assert!(check(&run).is_ok());
        let who = |matched| measurement(&run, "pando-stbe", NonZero::<usize>::MIN, matched).unwrap().who;
        let mixed = Run { workloads: vec!["c,timeseries-hour".into(), "bank,a,pop".into()], ..run.clone() };
        let parts: Vec<String> = by_set(&mixed).unwrap().iter().map(|part| part.workloads.join(" ")).collect();
        assert_eq!(parts, ["c a", "timeseries-hour", "bank", "pop"]);
        assert_eq!(who(None), "pando-stbe");
        assert_eq!(who(Some("lmdb")), "pando-stbe with the memory of lmdb");
        let words = ["pando-nbtree:fanout=3", "dtree_kib=64", "rocksdb", "pando-stbe"].map(String::from).to_vec();
        let engines = Run { engines: words, ..run.clone() }.with_options().engines;
        assert_eq!(engines, ["pando-nbtree:fanout=3,dtree_kib=64", "rocksdb", "pando-stbe"]);
        let wrong = Run { workloads: vec!["lod".into()], ..run };
        assert!(check(&wrong).unwrap_err().to_string().contains("unknown workload `lod`"));
    }
}
