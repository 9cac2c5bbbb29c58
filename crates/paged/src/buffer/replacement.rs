//! Replacement policies that are told of hits by a mark in the frame, so that a hit takes no lock of the policy.
//!
//! * *2Q*: the search for a victim moves marked frames to the back of the LRU queue, and takes the oldest unmarked and
//!   unpinned one, from the FIFO queue first. The LRU queue is in the order of these searches, not of requests.
//! * *CLOCK*: a hand passes over a ring, clears marks, and takes the first unmarked and unpinned frame.
//!
//! Invariant: a victim has left its queue or the ring, so no other thread finds it.

use super::queues::{Queues, Which};
use crate::frame::{Frame, Frames};
use crate::sync::{Mutex, Ordering};

/// A policy with its state.
#[derive(Debug)]
pub enum Policy {
    /// 2Q.
    TwoQueue(Mutex<Queues>),
    /// CLOCK.
    Clock(Mutex<Ring>),
}

/// The frames in the order of the hand.
#[derive(Debug, Default)]
pub struct Ring {
    slots: Vec<Option<u32>>,
    /// Slots whose frames were taken. The next frame enters there, just behind the hand.
    vacant: Vec<usize>,
    hand: usize,
}

/// Whether a frame may be evicted; clears its mark.
fn is_cold(frame: &Frame) -> bool {
    let marked = frame.marked.load(Ordering::Relaxed);
    if marked {
        frame.marked.store(false, Ordering::Relaxed);
    }
    !marked && frame.is_unpinned()
}

impl Policy {
    /// 2Q.
    pub fn two_queue() -> Policy {
        Policy::TwoQueue(Mutex::new(Queues::new()))
    }

    /// CLOCK.
    pub fn clock() -> Policy {
        Policy::Clock(Mutex::new(Ring::default()))
    }

    /// Enters a frame with a page that was loaded.
    pub fn enter(&self, frame: u32) {
        match self {
            Policy::TwoQueue(queues) => queues.lock().push(frame, Which::Fifo),
            Policy::Clock(ring) => {
                let ring = &mut *ring.lock();
                debug_assert!(!ring.slots.contains(&Some(frame)), "a frame is in the ring once");
                match ring.vacant.pop() {
                    Some(at) => ring.slots[at] = Some(frame),
                    None => ring.slots.push(Some(frame)),
                }
            }
        }
    }

    /// Takes an unpinned frame, if there is one.
    pub fn victim(&self, frames: &Frames) -> Option<u32> {
        match self {
            Policy::TwoQueue(queues) => two_queue_victim(&mut queues.lock(), frames),
            Policy::Clock(ring) => clock_victim(&mut ring.lock(), frames),
        }
    }
}

fn two_queue_victim(queues: &mut Queues, frames: &Frames) -> Option<u32> {
    // Each frame is looked at twice: once to clear its mark, once to take it.
    for _ in 0..2 {
        for which in [Which::Fifo, Which::Lru] {
            let mut hot = Vec::new();
            let mut victim = None;
            for frame in queues.oldest_first(which) {
                let marked = frames.get(frame).marked.load(Ordering::Relaxed);
                if is_cold(frames.get(frame)) {
                    victim = Some(frame);
                    break;
                }
                if marked {
                    hot.push(frame);
                }
            }
            for frame in hot {
                queues.remove(frame);
                queues.push(frame, Which::Lru);
            }
            if let Some(frame) = victim {
                queues.remove(frame);
                return Some(frame);
            }
        }
    }
    None
}

fn clock_victim(ring: &mut Ring, frames: &Frames) -> Option<u32> {
    for _ in 0..2 * ring.slots.len() {
        let at = ring.hand;
        ring.hand = if at + 1 < ring.slots.len() { at + 1 } else { 0 };
        if let Some(frame) = ring.slots[at].take_if(|frame| is_cold(frames.get(*frame))) {
            ring.vacant.push(at);
            return Some(frame);
        }
    }
    None
}

#[cfg(all(test, not(feature = "explore")))]
mod tests {
    use super::*;

    #[test]
    fn marked_and_pinned_frames_are_not_taken() {
        for policy in [Policy::two_queue(), Policy::clock()] {
            let frames = Frames::new();
            let _pin = frames.get(0).occupy(0);
            (1..4).for_each(|frame| drop(frames.get(frame).occupy(frame.into())));
            (0..4).for_each(|frame| policy.enter(frame));
            frames.get(1).marked.store(true, Ordering::Relaxed);
            let mut taken = vec![policy.victim(&frames).unwrap(), policy.victim(&frames).unwrap()];
            taken.sort_unstable();
            assert_eq!(taken, [2, 3], "{policy:?}");
            assert_eq!(policy.victim(&frames), Some(1), "its mark was cleared");
            assert_eq!(policy.victim(&frames), None, "the last one is pinned");
        }
    }
}
