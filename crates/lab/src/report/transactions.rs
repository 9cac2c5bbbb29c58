//! The tables of transactional workloads: the isolation of each engine, attempts, conflicts and latencies.

use super::group::{Case, Entry, Sheet};
use super::tables::{Cell, Table};
use crate::line::{Line, TransactionFigures};
use crate::plot::unit;

const HEAD: [&str; 9] =
    ["transactions", "isolation", "scheme", "attempts, mean", "most", "conflicts", "p50", "p99", "p99.9"];

/// The transactions of a case, one row for each engine; `None` if the workload is not transactional.
pub(super) fn of_case(case: &Case) -> Option<Table> {
    let rows: Vec<_> = case.entries.iter().filter_map(|entry| row(entry, &entry.who)).collect();
    (!rows.is_empty()).then(|| table("Transactions", rows))
}

/// The transactions of all cases, for terminals; `None` if no workload is transactional.
pub(super) fn as_text(sheet: &Sheet) -> Option<Table> {
    let entries = sheet.cases.iter().flat_map(|case| case.entries.iter().map(move |entry| (case, entry)));
    let rows: Vec<_> =
        entries.filter_map(|(case, entry)| row(entry, &format!("{}, {}", case.label, entry.who))).collect();
    (!rows.is_empty()).then(|| table("", rows))
}

fn table(caption: &str, rows: Vec<Vec<Cell>>) -> Table {
    Table { caption: caption.to_owned(), head: HEAD.map(str::to_owned).to_vec(), rows }
}

/// The row of an engine. Numbers are medians over the rounds, except for the most attempts, which is the greatest.
fn row(entry: &Entry, name: &str) -> Option<Vec<Cell>> {
    let first = entry.rounds.iter().find_map(|line| line.transactions.as_ref())?;
    let figure = |of: fn(&TransactionFigures) -> f64| {
        entry.spread(|line| line.transactions.as_ref().map_or(f64::NAN, of)).map_or(f64::NAN, |spread| spread.median)
    };
    let latency = |of: fn(&Line) -> f64| {
        Cell::new(entry.spread(of).map_or("–".to_owned(), |spread| unit::show(spread.median, "s")))
    };
    let most = entry.rounds.iter().filter_map(|line| line.transactions.as_ref()).map(|found| found.attempts_max).max();
    Some(vec![
        Cell::new(name),
        Cell::new(&first.isolation),
        Cell::new(&first.scheme),
        Cell::new(format!("{:.3}", figure(|found| found.attempts_mean))),
        Cell::new(most.unwrap_or(0).to_string()),
        Cell::new(format!("{:.0}", figure(|found| found.conflicts as f64))),
        latency(|line| line.latency.p50_us * 1e-6),
        latency(|line| line.latency.p99_us * 1e-6),
        latency(|line| line.latency.p99_9_us * 1e-6),
    ])
}
