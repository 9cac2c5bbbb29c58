//! Inner pages: separators, references to children, and the reference to a buffer.
//!
//! ```text
//!   body of `run/slots`, link = mark, base = level (8 bits) │ smallest first page of a child (56 bits)
//!
//!   entry                      reference of `reference` │ rest of the separator
//!   with flag bit 3 (buffer)   reference │ pending varint │ [first entry] level varint, reference │ rest
//! ```
//!
//! The *buffer* of a page holds messages for the keys below the page that are newer than everything below the page. It
//! is a small tree of its own: one leaf (level 0), or an inner page above its leaves (level 1). *Pending* is the number
//! of bytes that the messages for a child take in the buffer. The addresses in the reference to the buffer are not
//! relative to `base`.
//!
//! A page that a sorted load has built is written before the seqno of the load is known. So the references in it have
//! the seqno 0, which no message has, and its children have the seqno that its parent knows ([`PageRef::inner`]).
//!
//! Child *i* holds the keys at or above separator *i* and below the next separator. The first separator of a page is
//! empty on disk, because the parent holds the lower bound of the first child. Level 1 is the level above the leaves.
//!
//! Invariant: separators ascend. Equal separators occur only before leaves that continue the messages of one key: the
//! separator before each further leaf of a key *x* is *x* followed by a zero byte, as in the inner blocks of runs.

use crate::base::codec::{Reader, put_varint, varint_len};
use crate::base::{MAX_KEY, PAGE, Result, Seqno};
use crate::run::slots::{BUFFERED, Flaw, Slots, SlotsWriter, WIDE, common_prefix, frame_bytes, head};

use super::reference::{PageRef, Root, Totals};

/// The most levels of a tree. A new level is added only when the level below has more than one page, and almost all
/// pages have [`LEAST_CHILDREN`](super::rebuild::LEAST_CHILDREN) children or more, so no tree comes near this height.
pub const MAX_HEIGHT: u32 = 48;
/// The most bytes that wait for a child. No sum over the children of a page overflows.
const MAX_PENDING: u64 = 1 << 40;
/// Bits of `base` below the level.
const LEVEL_SHIFT: u32 = 56;

/// A child with its separator, in memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Child {
    /// The smallest key that may be below the child. Empty for the first child of a tree.
    pub from: Vec<u8>,
    /// The page.
    pub page: PageRef,
    /// The bytes of the messages for the child that are in the buffer of its parent.
    pub pending: u64,
}

impl Child {
    /// A child for which no messages are in a buffer.
    pub fn new(from: Vec<u8>, page: PageRef) -> Child {
        Child { from, page, pending: 0 }
    }
}

/// The sums over all children and the buffer.
pub fn totals_of(children: &[Child], buffer: Option<&Root>) -> Totals {
    let mut totals = buffer.map(|buffer| buffer.page.totals).unwrap_or_default();
    children.iter().for_each(|child| totals += child.page.totals);
    totals
}

/// An entry of a page.
struct Parsed<'a> {
    page: PageRef,
    pending: u64,
    buffer: Option<Root>,
    rest: &'a [u8],
}

/// An inner page over checked bytes.
#[derive(Clone, Copy)]
pub struct Inner<'a> {
    bytes: &'a [u8],
    slots: Slots,
    /// The seqno of the newest message below the page, for a page that a sorted load has built.
    newest: Seqno,
}

impl<'a> Inner<'a> {
    /// Views a page that [`Inner::check`] has accepted. `newest` is the seqno of the newest message below the page. If
    /// a sorted load has built the page, all its messages have this seqno.
    #[inline]
    pub fn of(bytes: &'a [u8], newest: Seqno) -> Inner<'a> {
        Inner { bytes, slots: Slots::of(bytes), newest }
    }

    /// Checks everything that the accessors rely on, and the order of the separators. The references in a page of a
    /// sorted load have no seqno.
    ///
    /// # Errors
    /// A description of the flaw.
    pub fn check(bytes: &'a [u8]) -> std::result::Result<Inner<'a>, Flaw> {
        let inner = Inner { bytes, slots: Slots::check(bytes)?, newest: Seqno::UNASSIGNED };
        if !(1..=MAX_HEIGHT).contains(&inner.level()) || inner.slots.flags & !(WIDE | BUFFERED) != 0 {
            return Err("level or flags out of bounds");
        }
        let prefix_len = inner.slots.prefix(bytes).len();
        let heads = inner.slots.heads(bytes);
        let mut before: Option<&[u8]> = None;
        for (i, stored_head) in heads.iter().enumerate() {
            let rest = inner.parse(i).map_err(|_| "a reference to a child is damaged")?.rest;
            if prefix_len + rest.len() > MAX_KEY + 1 || stored_head.get() != head(rest) {
                return Err("a separator is out of bounds or does not match its head");
            }
            match before {
                None if !rest.is_empty() => return Err("the first separator is not empty"),
                // The first separator is not stored, so it is not compared.
                Some(last) if i > 1 && rest < last => return Err("separators out of order"),
                _ => {}
            }
            before = Some(rest);
        }
        Ok(inner)
    }

    /// The number of children, at least 1.
    #[inline]
    #[expect(clippy::len_without_is_empty, reason = "an inner page is never empty")]
    pub fn len(&self) -> usize {
        self.slots.count
    }

    /// The level of the page; 1 if its children are leaves.
    #[inline]
    pub fn level(&self) -> u32 {
        (self.slots.base >> LEVEL_SHIFT) as u32
    }

    /// The mark of the job that wrote the page.
    #[inline]
    pub fn mark(&self) -> u32 {
        self.slots.link
    }

    #[inline]
    fn parse(&self, i: usize) -> Result<Parsed<'a>> {
        let entry = &self.bytes[self.slots.entry(self.bytes, i)];
        let mut reader = Reader::new(entry, "inner page");
        let base = self.slots.base & ((1 << LEVEL_SHIFT) - 1);
        let mut page = PageRef::decode(&mut reader, base, self.level() == 1)?;
        if page.totals.newest == Seqno::UNASSIGNED {
            page.totals.newest = self.newest;
        }
        let (mut pending, mut buffer) = (0, None);
        if self.has_buffer() {
            pending = reader.varint_max(MAX_PENDING)?;
            if i == 0 {
                #[expect(clippy::cast_possible_truncation, reason = "the level is at most 1")]
                let level = reader.varint_max(1)? as u32;
                let page = PageRef::decode(&mut reader, 0, level == 0)?;
                if page.totals.newest == Seqno::UNASSIGNED {
                    return Err(reader.corrupt("a buffer without a seqno"));
                }
                buffer = Some(Root { page, level });
            }
        }
        Ok(Parsed { page, pending, buffer, rest: &entry[reader.position()..] })
    }

    #[inline]
    fn rest(&self, i: usize) -> &'a [u8] {
        self.parse(i).expect("the page was checked").rest
    }

    #[inline]
    fn has_buffer(&self) -> bool {
        self.slots.flags & BUFFERED != 0
    }

    /// The buffer, unless it is empty.
    #[inline]
    pub fn buffer(&self) -> Option<Root> {
        if self.has_buffer() { self.parse(0).expect("the page was checked").buffer } else { None }
    }

    /// The reference to the `i`-th child.
    #[inline]
    pub fn page(&self, i: usize) -> PageRef {
        self.parse(i).expect("the page was checked").page
    }

    /// Writes the `i`-th separator to `key`. The first separator is empty.
    pub fn separator(&self, i: usize, key: &mut Vec<u8>) {
        key.clear();
        if i > 0 {
            key.extend_from_slice(self.slots.prefix(self.bytes));
            key.extend_from_slice(self.rest(i));
        }
    }

    /// The child that may hold `key`: the last child whose separator is at most `key`. If the messages of `key` are in
    /// several leaves, this is the first of them.
    #[inline]
    pub fn search(&self, key: &[u8]) -> usize {
        self.slots.search(self.bytes, key, 1, true, |i| self.rest(i)) - 1
    }

    /// The leaves that continue the messages of the last key of child `at`, last first. Above inner pages there are
    /// none.
    pub fn continued_after(&self, at: usize) -> Vec<PageRef> {
        if self.level() > 1 {
            return Vec::new();
        }
        let next = (at + 1..self.len()).map(|i| self.page(i));
        let mut continued: Vec<PageRef> = next.take_while(|page| page.is_continued).collect();
        continued.reverse();
        continued
    }

    /// All children. `from` is the lower bound of the page.
    pub fn children(&self, from: &[u8]) -> Vec<Child> {
        let mut children = Vec::with_capacity(self.len());
        for i in 0..self.len() {
            let mut separator = Vec::new();
            self.separator(i, &mut separator);
            if i == 0 {
                separator.extend_from_slice(from);
            }
            let Parsed { page, pending, .. } = self.parse(i).expect("the page was checked");
            children.push(Child { from: separator, page, pending });
        }
        children
    }
}

impl PageRef {
    /// Views the bytes of the inner page to which this reference leads.
    #[inline]
    pub fn inner<'a>(&self, bytes: &'a [u8]) -> Inner<'a> {
        Inner::of(bytes, self.totals.newest)
    }
}

/// The common prefix of all separators that a page of these children stores.
fn prefix_of(children: &[Child]) -> usize {
    match children {
        [] | [_] => 0,
        [_, first, .., last] => common_prefix(&first.from, &last.from),
        [_, only] => only.from.len(),
    }
}

fn base_of(children: &[Child]) -> u64 {
    children.iter().map(|child| child.page.addr.page.0).min().expect("an inner page has children")
}

/// The bytes of the entries of a page whose separators share a prefix of `prefix` bytes.
fn entry_bytes(children: &[Child], buffer: Option<&Root>, prefix: usize, base: u64) -> usize {
    let rests: usize = children[1..].iter().map(|child| child.from.len() - prefix).sum();
    let references: usize = children.iter().map(|child| child.page.encoded_len(base)).sum();
    let Some(buffer) = buffer else { return rests + references };
    let pending: usize = children.iter().map(|child| varint_len(child.pending)).sum();
    rests + references + pending + varint_len(buffer.level.into()) + buffer.page.encoded_len(0)
}

/// The bytes of a page with these children and this buffer.
pub fn encoded_bytes(children: &[Child], buffer: Option<&Root>) -> usize {
    let prefix = prefix_of(children);
    let entries = entry_bytes(children, buffer, prefix, base_of(children));
    frame_bytes(children.len(), prefix, entries).0 + entries
}

/// The number of pages that a page with these children and this buffer needs.
pub fn pages_for(children: &[Child], buffer: Option<&Root>) -> u32 {
    let pages = encoded_bytes(children, buffer).div_ceil(PAGE);
    u32::try_from(pages).expect("an inner page has a bounded number of children")
}

/// Writes the body of a page with these children and this buffer into `block`, which has [`pages_for`] pages.
pub fn encode(children: &[Child], buffer: Option<&Root>, level: u32, mark: u32, block: &mut [u8]) {
    assert!((1..=MAX_HEIGHT).contains(&level) && !children.is_empty(), "an inner page has children");
    debug_assert!(children[1..].is_sorted_by(|a, b| a.from <= b.from), "separators ascend");
    debug_assert!(buffer.is_some() || children.iter().all(|child| child.pending == 0), "messages are in a buffer");
    let (prefix_len, base) = (prefix_of(children), base_of(children));
    let prefix = children.get(1).map_or(&[][..], |child| &child.from[..prefix_len]);
    let bytes = entry_bytes(children, buffer, prefix_len, base);
    let packed = u64::from(level) << LEVEL_SHIFT | base;
    let flags = if buffer.is_some() { BUFFERED } else { 0 };
    let mut writer = SlotsWriter::start(block, (children.len(), bytes), prefix, flags, (mark, packed));
    let mut reference = Vec::new();
    for (i, child) in children.iter().enumerate() {
        let rest = if i == 0 { &[][..] } else { &child.from[prefix_len..] };
        writer.begin(i, head(rest));
        reference.clear();
        child.page.encode(base, &mut reference);
        if let Some(buffer) = buffer {
            put_varint(&mut reference, child.pending);
            if i == 0 {
                put_varint(&mut reference, buffer.level.into());
                buffer.page.encode(0, &mut reference);
            }
        }
        writer.append(&reference);
        writer.append(rest);
    }
    writer.finish();
}

#[cfg(test)]
mod tests {
    use super::super::reference::tests::sample;
    use super::*;

    fn children(keys: &[&str], level: u32) -> Vec<Child> {
        let child = |(i, key): (usize, &&str)| Child {
            from: key.as_bytes().to_vec(),
            page: sample(1000 + 10 * i as u64, level - 1),
            pending: 0,
        };
        keys.iter().enumerate().map(child).collect()
    }

    fn page(children: &[Child], level: u32) -> Vec<u8> {
        buffered(children, None, level)
    }

    fn buffered(children: &[Child], buffer: Option<&Root>, level: u32) -> Vec<u8> {
        let mut block = vec![0; pages_for(children, buffer) as usize * PAGE];
        encode(children, buffer, level, 77, &mut block);
        block
    }

    #[test]
    fn a_buffer_belongs_to_its_page() {
        for (level, buffer_level) in [(1, 0), (1, 1), (4, 0), (4, 1)] {
            let mut children = children(&["lower", "user1", "user2", "user30"], level);
            children.iter_mut().zip([0, 500, 70_000, 3]).for_each(|(child, pending)| child.pending = pending);
            let buffer = Root { page: sample(40, buffer_level), level: buffer_level };
            let block = buffered(&children, Some(&buffer), level);
            let inner = Inner::check(&block).unwrap();
            assert_eq!((inner.buffer(), inner.children(b"lower")), (Some(buffer), children.clone()));
            assert_eq!(inner.search(b"user2x"), 2);
            for at in 16..encoded_bytes(&children, Some(&buffer)) {
                let mut bad = block.clone();
                bad[at] ^= 0x81;
                if let Ok(inner) = Inner::check(&bad) {
                    inner.children(b""); // must not panic
                    inner.buffer();
                }
            }
        }
    }

    #[test]
    fn a_page_returns_its_children_and_finds_keys() {
        for level in [1, 3] {
            let children = children(&["lower", "user1", "user2", "user2\0", "user2\0", "user30"], level);
            let block = page(&children, level);
            let inner = Inner::check(&block).unwrap();
            assert_eq!((inner.level(), inner.mark(), inner.len()), (level, 77, 6));
            assert_eq!(inner.children(b"lower"), children);
            let found: Vec<usize> = ["a", "user1", "user1z", "user2", "user2\0", "user2a", "user30", "z"]
                .map(|k| inner.search(k.as_bytes()))
                .into();
            assert_eq!(found, [0, 1, 1, 2, 4, 4, 5, 5]);
        }
    }

    #[test]
    fn one_child_is_enough() {
        let children = children(&["x"], 1);
        let block = page(&children, 1);
        assert_eq!(Inner::check(&block).unwrap().children(b"x"), children);
    }

    #[test]
    fn damaged_pages_are_refused() {
        let children = children(&["a", "b", "c", "d"], 2);
        let good = page(&children, 2);
        let mut refused = 0;
        for at in 16..encoded_bytes(&children, None) {
            let mut bad = good.clone();
            bad[at] ^= 0x81;
            if let Ok(inner) = Inner::check(&bad) {
                inner.children(b""); // must not panic
            } else {
                refused += 1;
            }
        }
        assert!(refused > 50, "{refused}");
    }
}
