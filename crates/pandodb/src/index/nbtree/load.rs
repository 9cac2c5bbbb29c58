//! Attaches the runs of a sorted load to a Nested B-tree. In an empty tree they become leaves. Otherwise they become
//! slices of the root, and the flushes that follow move them down without writing them again, if nothing overlaps them.

use std::sync::Arc;

use super::index::TreeCheckpoint;
use super::tree::{Inner, Nbtree};
use super::world::World;
use crate::base::Result;
use crate::base::sync::Ordering::Relaxed;
use crate::index::Checkpoint;
use crate::index::runs::sequence::joined_ranges;
use crate::index::runs::{LoadedRuns, LoadsRuns, Part};
use crate::rows::IndexRows;
use crate::run::RunBuilder;

/// The maximum number of bytes of a run of a load, so that a merge of a piece frees its inputs soon.
const MOST_RUN_BYTES: u64 = 64 << 20;

impl Nbtree {
    /// The world with the runs of a load in its root. REQUIRES: the caller holds `inner`.
    fn world_with(&self, inner: &mut Inner, loaded: &LoadedRuns) -> Result<World> {
        let mut world = inner.world.clone();
        assert!(loaded.at() > world.through, "a load is newer than every message of the tree");
        let whole: Vec<Part> = loaded.slices().iter().cloned().map(Part::new).collect();
        let mut parts = Vec::with_capacity(whole.len());
        for (at, range) in joined_ranges(&whole.iter().collect::<Vec<_>>()) {
            parts.extend(whole[at].clip(&range)?);
        }
        assert_eq!(parts.len(), whole.len(), "each run of a load has rows");
        world.root = match world.root.holds_nothing() {
            true => Arc::new(self.sizes.limits.tree_of(parts)?),
            false => {
                let mut root = world.root.edit();
                root.arrive(parts);
                Arc::new(root)
            }
        };
        world.through = loaded.at();
        world.blobs.insert_all(loaded.blobs());
        Ok(world)
    }
}

impl LoadsRuns for Nbtree {
    fn rows(&self) -> &Arc<IndexRows> {
        &self.rows
    }

    fn run_builder(&self, expected_bytes: u64) -> RunBuilder {
        let builder = RunBuilder::new(self.core.data.clone(), self.core.ids.next(), expected_bytes);
        builder.with_filter(self.filter()).with_compression(self.sizes.compression).cached_in(self.core.pool.clone())
    }

    fn run_bytes(&self) -> u64 {
        self.sizes.limits.dtree_bytes.min(MOST_RUN_BYTES)
    }

    fn checkpoint_with<'a>(&'a self, loaded: &LoadedRuns) -> Result<Box<dyn Checkpoint + 'a>> {
        let world = self.world_with(&mut self.inner.lock(), loaded)?;
        debug_assert_eq!(world.through, loaded.at(), "replay applies only what is newer than the load");
        Ok(Box::new(TreeCheckpoint { index: self, world }))
    }

    fn attach_loaded(&self, inner: &mut Inner, loaded: &LoadedRuns) -> Result<()> {
        let world = self.world_with(inner, loaded)?;
        let (bytes, filter_bytes) = loaded.disk_bytes();
        self.counters.packed_bytes.fetch_add(bytes, Relaxed);
        self.counters.filter_bytes.fetch_add(filter_bytes, Relaxed);
        loaded.drop_rows(&self.rows);
        self.publish(inner, world, &[]);
        Ok(())
    }
}
