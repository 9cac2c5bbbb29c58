//! Measures the bandwidth of a device for sequential reads and writes and for random reads of 4 KiB.
//!
//! The probe writes a file in the directory and reads the file with direct I/O. Several threads do the reads, and each
//! thread has one buffer. The file is removed at the end. The probe uses [`THREADS`] buffers of [`CHUNK`] bytes,
//! however long the file is. Each kind of read ends after a given time. If the file system does not support direct I/O,
//! the probe opens the file without it. Then [`Bandwidth::is_direct`] is `false`, and the results are the bandwidths of
//! the page cache, not of the device.

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

/// The number of threads.
pub const THREADS: u64 = 16;
/// Bytes of a sequential transfer.
pub const CHUNK: usize = 1 << 20;
/// Bytes of a random read.
pub const BLOCK: usize = 4096;
/// The measured bandwidths in bytes per second.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Bandwidth {
    /// Sequential reads of 1 MiB.
    pub sequential_read: f64,
    /// Sequential writes of 1 MiB, synced.
    pub sequential_write: f64,
    /// Random reads of 4 KiB.
    pub random_read: f64,
    /// Whether direct I/O was used.
    pub is_direct: bool,
}

/// Measures the device of `directory` with a file of `bytes` bytes. Each kind of read takes the time `stage`.
///
/// # Errors
/// Errors of the operating system, such as no space or no permission.
pub fn probe(directory: &Path, bytes: u64, stage: Duration) -> Result<Bandwidth> {
    // The file is in a new directory, so that it cannot overwrite an existing file.
    let own = tempfile::Builder::new().prefix("pando-probe-").tempdir_in(directory)?;
    measure(&own.path().join("file"), bytes.div_ceil(CHUNK as u64).max(1), stage)
}

fn measure(path: &Path, chunks: u64, stage: Duration) -> Result<Bandwidth> {
    let (file, is_direct) = open(path)?;
    let sequential_write = write(&file, chunks)?;
    // Each thread reads its own part in order. Together the threads keep the queue of the device full.
    let part = chunks.div_ceil(THREADS);
    let sequential = |thread: u64, i: u64| (thread * part + i % part) % chunks * CHUNK as u64;
    let blocks = chunks * (CHUNK / BLOCK) as u64;
    let random = |thread: u64, i: u64| mix(thread << 40 | i) % blocks * BLOCK as u64;
    let sequential_read = read(&file, CHUNK, stage, sequential)?;
    let random_read = read(&file, BLOCK, stage, random)?;
    Ok(Bandwidth { sequential_read, sequential_write, random_read, is_direct })
}

/// Creates a file with direct I/O, or without it if the file system does not support it. Returns whether the file uses
/// direct I/O.
fn open(path: &Path) -> Result<(File, bool)> {
    let flags = OFlags::RDWR | OFlags::CREATE | OFlags::CLOEXEC;
    let mode = Mode::RUSR | Mode::WUSR;
    match rustix::fs::open(path, flags | OFlags::DIRECT, mode) {
        Ok(file) => Ok((file.into(), true)),
        Err(rustix::io::Errno::INVAL) => Ok((rustix::fs::open(path, flags, mode)?.into(), false)),
        Err(error) => Err(error.into()),
    }
}

/// Writes the file once, in order. Returns the rate in bytes per second.
fn write(file: &File, chunks: u64) -> Result<f64> {
    let mut buf = AlignedBuf::zeroed(CHUNK / BLOCK);
    // The contents are not zeros, because some devices and file systems do not store zeros.
    buf.chunks_exact_mut(8).enumerate().for_each(|(i, word)| word.copy_from_slice(&mix(i as u64).to_le_bytes()));
    let started = Instant::now();
    for chunk in 0..chunks {
        buf[..8].copy_from_slice(&chunk.to_le_bytes());
        file.write_all_at(&buf, chunk * CHUNK as u64)?;
    }
    file.sync_all()?;
    Ok((chunks * CHUNK as u64) as f64 / started.elapsed().as_secs_f64())
}

/// Reads `len` bytes at `place(thread, i)` for i = 0, 1, … until the end of the given time. Returns the rate in bytes
/// per second.
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
