//! Scenarios for an index to which commits write directly: its leaves in memory, and the jobs that write them to disk.
//!
//! In a build for the explorer, the leaves take little memory before the index folds them or removes them from memory.

use std::sync::atomic::{AtomicU8, AtomicU64, Ordering::SeqCst};

use pandodb::device::sim::{SimDevice, SimImage};
use pandodb::{Durability, Keyspace, Store};
use shuttle::rand::{Rng, thread_rng};

use super::{ROWS, SUMS, Twist, body, keyspace, number, open, open_image, prepare_empty, threads, verify};

/// The claim of [`cut`].
pub const CUT: &str = "a checkpoint and the log behind it have every commit once, although commits change the leaves \
                       that the checkpoint writes";
/// The claim of [`cool`].
pub const COOL: &str = "a get and a scan find every acknowledged value, while leaves are written and leave memory";
/// The claim of [`fold`].
pub const FOLD: &str = "a read without a snapshot finds a value that was the newest at some moment of the read, while \
                        commits fold the versions of the key";
/// The claim of [`delete`].
pub const DELETE: &str = "a delete hides a put with a smaller seqno, although the put is applied after a commit has \
                          folded the leaf with the delete";
/// The claim of [`values`].
pub const VALUES: &str = "a large value stays allocated while a message in memory or on disk refers to it, and is freed \
                          after that";

/// The number of rows that a scenario starts with. Each has a leaf of its own.
const START: u8 = 8;
/// The number of rows that two writers overwrite in [`cool`].
const BUSY: u8 = 6;
/// A part of a value that nearly fills a leaf.
const PADDING: [u8; 440] = [b'p'; 440];
/// A large value without its first byte.
static LARGE: [u8; 17_000] = [b'l'; 17_000];

fn value(version: u8) -> Vec<u8> {
    [&[version][..], &PADDING].concat()
}

/// Returns a closed store with rows in several leaves on disk.
pub fn prepare() -> SimImage {
    let sim = SimDevice::from_image(&prepare_empty(), 7);
    let store = open(&sim, 0).expect("opened");
    let rows = keyspace(&store, ROWS);
    (0..START).for_each(|i| rows.put([i], value(0)).expect("written"));
    drop(rows);
    store.close().expect("closed");
    sim.image()
}

/// Adds 1 to the counter of a writer, subtracts 1 from a counter of both writers, and puts a row.
fn add(store: &Store, writer: u8, version: u8) {
    let (rows, sums) = (keyspace(store, ROWS), keyspace(store, SUMS));
    let mut batch = store.batch();
    batch.merge(&sums, [writer], 1i64.to_le_bytes());
    batch.merge(&sums, "both", (-1i64).to_le_bytes());
    batch.put(&rows, [writer], [version; 16]);
    batch.commit(Durability::Buffered).expect("committed");
}

/// Checks that a store has all commits of [`cut`].
fn check_all(store: &Store, each: u8) {
    let (rows, sums) = (keyspace(store, ROWS), keyspace(store, SUMS));
    let sum = |key: &[u8]| number(sums.get(key).expect("read").as_deref());
    let each_sum = i64::from(each);
    assert_eq!([sum(&[0]), sum(&[1]), sum(b"both")], [each_sum, each_sum, -2 * each_sum], "the counters");
    for writer in [0, 1] {
        assert_eq!(rows.get([writer]).expect("read").as_deref(), Some(&[each; 16][..]), "the row of writer {writer}");
    }
    assert_eq!(rows.iter().count(), usize::from(START), "rows");
}

/// Two writers commit to the same leaves while a checkpoint is taken. After that the process is killed, and the store
/// is opened from the checkpoint and the log. The canary: folds do not keep the state that the checkpoint writes.
pub fn cut(start: &SimImage, _: Twist) {
    const EACH: u8 = 4;
    let (sim, store) = open_image(start, 0);
    let writer = |writer: u8| {
        let store = &store;
        body(move || (1..=EACH).for_each(|version| add(store, writer, version)))
    };
    threads([writer(0), writer(1), body(|| store.checkpoint().expect("a checkpoint"))]);
    check_all(&store, EACH);
    let killed = sim.image();
    store.close().expect("closed");
    for image in [killed, sim.image()] {
        let (_sim, store) = open_image(&image, 0);
        check_all(&store, EACH);
        verify(&store);
        store.close().expect("closed");
    }
}

/// The acknowledged versions of rows.
struct Acknowledged([AtomicU8; BUSY as usize]);

impl Acknowledged {
    fn now(&self) -> Vec<u8> {
        self.0.iter().map(|version| version.load(SeqCst)).collect()
    }

    /// Writes the next version of a row.
    fn write(&self, rows: &Keyspace, i: u8) {
        let version = &self.0[usize::from(i)];
        let next = version.load(SeqCst) + 1;
        rows.put([i], value(next)).expect("written");
        version.store(next, SeqCst);
    }
}

/// Two writers overwrite the rows of several leaves, so that a worker removes leaves from memory. One reader gets
/// single rows, another one scans all rows in a random direction. The canary: a get uses a root that it loaded before it
/// searched the messages in memory.
pub fn cool(start: &SimImage, _: Twist) {
    let (_sim, store) = open_image(start, 1);
    let rows = keyspace(&store, ROWS);
    let acknowledged = Acknowledged(Default::default());
    let writer = |first: u8| {
        let (rows, acknowledged) = (&rows, &acknowledged);
        body(move || {
            for i in (first..BUSY).step_by(2).chain([first]) {
                acknowledged.write(rows, i);
            }
        })
    };
    let get = |i: u8| {
        let before = acknowledged.now()[usize::from(i)];
        let found = rows.get([i]).expect("read").expect("it was never deleted");
        assert!(found[0] >= before, "row {i} has version {}, but {before} was acknowledged", found[0]);
    };
    let scan = |reverse: bool| {
        let before = acknowledged.now();
        let range = rows.iter();
        let found: Vec<_> = if reverse { range.rev().collect() } else { range.collect() };
        let mut found: Vec<(u8, u8)> =
            found.into_iter().map(|entry| entry.map(|(key, value)| (key[0], value[0])).expect("read")).collect();
        if reverse {
            found.reverse();
        }
        assert!(found.iter().map(|(key, _)| *key).eq(0..START), "keys {found:?}");
        assert!(before.iter().zip(&found).all(|(before, (_, now))| now >= before), "{found:?} after {before:?}");
    };
    let getter = body(|| (0..4).for_each(|_| get(thread_rng().gen_range(0..BUSY))));
    threads([writer(0), writer(1), getter, body(|| scan(thread_rng().gen_range(0..2) == 0))]);
    store.settle().expect("settled");
    (0..BUSY).for_each(get);
    [false, true].into_iter().for_each(scan);
    verify(&store);
    drop(rows);
    store.close().expect("closed");
}

/// A writer overwrites one key, and the index folds its versions. One reader gets the newest value, another one scans.
/// The canary: folds ignore readers that have an older view.
pub fn fold(start: &SimImage, _: Twist) {
    let (_sim, store) = open_image(start, 0);
    let rows = keyspace(&store, ROWS);
    let acknowledged = AtomicU8::new(0);
    let check = |before: u8, found: Option<u8>| {
        let found = found.expect("the key was never deleted");
        assert!(found >= before, "version {found}, but {before} was acknowledged");
    };
    let short = |version: u8| [version; 24];
    rows.put([1], short(0)).expect("written");
    threads([
        body(|| {
            for version in 1..8 {
                rows.put([1], short(version)).expect("written");
                acknowledged.store(version, SeqCst);
            }
        }),
        body(|| {
            for _ in 0..3 {
                let before = acknowledged.load(SeqCst);
                check(before, rows.get([1]).expect("read").map(|value| value[0]));
            }
        }),
        body(|| {
            let before = acknowledged.load(SeqCst);
            let found = rows.multi_get(&[[1], [2]]).expect("read");
            check(before, found[0].as_ref().map(|value| value[0]));
            let before = acknowledged.load(SeqCst);
            let first = rows.range([1]..[2]).next().transpose().expect("read");
            check(before, first.map(|(_, value)| value[0]));
        }),
    ]);
    check(7, rows.get([1]).expect("read").map(|value| value[0]));
    drop(rows);
    store.close().expect("closed");
}

/// One writer puts keys that another one deletes. Their commits may be applied in another order than that of their
/// seqnos. Meanwhile the commits of a third writer fold the leaf of the keys. The canary: a fold drops a delete above
/// the horizon.
pub fn delete(start: &SimImage, _: Twist) {
    const KEYS: u8 = 2;
    let (sim, store) = open_image(start, 0);
    let rows = keyspace(&store, ROWS);
    let key = |i: u8| [1, i];
    // After some folds, the leaf has few bytes, so that it is folded soon again.
    (0..8).for_each(|version| rows.put([1], [version; 24]).expect("written"));
    let [puts, deletes] = [(); 2].map(|()| [const { AtomicU64::new(0) }; KEYS as usize]);
    let commit = |i: u8, is_put: bool| {
        let mut batch = store.batch();
        if is_put {
            batch.put(&rows, key(i), [i; 8])
        } else {
            batch.delete(&rows, key(i))
        }
        let seqno = batch.commit_numbered(Durability::Buffered).expect("committed").expect("an operation");
        (if is_put { &puts } else { &deletes })[usize::from(i)].store(seqno, SeqCst);
    };
    threads([
        body(|| (0..KEYS).for_each(|i| commit(i, true))),
        body(|| (0..KEYS).for_each(|i| commit(i, false))),
        body(|| (8..14).for_each(|version| rows.put([1], [version; 24]).expect("written"))),
    ]);
    let check = |store: &Store| {
        let rows = keyspace(store, ROWS);
        for i in 0..KEYS {
            let is_deleted = deletes[usize::from(i)].load(SeqCst) > puts[usize::from(i)].load(SeqCst);
            assert_eq!(rows.contains(key(i)).expect("read"), !is_deleted, "key {i}");
        }
    };
    check(&store);
    let killed = sim.image();
    store.checkpoint().expect("a checkpoint");
    check(&store);
    drop(rows);
    store.close().expect("closed");
    for image in [killed, sim.image()] {
        let (_sim, store) = open_image(&image, 0);
        check(&store);
        store.close().expect("closed");
    }
}

/// A writer overwrites a large value while checkpoints write its leaf. A reader reads the value at snapshots. The
/// canary: the tree does not take over the values that a job has written.
pub fn values(start: &SimImage, _: Twist) {
    const LAST: u8 = 8;
    let (sim, store) = open_image(start, 0);
    let rows = keyspace(&store, ROWS);
    let large = |version: u8| [&[version][..], &LARGE].concat();
    rows.put([1], large(0)).expect("written");
    let written = AtomicU8::new(0);
    // Holds a snapshot until the version `until` is written, so that folds and jobs keep an older version, too.
    let look = |until: u8| {
        let snapshot = store.snapshot();
        let read = || rows.at(&snapshot).get([1]).expect("read").expect("it was never deleted");
        let (first, newest) = (read(), rows.get([1]).expect("read").expect("it was never deleted"));
        while written.load(SeqCst) < until {
            shuttle::thread::yield_now();
        }
        assert!(first[1..] == LARGE && newest[1..] == LARGE && newest[0] >= first[0], "another value");
        assert!(read() == first, "the value at a snapshot changed");
    };
    threads([
        body(|| {
            for version in 1..=LAST {
                rows.put([1], large(version)).expect("written");
                written.store(version, SeqCst);
            }
        }),
        body(|| (1..4).for_each(|round| look(2 * round))),
        body(|| (0..2).for_each(|_| store.checkpoint().expect("a checkpoint"))),
    ]);
    let check = |store: &Store| {
        let found = keyspace(store, ROWS).get([1]).expect("read").expect("it was never deleted");
        assert!(found == large(LAST), "the last value");
        verify(store);
    };
    check(&store);
    let killed = sim.image();
    store.checkpoint().expect("a checkpoint");
    verify(&store);
    drop(rows);
    store.close().expect("closed");
    for image in [killed, sim.image()] {
        let (_sim, store) = open_image(&image, 0);
        check(&store);
        store.close().expect("closed");
    }
}
