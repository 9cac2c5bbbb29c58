//! Sorted loads into trees of pages that have older rows: the background work that merges both.

use std::path::Path;

use pandodb::{IndexOptions, Keyspace, KeyspaceOptions, Store};

const INDEXES: [&str; 2] = ["btree:page_kib=4", "betree:page_kib=4"];

fn open(path: &Path) -> Store {
    let builder = Store::builder(path).memory_budget(2 << 20).memtable_bytes(64 << 10);
    builder.background_threads(0).open().unwrap()
}

fn rows_of(store: &Store, index: &str) -> Keyspace {
    let index: IndexOptions = index.parse().unwrap();
    store.keyspace_with("rows", KeyspaceOptions::new().index(index)).unwrap()
}

fn key(i: u32) -> Vec<u8> {
    format!("key{i:06}").into_bytes()
}

/// Loads rows with values of 100 bytes.
fn load(rows: &Keyspace, keys: impl Iterator<Item = u32>, byte: u8) {
    rows.load_sorted(keys.map(|i| (key(i), [byte; 100]))).unwrap();
}

/// The bytes of rows of a load that are not merged yet.
fn waiting(store: &Store) -> u64 {
    let stats = store.stats().unwrap();
    let figures = &stats.keyspaces[0].index.named;
    figures.iter().find(|figure| figure.name == "loaded_bytes").unwrap().value
}

/// Regression: only memtables that were packed requested checkpoints. So all pages that a merge had replaced were kept
/// until its end, and a crash repeated the whole merge.
#[test]
fn a_merge_takes_checkpoints_which_release_replaced_pages() {
    for index in INDEXES {
        let dir = tempfile::tempdir().unwrap();
        let store = open(&dir.path().join("s"));
        let (rows, other) = (rows_of(&store, index), store.keyspace("other").unwrap());
        load(&rows, (0..20_000).step_by(2), 1);
        load(&rows, (0..20_000).skip(1).step_by(2), 2);
        assert!(waiting(&store) > 1_000_000, "the load is much larger than a memtable");
        let before = store.stats().unwrap();
        let mut most = 0;
        // Without background threads, writers do the work.
        for i in 0..4_000 {
            other.put(key(i % 100), [0; 100]).unwrap();
            if i % 16 == 0 {
                most = most.max(store.stats().unwrap().allocated_bytes);
            }
        }
        store.settle().unwrap();
        assert_eq!(waiting(&store), 0);
        let taken = store.stats().unwrap().checkpoints - before.checkpoints;
        assert!(taken >= 20, "{index}: {taken} checkpoints");
        let limit = before.allocated_bytes * 5 / 4;
        assert!(most < limit, "{index}: {most} bytes are allocated, {} before", before.allocated_bytes);
        assert_eq!(rows.iter().count(), 20_000);
    }
}
