//! A device that counts the operations and bytes of another device, by class of file.
//!
//! ```text
//!   engine ──▶ CountingDevice ──▶ any device
//!                  │ counts() → reads, writes, syncs, bytes, for data | log | other
//!                  └ log (if asked for) → every access as (file, offset, length, direction)
//! ```
//!
//! Write and read amplification are computed from the counts. The number of block transfers of the external-memory
//! model, for any block size, can be computed from the access log. Counting costs two relaxed atomic additions per
//! operation. Only successful operations are counted.

use std::io;
use std::ops::Index;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

use parking_lot::Mutex;

use super::wrapper::{DeviceWrapper, FileWrapper};
use super::{Device, Done, File, OpenHow, Queue, Read};

/// The purpose of a file, for counting.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum FileClass {
    /// Runs, pages and all other data that the indexes read.
    Data,
    /// The write-ahead log.
    Log,
    /// All other files.
    Other,
}

const CLASSES: usize = 3;

const _: () = assert!(FileClass::Other as usize + 1 == CLASSES, "counters are indexed by class");

/// Operations and bytes of one class.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ClassCounts {
    /// The number of completed reads.
    pub reads: u64,
    /// The number of bytes that these reads returned.
    pub read_bytes: u64,
    /// The number of completed writes.
    pub writes: u64,
    /// The number of bytes that these writes wrote.
    pub write_bytes: u64,
    /// The number of syncs that succeeded.
    pub syncs: u64,
}

/// The values of all counters at one moment: `counts[FileClass::Data].reads`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    by_class: [ClassCounts; CLASSES],
    /// The number of syncs of the directory.
    pub dir_syncs: u64,
}

impl Counts {
    /// The sum over all classes.
    pub fn total(&self) -> ClassCounts {
        self.by_class.iter().fold(ClassCounts::default(), |sum, class| ClassCounts {
            reads: sum.reads + class.reads,
            read_bytes: sum.read_bytes + class.read_bytes,
            writes: sum.writes + class.writes,
            write_bytes: sum.write_bytes + class.write_bytes,
            syncs: sum.syncs + class.syncs,
        })
    }
}

impl Index<FileClass> for Counts {
    type Output = ClassCounts;

    fn index(&self, class: FileClass) -> &ClassCounts {
        &self.by_class[class as usize]
    }
}

/// One completed read or write. An access log is in the order of completion.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Access {
    /// The number of the opening, counted from 0 in the order of [`Device::open`]. A file that is opened twice has two
    /// numbers.
    pub file: u32,
    /// The purpose of the file.
    pub class: FileClass,
    /// The byte offset.
    pub offset: u64,
    /// The number of bytes transferred.
    pub len: u64,
    /// Whether the access is a write.
    pub is_write: bool,
}

/// A device that forwards all operations to another device and counts them.
#[derive(Debug)]
pub struct CountingDevice {
    inner: Arc<dyn Device>,
    classify: fn(&str) -> FileClass,
    tally: Arc<Tally>,
}

impl CountingDevice {
    /// Counts the operations on `inner`; `classify` maps a file name to a class when the file is opened.
    pub fn new(inner: Arc<dyn Device>, classify: fn(&str) -> FileClass) -> Arc<CountingDevice> {
        Arc::new(CountingDevice { inner, classify, tally: Arc::default() })
    }

    /// The current counters. Each counter is exact. Together they are a consistent snapshot only while no operation is
    /// running.
    pub fn counts(&self) -> Counts {
        Counts {
            by_class: [0, 1, 2].map(|class| self.tally.by_class[class].read()),
            dir_syncs: self.tally.dir_syncs.load(Ordering::Relaxed),
        }
    }

    /// Starts logging every access (40 bytes each, without limit), and drops the previous log.
    pub fn log_accesses(&self) {
        self.tally.accesses.lock().clear();
        self.tally.logging.store(true, Ordering::Relaxed);
    }

    /// Stops logging and returns the log.
    pub fn take_accesses(&self) -> Vec<Access> {
        self.tally.logging.store(false, Ordering::Relaxed);
        std::mem::take(&mut self.tally.accesses.lock())
    }
}

#[derive(Debug, Default)]
struct Tally {
    by_class: [ClassTally; CLASSES],
    dir_syncs: AtomicU64,
    opened: AtomicU32,
    logging: AtomicBool,
    accesses: Mutex<Vec<Access>>,
}

#[derive(Debug, Default)]
struct ClassTally {
    reads: AtomicU64,
    read_bytes: AtomicU64,
    writes: AtomicU64,
    write_bytes: AtomicU64,
    syncs: AtomicU64,
}

impl ClassTally {
    fn read(&self) -> ClassCounts {
        ClassCounts {
            reads: self.reads.load(Ordering::Relaxed),
            read_bytes: self.read_bytes.load(Ordering::Relaxed),
            writes: self.writes.load(Ordering::Relaxed),
            write_bytes: self.write_bytes.load(Ordering::Relaxed),
            syncs: self.syncs.load(Ordering::Relaxed),
        }
    }
}

impl DeviceWrapper for CountingDevice {
    fn inner(&self) -> &dyn Device {
        &*self.inner
    }

    fn open(&self, name: &str, how: OpenHow) -> io::Result<Arc<dyn File>> {
        let inner = self.inner.open(name, how)?;
        let number = self.tally.opened.fetch_add(1, Ordering::Relaxed);
        let counter = Counter { number, class: (self.classify)(name), tally: Arc::clone(&self.tally) };
        Ok(Arc::new(CountingFile { inner, counter }))
    }

    fn sync_dir(&self) -> io::Result<()> {
        self.inner.sync_dir()?;
        self.tally.dir_syncs.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }
}

/// The counting state of an open file.
#[derive(Clone, Debug)]
struct Counter {
    number: u32,
    class: FileClass,
    tally: Arc<Tally>,
}

#[derive(Debug)]
struct CountingFile {
    inner: Arc<dyn File>,
    counter: Counter,
}

impl Counter {
    fn count(&self, offset: u64, len: u64, is_write: bool) {
        let class = &self.tally.by_class[self.class as usize];
        let (operations, bytes) =
            if is_write { (&class.writes, &class.write_bytes) } else { (&class.reads, &class.read_bytes) };
        operations.fetch_add(1, Ordering::Relaxed);
        bytes.fetch_add(len, Ordering::Relaxed);
        if self.tally.logging.load(Ordering::Relaxed) {
            let access = Access { file: self.number, class: self.class, offset, len, is_write };
            self.tally.accesses.lock().push(access);
        }
    }
}

impl FileWrapper for CountingFile {
    fn inner(&self) -> &dyn File {
        &*self.inner
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<usize> {
        let n = self.inner.read_at(offset, buf)?;
        debug_assert!(n <= buf.len(), "{n} bytes were read into {}", buf.len());
        self.counter.count(offset, n as u64, false);
        Ok(n)
    }

    fn write_at(&self, offset: u64, buf: &[u8]) -> io::Result<usize> {
        let n = self.inner.write_at(offset, buf)?;
        debug_assert!(n <= buf.len(), "{n} of {} bytes were written", buf.len());
        self.counter.count(offset, n as u64, true);
        Ok(n)
    }

    fn sync(&self) -> io::Result<()> {
        self.inner.sync()?;
        self.counter.tally.by_class[self.counter.class as usize].syncs.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }

    fn queue(&self) -> Option<Box<dyn Queue>> {
        let inner = self.inner.queue()?;
        let (pushed, flying) = Default::default();
        Some(Box::new(CountingQueue { inner, counter: self.counter.clone(), pushed, flying }))
    }
}

/// Counts reads when they end. Reads that are still in flight when the queue is dropped are counted at that time,
/// because the device performs them anyway.
#[derive(Debug)]
struct CountingQueue {
    inner: Box<dyn Queue>,
    counter: Counter,
    /// The offsets and lengths of accepted reads that have not begun.
    pushed: Vec<(u64, u64)>,
    /// The offsets and lengths of reads in flight.
    flying: Vec<(u64, u64)>,
}

impl Queue for CountingQueue {
    fn push(&mut self, read: Read) -> Result<(), Read> {
        let place = (read.offset, read.buf.len() as u64);
        self.inner.push(read)?;
        self.pushed.push(place);
        Ok(())
    }

    fn start(&mut self) {
        self.inner.start();
        self.flying.append(&mut self.pushed);
    }

    fn wait(&mut self) -> Option<Done> {
        let done = self.inner.wait()?;
        self.flying.append(&mut self.pushed);
        let place = (done.read.offset, done.read.buf.len() as u64);
        let at = self.flying.iter().position(|flying| *flying == place).expect("a read ends once, with its buffer");
        self.flying.swap_remove(at);
        if let Ok(n) = done.result {
            self.counter.count(done.read.offset, n as u64, false);
        }
        Some(done)
    }
}

impl Drop for CountingQueue {
    fn drop(&mut self) {
        self.flying.iter().for_each(|(offset, len)| self.counter.count(*offset, *len, false));
    }
}
