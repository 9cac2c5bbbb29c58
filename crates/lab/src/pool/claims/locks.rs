//! [`Locks`]: the distributed reader-writer locks of the source, with claims (002 §3.6.1).
//!
//! ```text
//!                entry   0   1   2   3 …
//!   counts of thread 0  [0] [1] [0] [2]       one byte each, written by that thread only: threads × entries bytes
//!   counts of thread 1  [0] [1] [0] [0]
//!   states              [ ] [c] [w] [ ]       c: claimed, w: being written
//! ```
//!
//! 1. A reader increments its count of the entry. *After that*, it checks the write bit of the entry. If the bit is
//!    set, the reader decrements the count and retries.
//! 2. A writer first locks the entry for reading, then claims it. Only one thread at a time has the claim, but other
//!    threads may read concurrently. If another thread has the claim, the writer releases its read lock and returns
//!    without success.
//! 3. The thread with the claim sets the write bit. *After that*, it waits until all counts except its own count are
//!    zero.
//!
//! **Either the reader sees the bit or the writer sees the count.** The reason is that each thread stores its own flag,
//! executes a `SeqCst` fence, and loads the flag of the other thread (`crates/explore/loom`, model `counts`). A read
//! costs only the fence and two stores in the reader's own cache line.
//!
//! The schedule explorers also compile this file, with their own primitives.

use pandodb::base::SeededBug;

use super::primitives::{
    AtomicU8,
    Ordering::{Acquire, Relaxed, Release, SeqCst},
    fence, relax,
};

const CLAIMED: u8 = 1;
const WRITTEN: u8 = 2;

/// One reader-writer lock for each of many entries. The threads are numbered.
#[derive(Debug)]
pub struct Locks {
    entries: usize,
    threads: usize,
    counts: Box<[AtomicU8]>,
    states: Box<[AtomicU8]>,
}

impl Locks {
    /// Creates the locks. All of them are free.
    pub fn new(threads: usize, entries: usize) -> Locks {
        let zeros = |n: usize| (0..n).map(|_| AtomicU8::new(0)).collect();
        Locks { entries, threads, counts: zeros(threads * entries), states: zeros(entries) }
    }

    fn count(&self, thread: usize, entry: usize) -> &AtomicU8 {
        &self.counts[thread * self.entries + entry]
    }

    /// Tries once to lock an entry for reading. Returns `false` if another thread is writing the entry.
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

    /// Ends the read of an entry.
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
    /// nothing if this thread reads the entry twice, because the thread would wait for itself.
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

    /// Ends writing. The thread keeps the claim.
    pub fn end_write(&self, entry: usize) {
        self.states[entry].fetch_and(!WRITTEN, Release);
    }
}
