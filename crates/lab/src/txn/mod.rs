//! Transactional workloads: programs whose threads run transactions on shared rows.
//!
//! ```text
//!   open(kind, settings) ─▶ Program ── rows() ──▶ the loaded store
//!                             │
//!                             ├── worker(thread) ─▶ Worker: draw, run, draw, run …    timed by the bench
//!                             └── check(session, tally) ─▶ complaints                 exact sums
//! ```
//!
//! | program | source |
//! | --- | --- |
//! | [`bank`] | transfers between two accounts, as in YCSB+T (Dey et al., ICDE Workshops 2014) |
//! | [`smallbank`] | SmallBank (Alomari et al., ICDE 2008), with the procedure SendPayment of H-Store |
//! | [`tpcc`] | the transactions New-Order and Payment of TPC-C, revision 5.11 |
//! | [`single`] | many threads that increment one key |
//! | [`pop`] | consumers that take the first row of a queue, and producers that push |
//!
//! Invariants: the inputs of a transaction are drawn before it begins, so that each attempt has the same inputs. A
//! worker adds to its tally only after a commit. After the workload the sums in the store must equal the loaded sums
//! and the tallies of all workers, under every isolation from snapshot isolation on.

pub mod bank;
pub mod pop;
pub mod program;
pub mod rows;
pub mod single;
pub mod smallbank;
#[cfg(test)]
mod tests;
pub mod tpcc;

pub use program::{Program, Settings, Step, StepKind, Tally, Worker};

use crate::workload::Transactional;

/// Creates the program of a workload.
pub fn open(kind: Transactional, settings: Settings) -> Box<dyn Program> {
    match kind {
        Transactional::Bank { plain } => Box::new(bank::Bank::new(settings, plain)),
        Transactional::SmallBank => Box::new(smallbank::SmallBank::new(settings)),
        Transactional::NewOrder => Box::new(tpcc::NewOrder::new(&settings)),
        Transactional::Payment { merges } => Box::new(tpcc::Payment::new(&settings, merges)),
        Transactional::Counters { plain } => Box::new(single::Counters::new(plain)),
        Transactional::UpdateOne { mutex } => Box::new(single::UpdateOne::new(mutex)),
        Transactional::Pop => Box::new(pop::Queue::new(settings)),
    }
}
