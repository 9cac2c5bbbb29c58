//! A device in memory: for tests that need no faults, and for benchmarks that should not measure a disk.
//!
//! A file is a set of copy-on-write pages (`Content`) behind a reader-writer lock. A file exists as long as the
//! directory or a handle refers to it. All data is lost when the device is dropped, and a sync does nothing. The clock,
//! the threads and the random numbers come from the real machine (`Host`).

use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::{Mutex, RwLock};

use super::content::Content;
use super::host::{Host, Locks, check_direct, check_name, check_range};
use super::{Device, File, JoinHandle, LockGuard, LockMode, OpenHow};

/// A directory of files in memory.
#[derive(Debug)]
pub struct MemDevice {
    files: Mutex<BTreeMap<String, Arc<RwLock<Content>>>>,
    locks: Arc<Locks>,
    host: Host,
}

impl MemDevice {
    /// An empty device.
    pub fn new() -> Arc<MemDevice> {
        Arc::new(MemDevice { files: Mutex::default(), locks: Arc::default(), host: Host::new() })
    }
}

impl Device for MemDevice {
    fn open(&self, name: &str, how: OpenHow) -> io::Result<Arc<dyn File>> {
        check_name(name)?;
        let mut files = self.files.lock();
        let content = match (files.get(name), how.create_new) {
            (Some(_), true) => return Err(io::ErrorKind::AlreadyExists.into()),
            (Some(content), false) => Arc::clone(content),
            (None, false) => return Err(io::ErrorKind::NotFound.into()),
            (None, true) => Arc::clone(files.entry(name.to_owned()).or_default()),
        };
        Ok(Arc::new(MemFile { content, write: how.write || how.create_new, direct: how.direct }))
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        check_name(from)?;
        check_name(to)?;
        let mut files = self.files.lock();
        let content = files.remove(from).ok_or(io::ErrorKind::NotFound)?;
        files.insert(to.to_owned(), content);
        Ok(())
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        check_name(name)?;
        self.files.lock().remove(name).map(|_| ()).ok_or_else(|| io::ErrorKind::NotFound.into())
    }

    fn list(&self) -> io::Result<Vec<String>> {
        Ok(self.files.lock().keys().cloned().collect())
    }

    fn sync_dir(&self) -> io::Result<()> {
        Ok(())
    }

    fn lock(&self, mode: LockMode) -> io::Result<Box<dyn LockGuard>> {
        self.locks.take(mode)
    }

    fn now(&self) -> Duration {
        self.host.now()
    }

    fn sleep(&self, time: Duration) {
        std::thread::sleep(time);
    }

    fn random(&self) -> u64 {
        self.host.random()
    }

    fn spawn(&self, name: &str, body: Box<dyn FnOnce() + Send>) -> io::Result<Box<dyn JoinHandle>> {
        Host::spawn(name, body)
    }

    fn path(&self) -> String {
        "(memory)".to_owned()
    }

    fn available(&self) -> Option<u64> {
        None
    }
}

#[derive(Debug)]
struct MemFile {
    content: Arc<RwLock<Content>>,
    write: bool,
    direct: bool,
}

impl MemFile {
    fn writable(&self) -> io::Result<()> {
        if self.write { Ok(()) } else { Err(io::ErrorKind::PermissionDenied.into()) }
    }
}

impl File for MemFile {
    fn read_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<usize> {
        if self.direct {
            check_direct(offset, buf)?;
        }
        Ok(self.content.read().read(offset, buf))
    }

    fn write_at(&self, offset: u64, buf: &[u8]) -> io::Result<usize> {
        self.writable()?;
        if self.direct {
            check_direct(offset, buf)?;
        }
        let end = check_range(offset, buf.len() as u64)?;
        let mut content = self.content.write();
        content.write(offset, buf);
        debug_assert!(buf.is_empty() || content.len() >= end, "a write extends the file");
        Ok(buf.len())
    }

    fn len(&self) -> io::Result<u64> {
        Ok(self.content.read().len())
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.writable()?;
        check_range(0, len)?;
        self.content.write().set_len(len);
        Ok(())
    }

    fn allocate(&self, offset: u64, len: u64) -> io::Result<()> {
        self.writable()?;
        check_range(offset, len)?;
        let mut content = self.content.write();
        content.allocate(offset, len);
        debug_assert_eq!(content.missing(offset, len), 0, "no hole is left in the range");
        Ok(())
    }

    fn punch_hole(&self, offset: u64, len: u64) -> io::Result<()> {
        self.writable()?;
        check_range(offset, len)?;
        let mut content = self.content.write();
        let before = (content.len(), content.occupied());
        content.punch(offset, len);
        debug_assert!(content.len() == before.0 && content.occupied() <= before.1, "punching only frees space");
        Ok(())
    }

    fn sync(&self) -> io::Result<()> {
        Ok(())
    }

    fn occupied(&self) -> io::Result<u64> {
        Ok(self.content.read().occupied())
    }
}
