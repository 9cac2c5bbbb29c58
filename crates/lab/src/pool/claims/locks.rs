//! [`Locks`]: the source's distributed reader-writer locks, with claims (002 §3.6.1).
//!
//! ```text
//!                entry   0   1   2   3 …
//!   counts of thread 0  [0] [1] [0] [2]       one byte each, written by that thread only: threads × entries bytes
//!   counts of thread 1  [0] [1] [0] [0]
//!   states              [ ] [c] [w] [ ]       c: claimed, w: being written
//! ```
//!
//! 1. Who reads counts, *then* looks at the write bit; if it is set, he takes the count back and begins again.
//! 2. Who wants to write reads first, then claims: one thread at a time, beside readers. If another one has the claim, he lets go.
//! 3. The claimer sets the write bit, *then* waits until every count but his own is zero.
//!
//! **Either the reader sees the bit or the writer sees the count**: each stores his own before he loads the other's, with a
//! fence of the strongest kind between (`crates/explore/loom`, model `counts`). That fence is all that a reader pays beside
//! two moves, in his own cache line.
//!
//! This file is run by the explorers, too, which bring their own primitives.

use pandodb::base::SeededBug;

use super::primitives::{
    AtomicU8,
    Ordering::{Acquire, Relaxed, Release, SeqCst},
    fence, relax,
};

const CLAIMED: u8 = 1;
const WRITTEN: u8 = 2;

/// A lock for each of many entries, for threads that are numbered.
#[derive(Debug)]
pub struct Locks {
    entries: usize,
    threads: usize,
    counts: Box<[AtomicU8]>,
    states: Box<[AtomicU8]>,
}

impl Locks {
    /// Locks that nobody holds.
    pub fn new(threads: usize, entries: usize) -> Locks {
        let zeros = |n: usize| (0..n).map(|_| AtomicU8::new(0)).collect();
        Locks { entries, threads, counts: zeros(threads * entries), states: zeros(entries) }
    }

    fn count(&self, thread: usize, entry: usize) -> &AtomicU8 {
        &self.counts[thread * self.entries + entry]
    }

    /// Tries to read an entry, once; `false` while it is written.
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

    /// A reader tries to claim the entry that it reads.
    pub fn claim(&self, entry: usize) -> bool {
        self.states[entry].fetch_or(CLAIMED, Acquire) & CLAIMED == 0
    }

    /// Ends a claim.
    pub fn end_claim(&self, entry: usize) {
        self.states[entry].fetch_and(!CLAIMED, Release);
    }

    /// The claimer goes on to writing, once all others have stopped reading. `false`, and nothing changed, if it reads the entry
    /// elsewhere, too: it would wait for itself.
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
