//! The device: the one owner of every side effect.
//!
//! Files, directory entries, the lock, the clock, randomness and threads are reached through [`Device`] and [`File`], so
//! that a simulator can stand in for the machine ([`sim`]), count it ([`counting`]) or keep it in memory ([`mem`]).
//! Nothing else in the engine touches `std::fs`, `Instant::now` or `std::thread`.
//!
//! One thing at a time goes through [`File::read_at`] and [`File::write_at`], as with pread and pwrite. Reads that do not
//! depend on each other go through [`Reads`], *submit and complete*: a device that can do several at once hands out a
//! [`Queue`] for them ([`File::queue`]), any other does them one after the other.
//!
//! Transfers may be short and may be interrupted, as POSIX allows; [`read_exact_at`] and [`write_all_at`] finish them.

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
    //! No rings: reads are done one after the other.
    use std::{fs, io, sync::Arc};

    #[derive(Debug)]
    pub(super) enum Rings {}

    impl Rings {
        pub(super) fn new(_watch: bool) -> Option<Arc<Rings>> {
            None
        }

        pub(super) fn watches(&self, _bytes: usize) -> bool {
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

/// How to open a file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OpenHow {
    /// Open for writing too.
    pub write: bool,
    /// Create the file; it must not exist. Implies `write`.
    pub create_new: bool,
    /// Bypass the page cache where the file system can; transfers are then page-aligned in offset and length.
    pub direct: bool,
    /// Many small writes will follow one another in what [`File::allocate`] has occupied, as in a log: a new file may take them
    /// without a system call each. What a write that returned is worth stays the same: it survives the process.
    pub small_writes: bool,
}

/// What the store's lock allows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LockMode {
    /// One writer, no readers.
    Exclusive,
    /// Any number of readers, no writer.
    Shared,
}

/// A held lock; dropping it lets go.
pub trait LockGuard: Send + Sync + fmt::Debug {}

/// A thread started by [`Device::spawn`].
pub trait JoinHandle: Send {
    /// Waits for the thread to end.
    fn join(self: Box<Self>);
}

/// A directory of files and the machine around it.
///
/// A file name is one path component: not empty, `.`, `..` or `lock`, at most 255 bytes, without `/`, `\\` and NUL.
/// Others fail with `InvalidInput`.
pub trait Device: Send + Sync + fmt::Debug {
    /// Opens (or creates) the file `name`. The directory entry of a new file is durable after [`Device::sync_dir`].
    fn open(&self, name: &str, how: OpenHow) -> io::Result<Arc<dyn File>>;
    /// Renames a file, replacing the target.
    fn rename(&self, from: &str, to: &str) -> io::Result<()>;
    /// Removes a file.
    fn remove(&self, name: &str) -> io::Result<()>;
    /// The names of all regular files, sorted; the lock is not among them.
    fn list(&self) -> io::Result<Vec<String>>;
    /// Makes creations, renames and removals durable.
    fn sync_dir(&self) -> io::Result<()>;
    /// Takes the store's lock without waiting; `WouldBlock` if someone else holds it.
    fn lock(&self, mode: LockMode) -> io::Result<Box<dyn LockGuard>>;
    /// Monotonic time since an arbitrary start.
    fn now(&self) -> Duration;
    /// The time since the beginning of 1970 in UTC, by a clock that may be set; `None` for a device without one. For people only:
    /// the engine decides nothing by it.
    fn wall_clock(&self) -> Option<Duration> {
        None
    }
    /// Waits.
    fn sleep(&self, time: Duration);
    /// A random number, not for cryptography.
    fn random(&self) -> u64;
    /// Starts a background thread.
    fn spawn(&self, name: &str, body: Box<dyn FnOnce() + Send>) -> io::Result<Box<dyn JoinHandle>>;
    /// Where the directory is, for messages.
    fn path(&self) -> String;
    /// Bytes that the file system has left for the store, as far as the device knows: other files may take them at any time, and
    /// a file system may need some for itself.
    fn available(&self) -> Option<u64>;
}

/// A read of a whole buffer, which travels with it.
#[derive(Debug)]
pub struct Read {
    /// What the caller knows the read by.
    pub tag: usize,
    /// Byte offset, a multiple of the page size on a direct file.
    pub offset: u64,
    /// Where the bytes go.
    pub buf: AlignedBuf,
}

/// A read that has ended: how many bytes it has read, or why none.
#[derive(Debug)]
pub struct Done {
    /// What was asked for.
    pub read: Read,
    /// As [`File::read_at`] returns it: transfers may be short, and interrupted.
    pub result: io::Result<usize>,
}

/// Reads of one caller that the device does beside each other. They end in any order. Dropping the queue with reads in
/// flight is allowed: nobody sees them, and their buffers live until the device is done with them.
pub trait Queue: Send + fmt::Debug {
    /// Takes a read in, or gives it back if there is no room now. It begins at the next [`Queue::start`], or when
    /// [`Queue::wait`] has to wait.
    fn push(&mut self, read: Read) -> Result<(), Read>;
    /// Begins what was taken in, all together; does not wait.
    fn start(&mut self);
    /// A read that has ended. If none has, begins what was taken in and waits for one; `None` if there is none to wait
    /// for.
    fn wait(&mut self) -> Option<Done>;
}

/// Cutting a file that [`File::allocate`] has occupied frees space in units of this many bytes, or smaller ones.
pub const ALLOCATED_UNIT: u64 = 128 << 10;

/// An open file.
pub trait File: Send + Sync + fmt::Debug {
    /// Reads up to `buf.len()` bytes; returns how many. 0 means the end of the file.
    fn read_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<usize>;
    /// Writes up to `buf.len()` bytes; returns how many.
    fn write_at(&self, offset: u64, buf: &[u8]) -> io::Result<usize>;
    /// The length in bytes.
    fn len(&self) -> io::Result<u64>;
    /// Cuts or extends (with zeros, without occupying space) to `len` bytes.
    fn set_len(&self, len: u64) -> io::Result<()>;
    /// Occupies space for the range, which then cannot fail for want of space, and extends the file to its end. What
    /// the range holds stays. Where the file system cannot promise space, only what lies past the end is occupied, by
    /// writing zeros (whole pages on a direct file).
    fn allocate(&self, offset: u64, len: u64) -> io::Result<()>;
    /// Gives the space of the range back; it reads as zeros then, and the length stays. Where the file system cannot,
    /// this does nothing and the old bytes stay: ask for it only where nobody reads again before writing.
    fn punch_hole(&self, offset: u64, len: u64) -> io::Result<()>;
    /// The granularity of holes in bytes: a page for most file systems. Only pieces of this size, counted from the start of the file,
    /// free disk space, and only if they are punched whole. A free page of a piece of which others are in use keeps its space, and
    /// is better left as it is, to be written over. A power of two, at most [`ALLOCATED_UNIT`]. The same for all files of a
    /// device. A device that wraps another passes its answer on.
    fn hole_unit(&self) -> u64 {
        PAGE as u64
    }
    /// Makes data (and the length) durable.
    fn sync(&self) -> io::Result<()>;
    /// Bytes that the file occupies on the device.
    fn occupied(&self) -> io::Result<u64>;

    /// Whether the file is empty.
    fn is_empty(&self) -> io::Result<bool> {
        Ok(self.len()? == 0)
    }

    /// A queue for reads of this file beside each other, if the device can do that now. Use it through [`Reads`].
    fn queue(&self) -> Option<Box<dyn Queue>> {
        None
    }

    /// Whether a read of so many bytes, by itself, is to go through a queue, too: it ends sooner there than by
    /// [`File::read_at`]. To be asked once before each: that is counted.
    fn queue_serves_one(&self, _bytes: usize) -> bool {
        false
    }
}

/// Reads exactly `buf.len()` bytes: goes on after short transfers and interruptions, fails with `UnexpectedEof` past
/// the end.
///
/// # Errors
/// `UnexpectedEof`; what [`File::read_at`] fails with.
pub fn read_exact_at<F: File + ?Sized>(file: &F, offset: u64, buf: &mut [u8]) -> io::Result<()> {
    let mut done = 0;
    while done < buf.len() {
        match file.read_at(offset + done as u64, &mut buf[done..]) {
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(n) => {
                done += n;
                // A torn write may leave a length inside a page; a direct file could not be asked for the rest of it.
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

/// Writes all of `buf`: goes on after short transfers and interruptions.
///
/// # Errors
/// `WriteZero` if the device takes nothing more; what [`File::write_at`] fails with, a part then being written.
pub fn write_all_at<F: File + ?Sized>(file: &F, offset: u64, buf: &[u8]) -> io::Result<()> {
    let mut done = 0;
    while done < buf.len() {
        match file.write_at(offset + done as u64, &buf[done..]) {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(n) => done += n,
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Err(e) => return Err(e),
        }
    }
    Ok(())
}
