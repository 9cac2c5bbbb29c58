//! Writes parts to the tree on disk: in the background the heaviest ones, for a checkpoint all.
//!
//! ```text
//!   parts ─seal─▶ sealed memtables ─▶ job ─▶ new pages ─▶ publish: root, range tombstones, large values, parts
//! ```
//!
//! Invariants: one job runs at a time. It writes sealed memtables to whose bounds all commits are applied.

use std::sync::Arc;

use super::shared::State;
use super::state::{PartedTree, bounds};
use super::view::PartView;
use crate::base::range::subtract;
use crate::base::sync::Ordering::Relaxed;
use crate::base::{BlobRef, BlockAddr, EntryBlock, Error, Extent, KeyRange, Kind, PAGE, RangeTombstone, Result, Seqno};
use crate::base::{events, seeded};
use crate::index::Progress;
use crate::index::blobs::BlobMap;
use crate::index::cached_rows::RowUpdates;
use crate::index::parts::{InputPart, Part, PartInput, Reach};
use crate::index::tree::Tree;
use crate::index::tree::job::{Done, Job, Stage, Tools, Wanted};
use crate::index::tree::publish::joined;
use crate::index::tree::sweep::seen_by_all;
use crate::index::tree::world::World;
use crate::memtable::{self, Memtable};
use crate::resolve::Stripes;
use crate::space::DataFile;

/// A checkpoint has about this number of jobs.
const CHECKPOINT_PIECES: usize = 4;
/// The bytes of a memtable that are searched for large values at a time.
const BLOCK: usize = 64 << 10;

impl PartedTree {
    /// The bytes of pages that a checkpoint takes at most.
    pub(super) fn unwritten_bytes(&self) -> u64 {
        // Those that are prepared first: they are applied before they count as prepared no longer.
        let bytes = self.space.prepared() + self.shared.bytes.load(Relaxed) as u64;
        if bytes == 0 { 0 } else { 2 * bytes + self.pages_of_one() }
    }

    /// The bytes of pages that a checkpoint of one message takes at most. On a full disk, a checkpoint leaves all messages
    /// in the buffer of the root. If the tree has too few levels for buffers, the checkpoint may rewrite the whole tree,
    /// which is small.
    pub(super) fn pages_of_one(&self) -> u64 {
        let Tree { sizes, published, .. } = &self.shared.tree;
        let tree = published.load();
        let is_small = tree.root.is_none_or(|root| root.level < sizes.levels.buffered_from);
        let old = if is_small { tree.page_bytes() } else { 2 * self.root_buffer.load(Relaxed) };
        let page = |bytes: usize| bytes.next_multiple_of(PAGE) as u64;
        old + 4 * page(sizes.leaf.bytes) + 4 * (page(sizes.levels.buffered.bytes) + page(sizes.levels.plain.bytes))
    }

    /// Updates the debt: the bytes in memory above the limit, and those in the buffer of the root.
    pub(super) fn note_debt(&self) {
        let over = self.shared.bytes.load(Relaxed).saturating_sub(self.most_bytes()) as u64;
        let bytes = over + self.root_buffer.load(Relaxed);
        let owing = &self.shared.tree.owing;
        if bytes > 0 && owing.debt().work_bytes != bytes && self.stuck.lock().is_none() {
            owing.change(|own| own.work_bytes = bytes);
        }
    }

    /// After a search that found no work: what remains are the bytes that [`PartedTree::note_debt`] counts.
    fn note_no_work(&self) {
        let tree = &self.shared.tree;
        let inner = tree.inner.lock();
        let is_requested = !inner.requested.is_empty();
        tree.owing.change(|own| {
            (own.work_bytes, own.optional_bytes) = (0, 0);
            own.requested_bytes = if is_requested { own.requested_bytes } else { 0 };
        });
        drop(inner);
        self.note_debt();
    }

    /// After damage, no job sweeps any more, and commits are refused.
    pub(super) fn note_damage(&self, error: &Error) {
        let tree = &self.shared.tree;
        tree.inner.lock().damage.get_or_insert_with(|| error.clone());
        self.stuck.lock().get_or_insert_with(|| error.clone());
        tree.owing.change(|own| (own.work_bytes, own.requested_bytes, own.optional_bytes) = (0, 0, 0));
    }

    /// Writes the heaviest parts, of about `bytes` bytes, and those that a caller wants compacted. Also sweeps. REQUIRES:
    /// the caller holds `writing`.
    ///
    /// # Errors
    /// If a page cannot be read or written, except for damage. Nothing has changed then.
    pub(super) fn cool(
        &self,
        bytes: usize,
        reach: Reach,
        piece_bytes: Option<u64>,
        keep: &dyn Fn() -> Stripes,
    ) -> Result<Progress> {
        let idle = Progress { idle: true, ..Progress::default() };
        if self.stuck.lock().is_some() {
            // The index can do no work, so no thread may wait for its work.
            let owing = &self.shared.tree.owing;
            owing.change(|own| (own.work_bytes, own.requested_bytes, own.optional_bytes) = (0, 0, 0));
            return Ok(idle);
        }
        let requested = self.shared.tree.inner.lock().requested.clone();
        // A job writes no message that a checkpoint in progress does not describe.
        let least = |visible: Seqno| self.cuts.lock().iter().fold(visible, |at, &cut| at.min(cut));
        let chosen = self.seal_heaviest(bytes, &requested, least(keep().horizon));
        let keep = keep();
        let through = least(keep.horizon);
        let input = self.input(&chosen, seeded!(PartWrittenEarly: Seqno::MAX, through), reach, piece_bytes);
        let is_incomplete = |part: &&Arc<Part>| part.stack.read().sealed.iter().any(|sealed| sealed.bound > through);
        let incomplete: Vec<KeyRange> = chosen.iter().filter(is_incomplete).map(|part| part.keys.clone()).collect();
        // Without all messages, a compaction of these keys would not be complete.
        let requested = requested.iter().flat_map(|range| subtract(range, &incomplete)).collect();
        match self.write(input, requested, keep) {
            // The replaced pages are kept until a checkpoint.
            Ok(Some(bytes)) => {
                if reach == Reach::Buffers {
                    self.is_short.store(false, Relaxed);
                }
                Ok(Progress { bytes, merged: bytes, ..Progress::default() })
            }
            Ok(None) => {
                self.note_no_work();
                Ok(idle)
            }
            Err(e) if e.is_damage() => {
                self.note_damage(&e);
                Progress::unless_damage(e)
            }
            Err(e) => Err(e),
        }
    }

    /// Writes all messages up to `cut`, in several jobs, so that no thread waits for all of them. If a page below the root
    /// is damaged, or the disk is full, the messages stay in the buffer of the root. Returns the state that has all of
    /// them.
    ///
    /// # Errors
    /// Damage, if it keeps even the root from being written, and other errors of a job.
    pub(super) fn write_to(&self, cut: Seqno, keep: &dyn Fn() -> Stripes) -> Result<World> {
        let most = (self.most_bytes() / CHECKPOINT_PIECES) as u64;
        let mut reach = if self.is_short.load(Relaxed) { Reach::Root } else { Reach::Buffers };
        loop {
            let _writing = self.writing.lock();
            if self.stuck.lock().is_some() {
                reach = Reach::Root;
            }
            let (state, mut count, mut bytes) = (self.shared.current.load_full(), 0, 0);
            let is_needed = |part: &&Arc<Part>| part.stack.read().sealed.iter().any(|sealed| sealed.bound <= cut);
            let parts: Vec<Arc<Part>> = state.parts.iter().filter(is_needed).cloned().collect();
            while count < parts.len() && bytes <= most {
                bytes += parts[count].stack.read().weight() as u64;
                count += 1;
            }
            match self.write(self.input(&parts[..count], cut, reach, None), Vec::new(), keep()) {
                Ok(_) if count == parts.len() => {
                    let mut inner = self.shared.tree.inner.lock();
                    assert!(inner.world.through <= cut, "until then, no job writes messages above the cut");
                    // While `writing` is held, so that no job starts from a state with another `through`.
                    inner.world.through = cut;
                    return Ok(inner.world.clone());
                }
                Ok(_) => {}
                Err(e) if e.is_damage() && reach == Reach::Buffers => self.note_damage(&e),
                Err(Error::DiskFull { .. }) if reach == Reach::Buffers => {
                    self.is_short.store(true, Relaxed);
                    reach = Reach::Root;
                }
                Err(e) => return Err(e),
            }
        }
    }

    /// Chooses the heaviest parts of together at least `bytes` bytes, and all with keys of `requested`, and seals them.
    /// A part with a sealed memtable that cannot be written yet, because it has messages above `through`, is not sealed
    /// again.
    fn seal_heaviest(&self, bytes: usize, requested: &[KeyRange], through: Seqno) -> Vec<Arc<Part>> {
        let _publishing = self.shared.publishing.lock();
        let state = self.shared.current.load_full();
        let weights: Vec<usize> = state.parts.iter().map(|part| part.stack.read().weight()).collect();
        let mut chosen: Vec<usize> = (0..weights.len()).filter(|&i| weights[i] > 0).collect();
        chosen.sort_by_key(|&i| std::cmp::Reverse(weights[i]));
        let mut left = bytes;
        chosen.retain(|&i| {
            let is_heavy = left > 0;
            left = left.saturating_sub(weights[i]);
            is_heavy || requested.iter().any(|range| range.overlaps(&state.parts[i].keys))
        });
        chosen.sort_unstable();
        let parts: Vec<Arc<Part>> = chosen.into_iter().map(|i| state.parts[i].clone()).collect();
        let waits = |part: &Part| part.stack.read().sealed.iter().any(|sealed| sealed.bound > through);
        parts.iter().filter(|part| !waits(part)).for_each(|part| self.seal(part));
        parts
    }

    /// Seals the active memtable of a part. REQUIRES: the caller holds `publishing`.
    pub(super) fn seal(&self, part: &Part) {
        part.stack.write().seal(&part.keys, Some(&self.shared.chunks));
    }

    /// The sealed memtables of the parts whose messages are all at or below `through`.
    pub(super) fn input(
        &self,
        parts: &[Arc<Part>],
        through: Seqno,
        reach: Reach,
        piece_bytes: Option<u64>,
    ) -> PartInput {
        let (mut chosen, mut tombstones, mut bytes) = (Vec::new(), Vec::new(), 0);
        for part in parts {
            let mut sealed = part.stack.read().sealed.clone();
            sealed.retain(|sealed| sealed.bound <= through);
            for sealed in &sealed {
                bytes += sealed.weight.load(Relaxed) as u64;
                tombstones.extend(tombstones_of(&sealed.memtable, &sealed.keys));
            }
            if !sealed.is_empty() {
                chosen.push(InputPart { part: part.clone(), sealed });
            }
        }
        let inline_bytes = self.inline_bytes.load(Relaxed);
        PartInput { parts: chosen, through, bytes, inline_bytes, tombstones, reach, piece_bytes }
    }

    /// Writes `input`, and sweeps, also the ranges `requested`. Returns the bytes of messages that were written; `None` if
    /// there was nothing to do. REQUIRES: the caller holds `writing`.
    ///
    /// # Errors
    /// If a page cannot be read or written. Nothing has changed then.
    pub(super) fn write(&self, input: PartInput, requested: Vec<KeyRange>, keep: Stripes) -> Result<Option<u64>> {
        let tree = &self.shared.tree;
        let inner = tree.inner.lock();
        let (from, is_damaged) = (inner.world.clone(), inner.damage.is_some());
        drop(inner);
        let sweeps = input.reach != Reach::Root && !is_damaged;
        let has_sweep = || {
            let tombstones = from.tombstones.clipped(&KeyRange::all());
            !requested.is_empty() || !seen_by_all(&tombstones, &keep).is_empty()
        };
        let in_root = self.root_buffer.load(Relaxed);
        let empties_root = input.reach != Reach::Root && in_root > 0;
        if input.parts.is_empty() && !empties_root && !(sweeps && has_sweep()) {
            return Ok(None);
        }
        let input = Arc::new(input);
        let tools = Tools {
            core: &tree.core,
            sizes: &tree.sizes,
            source: &tree.source,
            rows: &RowUpdates::default(),
            index_rows: &tree.rows,
        };
        let requested = if sweeps { requested } else { Vec::new() };
        let wanted = Wanted { hot: None, parts: Some(input.clone()), sweeps, requested };
        let job = Job::new(tools, from.clone(), None, keep, wanted, None);
        let mut job = if is_damaged { job.without_joins() } else { job };
        let stage = loop {
            match job.step(u64::MAX)?.1 {
                Stage::Busy => {}
                stage => break stage,
            }
        };
        let done = job.finish(stage)?;
        if input.parts.is_empty() && done.replaced.is_empty() && done.swept.is_empty() {
            // The keyspace was dropped, or a damaged root counts no messages for its children. A verification reports that.
            self.root_buffer.store(0, Relaxed);
            return Ok(None);
        }
        let written = done.written.bytes();
        self.publish(&from, &input, done)?;
        let bytes = input.bytes + in_root.saturating_sub(self.root_buffer.load(Relaxed));
        events::packed(bytes, written);
        Ok(Some(bytes.max(1)))
    }

    /// Publishes the result of a job, unless the keyspace was dropped.
    fn publish(&self, from: &World, input: &PartInput, mut done: Done) -> Result<()> {
        let tree = &self.shared.tree;
        let sweep_bytes = tree.sweep_bytes(&done);
        let mut world = from.clone();
        world.pages.insert_all(done.written.extents());
        world.pages.remove_all(&joined(done.replaced.clone()), &tree.core.data)?;
        let freed = change_values(&mut world.blobs, input, &done, &tree.core.data)?;
        (world.root, world.tombstones) = (done.root, Arc::new(std::mem::take(&mut done.tombstones)));
        world.horizon = world.horizon.max(done.keep.horizon);
        world.through = world.through.max(input.through);
        // The bounds of the parts are kept if the root cannot be read.
        let bounds = bounds(tree, done.root);

        let publishing = self.shared.publishing.lock();
        let state = self.shared.current.load_full();
        let mut inner = tree.inner.lock();
        if inner.cleared {
            return Ok(());
        }
        assert!(inner.world.has_same_rows(from), "one job at a time changes the root");
        tree.count(done.written.bytes(), &done.replaced, done.leaves, !done.swept.is_empty());
        inner.requested = inner.requested.iter().flat_map(|range| subtract(range, &done.swept)).collect();
        done.written.keep();
        done.values.new_values.into_iter().for_each(|mut values| values.keep());
        let old_view = tree.publish(&mut inner, world, &done.replaced, &freed);
        tree.note_debt(&inner, 0, sweep_bytes);
        drop(inner);
        let (bounds, buffer) = bounds.unwrap_or_else(|_| {
            let bounds = state.parts.iter().map(|part| part.keys.from.clone()).collect();
            (bounds, self.root_buffer.load(Relaxed))
        });
        let root = (tree.published.load_full(), bounds.as_slice());
        let (new, gone) = state.after(input, done.next.as_deref(), root, &self.shared.chunks);
        self.shared.bytes.fetch_sub(gone, Relaxed);
        self.shared.current.store(Arc::new(new));
        self.root_buffer.store(buffer, Relaxed);
        drop(publishing);
        drop((state, old_view));
        self.note_debt();
        Ok(())
    }

    /// Drops all messages and pages, when the keyspace is dropped. Readers that hold the view keep the last state.
    pub(super) fn remove_all(&self) {
        // A job that publishes its result later discards it.
        let publishing = self.shared.publishing.lock();
        let state = self.shared.current.load_full();
        let view = self.view.load_full();
        view.freeze(state.clone());
        let mut values = Vec::new();
        for part in &state.parts {
            for (keys, memtable) in part.stack.read().in_keys(&part.keys) {
                values.extend(values_of(&memtable, keys));
            }
        }
        let tree = &self.shared.tree;
        tree.remove_all(values);
        let empty = State::empty(tree.published.load_full(), &[Vec::new()], &self.shared.chunks);
        self.shared.current.store(Arc::new(empty));
        self.view.store(Arc::new(PartView::new(self.shared.clone())));
        self.shared.bytes.store(0, Relaxed);
        self.root_buffer.store(0, Relaxed);
        drop(publishing);
        // If no reader holds them, the pages of the last state are freed now, without the lock.
        drop((view, state));
    }
}

/// The range tombstones of a memtable, as far as they have some of `keys`.
fn tombstones_of(memtable: &Memtable, keys: &KeyRange) -> Vec<RangeTombstone> {
    let mut sets = Vec::new();
    memtable.tombstones(&mut sets);
    sets.iter().flat_map(|set| set.clipped(keys)).collect()
}

/// The large values of a memtable's messages with some keys.
fn values_of(memtable: &Arc<Memtable>, keys: KeyRange) -> Vec<Extent> {
    let (mut values, mut block) = (Vec::new(), EntryBlock::new());
    let mut cursor = memtable::Cursor::new(memtable.clone(), keys, false);
    loop {
        block.clear();
        cursor.fill(BLOCK, &mut block);
        if block.is_empty() {
            return values;
        }
        let named = block.iter().filter(|entry| entry.kind == Kind::BlobPut);
        values.extend(named.filter_map(|entry| BlobRef::decode(entry.value).ok()).map(|blob| blob.extent()));
    }
}

/// Gives the large values of a job to the tree, and takes those that it has dropped. Returns the values to free.
///
/// # Errors
/// [`Error::Corruption`] if a message has referred to a value that belongs neither to the tree nor to the input.
fn change_values(map: &mut BlobMap, input: &PartInput, done: &Done, data: &DataFile) -> Result<Vec<Extent>> {
    let is_known = |extent: &&Extent| map.contains(extent.start.0, extent.pages.into());
    let (known, unknown): (Vec<Extent>, Vec<Extent>) = done.values.dropped.iter().partition(is_known);
    if !unknown.is_empty() {
        let sealed = input.parts.iter().flat_map(|of| &of.sealed);
        let brought: Vec<Extent> = sealed.flat_map(|sealed| values_of(&sealed.memtable, sealed.keys.clone())).collect();
        if let Some(value) = unknown.iter().find(|value| !brought.contains(value)) {
            let addr = BlockAddr { page: value.start, pages: value.pages };
            let detail = "a message names pages that the map of large values does not contain";
            return Err(data.corrupt(addr, "large values", detail));
        }
    }
    let gained: Vec<Extent> = done.values.kept.iter().filter(|value| !is_known(value)).copied().collect();
    map.remove_all(&known, data)?;
    map.insert_all(seeded!(PartValueNotOwned: &[], gained.as_slice()));
    Ok(known.into_iter().chain(unknown).collect())
}
