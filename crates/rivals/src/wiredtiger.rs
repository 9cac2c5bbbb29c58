//! The adapter of WiredTiger, which uses a shim in C.
//!
//! Each commit writes its log record to the page cache (`transaction_sync=(enabled=true,method=none)`). With the
//! default, `enabled=false`, commits stay in a buffer of the process, and a kill of the process loses them. The shim
//! retries updates that fail with a conflict under snapshot isolation, as every program that uses WiredTiger must do.

use std::path::Path;

use pandodb_lab::engine::{Engine, Figures, Need, Opener, Result, Session, Setup, Write};
use pandodb_lab::transactions::{Access, Attempts, Capability, Isolation, Scheme, Transaction, Work, retry, sum};

use crate::ffi::wiredtiger::{self as ffi, Connection, FIGURES};
use crate::{Promise, admit, settings, size};

const TABLE: &str = "key_format=u,value_format=u,type=file,leaf_page_max=8KB,internal_page_max=4KB,\
                     memory_page_max=2MB,split_pct=90,checksum=on";

/// Opens WiredTiger.
pub struct Wired;

/// The parts of the memory budget, in bytes.
#[derive(Clone, Copy)]
struct Shares {
    cache: usize,
    log_file: usize,
}

/// The number of buffers in the ring of the log. Each buffer has the size of a tenth of a log file, but at most 256
/// KiB. WiredTiger uses the buffers one after the other, so all buffers stay resident. They take 32 MiB for log files
/// of the default size.
const LOG_SLOTS: usize = 128;
const LOG_SLOT_MOST: usize = 256 << 10;

impl Shares {
    /// The cache gets the budget without the buffers of the log, and without an eighth for sessions, the connection and
    /// the allocator. (Within the cache, the library reserves another 8 % for these three.)
    fn of(budget: usize) -> Self {
        let log = (budget / 8).min(LOG_SLOTS * LOG_SLOT_MOST);
        let log_file = if log == LOG_SLOTS * LOG_SLOT_MOST { 128 << 20 } else { log / LOG_SLOTS * 10 };
        Self { cache: budget - log - budget / 8, log_file }
    }
}

fn connection(Shares { cache, log_file }: Shares) -> String {
    format!(
        "create,cache_size={cache},session_max=256,eviction=(threads_min=1,threads_max=2),\
         checkpoint=(wait=60,log_size=1GB),log=(enabled=true,file_max={log_file},archive=true,recover=on),\
         transaction_sync=(enabled=true,method=none),statistics=(fast)"
    )
}

impl Opener for Wired {
    fn name(&self) -> String {
        "wiredtiger".into()
    }

    fn open(&self, directory: &Path, setup: &Setup) -> Result<Box<dyn Engine>> {
        admit("wiredtiger", setup, Promise::FULL)?;
        let shares = Shares::of(setup.memory_budget);
        Ok(Box::new(Store { connection: Connection::open(directory, &connection(shares), TABLE)?, shares }))
    }
}

struct Store {
    connection: Connection,
    shares: Shares,
}

impl Engine for Store {
    fn configuration(&self) -> Vec<(String, String)> {
        settings([
            ("engine", ffi::version()),
            ("durability", "log on, written to the page cache at each commit, not synced".into()),
            ("cache_size", size(self.shares.cache)),
            ("connection", connection(self.shares)),
            ("table", TABLE.into()),
            ("compression", "none".into()),
            ("isolation", "snapshot; lost conflicts are tried again".into()),
            ("merge", "read and write in a transaction".into()),
        ])
    }

    fn lacks(&self, need: Need) -> Option<&'static str> {
        (need == Need::SortedLoad).then_some("a bulk cursor of WiredTiger needs a table that no session has open")
    }

    fn transactions(&self) -> Option<Capability> {
        Some(Capability { isolation: Isolation::Snapshot, scheme: Scheme::Optimistic, merges: false })
    }

    fn session(&self) -> Result<Box<dyn Session + '_>> {
        Ok(Box::new(Handle(self.connection.session()?)))
    }

    fn settle(&self) -> Result<()> {
        self.connection.checkpoint()
    }

    fn debt(&self) -> Option<u64> {
        let figures = self.connection.figures().ok()?;
        let dirty = FIGURES.iter().position(|&name| name == "cache_bytes_dirty")?;
        u64::try_from(figures[dirty]).ok()
    }

    fn figures(&self) -> Result<Figures> {
        let mut figures = Figures::default();
        for (name, value) in FIGURES.into_iter().zip(self.connection.figures()?) {
            if name.starts_with("cache") {
                figures.gauges.insert(name.into(), value as f64);
            } else {
                figures.counters.insert(name.into(), u64::try_from(value)?);
            }
        }
        Ok(figures)
    }

    fn close(self: Box<Self>) -> Result<()> {
        self.connection.close()
    }
}

struct Handle<'a>(ffi::Session<'a>);

impl Session for Handle<'_> {
    fn put(&mut self, key: &[u8], value: &[u8]) -> Result<()> {
        self.0.put(key, value)
    }

    fn get(&mut self, key: &[u8], value: &mut Vec<u8>) -> Result<bool> {
        value.clear();
        self.0.get(key, |found| value.extend_from_slice(found))
    }

    fn delete(&mut self, key: &[u8]) -> Result<()> {
        self.0.delete(key)
    }

    fn merge_add(&mut self, key: &[u8], delta: u64) -> Result<()> {
        self.0.add(key, delta)
    }

    fn delete_range(&mut self, from: &[u8], to: &[u8]) -> Result<()> {
        if from < to { self.0.delete_range(from, to) } else { Ok(()) }
    }

    fn scan(&mut self, from: &[u8], limit: usize, visit: &mut dyn FnMut(&[u8], &[u8])) -> Result<usize> {
        self.0.scan(from, limit, visit)
    }

    fn scan_back(&mut self, from: &[u8], limit: usize, visit: &mut dyn FnMut(&[u8], &[u8])) -> Result<usize> {
        self.0.scan_back(from, limit, visit)
    }

    fn write_batch(&mut self, writes: &[Write]) -> Result<()> {
        self.0.write(writes)
    }

    fn transact(&mut self, _access: Access, work: &mut Work) -> Result<Attempts> {
        retry(|| self.0.transact(|session| work(&mut Open(session))))
    }
}

/// An open transaction of a session.
struct Open<'a, 'b>(&'a mut ffi::Session<'b>);

impl Transaction for Open<'_, '_> {
    fn get(&mut self, key: &[u8], value: &mut Vec<u8>) -> Result<bool> {
        value.clear();
        self.0.get(key, |found| value.extend_from_slice(found))
    }

    fn put(&mut self, key: &[u8], value: &[u8]) -> Result<()> {
        self.0.put_once(key, value)
    }

    fn delete(&mut self, key: &[u8]) -> Result<()> {
        self.0.delete_once(key)
    }

    fn add(&mut self, key: &[u8], delta: u64) -> Result<()> {
        let mut value = Vec::new();
        let found = self.get(key, &mut value)?;
        self.put(key, &sum(Some(value.as_slice()).filter(|_| found), delta)?)
    }

    fn scan(&mut self, from: &[u8], to: &[u8], limit: usize, visit: &mut dyn FnMut(&[u8], &[u8])) -> Result<usize> {
        self.0.scan_once(from, limit, &mut |key, value| {
            let is_inside = key < to;
            if is_inside {
                visit(key, value);
            }
            is_inside
        })
    }
}
