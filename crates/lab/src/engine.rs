//! [`Engine`]: the interface between the lab and a store under measurement, PandoDB or a rival.
//!
//! ```text
//!   Opener ──open(directory, setup)──▶ Engine ──session()──▶ Session   one a thread
//!                                        └── figures(), settle(), close()
//! ```
//!
//! The trait has only operations that workloads need and that ordered embedded stores offer. If an engine lacks an
//! operation, [`Engine::lacks`] returns the reason, and the lab prints it instead of a result.
//!
//! The durability is the same for all engines: an acknowledged write survives the death of the process, not of the
//! machine ([`pandodb::Durability::Buffered`]). Each operation is one commit.

use std::collections::BTreeMap;
use std::path::Path;

use serde::{Deserialize, Serialize};

/// An error of the lab.
pub type Failure = Box<dyn std::error::Error + Send + Sync>;
/// The result of a function of the lab.
pub type Result<T> = std::result::Result<T, Failure>;

/// The form of an index that is measured; printed with every result.
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
    /// Bytes of memory for everything that the engine holds.
    pub memory_budget: usize,
    /// The form of the index.
    pub mode: Mode,
    /// The same operations on the engine must cause the same operations on the device. So there are no background
    /// threads and no concurrent reads.
    pub deterministic: bool,
}

/// Opens engines.
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
    /// Whether acknowledged writes survive a kill of the process. If not, the engine is listed, but no ratio to it is
    /// computed.
    fn survives_kill(&self) -> bool {
        true
    }
    /// Whether data survives a close. If not, the engine is not closed between workloads, so its caches are never cold.
    fn survives_close(&self) -> bool {
        true
    }
    /// Opens the store in the existing directory `directory`; creates the store if there is none.
    ///
    /// # Errors
    /// The engine's error.
    fn open(&self, directory: &Path, setup: &Setup) -> Result<Box<dyn Engine>>;
}

/// Operations besides `put`, `get`, `delete` and `scan` that a workload may need.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Need {
    /// [`Session::merge_add`], with or without reading first.
    Merge,
    /// [`Session::delete_range`].
    RangeDelete,
}

/// Internal figures of an engine, by name. The lab prints the increase of counters over a workload, and the values of
/// gauges at its end.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Figures {
    /// Values that only grow: bytes written by cause, blocks read, probes.
    pub counters: BTreeMap<String, u64>,
    /// Current values: debt, memory by part, levels.
    pub gauges: BTreeMap<String, f64>,
}

/// An open store under measurement. Several threads use it concurrently, each with its own session.
pub trait Engine: Send + Sync {
    /// The engine's version and all settings, for printing: (`write_buffer_size`, `64 MiB`).
    fn configuration(&self) -> Vec<(String, String)>;

    /// The reason why the engine lacks an operation; `None` if it has it.
    fn lacks(&self, _need: Need) -> Option<&'static str> {
        None
    }

    /// Opens a session for one thread.
    ///
    /// # Errors
    /// The engine's error.
    fn session(&self) -> Result<Box<dyn Session + '_>>;

    /// Waits until all background work is done: memtables are written and no compaction is due. Returns at once if the
    /// engine has no background work.
    ///
    /// # Errors
    /// The engine's error.
    fn settle(&self) -> Result<()>;

    /// Bytes of pending background work, if the engine reports it. Must be cheap, since it is called every 100 ms.
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

    /// Bytes (read, written) on the device since the store was opened, if the engine counts them. Otherwise the lab
    /// uses the operating system's counters for the process.
    fn device_bytes(&self) -> Option<(u64, u64)> {
        None
    }

    /// Closes the store. All acknowledged writes are in its files afterwards.
    ///
    /// # Errors
    /// The engine's error.
    fn close(self: Box<Self>) -> Result<()>;
}

/// A session: the access of one thread to an engine.
pub trait Session {
    /// Sets the value of a key. Returns when the write is acknowledged with the lab's durability.
    ///
    /// # Errors
    /// The engine's error, as for all functions below.
    fn put(&mut self, key: &[u8], value: &[u8]) -> Result<()>;

    /// Clears `value` and copies the value of a key into it. Returns whether the key exists.
    ///
    /// # Errors
    /// As above.
    fn get(&mut self, key: &[u8], value: &mut Vec<u8>) -> Result<bool>;

    /// Deletes a key.
    ///
    /// # Errors
    /// As above.
    fn delete(&mut self, key: &[u8]) -> Result<()>;

    /// Adds to the little-endian `u64` of a key, wrapping; an absent key counts as 0. Uses a merge operator if the
    /// engine has one, else an atomic read-modify-write.
    ///
    /// # Errors
    /// As above.
    fn merge_add(&mut self, key: &[u8], delta: u64) -> Result<()>;

    /// Deletes all keys of `from..to`.
    ///
    /// # Errors
    /// As above.
    fn delete_range(&mut self, from: &[u8], to: &[u8]) -> Result<()>;

    /// Visits at most `limit` entries in key order, from the first key that is at least `from`. Returns their number.
    ///
    /// # Errors
    /// As above.
    fn scan(&mut self, from: &[u8], limit: usize, visit: &mut dyn FnMut(&[u8], &[u8])) -> Result<usize>;

    /// Looks up several keys and returns the number of keys found; one after the other if the engine has no batched
    /// lookup.
    ///
    /// # Errors
    /// As above.
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
}
