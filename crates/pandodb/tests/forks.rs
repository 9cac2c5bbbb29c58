//! Tests of a process that forks while a store is open. The store remains with the parent. In the child every operation
//! fails with [`Error::Forked`]. No operation blocks on a lock that another thread of the parent held. Dropping the
//! handles in the child does not affect the parent.

use std::fs;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use fork::{Fork, fork, waitpid_nohang};
use pandodb::device::MemDevice;
use pandodb::{AddI64, Batch, Durability, Error, Keyspace, KeyspaceOptions, Range, Result, Snapshot, Store, Value};

/// A child that runs longer than this counts as blocked.
const PATIENCE: Duration = Duration::from_secs(30);

fn open(path: &Path) -> Store {
    Store::builder(path).memory_budget(2 << 20).open().expect("the store opens")
}

/// Each test holds this mutex, so that the tests run one after the other. The reason: the crate `parking_lot` keeps
/// waiting threads in tables of the process. If a thread changes such a table at the moment of a fork, the table stays
/// locked in the child. In that case stores that the child opens block without end (`docs/decisions/0042`).
static ALONE: Mutex<()> = Mutex::new(());

fn alone() -> MutexGuard<'static, ()> {
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A forked child process.
struct Child {
    pid: i32,
}

impl Child {
    /// Waits until the child ends, and fails the test if the child failed.
    fn join(self) {
        let begun = Instant::now();
        loop {
            match waitpid_nohang(self.pid).expect("a child to wait for") {
                Some(status) => return assert_eq!(status, 0, "the child failed; its output is above"),
                None if begun.elapsed() > PATIENCE => panic!("the child hangs"),
                None => std::thread::sleep(Duration::from_millis(2)),
            }
        }
    }
}

/// Forks. The child runs `body` with its own copy of `handles` and exits.
fn in_child<T>(handles: T, body: impl FnOnce(T)) -> (Child, T) {
    match fork().expect("forked") {
        Fork::Parent(pid) => (Child { pid }, handles),
        Fork::Child => {
            let ended = catch_unwind(AssertUnwindSafe(|| body(handles)));
            std::process::exit(i32::from(ended.is_err()));
        }
    }
}

fn refused<T>(what: &str, result: Result<T>) {
    match result {
        Err(Error::Forked) => {}
        Err(other) => panic!("{what} in the child: {other}"),
        Ok(_) => panic!("{what} in the child has an answer"),
    }
}

/// Handles of every kind.
struct Handles {
    store: Store,
    keyspace: Keyspace,
    counters: Keyspace,
    snapshot: Snapshot,
    batch: Batch,
    begun: Range,
    value: Value,
}

impl Handles {
    fn of(store: Store) -> Handles {
        let keyspace = store.keyspace("k").expect("a keyspace");
        let counters = store.keyspace_with("c", KeyspaceOptions::new().merge(AddI64)).expect("a keyspace");
        let mut begun = keyspace.iter();
        begun.by_ref().take(3).for_each(|entry| drop(entry.expect("an entry")));
        let mut batch = store.batch();
        batch.put(&keyspace, "from the batch", vec![1; 50_000]);
        let value = keyspace.get("7").expect("read").expect("it is there");
        Handles { snapshot: store.snapshot(), store, keyspace, counters, batch, begun, value }
    }

    /// Runs in the child: checks that the store refuses every operation. It then drops all handles.
    fn are_refused(self) {
        let Handles { store, keyspace, counters, snapshot, mut batch, mut begun, value } = self;
        assert_eq!(value, "seven", "a value stays readable");
        refused("get", keyspace.get("7"));
        refused("contains", keyspace.contains("7"));
        refused("multi_get", keyspace.multi_get(&["7", "8"]));
        refused("a begun iterator", begun.next().expect("an item"));
        begun.seek("row 5");
        refused("a begun iterator after a seek", begun.next().expect("an item"));
        begun.seek("");
        begun.seek_back("row 3");
        refused("a begun iterator from its other end", begun.next_back().expect("an item"));
        refused("a new iterator", keyspace.iter().next_back().expect("an item"));
        refused("a snapshot's get", keyspace.at(&snapshot).get("7"));
        refused("a snapshot's iterator", keyspace.at(&store.snapshot()).iter().next().expect("an item"));
        refused("pop_first", keyspace.pop_first());
        refused("pop_last", keyspace.pop_last_with(Durability::None));
        refused("a borrowed row", keyspace.iter().next_row());
        refused("a borrowed row from the other end", keyspace.iter().next_row_back());
        refused("load_sorted", keyspace.load_sorted([("x", "y")]));
        refused("put", keyspace.put("x", "y"));
        refused("a large put", keyspace.put("x", vec![1; 100_000]));
        refused("delete", keyspace.delete("x"));
        refused("delete_range", keyspace.delete_range("a".."b"));
        refused("merge", counters.merge("x", 1i64.to_le_bytes()));
        refused("a batch", batch.commit(Durability::Synced));
        refused("compact", keyspace.compact(..));
        refused("persist", store.persist(Durability::Synced));
        refused("checkpoint", store.checkpoint());
        refused("pack", store.pack());
        refused("settle", store.settle());
        refused("stats", store.stats());
        refused("verify", store.verify());
        refused("keyspace", store.keyspace("new"));
        refused("drop_keyspace", store.drop_keyspace("k"));
        refused("backup", store.backup_with(Store::builder("copy").device(MemDevice::new())));
        assert_eq!((store.keyspaces().len(), store.debt(), keyspace.approximate_len()), (0, 0, 0));
        refused("close", store.clone().close());
    }
}

/// A store with some rows in a run and one row in the memtable.
fn filled(path: &Path) -> Store {
    fill(open(path))
}

/// Like [`filled`], but without background threads, so that no background thread runs when the process forks: see
/// [`ALONE`].
fn filled_at_rest(path: &Path) -> Store {
    fill(Store::builder(path).memory_budget(2 << 20).background_threads(0).open().expect("the store opens"))
}

fn fill(store: Store) -> Store {
    let keyspace = store.keyspace("k").unwrap();
    (0..2000).for_each(|i| keyspace.put(format!("row {i}"), vec![i as u8; 100]).unwrap());
    store.settle().unwrap();
    keyspace.put("7", "seven").unwrap();
    store
}

#[test]
fn the_child_is_refused_and_the_parent_goes_on() {
    let _alone = alone();
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("s");
    let (child, parent) = in_child(Handles::of(filled(&path)), Handles::are_refused);
    child.join();
    // The parent still holds the lock.
    assert!(matches!(Store::open(&path), Err(Error::Locked { .. })));
    let Handles { store, keyspace, mut batch, begun, snapshot, .. } = parent;
    assert_eq!(begun.count(), 1998);
    keyspace.put("after", "the fork").unwrap();
    batch.commit(Durability::Synced).unwrap();
    assert!(keyspace.at(&snapshot).get("after").unwrap().is_none());
    store.settle().unwrap();
    assert!(store.verify().unwrap().is_clean());
    store.close().unwrap();
    let store = open(&path);
    let keyspace = store.keyspace("k").unwrap();
    assert_eq!(keyspace.get("after").unwrap().unwrap(), "the fork");
    assert_eq!(keyspace.iter().count(), 2003);
}

/// Regression: if nothing had been written since the opening, parent and child would both create the first log file.
/// This poisoned the store of the parent.
#[test]
fn only_the_parent_creates_the_first_log_file_after_a_fork() {
    let _alone = alone();
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("s");
    drop(filled(&path));
    let store = open(&path);
    let keyspace = store.keyspace("k").unwrap();
    let (child, keyspace) = in_child(keyspace, |keyspace| {
        (0..50).for_each(|i| refused("put", keyspace.put(format!("child {i}"), "lost")));
        drop(keyspace);
    });
    child.join();
    (0..50).for_each(|i| keyspace.put(format!("parent {i}"), "kept").unwrap());
    store.close().unwrap();
    assert_eq!(open(&path).keyspace("k").unwrap().prefix("parent").count(), 50);
}

#[test]
fn a_parent_that_closes_its_store_need_not_wait_for_the_child() {
    let _alone = alone();
    let dir = tempfile::tempdir().unwrap();
    let (path, done) = (dir.path().join("s"), dir.path().join("done"));
    let (child, store) = in_child(filled(&path), |store| {
        wait_for(&done);
        // The parent has closed the store and opened it again while the child was running.
        refused("stats", store.stats());
        drop(store);
    });
    store.close().unwrap();
    let again = open(&path);
    again.keyspace("k").unwrap().put("x", "y").unwrap();
    fs::write(&done, "").unwrap();
    child.join();
    assert!(matches!(Store::open(&path), Err(Error::Locked { .. })), "the child has not unlocked the second opening");
    assert!(again.verify().unwrap().is_clean());
}

#[test]
fn a_child_can_open_other_stores() {
    let _alone = alone();
    let dir = tempfile::tempdir().unwrap();
    let (path, other) = (dir.path().join("s"), dir.path().join("other"));
    let (child, store) = in_child(filled_at_rest(&path), |store| {
        let own = filled(&other);
        assert_eq!(own.keyspace("k").unwrap().iter().count(), 2001);
        refused("stats", store.stats());
        // The child forks a child of its own, which can use neither of the two stores.
        let (grandchild, own) = in_child(own, |own| {
            refused("stats of the grandparent's store", store.stats());
            refused("stats of the parent's store", own.stats());
        });
        grandchild.join();
        own.keyspace("k").unwrap().put("x", "y").unwrap();
        own.close().unwrap();
    });
    child.join();
    assert_eq!(open(&other).keyspace("k").unwrap().get("x").unwrap().unwrap(), "y");
    assert!(store.verify().unwrap().is_clean());
}

/// If a parent is killed, a child that has dropped its inherited handles does not keep the store locked.
#[test]
fn the_store_of_a_killed_parent_can_be_opened_while_its_child_runs() {
    let _alone = alone();
    let dir = tempfile::tempdir().unwrap();
    let (path, dropped, done) = (dir.path().join("s"), dir.path().join("dropped"), dir.path().join("done"));
    let (parent, ()) = in_child((), |()| {
        let (_child, store) = in_child(filled(&path), |store| {
            drop(store);
            fs::write(&dropped, "").unwrap();
            wait_for(&done);
        });
        wait_for(&dropped);
        // Forget the store instead of dropping it: as after a kill, nothing is closed.
        std::mem::forget(store);
        std::process::exit(0);
    });
    parent.join();
    assert_eq!(open(&path).keyspace("k").unwrap().iter().count(), 2001);
    fs::write(&done, "").unwrap();
}

fn wait_for(path: &Path) {
    let begun = Instant::now();
    while !path.exists() {
        assert!(begun.elapsed() < PATIENCE, "{} does not come", path.display());
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// Threads that hold locks of the engine at the moment of a fork do not exist in the child. The child must not wait for
/// these threads.
#[test]
fn a_child_waits_for_no_thread_of_the_parent() {
    let _alone = alone();
    let dir = tempfile::tempdir().unwrap();
    let store = filled(&dir.path().join("s"));
    let keyspace = store.keyspace("k").unwrap();
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| {
                while !done.load(Relaxed) {
                    keyspace.put("busy", [1; 300]).unwrap();
                    let snapshot = store.snapshot();
                    keyspace.at(&snapshot).iter().take(50).for_each(|entry| drop(entry.unwrap()));
                    drop(store.stats());
                }
            });
        }
        let judged = catch_unwind(AssertUnwindSafe(|| {
            for _ in 0..60 {
                let handles = Handles::of(store.clone());
                in_child(handles, Handles::are_refused).0.join();
            }
        }));
        done.store(true, Relaxed);
        judged.unwrap();
    });
    assert!(store.verify().unwrap().is_clean());
}

/// The pages that a sorted load has written belong to the load of the parent.
#[test]
fn the_child_leaves_a_sorted_load_alone() {
    let _alone = alone();
    // Without and with a helper thread. A load of 100 rows has none in any case. If the fork is at the row 1, the load
    // has none yet.
    for fill in [filled_at_rest, filled] {
        for (rows, at) in [(20_000, 10_000), (20_000, 1), (100, 50)] {
            fork_in_a_sorted_load(fill, rows, at);
        }
    }
}

/// Forks when a sorted load of `count` rows asks for the row `at`.
fn fork_in_a_sorted_load(fill: fn(&Path) -> Store, count: u32, at: u32) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("s");
    let store = fill(&path);
    let keyspace = store.keyspace("k").unwrap();
    let value = |i: u32| vec![i as u8; if i.is_multiple_of(100) { 20_000 } else { 300 }];
    let mut is_child = false;
    let rows = (0..count).map(|i| {
        if i == at {
            match fork().expect("forked") {
                Fork::Parent(pid) => Child { pid }.join(),
                Fork::Child => is_child = true,
            }
        }
        (format!("sorted {i:06}"), value(i))
    });
    let loaded = keyspace.load_sorted(rows);
    if is_child {
        // The load was dropped by this process, too.
        drop((keyspace, store));
        std::process::exit(i32::from(!matches!(loaded, Err(Error::Forked))));
    }
    assert_eq!(loaded.unwrap(), count.into());
    store.settle().unwrap();
    (0..2000).for_each(|i| keyspace.put(format!("later {i}"), vec![9; 3_000]).unwrap());
    for i in 0..count {
        assert!(keyspace.get(format!("sorted {i:06}")).unwrap().unwrap() == value(i)[..], "row {i}");
    }
    assert!(store.verify().unwrap().is_clean());
}
