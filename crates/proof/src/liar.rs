//! A device that skips some syncs but reports success. It makes the store lose acknowledged commits, and the crash
//! enumerator must report that: a canary.
//!
//! With [`Lie::Log`], commits are acknowledged before the log is synced. With [`Lie::Data`], the superblock may reach
//! the disk before the blocks that it refers to.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

use pandodb::device::sim::SimDevice;
use pandodb::device::{Device, File, JoinHandle, LockGuard, LockMode, OpenHow};

/// Which syncs are skipped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lie {
    /// None.
    Never,
    /// Syncs of log segments that hold records.
    Log,
    /// Syncs of the data file, except those right after the write of a superblock.
    Data,
}

/// A simulated device that skips some syncs.
#[derive(Debug)]
pub struct Liar {
    sim: Arc<SimDevice>,
    lie: Lie,
}

impl Liar {
    /// Wraps `sim`.
    pub fn new(sim: Arc<SimDevice>, lie: Lie) -> Liar {
        Liar { sim, lie }
    }
}

#[derive(Debug)]
struct LyingFile {
    file: Arc<dyn File>,
    lie: Lie,
    log: bool,
    /// The last write was a superblock or the header of a log segment.
    at_head: AtomicBool,
}

/// Offsets of the superblocks.
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

    fn available(&self) -> Option<u64> {
        self.sim.available()
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

    fn hole_unit(&self) -> u64 {
        self.file.hole_unit()
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
