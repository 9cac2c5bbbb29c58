//! A sorted load of several chunks has a helper thread. Whether the load succeeds, fails, panics or is closed, the
//! keyspace has all rows of the load or none, and no page stays allocated.

use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::SeqCst};

use pandodb::device::mem::MemDevice;
use pandodb::device::wrapper::{DeviceWrapper, FileWrapper};
use pandodb::device::{Device, File, JoinHandle, OpenHow};
use pandodb::{Error, IndexOptions, Keyspace, KeyspaceOptions, Store};

const ROWS: u32 = 40_000;

/// What the device does to helpers.
const WORKS: u32 = 0;
const FAILS: u32 = 1;
const PANICS: u32 = 2;
const NO_THREAD: u32 = 3;
/// A sync of a helper fails, and so do all later ones.
const FAILS_SYNC: u32 = 4;
/// A sync of a helper panics, and so do all later ones.
const PANICS_AT_SYNC: u32 = 5;

#[derive(Debug, Default)]
struct Fate {
    what: AtomicU32,
    helpers: AtomicU64,
    /// The number of syncs of helpers that still succeed.
    syncs: AtomicU64,
}

impl Fate {
    /// What the device does to the current thread.
    fn of_thread(&self) -> u32 {
        if std::thread::current().name() == Some("pando-load") { self.what.load(SeqCst) } else { WORKS }
    }
}

#[derive(Debug)]
struct Trap {
    device: Arc<MemDevice>,
    fate: Arc<Fate>,
}

impl DeviceWrapper for Trap {
    fn inner(&self) -> &dyn Device {
        &*self.device
    }

    fn open(&self, name: &str, how: OpenHow) -> io::Result<Arc<dyn File>> {
        Ok(Arc::new(TrapFile { file: self.device.open(name, how)?, fate: self.fate.clone() }))
    }

    fn spawn(&self, name: &str, body: Box<dyn FnOnce() + Send>) -> io::Result<Box<dyn JoinHandle>> {
        if name == "pando-load" {
            self.fate.helpers.fetch_add(1, SeqCst);
            if self.fate.what.load(SeqCst) == NO_THREAD {
                return Err(io::Error::other("no thread"));
            }
        }
        self.device.spawn(name, body)
    }
}

#[derive(Debug)]
struct TrapFile {
    file: Arc<dyn File>,
    fate: Arc<Fate>,
}

impl FileWrapper for TrapFile {
    fn inner(&self) -> &dyn File {
        &*self.file
    }

    fn write_at(&self, offset: u64, buf: &[u8]) -> io::Result<usize> {
        match self.fate.of_thread() {
            FAILS => return Err(io::Error::other("broken")),
            PANICS => panic!("the trap"),
            _ => {}
        }
        self.file.write_at(offset, buf)
    }

    fn sync(&self) -> io::Result<()> {
        let what = self.fate.of_thread();
        let left = || self.fate.syncs.fetch_update(SeqCst, SeqCst, |left| left.checked_sub(1)).is_ok();
        match what {
            FAILS_SYNC | PANICS_AT_SYNC if left() => {}
            FAILS_SYNC => return Err(io::Error::other("broken")),
            PANICS_AT_SYNC => panic!("the trap"),
            _ => {}
        }
        self.file.sync()
    }
}

struct World {
    device: Arc<MemDevice>,
    fate: Arc<Fate>,
    store: Store,
    keyspace: Keyspace,
}

/// A store with an older value of some rows, in which no background work is left to do.
fn world(index: &str, background_threads: usize) -> World {
    let fate = Arc::<Fate>::default();
    let device = MemDevice::new();
    let trap = Arc::new(Trap { device: device.clone(), fate: fate.clone() });
    let builder = Store::builder("s").device(trap).memory_budget(16 << 20);
    let store = builder.background_threads(background_threads).open().unwrap();
    let options = KeyspaceOptions::default().index(index.parse::<IndexOptions>().unwrap());
    let keyspace = store.keyspace_with("k", options).unwrap();
    (0..ROWS).step_by(100).for_each(|i| keyspace.put(key(i), "old").unwrap());
    store.pack().unwrap();
    store.settle().unwrap();
    World { device, fate, store, keyspace }
}

fn key(i: u32) -> String {
    format!("row {i:08}")
}

/// Some values are large, so that they are written by the caller.
fn value(i: u32) -> Vec<u8> {
    vec![i as u8; if i.is_multiple_of(1000) { 70_000 } else { 200 }]
}

fn rows() -> impl Iterator<Item = (String, Vec<u8>)> {
    (0..ROWS).map(|i| (key(i), value(i)))
}

impl World {
    /// Bytes of the data file that are in use, when nothing is waiting to be freed.
    fn used(&self) -> u64 {
        self.store.settle().unwrap();
        self.store.checkpoint().unwrap();
        self.store.checkpoint().unwrap();
        self.store.stats().unwrap().allocated_bytes
    }

    fn assert_old(&self, used: u64) {
        assert_eq!(self.keyspace.iter().count(), ROWS as usize / 100);
        assert_eq!(self.keyspace.get(key(100)).unwrap().unwrap(), b"old");
        assert_eq!(self.used(), used, "no page of the load stays allocated");
        assert!(self.store.verify().unwrap().is_clean());
    }

    fn assert_loaded(&self) {
        let mut found = self.keyspace.iter();
        for (key, value) in rows() {
            let row = found.next().unwrap().unwrap();
            assert!(*row.0 == *key.as_bytes() && *row.1 == *value, "{key}");
        }
        assert!(found.next().is_none());
        assert!(self.store.verify().unwrap().is_clean());
    }
}

#[test]
fn a_helper_builds_large_loads_only() {
    for index in ["stbe", "cola", "nbtree"] {
        for (threads, helpers) in [(0, 0), (1, 1)] {
            let world = world(index, threads);
            assert_eq!(world.keyspace.load_sorted(rows().take(100)).unwrap(), 100);
            assert_eq!(world.fate.helpers.load(SeqCst), 0, "a load of one chunk");
            assert_eq!(world.keyspace.load_sorted(rows()).unwrap(), ROWS.into());
            assert_eq!(world.fate.helpers.load(SeqCst), helpers);
            world.assert_loaded();
        }
    }
}

#[test]
fn a_load_needs_no_helper() {
    let world = world("stbe", 1);
    world.fate.what.store(NO_THREAD, SeqCst);
    assert_eq!(world.keyspace.load_sorted(rows()).unwrap(), ROWS.into());
    assert_eq!(world.fate.helpers.load(SeqCst), 1, "the device was asked once");
    world.assert_loaded();
}

#[test]
fn an_error_of_the_helper_is_returned() {
    for index in ["stbe", "cola", "nbtree"] {
        let world = world(index, 1);
        let used = world.used();
        world.fate.what.store(FAILS, SeqCst);
        let error = world.keyspace.load_sorted(rows()).unwrap_err();
        assert!(matches!(&error, Error::Io { .. }), "{error}");
        world.fate.what.store(WORKS, SeqCst);
        world.assert_old(used);
        assert_eq!(world.keyspace.load_sorted(rows()).unwrap(), ROWS.into());
        world.assert_loaded();
    }
}

#[test]
fn a_panic_of_the_helper_reaches_the_caller() {
    let world = world("stbe", 1);
    let used = world.used();
    world.fate.what.store(PANICS, SeqCst);
    assert_eq!(panic_of(|| world.keyspace.load_sorted(rows())), "the helper of a sorted load panicked");
    world.fate.what.store(WORKS, SeqCst);
    world.assert_old(used);
}

/// The message of the panic that `body` causes.
fn panic_of<T>(body: impl FnOnce() -> T) -> String {
    let Err(panic) = catch_unwind(AssertUnwindSafe(body)) else { panic!("no panic") };
    panic.downcast_ref::<&str>().map(|text| (*text).to_owned()).or(panic.downcast_ref().cloned()).expect("a message")
}

/// Opens the store of a device again. Returns whether it has the load.
fn has_load(device: Arc<MemDevice>) -> bool {
    let store = Store::builder("s").device(device).memory_budget(16 << 20).open().unwrap();
    assert!(store.verify().unwrap().is_clean());
    let keyspace = store.open_keyspace("k").unwrap().unwrap();
    let found = keyspace.iter().count() as u32;
    assert!(found == ROWS || found == ROWS / 100, "{found} rows");
    found == ROWS
}

/// Loads rows, while the syncs of the helper fail or panic after the first `syncs` ones. Returns `false` if the load
/// has fewer syncs.
fn attach_with_failure(fate: u32, syncs: u64) -> bool {
    let World { device, fate: trap, store, keyspace } = world("stbe", 1);
    trap.syncs.store(syncs, SeqCst);
    trap.what.store(fate, SeqCst);
    let ended = catch_unwind(AssertUnwindSafe(|| keyspace.load_sorted(rows())));
    let is_loaded = match &ended {
        Ok(Ok(_)) => Some(true),
        Ok(Err(Error::Io { .. })) => Some(false),
        // Whether the load is durable is unknown.
        Ok(Err(Error::Indeterminate { .. })) | Err(_) => None,
        Ok(Err(e)) => panic!("{e}"),
    };
    assert!(fate == PANICS_AT_SYNC || ended.is_ok(), "an error is no panic");
    // The first sync comes before the attachment. A panic there has no effect. When the load succeeds, the checkpoint
    // after it may still fail.
    let is_poisoned = matches!(keyspace.put("row 00000000", "old"), Err(Error::Poisoned { .. }));
    let must_poison = syncs > 0 || fate == FAILS_SYNC;
    assert!(is_loaded == Some(true) || is_poisoned == must_poison, "after {syncs} syncs: {ended:?}");
    drop((keyspace, store));
    let has_load = has_load(device);
    assert!(is_loaded.is_none_or(|is_loaded| is_loaded == has_load), "{ended:?}");
    is_loaded != Some(true)
}

#[test]
fn a_load_whose_attachment_fails_is_whole_or_not_there() {
    for fate in [FAILS_SYNC, PANICS_AT_SYNC] {
        let failed = (0..100).take_while(|syncs| attach_with_failure(fate, *syncs)).count();
        assert!((2..100).contains(&failed), "{failed} syncs in an attachment");
    }
}

#[test]
fn a_source_that_fails_or_panics_ends_the_helper() {
    let world = world("cola", 1);
    let used = world.used();
    let fails = |i: u32| if i == ROWS - 1 { Err("the source fails".into()) } else { Ok((key(i), value(i))) };
    let failed: Result<u64, Box<dyn std::error::Error>> = world.keyspace.try_load_sorted((0..ROWS).map(fails));
    assert_eq!(failed.unwrap_err().to_string(), "the source fails");
    let unsorted = rows().chain([(key(5), value(5))]);
    assert!(matches!(world.keyspace.load_sorted(unsorted), Err(Error::InvalidArgument { .. })));
    let panics = rows().inspect(|(of, _)| assert!(*of != key(ROWS - 1), "the source panics"));
    assert_eq!(panic_of(|| world.keyspace.load_sorted(panics)), "the source panics");
    assert_eq!(world.fate.helpers.load(SeqCst), 3, "each load had started a helper");
    world.assert_old(used);
}

#[test]
fn a_close_ends_a_load_with_a_helper() {
    let World { device, fate, store, keyspace } = world("stbe", 1);
    let mut store = Some(store);
    let closes = rows().inspect(|(of, _)| {
        if *of == key(ROWS / 2) {
            store.take().unwrap().close().unwrap();
        }
    });
    let error = keyspace.load_sorted(closes).unwrap_err();
    assert!(matches!(error, Error::Closed), "{error}");
    assert_eq!(fate.helpers.load(SeqCst), 1);
    assert!(!has_load(device));
}
