//! The tables of the report: the rates of all cases, and the latencies and costs of each case.

use std::fmt::Write as _;

use super::charts::percentiles;
use super::group::{Case, Entry, Sheet, Spread};
use crate::line::{LatencyFigures, Line};
use crate::plot::{escape, unit};

/// A table whose first column contains names.
pub(super) struct Table {
    pub caption: String,
    pub head: Vec<String>,
    pub rows: Vec<Vec<Cell>>,
}

/// One cell.
#[derive(Clone, Default)]
pub(super) struct Cell {
    pub text: String,
    /// Smaller text below the main text.
    pub note: String,
    /// The class of the cell: `best`, `bad`, `soft`, or empty.
    pub class: &'static str,
    /// The anchor in the page to which the text links.
    pub link: Option<String>,
}

impl Cell {
    pub fn new(text: impl Into<String>) -> Cell {
        Cell { text: text.into(), ..Cell::default() }
    }

    pub fn class(mut self, class: &'static str) -> Cell {
        self.class = class;
        self
    }

    pub fn note(mut self, note: impl Into<String>) -> Cell {
        self.note = note.into();
        self
    }

    /// A cell with a value and its spread.
    fn figure(spread: Option<Spread>, unit: &str) -> Cell {
        spread.map_or(Cell::new("–").class("soft"), |spread| {
            Cell::new(unit::show(spread.median, unit)).note(spread.note(unit))
        })
    }
}

impl Table {
    /// The table as HTML. The first column is fixed while the other columns scroll.
    pub fn html(&self) -> String {
        let caption = escape(&self.caption);
        let mut html = format!(
            "<p class=\"caption\">{caption}</p>\n<div class=\"scroll\"><table aria-label=\"{caption}\">\n<thead><tr>"
        );
        for head in &self.head {
            let _ = write!(html, "<th scope=\"col\">{}</th>", escape(head));
        }
        html.push_str("</tr></thead>\n<tbody>\n");
        for row in &self.rows {
            html.push_str("<tr>");
            for (i, cell) in row.iter().enumerate() {
                let (open, close) = if i == 0 { ("<th scope=\"row\"", "</th>") } else { ("<td", "</td>") };
                let class = if cell.class.is_empty() { String::new() } else { format!(" class=\"{}\"", cell.class) };
                let text = escape(&cell.text);
                let text = match &cell.link {
                    Some(link) => format!("<a href=\"#{}\">{text}</a>", escape(link)),
                    None => text,
                };
                let note = if cell.note.is_empty() {
                    String::new()
                } else {
                    format!("<small>{}</small>", escape(&breakable(&cell.note)))
                };
                let _ = write!(html, "{open}{class}>{text}{note}{close}");
            }
            html.push_str("</tr>\n");
        }
        html + "</tbody></table></div>\n"
    }

    /// The table as aligned Markdown, without the notes.
    pub fn markdown(&self) -> String {
        let clean = |text: &str| escape_markdown(text);
        let rows: Vec<Vec<String>> = std::iter::once(self.head.iter().map(|head| clean(head)).collect())
            .chain(self.rows.iter().map(|row| row.iter().map(|cell| clean(&cell.text)).collect()))
            .collect();
        let wide = |column: usize| {
            rows.iter().filter_map(|row| row.get(column)).map(|text| text.chars().count()).max().unwrap_or(0).max(3)
        };
        let widths: Vec<usize> = (0..self.head.len()).map(wide).collect();
        let mut text = String::new();
        for (i, row) in rows.iter().enumerate() {
            for (column, (cell, &width)) in row.iter().zip(&widths).enumerate() {
                let _ = if column == 0 { write!(text, "| {cell:<width$} ") } else { write!(text, "| {cell:>width$} ") };
            }
            text.push_str("|\n");
            if i == 0 {
                for (column, width) in widths.iter().enumerate() {
                    let end = if column == 0 { '-' } else { ':' };
                    let _ = write!(text, "| {}{end} ", "-".repeat(width - 1));
                }
                text.push_str("|\n");
            }
        }
        text
    }
}

/// Inserts a place for a line break into a spread, directly after the dots. Without a line break, wide spreads would
/// push columns off the page.
fn breakable(note: &str) -> String {
    match note.split_once(" … ") {
        Some((low, high)) => format!("{} … {}", low.replace(' ', "\u{a0}"), high.replace(' ', "\u{a0}")),
        None => note.to_owned(),
    }
}

/// Formats the text of a cell as one line of Markdown, with vertical bars escaped.
fn escape_markdown(text: &str) -> String {
    text.replace('|', "\\|").replace(|c: char| c.is_control(), " ")
}

/// The cell of a rate: the rate, or the reason why there is no rate.
fn rate_cell(sheet: &Sheet, case: &Case, who: &str) -> (Cell, Option<Spread>) {
    let Some(entry) = case.entry(who) else {
        return match sheet.refusal(case, who) {
            Some(_) => (Cell::new("refused").class("soft"), None),
            None => (Cell::new("–").class("soft"), None),
        };
    };
    if entry.wrong().0 > 0 {
        return (Cell::new("wrong answers").class("bad"), None);
    }
    (Cell::figure(entry.rate(), ""), entry.rate())
}

/// The ratio of a rate to the rate of the best other engine, such as 1.34×.
fn ratio(case: &Case, who: &str, rate: Option<Spread>) -> Option<f64> {
    Some(rate?.median / case.best_other(who)?)
}

fn times(ratio: f64) -> String {
    if ratio >= 100.0 { format!("{ratio:.0}×") } else { format!("{ratio:.2}×") }
}

/// The table of operations per second. It has a row for each case and a column for each engine, and each cell contains
/// the ratio to the best other engine.
pub(super) fn rates(sheet: &Sheet) -> Table {
    let head = std::iter::once("workload".to_owned()).chain(sheet.whos.iter().cloned()).collect();
    let rows = sheet.cases.iter().map(|case| {
        let name = Cell { link: Some(case.slug.clone()), ..Cell::new(&case.label).note(case.rounds_note()) };
        let figures = sheet.whos.iter().map(|who| {
            let (mut cell, rate) = rate_cell(sheet, case, who);
            if let Some(ratio) = ratio(case, who, rate) {
                cell.class = if ratio >= 1.0 { "best" } else { "" };
                cell.text = format!("{} ({})", cell.text, times(ratio));
            }
            cell
        });
        std::iter::once(name).chain(figures).collect()
    });
    let mut caption = "Operations a second, until no background work is left.".to_owned();
    if sheet.whos.len() > 1 {
        caption += " In brackets: divided by the rate of the best other engine. In bold: at least as fast as that.";
    }
    if sheet.cases.iter().any(|case| case.rounds() > 1) {
        caption += " Of several rounds: the median, below it the lowest and the highest. (Rows that a later workload needs \
                    are loaded again, which makes another round of the load.)";
    }
    Table { caption, head, rows: rows.collect() }
}

/// The table of operations per second for terminals. Ratios are in separate rows, and the spread is given as ± half of
/// the range.
pub(super) fn rates_as_text(sheet: &Sheet) -> Table {
    let head = std::iter::once("operations/s".to_owned()).chain(sheet.whos.iter().cloned()).collect();
    let mut rows = Vec::new();
    for case in &sheet.cases {
        let rounds = case.rounds_note();
        let rounds = if rounds.is_empty() { rounds } else { format!(" ({rounds})") };
        let mut figures = vec![Cell::new(format!("{}{rounds}", case.label))];
        let mut ratios = vec![Cell::new("  by the best other")];
        for who in &sheet.whos {
            let (mut cell, rate) = rate_cell(sheet, case, who);
            if let Some(rate) = rate.filter(|rate| rate.rounds > 1 && rate.median > 0.0) {
                cell.text = format!("{} ±{:.0} %", cell.text, (rate.high - rate.low) / 2.0 / rate.median * 100.0);
            }
            figures.push(cell);
            ratios.push(Cell::new(ratio(case, who, rate).map_or(String::new(), times)));
        }
        rows.push(figures);
        if ratios[1..].iter().any(|cell| !cell.text.is_empty()) {
            rows.push(ratios);
        }
    }
    Table { caption: String::new(), head, rows }
}

/// The table of costs for terminals: the slowest operation, the longest oversleep of the idle thread, bytes written and
/// read, memory.
pub(super) fn costs_as_text(sheet: &Sheet) -> Table {
    type Figure = (&'static str, fn(&Line) -> f64, fn(f64) -> String);
    const MIB: f64 = (1 << 20) as f64;
    const FIGURES: [Figure; 7] = [
        ("slowest, ms", |line| line.latency.max_us / 1e3, |ms| format!("{ms:.1}")),
        ("idle thread, ms", |line| line.control_max_us / 1e3, |ms| format!("{ms:.1}")),
        ("bytes written a byte", |line| line.write_amplification, |ratio| format!("{ratio:.2}")),
        ("bytes read an operation", |line| line.read_bytes_per_op, |bytes| format!("{bytes:.0}")),
        ("memory, MiB", |line| line.peak_rss_bytes as f64 / MIB, |mib| format!("{mib:.0}")),
        ("of it the engine, MiB", |line| line.engine_bytes() as f64 / MIB, |mib| format!("{mib:.0}")),
        ("memory budget, MiB", |line| line.budget_bytes() as f64 / MIB, |mib| format!("{mib:.0}")),
    ];
    let head = std::iter::once("cost".to_owned()).chain(sheet.whos.iter().cloned()).collect();
    let mut rows = Vec::new();
    for case in &sheet.cases {
        for (name, figure, show) in FIGURES {
            let of = |who: &String| case.entry(who).and_then(|entry| entry.spread(figure)).map(|spread| spread.median);
            let figures: Vec<Option<f64>> = sheet.whos.iter().map(of).collect();
            if figures.iter().flatten().any(|figure| *figure > 0.0) {
                let cells = figures.into_iter().map(|figure| Cell::new(figure.map_or("–".to_owned(), show)));
                rows.push(std::iter::once(Cell::new(format!("{} · {name}", case.label))).chain(cells).collect());
            }
        }
    }
    Table { caption: String::new(), head, rows }
}

/// The latencies of a case. For each engine, the first row covers all operations. If the case has several kinds of
/// operations, a row for each kind follows.
pub(super) fn latencies(case: &Case) -> Table {
    let head = ["", "p50", "p90", "p99", "p99.9", "p99.99", "max", "idle thread"].map(str::to_owned).to_vec();
    let mut rows = Vec::new();
    for entry in &case.entries {
        rows.push(latency_row(entry, &entry.who, |line| Some(&line.latency)));
        let mut kinds: Vec<&String> = entry.rounds.iter().flat_map(|line| line.latency_by.keys()).collect();
        kinds.sort();
        kinds.dedup();
        for kind in kinds.iter().filter(|_| kinds.len() > 1) {
            let mut row =
                latency_row(entry, &format!("{} · {kind}", entry.who), |line| line.latency_by.get(kind.as_str()));
            row[0].class = "soft";
            rows.push(row);
        }
    }
    Table { caption: "Latency".into(), head, rows }
}

fn latency_row(entry: &Entry, name: &str, of: impl Fn(&Line) -> Option<&LatencyFigures>) -> Vec<Cell> {
    let mut row = vec![name_of(entry, name)];
    for i in 0..6 {
        let figure = |line: &Line| of(line).map_or(f64::NAN, |latency| percentiles(latency)[i] * 1e-6);
        row.push(Cell::figure(entry.spread(figure), "s"));
    }
    row.push(Cell::figure(entry.spread(|line| line.control_max_us * 1e-6), "s").class("soft"));
    row
}

/// The first cell of an engine's row: the name, the number of rounds, and a remark if answers were wrong.
fn name_of(entry: &Entry, name: &str) -> Cell {
    if entry.wrong().0 > 0 {
        return Cell::new(name).note("wrong answers").class("bad");
    }
    let rounds = entry.rounds.len();
    Cell::new(name).note(if rounds > 1 { format!("{rounds} rounds") } else { String::new() })
}

/// A column of the table of costs: name, unit, value.
type Cost = (&'static str, &'static str, fn(&Line) -> f64);

/// The table of the costs of the operations for each engine: bytes, memory, CPU time.
pub(super) fn costs(case: &Case) -> Table {
    const COSTS: [Cost; 9] = [
        ("operations acknowledged a second", "", |line| line.ops_per_s),
        ("time until no background work is left", "s", |line| {
            if line.settled_seconds > 0.0 { line.settled_seconds } else { f64::NAN }
        }),
        ("bytes written for each byte given", "", |line| {
            if line.write_amplification > 0.0 { line.write_amplification } else { f64::NAN }
        }),
        ("bytes on disk for each byte held", "", |line| line.space_amplification),
        ("read for each operation", "B", |line| line.read_bytes_per_op),
        ("read in all", "B", |line| io(line, "read_bytes")),
        ("written in all", "B", |line| io(line, "write_bytes")),
        ("CPU time for a million operations", "s", |line| line.cpu_s_per_million),
        ("peak memory", "B", |line| line.peak_rss_bytes as f64),
    ];
    let head =
        std::iter::once("").chain(COSTS.iter().map(|cost| cost.0)).chain(["engine's part of it, share of the budget"]);
    let rows = case.entries.iter().map(|entry| {
        let figures = COSTS.iter().map(|(_, unit, figure)| Cell::figure(entry.spread(figure), unit));
        let mut row: Vec<Cell> = std::iter::once(name_of(entry, &entry.who)).chain(figures).collect();
        row.push(share_of_budget(entry));
        row
    });
    Table { caption: "Costs".into(), head: head.map(str::to_owned).collect(), rows: rows.collect() }
}

fn io(line: &Line, name: &str) -> f64 {
    line.process_io.get(name).map_or(f64::NAN, |bytes| *bytes as f64)
}

/// The cell of the engine's peak memory divided by its budget, with both sizes below it. A value above 1 has the class
/// `bad`.
fn share_of_budget(entry: &Entry) -> Cell {
    let share = |line: &Line| {
        let budget = line.budget_bytes() as f64;
        if budget > 0.0 { line.engine_bytes() as f64 / budget * 100.0 } else { f64::NAN }
    };
    let spread = entry.spread(share);
    let [engine, budget] = [Line::engine_bytes, Line::budget_bytes].map(|of| entry.spread(|line| of(line) as f64));
    let sizes = engine.zip(budget).filter(|_| spread.is_some());
    let note = sizes
        .map(|(engine, budget)| format!("{} of {}", unit::show(engine.median, "B"), unit::show(budget.median, "B")));
    let cell = Cell::figure(spread, "%").note(note.unwrap_or_default());
    if spread.is_some_and(|share| share.median > 100.0) { cell.class("bad") } else { cell }
}
