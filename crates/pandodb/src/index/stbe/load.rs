//! Attaches the runs of a sorted load to a tree.
//!
//! ```text
//!   root  b0 b1 │ run 1 run 2 … run n      appended as the newest branches, then one rebalancing pass
//!                    │     │        └─▶ into an empty tree: leaves of a few runs each, which no compaction rewrites
//!                    └─────┴─▶ else: flushed by the same triggers as packed memtables
//! ```
//!
//! Invariant: the runs of a load are disjoint, so a lookup reads at most one of them, in the root as in a leaf.

use std::sync::Arc;

use super::index::TrunkCheckpoint;
use super::node::Node;
use super::tree::{Inner, Stbe};
use super::trunk::Trunk;
use crate::base::Result;
use crate::base::sync::Ordering::Relaxed;
use crate::filter::{FilterBuilder, Filters};
use crate::index::Checkpoint;
use crate::index::runs::{LoadedRuns, LoadsRuns};
use crate::rows::IndexRows;
use crate::run::RunBuilder;

/// Whether a tree has no runs.
fn is_empty(root: &Node) -> bool {
    root.is_leaf() && root.branches.is_empty()
}

impl Stbe {
    /// The trunk with the runs of a load. REQUIRES: the caller holds `inner`.
    fn trunk_with(&self, inner: &Inner, loaded: &LoadedRuns) -> Result<Trunk> {
        let mut trunk = inner.trunk.clone();
        assert!(loaded.at() > trunk.through, "a load is newer than every message of the tree");
        let mut root = trunk.root.edit();
        // In an empty tree the runs already are what a compaction of them would write.
        let fresh = !is_empty(&root);
        for slice in loaded.slices() {
            let branch = root.branch(self.branch_id(), fresh, slice.clone(), slice.bytes())?;
            root.branches.push(branch);
        }
        trunk.root = Arc::new(root);
        trunk.through = loaded.at();
        trunk.blobs.insert_all(loaded.blobs());
        self.rebalance(inner, &mut trunk)?;
        Ok(trunk)
    }
}

impl LoadsRuns for Stbe {
    fn rows(&self) -> &Arc<IndexRows> {
        &self.rows
    }

    fn run_builder(&self, expected_bytes: u64) -> RunBuilder {
        let builder = RunBuilder::new(self.core.data.clone(), self.core.ids.next(), expected_bytes);
        // In an empty tree the runs go into leaves at once, and the runs of leaves get no maplets. A Bloom filter is
        // made in half the time of a quotient filter. If the tree has data when the load is attached, lookups probe the
        // Bloom filters of the runs one by one until the runs have reached the leaves.
        let filter = match self.shape.filters {
            Filters::Maplet if is_empty(&self.published.load().root) => FilterBuilder::new(Filters::Bloom, 1),
            _ => self.filter(2),
        };
        builder.with_filter(filter).with_compression(self.shape.compression).cached_in(self.core.pool.clone())
    }

    /// Two runs fill a leaf. The memory of a builder grows with its run, so a run of a whole leaf would need twice as
    /// much.
    fn run_bytes(&self) -> u64 {
        self.shape.leaf_bytes.div_ceil(2)
    }

    fn checkpoint_with<'a>(&'a self, loaded: &LoadedRuns) -> Result<Box<dyn Checkpoint + 'a>> {
        let trunk = self.trunk_with(&self.inner.lock(), loaded)?;
        debug_assert_eq!(trunk.through, loaded.at(), "replay applies only what is newer than the load");
        Ok(Box::new(TrunkCheckpoint { index: self, trunk, next_branch: self.branch_ids.load(Relaxed) }))
    }

    fn attach_loaded(&self, inner: &mut Inner, loaded: &LoadedRuns) -> Result<()> {
        let trunk = self.trunk_with(inner, loaded)?;
        let (bytes, filter_bytes) = loaded.disk_bytes();
        self.counters.packed_bytes.fetch_add(bytes, Relaxed);
        self.counters.filter_bytes.fetch_add(filter_bytes, Relaxed);
        loaded.drop_rows(&self.rows);
        inner.routes.rest(false);
        self.publish(inner, trunk, &[]);
        Ok(())
    }
}
