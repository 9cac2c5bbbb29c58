//! The adapter of RocksDB's two transactional databases, with the settings of the plain levelled database.
//!
//! * `rocksdb-optimistic` (`OptimisticTransactionDB`): a commit fails if a key that the transaction has read with
//!   `GetForUpdate` or written was changed meanwhile. RocksDB finds such changes in its memtables only, and fails with
//!   `TryAgain` if a memtable that it would need was already dropped. The adapter counts both as conflicts.
//! * `rocksdb-pessimistic` (`TransactionDB`): `GetForUpdate` and each write lock the key until the end of the
//!   transaction. A timeout or a deadlock, which RocksDB detects, counts as a conflict.
//!
//! Neither protects ranges: another transaction may insert a row into a scanned range. A scan locks the rows that it
//! visits, and conflicts if one of them has changed since the iterator read it. Reads of rows that never change use
//! plain gets. A transaction that only reads is a snapshot. Additions are merges, which lock their key as well.
//!
//! The bindings of `TransactionDB` have no function for flushes, properties or ingested tables. So this engine has no
//! figures, does not wait for background work, and has no sorted loads.

use std::ops::Range;
use std::path::Path;
use std::thread;
use std::time::Duration;

use pandodb_lab::engine::{Engine, Figures, NO_SORTED_LOAD, Need, Opener, Result, Session, Setup, Write};
use pandodb_lab::transactions::{
    Access, Attempts, Capability, Conflict, Isolation, Scheme, Transaction, Verdict, Work, retry,
};
use rocksdb::{
    Cache, ColumnFamilyDescriptor, DBPinnableSlice, DBRawIteratorWithThreadMode, DEFAULT_COLUMN_FAMILY_NAME, Error,
    ErrorKind, OptimisticTransactionDB, OptimisticTransactionOptions, SnapshotWithThreadMode, TransactionDB,
    TransactionDBOptions, TransactionOptions, WriteBatchWithTransaction, WriteOptions,
};

use super::{Shares, Style, options};
use crate::{Promise, READ_ONLY, admit, settings, size};

/// The bindings have no range deletes for transactional databases.
const NO_RANGE_DELETES: &str = "the bindings of RocksDB have no range deletes for transactional databases";

/// The most merges of a key in a memtable before RocksDB folds them into a value. The check of a commit visits all
/// merges of a key in the memtable, so without this limit each commit to a counter would take longer than the one
/// before.
const SUCCESSIVE_MERGES: usize = 16;

/// Opens an optimistic transactional database.
pub struct OptimisticRocks;

/// Opens a pessimistic transactional database.
pub struct PessimisticRocks;

impl Opener for OptimisticRocks {
    fn name(&self) -> String {
        "rocksdb-optimistic".into()
    }

    fn open(&self, directory: &Path, setup: &Setup) -> Result<Box<dyn Engine>> {
        admit(&self.name(), setup, Promise::FULL)?;
        let (mut options, _, shares) = opening(setup)?;
        options.set_max_successive_merges(SUCCESSIVE_MERGES);
        let family = ColumnFamilyDescriptor::new(DEFAULT_COLUMN_FAMILY_NAME, options.clone());
        let db = OptimisticTransactionDB::open_cf_descriptors(&options, directory, [family])?;
        Ok(Box::new(Optimistic { db, shares }))
    }
}

impl Opener for PessimisticRocks {
    fn name(&self) -> String {
        "rocksdb-pessimistic".into()
    }

    fn open(&self, directory: &Path, setup: &Setup) -> Result<Box<dyn Engine>> {
        admit(&self.name(), setup, Promise::FULL)?;
        let (options, family, shares) = opening(setup)?;
        let how = TransactionDBOptions::default();
        let db = TransactionDB::open_cf_descriptors(&options, &how, directory, [family])?;
        Ok(Box::new(Pessimistic { db, shares }))
    }
}

fn opening(setup: &Setup) -> Result<(rocksdb::Options, ColumnFamilyDescriptor, Shares)> {
    let shares = Shares::of(setup.memory_budget);
    let options = options(Style::Level, &shares, &Cache::new_lru_cache(shares.cache)?);
    let family = ColumnFamilyDescriptor::new(DEFAULT_COLUMN_FAMILY_NAME, options.clone());
    Ok((options, family, shares))
}

struct Optimistic {
    db: OptimisticTransactionDB,
    shares: Shares,
}

struct Pessimistic {
    db: TransactionDB,
    shares: Shares,
}

fn configuration(shares: &Shares, transactions: &str) -> Vec<(String, String)> {
    settings([
        ("engine", format!("RocksDB {}, crate rocksdb {}", env!("RIVALS_LIBROCKSDB"), env!("RIVALS_ROCKSDB"))),
        ("durability", "WAL on, written to the page cache at each commit, not synced".into()),
        ("transactions", transactions.into()),
        ("write_buffer_size", size(shares.write_buffer)),
        ("block_cache", size(shares.cache)),
        ("other settings", "as rocksdb".into()),
    ])
}

/// The conflict, if the error is one. Otherwise returns the error.
fn conflict(error: Error) -> pandodb_lab::engine::Failure {
    match error.kind() {
        ErrorKind::Busy | ErrorKind::TimedOut | ErrorKind::TryAgain => Conflict.into(),
        _ => error.into(),
    }
}

fn copy(found: Option<DBPinnableSlice>, value: &mut Vec<u8>) -> bool {
    value.clear();
    value.extend_from_slice(found.as_deref().unwrap_or(&[]));
    found.is_some()
}

/// Visits at most `limit` rows of a range, until `visit` fails. Returns the number of visited rows.
fn walk<D: rocksdb::DBAccess>(
    mut iterator: DBRawIteratorWithThreadMode<'_, D>,
    range: Range<&[u8]>,
    limit: usize,
    mut visit: impl FnMut(&[u8], &[u8]) -> Result<()>,
) -> Result<usize> {
    let mut count = 0;
    iterator.seek(range.start);
    while count < limit
        && let Some((key, value)) = iterator.item()
        && key < range.end
    {
        visit(key, value)?;
        count += 1;
        iterator.next();
    }
    iterator.status()?;
    Ok(count)
}

impl Engine for Optimistic {
    fn configuration(&self) -> Vec<(String, String)> {
        let mut all = configuration(&self.shares, "optimistic; GetForUpdate for reads; ranges are not protected");
        all.extend(settings([("max_successive_merges", SUCCESSIVE_MERGES.to_string())]));
        all
    }

    fn lacks(&self, need: Need) -> Option<&'static str> {
        lacks(need)
    }

    fn transactions(&self) -> Option<Capability> {
        Some(Capability { isolation: Isolation::SerializableKeys, scheme: Scheme::Optimistic, merges: true })
    }

    fn session(&self) -> Result<Box<dyn Session + '_>> {
        Ok(Box::new(OptimisticHandle(&self.db)))
    }

    fn settle(&self) -> Result<()> {
        self.db.flush()?;
        let mut quiet = 0;
        while quiet < 2 {
            let mut pending = 0;
            for name in ["compaction-pending", "num-running-compactions", "num-running-flushes"] {
                pending += self.db.property_int_value(&format!("rocksdb.{name}"))?.unwrap_or(0);
            }
            quiet = if pending == 0 { quiet + 1 } else { 0 };
            thread::sleep(Duration::from_millis(5));
        }
        Ok(())
    }

    fn figures(&self) -> Result<Figures> {
        let mut figures = Figures::default();
        for name in ["cur-size-all-mem-tables", "size-all-mem-tables", "block-cache-usage", "total-sst-files-size"] {
            let value = self.db.property_int_value(&format!("rocksdb.{name}"))?.unwrap_or(0);
            figures.gauges.insert(name.replace('-', "_"), value as f64);
        }
        Ok(figures)
    }

    fn close(self: Box<Self>) -> Result<()> {
        self.db.flush()?;
        self.db.cancel_all_background_work(true);
        Ok(())
    }
}

impl Engine for Pessimistic {
    fn configuration(&self) -> Vec<(String, String)> {
        configuration(
            &self.shares,
            "locks of keys, deadlocks detected; GetForUpdate for reads; ranges are not protected",
        )
    }

    fn lacks(&self, need: Need) -> Option<&'static str> {
        lacks(need)
    }

    fn transactions(&self) -> Option<Capability> {
        Some(Capability { isolation: Isolation::SerializableKeys, scheme: Scheme::Locks, merges: true })
    }

    fn session(&self) -> Result<Box<dyn Session + '_>> {
        Ok(Box::new(PessimisticHandle(&self.db)))
    }

    fn settle(&self) -> Result<()> {
        Ok(())
    }

    fn close(self: Box<Self>) -> Result<()> {
        Ok(())
    }
}

fn lacks(need: Need) -> Option<&'static str> {
    match need {
        Need::RangeDelete => Some(NO_RANGE_DELETES),
        Need::SortedLoad => Some(NO_SORTED_LOAD),
        _ => None,
    }
}

struct OptimisticHandle<'a>(&'a OptimisticTransactionDB);
struct PessimisticHandle<'a>(&'a TransactionDB);

impl OptimisticHandle<'_> {
    fn begin(&self) -> rocksdb::Transaction<'_, OptimisticTransactionDB> {
        self.0.transaction_opt(&WriteOptions::default(), &OptimisticTransactionOptions::default())
    }
}

impl PessimisticHandle<'_> {
    fn begin(&self) -> rocksdb::Transaction<'_, TransactionDB> {
        let mut how = TransactionOptions::default();
        how.set_deadlock_detect(true);
        self.0.transaction_opt(&WriteOptions::default(), &how)
    }
}

/// Visits entries of an iterator that is at its first entry, while `step` moves it.
macro_rules! walk {
    ($iterator:ident, $limit:ident, $visit:ident, $step:ident) => {{
        let mut count = 0;
        while count < $limit
            && let Some((key, value)) = $iterator.item()
        {
            $visit(key, value);
            count += 1;
            if count < $limit {
                $iterator.$step();
            }
        }
        $iterator.status()?;
        Ok(count)
    }};
}

/// The operations of a session, which are the same for both kinds. The crate has no trait that both databases
/// implement.
macro_rules! session {
    ($handle:ident, $db:ty) => {
        impl Session for $handle<'_> {
            fn put(&mut self, key: &[u8], value: &[u8]) -> Result<()> {
                Ok(self.0.put(key, value)?)
            }

            fn get(&mut self, key: &[u8], value: &mut Vec<u8>) -> Result<bool> {
                Ok(copy(self.0.get_pinned(key)?, value))
            }

            fn delete(&mut self, key: &[u8]) -> Result<()> {
                Ok(self.0.delete(key)?)
            }

            fn merge_add(&mut self, key: &[u8], delta: u64) -> Result<()> {
                Ok(self.0.merge(key, delta.to_le_bytes())?)
            }

            fn delete_range(&mut self, _from: &[u8], _to: &[u8]) -> Result<()> {
                Err(NO_RANGE_DELETES.into())
            }

            fn scan(&mut self, from: &[u8], limit: usize, visit: &mut dyn FnMut(&[u8], &[u8])) -> Result<usize> {
                let mut iterator = self.0.raw_iterator();
                if limit > 0 {
                    iterator.seek(from);
                }
                walk!(iterator, limit, visit, next)
            }

            fn scan_back(&mut self, from: &[u8], limit: usize, visit: &mut dyn FnMut(&[u8], &[u8])) -> Result<usize> {
                let mut iterator = self.0.raw_iterator();
                if limit > 0 {
                    iterator.seek_for_prev(from);
                }
                walk!(iterator, limit, visit, prev)
            }

            fn write_batch(&mut self, writes: &[Write]) -> Result<()> {
                let mut batch = WriteBatchWithTransaction::<true>::default();
                for write in writes {
                    match write {
                        Write::Put(key, value) => batch.put(key, value),
                        Write::Delete(key) => batch.delete(key),
                    }
                }
                Ok(self.0.write(batch)?)
            }

            fn transact(&mut self, access: Access, work: &mut Work) -> Result<Attempts> {
                retry(|| {
                    if access == Access::Read {
                        return work(&mut Reading(self.0.snapshot()));
                    }
                    let mut writing = Writing(self.begin());
                    let verdict = work(&mut writing)?;
                    match verdict {
                        Verdict::Commit => writing.0.commit().map_err(conflict)?,
                        Verdict::RollBack => writing.0.rollback()?,
                    }
                    Ok(verdict)
                })
            }
        }

        impl Transaction for Reading<'_, $db> {
            fn get(&mut self, key: &[u8], value: &mut Vec<u8>) -> Result<bool> {
                Ok(copy(self.0.get_pinned(key)?, value))
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

            fn scan(
                &mut self,
                from: &[u8],
                to: &[u8],
                limit: usize,
                visit: &mut dyn FnMut(&[u8], &[u8]),
            ) -> Result<usize> {
                walk(self.0.raw_iterator(), from..to, limit, |key, value| {
                    visit(key, value);
                    Ok(())
                })
            }
        }

        impl Transaction for Writing<'_, $db> {
            fn get(&mut self, key: &[u8], value: &mut Vec<u8>) -> Result<bool> {
                Ok(copy(self.0.get_pinned_for_update(key, false).map_err(conflict)?, value))
            }

            fn get_for_update(&mut self, key: &[u8], value: &mut Vec<u8>) -> Result<bool> {
                Ok(copy(self.0.get_pinned_for_update(key, true).map_err(conflict)?, value))
            }

            fn get_constant(&mut self, key: &[u8], value: &mut Vec<u8>) -> Result<bool> {
                Ok(copy(self.0.get_pinned(key)?, value))
            }

            fn put(&mut self, key: &[u8], value: &[u8]) -> Result<()> {
                self.0.put(key, value).map_err(conflict)
            }

            fn delete(&mut self, key: &[u8]) -> Result<()> {
                self.0.delete(key).map_err(conflict)
            }

            fn add(&mut self, key: &[u8], delta: u64) -> Result<()> {
                self.0.merge(key, delta.to_le_bytes()).map_err(conflict)
            }

            fn scan(
                &mut self,
                from: &[u8],
                to: &[u8],
                limit: usize,
                visit: &mut dyn FnMut(&[u8], &[u8]),
            ) -> Result<usize> {
                walk(self.0.raw_iterator(), from..to, limit, |key, value| {
                    let now = self.0.get_pinned_for_update(key, true).map_err(conflict)?;
                    if now.as_deref() != Some(value) {
                        return Err(Conflict.into());
                    }
                    visit(key, value);
                    Ok(())
                })
            }

            fn scan_constant(
                &mut self,
                from: &[u8],
                to: &[u8],
                limit: usize,
                visit: &mut dyn FnMut(&[u8], &[u8]),
            ) -> Result<usize> {
                walk(self.0.raw_iterator(), from..to, limit, |key, value| {
                    visit(key, value);
                    Ok(())
                })
            }
        }
    };
}

/// A snapshot, for a transaction that only reads.
struct Reading<'a, D: rocksdb::DBAccess>(SnapshotWithThreadMode<'a, D>);

/// An open transaction.
struct Writing<'a, D>(rocksdb::Transaction<'a, D>);

session!(OptimisticHandle, OptimisticTransactionDB);
session!(PessimisticHandle, TransactionDB);
