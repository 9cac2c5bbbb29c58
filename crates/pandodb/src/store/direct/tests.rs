//! Tests of stores with keyspaces whose index is written directly (the test indexes `direct_stub` and `ordered_stub`).

mod trees;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::base::random::Rng;
use crate::base::sync::Ordering::Relaxed;
use crate::base::{EntryBlock, Error, Result, Seqno};
use crate::check::salvage;
use crate::device::{MemDevice, SimDevice};
use crate::index::stub::{COMMITS, PREPARED, RACE, REFUSAL, Race, STEPS};
use crate::index::{IndexKind, Mode};
use crate::resolve::AddU64;
use crate::sched::Turn;
use crate::store::hashed_tests::walked;
use crate::store::{Durability, Isolation, Keyspace, KeyspaceOptions, Store, StoreBuilder, TransactionOptions};

const DIRECT: [&str; 2] = ["direct_stub", "ordered_stub"];

type Model = BTreeMap<Vec<u8>, Vec<u8>>;

fn builder(device: &Arc<SimDevice>) -> StoreBuilder {
    let builder = Store::builder("direct").device(device.clone()).background_threads(0);
    builder.memory_budget(2 << 20).memtable_bytes(16 << 10)
}

fn open(device: &Arc<SimDevice>) -> Store {
    builder(device).open().unwrap()
}

fn options(index: &str) -> KeyspaceOptions {
    KeyspaceOptions::new().index(IndexKind::named(index).unwrap()).merge(AddU64)
}

fn keyspace(store: &Store, index: &str) -> Keyspace {
    store.keyspace_with(index, options(index)).unwrap()
}

fn key(i: u64) -> Vec<u8> {
    format!("key{i:04}").into_bytes()
}

fn number(value: &[u8]) -> u64 {
    u64::from_le_bytes(value.try_into().unwrap())
}

/// Does puts, deletes and merges of `count` keys out of 300, and deletes ranges if the keyspace has ranges.
fn change(keyspace: &Keyspace, model: &mut Model, seed: u64, count: u64) {
    let mut rng = Rng(seed);
    for _ in 0..count {
        let (key, amount) = (self::key(rng.below(300)), rng.below(1 << 40));
        match rng.below(8) {
            0 | 1 => {
                keyspace.delete(&key).unwrap();
                model.remove(&key);
            }
            2 | 3 => {
                keyspace.merge(&key, amount.to_le_bytes()).unwrap();
                let old = model.get(&key).map_or(0, |value| number(value));
                model.insert(key, (old + amount).to_le_bytes().to_vec());
            }
            4 if keyspace.state.check_sorted(&crate::base::KeyRange::none()).is_ok() => {
                let to = self::key(rng.below(300));
                keyspace.delete_range(&key[..]..&to[..]).unwrap();
                model.retain(|own, _| *own < key || *own >= to);
            }
            _ => {
                keyspace.put(&key, amount.to_le_bytes()).unwrap();
                model.insert(key, amount.to_le_bytes().to_vec());
            }
        }
    }
}

/// Checks all reads, and that nothing is in memtables.
fn check(keyspace: &Keyspace, model: &Model) {
    let containers = keyspace.state.containers.load();
    assert!(containers.active.is_empty() && containers.sealed.is_empty(), "nothing passes the memtables");
    assert_eq!(&walked(keyspace.iter()), model);
    assert_eq!(&walked(keyspace.iter().rev()), model);
    let keys: Vec<Vec<u8>> = (0..300).map(key).collect();
    let values = keyspace.multi_get(&keys).unwrap();
    for (key, value) in keys.iter().zip(&values) {
        assert_eq!(value.as_deref(), model.get(key).map(Vec::as_slice), "{}", key.escape_ascii());
        assert_eq!(keyspace.get(key).unwrap().as_deref(), value.as_deref());
        assert_eq!(keyspace.contains(key).unwrap(), value.is_some());
    }
}

/// Runs a test for each index that is written directly.
fn for_each(test: impl Fn(&str, &Arc<SimDevice>)) {
    DIRECT.iter().for_each(|index| test(index, &SimDevice::new(1)));
}

#[test]
fn reads_find_what_was_written() {
    for_each(|index, device| {
        let store = open(device);
        let keyspace = keyspace(&store, index);
        let mut model = Model::new();
        change(&keyspace, &mut model, 1, 1000);
        check(&keyspace, &model);
        let (snapshot, then) = (store.snapshot(), model.clone());
        change(&keyspace, &mut model, 2, 1000);
        store.pack().unwrap();
        assert_eq!(store.engine.checkpointer.direct(), 0, "a checkpoint was taken");
        store.settle().unwrap();
        keyspace.compact(..).unwrap();
        check(&keyspace, &model);
        assert_eq!(walked(keyspace.at(&snapshot).iter()), then);
        (0..300).for_each(|i| {
            let value = keyspace.at(&snapshot).get(key(i)).unwrap();
            assert_eq!(value.as_deref(), then.get(&key(i)).map(Vec::as_slice));
        });
        keyspace.delete_range(..).unwrap();
        check(&keyspace, &Model::new());
        assert!(store.verify().unwrap().is_clean());
        store.close().unwrap();
    });
}

/// A scan that has learned a range of deleted keys must not skip a key that a direct write has put into it.
#[test]
fn a_direct_write_ends_a_dead_range() {
    let store = open(&SimDevice::new(1));
    let keyspace = keyspace(&store, "ordered_stub");
    (0..200).for_each(|i| keyspace.put(key(i), i.to_le_bytes()).unwrap());
    (0..190).for_each(|i| keyspace.delete(key(i)).unwrap());
    for _ in 0..3 {
        assert_eq!(keyspace.iter().count(), 10);
    }
    let skip = keyspace.state.dead_ranges.skip(&key(0), false, Seqno::MAX);
    assert!(matches!(skip, crate::store::dead_ranges::Skip::To(_)), "the scans have learned the range");
    keyspace.put(key(50), 1u64.to_le_bytes()).unwrap();
    assert_eq!(keyspace.iter().count(), 11);
    keyspace.merge(key(40), 1u64.to_le_bytes()).unwrap();
    assert_eq!(keyspace.iter().count(), 12);
    assert_eq!(keyspace.pop_first().unwrap().unwrap().0, key(40));
    keyspace.put(key(3), 1u64.to_le_bytes()).unwrap();
    assert_eq!(keyspace.pop_first().unwrap().unwrap().0, key(3));
    assert_eq!(keyspace.pop_first().unwrap().unwrap().0, key(50));
}

#[test]
fn a_batch_writes_to_memtables_and_directly_as_one() {
    let device = SimDevice::new(1);
    let store = open(&device);
    let keyspaces = ["stbe", "direct_stub", "ordered_stub"].map(|index| keyspace(&store, index));
    let before = store.snapshot();
    let mut batch = store.batch();
    for i in 0..100u64 {
        for keyspace in &keyspaces {
            batch.put(keyspace, key(i), i.to_le_bytes());
            batch.merge(keyspace, key(i), 1000u64.to_le_bytes());
        }
        batch.delete(&keyspaces[(i % 3) as usize], key(i));
    }
    let last = batch.commit_numbered(Durability::Synced).unwrap().unwrap();
    assert_eq!(last - before.seqno(), 700, "each operation has a seqno");
    let (mut cursor, mut messages) = (keyspaces[1].state.index.view().drain().unwrap(), EntryBlock::new());
    cursor.fill(1 << 20, &mut messages).unwrap();
    let found: BTreeSet<u64> = messages.iter().map(|entry| entry.seqno.0 - before.seqno() - 1).collect();
    let expected = (0..100).flat_map(|i| [Some(7 * i + 2), Some(7 * i + 3), (i % 3 == 1).then_some(7 * i + 6)]);
    assert_eq!(found, expected.flatten().collect(), "the numbers of the operations in the batch");
    let recovered = open(&SimDevice::from_image(&device.durable_image(), 2));
    let again = ["stbe", "direct_stub", "ordered_stub"].map(|index| keyspace(&recovered, index));
    for keyspaces in [&keyspaces, &again] {
        for (number, keyspace) in (0..).zip(keyspaces) {
            let alive = |i: &u64| i % 3 != number;
            let model = (0..100).filter(alive).map(|i| (key(i), (i + 1000).to_le_bytes().to_vec())).collect::<Model>();
            assert_eq!(walked(keyspace.iter()), model, "{}", keyspace.name());
        }
    }
    for keyspace in &keyspaces {
        assert_eq!(keyspace.at(&before).iter().count(), 0);
    }
    // The seqnos of the replayed messages are those of the commit, so a later message is newer than all of them.
    again[1].put(key(1), 5u64.to_le_bytes()).unwrap();
    assert_eq!(number(&again[1].get(key(1)).unwrap().unwrap()), 5);
}

#[test]
fn transactions_notice_direct_writes_and_are_noticed() {
    for_each(|index, device| {
        let store = open(device);
        let (direct, other) = (keyspace(&store, index), keyspace(&store, "stbe"));
        direct.put("a", 1u64.to_le_bytes()).unwrap();
        let begin = || store.begin(TransactionOptions::new()).unwrap();
        let conflicts = |result: Result<()>| assert!(matches!(result, Err(Error::Conflict { .. })), "{result:?}");
        // A direct write changes what the transaction has read: a key with a value, a key without one, all keys.
        let reads: [&dyn Fn(&crate::store::Transaction); 3] =
            [&|tx| drop(tx.get(&direct, "a").unwrap()), &|tx| drop(tx.get(&direct, "b").unwrap()), &|tx| {
                assert!(tx.iter(&direct).unwrap().count() > 0)
            }];
        let writes: [&dyn Fn(); 3] = [
            &|| direct.put("a", 2u64.to_le_bytes()).unwrap(),
            &|| direct.merge("b", 2u64.to_le_bytes()).unwrap(),
            &|| direct.delete_range(..).unwrap(),
        ];
        for (i, read) in reads.iter().enumerate() {
            for (j, write) in writes.iter().enumerate() {
                direct.put("a", 1u64.to_le_bytes()).unwrap();
                let tx = begin();
                read(&tx);
                tx.put(&other, format!("{i}{j}"), 1u64.to_le_bytes()).unwrap();
                write();
                if i == j || i == 2 || j == 2 {
                    conflicts(tx.commit().map(drop));
                } else {
                    tx.commit().unwrap();
                }
            }
        }
        // A transaction that writes directly changes what another one has read.
        let (first, second) = (begin(), begin());
        direct.put("a", 1u64.to_le_bytes()).unwrap();
        let (third, fourth) = (begin(), begin());
        drop((first, second));
        for tx in [&third, &fourth] {
            tx.get(&direct, "a").unwrap();
            tx.put(&direct, "a", 9u64.to_le_bytes()).unwrap();
        }
        third.commit().unwrap();
        conflicts(fourth.commit().map(drop));
        assert_eq!(number(&direct.get("a").unwrap().unwrap()), 9);
        // Under snapshot isolation, two writers of a key conflict.
        let isolated = || store.begin(TransactionOptions::new().isolation(Isolation::Snapshot)).unwrap();
        let (first, second) = (isolated(), isolated());
        first.put(&direct, "a", 1u64.to_le_bytes()).unwrap();
        second.put(&direct, "a", 2u64.to_le_bytes()).unwrap();
        first.commit().unwrap();
        conflicts(second.commit().map(drop));
        assert_eq!(number(&direct.get("a").unwrap().unwrap()), 1);
    });
}

/// A write between the preparation and the draw of the seqnos lets the transaction validate again.
#[test]
fn a_transaction_that_validates_again_drops_what_it_has_prepared() {
    let store = open(&SimDevice::new(1));
    let keyspace = keyspace(&store, "ordered_stub");
    keyspace.put("r", 1u64.to_le_bytes()).unwrap();
    let write = |keys: Vec<String>| {
        let (store, keyspace) = (store.clone(), keyspace.clone());
        PREPARED.set(Some(Box::new(move || {
            let mut batch = store.batch();
            keys.iter().for_each(|key| batch.put(&keyspace, key, 7u64.to_le_bytes()));
            batch.commit(Durability::Buffered).unwrap();
        })));
    };
    let commit = |read: &dyn Fn(&crate::store::Transaction)| {
        let tx = store.begin(TransactionOptions::new()).unwrap();
        read(&tx);
        tx.put(&keyspace, "w", 1u64.to_le_bytes()).unwrap();
        tx.commit()
    };
    // The footprint of many keys may include the range, so the transaction searches again, and finds no change.
    write((0..17).map(|i| format!("x{i}")).collect());
    COMMITS.set((0, 0));
    commit(&|tx| assert_eq!(tx.range(&keyspace, "r".."s").unwrap().count(), 1)).unwrap();
    assert_eq!(COMMITS.get(), (3, 2), "prepared twice, and applied once");
    assert_eq!(number(&keyspace.get("w").unwrap().unwrap()), 1);
    // Here it finds one.
    keyspace.delete("w").unwrap();
    write(vec!["r".into()]);
    COMMITS.set((0, 0));
    let refused = commit(&|tx| drop(tx.get(&keyspace, "r").unwrap()));
    assert!(matches!(refused, Err(Error::Conflict { .. })), "{refused:?}");
    assert_eq!((COMMITS.get(), keyspace.get("w").unwrap()), ((2, 1), None));
}

#[test]
fn contents_survive_a_close_and_a_crash() {
    for_each(|index, device| {
        let store = open(device);
        let direct = keyspace(&store, index);
        let mut model = Model::new();
        change(&direct, &mut model, 1, 500);
        store.checkpoint().unwrap();
        let covered = store.snapshot().seqno();
        let large = vec![5; 300 << 10];
        let blobs =
            store.keyspace_with("blobs", KeyspaceOptions::new().index(IndexKind::named(index).unwrap())).unwrap();
        blobs.put("large", &large).unwrap();
        change(&direct, &mut model, 2, 300);
        drop((direct, blobs));
        // One seqno is that of a creation.
        let after = store.snapshot().seqno() - covered - 1;
        assert!(after > 200);
        // Make an image of the files as a SIGKILL would leave them.
        let killed = SimDevice::from_image(&device.image(), 2);
        let copy = SimDevice::from_image(&device.image(), 3);
        store.close().unwrap();
        for (device, replayed) in [(&killed, true), (device, false)] {
            let store = open(device);
            let operations = store.stats().unwrap().replayed_operations;
            assert_eq!(operations, if replayed { after } else { 0 });
            let (direct, blobs) = (keyspace(&store, index), store.keyspace("blobs").unwrap());
            check(&direct, &model);
            assert_eq!(blobs.get("large").unwrap().unwrap(), large[..]);
            assert!(store.verify().unwrap().is_clean());
            store.close().unwrap();
        }
        let store = builder(&copy).read_only(true).open().unwrap();
        check(&store.open_keyspace(index).unwrap().unwrap(), &model);
        assert_eq!(store.stats().unwrap().replayed_operations, after);
    });
}

/// Merges would show a message that is applied twice.
#[test]
fn a_checkpoint_truncates_the_log_and_nothing_is_applied_twice() {
    for_each(|index, device| {
        let store = open(device);
        let (direct, other) = (keyspace(&store, index), keyspace(&store, "stbe"));
        let add = |count: u64| {
            for i in 0..count {
                direct.merge(key(i % 7), 1u64.to_le_bytes()).unwrap();
                other.merge(key(i % 7), 1u64.to_le_bytes()).unwrap();
            }
        };
        let check = |store: &Store, total: u64, replayed: u64| {
            assert_eq!(store.stats().unwrap().replayed_operations, replayed);
            for keyspace in [keyspace(store, index), keyspace(store, "stbe")] {
                let sum: u64 = keyspace.iter().map(|entry| number(&entry.unwrap().1)).sum();
                assert_eq!(sum, total, "{}", keyspace.name());
            }
        };
        add(3000);
        let long = store.stats().unwrap().log_bytes;
        store.checkpoint().unwrap();
        let short = store.stats().unwrap().log_bytes;
        assert!(short < long / 2, "{short} of {long} bytes");
        let last = store.snapshot().seqno();
        let root = store.engine.checkpointer.root.lock().catalog.clone();
        assert!(root.keyspaces.iter().all(|keyspace| keyspace.root.through == Seqno(last)), "the root is the cut");
        check(&open(&SimDevice::from_image(&device.image(), 2)), 3000, 0);
        // No background work is left that would take another checkpoint.
        store.settle().unwrap();
        add(100);
        let killed = SimDevice::from_image(&device.image(), 3);
        check(&open(&killed), 3100, 200);
        check(&open(&killed), 3100, 0);
        // The checkpoint after this replay includes what was replayed.
        let killed = SimDevice::from_image(&device.image(), 4);
        let again = open(&killed);
        again.checkpoint().unwrap();
        check(&open(&SimDevice::from_image(&killed.image(), 5)), 3100, 0);
        // The other keyspace has a memtable, so the log has messages that the root holds already.
        add(100);
        store.engine.checkpoint().unwrap();
        check(&open(&SimDevice::from_image(&device.image(), 6)), 3200, 200);
    });
}

#[test]
fn a_refused_preparation_leaves_no_trace() {
    for_each(|index, device| {
        let store = open(device);
        let (direct, other) = (keyspace(&store, index), keyspace(&store, "stbe"));
        direct.put("a", 1u64.to_le_bytes()).unwrap();
        let (seqno, log) = (store.snapshot().seqno(), store.stats().unwrap().written.log);
        for refusal in [Error::DiskFull { op: "test" }, Error::corruption("leaf", 0, "test")] {
            REFUSAL.set(Some(refusal.clone()));
            assert_eq!(direct.put("a", 2u64.to_le_bytes()), Err(refusal.clone()));
            let mut batch = store.batch();
            batch.put(&other, "a", 2u64.to_le_bytes());
            batch.put(&direct, "a", 2u64.to_le_bytes());
            REFUSAL.set(Some(refusal.clone()));
            assert_eq!(batch.commit(Durability::Synced), Err(refusal));
            assert_eq!(number(&direct.get("a").unwrap().unwrap()), 1);
            assert_eq!(other.get("a").unwrap(), None);
            let now = (store.snapshot().seqno(), store.stats().unwrap().written.log);
            assert_eq!(now, (seqno, log), "no seqno was drawn, and nothing was logged");
        }
        // A commit that is refused after the preparation drops the prepared operations.
        let mut batch = store.batch();
        batch.put(&direct, "a", 2u64.to_le_bytes());
        let dropped = store.clone();
        PREPARED.set(Some(Box::new(move || dropped.drop_keyspace("stbe").unwrap())));
        batch.put(&other, "a", 2u64.to_le_bytes());
        assert!(matches!(batch.commit(Durability::Synced), Err(Error::NoKeyspace { .. })));
        assert_eq!(number(&direct.get("a").unwrap().unwrap()), 1);
        direct.put("a", 3u64.to_le_bytes()).unwrap();
        let recovered = open(&SimDevice::from_image(&device.image(), 2));
        assert_eq!(number(&keyspace(&recovered, index).get("a").unwrap().unwrap()), 3);
    });
}

#[test]
fn a_full_disk_refuses_puts_and_accepts_deletes() {
    for_each(|index, device| {
        let store = builder(device).reserve_bytes(1 << 20).open().unwrap();
        let direct =
            store.keyspace_with(index, KeyspaceOptions::new().index(IndexKind::named(index).unwrap())).unwrap();
        direct.put("first", "1").unwrap();
        store.checkpoint().unwrap();
        device.set_byte_budget(Some(8 << 20));
        let mut rows = 0;
        let refused = loop {
            match direct.put(key(rows), [7; 4000]) {
                Ok(()) => rows += 1,
                Err(e) => break e,
            }
            assert!(rows < 10_000, "the disk is full at some time");
        };
        assert!(matches!(refused, Error::DiskFull { .. }), "{refused}");
        assert!(rows > 200, "{rows}");
        let mut left = rows;
        for i in (0..rows).step_by(3) {
            direct.delete(key(i)).unwrap();
            left -= 1;
        }
        assert_eq!(direct.iter().count() as u64, left + 1);
        drop(direct);
        drop(store);
        device.set_byte_budget(None);
        let store = open(device);
        assert_eq!(store.open_keyspace(index).unwrap().unwrap().iter().count() as u64, left + 1);
        assert!(store.verify().unwrap().is_clean());
    });
}

#[test]
fn pages_that_are_not_written_count_as_used_space() {
    let device = SimDevice::new(1);
    let store = open(&device);
    let [direct, other] = DIRECT.map(|index| keyspace(&store, index));
    direct.put("a", 1u64.to_le_bytes()).unwrap();
    device.set_byte_budget(Some(64 << 20));
    store.engine.keyspaces.note_unwritten(&other.state, 60 << 20);
    // As if a checkpoint had found the disk full, so that the next commits do not try one.
    store.engine.checkpointer.failed_with.store(64 << 20, Relaxed);
    COMMITS.set((0, 0));
    direct.put("a", 2u64.to_le_bytes()).unwrap();
    store.engine.keyspaces.note_unwritten(&other.state, 64 << 20);
    assert!(matches!(direct.put("a", 3u64.to_le_bytes()), Err(Error::DiskFull { .. })));
    assert_eq!((COMMITS.get(), number(&direct.get("a").unwrap().unwrap())), ((1, 1), 2), "refused by the preparation");
    assert!(store.engine.checkpointer.is_due(), "a checkpoint may free space");
    direct.delete("a").unwrap();
    store.checkpoint().unwrap();
    assert_eq!(store.engine.keyspaces.unwritten(), 0, "the checkpoint has written all pages");
    direct.put("a", 4u64.to_le_bytes()).unwrap();
}

#[test]
fn a_delete_waits_for_space_for_its_pages() {
    let store = open(&SimDevice::new(1));
    let direct = keyspace(&store, "direct_stub");
    (0..100).for_each(|i| direct.put(key(i), i.to_le_bytes()).unwrap());
    REFUSAL.set(Some(Error::DiskFull { op: "test" }));
    direct.delete(key(1)).unwrap();
    assert_eq!(direct.iter().count(), 99);
    // A waiting delete gets a checkpoint, because direct writes retain the log.
    (0..300).for_each(|i| direct.put(key(i), i.to_le_bytes()).unwrap());
    store.engine.keyspaces.all().iter().for_each(|keyspace| {
        while keyspace.index.debt().total() > 0 {
            keyspace.index.step(u64::MAX, &Default::default).unwrap();
        }
    });
    store.engine.pressure.starved.store(true, Relaxed);
    let before = store.stats().unwrap().checkpoints;
    assert!(matches!(store.engine.relieve(), Turn::Worked(_)), "the request counts as work");
    store.engine.relieve();
    assert!(store.stats().unwrap().checkpoints > before && store.engine.checkpointer.direct() == 0);
    assert!(matches!(store.engine.relieve(), Turn::Idle), "the number of turns is finite");
}

#[test]
fn a_keyspace_with_data_is_dropped_and_created_again() {
    for_each(|index, device| {
        let store = open(device);
        let direct = keyspace(&store, index);
        let mut model = Model::new();
        change(&direct, &mut model, 1, 500);
        store.checkpoint().unwrap();
        change(&direct, &mut model, 2, 500);
        assert!(store.engine.keyspaces.unwritten() > 0);
        let mut reader = direct.iter();
        let first = reader.next().unwrap().unwrap();
        // A commit that is being prepared does not write to the keyspace that is dropped, nor count its pages.
        let dropped = store.clone();
        let name = index.to_owned();
        PREPARED.set(Some(Box::new(move || dropped.drop_keyspace(&name).unwrap())));
        assert!(matches!(direct.put("x", 1u64.to_le_bytes()), Err(Error::NoKeyspace { .. })));
        assert_eq!(store.engine.keyspaces.unwritten(), 0);
        store.engine.keyspaces.note_unwritten(&direct.state, 5);
        assert_eq!(store.engine.keyspaces.unwritten(), 0, "a late note of a dropped keyspace");
        assert!(direct.get(&first.0).is_err() && store.open_keyspace(index).unwrap().is_none());
        assert!(store.verify().unwrap().is_clean());
        drop((reader, direct));
        let again = keyspace(&store, index);
        check(&again, &Model::new());
        again.put("y", 1u64.to_le_bytes()).unwrap();
        drop(again);
        let recovered = open(&SimDevice::from_image(&device.image(), 2));
        assert_eq!(keyspace(&recovered, index).iter().count(), 1);
    });
}

/// No memtable is ever packed in such a store, so nothing else requests checkpoints.
#[test]
fn a_long_log_of_direct_writes_causes_checkpoints() {
    for threads in [0, 2] {
        let device = MemDevice::new();
        let builder = Store::builder("long").device(device).background_threads(threads);
        let store = builder.memory_budget(2 << 20).memtable_bytes(16 << 10).open().unwrap();
        let keyspace = store.keyspace_with("k", KeyspaceOptions::new().index(IndexKind::named("direct_stub").unwrap()));
        let keyspace = keyspace.unwrap();
        let (most, mut written) = (store.engine.most_log(), 0);
        let deadline = Instant::now() + Duration::from_secs(60);
        while store.stats().unwrap().checkpoints < 3 {
            keyspace.put(key(written % 10), [1; 1000]).unwrap();
            written += 1;
            assert!(Instant::now() < deadline, "{written} puts and no checkpoint");
        }
        assert!(written * 1000 >= most, "{written} puts are too few for three checkpoints");
        if threads == 0 {
            assert!(written * 1000 <= 2 * most, "{written} puts");
            assert!(store.stats().unwrap().log_bytes <= most + most / 2);
        }
        store.close().unwrap();
    }
}

/// An index that is written directly works off its debt while a long log is replayed.
#[test]
fn a_replay_lets_the_index_work() {
    let device = SimDevice::new(1);
    let store = builder(&device).memory_budget(16 << 20).memtable_bytes(4 << 20).open().unwrap();
    let blobs =
        store.keyspace_with("k", KeyspaceOptions::new().index(IndexKind::named("direct_stub").unwrap())).unwrap();
    (0..2000).for_each(|i| blobs.put(key(i), [1; 1000]).unwrap());
    let killed = SimDevice::from_image(&device.image(), 2);
    STEPS.set(0);
    let store = open(&killed);
    assert!(STEPS.get() > 2, "{} steps", STEPS.get());
    assert_eq!(store.keyspace("k").unwrap().iter().count(), 2000);
}

/// A read at a read point that is not registered may find that versions were dropped during the read.
#[test]
fn a_read_that_lost_a_race_with_a_drop_of_versions_is_repeated() {
    let store = open(&SimDevice::new(1));
    let keyspace = keyspace(&store, "direct_stub");
    keyspace.put("a", 7u64.to_le_bytes()).unwrap();
    let value = 7u64.to_le_bytes();
    RACE.set(Race::Armed);
    assert_eq!(keyspace.get("a").unwrap().unwrap(), value);
    assert_eq!(RACE.get(), Race::None);
    RACE.set(Race::Armed);
    assert_eq!(keyspace.multi_get(&["a"]).unwrap()[0].as_deref(), Some(&value[..]));
    RACE.set(Race::Armed);
    assert!(keyspace.contains("a").unwrap());
    assert_eq!(store.stats().unwrap().snapshots, 0, "the repeated reads have registered their read points for a while");
}

#[test]
fn loads_backups_and_salvages_have_everything() {
    for_each(|index, device| {
        let store = open(device);
        let direct = keyspace(&store, index);
        let mut model = Model::new();
        change(&direct, &mut model, 1, 500);
        store.checkpoint().unwrap();
        change(&direct, &mut model, 2, 200);
        let rows: Vec<_> = (0..100).map(|i| (key(i * 3), i.to_le_bytes())).collect();
        assert_eq!(direct.load_sorted(rows.clone()).unwrap(), 100);
        model.extend(rows.into_iter().map(|(key, value)| (key, value.to_vec())));
        check(&direct, &model);
        let copy = MemDevice::new();
        let target = || Store::builder("copy").device(copy.clone()).background_threads(0);
        assert_eq!(store.backup_with(target()).unwrap().records, model.len() as u64);
        check(&keyspace(&target().open().unwrap(), index), &model);
        // A salvage reads the last root, and the log above it.
        let killed = SimDevice::from_image(&device.image(), 2);
        let out = Store::builder("out").device(MemDevice::new()).background_threads(0).open().unwrap();
        let report = salvage(builder(&killed), &out, false).unwrap();
        assert!(report.is_complete() && report.keyspaces[0].entries == model.len() as u64, "{report:?}");
        check(&keyspace(&out, index), &model);
        assert!(store.verify().unwrap().is_clean());
    });
}

/// The record of a direct write has no generations of memtable leaves.
#[test]
fn paper_mode_works() {
    for_each(|index, device| {
        let open = |device: &Arc<SimDevice>| builder(device).mode(Mode::Paper).open().unwrap();
        let store = open(device);
        let (direct, other) = (keyspace(&store, index), keyspace(&store, "stbe"));
        let (mut model, mut of_other) = (Model::new(), Model::new());
        change(&direct, &mut model, 1, 200);
        change(&other, &mut of_other, 2, 200);
        let mut batch = store.batch();
        for keyspace in [&direct, &other, &direct] {
            batch.put(keyspace, key(1), 5u64.to_le_bytes());
        }
        batch.commit(Durability::Synced).unwrap();
        for model in [&mut model, &mut of_other] {
            model.insert(key(1), 5u64.to_le_bytes().to_vec());
        }
        check(&direct, &model);
        let recovered = open(&SimDevice::from_image(&device.image(), 2));
        check(&keyspace(&recovered, index), &model);
        assert_eq!(walked(keyspace(&recovered, "stbe").iter()), of_other);
    });
}

#[test]
fn threads_write_and_read_concurrently() {
    let builder = Store::builder("threads").device(MemDevice::new()).background_threads(2);
    let store = builder.memory_budget(2 << 20).memtable_bytes(16 << 10).open().unwrap();
    let keyspaces = [keyspace(&store, "ordered_stub"), keyspace(&store, "stbe")];
    std::thread::scope(|scope| {
        for thread in 0..3u64 {
            let (store, keyspaces) = (&store, &keyspaces);
            scope.spawn(move || {
                for i in 0..300u64 {
                    let mut batch = store.batch();
                    for keyspace in keyspaces {
                        batch.merge(keyspace, key(i % 5), 1u64.to_le_bytes());
                        batch.put(keyspace, format!("thread{thread}"), i.to_le_bytes());
                    }
                    batch.commit(Durability::Buffered).unwrap();
                    if i % 100 == 50 {
                        store.checkpoint().unwrap();
                    }
                    let snapshot = store.snapshot();
                    let sums = keyspaces.each_ref().map(|keyspace| {
                        let counters = keyspace.at(&snapshot).range(key(0)..key(9));
                        counters.map(|entry| number(&entry.unwrap().1)).sum::<u64>()
                    });
                    assert_eq!(sums[0], sums[1], "a batch is visible as a whole");
                }
            });
        }
    });
    for keyspace in &keyspaces {
        assert_eq!((0..5).map(|i| number(&keyspace.get(key(i)).unwrap().unwrap())).sum::<u64>(), 900);
    }
    assert_eq!(store.engine.figures.transactions.searched_again.load(Relaxed), 0);
    store.close().unwrap();
}
