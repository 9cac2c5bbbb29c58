//! [`RunProbe`]: a point lookup in one run that never does I/O itself.
//!
//! ```text
//!   Start ─▶ Filter ─▶ Inner(height) ─▶ … ─▶ Inner(1) ─▶ Leaf ─▶ hit ─▶ Leaf (where the key goes on) ─▶ Done
//!     └─ outside the range          └─ the filter says no                 └─ Done
//! ```
//!
//! Each step says which block it needs next; the caller loads it ([`Run::load`], or from 32 reads in flight) and steps
//! again. A hit is one leaf's messages of the key, newest first; stepping again after a hit yields the older ones, if
//! the key has so many that they fill several leaves, and else the end.

use std::ops::Range;

#[cfg(doc)]
use super::Run;
use super::leaf::Leaf;
use super::slice::RunSlice;
use crate::base::{BlockAddr, Entry, Result};
use crate::pool::Block;
use crate::space::BlockKind;
use crate::space::data::stored_pages;

/// What a lookup needs, or has found.
#[derive(Debug)]
pub enum ProbeStep {
    /// A block of the run: step again with it.
    Need(BlockAddr, BlockKind),
    /// Messages of the key. Step again (without a block) if older ones matter.
    Found(LeafHit),
    /// Nothing (more).
    Done,
}

/// The messages of a key in one leaf.
#[derive(Clone, Debug)]
pub struct LeafHit {
    /// The leaf.
    pub block: Block,
    entries: Range<usize>,
}

impl LeafHit {
    /// The messages, newest first, each with where its value lies in the block. `key` is the key that was looked up.
    pub fn entries<'a>(&'a self, key: &'a [u8]) -> impl Iterator<Item = (Entry<'a>, Range<usize>)> {
        let leaf = Leaf::of(&self.block);
        self.entries.clone().map(move |i| {
            let slot = leaf.slot(i);
            debug_assert!(key.ends_with(leaf.rest(&slot)), "the messages are those of the key");
            (Entry { key, seqno: slot.seqno, kind: slot.kind, value: leaf.value(&slot) }, slot.value())
        })
    }
}

#[derive(Clone, Copy, Debug)]
enum State {
    Start,
    Filter,
    Inner(u8),
    /// At this position.
    Leaf(u64),
    /// The leaf before this position was the last one of the key so far; the key goes on.
    After(u64),
    Done,
}

/// A lookup of one key in one slice.
#[derive(Clone, Debug)]
pub struct RunProbe {
    hash: u64,
    /// A maplet says that the run may hold the key: its own filter is not asked.
    told: bool,
    state: State,
    /// Set once the key goes on: the position of the leaf to walk to, instead of to the key.
    after: Option<u64>,
}

impl RunProbe {
    /// Looks for a key with this [`crate::base::key_hash`].
    pub fn new(hash: u64) -> RunProbe {
        RunProbe { hash, told: false, state: State::Start, after: None }
    }

    /// Looks for a key of which a maplet says that the run may hold it.
    pub fn told(hash: u64) -> RunProbe {
        RunProbe { told: true, ..RunProbe::new(hash) }
    }

    /// Goes on: with the block that the last step asked for, and always with the same slice and key. A filter block that
    /// cannot be read may be left out: the run is asked then. Costs about 150
    /// ns a block.
    ///
    /// # Errors
    /// [`crate::Error::Corruption`] if the run's blocks contradict one another.
    ///
    /// # Panics
    /// If another block is missing that was asked for.
    pub fn step(&mut self, slice: &RunSlice, key: &[u8], block: Option<Block>) -> Result<ProbeStep> {
        let meta = slice.run().meta();
        match self.state {
            State::Start => {
                if !slice.may_hold(key) {
                    return Ok(self.end());
                }
                if self.told || meta.filter.pages == 0 {
                    return Ok(self.need_root(slice));
                }
                let position = meta.filter.first + u64::from(meta.filter.page_of(self.hash));
                self.state = State::Filter;
                Ok(ProbeStep::Need(slice.run().address(position, 1)?, BlockKind::RunFilter))
            }
            State::Filter => {
                let hit = block.is_none_or(|page| meta.filter.may_contain(&page, self.hash));
                Ok(if hit { self.need_root(slice) } else { self.end() })
            }
            State::Inner(level) => {
                let block = block.expect("an inner block was asked for");
                let (child, addr) = slice.run().child(&block, level, |inner| match self.after {
                    None => inner.search(key),
                    Some(position) => inner.search_leaf(position),
                })?;
                if level > 1 {
                    self.state = State::Inner(level - 1);
                    return Ok(ProbeStep::Need(addr, BlockKind::RunInner));
                }
                self.state = State::Leaf(child.position);
                Ok(ProbeStep::Need(addr, BlockKind::RunLeaf))
            }
            State::Leaf(position) => Ok(self.look(slice, key, block.expect("a leaf was asked for"), position)),
            State::After(position) if position < slice.span().end => {
                // The next leaf's length stands in the block above it: seldom enough to walk down again.
                self.after = Some(position);
                Ok(self.need_root(slice))
            }
            State::After(_) => Ok(self.end()),
            State::Done => Ok(ProbeStep::Done),
        }
    }

    fn end(&mut self) -> ProbeStep {
        self.state = State::Done;
        ProbeStep::Done
    }

    fn need_root(&mut self, slice: &RunSlice) -> ProbeStep {
        let meta = slice.run().meta();
        if meta.height == 0 {
            self.state = State::Leaf(0);
            return ProbeStep::Need(meta.root, BlockKind::RunLeaf);
        }
        self.state = State::Inner(meta.height);
        ProbeStep::Need(meta.root, BlockKind::RunInner)
    }

    fn look(&mut self, slice: &RunSlice, key: &[u8], block: Block, position: u64) -> ProbeStep {
        let leaf = Leaf::of(&block);
        let entries = leaf.find(key);
        let goes_on = leaf.continues() && entries.end == leaf.len();
        if entries.is_empty() {
            if self.after.is_none() && (self.told || slice.run().meta().filter.pages > 0) {
                slice.run().count_false_positive();
            }
            return self.end();
        }
        self.state = if goes_on { State::After(position + u64::from(stored_pages(&block))) } else { State::Done };
        ProbeStep::Found(LeafHit { block, entries })
    }
}
