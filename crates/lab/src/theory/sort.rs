//! Sort: measures an external sort of the same records with the same memory. Loading the records into a store that
//! keeps them sorted can hardly be faster than this sort. The additional time of a load is the price for a store that
//! can be searched at any time, is durable, and accepts further writes.
//!
//! ```text
//!   records in the order of a load ──fill the memory, sort──▶ runs, one after the other in one file
//!   runs ──loser tree, memory / (k + 1) each──▶ one sorted file ──sync──▶ done
//! ```
//!
//! Plain files are read and written in pieces of at least `LEAST_PIECE`. The sort has one merge pass. If the memory
//! cannot hold one piece of each run, the sort returns an error instead of adding a second merge pass. The sort writes
//! each record twice (when it forms runs and when it merges them) and reads each record once.

use std::fs::File;
use std::io::{BufWriter, Write};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::Instant;

use pandodb::IndexKind;
use serde::{Deserialize, Serialize};

use crate::bench::{self, Observer};
use crate::engine::{Mode, Result, Setup};
use crate::line::Line;
use crate::pando::Pando;
use crate::record::{Shape, Space};
use crate::workload::Workload;

/// The minimum number of bytes that one read transfers.
const LEAST_PIECE: usize = 64 << 10;
/// The maximum number of bytes that one read or write transfers. Larger pieces are not faster.
const MOST_PIECE: usize = 4 << 20;
/// Bytes of overhead for each record while a run is formed: the key prefix and the position of the record.
const ENTRY: usize = 16;

/// The records to sort, and the memory.
#[derive(Clone, Debug)]
pub struct Plan {
    /// The number of records.
    pub records: u64,
    /// Bytes of a key.
    pub key_len: usize,
    /// Bytes of a value.
    pub value_len: usize,
    /// The memory of the sort, and the setup of the engine to which the sort is compared.
    pub setup: Setup,
    /// The directory for the files, which must exist.
    pub directory: PathBuf,
}

impl Default for Plan {
    fn default() -> Plan {
        Plan {
            records: 1 << 22,
            key_len: 24,
            value_len: 100,
            setup: Setup { memory_budget: 256 << 20, mode: Mode::Product, deterministic: false },
            directory: PathBuf::from("."),
        }
    }
}

/// The cost of a sort.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Sorted {
    /// The number of records.
    pub records: u64,
    /// Bytes of memory.
    pub memory_budget: u64,
    /// The number of runs.
    pub runs: u64,
    /// Seconds to generate the records, sort them in pieces and write the runs.
    pub form_seconds: f64,
    /// The part of `form_seconds` that was used to generate the records.
    pub generate_seconds: f64,
    /// Seconds to merge the runs, including the sync.
    pub merge_seconds: f64,
    /// Bytes written.
    pub written_bytes: u64,
    /// Bytes read.
    pub read_bytes: u64,
    /// The cost of a load of the same records, if it was measured.
    pub load: Option<Loaded>,
}

/// The cost of a load.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Loaded {
    /// Seconds until the last acknowledgement.
    pub seconds: f64,
    /// Seconds until all background work was done.
    pub settled_seconds: f64,
    /// Bytes written for each byte of records.
    pub write_amplification: f64,
}

impl Sorted {
    /// Total seconds.
    pub fn seconds(&self) -> f64 {
        self.form_seconds + self.merge_seconds
    }
}

/// Sorts into the file `sorted` in the plan's directory, and removes the file.
///
/// # Errors
/// If the memory is too small for one merge pass, if a file cannot be written or read, or if the result is not sorted.
pub fn sort(plan: &Plan) -> Result<Sorted> {
    let (runs, result) = (plan.directory.join("runs"), plan.directory.join("sorted"));
    let outcome = sort_to(plan, &runs, &result);
    for path in [runs, result] {
        if path.exists() {
            std::fs::remove_file(path)?;
        }
    }
    outcome
}

fn sort_to(plan: &Plan, runs_path: &Path, result: &Path) -> Result<Sorted> {
    let mut sorted =
        Sorted { records: plan.records, memory_budget: plan.setup.memory_budget as u64, ..Sorted::default() };
    let record = plan.key_len + plan.value_len;
    let started = Instant::now();
    let file = File::options().create(true).truncate(true).read(true).write(true).open(runs_path)?;
    let runs = form(plan, &file, &mut sorted)?;
    sorted.form_seconds = started.elapsed().as_secs_f64();
    let started = Instant::now();
    merge(plan, &file, &runs, result, &mut sorted)?;
    sorted.merge_seconds = started.elapsed().as_secs_f64();
    let expected = plan.records * record as u64;
    if std::fs::metadata(result)?.len() != expected {
        return Err(format!("the length of the sorted file is not the expected {expected} bytes").into());
    }
    Ok(sorted)
}

/// Writes sorted runs one after the other. Returns their byte ranges.
fn form(plan: &Plan, file: &File, sorted: &mut Sorted) -> Result<Vec<std::ops::Range<u64>>> {
    let shape = Shape::new(plan.key_len, plan.value_len);
    let record = plan.key_len + plan.value_len;
    let fit =
        (plan.setup.memory_budget.saturating_sub(LEAST_PIECE) / (record + ENTRY)).max(1).min(plan.records as usize);
    let mut chunk: Vec<u8> = Vec::with_capacity(fit * record);
    let mut entries: Vec<(u64, u32)> = Vec::with_capacity(fit);
    let (mut key, mut value) = (Vec::new(), Vec::new());
    let (mut runs, mut at, mut number) = (Vec::new(), 0u64, 0u64);
    let mut out = BufWriter::with_capacity(LEAST_PIECE, file);
    while number < plan.records {
        let started = Instant::now();
        chunk.clear();
        entries.clear();
        while entries.len() < fit && number < plan.records {
            shape.key(Space::Rows, number, &mut key);
            shape.value(&key, number, &mut value);
            entries.push((head(&key), u32::try_from(entries.len())?));
            chunk.extend_from_slice(&key);
            chunk.extend_from_slice(&value);
            number += 1;
        }
        sorted.generate_seconds += started.elapsed().as_secs_f64();
        let of = |i: u32| &chunk[i as usize * record..][..record];
        entries.sort_unstable_by(|a, b| a.0.cmp(&b.0).then_with(|| of(a.1).cmp(of(b.1))));
        for &(_, i) in &entries {
            out.write_all(of(i))?;
        }
        let end = at + (entries.len() * record) as u64;
        runs.push(at..end);
        at = end;
    }
    out.flush()?;
    sorted.runs = runs.len() as u64;
    sorted.written_bytes += at;
    Ok(runs)
}

/// The eight bytes that follow the tag of a key, as a number. These bytes are compared first, because all rows have the
/// same tag.
fn head(key: &[u8]) -> u64 {
    let from = if key.len() >= 20 { 4 } else { 0 };
    u64::from_be_bytes(key[from..from + 8].try_into().expect("keys have eight bytes after the tag"))
}

fn merge(plan: &Plan, file: &File, runs: &[std::ops::Range<u64>], result: &Path, sorted: &mut Sorted) -> Result<()> {
    let record = plan.key_len + plan.value_len;
    let piece = (plan.setup.memory_budget / (runs.len() + 1)).min(MOST_PIECE);
    if piece < LEAST_PIECE.max(record) {
        return Err(format!(
            "the memory is too small to merge {} runs at once; use a larger --memory-budget",
            runs.len()
        )
        .into());
    }
    let piece = piece / record * record;
    let mut readers: Vec<Reader> =
        runs.iter().map(|run| Reader { file, left: run.clone(), piece, record, buffer: Vec::new(), at: 0 }).collect();
    for reader in &mut readers {
        reader.fill()?;
    }
    let mut tree = Losers::new(&readers);
    let out = File::create(result)?;
    let mut out = BufWriter::with_capacity(piece, out);
    let mut last = Vec::new();
    while let Some(winner) = tree.winner(&readers) {
        let next = readers[winner].current().expect("a winner has a record");
        if last.as_slice() > &next[..plan.key_len] {
            return Err("the merge failed: a key came after a greater one".into());
        }
        last.clear();
        last.extend_from_slice(&next[..plan.key_len]);
        out.write_all(next)?;
        readers[winner].advance()?;
        tree.replay(winner, &readers);
    }
    out.flush()?;
    out.get_ref().sync_all()?;
    let bytes = plan.records * record as u64;
    sorted.written_bytes += bytes;
    sorted.read_bytes += bytes;
    Ok(())
}

/// A reader of one run.
struct Reader<'a> {
    file: &'a File,
    /// The range of bytes that have not been read yet.
    left: std::ops::Range<u64>,
    piece: usize,
    record: usize,
    buffer: Vec<u8>,
    at: usize,
}

impl Reader<'_> {
    /// The next record; `None` at the end of the run.
    fn current(&self) -> Option<&[u8]> {
        self.buffer.get(self.at..self.at + self.record)
    }

    fn advance(&mut self) -> Result<()> {
        self.at += self.record;
        if self.at == self.buffer.len() { self.fill() } else { Ok(()) }
    }

    fn fill(&mut self) -> Result<()> {
        let len = (self.left.end - self.left.start).min(self.piece as u64) as usize;
        self.buffer.resize(len, 0);
        self.file.read_exact_at(&mut self.buffer, self.left.start)?;
        self.left.start += len as u64;
        self.at = 0;
        Ok(())
    }
}

/// A loser tree. Each inner node compares two runs: the run with the smaller next record wins. The node stores the
/// losing run, and the winner goes up to the next game. The top stores the winner of all games. Run i is the leaf with
/// number `runs + i`.
struct Losers {
    nodes: Vec<usize>,
}

impl Losers {
    fn new(readers: &[Reader]) -> Losers {
        let count = readers.len();
        let mut tree = Losers { nodes: vec![usize::MAX; count.max(1)] };
        if count > 0 {
            tree.nodes[0] = tree.play(1, readers);
        }
        tree
    }

    /// Plays the games below a node. Returns the winner.
    fn play(&mut self, node: usize, readers: &[Reader]) -> usize {
        if node >= readers.len() {
            return node - readers.len();
        }
        let (a, b) = (self.play(2 * node, readers), self.play(2 * node + 1, readers));
        let (winner, loser) = if before(a, b, readers) { (a, b) } else { (b, a) };
        self.nodes[node] = loser;
        winner
    }

    fn winner(&self, readers: &[Reader]) -> Option<usize> {
        self.nodes.first().copied().filter(|&run| run < readers.len() && readers[run].current().is_some())
    }

    /// Replays the games of the winner after its run has advanced.
    fn replay(&mut self, run: usize, readers: &[Reader]) {
        let (mut winner, mut node) = (run, (run + readers.len()) / 2);
        while node > 0 {
            if before(self.nodes[node], winner, readers) {
                std::mem::swap(&mut self.nodes[node], &mut winner);
            }
            node /= 2;
        }
        self.nodes[0] = winner;
    }
}

/// Whether the next record of one run sorts before the next record of another run. A run at its end sorts last.
fn before(a: usize, b: usize, readers: &[Reader]) -> bool {
    match (readers[a].current(), readers[b].current()) {
        (Some(a), Some(b)) => a < b,
        (a, _) => a.is_some(),
    }
}

/// Loads the same records, one at a time, into a store in the plan's directory, and removes the store.
///
/// # Errors
/// If the engine fails.
pub fn compare(plan: &Plan, index: IndexKind, sorted: &mut Sorted) -> Result<()> {
    let workload = Workload::find("load").ok_or("the catalogue has no workload `load`")?;
    let load = bench::Plan {
        workloads: vec![workload],
        records: plan.records,
        setup: plan.setup.clone(),
        key_len: plan.key_len,
        value_len: plan.value_len,
        directory: plan.directory.clone(),
        ..bench::Plan::default()
    };
    let (pando, mut lines) = (Pando::new(index), Lines(Vec::new()));
    bench::run(&load, &pando, &mut lines)?;
    bench::remove_store(&plan.directory, &pando)?;
    let line = lines.0.first().ok_or("the load was not measured")?;
    sorted.load = Some(Loaded {
        seconds: line.seconds,
        settled_seconds: line.settled_seconds,
        write_amplification: line.write_amplification,
    });
    Ok(())
}

struct Lines(Vec<Line>);

impl Observer for Lines {
    fn ends(&mut self, line: &Line) {
        self.0.push(line.clone());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plan(directory: &Path, records: u64, memory_budget: usize) -> Plan {
        let setup = Setup { memory_budget, mode: Mode::Product, deterministic: true };
        Plan { records, setup, directory: directory.to_owned(), ..Plan::default() }
    }

    #[test]
    fn every_record_is_sorted_exactly_once() {
        let directory = tempfile::tempdir().expect("a temporary directory");
        let (runs, result) = (directory.path().join("runs"), directory.path().join("sorted"));
        // These sizes cover one run, several runs, and a short last run. The merge itself checks the order of the
        // records, and `sort_to` checks the total length.
        for (records, memory) in [(1, 1 << 20), (1000, 1 << 20), (5000, 400 << 10), (16_000, 1 << 20)] {
            let plan = plan(directory.path(), records, memory);
            let sorted = sort_to(&plan, &runs, &result).expect("there is room");
            assert_eq!(sorted.written_bytes, 2 * records * 124);
            let bytes = std::fs::read(&result).expect("it was written");
            let shape = Shape::new(24, 100);
            let mut keys: Vec<&[u8]> = bytes.chunks(124).map(|record| &record[..24]).collect();
            assert!(bytes.chunks(124).all(|record| shape.is_value_of(&record[..24], &record[24..])));
            keys.dedup();
            assert_eq!(keys.len() as u64, records);
        }
    }

    #[test]
    fn too_little_memory_for_one_merge_is_an_error() {
        let directory = tempfile::tempdir().expect("a temporary directory");
        let error = sort(&plan(directory.path(), 20_000, 128 << 10)).expect_err("too many runs");
        assert!(error.to_string().contains("too small"), "{error}");
        assert_eq!(std::fs::read_dir(directory.path()).expect("it is there").count(), 0, "nothing stays");
    }

    #[test]
    fn a_sort_is_compared_with_a_load() {
        let directory = tempfile::tempdir().expect("a temporary directory");
        let plan = plan(directory.path(), 2000, 1 << 20);
        let mut sorted = sort(&plan).expect("there is room");
        compare(&plan, IndexKind::default(), &mut sorted).expect("there is room");
        assert!(sorted.load.is_some_and(|load| load.settled_seconds >= load.seconds && load.seconds > 0.0));
    }
}
