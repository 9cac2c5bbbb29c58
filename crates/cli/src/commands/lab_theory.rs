//! `lab theory`, `lab order` and `lab sort`: compare measured costs with bounds.

use std::fs::OpenOptions;
use std::io::Write;
use std::path::{Path, PathBuf};

use pandodb::IndexOptions;
use pandodb_lab::engine::{Mode, Setup};
use pandodb_lab::plot::Plot;
use pandodb_lab::theory::order::{self, Order};
use pandodb_lab::theory::sort::{self, Sorted};
use pandodb_lab::theory::{Check, Config, Point, claims, measure, picture};
use serde::Serialize;

use crate::args::{ImageArgs, OrderArgs, SortArgs, TheoryArgs};
use crate::failure::{Failure, Outcome};
use crate::output;

/// Doubles N repeatedly and prints the measurements and the checks of the bounds, for each configuration of the index.
///
/// # Errors
/// [`Failure::Misuse`] if there are no claims about the index, [`Failure::Corruption`] if a check fails.
pub fn theory(args: &TheoryArgs) -> Outcome {
    let indexes = claims::configurations(&args.index).map_err(Failure::Misuse)?;
    let (mut checked, mut failed) = (0, Vec::new());
    for index in &indexes {
        let is_one = indexes.len() == 1;
        let checks = one_theory(args, index, is_one)?;
        checked += checks.len();
        let of = |name: &str| if is_one { name.to_owned() } else { format!("{name} ({index})") };
        failed.extend(checks.iter().filter(|check| !check.passes()).map(|check| of(&check.claim.name)));
    }
    match failed.len() {
        0 => Ok(()),
        n => Err(Failure::Corruption(format!("{n} of {checked} checks failed: {}", failed.join(", ")))),
    }
}

/// Measures one configuration of an index.
fn one_theory(args: &TheoryArgs, index: &IndexOptions, is_one: bool) -> Outcome<Vec<Check>> {
    let config = Config {
        index: index.clone(),
        start: args.start,
        doublings: args.doublings,
        memory_budget: args.memory_budget,
        memtable_bytes: args.memtable.unwrap_or(args.memory_budget / 8),
        scan_len: args.scan_len as usize,
        seed: args.seed,
        ..Config::default()
    };
    let bar = output::spinner("starting");
    let mut points = Vec::new();
    for records in config.sizes() {
        bar.set_message(format!("{} records", output::count(records)));
        points.push(measure(&config, records).map_err(|e| super::bench::stopped(&*e))?);
    }
    bar.finish_and_clear();
    let checks = claims::judge(&config, &points);
    let lines: Vec<String> = points.iter().map(to_json).chain(checks.iter().map(to_json)).collect();
    if let Some(path) = &args.out {
        append(path, &lines)?;
    }
    if args.json {
        output::line(lines.join("\n"))?;
    } else {
        if config.is_named() {
            output::line(format!("{index}\n"))?;
        }
        output::line(figures(&config, &points))?;
        output::line(table(&checks))?;
    }
    for (name, plot) in picture::plots(&config, &points, &checks) {
        let name = if is_one { name } else { format!("{name}-{}", file_part(index)) };
        write_images(&args.images, &name, &plot)?;
    }
    Ok(checks)
}

/// The options of an index as a part of a file name.
fn file_part(index: &IndexOptions) -> String {
    let values: Vec<String> = index.chosen().map(|(name, value)| format!("{name}-{value}")).collect();
    format!("{}-{}", index.kind().name(), values.join("-"))
}

fn to_json<T: Serialize>(value: &T) -> String {
    serde_json::to_string(value).expect("figures and strings have a JSON form")
}

fn append(path: &Path, lines: &[String]) -> Outcome {
    let written = OpenOptions::new().create(true).append(true).open(path);
    let written = written.and_then(|mut file| writeln!(file, "{}", lines.join("\n")));
    written.map_err(|e| Failure::io(format!("cannot write {}", path.display()), &e))
}

fn write_images(images: &ImageArgs, name: &str, plot: &Plot) -> Outcome {
    for (format, directory) in images.targets() {
        plot.write(directory, name, format).map_err(|e| Failure::Io(e.to_string()))?;
    }
    Ok(())
}

/// Formats the measurements, one row for each size.
fn figures(config: &Config, points: &[Point]) -> String {
    if config.is_tree() {
        return tree_figures(config, points);
    }
    let row = |point: &Point| {
        let (load, tree) = (&point.load, &point.load.tree);
        vec![
            output::count(point.records),
            format!("{:.0}", tree.logical_bytes as f64 / config.memtable_bytes as f64),
            tree.levels.to_string(),
            tree.max_runs_on_path.to_string(),
            format!("{:.2}", load.packing()),
            format!("{:.2}", load.writes_per_record()),
            format!("{:.2}", point.load_seq.writes_per_record()),
            output::bytes(load.batch_bytes(config.memtable_bytes) as u64),
            output::bytes(load.worst_insert_bytes),
            format!("{:.0}", load.worst_insert_bytes as f64 / load.mean_insert_bytes.max(1.0)),
            format!("{:.3}", point.get.reads),
            format!("{:.4}", point.absent.reads),
            format!("{:.2}", point.get_small_pool.reads),
            format!("{:.0}", point.scan.bytes / 4096.0),
            format!("{:.1}", point.scan.seeks),
        ]
    };
    let head = [
        "records",
        "N/m",
        "levels",
        "path",
        "s",
        "writes",
        "in order",
        "b̄",
        "worst put",
        "/ mean",
        "get",
        "absent",
        "small pool",
        "scan",
        "seeks",
    ];
    output::table(&head, &points.iter().map(row).collect::<Vec<_>>())
}

/// Formats the measurements of a tree of pages, one row for each size.
fn tree_figures(config: &Config, points: &[Point]) -> String {
    let row = |point: &Point| {
        let (load, tree) = (&point.load, &point.load.tree);
        let share = |bytes: u64| format!("{:.2}", bytes as f64 / tree.logical_bytes.max(1) as f64);
        vec![
            output::count(point.records),
            format!("{:.0}", tree.logical_bytes as f64 / config.memtable_bytes as f64),
            tree.levels.to_string(),
            format!("{:.2}", tree.space()),
            format!("{:.2}", load.run_writes_per_record()),
            share(load.checkpoint_bytes),
            format!("{:.2}", point.load_seq.run_writes_per_record()),
            output::bytes(load.worst_insert_bytes),
            output::bytes(load.worst_job_bytes.unwrap_or_default()),
            format!("{:.2}", point.get.probed),
            format!("{:.2}", point.absent.probed),
            format!("{:.2}", point.get_small_pool.reads),
            format!("{:.2}", point.get_small_pool.leaf),
            format!("{:.0}", point.scan.bytes / 4096.0),
            format!("{:.1}", point.scan.seeks),
        ]
    };
    let head = [
        "records",
        "N/m",
        "levels",
        "space",
        "writes",
        "checkpoints",
        "in order",
        "worst put",
        "its job",
        "get",
        "absent",
        "small pool",
        "leaves",
        "scan",
        "seeks",
    ];
    output::table(&head, &points.iter().map(row).collect::<Vec<_>>())
}

/// Formats the checks, each with the ratio at the smallest size, the ratio at the largest size, and the greatest ratio.
fn table(checks: &[Check]) -> String {
    let row = |check: &Check| {
        let (first, last) = (check.points[0], check.points[check.points.len() - 1]);
        let greatest = check.points.iter().map(|point| point.ratio()).fold(0.0, f64::max);
        vec![
            check.claim.name.clone(),
            short(last.measured),
            short(last.bound),
            format!("{:.2}", first.ratio()),
            format!("{:.2}", last.ratio()),
            format!("{greatest:.2}"),
            format!("{}…{}", check.claim.ratio_band.0, check.claim.ratio_band.1),
            format!("{:+.1} %", check.slope * 100.0),
            if check.passes() { "PASS" } else { "FAIL" }.to_owned(),
        ]
    };
    let head = ["check", "measured", "bound", "first", "last", "greatest", "band", "slope", "verdict"];
    let words: Vec<String> = checks
        .iter()
        .filter(|check| !check.passes())
        .map(|check| format!("FAIL {}: {} [{}]", check.claim.name, check.claim.claim, check.claim.source))
        .collect();
    let table = output::table(&head, &checks.iter().map(row).collect::<Vec<_>>());
    format!(
        "\n{table}\n\nratio = measured / bound; slope: change of the ratio for each doubling of N\n{}",
        words.join("\n")
    )
}

/// Formats a number with about four digits.
fn short(figure: f64) -> String {
    if figure != 0.0 && figure.abs() < 0.01 {
        format!("{figure:.2e}")
    } else if figure < 1000.0 {
        format!("{figure:.3}")
    } else {
        output::count(figure as u64)
    }
}

/// Measures how sequential the writes of three workloads are.
///
/// # Errors
/// The errors of the engine and of the files.
pub fn order(args: &OrderArgs) -> Outcome {
    let config = Config {
        index: args.index.into(),
        memory_budget: args.memory_budget,
        memtable_bytes: args.memory_budget / 8,
        ..Config::default()
    };
    let bar = output::spinner("starting");
    let mut rows = Vec::new();
    for workload in order::WORKLOADS {
        bar.set_message(workload);
        let found = order::measure(&config, workload, args.records).map_err(|e| super::bench::stopped(&*e))?;
        if args.json {
            output::json(&found)?;
        }
        write_images(&args.images, &format!("order-{workload}"), &found.plot())?;
        rows.push(order_row(&found));
    }
    bar.finish_and_clear();
    if args.json {
        return Ok(());
    }
    let head = ["workload", "writes", "written", "mean write", "≥ 128 KiB", "adjacent", "adjacent bytes", "file"];
    output::line(output::table(&head, &rows))
}

fn order_row(order: &Order) -> Vec<String> {
    let percent = |share: f64| format!("{:.1} %", share * 100.0);
    vec![
        order.workload.clone(),
        output::count(order.writes),
        output::bytes(order.bytes),
        output::bytes(order.mean_bytes() as u64),
        percent(order.large_share()),
        percent(order.adjacent_share()),
        percent(order.adjacent_bytes_share()),
        output::bytes(order.file_bytes),
    ]
}

/// Sorts records, and loads the same records for comparison.
///
/// # Errors
/// The errors of the files and of the engine.
pub fn sort(args: &SortArgs) -> Outcome {
    let (directory, _temporary) = directory(args)?;
    let setup = Setup { memory_budget: args.memory_budget, mode: Mode::Product, deterministic: false };
    let bar = output::spinner("sorting");
    let plan = sort::Plan { records: args.records, setup, directory, ..sort::Plan::default() };
    let failed = |e: pandodb_lab::engine::Failure| super::bench::stopped(&*e);
    let mut sorted = sort::sort(&plan).map_err(failed)?;
    if !args.no_load {
        bar.set_message("loading");
        sort::compare(&plan, args.index, &mut sorted).map_err(failed)?;
    }
    bar.finish_and_clear();
    if args.json { output::json(&sorted) } else { output::line(sorted_figures(&sorted)) }
}

fn sorted_figures(sorted: &Sorted) -> String {
    let seconds = |s: f64| format!("{s:.2} s");
    let mut rows = vec![
        ("records", output::count(sorted.records)),
        ("runs", output::count(sorted.runs)),
        ("run formation", seconds(sorted.form_seconds)),
        ("merge", seconds(sorted.merge_seconds)),
        ("sort, total", seconds(sorted.seconds())),
        ("written", output::bytes(sorted.written_bytes)),
        ("read", output::bytes(sorted.read_bytes)),
    ];
    if let Some(load) = &sorted.load {
        rows.extend([
            ("load, acknowledged", seconds(load.seconds)),
            ("load, no debt left", seconds(load.settled_seconds)),
            ("load / sort, acknowledged", format!("{:.2}", load.seconds / sorted.seconds())),
            ("load / sort, no debt left", format!("{:.2}", load.settled_seconds / sorted.seconds())),
            ("load, write amplification", format!("{:.2}", load.write_amplification)),
        ]);
    }
    output::figures(&rows)
}

/// Creates a temporary directory for the files.
fn directory(args: &SortArgs) -> Outcome<(PathBuf, Option<tempfile::TempDir>)> {
    let parent = args.store.clone().unwrap_or_else(|| PathBuf::from("."));
    std::fs::create_dir_all(&parent).map_err(|e| Failure::io(format!("cannot create {}", parent.display()), &e))?;
    let temporary = tempfile::Builder::new().prefix("pando-sort-").tempdir_in(&parent);
    let temporary = temporary.map_err(|e| Failure::io("cannot create a temporary directory", &e))?;
    Ok((temporary.path().to_owned(), Some(temporary)))
}
