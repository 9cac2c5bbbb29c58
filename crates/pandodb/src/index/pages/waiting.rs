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
//! and each of them gets the messages of its own children. A buffer has a bounded size, so they take bounded memory.
//!
//! Invariant: the parts are in key order, and no key is in two parts.

use super::inner::Child;
use super::leaves::LeafSink;
use super::rebuild::{Unit, pop_unit};
use super::reference::Root;
use super::source::PageSource;
use crate::base::{Entry, EntryBlock, Extent, Result};
use crate::index::folding::Sink;
use crate::run::Leaf;

/// The bytes that a message counts for in a buffer.
pub fn weight(entry: &Entry<'_>) -> u64 {
    (entry.key.len() + entry.value.len() + 16) as u64
}

/// The leaves of a buffer. `from` and `to` are the bounds of its page.
///
/// # Errors
/// If the inner page of the buffer cannot be read.
pub fn leaves_of(buffer: &Root, from: &[u8], to: Option<&[u8]>, source: &PageSource) -> Result<Vec<Child>> {
    match buffer.level {
        0 => Ok(vec![Child::new(from.to_vec(), buffer.page)]),
        level => source.children(&buffer.page, level, from, to),
    }
}

/// Calls `visit` with each entry of the leaves of a unit.
fn entries(unit: &Unit, source: &PageSource, visit: &mut dyn FnMut(Entry<'_>) -> Result<()>) -> Result<()> {
    let mut key = Vec::new();
    for leaf in &unit.leaves {
        let bytes = source.leaf_once(&leaf.page)?;
        let leaf = Leaf::of(&bytes);
        for i in 0..leaf.len() {
            leaf.key(i, &mut key);
            let slot = leaf.slot(i);
            visit(Entry { key: &key, seqno: slot.seqno, kind: slot.kind, value: leaf.value(&slot) })?;
        }
    }
    Ok(())
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
    /// All leaves of a stored buffer. `from` and `to` are the bounds of its page. The inner page of the buffer is added to
    /// `replaced`.
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
        let mut at = 0;
        for part in &self.parts {
            let Part::Fresh(block) = part else { continue };
            for entry in block.iter() {
                while children.get(at + 1).is_some_and(|next| next.from.as_slice() <= entry.key) {
                    at += 1;
                }
                children[at].pending += weight(&entry);
            }
        }
    }

    /// The same messages, all in memory.
    ///
    /// # Errors
    /// If a leaf cannot be read.
    pub fn read(self, source: &PageSource) -> Result<Waiting> {
        let mut all = EntryBlock::new();
        for part in self.parts {
            match part {
                Part::Fresh(block) => block.iter().for_each(|entry| all.push(entry)),
                Part::Kept(unit) => entries(&unit, source, &mut |entry| {
                    all.push(entry);
                    Ok(())
                })?,
            }
        }
        Ok(Waiting { parts: vec![Part::Fresh(all)] })
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
