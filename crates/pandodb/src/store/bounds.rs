//! The bounds of a store's settings. Opening checks the bounds before it opens any file.
//!
//! A setting out of bounds causes an error that names the setting, its value and its bounds. The setting is never
//! silently replaced, and the process does not abort for lack of memory.
//!
//! | setting | from | to |
//! | --- | --- | --- |
//! | `memory_budget` | 1 MiB | the memory of the machine, or of what the process may map (`ulimit -v`) |
//! | `memtable_bytes` | 4 KiB | the memory budget |
//! | `row_cache_bytes` | 0 | a quarter of the memory budget |
//! | `segment_bytes` | 8 KiB, whole pages | 16 GiB |
//! | `reserve_bytes` | 0 | 1 TiB |
//! | `background_threads` | 0 | 64 |
//! | `log_streams` | 1 | 16 |
//!
//! The options of the default index are checked against the bounds that the index type declares
//! ([`crate::index::options`]).
//!
//! A store allocates a small part of its budget when it opens, and the rest when it is used. The check allocates the
//! part that is needed for opening, and frees it again ([`probe`]). If the system denies this memory, the opening fails
//! with an error. The memory limits of a container are not checked. These limits may change while the store is open,
//! and the system enforces them only by killing a process.

use std::fmt::Display;
use std::ops::RangeInclusive;

use super::config::{Config, MIN_BUDGET, MIN_MEMTABLE};
use crate::base::{Error, PAGE, Result};
use crate::device::most_memory;
use crate::wal::{MAX_STREAMS, SEGMENT_BYTES};

/// The maximum reserve, in bytes.
const MAX_RESERVE: u64 = 1 << 40;
/// An opening allocates less than 1/AT_ONCE of the budget. This memory holds the hash chains of the pool, the records
/// of evicted keys, and the tables of the row cache.
const AT_ONCE: usize = 32;

fn bounded<T: PartialOrd + Display>(setting: &str, value: T, bounds: RangeInclusive<T>, words: &str) -> Result<()> {
    if bounds.contains(&value) {
        return Ok(());
    }
    let (least, most) = bounds.into_inner();
    Err(Error::invalid(format!("`{setting}` is {value}; it must be from {least} to {most}{words}")))
}

impl Config {
    /// Checks all settings.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] with the setting, its value and its bounds.
    pub(super) fn check(&self) -> Result<()> {
        let budget = self.memory_budget;
        bounded("memory_budget", budget, MIN_BUDGET..=most_memory(), " bytes, the memory that this process may use")?;
        let memtable = self.memtable_bytes.unwrap_or(MIN_MEMTABLE);
        bounded("memtable_bytes", memtable, MIN_MEMTABLE..=budget, " bytes, the memory budget")?;
        let rows = self.row_cache_bytes.unwrap_or(0);
        bounded("row_cache_bytes", rows, 0..=budget / 4, " bytes, a quarter of the memory budget")?;
        let transactions = self.transaction_bytes();
        bounded("transaction_bytes", transactions, 0..=budget / 2, " bytes, half of the memory budget")?;
        bounded("segment_bytes", self.segment(), SEGMENT_BYTES, " bytes")?;
        if !self.segment().is_multiple_of(PAGE as u64) {
            return Err(Error::invalid(format!(
                "`segment_bytes` is {}; it must be a multiple of {PAGE}",
                self.segment()
            )));
        }
        bounded("reserve_bytes", self.reserve_bytes.unwrap_or(0), 0..=MAX_RESERVE, " bytes")?;
        bounded("background_threads", self.background_threads, 0..=64, "")?;
        bounded("log_streams", self.streams(), 1..=MAX_STREAMS, "")?;
        self.index_options(None).check()?;
        assert!(self.unit() <= budget, "a unit of {} bytes fits into the budget", self.unit());
        assert!(self.pool() + self.rows() <= budget, "the pool and the row cache fit into the budget together");
        probe(budget / AT_ONCE)
    }
}

/// Allocates the memory that an opening needs, and frees it.
fn probe(bytes: usize) -> Result<()> {
    Vec::<u8>::new().try_reserve_exact(bytes).map_err(|e| {
        let detail =
            format!("`memory_budget`: an opening needs {bytes} bytes of it at once, and the system denies them ({e})");
        Error::invalid(format!("{detail}; choose a smaller budget, or raise the memory limit (`ulimit -v`)"))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_that_the_system_does_not_have_is_an_error() {
        assert!(probe(1 << 20).is_ok());
        let error = probe(isize::MAX as usize).unwrap_err().to_string();
        assert!(error.contains("memory_budget") && error.contains("ulimit"), "{error}");
    }
}
