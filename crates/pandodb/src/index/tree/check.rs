//! Verification, description and salvage of a tree. They read the whole tree and change nothing.

use std::fmt::Write;
use std::sync::Arc;

use super::loaded::{check_inner, check_leaf, check_reference};
use super::view::TreeView;
use super::world::World;
use crate::base::{Entry, EntryBlock, Extent, Fragments, KeyRange, Result, Seqno};
use crate::blocks::BlockSource;
use crate::index::blobs::PinnedMap;
use crate::index::pages::inspect::describe as describe_page;
use crate::index::pages::source::kind_of;
use crate::index::pages::walk::{Visit, Walk, map_differs};
use crate::index::pages::{Inner, PageRef, PageSource, Waiting};
use crate::index::runs::Extents;
use crate::index::runs::check::Checker;
use crate::index::stored::Stored;
use crate::index::{Core, IndexView, SalvagePiece, SalvageSource, SalvageStep, Verification, Visitor};
use crate::pool::Block;
use crate::run::Leaf;
use crate::space::BlockKind;
use crate::space::ranges::{RangeSet, extents};

/// A root of the tree, pinned for a verification.
pub(super) struct PinnedTree<'a> {
    core: &'a Core,
    source: Arc<PageSource>,
    /// The state. Its deferred frees keep the pages and large values allocated that jobs drop during the verification.
    world: World,
    /// The address of the description at the time of pinning, because a checkpoint may write it later.
    described: Option<Stored>,
    pages: PinnedMap,
    blobs: PinnedMap,
}

impl PinnedTree<'_> {
    /// Pins a root. No checkpoint may run during the call.
    pub(super) fn new<'a>(core: &'a Core, source: &Arc<PageSource>, world: World) -> PinnedTree<'a> {
        let (pages, blobs, described) = (world.pages.pin(), world.blobs.pin(), world.described.stored());
        PinnedTree { core, source: source.clone(), world, described, pages, blobs }
    }

    /// Checks a page, and both copies of an inner page. `loaded` is the seqno of the load whose tree has the page.
    fn page(&self, visit: &Visit, loaded: Option<Seqno>, checker: &mut Checker<'_>, reached: &mut RangeSet) {
        for extent in visit.page.extents() {
            if reached.overlaps(extent.start.0, extent.pages.into()) {
                let (addr, kind) = (visit.page.addr, kind_of(visit.level).name());
                checker.problem(self.core.data.corrupt(addr, kind, "two pages of the tree are at the same address"));
                continue;
            }
            reached.insert(extent.start.0, extent.pages.into());
        }
        let block = match &visit.block {
            Ok(block) => block,
            Err(e) => return checker.lost(e.clone()),
        };
        if let Some(flaw) = loaded.and_then(|newest| loaded_flaw(visit, block, newest)) {
            checker.problem(self.source.corrupt(&visit.page, flaw));
        }
        for addr in visit.page.copies() {
            checker.read(visit.page.stored_kind(), self.source.copy(&visit.page, visit.level, addr));
        }
        if visit.level > 0 && visit.buffer_of.is_none() {
            self.pending(visit, &visit.page.inner(block), checker);
        }
        if visit.level == 0 {
            // Messages above `through` are in the log. It owns their large values.
            let through = self.world.through;
            entries(&visit.page.leaf(block), through, &mut |entry| checker.entry(entry));
        }
    }
}

/// The flaw of a page of a load with the seqno `newest` that a page of another tree may have.
fn loaded_flaw(visit: &Visit, block: &Block, newest: Seqno) -> Option<&'static str> {
    if visit.buffer_of.is_some() {
        return None; // Its page is reported.
    }
    let checked = check_reference(&visit.page, newest).and_then(|()| match visit.level {
        0 => check_leaf(&visit.page.leaf(block), newest),
        _ => check_inner(&visit.page.inner(block)),
    });
    checked.err()
}

/// Calls `visit` with each entry of a leaf up to the seqno `through`.
fn entries(leaf: &Leaf<'_>, through: Seqno, visit: &mut dyn FnMut(&Entry<'_>)) {
    let mut key = Vec::new();
    for i in 0..leaf.len() {
        leaf.key(i, &mut key);
        let slot = leaf.slot(i);
        if slot.seqno > through {
            continue;
        }
        visit(&Entry { key: &key, seqno: slot.seqno, kind: slot.kind, value: leaf.value(&slot) });
    }
}

impl PinnedTree<'_> {
    /// Checks that a page counts the messages in its buffer for the right children.
    fn pending(&self, visit: &Visit, inner: &Inner<'_>, checker: &mut Checker<'_>) {
        let Some(buffer) = inner.buffer() else { return };
        let mut children = inner.children(&visit.range.from);
        let counted: Vec<u64> = children.iter_mut().map(|child| std::mem::take(&mut child.pending)).collect();
        let to = Some(visit.range.to.as_slice()).filter(|to| !to.is_empty());
        let added = Waiting::of(Some(&buffer), (&visit.range.from, to), &self.source, &mut Vec::new())
            .and_then(|waiting| waiting.add_all_weights(&mut children, &self.source));
        // A page of the buffer that cannot be read is reported when it is visited.
        if added.is_ok() && counted != children.iter().map(|child| child.pending).collect::<Vec<u64>>() {
            let (addr, kind) = (visit.page.addr, kind_of(visit.level).name());
            checker.problem(self.core.data.corrupt(addr, kind, "the buffer has other messages than its page counts"));
        }
    }
}

impl Verification for PinnedTree<'_> {
    fn for_each_extent(&self, visit: &mut dyn FnMut(Extent)) {
        self.pages.map.iter().flat_map(extents).for_each(&mut *visit);
        let mut extents = Extents::new(visit);
        self.described.into_iter().chain(self.pages.stored.iter().copied()).for_each(|stored| extents.stored(stored));
        extents.large_values(&self.blobs);
    }

    /// Reads the description, every page of the tree, and every large value.
    fn check(&self, visit: &mut dyn Visitor) -> Result<()> {
        let mut checker = Checker::new(self.core, visit);
        if let Some(error) = &self.world.lost {
            checker.lost(error.clone());
        }
        if let Some(stored) = self.described {
            checker.stored(stored, BlockKind::TreeRoot);
        }
        let mut reached = RangeSet::default();
        let mut is_whole = true;
        for (root, is_load) in [(self.world.loaded, true), (self.world.root, false)] {
            let loaded = root.filter(|_| is_load).map(|root| root.page.totals.newest);
            for visited in Walk::new(self.source.clone(), root) {
                is_whole &= visited.block.is_ok();
                self.page(&visited, loaded, &mut checker, &mut reached);
            }
        }
        if is_whole
            && self.pages.lost.is_none()
            && self.world.lost.is_none()
            && !reached.iter().eq(self.pages.map.iter())
        {
            checker.problem(map_differs());
        }
        checker.map(&self.pages);
        checker.finish(&self.blobs);
        Ok(())
    }
}

/// The whole key space as one piece, with a source for the tree of a load, one for the buffers of each level, and one
/// for the leaves.
pub(super) fn salvage(view: &Arc<TreeView>) -> Vec<SalvagePiece> {
    let top = view.root.map_or(0, |root| root.level);
    let levels = (view.buffered_from..=top).rev().chain([0]).map(|level| (view.root, level));
    let loaded = view.loaded.map(|root| (Some(root), 0));
    let sources = loaded.into_iter().chain(levels).map(|(root, level)| {
        let walk = Walk::new(view.source.clone(), root).only(level);
        Box::new(TreeSource { range: KeyRange::all(), view: view.clone(), walk, behind: None })
            as Box<dyn SalvageSource>
    });
    vec![SalvagePiece { range: KeyRange::all(), sources: sources.collect(), lost: view.lost.clone() }]
}

/// The messages that the pages of one level have. All pages except the damaged ones are read.
struct TreeSource {
    range: KeyRange,
    /// The view keeps the pages allocated.
    view: Arc<TreeView>,
    walk: Walk,
    /// The leaf behind the damage that was reported last.
    behind: Option<(PageRef, Block)>,
}

impl SalvageSource for TreeSource {
    fn range(&self) -> &KeyRange {
        &self.range
    }

    /// None. A tombstone of the tree may be older than messages of any level, so the source leaves out the messages
    /// that it hides.
    fn tombstones(&self) -> Result<Arc<Fragments>> {
        Ok(Arc::default())
    }

    fn next(&mut self, out: &mut EntryBlock) -> SalvageStep {
        let (view, before) = (&self.view, out.len());
        let read = |page: &PageRef, leaf: &Block, out: &mut EntryBlock| {
            entries(&page.leaf(leaf), view.through(), &mut |entry| {
                if view.tombstones.covering(entry.key, Seqno::MAX) < entry.seqno {
                    out.push(*entry);
                }
            });
        };
        if let Some((page, leaf)) = self.behind.take() {
            read(&page, &leaf, out);
        }
        // All damage before the next leaf is reported as one gap, because the caller remembers only the last one.
        let mut lost: Option<(KeyRange, crate::Error)> = None;
        while out.len() == before {
            let Some(Visit { page, level, range, block, .. }) = self.walk.next() else {
                return lost.map_or(SalvageStep::End, |(range, e)| SalvageStep::Lost(range, e));
            };
            match (block, &mut lost) {
                (Err(_), Some((gap, _))) => *gap = KeyRange::new(gap.from.as_slice(), range.to.as_slice()),
                (Err(e), None) => lost = Some((range, e)),
                (Ok(leaf), Some(_)) if level == 0 => self.behind = Some((page, leaf)),
                (Ok(leaf), None) if level == 0 => read(&page, &leaf, out),
                (Ok(_), _) => {}
            }
            if self.behind.is_some() {
                let (range, e) = lost.expect("damage was found before the leaf");
                return SalvageStep::Lost(range, e);
            }
        }
        SalvageStep::Entries
    }

    fn may_hold(&self, _: &[u8]) -> bool {
        true
    }
}

/// Prints the tree: the root, the range tombstones, and one line for each inner page.
pub(super) fn describe(world: &World, source: &Arc<PageSource>, out: &mut String) {
    if let Some(error) = &world.lost {
        let _ = writeln!(out, "LOST: {error}");
    }
    let place = world.described.stored().map_or("not on disk".into(), |stored| {
        format!("description {} at pages {} and {}", stored.id, stored.copies.0[0].page, stored.copies.0[1].page)
    });
    let levels = world.root.map_or(0, |root| root.level + 1);
    let pages = world.pages.pages();
    let _ = writeln!(out, "{levels} levels, {pages} pages of owner {} ({place})", source.owner());
    for tombstone in world.tombstones.clipped(&KeyRange::all()) {
        let (from, to) = (tombstone.range.from.escape_ascii(), tombstone.range.to.escape_ascii());
        let _ = writeln!(out, "range tombstone [{from} .. {to}) @{}", tombstone.seqno);
    }
    if let Some(root) = world.loaded {
        let _ = writeln!(out, "a sorted load that is not merged with the other rows yet:");
        describe_level(&root.page, root.level, &[], source, out);
        let _ = writeln!(out, "the other rows:");
    }
    if let Some(root) = world.root {
        describe_level(&root.page, root.level, &[], source, out);
    }
}

fn describe_level(page: &PageRef, level: u32, from: &[u8], source: &Arc<PageSource>, out: &mut String) {
    let _ = writeln!(out, "level {level} from \"{}\": {}", from.escape_ascii(), describe_page(page));
    if level == 0 {
        return;
    }
    match source.page(page, level) {
        Ok(block) => {
            if let Some(buffer) = page.inner(&block).buffer() {
                let _ = writeln!(out, "  its buffer, level {}: {}", buffer.level, describe_page(&buffer.page));
            }
            if level == 1 {
                return;
            }
            let children = page.inner(&block).children(from);
            children.iter().for_each(|child| describe_level(&child.page, level - 1, &child.from, source, out));
        }
        Err(e) => {
            let _ = writeln!(out, "  damaged: {e}");
        }
    }
}
