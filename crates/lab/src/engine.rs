//! [`Engine`]: the interface between the lab and a measured store (PandoDB or a rival).
//!
//! ```text
//!   Opener ──open(directory, setup)──▶ Engine ──session()──▶ Session   one a thread
//!                                        └── figures(), settle(), close()
//! ```
//!
//! The trait has only operations that workloads need and that ordered embedded stores offer. If an engine lacks an
//! operation, [`Engine::lacks`] returns the reason, and the lab prints the reason instead of a result.
//!
//! The durability is the same for all engines: an acknowledged write survives a crash of the process, but may be lost
//! in a crash of the machine ([`pandodb::Durability::Buffered`]). Each operation is one commit.

use std::collections::BTreeMap;
use std::path::Path;

use serde::{Deserialize, Serialize};

pub use crate::failure::{Failure, Result};
use crate::transactions::{Access, Attempts, Capability, Verdict, Work};

/// The mode of the measured index, which is printed with every result.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Mode {
    /// The index with all of PandoDB's improvements.
    #[default]
    Product,
    /// The index as its source describes it.
    Paper,
}

/// Settings for opening an engine.
#[derive(Clone, Debug)]
pub struct Setup {
    /// The memory budget of the engine in bytes, for all its data in memory.
    pub memory_budget: usize,
    /// The mode of the index.
    pub mode: Mode,
    /// Whether the same operations on the engine must always cause the same operations on the device. If so, the engine
    /// uses no background threads and no concurrent reads.
    pub deterministic: bool,
}

/// Opens the stores of one engine.
pub trait Opener: Send + Sync {
    /// The name on the command line and in results, such as `rocksdb`.
    fn name(&self) -> String;
    /// The name of the engine without its index.
    fn engine(&self) -> String {
        self.name()
    }
    /// The index of a PandoDB keyspace; empty for a rival.
    fn index(&self) -> String {
        String::new()
    }
    /// Whether acknowledged writes survive a kill of the process. If not, the report lists the engine, but computes no
    /// ratio of another engine's rate to the rate of this engine.
    fn survives_kill(&self) -> bool {
        true
    }
    /// Whether data survives a close. If not, the lab does not close the engine between workloads, so the caches of the
    /// engine are never cold.
    fn survives_close(&self) -> bool {
        true
    }
    /// Opens the store in the existing directory `directory`, or creates the store if the directory has none.
    ///
    /// # Errors
    /// The engine's error.
    fn open(&self, directory: &Path, setup: &Setup) -> Result<Box<dyn Engine>>;
}

/// Operations besides `put`, `get`, `delete` and `scan` that a workload may need.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Need {
    /// [`Session::merge_add`], with or without reading the old value.
    Merge,
    /// [`Session::delete_range`].
    RangeDelete,
    /// [`Session::scan_back`].
    ReverseScan,
    /// [`Session::write_batch`].
    Batch,
    /// [`Session::load_sorted`].
    SortedLoad,
    /// [`Session::transact`].
    Transactions,
}

/// One write of a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Write<'a> {
    /// Sets the value of a key.
    Put(&'a [u8], &'a [u8]),
    /// Deletes a key.
    Delete(&'a [u8]),
}

impl Write<'_> {
    /// Bytes of the key and the value.
    pub fn bytes(&self) -> u64 {
        match self {
            Write::Put(key, value) => (key.len() + value.len()) as u64,
            Write::Delete(key) => key.len() as u64,
        }
    }
}

/// A source of rows in ascending order of their keys: replaces the contents of the two buffers by the next key and its
/// value, or returns `false` if there is no further row.
pub type Rows<'a> = dyn FnMut(&mut Vec<u8>, &mut Vec<u8>) -> bool + 'a;

/// Internal figures of an engine, by name. The lab prints the increase of each counter over a workload, and the value
/// of each gauge at the end of the workload.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Figures {
    /// Counters, whose values only grow: the bytes written for each cause, the numbers of blocks read and of probes.
    pub counters: BTreeMap<String, u64>,
    /// Gauges, which are current values: the debt, the memory of each part of the engine, the number of levels.
    pub gauges: BTreeMap<String, f64>,
}

/// An open store that is measured. Several threads use the store concurrently, each with its own session.
pub trait Engine: Send + Sync {
    /// The engine's version and all settings, for printing: (`write_buffer_size`, `64 MiB`).
    fn configuration(&self) -> Vec<(String, String)>;

    /// The reason why the engine lacks an operation, or `None` if the engine has the operation.
    /// By default, an engine has merges and range deletes, and none of the operations whose methods in [`Session`] have a
    /// default.
    fn lacks(&self, need: Need) -> Option<&'static str> {
        match need {
            Need::Merge | Need::RangeDelete => None,
            Need::ReverseScan => Some(NO_REVERSE_SCAN),
            Need::Batch => Some(NO_BATCH),
            Need::SortedLoad => Some(NO_SORTED_LOAD),
            Need::Transactions => Some(NO_TRANSACTIONS).filter(|_| self.transactions().is_none()),
        }
    }

    /// The properties of the engine's transactions, if the engine has transactions.
    fn transactions(&self) -> Option<Capability> {
        None
    }

    /// The greatest lengths of a key and of a value in bytes.
    fn longest(&self) -> (usize, usize) {
        (usize::MAX, usize::MAX)
    }

    /// Opens a session for one thread.
    ///
    /// # Errors
    /// The engine's error.
    fn session(&self) -> Result<Box<dyn Session + '_>>;

    /// Waits until all background work is done: memtables are written, and no compaction is needed. Returns at once if
    /// the engine has no background work.
    ///
    /// # Errors
    /// The engine's error.
    fn settle(&self) -> Result<()>;

    /// Bytes of pending background work, if the engine reports them. This function must be cheap, because the lab calls
    /// it every 100 ms.
    fn debt(&self) -> Option<u64> {
        None
    }

    /// The internal figures.
    ///
    /// # Errors
    /// The engine's error.
    fn figures(&self) -> Result<Figures> {
        Ok(Figures::default())
    }

    /// The numbers of bytes read and written on the device since the store was opened, if the engine counts these
    /// bytes. Otherwise the lab uses the operating system's counters for the process.
    fn device_bytes(&self) -> Option<(u64, u64)> {
        None
    }

    /// Closes the store. When this function returns, all acknowledged writes are in the files of the store.
    ///
    /// # Errors
    /// The engine's error.
    fn close(self: Box<Self>) -> Result<()>;
}

/// The reason for an engine without reverse scans.
pub const NO_REVERSE_SCAN: &str = "the adapter has no reverse scans";
/// The reason for an engine without batches.
pub const NO_BATCH: &str = "the adapter has no atomic batches";
/// The reason for an engine without a bulk interface.
pub const NO_SORTED_LOAD: &str = "the adapter has no bulk loading of sorted rows";
/// The reason for an engine without transactions.
pub const NO_TRANSACTIONS: &str = "the engine has no transactions that read and write several keys";

/// A session: the access of one thread to an engine.
pub trait Session {
    /// Sets the value of a key. Returns when the write is acknowledged with the lab's durability.
    ///
    /// # Errors
    /// The engine's error.
    fn put(&mut self, key: &[u8], value: &[u8]) -> Result<()>;

    /// Clears `value` and copies the value of a key into it. Returns whether the key exists.
    ///
    /// # Errors
    /// The engine's error.
    fn get(&mut self, key: &[u8], value: &mut Vec<u8>) -> Result<bool>;

    /// Deletes a key.
    ///
    /// # Errors
    /// The engine's error.
    fn delete(&mut self, key: &[u8]) -> Result<()>;

    /// Adds a number to the value of a key, which is a little-endian `u64`. The sum wraps around on overflow. An absent
    /// key counts as 0. Uses a merge operator if the engine has one, otherwise an atomic read-modify-write.
    ///
    /// # Errors
    /// The engine's error.
    fn merge_add(&mut self, key: &[u8], delta: u64) -> Result<()>;

    /// Deletes all keys in the range `from..to`.
    ///
    /// # Errors
    /// The engine's error.
    fn delete_range(&mut self, from: &[u8], to: &[u8]) -> Result<()>;

    /// Visits at most `limit` entries in key order, from the first key that is at least `from`. Returns the number of
    /// visited entries.
    ///
    /// # Errors
    /// The engine's error.
    fn scan(&mut self, from: &[u8], limit: usize, visit: &mut dyn FnMut(&[u8], &[u8])) -> Result<usize>;

    /// Visits at most `limit` entries in descending key order, from the last key that is at most `from`. Returns the number
    /// of visited entries.
    ///
    /// # Errors
    /// The engine's error. The default reports that the operation is not supported.
    fn scan_back(&mut self, _from: &[u8], _limit: usize, _visit: &mut dyn FnMut(&[u8], &[u8])) -> Result<usize> {
        Err(NO_REVERSE_SCAN.into())
    }

    /// Commits several writes of different keys as one atomic write, with the lab's durability.
    ///
    /// # Errors
    /// The engine's error. The default reports that the operation is not supported.
    fn write_batch(&mut self, _writes: &[Write]) -> Result<()> {
        Err(NO_BATCH.into())
    }

    /// Loads rows, whose keys ascend and are above all keys of the store, with the engine's interface for bulk loading.
    /// When this method returns, the rows are readable and survive a kill of the process. Returns the number of rows.
    ///
    /// # Errors
    /// The engine's error. The default reports that the operation is not supported.
    fn load_sorted(&mut self, _rows: &mut Rows) -> Result<u64> {
        Err(NO_SORTED_LOAD.into())
    }

    /// Looks up several keys and returns the number of keys found. If the engine has no batched lookup, looks up one
    /// key after the other.
    ///
    /// # Errors
    /// The engine's error.
    fn multi_get(&mut self, keys: &[Vec<u8>], visit: &mut dyn FnMut(usize, &[u8])) -> Result<usize> {
        let (mut value, mut found) = (Vec::new(), 0);
        for (i, key) in keys.iter().enumerate() {
            if self.get(key, &mut value)? {
                visit(i, &value);
                found += 1;
            }
        }
        Ok(found)
    }

    /// Runs `work` in one transaction with the lab's durability, again as long as the transaction conflicts with others.
    ///
    /// # Errors
    /// The error of `work`, or the engine's error. The default reports that the operation is not supported.
    fn transact(&mut self, _access: Access, _work: &mut Work) -> Result<Attempts> {
        Err(NO_TRANSACTIONS.into())
    }

    /// Replaces the value of one key by a function of it. `change` gets the value, which is empty if the key is absent,
    /// and modifies it. `change` may run several times. The default is a transaction of a get and a put.
    ///
    /// # Errors
    /// The engine's error.
    fn fetch_update(&mut self, key: &[u8], change: &mut dyn FnMut(&mut Vec<u8>)) -> Result<Attempts> {
        let mut value = Vec::new();
        self.transact(Access::Write, &mut |tx| {
            tx.get_for_update(key, &mut value)?;
            change(&mut value);
            tx.put(key, &value)?;
            Ok(Verdict::Commit)
        })
    }
}
