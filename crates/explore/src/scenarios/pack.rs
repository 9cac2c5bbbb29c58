//! Scenarios in which writers seal memtables, workers pack them, and readers read concurrently.

use std::sync::atomic::{AtomicBool, Ordering::SeqCst};

use pandodb::device::sim::SimImage;
use pandodb::{Durability, Error, Keyspace, Store};

use super::{ROWS, SUMS, Twist, body, counter, keyspace, number, open_image, read_all, threads, verify};

/// The claim of [`pack`].
pub const PACK: &str = "while memtables are sealed, packed and attached, a reader finds each message exactly once";
/// The claim of [`full`].
pub const FULL: &str = "packs that fail on a full disk are retried in order; nothing is lost or applied twice";

/// The claim of [`newest`].
pub const NEWEST: &str = "a read without a snapshot finds a value that was the newest at some moment of the read: never \
                          none, and never an older one than the read before";

/// The claim of [`folds`].
pub const FOLDS: &str = "a counter never falls: a fold that one reader leaves serves another reader only in the right \
                         state, while merges and packs run concurrently";

/// Three of these values fill a memtable.
const PADDING: [u8; 1500] = [b'p'; 1500];

/// Adds 1 to `a`, subtracts 1 from `b`, and writes a row that fills a third of a memtable.
fn transfer(store: &Store, i: u8) -> Result<(), Error> {
    let (rows, sums) = (keyspace(store, ROWS), keyspace(store, SUMS));
    let mut batch = store.batch();
    batch.merge(&sums, "a", 1i64.to_le_bytes());
    batch.put(&rows, [b'r', i], PADDING);
    batch.merge(&sums, "b", (-1i64).to_le_bytes());
    batch.commit(Durability::Buffered)
}

/// Compares the counters with the rows at one snapshot.
fn look(store: &Store, twist: Twist) {
    let (rows, sums) = (keyspace(store, ROWS), keyspace(store, SUMS));
    let snapshot = store.snapshot();
    let at = sums.at(&snapshot);
    let (a, b) = (counter(&at, "a"), counter(&at, "b"));
    let found = match twist {
        Twist::None => read_all(rows.at(&snapshot).iter()),
        Twist::Canary => read_all(rows.iter()),
    };
    assert_eq!(a + b, 0, "half a batch at {}", snapshot.seqno());
    assert_eq!(found.expect("read").len() as i64, a, "rows and counters at {}", snapshot.seqno());
}

fn finish(store: Store, sim: &std::sync::Arc<pandodb::device::sim::SimDevice>, rows: i64) {
    store.settle().expect("settled");
    let totals = |sums: &Keyspace| ["a", "b"].map(|key| number(sums.get(key).expect("read").as_deref()));
    assert_eq!(totals(&keyspace(&store, SUMS)), [rows, -rows]);
    verify(&store);
    store.close().expect("closed");
    let store = super::open(sim, 0).expect("it opens again");
    assert_eq!(totals(&keyspace(&store, SUMS)), [rows, -rows], "after reopening");
    assert_eq!(read_all(keyspace(&store, ROWS).iter()).expect("read").len() as i64, rows);
}

/// One writer, whose writes cause two seals, runs concurrently with two workers and one reader. The canary reads rows
/// and counters at different seqnos.
pub fn pack(start: &SimImage, twist: Twist) {
    let (sim, store) = open_image(start, 2);
    let reader = body(|| (0..2).for_each(|_| look(&store, twist)));
    threads([body(|| (0..5).for_each(|i| transfer(&store, i).expect("committed"))), reader]);
    finish(store, &sim, 5);
}

/// The disk becomes full while workers pack, and has space again later. A refused batch must have no effect. The canary
/// assumes that no batch is refused.
pub fn full(start: &SimImage, twist: Twist) {
    let (sim, store) = open_image(start, 2);
    let taken = AtomicBool::new(false);
    let written = std::sync::atomic::AtomicI64::new(0);
    threads([
        body(|| {
            for i in 0..7 {
                match transfer(&store, i) {
                    Ok(()) => drop(written.fetch_add(1, SeqCst)),
                    Err(Error::DiskFull { .. }) if twist == Twist::None => {}
                    Err(e) => panic!("{e}"),
                }
            }
            taken.store(true, SeqCst);
        }),
        body(|| {
            sim.set_byte_budget(Some(sim.occupied()));
            while !taken.load(SeqCst) {
                shuttle::thread::yield_now();
            }
        }),
        body(|| {
            (0..2).for_each(|_| look(&store, Twist::None));
        }),
    ]);
    sim.set_byte_budget(None);
    // `settle` reports an earlier failure of background work until some background work has succeeded again.
    let mut settled = store.settle();
    while let Err(Error::DiskFull { .. }) = settled {
        settled = store.settle();
    }
    settled.expect("settled");
    finish(store, &sim, written.load(SeqCst));
}

/// A writer adds to a counter until memtables are packed. Two readers read the counter and leave folds for each other,
/// one of them at snapshots. The canary expects successive reads to return the same value.
pub fn folds(start: &SimImage, twist: Twist) {
    let (_sim, store) = open_image(start, 1);
    let sums = keyspace(&store, SUMS);
    let newest = || number(sums.get("a").expect("read").as_deref());
    let check = |before: i64, now: i64| {
        assert!(if twist == Twist::Canary { before == now } else { before <= now }, "{now} after {before}");
        now
    };
    threads([
        body(|| (0..5).for_each(|i| transfer(&store, i).expect("committed"))),
        body(|| {
            (0..4).fold(0, |before, _| check(before, newest()));
        }),
        body(|| {
            let snapshot = store.snapshot();
            let at = || counter(&sums.at(&snapshot), "a");
            let (then, now) = (at(), newest());
            assert!(then <= now && at() == then, "a snapshot changed from {then} to {}, newest {now}", at());
        }),
    ]);
    assert_eq!(newest(), 5);
    drop(sums);
    store.close().expect("closed");
}

/// A writer overwrites one key until memtables are packed. Packing drops the older versions of the key. A reader reads
/// the newest value without a registered snapshot. The canary expects successive reads to return the same value.
pub fn newest(start: &SimImage, twist: Twist) {
    let (_sim, store) = open_image(start, 1);
    let rows = keyspace(&store, ROWS);
    let value = |i: u8| [&[i][..], &PADDING].concat();
    rows.put("key", value(0)).expect("written");
    let version = || rows.get("key").expect("read").expect("it was never deleted")[0];
    threads([
        body(|| (1..6).for_each(|i| rows.put("key", value(i)).expect("written"))),
        body(|| {
            let mut before = version();
            for _ in 0..3 {
                let now = version();
                assert!(if twist == Twist::Canary { before == now } else { before <= now }, "{now} after {before}");
                before = now;
            }
        }),
    ]);
    assert_eq!(version(), 5);
    drop(rows);
    store.close().expect("closed");
}
