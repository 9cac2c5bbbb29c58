//! [`Hands`]: CLOCK, the default replacement policy: the clock hands of the pool's eviction (002 §3.6.1).
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
//! 2. The thread passes the frames of the hand one after the other, until it meets a frame without chances, whose block
//!    it evicts.
//! 3. At the end of the hand, the thread takes the next 64 frames as its hand.
//!
//! The cache of 002 writes dirty pages to disk a quarter of a round before the hand reaches them. This pool has no such
//! step, because its blocks are never dirty.
//!
//! Invariant: a hand passes existing frames only.
//!
//! Locks: the lock of a group's hand is taken first. A thread that holds it takes the lock of one chain at a time.

use super::Keep;
use super::free::FreeFrames;
use super::table::{Evicted, Table};
use crate::base::sync::{AtomicU32, EXPLORED, Mutex, Ordering::Relaxed, thread_number};

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
}

impl Hands {
    /// Creates the hands of a pool, one for each group of threads.
    pub(super) fn new() -> Hands {
        Hands { groups: std::array::from_fn(|_| Mutex::default()), spread: GROUPS, next: AtomicU32::new(0) }
    }

    /// Creates one hand that all threads share, so that evictions do not depend on which threads make the requests.
    pub(super) fn one() -> Hands {
        Hands { spread: 1, ..Hands::new() }
    }

    /// Takes the next range of up to `SPAN` frames as a hand. The range is empty if there are no frames.
    fn take(&self, free: &FreeFrames) -> Hand {
        let used = free.used();
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

    /// Evicts the next block without chances. Returns `None` if no block is left to evict.
    // Always inlined, as `Pool::count_eviction` is: otherwise a miss took 2 % more instructions.
    #[inline(always)]
    pub(super) fn evict(&self, table: &Table, free: &FreeFrames) -> Option<Evicted> {
        let mut hand = self.groups[thread_number() % self.spread].lock();
        // Give up after passing this many frames without an eviction. The number of rounds is the most chances of a
        // frame plus 2. The frames of the hands of all groups are added.
        let rounds = u64::from(Keep::Long.ref_count()) + 2;
        let mut patience = rounds * u64::from(free.about()) + GROUPS as u64 * u64::from(SPAN);
        while patience > 0 {
            if hand.at >= hand.end {
                *hand = self.take(free);
                if hand.at >= hand.end {
                    return None;
                }
            }
            let number = hand.at;
            hand.at += 1;
            debug_assert!(hand.at <= hand.end, "a hand stays in its range");
            patience -= 1;
            let evicted = table.pass(number);
            if evicted.is_some() {
                return evicted;
            }
        }
        None
    }
}
