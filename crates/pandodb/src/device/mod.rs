//! The device: the only module through which the engine has side effects.
//!
//! The engine reaches files, directory entries, the lock, the clock, randomness and threads through [`Device`] and
//! [`File`]. So a simulator can take the place of the real machine ([`sim`]), a wrapper can count operations
//! ([`counting`]), and files can be kept in memory ([`mem`]). No other code of the engine uses `std::fs`,
//! `Instant::now` or `std::thread`.
//!
//! ```text
//!   engine ──▶ Device, File ──▶ FileDevice (Linux) | MemDevice | SimDevice | CountingDevice around any of them
//!      └─────▶ Reads ──▶ Queue (io_uring), else read_at
//! ```
//!
//! 1. [`File::read_at`] and [`File::write_at`] transfer one buffer at a time, like pread and pwrite.
//! 2. Independent reads go through [`Reads`], which submits them and then takes their completions. A device that
//!    supports concurrent reads returns a [`Queue`] for them ([`File::queue`]). On any other device the reads are done
//!    one after the other.
//!
//! Invariant: transfers may be short and may be interrupted, as POSIX allows; [`read_exact_at`] and [`write_all_at`]
//! complete them.

pub mod buf;
mod content;
pub mod counting;
pub mod file;
mod host;
mod mapped;
pub mod mem;
mod process;
mod reads;
pub mod sim;
#[cfg(test)]
mod tests;
#[cfg(all(
    feature = "io_uring",
    target_os = "linux",
    any(target_arch = "x86_64", target_arch = "aarch64", target_arch = "riscv64")
))]
mod uring;
#[cfg(not(all(
    feature = "io_uring",
    target_os = "linux",
    any(target_arch = "x86_64", target_arch = "aarch64", target_arch = "riscv64")
)))]
mod uring {
    //! Replaces the module `uring` in a build without io_uring: there are no rings, so reads are done one after the
    //! other.
    use std::{fs, io, sync::Arc};

    #[derive(Debug)]
    pub(super) enum Rings {}

    impl Rings {
        pub(super) fn new(_watch: bool) -> Option<Arc<Rings>> {
            None
        }

        pub(super) fn should_spin(&self, _bytes: usize) -> bool {
            match *self {}
        }

        pub(super) fn try_out(&self) -> io::Result<()> {
            match *self {}
        }

        pub(super) fn queue(self: &Arc<Rings>, _file: &Arc<fs::File>) -> Option<Box<dyn super::Queue>> {
            match **self {}
        }
    }
}

#[doc(hidden)]
pub mod wrapper;

use std::{fmt, io, sync::Arc, time::Duration};

use crate::base::PAGE;

pub use buf::AlignedBuf;
pub use counting::CountingDevice;
pub use file::{FileDevice, Io};
pub(crate) use host::most_memory;
pub use mem::MemDevice;
pub(crate) use process::Process;
pub use reads::Reads;
pub use sim::SimDevice;

/// Options for opening a file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OpenHow {
    /// Open for writing as well as reading.
    pub write: bool,
    /// Create the file; it must not exist. Implies `write`.
    pub create_new: bool,
    /// Bypass the page cache if the file system supports it. On a direct file, transfers must be page-aligned in offset
    /// and length.
    pub direct: bool,
    /// Whether the file gets many small writes within the range that [`File::allocate`] has reserved, as a log does. If
    /// so, a new file may perform small writes without a system call for each. With or without a system call, a write
    /// that has returned survives the end of the process.
    pub small_writes: bool,
}

/// The access that the store's lock allows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LockMode {
    /// One writer, no readers.
    Exclusive,
    /// Any number of readers, no writer.
    Shared,
}

/// A held lock; dropping it releases the lock.
pub trait LockGuard: Send + Sync + fmt::Debug {}

/// A thread started by [`Device::spawn`].
pub trait JoinHandle: Send {
    /// Waits for the thread to end.
    fn join(self: Box<Self>);
}

/// A directory of files, and the other services of the machine that a store uses: clock, random numbers, threads and
/// locks.
///
/// A file name is one path component of at most 255 bytes, without `/`, `\\` and NUL. The name is not empty, and not
/// `.`, `..` or `lock`. An operation on any other name fails with `InvalidInput`.
pub trait Device: Send + Sync + fmt::Debug {
    /// Opens (or creates) the file `name`. The directory entry of a new file is durable after [`Device::sync_dir`].
    fn open(&self, name: &str, how: OpenHow) -> io::Result<Arc<dyn File>>;
    /// Renames a file. If a file named `to` exists, it is replaced.
    fn rename(&self, from: &str, to: &str) -> io::Result<()>;
    /// Removes a file.
    fn remove(&self, name: &str) -> io::Result<()>;
    /// The names of all regular files, sorted, without the lock file.
    fn list(&self) -> io::Result<Vec<String>>;
    /// Makes creations, renames and removals durable.
    fn sync_dir(&self) -> io::Result<()>;
    /// Takes the store's lock without waiting; fails with `WouldBlock` if another holder excludes it.
    fn lock(&self, mode: LockMode) -> io::Result<Box<dyn LockGuard>>;
    /// Monotonic time since an arbitrary start.
    fn now(&self) -> Duration;
    /// The time since the beginning of 1970 in UTC, by a clock that may be adjusted; `None` for a device without such a
    /// clock. For display only: no decision of the engine depends on this time.
    fn wall_clock(&self) -> Option<Duration> {
        None
    }
    /// Sleeps for `time`.
    fn sleep(&self, time: Duration);
    /// A random number, not for cryptography.
    fn random(&self) -> u64;
    /// Starts a background thread.
    fn spawn(&self, name: &str, body: Box<dyn FnOnce() + Send>) -> io::Result<Box<dyn JoinHandle>>;
    /// The path of the directory, for messages.
    fn path(&self) -> String;
    /// The free bytes of the file system, if the device knows them. Other files may use these bytes at any time, and
    /// the file system may need some of them for itself.
    fn available(&self) -> Option<u64>;
}

/// A read of a whole buffer; the buffer moves with the request.
#[derive(Debug)]
pub struct Read {
    /// The caller's identifier of the read.
    pub tag: usize,
    /// Byte offset, a multiple of the page size on a direct file.
    pub offset: u64,
    /// The destination of the bytes.
    pub buf: AlignedBuf,
}

/// A completed read: the number of bytes read, or an error.
#[derive(Debug)]
pub struct Done {
    /// The request, with its buffer.
    pub read: Read,
    /// The result, like that of [`File::read_at`]: a transfer may be short or interrupted.
    pub result: io::Result<usize>,
}

/// A queue of reads for a single caller. The reads are in flight at the same time and complete in any order. The queue
/// may be dropped with reads in flight. The results of these reads are then discarded, and their buffers are freed when
/// the device no longer uses them.
pub trait Queue: Send + fmt::Debug {
    /// Accepts a read, or returns it as the error if the queue is full now. An accepted read begins at the next
    /// [`Queue::start`], or when [`Queue::wait`] has to wait.
    fn push(&mut self, read: Read) -> Result<(), Read>;
    /// Begins all accepted reads together; does not wait.
    fn start(&mut self);
    /// Returns a completed read. If no read is completed, begins the accepted reads and waits for a completion. Returns
    /// `None` if no read is accepted or in flight.
    fn wait(&mut self) -> Option<Done>;
}

/// If [`File::allocate`] has extended a file, cutting the file frees space in units of at most this many bytes.
pub const ALLOCATED_UNIT: u64 = 128 << 10;

const _: () = assert!(ALLOCATED_UNIT.is_power_of_two() && ALLOCATED_UNIT >= PAGE as u64, "units are whole pages");

/// An open file.
pub trait File: Send + Sync + fmt::Debug {
    /// Reads up to `buf.len()` bytes, and returns the number of bytes read. 0 means the end of the file.
    fn read_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<usize>;
    /// Writes up to `buf.len()` bytes, and returns the number of bytes written.
    fn write_at(&self, offset: u64, buf: &[u8]) -> io::Result<usize>;
    /// The length in bytes.
    fn len(&self) -> io::Result<u64>;
    /// Cuts the file to `len` bytes, or extends it to `len` bytes with zeros that occupy no space.
    fn set_len(&self, len: u64) -> io::Result<()>;
    /// Allocates disk space for the range, so that writes to it cannot fail for lack of space, and extends the file to
    /// the end of the range. Existing content stays. If the file system cannot reserve space, only the part past the
    /// end of the file is allocated, by writing zeros (whole pages on a direct file).
    fn allocate(&self, offset: u64, len: u64) -> io::Result<()>;
    /// Frees the disk space of the range. The range then reads as zeros, and the length of the file stays the same. If
    /// the file system cannot do this, the call does nothing and the old bytes stay. So call it only for ranges that
    /// are not read again before they are written.
    fn punch_hole(&self, offset: u64, len: u64) -> io::Result<()>;
    /// The granularity of holes in bytes: a page for most file systems. A punched range frees the disk space of an
    /// aligned piece of this size only if it includes the whole piece. A free page keeps its disk space while other
    /// pages of its piece are in use, so reusing the page is better than punching it. The value is a power of two, at
    /// most [`ALLOCATED_UNIT`], and the same for all files of a device. A wrapping device forwards the value of the
    /// inner device.
    fn hole_unit(&self) -> u64 {
        PAGE as u64
    }
    /// Makes data (and the length) durable.
    fn sync(&self) -> io::Result<()>;
    /// The number of bytes of disk space that the file occupies.
    fn occupied(&self) -> io::Result<u64>;

    /// Whether the file is empty.
    fn is_empty(&self) -> io::Result<bool> {
        Ok(self.len()? == 0)
    }

    /// A queue for concurrent reads of this file, if the device has one now. Use it through [`Reads`].
    fn queue(&self) -> Option<Box<dyn Queue>> {
        None
    }

    /// Whether a single read of `bytes` bytes should also go through a queue because the read completes sooner in a
    /// queue than by [`File::read_at`]. Call this exactly once per read, because each call counts as a read in the
    /// policy that decides.
    fn queue_serves_one(&self, _bytes: usize) -> bool {
        false
    }
}

/// Reads exactly `buf.len()` bytes. Continues after short transfers and interruptions; fails with `UnexpectedEof` past
/// the end of the file.
///
/// # Errors
/// `UnexpectedEof`, and the errors of [`File::read_at`].
pub fn read_exact_at<F: File + ?Sized>(file: &F, offset: u64, buf: &mut [u8]) -> io::Result<()> {
    let mut done = 0;
    while done < buf.len() {
        match file.read_at(offset + done as u64, &mut buf[done..]) {
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(n) => {
                done += n;
                debug_assert!(done <= buf.len(), "{n} bytes were read past the buffer");
                // A torn write may leave a file that ends inside a page. A direct file cannot be read from an offset
                // inside a page.
                if done < buf.len() && file.len()? <= offset + done as u64 {
                    return Err(io::ErrorKind::UnexpectedEof.into());
                }
            }
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Err(e) => return Err(e),
        }
    }
    Ok(())
}

/// Writes all of `buf`. Continues after short transfers and interruptions.
///
/// # Errors
/// `WriteZero` if the device accepts no more bytes, and the errors of [`File::write_at`]. If this call fails, a part of
/// `buf` may have been written.
pub fn write_all_at<F: File + ?Sized>(file: &F, offset: u64, buf: &[u8]) -> io::Result<()> {
    let mut done = 0;
    while done < buf.len() {
        match file.write_at(offset + done as u64, &buf[done..]) {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(n) => done += n,
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Err(e) => return Err(e),
        }
        debug_assert!(done <= buf.len(), "more bytes were written than there are");
    }
    Ok(())
}
