//! `pando-rivals`: what is compiled in, and the same workloads on all of it.
//!
//! `run` is to start itself again for each engine, in a memory cgroup where one was delegated, so that memory, caches and
//! resident size are one engine's alone. The measuring is the lab's (`pandodb_lab::bench`); [`measure`] is where it goes.
#![forbid(unsafe_code)]

use std::num::NonZero;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Args, Parser, Subcommand};
use pandodb_lab::engine::{Engine, Mode, Result, Setup};
use pandodb_rivals::cgroup;
use pandodb_rivals::{LEAST_BUDGET, Promise, Rival, rival, rivals, size};

/// Other stores beside PandoDB.
#[derive(Parser)]
#[command(version)]
struct Cli {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Subcommand)]
enum Verb {
    /// Prints the engines that are compiled in, with their versions and everything that is set.
    List {
        /// Memory that each may hold; sizes take KiB, MiB, GiB.
        #[arg(long, default_value = "256MiB", value_parser = bytes)]
        memory: usize,
        /// Names only.
        #[arg(long)]
        names: bool,
    },
    /// Measures workloads on engines, each in a process of its own.
    Run(Run),
}

#[derive(Args, Debug)]
struct Run {
    /// Engines, by the names of `list`.
    #[arg(long, value_delimiter = ',', required = true)]
    engines: Vec<String>,
    /// Workloads, in this order.
    #[arg(long, value_delimiter = ',', required = true)]
    workloads: Vec<String>,
    /// Client threads; each number is a measurement of its own.
    #[arg(long, value_delimiter = ',', default_value = "1")]
    threads: Vec<NonZero<usize>>,
    /// Memory that an engine may hold; sizes take KiB, MiB, GiB.
    #[arg(long, default_value = "256MiB", value_parser = bytes)]
    memory: usize,
    /// Memory of the cgroup beyond that: the program, the lab's own tables.
    #[arg(long, default_value = "64MiB", value_parser = bytes)]
    allowance: usize,
    /// Rows of a load.
    #[arg(long, default_value_t = 1_000_000)]
    records: u64,
    /// A workload ends after so many seconds, if it does not end by itself.
    #[arg(long)]
    seconds: Option<f64>,
    /// Rounds over all engines, so that a drift of the machine meets all of them.
    #[arg(long, default_value = "1")]
    rounds: NonZero<u32>,
    /// A file that lines are added to.
    #[arg(long)]
    out: PathBuf,
    /// A memory cgroup under which groups may be made; without one nothing but the engines' own settings limits them.
    #[arg(long)]
    cgroup: Option<PathBuf>,
}

/// Bytes in words: `256MiB`, `1 GiB`, `4096`.
fn bytes(text: &str) -> std::result::Result<usize, String> {
    let text = text.trim();
    let split = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (number, unit) = text.split_at(split);
    let shift = match unit.trim() {
        "" | "B" => 0,
        "KiB" => 10,
        "MiB" => 20,
        "GiB" => 30,
        other => return Err(format!("{other:?} is no unit; KiB, MiB and GiB are")),
    };
    let number: usize = number.parse().map_err(|_| format!("{text:?} is no size"))?;
    number.checked_mul(1 << shift).ok_or_else(|| format!("{text} is too much"))
}

fn main() -> ExitCode {
    let verb = Cli::parse().verb;
    let done =
        cgroup::join_if_asked().map_err(|e| format!("may not join its cgroup: {e}").into()).and_then(|_| match verb {
            Verb::List { memory, names } => list(memory, names),
            Verb::Run(run) => start(&run),
        });
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(why) => {
            eprintln!("pando-rivals: {why}");
            ExitCode::FAILURE
        }
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
    if all.is_empty() {
        return Err("no engine is compiled in: build with --features all, or with some".into());
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

/// Names that are wrong are found before anything is measured.
fn check(run: &Run) -> Result<()> {
    for name in &run.engines {
        if rival(name).is_none() {
            let known: Vec<_> = rivals().iter().map(|r| r.opener.name()).collect();
            return Err(format!("there is no engine {name:?} here; compiled in: {}", known.join(", ")).into());
        }
    }
    for name in &run.workloads {
        // The lab's list of workloads decides, once `measure` is connected; until then the form.
        if name.is_empty() || !name.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-') {
            return Err(format!("{name:?} cannot be the name of a workload").into());
        }
    }
    if run.memory < LEAST_BUDGET {
        return Err(format!("--memory must be {} at least", size(LEAST_BUDGET)).into());
    }
    if run.records == 0 || run.seconds.is_some_and(|s| !(s > 0.0 && s.is_finite())) {
        return Err("--records and --seconds must be more than 0".into());
    }
    Ok(())
}

fn start(run: &Run) -> Result<()> {
    check(run)?;
    for _round in 0..run.rounds.get() {
        for &threads in &run.threads {
            for engine in &run.engines {
                measure(run, engine, threads)?;
            }
        }
    }
    Ok(())
}

/// Measures all workloads of `run` on one engine, in a child, and adds the lines to `run.out`.
///
/// TO CONNECT: start `current_exe` again with a hidden verb for this one (engine, threads), after
/// `Group::create(cgroup::delegated(run.cgroup.clone()).as_deref(), memory + allowance)` and `group.adopt(&mut command)`;
/// a refusal is printed, and measured without. The child builds the lab's plan and calls
/// `pandodb_lab::bench::run(&plan, rival(engine).opener.as_ref(), &mut lines)`.
fn measure(run: &Run, engine: &str, threads: NonZero<usize>) -> Result<()> {
    let Run { workloads, memory, records, .. } = run;
    let plan = format!("{} on {engine}, {threads} threads, {}, {records} records", workloads.join(", "), size(*memory));
    Err(format!("not connected to the lab's bench yet, so nothing was measured ({plan})").into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_read() {
        assert_eq!(bytes("256MiB"), Ok(256 << 20));
        assert_eq!(bytes("1 GiB"), Ok(1 << 30));
        assert_eq!(bytes("4096"), Ok(4096));
        for wrong in ["", "MiB", "1MB", "-1", "99999999999GiB", "1.5GiB"] {
            assert!(bytes(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn the_command_line_is_read() {
        let line = "pando-rivals run --engines a,b --workloads load,c,a --threads 1,2 --memory 256MiB --records 10 \
                    --seconds 5 --rounds 3 --out lines.jsonl";
        let Ok(Cli { verb: Verb::Run(run) }) = Cli::try_parse_from(line.split_whitespace()) else { panic!("not read") };
        assert_eq!((run.engines.len(), run.workloads.len(), run.threads.len()), (2, 3, 2));
        assert_eq!((run.memory, run.seconds, run.rounds.get()), (256 << 20, Some(5.0), 3));
        assert!(check(&run).unwrap_err().to_string().contains("there is no engine \"a\""));
        let run = Run { engines: Vec::new(), workloads: vec!["Load!".into()], ..run };
        assert!(check(&run).is_err());
        let run = Run { workloads: vec!["load-seq".into()], ..run };
        assert!(check(&run).is_ok());
        assert!(measure(&run, "a", NonZero::<usize>::MIN).unwrap_err().to_string().contains("not connected"));
    }
}
