//! [`BlobMap`]: the pages of an index's large values, as a persistent B+-tree of page ranges.
//!
//! ```text
//!   root record ─▶ inner node          for each child: its first page, its sums, its address on disk
//!                  ╱        ╲
//!          leaf 40+3 300+2   leaf 9000+16 9020+1 …    start + length of each range, in order
//! ```
//!
//! Versions of the map share nodes: a clone costs O(1), and a change copies only the nodes on one path.
//!
//! A leaf with too many short ranges may become a bitmap instead of two leaves ([`Fanout::with_bitmaps`]), which has at
//! most the pages of 125 MiB. Then the map of a large tree of small pages takes one bit for each page of the file.
//!
//! 1. A root swap of an index clones the map, then calls [`BlobMap::insert`] and [`BlobMap::remove`] on the clone. The
//!    first change below a node copies this node. Later changes of the same clone change the copy in place, because no
//!    other version can reach the copy.
//! 2. A checkpoint writes the nodes that are not on disk yet, children first ([`BlobMap::store`]). Only nodes that were
//!    created or changed after the last checkpoint are not on disk. Each node is a block of one page in two copies
//!    ([`crate::space::mirrored`]).
//! 3. Dropping the last version that reaches a node frees the node's pages, as with the nodes of the trunk.
//! 4. An opening reads all nodes ([`BlobMap::load`]). The store marks the pages of the nodes and of the large values as
//!    used.
//!
//! Invariants ([`BlobMap::problem`]): Ranges are in order and do not touch. All leaves have the same depth. Each inner
//! node knows the first page, the number of ranges and the number of pages of each child. A node that is on disk is
//! never changed. An encoded node fits one page.
//!
//! Costs, for n ranges and nodes of F entries: a change copies about log_F(n) nodes. It copies at most four nodes per
//! level, because it follows at most two paths and may merge one neighbour into the node of each path. With n =
//! 1,000,000 the map has three levels and uses 16 to 25 MB of memory. This memory is charged to the pool's budget.
//!
//! **Damage.** If one copy of a node is damaged, an opening for writing repairs this copy. If both copies are lost, an
//! opening for writing fails, because a writer must know every used page. An opening for reading, including a salvage,
//! keeps the rest of the map. The large values below the lost node are not marked as used, but only writers need these
//! marks. The parent of the lost node still holds the number of the lost ranges and of their pages. Messages contain
//! the page numbers of their values, so every read works. Verification reports the loss.

mod bits;
mod layout;
mod node;
mod persist;
#[cfg(test)]
pub(super) mod tests;

use std::slice;
use std::sync::Arc;

use self::layout::{PageRange, Totals};
use self::node::{Child, Entries, Node, Ranges, change, end_of};
use super::stored::Stored;
use crate::base::{BlockAddr, Error, Extent, Result, seeded};
use crate::pool::Pool;
use crate::space::DataFile;
use crate::space::ranges::extents;

pub use self::layout::Fanout;
pub use self::persist::MapRoot;

/// A persistent set of page numbers, stored as disjoint ranges that do not touch. The semantics are the same as for
/// [`RangeSet`](crate::space::ranges::RangeSet).
#[derive(Clone)]
pub struct BlobMap {
    /// The root node. It is `None` if the map is empty.
    root: Option<Arc<Node>>,
    fanout: Fanout,
    /// The pool whose budget is charged for the nodes.
    pool: Arc<Pool>,
}

impl BlobMap {
    /// An empty map.
    pub fn new(pool: Arc<Pool>, fanout: Fanout) -> BlobMap {
        BlobMap { root: None, fanout, pool }
    }

    /// The same map with another fan-out: later changes split and merge nodes by `fanout`.
    #[must_use]
    pub fn with_fanout(self, fanout: Fanout) -> BlobMap {
        BlobMap { fanout, ..self }
    }

    /// Removes all ranges from the map and returns them.
    pub fn take(&mut self) -> BlobMap {
        let empty = BlobMap::new(self.pool.clone(), self.fanout);
        std::mem::replace(self, empty)
    }

    /// Adds `start..start + len` and joins it with adjacent ranges. None of these pages may be in the map. The call
    /// copies the nodes on one path, or the nodes on two paths if the new range joins two existing ranges.
    ///
    /// # Panics
    /// If a page is in the map already.
    pub fn insert(&mut self, start: u64, len: u64) {
        if len == 0 {
            return;
        }
        let end = start + len;
        let before = start.checked_sub(1).and_then(|at| self.floor(at));
        let after = self.root.as_ref().and_then(|root| root.ceiling(start));
        assert!(before.is_none_or(|range| end_of(range) <= start), "{start}+{len} is in the map already");
        assert!(after.is_none_or(|(next, _)| end <= next), "{start}+{len} is in the map already");
        let before = before.filter(|range| end_of(*range) == start);
        match (before, after.filter(|(next, _)| *next == end)) {
            (None, None) => self.change(None, &[(start, len)]),
            (None, Some((next, more))) => self.change(Some(next), &[(start, len + more)]),
            (Some((first, size)), None) => self.change(Some(first), &[(first, size + len)]),
            (Some((first, size)), Some((next, more))) => {
                self.change(Some(next), &[]);
                self.change(Some(first), &[(first, size + len + more)]);
            }
        }
    }

    /// Removes `start..start + len`. All of these pages must be in the map.
    ///
    /// # Panics
    /// If a page is not in the map.
    pub fn remove(&mut self, start: u64, len: u64) {
        if len == 0 {
            return;
        }
        let found = self.floor(start).filter(|range| start + len <= end_of(*range));
        let (first, size) = found.expect("the removed range is not in the map");
        let (head, tail) = ((first, start - first), (start + len, first + size - start - len));
        let left: &[PageRange] = match (head.1 > 0, tail.1 > 0) {
            (true, true) => &[head, tail],
            (true, false) => &[head],
            (false, true) => &[tail],
            (false, false) => &[],
        };
        self.change(Some(first), left);
    }

    /// Adds the pages of large values that a root swap makes reachable.
    ///
    /// # Panics
    /// If one of the pages is in the map already.
    pub fn insert_all(&mut self, kept: &[Extent]) {
        let before = self.pages();
        kept.iter().for_each(|extent| self.insert(extent.start.0, extent.pages.into()));
        let added: u64 = kept.iter().map(|extent| u64::from(extent.pages)).sum();
        assert_eq!(self.pages(), before + added, "the map has grown by the pages of the values");
    }

    /// Removes the pages of large values whose last message a compaction has dropped.
    ///
    /// # Errors
    /// [`Error::Corruption`] if the map lacks some of these pages. The pages of a value are recorded on disk both in
    /// the map and in the message of the value. If one of these records is damaged, they can disagree.
    pub fn remove_all(&mut self, dropped: &[Extent], data: &DataFile) -> Result<()> {
        let before = self.pages();
        for extent in dropped {
            let (start, len) = (extent.start.0, u64::from(extent.pages));
            if !self.contains(start, len) {
                let addr = BlockAddr { page: extent.start, pages: extent.pages };
                let detail = "a message names pages that the map of large values does not contain";
                return Err(data.corrupt(addr, "large values", detail));
            }
            self.remove(start, len);
        }
        let removed: u64 = dropped.iter().map(|extent| u64::from(extent.pages)).sum();
        assert_eq!(self.pages() + removed, before, "the map has shrunk by the pages of the values");
        Ok(())
    }

    /// Whether all pages of `start..start + len` are in the map.
    pub fn contains(&self, start: u64, len: u64) -> bool {
        self.floor(start).is_some_and(|range| start + len <= end_of(range))
    }

    /// Whether any page of `start..start + len` is in the map.
    pub fn overlaps(&self, start: u64, len: u64) -> bool {
        let last = (start + len).checked_sub(1);
        last.and_then(|last| self.floor(last)).is_some_and(|range| end_of(range) > start)
    }

    /// All ranges in order, as (start, length). The ranges below an unreadable node are missing.
    pub fn iter(&self) -> Iter<'_> {
        let mut iter = Iter { above: Vec::new(), leaf: Ranges::List([].iter()) };
        if let Some(root) = &self.root {
            iter.enter(root);
        }
        iter
    }

    /// The number of ranges.
    pub fn len(&self) -> u64 {
        self.totals().ranges
    }

    /// The number of pages in the ranges.
    pub fn pages(&self) -> u64 {
        self.totals().pages
    }

    /// Whether the map is empty.
    pub fn is_empty(&self) -> bool {
        self.root.is_none()
    }

    /// The number of levels of nodes: 0 for an empty map.
    pub fn levels(&self) -> u32 {
        self.root.as_ref().map_or(0, |root| root.height + 1)
    }

    fn totals(&self) -> Totals {
        self.root.as_ref().map_or(Totals::default(), |root| root.totals)
    }

    /// The range with the greatest start ≤ `at`.
    fn floor(&self, at: u64) -> Option<PageRange> {
        self.root.as_ref().and_then(|root| root.floor(at))
    }

    /// Replaces the range that starts at `old`, if given, by `new`. The new ranges touch no other range and are located
    /// between the neighbours of `old`.
    fn change(&mut self, old: Option<u64>, new: &[PageRange]) {
        let Some(root) = &mut self.root else {
            assert!(old.is_none(), "an empty map holds no range");
            self.root = Some(Arc::new(Node::leaf(new.to_vec(), self.pool.clone())));
            return;
        };
        let at = old.unwrap_or_else(|| new[0].0);
        let more = change(root, at, old, new, self.fanout);
        if !more.is_empty() {
            // A leaf that was read from disk may have been written with a much larger fan-out than the current one.
            // Splitting such a leaf may need more than one new level.
            let first = Child::of(root.clone());
            let mut level: Vec<Child> = std::iter::once(first).chain(more.into_iter().map(Child::of)).collect();
            while level.len() > 1 {
                let parents = level
                    .chunks(self.fanout.children)
                    .map(|children| Child::of(Arc::new(Node::inner(children.to_vec(), self.pool.clone()))));
                level = parents.collect();
            }
            *root = level.pop().expect("one is left").node;
        }
        // Remove the root while it has only one child. Also remove the root if it is an empty leaf.
        while let Entries::Children(children) = &root.entries
            && children.len() == 1
        {
            let child = children[0].node.clone();
            *root = child;
        }
        if root.is_empty() {
            self.root = None;
        }
    }

    /// The first invariant that the map breaks, if any. The check walks the whole map.
    pub fn problem(&self) -> Option<&'static str> {
        self.root.as_ref().and_then(|root| root.problem())
    }

    /// Keeps this version of the map for a verification, and records which of its nodes are on disk. No checkpoint may
    /// run during this call. Nodes that a later checkpoint writes are not verified, because their pages may be freed
    /// and reused during the verification.
    pub fn pin(&self) -> PinnedMap {
        let mut stored = Vec::new();
        let mut lost = None;
        if let Some(root) = &self.root {
            root.walk(&mut |node| {
                stored.extend(node.stored());
                if let Entries::Lost(error) = &node.entries {
                    lost.get_or_insert_with(|| error.clone());
                }
            });
        }
        PinnedMap { map: self.clone(), stored, lost }
    }
}

/// A version of the map, and the addresses of its nodes when it was pinned.
pub struct PinnedMap {
    /// The pinned version of the map.
    pub map: BlobMap,
    /// The addresses of the nodes that are on disk.
    pub stored: Vec<Stored>,
    /// The error that made a node of the map unreadable, if there is such a node.
    pub lost: Option<Error>,
}

impl PinnedMap {
    /// The pages of the large values.
    pub fn values(&self) -> impl Iterator<Item = Extent> {
        let seen = seeded!(LargeValuesNotMarked: 1, usize::MAX);
        self.map.iter().take(seen).flat_map(extents)
    }
}

/// The ranges of a map in order.
pub struct Iter<'a> {
    /// For each inner node on the path to the current leaf, the children that were not visited yet. The root's children
    /// come first.
    above: Vec<slice::Iter<'a, Child>>,
    leaf: Ranges<'a>,
}

impl<'a> Iter<'a> {
    fn enter(&mut self, node: &'a Node) {
        match &node.entries {
            Entries::Ranges(_) | Entries::Bits(_) => self.leaf = node.entries.ranges(),
            Entries::Children(children) => self.above.push(children.iter()),
            Entries::Lost(_) => {}
        }
    }
}

impl Iterator for Iter<'_> {
    type Item = PageRange;

    fn next(&mut self) -> Option<PageRange> {
        loop {
            if let Some(range) = self.leaf.next() {
                #[cfg(test)]
                tests::WALKED.set(tests::WALKED.get() + 1);
                return Some(range);
            }
            match self.above.last_mut()?.next() {
                Some(child) => self.enter(&child.node),
                None => {
                    self.above.pop();
                }
            }
        }
    }
}
