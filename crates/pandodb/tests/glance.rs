//! Tests of `check::glance` while a writer runs: it takes no lock, writes nothing, and never returns a state that did
//! not exist.

use std::fmt;
use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use pandodb::check::{Glance, Inspect, glance, glance_device, inspect};
use pandodb::device::mem::MemDevice;
use pandodb::device::wrapper::{DeviceWrapper, FileWrapper};
use pandodb::device::{Device, File, LockGuard, LockMode, OpenHow};
use pandodb::{AddU64, Error, KeyspaceOptions, Store};

/// A function that is called before each read of the data file. It gets the number of the read.
type Hook = Box<dyn FnMut(u64) + Send>;

/// A device that allows reads only. It counts the reads of the data file.
struct ReadOnly {
    inner: Arc<dyn Device>,
    hook: Arc<Mutex<Hook>>,
    reads: Arc<AtomicU64>,
}

impl ReadOnly {
    fn new(inner: Arc<dyn Device>, hook: Hook) -> Arc<ReadOnly> {
        Arc::new(ReadOnly { inner, hook: Arc::new(Mutex::new(hook)), reads: Arc::default() })
    }
}

impl fmt::Debug for ReadOnly {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ReadOnly")
    }
}

impl DeviceWrapper for ReadOnly {
    fn inner(&self) -> &dyn Device {
        &*self.inner
    }

    fn open(&self, name: &str, how: OpenHow) -> io::Result<Arc<dyn File>> {
        assert!(!how.write && !how.create_new, "`{name}` is opened for writing");
        let file = self.inner.open(name, how)?;
        let hook = (name == "data").then(|| (self.hook.clone(), self.reads.clone()));
        Ok(Arc::new(ReadOnlyFile { file, hook }))
    }
    fn rename(&self, _: &str, _: &str) -> io::Result<()> {
        panic!("a glance renames a file")
    }
    fn remove(&self, _: &str) -> io::Result<()> {
        panic!("a glance removes a file")
    }
    fn sync_dir(&self) -> io::Result<()> {
        panic!("a glance syncs")
    }
    fn lock(&self, _: LockMode) -> io::Result<Box<dyn LockGuard>> {
        panic!("a glance takes the lock")
    }
}

struct ReadOnlyFile {
    file: Arc<dyn File>,
    hook: Option<(Arc<Mutex<Hook>>, Arc<AtomicU64>)>,
}

impl fmt::Debug for ReadOnlyFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ReadOnlyFile")
    }
}

impl FileWrapper for ReadOnlyFile {
    fn inner(&self) -> &dyn File {
        &*self.file
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<usize> {
        if let Some((hook, reads)) = &self.hook {
            hook.lock().unwrap()(reads.fetch_add(1, SeqCst));
        }
        self.file.read_at(offset, buf)
    }
    fn write_at(&self, _: u64, _: &[u8]) -> io::Result<usize> {
        panic!("a glance writes")
    }
    fn set_len(&self, _: u64) -> io::Result<()> {
        panic!("a glance sets a length")
    }
    fn allocate(&self, _: u64, _: u64) -> io::Result<()> {
        panic!("a glance allocates")
    }
    fn punch_hole(&self, _: u64, _: u64) -> io::Result<()> {
        panic!("a glance punches a hole")
    }
    fn sync(&self) -> io::Result<()> {
        panic!("a glance syncs")
    }
}

/// A store without background threads. Its memtables are small, so that its trunk has many nodes.
fn small(device: &Arc<MemDevice>) -> Store {
    let builder = Store::builder("memory").device(device.clone()).background_threads(0);
    builder.memory_budget(2 << 20).memtable_bytes(24 << 10).open().unwrap()
}

/// Writes enough data to rewrite the trunk and the catalogue several times, and ends with a checkpoint.
fn burst(store: &Store, round: u64) {
    let events = store.keyspace("events").unwrap();
    let counts = store.keyspace_with("counts", KeyspaceOptions::new().merge(AddU64)).unwrap();
    for part in 0..4u64 {
        for i in 0..2_000u64 {
            let n = (round * 8_000 + part * 2_000 + i).wrapping_mul(0x9e37_79b9_7f4a_7c15);
            events.put((n >> 44).to_be_bytes(), [part as u8; 60]).unwrap();
            counts.merge((n >> 56).to_be_bytes(), 1u64.to_le_bytes()).unwrap();
        }
        store.pack().unwrap();
        store.settle().unwrap();
        store.checkpoint().unwrap();
    }
}

fn look(device: Arc<dyn Device>) -> Glance {
    glance_device(device).unwrap()
}

#[test]
fn a_writer_that_checkpoints_during_a_glance_is_noticed() {
    let device = MemDevice::new();
    let store = Arc::new(small(&device));
    burst(&store, 0);
    let quiet = ReadOnly::new(device.clone(), Box::new(|_| {}));
    let mut before = look(quiet.clone());
    let reads = quiet.reads.load(SeqCst);
    assert!(reads > 10, "a trunk of {reads} reads shows nothing");
    let events = &before.keyspaces[0];
    assert!(events.info.name == "events" && events.index.figure("nodes") > 4 && events.records > 5_000, "{before:?}");
    assert_eq!(before.keyspaces[1].info.operator.as_deref(), Some("add_u64"));
    let (mut noticed, mut round) = (0, 1);
    for at in (0..reads).step_by((reads as usize / 24).max(1)) {
        let writer = store.clone();
        let mine = round;
        let hook: Hook = Box::new(move |read| {
            if read == at {
                burst(&writer, mine);
            }
        });
        let seen = look(ReadOnly::new(device.clone(), hook));
        let after = look(device.clone());
        assert!(after.generation >= before.generation + 4);
        // Do not compare the size of the log, because it may change although the roots do not.
        let same = |one: &Glance, other: &Glance| {
            (one.generation, &one.keyspaces, one.logical_bytes)
                == (other.generation, &other.keyspaces, other.logical_bytes)
        };
        // If a burst happens between the reads of the two superblock slots, the newest superblock may be in the slot
        // that was read first. The glance then returns an earlier superblock of the burst.
        let between = at < 4 && (before.generation..after.generation).contains(&seen.generation);
        assert!(
            same(&seen, &before) || same(&seen, &after) || between,
            "read {at}: neither the state before nor the one after"
        );
        // The first four reads are reads of the superblock slots.
        noticed += u32::from(at >= 4 && same(&seen, &after));
        before = after;
        round += 1;
    }
    assert!(noticed >= 5, "only {noticed} of {round} bursts were noticed");
    assert!(store.verify().unwrap().is_clean());
}

#[test]
fn a_glance_fails_if_each_attempt_is_overtaken() {
    let device = MemDevice::new();
    let store = Arc::new(small(&device));
    burst(&store, 0);
    let (writer, mut round) = (store.clone(), 0);
    // Each attempt reads both slots twice, then the catalogue. The writer continues before the read of the catalogue.
    let mut slots = 0;
    let hook: Hook = Box::new(move |_| {
        slots += 1;
        if slots > 4 {
            slots = 0;
            round += 1;
            burst(&writer, round);
        }
    });
    let error = glance_device(ReadOnly::new(device.clone(), hook)).unwrap_err();
    assert!(matches!(error, Error::Locked { .. }), "{error}");
    look(device);
}

#[test]
fn permanent_damage_is_reported() {
    let device = MemDevice::new();
    let store = small(&device);
    burst(&store, 0);
    store.close().unwrap();
    let whole = look(device.clone());
    assert!(whole.clean);
    // After a clean close the log has no data that the data file lacks, so an opening returns the same figures.
    let opened = Store::builder("memory").device(device.clone()).read_only(true).open().unwrap().stats().unwrap();
    for (seen, opened) in whole.keyspaces.iter().zip(&opened.keyspaces) {
        let mut index = seen.index.clone();
        index.debt = opened.index.debt;
        assert_eq!((&seen.info.name, seen.records, &index), (&opened.name, opened.records, &opened.index));
    }
    assert_eq!((whole.logical_bytes, whole.keyspaces.len()), (opened.logical_bytes, 2));
    assert_eq!(whole.lifetime_user_bytes, opened.lifetime_user_bytes);
    let file = device.open("data", OpenHow { write: true, ..OpenHow::default() }).unwrap();
    // The pages whose header is the header of a trunk node.
    let nodes: Vec<u64> = (0..file.len().unwrap() / 4096)
        .map(|page| page * 4096)
        .filter(|at| {
            let mut head = [0; 12];
            file.read_at(*at, &mut head).unwrap();
            head[4] == 6 && head[5..8] == [0; 3]
        })
        .collect();
    let flip = |at: u64| {
        let mut byte = [0];
        file.read_at(at + 20, &mut byte).unwrap();
        file.write_at(at + 20, &[byte[0] ^ 1]).unwrap();
    };
    for &at in &nodes {
        flip(at);
        assert_eq!(look(device.clone()).keyspaces, whole.keyspaces, "the other copy is read");
        flip(at);
    }
    nodes.iter().for_each(|at| flip(*at));
    let reader = ReadOnly::new(device.clone(), Box::new(|_| {}));
    let error = glance_device(reader.clone()).unwrap_err();
    assert!(error.is_corruption() && error.to_string().contains("trunk node"), "{error}");
    assert!(reader.reads.load(SeqCst) < 100, "damage is not read again and again");
}

/// The minimum number of glances while a writer is busy.
const GLANCES: u64 = 20;

#[test]
fn glances_do_not_disturb_a_busy_writer_or_its_openings() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("s");
    assert!(matches!(glance(&path), Err(Error::NotAStore { .. })));
    std::fs::create_dir(&path).unwrap();
    assert!(matches!(glance(&path), Err(Error::NotAStore { .. })));
    let store = || Store::builder(&path).memory_budget(2 << 20).memtable_bytes(64 << 10).open().unwrap();
    store().keyspace("k").unwrap();
    let done = AtomicBool::new(false);
    let (glances, written) = (AtomicU64::new(0), AtomicU64::new(0));
    std::thread::scope(|scope| {
        let reader = scope.spawn(|| {
            let (mut last, mut least) = (0, 0);
            while !done.load(SeqCst) {
                let seen = glance(&path).unwrap();
                assert!(seen.generation >= last, "{} after {last}", seen.generation);
                last = seen.generation;
                let (bytes, written) = (seen.lifetime_user_bytes, written.load(SeqCst) * 108);
                assert!(bytes >= least && bytes <= written, "{bytes} bytes after {least}, of {written}");
                least = bytes;
                assert!(inspect(&path, Inspect::Trunk).unwrap().contains("`k`"));
                assert!(inspect(&path, Inspect::Catalog).unwrap().contains("`k`"));
                glances.fetch_add(1, SeqCst);
            }
        });
        let mut key = 0u64;
        // Meanwhile open the store at least three times. Each opening must get the lock immediately, although glances
        // are running.
        while key < 60_000 || glances.load(SeqCst) < GLANCES && key < 2_000_000 {
            let store = store();
            let keyspace = store.keyspace("k").unwrap();
            for _ in 0..20_000 {
                written.fetch_add(1, SeqCst);
                keyspace.put(key.wrapping_mul(0x9e37_79b9_7f4a_7c15).to_be_bytes(), [7; 100]).unwrap();
                key += 1;
            }
            store.close().unwrap();
        }
        done.store(true, SeqCst);
        reader.join().unwrap();
    });
    assert!(glances.load(SeqCst) >= GLANCES, "only {glances:?} glances");
    let store = store();
    assert!(store.verify().unwrap().is_clean());
    assert_eq!(store.keyspace("k").unwrap().iter().count() as u64, written.load(SeqCst));
    store.settle().unwrap();
    store.checkpoint().unwrap();
    let age = glance(&path).unwrap().checkpointed_at.unwrap().elapsed().unwrap_or_default();
    assert!(age < Duration::from_secs(600), "{age:?}");
}
