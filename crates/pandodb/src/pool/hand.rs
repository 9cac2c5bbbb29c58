//! [`Hands`]: which frames are looked at when room is needed, and which are free (002 §3.6.1).
//!
//! ```text
//!   frames   |■■■■■■■■|■■■■■■■■|■■■■■■■■|■■■■□□□□|      a hand is 64 frames in a row
//!                thread 1   thread 0  next ──▶             taken by compare-and-swap, round and round
//! ```
//!
//! Each of a few groups of threads has a hand of its own, from which it evicts, one frame after the other, as many as it
//! needs; then it takes the next. So two threads that miss work on different cache lines. The source writes dirty pages out a
//! quarter turn ahead; ours are never dirty.
//!
//! Locks: a group's hand, and under it chains, one at a time; the free frames, alone.

use super::Keep;
use super::table::Table;
use crate::base::sync::{
    AtomicU32, EXPLORED, Mutex,
    Ordering::{Acquire, Relaxed, Release},
    thread_number,
};

/// Frames of a hand.
const SPAN: u32 = if EXPLORED { 2 } else { 64 };
/// Groups of threads.
const GROUPS: usize = if EXPLORED { 2 } else { 8 };

/// Frames that are still to be looked at.
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
    /// How many of the groups there are.
    spread: usize,
    /// Where the next hand begins.
    next: AtomicU32,
    /// Frames that are there. Whoever reads a number below it finds the frame: stored with `Release` after the frame was made, and loaded with
    /// `Acquire` where numbers are taken from it.
    used: AtomicU32,
    /// Of these, the ones without a block.
    free: Mutex<Vec<u32>>,
}

impl Hands {
    /// No frames yet.
    pub(super) fn new() -> Hands {
        Hands {
            groups: std::array::from_fn(|_| Mutex::default()),
            spread: GROUPS,
            next: AtomicU32::new(0),
            used: AtomicU32::new(0),
            free: Mutex::new(Vec::new()),
        }
    }

    /// All threads evict from the same hand: what goes then does not depend on which threads have asked.
    pub(super) fn one(&mut self) {
        self.spread = 1;
    }

    /// The next hand: its frames.
    fn take(&self) -> Hand {
        let used = self.used.load(Acquire);
        let mut at = self.next.load(Relaxed);
        loop {
            let begin = if at < used { at } else { 0 };
            let end = used.min(begin + SPAN);
            match self.next.compare_exchange(at, end, Relaxed, Relaxed) {
                Ok(_) => return Hand { at: begin, end },
                Err(now) => at = now,
            }
        }
    }

    /// Throws blocks out, one after the other, as long as `wanted` says so: it is told which frame that was, the hash, and what the
    /// block was charged. `false` if there is nothing left to throw out.
    pub(super) fn evict(&self, table: &Table, mut wanted: impl FnMut(u32, u64, usize) -> bool) -> bool {
        let mut hand = self.groups[thread_number() % self.spread].lock();
        // As many rounds as a frame has chances, and one, and what other groups have in their hands.
        let rounds = u64::from(Keep::Long.chances()) + 2;
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

    /// A frame without a block: one that was given back, or a new one.
    pub(super) fn frame(&self, table: &Table) -> u32 {
        let mut free = self.free.lock();
        free.pop().unwrap_or_else(|| {
            let number = self.used.load(Relaxed);
            table.prepare(number);
            self.used.store(number + 1, Release);
            number
        })
    }

    /// Takes a frame back, and lets go of what it held.
    pub(super) fn give_back(&self, table: &Table, number: u32) {
        table.vacate(number);
        self.free.lock().push(number);
    }
}
