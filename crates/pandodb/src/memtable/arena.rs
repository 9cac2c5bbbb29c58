//! The memory of a memtable's messages: chunks that are filled from front to back and recycled as a whole.
//!
//! ```text
//!   chunk, 1 MiB   | record | record |pad| record | …           | free |
//!   record         | seqno 8 | kind and value length 4 | key length 2 | key | value |     padded to 8 bytes
//! ```
//!
//! A record is addressed by a `u32` in units of 8 bytes, so that an arena reaches 32 GiB. It never spans chunks: the
//! longest key with the longest operand fits into one many times over. Records never move and are never freed one by one.

use std::sync::Arc;

use crate::base::sync::Mutex;
use crate::base::{Entry, Kind, MAX_KEY, MAX_OPERAND, Seqno};

/// The size of a chunk in bytes.
pub const CHUNK_BYTES: usize = 1 << 20;
/// The unit of addresses in bytes.
const UNIT: usize = 8;
/// Bytes of a record before its key.
const HEADER: usize = 14;
/// Bits of the kind, below the value's length.
const KIND_BITS: u32 = 3;

const _: () = assert!(HEADER + MAX_KEY + MAX_OPERAND + UNIT <= CHUNK_BYTES, "every record fits into a chunk");

/// The free list of chunks that all memtables of a store share, bounded so that a burst does not stay resident.
#[derive(Debug)]
pub struct ChunkPool {
    free: Mutex<Vec<Vec<u8>>>,
    max_free: usize,
}

impl ChunkPool {
    /// Keeps up to `max_free` chunks of [`CHUNK_BYTES`] for reuse.
    pub fn new(max_free: usize) -> ChunkPool {
        ChunkPool { free: Mutex::new(Vec::new()), max_free }
    }

    /// Bytes of the chunks that wait for reuse.
    pub fn free_bytes(&self) -> usize {
        self.free.lock().len() * CHUNK_BYTES
    }

    /// An empty chunk.
    fn take(&self) -> Vec<u8> {
        let recycled = self.free.lock().pop();
        recycled.unwrap_or_else(|| Vec::with_capacity(CHUNK_BYTES))
    }

    /// Takes chunks back, as many as the bound lets it.
    fn give(&self, chunks: impl Iterator<Item = Vec<u8>>) {
        let mut free = self.free.lock();
        let room = self.max_free.saturating_sub(free.len());
        free.extend(chunks.take(room).map(|mut chunk| {
            chunk.clear();
            chunk
        }));
    }
}

/// The address of a record.
pub(super) type Ref = u32;

/// The records of one memtable.
#[derive(Debug)]
pub(super) struct Arena {
    chunks: Vec<Vec<u8>>,
    pool: Arc<ChunkPool>,
}

impl Arena {
    pub(super) fn new(pool: Arc<ChunkPool>) -> Arena {
        Arena { chunks: Vec::new(), pool }
    }

    /// Bytes taken from chunks; a full chunk counts whole.
    pub(super) fn bytes(&self) -> usize {
        self.chunks.last().map_or(0, |last| (self.chunks.len() - 1) * CHUNK_BYTES + last.len())
    }

    /// Stores a copy of `entry`.
    pub(super) fn push(&mut self, entry: &Entry<'_>) -> Ref {
        assert!(!entry.key.is_empty() && entry.key.len() <= MAX_KEY, "keys are checked when they are written");
        assert!(entry.value.len() <= MAX_OPERAND, "large values are stored apart");
        let len = (HEADER + entry.key.len() + entry.value.len()).next_multiple_of(UNIT);
        if self.chunks.last().is_none_or(|chunk| chunk.len() + len > CHUNK_BYTES) {
            assert!(self.chunks.len() < (1 << 32) * UNIT / CHUNK_BYTES, "a memtable is sealed long before 32 GiB");
            self.chunks.push(self.pool.take());
        }
        let number = self.chunks.len() - 1;
        let chunk = &mut self.chunks[number];
        let start = chunk.len();
        let meta = (entry.value.len() as u32) << KIND_BITS | entry.kind as u32;
        let mut header = [0; HEADER];
        header[..8].copy_from_slice(&entry.seqno.0.to_le_bytes());
        header[8..12].copy_from_slice(&meta.to_le_bytes());
        header[12..].copy_from_slice(&(entry.key.len() as u16).to_le_bytes());
        chunk.extend_from_slice(&header);
        chunk.extend_from_slice(entry.key);
        chunk.extend_from_slice(entry.value);
        chunk.resize(start + len, 0);
        debug_assert!(chunk.capacity() == CHUNK_BYTES, "a chunk never grows");
        ((number * CHUNK_BYTES + start) / UNIT) as Ref
    }

    /// The record at `at`, from its header on.
    #[inline]
    fn record(&self, at: Ref) -> &[u8] {
        let offset = at as usize * UNIT;
        &self.chunks[offset / CHUNK_BYTES][offset % CHUNK_BYTES..]
    }

    /// The key and the seqno of the record at `at`.
    #[inline]
    pub(super) fn key(&self, at: Ref) -> (&[u8], Seqno) {
        let record = self.record(at);
        let key_len = usize::from(u16::from_le_bytes([record[12], record[13]]));
        (&record[HEADER..HEADER + key_len], Seqno(number(&record[..8])))
    }

    /// The message of the record at `at`.
    #[inline]
    pub(super) fn entry(&self, at: Ref) -> Entry<'_> {
        let record = self.record(at);
        let (key, seqno) = self.key(at);
        let meta = u32::from_le_bytes([record[8], record[9], record[10], record[11]]);
        let value = HEADER + key.len();
        let kind = Kind::from_u8((meta & ((1 << KIND_BITS) - 1)) as u8).expect("the kind that was stored");
        Entry { key, seqno, kind, value: &record[value..value + (meta >> KIND_BITS) as usize] }
    }
}

impl Drop for Arena {
    fn drop(&mut self) {
        self.pool.give(self.chunks.drain(..));
    }
}

#[inline]
fn number(bytes: &[u8]) -> u64 {
    bytes.iter().rev().fold(0, |number, &byte| number << 8 | u64::from(byte))
}
