//! Tests that background work continues during a checkpoint, and that writers are throttled when background work is too
//! slow.

use std::io;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};

use pandodb::device::mem::MemDevice;
use pandodb::device::wrapper::{DeviceWrapper, FileWrapper};
use pandodb::device::{Device, File, OpenHow};
use pandodb::{Error, Keyspace, Store};

/// The calls to the data file that the device blocks or refuses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Held {
    Nothing,
    /// Syncs of the data file.
    Syncs,
    /// Writes to the data file.
    Writes,
    /// Refuses all calls that need a larger file, and blocks no call.
    Space,
}

/// A gate in front of the data file.
#[derive(Debug)]
struct Gate {
    held: Mutex<Held>,
    opened: Condvar,
    /// The number of blocked calls.
    waiting: Mutex<usize>,
    /// The number of calls that were refused for lack of space.
    refused: AtomicUsize,
}

impl Gate {
    fn new() -> Arc<Gate> {
        Arc::new(Gate {
            held: Mutex::new(Held::Nothing),
            opened: Condvar::new(),
            waiting: Mutex::new(0),
            refused: AtomicUsize::new(0),
        })
    }

    fn hold(&self, what: Held) {
        *self.held.lock().unwrap() = what;
        self.opened.notify_all();
    }

    fn pass(&self, what: Held) {
        let mut held = self.held.lock().unwrap();
        while *held == what {
            *self.waiting.lock().unwrap() += 1;
            held = self.opened.wait(held).unwrap();
            *self.waiting.lock().unwrap() -= 1;
        }
    }

    fn waiting(&self) -> usize {
        *self.waiting.lock().unwrap()
    }
}

/// Opens the gate when a test ends, even by a panic, because closing a store waits for its threads.
struct Opens(Arc<Gate>);

impl Drop for Opens {
    fn drop(&mut self) {
        self.0.hold(Held::Nothing);
    }
}

#[derive(Debug)]
struct Gated<T>(T, Arc<Gate>);

impl DeviceWrapper for Gated<Arc<MemDevice>> {
    fn inner(&self) -> &dyn Device {
        &*self.0
    }

    fn open(&self, name: &str, how: OpenHow) -> io::Result<Arc<dyn File>> {
        let file = self.0.open(name, how)?;
        Ok(if name == "data" { Arc::new(Gated(file, self.1.clone())) } else { file })
    }
}

impl Gated<Arc<dyn File>> {
    /// Whether the file may grow up to `end`.
    fn grow(&self, end: u64) -> io::Result<()> {
        if *self.1.held.lock().unwrap() == Held::Space && end > self.0.len()? {
            self.1.refused.fetch_add(1, Relaxed);
            return Err(io::ErrorKind::StorageFull.into());
        }
        Ok(())
    }
}

impl FileWrapper for Gated<Arc<dyn File>> {
    fn inner(&self) -> &dyn File {
        &*self.0
    }

    fn write_at(&self, offset: u64, buf: &[u8]) -> io::Result<usize> {
        self.1.pass(Held::Writes);
        self.grow(offset + buf.len() as u64)?;
        self.0.write_at(offset, buf)
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.grow(len)?;
        self.0.set_len(len)
    }

    fn allocate(&self, offset: u64, len: u64) -> io::Result<()> {
        self.grow(offset + len)?;
        self.0.allocate(offset, len)
    }

    fn sync(&self) -> io::Result<()> {
        self.1.pass(Held::Syncs);
        self.0.sync()
    }
}

const MEMTABLE: usize = 256 << 10;

fn store(gate: &Arc<Gate>) -> (Store, Keyspace) {
    let device = Arc::new(Gated(MemDevice::new(), gate.clone()));
    let store = Store::builder("gated").device(device).memtable_bytes(MEMTABLE).open().unwrap();
    let rows = store.keyspace("rows").unwrap();
    (store, rows)
}

fn wait_until(what: &str, is_so: impl Fn() -> bool) {
    let start = Instant::now();
    while !is_so() {
        assert!(start.elapsed() < Duration::from_secs(60), "{what}: not within a minute");
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn memtables_are_packed_while_a_checkpoint_waits_for_the_disk() {
    let gate = Gate::new();
    let (store, rows) = store(&gate);
    let _opens = Opens(gate.clone());
    gate.hold(Held::Syncs);
    let value = [7; 1000];
    let mut key = 0u64;
    let start = Instant::now();
    let mut write = |bytes: usize| {
        for _ in 0..bytes / value.len() {
            rows.put(key.to_be_bytes(), value).unwrap();
            key += 1;
            assert!(start.elapsed() < Duration::from_secs(60), "writers wait for work that waits for the checkpoint");
        }
    };
    // Packing the first memtable makes a checkpoint due.
    write(2 * MEMTABLE);
    wait_until("a checkpoint that waits", || gate.waiting() > 0);
    let before = store.stats().unwrap().written.pack;
    write(5 * MEMTABLE);
    let debt = || store.stats().unwrap().debt_bytes;
    wait_until("nothing left to pack", || debt() == 0);
    assert!(gate.waiting() > 0, "the checkpoint still waits");
    let packed = store.stats().unwrap().written.pack - before;
    assert!(packed > 3 * MEMTABLE as u64, "{packed} bytes of memtables became runs all the same");
    // The number of packed memtables is limited, because log segments and freed space are kept until the checkpoint is
    // done.
    write(6 * MEMTABLE);
    let halted = || {
        let packed = store.stats().unwrap().written.pack;
        std::thread::sleep(Duration::from_millis(300));
        debt() > 0 && store.stats().unwrap().written.pack == packed
    };
    wait_until("a worker that waits for the checkpoint", halted);
    gate.hold(Held::Nothing);
    wait_until("nothing left to pack", || debt() == 0);
    store.close().unwrap();
}

#[test]
fn writers_do_not_outrun_a_blocked_worker() {
    let gate = Gate::new();
    let (store, rows) = store(&gate);
    let _opens = Opens(gate.clone());
    let value = [7; 1000];
    let mut key = 0u64;
    let mut put = || {
        let begun = Instant::now();
        rows.put(key.to_be_bytes(), value).unwrap();
        key += 1;
        begun.elapsed()
    };
    let memtables = || store.stats().unwrap().memory.memtables as usize / MEMTABLE;
    gate.hold(Held::Writes);
    write_until(&mut put, || memtables() > 4);
    // From here on, each waiting memtable doubles the delay of a write, so the writes of a longer time would fill few
    // further memtables. Without such a delay, the writes of this time would fill hundreds of memtables.
    let start = Instant::now();
    write_until(&mut put, || start.elapsed() > Duration::from_millis(500));
    let then = memtables();
    assert!(then < 12, "{then} memtables");
    gate.hold(Held::Nothing);
    wait_until("all packed", || store.stats().unwrap().debt_bytes == 0);
    most_are_fast(&mut put);
    gate.hold(Held::Writes);
    write_until(&mut put, || memtables() > 4);
    gate.hold(Held::Nothing);
    // Debt that arose while the worker was blocked does not delay writes for a long time after the worker was
    // unblocked, although the worker is never idle during these writes.
    let start = Instant::now();
    write_until(&mut put, || start.elapsed() > Duration::from_millis(1200));
    most_are_fast(&mut put);
    store.close().unwrap();
}

/// Writes until `is_so` returns true, but at most for a minute.
fn write_until(put: &mut impl FnMut() -> Duration, is_so: impl Fn() -> bool) {
    let start = Instant::now();
    while !is_so() {
        assert!(start.elapsed() < Duration::from_secs(60), "not within a minute");
        put();
    }
}

/// Fails if at least half of 400 writes take a millisecond or longer. Such writes are throttled with the longest
/// possible delay.
fn most_are_fast(put: &mut impl FnMut() -> Duration) {
    let slow = (0..400).filter(|_| put() >= Duration::from_millis(1)).count();
    assert!(slow < 200, "{slow} of 400 writes took a millisecond or longer");
}

#[test]
fn background_threads_sleep_while_the_disk_is_full() {
    let gate = Gate::new();
    let (store, rows) = store(&gate);
    let _opens = Opens(gate.clone());
    let value = [7; 1000];
    (0..3_000u64).for_each(|i| rows.put(i.to_be_bytes(), value).unwrap());
    gate.hold(Held::Space);
    let start = Instant::now();
    let full = (3_000..100_000u64).map(|i| rows.put(i.to_be_bytes(), value)).find_map(Result::err);
    assert!(matches!(full, Some(Error::DiskFull { .. })), "{full:?}");
    assert!(start.elapsed() < Duration::from_secs(60));
    let (before, start) = (gate.refused.load(Relaxed), Instant::now());
    std::thread::sleep(Duration::from_millis(500));
    let refused = gate.refused.load(Relaxed) - before;
    // Each background thread retries ten times per second, and may try several operations each time.
    let most = 100 * (start.elapsed().as_millis() as usize + 500) / 1000;
    assert!(refused < most, "{refused} times there was no space");
    gate.hold(Held::Nothing);
    wait_until("space that is found", || store.stats().unwrap().debt_bytes == 0);
    rows.put(*b"more", value).unwrap();
    store.close().unwrap();
}
