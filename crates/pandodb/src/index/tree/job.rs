//! [`Job`]: applies a memtable to the tree, and removes what range tombstones and requests allow to remove.
//!
//! ```text
//!   next target = the smaller of: key of the next message, start of the next range to sweep
//!        │ seek
//!        ▼
//!   unit (a leaf) ── kept: nothing to do ── dropped: covered by a tombstone ── read: merged with messages, folded
//!                                                                                │
//!                                                                                ▼
//!                                                      new leaves; a small one is joined with the next unit
//! ```
//!
//! In a tree with buffers, a job opens the pages with buffers first. In each of them it leaves messages in the new
//! buffer, and enters only the chosen children, with the messages for them (`flush`). Below these pages it works as
//! shown.
//!
//! A job works on the root that was published when it started, and no other job changes this root meanwhile. It runs in
//! steps. Dropping a job frees everything that it has written.
//!
//! **Pieces.** A job needs as much disk space as it rewrites, because the old pages are freed only after the swap. On a
//! full disk, a job therefore runs in pieces: after each piece, the tree with a part of the memtable is published. Its
//! `through` stays that of the tree before the memtable, and readers read at most at `through`, so they see nothing of
//! the part. For these readers the job keeps the version of each key as of `through`. Such a job sweeps nothing. If the
//! job is not finished, because of an error or a crash, the next job drops all messages above `through` that it meets,
//! and applies them from the memtable, into which the log has brought them.
//!
//! **Merges.** If the tree of a sorted load waits, a job merges its rows with the older tree, as it would apply a
//! memtable, but always in pieces, because a load may be large. Readers see the rows already, so a piece keeps no
//! additional versions. A leaf of the load with no older row between its keys becomes a leaf of the new tree as it is.
//! After each piece, the tree of the load has only the rows that were not merged yet ([`super::merge`]).
//!
//! **Ranges in memory.** In a tree to which commits write directly ([`super::direct`]), a job writes ranges of keys that are
//! in memory. Their messages replace whatever the old tree has for their keys, so a unit inside such a range is not read.
//!
//! A job without a memtable, a load or ranges in memory is a *sweep*. Each job also sweeps the ranges of tombstones that all read points
//! see, as long as it has not moved too many bytes.
//!
//! Invariant: targets ascend, so a job, or a piece of a job, visits each leaf at most once.

use std::sync::Arc;

use super::ahead::JobAhead;
use super::feed::{Feed, Fresh, Origin};
use super::flush::{Flush, Folder, Rule};
use super::merge::{Adopted, left_of};
use super::reading::Reading;
use super::sizes::Sizes;
use super::sweep::{Sweep, remaining};
use super::view::TreeView;
use super::world::World;
use crate::base::{EntryBlock, Extent, Fragments, KeyRange, PAGE, RangeTombstone, Result, Seqno, seeded};
use crate::index::cached_rows::RowUpdates;
use crate::index::folding::{FoldedValues, Folding};
use crate::index::hot::{HotInput, Written as WrittenRanges};
use crate::index::pages::{LeafSink, Levels, Neighbour, PageSource, Rebuild, Root, TreeWriter, Unit, Written};
use crate::index::parts::{PartInput, Reach};
use crate::index::{Core, SealedBatch};
use crate::pool::Pool;
use crate::resolve::{Stripes, prune_tombstones};
use crate::rows::IndexRows;
use crate::space::values::NewValues;

/// Bytes of room in the pool above which new rows count as warm.
const ROOM: usize = 64 << 10;

/// A unit that is visited without being read costs as much as this number of bytes.
const VISITED_UNIT: u64 = 64;

/// The large values of a job. Those of the earlier pieces belong to the log and to the memtable until the last piece is
/// published.
#[derive(Default)]
pub(super) struct LargeValues {
    pub(super) kept: Vec<Extent>,
    pub(super) dropped: Vec<Extent>,
    pub(super) new_values: Vec<NewValues>,
    /// The keys of the kept values, if the job writes ranges that are in memory.
    pub(super) named: Vec<(Vec<u8>, Extent)>,
}

impl LargeValues {
    fn add(&mut self, values: FoldedValues) {
        self.kept.extend(values.kept);
        self.named.extend(values.named);
        self.dropped.extend(values.dropped);
        self.new_values.push(values.new_values);
    }

    /// Adds those of a later piece.
    pub(super) fn append(&mut self, mut later: LargeValues) {
        self.kept.append(&mut later.kept);
        self.dropped.append(&mut later.dropped);
        self.new_values.append(&mut later.new_values);
    }
}

/// The parts of an index that a job uses.
#[derive(Clone, Copy)]
pub(super) struct Tools<'a> {
    pub(super) core: &'a Core,
    pub(super) sizes: &'a Sizes,
    pub(super) source: &'a Arc<PageSource>,
    /// The row cache, made ready for the memtable of the job.
    pub(super) rows: &'a RowUpdates,
    /// The rows of the index in the row cache.
    pub(super) index_rows: &'a Arc<IndexRows>,
}

/// What a job does beside applying its memtable.
#[derive(Default)]
pub(super) struct Wanted {
    /// The ranges in memory that are written. No memtable is applied then.
    pub(super) hot: Option<Arc<HotInput>>,
    /// The parts of buffers in memory that are written. No memtable is applied then.
    pub(super) parts: Option<Arc<PartInput>>,
    /// Whether the ranges of tombstones are swept.
    pub(super) sweeps: bool,
    /// Ranges that a caller wants rewritten, disjoint and in order.
    pub(super) requested: Vec<KeyRange>,
}

/// The state of a job between two pieces.
pub(super) struct Pieces {
    /// The key of the next message; `None` if all messages are applied.
    pub(super) next: Option<Vec<u8>>,
    pub(super) piece_bytes: u64,
    pub(super) values: LargeValues,
}

/// The result of a job, or of a piece of a job, ready to be published.
pub(super) struct Done {
    /// The rest of the job, after a piece. It carries no values yet.
    pub(super) rest: Option<Pieces>,
    /// The key of the first new message that was not applied; `None` if all were.
    pub(super) next: Option<Vec<u8>>,
    pub(super) root: Option<Root>,
    /// The rest of the tree of a load.
    pub(super) loaded: Option<Root>,
    /// The bytes for which the adopted leaves of the load count.
    pub(super) adopted: u64,
    /// The pages of the old tree that the new one lacks.
    pub(super) replaced: Vec<Extent>,
    pub(super) written: Written,
    /// The number of leaves that were written.
    pub(super) leaves: u64,
    pub(super) values: LargeValues,
    /// The range tombstones of the new tree.
    pub(super) tombstones: Fragments,
    /// The ranges that were swept completely.
    pub(super) swept: Vec<KeyRange>,
    pub(super) keep: Stripes,
}

impl Done {
    /// The bytes of the pages that were replaced, or of those that were written if these are more. Adopted leaves count
    /// with their weight.
    pub(super) fn changed_bytes(&self) -> u64 {
        let replaced: u64 = self.replaced.iter().map(|extent| u64::from(extent.pages) * PAGE as u64).sum();
        replaced.max(self.written.bytes()) + self.adopted
    }
}

/// A job in progress.
pub(super) struct Job {
    /// The memtable; `None` for a sweep and for a merge.
    pub(super) batch: Option<SealedBatch>,
    /// The ranges in memory that the job writes.
    hot: Option<WrittenRanges>,
    /// Whether the job writes parts of buffers in memory.
    has_parts: bool,
    /// The state from which the job started. It keeps the pages of the old tree allocated.
    pub(super) from: World,
    source: Arc<PageSource>,
    pool: Arc<Pool>,
    keep: Stripes,
    folding: Folding<LeafSink>,
    levels: Levels,
    rebuild: Rebuild,
    feed: Feed,
    reading: Option<Reading>,
    ahead: JobAhead,
    /// The open pages with a buffer, root first.
    flushes: Vec<Flush>,
    folder: Folder,
    /// The large values of the buffers that were written.
    values: LargeValues,
    rule: Rule,
    is_started: bool,
    /// Whether all messages were applied and the open pages with buffers were closed.
    is_through: bool,
    /// All range tombstones: those of the tree and those of the memtable.
    tombstones: Vec<RangeTombstone>,
    sweep: Sweep,
    /// Whether the current unit was opened by a sweep, not by a message.
    is_sweeping: bool,
    /// Whether a small leaf is joined with the leaf behind it.
    joins: bool,
    /// Set if the job runs in pieces: the state before the current piece.
    pieces: Option<Pieces>,
    piece_bytes: Option<u64>,
    /// The leaves of a load that are part of the new tree as they are.
    adopted: Adopted,
}

/// The state of a job after a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stage {
    /// The job has more work.
    Busy,
    /// A piece is complete.
    Piece,
    /// The job is complete.
    Complete,
}

impl Job {
    /// Starts a job. With `piece_bytes`, the job runs in pieces that write about this number of bytes.
    pub(super) fn new(
        tools: Tools<'_>,
        from: World,
        batch: Option<SealedBatch>,
        keep: Stripes,
        wanted: Wanted,
        piece_bytes: Option<u64>,
    ) -> Job {
        let pieces = piece_bytes.map(|piece_bytes| Pieces {
            next: batch.as_ref().map(|_| Vec::new()),
            piece_bytes,
            values: LargeValues::default(),
        });
        Job::start(tools, from, batch, keep, wanted, pieces)
    }

    /// Continues a job after a piece was published as `from`.
    pub(super) fn resume(
        tools: Tools<'_>,
        from: World,
        batch: Option<SealedBatch>,
        keep: Stripes,
        pieces: Pieces,
    ) -> Job {
        Job::start(tools, from, batch, keep, Wanted::default(), Some(pieces))
    }

    fn start(
        tools: Tools<'_>,
        from: World,
        batch: Option<SealedBatch>,
        keep: Stripes,
        wanted: Wanted,
        pieces: Option<Pieces>,
    ) -> Job {
        let Tools { core, sizes, source, rows, index_rows } = tools;
        let keep = if pieces.is_some() && batch.is_some() { with_read_point(keep, from.through) } else { keep };
        let merges = from.loaded.is_some();
        let (hot, parts) = (wanted.hot, wanted.parts);
        let new = New { batch: batch.as_ref(), hot: hot.as_ref(), parts: parts.as_ref() };
        let fresh = new.fresh(&from, source, index_rows);
        let from_key =
            pieces.as_ref().filter(|_| batch.is_some()).map_or(Some(&[][..]), |pieces| pieces.next.as_deref());
        let feed = Feed::new(fresh, from_key, rows);
        let tombstones = new.tombstones(&from);
        let most_swept = sizes.memtable_bytes / if batch.is_some() { 4 } else { 1 };
        // A sweep would visit leaves again that earlier pieces have written.
        let sweeps = wanted.sweeps && !merges && (batch.is_none() || pieces.is_none());
        let sweep = Sweep::new(&tombstones, &keep, sweeps.then_some(wanted.requested), most_swept);
        let applied = new.bytes();
        let expected = 2 * applied.unwrap_or(from.loaded_bytes.min(sizes.merge_piece()));
        let writer = TreeWriter::new(source, core.ids.next(), pieces.is_none().then_some(expected));
        let writer = writer.with_compression(sizes.compression);
        let sink = LeafSink::new(writer, sizes.leaf);
        let folder = Folder {
            core: core.clone(),
            keep: seeded!(TreeSnapshotsIgnored: Stripes { snapshots: Vec::new(), ..keep }, keep.clone()),
            operator: sizes.operator.clone(),
            tombstones: Arc::new(Fragments::build(&tombstones)),
            knows_values_to: new.knows_values_to(&from),
            through: from.through,
            inline_bytes: new.inline_bytes(),
            in_pieces: pieces.is_some() && batch.is_some(),
        };
        let folding = folder.folding_into(sink, true, applied);
        let folding = if hot.is_some() { folding.naming_values() } else { folding };
        let rule = new.rule(&from, sizes, pieces.is_some());
        let piece_bytes = pieces.as_ref().map(|pieces| pieces.piece_bytes).or(new.piece_bytes());
        Job {
            levels: sizes.levels,
            rebuild: Rebuild::new(from.root, sizes.levels),
            feed,
            flushes: Vec::new(),
            folder,
            values: LargeValues::default(),
            rule,
            is_started: false,
            is_through: false,
            batch,
            hot: hot.map(WrittenRanges::new),
            has_parts: parts.is_some(),
            from,
            source: source.clone(),
            pool: core.pool.clone(),
            keep,
            folding,
            reading: None,
            ahead: JobAhead::default(),
            tombstones,
            sweep,
            is_sweeping: false,
            joins: true,
            adopted: Adopted::default(),
            piece_bytes: piece_bytes.or(merges.then_some(sizes.merge_piece())),
            pieces,
        }
    }

    /// Whether the job merges the tree of a load.
    pub(super) fn merges(&self) -> bool {
        self.from.loaded.is_some()
    }

    /// Whether the job only sweeps.
    pub(super) fn is_sweep(&self) -> bool {
        self.batch.is_none() && !self.merges() && self.hot.is_none() && !self.has_parts
    }

    /// Joins no small leaf with the leaf behind it, so that the job reads no leaf without need.
    pub(super) fn without_joins(self) -> Job {
        Job { joins: false, ..self }
    }

    /// Whether the job runs in pieces.
    pub(super) fn is_in_pieces(&self) -> bool {
        self.pieces.is_some()
    }

    /// Takes the state before the current piece, if the job runs in pieces and applies a memtable.
    pub(super) fn take_pieces(&mut self) -> Option<Pieces> {
        self.pieces.take().filter(|_| self.batch.is_some())
    }

    /// Works on leaves and messages of about `budget` bytes, and writes pages of at most about as many: few messages for
    /// leaves all over the tree rewrite many pages. Returns the bytes of new messages that were applied, or for a sweep the
    /// bytes of leaves.
    ///
    /// # Errors
    /// If a page cannot be read or written. The job must then be dropped.
    pub(super) fn step(&mut self, budget: u64) -> Result<(u64, Stage)> {
        let (mut moved, mut done) = (0, 0);
        if !self.is_started {
            self.is_started = true;
            self.feed.start()?;
            self.enter_root()?;
        }
        let most = self.folding.sink.writer.written().saturating_add(budget);
        while moved < budget && self.folding.sink.writer.written() < most {
            if self.reading.is_some() {
                let (old, new) = self.merge(budget - moved)?;
                moved += old + new;
                done += if self.is_sweep() { old } else { new };
                continue;
            }
            if self.is_through {
                return Ok((done, Stage::Complete));
            }
            if self.piece_bytes.is_some_and(|most| self.folding.sink.writer.written() + self.adopted.weight >= most) {
                return Ok((done, Stage::Piece));
            }
            if self.flushes.last().is_some_and(|flush| flush.depth == self.rebuild.depth()) {
                let (bytes, new) = self.flush(budget - moved)?;
                moved += VISITED_UNIT + bytes;
                done += new;
                continue;
            }
            match self.next_target() {
                Some(target) => {
                    moved += VISITED_UNIT;
                    self.open(&target)?;
                }
                None if self.flushes.is_empty() => self.is_through = true,
                None => self.leave_pages()?,
            }
        }
        Ok((done, Stage::Busy))
    }

    /// Opens the root, if it may have a buffer.
    fn enter_root(&mut self) -> Result<()> {
        let has_buffer = |rebuild: &Rebuild, rule: &Rule| {
            rebuild.depth() == 1 && rebuild.top().level > rule.buffered_from && !rebuild.top().rest().is_empty()
        };
        while has_buffer(&self.rebuild, &self.rule) {
            self.rebuild.descend(&self.source)?;
        }
        if self.rebuild.depth() > 1 {
            self.feed.enter(EntryBlock::new(), None);
            self.enter_page()?;
        }
        Ok(())
    }

    /// Starts to work on the page that was opened last.
    fn enter_page(&mut self) -> Result<()> {
        let depth = self.rebuild.depth();
        let page = self.rebuild.top();
        if page.level < self.rule.buffered_from {
            self.rebuild.floor = depth;
            return Ok(());
        }
        let Job { rule, sweep, folder, feed, source, flushes, .. } = self;
        // The root passes all its messages on: the memtable, or the parts in memory, are its buffer.
        let capacity = match flushes.is_empty() {
            true if rule.stays_at_root => u64::MAX,
            true => 0,
            false => rule.capacity,
        };
        flushes.push(Flush::open(folder, (depth, page), (feed, sweep), source, (rule, capacity))?);
        Ok(())
    }

    /// Chooses no further children for the sweep, if it has ended.
    fn end_sweep(&mut self) -> Result<()> {
        let mut is_changed = false;
        self.flushes.iter_mut().for_each(|flush| is_changed |= flush.end_sweep());
        if is_changed {
            // A small leaf or page may wait for a child that is no longer chosen.
            self.put_pending()?;
            self.rebuild.write_small(&self.source, &mut self.folding.sink)?;
        }
        Ok(())
    }

    /// Continues with the lowest page that has a buffer: merges messages into its new buffer, enters its next chosen
    /// child, or closes it. Returns the bytes that were moved, and the bytes from the memtable among them.
    fn flush(&mut self, budget: u64) -> Result<(u64, u64)> {
        let Job { flushes, feed, .. } = self;
        let flush = flushes.last_mut().expect("a page is being flushed");
        if std::mem::take(&mut flush.is_entered) {
            debug_assert!(feed.carried().is_none(), "the child took all its messages");
            feed.exit();
        }
        if self.sweep.is_over() {
            self.end_sweep()?;
        }
        let Job { flushes, feed, rebuild, source, from, .. } = self;
        let flush = flushes.last_mut().expect("a page is being flushed");
        let next = flush.next_chosen(rebuild.top().rest().len());
        let (moved, new, is_done) = flush.run(next.from.as_deref(), feed, source, from.through, budget)?;
        if !is_done {
            return Ok((moved, new));
        }
        rebuild.top_mut().pass(next.left);
        match next.group {
            Some(group) => self.enter_child(group)?,
            None => self.close_flush()?,
        }
        Ok((moved, new))
    }

    /// Enters a chosen child with the messages for it.
    fn enter_child(&mut self, group: usize) -> Result<()> {
        let Job { flushes, feed, rebuild, source, folder, values, .. } = self;
        let flush = flushes.last_mut().expect("a page is being flushed");
        let (block, dropped) = flush.extract(group, folder, feed, source)?;
        values.add(dropped);
        let block = seeded!(CarriedMessagesLost: EntryBlock::new(), block);
        feed.enter(block, flush.end_of(group));
        flush.is_entered = true;
        if rebuild.top().level > 1 {
            rebuild.descend(source)?;
            return self.enter_page();
        }
        let unit = rebuild.next_unit().expect("a child is left");
        self.visit(unit)
    }

    /// Closes the pages below the lowest page with a buffer.
    fn leave_pages(&mut self) -> Result<()> {
        let Job { flushes, rebuild, source, folding, .. } = self;
        let flush = flushes.last().expect("a page is being flushed");
        while rebuild.depth() > flush.depth {
            let is_child = rebuild.depth() == flush.depth + 1;
            let neighbour = if is_child { flush.neighbour(rebuild.left_above()) } else { Neighbour::Join };
            rebuild.close(source, &mut folding.sink, neighbour)?;
        }
        Ok(())
    }

    /// Closes the lowest page with a buffer.
    fn close_flush(&mut self) -> Result<()> {
        let Job { flushes, rebuild, source, folding, values, .. } = self;
        let flush = flushes.pop().expect("a page is being flushed");
        let replaced = &mut Vec::new();
        values.add(flush.finish(rebuild.top_mut(), replaced)?);
        rebuild.replaced.append(replaced);
        if flushes.is_empty() {
            self.feed.exit();
            self.is_through = true;
        }
        loop {
            let neighbour = flushes.last().map_or(Neighbour::Join, |above| above.neighbour(rebuild.left_above()));
            if rebuild.close(source, &mut folding.sink, neighbour)? {
                return Ok(());
            }
        }
    }

    /// Ends a piece: puts the messages that were carried back to the buffers above, and closes all pages with buffers.
    fn wind_up(&mut self) -> Result<()> {
        self.feed.end_fresh();
        self.flushes.iter_mut().for_each(Flush::choose_no_more);
        while !self.flushes.is_empty() {
            self.leave_pages()?;
            let flush = self.flushes.last_mut().expect("looked at");
            if std::mem::take(&mut flush.is_entered) {
                self.feed.exit();
            }
            self.rebuild.write_small(&self.source, &mut self.folding.sink)?;
            self.flush(u64::MAX)?;
        }
        Ok(())
    }

    /// Adds the leaves that are still in memory to the tree.
    fn put_pending(&mut self) -> Result<()> {
        self.folding.close_group()?;
        if !self.folding.sink.is_empty() {
            let leaves = self.folding.sink.end_unit()?;
            self.rebuild.put(leaves);
        }
        Ok(())
    }

    /// The key at which the job has to continue.
    fn next_target(&mut self) -> Option<Vec<u8>> {
        let message = self.feed.peek().map(|message| message.key);
        let hot = self.hot.as_ref().and_then(WrittenRanges::next);
        let targets = [message, self.sweep.next(self.feed.to()), hot];
        targets.into_iter().flatten().min().map(<[u8]>::to_vec)
    }

    /// Opens the unit for a target.
    fn open(&mut self, target: &[u8]) -> Result<()> {
        let unit = self.rebuild.seek(target, &self.source, &mut self.folding.sink)?;
        self.visit(unit)
    }

    /// Keeps or drops a unit without reading it, or starts to read it.
    fn visit(&mut self, unit: Unit) -> Result<()> {
        let is_hot = self.hot.as_ref().is_some_and(|hot| hot.overlaps(&unit));
        let has_message = is_hot || self.feed.peek().is_some_and(|next| !unit.ends_before(next.key));
        if !has_message && !self.sweep.is_worth_reading(&unit) {
            self.put_pending()?;
            self.pass(unit.to.as_deref());
            self.rebuild.keep(unit);
            return Ok(());
        }
        if !has_message && self.sweep.is_dead(&unit) {
            self.put_pending()?;
            self.sweep.add_dropped();
            self.rebuild.drop_unit(&unit);
            self.pass(unit.to.as_deref());
            return Ok(());
        }
        self.is_sweeping = !is_hot && self.feed.next_key().is_none_or(|next| unit.ends_before(next));
        self.read(unit)
    }

    /// Records that all keys below `to` are done.
    fn pass(&mut self, to: Option<&[u8]>) {
        self.sweep.sweep_to(to);
        if let Some(hot) = &mut self.hot {
            hot.pass(to);
        }
    }

    fn read(&mut self, mut unit: Unit) -> Result<()> {
        self.rebuild.drop_unit(&unit);
        self.folding.sink.begin_unit(&unit.from);
        if self.hot.as_ref().is_some_and(|hot| hot.covers(&unit)) {
            unit.leaves.clear();
        }
        self.reading = Some(Reading::new(unit, &self.source, self.from.through, &mut self.ahead)?);
        self.ahead.look(self.rebuild.top(), &self.feed, &self.source);
        Ok(())
    }

    /// Merges the current unit with the messages for it, at most about `budget` bytes. Returns the bytes of old entries
    /// and carried messages, and the bytes of messages from the memtable.
    fn merge(&mut self, budget: u64) -> Result<(u64, u64)> {
        let Job { folding, feed, reading, ahead, source, pool, from, piece_bytes, adopted, hot, .. } = self;
        let reading_now = reading.as_mut().expect("a unit is being read");
        let (mut old, mut new) = (0, 0);
        let is_fresh_warm = pool.has_room(ROOM);
        let most = piece_bytes.filter(|_| from.loaded.is_some()).unwrap_or(u64::MAX);
        while old + new < budget {
            // Many rows of a load may belong to one unit, so a piece may end inside it.
            if folding.sink.writer.written() + adopted.weight >= most {
                feed.stop();
            }
            if let Some(leaf) = feed.next_leaf()
                && reading_now.entry().is_none_or(|entry| entry.key > leaf.last)
                && !reading_now.unit.ends_before(leaf.last)
            {
                folding.close_group()?;
                if folding.sink.may_adopt(leaf.bytes) {
                    folding.sink.adopt(leaf.page, leaf.first, leaf.last)?;
                    adopted.add(&leaf.page);
                    // The leaf was read.
                    new += leaf.bytes as u64;
                    feed.pass_leaf()?;
                    continue;
                }
            }
            if let Some(hot) = hot
                && reading_now.entry().is_some_and(|entry| hot.has(entry.key))
            {
                reading_now.advance(source, ahead)?;
                continue;
            }
            let message = feed.next().filter(|(next, _)| !reading_now.unit.ends_before(next.key));
            let entry = reading_now.entry();
            match (message, entry) {
                (Some((message, origin)), entry) if entry.is_none_or(|entry| message.key <= entry.key) => {
                    let is_other = entry.is_none_or(|entry| message.key < entry.key);
                    let is_last = is_other && feed.is_last_of_key();
                    let bytes = (message.key.len() + message.value.len() + 8) as u64;
                    *(if origin == Origin::Fresh { &mut new } else { &mut old }) += bytes;
                    folding.push(message, is_last, is_fresh_warm || reading_now.is_warm)?;
                    feed.advance(origin)?;
                }
                (_, Some(entry)) => {
                    old += (entry.key.len() + entry.value.len() + 8) as u64;
                    folding.push(entry, reading_now.is_last_of_key(), reading_now.is_warm)?;
                    reading_now.advance(source, ahead)?;
                }
                (_, None) => break,
            }
        }
        let is_done =
            reading_now.entry().is_none() && feed.peek().is_none_or(|next| reading_now.unit.ends_before(next.key));
        // Before the end of the unit, which ends the sweep if it has read enough.
        if self.is_sweeping {
            self.sweep.add(old);
        }
        if is_done {
            self.end_unit()?;
        }
        Ok((old, new))
    }

    /// Ends the current unit. If only a small leaf remains, the next unit of the same parent is read, too.
    fn end_unit(&mut self) -> Result<()> {
        self.folding.close_group()?;
        let unit = self.reading.take().expect("a unit is being read").unit;
        self.pass(unit.to.as_deref());
        if self.joins && self.folding.sink.is_small() {
            let above = self.flushes.last().filter(|flush| flush.depth == self.rebuild.depth());
            let left = self.rebuild.top().rest().len();
            let neighbour = above.map_or(Neighbour::Join, |flush| flush.neighbour(left));
            if neighbour == Neighbour::Wait {
                return Ok(());
            }
            if neighbour == Neighbour::Join
                && let Some(next) = self.rebuild.next_unit()
            {
                let next = seeded!(TreeJoinLosesLeaf: Unit { leaves: Vec::new(), ..next }, next);
                return self.read(next);
            }
        }
        let leaves = self.folding.sink.end_unit()?;
        self.rebuild.put(leaves);
        Ok(())
    }

    /// Writes the rest of the new tree, or of the tree with the pieces up to here.
    ///
    /// # Errors
    /// If a page cannot be read or written. Everything that the job has written is freed.
    pub(super) fn finish(mut self, stage: Stage) -> Result<Done> {
        debug_assert!(self.reading.is_none(), "the last unit is complete");
        assert!(stage == Stage::Piece || self.feed.first_left().is_none(), "a job ends when all messages are applied");
        let next = self.feed.first_left().map(<[u8]>::to_vec);
        if stage == Stage::Piece {
            self.put_pending()?;
            self.wind_up()?;
        }
        let Job { from, source, keep, folding, rebuild, levels, tombstones, sweep, adopted, mut values, .. } = self;
        let swept = sweep.into_swept();
        let (mut sink, folded) = folding.finish()?;
        values.add(folded);
        debug_assert!(sink.is_empty(), "all leaves are in the new tree");
        let (root, mut replaced) = rebuild.finish(&source, &mut sink)?;
        let rest = |loaded| left_of(loaded, next.as_deref(), &source, levels, &mut sink);
        let (loaded, merged) = from.loaded.map_or(Ok(Default::default()), rest)?;
        replaced.extend(merged.into_iter().filter(|extent| !adopted.contains(*extent)));
        let leaves = sink.writer.leaf_count();
        let written = sink.writer.finish()?;
        // A sweep may end after any piece.
        let is_piece = stage == Stage::Piece && self.batch.is_some();
        let piece_bytes = self.piece_bytes.filter(|_| is_piece);
        let next_left = next.clone();
        let rest = piece_bytes.map(|piece_bytes| Pieces { next, piece_bytes, values: LargeValues::default() });
        // The tombstones of the memtable are published with its last piece.
        let tombstones = if is_piece { from.tombstones.clipped(&KeyRange::all()) } else { tombstones };
        let tombstones = prune_tombstones(&remaining(&tombstones, &swept, &keep), &keep, false);
        let is_gone = root.is_none() && keep.snapshots.is_empty() && !is_piece && self.hot.is_none();
        let tombstones = if is_gone { Vec::new() } else { tombstones };
        debug_assert!(from.root.is_some() || replaced.is_empty(), "an empty tree has no pages");
        let tombstones = Fragments::build(&tombstones);
        Ok(Done {
            rest,
            next: next_left,
            root,
            loaded,
            adopted: adopted.weight,
            replaced,
            written,
            leaves,
            values,
            tombstones,
            swept,
            keep,
        })
    }
}

/// The new messages of a job: at most one of the three.
struct New<'a> {
    batch: Option<&'a SealedBatch>,
    hot: Option<&'a Arc<HotInput>>,
    parts: Option<&'a Arc<PartInput>>,
}

impl New<'_> {
    /// The new messages that a job applies; `None` for a sweep.
    fn fresh(&self, from: &World, source: &Arc<PageSource>, rows: &Arc<IndexRows>) -> Option<Fresh> {
        let batch = self.batch.cloned().map(Fresh::Memtable);
        let new = batch.or(self.hot.cloned().map(Fresh::Hot)).or(self.parts.cloned().map(Fresh::Parts));
        assert!(from.loaded.is_none() || new.is_none(), "a load is merged before any later message");
        new.or_else(|| from.loaded.map(|_| Fresh::Loaded(Arc::new(TreeView::of(from, source, rows)))))
    }

    /// The bytes of the messages.
    fn bytes(&self) -> Option<u64> {
        let bytes = self.batch.map(|batch| batch.bytes).or(self.hot.map(|hot| hot.bytes));
        bytes.or(self.parts.map(|parts| parts.bytes))
    }

    /// A job that is not divided in another way ends after it has written about this number of bytes.
    fn piece_bytes(&self) -> Option<u64> {
        self.parts.and_then(|parts| parts.piece_bytes)
    }

    /// Values of more than this number of bytes are moved out of the tree.
    fn inline_bytes(&self) -> Option<usize> {
        let bytes = self.batch.map(|batch| batch.inline_bytes).or(self.hot.map(|hot| hot.inline_bytes));
        bytes.or(self.parts.map(|parts| parts.inline_bytes))
    }

    /// The large values of messages up to this seqno belong to the tree. If the messages come from memory to which
    /// commits write directly, the seqnos do not tell: some messages of memory are older than others of the tree.
    fn knows_values_to(&self, from: &World) -> Seqno {
        if self.hot.is_some() || self.parts.is_some() { Seqno(0) } else { from.through }
    }

    /// How far down the messages are brought. `in_pieces` says that the job runs in pieces.
    fn rule(&self, from: &World, sizes: &Sizes, in_pieces: bool) -> Rule {
        let has_leftovers = from.root.is_some_and(|root| root.page.totals.newest > from.through);
        let is_whole = self.batch.is_some() && (in_pieces || has_leftovers);
        let reach = self.parts.map(|parts| parts.reach);
        Rule {
            capacity: sizes.buffer_bytes,
            buffered_from: sizes.levels.buffered_from,
            to_leaves: from.loaded.is_some() || is_whole || reach == Some(Reach::Leaves),
            empties_root: reach == Some(Reach::Leaves),
            stays_at_root: reach == Some(Reach::Root),
        }
    }

    /// All range tombstones: those of the tree, and those that come with the new messages.
    fn tombstones(&self, from: &World) -> Vec<RangeTombstone> {
        let mut tombstones = from.tombstones.clipped(&KeyRange::all());
        if let Some(batch) = self.batch {
            tombstones.extend(batch.memtable.fragments().clipped(&KeyRange::all()));
        }
        tombstones.extend(self.hot.iter().flat_map(|hot| hot.tombstones.iter().cloned()));
        tombstones.extend(self.parts.iter().flat_map(|parts| parts.tombstones.iter().cloned()));
        tombstones
    }
}

/// The read points and one more.
fn with_read_point(mut keep: Stripes, point: Seqno) -> Stripes {
    debug_assert!(point <= keep.horizon, "the tree is not newer than the newest read point");
    let at = keep.snapshots.partition_point(|&snapshot| snapshot < point);
    if keep.snapshots.get(at) != Some(&point) {
        keep.snapshots.insert(at, point);
    }
    keep
}
