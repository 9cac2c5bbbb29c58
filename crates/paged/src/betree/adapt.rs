//! Dynamic ε: each node chooses the share of its pivots by its own reads and writes (000 §8.2).
//!
//! ```text
//!   lookups pass ──▶ reads   ┐
//!   flushes pass ──▶ passed  ├─ full buffer ──▶ wanted class ──┬─ wider     flush a little more, then move to the class
//!   on messages              ┘  (a rewrite)                    └─ narrower  move if the pivots fit,
//!                                                                           else split the node first
//! ```
//!
//! 1. A node counts the lookups that visit it and the messages that it passes on, in its frame.
//! 2. When its buffer is full, the counts since the last decision choose the class with the least cost. A class is one of
//!    the [`NodeLayout`]s, each with another ε. The wanted class is in the header, because it may take several rewrites.
//! 3. A wider class has fewer slots for messages, so a flush removes more of them first. A narrower class has fewer pivots,
//!    so a node with many children is split before it moves there, at one full buffer after the other.
//!
//! **Cost**, in transfers of pages, for a node with f children and m slots, if the nodes above the leaves are in memory:
//!
//! * A lookup reads a leaf. There is a node for every f − 1 pages below, which takes the memory of one of them. So
//!   1 + 1 ÷ (f − 1) pages are read.
//! * A flush passes on about 2m ÷ f + 1 uniform messages at once (002 ch. 5), and reads and writes a page for them. So a
//!   message costs 2f ÷ (2m + f) transfers.
//!
//! The first part wants many children and the second one few. Nodes with very few would not fit into memory, so the
//! option has a least number of children.
//!
//! Splits cannot be undone, because nodes are not merged (000 §5.2.1). A node that becomes wider gets room for more
//! children, but not those of its neighbours. Counts are lost when a page is evicted, so a node that is often evicted
//! keeps its class.
//!
//! Invariant: a node from which messages leave has a free pivot slot for each child that gets some. So half of a node that
//! is split during a flush moves to a narrower class only if the class has a free slot for each of its children. Any other
//! node keeps one free slot, which is enough for a flush of one message too many; for more it is split first.

use super::choose::{SPLIT_CHILDREN, Span};
use super::{BeTree, count};
use crate::batch::Batch;
use crate::frame::{ReadPage, WritePage};
use crate::layout::{Layout, NodeLayout, header};
use crate::mistake::Mistake;
use crate::tree::FanOut;

/// Another class must cost less than this share of the present one.
const GAIN: f64 = 0.9;
/// A class with at most this multiple of the least cost is as good. The nearest one is chosen.
const EQUAL: f64 = 1.05;
/// The share of its most children that a node has on average.
const FILL: f64 = 0.7;

/// What `reads` lookups and `passed` messages cost below a node of this layout, in transfers of pages.
fn cost(node: &NodeLayout, reads: f64, passed: f64) -> f64 {
    let (children, slots) = ((FILL * node.fan_out() as f64).max(2.0), node.buffer.slots as f64);
    reads * (1.0 + 1.0 / (children - 1.0)) + passed * 2.0 * children / (2.0 * slots + children)
}

/// The class that a node of `class` wants. It has room for at least `least` children, if any class has.
fn wanted(layout: &Layout, least: usize, class: usize, reads: u64, passed: u64) -> usize {
    let cost = |node: &NodeLayout| cost(node, reads as f64, passed as f64);
    let allowed = || layout.nodes().iter().filter(|node| node.fan_out() >= least);
    let Some(best) = allowed().map(cost).min_by(f64::total_cmp) else { return class };
    if best >= GAIN * cost(&layout.nodes()[class]) {
        return class;
    }
    let good = allowed().filter(|node| cost(node) <= EQUAL * best).map(|node| usize::from(node.class));
    good.min_by_key(|other| other.abs_diff(class)).unwrap_or(class)
}

impl BeTree {
    /// Counts a lookup in a node, if nodes choose their ε.
    #[inline]
    pub fn note_read(&self, node: &ReadPage<'_>) {
        if self.options.fan_out != FanOut::Fixed {
            node.note_read();
        }
    }

    /// Gives a node with a full buffer the class that its counts want, as far as this needs no flush and no split.
    /// Returns whether the node should be split to get nearer to this class.
    pub fn adapt(&self, node: &mut WritePage<'_>) -> bool {
        let FanOut::Dynamic { least } = self.options.fan_out else { return false };
        let (reads, passed) = node.accesses();
        // The accesses of about one buffer of messages.
        if reads + passed >= self.layout.most_slots() as u64 {
            node.forget_accesses();
            let wanted = wanted(&self.layout, least, header::class(node), reads, passed);
            header::set_wanted(node, wanted);
        }
        self.narrow(node, 1);
        header::wanted(node) < header::class(node) && header::count(node) + 1 >= SPLIT_CHILDREN
    }

    /// Moves a node to the class nearest to a narrower wanted one in which at least `free` of its pivot slots are free.
    fn narrow(&self, node: &mut WritePage<'_>, free: usize) {
        let (class, wanted) = (header::class(node), header::wanted(node));
        let free = if Mistake::NarrowedTooFar.is_on() { 0 } else { free };
        let fits = |next: &&NodeLayout| next.inner.pivots_max >= header::count(node) + free;
        if let Some(next) = self.layout.nodes()[wanted.min(class)..class].iter().find(fits) {
            self.move_to(node, next);
        }
    }

    /// Moves half of a node that was split to a narrower wanted class. Messages for any of its children may be waiting.
    pub fn narrow_half(&self, half: &mut WritePage<'_>) {
        self.narrow(half, header::count(half) + 1);
    }

    /// Gives a node another class, in which its pivots and messages have room.
    pub fn move_to(&self, node: &mut WritePage<'_>, class: &NodeLayout) {
        self.layout.move_to(node, class);
        node.forget_hints();
        count(&self.counts.moves, 1);
    }

    /// The next wider class, if the node wants one.
    pub fn wider(&self, node: &[u8]) -> Option<&NodeLayout> {
        let class = header::class(node);
        (header::wanted(node) > class).then(|| &self.layout.nodes()[class + 1])
    }

    /// The blocks that must leave for the rest to fit into `wider`, in descending order of keys. `None` if the largest
    /// blocks are not enough, or if the node would have too few free pivot slots for them.
    pub fn blocks_for(&self, node: &[u8], arrived: &Batch, wider: &NodeLayout) -> Option<Vec<Span>> {
        let (chosen, stay) = self.largest_until(node, arrived, wider.buffer.slots);
        let fits = stay <= wider.buffer.slots;
        (fits && header::count(node) + chosen.len() <= wider.inner.pivots_max).then_some(chosen)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::layout::Sizes;

    #[test]
    fn readers_want_wide_nodes_and_writers_narrow_ones() {
        let layout = Layout::dynamic(Sizes { page: 16 << 10, value: 100, epsilon: 0.8 }).unwrap();
        let first = usize::from(layout.first().class);
        let fan_out =
            |least, class, reads, passed| layout.nodes()[wanted(&layout, least, class, reads, passed)].fan_out();
        assert_eq!((fan_out(0, first, 0, 1_000), fan_out(8, first, 0, 1_000)), (4, 10));
        assert_eq!(fan_out(8, first, 1_000, 0), 148, "a wider node would gain little");
        assert_eq!(fan_out(0, 0, 1_000, 0), 58, "the narrowest node that is nearly as good as the widest");
        let mixed: Vec<usize> = (0..=10).map(|tenth| fan_out(8, first, tenth * 100, 1_000 - tenth * 100)).collect();
        assert!(mixed.is_sorted() && mixed[5] == 24, "{mixed:?}");
        assert_eq!(fan_out(5_000, first, 0, 1_000), 148, "no layout has that many children");
    }
}
