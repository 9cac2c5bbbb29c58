//! [`left_of`]: the rows of a sorted load that a piece of a merge has not reached.
//!
//! ```text
//!   tree of the load    [ leaf ][ leaf ][ le│af ][ leaf ][ leaf ]
//!                          merged: dropped  │     kept
//!                                           └─ next: the rows from here on are copied to a new leaf
//! ```
//!
//! The pages of the merged leaves are freed, except those of *adopted* leaves, which are part of the other tree now: between
//! the first and the last key of such a leaf, that tree has no row.
//!
//! So each row is in one of both trees at any time, and the pages of merged rows are freed after each piece. A merge on a
//! full disk needs only the space of a piece.

use std::collections::HashSet;

use crate::base::{Entry, Extent, PageNo, Result};
use crate::index::folding::Sink;
use crate::index::pages::{LeafSink, Levels, PageRef, PageSource, Rebuild, Root};
use crate::run::Leaf;

/// An adopted leaf counts as this part of its bytes for the size of a piece. Its reference is in memory until the end of the
/// piece, and then written.
const WEIGHT: u64 = 4;

/// The leaves of a load that a piece of a merge has made leaves of the other tree.
#[derive(Default)]
pub(super) struct Adopted {
    pages: HashSet<PageNo>,
    /// The bytes for which they count.
    pub(super) weight: u64,
}

impl Adopted {
    pub(super) fn add(&mut self, leaf: &PageRef) {
        self.pages.insert(leaf.addr.page);
        self.weight += leaf.addr.bytes() as u64 / WEIGHT;
    }

    /// Whether `extent`, which are pages of the load, is an adopted leaf.
    pub(super) fn contains(&self, extent: Extent) -> bool {
        self.pages.contains(&extent.start)
    }
}

/// The tree of a load without the rows below `next`; `None` is above all rows. Also returns the pages that it lacks. `sink`
/// has no leaf.
///
/// # Errors
/// If a page cannot be read or written.
pub(super) fn left_of(
    loaded: Root,
    next: Option<&[u8]>,
    source: &PageSource,
    levels: Levels,
    sink: &mut LeafSink,
) -> Result<(Option<Root>, Vec<Extent>)> {
    debug_assert!(sink.is_empty(), "the leaves of the merged tree are complete");
    let mut rebuild = Rebuild::new(Some(loaded), levels);
    let mut from = Vec::new();
    loop {
        let unit = rebuild.seek(&from, source, sink)?;
        match (next, &unit.to) {
            (Some(next), _) if next <= unit.from.as_slice() => {
                rebuild.keep(unit);
                break;
            }
            (Some(next), to) if to.is_none() || !unit.ends_before(next) => {
                rebuild.drop_unit(&unit);
                sink.begin_unit(next);
                sink.set_warm(false);
                for leaf in &unit.leaves {
                    copy_from(leaf.page.leaf(&source.leaf_once(&leaf.page)?), next, sink)?;
                }
                rebuild.put(sink.end_unit()?);
                break;
            }
            (_, to) => {
                rebuild.drop_unit(&unit);
                match to {
                    Some(to) => from.clone_from(to),
                    None => break,
                }
            }
        }
    }
    rebuild.finish(source, sink)
}

/// Copies the rows of a leaf from the key `from` on.
fn copy_from(leaf: Leaf<'_>, from: &[u8], sink: &mut LeafSink) -> Result<()> {
    let mut key = Vec::new();
    for i in leaf.search(from)..leaf.len() {
        leaf.key(i, &mut key);
        let slot = leaf.slot(i);
        sink.push(Entry { key: &key, seqno: slot.seqno, kind: slot.kind, value: leaf.value(&slot) })?;
    }
    Ok(())
}
