//! Plots of the theory: the ratio of every check over N, in groups of related checks.

use super::check::Check;
use super::measure::{BLOCKS, Config, Point};
use crate::plot::{Axis, Plot, Series, Style};

/// The groups of checks. Each group has a file name, a title, and the prefixes of the names of its checks.
const GROUPS: [(&str, &str, &[&str]); 4] = [
    ("theory-insert", "Loads: cost / bound", &["insert/", "load-seq"]),
    ("theory-read", "Lookups and scans: cost / bound", &["get", "path", "scan/"]),
    ("theory-transfers-write", "Block transfers of loads: cost / bound", &["transfers/insert", "transfers/load-seq"]),
    (
        "theory-transfers-read",
        "Block transfers of reads: cost / bound",
        &["transfers/get", "transfers/absent", "transfers/scan"],
    ),
];

/// All plots, with their file names.
pub fn plots(config: &Config, points: &[Point], checks: &[Check]) -> Vec<(String, Plot)> {
    let mut all: Vec<(String, Plot)> = GROUPS
        .iter()
        .map(|(file, title, names)| {
            let concerned = |check: &&Check| names.iter().any(|name| check.claim.name.starts_with(name));
            ((*file).to_owned(), ratios(title, &checks.iter().filter(concerned).collect::<Vec<_>>()))
        })
        .collect();
    if config.is_named() {
        all.retain(|(_, plot)| !plot.series.is_empty());
        all.push(("theory-writes".to_owned(), tree_writes(config, points, checks)));
        return all;
    }
    all.push(("theory-writes".to_owned(), writes(config, points)));
    all
}

fn records() -> Axis {
    Axis::log("records", "")
}

fn ratios(title: &str, checks: &[&Check]) -> Plot {
    let mut plot = Plot::new(title, records(), Axis::linear("measured / bound", ""));
    for check in checks {
        let points = check.points.iter().map(|point| (point.records as f64, point.ratio())).collect();
        let verdict = if check.passes() { "" } else { " (fails)" };
        plot = plot.with(Series::new(format!("{}{verdict}", check.claim.name), Style::Line, points));
    }
    plot.note("a ratio that grows with the number of records breaks its bound")
}

/// The plot of the writes for each record, with the bound.
fn writes(config: &Config, points: &[Point]) -> Plot {
    let series = |name: &str, style, of: &dyn Fn(&Point) -> f64| {
        Series::new(name, style, points.iter().map(|point| (point.records as f64, of(point))).collect())
    };
    let bound = |point: &Point| point.load.packing() * (1.0 + config.depth(point.load.tree.logical_bytes));
    let plot = Plot::new("Writes a record", records(), Axis::linear("bytes written a byte", ""))
        .with(series("random order", Style::Line, &|point| point.load.writes_per_record()))
        .with(series("key order", Style::Line, &|point| point.load_seq.writes_per_record()))
        .with(series("s·(1 + log_F(N/m))", Style::Limit, &bound));
    let blocks: Vec<String> = BLOCKS.iter().map(|block| format!("{} KiB", block >> 10)).collect();
    plot.note(format!(
        "data file only; memtable {} KiB, F = {}; transfers are counted for {}",
        config.memtable_bytes >> 10,
        config.fanout,
        blocks.join(", ")
    ))
}

/// The plot of the writes for each record of a tree of pages, without checkpoints, with the bound.
fn tree_writes(config: &Config, points: &[Point], checks: &[Check]) -> Plot {
    let series = |name: &str, of: &dyn Fn(&Point) -> f64| {
        let points = points.iter().map(|point| (point.records as f64, of(point))).collect();
        Series::new(name, Style::Line, points)
    };
    let mut plot = Plot::new("Writes a record", records(), Axis::linear("bytes written a byte", ""))
        .with(series("random order", &|point| point.load.run_writes_per_record()))
        .with(series("key order", &|point| point.load_seq.run_writes_per_record()));
    if let Some(check) = checks.iter().find(|check| check.claim.name == "insert/log") {
        let bound = check.points.iter().map(|point| (point.records as f64, point.bound)).collect();
        plot = plot.with(Series::new("bound of insert/log", Style::Limit, bound));
    }
    plot.note(format!("{}; pages of the tree only; memtable {} KiB", config.index, config.memtable_bytes >> 10))
}
