//! Reader of NDJSON: one JSON object per line, with fields found by name.
//!
//! The key fields must be strings, numbers or booleans. A string contributes its UTF-8 bytes to the key. A number or
//! boolean contributes its JSON text exactly as in the input (`1e3`, `1.50`, `-0`). The value is compact JSON of the
//! remaining fields, in their order. If values are operands of a merge, exactly one field must remain, and the text of
//! this field is the operand.
//!
//! A row is parsed into names and raw texts ([`RawValue`]). Numbers are not converted, so that all of their digits are
//! kept. The value is the text of the input without the spaces between tokens. Strings are written in their shortest
//! form (`"\u0061"` as `"a"`).
//!
//! A row that names a field twice is malformed, because one of the two values would be lost.

use std::{
    borrow::Cow,
    collections::HashSet,
    fmt,
    io::{self, BufRead},
};

use serde::{
    Deserialize, Deserializer,
    de::{MapAccess, Visitor},
};
use serde_json::value::RawValue;

use super::{
    Record, Source, Step,
    lines::{self, Line, Lines},
    push_key_part,
};
use crate::kv;

/// A source that reads one object per line.
#[derive(Debug)]
pub struct Ndjson<R> {
    lines: Lines<R>,
    keys: Vec<String>,
    operands: bool,
}

impl<R: BufRead> Ndjson<R> {
    /// Creates a source that reads `input`. The fields `keys` (at least one) form the key. `operands` means that the
    /// value is an operand of a merge.
    pub fn new(input: R, keys: &[String], operands: bool) -> Ndjson<R> {
        assert!(!keys.is_empty(), "the caller has checked that there is a key field");
        Ndjson { lines: Lines::new(input), keys: keys.to_vec(), operands }
    }
}

impl<R: BufRead> Source for Ndjson<R> {
    fn next(&mut self, record: &mut Record) -> io::Result<Step> {
        let made = match self.lines.next()? {
            Line::End => return Ok(Step::End),
            Line::TooLong => Err(lines::TOO_LONG.into()),
            Line::Text(text) => assemble(text, &self.keys, self.operands, record),
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

/// The fields of one row: decoded names, and values as raw text.
struct Row<'t>(Vec<(Cow<'t, str>, &'t RawValue)>);

impl<'de> Deserialize<'de> for Row<'de> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Row<'de>, D::Error> {
        deserializer.deserialize_map(RowVisitor)
    }
}

struct RowVisitor;

impl<'de> Visitor<'de> for RowVisitor {
    type Value = Row<'de>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Row<'de>, A::Error> {
        let mut fields: Vec<(Cow<'de, str>, &'de RawValue)> = Vec::new();
        while let Some(Name(name)) = map.next_key()? {
            fields.push((name, map.next_value()?));
        }
        Ok(Row(fields))
    }
}

/// The name of a field, borrowed from the line if the name has no escapes. (A plain `Cow` is always deserialised into a
/// copy.)
#[derive(Deserialize)]
struct Name<'t>(#[serde(borrow)] Cow<'t, str>);

fn assemble(text: &[u8], keys: &[String], operands: bool, record: &mut Record) -> Result<(), String> {
    let Row(mut fields) = serde_json::from_slice(text).map_err(|e| format!("not a JSON object: {}", in_words(&e)))?;
    let mut names = HashSet::with_capacity(fields.len());
    if let Some((twice, _)) = fields.iter().find(|(name, _)| !names.insert(name)) {
        return Err(format!("the field `{}` occurs twice", kv::escaped(twice.as_bytes())));
    }
    record.key.clear();
    record.value.clear();
    for (i, name) in keys.iter().enumerate() {
        let at = fields.iter().position(|(field, _)| field == name);
        let (_, value) = fields.remove(at.ok_or_else(|| format!("the row has no field `{name}`"))?);
        let part = scalar(value)?.ok_or_else(|| format!("field `{name}` is not a string, number or boolean"))?;
        push_key_part(&mut record.key, part.as_bytes(), i, keys.len())?;
    }
    if record.key.is_empty() {
        return Err("the key is empty".into());
    }
    if operands {
        record.value.extend_from_slice(only_scalar(&fields)?.as_bytes());
    } else if !fields.is_empty() {
        for (i, (name, value)) in fields.iter().enumerate() {
            record.value.push(if i == 0 { b'{' } else { b',' });
            push_string(&mut record.value, name);
            record.value.push(b':');
            push_compact(&mut record.value, value.get())?;
        }
        record.value.push(b'}');
    }
    Ok(())
}

/// The error message with its column. The parser's "line 1" is left out, because the user would think that it is the
/// first line of the input.
fn in_words(error: &serde_json::Error) -> String {
    let text = error.to_string();
    let what = text.split(" at line ").next().unwrap_or(&text);
    format!("{what} (column {})", error.column())
}

/// The text of the single remaining field.
fn only_scalar<'t>(fields: &[(Cow<'_, str>, &'t RawValue)]) -> Result<Cow<'t, str>, String> {
    let text = match fields {
        [(_, value)] => scalar(value)?,
        _ => None,
    };
    text.ok_or_else(|| "a row to merge must have exactly one field besides the key, a string, number or boolean".into())
}

/// The content of a string, or the text of a number or boolean. `None` for any other value.
///
/// # Errors
/// A message, if a string has an escape that does not stand for a character.
fn scalar(value: &RawValue) -> Result<Option<Cow<'_, str>>, String> {
    let text = value.get();
    Ok(match text.as_bytes()[0] {
        b'"' => Some(Cow::Owned(string(text)?)),
        b'[' | b'{' | b'n' => None,
        _ => Some(Cow::Borrowed(text)),
    })
}

/// The content of a JSON string.
fn string(text: &str) -> Result<String, String> {
    serde_json::from_str(text).map_err(|e| format!("not a JSON string: {}", in_words(&e)))
}

fn push_string(out: &mut Vec<u8>, text: &str) {
    serde_json::to_writer(out, text).expect("a string can be written to memory");
}

/// Appends a valid JSON text without the spaces between its tokens. Numbers are copied unchanged.
fn push_compact(out: &mut Vec<u8>, text: &str) -> Result<(), String> {
    let mut rest = text;
    while let Some(first) = rest.bytes().next() {
        let len = if first == b'"' { string_len(rest.as_bytes()) } else { 1 };
        match first {
            b'"' => push_string(out, &string(&rest[..len])?),
            b' ' | b'\t' | b'\r' | b'\n' => {}
            _ => out.push(first),
        }
        rest = &rest[len..];
    }
    Ok(())
}

/// The length of the JSON string at the start of `text`, including its quotes.
fn string_len(text: &[u8]) -> usize {
    let mut at = 1;
    while text[at] != b'"' {
        at += if text[at] == b'\\' { 2 } else { 1 };
    }
    at + 1
}
