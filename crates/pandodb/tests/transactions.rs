//! Transactions: what they see, what conflicts, and what does not.

use pandodb::{AddI64, ColaOptions, Error, Isolation, KeyspaceOptions, Result, Store, Transaction, TransactionOptions};

fn snapshot() -> TransactionOptions {
    TransactionOptions::new().isolation(Isolation::Snapshot)
}

fn with_store(work: impl FnOnce(&Store) -> Result<()>) {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::open(dir.path().join("s")).unwrap();
    work(&store).unwrap();
    store.close().unwrap();
}

fn conflicts(result: Result<()>) -> bool {
    match result {
        Ok(()) => false,
        Err(Error::Conflict { .. }) => true,
        Err(other) => panic!("{other}"),
    }
}

#[test]
fn a_transaction_sees_its_own_writes_and_no_later_commits() {
    with_store(|store| {
        let ks = store.keyspace_with("k", KeyspaceOptions::new().merge(AddI64))?;
        ks.put("a", 1i64.to_le_bytes())?;
        let tx = store.begin(TransactionOptions::default())?;
        ks.put("a", 5i64.to_le_bytes())?;
        assert_eq!(tx.get(&ks, "a")?.unwrap(), 1i64.to_le_bytes());
        tx.merge(&ks, "a", 2i64.to_le_bytes())?;
        assert_eq!(tx.get(&ks, "a")?.unwrap(), 3i64.to_le_bytes());
        tx.delete_range(&ks, "a".."b")?;
        assert!(tx.get(&ks, "a")?.is_none());
        tx.put(&ks, "a", 9i64.to_le_bytes())?;
        assert_eq!(tx.get(&ks, "a")?.unwrap(), 9i64.to_le_bytes());
        assert!(conflicts(tx.commit()), "it has read `a`");
        assert_eq!(ks.get("a")?.unwrap(), 5i64.to_le_bytes());
        Ok(())
    });
}

#[test]
fn blind_writes_do_not_conflict_when_serializable() {
    with_store(|store| {
        let ks = store.keyspace("k")?;
        let tx = store.begin(TransactionOptions::default())?;
        tx.put(&ks, "a", "mine")?;
        ks.put("a", "other")?;
        tx.commit()?;
        assert_eq!(ks.get("a")?.unwrap(), "mine");
        Ok(())
    });
}

#[test]
fn absence_is_read_too() {
    with_store(|store| {
        let ks = store.keyspace("k")?;
        let tx = store.begin(TransactionOptions::default())?;
        assert!(tx.get(&ks, "a")?.is_none());
        tx.put(&ks, "b", "1")?;
        ks.put("a", "2")?;
        assert!(conflicts(tx.commit()));
        assert!(ks.get("b")?.is_none());
        Ok(())
    });
}

#[test]
fn write_skew_is_possible_under_snapshot_isolation_only() {
    for isolation in [Isolation::Snapshot, Isolation::Serializable] {
        with_store(|store| {
            let ks = store.keyspace("k")?;
            let options = TransactionOptions::new().isolation(isolation);
            let (one, two) = (store.begin(options)?, store.begin(options)?);
            assert!(one.get(&ks, "b")?.is_none() && two.get(&ks, "a")?.is_none());
            one.put(&ks, "a", "1")?;
            two.put(&ks, "b", "1")?;
            one.commit()?;
            assert_eq!(conflicts(two.commit()), isolation == Isolation::Serializable);
            Ok(())
        });
    }
}

#[test]
fn the_first_committer_wins_under_snapshot_isolation() {
    with_store(|store| {
        let ks = store.keyspace_with("k", KeyspaceOptions::new().merge(AddI64))?;
        let (one, two, three) = (store.begin(snapshot())?, store.begin(snapshot())?, store.begin(snapshot())?);
        for tx in [&one, &two] {
            tx.merge(&ks, "n", 1i64.to_le_bytes())?;
        }
        three.put(&ks, "n", 7i64.to_le_bytes())?;
        one.commit()?;
        two.commit()?;
        assert!(conflicts(three.commit()), "a put beside a merge conflicts");
        assert_eq!(ks.get("n")?.unwrap(), 2i64.to_le_bytes());
        let four = store.begin(snapshot())?;
        four.merge(&ks, "n", 1i64.to_le_bytes())?;
        ks.delete_range(..)?;
        assert!(conflicts(four.commit()), "and so does a range delete");
        Ok(())
    });
}

fn keys(range: impl Iterator<Item = Result<(pandodb::Value, pandodb::Value)>>) -> Result<Vec<String>> {
    range.map(|row| row.map(|(key, _)| String::from_utf8(key.to_vec()).unwrap())).collect()
}

#[test]
fn ranges_see_own_writes_in_both_directions() {
    with_store(|store| {
        let ks = store.keyspace_with("k", KeyspaceOptions::new().merge(AddI64))?;
        for key in ["a", "c", "e", "g"] {
            ks.put(key, 1i64.to_le_bytes())?;
        }
        store.checkpoint()?;
        let tx = store.begin(TransactionOptions::default())?;
        ks.put("b0", 3i64.to_le_bytes())?;
        tx.put(&ks, "b", 2i64.to_le_bytes())?;
        tx.delete(&ks, "c")?;
        tx.merge(&ks, "e", 4i64.to_le_bytes())?;
        tx.delete_range(&ks, "f".."h")?;
        tx.put(&ks, "g2", 7i64.to_le_bytes())?;
        let open = tx.range(&ks, ..)?;
        tx.put(&ks, "z", 8i64.to_le_bytes())?;
        assert_eq!(keys(open)?, ["a", "b", "e", "g2"]);
        assert_eq!(keys(tx.range(&ks, "b"..)?.rev())?, ["z", "g2", "e", "b"]);
        let e = tx.range(&ks, "e"..="e")?.next().unwrap()?;
        assert_eq!(e.1, 5i64.to_le_bytes());
        assert_eq!(tx.range(&ks, "e"..="e")?.next_back().unwrap()?.1, 5i64.to_le_bytes());
        assert!(conflicts(tx.commit()), "`b0` is in the range");
        Ok(())
    });
}

/// Returns whether a transaction conflicts with a put of `key` after it has read a range in some way.
fn reads(store: &Store, key: &str, read: impl FnOnce(&Transaction, &pandodb::Keyspace) -> Result<()>) -> Result<bool> {
    let ks = store.keyspace("ranges")?;
    ks.delete_range(..)?;
    for known in ["b", "d", "f", "h", "j"] {
        ks.put(known, "x")?;
    }
    let tx = store.begin(TransactionOptions::default())?;
    read(&tx, &ks)?;
    tx.put(&ks, "mine", "1")?;
    ks.put(key, "new")?;
    Ok(conflicts(tx.commit()))
}

#[test]
fn a_range_counts_as_far_as_it_was_walked() {
    with_store(|store| {
        let two = |tx: &Transaction, ks: &pandodb::Keyspace| {
            let mut range = tx.range(ks, "a".."i")?;
            range.next().unwrap()?;
            range.next().unwrap()?;
            Ok(())
        };
        for (key, conflict) in [("a", true), ("c", true), ("d", true), ("d1", false), ("h", false), ("0", false)] {
            assert_eq!(reads(store, key, two)?, conflict, "two rows and `{key}`");
        }
        let back = |tx: &Transaction, ks: &pandodb::Keyspace| {
            let mut range = tx.range(ks, "a".."i")?;
            range.next_back().unwrap()?;
            range.next().unwrap()?;
            Ok(())
        };
        for (key, conflict) in
            [("a", true), ("b", true), ("c", false), ("g", false), ("h", true), ("h5", true), ("i", false)]
        {
            assert_eq!(reads(store, key, back)?, conflict, "a row at each end and `{key}`");
        }
        let all = |tx: &Transaction, ks: &pandodb::Keyspace| keys(tx.range(ks, "c".."g")?).map(|_| ());
        for (key, conflict) in [("b", false), ("c", true), ("e", true), ("f9", true), ("g", false)] {
            assert_eq!(reads(store, key, all)?, conflict, "all rows and `{key}`");
        }
        let sought = |tx: &Transaction, ks: &pandodb::Keyspace| {
            let mut range = tx.range(ks, ..)?;
            range.next().unwrap()?;
            range.seek("g");
            range.next().unwrap()?;
            Ok(())
        };
        for (key, conflict) in
            [("a", true), ("b", true), ("c", false), ("f", false), ("g", true), ("h", true), ("i", false)]
        {
            assert_eq!(reads(store, key, sought)?, conflict, "a seek and `{key}`");
        }
        let unused = |tx: &Transaction, ks: &pandodb::Keyspace| tx.range(ks, ..).map(drop);
        assert!(!reads(store, "a", unused)?, "an iterator that was not used has read nothing");
        Ok(())
    });
}

/// The read point is registered, so packs and compactions keep what the validation needs.
#[test]
fn a_transaction_survives_packs() {
    with_store(|store| {
        let ks = store.keyspace("k")?;
        ks.put("mine", "1")?;
        let untouched = store.begin(TransactionOptions::default())?;
        let touched = store.begin(TransactionOptions::default())?;
        assert_eq!(untouched.get(&ks, "mine")?.unwrap(), "1");
        assert!(touched.get(&ks, "other7")?.is_none());
        for round in 0..20 {
            ks.put(format!("other{round}"), "x")?;
            store.checkpoint()?;
            ks.compact(..)?;
        }
        untouched.put(&ks, "mine", "2")?;
        untouched.commit()?;
        touched.put(&ks, "mine", "3")?;
        assert!(conflicts(touched.commit()));
        Ok(())
    });
}

#[test]
fn transact_counts_exactly_with_many_threads() {
    with_store(|store| {
        let ks = store.keyspace("k")?;
        ks.put("n", 0u64.to_le_bytes())?;
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..500 {
                        let add = || {
                            store.transact(|tx| {
                                let n = u64::from_le_bytes(tx.get(&ks, "n")?.unwrap()[..].try_into().unwrap());
                                tx.put(&ks, "n", (n + 1).to_le_bytes())
                            })
                        };
                        while matches!(add(), Err(Error::Conflict { .. })) {}
                    }
                });
            }
        });
        assert_eq!(ks.get("n")?.unwrap(), 2000u64.to_le_bytes());
        Ok(())
    });
}

#[test]
fn savepoints_discard_writes_and_keep_reads() {
    with_store(|store| {
        let ks = store.keyspace_with("k", KeyspaceOptions::new().merge(AddI64))?;
        ks.put("n", 1i64.to_le_bytes())?;
        let tx = store.begin(TransactionOptions::default())?;
        tx.put(&ks, "a", 1i64.to_le_bytes())?;
        let outer = tx.savepoint()?;
        tx.merge(&ks, "n", 5i64.to_le_bytes())?;
        tx.delete(&ks, "a")?;
        let inner = tx.savepoint()?;
        tx.put(&ks, "b", 7i64.to_le_bytes())?;
        assert_eq!(tx.get(&ks, "n")?.unwrap(), 6i64.to_le_bytes());
        assert!(tx.get(&ks, "a")?.is_none() && tx.contains(&ks, "b")?);
        tx.rollback_to(inner)?;
        assert!(!tx.contains(&ks, "b")?);
        tx.put(&ks, "c", 2i64.to_le_bytes())?;
        tx.rollback_to(inner)?;
        tx.rollback_to(outer)?;
        assert!(matches!(tx.rollback_to(inner), Err(Error::InvalidArgument { .. })), "released by the outer one");
        assert_eq!(tx.get(&ks, "n")?.unwrap(), 1i64.to_le_bytes());
        assert_eq!(keys(tx.iter(&ks)?)?, ["a", "n"]);
        tx.put(&ks, "d", 3i64.to_le_bytes())?;
        tx.release(outer)?;
        tx.commit()?;
        assert_eq!(keys(ks.iter())?, ["a", "d", "n"]);
        Ok(())
    });
    with_store(|store| {
        let ks = store.keyspace("k")?;
        let tx = store.begin(TransactionOptions::default())?;
        tx.put(&ks, "x", "1")?;
        let savepoint = tx.savepoint()?;
        tx.get(&ks, "read")?;
        tx.rollback_to(savepoint)?;
        ks.put("read", "new")?;
        assert!(conflicts(tx.commit()), "the program has seen that `read` has no value");
        Ok(())
    });
}

#[test]
fn gets_see_what_is_written_after_a_rollback_to_a_savepoint() {
    with_store(|store| {
        let ks = store.keyspace("k")?;
        let tx = store.begin(TransactionOptions::default())?;
        let start = tx.savepoint()?;
        for key in ["a", "b", "c"] {
            tx.put(&ks, key, "discarded, and longer than what follows")?;
        }
        assert!(tx.contains(&ks, "c")?);
        tx.rollback_to(start)?;
        assert!(!tx.contains(&ks, "c")?);
        tx.put(&ks, "d", "1")?;
        assert_eq!(tx.get(&ks, "d")?.unwrap(), "1");
        tx.delete_range(&ks, "d"..)?;
        assert!(tx.get(&ks, "d")?.is_none());
        // More keys than the filter of own writes takes.
        for i in 0..500u32 {
            tx.put(&ks, i.to_be_bytes(), i.to_be_bytes())?;
            assert_eq!(tx.get(&ks, i.to_be_bytes())?.unwrap(), i.to_be_bytes());
        }
        assert_eq!(tx.multi_get(&ks, &["d", "zz"])?, [None, None]);
        tx.commit()
    });
}

#[test]
fn large_values_of_discarded_writes_are_freed() {
    with_store(|store| {
        let (ks, large) = (store.keyspace("k")?, vec![1; 4 << 20]);
        let allocated = || store.stats().map(|stats| stats.allocated_bytes);
        store.checkpoint()?;
        let before = allocated()?;
        let tx = store.begin(TransactionOptions::default())?;
        tx.put(&ks, "a", &large)?;
        let savepoint = tx.savepoint()?;
        tx.put(&ks, "b", &large)?;
        assert!(allocated()? >= before + (8 << 20));
        tx.rollback_to(savepoint)?;
        assert!(allocated()? < before + (8 << 20));
        assert_eq!(tx.get(&ks, "a")?.unwrap(), large);
        tx.rollback();
        assert_eq!(allocated()?, before);
        let tx = store.begin(TransactionOptions::default())?;
        tx.get(&ks, "a")?;
        tx.put(&ks, "a", &large)?;
        ks.put("a", "small")?;
        assert!(conflicts(tx.commit()));
        assert_eq!(allocated()?, before);
        Ok(())
    });
}

#[test]
fn reads_for_update_and_tracked_ranges_count_under_snapshot_isolation() {
    with_store(|store| {
        let ks = store.keyspace("k")?;
        for (read, conflict) in [("plain", false), ("update", true), ("range", true)] {
            let tx = store.begin(snapshot())?;
            match read {
                "plain" => drop(tx.get(&ks, "m")?),
                "update" => drop(tx.get_for_update(&ks, "m")?),
                _ => tx.track(&ks, "a".."n")?,
            }
            tx.put(&ks, "z", read)?;
            ks.put("m", read)?;
            assert_eq!(conflicts(tx.commit()), conflict, "{read}");
        }
        Ok(())
    });
}

#[test]
fn untracked_reads_see_own_writes_and_cause_no_conflict() {
    with_store(|store| {
        let ks = store.keyspace("k")?;
        ks.put("a", "1")?;
        let tx = store.begin(TransactionOptions::default())?;
        let untracked = tx.untracked();
        tx.put(&ks, "b", "2")?;
        assert_eq!(untracked.get(&ks, "a")?.unwrap(), "1");
        assert_eq!(untracked.multi_get(&ks, &["a", "b", "c"])?.iter().flatten().count(), 2);
        assert!(untracked.contains(&ks, "b")?);
        assert_eq!(keys(untracked.iter(&ks)?)?, ["a", "b"]);
        assert_eq!(keys(untracked.prefix(&ks, "b")?)?, ["b"]);
        for key in ["a", "b", "c"] {
            ks.put(key, "other")?;
        }
        tx.commit()?;
        assert!(matches!(untracked.get(&ks, "a"), Err(Error::InvalidArgument { .. })), "the transaction has ended");
        Ok(())
    });
}

#[test]
fn every_form_of_a_read_is_tracked() {
    type Read = fn(&Transaction, &pandodb::Keyspace) -> Result<()>;
    let forms: [(&str, Read); 6] = [
        ("get", |tx, ks| tx.get(ks, "m").map(drop)),
        ("contains", |tx, ks| tx.contains(ks, "m").map(drop)),
        ("multi_get", |tx, ks| tx.multi_get(ks, &["k", "m"]).map(drop)),
        ("prefix", |tx, ks| keys(tx.prefix(ks, "m")?).map(drop)),
        ("first", |tx, ks| tx.first_key_value(ks).map(drop)),
        ("last", |tx, ks| tx.last_key_value(ks).map(drop)),
    ];
    with_store(|store| {
        for (form, read) in forms {
            for with_own in [false, true] {
                let ks = store.keyspace(&format!("{form}{with_own}"))?;
                let (tx, beside) = (store.begin(TransactionOptions::default())?, store.keyspace("beside")?);
                if with_own {
                    tx.put(&ks, "a", "own")?;
                }
                read(&tx, &ks)?;
                tx.put(&beside, form, "x")?;
                ks.put(if form == "first" && with_own { "0" } else { "m" }, "other")?;
                assert!(conflicts(tx.commit()), "{form} {with_own}");
            }
        }
        Ok(())
    });
}

#[test]
fn a_value_that_own_writes_determine_is_not_tracked() {
    with_store(|store| {
        let ks = store.keyspace_with("k", KeyspaceOptions::new().merge(AddI64))?;
        let tx = store.begin(TransactionOptions::default())?;
        tx.put(&ks, "a", 1i64.to_le_bytes())?;
        tx.merge(&ks, "a", 1i64.to_le_bytes())?;
        tx.delete_range(&ks, "b".."d")?;
        assert_eq!(tx.get(&ks, "a")?.unwrap(), 2i64.to_le_bytes());
        assert!(tx.get(&ks, "c")?.is_none());
        ks.put("a", 5i64.to_le_bytes())?;
        ks.put("c", 5i64.to_le_bytes())?;
        tx.commit()?;
        let tx = store.begin(TransactionOptions::default())?;
        tx.merge(&ks, "a", 1i64.to_le_bytes())?;
        assert_eq!(tx.get(&ks, "a")?.unwrap(), 3i64.to_le_bytes());
        ks.put("a", 5i64.to_le_bytes())?;
        assert!(conflicts(tx.commit()), "the stored value was read below the own operand");
        Ok(())
    });
}

#[test]
fn transactions_take_at_most_the_limit() {
    let dir = tempfile::tempdir().unwrap();
    let builder = Store::builder(dir.path().join("s")).memory_budget(16 << 20).transaction_bytes(1 << 20);
    let store = builder.open().unwrap();
    let ks = store.keyspace("k").unwrap();
    let (one, two) = (store.begin(Default::default()).unwrap(), store.begin(Default::default()).unwrap());
    let mut written = 0u32;
    let error = loop {
        match one.put(&ks, written.to_be_bytes(), [0; 1000]) {
            Ok(()) => written += 1,
            Err(error) => break error,
        }
    };
    assert!(matches!(error, Error::TransactionTooLarge { limit, .. } if limit == 1 << 20), "{error}");
    assert!((900..=1040).contains(&written), "{written}");
    two.put(&ks, "small", "1").unwrap();
    two.commit().unwrap();
    assert!(store.stats().unwrap().transactions.bytes > 900 << 10);
    one.commit().unwrap();
    assert_eq!(ks.iter().count() as u32, written + 1);
    assert_eq!(store.stats().unwrap().transactions.bytes, 0);
    let readers = store.begin(Default::default()).unwrap();
    let error = (0..u32::MAX).find_map(|i| readers.get(&ks, [i.to_be_bytes(), [7; 4]].concat()).err()).unwrap();
    assert!(matches!(error, Error::TransactionTooLarge { .. }), "{error}");
    drop(readers);
    store.close().unwrap();
}

#[test]
fn a_sorted_load_conflicts_with_a_read_range() {
    with_store(|store| {
        let ks = store.keyspace("k")?;
        let load = |from: u32| ks.load_sorted((from..from + 100).map(|i| (i.to_be_bytes(), "x")));
        let (inside, outside) = (store.begin(Default::default())?, store.begin(Default::default())?);
        assert_eq!(inside.range(&ks, 1000u32.to_be_bytes()..2000u32.to_be_bytes())?.count(), 0);
        assert_eq!(outside.range(&ks, 3000u32.to_be_bytes()..4000u32.to_be_bytes())?.count(), 0);
        let key = store.begin(Default::default())?;
        assert!(key.get(&ks, 1050u32.to_be_bytes())?.is_none());
        load(1000)?;
        for (tx, conflict) in [(inside, true), (outside, false), (key, true)] {
            tx.put(&ks, 9u32.to_be_bytes(), "y")?;
            assert_eq!(conflicts(tx.commit()), conflict);
        }
        Ok(())
    });
}

#[test]
fn updates_of_single_keys() {
    with_store(|store| {
        for ks in [store.keyspace("k")?, store.keyspace_with("h", KeyspaceOptions::new().index(ColaOptions::new()))?] {
            assert!(ks.insert_new("a", "1")? && !ks.insert_new("a", "2")?);
            assert_eq!(ks.take("a")?.unwrap(), "1");
            assert!(ks.take("a")?.is_none() && ks.get("a")?.is_none());
            assert!(ks.fetch_update("a", |old| old.map(|_| "never"))?.is_none());
            assert!(!ks.contains("a")?);
            assert_eq!(ks.update_fetch("a", |old| Some(vec![1; 1 + old.map_or(0, <[u8]>::len)]))?.unwrap(), [1]);
            assert_eq!(ks.fetch_update("a", |_| Some(vec![2; 1 << 20]))?.unwrap(), [1]);
            assert_eq!(
                ks.fetch_update("a", |old| old.map(|old| &old[..0]).map(<[u8]>::to_vec))?.unwrap(),
                vec![2; 1 << 20]
            );
            assert_eq!(ks.compare_and_swap("a", Some(b"x"), None)?.unwrap_err().current.unwrap(), "");
            ks.compare_and_swap("a", Some(b""), None)?.unwrap();
            assert!(!ks.contains("a")?);
        }
        let stats = store.stats()?.transactions;
        assert!(stats.commits > 10 && stats.open == 0 && stats.key_conflicts == 0, "{stats:?}");
        Ok(())
    });
}

#[test]
fn updates_by_many_threads_are_exact() {
    with_store(|store| {
        let ks = store.keyspace("k")?;
        let number = |value: Option<&[u8]>| value.map_or(0, |value| u64::from_le_bytes(value.try_into().unwrap()));
        std::thread::scope(|scope| {
            for thread in 0..4u64 {
                let ks = &ks;
                scope.spawn(move || {
                    for i in 0..1000 {
                        ks.fetch_update("n", |old| Some((number(old) + 1).to_le_bytes())).unwrap();
                        if thread == 0 && i % 100 == 0 {
                            ks.put("other", "x").unwrap();
                        }
                    }
                });
            }
        });
        assert_eq!(number(ks.get("n")?.as_deref()), 4000);
        Ok(())
    });
}

#[test]
fn misuse_is_refused() {
    with_store(|store| {
        let ks = store.keyspace("k")?;
        let other_dir = tempfile::tempdir().unwrap();
        let other = Store::open(other_dir.path().join("s"))?;
        let foreign = other.keyspace("k")?;
        let tx = store.begin(TransactionOptions::default())?;
        let is_refused = |result: Result<()>| matches!(result, Err(Error::InvalidArgument { .. }));
        assert!(is_refused(tx.put(&foreign, "a", "1")) && is_refused(tx.get(&foreign, "a").map(drop)));
        assert!(is_refused(tx.put(&ks, "", "1")) && is_refused(tx.get(&ks, "").map(drop)));
        assert!(matches!(tx.merge(&ks, "a", "1"), Err(Error::Unsupported { .. })));
        let stranger = store.begin(TransactionOptions::default())?.savepoint()?;
        assert!(is_refused(tx.rollback_to(stranger)));
        tx.put(&ks, "a", "1")?;
        store.drop_keyspace("k")?;
        assert!(matches!(tx.commit(), Err(Error::NoKeyspace { .. })));
        let tx = store.begin(TransactionOptions::default())?;
        let range = tx.iter(&store.keyspace("new")?)?;
        drop(tx);
        assert_eq!(range.count(), 0, "an iterator may outlive its transaction");
        let late = other.begin(TransactionOptions::default())?;
        late.put(&foreign, "a", "1")?;
        other.clone().close()?;
        assert!(matches!(late.get(&foreign, "a"), Err(Error::Closed)));
        assert!(matches!(late.commit(), Err(Error::Closed)));
        assert!(matches!(other.begin(TransactionOptions::default()), Err(Error::Closed)));
        Ok(())
    });
}

/// The pages of a value that was rolled back may hold another value later.
#[test]
fn a_large_value_that_was_rolled_back_leaves_the_pool() {
    with_store(|store| {
        let ks = store.keyspace_with("k", KeyspaceOptions::new().blob_threshold(100))?;
        for round in 0..20u8 {
            let tx = store.begin(TransactionOptions::default())?;
            tx.put(&ks, "a", [round; 1000])?;
            assert_eq!(tx.get(&ks, "a")?.unwrap(), [round; 1000]);
            tx.rollback();
            ks.put([round], [100 + round; 1000])?;
            assert_eq!(ks.get([round])?.unwrap(), [100 + round; 1000]);
        }
        Ok(())
    });
}

#[test]
fn a_range_that_outlives_its_transaction_reads_its_large_values() {
    with_store(|store| {
        let ks = store.keyspace_with("k", KeyspaceOptions::new().blob_threshold(100))?;
        for options in [TransactionOptions::default(), snapshot()] {
            let tx = store.begin(options)?;
            tx.put(&ks, "a", [1; 1000])?;
            let mut range = tx.range(&ks, ..)?;
            tx.rollback();
            ks.put("b", [2; 1000])?;
            assert_eq!(range.next().unwrap()?.1, [1; 1000]);
        }
        Ok(())
    });
}

/// After the commit, the values belong to the index, which frees them when they are overwritten.
#[test]
fn a_range_that_outlives_its_commit_reads_its_large_values() {
    with_store(|store| {
        let ks = store.keyspace_with("k", KeyspaceOptions::new().blob_threshold(100))?;
        let value = |byte: u8| vec![byte; 20_000];
        let tx = store.begin(TransactionOptions::default())?;
        tx.put(&ks, "a", value(1))?;
        let mut range = tx.range(&ks, ..)?;
        tx.commit()?;
        for round in 0..10u8 {
            ks.put("a", value(10 + round))?;
            ks.put([b'b', round], value(50 + round))?;
            store.checkpoint()?;
            ks.compact(..)?;
            store.settle()?;
        }
        assert_eq!(range.next().unwrap()?.1, value(1));
        Ok(())
    });
}

#[test]
fn a_drop_of_a_keyspace_that_was_read_is_noticed() {
    with_store(|store| {
        let (flags, orders) = (store.keyspace("flags")?, store.keyspace("orders")?);
        // The commits before the read point leave footprints, so the validation has no other reason to search.
        let open = store.begin(TransactionOptions::default())?;
        open.put(&orders, "0", "y")?;
        orders.put("2", "y")?;
        let tx = store.begin(TransactionOptions::default())?;
        assert!(tx.get(&flags, "x")?.is_none());
        tx.put(&orders, "1", "y")?;
        store.drop_keyspace("flags")?;
        assert!(matches!(tx.commit(), Err(Error::NoKeyspace { .. })));
        assert!(!orders.contains("1")?);
        Ok(())
    });
}

#[test]
fn a_read_for_update_counts_after_an_own_write() {
    with_store(|store| {
        let ks = store.keyspace("k")?;
        let tx = store.begin(TransactionOptions::default())?;
        tx.put(&ks, "a", "own")?;
        assert_eq!(tx.get_for_update(&ks, "a")?.unwrap(), "own");
        ks.put("a", "other")?;
        assert!(conflicts(tx.commit()));
        Ok(())
    });
}

#[test]
fn a_read_only_transaction_refuses_writes_and_never_conflicts() {
    with_store(|store| {
        let ks = store.keyspace("k")?;
        ks.put("a", "1")?;
        let tx = store.begin(TransactionOptions::new().read_only())?;
        ks.put("a", "2")?;
        assert_eq!(tx.get(&ks, "a")?.unwrap(), "1");
        assert!(matches!(tx.put(&ks, "b", "x"), Err(Error::InvalidArgument { .. })));
        tx.commit()
    });
}

/// A closure that fails with the conflict of another transaction is not run again.
#[test]
fn only_the_own_conflict_is_repeated() {
    with_store(|store| {
        let ks = store.keyspace("k")?;
        let mut runs = 0;
        let error = store.transact(|_| {
            runs += 1;
            let inner = store.begin(TransactionOptions::default())?;
            inner.get(&ks, "a")?;
            inner.put(&ks, "b", "1")?;
            ks.put("a", "2")?;
            inner.commit()
        });
        assert!(matches!(error, Err(Error::Conflict { attempts: 1, .. })) && runs == 1, "{error:?} {runs}");
        Ok(())
    });
}

/// A validation passes ranges in which no key had a value, but finds keys that have got one.
#[test]
fn keys_in_dead_ranges_conflict_when_they_get_values() {
    with_store(|store| {
        let ks = store.keyspace("queue")?;
        let key = |i: u32| i.to_be_bytes();
        (0..3000).try_for_each(|i| ks.put(key(i), "job"))?;
        (0..1000).chain(2000..3000).try_for_each(|i| ks.delete(key(i)))?;
        for round in 0..4 {
            // These scans learn the dead ranges at both ends.
            (0..20).for_each(|_| drop((ks.iter().next(), ks.iter().next_back())));
            for (write, conflict) in [("small", true), ("large", true), ("middle", false), ("delete", true)] {
                let first = 1000 + round * 100;
                let tx = store.begin(TransactionOptions::default())?;
                let mut range = tx.iter(&ks)?;
                assert_eq!(range.next().unwrap()?.0, key(first));
                assert!(*range.next_back().unwrap()?.0 > key(1500)[..]);
                drop(range);
                tx.put(&ks, key(1500), "x")?;
                match write {
                    "small" => ks.put(key(500 + round), "x")?,
                    "large" => ks.put(key(2500 - round), "x")?,
                    "middle" => ks.put(key(1501), "x")?,
                    _ => ks.delete(key(first))?,
                }
                assert_eq!(conflicts(tx.commit()), conflict, "{write}, round {round}");
                match write {
                    "small" => ks.delete(key(500 + round))?,
                    "large" => ks.delete(key(2500 - round))?,
                    "delete" => (first..first + 100).try_for_each(|i| ks.delete(key(i)))?,
                    _ => (),
                }
            }
            if round == 1 {
                store.checkpoint()?;
            }
        }
        Ok(())
    });
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
