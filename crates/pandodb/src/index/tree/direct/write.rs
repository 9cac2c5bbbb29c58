//! Writes ranges that are in memory to disk: for a checkpoint all that have changed, in the background the cold ones.
//!
//! ```text
//!   ranges, messages up to the seqno t ──▶ job ──▶ new pages ──▶ publish: root, range tombstones, large values
//!                                                                 └─▶ ranges leave memory, or count as written
//! ```
//!
//! While a job runs, folds in memory keep what a read at t needs. So the messages up to t are the same whenever the job
//! copies them, and messages above t stay in memory only.
//!
//! Invariants: one job runs at a time; a root is published, and ranges are removed, while the directory is held; a
//! range with a message that the new tree lacks stays in memory.

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;

use super::horizons::Horizons;
use super::state::HotTree;
use crate::base::range::subtract;
use crate::base::sync::EXPLORED;
use crate::base::sync::Ordering::{Relaxed, SeqCst};
use crate::base::{BlockAddr, Extent, KeyRange, PAGE, Result, Seqno, events, seeded};
use crate::index::cached_rows::RowUpdates;
use crate::index::hot::{Contents, HotInput, HotRange, Ranges};
use crate::index::tree::Tree;
use crate::index::tree::job::{Done, Job, Stage, Tools, Wanted};
use crate::index::tree::publish::joined;
use crate::index::tree::sweep::{seen_by_all, union};
use crate::index::tree::world::World;
use crate::resolve::Stripes;

/// A range is divided if it has more bytes in memory than this number of leaves.
const PARTS: usize = 4;
/// The bytes of an inner page for one child, at least.
const CHILD_BYTES: usize = 32;

/// A checkpoint writes everything in memory in this number of jobs.
pub(super) const CHECKPOINT_PIECES: usize = 8;
/// The least bytes that a job may write of everything in memory.
const LEAST_PIECE: usize = if EXPLORED { 1 } else { 64 << 10 };

/// Keeps, until it is dropped, what a read at a seqno needs.
pub(super) struct Point<'a> {
    horizons: &'a Horizons,
    pub(super) at: Seqno,
}

impl<'a> Point<'a> {
    /// For a checkpoint with this cut.
    pub(super) fn new(horizons: &'a Horizons, at: Seqno) -> Point<'a> {
        horizons.add_point(at);
        Point { horizons, at }
    }

    /// For a job in the background: what is visible, but nothing that the checkpoint in progress does not describe.
    pub(super) fn oldest(horizons: &'a Horizons, visible: Seqno) -> Point<'a> {
        Point { horizons, at: horizons.add_oldest_point(visible) }
    }
}

impl Drop for Point<'_> {
    fn drop(&mut self) {
        self.horizons.remove_point(self.at);
    }
}

/// Which ranges a job writes, and what becomes of them.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Choice<'a> {
    /// The next of all that have changed: those that do not end before the key `from`, of about `bytes` bytes. They
    /// stay in memory.
    Changed { from: &'a [u8], bytes: usize },
    /// Cold ones of about this number of bytes. They leave memory.
    Cold(usize),
}

/// What a job has done.
#[derive(Default)]
pub(super) struct Outcome {
    /// The bytes of messages that were written.
    pub(super) written: u64,
    /// The bytes of unchanged ranges that have left memory.
    pub(super) freed: u64,
    /// With [`Choice::Changed`]: the key from which on the next job continues; `None` if nothing is left.
    pub(super) next: Option<Vec<u8>>,
}

/// The ranges that were chosen for a job.
#[derive(Default)]
struct Chosen {
    /// By their first keys.
    ranges: BTreeMap<Vec<u8>, Arc<HotRange>>,
    /// Cold ranges that have not changed.
    clean: Vec<Arc<HotRange>>,
    next: Option<Vec<u8>>,
}

/// The large values that a job takes from the tree, gives to it, and frees.
struct Values {
    /// Values of the tree to which the new tree does not refer.
    lost: HashSet<Extent>,
    /// Those of them that belonged to no range that the job has written.
    lost_elsewhere: HashSet<Extent>,
    /// Values to which the old tree does not refer.
    gained: Vec<Extent>,
    /// Values that were never in the tree, and that no message refers to any more.
    unused: HashSet<Extent>,
    /// Values to which the new pages refer.
    kept: HashSet<Extent>,
}

impl HotTree {
    /// The bytes of pages that writing all changed ranges and prepared operations takes: their leaves, and both copies
    /// of the inner pages. An index that is stuck writes nothing.
    pub(super) fn unwritten_bytes(&self) -> u64 {
        if self.stuck.lock().is_some() {
            return 0;
        }
        // Read in this order: a commit counts the range before its operations are no longer prepared.
        let prepared = self.prepared_bytes.load(SeqCst);
        let leaves = self.shared.unwritten() as u64;
        if leaves == 0 {
            return prepared;
        }
        let Tree { sizes, published, .. } = &self.shared.tree;
        let limits = sizes.levels.plain;
        let tree = published.load();
        let most = tree.page_bytes() / (sizes.leaf.bytes.next_multiple_of(PAGE) as u64) + leaves / PAGE as u64;
        // Inner pages are at least half full, and each changed range changes one page of each level.
        let children = (limits.bytes / CHILD_BYTES).min(limits.children) as u64 / 2;
        let levels = u64::from(tree.root.map_or(1, |root| root.level + 2));
        // Each job of a checkpoint changes one more page of each level.
        let jobs = leaves / self.piece_bytes(CHECKPOINT_PIECES) as u64 + 1;
        let inner = (most / children.max(2)).min(leaves / (2 * PAGE as u64) * levels) + levels * jobs;
        prepared + leaves + 2 * inner * limits.bytes.next_multiple_of(PAGE) as u64
    }

    /// The bytes of one of `pieces` jobs that together write everything in memory.
    pub(super) fn piece_bytes(&self, pieces: usize) -> usize {
        (self.most_bytes() / pieces).max(LEAST_PIECE)
    }

    /// Updates the debt: the bytes in memory above the limit.
    pub(super) fn note_debt(&self) {
        let over = self.shared.bytes().saturating_sub(self.most_bytes()) as u64;
        let owing = &self.shared.tree.owing;
        if over > 0 && owing.debt().work_bytes != over {
            owing.change(|own| own.work_bytes = over);
        }
    }

    /// Writes ranges, and sweeps. REQUIRES: the caller holds `writing`.
    ///
    /// # Errors
    /// If a page cannot be read or written. Nothing has changed then, except that unchanged ranges have left memory.
    pub(super) fn write(&self, choice: Choice<'_>, point: &Point<'_>, keep: &dyn Fn() -> Stripes) -> Result<Outcome> {
        let tree = &self.shared.tree;
        let keep = self.horizons.advance(keep());
        let from = tree.inner.lock().world.clone();
        let tombstones = self.shared.tombstones_to(point.at);
        // The first of the jobs of a checkpoint sweeps for all of them.
        let sweeps = !matches!(choice, Choice::Changed { from: [_, ..], .. });
        let wanted = if sweeps { self.wanted(&from, &tombstones, &keep) } else { Vec::new() };
        let Chosen { ranges, clean, next } = self.choose(choice, point.at, &wanted);
        let outcome = Outcome { written: 0, freed: self.drop_clean(&clean), next };
        if ranges.is_empty() && wanted.is_empty() && (matches!(choice, Choice::Cold(_)) || tombstones.is_empty()) {
            return Ok(outcome);
        }
        let ranges: Vec<Arc<HotRange>> = ranges.into_values().collect();
        let bytes = ranges.iter().map(|range| range.contents.read().bytes() as u64).sum();
        let inline_bytes = self.inline_bytes.load(Relaxed);
        let input = Arc::new(HotInput { ranges, through: point.at, bytes, inline_bytes, tombstones });
        let tools = Tools {
            core: &tree.core,
            sizes: &tree.sizes,
            source: &tree.source,
            rows: &RowUpdates::default(),
            index_rows: &tree.rows,
        };
        let inner = tree.inner.lock();
        let (requested, is_damaged) = (inner.requested.clone(), inner.damage.is_some());
        drop(inner);
        let wanted = Wanted { hot: Some(input.clone()), parts: None, sweeps: !wanted.is_empty(), requested };
        let job = Job::new(tools, from.clone(), None, keep, wanted, None);
        let mut job = if is_damaged { job.without_joins() } else { job };
        while job.step(u64::MAX)?.1 != Stage::Complete {}
        let done = job.finish(Stage::Complete)?;
        let written = done.written.bytes();
        self.publish(from, &input, done, matches!(choice, Choice::Cold(_)))?;
        events::packed(bytes, written);
        Ok(Outcome { written: bytes.max(1), ..outcome })
    }

    /// The ranges that a sweep would clean.
    fn wanted(&self, from: &World, tombstones: &[crate::base::RangeTombstone], keep: &Stripes) -> Vec<KeyRange> {
        let inner = self.shared.tree.inner.lock();
        if inner.damage.is_some() {
            return Vec::new();
        }
        let mut all = from.tombstones.clipped(&KeyRange::all());
        all.extend(tombstones.iter().cloned());
        let seen = seen_by_all(&all, keep).newest().into_iter().map(|tombstone| tombstone.range);
        union(seen.chain(inner.requested.iter().cloned()).collect())
    }

    /// The ranges that the next job writes: those of `choice`, and all that a sweep of `swept` meets, so that the sweep
    /// sees all messages. The job writes the messages up to `through`.
    fn choose(&self, choice: Choice<'_>, through: Seqno, swept: &[KeyRange]) -> Chosen {
        let ranges = self.shared.directory.lock().read();
        let mut chosen = Chosen::default();
        let by_key = |range: &Arc<HotRange>| (range.keys.from.clone(), range.clone());
        chosen.ranges.extend(swept.iter().flat_map(|keys| ranges.overlapping(keys)).map(by_key));
        match choice {
            Choice::Cold(bytes) => {
                let cold = self.cold(&ranges, bytes, through).into_values();
                let (changed, clean) = cold.partition(|range| range.contents.read().is_unwritten());
                let changed: Vec<Arc<HotRange>> = changed;
                chosen.ranges.extend(changed.iter().map(by_key));
                chosen.clean = clean;
                chosen.clean.retain(|range| !chosen.ranges.contains_key(&range.keys.from));
            }
            Choice::Changed { from, bytes } => {
                let mut left = bytes;
                for range in ranges.from(from) {
                    let contents = range.contents.read();
                    if !contents.is_unwritten() {
                        continue;
                    }
                    if left == 0 {
                        chosen.next = Some(range.keys.from.clone());
                        break;
                    }
                    left = left.saturating_sub(contents.bytes());
                    chosen.ranges.insert(range.keys.from.clone(), range.clone());
                }
            }
        }
        chosen
    }

    /// The ranges that were not used for the longest time, of about `bytes` bytes. The search continues where the last
    /// one has ended, and passes each range once that was used since then (the algorithm CLOCK).
    ///
    /// Leaves out ranges with messages above `through`: they could not leave memory after the job, so workers would
    /// write them again and again until the checkpoint in progress ends.
    fn cold(&self, ranges: &Ranges, bytes: usize, through: Seqno) -> BTreeMap<Vec<u8>, Arc<HotRange>> {
        let (mut cold, mut left) = (BTreeMap::new(), bytes);
        let mut hand = self.hand.lock();
        let start = hand.clone();
        let before_start = ranges.iter().take_while(|range| range.keys.from < start);
        for range in ranges.from(&start).chain(ranges.iter()).chain(before_start) {
            if left == 0 {
                break;
            }
            if range.is_pinned() || range.take_used() {
                continue;
            }
            let contents = range.contents.read();
            if contents.changed <= through && cold.insert(range.keys.from.clone(), range.clone()).is_none() {
                left = left.saturating_sub(contents.bytes());
                (*hand).clone_from(&range.keys.to);
            }
        }
        cold
    }

    /// Removes the ranges that are still unchanged from memory. Returns their bytes.
    fn drop_clean(&self, clean: &[Arc<HotRange>]) -> u64 {
        let mut freed = 0;
        if clean.is_empty() {
            return 0;
        }
        let mut ranges = self.shared.directory.lock().write();
        for range in clean.iter().filter(|range| ranges.has(range) && !range.is_pinned()).collect::<Vec<_>>() {
            let contents = range.contents.read();
            let (bytes, is_clean) = (contents.bytes() as u64, !contents.is_unwritten());
            drop(contents);
            // A range that is not pinned does not change while the directory is held.
            if is_clean {
                self.remove(&mut ranges, range);
                freed += bytes;
            }
        }
        freed
    }

    /// Removes a clean range from memory.
    fn remove(&self, ranges: &mut Ranges, range: &HotRange) {
        let removed = ranges.remove(range).expect("the range is in memory");
        self.shared.forget(&mut removed.contents.write());
    }

    /// Publishes the result of a job, unless the keyspace was dropped.
    fn publish(&self, from: World, input: &HotInput, mut done: Done, cools: bool) -> Result<()> {
        let tree = &self.shared.tree;
        let sweep_bytes = tree.sweep_bytes(&done);
        let Values { lost, lost_elsewhere, gained, mut unused, kept } = self.values(&from, input, &done)?;
        let mut world = from.clone();
        world.pages.insert_all(done.written.extents());
        world.pages.remove_all(&joined(done.replaced.clone()), &tree.core.data)?;
        let lost_values: Vec<Extent> = lost.iter().copied().collect();
        world.blobs.remove_all(&lost_values, &tree.core.data)?;
        world.blobs.insert_all(&gained);
        world.root = done.root;
        world.horizon = world.horizon.max(done.keep.horizon);
        world.through = world.through.max(input.through);

        let mut ranges = self.shared.directory.lock().write();
        let concerned = concerned(&ranges, input, &done, &lost_elsewhere);
        self.fold_as(&concerned, input, &done, &lost);
        let mut inner = tree.inner.lock();
        if inner.cleared {
            return Ok(());
        }
        assert!(inner.world.has_same_rows(&from), "one job at a time changes the root");
        tree.count(done.written.bytes(), &done.replaced, done.leaves, !done.swept.is_empty());
        inner.requested = inner.requested.iter().flat_map(|range| subtract(range, &done.swept)).collect();
        for range in &input.ranges {
            // A fold may have dropped a message that the job has written for a snapshot.
            let dropped = std::mem::take(&mut range.contents.write().dropped_values);
            let is_freed = |value: &Extent| !kept.contains(value);
            unused.extend(dropped.into_iter().filter(is_freed));
        }
        world.tombstones = Arc::new(done.tombstones);
        done.written.keep();
        done.values.new_values.into_iter().for_each(|mut values| values.keep());
        let freed: Vec<Extent> = lost.iter().chain(&unused).copied().collect();
        let old = tree.publish(&mut inner, world, &done.replaced, &freed);
        tree.note_debt(&inner, 0, sweep_bytes);
        drop(inner);
        self.shared.drop_tombstones_to(input.through);
        for range in &concerned {
            range.contents.write().stored_values.retain(|value| !lost.contains(value));
        }
        note_moved(&ranges, input, &done.values.named);
        self.note_written(&mut ranges, input, &done.values.named, &unused, cools);
        drop(ranges);
        drop(old);
        self.checked.store(0, SeqCst);
        self.note_debt();
        Ok(())
    }

    /// Drops messages in memory that the job has dropped on disk: those that tombstones cover which are forgotten after
    /// a sweep, and those whose large values are freed.
    fn fold_as(&self, concerned: &[Arc<HotRange>], input: &HotInput, done: &Done, lost: &HashSet<Extent>) {
        let tombstones = self.shared.all_tombstones();
        for range in concerned {
            let is_swept = done.swept.iter().any(|sweep| sweep.overlaps(&range.keys));
            let mut contents = range.contents.write();
            let has_values = input.has(range) && contents.has_values();
            if is_swept || has_values || contents.stored_values.iter().any(|value| lost.contains(value)) {
                self.shared.fold(&mut contents, &done.keep, tombstones.clone());
            }
        }
    }

    /// What a job means for the large values.
    fn values(&self, from: &World, input: &HotInput, done: &Done) -> Result<Values> {
        let tree = &self.shared.tree;
        let is_known = |extent: &Extent| from.blobs.contains(extent.start.0, extent.pages.into());
        let kept: HashSet<Extent> = done.values.kept.iter().copied().collect();
        let (mut lost, mut unused) = (HashSet::new(), HashSet::new());
        let mut own = HashSet::new();
        for range in &input.ranges {
            let contents = range.contents.read();
            lost.extend(contents.stored_values.iter().filter(|value| !kept.contains(value) && is_known(value)));
            own.extend(contents.own_values.iter().copied());
        }
        let mut lost_elsewhere = HashSet::new();
        for value in done.values.dropped.iter().filter(|value| !kept.contains(value)) {
            if is_known(value) {
                if lost.insert(*value) {
                    lost_elsewhere.insert(*value);
                }
            } else if own.contains(value) {
                unused.insert(*value);
            } else if !self.is_dropped(input, value) {
                let addr = BlockAddr { page: value.start, pages: value.pages };
                let detail = "a message names pages that the map of large values does not contain";
                return Err(tree.core.data.corrupt(addr, "large values", detail));
            }
        }
        let gained =
            seeded!(HotValueNotOwned: Vec::new(), kept.iter().filter(|value| !is_known(value)).copied().collect());
        Ok(Values { lost, lost_elsewhere, gained, unused, kept })
    }

    /// Whether a value that the job has dropped was also dropped by a fold in memory meanwhile.
    fn is_dropped(&self, input: &HotInput, value: &Extent) -> bool {
        input.ranges.iter().any(|range| range.contents.read().dropped_values.contains(value))
    }

    /// After a root was published: updates the ranges in memory, and removes cold ones.
    fn note_written(
        &self,
        ranges: &mut Ranges,
        input: &HotInput,
        named: &[(Vec<u8>, Extent)],
        unused: &HashSet<Extent>,
        cools: bool,
    ) {
        for range in &input.ranges {
            let mut contents = range.contents.write();
            let kept = named_in(named, &range.keys);
            contents.note_written(input.through, kept.iter().map(|(_, value)| *value), unused);
            self.shared.count(&mut contents);
            let may_leave = cools && !range.is_pinned() && !contents.is_unwritten();
            let is_long = contents.bytes() > PARTS * self.shared.tree.sizes.leaf.bytes;
            if !may_leave && is_long && range.may_be_divided() {
                self.divide(ranges, range, &mut contents, kept);
            }
            drop(contents);
            if may_leave {
                self.remove(ranges, range);
            }
        }
    }

    /// Divides a range into ranges of about a leaf. `kept` are the large values of its copy on disk.
    fn divide(&self, ranges: &mut Ranges, range: &Arc<HotRange>, contents: &mut Contents, kept: &[(Vec<u8>, Extent)]) {
        self.shared.forget(contents);
        ranges.remove(range).expect("the range is in memory");
        for (keys, mut part) in contents.divide(&range.keys, self.shared.tree.sizes.leaf.bytes, kept) {
            self.shared.count_new(&mut part);
            ranges.insert(HotRange::new(keys, part, range.is_pinned().then(|| range.clone())));
        }
    }
}

/// The ranges that a job concerns: those that it has written, those with swept keys, and those whose large values it
/// has dropped without writing the range, because their keys share leaves with ranges that it has written.
fn concerned(ranges: &Ranges, input: &HotInput, done: &Done, lost_elsewhere: &HashSet<Extent>) -> Vec<Arc<HotRange>> {
    let swept = done.swept.iter().flat_map(|keys| ranges.overlapping(keys));
    let has_lost =
        |range: &&Arc<HotRange>| range.contents.read().stored_values.iter().any(|value| lost_elsewhere.contains(value));
    let elsewhere = (!lost_elsewhere.is_empty()).then(|| ranges.iter().filter(has_lost));
    let all = input.ranges.iter().chain(swept).chain(elsewhere.into_iter().flatten());
    let by_key: BTreeMap<&[u8], &Arc<HotRange>> = all.map(|range| (range.keys.from.as_slice(), range)).collect();
    by_key.into_values().cloned().collect()
}

/// Notes the large values of ranges that a job has not written. If such a range shares a leaf with a range that was
/// written, the job may have moved its values out of the leaf.
fn note_moved(ranges: &Ranges, input: &HotInput, named: &[(Vec<u8>, Extent)]) {
    for (key, value) in named {
        if let Some(range) = ranges.find(key).filter(|range| !input.has(range)) {
            range.contents.write().stored_values.insert(*value);
        }
    }
}

/// The large values of the keys in `keys`.
fn named_in<'a>(named: &'a [(Vec<u8>, Extent)], keys: &KeyRange) -> &'a [(Vec<u8>, Extent)] {
    let first = named.partition_point(|(key, _)| *key < keys.from);
    let end = first + named[first..].partition_point(|(key, _)| keys.is_above(key));
    &named[first..end]
}
