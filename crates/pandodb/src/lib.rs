//! PandoDB (work in progress: the face is written last).
#![forbid(unsafe_code)]

pub mod base;
pub mod check;
pub mod device;
pub mod filter;
pub mod index;
pub mod memtable;
pub mod pool;
pub mod resolve;
pub mod run;
pub mod sched;
pub mod space;
pub mod store;
pub mod wal;

pub use base::{Error, KeyRange, Result};
pub use index::{Debt, Estimate, IndexStats};
pub use resolve::{AddI64, AddU64, Append, BitOr, Max, MergeOperator, Min, PutIfAbsent};
pub use store::{
    BackupReport, Batch, BytesByCause, Durability, IndexKind, Keyspace, KeyspaceAt, KeyspaceInfo, KeyspaceOptions,
    KeyspaceStats, Latency, MemoryStats, Range, Snapshot, Store, StoreBuilder, StoreStats, Value,
};
