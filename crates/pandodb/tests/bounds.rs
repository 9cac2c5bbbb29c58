//! A setting out of bounds is refused with an error that names the setting, before any file is created. The process
//! does not abort, and the store does not silently replace the setting.

use std::path::Path;
use std::{env, fs, process};

use pandodb::device::Device;
use pandodb::{Error, StbeOptions, Store, StoreBuilder};

/// This environment variable is set in the process that [`a_budget_above_the_limit_of_the_process_is_an_error`] starts.
const LIMITED: &str = "PANDODB_TEST_LIMITED";

type Setting = fn(StoreBuilder) -> StoreBuilder;

fn refused(path: &Path, name: &str, value: &str, setting: Setting) {
    let error = setting(Store::builder(path).background_threads(0)).open().expect_err(name);
    assert!(matches!(error, Error::InvalidArgument { .. }), "{name} {value}: {error}");
    let words = error.to_string();
    assert!(words.contains(&format!("`{name}` is {value}")) && words.contains("must be"), "{words}");
    assert!(!path.exists(), "{name} {value}: nothing is touched");
}

#[test]
fn every_setting_has_an_upper_and_a_lower_bound() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("s");
    let max = &usize::MAX.to_string();
    refused(&path, "memory_budget", "0", |b| b.memory_budget(0));
    refused(&path, "memory_budget", "1048575", |b| b.memory_budget((1 << 20) - 1));
    refused(&path, "memory_budget", max, |b| b.memory_budget(usize::MAX));
    refused(&path, "memory_budget", "1125899906842624", |b| b.memory_budget(1 << 50));
    // 1 TiB is more memory than the test machines have.
    refused(&path, "memory_budget", "1099511627776", |b| b.memory_budget(1 << 40));
    refused(&path, "memtable_bytes", "4095", |b| b.memtable_bytes(4095));
    refused(&path, "memtable_bytes", "67108865", |b| b.memory_budget(64 << 20).memtable_bytes((64 << 20) + 1));
    refused(&path, "memtable_bytes", max, |b| b.memtable_bytes(usize::MAX));
    refused(&path, "row_cache_bytes", "16777217", |b| b.memory_budget(64 << 20).row_cache_bytes((16 << 20) + 1));
    refused(&path, "row_cache_bytes", max, |b| b.row_cache_bytes(usize::MAX));
    refused(&path, "segment_bytes", "0", |b| b.segment_bytes(0));
    refused(&path, "segment_bytes", "4096", |b| b.segment_bytes(4096));
    refused(&path, "segment_bytes", "10000", |b| b.segment_bytes(10_000));
    refused(&path, "segment_bytes", &u64::MAX.to_string(), |b| b.segment_bytes(u64::MAX));
    refused(&path, "reserve_bytes", &u64::MAX.to_string(), |b| b.reserve_bytes(u64::MAX));
    refused(&path, "background_threads", "65", |b| b.background_threads(65));
    refused(&path, "log_streams", "0", |b| b.log_streams(0));
    refused(&path, "log_streams", max, |b| b.log_streams(usize::MAX));
    refused(&path, "fanout", "1", |b| b.index(StbeOptions::new().fanout(1)));
    refused(&path, "fanout", max, |b| b.index(StbeOptions::new().fanout(usize::MAX)));
    refused(&path, "maplet_width", "17", |b| b.index(StbeOptions::new().maplet_width(17)));
    refused(&path, "maplet_width", "0", |b| b.index(StbeOptions::new().maplet_width(0)));
}

#[test]
fn the_bounds_themselves_are_accepted() {
    let dir = tempfile::tempdir().unwrap();
    let settings: [Setting; 6] = [
        |b| b.memory_budget(1 << 20).memtable_bytes(4096).segment_bytes(8192).row_cache_bytes(0).reserve_bytes(0),
        |b| b.memory_budget(1 << 20).memtable_bytes(1 << 20).row_cache_bytes(1 << 18),
        |b| b.reserve_bytes(1 << 40),
        |b| b.background_threads(64).log_streams(16),
        |b| b.index(StbeOptions::new().fanout(2).maplet_width(2)).log_streams(1),
        |b| b.index(StbeOptions::new().fanout(64).maplet_width(16)),
    ];
    for (i, setting) in settings.into_iter().enumerate() {
        let store = setting(Store::builder(dir.path().join(i.to_string()))).open().unwrap();
        let keyspace = store.keyspace("k").unwrap();
        (0..200u32).for_each(|i| keyspace.put(i.to_be_bytes(), [1; 100]).unwrap());
        store.settle().unwrap();
        assert_eq!(keyspace.iter().count(), 200, "setting {i}");
    }
}

/// A memtable takes at most 1/32 of the disk, so that the default budget works on a disk of 200 MB. On a disk that is
/// too small for the minimum sizes, nothing is created.
#[test]
fn a_small_disk_gets_small_memtables_or_an_error_with_the_needed_size() {
    let on = |disk: u64, budget: usize| {
        let device = pandodb::device::SimDevice::new(1);
        device.set_byte_budget(Some(disk));
        let store = Store::builder("sim").device(device.clone()).background_threads(0).memory_budget(budget).open();
        (device, store)
    };
    let (device, refused) = on(64 << 10, 16 << 20);
    let Err(Error::DiskTooSmall { needed, available, .. }) = refused else { panic!("{refused:?}") };
    assert!(available == 64 << 10 && needed > available && needed < 16 << 20, "{needed} and {available}");
    assert_eq!((device.list().unwrap(), device.occupied()), (vec![], 0));
    let (_, store) = on(needed, 16 << 20);
    store.unwrap().keyspace("k").unwrap().put("a", "b").unwrap();
    // The bytes that are written until the first memtable is full.
    let first_full = |disk: u64| {
        let (_device, store) = on(disk, 256 << 20);
        let store = store.unwrap();
        let keyspace = store.keyspace("k").unwrap();
        let full = |i: &u64| {
            keyspace.put(i.to_be_bytes(), [7; 1000]).unwrap();
            store.debt() > 0
        };
        (0..64_000).find(full).map(|puts| puts * 1000)
    };
    let bytes = first_full(100 << 20).expect("a memtable was full");
    assert!(bytes < (100 << 20) / 32, "{bytes}");
    assert!(first_full(1 << 30).expect("a memtable was full") > 4 * bytes);
}

/// The test runs in a process that may map only 1 GiB. The machine has enough memory for the budget, but the process
/// may not use it.
#[test]
fn a_budget_above_the_limit_of_the_process_is_an_error() {
    if let Some(path) = env::var_os(LIMITED) {
        let path = Path::new(&path);
        refused(path, "memory_budget", "2147483648", |b| b.memory_budget(2 << 30));
        drop(Store::open(path).unwrap());
        return fs::write(path.with_extension("done"), "").unwrap();
    }
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("s");
    let mut child = process::Command::new("sh");
    child.args(["-c", "ulimit -v 1048576 && exec \"$0\" --exact a_budget_above_the_limit_of_the_process_is_an_error"]);
    child.arg(env::current_exe().unwrap()).env(LIMITED, &path);
    assert!(child.status().unwrap().success());
    assert!(path.with_extension("done").exists(), "the child did nothing");
}

/// Regression: on a disk of 48 MB, deletes failed with the default budget.
#[test]
fn a_small_full_disk_can_be_emptied_with_the_default_budget() {
    let device = pandodb::device::SimDevice::new(1);
    device.set_byte_budget(Some(48 << 20));
    let store = Store::builder("sim").device(device).background_threads(0).memory_budget(256 << 20).open().unwrap();
    let keyspace = store.keyspace("k").unwrap();
    let full = (0..100_000u64).find(|i| keyspace.put(i.to_be_bytes(), [7; 1000]).is_err()).expect("the disk is full");
    assert!(full > 10_000, "{full}");
    (0..full).for_each(|i| keyspace.delete(i.to_be_bytes()).unwrap());
    keyspace.compact(..).unwrap();
    keyspace.put("again", [7; 1000]).unwrap();
}
