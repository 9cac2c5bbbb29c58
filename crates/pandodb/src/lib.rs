//! PandoDB: an embedded, durable, ordered key-value store for programs that write more than they read.
//!
//! A **store** is a directory. It holds **keyspaces**: ordered maps from bytes to bytes. Writes are blind (none of them
//! reads), batches are atomic across keyspaces, merge operators update values without reading them, snapshots cost a
//! number, and a store that was killed opens again by replaying its log.
//!
//! ```
//! use pandodb::{AddI64, Durability, KeyspaceOptions, Store};
//!
//! # let dir = tempfile::tempdir()?;
//! # let path = dir.path().join("demo.pando");
//! let store = Store::open(path)?; // or Store::builder(path).memory_budget(256 << 20)…
//! let events = store.keyspace("events")?;
//! let delays = store.keyspace_with("delays", KeyspaceOptions::new().merge(AddI64))?;
//!
//! events.put("2024-01-01 AA 17", "ORD DFW 17")?;
//! delays.merge("ORD", 17i64.to_le_bytes())?; // blind: reads nothing
//!
//! let mut batch = store.batch(); // all or nothing, across keyspaces
//! batch.put(&events, "2024-01-02 UA 4", "ORD SFO -2");
//! batch.merge(&delays, "ORD", (-2i64).to_le_bytes());
//! batch.commit(Durability::Synced)?;
//!
//! for entry in events.range("2024-01-01".."2024-02-01").rev() {
//!     let (key, value) = entry?;
//!     println!("{key:?} {value:?}");
//! }
//!
//! let then = store.snapshot();
//! events.delete_range("2024-01-01".."2024-01-02")?; // one message, however many keys
//! assert!(events.get("2024-01-01 AA 17")?.is_none());
//! assert_eq!(events.at(&then).get("2024-01-01 AA 17")?.unwrap(), "ORD DFW 17");
//! assert_eq!(delays.get("ORD")?.unwrap(), 15i64.to_le_bytes());
//! store.close()?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # The life of a write, the life of a read
//!
//! ```text
//!  put · delete · merge · delete_range · Batch
//!    │ checked, priced by the work that is owed
//!    ▼
//!  sequencer (seqnos) ──▶ log record ──▶ memtable ──full──▶ sealed ──ingest──▶ index
//!                            │                                                  │ step: pack, flush, compact
//!                            └─ Synced: one sync for all who wait               ▼ beside the readers
//!                                                                     runs in the data file, one root
//!                                                                               │
//!                     superblock ◀── catalogue, twice ◀── checkpoint ◀──────────┘
//!
//!  get · multi_get · range
//!    │ read point: the newest visible seqno, or a snapshot's
//!    ▼
//!  active memtable ─▶ sealed ones ─▶ index view: filter, inner blocks, leaf ─▶ resolve ─▶ Value
//!                                    └── blocks through the pool ──┘
//! ```
//!
//! A write costs one log record and one memtable insertion, and is written again about once for each level of the tree.
//! A point read of a cold key costs about one block read, plus false positives of the filters (1 % each). The sources
//! are cited as `002 §3.4`: 000 and 002 are the theses on concurrent and size-tiered Bε-trees, listed in
//! `docs/GLOSSARY.md`.
//!
//! # Where to look
//!
//! * [`Store`], [`Keyspace`], [`Batch`], [`Snapshot`], [`Range`]: the handles. All but batches and ranges are cheap
//!   clones, usable from any thread.
//! * [`StoreBuilder`], [`KeyspaceOptions`], [`Durability`]: what can be chosen.
//! * [`Error`]: one enum, by what the caller can do.
//! * [`MergeOperator`]: the built-in operators and the laws for your own.
//! * [`check`]: looks at a store without changing it, and salvages a damaged one. [`device`]: puts a store into memory or under a simulator.
//!
//! The layers themselves are public for this project's own tests and tools, hidden from these pages, and covered by no
//! promise: `docs/ARCHITECTURE.md` shows them.
// Allowed in the modules that `tests/tidy.rs` lists, and nowhere else.
#![deny(unsafe_code)]
#![warn(missing_docs)]

// Who may use whom is checked by `tests/tidy.rs`.
#[doc(hidden)]
pub mod base;
pub mod check;
pub mod device;
#[doc(hidden)]
pub mod filter;
#[doc(hidden)]
pub mod index;
#[doc(hidden)]
pub mod memtable;
#[doc(hidden)]
pub mod pool;
#[doc(hidden)]
pub mod resolve;
#[doc(hidden)]
pub mod rows;
#[doc(hidden)]
pub mod run;
#[doc(hidden)]
pub mod sched;
#[doc(hidden)]
pub mod space;
#[doc(hidden)]
pub mod store;
#[doc(hidden)]
pub mod wal;

#[doc(inline)]
pub use base::{Error, KeyRange, MAX_KEY, MAX_OPERAND, MAX_VALUE, Result};
#[doc(inline)]
pub use device::Io;
#[doc(inline)]
pub use filter::Filters;
#[doc(inline)]
pub use index::{Debt, Estimate, IndexStats};
#[doc(inline)]
pub use resolve::{AddI64, AddU64, Append, BitOr, Max, MergeOperator, Min, PutIfAbsent};
#[doc(inline)]
pub use run::Compression;
#[doc(inline)]
pub use store::{
    BackupReport, Batch, BytesByCause, Durability, IndexKind, Keyspace, KeyspaceAt, KeyspaceInfo, KeyspaceOptions,
    KeyspaceStats, Latency, MemoryStats, Mode, Range, Snapshot, Store, StoreBuilder, StoreStats, Value,
};

/// The README's example compiles.
#[cfg(doctest)]
#[doc = include_str!("../../../README.md")]
struct Readme;
