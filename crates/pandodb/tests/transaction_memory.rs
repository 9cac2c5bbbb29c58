//! The memory for which transactions are charged.

use pandodb::{Error, Isolation, Store, TransactionOptions};

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
