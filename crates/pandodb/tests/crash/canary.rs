//! Canaries: a device that breaks its promise makes the store lose acknowledged commits, and the enumerator must say so. If
//! one of these tests fails, the enumerator tests nothing.
//!
//! The lies: the log is acknowledged before it is synced; the superblock may reach the disk before what it names.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

use pandodb::device::sim::{CrashPlan, SimDevice};
use pandodb::device::{Device, File, JoinHandle, LockGuard, LockMode, OpenHow};

use crate::drive::{Sizes, record};
use crate::enumerate::{Effort, Tally, enumerate};
use crate::script::{Mix, Script};

/// Which syncs are lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Lie {
    Never,
    /// Syncs of log segments that hold records.
    Log,
    /// Syncs of the data file but those right after a superblock.
    Data,
}

/// A simulated device whose syncs lie.
#[derive(Debug)]
struct Liar {
    sim: Arc<SimDevice>,
    lie: Lie,
}

#[derive(Debug)]
struct LyingFile {
    file: Arc<dyn File>,
    lie: Lie,
    log: bool,
    /// The last write was that of a superblock, or of a log segment's header.
    at_head: AtomicBool,
}

/// Where the superblocks stand.
const SUPERBLOCKS: [u64; 2] = [0, 32 * 4096];

impl Device for Liar {
    fn open(&self, name: &str, how: OpenHow) -> io::Result<Arc<dyn File>> {
        let file = self.sim.open(name, how)?;
        let log = name.starts_with("wal-");
        Ok(Arc::new(LyingFile { file, lie: self.lie, log, at_head: AtomicBool::new(true) }))
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        self.sim.rename(from, to)
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        self.sim.remove(name)
    }

    fn list(&self) -> io::Result<Vec<String>> {
        self.sim.list()
    }

    fn sync_dir(&self) -> io::Result<()> {
        self.sim.sync_dir()
    }

    fn lock(&self, mode: LockMode) -> io::Result<Box<dyn LockGuard>> {
        self.sim.lock(mode)
    }

    fn now(&self) -> Duration {
        self.sim.now()
    }

    fn sleep(&self, time: Duration) {
        self.sim.sleep(time);
    }

    fn random(&self) -> u64 {
        self.sim.random()
    }

    fn spawn(&self, name: &str, body: Box<dyn FnOnce() + Send>) -> io::Result<Box<dyn JoinHandle>> {
        self.sim.spawn(name, body)
    }

    fn path(&self) -> String {
        self.sim.path()
    }
}

impl File for LyingFile {
    fn read_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<usize> {
        self.file.read_at(offset, buf)
    }

    fn write_at(&self, offset: u64, buf: &[u8]) -> io::Result<usize> {
        let head = if self.log { offset == 0 } else { SUPERBLOCKS.contains(&offset) };
        self.at_head.store(head, Relaxed);
        self.file.write_at(offset, buf)
    }

    fn len(&self) -> io::Result<u64> {
        self.file.len()
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.file.set_len(len)
    }

    fn allocate(&self, offset: u64, len: u64) -> io::Result<()> {
        self.file.allocate(offset, len)
    }

    fn punch_hole(&self, offset: u64, len: u64) -> io::Result<()> {
        self.file.punch_hole(offset, len)
    }

    fn sync(&self) -> io::Result<()> {
        let lying = match self.lie {
            Lie::Never => false,
            Lie::Log => self.log,
            Lie::Data => !self.log,
        };
        if lying && !self.at_head.load(Relaxed) { Ok(()) } else { self.file.sync() }
    }

    fn occupied(&self) -> io::Result<u64> {
        self.file.occupied()
    }
}

fn tally_of(lie: Lie) -> Tally {
    let mix = Mix { steps: 40, blobs: 10, lazy: 10, buffered: 40, keys: 40 };
    let script = Script::generate(7, mix);
    let sim = SimDevice::new(7);
    let device = Arc::new(Liar { sim: sim.clone(), lie });
    record(&script, Sizes::TINY, &sim, device).expect("nobody notices a lie before the power is cut");
    let plan = CrashPlan { exhaustive: 5, pairs: false, subsets: 8, tears: 2, rot: true, seed: 0 };
    let effort = Effort { plan, per_point: 8, rewrite_every: 10, recovery_every: 50, recovery_images: 2 };
    enumerate(&script, Sizes::TINY, &sim.history(), &effort, 3_000)
}

#[test]
fn an_honest_device_raises_no_alarm() {
    let tally = tally_of(Lie::Never);
    assert!(tally.violations.is_empty(), "{:#?}", tally.violations);
}

#[test]
fn acknowledged_before_the_log_is_synced_is_caught() {
    assert!(!tally_of(Lie::Log).violations.is_empty());
}

#[test]
fn a_superblock_before_its_data_is_caught() {
    assert!(!tally_of(Lie::Data).violations.is_empty());
}
