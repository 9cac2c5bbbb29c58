//! Tests that kill a real process on a real disk with SIGKILL. The kill happens at any moment: while the process opens
//! the store, writes, packs, compacts or takes a checkpoint.
//!
//! ```text
//! parent                                child (the same program)
//! spawn ──────────────────────────────▶ open, read the last batch number of each writer
//! read   ◀─ writer, number, durability ─ a line after each commit
//! …
//! SIGKILL after a seeded time ────────▶ ✗
//! open, compare, close; the next child continues with this store
//! ```
//!
//! Each of [`WRITERS`] threads commits batches numbered 0, 1, 2, … The writer and the number determine the contents of
//! a batch (`workload`), so the number of batches of each writer determines the whole contents of the store. After a
//! kill, the harness checks:
//!
//! * a writer has at least the batches up to the last one acknowledged as `Buffered` or `Synced`, and at most one batch
//!   after the last acknowledged one;
//! * every key, value and counter matches these numbers: no batch is applied in part, no merge is missing or doubled;
//! * each batch also records how many batches of the *other* writers had been acknowledged before its commit. These
//!   batches must exist too. If a log lost records in its middle, this check would fail.
//!
//! In half of the stores, threads also move money between accounts in transactions (`bank`). After each kill, the sum of
//! all accounts must be the same as before.
//!
//! A unit is [`KILLS`] kills of one store. The moment of a kill depends on the seed and on the scheduling of the
//! machine. So after a failure, the harness keeps the store and reports its path.

mod bank;
mod child;
mod parent;
mod workload;

pub use self::child::child;
pub use self::parent::run;

/// The number of kills of one unit.
pub const KILLS: u64 = 10;
/// The number of writer threads of the child.
pub const WRITERS: u64 = 2;
/// The name of the hidden command with which the program runs as the child.
pub const CHILD_COMMAND: &str = "sim-child";
