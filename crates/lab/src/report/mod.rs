//! The report: compares lines of results in an HTML page, in images, and in a table for terminals.
//!
//! ```text
//!   .jsonl ──read──▶ lines ──group──▶ Sheet ──charts──▶ plots ──┬─▶ page   html()
//!                                       └────tables──▶ tables ──┤
//!                                                               ├─▶ files  write_images()
//!                                                               └─▶ text   table()
//! ```
//!
//! 1. `group`: a *case* is a workload with its number of threads and all of [`crate::line::Asked`]. Lines of one case
//!    and one engine are *rounds*. The report shows the median and the spread of the rounds.
//! 2. `tables` and `charts` turn cases into tables and plots; `summary` makes the overview and the warnings.
//! 3. `page` writes one HTML file that loads no other files and has no scripts.
//!
//! Invariants: the output depends on the lines only. Every name from a line is escaped. A line with wrong answers has
//! no rate in any comparison. A refused workload is listed with its reason and never shown as a zero.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use crate::engine::Result;
use crate::line::Line;
use crate::plot::ImageFormat;

mod charts;
mod group;
mod page;
mod summary;
mod tables;
mod transactions;

use group::Sheet;

/// Reads lines of results from `.jsonl` files, in the given order. Unknown fields are ignored. A field with the value
/// `null`, which stands for a number that is not finite, counts as a missing field. Empty lines are skipped.
///
/// # Errors
/// If a file cannot be read or a line is not a line of results. The error names the file and the number of the line.
pub fn read<P: AsRef<Path>>(paths: &[P]) -> Result<Vec<Line>> {
    let mut lines = Vec::new();
    for path in paths {
        let path = path.as_ref();
        let text = std::fs::read_to_string(path).map_err(|error| format!("cannot read {}: {error}", path.display()))?;
        for (i, row) in text.lines().enumerate().filter(|(_, row)| !row.trim().is_empty()) {
            let parsed = serde_json::from_str(row).and_then(|value| serde_json::from_value(without_nulls(value)));
            lines.push(parsed.map_err(|error| {
                format!("{}:{}: not a line of results of `pando bench`: {error}", path.display(), i + 1)
            })?);
        }
    }
    Ok(lines)
}

fn without_nulls(value: serde_json::Value) -> serde_json::Value {
    use serde_json::Value;
    match value {
        Value::Object(fields) => {
            let known = fields.into_iter().filter(|(_, field)| !field.is_null());
            Value::Object(known.map(|(name, field)| (name, without_nulls(field))).collect())
        }
        Value::Array(items) => {
            let number = |item: Value| if item.is_null() { Value::from(0) } else { without_nulls(item) };
            Value::Array(items.into_iter().map(number).collect())
        }
        other => other,
    }
}

/// The report as one page with tables and inline SVG, for light and for dark backgrounds. The page has no scripts and
/// loads no other files.
pub fn html(lines: &[Line]) -> String {
    page::page(&Sheet::new(lines))
}

/// Writes the plots of [`html`] as image files into `directory`, which is created if it does not exist. The name of a
/// file contains the workload, the number of threads and the content of the plot.
///
/// # Errors
/// If the directory or a file cannot be written. The error names the path.
pub fn write_images(lines: &[Line], directory: &Path, format: ImageFormat) -> Result<Vec<PathBuf>> {
    let sheet = Sheet::new(lines);
    let mut paths = Vec::new();
    for case in &sheet.cases {
        for (what, plot) in charts::charts(case) {
            paths.push(plot.write(directory, &format!("{}-{what}", case.slug), format)?);
        }
    }
    Ok(paths)
}

/// Markdown tables for terminals. The first shows operations per second, with a row for each workload and a column
/// for each engine. Below each row is the ratio to the best other engine. The second table shows the costs. If there are
/// transactional workloads, a third table shows their isolation, attempts and conflicts.
pub fn table(lines: &[Line]) -> String {
    let sheet = Sheet::new(lines);
    let mut text = tables::rates_as_text(&sheet).markdown();
    text += &format!("\n{}", tables::costs_as_text(&sheet).markdown());
    text += &transactions::as_text(&sheet).map_or(String::new(), |table| format!("\n{}", table.markdown()));
    let apart: BTreeSet<String> = lines.iter().filter(|line| line.apart).map(Line::who).collect();
    for who in apart {
        text += &format!("\n- {who} is left out of all ratios, since its acknowledged writes do not survive a kill");
    }
    for (who, workload, reason) in sheet.refusals() {
        text += &format!("\n- {who} refused {workload}: {reason}");
    }
    for (case, entry) in sheet.wrong() {
        let (wrong, checked) = entry.wrong();
        text += &format!("\n- WRONG ANSWERS: {} in {}: {wrong} of {checked} checked", entry.who, case.label);
    }
    text.trim_end().to_owned() + "\n"
}
