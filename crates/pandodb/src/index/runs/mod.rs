//! What every index over immutable runs needs, whatever its shape: a tree of runs, a list of levels, partitions.
//!
//! | file | what |
//! | --- | --- |
//! | `queue`, `job` | sealed memtables become runs; slices of runs are compacted |
//! | `deletes` | how many deletes a slice holds, and about where |
//! | `probe`, `cursor` | lookups and scans over the slices of a view |
//! | `codec` | what root records have in common |
//! | `check` | verification, salvage |
//! | `describe` | what the inspector prints of runs |
//!
//! An index supplies the shape: which slices a lookup asks and in which order, which slices are compacted next, and where the output
//! goes.

pub mod check;
pub mod codec;
mod cursor;
pub mod deletes;
mod describe;
mod job;
mod probe;
mod queue;

pub use self::codec::Stored;
pub use self::cursor::{Piece, Pieces, PiecewiseCursor};
pub use self::deletes::Deletes;
pub use self::describe::{describe_block, describe_run};
pub use self::job::{Inputs, MergeJob, Output, PackJob, blobs_of};
pub use self::probe::{MapletRef, Path, PathProbe, Stop};
pub use self::queue::PackQueue;
