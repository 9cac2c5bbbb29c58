//! The reserve: disk space that is kept back, so that deleting works when the disk is full.
//!
//! A file `reserve` occupies space and holds nothing. When a write that only frees, or background work, meets a full
//! disk, the file is cut to nothing and the work goes on in its space. A checkpoint that finds room fills it again.

use std::sync::Arc;

use crate::base::sync::{AtomicBool, AtomicU64, Mutex, Ordering::Relaxed};
use crate::base::{Error, Result};
use crate::device::{Device, File, OpenHow};

/// The name of the file.
pub(crate) const RESERVE_FILE: &str = "reserve";
/// The reserve of a small store.
const MIN_RESERVE: u64 = 1 << 20;

pub(crate) struct Reserve {
    file: Mutex<Option<Arc<dyn File>>>,
    held: AtomicU64,
    lent: AtomicBool,
    /// The most that is kept back.
    limit: u64,
}

impl Reserve {
    /// Opens the reserve of a store, creating the file if it is missing.
    pub(crate) fn open(device: &dyn Device, limit: u64) -> Result<Reserve> {
        let fail = |op: &'static str| move |e: std::io::Error| Error::io(op, RESERVE_FILE, None, &e);
        let names = device.list().map_err(fail("list"))?;
        let create_new = !names.iter().any(|name| name == RESERVE_FILE);
        let file = device
            .open(RESERVE_FILE, OpenHow { write: true, create_new, ..OpenHow::default() })
            .map_err(fail("open"))?;
        let held = file.len().map_err(fail("stat"))?;
        Ok(Reserve { file: Mutex::new(Some(file)), held: AtomicU64::new(held), lent: AtomicBool::new(false), limit })
    }

    /// No reserve: a store that is only read.
    pub(crate) fn none() -> Reserve {
        Reserve { file: Mutex::new(None), held: AtomicU64::new(0), lent: AtomicBool::new(false), limit: 0 }
    }

    /// Bytes kept back now.
    pub(crate) fn bytes(&self) -> u64 {
        self.held.load(Relaxed)
    }

    /// Lets go of everything. Whether there was anything.
    pub(crate) fn release(&self) -> Result<bool> {
        let file = self.file.lock();
        let Some(file) = file.as_ref().filter(|_| self.bytes() > 0) else { return Ok(false) };
        file.set_len(0).map_err(|e| Error::io("truncate", RESERVE_FILE, None, &e))?;
        self.held.store(0, Relaxed);
        self.lent.store(true, Relaxed);
        Ok(true)
    }

    /// Whether it was let go, for work that frees space, and is not filled again: other writes must wait, or they would take
    /// the space that freeing needs.
    pub(crate) fn is_lent(&self) -> bool {
        self.lent.load(Relaxed)
    }

    /// Keeps back an eighth of what the store occupies, between 1 MiB and the limit. A full disk is no failure: the next
    /// checkpoint tries again.
    pub(crate) fn refill(&self, store_bytes: u64) {
        let want = (store_bytes / 8).max(MIN_RESERVE).min(self.limit);
        let file = self.file.lock();
        let held = self.bytes();
        let Some(file) = file.as_ref().filter(|_| want > held) else { return };
        if file.allocate(held, want - held).is_ok() {
            self.held.store(want, Relaxed);
            self.lent.store(false, Relaxed);
        } else {
            // What a failed allocation kept all the same is given back; a file that cannot be cut is cut by `release`.
            let _ = file.set_len(held);
        }
    }
}
