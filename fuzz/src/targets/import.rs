//! Target: the text readers of `pando load`: kv, csv, tsv, ndjson.
//!
//! Input: one byte that chooses the format, the key fields, and whether values are operands; then the text.
//!
//! Properties: reading ends after at most one step per line. Each record has a key. The number of a malformed line is
//! the number of a line of the input, and malformed lines are reported in order. If a record is written in its format
//! and read back, the result is the same record.

use std::io::BufReader;

use pando_cli::input::{self, Record, Step};
use pando_cli::{Format, kv};

use crate::{Target, mutate};

/// The target.
pub const TARGET: Target = Target { name: "import", max_len: 4096, memory: 1 << 20, run, mutate: mutate::plain, seeds };

struct Choice {
    format: Format,
    keys: Vec<String>,
    operands: bool,
}

fn choice(tag: u8) -> Choice {
    let format = [Format::Kv, Format::Csv, Format::Tsv, Format::Ndjson][usize::from(tag & 3)];
    let keys: &[&str] = match (format, tag >> 2 & 3) {
        (Format::Kv, _) => &[],
        (Format::Ndjson, 0 | 1) | (_, 1) => &["a"],
        (_, 0) => &[],
        (_, 2) => &["b"],
        _ => &["b", "a"],
    };
    Choice { format, keys: keys.iter().map(|key| (*key).to_owned()).collect(), operands: tag & 16 != 0 }
}

fn run(data: &[u8]) {
    let Some((tag, text)) = data.split_first() else { return };
    let choice = choice(*tag);
    // The buffer is so small that lines extend over its end.
    let input = BufReader::with_capacity(16, text);
    let Ok(mut source) = input::open(input, choice.format, &choice.keys, choice.operands) else { return };
    let lines = text.iter().filter(|byte| **byte == b'\n').count() as u64 + 1;
    let (mut record, mut before) = (Record::default(), 0);
    for step in 0.. {
        assert!(step <= lines, "more steps than lines");
        match source.next(&mut record).expect("memory can be read") {
            Step::End => break,
            Step::Malformed { line, why } => {
                assert!(!why.is_empty() && line == source.line() && line > before && line <= lines);
            }
            Step::Record => {
                assert!(!record.key.is_empty() && source.line() > before && source.line() <= lines);
                again(&choice, &record);
            }
        }
        before = source.line();
    }
    assert_eq!(source.next(&mut record).expect("memory can be read"), Step::End, "after the end");
}

/// Writes a record in its format and reads it back.
fn again(choice: &Choice, record: &Record) {
    let mut text = Vec::new();
    let joined = choice.keys.len() > 1;
    match choice.format {
        Format::Kv => {
            kv::write_line(&mut text, &record.key, &record.value, &mut Vec::new()).expect("written");
            assert!(std::str::from_utf8(&text).is_ok() && !text.starts_with(b"\\!"));
        }
        Format::Csv if !joined => {
            text.extend_from_slice(b"a,b\n");
            [&record.key, &record.value].into_iter().enumerate().for_each(|(i, field)| {
                text.extend_from_slice(if i == 0 { b"\"" } else { b",\"" });
                field.iter().for_each(|&byte| {
                    text.extend_from_slice(if byte == b'"' { b"\"\"" } else { std::slice::from_ref(&byte) })
                });
                text.push(b'"');
            });
        }
        Format::Ndjson if !joined && !choice.operands => return json_again(&choice.keys[0], record),
        _ => return,
    }
    let mut source = input::open(&text[..], choice.format, &[], false).expect("a header");
    let mut read = Record::default();
    let step = source.next(&mut read).expect("memory can be read");
    if let Step::Malformed { why, .. } = &step {
        // Only a record that has more lines than a quoted field may have cannot be written.
        assert!(choice.format == Format::Csv && text.iter().filter(|byte| **byte == b'\n').count() > 1000, "{why}");
        return;
    }
    assert_eq!((step, &read.key, &read.value), (Step::Record, &record.key, &record.value));
}

/// Writes a record as a JSON object, with the key field first and then the fields of the value (an object or empty),
/// and reads it back.
fn json_again(name: &str, record: &Record) {
    let key = std::str::from_utf8(&record.key).expect("a JSON key is UTF-8");
    let json = |text: &str| serde_json::to_string(text).expect("a string can be written");
    let mut text = format!("{{{}:{}", json(name), json(key)).into_bytes();
    match record.value.split_first() {
        None => text.push(b'}'),
        Some((first, rest)) => {
            assert_eq!(*first, b'{', "the value is an object");
            text.push(b',');
            text.extend_from_slice(rest);
        }
    }
    let mut source = input::open(&text[..], Format::Ndjson, &[name.to_owned()], false).expect("no header");
    let mut read = Record::default();
    assert_eq!(source.next(&mut read).expect("memory can be read"), Step::Record);
    assert_eq!((&read.key, &read.value), (&record.key, &record.value));
}

fn seeds() -> Vec<Vec<u8>> {
    let texts: [(u8, &str); 8] = [
        (0, "key\tvalue\nk\\t\\x00\\\\\t\\n\\r\n\nno tab\n\\!end\t1\n"),
        (1, "a,b\n1,2\n\"x,\"\"y\",z\r\n\"two\nlines\",v\n\"open,1\nc,d\n"),
        (5, "\u{feff}a,b,c\n1,2,3\n4,5\n\"\",\"\",\n"),
        (13, "a,b\nx,y\n"),
        (2, "a\tb\n1\t2\n\"\t\"\r\n3\n"),
        (3, "{\"a\":\"k\",\"b\":1.50,\"c\":[null,{}]}\n{\"a\":true}\n{\"b\":1}\n{\"a\":{}}\nnot json\n"),
        (19, "{\"a\":12345678901234567890,\"b\":7}\n{\"a\":\"\\u0000\\ud83d\\ude00\",\"b\":\"x\"}\n"),
        (15, "{\"b\":1e400,\"a\":\"x\",\"z\":\"\\\"\"}\n"),
    ];
    texts.into_iter().map(|(tag, text)| [&[tag], text.as_bytes()].concat()).collect()
}
