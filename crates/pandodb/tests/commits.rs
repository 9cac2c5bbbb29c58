//! Concurrent commits: more threads than the maximum number of concurrent commits, memtables that are sealed during
//! commits, and a device that panics.

mod common;

use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, Barrier};

use common::ends;
use pandodb::device::mem::MemDevice;
use pandodb::device::wrapper::{DeviceWrapper, FileWrapper};
use pandodb::device::{Device, File, OpenHow};
use pandodb::{AddI64, Durability, Error, KeyspaceOptions, Store};

/// A device in memory. While `armed`, writes to the log or syncs of the log panic.
#[derive(Debug)]
struct Trap {
    device: Arc<MemDevice>,
    armed: Arc<AtomicBool>,
    at_sync: bool,
}

impl DeviceWrapper for Trap {
    fn inner(&self) -> &dyn Device {
        &*self.device
    }

    fn open(&self, name: &str, how: OpenHow) -> io::Result<Arc<dyn File>> {
        let file = self.device.open(name, how)?;
        let (armed, at_sync) = (self.armed.clone(), self.at_sync);
        Ok(if name.starts_with("wal-") { Arc::new(TrapFile { file, armed, at_sync }) } else { file })
    }
}

#[derive(Debug)]
struct TrapFile {
    file: Arc<dyn File>,
    armed: Arc<AtomicBool>,
    at_sync: bool,
}

impl FileWrapper for TrapFile {
    fn inner(&self) -> &dyn File {
        &*self.file
    }

    fn write_at(&self, offset: u64, buf: &[u8]) -> io::Result<usize> {
        assert!(self.at_sync || !self.armed.load(SeqCst), "the trap");
        self.file.write_at(offset, buf)
    }

    fn sync(&self) -> io::Result<()> {
        assert!(!self.at_sync || !self.armed.load(SeqCst), "the trap");
        self.file.sync()
    }
}

#[test]
fn a_panic_in_a_sync_leaves_no_thread_waiting() {
    ends("a commit after a panic in a sync", panic_in_a_sync);
}

fn panic_in_a_sync() {
    let armed = Arc::new(AtomicBool::new(false));
    let trap = Arc::new(Trap { device: MemDevice::new(), armed: armed.clone(), at_sync: true });
    let store = Store::builder("trap").device(trap).durability(Durability::Synced).open().unwrap();
    let rows = store.keyspace("rows").unwrap();
    let panics: usize = std::thread::scope(|scope| {
        let writers: Vec<_> = (0..4u8)
            .map(|thread| {
                let (rows, armed) = (&rows, &armed);
                scope.spawn(move || {
                    for i in 0..10_000u32 {
                        match rows.put([&[thread][..], &i.to_be_bytes()].concat(), "row") {
                            Ok(()) => {}
                            Err(Error::Indeterminate { .. } | Error::Poisoned { .. }) => return,
                            Err(e) => panic!("{e}"),
                        }
                        armed.fetch_or(thread == 0 && i == 100, SeqCst);
                    }
                })
            })
            .collect();
        writers.into_iter().map(|writer| usize::from(writer.join().is_err())).sum()
    });
    assert_eq!(panics, 1, "only the leader of the sync panics; the others get an error");
    assert!(matches!(rows.put("later", "row"), Err(Error::Poisoned { .. })));
    drop(rows);
    assert!(matches!(store.close(), Err(Error::Poisoned { .. })));
}

#[test]
fn a_panic_in_a_commit_leaves_no_thread_waiting() {
    ends("a commit after a panic in a commit", || [1, 2, 4].into_iter().for_each(panic_in_a_commit));
}

/// When the device is armed, one thread of each stream may already be in a write.
fn panic_in_a_commit(streams: usize) {
    let (device, armed) = (MemDevice::new(), Arc::new(AtomicBool::new(false)));
    let trap = Arc::new(Trap { device: device.clone(), armed: armed.clone(), at_sync: false });
    let store = Store::builder("trap").device(trap).log_streams(streams).open().unwrap();
    let rows = store.keyspace("rows").unwrap();
    let (acknowledged, begun) = (AtomicU64::new(0), Barrier::new(4));
    let panics: usize = std::thread::scope(|scope| {
        let writers: Vec<_> = (0..4u8)
            .map(|thread| {
                let (rows, acknowledged, armed, begun) = (&rows, &acknowledged, &armed, &begun);
                scope.spawn(move || {
                    for i in 0..10_000u32 {
                        // After this wait, each stream has created its segment.
                        (i == 1).then(|| begun.wait());
                        match rows.put([&[thread][..], &i.to_be_bytes()].concat(), "row") {
                            Ok(()) => drop(acknowledged.fetch_add(1, SeqCst)),
                            Err(Error::Indeterminate { .. } | Error::Poisoned { .. }) => return,
                            Err(e) => panic!("{e}"),
                        }
                        armed.fetch_or(thread == 0 && i == 100, SeqCst);
                    }
                })
            })
            .collect();
        writers.into_iter().map(|writer| usize::from(writer.join().is_err())).sum()
    });
    assert!((1..=streams).contains(&panics), "{panics} threads panicked; the others must get an error");
    let acknowledged = acknowledged.into_inner();
    assert!(acknowledged > 100);
    assert_eq!(rows.iter().count() as u64, acknowledged, "all visible rows were acknowledged");
    assert!(matches!(rows.put("later", "row"), Err(Error::Poisoned { .. })));
    assert!(matches!(store.persist(Durability::Synced), Err(Error::Poisoned { .. })));
    drop(rows);
    assert!(matches!(store.close(), Err(Error::Poisoned { .. })));
    armed.store(false, SeqCst);
    let store = Store::builder("trap").device(device).open().unwrap();
    assert_eq!(store.keyspace("rows").unwrap().iter().count() as u64, acknowledged, "no acknowledged row is lost");
}

#[test]
fn more_threads_commit_than_may_commit_concurrently() {
    const THREADS: u64 = 80;
    const EACH: u64 = 60;
    let store = Store::builder("many").device(MemDevice::new()).memtable_bytes(64 << 10).open().unwrap();
    let sums = store.keyspace_with("sums", KeyspaceOptions::new().merge(AddI64)).unwrap();
    let rows = store.keyspace("rows").unwrap();
    let number = |bytes: Option<pandodb::Value>| bytes.map_or(0, |b| i64::from_le_bytes((*b).try_into().unwrap()));
    let done = AtomicU64::new(0);
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            let (store, sums, rows, done) = (&store, &sums, &rows, &done);
            scope.spawn(move || {
                for i in 0..EACH {
                    let mut batch = store.batch();
                    batch.merge(sums, "a", 1i64.to_le_bytes());
                    batch.put(rows, (thread * EACH + i).to_be_bytes(), [7; 50]);
                    batch.merge(sums, "b", (-1i64).to_le_bytes());
                    let durability = if i % 20 == 0 { Durability::Synced } else { Durability::Buffered };
                    batch.commit(durability).unwrap();
                    done.fetch_add(1, SeqCst);
                }
            });
        }
        while done.load(SeqCst) < THREADS * EACH {
            let before = done.load(SeqCst);
            let snapshot = store.snapshot();
            let [a, b] = ["a", "b"].map(|key| number(sums.at(&snapshot).get(key).unwrap()));
            assert_eq!(a, -b, "half a batch");
            assert!(a >= before as i64, "{before} were acknowledged, {a} are there");
            store.pack().unwrap();
        }
    });
    store.settle().unwrap();
    assert_eq!(number(sums.get("a").unwrap()), (THREADS * EACH) as i64);
    assert_eq!(rows.iter().count() as u64, THREADS * EACH);
    assert!(store.verify().unwrap().is_clean());
}
