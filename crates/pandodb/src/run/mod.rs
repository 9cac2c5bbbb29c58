//! Runs. A run is an immutable, sorted and packed B+-tree in extents, which is written once (the "branch" of 002 §3.3).
//!
//! ```text
//!   positions   0 … leaf_pages            … pages of the run, through its extents
//!               | leaf | leaf | leaf | …  | inner, level by level | filter | tombstones | footer |
//!                  ▲ in key order            root = last inner       │
//!   probe:  range of the slice ─▶ filter page ─▶ inner … ─▶ leaf    one page each, most of them cached
//!   cursor: inner … ─▶ leaf ─▶ next leaf, by position, in chunks that bypass the pool
//! ```
//!
//! Steps: a builder writes a run once ([`RunBuilder`]). The run is opened ([`Run`]), probes and cursors read it through
//! slices ([`RunSlice`]), and it is freed with its last reference.
//!
//! | file | contents |
//! | --- | --- |
//! | `slots` | the layout that the bodies of leaf and inner blocks share: prefix, heads, offsets |
//! | `leaf`, `inner`, `tombstones`, `meta` | the blocks and their bytes |
//! | `compressed` | leaves as LZ4, at the bottom of a tree, if the user enables it |
//! | `pages`, `builder` | writing |
//! | `reader`, `probe`, `leaves`, `cursor`, `merge` | reading: blocks, a key, consecutive leaves, a range, several runs |
//! | `filter_prefetch` | prefetching of the filter blocks of a lookup |
//! | `maplet` | the filters of several runs, merged into one filter |
//! | `verify` | reads every block that a run owns and compares the block with its neighbours |
//! | `salvage` | reads around damage and reports the ranges of lost keys |
//! | `slice`, `spans` | a run clipped to a key range; the leaf pages that slices still need |
//!
//! Invariants:
//! * messages strictly ascend by (key, newest first) through all leaves; there are no gaps between the positions of
//!   leaves;
//! * a block does not cross from an extent to one that is not adjacent;
//! * positions and lengths of leaves are the positions and lengths on disk; a compressed leaf is longer in memory;
//! * a block that was read from disk is used only after its checksum, owner, address, kind and whole structure were
//!   checked; the pool holds only checked blocks;
//! * a run owns its pages. Leaf pages that no slice spans any more are freed immediately (`spans`); the other pages are
//!   freed when the run is dropped.

#![cfg_attr(not(test), warn(clippy::cast_possible_truncation))]

mod builder;
mod compressed;
mod cursor;
mod filter_prefetch;
pub(crate) mod inner;
mod leaf;
mod leaves;
pub mod maplet;
mod merge;
mod meta;
pub(crate) mod pages;
mod probe;
mod reader;
mod salvage;
mod scan_use;
mod slice;
pub(crate) mod slots;
mod spans;
#[cfg(test)]
mod tests;
pub mod tombstones;
mod verify;

pub use builder::RunBuilder;
pub use compressed::{Compression, Compressor, MOST_TREE_PAGES, unpack, unpack_into, unpacked_pages};
pub use cursor::RunCursor;
pub(crate) use cursor::beyond;
pub use filter_prefetch::FilterPrefetch;
pub use inner::{Child, Inner, InnerBuilder};
pub use leaf::{Fit, Leaf, LeafBuilder, Slot};
pub use leaves::ReadAhead;
pub use merge::MergeCursor;
pub use meta::{RunMeta, read_footer};
pub use probe::{LeafHit, ProbeStep, RunProbe};
pub use reader::Run;
pub use salvage::{Piece, Salvager};
pub use scan_use::{ScanHabits, ScanUse, Spare};
pub use slice::RunSlice;
