//! [`Flush`]: a page with a buffer, while a job passes messages on to some of its children.
//!
//! ```text
//!   messages from above ─┐          children:   c0     c1     c2     c3     c4
//!   own buffer ──────────┴─▶ fold ─▶            ·      ■      ·      ·      ■      ■ chosen
//!                             │                        │                    │
//!                 ┌───────────┴── c0, c2, c3           └── carried down ────┘
//!                 ▼
//!             new buffer
//! ```
//!
//! 1. [`Flush::open`] adds up the messages for each child and chooses the children that get theirs.
//! 2. In key order: messages for the other children are merged into the new buffer ([`Flush::run`]); those for a chosen
//!    child are taken out ([`Flush::extract`]) and the job enters the child with them.
//! 3. [`Flush::finish`] hands the new buffer to the page, which is then closed.
//!
//! Leaves of the buffer for which no message arrives, and from which none is taken, stay as they are.
//!
//! Invariant: what the page counts as pending for a child is exactly the weight of the messages for it in the buffer.

use std::sync::Arc;

use super::ahead::JobAhead;
use super::choose::choose;
use super::feed::{Feed, Origin, is_below};
use super::reading::Reading;
use super::sweep::Sweep;
use crate::base::{Entry, EntryBlock, Extent, Fragments, KeyRange, Result, Seqno, seeded};
use crate::index::Core;
use crate::index::folding::{BlockSink, FoldedValues, Folding, Sink};
use crate::index::pages::rebuild::Open;
use crate::index::pages::unit::pop_unit;
use crate::index::pages::waiting::{leaves_of, weight};
use crate::index::pages::{Child, Neighbour, PageRef, PageSource, Unit, Waiting};
use crate::resolve::{Operator, Stripes};

/// The weights of new messages are exact up to this part of a buffer.
const WEIGHED_PARTS: u64 = 128;

/// How a job chooses the children to which a page passes its messages.
pub(super) struct Rule {
    /// The bytes of messages that a page may keep.
    pub(super) capacity: u64,
    /// The lowest level of pages that may have a buffer.
    pub(super) buffered_from: u32,
    /// Whether each message of the memtable is brought to its leaf.
    pub(super) to_leaves: bool,
    /// If messages are brought to their leaves: whether the root also passes on at least half of the messages in its
    /// buffer, those for the children with the most.
    pub(super) empties_root: bool,
    /// Whether all messages stay in the buffer of the root.
    pub(super) stays_at_root: bool,
}

/// Why a child gets its messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Chosen {
    No,
    /// It has many messages.
    ForMessages,
    /// The sweep cleans a part of it.
    ForSweep,
}

/// Makes the foldings of a job.
pub(super) struct Folder {
    pub(super) core: Core,
    pub(super) keep: Stripes,
    pub(super) operator: Option<Operator>,
    pub(super) tombstones: Arc<Fragments>,
    /// The tree has no message above this seqno, except for those of an unfinished job.
    pub(super) through: Seqno,
    /// The tree frees the large values that messages up to this seqno refer to. The value of a later message may not be
    /// among the tree's values yet.
    pub(super) knows_values_to: Seqno,
    /// Larger values are moved out of the tree, if the job applies a memtable.
    pub(super) inline_bytes: Option<usize>,
    /// Whether the job runs in pieces. The tree with a piece refers to no value that the job has moved out for a
    /// message up to `through`, because only the last piece gives the values to the tree.
    pub(super) in_pieces: bool,
}

impl Folder {
    /// A folding of all messages of each key (`is_bottom`), or of the newest ones. With `expected_bytes`, large values
    /// are moved out of the tree; the number is a hint for their allocation.
    pub(super) fn folding_into<S: Sink>(&self, sink: S, is_bottom: bool, expected_bytes: Option<u64>) -> Folding<S> {
        let Folder { core, keep, operator, tombstones, through, knows_values_to, inline_bytes, in_pieces } = self;
        let folding = Folding::new(core, sink, keep.clone(), operator.clone(), is_bottom, tombstones.clone());
        let folding = if is_bottom { folding } else { folding.of_newest() }.knows_values_to(*knows_values_to);
        match inline_bytes.zip(expected_bytes) {
            Some((inline_bytes, expected_bytes)) => {
                let after = if *in_pieces { *through } else { Seqno(0) };
                folding.separating(core, inline_bytes, expected_bytes).separating_after(after)
            }
            None => folding,
        }
    }

    /// A folding of the newest messages of each key, which are collected in memory. `moves_values` says that large
    /// values are moved out of the tree.
    fn folding(&self, moves_values: bool) -> Folding<BlockSink> {
        self.folding_into(BlockSink::default(), false, moves_values.then_some(0))
    }
}

/// A group of children that are chosen together: a child, with the leaves that continue the messages of its last key.
struct Group {
    from: Vec<u8>,
    /// The number of children that are left when the group is the next one.
    left: usize,
    /// The weight of the messages for the group in leaves of the old buffer that were not read.
    pending: u64,
    chosen: Chosen,
    /// Whether no message is for the group.
    has_no_message: bool,
}

/// A page whose messages are being distributed.
pub(super) struct Flush {
    /// The number of open pages, with the page itself.
    pub(super) depth: usize,
    page: Option<PageRef>,
    to: Option<Vec<u8>>,
    groups: Vec<Group>,
    /// The leaves of the old buffer that were not visited yet, last first.
    units: Vec<Child>,
    reading: Option<Reading>,
    ahead: JobAhead,
    /// The group of the last message that was taken from the old buffer.
    taken_at: usize,
    folding: Folding<BlockSink>,
    waiting: Waiting,
    /// The pages of the old buffer that the new one lacks.
    replaced: Vec<Extent>,
    is_changed: bool,
    /// Whether the job is below a chosen child.
    pub(super) is_entered: bool,
}

/// The next child of a page that is flushed.
pub(super) struct Next {
    /// The number of its group; `None` at the end of the page.
    pub(super) group: Option<usize>,
    /// The smallest key of the child, or the upper bound of the page.
    pub(super) from: Option<Vec<u8>>,
    /// The number of children that are left when it is the next child.
    pub(super) left: usize,
}

impl Flush {
    /// Starts to flush the page `open`, whose buffer may keep `capacity` bytes. Also chooses each child of which the
    /// sweep cleans a part.
    ///
    /// # Errors
    /// If the inner page of the buffer cannot be read.
    pub(super) fn open(
        folder: &Folder,
        (depth, open): (usize, &Open),
        (feed, sweep): (&mut Feed, &Sweep),
        source: &PageSource,
        (rule, capacity): (&Rule, u64),
    ) -> Result<Flush> {
        let mut groups: Vec<Group> = Vec::new();
        let count = open.rest().len();
        for (i, child) in open.rest().iter().rev().enumerate() {
            match groups.last_mut() {
                Some(last) if child.page.is_continued => last.pending += child.pending,
                _ => groups.push(Group {
                    from: child.from.clone(),
                    left: count - i,
                    pending: child.pending,
                    chosen: Chosen::No,
                    has_no_message: false,
                }),
            }
        }
        let bounds: Vec<Vec<u8>> = groups.iter().map(|group| group.from.clone()).collect();
        let mut arriving = vec![0; groups.len()];
        // A page that keeps nothing passes on whatever there is, so the weights do not matter.
        match rule.to_leaves || capacity == 0 {
            true => feed.mark(&bounds, &mut arriving)?,
            false => {
                let counts_hidden = !folder.keep.snapshots.is_empty();
                feed.add_weights(&bounds, &mut arriving, (capacity / WEIGHED_PARTS, counts_hidden))?;
            }
        }
        let weights: Vec<u64> = groups.iter().zip(&arriving).map(|(group, new)| group.pending + new).collect();
        let chosen = match rule.to_leaves {
            // The root is the only page without capacity.
            true => chosen_to_leaves(&arriving, &groups, rule.empties_root && capacity == 0),
            false => choose(&weights, capacity),
        };
        for (i, group) in groups.iter_mut().enumerate() {
            let to = bounds.get(i + 1).map(Vec::as_slice).or(open.to.as_deref());
            let range = KeyRange::new(bounds[i].as_slice(), to.unwrap_or_default());
            group.has_no_message = weights[i] == 0;
            group.chosen = match chosen[i] {
                true => Chosen::ForMessages,
                false if sweep.overlaps(&range) => Chosen::ForSweep,
                false => Chosen::No,
            };
        }
        let mut units = match &open.buffer {
            Some(buffer) => leaves_of(buffer, &open.from, open.to.as_deref(), source)?,
            None => Vec::new(),
        };
        units.reverse();
        Ok(Flush {
            depth,
            page: open.buffer.map(|buffer| buffer.page),
            to: open.to.clone(),
            groups,
            units,
            reading: None,
            ahead: JobAhead::default(),
            taken_at: 0,
            folding: folder.folding(true),
            waiting: Waiting::default(),
            replaced: Vec::new(),
            is_changed: false,
            is_entered: false,
        })
    }

    /// The group of the next child, if `left` children are left.
    fn at(&self, left: usize) -> usize {
        self.groups.partition_point(|group| group.left > left)
    }

    /// The next chosen child, if `left` children are left.
    pub(super) fn next_chosen(&self, left: usize) -> Next {
        let group = (self.at(left)..self.groups.len()).find(|&i| self.groups[i].chosen != Chosen::No);
        let from = group.map(|i| self.groups[i].from.clone()).or_else(|| self.to.clone());
        Next { group, from, left: group.map_or(0, |i| self.groups[i].left) }
    }

    /// The upper bound of a group.
    pub(super) fn end_of(&self, group: usize) -> Option<Vec<u8>> {
        self.groups.get(group + 1).map(|next| next.from.clone()).or_else(|| self.to.clone())
    }

    /// How [`Rebuild::close`](crate::index::pages::Rebuild::close) treats a child with few children, if `left` children
    /// of the page follow it.
    pub(super) fn neighbour(&self, left: usize) -> Neighbour {
        match self.groups.get(self.at(left)) {
            Some(group) if group.chosen != Chosen::No => Neighbour::Wait,
            Some(group) if group.has_no_message => Neighbour::Join,
            _ => Neighbour::Alone,
        }
    }

    /// Chooses no further child.
    pub(super) fn choose_no_more(&mut self) {
        self.groups.iter_mut().for_each(|group| group.chosen = Chosen::No);
    }

    /// Chooses no further child for the sweep, because it has ended. Returns whether this changes anything.
    pub(super) fn end_sweep(&mut self) -> bool {
        let mut is_changed = false;
        for group in self.groups.iter_mut().filter(|group| group.chosen == Chosen::ForSweep) {
            (group.chosen, is_changed) = (Chosen::No, true);
        }
        is_changed
    }

    /// Merges the messages for children that are not chosen into the new buffer, up to the key `to`, at most about
    /// `budget` bytes. Returns the bytes that were moved, the bytes from the memtable among them, and whether it is
    /// done.
    pub(super) fn run(
        &mut self,
        to: Option<&[u8]>,
        feed: &mut Feed,
        source: &PageSource,
        through: Seqno,
        budget: u64,
    ) -> Result<(u64, u64, bool)> {
        let (mut moved, mut new) = (0, 0);
        while moved < budget {
            let message = feed.next().filter(|(message, _)| is_below(message.key, to));
            let Some(reading) = &mut self.reading else {
                let hit = message.map(|(message, _)| message.key);
                if self.pass_unit(to, hit, source, through)? {
                    continue;
                }
                let Some((message, origin)) = message else { return Ok((moved, new, true)) };
                moved += weight(&message);
                new += if origin == Origin::Fresh { weight(&message) } else { 0 };
                self.folding.push(message, false, true)?;
                self.is_changed = true;
                feed.advance(origin)?;
                continue;
            };
            match (message, reading.entry()) {
                (_, None) => self.reading = None,
                (Some((message, origin)), Some(entry)) if message.key <= entry.key => {
                    moved += weight(&message);
                    new += if origin == Origin::Fresh { weight(&message) } else { 0 };
                    self.folding.push(message, false, true)?;
                    feed.advance(origin)?;
                }
                (_, Some(entry)) if is_below(entry.key, to) => {
                    let bytes = weight(&entry);
                    moved += bytes;
                    self.folding.push(entry, false, true)?;
                    subtract(&mut self.groups, &mut self.taken_at, &entry, self.page.as_ref(), source)?;
                    reading.advance(source, &mut self.ahead)?;
                }
                _ => return Ok((moved, new, true)),
            }
        }
        Ok((moved, new, false))
    }

    /// Passes the next leaf of the old buffer, or starts to read it, if it begins below `to`: a leaf that the message
    /// with the key `hit` is for, or of which a part belongs to the chosen child at `to`, is read. Returns false if the
    /// leaf is for later keys.
    fn pass_unit(
        &mut self,
        to: Option<&[u8]>,
        hit: Option<&[u8]>,
        source: &PageSource,
        through: Seqno,
    ) -> Result<bool> {
        let is_early = |next: &Child| hit.is_some_and(|key| key < next.from.as_slice());
        if self.units.last().is_none_or(|next| is_early(next) || !is_below(&next.from, to)) {
            return Ok(false);
        }
        let behind = self.units.iter().rev().skip(1).find(|leaf| !leaf.page.is_continued);
        let end = behind.map(|leaf| leaf.from.as_slice()).or(self.to.as_deref());
        let is_hit = hit.is_some_and(|key| is_below(key, end));
        // The last leaf before `to` may have messages for the child behind it.
        let is_inside = to.is_none_or(|to| end.is_some_and(|end| end <= to));
        let is_taken = || {
            let at = self.groups.partition_point(|group| to.is_some_and(|to| group.from.as_slice() < to));
            self.groups.get(at).is_some_and(|group| group.chosen != Chosen::No && group.pending > 0)
        };
        if !is_hit && !is_inside && !is_taken() {
            return Ok(false);
        }
        let unit = pop_unit(&mut self.units, self.to.as_deref()).expect("a leaf is left");
        if is_hit || !is_inside {
            self.read(unit, source, through)?;
        } else {
            self.end_block()?;
            self.waiting.keep(unit);
        }
        Ok(true)
    }

    /// Starts to read a leaf of the old buffer.
    fn read(&mut self, unit: Unit, source: &PageSource, through: Seqno) -> Result<()> {
        self.is_changed = true;
        let replaced = unit.leaves.iter().flat_map(|leaf| leaf.page.extents());
        self.replaced.extend(replaced.take(seeded!(BufferLeafKept: 0, usize::MAX)));
        self.reading = Some(Reading::new(unit, source, through, &mut self.ahead)?);
        Ok(())
    }

    /// Ends the messages in memory, because a leaf that stays as it is follows.
    fn end_block(&mut self) -> Result<()> {
        self.folding.close_group()?;
        self.waiting.add(std::mem::take(&mut self.folding.sink.0));
        Ok(())
    }

    /// Takes the messages for a chosen group out of the buffer and of the carried messages.
    ///
    /// # Errors
    /// If a leaf of the buffer cannot be read, or differs from what the page counts.
    pub(super) fn extract(
        &mut self,
        group: usize,
        folder: &Folder,
        feed: &mut Feed,
        source: &PageSource,
    ) -> Result<(EntryBlock, FoldedValues)> {
        let end = self.end_of(group);
        let to = end.as_deref();
        // The messages are folded again where they come to rest. Until then no value is moved out of the tree.
        let mut folding = folder.folding(false);
        loop {
            if self.reading.is_none()
                && self.groups[group].pending > 0
                && self.units.last().is_some_and(|next| is_below(&next.from, to))
            {
                let unit = pop_unit(&mut self.units, self.to.as_deref()).expect("a leaf is left");
                self.read(unit, source, folder.through)?;
            }
            if self.reading.as_ref().is_some_and(|reading| reading.entry().is_none()) {
                self.reading = None;
                continue;
            }
            let own = self.reading.as_ref().and_then(Reading::entry).filter(|entry| is_below(entry.key, to));
            let carried = feed.carried().filter(|message| is_below(message.key, to));
            match (carried, own) {
                (Some(message), own) if own.is_none_or(|own| message.key <= own.key) => {
                    folding.push(message, false, true)?;
                    feed.advance(Origin::Carried)?;
                }
                (_, Some(own)) => {
                    folding.push(own, false, true)?;
                    subtract(&mut self.groups, &mut self.taken_at, &own, self.page.as_ref(), source)?;
                    self.reading.as_mut().expect("it has the entry").advance(source, &mut self.ahead)?;
                }
                (_, None) => break,
            }
        }
        if self.groups[group].pending > 0 {
            return Err(differs(self.page.as_ref(), source));
        }
        let (sink, values) = folding.finish()?;
        Ok((sink.0, values))
    }

    /// Hands the new buffer to its page, which is closed next.
    ///
    /// # Errors
    /// If a large value cannot be written.
    pub(super) fn finish(mut self, page: &mut Open, replaced: &mut Vec<Extent>) -> Result<FoldedValues> {
        debug_assert!(self.reading.is_none() && self.units.is_empty(), "all leaves of the buffer were visited");
        self.end_block()?;
        let Flush { groups, folding, waiting, is_changed, replaced: mut pages, .. } = self;
        let (_, values) = folding.finish()?;
        if !is_changed {
            return Ok(values);
        }
        for child in page.children_mut() {
            let same = groups.binary_search_by(|group| group.from.cmp(&child.from));
            child.pending = same.ok().filter(|_| !child.page.is_continued).map_or(0, |same| groups[same].pending);
        }
        waiting.add_weights(page.children_mut());
        if let Some(buffer) = page.buffer.take().filter(|buffer| buffer.level > 0) {
            replaced.extend(buffer.page.extents());
        }
        replaced.append(&mut pages);
        page.waiting = Some(waiting);
        page.is_changed = true;
        Ok(values)
    }
}

/// For each group, whether it is chosen if messages are brought to their leaves: messages arrive for it, or it is among
/// those with the most messages in a buffer that is emptied.
fn chosen_to_leaves(arriving: &[u64], groups: &[Group], empties: bool) -> Vec<bool> {
    let pending: Vec<u64> = groups.iter().map(|group| if empties { group.pending } else { 0 }).collect();
    let heaviest = choose(&pending, pending.iter().sum::<u64>() / 2);
    arriving.iter().zip(heaviest).map(|(&new, is_heavy)| new > 0 || is_heavy).collect()
}

/// Subtracts a message that was read from the old buffer.
fn subtract(
    groups: &mut [Group],
    at: &mut usize,
    entry: &Entry<'_>,
    buffer: Option<&PageRef>,
    source: &PageSource,
) -> Result<()> {
    while groups.get(*at + 1).is_some_and(|next| next.from.as_slice() <= entry.key) {
        *at += 1;
    }
    let pending = &mut groups[*at].pending;
    *pending = pending.checked_sub(weight(entry)).ok_or_else(|| differs(buffer, source))?;
    Ok(())
}

/// The error for a buffer that has other messages than its page counts.
fn differs(buffer: Option<&PageRef>, source: &PageSource) -> crate::Error {
    let buffer = buffer.expect("a page without a buffer counts no messages");
    source.corrupt(buffer, "the buffer has other messages than its page counts")
}
