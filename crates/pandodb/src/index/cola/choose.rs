//! Chooses the next layers to compact: a pure function from a table to a task (source: 004; the capacities follow the
//! COLA's authors).
//!
//! * Level l ≥ 1 holds 2(G−1)·G^(l−1) memtables. Two memtables in level 0 form a batch. The batch and all layers up to
//!   some level are compacted into this level. It is the smallest level whose capacity is enough for all of these
//!   inputs.
//! * Everything is compacted once the point deletes of newer layers hide a quarter of the oldest layer, or range
//!   tombstones cover a quarter of all data. Tombstones have few bytes, so the capacities alone would not trigger the
//!   compaction that removes the hidden data.
//! * A task that ended early leaves several layers of one level. These layers are compacted into the smallest level
//!   that is large enough for them and is not above their own level.
//! * While a task is in progress, newer layers are compacted only into levels smaller than the output level of the
//!   task. Data that does not fit into these levels waits.
//! * Layers with disjoint key ranges become one layer without moving data. Such layers arise when data is loaded in key
//!   order.

use super::table::{Layer, LayerId, Table};
use crate::index::runs::Part;
use crate::index::runs::deletes::WASTE;
use crate::index::runs::sequence::may_be_neighbours;
use crate::run::RunSlice;

/// Number of memtables in level 0 that form a batch.
pub const BATCH: usize = 2;
/// The highest level number. With every growth factor, lower levels are already larger than any store.
pub const MAX_LEVEL: u32 = 62;
/// If this number of memtables wait in level 0 while a task is in progress, they are compacted into the largest level
/// that the tasks leave free, although this level is too small for them.
const MOST_WAITING: usize = 12;
/// A part that has fewer bytes than 1/LEAST_MOVED of a memtable is not moved but rewritten, because every part uses
/// memory.
const LEAST_MOVED: u64 = 4;

const _: () = assert!(BATCH >= 2 && MOST_WAITING > BATCH, "a batch is several memtables, and several batches may wait");
const _: () = assert!(MAX_LEVEL < 64, "a level fits the shifts of its capacity");

/// The two numbers that determine the capacities of the levels.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Growth {
    /// G: the ratio of the size of a level to the size of the level above.
    pub factor: u64,
    /// m: the unit of sizes, in bytes: the size of a memtable for which the capacities are chosen.
    pub memtable_bytes: u64,
}

impl Growth {
    /// The capacity of a level, in bytes.
    pub fn capacity(&self, level: u32) -> u64 {
        debug_assert!(level > 0, "level 0 has no capacity");
        let memtables = 2 * (self.factor - 1);
        let grown = self.factor.checked_pow(level - 1).and_then(|grown| grown.checked_mul(memtables));
        grown.and_then(|memtables| memtables.checked_mul(self.memtable_bytes)).unwrap_or(u64::MAX)
    }

    /// The smallest level with a capacity of at least `bytes`.
    pub fn level_for(&self, bytes: u64) -> u32 {
        (1..MAX_LEVEL).find(|&level| self.capacity(level) >= bytes).unwrap_or(MAX_LEVEL)
    }
}

/// A task: join these layers into one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Choice {
    /// The inputs, newest first. They are neighbours in the table.
    pub layers: Vec<LayerId>,
    /// The level of the output.
    pub level: u32,
}

/// Average bytes of an entry in the oldest layer. The oldest layer holds most of the data.
pub fn entry_bytes(table: &Table) -> u64 {
    let Some(oldest) = table.layers.last() else { return 0 };
    let entries: u64 = oldest.parts.iter().map(|part| part.slice.entries()).sum();
    oldest.bytes() / entries.max(1)
}

/// Chooses the next task. `busy` are the layers of the tasks in progress. `below` is the smallest output level of these
/// tasks. `sound` is false if some part of the table cannot be read. In that case deletes do not trigger a compaction
/// of everything, because such compactions could repeat without end and drop nothing.
pub fn choose(table: &Table, growth: Growth, busy: &[LayerId], below: Option<u32>, sound: bool) -> Option<Choice> {
    if busy.is_empty() && sound && is_shadowed_by_deletes(table) {
        let bytes = table.bytes();
        let level = table.layers.iter().map(|layer| layer.level).fold(growth.level_for(bytes), u32::max);
        return Some(Choice { layers: table.layers.iter().map(|layer| layer.id).collect(), level });
    }
    let free: Vec<&Layer> = table.layers.iter().take_while(|layer| !busy.contains(&layer.id)).collect();
    let waiting = free.iter().take_while(|layer| layer.level == 0).count();
    // A task that ended early has left several layers of one level.
    let split =
        || free.windows(2).find(|pair| pair[0].level > 0 && pair[0].level == pair[1].level).map(|pair| pair[0].level);
    let least = match waiting {
        0 | 1 if sound => split()?,
        0 | 1 => return None,
        _ => 1,
    };
    let task = |level: u32| {
        let inputs = free.iter().take_while(|layer| layer.level <= level);
        let bytes: u64 = inputs.clone().map(|layer| layer.bytes()).sum();
        (Choice { layers: inputs.map(|layer| layer.id).collect(), level }, bytes)
    };
    debug_assert!(free.is_sorted_by_key(|layer| layer.level), "a newer layer has no higher level");
    debug_assert!(busy.is_empty() == below.is_none(), "a task in progress has a level");
    let end = below.unwrap_or(MAX_LEVEL + 1);
    for level in least..end {
        let (choice, bytes) = task(level);
        if bytes <= growth.capacity(level) || level == MAX_LEVEL {
            return Some(choice);
        }
    }
    (end > least && waiting >= MOST_WAITING).then(|| task(end - 1).0)
}

/// Whether the deletes of newer layers hide much of the oldest layer, or range tombstones cover much of all data. The
/// compaction that this triggers drops these deletes, so each delete triggers a compaction only once.
fn is_shadowed_by_deletes(table: &Table) -> bool {
    let Some((oldest, newer)) = table.layers.split_last() else { return false };
    let newer = || newer.iter().flat_map(|layer| layer.parts.iter());
    let deletes: u64 = newer().map(|part| part.deletes.count()).sum();
    let covered: u64 = newer().map(|part| part.covers).sum();
    let entries = oldest.parts.iter().map(|part| part.slice.entries()).sum();
    deletes > 0 && deletes * WASTE >= entries || covered > 0 && covered * WASTE >= table.bytes()
}

/// Whether the only layer is a packed memtable that consists mostly of deletes. No older data exists that the deletes
/// could hide, so rewriting the layer drops them and frees much space.
pub fn is_mostly_deletes(table: &Table) -> bool {
    let [only] = table.layers.as_slice() else { return false };
    let deletes: u64 = only.parts.iter().map(|part| part.deletes.count()).sum();
    let entries: u64 = only.parts.iter().map(|part| part.slice.entries()).sum();
    deletes > 0 && only.level == 0 && deletes * WASTE >= entries
}

/// Whether these parts can become one layer without moving data. This is so if their key ranges are disjoint, no part
/// is small, and no part holds garbage. The call does no I/O.
pub fn may_move(parts: &[&Part], growth: Growth) -> bool {
    let mut slices: Vec<&RunSlice> = parts.iter().map(|part| &*part.slice).collect();
    slices.sort_unstable_by_key(|slice| slice.low());
    let plain = |part: &&Part| {
        let meta = part.slice.run().meta();
        let garbage = meta.deletes + meta.merges + meta.range_tombstones;
        garbage == 0 && meta.puts + meta.blob_puts == meta.keys && part.bytes * LEAST_MOVED >= growth.memtable_bytes
    };
    let apart = slices.windows(2).all(|pair| may_be_neighbours(pair[0], pair[1]));
    parts.iter().all(plain) && apart
}
