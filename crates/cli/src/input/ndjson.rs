//! NDJSON: one JSON object a line, fields by name.
//!
//! The key fields must be strings, numbers or truth values; a string stands for its UTF-8 bytes, the others for their
//! JSON text, digit for digit. They are taken out of the object; what is left, in its order, is the value as compact
//! JSON. Where values are operands of a merge, exactly one such field must be left, and its text is the operand.

use std::io::{self, BufRead};

use serde_json::{Map, Value};

use super::{
    Record, Source, Step,
    lines::{self, Line, Lines},
    push_key_part,
};

/// Objects, line by line.
#[derive(Debug)]
pub struct Ndjson<R> {
    lines: Lines<R>,
    keys: Vec<String>,
    operands: bool,
}

impl<R: BufRead> Ndjson<R> {
    /// Reads `input`; the key is made of the fields `keys`, of which there is at least one, and the value is an operand
    /// if `operands` says so.
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

fn assemble(text: &[u8], keys: &[String], operands: bool, record: &mut Record) -> Result<(), String> {
    let mut object: Map<String, Value> = serde_json::from_slice(text).map_err(|e| format!("not a JSON object: {e}"))?;
    record.key.clear();
    record.value.clear();
    for (i, name) in keys.iter().enumerate() {
        let field = object.shift_remove(name).ok_or_else(|| format!("there is no field `{name}`"))?;
        let part = scalar(&field).ok_or_else(|| format!("field `{name}` is no string, number or truth value"))?;
        push_key_part(&mut record.key, part.as_bytes(), i, keys.len())?;
    }
    if record.key.is_empty() {
        return Err("the key is empty".into());
    }
    if operands {
        record.value.extend_from_slice(only_scalar(&object)?.as_bytes());
    } else if !object.is_empty() {
        serde_json::to_writer(&mut record.value, &object).expect("a parsed object can be written to memory");
    }
    Ok(())
}

/// The text of the one field that is left.
fn only_scalar(object: &Map<String, Value>) -> Result<String, String> {
    let mut fields = object.values();
    match (fields.next().and_then(scalar), fields.next()) {
        (Some(text), None) => Ok(text),
        _ => Err("an operand is one string or number beside the key".into()),
    }
}

fn scalar(value: &Value) -> Option<String> {
    match value {
        Value::String(text) => Some(text.clone()),
        Value::Number(number) => Some(number.to_string()),
        Value::Bool(truth) => Some(truth.to_string()),
        Value::Null | Value::Array(_) | Value::Object(_) => None,
    }
}
