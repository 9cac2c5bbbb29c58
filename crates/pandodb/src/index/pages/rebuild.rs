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
//! in [`Rebuild::replaced`].
//!
//! Invariants: keys are visited in ascending order; the leaves that hold the messages of one key are children of one
//! page, and the first of them is opened with all others ([`Unit`]).

use super::inner::{Child, encoded_bytes};
use super::leaves::LeafSink;
use super::reference::{PageRef, Root};
use super::source::PageSource;
use super::unit::{Unit, pop_unit};
use super::waiting::Waiting;
use crate::base::{Extent, Result, seeded};

/// The sizes of inner pages.
#[derive(Clone, Copy, Debug)]
pub struct InnerLimits {
    /// The bytes of an inner page, unless it has fewer than [`LEAST_CHILDREN`] children.
    pub bytes: usize,
    /// The most children of an inner page.
    pub children: usize,
}

/// The sizes of the inner pages of each level.
#[derive(Clone, Copy, Debug)]
pub struct Levels {
    /// Pages without a buffer.
    pub plain: InnerLimits,
    /// Pages that may have a buffer.
    pub buffered: InnerLimits,
    /// The lowest level of pages that may have a buffer.
    pub buffered_from: u32,
}

impl Levels {
    /// No page has a buffer.
    pub fn plain(limits: InnerLimits) -> Levels {
        Levels { plain: limits, buffered: limits, buffered_from: u32::MAX }
    }

    /// The sizes of the pages of a level.
    pub fn of(&self, level: u32) -> InnerLimits {
        if level < self.buffered_from { self.plain } else { self.buffered }
    }
}

/// Children are divided by bytes into parts of at least about this number of children.
pub const LEAST_CHILDREN: usize = 4;

/// How [`Rebuild::close`] treats a page that has few children, if its parent has a later child.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Neighbour {
    /// It is joined with the page behind it at once.
    Join,
    /// It is joined with the page behind it when that page is closed, because the job will open that page.
    Wait,
    /// It stays alone.
    Alone,
}

/// An inner page of the old tree that is being rewritten, or the place above the root.
pub struct Open {
    /// The level of the page.
    pub level: u32,
    /// The page; `None` for the place above the root.
    page: Option<PageRef>,
    /// The smallest key that may be below the page.
    pub from: Vec<u8>,
    /// The smallest key above the page; `None` if there is none.
    pub to: Option<Vec<u8>>,
    /// The buffer of the old page.
    pub buffer: Option<Root>,
    /// The children that were not visited yet, last first.
    rest: Vec<Child>,
    /// The children of the new page, up to the current position.
    out: Vec<Child>,
    /// The messages of the new buffer; `None` if the buffer stays as it is.
    pub waiting: Option<Waiting>,
    /// A small page that was closed and is joined with the next child that is closed.
    small: Option<Small>,
    /// Whether the page is written anew.
    pub is_changed: bool,
}

/// The contents of a page that is not written yet.
struct Small {
    from: Vec<u8>,
    children: Vec<Child>,
    waiting: Waiting,
}

impl Open {
    /// The place above the root, or a page of which nothing but its children is known. They are given last first.
    fn new(level: u32, rest: Vec<Child>) -> Open {
        Open {
            level,
            page: None,
            from: Vec::new(),
            to: None,
            buffer: None,
            rest,
            out: Vec::new(),
            waiting: None,
            small: None,
            is_changed: false,
        }
    }

    /// The lower bound of the next child, or the upper bound of the page.
    fn next_from(&self) -> Option<Vec<u8>> {
        self.rest.last().map(|child| child.from.clone()).or_else(|| self.to.clone())
    }

    /// The page; `None` for the place above the root.
    pub fn page(&self) -> Option<PageRef> {
        self.page
    }

    /// The children that were not visited yet, last first.
    pub fn rest(&self) -> &[Child] {
        &self.rest
    }

    /// The children of the new page, up to the current position.
    pub fn children_mut(&mut self) -> &mut [Child] {
        &mut self.out
    }

    /// Passes children without a change, until `left` children are left.
    pub fn pass(&mut self, left: usize) {
        let passed = self.rest.split_off(left);
        self.out.extend(passed.into_iter().rev());
    }

    /// The messages of the buffer. From now on the buffer counts as changed.
    fn take_waiting(&mut self, source: &PageSource, replaced: &mut Vec<Extent>) -> Result<Waiting> {
        match self.waiting.take() {
            Some(waiting) => Ok(waiting),
            None => Waiting::of(self.buffer.take().as_ref(), (&self.from, self.to.as_deref()), source, replaced),
        }
    }
}

/// A new tree in the making.
pub struct Rebuild {
    levels: Levels,
    /// The open pages, from the place above the root down to level 1, or further up after a seek has closed some.
    open: Vec<Open>,
    /// [`Rebuild::seek`] leaves this number of pages open.
    pub floor: usize,
    /// The pages of the old tree that the new tree lacks.
    pub replaced: Vec<Extent>,
}

impl Rebuild {
    /// Starts a new tree from the old one.
    pub fn new(root: Option<Root>, levels: Levels) -> Rebuild {
        assert!(levels.plain.children >= LEAST_CHILDREN, "a page can be divided");
        let (level, rest) = match root {
            Some(Root { page, level }) => (level + 1, vec![Child::new(Vec::new(), page)]),
            None => (1, Vec::new()),
        };
        Rebuild { levels, open: vec![Open::new(level, rest)], floor: 1, replaced: Vec::new() }
    }

    /// The number of open pages, with the place above the root.
    pub fn depth(&self) -> usize {
        self.open.len()
    }

    /// The lowest open page.
    pub fn top(&self) -> &Open {
        self.open.last().expect("the place above the root stays open")
    }

    /// The same, to be changed.
    pub fn top_mut(&mut self) -> &mut Open {
        self.open.last_mut().expect("the place above the root stays open")
    }

    /// The number of children of the page above the lowest open page that were not visited yet.
    pub fn left_above(&self) -> usize {
        let [.., parent, _] = &self.open[..] else { unreachable!("two levels are open") };
        parent.rest.len()
    }

    /// Writes a small page that waits for the next child of the lowest open page to be closed.
    ///
    /// # Errors
    /// If a page cannot be read or written.
    pub fn write_small(&mut self, source: &PageSource, sink: &mut LeafSink) -> Result<()> {
        let top = self.top_mut();
        let Some(Small { from, children, waiting }) = top.small.take() else { return Ok(()) };
        let level = top.level - 1;
        let page = Open { from, out: children, waiting: Some(waiting), ..Open::new(level, Vec::new()) };
        let new = self.write_page(page, source, sink)?;
        self.put(new);
        Ok(())
    }

    /// Moves to the unit that holds `key`. REQUIRES: the last unit was put, kept or dropped, and ends before the key.
    /// The key belongs to the last page that stays open, and no page below that page has a buffer.
    ///
    /// # Errors
    /// If an inner page cannot be read or written.
    pub fn seek(&mut self, key: &[u8], source: &PageSource, sink: &mut LeafSink) -> Result<Unit> {
        loop {
            let depth = self.open.len();
            let top = self.open.last_mut().expect("the place above the root stays open");
            if depth > self.floor && top.to.as_ref().is_some_and(|to| key >= to.as_slice()) {
                self.close(source, sink, Neighbour::Join)?;
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
            top.pass(at + 1);
            if top.level == 1 {
                return Ok(self.next_unit().expect("a child is left"));
            }
            self.descend(source)?;
        }
    }

    /// Opens the next child of the lowest open page, which is an inner page.
    ///
    /// # Errors
    /// If the child cannot be read.
    pub fn descend(&mut self, source: &PageSource) -> Result<()> {
        let is_root = self.open.len() == 1;
        let top = self.open.last_mut().expect("a page is open");
        let level = top.level - 1;
        let [.., child] = &top.rest[..] else { unreachable!("a child is left") };
        let end = top.rest.iter().rev().nth(1).map(|next| next.from.as_slice()).or(top.to.as_deref());
        let buffer = child.page.inner(&source.page(&child.page, level)?).buffer();
        let mut children = source.children(&child.page, level, &child.from, end)?;
        let Child { from, page, .. } = top.rest.pop().expect("a child is left");
        if is_root && children.len() == 1 && buffer.is_none() && level < self.levels.buffered_from {
            // A root with one child is superfluous.
            (top.level, top.is_changed) = (level, true);
            top.rest = children;
            self.replaced.extend(page.extents());
            return Ok(());
        }
        let to = top.next_from();
        children.reverse();
        self.open.push(Open { page: Some(page), from, to, buffer, ..Open::new(level, children) });
        Ok(())
    }

    /// Takes the next unit of the lowest open page; `None` if the page has no further leaves.
    pub fn next_unit(&mut self) -> Option<Unit> {
        let top = self.open.last_mut().expect("a page is open");
        assert_eq!(top.level, 1, "the children are leaves");
        pop_unit(&mut top.rest, top.to.as_deref())
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

    /// Closes the lowest open page. If the page has become small and its parent has another child behind it,
    /// `neighbour` says what happens. Returns whether the page was closed: if it is joined at once, it stays open with
    /// the contents of both pages, and no child is left to be visited.
    ///
    /// # Errors
    /// If a page cannot be read or written.
    pub fn close(&mut self, source: &PageSource, sink: &mut LeafSink, neighbour: Neighbour) -> Result<bool> {
        assert!(self.open.len() > 1, "the place above the root is closed at the end");
        let Rebuild { levels, open, replaced, .. } = self;
        let [.., parent, top] = &mut open[..] else { unreachable!("two levels are open") };
        top.pass(0);
        if let Some(Small { from, mut children, mut waiting }) = parent.small.take() {
            waiting.append(top.take_waiting(source, replaced)?);
            children.append(&mut top.out);
            (top.from, top.out, top.waiting, top.is_changed) = (from, children, Some(waiting), true);
        }
        let may_join = top.is_changed && !parent.rest.is_empty() && neighbour != Neighbour::Alone;
        if may_join && is_small(&top.out, levels.of(top.level)) {
            if neighbour == Neighbour::Join {
                join(parent, top, source, replaced)?;
                return Ok(false);
            }
            let waiting = top.take_waiting(source, replaced)?;
            let Open { page, from, out, .. } = open.pop().expect("a page is open");
            replaced.extend(page.iter().flat_map(PageRef::extents));
            let parent = open.last_mut().expect("the parent is open");
            parent.is_changed = true;
            parent.small = Some(Small { from, children: out, waiting });
            return Ok(true);
        }
        debug_assert!(parent.page.is_some() || parent.out.is_empty(), "a root is the only child of the place above it");
        let top = self.open.pop().expect("a page is open");
        let page = top.page.expect("only the place above the root has no page");
        let is_changed = top.is_changed;
        let new = match is_changed {
            false => vec![Child::new(top.from, page)],
            true => {
                self.replaced.extend(page.extents());
                self.write_page(top, source, sink)?
            }
        };
        let parent = self.open.last_mut().expect("the parent is open");
        parent.is_changed |= is_changed;
        parent.out.extend(new);
        Ok(true)
    }

    /// Writes the contents of a page that is closed, as one or several pages. Each page gets the messages for its
    /// children.
    fn write_page(&mut self, mut page: Open, source: &PageSource, sink: &mut LeafSink) -> Result<Vec<Child>> {
        let children = std::mem::take(&mut page.out);
        let parts = divide(children, self.levels.of(page.level));
        if parts.len() < 2 && page.waiting.is_none() {
            return write(parts, &mut std::iter::once(page.buffer), page.level, sink);
        }
        let mut waiting = page.take_waiting(source, &mut self.replaced)?;
        let mut buffers = Vec::with_capacity(parts.len());
        for (i, part) in parts.iter().enumerate() {
            let above = match parts.get(i + 1) {
                Some(next) if seeded!(BufferNotDivided: false, true) => {
                    waiting.split_off(&next[0].from, source, &mut self.replaced)?
                }
                _ => Waiting::default(),
            };
            let from = if i == 0 { &page.from } else { &part[0].from };
            let own = std::mem::replace(&mut waiting, above);
            let buffer = own.write(from, sink, source, &mut self.replaced)?;
            if buffer.is_none() && part.iter().any(|child| child.pending > 0) {
                // Only the page itself, which may be damaged, says how many messages there are for its children.
                return Err(source.corrupt(&part[0].page, "its parent counts messages that are not in its buffer"));
            }
            buffers.push(buffer);
        }
        write(parts, &mut buffers.into_iter(), page.level, sink)
    }

    /// Closes all pages. Returns the root of the new tree.
    ///
    /// # Errors
    /// If an inner page cannot be read or written.
    pub fn finish(mut self, source: &PageSource, sink: &mut LeafSink) -> Result<(Option<Root>, Vec<Extent>)> {
        while self.open.len() > 1 {
            self.close(source, sink, Neighbour::Join)?;
        }
        let Open { mut level, rest, mut out, .. } = self.open.pop().expect("the place above the root");
        out.extend(rest.into_iter().rev());
        while out.len() > 1 {
            let parts = divide(out, self.levels.of(level));
            out = write(parts, &mut std::iter::empty(), level, sink)?;
            level += 1;
        }
        let mut root = out.pop().map(|child| Root { page: child.page, level: level - 1 });
        // A root with one child is superfluous, unless messages wait in it.
        while let Some(Root { page, level: level @ 1.. }) = root {
            let block = source.page(&page, level)?;
            let inner = page.inner(&block);
            if inner.len() > 1 || inner.buffer().is_some() {
                break;
            }
            self.replaced.extend(page.extents());
            root = Some(Root { page: inner.page(0), level: level - 1 });
        }
        Ok((root, self.replaced))
    }
}

/// Adds the contents of the page behind a small page to the small page.
fn join(parent: &mut Open, top: &mut Open, source: &PageSource, replaced: &mut Vec<Extent>) -> Result<()> {
    let end = parent.rest.iter().rev().nth(1).map(|next| next.from.as_slice()).or(parent.to.as_deref());
    let next = parent.rest.last().expect("a child is left");
    let buffer = next.page.inner(&source.page(&next.page, top.level)?).buffer();
    let mut children = source.children(&next.page, top.level, &next.from, end)?;
    if buffer.is_some() || top.buffer.is_some() || top.waiting.is_some() {
        let mut waiting = top.take_waiting(source, replaced)?;
        waiting.append(Waiting::of(buffer.as_ref(), (&next.from, end), source, replaced)?);
        top.waiting = Some(waiting);
    }
    children.reverse();
    top.rest = children;
    let next = parent.rest.pop().expect("looked at");
    top.to = parent.next_from();
    replaced.extend(next.page.extents());
    Ok(())
}

/// Writes pages of a level: one for each part of the children, with its buffer. Returns the references to the new
/// pages.
pub(super) fn write(
    parts: Vec<Vec<Child>>,
    buffers: &mut dyn Iterator<Item = Option<Root>>,
    level: u32,
    sink: &mut LeafSink,
) -> Result<Vec<Child>> {
    let mut new = Vec::new();
    for mut part in parts {
        let buffer = buffers.next().flatten();
        let page = sink.writer.inner(&part, buffer.as_ref(), level)?;
        new.push(Child::new(std::mem::take(&mut part[0].from), page));
    }
    Ok(new)
}

/// Whether these children are too few for a page of their own.
fn is_small(children: &[Child], limits: InnerLimits) -> bool {
    !children.is_empty()
        && children.len() < (limits.children / 4).max(2)
        && encoded_bytes(children, None) < limits.bytes / 4
}

/// Divides children into parts of about equal size that fit a page each.
pub(super) fn divide(children: Vec<Child>, limits: InnerLimits) -> Vec<Vec<Child>> {
    if children.is_empty() {
        return Vec::new();
    }
    let total = encoded_bytes(&children, None);
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
        let children: Vec<Child> =
            (0..1000u64).map(|i| Child::new(format!("key{i:06}").into_bytes(), sample(i * 2 + 9, 0))).collect();
        for (bytes, most) in [(4096, 1000), (16 << 10, 1000), (1 << 20, 64), (1 << 20, 2000)] {
            let parts = divide(children.clone(), InnerLimits { bytes, children: most });
            assert_eq!(parts.concat(), children);
            let longest = parts.iter().map(Vec::len).max().unwrap();
            let shortest = parts.iter().map(Vec::len).min().unwrap();
            assert!(longest <= most && shortest * 3 >= longest * 2, "{shortest} to {longest}");
            assert!(parts.iter().all(|part| encoded_bytes(part, None) <= bytes + 64), "{bytes}");
        }
    }

    #[test]
    fn long_separators_do_not_make_pages_of_one_child() {
        let children: Vec<Child> = (0..9u64).map(|i| Child::new(vec![i as u8; 60_000], sample(i * 2 + 9, 0))).collect();
        let parts = divide(children, InnerLimits { bytes: 4096, children: 100 });
        assert!(parts.iter().all(|part| part.len() >= LEAST_CHILDREN), "{}", parts.len());
    }

    #[test]
    fn leaves_of_one_key_stay_together() {
        let mut children: Vec<Child> = (0..40u64).map(|i| Child::new(vec![i as u8], sample(i * 2 + 9, 0))).collect();
        children[10..30].iter_mut().for_each(|child| {
            child.from = vec![10, 0];
            child.page.is_continued = true;
        });
        let parts = divide(children, InnerLimits { bytes: 1 << 20, children: 12 });
        assert!(parts.iter().all(|part| !part[0].page.is_continued));
    }
}
