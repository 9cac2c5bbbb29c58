//! [`LevelsCursor`]: a scan of a tree with buffers. It merges the messages of the leaves with those in the buffers of
//! each level (000 §3.3), and with the tree of a sorted load.
//!
//! ```text
//!   tree of a load       ──▶ ┐
//!   buffers of level 3   ──▶ ┤
//!   buffers of level 2   ──▶ ├─ the smallest key, and of equal keys the newest ──▶ messages in order
//!   leaves               ──▶ ┘
//! ```
//!
//! The leaves are read a block at a time. The buffers and the tree of a load are read only up to the last key of this
//! block, because most of a level may be empty: a short scan would otherwise visit many pages before it returns its
//! first row.
//!
//! Invariants: the messages of a level are in order; each message is in one level only; when a message is returned,
//! every level was read at least up to its key.

use std::cmp::Ordering;
use std::sync::Arc;

use super::cursor::TreeCursor;
use super::view::TreeView;
use crate::base::{Entry, EntryBlock, KeyRange, Result, Seqno, seeded};
use crate::index::RawCursor;

/// Bytes that are read from a level at a time.
const BLOCK: usize = 16 << 10;

/// A cursor over the messages of a view in `range`. Pages that have no message above `since` are left out.
pub(super) fn cursor_of(view: Arc<TreeView>, range: Arc<KeyRange>, reverse: bool, since: Seqno) -> Box<dyn RawCursor> {
    let top = view.root.map_or(0, |root| root.level);
    let loaded = seeded!(LoadedTreeNotScanned: None, view.loaded);
    if top < view.buffered_from && loaded.is_none() {
        let root = view.root;
        return Box::new(TreeCursor::new(view, (root, 0), range, reverse, since));
    }
    let highest = if top < view.buffered_from { top } else { seeded!(BufferNotScanned: top - 1, top) };
    let input = |root, of| Input {
        cursor: TreeCursor::new(view.clone(), (root, of), range.clone(), reverse, since),
        block: EntryBlock::new(),
        at: 0,
        asked: 0,
    };
    let levels = (view.buffered_from..=highest).rev().map(|of| input(view.root, of));
    let newer = loaded.map(|root| input(Some(root), 0)).into_iter().chain(levels).collect();
    Box::new(LevelsCursor { newer, leaves: input(view.root, 0), reverse })
}

/// A level of the tree, or the tree of a load.
struct Input {
    cursor: TreeCursor,
    block: EntryBlock,
    at: usize,
    /// The number of the block of leaves up to whose last key the level was read.
    asked: u64,
}

impl Input {
    /// Whether messages are left, and none of them is in memory.
    fn is_hungry(&self) -> bool {
        self.at == self.block.len() && !self.cursor.is_at_end()
    }

    /// Reads further messages: all up to the key `pause` if they are few.
    fn fill(&mut self, pause: Option<&[u8]>) -> Result<()> {
        self.block.clear();
        self.at = 0;
        self.cursor.fill_to(pause, BLOCK, &mut self.block)
    }

    fn peek(&self) -> Option<Entry<'_>> {
        (self.at < self.block.len()).then(|| self.block.get(self.at))
    }
}

/// A scan of all levels.
struct LevelsCursor {
    /// The tree of a load, and the levels with buffers, highest first.
    newer: Vec<Input>,
    leaves: Input,
    reverse: bool,
}

impl LevelsCursor {
    /// Whether `a` is returned before `b`. A reverse scan returns exactly the reverse order.
    fn is_before(&self, a: &Entry<'_>, b: &Entry<'_>) -> bool {
        let order = a.key.cmp(b.key).then(b.seqno.cmp(&a.seqno));
        order == if self.reverse { Ordering::Greater } else { Ordering::Less }
    }

    /// Reads further messages, so that the next message of the scan is in memory.
    fn refill(&mut self) -> Result<()> {
        let LevelsCursor { newer, leaves, .. } = self;
        if leaves.is_hungry() {
            leaves.fill(None)?;
            leaves.asked += 1;
        }
        // Behind the last leaf, the others are read to their end.
        let last = leaves.block.len().checked_sub(1).filter(|_| leaves.peek().is_some());
        let pause = last.map(|last| leaves.block.get(last).key);
        for input in newer.iter_mut().filter(|input| input.is_hungry()) {
            // A level that was read up to this key, and has no message in memory, has none up to this key.
            if input.asked < leaves.asked || pause.is_none() {
                input.fill(pause)?;
                input.asked = if input.is_hungry() { leaves.asked } else { 0 };
            }
        }
        Ok(())
    }

    /// The input that has the next message.
    fn next(&mut self) -> Option<&mut Input> {
        let mut best: Option<(usize, Entry<'_>)> = self.leaves.peek().map(|entry| (self.newer.len(), entry));
        for (i, input) in self.newer.iter().enumerate() {
            let Some(entry) = input.peek() else { continue };
            if best.as_ref().is_none_or(|(_, best)| self.is_before(&entry, best)) {
                best = Some((i, entry));
            }
        }
        let (i, _) = best?;
        Some(if i == self.newer.len() { &mut self.leaves } else { &mut self.newer[i] })
    }

    fn inputs(&mut self) -> impl Iterator<Item = &mut Input> {
        self.newer.iter_mut().chain([&mut self.leaves])
    }
}

impl RawCursor for LevelsCursor {
    fn fill(&mut self, max_bytes: usize, out: &mut EntryBlock) -> Result<()> {
        let stop = out.bytes() + max_bytes;
        while out.bytes() < stop {
            self.refill()?;
            let Some(input) = self.next() else { return Ok(()) };
            out.push(input.block.get(input.at));
            input.at += 1;
        }
        Ok(())
    }

    fn seek(&mut self, key: &[u8]) -> Result<()> {
        self.inputs().try_for_each(|input| {
            input.block.clear();
            (input.at, input.asked) = (0, 0);
            input.cursor.seek(key)
        })
    }

    fn leave_out(&mut self, range: &KeyRange, seqno: Seqno) -> Result<()> {
        self.inputs().try_for_each(|input| input.cursor.leave_out(range, seqno))
    }
}
