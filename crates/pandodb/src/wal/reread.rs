//! [`RereadDevice`]: a device that keeps the bytes that are read from log segments, so that the passes of a recovery
//! over the log read the disk once.
//!
//! ```text
//!   pass 1 ──▶ RereadDevice ──▶ device      each read of a segment is kept, up to a limit for all segments
//!   pass 2 ──▶ RereadDevice                 the same reads are answered from memory
//! ```
//!
//! The passes read each segment with the same sequence of offsets and lengths. So a read is kept as a whole, under the
//! name of its file and its offset. When the limit is reached, later reads are not kept, and every pass reads them from
//! the disk.
//!
//! Invariants: a segment does not change between the passes, because the caller has the store's lock and a recovery
//! never overwrites records with other bytes; the kept bytes are at most the limit.

use std::collections::HashMap;
use std::io;
use std::sync::Arc;

use super::format::parse_name;
use crate::base::sync::Mutex;
use crate::device::wrapper::{DeviceWrapper, FileWrapper};
use crate::device::{Device, File, OpenHow, Queue};

/// A device that answers repeated reads of log segments from memory.
#[derive(Debug)]
pub struct RereadDevice {
    inner: Arc<dyn Device>,
    kept: Arc<Mutex<Kept>>,
}

impl RereadDevice {
    /// Keeps at most `most_bytes` bytes of the segments on `inner`.
    pub fn new(inner: Arc<dyn Device>, most_bytes: usize) -> RereadDevice {
        RereadDevice { inner, kept: Arc::new(Mutex::new(Kept { left: most_bytes, reads: HashMap::new() })) }
    }
}

/// The bytes that were read.
#[derive(Debug)]
struct Kept {
    /// The number of bytes that may still be kept.
    left: usize,
    /// The bytes of each read, by file name and offset.
    reads: HashMap<(Arc<str>, u64), Box<[u8]>>,
}

impl DeviceWrapper for RereadDevice {
    fn inner(&self) -> &dyn Device {
        &*self.inner
    }

    fn open(&self, name: &str, how: OpenHow) -> io::Result<Arc<dyn File>> {
        let file = self.inner.open(name, how)?;
        let is_only_read = !how.write && !how.create_new;
        if is_only_read && parse_name(name).is_some() {
            return Ok(Arc::new(RereadFile { inner: file, name: name.into(), kept: self.kept.clone() }));
        }
        Ok(file)
    }
}

/// A segment of the log that is open for reading.
#[derive(Debug)]
struct RereadFile {
    inner: Arc<dyn File>,
    name: Arc<str>,
    kept: Arc<Mutex<Kept>>,
}

impl FileWrapper for RereadFile {
    fn inner(&self) -> &dyn File {
        &*self.inner
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<usize> {
        let at = (self.name.clone(), offset);
        if let Some(bytes) = self.kept.lock().reads.get(&at).filter(|bytes| bytes.len() >= buf.len()) {
            buf.copy_from_slice(&bytes[..buf.len()]);
            return Ok(buf.len());
        }
        let read = self.inner.read_at(offset, buf)?;
        let mut kept = self.kept.lock();
        let replaced = kept.reads.get(&at).map_or(0, |bytes| bytes.len());
        if read > replaced && read - replaced <= kept.left {
            kept.left -= read - replaced;
            kept.reads.insert(at, buf[..read].into());
        }
        Ok(read)
    }

    /// All reads go through [`FileWrapper::read_at`].
    fn queue(&self) -> Option<Box<dyn Queue>> {
        None
    }
}
