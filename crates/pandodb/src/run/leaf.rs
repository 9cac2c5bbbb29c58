//! Leaf blocks hold the messages of a run, in order. All messages of a key are together.
//!
//! ```text
//!   body of `slots`, link = pages of the leaf before (0: none), base = smallest seqno
//!   flag bit 1: the messages of the last key continue in the next leaf (only if they exceed 4 MiB)
//!   flag bit 2: the messages of the first key began in the leaf before
//!
//!   entry   kind u8 │ seqno − base varint │ rest length varint │ rest of the key │ value, to the entry's end
//! ```
//!
//! In a leaf of a sorted load, base and all seqnos are 0. When the leaf is read, base becomes the seqno of the load,
//! which the description of the run holds ([`super::RunMeta::stamped`]), or the reference to a leaf of a tree
//! ([`Leaf::stamped`]).
//!
//! The key of an entry is the block's prefix followed by the rest of the key. A writer calls [`LeafBuilder::add`] as
//! long as the size that [`LeafBuilder::fit`] returns is within its limit, and then [`LeafBuilder::encode`]. A reader
//! calls [`Leaf::check`] once for bytes from disk, and then [`Leaf::of`] and the accessors, which cannot fail.
//!
//! Invariants, which [`Leaf::check`] checks: entries strictly ascend by key, and within a key the newest is first;
//! every key has 1 to 65,535 bytes; a delete has no value; a blob put holds a well-formed reference; every head matches
//! its key. Source: 002 §3.3.

use std::cmp::Ordering;
use std::ops::Range;

use super::slots::{BASE, BUFFERED, CONTINUED, CONTINUES, Flaw, Slots, SlotsWriter, common_prefix, frame_bytes, head};
use crate::base::codec::{get_varint, varint_len};
use crate::base::{BlobRef, Entry, Kind, MAX_KEY, MAX_VALUE, PAGE, Seqno, seeded};

/// A leaf over checked bytes.
#[derive(Clone, Copy)]
pub struct Leaf<'a> {
    bytes: &'a [u8],
    slots: Slots,
}

/// The parts of an entry, as offsets in the block.
#[derive(Clone, Copy, Debug)]
pub struct Slot {
    /// The kind of the message.
    pub kind: Kind,
    /// The seqno of the message.
    pub seqno: Seqno,
    rest_at: u32,
    value_at: u32,
    end: u32,
}

impl Slot {
    /// The position of the value in the block.
    #[inline]
    pub fn value(&self) -> Range<usize> {
        self.value_at as usize..self.end as usize
    }

    #[inline]
    fn rest(&self) -> Range<usize> {
        self.rest_at as usize..self.value_at as usize
    }
}

/// Decodes the fixed parts of an entry whose bytes begin at `at` in the block.
#[inline]
#[expect(clippy::cast_possible_truncation, reason = "a block has less than 2^32 bytes, see `MAX_BLOCK_PAGES`")]
fn parse_slot(entry: &[u8], at: usize, base: u64) -> Result<Slot, Flaw> {
    let kind = Kind::from_u8(entry[0]).ok_or("unknown kind of message")?;
    let (delta, delta_len) = get_varint(&entry[1..]).ok_or("seqno cut off")?;
    let (rest_len, rest_len_len) = get_varint(&entry[1 + delta_len..]).ok_or("key length cut off")?;
    let rest_at = 1 + delta_len + rest_len_len;
    if rest_len > (entry.len() - rest_at) as u64 {
        return Err("key longer than its entry");
    }
    let seqno = base.checked_add(delta).filter(|&seqno| seqno <= Seqno::MAX.0).ok_or("seqno out of bounds")?;
    Ok(Slot {
        kind,
        seqno: Seqno(seqno),
        rest_at: (at + rest_at) as u32,
        value_at: (at + rest_at) as u32 + rest_len as u32,
        end: (at + entry.len()) as u32,
    })
}

impl<'a> Leaf<'a> {
    /// Views a block that [`Leaf::check`] has accepted.
    #[inline]
    pub fn of(bytes: &'a [u8]) -> Leaf<'a> {
        Leaf { bytes, slots: Slots::of(bytes) }
    }

    /// The same leaf; if a sorted load has built it, its entries have the seqno `at` instead of [`Seqno::UNASSIGNED`].
    #[inline]
    #[must_use]
    pub fn stamped(mut self, at: Seqno) -> Leaf<'a> {
        // The stored seqnos are differences to the smallest one.
        if self.slots.base == Seqno::UNASSIGNED.0 {
            self.slots.base = seeded!(LoadedLeafNotStamped: Seqno::UNASSIGNED.0, at.0);
        }
        self
    }

    /// Checks everything that the accessors rely on, and the order of entries. Takes about 15 ns for each entry.
    ///
    /// # Errors
    /// A description of the flaw.
    pub fn check(bytes: &'a [u8]) -> Result<Leaf<'a>, &'static str> {
        let leaf = Leaf { bytes, slots: Slots::check(bytes)? };
        if leaf.slots.flags & BUFFERED != 0 {
            return Err("unknown flags");
        }
        let prefix_len = leaf.slots.prefix(bytes).len();
        let heads = leaf.slots.heads(bytes);
        let mut before: Option<(&[u8], Seqno)> = None;
        for (i, stored_head) in heads.iter().enumerate() {
            let range = leaf.slots.entry(bytes, i);
            let slot = parse_slot(&bytes[range.clone()], range.start, leaf.slots.base)?;
            if leaf.slots.base == Seqno::UNASSIGNED.0 && slot.seqno > Seqno::UNASSIGNED {
                return Err("a leaf with and without seqnos");
            }
            let rest = &bytes[slot.rest()];
            if !(1..=MAX_KEY).contains(&(prefix_len + rest.len())) || stored_head.get() != head(rest) {
                return Err("a key is out of bounds or does not match its head");
            }
            check_value(slot.kind, &bytes[slot.value()])?;
            if let Some((last, seqno)) = before {
                match last.cmp(rest) {
                    Ordering::Less => {}
                    Ordering::Equal if slot.seqno < seqno => {}
                    _ => return Err("entries out of order"),
                }
            }
            before = Some((rest, slot.seqno));
        }
        Ok(leaf)
    }

    /// The number of entries, at least 1.
    #[inline]
    #[expect(clippy::len_without_is_empty, reason = "a leaf is never empty")]
    pub fn len(&self) -> usize {
        self.slots.count
    }

    /// The number of pages of the previous leaf; 0 for the first leaf of a run.
    #[inline]
    pub fn pages_before(&self) -> u32 {
        self.slots.link
    }

    /// Whether the messages of the last key continue in the next leaf.
    #[inline]
    pub fn continues(&self) -> bool {
        self.slots.flags & CONTINUES != 0
    }

    /// Whether the messages of the first key began in the previous leaf.
    #[inline]
    pub fn is_continued(&self) -> bool {
        self.slots.flags & CONTINUED != 0
    }

    /// The common prefix of all keys.
    #[inline]
    pub fn prefix(&self) -> &'a [u8] {
        self.slots.prefix(self.bytes)
    }

    /// The `i`-th entry, decoded.
    #[inline]
    pub fn slot(&self, i: usize) -> Slot {
        let range = self.slots.entry(self.bytes, i);
        parse_slot(&self.bytes[range.clone()], range.start, self.slots.base).expect("the block was checked")
    }

    /// Whether the keys of two entries certainly differ, because their heads do.
    #[inline]
    pub fn differ(&self, i: usize, j: usize) -> bool {
        let heads = self.slots.heads(self.bytes);
        heads[i] != heads[j]
    }

    /// The part of an entry's key that follows the prefix.
    #[inline]
    pub fn rest(&self, slot: &Slot) -> &'a [u8] {
        &self.bytes[slot.rest()]
    }

    /// An entry's value.
    #[inline]
    pub fn value(&self, slot: &Slot) -> &'a [u8] {
        &self.bytes[slot.value()]
    }

    /// Writes the key of the `i`-th entry to `key`.
    pub fn key(&self, i: usize, key: &mut Vec<u8>) {
        key.clear();
        key.extend_from_slice(self.prefix());
        key.extend_from_slice(self.rest(&self.slot(i)));
    }

    /// Compares the key of the `i`-th entry with `key`.
    pub fn order(&self, i: usize, key: &[u8]) -> Ordering {
        let prefix = self.prefix();
        let shared = prefix.len().min(key.len());
        prefix[..shared].cmp(&key[..shared]).then_with(|| match key.len() < prefix.len() {
            true => Ordering::Greater,
            false => self.rest(&self.slot(i)).cmp(&key[shared..]),
        })
    }

    /// The first entry whose key is at or above `key`. If `key` has messages, this entry is the newest of them. Takes
    /// about 60 ns.
    #[inline]
    pub fn search(&self, key: &[u8]) -> usize {
        self.slots.search(self.bytes, key, 0, false, |i| self.rest(&self.slot(i)))
    }

    /// The entries of `key`, newest first; empty if `key` has no messages.
    #[inline]
    pub fn find(&self, key: &[u8]) -> Range<usize> {
        let first = self.search(key);
        let mut end = first;
        if key.starts_with(self.prefix()) {
            let rest = &key[self.prefix().len()..];
            while end < self.len() && self.rest(&self.slot(end)) == rest {
                end += 1;
            }
        }
        first..end
    }
}

/// Whether the smallest seqno of a leaf is [`Seqno::UNASSIGNED`], because the leaf was built by a sorted load.
pub(super) fn is_unassigned(leaf: &[u8]) -> bool {
    Slots::of(leaf).base == Seqno::UNASSIGNED.0
}

/// Gives the seqno of a sorted load to the entries of a leaf in memory. The stored seqnos are differences to the
/// smallest seqno of the leaf, so only the smallest seqno changes.
pub(super) fn stamp(leaf: &mut [u8], at: Seqno) {
    debug_assert!(is_unassigned(leaf) && at > Seqno::UNASSIGNED, "a leaf gets its seqno once");
    leaf[BASE].copy_from_slice(&seeded!(LoadOlderThanAll: 1, at.0).to_le_bytes());
    debug_assert!(!is_unassigned(leaf), "the accessors return the seqno");
}

/// Whether a message of this kind may hold this value.
fn check_value(kind: Kind, value: &[u8]) -> Result<(), Flaw> {
    match kind {
        Kind::Delete if value.is_empty() => Ok(()),
        Kind::Delete => Err("a delete with a value"),
        Kind::Put | Kind::Merge if value.len() <= MAX_VALUE => Ok(()),
        Kind::Put | Kind::Merge => Err("a value over the limit"),
        Kind::BlobPut if BlobRef::decode(value).is_ok() => Ok(()),
        Kind::BlobPut => Err("a malformed reference to a large value"),
        Kind::RangeDelete => Err("a range delete among entries"),
    }
}

/// The kind, seqno and lengths of an entry in [`LeafBuilder`]. The bytes of the entry are in `LeafBuilder::bytes`.
#[derive(Clone, Copy)]
struct Pending {
    kind: Kind,
    seqno: Seqno,
    key_len: u32,
    value_len: u32,
}

/// The state of a [`LeafBuilder`] after an entry is added.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fit {
    /// An upper bound of the size in bytes that the block would have.
    pub size: usize,
    prefix_len: usize,
    min_seqno: u64,
    max_seqno: u64,
    fixed_bytes: usize,
}

/// Collects the entries of one leaf. The builder can be reused, because [`LeafBuilder::clear`] keeps the memory.
#[derive(Default)]
pub struct LeafBuilder {
    pending: Vec<Pending>,
    /// The key and the value of each entry, one entry after the other.
    bytes: Vec<u8>,
    /// The length of the prefix that all keys share; the prefix is at the start of `bytes`.
    prefix_len: usize,
    min_seqno: u64,
    max_seqno: u64,
    /// An upper bound of the number of bytes in which the kinds and key lengths of all entries are encoded.
    fixed_bytes: usize,
}

impl LeafBuilder {
    /// Whether no entry was added.
    pub fn is_empty(&self) -> bool {
        self.pending.is_empty()
    }

    /// The number of entries.
    pub fn len(&self) -> usize {
        self.pending.len()
    }

    /// An upper bound of the size in bytes of a block with `count` entries, given the sizes of their parts.
    #[inline]
    fn bound(&self, count: usize, prefix_len: usize, bytes: usize, fixed: usize, seqno_spread: u64) -> usize {
        let entries = bytes - count * prefix_len + fixed + count * varint_len(seqno_spread);
        frame_bytes(count, prefix_len, entries).0 + entries
    }

    /// An upper bound of the block's size in bytes, header and frame included.
    pub fn size(&self) -> usize {
        let spread = self.max_seqno - self.min_seqno;
        self.bound(self.pending.len(), self.prefix_len, self.bytes.len(), self.fixed_bytes, spread)
    }

    /// How the leaf would change if `entry` were added.
    #[inline]
    pub fn fit(&self, entry: &Entry<'_>) -> Fit {
        let (prefix_len, min_seqno, max_seqno) = if self.is_empty() {
            (entry.key.len(), entry.seqno.0, entry.seqno.0)
        } else {
            let shared = common_prefix(&self.bytes[..self.prefix_len], entry.key);
            (shared, self.min_seqno.min(entry.seqno.0), self.max_seqno.max(entry.seqno.0))
        };
        let bytes = self.bytes.len() + entry.key.len() + entry.value.len();
        let fixed_bytes = self.fixed_bytes + 1 + varint_len(entry.key.len() as u64);
        let size = self.bound(self.pending.len() + 1, prefix_len, bytes, fixed_bytes, max_seqno - min_seqno);
        Fit { size, prefix_len, min_seqno, max_seqno, fixed_bytes }
    }

    /// Adds an entry, which must follow all other entries. `fit` is the result of [`LeafBuilder::fit`] for it.
    #[inline]
    pub fn add(&mut self, entry: &Entry<'_>, fit: &Fit) {
        debug_assert!(entry.key.len() <= MAX_KEY && entry.value.len() <= MAX_VALUE, "a reader accepts the entry");
        debug_assert_eq!(*fit, self.fit(entry), "the leaf has not changed since");
        self.prefix_len = fit.prefix_len;
        (self.min_seqno, self.max_seqno) = (fit.min_seqno, fit.max_seqno);
        self.fixed_bytes = fit.fixed_bytes;
        self.bytes.extend_from_slice(entry.key);
        self.bytes.extend_from_slice(entry.value);
        #[expect(clippy::cast_possible_truncation, reason = "keys and values are shorter than 2^32 bytes")]
        let (key_len, value_len) = (entry.key.len() as u32, entry.value.len() as u32);
        self.pending.push(Pending { kind: entry.kind, seqno: entry.seqno, key_len, value_len });
    }

    /// Adds an entry, which must follow all other entries, however large the leaf becomes.
    pub fn push(&mut self, entry: &Entry<'_>) {
        let fit = self.fit(entry);
        self.add(entry, &fit);
    }

    /// The entries, in the order in which they were added.
    pub fn entries(&self) -> impl Iterator<Item = Entry<'_>> {
        let mut rest = &self.bytes[..];
        self.pending.iter().map(move |&Pending { kind, seqno, key_len, value_len }| {
            let (key, after) = rest.split_at(key_len as usize);
            let (value, after) = after.split_at(value_len as usize);
            rest = after;
            Entry { key, seqno, kind, value }
        })
    }

    /// The exact size of the entries in bytes.
    fn entry_bytes(&self) -> usize {
        let (count, spread) = (self.pending.len(), self.max_seqno - self.min_seqno);
        let rests = self.bytes.len() - count * self.prefix_len;
        let seqnos = match varint_len(spread) {
            1 => count,
            _ => self.pending.iter().map(|pending| varint_len(pending.seqno.0 - self.min_seqno)).sum(),
        };
        // If all lengths of keys have one byte, the lengths of their rests have one byte, too.
        let lens = match self.fixed_bytes == 2 * count {
            true => count,
            false => {
                self.pending.iter().map(|pending| varint_len(u64::from(pending.key_len) - self.prefix_len as u64)).sum()
            }
        };
        count + seqnos + lens + rests
    }

    /// The exact size of the block in bytes, without the zeros at its end.
    pub fn exact_size(&self) -> usize {
        let entries = self.entry_bytes();
        frame_bytes(self.pending.len(), self.prefix_len, entries).0 + entries
    }

    /// The number of pages that the block needs.
    pub fn pages(&self) -> u32 {
        let size = self.exact_size();
        assert!(size <= self.size(), "{size} bytes, at most {}", self.size());
        u32::try_from(size.div_ceil(PAGE)).expect("a leaf is bounded by its builder")
    }

    /// Writes the body into `block`, which has [`LeafBuilder::pages`] pages. Does not write the block's header.
    /// `pages_before` is the number of pages of the previous leaf. `flags` may contain [`CONTINUED`] and [`CONTINUES`].
    pub fn encode(&self, block: &mut [u8], pages_before: u32, flags: u16) {
        assert!(flags & !(CONTINUED | CONTINUES) == 0, "flags {flags:#x} of a leaf");
        let prefix = &self.bytes[..self.prefix_len];
        let size = (self.pending.len(), self.entry_bytes());
        let mut writer = SlotsWriter::start(block, size, prefix, flags, (pages_before, self.min_seqno));
        let mut at = 0;
        for (i, pending) in self.pending.iter().enumerate() {
            let value_at = at + pending.key_len as usize;
            let end = value_at + pending.value_len as usize;
            // The rest of the key, followed by the value.
            let bytes = &self.bytes[at + self.prefix_len..end];
            let rest = &bytes[..value_at - at - self.prefix_len];
            writer.begin(i, head(rest));
            writer.byte(pending.kind as u8);
            writer.varint(pending.seqno.0 - self.min_seqno);
            writer.varint(rest.len() as u64);
            writer.append(bytes);
            at = end;
        }
        assert_eq!(at, self.bytes.len(), "all entries are encoded");
        writer.finish();
    }

    /// Removes the entries. Keeps up to 64 pages of the memory.
    pub fn clear(&mut self) {
        self.pending.clear();
        self.bytes.clear();
        self.bytes.shrink_to(64 * PAGE);
        self.fixed_bytes = 0;
    }
}
