//! Scenarios with transactions. Each of them runs beside other transactions or beside writes that are in flight, and
//! checks that the results agree with an order of the commits.

use std::sync::atomic::{AtomicI64, AtomicU64, Ordering::SeqCst};

use pandodb::device::sim::SimImage;
use pandodb::{Durability, Error, Isolation, Result, Store, TransactionOptions};

use super::{ROWS, SUMS, Twist, body, keyspace, number, open, open_image, threads, verify};

/// The claim of [`skew`].
pub const SKEW: &str = "of two serialisable transactions that each read what the other one writes, one has a conflict";
/// The claim of [`update`].
pub const UPDATE: &str = "a counter that transactions read and put counts every commit";
/// The claim of [`insert`].
pub const INSERT: &str = "a transaction that finds no value and puts one comes before a concurrent put";
/// The claim of [`range_delete`].
pub const RANGE_DELETE: &str = "a transaction that finds a value and puts another one comes before a concurrent range \
                                delete";
/// The claim of [`phantom`].
pub const PHANTOM: &str = "of two transactions that find a range empty and put a key into it, one has a conflict";
/// The claim of [`merges`].
pub const MERGES: &str = "merges of one counter never conflict under snapshot isolation, also while they are packed";
/// The claim of [`packed`].
pub const PACKED: &str = "a transaction finds a change of what it has read, wherever a pack moves the change";
/// The claim of [`load`].
pub const LOAD: &str = "a transaction that finds no value and puts one comes before a concurrent sorted load";
/// The claim of [`drop_keyspace`].
pub const DROP: &str = "a transaction beside the drop of its keyspace is committed or returns an error, and ends";
/// The claim of [`close`].
pub const CLOSE: &str = "a transaction beside a close is durable as a whole if it was acknowledged, and never in part";

/// The claim of [`fetch`].
pub const FETCH: &str = "updates of one key by several threads are all counted";
/// The claim of [`batch`].
pub const BATCH: &str = "a transaction that finds no value and puts one comes before a concurrent batch";

fn options(isolation: Isolation) -> TransactionOptions {
    TransactionOptions::new().isolation(isolation).durability(Durability::Buffered)
}

/// Whether a transaction was committed.
fn is_committed(result: Result<()>) -> bool {
    match result {
        Ok(()) => true,
        Err(Error::Conflict { .. }) => false,
        Err(other) => panic!("{other}"),
    }
}

/// The first transaction reads and then writes. The second one writes first, and chooses its read point at its read.
/// The canary uses snapshot isolation.
pub fn skew(start: &SimImage, twist: Twist) {
    let (_sim, store) = open_image(start, 0);
    let isolation = if twist == Twist::Canary { Isolation::Snapshot } else { Isolation::Serializable };
    let committed = AtomicU64::new(0);
    let first = body(|| {
        let rows = keyspace(&store, ROWS);
        let tx = store.begin(options(isolation)).expect("begun");
        if tx.get(&rows, "b").expect("read").is_none() {
            tx.put(&rows, "a", "1").expect("put");
            committed.fetch_add(u64::from(is_committed(tx.commit())), SeqCst);
        }
    });
    let second = body(|| {
        let rows = keyspace(&store, ROWS);
        let tx = store.begin_at_first_read(options(isolation)).expect("begun");
        tx.put(&rows, "b", "1").expect("put");
        if tx.get(&rows, "a").expect("read").is_none() {
            committed.fetch_add(u64::from(is_committed(tx.commit())), SeqCst);
        }
    });
    threads([first, second]);
    assert_eq!(committed.load(SeqCst), 1, "both or none were committed");
    store.close().expect("closed");
}

/// The canary: a transaction takes all drawn tickets for applied.
pub fn update(start: &SimImage, _: Twist) {
    let (_sim, store) = open_image(start, 0);
    let committed = AtomicI64::new(0);
    let client = || {
        body(|| {
            let sums = keyspace(&store, SUMS);
            for _ in 0..2 {
                let tx = store.begin(options(Isolation::Serializable)).expect("begun");
                let n = number(tx.get(&sums, "n").expect("read").as_deref());
                tx.put(&sums, "n", (n + 1).to_le_bytes()).expect("put");
                committed.fetch_add(i64::from(is_committed(tx.commit())), SeqCst);
            }
        })
    };
    threads([client(), client(), client()]);
    let found = number(keyspace(&store, SUMS).get("n").expect("read").as_deref());
    assert_eq!(found, committed.load(SeqCst), "a lost update");
    assert!(found > 0, "the first commit has no conflict");
    store.close().expect("closed");
}

/// Runs a transaction that reads `c` and puts `tx` if the value is `expected`, beside another write of `c`. Returns
/// whether it was committed with this put, and the value at the end.
fn put_beside(store: &Store, expected: Option<&str>, other: impl FnOnce() + Send) -> (bool, Option<Vec<u8>>) {
    let committed = AtomicU64::new(0);
    let client = body(|| {
        let rows = keyspace(store, ROWS);
        let tx = store.begin(options(Isolation::Serializable)).expect("begun");
        let found = tx.get(&rows, "c").expect("read");
        if found.as_deref() == expected.map(str::as_bytes) {
            tx.put(&rows, "c", "tx").expect("put");
            committed.fetch_add(u64::from(is_committed(tx.commit())), SeqCst);
        }
    });
    threads([client, body(other)]);
    let last = keyspace(store, ROWS).get("c").expect("read");
    (committed.load(SeqCst) == 1, last.map(|value| value.to_vec()))
}

/// The canary: the footprint of a put lacks its key.
pub fn insert(start: &SimImage, _: Twist) {
    let (_sim, store) = open_image(start, 0);
    let (_, last) = put_beside(&store, None, || keyspace(&store, ROWS).put("c", "put").expect("written"));
    assert_eq!(last.as_deref(), Some(&b"put"[..]), "the put comes last, or the transaction finds its value");
    store.close().expect("closed");
}

/// The canary: updates are not validated.
pub fn fetch(start: &SimImage, _: Twist) {
    let (_sim, store) = open_image(start, 0);
    let client = || {
        body(|| {
            let sums = keyspace(&store, SUMS);
            for _ in 0..2 {
                let next = |old: Option<&[u8]>| Some((number(old) + 1).to_le_bytes());
                sums.fetch_update("n", next).expect("updated");
            }
        })
    };
    threads([client(), client()]);
    assert_eq!(number(keyspace(&store, SUMS).get("n").expect("read").as_deref()), 4, "a lost update");
    store.close().expect("closed");
}

/// The canary: the filter in the footprint of the batch has none of its keys.
pub fn batch(start: &SimImage, _: Twist) {
    let (_sim, store) = open_image(start, 0);
    let (_, last) = put_beside(&store, None, || {
        let (rows, mut batch) = (keyspace(&store, ROWS), store.batch());
        ["a", "b", "c", "d", "e"].into_iter().for_each(|key| batch.put(&rows, key, "batch"));
        batch.commit(Durability::Buffered).expect("written");
    });
    assert_eq!(last.as_deref(), Some(&b"batch"[..]), "the batch comes last, or the transaction finds its value");
    store.close().expect("closed");
}

/// The canary: the footprint of a range delete counts as a complete list of keys.
pub fn range_delete(start: &SimImage, _: Twist) {
    let (_sim, store) = open_image(start, 0);
    keyspace(&store, ROWS).put("c", "old").expect("written");
    let delete = || keyspace(&store, ROWS).delete_range("a".."e").expect("deleted");
    let (_, last) = put_beside(&store, Some("old"), delete);
    assert_eq!(last, None, "the delete comes last, or the transaction does not find the value");
    store.close().expect("closed");
}

/// The canary: the gap behind the last row does not count as read.
pub fn phantom(start: &SimImage, _: Twist) {
    let (_sim, store) = open_image(start, 0);
    let committed = AtomicU64::new(0);
    let client = |mine: &'static str, backward: bool| {
        let (store, committed) = (&store, &committed);
        body(move || {
            let rows = keyspace(store, ROWS);
            let tx = store.begin(options(Isolation::Serializable)).expect("begun");
            let mut range = tx.range(&rows, "a".."m").expect("begun");
            let row = if backward { range.next_back() } else { range.next() };
            let is_empty = row.transpose().expect("read").is_none();
            // As long as the iterator exists, the whole range counts as read.
            drop(range);
            if is_empty {
                tx.put(&rows, mine, "1").expect("put");
                committed.fetch_add(u64::from(is_committed(tx.commit())), SeqCst);
            }
        })
    };
    threads([client("b", false), client("c", true)]);
    assert_eq!(committed.load(SeqCst), 1, "both or none were committed");
    assert_eq!(keyspace(&store, ROWS).iter().count(), 1);
    store.close().expect("closed");
}

/// Two transactions and a plain write merge, while another thread packs and compacts. The canary: a compaction turns
/// operands that are newer than a read point into a put.
pub fn merges(start: &SimImage, _: Twist) {
    let (_sim, store) = open_image(start, 0);
    let merge = || {
        let sums = keyspace(&store, SUMS);
        let tx = store.begin(options(Isolation::Snapshot)).expect("begun");
        tx.merge(&sums, "n", 1i64.to_le_bytes()).expect("merged");
        tx.commit().expect("merges do not conflict");
    };
    threads([
        body(merge),
        body(merge),
        body(|| keyspace(&store, SUMS).merge("n", 1i64.to_le_bytes()).expect("merged")),
        body(|| {
            store.pack().expect("packed");
            keyspace(&store, SUMS).compact(..).expect("compacted");
        }),
    ]);
    assert_eq!(number(keyspace(&store, SUMS).get("n").expect("read").as_deref()), 3);
    verify(&store);
    store.close().expect("closed");
}

/// The canary: changes of a key are not looked for in the index.
pub fn packed(start: &SimImage, _: Twist) {
    let (_sim, store) = open_image(start, 1);
    let (_, last) = put_beside(&store, None, || {
        keyspace(&store, ROWS).put("c", "put").expect("written");
        store.pack().expect("packed");
    });
    assert_eq!(last.as_deref(), Some(&b"put"[..]), "the put comes last, or the transaction finds its value");
    store.settle().expect("settled");
    verify(&store);
    store.close().expect("closed");
}

/// The canary: a transaction does not notice a load that was attached after its search.
pub fn load(start: &SimImage, _: Twist) {
    let (_sim, store) = open_image(start, 1);
    let (_, last) = put_beside(&store, None, || {
        let loaded = keyspace(&store, ROWS).load_sorted(["a", "c", "e"].map(|key| (key, "load")));
        assert_eq!(loaded.expect("loaded"), 3);
    });
    assert_eq!(last.as_deref(), Some(&b"load"[..]), "the load comes last, or the transaction finds its value");
    verify(&store);
    store.close().expect("closed");
}

/// The transaction finds no doubt in its first search, so it does not look for `c` there. The canary: it then takes the
/// changes up to this search for known, although a load became visible during the search.
pub fn load_late(start: &SimImage, _: Twist) {
    let (_sim, store) = open_image(start, 0);
    // The search of the second transaction ends at the footprint of the first one, instead of doubting everything.
    let begun = |key: &str| {
        let rows = keyspace(&store, ROWS);
        let tx = store.begin(options(Isolation::Serializable)).expect("begun");
        assert!(tx.get(&rows, key).expect("read").is_none());
        tx.put(&rows, key, "tx").expect("put");
        tx
    };
    begun("z").commit().expect("committed");
    let tx = begun("c");
    let client = body(|| {
        is_committed(tx.commit());
    });
    let load = body(|| {
        let loaded = keyspace(&store, ROWS).load_sorted(["a", "c"].map(|key| (key, "load")));
        assert_eq!(loaded.expect("loaded"), 2);
    });
    threads([client, load]);
    let last = keyspace(&store, ROWS).get("c").expect("read").map(|value| value.to_vec());
    assert_eq!(last.as_deref(), Some(&b"load"[..]), "the load comes last, or the transaction finds its value");
    verify(&store);
    store.close().expect("closed");
}

/// The canary wrongly expects that every transaction is committed.
pub fn drop_keyspace(start: &SimImage, twist: Twist) {
    let (sim, store) = open_image(start, 1);
    let attempt = || -> Result<()> {
        let (rows, sums) = (keyspace(&store, SUMS), store.open_keyspace(ROWS)?);
        let Some(gone) = sums else { return Err(Error::NoKeyspace { name: ROWS.into() }) };
        let tx = store.begin_at_first_read(options(Isolation::Serializable))?;
        let found = tx.get(&gone, "c")?;
        assert!(found.is_none(), "an empty keyspace");
        tx.merge(&rows, "n", 1i64.to_le_bytes())?;
        tx.put(&gone, "c", "tx")?;
        tx.commit()
    };
    let committed = AtomicU64::new(0);
    threads([
        body(|| match attempt() {
            Ok(()) => committed.store(1, SeqCst),
            Err(e) => assert!(twist == Twist::None && matches!(e, Error::NoKeyspace { .. }), "{e}"),
        }),
        body(|| store.drop_keyspace(ROWS).expect("dropped")),
    ]);
    let merged = || number(keyspace(&store, SUMS).get("n").expect("read").as_deref());
    assert_eq!(merged() as u64, committed.load(SeqCst), "the merge is in the same transaction");
    assert!(store.open_keyspace(ROWS).expect("asked").is_none());
    verify(&store);
    store.close().expect("closed");
    drop(open(&sim, 0).expect("it opens again"));
}

/// The canary wrongly expects that every transaction is committed.
pub fn close(start: &SimImage, twist: Twist) {
    let (sim, store) = open_image(start, 0);
    let attempt = |store: &Store| -> Result<()> {
        let (rows, sums) = (store.open_keyspace(ROWS)?.expect("there"), store.open_keyspace(SUMS)?.expect("there"));
        let tx = store.begin(options(Isolation::Serializable))?;
        let found = tx.get(&sums, "n")?;
        tx.put(&rows, "c", "tx")?;
        tx.put(&sums, "n", (number(found.as_deref()) + 1).to_le_bytes())?;
        tx.commit()
    };
    let committed = AtomicU64::new(0);
    threads([
        body(|| match attempt(&store) {
            Ok(()) => committed.store(1, SeqCst),
            Err(e) => assert!(twist == Twist::None && matches!(e, Error::Closed), "{e}"),
        }),
        body(|| store.clone().close().expect("closed")),
    ]);
    drop(store);
    let store = open(&sim, 0).expect("it opens again");
    let row = keyspace(&store, ROWS).get("c").expect("read").is_some();
    let sum = number(keyspace(&store, SUMS).get("n").expect("read").as_deref());
    assert_eq!(sum, i64::from(row), "a part of a transaction");
    assert!(row || committed.load(SeqCst) == 0, "an acknowledged transaction is lost");
    store.close().expect("closed");
}
