//! [`Bulk`]: builds a new tree from rows in key order, for sorted loads.
//!
//! ```text
//!   rows ──▶ LeafSink ──▶ leaves ──▶ level 1: [ full ][ open … ] ──▶ level 2: [ full ][ open … ] ──▶ …
//! ```
//!
//! Each level keeps at most two pages in memory: a full one, and the one that is being filled. When the second one is
//! full, the first is written, and its reference is passed to the level above. At the end, the children of the last two
//! pages of a level are divided evenly. So all pages but the last two of each level are full, and the memory for pages
//! grows only with the number of levels. The lists of the pages that were written grow with their number ([`Written`]).
//!
//! Invariant: children are passed to a level in key order.

use super::inner::{Child, encoded_bytes};
use super::leaves::LeafSink;
use super::rebuild::{InnerLimits, LEAST_CHILDREN, Levels, divide, write};
use super::reference::Root;
use super::writer::Written;
use crate::base::{Entry, Result};
use crate::index::folding::Sink;

/// The children of the last pages of a level.
#[derive(Default)]
struct Growing {
    /// The children of a full page.
    full: Vec<Child>,
    /// The children of the page that is being filled.
    open: Vec<Child>,
    /// An upper limit of the bytes of this page.
    bytes: usize,
}

/// An upper limit of the bytes that a child needs in its parent.
fn child_bytes(child: &Child) -> usize {
    child.from.len() + child.page.encoded_len(0) + 16
}

impl Growing {
    /// Whether `child` does not fit into the open page.
    fn is_full(&mut self, child: &Child, limits: InnerLimits) -> bool {
        let count = self.open.len();
        if count >= limits.children {
            return true;
        }
        if self.bytes + child_bytes(child) > limits.bytes && count >= LEAST_CHILDREN {
            // The separators of a page share a prefix, so the page may be much shorter.
            self.bytes = encoded_bytes(&self.open, None);
            return self.bytes + child_bytes(child) > limits.bytes;
        }
        false
    }

    /// Adds a child. Returns the children of a page that is complete.
    fn add(&mut self, child: Child, limits: InnerLimits) -> Option<Vec<Child>> {
        let is_full = self.is_full(&child, limits);
        let complete = is_full.then(|| {
            self.bytes = 0;
            std::mem::replace(&mut self.full, std::mem::take(&mut self.open))
        });
        self.bytes += child_bytes(&child);
        self.open.push(child);
        complete.filter(|children| !children.is_empty())
    }
}

/// A tree that is being built.
pub struct Bulk {
    sink: LeafSink,
    limits: Levels,
    /// The children of the pages of level 1 and above.
    levels: Vec<Growing>,
}

impl Bulk {
    /// A tree without rows. `sink` has no leaf.
    pub fn new(mut sink: LeafSink, limits: Levels) -> Bulk {
        assert!(sink.is_empty(), "the leaves of the tree are its own");
        sink.begin_unit(&[]);
        // No row was looked up yet.
        sink.set_warm(false);
        Bulk { sink, limits, levels: Vec::new() }
    }

    /// Adds the next row. Each key occurs once.
    ///
    /// # Errors
    /// An I/O error or a full disk.
    pub fn push(&mut self, entry: &Entry<'_>) -> Result<()> {
        self.sink.push(*entry)?;
        for leaf in self.sink.take_written() {
            self.add(1, leaf)?;
        }
        Ok(())
    }

    /// Adds a child to the last page of `level`, and the pages that are complete to the levels above.
    fn add(&mut self, level: u32, child: Child) -> Result<()> {
        let (mut level, mut child) = (level, child);
        loop {
            let at = level as usize - 1;
            if at == self.levels.len() {
                self.levels.push(Growing::default());
            }
            let Some(children) = self.levels[at].add(child, self.limits.of(level)) else { return Ok(()) };
            let mut new = write(vec![children], &mut std::iter::empty(), level, &mut self.sink)?;
            (child, level) = (new.pop().expect("one page was written"), level + 1);
        }
    }

    /// Writes the rest of the tree. Returns its root, which is `None` if the tree has no rows, and its pages, which are
    /// freed unless they are kept.
    ///
    /// # Errors
    /// An I/O error or a full disk. All pages are freed.
    pub fn finish(mut self) -> Result<(Option<Root>, Written)> {
        for leaf in self.sink.end_unit()? {
            self.add(1, leaf)?;
        }
        let (mut at, mut root) = (0, None);
        while at < self.levels.len() {
            let Growing { full, mut open, .. } = std::mem::take(&mut self.levels[at]);
            let level = u32::try_from(at).expect("a tree has few levels") + 1;
            let is_top = at + 1 == self.levels.len();
            if is_top && full.is_empty() && open.len() == 1 {
                root = open.pop().map(|child| Root { page: child.page, level: level - 1 });
                break;
            }
            let children = full.into_iter().chain(open).collect();
            let parts = divide(children, self.limits.of(level));
            for page in write(parts, &mut std::iter::empty(), level, &mut self.sink)? {
                self.add(level + 1, page)?;
            }
            at += 1;
        }
        debug_assert_eq!(root.is_none(), self.sink.writer.leaf_count() == 0, "a tree with rows has a root");
        Ok((root, self.sink.writer.finish()?))
    }
}
