//! The parent process, which kills the child, opens the store and compares the contents.

use std::collections::BTreeMap;
use std::io::{self, Read};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use super::bank::Bank;
use super::workload::{Spaces, compare, heads, open};
use super::{CHILD_COMMAND, KILLS, WRITERS};
use crate::drive::calmly;
use pandodb::IndexKind;

use crate::indexes;
use crate::report::{Tally, Unit};
use crate::script::Rng;

/// The longest run time of a child in microseconds: it is long enough for hundreds of batches and some compactions, and
/// short enough that some children are killed while they open the store.
const LIFE: u64 = 90_000;
/// Percentage of kills after which the store is also verified.
const VERIFY: u64 = 25;

/// The batches that the killed child acknowledged, by writer.
#[derive(Debug, Default)]
struct Acknowledged {
    /// Number of acknowledged batches.
    any: Vec<u64>,
    /// Number of batches that must survive a kill.
    safe: Vec<u64>,
}

/// Runs a unit: kills of one store.
pub fn run(unit: &Unit) -> Tally {
    let mut tally = Tally::default();
    let folder = match tempfile::Builder::new().prefix("pando-kill-").tempdir() {
        Ok(folder) => folder,
        Err(e) => {
            tally.fail(unit.seed, format!("cannot create a temporary directory for the store: {e}"));
            return tally;
        }
    };
    let store = folder.path().join("store");
    if let Err(problem) = kills(&store, unit.seed, &mut tally) {
        let kept = folder.keep();
        tally.fail(unit.seed, format!("{problem}; the store is kept in {}", kept.display()));
    }
    indexes::count(indexes::kind(unit.seed), &mut tally);
    tally
}

fn kills(store: &Path, seed: u64, tally: &mut Tally) -> Result<(), String> {
    let (mut counted, mut sums) = (vec![0; WRITERS as usize], BTreeMap::new());
    let (mut before, mut transfers) = (vec![0; WRITERS as usize], 0);
    for round in 0..KILLS {
        let acknowledged = kill_one(store, seed, round, &before, tally).map_err(|e| format!("kill {round}: {e}"))?;
        let verify = Rng(seed ^ round).chance(VERIFY);
        let found = calmly(|| check(store, seed, &acknowledged, &mut counted, &mut sums, &mut transfers, verify))?;
        before = found.map_err(|e| format!("after kill {round}: {e}"))?;
        tally.runs += 1;
    }
    tally.count("batches", before.iter().sum());
    tally.count("transfers", transfers);
    Ok(())
}

/// Starts a child and kills it after a random time.
fn kill_one(store: &Path, seed: u64, round: u64, before: &[u64], tally: &mut Tally) -> Result<Acknowledged, String> {
    let failed = |e: io::Error| format!("the child: {e}");
    let program = std::env::current_exe().map_err(failed)?;
    let mut command = Command::new(program);
    command.arg(CHILD_COMMAND).arg(store).arg(seed.to_string()).arg(round.to_string());
    command.args(indexes::only().map(IndexKind::name));
    let mut child = command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn().map_err(failed)?;
    let mut pipe = child.stdout.take().expect("stdout was asked to be piped");
    let reader = std::thread::spawn(move || {
        let mut text = Vec::new();
        pipe.read_to_end(&mut text).map(|_| text)
    });
    let life = Duration::from_micros(Rng(seed.wrapping_mul(31) ^ round).below(LIFE));
    std::thread::sleep(life);
    let ended = reap(&mut child).map_err(failed)?;
    let text = reader.join().expect("reading a pipe does not panic").map_err(failed)?;
    if !ended {
        return Err("the child exited before it was killed; see its message above".into());
    }
    let mut acknowledged = Acknowledged { any: before.to_vec(), safe: before.to_vec() };
    // The last line may be incomplete.
    let whole = text.iter().rposition(|byte| *byte == b'\n').map_or(0, |end| end + 1);
    for line in String::from_utf8_lossy(&text[..whole]).lines() {
        let (number, safe) = line.strip_suffix('!').map_or((line, false), |number| (number, true));
        let parsed = number.split_once(' ').and_then(|(w, n)| Some((w.parse::<usize>().ok()?, n.parse::<u64>().ok()?)));
        let (writer, number) = parsed.ok_or_else(|| format!("unexpected output of the child: `{line}`"))?;
        acknowledged.any[writer] = number + 1;
        if safe {
            acknowledged.safe[writer] = number + 1;
        }
    }
    tally.count(if whole == 0 { "killed while opening" } else { "killed while writing" }, 1);
    Ok(acknowledged)
}

/// Kills the child. Returns false if the child had already exited.
fn reap(child: &mut Child) -> io::Result<bool> {
    let early = child.try_wait()?;
    child.kill()?;
    child.wait()?;
    Ok(early.is_none())
}

/// Opens the store and compares its contents. Returns the number of batches of each writer.
fn check(
    folder: &Path,
    seed: u64,
    acknowledged: &Acknowledged,
    counted: &mut [u64],
    sums: &mut BTreeMap<Vec<u8>, u64>,
    transfers: &mut u64,
    verify: bool,
) -> Result<Vec<u64>, String> {
    let failed = |e: pandodb::Error| e.to_string();
    let store = open(folder, seed, 0).map_err(failed)?;
    let spaces = Spaces::open(&store).map_err(failed)?;
    let found = heads(&spaces).map_err(failed)?;
    let reached: Vec<u64> = found.iter().map(|(head, _)| *head).collect();
    for (writer, head) in reached.iter().enumerate() {
        let (safe, any) = (acknowledged.safe[writer], acknowledged.any[writer]);
        if *head < safe {
            return Err(format!("writer {writer} has {head} batches, but {safe} must have survived the kill"));
        }
        if *head > any + 1 {
            return Err(format!("writer {writer} has {head} batches, but only {any} were acknowledged"));
        }
        for (other, seen) in found[writer].1.iter().enumerate() {
            if reached[other] < *seen {
                let there = reached[other];
                return Err(format!("writer {writer} had seen {seen} batches of {other}, but only {there} are left"));
            }
        }
    }
    compare(&spaces, &reached, counted, sums).map_err(failed)??;
    *transfers = Bank::open(&store).and_then(|bank| bank.audit()).map_err(failed)??;
    if verify {
        let report = store.verify().map_err(failed)?;
        if !report.is_clean() {
            return Err(format!("verify: {:?}", report.problems));
        }
    }
    drop(spaces);
    store.close().map_err(failed)?;
    Ok(reached)
}
