//! The commands `stats` and `keyspaces`, which print the figures and the keyspaces of a store.
//!
//! If another process has the store open for writing, both commands show the last checkpoint of the store
//! ([`pandodb::check::glance`]). Then these commands take no lock and do not read the log, so that the writer is not
//! affected.

use std::collections::BTreeMap;
use std::time::SystemTime;

use pandodb::{IndexStats, KeyspaceInfo, StoreStats, check::Glance};
use serde::Serialize;

use super::open_or_glance;
use crate::{
    args::ReportArgs,
    failure::Outcome,
    meter::{LatencyFigures, peak_rss_bytes},
    output,
};

/// An amplification that was measured over fewer bytes than this is not shown, because it would mostly measure headers.
const TELLING_BYTES: u64 = 1 << 20;

/// [`StoreStats`] as JSON. Sizes are in bytes. An amplification is a ratio. The write amplification covers the time
/// since the store was created. Counters of events are 0 when this process opens the store. If another process has the
/// store open, `as_of` is set, and fields that only the other process knows are null.
#[derive(Debug, Serialize)]
struct Stats {
    as_of: Option<AsOf>,
    records: u64,
    logical_bytes: u64,
    disk_bytes: u64,
    log_bytes: u64,
    reserve_bytes: Option<u64>,
    quarantined_bytes: Option<u64>,
    lifetime_user_bytes: u64,
    lifetime_written_bytes: u64,
    write_amplification: f64,
    read_amplification: Option<f64>,
    space_amplification: f64,
    debt_bytes: Option<u64>,
    checkpoints: Option<u64>,
    snapshots: Option<u64>,
    written: Option<Written>,
    memory: Option<Memory>,
    latency: Option<Latencies>,
    trouble: Option<String>,
    keyspaces: Vec<KeyspaceFigures>,
}

/// The checkpoint that the figures describe.
#[derive(Debug, Serialize)]
struct AsOf {
    generation: u64,
    /// The age of the checkpoint, by the clocks of the writer and of this process. `None` if the time of the checkpoint
    /// is unknown.
    checkpoint_seconds_ago: Option<u64>,
}

impl AsOf {
    fn new(seen: &Glance) -> AsOf {
        let age = |at| SystemTime::now().duration_since(at).unwrap_or_default().as_secs();
        AsOf { generation: seen.generation, checkpoint_seconds_ago: seen.checkpointed_at.map(age) }
    }

    /// Formats the checkpoint as text, such as "the last checkpoint, 12 s ago (…)".
    fn in_words(&self) -> String {
        let age = self.checkpoint_seconds_ago.map_or_else(|| "at an unknown time".into(), |s| format!("{s} s ago"));
        format!("the last checkpoint, {age} (another process has the store open); later writes are not included")
    }
}

/// The number of bytes written, by cause.
#[derive(Debug, Serialize)]
struct Written {
    user_bytes: u64,
    log_bytes: u64,
    pack_bytes: u64,
    compact_bytes: u64,
    checkpoint_bytes: u64,
    data_bytes: u64,
}

/// The memory by part, the budget, and the peak memory of the process as reported by the system.
#[derive(Debug, Serialize)]
struct Memory {
    budget_bytes: u64,
    memtable_bytes: u64,
    pool_bytes: u64,
    pinned_bytes: u64,
    row_cache_bytes: u64,
    peak_rss_bytes: Option<u64>,
}

/// Latencies of operations in this process.
#[derive(Debug, Serialize)]
struct Latencies {
    write: LatencyFigures,
    read: LatencyFigures,
}

/// The figures of one keyspace. The number of records is an estimate.
#[derive(Debug, Serialize)]
struct KeyspaceFigures {
    name: String,
    records: u64,
    logical_bytes: u64,
    disk_bytes: u64,
    memtable_bytes: u64,
    /// Bytes of filters and other blocks that lookups need in the pool.
    search_bytes: u64,
    /// Objects of the index, such as runs, that a compaction could not read.
    damaged: u64,
    debt_bytes: Option<u64>,
    compactions: u64,
    /// The figures that are specific to the type of the index, by name.
    figures: BTreeMap<&'static str, u64>,
}

fn latency(of: &pandodb::Latency) -> LatencyFigures {
    LatencyFigures { count: of.count, p50_us: of.p50_us, p99_us: of.p99_us, p99_9_us: of.p99_9_us, max_us: of.max_us }
}

impl KeyspaceFigures {
    fn new(name: &str, records: u64, memtable_bytes: u64, index: &IndexStats) -> KeyspaceFigures {
        KeyspaceFigures {
            name: name.to_owned(),
            records,
            logical_bytes: index.logical_bytes,
            disk_bytes: index.disk_bytes,
            memtable_bytes,
            search_bytes: index.search_bytes,
            damaged: index.damaged,
            debt_bytes: Some(index.debt.total()),
            compactions: index.compactions,
            figures: index.named.iter().map(|figure| (figure.name, figure.value)).collect(),
        }
    }
}

impl From<&StoreStats> for Stats {
    fn from(stats: &StoreStats) -> Stats {
        let figures =
            stats.keyspaces.iter().map(|k| KeyspaceFigures::new(&k.name, k.records, k.memtable_bytes, &k.index));
        let (written, memory) = (&stats.written, &stats.memory);
        Stats {
            as_of: None,
            logical_bytes: stats.logical_bytes,
            disk_bytes: stats.disk_bytes,
            log_bytes: stats.log_bytes,
            reserve_bytes: Some(stats.reserve_bytes),
            quarantined_bytes: Some(stats.quarantined_bytes),
            lifetime_user_bytes: stats.lifetime_user_bytes,
            lifetime_written_bytes: stats.lifetime_written_bytes,
            write_amplification: stats.write_amplification(),
            read_amplification: Some(stats.read_amplification()),
            space_amplification: stats.space_amplification(),
            debt_bytes: Some(stats.debt_bytes),
            checkpoints: Some(stats.checkpoints),
            snapshots: Some(stats.snapshots),
            written: Some(Written {
                user_bytes: written.user,
                log_bytes: written.log,
                pack_bytes: written.pack,
                compact_bytes: written.compact,
                checkpoint_bytes: written.checkpoint,
                data_bytes: written.data,
            }),
            memory: Some(Memory {
                budget_bytes: memory.budget,
                memtable_bytes: memory.memtables,
                pool_bytes: memory.pool,
                pinned_bytes: memory.pinned,
                row_cache_bytes: memory.rows,
                peak_rss_bytes: peak_rss_bytes(),
            }),
            latency: Some(Latencies { write: latency(&stats.write_latency), read: latency(&stats.read_latency) }),
            trouble: stats.trouble.clone(),
            ..Stats::of(figures.collect())
        }
    }
}

impl From<&Glance> for Stats {
    fn from(seen: &Glance) -> Stats {
        let figures = seen.keyspaces.iter().map(|k| KeyspaceFigures {
            debt_bytes: None,
            ..KeyspaceFigures::new(&k.info.name, k.records, 0, &k.index)
        });
        Stats {
            as_of: Some(AsOf::new(seen)),
            logical_bytes: seen.logical_bytes,
            disk_bytes: seen.disk_bytes,
            log_bytes: seen.log_bytes,
            lifetime_user_bytes: seen.lifetime_user_bytes,
            lifetime_written_bytes: seen.lifetime_written_bytes,
            write_amplification: ratio(seen.lifetime_written_bytes, seen.lifetime_user_bytes),
            space_amplification: ratio(seen.disk_bytes, seen.logical_bytes),
            ..Stats::of(figures.collect())
        }
    }
}

impl Stats {
    /// Sums up the figures of the keyspaces. All other fields are set to zero or "unknown".
    fn of(keyspaces: Vec<KeyspaceFigures>) -> Stats {
        Stats {
            as_of: None,
            records: keyspaces.iter().map(|k| k.records).sum(),
            logical_bytes: 0,
            disk_bytes: 0,
            log_bytes: 0,
            reserve_bytes: None,
            quarantined_bytes: None,
            lifetime_user_bytes: 0,
            lifetime_written_bytes: 0,
            write_amplification: 0.0,
            read_amplification: None,
            space_amplification: 0.0,
            debt_bytes: None,
            checkpoints: None,
            snapshots: None,
            written: None,
            memory: None,
            latency: None,
            trouble: None,
            keyspaces,
        }
    }
}

fn ratio(of: u64, to: u64) -> f64 {
    if to == 0 { 0.0 } else { of as f64 / to as f64 }
}

/// Formats an amplification. Returns `-` if it was measured over fewer than [`TELLING_BYTES`] bytes.
pub fn amplification(ratio: f64, bytes: u64) -> String {
    if bytes < TELLING_BYTES { "-".into() } else { format!("{ratio:.2}") }
}

/// Prints sizes, amplification, debt and memory, and the figures of each keyspace's index.
pub fn stats(args: &ReportArgs) -> Outcome {
    let stats = open_or_glance(&args.store, |store| Ok(Stats::from(&store.stats()?)), |seen| Stats::from(&seen))?;
    if args.json { output::json(&stats) } else { output::line(describe(&stats)) }
}

fn describe(stats: &Stats) -> String {
    let mut disk = vec![("data", stats.disk_bytes), ("log", stats.log_bytes)];
    disk.extend(stats.reserve_bytes.map(|bytes| ("reserve", bytes)));
    disk.extend(stats.quarantined_bytes.map(|bytes| ("to be freed", bytes)));
    let write = amplification(stats.write_amplification, stats.lifetime_user_bytes);
    let space = amplification(stats.space_amplification, stats.logical_bytes);
    let (user, device) = (output::bytes(stats.lifetime_user_bytes), output::bytes(stats.lifetime_written_bytes));
    let mut rows: Vec<(&str, String)> = Vec::new();
    rows.extend(stats.as_of.as_ref().map(|as_of| ("as of", as_of.in_words())));
    rows.extend([
        ("records", format!("about {}", output::count(stats.records))),
        ("logical", output::bytes(stats.logical_bytes)),
        ("on disk", parts(&disk)),
        ("written", format!("{user} of keys and values, {device} to the device, up to the last checkpoint")),
        ("amplification", format!("write {write} up to the last checkpoint, space {space}")),
    ]);
    rows.extend(stats.debt_bytes.map(|bytes| ("debt", output::bytes(bytes))));
    if let Some(memory) = &stats.memory {
        let by_part = parts(&[
            ("budget", memory.budget_bytes),
            ("memtables", memory.memtable_bytes),
            ("pool", memory.pool_bytes),
            ("of which pinned", memory.pinned_bytes),
            ("rows", memory.row_cache_bytes),
        ]);
        rows.push(("memory", format!("{by_part}, in this process")));
        rows.push(("trouble", stats.trouble.clone().unwrap_or_else(|| "none".into())));
    }
    let mut blocks = vec![output::figures(&rows), keyspace_table(&stats.keyspaces)];
    blocks.extend(stats.keyspaces.iter().filter(|k| !k.figures.is_empty()).map(index_figures));
    blocks.join("\n\n")
}

fn parts(parts: &[(&str, u64)]) -> String {
    let parts: Vec<String> = parts.iter().map(|(name, size)| format!("{name} {}", output::bytes(*size))).collect();
    parts.join(", ")
}

/// Formats a distribution of latencies as one line.
pub fn latency_line(of: &LatencyFigures) -> String {
    if of.count == 0 {
        return "none".into();
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
    let head = ["keyspace", "records", "logical", "on disk", "compactions", "damaged", "debt"];
    let rows: Vec<Vec<String>> = (keyspaces.iter())
        .map(|k| {
            vec![
                crate::kv::escaped(k.name.as_bytes()),
                output::count(k.records),
                output::bytes(k.logical_bytes),
                output::bytes(k.disk_bytes),
                k.compactions.to_string(),
                k.damaged.to_string(),
                k.debt_bytes.map_or("-".into(), output::bytes),
            ]
        })
        .collect();
    output::table(&head, &rows)
}

/// Formats the figures that only this type of index has, one figure per line.
fn index_figures(keyspace: &KeyspaceFigures) -> String {
    let values = keyspace.figures.iter().map(|(name, value)| match name.ends_with("_bytes") {
        true => (*name, output::bytes(*value)),
        false => (*name, output::count(*value)),
    });
    let rows: Vec<(&str, String)> = values.collect();
    format!("index of {}\n{}", crate::kv::escaped(keyspace.name.as_bytes()), output::figures(&rows))
}

/// One keyspace in the list of `keyspaces`.
#[derive(Debug, Serialize)]
struct Listed {
    name: String,
    id: u64,
    /// The type of the keyspace's index.
    index: &'static str,
    mode: &'static str,
    /// The options of the index that differ from the default.
    options: BTreeMap<&'static str, String>,
    operator: Option<String>,
    large_values_over: usize,
}

impl From<KeyspaceInfo> for Listed {
    fn from(info: KeyspaceInfo) -> Listed {
        Listed {
            name: info.name,
            id: u64::from(info.id),
            index: info.index.kind().name(),
            mode: info.index.mode().unwrap_or_default().name(),
            options: info.index.chosen().collect(),
            operator: info.operator,
            large_values_over: info.blob_threshold,
        }
    }
}

/// Lists the keyspaces: name, index with its mode and options, operator.
pub fn keyspaces(args: &ReportArgs) -> Outcome {
    let glanced = |seen: Glance| {
        // The note goes to stderr, so that stdout has the same form with and without a concurrent writer.
        eprintln!("pando: as of {}", AsOf::new(&seen).in_words());
        seen.keyspaces.into_iter().map(|k| k.info).collect()
    };
    let infos: Vec<KeyspaceInfo> = open_or_glance(&args.store, |store| Ok(store.keyspaces()), glanced)?;
    let listed: Vec<Listed> = infos.into_iter().map(Listed::from).collect();
    if args.json {
        return output::json(&listed);
    }
    let rows: Vec<Vec<String>> = (listed.into_iter())
        .map(|k| {
            let operator = k.operator.unwrap_or_else(|| "-".into());
            let options: Vec<String> = k.options.iter().map(|(name, value)| format!("{name}={value}")).collect();
            let options = if options.is_empty() { "defaults".to_owned() } else { options.join(",") };
            let large = output::bytes(k.large_values_over as u64);
            let name = crate::kv::escaped(k.name.as_bytes());
            vec![name, k.id.to_string(), k.index.into(), k.mode.into(), options, operator, large]
        })
        .collect();
    output::line(output::table(&["keyspace", "id", "index", "mode", "options", "operator", "large over"], &rows))
}
