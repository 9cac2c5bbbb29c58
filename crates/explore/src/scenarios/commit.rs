//! Scenarios with commits that run concurrently with commits and reads. They test group commit and the order in which
//! writes become visible.

use std::sync::atomic::{AtomicU64, Ordering::SeqCst};

use pandodb::device::sim::SimImage;
use pandodb::{Durability, Keyspace, Store};

use super::{ROWS, SUMS, Twist, body, counter, keyspace, number, open_image, threads};

/// The claim of [`read`].
pub const READ: &str = "a read sees a batch completely or not at all, and sees it if it was acknowledged before";
/// The claim of [`commit`].
pub const COMMIT: &str =
    "at every snapshot the counters of all batches sum to zero and no acknowledged batch is missing";

/// Commits one batch, which moves 1 from counter `a` to counter `b` and counts the batch.
fn transfer(store: &Store, sums: &Keyspace, who: &str, durability: Durability) {
    let mut batch = store.batch();
    batch.merge(sums, "a", 1i64.to_le_bytes());
    batch.merge(sums, who, 1i64.to_le_bytes());
    batch.merge(sums, "b", (-1i64).to_le_bytes());
    batch.commit(durability).expect("committed");
}

/// A writer commits one batch of two rows. A reader reads both rows with one `multi_get`. The canary reads them with
/// two `get`s.
pub fn read(start: &SimImage, twist: Twist) {
    let (_sim, store) = open_image(start, 0);
    let rows = keyspace(&store, ROWS);
    let acknowledged = AtomicU64::new(0);
    threads([
        body(|| {
            let mut batch = store.batch();
            batch.put(&rows, "x", "1");
            batch.put(&rows, "y", "1");
            batch.commit(Durability::Buffered).expect("committed");
            acknowledged.store(1, SeqCst);
        }),
        body(|| {
            let before = acknowledged.load(SeqCst);
            let seen = match twist {
                Twist::None => rows.multi_get(&["x", "y"]).expect("read"),
                Twist::Canary => ["x", "y"].map(|key| rows.get(key).expect("read")).to_vec(),
            };
            assert_eq!(seen[0].is_some(), seen[1].is_some(), "half a batch");
            assert!(before == 0 || seen[0].is_some(), "an acknowledged batch is missing");
        }),
    ]);
    store.close().expect("closed");
}

/// Two writers commit two batches each; one of the writers commits with `Synced`. A reader takes snapshots and reads
/// the counters. The canary reads the counters at different seqnos.
pub fn commit(start: &SimImage, twist: Twist) {
    let (_sim, store) = open_image(start, 0);
    let sums = keyspace(&store, SUMS);
    let acknowledged = [AtomicU64::new(0), AtomicU64::new(0)];
    let writer = |who: usize, durability: Durability| {
        let (store, sums, acknowledged) = (&store, &sums, &acknowledged);
        body(move || {
            for _ in 0..2 {
                transfer(store, sums, ["w0", "w1"][who], durability);
                acknowledged[who].fetch_add(1, SeqCst);
            }
        })
    };
    let reader = body(|| {
        for _ in 0..2 {
            let before = [0, 1].map(|who: usize| acknowledged[who].load(SeqCst) as i64);
            let snapshot = store.snapshot();
            let at = sums.at(&snapshot);
            let a = counter(&at, "a");
            let b = match twist {
                Twist::None => counter(&at, "b"),
                Twist::Canary => number(sums.get("b").expect("read").as_deref()),
            };
            let seen = ["w0", "w1"].map(|who| counter(&at, who));
            assert_eq!(a + b, 0, "a half batch at {}", snapshot.seqno());
            assert_eq!(a, seen[0] + seen[1], "a lost or doubled merge at {}", snapshot.seqno());
            assert!((0..2).all(|who| seen[who] >= before[who]), "acknowledged {before:?}, seen {seen:?}");
        }
    });
    threads([writer(0, Durability::Synced), writer(1, Durability::Buffered), reader]);
    let at = sums.at(&store.snapshot());
    assert_eq!(["a", "b", "w0", "w1"].map(|key| counter(&at, key)), [4, -4, 2, 2]);
    store.close().expect("closed");
}
