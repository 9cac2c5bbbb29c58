//! `scan` and `count`: ranges of keys.

use std::ops::Bound;

use pandodb::KeyRange;
use serde::Serialize;

use super::open_to_read;
use crate::{
    args::{CountArgs, RangeArgs, ScanArgs},
    failure::{Failure, Outcome},
    kv, output,
};

/// A range of keys as the store takes it.
pub type Bounds = (Bound<Vec<u8>>, Bound<Vec<u8>>);

/// The range that the arguments describe: all of `--from`, `--to` and `--prefix` hold.
///
/// # Errors
/// [`Failure::Misuse`] for an empty `--to`, which no key is before.
pub fn bounds(args: &RangeArgs) -> Outcome<Bounds> {
    if args.to.as_ref().is_some_and(Vec::is_empty) {
        return Err(Failure::Misuse("--to is empty: no key is before it; leave it out for no bound".into()));
    }
    let mut range = KeyRange::new(args.from.clone().unwrap_or_default(), args.to.clone().unwrap_or_default());
    if let Some(prefix) = &args.prefix {
        range = range.intersect(&KeyRange::prefix(prefix));
    }
    let upper = if range.to.is_empty() { Bound::Unbounded } else { Bound::Excluded(range.to) };
    Ok((Bound::Included(range.from), upper))
}

/// Prints the records of a range in the kv form.
pub fn scan(args: &ScanArgs) -> Outcome {
    let (_store, keyspace) = open_to_read(&args.at)?;
    let mut range = keyspace.range(bounds(&args.range)?);
    let mut out = output::stdout();
    let mut scratch = Vec::new();
    for _ in 0..args.limit.unwrap_or(u64::MAX) {
        let next = if args.reverse { range.next_back() } else { range.next() };
        let Some(entry) = next else { break };
        let (key, value) = entry?;
        let written = match args.form {
            None => kv::write_line(&mut out, &key, &value, &mut scratch),
            Some(form) => {
                let number =
                    form.print(&value).map_err(|why| Failure::Misuse(format!("key `{}`: {why}", kv::escaped(&key))))?;
                kv::write_line(&mut out, &key, number.as_bytes(), &mut scratch)
            }
        };
        written.map_err(|e| output::lost(&e))?;
    }
    output::finish(out)
}

/// The answer of `count`.
#[derive(Debug, Serialize)]
struct Count<'a> {
    keyspace: &'a str,
    records: u64,
    exact: bool,
}

/// Counts the keys of a range: exactly, by reading them, or by estimate, without.
pub fn count(args: &CountArgs) -> Outcome {
    let (_store, keyspace) = open_to_read(&args.at)?;
    let records = if args.estimate {
        keyspace.approximate_len()
    } else {
        let mut records = 0u64;
        for entry in keyspace.range(bounds(&args.range)?).keys_only() {
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
    fn all_conditions_hold_at_once() {
        let bound = |text: &str| text.as_bytes().to_vec();
        let found = bounds(&range(Some("ab1"), Some("b"), Some("ab"))).unwrap();
        assert_eq!(found, (Bound::Included(bound("ab1")), Bound::Excluded(bound("ac"))));
        assert_eq!(bounds(&range(None, None, None)).unwrap(), (Bound::Included(bound("")), Bound::Unbounded));
        assert!(bounds(&range(None, Some(""), None)).is_err());
    }
}
