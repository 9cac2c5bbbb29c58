//! Parts that are shared by all indexes over immutable runs, regardless of their shape: a tree of runs, a list of
//! levels, partitions.
//!
//! | file | contents |
//! | --- | --- |
//!  `queue`, `job` | packs sealed memtables into runs; compacts slices of runs |
//!  `sequence` | sorted sequences of disjoint slices, which are replaced piece by piece
//!  `load` | builds runs from rows in key order
//!  `deletes` | number and approximate position of the deletes of a slice |
//!  `probe`, `cursor` | lookups and scans over the slices of a view |
//!  `changes` | searches runs for changes after a seqno |
//!  `codec` | common parts of root records |
//!  `check` | verification, salvage |
//!  `describe` | description of runs for the inspector |
//!
//! An index determines which slices a lookup searches and in which order, which compaction is done next, and which node
//! or level receives the output.

mod changes;
pub mod check;
pub mod codec;
mod cursor;
pub mod deletes;
mod describe;
mod extents;
mod forced;
mod job;
mod load;
mod probe;
mod queue;
pub mod relief;
pub mod sequence;

pub use self::changes::changed_on;
pub use self::cursor::{Piece, Pieces, PiecewiseCursor};
pub use self::deletes::Deletes;
pub use self::describe::{describe_block, describe_run};
pub use self::extents::Extents;
pub use self::forced::Forced;
pub use self::job::{Inputs, MergeJob, Output, PackJob, blobs_of};
pub use self::load::{LoadedRuns, LoadsRuns};
pub use self::probe::{MapletRef, Path, PathProbe, Stop};
pub use self::queue::{PackQueue, Packs};
pub use self::sequence::{Part, Sequence, Stuck};
