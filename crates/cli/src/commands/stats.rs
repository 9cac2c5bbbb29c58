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

/// [`StoreStats`] for programs. Sizes are in bytes; an amplification is a ratio; what counts events counts them since the
/// store was opened, by this process.
#[derive(Debug, Serialize)]
struct Stats {
    records: u64,
    logical_bytes: u64,
    disk_bytes: u64,
    log_bytes: u64,
    reserve_bytes: u64,
    quarantined_bytes: u64,
    write_amplification: f64,
    read_amplification: f64,
    space_amplification: f64,
    levels: u32,
    max_runs_on_path: u64,
    debt_bytes: u64,
    checkpoints: u64,
    snapshots: u64,
    written: Written,
    memory: Memory,
    latency: Latencies,
    trouble: Option<String>,
    keyspaces: Vec<KeyspaceFigures>,
}

/// Bytes written, by cause.
#[derive(Debug, Serialize)]
struct Written {
    user_bytes: u64,
    log_bytes: u64,
    pack_bytes: u64,
    compact_bytes: u64,
    checkpoint_bytes: u64,
    data_bytes: u64,
}

/// Bytes held, by part, against the budget; and what the system says that the process has held at most.
#[derive(Debug, Serialize)]
struct Memory {
    budget_bytes: u64,
    memtable_bytes: u64,
    pool_bytes: u64,
    pinned_bytes: u64,
    row_cache_bytes: u64,
    peak_rss_bytes: Option<u64>,
}

/// Latencies of this process.
#[derive(Debug, Serialize)]
struct Latencies {
    write: LatencyFigures,
    read: LatencyFigures,
}

/// One keyspace; records are an estimate.
#[derive(Debug, Serialize)]
struct KeyspaceFigures {
    name: String,
    records: u64,
    logical_bytes: u64,
    disk_bytes: u64,
    memtable_bytes: u64,
    levels: u32,
    nodes: u64,
    runs: u64,
    max_runs_on_path: u64,
    damaged_runs: u64,
    debt_bytes: u64,
    compactions: u64,
    flushes: u64,
    splits: u64,
    merges: u64,
}

fn latency(of: &pandodb::Latency) -> LatencyFigures {
    LatencyFigures { count: of.count, p50_us: of.p50_us, p99_us: of.p99_us, p99_9_us: of.p99_9_us, max_us: of.max_us }
}

impl From<&pandodb::KeyspaceStats> for KeyspaceFigures {
    fn from(stats: &pandodb::KeyspaceStats) -> KeyspaceFigures {
        let index = &stats.index;
        KeyspaceFigures {
            name: stats.name.clone(),
            records: stats.records,
            logical_bytes: index.logical_bytes,
            disk_bytes: index.disk_bytes,
            memtable_bytes: stats.memtable_bytes,
            levels: index.levels,
            nodes: index.nodes,
            runs: index.runs,
            max_runs_on_path: index.max_runs_on_path,
            damaged_runs: index.damaged_runs,
            debt_bytes: index.debt.total(),
            compactions: index.compactions,
            flushes: index.flushes,
            splits: index.splits,
            merges: index.merges,
        }
    }
}

impl From<&StoreStats> for Stats {
    fn from(stats: &StoreStats) -> Stats {
        let keyspaces: Vec<KeyspaceFigures> = stats.keyspaces.iter().map(KeyspaceFigures::from).collect();
        let (written, memory) = (&stats.written, &stats.memory);
        Stats {
            records: keyspaces.iter().map(|k| k.records).sum(),
            logical_bytes: stats.logical_bytes,
            disk_bytes: stats.disk_bytes,
            log_bytes: stats.log_bytes,
            reserve_bytes: stats.reserve_bytes,
            quarantined_bytes: stats.quarantined_bytes,
            write_amplification: stats.write_amplification(),
            read_amplification: stats.read_amplification(),
            space_amplification: stats.space_amplification(),
            levels: keyspaces.iter().map(|k| k.levels).max().unwrap_or(0),
            max_runs_on_path: keyspaces.iter().map(|k| k.max_runs_on_path).max().unwrap_or(0),
            debt_bytes: stats.debt_bytes,
            checkpoints: stats.checkpoints,
            snapshots: stats.snapshots,
            written: Written {
                user_bytes: written.user,
                log_bytes: written.log,
                pack_bytes: written.pack,
                compact_bytes: written.compact,
                checkpoint_bytes: written.checkpoint,
                data_bytes: written.data,
            },
            memory: Memory {
                budget_bytes: memory.budget,
                memtable_bytes: memory.memtables,
                pool_bytes: memory.pool,
                pinned_bytes: memory.pinned,
                row_cache_bytes: memory.rows,
                peak_rss_bytes: peak_rss_bytes(),
            },
            latency: Latencies { write: latency(&stats.write_latency), read: latency(&stats.read_latency) },
            trouble: stats.trouble.clone(),
            keyspaces,
        }
    }
}

/// Prints sizes, amplifications, levels, debt, memory and latencies.
pub fn stats(args: &ReportArgs) -> Outcome {
    let store = open(&args.store, Access::Read)?;
    let stats = Stats::from(&store.stats()?);
    if args.json { output::json(&stats) } else { output::line(describe(&stats)) }
}

fn describe(stats: &Stats) -> String {
    let (written, memory) = (&stats.written, &stats.memory);
    let amplification = format!(
        "write {:.2}, read {:.2}, space {:.2}",
        stats.write_amplification, stats.read_amplification, stats.space_amplification
    );
    let by_cause = parts(&[
        ("user", written.user_bytes),
        ("log", written.log_bytes),
        ("pack", written.pack_bytes),
        ("compact", written.compact_bytes),
        ("checkpoint", written.checkpoint_bytes),
        ("data file", written.data_bytes),
    ]);
    let by_part = parts(&[
        ("budget", memory.budget_bytes),
        ("memtables", memory.memtable_bytes),
        ("pool", memory.pool_bytes),
        ("of which pinned", memory.pinned_bytes),
        ("rows", memory.row_cache_bytes),
    ]);
    let disk = parts(&[
        ("data", stats.disk_bytes),
        ("log", stats.log_bytes),
        ("reserve", stats.reserve_bytes),
        ("to be freed", stats.quarantined_bytes),
    ]);
    let rows = [
        ("records", format!("about {}", output::count(stats.records))),
        ("logical", output::bytes(stats.logical_bytes)),
        ("on disk", disk),
        ("amplification", amplification),
        ("tree", format!("{} levels, at most {} runs on a path", stats.levels, stats.max_runs_on_path)),
        ("debt", output::bytes(stats.debt_bytes)),
        ("written", by_cause),
        ("memory", by_part),
        ("writes", latency_line(&stats.latency.write)),
        ("reads", latency_line(&stats.latency.read)),
        ("trouble", stats.trouble.clone().unwrap_or_else(|| "none".into())),
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
        .map(|k| Listed { name: k.name, id: u64::from(k.id), index: k.index, operator: k.operator })
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
