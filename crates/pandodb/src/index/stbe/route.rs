//! Maplets for branches that stay in the same node for long: one lookup in a maplet instead of one filter for each
//! run (002 §3.3).
//!
//! ```text
//!   root      b0  b1  b2  b3   b4  b5  b6  b7   b8  b9         fresh memtables, never compacted here
//!             └─ maplet 20 ─┘  └─ maplet 31 ─┘  own filters
//!              values 0 … 3     values 0 … 3
//! ```
//!
//! 1. *Choose* (`next_group`): [`Shape::maplet_width`] neighbouring branches (four) with equally many runs behind
//!    each: single runs, or groups that one maplet answers for. In the root these are memtables; in nodes below it,
//!    outputs of compactions, since newly arrived branches are about to become one run. Leaves have no maplets. Runs
//!    without a common key need none: their bounds tell them apart.
//! 2. *Make* ([`RouteJob`]): their filters are merged without their keys, in steps, concurrently with readers.
//! 3. *Install* ([`routed`]): in the node, or in the halves that it was split into meanwhile, the branches of these
//!    runs get a reference to the maplet and the value of their run. A flush, a split or a merge of nodes passes it
//!    on with the branch. When a run is compacted it leaves the trunk; its entries stay in the maplet, where no
//!    lookup asks for them. The last branch that refers to a maplet frees it.
//! 4. *Idle*: after some time without debt, two neighbours of about the same size are merged however often they were
//!    merged before, until a node has one maplet and readers ask fewer filters.
//!
//! Invariants: a branch refers to a maplet only if its run is in it, under the value that the branch names; a maplet
//! covers whole runs, so it answers for every slice of them. If a maplet cannot be read, lookups use the runs' own
//! filters. Each installation turns several neighbours into one and changes no other node, whose branches might share
//! a run; so the process ends.
//!
//! Cost: an entry is merged once each time the number of runs in a group grows fourfold, and written with about 2
//! bytes.

use std::collections::HashSet;
use std::sync::Arc;

use super::choose::have_no_common_key;
use super::node::{Branch, Node};
use super::{Claim, Inner, Stbe, Trunk};
use crate::base::sync::Ordering::Relaxed;
use crate::base::{KeyRange, OwnerId, PAGE, Result, SeededBug};
use crate::filter::{FilterBuilder, Filters};
use crate::index::runs::MapletRef;
use crate::index::{Core, Progress};
use crate::run::Run;
use crate::run::maplet::{MapletWriter, Member};

/// A maplet of more runs is not merged further.
const MOST_RUNS: usize = 64;

/// Two filters are not merged, not even in idle time, if one is more than this many times as large as the other.
const FAR: u64 = 8;

/// A filter, and the runs of a node that it answers for.
struct Unit {
    /// A run, with a filter of its own, or a maplet.
    filter: Arc<Run>,
    /// The runs, with the values that the filter has for them.
    runs: Vec<(OwnerId, u8)>,
}

impl Unit {
    /// About how many times its entries were merged. A run counts once, however often it is there.
    fn tier(&self, width: usize) -> u32 {
        (self.runs.len() - 1).checked_ilog(width).map_or(0, |log| log + 1)
    }

    /// Whether a merge with `other` does not rewrite many entries for the sake of a few.
    fn is_near(&self, other: &Unit) -> bool {
        let (a, b) = (self.filter.meta().keys, other.filter.meta().keys);
        a.max(b) <= a.min(b) * FAR
    }

    /// Whether its fingerprints distinguish the keys of all `units` as well as the filter of one run does.
    fn has_room_for(&self, units: &[Unit]) -> bool {
        let meta = self.filter.meta();
        let keys: u64 = units.iter().map(|unit| unit.filter.meta().keys).sum();
        meta.filter.mergeable(meta.keys).is_some_and(|filter| keys.max(1).ilog2() + 8 <= u32::from(filter.bits))
    }

    /// The new values of the filter's runs, if its runs get the next ones in `numbered`.
    fn member(self, numbered: &mut Vec<OwnerId>) -> Member {
        // Entries of other runs are dropped.
        let mut values = vec![None; usize::from(u8::MAX) + 1];
        for (run, value) in self.runs {
            // A run that is in the node twice, because nodes that shared it were merged, has one number.
            let number = numbered.iter().position(|&other| other == run).unwrap_or(numbered.len());
            if number == numbered.len() {
                numbered.push(run);
            }
            values[usize::from(value)] = Some(number as u8);
        }
        Member { run: self.filter, values }
    }
}

/// Filters that are to be merged.
struct Group {
    units: Vec<Unit>,
    /// The node.
    height: u32,
    range: KeyRange,
}

impl Group {
    /// About how many bytes to read and to write.
    fn bytes(&self) -> u64 {
        2 * PAGE as u64 * self.units.iter().map(|unit| u64::from(unit.filter.meta().filter.pages)).sum::<u64>()
    }

    fn filters(&self) -> Vec<OwnerId> {
        self.units.iter().map(|unit| unit.filter.meta().id).collect()
    }
}

/// The rule that selects neighbours.
struct Rule<'a> {
    /// How many neighbours are merged.
    width: usize,
    /// In idle time two of about the same size are merged, however often they were merged before.
    idle: bool,
    /// Filters that could not be read.
    unreadable: &'a HashSet<OwnerId>,
}

impl Rule<'_> {
    fn wants(&self, units: &[Unit]) -> bool {
        let alike = |unit: &Unit| match self.idle {
            true => unit.is_near(&units[0]) && unit.has_room_for(units),
            false => unit.tier(self.width) == units[0].tier(self.width),
        };
        units.iter().all(|unit| alike(unit) && !self.unreadable.contains(&unit.filter.meta().id))
            && units.iter().map(|unit| unit.runs.len()).sum::<usize>() <= MOST_RUNS
    }
}

/// The first group in `node` or below that needs a maplet, highest node first: most lookups ask its runs.
fn waiting(node: &Arc<Node>, is_root: bool, rule: &Rule<'_>) -> Option<Group> {
    if node.is_leaf() {
        return None;
    }
    let below = || node.children.iter().find_map(|child| waiting(&child.node, false, rule));
    in_node(node, is_root, rule).or_else(below)
}

fn in_node(node: &Node, is_root: bool, rule: &Rule<'_>) -> Option<Group> {
    let width = rule.width;
    let stays = |branch: &&Branch| {
        let meta = branch.slice.run().meta();
        (is_root || !branch.fresh) && meta.filter.mergeable(meta.keys).is_some()
    };
    let branches: Vec<&Branch> = node.branches.iter().filter(stays).collect();
    // Neighbours with the same maplet form one unit; a branch without a maplet is a unit of its own.
    let same = |a: &&Branch, b: &&Branch| match (&a.route, &b.route) {
        (Some(a), Some(b)) => a.maplet.meta().id == b.maplet.meta().id,
        _ => false,
    };
    let chunks: Vec<&[&Branch]> = branches.chunk_by(same).collect();
    let units: Vec<Unit> = chunks.iter().map(|chunk| unit_of(chunk)).collect();
    let overlap = |chunks: &[&[&Branch]]| {
        !have_no_common_key(chunks.iter().flat_map(|chunk| chunk.iter()).map(|branch| &*branch.slice))
    };
    let at = (0..=units.len().checked_sub(width)?).find(|&at| {
        let chosen = &chunks[at..at + width];
        rule.wants(&units[at..at + width]) && overlap(chosen) && are_whole(node, chosen)
    })?;
    let units = units.into_iter().skip(at).take(width).collect();
    Some(Group { units, height: node.height, range: node.range.clone() })
}

/// Whether no run of these branches is in the node a second time: it would be taken out of another group, which would
/// then need a new maplet, without end.
fn are_whole(node: &Node, chunks: &[&[&Branch]]) -> bool {
    let run = |branch: &Branch| branch.slice.run().meta().id;
    let chosen: Vec<OwnerId> = chunks.iter().flat_map(|chunk| chunk.iter()).map(|branch| run(branch)).collect();
    node.branches.iter().filter(|branch| chosen.contains(&run(branch))).count() == chosen.len()
}

fn unit_of(chunk: &[&Branch]) -> Unit {
    let run = |branch: &Branch| branch.slice.run().meta().id;
    match (chunk, &chunk[0].route) {
        // A run whose fellows were all compacted uses its own filter again.
        ([only], _) => Unit { filter: only.slice.run().clone(), runs: vec![(run(only), 0)] },
        (_, Some(route)) => {
            let value = |branch: &Branch| branch.route.as_ref().map_or(0, |route| route.value);
            let mut runs: Vec<(OwnerId, u8)> = chunk.iter().map(|branch| (run(branch), value(branch))).collect();
            runs.sort_unstable();
            runs.dedup();
            Unit { filter: route.maplet.clone(), runs }
        }
        (_, None) => unreachable!("branches without a maplet stand alone"),
    }
}

/// Makes a maplet, in steps.
pub(super) struct RouteJob {
    /// Bytes that the choice estimated.
    bytes: u64,
    /// The runs, by their new value.
    runs: Vec<OwnerId>,
    /// The node in which they were chosen.
    height: u32,
    range: KeyRange,
    /// The filters that are read.
    filters: Vec<OwnerId>,
    writer: MapletWriter,
}

impl RouteJob {
    fn new(core: &Core, group: Group, width: usize) -> Result<RouteJob> {
        let (bytes, filters) = (group.bytes(), group.filters());
        let entries: u64 = group.units.iter().map(|unit| unit.filter.meta().keys).sum();
        let mut runs = Vec::new();
        let members = group.units.into_iter().map(|unit| unit.member(&mut runs)).collect();
        let writer = MapletWriter::new(core.data.clone(), core.ids.next(), members, entries * width as u64)?;
        let writer = writer.cached_in(core.pool.clone());
        Ok(RouteJob { bytes, runs, height: group.height, range: group.range, filters, writer })
    }
}

/// One maplet is made at a time.
#[derive(Default)]
enum Routing {
    #[default]
    Nothing,
    Parked(Box<RouteJob>),
    /// Bytes that remain.
    Working(u64),
}

impl Routing {
    fn bytes(&self) -> u64 {
        match self {
            Routing::Nothing => 0,
            Routing::Parked(job) => job.bytes,
            Routing::Working(bytes) => *bytes,
        }
    }
}

/// State of the maplets to be made; guarded by the trunk's lock.
#[derive(Default)]
pub(super) struct Routes {
    routing: Routing,
    /// Bytes of the next one, as of the last root swap; 0: there is none.
    waiting: u64,
    /// Filters that could not be read; no maplet is made of them until a caller asks for a compaction.
    unreadable: HashSet<OwnerId>,
    /// The disk was full: nothing optional is written before the next root swap.
    suspended: bool,
    /// There has been no other debt for some time.
    idle: bool,
}

impl Routes {
    /// Drops unfinished work: the keyspace was dropped.
    pub fn clear(&mut self) {
        if matches!(self.routing, Routing::Parked(_)) {
            self.routing = Routing::Nothing;
        }
    }

    /// Filters that could not be read or written are tried again.
    pub fn forgive(&mut self) {
        self.unreadable.clear();
        self.suspended = false;
    }

    /// The disk may have room again.
    pub fn resume(&mut self) {
        self.suspended = false;
    }

    /// Records whether there is time for idle work; returns whether that changed.
    pub fn rest(&mut self, idle: bool) -> bool {
        std::mem::replace(&mut self.idle, idle) != idle
    }
}

impl Stbe {
    /// The filter for a new run, accurate enough for this many rounds of merging.
    pub(super) fn filter(&self, rounds: u32) -> FilterBuilder {
        FilterBuilder::new(self.shape.filters, (self.shape.maplet_width as u64).pow(rounds))
    }

    fn next_group(&self, inner: &Inner) -> Option<Group> {
        let made = self.shape.filters == Filters::Maplet && !inner.routes.suspended && !inner.cleared;
        let waiting = |width, idle| {
            let rule = Rule { width, idle, unreadable: &inner.routes.unreadable };
            waiting(&inner.trunk.root, true, &rule)
        };
        let due = || waiting(self.shape.maplet_width, false);
        let idle = || if inner.routes.idle { waiting(2, true) } else { None };
        made.then(|| due().or_else(idle)).flatten()
    }

    /// Bytes of maplets that are being made or are to be made, recomputed; more may become due after the next one.
    pub(super) fn route_bytes(&self, inner: &mut Inner) -> u64 {
        inner.routes.waiting = self.next_group(inner).map_or(0, |group| group.bytes().max(1));
        // While one is being made, its members still count as waiting.
        inner.routes.routing.bytes().max(inner.routes.waiting)
    }

    /// Claims a maplet to be made.
    pub(super) fn claim_route(&self, inner: &mut Inner) -> Option<Claim> {
        let job = match std::mem::take(&mut inner.routes.routing) {
            working @ Routing::Working(_) => {
                inner.routes.routing = working;
                return None;
            }
            Routing::Parked(job) => job,
            Routing::Nothing if inner.routes.waiting == 0 => return None,
            Routing::Nothing => {
                let group = self.next_group(inner)?;
                let filters = group.filters();
                match RouteJob::new(&self.core, group, self.shape.maplet_width) {
                    Ok(job) => Box::new(job),
                    Err(e) => {
                        inner.routes.unreadable.extend(filters);
                        self.recount(inner);
                        return Some(Claim::Damage(e));
                    }
                }
            }
        };
        inner.routes.routing = Routing::Working(job.bytes);
        Some(Claim::MapletRef(job))
    }

    /// Continues a maplet; when it is complete, installs it in the trunk and swaps the root.
    pub(super) fn step_route(&self, mut job: Box<RouteJob>, budget: u64) -> Result<Progress> {
        let filters = job.filters.clone();
        let (bytes, done) = match job.writer.step(budget) {
            Ok(stepped) => stepped,
            Err(e) => return self.give_up_route(&filters, e),
        };
        let progress = Progress { bytes, ..Progress::default() };
        if !done {
            let mut inner = self.inner.lock();
            inner.routes.routing = if inner.cleared { Routing::Nothing } else { Routing::Parked(job) };
            return Ok(progress);
        }
        let RouteJob { runs, height, range, writer, .. } = *job;
        let opened = writer.finish().and_then(|meta| {
            let open = |meta| Run::open(self.core.data.clone(), self.core.pool.clone(), meta);
            meta.map(open).transpose()
        });
        let maplet = match opened {
            Ok(maplet) => maplet,
            Err(e) => return self.give_up_route(&filters, e),
        };
        let mut inner = self.inner.lock();
        inner.routes.routing = Routing::Nothing;
        if maplet.is_none() {
            // Filters without an entry would be merged again and again.
            inner.routes.unreadable.extend(filters);
        }
        let root = maplet.as_ref().and_then(|maplet| {
            self.counters.maplet_bytes.fetch_add(maplet.meta().disk_bytes(), Relaxed);
            routed(&inner.trunk.root, height, &range, &runs, maplet)
        });
        match root {
            Some(root) if !inner.cleared => {
                let trunk = Trunk { root: Arc::new(root), ..inner.trunk.clone() };
                self.publish(&mut inner, trunk, &[]);
            }
            _ => self.recount(&mut inner),
        }
        Ok(progress)
    }

    /// Discards a maplet that failed. No correctness depends on it; a full disk only delays it.
    fn give_up_route(&self, filters: &[OwnerId], error: crate::Error) -> Result<Progress> {
        let mut inner = self.inner.lock();
        inner.routes.routing = Routing::Nothing;
        let full = matches!(error, crate::Error::DiskFull { .. });
        inner.routes.suspended |= full;
        if error.is_damage() {
            // It does not matter which filter it was: each run still has its own, if that can be read.
            inner.routes.unreadable.extend(filters);
        }
        self.recount(&mut inner);
        if full { Ok(Progress::default()) } else { super::left_alone(error) }
    }
}

/// `node` with the branches of `runs` referring to `maplet`, in the node of that height and range or in the nodes
/// that it was split into; `None` if there are none left. No other node changes: a group of another node that shares
/// a run with this one would be broken up and need a new maplet.
fn routed(node: &Arc<Node>, height: u32, range: &KeyRange, runs: &[OwnerId], maplet: &Arc<Run>) -> Option<Node> {
    let mut draft: Option<Node> = None;
    if node.height > height && node.range.overlaps(range) {
        for (i, child) in node.children.iter().enumerate() {
            if let Some(child) = routed(&child.node, height, range, runs, maplet) {
                draft.get_or_insert_with(|| node.edit()).children[i].node = Arc::new(child);
            }
        }
    }
    if node.height != height || !range.covers(&node.range) {
        return draft;
    }
    for (i, branch) in node.branches.iter().enumerate() {
        let id = branch.slice.run().meta().id;
        let mut value = runs.iter().position(|&run| run == id);
        if SeededBug::MapletMissesArrival.is_on() && branch.route.is_none() && draft.is_some() {
            value = value.or(Some(runs.len()));
        }
        if let Some(value) = value {
            let route = MapletRef::new(maplet.clone(), value as u8, branch.slice.run());
            draft.get_or_insert_with(|| node.edit()).branches[i].route = Some(route);
        }
    }
    draft
}
