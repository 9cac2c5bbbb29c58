//! [`Feed`]: the messages that a job has to apply, in key order.
//!
//! ```text
//!   new messages    k1 k2 k3 k4 …                      read a block at a time
//!   carried         k2 k7 …    for the open child of the root ┐
//!   carried         k2 …       for the open child of that     ├ taken from the buffers above, older than the new ones
//!                                                             ┘
//! ```
//!
//! When a job enters a child, it takes the messages for the child from the buffer above ([`Feed::enter`]). They are
//! consumed, together with the new messages, by the pages below. A job without buffers has only the new messages.
//!
//! The *new* messages are those of the memtable. When a job merges the tree of a sorted load with the older tree, they
//! are the rows of the load. When a job writes ranges that are in memory, they are all messages of these ranges. When it
//! writes parts of buffers that are in memory, they are the messages of these parts.
//!
//! Invariants: a carried message is older than the new messages and newer than everything below the buffer from which
//! it was taken; the last carried messages are those for the lowest open page.

use std::cmp::Ordering;
use std::ops::Range;
use std::sync::Arc;

use super::cursor::TreeCursor;
use super::view::TreeView;
use super::weighing::Weighing;
use crate::base::{Entry, EntryBlock, KeyRange, Result};
use crate::index::cached_rows::RowUpdates;
use crate::index::hot::{HotInput, InputCursor};
use crate::index::pages::PageRef;
use crate::index::pages::waiting::weight;
use crate::index::parts::{InputCursor as PartCursor, PartInput};
use crate::index::{RawCursor, SealedBatch};
use crate::memtable;

/// Bytes of new messages that are copied at a time.
const BLOCK: usize = 64 << 10;

/// The new messages that a job applies.
#[derive(Clone)]
pub(super) enum Fresh {
    /// Those of a memtable.
    Memtable(SealedBatch),
    /// Those of a sorted load that waits in this state.
    Loaded(Arc<TreeView>),
    /// All messages of ranges that are in memory.
    Hot(Arc<HotInput>),
    /// Those of parts of the topmost buffers, which are in memory.
    Parts(Arc<PartInput>),
}

impl Fresh {
    /// The messages in a range.
    fn cursor(&self, range: KeyRange) -> FreshCursor {
        match self {
            Fresh::Memtable(batch) => {
                FreshCursor::Memtable(memtable::Cursor::new(batch.memtable.clone(), range, false))
            }
            Fresh::Loaded(view) => FreshCursor::Loaded(Box::new(TreeCursor::of_load(view.clone(), range))),
            Fresh::Hot(input) => FreshCursor::Hot(InputCursor::new(input.clone(), range)),
            Fresh::Parts(input) => FreshCursor::Parts(PartCursor::new(input.clone(), range)),
        }
    }
}

/// A cursor over new messages.
enum FreshCursor {
    Memtable(memtable::Cursor),
    Loaded(Box<TreeCursor>),
    Hot(InputCursor),
    Parts(PartCursor),
}

impl FreshCursor {
    fn fill(&mut self, max_bytes: usize, out: &mut EntryBlock) -> Result<()> {
        match self {
            FreshCursor::Memtable(cursor) => {
                cursor.fill(max_bytes, out);
                Ok(())
            }
            FreshCursor::Loaded(cursor) => cursor.fill(max_bytes, out),
            FreshCursor::Hot(cursor) => {
                cursor.fill(max_bytes, out);
                Ok(())
            }
            FreshCursor::Parts(cursor) => cursor.fill(max_bytes, out),
        }
    }

    /// Appends the next messages: for a load, those of one leaf after the other. Adds the leaves that were appended as
    /// a whole to `leaves`.
    fn fill_block(&mut self, out: &mut EntryBlock, leaves: &mut Vec<WholeLeaf>) -> Result<()> {
        let FreshCursor::Loaded(cursor) = self else { return self.fill(BLOCK, out) };
        while out.bytes() < BLOCK {
            let (from, bytes) = (out.len(), out.bytes());
            let page = cursor.fill_leaf(out)?;
            if out.len() == from {
                return Ok(());
            }
            leaves.extend(page.map(|page| WholeLeaf { page, at: from..out.len(), bytes: out.bytes() - bytes }));
        }
        Ok(())
    }

    fn seek(&mut self, key: &[u8]) -> Result<()> {
        match self {
            FreshCursor::Memtable(cursor) => {
                cursor.seek(key);
                Ok(())
            }
            FreshCursor::Loaded(cursor) => cursor.seek(key),
            FreshCursor::Hot(cursor) => {
                cursor.seek(key);
                Ok(())
            }
            FreshCursor::Parts(cursor) => {
                cursor.seek(key);
                Ok(())
            }
        }
    }

    /// Whether the next message may have the key of the last one.
    fn continues_key(&self) -> bool {
        match self {
            FreshCursor::Memtable(cursor) => cursor.continues_key(),
            FreshCursor::Loaded(_) | FreshCursor::Hot(_) | FreshCursor::Parts(_) => false,
        }
    }
}

/// A leaf of a load all messages of which are in a block.
struct WholeLeaf {
    page: PageRef,
    /// The numbers of its messages in the block.
    at: Range<usize>,
    /// The bytes of these messages.
    bytes: usize,
}

/// A leaf of a load that holds exactly the next messages.
pub(super) struct NextLeaf<'a> {
    pub(super) page: PageRef,
    pub(super) first: &'a [u8],
    pub(super) last: &'a [u8],
    /// The bytes of its messages.
    pub(super) bytes: usize,
}

/// New messages in order.
struct Messages {
    cursor: FreshCursor,
    block: EntryBlock,
    at: usize,
    /// The leaves in the block.
    leaves: Vec<WholeLeaf>,
    /// The number of these leaves that begin before the next message.
    leaves_begun: usize,
    rows: RowUpdates,
    /// Whether the job has passed a message.
    is_begun: bool,
    /// Whether the job applies no further message.
    is_stopped: bool,
}

impl Messages {
    fn refill(&mut self) -> Result<()> {
        self.block.clear();
        self.leaves.clear();
        (self.at, self.leaves_begun) = (0, 0);
        self.cursor.fill_block(&mut self.block, &mut self.leaves)?;
        self.rows.absorb(self.cursor.continues_key(), &self.block);
        Ok(())
    }

    /// The next message that the job applies.
    fn peek(&self) -> Option<Entry<'_>> {
        self.first().filter(|_| !self.is_stopped)
    }

    /// The next message.
    fn first(&self) -> Option<Entry<'_>> {
        (self.at < self.block.len()).then(|| self.block.get(self.at))
    }

    /// Whether the message after the next one certainly has another key.
    fn is_last_of_key(&self) -> bool {
        self.at + 1 < self.block.len() && self.block.get(self.at).key != self.block.get(self.at + 1).key
    }

    fn advance(&mut self) -> Result<()> {
        self.pass(1)
    }

    /// The leaf of a load that begins with the next message.
    fn leaf(&self) -> Option<&WholeLeaf> {
        self.leaves.get(self.leaves_begun).filter(|leaf| leaf.at.start == self.at && !self.is_stopped)
    }

    /// Passes `count` messages of the block.
    fn pass(&mut self, count: usize) -> Result<()> {
        self.at += count;
        self.is_begun = true;
        while self.leaves.get(self.leaves_begun).is_some_and(|leaf| leaf.at.start < self.at) {
            self.leaves_begun += 1;
        }
        if self.at == self.block.len() { self.refill() } else { Ok(()) }
    }
}

/// Messages from the buffers above a page, for the keys of the page.
struct Carried {
    block: EntryBlock,
    at: usize,
    /// The smallest key above the page.
    to: Option<Vec<u8>>,
}

impl Carried {
    fn peek(&self) -> Option<Entry<'_>> {
        (self.at < self.block.len()).then(|| self.block.get(self.at))
    }

    fn rest(&self) -> impl Iterator<Item = Entry<'_>> {
        (self.at..self.block.len()).map(|i| self.block.get(i))
    }
}

/// Where the next message is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Origin {
    /// Among the messages of the memtable, or the rows of the load.
    Fresh,
    /// Among the carried messages.
    Carried,
}

/// The messages that a job has to apply.
pub(super) struct Feed {
    fresh: Option<Fresh>,
    messages: Option<Messages>,
    carried: Vec<Carried>,
    /// The weights of the new messages for a page that is open, or was open.
    weighing: Option<Weighing>,
}

/// Whether `key` is below the bound `to`; `None` is above all keys.
pub(super) fn is_below(key: &[u8], to: Option<&[u8]>) -> bool {
    to.is_none_or(|to| key < to)
}

impl Feed {
    /// The new messages whose keys are at or above `from`; with `None`, no messages. Each message that is read updates
    /// `rows`. [`Feed::start`] is called before the first message is needed.
    pub(super) fn new(fresh: Option<Fresh>, from: Option<&[u8]>, rows: &RowUpdates) -> Feed {
        let messages = |(fresh, from): (&Fresh, &[u8])| Messages {
            cursor: fresh.cursor(KeyRange::new(from, [])),
            block: EntryBlock::new(),
            at: 0,
            leaves: Vec::new(),
            leaves_begun: 0,
            rows: rows.clone(),
            is_begun: false,
            is_stopped: false,
        };
        let messages = fresh.as_ref().zip(from).map(messages);
        Feed { fresh, messages, carried: Vec::new(), weighing: None }
    }

    /// Reads the first messages.
    ///
    /// # Errors
    /// If a leaf of a load cannot be read.
    pub(super) fn start(&mut self) -> Result<()> {
        self.messages.as_mut().map_or(Ok(()), Messages::refill)
    }

    /// Applies no further new message in this piece of the job, unless the piece has applied none: each piece makes
    /// progress, however many messages of older keys it has to rewrite.
    pub(super) fn stop(&mut self) {
        if let Some(messages) = &mut self.messages {
            messages.is_stopped = messages.is_begun;
        }
    }

    /// The smallest key above the page that is open; `None` if there is none.
    pub(super) fn to(&self) -> Option<&[u8]> {
        self.carried.last().and_then(|carried| carried.to.as_deref())
    }

    /// The next new message that this piece of the job applies, for any page.
    pub(super) fn next_key(&self) -> Option<&[u8]> {
        self.messages.as_ref().and_then(Messages::peek).map(|message| message.key)
    }

    /// The next new message, which a later piece of the job may apply.
    pub(super) fn first_left(&self) -> Option<&[u8]> {
        self.messages.as_ref().and_then(Messages::first).map(|message| message.key)
    }

    /// The next carried message for the open page.
    pub(super) fn carried(&self) -> Option<Entry<'_>> {
        self.carried.last().and_then(Carried::peek)
    }

    /// The next message for the open page, and where it is. Of several messages of a key, the newest is first.
    #[inline]
    pub(super) fn next(&self) -> Option<(Entry<'_>, Origin)> {
        let message = self.messages.as_ref().and_then(Messages::peek);
        let Some(open) = self.carried.last() else { return message.map(|message| (message, Origin::Fresh)) };
        let message = message.filter(|message| is_below(message.key, open.to.as_deref()));
        match (message, open.peek()) {
            (Some(message), Some(carried)) if carried.key.cmp(message.key) == Ordering::Less => {
                Some((carried, Origin::Carried))
            }
            (None, carried) => carried.map(|carried| (carried, Origin::Carried)),
            (Some(message), _) => Some((message, Origin::Fresh)),
        }
    }

    /// The next message for the open page.
    #[inline]
    pub(super) fn peek(&self) -> Option<Entry<'_>> {
        self.next().map(|(message, _)| message)
    }

    /// Whether the message after the next one certainly has another key.
    pub(super) fn is_last_of_key(&self) -> bool {
        match self.next() {
            None => true,
            Some((message, Origin::Fresh)) => {
                let is_carried = self.carried().is_some_and(|carried| carried.key == message.key);
                !is_carried && self.messages.as_ref().is_some_and(Messages::is_last_of_key)
            }
            Some((message, Origin::Carried)) => {
                let open = self.carried.last().expect("it has the message");
                open.at + 1 == open.block.len() || open.block.get(open.at + 1).key != message.key
            }
        }
    }

    /// Whether a message has a key from `from` to `to`; `None` if this is unknown, because the new messages that
    /// are in memory end before `to`.
    pub(super) fn has_in_memory(&self, from: &[u8], to: Option<&[u8]>) -> Option<bool> {
        let has = |block: &EntryBlock, at: usize| {
            let first = block.lower_bound(at, from);
            first < block.len() && is_below(block.get(first).key, to)
        };
        if self.carried.last().is_some_and(|open| has(&open.block, open.at)) {
            return Some(true);
        }
        let Some(messages) = &self.messages else { return Some(false) };
        if messages.is_stopped {
            return Some(false);
        }
        match has(&messages.block, messages.at) {
            true => Some(true),
            // The block ends with the new messages only if no message is left.
            false if messages.block.is_empty() => Some(false),
            false => {
                let last = messages.block.get(messages.block.len() - 1);
                (!is_below(last.key, to)).then_some(false)
            }
        }
    }

    /// Passes the next message.
    ///
    /// # Errors
    /// If a leaf of a load cannot be read.
    pub(super) fn advance(&mut self, origin: Origin) -> Result<()> {
        match origin {
            Origin::Fresh => return self.messages.as_mut().expect("it has the next message").advance(),
            Origin::Carried => self.carried.last_mut().expect("it has the next message").at += 1,
        }
        Ok(())
    }

    /// The leaf of a load that holds exactly the next messages for the open page, if no carried message is among them.
    pub(super) fn next_leaf(&self) -> Option<NextLeaf<'_>> {
        let messages = self.messages.as_ref()?;
        let WholeLeaf { page, at, bytes } = messages.leaf()?;
        let (first, last) = (messages.block.get(at.start).key, messages.block.get(at.end - 1).key);
        let is_alone = is_below(last, self.to()) && self.carried().is_none_or(|carried| carried.key > last);
        is_alone.then_some(NextLeaf { page: *page, first, last, bytes: *bytes })
    }

    /// Passes the messages of the leaf that [`Feed::next_leaf`] has returned.
    ///
    /// # Errors
    /// If the next leaf cannot be read.
    pub(super) fn pass_leaf(&mut self) -> Result<()> {
        let messages = self.messages.as_mut().expect("it has the leaf");
        let count = messages.leaf().expect("the next messages are a leaf").at.len();
        messages.pass(count)
    }

    /// Enters a page: its messages are the new ones below `to`, and `block`.
    pub(super) fn enter(&mut self, block: EntryBlock, to: Option<Vec<u8>>) {
        self.carried.push(Carried { block, at: 0, to });
    }

    /// Ends the work on the page that was entered last. Its messages that were not consumed are added to the carried
    /// messages of the page above.
    pub(super) fn exit(&mut self) {
        let left = self.carried.pop().expect("a page was entered");
        if left.peek().is_none() {
            return;
        }
        let above = self.carried.last_mut().expect("the messages were taken from a buffer above");
        let mut block = EntryBlock::new();
        left.rest().chain(above.rest()).for_each(|entry| block.push(entry));
        (above.block, above.at) = (block, 0);
    }

    /// Leaves out the rest of the new messages.
    pub(super) fn end_fresh(&mut self) {
        self.messages = None;
    }

    /// Adds the weights of the messages for the open page to the parts of the page that begin at `bounds`. The weights of
    /// new messages are exact up to `step` bytes, and each part with messages gets a weight. `counts_hidden` says that
    /// messages count that a newer one of their key hides.
    ///
    /// # Errors
    /// If a leaf of a load cannot be read.
    pub(super) fn add_weights(
        &mut self,
        bounds: &[Vec<u8>],
        weights: &mut [u64],
        (step, counts_hidden): (u64, bool),
    ) -> Result<()> {
        self.add_carried_weights(bounds, weights);
        let Some(next) = self.next_key().filter(|next| is_below(next, self.to())) else { return Ok(()) };
        if !self.weighing.as_ref().is_some_and(|weighing| weighing.covers(next, self.to())) {
            self.weighing = Some(self.weigh(next.to_vec(), step, counts_hidden)?);
        }
        let (next, weighing) = (self.next_key(), self.weighing.as_ref());
        let (next, weighing) = next.zip(weighing).expect("there is a message, and it was weighed");
        for (i, new) in weighing.of_parts(bounds, next, self.to()).into_iter().enumerate() {
            weights[i] += match new {
                0 => self.first_weight(bounds, i)?,
                new => new,
            };
        }
        Ok(())
    }

    /// Weighs the new messages for the open page.
    fn weigh(&self, next: Vec<u8>, step: u64, counts_hidden: bool) -> Result<Weighing> {
        let mut weighing = Weighing::new(next, self.to().map(<[u8]>::to_vec), step, counts_hidden);
        let Some(mut cursor) = self.fresh_cursor() else { return Ok(weighing) };
        let mut block = EntryBlock::new();
        loop {
            block.clear();
            cursor.fill(BLOCK, &mut block)?;
            if block.is_empty() {
                return Ok(weighing.finish());
            }
            block.iter().for_each(|entry| weighing.add(&entry));
        }
    }

    /// The weight of the first new message for part `i` of the open page; 0 if there is none.
    fn first_weight(&self, bounds: &[Vec<u8>], i: usize) -> Result<u64> {
        let (Some(fresh), Some(next)) = (&self.fresh, self.next_key()) else { return Ok(0) };
        let from = next.max(&bounds[i]);
        let to = bounds.get(i + 1).map(Vec::as_slice).or(self.to());
        if !is_below(from, to) {
            return Ok(0);
        }
        let mut block = EntryBlock::new();
        fresh.cursor(KeyRange::new(from, to.unwrap_or_default())).fill(1, &mut block)?;
        Ok(block.iter().next().map_or(0, |entry| weight(&entry)))
    }

    /// As [`Feed::add_weights`], but each part for which there are new messages gets the weight of one of them. So the cost does not
    /// grow with their number.
    ///
    /// # Errors
    /// If a leaf of a load cannot be read.
    pub(super) fn mark(&self, bounds: &[Vec<u8>], weights: &mut [u64]) -> Result<()> {
        self.add_carried_weights(bounds, weights);
        let Some(mut cursor) = self.fresh_cursor() else { return Ok(()) };
        let (mut at, mut block) = (0, EntryBlock::new());
        loop {
            block.clear();
            cursor.fill(1, &mut block)?;
            let Some(entry) = block.iter().next() else { return Ok(()) };
            at = part_of(bounds, at, entry.key);
            weights[at] += weight(&entry);
            let Some(next) = bounds.get(at + 1) else { return Ok(()) };
            cursor.seek(next)?;
        }
    }

    fn add_carried_weights(&self, bounds: &[Vec<u8>], weights: &mut [u64]) {
        let mut at = 0;
        for entry in self.carried.last().iter().flat_map(|open| open.rest()) {
            at = part_of(bounds, at, entry.key);
            weights[at] += weight(&entry);
        }
    }

    /// A cursor over the new messages for the open page that were not consumed yet.
    fn fresh_cursor(&self) -> Option<FreshCursor> {
        let (fresh, from) = (self.fresh.as_ref()?, self.next_key()?);
        let range = KeyRange::new(from, self.to().unwrap_or_default());
        (!range.is_empty()).then(|| fresh.cursor(range))
    }
}

/// The last part that begins at or before `key`, from part `at` on.
fn part_of(bounds: &[Vec<u8>], mut at: usize, key: &[u8]) -> usize {
    while bounds.get(at + 1).is_some_and(|next| next.as_slice() <= key) {
        at += 1;
    }
    at
}
