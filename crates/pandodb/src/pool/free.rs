//! [`FreeFrames`]: the number of frames that exist, and the list of those without a block.
//!
//! ```text
//!   frames   |0|1|2|3|4|5|            numbers below `used` exist
//!   free     [4, 1]                   frame() ─▶ 1, then 4, then the new frame 6;  give_back(n) ─▶ [4, 1, n]
//! ```
//!
//! Invariants: a frame number below `used` has a frame in the table; a free frame is in no chain.
//!
//! Lock: while a thread holds the lock of the list, it takes no other lock, but may initialize a segment of frames.
//! Source: 002 §3.6.1.

use super::table::Table;
use crate::base::sync::{
    AtomicU32, Mutex,
    Ordering::{Acquire, Relaxed, Release},
};

/// The frames without a block.
#[derive(Debug)]
pub(super) struct FreeFrames {
    /// The number of frames. Each frame with a number below `used` exists: `used` is stored with `Release` after the
    /// frame was created, and loaded with `Acquire` by threads that derive frame numbers from it.
    used: AtomicU32,
    /// Numbers of frames without a block.
    numbers: Mutex<Vec<u32>>,
}

impl FreeFrames {
    /// Creates an empty list, for a table without any frames.
    pub(super) fn new() -> FreeFrames {
        FreeFrames { used: AtomicU32::new(0), numbers: Mutex::new(Vec::new()) }
    }

    /// The number of frames, for a thread that derives frame numbers from it.
    pub(super) fn used(&self) -> u32 {
        self.used.load(Acquire)
    }

    /// The number of frames, for a thread that only estimates work from it.
    pub(super) fn about(&self) -> u32 {
        self.used.load(Relaxed)
    }

    /// Returns a frame without a block: a free one, or a new one.
    pub(super) fn frame(&self, table: &Table) -> u32 {
        let mut numbers = self.numbers.lock();
        numbers.pop().unwrap_or_else(|| {
            let number = self.used.load(Relaxed);
            assert!(number < u32::MAX, "a link is the number of a frame plus one");
            table.prepare(number);
            self.used.store(number + 1, Release);
            number
        })
    }

    /// Drops the block of a frame and adds the frame to the free frames.
    /// REQUIRES: the frame is in no chain and not free, and no other thread uses the frame for a block.
    pub(super) fn give_back(&self, table: &Table, number: u32) {
        table.vacate(number);
        self.numbers.lock().push(number);
    }
}
