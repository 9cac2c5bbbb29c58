//! The adapter of LevelDB, which uses LevelDB's C interface.
//!
//! LevelDB uses memory for two memtables, the block cache, and the index and filter of every open table. Indexes and
//! filters are not in the block cache. Their memory is limited only by the number of open tables. Each write puts its
//! log record into the page cache.

use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use pandodb_lab::engine::{Engine, Figures, Need, Opener, Result, Session, Setup, Write};

use crate::ffi::leveldb::{self as ffi, Db, Settings};
use crate::stripes::Stripes;
use crate::{Promise, add, admit, settings, size};

const MAX_FILE: usize = 16 << 20;
const BLOCK: usize = 4 << 10;
const BITS_PER_KEY: usize = 10;
/// The size in bytes of the index (one entry for each block) and the filter of a full table of 100-byte entries.
const TABLE_OVERHEAD: usize = 400 << 10;
/// Level 0 is compacted once it has this number of files. Level `n` is compacted once it has `10^n` MB. Both limits are
/// constants of LevelDB.
const L0_TRIGGER: u64 = 4;
const MEGABYTE: u64 = 1 << 20;

/// Opens LevelDB.
pub struct Level;

fn shares(budget: usize) -> Settings {
    let write_buffer = (budget / 8).clamp(2 << 20, 64 << 20);
    let tables = budget / 4;
    let cache = budget - 2 * write_buffer - tables - (2 << 20);
    let max_open_files = (tables / TABLE_OVERHEAD).max(10) + 10; // LevelDB reserves ten for other files
    Settings { write_buffer, cache, max_open_files, max_file: MAX_FILE, block: BLOCK, bits_per_key: BITS_PER_KEY }
}

impl Opener for Level {
    fn name(&self) -> String {
        "leveldb".into()
    }

    fn open(&self, directory: &Path, setup: &Setup) -> Result<Box<dyn Engine>> {
        admit("leveldb", setup, Promise::FULL)?;
        let settings = shares(setup.memory_budget);
        let db = Db::open(directory, &settings)?;
        Ok(Box::new(Store { db, settings, stripes: Stripes::new() }))
    }
}

struct Store {
    db: Db,
    settings: Settings,
    stripes: Stripes,
}

/// A level in `leveldb.stats`.
#[derive(Debug, PartialEq)]
struct Depth {
    level: u32,
    files: u64,
    megabytes: u64,
    read_megabytes: f64,
    written_megabytes: f64,
}

/// Parses the table of `leveldb.stats`: level, files, size, seconds, read, written. Sizes are in MB.
fn depths(stats: &str) -> Vec<Depth> {
    let parse = |line: &str| {
        let mut words = line.split_whitespace();
        let (level, files, megabytes) = (words.next()?, words.next()?, words.next()?);
        let (_, read, written) = (words.next()?, words.next()?, words.next()?);
        Some(Depth {
            level: level.parse().ok()?,
            files: files.parse().ok()?,
            megabytes: megabytes.parse().ok()?,
            read_megabytes: read.parse().ok()?,
            written_megabytes: written.parse().ok()?,
        })
    };
    stats.lines().filter_map(parse).collect()
}

/// Returns the number of bytes that must be compacted. Also returns whether a level is so near its limit that the
/// rounded sizes do not show whether the level exceeds the limit.
fn due(depths: &[Depth]) -> (u64, bool) {
    let (mut bytes, mut near) = (0, false);
    for depth in depths {
        let limit = 10_u64.saturating_pow(depth.level);
        if depth.level == 0 {
            bytes += if depth.files >= L0_TRIGGER { depth.megabytes.max(1) * MEGABYTE } else { 0 };
        } else {
            bytes += depth.megabytes.saturating_sub(limit) * MEGABYTE;
            near |= depth.megabytes == limit;
        }
    }
    (bytes, near)
}

impl Store {
    fn stats(&self) -> Result<String> {
        Ok(self.db.property(c"leveldb.stats").ok_or("LevelDB has no property leveldb.stats")?)
    }
}

impl Engine for Store {
    fn configuration(&self) -> Vec<(String, String)> {
        let Settings { write_buffer, cache, max_open_files, .. } = self.settings;
        settings([
            ("engine", format!("LevelDB {}", ffi::version())),
            ("durability", "log on, written to the page cache at each write, not synced".into()),
            ("write_buffer_size", format!("{}, twice", size(write_buffer))),
            ("block_cache", size(cache)),
            ("max_open_files", format!("{max_open_files}: indexes and filters lie outside the cache")),
            ("max_file_size", size(MAX_FILE)),
            ("block_size", size(BLOCK)),
            ("filter", format!("Bloom, {BITS_PER_KEY} bits a key")),
            ("compression", "none".into()),
            ("merge", "read and write under a striped lock, which puts and deletes take too".into()),
        ])
    }

    fn lacks(&self, need: Need) -> Option<&'static str> {
        match need {
            Need::Merge | Need::ReverseScan | Need::Batch => None,
            Need::RangeDelete => Some("LevelDB has no range deletes"),
            Need::SortedLoad => Some("LevelDB has no interface for bulk loading"),
            Need::Transactions => Some("LevelDB has no transactions"),
        }
    }

    fn session(&self) -> Result<Box<dyn Session + '_>> {
        Ok(Box::new(Handle { store: self, value: Vec::new() }))
    }

    fn settle(&self) -> Result<()> {
        self.db.flush();
        // LevelDB does not report running compactions, but a level stays above its limit until its compaction has
        // ended. Sizes are reported in whole megabytes. So if a level seems to be exactly at its limit, this loop waits
        // until no value has changed for two seconds.
        let (mut before, mut since) = (self.stats()?, Instant::now());
        loop {
            let (bytes, near) = due(&depths(&before));
            if bytes == 0 && (!near || since.elapsed() > Duration::from_secs(2)) {
                return Ok(());
            }
            thread::sleep(Duration::from_millis(10));
            let now = self.stats()?;
            if now != before {
                (before, since) = (now, Instant::now());
            }
        }
    }

    fn debt(&self) -> Option<u64> {
        Some(due(&depths(&self.stats().ok()?)).0)
    }

    fn figures(&self) -> Result<Figures> {
        let mut figures = Figures::default();
        let memory = self.db.property(c"leveldb.approximate-memory-usage");
        let memory = memory.and_then(|text| text.parse().ok()).unwrap_or(0.0);
        figures.gauges.insert("approximate_memory".into(), memory);
        let (mut read, mut written) = (0.0, 0.0);
        for depth in depths(&self.stats()?) {
            figures.gauges.insert(format!("files_at_level_{}", depth.level), depth.files as f64);
            read += depth.read_megabytes;
            written += depth.written_megabytes;
        }
        figures.counters.insert("compaction_read_mb".into(), read as u64);
        figures.counters.insert("compaction_written_mb".into(), written as u64);
        Ok(figures)
    }

    fn close(self: Box<Self>) -> Result<()> {
        Ok(())
    }
}

struct Handle<'a> {
    store: &'a Store,
    value: Vec<u8>,
}

impl Session for Handle<'_> {
    fn put(&mut self, key: &[u8], value: &[u8]) -> Result<()> {
        let _only = self.store.stripes.of(key);
        self.store.db.put(key, value)
    }

    fn get(&mut self, key: &[u8], value: &mut Vec<u8>) -> Result<bool> {
        self.store.db.get(key, value)
    }

    fn delete(&mut self, key: &[u8]) -> Result<()> {
        let _only = self.store.stripes.of(key);
        self.store.db.delete(key)
    }

    fn merge_add(&mut self, key: &[u8], delta: u64) -> Result<()> {
        let _only = self.store.stripes.of(key);
        let found = self.store.db.get(key, &mut self.value)?;
        self.store.db.put(key, &add(found.then_some(self.value.as_slice()), delta)?)
    }

    fn delete_range(&mut self, _from: &[u8], _to: &[u8]) -> Result<()> {
        Err("LevelDB has no range deletes".into())
    }

    fn scan(&mut self, from: &[u8], limit: usize, visit: &mut dyn FnMut(&[u8], &[u8])) -> Result<usize> {
        self.store.db.scan(from, limit, visit)
    }

    fn scan_back(&mut self, from: &[u8], limit: usize, visit: &mut dyn FnMut(&[u8], &[u8])) -> Result<usize> {
        self.store.db.scan_back(from, limit, visit)
    }

    fn write_batch(&mut self, writes: &[Write]) -> Result<()> {
        let _only = self.store.stripes.of_all(writes.iter().map(|write| match write {
            Write::Put(key, _) | Write::Delete(key) => *key,
        }));
        self.store.db.write(writes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn statistics_are_read() {
        let text = "                               Compactions\nLevel  Files Size(MB) Time(sec) Read(MB) Write(MB)\n\
                    --------------------------------------------------\n  0        5       12         0        0        40\n  \
                    1        3       10         1       20        30\n  2        9      101         1       20        30\n";
        let depths = depths(text);
        assert_eq!(depths.len(), 3);
        assert_eq!(depths[0].files, 5);
        assert_eq!(due(&depths), (13 * MEGABYTE, true));
        assert_eq!(due(&depths[1..2]), (0, true));
    }
}
