//! [`Locks`]: the source's distributed reader-writer locks, with claims (002 §3.6.1).
//!
//! ```text
//!                entry   0   1   2   3 …
//!   counts of thread 0  [0] [1] [0] [2]       one byte each, written by that thread only: threads × entries bytes
//!   counts of thread 1  [0] [1] [0] [0]
//!   states              [ ] [c] [w] [ ]       c: claimed, w: being written
//! ```
//!
//! 1. A reader increments its count, *then* checks the write bit. If the bit is set, it decrements the count and
//!    retries.
//! 2. A writer first reads, then claims. One thread at a time has the claim, concurrently with readers. If another
//!    thread has it, the writer gives up its claim attempt and ends its read.
//! 3. The claimer sets the write bit, *then* waits until all counts but its own are zero.
//!
//! **Either the reader sees the bit or the writer sees the count**: each stores its own before it loads the other's,
//! with a `SeqCst` fence between (`crates/explore/loom`, model `counts`). The fence and two moves in its own cache line
//! are the whole cost of a reader.
//!
//! The explorers compile this file, too, with their own primitives.

use pandodb::base::SeededBug;

use super::primitives::{
    AtomicU8,
    Ordering::{Acquire, Relaxed, Release, SeqCst},
    fence, relax,
};

const CLAIMED: u8 = 1;
const WRITTEN: u8 = 2;

/// A reader-writer lock for each of many entries, for numbered threads.
#[derive(Debug)]
pub struct Locks {
    entries: usize,
    threads: usize,
    counts: Box<[AtomicU8]>,
    states: Box<[AtomicU8]>,
}

impl Locks {
    /// New locks; all are free.
    pub fn new(threads: usize, entries: usize) -> Locks {
        let zeros = |n: usize| (0..n).map(|_| AtomicU8::new(0)).collect();
        Locks { entries, threads, counts: zeros(threads * entries), states: zeros(entries) }
    }

    fn count(&self, thread: usize, entry: usize) -> &AtomicU8 {
        &self.counts[thread * self.entries + entry]
    }

    /// Tries once to lock an entry for reading; `false` if it is being written.
    #[inline]
    pub fn read(&self, thread: usize, entry: usize) -> bool {
        let count = self.count(thread, entry);
        count.store(count.load(Relaxed) + 1, Relaxed);
        fence(SeqCst);
        let free = self.states[entry].load(Acquire) & WRITTEN == 0;
        if !free {
            self.end_read(thread, entry);
        }
        free
    }

    /// Ends reading.
    #[inline]
    pub fn end_read(&self, thread: usize, entry: usize) {
        let count = self.count(thread, entry);
        count.store(count.load(Relaxed) - 1, Release);
    }

    /// Tries to claim an entry that this thread reads.
    pub fn claim(&self, entry: usize) -> bool {
        self.states[entry].fetch_or(CLAIMED, Acquire) & CLAIMED == 0
    }

    /// Releases a claim.
    pub fn end_claim(&self, entry: usize) {
        self.states[entry].fetch_and(!CLAIMED, Release);
    }

    /// Upgrades a claim to a write lock, after all other threads have stopped reading. Returns `false` and changes
    /// nothing if this thread reads the entry twice, since it would wait for itself.
    pub fn write(&self, thread: usize, entry: usize) -> bool {
        if self.count(thread, entry).load(Relaxed) > 1 {
            return false;
        }
        self.states[entry].fetch_or(WRITTEN, Relaxed);
        fence(SeqCst);
        for other in (0..self.threads).filter(|&other| other != thread && !SeededBug::ReaderCountLost.is_on()) {
            let mut turn = 0;
            while self.count(other, entry).load(Acquire) > 0 {
                relax(turn);
                turn += 1;
            }
        }
        true
    }

    /// Ends writing; the claim is still held.
    pub fn end_write(&self, entry: usize) {
        self.states[entry].fetch_and(!WRITTEN, Release);
    }
}
