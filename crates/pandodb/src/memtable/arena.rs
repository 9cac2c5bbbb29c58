//! The memory of a memtable's messages: chunks that are filled from front to back and recycled as a whole.
//!
//! ```text
//!   small chunks   | ½ KiB | 1 KiB | 2 KiB | … | 32 KiB |    enough for a keyspace with little data
//!   chunk, 1 MiB   | strip of thread a | strip of thread b | large record | strip of a | …           | free |
//!   strip          | record | record | record | free |          1/64 of the memtable, 64 KiB at most
//! ```
//!
//! 1. While the memtable is small, all threads write to the front of the newest chunk, and each chunk is twice as long
//!    as the previous one. In a larger memtable each thread writes into a strip of its own (there are 8 strips, so if
//!    there are more than 8 threads, some of them share a strip). The lock of a strip is held only while the strip's
//!    position is advanced, and is rarely contended. The strip also keeps the tally of its threads' messages.
//! 2. When a strip is full, a new strip is cut from the front of the newest chunk. A record of more than a quarter of a
//!    strip is placed directly at the front. So small memtables take little memory, and the writers of large memtables
//!    rarely contend for the front.
//! 3. A full chunk is followed by one from the [`ChunkPool`], to which all chunks return when the arena is dropped. The
//!    chunk pool keeps a returned chunk for reuse, or releases its memory to the buffer pool, from which the memory was
//!    borrowed. Borrowing may evict blocks. Neither a strip nor the front is locked during the eviction, so that other
//!    threads can write into the remaining space.
//!
//! A record is addressed by a `u32` in words of 8 bytes, so an arena can hold 32 GiB.
//!
//! Invariants: a record never spans chunks (the longest key with the longest operand is shorter than a chunk); records
//! never move and are never freed individually. Chunks consist of atomic words ([`super::record`]), because one thread
//! may write a record while another thread reads a neighbouring record.

use std::sync::Arc;

use super::record::{self, Record, WORD};
use super::table::Table;
use crate::base::slab::MemorySource;
use crate::base::sync::{AtomicUsize, EXPLORED, Mutex, Once, Ordering, Word, thread_number};
use crate::base::{Entry, MAX_KEY, MAX_OPERAND, PAGE, Seqno, Slab, Slot};

/// The size of a chunk in bytes.
pub const CHUNK_BYTES: usize = 1 << 20;
const CHUNK_WORDS: usize = CHUNK_BYTES / WORD;
/// The number of words of the first chunk of an arena. Each further chunk has twice as many words as the previous
/// chunk, up to [`MOST_SMALL`].
const FIRST_WORDS: usize = (if EXPLORED { CHUNK_BYTES } else { 512 }) / WORD;
/// The most words of a small chunk. The chunks that follow the small chunks have [`CHUNK_BYTES`] bytes.
const MOST_SMALL: usize = (32 << 10) / WORD;
/// Threads get strips of their own once this many bytes of the arena are in use.
const STRIPS_FROM: usize = if EXPLORED { 0 } else { 64 << 10 };
/// The number of segments of the chunk table. These segments hold twice as many chunks as 32 GiB need.
const CHUNK_SEGMENTS: usize = 14;
/// Addresses are reserved for this many chunks, plus [`RESERVED`] for each kept chunk. Further chunks are taken from
/// the allocator.
const LEAST_RESERVED: usize = 64;
const RESERVED: usize = 16;
/// The number of words of a strip in a large memtable.
const STRIP_WORDS: usize = (64 << 10) / WORD;
/// In a small memtable, the length of a strip is the memory in use divided by this number.
const STRIP_SHARE: usize = 64;
/// The number of strips. Up to this many threads can write without contention.
const STRIPS: usize = 8;

const _: () = assert!((2 + 2) * WORD + MAX_KEY + MAX_OPERAND <= CHUNK_BYTES, "every record fits into a chunk");

const _: () =
    assert!(CHUNK_WORDS.is_power_of_two() && CHUNK_BYTES.is_multiple_of(PAGE), "a chunk is a piece of a slab");
const _: () =
    assert!(MOST_SMALL < CHUNK_WORDS && STRIP_WORDS < CHUNK_WORDS, "small chunks and strips are parts of chunks");

type Chunk = Slot<Word>;

/// The chunks of all memtables of a store. If the store has a buffer pool, the memory of chunks is borrowed from the
/// pool.
#[derive(Debug)]
pub struct ChunkPool {
    slab: Arc<Slab<Word>>,
    /// Unused chunks in memory, for reuse.
    free: Mutex<Vec<Chunk>>,
    max_free: usize,
    /// The pool from which memory is borrowed, and the number of bytes that are borrowed for a whole chunk.
    source: Option<(Arc<dyn MemorySource>, usize)>,
}

impl ChunkPool {
    /// Creates a pool that keeps up to `max_free` chunks of [`CHUNK_BYTES`] for reuse.
    pub fn new(max_free: usize) -> ChunkPool {
        let most = LEAST_RESERVED + RESERVED * max_free;
        ChunkPool { slab: Slab::new(CHUNK_WORDS, most, 0), free: Mutex::default(), max_free, source: None }
    }

    /// Borrows the memory of all chunks from `pool`, including the chunks that wait for reuse. If `memtable_bytes` is
    /// less than a chunk, a memtable uses only about `memtable_bytes` of its chunk, except for a large record or batch.
    /// So only `memtable_bytes` bytes are borrowed for such a chunk.
    #[must_use]
    pub fn borrowing(mut self, pool: Arc<dyn MemorySource>, memtable_bytes: usize) -> ChunkPool {
        self.source = Some((pool, memtable_bytes.min(CHUNK_BYTES)));
        self
    }

    /// The number of bytes of all chunks that wait for reuse.
    #[cfg(test)]
    pub(super) fn free_bytes(&self) -> usize {
        self.free.lock().len() * CHUNK_BYTES
    }

    /// Frees the chunks that wait for reuse. Called when there are few writes.
    pub fn trim(&self) {
        let free = std::mem::take(&mut *self.free.lock());
        self.give_up(free);
    }

    /// Returns an unused chunk with arbitrary content. If the chunk is new, its page faults occur when it is first
    /// written. The call may evict blocks.
    /// REQUIRES: the caller holds no lock that a writer needs.
    fn take(&self, words: usize) -> Chunk {
        assert!(words > 0 && words <= CHUNK_WORDS, "a chunk of {words} words");
        if words < CHUNK_WORDS {
            self.borrow(words * WORD);
            return self.slab.own(words);
        }
        let recycled = self.free.lock().pop();
        let chunk = recycled.unwrap_or_else(|| {
            self.borrow(self.cost(CHUNK_WORDS));
            self.slab.take()
        });
        assert_eq!(chunk.len(), CHUNK_WORDS, "only whole chunks wait for reuse");
        chunk
    }

    /// The bytes that are borrowed for a chunk of `words` words.
    fn cost(&self, words: usize) -> usize {
        match &self.source {
            Some((_, bytes)) if words == CHUNK_WORDS => *bytes,
            _ => words * WORD,
        }
    }

    /// Borrows bytes from the buffer pool for memory outside of chunks. May evict.
    fn borrow(&self, bytes: usize) {
        if let Some((pool, _)) = &self.source {
            pool.reserve(bytes);
        }
    }

    /// Releases borrowed bytes to the buffer pool.
    fn give_back(&self, bytes: usize) {
        if let Some((pool, _)) = &self.source {
            pool.release(bytes);
        }
    }

    /// Takes unused chunks back. Keeps chunks of [`CHUNK_BYTES`] bytes, up to the number given to [`ChunkPool::new`],
    /// and frees the others.
    fn give(&self, chunks: impl Iterator<Item = Chunk>) {
        let (whole, small): (Vec<Chunk>, Vec<Chunk>) = chunks.partition(|chunk| chunk.len() == CHUNK_WORDS);
        self.give_up(small);
        let mut whole = whole.into_iter();
        if whole.len() > 0 {
            let mut free = self.free.lock();
            let room = self.max_free.saturating_sub(free.len());
            free.extend(whole.by_ref().take(room));
            debug_assert!(free.len() <= self.max_free, "at most the configured chunks wait for reuse");
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

/// The address of a record. Only [`Arena::push`] creates addresses. The use of any other address panics or reads
/// another record's words.
pub(super) type Ref = u32;

/// Statistics of the messages in a memtable, or in a part of it.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Tally {
    pub(super) count: usize,
    pub(super) logical_bytes: u64,
    /// The least and the greatest seqno.
    pub(super) seqnos: Option<(Seqno, Seqno)>,
}

impl Tally {
    /// The tally of one message.
    #[inline]
    pub(super) fn of(seqno: Seqno, logical_bytes: usize) -> Tally {
        Tally { count: 1, logical_bytes: logical_bytes as u64, seqnos: Some((seqno, seqno)) }
    }

    /// The sum of two tallies.
    #[inline]
    pub(super) fn and(self, other: Tally) -> Tally {
        let seqnos = match (self.seqnos, other.seqnos) {
            (Some(a), Some(b)) => Some((a.0.min(b.0), a.1.max(b.1))),
            (a, b) => a.or(b),
        };
        let logical_bytes = self.logical_bytes + other.logical_bytes;
        debug_assert!(
            [self, other].iter().all(|part| (part.count > 0) == part.seqnos.is_some()),
            "messages have seqnos"
        );
        Tally { count: self.count + other.count, logical_bytes, seqnos }
    }
}

/// A range of free words. Words are numbered within the arena.
#[derive(Debug, Default)]
struct Room {
    at: usize,
    end: usize,
}

impl Room {
    #[inline]
    fn left(&self) -> usize {
        debug_assert!(self.at <= self.end, "more words were taken than there are");
        self.end - self.at
    }

    #[inline]
    fn take(&mut self, words: usize) -> usize {
        debug_assert!(words <= self.left());
        self.at += words;
        self.at - words
    }
}

/// A thread's free words and the tally of the messages that it has written. A strip is aligned to two cache lines, so
/// that cores which use different strips share no line. One line would not suffice, because some processors fetch lines
/// in pairs.
#[derive(Debug, Default)]
#[repr(align(128))]
struct Strip(Mutex<(Room, Tally)>);

/// The records of one memtable.
#[derive(Debug)]
pub(super) struct Arena {
    chunks: Table<Chunk, CHUNK_SEGMENTS>,
    /// The rest of the newest chunk, and the tally of all messages that were written directly at the front.
    front: Mutex<(Room, Tally)>,
    strips: Once<Box<[Strip; STRIPS]>>,
    /// Held while the next chunk is allocated.
    growing: Mutex<Borrowed>,
    /// The charged bytes: all bytes of chunks that were given to strips, used for records at the front, or left unused
    /// at a chunk's end, and the bytes of [`Arena::charge_beside`].
    charged: AtomicUsize,
    /// Bytes of memory outside of chunks.
    beside: AtomicUsize,
    pool: Arc<ChunkPool>,
}

/// The number of bytes borrowed for memory outside of chunks, and the number of chunks taken.
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

    /// The number of bytes in use. This number never decreases and is never below the number of written bytes. For each
    /// writing thread, it may exceed the written bytes by 1/64, because of the thread's strip.
    #[inline]
    pub(super) fn bytes(&self) -> usize {
        self.charged.load(Ordering::Relaxed)
    }

    /// Registers memory whose size does not depend on the stored messages. The memory is borrowed together with the
    /// next chunk, and is not included in [`Arena::bytes`].
    pub(super) fn borrow_beside(&self, bytes: usize) {
        self.beside.fetch_add(bytes, Ordering::Relaxed);
    }

    /// Charges bytes outside of chunks. The memory of these bytes is borrowed together with the next chunk.
    pub(super) fn charge_beside(&self, bytes: usize) {
        self.charge(bytes);
        self.beside.fetch_add(bytes, Ordering::Relaxed);
    }

    fn charge(&self, bytes: usize) {
        self.charged.fetch_add(bytes, Ordering::Relaxed);
    }

    /// The tally of all stored messages. It may include messages that are being stored concurrently.
    pub(super) fn tally(&self) -> Tally {
        let front = self.front.lock().1;
        let strips = self.strips.get().into_iter().flat_map(|strips| strips.iter());
        strips.fold(front, |sum, strip| sum.and(strip.0.lock().1))
    }

    /// Stores a copy of `entry` and returns its reference. Another thread must load the reference with `Acquire`.
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
        debug_assert!(at % CHUNK_WORDS + words <= CHUNK_WORDS, "a record spans no chunks");
        debug_assert!(at < Ref::MAX as usize, "the greatest reference stands for a missing fence");
        record::write(&self.chunks.get((at / CHUNK_WORDS) as u32)[at % CHUNK_WORDS..][..words], entry);
        at as Ref
    }

    /// Allocates words in this thread's strip, or in a new strip; `None` if the front has too few words.
    #[inline]
    fn take_in_strip(&self, strip: &Strip, words: usize, tally: Tally) -> Option<usize> {
        let mut strip = strip.0.lock();
        let at = if strip.0.left() >= words { strip.0.take(words) } else { self.refill(&mut strip.0, words)? };
        strip.1 = strip.1.and(tally);
        Some(at)
    }

    /// Allocates words at the front, while the memtable is small.
    fn take_in_front(&self, words: usize, tally: Tally) -> Option<usize> {
        let mut front = self.front.lock();
        let at = self.cut(&mut front.0, words)?;
        front.1 = front.1.and(tally);
        drop(front);
        if self.bytes() >= STRIPS_FROM {
            // Another thread may set the strips concurrently. Then the strips of one of the two threads are used.
            let _ = self.strips.set(Box::default());
        }
        Some(at)
    }

    /// Takes words from the front and charges them; `None` if the front has too few words.
    /// REQUIRES: the caller holds the lock of `front`.
    fn cut(&self, front: &mut Room, words: usize) -> Option<usize> {
        if front.left() < words {
            return None;
        }
        self.charge(words * WORD);
        Some(front.take(words))
    }

    /// Allocates `words` words for a thread whose strip has too few words. The words are allocated in a new strip, or
    /// directly at the front if they exceed a quarter of a strip.
    /// REQUIRES: the caller holds the lock of the strip.
    #[cold]
    fn refill(&self, strip: &mut Room, words: usize) -> Option<usize> {
        debug_assert!(strip.left() < words, "the strip has room for the record");
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
        debug_assert_eq!(strip.end, front.0.at, "the front begins where the strip ends");
        Some(strip.take(words))
    }

    /// Allocates a new chunk with room for `words` words, from whose front words are allocated from then on, unless
    /// another thread has just done so. While this function borrows memory, it holds no lock that a writer needs.
    /// REQUIRES: the caller holds neither the lock of `front` nor of a strip.
    #[cold]
    fn grow(&self, words: usize) {
        let mut borrowed = self.growing.lock();
        if self.front.lock().0.left() >= words {
            return;
        }
        let small = FIRST_WORDS.checked_shl(borrowed.1).unwrap_or(CHUNK_WORDS);
        let small = if small <= MOST_SMALL { small } else { CHUNK_WORDS };
        borrowed.1 += 1;
        // A record that does not fit into a small chunk gets a chunk of the full size.
        let len = if words <= small { small } else { CHUNK_WORDS };
        assert!(words <= len, "a record of {words} words in a chunk of {len}");
        let chunk = self.pool.take(len);
        let beside = self.beside.load(Ordering::Relaxed);
        assert!(beside >= borrowed.0, "memory outside of chunks is never released before the arena");
        self.pool.borrow(beside - borrowed.0);
        borrowed.0 = beside;
        let mut front = self.front.lock();
        self.charge(front.0.left() * WORD);
        let number = self.chunks.push(chunk) as usize;
        assert!(number < (1 << 32) / CHUNK_WORDS, "a memtable is sealed long before 32 GiB");
        front.0 = Room { at: number * CHUNK_WORDS, end: number * CHUNK_WORDS + len };
    }

    /// Reads one word of each of the first three cache lines of each record. The waits for memory overlap, because no
    /// read depends on another. A caller that then copies the records finds them in the processor's cache.
    pub(super) fn fetch(&self, records: &[Ref]) {
        let lines = |record: Record<'_>| record.line(0) ^ record.line(1) ^ record.line(2);
        let sum = records.iter().fold(0, |sum, &at| sum ^ lines(self.record(at)));
        std::hint::black_box(sum);
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
