//! `lab pool`: compares buffer pools, and measures lookups in stores whose data is in the engine's pool.

use pandodb_lab::pool::notes::Pair;
use pandodb_lab::pool::{self, Config, Readers, ReadersConfig, Row};

use crate::args::PoolArgs;
use crate::failure::Outcome;
use crate::output;

/// The stores to measure: number of records, bytes of a value, whether the store is compacted.
const STORES: [(u64, u64, bool); 4] =
    [(20_000, 100, false), (20_000, 2_000, false), (300_000, 100, true), (300_000, 100, false)];

/// Measures each pool and, after that, each store.
///
/// # Errors
/// The errors of a store and of standard output.
pub fn run(args: &PoolArgs) -> Outcome {
    let bar = output::spinner("pools");
    let config = Config { rounds: args.rounds, ..Config::default() };
    let rows = if args.stores { Vec::new() } else { pool::compare(&config) };
    let mut readers = Vec::new();
    let stores = if args.caches { &[][..] } else { &STORES };
    for &(records, value_bytes, compacted) in stores {
        bar.set_message(format!("a store of {} records", output::count(records)));
        let config = ReadersConfig { records, value_bytes, compacted, rounds: args.rounds, notes: 1_000 };
        readers.push(pool::readers(&config).map_err(|e| super::bench::stopped(&*e))?);
    }
    bar.finish_and_clear();
    if args.json {
        rows.iter().try_for_each(output::json)?;
        return readers.iter().try_for_each(output::json);
    }
    if !rows.is_empty() {
        let head =
            ["pool", "uniform", "Zipf", "the same", "misses", "hits of Zipf", "at 1/4", "with scans", "bytes a page"];
        let cells: Vec<Vec<String>> = rows.iter().map(pool_row).collect();
        output::line(format!("{}\n", output::table(&head, &cells)))?;
    }
    if readers.is_empty() {
        return Ok(());
    }
    let head = ["records", "value", "runs", "blocks", "lookup", "control"];
    let cells: Vec<Vec<String>> = readers.iter().map(store_row).collect();
    output::line(output::table(&head, &cells))?;
    output::line(
        "\na / b: c: a ns with one thread, b ns in each of two, c times the throughput. Medians of undisturbed runs.",
    )
}

fn pool_row(row: &Row) -> Vec<String> {
    vec![
        row.pool.clone(),
        pair(&row.uniform),
        pair(&row.zipf),
        pair(&row.same),
        pair(&row.misses),
        format!("{:.1} %", row.ratio * 100.0),
        format!("{:.1} %", row.ratio_quarter * 100.0),
        format!("{:.1} %", row.ratio_scans * 100.0),
        format!("{:.0}", row.overhead),
    ]
}

fn store_row(row: &Readers) -> Vec<String> {
    vec![
        output::count(row.records),
        format!("{} B", row.value_bytes),
        row.runs.to_string(),
        format!("{:.1}", row.blocks),
        pair(&row.lookup),
        pair(&row.control),
    ]
}

/// Formats a pair of values, for one thread and for two threads. The second value is missing if every measurement with
/// two threads was disturbed.
fn pair(pair: &Pair) -> String {
    if pair.notes == 0 {
        return format!("{:.0} / –", pair.one_ns);
    }
    format!("{:.0} / {:.0}: {:.2}", pair.one_ns, pair.two_ns, pair.gain)
}
