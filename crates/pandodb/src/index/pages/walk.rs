//! [`Walk`]: visits all pages of a tree in key order, for verification and salvage. A damaged page ends the walk only
//! below itself.

use std::sync::Arc;

use super::inner::Inner;
use super::reference::{PageRef, Root, Totals};
use super::source::{PageSource, kind_of};
use super::writer::totals_of_entries;
use crate::base::{Entry, Error, KeyRange, Result};
use crate::blocks::BlockSource;
use crate::pool::Block;
use crate::run::Leaf;

/// A page that the walk has reached.
pub struct Visit {
    /// The reference that the parent holds.
    pub page: PageRef,
    /// The level; 0 for a leaf.
    pub level: u32,
    /// The level of the page to whose buffer the page belongs; `None` for a page of the tree itself.
    pub buffer_of: Option<u32>,
    /// The keys that may be below the page.
    pub range: KeyRange,
    /// The page, or the error that makes it and everything below it unreadable.
    pub block: Result<Block>,
}

/// A page that is visited next.
struct Next {
    root: Root,
    range: KeyRange,
    buffer_of: Option<u32>,
}

/// A walk through all pages, parents before children, and buffers before children.
pub struct Walk {
    source: Arc<PageSource>,
    /// The pages that are visited next, last first.
    next: Vec<Next>,
    /// If set, only the messages that pages of this level have are visited: those in their buffers; for level 0, those
    /// in the leaves of the tree.
    only: Option<u32>,
}

impl Walk {
    /// A walk from the root.
    pub fn new(source: Arc<PageSource>, root: Option<Root>) -> Walk {
        let next = root.into_iter().map(|root| Next { root, range: KeyRange::all(), buffer_of: None }).collect();
        Walk { source, next, only: None }
    }

    /// Visits only the messages that pages of this level have, and the pages that lead to them.
    #[must_use]
    pub fn only(self, level: u32) -> Walk {
        Walk { only: Some(level), ..self }
    }

    /// Reads a page, and checks it against the description that its parent has.
    fn read(&self, page: &PageRef, level: u32, range: &KeyRange) -> Result<Block> {
        let block = self.source.page(page, level)?.keep();
        let wrong = |detail: &str| self.source.data().corrupt(page.addr, kind_of(level).name(), detail);
        if level > 0 {
            let inner = page.inner(&block);
            let mut totals = inner.buffer().map(|buffer| buffer.page.totals).unwrap_or_default();
            (0..inner.len()).for_each(|i| totals += inner.page(i).totals);
            let mut last = Vec::new();
            inner.separator(inner.len() - 1, &mut last);
            // A leaf that continues the messages of a key begins just above this key, where the next page may begin,
            // too.
            let is_continued = inner.page(inner.len() - 1).is_continued && last == range.to;
            let is_inside = inner.len() == 1 || range.contains(&last) || is_continued;
            return match totals == page.totals {
                true if is_inside => Ok(block),
                true => Err(wrong("a separator outside the page's keys")),
                false => Err(wrong("the sums differ from those in the parent")),
            };
        }
        let leaf = page.leaf(&block);
        let mut key = Vec::new();
        leaf.key(0, &mut key);
        let mut is_inside = range.contains(&key);
        leaf.key(leaf.len() - 1, &mut key);
        is_inside &= range.contains(&key);
        if !is_inside {
            return Err(wrong("a key outside the page's keys"));
        }
        if totals_of_leaf(&leaf) != page.totals || leaf.is_continued() != page.is_continued {
            return Err(wrong("the sums differ from those in the parent"));
        }
        Ok(block)
    }
}

/// The sums over the entries of a leaf.
fn totals_of_leaf(leaf: &Leaf<'_>) -> Totals {
    let mut block = crate::base::EntryBlock::new();
    let mut key = Vec::new();
    for i in 0..leaf.len() {
        leaf.key(i, &mut key);
        let slot = leaf.slot(i);
        block.push(Entry { key: &key, seqno: slot.seqno, kind: slot.kind, value: leaf.value(&slot) });
    }
    totals_of_entries(block.iter())
}

impl Iterator for Walk {
    type Item = Visit;

    fn next(&mut self) -> Option<Visit> {
        let Next { root: Root { page, level }, range, buffer_of } = self.next.pop()?;
        let block = self.read(&page, level, &range);
        if let (Ok(block), true) = (&block, level > 0) {
            self.enter(&page.inner(block), &range, buffer_of);
        }
        Some(Visit { page, level, buffer_of, range, block })
    }
}

impl Walk {
    /// Visits the buffer and the children of a page next.
    fn enter(&mut self, inner: &Inner<'_>, range: &KeyRange, buffer_of: Option<u32>) {
        let level = inner.level();
        if buffer_of.is_some() || self.only.is_none_or(|only| level > only) {
            let children = inner.children(&range.from);
            // The leaves of one key have the bounds of all these leaves together.
            let first = |i: usize| (0..=i).rev().find(|&i| !children[i].page.is_continued).unwrap_or(0);
            let end = |i: usize| (i + 1..children.len()).find(|&i| !children[i].page.is_continued);
            let ranges: Vec<KeyRange> = (0..children.len())
                .map(|i| {
                    let to = end(i).map_or(range.to.as_slice(), |next| children[next].from.as_slice());
                    KeyRange::new(children[first(i)].from.as_slice(), to)
                })
                .collect();
            let below = children.into_iter().zip(ranges).map(|(child, range)| {
                let root = Root { page: child.page, level: level - 1 };
                Next { root, range, buffer_of }
            });
            let mut below: Vec<_> = below.collect();
            below.reverse();
            self.next.append(&mut below);
        }
        if buffer_of.is_none()
            && self.only.is_none_or(|only| level == only)
            && let Some(root) = inner.buffer()
        {
            self.next.push(Next { root, range: range.clone(), buffer_of: Some(level) });
        }
    }
}

/// The error for a tree whose pages differ from its map of pages.
pub fn map_differs() -> Error {
    let detail = "the pages that the tree reaches differ from those in its map of pages";
    Error::corruption("tree", 0, detail).in_file(crate::space::data::DATA_FILE, 0)
}
