//! [`Merged`]: one stream of messages from several memtables and a tree.
//!
//! ```text
//!   memtables, newest first ─▶ ┐
//!                              ├─ the smallest key, and of equal keys the newest ──▶ messages in order
//!   tree                    ─▶ ┘
//! ```
//!
//! Invariant: each input is in order, and no message is in two inputs.

use std::cmp::Ordering;
use std::sync::Arc;

use crate::base::{Entry, EntryBlock, KeyRange, Result, Seqno};
use crate::index::RawCursor;
use crate::memtable::{self, Memtable};

/// The most bytes that are copied from a memtable at a time.
const BLOCK: usize = 16 << 10;

enum From {
    Memtable(memtable::Cursor),
    Tree(Box<dyn RawCursor>),
}

struct Input {
    from: From,
    block: EntryBlock,
    at: usize,
    is_at_end: bool,
}

impl Input {
    fn new(from: From) -> Input {
        Input { from, block: EntryBlock::new(), at: 0, is_at_end: false }
    }

    fn peek(&self) -> Option<Entry<'_>> {
        (self.at < self.block.len()).then(|| self.block.get(self.at))
    }

    fn fill(&mut self, max_bytes: usize, out: &mut EntryBlock) -> Result<()> {
        match &mut self.from {
            From::Memtable(cursor) => {
                cursor.fill(max_bytes, out);
                Ok(())
            }
            From::Tree(cursor) => cursor.fill(max_bytes, out),
        }
    }

    /// Reads the next messages, if none is in memory.
    fn refill(&mut self, max_bytes: usize) -> Result<()> {
        if self.at < self.block.len() || self.is_at_end {
            return Ok(());
        }
        let mut block = std::mem::take(&mut self.block);
        block.clear();
        self.at = 0;
        let filled = self.fill(max_bytes, &mut block);
        self.is_at_end = filled.is_ok() && block.is_empty();
        self.block = block;
        filled
    }
}

/// The messages of several inputs in one order.
pub struct Merged {
    inputs: Vec<Input>,
    reverse: bool,
}

impl Merged {
    /// Merges memtables, of each the messages with some keys, and a tree.
    pub fn new(memtables: Vec<(KeyRange, Arc<Memtable>)>, tree: Option<Box<dyn RawCursor>>, reverse: bool) -> Merged {
        let memtables = memtables
            .into_iter()
            .map(|(keys, memtable)| Input::new(From::Memtable(memtable::Cursor::new(memtable, keys, reverse))));
        let tree = tree.map(|cursor| Input::new(From::Tree(cursor)));
        Merged { inputs: memtables.chain(tree).collect(), reverse }
    }

    /// Appends the next messages, about `max_bytes` bytes of them; nothing at the end.
    ///
    /// # Errors
    /// If a page of the tree cannot be read.
    pub fn fill(&mut self, max_bytes: usize, out: &mut EntryBlock) -> Result<()> {
        if let [input] = &mut self.inputs[..] {
            return input.fill(max_bytes, out);
        }
        let stop = out.bytes() + max_bytes;
        while out.bytes() < stop {
            let most = (stop - out.bytes()).min(BLOCK);
            self.inputs.iter_mut().try_for_each(|input| input.refill(most))?;
            let Some(input) = self.next() else { return Ok(()) };
            out.push(input.block.get(input.at));
            input.at += 1;
        }
        Ok(())
    }

    /// Tells the cursor of the tree which messages the reader does not need ([`RawCursor::leave_out`]).
    pub fn leave_out(&mut self, range: &KeyRange, seqno: Seqno) -> Result<()> {
        let mut trees = self.inputs.iter_mut().filter_map(|input| match &mut input.from {
            From::Tree(cursor) => Some(cursor),
            From::Memtable(_) => None,
        });
        trees.try_for_each(|cursor| cursor.leave_out(range, seqno))
    }

    /// The input with the next message.
    fn next(&mut self) -> Option<&mut Input> {
        let before = if self.reverse { Ordering::Greater } else { Ordering::Less };
        let mut best: Option<(usize, Entry<'_>)> = None;
        for (i, input) in self.inputs.iter().enumerate() {
            let Some(entry) = input.peek() else { continue };
            if best.as_ref().is_none_or(|(_, best)| entry.order(best) == before) {
                best = Some((i, entry));
            }
        }
        let (i, _) = best?;
        Some(&mut self.inputs[i])
    }
}
