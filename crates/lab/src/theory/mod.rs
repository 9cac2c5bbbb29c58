//! Theory: checks that costs grow as the sources state. The number of records N is doubled repeatedly, the device
//! counts accesses, and the ratio of the cost to the bound must not grow with N.
//!
//! ```text
//!   Config ─▶ measure, N = start · 2ⁱ ─▶ Point … ─▶ claims ─▶ Check { ratio, slope, PASS | FAIL } ─▶ table, lines, plots
//!                │ accesses
//!                ▼ transfers: external-memory model (any B and M), affine model
//!   order: addresses of writes over time                sort: an external sort of the same records
//! ```
//!
//! * [`mod@measure`]: loads, lookups and scans for one number of records, with PandoDB in deterministic mode on a
//!   device in memory.
//! * [`transfers`]: computes the block transfers and the affine cost of a recorded list of accesses.
//! * [`claims`]: the claims about `stbe`, `nbtree`, `btree` and `betree`, with their sources; [`check`] judges them.
//! * [`order`]: the sequentiality of writes (003 §5, Fig. 6b). [`sort`]: an external sort, as a lower bound for a load.
//!
//! Sources: 002 §3.2–3.4 for `stbe`, 001 §4.2 and §5 for `nbtree` and for the greatest cost of one insert, 000 §4.2 for `btree` and `betree`.

pub mod check;
pub mod claims;
pub mod measure;
pub mod order;
pub mod picture;
pub mod sort;
pub mod transfers;

pub use check::{Check, Verdict};
pub use measure::{Config, Point, measure};
