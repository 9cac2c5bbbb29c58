//! The nodes of the s-tree. Each node owns a *d-tree*: the data that waits in the node, as a sorted sequence of slices
//! of runs (001 §3.1).
//!
//! ```text
//!   root     height 2   [ run 9              ]      packed memtables, newest first; they may overlap
//!                       [ run 8    ░░░░░░░░░░]      ░ flushed already: the slice begins at the low-water key
//!   inner    height 1   [ run 6 ][ run 7     ]      disjoint, in key order
//!   leaf     height 0   [ run 1 ][ run 2     ]
//! ```
//!
//! The s-keys of a node are the lower bounds of its children's ranges, from the second child on. The *low-water key* of a
//! node is the lower bound of its first slice (in the root, of each slice): a flush only clips the source, and the data that
//! went down stays in its run until the run is merged (001 §5.1, "Lazy removal"). A lookup asks the bounds of a slice before its filter, so it never sees what was flushed already.
//!
//! Nodes are immutable. A change clones the path from the root to the changed node, and swaps the root.
//!
//! Invariants ([`Node::problem`]; 001 §3.1.1): The children partition the node's range in order, and each child is one
//! level below the node. The slices of a node are inside its range, so that all keys of a child
//! lie between the s-keys on its two sides. Except in the root, they are disjoint and in key order. A leaf has no children, and every
//! other node has some. On the path to a key, newer messages of the key are in higher nodes, and in the root in slices
//! that come earlier.

use std::collections::HashSet;
use std::sync::Arc;

use crate::base::sync::OnceLock;
use crate::base::{Error, KeyRange, OwnerId, RangeTombstone, Result, SeededBug};
use crate::index::runs::{Part, Sequence};
use crate::index::stored::Stored;
use crate::run::RunSlice;
use crate::space::DataFile;

/// A node of the s-tree.
pub struct Node {
    /// The key range of the node.
    pub range: Arc<KeyRange>,
    /// The number of levels below the node: 0 for a leaf.
    pub height: u32,
    /// Whether the node is the root, whose slices may overlap.
    pub is_root: bool,
    /// The d-tree of the node. In the root: the packed memtables, newest first.
    pub parts: Sequence,
    /// The children in key order; empty in a leaf.
    pub children: Vec<Arc<Node>>,
    /// The error that made both copies of the node unreadable. Such a node has only a range and a height. The field is
    /// set only in a store that is open for reading.
    pub lost: Option<Error>,
    stored: Place,
}

/// The address of an inner node's block, if it is on disk. Dropping it frees the pages of the block.
#[derive(Default)]
struct Place(OnceLock<(Stored, Arc<DataFile>)>);

impl Drop for Place {
    fn drop(&mut self) {
        if let Some((stored, data)) = self.0.take() {
            stored.copies.free(&data);
        }
    }
}

impl Node {
    /// Makes a node without data that is not on disk.
    pub fn new(range: impl Into<Arc<KeyRange>>, height: u32) -> Node {
        let (parts, children) = (Sequence::default(), Vec::new());
        let stored = Place::default();
        Node { range: range.into(), height, is_root: false, parts, children, lost: None, stored }
    }

    /// The root of an empty tree: it has one leaf, which holds all keys.
    pub fn empty_root() -> Node {
        let leaf = Node::new(KeyRange::all(), 0);
        Node { is_root: true, children: vec![Arc::new(leaf)], ..Node::new(KeyRange::all(), 1) }
    }

    /// Makes a node that represents an unreadable node.
    pub fn lost(range: impl Into<Arc<KeyRange>>, height: u32, error: Error) -> Node {
        Node { lost: Some(error), ..Node::new(range, height) }
    }

    /// Makes a copy of the node that can be changed. The copy is a new node, which is not on disk.
    pub fn edit(&self) -> Node {
        assert!(self.lost.is_none(), "a lost node is never changed");
        Node {
            range: self.range.clone(),
            height: self.height,
            is_root: self.is_root,
            parts: self.parts.clone(),
            children: self.children.clone(),
            lost: None,
            stored: Place::default(),
        }
    }

    /// Whether the node has no children.
    pub fn is_leaf(&self) -> bool {
        self.height == 0
    }

    /// Whether the tree below and including this node holds nothing.
    pub fn holds_nothing(&self) -> bool {
        self.parts.is_empty() && self.children.iter().all(|child| child.holds_nothing())
    }

    /// Estimated bytes of the node's d-tree.
    pub fn bytes(&self) -> u64 {
        self.parts.bytes()
    }

    /// The child with the most bytes; `None` in a leaf.
    pub fn largest_child(&self) -> Option<&Arc<Node>> {
        self.children.iter().max_by_key(|child| child.bytes())
    }

    /// The index of the child whose range contains `key`. A key that equals an s-key belongs to the child on the right.
    #[inline]
    pub fn child_for(&self, key: &[u8]) -> usize {
        debug_assert!(!self.is_leaf(), "a leaf has no children");
        let is_left_of = |child: &Arc<Node>| {
            let from = child.range.from.as_slice();
            from <= key && !(from == key && SeededBug::EqualKeyGoesLeft.is_on())
        };
        self.children.partition_point(is_left_of).saturating_sub(1)
    }

    /// The slices that overlap `range`, newest first.
    pub fn parts_in<'n>(&'n self, range: &'n KeyRange) -> impl Iterator<Item = &'n Part> + Clone {
        // Only the slices of the root are not sorted.
        let some = if self.is_root { &self.parts[..] } else { self.parts.within(range) };
        some.iter().filter(move |part| part.slice.range().overlaps(range))
    }

    /// The slice that may hold `key`, among those from the index `next` on; it is returned with its index.
    #[inline]
    pub fn part_for(&self, key: &[u8], next: usize) -> Option<(usize, &Part)> {
        if self.is_root {
            let found = self.parts.iter().enumerate().skip(next).find(|(_, part)| part.slice.contains(key));
            return found;
        }
        if next > 0 { None } else { self.parts.part_for(key).map(|part| (0, part)) }
    }

    /// The children whose ranges overlap `range`.
    pub fn children_in(&self, range: &KeyRange) -> &[Arc<Node>] {
        let first = self.children.partition_point(|child| !child.range.to.is_empty() && child.range.to <= range.from);
        let end = self.children.partition_point(|child| range.is_above(&child.range.from));
        &self.children[first.min(end)..end]
    }

    /// Removes the slices of the runs `runs` in `range`.
    pub fn remove(&mut self, range: &KeyRange, runs: &[OwnerId]) -> Result<()> {
        let runs: HashSet<&OwnerId> = runs.iter().collect();
        let is_taken = |part: &Part| runs.contains(&part.slice.run().meta().id) || SeededBug::ArrivalsTakenToo.is_on();
        if !self.is_root {
            return self.parts.remove(range);
        }
        let mut left = Vec::with_capacity(self.parts.len());
        for part in self.parts.iter() {
            if !part.slice.range().overlaps(range) || !is_taken(part) {
                left.push(part.clone());
                continue;
            }
            let mut own = Sequence::from(vec![part.clone()]);
            own.remove(range)?;
            left.extend(own.iter().cloned());
        }
        self.parts = left.into();
        Ok(())
    }

    /// Adds new slices to the root, before the slices that are older.
    pub fn arrive(&mut self, new: impl IntoIterator<Item = Part>) {
        assert!(self.is_root, "memtables arrive in the root");
        let older = self.parts.iter().cloned();
        self.parts = new.into_iter().chain(older).collect::<Vec<_>>().into();
    }

    /// The node's address on disk, if it was written. A leaf has none, because it is written in the block of its parent.
    pub fn stored(&self) -> Option<Stored> {
        self.stored.0.get().map(|(stored, _)| *stored)
    }

    /// Records the address to which the node was written, or from which it was read. After this call, dropping the node
    /// frees its pages.
    pub fn set_stored(&self, stored: Stored, data: &Arc<DataFile>) {
        assert!(self.lost.is_none(), "a lost node has no block");
        assert!(self.stored.0.set((stored, data.clone())).is_ok(), "a node is written once");
    }

    /// The first invariant that the node breaks, if any.
    pub fn problem(&self) -> Option<&'static str> {
        if self.lost.is_some() {
            return None;
        }
        if self.is_leaf() != self.children.is_empty() {
            return Some("a node must have children exactly if it is not a leaf");
        }
        let mut from = &self.range.from;
        for (at, child) in self.children.iter().enumerate() {
            let is_last = at + 1 == self.children.len();
            if &child.range.from != from || child.range.is_empty() || child.range.to.is_empty() && !is_last {
                return Some("the children must partition the node's range");
            }
            if child.height + 1 != self.height || child.is_root {
                return Some("a child must be one level below its parent");
            }
            from = &child.range.to;
        }
        if !self.is_leaf() && from != &self.range.to {
            return Some("the children must partition the node's range");
        }
        if self.parts.iter().any(|part| !self.range.covers(part.slice.range())) {
            return Some("a slice must be clipped to its node's range");
        }
        (!self.is_root && !self.parts.is_sorted()).then_some("the slices of a node must be disjoint and in key order")
    }

    /// Asserts that the node's invariants hold.
    pub fn assert_valid(&self) {
        assert_eq!(self.problem(), None, "invariant of a node");
    }

    /// Visits the node and everything below it, parents first.
    pub fn walk<'n>(self: &'n Arc<Node>, visit: &mut dyn FnMut(&'n Arc<Node>)) {
        visit(self);
        self.children.iter().for_each(|child| child.walk(visit));
    }

    /// Visits the leaves in key order. Each is passed with its path from the root, the leaf being the last node.
    pub fn walk_paths<'n>(&'n self, path: &mut Vec<&'n Node>, visit: &mut dyn FnMut(&[&'n Node])) {
        path.push(self);
        if self.children.is_empty() {
            visit(path);
        }
        self.children.iter().for_each(|child| child.walk_paths(path, visit));
        path.pop();
    }

    /// The path from this node to the node of height `to` that contains `key`.
    pub fn path_to<'n>(self: &'n Arc<Node>, key: &[u8], to: u32) -> Vec<&'n Arc<Node>> {
        let mut path = vec![self];
        let mut node = self;
        while node.height > to && !node.children.is_empty() {
            node = &node.children[node.child_for(key)];
            path.push(node);
        }
        path
    }

    /// Appends the range tombstones that may cover keys of `range`.
    pub fn tombstones(&self, range: &KeyRange, out: &mut Vec<RangeTombstone>) -> Result<()> {
        if let Some(error) = &self.lost {
            return Err(error.clone());
        }
        for part in self.parts_in(range) {
            // Skip runs without tombstones: most runs have none, and every scan calls this function.
            if part.slice.run().meta().range_tombstones > 0 {
                out.extend(part.slice.tombstones(range)?);
            }
        }
        self.children_in(range).iter().try_for_each(|child| child.tombstones(range, out))
    }
}

/// The identity of the run of a slice.
pub fn run_of(slice: &RunSlice) -> OwnerId {
    slice.run().meta().id
}
