//! A scenario with a sorted load, whose rows a helper passes to the index.

use std::sync::atomic::{AtomicBool, Ordering::SeqCst};

use pandodb::Store;
use pandodb::device::sim::SimImage;

use super::{ROWS, Twist, body, keyspace, open, open_image, read_all, threads, verify};

/// The claim of [`load`].
pub const LOAD: &str = "a sorted load is one write: readers see all of its rows or none, and the value of a later put \
                        stays";

/// The keys of the load. Each row fills a chunk.
const KEYS: [&str; 5] = ["a", "b", "c", "d", "e"];

/// The number of rows of the load at one snapshot. One of them may have been replaced by a put.
fn look(store: &Store) -> usize {
    let snapshot = store.snapshot();
    let found = read_all(keyspace(store, ROWS).at(&snapshot).iter()).expect("read");
    let loaded = KEYS.iter().filter(|key| found.get(key.as_bytes()).is_some_and(|value| value == b"load")).count();
    let put = found.get(&b"c"[..]).is_some_and(|value| value == b"put");
    let all = if put { KEYS.len() - 1 } else { KEYS.len() };
    assert!(loaded == 0 || loaded == all, "{loaded} rows of the load, {found:?}");
    loaded
}

/// One thread loads sorted rows, one puts a row between them, and one reads. The canary attaches the load before the
/// helper has taken all rows.
pub fn load(start: &SimImage, _: Twist) {
    let (sim, store) = open_image(start, 1);
    let is_later = AtomicBool::new(false);
    threads([
        body(|| {
            let loaded = keyspace(&store, ROWS).load_sorted(KEYS.map(|key| (key, "load")));
            assert_eq!(loaded.expect("loaded"), KEYS.len() as u64);
            assert!(look(&store) > 0, "a load is visible when its call returns");
        }),
        body(|| {
            is_later.store(look(&store) > 0, SeqCst);
            keyspace(&store, ROWS).put("c", "put").expect("written");
        }),
        body(|| {
            let before = look(&store);
            assert!(look(&store) >= before.min(1), "the rows stay");
        }),
    ]);
    let check = |store: &Store| {
        assert!(look(store) > 0);
        let value = keyspace(store, ROWS).get("c").expect("read").expect("it was put and loaded");
        assert!(!is_later.load(SeqCst) || value == b"put", "the load has replaced a later put");
    };
    check(&store);
    verify(&store);
    store.close().expect("closed");
    let store = open(&sim, 0).expect("it opens again");
    check(&store);
    store.close().expect("closed");
}
