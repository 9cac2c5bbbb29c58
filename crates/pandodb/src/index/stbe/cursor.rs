//! Scanning: leaf by leaf, merging what is live on the path to each.
//!
//! For the range of one leaf the live branches from the root down to it are merged; then the cursor moves to the next
//! leaf. A leaf holds tens of megabytes, so the seeks at its border do not show.

use std::sync::Arc;

use super::node::Node;
use super::read::StbeView;
use crate::base::{EntryBlock, KeyRange, Result};
use crate::index::RawCursor;
use crate::run::{MergeCursor, ReadAhead, RunCursor, RunSlice};

/// A cursor over one view; it pins the view.
pub struct StbeCursor {
    view: Arc<StbeView>,
    /// What was asked for.
    range: KeyRange,
    /// What is left to scan after the current leaf.
    rest: KeyRange,
    reverse: bool,
    merge: Option<MergeCursor>,
}

impl StbeCursor {
    /// A cursor over `range`; nothing is read yet.
    pub fn new(view: Arc<StbeView>, range: &KeyRange, reverse: bool) -> StbeCursor {
        StbeCursor { view, range: range.clone(), rest: range.clone(), reverse, merge: None }
    }

    /// Opens the merge for the next leaf in the cursor's direction and takes the leaf's range from what is left. `false`
    /// if nothing is left.
    fn next_leaf(&mut self) -> Result<bool> {
        if self.rest.is_empty() {
            return Ok(false);
        }
        let mut slices: Vec<Arc<RunSlice>> = Vec::new();
        let mut node: &Arc<Node> = &self.view.root;
        while !node.children.is_empty() {
            let i = if self.reverse { last_child(node, &self.rest) } else { node.child_for(&self.rest.from) };
            let child = &node.children[i];
            slices.extend(node.live(child).iter().map(|branch| branch.slice.clone()));
            node = &child.node;
        }
        if let Some(error) = &node.lost {
            return Err(error.clone());
        }
        slices.extend(node.branches.iter().map(|branch| branch.slice.clone()));
        // What a scan meets is mostly of the leaf's large run.
        let largest = node.branches.iter().map(|branch| &branch.slice).max_by_key(|slice| slice.bytes()).cloned();
        let readahead = |slice: &Arc<RunSlice>| match &largest {
            Some(largest) if Arc::ptr_eq(slice, largest) => ReadAhead::Wide,
            _ => ReadAhead::Scan,
        };
        let range = node.range.intersect(&self.rest);
        let cursors = slices
            .into_iter()
            .filter(|slice| slice.range().overlaps(&range))
            .map(|slice| RunCursor::pending(slice.clone(), &range, self.reverse, readahead(&slice)))
            .collect();
        self.merge = Some(MergeCursor::new(cursors, self.reverse).map_err(|(_, e)| e)?);
        if self.reverse {
            // An empty lower bound is the end of the scan, not "no bound".
            self.rest.to.clone_from(&range.from);
            if range.from.is_empty() {
                self.rest = KeyRange::new([0], [0]);
            }
        } else if range.to.is_empty() {
            self.rest = KeyRange::new([0], [0]);
        } else {
            self.rest.from = range.to;
        }
        Ok(true)
    }
}

/// The child that holds the largest keys of `range`.
fn last_child(node: &Node, range: &KeyRange) -> usize {
    if range.to.is_empty() {
        return node.children.len() - 1;
    }
    node.children.partition_point(|child| child.node.range.from < range.to).saturating_sub(1)
}

impl RawCursor for StbeCursor {
    fn fill(&mut self, max_bytes: usize, out: &mut EntryBlock) -> Result<()> {
        let stop = out.bytes() + max_bytes;
        loop {
            if let Some(merge) = &mut self.merge {
                while let Some(entry) = merge.entry() {
                    if out.bytes() >= stop {
                        return Ok(());
                    }
                    out.push(entry);
                    merge.advance()?;
                }
                self.merge = None;
            }
            if !self.next_leaf()? {
                return Ok(());
            }
        }
    }

    fn seek(&mut self, key: &[u8]) -> Result<()> {
        self.merge = None;
        self.rest = self.range.intersect(&if self.reverse {
            KeyRange::new([], crate::base::range::successor(key))
        } else {
            KeyRange::new(key, [])
        });
        Ok(())
    }
}
