//! Verification and description of a table. Both read the whole table and change nothing.

use std::fmt::Write;
use std::sync::Arc;

use super::choose::Growth;
use super::table::Table;
use super::world::World;
use crate::base::{Extent, KeyRange, Result};
use crate::index::blobs::PinnedMap;
use crate::index::runs::check::{Checker, short, sources};
use crate::index::runs::{Extents, Stop};
use crate::index::stored::Stored;
use crate::index::{Core, SalvagePiece, Verification, Visitor};
use crate::space::BlockKind;

/// A root of the array, pinned for a verification.
pub(super) struct PinnedTable<'a> {
    core: &'a Core,
    /// The whole root. Its deferred frees keep the large values allocated that compactions drop during the
    /// verification.
    world: World,
    /// The address of the table at the time of pinning, because a checkpoint may write the table later.
    stored: Option<Stored>,
    blobs: PinnedMap,
}

impl PinnedTable<'_> {
    /// Pins a root. No checkpoint may run during the call.
    pub fn new(core: &Core, world: World) -> PinnedTable<'_> {
        let (stored, blobs) = (world.table.stored(), world.blobs.pin());
        PinnedTable { core, world, stored, blobs }
    }
}

impl Verification for PinnedTable<'_> {
    fn for_each_extent(&self, visit: &mut dyn FnMut(Extent)) {
        let mut extents = Extents::new(visit);
        self.stored.into_iter().for_each(|stored| extents.stored(stored));
        self.world.table.parts().for_each(|part| extents.run(part.slice.run()));
        extents.large_values(&self.blobs);
    }

    /// Reads the table's block, every block of every run and every large value.
    fn check(&self, visit: &mut dyn Visitor) -> Result<()> {
        let table = &self.world.table;
        let mut checker = Checker::new(self.core, visit);
        if let Some(error) = &table.lost {
            checker.lost(error.clone());
        }
        if let Some(problem) = table.problem() {
            checker.problem(crate::Error::corruption("level table", 0, problem));
        }
        if let Some(stored) = self.stored {
            checker.stored(stored, BlockKind::LevelTable);
        }
        for part in table.parts() {
            checker.run(part.slice.run());
            checker.live(Stop { slice: &part.slice, route: None }, part.slice.range());
        }
        checker.finish(&self.blobs);
        Ok(())
    }
}

/// The key space in order, as one piece per part of the oldest layer. Each piece has the slices of all layers.
pub(super) fn salvage(table: &Table) -> Vec<SalvagePiece> {
    let mut cuts: Vec<Vec<u8>> = table.layers.last().map_or(Vec::new(), |oldest| {
        oldest.parts.iter().map(|part| part.slice.range().from.clone()).filter(|key| !key.is_empty()).collect()
    });
    cuts.insert(0, Vec::new());
    cuts.push(Vec::new());
    let piece = |pair: &[Vec<u8>]| {
        let range = KeyRange::new(pair[0].clone(), pair[1].clone());
        let slices = table.layers.iter().flat_map(|layer| layer.parts_in(&range)).map(|part| part.slice.clone());
        SalvagePiece { sources: sources(slices.collect(), &range), lost: table.lost.clone(), range }
    };
    cuts.windows(2).map(piece).collect()
}

/// Prints the table: one line per layer and one line per part.
pub(super) fn describe(table: &Arc<Table>, growth: Growth, out: &mut String) {
    if let Some(error) = &table.lost {
        let _ = writeln!(out, "LOST: {error}");
    }
    let place = table.stored().map_or("not on disk".into(), |stored| {
        format!("table {} at pages {} and {}", stored.id, stored.copies.0[0].page, stored.copies.0[1].page)
    });
    let _ = writeln!(out, "{} layers, growth factor {} ({place})", table.layers.len(), growth.factor);
    for layer in &table.layers {
        let room = if layer.level == 0 { String::new() } else { format!(" of {}", growth.capacity(layer.level)) };
        let _ = writeln!(out, "level {}: {} parts, {} bytes{room}", layer.level, layer.parts.len(), layer.bytes());
        for part in layer.parts.iter() {
            let (range, run) = (part.slice.range(), part.slice.run().meta().id);
            let to = if range.to.is_empty() { "∞".into() } else { short(&range.to) };
            let (from, bytes, entries) = (short(&range.from), part.bytes, part.slice.entries());
            let _ = writeln!(out, "  [{from} .. {to}) run {run} bytes {bytes} entries {entries}");
        }
    }
}
