//! Test harnesses, as a library. Each harness injects one kind of failure (a power cut, failing device calls, changed
//! bytes, a killed process) and checks that PandoDB still keeps its guarantees.
//!
//! ```text
//!   script (seed) ──drive──▶ SimDevice ──history──▶ crash: images ──open──▶ contents ∈ allowed states?
//!        │                       └── faults: the nth call fails ──┘  └─ corrupt: flipped, cut, swapped, stale
//!        └── model: the state after each step
//! ```
//!
//! | module | what |
//! | --- | --- |
//! | [`report`] | units of work, tallies, failures |
//! | [`script`] | seeded workloads, and a model of the contents after each step |
//! | [`drive`] | runs a script on a store; opens images and reads all their contents |
//! | [`indexes`] | draws the index type and its options from the seed of a unit |
//! | [`crash`] | power cuts and kills at every point of a recorded run, crashes inside recovery, all short histories |
//! | [`liar`] | a device that lies about syncing: the canary of `crash` |
//! | [`disk`] | filling a disk and emptying it again |
//! | [`faults`] | failure of the nth device call |
//! | [`full`] | reads, deletes and recovery on a full disk |
//! | [`corrupt`] | flipped bits, truncation, swapped and stale pages |
//! | [`model`] | random histories of the whole interface, compared with sorted maps |
//! | [`histories`] | isolation: compares the results of concurrent reads with the commits |
//! | [`verify`] | `Store::verify` concurrent with writers |
//! | [`kill`] | a real process on a real disk, killed with SIGKILL |
//! | [`soak`] | runs units on several threads; an interrupted soak can be resumed |
//! | [`golden`] | opening of stores that an earlier build wrote |
//! | [`seeded`] | the harness that must catch each seeded bug |
//! | [`minimise`] | shortens a history that fails |
//!
//! A seed determines a whole unit of work, and each failure report contains the seed of the unit. The same seed gives
//! the same states in a test, in `pando sim` and in an overnight soak. `docs/TESTING.md` lists the guarantees and the
//! number of runs that were done.
#![forbid(unsafe_code)]

pub mod corrupt;
pub mod crash;
pub mod disk;
pub mod drive;
pub mod faults;
pub mod full;
pub mod golden;
pub mod histories;
pub mod indexes;
pub mod kill;
pub mod liar;
pub mod minimise;
pub mod model;
pub mod report;
pub mod script;
pub mod seeded;
pub mod soak;
pub mod verify;

pub use report::{Failure, Kind, Tally, Unit};

/// Runs one unit.
pub fn run(kind: Kind, unit: &Unit) -> Tally {
    match kind {
        Kind::Crash => crash::run(unit),
        Kind::Faults => faults::run(unit),
        Kind::Corrupt => corrupt::run(unit),
        Kind::Model => model::run(unit),
        Kind::Histories => histories::run(unit),
        Kind::Kill => kill::run(unit),
        Kind::Disk => disk::run(unit),
        Kind::Verify => verify::run(unit),
    }
}

/// Runs the units of `seeds` until `runs` is reached or a unit fails.
pub fn run_until(kind: Kind, seeds: impl IntoIterator<Item = u64>, runs: u64) -> Tally {
    let mut tally = Tally::default();
    for seed in seeds {
        if tally.runs >= runs || !tally.failures.is_empty() {
            break;
        }
        tally.add(run(kind, &Unit::of(seed)));
    }
    tally
}
