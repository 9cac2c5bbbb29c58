//! Runs: immutable, sorted, packed; a static B+-tree in extents, written once (002 §3.3, the "branch").
//!
//! ```text
//!   positions   0 … leaf_pages            … pages of the run, through its extents
//!               | leaf | leaf | leaf | …  | inner, level by level | filter | tombstones | footer |
//!                  ▲ in key order            root = last inner       │
//!   probe:  range of the slice ─▶ filter page ─▶ inner … ─▶ leaf    one page each, most of them cached
//!   cursor: inner … ─▶ leaf ─▶ next leaf, by position, in chunks that bypass the pool
//! ```
//!
//! | file | what |
//! | --- | --- |
//! | `slots` | the body that leaf and inner blocks share: prefix, heads, offsets |
//! | `leaf`, `inner`, `tombstones`, `meta` | the blocks and their bytes |
//! | `compressed` | leaves as LZ4, at the bottom of a tree, if that is asked for |
//! | `pages`, `builder` | writing |
//! | `reader`, `probe`, `leaves`, `cursor`, `merge` | reading: blocks, a key, leaves in a row, a range, several runs |
//! | `foreseen` | the filters on a lookup's way, looked for in the pool all at once |
//! | `verify` | reads every block that a run owns and compares it with its neighbours |
//! | `salvage` | reads what it can around damage, and says which keys are lost |
//! | `slice`, `spans` | a run clipped to a key range, and which pages somebody still needs |
//!
//! Invariants:
//! * messages strictly ascend by (key, newest first) through all leaves; positions of leaves have no gaps;
//! * a block never lies across two extents that do not touch;
//! * positions and lengths of leaves are those on disk: a compressed one is longer in memory, and nothing counts that;
//! * every block from disk is checked (checksum, owner, address, kind, then its whole structure) before it is used, by
//!   whoever reads it: the pool holds checked blocks only;
//! * a run owns its pages. What no slice spans any more is freed at once, the rest when the run is dropped (`spans`).

mod builder;
mod compressed;
mod cursor;
mod foreseen;
mod inner;
mod leaf;
mod leaves;
pub mod maplet;
mod merge;
mod meta;
mod pages;
mod probe;
mod reader;
mod salvage;
mod slice;
mod slots;
mod spans;
#[cfg(test)]
mod tests;
pub mod tombstones;
mod verify;

pub use builder::RunBuilder;
pub use compressed::{Compression, Compressor, unpack};
pub use cursor::RunCursor;
pub use foreseen::Foreseen;
pub use inner::{Child, Inner, InnerBuilder};
pub use leaf::{Leaf, LeafBuilder, Slot};
pub use leaves::ReadAhead;
pub use merge::MergeCursor;
pub use meta::{RunMeta, read_footer};
pub use probe::{LeafHit, ProbeStep, RunProbe};
pub use reader::Run;
pub use salvage::{Piece, Salvager};
pub use slice::RunSlice;
