//! Reading: the view of a table, the point lookup and the scan.
//!
//! A lookup searches one part of each layer, newest first. A scan goes through the parts of the oldest layer. In the
//! range of each part, the scan merges the data of all layers.

use std::collections::HashSet;
use std::ops::ControlFlow;
use std::sync::Arc;

use super::table::{Layer, Table};
use super::world::World;
use crate::base::sync::Once;
use crate::base::{HashedKey, KeyRange, PAGE, RangeTombstone, Result, Seqno};
use crate::index::deferred_frees::DeferredFrees;
use crate::index::runs::{Part, Path, PathProbe, Piece, Pieces, PiecewiseCursor, Stop, changed_on};
use crate::index::{Changes, Estimate, IndexStats, IndexView, Lookup, Probe, RawCursor};
use crate::rows::IndexRows;
use crate::run::{ScanHabits, Spare};

/// An immutable table and the counters that belong to it.
pub struct ColaView {
    /// The layers.
    pub table: Arc<Table>,
    through: Seqno,
    horizon: Seqno,
    /// Bytes of large values.
    blob_bytes: u64,
    /// Messages and point tombstones, counted when they are first requested.
    counted: Once<(u64, u64)>,
    rows: Arc<IndexRows>,
    scans: Arc<ScanHabits>,
    /// No function reads this field. While the view exists, the field keeps the large values allocated that later swaps
    /// drop.
    _deferred_frees: Arc<DeferredFrees>,
}

impl ColaView {
    pub(super) fn of(world: &World, rows: &Arc<IndexRows>) -> ColaView {
        ColaView {
            table: world.table.clone(),
            through: world.through,
            horizon: world.horizon,
            blob_bytes: world.blobs.pages() * PAGE as u64,
            counted: Once::new(),
            rows: rows.clone(),
            scans: world.scans.clone(),
            _deferred_frees: world.deferred_frees.clone(),
        }
    }

    /// Estimated contents of all parts inside `range`.
    pub(super) fn estimate(&self, range: &KeyRange) -> Result<Estimate> {
        let mut sum = Estimate::default();
        for part in self.table.layers.iter().flat_map(|layer| layer.parts_in(range)) {
            let (bytes, entries) = part.slice.estimate(range)?;
            sum.bytes += bytes;
            sum.entries += entries;
        }
        Ok(sum)
    }

    pub(super) fn stats(&self) -> IndexStats {
        let layers = &self.table.layers;
        let levels: HashSet<u32> = layers.iter().map(|layer| layer.level).collect();
        let mut stats = IndexStats::default();
        let mut runs = 0;
        let mut seen = HashSet::new();
        for part in self.table.parts() {
            let (run, meta) = (part.slice.run(), part.slice.run().meta());
            if seen.insert(meta.id) {
                runs += 1;
                stats.search_bytes += meta.search_bytes();
                stats.disk_bytes += run.owned().iter().map(|extent| extent.bytes()).sum::<u64>();
            }
            // This assumes that all parts of a run are alike.
            let (entries, all) = (part.slice.entries(), meta.entries().max(1));
            let share = |count: u64| (u128::from(count) * u128::from(entries) / u128::from(all)) as u64;
            stats.entries += entries;
            stats.tombstones += share(meta.deletes);
            stats.logical_bytes += share(meta.key_bytes + meta.value_bytes + meta.blob_bytes);
        }
        stats.disk_bytes += self.blob_bytes;
        stats.gauge("levels", levels.len().max(1) as u64, "Levels with data; 1 for an empty index.");
        stats.gauge(
            "layers",
            layers.len() as u64,
            "Sorted sequences; a level has several while they wait for a compaction.",
        );
        stats.gauge("runs", runs, "Distinct runs.");
        stats.gauge("max_runs_on_path", layers.len() as u64, "Maximum number of runs that one lookup may read.");
        stats
    }

    /// The number of messages in runs, and the number of point tombstones among them. They are counted only once for
    /// each view.
    pub(super) fn entries(&self) -> (u64, u64) {
        *self.counted.get_or_init(|| {
            let stats = self.stats();
            debug_assert!(stats.tombstones <= stats.entries, "tombstones are among the messages: {stats:?}");
            (stats.entries, stats.tombstones)
        })
    }
}

impl IndexView for ColaView {
    fn through(&self) -> Seqno {
        self.through
    }

    fn horizon(&self) -> Seqno {
        self.horizon
    }

    fn probe<'v>(&'v self, _: &Lookup<'_>) -> Box<dyn Probe<'v> + 'v> {
        Box::new(PathProbe::new(LayersPath { table: &self.table, next: 0 }, &self.rows, self.through))
    }

    fn offer_row(&self, key: &[u8], hash: u64, value: &[u8], seqno: Seqno) {
        self.rows.offer(key, hash, value, seqno, self.through);
    }

    fn cursor(self: Arc<Self>, range: Arc<KeyRange>, reverse: bool) -> Result<Box<dyn RawCursor>> {
        Ok(Box::new(PiecewiseCursor::new(self, range, reverse)))
    }

    fn changed(self: Arc<Self>, key: HashedKey<'_>, since: Seqno, changes: Changes) -> Result<bool> {
        changed_on(LayersPath { table: &self.table, next: 0 }, key, since, changes)
    }

    fn cursor_since(self: Arc<Self>, range: &KeyRange, since: Seqno) -> Result<Box<dyn RawCursor>> {
        Ok(Box::new(PiecewiseCursor::new(self, range.into(), false).since(since)))
    }

    fn tombstones(&self, range: &KeyRange, out: &mut Vec<RangeTombstone>) -> Result<()> {
        self.table.tombstones(range, out)
    }
}

/// The path of a key through the layers.
struct LayersPath<'v> {
    table: &'v Table,
    /// Index of the layer to search next.
    next: usize,
}

fn stop_in<'v>(layer: &'v Layer, key: &[u8]) -> Option<Stop<'v>> {
    layer.parts.part_for(key).map(|part| Stop { slice: &part.slice, route: None })
}

impl<'v> Path<'v> for LayersPath<'v> {
    fn stop(&mut self, key: &[u8]) -> Result<Option<Stop<'v>>> {
        if let Some(error) = &self.table.lost {
            return Err(error.clone());
        }
        let layers: &'v [Layer] = &self.table.layers;
        while let Some(layer) = layers.get(self.next) {
            let stop = stop_in(layer, key);
            if stop.is_some() {
                return Ok(stop);
            }
            self.next += 1;
        }
        Ok(None)
    }

    fn advance(&mut self) {
        debug_assert!(self.next < self.table.layers.len(), "a stop was returned before");
        self.next += 1;
    }

    fn ahead(&self, key: &[u8], visit: &mut dyn FnMut(Stop<'v>) -> ControlFlow<()>) {
        let layers: &'v [Layer] = &self.table.layers;
        for stop in layers[self.next..].iter().filter_map(|layer| stop_in(layer, key)) {
            if visit(stop).is_break() {
                return;
            }
        }
    }
}

impl Pieces for ColaView {
    /// The piece at the beginning of `rest`, or at the end of `rest` for a reverse scan. The piece extends to the end
    /// of the first part that the oldest layer has in `rest` (for a reverse scan, to the beginning of its last part).
    fn piece(&self, rest: &KeyRange, reverse: bool) -> Result<Piece> {
        if let Some(error) = &self.table.lost {
            return Err(error.clone());
        }
        let guides = self.table.layers.last().map_or(&[][..], |oldest| oldest.parts_in(rest));
        let range = match (guides, reverse) {
            ([], _) => rest.clone(),
            ([first, ..], false) => KeyRange::new(rest.from.clone(), first.slice.range().to.clone()),
            ([.., last], true) => KeyRange::new(last.slice.range().from.clone(), rest.to.clone()),
        };
        let range = range.intersect(rest);
        debug_assert!(!range.is_empty(), "a piece has keys of the rest");
        let mut slices = Vec::new();
        for layer in &self.table.layers {
            let with_bytes = |part: &Part| {
                // The other parts of the oldest layer that overlap this part get an equal number of its bytes.
                let guides = self.table.layers.last().map_or(0, |oldest| oldest.parts_in(part.slice.range()).len());
                (part.slice.clone(), part.slice.bytes() / guides.max(1) as u64)
            };
            slices.extend(layer.parts_in(&range).iter().map(with_bytes));
        }
        Ok(Piece { range: Arc::new(range), slices })
    }

    fn habits(&self) -> &ScanHabits {
        &self.scans
    }

    /// Scans cause no compactions: each level is compacted when it is full.
    fn note_spare(&self, _: &KeyRange, _: Spare) {}

    fn rows(&self) -> &IndexRows {
        &self.rows
    }
}
