//! Reading: the view and the point lookup (002 §3.3).
//!
//! A lookup goes down the trunk, which is in memory. At each node it asks the branches that are live for its child,
//! newest first: the maplet that answers for several branches, once, then the branch's range tombstones, then its run's own filter if
//! no maplet has answered, then the run. It stops at the first base.

use std::sync::Arc;

use super::cursor::StbeCursor;
use super::node::{Branch, Child, Node, Route};
use super::{Graves, Trunk};
use crate::base::sync::Once;
use crate::base::{BlockAddr, KeyRange, RangeTombstone, Result, RunId, Seqno};
use crate::index::{Base, Estimate, IndexStats, IndexView, Lookup, Probe, RawCursor, Step};
use crate::pool::Block;
use crate::rows::IndexRows;
use crate::run::maplet::{self, Values};
use crate::run::{Foreseen, LeafHit, ProbeStep, Run, RunProbe};
use crate::space::BlockKind;

/// One root, with what it holds.
pub struct StbeView {
    /// The trunk.
    pub root: Arc<Node>,
    through: Seqno,
    horizon: Seqno,
    /// Bytes of large values.
    blob_bytes: u64,
    /// Messages and point tombstones, once they were asked for.
    pub(super) counted: Once<(u64, u64)>,
    rows: Arc<IndexRows>,
    /// Held, not read: large values that later swaps drop outlive this view.
    _graves: Arc<Graves>,
}

impl StbeView {
    pub(super) fn of(trunk: &Trunk, rows: &Arc<IndexRows>) -> StbeView {
        StbeView {
            rows: rows.clone(),
            root: trunk.root.clone(),
            through: trunk.through,
            horizon: trunk.horizon,
            blob_bytes: trunk.blobs.iter().map(|(_, pages)| pages * crate::base::PAGE as u64).sum(),
            counted: Once::new(),
            _graves: trunk.graves.clone(),
        }
    }

    /// What the live parts of all branches hold inside `range`.
    pub(super) fn estimate(&self, range: &KeyRange) -> Result<Estimate> {
        let mut sum = Estimate::default();
        let mut add = |branch: &Branch, within: &KeyRange| -> Result<()> {
            if let Some(part) = branch.slice.clip(&within.intersect(range))? {
                sum.bytes += part.bytes();
                sum.entries += part.entries();
            }
            Ok(())
        };
        let mut result = Ok(());
        self.root.walk(&mut |node| {
            if result.is_err() || !node.range.overlaps(range) {
                return;
            }
            result = if node.is_leaf() {
                node.branches.iter().try_for_each(|branch| add(branch, &node.range))
            } else {
                node.children
                    .iter()
                    .try_for_each(|child| node.live(child).iter().try_for_each(|branch| add(branch, &child.node.range)))
            };
        });
        result.map(|()| sum)
    }

    pub(super) fn stats(&self) -> IndexStats {
        let mut stats = IndexStats { levels: self.root.height + 1, ..IndexStats::default() };
        let mut seen = std::collections::HashSet::new();
        self.root.walk(&mut |node| {
            stats.nodes += 1;
            for branch in &node.branches {
                let run = branch.slice.run();
                if seen.insert(run.meta().id) {
                    stats.runs += 1;
                    stats.search_bytes += run.meta().search_bytes();
                    stats.disk_bytes += run.owned().iter().map(|extent| extent.bytes()).sum::<u64>();
                }
            }
            for maplet in node.maplets().filter(|maplet| seen.insert(maplet.meta().id)) {
                stats.maplets += 1;
                stats.search_bytes += maplet.meta().search_bytes();
                stats.disk_bytes += maplet.meta().disk_bytes();
            }
        });
        stats.disk_bytes += self.blob_bytes;
        stats.max_runs_on_path = runs_on_path(&self.root);
        for_live_parts(&self.root, &mut |part| {
            let meta = part.slice.run().meta();
            stats.entries += part.entries;
            stats.tombstones += part.share(meta.deletes);
            stats.logical_bytes += part.share(meta.key_bytes + meta.value_bytes + meta.blob_bytes);
        });
        stats
    }

    /// Messages in runs and the point tombstones among them: counted once for each view.
    pub(super) fn entries(&self) -> (u64, u64) {
        *self.counted.get_or_init(|| {
            let (mut entries, mut tombstones) = (0, 0);
            for_live_parts(&self.root, &mut |part| {
                entries += part.entries;
                tombstones += part.share(part.slice.run().meta().deletes);
            });
            (entries, tombstones)
        })
    }
}

/// A branch, with the messages of it that are live in its node.
struct LivePart<'a> {
    slice: &'a crate::run::RunSlice,
    entries: u64,
}

impl LivePart<'_> {
    /// The part of `count` of the run's messages: a clipped run is taken to be like the rest of it.
    fn share(&self, count: u64) -> u64 {
        let all = self.slice.run().meta().entries().max(1);
        (u128::from(count) * u128::from(self.entries) / u128::from(all)) as u64
    }
}

fn for_live_parts(root: &Arc<Node>, visit: &mut dyn FnMut(LivePart<'_>)) {
    root.walk(&mut |node| {
        for (i, branch) in node.branches.iter().enumerate() {
            let all = branch.slice.entries();
            let entries = if node.is_leaf() {
                all
            } else {
                let total: u64 = branch.weights.iter().sum::<u64>().max(1);
                let live: u64 = (0..node.children.len())
                    .filter(|&c| node.children[c].next <= i as u64)
                    .map(|c| branch.weights[c])
                    .sum();
                (u128::from(all) * u128::from(live) / u128::from(total)) as u64
            };
            visit(LivePart { slice: &branch.slice, entries });
        }
    });
}

/// The most branches that one key can meet from `node` down.
fn runs_on_path(node: &Node) -> u64 {
    if node.children.is_empty() {
        return node.branches.len() as u64;
    }
    (0..node.children.len())
        .map(|i| node.live_branches(i) as u64 + runs_on_path(&node.children[i].node))
        .max()
        .unwrap_or(0)
}

impl IndexView for StbeView {
    fn through(&self) -> Seqno {
        self.through
    }

    fn horizon(&self) -> Seqno {
        self.horizon
    }

    fn probe<'v>(&'v self, lookup: &Lookup<'_>) -> Box<dyn Probe<'v> + 'v> {
        let mut probe = StbeProbe {
            rows: &self.rows,
            through: self.through,
            fresh: true,
            node: &self.root,
            child: 0,
            live_from: 0,
            next: 0,
            run: None,
            ahead: Foreseen::default(),
            routed: Routed::default(),
            searched: false,
        };
        probe.enter(lookup.key);
        Box::new(probe)
    }

    fn cursor(self: Arc<Self>, range: &KeyRange, reverse: bool) -> Result<Box<dyn RawCursor>> {
        Ok(Box::new(StbeCursor::new(self, range, reverse)))
    }

    fn tombstones(&self, range: &KeyRange, out: &mut Vec<RangeTombstone>) -> Result<()> {
        let mut result = Ok(());
        self.root.walk(&mut |node| {
            // Most runs have none, and every scan asks.
            let with_some = |(_, branch): &(usize, &Branch)| branch.slice.run().meta().range_tombstones > 0;
            for (i, branch) in node.branches.iter().enumerate().filter(with_some) {
                let part = range.intersect(branch.slice.range());
                // Those of branches that are dead for a child are repeated below or have done their work.
                let live = |child: &Child| child.next <= i as u64 && child.node.range.overlaps(&part);
                // A run whose range is not asked for is not asked: its tombstones may be unreadable.
                let here = node.is_leaf() && !part.is_empty();
                if result.is_ok() && (here || node.children.iter().any(live)) {
                    result = branch.slice.tombstones(&part).map(|found| out.extend(found));
                }
            }
        });
        result
    }
}

/// A point lookup on its way down.
struct StbeProbe<'v> {
    rows: &'v IndexRows,
    /// That of the view.
    through: Seqno,
    /// The row cache is to be asked.
    fresh: bool,
    node: &'v Node,
    /// The node's child that is responsible for the key.
    child: usize,
    /// The oldest branch that is live for the key, as an index.
    live_from: usize,
    /// Branches below this index are still to be asked.
    next: usize,
    run: Option<RunProbe>,
    /// The filters on its way.
    ahead: Foreseen<'v>,
    routed: Routed,
    /// A leaf of that run was asked for, and held nothing so far.
    searched: bool,
}

/// What the maplet said that was asked last: the branches of one stand together.
#[derive(Default)]
struct Routed {
    answer: Option<(RunId, Option<Values>)>,
    /// Its block was asked for.
    waits: bool,
}

/// What is known of a run by a maplet.
enum Told<'v> {
    /// Nothing before this step.
    Need(Step<'v>),
    /// It may hold the key.
    Perhaps,
    /// It does not.
    No,
    /// The maplet cannot be read: the run's own filter has to do.
    Unknown,
}

impl Routed {
    /// Whether the maplet was asked, or its block was asked for.
    fn knows(&self, route: &Route) -> bool {
        self.waits || self.answer.as_ref().is_some_and(|(id, _)| *id == route.maplet.meta().id)
    }

    /// `block` is what the last step asked for.
    fn ask<'v>(
        &mut self,
        route: &'v Route,
        mut block: Option<Block>,
        ahead: &mut Foreseen<'v>,
        lookup: &mut Lookup<'_>,
    ) -> Result<Told<'v>> {
        let id = route.maplet.meta().id;
        if !self.knows(route) {
            self.waits = true;
            lookup.tally.filters += 1;
            let addr = maplet::page_for(&route.maplet, lookup.hash)?;
            block = ahead.take(&route.maplet, addr);
            if block.is_none() {
                return Ok(Told::Need(Step::Need(&route.maplet, addr, BlockKind::Filter)));
            }
            lookup.tally.foreseen += 1;
        }
        if std::mem::take(&mut self.waits) {
            self.answer = Some((id, maplet::ask(block.as_deref(), lookup.hash)));
        }
        Ok(match self.answer.as_ref().and_then(|(_, values)| values.as_ref()) {
            None => Told::Unknown,
            Some(values) if values.contains(route.value) => Told::Perhaps,
            Some(_) => Told::No,
        })
    }
}

impl StbeProbe<'_> {
    /// Looks for the filters on the way, from the current node down.
    fn foresee(&mut self, lookup: &Lookup<'_>) {
        let (mut node, mut live_from, mut child) = (self.node, self.live_from, self.child);
        let mut last = None;
        while node.lost.is_none() {
            for branch in node.branches[live_from..].iter().rev() {
                let run = match &branch.route {
                    Some(route) => &route.maplet,
                    None if branch.slice.may_hold(lookup.key) => branch.slice.run(),
                    None => continue,
                };
                let id = run.meta().id;
                if run.meta().filter.pages > 0
                    && last.replace(id) != Some(id)
                    && let Ok(addr) = maplet::page_for(run, lookup.hash)
                {
                    self.ahead.note(run, addr);
                }
            }
            if node.is_leaf() || self.ahead.is_full() {
                break;
            }
            node = &node.children[child].node;
            (child, live_from) = way(node, lookup.key);
        }
        self.ahead.look(lookup.hash);
    }

    /// Finds the live branches of the current node.
    fn enter(&mut self, key: &[u8]) {
        (self.child, self.live_from) = way(self.node, key);
        self.next = self.node.branches.len();
    }

    /// Asks the row cache, once: for a row that this view holds. A newer root may hold a newer one, with operands folded in that this
    /// lookup has met in a memtable.
    fn recall(&mut self, lookup: &mut Lookup<'_>) {
        if !std::mem::take(&mut self.fresh) || lookup.is_done() {
            return;
        }
        match self.rows.get(lookup.key, lookup.hash, lookup.at, self.through) {
            Some(value) => lookup.take_row(value),
            None if lookup.alone => self.foresee(lookup),
            None => {}
        }
    }

    /// Offers a plain value that nothing stands above to the row cache, if the lookup sees all that the view holds.
    fn offer(&self, lookup: &Lookup<'_>) {
        if let Base::Inline(block, value) = &lookup.base
            && lookup.gather.is_empty()
            && self.through <= lookup.at
        {
            let value = &block[value.clone()];
            self.rows.offer(lookup.key, lookup.hash, value, lookup.base_seqno, self.through);
        }
    }

    /// Notes that a run asks for a block, and hands it out if it was foreseen.
    fn note(&mut self, run: &Run, addr: BlockAddr, kind: BlockKind, lookup: &mut Lookup<'_>) -> Option<Block> {
        lookup.tally.filters += u64::from(kind == BlockKind::Filter);
        lookup.tally.leaves += u64::from(kind == BlockKind::Leaf);
        self.searched |= kind == BlockKind::Leaf;
        let found = if kind == BlockKind::Filter { self.ahead.take(run, addr) } else { None };
        lookup.tally.foreseen += u64::from(found.is_some());
        found
    }

    /// Moves to the child. `false` in a leaf.
    fn descend(&mut self, key: &[u8]) -> bool {
        if self.node.is_leaf() {
            return false;
        }
        self.node = &self.node.children[self.child].node;
        self.enter(key);
        true
    }
}

/// The child of a node that is responsible for a key, and the oldest branch that is live for it, as an index.
fn way(node: &Node, key: &[u8]) -> (usize, usize) {
    if node.children.is_empty() {
        return (0, 0);
    }
    let child = node.child_for(key);
    (child, node.children[child].next as usize)
}

/// Takes a leaf's messages of the key. The guard of the block moves on with the value: a reference of its own would be counted.
fn take(hit: LeafHit, lookup: &mut Lookup<'_>) -> Result<()> {
    let mut inline = None;
    for (entry, value) in hit.entries(lookup.key) {
        let note = || {
            inline = Some(value);
            Base::Absent
        };
        if lookup.take(&entry, note)?.is_break() {
            break;
        }
    }
    if let Some(value) = inline {
        lookup.base = Base::Inline(hit.block, value);
    }
    Ok(())
}

impl<'v> Probe<'v> for StbeProbe<'v> {
    fn step(&mut self, mut block: Option<Block>, lookup: &mut Lookup<'_>) -> Result<Step<'v>> {
        self.recall(lookup);
        loop {
            if lookup.is_done() {
                return Ok(Step::Done);
            }
            if let Some(error) = &self.node.lost {
                return Err(error.clone());
            }
            let Some(probe) = &mut self.run else {
                if self.next > self.live_from {
                    let branch = &self.node.branches[self.next - 1];
                    // A maplet that was asked first: where it says no, neither bounds nor run are fetched from memory. It is asked
                    // only for a branch that may hold the key.
                    let may = |route: &&Route| self.routed.knows(route) || branch.slice.may_hold(lookup.key);
                    let told = match branch.route.as_ref().filter(may) {
                        None => None,
                        Some(route) => match self.routed.ask(route, block.take(), &mut self.ahead, lookup)? {
                            Told::Need(step) => return Ok(step),
                            Told::No if route.plain => {
                                self.next -= 1;
                                continue;
                            }
                            Told::No => Some(false),
                            Told::Perhaps => Some(true),
                            Told::Unknown => None,
                        },
                    };
                    if !branch.slice.contains(lookup.key) {
                        self.next -= 1;
                        continue;
                    }
                    lookup.enter(branch.slice.covering(lookup.key, lookup.at)?);
                    match told {
                        None => self.run = Some(RunProbe::new(lookup.hash)),
                        Some(true) => self.run = Some(RunProbe::told(lookup.hash)),
                        Some(false) => {
                            lookup.leave();
                            self.next -= 1;
                        }
                    }
                } else if !self.descend(lookup.key) {
                    return Ok(Step::Done);
                }
                continue;
            };
            let slice = &{ self.node }.branches[self.next - 1].slice;
            match probe.step(slice, lookup.key, block.take())? {
                ProbeStep::Need(addr, kind) => {
                    block = self.note(slice.run(), addr, kind, lookup);
                    if block.is_some() {
                        continue;
                    }
                    return Ok(Step::Need(slice.run(), addr, kind));
                }
                ProbeStep::Found(hit) => {
                    self.searched = false;
                    take(hit, lookup)?;
                    self.offer(lookup);
                    // The key may have older messages in the run's next leaf.
                    continue;
                }
                ProbeStep::Done => {}
            }
            lookup.tally.false_positives += u64::from(std::mem::take(&mut self.searched));
            lookup.leave();
            self.run = None;
            self.next -= 1;
        }
    }
}
