//! [`Replacement`]: what the pool asks of a replacement policy.
//!
//! ```text
//!   Pool::put:    free frame ─▶ enter ─▶ link into a chain          Pool::forget: unlink ─▶ leave ─▶ free frame
//!   over the capacity:  evict (unlinks the frame of one victim) ─▶ free frame, until the pool is within its capacity
//! ```
//!
//! A policy knows frames by their numbers. It learns of hits in one of two ways. Each lookup sets the *mark* of the
//! frame, its chances, to their maximum; a policy reads and clears the mark during a search for a victim. So a hit
//! needs no call of the policy and no lock. Only `two_queue_locked` is called for each hit, because it measures that
//! cost.
//!
//! The pool calls these methods on misses only, one eviction at a time. It chooses the policy by an enum (`strategy`),
//! so that the compiler can inline CLOCK: behind a `dyn` pointer, with a callback for each victim, a miss under CLOCK
//! took 4 % more instructions.
//!
//! Invariants: a frame enters before it is linked, so that no thread can unlink a frame that the policy does not know
//! yet; a frame leaves exactly once, by the thread that took it out of its chain, before it becomes a free frame.
//!
//! Source: 000 §5.1.2, 002 §3.6.1; [decision 0082](../../../../docs/decisions/0082-pool-policies.md).

use super::free::FreeFrames;
use super::table::{Evicted, Table};

/// A replacement policy of the pool.
pub(super) trait Replacement {
    /// A frame is about to be linked with a block that was not cached before.
    /// REQUIRES: the frame is in no chain, and entered no earlier without leaving.
    fn enter(&self, number: u32);

    /// A frame that entered is in no chain any more, or was never linked.
    /// REQUIRES: [`Replacement::evict`] has not evicted the block of this frame.
    fn leave(&self, number: u32);

    /// Chooses a victim and takes its frame out of its chain; the caller owns the frame from then on. Returns `None` if
    /// no victim is left.
    fn evict(&self, table: &Table, free: &FreeFrames) -> Option<Evicted>;
}
