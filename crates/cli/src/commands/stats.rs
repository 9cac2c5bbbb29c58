//! `stats` and `keyspaces`: what the store says about itself.

use pandodb::StoreStats;
use serde::Serialize;

use super::{Access, open};
use crate::{
    args::ReportArgs,
    failure::Outcome,
    meter::{LatencyFigures, peak_rss_bytes},
    output,
};

/// [`StoreStats`] for programs. Sizes are in bytes; an amplification is a ratio.
#[derive(Debug, Serialize)]
struct Stats {
    records: u64,
    logical_bytes: u64,
    disk_bytes: u64,
    write_amplification: f64,
    read_amplification: f64,
    space_amplification: f64,
    levels: u64,
    max_runs_on_path: u64,
    debt_bytes: u64,
    bytes_written: Written,
    memory: Memory,
    peak_rss_bytes: Option<u64>,
    latency: Latencies,
    keyspaces: Vec<KeyspaceFigures>,
}

/// Bytes that this process has written, by cause.
#[derive(Debug, Serialize)]
struct Written {
    log: u64,
    pack: u64,
    compact: u64,
    checkpoint: u64,
    blob: u64,
}

/// Bytes held, by part, against the budget.
#[derive(Debug, Serialize)]
struct Memory {
    budget: u64,
    memtables: u64,
    pool: u64,
    compaction: u64,
    cursors: u64,
    total: u64,
}

/// Latencies of this process.
#[derive(Debug, Serialize)]
struct Latencies {
    put: LatencyFigures,
    get: LatencyFigures,
}

/// One keyspace; records are an estimate.
#[derive(Debug, Serialize)]
struct KeyspaceFigures {
    name: String,
    records: u64,
    logical_bytes: u64,
    disk_bytes: u64,
    levels: u64,
    nodes: u64,
    runs: u64,
    max_runs_on_path: u64,
    debt_bytes: u64,
}

fn latency(of: &pandodb::Latency) -> LatencyFigures {
    LatencyFigures { count: of.count, p50_us: of.p50_us, p99_us: of.p99_us, p99_9_us: of.p99_9_us, max_us: of.max_us }
}

impl From<&pandodb::KeyspaceStats> for KeyspaceFigures {
    fn from(stats: &pandodb::KeyspaceStats) -> KeyspaceFigures {
        KeyspaceFigures {
            name: stats.name.clone(),
            records: stats.records,
            logical_bytes: stats.logical_bytes,
            disk_bytes: stats.disk_bytes,
            levels: u64::from(stats.levels),
            nodes: stats.nodes,
            runs: stats.runs,
            max_runs_on_path: stats.max_runs_on_path,
            debt_bytes: stats.debt_bytes,
        }
    }
}

impl From<&StoreStats> for Stats {
    fn from(stats: &StoreStats) -> Stats {
        let keyspaces: Vec<KeyspaceFigures> = stats.keyspaces.iter().map(KeyspaceFigures::from).collect();
        let (written, memory) = (&stats.bytes_by_cause, &stats.memory);
        Stats {
            records: keyspaces.iter().map(|k| k.records).sum(),
            logical_bytes: keyspaces.iter().map(|k| k.logical_bytes).sum(),
            disk_bytes: stats.disk_bytes,
            write_amplification: stats.write_amplification,
            read_amplification: stats.read_amplification,
            space_amplification: stats.space_amplification,
            levels: keyspaces.iter().map(|k| k.levels).max().unwrap_or(0),
            max_runs_on_path: keyspaces.iter().map(|k| k.max_runs_on_path).max().unwrap_or(0),
            debt_bytes: keyspaces.iter().map(|k| k.debt_bytes).sum(),
            bytes_written: Written {
                log: written.log,
                pack: written.pack,
                compact: written.compact,
                checkpoint: written.checkpoint,
                blob: written.blob,
            },
            memory: Memory {
                budget: memory.budget,
                memtables: memory.memtables,
                pool: memory.pool,
                compaction: memory.compaction,
                cursors: memory.cursors,
                total: memory.total,
            },
            peak_rss_bytes: peak_rss_bytes(),
            latency: Latencies { put: latency(&stats.latency.put), get: latency(&stats.latency.get) },
            keyspaces,
        }
    }
}

/// Prints sizes, amplifications, levels, debt, memory and latencies.
pub fn stats(args: &ReportArgs) -> Outcome {
    let store = open(&args.store, Access::Read)?;
    let stats = Stats::from(&store.stats());
    if args.json { output::json(&stats) } else { output::line(describe(&stats)) }
}

fn describe(stats: &Stats) -> String {
    let rows = [
        ("records", format!("about {}", output::count(stats.records))),
        ("logical", output::bytes(stats.logical_bytes)),
        ("on disk", output::bytes(stats.disk_bytes)),
        (
            "amplification",
            format!(
                "write {:.2}, read {:.2}, space {:.2}",
                stats.write_amplification, stats.read_amplification, stats.space_amplification
            ),
        ),
        ("tree", format!("{} levels, at most {} runs on a path", stats.levels, stats.max_runs_on_path)),
        ("debt", output::bytes(stats.debt_bytes)),
        (
            "written",
            parts(&[
                ("log", stats.bytes_written.log),
                ("pack", stats.bytes_written.pack),
                ("compact", stats.bytes_written.compact),
                ("checkpoint", stats.bytes_written.checkpoint),
                ("large values", stats.bytes_written.blob),
            ]),
        ),
        ("memory", format!("{} of {}", output::bytes(stats.memory.total), output::bytes(stats.memory.budget))),
        (
            "  of which",
            parts(&[
                ("memtables", stats.memory.memtables),
                ("pool", stats.memory.pool),
                ("compaction", stats.memory.compaction),
                ("cursors", stats.memory.cursors),
            ]),
        ),
        ("put", latency_line(&stats.latency.put)),
        ("get", latency_line(&stats.latency.get)),
    ];
    format!("{}\n\n{}", output::figures(&rows), keyspace_table(&stats.keyspaces))
}

fn parts(parts: &[(&str, u64)]) -> String {
    let parts: Vec<String> = parts.iter().map(|(name, size)| format!("{name} {}", output::bytes(*size))).collect();
    parts.join(", ")
}

/// One line for a distribution of latencies.
pub fn latency_line(of: &LatencyFigures) -> String {
    if of.count == 0 {
        return "none in this process".into();
    }
    format!(
        "p50 {}, p99 {}, p99.9 {}, max {} of {}",
        output::micros(of.p50_us),
        output::micros(of.p99_us),
        output::micros(of.p99_9_us),
        output::micros(of.max_us),
        output::count(of.count),
    )
}

fn keyspace_table(keyspaces: &[KeyspaceFigures]) -> String {
    let head = ["keyspace", "records", "logical", "on disk", "levels", "nodes", "runs", "path", "debt"];
    let rows: Vec<Vec<String>> = (keyspaces.iter())
        .map(|k| {
            vec![
                crate::kv::escaped(k.name.as_bytes()),
                output::count(k.records),
                output::bytes(k.logical_bytes),
                output::bytes(k.disk_bytes),
                k.levels.to_string(),
                k.nodes.to_string(),
                k.runs.to_string(),
                k.max_runs_on_path.to_string(),
                output::bytes(k.debt_bytes),
            ]
        })
        .collect();
    output::table(&head, &rows)
}

/// One keyspace, as `keyspaces` lists it.
#[derive(Debug, Serialize)]
struct Listed {
    name: String,
    id: u64,
    index: &'static str,
    operator: Option<String>,
}

/// Lists the keyspaces: name, index and operator.
pub fn keyspaces(args: &ReportArgs) -> Outcome {
    let store = open(&args.store, Access::Read)?;
    let listed: Vec<Listed> = (store.keyspaces().into_iter())
        .map(|k| Listed { name: k.name, id: u64::from(k.id.0), index: k.index, operator: k.operator })
        .collect();
    if args.json {
        return output::json(&listed);
    }
    let rows: Vec<Vec<String>> = (listed.into_iter())
        .map(|k| {
            let operator = k.operator.unwrap_or_else(|| "-".into());
            vec![crate::kv::escaped(k.name.as_bytes()), k.id.to_string(), k.index.into(), operator]
        })
        .collect();
    output::line(output::table(&["keyspace", "id", "index", "operator"], &rows))
}
