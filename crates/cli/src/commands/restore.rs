//! `restore`: a store from the text that [`super::dump`] writes.
//!
//! Restoring is strict where loading is lenient: a dump was written by a machine, so its first wrong line ends the work.
//! Nothing is reported done before the last line, `\!done`, has been read and everything synced.

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

/// Records in a commit at most.
const COMMIT_RECORDS: usize = 1_000;
/// Bytes in a commit at most, but for its last record.
const COMMIT_BYTES: usize = 1 << 20;

/// The answer of `restore`.
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
    // Before the store is made: what is no dump leaves nothing to clear away.
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

/// The dump's lines.
struct Reader<R> {
    lines: Lines<R>,
}

impl<R: BufRead> Reader<R> {
    fn next(&mut self) -> Outcome<&[u8]> {
        match self.lines.next().map_err(|e| Failure::io("reading the dump", &e))? {
            Line::Text(text) => Ok(text.strip_suffix(b"\r").unwrap_or(text)),
            Line::TooLong => Err(Failure::Corruption(lines::TOO_LONG.into())),
            Line::End => Err(Failure::Corruption(
                "the dump ends before its `\\!done`: it is cut off; what came before is in the store".into(),
            )),
        }
    }
}

/// Reads the first line, which says that this is a dump.
fn check_header(reader: &mut Reader<impl BufRead>) -> Outcome {
    let header = format!("{}\t{}", dump::HEADER, dump::VERSION);
    let first = reader.next()?;
    if first == header.as_bytes() {
        return Ok(());
    }
    let found = kv::escaped(&first[..first.len().min(40)]);
    Err(Failure::Misuse(format!("this is no dump of version {}: it starts with `{found}`", dump::VERSION)))
}

/// Restores the keyspaces of `only`, or all if that is empty; gives the numbers of keyspaces and of records.
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
            .ok_or_else(|| Failure::Corruption("a `\\!keyspace` or `\\!done` line was expected".into()))?;
        let (name, options) = describe(header)?;
        if only.is_empty() || only.contains(&name) {
            let keyspace = create(store, &name, options)?;
            records += fill(store, &keyspace, reader)?;
            restored += 1;
        } else {
            pass_over(reader)?;
        }
        names.push(name);
    }
}

/// What follows `word` and a TAB, if the line starts so.
fn directive<'l>(line: &'l [u8], word: &str) -> Option<&'l [u8]> {
    line.strip_prefix(word.as_bytes())?.strip_prefix(b"\t")
}

/// Compares the number that a directive states with what was read.
fn check_count(what: &str, promised: &[u8], found: u64) -> Outcome {
    if promised == found.to_string().as_bytes() {
        return Ok(());
    }
    let promised = kv::escaped(promised);
    Err(Failure::Corruption(format!("the dump says {promised} {what} where it holds {found}; make the dump again")))
}

/// The name and the options of the keyspace that a header describes.
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
                let bytes = bytes.parse().map_err(|_| damaged(format!("`{bytes}` is no number of bytes")))?;
                options.blob_threshold(bytes)
            }
            _ => return Err(Failure::Misuse(format!("`{field}` is unknown here; use a newer pando"))),
        };
    }
    Ok((name, options))
}

/// Makes a keyspace that must not be there.
fn create(store: &Store, name: &str, options: KeyspaceOptions) -> Outcome<Keyspace> {
    if store.open_keyspace(name)?.is_some() {
        return Err(Failure::Misuse(format!(
            "keyspace `{name}` is there already; restore into a new store, or drop it with `pando keyspace drop`"
        )));
    }
    Ok(store.keyspace_with(name, options)?)
}

/// Reads a keyspace that is not wanted. Its records are counted: a damaged dump is found all the same.
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

/// Puts the records of one keyspace; gives their number.
fn fill(store: &Store, keyspace: &Keyspace, reader: &mut Reader<impl BufRead>) -> Outcome<u64> {
    let (mut key, mut value) = (Vec::new(), Vec::new());
    let mut records = 0u64;
    let mut batch = store.batch();
    let mut batch_bytes = 0;
    loop {
        let line = reader.next()?;
        if let Some(promised) = directive(line, dump::END) {
            check_count("records", promised, records)?;
            batch.commit(Durability::Buffered)?;
            return Ok(records);
        }
        kv::parse_line(line, &mut key, &mut value).map_err(Failure::Corruption)?;
        batch.put(keyspace, &key, &value);
        batch_bytes += key.len() + value.len();
        records += 1;
        if batch.len() >= COMMIT_RECORDS || batch_bytes >= COMMIT_BYTES {
            std::mem::replace(&mut batch, store.batch()).commit(Durability::Buffered)?;
            batch_bytes = 0;
        }
    }
}
