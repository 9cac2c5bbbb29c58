//! What scans of large values read, and what they cache.

use pandodb::device::MemDevice;
use pandodb::{Keyspace, Store};

const ROWS: u64 = 4_000;
const VALUE: usize = 4_000;

fn key(i: u64) -> [u8; 8] {
    i.to_be_bytes()
}

/// A store with values of a page each, which lie on disk in random order, and 2 MiB of memory.
fn scattered() -> (Store, Keyspace) {
    let store =
        Store::builder("s").device(MemDevice::new()).memory_budget(2 << 20).background_threads(0).open().unwrap();
    let keyspace = store.keyspace("k").unwrap();
    (0..ROWS).for_each(|i| keyspace.put(key(i), [b'a'; VALUE]).unwrap());
    for i in 0..2 * ROWS {
        keyspace.put(key(pandodb::base::random::mix(i) % ROWS), [b'b'; VALUE]).unwrap();
    }
    store.pack().unwrap();
    store.settle().unwrap();
    (store, keyspace)
}

fn scan(keyspace: &Keyspace, from: u64, rows: usize, backward: bool) {
    let found: Vec<_> = match backward {
        false => keyspace.range(key(from)..).take(rows).map(Result::unwrap).collect(),
        true => keyspace.range(..=key(from)).rev().take(rows).map(Result::unwrap).collect(),
    };
    assert_eq!(found.len(), rows);
    for (i, (found, value)) in found.iter().enumerate() {
        let i = i as u64;
        assert_eq!(found[..], key(if backward { from - i } else { from + i }));
        assert!(value.len() == VALUE && (value[0] == b'a' || value[0] == b'b'));
    }
}

/// Bytes that `act` reads from the device.
fn bytes_read(store: &Store, act: impl FnOnce()) -> u64 {
    let before = store.stats().unwrap().read_bytes;
    act();
    store.stats().unwrap().read_bytes - before
}

/// Places in random order.
fn places(round: u64) -> impl Iterator<Item = u64> {
    (0..100).map(move |i| 200 + pandodb::base::random::mix(1000 * round + i) % (ROWS - 400))
}

#[test]
fn scans_read_few_values_that_they_do_not_return() {
    let (store, keyspace) = scattered();
    for (round, rows) in [1, 40, 3, 100].into_iter().enumerate() {
        for backward in [false, true] {
            let round = 2 * round as u64 + u64::from(backward);
            // Now the scans know how many values are usual.
            places(round).for_each(|from| scan(&keyspace, from, rows, backward));
            let scans = || places(round + 100).for_each(|from| scan(&keyspace, from, rows, backward));
            let read = bytes_read(&store, scans);
            // A quarter more than the values, and two blocks of the index for each scan.
            let most = (100 * rows * 4096 * 5 / 4 + 100 * 2 * 4096) as u64;
            println!("{rows} rows: {read} bytes read, at most {most}");
            assert!(read < most, "{rows} rows: {read} bytes of at most {most}");
        }
    }
}

#[test]
fn values_that_are_scanned_again_and_again_stay_in_memory() {
    let (store, keyspace) = scattered();
    let hot = || (0..5).for_each(|i| scan(&keyspace, 1000 + 20 * i, 10, false));
    // The pool is full of other values, and other scans go on.
    (0..ROWS).for_each(|i| assert!(keyspace.get(key(i)).unwrap().is_some()));
    for round in 0..4 {
        hot();
        scan(&keyspace, 2000 + 100 * round, 20, false);
    }
    let read = bytes_read(&store, hot);
    assert_eq!(read, 0, "the hot values are read from the device again");
    // A scan of everything does not displace what lookups use.
    let lookups = || (0..50).for_each(|i| assert!(keyspace.get(key(7 * i)).unwrap().is_some()));
    (0..3).for_each(|_| lookups());
    assert_eq!(bytes_read(&store, lookups), 0);
    assert_eq!(keyspace.iter().filter(|row| row.is_ok()).count() as u64, ROWS);
    assert!(bytes_read(&store, lookups) < 25 * 4096, "a long scan has displaced the values of lookups");
}
