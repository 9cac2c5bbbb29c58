//! [`Waiting`]: the messages of a page's buffer while a job writes the page anew.
//!
//! ```text
//!   old buffer   [ leaf ][ leaf ][ leaf ][ leaf ]
//!                   │       read    read     │            leaves for which a job has no messages are not read
//!   Waiting      [ kept ][ fresh messages  ][ kept ]
//!                            │ write: one part for each page that the old page becomes
//!                            ▼
//!   new buffer   [ leaf ][ leaf ][ leaf ]  ▲  [ leaf ]
//! ```
//!
//! The fresh messages stay in memory until the page is closed, because only then it is known how many pages it becomes,
//! and each of them gets the messages of its own children. They take about as much memory as a buffer may have, and
//! more only for small pages that are joined.
//!
//! Invariant: the parts are in key order, and no key is in two parts.

use super::inner::Child;
use super::leaves::LeafSink;
use super::reference::Root;
use super::source::PageSource;
use super::unit::{Unit, pop_unit};
use crate::base::{Entry, EntryBlock, Extent, Result};
use crate::index::folding::Sink;

/// The bytes that a message counts for in a buffer.
pub fn weight(entry: &Entry<'_>) -> u64 {
    (entry.key.len() + entry.value.len() + 16) as u64
}

/// The leaves of a buffer. `from` and `to` are the bounds of its page.
///
/// # Errors
/// If the inner page of the buffer cannot be read, or is damaged.
pub fn leaves_of(buffer: &Root, from: &[u8], to: Option<&[u8]>, source: &PageSource) -> Result<Vec<Child>> {
    if buffer.level == 0 {
        return Ok(vec![Child::new(from.to_vec(), buffer.page)]);
    }
    if buffer.page.inner(&source.page(&buffer.page, buffer.level)?).buffer().is_some() {
        return Err(source.corrupt(&buffer.page, "a buffer inside a buffer"));
    }
    source.children(&buffer.page, buffer.level, from, to)
}

/// Calls `visit` with each entry of the leaves of a unit.
fn entries(unit: &Unit, source: &PageSource, visit: &mut dyn FnMut(Entry<'_>) -> Result<()>) -> Result<()> {
    let mut key = Vec::new();
    for leaf in &unit.leaves {
        let (bytes, page) = (source.leaf_once(&leaf.page)?, &leaf.page);
        let leaf = page.leaf(&bytes);
        leaf.key(leaf.len() - 1, &mut key);
        let is_above = unit.ends_before(&key);
        leaf.key(0, &mut key);
        if is_above || key < unit.from {
            return Err(source.corrupt(page, "a key outside the leaf's keys"));
        }
        for i in 0..leaf.len() {
            leaf.key(i, &mut key);
            let slot = leaf.slot(i);
            visit(Entry { key: &key, seqno: slot.seqno, kind: slot.kind, value: leaf.value(&slot) })?;
        }
    }
    Ok(())
}

/// Adds the weights of messages, which come in key order, to children. The messages of a key are for the first of the
/// leaves that hold it, so a leaf that continues a key gets none.
struct Weigher<'a> {
    children: &'a mut [Child],
    at: usize,
}

impl Weigher<'_> {
    fn add(&mut self, entry: &Entry<'_>) {
        let behind = |at: usize| (at + 1..self.children.len()).find(|&next| !self.children[next].page.is_continued);
        while let Some(next) = behind(self.at)
            && self.children[next].from.as_slice() <= entry.key
        {
            self.at = next;
        }
        let pending = &mut self.children[self.at].pending;
        *pending = pending.saturating_add(weight(entry));
    }
}

/// A part of a buffer.
enum Part {
    /// Leaves of the old buffer that stay as they are.
    Kept(Unit),
    /// Messages in memory.
    Fresh(EntryBlock),
}

/// The messages of a buffer.
#[derive(Default)]
pub struct Waiting {
    parts: Vec<Part>,
}

impl Waiting {
    /// All leaves of a stored buffer. `from` and `to` are the bounds of its page. The inner page of the buffer is added
    /// to `replaced`.
    ///
    /// # Errors
    /// If the inner page of the buffer cannot be read.
    pub fn of(
        buffer: Option<&Root>,
        (from, to): (&[u8], Option<&[u8]>),
        source: &PageSource,
        replaced: &mut Vec<Extent>,
    ) -> Result<Waiting> {
        let mut waiting = Waiting::default();
        let Some(buffer) = buffer else { return Ok(waiting) };
        let mut rest = leaves_of(buffer, from, to, source)?;
        rest.reverse();
        while let Some(unit) = pop_unit(&mut rest, to) {
            waiting.keep(unit);
        }
        if buffer.level > 0 {
            replaced.extend(buffer.page.extents());
        }
        Ok(waiting)
    }

    /// Adds leaves that stay as they are.
    pub fn keep(&mut self, unit: Unit) {
        self.parts.push(Part::Kept(unit));
    }

    /// Adds messages.
    pub fn add(&mut self, block: EntryBlock) {
        if !block.is_empty() {
            self.parts.push(Part::Fresh(block));
        }
    }

    /// Adds the messages of a buffer with larger keys.
    pub fn append(&mut self, mut other: Waiting) {
        self.parts.append(&mut other.parts);
    }

    /// Adds the weights of the messages in memory to the children for which they are.
    pub fn add_weights(&self, children: &mut [Child]) {
        let mut weigher = Weigher { children, at: 0 };
        for part in &self.parts {
            if let Part::Fresh(block) = part {
                block.iter().for_each(|entry| weigher.add(&entry));
            }
        }
    }

    /// Adds the weights of all messages to the children for which they are.
    ///
    /// # Errors
    /// If a leaf cannot be read.
    pub fn add_all_weights(&self, children: &mut [Child], source: &PageSource) -> Result<()> {
        let mut weigher = Weigher { children, at: 0 };
        self.parts.iter().try_for_each(|part| match part {
            Part::Fresh(block) => {
                block.iter().for_each(|entry| weigher.add(&entry));
                Ok(())
            }
            Part::Kept(unit) => entries(unit, source, &mut |entry| {
                weigher.add(&entry);
                Ok(())
            }),
        })
    }

    /// Removes the messages of the keys from `at` on, and returns them.
    ///
    /// # Errors
    /// If a leaf with keys on both sides cannot be read.
    pub fn split_off(&mut self, at: &[u8], source: &PageSource, replaced: &mut Vec<Extent>) -> Result<Waiting> {
        let (mut below, mut above) = (Waiting::default(), Waiting::default());
        let divide = |block: &mut dyn Iterator<Item = Entry<'_>>, below: &mut Waiting, above: &mut Waiting| {
            let (mut low, mut high) = (EntryBlock::new(), EntryBlock::new());
            block.for_each(|entry| if entry.key < at { low.push(entry) } else { high.push(entry) });
            below.add(low);
            above.add(high);
        };
        for part in std::mem::take(&mut self.parts) {
            match part {
                Part::Kept(unit) if unit.from.as_slice() >= at => above.keep(unit),
                Part::Kept(unit) if unit.to.as_ref().is_some_and(|to| to.as_slice() <= at) => below.keep(unit),
                Part::Kept(unit) => {
                    let mut block = EntryBlock::new();
                    entries(&unit, source, &mut |entry| {
                        block.push(entry);
                        Ok(())
                    })?;
                    replaced.extend(unit.leaves.iter().flat_map(|leaf| leaf.page.extents()));
                    divide(&mut block.iter(), &mut below, &mut above);
                }
                Part::Fresh(block) => divide(&mut block.iter(), &mut below, &mut above),
            }
        }
        *self = below;
        Ok(above)
    }

    /// Writes the buffer of a page with the lower bound `from`. A small leaf is joined with the kept leaf behind it.
    ///
    /// # Errors
    /// If a page cannot be read or written.
    pub fn write(
        self,
        from: &[u8],
        sink: &mut LeafSink,
        source: &PageSource,
        replaced: &mut Vec<Extent>,
    ) -> Result<Option<Root>> {
        debug_assert!(sink.is_empty(), "the leaves before are complete");
        let (mut leaves, mut bound) = (Vec::new(), from.to_vec());
        for part in self.parts {
            match part {
                Part::Fresh(block) => {
                    sink.begin_unit(&bound);
                    // Each lookup below the page, and the next flush, reads the buffer.
                    sink.set_warm(true);
                    block.iter().try_for_each(|entry| sink.push(entry))?;
                }
                Part::Kept(unit) if sink.is_small() => {
                    entries(&unit, source, &mut |entry| sink.push(entry))?;
                    replaced.extend(unit.leaves.iter().flat_map(|leaf| leaf.page.extents()));
                    bound = unit.to.unwrap_or_default();
                }
                Part::Kept(unit) => {
                    leaves.append(&mut sink.end_unit()?);
                    leaves.extend(unit.leaves);
                    bound = unit.to.unwrap_or_default();
                }
            }
        }
        leaves.append(&mut sink.end_unit()?);
        Ok(match &leaves[..] {
            [] => None,
            [leaf] => Some(Root { page: leaf.page, level: 0 }),
            _ => Some(Root { page: sink.writer.inner(&leaves, None, 1)?, level: 1 }),
        })
    }
}
