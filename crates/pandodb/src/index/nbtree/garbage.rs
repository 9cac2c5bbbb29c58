//! Finds leaves much of whose data is hidden by deletes above them. Deletes have few bytes, so the sizes of nodes alone
//! would not bring them down to the data that they hide.
//!
//! A leaf is swept once the point deletes on its path are a quarter ([`WASTE`]) of the entries in its range, or once range
//! tombstones above it cover a quarter of its bytes. The sweep merges the leaf with everything above it. No deletes are
//! above the leaf afterwards, so they cause no second sweep of it.

use std::sync::Arc;

use super::node::Node;
use crate::base::range::successor;
use crate::base::{KeyRange, RangeTombstone};
use crate::index::runs::Part;
use crate::index::runs::deletes::WASTE;
use crate::index::runs::sequence::MOST_TOMBSTONES;

/// The ranges of keys that the deletes of a new part may hide.
pub fn hulls(part: &Part) -> Vec<KeyRange> {
    let mut hulls: Vec<KeyRange> = tombstones(part).into_iter().map(|tombstone| tombstone.range).collect();
    let mut stretches = part.deletes.stretches();
    if let Some(first) = stretches.next() {
        let last = stretches.last().unwrap_or(first);
        hulls.push(KeyRange::new(first.from.to_vec(), &*successor(&last.to)));
    }
    hulls
}

/// The range tombstones of a part. They count as none if they are many, because then they are probably small, or if they
/// cannot be read.
fn tombstones(part: &Part) -> Vec<RangeTombstone> {
    let count = part.slice.run().meta().range_tombstones;
    if count == 0 || count > MOST_TOMBSTONES {
        return Vec::new();
    }
    part.slice.tombstones(part.slice.range()).unwrap_or_default()
}

/// The ranges of the leaves in `range` much of whose data is hidden.
pub fn leaves(root: &Arc<Node>, range: &KeyRange) -> Vec<KeyRange> {
    let mut found = Vec::new();
    visit(root, range, &mut Vec::new(), &mut |path, leaf| {
        if is_hidden(path, leaf) || is_covered(path, leaf) {
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

/// The estimated number of leaves below the first node of a path that `range` overlaps.
fn leaves_in(path: &[&Node], range: &KeyRange) -> u64 {
    path.iter().map(|node| node.children_in(range).len().max(1) as u64).fold(1, u64::saturating_mul)
}

/// Parts of a delete in which shares of stretches are added up, so that many small shares do not count as nothing.
const UNIT: u64 = 1 << 10;

/// The estimated number of point deletes in the range of a leaf, in the nodes of the path above it; 0 only if there are
/// none. Deletes whose exact positions are unknown are assumed to be evenly spread over leaves.
pub fn deletes_above(path: &[&Node], leaf: &Node) -> u64 {
    let mut units: u64 = 0;
    for (depth, node) in path.iter().enumerate() {
        for stretch in node.parts_in(&leaf.range).flat_map(|part| part.deletes.stretches()) {
            let leaves = match stretch.is_inside(&leaf.range) {
                None => continue,
                Some(true) => 1,
                Some(false) => {
                    leaves_in(&path[depth..], &KeyRange::new(stretch.from.to_vec(), &*successor(&stretch.to)))
                }
            };
            units = units.saturating_add((stretch.count().saturating_mul(UNIT) / leaves).max(1));
        }
    }
    units.div_ceil(UNIT)
}

/// Whether the deletes on the path to a leaf hide much of the data in its range.
fn is_hidden(path: &[&Node], leaf: &Node) -> bool {
    let deletes = deletes_above(path, leaf);
    if deletes == 0 {
        return false;
    }
    let own = sum(leaf.parts.iter().map(|part| part.slice.entries()));
    let entries = path.iter().enumerate().flat_map(|(depth, node)| {
        let share = move |part: &Part| part.slice.entries() / leaves_in(&path[depth..], part.slice.range());
        node.parts_in(&leaf.range).map(share)
    });
    deletes.saturating_mul(WASTE) >= own.saturating_add(sum(entries))
}

/// Whether range tombstones on the path to a leaf cover much of the data in its range: of the leaf, and of older slices on
/// the path.
fn is_covered(path: &[&Node], leaf: &Node) -> bool {
    let newest_first = || path.iter().copied().chain([leaf]).flat_map(|node| node.parts_in(&leaf.range));
    if !newest_first().any(|part| part.slice.run().meta().range_tombstones > 0) {
        return false;
    }
    let (mut covers, mut covered, mut all): (Vec<KeyRange>, u64, u64) = (Vec::new(), 0, 0);
    for part in newest_first() {
        covered = sum([covered].into_iter().chain(covers.iter().map(|range| part_in(part, range))));
        all = part_in(part, &leaf.range).saturating_add(all);
        let ranges = tombstones(part).into_iter().map(|tombstone| tombstone.range.intersect(&leaf.range));
        covers.extend(ranges.filter(|range| !range.is_empty()));
    }
    covered > 0 && covered.saturating_mul(WASTE) >= all
}

/// The sum of estimates. A damaged file may claim any numbers, so the sum saturates.
pub fn sum(estimates: impl Iterator<Item = u64>) -> u64 {
    estimates.fold(0, u64::saturating_add)
}

/// Estimated bytes of a part in a range, at least 1 if it may have entries there.
fn part_in(part: &Part, range: &KeyRange) -> u64 {
    if part.slice.may_hold_some(range) { part.bytes_in(range).max(1) } else { 0 }
}
