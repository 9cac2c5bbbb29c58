//! Nodes of a [`BlobMap`](super::BlobMap), and changes of the nodes on a path.

use std::sync::Arc;

use super::bits::{self, Bits};
use super::layout::{Fanout, MAX_RANGE_BYTES, MAX_WORDS, PageRange, Totals, range_bytes};
use crate::base::sync::OnceLock;
use crate::base::{Error, SeededBug, seeded};
use crate::index::stored::Stored;
use crate::pool::Pool;
use crate::space::DataFile;

/// The first page after a range.
pub fn end_of((start, len): PageRange) -> u64 {
    start + len
}

/// The entries of a node.
#[derive(Clone)]
pub enum Entries {
    /// The entries of a leaf: ranges in ascending order that do not touch each other.
    Ranges(Vec<PageRange>),
    /// The entries of a leaf with many short ranges, as a bitmap.
    Bits(Bits),
    /// The entries of an inner node: children in ascending order of their pages. Each child is one level below the
    /// node.
    Children(Vec<Child>),
    /// Neither copy of the node could be read. Occurs only in a store that is open for reading.
    Lost(Error),
}

/// A child of an inner node, with the description that the parent has of the child.
#[derive(Clone)]
pub struct Child {
    /// The first page of the child's first range.
    pub first: u64,
    /// The sums over the ranges below the child.
    pub totals: Totals,
    /// The child node.
    pub node: Arc<Node>,
}

impl Child {
    /// Makes the parent's entry for a node. The node must be readable and not empty.
    pub fn of(node: Arc<Node>) -> Child {
        Child { first: node.first().expect("a child is not empty"), totals: node.totals, node }
    }

    /// Updates the entry after the child node has changed. The child node must not be empty.
    fn refresh(&mut self) {
        self.first = self.node.first().expect("a child is not empty");
        self.totals = self.node.totals;
    }
}

/// A node.
pub struct Node {
    /// The number of levels below the node: 0 for a leaf.
    pub height: u32,
    /// The entries of the node.
    pub entries: Entries,
    /// Sums over all ranges below the node.
    pub totals: Totals,
    /// In a leaf, the encoded size of the ranges, in bytes.
    pub range_bytes: usize,
    stored: OnceLock<(Stored, Arc<DataFile>)>,
    charge: Charge,
}

/// Bytes of a node without its entries, including the counters of its `Arc`.
const NODE_BYTES: usize = size_of::<Node>() + 2 * size_of::<usize>();

/// The memory of a node, which is charged to the pool's budget.
struct Charge {
    pool: Arc<Pool>,
    bytes: usize,
}

impl Charge {
    fn set(&mut self, bytes: usize) {
        if bytes > self.bytes {
            self.pool.hold(bytes - self.bytes);
        } else if bytes < self.bytes {
            self.pool.let_go(self.bytes - bytes);
        }
        self.bytes = bytes;
    }
}

impl Drop for Charge {
    fn drop(&mut self) {
        self.set(0);
    }
}

impl Node {
    fn new(height: u32, entries: Entries, totals: Totals, pool: Arc<Pool>) -> Node {
        let charge = Charge { pool, bytes: 0 };
        let mut node = Node { height, entries, totals, range_bytes: 0, stored: OnceLock::new(), charge };
        node.recount();
        node
    }

    /// Makes a leaf that is not on disk.
    pub fn leaf(ranges: Vec<PageRange>, pool: Arc<Pool>) -> Node {
        Node::of_leaf(Entries::Ranges(ranges), pool)
    }

    /// Makes a leaf with these entries that is not on disk.
    pub fn of_leaf(entries: Entries, pool: Arc<Pool>) -> Node {
        Node::new(0, entries, Totals::default(), pool)
    }

    /// Makes an inner node that is not on disk.
    pub fn inner(children: Vec<Child>, pool: Arc<Pool>) -> Node {
        let height = children[0].node.height + 1;
        Node::new(height, Entries::Children(children), Totals::default(), pool)
    }

    /// Makes a node that represents an unreadable node. Its sums are the sums that the parent has recorded for the
    /// unreadable node.
    pub fn lost(height: u32, totals: Totals, error: Error, pool: Arc<Pool>) -> Node {
        Node::new(height, Entries::Lost(error), totals, pool)
    }

    /// A copy of the node. The copy is not on disk and has capacity for another entry.
    fn copy(&self) -> Node {
        let entries = match &self.entries {
            Entries::Ranges(ranges) => Entries::Ranges(with_room(ranges)),
            Entries::Bits(bits) => Entries::Bits(bits.clone()),
            Entries::Children(children) => Entries::Children(with_room(children)),
            Entries::Lost(_) => unreachable!("a map with a lost node is never changed"),
        };
        let charge = Charge { pool: self.charge.pool.clone(), bytes: 0 };
        let stored = OnceLock::new();
        let Node { height, totals, range_bytes, .. } = *self;
        let mut copy = Node { height, entries, totals, range_bytes, stored, charge };
        copy.charge_memory();
        copy
    }

    /// The first page of the node's first range; `None` if the node is empty or lost.
    pub fn first(&self) -> Option<u64> {
        match &self.entries {
            Entries::Ranges(ranges) => ranges.first().map(|range| range.0),
            Entries::Bits(bits) => bits.ceiling(0).map(|range| range.0),
            Entries::Children(children) => children.first().map(|child| child.first),
            Entries::Lost(_) => None,
        }
    }

    fn first_range(&self) -> Option<PageRange> {
        match &self.entries {
            Entries::Ranges(ranges) => ranges.first().copied(),
            Entries::Bits(bits) => bits.ceiling(0),
            Entries::Children(children) => children.first().and_then(|child| child.node.first_range()),
            Entries::Lost(_) => None,
        }
    }

    /// The number of entries of the node itself.
    fn len(&self) -> usize {
        match &self.entries {
            Entries::Ranges(ranges) => ranges.len(),
            Entries::Bits(bits) => bits.ranges() as usize,
            Entries::Children(children) => children.len(),
            Entries::Lost(_) => 1,
        }
    }

    /// Whether the node has no entries.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The range with the greatest start ≤ `at`.
    pub fn floor(&self, at: u64) -> Option<PageRange> {
        match &self.entries {
            Entries::Ranges(ranges) => {
                let after = ranges.partition_point(|range| range.0 <= at);
                after.checked_sub(1).map(|i| ranges[i])
            }
            Entries::Bits(bits) => bits.floor(at),
            Entries::Children(children) => {
                let after = children.partition_point(|child| child.first <= at);
                after.checked_sub(1).and_then(|i| children[i].node.floor(at))
            }
            Entries::Lost(_) => None,
        }
    }

    /// The range with the smallest start ≥ `at`.
    pub fn ceiling(&self, at: u64) -> Option<PageRange> {
        match &self.entries {
            Entries::Ranges(ranges) => ranges.get(ranges.partition_point(|range| range.0 < at)).copied(),
            Entries::Bits(bits) => bits.ceiling(at),
            Entries::Children(children) => {
                let after = children.partition_point(|child| child.first < at);
                let inside = after.checked_sub(1).and_then(|i| children[i].node.ceiling(at));
                inside.or_else(|| children.get(after).and_then(|child| child.node.first_range()))
            }
            Entries::Lost(_) => None,
        }
    }

    /// The node's address on disk, if it was written.
    pub fn stored(&self) -> Option<Stored> {
        self.stored.get().map(|(stored, _)| *stored)
    }

    /// Records the address to which the node was written, or from which it was read. After this call the node must not
    /// be changed, and dropping it frees its pages.
    pub fn set_stored(&self, stored: Stored, data: &Arc<DataFile>) {
        let fresh = self.stored.set((stored, data.clone())).is_ok();
        assert!(fresh, "a node is written once");
    }

    /// Visits the node and everything below it, parents first.
    pub fn walk<'a>(&'a self, visit: &mut dyn FnMut(&'a Node)) {
        visit(self);
        if let Entries::Children(children) = &self.entries {
            children.iter().for_each(|child| child.node.walk(visit));
        }
    }

    /// Recomputes the node's sums and sizes from its entries. The cost is proportional to the number of entries.
    fn recount(&mut self) {
        match &self.entries {
            Entries::Ranges(ranges) => {
                let pages = ranges.iter().map(|range| range.1).sum();
                self.totals = Totals { ranges: ranges.len() as u64, pages };
                self.range_bytes = range_bytes(0, ranges.iter().copied());
            }
            Entries::Bits(bits) => self.totals = Totals { ranges: bits.ranges(), pages: bits.pages() },
            Entries::Children(children) => {
                let ranges = children.iter().map(|child| child.totals.ranges).sum();
                let pages = children.iter().map(|child| child.totals.pages).sum();
                self.totals = Totals { ranges, pages };
            }
            Entries::Lost(_) => {}
        }
        self.charge_memory();
    }

    /// Bytes of memory that the node uses.
    pub fn memory(&self) -> usize {
        let entries = match &self.entries {
            Entries::Ranges(ranges) => ranges.capacity() * size_of::<PageRange>(),
            Entries::Bits(bits) => bits.memory(),
            Entries::Children(children) => children.capacity() * size_of::<Child>(),
            Entries::Lost(_) => 0,
        };
        NODE_BYTES + entries
    }

    fn charge_memory(&mut self) {
        self.charge.set(self.memory());
    }

    /// Replaces the range that starts at `old`, if given, by `new`. Updates sums and sizes incrementally.
    fn splice(&mut self, old: Option<u64>, new: &[PageRange], fanout: Fanout) {
        if let Entries::Bits(bits) = &mut self.entries {
            let is_done = bits.splice(old, new, fanout.words);
            if is_done && bits.ranges() * 3 >= fanout.ranges as u64 {
                return self.recount();
            }
            // The leaf has few ranges, or the bitmap would be too long. A list may be split.
            self.entries = Entries::Ranges(bits.iter().collect());
            self.recount();
            if is_done {
                return;
            }
        }
        let Entries::Ranges(ranges) = &mut self.entries else { unreachable!("only leaves hold ranges") };
        let at = match old {
            Some(start) => ranges.binary_search_by_key(&start, |range| range.0).expect("the leaf holds the range"),
            None => ranges.partition_point(|range| range.0 < new[0].0),
        };
        let places = at..at + usize::from(old.is_some());
        let before = at.checked_sub(1).map_or(0, |i| end_of(ranges[i]));
        let next = ranges.get(places.end).copied();
        let gone = ranges.get(at).copied().filter(|_| old.is_some());
        let from = new.first().or(gone.as_ref()).map_or(before, |range| range.0);
        debug_assert!(at == 0 || from > before, "the range before it does not touch it");
        debug_assert!(new.iter().all(|range| next.is_none_or(|next| end_of(*range) < next.0)));
        // The encoded gap of the next range depends on the range before it.
        self.range_bytes -= range_bytes(before, gone.into_iter().chain(next));
        self.range_bytes += range_bytes(before, new.iter().copied().chain(next));
        self.totals.ranges = self.totals.ranges + new.len() as u64 - u64::from(gone.is_some());
        let pages: u64 = new.iter().map(|range| range.1).sum();
        self.totals.pages = self.totals.pages + pages - gone.map_or(0, |range| range.1);
        ranges.splice(places, new.iter().copied());
        self.charge_memory();
    }

    /// Whether the number of the node's entries and their encoded size are within the limits.
    fn fits(&self, fanout: Fanout) -> bool {
        match &self.entries {
            Entries::Ranges(ranges) => ranges.len() <= fanout.ranges && self.range_bytes <= MAX_RANGE_BYTES,
            Entries::Bits(bits) => bits.words().len() <= fanout.words,
            Entries::Children(children) => children.len() <= fanout.children,
            Entries::Lost(_) => true,
        }
    }

    /// Whether to merge the node with a neighbour, because it uses less than a third of each limit.
    fn is_sparse(&self, fanout: Fanout) -> bool {
        match &self.entries {
            Entries::Ranges(ranges) => ranges.len() * 3 < fanout.ranges && self.range_bytes * 3 < MAX_RANGE_BYTES,
            Entries::Children(children) => children.len() * 3 < fanout.children,
            Entries::Bits(_) | Entries::Lost(_) => false,
        }
    }

    /// Splits the node in halves until each piece fits. A leaf with too many ranges becomes a bitmap instead, if the
    /// bitmap is short enough. Returns the pieces after the first.
    fn split(&mut self, fanout: Fanout) -> Vec<Arc<Node>> {
        if self.fits(fanout) {
            return Vec::new();
        }
        if let Entries::Bits(bits) = &self.entries {
            self.entries = Entries::Ranges(bits.iter().collect());
        }
        if let Entries::Ranges(ranges) = &self.entries
            && let Some(bits) = Bits::of(seeded!(BitmapLosesRange: &ranges[1..], ranges), fanout.words)
        {
            self.entries = Entries::Bits(bits);
            self.recount();
            return Vec::new();
        }
        let pool = self.charge.pool.clone();
        let mut right = match &mut self.entries {
            Entries::Ranges(ranges) => Node::leaf(ranges.split_off(middle(ranges, fanout)), pool),
            Entries::Children(children) => Node::inner(children.split_off(children.len() / 2), pool),
            Entries::Bits(_) | Entries::Lost(_) => unreachable!("it fits"),
        };
        // Free the unused capacity of the left half. This half may stay unchanged for a long time, because pages are
        // allocated from the beginning of the file.
        match &mut self.entries {
            Entries::Ranges(ranges) => ranges.shrink_to_fit(),
            Entries::Children(children) => children.shrink_to_fit(),
            Entries::Bits(_) | Entries::Lost(_) => {}
        }
        self.recount();
        let mut pieces = self.split(fanout);
        let behind = right.split(fanout);
        pieces.push(Arc::new(right));
        pieces.extend(behind);
        pieces
    }

    /// Appends the entries of the node `right`, which is the next one in key order.
    fn append(&mut self, right: &Node) {
        match (&mut self.entries, &right.entries) {
            (Entries::Children(left), Entries::Children(right)) => left.extend_from_slice(right),
            (left, right) => {
                let ranges = left.ranges().chain(right.ranges()).collect();
                *left = Entries::Ranges(ranges);
            }
        }
        self.recount();
    }

    /// The first invariant that this node or a node below it breaks, if any.
    pub fn problem(&self) -> Option<&'static str> {
        match &self.entries {
            Entries::Lost(_) => None,
            _ if self.is_empty() => Some("a node is empty"),
            Entries::Ranges(ranges) => {
                let pages: u64 = ranges.iter().map(|range| range.1).sum();
                if ranges.windows(2).any(|pair| end_of(pair[0]) >= pair[1].0) || ranges.iter().any(|range| range.1 == 0)
                {
                    return Some("ranges are not in order, or touch");
                }
                if self.totals != (Totals { ranges: ranges.len() as u64, pages }) || self.height > 0 {
                    return Some("the sums of a leaf are wrong");
                }
                let bytes = range_bytes(0, ranges.iter().copied());
                (bytes != self.range_bytes || bytes > MAX_RANGE_BYTES).then_some("the size of a leaf is wrong")
            }
            Entries::Bits(bits) if bits.words().len() > MAX_WORDS => Some("a bitmap does not fit a page"),
            Entries::Bits(bits) if self.totals != (Totals { ranges: bits.ranges(), pages: bits.pages() }) => {
                Some("the sums of a leaf are wrong")
            }
            Entries::Bits(bits) => bits.problem(),
            Entries::Children(children) => {
                let differs = |child: &Child| {
                    let node = &child.node;
                    let first = node.first().unwrap_or(child.first);
                    node.height + 1 != self.height || (first, node.totals) != (child.first, child.totals)
                };
                if children.iter().any(differs) {
                    return Some("a parent's description of its child is wrong");
                }
                let sum = |of: fn(&Totals) -> u64| children.iter().map(|child| of(&child.totals)).sum::<u64>();
                if (sum(|totals| totals.ranges), sum(|totals| totals.pages)) != (self.totals.ranges, self.totals.pages)
                {
                    return Some("the sums of an inner node are wrong");
                }
                let crosses = |pair: &[Child]| {
                    let last = pair[0].node.floor(u64::MAX);
                    pair[0].first >= pair[1].first || last.is_some_and(|last| end_of(last) >= pair[1].first)
                };
                if children.windows(2).any(crosses) {
                    return Some("children are not in order, or touch");
                }
                children.iter().find_map(|child| child.node.problem())
            }
        }
    }
}

impl Entries {
    /// The ranges of a leaf.
    ///
    /// # Panics
    /// If the node is not a leaf.
    pub fn ranges(&self) -> Ranges<'_> {
        match self {
            Entries::Ranges(ranges) => Ranges::List(ranges.iter()),
            Entries::Bits(bits) => Ranges::Bits(bits.iter()),
            Entries::Children(_) | Entries::Lost(_) => unreachable!("only leaves hold ranges"),
        }
    }
}

/// The ranges of a leaf in order.
pub enum Ranges<'a> {
    /// Those of a list.
    List(std::slice::Iter<'a, PageRange>),
    /// Those of a bitmap.
    Bits(bits::Iter<'a>),
}

impl Iterator for Ranges<'_> {
    type Item = PageRange;

    fn next(&mut self) -> Option<PageRange> {
        match self {
            Ranges::List(ranges) => ranges.next().copied(),
            Ranges::Bits(ranges) => ranges.next(),
        }
    }
}

/// A copy with capacity for more entries.
fn with_room<T: Clone>(entries: &[T]) -> Vec<T> {
    let mut copy = Vec::with_capacity(entries.len() + entries.len() / 8 + 2);
    copy.extend_from_slice(entries);
    copy
}

/// Where to split a leaf: after the ranges that fill a bitmap, if these are more than half of the ranges.
fn middle(ranges: &[PageRange], fanout: Fanout) -> usize {
    let end = ranges[0].0 / bits::WORD * bits::WORD + fanout.words as u64 * bits::WORD;
    let fitting = ranges.partition_point(|range| end_of(*range) <= end);
    fitting.clamp(ranges.len() / 2, ranges.len() - 1)
}

/// Makes the node in `slot` changeable. If the node is on disk, or if something else can reach it, a copy replaces it.
fn own(slot: &mut Arc<Node>) -> &mut Node {
    if Arc::get_mut(slot).is_none_or(|node| node.stored.get().is_some()) {
        let copy = slot.copy();
        *slot = Arc::new(copy);
    }
    Arc::get_mut(slot).expect("the node has one owner")
}

/// Replaces the range that starts at `old`, if given, by `new`. The change happens in the leaf below `slot` whose range
/// includes `at`. After the change the node in `slot` may be empty. If the node has too many entries, it is split, and
/// the pieces after the first are returned.
pub fn change(slot: &mut Arc<Node>, at: u64, old: Option<u64>, new: &[PageRange], fanout: Fanout) -> Vec<Arc<Node>> {
    let node = own(slot);
    match &mut node.entries {
        Entries::Ranges(_) | Entries::Bits(_) => node.splice(old, new, fanout),
        Entries::Children(children) => {
            let i = children.partition_point(|child| child.first <= at).saturating_sub(1);
            let more = change(&mut children[i].node, at, old, new, fanout);
            let kept = seeded!(LargeValuesLostInSplit: 0, more.len());
            if children[i].node.is_empty() {
                children.remove(i);
            } else {
                children[i].refresh();
                children.splice(i + 1..i + 1, more.into_iter().take(kept).map(Child::of));
                if kept > 0 {
                    // The last piece may have few ranges.
                    combine(children, i + kept, fanout);
                }
                combine(children, i, fanout);
            }
            node.recount();
        }
        Entries::Lost(_) => unreachable!("a map with a lost node is never changed"),
    }
    node.split(fanout)
}

/// Merges the `i`-th child with a neighbour if the child is sparse.
fn combine(children: &mut Vec<Child>, i: usize, fanout: Fanout) {
    if children.len() < 2 || !children[i].node.is_sparse(fanout) {
        return;
    }
    let left = i.min(children.len() - 2);
    if !are_joinable(&children[left], &children[left + 1], fanout) {
        return;
    }
    let right = children.remove(left + 1);
    let node = own(&mut children[left].node);
    node.append(&right.node);
    let more = node.split(fanout);
    children[left].refresh();
    children.splice(left + 1..left + 1, more.into_iter().map(Child::of));
}

/// Whether a bitmap among two neighbours remains one when they are merged. Otherwise the split would make the same two
/// leaves again, at every change.
fn are_joinable(left: &Child, right: &Child, fanout: Fanout) -> bool {
    let has_bitmap = [left, right].iter().any(|child| matches!(child.node.entries, Entries::Bits(_)));
    let end = right.node.floor(u64::MAX).map_or(right.first, end_of);
    let words = (end - left.first / bits::WORD * bits::WORD).div_ceil(bits::WORD);
    !has_bitmap || words <= fanout.words as u64
}

impl Drop for Node {
    fn drop(&mut self) {
        if let Some((stored, data)) = self.stored.take()
            && !SeededBug::LargeValueMapLeaked.is_on()
        {
            stored.copies.free(&data);
        }
    }
}
