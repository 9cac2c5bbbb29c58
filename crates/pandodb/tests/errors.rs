//! Error texts say what happened, to which object, and what the user can do. After an error whose cause the user can
//! remove, the store continues to work.

use std::os::unix::fs::FileExt;
use std::path::Path;
use std::{env, fs, io, process};

use pandodb::check::{Inspect, inspect};
use pandodb::device::SimDevice;
use pandodb::device::sim::{Fault, FaultKind};
use pandodb::{Durability, Error, IndexOptions, Keyspace, KeyspaceOptions, Store};

/// This environment variable is set in the process that [`a_process_without_free_files_is_refused_and_goes_on`] starts.
const FEW_FILES: &str = "PANDODB_TEST_FEW_FILES";

fn small(path: &Path) -> pandodb::StoreBuilder {
    Store::builder(path).memory_budget(2 << 20)
}

#[test]
fn opening_an_unusable_path_reports_the_reason() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("file");
    fs::write(&file, "something else").unwrap();
    let detail = |path: &Path, builder: fn(&Path) -> pandodb::StoreBuilder| match builder(path).open().unwrap_err() {
        Error::NotAStore { path: named, detail } => {
            assert_eq!(named, path.display().to_string());
            detail
        }
        other => panic!("{other}"),
    };
    assert_eq!(detail(&file, small), "it is a file, not a directory");
    assert_eq!(detail(&file, |path| small(path).read_only(true)), "it is a file, not a directory");
    assert!(detail(&file.join("below"), small).contains("`, a part of the path, is a file"));
    assert!(detail(&dir.path().join("no/such"), small).contains("make that first"));
    assert_eq!(detail(&dir.path().join("no"), |path| small(path).create(false)), "there is no such directory");
    let inspected = inspect(&file, Inspect::Superblock).unwrap_err().to_string();
    assert!(inspected.ends_with("it is a file, not a directory"), "{inspected}");
    let store = small(&dir.path().join("s")).open().unwrap();
    let backup = store.backup(&file).unwrap_err().to_string();
    assert!(backup.ends_with("it is a file, not a directory"), "{backup}");
    assert_eq!(fs::read(&file).unwrap(), b"something else");
    let nul = small(Path::new("a\0b")).open().unwrap_err();
    assert!(matches!(nul, Error::InvalidArgument { .. }), "{nul}");
    assert!(nul.to_string().contains("NUL byte") && !nul.to_string().contains('\0'), "{nul}");
}

/// Regression: the text of every error of the operating system gave the advice "check the device, then reopen the
/// store".
#[test]
fn errors_of_the_operating_system_have_matching_advice() {
    let says = |kind: io::ErrorKind, op, words: &str| {
        let error = Error::io(op, "s", None, &kind.into());
        assert!(error.to_string().contains(words), "{error}");
        assert_eq!(error.to_string(), format!("{}; {}", error.what(), error.advice().unwrap()));
    };
    says(io::ErrorKind::PermissionDenied, "open", "grant this process's user access");
    says(io::ErrorKind::ReadOnlyFilesystem, "lock", "mounted read-only");
    says(io::ErrorKind::InvalidFilename, "open", "name another path");
    says(io::ErrorKind::FileTooLarge, "allocate", "ulimit -f");
    says(io::ErrorKind::Other, "open", "check the device");
    says(io::ErrorKind::InvalidInput, "write", "check the device");
}

#[test]
fn a_directory_with_foreign_files_is_not_reported_as_a_damaged_store() {
    let dir = tempfile::tempdir().unwrap();
    for content in [&b""[..], b"a table", &[7; 300_000]] {
        let path = dir.path().join(content.len().to_string());
        fs::create_dir(&path).unwrap();
        fs::write(path.join("data"), content).unwrap();
        for read_only in [false, true] {
            let error = small(&path).read_only(read_only).open().unwrap_err();
            assert!(matches!(error, Error::NotAStore { .. }), "{error}");
        }
        assert_eq!(fs::read(path.join("data")).unwrap(), content);
    }
}

#[test]
fn a_damaged_store_is_reported_as_corruption() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("s");
    small(&path).open().unwrap().keyspace("k").unwrap().put("x", "y").unwrap();
    let whole = fs::read(path.join("data")).unwrap();
    let damaged = |what: &str, change: &dyn Fn(&mut Vec<u8>)| {
        let mut bytes = whole.clone();
        change(&mut bytes);
        fs::write(path.join("data"), bytes).unwrap();
        let error = small(&path).open().unwrap_err();
        assert!(error.is_corruption(), "{what}: {error}");
    };
    let both = |bytes: &mut Vec<u8>, byte: usize, value: u8| {
        [0, 32 * 4096].into_iter().for_each(|slot| bytes[slot + byte] = value)
    };
    damaged("both superblocks zeroed", &|bytes| bytes[..33 * 4096].fill(0));
    damaged("no file to speak of", &|bytes| bytes.truncate(0));
    // The error is also right if the other files of the store are missing, as long as a superblock has the magic
    // number.
    for entry in fs::read_dir(&path).unwrap().map(|entry| entry.unwrap().path()) {
        if entry.file_name().unwrap() != "data" {
            fs::remove_file(entry).unwrap();
        }
    }
    damaged("both superblocks have a flipped bit", &|bytes| both(bytes, 200, 77));
    damaged("one magic number is left", &|bytes| {
        both(bytes, 200, 77);
        bytes[..4096].fill(0);
    });
}

/// Regression: errors about missing permission advised the user to check the device. Not even root can create files in
/// `/sys`.
#[cfg(target_os = "linux")]
#[test]
fn a_directory_without_write_permission_is_not_reported_as_a_broken_device() {
    if !Path::new("/sys/kernel").exists() {
        return;
    }
    let error = small(Path::new("/sys/pandodb-test")).open().unwrap_err().to_string();
    assert!(error.contains("grant this process's user") || error.contains("mounted read-only"), "{error}");
    assert!(!error.contains("check the device"), "{error}");
}

/// Regression: running out of file descriptors poisoned the store, although nothing had been written.
#[test]
fn a_process_without_free_files_is_refused_and_goes_on() {
    if let Some(path) = env::var_os(FEW_FILES) {
        return with_few_files(Path::new(&path));
    }
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("s");
    let mut child = process::Command::new("sh");
    child.args(["-c", "ulimit -n 64 && exec \"$0\" --exact a_process_without_free_files_is_refused_and_goes_on"]);
    child.arg(env::current_exe().unwrap()).env(FEW_FILES, &path);
    assert!(child.status().unwrap().success());
    assert_eq!(small(&path).open().unwrap().keyspace("k").unwrap().iter().count(), 2000);
}

fn with_few_files(path: &Path) {
    let store = small(path).segment_bytes(64 << 10).background_threads(1).open().unwrap();
    let keyspace = store.keyspace("k").unwrap();
    let (mut refused, mut taken) = (0, Vec::new());
    for i in 0..2000u32 {
        if i % 500 == 0 {
            taken.extend(std::iter::from_fn(|| fs::File::open("/dev/null").ok()));
        }
        if let Err(error) = keyspace.put_with(i.to_be_bytes(), [1; 200], Durability::Buffered) {
            refused += 1;
            assert!(matches!(error, Error::TooManyFiles { limit: "the process", .. }), "{error}");
            assert!(error.to_string().contains("ulimit -n"), "{error}");
            assert!(keyspace.get(i.to_be_bytes()).unwrap().is_none(), "a refused write leaves nothing");
            taken.clear();
            keyspace.put(i.to_be_bytes(), [1; 200]).unwrap();
        }
    }
    assert!(refused > 0, "there were files enough");
    taken.clear();
    store.settle().unwrap();
    store.close().unwrap();
}

/// Some disks report that they are full only when a file is synced. In that case writes that were already accepted are
/// lost, so no later sync may succeed.
#[test]
fn a_full_disk_in_a_sync_is_final() {
    let device = SimDevice::new(5);
    let store = Store::builder("s").device(device.clone()).memory_budget(1 << 20).background_threads(0).open().unwrap();
    let keyspace = store.keyspace("k").unwrap();
    keyspace.put_with("a", "b", Durability::Synced).unwrap();
    device.set_fault(Some(Fault::once(FaultKind::FullSync, 0)));
    let error = keyspace.put_with("large", vec![1; 10_000], Durability::Synced).unwrap_err();
    assert!(!matches!(error, Error::DiskFull { .. }), "{error}");
    assert!(error.to_string().contains("reopen the store"), "{error}");
    assert!(matches!(keyspace.put("c", "d"), Err(Error::Poisoned { .. })));
    assert_eq!(keyspace.get("a").unwrap().unwrap(), "b");
}

/// Makes a store with one keyspace, a B+-tree of 2,000 rows, and damages one of its leaves. Returns what was in the
/// leaf, and its place in the data file.
fn one_bad_leaf(path: &Path) -> (Vec<u8>, u64) {
    let store = small(path).background_threads(0).open().unwrap();
    let rows = tree(&store);
    (0..2000).for_each(|i| rows.put(key(i), [7; 100]).unwrap());
    rows.compact(..).unwrap();
    store.close().unwrap();
    let file = fs::OpenOptions::new().read(true).write(true).open(path.join("data")).unwrap();
    let whole = fs::read(path.join("data")).unwrap();
    let at = whole.windows(4).rposition(|bytes| bytes == [7; 4]).unwrap() / 4096 * 4096;
    file.write_all_at(&[0xEE; 4096], at as u64).unwrap();
    (whole[at..at + 4096].to_vec(), at as u64)
}

fn tree(store: &Store) -> Keyspace {
    let index: IndexOptions = "btree:page_kib=4".parse().unwrap();
    store.keyspace_with("rows", KeyspaceOptions::new().index(index)).unwrap()
}

fn key(i: u32) -> Vec<u8> {
    format!("key{i:05}").into_bytes()
}

/// Regression: a compaction waited for memtables that could not be applied because of a damaged page, and never came to
/// the request that makes the index read the page again.
#[test]
fn a_compaction_tries_again_what_damage_has_stopped() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("s");
    let (page, at) = one_bad_leaf(&path);
    let store = small(&path).background_threads(0).open().unwrap();
    let rows = tree(&store);
    (0..2000).for_each(|i| rows.put(key(i), [8; 100]).unwrap());
    assert!(rows.compact(..).is_err_and(|e| e.is_corruption()), "a page cannot be read");
    assert!(rows.compact(..).is_err_and(|e| e.is_corruption()), "nor when it is tried again");
    fs::OpenOptions::new().write(true).open(path.join("data")).unwrap().write_all_at(&page, at).unwrap();
    rows.compact(..).expect("the page can be read again");
    store.verify().unwrap();
    assert!((0..2000).all(|i| rows.get(key(i)).unwrap().is_some_and(|value| *value == [8; 100])));
}

/// Regression: an opening that shortens a long log failed if a memtable could not be applied because of a damaged page.
#[test]
fn a_store_whose_memtable_needs_a_damaged_page_opens_again_and_again() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("s");
    let (page, at) = one_bad_leaf(&path);
    for round in 0..40u8 {
        let store = small(&path).background_threads(0).open().unwrap();
        let (rows, other) = (tree(&store), store.keyspace("other").unwrap());
        (0..2000).step_by(10).for_each(|i| rows.put(key(i), [round; 10]).unwrap());
        other.put(b"k", [round]).unwrap();
        assert!(rows.get(key(1990)).unwrap().is_some_and(|value| *value == [round; 10]));
    }
    fs::OpenOptions::new().write(true).open(path.join("data")).unwrap().write_all_at(&page, at).unwrap();
    let store = small(&path).background_threads(0).open().unwrap();
    tree(&store).compact(..).unwrap();
    store.verify().unwrap();
    assert!((0..2000).step_by(10).all(|i| tree(&store).get(key(i)).unwrap().is_some_and(|value| *value == [39; 10])));
}
