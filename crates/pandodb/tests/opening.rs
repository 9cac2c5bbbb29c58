//! The bytes that an opening reads. They do not depend on the number of pages of a tree, and hardly on its log: after a
//! clean close nothing of the log is replayed, and otherwise the log is read once.

use std::path::Path;
use std::sync::Arc;

use pandodb::device::counting::{Counts, FileClass};
use pandodb::device::{CountingDevice, Device, MemDevice, OpenHow, read_exact_at, write_all_at};
use pandodb::{IndexOptions, Keyspace, KeyspaceOptions, Store, StoreBuilder};

const ROWS: u32 = 150_000;
const INDEXES: [&str; 3] = ["btree:page_kib=4", "betree:page_kib=4", "stbe"];

fn builder(device: Arc<dyn Device>) -> StoreBuilder {
    Store::builder(Path::new("s")).memory_budget(32 << 20).background_threads(0).device(device)
}

fn rows(store: &Store, index: &str) -> Keyspace {
    let index: IndexOptions = index.parse().unwrap();
    store.keyspace_with("rows", KeyspaceOptions::new().index(index)).unwrap()
}

fn key(i: u32) -> Vec<u8> {
    format!("key{i:06}").into_bytes()
}

/// Loads rows, then overwrites rows that are scattered over all pages.
fn filled(device: &Arc<MemDevice>, index: &str) -> (Store, Keyspace) {
    let store = builder(device.clone()).open().unwrap();
    let rows = rows(&store, index);
    rows.load_sorted((0..ROWS).map(|i| (key(i), [1; 100]))).unwrap();
    (0..20_000).for_each(|i| rows.put(key(i * 7_919 % ROWS), [2; 100]).unwrap());
    (store, rows)
}

fn class_of(name: &str) -> FileClass {
    match name {
        "data" => FileClass::Data,
        name if name.starts_with("wal-") => FileClass::Log,
        _ => FileClass::Other,
    }
}

/// Opens the store and counts what the opening reads. Checks the rows after that.
fn reads(device: Arc<dyn Device>, read_only: bool) -> Counts {
    let counting = CountingDevice::new(device, class_of);
    let builder = builder(counting.clone());
    let store = if read_only { builder.read_only(true) } else { builder }.open().unwrap();
    let counts = counting.counts();
    let rows = store.open_keyspace("rows").unwrap().unwrap();
    assert_eq!(&*rows.get(key(7_919)).unwrap().unwrap(), &[2; 100]);
    assert_eq!(&*rows.get(key(1)).unwrap().unwrap(), &[1; 100]);
    counts
}

fn copy(device: &MemDevice) -> Arc<MemDevice> {
    let out = MemDevice::new();
    for name in device.list().unwrap().into_iter().filter(|name| name != "lock") {
        let file = device.open(&name, OpenHow::default()).unwrap();
        let mut bytes = vec![0; file.len().unwrap() as usize];
        read_exact_at(&*file, 0, &mut bytes).unwrap();
        let how = OpenHow { write: true, create_new: true, ..OpenHow::default() };
        write_all_at(&*out.open(&name, how).unwrap(), 0, &bytes).unwrap();
    }
    out
}

fn log_bytes(device: &MemDevice) -> u64 {
    let names = device.list().unwrap().into_iter().filter(|name| name.starts_with("wal-"));
    names.map(|name| device.open(&name, OpenHow::default()).unwrap().len().unwrap()).sum()
}

/// Regression: an opening read the last segment of the log twice, although the index held all its records.
#[test]
fn after_a_clean_close_an_opening_reads_only_headers_of_the_log() {
    for index in INDEXES {
        let device = MemDevice::new();
        drop(filled(&device, index));
        assert!(log_bytes(&device) > 256 << 10, "{index}: the last segment is long");
        let segments = device.list().unwrap().iter().filter(|name| name.starts_with("wal-")).count() as u64;
        for read_only in [true, false, true] {
            let counts = reads(device.clone(), read_only);
            assert_eq!(counts[FileClass::Log].read_bytes, segments * 4096, "{index}, read-only: {read_only}");
            let data = counts[FileClass::Data].read_bytes;
            assert!(data <= 256 << 10, "{index}: {data} bytes of the data file");
        }
    }
}

/// Regression: both passes of a recovery read the log from the disk.
#[test]
fn after_a_crash_an_opening_reads_the_log_once() {
    for index in INDEXES {
        let device = MemDevice::new();
        let (store, rows) = filled(&device, index);
        let crashed = copy(&device);
        let bytes = log_bytes(&crashed);
        drop((rows, store));
        for read_only in [true, false] {
            let counts = reads(crashed.clone(), read_only);
            let read = counts[FileClass::Log].read_bytes;
            assert!(read <= bytes * 5 / 4, "{index}, read-only: {read_only}: {read} of {bytes} bytes of log");
            assert!(counts[FileClass::Data].read_bytes <= 1 << 20 || !read_only, "{index}");
        }
    }
}
