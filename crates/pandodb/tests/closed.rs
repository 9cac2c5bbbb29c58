//! After `Store::close` every handle, iterator and snapshot of the store returns [`Error::Closed`]. A later opening of
//! the same files, in this process or in another process, reuses their pages. Therefore data read through an old handle
//! could be wrong.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::{env, process};

use pandodb::device::MemDevice;
use pandodb::{AddI64, Batch, Durability, Error, Keyspace, KeyspaceOptions, Range, Result, Snapshot, Store};

/// This environment variable is set in the process that [`another_process_rewrites_the_store`] starts. Its value is the
/// directory of the store.
const REWRITE: &str = "PANDODB_TEST_REWRITE";
const KEYS: u32 = 20_000;

fn open(path: &Path) -> Store {
    Store::builder(path).memory_budget(2 << 20).open().expect("the store opens")
}

fn key(i: u32) -> [u8; 4] {
    i.to_be_bytes()
}

/// Overwrites every value four times, so that pages which the first opening wrote are reused.
fn rewrite(path: &Path) {
    let store = open(path);
    let keyspace = store.keyspace("k").expect("a keyspace");
    for round in 0..4u8 {
        (0..KEYS).for_each(|i| keyspace.put(key(i), [b'b' + round; 100]).expect("a put"));
        keyspace.compact(..).expect("compacted");
        store.checkpoint().expect("a checkpoint");
        store.settle().expect("settled");
    }
    assert!(store.verify().expect("verified").is_clean());
}

fn is_closed<T>(what: &str, result: Result<T>) {
    match result {
        Err(Error::Closed) => {}
        Err(other) => panic!("{what}: {other}"),
        Ok(_) => panic!("{what} has an answer"),
    }
}

/// Handles of every kind. Their store is still open.
struct Kept {
    store: Store,
    keyspace: Keyspace,
    counters: Keyspace,
    snapshot: Snapshot,
    batch: Batch,
    fresh: Range,
    begun: Range,
    both_ends: Range,
}

impl Kept {
    fn of(store: &Store) -> Kept {
        let keyspace = store.keyspace("k").expect("a keyspace");
        (0..KEYS).for_each(|i| keyspace.put(key(i), [b'a'; 100]).expect("a put"));
        store.settle().expect("settled");
        keyspace.put(key(1), "in the memtable").expect("a put");
        let counters = store.keyspace_with("c", KeyspaceOptions::new().merge(AddI64)).expect("a keyspace");
        let (fresh, mut begun, mut both_ends) = (keyspace.iter(), keyspace.iter(), keyspace.iter());
        begun.by_ref().take(10).for_each(|entry| drop(entry.expect("an entry")));
        both_ends.by_ref().rev().take(10).for_each(|entry| drop(entry.expect("an entry")));
        let mut batch = store.batch();
        batch.put(&keyspace, "x", "y");
        let snapshot = store.snapshot();
        Kept { store: store.clone(), keyspace, counters, snapshot, batch, fresh, begun, both_ends }
    }

    /// Calls every operation of every handle. Each call must return `Closed`.
    fn ask(self) {
        let Kept { store, keyspace, counters, snapshot, mut batch, mut fresh, mut begun, mut both_ends } = self;
        for i in (0..KEYS).step_by(7) {
            is_closed("get", keyspace.get(key(i)));
        }
        is_closed("pop_first", keyspace.pop_first());
        is_closed("pop_last", keyspace.pop_last_with(Durability::None));
        is_closed("load_sorted", keyspace.load_sorted([("x", "y")]));
        is_closed("a borrowed row", keyspace.iter().next_row());
        is_closed("a borrowed row from the other end", keyspace.iter().next_row_back());
        is_closed("get of a key in the memtable", keyspace.get(key(1)));
        is_closed("get of a key that is not there", keyspace.get("nothing"));
        is_closed("contains", keyspace.contains(key(5)));
        is_closed("multi_get", keyspace.multi_get(&[key(1), key(5)]));
        is_closed("multi_get of nothing", keyspace.multi_get::<&str>(&[]));
        is_closed("estimate", keyspace.estimate(..));
        is_closed("a snapshot's get", keyspace.at(&snapshot).get(key(5)));
        is_closed("a snapshot's contains", keyspace.at(&snapshot).contains(key(5)));
        is_closed("a snapshot's multi_get", keyspace.at(&snapshot).multi_get(&[key(5)]));
        is_closed("a snapshot's iterator", keyspace.at(&snapshot).iter().next().expect("an item"));
        is_closed("a new iterator", keyspace.iter().next_back().expect("an item"));
        is_closed("an iterator over no key", keyspace.range("b".."a").next().expect("an item"));
        for (what, range) in
            [("an iterator", &mut fresh), ("a begun one", &mut begun), ("one from the end", &mut both_ends)]
        {
            is_closed(what, range.next().expect("an item"));
            assert!(range.next().is_none() && range.next_back().is_none(), "{what} ends after its error");
        }
        is_closed("put", keyspace.put("x", "y"));
        is_closed("a large put", keyspace.put("x", vec![1; 10_000]));
        is_closed("delete", keyspace.delete("x"));
        is_closed("delete_range", keyspace.delete_range("a".."b"));
        is_closed("delete_range of nothing", keyspace.delete_range("b".."a"));
        is_closed("merge", counters.merge("x", 1i64.to_le_bytes()));
        is_closed("a batch", batch.commit(Durability::Buffered));
        is_closed("an empty batch", store.batch().commit(Durability::Buffered));
        is_closed("compact", keyspace.compact(..));
        is_closed("stats", store.stats());
        is_closed("verify", store.verify());
        is_closed("keyspace", store.keyspace("k"));
        is_closed("a new keyspace", store.keyspace("new"));
        is_closed("open_keyspace", store.open_keyspace("k"));
        is_closed("drop_keyspace", store.drop_keyspace("k"));
        is_closed("persist", store.persist(Durability::Synced));
        is_closed("checkpoint", store.checkpoint());
        is_closed("pack", store.pack());
        is_closed("settle", store.settle());
        is_closed("backup", store.backup_with(Store::builder("copy").device(MemDevice::new())));
        is_closed("a second close", store.close());
    }
}

#[test]
fn every_handle_of_a_closed_store_returns_closed() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(&dir.path().join("s"));
    let kept = Kept::of(&store);
    store.close().unwrap();
    kept.ask();
}

/// Regression: nearly all of several thousand reads were reported as corruption, and the error advised restoring a
/// backup.
#[test]
fn handles_of_a_closed_store_never_read_what_a_later_opener_wrote() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("s");
    let store = open(&path);
    let kept = Kept::of(&store);
    store.close().unwrap();
    rewrite(&path);
    kept.ask();
}

#[test]
fn another_process_rewrites_the_store() {
    if let Some(path) = env::var_os(REWRITE) {
        return rewrite(Path::new(&path));
    }
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("s");
    let store = open(&path);
    let kept = Kept::of(&store);
    store.close().unwrap();
    let mut child = process::Command::new(env::current_exe().unwrap());
    child.args(["--exact", "another_process_rewrites_the_store"]).env(REWRITE, &path);
    assert!(child.status().unwrap().success());
    kept.ask();
}

#[test]
fn values_read_before_a_close_stay_unchanged() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("s");
    let store = open(&path);
    let keyspace = store.keyspace("k").unwrap();
    (0..2000u32).for_each(|i| keyspace.put(key(i), [i as u8; 1500]).unwrap());
    keyspace.put("large", vec![9; 100_000]).unwrap();
    store.settle().unwrap();
    let values: Vec<_> = (0..2000).map(|i| keyspace.get(key(i)).unwrap().unwrap()).collect();
    let large = keyspace.get("large").unwrap().unwrap();
    let entries: Vec<_> = keyspace.iter().take(100).map(|entry| entry.unwrap()).collect();
    store.close().unwrap();
    rewrite(&path);
    drop(keyspace);
    assert!(values.iter().zip(0u32..).all(|(value, i)| *value == [i as u8; 1500]));
    assert!(entries.iter().zip(0u32..).all(|((name, value), i)| *name == key(i) && *value == [i as u8; 1500]));
    assert_eq!(large, vec![9; 100_000]);
}

/// Dropping a batch frees its large values, and dropping an engine frees the outputs of unfinished jobs. After a close,
/// another opening of the store may use these pages, so they must not be freed.
#[test]
fn drops_after_a_close_do_not_change_the_file() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("s");
    let store = open(&path);
    let keyspace = store.keyspace("k").unwrap();
    let mut batch = store.batch();
    (0..50u32).for_each(|i| batch.put(&keyspace, key(i), vec![b'x'; 50_000]));
    store.close().unwrap();
    let store = open(&path);
    let again = store.keyspace("k").unwrap();
    (0..100u32).for_each(|i| again.put(key(i), vec![i as u8; 50_000]).unwrap());
    drop((batch, keyspace));
    for i in 0..100u32 {
        assert_eq!(again.get(key(i)).unwrap().unwrap(), vec![i as u8; 50_000]);
    }
    let report = store.verify().unwrap();
    assert!(report.is_clean(), "{:?}", report.problems);
}

/// A read that runs while the store is closed and rewritten returns the old value or [`Error::Closed`].
#[test]
fn reads_during_a_close_return_the_right_value_or_closed() {
    let dir = tempfile::tempdir().unwrap();
    for round in 0..4 {
        let path = dir.path().join(format!("s{round}"));
        let store = open(&path);
        let keyspace = store.keyspace("k").unwrap();
        (0..KEYS).for_each(|i| keyspace.put(key(i), [b'a'; 100]).unwrap());
        store.settle().unwrap();
        let closed = Arc::new(AtomicBool::new(false));
        std::thread::scope(|scope| {
            for reader in 0..3u32 {
                let (keyspace, closed) = (keyspace.clone(), closed.clone());
                scope.spawn(move || {
                    let right = |value: Option<pandodb::Value>| assert_eq!(value.expect("it is there"), [b'a'; 100]);
                    let check = |result: Result<()>| match result {
                        Ok(()) => true,
                        Err(Error::Closed) => false,
                        Err(e) => panic!("a reader got the error: {e}"),
                    };
                    let mut i = reader * 5000;
                    loop {
                        let asked_late = closed.load(Relaxed);
                        i = i.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                        let pick = |n: u32| key(i.wrapping_add(n * 997) % KEYS);
                        let open = match reader {
                            0 => check(keyspace.get(pick(0)).map(right)),
                            1 => check(
                                keyspace.multi_get(&[0, 1, 2, 3].map(pick)).map(|all| all.into_iter().for_each(right)),
                            ),
                            _ => check(
                                keyspace
                                    .range(pick(0)..)
                                    .take(50)
                                    .try_for_each(|entry| entry.map(|(_, value)| right(Some(value)))),
                            ),
                        };
                        assert!(!(open && asked_late), "an answer after the close");
                        if !open {
                            return;
                        }
                    }
                });
            }
            std::thread::sleep(std::time::Duration::from_millis(20));
            store.close().unwrap();
            closed.store(true, Relaxed);
            rewrite(&path);
        });
    }
}
