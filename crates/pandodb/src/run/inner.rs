//! Inner blocks of a run: separators and children (002 §3.3).
//!
//! ```text
//!   body of `slots`, link = level (1: the children are leaves), base = smallest child position
//!
//!   entry   position − base varint │ pages varint │ [level > 1] first leaf varint │ rest of the separator
//! ```
//!
//! A position is the number of pages of the run before a block, counted across extents. Child *i* holds the keys at or
//! above separator *i* and below the next separator. The first separator of a block is empty: the parent block holds
//! the lower bound of the first child. The first child of the root needs no lower bound. The prefix is the common
//! prefix of the other separators. `first leaf` is the position of the first leaf below the child. A search by leaf
//! position uses `first leaf` to choose a child without reading it.
//!
//! Invariant: between a leaf whose last key is *x* and a leaf whose first key is *y*, the separator is the shortest *s*
//! with *x* < *s* ≤ *y* ([`separator`]). There is one exception: a key *x* whose messages fill more than one leaf. The
//! separator before each further leaf of *x* is *x* followed by a zero byte, which is the smallest key above *x*. So a
//! search for *x* finds the first leaf of *x*, and a search for a key just above *x* finds the last leaf of *x*.

use super::slots::{Flaw, Slots, SlotsWriter, common_prefix, frame_bytes, head};
use crate::base::codec::{get_varint, varint_len};
use crate::base::{MAX_KEY, PAGE};
use crate::space::MAX_BLOCK_PAGES;

/// Every inner block has at least this many children, even if the separators are long; only the last block of a level
/// may have fewer.
pub const MIN_FANOUT: usize = 4;
/// The most levels of a run. Even a run of 2^48 pages has fewer levels.
pub const MAX_HEIGHT: u8 = 24;
const _: () = assert!(MIN_FANOUT.pow(MAX_HEIGHT as u32) as u64 >= 1 << 48, "a run of 2^48 pages has few levels");

/// The shortest key that is above `low` and at most `high`.
pub fn separator<'a>(low: &[u8], high: &'a [u8]) -> &'a [u8] {
    &high[..common_prefix(low, high) + 1]
}

/// A reference to a child block.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Child {
    /// The position of the block among the run's pages.
    pub position: u64,
    /// The number of pages of the block.
    pub pages: u32,
    /// The position of the first leaf below the child, or of the child itself if it is a leaf.
    pub leaf: u64,
}

/// An inner block over checked bytes.
#[derive(Clone, Copy)]
pub struct Inner<'a> {
    bytes: &'a [u8],
    slots: Slots,
}

/// Decodes the child at the start of an entry. Returns the child and its encoded length.
#[inline]
fn parse_child(entry: &[u8], base: u64, level: u32) -> Result<(Child, usize), Flaw> {
    let (delta, mut at) = get_varint(entry).ok_or("position cut off")?;
    let (pages, len) = get_varint(&entry[at..]).ok_or("page count cut off")?;
    at += len;
    let position = base.checked_add(delta).ok_or("position out of bounds")?;
    let mut leaf = position;
    if level > 1 {
        let (first, len) = get_varint(&entry[at..]).ok_or("leaf position cut off")?;
        (leaf, at) = (first, at + len);
    }
    if pages == 0 || pages > u64::from(MAX_BLOCK_PAGES) {
        return Err("page count out of bounds");
    }
    #[expect(clippy::cast_possible_truncation, reason = "the number of pages was checked")]
    let pages = pages as u32;
    Ok((Child { position, pages, leaf }, at))
}

impl<'a> Inner<'a> {
    /// Views a block that [`Inner::check`] has accepted.
    #[inline]
    pub fn of(bytes: &'a [u8]) -> Inner<'a> {
        Inner { bytes, slots: Slots::of(bytes) }
    }

    /// Checks everything that the accessors rely on, and the order of separators and children.
    ///
    /// # Errors
    /// A description of the flaw.
    pub fn check(bytes: &'a [u8]) -> Result<Inner<'a>, &'static str> {
        let inner = Inner { bytes, slots: Slots::check(bytes)? };
        if inner.level() == 0 || inner.level() > u32::from(MAX_HEIGHT) || inner.slots.flags & !super::slots::WIDE != 0 {
            return Err("level or flags out of bounds");
        }
        let prefix_len = inner.slots.prefix(bytes).len();
        let heads = inner.slots.heads(bytes);
        let mut before: Option<(Child, &[u8])> = None;
        for i in 0..inner.len() {
            let entry = &bytes[inner.slots.entry(bytes, i)];
            let (child, at) = parse_child(entry, inner.slots.base, inner.level())?;
            let rest = &entry[at..];
            if prefix_len + rest.len() > MAX_KEY + 1 || heads[i].get() != head(rest) {
                return Err("a separator is out of bounds or does not match its head");
            }
            match before {
                None if !rest.is_empty() => return Err("the first separator is not empty"),
                Some((last, _)) if child.position <= last.position || child.leaf <= last.leaf => {
                    return Err("children out of order");
                }
                // Equal separators bound the leaves of one key; see the module's documentation.
                Some((_, last)) if rest < last => return Err("separators out of order"),
                _ => {}
            }
            before = Some((child, rest));
        }
        Ok(inner)
    }

    /// The number of children, at least 1.
    #[inline]
    #[expect(clippy::len_without_is_empty, reason = "an inner block is never empty")]
    pub fn len(&self) -> usize {
        self.slots.count
    }

    /// The number of levels below this block; 1 if the children are leaves.
    #[inline]
    pub fn level(&self) -> u32 {
        self.slots.link
    }

    #[inline]
    fn parse(&self, i: usize) -> (Child, &'a [u8]) {
        let entry = &self.bytes[self.slots.entry(self.bytes, i)];
        let (child, at) = parse_child(entry, self.slots.base, self.level()).expect("the block was checked");
        (child, &entry[at..])
    }

    /// The `i`-th child.
    #[inline]
    pub fn child(&self, i: usize) -> Child {
        self.parse(i).0
    }

    /// Writes the `i`-th separator to `key`. The first separator is empty.
    pub fn separator(&self, i: usize, key: &mut Vec<u8>) {
        key.clear();
        if i > 0 {
            key.extend_from_slice(self.slots.prefix(self.bytes));
            key.extend_from_slice(self.parse(i).1);
        }
    }

    /// The child that may hold `key`. This is the last child whose separator is at most `key`.
    #[inline]
    pub fn search(&self, key: &[u8]) -> usize {
        self.slots.search(self.bytes, key, 1, true, |i| self.parse(i).1) - 1
    }

    /// The child that is, or contains, the leaf at `position`. This is the last child whose first leaf is at or before
    /// `position`.
    pub fn search_leaf(&self, position: u64) -> usize {
        let (mut low, mut high) = (1, self.len());
        while low < high {
            let middle = low + (high - low) / 2;
            if self.child(middle).leaf <= position {
                low = middle + 1;
            } else {
                high = middle;
            }
        }
        debug_assert!((1..=self.len()).contains(&low), "the first child has no separator");
        low - 1
    }
}

/// Collects the children of one inner block of a given level. The builder can be reused after [`InnerBuilder::clear`].
pub struct InnerBuilder {
    level: u32,
    children: Vec<(Child, usize)>,
    /// All separators except the first, one after the other.
    separators: Vec<u8>,
    prefix_len: usize,
    /// Encoded bytes of the children, without separators.
    child_bytes: usize,
}

impl InnerBuilder {
    /// Creates a builder for blocks that are `level` levels above the leaves. `level` is at least 1.
    pub fn new(level: u32) -> InnerBuilder {
        assert!(level > 0, "leaves are level 0, inner blocks begin at 1");
        InnerBuilder { level, children: Vec::new(), separators: Vec::new(), prefix_len: 0, child_bytes: 0 }
    }

    /// The number of children added.
    pub fn len(&self) -> usize {
        self.children.len()
    }

    /// Whether no child was added.
    pub fn is_empty(&self) -> bool {
        self.children.is_empty()
    }

    fn bytes_of(&self, child: &Child) -> usize {
        let base = self.children.first().map_or(child.position, |(first, _)| first.position);
        let leaf = if self.level > 1 { varint_len(child.leaf) } else { 0 };
        varint_len(child.position - base) + varint_len(u64::from(child.pages)) + leaf
    }

    /// The length that the common prefix of the separators would have if `separator` were added.
    fn prefix_with(&self, separator: &[u8]) -> usize {
        match self.children.len() {
            0 => 0,
            1 => separator.len(),
            _ => common_prefix(&self.separators[..self.prefix_len], separator),
        }
    }

    fn entry_bytes(&self, prefix_len: usize) -> usize {
        self.child_bytes + self.separators.len() - prefix_len * self.children.len().saturating_sub(1)
    }

    /// The size that the block would have, in bytes, if one more child were added.
    pub fn size_with(&self, child: &Child, separator: &[u8]) -> usize {
        let prefix_len = self.prefix_with(separator);
        let mut entries = self.entry_bytes(prefix_len) + self.bytes_of(child);
        if !self.is_empty() {
            entries += separator.len() - prefix_len;
        }
        frame_bytes(self.children.len() + 1, prefix_len, entries).0 + entries
    }

    /// Adds a child, which must follow all other children. The separator of the first child is not stored.
    pub fn add(&mut self, child: Child, separator: &[u8]) {
        self.prefix_len = self.prefix_with(separator);
        let kept = if self.is_empty() { &[][..] } else { separator };
        self.separators.extend_from_slice(kept);
        self.child_bytes += self.bytes_of(&child);
        self.children.push((child, kept.len()));
    }

    /// The number of pages that the block needs.
    pub fn pages(&self) -> u32 {
        let entries = self.entry_bytes(self.prefix_len);
        let (frame, _) = frame_bytes(self.children.len(), self.prefix_len, entries);
        u32::try_from((frame + entries).div_ceil(PAGE)).expect("an inner block is bounded by its builder")
    }

    /// Writes the body into `block`, which has [`InnerBuilder::pages`] pages. Does not write the block's header.
    pub fn encode(&self, block: &mut [u8]) {
        let base = self.children[0].0.position;
        let size = (self.children.len(), self.entry_bytes(self.prefix_len));
        let prefix = &self.separators[..self.prefix_len];
        let mut writer = SlotsWriter::start(block, size, prefix, 0, (self.level, base));
        let mut at = 0;
        for (i, (child, len)) in self.children.iter().enumerate() {
            let rest = if i == 0 { &[][..] } else { &self.separators[at + self.prefix_len..at + len] };
            at += len;
            writer.begin(i, head(rest));
            writer.varint(child.position - base);
            writer.varint(u64::from(child.pages));
            if self.level > 1 {
                writer.varint(child.leaf);
            }
            writer.append(rest);
        }
        assert_eq!(at, self.separators.len(), "all separators are encoded");
        writer.finish();
    }

    /// Removes the children and keeps the memory.
    pub fn clear(&mut self) {
        self.children.clear();
        self.separators.clear();
        self.prefix_len = 0;
        self.child_bytes = 0;
    }
}
