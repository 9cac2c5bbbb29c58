//! `lab filters`: compares the filters of single runs, and of all runs of a node.

use pandodb_lab::filters::{self, Alone, Ask, Config, Node, RUNS};

use crate::args::FiltersArgs;
use crate::failure::Outcome;
use crate::output;

/// Builds and queries each filter, for one run and for a node of several runs.
///
/// # Errors
/// The errors of standard output.
pub fn run(args: &FiltersArgs) -> Outcome {
    let config = Config::default();
    let bar = output::spinner("starting");
    let stopped = |e: pandodb_lab::engine::Failure| super::bench::stopped(&*e);
    let (mut alone, mut nodes) = (Vec::new(), Vec::new());
    for &keys in &args.keys {
        bar.set_message(format!("{} keys", output::count(keys)));
        let rows = filters::alone(&config, keys).map_err(stopped)?;
        if args.json {
            rows.iter().try_for_each(output::json)?;
        }
        alone.extend(rows.iter().map(alone_row));
        for runs in RUNS {
            bar.set_message(format!("{} keys in {runs} runs", output::count(keys)));
            let rows = filters::node(&config, keys, runs).map_err(stopped)?;
            if args.json {
                rows.iter().try_for_each(output::json)?;
            }
            nodes.extend(rows.iter().map(node_row));
        }
    }
    bar.finish_and_clear();
    if args.json {
        return Ok(());
    }
    let head = [
        "filter",
        "keys",
        "bits a key",
        "false positives",
        "build",
        "present",
        "absent",
        "present, far",
        "absent, far",
    ];
    output::line(output::table(&head, &alone))?;
    let head = [
        "a node by",
        "keys",
        "runs",
        "bits a key",
        "pages",
        "wrong runs",
        "merge",
        "present",
        "absent",
        "present, far",
        "absent, far",
    ];
    output::line(format!("\n{}", output::table(&head, &nodes)))?;
    output::line("\nTimes in ns: build and merge for each key, the others for each query; far: outside the CPU cache.")
}

fn alone_row(row: &Alone) -> Vec<String> {
    let mut cells = vec![
        row.filter.clone(),
        output::count(row.keys),
        format!("{:.2}", row.bits_a_key),
        one_in(row.rate),
        format!("{:.1}", row.build_ns),
    ];
    cells.extend(ask_cells(&row.ask_ns));
    cells
}

fn node_row(row: &Node) -> Vec<String> {
    let mut cells = vec![
        row.filter.clone(),
        output::count(row.keys),
        row.runs.to_string(),
        format!("{:.2}", row.bits_a_key),
        row.pages_a_lookup.to_string(),
        format!("{:.4}", row.wrong_runs),
        row.merge_ns.map_or_else(String::new, |ns| format!("{ns:.1}")),
    ];
    cells.extend(ask_cells(&row.ask_ns));
    cells
}

fn ask_cells(ask: &Ask) -> [String; 4] {
    [ask.present_near, ask.absent_near, ask.present_far, ask.absent_far].map(|ns| format!("{ns:.1}"))
}

/// Formats a rate as "1 / n".
fn one_in(rate: f64) -> String {
    if rate > 0.0 { format!("1 / {:.1}", 1.0 / rate) } else { "none".to_owned() }
}
