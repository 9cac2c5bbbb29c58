//! What a device can do: bandwidth of sequential reads and writes and of random reads of 4 KiB.
//!
//! A file is written in the directory and read back past the page cache (direct I/O), by several threads with one buffer
//! each; it is removed in the end. Memory is [`THREADS`] buffers of [`CHUNK`], whatever the file's length. A stage ends
//! after a given time. Where the file system has no direct I/O, the file is opened as others are, and the figures say so:
//! they are then those of memory.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

use pandodb::device::AlignedBuf;
use rustix::fs::{Mode, OFlags};
use serde::{Deserialize, Serialize};

use crate::engine::Result;
use crate::record::mix;

/// Threads that keep the device busy.
pub const THREADS: u64 = 16;
/// Bytes of a sequential transfer.
pub const CHUNK: usize = 1 << 20;
/// Bytes of a random read.
pub const BLOCK: usize = 4096;
/// Bytes a second.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Bandwidth {
    /// Sequential reads of 1 MiB.
    pub sequential_read: f64,
    /// Sequential writes of 1 MiB, synced.
    pub sequential_write: f64,
    /// Random reads of 4 KiB.
    pub random_read: f64,
    /// Past the page cache.
    pub is_direct: bool,
}

/// Measures the device that `directory` is on, with a file of `bytes`; each kind of read goes on for `stage`.
///
/// # Errors
/// What the system says: no space, no permission.
pub fn probe(directory: &Path, bytes: u64, stage: Duration) -> Result<Bandwidth> {
    // In a directory of its own: nothing of the caller's is there to be overwritten.
    let own = tempfile::Builder::new().prefix("pando-probe-").tempdir_in(directory)?;
    measure(&own.path().join("file"), bytes.div_ceil(CHUNK as u64).max(1), stage)
}

fn measure(path: &Path, chunks: u64, stage: Duration) -> Result<Bandwidth> {
    let (file, is_direct) = open(path)?;
    let sequential_write = write(&file, chunks)?;
    // Each thread reads a part of its own in order; together they keep the device's queue full.
    let part = chunks.div_ceil(THREADS);
    let sequential = |thread: u64, i: u64| (thread * part + i % part) % chunks * CHUNK as u64;
    let blocks = chunks * (CHUNK / BLOCK) as u64;
    let random = |thread: u64, i: u64| mix(thread << 40 | i) % blocks * BLOCK as u64;
    let sequential_read = read(&file, CHUNK, stage, sequential)?;
    let random_read = read(&file, BLOCK, stage, random)?;
    Ok(Bandwidth { sequential_read, sequential_write, random_read, is_direct })
}

/// A new file past the page cache, or an ordinary one; which of them.
fn open(path: &Path) -> Result<(File, bool)> {
    let flags = OFlags::RDWR | OFlags::CREATE | OFlags::CLOEXEC;
    let mode = Mode::RUSR | Mode::WUSR;
    match rustix::fs::open(path, flags | OFlags::DIRECT, mode) {
        Ok(file) => Ok((file.into(), true)),
        Err(rustix::io::Errno::INVAL) => Ok((rustix::fs::open(path, flags, mode)?.into(), false)),
        Err(error) => Err(error.into()),
    }
}

/// Writes the file once, in order; bytes a second.
fn write(file: &File, chunks: u64) -> Result<f64> {
    let mut buf = AlignedBuf::zeroed(CHUNK / BLOCK);
    // Zeros may be stored as nothing.
    buf.chunks_exact_mut(8).enumerate().for_each(|(i, word)| word.copy_from_slice(&mix(i as u64).to_le_bytes()));
    let started = Instant::now();
    for chunk in 0..chunks {
        buf[..8].copy_from_slice(&chunk.to_le_bytes());
        file.write_all_at(&buf, chunk * CHUNK as u64)?;
    }
    file.sync_all()?;
    Ok((chunks * CHUNK as u64) as f64 / started.elapsed().as_secs_f64())
}

/// Reads `len` bytes at `place(thread, i)` for i = 0, 1, … until time is up; bytes a second.
fn read(file: &File, len: usize, stage: Duration, place: impl Fn(u64, u64) -> u64 + Sync) -> Result<f64> {
    let stop = AtomicBool::new(false);
    let started = Instant::now();
    let reader = |thread: u64| -> Result<u64> {
        let mut buf = AlignedBuf::zeroed(len / BLOCK);
        let mut bytes = 0;
        while !stop.load(Relaxed) {
            file.read_exact_at(&mut buf, place(thread, bytes / len as u64))?;
            bytes += len as u64;
        }
        Ok(bytes)
    };
    let results: Vec<Result<u64>> = std::thread::scope(|scope| {
        let reader = &reader;
        let readers: Vec<_> = (0..THREADS).map(|thread| scope.spawn(move || reader(thread))).collect();
        std::thread::sleep(stage);
        stop.store(true, Relaxed);
        readers.into_iter().map(|reader| reader.join().unwrap_or_else(|_| Err("a reader panicked".into()))).collect()
    });
    let seconds = started.elapsed().as_secs_f64();
    Ok(results.into_iter().sum::<Result<u64>>()? as f64 / seconds)
}

#[cfg(test)]
mod tests {
    #[test]
    fn a_device_is_probed_and_left_clean() {
        let dir = tempfile::tempdir().unwrap();
        let bandwidth = super::probe(dir.path(), 3 << 20, std::time::Duration::from_millis(20)).unwrap();
        assert!(bandwidth.sequential_read > 0.0 && bandwidth.sequential_write > 0.0 && bandwidth.random_read > 0.0);
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0, "the file is gone");
    }
}
