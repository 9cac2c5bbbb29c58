//! Two scenarios. In the first, compactions and root swaps run concurrently with readers of older views and with
//! checkpoints. In the second, a keyspace is dropped.

use pandodb::device::sim::{SimDevice, SimImage};
use pandodb::{Durability, Error};

use super::{ROWS, Rows, SUMS, Twist, body, keyspace, open, open_image, prepare_empty, read_all, threads, verify};

/// The claim of [`swap`].
pub const SWAP: &str = "a snapshot and an open scan return the same rows during compactions, checkpoints and writes";
/// The claim of [`drop_keyspace`].
pub const DROP: &str =
    "a read of a keyspace that is being dropped returns all rows or an error; other keyspaces keep their rows";

/// Number of rows in the store at the start. The rows are in several runs.
const START: u8 = 9;

/// A store with a few runs in each of two keyspaces.
pub fn prepare() -> SimImage {
    let sim = SimDevice::from_image(&prepare_empty(), 7);
    let store = open(&sim, 0).expect("opened");
    for i in 0..START {
        let mut batch = store.batch();
        batch.put(&keyspace(&store, ROWS), [i], [i; 1400]);
        batch.merge(&keyspace(&store, SUMS), [i], 1i64.to_le_bytes());
        batch.commit(Durability::Buffered).expect("committed");
    }
    store.close().expect("closed");
    sim.image()
}

/// Five threads run concurrently: a reader at a snapshot, which also continues a scan; a writer that overwrites and
/// deletes; a compaction; a checkpoint; and one worker. The canary wrongly expects that the newest rows do not change
/// either.
pub fn swap(start: &SimImage, twist: Twist) {
    let (sim, store) = open_image(start, 1);
    let rows = keyspace(&store, ROWS);
    let snapshot = store.snapshot();
    let expected = read_all(rows.at(&snapshot).iter()).expect("read");
    assert_eq!(expected.len(), usize::from(START));
    let mut scan = rows.at(&snapshot).iter();
    threads([
        body(|| {
            let first: Vec<_> = scan.by_ref().take(3).collect();
            let found = match twist {
                Twist::None => read_all(rows.at(&snapshot).iter()),
                Twist::Canary => read_all(rows.iter()),
            };
            assert!(found.expect("read") == expected, "the rows at the snapshot changed");
            let all = first.into_iter().chain(scan);
            let all: Rows =
                all.map(|entry| entry.map(|(key, value)| (key.to_vec(), value.to_vec())).expect("read")).collect();
            assert!(all == expected, "the rows of the scan changed");
        }),
        body(|| {
            rows.put([0], "new").expect("written");
            rows.delete_range([2]..[4]).expect("deleted");
        }),
        body(|| rows.compact(..).expect("compacted")),
        body(|| store.checkpoint().expect("a checkpoint")),
    ]);
    assert!(read_all(rows.at(&snapshot).iter()).expect("read") == expected, "the rows at the snapshot changed later");
    drop(snapshot);
    assert_eq!(read_all(rows.iter()).expect("read").len(), usize::from(START) - 2);
    store.settle().expect("settled");
    verify(&store);
    drop(rows);
    store.close().expect("closed");
    let store = open(&sim, 0).expect("it opens again");
    assert_eq!(read_all(keyspace(&store, ROWS).iter()).expect("read").len(), usize::from(START) - 2);
}

/// One thread drops a keyspace. At the same time, a second thread reads it, a third writes to it, and a fourth compacts
/// it. The canary wrongly expects that the read always succeeds.
pub fn drop_keyspace(start: &SimImage, twist: Twist) {
    let (sim, store) = open_image(start, 1);
    let rows = keyspace(&store, ROWS);
    let gone = |e: &Error| twist == Twist::None && matches!(e, Error::NoKeyspace { .. });
    threads([
        body(|| store.drop_keyspace(ROWS).expect("dropped")),
        body(|| match read_all(rows.iter()) {
            Ok(found) => assert!(found.len() >= usize::from(START), "{} rows", found.len()),
            Err(e) => assert!(gone(&e), "{e}"),
        }),
        body(|| match rows.put([100], [1; 1400]) {
            Ok(()) => {}
            Err(e) => assert!(matches!(e, Error::NoKeyspace { .. }), "{e}"),
        }),
        body(|| match rows.compact(..) {
            Ok(()) => {}
            Err(e) => assert!(matches!(e, Error::NoKeyspace { .. }), "{e}"),
        }),
    ]);
    drop(rows);
    assert_eq!(read_all(keyspace(&store, SUMS).iter()).expect("read").len(), usize::from(START));
    store.settle().expect("settled");
    verify(&store);
    store.close().expect("closed");
    let store = open(&sim, 0).expect("it opens again");
    assert!(store.open_keyspace(ROWS).expect("asked").is_none());
    assert_eq!(read_all(keyspace(&store, SUMS).iter()).expect("read").len(), usize::from(START));
}
