//! Scans that read many runs cause compactions, after which they read few.

use pandodb::device::MemDevice;
use pandodb::index::IndexStats;
use pandodb::{Keyspace, Mode, Store};

const ROWS: u64 = 40_000;

fn key(i: u64) -> [u8; 8] {
    pandodb::base::random::mix(i).to_be_bytes()
}

/// A store with random rows in many runs.
fn filled(mode: Mode) -> (Store, Keyspace) {
    let builder = Store::builder("s").device(MemDevice::new()).mode(mode).background_threads(0);
    let store = builder.memory_budget(4 << 20).memtable_bytes(64 << 10).open().unwrap();
    let keyspace = store.keyspace("k").unwrap();
    (0..ROWS).for_each(|i| keyspace.put(key(i), [b'v'; 100]).unwrap());
    store.settle().unwrap();
    (store, keyspace)
}

/// The most runs that a scan of a few keys reads.
fn runs(store: &Store) -> u64 {
    stats(store).figure("max_runs_on_path")
}

fn stats(store: &Store) -> IndexStats {
    store.stats().unwrap().keyspaces[0].index.clone()
}

/// Scans `count` rows at each of 1,000 places.
fn scan_some(keyspace: &Keyspace, count: usize, backward: bool) {
    for i in 0..1000 {
        let rows = match backward {
            false => keyspace.range(key(i)..).take(count).filter(|row| row.is_ok()).count(),
            true => keyspace.range(..=key(i)).rev().take(count).filter(|row| row.is_ok()).count(),
        };
        assert!(rows > 0, "the key itself has a row");
    }
}

#[test]
fn leaves_that_are_scanned_often_are_compacted() {
    for backward in [false, true] {
        let (store, keyspace) = filled(Mode::Product);
        let before = runs(&store);
        assert!(before > 2, "{before} runs");
        let written = stats(&store).compacted_bytes;
        let mut scans = 0;
        while runs(&store) > 1 {
            scan_some(&keyspace, 3, backward);
            scans += 1000;
            store.settle().unwrap();
            assert_eq!(stats(&store).debt.total(), 0, "a settled store owes nothing");
            assert!(scans < 20_000, "{} runs are left", runs(&store));
        }
        let written = stats(&store).compacted_bytes - written;
        // A scan reads at most one block in vain for each run but one, and a compaction needs half of its bytes. Compactions
        // above the leaves write as much again.
        let most = 4 * scans * 4096 * (before - 1);
        assert!(written > 0 && written < most, "{written} bytes after {scans} scans");
        let compactions = stats(&store).compactions;
        (0..5).for_each(|_| scan_some(&keyspace, 3, backward));
        store.settle().unwrap();
        assert_eq!(stats(&store).compactions, compactions, "single runs are left alone");
    }
}

#[test]
fn paper_mode_compacts_nothing_for_scans() {
    let (store, keyspace) = filled(Mode::Paper);
    let compactions = stats(&store).compactions;
    (0..10).for_each(|_| scan_some(&keyspace, 3, false));
    store.settle().unwrap();
    assert_eq!(stats(&store).compactions, compactions);
}

#[test]
fn scans_of_runs_side_by_side_cause_no_compaction() {
    let store = Store::builder("s").device(MemDevice::new()).background_threads(0);
    let store = store.memory_budget(4 << 20).memtable_bytes(64 << 10).open().unwrap();
    let keyspace = store.keyspace("k").unwrap();
    (0..ROWS).for_each(|i| keyspace.put(i.to_be_bytes(), [b'v'; 100]).unwrap());
    store.settle().unwrap();
    let compactions = stats(&store).compactions;
    for i in 0..5000 {
        assert_eq!(keyspace.range((i * 7 % (ROWS - 9)).to_be_bytes()..).take(9).filter(|row| row.is_ok()).count(), 9);
    }
    store.settle().unwrap();
    let after = stats(&store).compactions;
    assert!(after <= compactions + 2, "{} compactions", after - compactions);
}
