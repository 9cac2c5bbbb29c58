//! Several commits are applied concurrently. [`Watermark`] determines up to which commit all commits are applied.
//!
//! Under the sequencer each commit draws a *ticket*, the next number. The commit applies its operations outside of the
//! sequencer, concurrently with other commits, and then reports its ticket here. `done` counts the tickets that are
//! applied together with all earlier tickets.
//!
//! ```text
//!   tickets   … 17   18   19   20   21 …            slots: a ring, ticket t in slot t mod N
//!             applied ··   applied ··                18 comes: done goes to 20 at once,
//!                  ▲ done = 18                       by 18's own thread
//! ```
//!
//! 1. [`Watermark::finish`]: the commit with the oldest unfinished ticket advances `done` itself. Any other commit
//!    leaves a note in the slot of its ticket, and checks again whether its ticket has become the oldest.
//! 2. The thread that advances `done` checks the next slot, and advances `done` further as long as it finds notes.
//! 3. [`Watermark::wait`] returns when `done` has reached the ticket of the caller. The waiting thread spins briefly,
//!    then sleeps.
//!
//! **No note is lost.** A note is left before a read-modify-write of `done`, and `done` is advanced by a
//! read-modify-write before the next slot is read. These operations are ordered: either the advancing thread sees the
//! note, or the thread that left the note sees that its ticket is the oldest. Sleeping threads are ordered in the same
//! way. A thread that goes to sleep first adds itself to the number of sleeping threads, and then reads `done`. The
//! advancing thread first advances `done`, and then checks for sleeping threads. Therefore no operation needs a
//! stronger ordering than `AcqRel` (`crates/explore/loom`, models `ring` and `sleep`).
//!
//! **A thread that sees `done` above a ticket sees every operation that was applied under this ticket and all earlier
//! tickets.** The reason: notes are left with `Release` and read with `Acquire`, and `done` is changed by
//! read-modify-writes only.
//!
//! A ticket that was drawn is always finished. If a commit failed, it first *gives up* its ticket. From then on no
//! later commit becomes visible, because `visible` must not advance past the failed commit. But no thread waits without
//! end.

use crate::base::seeded;
use crate::base::sync::{
    AtomicU64, AtomicUsize, Condvar, Mutex,
    Ordering::{AcqRel, Acquire, Relaxed, Release},
    linger,
};

/// A value that many threads write, in a cache line of its own.
#[derive(Debug, Default)]
#[repr(align(64))]
pub(crate) struct CachePadded<T>(pub T);

impl<T> std::ops::Deref for CachePadded<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.0
    }
}

/// The state of the tickets: it records which tickets are finished.
#[derive(Debug)]
pub(crate) struct Watermark {
    /// All tickets below this number are finished. It is changed by read-modify-writes only.
    done: CachePadded<AtomicU64>,
    /// The notes. If a ticket is finished but an earlier ticket is not, the slot of the finished ticket holds the
    /// number of this ticket plus one.
    slots: Box<[CachePadded<AtomicU64>]>,
    /// The first ticket that was given up; the largest number if no ticket was given up.
    given_up: CachePadded<AtomicU64>,
    /// The number of sleeping threads.
    asleep: AtomicUsize,
    /// This lock is held by a thread that is about to sleep, and by a thread that wakes others.
    gate: Mutex<()>,
    moved: Condvar,
}

impl Watermark {
    /// A watermark without tickets, for at most `slots` commits in flight.
    pub(crate) fn new(slots: usize) -> Watermark {
        assert!(slots > 0, "somebody has to be under way");
        Watermark {
            done: CachePadded(AtomicU64::new(0)),
            slots: (0..slots).map(|_| CachePadded(AtomicU64::new(0))).collect(),
            given_up: CachePadded(AtomicU64::new(u64::MAX)),
            asleep: AtomicUsize::new(0),
            gate: Mutex::new(()),
            moved: Condvar::new(),
        }
    }

    /// The limit for drawing tickets. At the moment, only tickets below this number have a free slot.
    pub(crate) fn limit(&self) -> u64 {
        self.done.load(Acquire) + self.slots.len() as u64
    }

    /// All tickets below this number are finished.
    pub(crate) fn done(&self) -> u64 {
        self.done.load(Acquire)
    }

    /// Waits until a slot is free for `ticket`.
    pub(crate) fn wait_for_slot(&self, ticket: u64) {
        self.wait((ticket + 1).saturating_sub(self.slots.len() as u64));
    }

    fn slot(&self, ticket: u64) -> &AtomicU64 {
        &self.slots[(ticket % self.slots.len() as u64) as usize]
    }

    /// Records that `ticket` is applied. REQUIRES: called once for each ticket that was drawn.
    pub(crate) fn finish(&self, ticket: u64) {
        let is_next = seeded!(WatermarkPassesGap: self.done.fetch_max(ticket + 1, AcqRel) <= ticket, self.note(ticket));
        if is_next {
            self.take_notes();
            self.wake();
        }
    }

    /// If `ticket` is the oldest unfinished ticket, advances `done` past it. Otherwise leaves a note. Returns whether
    /// this thread must take the notes of the tickets after `ticket`.
    #[inline]
    fn note(&self, ticket: u64) -> bool {
        if self.done.compare_exchange(ticket, ticket + 1, AcqRel, Relaxed).is_err() {
            debug_assert!(self.slot(ticket).load(Relaxed) < ticket + 1, "finished twice, or the ring is too small");
            self.slot(ticket).store(ticket + 1, Release);
            // This operation adds 0. Its purpose is to order this thread relative to the threads that change `done`.
            return self.done.fetch_add(0, AcqRel) == ticket;
        }
        true
    }

    /// Advances `done` as long as the next slot holds a note. If another thread has advanced `done` in the meantime,
    /// this call returns, because the other thread takes the remaining notes.
    fn take_notes(&self) {
        let mut next = self.done.load(Acquire);
        while self.slot(next).load(Acquire) == next + 1
            && self.done.compare_exchange(next, next + 1, AcqRel, Relaxed).is_ok()
        {
            next += 1;
        }
    }

    /// Records that `ticket` will not be applied, or only in part, and finishes the ticket.
    pub(crate) fn give_up(&self, ticket: u64) {
        self.given_up.fetch_min(ticket, AcqRel);
        self.finish(ticket);
    }

    /// Whether `ticket` or an earlier ticket was given up. `ticket` must be finished.
    pub(crate) fn is_given_up(&self, ticket: u64) -> bool {
        self.given_up.load(Relaxed) <= ticket
    }

    /// Waits until all tickets below `end` are finished.
    pub(crate) fn wait(&self, end: u64) {
        let mut round = 0;
        while self.done.load(Acquire) < end {
            if !linger(&mut round) {
                return self.sleep(end);
            }
        }
    }

    fn sleep(&self, end: u64) {
        let mut gate = self.gate.lock();
        self.asleep.fetch_add(1, AcqRel);
        // As in `finish`, this operation orders the threads: a thread that advances `done` later sees that this thread
        // is asleep, and needs the gate in order to wake this thread.
        while self.done.fetch_add(0, AcqRel) < end {
            self.moved.wait(&mut gate);
        }
        self.asleep.fetch_sub(1, AcqRel);
    }

    fn wake(&self) {
        if self.asleep.load(Relaxed) > 0 {
            drop(self.gate.lock());
            self.moved.notify_all();
        }
    }
}

#[cfg(test)]
mod tests;
