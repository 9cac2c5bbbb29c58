//! The adapter of redb, on a file whose `sync_data` does nothing.
//!
//! redb has two levels of durability. `None` keeps a commit in memory until a later commit is `Immediate`, so a kill
//! loses the commit. `Immediate` writes every changed page and the header, and syncs. The lab requires a durability
//! between these two levels. So each commit is `Immediate`, but `sync_data` of [`PageCache`] returns at once without a
//! sync. The written data is in the page cache, which survives the process.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use pandodb_lab::engine::{Engine, Figures, Need, Opener, Result, Rows, Session, Setup, Write};
use pandodb_lab::transactions::{
    Access, Attempts, Capability, Isolation, Scheme, Transaction, Verdict, Work, retry, sum,
};
use redb::{
    Builder, Database, Durability, ReadableDatabase, ReadableTable, StorageBackend, TableDefinition, WriteTransaction,
};

use crate::{Promise, READ_ONLY, add, admit, fill, settings, size};

/// The promise: redb has no background threads.
pub const PROMISE: Promise = Promise { background_threads: false, ..Promise::FULL };

const TABLE: TableDefinition<&[u8], &[u8]> = TableDefinition::new("lab");
/// Rows of a transaction of a sorted load.
const LOAD_ROWS: usize = 100_000;
const FILE: &str = "store.redb";

/// Opens redb.
pub struct Redb;

/// A file that is never synced. The operating system decides when it writes dirty pages to the disk. This type counts
/// the bytes read and written.
#[derive(Debug)]
struct PageCache {
    file: File,
    passed: Arc<Passed>,
}

/// Bytes read and written.
#[derive(Debug, Default)]
struct Passed {
    read: AtomicU64,
    written: AtomicU64,
}

impl StorageBackend for PageCache {
    fn len(&self) -> io::Result<u64> {
        Ok(self.file.metadata()?.len())
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        self.passed.read.fetch_add(out.len() as u64, Ordering::Relaxed);
        self.file.read_exact_at(out, offset)
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.file.set_len(len)
    }

    fn sync_data(&self) -> io::Result<()> {
        Ok(())
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        self.passed.written.fetch_add(data.len() as u64, Ordering::Relaxed);
        self.file.write_all_at(data, offset)
    }
}

fn cache(budget: usize) -> usize {
    budget - (budget / 16).clamp(2 << 20, 16 << 20)
}

impl Opener for Redb {
    fn name(&self) -> String {
        "redb".into()
    }

    fn open(&self, directory: &Path, setup: &Setup) -> Result<Box<dyn Engine>> {
        admit("redb", setup, PROMISE)?;
        let cache = cache(setup.memory_budget);
        let file = OpenOptions::new().read(true).write(true).create(true).truncate(false).open(directory.join(FILE))?;
        let (synced, passed) = (file.try_clone()?, Arc::new(Passed::default()));
        let db =
            Builder::new().set_cache_size(cache).create_with_backend(PageCache { file, passed: passed.clone() })?;
        let store = Store { db, file: synced, passed, cache };
        store.write(|_| Ok(()))?; // creates the table, so that readers find it
        Ok(Box::new(store))
    }
}

struct Store {
    db: Database,
    file: File,
    passed: Arc<Passed>,
    cache: usize,
}

type Table<'a> = redb::Table<'a, &'static [u8], &'static [u8]>;

impl Store {
    /// Runs `act` in a transaction and commits it.
    fn write(&self, act: impl FnOnce(&mut Table<'_>) -> Result<()>) -> Result<()> {
        let mut transaction: WriteTransaction = self.db.begin_write()?;
        transaction.set_durability(Durability::Immediate)?;
        act(&mut transaction.open_table(TABLE)?)?;
        Ok(transaction.commit()?)
    }
}

impl Engine for Store {
    fn configuration(&self) -> Vec<(String, String)> {
        settings([
            ("engine", format!("redb {}", env!("RIVALS_REDB"))),
            ("durability", "Immediate, 1 phase, on a backend whose sync_data does nothing: page cache".into()),
            ("cache_size", size(self.cache)),
            ("page_size", "4 KiB".into()),
            ("quick_repair", "off: an open after a kill walks the whole store".into()),
            ("merge", "read and write in a transaction".into()),
            ("delete_range", "entry by entry in a transaction".into()),
            ("sorted loads", format!("inserts in transactions of {LOAD_ROWS} rows")),
        ])
    }

    fn lacks(&self, _need: Need) -> Option<&'static str> {
        None
    }

    fn transactions(&self) -> Option<Capability> {
        Some(Capability { isolation: Isolation::Serializable, scheme: Scheme::SingleWriter, merges: false })
    }

    fn session(&self) -> Result<Box<dyn Session + '_>> {
        Ok(Box::new(Handle(self)))
    }

    fn settle(&self) -> Result<()> {
        Ok(self.file.sync_data()?)
    }

    fn figures(&self) -> Result<Figures> {
        let mut figures = Figures::default();
        let Passed { read, written } = self.passed.as_ref();
        figures.counters.insert("bytes_read".into(), read.load(Ordering::Relaxed));
        figures.counters.insert("bytes_written".into(), written.load(Ordering::Relaxed));
        Ok(figures)
    }

    fn close(self: Box<Self>) -> Result<()> {
        self.db.close()?;
        Ok(self.file.sync_data()?)
    }
}

struct Handle<'a>(&'a Store);

impl Session for Handle<'_> {
    fn put(&mut self, key: &[u8], value: &[u8]) -> Result<()> {
        self.0.write(|table| Ok(table.insert(key, value).map(drop)?))
    }

    fn get(&mut self, key: &[u8], value: &mut Vec<u8>) -> Result<bool> {
        value.clear();
        let table = self.0.db.begin_read()?.open_table(TABLE)?;
        let found = table.get(key)?;
        value.extend_from_slice(found.as_ref().map_or(&[], |guard| guard.value()));
        Ok(found.is_some())
    }

    fn delete(&mut self, key: &[u8]) -> Result<()> {
        self.0.write(|table| Ok(table.remove(key).map(drop)?))
    }

    fn merge_add(&mut self, key: &[u8], delta: u64) -> Result<()> {
        self.0.write(|table| {
            let sum = add(table.get(key)?.as_ref().map(|guard| guard.value()), delta)?;
            Ok(table.insert(key, sum.as_slice()).map(drop)?)
        })
    }

    fn delete_range(&mut self, from: &[u8], to: &[u8]) -> Result<()> {
        if from < to { self.0.write(|table| Ok(table.retain_in(from..to, |_, _| false)?)) } else { Ok(()) }
    }

    fn scan(&mut self, from: &[u8], limit: usize, visit: &mut dyn FnMut(&[u8], &[u8])) -> Result<usize> {
        let table = self.0.db.begin_read()?.open_table(TABLE)?;
        let mut count = 0;
        for entry in table.range(from..)?.take(limit) {
            let (key, value) = entry?;
            visit(key.value(), value.value());
            count += 1;
        }
        Ok(count)
    }

    fn scan_back(&mut self, from: &[u8], limit: usize, visit: &mut dyn FnMut(&[u8], &[u8])) -> Result<usize> {
        let table = self.0.db.begin_read()?.open_table(TABLE)?;
        let mut count = 0;
        for entry in table.range(..=from)?.rev().take(limit) {
            let (key, value) = entry?;
            visit(key.value(), value.value());
            count += 1;
        }
        Ok(count)
    }

    fn write_batch(&mut self, writes: &[Write]) -> Result<()> {
        self.0.write(|table| {
            for write in writes {
                match write {
                    Write::Put(key, value) => drop(table.insert(*key, *value)?),
                    Write::Delete(key) => drop(table.remove(*key)?),
                }
            }
            Ok(())
        })
    }

    fn load_sorted(&mut self, rows: &mut Rows) -> Result<u64> {
        let (mut loaded, mut more) = (0, true);
        while more {
            self.0.write(|table| {
                let put = |key: &[u8], value: &[u8]| Ok(table.insert(key, value).map(drop)?);
                more = fill(rows, LOAD_ROWS, &mut loaded, put)?;
                Ok(())
            })?;
        }
        Ok(loaded)
    }

    fn transact(&mut self, access: Access, work: &mut Work) -> Result<Attempts> {
        retry(|| {
            if access == Access::Read {
                return work(&mut Reading(self.0.db.begin_read()?.open_table(TABLE)?));
            }
            let mut transaction = self.0.db.begin_write()?;
            transaction.set_durability(Durability::Immediate)?;
            let verdict = work(&mut Writing(transaction.open_table(TABLE)?))?;
            match verdict {
                Verdict::Commit => transaction.commit()?,
                Verdict::RollBack => transaction.abort()?,
            }
            Ok(verdict)
        })
    }
}

fn find(table: &impl ReadableTable<&'static [u8], &'static [u8]>, key: &[u8], value: &mut Vec<u8>) -> Result<bool> {
    value.clear();
    let found = table.get(key)?;
    value.extend_from_slice(found.as_ref().map_or(&[], |guard| guard.value()));
    Ok(found.is_some())
}

fn visit_range(
    table: &impl ReadableTable<&'static [u8], &'static [u8]>,
    (from, to): (&[u8], &[u8]),
    limit: usize,
    visit: &mut dyn FnMut(&[u8], &[u8]),
) -> Result<usize> {
    let mut count = 0;
    for entry in table.range(from..to)?.take(limit) {
        let (key, value) = entry?;
        visit(key.value(), value.value());
        count += 1;
    }
    Ok(count)
}

/// The table of an open transaction that only reads.
struct Reading(redb::ReadOnlyTable<&'static [u8], &'static [u8]>);

impl Transaction for Reading {
    fn get(&mut self, key: &[u8], value: &mut Vec<u8>) -> Result<bool> {
        find(&self.0, key, value)
    }

    fn put(&mut self, _key: &[u8], _value: &[u8]) -> Result<()> {
        Err(READ_ONLY.into())
    }

    fn delete(&mut self, _key: &[u8]) -> Result<()> {
        Err(READ_ONLY.into())
    }

    fn add(&mut self, _key: &[u8], _delta: u64) -> Result<()> {
        Err(READ_ONLY.into())
    }

    fn scan(&mut self, from: &[u8], to: &[u8], limit: usize, visit: &mut dyn FnMut(&[u8], &[u8])) -> Result<usize> {
        visit_range(&self.0, (from, to), limit, visit)
    }
}

/// The table of the open transaction that writes.
struct Writing<'a>(Table<'a>);

impl Transaction for Writing<'_> {
    fn get(&mut self, key: &[u8], value: &mut Vec<u8>) -> Result<bool> {
        find(&self.0, key, value)
    }

    fn put(&mut self, key: &[u8], value: &[u8]) -> Result<()> {
        Ok(self.0.insert(key, value).map(drop)?)
    }

    fn delete(&mut self, key: &[u8]) -> Result<()> {
        Ok(self.0.remove(key).map(drop)?)
    }

    fn add(&mut self, key: &[u8], delta: u64) -> Result<()> {
        let value = sum(self.0.get(key)?.as_ref().map(|guard| guard.value()), delta)?;
        self.put(key, &value)
    }

    fn scan(&mut self, from: &[u8], to: &[u8], limit: usize, visit: &mut dyn FnMut(&[u8], &[u8])) -> Result<usize> {
        visit_range(&self.0, (from, to), limit, visit)
    }
}
