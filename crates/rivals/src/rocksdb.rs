//! The adapter of RocksDB, with levelled and with universal compaction. It uses the crate `rocksdb`, linked to the
//! system's library.
//!
//! The budget covers all memory of RocksDB. Write buffers get at most three eighths of the budget. Another part is
//! reserved for open files and compaction buffers. The rest is the block cache, which includes indexes and filters. The
//! adapter uses direct I/O, so the page cache needs no additional memory.

use std::path::Path;
use std::thread;
use std::time::Duration;

use pandodb_lab::engine::{Engine, Figures, Opener, Result, Session, Setup};
use rocksdb::{
    BlockBasedIndexType, BlockBasedOptions, Cache, ColumnFamily, ColumnFamilyDescriptor, DB, DBCompactionStyle,
    DBCompressionType, DEFAULT_COLUMN_FAMILY_NAME, MergeOperands, Options, UniversalCompactOptions, WriteBatch,
};

use crate::{Promise, admit, settings, size};

const BACKGROUND_JOBS: i32 = 2;
const WRITE_BUFFERS: i32 = 3;
const BLOCK: usize = 4 << 10;
const BITS_PER_KEY: f64 = 10.0;
const COMPACTION_READAHEAD: usize = 2 << 20;
const L0_TRIGGER: i32 = 4;

/// Opens RocksDB with one style of compaction.
pub struct Rocks {
    universal: bool,
}

impl Rocks {
    /// Levelled compaction; each level is ten times as large as the one above.
    pub fn level() -> Self {
        Self { universal: false }
    }

    /// Universal compaction: sorted runs of similar sizes are merged.
    pub fn universal() -> Self {
        Self { universal: true }
    }
}

/// The parts of the memory budget, in bytes.
struct Shares {
    write_buffer: usize,
    cache: usize,
}

impl Shares {
    fn of(budget: usize) -> Self {
        let write_buffer = (budget / 8).clamp(2 << 20, 64 << 20);
        // The reserved part is for the buffers of two compaction jobs and the library's memory for open files, which
        // are not part of the block cache.
        let overhead = (budget / 16).clamp(4 << 20, 24 << 20);
        let cache = budget - write_buffer * WRITE_BUFFERS as usize - overhead;
        assert!(cache >= budget / 4, "the block cache is at least a quarter of the budget");
        Self { write_buffer, cache }
    }
}

fn table_options(cache: &Cache) -> BlockBasedOptions {
    let mut table = BlockBasedOptions::default();
    table.set_block_cache(cache);
    table.set_block_size(BLOCK);
    table.set_format_version(5);
    table.set_bloom_filter(BITS_PER_KEY, false);
    table.set_cache_index_and_filter_blocks(true);
    table.set_pin_l0_filter_and_index_blocks_in_cache(true);
    // In a small cache, the index or filter of a complete table would evict hundreds of data blocks. So indexes and
    // filters are divided into partitions of 4 KiB.
    table.set_index_type(BlockBasedIndexType::TwoLevelIndexSearch);
    table.set_partition_filters(true);
    table.set_metadata_block_size(BLOCK);
    table.set_pin_top_level_index_and_filter(true);
    table
}

fn options(universal: bool, shares: &Shares, cache: &Cache) -> Options {
    let mut options = Options::default();
    options.create_if_missing(true);
    options.set_block_based_table_factory(&table_options(cache));
    options.set_compression_type(DBCompressionType::None);
    options.set_merge_operator_associative("add_u64", add_operands);
    options.set_use_direct_reads(true);
    options.set_use_direct_io_for_flush_and_compaction(true);
    options.set_compaction_readahead_size(COMPACTION_READAHEAD);
    options.set_write_buffer_size(shares.write_buffer);
    options.set_max_write_buffer_number(WRITE_BUFFERS);
    options.set_db_write_buffer_size(shares.write_buffer * WRITE_BUFFERS as usize);
    options.set_max_background_jobs(BACKGROUND_JOBS);
    options.set_enable_pipelined_write(true);
    options.set_allow_concurrent_memtable_write(true);
    options.set_max_open_files(-1);
    options.set_keep_log_file_num(2);
    options.set_stats_dump_period_sec(0);
    options.set_stats_persist_period_sec(0);
    options.set_level_zero_file_num_compaction_trigger(L0_TRIGGER);
    options.set_target_file_size_base(shares.write_buffer as u64);
    if universal {
        options.set_compaction_style(DBCompactionStyle::Universal);
        options.set_universal_compaction_options(&UniversalCompactOptions::default());
    } else {
        options.set_max_bytes_for_level_base((shares.write_buffer * L0_TRIGGER as usize) as u64);
        options.set_level_compaction_dynamic_level_bytes(true);
    }
    options
}

/// Adds the base, if any, and all operands. Never fails, because a value that is not a counter counts as 0.
fn add_operands(_key: &[u8], base: Option<&[u8]>, operands: &MergeOperands) -> Option<Vec<u8>> {
    let number = |bytes: &[u8]| bytes.try_into().map_or(0, u64::from_le_bytes);
    let sum = operands.iter().fold(base.map_or(0, number), |sum, o| sum.wrapping_add(number(o)));
    Some(sum.to_le_bytes().to_vec())
}

impl Opener for Rocks {
    fn name(&self) -> String {
        if self.universal { "rocksdb-universal".into() } else { "rocksdb".into() }
    }

    fn open(&self, directory: &Path, setup: &Setup) -> Result<Box<dyn Engine>> {
        admit(&self.name(), setup, Promise::FULL)?;
        let shares = Shares::of(setup.memory_budget);
        let cache = Cache::new_lru_cache(shares.cache)?;
        let options = options(self.universal, &shares, &cache);
        let default = ColumnFamilyDescriptor::new(DEFAULT_COLUMN_FAMILY_NAME, options.clone());
        let db = DB::open_cf_descriptors(&options, directory, [default])?;
        Ok(Box::new(Store { db, shares, universal: self.universal }))
    }
}

struct Store {
    db: DB,
    shares: Shares,
    universal: bool,
}

impl Store {
    fn property(&self, name: &str) -> Result<u64> {
        Ok(self.db.property_int_value(name)?.unwrap_or(0))
    }

    /// The number of flushes and compactions that are running or pending.
    fn pending(&self) -> Result<u64> {
        let names = [
            "rocksdb.mem-table-flush-pending",
            "rocksdb.compaction-pending",
            "rocksdb.num-running-flushes",
            "rocksdb.num-running-compactions",
        ];
        names.into_iter().map(|name| self.property(name)).sum()
    }
}

impl Engine for Store {
    fn configuration(&self) -> Vec<(String, String)> {
        let Shares { write_buffer, cache } = self.shares;
        let mut all = settings([
            ("engine", format!("RocksDB {}, crate rocksdb {}", env!("RIVALS_LIBROCKSDB"), env!("RIVALS_ROCKSDB"))),
            ("durability", "WAL on, written to the page cache at each commit, not synced".into()),
            ("write_buffer_size", size(write_buffer)),
            ("max_write_buffer_number", WRITE_BUFFERS.to_string()),
            ("db_write_buffer_size", size(write_buffer * WRITE_BUFFERS as usize)),
            ("block_cache", size(cache)),
            ("block_size", size(BLOCK)),
            ("format_version", "5".into()),
            ("filter", format!("Bloom, {BITS_PER_KEY} bits a key, partitioned")),
            ("index", "two levels, in the block cache with the filters; top level and L0 pinned".into()),
            ("compression", "none".into()),
            ("direct_io", "reads, flushes, compactions".into()),
            ("compaction_readahead_size", size(COMPACTION_READAHEAD)),
            ("max_background_jobs", BACKGROUND_JOBS.to_string()),
            ("enable_pipelined_write", "true".into()),
            ("allow_concurrent_memtable_write", "true".into()),
            ("max_open_files", "-1".into()),
            ("level0_file_num_compaction_trigger", L0_TRIGGER.to_string()),
            ("target_file_size_base", size(write_buffer)),
            ("merge_operator", "add_u64, associative".into()),
        ]);
        all.extend(if self.universal {
            settings([("compaction_style", "universal".into()), ("universal", "the library's defaults".into())])
        } else {
            settings([
                ("compaction_style", "level".into()),
                (
                    "max_bytes_for_level_base",
                    format!("{}; level_compaction_dynamic_level_bytes", size(write_buffer * L0_TRIGGER as usize)),
                ),
            ])
        });
        all
    }

    fn session(&self) -> Result<Box<dyn Session + '_>> {
        let family = self.db.cf_handle(DEFAULT_COLUMN_FAMILY_NAME).ok_or("no default column family")?;
        Ok(Box::new(Handle { db: &self.db, family }))
    }

    fn settle(&self) -> Result<()> {
        self.db.flush()?;
        // When a compaction ends, another compaction may become necessary. So this loop waits until two successive
        // checks find no pending work.
        let mut quiet = 0;
        while quiet < 2 {
            quiet = if self.pending()? == 0 { quiet + 1 } else { 0 };
            thread::sleep(Duration::from_millis(5));
        }
        Ok(())
    }

    fn debt(&self) -> Option<u64> {
        let compaction = self.property("rocksdb.estimate-pending-compaction-bytes").ok()?;
        let all = self.property("rocksdb.cur-size-all-mem-tables").ok()?;
        let active = self.property("rocksdb.cur-size-active-mem-table").ok()?;
        Some(compaction + all.saturating_sub(active))
    }

    fn figures(&self) -> Result<Figures> {
        let mut figures = Figures::default();
        let gauges = [
            "cur-size-all-mem-tables",
            "block-cache-usage",
            "block-cache-pinned-usage",
            "estimate-table-readers-mem",
            "estimate-pending-compaction-bytes",
            "total-sst-files-size",
            "live-sst-files-size",
            "estimate-live-data-size",
            "actual-delayed-write-rate",
            "is-write-stopped",
        ];
        for name in gauges {
            figures.gauges.insert(name.replace('-', "_"), self.property(&format!("rocksdb.{name}"))? as f64);
        }
        for level in 0..7 {
            let files = self.db.property_value(&format!("rocksdb.num-files-at-level{level}"))?;
            let files = files.and_then(|text| text.trim().parse().ok()).unwrap_or(0.0);
            figures.gauges.insert(format!("files_at_level_{level}"), files);
        }
        Ok(figures)
    }

    fn close(self: Box<Self>) -> Result<()> {
        self.db.flush()?;
        self.db.cancel_all_background_work(true);
        Ok(())
    }
}

struct Handle<'a> {
    db: &'a DB,
    family: &'a ColumnFamily,
}

impl Session for Handle<'_> {
    fn put(&mut self, key: &[u8], value: &[u8]) -> Result<()> {
        Ok(self.db.put(key, value)?)
    }

    fn get(&mut self, key: &[u8], value: &mut Vec<u8>) -> Result<bool> {
        value.clear();
        let found = self.db.get_pinned(key)?;
        value.extend_from_slice(found.as_deref().unwrap_or(&[]));
        Ok(found.is_some())
    }

    fn delete(&mut self, key: &[u8]) -> Result<()> {
        Ok(self.db.delete(key)?)
    }

    fn merge_add(&mut self, key: &[u8], delta: u64) -> Result<()> {
        Ok(self.db.merge(key, delta.to_le_bytes())?)
    }

    fn delete_range(&mut self, from: &[u8], to: &[u8]) -> Result<()> {
        // RocksDB returns an error for a range that ends before it begins. The lab's trait treats such a range as
        // empty.
        if from < to {
            let mut batch = WriteBatch::default();
            batch.delete_range(from, to);
            self.db.write(batch)?;
        }
        Ok(())
    }

    fn scan(&mut self, from: &[u8], limit: usize, visit: &mut dyn FnMut(&[u8], &[u8])) -> Result<usize> {
        let mut iterator = self.db.raw_iterator();
        let mut count = 0;
        if limit > 0 {
            iterator.seek(from);
        }
        while count < limit
            && let Some((key, value)) = iterator.item()
        {
            visit(key, value);
            count += 1;
            if count < limit {
                iterator.next();
            }
        }
        iterator.status()?;
        Ok(count)
    }

    fn multi_get(&mut self, keys: &[Vec<u8>], visit: &mut dyn FnMut(usize, &[u8])) -> Result<usize> {
        let mut found = 0;
        for (i, value) in self.db.batched_multi_get_cf(self.family, keys, false).into_iter().enumerate() {
            if let Some(value) = value? {
                visit(i, &value);
                found += 1;
            }
        }
        Ok(found)
    }
}
