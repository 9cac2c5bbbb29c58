//! Flushes: from full buffers to the children, level by level (000 §5.2.3).
//!
//! ```text
//!   queue   (node A, its removed blocks) (node B, …)  ──▶ pop A: latch a child, give it its block
//!                                                           leaf   split if needed ──▶ push (leaf, block)
//!                                                           node   block fits ──▶ merge, release
//!                                                                  else remove chosen blocks, split if the pivots
//!                                                                  need it ──▶ push (halves, their removed blocks)
//!                                                         release A
//! ```
//!
//! 1. The messages that a node holds and those that arrive are divided into *blocks*, one for each child. The policy
//!    chooses the blocks that are removed, so that the rest fits (`choose`). Messages of equal keys are counted once.
//! 2. A node whose blocks are removed has a free pivot slot for each of them, because each child may be split.
//!    Otherwise the node itself is split first, for which its parent has a slot.
//! 3. The queue is first in, first out, so a node is released as soon as its children are latched. Leaves are split
//!    before their messages are applied, so that they do not delay the release of their parent.
//!
//! **At most one buffer of messages for a child.** The source assumes that a flush at most doubles a buffer. But a
//! block can have all messages of a doubled buffer; then the next buffer would be tripled. So at most
//! [`slots`](crate::layout::BufferLayout::slots) messages of a block are passed on, which is always enough.
//!
//! **At most ⌈(n+1)/2⌉ blocks.** A doubled buffer must lose at most half of its messages, and the larger half of the
//! blocks has at least that many. n, the greatest number of pivots, is odd, so half a node has as many free slots.
//!
//! With reserved slots, all children can get a block. Then a node with too few free pivot slots is split first, and each
//! half has a free slot for each of its children.
//!
//! **A split instead of a flush** (batch threshold) divides the messages that arrive, too. It happens at most once for
//! each block that a node passes on, so the free slots of the parent are enough.
//!
//! Latches: nodes of a level, and the children of a node, are visited from the greatest key to the least.

use std::collections::VecDeque;

use super::{BeTree, count};
use crate::batch::Batch;
use crate::error::Result;
use crate::frame::WritePage;
use crate::layout::header;
use crate::message::Message;
use crate::mistake::Mistake;
use crate::tree::{FanOut, FlushPolicy};

/// Messages for the child with this index.
type Block = (usize, Batch);

/// A latched page with messages that are in no page.
enum Item<'a> {
    /// A node and the blocks that were removed from it, the block of the greatest keys first.
    Node(WritePage<'a>, Vec<Block>),
    /// A leaf and the messages for it.
    Leaf(WritePage<'a>, Batch),
}

impl BeTree {
    /// Adds a message to the full buffer of `node`, which has a free pivot slot.
    pub fn flush_first(&self, mut node: WritePage<'_>, message: Message<'_>) -> Result<()> {
        if self.put(&mut node, message) {
            // A split has made room.
            return Ok(());
        }
        let mut arrived = Batch::new(self.layout.sizes.value);
        arrived.push(message);
        let blocks = self.remove_blocks(&mut node, &arrived);
        debug_assert!(
            blocks.len() == 1 || self.options.fan_out != FanOut::Fixed,
            "one message too many is in one block"
        );
        let (mut queue, mut level) = (VecDeque::from([Item::Node(node, blocks)]), 0);
        while let Some(item) = queue.pop_front() {
            match item {
                Item::Node(node, blocks) => {
                    if std::mem::replace(&mut level, header::level(&node)) != header::level(&node) {
                        count(&self.counts.levels, 1);
                    }
                    self.pass_on(node, blocks, &mut queue)?;
                }
                Item::Leaf(mut leaf, batch) => {
                    batch.iter().for_each(|message| self.layout.leaf.apply(&mut leaf, message));
                }
            }
        }
        Ok(())
    }

    /// Gives the children of `node` their blocks, and releases the node.
    fn pass_on<'a>(
        &'a self,
        mut node: WritePage<'a>,
        blocks: Vec<Block>,
        queue: &mut VecDeque<Item<'a>>,
    ) -> Result<()> {
        assert!(self.layout.inner_of(&node).room(&node) >= blocks.len(), "each child can be split");
        debug_assert!(blocks.is_sorted_by(|a, b| a.0 > b.0), "from the greatest key to the least");
        for (i, batch) in blocks {
            count(&self.counts.batches, 1);
            count(&self.counts.messages, batch.len() as u64);
            let child = self.write_child(&node, i)?;
            if header::level(&child) == 0 {
                self.reach_leaf(&mut node, i, child, batch, queue)?;
            } else {
                self.reach_node(&mut node, i, child, batch, queue)?;
            }
        }
        Ok(())
    }

    /// Merges the messages into the buffer of the child `i` of `node`, if they fit. Otherwise queues the child with
    /// the blocks that must leave it.
    fn reach_node<'a>(
        &'a self,
        node: &mut WritePage<'a>,
        i: usize,
        mut child: WritePage<'a>,
        batch: Batch,
        queue: &mut VecDeque<Item<'a>>,
    ) -> Result<()> {
        if self.fits(&child, &batch) {
            self.layout.node(&child).buffer.merge_all(&mut child, &batch);
            return Ok(());
        }
        let is_too_wide = self.adapt(&mut child);
        if self.fits(&child, &batch) {
            self.layout.node(&child).buffer.merge_all(&mut child, &batch);
            return Ok(());
        }
        if is_too_wide || self.splits_instead(&child, &batch) {
            return self.split_instead(node, i, child, batch, queue);
        }
        let removed = self.remove_blocks(&mut child, &batch);
        let removed = if Mistake::RemovedMessagesDropped.is_on() { vec![(removed[0].0, batch)] } else { removed };
        if self.layout.inner_of(&child).room(&child) < removed.len() {
            return self.split_full(node, i, child, removed, queue);
        }
        queue.push_back(Item::Node(child, removed));
        Ok(())
    }

    /// Splits the child `i` of `node`, whose batches are too small for a flush, and merges the messages into both
    /// halves. A half that overflows is flushed in any case: `node` has no slot for a second split.
    fn split_instead<'a>(
        &'a self,
        node: &mut WritePage<'a>,
        i: usize,
        mut child: WritePage<'a>,
        mut batch: Batch,
        queue: &mut VecDeque<Item<'a>>,
    ) -> Result<()> {
        let (pivot, right) = self.split_inner(node, i, &mut child)?;
        count(&self.counts.splits_instead, 1);
        let for_right = batch.split_off_key(if Mistake::ArrivedNotDivided.is_on() { u64::MAX } else { pivot });
        for (mut half, batch) in [(right, for_right), (child, batch)] {
            if self.fits(&half, &batch) {
                self.layout.node(&half).buffer.merge_all(&mut half, &batch);
                continue;
            }
            let removed = self.remove_blocks(&mut half, &batch);
            assert!(self.layout.inner_of(&half).room(&half) >= removed.len(), "half a node has as many free slots");
            queue.push_back(Item::Node(half, removed));
        }
        Ok(())
    }

    /// Splits the leaf `i` of `node` if the messages do not fit, and queues the messages.
    fn reach_leaf<'a>(
        &'a self,
        node: &mut WritePage<'a>,
        i: usize,
        mut leaf: WritePage<'a>,
        mut batch: Batch,
        queue: &mut VecDeque<Item<'a>>,
    ) -> Result<()> {
        assert!(batch.len() <= self.layout.most_slots(), "at most one buffer of messages");
        if let Some(key) = self.layout.leaf.split_key(&leaf, &batch) {
            let mut right = self.pages.create()?;
            count(&self.counts.leaf_splits, 1);
            self.layout.leaf.split(&mut leaf, &mut right, key);
            self.layout.inner_of(node).insert(node, i, key, right.no());
            node.note_change();
            queue.push_back(Item::Leaf(right, batch.split_off_key(key)));
        }
        queue.push_back(Item::Leaf(leaf, batch));
        Ok(())
    }

    /// Splits the child `i` of `node`, from which `removed` was taken, and queues both halves with their blocks.
    fn split_full<'a>(
        &'a self,
        node: &mut WritePage<'a>,
        i: usize,
        mut child: WritePage<'a>,
        mut removed: Vec<Block>,
        queue: &mut VecDeque<Item<'a>>,
    ) -> Result<()> {
        let (_, right) = self.split_inner(node, i, &mut child)?;
        let left_children = header::count(&child) + 1;
        // The blocks with the greatest keys are first.
        let cut = removed.partition_point(|(index, _)| *index >= left_children);
        let left = removed.split_off(cut);
        removed.iter_mut().for_each(|(index, _)| *index -= left_children);
        for (half, blocks) in [(right, removed), (child, left)] {
            if !blocks.is_empty() {
                queue.push_back(Item::Node(half, blocks));
            }
        }
        Ok(())
    }

    /// Merges messages into the buffer of `node` and removes the blocks that the policy chooses, so that the rest fits.
    fn remove_blocks(&self, node: &mut WritePage<'_>, arrived: &Batch) -> Vec<Block> {
        let (layout, limit) = (self.layout.node(node), self.batch_limit());
        let buffer = &layout.buffer;
        assert!(arrived.len() <= self.layout.most_slots(), "a flush at most doubles a buffer");
        if !Mistake::FlushNotNoted.is_on() {
            node.note_change();
        }
        let wider = self.wider(node).and_then(|wider| Some((wider, self.blocks_for(node, arrived, wider)?)));
        let (wider, chosen) = match wider {
            Some((wider, chosen)) => (Some(wider), chosen),
            None => (None, self.choose_blocks(node, arrived)),
        };
        let is_limited = self.options.policy != FlushPolicy::Reserved && self.options.fan_out == FanOut::Fixed;
        assert!(!is_limited || chosen.len() <= layout.inner.pivots_max.div_ceil(2), "at most half of the children");
        let mut stays = Batch::new(self.layout.sizes.value);
        // Ranges of arrived messages that are removed, ascending.
        let mut skip = chosen.iter().rev().flat_map(|span| span.arrived.clone()).peekable();
        for i in 0..arrived.len() {
            if skip.next_if_eq(&i).is_none() {
                stays.push(arrived.get(i));
            }
        }
        drop(skip);
        let mut rest = Vec::new();
        let mut blocks = Vec::with_capacity(chosen.len());
        for span in chosen {
            let mut block = buffer.union(node, span.held.clone(), arrived, span.arrived);
            // The spans before this one keep their places.
            buffer.remove(node, span.held);
            if block.len() > limit {
                rest.push(block.split_off(limit));
            }
            blocks.push((span.child, block));
        }
        buffer.merge_all(node, &stays);
        rest.iter().for_each(|rest| buffer.merge_all(node, rest));
        debug_assert!(header::messages(node) <= buffer.slots);
        if let Some(wider) = wider {
            self.move_to(node, wider);
        }
        node.note_passed(blocks.iter().map(|(_, batch)| batch.len() as u64).sum());
        blocks
    }
}
