//! A real process on a real disk, killed with SIGKILL at any moment: while it opens, writes, packs, compacts, takes
//! checkpoints.
//!
//! ```text
//! parent                                child (the same program)
//! spawn ──────────────────────────────▶ open, read how far each writer had come
//! read   ◀─ writer, number, durability ─ a line after each commit
//! …
//! SIGKILL after a seeded time ────────▶ ✗
//! open, compare, close; the next child goes on with what is there
//! ```
//!
//! Each of [`WRITERS`] threads commits batches numbered 0, 1, 2, …; what a batch holds follows from its writer and its number
//! (`workload`). From the number that a writer had reached follows the whole state that it must have left. After a kill:
//!
//! * that number is at least the last that was acknowledged as `Buffered` or `Synced`, and at most one above the last that was
//!   acknowledged at all;
//! * every key, value and counter is what the numbers say: no batch is half there, no merge is missing or doubled;
//! * each batch also says how far the *other* writers were seen to be, acknowledged, before it was committed: those numbers
//!   must be there too. A log with a hole would break that.
//!
//! A unit is [`KILLS`] kills of one store. Where a kill strikes follows from the seed and from the machine's mood, so a failure
//! keeps its store and says where it is.

mod child;
mod parent;
mod workload;

pub use self::child::child;
pub use self::parent::run;

/// Kills of one unit.
pub const KILLS: u64 = 10;
/// Threads of the child that write.
pub const WRITERS: u64 = 2;
/// The hidden command of the program that makes it the child.
pub const CHILD_COMMAND: &str = "sim-child";
