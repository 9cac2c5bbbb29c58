//! The adapter of Bf-Tree. Bf-Tree has 4 KiB leaf pages in a file, and keeps mini-pages of frequently used records in a
//! circular buffer in memory.
//!
//! Bf-Tree is measured without a log. It can write a log but cannot replay it: `BfTree::recovery` is documented as
//! "incomplete, internal use only", and stops at the first split. So a kill of the process loses acknowledged writes,
//! and every result of this engine carries a remark about this. `close` writes a snapshot, and `open` starts from the
//! newest snapshot.

use std::fs;
use std::path::{Path, PathBuf};

use bf_tree::{BfTree, Config, LeafInsertResult, LeafReadResult, ScanReturnField, StorageBackend};
use pandodb_lab::engine::{Engine, Figures, Need, Opener, Result, Session, Setup};

use crate::stripes::Stripes;
use crate::{Promise, add, admit, settings, size};

const LEAF_PAGE: usize = 4096;
const LONGEST_KEY: usize = 64;
const LONGEST_RECORD: usize = 1900;
const SNAPSHOT: &str = "closed-";

/// The promise: a kill of the process loses all writes since the store was opened, and only short records are accepted.
pub const PROMISE: Promise = Promise {
    survives_close: true,
    survives_kill: false,
    empty_values: false,
    longest_key: LONGEST_KEY,
    longest_value: LONGEST_RECORD - LONGEST_KEY,
    background_threads: false,
};

/// Opens Bf-Tree.
pub struct Bf;

/// The size of the circular buffer in bytes: a power of two, at most 7/8 of the budget. The inner nodes and the mapping
/// table are outside the buffer and take the rest.
fn buffer(budget: usize) -> usize {
    let most = budget - budget / 8;
    1 << most.ilog2()
}

/// The number and the path of the newest snapshot.
fn newest(directory: &Path) -> Result<Option<(u64, PathBuf)>> {
    let mut best = None;
    for entry in fs::read_dir(directory)? {
        let path = entry?.path();
        let name = path.file_name().and_then(|n| n.to_str()).and_then(|n| n.strip_prefix(SNAPSHOT));
        if let Some(number) = name.and_then(|n| n.parse().ok()) {
            best = best.max(Some((number, path)));
        }
    }
    Ok(best)
}

impl Opener for Bf {
    fn name(&self) -> String {
        "bf-tree".into()
    }

    fn survives_kill(&self) -> bool {
        PROMISE.survives_kill
    }

    fn open(&self, directory: &Path, setup: &Setup) -> Result<Box<dyn Engine>> {
        admit("bf-tree", setup, PROMISE)?;
        let buffer = buffer(setup.memory_budget);
        let (tree, source, next) = match newest(directory)? {
            Some((number, path)) => {
                (BfTree::new_from_cpr_snapshot(&path, true, None, Some(buffer), None), path, number + 1)
            }
            None => {
                let path = directory.join("pages");
                (BfTree::with_config(config(&path, buffer), None), path, 0)
            }
        };
        let tree = tree.map_err(|e| format!("{e:?}"))?;
        let snapshot = directory.join(format!("{SNAPSHOT}{next}"));
        Ok(Box::new(Store { tree, buffer, source, snapshot, stripes: Stripes::new() }))
    }
}

fn config(pages: &Path, buffer: usize) -> Config {
    let mut config = Config::default();
    config
        .storage_backend(StorageBackend::Std)
        .file_path(pages)
        .cb_size_byte(buffer)
        .leaf_page_size(LEAF_PAGE)
        .cb_max_key_len(LONGEST_KEY)
        .cb_min_record_size(4)
        .cb_max_record_size(LONGEST_RECORD)
        .use_snapshot(true);
    config
}

struct Store {
    tree: BfTree,
    buffer: usize,
    /// The file of pages while the store is open. This is a new file, or the opened snapshot, which the store modifies
    /// in place.
    source: PathBuf,
    /// The snapshot that `close` writes.
    snapshot: PathBuf,
    stripes: Stripes,
}

impl Engine for Store {
    fn configuration(&self) -> Vec<(String, String)> {
        settings([
            ("engine", format!("bf-tree {}", env!("RIVALS_BF_TREE"))),
            ("durability", "NONE: acknowledged writes do not survive the death of the process".into()),
            ("cb_size_byte", format!("{}, the power of two within 7/8 of the budget", size(self.buffer))),
            ("storage_backend", "Std: pread and pwrite, page cache".into()),
            ("leaf_page_size", size(LEAF_PAGE)),
            ("cb_max_key_len", LONGEST_KEY.to_string()),
            ("cb_max_record_size", LONGEST_RECORD.to_string()),
            ("use_snapshot", "true: taken at the close".into()),
            ("merge", "read and write under a striped lock, which puts and deletes take too".into()),
        ])
    }

    fn lacks(&self, need: Need) -> Option<&'static str> {
        match need {
            Need::Merge => None,
            Need::RangeDelete => Some("Bf-Tree has no range deletes"),
            Need::ReverseScan => Some("Bf-Tree has no reverse scans"),
            Need::Batch => Some("Bf-Tree has no atomic batches"),
            Need::SortedLoad => Some("Bf-Tree has no interface for bulk loading"),
            Need::Transactions => Some("Bf-Tree has no transactions"),
        }
    }

    fn longest(&self) -> (usize, usize) {
        (PROMISE.longest_key, PROMISE.longest_value)
    }

    fn session(&self) -> Result<Box<dyn Session + '_>> {
        Ok(Box::new(Handle { store: self, buffer: vec![0; LEAF_PAGE] }))
    }

    fn settle(&self) -> Result<()> {
        Ok(())
    }

    fn figures(&self) -> Result<Figures> {
        let mut figures = Figures::default();
        figures.gauges.insert("buffer_bytes".into(), self.buffer as f64);
        Ok(figures)
    }

    fn close(self: Box<Self>) -> Result<()> {
        let Self { tree, snapshot, source, .. } = *self;
        tree.cpr_snapshot(&snapshot);
        drop(tree);
        // The snapshot contains all pages now, so the old file is not needed.
        Ok(fs::remove_file(source)?)
    }
}

struct Handle<'a> {
    store: &'a Store,
    buffer: Vec<u8>,
}

impl Handle<'_> {
    /// Reads the value of a key into the buffer and returns the length of the value, or `None` if the key is absent.
    fn read(&mut self, key: &[u8]) -> Result<Option<usize>> {
        match self.store.tree.read(key, &mut self.buffer) {
            LeafReadResult::Found(len) => Ok(Some(len as usize)),
            LeafReadResult::Deleted | LeafReadResult::NotFound => Ok(None),
            LeafReadResult::InvalidKey => Err(refused(key)),
        }
    }

    fn insert(&mut self, key: &[u8], value: &[u8]) -> Result<()> {
        match self.store.tree.insert(key, value) {
            LeafInsertResult::Success => Ok(()),
            LeafInsertResult::InvalidKV(why) => Err(why.into()),
        }
    }
}

fn refused(key: &[u8]) -> pandodb_lab::engine::Failure {
    format!("Bf-Tree accepts keys of 1 to {LONGEST_KEY} bytes; this one has {}", key.len()).into()
}

impl Session for Handle<'_> {
    fn put(&mut self, key: &[u8], value: &[u8]) -> Result<()> {
        let _only = self.store.stripes.of(key);
        self.insert(key, value)
    }

    fn get(&mut self, key: &[u8], value: &mut Vec<u8>) -> Result<bool> {
        value.clear();
        let found = self.read(key)?;
        value.extend_from_slice(&self.buffer[..found.unwrap_or(0)]);
        Ok(found.is_some())
    }

    fn delete(&mut self, key: &[u8]) -> Result<()> {
        // Here, Bf-Tree would ignore an invalid key and report no error.
        if key.is_empty() || key.len() > LONGEST_KEY {
            return Err(refused(key));
        }
        let _only = self.store.stripes.of(key);
        self.store.tree.delete(key);
        Ok(())
    }

    fn merge_add(&mut self, key: &[u8], delta: u64) -> Result<()> {
        let _only = self.store.stripes.of(key);
        let found = self.read(key)?;
        let sum = add(found.map(|len| &self.buffer[..len]), delta)?;
        self.insert(key, &sum)
    }

    fn delete_range(&mut self, _from: &[u8], _to: &[u8]) -> Result<()> {
        Err("Bf-Tree has no range deletes".into())
    }

    fn scan(&mut self, from: &[u8], limit: usize, visit: &mut dyn FnMut(&[u8], &[u8])) -> Result<usize> {
        if limit == 0 {
            return Ok(0);
        }
        // Bf-Tree does not accept an empty start key. A single zero byte is the smallest valid key.
        let from = if from.is_empty() { &[0] } else { from };
        let iterator = self.store.tree.scan_with_count(from, limit, ScanReturnField::KeyAndValue);
        let mut iterator = iterator.map_err(|e| format!("Bf-Tree cannot scan: {e:?}"))?;
        let mut count = 0;
        while count < limit
            && let Some((key_len, value_len)) = iterator.next(&mut self.buffer)
        {
            let (key, rest) = self.buffer.split_at(key_len);
            visit(key, &rest[..value_len]);
            count += 1;
        }
        Ok(count)
    }
}
