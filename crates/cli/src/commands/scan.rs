//! The commands `scan` and `count`, which read ranges of keys.

use std::{io::Write, ops::Bound};

use pandodb::{KeyRange, Value};
use serde::Serialize;

use super::open_to_read;
use crate::{
    args::{CountArgs, RangeArgs, ScanArgs},
    failure::{Failure, Outcome},
    kv,
    output::{self, Out, Shown},
};

/// A range of keys, in the form that the store accepts.
pub type Bounds = (Bound<Vec<u8>>, Bound<Vec<u8>>);

/// The range that the arguments specify: the intersection of `--from`, `--to` and `--prefix`.
///
/// # Errors
/// [`Failure::Misuse`] for an empty `--to`, because no key is below the empty key.
pub fn bounds(args: &RangeArgs) -> Outcome<Bounds> {
    if args.to.as_ref().is_some_and(Vec::is_empty) {
        return Err(Failure::Misuse(
            "--to is empty, and no key is below an empty key; omit --to for a range without end".into(),
        ));
    }
    let mut range = KeyRange::new(args.from.clone().unwrap_or_default(), args.to.clone().unwrap_or_default());
    if let Some(prefix) = &args.prefix {
        range = range.intersect(&KeyRange::prefix(prefix));
    }
    let upper = if range.to.is_empty() { Bound::Unbounded } else { Bound::Excluded(range.to) };
    Ok((Bound::Included(range.from), upper))
}

/// Prints the records of a range in the kv form or as JSON, or prints only the keys.
pub fn scan(args: &ScanArgs) -> Outcome {
    let (_store, keyspace) = open_to_read(&args.at)?;
    let range = keyspace.range(bounds(&args.range)?);
    let mut range: Box<dyn DoubleEndedIterator<Item = pandodb::Result<(Value, Option<Value>)>>> = if args.keys {
        Box::new(range.keys().map(|key| key.map(|key| (key, None))))
    } else {
        Box::new(range.map(|entry| entry.map(|(key, value)| (key, Some(value)))))
    };
    let mut out = output::stdout();
    let mut scratch = Vec::new();
    let mut left = args.limit.unwrap_or(u64::MAX);
    let mut skipped = 0;
    while left > 0 {
        let next = if args.reverse { range.next_back() } else { range.next() };
        let Some(entry) = next else { break };
        let (key, value) = entry?;
        if skipped < args.skip {
            skipped += 1;
            continue;
        }
        left -= 1;
        print(&mut out, args, &key, value.as_deref().unwrap_or_default(), &mut scratch)?;
    }
    output::finish(out)
}

/// Prints one record. `scratch` is a reusable buffer.
fn print(out: &mut Out, args: &ScanArgs, key: &[u8], value: &[u8], scratch: &mut Vec<u8>) -> Outcome {
    let number = args.form.filter(|_| !args.keys).map(|form| form.print(value)).transpose();
    let number = number.map_err(|why| Failure::Misuse(format!("key `{}`: {why}", kv::escaped(key))))?;
    let shown = match &number {
        Some(number) => Shown::Number(number),
        None => Shown::Bytes(value),
    };
    let written = match (args.json, args.keys) {
        (true, keys) => writeln!(out, "{}", output::json_record(key, (!keys).then_some(shown))),
        (false, true) => {
            scratch.clear();
            kv::escape_into(scratch, key);
            scratch.push(b'\n');
            out.write_all(scratch)
        }
        (false, false) => kv::write_line(out, key, number.as_ref().map_or(value, |n| n.as_bytes()), scratch),
    };
    written.map_err(|e| output::lost(&e))
}

/// The result of `count`.
#[derive(Debug, Serialize)]
struct Count<'a> {
    keyspace: &'a str,
    records: u64,
    exact: bool,
}

/// Counts the keys of a range by reading them, or estimates the number without reading them.
pub fn count(args: &CountArgs) -> Outcome {
    let (_store, keyspace) = open_to_read(&args.at)?;
    let records = if args.estimate {
        keyspace.approximate_len()
    } else {
        let mut records = 0u64;
        for entry in keyspace.range(bounds(&args.range)?).keys() {
            entry?;
            records += 1;
        }
        records
    };
    if args.json {
        return output::json(&Count { keyspace: &args.at.keyspace, records, exact: !args.estimate });
    }
    output::line(records)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn range(from: Option<&str>, to: Option<&str>, prefix: Option<&str>) -> RangeArgs {
        let bytes = |text: Option<&str>| text.map(|text| text.as_bytes().to_vec());
        RangeArgs { from: bytes(from), to: bytes(to), prefix: bytes(prefix) }
    }

    #[test]
    fn a_range_is_the_intersection_of_all_options() {
        let bound = |text: &str| text.as_bytes().to_vec();
        let found = bounds(&range(Some("ab1"), Some("b"), Some("ab"))).unwrap();
        assert_eq!(found, (Bound::Included(bound("ab1")), Bound::Excluded(bound("ac"))));
        assert_eq!(bounds(&range(None, None, None)).unwrap(), (Bound::Included(bound("")), Bound::Unbounded));
        assert!(bounds(&range(None, Some(""), None)).is_err());
    }
}
