//! `restore`: creates keyspaces from the text that [`super::dump`] writes.
//!
//! Unlike `load`, `restore` stops at the first malformed line with an error, because a dump is written by a program and
//! should have no such line. Each keyspace is one sorted load, so a keyspace is restored completely or is empty. The
//! command reports success only after it has read the last line, `\!done`, and has synced
//! all data.

use std::{io::BufRead, time::Instant};

use pandodb::{Durability, IndexOptions, Keyspace, KeyspaceOptions, Store};
use serde::Serialize;

use super::{Access, dump, open, open_input, require_keyspaces};
use crate::{
    args::RestoreArgs,
    failure::{Failure, Outcome},
    input::lines::{self, Line, Lines},
    kv, output,
};

/// The result of `restore`.
#[derive(Debug, Serialize)]
struct Restored {
    keyspaces: u64,
    records: u64,
    seconds: f64,
}

/// Reads a dump from a file or a pipe.
pub fn run(args: &RestoreArgs) -> Outcome {
    let (input, bar) = open_input(&args.file, "a dump")?;
    let mut reader = Reader { lines: Lines::new(input) };
    // The header is checked before the store is created, so that input that is not a dump creates no store.
    check_header(&mut reader).map_err(|failure| failure.context("line 1"))?;
    let store = open(&args.store, Access::Create)?;
    let started = Instant::now();
    let restored = restore(&store, &mut reader, &args.keyspaces);
    bar.finish_and_clear();
    let number = reader.lines.number();
    let (keyspaces, records) = restored.map_err(|failure| failure.context(format_args!("line {number}")))?;
    store.persist(Durability::Synced)?;
    store.close()?;
    let done = Restored { keyspaces, records, seconds: started.elapsed().as_secs_f64() };
    if args.json {
        return output::json(&done);
    }
    let count = output::count(records);
    output::line(format_args!("{count} records in {keyspaces} keyspaces restored in {:.2} s", done.seconds))
}

/// The lines of a dump.
struct Reader<R> {
    lines: Lines<R>,
}

impl<R: BufRead> Reader<R> {
    fn next(&mut self) -> Outcome<&[u8]> {
        match self.lines.next().map_err(|e| Failure::io("reading the dump", &e))? {
            Line::Text(text) => Ok(text.strip_suffix(b"\r").unwrap_or(text)),
            Line::TooLong => Err(Failure::Corruption(lines::TOO_LONG.into())),
            Line::End => Err(Failure::Corruption(
                "the dump is incomplete: its `\\!done` line is missing; the keyspaces before the end are in the store"
                    .into(),
            )),
        }
    }
}

/// Checks the first line of the dump.
fn check_header(reader: &mut Reader<impl BufRead>) -> Outcome {
    let header = format!("{}\t{}", dump::HEADER, dump::VERSION);
    let first = reader.next()?;
    if first == header.as_bytes() {
        return Ok(());
    }
    let found = kv::escaped(&first[..first.len().min(40)]);
    Err(Failure::Misuse(format!("the input is not a dump of version {}: it starts with `{found}`", dump::VERSION)))
}

/// Restores the keyspaces `only`, or all keyspaces if `only` is empty. Returns the number of keyspaces and the number
/// of records.
fn restore(store: &Store, reader: &mut Reader<impl BufRead>, only: &[String]) -> Outcome<(u64, u64)> {
    let (mut restored, mut records) = (0, 0);
    let mut names: Vec<String> = Vec::new();
    loop {
        let line = reader.next()?;
        if let Some(promised) = directive(line, dump::DONE) {
            check_count("keyspaces", promised, names.len() as u64)?;
            require_keyspaces(only, names.iter().map(String::as_str), "the dump")?;
            return Ok((restored, records));
        }
        let header = directive(line, dump::KEYSPACE)
            .ok_or_else(|| Failure::Corruption("expected a `\\!keyspace` or `\\!done` line; make a new dump".into()))?;
        let (name, options) = describe(header)?;
        if only.is_empty() || only.contains(&name) {
            let keyspace = create(store, &name, options)?;
            records += fill(&keyspace, reader)?;
            restored += 1;
        } else {
            pass_over(reader)?;
        }
        names.push(name);
    }
}

/// Returns the rest of a line that starts with `word` and a TAB.
fn directive<'l>(line: &'l [u8], word: &str) -> Option<&'l [u8]> {
    line.strip_prefix(word.as_bytes())?.strip_prefix(b"\t")
}

/// Compares the number in a directive with the number of records or keyspaces that were read.
fn check_count(what: &str, promised: &[u8], found: u64) -> Outcome {
    if promised == found.to_string().as_bytes() {
        return Ok(());
    }
    let promised = kv::escaped(promised);
    Err(Failure::Corruption(format!("the dump states {promised} {what}, but has {found}; make a new dump")))
}

/// Parses the header of a keyspace, which contains its name and options.
fn describe(header: &[u8]) -> Outcome<(String, KeyspaceOptions)> {
    let damaged = |why: String| Failure::Corruption(format!("keyspace header: {why}"));
    let mut fields = header.split(|&b| b == b'\t').map(|field| {
        let mut out = Vec::new();
        kv::unescape_into(&mut out, field).map_err(damaged)?;
        String::from_utf8(out).map_err(|_| damaged("not UTF-8".into()))
    });
    let name = fields.next().ok_or_else(|| damaged("no name".into()))??;
    let mut options = KeyspaceOptions::new();
    for field in fields {
        let field = field?;
        options = match field.split_once('=') {
            Some(("index", index)) => options.index(index.parse::<IndexOptions>()?),
            Some(("operator", operator)) => options.merge_named(operator)?,
            Some(("large_values_over", bytes)) => {
                let bytes = bytes.parse().map_err(|_| damaged(format!("`{bytes}` is not a number of bytes")))?;
                options.blob_threshold(bytes)
            }
            _ => {
                return Err(Failure::Misuse(format!(
                    "unknown keyspace option `{field}`; restore with a newer version of pando"
                )));
            }
        };
    }
    Ok((name, options))
}

/// Creates a keyspace. Fails if the keyspace exists.
fn create(store: &Store, name: &str, options: KeyspaceOptions) -> Outcome<Keyspace> {
    if store.open_keyspace(name)?.is_some() {
        return Err(Failure::Misuse(format!(
            "keyspace `{name}` exists already; restore into a new store, or drop it first with `pando keyspace drop`"
        )));
    }
    Ok(store.keyspace_with(name, options)?)
}

/// Skips a keyspace. The records of the keyspace are counted, so that a damaged dump is detected.
fn pass_over(reader: &mut Reader<impl BufRead>) -> Outcome {
    let mut records = 0;
    loop {
        let line = reader.next()?;
        if let Some(promised) = directive(line, dump::END) {
            return check_count("records", promised, records);
        }
        records += 1;
    }
}

/// Loads the records of one keyspace, which a dump has in key order. Returns the number of records.
fn fill(keyspace: &Keyspace, reader: &mut Reader<impl BufRead>) -> Outcome<u64> {
    let mut records = 0u64;
    let mut next = || {
        let line = reader.next()?;
        if let Some(promised) = directive(line, dump::END) {
            check_count("records", promised, records)?;
            return Ok(None);
        }
        let (mut key, mut value) = (Vec::new(), Vec::new());
        kv::parse_line(line, &mut key, &mut value).map_err(Failure::Corruption)?;
        records += 1;
        Ok(Some((key, value)))
    };
    keyspace.try_load_sorted(std::iter::from_fn(|| next().transpose()))
}
