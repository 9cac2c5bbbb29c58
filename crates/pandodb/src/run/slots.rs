//! [`Slots`]: the body of leaf and inner blocks. The body consists of a common prefix, four-byte heads for searching,
//! offsets, and entries.
//!
//! ```text
//!  0  block header (16 bytes, `space::data`)
//! 16  count u32          entries, at least 1
//! 20  prefix length u16
//! 22  flags u16          bit 0: offsets are u32, else u16; bits 1, 2: see the leaf; bit 3: see inner pages of trees
//! 24  end u32            where the last entry ends, from the block's start
//! 28  link u32           run leaf: pages of the leaf before this one; run inner: level; tree page: mark
//! 32  base u64           leaf: smallest seqno; run inner: smallest child position; tree inner: level and first page
//! 40  prefix │ heads, count × u32 │ offsets, count × u16 or u32 │ entries, back to back │ zeros
//! ```
//!
//! All numbers are little-endian. A *head* is the first four bytes of a key after the common prefix, padded with zeros,
//! as a big-endian number, so that heads have the order of the keys. Heads begin after the common prefix, because the
//! first bytes of keys that share a long prefix are all equal. A search takes 60 ns with heads, and 166 ns with full
//! keys. If heads are equal, the rest of the keys is compared.
//!
//! Steps: a writer calls [`SlotsWriter::start`], then for each entry [`SlotsWriter::begin`] and the methods that append
//! its bytes, then [`SlotsWriter::finish`]. A reader calls [`Slots::check`] once for bytes from disk, and [`Slots::of`]
//! for checked bytes.
//!
//! Invariant: [`Slots`] knows the positions of the parts; leaf and inner blocks know the contents of an entry. Once
//! [`Slots::check`] has accepted a block, no access is outside the parts. Source: 002 §3.3.

use std::cmp::Ordering;
use std::ops::Range;

use zerocopy::FromBytes;
use zerocopy::little_endian::{U16, U32};

use crate::base::codec::varint_len;
use crate::base::{MAX_KEY, PAGE};
use crate::space::BLOCK_HEADER;

/// The offset of the prefix.
pub(crate) const BODY: usize = 40;
/// The bytes of the field `base`.
pub(crate) const BASE: Range<usize> = 32..40;
/// Flag: the offsets are four bytes wide.
pub(crate) const WIDE: u16 = 1;
/// Flag: the messages of the leaf's last key continue in the next leaf.
pub(crate) const CONTINUES: u16 = 2;
/// Flag: the messages of the leaf's first key began in the previous leaf.
pub(crate) const CONTINUED: u16 = 4;
/// Flag: the inner page of a tree has a buffer.
pub(crate) const BUFFERED: u16 = 8;
/// Blocks of this many bytes or more need offsets of four bytes.
const NARROW_LIMIT: usize = 1 << 16;

const _: () = assert!(NARROW_LIMIT == u16::MAX as usize + 1, "a narrow offset has two bytes");
const _: () = assert!(BODY > BLOCK_HEADER && MAX_KEY <= u16::MAX as usize, "the length of a prefix has two bytes");

/// A text that describes damage. An [`crate::Error::Corruption`] shows it.
pub(crate) type Flaw = &'static str;

/// The head of a key whose part after the common prefix is `rest`.
#[inline]
pub(crate) fn head(rest: &[u8]) -> u32 {
    match rest.first_chunk::<4>() {
        Some(bytes) => u32::from_be_bytes(*bytes),
        None => {
            let mut bytes = [0; 4];
            bytes[..rest.len()].copy_from_slice(rest);
            u32::from_be_bytes(bytes)
        }
    }
}

/// The length of the common prefix of two keys.
#[inline]
pub(crate) fn common_prefix(a: &[u8], b: &[u8]) -> usize {
    let (words_a, words_b) = (a.as_chunks::<8>().0, b.as_chunks::<8>().0);
    for (i, (x, y)) in words_a.iter().zip(words_b).enumerate() {
        let differing = u64::from_le_bytes(*x) ^ u64::from_le_bytes(*y);
        if differing != 0 {
            return i * 8 + differing.trailing_zeros() as usize / 8;
        }
    }
    let same = words_a.len().min(words_b.len()) * 8;
    same + a[same..].iter().zip(&b[same..]).take_while(|(x, y)| x == y).count()
}

/// The number of bytes before the entries, and whether offsets are wide, for a block whose entries take `entry_bytes`.
pub(crate) fn frame_bytes(count: usize, prefix_len: usize, entry_bytes: usize) -> (usize, bool) {
    let narrow = BODY + prefix_len + count * (4 + 2);
    if narrow + entry_bytes < NARROW_LIMIT { (narrow, false) } else { (narrow + count * 2, true) }
}

/// The header of a block, which determines the positions of the block's parts.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Slots {
    pub(crate) count: usize,
    pub(crate) flags: u16,
    pub(crate) link: u32,
    pub(crate) base: u64,
    prefix_len: usize,
    end: usize,
}

#[inline]
fn u16_at(bytes: &[u8], at: usize) -> u16 {
    u16::from_le_bytes([bytes[at], bytes[at + 1]])
}

#[inline]
fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}

impl Slots {
    /// Reads the header of a block that [`Slots::check`] has accepted (or is about to check).
    #[inline]
    pub(crate) fn of(bytes: &[u8]) -> Slots {
        let fixed = &bytes[..BODY];
        Slots {
            count: u32_at(fixed, 16) as usize,
            prefix_len: usize::from(u16_at(fixed, 20)),
            flags: u16_at(fixed, 22),
            end: u32_at(fixed, 24) as usize,
            link: u32_at(fixed, 28),
            base: u64::from(u32_at(fixed, 32)) | u64::from(u32_at(fixed, 36)) << 32,
        }
    }

    /// Checks that every part is inside the block and that the offsets divide the entries in order, with no empty
    /// entry.
    pub(crate) fn check(bytes: &[u8]) -> Result<Slots, Flaw> {
        debug_assert!(bytes.len() >= PAGE, "a block has at least one page");
        let slots = Slots::of(bytes);
        if slots.count == 0 || slots.flags & !(WIDE | CONTINUES | CONTINUED | BUFFERED) != 0 {
            return Err("no entries, or unknown flags");
        }
        // Each entry takes at least five bytes: a head of four bytes, and one byte. This check prevents overflow in the
        // later multiplications.
        if slots.count > bytes.len() / 5 || slots.end > bytes.len() || slots.entries_at() >= slots.end {
            return Err("more entries than fit");
        }
        let mut at = slots.entries_at();
        for i in 0..slots.count {
            let next = slots.offset(bytes, i + 1);
            if slots.offset(bytes, i) != at || next <= at || next > slots.end {
                return Err("offsets out of order");
            }
            at = next;
        }
        Ok(slots)
    }

    #[inline]
    fn is_wide(&self) -> bool {
        self.flags & WIDE != 0
    }

    #[inline]
    fn heads_at(&self) -> usize {
        BODY + self.prefix_len
    }

    #[inline]
    fn offsets_at(&self) -> usize {
        self.heads_at() + self.count * 4
    }

    #[inline]
    fn entries_at(&self) -> usize {
        self.offsets_at() + self.count * if self.is_wide() { 4 } else { 2 }
    }

    /// The common prefix of all keys of the block.
    #[inline]
    pub(crate) fn prefix<'a>(&self, bytes: &'a [u8]) -> &'a [u8] {
        &bytes[BODY..BODY + self.prefix_len]
    }

    /// The heads, in key order.
    #[inline]
    pub(crate) fn heads<'a>(&self, bytes: &'a [u8]) -> &'a [U32] {
        let part = &bytes[self.heads_at()..self.offsets_at()];
        <[U32]>::ref_from_bytes(part).expect("four bytes a head")
    }

    #[inline]
    fn offset(&self, bytes: &[u8], i: usize) -> usize {
        if i == self.count {
            return self.end;
        }
        let part = &bytes[self.offsets_at()..self.entries_at()];
        if self.is_wide() {
            <[U32]>::ref_from_bytes(part).expect("four bytes an offset")[i].get() as usize
        } else {
            usize::from(<[U16]>::ref_from_bytes(part).expect("two bytes an offset")[i].get())
        }
    }

    /// The position of the `i`-th entry in the block.
    #[inline]
    pub(crate) fn entry(&self, bytes: &[u8], i: usize) -> Range<usize> {
        debug_assert!(i < self.count);
        self.offset(bytes, i)..self.offset(bytes, i + 1)
    }

    /// The first entry, from `from` on, whose key is at or above `key`, or, if `after` is set, whose key is above
    /// `key`. `rest_of` returns the part of an entry's key that follows the prefix. `rest_of` is called only for equal
    /// heads.
    #[inline]
    pub(crate) fn search<'a>(
        &self,
        bytes: &'a [u8],
        key: &[u8],
        from: usize,
        after: bool,
        rest_of: impl Fn(usize) -> &'a [u8],
    ) -> usize {
        let prefix = self.prefix(bytes);
        let shared = prefix.len().min(key.len());
        match key[..shared].cmp(&prefix[..shared]) {
            Ordering::Less => return from,
            Ordering::Greater => return self.count,
            // The key is a proper prefix of the common prefix, so it is before all entries.
            Ordering::Equal if key.len() < prefix.len() => return from,
            Ordering::Equal => {}
        }
        debug_assert!(from <= self.count, "a search begins at an entry or at the end");
        let rest = &key[prefix.len()..];
        let wanted = head(rest);
        let heads = self.heads(bytes);
        let mut low = from + heads[from..].partition_point(|head| head.get() < wanted);
        if low == self.count || heads[low].get() != wanted {
            return low;
        }
        let mut high = low + heads[low..].partition_point(|head| head.get() == wanted);
        while low < high {
            let middle = low + (high - low) / 2;
            let order = rest_of(middle).cmp(rest);
            if order == Ordering::Less || (after && order == Ordering::Equal) {
                low = middle + 1;
            } else {
                high = middle;
            }
        }
        low
    }
}

/// Writes a block body from front to back: the frame, followed by the entries.
pub(crate) struct SlotsWriter<'a> {
    bytes: &'a mut [u8],
    slots: Slots,
    next: usize,
}

impl<'a> SlotsWriter<'a> {
    /// Starts a body of `count` entries that take `entry_bytes` in total. `flags` must not contain [`WIDE`].
    pub(crate) fn start(
        bytes: &'a mut [u8],
        (count, entry_bytes): (usize, usize),
        prefix: &[u8],
        flags: u16,
        (link, base): (u32, u64),
    ) -> SlotsWriter<'a> {
        assert!(count > 0 && flags & WIDE == 0, "a block has entries, and its length determines the width");
        let (frame, wide) = frame_bytes(count, prefix.len(), entry_bytes);
        let end = frame + entry_bytes;
        assert!(end <= bytes.len(), "{end} bytes do not fit the block");
        let flags = flags | if wide { WIDE } else { 0 };
        let prefix_len = u16::try_from(prefix.len()).expect("a prefix is not longer than a key");
        let stored_count = u32::try_from(count).expect("a block has fewer entries than bytes");
        let stored_end = u32::try_from(end).expect("a block has less than 4 GiB");
        bytes[16..20].copy_from_slice(&stored_count.to_le_bytes());
        bytes[20..22].copy_from_slice(&prefix_len.to_le_bytes());
        bytes[22..24].copy_from_slice(&flags.to_le_bytes());
        bytes[24..28].copy_from_slice(&stored_end.to_le_bytes());
        bytes[28..32].copy_from_slice(&link.to_le_bytes());
        bytes[BASE].copy_from_slice(&base.to_le_bytes());
        bytes[BODY..BODY + prefix.len()].copy_from_slice(prefix);
        bytes[end..].fill(0);
        let slots = Slots::of(bytes);
        assert_eq!((slots.entries_at(), slots.end), (frame, end), "a reader finds the entries");
        SlotsWriter { bytes, slots, next: frame }
    }

    /// Begins the `i`-th entry, which has this head. The bytes that are appended until the next call belong to the
    /// entry.
    #[inline]
    #[expect(clippy::cast_possible_truncation, reason = "offsets are below `end`, for which the width was chosen")]
    pub(crate) fn begin(&mut self, i: usize, head: u32) {
        debug_assert!(i < self.slots.count && self.next < self.slots.end, "no more entries than announced");
        let at = self.slots.heads_at() + i * 4;
        self.bytes[at..at + 4].copy_from_slice(&head.to_le_bytes());
        if self.slots.is_wide() {
            let at = self.slots.offsets_at() + i * 4;
            self.bytes[at..at + 4].copy_from_slice(&(self.next as u32).to_le_bytes());
        } else {
            let at = self.slots.offsets_at() + i * 2;
            self.bytes[at..at + 2].copy_from_slice(&(self.next as u16).to_le_bytes());
        }
    }

    /// Appends a byte to the current entry.
    #[inline]
    pub(crate) fn byte(&mut self, byte: u8) {
        self.bytes[self.next] = byte;
        self.next += 1;
    }

    /// Appends a number to the current entry, in the encoding of [`crate::base::codec::put_varint`].
    #[inline]
    #[expect(clippy::cast_possible_truncation, reason = "each byte takes seven bits")]
    pub(crate) fn varint(&mut self, value: u64) {
        let len = varint_len(value);
        match self.bytes[self.next..].first_chunk_mut::<4>() {
            // Without a branch for each byte, because the processor cannot predict the lengths of seqnos. Up to three
            // bytes behind the number become zeros. They are not written yet, or are behind the last entry.
            Some(room) if len <= 4 => {
                let value = value as u32;
                let sevens = [value, value >> 7, value >> 14, value >> 21].map(|part| part as u8 & 0x7f);
                let follows = 0x0080_8080 & ((1u32 << (8 * (len - 1))) - 1);
                *room = (u32::from_le_bytes(sevens) | follows).to_le_bytes();
                self.next += len;
            }
            _ => self.long_varint(value),
        }
    }

    #[expect(clippy::cast_possible_truncation, reason = "each byte takes seven bits")]
    fn long_varint(&mut self, mut value: u64) {
        while value >= 0x80 {
            self.byte(value as u8 | 0x80);
            value >>= 7;
        }
        self.byte(value as u8);
    }

    /// Appends bytes to the current entry.
    #[inline]
    pub(crate) fn append(&mut self, part: &[u8]) {
        self.bytes[self.next..self.next + part.len()].copy_from_slice(part);
        self.next += part.len();
    }

    /// Ends the body and checks its length.
    pub(crate) fn finish(self) {
        assert_eq!(self.next, self.slots.end, "the entries take the announced number of bytes");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::codec::put_varint;

    #[test]
    fn numbers_of_every_length_are_encoded_up_to_the_end_of_a_block() {
        for first in (0..64).map(|shift| u64::MAX >> shift) {
            let mut expected = Vec::new();
            let numbers: Vec<u64> = (0..2_000).map(|i| first.wrapping_add(i)).collect();
            numbers.iter().for_each(|number| put_varint(&mut expected, *number));
            for free in 0..6 {
                // The entry ends `free` bytes before the end of the block.
                let frame = frame_bytes(1, 0, expected.len()).0;
                let mut block = vec![0xAA; frame + expected.len() + free];
                let mut writer = SlotsWriter::start(&mut block, (1, expected.len()), b"", 0, (0, 0));
                writer.begin(0, 0);
                numbers.iter().for_each(|number| writer.varint(*number));
                writer.finish();
                assert!(
                    block[frame..][..expected.len()] == expected[..]
                        && block[frame + expected.len()..] == [0; 6][..free]
                );
            }
        }
    }
}
