//! `salvage`: copies the readable part of a damaged store to a new store and lists the lost data.

use std::time::Instant;

use pandodb::check::{self, Loss, SalvageReport};
use serde::Serialize;

use super::{Access, builder};
use crate::{
    args::SalvageArgs,
    failure::{Failure, Outcome},
    kv, output,
};

/// The result of `salvage`.
#[derive(Debug, Serialize)]
struct Report {
    complete: bool,
    seconds: f64,
    keyspaces: Vec<KeyspaceReport>,
    /// The damage in the log at which the salvage stopped reading the log.
    log_cut: Option<String>,
}

#[derive(Debug, Serialize)]
struct KeyspaceReport {
    name: String,
    entries: u64,
    bytes: u64,
    stale: u64,
    losses: Vec<LossReport>,
}

/// A lost range. Keys are escaped. Without `to`, the range has no upper bound.
#[derive(Debug, Serialize)]
struct LossReport {
    from: String,
    to: Option<String>,
    /// If this is set, only writes after this seqno are lost.
    after_seqno: Option<u64>,
    reason: String,
}

impl From<&Loss> for LossReport {
    fn from(loss: &Loss) -> LossReport {
        let to = Some(&loss.range.to).filter(|to| !to.is_empty());
        LossReport {
            from: kv::escaped(&loss.range.from),
            to: to.map(|to| kv::escaped(to)),
            after_seqno: loss.after,
            // The error's advice to the user is left out, because this advice is to salvage the store.
            reason: loss.reason.what(),
        }
    }
}

impl Report {
    fn new(report: &SalvageReport, seconds: f64) -> Report {
        let keyspaces = report.keyspaces.iter().map(|keyspace| KeyspaceReport {
            name: keyspace.keyspace.clone(),
            entries: keyspace.entries,
            bytes: keyspace.bytes,
            stale: keyspace.stale,
            losses: keyspace.losses.iter().map(LossReport::from).collect(),
        });
        let log_cut = report.log_cut.as_ref().map(|damage| damage.to_string());
        Report { complete: report.is_complete(), seconds, keyspaces: keyspaces.collect(), log_cut }
    }
}

/// Copies the readable data. The exit code is 5 if some data is lost.
pub fn run(args: &SalvageArgs) -> Outcome {
    let from = builder(&args.store, Access::Read)?;
    if args.to.read_dir().is_ok_and(|mut entries| entries.next().is_some()) {
        let to = args.to.display();
        return Err(Failure::Misuse(format!("`{to}` is not empty; name a new or empty directory")));
    }
    let started = Instant::now();
    let out = pandodb::Store::open(&args.to)?;
    let bar = output::spinner("salvaging");
    let report = check::salvage(from, &out, args.include_stale)?;
    out.settle()?;
    out.close()?;
    bar.finish_and_clear();
    let report = Report::new(&report, started.elapsed().as_secs_f64());
    if args.json {
        output::json(&report)?;
    } else {
        print(&report, args)?;
    }
    let losses: usize = report.keyspaces.iter().map(|keyspace| keyspace.losses.len()).sum();
    if report.complete {
        return Ok(());
    }
    Err(Failure::Lost(format!(
        "{losses} key ranges are lost, completely or in part; the report above lists them; keep the damaged store"
    )))
}

fn print(report: &Report, args: &SalvageArgs) -> Outcome {
    for keyspace in &report.keyspaces {
        let (entries, bytes) = (output::count(keyspace.entries), output::bytes(keyspace.bytes));
        let stale = match keyspace.stale {
            0 => String::new(),
            stale => format!(", {} of them possibly out of date", output::count(stale)),
        };
        output::line(format_args!("{}: {entries} entries, {bytes}{stale}", keyspace.name))?;
        for loss in &keyspace.losses {
            let to = loss.to.as_deref().unwrap_or("the end");
            let after = loss.after_seqno.map_or(String::new(), |seqno| format!(", writes after seqno {seqno}"));
            output::line(format_args!("  lost: from `{}` to {to}{after}: {}", loss.from, loss.reason))?;
        }
    }
    if let Some(damage) = &report.log_cut {
        output::line(format_args!("the log is damaged; keyspaces created after the damage are lost: {damage}"))?;
    }
    let word = if report.complete { "everything" } else { "the readable part" };
    output::line(format_args!("{word} copied to `{}` in {:.2} s", args.to.display(), report.seconds))
}
