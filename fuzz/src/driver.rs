//! The driver without coverage feedback: runs the inputs of the corpus, and then inputs that it makes from the corpus
//! by random changes. A seed determines these changes. This driver needs no C++ compiler.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use crate::{Target, execute, warm};
use pandodb::base::random::Rng;

/// The longest time that a run may take, on any machine.
const MOST: Duration = Duration::from_secs(30);
/// The maximum number of calls of a target's `mutate` on one input.
const MOST_CHANGES: usize = 6;

/// An input on which a property does not hold.
#[derive(Clone, Debug)]
pub struct Finding {
    /// The target's name.
    pub target: &'static str,
    /// The input.
    pub input: Vec<u8>,
    /// The description of the violation.
    pub what: String,
}

/// The folder of the checked-in inputs of a target.
pub fn corpus_dir(target: &Target) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus").join(target.name)
}

/// The checked-in inputs of a target with their names, sorted by name.
///
/// # Panics
/// If the inputs cannot be read.
pub fn corpus(target: &Target) -> Vec<(String, Vec<u8>)> {
    let dir = corpus_dir(target);
    let listed = std::fs::read_dir(&dir).unwrap_or_else(|error| panic!("{}: {error}", dir.display()));
    let mut files: Vec<PathBuf> = listed.map(|entry| entry.expect("an entry").path()).collect();
    files.sort();
    let read = |path: PathBuf| {
        let name = path.file_name().expect("it has a name").to_string_lossy().into_owned();
        (name, std::fs::read(&path).expect("it can be read"))
    };
    files.into_iter().map(read).collect()
}

/// The names and contents of the generated part of the corpus.
pub fn seed_files(target: &Target) -> Vec<(String, Vec<u8>)> {
    (target.seeds)().into_iter().enumerate().map(|(i, seed)| (format!("seed-{i:02}"), seed)).collect()
}

/// Runs a target on one input and catches a panic.
pub fn attempt(target: &'static Target, input: &[u8]) -> Result<(), Finding> {
    // The driver cannot catch a hang. If this environment variable is set, each input is written to a file first, so
    // that the file contains the input that hangs.
    if let Some(file) = std::env::var_os("PANDODB_FUZZ_LAST") {
        std::fs::write(file, input).expect("the last input can be written");
    }
    let started = Instant::now();
    let found = catch_unwind(AssertUnwindSafe(|| execute(target, input)));
    let what = match found {
        Ok(()) if started.elapsed() <= MOST => return Ok(()),
        Ok(()) => format!("{:?} for one input", started.elapsed()),
        Err(panic) => {
            let text = panic.downcast_ref::<String>().map(String::as_str);
            text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("a panic without a message").to_owned()
        }
    };
    Err(Finding { target: target.name, input: input.to_vec(), what })
}

/// The limit at which the driver stops.
#[derive(Clone, Copy, Debug)]
pub enum Until {
    /// The driver stops after this number of inputs.
    Runs(u64),
    /// The driver stops after this time.
    Elapsed(Duration),
}

/// Runs a target on its corpus, and on changed inputs that `seed` determines. Returns the number of inputs.
///
/// # Errors
/// The first finding, if any.
pub fn drive(target: &'static Target, seed: u64, until: Until) -> Result<u64, Finding> {
    warm(target);
    let corpus: Vec<Vec<u8>> = corpus(target).into_iter().map(|(_, input)| input).chain((target.seeds)()).collect();
    let mut runs = 0;
    for input in &corpus {
        attempt(target, input)?;
        runs += 1;
    }
    let started = Instant::now();
    let mut rng = Rng(seed);
    let goes_on = |runs: u64| match until {
        Until::Runs(limit) => runs < limit,
        Until::Elapsed(limit) => started.elapsed() < limit,
    };
    while goes_on(runs) {
        let mut input = corpus[rng.index(corpus.len())].clone();
        if rng.index(8) == 0 {
            let other = &corpus[rng.index(corpus.len())];
            input.truncate(rng.index(input.len() + 1));
            input.extend_from_slice(&other[rng.index(other.len() + 1)..]);
        }
        for _ in 0..1 + rng.index(MOST_CHANGES) {
            (target.mutate)(&mut input, &mut rng);
        }
        attempt(target, &input)?;
        runs += 1;
    }
    Ok(runs)
}

/// Makes `tries` attempts to shorten or simplify an input that causes a finding. Returns the smallest input that still
/// causes a finding.
pub fn minimise(target: &'static Target, input: &[u8], tries: usize) -> Vec<u8> {
    let mut best = input.to_vec();
    let mut rng = Rng(1);
    for _ in 0..tries {
        let mut smaller = best.clone();
        if smaller.is_empty() {
            break;
        }
        let at = rng.index(smaller.len());
        match rng.index(3) {
            0 => drop(smaller.drain(at..(at + 1 + rng.index(32)).min(smaller.len()))),
            1 => smaller.truncate(at),
            _ => smaller[at] = 0,
        }
        if smaller != best && attempt(target, &smaller).is_err() {
            best = smaller;
        }
    }
    best
}
