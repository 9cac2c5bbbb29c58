//! Theory: do the costs grow as the sources say? N is doubled, the device counts, the ratio of cost to bound must stay
//! where it is.
//!
//! ```text
//!   Config ─▶ measure, N = start · 2ⁱ ─▶ Point … ─▶ claims ─▶ Check { ratio, slope, PASS | FAIL } ─▶ table, lines, plots
//!                │ accesses
//!                ▼ transfers: external-memory model (any B and M), affine model
//!   order: where in the file writes go over time        sort: the same records, merely sorted to disk
//! ```
//!
//! * [`mod@measure`]: loads, lookups and scans at one size, PandoDB in its deterministic form on a device in memory.
//! * [`transfers`]: block transfers and affine cost of a list of accesses, after the fact.
//! * [`claims`]: what is claimed of an index, and by whom; [`check`] judges.
//! * [`order`]: sequentiality of writes (003 §5, Fig. 6b). [`sort`]: the lower bound of any load, an external sort.
//!
//! Sources: 002 §3.2–3.4 for `stbe`, 001 §5.1 for the greatest cost of one insert.

pub mod check;
pub mod claims;
pub mod measure;
pub mod order;
pub mod picture;
pub mod sort;
pub mod transfers;

pub use check::{Check, Verdict};
pub use measure::{Config, Point, measure};
