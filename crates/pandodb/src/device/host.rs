//! Code that several devices share: checks of names and transfers, the clock, random numbers, threads and a lock table.
//!
//! [`Host`] is the real machine, for the devices that run on it. [`Locks`] is the store's lock for devices that exist
//! only within one process. The directory device uses a lock of the operating system instead.

use std::collections::hash_map::RandomState;
use std::hash::BuildHasher;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};
use std::{fmt, io, thread};

use parking_lot::Mutex;

use super::{JoinHandle, LockGuard, LockMode};
use crate::base::PAGE;

/// The file that the directory device locks. No device lists or opens a file with this name.
pub const LOCK_FILE: &str = "lock";

/// The longest file that the devices in memory accept, in bytes (1 TiB).
pub const MAX_FILE: u64 = 1 << 40;

/// The most memory that this process can use, in bytes: the smaller of the machine's memory and the limit on the
/// process's address space (`ulimit -v`).
pub fn most_memory() -> usize {
    let info = rustix::system::sysinfo();
    let machine = u64::from(info.mem_unit).saturating_mul(info.totalram as u64);
    let limit = rustix::process::getrlimit(rustix::process::Resource::As).current.unwrap_or(u64::MAX);
    usize::try_from(machine.min(limit)).unwrap_or(usize::MAX)
}

/// Rejects names that could leave the directory or denote the lock file.
pub fn check_name(name: &str) -> io::Result<()> {
    let bad = name.is_empty() || name.len() > 255 || name == "." || name == ".." || name == LOCK_FILE;
    if bad || name.contains(['/', '\\', '\0']) {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, format!("`{name}` cannot name a file of a store")));
    }
    Ok(())
}

/// Rejects a transfer that the kernel would reject on a direct file, because its offset, its length or the address of
/// `buf` is not page-aligned.
pub fn check_direct(offset: u64, buf: &[u8]) -> io::Result<()> {
    let misaligned = |n: usize| !n.is_multiple_of(PAGE);
    if !offset.is_multiple_of(PAGE as u64) || misaligned(buf.len()) || misaligned(buf.as_ptr().addr()) {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "unaligned transfer on a direct file"));
    }
    Ok(())
}

/// The end of `offset..offset + len`. Rejects an end past [`MAX_FILE`].
pub fn check_range(offset: u64, len: u64) -> io::Result<u64> {
    offset.checked_add(len).filter(|end| *end <= MAX_FILE).ok_or_else(|| io::ErrorKind::FileTooLarge.into())
}

/// The real machine: its clock, its randomness, its threads.
pub struct Host {
    start: Instant,
    hasher: RandomState,
    drawn: AtomicU64,
}

impl Host {
    pub fn new() -> Host {
        Host { start: Instant::now(), hasher: RandomState::new(), drawn: AtomicU64::new(0) }
    }

    /// Monotonic time since the `Host` was created.
    pub fn now(&self) -> Duration {
        self.start.elapsed()
    }

    /// Hashes a number that never repeats, with random keys of this process.
    pub fn random(&self) -> u64 {
        self.hasher.hash_one(self.drawn.fetch_add(1, Ordering::Relaxed))
    }

    pub fn spawn(name: &str, body: Box<dyn FnOnce() + Send>) -> io::Result<Box<dyn JoinHandle>> {
        let handle = thread::Builder::new().name(name.to_owned()).spawn(body)?;
        Ok(Box::new(HostThread(handle)))
    }
}

impl fmt::Debug for Host {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Host")
    }
}

struct HostThread(thread::JoinHandle<()>);

impl JoinHandle for HostThread {
    fn join(self: Box<Self>) {
        // The panic hook has already reported a panic of the thread. Raising the panic again here would abort an owner
        // that calls `join` during unwinding or in a `drop`. A caller whose thread body can panic must detect the panic
        // from the state that the thread left behind.
        let _ = self.0.join();
    }
}

/// The store's lock within one process.
#[derive(Debug, Default)]
pub struct Locks {
    held: Mutex<Held>,
}

#[derive(Debug, Default)]
struct Held {
    exclusive: bool,
    shared: u32,
}

impl Locks {
    /// Takes the lock, or fails with `WouldBlock`.
    pub fn take(self: &Arc<Locks>, mode: LockMode) -> io::Result<Box<dyn LockGuard>> {
        let mut held = self.held.lock();
        debug_assert!(!held.exclusive || held.shared == 0, "a writer excludes readers");
        let blocked = held.exclusive || (mode == LockMode::Exclusive && held.shared > 0);
        if blocked {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        match mode {
            LockMode::Exclusive => held.exclusive = true,
            LockMode::Shared => held.shared += 1,
        }
        Ok(Box::new(HeldLock { locks: Arc::clone(self), mode }))
    }
}

#[derive(Debug)]
struct HeldLock {
    locks: Arc<Locks>,
    mode: LockMode,
}

impl LockGuard for HeldLock {}

impl Drop for HeldLock {
    fn drop(&mut self) {
        let mut held = self.locks.held.lock();
        match self.mode {
            LockMode::Exclusive => {
                debug_assert!(held.exclusive, "an exclusive guard holds the lock");
                held.exclusive = false;
            }
            LockMode::Shared => {
                debug_assert!(held.shared > 0, "a shared guard holds the lock");
                held.shared -= 1;
            }
        }
    }
}
