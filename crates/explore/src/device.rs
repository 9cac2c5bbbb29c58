//! The simulated device for explored threads. Each operation is a *point*, at which the explorer may switch threads.
//! Threads that the device spawns are threads of the explorer too.
//!
//! The [`SimDevice`] implements the operations and the effects of a crash. The lock of the [`SimDevice`] is never held
//! at a point of the explorer.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use pandodb::device::sim::SimDevice;
use pandodb::device::wrapper::{DeviceWrapper, FileWrapper};
use pandodb::device::{Device, Done, File, JoinHandle, LockGuard, LockMode, OpenHow, Queue, Read};
use shuttle::sync::atomic::{AtomicBool, Ordering::SeqCst};

/// A [`SimDevice`] whose operations are points of the explorer.
#[derive(Debug)]
pub struct ExploredDevice {
    sim: Arc<SimDevice>,
    point: Arc<Point>,
}

/// A point at which the explorer may switch threads.
#[derive(Debug, Default)]
struct Point(AtomicBool);

impl Point {
    fn pass(&self) {
        self.0.load(SeqCst);
    }
}

impl ExploredDevice {
    /// Wraps `sim`. The caller keeps a handle of `sim` for marks, faults and images.
    pub fn new(sim: Arc<SimDevice>) -> Arc<ExploredDevice> {
        Arc::new(ExploredDevice { sim, point: Arc::default() })
    }
}

impl DeviceWrapper for ExploredDevice {
    fn inner(&self) -> &dyn Device {
        &*self.sim
    }

    fn open(&self, name: &str, how: OpenHow) -> io::Result<Arc<dyn File>> {
        self.point.pass();
        let file = self.sim.open(name, how)?;
        Ok(Arc::new(ExploredFile { file, point: self.point.clone() }))
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        self.point.pass();
        self.sim.rename(from, to)
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        self.point.pass();
        self.sim.remove(name)
    }

    fn list(&self) -> io::Result<Vec<String>> {
        self.point.pass();
        self.sim.list()
    }

    fn sync_dir(&self) -> io::Result<()> {
        self.point.pass();
        self.sim.sync_dir()
    }

    fn lock(&self, mode: LockMode) -> io::Result<Box<dyn LockGuard>> {
        self.point.pass();
        self.sim.lock(mode)
    }

    fn sleep(&self, time: Duration) {
        self.sim.sleep(time);
        shuttle::thread::yield_now();
    }

    fn spawn(&self, name: &str, body: Box<dyn FnOnce() + Send>) -> io::Result<Box<dyn JoinHandle>> {
        let thread = shuttle::thread::Builder::new().name(name.to_owned()).spawn(body)?;
        Ok(Box::new(ExploredThread(thread)))
    }

    fn path(&self) -> String {
        "(explored)".to_owned()
    }
}

struct ExploredThread(shuttle::thread::JoinHandle<()>);

impl JoinHandle for ExploredThread {
    fn join(self: Box<Self>) {
        // If the thread panicked, the panic has already ended the execution.
        let _ = self.0.join();
    }
}

#[derive(Debug)]
struct ExploredFile {
    file: Arc<dyn File>,
    point: Arc<Point>,
}

impl FileWrapper for ExploredFile {
    fn inner(&self) -> &dyn File {
        &*self.file
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<usize> {
        self.point.pass();
        self.file.read_at(offset, buf)
    }

    fn write_at(&self, offset: u64, buf: &[u8]) -> io::Result<usize> {
        self.point.pass();
        self.file.write_at(offset, buf)
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.point.pass();
        self.file.set_len(len)
    }

    fn allocate(&self, offset: u64, len: u64) -> io::Result<()> {
        self.point.pass();
        self.file.allocate(offset, len)
    }

    fn punch_hole(&self, offset: u64, len: u64) -> io::Result<()> {
        self.point.pass();
        self.file.punch_hole(offset, len)
    }

    /// This function has two points. The second point lets other threads write between the end of the inner sync and
    /// the return of this call; the sync does not cover these writes.
    fn sync(&self) -> io::Result<()> {
        self.point.pass();
        let done = self.file.sync();
        self.point.pass();
        done
    }

    fn queue(&self) -> Option<Box<dyn Queue>> {
        let inner = self.file.queue()?;
        Some(Box::new(ExploredQueue { inner, point: self.point.clone() }))
    }
}

/// Reads in flight. If another thread writes between the start and the end of a read, the read may or may not see this
/// write.
#[derive(Debug)]
struct ExploredQueue {
    inner: Box<dyn Queue>,
    point: Arc<Point>,
}

impl Queue for ExploredQueue {
    fn push(&mut self, read: Read) -> Result<(), Read> {
        self.inner.push(read)
    }

    fn start(&mut self) {
        self.point.pass();
        self.inner.start();
    }

    fn wait(&mut self) -> Option<Done> {
        self.point.pass();
        self.inner.start();
        self.point.pass();
        self.inner.wait()
    }
}
