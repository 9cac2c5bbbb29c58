//! [`left_of`]: the rows of a sorted load that a piece of a merge has not reached.
//!
//! ```text
//!   tree of the load    [ leaf ][ leaf ][ le│af ][ leaf ][ leaf ]
//!                          merged: dropped  │     kept
//!                                           └─ next: the rows from here on are copied to a new leaf, unless
//!                                              the leaf begins with this row
//! ```
//!
//! The pages of the merged leaves are freed, except those of *adopted* leaves, which are part of the other tree now:
//! between the first and the last key of such a leaf, that tree has no row.
//!
//! So each row of the load is in one of both trees at any time. After each piece, the pages of its rows are freed; they
//! can be reused after two checkpoints. So a merge on a full disk needs only the space of a few pieces.

use std::collections::HashSet;

use crate::base::{Entry, Extent, PageNo, Result};
use crate::index::folding::Sink;
use crate::index::pages::{LeafSink, Levels, PageRef, PageSource, Rebuild, Root, Unit};

/// For the size of a piece, an adopted leaf counts as a quarter of its bytes. Its reference is in memory until the end
/// of the piece, and then written.
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

/// The tree of a load without the rows below `next`; `None` is above all rows. Also returns the pages that it lacks.
/// `sink` has no leaf.
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
        if let Some(next) = next.filter(|next| !unit.ends_before(next)) {
            keep_from(unit, next, &mut rebuild, source, sink)?;
            break;
        }
        rebuild.drop_unit(&unit);
        let Some(to) = unit.to else { break };
        from = to;
    }
    rebuild.finish(source, sink)
}

/// Keeps the rows of a unit from the row `next` on. If this is the first row of its leaf, the leaf stays as it is.
fn keep_from(unit: Unit, next: &[u8], rebuild: &mut Rebuild, source: &PageSource, sink: &mut LeafSink) -> Result<()> {
    let page = unit.leaves.first().expect("the rest of a load has a leaf").page;
    let bytes = source.leaf_once(&page)?;
    let (leaf, mut key) = (page.leaf(&bytes), Vec::new());
    let at = leaf.search(next);
    leaf.key(leaf.len() - 1, &mut key);
    let is_inside = at < leaf.len() && !unit.ends_before(&key) && unit.leaves.len() == 1;
    leaf.key(at.min(leaf.len() - 1), &mut key);
    if !is_inside || key != next {
        return Err(source.corrupt(&page, "a row of a sorted load outside the bounds of its leaf"));
    }
    if at == 0 {
        rebuild.keep(unit);
        return Ok(());
    }
    rebuild.drop_unit(&unit);
    sink.begin_unit(next);
    sink.set_warm(false);
    for i in at..leaf.len() {
        leaf.key(i, &mut key);
        let slot = leaf.slot(i);
        sink.push(Entry { key: &key, seqno: slot.seqno, kind: slot.kind, value: leaf.value(&slot) })?;
    }
    rebuild.put(sink.end_unit()?);
    Ok(())
}
