//! Two kinds of jobs: packing a memtable into a run, and compacting slices into one run. Both run in resumable steps.
//!
//! ```text
//!   memtable ──fill──┐
//!                    ├──▶ Folding (`index/folding`) ──▶ RunBuilder ──▶ RunMeta
//!   slices ───merge──┘
//! ```
//!
//! A job owns everything that it needs. Dropping a job frees everything that it wrote. A job keeps the versions that
//! are visible at the read points which existed when the job started. Read points that are registered later are newer
//! than all inputs of the job.

use std::sync::Arc;

use super::deletes::{Deletes, Tally};
use crate::base::{
    BlobRef, Entry, EntryBlock, Error, Extent, Fragments, KeyRange, Kind, OwnerId, PAGE, RangeTombstone, Result, Seqno,
};
use crate::filter::FilterBuilder;
use crate::index::cached_rows::RowUpdates;
use crate::index::folding::{FoldedValues, Folding, Sink};
use crate::index::{Core, SealedBatch};
use crate::memtable::{self, Memtable};
use crate::pool::Pool;
use crate::resolve::{Operator, Stripes, prune_tombstones};
use crate::rows::IndexRows;
use crate::run::{Compression, MergeCursor, ReadAhead, Run, RunBuilder, RunCursor, RunMeta, RunSlice};
use crate::space::values::NewValues;

/// Minimum and maximum number of bytes that a compaction reads ahead from each input. A compaction has many inputs, so
/// these bounds limit its memory and the size of a step.
const READ_AHEAD: std::ops::RangeInclusive<u64> = 16 << 10..=128 << 10;
/// A step of at most this many bytes is *small*: that of a writer of a `nbtree`, or of a store with small memtables. If the
/// first step is small, this is also the minimum that an input reads ahead.
const SMALL_STEP: u64 = 8 << 10;
/// From each input, a compaction reads ahead 1/64 of the bytes of all inputs, within the limits above.
const READ_AHEAD_SHARE: u64 = 64;
/// Maximum bytes that a compaction reads ahead from all inputs together, unless the minimum for each input adds up to
/// more. If the device reads asynchronously, the same number of bytes may be in flight in addition.
const READ_AHEAD_IN_ALL: u64 = 2 << 20;
/// A compaction also reads ahead at most 1/24 of the pool's size from all inputs together, so that its buffers fit in a
/// small memory budget.
const READ_AHEAD_OF_POOL: u64 = 24;
/// Bytes copied from a memtable at a time. A small step copies only its own size, but at least a page.
const PACK_BLOCK: usize = 64 << 10;

const _: () = assert!(0 < SMALL_STEP && SMALL_STEP <= *READ_AHEAD.start());
const _: () = assert!(*READ_AHEAD.start() > 0 && *READ_AHEAD.start() < *READ_AHEAD.end());
const _: () = assert!(READ_AHEAD_IN_ALL >= *READ_AHEAD.end(), "one input may read ahead its maximum");

/// The result of a finished job.
pub struct Output {
    /// The new run; `None` if no message remains.
    pub meta: Option<RunMeta>,
    /// The point deletes of the new run.
    pub deletes: Deletes,
    /// The large values that the output refers to.
    pub kept_blobs: Vec<Extent>,
    /// The large values among them that the job wrote. They are freed unless [`NewValues::keep`] is called.
    pub new_values: NewValues,
    /// The large values whose last message was dropped.
    pub dropped_blobs: Vec<Extent>,
    /// An unregistered reader whose read point is smaller than this must retry with a newer read point.
    pub horizon: Seqno,
}

impl Output {
    /// Opens the new run as a slice of all its keys, for publishing.
    ///
    /// # Errors
    /// If the new run cannot be read.
    pub fn open(&self, core: &Core) -> Result<Option<Arc<RunSlice>>> {
        let Some(meta) = &self.meta else { return Ok(None) };
        let run = Run::open(core.data.clone(), core.pool.clone(), meta.clone())?;
        Ok(Some(RunSlice::whole(run)))
    }

    /// Bytes that the new run and the large values that the job wrote occupy.
    pub fn bytes(&self) -> u64 {
        let run = self.meta.iter().flat_map(|meta| &meta.extents);
        run.chain(self.new_values.extents()).map(|extent| extent.bytes()).sum()
    }

    /// Bytes of the filter of the new run.
    pub fn filter_bytes(&self) -> u64 {
        self.meta.iter().map(|meta| u64::from(meta.filter.pages) * PAGE as u64).sum()
    }
}

/// Writes the folded messages to a run.
struct RunSink {
    builder: RunBuilder,
    deletes: Tally,
}

impl Sink for RunSink {
    #[inline]
    fn push(&mut self, entry: Entry<'_>) -> Result<()> {
        if entry.kind == Kind::Delete {
            self.deletes.push(entry.key);
        }
        self.builder.push(entry)
    }

    fn set_warm(&mut self, is_warm: bool) {
        self.builder.set_warm(is_warm);
    }
}

/// Starts to fold messages into a run. `tombstones` are all range tombstones of the inputs.
fn folding(
    core: &Core,
    filter: FilterBuilder,
    expected_bytes: u64,
    stripes: Stripes,
    operator: Option<Operator>,
    bottom: bool,
    tombstones: &[RangeTombstone],
) -> Folding<RunSink> {
    let builder = RunBuilder::new(core.data.clone(), core.ids.next(), expected_bytes);
    let mut builder = builder.with_filter(filter).cached_in(core.pool.clone());
    for tombstone in prune_tombstones(tombstones, &stripes, bottom) {
        builder.push_tombstone(tombstone);
    }
    let sink = RunSink { builder, deletes: Tally::default() };
    Folding::new(core, sink, stripes, operator, bottom, Arc::new(Fragments::build(tombstones)))
}

/// Adapts the output to the size of the steps, before the first message.
fn adapt(folding: &mut Folding<RunSink>, budget: u64) {
    if is_small(budget) {
        folding.sink.builder.write_often();
    }
}

fn is_small(budget: u64) -> bool {
    budget <= SMALL_STEP
}

/// Prepares the end of the run after the last message; see [`RunBuilder::prepare`]. Returns whether the run can be
/// finished.
fn prepare(folding: &mut Folding<RunSink>, budget: u64) -> Result<bool> {
    folding.close_group()?;
    folding.sink.builder.prepare(budget)
}

fn finish(folding: Folding<RunSink>) -> Result<Output> {
    let horizon = folding.horizon();
    let (sink, values) = folding.finish()?;
    let (deletes, meta) = (sink.deletes.finish(), sink.builder.finish()?);
    assert!(meta.is_some() || values.kept.is_empty(), "only messages of a run name large values");
    let described = meta.as_ref().map_or((0, 0), |meta| (meta.deletes, meta.blob_puts));
    assert_eq!(deletes.count(), described.0, "the positions cover every delete of the run");
    assert_eq!(values.kept.len() as u64, described.1, "every large value of the run is listed");
    let FoldedValues { kept: kept_blobs, new_values, dropped: dropped_blobs, .. } = values;
    Ok(Output { meta, deletes, kept_blobs, new_values, dropped_blobs, horizon })
}

/// Packs a sealed memtable into a run.
pub struct PackJob {
    /// The memtable to pack.
    pub batch: SealedBatch,
    folding: Folding<RunSink>,
    block: EntryBlock,
    cursor: memtable::Cursor,
    /// Updates the rows of this index in the row cache.
    rows: RowUpdates,
    pool: Arc<Pool>,
}

impl PackJob {
    /// Starts packing. `bottom` says that the index is empty. From this call on, the row cache accepts no rows from
    /// older roots. When the job ends, the row cache contains the changes of the memtable. The root with the new run is
    /// published only after that.
    pub fn new(
        core: &Core,
        rows: &Arc<IndexRows>,
        batch: SealedBatch,
        filter: FilterBuilder,
        stripes: Stripes,
        operator: Option<Operator>,
        bottom: bool,
    ) -> PackJob {
        let tombstones = batch.memtable.fragments().clipped(&KeyRange::all());
        let rows = RowUpdates::begin(rows, &batch);
        let folding = folding(core, filter, batch.bytes, stripes, operator, bottom, &tombstones);
        let folding = folding.separating(core, batch.inline_bytes, batch.bytes);
        let cursor = memtable::Cursor::new(batch.memtable.clone(), KeyRange::all(), false);
        PackJob { batch, folding, block: EntryBlock::new(), cursor, rows, pool: core.pool.clone() }
    }

    /// Processes about `budget` bytes. Returns the number of processed bytes, and whether the job can be finished.
    /// After the last message, further steps of 0 bytes prepare the end of the run.
    pub fn step(&mut self, budget: u64) -> Result<(u64, bool)> {
        let mut done = 0;
        adapt(&mut self.folding, budget);
        while done < budget {
            self.block.clear();
            let rest = crate::space::to_usize(budget - done);
            self.cursor.fill(if is_small(budget) { rest.max(PAGE) } else { PACK_BLOCK }, &mut self.block);
            if self.block.is_empty() {
                return Ok((done, prepare(&mut self.folding, budget - done)?));
            }
            // What was just written is in memory, and stays there if nothing is evicted for it.
            let is_warm = self.pool.has_room(PACK_BLOCK);
            let mut entries = self.block.iter().peekable();
            while let Some(entry) = entries.next() {
                debug_assert!(entry.seqno <= self.batch.through, "a memtable holds messages up to `through`");
                let last_of_key = entries.peek().is_some_and(|next| next.key != entry.key);
                self.folding.push(entry, last_of_key, is_warm)?;
            }
            self.rows.absorb(self.cursor.continues_key(), &self.block);
            done += self.block.bytes() as u64;
        }
        Ok((done, false))
    }

    /// Completes the run.
    pub fn finish(self) -> Result<Output> {
        finish(self.folding)
    }
}

/// The large values that messages of a memtable refer to.
pub fn blobs_of(memtable: &Arc<Memtable>) -> Vec<Extent> {
    let (mut blobs, mut block) = (Vec::new(), EntryBlock::new());
    let mut cursor = memtable::Cursor::new(memtable.clone(), KeyRange::all(), false);
    loop {
        block.clear();
        cursor.fill(PACK_BLOCK, &mut block);
        let named = block.iter().filter(|entry| entry.kind == Kind::BlobPut);
        blobs.extend(named.filter_map(|entry| BlobRef::decode(entry.value).ok()).map(|blob| blob.extent()));
        if block.is_empty() {
            return blobs;
        }
    }
}

/// The inputs of a compaction.
#[derive(Clone)]
pub struct Inputs {
    /// The slices, oldest first.
    pub slices: Vec<Arc<RunSlice>>,
    /// The keys for which the slices are compacted, as disjoint ranges in key order.
    pub live: Vec<KeyRange>,
    /// Whether nothing older than the inputs exists for these keys, so that tombstones can be dropped.
    pub bottom: bool,
    /// Estimated bytes of the inputs.
    pub bytes: u64,
}

/// Compacts slices into one run.
pub struct MergeJob {
    from: Inputs,
    folding: Folding<RunSink>,
    /// The cursors for the current live range. The first `opened` of these cursors are open.
    inputs: Vec<RunCursor>,
    opened: usize,
    /// Bytes that all inputs together may read ahead.
    read_ahead: u64,
    /// The number of bytes that each input reads at a time. The first read of an input may be shorter.
    chunk: usize,
    merge: Option<MergeCursor>,
    /// Index of the next live range.
    range: usize,
    /// The input run that could not be read, if the job has failed for this reason.
    pub failed: Option<OwnerId>,
}

impl MergeJob {
    /// Starts a compaction.
    ///
    /// # Errors
    /// Returns the run whose range tombstones cannot be read, and the error.
    pub fn new(
        core: &Core,
        inputs: Inputs,
        filter: FilterBuilder,
        stripes: Stripes,
        operator: Option<Operator>,
    ) -> Result<MergeJob, (OwnerId, Error)> {
        assert!(!inputs.live.is_empty(), "a compaction has keys");
        debug_assert!(
            inputs.live.windows(2).all(|pair| !pair[0].to.is_empty() && pair[0].to <= pair[1].from),
            "the ranges are disjoint and in order"
        );
        let mut tombstones = Vec::new();
        for slice in &inputs.slices {
            for live in &inputs.live {
                let range = live.intersect(slice.range());
                let run = slice.run().meta().id;
                tombstones.extend(slice.tombstones(&range).map_err(|e| (run, e))?);
            }
        }
        let folding = folding(core, filter, inputs.bytes, stripes, operator, inputs.bottom, &tombstones);
        Ok(MergeJob {
            from: inputs,
            folding,
            inputs: Vec::new(),
            opened: 0,
            read_ahead: READ_AHEAD_IN_ALL.min(core.pool.size() as u64 / READ_AHEAD_OF_POOL),
            chunk: 0,
            merge: None,
            range: 0,
            failed: None,
        })
    }

    /// Sets the compression of the output. Call this function before the first step.
    #[must_use]
    pub fn with_compression(self, compression: Compression) -> MergeJob {
        assert!(self.range == 0, "the compression is set before the first step");
        let folding =
            self.folding.map_sink(|sink| RunSink { builder: sink.builder.with_compression(compression), ..sink });
        MergeJob { folding, ..self }
    }

    /// Processes about `budget` bytes. Returns the number of processed bytes, and whether the job can be finished.
    /// After the last message, further steps of 0 bytes prepare the end of the run.
    pub fn step(&mut self, budget: u64) -> Result<(u64, bool)> {
        let mut done = 0;
        adapt(&mut self.folding, budget);
        while done < budget {
            let Some(merge) = &mut self.merge else {
                if self.inputs.is_empty() && !self.next_range(budget) {
                    return Ok((done, prepare(&mut self.folding, budget - done)?));
                }
                done += self.open_some(budget - done)?;
                continue;
            };
            while done < budget {
                let Some(entry) = merge.entry() else {
                    self.merge = None;
                    break;
                };
                done += (entry.key.len() + entry.value.len() + 8) as u64;
                // What the pool has, lookups find there after the compaction, too.
                self.folding.push(entry, merge.is_last_of_key(), merge.is_pooled())?;
                merge.advance().inspect_err(|_| self.failed = merge.failed())?;
            }
        }
        Ok((done, false))
    }

    /// Sets up the cursors for the next live range, for steps of `budget` bytes. Returns `false` if no live range is left.
    fn next_range(&mut self, budget: u64) -> bool {
        debug_assert!(self.merge.is_none() && self.inputs.is_empty(), "the last range is done");
        let Some(range) = self.from.live.get(self.range) else { return false };
        self.range += 1;
        self.opened = 0;
        let slices = self.from.slices.iter().filter(|slice| slice.range().overlaps(range));
        let count = slices.clone().count();
        let least = if is_small(budget) { SMALL_STEP } else { *READ_AHEAD.start() };
        let most = (self.read_ahead / count.max(1) as u64).clamp(least, *READ_AHEAD.end());
        self.chunk = (self.from.bytes / READ_AHEAD_SHARE).clamp(least, most) as usize;
        let (first, chunk) = (|i| self.chunk * (i + 1) / count, self.chunk);
        let cursor = |(i, slice): (usize, &Arc<RunSlice>)| {
            RunCursor::pending(slice.clone(), range, false, ReadAhead::Staggered(first(i), chunk))
        };
        self.inputs = slices.enumerate().map(cursor).collect();
        !self.inputs.is_empty() || self.next_range(budget)
    }

    /// Opens further inputs, at least one, until the first chunks of these inputs add up to about `budget` bytes. The
    /// inputs that are needed for the first key are read concurrently. The other inputs are only prepared, and read
    /// nothing yet. After the last input, the merge begins. Returns the approximate number of bytes read.
    fn open_some(&mut self, budget: u64) -> Result<u64> {
        let first = &self.from.live[self.range - 1].from;
        let (start, count) = (self.opened, self.inputs.len());
        if start == count {
            let merge = MergeCursor::new(std::mem::take(&mut self.inputs), false);
            self.merge = Some(merge.map_err(|(run, e)| {
                self.failed = Some(run);
                e
            })?);
            return Ok(0);
        }
        debug_assert!(start < count && self.chunk > 0, "an input is left to open");
        let mut bytes = 0;
        while self.opened < count && bytes < budget {
            self.opened += 1;
            let chunk = self.chunk * self.opened / count;
            bytes += if is_small(budget) { chunk.max(PAGE) } else { chunk } as u64;
        }
        let some = &mut self.inputs[start..self.opened];
        // Inputs that begin at a larger key are opened when the merge reaches this key.
        if !some.iter().any(|cursor| cursor.lower_bound().is_some_and(|key| key <= first.as_slice())) {
            return Ok(0);
        }
        RunCursor::open_all(some).map_err(|(i, e)| {
            self.failed = Some(some[i].slice().run().meta().id);
            e
        })?;
        Ok(bytes)
    }

    /// Completes the run.
    pub fn finish(self) -> Result<Output> {
        finish(self.folding)
    }
}
