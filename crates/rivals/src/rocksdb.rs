//! The adapter of RocksDB, with levelled and with universal compaction, and with large values in blob files. It uses the crate `rocksdb`, linked to the
//! system's library.
//!
//! The budget covers all memory of RocksDB. Write buffers get at most three eighths of the budget. Another part is
//! reserved for open files and compaction buffers. The rest is the block cache, which includes indexes and filters. The
//! adapter uses direct I/O, so the page cache needs no additional memory.

use std::fs;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

use pandodb_lab::engine::{Engine, Figures, Need, Opener, Result, Rows, Session, Setup, Write};
use rocksdb::{
    BlockBasedIndexType, BlockBasedOptions, Cache, ColumnFamily, ColumnFamilyDescriptor, DB, DBCompactionStyle,
    DBCompressionType, DEFAULT_COLUMN_FAMILY_NAME, IngestExternalFileOptions, MergeOperands, Options, SstFileWriter,
    UniversalCompactOptions, WriteBatch,
};

use crate::{Promise, admit, fill, settings, size};

mod transactional;
pub use transactional::{OptimisticRocks, PessimisticRocks};

const BACKGROUND_JOBS: i32 = 2;
const WRITE_BUFFERS: i32 = 3;
const BLOCK: usize = 4 << 10;
const BITS_PER_KEY: f64 = 10.0;
const COMPACTION_READAHEAD: usize = 2 << 20;
const L0_TRIGGER: i32 = 4;
/// With blob files, values of this length or more are stored in blob files. The wiki of RocksDB recommends blob files for
/// values of 1 KiB and more.
const MIN_BLOB: u64 = 1 << 10;
/// Bytes of a table that a sorted load writes.
const LOAD_FILE: u64 = 64 << 20;
/// Rows between two checks of the size of such a table.
const LOAD_ROWS: usize = 1000;

/// A configuration of RocksDB.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Style {
    Level,
    Universal,
    /// Levelled compaction, and large values in blob files.
    Blobs,
}

/// Opens RocksDB with one configuration.
pub struct Rocks {
    style: Style,
}

impl Rocks {
    /// Levelled compaction; each level is ten times as large as the one above.
    pub fn level() -> Self {
        Self { style: Style::Level }
    }

    /// Universal compaction: sorted runs of similar sizes are merged.
    pub fn universal() -> Self {
        Self { style: Style::Universal }
    }

    /// Levelled compaction, with values of 1 KiB and more in blob files.
    pub fn blobs() -> Self {
        Self { style: Style::Blobs }
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

fn options(style: Style, shares: &Shares, cache: &Cache) -> Options {
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
    if style == Style::Blobs {
        options.set_enable_blob_files(true);
        options.set_min_blob_size(MIN_BLOB);
        options.set_enable_blob_gc(true);
        options.set_blob_compression_type(DBCompressionType::None);
        options.set_blob_compaction_readahead_size(COMPACTION_READAHEAD as u64);
    }
    if style == Style::Universal {
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
        match self.style {
            Style::Level => "rocksdb".into(),
            Style::Universal => "rocksdb-universal".into(),
            Style::Blobs => "rocksdb-blob".into(),
        }
    }

    fn open(&self, directory: &Path, setup: &Setup) -> Result<Box<dyn Engine>> {
        admit(&self.name(), setup, Promise::FULL)?;
        let shares = Shares::of(setup.memory_budget);
        let cache = Cache::new_lru_cache(shares.cache)?;
        let options = options(self.style, &shares, &cache);
        let default = ColumnFamilyDescriptor::new(DEFAULT_COLUMN_FAMILY_NAME, options.clone());
        let db = DB::open_cf_descriptors(&options, directory, [default])?;
        let parts = directory.join(PARTS);
        Ok(Box::new(Store { db, options, parts, shares, style: self.style }))
    }
}

/// The directory inside the store in which a sorted load writes its tables before RocksDB adopts them.
const PARTS: &str = "sorted-load";

struct Store {
    db: DB,
    options: Options,
    parts: PathBuf,
    shares: Shares,
    style: Style,
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
            ("sorted loads", format!("tables of {}, ingested in one step", size(LOAD_FILE as usize))),
        ]);
        if self.style == Style::Blobs {
            let enabled = format!("values of {} and more; garbage collection on; not cached", size(MIN_BLOB as usize));
            all.extend(settings([("blob_files", enabled)]));
        }
        all.extend(if self.style == Style::Universal {
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

    fn lacks(&self, need: Need) -> Option<&'static str> {
        (need == Need::Transactions)
            .then_some("a plain database of RocksDB has no transactions; use rocksdb-optimistic or rocksdb-pessimistic")
    }

    fn session(&self) -> Result<Box<dyn Session + '_>> {
        let family = self.db.cf_handle(DEFAULT_COLUMN_FAMILY_NAME).ok_or("no default column family")?;
        Ok(Box::new(Handle { store: self, db: &self.db, family }))
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
    store: &'a Store,
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

    fn scan_back(&mut self, from: &[u8], limit: usize, visit: &mut dyn FnMut(&[u8], &[u8])) -> Result<usize> {
        let mut iterator = self.db.raw_iterator();
        let mut count = 0;
        if limit > 0 {
            iterator.seek_for_prev(from);
        }
        while count < limit
            && let Some((key, value)) = iterator.item()
        {
            visit(key, value);
            count += 1;
            if count < limit {
                iterator.prev();
            }
        }
        iterator.status()?;
        Ok(count)
    }

    fn write_batch(&mut self, writes: &[Write]) -> Result<()> {
        let mut batch = WriteBatch::default();
        for write in writes {
            match write {
                Write::Put(key, value) => batch.put(key, value),
                Write::Delete(key) => batch.delete(key),
            }
        }
        Ok(self.db.write(batch)?)
    }

    fn load_sorted(&mut self, rows: &mut Rows) -> Result<u64> {
        let Store { options, parts, .. } = self.store;
        fs::create_dir_all(parts)?;
        let (mut paths, mut loaded, mut more) = (Vec::new(), 0, true);
        while more {
            let before = loaded;
            let path = parts.join(format!("{}.sst", paths.len()));
            let mut writer = SstFileWriter::create(options);
            writer.open(&path)?;
            while more && writer.file_size() < LOAD_FILE {
                more = fill(rows, LOAD_ROWS, &mut loaded, |key, value| Ok(writer.put(key, value)?))?;
            }
            // RocksDB refuses to finish a table without rows.
            if loaded > before {
                writer.finish()?;
                paths.push(path);
            }
        }
        if !paths.is_empty() {
            let mut how = IngestExternalFileOptions::default();
            how.set_move_files(true);
            self.db.ingest_external_file_opts(&how, paths)?;
        }
        fs::remove_dir_all(parts)?;
        Ok(loaded)
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
