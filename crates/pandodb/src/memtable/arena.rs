//! The memory of a memtable's messages: chunks that are filled from front to back and recycled as a whole.
//!
//! ```text
//!   small chunks   | ½ KiB | 1 KiB | 2 KiB | … | 32 KiB |    all that most of many keyspaces ever need
//!   chunk, 1 MiB   | strip of thread a | strip of thread b | large record | strip of a | …           | free |
//!   strip          | record | record | record | free |          1/64 of the memtable, 64 KiB at most
//! ```
//!
//! 1. While the memtable is small, all threads write to the front of the newest chunk, and a chunk is twice as long as the one
//!    before it. Later a thread writes into a strip of its own (two share one only if there are many threads), under a lock that nobody
//!    else asks for, for as long as it takes to move a number on. What it has written so far is tallied there, too.
//! 2. A full strip is replaced by one from the front of the newest chunk; a record that does not fit into a quarter of a
//!    strip comes from there itself. So small memtables take no more than they need, and large ones seldom meet there.
//! 3. A full chunk is followed by one of the [`ChunkPool`], where it returns with the arena. There it waits for reuse, or gives its memory
//!    back to the buffer pool from which it was borrowed. To borrow may evict blocks: neither a strip nor the front is locked then, so that
//!    others write on in what is left of theirs.
//!
//! A record is addressed by a `u32` in words of 8 bytes, so that an arena reaches 32 GiB. It never spans chunks: the
//! longest key with the longest operand fits into one many times over. Records never move and are never freed one by one.
//! Chunks are atomic words ([`super::record`]): one thread writes a record while another reads its neighbour.

use std::sync::Arc;

use super::record::{self, Record, WORD};
use super::table::Table;
use crate::base::slab::Lender;
use crate::base::sync::{AtomicUsize, EXPLORED, Mutex, Once, Ordering, Word, thread_number};
use crate::base::{Entry, MAX_KEY, MAX_OPERAND, Seqno, Slab, Slot};

/// The size of a chunk in bytes.
pub const CHUNK_BYTES: usize = 1 << 20;
const CHUNK_WORDS: usize = CHUNK_BYTES / WORD;
/// Words of the first chunk of an arena; each further one has twice as many,
const FIRST_WORDS: usize = (if EXPLORED { CHUNK_BYTES } else { 512 }) / WORD;
/// until one would have more than this: then whole chunks follow.
const MOST_SMALL: usize = (32 << 10) / WORD;
/// Threads get strips of their own once so many bytes are in use.
const STRIPS_FROM: usize = if EXPLORED { 0 } else { 64 << 10 };
/// Chunks of an arena: twice as many segments of their table as reach 32 GiB.
const CHUNK_SEGMENTS: usize = 14;
/// Addresses are reserved for so many chunks, and for so many more for each that is kept. Those beyond come from the allocator.
const LEAST_RESERVED: usize = 64;
const RESERVED: usize = 16;
/// Words of a strip in a large memtable,
const STRIP_WORDS: usize = (64 << 10) / WORD;
/// and of what share of the memory in use a strip is in a small one.
const STRIP_SHARE: usize = 64;
/// Strips: as many threads write without meeting.
const STRIPS: usize = 8;

const _: () = assert!((2 + 2) * WORD + MAX_KEY + MAX_OPERAND <= CHUNK_BYTES, "every record fits into a chunk");

type Chunk = Slot<Word>;

/// The chunks of all memtables of a store. What they take of the memory is borrowed from the buffer pool, if there is one.
#[derive(Debug)]
pub struct ChunkPool {
    slab: Arc<Slab<Word>>,
    /// In memory and not in use, to be used again.
    free: Mutex<Vec<Chunk>>,
    max_free: usize,
    /// From whom how many bytes are borrowed for a chunk.
    lender: Option<(Arc<dyn Lender>, usize)>,
}

impl ChunkPool {
    /// Keeps up to `max_free` chunks of [`CHUNK_BYTES`] for reuse.
    pub fn new(max_free: usize) -> ChunkPool {
        let most = LEAST_RESERVED + RESERVED * max_free;
        ChunkPool { slab: Slab::new(CHUNK_WORDS, most, 0), free: Mutex::default(), max_free, lender: None }
    }

    /// Borrows the memory of all chunks, those included that wait for reuse, from `pool`. Memtables of `memtable_bytes` that are smaller
    /// than a chunk touch about so much of it, but for a large record or batch.
    #[must_use]
    pub fn borrowing(mut self, pool: Arc<dyn Lender>, memtable_bytes: usize) -> ChunkPool {
        self.lender = Some((pool, memtable_bytes.min(CHUNK_BYTES)));
        self
    }

    /// Bytes of the chunks that wait for reuse.
    pub fn free_bytes(&self) -> usize {
        self.free.lock().len() * CHUNK_BYTES
    }

    /// Returns the memory of the chunks that wait for reuse: nobody writes much now.
    pub fn trim(&self) {
        let free = std::mem::take(&mut *self.free.lock());
        self.give_up(free);
    }

    /// A chunk of which nothing is in use, whatever stands there. A new one is touched by whoever writes into it first. May evict
    /// blocks: to be called without a lock that a writer wants.
    fn take(&self, words: usize) -> Chunk {
        if words < CHUNK_WORDS {
            self.borrow(words * WORD);
            return self.slab.own(words);
        }
        let recycled = self.free.lock().pop();
        recycled.unwrap_or_else(|| {
            self.borrow(self.cost(CHUNK_WORDS));
            self.slab.take()
        })
    }

    /// What a chunk of so many words is borrowed for.
    fn cost(&self, words: usize) -> usize {
        match &self.lender {
            Some((_, bytes)) if words == CHUNK_WORDS => *bytes,
            _ => words * WORD,
        }
    }

    /// Takes so many bytes from the buffer pool, for what is not in chunks. May evict.
    fn borrow(&self, bytes: usize) {
        if let Some((pool, _)) = &self.lender {
            pool.lend(bytes);
        }
    }

    /// Gives back what was borrowed.
    fn give_back(&self, bytes: usize) {
        if let Some((pool, _)) = &self.lender {
            pool.take_back(bytes);
        }
    }

    /// Takes chunks back, as many as the bound lets it.
    fn give(&self, chunks: impl Iterator<Item = Chunk>) {
        let (whole, small): (Vec<Chunk>, Vec<Chunk>) = chunks.partition(|chunk| chunk.len() == CHUNK_WORDS);
        self.give_up(small);
        let mut whole = whole.into_iter();
        if whole.len() > 0 {
            let mut free = self.free.lock();
            let room = self.max_free.saturating_sub(free.len());
            free.extend(whole.by_ref().take(room));
        }
        self.give_up(whole);
    }

    fn give_up(&self, chunks: impl IntoIterator<Item = Chunk>) {
        for chunk in chunks {
            let bytes = self.cost(chunk.len());
            drop(chunk);
            self.give_back(bytes);
        }
    }
}

impl Drop for ChunkPool {
    fn drop(&mut self) {
        self.trim();
    }
}

/// The address of a record. Only [`Arena::push`] makes one; a wrong one panics, or leads to another record's words.
pub(super) type Ref = u32;

/// What was put into a memtable so far, or a part of it.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Tally {
    pub(super) count: usize,
    pub(super) logical_bytes: u64,
    /// The least and the greatest seqno.
    pub(super) seqnos: Option<(Seqno, Seqno)>,
}

impl Tally {
    /// Of one message.
    #[inline]
    pub(super) fn of(seqno: Seqno, logical_bytes: usize) -> Tally {
        Tally { count: 1, logical_bytes: logical_bytes as u64, seqnos: Some((seqno, seqno)) }
    }

    /// Of both.
    #[inline]
    pub(super) fn and(self, other: Tally) -> Tally {
        let seqnos = match (self.seqnos, other.seqnos) {
            (Some(a), Some(b)) => Some((a.0.min(b.0), a.1.max(b.1))),
            (a, b) => a.or(b),
        };
        let logical_bytes = self.logical_bytes + other.logical_bytes;
        Tally { count: self.count + other.count, logical_bytes, seqnos }
    }
}

/// Free words in a row, by their numbers in the arena.
#[derive(Debug, Default)]
struct Room {
    at: usize,
    end: usize,
}

impl Room {
    #[inline]
    fn left(&self) -> usize {
        self.end - self.at
    }

    #[inline]
    fn take(&mut self, words: usize) -> usize {
        debug_assert!(words <= self.left());
        self.at += words;
        self.at - words
    }
}

/// What a thread writes into, and what it has written. Cores do not share its cache line, nor the next, which some fetch
/// in pairs.
#[derive(Debug, Default)]
#[repr(align(128))]
struct Strip(Mutex<(Room, Tally)>);

/// The records of one memtable.
#[derive(Debug)]
pub(super) struct Arena {
    chunks: Table<Chunk, CHUNK_SEGMENTS>,
    /// What is left of the newest chunk, and what was written there by all threads.
    front: Mutex<(Room, Tally)>,
    strips: Once<Box<[Strip; STRIPS]>>,
    /// Held while the next chunk is fetched.
    growing: Mutex<Borrowed>,
    /// Bytes of chunks that were given to strips or lost at a chunk's end, and what else was charged.
    charged: AtomicUsize,
    /// Of these, bytes that are in no chunk.
    beside: AtomicUsize,
    pool: Arc<ChunkPool>,
}

/// Bytes beside the chunks for which memory was borrowed, and how many chunks were taken.
#[derive(Debug, Default)]
struct Borrowed(usize, u32);

impl Arena {
    pub(super) fn new(pool: Arc<ChunkPool>) -> Arena {
        Arena {
            chunks: Table::new(),
            front: Mutex::default(),
            strips: Once::new(),
            growing: Mutex::default(),
            charged: AtomicUsize::new(0),
            beside: AtomicUsize::new(0),
            pool,
        }
    }

    /// Bytes in use. It never shrinks, is ahead of what was written by a 64th for each thread that writes, and never
    /// behind.
    #[inline]
    pub(super) fn bytes(&self) -> usize {
        self.charged.load(Ordering::Relaxed)
    }

    /// Memory that is in use whatever is stored: it is borrowed with the next chunk, and does not count as filled.
    pub(super) fn borrow_beside(&self, bytes: usize) {
        self.beside.fetch_add(bytes, Ordering::Relaxed);
    }

    /// Counts bytes that are in use beside the chunks. Memory for them is borrowed with the next chunk.
    pub(super) fn charge_beside(&self, bytes: usize) {
        self.charge(bytes);
        self.beside.fetch_add(bytes, Ordering::Relaxed);
    }

    fn charge(&self, bytes: usize) {
        self.charged.fetch_add(bytes, Ordering::Relaxed);
    }

    /// Everything that was stored, and perhaps what is being stored.
    pub(super) fn tally(&self) -> Tally {
        let front = self.front.lock().1;
        let strips = self.strips.get().into_iter().flat_map(|strips| strips.iter());
        strips.fold(front, |sum, strip| sum.and(strip.0.lock().1))
    }

    /// Stores a copy of `entry`. Whoever gets the reference from another thread must get it with `Acquire`.
    #[inline]
    pub(super) fn push(&self, entry: &Entry<'_>) -> Ref {
        assert!(!entry.key.is_empty() && entry.key.len() <= MAX_KEY, "keys are checked when they are written");
        assert!(entry.value.len() <= MAX_OPERAND, "large values are stored apart");
        let words = record::words(entry);
        let tally = Tally::of(entry.seqno, entry.key.len() + entry.value.len());
        let at = loop {
            let found = match self.strips.get() {
                Some(strips) => self.take_in_strip(&strips[thread_number() % STRIPS], words, tally),
                None => self.take_in_front(words, tally),
            };
            match found {
                Some(at) => break at,
                None => self.grow(words),
            }
        };
        record::write(&self.chunks.get((at / CHUNK_WORDS) as u32)[at % CHUNK_WORDS..][..words], entry);
        at as Ref
    }

    /// Room for a record in this thread's strip, or in a new one; `None` if the front has not enough.
    #[inline]
    fn take_in_strip(&self, strip: &Strip, words: usize, tally: Tally) -> Option<usize> {
        let mut strip = strip.0.lock();
        let at = if strip.0.left() >= words { strip.0.take(words) } else { self.refill(&mut strip.0, words)? };
        strip.1 = strip.1.and(tally);
        Some(at)
    }

    /// The same in the front, while the memtable is small.
    fn take_in_front(&self, words: usize, tally: Tally) -> Option<usize> {
        let mut front = self.front.lock();
        let at = self.cut(&mut front.0, words)?;
        front.1 = front.1.and(tally);
        drop(front);
        if self.bytes() >= STRIPS_FROM {
            // Another thread may do the same; its strips are as good.
            let _ = self.strips.set(Box::default());
        }
        Some(at)
    }

    /// Takes words from the front and charges them, if it has so many.
    fn cut(&self, front: &mut Room, words: usize) -> Option<usize> {
        if front.left() < words {
            return None;
        }
        self.charge(words * WORD);
        Some(front.take(words))
    }

    /// Takes `words` words for a strip that has not so many: out of a new strip, unless they would be too much of it.
    #[cold]
    fn refill(&self, strip: &mut Room, words: usize) -> Option<usize> {
        let mut front = self.front.lock();
        let share = (self.bytes() / STRIP_SHARE / WORD).min(STRIP_WORDS);
        if share / 4 < words {
            return self.cut(&mut front.0, words);
        }
        let len = share.min(front.0.left());
        if len < words {
            return None;
        }
        let at = self.cut(&mut front.0, len)?;
        *strip = Room { at, end: at + len };
        Some(strip.take(words))
    }

    /// Puts a new chunk in front, which has room for `words`, unless another thread has just done so. Holds no lock of a writer while
    /// memory is borrowed.
    #[cold]
    fn grow(&self, words: usize) {
        let mut borrowed = self.growing.lock();
        if self.front.lock().0.left() >= words {
            return;
        }
        let small = FIRST_WORDS.checked_shl(borrowed.1).unwrap_or(CHUNK_WORDS);
        let small = if small <= MOST_SMALL { small } else { CHUNK_WORDS };
        borrowed.1 += 1;
        // A large record skips small chunks.
        let len = if words <= small { small } else { CHUNK_WORDS };
        let chunk = self.pool.take(len);
        let beside = self.beside.load(Ordering::Relaxed);
        self.pool.borrow(beside - borrowed.0);
        borrowed.0 = beside;
        let mut front = self.front.lock();
        self.charge(front.0.left() * WORD);
        let number = self.chunks.push(chunk) as usize;
        assert!(number < (1 << 32) / CHUNK_WORDS, "a memtable is sealed long before 32 GiB");
        front.0 = Room { at: number * CHUNK_WORDS, end: number * CHUNK_WORDS + len };
    }

    /// The record at `at`.
    #[inline]
    pub(super) fn record(&self, at: Ref) -> Record<'_> {
        let at = at as usize;
        Record::at(&self.chunks.get((at / CHUNK_WORDS) as u32)[at % CHUNK_WORDS..])
    }
}

impl Drop for Arena {
    fn drop(&mut self) {
        self.pool.give(self.chunks.drain());
        self.pool.give_back(self.growing.get_mut().0);
    }
}
