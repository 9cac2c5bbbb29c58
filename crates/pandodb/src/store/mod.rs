//! The store, and the types through which users access it. A store is a directory with keyspaces. This folder combines
//! all layers below it.
//!
//! | files | content |
//! | --- | --- |
//! | `handle`, `keyspace`, `at`, `batch`, `range`, `value`, `snapshot` | the handles through which users read and write |
//! | `builder`, `options`, `config`, `bounds` | settings, the sizes that follow from them, and their limits |
//! | `engine`, `shared` | an open store, made of the parts below; the close of a store |
//! | `writer`, `watermark`, `poison` | the order of writes: seqnos, which commits are complete, failures |
//! | `keyspaces`, `state` | the table of keyspaces and the memory of their memtables; one keyspace |
//! | `folds` | the values of keys with many operands in memtables |
//! | `dead_ranges` | ranges of keys without values, which scans skip |
//! | `checkpointer`, `background`, `pressure`, `reserve`, `access` | further parts: durable root, threads and their failures, full disk, closed and forked stores |
//! | `commit`, `admission`, `direct`, `large_values`, `sealing` | the life of a write |
//! | `load` | sorted loads, which bypass the log and the memtables |
//! | `read`, `scan` | the life of a read |
//! | `txn`, `validation`, `footprints` | transactions, and the check at their commit that nothing they read was changed |
//! | `queues`, `repeat` | order among threads that lost conflicts; how often an operation is tried |
//! | `pops` | taking the first or the last row of a keyspace |
//! | `turns`, `relief`, `threads`, `waiting` | background work, including work on a full disk; calls that wait for background work |
//! | `create`, `catalog`, `checkpoint` | creation and drop of keyspaces; checkpoints |
//! | `open`, `initial`, `found`, `recover`, `replay`, `generations` | from a directory to an open store |
//! | `backup`, `stats`, `tallies`, `roots` | tools |
//!
//! Each module imports only modules that are below it in the layers that `engine` shows. Parts do not depend on each
//! other, and procedures over several parts are methods of `Engine` in a module of their own.
//!
//! Handles ([`Store`], [`Keyspace`], [`Snapshot`]) are cheap clones of an `Arc`. Dropping the last handle closes the
//! store.

mod access;
mod admission;
mod at;
mod background;
mod backup;
mod batch;
mod bounds;
mod builder;
pub mod catalog;
mod checkpoint;
mod checkpointer;
mod commit;
mod config;
mod create;
mod dead_ranges;
mod direct;
pub(crate) mod engine;
mod extents;
mod folds;
#[cfg(test)]
mod folds_tests;
mod footprints;
mod found;
mod generations;
mod handle;
#[cfg(test)]
mod hashed_tests;
mod initial;
mod keyspace;
mod keyspaces;
mod large_values;
pub(crate) mod load;
mod next_keys;
mod open;
mod options;
mod poison;
mod pops;
mod pressure;
mod queues;
mod range;
pub(crate) mod read;
mod recover;
mod relief;
mod repeat;
mod replay;
mod reserve;
pub(crate) mod roots;
mod scan;
mod sealing;
mod shared;
mod snapshot;
pub(crate) mod state;
mod stats;
mod tallies;
mod threads;
mod turns;
mod txn;
mod validation;
mod value;
mod value_reads;
mod waiting;
mod watermark;
mod writer;

pub use self::at::KeyspaceAt;
pub use self::backup::BackupReport;
pub use self::batch::{Batch, MAX_BATCH};
pub use self::builder::StoreBuilder;
pub(crate) use self::builder::open_directory;
pub use self::handle::{KeyspaceInfo, Store};
pub use self::keyspace::Keyspace;
pub use self::options::{Durability, KeyspaceOptions};
pub use self::range::{Keys, Range};
pub use self::snapshot::Snapshot;
pub use self::stats::{BytesByCause, KeyspaceStats, MemoryStats, StoreStats, TransactionStats};
pub use self::tallies::Latency;
pub use self::txn::{Isolation, Mismatch, Savepoint, Transaction, TransactionOptions, Untracked};
pub use self::value::Value;
