//! The adapter of fjall. By default, a write is acknowledged once its journal record is in the page cache. The lab
//! requires exactly this durability.

use std::path::Path;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use fjall::compaction::Leveled;
use fjall::config::{BloomConstructionPolicy, CompressionPolicy, FilterPolicy, FilterPolicyEntry};
use fjall::{CompressionType, Database, Keyspace, KeyspaceCreateOptions, KvSeparationOptions, PersistMode};
use pandodb_lab::engine::{Engine, Figures, Need, Opener, Result, Rows, Session, Setup, Write};

use crate::stripes::Stripes;
use crate::{Promise, add, admit, fill, settings, size};

const WORKERS: usize = 2;
const BITS_PER_KEY: f32 = 10.0;

/// Bytes of a value from which key-value separation stores it outside the tree: fjall's default.
const SEPARATED: u32 = 1 << 10;

const NO_RANGE_DELETES: &str = "fjall has no range deletes";

/// Sets the options of the builder of any kind of database. The crate does not export the trait that these kinds share.
macro_rules! configured {
    ($builder:expr, $shares:expr) => {
        $builder
            .cache_size($shares.cache as u64)
            .max_journaling_size($shares.journals as u64)
            .journal_compression(CompressionType::None)
            .worker_threads(WORKERS)
    };
}

mod transactional;
pub use transactional::FjallTransactions;

/// Opens fjall.
pub struct Fjall {
    /// Whether large values are stored outside the tree (key-value separation).
    pub separates: bool,
}

/// The parts of the memory budget, in bytes.
#[derive(Clone, Copy)]
struct Shares {
    /// The size of one memtable. At most three memtables exist at the same time: one active memtable, and two sealed
    /// memtables that are not written to the disk yet.
    memtable: usize,
    cache: usize,
    journals: usize,
}

impl Shares {
    fn of(budget: usize) -> Self {
        let memtable = (budget / 8).clamp(2 << 20, 64 << 20);
        let overhead = (budget / 8).clamp(2 << 20, 64 << 20);
        Self { memtable, cache: budget - 3 * memtable - overhead, journals: (8 * memtable).max(64 << 20) }
    }
}

impl Opener for Fjall {
    fn name(&self) -> String {
        if self.separates { "fjall-blob".into() } else { "fjall".into() }
    }

    fn open(&self, directory: &Path, setup: &Setup) -> Result<Box<dyn Engine>> {
        admit(&self.name(), setup, Promise::FULL)?;
        let shares = Shares::of(setup.memory_budget);
        let db = configured!(Database::builder(directory), shares).open()?;
        let tree = db.keyspace("lab", || options(shares, self.separates))?;
        Ok(Box::new(Store { tree, db, shares, separates: self.separates, stripes: Stripes::new() }))
    }
}

fn options(shares: Shares, separates: bool) -> KeyspaceCreateOptions {
    let separation = KvSeparationOptions::default().separation_threshold(SEPARATED).compression(CompressionType::None);
    let filter = FilterPolicyEntry::Bloom(BloomConstructionPolicy::BitsPerKey(BITS_PER_KEY));
    KeyspaceCreateOptions::default()
        .max_memtable_size(shares.memtable as u64)
        .data_block_compression_policy(CompressionPolicy::disabled())
        .index_block_compression_policy(CompressionPolicy::disabled())
        .filter_policy(FilterPolicy::all(filter))
        .with_kv_separation(separates.then_some(separation))
        .compaction_strategy(Arc::new(Leveled::default().with_table_target_size(shares.memtable as u64)))
}

struct Store {
    // The fields are dropped in this order: the keyspace before its database.
    tree: Keyspace,
    db: Database,
    shares: Shares,
    separates: bool,
    stripes: Stripes,
}

impl Store {
    fn busy(&self) -> bool {
        self.db.outstanding_flushes() > 0 || self.tree.sealed_memtable_count() > 0 || self.db.active_compactions() > 0
    }
}

impl Engine for Store {
    fn configuration(&self) -> Vec<(String, String)> {
        let Shares { memtable, cache, journals } = self.shares;
        settings([
            ("engine", format!("fjall {}, lsm-tree {}", env!("RIVALS_FJALL"), env!("RIVALS_LSM_TREE"))),
            ("durability", "journal written to the page cache at each write, not synced".into()),
            ("max_memtable_size", size(memtable)),
            ("cache_size", size(cache)),
            ("max_journaling_size", size(journals)),
            ("worker_threads", WORKERS.to_string()),
            ("compaction", format!("levelled, tables of {}", size(memtable))),
            ("block_size", "4 KiB".into()),
            ("filter", format!("Bloom, {BITS_PER_KEY} bits a key")),
            ("compression", "none".into()),
            (
                "key-value separation",
                if self.separates { format!("values of {SEPARATED} B and more") } else { "off".into() },
            ),
            ("sorted loads", "start_ingestion".into()),
            ("merge", "read and write under a striped lock, which puts and deletes take too".into()),
        ])
    }

    fn lacks(&self, need: Need) -> Option<&'static str> {
        match need {
            Need::RangeDelete => Some(NO_RANGE_DELETES),
            Need::Transactions => {
                Some("a plain database of fjall has no transactions; use fjall-optimistic or fjall-single-writer")
            }
            _ => None,
        }
    }

    fn session(&self) -> Result<Box<dyn Session + '_>> {
        Ok(Box::new(Handle(self)))
    }

    fn settle(&self) -> Result<()> {
        self.tree.rotate_memtable_and_wait()?;
        // fjall does not expose its compaction queue. So this loop waits until no compaction is active and no
        // compaction has completed for 100 ms.
        let mut quiet = 0;
        let mut completed = self.db.compactions_completed();
        while quiet < 10 {
            thread::sleep(Duration::from_millis(10));
            let now = self.db.compactions_completed();
            quiet = if self.busy() || now != completed { 0 } else { quiet + 1 };
            completed = now;
        }
        Ok(())
    }

    fn figures(&self) -> Result<Figures> {
        let mut figures = Figures::default();
        figures.counters.insert("compactions".into(), self.db.compactions_completed() as u64);
        figures.counters.insert("compaction_us".into(), self.db.time_compacting().as_micros() as u64);
        for (name, value) in [
            ("cache_bytes", self.db.cache_size()),
            ("write_buffer_bytes", self.db.write_buffer_size()),
            ("journals", self.db.journal_count() as u64),
            ("tables", self.tree.table_count() as u64),
            ("tables_at_level_0", self.tree.l0_table_count() as u64),
            ("disk_bytes", self.tree.disk_space()),
        ] {
            figures.gauges.insert(name.into(), value as f64);
        }
        Ok(figures)
    }

    fn close(self: Box<Self>) -> Result<()> {
        Ok(self.db.persist(PersistMode::SyncAll)?)
    }
}

struct Handle<'a>(&'a Store);

impl Session for Handle<'_> {
    fn put(&mut self, key: &[u8], value: &[u8]) -> Result<()> {
        let _only = self.0.stripes.of(key);
        Ok(self.0.tree.insert(key, value)?)
    }

    fn get(&mut self, key: &[u8], value: &mut Vec<u8>) -> Result<bool> {
        value.clear();
        let found = self.0.tree.get(key)?;
        value.extend_from_slice(found.as_deref().unwrap_or(&[]));
        Ok(found.is_some())
    }

    fn delete(&mut self, key: &[u8]) -> Result<()> {
        let _only = self.0.stripes.of(key);
        Ok(self.0.tree.remove(key)?)
    }

    fn merge_add(&mut self, key: &[u8], delta: u64) -> Result<()> {
        let _only = self.0.stripes.of(key);
        let sum = add(self.0.tree.get(key)?.as_deref(), delta)?;
        Ok(self.0.tree.insert(key, sum)?)
    }

    fn delete_range(&mut self, _from: &[u8], _to: &[u8]) -> Result<()> {
        Err(NO_RANGE_DELETES.into())
    }

    fn scan(&mut self, from: &[u8], limit: usize, visit: &mut dyn FnMut(&[u8], &[u8])) -> Result<usize> {
        let mut count = 0;
        for guard in self.0.tree.range(from..).take(limit) {
            let (key, value) = guard.into_inner()?;
            visit(&key, &value);
            count += 1;
        }
        Ok(count)
    }

    fn scan_back(&mut self, from: &[u8], limit: usize, visit: &mut dyn FnMut(&[u8], &[u8])) -> Result<usize> {
        let mut count = 0;
        for guard in self.0.tree.range(..=from).rev().take(limit) {
            let (key, value) = guard.into_inner()?;
            visit(&key, &value);
            count += 1;
        }
        Ok(count)
    }

    fn write_batch(&mut self, writes: &[Write]) -> Result<()> {
        let _only = self.0.stripes.of_all(writes.iter().map(|write| match write {
            Write::Put(key, _) | Write::Delete(key) => *key,
        }));
        let mut batch = self.0.db.batch();
        for write in writes {
            match *write {
                Write::Put(key, value) => batch.insert(&self.0.tree, key, value),
                Write::Delete(key) => batch.remove(&self.0.tree, key),
            }
        }
        Ok(batch.commit()?)
    }

    fn load_sorted(&mut self, rows: &mut Rows) -> Result<u64> {
        let (mut loaded, mut ingestion) = (0, self.0.tree.start_ingestion()?);
        while fill(rows, usize::MAX, &mut loaded, |key, value| Ok(ingestion.write(key, value)?))? {}
        ingestion.finish()?;
        Ok(loaded)
    }
}
