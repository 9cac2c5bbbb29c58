//! Scenario: readers run concurrently with a close. After the close, the store is opened again, and its pages are
//! overwritten.

use std::sync::Arc;

use pandodb::device::sim::{SimDevice, SimImage};
use pandodb::{Error, Result, Value};

use super::{ROWS, Twist, body, create, keyspace, open, open_image, threads, verify};

/// The claim of [`read`].
pub const READ: &str =
    "a read concurrent with a close returns the right value or Error::Closed, whatever the next opening writes";

const KEYS: u8 = 6;

/// Returns a store whose rows are all in a run.
pub fn prepare() -> SimImage {
    let sim = SimDevice::new(7);
    let store = open(&sim, 0).expect("a new store");
    create(&store);
    let rows = keyspace(&store, ROWS);
    (0..KEYS).for_each(|key| rows.put([key], [b'a'; 300]).expect("a put"));
    store.settle().expect("settled");
    store.close().expect("closed");
    sim.image()
}

/// Checks the result of a read.
fn judge(answer: Result<Option<Value>>) {
    match answer {
        Ok(value) => assert_eq!(value.expect("it is there"), [b'a'; 300]),
        Err(Error::Closed) => {}
        Err(e) => panic!("a read of a sound store failed: {e}"),
    }
}

/// Opens the store and overwrites its pages with other contents.
fn rewrite(sim: &Arc<SimDevice>) {
    let store = open(sim, 0).expect("opened after the close");
    let rows = keyspace(&store, ROWS);
    for round in 0..2 {
        (0..KEYS).for_each(|key| rows.put([key], [b'b' + round; 300]).expect("a put"));
        store.settle().expect("settled");
    }
    verify(&store);
}

/// Two readers read while a third thread closes the store, opens it again and overwrites its pages. The canary: a read
/// that ends after the close returns the data that it has read, although it should return an error.
pub fn read(start: &SimImage, _twist: Twist) {
    let (sim, store) = open_image(start, 0);
    let rows = keyspace(&store, ROWS);
    let getter = body(|| (0..2).for_each(|key| judge(rows.get([key]))));
    let scanner = body(|| {
        for entry in rows.iter().rev().take(2) {
            judge(entry.map(|(_, value)| Some(value)));
        }
    });
    let closer = body(|| {
        store.clone().close().expect("closed");
        rewrite(&sim);
    });
    threads([getter, scanner, closer]);
    assert!(matches!(rows.get([0]), Err(Error::Closed)));
}
