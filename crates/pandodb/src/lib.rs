//! PandoDB is an embedded key-value store for Linux programs that write more than they read.
//!
//! A **store** is a directory that holds **keyspaces**. A keyspace is a map from byte strings to byte strings, sorted
//! by key. You can put, get and delete single keys, and scan ranges from both ends. You can write several keys
//! atomically ([`Batch`]), change a value without reading it first ([`Keyspace::merge`]), and read a past state
//! ([`Snapshot`]). Only one process at a time can have a store open for writing; that process may use any number of
//! threads. After a crash, the next opening recovers the store automatically.
//!
//! ```
//! use pandodb::{AddI64, Durability, KeyspaceOptions, Store};
//!
//! let dir = tempfile::tempdir()?;
//! let path = dir.path().join("demo.pando");
//! let store = Store::open(&path)?; // a directory
//! let events = store.keyspace("events")?;
//! let delays = store.keyspace_with("delays", KeyspaceOptions::new().merge(AddI64))?;
//!
//! events.put("2024-01-01 AA 17", "ORD DFW 17")?;
//! delays.merge("ORD", 17i64.to_le_bytes())?; // adds 17; reads nothing
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
//! # Guarantees
//!
//! * **Durability** is chosen for the store, for a single write (`put_with`, `merge_with`, …) or for a batch: see
//!   [`Durability`]. By default an acknowledged write survives a crash of the process, but not a power cut; with
//!   [`Durability::Synced`] it survives a power cut, too. After a crash, the store holds a prefix of the writes, in the
//!   order in which they were made, and holds each batch completely or not at all.
//! * **Reads** see every write that was acknowledged before the read began. An iterator, a `multi_get` and a snapshot
//!   each see the state at one point in time.
//! * **Damage** is detected, because every block that is read from disk is verified. A damaged block makes only its own
//!   keys unreadable ([`Error::Corruption`]), and [`check::salvage`] copies the rest.
//! * **Memory** for caches and write buffers is limited by one budget, [`StoreBuilder::memory_budget`].
//! * **Transactions** are serializable by default. A commit fails if another commit has changed what the transaction has
//!   read; [`Store::transact`] then runs it again. Without a transaction, another thread can write between your `get` and
//!   your `put`.
//!
//! # Where to look
//!
//! | you want | see |
//! | --- | --- |
//! | to open a store, to choose memory, threads, durability | [`Store::open`], [`StoreBuilder`] |
//! | to read and write | [`Keyspace`], [`Batch`], [`Range`], [`Value`] |
//! | to change what you have read | [`Store::transact`], [`Transaction`], [`Keyspace::fetch_update`] |
//! | counters, sets, lists: updates without reading | [`AddU64`], [`AddI64`], [`Min`], [`Max`], [`Append`], [`BitOr`], [`PutIfAbsent`], [`MergeOperator`] |
//! | to read a past state | [`Store::snapshot`], [`Keyspace::at`] |
//! | to handle errors | [`Error`] |
//! | statistics | [`Store::stats`], [`StoreStats`] |
//! | to back up, verify or salvage a store | [`Store::backup`], [`Store::verify`], [`check`] |
//! | a store in memory, for tests | [`device::MemDevice`] with [`StoreBuilder::device`] |
//!
//! The repository has more: [recipes](https://github.com/pandodb/pandodb/blob/main/docs/RECIPES.md) (queues, counters,
//! indexes, typed keys, sizing), [which call to use](https://github.com/pandodb/pandodb/blob/main/docs/LIFECYCLE.md)
//! at shutdown, before a backup or after a load, the
//! [architecture](https://github.com/pandodb/pandodb/blob/main/docs/ARCHITECTURE.md), and a
//! [glossary](https://github.com/pandodb/pandodb/blob/main/docs/GLOSSARY.md) of the terms that the options of
//! [`StoreBuilder`] use.
//!
//! # How it works, in short
//!
//! ```text
//!  put, merge, delete ─▶ log ─▶ memtable ──full──▶ run on disk
//!                                                     │ compacted into larger
//!  get, range ◀─ memtables ◀─ cached blocks ◀─ runs ◀─┘ runs in background
//! ```
//!
//! A write is appended to a log and inserted into a sorted table in memory, the *memtable*. A full memtable becomes a
//! *run*, a sorted, immutable part of the data file. A background thread moves runs down a tree and compacts them into
//! larger runs. So a write reads nothing, and its data is rewritten about once for each level of the tree. If writers
//! outrun the background thread, they are throttled in small steps. A lookup searches the memtables and then the runs
//! on one path of the tree. Filters exclude most of these runs, so a lookup of a key that is not cached costs about one
//! read of 4 KiB.
//!
//! # Cargo features
//!
//! | feature | default | what |
//! | --- | --- | --- |
//! | `io_uring` | yes | several reads of one caller are in flight together; if the system refuses io_uring, the store reads one block at a time |
//! | `tracing` | no | spans and events for the crate `tracing`, target `pandodb`; a subscriber must not call the store |
//!
//! The events of `tracing` cover opening and the results of recovery, checkpoints, compactions, stalled writers, full disks,
//! failures, and closing.
//!
//! The features `explore` and `seeded-bugs` are for this project's own tests.
// `tests/tidy/main.rs` lists the modules that allow `unsafe` code.
#![deny(unsafe_code)]
#![warn(missing_docs)]

// `tests/tidy/main.rs` checks the permitted dependencies between these modules.
#[doc(hidden)]
pub mod base;
#[doc(hidden)]
pub mod blocks;
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
pub use base::{Error, IntoKeyRange, IoCause, KeyRange, MAX_KEY, MAX_OPERAND, MAX_VALUE, Result};
#[doc(inline)]
pub use device::Io;
#[doc(inline)]
pub use filter::Filters;
#[doc(inline)]
pub use index::{
    BetreeOptions, BtreeOptions, ColaOptions, Deadline, Debt, Estimate, Figure, FigureKind, IndexKind, IndexOptions,
    IndexStats, Mode, NbtreeOptions, OptionSpec, StbeOptions, Values,
};
#[doc(inline)]
pub use pool::PoolPolicy;
#[doc(inline)]
pub use resolve::{AddI64, AddU64, Append, BitOr, Max, MergeOperator, Min, PutIfAbsent};
#[doc(inline)]
pub use run::Compression;
#[doc(inline)]
pub use store::{
    BackupReport, Batch, BytesByCause, Durability, Isolation, Keys, Keyspace, KeyspaceAt, KeyspaceInfo,
    KeyspaceOptions, KeyspaceStats, Latency, MAX_BATCH, MemoryStats, Mismatch, Range, Savepoint, Snapshot, Store,
    StoreBuilder, StoreStats, Transaction, TransactionOptions, TransactionStats, Untracked, Value,
};

/// Compiles the example of the README.
#[cfg(doctest)]
#[doc = include_str!("../../../README.md")]
struct Readme;

/// Runs the recipes.
#[cfg(doctest)]
#[doc = include_str!("../../../docs/RECIPES.md")]
struct Recipes;
