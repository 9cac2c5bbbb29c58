//! [`Feed`]: the messages that a job has to apply, in key order.
//!
//! ```text
//!   memtable        k1 k2 k3 k4 …                      read a block at a time
//!   carried         k2 k7 …    for the open child of the root ┐
//!   carried         k2 …       for the open child of that     ├ taken from the buffers above, older than the memtable
//!                                                             ┘
//! ```
//!
//! When a job enters a child, it takes the messages for the child from the buffer above ([`Feed::enter`]). They are
//! consumed, together with those of the memtable, by the pages below. A job without buffers has only the memtable.
//!
//! Invariants: a carried message is older than the memtable and newer than everything below the buffer from which it was
//! taken; the last carried messages are those for the lowest open page.

use std::cmp::Ordering;

use crate::base::{Entry, EntryBlock, KeyRange};
use crate::index::SealedBatch;
use crate::index::cached_rows::RowUpdates;
use crate::index::pages::waiting::weight;
use crate::memtable;

/// Bytes copied from a memtable at a time.
const BLOCK: usize = 64 << 10;

/// The messages of a memtable in order.
struct Messages {
    cursor: memtable::Cursor,
    block: EntryBlock,
    at: usize,
    rows: RowUpdates,
}

impl Messages {
    /// The messages of the keys from `from` on. Each message that is read updates `rows`.
    fn new(batch: &SealedBatch, from: &[u8], rows: &RowUpdates) -> Messages {
        let cursor = memtable::Cursor::new(batch.memtable.clone(), KeyRange::new(from, []), false);
        let mut messages = Messages { cursor, block: EntryBlock::new(), at: 0, rows: rows.clone() };
        messages.refill();
        messages
    }

    fn refill(&mut self) {
        self.block.clear();
        self.at = 0;
        self.cursor.fill(BLOCK, &mut self.block);
        self.rows.absorb(self.cursor.continues_key(), &self.block);
    }

    /// The next message.
    fn peek(&self) -> Option<Entry<'_>> {
        (self.at < self.block.len()).then(|| self.block.get(self.at))
    }

    /// Whether the message after the next one certainly has another key.
    fn is_last_of_key(&self) -> bool {
        self.at + 1 < self.block.len() && self.block.get(self.at).key != self.block.get(self.at + 1).key
    }

    fn advance(&mut self) {
        self.at += 1;
        if self.at == self.block.len() {
            self.refill();
        }
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
    Memtable,
    Carried,
}

/// The messages that a job has to apply.
pub(super) struct Feed {
    batch: Option<SealedBatch>,
    memtable: Option<Messages>,
    carried: Vec<Carried>,
}

/// Whether `key` is below the bound `to`; `None` is above all keys.
pub(super) fn is_below(key: &[u8], to: Option<&[u8]>) -> bool {
    to.is_none_or(|to| key < to)
}

impl Feed {
    /// The messages of a memtable whose keys are at or above `from`; with `None`, no messages. Each message of the memtable
    /// that is read updates `rows`.
    pub(super) fn new(batch: Option<&SealedBatch>, from: Option<&[u8]>, rows: &RowUpdates) -> Feed {
        let memtable = batch.zip(from).map(|(batch, from)| Messages::new(batch, from, rows));
        Feed { batch: batch.cloned(), memtable, carried: Vec::new() }
    }

    /// The smallest key above the page that is open; `None` if there is none.
    pub(super) fn to(&self) -> Option<&[u8]> {
        self.carried.last().and_then(|carried| carried.to.as_deref())
    }

    /// The next message of the memtable, for any page.
    pub(super) fn next_key(&self) -> Option<&[u8]> {
        self.memtable.as_ref().and_then(Messages::peek).map(|message| message.key)
    }

    /// The next carried message for the open page.
    pub(super) fn carried(&self) -> Option<Entry<'_>> {
        self.carried.last().and_then(Carried::peek)
    }

    /// The next message for the open page, and where it is. Of several messages of a key, the newest is first.
    #[inline]
    pub(super) fn next(&self) -> Option<(Entry<'_>, Origin)> {
        let message = self.memtable.as_ref().and_then(Messages::peek);
        let Some(open) = self.carried.last() else { return message.map(|message| (message, Origin::Memtable)) };
        let message = message.filter(|message| is_below(message.key, open.to.as_deref()));
        match (message, open.peek()) {
            (Some(message), Some(carried)) if carried.key.cmp(message.key) == Ordering::Less => {
                Some((carried, Origin::Carried))
            }
            (None, carried) => carried.map(|carried| (carried, Origin::Carried)),
            (Some(message), _) => Some((message, Origin::Memtable)),
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
            Some((message, Origin::Memtable)) => {
                let is_carried = self.carried().is_some_and(|carried| carried.key == message.key);
                !is_carried && self.memtable.as_ref().is_some_and(Messages::is_last_of_key)
            }
            Some((message, Origin::Carried)) => {
                let open = self.carried.last().expect("it has the message");
                open.at + 1 == open.block.len() || open.block.get(open.at + 1).key != message.key
            }
        }
    }

    /// Whether a message has a key from `from` to `to`; `None` if this is unknown, because the messages of the memtable that
    /// are in memory end before `to`.
    pub(super) fn has_in_memory(&self, from: &[u8], to: Option<&[u8]>) -> Option<bool> {
        let has = |block: &EntryBlock, at: usize| {
            let (mut low, mut high) = (at, block.len());
            while low < high {
                let middle = low + (high - low) / 2;
                if block.get(middle).key < from { low = middle + 1 } else { high = middle }
            }
            low < block.len() && is_below(block.get(low).key, to)
        };
        if self.carried.last().is_some_and(|open| has(&open.block, open.at)) {
            return Some(true);
        }
        let Some(messages) = &self.memtable else { return Some(false) };
        match has(&messages.block, messages.at) {
            true => Some(true),
            // The block ends with the memtable only if no message is left.
            false if messages.block.is_empty() => Some(false),
            false => {
                let last = messages.block.get(messages.block.len() - 1);
                (!is_below(last.key, to)).then_some(false)
            }
        }
    }

    /// Passes the next message.
    pub(super) fn advance(&mut self, origin: Origin) {
        match origin {
            Origin::Memtable => self.memtable.as_mut().expect("it has the next message").advance(),
            Origin::Carried => self.carried.last_mut().expect("it has the next message").at += 1,
        }
    }

    /// Enters a page: its messages are those of the memtable below `to`, and `block`.
    pub(super) fn enter(&mut self, block: EntryBlock, to: Option<Vec<u8>>) {
        self.carried.push(Carried { block, at: 0, to });
    }

    /// Ends the work on the page that was entered last. Its messages that were not consumed are added to the carried messages
    /// of the page above.
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

    /// Leaves out the rest of the memtable.
    pub(super) fn end_memtable(&mut self) {
        self.memtable = None;
    }

    /// Adds the weights of the messages for the open page to the parts of the page that begin at `bounds`.
    pub(super) fn add_weights(&self, bounds: &[Vec<u8>], weights: &mut [u64]) {
        self.add_carried_weights(bounds, weights);
        let Some(mut cursor) = self.memtable_cursor() else { return };
        let (mut at, mut block) = (0, EntryBlock::new());
        loop {
            block.clear();
            cursor.fill(BLOCK, &mut block);
            if block.is_empty() {
                return;
            }
            for entry in block.iter() {
                at = part_of(bounds, at, entry.key);
                weights[at] += weight(&entry);
            }
        }
    }

    /// The same, but each part for which the memtable has messages gets the weight of one of them. So the cost does not grow
    /// with the memtable.
    pub(super) fn mark(&self, bounds: &[Vec<u8>], weights: &mut [u64]) {
        self.add_carried_weights(bounds, weights);
        let Some(mut cursor) = self.memtable_cursor() else { return };
        let (mut at, mut block) = (0, EntryBlock::new());
        loop {
            block.clear();
            cursor.fill(1, &mut block);
            let Some(entry) = block.iter().next() else { return };
            at = part_of(bounds, at, entry.key);
            weights[at] += weight(&entry);
            let Some(next) = bounds.get(at + 1) else { return };
            cursor.seek(next);
        }
    }

    fn add_carried_weights(&self, bounds: &[Vec<u8>], weights: &mut [u64]) {
        let mut at = 0;
        for entry in self.carried.last().iter().flat_map(|open| open.rest()) {
            at = part_of(bounds, at, entry.key);
            weights[at] += weight(&entry);
        }
    }

    /// A cursor over the messages of the memtable for the open page that were not consumed yet.
    fn memtable_cursor(&self) -> Option<memtable::Cursor> {
        let (batch, from) = (self.batch.as_ref()?, self.next_key()?);
        let range = KeyRange::new(from, self.to().unwrap_or_default());
        (!range.is_empty()).then(|| memtable::Cursor::new(batch.memtable.clone(), range, false))
    }
}

/// The last part that begins at or before `key`, from part `at` on.
fn part_of(bounds: &[Vec<u8>], mut at: usize, key: &[u8]) -> usize {
    while bounds.get(at + 1).is_some_and(|next| next.as_slice() <= key) {
        at += 1;
    }
    at
}
