//! The table of levels: the slices of runs that hold the keyspace's data, newest first.
//!
//! ```text
//!   layers, newest first
//!   level 0   [ run 9          ]                   one packed memtable per layer
//!   level 0   [ run 8          ]
//!   level 1   [ run 7          ]
//!   level 3   [ run 4 ][ run 5 ][ run 6 ]          parts: disjoint, in key order
//! ```
//!
//! A layer is a sorted sequence of disjoint slices. In each layer, at most one part may hold a given key, and a lookup
//! searches only this part. A table is immutable: a change makes a new table, which shares the unchanged layers.
//!
//! Invariants ([`Table::problem`] checks the first two): levels do not decrease from newer to older layers. The parts
//! of a layer are disjoint and in key order. Each message is in one layer only, and newer messages of a key are in
//! newer layers.

use std::sync::Arc;

use crate::base::sync::OnceLock;
use crate::base::{KeyRange, OwnerId, RangeTombstone, Result};
use crate::index::runs::{Part, Sequence};
use crate::index::stored::Stored;
use crate::run::RunSlice;
use crate::space::DataFile;

/// The identity of a layer while the store is open. A compaction finds its inputs by their identities.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct LayerId(pub u64);

/// A sorted sequence of disjoint slices.
#[derive(Clone)]
pub struct Layer {
    /// The identity of the layer.
    pub id: LayerId,
    /// The level that the layer belongs to.
    pub level: u32,
    /// The parts in key order. They are disjoint. The layer has no keys between two parts.
    pub parts: Sequence,
}

impl Layer {
    /// Estimated bytes of the layer.
    pub fn bytes(&self) -> u64 {
        self.parts.bytes()
    }

    /// The parts that overlap `range`. Costs O(log n).
    pub fn parts_in(&self, range: &KeyRange) -> &[Part] {
        self.parts.within(range)
    }
}

/// The layers of an index, newest first.
#[derive(Default)]
pub struct Table {
    /// The layers, newest first. No layer is empty.
    pub layers: Vec<Layer>,
    /// The error that made both copies of the table unreadable. In this case the table is empty. The field is set only
    /// in a store that is open for reading.
    pub lost: Option<crate::Error>,
    stored: OnceLock<(Stored, Arc<DataFile>)>,
}

impl Table {
    /// Makes a table of these layers. The table is not on disk.
    pub fn new(layers: Vec<Layer>) -> Table {
        let table = Table::unchecked(layers, None);
        debug_assert_eq!(table.problem(), None);
        table
    }

    /// Makes a table as it was read from disk. The caller must check [`Table::problem`].
    pub fn unchecked(layers: Vec<Layer>, lost: Option<crate::Error>) -> Table {
        Table { layers, lost, stored: OnceLock::new() }
    }

    /// Makes an empty table that represents an unreadable table.
    pub fn lost(error: crate::Error) -> Table {
        Table::unchecked(Vec::new(), Some(error))
    }

    /// The table's address on disk, if it was written.
    pub fn stored(&self) -> Option<Stored> {
        self.stored.get().map(|(stored, _)| *stored)
    }

    /// Records the address to which the table was written, or from which it was read. After this call, dropping the
    /// table frees its pages.
    pub fn set_stored(&self, stored: Stored, data: &Arc<DataFile>) {
        assert!(self.lost.is_none(), "a lost table has no block");
        assert!(self.stored.set((stored, data.clone())).is_ok(), "a table is written once");
    }

    /// The first invariant that the table breaks, if any.
    pub fn problem(&self) -> Option<&'static str> {
        if self.layers.windows(2).any(|pair| pair[0].level > pair[1].level) {
            return Some("a newer layer is of a higher level");
        }
        if self.layers.iter().any(|layer| layer.parts.is_empty()) {
            return Some("a layer without parts");
        }
        let sorted = |layer: &Layer| layer.parts.is_sorted();
        (!self.layers.iter().all(sorted)).then_some("the parts of a layer are not in order")
    }

    /// All parts of all layers, the newest layer first.
    pub fn parts(&self) -> impl Iterator<Item = &Part> {
        self.layers.iter().flat_map(|layer| layer.parts.iter())
    }

    /// Estimated bytes of all layers.
    pub fn bytes(&self) -> u64 {
        self.layers.iter().map(Layer::bytes).sum()
    }

    /// This table, with `covers` of all layers computed.
    pub fn with_covers(mut self) -> Table {
        for at in 0..self.layers.len() {
            self.note_covered(at);
        }
        self
    }

    /// This table, with `covers` of the newest layer computed.
    pub fn with_covers_of_newest(mut self) -> Table {
        self.note_covered(0);
        self
    }

    fn note_covered(&mut self, at: usize) {
        let (newer, older) = self.layers.split_at_mut(at + 1);
        let layer = &mut newer[at];
        if layer.parts.iter().any(|part| part.slice.run().meta().range_tombstones > 0) {
            let older = older.iter().map(|layer| &layer.parts);
            let parts = layer.parts.iter().map(|part| part.clone().over(older.clone()));
            layer.parts = parts.collect::<Vec<_>>().into();
        }
    }

    /// This table with `layer` as the newest layer.
    pub fn with_newest(&self, layer: Layer) -> Table {
        assert!(!layer.parts.is_empty(), "a layer has parts");
        debug_assert!(self.layers.iter().all(|other| other.id != layer.id), "each layer has an identity of its own");
        Table::new(std::iter::once(layer).chain(self.layers.iter().cloned()).collect())
    }

    /// This table after a compaction: `output` replaces everything that the layers `inputs` hold in `range`. The inputs
    /// are neighbours in the table. The output goes into the oldest input layer, which is raised to `level`.
    pub fn replaced(
        &self,
        inputs: &[LayerId],
        range: &KeyRange,
        output: Option<&Arc<RunSlice>>,
        level: u32,
    ) -> Result<Table> {
        assert!(!inputs.is_empty() && !range.is_empty(), "a compaction has inputs and keys");
        let mut layers = self.layers.clone();
        let of_inputs = |layer: &Layer| inputs.contains(&layer.id);
        let oldest = layers.iter().rposition(of_inputs).expect("the inputs of a compaction stay in the table");
        for layer in layers.iter_mut().filter(|layer| of_inputs(layer)) {
            layer.parts.remove(range)?;
        }
        if let Some(output) = output.and_then(|slice| slice.clip(range).transpose()) {
            let part = Part::new(output?).over(layers[oldest + 1..].iter().map(|layer| &layer.parts));
            layers[oldest].parts.insert(part);
        }
        // An older layer may have a smaller level if damage excluded that layer from the task.
        let most = layers.get(oldest + 1).map_or(level, |older| level.min(older.level));
        layers[oldest].level = layers[oldest].level.max(most);
        layers.retain(|layer| !layer.parts.is_empty() || !of_inputs(layer));
        Ok(Table::new(layers))
    }

    /// This table without the data that older layers have in `range`. Only the newest layer keeps its data there.
    pub fn wiped(&self, range: &KeyRange) -> Result<Table> {
        debug_assert!(!range.is_empty(), "a range tombstone has keys");
        let mut layers = self.layers.clone();
        for layer in layers.iter_mut().skip(1) {
            layer.parts.remove(range)?;
        }
        layers.retain(|layer| !layer.parts.is_empty());
        Ok(Table::new(layers))
    }

    /// Splits parts of a layer at the ends of `range`, so that the part inside `range` can be processed separately.
    pub fn cut(&self, id: LayerId, range: &KeyRange) -> Result<Table> {
        let mut layers = self.layers.clone();
        for layer in layers.iter_mut().filter(|layer| layer.id == id) {
            layer.parts.cut(range)?;
        }
        layers.retain(|layer| !layer.parts.is_empty());
        Ok(Table::new(layers))
    }

    /// Appends the range tombstones that may cover keys of `range`.
    pub fn tombstones(&self, range: &KeyRange, out: &mut Vec<RangeTombstone>) -> Result<()> {
        for layer in &self.layers {
            for part in layer.parts_in(range) {
                // Skip runs without tombstones: most runs have none, and every scan calls this function.
                if part.slice.run().meta().range_tombstones > 0 {
                    out.extend(part.slice.tombstones(range)?);
                }
            }
        }
        Ok(())
    }

    /// The description of the run `id`, if the table has this run.
    pub fn run(&self, id: OwnerId) -> Option<crate::run::RunMeta> {
        self.parts().map(|part| part.slice.run().meta()).find(|meta| meta.id == id).cloned()
    }
}

impl Drop for Table {
    fn drop(&mut self) {
        if let Some((stored, data)) = self.stored.take() {
            stored.copies.free(&data);
        }
    }
}
