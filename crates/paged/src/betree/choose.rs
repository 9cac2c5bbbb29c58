//! The choice of the blocks that leave a buffer, by the tree's [`FlushPolicy`]. Nothing is changed here.
//!
//! ```text
//!   largest     the largest blocks, until the rest fits                                            (000 §5.2.3)
//!   threshold   the same; but a node with a block that is too small for a flush is split instead   (004 §3)
//!   reserved    `share` messages of each child that has more than its share                        (004 §2.4.1)
//! ```
//!
//! **Threshold.** 004 §3 flushes only batches of more than m ÷ F messages, where m is the number of messages in the
//! buffer and F the most children of a node; if there is no such batch, the node is split. The largest batch has at
//! least m ÷ F messages, because a node has at most F children. So the rule matters only if m is the number before the
//! flush and several batches must leave. The source does not say so; here, m counts the held and the arriving messages
//! once, and the rule is applied to each batch of a flush. A first buffer loses one batch, and has fewer than F
//! children then, so it always passes.
//!
//! **Reserved slots.** 004 §2.4.1 mentions O(B^(1−ε)) slots for each child and batches of exactly as many messages.
//! Here, a share is ⌊slots ÷ F⌋ messages, at least one. A batch of a full share brings at most one more share to the
//! next buffer, so each child there passes on at most one batch. If a buffer has fewer slots than children, it can be
//! full although no child exceeds its share of one message; then it also passes on one message of any child.

use std::ops::Range;

use super::BeTree;
use crate::batch::Batch;
use crate::frame::WritePage;
use crate::front::LockedFront;
use crate::layout::{Kind, NodeLayout, header};
use crate::message::Message;
use crate::mistake::Mistake;
use crate::tree::FlushPolicy;

/// Nodes with fewer children are never split instead of flushed, so that each half has at least two children.
pub const SPLIT_CHILDREN: usize = 4;

/// The messages of a child: a range of the buffer, a range of the arriving messages, and the size of their union.
#[derive(Clone, Debug)]
pub struct Span {
    pub child: usize,
    pub held: Range<usize>,
    pub arrived: Range<usize>,
    pub len: usize,
}

impl BeTree {
    /// The most messages of a block that a flush passes on.
    pub fn batch_limit(&self) -> usize {
        match self.options.policy {
            FlushPolicy::Largest | FlushPolicy::Threshold => self.layout.most_slots(),
            FlushPolicy::Reserved => self.layout.first().share(),
        }
    }

    /// Merges the message into the buffer of `node`, if the policy allows it. Returns whether it did.
    pub fn put(&self, node: &mut WritePage<'_>, message: Message<'_>) -> bool {
        if self.options.policy == FlushPolicy::Reserved
            && !Mistake::ShareExceeded.is_on()
            && !self.has_free_share(node, message.key)
        {
            return false;
        }
        self.layout.node(node).buffer.put(node, message)
    }

    /// Merges the message into the front of `node`, if the policy allows it and there is room. Returns whether it did.
    pub fn put_apart(&self, node: &[u8], front: &mut LockedFront<'_>, message: Message<'_>) -> bool {
        let layout = self.layout.node(node);
        if self.options.policy == FlushPolicy::Reserved && front.content().find(message.key).is_none() {
            let (own, held) = self.held_with(node, message.key);
            let lower = own.checked_sub(1).map_or(0, |left| layout.inner.pivots.number(node, left));
            if held.len() + front.content().count(lower, layout.inner.upper(node, own)) >= layout.share() {
                return false;
            }
        }
        front.put(node, &layout.buffer, message)
    }

    /// Whether a message with this key can be merged into one in the buffer, or its child has a free reserved slot.
    fn has_free_share(&self, node: &[u8], key: u64) -> bool {
        let layout = self.layout.node(node);
        let buffer = &layout.buffer;
        self.held_with(node, key).1.len() < layout.share()
            || buffer.keys.find(node, header::messages(node), key).is_ok()
    }

    /// The child for `key`, and the messages in the buffer for this child.
    fn held_with(&self, node: &[u8], key: u64) -> (usize, Range<usize>) {
        let NodeLayout { inner, buffer, .. } = self.layout.node(node);
        let (count, own) = (header::messages(node), inner.child_for(node, key));
        let lower =
            own.checked_sub(1).map_or(0, |left| buffer.keys.lower_bound(node, count, inner.pivots.number(node, left)));
        let upper = inner.upper(node, own).map_or(count, |upper| buffer.keys.lower_bound(node, count, upper));
        (own, lower..upper)
    }

    /// Whether `batch` can be merged into the buffer without a flush.
    pub fn fits(&self, node: &[u8], batch: &Batch) -> bool {
        let layout = self.layout.node(node);
        if layout.buffer.merged_len(node, batch) > layout.buffer.slots {
            return false;
        }
        let mut is_within = true;
        if self.options.policy == FlushPolicy::Reserved {
            self.spans(node, batch, |span| is_within &= span.len <= layout.share());
        }
        is_within
    }

    /// Whether the node must be split before `arrived` is merged into its buffer, because the flush would pass on a
    /// block that does not exceed the threshold.
    pub fn splits_instead(&self, node: &[u8], arrived: &Batch) -> bool {
        if self.options.policy != FlushPolicy::Threshold || header::count(node) + 1 < SPLIT_CHILDREN {
            return false;
        }
        let layout = self.layout.node(node);
        let total = layout.buffer.merged_len(node, arrived);
        self.choose_blocks(node, arrived).iter().any(|span| !exceeds(span.len, total, layout.fan_out()))
    }

    /// The blocks that are removed when `arrived` is merged into the buffer, in descending order of keys.
    pub fn choose_blocks(&self, node: &[u8], arrived: &Batch) -> Vec<Span> {
        let (slots, most) = (self.layout.node(node).buffer.slots, self.batch_limit());
        if arrived.len() == 1 && self.options.policy != FlushPolicy::Reserved {
            return vec![self.largest_with_one(node, arrived.key(0))];
        }
        let (spans, total) = self.all_spans(node, arrived);
        match self.options.policy {
            FlushPolicy::Largest | FlushPolicy::Threshold => choose(spans, total - slots, most),
            FlushPolicy::Reserved => choose_over(spans, total.saturating_sub(slots), most),
        }
    }

    /// The messages of all children, and their number.
    fn all_spans(&self, node: &[u8], arrived: &Batch) -> (Vec<Span>, usize) {
        let (mut total, mut spans) = (0, Vec::new());
        self.spans(node, arrived, |span| {
            total += span.len;
            spans.push(span);
        });
        (spans, total)
    }

    /// The largest blocks, until at most `slots` messages stay or no block is left, in descending order of keys; and the
    /// number of messages that stay.
    pub fn largest_until(&self, node: &[u8], arrived: &Batch, slots: usize) -> (Vec<Span>, usize) {
        let ((spans, total), most) = (self.all_spans(node, arrived), self.batch_limit());
        let chosen = take_largest(spans, most, |_, taken| taken + slots < total);
        let taken: usize = chosen.iter().map(|span| span.len.min(most)).sum();
        (chosen, total - taken)
    }

    /// The largest block of a full buffer and one message with another key. This is the most frequent case, so the list
    /// of all blocks is not made.
    fn largest_with_one(&self, node: &[u8], key: u64) -> Span {
        let NodeLayout { inner, buffer, .. } = self.layout.node(node);
        let count = header::messages(node);
        debug_assert!(count == buffer.slots && buffer.keys.find(node, count, key).is_err());
        let keys = buffer.keys.numbers(node, count);
        let (own, Range { start: lower, end: upper }) = self.held_with(node, key);
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
        let NodeLayout { inner, buffer, .. } = self.layout.node(node);
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
fn choose(spans: Vec<Span>, needed: usize, most: usize) -> Vec<Span> {
    debug_assert!(needed >= 1 && needed <= most, "a buffer that overflows, at most twice its size");
    take_largest(spans, most, |_, taken| taken < needed)
}

/// The spans from the largest on, as long as `is_chosen` holds for the length of the next one and the number of messages
/// that are taken before it. At most `most` of each are taken. They are returned in descending order of keys.
fn take_largest(mut spans: Vec<Span>, most: usize, is_chosen: impl Fn(usize, usize) -> bool) -> Vec<Span> {
    spans.sort_unstable_by_key(|span| std::cmp::Reverse(span.len));
    let mut taken = 0;
    let chosen = spans.iter().take_while(|span| {
        let is_next = is_chosen(span.len, taken);
        taken += span.len.min(most);
        is_next
    });
    let count = chosen.count();
    spans.truncate(count);
    spans.sort_unstable_by_key(|span| std::cmp::Reverse(span.child));
    spans
}

/// Whether a block of `len` of `total` messages exceeds the threshold of 004 §3 for nodes of up to `fan_out` children.
fn exceeds(len: usize, total: usize, fan_out: usize) -> bool {
    len * fan_out > total
}

/// All spans with more than `share` messages, of which `share` are removed, and further ones, the largest first, until
/// at least `needed` messages are removed. They are returned in descending order of keys.
fn choose_over(spans: Vec<Span>, needed: usize, share: usize) -> Vec<Span> {
    debug_assert!(spans.iter().all(|span| span.len <= 2 * share), "a flush at most doubles a share");
    take_largest(spans, share, |len, taken| len > share || taken < needed)
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

    #[test]
    fn only_batches_above_the_average_of_a_full_node_exceed_the_threshold() {
        assert!(!exceeds(2, 20, 10) && exceeds(3, 20, 10), "the source says: larger than the threshold");
        assert!(exceeds(1, 5, 10), "with fewer messages than children, each batch is large enough");
        for total in 1..40_usize {
            for children in 1..10 {
                assert!(exceeds(total.div_ceil(children), total, 10), "the largest batch of a node that is not full");
            }
        }
    }

    #[test]
    fn a_child_with_more_than_its_share_is_chosen() {
        let over = |lens: &[usize], needed| -> Vec<usize> {
            choose_over(spans(lens), needed, 3).iter().map(|span| span.child).collect()
        };
        assert_eq!(over(&[3, 4, 2, 6], 0), [3, 1]);
        assert_eq!(over(&[3, 3, 3], 0), [0; 0]);
        assert_eq!(over(&[1, 3, 1], 1), [1], "a full buffer without a full share");
    }
}
