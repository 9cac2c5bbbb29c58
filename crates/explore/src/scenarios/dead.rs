//! Scenarios with ranges of keys without values, which scans learn and skip while writers put keys into them.

use std::sync::atomic::{AtomicU64, Ordering::SeqCst};

use pandodb::Keyspace;
use pandodb::device::sim::SimImage;

use super::{ROWS, Twist, body, keyspace, open_image, threads};

/// The claim of [`dead`].
pub const DEAD: &str = "a scan finds every acknowledged key, also in a range in which earlier scans found none";
/// The claim of [`pops`].
pub const POPS: &str = "every row is popped once, and a pop takes no row while a smaller one is acknowledged";

/// The first keys of the keyspace are deleted. Two readers scan over them, one in each direction, and so learn a dead
/// range. A writer puts a key into this range. The canary does not observe this key.
pub fn dead(start: &SimImage, _: Twist) {
    let (_sim, store) = open_image(start, 0);
    let rows = keyspace(&store, ROWS);
    for key in ["a", "b", "c"] {
        rows.delete(key).expect("deleted");
    }
    rows.put("m", "1").expect("written");
    let acknowledged = AtomicU64::new(0);
    let scan = |backward: bool| {
        let before = acknowledged.load(SeqCst);
        let mut range = rows.range("a".."m").keys();
        let found = if backward { range.next_back() } else { range.next() };
        let found = found.transpose().expect("read");
        assert!(before == 0 || found.is_some(), "an acknowledged key is missing");
        assert!(found.is_none_or(|key| key == "b"), "another key");
    };
    threads([
        body(|| {
            rows.put("b", "1").expect("written");
            acknowledged.store(1, SeqCst);
        }),
        body(|| (0..2).for_each(|_| scan(false))),
        body(|| (0..2).for_each(|_| scan(true))),
    ]);
    scan(false);
    scan(true);
    assert_eq!(rows.iter().keys().count(), 2);
    drop(rows);
    store.close().expect("closed");
}

/// Two consumers pop rows while a producer puts rows at the head. The canary uses keys that were fetched earlier,
/// although a smaller key was put.
pub fn pops(start: &SimImage, _: Twist) {
    let (_sim, store) = open_image(start, 0);
    let rows = keyspace(&store, ROWS);
    for key in ["k", "l", "m", "n"] {
        rows.put(key, "1").expect("written");
    }
    let (acknowledged, popped, passed_over) = (AtomicU64::new(0), AtomicU64::new(0), AtomicU64::new(0));
    let pop = |rows: &Keyspace| {
        let before = acknowledged.load(SeqCst);
        let is_taken = passed_over.load(SeqCst) > 0;
        let (key, _) = rows.pop_first().expect("popped")?;
        let bit = 1 << (key[0] - b'a');
        assert_eq!(popped.fetch_or(bit, SeqCst) & bit, 0, "a row was popped twice");
        // If a pop that began after the acknowledgement of "b" took another row, an earlier pop has taken "b".
        if key == "b" {
            assert!(!is_taken, "a smaller row was left");
        } else if before > 0 {
            passed_over.store(1, SeqCst);
        }
        Some(())
    };
    threads([
        body(|| {
            rows.put("b", "1").expect("written");
            acknowledged.store(1, SeqCst);
        }),
        body(|| (0..2).for_each(|_| assert!(pop(&rows).is_some(), "rows are left"))),
        body(|| assert!(pop(&rows).is_some(), "rows are left")),
    ]);
    while pop(&rows).is_some() {}
    let all = ["b", "k", "l", "m", "n"].iter().fold(0, |all, key| all | 1 << (key.as_bytes()[0] - b'a'));
    assert_eq!(popped.load(SeqCst), all, "every row is popped");
    drop(rows);
    store.close().expect("closed");
}
