//! [`Queues`]: order among threads that would otherwise conflict again and again over the same key.
//!
//! ```text
//!   key ─▶ hash ─▶ one of 1,024 queues:   holder │ waiting, waiting …
//! ```
//!
//! A transaction that has lost two conflicts waits for its turns in the queues of the keys before it runs again, and
//! holds its turns until it has ended. Updates of single keys do so from the beginning. So most of these threads do not
//! disturb each other, and most of them commit at their next attempt. Other transactions that have read such a key let
//! the holder of the turn commit first. Otherwise a thread that has just committed would begin its next transaction,
//! and commit it, before the next thread in the queue has woken up.
//!
//! A turn is only advice. Other writers ignore it, a wait ends if no turn is released for some milliseconds, and two
//! keys may share a queue. So threads that wait for each other do not block forever, and correctness never depends on a
//! turn.

use std::time::Duration;

use crate::base::key_hash;
use crate::base::sync::{AtomicUsize, Condvar, Mutex, MutexGuard, Once, Ordering::Relaxed};
use crate::device::Process;

/// The number of queues.
const QUEUES: usize = 1024;
/// A thread stops waiting if no release wakes it within this time. The time doubles with each attempt of its
/// transaction. A thread that lets the holder of a turn commit first waits at most this long.
const PATIENCE: Duration = Duration::from_millis(1);
/// The time doubles at most this number of times.
const MOST_DOUBLINGS: u32 = 6;
/// A released turn goes to the thread that asks first, which is usually one that is running, so that no time is lost
/// while a waiting thread wakes up. A thread that has found the turn taken this number of times after it was woken gets
/// the next turn. The number halves with each attempt.
const MOST_OVERTAKEN: u32 = 8;

/// The queues of a store.
#[derive(Default)]
pub(crate) struct Queues {
    queues: Once<Box<[Queue]>>,
    /// The number of turns that are held.
    held: AtomicUsize,
    made_in: Process,
}

#[derive(Default)]
struct Queue {
    state: Mutex<State>,
    released: Condvar,
}

#[derive(Default)]
struct State {
    is_held: bool,
    /// The number of threads that wait for a release, including those that have timed out and not locked the queue yet.
    waiting: u32,
    /// A waiting thread was woken and has not looked at the queue yet. Until then no other thread is woken. Otherwise
    /// each release would wake a thread that finds the turn taken again.
    is_waking: bool,
    /// The number of waiting threads that other threads have overtaken too often.
    overtaken: u32,
    /// The turn was released, and only one of these threads may take it. Then `is_held` is set, too.
    is_reserved: bool,
}

/// The number of a queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct QueueNumber(usize);

/// The turn in a queue, until it is dropped.
pub(crate) struct Turn<'a> {
    of: &'a Queues,
    queue: &'a Queue,
    pub(crate) number: QueueNumber,
}

impl QueueNumber {
    /// The queue of a key, or of a range that begins with this key.
    pub(crate) fn of(keyspace: &str, key: &[u8]) -> QueueNumber {
        let hash = key_hash(keyspace.as_bytes()).rotate_left(1) ^ key_hash(key);
        QueueNumber((hash % QUEUES as u64) as usize)
    }
}

impl Queue {
    /// Waits until another thread wakes this one, because it has released the turn or passed it on; `false` after
    /// `patience`.
    fn is_released_within(&self, patience: Duration, state: &mut MutexGuard<'_, State>) -> bool {
        state.waiting += 1;
        let has_timed_out = self.released.wait_for(state, patience).timed_out();
        state.waiting -= 1;
        state.is_waking = false;
        !has_timed_out
    }
}

impl Queues {
    /// Waits for the turn in a queue; `None` if it takes too long. The patience doubles with each attempt.
    pub(crate) fn wait(&self, QueueNumber(number): QueueNumber, attempt: u32) -> Option<Turn<'_>> {
        let patience = PATIENCE * (1 << attempt.min(MOST_DOUBLINGS));
        let queue = &self.queues.get_or_init(|| (0..QUEUES).map(|_| Queue::default()).collect())[number];
        let (mut state, mut chances, mut is_overtaken) = (queue.state.lock(), MOST_OVERTAKEN >> attempt.min(31), false);
        while state.is_held && !(is_overtaken && state.is_reserved) {
            if chances == 0 && !is_overtaken {
                is_overtaken = true;
                state.overtaken += 1;
                continue;
            }
            chances = chances.saturating_sub(1);
            if !queue.is_released_within(patience, &mut state) {
                break;
            }
        }
        state.overtaken -= u32::from(is_overtaken);
        let is_mine = !state.is_held || is_overtaken && state.is_reserved;
        if !is_mine {
            return None;
        }
        (state.is_held, state.is_reserved) = (true, false);
        drop(state);
        self.held.fetch_add(1, Relaxed);
        Some(Turn { of: self, queue, number: QueueNumber(number) })
    }

    /// Whether any turn is held.
    pub(crate) fn are_in_use(&self) -> bool {
        self.held.load(Relaxed) > 0
    }

    /// Waits until the turn in a queue is released.
    pub(crate) fn let_pass(&self, QueueNumber(number): QueueNumber) {
        if let Some(queue) = self.queues.get().map(|queues| &queues[number]) {
            let mut state = queue.state.lock();
            if state.is_held && queue.is_released_within(PATIENCE, &mut state) && state.waiting > 0 {
                // This thread does not take the turn, so wake the next one.
                state.is_waking = true;
                queue.released.notify_one();
            }
        }
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        if !self.of.made_in.is_current() {
            // In a forked child, a thread that exists only in the parent may hold the lock forever.
            return;
        }
        self.of.held.fetch_sub(1, Relaxed);
        let mut state = self.queue.state.lock();
        state.is_reserved = state.overtaken > 0;
        state.is_held = state.is_reserved;
        let (is_reserved, wakes) = (state.is_reserved, state.waiting > 0 && !state.is_waking);
        state.is_waking |= wakes;
        drop(state);
        if is_reserved {
            // A thread that was not overtaken may not take the turn, so wake all.
            self.queue.released.notify_all();
        } else if wakes && !self.queue.released.notify_one() {
            // The threads that were waiting have stopped by themselves.
            self.queue.state.lock().is_waking = false;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_turn_is_held_by_one_and_a_wait_ends() {
        let queues = Queues::default();
        let number = QueueNumber::of("k", b"a");
        let turn = queues.wait(number, 0).expect("free");
        assert!(queues.wait(number, 0).is_none(), "the wait ends");
        drop(turn);
        assert!(queues.wait(number, 0).is_some());
        assert_ne!(number, QueueNumber::of("k", b"b"));
    }
}
