//! Scenario: concurrent threads read a store, write to it, take a checkpoint and close it.

use std::sync::Mutex;

use pandodb::device::sim::SimImage;
use pandodb::{Durability, Error};

use super::{ROWS, Twist, body, keyspace, open_image, read_all, threads, verify};

/// The claim of [`close`].
pub const CLOSE: &str =
    "a close ends all concurrent operations, and every acknowledged write survives a power cut after the close";

/// Three of these values fill a memtable.
const VALUE: [u8; 1400] = [b'v'; 1400];

/// Whether an error reports that the store is closed.
fn closed(error: &Error) -> bool {
    matches!(error, Error::Closed)
}

/// Two writers, a checkpoint, a reader that scans a snapshot, two workers, and a concurrent close. The canary counts a
/// write as acknowledged before the store has acknowledged it.
pub fn close(start: &SimImage, twist: Twist) {
    let (sim, store) = open_image(start, 2);
    let rows = keyspace(&store, ROWS);
    let acknowledged = Mutex::new(Vec::new());
    let writer = |who: u8, durability: Durability| {
        let (rows, acknowledged) = (&rows, &acknowledged);
        body(move || {
            for i in 0..3 {
                let key = vec![who, i];
                if twist == Twist::Canary {
                    acknowledged.lock().expect("sound").push(key.clone());
                }
                match rows.put_with(&key, VALUE, durability) {
                    Ok(()) => acknowledged.lock().expect("sound").push(key),
                    Err(e) => return assert!(closed(&e), "{e}"),
                }
            }
        })
    };
    let copier = body(|| {
        let before: Vec<Vec<u8>> = acknowledged.lock().expect("sound").clone();
        let snapshot = store.snapshot();
        let copy = match read_all(rows.at(&snapshot).iter()) {
            Ok(copy) => copy,
            Err(e) => return assert!(closed(&e), "{e}"),
        };
        assert!(
            twist == Twist::Canary || before.iter().all(|key| copy.contains_key(key)),
            "an acknowledged write is not in the snapshot"
        );
    });
    let checkpointer = body(|| match store.checkpoint() {
        Ok(()) => {}
        Err(e) => assert!(closed(&e), "{e}"),
    });
    let closer = body(|| store.clone().close().expect("closed"));
    threads([writer(1, Durability::Buffered), writer(2, Durability::Synced), copier, checkpointer, closer]);
    drop((rows, store));
    let (_sim, store) = open_image(&sim.durable_image(), 0);
    let found = read_all(keyspace(&store, ROWS).iter()).expect("read");
    for key in acknowledged.lock().expect("sound").iter() {
        assert!(found.get(key).is_some_and(|value| *value == VALUE), "{key:?} was acknowledged but is lost");
    }
    verify(&store);
}
