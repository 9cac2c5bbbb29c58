//! Crashes, faults and damage: what the store must survive (`docs`: the fault model of the design, rules 1–8).
//!
//! ```text
//!   script (seed) ──drive──▶ SimDevice ──history──▶ enumerate: images ──open──▶ contents ∈ allowed states?
//!        │                       └── faults: the nth call breaks ─┘   └─ damage: flipped, cut, swapped, stale
//!        └── model: the state after each step
//! ```
//!
//! | file | what |
//! | --- | --- |
//! | `script` | seeded workloads and the model that says what each step leaves |
//! | `drive` | runs a script on a store; opens images, reads them whole |
//! | `enumerate` | power cuts and kills at every point of a recorded run, crashes inside recovery |
//! | `power` | the tests of it |
//! | `canary` | devices that lie about syncing: the enumerator must notice |
//! | `faults`, `full` | the nth call fails; the disk is full |
//! | `damage` | flipped bits, truncation, swapped and stale pages |
//! | `golden` | a store written by an earlier build opens; the lock |
//!
//! Every failure names the seed of its script; `PANDODB_CRASH_SEED` runs that one alone, `PANDODB_CRASH_STATES` sets how
//! many distinct states to visit.

mod canary;
mod damage;
mod drive;
mod enumerate;
mod faults;
mod full;
mod golden;
mod power;
mod script;
