//! `load`: records from a stream into a keyspace, measured.
//!
//! ```text
//! Source ─▶ record ─▶ commit (one record, or --batch N) ─▶ acked COUNT, when N more are durable
//!    │                   └─ its time goes into the histogram
//!    └─ malformed: counted, passed over; the first 20 are reported with their lines
//! end: settle (pay the debt), then the figures
//! Ctrl-C: stop between two commits, close, say what is in the store
//! ```
//!
//! Each commit is made at the durability that was asked for and returns once that is reached, so what is committed may be
//! acknowledged. Memory: the store's budget, one record (or one batch) and the buffers of the input.

use std::time::Instant;

use indicatif::ProgressBar;
use pandodb::{
    Durability, Error, Keyspace, KeyspaceOptions, Store,
    base::{MAX_KEY, MAX_OPERAND, MAX_VALUE},
};
use serde::Serialize;

use super::{
    Access, builder, open_input,
    stats::{amplification, latency_line},
};
use crate::{
    args::LoadArgs,
    failure::{Failure, Outcome},
    input::{self, Record, Source, Step},
    interrupt::Interrupts,
    meter::{Latencies, LatencyFigures, peak_rss_bytes},
    operand::OperandForm,
    output,
};

/// A batch is committed early at so many bytes: it is held twice, and the store bounds it too.
const BATCH_BYTES: usize = 8 << 20;
/// Malformed lines that are reported one by one; the rest is counted.
const REPORTED_LINES: u64 = 20;

/// The figures of a load.
#[derive(Debug, Serialize)]
struct Report {
    records: u64,
    malformed: u64,
    loaded_bytes: u64,
    durability: &'static str,
    records_per_second: f64,
    seconds_to_last_ack: f64,
    seconds_to_no_debt: f64,
    commits: LatencyFigures,
    memory_budget_bytes: u64,
    peak_rss_bytes: Option<u64>,
    levels: u64,
    max_runs_on_path: u64,
    logical_bytes: u64,
    disk_bytes: u64,
    debt_bytes: u64,
    write_amplification: f64,
    space_amplification: f64,
    lifetime_user_bytes: u64,
}

/// Loads a file or a pipe.
pub fn run(args: &LoadArgs) -> Outcome {
    let (input, bar) = open_input(&args.file, "records")?;
    let mut source = input::open(input, args.format, &args.key, args.merge.is_some())?;
    let store = builder(&args.at.store, Access::Create)?.durability(args.durability.into()).open()?;
    let loaded = load(args, &store, source.as_mut(), bar);
    // The listener for signals has a handle of its own, so that dropping this one would not close the store.
    let closed = store.close();
    let report = match loaded {
        Err(failure @ Failure::Interrupted(_)) => return closed.map_err(Failure::from).and(Err(failure)),
        other => other?,
    };
    closed?;
    print(&report, args.json)?;
    match (report.records, report.malformed) {
        (0, 1..) => Err(Failure::Misuse("nothing was loaded: every line is malformed; check --format".into())),
        _ => Ok(()),
    }
}

/// Loads everything, and waits until the store owes no work.
fn load(args: &LoadArgs, store: &Store, source: &mut dyn Source, bar: ProgressBar) -> Outcome<Report> {
    let keyspace = keyspace(store, args)?;
    let interrupts = Interrupts::listen(store.clone())?;
    let mut loader = Loader::new(args, store, &keyspace, bar, interrupts);
    let read = loader.read(source);
    loader.bar.finish_and_clear();
    loader.say_unreported();
    if let Err(failure) = read {
        return Err(failure.context(format_args!("line {}, after {} records", source.line(), loader.loaded)));
    }
    if loader.interrupts.asked() {
        return Err(loader.interrupts.failure());
    }
    let bar = output::spinner("paying the debt");
    store.settle()?;
    bar.finish_and_clear();
    loader.report()
}

/// The keyspace as it is, or made with the options given.
fn keyspace(store: &Store, args: &LoadArgs) -> Outcome<Keyspace> {
    if args.index.is_none() && args.merge.is_none() {
        return Ok(store.keyspace(&args.at.keyspace)?);
    }
    let mut options = KeyspaceOptions::new();
    if let Some(index) = &args.index {
        options = options.index(index.clone());
    }
    // Naming only the index must not ask a keyspace that is there for another operator than it has.
    let there = store.open_keyspace(&args.at.keyspace)?;
    let operator = args.merge.as_deref().or(there.as_ref().and_then(Keyspace::operator));
    if let Some(operator) = operator {
        options = options.merge_named(operator)?;
    }
    Ok(store.keyspace_with(&args.at.keyspace, options)?)
}

/// A record that waits for its batch.
struct Pending {
    line: u64,
    record: Record,
}

/// The state of a load.
struct Loader<'a> {
    args: &'a LoadArgs,
    store: &'a Store,
    keyspace: &'a Keyspace,
    /// Values are operands.
    merges: bool,
    /// How values and operands are typed.
    form: OperandForm,
    durability: Durability,
    pending: Vec<Pending>,
    pending_bytes: usize,
    bar: ProgressBar,
    started: Instant,
    last_ack: Instant,
    latencies: Latencies,
    loaded: u64,
    loaded_bytes: u64,
    malformed: u64,
    acked: u64,
    interrupts: Interrupts,
}

impl<'a> Loader<'a> {
    fn new(
        args: &'a LoadArgs,
        store: &'a Store,
        keyspace: &'a Keyspace,
        bar: ProgressBar,
        interrupts: Interrupts,
    ) -> Loader<'a> {
        let now = Instant::now();
        Loader {
            args,
            store,
            keyspace,
            merges: args.merge.is_some(),
            form: OperandForm::of(keyspace.operator().unwrap_or_default()),
            durability: args.durability.into(),
            pending: Vec::new(),
            pending_bytes: 0,
            bar,
            started: now,
            last_ack: now,
            latencies: Latencies::new(),
            loaded: 0,
            loaded_bytes: 0,
            malformed: 0,
            acked: 0,
            interrupts,
        }
    }

    /// Reads and commits to the end of the input, or until somebody interrupts it. A batch that is not full by then is left
    /// out.
    fn read(&mut self, source: &mut dyn Source) -> Outcome {
        let mut record = Record::default();
        loop {
            if self.interrupts.asked() {
                return Ok(());
            }
            match source.next(&mut record).map_err(|e| Failure::io("reading the input", &e))? {
                Step::End => break,
                Step::Malformed { line, why } => self.reject(line, &why),
                Step::Record => match self.prepare(&mut record) {
                    Err(why) => self.reject(source.line(), &why),
                    Ok(()) if self.args.batch == 1 => self.write_one(source.line(), &record)?,
                    Ok(()) => {
                        self.pending_bytes += record.key.len() + record.value.len();
                        self.pending.push(Pending { line: source.line(), record: std::mem::take(&mut record) });
                        if self.pending.len() as u64 >= self.args.batch || self.pending_bytes >= BATCH_BYTES {
                            self.write_batch()?;
                        }
                    }
                },
            }
        }
        self.write_batch()
    }

    /// Turns an operand into bytes, and refuses what the store would refuse, before it joins a batch.
    fn prepare(&self, record: &mut Record) -> Result<(), String> {
        if record.key.len() > MAX_KEY {
            return Err(format!("the key has {} bytes, over the limit of {MAX_KEY}", record.key.len()));
        }
        let limit = if self.merges { MAX_OPERAND } else { MAX_VALUE };
        self.form.encode(&mut record.value)?;
        if record.value.len() > limit {
            return Err(format!("the value has {} bytes, over the limit of {limit}", record.value.len()));
        }
        Ok(())
    }

    /// Reports a line and goes on.
    fn reject(&mut self, line: u64, why: &str) {
        self.malformed += 1;
        if self.malformed <= REPORTED_LINES {
            self.bar.suspend(|| eprintln!("line {line}: malformed: {why}"));
        }
    }

    /// Says how many malformed lines were not reported one by one.
    fn say_unreported(&self) {
        if self.malformed > REPORTED_LINES {
            let (more, all) = (output::count(self.malformed - REPORTED_LINES), output::count(self.malformed));
            eprintln!("{more} more malformed lines are not listed, {all} in all");
        }
    }

    /// Commits one record. One that the store finds invalid is malformed; any other failure ends the load.
    fn write_one(&mut self, line: u64, record: &Record) -> Outcome {
        let started = Instant::now();
        let written = if self.merges {
            self.keyspace.merge(&record.key, &record.value)
        } else {
            self.keyspace.put(&record.key, &record.value)
        };
        match written {
            Ok(()) => self.committed(started, 1, line, record.key.len() + record.value.len()),
            Err(Error::InvalidArgument { detail }) => {
                self.reject(line, &detail);
                Ok(())
            }
            Err(error) => Err(error.into()),
        }
    }

    /// Commits what is pending. If the store finds something in it invalid, each record is tried alone.
    fn write_batch(&mut self) -> Outcome {
        if self.pending.is_empty() {
            return Ok(());
        }
        let pending = std::mem::take(&mut self.pending);
        let bytes = std::mem::take(&mut self.pending_bytes);
        let started = Instant::now();
        let mut batch = self.store.batch();
        for Pending { record, .. } in &pending {
            if self.merges {
                batch.merge(self.keyspace, &record.key, &record.value);
            } else {
                batch.put(self.keyspace, &record.key, &record.value);
            }
        }
        match batch.commit(self.durability) {
            Ok(()) => self.committed(started, pending.len() as u64, pending[pending.len() - 1].line, bytes),
            Err(Error::InvalidArgument { .. }) => pending.iter().try_for_each(|p| self.write_one(p.line, &p.record)),
            Err(error) => Err(error.into()),
        }
    }

    /// Counts a commit whose last record is from `line`, and acknowledges if it is time.
    fn committed(&mut self, started: Instant, records: u64, line: u64, bytes: usize) -> Outcome {
        let now = Instant::now();
        self.latencies.record(now - started);
        self.last_ack = now;
        self.loaded += records;
        self.loaded_bytes += bytes as u64;
        self.interrupts.committed(self.loaded, line);
        if self.args.ack_every.is_some_and(|every| self.loaded - self.acked >= every) {
            self.acked = self.loaded;
            // Whoever counts on acknowledgements must not lose them silently: a closed pipe is a failure here.
            output::line(format_args!("acked {}", self.acked)).map_err(|failure| match failure {
                Failure::PipeClosed => Failure::Io("nobody reads the acknowledgements on stdout any more".into()),
                other => other,
            })?;
        }
        Ok(())
    }

    /// The figures, once the debt is paid.
    fn report(&self) -> Outcome<Report> {
        let stats = self.store.stats()?;
        let seconds_to_no_debt = self.started.elapsed().as_secs_f64();
        let seconds = (self.last_ack - self.started).as_secs_f64();
        let own = stats.keyspaces.iter().find(|k| k.name == self.args.at.keyspace);
        Ok(Report {
            records: self.loaded,
            malformed: self.malformed,
            loaded_bytes: self.loaded_bytes,
            durability: self.args.durability.as_str(),
            records_per_second: if seconds > 0.0 { self.loaded as f64 / seconds } else { 0.0 },
            seconds_to_last_ack: seconds,
            seconds_to_no_debt,
            commits: self.latencies.figures(),
            memory_budget_bytes: stats.memory.budget,
            peak_rss_bytes: peak_rss_bytes(),
            levels: own.map_or(0, |k| k.index.figure("levels")),
            max_runs_on_path: own.map_or(0, |k| k.index.figure("max_runs_on_path")),
            logical_bytes: stats.logical_bytes,
            disk_bytes: stats.disk_bytes,
            debt_bytes: stats.debt_bytes,
            write_amplification: stats.write_amplification(),
            space_amplification: stats.space_amplification(),
            lifetime_user_bytes: stats.lifetime_user_bytes,
        })
    }
}

fn print(report: &Report, json: bool) -> Outcome {
    if json {
        return output::json(report);
    }
    let write = amplification(report.write_amplification, report.lifetime_user_bytes);
    let space = amplification(report.space_amplification, report.logical_bytes);
    let rss = report.peak_rss_bytes.map_or("unknown".into(), output::bytes);
    let rows = [
        ("records", format!("{} ({} malformed)", output::count(report.records), output::count(report.malformed))),
        (
            "time",
            format!(
                "{:.2} s, background work done after {:.2} s",
                report.seconds_to_last_ack, report.seconds_to_no_debt
            ),
        ),
        ("records/s", output::count(report.records_per_second as u64)),
        ("commit", latency_line(&report.commits)),
        ("durability", report.durability.into()),
        ("memory", format!("peak {rss}, budget {}", output::bytes(report.memory_budget_bytes))),
        ("tree", format!("{} levels, at most {} runs on a path", report.levels, report.max_runs_on_path)),
        ("on disk", format!("{} for {}", output::bytes(report.disk_bytes), output::bytes(report.logical_bytes))),
        ("amplification", format!("write {write} in the store's life, space {space}")),
    ];
    output::line(output::figures(&rows))
}
