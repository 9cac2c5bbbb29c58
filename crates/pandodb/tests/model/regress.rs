//! What random histories found, reduced to the few steps that it takes.

use std::sync::Arc;

use pandodb::device::SimDevice;
use pandodb::{KeyspaceOptions, Store, StoreBuilder};

fn builder(device: &Arc<SimDevice>, memtable_bytes: usize) -> StoreBuilder {
    let builder = Store::builder("regress").device(device.clone()).background_threads(0);
    builder.memory_budget(1 << 20).memtable_bytes(memtable_bytes).fanout(2)
}

/// A checkpoint recorded that a keyspace held nothing back, and let go of the log; the next one, with the keyspace
/// written to again, recorded an older cut: the store could not be opened any more.
#[test]
fn a_keyspace_that_wakes_up_does_not_ask_for_log_that_is_gone() {
    let device = SimDevice::new(1);
    let store = builder(&device, 8 << 10).open().unwrap();
    let (sleepy, busy) = (store.keyspace("sleepy").unwrap(), store.keyspace("busy").unwrap());
    sleepy.put("a", "1").unwrap();
    sleepy.compact::<&str>(..).unwrap();
    for i in 0..3000u32 {
        busy.put(i.to_be_bytes(), [7; 100]).unwrap();
    }
    busy.compact::<&str>(..).unwrap();
    for _ in 0..3 {
        store.checkpoint().unwrap();
    }
    sleepy.put("b", "2").unwrap();
    store.checkpoint().unwrap();
    let device = SimDevice::from_image(&device.image(), 2);
    let store = builder(&device, 8 << 10).open().unwrap();
    let sleepy = store.keyspace("sleepy").unwrap();
    assert!(sleepy.get("a").unwrap().unwrap() == "1" && sleepy.get("b").unwrap().unwrap() == "2");
    assert_eq!(store.keyspace("busy").unwrap().iter().count(), 3000);
}

/// Replay packed a full memtable into pages that held the large values of records still to come.
#[test]
fn packing_during_replay_spares_the_large_values_of_later_records() {
    let device = SimDevice::new(1);
    let store = builder(&device, 256 << 10).open().unwrap();
    let large = store.keyspace_with("large", KeyspaceOptions::new().blob_threshold(16)).unwrap();
    let (key, value) = (|i: u32| i.to_be_bytes(), |i: u32| vec![i as u8; 20 + i as usize % 3000]);
    // Gaps between the values that stay, for runs to fall into.
    for i in 0..1500 {
        large.put(key(i), value(i)).unwrap();
    }
    let device = SimDevice::from_image(&device.image(), 2);
    let store = builder(&device, 4 << 10).open().unwrap();
    let large = store.open_keyspace("large").unwrap().unwrap();
    for i in 0..1500 {
        assert!(large.get(key(i)).unwrap().unwrap() == value(i), "value {i}");
    }
    assert!(store.verify().unwrap().is_clean());
}

/// A read changed what a memtable with range tombstones weighs, so that debt never came to nothing and packing was
/// waited for without end.
#[test]
fn range_deletes_leave_no_debt_behind() {
    let device = SimDevice::new(1);
    let store = builder(&device, 16 << 10).open().unwrap();
    let keyspace = store.keyspace("plain").unwrap();
    for round in 0..40u32 {
        for i in 0..20u32 {
            let from = (i * 37 + round) % 400;
            keyspace.put(from.to_be_bytes(), [1; 30]).unwrap();
            keyspace.delete_range(from.to_be_bytes()..(from + 15).to_be_bytes()).unwrap();
        }
        assert!(keyspace.range(round.to_be_bytes()..).all(|entry| entry.is_ok()));
    }
    keyspace.compact::<&str>(..).unwrap();
    store.settle().unwrap();
    assert_eq!(store.debt(), 0);
}
