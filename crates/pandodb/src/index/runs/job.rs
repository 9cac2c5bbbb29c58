//! Two kinds of jobs: packing a memtable into a run, and compacting slices into one run. Both run in resumable steps.
//!
//! ```text
//!   memtable ──fill──┐
//!                    ├──▶ group by key ──▶ fold (stripes, operator, tombstones) ──▶ RunBuilder ──▶ RunMeta
//!   slices ───merge──┘
//! ```
//!
//! A job owns everything that it needs. Dropping a job frees everything that it wrote. A job keeps the versions that
//! are visible at the read points which existed when the job started. Read points that are registered later are newer
//! than all inputs of the job.

use std::sync::Arc;

use crate::base::{
    BlobRef, Entry, EntryBlock, Error, Extent, FragmentSweep, Fragments, KeyRange, Kind, OwnerId, PAGE, RangeTombstone,
    Result, Seqno, key_hash,
};
use crate::filter::FilterBuilder;
use crate::index::{Core, SealedBatch};
use crate::memtable::{self, Memtable};
use crate::pool::Pool;
use crate::resolve::{FoldOutput, Operator, Stripes, fold_key, fold_newest, prune_tombstones};
use crate::rows::{Change, IndexRows};
use crate::run::{Compression, MergeCursor, ReadAhead, Run, RunBuilder, RunCursor, RunMeta, RunSlice};
use crate::space::data::DATA_FILE;
use crate::space::values::{NewValues, ValueWriter};

use super::deletes::{Deletes, Tally};

/// Minimum and maximum number of bytes that a compaction reads ahead from each input. A compaction has many inputs, so
/// these bounds limit its memory and the size of a step.
const READ_AHEAD: std::ops::RangeInclusive<u64> = 16 << 10..=128 << 10;
/// From each input, a compaction reads ahead 1/64 of the bytes of all inputs, within the limits above.
const READ_AHEAD_SHARE: u64 = 64;
/// Maximum bytes that a compaction reads ahead from all inputs together, unless the minimum for each input adds up to
/// more. If the device reads asynchronously, the same number of bytes may be in flight in addition.
const READ_AHEAD_IN_ALL: u64 = 2 << 20;
/// A compaction also reads ahead at most 1/24 of the pool's size from all inputs together, so that its buffers fit in a
/// small memory budget.
const READ_AHEAD_OF_POOL: u64 = 24;
/// Once a key has this number of messages, the messages that were collected so far are folded. So a counter with millions
/// of operands takes little memory.
const FOLD_AT: usize = 16;
/// Bytes copied from a memtable at a time.
const PACK_BLOCK: usize = 64 << 10;

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

/// Moves values out of the run that is being built. Compactions do not copy such values.
struct Separation {
    /// Values of at most this many bytes stay in the run.
    above: usize,
    values: ValueWriter,
}

impl Separation {
    /// Whether the value of `entry` is moved out of the run.
    #[inline]
    fn is_for(&self, entry: &Entry<'_>) -> bool {
        entry.kind == Kind::Put && ValueWriter::is_worth(entry.value.len(), self.above)
    }
}

/// Groups messages by key, folds each group, and writes the result.
struct Folding {
    builder: RunBuilder,
    stripes: Stripes,
    operator: Option<Operator>,
    bottom: bool,
    tombstones: FragmentSweep,
    group: EntryBlock,
    /// The seqno of the last message of the group, before any folding.
    last: Seqno,
    /// The group is folded while it is collected when it has at least this number of messages, and this number of bytes.
    fold_at: (usize, usize),
    out: FoldOutput,
    deletes: Tally,
    /// Set while a memtable is packed.
    separation: Option<Separation>,
    /// The encoded reference of the last value that was moved out of the run.
    reference: Vec<u8>,
    output: Output,
}

impl Folding {
    fn new(
        core: &Core,
        filter: FilterBuilder,
        expected_bytes: u64,
        stripes: Stripes,
        operator: Option<Operator>,
        bottom: bool,
        tombstones: &[RangeTombstone],
    ) -> Folding {
        let builder = RunBuilder::new(core.data.clone(), core.ids.next(), expected_bytes);
        let mut builder = builder.with_filter(filter).cached_in(core.pool.clone());
        for tombstone in prune_tombstones(tombstones, &stripes, bottom) {
            builder.push_tombstone(tombstone);
        }
        let horizon = stripes.horizon;
        Folding {
            builder,
            stripes,
            operator,
            bottom,
            tombstones: FragmentSweep::new(Arc::new(Fragments::build(tombstones))),
            group: EntryBlock::new(),
            last: Seqno(0),
            fold_at: (FOLD_AT, 0),
            out: FoldOutput::default(),
            deletes: Tally::default(),
            separation: None,
            reference: Vec::new(),
            output: Output {
                meta: None,
                deletes: Deletes::default(),
                kept_blobs: Vec::new(),
                new_values: NewValues::none(core.data.clone()),
                dropped_blobs: Vec::new(),
                horizon,
            },
        }
    }

    /// Adds the next message in order. If `last_of_key` is set, the next message certainly has another key; otherwise
    /// this is unknown. The result of the messages of a key is as warm ([`RunBuilder::set_warm`]) as the newest message.
    ///
    /// # Errors
    /// [`Error::Corruption`] if `entry` is not after the previous message. Each input is in order, so in that case two
    /// inputs hold the same message.
    #[inline]
    fn push(&mut self, entry: Entry<'_>, last_of_key: bool, is_warm: bool) -> Result<()> {
        if let Some(last) = self.group.len().checked_sub(1).map(|last| self.group.get(last)) {
            if last.key != entry.key {
                self.close_group()?;
            } else if self.last <= entry.seqno {
                let detail = format!("two of the runs hold the message with seqno {}", entry.seqno);
                return Err(Error::corruption("inputs of a compaction", 0, detail).in_file(DATA_FILE, 0));
            }
        }
        if self.group.is_empty() {
            self.builder.set_warm(is_warm);
        }
        if last_of_key && self.group.is_empty() {
            // The message need not be copied.
            return self.write(std::slice::from_ref(&entry));
        }
        self.last = entry.seqno;
        self.group.push(entry);
        if self.group.len() >= self.fold_at.0 && self.group.bytes() >= self.fold_at.1 {
            self.fold_part();
        }
        Ok(())
    }

    /// Folds the messages of the group that were collected so far.
    fn fold_part(&mut self) {
        let group: Vec<Entry<'_>> = self.group.iter().collect();
        let tombs = self.tombstones.seqnos(group[0].key);
        fold_newest(&group, tombs, &self.stripes, self.operator.as_ref(), &mut self.out);
        let mut rest = EntryBlock::new();
        self.out.entries(&group).for_each(|entry| rest.push(entry));
        self.group = rest;
        self.take_dropped();
        // A fold copies what it keeps, so wait until as much was added. An operator may combine no operands, or append them.
        self.fold_at = (FOLD_AT.max(self.group.len() * 2), self.group.bytes() * 2);
    }

    /// Folds the collected messages of one key and writes the result.
    fn close_group(&mut self) -> Result<()> {
        let messages = std::mem::take(&mut self.group);
        let first;
        let many: Vec<Entry<'_>>;
        let group = match messages.len() {
            0 => return Ok(()),
            1 => {
                first = messages.get(0);
                std::slice::from_ref(&first)
            }
            _ => {
                many = messages.iter().collect();
                &many
            }
        };
        self.write(group)?;
        self.group = messages;
        self.group.clear();
        self.fold_at = (FOLD_AT, 0);
        Ok(())
    }

    /// Folds `group`, which are all messages of one key, and writes the result.
    fn write(&mut self, group: &[Entry<'_>]) -> Result<()> {
        debug_assert!(
            group.windows(2).all(|pair| pair[0].key == pair[1].key && pair[0].seqno > pair[1].seqno),
            "messages of one key, newest first"
        );
        let tombs = self.tombstones.seqnos(group[0].key);
        if let ([entry], []) = (group, tombs)
            && entry.kind == Kind::Put
            && !self.separation.as_ref().is_some_and(|separation| separation.is_for(entry))
        {
            // Most keys have one message, which stays as it is.
            return self.builder.push(*entry);
        }
        fold_key(group, tombs, &self.stripes, self.bottom, self.operator.as_ref(), &mut self.out);
        for mut entry in self.out.entries(group) {
            if let Some(separation) = self.separation.as_mut().filter(|separation| separation.is_for(&entry)) {
                self.reference.clear();
                separation.values.push(entry.value)?.encode(&mut self.reference);
                entry = Entry { kind: Kind::BlobPut, value: &self.reference, ..entry };
            }
            match entry.kind {
                Kind::BlobPut => self.output.kept_blobs.push(BlobRef::decode(entry.value)?.extent()),
                Kind::Delete => self.deletes.push(entry.key),
                _ => {}
            }
            self.builder.push(entry)?;
        }
        self.take_dropped();
        Ok(())
    }

    /// Notes the large values whose messages the last fold has dropped.
    fn take_dropped(&mut self) {
        self.output.dropped_blobs.extend(self.out.dropped_blobs.drain(..).map(|blob| blob.extent()));
    }

    /// Prepares the end of the run after the last message; see [`RunBuilder::prepare`]. Returns whether the run can be
    /// finished.
    fn prepare(&mut self, budget: u64) -> Result<bool> {
        self.close_group()?;
        self.builder.prepare(budget)
    }

    fn finish(mut self) -> Result<Output> {
        self.close_group()?;
        if let Some(separation) = self.separation.take() {
            self.output.new_values = separation.values.finish()?;
        }
        self.output.deletes = self.deletes.finish();
        self.output.meta = self.builder.finish()?;
        let meta = self.output.meta.as_ref();
        assert!(meta.is_some() || self.output.kept_blobs.is_empty(), "only messages of a run name large values");
        let deletes = meta.map_or(0, |meta| meta.deletes);
        assert_eq!(self.output.deletes.count(), deletes, "the positions cover every delete of the run");
        let blobs = meta.map_or(0, |meta| meta.blob_puts);
        assert_eq!(self.output.kept_blobs.len() as u64, blobs, "every large value of the run is listed");
        Ok(self.output)
    }
}

/// Packs a sealed memtable into a run.
pub struct PackJob {
    /// The memtable to pack.
    pub batch: SealedBatch,
    folding: Folding,
    block: EntryBlock,
    cursor: memtable::Cursor,
    /// The rows of this index in the row cache, which the job updates.
    rows: Option<Arc<IndexRows>>,
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
        let ranges = batch.memtable.fragments();
        let tombstones = ranges.clipped(&KeyRange::all());
        let rows = rows.begin(batch.through).then(|| rows.clone());
        if let Some(rows) = rows.as_ref().filter(|_| !ranges.is_empty()) {
            rows.remove_where(|key, seqno| ranges.covering(key, Seqno::MAX) > seqno);
        }
        let mut folding = Folding::new(core, filter, batch.bytes, stripes, operator, bottom, &tombstones);
        let values = ValueWriter::new(core.data.clone(), batch.bytes);
        folding.separation = Some(Separation { above: batch.inline_bytes, values });
        let cursor = memtable::Cursor::new(batch.memtable.clone(), KeyRange::all(), false);
        PackJob { batch, folding, block: EntryBlock::new(), cursor, rows, pool: core.pool.clone() }
    }

    /// Processes about `budget` bytes. Returns the number of processed bytes, and whether the job can be finished.
    /// After the last message, further steps of 0 bytes prepare the end of the run.
    pub fn step(&mut self, budget: u64) -> Result<(u64, bool)> {
        let mut done = 0;
        while done < budget {
            self.block.clear();
            self.cursor.fill(PACK_BLOCK, &mut self.block);
            if self.block.is_empty() {
                return Ok((done, self.folding.prepare(budget - done)?));
            }
            // What was just written is in memory, and stays there if nothing is evicted for it.
            let is_warm = self.pool.has_room(PACK_BLOCK);
            let mut entries = self.block.iter().peekable();
            while let Some(entry) = entries.next() {
                debug_assert!(entry.seqno <= self.batch.through, "a memtable holds messages up to `through`");
                let last_of_key = entries.peek().is_some_and(|next| next.key != entry.key);
                self.folding.push(entry, last_of_key, is_warm)?;
            }
            if let Some(rows) = &self.rows {
                absorb(rows, self.cursor.continues_key(), &self.block);
            }
            done += self.block.bytes() as u64;
        }
        Ok((done, false))
    }

    /// Completes the run.
    pub fn finish(self) -> Result<Output> {
        self.folding.finish()
    }
}

/// Updates the row cache with the newest message of each key in a block. `continued` says that the first key of the
/// block equals the key of the previous message.
fn absorb(rows: &IndexRows, continued: bool, block: &EntryBlock) {
    let mut before = block.iter().next().filter(|_| continued).map(|entry| entry.key);
    for entry in block.iter() {
        // The newest message of a key comes first, so use only the first message of each key.
        if before != Some(entry.key) {
            let change = match entry.kind {
                Kind::Put => Change::Value(entry.value, entry.seqno),
                _ => Change::Other,
            };
            rows.absorb(entry.key, key_hash(entry.key), change);
        }
        before = Some(entry.key);
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
    folding: Folding,
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
        let folding = Folding::new(core, filter, inputs.bytes, stripes, operator, inputs.bottom, &tombstones);
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
        let builder = self.folding.builder.with_compression(compression);
        MergeJob { folding: Folding { builder, ..self.folding }, ..self }
    }

    /// Processes about `budget` bytes. Returns the number of processed bytes, and whether the job can be finished.
    /// After the last message, further steps of 0 bytes prepare the end of the run.
    pub fn step(&mut self, budget: u64) -> Result<(u64, bool)> {
        let mut done = 0;
        while done < budget {
            let Some(merge) = &mut self.merge else {
                if self.inputs.is_empty() && !self.next_range() {
                    return Ok((done, self.folding.prepare(budget - done)?));
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

    /// Sets up the cursors for the next live range. Returns `false` if no live range is left.
    fn next_range(&mut self) -> bool {
        debug_assert!(self.merge.is_none() && self.inputs.is_empty(), "the last range is done");
        let Some(range) = self.from.live.get(self.range) else { return false };
        self.range += 1;
        self.opened = 0;
        let slices = self.from.slices.iter().filter(|slice| slice.range().overlaps(range));
        let count = slices.clone().count();
        let most = (self.read_ahead / count.max(1) as u64).min(*READ_AHEAD.end()).max(*READ_AHEAD.start());
        self.chunk = (self.from.bytes / READ_AHEAD_SHARE).clamp(*READ_AHEAD.start(), most) as usize;
        let (first, chunk) = (|i| self.chunk * (i + 1) / count, self.chunk);
        let cursor = |(i, slice): (usize, &Arc<RunSlice>)| {
            RunCursor::pending(slice.clone(), range, false, ReadAhead::Staggered(first(i), chunk))
        };
        self.inputs = slices.enumerate().map(cursor).collect();
        !self.inputs.is_empty() || self.next_range()
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
            bytes += (self.chunk * self.opened / count) as u64;
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
        self.folding.finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::StoreId;
    use crate::device::MemDevice;
    use crate::filter::Filters;
    use crate::index::IdSource;
    use crate::resolve::{AddU64, Append};
    use crate::rows::RowCache;
    use crate::space::DataFile;

    fn folding(operator: Option<Operator>) -> Folding {
        let data = DataFile::create(&*MemDevice::new(), DATA_FILE, StoreId([1; 16])).unwrap();
        let core = Core {
            data,
            pool: Arc::new(Pool::new(1 << 20)),
            rows: RowCache::new(1 << 20),
            ids: Arc::new(IdSource::new(1)),
            repair: true,
            repairs: Arc::default(),
            share: Default::default(),
        };
        let stripes = Stripes { snapshots: Vec::new(), horizon: Seqno::MAX };
        Folding::new(&core, FilterBuilder::new(Filters::Bloom, 1), 0, stripes, operator, false, &[])
    }

    #[test]
    fn a_key_with_many_messages_takes_little_memory() {
        let mut folding = folding(Some(Operator::new(Arc::new(AddU64))));
        for seqno in (1..=100_000).rev() {
            let entry = Entry { key: b"key", seqno: Seqno(seqno), kind: Kind::Merge, value: &1u64.to_le_bytes() };
            folding.push(entry, false, false).unwrap();
            assert!(folding.group.len() < FOLD_AT, "{} messages are kept", folding.group.len());
        }
        folding.close_group().unwrap();
        assert_eq!(folding.finish().unwrap().meta.unwrap().merges, 1);
    }

    #[test]
    fn appended_bytes_are_copied_a_few_times() {
        let mut folding = folding(Some(Operator::new(Arc::new(Append))));
        let mut most = 0;
        for seqno in (1..=50_000).rev() {
            let before = folding.fold_at.1;
            folding
                .push(Entry { key: b"key", seqno: Seqno(seqno), kind: Kind::Merge, value: &[7; 16] }, false, false)
                .unwrap();
            most += if folding.fold_at.1 == before { 0 } else { folding.group.bytes() };
        }
        assert!(most < 4 * 50_000 * 16, "{most} bytes are copied");
        folding.close_group().unwrap();
        assert_eq!(folding.finish().unwrap().meta.unwrap().value_bytes, 50_000 * 16);
    }

    #[test]
    fn a_message_in_two_inputs_is_reported_as_corruption() {
        let mut folding = folding(None);
        let entry = |seqno| Entry { key: b"key", seqno: Seqno(seqno), kind: Kind::Put, value: b"value" };
        folding.push(entry(5), false, false).unwrap();
        folding.push(entry(3), false, false).unwrap();
        assert!(folding.push(entry(3), false, false).unwrap_err().is_corruption());
    }
}
