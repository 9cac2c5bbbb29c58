//! [`Table`]: frames, and hash chains of frames, in which a lookup finds a block without a lock. The table does no I/O
//! and does not count bytes.
//!
//! ```text
//!   hash ──▶ bucket ──▶ frame 7 ──next──▶ frame 2 ──next──▶ end          read by any thread, at any time
//!                        hash, chances, block: ArcSwap ──▶ Body { owner, page, bytes }
//! ```
//!
//! Steps of a lookup ([`Table::find`]): follow the chain of the hash; at each frame with the wanted hash, guard the
//! block and compare its key.
//!
//! **Hashes and links are hints; the key inside the block decides.** While a reader inspects a frame, another thread
//! may take the frame out of its chain and reuse the frame for another block. In this case the reader finds another key
//! and continues, or follows a foreign chain and misses. The reader never returns a wrong block. After a miss, the
//! reader searches again under the chain's lock ([`Table::find_locked`]). So loads and stores of the hashes need no
//! memory ordering.
//!
//! **Frame numbers do need ordering**: a thread that reads a frame number must find the segment of that frame. So each
//! link is stored with `Release` and loaded with `Acquire`, even the link of a frame that moves into another chain
//! while a reader inspects the frame. The count of frames (`free`) is stored and loaded in the same way. The Loom
//! models `frames` and `links` check this ordering.
//!
//! Invariants, under the lock of a chain: the chain holds exactly the frames whose `hash` belongs to it; a chain holds
//! a key at most once; a frame without a hash is in no chain. A frame that was taken out of its chain keeps its old
//! block until the frame gets its next block or is vacated. So the old block is replaced by the new one in a single
//! exchange. Two exchanges would cost more, because `arc_swap` inspects the slots of all threads at each exchange.
//!
//! To guard a block, a reader makes two swaps in a cache line that belongs to its own thread. So readers do not contend
//! for cache lines. Source: 002 §3.6.1; [decision 0019](../../../../docs/decisions/0019-pool-concurrency.md).

use std::sync::Arc;

use super::block::Body;
use super::key::FrameKey;
use crate::base::SeededBug;
use crate::base::sync::{
    ArcSwap, AtomicU8, AtomicU32, AtomicU64, EXPLORED, Guard, Mutex, MutexGuard, Once,
    Ordering::{Acquire, Relaxed, Release},
};

/// The number of locks. The lock of a chain is the chain's number modulo `LOCKS`.
const LOCKS: usize = if EXPLORED { 2 } else { 64 };
/// The number of frames in the first segment. Each further segment has twice as many frames as the previous segment.
const FIRST: usize = if EXPLORED { 4 } else { 64 };
const SEGMENTS: usize = 26;
/// The most chains, for any capacity.
const MOST_CHAINS: usize = 1 << 28;
/// The hash of a frame that is in no chain.
const NOWHERE: u64 = 0;
/// A reader stops after this many links: it has probably followed a reused frame into a foreign chain.
pub(super) const FAR: usize = 64;

const _: () =
    assert!(FIRST.is_power_of_two() && MOST_CHAINS.is_power_of_two(), "numbers are split by shifts and masks");
const _: () = assert!(FIRST as u64 * ((1 << SEGMENTS) - 1) <= u32::MAX as u64, "a link is a frame's number plus one");
const _: () = assert!(MOST_CHAINS <= u32::MAX as usize && LOCKS.is_power_of_two(), "each lock has equally many chains");

/// The most blocks that [`Table::find_several`] looks up. A thread has eight `arc_swap` slots, and some of them may be
/// in use already.
pub(super) const MOST_TOGETHER: usize = 5;

/// The frame of one block. Two frames share a cache line. A hit writes to this cache line only if it changes the
/// frame's chances.
#[derive(Debug)]
#[repr(align(32))]
pub(super) struct Frame {
    block: ArcSwap<Body>,
    /// The hash of the block's key, or [`NOWHERE`]. Changed under the chain's lock.
    hash: AtomicU64,
    /// The number of the next frame of the chain, plus one; 0 is the end. Changed under the chain's lock.
    next: AtomicU32,
    /// The number of times that the hand passes this frame before it evicts the block.
    chances: AtomicU8,
}

/// A frame that an eviction has taken out of its chain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Evicted {
    pub(super) number: u32,
    /// The hash of the block's key.
    pub(super) hash: u64,
    /// The bytes that were charged for the block.
    pub(super) cost: usize,
}

/// The frames of the pool, and the chains of frames by hash.
#[derive(Debug)]
pub(super) struct Table {
    /// The number of the first frame of each chain, plus one; 0 is an empty chain. The number of chains is a power of
    /// two.
    chains: Box<[AtomicU32]>,
    locks: [Mutex<()>; LOCKS],
    segments: [Once<Box<[Frame]>>; SEGMENTS],
    /// The placeholder that a frame without a block points to.
    vacant: Arc<Body>,
}

impl Table {
    /// Creates a table for about `blocks` blocks. More blocks make chains longer.
    pub(super) fn new(blocks: usize) -> Table {
        let least = if EXPLORED { 2 } else { 64 };
        let chains = blocks.clamp(least, MOST_CHAINS).next_power_of_two();
        Table {
            chains: (0..chains).map(|_| AtomicU32::new(0)).collect(),
            locks: std::array::from_fn(|_| Mutex::new(())),
            segments: std::array::from_fn(|_| Once::new()),
            vacant: Arc::new(Body::vacant()),
        }
    }

    fn chain(&self, hash: u64) -> usize {
        hash as usize & (self.chains.len() - 1)
    }

    fn lock(&self, hash: u64) -> MutexGuard<'_, ()> {
        self.locks[self.chain(hash) % LOCKS].lock()
    }

    /// The segment of a frame, and its position in the segment.
    fn place(number: u32) -> (usize, usize) {
        let segment = (number as usize / FIRST + 1).ilog2() as usize;
        let at = number as usize - FIRST * ((1 << segment) - 1);
        debug_assert!(segment < SEGMENTS && at < FIRST << segment, "frame {number} lies in its segment");
        (segment, at)
    }

    /// Creates the frame with the number `number`, which is not published yet, and the other frames of its segment.
    /// REQUIRES: the caller holds the lock of the free frames.
    pub(super) fn prepare(&self, number: u32) {
        let (segment, _) = Table::place(number);
        self.segments[segment].get_or_init(|| {
            let frame = || Frame {
                block: ArcSwap::new(self.vacant.clone()),
                hash: AtomicU64::new(NOWHERE),
                next: AtomicU32::new(0),
                chances: AtomicU8::new(0),
            };
            (0..FIRST << segment).map(|_| frame()).collect()
        });
    }

    #[inline]
    fn frame(&self, number: u32) -> &Frame {
        let (segment, at) = Table::place(number);
        &self.segments[segment].get().expect("a frame is prepared before its number is published")[at]
    }

    /// Looks up a block without a lock and sets its frame's chances to their maximum. May miss a cached block while its
    /// chain changes.
    #[inline]
    pub(super) fn find(&self, key: FrameKey, hash: u64) -> Option<Guard<Arc<Body>>> {
        let mut link = self.chains[self.chain(hash)].load(Acquire);
        for _ in 0..FAR {
            let frame = self.frame(link.checked_sub(1)?);
            if frame.hash.load(Relaxed) == hash {
                let body = frame.block.load();
                if body.key == key || SeededBug::FrameNotLookedAt.is_on() {
                    frame.hit(body.keep.ref_count());
                    return Some(body);
                }
            }
            link = frame.next.load(Acquire);
        }
        None
    }

    /// Looks up a block without a lock like [`Table::find`], but does not record a hit. Returns the number of its
    /// frame, too. Follows at most `far` links: [`FAR`], or any number if the caller prevents changes of chains.
    #[inline]
    pub(super) fn seek(&self, key: FrameKey, hash: u64, far: usize) -> Option<(u32, Guard<Arc<Body>>)> {
        let mut link = self.chains[self.chain(hash)].load(Acquire);
        for _ in 0..far {
            let number = link.checked_sub(1)?;
            let frame = self.frame(number);
            if frame.hash.load(Relaxed) == hash {
                let body = frame.block.load();
                if body.key == key {
                    return Some((number, body));
                }
            }
            link = frame.next.load(Acquire);
        }
        None
    }

    /// Looks up several blocks without a lock: sets `found[i]` to the block `wanted[i]` if that block is found. Each
    /// lookup is a sequence of dependent memory accesses. All lookups advance together, one step at a time, so that
    /// their cache misses overlap. The guards are taken only when all frames are known, because taking a guard waits
    /// for all earlier memory accesses.
    pub(super) fn find_several(&self, wanted: &[(FrameKey, u64)], found: &mut [Option<Guard<Arc<Body>>>]) {
        debug_assert!(wanted.len() <= MOST_TOGETHER && wanted.len() == found.len(), "{} blocks", wanted.len());
        let mut frames = [None; MOST_TOGETHER];
        for (frame, (_, hash)) in frames.iter_mut().zip(wanted) {
            *frame = Some(self.chains[self.chain(*hash)].load(Acquire));
        }
        let mut frames = frames.map(|link| link.and_then(|link| link.checked_sub(1)).map(|number| self.frame(number)));
        for ((frame, (key, hash)), found) in frames.iter_mut().zip(wanted).zip(found.iter_mut()) {
            *found = match frame {
                Some(first) if first.hash.load(Relaxed) == *hash => Some(first.block.load()),
                // The block is not at the head of its chain. `find` records the hit in the block's own frame.
                Some(_) => {
                    *frame = None;
                    self.find(*key, *hash)
                }
                None => None,
            };
        }
        for ((frame, (key, _)), found) in frames.iter().zip(wanted).zip(found) {
            let is_it = found.as_ref().is_some_and(|body| body.key == *key);
            match (found.as_ref().filter(|_| is_it), frame) {
                (Some(body), Some(frame)) => frame.hit(body.keep.ref_count()),
                (Some(_), None) => {}
                (None, _) => *found = None,
            }
        }
    }

    /// Looks up a block under the chain's lock. Finds every cached block.
    #[cold]
    pub(super) fn find_locked(&self, key: FrameKey, hash: u64) -> Option<Guard<Arc<Body>>> {
        debug_assert_eq!(key.hash(), hash, "the hash leads to the chain of the key");
        let _chain = self.lock(hash);
        self.number_of(key, hash).map(|number| {
            let frame = self.frame(number);
            let body = frame.block.load();
            frame.hit(body.keep.ref_count());
            body
        })
    }

    /// The number of the frame that holds a key.
    /// REQUIRES: the caller holds the lock of the chain of `hash`.
    fn number_of(&self, key: FrameKey, hash: u64) -> Option<u32> {
        let mut link = self.chains[self.chain(hash)].load(Relaxed);
        while let Some(number) = link.checked_sub(1) {
            let frame = self.frame(number);
            if frame.hash.load(Relaxed) == hash && frame.block.load().key == key {
                return Some(number);
            }
            link = frame.next.load(Relaxed);
        }
        None
    }

    /// Puts a block into a frame that is in no chain, gives the frame `chances`, and links it. If the block is cached
    /// already, returns the cached one.
    pub(super) fn link(&self, number: u32, hash: u64, body: &Arc<Body>, chances: u8) -> Result<(), Guard<Arc<Body>>> {
        debug_assert_eq!(body.key.hash(), hash, "a lookup of the key follows the same chain");
        debug_assert!(chances <= body.keep.ref_count(), "a new block has no more chances than one that was hit");
        let frame = self.frame(number);
        let before = frame.block.swap(body.clone());
        let chain = self.lock(hash);
        if let Some(first) = self.number_of(body.key, hash) {
            return Err(self.frame(first).block.load());
        }
        assert_eq!(frame.hash.load(Relaxed), NOWHERE, "a frame is in one chain");
        let first = &self.chains[self.chain(hash)];
        frame.chances.store(chances, Relaxed);
        frame.hash.store(hash, Relaxed);
        // A reader that reached the frame through the frame's former chain also follows this link.
        frame.next.store(first.load(Relaxed), Release);
        first.store(number + 1, Release);
        drop(chain);
        drop(before);
        Ok(())
    }

    /// Takes a frame out of its chain. Returns the bytes that were charged for the frame's block.
    /// REQUIRES: the caller holds the lock of the chain of `hash`.
    fn unlink(&self, number: u32, hash: u64) -> usize {
        let frame = self.frame(number);
        let mut link = &self.chains[self.chain(hash)];
        while link.load(Relaxed) != number + 1 {
            let before = link.load(Relaxed).checked_sub(1).expect("a frame is in the chain of its hash");
            link = &self.frame(before).next;
        }
        // The frame's own link stays as it is, for readers that are inspecting the frame.
        link.store(frame.next.load(Relaxed), Release);
        frame.hash.store(NOWHERE, Relaxed);
        let body = frame.block.load();
        debug_assert_eq!(body.key.hash(), hash, "a frame is in the chain of its block");
        body.cost()
    }

    /// Drops the block that a frame still holds after the frame was taken out of its chain.
    /// REQUIRES: no other thread puts a block into this frame.
    pub(super) fn vacate(&self, number: u32) {
        self.frame(number).block.store(self.vacant.clone());
    }

    /// Takes the frame of a key out of its chain. Returns the frame's number and the bytes that were charged for its
    /// block.
    pub(super) fn remove(&self, key: FrameKey, hash: u64) -> Option<(u32, usize)> {
        let _chain = self.lock(hash);
        self.number_of(key, hash).map(|number| (number, self.unlink(number, hash)))
    }

    /// Like [`Table::remove`], but only if the frame has no chances: nothing hit the block since it was linked, or the
    /// hand has taken its chances.
    pub(super) fn remove_unhit(&self, key: FrameKey, hash: u64) -> Option<(u32, usize)> {
        let _chain = self.lock(hash);
        let number = self.number_of(key, hash)?;
        (self.frame(number).chances.load(Relaxed) == 0).then(|| (number, self.unlink(number, hash)))
    }

    /// Whether anything but its frame counts a reference to the block of a frame. A guard counts none.
    pub(super) fn is_in_use(&self, number: u32) -> bool {
        // The loaded reference is counted, so that the result does not depend on free slots of this thread.
        let body = self.frame(number).block.load_full();
        Arc::strong_count(&body) > 2 && !SeededBug::PinnedBlockEvicted.is_on()
    }

    /// Clears the mark of a frame. Returns whether the frame was marked: whether its chances were at their maximum, to
    /// which only a lookup sets them (`link` gives it only to a block that its caller wants to be kept).
    pub(super) fn take_mark(&self, number: u32) -> bool {
        let frame = self.frame(number);
        let most = frame.block.load().keep.ref_count();
        let marked = frame.hash.load(Relaxed) != NOWHERE && frame.chances.load(Relaxed) >= most;
        if marked {
            // A hit between the load and the store is lost, as if it had happened before the load.
            frame.chances.store(0, Relaxed);
        }
        marked
    }

    /// Takes a frame out of its chain, unless its block is in use or the frame is not linked. Does not regard the
    /// chances of the frame.
    pub(super) fn evict_unused(&self, number: u32) -> Option<Evicted> {
        let hash = self.frame(number).hash.load(Relaxed);
        if hash == NOWHERE {
            return None;
        }
        let _chain = self.lock(hash);
        let is_victim = self.frame(number).hash.load(Relaxed) == hash && !self.is_in_use(number);
        is_victim.then(|| Evicted { number, hash, cost: self.unlink(number, hash) })
    }

    /// Passes a frame with the hand. A frame that has chances loses one. A frame without chances is taken out of its
    /// chain and returned.
    pub(super) fn pass(&self, number: u32) -> Option<Evicted> {
        let frame = self.frame(number);
        let hash = frame.hash.load(Relaxed);
        if hash == NOWHERE {
            return None;
        }
        let chances = frame.chances.load(Relaxed);
        if chances > 0 {
            // A hit between the load and the store is lost, as if it had happened before the load.
            frame.chances.store(chances - 1, Relaxed);
            return None;
        }
        let _chain = self.lock(hash);
        (frame.hash.load(Relaxed) == hash).then(|| Evicted { number, hash, cost: self.unlink(number, hash) })
    }
}

impl Frame {
    /// Sets the chances to their maximum. If they are at the maximum already, the frame is only read, not written.
    #[inline]
    fn hit(&self, chances: u8) {
        if self.chances.load(Relaxed) < chances && !SeededBug::HitNotNoted.is_on() {
            self.chances.store(chances, Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frame_numbers_map_to_consecutive_positions() {
        let mut before = None;
        for number in 0..10_000 {
            let (segment, at) = Table::place(number);
            let follows = before.is_none_or(|(s, a)| (s, a + 1) == (segment, at) || (s + 1, 0) == (segment, at));
            assert!(follows && at < FIRST << segment, "{number}: {segment}, {at}");
            before = Some((segment, at));
        }
        assert_eq!(Table::place((FIRST * ((1 << SEGMENTS) - 1) - 1) as u32).0, SEGMENTS - 1);
    }
}
