//! Reads records from text in four formats. All formats are read through the trait [`Source`].
//!
//! ```text
//! bytes ─ packed ─ lines::Lines ─▶ kv        key TAB value, escaped
//!                                 delimited  csv, tsv: fields by position, named by the first line
//!                                 ndjson     fields by name
//!                                   │
//!                                   ▼  Step::Record | Step::Malformed { line, why } | Step::End
//! ```
//!
//! The input is read once, and only the current line is in memory, or the lines of the current record in CSV. A
//! malformed line does not affect the following lines.

mod delimited;
pub(crate) mod lines;
mod ndjson;
pub(crate) mod packed;

use std::io::{self, BufRead};

use crate::{
    args::Format,
    failure::{Failure, Outcome},
    kv,
};
use lines::{Line, Lines};

/// A key and a value. The buffers are reused for the next record.
#[derive(Debug, Default)]
pub struct Record {
    /// The key, which is not empty.
    pub key: Vec<u8>,
    /// The value, or the operand in the form in which it was typed.
    pub value: Vec<u8>,
}

/// The result of reading one record from a [`Source`].
#[derive(Debug, PartialEq, Eq)]
pub enum Step {
    /// A record was read into the given buffers.
    Record,
    /// The line is not a record. The content of the buffers is undefined.
    Malformed {
        /// The number of the line, counted from 1.
        line: u64,
        /// The reason why the line is malformed.
        why: String,
    },
    /// The end of the input.
    End,
}

/// A stream of records.
pub trait Source {
    /// Reads the next record.
    ///
    /// # Errors
    /// Only if the input cannot be read. A malformed line is reported as [`Step::Malformed`].
    fn next(&mut self, record: &mut Record) -> io::Result<Step>;

    /// The number of the line of the last step, counted from 1. If the step read several lines, this is the number of
    /// the first of these lines.
    fn line(&self) -> u64;
}

/// Opens `input` in the format `format`, with keys formed by the fields `keys`. `operands` means that the values are
/// operands of a merge.
///
/// # Errors
/// If the key fields are invalid for the format or are missing in the header, or if the header cannot be read.
pub fn open<'a>(
    input: impl BufRead + 'a,
    format: Format,
    keys: &[String],
    operands: bool,
) -> Outcome<Box<dyn Source + 'a>> {
    if keys.iter().any(String::is_empty) {
        return Err(Failure::Misuse("--key has an empty field name; write --key FIELD or --key A,B".into()));
    }
    Ok(match format {
        Format::Kv if !keys.is_empty() => {
            return Err(Failure::Misuse(
                "--key names fields, but --format kv has none; omit --key, or use csv, tsv or ndjson".into(),
            ));
        }
        Format::Kv => Box::new(KvSource { lines: Lines::new(input) }),
        Format::Tsv => Box::new(delimited::Delimited::open(input, delimited::Dialect::Tsv, keys)?),
        Format::Csv => Box::new(delimited::Delimited::open(input, delimited::Dialect::Csv, keys)?),
        Format::Ndjson if keys.is_empty() => {
            return Err(Failure::Misuse("--format ndjson needs --key FIELD,… to form the keys".into()));
        }
        Format::Ndjson => Box::new(ndjson::Ndjson::new(input, keys, operands)),
    })
}

/// A source that reads lines in the [`kv`] form.
struct KvSource<R> {
    lines: Lines<R>,
}

impl<R: BufRead> Source for KvSource<R> {
    fn next(&mut self, record: &mut Record) -> io::Result<Step> {
        let made = match self.lines.next()? {
            Line::End => return Ok(Step::End),
            Line::TooLong => Err(lines::TOO_LONG.into()),
            Line::Text(text) => kv::parse_line(text, &mut record.key, &mut record.value),
        };
        Ok(match made {
            Ok(()) => Step::Record,
            Err(why) => Step::Malformed { line: self.lines.number(), why },
        })
    }

    fn line(&self) -> u64 {
        self.lines.number()
    }
}

/// Appends a part of a key. The parts are joined by a zero byte, so that keys are ordered by the first part, then by
/// the second, and so on.
///
/// # Errors
/// A message, if the key has several parts and one part contains a zero byte. With such parts, two different rows could
/// get the same key.
fn push_key_part(key: &mut Vec<u8>, part: &[u8], index: usize, parts: usize) -> Result<(), String> {
    if parts > 1 && part.contains(&0) {
        return Err("a field of a joined key contains a zero byte".into());
    }
    if index > 0 {
        key.push(0);
    }
    key.extend_from_slice(part);
    Ok(())
}

#[cfg(test)]
mod tests;
