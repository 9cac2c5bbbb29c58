//! [`TreeView`]: an immutable root that readers pin, and its statistics.

use std::sync::Arc;

use super::world::World;
use crate::base::{Error, Fragments, KeyRange, PAGE, Result, Seqno};
use crate::index::deferred_frees::DeferredFrees;
use crate::index::pages::{PageRef, PageSource, Root, Totals};
use crate::index::{Estimate, IndexStats};
use crate::rows::IndexRows;

/// An immutable root and what belongs to it.
pub struct TreeView {
    pub(super) root: Option<Root>,
    /// The tree of a sorted load, which is newer than that of `root` ([`World::loaded`]).
    pub(super) loaded: Option<Root>,
    pub(super) source: Arc<PageSource>,
    pub(super) tombstones: Arc<Fragments>,
    pub(super) lost: Option<Error>,
    pub(super) through: Seqno,
    pub(super) horizon: Seqno,
    /// The lowest level of pages that may have a buffer.
    pub(super) buffered_from: u32,
    page_bytes: u64,
    blob_bytes: u64,
    /// No function reads this field. While the view exists, the field keeps the pages and large values allocated that
    /// later swaps drop.
    _deferred_frees: Arc<DeferredFrees>,
    /// The rows of this index in the row cache.
    pub(super) rows: Arc<IndexRows>,
}

impl TreeView {
    pub(super) fn of(world: &World, source: &Arc<PageSource>, rows: &Arc<IndexRows>) -> TreeView {
        TreeView {
            root: world.root,
            loaded: world.loaded,
            source: source.clone(),
            tombstones: world.tombstones.clone(),
            lost: world.lost.clone(),
            through: world.through,
            horizon: world.horizon,
            buffered_from: world.buffered_from,
            page_bytes: world.pages.pages() * PAGE as u64,
            blob_bytes: world.blobs.pages() * PAGE as u64,
            _deferred_frees: world.deferred_frees.clone(),
            rows: rows.clone(),
        }
    }

    /// Checks that the tree is not lost.
    ///
    /// # Errors
    /// The error that made its description unreadable.
    pub(super) fn check_readable(&self) -> Result<()> {
        self.lost.clone().map_or(Ok(()), Err)
    }

    /// The bytes of all pages.
    pub(super) fn page_bytes(&self) -> u64 {
        self.page_bytes
    }

    /// The roots, newest first.
    ///
    /// # Errors
    /// If the tree is lost.
    pub(super) fn roots(&self) -> Result<impl Iterator<Item = Root> + use<>> {
        self.check_readable().map(|()| self.loaded.into_iter().chain(self.root))
    }

    /// The sums over all messages.
    pub(super) fn totals(&self) -> Totals {
        let mut totals = Totals::default();
        self.loaded.iter().chain(&self.root).for_each(|root| totals += root.page.totals);
        totals
    }

    pub(super) fn stats(&self) -> IndexStats {
        let totals = self.totals();
        let mut stats = IndexStats {
            entries: totals.entries,
            tombstones: totals.deletes,
            logical_bytes: totals.bytes,
            disk_bytes: self.page_bytes + self.blob_bytes,
            ..IndexStats::default()
        };
        let levels = self.root.map_or(1, |root| u64::from(root.level) + 1);
        let waiting = self.loaded.map_or(0, |root| root.page.totals.bytes);
        stats.gauge("levels", levels, "Levels of pages; 1 for an empty index.");
        stats.gauge("older_versions", totals.older, "Messages that are not the newest of their key.");
        stats.gauge("loaded_bytes", waiting, "Bytes of rows of a sorted load that are not merged with older rows yet.");
        let tombstones = self.tombstones.len() as u64;
        stats.gauge("range_tombstones", tombstones, "Range deletes whose keys were not removed from all leaves yet.");
        stats
    }
}

/// The estimated contents of a range. Reads the inner pages at both ends of the range. Of the leaves at the ends, and
/// of the messages that wait for the pages at the ends, it counts a half.
pub(super) fn estimate(
    roots: impl IntoIterator<Item = Root>,
    source: &PageSource,
    range: &KeyRange,
) -> Result<Estimate> {
    let mut sum = Estimate::default();
    for Root { page, level } in roots {
        add_estimate(&page, level, &KeyRange::all(), source, range, &mut sum)?;
    }
    Ok(sum)
}

fn add_estimate(
    page: &PageRef,
    level: u32,
    keys: &KeyRange,
    source: &PageSource,
    range: &KeyRange,
    sum: &mut Estimate,
) -> Result<()> {
    if !keys.overlaps(range) {
        return Ok(());
    }
    let is_inside = range.covers(keys);
    if is_inside || level == 0 {
        let part = if is_inside { 1 } else { 2 };
        sum.entries = sum.entries.saturating_add(page.totals.entries / part);
        sum.bytes = sum.bytes.saturating_add(page.totals.bytes / part);
        return Ok(());
    }
    let block = source.page(page, level)?;
    let children = page.inner(&block).children(&keys.from);
    let waiting = page.inner(&block).buffer().map(|buffer| buffer.page.totals).unwrap_or_default();
    let all: u64 = children.iter().map(|child| child.pending).sum();
    for (i, child) in children.iter().enumerate() {
        let to = children.get(i + 1).map_or(keys.to.as_slice(), |next| next.from.as_slice());
        let keys = KeyRange::new(child.from.as_slice(), to);
        if child.pending > 0 && keys.overlaps(range) {
            let part = if range.covers(&keys) { 1.0 } else { 0.5 } * child.pending as f64 / all as f64;
            sum.entries = sum.entries.saturating_add((waiting.entries as f64 * part) as u64);
            sum.bytes = sum.bytes.saturating_add((waiting.bytes as f64 * part) as u64);
        }
        add_estimate(&child.page, level - 1, &keys, source, range, sum)?;
    }
    Ok(())
}
