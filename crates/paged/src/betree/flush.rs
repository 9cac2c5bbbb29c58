//! Flushes: from full buffers to the children, level by level (000 §5.2.3).
//!
//! ```text
//!   queue   (node A, its removed blocks) (node B, …)  ──▶ pop A: latch a child, give it its block
//!                                                           leaf   split if needed ──▶ push (leaf, block)
//!                                                           node   block fits ──▶ merge, release
//!                                                                  else remove the largest blocks, split if the pivots
//!                                                                  need it ──▶ push (halves, their removed blocks)
//!                                                         release A
//! ```
//!
//! 1. The messages that a node holds and those that arrive are divided into *blocks*, one for each child. The largest
//!    blocks are removed until the rest fits. Messages of equal keys are counted once.
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
//! Latches: nodes of a level, and the children of a node, are visited from the greatest key to the least.

use std::collections::VecDeque;
use std::ops::Range;

use super::BeTree;
use crate::batch::Batch;
use crate::error::Result;
use crate::frame::WritePage;
use crate::layout::{Kind, header};
use crate::message::Message;
use crate::mistake::Mistake;

/// Messages for the child with this index.
type Block = (usize, Batch);

/// A latched page with messages that are in no page.
enum Item<'a> {
    /// A node and the blocks that were removed from it, the block of the greatest keys first.
    Node(WritePage<'a>, Vec<Block>),
    /// A leaf and the messages for it.
    Leaf(WritePage<'a>, Batch),
}

/// The messages of a child: a range of the buffer, a range of the arriving messages, and the size of their union.
#[derive(Clone, Debug)]
struct Span {
    child: usize,
    held: Range<usize>,
    arrived: Range<usize>,
    len: usize,
}

impl BeTree {
    /// Adds a message to the full buffer of `node`, which has a free pivot slot.
    pub fn flush_first(&self, mut node: WritePage<'_>, message: Message<'_>) -> Result<()> {
        if self.layout.buffer.put(&mut node, message) {
            // A split has made room.
            return Ok(());
        }
        let mut arrived = Batch::new(self.layout.sizes.value);
        arrived.push(message);
        let blocks = self.remove_blocks(&mut node, &arrived);
        debug_assert_eq!(blocks.len(), 1, "one message too many is in one block");
        let mut queue = VecDeque::from([Item::Node(node, blocks)]);
        while let Some(item) = queue.pop_front() {
            match item {
                Item::Node(node, blocks) => self.pass_on(node, blocks, &mut queue)?,
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
            let mut child = self.pages.write(self.layout.inner_of(&node).child(&node, i))?;
            if header::level(&child) == 0 {
                self.reach_leaf(&mut node, i, child, batch, queue)?;
            } else if self.layout.buffer.merged_len(&child, &batch) <= self.layout.buffer.slots {
                self.layout.buffer.merge_all(&mut child, &batch);
            } else {
                let removed = self.remove_blocks(&mut child, &batch);
                let removed =
                    if Mistake::RemovedMessagesDropped.is_on() { vec![(removed[0].0, batch)] } else { removed };
                if self.layout.buffered.room(&child) < removed.len() {
                    self.split_full(&mut node, i, child, removed, queue)?;
                } else {
                    queue.push_back(Item::Node(child, removed));
                }
            }
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
        assert!(batch.len() <= self.layout.buffer.slots, "at most one buffer of messages");
        if let Some(key) = self.layout.leaf.split_key(&leaf, &batch) {
            let mut right = self.pages.create()?;
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

    /// Merges messages into the buffer of `node` and removes the largest blocks, so that the rest fits.
    fn remove_blocks(&self, node: &mut WritePage<'_>, arrived: &Batch) -> Vec<Block> {
        let buffer = &self.layout.buffer;
        assert!(arrived.len() <= buffer.slots, "a flush at most doubles a buffer");
        if !Mistake::FlushNotNoted.is_on() {
            node.note_change();
        }
        let chosen = self.choose_blocks(node, arrived);
        assert!(chosen.len() <= self.layout.inner_of(node).pivots_max.div_ceil(2), "at most half of the children");
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
            if block.len() > buffer.slots {
                rest.push(block.split_off(buffer.slots));
            }
            blocks.push((span.child, block));
        }
        buffer.merge_all(node, &stays);
        rest.iter().for_each(|rest| buffer.merge_all(node, rest));
        debug_assert!(header::messages(node) <= buffer.slots);
        blocks
    }

    /// The blocks that are removed when `arrived` is merged into the buffer, in descending order of keys.
    fn choose_blocks(&self, node: &[u8], arrived: &Batch) -> Vec<Span> {
        let slots = self.layout.buffer.slots;
        if arrived.len() == 1 {
            return vec![self.largest_with_one(node, arrived.key(0))];
        }
        let (mut total, mut spans) = (0, Vec::new());
        self.spans(node, arrived, |span| {
            total += span.len;
            spans.push(span);
        });
        choose(spans, total - slots, slots)
    }

    /// The largest block of a full buffer and one message with another key. This is the most frequent case, so the list
    /// of all blocks is not made.
    fn largest_with_one(&self, node: &[u8], key: u64) -> Span {
        let (inner, buffer) = (&self.layout.buffered, &self.layout.buffer);
        let count = header::messages(node);
        debug_assert!(count == buffer.slots && buffer.keys.find(node, count, key).is_err());
        let keys = buffer.keys.numbers(node, count);
        let own = inner.child_for(node, key);
        let lower =
            own.checked_sub(1).map_or(0, |left| buffer.keys.lower_bound(node, count, inner.pivots.number(node, left)));
        let upper = inner.upper(node, own).map_or(count, |upper| buffer.keys.lower_bound(node, count, upper));
        let (child, end, len) = largest_run(keys, inner.pivots.numbers(node, header::count(node)));
        if len <= upper - lower + 1 {
            return Span { child: own, held: lower..upper, arrived: 0..1, len: upper - lower + 1 };
        }
        debug_assert!(child != own, "its block has one message more");
        let arrived = if child > own { 1..1 } else { 0..0 };
        Span { child, held: end - len..end, arrived, len }
    }

    /// Passes the messages of each child that has some to `each`, in ascending order.
    fn spans(&self, node: &[u8], arrived: &Batch, mut each: impl FnMut(Span)) {
        debug_assert_eq!(header::kind(node), Kind::Buffered);
        let (inner, buffer) = (&self.layout.buffered, &self.layout.buffer);
        let count = header::messages(node);
        let keys = buffer.keys.numbers(node, count);
        let pivots = inner.pivots.numbers(node, header::count(node));
        let (mut held, mut new, mut child) = (0, 0, 0);
        while held < count || new < arrived.len() {
            let first_held = keys.get(held).map_or(u64::MAX, |&key| u64::from_le_bytes(key));
            let first = first_held.min(if new < arrived.len() { arrived.key(new) } else { u64::MAX });
            child += pivots[child..].iter().take_while(|&&pivot| u64::from_le_bytes(pivot) <= first).count();
            let upper = pivots.get(child).map(|&pivot| u64::from_le_bytes(pivot));
            let is_below = |key: u64| upper.is_none_or(|upper| key < upper);
            let (from, new_from) = (held, new);
            held += keys[held..].iter().take_while(|&&key| is_below(u64::from_le_bytes(key))).count();
            new += arrived.keys().skip(new).take_while(|&key| is_below(key)).count();
            let is_held = |key: &u64| buffer.keys.find(node, count, *key).is_ok();
            let equal = arrived.keys().take(new).skip(new_from).filter(is_held).count();
            let len = (held - from) + (new - new_from) - equal;
            each(Span { child, held: from..held, arrived: new_from..new, len });
        }
    }
}

/// The child with the most messages, the end of its block, and the number of its messages. The loop has no branch that
/// depends on keys: as many of them as there are messages and pivots would be mispredicted half of the time. Few messages
/// are searched among many pivots instead.
fn largest_run(keys: &[[u8; 8]], pivots: &[[u8; 8]]) -> (usize, usize, usize) {
    /// With more pivots for each message, binary searches cost less than a pass over all pivots.
    const MANY: usize = 16;
    if keys.len() * MANY < pivots.len() {
        return largest_run_searched(keys, pivots);
    }
    let (mut i, mut child, mut run) = (0, 0, 0);
    let mut largest = (0, 0, 0);
    while i < keys.len() && child < pivots.len() {
        let is_below = u64::from_le_bytes(keys[i]) < u64::from_le_bytes(pivots[child]);
        run = if is_below { run + 1 } else { 0 };
        i += usize::from(is_below);
        child += usize::from(!is_below);
        largest = if run > largest.2 { (child, i, run) } else { largest };
    }
    // The messages that are left are for the current child.
    let last = (child, keys.len(), run + keys.len() - i);
    if last.2 > largest.2 { last } else { largest }
}

fn largest_run_searched(keys: &[[u8; 8]], pivots: &[[u8; 8]]) -> (usize, usize, usize) {
    let (mut largest, mut last, mut run) = ((0, 0, 0), usize::MAX, 0);
    for (i, &key) in keys.iter().enumerate() {
        let child = pivots.partition_point(|&pivot| u64::from_le_bytes(pivot) <= u64::from_le_bytes(key));
        run = if child == last { run + 1 } else { 1 };
        last = child;
        largest = if run > largest.2 { (child, i + 1, run) } else { largest };
    }
    largest
}

/// The largest spans that together have at least `needed` messages, when at most `most` of each are taken. They are
/// returned in descending order of keys.
fn choose(mut spans: Vec<Span>, needed: usize, most: usize) -> Vec<Span> {
    debug_assert!(needed >= 1 && needed <= most, "a buffer that overflows, at most twice its size");
    spans.sort_unstable_by_key(|span| std::cmp::Reverse(span.len));
    let mut taken = 0;
    let count = spans.iter().take_while(|span| {
        let missing = taken < needed;
        taken += span.len.min(most);
        missing
    });
    let count = count.count();
    spans.truncate(count);
    spans.sort_unstable_by_key(|span| std::cmp::Reverse(span.child));
    spans
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spans(lens: &[usize]) -> Vec<Span> {
        let span = |(child, &len)| Span { child, held: 0..len, arrived: 0..0, len };
        lens.iter().enumerate().map(span).collect()
    }

    fn chosen(lens: &[usize], needed: usize, most: usize) -> Vec<usize> {
        choose(spans(lens), needed, most).iter().map(|span| span.child).collect()
    }

    #[test]
    fn the_largest_blocks_are_chosen_until_the_rest_fits() {
        assert_eq!(chosen(&[1, 4, 2], 1, 6), [1]);
        assert_eq!(chosen(&[1, 4, 2], 5, 6), [2, 1]);
        assert_eq!(chosen(&[3, 3, 3, 3], 6, 6).len(), 2);
        assert_eq!(chosen(&[12, 0, 0], 6, 6), [0], "no more than a buffer of a block is needed");
    }

    #[test]
    fn the_largest_run_is_found() {
        let run = |keys: &[u64], pivots: &[u64]| {
            let bytes = |numbers: &[u64]| numbers.iter().map(|number| number.to_le_bytes()).collect::<Vec<_>>();
            let (keys, pivots) = (bytes(keys), bytes(pivots));
            let largest = largest_run(&keys, &pivots);
            assert_eq!(largest, largest_run_searched(&keys, &pivots));
            largest
        };
        assert_eq!(run(&[1, 2, 30, 40, 50], &[10, 60, 70]), (1, 5, 3));
        assert_eq!(run(&[1, 2, 30], &[10, 60]), (0, 2, 2));
        assert_eq!(run(&[1, 80, 90], &[10, 60]), (2, 3, 2));
        assert_eq!(run(&[10, 11], &[10]), (1, 2, 2));
        assert_eq!(largest_run(&[], &[]).2, 0);
    }

    #[test]
    fn a_doubled_buffer_loses_at_most_half_of_its_blocks() {
        for children in 2..20 {
            for slots in 1..20 {
                let even: Vec<usize> =
                    (0..children).map(|i| 2 * slots / children + usize::from(i < 2 * slots % children)).collect();
                assert!(chosen(&even, slots, slots).len() <= children.div_ceil(2), "{children} {slots}");
            }
        }
    }
}
