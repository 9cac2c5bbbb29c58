//! [`Hands`]: the clock hands of the pool's eviction, and the list of free frames (002 §3.6.1).
//!
//! ```text
//!   frames   |■■■■■■■■|■■■■■■■■|■■■■■■■■|■■■■□□□□|      a hand is 64 frames in a row
//!                thread 1   thread 0  next ──▶             taken by compare-and-swap, round and round
//! ```
//!
//! Steps of an eviction ([`Hands::evict`]):
//!
//! 1. A thread locks the hand of its group. Threads are divided into 8 groups, so that threads that evict at the same
//!    time work on different cache lines if they belong to different groups.
//! 2. The thread passes the frames of the hand one after the other and evicts the blocks of frames without chances,
//!    until it has evicted enough.
//! 3. At the end of the hand, the thread takes the next 64 frames as its hand.
//!
//! The cache of 002 writes dirty pages to disk a quarter of a round before the hand reaches them. This pool has no such
//! step, because its blocks are never dirty.
//!
//! Invariants: a frame number below `used` has a frame in the table; a free frame is in no chain.
//!
//! Locks: the lock of a group's hand is taken first. A thread that holds it takes the lock of one chain at a time and,
//! in the callback of [`Hands::evict`], the lock of the free frames. While a thread holds the lock of the free frames,
//! it takes no other lock, but may initialize a segment of frames.

use super::Keep;
use super::table::Table;
use crate::base::sync::{
    AtomicU32, EXPLORED, Mutex,
    Ordering::{Acquire, Relaxed, Release},
    thread_number,
};

/// The number of frames of a hand.
const SPAN: u32 = if EXPLORED { 2 } else { 64 };
/// The number of groups of threads. Each group has one hand.
const GROUPS: usize = if EXPLORED { 2 } else { 8 };

const _: () = assert!(SPAN > 0 && GROUPS > 0, "an eviction makes progress");

/// The range of frames that a group still has to inspect.
#[derive(Debug, Default)]
#[repr(align(64))]
struct Hand {
    at: u32,
    end: u32,
}

/// The hands of all groups.
#[derive(Debug)]
pub(super) struct Hands {
    groups: [Mutex<Hand>; GROUPS],
    /// The number of groups that are in use.
    spread: usize,
    /// The frame at which the next hand begins.
    next: AtomicU32,
    /// The number of frames. Each frame with a number below `used` exists: `used` is stored with `Release` after the
    /// frame was created, and loaded with `Acquire` by threads that derive frame numbers from it.
    used: AtomicU32,
    /// Numbers of frames without a block.
    free: Mutex<Vec<u32>>,
}

impl Hands {
    /// Creates hands without any frames.
    pub(super) fn new() -> Hands {
        Hands {
            groups: std::array::from_fn(|_| Mutex::default()),
            spread: GROUPS,
            next: AtomicU32::new(0),
            used: AtomicU32::new(0),
            free: Mutex::new(Vec::new()),
        }
    }

    /// Makes all threads share one hand, so that evictions do not depend on which threads make the requests.
    pub(super) fn one(&mut self) {
        self.spread = 1;
    }

    /// Takes the next range of up to `SPAN` frames as a hand. The range is empty if there are no frames.
    fn take(&self) -> Hand {
        let used = self.used.load(Acquire);
        let mut at = self.next.load(Relaxed);
        loop {
            let begin = if at < used { at } else { 0 };
            let end = used.min(begin + SPAN);
            debug_assert!(begin <= end && end - begin <= SPAN, "a hand passes existing frames only");
            match self.next.compare_exchange(at, end, Relaxed, Relaxed) {
                Ok(_) => return Hand { at: begin, end },
                Err(now) => at = now,
            }
        }
    }

    /// Evicts blocks until `wanted` returns `false`. Calls `wanted` after each eviction with the frame's number, the
    /// hash of the block's key and the bytes that were charged for the block. Returns `false` if nothing is left to
    /// evict.
    pub(super) fn evict(&self, table: &Table, mut wanted: impl FnMut(u32, u64, usize) -> bool) -> bool {
        let mut hand = self.groups[thread_number() % self.spread].lock();
        // Give up after passing this many frames without an eviction. The number of rounds is the most chances of a
        // frame plus 2. The frames of the hands of all groups are added.
        let rounds = u64::from(Keep::Long.ref_count()) + 2;
        let mut patience = rounds * u64::from(self.used.load(Relaxed)) + GROUPS as u64 * u64::from(SPAN);
        while patience > 0 {
            if hand.at >= hand.end {
                *hand = self.take();
                if hand.at >= hand.end {
                    return false;
                }
            }
            let number = hand.at;
            hand.at += 1;
            debug_assert!(hand.at <= hand.end, "a hand stays in its range");
            patience -= 1;
            if let Some((hash, cost)) = table.pass(number) {
                if !wanted(number, hash, cost) {
                    return true;
                }
                patience = rounds * u64::from(self.used.load(Relaxed)) + GROUPS as u64 * u64::from(SPAN);
            }
        }
        false
    }

    /// Returns a frame without a block: a free one, or a new one.
    pub(super) fn frame(&self, table: &Table) -> u32 {
        let mut free = self.free.lock();
        free.pop().unwrap_or_else(|| {
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
        self.free.lock().push(number);
    }
}
