//! A device that skips some syncs but reports success. A store on this device loses acknowledged commits after a crash,
//! and the crash enumerator must report the loss. So the device is a canary for the enumerator.
//!
//! With [`Lie::Log`], commits are acknowledged before the log is synced. With [`Lie::Data`], the superblock may reach
//! the disk before the blocks that it refers to.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use pandodb::device::sim::SimDevice;
use pandodb::device::wrapper::{DeviceWrapper, FileWrapper};
use pandodb::device::{Device, File, OpenHow};

/// The syncs that the device skips.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lie {
    /// The device skips no sync.
    Never,
    /// The device skips syncs of log segments that hold records.
    Log,
    /// The device skips syncs of the data file, except a sync that immediately follows the write of a superblock.
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
    /// Whether the last write was a superblock or the header of a log segment.
    at_head: AtomicBool,
}

/// The offsets of the two superblocks.
const SUPERBLOCKS: [u64; 2] = [0, 32 * 4096];

impl DeviceWrapper for Liar {
    fn inner(&self) -> &dyn Device {
        &*self.sim
    }

    fn open(&self, name: &str, how: OpenHow) -> io::Result<Arc<dyn File>> {
        let file = self.sim.open(name, how)?;
        let log = name.starts_with("wal-");
        Ok(Arc::new(LyingFile { file, lie: self.lie, log, at_head: AtomicBool::new(true) }))
    }
}

impl FileWrapper for LyingFile {
    fn inner(&self) -> &dyn File {
        &*self.file
    }

    fn write_at(&self, offset: u64, buf: &[u8]) -> io::Result<usize> {
        let head = if self.log { offset == 0 } else { SUPERBLOCKS.contains(&offset) };
        self.at_head.store(head, Relaxed);
        self.file.write_at(offset, buf)
    }

    fn sync(&self) -> io::Result<()> {
        let lying = match self.lie {
            Lie::Never => false,
            Lie::Log => self.log,
            Lie::Data => !self.log,
        };
        if lying && !self.at_head.load(Relaxed) { Ok(()) } else { self.file.sync() }
    }
}
