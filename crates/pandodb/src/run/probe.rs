//! [`RunProbe`]: a point lookup in one run that never does I/O itself.
//!
//! ```text
//!   Start ─▶ Filter ─▶ Inner(height) ─▶ … ─▶ Inner(1) ─▶ Leaf ─▶ hit ─▶ Leaf (if the key continues) ─▶ Done
//!     └─ outside the range          └─ not in the filter                  └─ Done
//! ```
//!
//! Each step returns the block that it needs next. The caller loads this block ([`crate::blocks::BlockSource::load`],
//! or with up to 32 reads in flight) and calls the next step. A hit returns the messages of the key in one leaf, newest
//! first. If the key's messages fill several leaves, the steps after a hit lead to the older messages; otherwise the
//! next step returns [`ProbeStep::Done`].
//!
//! Invariant: all steps of a probe use the same slice and key. Source: 002 §3.3 (lookup by filter, then by tree).

use std::ops::Range;

#[cfg(doc)]
use super::Run;
use super::leaf::Leaf;
use super::slice::RunSlice;
use crate::base::{BlockAddr, Entry, Result, key_hash};
use crate::pool::Block;
use crate::space::BlockKind;
use crate::space::data::stored_pages;

/// The result of a step of a lookup.
#[derive(Debug)]
pub enum ProbeStep {
    /// A block of the run is needed. Call the next step with this block.
    Need(BlockAddr, BlockKind),
    /// Messages of the key were found. Call the next step without a block to get older messages.
    Found(LeafHit),
    /// There are no further messages.
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
    /// The messages, newest first, each with the position of its value in the block. `key` is the key that was looked
    /// up.
    pub fn entries<'a>(&'a self, key: &'a [u8]) -> impl Iterator<Item = (Entry<'a>, Range<usize>)> {
        let leaf = Leaf::of(&self.block);
        self.entries.clone().map(move |i| {
            let slot = leaf.slot(i);
            debug_assert!(key.ends_with(leaf.rest(&slot)), "the entries are messages of the key");
            (Entry { key, seqno: slot.seqno, kind: slot.kind, value: leaf.value(&slot) }, slot.value())
        })
    }
}

#[derive(Clone, Copy, Debug)]
enum State {
    Start,
    Filter,
    Inner(u8),
    /// The leaf at this position was requested.
    Leaf(u64),
    /// The key continues in the leaf at this position.
    After(u64),
    Done,
}

/// A lookup of one key in one slice.
#[derive(Clone, Debug)]
pub struct RunProbe {
    hash: u64,
    /// Whether a maplet has answered that the run may hold the key. If so, the run's own filter is not probed.
    after_maplet: bool,
    state: State,
    /// If the key's messages continue in a further leaf, the position of this leaf. The probe then searches the inner
    /// blocks for this position instead of the key.
    after: Option<u64>,
}

impl RunProbe {
    /// Creates a lookup of a key with this [`crate::base::key_hash`].
    pub fn new(hash: u64) -> RunProbe {
        RunProbe { hash, after_maplet: false, state: State::Start, after: None }
    }

    /// Creates a lookup of a key for which a maplet has answered that the run may hold this key. The run's filter is
    /// not probed.
    pub fn after_maplet(hash: u64) -> RunProbe {
        RunProbe { after_maplet: true, ..RunProbe::new(hash) }
    }

    /// Continues with the block that the last step has requested. All steps need the same slice and key. If a filter
    /// block cannot be read, the caller may omit it, and the run is searched without the filter. Takes about 150 ns for
    /// each block.
    ///
    /// # Errors
    /// [`crate::Error::Corruption`] if the run's blocks contradict one another.
    ///
    /// # Panics
    /// If a requested block is missing and is not a filter block.
    pub fn step(&mut self, slice: &RunSlice, key: &[u8], block: Option<Block>) -> Result<ProbeStep> {
        debug_assert_eq!(key_hash(key), self.hash, "all steps are for the key of the lookup");
        let meta = slice.run().meta();
        match self.state {
            State::Start => {
                if !slice.may_hold(key) {
                    return Ok(self.end());
                }
                if self.after_maplet || meta.filter.pages == 0 {
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
                let block = block.expect("an inner block was requested");
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
            State::Leaf(position) => Ok(self.look(key, block.expect("a leaf was requested"), position)),
            State::After(position) if position < slice.span().end => {
                // The length of the next leaf is stored in the inner block above it. A key with several leaves is rare,
                // so the probe simply walks down from the root again.
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
        debug_assert!(meta.leaf_pages > 0, "a slice without entries holds no key");
        if meta.height == 0 {
            self.state = State::Leaf(0);
            return ProbeStep::Need(meta.root, BlockKind::RunLeaf);
        }
        self.state = State::Inner(meta.height);
        ProbeStep::Need(meta.root, BlockKind::RunInner)
    }

    fn look(&mut self, key: &[u8], block: Block, position: u64) -> ProbeStep {
        let leaf = Leaf::of(&block);
        let entries = leaf.find(key);
        let goes_on = leaf.continues() && entries.end == leaf.len();
        if entries.is_empty() {
            return self.end();
        }
        self.state = if goes_on { State::After(position + u64::from(stored_pages(&block))) } else { State::Done };
        ProbeStep::Found(LeafHit { block, entries })
    }
}
