//! Conformance tests of sorted loads.

use std::collections::BTreeMap;
use std::sync::Arc;

use pandodb::device::sim::{Fault, FaultKind, OpClass, SimDevice};
use pandodb::{AddU64, Durability, Error, IndexOptions, Keyspace, KeyspaceAt, KeyspaceOptions, Store, StoreBuilder};

use crate::each;

type Model = BTreeMap<Vec<u8>, Vec<u8>>;

fn key(i: u32) -> Vec<u8> {
    format!("key{i:06}").into_bytes()
}

/// A value of 0 to 400 bytes, or of 5,000 bytes for every 97th row, which is stored as a large value.
fn value(i: u32, round: u8) -> Vec<u8> {
    let len = if i % 97 == 5 { 5000 } else { i as usize * 7 % 400 };
    vec![round; len]
}

fn rows(keys: impl Iterator<Item = u32>, round: u8) -> Vec<(Vec<u8>, Vec<u8>)> {
    keys.map(|i| (key(i), value(i, round))).collect()
}

fn load(ks: &Keyspace, model: &mut Model, keys: impl Iterator<Item = u32>, round: u8) {
    let rows = rows(keys, round);
    assert_eq!(ks.load_sorted(rows.iter().map(|(key, value)| (key, value))).unwrap(), rows.len() as u64);
    model.extend(rows);
}

/// Compares a keyspace with the model by scans from both ends, by gets, and by a `multi_get`.
fn check(ks: &Keyspace, model: &Model) {
    let expected = || model.iter().map(|(key, value)| (key.clone(), value.clone()));
    let owned = |entry: pandodb::Result<(pandodb::Value, pandodb::Value)>| {
        let (key, value) = entry.unwrap();
        (key.to_vec(), value.to_vec())
    };
    assert!(ks.iter().map(owned).eq(expected()), "a scan");
    assert!(ks.iter().rev().map(owned).eq(expected().rev()), "a backward scan");
    let keys: Vec<Vec<u8>> = (0..3_000).step_by(13).map(key).collect();
    for (key, found) in keys.iter().zip(ks.multi_get(&keys).unwrap()) {
        assert_eq!(found.as_deref(), model.get(key).map(Vec::as_slice), "multi_get of {}", key.escape_ascii());
        assert_eq!(ks.get(key).unwrap().as_deref(), model.get(key).map(Vec::as_slice), "get of {}", key.escape_ascii());
    }
}

fn at_snapshot(at: &KeyspaceAt) -> Model {
    let owned = |entry: pandodb::Result<(pandodb::Value, pandodb::Value)>| entry.unwrap();
    at.iter().map(owned).map(|(key, value)| (key.to_vec(), value.to_vec())).collect()
}

/// Compacts everything and checks that `verify` has read every allocated page.
fn check_accounts(store: &Store, ks: &Keyspace) {
    ks.compact(..).unwrap();
    let report = store.verify().unwrap();
    assert!(report.is_clean(), "{:?}", report.problems);
    let stats = store.stats().unwrap();
    assert_eq!(stats.allocated_bytes - stats.quarantined_bytes, report.bytes + 2 * 4096, "no page is lost");
}

#[test]
fn a_load_into_an_empty_keyspace_is_read_and_survives_a_reopening() {
    each(|case| {
        let (place, store, ks) = case.fresh();
        let mut model = Model::new();
        load(&ks, &mut model, 0..3_000, 1);
        // Without a memtable, the rows are committed as one batch, whose leaves are in memory.
        let is_direct = case.index.contains("writes=direct");
        assert!(is_direct || store.debt() == 0, "a load into an empty keyspace leaves no work");
        check(&ks, &model);
        assert!(store.verify().unwrap().is_clean());
        drop(ks);
        store.close().unwrap();
        let store = case.builder(&place).open().unwrap();
        let ks = store.keyspace("k").unwrap();
        check(&ks, &model);
        check_accounts(&store, &ks);
        check(&ks, &model);
    });
}

#[test]
fn a_load_is_newer_than_earlier_writes_and_older_than_later_ones() {
    each(|case| {
        let (place, store, ks) = case.fresh();
        let mut model = Model::new();
        for i in (0..3_000).step_by(3) {
            ks.put(key(i), value(i, 1)).unwrap();
            model.insert(key(i), value(i, 1));
        }
        ks.delete_range(key(100)..key(900)).unwrap();
        model.retain(|found, _| !(key(100)..key(900)).contains(found));
        for i in 0..40 {
            ks.delete(key(i * 30)).unwrap();
            model.remove(&key(i * 30));
        }
        let (before, then) = (store.snapshot(), model.clone());
        for round in 2..5u32 {
            load(&ks, &mut model, (0..3_000).filter(|i| i % (round + 1) == 0), round as u8);
            check(&ks, &model);
            for i in (0..3_000).step_by(11 * round as usize) {
                ks.put(key(i), b"later").unwrap();
                model.insert(key(i), b"later".to_vec());
            }
            ks.delete_range(key(500 * round)..key(500 * round + 200)).unwrap();
            model.retain(|found, _| !(key(500 * round)..key(500 * round + 200)).contains(found));
            check(&ks, &model);
        }
        let (after, last) = (store.snapshot(), model.clone());
        load(&ks, &mut model, 1_000..1_500, 9);
        assert_eq!(at_snapshot(&ks.at(&before)), then);
        assert_eq!(at_snapshot(&ks.at(&after)), last);
        store.settle().unwrap();
        ks.compact(..).unwrap();
        assert_eq!(at_snapshot(&ks.at(&before)), then, "a compaction keeps what snapshots read");
        assert_eq!(at_snapshot(&ks.at(&after)), last);
        check(&ks, &model);
        drop((before, after));
        check_accounts(&store, &ks);
        drop(ks);
        store.close().unwrap();
        let store = case.builder(&place).open().unwrap();
        check(&store.keyspace("k").unwrap(), &model);
    });
}

#[test]
fn cached_rows_and_counters_follow_a_load() {
    each(|case| {
        let (_place, store, _) = case.fresh();
        let sums = store.keyspace_with("sums", case.options().merge(AddU64)).unwrap();
        let number = |n: u64| n.to_le_bytes();
        (0..500).for_each(|i| sums.put(key(i), number(1)).unwrap());
        sums.compact(..).unwrap();
        // Rows that are looked up repeatedly are in the row cache.
        (0..4).for_each(|_| assert_eq!(sums.get(key(77)).unwrap().unwrap(), number(1)));
        sums.merge(key(77), number(5)).unwrap();
        sums.load_sorted([(key(76), number(40)), (key(77), number(40))]).unwrap();
        assert_eq!(sums.get(key(77)).unwrap().unwrap(), number(40), "the load replaces value and operands");
        sums.merge(key(77), number(2)).unwrap();
        assert_eq!(sums.get(key(77)).unwrap().unwrap(), number(42), "later operands are added to the load");
        sums.compact(..).unwrap();
        (0..4).for_each(|_| assert_eq!(sums.get(key(77)).unwrap().unwrap(), number(42)));
        let refused = sums.load_sorted([(key(1), &b"short"[..])]).unwrap_err();
        assert!(matches!(&refused, Error::InvalidArgument { detail } if detail.contains("row 1")), "{refused}");
        assert_eq!(sums.get(key(1)).unwrap().unwrap(), number(1));
    });
}

#[test]
fn a_refused_load_has_no_effect() {
    each(|case| {
        let (_place, store, ks) = case.fresh();
        let mut model = Model::new();
        load(&ks, &mut model, (0..1_000).step_by(2), 1);
        store.checkpoint().unwrap();
        let taken = || {
            let stats = store.stats().unwrap();
            stats.allocated_bytes - stats.quarantined_bytes
        };
        let before = taken();
        let good = || rows(0..2_000, 7).into_iter();
        let refuse = |bad: Vec<(Vec<u8>, Vec<u8>)>, words: &[&str]| {
            let refused = ks.load_sorted(good().chain(bad)).unwrap_err();
            let Error::InvalidArgument { detail } = &refused else { panic!("{refused}") };
            assert!(words.iter().all(|word| detail.contains(word)), "{detail}");
            assert_eq!(taken(), before, "the pages are free again: {detail}");
        };
        refuse(vec![(key(1_999), vec![])], &["row 2001", "key001999", "does not follow", "nothing was loaded"]);
        refuse(vec![(key(3), vec![])], &["row 2001", "key000003", "key001999"]);
        refuse(vec![(vec![], vec![])], &["row 2001", "a key must have 1 to 65535 bytes"]);
        refuse(vec![(vec![b'z'; 65_536], vec![])], &["row 2001", "65536"]);
        refuse(vec![(b"z".to_vec(), vec![0; (64 << 20) + 1])], &["row 2001", "67108864"]);
        let broken = good().map(Ok).chain([Err(Error::invalid("the source is broken"))]);
        let refused = ks.try_load_sorted::<_, _, Error>(broken).unwrap_err();
        assert!(refused.to_string().contains("the source is broken"), "{refused}");
        assert_eq!(taken(), before, "after an error of the source");
        let panicked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            ks.load_sorted(good().chain(std::iter::from_fn(|| panic!("the source panics"))))
        }));
        assert!(panicked.is_err());
        assert_eq!(taken(), before, "after a panic of the source");
        assert_eq!(ks.load_sorted(Vec::<(Vec<u8>, Vec<u8>)>::new()).unwrap(), 0, "an empty load does nothing");
        check(&ks, &model);
        load(&ks, &mut model, 0..2_000, 3);
        check(&ks, &model);
        check_accounts(&store, &ks);
    });
}

#[test]
fn a_load_needs_a_keyspace_that_takes_writes() {
    each(|case| {
        let (place, store, ks) = case.fresh();
        let dropped = store.keyspace_with("dropped", case.options()).unwrap();
        store.drop_keyspace("dropped").unwrap();
        assert!(matches!(dropped.load_sorted([("a", "b")]), Err(Error::NoKeyspace { .. })));
        // The keyspace is dropped while the load runs.
        let doomed = store.keyspace_with("doomed", case.options()).unwrap();
        let rows = (0..2_000).map(|i| {
            if i == 1_500 {
                store.drop_keyspace("doomed").unwrap();
            }
            (key(i), value(i, 1))
        });
        assert!(matches!(doomed.load_sorted(rows), Err(Error::NoKeyspace { .. })));
        // The store is closed while the load runs.
        let rows = (0..2_000).map(|i| {
            if i == 1_500 {
                store.clone().close().unwrap();
            }
            (key(i), value(i, 1))
        });
        assert!(matches!(ks.load_sorted(rows), Err(Error::Closed)));
        drop((dropped, doomed, ks, store));
        let store = case.builder(&place).open().unwrap();
        let ks = store.keyspace("k").unwrap();
        assert_eq!(ks.iter().count(), 0);
        check_accounts(&store, &ks);
        drop((ks, store));
        let store = case.builder(&place).read_only(true).open().unwrap();
        let ks = store.open_keyspace("k").unwrap().unwrap();
        assert!(matches!(ks.load_sorted([("a", "b")]), Err(Error::ReadOnly)));
    });
}

#[test]
fn other_threads_write_and_read_during_a_load() {
    each(|case| {
        let (_place, store, ks) = case.fresh();
        let other = store.keyspace_with("other", case.options()).unwrap();
        let stop = std::sync::atomic::AtomicBool::new(false);
        let written = std::thread::scope(|scope| {
            let writer = scope.spawn(|| {
                let mut i = 0u32;
                while !stop.load(std::sync::atomic::Ordering::Relaxed) || i < 500 {
                    let mut batch = store.batch();
                    batch.put(&ks, format!("other{i:06}"), i.to_be_bytes());
                    batch.put(&other, key(i), i.to_be_bytes());
                    batch
                        .commit([Durability::Buffered, Durability::Synced][usize::from(i.is_multiple_of(64))])
                        .unwrap();
                    i += 1;
                }
                i
            });
            let reader = scope.spawn(|| {
                let mut seen = [0usize; 2];
                // On a busy machine this thread may start only after the load has ended.
                while !stop.load(std::sync::atomic::Ordering::Relaxed) || seen == [0; 2] {
                    let found = ks.range(key(0)..key(999_999)).count();
                    assert!(found == 0 || found == 3_000, "{found} rows of a load of 3,000");
                    seen[usize::from(found > 0)] += 1;
                }
                seen
            });
            ks.load_sorted(rows(0..3_000, 1)).unwrap();
            assert_eq!(ks.range(key(0)..key(999_999)).count(), 3_000);
            stop.store(true, std::sync::atomic::Ordering::Relaxed);
            assert!(reader.join().unwrap().iter().sum::<usize>() > 0, "the reader has read");
            writer.join().unwrap()
        });
        assert_eq!(ks.prefix("other").count(), written as usize);
        assert_eq!(other.iter().count(), written as usize);
        assert!(store.verify().unwrap().is_clean());
    });
}

fn small_on(sim: &Arc<SimDevice>) -> StoreBuilder {
    let builder = Store::builder("faulty").device(sim.clone()).memory_budget(1 << 20);
    builder.memtable_bytes(8 << 10).background_threads(0)
}

/// A store with rows that puts and a load have written. A tree of pages has to merge the rows of the load before the next
/// load is attached.
fn before_a_fault(sim: &Arc<SimDevice>, index: &str) -> (Store, Keyspace, Model) {
    let store = small_on(sim).open().unwrap();
    let options = KeyspaceOptions::new().index(index.parse::<IndexOptions>().unwrap());
    let ks = store.keyspace_with("k", options).unwrap();
    let mut model = Model::new();
    (0..300).for_each(|i| ks.put(key(i * 3), value(i, 1)).unwrap());
    model.extend((0..300).map(|i| (key(i * 3), value(i, 1))));
    load(&ks, &mut model, (0..900).step_by(7), 4);
    (store, ks, model)
}

#[test]
fn a_fault_during_a_load_leaves_all_or_nothing() {
    let kinds = [
        FaultKind::StorageFull,
        FaultKind::IoError(OpClass::Read),
        FaultKind::IoError(OpClass::Write),
        FaultKind::IoError(OpClass::Sync),
    ];
    let indexes = ["stbe:fanout=3", "cola", "btree:page_kib=4", "betree:page_kib=4", "nbtree:fanout=3"];
    for (index, kind) in indexes.iter().flat_map(|index| kinds.map(|kind| (index, kind))) {
        let (mut refused, mut poisoned, mut places, mut nth) = (0, 0, 0, 0);
        let done = loop {
            let sim = SimDevice::new(nth);
            let (store, ks, mut model) = before_a_fault(&sim, index);
            sim.set_fault(Some(Fault::once(kind, nth)));
            let loaded = ks.load_sorted(rows(0..900, 2));
            let struck = sim.faults_struck();
            sim.set_fault(None);
            let later = ks.put("later", "v");
            match &loaded {
                Ok(count) => {
                    assert_eq!(*count, 900);
                    model.extend(rows(0..900, 2));
                }
                Err(_) if later.is_ok() => refused += 1,
                Err(_) => poisoned += 1,
            }
            if later.is_ok() {
                model.insert(b"later".to_vec(), b"v".to_vec());
                check(&ks, &model);
                check_accounts(&store, &ks);
                check(&ks, &model);
                // A refused load can be repeated.
                load(&ks, &mut model, 0..900, 3);
                check(&ks, &model);
                check_accounts(&store, &ks);
            }
            drop((ks, store));
            let store = small_on(&sim).open().unwrap();
            let ks = store.keyspace("k").unwrap();
            if later.is_ok() {
                check(&ks, &model);
            } else {
                // The failed checkpoint may have become durable or not.
                let with: Model = model.iter().map(|(k, v)| (k.clone(), v.clone())).chain(rows(0..900, 2)).collect();
                let found: Model = ks.iter().map(|e| e.unwrap()).map(|(k, v)| (k.to_vec(), v.to_vec())).collect();
                assert!(found == model || found == with, "{} rows after fault {nth}", found.len());
            }
            check_accounts(&store, &ks);
            places += 1;
            // A merge has hundreds of similar places.
            nth += 1 + nth / 100;
            if struck == 0 {
                break loaded;
            }
        };
        assert!(done.is_ok(), "a load without a fault succeeds");
        println!(
            "{index}, {kind:?}: {places} places, {refused} loads without effect, {poisoned} that poisoned the store"
        );
        let may_always_poison = matches!(kind, FaultKind::IoError(OpClass::Read | OpClass::Sync));
        assert!(refused > 0 || may_always_poison, "{kind:?}: some failures have no effect");
        assert!(places > 30 || !index.contains("page_kib"), "{index}, {kind:?}: the fault strikes a merge");
    }
}
