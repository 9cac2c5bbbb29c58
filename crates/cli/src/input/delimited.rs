//! Readers of CSV and TSV.
//!
//! TSV has fields between TABs, without quoting. CSV follows RFC 4180: a field may be enclosed in double quotes. Such a
//! field may contain line breaks, and each double quote inside the field is doubled. In both formats, the first line
//! names the fields.
//!
//! A stray quote must not make the following lines part of a field. A record ends at the first line end where the
//! number of quotes is even. If there is no such line end within [`MAX_RECORD_LINES`], or if the record is not a row of
//! the table, only the **first line** of the record is malformed. Reading then continues with the second line of the
//! record:
//!
//! ```text
//! 7  a,"b,c        ← malformed: line 7 opens a quote that never closes
//! 8  d,e,f         ← kept and read again as a row of its own
//! ```

use std::{
    collections::VecDeque,
    io::{self, BufRead},
};

use super::{
    Record, Source, Step,
    lines::{self, Line, Lines},
    push_key_part,
};
use crate::failure::{Failure, Outcome};

/// The maximum number of line breaks in a record.
pub const MAX_RECORD_LINES: usize = 1_000;

/// The two formats.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Dialect {
    /// CSV: commas and quotes.
    Csv,
    /// TSV: TABs.
    Tsv,
}

/// A line that was read ahead: the number of the line, and the text of the line (`None` if the line was too long).
type Ahead = (u64, Option<Vec<u8>>);

/// A table with a header.
#[derive(Debug)]
pub struct Delimited<R> {
    lines: Lines<R>,
    dialect: Dialect,
    columns: usize,
    /// The columns of the key, in the order of the key's parts.
    key: Vec<usize>,
    /// The other columns, in the order of the table.
    value: Vec<usize>,
    ahead: VecDeque<Ahead>,
    row: Fields,
    /// The number of the first line of the last step.
    at: u64,
}

/// The fields of one row, stored one after the other in one buffer.
#[derive(Debug, Default)]
struct Fields {
    bytes: Vec<u8>,
    ends: Vec<usize>,
}

impl Fields {
    fn clear(&mut self) {
        self.bytes.clear();
        self.ends.clear();
    }

    fn finish_field(&mut self) {
        self.ends.push(self.bytes.len());
    }

    fn get(&self, i: usize) -> &[u8] {
        let start = if i == 0 { 0 } else { self.ends[i - 1] };
        &self.bytes[start..self.ends[i]]
    }
}

impl<R: BufRead> Delimited<R> {
    /// Reads the header and finds the fields `keys` in the header. If `keys` is empty, the first column is the key.
    ///
    /// # Errors
    /// If the header is missing, if a key field is missing or duplicated in the header, or if `keys` names a field
    /// twice.
    pub fn open(input: R, dialect: Dialect, keys: &[String]) -> Outcome<Delimited<R>> {
        let mut table = Delimited {
            lines: Lines::new(input),
            dialect,
            columns: 0,
            key: Vec::new(),
            value: Vec::new(),
            ahead: VecDeque::new(),
            row: Fields::default(),
            at: 0,
        };
        let names = table.header()?;
        table.columns = names.len();
        let positions = keys.iter().map(|key| position(&names, key)).collect::<Outcome<Vec<_>>>()?;
        table.key = if positions.is_empty() { vec![0] } else { positions };
        if (1..table.key.len()).any(|i| table.key[..i].contains(&table.key[i])) {
            return Err(Failure::Misuse("--key names a field twice; name each field once".into()));
        }
        table.value = (0..table.columns).filter(|column| !table.key.contains(column)).collect();
        Ok(table)
    }

    fn header(&mut self) -> Outcome<Vec<String>> {
        let missing = || Failure::Misuse("the input has no header: its first line must name the fields".into());
        let read = self.read_line().map_err(|e| Failure::io("reading the header", &e))?;
        let (_, text) = read.ok_or_else(missing)?;
        let text = text.ok_or_else(missing)?;
        let text = text.strip_prefix(b"\xef\xbb\xbf").unwrap_or(&text);
        parse_row(self.dialect, text, &mut self.row)
            .map_err(|why| Failure::Misuse(format!("the header (line 1): {why}")))?;
        Ok((0..self.row.ends.len()).map(|i| String::from_utf8_lossy(self.row.get(i)).into_owned()).collect())
    }

    /// The next line, from the lines that were read ahead or from the input.
    fn read_line(&mut self) -> io::Result<Option<Ahead>> {
        if let Some(line) = self.ahead.pop_front() {
            return Ok(Some(line));
        }
        let text = match self.lines.next()? {
            Line::End => return Ok(None),
            Line::TooLong => None,
            Line::Text(text) => Some(text.to_vec()),
        };
        Ok(Some((self.lines.number(), text)))
    }

    /// Appends lines to `text` until all quotes in `text` are closed. Also adds the appended lines to `taken`, so that
    /// they can be read again.
    fn close_quotes(&mut self, text: &mut Vec<u8>, taken: &mut VecDeque<Ahead>) -> io::Result<Result<(), String>> {
        let mut open = has_open_quote(text, false);
        while open {
            if taken.len() == MAX_RECORD_LINES || text.len() > lines::MAX_LINE {
                return Ok(Err(format!("a quote that does not close within {MAX_RECORD_LINES} lines")));
            }
            let Some((number, line)) = self.read_line()? else {
                return Ok(Err("a quote that does not close".into()));
            };
            let readable = line.is_some();
            if let Some(line) = &line {
                text.push(b'\n');
                text.extend_from_slice(line);
                open = has_open_quote(line, open);
            }
            taken.push_back((number, line));
            if !readable {
                return Ok(Err("a quote that does not close".into()));
            }
        }
        Ok(Ok(()))
    }

    /// Builds a record from the current row.
    fn assemble(&self, record: &mut Record) -> Result<(), String> {
        let found = self.row.ends.len();
        if found != self.columns {
            return Err(format!("{found} fields, but the header names {}", self.columns));
        }
        record.key.clear();
        record.value.clear();
        for (i, &column) in self.key.iter().enumerate() {
            push_key_part(&mut record.key, self.row.get(column), i, self.key.len())?;
        }
        if record.key.is_empty() {
            return Err("the key is empty".into());
        }
        match self.value[..] {
            [one] => record.value.extend_from_slice(self.row.get(one)),
            ref several => {
                for (i, &column) in several.iter().enumerate() {
                    push_field(&mut record.value, self.dialect, self.row.get(column), i);
                }
            }
        }
        Ok(())
    }
}

impl<R: BufRead> Source for Delimited<R> {
    fn next(&mut self, record: &mut Record) -> io::Result<Step> {
        let Some((line, text)) = self.read_line()? else { return Ok(Step::End) };
        self.at = line;
        let Some(mut text) = text else {
            return Ok(Step::Malformed { line, why: lines::TOO_LONG.into() });
        };
        let mut taken = VecDeque::new();
        let closed = match self.dialect {
            Dialect::Csv => self.close_quotes(&mut text, &mut taken)?,
            Dialect::Tsv => Ok(()),
        };
        let made =
            closed.and_then(|()| parse_row(self.dialect, &text, &mut self.row)).and_then(|()| self.assemble(record));
        Ok(match made {
            Ok(()) => Step::Record,
            Err(why) => {
                // Only the first line is malformed. The other lines are read again, before the lines that were already
                // read ahead.
                taken.append(&mut self.ahead);
                self.ahead = taken;
                Step::Malformed { line, why }
            }
        })
    }

    fn line(&self) -> u64 {
        self.at
    }
}

fn position(names: &[String], wanted: &str) -> Outcome<usize> {
    let mut found = (0..names.len()).filter(|&i| names[i] == wanted);
    match (found.next(), found.next()) {
        (Some(i), None) => Ok(i),
        (None, _) => {
            let names = names.join(", ");
            Err(Failure::Misuse(format!("the input has no field `{wanted}`; its header names {names}")))
        }
        (Some(_), Some(_)) => {
            Err(Failure::Misuse(format!("the header names the field `{wanted}` twice; rename one of the columns")))
        }
    }
}

/// Whether a quote is open at the end of `text`, given whether a quote was `open` at its start.
fn has_open_quote(text: &[u8], open: bool) -> bool {
    (text.iter().filter(|&&b| b == b'"').count() % 2 == 1) != open
}

/// Splits a complete record into its fields.
fn parse_row(dialect: Dialect, text: &[u8], row: &mut Fields) -> Result<(), String> {
    row.clear();
    let text = text.strip_suffix(b"\r").unwrap_or(text);
    match dialect {
        Dialect::Tsv => {
            for field in text.split(|&b| b == b'\t') {
                row.bytes.extend_from_slice(field);
                row.finish_field();
            }
            Ok(())
        }
        Dialect::Csv => parse_csv(text, row),
    }
}

fn parse_csv(text: &[u8], row: &mut Fields) -> Result<(), String> {
    let mut rest = text;
    loop {
        rest = if rest.first() == Some(&b'"') { quoted_field(&rest[1..], row)? } else { plain_field(rest, row)? };
        row.finish_field();
        match rest.split_first() {
            None => return Ok(()),
            Some((b',', next)) => rest = next,
            Some(_) => return Err("text after a closing quote".into()),
        }
    }
}

/// Reads an unquoted field. Returns the rest of the text from the comma on.
fn plain_field<'t>(text: &'t [u8], row: &mut Fields) -> Result<&'t [u8], String> {
    let end = text.iter().position(|&b| b == b',').unwrap_or(text.len());
    if text[..end].contains(&b'"') {
        return Err("a quote inside a field that does not start with one".into());
    }
    row.bytes.extend_from_slice(&text[..end]);
    Ok(&text[end..])
}

/// Reads a quoted field, whose opening quote has already been read. Returns the text that follows the closing quote.
fn quoted_field<'t>(mut text: &'t [u8], row: &mut Fields) -> Result<&'t [u8], String> {
    loop {
        let quote = text.iter().position(|&b| b == b'"').ok_or("a quote that does not close")?;
        row.bytes.extend_from_slice(&text[..quote]);
        text = &text[quote + 1..];
        if text.first() != Some(&b'"') {
            return Ok(text);
        }
        row.bytes.push(b'"');
        text = &text[1..];
    }
}

/// Appends a field to a value that consists of several fields.
fn push_field(value: &mut Vec<u8>, dialect: Dialect, field: &[u8], index: usize) {
    if index > 0 {
        value.push(if dialect == Dialect::Csv { b',' } else { b'\t' });
    }
    if dialect == Dialect::Tsv || !field.iter().any(|b| matches!(b, b',' | b'"' | b'\n' | b'\r')) {
        value.extend_from_slice(field);
        return;
    }
    value.push(b'"');
    for &byte in field {
        if byte == b'"' {
            value.push(b'"');
        }
        value.push(byte);
    }
    value.push(b'"');
}
