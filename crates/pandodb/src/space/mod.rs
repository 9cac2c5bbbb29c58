//! Space: where blocks live in the one data file, and when their place may be used again.
//!
//! ```text
//!  data file   | extent 0           | extent 1           | extent 2 …
//!              | superblock A, slab | superblock B, slab | whole extents of runs, slabs of small blocks
//!
//!  alloc ──▶ written ──▶ reached by a root ──free──▶ quarantine ──two superblocks later──▶ punched, free
//!     └────────── never reached ──give_back──▶ free at once
//! ```
//!
//! * The unit is the 4 KiB page; runs take whole extents of 32 pages, trunk nodes and large values take page ranges of
//!   slab extents. One 32-bit map an extent says which pages are taken ([`map`]).
//! * **Nothing that a checkpoint reaches is overwritten.** An extent that is dropped waits until two superblocks that
//!   were cut after the drop are durable, so neither slot of the superblock can reach it ([`data::DataFile::free`]).
//! * **No single fault takes a root**: two superblocks, and every block between them and the runs is written twice
//!   ([`twin`]).
//! * Who reaches an extent is decided by ownership in memory (the last `Arc` that names it frees it) and, on reopening,
//!   by walking the roots ([`data::DataFile::mark`]): the map itself is not persisted, so it cannot disagree.
//! * Every block carries a header whose checksum covers the store, the owner, the address and the kind ([`data`]), so a
//!   stale, misdirected or foreign block never passes for the right one.
//! * The file grows by a factor of 1.25 (`000 §5.1.1`), sparse; freed pages are punched out and a free tail is cut off.

pub mod data;
pub mod map;
pub mod prefetch;
pub mod ranges;
pub mod superblock;
pub mod twin;

pub use data::{BLOCK_HEADER, BlockKind, DataFile};
pub use prefetch::Prefetch;
pub use superblock::Superblock;
pub use twin::Twin;
