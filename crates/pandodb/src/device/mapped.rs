//! Small writes without a system call: copies into a mapped window of the file.
//!
//! A log that is written at every commit gets one write of some hundred bytes each time. Most of the time of such a
//! write is spent in the system call and the file system, not on copying bytes. This module performs such a write as a
//! copy into a shared mapping of the file. The bytes are in the page cache when the copy returns, as after `pwrite`. So
//! the bytes survive the end of the process, however the process ends, and `fdatasync` makes the bytes durable.
//!
//! ```text
//!   allocated by fallocate ───────────────────────────────────────────────▶│ limit
//!   ┌───────────────┬═════════════════════════════════┬────────────────────┐
//!   │ written       ║ window, 256 KiB: mapped, locked ║ nothing yet        │
//!   └───────────────┴═════════════════════════════════┴────────────────────┘
//!                         ▲ small writes are copied; a write beyond the window moves it;
//!                           long writes, whole pages and writes past the limit go through pwrite
//! ```
//!
//! # When a page is mapped
//!
//! The kernel reports an I/O error in a mapped page by a signal that ends the process. So a page is mapped only where
//! no error is expected:
//!
//! - `fallocate` has reserved the space of the page, on a file system that overwrites reserved pages in place
//!   ([`overwrites_in_place`]). A copy-on-write file system would need new space for the second write of a page.
//! - No space of the range was freed. Before a file is cut or a hole is punched, the window is unmapped. Punching also
//!   ends the use of mappings for this file.
//! - The pages need not be read from the disk. They are new (reserved space reads as zeros without I/O) or still in
//!   memory, because the window is locked in memory if the process is allowed to lock it. If it is not, the kernel may
//!   evict a page between two writes and then read it again. Even then, an I/O error requires two events: a shortage of
//!   memory within the seconds in which a page is written, and a disk that cannot read a page that it has just
//!   accepted.
//!
//! Three cases remain in which the process ends although `pwrite` would return an error. First, another process
//! truncates a segment of a running store. Second, on XFS, the directory was cloned (a plain `cp` clones on XFS) and
//! the disk is too full to copy a shared block. Third, a file system shuts itself down after an internal error; the
//! process then ends when it writes to the next page. As after any kill, no acknowledged data is lost. A host program
//! that cannot accept these cases can switch to `pwrite` by `StoreBuilder::mapped_log`.
//!
//! A kill during a copy may leave a part of a log record in the file, as a power cut may do. The bytes that were copied
//! need not be the first ones. The record's checksum detects a partial record.
//!
//! [`word_wiped_by_fork`], which [`process`](super::process) uses, is in this file because it uses the same system
//! calls.
//!
//! Invariant: the window lies within `0..limit`, whose space is reserved.
//!
//! Source: our own design. The system of 002 §3.6.4 logs into memory of its own process, so a kill loses the log.
#![allow(unsafe_code)]

use std::fs;
use std::io;
use std::ptr::NonNull;
use std::sync::atomic::AtomicU64;

use rustix::fs::FsWord;
use rustix::mm::{Advice, MapFlags, MlockFlags, ProtFlags};

use crate::base::PAGE;
use crate::base::sync::Mutex;

/// The number of bytes that are mapped at a time. The window moves once in about two thousand writes of 100 bytes. A
/// move takes about 0.15 µs for each KiB, so a larger window makes the slowest writes slower (decision 0026).
const WINDOW: u64 = 256 << 10;
/// From this length on `pwrite` is cheaper, because it writes whole pages without a page fault for each page.
const LONG: usize = 16 << 10;
/// The magic numbers of `statfs` of ext2 to ext4, XFS and tmpfs, which overwrite reserved space in place.
const IN_PLACE: [FsWord; 3] = [0xef53, 0x5846_5342, 0x0102_1994];

const _: () = assert!(WINDOW.is_power_of_two() && WINDOW.is_multiple_of(PAGE as u64), "a window begins at a page");
const _: () = assert!((LONG as u64) < WINDOW, "a small write touches at most two windows");

/// The mapped writes of one file. One thread copies at a time; others wait for the lock.
#[derive(Debug)]
pub(super) struct Mapped {
    state: Mutex<State>,
    /// Whether the file system overwrites reserved space in place.
    overwrites_in_place: bool,
}

#[derive(Debug, Default)]
struct State {
    /// The space from the file's start to this offset is reserved.
    limit: u64,
    window: Option<Window>,
    /// Whether no more windows are mapped, because reserved space was freed, the system refused a mapping, or the disk
    /// failed.
    over: bool,
}

impl Mapped {
    /// The mapped writes of a new, empty file.
    pub fn new(file: &fs::File) -> Mapped {
        Mapped { state: Mutex::new(State::default()), overwrites_in_place: overwrites_in_place(file) }
    }

    /// Reserves space for the range by calling `allocate`. If the range begins inside or at the end of the reserved
    /// space, also notes the new limit.
    pub fn preallocate<E>(&self, offset: u64, len: u64, allocate: impl FnOnce() -> Result<(), E>) -> Result<(), E> {
        let mut state = self.state.lock();
        allocate()?;
        if self.overwrites_in_place && offset <= state.limit {
            state.limit = state.limit.max(offset + len);
        }
        Ok(())
    }

    /// Copies all of `buf` into the file. `false` means that the caller must write all of `buf` with `pwrite`.
    pub fn write(&self, file: &fs::File, offset: u64, buf: &[u8]) -> bool {
        // A write of whole pages uses no window either. It may be the header of a file that is used only much later,
        // and a window would be locked in memory until then.
        let whole = offset.is_multiple_of(PAGE as u64) && buf.len().is_multiple_of(PAGE);
        if buf.len() >= LONG || whole {
            return false;
        }
        let mut state = self.state.lock();
        let fits = offset.checked_add(buf.len() as u64).is_some_and(|end| end <= state.limit);
        if state.over || !fits {
            return false;
        }
        let mut done = 0;
        while done < buf.len() {
            let at = offset + done as u64;
            match state.window_at(file, at) {
                Some(window) => done += window.copy(at, &buf[done..]),
                // The caller writes the already copied part again.
                None => return false,
            }
        }
        true
    }

    /// Call this **before** the file is cut or extended to `len`. The space beyond `len` counts as not reserved from
    /// then on.
    pub fn cut(&self, len: u64) {
        let mut state = self.state.lock();
        state.limit = state.limit.min(len);
        state.window = None;
    }

    /// Ends mapped writes. Call this before space is freed inside the file, and when the disk has begun to fail.
    pub fn end(&self) {
        *self.state.lock() = State { over: true, ..State::default() };
    }
}

impl State {
    /// The window that holds the byte at offset `at`.
    /// REQUIRES: `at` is below the limit.
    fn window_at(&mut self, file: &fs::File, at: u64) -> Option<&Window> {
        assert!(at < self.limit, "no space is reserved at {at}");
        debug_assert!(
            self.window.as_ref().is_none_or(|window| window.start + window.len as u64 <= self.limit),
            "no space is reserved for a part of the window"
        );
        if self.window.as_ref().is_none_or(|window| !window.holds(at)) {
            // Unmap the old window first.
            self.window = None;
            let start = at / WINDOW * WINDOW;
            // Map whole pages only: an access past the file's last page would raise the signal.
            let end = (start + WINDOW).min(self.limit / PAGE as u64 * PAGE as u64);
            self.window = (at < end).then(|| Window::map(file, start, (end - start) as usize).ok()).flatten();
            self.over = self.window.is_none();
        }
        self.window.as_ref()
    }
}

/// A mapped range of a file; unmapped when dropped.
#[derive(Debug)]
struct Window {
    start: u64,
    len: usize,
    at: NonNull<u8>,
}

// SAFETY: the window owns its mapping, which belongs to no thread. The bytes are accessed only through `copy`, under
// the lock of `Mapped`, or by the sole owner of the window.
unsafe impl Send for Window {}

impl Window {
    fn map(file: &fs::File, start: u64, len: usize) -> io::Result<Window> {
        assert!(len > 0 && len.is_multiple_of(PAGE) && start.is_multiple_of(PAGE as u64), "a mapping of whole pages");
        let (prot, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED);
        // SAFETY: a new mapping at an address that the kernel chooses overlaps no memory of this process.
        let at = unsafe { rustix::mm::mmap(std::ptr::null_mut(), len, prot, flags, file, start)? };
        let at = NonNull::new(at.cast::<u8>()).ok_or(io::ErrorKind::OutOfMemory)?;
        let window = Window { start, len, at };
        // SAFETY: the range is the mapping that was just made. If the process may not lock memory, the range stays
        // unlocked.
        let _ = unsafe { rustix::mm::mlock_with(at.as_ptr().cast(), len, MlockFlags::ONFAULT) };
        Ok(window)
    }

    fn holds(&self, at: u64) -> bool {
        at >= self.start && at - self.start < self.len as u64
    }

    /// Copies as much of `buf` as fits into the window, to the file's offset `at`. Returns the number of copied bytes.
    fn copy(&self, at: u64, buf: &[u8]) -> usize {
        assert!(self.holds(at));
        let from = (at - self.start) as usize;
        let n = buf.len().min(self.len - from);
        // SAFETY: `from + n <= self.len`, so the target is inside the mapping, which exists as long as `self`. `buf` is
        // borrowed memory of this process and not part of the mapping, and no reference to a byte of the mapping is
        // ever made.
        unsafe { std::ptr::copy_nonoverlapping(buf.as_ptr(), self.at.as_ptr().add(from), n) };
        n
    }
}

impl Drop for Window {
    fn drop(&mut self) {
        // SAFETY: the range is the mapping that this window made, and no other code refers to the range.
        let unmapped = unsafe { rustix::mm::munmap(self.at.as_ptr().cast(), self.len) };
        debug_assert!(unmapped.is_ok(), "{unmapped:?}");
    }
}

/// A word of memory that reads as zero in a forked child, whatever value this process has written to it. `None` if the
/// system has no such memory. The word is never freed.
pub(super) fn word_wiped_by_fork() -> Option<&'static AtomicU64> {
    let (prot, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE);
    // SAFETY: a new mapping at an address that the kernel chooses overlaps no memory of this process.
    let at = unsafe { rustix::mm::mmap_anonymous(std::ptr::null_mut(), PAGE, prot, flags) }.ok()?;
    // SAFETY: the range is the mapping that was just made, to which no code refers yet.
    if unsafe { rustix::mm::madvise(at, PAGE, Advice::LinuxWipeOnFork) }.is_err() {
        // SAFETY: as for the call of `madvise`.
        let _ = unsafe { rustix::mm::munmap(at, PAGE) };
        return None;
    }
    // SAFETY: the address is the start of a page, so it is aligned. The zeros of the page are a valid number, in a
    // child, too. The mapping is never removed and is accessed through this reference alone.
    Some(unsafe { &*at.cast::<AtomicU64>() })
}

/// Whether the file's file system always overwrites reserved space in place.
fn overwrites_in_place(file: &fs::File) -> bool {
    rustix::fs::fstatfs(file).is_ok_and(|stat| IN_PLACE.contains(&stat.f_type))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::FileExt;

    use super::*;

    /// A file whose space is reserved up to `len`.
    fn preallocated(len: u64) -> (fs::File, Mapped) {
        let file = tempfile::tempfile().unwrap();
        rustix::fs::fallocate(&file, rustix::fs::FallocateFlags::empty(), 0, len).unwrap();
        let mapped = Mapped { state: Mutex::default(), overwrites_in_place: true };
        mapped.preallocate(0, len, || io::Result::Ok(())).unwrap();
        (file, mapped)
    }

    fn read(file: &fs::File, at: u64, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        file.read_exact_at(&mut bytes, at).unwrap();
        bytes
    }

    fn has_window(mapped: &Mapped) -> bool {
        mapped.state.lock().window.is_some()
    }

    #[test]
    fn copied_bytes_are_in_the_file_across_windows() {
        let (file, mapped) = preallocated(3 * WINDOW);
        let record: Vec<u8> = (0..1000u32).map(|i| (i % 251) as u8).collect();
        // Write across the first boundary, then back at the start, and up to the last byte.
        for at in [WINDOW - 500, 7, 2 * WINDOW - 1, 3 * WINDOW - 1000] {
            assert!(mapped.write(&file, at, &record));
            assert_eq!(read(&file, at, 1000), record);
        }
        assert_eq!(read(&file, WINDOW - 500, 500), record[..500], "the bytes written before stay");
    }

    #[test]
    fn only_reserved_space_is_mapped() {
        let (file, mapped) = preallocated(WINDOW + 5 * PAGE as u64);
        assert!(!mapped.write(&file, WINDOW + 5 * PAGE as u64 - 3, b"beyond"));
        assert!(!mapped.write(&file, u64::MAX, b"x"));
        assert!(!mapped.write(&file, 0, &[1; LONG + 1]), "long writes go through pwrite");
        assert!(
            !mapped.write(&file, 0, &[1; PAGE]) && mapped.state.lock().window.is_none(),
            "whole pages, too, without a window"
        );
        assert!(!has_window(&mapped));
        assert!(mapped.write(&file, WINDOW + 5 * PAGE as u64 - 3, b"end"));

        mapped.cut(WINDOW);
        assert!(!has_window(&mapped), "unmapped before it is cut");
        file.set_len(WINDOW).unwrap();
        assert!(!mapped.write(&file, WINDOW, b"x"));
        assert!(mapped.write(&file, WINDOW - 1, b"x"));

        mapped.end();
        assert!(!has_window(&mapped));
        assert!(!mapped.write(&file, 0, b"x"));
        mapped.preallocate(0, WINDOW, || io::Result::Ok(())).unwrap();
        assert!(!mapped.write(&file, 0, b"x"), "mapped writes have ended");
    }

    #[test]
    fn a_partly_reserved_page_is_not_mapped() {
        let (file, mapped) = preallocated(PAGE as u64 + 100);
        assert!(mapped.write(&file, PAGE as u64 - 4, b"kept"));
        assert!(!mapped.write(&file, PAGE as u64 + 4, b"page"));
    }

    #[test]
    fn a_file_that_cannot_be_mapped_is_written_by_pwrite() {
        let (whole, mapped) = preallocated(WINDOW);
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("a"), vec![0; WINDOW as usize]).unwrap();
        let read_only = fs::File::open(dir.path().join("a")).unwrap();
        assert!(!mapped.write(&read_only, 0, b"x"));
        assert!(!mapped.write(&whole, 0, b"x"), "refused once, never tried again");
    }

    #[test]
    fn reserved_space_ends_before_the_first_gap() {
        let mapped = Mapped { state: Mutex::default(), overwrites_in_place: true };
        mapped.preallocate(PAGE as u64, PAGE as u64, || io::Result::Ok(())).unwrap();
        assert_eq!(mapped.state.lock().limit, 0);
        let doubtful = Mapped { state: Mutex::default(), overwrites_in_place: false };
        doubtful.preallocate(0, PAGE as u64, || io::Result::Ok(())).unwrap();
        assert_eq!(doubtful.state.lock().limit, 0);
    }
}
