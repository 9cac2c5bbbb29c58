//! [`Rebuild`]: writes the inner pages above leaves that a job replaces, in one pass in key order.
//!
//! ```text
//!   above the root       [ ■ ]                    the open pages: one for each level, root first
//!   level 2              [ · ■ · · ]              · children that stay as they are
//!   level 1              [ · · ■ · · · ]          ■ the child that is open
//!   leaf units                 ■──▶ seek, then put (new leaves), keep, or drop
//! ```
//!
//! 1. [`Rebuild::seek`] moves forward to the leaf for a key. Pages that end before the key are closed: a page without a
//!    change stays as it is. A page with changes is written anew, divided into several pages if it has become too
//!    large. A page that has become small is joined with the page behind it, if their parent has one.
//! 2. The job replaces the leaf ([`Rebuild::put`]), keeps it ([`Rebuild::keep`]), or drops it ([`Rebuild::drop_unit`]).
//!    A job whose new leaf is small takes the next leaf, too ([`Rebuild::next_unit`]), and joins both.
//! 3. [`Rebuild::finish`] closes all pages and returns the new root.
//!
//! The old tree stays complete. The new tree consists of the new pages, and of the pages of the old tree that are not
//! in
//! [`Rebuild::replaced`].
//!
//! Invariants: keys are visited in ascending order; the leaves that hold the messages of one key are children of one
//! page, and the first of them is opened with all others ([`Unit`]).

use super::inner::{Child, encoded_bytes};
use super::reference::PageRef;
use super::source::PageSource;
use super::writer::TreeWriter;
use crate::base::{Extent, Result};

/// The root of a tree that is not empty.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Root {
    /// The root page.
    pub page: PageRef,
    /// The level of the root page; 0 if it is a leaf.
    pub level: u32,
}

/// The sizes of inner pages.
#[derive(Clone, Copy, Debug)]
pub struct InnerLimits {
    /// The bytes of an inner page, unless it has fewer than [`LEAST_CHILDREN`] children.
    pub bytes: usize,
    /// The most children of an inner page.
    pub children: usize,
}

/// Children are divided by bytes into parts of at least about this number of children.
pub const LEAST_CHILDREN: usize = 4;

/// A leaf of the old tree, with the leaves that continue the messages of its last key.
#[derive(Clone, Debug)]
pub struct Unit {
    /// The leaves. Empty if the tree is empty.
    pub leaves: Vec<Child>,
    /// The smallest key that belongs to the unit.
    pub from: Vec<u8>,
    /// The smallest key that belongs to the next unit; `None` for the last unit.
    pub to: Option<Vec<u8>>,
}

impl Unit {
    /// Whether `key`, which is not below the unit, belongs to a later unit.
    pub fn ends_before(&self, key: &[u8]) -> bool {
        self.to.as_ref().is_some_and(|to| key >= to.as_slice())
    }
}

/// An inner page of the old tree that is being rewritten, or the place above the root.
struct Open {
    level: u32,
    /// The page; `None` for the place above the root.
    page: Option<PageRef>,
    from: Vec<u8>,
    to: Option<Vec<u8>>,
    /// The children that were not visited yet, last first.
    rest: Vec<Child>,
    /// The children of the new page, up to the current position.
    out: Vec<Child>,
    is_changed: bool,
}

impl Open {
    /// The lower bound of the next child, or the upper bound of the page.
    fn next_from(&self) -> Option<Vec<u8>> {
        self.rest.last().map(|child| child.from.clone()).or_else(|| self.to.clone())
    }
}

/// A new tree in the making.
pub struct Rebuild {
    limits: InnerLimits,
    /// The open pages, from the place above the root down to level 1, or further up after a seek has closed some.
    open: Vec<Open>,
    /// The pages of the old tree that the new tree lacks.
    pub replaced: Vec<Extent>,
}

impl Rebuild {
    /// Starts a new tree from the old one.
    pub fn new(root: Option<Root>, limits: InnerLimits) -> Rebuild {
        assert!(limits.children >= LEAST_CHILDREN, "a page can be divided");
        let (level, rest) = match root {
            Some(Root { page, level }) => (level + 1, vec![Child { from: Vec::new(), page }]),
            None => (1, Vec::new()),
        };
        let top = Open { level, page: None, from: Vec::new(), to: None, rest, out: Vec::new(), is_changed: false };
        Rebuild { limits, open: vec![top], replaced: Vec::new() }
    }

    /// Moves to the unit that holds `key`. REQUIRES: the last unit was put, kept or dropped, and ends before the key.
    ///
    /// # Errors
    /// If an inner page cannot be read or written.
    pub fn seek(&mut self, key: &[u8], source: &PageSource, writer: &mut TreeWriter) -> Result<Unit> {
        loop {
            let depth = self.open.len();
            let top = self.open.last_mut().expect("the place above the root stays open");
            if top.to.as_ref().is_some_and(|to| key >= to.as_slice()) {
                self.close(source, writer)?;
                continue;
            }
            // The children are in reverse order, so this counts the children behind the one for the key.
            let behind = top.rest.partition_point(|child| child.from.as_slice() > key);
            let mut at = behind;
            while at + 1 < top.rest.len() && top.rest[at].page.is_continued {
                at += 1;
            }
            if top.rest.is_empty() {
                assert!(depth == 1 && top.out.is_empty(), "only an empty tree has no child for a key");
                return Ok(Unit { leaves: Vec::new(), from: Vec::new(), to: None });
            }
            assert!(at < top.rest.len(), "the child for a key was not visited yet");
            let passed = top.rest.split_off(at + 1);
            top.out.extend(passed.into_iter().rev());
            if top.level == 1 {
                return Ok(self.next_unit().expect("a child is left"));
            }
            self.descend(source)?;
        }
    }

    /// Opens the next child of the last open page, which is an inner page.
    fn descend(&mut self, source: &PageSource) -> Result<()> {
        let is_root = self.open.len() == 1;
        let top = self.open.last_mut().expect("a page is open");
        let level = top.level - 1;
        let [.., child] = &top.rest[..] else { unreachable!("a child is left") };
        let end = top.rest.iter().rev().nth(1).map(|next| next.from.as_slice()).or(top.to.as_deref());
        let mut children = source.children(&child.page, level, &child.from, end)?;
        let Child { from, page } = top.rest.pop().expect("a child is left");
        if is_root && children.len() == 1 {
            // A root with one child is superfluous.
            (top.level, top.is_changed) = (level, true);
            top.rest = children;
            self.replaced.extend(page.extents());
            return Ok(());
        }
        let to = top.next_from();
        children.reverse();
        self.open.push(Open { level, page: Some(page), from, to, rest: children, out: Vec::new(), is_changed: false });
        Ok(())
    }

    /// Takes the next unit of the page of the last unit; `None` if the page has no further leaves.
    pub fn next_unit(&mut self) -> Option<Unit> {
        let top = self.open.last_mut().expect("a page is open");
        assert_eq!(top.level, 1, "the children are leaves");
        let first = top.rest.pop()?;
        let from = first.from.clone();
        let mut leaves = vec![first];
        while top.rest.last().is_some_and(|child| child.page.is_continued) {
            leaves.push(top.rest.pop().expect("looked at"));
        }
        Some(Unit { leaves, from, to: top.next_from() })
    }

    /// Keeps a unit as it is.
    pub fn keep(&mut self, unit: Unit) {
        self.open.last_mut().expect("a page is open").out.extend(unit.leaves);
    }

    /// Notes that the leaves of a unit are not part of the new tree.
    pub fn drop_unit(&mut self, unit: &Unit) {
        let top = self.open.last_mut().expect("a page is open");
        top.is_changed |= !unit.leaves.is_empty();
        self.replaced.extend(unit.leaves.iter().flat_map(|leaf| leaf.page.extents()));
    }

    /// Adds new leaves at the current position.
    pub fn put(&mut self, leaves: Vec<Child>) {
        let top = self.open.last_mut().expect("a page is open");
        debug_assert!(
            top.out.last().into_iter().chain(&leaves).is_sorted_by(|a, b| a.from <= b.from),
            "leaves are added in key order"
        );
        top.is_changed |= !leaves.is_empty();
        top.out.extend(leaves);
    }

    /// Closes the last open page. If the page has become small and its parent has another child behind it, the page is
    /// joined with that child instead and stays open.
    fn close(&mut self, source: &PageSource, writer: &mut TreeWriter) -> Result<()> {
        assert!(self.open.len() > 1, "the place above the root is closed at the end");
        let limits = self.limits;
        let [.., parent, top] = &mut self.open[..] else { unreachable!("two levels are open") };
        let rest = std::mem::take(&mut top.rest);
        top.out.extend(rest.into_iter().rev());
        if top.is_changed
            && is_small(&top.out, limits)
            && let Some(next) = parent.rest.last()
        {
            let end = parent.rest.iter().rev().nth(1).map(|next| next.from.as_slice()).or(parent.to.as_deref());
            top.rest = source.children(&next.page, top.level, &next.from, end)?;
            top.rest.reverse();
            let next = parent.rest.pop().expect("looked at");
            top.to = parent.next_from();
            self.replaced.extend(next.page.extents());
            return Ok(());
        }
        debug_assert!(parent.page.is_some() || parent.out.is_empty(), "a root is the only child of the place above it");
        let Open { level, page, from, out, is_changed, .. } = self.open.pop().expect("a page is open");
        let page = page.expect("only the place above the root has no page");
        let new = match is_changed {
            false => vec![Child { from, page }],
            true => {
                self.replaced.extend(page.extents());
                self.write(out, level, writer)?
            }
        };
        let parent = self.open.last_mut().expect("the parent is open");
        parent.is_changed |= is_changed;
        parent.out.extend(new);
        Ok(())
    }

    /// Writes pages of a level with these children. Returns the references to the new pages.
    fn write(&self, children: Vec<Child>, level: u32, writer: &mut TreeWriter) -> Result<Vec<Child>> {
        let mut new = Vec::new();
        for mut part in divide(children, self.limits) {
            let page = writer.inner(&part, level)?;
            new.push(Child { from: std::mem::take(&mut part[0].from), page });
        }
        Ok(new)
    }

    /// Closes all pages. Returns the root of the new tree.
    ///
    /// # Errors
    /// If an inner page cannot be read or written.
    pub fn finish(mut self, source: &PageSource, writer: &mut TreeWriter) -> Result<(Option<Root>, Vec<Extent>)> {
        while self.open.len() > 1 {
            self.close(source, writer)?;
        }
        let Open { mut level, rest, mut out, .. } = self.open.pop().expect("the place above the root");
        out.extend(rest.into_iter().rev());
        while out.len() > 1 {
            out = self.write(out, level, writer)?;
            level += 1;
        }
        let root = out.pop().map(|child| Root { page: child.page, level: level - 1 });
        Ok((root, self.replaced))
    }
}

/// Whether these children are too few for a page of their own.
fn is_small(children: &[Child], limits: InnerLimits) -> bool {
    !children.is_empty() && children.len() < (limits.children / 4).max(2) && encoded_bytes(children) < limits.bytes / 4
}

/// Divides children into parts of about equal size that fit a page each.
fn divide(children: Vec<Child>, limits: InnerLimits) -> Vec<Vec<Child>> {
    if children.is_empty() {
        return Vec::new();
    }
    let total = encoded_bytes(&children);
    let by_bytes = total.div_ceil(limits.bytes).min(children.len() / LEAST_CHILDREN);
    let parts = by_bytes.max(children.len().div_ceil(limits.children)).max(1);
    let per_child = |child: &Child| child.from.len() + child.page.encoded_len(0) + 8;
    let all: usize = children.iter().map(per_child).sum();
    let (mut out, mut sum, count) = (vec![Vec::new()], 0, children.len());
    for (i, child) in children.into_iter().enumerate() {
        let done = out.len();
        let last: &mut Vec<Child> = out.last_mut().expect("a part is open");
        // By bytes, unless a part has the most children, or the parts after it would have too few.
        let is_full = sum >= all * done / parts || last.len() >= limits.children;
        let leaves_enough = count - i >= parts - done;
        sum += per_child(&child);
        if done < parts && is_full && leaves_enough && !last.is_empty() && !child.page.is_continued {
            out.push(vec![child]);
        } else {
            last.push(child);
        }
    }
    debug_assert!(out.iter().all(|part| !part.is_empty()), "a page has children");
    out
}

#[cfg(test)]
mod tests {
    use super::super::reference::tests::sample;
    use super::*;

    #[test]
    fn children_are_divided_into_parts_of_equal_size() {
        let children: Vec<Child> = (0..1000u64)
            .map(|i| Child { from: format!("key{i:06}").into_bytes(), page: sample(i * 2 + 9, 0) })
            .collect();
        for (bytes, most) in [(4096, 1000), (16 << 10, 1000), (1 << 20, 64), (1 << 20, 2000)] {
            let parts = divide(children.clone(), InnerLimits { bytes, children: most });
            assert_eq!(parts.concat(), children);
            let longest = parts.iter().map(Vec::len).max().unwrap();
            let shortest = parts.iter().map(Vec::len).min().unwrap();
            assert!(longest <= most && shortest * 3 >= longest * 2, "{shortest} to {longest}");
            assert!(parts.iter().all(|part| encoded_bytes(part) <= bytes + 64), "{bytes}");
        }
    }

    #[test]
    fn long_separators_do_not_make_pages_of_one_child() {
        let children: Vec<Child> =
            (0..9u64).map(|i| Child { from: vec![i as u8; 60_000], page: sample(i * 2 + 9, 0) }).collect();
        let parts = divide(children, InnerLimits { bytes: 4096, children: 100 });
        assert!(parts.iter().all(|part| part.len() >= LEAST_CHILDREN), "{}", parts.len());
    }

    #[test]
    fn leaves_of_one_key_stay_together() {
        let mut children: Vec<Child> =
            (0..40u64).map(|i| Child { from: vec![i as u8], page: sample(i * 2 + 9, 0) }).collect();
        children[10..30].iter_mut().for_each(|child| {
            child.from = vec![10, 0];
            child.page.is_continued = true;
        });
        let parts = divide(children, InnerLimits { bytes: 1 << 20, children: 12 });
        assert!(parts.iter().all(|part| !part[0].page.is_continued));
    }
}
