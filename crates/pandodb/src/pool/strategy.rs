//! [`Strategy`]: the replacement policy of a pool, one of all that exist.
//!
//! ```text
//!   Pool ──enter, leave, evict──▶ Strategy ──match──▶ Hands | TwoQueue | TwoQueueLocked | nothing (optimal)
//! ```
//!
//! Steps of a call: the enum passes the call to the policy that was chosen when the pool was created.
//!
//! Invariant: the variant never changes, so lookups test it without synchronization. The state of each policy is in a
//! box of its own, so that searches for victims do not write the cache lines that hits read.
//!
//! Source: 000 §5.1.2, 002 §3.6.1; [decision 0082](../../../../docs/decisions/0082-pool-policies.md).

use super::free::FreeFrames;
use super::hand::Hands;
use super::policy::PoolPolicy;
use super::replacement::Replacement;
use super::table::{Evicted, Table};
use super::two_queue::TwoQueue;
use super::two_queue_locked::TwoQueueLocked;

/// A replacement policy with its state.
#[derive(Debug)]
pub(super) enum Strategy {
    Clock(Box<Hands>),
    TwoQueue(Box<TwoQueue>),
    TwoQueueLocked(Box<TwoQueueLocked>),
    /// Keeps all blocks. The pool does not limit the bytes of blocks under this policy, so it asks for no victims.
    Optimal,
}

impl Strategy {
    pub(super) fn new(policy: PoolPolicy) -> Strategy {
        match policy {
            PoolPolicy::Clock => Strategy::Clock(Box::new(Hands::new())),
            PoolPolicy::TwoQueue => Strategy::TwoQueue(Box::default()),
            PoolPolicy::TwoQueueLocked => Strategy::TwoQueueLocked(Box::default()),
            PoolPolicy::Optimal => Strategy::Optimal,
        }
    }

    /// Whether the capacity of the pool does not limit blocks.
    #[inline]
    pub(super) fn keeps_all(&self) -> bool {
        matches!(self, Strategy::Optimal)
    }

    #[inline]
    pub(super) fn is_clock(&self) -> bool {
        matches!(self, Strategy::Clock(_))
    }
}

impl Replacement for Strategy {
    #[inline]
    fn enter(&self, number: u32) {
        match self {
            // The hands find the frames by themselves.
            Strategy::Clock(_) | Strategy::Optimal => {}
            Strategy::TwoQueue(policy) => policy.enter(number),
            Strategy::TwoQueueLocked(policy) => policy.enter(number),
        }
    }

    #[inline]
    fn leave(&self, number: u32) {
        match self {
            Strategy::Clock(_) | Strategy::Optimal => {}
            Strategy::TwoQueue(policy) => policy.leave(number),
            Strategy::TwoQueueLocked(policy) => policy.leave(number),
        }
    }

    #[inline]
    fn evict(&self, table: &Table, free: &FreeFrames) -> Option<Evicted> {
        match self {
            Strategy::Clock(hands) => hands.evict(table, free),
            Strategy::TwoQueue(policy) => policy.evict(table, free),
            Strategy::TwoQueueLocked(policy) => policy.evict(table, free),
            Strategy::Optimal => None,
        }
    }
}
