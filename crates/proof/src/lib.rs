//! What shows that PandoDB keeps its promises when things break: the harnesses, as a library.
//!
//! ```text
//!   script (seed) ──drive──▶ SimDevice ──history──▶ crash: images ──open──▶ contents ∈ allowed states?
//!        │                       └── faults: the nth call breaks ─┘  └─ corrupt: flipped, cut, swapped, stale
//!        └── model: the state after each step
//! ```
//!
//! | module | what |
//! | --- | --- |
//! | [`report`] | units of work, tallies, failures |
//! | [`script`] | seeded workloads and the model that says what each step leaves |
//! | [`drive`] | runs a script on a store; opens images, reads them whole |
//! | [`crash`] | power cuts and kills at every point of a recorded run, crashes inside recovery, short histories one and all |
//! | [`liar`] | a device that lies about syncing: the canary of it |
//! | [`disk`] | a full disk can be emptied again, at every size |
//! | [`faults`] | the nth call fails; the disk is full |
//! | [`corrupt`] | flipped bits, truncation, swapped and stale pages |
//! | [`model`] | random histories of the whole interface, against sorted maps |
//! | [`histories`] | isolation: what threads saw against what was committed |
//! | [`verify`] | verifications beside writers |
//! | [`kill`] | a real process on a real disk under SIGKILL |
//! | [`soak`] | units on several threads, resumable |
//! | [`golden`] | a store written by an earlier build opens |
//! | [`seeded`] | which harness must catch which seeded bug |
//! | [`minimise`] | the shortest history that still fails |
//!
//! Every unit of work follows from its seed, and every failure names it: the same seed gives the same states, in a test, in
//! `pando sim` and in a soak of a night. `docs/TESTING.md` says what is promised and what has been reached.
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

/// Runs the units of `seeds` until `runs` are reached or a promise was broken.
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
