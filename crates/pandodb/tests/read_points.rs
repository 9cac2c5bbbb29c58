//! Read points of transactions that run a closure: such a transaction chooses its read point at its first read.

use std::cell::Cell;

use pandodb::{Error, Isolation, Keyspace, Result, Store, Transaction, TransactionOptions};

fn with_keyspace(work: impl FnOnce(&Store, &Keyspace) -> Result<()>) {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::open(dir.path().join("s")).unwrap();
    work(&store, &store.keyspace("k").unwrap()).unwrap();
    store.close().unwrap();
}

/// Runs `work` in transactions until one is committed. `work` gets the number of the attempt, from 1 on. Returns the
/// number of attempts.
fn attempts(store: &Store, isolation: Isolation, work: impl Fn(&Transaction, u32) -> Result<()>) -> Result<u32> {
    let count = Cell::new(0);
    store.transact_with(TransactionOptions::new().isolation(isolation), |tx| {
        count.set(count.get() + 1);
        work(tx, count.get())
    })?;
    Ok(count.get())
}

#[test]
fn a_commit_between_a_put_and_the_first_read_is_seen() {
    with_keyspace(|store, ks| {
        let count = attempts(store, Isolation::Serializable, |tx, _| {
            tx.put(ks, "mine", "1")?;
            assert_eq!(tx.read_point(), None, "a write needs no read point");
            ks.put("a", "other")?;
            assert_eq!(tx.get(ks, "a")?.unwrap(), "other");
            assert!(tx.read_point().is_some());
            tx.put(ks, "b", "2")
        })?;
        assert_eq!(count, 1, "nothing has changed since the read point");
        assert_eq!(ks.get("b")?.unwrap(), "2");
        Ok(())
    });
}

#[test]
fn snapshot_isolation_chooses_the_read_point_at_the_beginning() {
    with_keyspace(|store, ks| {
        let count = attempts(store, Isolation::Snapshot, |tx, attempt| {
            let point = tx.read_point().expect("it is chosen at the beginning");
            tx.put(ks, "mine", "1")?;
            if attempt == 1 {
                ks.put("a", "other")?;
                assert!(tx.get(ks, "a")?.is_none(), "the commit is newer than the read point");
                ks.put("mine", "other")?;
            }
            assert_eq!(tx.read_point(), Some(point));
            Ok(())
        })?;
        assert_eq!(count, 2, "another commit has changed the written key since the beginning");
        assert_eq!(ks.get("mine")?.unwrap(), "1");
        Ok(())
    });
}

#[test]
fn a_commit_after_the_first_read_conflicts() {
    type Read = fn(&Transaction, &Keyspace) -> Result<()>;
    let reads: [(&str, Read); 6] = [
        ("get", |tx, ks| tx.get(ks, "a").map(drop)),
        ("contains", |tx, ks| tx.contains(ks, "a").map(drop)),
        ("multi_get", |tx, ks| tx.multi_get(ks, &["x", "a"]).map(drop)),
        ("get_for_update", |tx, ks| tx.get_for_update(ks, "a").map(drop)),
        ("range", |tx, ks| tx.range(ks, "a".."c")?.try_for_each(|row| row.map(drop))),
        ("track", |tx, ks| tx.track(ks, "a".."c")),
    ];
    for (name, read) in reads {
        for writes_first in [false, true] {
            with_keyspace(|store, ks| {
                let count = attempts(store, Isolation::Serializable, |tx, attempt| {
                    if writes_first {
                        tx.put(ks, "mine", "1")?;
                    }
                    read(tx, ks)?;
                    assert!(tx.read_point().is_some(), "{name}");
                    if attempt == 1 {
                        ks.put("a", "other")?;
                    }
                    tx.put(ks, "mine", "2")
                })?;
                assert_eq!(count, 2, "{name}, a write first: {writes_first}");
                Ok(())
            });
        }
    }
}

#[test]
fn reads_after_a_savepoint_count_after_the_rollback_to_it() {
    for isolation in [Isolation::Serializable, Isolation::Snapshot] {
        with_keyspace(|store, ks| {
            let count = attempts(store, isolation, |tx, attempt| {
                tx.put(ks, "discarded", "1")?;
                let savepoint = tx.savepoint()?;
                assert!(tx.get_for_update(ks, "a")?.is_none() || attempt > 1);
                tx.rollback_to(savepoint)?;
                if attempt == 1 {
                    ks.put("a", "other")?;
                }
                tx.put(ks, "b", "2")
            })?;
            assert_eq!(count, 2, "{isolation:?}");
            Ok(())
        });
    }
}

#[test]
fn a_read_after_all_writes_were_rolled_back_needs_no_validation() {
    with_keyspace(|store, ks| {
        let count = attempts(store, Isolation::Serializable, |tx, _| {
            let savepoint = tx.savepoint()?;
            tx.put(ks, "discarded", "1")?;
            tx.rollback_to(savepoint)?;
            tx.get(ks, "a")?;
            ks.put("a", "other")
        })?;
        assert_eq!(count, 1, "nothing is written");
        assert!(ks.get("discarded")?.is_none());
        Ok(())
    });
}

#[test]
fn transactions_that_only_write_never_conflict_and_have_no_read_point() {
    with_keyspace(|store, ks| {
        let count = attempts(store, Isolation::Serializable, |tx, _| {
            tx.put(ks, "a", "mine")?;
            tx.delete_range(ks, "b".."c")?;
            ks.put("a", "other")?;
            ks.put("b1", "other")?;
            assert_eq!(tx.read_point(), None);
            Ok(())
        })?;
        assert_eq!(count, 1);
        assert_eq!(ks.get("a")?.unwrap(), "mine");
        assert!(ks.get("b1")?.is_none());
        Ok(())
    });
}

#[test]
fn large_snapshot_transactions_are_charged_for_the_copies_of_their_keys() {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::builder(dir.path().join("s")).transaction_bytes(4 << 20).open().unwrap();
    let ks = store.keyspace("k").unwrap();
    let write = |isolation, count: u32| {
        store.transact_with(TransactionOptions::new().isolation(isolation), |tx| {
            (0..count).try_for_each(|i| tx.put(&ks, format!("{i:01000}"), ""))
        })
    };
    // The writes need about 3 MiB, and with the copies of their keys 6 MiB.
    write(Isolation::Serializable, 3000).unwrap();
    assert!(matches!(write(Isolation::Snapshot, 3000), Err(Error::TransactionTooLarge { .. })));
    // The put fails, not the commit, so the transaction can still write what it has.
    let tx = store.begin(TransactionOptions::new().isolation(Isolation::Snapshot)).unwrap();
    let fits = (0..).take_while(|i| tx.put(&ks, format!("{i:01000}"), "mine").is_ok()).count();
    assert!((1500..2100).contains(&fits), "{fits} keys");
    tx.commit().unwrap();
    assert_eq!(ks.get(format!("{:01000}", fits - 1)).unwrap().unwrap(), "mine");
    store.close().unwrap();
}

#[test]
fn a_savepoint_of_another_store_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let stores = ["a", "b"].map(|name| Store::open(dir.path().join(name)).unwrap());
    let [one, two] = [0, 1].map(|i| stores[i].begin(TransactionOptions::default()).unwrap());
    let [of_one, of_two] = [&one, &two].map(|tx| tx.savepoint().unwrap());
    assert!(matches!(one.rollback_to(of_two), Err(Error::InvalidArgument { .. })));
    one.rollback_to(of_one).unwrap();
}

#[test]
fn parts_of_ranges_are_charged() {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::builder(dir.path().join("s")).transaction_bytes(1 << 20).open().unwrap();
    let ks = store.keyspace("k").unwrap();
    (0..100).for_each(|i| ks.put(format!("{i:03}"), "").unwrap());
    let tx = store.begin(TransactionOptions::default()).unwrap();
    let mut range = tx.range(&ks, ..).unwrap();
    for i in 0..5_000 {
        range.seek(format!("{:03}", i * 7 % 100));
        range.next().unwrap().unwrap();
    }
    assert_eq!(store.stats().unwrap().transactions.bytes, 0);
    drop(range);
    assert!(store.stats().unwrap().transactions.bytes > 64 << 10, "charged before the next operation");
    tx.put(&ks, "a", "").unwrap();
    drop(tx);
    assert_eq!(store.stats().unwrap().transactions.bytes, 0);
}

#[test]
fn refused_writes_are_not_charged() {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::builder(dir.path().join("s")).transaction_bytes(4 << 20).open().unwrap();
    let ks = store.keyspace("k").unwrap();
    let tx = store.begin(TransactionOptions::new().isolation(Isolation::Snapshot)).unwrap();
    for _ in 0..10 {
        assert!(matches!(tx.put(&ks, vec![1; 1 << 20], ""), Err(Error::InvalidArgument { .. })));
    }
    tx.put(&ks, "a", vec![1; 1000]).unwrap();
    tx.commit().unwrap();
}

#[test]
fn an_iterator_that_outlives_its_transaction_keeps_only_the_writes() {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::open(dir.path().join("s")).unwrap();
    let ks = store.keyspace("k").unwrap();
    let held = || store.stats().unwrap().transactions.bytes;
    for commits in [false, true] {
        let tx = store.begin(TransactionOptions::default()).unwrap();
        (0..1000).for_each(|i| tx.put(&ks, format!("{i:04}"), [0; 1000]).unwrap());
        (0..10_000).for_each(|i| drop(tx.get(&ks, format!("x{i:0100}")).unwrap()));
        let open = tx.iter(&ks).unwrap();
        let (all, writes) = (held(), 1000 * 1000..1200 * 1000);
        assert!(all > 2_000_000, "{all}");
        if commits {
            tx.commit().unwrap();
        } else {
            drop(tx);
            assert!(writes.contains(&held()), "{} of {all} bytes", held());
        }
        drop(open);
        assert_eq!(held(), 0);
    }
}
