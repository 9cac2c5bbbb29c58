//! Checks all rules of a tree's structure, from the root down.
//!
//! Checked for every page: its level is one below its parent's; its kind is allowed there; the numbers of pivots,
//! records and messages are within the slots; keys ascend and are in the range of the page; a message is newer than
//! each message of its key below; with reserved slots, no child has more messages than its share; no page has two
//! parents; no page is unreachable. Every leaf is at level 0, so all paths have the same length.

use std::collections::HashSet;

use crate::buffer::PageBuffer;
use crate::error::{Error, Result};
use crate::frame::PageNo;
use crate::layout::{Kind, Layout, header};
use crate::tree::Shape;

/// What differs between the trees.
#[derive(Clone, Copy, Debug)]
pub struct Rules {
    /// The kind of a root above the leaves.
    pub root: Kind,
    /// The kind of the other inner nodes.
    pub inner: Kind,
    /// Messages have timestamps below this one.
    pub clock: u64,
    /// The most messages of a child in a buffer, if slots are reserved.
    pub share: Option<usize>,
}

/// Keys and timestamps of the messages of a node.
type Stamps = Vec<(u64, u64)>;

struct Check<'a> {
    layout: &'a Layout,
    pages: &'a dyn PageBuffer,
    rules: Rules,
    seen: HashSet<PageNo>,
    /// The buffers on the path to the current page.
    above: Vec<Stamps>,
    shape: Shape,
}

/// Checks the tree with this root. No other thread may use it.
///
/// # Errors
/// [`Error::Broken`] for the first broken rule, and the errors of the page buffer.
pub fn check(layout: &Layout, pages: &dyn PageBuffer, root: PageNo, rules: Rules) -> Result<Shape> {
    let level = header::level(&pages.read(root)?);
    let shape = Shape { height: usize::from(level) + 1, ..Shape::default() };
    let mut check = Check { layout, pages, rules, seen: HashSet::new(), above: Vec::new(), shape };
    check.page(root, level, (0, None), true)?;
    let (seen, exist) = (check.seen.len() as u64, pages.counts().pages);
    if seen != exist {
        return Err(Error::Broken(format!("{exist} pages exist, but only {seen} are in the tree")));
    }
    Ok(check.shape)
}

fn ensure(holds: bool, page: PageNo, rule: &str) -> Result<()> {
    if holds { Ok(()) } else { Err(Error::Broken(format!("page {page}: {rule}"))) }
}

/// Whether the keys ascend inside the range.
fn ascending(keys: &[u64], range: (u64, Option<u64>)) -> bool {
    keys.is_sorted_by(|a, b| a < b)
        && keys.first().is_none_or(|&first| first >= range.0)
        && keys.last().is_none_or(|&last| range.1.is_none_or(|upper| last < upper))
}

impl Check<'_> {
    fn page(&mut self, no: PageNo, level: u8, range: (u64, Option<u64>), is_root: bool) -> Result<()> {
        ensure(self.seen.insert(no), no, "it has two parents")?;
        // A copy, so that no more than one page is latched and pinned. The exclusive latch folds the front.
        let page = self.pages.write(no)?.to_vec();
        ensure(header::level(&page) == level, no, "its level is not one below that of its parent")?;
        let kind = header::kind(&page);
        let allowed = match level {
            0 => Kind::Leaf,
            _ if is_root => self.rules.root,
            _ => self.rules.inner,
        };
        ensure(kind == allowed, no, "nodes of this kind are not allowed here")?;
        let count = header::count(&page);
        if kind == Kind::Leaf {
            let leaf = &self.layout.leaf;
            ensure(count <= leaf.slots, no, "too many records")?;
            let keys: Vec<u64> = (0..count).map(|i| leaf.keys.number(&page, i)).collect();
            ensure(ascending(&keys, range), no, "its keys do not ascend in its range")?;
            self.shape.leaves += 1;
            self.shape.records += count as u64;
            return Ok(());
        }
        self.shape.inner += 1;
        let is_known = kind == Kind::Plain || header::class(&page) < self.layout.nodes().len();
        ensure(is_known, no, "no layout has its class")?;
        let inner = self.layout.inner_of(&page);
        ensure(count <= inner.pivots_max, no, "too many pivots")?;
        let pivots: Vec<u64> = (0..count).map(|i| inner.pivots.number(&page, i)).collect();
        ensure(ascending(&pivots, range), no, "its pivots do not ascend in its range")?;
        ensure(pivots.first().is_none_or(|&first| first > range.0), no, "its first child has an empty range")?;
        if kind == Kind::Buffered {
            self.buffer(no, &page, range)?;
            self.shares(no, &page, &pivots)?;
        }
        for i in 0..=count {
            let lower = if i == 0 { range.0 } else { pivots[i - 1] };
            let upper = pivots.get(i).copied().or(range.1);
            self.page(inner.child(&page, i), level - 1, (lower, upper), false)?;
        }
        if kind == Kind::Buffered {
            self.above.pop();
        }
        Ok(())
    }

    /// No child has more messages than its reserved slots.
    fn shares(&self, no: PageNo, page: &[u8], pivots: &[u64]) -> Result<()> {
        let Some(share) = self.rules.share else { return Ok(()) };
        let (keys, count) = (&self.layout.node(page).buffer.keys, header::messages(page));
        let ends = pivots.iter().map(|&pivot| keys.lower_bound(page, count, pivot)).chain([count]);
        let mut from = 0;
        for end in ends {
            ensure(end - from <= share, no, "a child has more messages than its reserved slots")?;
            from = end;
        }
        Ok(())
    }

    fn buffer(&mut self, no: PageNo, page: &[u8], range: (u64, Option<u64>)) -> Result<()> {
        let (buffer, count) = (&self.layout.node(page).buffer, header::messages(page));
        ensure(count <= buffer.slots, no, "too many messages")?;
        ensure(buffer.places_are_a_permutation(page), no, "two messages have their values in one place")?;
        let held: Stamps =
            (0..count).map(|i| buffer.get(page, i)).map(|message| (message.key, message.stamp)).collect();
        let keys: Vec<u64> = held.iter().map(|(key, _)| *key).collect();
        ensure(ascending(&keys, range), no, "its messages do not ascend in its range")?;
        for &(key, stamp) in &held {
            ensure(stamp < self.rules.clock, no, "a message is from the future")?;
            for above in &self.above {
                let newer = above.binary_search_by_key(&key, |&(key, _)| key).ok().map(|i| above[i].1);
                ensure(newer.is_none_or(|newer| newer > stamp), no, "a message is newer than one above it")?;
            }
        }
        self.shape.messages += count as u64;
        self.above.push(held);
        Ok(())
    }
}
