//! Finds leaves of which the deletes above them hide much. Deletes have few bytes, so the sizes of nodes alone would not
//! bring them down to the data that they hide.
//!
//! A leaf is swept once the point deletes on its path are a quarter ([`WASTE`]) of all entries in its range, or once
//! range tombstones in the root cover a quarter of all data. The sweep drops the deletes with what they hide, so each
//! delete causes only one sweep of a leaf.

use std::sync::Arc;

use super::node::Node;
use crate::base::KeyRange;
use crate::index::runs::Part;
use crate::index::runs::deletes::WASTE;

/// The smallest range that holds all deletes of a part; `None` if it has none that would cause a sweep.
pub fn hull_of_deletes(part: &Part) -> Option<KeyRange> {
    if part.covers > 0 {
        return Some(part.slice.range().clone());
    }
    let mut stretches = part.deletes.stretches();
    let first = stretches.next()?;
    let last = stretches.last().unwrap_or(first);
    let end = crate::base::range::successor(&last.to);
    Some(KeyRange::new(first.from.to_vec(), &*end))
}

/// The ranges of the leaves in `range` of which deletes hide much.
pub fn leaves(root: &Arc<Node>, range: &KeyRange) -> Vec<KeyRange> {
    let covered: u64 = root.parts.iter().map(|part| part.covers).sum();
    let mut bytes = 0;
    root.walk(&mut |node| bytes += node.bytes());
    let is_covered = covered > 0 && covered * WASTE >= bytes;
    let mut found = Vec::new();
    visit(root, range, &mut Vec::new(), &mut |path, leaf| {
        if is_covered || is_hidden(path, leaf) {
            found.push(KeyRange::clone(&leaf.range));
        }
    });
    found
}

/// Visits the leaves that overlap `range`, each with the nodes above it.
fn visit<'n>(node: &'n Node, range: &KeyRange, path: &mut Vec<&'n Node>, see: &mut dyn FnMut(&[&'n Node], &'n Node)) {
    if node.children.is_empty() {
        see(path, node);
        return;
    }
    path.push(node);
    for child in node.children_in(range) {
        visit(child, range, path, see);
    }
    path.pop();
}

/// Whether the deletes on the path to a leaf hide much of the data in its range.
fn is_hidden(path: &[&Node], leaf: &Node) -> bool {
    let above = || path.iter().flat_map(|node| node.parts_in(&leaf.range));
    let deletes: u64 = above().map(|part| part.deletes.within(&leaf.range)).sum();
    if deletes == 0 {
        return false;
    }
    let own: u64 = leaf.parts.iter().map(|part| part.slice.entries()).sum();
    // Each part above is assumed to be evenly spread over the leaves below its node.
    let share =
        |node: &Node, part: &Part| part.slice.entries() / node.children_in(part.slice.range()).len().max(1) as u64;
    let entries: u64 = path.iter().flat_map(|node| node.parts_in(&leaf.range).map(move |part| share(node, part))).sum();
    deletes.saturating_mul(WASTE) >= own + entries
}
