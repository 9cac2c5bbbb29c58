//! Read points of transactions that run a closure: such a transaction chooses its read point at its first read.

use std::cell::Cell;

use pandodb::{Isolation, Keyspace, Result, Store, Transaction, TransactionOptions};

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
