//! Changes of the tree: each clones the path from the root to the changed node and returns the new root.

use std::sync::Arc;

use super::node::Node;
use super::shape::Limits;
use super::task::Piece;
use crate::base::{KeyRange, OwnerId, Result, SeededBug, Seqno};
use crate::index::runs::{Part, Sequence};

/// The tree after a piece: `output` replaces the inputs of the piece in its range.
///
/// # Errors
/// If an inner block of a run cannot be read.
pub fn replaced(root: &Arc<Node>, piece: &Piece, output: &[Part], limits: Limits) -> Result<Arc<Node>> {
    let change = Change { piece, runs: piece.runs(), output, limits };
    Ok(Arc::new(limits.settle_root(change.apply(root)?)?))
}

struct Change<'a> {
    piece: &'a Piece,
    runs: Vec<OwnerId>,
    output: &'a [Part],
    limits: Limits,
}

impl Change<'_> {
    fn apply(&self, node: &Arc<Node>) -> Result<Node> {
        let Piece { range, from, to, is_last, .. } = self.piece;
        let mut new = node.edit();
        let stays = SeededBug::SourceKeepsFlushed.is_on() && node.height > *to;
        if node.height <= *from && !stays {
            // The seeded bug also removes what the source has behind the piece.
            let taken = SeededBug::SourceDropped.is_on() && node.height > *to && !node.is_root;
            new.remove(if taken { &node.range } else { range }, &self.runs)?;
        }
        if node.height == *to {
            let kept = self.output.iter().cloned();
            match node.is_root {
                true => new.parts = with_rewritten(&node.parts, &new.parts, &self.runs, kept),
                false => kept.for_each(|part| new.parts.insert(part)),
            }
            return Ok(new);
        }
        let at = new.child_for(&range.from);
        assert!(new.children[at].range.covers(range), "a piece is in the range of one node");
        new.children[at] = Arc::new(self.apply(&node.children[at])?);
        new.children = self.limits.balance(&new.children, *is_last)?;
        new.assert_valid();
        Ok(new)
    }
}

/// The slices of a root after a rewrite of its newest slices: the output comes after them, and before all older slices.
fn with_rewritten(
    before: &Sequence,
    left: &Sequence,
    runs: &[OwnerId],
    output: impl Iterator<Item = Part>,
) -> Sequence {
    let is_taken = |part: &&Part| runs.contains(&part.slice.run().meta().id);
    let oldest = before.iter().rfind(is_taken).map(|part| part.slice.run().meta().max_seqno);
    let is_newer = |part: &&Part| oldest.is_some_and(|oldest| part.slice.run().meta().max_seqno >= oldest);
    let newer = left.iter().take_while(is_newer).count();
    left[..newer].iter().cloned().chain(output).chain(left[newer..].iter().cloned()).collect::<Vec<_>>().into()
}

/// The tree with a new slice in the root.
pub fn with_arrival(root: &Node, part: Part) -> Arc<Node> {
    let mut new = root.edit();
    new.arrive([part]);
    Arc::new(new)
}

/// The tree without the data that is older than `seqno` and is in `range`. Returns `None` if that data cannot be removed
/// without reading it, because some of it refers to large values, or because a slice also has newer data.
///
/// # Errors
/// If an inner block of a run cannot be read.
pub fn wiped(root: &Arc<Node>, range: &KeyRange, seqno: Seqno, limits: Limits) -> Result<Option<Arc<Node>>> {
    debug_assert!(!range.is_empty(), "a range tombstone has keys");
    if !may_wipe(root, range, seqno) {
        return Ok(None);
    }
    let new = wipe(root, range, limits)?;
    Ok(Some(Arc::new(limits.settle_root(new)?)))
}

/// Whether everything in `range` except the newest slice of the root is older than `seqno`, and without large values.
fn may_wipe(node: &Node, range: &KeyRange, seqno: Seqno) -> bool {
    let goes = |part: &Part| {
        let meta = part.slice.run().meta();
        meta.blob_puts == 0 && meta.max_seqno < seqno
    };
    let newest = usize::from(node.is_root);
    node.parts_in(range).skip(newest).all(goes)
        && node.children_in(range).iter().all(|child| may_wipe(child, range, seqno))
}

fn wipe(node: &Arc<Node>, range: &KeyRange, limits: Limits) -> Result<Node> {
    let mut new = node.edit();
    let runs: Vec<OwnerId> =
        node.parts_in(range).skip(usize::from(node.is_root)).map(|part| part.slice.run().meta().id).collect();
    new.remove(range, &runs)?;
    for child in &mut new.children {
        if child.range.overlaps(range) {
            *child = Arc::new(wipe(child, range, limits)?);
        }
    }
    if !new.is_leaf() {
        new.children = limits.balance(&new.children, false)?;
    }
    new.assert_valid();
    Ok(new)
}

/// The tree in which the slices of the runs `runs` are cut at the ends of a piece, on the path of the piece.
///
/// # Errors
/// If an inner block of a run cannot be read.
pub fn cut(node: &Arc<Node>, piece: &Piece, runs: &[OwnerId]) -> Result<Arc<Node>> {
    let mut new = node.edit();
    let is_cut = |part: &Part| runs.contains(&part.slice.run().meta().id) && part.slice.range().overlaps(&piece.range);
    let mut parts = Vec::with_capacity(node.parts.len() + 2);
    for part in node.parts.iter() {
        if !is_cut(part) {
            parts.push(part.clone());
            continue;
        }
        let mut own = Sequence::from(vec![part.clone()]);
        own.cut(&piece.range)?;
        parts.extend(own.iter().cloned());
    }
    new.parts = parts.into();
    if node.height > piece.to {
        let at = new.child_for(&piece.range.from);
        new.children[at] = cut(&node.children[at], piece, runs)?;
    }
    new.assert_valid();
    Ok(Arc::new(new))
}
