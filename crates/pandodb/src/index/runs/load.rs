//! Sorted loads: builds runs directly from rows in key order, and passes them to the index at once.
//!
//! ```text
//!   rows ──push──▶ RunBuilder ──▶ run 1 │ run 2 │ run 3     disjoint, in key order; seqno 0 in every leaf
//!                                    └───────┴───────┴──stamp(seqno)──▶ slices ──▶ root of the next checkpoint
//!                                                                               └─▶ published root
//! ```
//!
//! 1. [`RunsLoad::push`] fills a run. When the run has [`LoadsRuns::run_bytes`], the next run begins, so that the
//!    memory of a load does not depend on its size.
//! 2. The seqno of the load is known only when it is attached, but the leaves are written long before. So the leaves
//!    hold [`Seqno::UNASSIGNED`], and [`LoadedRuns::stamp`] writes the seqno into the descriptions of the runs.
//!    [`crate::run::RunMeta::stamped`] describes what readers do.
//! 3. The index computes a root with the new runs twice: once for the checkpoint that makes the load durable, and once
//!    to publish it. If the checkpoint fails, readers have seen nothing of the load.
//!
//! Invariants: the runs are disjoint and in key order; each page of a load that is dropped is freed exactly once.
//!
//! Memory: the memory of one [`RunBuilder`]. It is reserved from the pool for the time of the load.

use std::sync::Arc;

use super::queue::Packs;
use crate::base::{BlobRef, Entry, Extent, KeyRange, Kind, Result, Seqno, range::successor};
use crate::index::{Checkpoint, Core, FinishedLoad, Progress, SortedLoad, SortedLoader};
use crate::resolve::Stripes;
use crate::rows::IndexRows;
use crate::run::{Run, RunBuilder, RunMeta, RunSlice};
use crate::space::LOADED_RUNS;

/// A run also ends when its keys would need more than 1/KEYS_SHARE of the bytes of a full run in memory, so that short
/// rows do not need much more memory than long rows.
const KEYS_SHARE: u64 = 4;
/// Memory of a builder for each key: its hash.
const HASH_BYTES: u64 = 8;
/// Memory of a builder that does not grow with its run: a write buffer of 1 MiB, and leaves.
const BUFFERS: u64 = 5 << 18;

const _: () = assert!(KEYS_SHARE > 0 && HASH_BYTES > 0, "a run has at least one key");

/// An index that can attach runs which a sorted load has built.
pub trait LoadsRuns: Packs + Send + Sync {
    /// The rows of the index in the row cache.
    fn rows(&self) -> &Arc<IndexRows>;

    /// A builder for the next run of a load, with the filter and the compression that the index chooses.
    fn run_builder(&self, expected_bytes: u64) -> RunBuilder;

    /// The number of bytes of keys and values after which the next run begins.
    fn run_bytes(&self) -> u64;

    /// Fixes the state for the next checkpoint, as if the runs were attached. Does not change what readers see.
    ///
    /// # Errors
    /// If a block of the index cannot be read.
    fn checkpoint_with<'a>(&'a self, loaded: &LoadedRuns) -> Result<Box<dyn Checkpoint + 'a>>;

    /// Publishes a root with the runs. REQUIRES: the caller holds `inner`, and the index holds every message below the
    /// seqno of the load.
    ///
    /// # Errors
    /// If an error is returned, the root is unchanged.
    fn attach_loaded(&self, inner: &mut Self::Inner, loaded: &LoadedRuns) -> Result<()>;
}

impl<I: LoadsRuns> SortedLoader for I {
    fn begin<'a>(&'a self, expected_bytes: u64) -> Result<Box<dyn SortedLoad<'a> + 'a>> {
        let most = self.run_bytes().max(1);
        let loaded = LoadedRuns::reserve(self.core(), most / KEYS_SHARE + BUFFERS);
        Ok(Box::new(RunsLoad { index: self, builder: None, bytes: 0, keys: 0, most, left: expected_bytes, loaded }))
    }

    fn pack_one(&self, keep: &dyn Fn() -> Stripes) -> Result<Option<Progress>> {
        Packs::pack_one(self, keep)
    }

    fn has_waiting_load(&self) -> bool {
        false
    }
}

/// The finished runs of a load.
pub struct LoadedRuns {
    core: Core,
    /// Bytes of the pool that are reserved for the load.
    reserved: usize,
    /// The seqno of all entries; [`Seqno::UNASSIGNED`] until it is known.
    at: Seqno,
    /// The runs that have no seqno yet, in key order. Their pages belong to this struct.
    metas: Vec<RunMeta>,
    /// The runs that have their seqno, in key order.
    slices: Vec<Arc<RunSlice>>,
    /// The large values that the runs refer to. They belong to the caller until the load is attached.
    blobs: Vec<Extent>,
}

impl LoadedRuns {
    fn reserve(core: &Core, bytes: u64) -> LoadedRuns {
        let reserved = usize::try_from(bytes).unwrap_or(usize::MAX).min(core.pool.size() / 4);
        core.pool.hold(reserved);
        let (metas, slices, blobs) = (Vec::new(), Vec::new(), Vec::new());
        LoadedRuns { core: core.clone(), reserved, at: Seqno::UNASSIGNED, metas, slices, blobs }
    }

    /// The seqno of the load.
    pub fn at(&self) -> Seqno {
        assert!(self.at > Seqno::UNASSIGNED, "a load is stamped before it is attached");
        self.at
    }

    /// The runs in key order, which are disjoint.
    pub fn slices(&self) -> &[Arc<RunSlice>] {
        assert!(self.metas.is_empty(), "a load is stamped before it is attached");
        &self.slices
    }

    /// The large values that the runs refer to.
    pub fn blobs(&self) -> &[Extent] {
        &self.blobs
    }

    /// Bytes that the runs occupy, and bytes of their filters.
    pub fn disk_bytes(&self) -> (u64, u64) {
        let metas = || self.slices.iter().map(|slice| slice.run().meta());
        let filters = metas().map(|meta| u64::from(meta.filter.pages) * crate::base::PAGE as u64);
        (metas().map(RunMeta::disk_bytes).sum(), filters.sum())
    }

    /// Makes the row cache refuse rows of older roots, and drops the rows that the load may have changed. Called before
    /// the root with the runs is published.
    pub fn drop_rows(&self, rows: &IndexRows) {
        if rows.begin(self.at()) {
            let ranges: Vec<KeyRange> = self.slices.iter().map(|slice| hull(slice)).collect();
            rows.remove_where(|key, _| {
                let at = ranges.partition_point(|range| !range.is_above(key));
                ranges.get(at).is_some_and(|range| range.contains(key))
            });
        }
    }

    /// Adds the pages of a large value. Values are written one after another, so most of them join the extent before.
    fn add_value(&mut self, extent: Extent) {
        match self.blobs.last_mut() {
            Some(last) if last.end() == extent.start.0 && last.pages.checked_add(extent.pages).is_some() => {
                last.pages += extent.pages;
            }
            _ => self.blobs.push(extent),
        }
    }

    /// Gives all entries their seqno and opens the runs.
    fn stamp(&mut self, at: Seqno) -> Result<()> {
        assert!(self.at == Seqno::UNASSIGNED && self.slices.is_empty(), "a load is stamped once");
        self.at = at;
        self.core.data.note_feature(LOADED_RUNS);
        self.metas.reverse();
        // After an error, this struct still owns the pages of the runs that were not opened.
        while let Some(meta) = self.metas.last() {
            let run = Run::open(self.core.data.clone(), self.core.pool.clone(), meta.clone().stamped(at))?;
            self.metas.pop();
            self.slices.push(RunSlice::whole(run));
        }
        debug_assert!(self.slices.windows(2).all(|pair| pair[0].is_before(&pair[1])), "the runs are disjoint");
        Ok(())
    }
}

/// The keys from the first to the last key of a run.
fn hull(slice: &RunSlice) -> KeyRange {
    let meta = slice.run().meta();
    KeyRange::new(meta.first_key.clone(), &*successor(&meta.last_key))
}

impl Drop for LoadedRuns {
    fn drop(&mut self) {
        let extents = self.metas.drain(..).flat_map(|meta| meta.extents);
        extents.for_each(|extent| self.core.data.discard(extent));
        self.core.pool.let_go(self.reserved);
    }
}

/// A load in progress.
struct RunsLoad<'a, I: LoadsRuns> {
    index: &'a I,
    /// The run being built; `None` between two runs.
    builder: Option<RunBuilder>,
    /// Bytes and number of the keys and values in the run being built.
    bytes: u64,
    keys: u64,
    /// The bytes after which a run ends.
    most: u64,
    /// The expected number of bytes that are not in finished runs; 0 if unknown.
    left: u64,
    loaded: LoadedRuns,
}

impl<I: LoadsRuns> RunsLoad<'_, I> {
    /// Finishes the run being built, if there is one.
    fn close_run(&mut self) -> Result<()> {
        if let Some(builder) = self.builder.take() {
            let meta = builder.finish()?.expect("a run is begun for a row");
            assert_eq!(meta.entries(), self.keys, "each row is in the run");
            debug_assert!(
                self.loaded.metas.last().is_none_or(|last| last.last_key < meta.first_key),
                "runs are built in key order"
            );
            self.loaded.metas.push(meta);
            self.left = self.left.saturating_sub(self.bytes);
        }
        (self.bytes, self.keys) = (0, 0);
        Ok(())
    }
}

impl<'a, I: LoadsRuns> SortedLoad<'a> for RunsLoad<'a, I> {
    fn push(&mut self, entry: &Entry<'_>) -> Result<()> {
        assert!(matches!(entry.kind, Kind::Put | Kind::BlobPut), "a load has only puts");
        assert_eq!(entry.seqno, Seqno::UNASSIGNED, "the seqno is known only when the load is attached");
        if self.bytes >= self.most || self.keys * HASH_BYTES * KEYS_SHARE >= self.most {
            self.close_run()?;
        }
        let (index, expected) = (self.index, if self.left == 0 { self.most } else { self.left.min(self.most) });
        let builder = self.builder.get_or_insert_with(|| index.run_builder(expected));
        builder.push(*entry)?;
        self.bytes += (entry.key.len() + entry.value.len()) as u64;
        self.keys += 1;
        if entry.kind == Kind::BlobPut {
            self.loaded.add_value(BlobRef::decode(entry.value)?.extent());
        }
        Ok(())
    }

    fn finish(mut self: Box<Self>) -> Result<Box<dyn FinishedLoad + 'a>> {
        self.close_run()?;
        let RunsLoad { index, loaded, .. } = *self;
        Ok(Box::new(Finished { index, loaded }))
    }
}

/// A load whose runs are complete.
struct Finished<'a, I: LoadsRuns> {
    index: &'a I,
    loaded: LoadedRuns,
}

impl<I: LoadsRuns> FinishedLoad for Finished<'_, I> {
    fn stamp(&mut self, at: Seqno) -> Result<()> {
        self.loaded.stamp(at)
    }

    fn begin_checkpoint(&self) -> Result<Box<dyn Checkpoint + '_>> {
        self.index.checkpoint_with(&self.loaded)
    }

    fn attach(self: Box<Self>) -> Result<()> {
        let Finished { index, loaded } = *self;
        let mut inner = index.inner().lock();
        assert!(!I::is_cleared(&inner), "a keyspace is not dropped while a load is attached");
        index.attach_loaded(&mut inner, &loaded)
    }
}
