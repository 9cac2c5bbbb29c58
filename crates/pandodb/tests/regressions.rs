//! Regression tests for findings of reviews and random histories. Each test failed before the fix of the bug, and
//! contains only the steps that are necessary to show the bug. Tests with simulated crashes and random histories are in
//! the crate `pandodb-proof`.

mod common;

use std::path::Path;
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};

use common::ends;

use pandodb::device::sim::SimImage;
use pandodb::device::{MemDevice, SimDevice};
use pandodb::{Append, Durability, KeyspaceOptions, StbeOptions, Store, StoreBuilder};

fn small(path: &Path, threads: usize) -> Store {
    Store::builder(path).memory_budget(8 << 20).memtable_bytes(256 << 10).background_threads(threads).open().unwrap()
}

/// Copies the files of an open store as a SIGKILL would leave them.
fn killed_copy(from: &Path, to: &Path) {
    std::fs::create_dir(to).unwrap();
    let mut names: Vec<_> = std::fs::read_dir(from).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    names.sort();
    for name in names {
        // A log segment may be deleted during the copy. In that case a checkpoint no longer needs it.
        let _ = std::fs::copy(from.join(&name), to.join(&name));
    }
}

#[test]
fn deleting_the_same_range_again_keeps_the_accounts() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("s");
    let (from, to) = (vec![b'a'; 200], vec![b'b'; 200]);
    {
        let store = small(&path, 1);
        let keyspace = store.keyspace("k").unwrap();
        for _ in 0..16 {
            keyspace.delete_range(from.clone()..to.clone()).unwrap();
        }
    }
    ends("compacting repeated range deletes", move || {
        let store = small(&path, 0);
        let keyspace = store.keyspace("k").unwrap();
        keyspace.put("x", "y").unwrap();
        keyspace.delete_range(from..to).unwrap();
        keyspace.compact(..).unwrap();
        assert_eq!(store.debt(), 0);
    });
}

#[test]
fn compaction_ends_if_a_snapshot_or_a_large_value_keeps_messages() {
    ends("compacting under a snapshot", || {
        let dir = tempfile::tempdir().unwrap();
        let store = small(&dir.path().join("s"), 0);
        let keyspace = store.keyspace("k").unwrap();
        (0..100u32).for_each(|i| keyspace.put(i.to_be_bytes(), "y").unwrap());
        let snapshot = store.snapshot();
        keyspace.put(5u32.to_be_bytes(), "new").unwrap();
        keyspace.compact(..).unwrap();
        assert_eq!(keyspace.at(&snapshot).get(5u32.to_be_bytes()).unwrap().unwrap(), "y");
    });
    ends("compacting a merge above a large value", || {
        let dir = tempfile::tempdir().unwrap();
        let store = small(&dir.path().join("s"), 1);
        let keyspace = store.keyspace_with("k", KeyspaceOptions::new().merge(Append)).unwrap();
        keyspace.put("big", vec![7u8; 10_000]).unwrap();
        keyspace.merge("big", "tail").unwrap();
        keyspace.compact(..).unwrap();
        assert_eq!(keyspace.get("big").unwrap().unwrap().len(), 10_004);
    });
}

#[test]
fn a_close_and_a_checkpoint_leave_nothing_to_replay() {
    let dir = tempfile::tempdir().unwrap();
    let opens_after = |how: &str, end: &dyn Fn(&Store)| {
        let (path, after) = (dir.path().join(how), dir.path().join(format!("after {how}")));
        let store = small(&path, 1);
        for name in ["one", "two", "three"] {
            let keyspace = store.keyspace(name).unwrap();
            (0..1000).for_each(|i: u32| keyspace.put(i.to_be_bytes(), vec![7; 100]).unwrap());
        }
        store.keyspace("empty").unwrap();
        end(&store);
        killed_copy(&path, &after);
        let store = small(&after, 1);
        let rows = |name: &str| store.open_keyspace(name).unwrap().unwrap().iter().count();
        assert_eq!(["one", "two", "three", "empty"].map(rows), [1000, 1000, 1000, 0], "{how}");
        store.stats().unwrap().replayed_operations
    };
    assert_eq!(opens_after("close", &|store| store.clone().close().unwrap()), 0);
    assert_eq!(opens_after("checkpoint", &|store| store.checkpoint().unwrap()), 0);
    assert!(opens_after("kill", &|_| ()) > 0, "replayed operations are counted");
}

#[test]
fn replay_with_a_smaller_budget_keeps_large_values_of_later_records() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("s");
    let big = |i: u32| (format!("big{i:08}"), vec![i as u8; 10_000]);
    let store = Store::builder(&path).memory_budget(64 << 20).open().unwrap();
    let keyspace = store.keyspace("k").unwrap();
    for i in 0..4000u32 {
        keyspace.put(format!("small{i:08}"), vec![i as u8; 500]).unwrap();
        if i % 40 == 0 {
            let (key, value) = big(i);
            keyspace.put(key, value).unwrap();
        }
    }
    let killed = dir.path().join("killed");
    killed_copy(&path, &killed);
    let store = Store::builder(&killed).memory_budget(4 << 20).memtable_bytes(256 << 10).open().unwrap();
    assert!(store.stats().unwrap().replayed_operations > 4000, "all of it was in the log");
    let keyspace = store.keyspace("k").unwrap();
    for i in (0..4000).step_by(40) {
        let (key, value) = big(i);
        assert_eq!(keyspace.get(key).unwrap().unwrap(), value);
    }
    let report = store.verify().unwrap();
    assert!(report.is_clean(), "{:?}", report.problems);
}

#[test]
fn dropping_the_last_handle_closes_before_it_returns() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("s");
    for round in 0..20u32 {
        // Opening fails with `Locked` if a worker still holds the store of the previous round.
        let store = Store::builder(&path).memory_budget(8 << 20).memtable_bytes(64 << 10).open().unwrap();
        let keyspace = store.keyspace("k").unwrap();
        (0..2000u32).for_each(|i| keyspace.put((i ^ round).to_be_bytes(), [1u8; 100]).unwrap());
    }
}

#[test]
fn a_visible_keyspace_survives_an_immediate_kill() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("s");
    let store = Store::builder(&path).memory_budget(8 << 20).open().unwrap();
    let (create, wanted) = mpsc::channel::<String>();
    std::thread::scope(|scope| {
        let store = &store;
        scope.spawn(move || wanted.into_iter().for_each(|name| drop(store.keyspace(&name).unwrap())));
        for i in 0..8u32 {
            let name = format!("k{i}");
            create.send(name.clone()).unwrap();
            let begun = Instant::now();
            let keyspace = loop {
                if let Some(keyspace) = store.open_keyspace(&name).unwrap() {
                    break keyspace;
                }
                assert!(begun.elapsed() < Duration::from_secs(60), "{name} does not become visible");
            };
            keyspace.put("x", "y").unwrap();
            let copy = dir.path().join(format!("copy{i}"));
            killed_copy(&path, &copy);
            let reopened = Store::builder(&copy).memory_budget(8 << 20).open().unwrap();
            assert_eq!(reopened.open_keyspace(&name).unwrap().unwrap().get("x").unwrap().unwrap(), "y");
        }
        drop(create);
    });
}

#[test]
fn one_damaged_superblock_loses_nothing_even_after_a_keyspace_was_created() {
    let dir = tempfile::tempdir().unwrap();
    let (path, copy) = (dir.path().join("s"), dir.path().join("copy"));
    let store = Store::builder(&path).memory_budget(8 << 20).open().unwrap();
    store.keyspace("first").unwrap().put_with("a", "b", Durability::Synced).unwrap();
    store.keyspace("second").unwrap().put_with("x", "y", Durability::Synced).unwrap();
    for slot in [0, 32 * 4096] {
        killed_copy(&path, &copy);
        let mut data = std::fs::read(copy.join("data")).unwrap();
        data[slot + 300] ^= 1;
        std::fs::write(copy.join("data"), data).unwrap();
        let reopened = Store::builder(&copy).memory_budget(8 << 20).open().unwrap();
        assert_eq!(reopened.open_keyspace("second").unwrap().unwrap().get("x").unwrap().unwrap(), "y");
        drop(reopened);
        std::fs::remove_dir_all(&copy).unwrap();
    }
}

#[test]
fn damaged_inner_blocks_do_not_block_packing_for_ever() {
    ends("packing with damaged inner blocks", || {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("s");
        let open = || Store::builder(&path).memory_budget(8 << 20).memtable_bytes(64 << 10).open().unwrap();
        let key = |i: u64| i.wrapping_mul(0x9E37_79B9_7F4A_7C15).to_be_bytes();
        {
            let store = open();
            let keyspace = store.keyspace("k").unwrap();
            (0..30_000).for_each(|i| keyspace.put(key(i), [1u8; 60]).unwrap());
            store.settle().unwrap();
        }
        let mut bytes = std::fs::read(path.join("data")).unwrap();
        let mut damaged = 0;
        for page in bytes.chunks_mut(4096).skip(1).filter(|page| page[4] == 2 && page[5..8] == [0; 3] && page[8] == 1) {
            page[200] ^= 1;
            damaged += 1;
        }
        assert!(damaged > 0);
        std::fs::write(path.join("data"), bytes).unwrap();
        let store = open();
        let keyspace = store.keyspace("k").unwrap();
        for i in 0..40_000 {
            // The store may refuse writes, but it must not accept an unbounded number of writes.
            if keyspace.put(key(i + 1_000_000), [1u8; 60]).is_err() {
                break;
            }
        }
        let stats = store.stats().unwrap();
        assert!(stats.memory.memtables < 8 << 20 && stats.disk_bytes < 64 << 20, "{stats:?}");
        // Runs whose size cannot be determined must not make leaves look too large, because the leaves would be split
        // without end.
        assert!(stats.keyspaces[0].index.figure("nodes") < 100, "{stats:?}");
        assert!(!store.verify().unwrap().is_clean(), "the damage is reported");
    });
}

#[test]
fn a_scan_of_a_dropped_keyspace_ends_with_an_error() {
    let device = SimDevice::new(1);
    let store = tiny(&device, 256 << 10).memory_budget(8 << 20).open().unwrap();
    let keyspace = store.keyspace("k").unwrap();
    (0..5000u32).for_each(|i| keyspace.put(i.to_be_bytes(), [1u8; 60]).unwrap());
    store.settle().unwrap();
    let mut scan = keyspace.iter();
    scan.by_ref().take(10).for_each(|entry| drop(entry.unwrap()));
    store.drop_keyspace("k").unwrap();
    // Advance the clock by more than the time for which a scan pins one view.
    device.advance_clock(Duration::from_millis(2100));
    let rest: Vec<_> = scan.collect();
    assert!(rest.len() == 4990 || rest.last().is_some_and(|entry| entry.is_err()), "{} items, no error", rest.len());
}

fn tiny(device: &Arc<SimDevice>, memtable_bytes: usize) -> StoreBuilder {
    let builder = Store::builder("regress").device(device.clone()).background_threads(0);
    builder.memory_budget(1 << 20).memtable_bytes(memtable_bytes).index(StbeOptions::new().fanout(2))
}

/// Regression: a checkpoint recorded that a keyspace needed no log, and released the log. After a write to that
/// keyspace, the next checkpoint recorded that the keyspace needed the log from an earlier seqno on. Therefore the
/// store could not be opened any more.
#[test]
fn a_write_to_an_idle_keyspace_does_not_need_released_log() {
    let device = SimDevice::new(1);
    let store = tiny(&device, 8 << 10).open().unwrap();
    let (sleepy, busy) = (store.keyspace("sleepy").unwrap(), store.keyspace("busy").unwrap());
    sleepy.put("a", "1").unwrap();
    sleepy.compact(..).unwrap();
    for i in 0..3000u32 {
        busy.put(i.to_be_bytes(), [7; 100]).unwrap();
    }
    busy.compact(..).unwrap();
    for _ in 0..3 {
        store.checkpoint().unwrap();
    }
    sleepy.put("b", "2").unwrap();
    store.checkpoint().unwrap();
    let device = SimDevice::from_image(&device.image(), 2);
    let store = tiny(&device, 8 << 10).open().unwrap();
    let sleepy = store.keyspace("sleepy").unwrap();
    assert!(sleepy.get("a").unwrap().unwrap() == "1" && sleepy.get("b").unwrap().unwrap() == "2");
    assert_eq!(store.keyspace("busy").unwrap().iter().count(), 3000);
}

/// Regression: replay packed a full memtable into pages that held large values of records that were not replayed yet.
#[test]
fn packing_during_replay_keeps_large_values_of_later_records() {
    let device = SimDevice::new(1);
    let store = tiny(&device, 256 << 10).open().unwrap();
    let large = store.keyspace_with("large", KeyspaceOptions::new().blob_threshold(16)).unwrap();
    let (key, value) = (|i: u32| i.to_be_bytes(), |i: u32| vec![i as u8; 20 + i as usize % 3000]);
    // Leave free pages between the large values, so that the store could write runs into these pages.
    for i in 0..1500 {
        large.put(key(i), value(i)).unwrap();
    }
    let device = SimDevice::from_image(&device.image(), 2);
    let store = tiny(&device, 4 << 10).open().unwrap();
    let large = store.open_keyspace("large").unwrap().unwrap();
    for i in 0..1500 {
        assert!(large.get(key(i)).unwrap().unwrap() == value(i), "value {i}");
    }
    assert!(store.verify().unwrap().is_clean());
}

/// Regression: some debt could never be reduced to 0, so packing and recovery waited for it without end. There were two
/// causes: packing combined several range tombstones into one, and a read changed the size of a memtable with range
/// tombstones.
#[test]
fn range_deletes_leave_no_debt_behind() {
    ends("compacting range deletes", || {
        let store = tiny(&SimDevice::new(1), 4 << 10).open().unwrap();
        let keyspace = store.keyspace("wide").unwrap();
        for i in 0..200u32 {
            keyspace.put(i.to_be_bytes(), [7; 40]).unwrap();
            keyspace.delete_range((i * 31).to_be_bytes()..=(i * 31 + 40).to_be_bytes()).unwrap();
        }
        keyspace.compact(..).unwrap();
        assert_eq!(store.debt(), 0);
    });
    ends("compacting range deletes that were read", || {
        let store = tiny(&SimDevice::new(1), 16 << 10).open().unwrap();
        let keyspace = store.keyspace("plain").unwrap();
        for round in 0..40u32 {
            for i in 0..20u32 {
                let from = (i * 37 + round) % 400;
                keyspace.put(from.to_be_bytes(), [1; 30]).unwrap();
                keyspace.delete_range(from.to_be_bytes()..(from + 15).to_be_bytes()).unwrap();
            }
            assert!(keyspace.range(round.to_be_bytes()..).all(|entry| entry.is_ok()));
        }
        keyspace.compact(..).unwrap();
        store.settle().unwrap();
        assert_eq!(store.debt(), 0);
    });
}

/// Regression: debt was counted in bytes of pages, but reduced by bytes of messages. Therefore, if keys shared a long
/// prefix, the debt of a compaction could reach 0 while the compaction was paused between two steps. Threads that
/// waited for this compaction continued too early.
#[test]
fn compact_waits_for_the_compaction_of_keys_with_a_long_common_prefix() {
    ends("compacting keys with a long common prefix", || {
        let device = SimDevice::new(1);
        let store = tiny(&device, 256 << 10).memory_budget(8 << 20).open().unwrap();
        let alike = store.keyspace("alike").unwrap();
        let key = |i: u32| [vec![b'x'; 900], i.to_be_bytes().to_vec()].concat();
        for i in 0..3000 {
            alike.put(key(i), [7]).unwrap();
        }
        alike.compact(..).unwrap();
        for i in (0..3000).step_by(2) {
            alike.delete(key(i)).unwrap();
        }
        alike.compact(..).unwrap();
        let index = &store.stats().unwrap().keyspaces[0].index;
        assert_eq!((index.entries, index.tombstones, index.debt.total()), (1500, 0, 0));
    });
}

/// Found by `pando sim histories --seed 5`: a checkpoint was running when the store was closed. The checkpoint got the
/// error of a closed store and treated this error as a failure of the disk, which poisoned the store. Therefore the
/// close did not write the end of the log to disk, but returned success.
#[test]
fn a_running_checkpoint_does_not_prevent_a_close_from_writing_the_log() {
    ends("closing during a checkpoint", || {
        for round in 0..120u64 {
            let device = MemDevice::new();
            let small = || Store::builder("s").device(device.clone()).memory_budget(1 << 20).memtable_bytes(4 << 10);
            let open = || small().background_threads(2).open().expect("a store");
            let store = open();
            let keyspace = store.keyspace("k").expect("a keyspace");
            std::thread::scope(|scope| {
                for _ in 0..2 {
                    let store = store.clone();
                    scope.spawn(move || while store.checkpoint().is_ok() {});
                }
                for i in 0..200 + round {
                    keyspace.put_with(i.to_be_bytes(), [b'x'; 40], Durability::None).expect("a put");
                }
                store.clone().close().expect("closed, and everything durable");
            });
            drop((store, keyspace));
            let keyspace = open().open_keyspace("k").expect("open").expect("there");
            assert_eq!(keyspace.iter().count() as u64, 200 + round, "in round {round}");
        }
    });
}

#[test]
fn a_damaged_large_value_that_only_the_log_refers_to_is_found() {
    let device = SimDevice::new(1);
    let builder = |device| Store::builder("sim").device(device).background_threads(0).reserve_bytes(8 << 10);
    let open = |image: &SimImage| builder(SimDevice::from_image(image, 1)).open();
    let store = builder(device.clone()).open().unwrap();
    let keyspace = store.keyspace_with("k", KeyspaceOptions::new().blob_threshold(100)).unwrap();
    keyspace.put_with("large", vec![0x5A; 6_000], Durability::Synced).unwrap();
    // Take the image while the store is open, because after a close the log would be empty.
    let unconfirmed = device.image();
    // A later record that was synced confirms that everything before this record is durable.
    keyspace.put_with("later", "small", Durability::Synced).unwrap();
    let image = device.image();
    let whole = open(&image).unwrap();
    assert_eq!(whole.stats().unwrap().replayed_operations, 2);
    let report = whole.verify().unwrap();
    assert!(report.is_clean() && report.blobs == 1, "{report:?}");
    let data = image.file("data").unwrap();
    let at = data.windows(100).position(|window| window.iter().all(|byte| *byte == 0x5A)).unwrap();
    let damaged = |mut image: SimImage| {
        image.flip_bit("data", at as u64 + 50, 3);
        open(&image)
    };
    // Without the later record it is unknown whether the value was written to the disk. Therefore the log ends before
    // the value, as after a power cut.
    let store = damaged(unconfirmed).unwrap();
    assert_eq!(store.open_keyspace("k").unwrap().unwrap().get("large").unwrap(), None);
    // With the later record, it is known that the value must be intact. The error is about the data file, not about the
    // log.
    let Err(pandodb::Error::Corruption { file, offset, what, .. }) = damaged(image) else { panic!("it opens") };
    assert_eq!((&*file, offset, what), ("data", at as u64, "large value"));
}

/// Regression: the default segment size is a quarter of the smallest memtable, which is an eighth of the
/// budget. With some budgets this was not a multiple of a page, so the log refused a size that the store itself had
/// computed (lab, figure 3.5).
#[test]
fn any_memory_budget_opens() {
    for budget in [1 << 20, (1 << 20) + 1, 6_381_793, (256 << 20) - 1] {
        let dir = tempfile::tempdir().unwrap();
        Store::builder(dir.path().join("s")).memory_budget(budget).open().unwrap().close().unwrap();
    }
}

/// Regression: a store was killed with a long log and then opened with little memory. It packed thousands of memtables
/// and compacted none. While each memtable was packed, all runs of a leaf were searched, and the tree used 120 MB of
/// memory. Opening such a store with a log of 200 MB took longer than five minutes.
#[test]
fn recovery_with_less_memory_compacts_the_runs_that_it_packs() {
    let device = SimDevice::new(1);
    let store = tiny(&device, 4 << 20).memory_budget(64 << 20).open().unwrap();
    let keyspace = store.keyspace("k").unwrap();
    for i in 0..30_000u64 {
        keyspace.put(i.wrapping_mul(0x9e37_79b9_7f4a_7c15).to_be_bytes(), [1; 100]).unwrap();
    }
    let again = tiny(&SimDevice::from_image(&device.image(), 2), 16 << 10).open().unwrap();
    let stats = again.stats().unwrap();
    assert!(stats.replayed_operations > 20_000, "{}", stats.replayed_operations);
    assert!(stats.debt_bytes < 40 * (16 << 10), "{} bytes are owed", stats.debt_bytes);
    // Pages of runs that were both packed and compacted during the opening are reused before the next checkpoint.
    assert!(stats.written.data > 3 * stats.disk_bytes, "{} of {}", stats.disk_bytes, stats.written.data);
    assert!(stats.disk_bytes < 12 << 20, "{}", stats.disk_bytes);
    assert_eq!(again.open_keyspace("k").unwrap().unwrap().iter().count(), 30_000);
}

/// Regression: pages of a replaced large value were reused while the log still referred to them. Pages that are freed
/// during a replay are reused at once. By mistake, pages that were freed after the replay were also reused at once.
#[test]
fn pages_that_the_log_refers_to_are_not_reused() {
    let device = SimDevice::new(1);
    let store = tiny(&device, 16 << 10).open().unwrap();
    let keyspace = store.keyspace_with("k", KeyspaceOptions::new().blob_threshold(1024)).unwrap();
    keyspace.put_with("a", [1; 3000], Durability::Synced).unwrap();
    keyspace.put_with("a", [2; 3000], Durability::Synced).unwrap();
    store.pack().unwrap();
    keyspace.put_with("b", [3; 3000], Durability::Synced).unwrap();
    let again = tiny(&SimDevice::from_image(&device.image(), 2), 16 << 10).open().unwrap();
    let keyspace = again.open_keyspace("k").unwrap().unwrap();
    assert_eq!(keyspace.get("a").unwrap().unwrap(), [2; 3000]);
    assert_eq!(keyspace.get("b").unwrap().unwrap(), [3; 3000]);
}
