//! Adapters that implement the lab's trait for other stores, so that all stores run with the same workloads, the same
//! durability and the same memory.
//!
//! ```text
//!   rivals() ──▶ Rival { opener, promise } ──▶ pandodb_lab::engine::{Engine, Session}     PandoDB first, then
//!                  └── one for each cargo feature: rocksdb (five engines), lmdb (two), leveldb, wiredtiger, redb,
//!                      fjall (four), bf-tree, btreemap
//! ```
//!
//! Every adapter configures its store as an expert of the store would do. Each operation is one commit that survives a
//! kill of the process, and the store stays within [`pandodb_lab::engine::Setup::memory_budget`]. `docs/RIVALS.md`
//! gives the settings and the reasons. The [`Promise`] of a store states the guarantees of the store. Conformance tests
//! check that the store gives exactly these guarantees.
//!
//! `unsafe` code is only in `ffi`, and in the function that maps LMDB's file.
#![warn(missing_docs)]

use pandodb::{IndexKind, IndexOptions};
use pandodb_lab::engine::{Mode, Opener, Result, Rows, Setup};
use pandodb_lab::pando::Pando;

pub mod cgroup;
pub mod resume;

#[cfg(feature = "bf-tree")]
pub mod bf_tree;
#[cfg(feature = "btreemap")]
pub mod btreemap;
#[cfg(any(feature = "leveldb", feature = "wiredtiger"))]
#[allow(unsafe_code)]
mod ffi;
#[cfg(feature = "fjall")]
pub mod fjall;
#[cfg(feature = "leveldb")]
pub mod leveldb;
#[cfg(feature = "lmdb")]
pub mod lmdb;
#[cfg(feature = "redb")]
pub mod redb;
#[cfg(feature = "rocksdb")]
pub mod rocksdb;
#[cfg(any(feature = "leveldb", feature = "fjall", feature = "bf-tree"))]
mod stripes;
#[cfg(feature = "wiredtiger")]
pub mod wiredtiger;

/// The durability of a store, and the sizes of keys and values that the store accepts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Promise {
    /// Whether acknowledged writes survive a close and an open.
    pub survives_close: bool,
    /// Whether acknowledged writes survive a kill of the process.
    pub survives_kill: bool,
    /// Whether values may be empty.
    pub empty_values: bool,
    /// The maximum length of a key in bytes.
    pub longest_key: usize,
    /// The maximum length of a value in bytes.
    pub longest_value: usize,
    /// Whether the store has background threads.
    pub background_threads: bool,
}

impl Promise {
    /// The promise that the lab requires.
    pub const FULL: Self = Self {
        survives_close: true,
        survives_kill: true,
        empty_values: true,
        longest_key: 65_535,
        longest_value: 1 << 30,
        background_threads: true,
    };
}

/// A store and its promise.
pub struct Rival {
    /// Opens the store.
    pub opener: Box<dyn Opener>,
    /// The durability and the limits of the store.
    pub promise: Promise,
}

/// All engines that are compiled in.
pub fn rivals() -> Vec<Rival> {
    IndexKind::all().map(|kind| pando(kind.into())).chain(others()).collect()
}

/// PandoDB with an index.
fn pando(index: IndexOptions) -> Rival {
    Rival { opener: Box::new(Pando::new(index)), promise: Promise::FULL }
}

/// The engines other than PandoDB.
fn others() -> Vec<Rival> {
    vec![
        #[cfg(feature = "rocksdb")]
        Rival { opener: Box::new(rocksdb::Rocks::level()), promise: Promise::FULL },
        #[cfg(feature = "rocksdb")]
        Rival { opener: Box::new(rocksdb::Rocks::universal()), promise: Promise::FULL },
        #[cfg(feature = "rocksdb")]
        Rival { opener: Box::new(rocksdb::Rocks::blobs()), promise: Promise::FULL },
        #[cfg(feature = "rocksdb")]
        Rival { opener: Box::new(rocksdb::OptimisticRocks), promise: Promise::FULL },
        #[cfg(feature = "rocksdb")]
        Rival { opener: Box::new(rocksdb::PessimisticRocks), promise: Promise::FULL },
        #[cfg(feature = "lmdb")]
        Rival { opener: Box::new(lmdb::Lmdb { write_map: false }), promise: lmdb::PROMISE },
        #[cfg(feature = "lmdb")]
        Rival { opener: Box::new(lmdb::Lmdb { write_map: true }), promise: lmdb::PROMISE },
        #[cfg(feature = "leveldb")]
        Rival { opener: Box::new(leveldb::Level), promise: Promise::FULL },
        #[cfg(feature = "wiredtiger")]
        Rival { opener: Box::new(wiredtiger::Wired), promise: Promise::FULL },
        #[cfg(feature = "redb")]
        Rival { opener: Box::new(redb::Redb), promise: redb::PROMISE },
        #[cfg(feature = "fjall")]
        Rival { opener: Box::new(fjall::Fjall { separates: false }), promise: Promise::FULL },
        #[cfg(feature = "fjall")]
        Rival { opener: Box::new(fjall::Fjall { separates: true }), promise: Promise::FULL },
        #[cfg(feature = "fjall")]
        Rival { opener: Box::new(fjall::FjallTransactions { single_writer: false }), promise: Promise::FULL },
        #[cfg(feature = "fjall")]
        Rival { opener: Box::new(fjall::FjallTransactions { single_writer: true }), promise: Promise::FULL },
        #[cfg(feature = "bf-tree")]
        Rival { opener: Box::new(bf_tree::Bf), promise: bf_tree::PROMISE },
        #[cfg(feature = "btreemap")]
        Rival { opener: Box::new(btreemap::Map), promise: btreemap::PROMISE },
    ]
}

/// Returns the engine with this name, if it is compiled in. The name of PandoDB is `pando-`, and then an index with any
/// options that differ from the defaults, such as `pando-btree:page_kib=4`.
pub fn rival(name: &str) -> Option<Rival> {
    match name.strip_prefix("pando-") {
        Some(index) => index.parse().ok().map(pando),
        None => others().into_iter().find(|rival| rival.opener.name() == name),
    }
}

/// The minimum memory budget in bytes. With this budget, every store can allocate its minimum of buffers.
pub const LEAST_BUDGET: usize = 16 << 20;

/// Returns an error for a setup that a rival does not support: paper mode, deterministic operation of a store with
/// background threads, or a budget below [`LEAST_BUDGET`].
#[allow(dead_code, reason = "without any feature there is no adapter")]
fn admit(name: &str, setup: &Setup, promise: Promise) -> Result<()> {
    if setup.mode == Mode::Paper {
        return Err(format!("{name} has no paper mode; only PandoDB has one").into());
    }
    if setup.deterministic && promise.background_threads {
        return Err(format!("{name} has background threads, so it cannot run deterministically").into());
    }
    if setup.memory_budget < LEAST_BUDGET {
        return Err(format!("{name} needs a memory budget of at least {}", size(LEAST_BUDGET)).into());
    }
    Ok(())
}

/// The error of a write in a transaction with [`pandodb_lab::transactions::Access::Read`].
#[allow(dead_code, reason = "some engines have no transactions that only read")]
const READ_ONLY: &str = "a transaction that was begun for reading has tried to write";

/// Formats a size, such as `64 MiB`.
pub fn size(bytes: usize) -> String {
    for (unit, shift) in [("GiB", 30), ("MiB", 20), ("KiB", 10)] {
        if bytes >= 1 << shift && bytes.is_multiple_of(1 << shift) {
            return format!("{} {unit}", bytes >> shift);
        }
    }
    format!("{bytes} B")
}

/// Converts settings to the form that the lab prints.
#[allow(dead_code, reason = "without any feature there is no adapter")]
fn settings<const N: usize>(pairs: [(&str, String); N]) -> Vec<(String, String)> {
    pairs.into_iter().map(|(name, value)| (name.to_owned(), value)).collect()
}

/// Passes at most `limit` rows of a sorted load to `put`, and adds their number to `loaded`. Returns whether more rows may
/// follow.
#[allow(dead_code, reason = "some adapters need no transactions for a sorted load")]
fn fill(
    rows: &mut Rows,
    limit: usize,
    loaded: &mut u64,
    mut put: impl FnMut(&[u8], &[u8]) -> Result<()>,
) -> Result<bool> {
    let (mut key, mut value) = (Vec::new(), Vec::new());
    for _ in 0..limit {
        if !rows(&mut key, &mut value) {
            return Ok(false);
        }
        put(&key, &value)?;
        *loaded += 1;
    }
    Ok(true)
}

/// The sum of a counter and a delta, which wraps around on overflow.
#[allow(dead_code, reason = "some adapters use a merge operator instead")]
fn add(counter: Option<&[u8]>, delta: u64) -> Result<[u8; 8]> {
    let Some(bytes) = counter else { return Ok(delta.to_le_bytes()) };
    let bytes: [u8; 8] =
        bytes.try_into().map_err(|_| format!("the value is not a counter: it has {} bytes, not 8", bytes.len()))?;
    Ok(u64::from_le_bytes(bytes).wrapping_add(delta).to_le_bytes())
}

#[cfg(test)]
mod tests {
    #[test]
    fn sizes_are_printed_with_units() {
        assert_eq!(super::size(64 << 20), "64 MiB");
        assert_eq!(super::size(3 << 29), "1536 MiB");
        assert_eq!(super::size(1000), "1000 B");
    }

    #[test]
    fn names_are_unique() {
        let mut names: Vec<_> = super::rivals().iter().map(|r| r.opener.name()).collect();
        let count = names.len();
        names.sort();
        names.dedup();
        assert_eq!(names.len(), count);
    }
}
