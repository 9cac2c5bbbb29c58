//! Sorted loads into trees of pages that have older rows: the background work that merges both.

use std::path::Path;
use std::sync::Arc;

use pandodb::device::SimDevice;
use pandodb::{IndexOptions, Keyspace, KeyspaceOptions, Store, StoreBuilder};

const INDEXES: [&str; 2] = ["btree:page_kib=4", "betree:page_kib=4"];

fn small(path: impl AsRef<Path>) -> StoreBuilder {
    Store::builder(path).memory_budget(2 << 20).memtable_bytes(64 << 10).background_threads(0)
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
        let store = small(dir.path().join("s")).open().unwrap();
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

/// Regression: an opening that shortens a long log first merged a load that was waiting, however large it was.
#[test]
fn an_opening_leaves_memtables_behind_a_load_in_memory() {
    for index in INDEXES {
        let open_on = |device: &Arc<SimDevice>| small("s").device(device.clone()).open().unwrap();
        let mut device = SimDevice::new(1);
        let store = open_on(&device);
        let rows = rows_of(&store, index);
        load(&rows, (0..8_000).step_by(2), 1);
        load(&rows, (0..8_000).skip(1).step_by(2), 2);
        for round in 0..40u8 {
            // The process is killed. Each opening leaves a segment of the log.
            device = SimDevice::from_image(&device.image(), 1);
            let store = open_on(&device);
            let rows = rows_of(&store, index);
            let left = waiting(&store);
            assert!(left > 300_000, "{index}, round {round}: {left} bytes are left");
            rows.put(key(7), [round]).unwrap();
            assert_eq!(rows.get(key(7)).unwrap().unwrap(), [round]);
            assert_eq!(rows.get(key(9)).unwrap().unwrap(), [2; 100]);
            device = SimDevice::from_image(&device.image(), 1);
        }
        let store = open_on(&device);
        store.settle().unwrap();
        assert_eq!(waiting(&store), 0);
        let rows = rows_of(&store, index);
        assert_eq!(rows.get(key(7)).unwrap().unwrap(), [39]);
        assert_eq!(rows.iter().count(), 8_000);
        assert!(store.verify().unwrap().is_clean());
    }
}

/// Regression: a store whose trees have pages without seqnos did not refuse older builds, which would misread them.
#[test]
fn a_load_into_a_tree_sets_a_feature_flag() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("s");
    let store = small(&path).open().unwrap();
    let rows = rows_of(&store, INDEXES[0]);
    let flags = || {
        let bytes = std::fs::read(path.join("data")).unwrap();
        let slots = [0, 32 * 4096].map(|at| u64::from_le_bytes(bytes[at + 32..at + 40].try_into().unwrap()));
        slots.map(|flags| flags & 4)
    };
    rows.put("k", "v").unwrap();
    store.checkpoint().unwrap();
    assert_eq!(flags(), [0, 0]);
    load(&rows, 0..10, 1);
    assert_eq!(flags(), [4, 4]);
}
