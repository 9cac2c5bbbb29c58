//! The adapter of LMDB, which uses the crate `heed`, with and without a writable map.
//!
//! The adapter sets `NO_SYNC`, because the lab requires that writes survive a kill of the process, but not that they
//! survive a crash of the machine. Each commit first puts its pages, and then its meta page, into the page cache,
//! either by `pwrite` or through the shared map. The page cache survives the process. LMDB uses only the page cache and
//! has no cache of its own, so the budget takes effect only through a memory cgroup.

use std::ops::Bound;
use std::path::Path;

use heed::types::Bytes;
use heed::{CommitOrAbort, Database, Env, EnvFlags, EnvOpenOptions, PutFlags, RoTxn, RwTxn};
use pandodb_lab::engine::{Engine, Figures, Need, Opener, Result, Rows, Session, Setup, Write};
use pandodb_lab::transactions::{
    Access, Attempts, Capability, Isolation, Scheme, Transaction, Verdict, Work, retry, sum,
};

use crate::{Promise, READ_ONLY, add, admit, fill, settings, size};

/// Properties of LMDB: a key has at most 511 bytes, which is LMDB's compile-time default, and LMDB has no background
/// threads.
pub const PROMISE: Promise = Promise { longest_key: 511, background_threads: false, ..Promise::FULL };

/// Bytes of address space for the map, which is the maximum size of the store.
const MAP: usize = 256 << 30;
const READERS: u32 = 512;
/// Rows of a transaction of a sorted load. The dirty pages of a transaction are in memory.
const LOAD_ROWS: usize = 100_000;

/// Opens LMDB.
pub struct Lmdb {
    /// Whether LMDB modifies pages directly in the map, instead of copying them and writing them with `pwrite`.
    pub write_map: bool,
}

impl Opener for Lmdb {
    fn name(&self) -> String {
        if self.write_map { "lmdb-writemap".into() } else { "lmdb".into() }
    }

    #[allow(unsafe_code)]
    fn open(&self, directory: &Path, setup: &Setup) -> Result<Box<dyn Engine>> {
        admit(&self.name(), setup, PROMISE)?;
        let mut flags = EnvFlags::NO_SYNC | EnvFlags::NO_READ_AHEAD | EnvFlags::NO_MEM_INIT;
        flags.set(EnvFlags::WRITE_MAP, self.write_map);
        let mut options = EnvOpenOptions::new();
        options.map_size(MAP).max_readers(READERS);
        // SAFETY: none of these flags lets another thread or process corrupt memory. With these flags, a crash of the
        // machine may lose data, and with WRITE_MAP, stray pointers may damage the map, as LMDB documents.
        unsafe { options.flags(flags) };
        // SAFETY: the directory belongs to the lab, so no other process maps or truncates the file.
        let env = unsafe { options.open(directory)? };
        let store = Store { env, write_map: self.write_map };
        store.database()?;
        Ok(Box::new(store))
    }
}

struct Store {
    env: Env,
    write_map: bool,
}

type Table<'a> = Database<'a, Bytes, Bytes>;

impl Store {
    /// The unnamed database, which exists in every environment.
    fn database(&self) -> Result<Table<'_>> {
        let read = self.env.read_txn()?;
        let opened = self.env.open_databases_and_commit(read, |opener, read| -> heed::Result<_> {
            let table = opener.open_database::<Bytes, Bytes>(read, None)?;
            Ok(CommitOrAbort::<_, ()>::Commit(table))
        })?;
        let table = opened.commit().flatten();
        Ok(table.ok_or("LMDB has no unnamed database")?)
    }
}

impl Engine for Store {
    fn configuration(&self) -> Vec<(String, String)> {
        let version = heed::lmdb_version();
        let library =
            format!("LMDB {}.{}.{}, crate heed {}", version.major, version.minor, version.patch, env!("RIVALS_HEED"));
        let flags = if self.write_map { "NOSYNC NORDAHEAD NOMEMINIT WRITEMAP" } else { "NOSYNC NORDAHEAD NOMEMINIT" };
        settings([
            ("engine", library),
            ("durability", "each commit is in the page cache, not synced".into()),
            ("flags", flags.into()),
            ("map_size", size(MAP)),
            ("max_readers", READERS.to_string()),
            ("cache", "the page cache: the budget binds through a memory cgroup only".into()),
            ("read transactions", "one an operation".into()),
            ("sorted loads", format!("MDB_APPEND, in transactions of {LOAD_ROWS} rows")),
        ])
    }

    fn lacks(&self, _need: Need) -> Option<&'static str> {
        None
    }

    fn transactions(&self) -> Option<Capability> {
        Some(Capability { isolation: Isolation::Serializable, scheme: Scheme::SingleWriter, merges: false })
    }

    fn longest(&self) -> (usize, usize) {
        (PROMISE.longest_key, PROMISE.longest_value)
    }

    fn session(&self) -> Result<Box<dyn Session + '_>> {
        Ok(Box::new(Handle { env: &self.env, table: self.database()? }))
    }

    fn settle(&self) -> Result<()> {
        Ok(self.env.force_sync()?)
    }

    fn figures(&self) -> Result<Figures> {
        let mut figures = Figures::default();
        // The table is opened first. Opening it needs a read transaction, and a thread may have only one read
        // transaction at a time.
        let table = self.database()?;
        let read = self.env.read_txn()?;
        let (info, stat) = (self.env.info(), table.stat(&read)?);
        figures.gauges.insert("last_page".into(), info.last_page_number as f64);
        figures.gauges.insert("depth".into(), f64::from(stat.depth));
        figures.gauges.insert("leaf_pages".into(), stat.leaf_pages as f64);
        figures.gauges.insert("branch_pages".into(), stat.branch_pages as f64);
        figures.gauges.insert("overflow_pages".into(), stat.overflow_pages as f64);
        Ok(figures)
    }

    fn close(self: Box<Self>) -> Result<()> {
        self.env.force_sync()?;
        self.env.prepare_for_closing().wait();
        Ok(())
    }
}

struct Handle<'a> {
    env: &'a Env,
    table: Table<'a>,
}

impl Session for Handle<'_> {
    fn put(&mut self, key: &[u8], value: &[u8]) -> Result<()> {
        let mut write = self.env.write_txn()?;
        self.table.put(&mut write, key, value)?;
        Ok(write.commit()?)
    }

    fn get(&mut self, key: &[u8], value: &mut Vec<u8>) -> Result<bool> {
        value.clear();
        let read = self.env.read_txn()?;
        let found = self.table.get(&read, key)?;
        value.extend_from_slice(found.unwrap_or(&[]));
        Ok(found.is_some())
    }

    fn delete(&mut self, key: &[u8]) -> Result<()> {
        let mut write = self.env.write_txn()?;
        self.table.delete(&mut write, key)?;
        Ok(write.commit()?)
    }

    fn merge_add(&mut self, key: &[u8], delta: u64) -> Result<()> {
        let mut write = self.env.write_txn()?;
        let sum = add(self.table.get(&write, key)?, delta)?;
        self.table.put(&mut write, key, &sum)?;
        Ok(write.commit()?)
    }

    fn delete_range(&mut self, from: &[u8], to: &[u8]) -> Result<()> {
        if from < to {
            let mut write = self.env.write_txn()?;
            self.table.delete_range(&mut write, &(Bound::Included(from), Bound::Excluded(to)))?;
            write.commit()?;
        }
        Ok(())
    }

    fn scan(&mut self, from: &[u8], limit: usize, visit: &mut dyn FnMut(&[u8], &[u8])) -> Result<usize> {
        let read = self.env.read_txn()?;
        let mut count = 0;
        let mut visit = |entry: heed::Result<(&[u8], &[u8])>| -> Result<()> {
            let (key, value) = entry?;
            visit(key, value);
            count += 1;
            Ok(())
        };
        // LMDB does not accept an empty start key.
        if from.is_empty() {
            self.table.iter(&read)?.take(limit).try_for_each(&mut visit)?;
        } else {
            self.table
                .range(&read, &(Bound::Included(from), Bound::Unbounded))?
                .take(limit)
                .try_for_each(&mut visit)?;
        }
        Ok(count)
    }

    fn scan_back(&mut self, from: &[u8], limit: usize, visit: &mut dyn FnMut(&[u8], &[u8])) -> Result<usize> {
        // LMDB does not accept an empty end key, which no key but the empty one is at most.
        if from.is_empty() {
            return Ok(0);
        }
        let read = self.env.read_txn()?;
        let mut count = 0;
        for entry in self.table.rev_range(&read, &(Bound::Unbounded, Bound::Included(from)))?.take(limit) {
            let (key, value) = entry?;
            visit(key, value);
            count += 1;
        }
        Ok(count)
    }

    fn write_batch(&mut self, writes: &[Write]) -> Result<()> {
        let mut transaction = self.env.write_txn()?;
        for write in writes {
            match write {
                Write::Put(key, value) => self.table.put(&mut transaction, key, value)?,
                Write::Delete(key) => drop(self.table.delete(&mut transaction, key)?),
            }
        }
        Ok(transaction.commit()?)
    }

    fn load_sorted(&mut self, rows: &mut Rows) -> Result<u64> {
        let (mut loaded, mut more) = (0, true);
        while more {
            let mut write = self.env.write_txn()?;
            let put =
                |key: &[u8], value: &[u8]| Ok(self.table.put_with_flags(&mut write, PutFlags::APPEND, key, value)?);
            more = fill(rows, LOAD_ROWS, &mut loaded, put)?;
            write.commit()?;
        }
        Ok(loaded)
    }

    fn transact(&mut self, access: Access, work: &mut Work) -> Result<Attempts> {
        let table = &self.table;
        retry(|| match access {
            Access::Read => {
                let txn = self.env.read_txn()?;
                work(&mut Reading { table, txn: &txn })
            }
            Access::Write => {
                let mut writing = Writing { table, txn: self.env.write_txn()? };
                let verdict = work(&mut writing)?;
                match verdict {
                    Verdict::Commit => writing.txn.commit()?,
                    Verdict::RollBack => writing.txn.abort(),
                }
                Ok(verdict)
            }
        })
    }
}

fn find(table: &Table, txn: &RoTxn, key: &[u8], value: &mut Vec<u8>) -> Result<bool> {
    value.clear();
    let found = table.get(txn, key)?;
    value.extend_from_slice(found.unwrap_or(&[]));
    Ok(found.is_some())
}

fn visit_range(
    table: &Table,
    txn: &RoTxn,
    (from, to): (&[u8], &[u8]),
    limit: usize,
    visit: &mut dyn FnMut(&[u8], &[u8]),
) -> Result<usize> {
    let mut count = 0;
    for entry in table.range(txn, &(Bound::Included(from), Bound::Excluded(to)))?.take(limit) {
        let (key, value) = entry?;
        visit(key, value);
        count += 1;
    }
    Ok(count)
}

/// An open transaction that only reads.
struct Reading<'a, 'b> {
    table: &'a Table<'b>,
    txn: &'a RoTxn<'a>,
}

impl Transaction for Reading<'_, '_> {
    fn get(&mut self, key: &[u8], value: &mut Vec<u8>) -> Result<bool> {
        find(self.table, self.txn, key, value)
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
        visit_range(self.table, self.txn, (from, to), limit, visit)
    }
}

/// The open transaction that writes.
struct Writing<'a, 'b> {
    table: &'a Table<'b>,
    txn: RwTxn<'a>,
}

impl Transaction for Writing<'_, '_> {
    fn get(&mut self, key: &[u8], value: &mut Vec<u8>) -> Result<bool> {
        find(self.table, &self.txn, key, value)
    }

    fn put(&mut self, key: &[u8], value: &[u8]) -> Result<()> {
        Ok(self.table.put(&mut self.txn, key, value)?)
    }

    fn delete(&mut self, key: &[u8]) -> Result<()> {
        Ok(self.table.delete(&mut self.txn, key).map(drop)?)
    }

    fn add(&mut self, key: &[u8], delta: u64) -> Result<()> {
        let value = sum(self.table.get(&self.txn, key)?, delta)?;
        self.put(key, &value)
    }

    fn scan(&mut self, from: &[u8], to: &[u8], limit: usize, visit: &mut dyn FnMut(&[u8], &[u8])) -> Result<usize> {
        visit_range(self.table, &self.txn, (from, to), limit, visit)
    }
}
