//! [`EntryBlock`]: a batch of entries that owns its bytes. Cursors pass entries to each other in such blocks.
//!
//! One virtual call passes a whole block of entries, not a single entry. The same block is cleared and filled again for
//! each call, so the number of allocations of a scan does not grow with its length.
//!
//! ```text
//!   bytes   key0 value0 key1 value1 …            one buffer
//!   slots   (offset of key0, lengths, kind, seqno), …
//! ```
//!
//! Invariant: `value i` follows `key i` directly. Offsets are `u32`, so a block holds less than 4 GiB.

use std::cell::Cell;

use super::ids::Seqno;
use super::message::{Entry, Kind};

/// Entries in cursor order, with the bytes of their keys and values in one buffer.
#[derive(Clone, Debug, Default)]
pub struct EntryBlock {
    bytes: Vec<u8>,
    slots: Vec<Slot>,
}

#[derive(Clone, Copy, Debug)]
struct Slot {
    key: u32,
    key_len: u32,
    value_len: u32,
    kind: Kind,
    seqno: Seqno,
}

/// Writes `words` to `to`, one after the other, from the start of `to`.
#[inline]
fn store(to: &mut [u8], words: impl Iterator<Item = u64>) {
    let (cells, _) = to.as_chunks_mut::<8>();
    cells.iter_mut().zip(words).for_each(|(cell, word)| *cell = word.to_ne_bytes());
}

/// Each thread keeps this number of blocks for its next scans.
const MOST_KEPT: usize = 4;
/// A block with more than this number of bytes of memory is not kept.
const MOST_KEPT_BYTES: usize = 16 << 10;

thread_local! {
    static KEPT: Cell<Vec<EntryBlock>> = const { Cell::new(Vec::new()) };
}

impl EntryBlock {
    /// An empty block, if possible with the memory of a block that this thread has [kept](EntryBlock::keep). A short scan
    /// would otherwise spend much of its time on growing its blocks.
    pub fn kept() -> EntryBlock {
        let block = KEPT.try_with(|kept| {
            let mut blocks = kept.take();
            let block = blocks.pop();
            kept.set(blocks);
            block
        });
        block.ok().flatten().unwrap_or_default()
    }

    /// Keeps the memory of a block for the next scan of this thread.
    pub fn keep(mut self) {
        let bytes = self.allocated();
        if bytes == 0 || bytes > MOST_KEPT_BYTES {
            return;
        }
        self.clear();
        // The thread may be ending.
        let _ = KEPT.try_with(|kept| {
            let mut blocks = kept.take();
            if blocks.len() < MOST_KEPT {
                blocks.push(self);
            }
            kept.set(blocks);
        });
    }

    /// An empty block.
    pub fn new() -> EntryBlock {
        EntryBlock::default()
    }

    /// Appends a copy of `entry`.
    #[inline]
    pub fn push(&mut self, entry: Entry<'_>) {
        let key = self.bytes.len() as u32;
        self.bytes.extend_from_slice(entry.key);
        self.bytes.extend_from_slice(entry.value);
        debug_assert!(u32::try_from(self.bytes.len()).is_ok(), "the offsets of a block are `u32`");
        self.slots.push(Slot {
            key,
            key_len: entry.key.len() as u32,
            value_len: entry.value.len() as u32,
            kind: entry.kind,
            seqno: entry.seqno,
        });
    }

    /// Appends an entry whose key and value are given as lengths in bytes and as native-endian words. The key and the
    /// value each start at a word boundary. If the last word has more bytes than the length needs, the excess bytes are
    /// ignored. A caller that has words instead of byte slices saves a copy by this method.
    #[inline]
    pub fn push_words(
        &mut self,
        (seqno, kind): (Seqno, Kind),
        key: (usize, impl Iterator<Item = u64>),
        value: (usize, impl Iterator<Item = u64>),
    ) {
        let (at, key_len, value_len) = (self.bytes.len() as u32, key.0 as u32, value.0 as u32);
        let (from, middle) = (self.bytes.len(), self.bytes.len() + key.0);
        debug_assert!(u32::try_from(middle + value.0).is_ok(), "the offsets of a block are `u32`");
        self.bytes.resize(middle + value.0 + 7, 0);
        // The value is stored after the key is stored, because the value overwrites the excess bytes of the key's last
        // word.
        store(&mut self.bytes[from..], key.1);
        store(&mut self.bytes[middle..], value.1);
        self.bytes.truncate(middle + value.0);
        self.slots.push(Slot { key: at, key_len, value_len, kind, seqno });
    }

    /// Removes all entries and keeps the memory.
    pub fn clear(&mut self) {
        self.bytes.clear();
        self.slots.clear();
    }

    /// The number of the first entry, from number `from` on, whose key is not below `key`. REQUIRES: the entries are in
    /// order.
    pub fn lower_bound(&self, from: usize, key: &[u8]) -> usize {
        let key_of = |slot: &Slot| &self.bytes[slot.key as usize..(slot.key + slot.key_len) as usize];
        from + self.slots[from..].partition_point(|slot| key_of(slot) < key)
    }

    /// The number of entries.
    #[inline]
    pub fn len(&self) -> usize {
        self.slots.len()
    }

    /// Whether there are no entries.
    pub fn is_empty(&self) -> bool {
        self.slots.is_empty()
    }

    /// The number of bytes of all keys and values.
    pub fn bytes(&self) -> usize {
        self.bytes.len()
    }

    /// The number of bytes of memory that the entries take, without spare capacity.
    #[inline]
    pub fn memory(&self) -> usize {
        self.bytes.len() + self.slots.len() * size_of::<Slot>()
    }

    /// The number of bytes of memory that the block takes, with spare capacity.
    pub fn allocated(&self) -> usize {
        self.bytes.capacity() + self.slots.capacity() * size_of::<Slot>()
    }

    /// The `i`-th entry.
    ///
    /// # Panics
    /// If `i` is not below [`EntryBlock::len`].
    #[inline]
    pub fn get(&self, i: usize) -> Entry<'_> {
        let slot = self.slots[i];
        let value = (slot.key + slot.key_len) as usize;
        debug_assert_eq!(
            value + slot.value_len as usize,
            self.slots.get(i + 1).map_or(self.bytes.len(), |next| next.key as usize),
            "entries follow each other without gaps"
        );
        Entry {
            key: &self.bytes[slot.key as usize..value],
            seqno: slot.seqno,
            kind: slot.kind,
            value: &self.bytes[value..value + slot.value_len as usize],
        }
    }

    /// The buffer that holds all keys and values.
    pub fn raw(&self) -> &[u8] {
        &self.bytes
    }

    /// The ranges of the `i`-th key and value in [`EntryBlock::raw`].
    #[inline]
    pub fn places(&self, i: usize) -> (std::ops::Range<usize>, std::ops::Range<usize>) {
        let slot = self.slots[i];
        let (key, value) = (slot.key as usize, (slot.key + slot.key_len) as usize);
        (key..value, value..value + slot.value_len as usize)
    }

    /// All entries in order.
    pub fn iter(&self) -> impl Iterator<Item = Entry<'_>> {
        (0..self.len()).map(|i| self.get(i))
    }
}
