//! A device in memory whose clock runs 100 times as fast. A scan then moves to a newer view every 20 ms, which
//! otherwise takes seconds. With a faster clock, scans would do little else.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use pandodb::device::{Device, File, JoinHandle, LockGuard, LockMode, MemDevice, OpenHow};

/// Speed of the clock relative to real time.
const HASTE: u32 = 100;

/// The device.
#[derive(Debug)]
pub(super) struct HastyDevice(pub Arc<MemDevice>);

impl Device for HastyDevice {
    fn open(&self, name: &str, how: OpenHow) -> io::Result<Arc<dyn File>> {
        self.0.open(name, how)
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        self.0.rename(from, to)
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        self.0.remove(name)
    }

    fn list(&self) -> io::Result<Vec<String>> {
        self.0.list()
    }

    fn sync_dir(&self) -> io::Result<()> {
        self.0.sync_dir()
    }

    fn lock(&self, mode: LockMode) -> io::Result<Box<dyn LockGuard>> {
        self.0.lock(mode)
    }

    fn now(&self) -> Duration {
        self.0.now() * HASTE
    }

    fn sleep(&self, time: Duration) {
        self.0.sleep(time / HASTE);
    }

    fn random(&self) -> u64 {
        self.0.random()
    }

    fn spawn(&self, name: &str, body: Box<dyn FnOnce() + Send>) -> io::Result<Box<dyn JoinHandle>> {
        self.0.spawn(name, body)
    }

    fn path(&self) -> String {
        self.0.path()
    }

    fn available(&self) -> Option<u64> {
        self.0.available()
    }
}
