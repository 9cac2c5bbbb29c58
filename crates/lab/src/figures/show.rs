//! Output of a figure: verdicts, text for terminals, JSON, and the plots as files.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use super::results::{io_amplification, is_logged, is_ours, rate};
use super::{ALL, Answer, Claim, Figure, Judge, Paper, Results};
use crate::engine::{Mode, Result};
use crate::line::{Line, Machine};
use crate::plot::{ImageFormat, Plot, unit};
use crate::workload::{Kind, Workload};

/// A claim "nearly holds" if the measured value is worse than the paper's value, but by at most this share of the
/// paper's value.
const TOLERANCE: f64 = 0.1;

impl Paper {
    /// Formats the paper's value for tables.
    pub fn text(&self, unit: &str) -> String {
        match self {
            Paper::Is(value) => number(*value, unit),
            Paper::Between(low, high) => format!("{}–{}", number(*low, ""), number(*high, unit)),
            Paper::AtMost(value) => format!("≤ {}", number(*value, unit)),
            Paper::AtLeast(value) => format!("≥ {}", number(*value, unit)),
            Paper::Says(words) => (*words).to_owned(),
        }
    }

    /// The lowest and the highest value of the claim, or `None` for a claim in words.
    fn range(&self) -> Option<(f64, f64)> {
        match *self {
            Paper::Is(value) => Some((value, value)),
            Paper::Between(low, high) => Some((low, high)),
            Paper::AtMost(value) => Some((0.0, value)),
            Paper::AtLeast(value) => Some((value, f64::INFINITY)),
            Paper::Says(_) => None,
        }
    }
}

/// Formats a value with its unit.
fn number(value: f64, unit: &str) -> String {
    match unit {
        "%" => unit::show(value, "%"),
        "B/s" => format!("{}/s", unit::show(value, "B")),
        "×" => format!("{} ×", unit::count(value)),
        "" => unit::count(value),
        other => format!("{}{other}", unit::count(value)),
    }
}

/// Compares a measured value with the paper's value. Returns a text: the ratio to the nearest value of the paper (or
/// the word `within`) and, unless the claim depends on the machine, whether the claim holds. Returns `–` if nothing was
/// measured or the paper has no number.
pub fn verdict(claim: &Claim, answer: &Answer) -> String {
    let (Ok(value), Some((low, high))) = (answer, claim.paper.range()) else { return "–".to_owned() };
    let nearest = value.clamp(low, high);
    let ratio = if low <= *value && *value <= high {
        "within".to_owned()
    } else {
        format!("{} of the paper's", number(value / nearest, "×"))
    };
    let worse = match claim.judge {
        Judge::Machine => return ratio,
        Judge::More => low / value,
        Judge::Less => value / high,
    };
    let word = match worse {
        worse if worse <= 1.0 => "holds",
        worse if worse <= 1.0 + TOLERANCE => "nearly holds",
        _ => "does not hold",
    };
    if ratio == "within" { word.to_owned() } else { format!("{word}: {ratio}") }
}

/// The name of the mode.
fn mode(results: &Results) -> &'static str {
    match results.scale.mode {
        Mode::Product => "product",
        Mode::Paper => "paper",
    }
}

/// Formats a figure as text: one measurement, or one column for each mode.
///
/// # Panics
/// If `modes` is empty.
pub fn text(modes: &[Results]) -> String {
    let (first, figure) = (&modes[0], modes[0].figure);
    let mut text = format!("{}  {}  ({})\n", figure.id, figure.title, figure.source);
    let names: Vec<&str> = modes.iter().map(mode).collect();
    let _ = writeln!(text, "mode    {}", names.join(", "));
    let _ = writeln!(text, "paper   {}", figure.setup);
    let _ = writeln!(text, "here    {}", setting(first));
    for (results, noise) in modes.iter().filter_map(|results| Some((results, noise(results)?))) {
        let _ = writeln!(text, "noise   {}: {noise}", mode(results));
    }
    let heads: Vec<String> = names.iter().flat_map(|name| [format!("{name} mode"), "verdict".to_owned()]).collect();
    let mut head = vec!["claim", "the source"];
    head.extend(heads.iter().map(String::as_str));
    head.push("from");
    let rows = figure.claims.iter().map(|claim| {
        let mut row = vec![claim.what.to_owned(), claim.paper.text(claim.unit)];
        for answer in modes.iter().map(|results| (claim.measure)(results)) {
            let verdict = verdict(claim, &answer);
            row.push(answer.map_or_else(|why| format!("– ({why})"), |value| number(value, claim.unit)));
            row.push(verdict);
        }
        row.push(claim.from.to_owned());
        row
    });
    text += &format!("\n{}\n", table(&head, rows.collect()));
    let head = ["measured", "ops/s", "acknowledged/s", "write ampl.", "I/O ampl.", "read/op", "slowest"];
    // Lines of rivals are the same in each mode, so they are shown once.
    let more = modes[1..].iter().flat_map(|results| results.lines.iter().filter(|line| is_ours(line)));
    text += &format!("{}\n", table(&head, first.lines.iter().chain(more).map(row).collect()));
    for missing in figure.missing {
        let _ = writeln!(text, "not as in the paper: {missing}");
    }
    if let Some(aside) = modes.iter().map(|results| results.set_aside).min().filter(|&aside| aside > 0) {
        let _ = writeln!(
            text,
            "set aside: {aside} given lines that differ in workload, distribution, records, sizes, memory, threads, durability, index or mode"
        );
    }
    text
}

/// Sizes and machine as one line of text.
fn setting(results: &Results) -> String {
    let (figure, scale) = (results.figure, &results.scale);
    let data = scale.data_bytes(figure) as f64;
    let machine = results.lines.first().map_or_else(Machine::default, |line| line.machine.clone());
    let all = |of: fn(&Line) -> u64, text: fn(f64) -> String| {
        let values: BTreeSet<u64> = results.lines.iter().map(of).collect();
        values.into_iter().map(|value| text(value as f64)).collect::<Vec<_>>().join(", ")
    };
    let memories: BTreeSet<u64> = results.lines.iter().map(|line| line.asked.memory_budget).collect();
    let shares: Vec<String> = memories.iter().map(|memory| format!("{:.0}", *memory as f64 / data * 100.0)).collect();
    let mut text = format!(
        "{} rows of {} + {} B ({:.2} % of the paper's), {} of memory ({} % of the data; the paper's {:.0} %), threads {}; \
         {} cores of {}, {}",
        unit::count(scale.records(figure) as f64),
        figure.key_len,
        figure.value_len,
        scale.records(figure) as f64 / figure.paper_records as f64 * 100.0,
        all(|line| line.asked.memory_budget, |bytes| unit::show(bytes, "B")),
        shares.join(", "),
        figure.memory_share * 100.0,
        all(|line| line.threads as u64, unit::count),
        machine.cores,
        machine.cpu,
        machine.file_system,
    );
    if let Some(device) = &results.device {
        let _ = write!(
            text,
            "; device: sequential reads {}/s, writes {}/s, random 4 KiB reads {}/s{}",
            unit::show(device.sequential_read, "B"),
            unit::show(device.sequential_write, "B"),
            unit::show(device.random_read, "B"),
            if device.is_direct { "" } else { ", through the page cache: of memory, not of the device" }
        );
    }
    text
}

/// The text about delays that the machine caused.
fn noise(results: &Results) -> Option<String> {
    let worst = results.lines.iter().map(|line| line.control_max_us).fold(0.0, f64::max);
    (worst > 0.0).then(|| format!("an idle thread overslept by up to {} meanwhile", unit::micros(worst)))
}

/// A row of the table of runs.
fn row(line: &Line) -> Vec<String> {
    let mixed = Workload::find(&line.workload).is_some_and(|workload| workload.kind == Kind::LoadMixed);
    let share = if mixed { format!(" {} %", line.asked.seq_share) } else { String::new() };
    let log = if is_logged(line) { "" } else { ", lazy log" };
    let memory = unit::show(line.asked.memory_budget as f64, "B");
    let threads = if line.threads == 1 { "1 thread".to_owned() } else { format!("{} threads", line.threads) };
    let records = unit::count(line.asked.records as f64);
    let name = format!("{} {}{share}, {records} rows, {threads}, {memory}{log}", line.who(), line.workload);
    let is_pure = line.write_amplification == 0.0 || line.workload.starts_with("load");
    if let Some(why) = &line.refused {
        return vec![name, format!("refused: {why}")];
    }
    if line.wrong_answers > 0 {
        return vec![name, "WRONG ANSWERS".to_owned()];
    }
    vec![
        name,
        unit::count(rate(line)),
        unit::count(line.ops_per_s),
        if line.write_amplification > 0.0 { unit::count(line.write_amplification) } else { "–".to_owned() },
        if is_pure { unit::count(io_amplification(line)) } else { "–".to_owned() },
        unit::show(line.read_bytes_per_op, "B"),
        unit::micros(line.latency.max_us),
    ]
}

/// Formats a table with left-aligned columns of minimal width. A row may have fewer cells than the head.
fn table(head: &[&str], rows: Vec<Vec<String>>) -> String {
    let all: Vec<Vec<String>> =
        std::iter::once(head.iter().map(|name| (*name).to_owned()).collect()).chain(rows).collect();
    let wide = |column: usize| {
        // The last cell of a row does not widen its column.
        let cells = all.iter().filter(|row| column + 1 < row.len()).map(|row| row[column].chars().count());
        cells.max().unwrap_or(0)
    };
    let widths: Vec<usize> = (0..head.len()).map(wide).collect();
    let mut text = String::new();
    for row in &all {
        let cells = row.iter().zip(&widths).map(|(cell, &width)| format!("{cell:width$}"));
        text += cells.collect::<Vec<_>>().join("  ").trim_end();
        text.push('\n');
    }
    text
}

/// Formats a figure as JSON, without the lines of results.
pub fn json(results: &Results) -> Value {
    let figure = results.figure;
    let claims: Vec<Value> = figure.claims.iter().map(|claim| claim_json(claim, &(claim.measure)(results))).collect();
    json!({
        "id": figure.id,
        "title": figure.title,
        "source": figure.source,
        "mode": mode(results),
        "paper": figure.setup,
        "here": setting(results),
        "noise": noise(results),
        "device": results.device,
        "claims": claims,
        "not_as_in_the_paper": figure.missing,
        "set_aside": results.set_aside,
    })
}

fn claim_json(claim: &Claim, answer: &Answer) -> Value {
    json!({
        "what": claim.what,
        "paper": claim.paper.text(claim.unit),
        "paper_range": claim.paper.range(),
        "unit": claim.unit,
        "from": claim.from,
        "measured": answer.as_ref().ok(),
        "why_not": answer.as_ref().err(),
        "verdict": verdict(claim, answer),
    })
}

/// The list of figures as text.
pub fn list() -> String {
    let mut text = String::new();
    for figure in ALL {
        let rivals = figure.claims.iter().filter(|claim| needs_rival(claim)).count();
        let _ = writeln!(text, "{:9} {}  ({})", figure.id, figure.title, figure.source);
        let _ = write!(text, "          {} claims", figure.claims.len());
        if rivals > 0 {
            let _ = write!(text, ", {rivals} of them with a rival's lines only (--with)");
        }
        text.push('\n');
        for missing in figure.missing {
            let _ = writeln!(text, "          not as in the paper: {missing}");
        }
    }
    text
}

/// The list of figures as JSON.
pub fn list_json() -> Value {
    let entry = |figure: &&Figure| {
        json!({
            "id": figure.id,
            "title": figure.title,
            "source": figure.source,
            "modes": ["product", "paper"],
            "claims": figure.claims.len(),
            "not_as_in_the_paper": figure.missing,
        })
    };
    ALL.iter().map(entry).collect()
}

/// Whether a claim needs lines of a rival.
pub fn needs_rival(claim: &Claim) -> bool {
    ["RocksDB", "LevelDB", "PebblesDB"].iter().any(|rival| claim.what.contains(rival))
}

/// The plots of a figure, with notes on its source, mode and setting.
pub fn plots(results: &Results) -> Vec<(String, Plot)> {
    let figure = results.figure;
    let finish = |(name, plot): (&str, Plot)| {
        let plot = plot.note(format!("{}. PandoDB: {} mode.", figure.source, mode(results))).note(setting(results));
        let paper = if results.scale.mode == Mode::Paper { "-paper" } else { "" };
        (format!("{}-{name}{paper}", figure.id), plot)
    };
    (figure.plots)(results).into_iter().map(finish).collect()
}

/// Writes the plots as image files into a directory, which is created if it does not exist.
///
/// # Errors
/// If the directory or a file cannot be written. The error names the path.
pub fn write_images(results: &Results, directory: &Path, format: ImageFormat) -> Result<Vec<PathBuf>> {
    plots(results).iter().map(|(name, plot)| plot.write(directory, name, format)).collect()
}
