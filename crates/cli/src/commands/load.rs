//! `load`: loads records from a stream into a keyspace and measures the load.
//!
//! ```text
//! Source ─▶ record ─▶ commit (one record, or --batch N) ─▶ acked COUNT, when N more are durable
//!    │                   └─ its latency is added to the histogram
//!    └─ malformed: counted and skipped; the first 20 are reported with their line numbers
//! end: wait until no background work is left, then print the figures
//! Ctrl-C: stop between two commits, close, report what is in the store
//!
//! --sorted: Source ─▶ record ─▶ one sorted load; a malformed record or a record out of order ends the load without effect
//! ```
//!
//! Each commit returns once it has the requested durability, so the command can acknowledge it immediately. The process
//! needs memory for the store's budget, for one record (or one batch), and for the buffers of the input.

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

/// A batch that reaches this number of bytes is committed early, because the memory holds two copies of a batch, and
/// because the store limits the size of a batch.
const BATCH_BYTES: usize = 8 << 20;
/// The number of malformed lines that are reported one by one. Further malformed lines are only counted.
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
    // It is not enough to drop this handle, because the signal listener has another handle, which keeps the store open.
    let closed = store.close();
    let report = match loaded {
        Err(failure @ Failure::Interrupted(_)) => return closed.map_err(Failure::from).and(Err(failure)),
        other => other?,
    };
    closed?;
    print(&report, args.json)?;
    match (report.records, report.malformed) {
        (0, 1..) => {
            Err(Failure::Misuse("nothing was loaded, because every line is malformed; check --format and --key".into()))
        }
        _ => Ok(()),
    }
}

/// Loads the whole input, then waits until no background work is left.
fn load(args: &LoadArgs, store: &Store, source: &mut dyn Source, bar: ProgressBar) -> Outcome<Report> {
    let keyspace = keyspace(store, args)?;
    let interrupts = Interrupts::listen(store.clone())?;
    let mut loader = Loader::new(args, store, &keyspace, bar, interrupts);
    let read = if args.sorted { loader.read_sorted(source) } else { loader.read(source) };
    loader.bar.finish_and_clear();
    loader.say_unreported();
    if let Err(failure) = read {
        return Err(failure.context(format_args!("line {}, after {} records", source.line(), loader.loaded)));
    }
    if loader.interrupts.asked() {
        return Err(loader.interrupts.failure());
    }
    let bar = output::spinner("finishing background work");
    store.settle()?;
    bar.finish_and_clear();
    loader.report()
}

/// Opens the keyspace, or creates it with the given options.
fn keyspace(store: &Store, args: &LoadArgs) -> Outcome<Keyspace> {
    if args.index.is_none() && args.merge.is_none() {
        return Ok(store.keyspace(&args.at.keyspace)?);
    }
    let mut options = KeyspaceOptions::new();
    if let Some(index) = &args.index {
        options = options.index(index.clone());
    }
    // Without --merge, an existing keyspace keeps its operator.
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
    /// Whether values are operands.
    merges: bool,
    /// The form of values and operands in the input.
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

    /// Reads and commits until the end of the input, or until a signal interrupts the load. After a signal, an
    /// incomplete batch is not committed.
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

    /// Loads the whole input as one sorted load.
    fn read_sorted(&mut self, source: &mut dyn Source) -> Outcome {
        let started = Instant::now();
        let mut bytes = 0;
        let loaded = self.keyspace.try_load_sorted(std::iter::from_fn(|| {
            let row = self.next_sorted(source).transpose()?;
            bytes += row.as_ref().map_or(0, |record| record.key.len() + record.value.len());
            Some(row.map(|record| (record.key, record.value)))
        }));
        self.committed(started, loaded?, source.line(), bytes)
    }

    /// The next record of a sorted load; `None` at the end of the input.
    fn next_sorted(&self, source: &mut dyn Source) -> Outcome<Option<Record>> {
        let mut record = Record::default();
        if self.interrupts.asked() {
            return Err(self.interrupts.failure());
        }
        let malformed = |why: String| Failure::Misuse(format!("malformed: {why}; nothing was loaded"));
        match source.next(&mut record).map_err(|e| Failure::io("reading the input", &e))? {
            Step::End => Ok(None),
            Step::Malformed { why, .. } => Err(malformed(why)),
            Step::Record => self.prepare(&mut record).map_err(malformed).map(|()| Some(record)),
        }
    }

    /// Converts an operand into bytes. Refuses a record that the store would refuse, before the record becomes part of
    /// a batch.
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

    /// Counts a malformed line, and reports it if it is one of the first malformed lines.
    fn reject(&mut self, line: u64, why: &str) {
        self.malformed += 1;
        if self.malformed <= REPORTED_LINES {
            self.bar.suspend(|| eprintln!("line {line}: malformed: {why}"));
        }
    }

    /// Prints the number of malformed lines that were not reported one by one.
    fn say_unreported(&self) {
        if self.malformed > REPORTED_LINES {
            let (more, all) = (output::count(self.malformed - REPORTED_LINES), output::count(self.malformed));
            eprintln!("{more} more malformed lines are not listed, {all} in all");
        }
    }

    /// Commits one record. If the store refuses the record as invalid, the record counts as malformed. Any other
    /// failure ends the load.
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

    /// Commits the pending records. If the store refuses them as invalid, each record is committed alone.
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

    /// Counts a commit whose last record is from `line`, and prints an acknowledgement if enough records were committed
    /// since the last acknowledgement.
    fn committed(&mut self, started: Instant, records: u64, line: u64, bytes: usize) -> Outcome {
        let now = Instant::now();
        self.latencies.record(now - started);
        self.last_ack = now;
        self.loaded += records;
        self.loaded_bytes += bytes as u64;
        self.interrupts.committed(self.loaded, line);
        if self.args.ack_every.is_some_and(|every| self.loaded - self.acked >= every) {
            self.acked = self.loaded;
            // If the reader of the acknowledgements has closed the pipe, acknowledgements would be lost silently. So a
            // closed pipe is a failure here.
            output::line(format_args!("acked {}", self.acked)).map_err(|failure| match failure {
                Failure::PipeClosed => Failure::Io(
                    "the reader of the acknowledgements on stdout closed the pipe, so the load stopped".into(),
                ),
                other => other,
            })?;
        }
        Ok(())
    }

    /// The figures of the load, computed after background work has ended.
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
        ("amplification", format!("write {write} since the store was created, space {space}")),
    ];
    output::line(output::figures(&rows))
}
