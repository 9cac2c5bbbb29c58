//! [`TwoQueue`]: the replacement policy 2Q without a lock around lookups. A hit only sets the mark of its frame, as
//! under CLOCK; the search for a victim updates the queues later.
//!
//! ```text
//!   hit ──▶ mark                         search:  FIFO  [3 ][7*][9p][2 ]     7 ─▶ LRU, 9 stays, 3 or 2 is evicted
//!                                                 LRU   [4*][1 ]             4 ─▶ newest end, 1 is evicted
//!                                                 * marked   p in use
//! ```
//!
//! Steps of a search for victims ([`Replacement::evict`]), under the lock of the queues:
//!
//! 1. Meet the frames of the FIFO queue, the oldest first. A marked frame was hit since it was cached: clear its mark,
//!    and move it to the newest end of the LRU queue. Skip a frame whose block is in use. Evict any other frame.
//! 2. If the FIFO queue has no victim left, meet the frames of the LRU queue in the same way, at most twice each. A
//!    marked frame moves to the newest end. The first round clears the marks, so the second round finds a victim unless
//!    all blocks are in use or are hit again.
//!
//! Compared with `two_queue_locked`, the LRU queue is in the order of the searches that met the hits, not in the order
//! of the hits.
//!
//! A block is *in use* if anything but its frame counts a reference to it (`Table::evict_unused`). A reader that guards
//! a block counts no reference; but its lookup has marked the frame, so the next search that meets the frame does not
//! evict the block. A block that is evicted all the same stays in memory until the reader drops it.
//!
//! Invariants: a frame is in a queue from before it is linked until after it is unlinked. A search meets each frame a
//! bounded number of times, so it ends although other threads set marks.
//!
//! Lock: a thread that holds the lock of the queues takes the lock of one chain at a time.
//!
//! Source: 000 §5.1.2; [decision 0082](../../../../docs/decisions/0082-pool-policies.md).

use super::free::FreeFrames;
use super::queues::{Queue, Queues};
use super::replacement::Replacement;
use super::table::{Evicted, Table};
use crate::base::SeededBug;
use crate::base::sync::Mutex;

/// 2Q whose hits take no lock.
#[derive(Debug, Default)]
pub(super) struct TwoQueue {
    queues: Mutex<Queues>,
}

/// Meets each frame of a queue at most once, until it finds a victim.
fn sweep(queues: &mut Queues, queue: Queue, table: &Table) -> Option<Evicted> {
    let mut next = queues.oldest(queue);
    for _ in 0..queues.len(queue) {
        let number = next?;
        next = queues.newer(number);
        if table.take_mark(number) && !SeededBug::SecondAccessNotSeen.is_on() {
            queues.access(number);
        } else if let Some(evicted) = table.evict_unused(number) {
            queues.remove(number);
            return Some(evicted);
        }
    }
    None
}

impl Replacement for TwoQueue {
    fn enter(&self, number: u32) {
        self.queues.lock().enter(number);
    }

    fn leave(&self, number: u32) {
        self.queues.lock().remove(number);
    }

    fn evict(&self, table: &Table, _: &FreeFrames) -> Option<Evicted> {
        let mut queues = self.queues.lock();
        [Queue::Fifo, Queue::Lru, Queue::Lru].into_iter().find_map(|queue| sweep(&mut queues, queue, table))
    }
}
