//! Tests of stores with keyspaces of type `btree` to which commits write directly: damage, replays, and the space that
//! is counted for pages to write.

use std::ops::Range;

use super::*;
use crate::base::{OwnerId, PAGE, PageNo};
use crate::device::sim::{Fault, FaultKind, OpClass};
use crate::sched::Turn;
use crate::space::data::DATA_FILE;
use crate::{BetreeOptions, BtreeOptions, StbeOptions};

fn direct_in(store: &Store, name: &str) -> Keyspace {
    store.keyspace_with(name, KeyspaceOptions::new().index(BtreeOptions::new().direct_writes(true))).unwrap()
}

fn row(i: u64) -> [u8; 100] {
    [i as u8; 100]
}

/// The bytes of the data file from the first to the last page of a keyspace.
fn bytes_of(keyspace: &Keyspace) -> Range<u64> {
    let (mut first, mut end) = (u64::MAX, 0);
    keyspace.state.index.for_each_extent(&mut |extent| {
        (first, end) = (first.min(extent.start.0), end.max(extent.end()));
    });
    first * PAGE as u64..end * PAGE as u64
}

/// Makes all pages of a keyspace unreadable.
fn damage(device: &SimDevice, store: &Store, keyspace: &Keyspace) {
    let (core, bytes) = (&store.engine.core, bytes_of(keyspace));
    let pages = bytes.start / PAGE as u64..bytes.end / PAGE as u64;
    for owner in 0..core.ids.peek() {
        pages.clone().for_each(|page| core.pool.forget(OwnerId(owner), PageNo(page)));
    }
    device.set_fault(Some(unreadable(bytes)));
}

/// These bytes of the data file cannot be read.
fn unreadable(range: Range<u64>) -> Fault {
    let fault = Fault::sticky(FaultKind::IoError(OpClass::Read), 0);
    Fault { file: Some(DATA_FILE.to_owned()), range: Some(range), ..fault }
}

/// The rows of these stores. They fit into memory, so the first checkpoint writes the leaves in order.
const ROWS: u64 = 400;

/// The page of the leaf with the first row of `k`, in the image of a store.
fn first_leaf(image: &crate::device::sim::SimImage, pages: Range<u64>) -> Range<u64> {
    let mut pages = pages.step_by(PAGE).map(|page| page..page + PAGE as u64);
    let is_needed = |page: &Range<u64>| {
        let device = SimDevice::from_image(image, 5);
        device.set_fault(Some(unreadable(page.clone())));
        let Ok(store) = builder(&device).open() else { return false };
        store.open_keyspace("k").unwrap().unwrap().get(key(0)).is_err()
    };
    pages.find(is_needed).expect("a page of the keyspace is its first leaf")
}

/// A store with rows in `k`, which no leaf in memory has, and an empty keyspace `other`.
fn with_rows(device: &Arc<SimDevice>) -> (Store, Keyspace, Keyspace) {
    let store = open(device);
    let keyspace = direct_in(&store, "k");
    (0..ROWS).for_each(|i| keyspace.put(key(i), row(i)).unwrap());
    store.checkpoint().unwrap();
    store.keyspace_with("other", KeyspaceOptions::new().index(StbeOptions::new())).unwrap();
    drop(keyspace);
    store.close().unwrap();
    let store = open(device);
    let [keyspace, other] = ["k", "other"].map(|name| store.open_keyspace(name).unwrap().unwrap());
    (store, keyspace, other)
}

/// Regression: the checkpoint failed, and the whole store was poisoned.
#[test]
fn damage_stops_only_its_keyspace() {
    let device = SimDevice::new(1);
    let (store, keyspace, other) = with_rows(&device);
    let through = || store.engine.checkpointer.root.lock().catalog.keyspaces[0].root.through;
    let described = through();
    keyspace.put(key(7), "new").unwrap();
    damage(&device, &store, &keyspace);
    other.put("a", "1").unwrap();
    store.checkpoint().unwrap();
    assert_eq!(through(), described, "the log keeps the message");
    assert!(keyspace.put(key(8), "new").unwrap_err().is_damage());
    assert_eq!(keyspace.state.index.stats().damaged, 1);
    assert_eq!(keyspace.get(key(7)).unwrap().unwrap(), "new");
    assert!(store.settle().unwrap_err().is_damage(), "it is reported");
    for i in 0..300u64 {
        other.put(key(i), [1; 1000]).unwrap();
        if i % 50 == 0 {
            store.checkpoint().unwrap();
        }
    }
    // The pages of the last described state are kept. Without the damage, the store has everything.
    let recovered = open(&SimDevice::from_image(&device.image(), 2));
    let again = recovered.open_keyspace("k").unwrap().unwrap();
    assert_eq!((again.iter().count() as u64, &again.get(key(7)).unwrap().unwrap()[..]), (ROWS, &b"new"[..]));
    assert_eq!(recovered.open_keyspace("other").unwrap().unwrap().iter().count(), 301);
    assert!(recovered.verify().unwrap().is_clean());
    // A compaction tries again.
    device.set_fault(None);
    keyspace.compact(..).unwrap();
    assert_eq!(keyspace.state.index.stats().damaged, 0);
    keyspace.put(key(8), "newer").unwrap();
    store.checkpoint().unwrap();
    assert!(through() > described && store.verify().unwrap().is_clean());
    drop((keyspace, other));
    store.close().unwrap();
    let store = open(&device);
    assert_eq!(store.stats().unwrap().replayed_operations, 0);
    assert_eq!(store.open_keyspace("k").unwrap().unwrap().get(key(8)).unwrap().unwrap(), "newer");
}

/// A job before the damage has replaced pages of the state that the last checkpoint has described.
#[test]
fn pages_of_the_described_state_are_kept_for_a_stuck_keyspace() {
    let device = SimDevice::new(1);
    let (store, keyspace, other) = with_rows(&device);
    for round in 0..2 {
        for i in (0..ROWS).step_by(3) {
            keyspace.put(key(i), row(i + 1)).unwrap();
        }
        let index = &keyspace.state.index;
        for _ in 0..20 {
            index
                .relieve(crate::index::Room { bytes: 1 << 20, spare: 0, urgent: false }, &|| {
                    store.engine.snapshots.stripes()
                })
                .unwrap();
        }
        if round == 0 {
            store.checkpoint().unwrap();
        }
    }
    keyspace.put(key(7), "new").unwrap();
    damage(&device, &store, &keyspace);
    for i in 0..2000u64 {
        other.put(key(i), [1; 1000]).unwrap();
        if i % 100 == 0 {
            store.checkpoint().unwrap();
        }
    }
    assert!(keyspace.put(key(8), "new").unwrap_err().is_damage());
    let recovered = open(&SimDevice::from_image(&device.image(), 2));
    let again = recovered.open_keyspace("k").unwrap().unwrap();
    for i in 0..ROWS {
        let expected = if i % 3 == 0 { row(i + 1).to_vec() } else { row(i).to_vec() };
        let expected = if i == 7 { b"new".to_vec() } else { expected };
        assert_eq!(again.get(key(i)).unwrap().unwrap(), expected[..], "{i}");
    }
    assert!(recovered.verify().unwrap().is_clean());
}

/// Regression: the old pages of a copied large value were freed, and the log that refers to them was replayed again.
#[test]
fn a_stuck_keyspace_keeps_the_old_pages_of_copied_values() {
    let device = SimDevice::new(1);
    let (store, keyspace, _) = with_rows(&device);
    let first = first_leaf(&device.image(), bytes_of(&keyspace));
    let large: Vec<u8> = (0..300_000u32).map(|i| (i / 7) as u8).collect();
    let mut batch = store.batch();
    batch.put(&keyspace, "z", &large);
    batch.put(&keyspace, key(0), "new");
    batch.commit(Durability::Buffered).unwrap();
    let killed = SimDevice::from_image(&device.image(), 2);
    killed.set_fault(Some(unreadable(first)));
    let store = open(&killed);
    let [keyspace, other] = ["k", "other"].map(|name| store.open_keyspace(name).unwrap().unwrap());
    assert!(keyspace.put("x", "1").unwrap_err().is_damage(), "a message of the log could not be applied");
    assert!(keyspace.compact(..).is_err(), "the store has to be opened again");
    assert_eq!(keyspace.get("z").unwrap().unwrap(), large[..]);
    for i in 0..3000u64 {
        other.put(key(i), [1; 1000]).unwrap();
        if i % 100 == 0 {
            store.checkpoint().unwrap();
        }
    }
    let again = open(&SimDevice::from_image(&killed.image(), 3));
    let keyspace = again.open_keyspace("k").unwrap().unwrap();
    assert_eq!(keyspace.get("z").unwrap().unwrap(), large[..]);
    assert_eq!(keyspace.get(key(0)).unwrap().unwrap(), "new");
    assert!(again.verify().unwrap().is_clean());
}

/// Regression: no range left memory before the end of the replay.
#[test]
fn a_replay_writes_cold_ranges() {
    let device = SimDevice::new(1);
    let store = builder(&device).memory_budget(64 << 20).memtable_bytes(8 << 20).open().unwrap();
    let keyspace = direct_in(&store, "k");
    (0..4000).for_each(|i| keyspace.put(key(i), [i as u8; 1000]).unwrap());
    let killed = SimDevice::from_image(&device.image(), 2);
    let store = open(&killed);
    assert_eq!(store.stats().unwrap().replayed_operations, 4000);
    let keyspace = store.open_keyspace("k").unwrap().unwrap();
    let held = store.engine.core.pool.held();
    assert!(held < 400 << 10, "{held} bytes are held, and leaves in memory may take 128 KiB");
    assert_eq!(keyspace.iter().count(), 4000);
    store.checkpoint().unwrap();
    let again = open(&SimDevice::from_image(&killed.image(), 3));
    assert_eq!(again.stats().unwrap().replayed_operations, 0);
    assert_eq!(again.open_keyspace("k").unwrap().unwrap().iter().count(), 4000);
}

/// Regression: the next opening would have put a memtable in front of an index with messages in the log, or none.
#[test]
fn the_way_of_writing_cannot_be_changed() {
    let store = open(&SimDevice::new(1));
    direct_in(&store, "k");
    store.keyspace_with("m", KeyspaceOptions::new().index(BtreeOptions::new())).unwrap();
    for (name, direct) in [("k", false), ("m", true)] {
        let refused = store.alter_keyspace(name, BtreeOptions::new().direct_writes(direct)).unwrap_err();
        assert!(matches!(refused, Error::InvalidArgument { .. }), "{refused}");
        assert!(refused.to_string().contains("`writes`"), "{refused}");
        store.alter_keyspace(name, BtreeOptions::new().direct_writes(!direct).page_kib(16)).unwrap();
    }
}

/// Regression: a checkpoint forgot the pages of commits that were applied while it ran.
#[test]
fn pages_to_write_are_counted_anew_after_a_checkpoint() {
    let store = Store::builder("count").device(MemDevice::new()).background_threads(0).open().unwrap();
    let keyspace = direct_in(&store, "k");
    for round in 0..100 {
        std::thread::scope(|scope| {
            scope.spawn(|| store.checkpoint().unwrap());
            scope.spawn(|| (0..50).for_each(|i| keyspace.put(key(i * 40), row(i + round)).unwrap()));
        });
        let (told, actual) = (store.engine.keyspaces.unwritten(), std::cell::Cell::new(0));
        keyspace.state.index.direct().unwrap().count_unwritten(&|bytes| actual.set(bytes));
        assert!(told >= actual.get(), "{told} bytes of {} are counted", actual.get());
    }
}

/// Regression: the memory was not bounded if background work was slower than the commits.
#[test]
fn commits_bound_the_memory_of_ranges() {
    let store = open(&SimDevice::new(1));
    let keyspace = direct_in(&store, "k");
    for i in 0..5000 {
        keyspace.put(key(i * 7 % 5000), [i as u8; 1000]).unwrap();
        let held = store.engine.core.pool.held();
        assert!(held < 300 << 10, "{held} bytes are held after {i} puts, and leaves in memory may take 128 KiB");
    }
    assert_eq!(keyspace.iter().count(), 5000);
}

/// Regression: on a nearly full disk, each commit to a Bε-tree took a checkpoint, because one message needs almost as
/// much space as many.
#[test]
fn commits_on_a_nearly_full_disk_share_checkpoints() {
    let device = SimDevice::new(1);
    let store = Store::builder("full").device(device.clone()).background_threads(0).reserve_bytes(1 << 20);
    let store = store.memory_budget(4 << 20).open().unwrap();
    let options = KeyspaceOptions::new().index(BetreeOptions::new().direct_writes(true));
    let keyspace = store.keyspace_with("k", options).unwrap();
    (0..20_000).for_each(|i| keyspace.put(key(i), row(i)).unwrap());
    store.checkpoint().unwrap();
    device.set_byte_budget(Some(device.occupied() + (1 << 20)));
    let before = store.stats().unwrap().checkpoints;
    (0..2000).for_each(|i| keyspace.delete(key(i * 7)).unwrap());
    let taken = store.stats().unwrap().checkpoints - before;
    assert!((1..50).contains(&taken), "{taken} checkpoints for 2000 deletes");
    assert_eq!(keyspace.iter().count(), 18_000);
}

/// Regression: each of several threads that found the disk nearly full took a checkpoint.
#[test]
fn one_thread_takes_the_checkpoint_of_a_nearly_full_disk() {
    let device = SimDevice::new(1);
    let store = builder(&device).reserve_bytes(1 << 20).open().unwrap();
    let keyspace = direct_in(&store, "k");
    keyspace.put("a", "1").unwrap();
    store.checkpoint().unwrap();
    device.set_byte_budget(Some(16 << 20));
    store.engine.keyspaces.note_unwritten(&keyspace.state, 12 << 20);
    let before = store.stats().unwrap().checkpoints;
    let root = store.engine.checkpointer.root.lock();
    std::thread::scope(|scope| {
        for thread in 0..3u64 {
            let keyspace = &keyspace;
            scope.spawn(move || keyspace.put(key(thread), "1").unwrap());
        }
        std::thread::sleep(Duration::from_millis(100));
        drop(root);
    });
    assert_eq!(store.stats().unwrap().checkpoints, before + 1);
}

/// The request for a checkpoint that finds the disk full stays. While the disk is full, relief takes the checkpoint.
#[test]
fn a_checkpoint_that_finds_the_disk_full_is_taken_later() {
    let device = SimDevice::new(1);
    let store = builder(&device).memory_budget(16 << 20).memtable_bytes(2 << 20).reserve_bytes(1 << 20).open().unwrap();
    let keyspace = direct_in(&store, "k");
    (0..4000).for_each(|i| keyspace.put(key(i), [i as u8; 1000]).unwrap());
    let engine = &store.engine;
    device.set_byte_budget(Some(device.occupied()));
    engine.checkpointer.request();
    assert_eq!(engine.checkpoint_turn(0), Turn::Stuck, "the pages do not fit");
    assert!(engine.checkpointer.is_due(), "the request stays");
    assert_eq!(engine.checkpoint_turn(0), Turn::Idle, "it is left to relief");
    engine.turn_alone(64 << 10);
    assert!(engine.checkpointer.is_due(), "relief finds the disk full, too");
    let before = store.stats().unwrap().checkpoints;
    device.set_byte_budget(None);
    for _ in 0..4 {
        engine.turn_alone(64 << 10);
    }
    assert!(!engine.checkpointer.is_due() && store.stats().unwrap().checkpoints > before);
    assert_eq!(keyspace.iter().count(), 4000);
}
