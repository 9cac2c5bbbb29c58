//! Output: tables for people, JSON for programs, progress bars for terminals.

use std::{
    fmt::Display,
    io::{self, BufWriter, IsTerminal, StdoutLock, Write},
};

use indicatif::{ProgressBar, ProgressStyle};
use serde::Serialize;

use crate::failure::{Failure, Outcome};

/// Buffered stdout. Flush it with [`finish`].
pub type Out = BufWriter<StdoutLock<'static>>;

/// Opens buffered stdout, for many lines.
pub fn stdout() -> Out {
    BufWriter::with_capacity(64 << 10, io::stdout().lock())
}

/// Writes the rest of the buffer.
pub fn finish(mut out: Out) -> Outcome {
    out.flush().map_err(|e| lost(&e))
}

/// Converts an error of a write to stdout into a failure.
pub fn lost(error: &io::Error) -> Failure {
    Failure::io("stdout", error)
}

/// Prints one line to stdout and flushes it.
pub fn line(text: impl Display) -> Outcome {
    let mut out = io::stdout().lock();
    writeln!(out, "{text}").and_then(|()| out.flush()).map_err(|e| lost(&e))
}

/// Prints `value` as JSON on one line.
pub fn json(value: &impl Serialize) -> Outcome {
    line(serde_json::to_string(value).expect("figures and strings have a JSON form"))
}

/// A value in JSON.
#[derive(Clone, Copy, Debug)]
pub enum Shown<'a> {
    /// A decimal number.
    Number(&'a str),
    /// Bytes. They are printed as a string if they are UTF-8, otherwise as hexadecimal digits in a field with another
    /// name.
    Bytes(&'a [u8]),
}

/// A record as a JSON object: `{"key":…,"value":…}`, with `key_hex` or `value_hex` for bytes that are not UTF-8.
pub fn json_record(key: &[u8], value: Option<Shown<'_>>) -> String {
    let mut text = String::from("{");
    json_bytes(&mut text, "key", key);
    match value {
        Some(Shown::Bytes(value)) => {
            text.push(',');
            json_bytes(&mut text, "value", value);
        }
        Some(Shown::Number(digits)) => {
            text.push_str(",\"value\":");
            text.push_str(digits);
        }
        None => {}
    }
    text.push('}');
    text
}

fn json_bytes(text: &mut String, name: &str, bytes: &[u8]) {
    let (suffix, value) = match std::str::from_utf8(bytes) {
        Ok(valid) => ("", valid.to_owned()),
        Err(_) => ("_hex", bytes.iter().map(|byte| format!("{byte:02x}")).collect()),
    };
    let value = serde_json::to_string(&value).expect("a string has a JSON form");
    text.push_str(&format!("\"{name}{suffix}\":{value}"));
}

/// Formats names and figures in two columns, one pair per line.
pub fn figures(rows: &[(&str, String)]) -> String {
    let width = rows.iter().map(|(name, _)| name.chars().count()).max().unwrap_or(0);
    let lines: Vec<String> = rows.iter().map(|(name, figure)| format!("{name:width$}  {figure}")).collect();
    lines.join("\n")
}

/// Formats a table. The first column is left-aligned; the other columns are right-aligned.
pub fn table(head: &[&str], rows: &[Vec<String>]) -> String {
    let width = |column: usize| {
        let cells = rows.iter().map(|row| row[column].chars().count());
        cells.chain([head[column].chars().count()]).max().unwrap_or(0)
    };
    let widths: Vec<usize> = (0..head.len()).map(width).collect();
    let render = |cells: Vec<&str>| {
        let cells: Vec<String> = (cells.iter().zip(&widths).enumerate())
            .map(|(i, (cell, &width))| if i == 0 { format!("{cell:width$}") } else { format!("{cell:>width$}") })
            .collect();
        cells.join("  ").trim_end().to_owned()
    };
    let mut lines = vec![render(head.to_vec())];
    lines.extend(rows.iter().map(|row| render(row.iter().map(String::as_str).collect())));
    lines.join("\n")
}

/// Formats a number with thousands separators, such as `1,234,567`.
pub fn count(n: u64) -> String {
    let digits = n.to_string();
    let mut out = String::with_capacity(digits.len() + digits.len() / 3);
    for (i, digit) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i).is_multiple_of(3) {
            out.push(',');
        }
        out.push(digit);
    }
    out
}

/// Formats a number of bytes, such as `1.5 MiB`.
pub fn bytes(n: u64) -> String {
    const UNITS: [&str; 5] = ["KiB", "MiB", "GiB", "TiB", "PiB"];
    if n < 1024 {
        return format!("{n} B");
    }
    let mut size = n as f64 / 1024.0;
    let mut unit = 0;
    while size >= 1024.0 && unit + 1 < UNITS.len() {
        size /= 1024.0;
        unit += 1;
    }
    format!("{size:.1} {}", UNITS[unit])
}

/// Formats a duration that is given in microseconds, such as `12.3 µs`, `4.5 ms` or `6.70 s`.
pub fn micros(us: f64) -> String {
    if us < 1e3 {
        format!("{us:.1} µs")
    } else if us < 1e6 {
        format!("{:.1} ms", us / 1e3)
    } else {
        format!("{:.2} s", us / 1e6)
    }
}

/// Whether to show progress, which is the case if stderr is a terminal.
fn watched() -> bool {
    io::stderr().is_terminal()
}

/// A progress bar over `total` bytes, or a counter of bytes if the total is unknown. It is hidden unless stderr is a
/// terminal.
pub fn byte_bar(total: Option<u64>) -> ProgressBar {
    let (bar, template) = match total {
        _ if !watched() => return ProgressBar::hidden(),
        Some(total) => (ProgressBar::new(total), "{bar:40} {bytes}/{total_bytes} {bytes_per_sec} {msg}"),
        None => (ProgressBar::new_spinner(), "{spinner} {bytes} {bytes_per_sec} {msg}"),
    };
    bar.with_style(ProgressStyle::with_template(template).expect("a constant template"))
}

/// A spinner with a message. It is hidden unless stderr is a terminal.
pub fn spinner(message: &'static str) -> ProgressBar {
    if !watched() {
        return ProgressBar::hidden();
    }
    let bar = ProgressBar::new_spinner().with_message(message);
    bar.enable_steady_tick(std::time::Duration::from_millis(120));
    bar
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_are_readable() {
        assert_eq!(
            (count(0), count(999), count(1_000), count(1_234_567)),
            ("0".into(), "999".into(), "1,000".into(), "1,234,567".into())
        );
        assert_eq!((bytes(1023), bytes(1536), bytes(3 << 30)), ("1023 B".into(), "1.5 KiB".into(), "3.0 GiB".into()));
        assert_eq!((micros(1.25), micros(1500.0), micros(2e6)), ("1.2 µs".into(), "1.5 ms".into(), "2.00 s".into()));
    }

    #[test]
    fn a_record_in_json_keeps_every_byte() {
        let record = |key: &[u8], value| json_record(key, value);
        assert_eq!(record(b"k", None), r#"{"key":"k"}"#);
        assert_eq!(record("é\"\n".as_bytes(), Some(Shown::Bytes(b"a\xff"))), r#"{"key":"é\"\n","value_hex":"61ff"}"#);
        assert_eq!(record(b"\x80", Some(Shown::Number("-7"))), r#"{"key_hex":"80","value":-7}"#);
    }

    #[test]
    fn columns_line_up() {
        let text = table(&["name", "n"], &[vec!["a".into(), "10".into()], vec!["long name".into(), "7".into()]]);
        assert_eq!(text, "name        n\na          10\nlong name   7");
        assert_eq!(figures(&[("a", "1".into()), ("bcd", "2".into())]), "a    1\nbcd  2");
    }
}
