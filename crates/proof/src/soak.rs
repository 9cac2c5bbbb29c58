//! Runs units on several threads until a time limit or a number of runs is reached. An interrupted soak can be resumed.
//!
//! ```text
//!   seeds S, S+1, … ──▶ threads ──▶ tallies, out of order ──▶ frontier ──▶ total ──▶ state file
//! ```
//!
//! The *frontier* adds tallies to the total in the order of their seeds, without gaps. So the state file always holds
//! the exact sum over all seeds below `next`, even if the soak is interrupted. A later run continues with seed `next`,
//! so no unit is counted twice and no unit is left out.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError, mpsc};
use std::time::{Duration, Instant};
use std::{fs, io};

use pandodb::IndexKind;
use serde::{Deserialize, Serialize};

use crate::indexes;
use crate::report::{Failure, Kind, Tally, Unit};

/// The interval at which the state is saved and progress is reported.
const PULSE: Duration = Duration::from_millis(500);
/// Number of failures after which a soak ends.
const ENOUGH: usize = 20;

/// The limits of a soak, which ends when the first limit is reached.
#[derive(Clone, Copy, Debug, Default)]
pub struct Until {
    /// Time limit of this process.
    pub time: Option<Duration>,
    /// Number of runs, including the runs of earlier processes.
    pub runs: Option<u64>,
    /// Number of units, including the units of earlier processes.
    pub units: Option<u64>,
    /// The number of units that must be done before `runs` can end the soak.
    pub least: u64,
    /// The number of runs that each index type must have before `runs` can end the soak. The soak ends after twice
    /// `runs` even if an index type has fewer.
    pub each: u64,
}

/// The current result of a soak, over all its processes.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Total {
    /// The name of the kind.
    pub kind: String,
    /// The first seed.
    pub seed: u64,
    /// The first seed that is not yet in the total.
    pub next: u64,
    /// Elapsed wall-clock time in seconds.
    pub seconds: f64,
    /// The sum of the tallies.
    pub tally: Tally,
}

impl Total {
    /// A total before the first unit.
    pub fn new(kind: Kind, seed: u64) -> Total {
        Total { kind: kind.name().to_owned(), seed, next: seed, ..Total::default() }
    }

    /// Runs per second of wall-clock time, on all threads together.
    pub fn rate(&self) -> f64 {
        if self.seconds > 0.0 { self.tally.runs as f64 / self.seconds } else { 0.0 }
    }

    /// Loads the total of a kind from a folder. If the folder has no total of that kind, returns a new total that
    /// begins with `seed`.
    ///
    /// # Errors
    /// If the file cannot be read or is not a total of that kind.
    pub fn load(folder: &Path, kind: Kind, seed: u64) -> io::Result<Total> {
        let path = state_file(folder, kind);
        let text = match fs::read_to_string(&path) {
            Ok(text) => text,
            Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(Total::new(kind, seed)),
            Err(e) => return Err(e),
        };
        let bad = |why: String| io::Error::new(io::ErrorKind::InvalidData, format!("{}: {why}", path.display()));
        let total: Total = serde_json::from_str(&text).map_err(|e| bad(e.to_string()))?;
        if total.kind != kind.name() {
            return Err(bad(format!("it is the state of `{}`", total.kind)));
        }
        Ok(total)
    }

    fn save(&self, folder: &Path, kind: Kind) -> io::Result<()> {
        fs::create_dir_all(folder)?;
        let path = state_file(folder, kind);
        let beside = path.with_extension("json.new");
        fs::write(&beside, serde_json::to_string_pretty(self)?)?;
        fs::rename(beside, path)
    }
}

fn state_file(folder: &Path, kind: Kind) -> PathBuf {
    folder.join(format!("{}.json", kind.name()))
}

/// A soak of one kind.
pub struct Soak<'a> {
    /// The kind.
    pub kind: Kind,
    /// The function that runs a unit.
    pub run: &'a (dyn Fn(&Unit) -> Tally + Sync),
    /// The number of threads that run units.
    pub threads: usize,
    /// The limits of the soak.
    pub until: Until,
    /// The folder of the state file; `None`: the total is not saved.
    pub state: Option<&'a Path>,
    /// Called with the total every half second.
    pub progress: &'a (dyn Fn(&Total) + Sync),
}

/// State shared by the threads.
struct Shared {
    total: Total,
    /// Tallies of finished units that are not in the total yet, because a unit with a lower seed is still running.
    ahead: BTreeMap<u64, Tally>,
    /// The next seed that a thread will run.
    handed: u64,
    started: Instant,
    seconds_before: f64,
    stopped: bool,
}

impl Soak<'_> {
    /// Continues from `total`.
    ///
    /// # Errors
    /// If the state cannot be saved.
    ///
    /// # Panics
    /// If a harness panics. Harnesses are expected to turn panics of the engine into failures.
    pub fn go(&self, total: Total) -> io::Result<Total> {
        let (handed, seconds_before) = (total.next, total.seconds);
        let started = Instant::now();
        let ahead = BTreeMap::new();
        let shared = Shared { total, ahead, handed, started, seconds_before, stopped: false };
        let shared = Mutex::new(shared);
        std::thread::scope(|scope| {
            let (working, finished) = mpsc::channel::<()>();
            for _ in 0..self.threads.max(1) {
                let (working, shared) = (working.clone(), &shared);
                scope.spawn(move || {
                    self.work(shared);
                    drop(working);
                });
            }
            drop(working);
            while finished.recv_timeout(PULSE) == Err(mpsc::RecvTimeoutError::Timeout) {
                self.pulse(&shared).inspect_err(|_| lock(&shared).stopped = true)?;
            }
            Ok::<(), io::Error>(())
        })?;
        self.pulse(&shared)?;
        Ok(shared.into_inner().unwrap_or_else(PoisonError::into_inner).total)
    }

    fn pulse(&self, shared: &Mutex<Shared>) -> io::Result<()> {
        let total = lock(shared).total.clone();
        (self.progress)(&total);
        match self.state {
            Some(folder) => total.save(folder, self.kind),
            None => Ok(()),
        }
    }

    fn work(&self, shared: &Mutex<Shared>) {
        loop {
            // The lock is released before the unit runs.
            let next = self.next(&mut lock(shared));
            let Some(seed) = next else { return };
            let tally = (self.run)(&Unit::of(seed));
            let mut shared = lock(shared);
            shared.ahead.insert(seed, tally);
            shared.advance();
        }
    }

    /// The next seed, or `None` if a limit is reached.
    fn next(&self, shared: &mut Shared) -> Option<u64> {
        let units = shared.handed - shared.total.seed;
        let sum = |of: &dyn Fn(&Tally) -> u64| of(&shared.total.tally) + shared.ahead.values().map(of).sum::<u64>();
        let runs = sum(&|tally| tally.runs);
        let each = || {
            let on = |index| sum(&|tally| tally.counted(&indexes::counter(index)));
            indexes::only().is_some() || IndexKind::all().all(|index| on(index) >= self.until.each)
        };
        let late = self.until.time.is_some_and(|time| shared.started.elapsed() >= time);
        let full = self
            .until
            .runs
            .is_some_and(|wanted| runs >= wanted && units >= self.until.least && (runs >= 2 * wanted || each()));
        let done = self.until.units.is_some_and(|wanted| units >= wanted);
        let broken = shared.total.tally.failures.len() >= ENOUGH;
        shared.stopped |= late || full || done || broken;
        if shared.stopped {
            return None;
        }
        shared.handed += 1;
        Some(shared.handed - 1)
    }
}

/// Locks and ignores poisoning. A harness that panics cannot leave the totals inconsistent, because the totals change
/// only after a unit.
fn lock(shared: &Mutex<Shared>) -> MutexGuard<'_, Shared> {
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Shared {
    fn advance(&mut self) {
        while let Some(tally) = self.ahead.remove(&self.total.next) {
            self.total.tally.add(tally);
            self.total.next += 1;
        }
        self.total.seconds = self.seconds_before + self.started.elapsed().as_secs_f64();
    }
}

/// Formats a failure of a soak.
pub fn describe(kind: Kind, failure: &Failure) -> String {
    format!("{failure}\n  again: {}", failure.replay(kind))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn unit(unit: &Unit) -> Tally {
        let mut tally = Tally { runs: 10, digest: unit.seed * 7, ..Tally::default() };
        tally.count("sum", unit.seed);
        // The first 12 units use one index type.
        let kinds = IndexKind::all().len() as u64;
        let index = IndexKind::all().nth((unit.seed.saturating_sub(12) % kinds) as usize).expect("below the number");
        indexes::count(index, &mut tally);
        tally
    }

    fn soak(state: Option<&Path>, until: Until, from: Total) -> Total {
        let soak = Soak { kind: Kind::Crash, run: &unit, threads: 3, until, state, progress: &|_| {} };
        soak.go(from).expect("saved")
    }

    #[test]
    fn threads_do_not_change_the_total() {
        let until = Until { units: Some(50), ..Until::default() };
        let total = soak(None, until, Total::new(Kind::Crash, 5));
        assert_eq!((total.tally.runs, total.next), (500, 55));
        assert_eq!(total.tally.counted("sum"), (5..55).sum::<u64>());
        assert_eq!(total.tally.digest, (5..55).sum::<u64>() * 7);
    }

    #[test]
    fn a_soak_goes_on_until_each_index_type_has_its_runs() {
        let until = |each| Until { runs: Some(100), each, ..Until::default() };
        let total = soak(None, until(10), Total::new(Kind::Crash, 0));
        assert!((150..200).contains(&total.tally.runs), "{total:?}");
        assert!(IndexKind::all().all(|index| total.tally.counted(&indexes::counter(index)) >= 10), "{total:?}");
        let never = soak(None, until(u64::MAX), Total::new(Kind::Crash, 0));
        assert!((200..=300).contains(&never.tally.runs), "it ends after twice its runs: {never:?}");
    }

    #[test]
    fn an_interrupted_soak_continues_where_it_stopped() {
        let folder = tempfile::tempdir().expect("a folder");
        let runs = |n| Until { runs: Some(n), ..Until::default() };
        let first = soak(Some(folder.path()), runs(100), Total::load(folder.path(), Kind::Crash, 1).expect("new"));
        let saved = Total::load(folder.path(), Kind::Crash, 1).expect("saved");
        assert_eq!(saved, first);
        let second = soak(Some(folder.path()), runs(300), saved);
        assert!(second.tally.runs >= 300 && second.next > first.next);
        assert_eq!(second.tally.counted("sum"), (1..second.next).sum::<u64>(), "no unit is missing or counted twice");
        assert!(Total::load(folder.path(), Kind::Faults, 1).is_ok_and(|total| total.tally.runs == 0));
    }

    #[test]
    fn the_state_of_another_kind_is_refused() {
        let folder = tempfile::tempdir().expect("a folder");
        let total = Total { kind: "faults".into(), ..Total::default() };
        fs::write(folder.path().join("crash.json"), serde_json::to_string(&total).expect("json")).expect("written");
        assert!(Total::load(folder.path(), Kind::Crash, 1).is_err());
        fs::write(folder.path().join("crash.json"), "{").expect("written");
        assert!(Total::load(folder.path(), Kind::Crash, 1).is_err());
    }
}
