//! [`Shard`]: one part of the row cache. A shard holds rows in a queue of segments and finds them by hash.
//!
//! ```text
//!   places   | segment, oldest     | segment             | segment, newest |        bytes, appended
//!              row row ··· row       row ··· ··· row       row row ▲
//!   table    [·|17|·|·|402|9|·|…]  open addressing: a place in steps of 8 bytes, 0 for none
//!   seen     [·|·|a7|·|1f|…]       a mark of the hash of each row that was offered once
//! ```
//!
//! Steps:
//!
//! 1. A row is offered. The first offer leaves a mark in `seen`. An offer that finds the mark appends the row to the
//!    newest segment and enters the row into the table.
//! 2. A row that is removed, or replaced by a row of another length, leaves the table. The bytes of the old row stay
//!    until its segment is reused.
//! 3. When the shard is full, the oldest segment is emptied. Rows that were requested since they were written are
//!    copied to the newest segment, until they fill half of it. The other rows are evicted.
//!
//! So there is no linked list, and no allocation for a row. Segments are pieces of a slab: when rows are evicted to
//! make room for memtables, the memory of the rows is returned to the operating system.
//!
//! Invariants: each entry of the table is the place of a row in a segment; each key of an index has at most one entry
//! in the table; the sum of `by_index` is `rows`. Source: CLOCK (002 §3.6.1); [decision
//! 0030](../../../../docs/decisions/0030-rows-borrow-from-the-pool.md).

use std::collections::VecDeque;
use std::sync::Arc;

use zerocopy::FromZeros;

use super::segment::Segment;
use crate::base::{Ghosts, LargeVec, PAGE, Seqno, Slab};

/// The size of a row's head in bytes: hash u32, length of the key u16, length of the value u16, index u32, asked u8,
/// three unused bytes, seqno u64.
const HEAD: usize = 24;
/// The offset of a row in its segment is a multiple of this number of bytes.
const STEP: usize = 8;
/// The size in bytes of a segment in a large shard.
const SEGMENT: usize = 64 << 10;
/// The size in bytes of a segment in the smallest shards.
const LEAST_SEGMENT: usize = PAGE;
/// The number of segments of a shard of medium size.
const SEGMENTS: usize = 16;
/// The most bytes of a cached row. A longer row is cached only as a part of its leaf, in the pool.
const MAX_ROW: usize = 2 << 10;
/// A table or an array of marks of at least this many bytes has a memory mapping of its own.
const MAPPED: usize = 4 * PAGE;
/// The table's entry for no row.
const NONE: u32 = 0;

const _: () = assert!(HEAD.is_multiple_of(STEP) && LEAST_SEGMENT.is_multiple_of(STEP), "rows begin at whole steps");
const _: () = assert!(HEAD < MAX_ROW && MAX_ROW <= u16::MAX as usize, "the lengths of a row have two bytes");
const _: () = assert!(LEAST_SEGMENT <= SEGMENT && SEGMENT.is_multiple_of(PAGE), "segments are whole pages");

/// The new state of a key in a memtable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change<'a> {
    /// The key has this value since this seqno.
    Value(&'a [u8], Seqno),
    /// The key has no value that can be cached.
    Other,
}

/// A part of the cache. A shard that is created for too few bytes stays empty.
#[derive(Debug)]
pub(super) struct Shard {
    /// The segments of the queue, oldest first.
    segments: VecDeque<Segment>,
    /// The memory of the segments of all shards.
    slab: Arc<Slab<u8>>,
    /// The number of the oldest segment, modulo the number of segments that a place can distinguish.
    first: u32,
    segment_bytes: usize,
    capacity: usize,
    /// Each slot holds the place of a row plus 1, or [`NONE`] for no row. Slots are found by the row's hash. The length
    /// is a power of two.
    table: LargeVec<u32>,
    rows: usize,
    /// The number of rows of each index.
    by_index: Vec<u32>,
    /// Marks of the hashes of rows that were offered once. The length is a power of two.
    seen: LargeVec<u16>,
    /// Remembers evicted rows.
    ghosts: Arc<Ghosts>,
    pub(super) hits: u64,
    pub(super) misses: u64,
}

/// The number of marks in a shard of `capacity` bytes: four times the number of rows of medium length. The marks occupy
/// a sixteenth to an eighth of `capacity`.
fn marks(capacity: usize) -> usize {
    if capacity == 0 { 0 } else { (capacity / 64).next_power_of_two() * 2 }
}

/// A vector of `len` zeros. From [`MAPPED`] bytes on, the vector has a memory mapping of its own. The reason is that
/// whichever client thread happens to resize the shards allocates the tables of all of them. The allocator would take
/// their memory from this thread's arena, and freed memory would stay in that arena (decision 0056).
fn zeros<T: FromZeros + Copy>(len: usize) -> LargeVec<T> {
    if len * size_of::<T>() >= MAPPED { LargeVec::mapped(len) } else { LargeVec::zeroed(len) }
}

/// The size in bytes of a segment in a shard of `capacity` bytes. It is a multiple of the page size.
pub(super) fn segment_bytes(capacity: usize) -> usize {
    (capacity / SEGMENTS).clamp(LEAST_SEGMENT, SEGMENT) / PAGE * PAGE
}

/// The head that precedes a row's key and value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Head {
    hash: u32,
    key: usize,
    value: usize,
    index: u32,
    asked: bool,
    seqno: Seqno,
}

impl Head {
    fn read(bytes: &[u8]) -> Head {
        let u16_at = |at: usize| usize::from(u16::from_le_bytes([bytes[at], bytes[at + 1]]));
        let u32_at = |at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().expect("four bytes"));
        Head {
            hash: u32_at(0),
            key: u16_at(4),
            value: u16_at(6),
            index: u32_at(8),
            asked: bytes[12] != 0,
            seqno: Seqno(u64::from_le_bytes(bytes[16..24].try_into().expect("eight bytes"))),
        }
    }

    fn write(&self, out: &mut Segment) {
        let at = out.len();
        debug_assert!(at.is_multiple_of(STEP) && self.len() <= MAX_ROW.next_multiple_of(STEP));
        out.append(&self.hash.to_le_bytes());
        out.append(&(self.key as u16).to_le_bytes());
        out.append(&(self.value as u16).to_le_bytes());
        out.append(&self.index.to_le_bytes());
        out.append(&[u8::from(self.asked), 0, 0, 0]);
        out.append(&self.seqno.0.to_le_bytes());
        debug_assert_eq!(Head::read(&out[at..]), *self, "a lookup reads the head that was written");
    }

    /// Bytes of the row: head, key, value and padding.
    fn len(&self) -> usize {
        (HEAD + self.key + self.value).next_multiple_of(STEP)
    }
}

impl Shard {
    /// Creates a shard with a capacity of `capacity_bytes`, which [`Shard::resize`] may change. Its segments are pieces
    /// of `slab`, which must be [`segment_bytes`]`(capacity_bytes)` long.
    pub(super) fn new(capacity_bytes: usize, slab: Arc<Slab<u8>>, ghosts: Arc<Ghosts>) -> Shard {
        let segment_bytes = segment_bytes(capacity_bytes);
        let capacity = if capacity_bytes < SEGMENTS * LEAST_SEGMENT / 4 { 0 } else { capacity_bytes };
        Shard {
            segments: VecDeque::new(),
            slab,
            first: 0,
            segment_bytes,
            capacity,
            table: LargeVec::new(),
            rows: 0,
            by_index: Vec::new(),
            seen: zeros(marks(capacity)),
            ghosts,
            hits: 0,
            misses: 0,
        }
    }

    /// Changes the capacity, and evicts the oldest rows if the capacity shrinks. Does nothing if the shard was created
    /// for too few bytes.
    pub(super) fn resize(&mut self, capacity_bytes: usize) {
        if self.capacity == 0 {
            return;
        }
        self.capacity = capacity_bytes.max(SEGMENTS * LEAST_SEGMENT / 4);
        if self.seen.len() != marks(self.capacity) {
            // The new array has no marks. So a row whose first offer was marked in the old array must be offered twice
            // more.
            self.seen = zeros(marks(self.capacity));
        }
        self.shrink();
    }

    /// Evicts the oldest segments until the shard is within its capacity.
    fn shrink(&mut self) {
        while self.bytes() > self.capacity && self.segments.len() > 1 {
            self.turn(0);
            self.segments.pop_back();
            // The table counts towards the capacity.
            if self.table.len() > 64 && self.rows * 6 < self.table.len() {
                self.rebuild((self.rows * 2).next_power_of_two().max(64));
            }
        }
    }

    pub(super) fn bytes(&self) -> usize {
        self.segments.len() * self.segment_bytes + self.table.len() * 4 + self.seen.len() * 2
    }

    pub(super) fn rows(&self) -> usize {
        self.rows
    }

    /// The number of rows of an index.
    pub(super) fn rows_of(&self, index: u32) -> u32 {
        self.by_index.get(index as usize).copied().unwrap_or(0)
    }

    pub(super) fn get(&mut self, index: u32, key: &[u8], hash: u64, at: Seqno) -> Option<Arc<[u8]>> {
        let Some(slot) = self.find(index, key, hash) else {
            self.misses += 1;
            self.ghosts.came(u64::from(hash as u32));
            return None;
        };
        let row = self.row_mut(self.table[slot] - 1);
        let head = Head::read(row);
        row[12] = 1;
        let found = (head.seqno <= at).then(|| row[HEAD + head.key..][..head.value].into());
        *if found.is_some() { &mut self.hits } else { &mut self.misses } += 1;
        found
    }

    /// Caches the row if it was offered once before and its mark has not been overwritten.
    pub(super) fn offer(&mut self, index: u32, key: &[u8], hash: u64, value: &[u8], seqno: Seqno) {
        if self.capacity == 0 || HEAD + key.len() + value.len() > MAX_ROW.min(self.segment_bytes / 4) {
            return;
        }
        let mark = (hash >> 32) as u16 | 1;
        let at = (hash as usize).wrapping_add(index as usize) & (self.seen.len() - 1);
        if std::mem::replace(&mut self.seen[at], mark) != mark {
            return;
        }
        self.seen[at] = 0;
        // Another reader may have inserted the row already.
        if self.find(index, key, hash).is_none() {
            self.put(index, key, hash, value, seqno);
            debug_assert!(self.find(index, key, hash).is_some(), "a lookup finds the row");
        }
    }

    /// Updates a cached row in place, or removes it if the new value has another length or cannot be cached.
    pub(super) fn change(&mut self, index: u32, key: &[u8], hash: u64, change: Change<'_>) {
        let Some(slot) = self.find(index, key, hash) else { return };
        let row = self.row_mut(self.table[slot] - 1);
        let head = Head::read(row);
        match change {
            // Most updates do not change the length.
            Change::Value(value, seqno) if value.len() == head.value => {
                debug_assert!(seqno >= head.seqno, "{} replaces the older {seqno}", head.seqno);
                row[16..24].copy_from_slice(&seqno.0.to_le_bytes());
                row[HEAD + head.key..][..head.value].copy_from_slice(value);
            }
            _ => self.vacate(slot),
        }
    }

    /// Removes the rows for which `keep` returns `false`.
    pub(super) fn retain(&mut self, keep: impl Fn(u32, &[u8], Seqno) -> bool) {
        let mut slot = 0;
        while slot < self.table.len() {
            let place = self.table[slot];
            let gone = place != NONE && {
                let row = self.row(place - 1);
                let head = Head::read(row);
                !keep(head.index, &row[HEAD..][..head.key], head.seqno)
            };
            // After a removal, inspect the same slot again: another row may have moved into it.
            if gone { self.vacate(slot) } else { slot += 1 }
        }
    }

    // ---- places ----

    /// The number of steps ([`STEP`]) in a segment.
    fn steps(&self) -> u32 {
        (self.segment_bytes / STEP) as u32
    }

    /// Splits a place into the index of its segment and the byte within it. A place counts steps from the beginning of
    /// the shard's first segment; the count wraps around.
    fn split(&self, place: u32) -> (usize, usize) {
        let steps = self.steps();
        let modulus = u32::MAX / steps;
        let number = place / steps;
        let segment = (number + modulus - self.first % modulus) % modulus;
        debug_assert!((segment as usize) < self.segments.len(), "the place is that of a row in a segment");
        (segment as usize, (place % steps) as usize * STEP)
    }

    fn row(&self, place: u32) -> &[u8] {
        let (segment, at) = self.split(place);
        &self.segments[segment][at..]
    }

    fn row_mut(&mut self, place: u32) -> &mut [u8] {
        let (segment, at) = self.split(place);
        &mut self.segments[segment][at..]
    }

    // ---- the table ----

    fn find(&self, index: u32, key: &[u8], hash: u64) -> Option<usize> {
        if self.table.is_empty() {
            return None;
        }
        let mask = self.table.len() - 1;
        let mut slot = hash as usize & mask;
        loop {
            let place = self.table[slot];
            if place == NONE {
                return None;
            }
            let row = self.row(place - 1);
            let head = Head::read(row);
            if head.hash == hash as u32 && head.index == index && row[HEAD..][..head.key] == *key {
                return Some(slot);
            }
            slot = (slot + 1) & mask;
        }
    }

    /// Empties a slot. Then moves later rows of the same probe sequence towards the emptied slot, so that no search
    /// stops too early.
    fn vacate(&mut self, mut slot: usize) {
        let mask = self.table.len() - 1;
        let index = Head::read(self.row(self.table[slot] - 1)).index;
        self.by_index[index as usize] -= 1;
        let mut next = slot;
        loop {
            next = (next + 1) & mask;
            let place = self.table[next];
            if place == NONE {
                break;
            }
            let home = Head::read(self.row(place - 1)).hash as usize & mask;
            // Move the row if the empty slot is between the row's home slot and its current slot.
            if (next.wrapping_sub(home) & mask) >= (next.wrapping_sub(slot) & mask) {
                self.table[slot] = place;
                slot = next;
            }
        }
        self.table[slot] = NONE;
        self.rows -= 1;
        self.check();
    }

    fn enter(&mut self, index: u32, hash: u32, place: u32) {
        if (self.rows + 1) * 4 > self.table.len() * 3 {
            self.rebuild((self.table.len() * 2).max(64));
        }
        self.settle(hash, place + 1);
        self.rows += 1;
        if self.by_index.len() <= index as usize {
            self.by_index.resize(index as usize + 1, 0);
        }
        self.by_index[index as usize] += 1;
        self.check();
    }

    /// Checks the counters of rows. Also checks that the table has an empty slot, because searches end at one.
    fn check(&self) {
        debug_assert_eq!(self.by_index.iter().map(|&rows| rows as usize).sum::<usize>(), self.rows);
        debug_assert!(self.rows < self.table.len(), "{} rows in {} slots", self.rows, self.table.len());
    }

    /// Moves all rows into a table of `slots` slots, a power of two.
    fn rebuild(&mut self, slots: usize) {
        assert!(slots.is_power_of_two() && slots > self.rows, "{slots} slots for {} rows", self.rows);
        let old = std::mem::replace(&mut self.table, zeros(slots));
        for place in old.iter().copied().filter(|&place| place != NONE) {
            let hash = Head::read(self.row(place - 1)).hash;
            self.settle(hash, place);
        }
        let taken = || self.table.iter().filter(|place| **place != NONE).count();
        debug_assert_eq!(taken(), self.rows, "all rows were moved");
    }

    fn settle(&mut self, hash: u32, place: u32) {
        let mask = self.table.len() - 1;
        let mut slot = hash as usize & mask;
        while self.table[slot] != NONE {
            slot = (slot + 1) & mask;
        }
        self.table[slot] = place;
    }

    // ---- the queue ----

    fn put(&mut self, index: u32, key: &[u8], hash: u64, value: &[u8], seqno: Seqno) {
        let head = Head { hash: hash as u32, key: key.len(), value: value.len(), index, asked: false, seqno };
        self.make_room(head.len());
        let place = self.append(&head, key, value);
        self.enter(index, head.hash, place);
    }

    /// Appends a row to the newest segment. Returns its place.
    /// REQUIRES: [`Shard::make_room`] was called, so the segment has room.
    fn append(&mut self, head: &Head, key: &[u8], value: &[u8]) -> u32 {
        let modulus = u32::MAX / self.steps();
        let number = (self.first % modulus + self.segments.len() as u32 - 1) % modulus;
        let steps = self.steps();
        let segment = self.segments.back_mut().expect("room was made");
        let begin = segment.len();
        let place = number * steps + (begin / STEP) as u32;
        head.write(segment);
        segment.append(key);
        segment.append(value);
        segment.append(&[0; STEP][..segment.len().next_multiple_of(STEP) - segment.len()]);
        debug_assert_eq!(segment.len(), begin + head.len(), "a row takes the announced number of bytes");
        place
    }

    /// Makes room for a row of `bytes` bytes in the newest segment.
    fn make_room(&mut self, bytes: usize) {
        debug_assert!(bytes <= self.segment_bytes / 2, "a segment that was turned has room for a row");
        let fits = |segment: &Segment| segment.len() + bytes <= self.segment_bytes;
        if self.segments.back().is_some_and(fits) {
            return;
        }
        // The shard may exceed its capacity because its table grows with the number of rows.
        self.shrink();
        if self.bytes() + self.segment_bytes <= self.capacity || self.segments.is_empty() {
            self.segments.push_back(Segment::new(&self.slab));
        } else {
            self.turn(self.segment_bytes / 2);
        }
        debug_assert!(self.segments.back().is_some_and(|segment| segment.len() + bytes <= self.segment_bytes));
    }

    /// Removes the oldest segment and appends a new one. Rows of the oldest segment that were requested are copied into
    /// the new segment, up to `most` bytes; the others are evicted.
    fn turn(&mut self, most: usize) {
        let steps = self.steps();
        let modulus = u32::MAX / steps;
        let begin = (self.first % modulus) * steps;
        let oldest = &self.segments[0];
        let (mut at, mut again, mut kept) = (0, Vec::new(), 0);
        let mut rows = Vec::new();
        while at < oldest.len() {
            let head = Head::read(&oldest[at..]);
            rows.push((at, head));
            at += head.len();
        }
        debug_assert_eq!(at, oldest.len(), "a segment consists of whole rows");
        for (at, head) in rows {
            let Some(slot) = self.slot_of(head.hash, begin + (at / STEP) as u32) else { continue };
            if head.asked && kept + head.len() <= most {
                kept += head.len();
                again.push((at, head));
            } else {
                self.ghosts.left(u64::from(head.hash), head.len());
            }
            self.vacate(slot);
        }
        debug_assert!(kept <= most, "{kept} bytes are kept, at most {most}");
        let old = self.segments.pop_front().expect("there are segments");
        self.first = (self.first + 1) % modulus;
        self.segments.push_back(Segment::new(&self.slab));
        for (at, head) in again {
            let (key, value) = old[at + HEAD..][..head.key + head.value].split_at(head.key);
            let head = Head { asked: false, ..head };
            let place = self.append(&head, key, value);
            self.enter(head.index, head.hash, place);
        }
    }

    /// The slot of the row at the given place, if the row is still in the table.
    fn slot_of(&self, hash: u32, place: u32) -> Option<usize> {
        let mask = self.table.len() - 1;
        let mut slot = hash as usize & mask;
        while self.table[slot] != NONE {
            if self.table[slot] == place + 1 {
                return Some(slot);
            }
            slot = (slot + 1) & mask;
        }
        None
    }
}
