//! How many fields the pages of a tree hold, computed once from the page size B, the size of a value, and ε.
//!
//! ```text
//!   every page      │ level │ kind │ class │ wanted │ count u32 │ messages u32 │           HEADER bytes
//!   leaf            │ header │ keys │ values │                            s = (B − header) ÷ (8 + value) records
//!   unbuffered node │ header │ pivots │ children │                       of a B+-tree, and the root of a Bε-tree
//!   buffered node   │ header │ pivots │ children │ keys │ stamps │ ops │ places │ values │
//! ```
//!
//! A buffered node has a base of one message and three pivots with their children, so that it works for every ε
//! (000 §5.2.5). Of the other R bytes, R^ε are for further pivots and the rest for further messages. The number of
//! pivots is odd, so that a node that was split has room for one new pivot for each child that a flush can address.
//!
//! Messages are sorted, but their values stay in their places, so that a message that arrives moves 21 bytes of each
//! later message and not its value. In the source the values move, too.
//!
//! Invariant, checked at creation: a buffer has at most as many messages as a leaf has records (000 §5.2.5).

use crate::column::Column;
use crate::error::{Error, Result};

/// Bytes of the header of a page.
pub const HEADER: usize = 16;
/// Bytes of a key, of a timestamp, and of the address of a child.
const WORD: usize = 8;
/// Bytes of the place of a value.
const PLACE: usize = 4;
/// The fewest pivots of a buffered node.
const BASE_PIVOTS: usize = 3;

/// The values of ε of nodes that choose their own.
const EPSILONS: [f64; 10] = [0.0, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.99, 1.0];

/// The sizes that a tree is created with.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Sizes {
    /// Bytes of a page (and of a node).
    pub page: usize,
    /// Bytes of a value. Keys have 8 bytes.
    pub value: usize,
    /// The share of pivots in a buffered node, from 0 to 1.
    pub epsilon: f64,
}

/// The columns of a leaf.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LeafLayout {
    /// The most records.
    pub slots: usize,
    /// The keys, ascending.
    pub keys: Column,
    /// The values.
    pub values: Column,
}

/// The pivots and children of an inner node. The child `i` holds the keys from the pivot `i − 1` to below the pivot
/// `i`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InnerLayout {
    /// The most pivots; odd.
    pub pivots_max: usize,
    /// The pivots, ascending.
    pub pivots: Column,
    /// The addresses of the children, one more than pivots.
    pub children: Column,
}

/// The buffer of an inner node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BufferLayout {
    /// The most messages.
    pub slots: usize,
    /// The keys of the messages, ascending.
    pub keys: Column,
    /// The timestamps.
    pub stamps: Column,
    /// The operations, one byte each.
    pub ops: Column,
    /// The places of the values, four bytes each: a permutation of all slots. Places behind those of the messages are
    /// free.
    pub places: Column,
    /// The values and operands, each in its place.
    pub values: Column,
}

/// An inner node with a buffer. One value of ε divides the page between both parts.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct NodeLayout {
    /// The index of this layout, which is in the header of each node that has it.
    pub class: u8,
    /// The share of pivots, from 0 to 1.
    pub epsilon: f64,
    /// The pivots.
    pub inner: InnerLayout,
    /// The buffer.
    pub buffer: BufferLayout,
}

/// The layouts of all pages of a tree.
#[derive(Clone, Debug, PartialEq)]
pub struct Layout {
    /// The sizes.
    pub sizes: Sizes,
    /// Leaves.
    pub leaf: LeafLayout,
    /// Inner nodes without a buffer.
    pub plain: InnerLayout,
    /// Inner nodes with a buffer: one layout, or several in ascending order of ε.
    nodes: Vec<NodeLayout>,
    /// The layout of new nodes above existing ones.
    first: usize,
}

/// The greatest odd number that is at most `n`.
fn odd(n: usize) -> usize {
    if n.is_multiple_of(2) { n.saturating_sub(1) } else { n }
}

/// Bytes of a message with its place.
fn message_bytes(value: usize) -> usize {
    2 * WORD + 1 + PLACE + value
}

fn inner(pivots_max: usize) -> InnerLayout {
    let pivots = Column::new(HEADER, WORD);
    InnerLayout { pivots_max, pivots, children: Column::new(pivots.end(pivots_max), WORD) }
}

impl Layout {
    /// Computes the layouts for nodes with one value of ε.
    ///
    /// # Errors
    /// [`Error::Layout`] if a page is too small for the value, or too large, or if ε is not from 0 to 1.
    pub fn new(sizes: Sizes) -> Result<Layout> {
        Layout::with(sizes, &[])
    }

    /// Computes the layouts for nodes that may have other values of ε than `sizes`.
    ///
    /// # Errors
    /// As [`Layout::new`].
    pub fn dynamic(sizes: Sizes) -> Result<Layout> {
        Layout::with(sizes, &EPSILONS)
    }

    fn with(sizes: Sizes, others: &[f64]) -> Result<Layout> {
        let Sizes { page, value, epsilon } = sizes;
        let message = message_bytes(value);
        let base = HEADER + message + BASE_PIVOTS * 2 * WORD + WORD;
        if !(0.0..=1.0).contains(&epsilon) {
            return Err(Error::Layout(format!("epsilon is {epsilon}, but must be from 0 to 1")));
        }
        if value == 0 || page > 4 << 20 || page < base.max(HEADER + 2 * (WORD + value)) {
            let text =
                format!("values of {value} bytes need pages of at least {base} bytes and at most 4 MiB, not {page}");
            return Err(Error::Layout(text));
        }
        let keys = Column::new(HEADER, WORD);
        let slots = (page - HEADER) / (WORD + value);
        let leaf = LeafLayout { slots, keys, values: Column::new(keys.end(slots), value) };

        let plain = inner(odd((page - HEADER - WORD) / (2 * WORD)));
        let mut epsilons: Vec<f64> = others.iter().copied().filter(|&other| other != epsilon).collect();
        epsilons.push(epsilon);
        epsilons.sort_by(f64::total_cmp);
        let mut nodes: Vec<NodeLayout> = Vec::new();
        for other in epsilons {
            let node = NodeLayout::new(Sizes { epsilon: other, ..sizes }, page - base);
            // Small pages have the same layout for several values.
            let is_same = nodes.last().is_some_and(|last| last.inner.pivots_max == node.inner.pivots_max);
            if !is_same && node.buffer.slots <= leaf.slots {
                nodes.push(NodeLayout { class: nodes.len() as u8, ..node });
            }
        }
        let wanted = NodeLayout::new(sizes, page - base);
        let Some(first) = nodes.iter().position(|node| node.inner == wanted.inner) else {
            let (slots, records) = (wanted.buffer.slots, leaf.slots);
            return Err(Error::Layout(format!(
                "a buffer would have {slots} messages, but a leaf only {records} records"
            )));
        };
        let layout = Layout { sizes, leaf, plain, nodes, first };
        layout.assert_fits();
        Ok(layout)
    }

    /// The layout of a node with a buffer.
    #[inline]
    pub fn node(&self, page: &[u8]) -> &NodeLayout {
        debug_assert_eq!(header::kind(page), Kind::Buffered);
        &self.nodes[header::class(page)]
    }

    /// All layouts of nodes with a buffer, in ascending order of ε.
    pub fn nodes(&self) -> &[NodeLayout] {
        &self.nodes
    }

    /// The layout of new nodes above existing ones: that of the ε of [`Sizes`].
    #[inline]
    pub fn first(&self) -> &NodeLayout {
        &self.nodes[self.first]
    }

    /// The most messages that any buffer has.
    #[inline]
    pub fn most_slots(&self) -> usize {
        // With less room for pivots there is more for messages.
        self.nodes[0].buffer.slots
    }

    /// The pivots and children of an inner node of this page's kind.
    #[inline]
    pub fn inner_of(&self, page: &[u8]) -> &InnerLayout {
        match header::kind(page) {
            Kind::Plain => &self.plain,
            Kind::Buffered => &self.node(page).inner,
            Kind::Leaf => panic!("a leaf has no children"),
        }
    }

    /// No column ends behind its page, and every rule about numbers of fields holds.
    fn assert_fits(&self) {
        let page = self.sizes.page;
        assert!(self.leaf.values.end(self.leaf.slots) <= page, "records fit");
        assert!(self.plain.children.end(self.plain.pivots_max + 1) <= page, "pivots of a plain node fit");
        assert!(self.plain.pivots_max % 2 == 1, "odd numbers of pivots");
        for NodeLayout { inner, buffer, .. } in &self.nodes {
            assert!(buffer.values.end(buffer.slots) <= page, "messages fit");
            assert!(inner.pivots_max >= BASE_PIVOTS && buffer.slots >= 1, "the base of a node");
            assert!(inner.pivots_max % 2 == 1, "odd numbers of pivots");
            assert!(self.plain.pivots_max >= inner.pivots_max, "the unbuffered root has the greater fan-out");
            assert!(buffer.slots <= self.most_slots(), "fewer pivots leave room for more messages");
        }
        assert!(self.most_slots() <= self.leaf.slots, "a leaf has room for a whole buffer");
        assert!(self.leaf.slots >= 2, "a leaf can be split");
    }
}

impl BufferLayout {
    /// A buffer that starts at byte `at`.
    pub(crate) fn new(at: usize, slots: usize, value: usize) -> BufferLayout {
        let keys = Column::new(at, WORD);
        let stamps = Column::new(keys.end(slots), WORD);
        let ops = Column::new(stamps.end(slots), 1);
        let places = Column::new(ops.end(slots), PLACE);
        let values = Column::new(places.end(slots), value);
        BufferLayout { slots, keys, stamps, ops, places, values }
    }

    /// Bytes of a value.
    pub(crate) fn value_bytes(&self) -> usize {
        self.values.bytes(0..1).len()
    }

    /// The byte behind the buffer.
    pub(crate) fn end(&self) -> usize {
        self.values.end(self.slots)
    }
}

impl NodeLayout {
    /// The layout for the ε of `sizes`. `rest` bytes are divided; the base of a node is not in them.
    fn new(sizes: Sizes, rest: usize) -> NodeLayout {
        let Sizes { value, epsilon, .. } = sizes;
        let message = message_bytes(value);
        let share = if rest == 0 { 0.0 } else { (rest as f64).powf(epsilon).min(rest as f64) };
        let pivots_max = odd(BASE_PIVOTS + (share / (2 * WORD) as f64) as usize);
        let inner = inner(pivots_max);
        let slots = 1 + (rest - (pivots_max - BASE_PIVOTS) * 2 * WORD) / message;
        let buffer = BufferLayout::new(inner.children.end(pivots_max + 1), slots, value);
        NodeLayout { class: 0, epsilon, inner, buffer }
    }

    /// The most children of a node.
    pub fn fan_out(&self) -> usize {
        self.inner.pivots_max + 1
    }

    /// The slots of the buffer that are reserved for each child, with
    /// [`FlushPolicy::Reserved`](crate::FlushPolicy).
    pub fn share(&self) -> usize {
        (self.buffer.slots / self.fan_out()).max(1)
    }
}

/// What a page is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Kind {
    /// Records; also the content of a page that was never written.
    Leaf = 0,
    /// Pivots only.
    Plain = 1,
    /// Pivots and a buffer.
    Buffered = 2,
}

/// The fields of the header that all pages have.
pub mod header {
    use super::Kind;

    /// The height of the page above the leaves.
    #[inline]
    pub fn level(page: &[u8]) -> u8 {
        page[0]
    }

    /// What the page is.
    #[inline]
    pub fn kind(page: &[u8]) -> Kind {
        match page[1] {
            0 => Kind::Leaf,
            1 => Kind::Plain,
            2 => Kind::Buffered,
            other => panic!("no page has the kind {other}"),
        }
    }

    /// Sets the level and the kind.
    pub fn set_kind(page: &mut [u8], level: u8, kind: Kind) {
        assert_eq!(level == 0, kind == Kind::Leaf, "leaves are at level 0");
        (page[0], page[1]) = (level, kind as u8);
    }

    /// The index of the layout of a buffered node.
    #[inline]
    pub fn class(page: &[u8]) -> usize {
        usize::from(page[2])
    }

    /// Sets the index of the layout.
    pub fn set_class(page: &mut [u8], class: u8) {
        page[2] = class;
    }

    /// The layout that a buffered node wants.
    #[inline]
    pub fn wanted(page: &[u8]) -> usize {
        usize::from(page[3])
    }

    /// Sets the layout that a buffered node wants.
    pub fn set_wanted(page: &mut [u8], class: usize) {
        page[3] = u8::try_from(class).expect("few layouts");
    }

    /// The number of records of a leaf, or of pivots of another node.
    #[inline]
    pub fn count(page: &[u8]) -> usize {
        u32::from_le_bytes(page[4..8].try_into().expect("four bytes")) as usize
    }

    /// Sets the number of records or pivots.
    #[inline]
    pub fn set_count(page: &mut [u8], count: usize) {
        let count = u32::try_from(count).expect("a page of at most 4 MiB");
        page[4..8].copy_from_slice(&count.to_le_bytes());
    }

    /// The number of messages in the buffer.
    #[inline]
    pub fn messages(page: &[u8]) -> usize {
        u32::from_le_bytes(page[8..12].try_into().expect("four bytes")) as usize
    }

    /// Sets the number of messages.
    #[inline]
    pub fn set_messages(page: &mut [u8], count: usize) {
        let count = u32::try_from(count).expect("a page of at most 4 MiB");
        page[8..12].copy_from_slice(&count.to_le_bytes());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn layout(page: usize, value: usize, epsilon: f64) -> Layout {
        Layout::new(Sizes { page, value, epsilon }).expect("a layout")
    }

    #[test]
    fn the_sources_setting_has_the_expected_slots() {
        let layout = layout(16 << 10, 100, 0.8);
        assert_eq!(layout.leaf.slots, 151);
        let NodeLayout { inner, buffer, .. } = *layout.first();
        assert_eq!(inner.pivots_max, 147);
        assert!((110..120).contains(&buffer.slots), "{}", buffer.slots);
        assert_eq!(layout.plain.pivots_max, 1021);
    }

    #[test]
    fn epsilon_0_and_1_are_the_extremes() {
        let (low, high) = (layout(16 << 10, 100, 0.0), layout(16 << 10, 100, 1.0));
        assert_eq!((low.first().inner.pivots_max, high.first().buffer.slots), (3, 1));
        assert!(low.first().buffer.slots > 130 && high.first().inner.pivots_max > 1_000);
        let mut fan_out = 0;
        for percent in 0..=100 {
            let next = layout(16 << 10, 100, f64::from(percent) / 100.0).first().inner.pivots_max;
            assert!(next >= fan_out, "pivots grow with epsilon");
            fan_out = next;
        }
    }

    #[test]
    fn nodes_with_their_own_epsilon_have_several_layouts() {
        for (page, value, epsilon) in [(16 << 10, 100, 0.8), (16 << 10, 100, 0.75), (256, 12, 0.5), (128, 8, 0.0)] {
            let sizes = Sizes { page, value, epsilon };
            let (fixed, dynamic) = (Layout::new(sizes).unwrap(), Layout::dynamic(sizes).unwrap());
            assert_eq!((dynamic.first().inner, dynamic.first().buffer), (fixed.first().inner, fixed.first().buffer));
            assert!(dynamic.nodes().is_sorted_by(|a, b| a.inner.pivots_max < b.inner.pivots_max));
            assert!(dynamic.nodes().iter().enumerate().all(|(i, node)| usize::from(node.class) == i));
            assert!(dynamic.nodes().len() >= if page > 128 { 4 } else { 1 }, "{page}: {:?}", dynamic.nodes().len());
        }
    }

    #[test]
    fn impossible_sizes_are_refused() {
        for (page, value, epsilon) in
            [(100, 100, 0.5), (8 << 20, 8, 0.5), (4096, 0, 0.5), (4096, 8, 1.5), (4096, 8, f64::NAN)]
        {
            let error = Layout::new(Sizes { page, value, epsilon }).expect_err("refused");
            assert!(matches!(error, Error::Layout(_)), "{error}");
        }
        for page in 120..1000 {
            let sizes = Sizes { page, value: 8, epsilon: 0.9 };
            // Both accept the same sizes, and neither panics.
            assert_eq!(Layout::new(sizes).is_ok(), Layout::dynamic(sizes).is_ok(), "{page}");
        }
    }
}
