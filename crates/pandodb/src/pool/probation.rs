//! [`Probation`]: a queue of the leaves that scans have cached lately. A leaf stays in the pool after it has left the
//! queue only if a lookup or another scan has hit it meanwhile.
//!
//! ```text
//!   a scan ──▶ │ leaf leaf leaf … leaf │ ──hit──▶ stays, and the hand decides (CLOCK)
//!              └─ at most 1/8 of the pool └─not hit─▶ evicted; the ghosts remember its key
//!   a scan ──▶ a leaf that the ghosts remember ────▶ CLOCK at once
//! ```
//!
//! Without the queue, a leaf that a scan caches would stay for a whole round of the hand, so scans would displace the
//! blocks of all other readers. With the queue, scans displace at most an eighth of them.
//!
//! The queue holds keys only. A leaf in the queue is an ordinary block of the table, so a hit costs what each hit
//! costs. The hand may evict such a leaf before the queue does; its key then leaves the queue without effect. If two
//! threads cache leaves at the same time, a key may leave the queue before its block is linked. This block is then
//! evicted by the hand, like a leaf that a lookup has read once.
//!
//! Invariant: the bytes of the keys in the queue are at most an eighth of the pool's capacity.
//!
//! Lock: no other lock is taken while a thread holds the lock of the queue.
//!
//! Source: the queue A1in of 2Q (Johnson, Shasha: "2Q: a low overhead high performance buffer management replacement
//! algorithm", VLDB 1994); [decision 0065](../../../../docs/decisions/0065-scans-on-probation.md).

use std::collections::VecDeque;

use super::key::FrameKey;
use crate::base::sync::Mutex;

/// Scans may hold 1/`PART` of the capacity on probation.
const PART: usize = 8;

const _: () = assert!(PART > 1, "scans leave blocks to other readers");

#[derive(Debug, Default)]
pub(super) struct Probation {
    queue: Mutex<Queue>,
}

#[derive(Debug, Default)]
struct Queue {
    /// The oldest key is at the front. Each key has the bytes that are charged for its block.
    keys: VecDeque<(FrameKey, usize)>,
    bytes: usize,
}

impl Probation {
    /// Adds a key, and removes the oldest keys until the queue is within its share of `capacity` bytes. Calls `leaves`
    /// for each removed key, without holding the lock. Returns `false`, and adds nothing, if the block is larger than
    /// the share.
    pub(super) fn enter(&self, key: FrameKey, cost: usize, capacity: usize, mut leaves: impl FnMut(FrameKey)) -> bool {
        let most = capacity / PART;
        if cost > most {
            return false;
        }
        let mut gone = Vec::new();
        {
            let mut queue = self.queue.lock();
            queue.keys.push_back((key, cost));
            queue.bytes += cost;
            while queue.bytes > most {
                let (oldest, cost) = queue.keys.pop_front().expect("an empty queue has no bytes");
                queue.bytes -= cost;
                gone.push(oldest);
            }
            assert!(queue.bytes <= most && !queue.keys.is_empty(), "the new key is within the share");
        }
        gone.into_iter().for_each(&mut leaves);
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::{OwnerId, PageNo};

    #[test]
    fn keys_leave_in_order_once_their_bytes_exceed_the_share() {
        let (probation, key) = (Probation::default(), |page| FrameKey::new(OwnerId(1), PageNo(page)));
        let mut gone = Vec::new();
        // The share is 100 bytes, which is 10 keys.
        for page in 0..25 {
            assert!(probation.enter(key(page), 10, 100 * PART, |key| gone.push(key)));
            assert_eq!(gone, (0..(page + 1).saturating_sub(10)).map(key).collect::<Vec<_>>());
        }
        // A smaller pool has a smaller share, and a block over the share does not enter.
        assert!(probation.enter(key(25), 10, 20 * PART, |key| gone.push(key)));
        assert_eq!(gone, (0..24).map(key).collect::<Vec<_>>());
        assert!(!probation.enter(key(26), 21, 20 * PART, |_| panic!("nothing leaves")));
    }
}
