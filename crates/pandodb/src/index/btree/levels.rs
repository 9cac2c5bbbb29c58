//! [`LevelsCursor`]: a scan of a tree with buffers. It merges the messages of the leaves with those in the buffers of each
//! level (000 §3.3).
//!
//! ```text
//!   buffers of level 3   ──▶ ┐
//!   buffers of level 2   ──▶ ├─ the smallest key, and of equal keys the newest ──▶ messages in order
//!   leaves               ──▶ ┘
//! ```
//!
//! Invariant: the messages of a level are in order, and the same message is in one level only.

use std::cmp::Ordering;
use std::sync::Arc;

use super::cursor::TreeCursor;
use super::view::BtreeView;
use crate::base::{Entry, EntryBlock, KeyRange, Result, Seqno, seeded};
use crate::index::RawCursor;

/// Bytes that are read from a level at a time.
const BLOCK: usize = 16 << 10;

/// A cursor over the messages of a view in `range`. Pages that have no message above `since` are left out.
pub(super) fn cursor_of(view: Arc<BtreeView>, range: Arc<KeyRange>, reverse: bool, since: Seqno) -> Box<dyn RawCursor> {
    let top = view.root.map_or(0, |root| root.level);
    if top < view.buffered_from {
        return Box::new(TreeCursor::new(view, 0, range, reverse, since));
    }
    let highest = seeded!(BufferNotScanned: top - 1, top);
    let levels = (view.buffered_from..=highest).rev().chain([0]);
    let input = |of| Input {
        cursor: TreeCursor::new(view.clone(), of, range.clone(), reverse, since),
        block: EntryBlock::new(),
        at: 0,
        is_done: false,
    };
    Box::new(LevelsCursor { inputs: levels.map(input).collect(), reverse })
}

/// A level of the tree.
struct Input {
    cursor: TreeCursor,
    block: EntryBlock,
    at: usize,
    is_done: bool,
}

impl Input {
    /// Reads further messages, if all were consumed.
    fn refill(&mut self) -> Result<()> {
        if self.at == self.block.len() && !self.is_done {
            self.block.clear();
            self.at = 0;
            self.cursor.fill(BLOCK, &mut self.block)?;
            self.is_done = self.block.is_empty();
        }
        Ok(())
    }

    fn peek(&self) -> Option<Entry<'_>> {
        (self.at < self.block.len()).then(|| self.block.get(self.at))
    }
}

/// A scan of all levels.
struct LevelsCursor {
    inputs: Vec<Input>,
    reverse: bool,
}

impl LevelsCursor {
    /// Whether `a` is returned before `b`. A reverse scan returns exactly the reverse order.
    fn is_before(&self, a: &Entry<'_>, b: &Entry<'_>) -> bool {
        let order = a.key.cmp(b.key).then(b.seqno.cmp(&a.seqno));
        order == if self.reverse { Ordering::Greater } else { Ordering::Less }
    }

    /// The level that has the next message.
    fn next(&self) -> Option<usize> {
        let mut best: Option<(usize, Entry<'_>)> = None;
        for (i, input) in self.inputs.iter().enumerate() {
            let Some(entry) = input.peek() else { continue };
            if best.as_ref().is_none_or(|(_, best)| self.is_before(&entry, best)) {
                best = Some((i, entry));
            }
        }
        best.map(|(i, _)| i)
    }
}

impl RawCursor for LevelsCursor {
    fn fill(&mut self, max_bytes: usize, out: &mut EntryBlock) -> Result<()> {
        let stop = out.bytes() + max_bytes;
        while out.bytes() < stop {
            self.inputs.iter_mut().try_for_each(Input::refill)?;
            let Some(i) = self.next() else { return Ok(()) };
            let input = &mut self.inputs[i];
            out.push(input.block.get(input.at));
            input.at += 1;
        }
        Ok(())
    }

    fn seek(&mut self, key: &[u8]) -> Result<()> {
        for input in &mut self.inputs {
            input.block.clear();
            (input.at, input.is_done) = (0, false);
            input.cursor.seek(key)?;
        }
        Ok(())
    }

    fn leave_out(&mut self, range: &KeyRange, seqno: Seqno) -> Result<()> {
        self.inputs.iter_mut().try_for_each(|input| input.cursor.leave_out(range, seqno))
    }
}
