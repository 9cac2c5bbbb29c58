//! [`Engine`]: a store under measurement, PandoDB or a rival, as the lab sees it.
//!
//! ```text
//!   Opener ──open(directory, setup)──▶ Engine ──session()──▶ Session   one a thread
//!                                        └── figures(), settle(), close()
//! ```
//!
//! The trait is small on purpose: what every ordered embedded store can do, and what each workload needs. An engine
//! that cannot do something says so by name ([`Engine::lacks`]), and the lab prints that instead of a figure.
//!
//! All engines promise the same here: an acknowledged write survives the death of the process, not of the machine
//! ([`pandodb::Durability::Buffered`]); one commit an operation.

use std::collections::BTreeMap;
use std::path::Path;

use serde::{Deserialize, Serialize};

/// What goes wrong in the lab, in words.
pub type Failure = Box<dyn std::error::Error + Send + Sync>;
/// The result of anything in the lab.
pub type Result<T> = std::result::Result<T, Failure>;

/// Which form of a structure is measured; printed with every figure.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Mode {
    /// The best that we can make of the structure.
    #[default]
    Product,
    /// The structure as its source describes it.
    Paper,
}

/// How an engine is to be opened.
#[derive(Clone, Debug)]
pub struct Setup {
    /// Bytes of memory for everything that the engine holds.
    pub memory_budget: usize,
    /// Which form of the structure.
    pub mode: Mode,
    /// Operations on the device must be the same for the same operations on the engine: no background threads, one read
    /// after the other.
    pub deterministic: bool,
}

/// Makes engines.
pub trait Opener: Send + Sync {
    /// The name on the command line and in every figure, such as `rocksdb`.
    fn name(&self) -> String;
    /// The engine, without its index.
    fn engine(&self) -> String {
        self.name()
    }
    /// The index of a PandoDB keyspace; empty for a rival.
    fn index(&self) -> String {
        String::new()
    }
    /// Whether what was acknowledged survives a kill of the process. One of which it does not stands beside the others, and
    /// no ratio is taken to it.
    fn survives_kill(&self) -> bool {
        true
    }
    /// Whether anything survives a close: else it is never closed between workloads, and no cache of it is ever cold.
    fn survives_close(&self) -> bool {
        true
    }
    /// Opens the store in `directory`, which exists; creates it if it holds none.
    ///
    /// # Errors
    /// In the engine's own words.
    fn open(&self, directory: &Path, setup: &Setup) -> Result<Box<dyn Engine>>;
}

/// What a workload may need of an engine, beyond `put`, `get`, `delete` and `scan`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Need {
    /// [`Session::merge_add`], blind or by reading first.
    Merge,
    /// [`Session::delete_range`].
    RangeDelete,
}

/// Figures from inside an engine, by name. The lab prints the difference of counters over a workload, and gauges as
/// they are at its end.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Figures {
    /// Things that only grow: bytes written by cause, blocks read, probes.
    pub counters: BTreeMap<String, u64>,
    /// Things that are: debt, memory by part, levels.
    pub gauges: BTreeMap<String, f64>,
}

/// An open store under measurement. Sessions of several threads use it at once.
pub trait Engine: Send + Sync {
    /// The engine's version and everything that was set, to be printed: (`write_buffer_size`, `64 MiB`).
    fn configuration(&self) -> Vec<(String, String)>;

    /// Why the engine cannot do this; `None` if it can.
    fn lacks(&self, _need: Need) -> Option<&'static str> {
        None
    }

    /// Opens a thread's way in.
    ///
    /// # Errors
    /// In the engine's own words.
    fn session(&self) -> Result<Box<dyn Session + '_>>;

    /// Waits until the engine owes no more background work: memtables written, compactions that are due done.
    /// At once where there is nothing of the kind.
    ///
    /// # Errors
    /// In the engine's own words.
    fn settle(&self) -> Result<()>;

    /// Background work owed, in bytes, where the engine says. Cheap: asked every 100 ms.
    fn debt(&self) -> Option<u64> {
        None
    }

    /// Figures from inside.
    ///
    /// # Errors
    /// In the engine's own words.
    fn figures(&self) -> Result<Figures> {
        Ok(Figures::default())
    }

    /// Bytes that the engine passed to its device since it was opened, as (read, written), where it counts them itself;
    /// else the lab takes what the system counts for the process.
    fn device_bytes(&self) -> Option<(u64, u64)> {
        None
    }

    /// Closes the store; all that was acknowledged is in the files then.
    ///
    /// # Errors
    /// In the engine's own words.
    fn close(self: Box<Self>) -> Result<()>;
}

/// One thread's way into an engine.
pub trait Session {
    /// Gives a key a value. Does not return before the write is acknowledged at the lab's durability.
    ///
    /// # Errors
    /// In the engine's own words, as everywhere below.
    fn put(&mut self, key: &[u8], value: &[u8]) -> Result<()>;

    /// The value of a key, copied into `value`, which is cleared first; whether there is one.
    ///
    /// # Errors
    /// As above.
    fn get(&mut self, key: &[u8], value: &mut Vec<u8>) -> Result<bool>;

    /// Deletes a key.
    ///
    /// # Errors
    /// As above.
    fn delete(&mut self, key: &[u8]) -> Result<()>;

    /// Adds to the little-endian `u64` of a key, 0 if there is none; wrapping. Blind where the engine has merge operators;
    /// else a read and a write that are atomic together.
    ///
    /// # Errors
    /// As above.
    fn merge_add(&mut self, key: &[u8], delta: u64) -> Result<()>;

    /// Deletes all keys of `from..to`.
    ///
    /// # Errors
    /// As above.
    fn delete_range(&mut self, from: &[u8], to: &[u8]) -> Result<()>;

    /// Visits at most `limit` entries from the first key that is at least `from`, in order; how many there were.
    ///
    /// # Errors
    /// As above.
    fn scan(&mut self, from: &[u8], limit: usize, visit: &mut dyn FnMut(&[u8], &[u8])) -> Result<usize>;

    /// Looks several keys up at once; how many there are. One after the other where the engine has nothing better.
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
