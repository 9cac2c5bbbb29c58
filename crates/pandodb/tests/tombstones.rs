//! A scan over a range in which most keys were deleted costs about as much as if these keys had never existed, in a
//! store with ten times as many bytes as its memory budget. The costs depend on which leaves happen to wait for a
//! rewrite: with one percent more rows they may differ by a factor of 4. So the tests look at several numbers of rows.
//! The scan costs at most three times as much in the median, with half of the rows at most six times. A scan over a
//! range that a range delete covers skips what is older than the range delete.

use std::path::Path;
use std::sync::Arc;

use pandodb::Store;
use pandodb::device::counting::FileClass;
use pandodb::device::{CountingDevice, Device, MemDevice};

const ROWS: u64 = 400_000;

fn key(i: u64) -> Vec<u8> {
    format!("row{i:09}").into_bytes()
}

fn open(device: Arc<dyn Device>) -> Store {
    Store::builder(Path::new("s")).memory_budget(4 << 20).background_threads(0).device(device).open().unwrap()
}

/// The number of keys in a range, and the bytes that a scan over the range reads from a newly opened store. The store
/// had the rows `rows`. Then those of the first `all` rows for which `stays` is false were deleted in a scattered
/// order.
fn scanned(all: u64, rows: impl Iterator<Item = u64>, stays: impl Fn(u64) -> bool, from: u64, to: u64) -> (u64, u64) {
    let device = MemDevice::new();
    let store = open(device.clone());
    let keyspace = store.keyspace("k").unwrap();
    rows.for_each(|i| keyspace.put(key(i), [b'v'; 100]).unwrap());
    let gone = (0..all).map(|i| i * 12_347 % all).filter(|&i| !stays(i));
    gone.for_each(|i| keyspace.delete(key(i)).unwrap());
    store.pack().unwrap();
    store.settle().unwrap();
    drop((keyspace, store));
    let counting = CountingDevice::new(device, |_| FileClass::Data);
    let store = open(counting.clone());
    let keyspace = store.keyspace("k").unwrap();
    let before = counting.counts().total().read_bytes;
    let found = keyspace.range(key(from)..key(to)).inspect(|row| assert!(row.is_ok())).count() as u64;
    (found, counting.counts().total().read_bytes - before)
}

/// The bytes that a scan reads in a store of `rows` rows, of which some were deleted, for each byte that it reads where
/// these rows never existed.
fn factor(rows: u64, stays: impl Fn(u64) -> bool + Copy, (from, to): (u64, u64)) -> f64 {
    let (found, read) = scanned(rows, 0..rows, stays, from, to);
    let (live, least) = scanned(rows, (0..rows).filter(|&i| stays(i)), |_| true, from, to);
    assert_eq!(found, live);
    read as f64 / least as f64
}

/// Checks that the median of the factors of several stores is at most `most`, and that none is above 6.
fn check(factors: impl Iterator<Item = f64>, most: f64) {
    let mut factors: Vec<_> = factors.collect();
    factors.sort_by(f64::total_cmp);
    assert!(factors[factors.len() / 2] <= most && factors.iter().all(|&factor| factor <= 6.0), "{factors:.2?}");
}

/// Several numbers of rows, which differ by about one percent.
fn numbers_of_rows(about: u64) -> impl Iterator<Item = u64> {
    (0..7).map(move |i| about + i * about / 80)
}

#[test]
fn a_scan_is_cheap_after_nine_of_ten_keys_were_deleted() {
    check(numbers_of_rows(ROWS).map(|rows| factor(rows, |i| i.is_multiple_of(10), (0, rows))), 3.0);
}

#[test]
fn a_scan_is_cheap_after_most_keys_of_its_range_were_deleted() {
    for (about, most) in [(ROWS, 3.0), (ROWS / 2, 6.0)] {
        let factors = numbers_of_rows(about).map(|rows| {
            let (from, to) = (rows / 10, rows / 10 * 6);
            factor(rows, |i| !(from..to).contains(&i) || i.is_multiple_of(50), (from, to))
        });
        check(factors, most);
    }
}

/// The bytes that a search for the next row reads, in both directions, after a range delete over 13 MB of rows. If
/// `packs`, the range delete is in the tree, too, where a snapshot keeps the rows.
fn read_under_a_range_delete(packs: bool) -> [u64; 2] {
    let (from, to) = (50_000, 180_000);
    let counting = CountingDevice::new(MemDevice::new(), |_| FileClass::Data);
    let store = open(counting.clone());
    let keyspace = store.keyspace("k").unwrap();
    (0..ROWS).map(|i| i * 12_347 % ROWS).for_each(|i| keyspace.put(key(i), [b'v'; 100]).unwrap());
    store.settle().unwrap();
    let snapshot = store.snapshot();
    keyspace.delete_range(key(from)..key(to)).unwrap();
    keyspace.put(key(to - 1), "again").unwrap();
    if packs {
        store.pack().unwrap();
    }
    let read = [false, true].map(|reverse| {
        let before = counting.counts().total().read_bytes;
        let mut rows = keyspace.range(key(from)..key(to - u64::from(reverse)));
        let found = if reverse { rows.next_back() } else { rows.next() };
        let found = found.map(|row| row.unwrap().0.to_vec());
        assert_eq!(found, (!reverse).then(|| key(to - 1)));
        counting.counts().total().read_bytes - before
    });
    assert_eq!(keyspace.at(&snapshot).range(key(from)..key(to)).count() as u64, to - from, "the snapshot has the rows");
    read
}

#[test]
fn a_scan_skips_what_a_range_delete_covers() {
    for packs in [false, true] {
        let [forward, backward] = read_under_a_range_delete(packs);
        assert!(forward < 1 << 20 && backward < 1 << 20, "{forward} and {backward} bytes, packed: {packs}");
    }
}
