//! The memory of a memtable's messages: chunks that are filled from front to back and recycled as a whole.
//!
//! ```text
//!   chunk, 1 MiB   | strip of thread a | strip of thread b | large record | strip of a | …           | free |
//!   strip          | record | record | record | free |          1/64 of the memtable, 64 KiB at most
//! ```
//!
//! 1. A thread writes into a strip of its own (two share one only if there are many threads), under a lock that nobody
//!    else asks for, for as long as it takes to move a number on. What it has written so far is tallied there, too.
//! 2. A full strip is replaced by one from the front of the newest chunk; a record that does not fit into a quarter of a
//!    strip comes from there itself. So small memtables take no more than they need, and large ones seldom meet there.
//! 3. A full chunk is followed by one of the [`ChunkPool`], where it returns with the arena. There it waits for reuse, or gives its memory
//!    back to the buffer pool from which it was borrowed.
//!
//! A record is addressed by a `u32` in words of 8 bytes, so that an arena reaches 32 GiB. It never spans chunks: the
//! longest key with the longest operand fits into one many times over. Records never move and are never freed one by one.
//! Chunks are atomic words ([`super::record`]): one thread writes a record while another reads its neighbour.

use std::sync::Arc;

use super::record::{self, Record, WORD};
use super::table::Table;
use crate::base::slab::Lender;
use crate::base::sync::{AtomicUsize, Mutex, Ordering, Word, thread_number};
use crate::base::{Entry, MAX_KEY, MAX_OPERAND, Seqno, Slab, Slot};

/// The size of a chunk in bytes.
pub const CHUNK_BYTES: usize = 1 << 20;
const CHUNK_WORDS: usize = CHUNK_BYTES / WORD;
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

    /// A chunk of which nothing is in use, whatever stands there. A new one is touched by whoever writes into it first.
    fn take(&self) -> Chunk {
        let recycled = self.free.lock().pop();
        recycled.unwrap_or_else(|| {
            if let Some((pool, bytes)) = &self.lender {
                pool.lend(*bytes);
            }
            self.slab.take()
        })
    }

    /// Takes chunks back, as many as the bound lets it.
    fn give(&self, mut chunks: impl Iterator<Item = Chunk>) {
        let mut free = self.free.lock();
        let room = self.max_free.saturating_sub(free.len());
        free.extend(chunks.by_ref().take(room));
        drop(free);
        self.give_up(chunks);
    }

    fn give_up(&self, chunks: impl IntoIterator<Item = Chunk>) {
        for chunk in chunks {
            drop(chunk);
            if let Some((pool, bytes)) = &self.lender {
                pool.take_back(*bytes);
            }
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
    chunks: Table<Chunk>,
    /// What is left of the newest chunk.
    front: Mutex<Room>,
    strips: [Strip; STRIPS],
    /// Bytes of chunks that were given to strips or lost at a chunk's end, and what else was charged.
    charged: AtomicUsize,
    pool: Arc<ChunkPool>,
}

impl Arena {
    pub(super) fn new(pool: Arc<ChunkPool>) -> Arena {
        let (front, strips) = (Mutex::new(Room::default()), std::array::from_fn(|_| Strip::default()));
        Arena { chunks: Table::new(), front, strips, charged: AtomicUsize::new(0), pool }
    }

    /// Bytes in use. It never shrinks, is ahead of what was written by a 64th for each thread that writes, and never
    /// behind.
    #[inline]
    pub(super) fn bytes(&self) -> usize {
        self.charged.load(Ordering::Relaxed)
    }

    /// Counts bytes that are in use elsewhere.
    pub(super) fn charge(&self, bytes: usize) {
        self.charged.fetch_add(bytes, Ordering::Relaxed);
    }

    /// Everything that was stored, and perhaps what is being stored.
    pub(super) fn tally(&self) -> Tally {
        self.strips.iter().fold(Tally::default(), |sum, strip| sum.and(strip.0.lock().1))
    }

    /// Stores a copy of `entry`. Whoever gets the reference from another thread must get it with `Acquire`.
    #[inline]
    pub(super) fn push(&self, entry: &Entry<'_>) -> Ref {
        assert!(!entry.key.is_empty() && entry.key.len() <= MAX_KEY, "keys are checked when they are written");
        assert!(entry.value.len() <= MAX_OPERAND, "large values are stored apart");
        let words = record::words(entry);
        let at = {
            let mut strip = self.strips[thread_number() % STRIPS].0.lock();
            strip.1 = strip.1.and(Tally::of(entry.seqno, entry.key.len() + entry.value.len()));
            if strip.0.left() >= words { strip.0.take(words) } else { self.refill(&mut strip.0, words) }
        };
        record::write(&self.chunks.get((at / CHUNK_WORDS) as u32)[at % CHUNK_WORDS..][..words], entry);
        at as Ref
    }

    /// Takes `words` words for a strip that has not so many: out of a new strip, unless they would be too much of it.
    #[cold]
    fn refill(&self, strip: &mut Room, words: usize) -> usize {
        let mut front = self.front.lock();
        if front.left() < words {
            self.charge(front.left() * WORD);
            let chunk = self.chunks.push(self.pool.take()) as usize;
            assert!(chunk < (1 << 32) / CHUNK_WORDS, "a memtable is sealed long before 32 GiB");
            *front = Room { at: chunk * CHUNK_WORDS, end: (chunk + 1) * CHUNK_WORDS };
        }
        let share = (self.bytes() / STRIP_SHARE / WORD).min(STRIP_WORDS);
        if share / 4 < words {
            self.charge(words * WORD);
            return front.take(words);
        }
        let len = share.min(front.left());
        self.charge(len * WORD);
        let at = front.take(len);
        *strip = Room { at, end: at + len };
        strip.take(words)
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
    }
}
