//! [`Table`]: frames, and the chains by which a block is found in them without a lock. No I/O, no bookkeeping of bytes.
//!
//! ```text
//!   hash ──▶ bucket ──▶ frame 7 ──next──▶ frame 2 ──next──▶ end          read by anybody, at any time
//!                        hash, chances, block: ArcSwap ──▶ Body { owner, page, bytes }
//! ```
//!
//! Steps of a lookup ([`Table::find`]): follow the chain; where the hash is right, guard the block, then look whose it is.
//! **Hashes and links are hints, the block's own name is the truth**: a frame may be taken out of its chain, and be given to
//! another block, under a reader's eyes. Then he meets another's block and goes on, or loses his way and misses; he never
//! takes a wrong one, and whoever misses looks again under the chain's lock ([`Table::find_locked`]). So hashes need no order of memory
//! accesses. **Numbers of frames do**: a number is only worth something with the segment that its frame lies in. Every link is stored
//! with `Release` and loaded with `Acquire`, also the one of a frame that is put into another chain while a reader stands at it, and so is the
//! count of frames (`hand`). Loom's models `frames` and `links` show it.
//!
//! Invariants, under the lock of a chain: it holds exactly the frames whose `hash` belongs to it; a key is in it once; a frame
//! without a hash is in no chain. What it held stays in it until the next block comes, which mostly is at once: exchanging
//! blocks looks into all threads' slots, and once is enough.
//!
//! A guarded block costs its reader two swaps in his own cache line, and writes nothing that others read: that is the point.

use std::sync::Arc;

use super::block::Body;
use super::key::FrameKey;
use crate::base::SeededBug;
use crate::base::sync::{
    ArcSwap, AtomicU8, AtomicU32, AtomicU64, EXPLORED, Guard, Mutex, MutexGuard, Once,
    Ordering::{Acquire, Relaxed, Release},
};

/// Locks of chains: a chain's number, modulo this.
const LOCKS: usize = if EXPLORED { 2 } else { 64 };
/// Frames of the first segment; each further one has twice as many as the one before.
const FIRST: usize = if EXPLORED { 4 } else { 64 };
const SEGMENTS: usize = 26;
/// The most chains, whatever the capacity.
const MOST_CHAINS: usize = 1 << 28;
/// The hash of a frame that is in no chain.
const NOWHERE: u64 = 0;
/// A reader who has followed so many links has lost his way.
const FAR: usize = 64;

/// Blocks that are looked for together at most: a thread has eight guards that cost little, and others are in use.
pub(super) const MOST_TOGETHER: usize = 5;

/// A block's place. Two of them share a cache line, which hits do not write.
#[derive(Debug)]
#[repr(align(32))]
pub(super) struct Frame {
    block: ArcSwap<Body>,
    /// The hash of the block's key, or [`NOWHERE`]. Changed under the chain's lock.
    hash: AtomicU64,
    /// The number of the next frame of the chain, plus one; 0 is the end. Changed under the chain's lock.
    next: AtomicU32,
    /// How often the hand passes it by.
    chances: AtomicU8,
}

/// Frames and chains.
#[derive(Debug)]
pub(super) struct Table {
    /// The number of the first frame of each chain, plus one. As many as a power of two.
    chains: Box<[AtomicU32]>,
    locks: [Mutex<()>; LOCKS],
    segments: [Once<Box<[Frame]>>; SEGMENTS],
    /// What a frame without a block holds.
    vacant: Arc<Body>,
}

impl Table {
    /// A table for about so many blocks; more make chains longer.
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

    /// The segment of a frame, and its place there.
    fn place(number: u32) -> (usize, usize) {
        let segment = (number as usize / FIRST + 1).ilog2() as usize;
        (segment, number as usize - FIRST * ((1 << segment) - 1))
    }

    /// Makes room for the frame of a number, which nobody knows yet.
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
        &self.segments[segment].get().expect("a number is known after its frame was prepared")[at]
    }

    /// Looks a block up without a lock and gives its frame its chances back. May miss a block that is there while its chain
    /// changes.
    #[inline]
    pub(super) fn find(&self, key: FrameKey, hash: u64) -> Option<Guard<Arc<Body>>> {
        let mut link = self.chains[self.chain(hash)].load(Acquire);
        for _ in 0..FAR {
            let frame = self.frame(link.checked_sub(1)?);
            if frame.hash.load(Relaxed) == hash {
                let body = frame.block.load();
                if body.key == key || SeededBug::FrameNotLookedAt.is_on() {
                    frame.hit(body.keep.chances());
                    return Some(body);
                }
            }
            link = frame.next.load(Acquire);
        }
        None
    }

    /// The same for several blocks: `found[i]` for `wanted[i]`, where it is found. What is needed of each lies in memory behind something
    /// else of it: here all go a step together, so that the waits overlap. The guards come last but one, since taking one waits
    /// for everything before it.
    pub(super) fn find_several(&self, wanted: &[(FrameKey, u64)], found: &mut [Option<Guard<Arc<Body>>>]) {
        let mut frames = [None; MOST_TOGETHER];
        for (frame, (_, hash)) in frames.iter_mut().zip(wanted) {
            *frame = Some(self.chains[self.chain(*hash)].load(Acquire));
        }
        let mut frames = frames.map(|link| link.and_then(|link| link.checked_sub(1)).map(|number| self.frame(number)));
        for ((frame, (key, hash)), found) in frames.iter_mut().zip(wanted).zip(found.iter_mut()) {
            *found = match frame {
                Some(first) if first.hash.load(Relaxed) == *hash => Some(first.block.load()),
                // Not the first of its chain; its own frame has learnt of the hit.
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
                (Some(body), Some(frame)) => frame.hit(body.keep.chances()),
                (Some(_), None) => {}
                (None, _) => *found = None,
            }
        }
    }

    /// The same for certain, under the chain's lock.
    #[cold]
    pub(super) fn find_locked(&self, key: FrameKey, hash: u64) -> Option<Guard<Arc<Body>>> {
        let _chain = self.lock(hash);
        self.number_of(key, hash).map(|number| {
            let frame = self.frame(number);
            let body = frame.block.load();
            frame.hit(body.keep.chances());
            body
        })
    }

    /// The frame of a key; the chain is locked.
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

    /// Puts a block into a frame that is in no chain, with so many chances; or hands out the block that is there already.
    pub(super) fn link(&self, number: u32, hash: u64, body: &Arc<Body>, chances: u8) -> Result<(), Guard<Arc<Body>>> {
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
        // A reader that stands at the frame from its former chain follows this.
        frame.next.store(first.load(Relaxed), Release);
        first.store(number + 1, Release);
        drop(chain);
        drop(before);
        Ok(())
    }

    /// Takes a frame out of its chain, which is locked; what its block was charged.
    fn unlink(&self, number: u32, hash: u64) -> usize {
        let frame = self.frame(number);
        let mut link = &self.chains[self.chain(hash)];
        while link.load(Relaxed) != number + 1 {
            let before = link.load(Relaxed).checked_sub(1).expect("a frame is in the chain of its hash");
            link = &self.frame(before).next;
        }
        // The frame's own link stays, for those who are just there.
        link.store(frame.next.load(Relaxed), Release);
        frame.hash.store(NOWHERE, Relaxed);
        frame.block.load().cost()
    }

    /// Lets go of the block that a frame held when it was taken out of its chain.
    pub(super) fn vacate(&self, number: u32) {
        self.frame(number).block.store(self.vacant.clone());
    }

    /// Takes the frame of a key out: its number, and what its block was charged.
    pub(super) fn remove(&self, key: FrameKey, hash: u64) -> Option<(u32, usize)> {
        let _chain = self.lock(hash);
        self.number_of(key, hash).map(|number| (number, self.unlink(number, hash)))
    }

    /// The hand is at a frame: takes a chance from it, or, if it has none, takes it out of its chain: its hash, and what its block was charged.
    pub(super) fn pass(&self, number: u32) -> Option<(u64, usize)> {
        let frame = self.frame(number);
        let hash = frame.hash.load(Relaxed);
        if hash == NOWHERE {
            return None;
        }
        let chances = frame.chances.load(Relaxed);
        if chances > 0 {
            // If it is hit in between, the hit counts as one before.
            frame.chances.store(chances - 1, Relaxed);
            return None;
        }
        let _chain = self.lock(hash);
        (frame.hash.load(Relaxed) == hash).then(|| (hash, self.unlink(number, hash)))
    }
}

impl Frame {
    /// Gives the chances back. A frame that is hit all the time is only read.
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
    fn places_are_dense() {
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
