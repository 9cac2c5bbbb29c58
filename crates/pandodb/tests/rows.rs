//! Tests that rows from the row cache equal the rows of the index after every kind of change to their keys.

use pandodb::{Append, IndexOptions, Keyspace, KeyspaceOptions, Store};

/// Every index that uses the row cache.
const INDEXES: [&str; 5] = ["stbe", "cola", "btree", "betree", "nbtree"];

/// The options of a keyspace with an index.
fn options(index: &str) -> KeyspaceOptions {
    println!("{index}");
    KeyspaceOptions::new().index(index.parse::<IndexOptions>().unwrap())
}

const ROWS: u64 = 2_000;
/// The key that the tests change.
const HOT: u64 = 777;

fn key(i: u64) -> String {
    format!("row{i:06}")
}

fn value(i: u64) -> String {
    format!("value of row {i}")
}

fn get(rows: &Keyspace, i: u64) -> Option<String> {
    rows.get(key(i)).unwrap().map(|value| String::from_utf8(value.to_vec()).unwrap())
}

fn hits(store: &Store) -> u64 {
    store.stats().unwrap().row_hits
}

/// Makes a store whose rows are all in the index. The row with the key [`HOT`] is also in the row cache.
fn warm(index: &str) -> (tempfile::TempDir, Store, Keyspace) {
    let dir = tempfile::tempdir().unwrap();
    let builder = Store::builder(dir.path().join("s")).memory_budget(8 << 20).background_threads(0);
    let store = builder.open().unwrap();
    let rows = store.keyspace_with("rows", options(index).merge(Append)).unwrap();
    (0..ROWS).for_each(|i| rows.put(key(i), value(i)).unwrap());
    store.pack().unwrap();
    let before = hits(&store);
    (0..4).for_each(|_| assert_eq!(get(&rows, HOT), Some(value(HOT))));
    assert!(hits(&store) >= before + 2, "a row that is looked up twice is cached");
    (dir, store, rows)
}

/// Changes the hot row by `act` and packs the change. Returns the value that the row has after packing. It is read by
/// two gets and one scan, which must agree.
fn after(index: &str, act: impl FnOnce(&Keyspace)) -> Option<String> {
    let (_dir, store, rows) = warm(index);
    let before = store.snapshot();
    act(&rows);
    let in_memory = get(&rows, HOT);
    store.pack().unwrap();
    let packed = get(&rows, HOT);
    assert_eq!((&packed, get(&rows, HOT)), (&in_memory, packed.clone()));
    let scanned = rows.range(key(HOT)..=key(HOT)).next().map(|entry| entry.unwrap().1.to_vec());
    assert_eq!(scanned, packed.clone().map(String::into_bytes));
    let old = rows.at(&before).get(key(HOT)).unwrap().unwrap();
    assert_eq!(old, value(HOT).as_bytes(), "a snapshot returns the old value");
    packed
}

#[test]
fn a_cached_row_follows_changes_of_its_key() {
    INDEXES.into_iter().for_each(follows_changes);
}

fn follows_changes(index: &str) {
    let after = |act: &dyn Fn(&Keyspace)| after(index, act);
    assert_eq!(after(&|rows: &Keyspace| rows.put(key(HOT), "NEW").unwrap()).unwrap(), "NEW");
    let as_long = "VALUE".to_owned() + &value(HOT)[5..];
    assert_eq!(after(&|rows: &Keyspace| rows.put(key(HOT), &as_long).unwrap()).unwrap(), as_long);
    assert_eq!(after(&|rows: &Keyspace| rows.delete(key(HOT)).unwrap()), None);
    assert_eq!(after(&|rows: &Keyspace| rows.merge(key(HOT), "!").unwrap()).unwrap(), value(HOT) + "!");
    assert_eq!(after(&|rows: &Keyspace| rows.delete_range(key(HOT - 5)..key(HOT + 5)).unwrap()), None);
    assert_eq!(after(&|rows: &Keyspace| rows.delete_range(..key(HOT)).unwrap()), Some(value(HOT)));
    let large = "x".repeat(40_000);
    assert_eq!(after(&|rows: &Keyspace| rows.put(key(HOT), &large).unwrap()).unwrap(), large);
    let again = |rows: &Keyspace| {
        rows.delete_range(key(HOT)..).unwrap();
        rows.put(key(HOT), "back").unwrap();
    };
    assert_eq!(after(&again).unwrap(), "back");
    let gone = |rows: &Keyspace| {
        rows.put(key(HOT), "there").unwrap();
        rows.delete_range(key(HOT)..).unwrap();
    };
    assert_eq!(after(&gone), None);
}

#[test]
fn a_cached_row_stays_when_others_are_packed() {
    INDEXES.into_iter().for_each(stays_when_others_are_packed);
}

fn stays_when_others_are_packed(index: &str) {
    let (_dir, store, rows) = warm(index);
    for round in 0..3 {
        (0..ROWS).filter(|i| *i != HOT).for_each(|i| rows.put(key(i), format!("{round}")).unwrap());
        store.pack().unwrap();
        let before = hits(&store);
        assert_eq!(get(&rows, HOT), Some(value(HOT)));
        assert_eq!(hits(&store), before + 1);
    }
    // A `multi_get` also uses the row cache.
    let before = hits(&store);
    let found = rows.multi_get(&[key(HOT), key(HOT + 1), key(ROWS)]).unwrap();
    assert_eq!((found[0].as_ref().unwrap().to_vec(), found[2].is_none()), (value(HOT).into_bytes(), true));
    assert_eq!(hits(&store), before + 1);
}

/// The number of leaves that `act` reads or finds in the pool.
fn leaves(store: &Store, act: impl FnOnce()) -> u64 {
    let before = store.stats().unwrap().leaves;
    act();
    store.stats().unwrap().leaves - before
}

#[test]
fn operands_of_the_index_are_folded_into_a_cached_row() {
    INDEXES.into_iter().for_each(operands_are_folded);
}

fn operands_are_folded(index: &str) {
    let (_dir, store, rows) = warm(index);
    let older = store.snapshot();
    let mut expected = value(HOT);
    for round in 0..3 {
        // Several packs, so that the operands of the key are in several runs.
        for _ in 0..2 {
            rows.merge(key(HOT), format!("+{round}")).unwrap();
            expected += &format!("+{round}");
            store.pack().unwrap();
        }
        let read = || assert_eq!(get(&rows, HOT).as_ref(), Some(&expected));
        assert!(leaves(&store, read) > 0, "the pack has removed the row");
        read();
        let before = hits(&store);
        assert_eq!(leaves(&store, || (0..5).for_each(|_| read())), 0, "the row is cached");
        assert_eq!(hits(&store), before + 5);
        assert_eq!(
            rows.at(&older).get(key(HOT)).unwrap().unwrap(),
            value(HOT).as_bytes(),
            "a snapshot sees no operand"
        );
    }
    // With operands in the memtable, too, the row holds only what the index holds.
    rows.merge(key(HOT + 1), "a").unwrap();
    store.pack().unwrap();
    rows.merge(key(HOT + 1), "b").unwrap();
    let both = value(HOT + 1) + "ab";
    (0..2).for_each(|_| assert_eq!(get(&rows, HOT + 1).as_ref(), Some(&both)));
    let read = || (0..3).for_each(|_| assert_eq!(get(&rows, HOT + 1).as_ref(), Some(&both)));
    assert_eq!(leaves(&store, read), 0, "the row is cached");
    rows.merge(key(HOT + 1), "c").unwrap();
    assert_eq!(get(&rows, HOT + 1), Some(both.clone() + "c"));
    rows.delete_range(key(HOT)..key(HOT + 5)).unwrap();
    rows.merge(key(HOT + 1), "d").unwrap();
    assert_eq!(get(&rows, HOT + 1).as_deref(), Some("d"));
    store.pack().unwrap();
    (0..4).for_each(|_| assert_eq!(get(&rows, HOT + 1).as_deref(), Some("d")));
}

#[test]
fn cached_rows_of_a_dropped_keyspace_are_not_returned_for_the_next() {
    for index in INDEXES {
        let (_dir, store, rows) = warm(index);
        drop(rows);
        store.drop_keyspace("rows").unwrap();
        let rows = store.keyspace_with("rows", options(index)).unwrap();
        assert_eq!(get(&rows, HOT), None);
        rows.put(key(HOT), "another").unwrap();
        store.pack().unwrap();
        assert_eq!(get(&rows, HOT).unwrap(), "another");
    }
}

#[test]
fn without_a_row_cache_nothing_is_found_in_it() {
    for index in INDEXES {
        let dir = tempfile::tempdir().unwrap();
        let store = Store::builder(dir.path().join("s")).row_cache_bytes(0).background_threads(0).open().unwrap();
        let rows = store.keyspace_with("rows", options(index)).unwrap();
        rows.put(key(1), value(1)).unwrap();
        store.pack().unwrap();
        (0..5).for_each(|_| assert_eq!(get(&rows, 1), Some(value(1))));
        let stats = store.stats().unwrap();
        assert_eq!((stats.row_hits, stats.memory.rows), (0, 0));
    }
}

#[test]
fn a_compaction_keeps_the_leaves_that_were_requested_in_memory() {
    let dir = tempfile::tempdir().unwrap();
    let builder = Store::builder(dir.path().join("s")).memory_budget(64 << 20).background_threads(0);
    let store = builder.open().unwrap();
    let ks = store.keyspace("k").unwrap();
    let keys = 0..40_000u32;
    let read_all = || {
        let before = store.stats().unwrap().reads;
        keys.clone().for_each(|i| assert!(ks.contains(i.to_be_bytes()).unwrap()));
        store.stats().unwrap().reads - before
    };
    keys.clone().for_each(|i| ks.put(i.to_be_bytes(), [7; 100]).unwrap());
    store.pack().unwrap();
    ks.compact(..).unwrap();
    read_all();
    keys.clone().step_by(10).for_each(|i| ks.put(i.to_be_bytes(), [8; 100]).unwrap());
    store.pack().unwrap();
    let before = store.stats().unwrap().written.compact;
    ks.compact(..).unwrap();
    assert!(store.stats().unwrap().written.compact - before > 2 << 20, "the leaves are written again");
    let reads = read_all();
    assert!(reads < 100, "{reads} reads of about 1,200 leaves");
    store.close().unwrap();
}
