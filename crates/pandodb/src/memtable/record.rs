//! The layout of a message in the arena: words that are written once, before the reference to the message is published.
//!
//! ```text
//!   | seqno 8 | kind 1 | – | key length 2 | value length 4 | key, padded with zeros to 8 | value, padded to 8 |
//! ```
//!
//! The words are atomics, so that threads share them without `unsafe` code while neighbouring words are being written.
//! Relaxed loads and stores of atomics are plain moves. The writer publishes the reference with `Release` after all
//! words are written, and readers load the reference with `Acquire`. So relaxed accesses suffice for the words.
//!
//! Keys are compared in place, one word at a time. A reader copies a message before it passes the message on. A lookup
//! copies into a [`Scratch`], and a cursor copies into its block.
//!
//! Invariant: the last word of a key is padded with zeros, so the order of big-endian words is the order of the keys.
//! Keys that differ only by trailing zeros are distinguished by their lengths.

use std::cmp::Ordering as Order;

use zerocopy::IntoBytes;

use super::Target;
use crate::base::sync::{Ordering, Word};
use crate::base::{Entry, EntryBlock, Kind, MAX_KEY, MAX_OPERAND, Seqno};

/// The size of a word in bytes.
pub(super) const WORD: usize = 8;
/// The size of a cache line in bytes.
pub(super) const LINE: usize = 64;
/// The number of words before the key.
const HEADER: usize = 2;
/// The most words of a message that a [`Scratch`] holds without an allocation.
const NEAR: usize = 32;

const _: () = assert!(MAX_KEY <= u16::MAX as usize && MAX_OPERAND <= u32::MAX as usize, "lengths have 16 and 32 bits");

/// The number of words of a record of `entry`.
#[inline]
pub(super) fn words(entry: &Entry<'_>) -> usize {
    HEADER + entry.key.len().div_ceil(WORD) + entry.value.len().div_ceil(WORD)
}

/// Writes a record of `entry`.
/// REQUIRES: no other thread knows the words yet.
#[inline]
pub(super) fn write(to: &[Word], entry: &Entry<'_>) {
    debug_assert_eq!(to.len(), words(entry));
    let lens = (entry.key.len() as u64) << 16 | (entry.value.len() as u64) << 32;
    to[0].store(entry.seqno.0, Ordering::Relaxed);
    to[1].store(entry.kind as u64 | lens, Ordering::Relaxed);
    let (key, value) = to[HEADER..].split_at(entry.key.len().div_ceil(WORD));
    write_bytes(key, entry.key);
    write_bytes(value, entry.value);
    let written = Record::at(to);
    debug_assert!(written.is_of(entry.key), "readers find the key");
    debug_assert_eq!(written.lens(), (entry.key.len(), entry.value.len()), "readers load what was written");
    debug_assert_eq!((written.seqno(), written.kind()), (entry.seqno, entry.kind), "readers load what was written");
}

#[inline]
fn write_bytes(to: &[Word], bytes: &[u8]) {
    debug_assert_eq!(to.len(), bytes.len().div_ceil(WORD), "readers of the last word rely on its padding");
    let (whole, rest) = bytes.as_chunks::<WORD>();
    to.iter().zip(whole).for_each(|(word, bytes)| word.store(u64::from_ne_bytes(*bytes), Ordering::Relaxed));
    if !rest.is_empty() {
        let mut padded = [0; WORD];
        padded[..rest.len()].copy_from_slice(rest);
        to[whole.len()].store(u64::from_ne_bytes(padded), Ordering::Relaxed);
    }
}

/// The first 8 bytes of `key` that follow the first `prefix` bytes, padded with zeros. Heads have the order of their
/// keys.
#[inline]
pub(super) fn head(key: &[u8], prefix: usize) -> u64 {
    let rest = key.get(prefix..).unwrap_or_default();
    match rest.first_chunk::<WORD>() {
        Some(bytes) => u64::from_be_bytes(*bytes),
        None => {
            let mut bytes = [0; WORD];
            bytes[..rest.len()].copy_from_slice(rest);
            u64::from_be_bytes(bytes)
        }
    }
}

/// A record in the arena. The slice begins with the record and extends beyond its end.
#[derive(Clone, Copy, Debug)]
pub(super) struct Record<'a>(&'a [Word]);

impl<'a> Record<'a> {
    /// The record at the beginning of `words`.
    #[inline]
    pub(super) fn at(words: &'a [Word]) -> Record<'a> {
        Record(words)
    }

    /// A word of the cache line number `line`, counted from the line of the record's first word; 0 beyond the chunk.
    /// The word may belong to another record.
    #[inline]
    pub(super) fn line(self, line: usize) -> u64 {
        self.0.get(line * LINE / WORD).map_or(0, |word| word.load(Ordering::Relaxed))
    }

    #[inline]
    pub(super) fn seqno(self) -> Seqno {
        Seqno(self.0[0].load(Ordering::Relaxed))
    }

    /// The lengths of key and value.
    #[inline]
    fn lens(self) -> (usize, usize) {
        let meta = self.0[1].load(Ordering::Relaxed);
        (usize::from((meta >> 16) as u16), (meta >> 32) as usize)
    }

    #[inline]
    pub(super) fn key_len(self) -> usize {
        self.lens().0
    }

    /// The words of the key, big-endian.
    #[inline]
    fn key(self) -> impl Iterator<Item = u64> + 'a {
        let len = self.key_len().div_ceil(WORD);
        self.0[HEADER..HEADER + len].iter().map(|word| u64::from_be(word.load(Ordering::Relaxed)))
    }

    /// The [`head`] of this record's key.
    #[inline]
    pub(super) fn head(self, prefix: usize) -> u64 {
        let shift = (prefix % WORD * 8) as u32;
        let mut words = self.key().skip(prefix / WORD);
        let (first, second) = (words.next().unwrap_or(0), words.next().unwrap_or(0));
        if shift == 0 { first } else { first << shift | second >> (u64::BITS - shift) }
    }

    /// The number of leading bytes that the two keys have in common.
    pub(super) fn common(self, other: Record<'_>) -> usize {
        let limit = self.key_len().min(other.key_len());
        common(limit, self.key().zip(other.key()))
    }

    /// The number of leading bytes that the key has in common with `key`.
    #[inline]
    pub(super) fn common_with(self, key: &[u8]) -> usize {
        let limit = self.key_len().min(key.len());
        common(limit, self.key().zip((0..).map(|i| head(key, i * WORD))))
    }

    /// Whether the record's key equals `key`.
    #[inline]
    pub(super) fn is_of(self, key: &[u8]) -> bool {
        self.key_len() == key.len() && self.key().enumerate().all(|(i, word)| word == head(key, i * WORD))
    }

    /// Compares this record with `target`, in the order (key ascending, seqno descending).
    #[inline]
    pub(super) fn order(self, target: Target<'_>) -> Order {
        for (i, word) in self.key().enumerate() {
            match word.cmp(&head(target.key, i * WORD)) {
                Order::Equal => {}
                unequal => return unequal,
            }
        }
        // The keys are equal up to the length of this record's key, so the longer key is greater.
        self.key_len().cmp(&target.key.len()).then_with(|| target.seqno.cmp(&self.seqno()))
    }

    /// A copy of the message.
    #[inline]
    pub(super) fn copied<'s>(self, scratch: &'s mut Scratch) -> Entry<'s> {
        let (key_len, value_len) = self.lens();
        let value = key_len.div_ceil(WORD);
        let bytes = scratch.fill(&self.0[HEADER..][..value + value_len.div_ceil(WORD)]);
        Entry {
            key: &bytes[..key_len],
            seqno: self.seqno(),
            kind: self.kind(),
            value: &bytes[value * WORD..][..value_len],
        }
    }

    /// Appends a copy of the message to `out`.
    #[inline]
    pub(super) fn append_to(self, out: &mut EntryBlock) {
        let (key_len, value_len) = self.lens();
        let (key, rest) = self.0[HEADER..].split_at(key_len.div_ceil(WORD));
        let load = |word: &Word| word.load(Ordering::Relaxed);
        let value = rest[..value_len.div_ceil(WORD)].iter().map(load);
        out.push_words((self.seqno(), self.kind()), (key_len, key.iter().map(load)), (value_len, value));
    }

    #[inline]
    fn kind(self) -> Kind {
        Kind::from_u8(self.0[1].load(Ordering::Relaxed) as u8).expect("the kind that was stored")
    }

    /// Copies the key, and returns it with the seqno.
    pub(super) fn place<'s>(self, scratch: &'s mut Scratch) -> Target<'s> {
        let len = self.key_len();
        let bytes = scratch.fill(&self.0[HEADER..][..len.div_ceil(WORD)]);
        Target { key: &bytes[..len], seqno: self.seqno() }
    }
}

/// The number of equal leading bytes of two keys, at most `limit`, computed from the words of both.
#[inline]
fn common(limit: usize, mut words: impl Iterator<Item = (u64, u64)>) -> usize {
    let mut equal = 0;
    let unequal = words.find_map(|(a, b)| {
        equal += WORD;
        (a != b).then(|| (a ^ b).leading_zeros() as usize / 8)
    });
    unequal.map_or(limit, |bytes| (equal - WORD + bytes).min(limit))
}

/// The memory into which a message is copied. Small messages need no allocation.
#[derive(Debug)]
pub(super) struct Scratch {
    near: [u64; NEAR],
    far: Vec<u64>,
}

impl Scratch {
    #[inline]
    pub(super) fn new() -> Scratch {
        Scratch { near: [0; NEAR], far: Vec::new() }
    }

    /// A copy of `words`, as bytes.
    #[inline]
    fn fill(&mut self, words: &[Word]) -> &[u8] {
        if words.len() <= NEAR {
            self.near.iter_mut().zip(words).for_each(|(to, word)| *to = word.load(Ordering::Relaxed));
            self.near[..words.len()].as_bytes()
        } else {
            self.far.clear();
            self.far.extend(words.iter().map(|word| word.load(Ordering::Relaxed)));
            self.far.as_bytes()
        }
    }
}

#[cfg(test)]
mod tests {
    use std::cmp::Reverse;

    use proptest::prelude::*;

    use super::*;

    fn key() -> impl Strategy<Value = Vec<u8>> {
        prop::collection::vec(prop_oneof![Just(0u8), Just(1), Just(0xff)], 1..20)
    }

    fn record(key: &[u8], seqno: u64, value: &[u8]) -> Vec<Word> {
        let entry = Entry { key, seqno: Seqno(seqno), kind: Kind::Merge, value };
        // The words before and after the record have arbitrary content.
        let words: Vec<Word> = (0..words(&entry) + 3).map(|_| Word::new(u64::MAX)).collect();
        write(&words[..super::words(&entry)], &entry);
        words
    }

    proptest! {
        #[test]
        fn words_compare_as_bytes_do(a in key(), b in key(), seqnos in (0u64..3, 0u64..3), prefix in 0usize..24) {
            let value = vec![7; a.len() * 30];
            let (first, second) = (record(&a, seqnos.0, &value), record(&b, seqnos.1, b""));
            let (first, second) = (Record::at(&first), Record::at(&second));
            let target = Target { key: &b, seqno: Seqno(seqnos.1) };
            prop_assert_eq!(first.order(target), (&a, Reverse(seqnos.0)).cmp(&(&b, Reverse(seqnos.1))));
            let common = a.iter().zip(&b).take_while(|(x, y)| x == y).count();
            prop_assert_eq!((first.common(second), first.common_with(&b)), (common, common));
            prop_assert_eq!((first.is_of(&a), first.is_of(&b)), (true, a == b));
            prop_assert_eq!(first.head(prefix), head(&a, prefix));
            let mut scratch = Scratch::new();
            let copy = first.copied(&mut scratch);
            prop_assert_eq!((copy.key, copy.seqno, copy.kind, copy.value), (&a[..], Seqno(seqnos.0), Kind::Merge, &value[..]));
            let mut block = EntryBlock::new();
            second.append_to(&mut block);
            first.append_to(&mut block);
            prop_assert_eq!((block.get(0).key, block.get(0).value), (&b[..], &b""[..]));
            prop_assert_eq!(block.get(1), copy);
            let place = second.place(&mut scratch);
            prop_assert_eq!((place.key, place.seqno), (&b[..], Seqno(seqnos.1)));
        }
    }
}
