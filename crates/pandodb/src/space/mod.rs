//! Space: this module decides where blocks are in the data file, and when freed pages may be reused.
//!
//! ```text
//!  data file   | extent 0           | extent 1           | extent 2 …
//!              | superblock A, slab | superblock B, slab | whole extents of runs, slabs of small blocks
//!
//!  alloc ──▶ written ──▶ reached by a root ──free──▶ quarantine ──two superblocks later──▶ punched, free
//!     └────────── never reached ──give_back──▶ free at once
//! ```
//!
//! Invariants:
//!
//! * The unit is the 4 KiB page. Runs allocate whole extents of 32 pages; trunk nodes and large values allocate page
//!   ranges in slab extents. A map of 32 bits for each extent records the used pages ([`map`]).
//! * **Nothing that a checkpoint reaches is overwritten.** A freed extent is not reused until two checkpoints that
//!   began after the extent was freed have made their superblocks durable. From then on neither superblock slot can
//!   reach the extent ([`data::DataFile::free`]).
//! * **No single fault destroys a root**: there are two superblocks, and every block between them and the runs is
//!   written twice ([`mirrored`]).
//! * The owner of an extent is recorded only in memory: dropping the last `Arc` that refers to the extent frees it.
//!   When a store is opened, ownership is determined by walking the roots ([`data::DataFile::mark`]). The map itself is
//!   not persisted, so it cannot contradict the roots.
//! * Every block has a header with a checksum over the store, the owner, the address and the kind ([`data`]), so an
//!   outdated, misdirected or foreign block fails its check.
//! * The file grows by a factor of 1.25 (`000 §5.1.1`) and is sparse. Holes are punched for freed pages, and a free
//!   tail of the file is cut off.

#![cfg_attr(not(test), warn(clippy::cast_possible_truncation))]

pub mod data;
mod kind;
pub mod map;
pub mod mirrored;
pub mod prefetch;
mod punch;
pub mod ranges;
pub mod superblock;
pub mod values;

pub use data::DataFile;
pub use kind::{BLOCK_HEADER, BlockKind, COMPRESSED_LEAVES, LOADED_RUNS, LOADED_TREES, MAX_BLOCK_PAGES};
pub use mirrored::MirroredBlock;
pub use prefetch::Prefetch;
pub use superblock::Superblock;

/// Converts an offset or a length in a file to an index. Call it only for a part of the file that is in memory.
#[inline]
#[expect(clippy::cast_possible_truncation, reason = "the assertion refuses targets on which a `usize` is shorter")]
pub(crate) const fn to_usize(number: u64) -> usize {
    const { assert!(size_of::<usize>() >= size_of::<u64>(), "the engine needs pointers of 64 bits") };
    number as usize
}
