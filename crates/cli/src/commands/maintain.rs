//! The maintenance commands `verify`, `compact`, `checkpoint` and `backup`.

use std::time::Instant;

use pandodb::Error;
use serde::Serialize;

use super::{Access, existing, open, scan::bounds, stats::amplification};
use crate::{
    args::{BackupArgs, CompactArgs, ReportArgs},
    failure::{Failure, Outcome},
    output,
};

/// The result of `verify`.
#[derive(Debug, Serialize)]
struct Verdict {
    sound: bool,
    blocks: u64,
    bytes: u64,
    entries: u64,
    runs: u64,
    nodes: u64,
    blobs: u64,
    problems: Vec<String>,
}

/// Reads and checks the whole store. The exit code is 3 if the store is damaged.
pub fn verify(args: &ReportArgs) -> Outcome {
    let store = open(&args.store, Access::Read)?;
    let bar = output::spinner("verifying");
    let report = store.verify()?;
    bar.finish_and_clear();
    // The advice to the user is printed only once, at the end.
    let problems: Vec<String> = report.problems.iter().map(Error::what).collect();
    let verdict = Verdict {
        sound: problems.is_empty(),
        blocks: report.blocks,
        bytes: report.bytes,
        entries: report.entries,
        runs: report.runs,
        nodes: report.nodes,
        blobs: report.blobs,
        problems,
    };
    print_verdict(&verdict, args.json)?;
    match verdict.problems.len() {
        0 => Ok(()),
        n => Err(Failure::Corruption(format!(
            "{n} problems found; restore from a backup, or `pando salvage` what is still readable"
        ))),
    }
}

fn print_verdict(verdict: &Verdict, json: bool) -> Outcome {
    if json {
        return output::json(verdict);
    }
    let word = if verdict.sound { "sound" } else { "DAMAGED" };
    output::line(format_args!(
        "{word}: {} entries in {} runs, {} copies of index blocks, {} blocks, {} large values; {} read and checked",
        output::count(verdict.entries),
        output::count(verdict.runs),
        output::count(verdict.nodes),
        output::count(verdict.blocks),
        output::count(verdict.blobs),
        output::bytes(verdict.bytes),
    ))?;
    verdict.problems.iter().try_for_each(output::line)
}

/// The result of `compact`.
#[derive(Debug, Serialize)]
struct Compacted {
    seconds: f64,
    disk_bytes_before: u64,
    disk_bytes_after: u64,
    space_amplification: f64,
    logical_bytes: u64,
}

/// Compacts a range of keys and waits until the space of dropped entries is free.
pub fn compact(args: &CompactArgs) -> Outcome {
    let store = open(&args.at.store, Access::Write)?;
    let keyspace = existing(&store, &args.at.keyspace)?;
    let range = bounds(&args.range)?;
    let started = Instant::now();
    let before = store.stats()?;
    let bar = output::spinner("compacting");
    keyspace.compact(range)?;
    store.settle()?;
    bar.finish_and_clear();
    let after = store.stats()?;
    store.close()?;
    let done = Compacted {
        seconds: started.elapsed().as_secs_f64(),
        disk_bytes_before: before.disk_bytes,
        disk_bytes_after: after.disk_bytes,
        space_amplification: after.space_amplification(),
        logical_bytes: after.logical_bytes,
    };
    if args.json {
        return output::json(&done);
    }
    let (from, to) = (output::bytes(done.disk_bytes_before), output::bytes(done.disk_bytes_after));
    let (space, seconds) = (amplification(done.space_amplification, done.logical_bytes), done.seconds);
    output::line(format_args!("compacted in {seconds:.2} s: {from} before, {to} after, space amplification {space}"))
}

/// The result of `checkpoint`.
#[derive(Debug, Serialize)]
struct Checkpointed {
    seconds: f64,
    disk_bytes: u64,
}

/// Makes all data durable and removes the log that is no longer needed.
pub fn checkpoint(args: &ReportArgs) -> Outcome {
    let store = open(&args.store, Access::Write)?;
    let started = Instant::now();
    store.checkpoint()?;
    let done = Checkpointed { seconds: started.elapsed().as_secs_f64(), disk_bytes: store.stats()?.disk_bytes };
    store.close()?;
    if args.json {
        return output::json(&done);
    }
    output::line(format_args!("checkpoint in {:.2} s, {} on disk", done.seconds, output::bytes(done.disk_bytes)))
}

/// The result of `backup`.
#[derive(Debug, Serialize)]
struct BackedUp {
    seconds: f64,
    bytes: u64,
}

/// Copies the store to a new directory.
pub fn backup(args: &BackupArgs) -> Outcome {
    let store = open(&args.store, Access::Write)?;
    let started = Instant::now();
    let bar = output::spinner("copying");
    let report = match &args.keyspaces[..] {
        [] => store.backup(&args.to),
        names => store.backup_keyspaces(&args.to, names),
    }?;
    bar.finish_and_clear();
    store.close()?;
    let done = BackedUp { seconds: started.elapsed().as_secs_f64(), bytes: report.bytes };
    if args.json {
        return output::json(&done);
    }
    let (to, bytes) = (args.to.display(), output::bytes(done.bytes));
    output::line(format_args!("{bytes} copied to `{to}` in {:.2} s", done.seconds))
}
