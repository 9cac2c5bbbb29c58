//! Input and output of a harness: a unit of work, the tally of a unit, and failures.
//!
//! The seed alone determines a *unit*. Two runs of a unit visit the same states in the same order, and return the same
//! counts and the same digest. This does not hold for the kinds that use real threads or processes:
//! [`Kind::Histories`], [`Kind::Kill`] and [`Kind::Verify`]. A larger run (a test, an overnight soak) is a sum of
//! units.

use std::collections::BTreeMap;
use std::fmt;

use serde::{Deserialize, Serialize};

/// The maximum number of failures that one unit reports. Further failures would add no information.
pub const ENOUGH: usize = 5;

/// A harness.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Kind {
    /// Power cuts and kills at every point of a recorded run: [`crate::crash`].
    Crash,
    /// Failures of the nth device call, and full disks: [`crate::faults`].
    Faults,
    /// Damage to a store at rest: [`crate::corrupt`].
    Corrupt,
    /// Random histories, compared with sorted maps: [`crate::model`].
    Model,
    /// Histories of concurrent clients, checked for isolation: [`crate::histories`].
    Histories,
    /// A real process on a real disk, killed: [`crate::kill`].
    Kill,
    /// Filling a disk and emptying it again: [`crate::disk`].
    Disk,
    /// `Store::verify` concurrent with writers: [`crate::verify`].
    Verify,
}

impl Kind {
    /// Every kind.
    pub const ALL: [Kind; 8] =
        [Kind::Crash, Kind::Faults, Kind::Corrupt, Kind::Model, Kind::Histories, Kind::Kill, Kind::Disk, Kind::Verify];

    /// The name on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Kind::Crash => "crash",
            Kind::Faults => "faults",
            Kind::Corrupt => "corrupt",
            Kind::Model => "model",
            Kind::Histories => "histories",
            Kind::Kill => "kill",
            Kind::Disk => "disk",
            Kind::Verify => "verify",
        }
    }

    /// What [`Tally::runs`] counts.
    pub fn what(self) -> &'static str {
        match self {
            Kind::Crash => "states",
            Kind::Faults => "faults",
            Kind::Corrupt => "images",
            Kind::Model => "actions",
            Kind::Histories => "transactions",
            Kind::Kill => "kills",
            Kind::Disk => "disks",
            Kind::Verify => "rounds",
        }
    }
}

/// Which goal applies to a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Column {
    /// The goal before a change is merged: all kinds together take less than 15 minutes.
    Ci,
    /// The goal of an overnight soak: 8 hours.
    Soak,
}

impl Kind {
    /// The number of runs to reach.
    pub fn goal(self, column: Column) -> u64 {
        let (ci, soak) = match self {
            Kind::Crash => (500_000, 20_000_000),
            Kind::Faults => (50_000, 2_000_000),
            Kind::Corrupt => (100_000, 10_000_000),
            Kind::Model => (100_000, 10_000_000),
            Kind::Kill => (200, 20_000),
            Kind::Disk => (300, 100_000),
            Kind::Histories => (1_000_000, 20_000_000),
            Kind::Verify => (1_000, 100_000),
        };
        match column {
            Column::Ci => ci,
            Column::Soak => soak,
        }
    }
}

/// One unit of work.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unit {
    /// The seed that determines the unit.
    pub seed: u64,
    /// The steps of the seed's history to run, ascending. `None` means all steps.
    pub steps: Option<Vec<usize>>,
}

impl Unit {
    /// The whole unit of a seed.
    pub fn of(seed: u64) -> Unit {
        Unit { seed, steps: None }
    }
}

/// A violated guarantee.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Failure {
    /// The seed of the unit.
    pub seed: u64,
    /// A description of the violation and its location.
    pub what: String,
    /// The history that reproduces the failure, one step per line. The history is minimised if the harness supports
    /// minimising.
    pub history: Vec<String>,
    /// The steps of the seed's history that the minimised history keeps, if it was minimised.
    pub steps: Option<Vec<usize>>,
}

impl Failure {
    /// The command that reproduces the failure.
    pub fn replay(&self, kind: Kind) -> String {
        let steps = self.steps.as_ref().map(|steps| {
            let list: Vec<String> = steps.iter().map(usize::to_string).collect();
            format!(" --steps {}", list.join(","))
        });
        format!("pando sim {} --seed {}{}", kind.name(), self.seed, steps.unwrap_or_default())
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "seed {}: {}", self.seed, self.what)?;
        self.history.iter().try_for_each(|step| write!(f, "\n    {step}"))
    }
}

/// The counts of a unit or of a sum of units, and the failures.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Tally {
    /// Number of runs, in the unit of [`Kind::what`].
    pub runs: u64,
    /// Further counts, by name.
    pub counts: BTreeMap<String, u64>,
    /// A sum of hashes of the visited states, for comparing two runs. The sum does not depend on the order of units.
    pub digest: u64,
    /// The failures.
    pub failures: Vec<Failure>,
}

impl Tally {
    /// Adds `n` to the count `part`.
    pub fn count(&mut self, part: &str, n: u64) {
        match self.counts.get_mut(part) {
            Some(count) => *count += n,
            None => {
                self.counts.insert(part.to_owned(), n);
            }
        }
    }

    /// The count `part`.
    pub fn counted(&self, part: &str) -> u64 {
        self.counts.get(part).copied().unwrap_or(0)
    }

    /// Adds a failure.
    pub fn fail(&mut self, seed: u64, what: String) {
        self.failures.push(Failure { seed, what, history: Vec::new(), steps: None });
    }

    /// Whether the number of failures has reached [`ENOUGH`], so that the unit can stop.
    pub fn is_enough(&self) -> bool {
        self.failures.len() >= ENOUGH
    }

    /// Adds the tally of another unit.
    pub fn add(&mut self, other: Tally) {
        self.runs += other.runs;
        other.counts.iter().for_each(|(part, n)| self.count(part, *n));
        self.digest = self.digest.wrapping_add(other.digest);
        self.failures.extend(other.failures);
    }

    /// The counts as text.
    pub fn words(&self) -> String {
        let parts: Vec<String> = self.counts.iter().map(|(part, n)| format!("{n} {part}")).collect();
        parts.join(", ")
    }

    /// Asserts that there is no failure. Tests call this function.
    ///
    /// # Panics
    /// If there is a failure.
    pub fn none(&self) {
        let failures: Vec<String> = self.failures.iter().map(Failure::to_string).collect();
        assert!(failures.is_empty(), "{} failures:\n{}", failures.len(), failures.join("\n"));
    }
}
