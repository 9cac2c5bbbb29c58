//! The real device of a store: a directory of the operating system (Linux).
//!
//! Every file is opened relative to the open directory, never by path. So a `chdir` of the host program or a rename of
//! the directory has no effect. A symbolic link inside the store is rejected.
//!
//! - Files are created with mode 0600 and the directory with 0700, whatever the umask. All open files are closed on
//!   `exec`.
//! - Durability is `fdatasync` for files and `fsync` for the directory. A directory that this device creates is synced
//!   into its parent as well.
//! - Small writes to a file that is opened for small writes are copies into a mapping (`device/mapped.rs`).
//! - A direct file bypasses the page cache (`O_DIRECT`) if the file system supports it; otherwise the file is buffered.
//! - Reads of a direct file go through io_uring if io_uring is available and faster ([`Io`]). Otherwise they are done
//!   by pread, one after the other.
//! - The store's lock is an advisory lock on the file `lock`. The lock belongs to the open file, so it excludes a
//!   second opener in this process as well as in another process. The system releases the lock when the process ends.

use std::fs;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirBuilderExt, FileExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use rustix::fs::{AtFlags, Dir, FallocateFlags, FileType, Mode, OFlags};
use rustix::io::Errno;

use super::host::{Host, LOCK_FILE, check_name};
use super::mapped::Mapped;
use super::uring::Rings;
use super::{
    ALLOCATED_UNIT, AlignedBuf, Device, File, JoinHandle, LockGuard, LockMode, OpenHow, Process, Queue, write_all_at,
};
use crate::base::PAGE;

/// The magic number of btrfs in the result of `statfs`.
const BTRFS: rustix::fs::FsWord = 0x9123_683e;
/// A btrfs file consists of extents. An extent holds the bytes of one write call, and its space is freed only when no
/// part of it is in use. So no write call crosses a multiple of this size, and holes are punched in multiples of this
/// size. With a smaller size, writing would be slower: calls of 16 KiB write at 1/3 of the speed, and calls of one page
/// at 1/15.
const BTRFS_HOLE_UNIT: u64 = 128 << 10;
/// On a btrfs file system smaller than this size, every page is written by a call of its own, because a compaction
/// there often frees only a few pages of each run, never a whole unit of 128 KiB.
const SMALL_BTRFS: u64 = 4 << 30;
const FILE_MODE: u32 = 0o600;
const DIR_MODE: u32 = 0o700;
/// The number of pages that one call writes when space is allocated by writing zeros.
const ZERO_PAGES: usize = 64;

const _: () = assert!(BTRFS_HOLE_UNIT.is_power_of_two() && BTRFS_HOLE_UNIT <= ALLOCATED_UNIT, "as `File` promises");
const _: () = assert!((FILE_MODE | DIR_MODE) & 0o077 == 0, "only the owner reads a store");

/// The read method for the data file of a store in a directory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Io {
    /// If a caller submits several independent reads, they go through io_uring together. The reads are done one after
    /// the other if the system lacks io_uring or refuses it. A thread that waits for a read of a few pages polls before
    /// it sleeps, if polling has been faster recently.
    #[default]
    Auto,
    /// As [`Io::Auto`], but waiting threads sleep without polling first. A single read then takes longer and uses less
    /// processor time. Writers that wait for background work sleep, too.
    Sleeping,
    /// As [`Io::Auto`], but opening a store without io_uring fails.
    Uring,
    /// One read after the other, by `pread`.
    Sync,
}

/// A real directory.
#[derive(Debug)]
pub struct FileDevice {
    path: PathBuf,
    dir: fs::File,
    host: Host,
    /// The io_uring rings for concurrent reads.
    rings: Option<Arc<Rings>>,
}

impl FileDevice {
    /// Opens the directory. If `create` is set, durably creates a missing directory, but does not create its parents.
    /// An existing directory keeps its mode.
    ///
    /// # Errors
    /// The system's errors: `PermissionDenied`, …. The errors `NotFound`, `NotADirectory` and `InvalidInput` name the
    /// missing or conflicting path.
    pub fn open(path: &Path, create: bool) -> io::Result<FileDevice> {
        if path.as_os_str().as_bytes().contains(&0) {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "the path has a NUL byte, which no name can have"));
        }
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let opened = if create { create_dir(path) } else { Ok(()) };
        let opened = opened.and_then(|()| Ok(rustix::fs::open(path, flags, Mode::empty())?));
        let dir = fs::File::from(opened.map_err(|e| in_the_way(path, e))?);
        Ok(FileDevice { path: path.to_owned(), dir, host: Host::new(), rings: Rings::new(true) })
    }

    /// Sets the read method of files that are opened from now on.
    ///
    /// # Errors
    /// For [`Io::Uring`], the reason why io_uring is not available: `Unsupported`, `PermissionDenied` (a container may
    /// forbid it), ….
    pub fn with_io(mut self, io: Io) -> io::Result<FileDevice> {
        self.rings = match io {
            Io::Sync => None,
            Io::Auto | Io::Uring => Rings::new(true),
            Io::Sleeping => Rings::new(false),
        };
        if io == Io::Uring {
            self.rings.as_ref().ok_or(io::ErrorKind::Unsupported)?.try_out()?;
        }
        Ok(self)
    }

    fn open_at(&self, name: &str, flags: OFlags) -> io::Result<fs::File> {
        debug_assert!(name == LOCK_FILE || check_name(name).is_ok(), "the caller has checked `{name}`");
        let flags = flags | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        let mode = Mode::from_raw_mode(FILE_MODE);
        let fd = rustix::io::retry_on_intr(|| rustix::fs::openat(&self.dir, name, flags, mode))?;
        Ok(fs::File::from(fd))
    }

    /// Opens the lock file. A reader needs write permission only if the lock file does not exist yet.
    fn open_lock(&self, mode: LockMode) -> io::Result<fs::File> {
        if mode == LockMode::Shared {
            match self.open_at(LOCK_FILE, OFlags::RDONLY) {
                Err(e) if e.kind() == io::ErrorKind::NotFound => {}
                opened => return opened,
            }
        }
        match self.open_at(LOCK_FILE, OFlags::RDWR | OFlags::CREATE | OFlags::EXCL) {
            Ok(file) => {
                file.set_permissions(fs::Permissions::from_mode(FILE_MODE))?;
                Ok(file)
            }
            Err(e) if e.kind() == io::ErrorKind::AlreadyExists => self.open_at(LOCK_FILE, OFlags::RDWR),
            Err(e) => Err(e),
        }
    }
}

impl Device for FileDevice {
    fn open(&self, name: &str, how: OpenHow) -> io::Result<Arc<dyn File>> {
        check_name(name)?;
        let mut flags = if how.write || how.create_new { OFlags::RDWR } else { OFlags::RDONLY };
        if how.create_new {
            flags |= OFlags::CREATE | OFlags::EXCL;
        }
        let file = self.open_at(name, flags)?;
        if how.create_new {
            file.set_permissions(fs::Permissions::from_mode(FILE_MODE))?;
            write_in_place(&file);
        }
        if how.direct {
            bypass_cache(&file)?;
        }
        let mapped = (how.small_writes && how.create_new).then(|| Mapped::new(&file));
        let rings = self.rings.clone().filter(|_| how.direct);
        let longest = longest_write(&file);
        Ok(Arc::new(OsFile { file: Arc::new(file), mapped, rings, longest }))
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        check_name(from)?;
        check_name(to)?;
        Ok(rustix::fs::renameat(&self.dir, from, &self.dir, to)?)
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        check_name(name)?;
        Ok(rustix::fs::unlinkat(&self.dir, name, AtFlags::empty())?)
    }

    fn list(&self) -> io::Result<Vec<String>> {
        let mut names = Vec::new();
        for entry in Dir::read_from(&self.dir)? {
            let entry = entry?;
            // A name that is not UTF-8 was not created by a store, and cannot be passed through this trait.
            let Ok(name) = entry.file_name().to_str() else {
                continue;
            };
            let file_type = match entry.file_type() {
                FileType::Unknown => {
                    let stat = rustix::fs::statat(&self.dir, name, AtFlags::SYMLINK_NOFOLLOW)?;
                    FileType::from_raw_mode(stat.st_mode)
                }
                known => known,
            };
            if file_type == FileType::RegularFile && name != LOCK_FILE {
                names.push(name.to_owned());
            }
        }
        names.sort_unstable();
        Ok(names)
    }

    fn sync_dir(&self) -> io::Result<()> {
        self.dir.sync_all()
    }

    fn lock(&self, mode: LockMode) -> io::Result<Box<dyn LockGuard>> {
        let file = self.open_lock(mode)?;
        match mode {
            LockMode::Exclusive => file.try_lock(),
            LockMode::Shared => file.try_lock_shared(),
        }
        .map_err(io::Error::from)?;
        Ok(Box::new(OsLock { file, taken_in: Process::current() }))
    }

    fn now(&self) -> Duration {
        self.host.now()
    }

    fn wall_clock(&self) -> Option<Duration> {
        std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).ok()
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
        self.path.display().to_string()
    }

    fn available(&self) -> Option<u64> {
        let stat = rustix::fs::fstatvfs(&self.dir).ok()?;
        stat.f_bavail.checked_mul(stat.f_frsize)
    }
}

/// A lock on the open file `lock`. A child process that another thread has just forked holds the same open file until
/// the child executes another program. If the lock were released only by the last close of the file, such a child would
/// keep the next opener out until then. So dropping this lock unlocks the file explicitly. When a forked child drops a
/// handle that it inherited, it only closes its copy of the file, because the lock belongs to the parent.
#[derive(Debug)]
struct OsLock {
    file: fs::File,
    taken_in: Process,
}

impl LockGuard for OsLock {}

impl Drop for OsLock {
    fn drop(&mut self) {
        if self.taken_in.is_current() {
            // If unlocking fails, closing the file releases the lock.
            let _ = self.file.unlock();
        }
    }
}

#[derive(Debug)]
struct OsFile {
    /// The open file. Reads in flight keep the file open, too.
    file: Arc<fs::File>,
    /// The mapping for small writes, if the file was opened for small writes.
    mapped: Option<Mapped>,
    rings: Option<Arc<Rings>>,
    /// See [`longest_write`].
    longest: Option<u64>,
}

impl File for OsFile {
    fn read_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<usize> {
        self.file.read_at(buf, offset)
    }

    fn write_at(&self, offset: u64, buf: &[u8]) -> io::Result<usize> {
        if self.mapped.as_ref().is_some_and(|mapped| mapped.write(&self.file, offset, buf)) {
            return Ok(buf.len());
        }
        let first = pieces(offset, buf.len() as u64, self.longest).next().map_or(0, |(_, len)| len);
        debug_assert!(first <= buf.len() as u64 && (first > 0 || buf.is_empty()), "a write makes progress");
        self.file.write_at(&buf[..first as usize], offset)
    }

    fn len(&self) -> io::Result<u64> {
        Ok(self.file.metadata()?.len())
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        if let Some(mapped) = &self.mapped {
            mapped.cut(len);
        }
        self.file.set_len(len)
    }

    fn allocate(&self, offset: u64, len: u64) -> io::Result<()> {
        let allocate = || {
            let one = |(at, len)| fallocate(&self.file, FallocateFlags::empty(), at, len);
            pieces(offset, len, self.longest.and(Some(ALLOCATED_UNIT))).try_for_each(one)
        };
        let allocated = match &self.mapped {
            Some(mapped) => mapped.preallocate(offset, len, allocate),
            None => allocate(),
        };
        match allocated {
            Err(Errno::OPNOTSUPP | Errno::NOSYS) => self.extend_with_zeros(offset, len),
            result => Ok(result?),
        }
    }

    fn punch_hole(&self, offset: u64, len: u64) -> io::Result<()> {
        if let Some(mapped) = &self.mapped {
            mapped.end();
        }
        let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        match fallocate(&self.file, flags, offset, len) {
            Err(Errno::OPNOTSUPP | Errno::NOSYS) => Ok(()),
            result => Ok(result?),
        }
    }

    fn hole_unit(&self) -> u64 {
        let unit = self.longest.unwrap_or(PAGE as u64);
        debug_assert!(unit.is_power_of_two() && unit <= ALLOCATED_UNIT, "as `File` promises");
        unit
    }

    fn sync(&self) -> io::Result<()> {
        self.file.sync_data().inspect_err(|_| {
            // On a failing disk, a write to a mapping would raise a signal. Later writes must fail with an error
            // instead.
            self.mapped.iter().for_each(Mapped::end);
        })
    }

    fn occupied(&self) -> io::Result<u64> {
        // The unit of `st_blocks` is 512 bytes, whatever the block size of the file system.
        Ok(self.file.metadata()?.blocks() * 512)
    }

    fn queue(&self) -> Option<Box<dyn Queue>> {
        self.rings.as_ref()?.queue(&self.file)
    }

    fn queue_serves_one(&self, bytes: usize) -> bool {
        self.rings.as_ref().is_some_and(|rings| rings.should_spin(bytes))
    }
}

impl OsFile {
    /// Allocates space by writing zeros, if the file system cannot reserve it. Writes only past the end of the file:
    /// inside the file, zeros could overwrite bytes that another thread has just written.
    fn extend_with_zeros(&self, offset: u64, len: u64) -> io::Result<()> {
        let end = offset.checked_add(len).ok_or(io::ErrorKind::FileTooLarge)?;
        let zeros = AlignedBuf::zeroed(ZERO_PAGES);
        let mut at = self.len()?;
        while at < end {
            let n = (end - at).min((ZERO_PAGES * PAGE) as u64);
            write_all_at(self, at, &zeros[..n as usize])?;
            at += n;
        }
        Ok(())
    }
}

/// Splits a range at multiples of `unit`, if a unit is given. Returns offsets and lengths.
fn pieces(offset: u64, len: u64, unit: Option<u64>) -> impl Iterator<Item = (u64, u64)> {
    // A range whose end overflows stays whole, and the system rejects it.
    let cut = unit.zip(offset.checked_add(len));
    let piece = move |at: u64| {
        let (unit, end) = cut.filter(|&(_, end)| at < end)?;
        let len = (unit - at % unit).min(end - at);
        debug_assert!(len > 0 && at / unit == (at + len - 1) / unit, "no call writes across a unit");
        Some((at, len))
    };
    let first = if cut.is_some() { piece(offset) } else { Some((offset, len)) };
    std::iter::successors(first, move |&(at, len)| piece(at.wrapping_add(len)))
}

fn fallocate(file: &fs::File, flags: FallocateFlags, offset: u64, len: u64) -> Result<(), Errno> {
    if len == 0 {
        return Ok(());
    }
    rustix::io::retry_on_intr(|| rustix::fs::fallocate(file, flags, offset, len))
}

fn is_btrfs(file: &fs::File) -> bool {
    rustix::fs::fstatfs(file).is_ok_and(|stat| stat.f_type == BTRFS)
}

/// On btrfs, the number of bytes at whose multiples writes are split. `None` on other file systems.
fn longest_write(file: &fs::File) -> Option<u64> {
    let stat = rustix::fs::fstatvfs(file).ok().filter(|_| is_btrfs(file))?;
    let is_small = stat.f_blocks.saturating_mul(stat.f_frsize) < SMALL_BTRFS;
    Some(if is_small { PAGE as u64 } else { BTRFS_HOLE_UNIT })
}

/// Disables copy-on-write for a new file on btrfs. Otherwise every rewritten block needs new space, so writing a
/// superblock or the end of the log could fail on a full disk after data was accepted. The same flag disables the
/// checksums of btrfs, which is acceptable because the store has its own checksums. Other file systems need no such
/// flag. If the system refuses the flag, a full disk may poison the store.
fn write_in_place(file: &fs::File) {
    if is_btrfs(file)
        && let Ok(flags) = rustix::fs::ioctl_getflags(file)
    {
        let _ = rustix::fs::ioctl_setflags(file, flags | rustix::fs::IFlags::NOCOW);
    }
}

/// Adds the reason to an error about a missing directory, or about a path that is not a directory.
fn in_the_way(path: &Path, error: io::Error) -> io::Error {
    let is_file = |path: &&Path| fs::metadata(path).is_ok_and(|found| !found.is_dir());
    let words = match error.kind() {
        io::ErrorKind::NotADirectory if is_file(&path) => "it is a file, not a directory".to_owned(),
        io::ErrorKind::NotADirectory => match path.ancestors().skip(1).find(is_file) {
            Some(file) => format!("`{}`, a part of the path, is a file", file.display()),
            None => return error,
        },
        io::ErrorKind::NotFound => match path.parent().filter(|parent| !parent.as_os_str().is_empty()) {
            Some(parent) if !parent.is_dir() => {
                format!("there is no directory `{}` to hold it; make that first", parent.display())
            }
            _ => "there is no such directory".to_owned(),
        },
        _ => return error,
    };
    io::Error::new(error.kind(), words)
}

/// Durably creates the directory with its mode, if it is missing.
fn create_dir(path: &Path) -> io::Result<()> {
    match fs::DirBuilder::new().mode(DIR_MODE).create(path) {
        Err(e) if e.kind() == io::ErrorKind::AlreadyExists => return Ok(()),
        result => result?,
    }
    fs::set_permissions(path, fs::Permissions::from_mode(DIR_MODE))?;
    let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    fs::File::open(parent)?.sync_all()
}

/// Switches the page cache off for an open file. The cache is switched off only after opening, because an `open` with
/// `O_DIRECT` that fails on a file system without direct I/O leaves the created file on the disk.
fn bypass_cache(file: &fs::File) -> io::Result<()> {
    let flags = rustix::fs::fcntl_getfl(file)?;
    match rustix::fs::fcntl_setfl(file, flags | OFlags::DIRECT) {
        Err(Errno::INVAL | Errno::OPNOTSUPP) => Ok(()),
        result => Ok(result?),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Regression, found by `pando sim kill`: when a store was closed while another thread was starting a process, the
    /// store could not be reopened for a moment.
    #[test]
    fn the_lock_is_released_even_if_a_forked_process_still_holds_its_file() {
        let dir = tempfile::tempdir().unwrap();
        let device = FileDevice::open(dir.path(), true).unwrap();
        let file = device.open_lock(LockMode::Exclusive).unwrap();
        file.try_lock().unwrap();
        let inherited = file.try_clone().unwrap();
        drop(OsLock { file, taken_in: Process::current() });
        device.lock(LockMode::Exclusive).unwrap();
        drop(inherited);
    }

    #[test]
    fn space_is_allocated_by_writing_where_it_cannot_be_reserved() {
        let file = OsFile { file: Arc::new(tempfile::tempfile().unwrap()), mapped: None, rings: None, longest: None };
        file.write_at(0, b"kept").unwrap();
        let end = (ZERO_PAGES * PAGE) as u64 + 5000;
        file.extend_with_zeros(0, end).unwrap();
        assert_eq!(file.len().unwrap(), end);
        assert!(file.occupied().unwrap() >= end);
        let mut start = [1; 6];
        assert_eq!(file.read_at(0, &mut start).unwrap(), 6);
        assert_eq!(&start, b"kept\0\0");
        file.extend_with_zeros(0, 10).unwrap();
        assert_eq!(file.len().unwrap(), end, "allocating never shortens the file");
        assert!(file.extend_with_zeros(u64::MAX, 2).is_err());
    }
}
