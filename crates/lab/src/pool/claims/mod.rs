//! [`Claims`]: the cache of the source (002 §3.6.1), as far as safe Rust can implement it: a direct map, reader counts,
//! claims, CLOCK hands.
//!
//! ```text
//!   page ──▶ map[page] ──▶ frame ──▶ words            map: 4 bytes for every page of the disk
//!                            │
//!                            └─ Locks: counts of readers, a claim, a write bit
//! ```
//!
//! A hit reads the number of the frame from the map, locks the frame for reading, checks that the frame still contains
//! the page, and sets the hit bit. A miss uses a frame from the *hand* of the thread, which is a group of frames. If
//! the hand is used up, the thread takes the next group by compare-and-swap. From the hand, the thread chooses a frame
//! whose page was not hit since a hand last passed the frame. It locks the frame with a claim and a write lock, evicts
//! the page, and fills the frame. Then it enters the frame into the map, unless another thread has loaded the same page
//! in the meantime.
//!
//! This cache differs from the source in two ways. First, it has no dirty pages. In the source, a hand also writes the
//! dirty pages that it will reach a quarter of a revolution later. Second, the contents of pages are atomic words,
//! because safe Rust cannot return a byte slice that other threads sometimes write.

pub mod locks;

use locks::Locks;

use super::primitives::{
    self, AtomicU8, AtomicU32, AtomicU64, Mutex,
    Ordering::{AcqRel, Acquire, Relaxed, Release},
    relax,
};

/// A number that is never the number of a page.
const NONE: u64 = u64::MAX;

#[derive(Debug)]
struct Frame {
    page: AtomicU64,
    hit: AtomicU8,
}

/// The group of frames from which a thread takes its next frame.
#[derive(Debug, Default)]
#[repr(align(64))]
struct Hand {
    at: usize,
    end: usize,
}

/// The dimensions of a cache.
#[derive(Clone, Copy, Debug)]
pub struct Size {
    /// The maximum number of threads.
    pub threads: usize,
    /// The number of frames.
    pub frames: usize,
    /// The number of pages of the disk.
    pub pages: usize,
    /// The number of 8-byte words in a page.
    pub words: usize,
    /// The number of frames in a hand.
    pub hand: usize,
}

/// The cache.
#[derive(Debug)]
pub struct Claims {
    size: Size,
    /// For each page, the number of its frame plus one; 0 if the page is not cached.
    map: Box<[AtomicU32]>,
    frames: Box<[Frame]>,
    words: Box<[AtomicU64]>,
    locks: Locks,
    /// The first frame of the next hand.
    next: AtomicU32,
    /// The hands, one for each thread. No thread locks the hand of another thread.
    hands: Box<[Mutex<Hand>]>,
}

/// A page that is locked for reading. The page is not evicted until this guard is dropped.
#[derive(Debug)]
pub struct Page<'a> {
    cache: &'a Claims,
    thread: usize,
    frame: usize,
    /// Whether the page was loaded for this call.
    pub missed: bool,
}

impl Page<'_> {
    /// A word of the page.
    #[inline]
    pub fn word(&self, at: usize) -> u64 {
        self.cache.words[self.frame * self.cache.size.words + at].load(Relaxed)
    }
}

impl Drop for Page<'_> {
    fn drop(&mut self) {
        self.cache.locks.end_read(self.thread, self.frame);
    }
}

impl Claims {
    /// Creates an empty cache. Allocates all frames.
    pub fn new(size: Size) -> Claims {
        Claims {
            map: (0..size.pages).map(|_| AtomicU32::new(0)).collect(),
            frames: (0..size.frames).map(|_| Frame { page: AtomicU64::new(NONE), hit: AtomicU8::new(0) }).collect(),
            words: (0..size.frames * size.words).map(|_| AtomicU64::new(0)).collect(),
            locks: Locks::new(size.threads, size.frames),
            next: AtomicU32::new(0),
            hands: (0..size.threads).map(|_| Mutex::new(Hand::default())).collect(),
            size,
        }
    }

    /// Reads a page, for a thread that holds no other page. `load` returns the words of a page that is not cached.
    pub fn get(&self, thread: usize, page: u64, load: impl Fn(usize) -> u64) -> Page<'_> {
        let place = &self.map[page as usize];
        let mut turn = 0;
        loop {
            if let Some(frame) = place.load(Acquire).checked_sub(1) {
                if let Some(found) = self.hit(thread, page, frame as usize) {
                    return found;
                }
                // Another thread is evicting the page.
                relax(turn);
                turn += 1;
                continue;
            }
            let frame = self.draw(thread);
            let words = &self.words[frame * self.size.words..][..self.size.words];
            words.iter().enumerate().for_each(|(i, word)| word.store(load(i), Relaxed));
            self.frames[frame].page.store(page, Relaxed);
            self.frames[frame].hit.store(0, Relaxed);
            let first = place.compare_exchange(0, frame as u32 + 1, AcqRel, Relaxed).is_ok();
            if !first {
                self.frames[frame].page.store(NONE, Relaxed);
            }
            self.locks.end_write(frame);
            self.locks.end_claim(frame);
            if first {
                return Page { cache: self, thread, frame, missed: true };
            }
            self.locks.end_read(thread, frame);
        }
    }

    #[inline]
    fn hit(&self, thread: usize, page: u64, frame: usize) -> Option<Page<'_>> {
        if !self.locks.read(thread, frame) {
            return None;
        }
        let found = Page { cache: self, thread, frame, missed: false };
        if self.frames[frame].page.load(Relaxed) != page {
            return None;
        }
        if self.frames[frame].hit.load(Relaxed) == 0 {
            self.frames[frame].hit.store(1, Relaxed);
        }
        Some(found)
    }

    /// Returns a frame without a page, which this thread has locked for writing.
    fn draw(&self, thread: usize) -> usize {
        let mut hand = self.hands[thread].lock();
        loop {
            while hand.at < hand.end {
                hand.at += 1;
                if self.empty(thread, hand.at - 1) {
                    return hand.at - 1;
                }
            }
            let at = self.next.load(Relaxed);
            let end = self.size.frames.min(at as usize + self.size.hand);
            let after = if end == self.size.frames { 0 } else { end as u32 };
            if self.next.compare_exchange(at, after, Relaxed, Relaxed).is_ok() {
                *hand = Hand { at: at as usize, end };
            }
        }
    }

    /// Evicts the page of a frame, unless the page was hit since a hand last passed the frame, or another thread is
    /// about to write the frame. Returns whether the page was evicted. If so, the frame is locked for writing.
    fn empty(&self, thread: usize, frame: usize) -> bool {
        let of = &self.frames[frame];
        if of.hit.load(Relaxed) > 0 {
            of.hit.store(0, Relaxed);
            return false;
        }
        if !self.locks.read(thread, frame) {
            return false;
        }
        if !self.locks.claim(frame) {
            self.locks.end_read(thread, frame);
            return false;
        }
        if !self.locks.write(thread, frame) {
            self.locks.end_claim(frame);
            self.locks.end_read(thread, frame);
            return false;
        }
        let page = of.page.load(Relaxed);
        if page != NONE {
            self.map[page as usize].store(0, Release);
            of.page.store(NONE, Relaxed);
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn concurrent_readers_get_the_pages_that_were_loaded() {
        let size = Size { threads: 3, frames: 64, pages: 300, words: 8, hand: 16 };
        let cache = Claims::new(size);
        std::thread::scope(|scope| {
            for thread in 0..size.threads {
                let cache = &cache;
                scope.spawn(move || {
                    for i in 0..20_000u64 {
                        let page = (i * 31 + thread as u64 * 7) % 300;
                        let found = cache.get(thread, page, |word| page * 8 + word as u64);
                        assert!((0..8).all(|word| found.word(word) == page * 8 + word as u64));
                    }
                });
            }
        });
    }
}
