//! Maplets for branches that stay in a node for long: a lookup asks one filter per node instead of one per run (002
//! §3.3).
//!
//! ```text
//!   root      b0  b1  b2  b3   b4  b5  b6  b7   b8  b9         fresh memtables, never compacted here
//!             └─ maplet 20 ─┘  └─ maplet 31 ─┘  own filters
//!              values 0 … 3     values 0 … 3
//! ```
//!
//! 1. *Choose* (`next_group`): [`Shape::maplet_width`] neighbours (4 by default), each a run or the runs of one maplet,
//!    with about equally many runs. In the root these are memtables; in nodes below it, runs compacted there, since
//!    newly arrived runs are about to be compacted anyway. None in leaves. Runs with disjoint key ranges need no
//!    maplet: a lookup reads at most one of them.
//! 2. *Make* ([`RouteJob`]): merge their filters, without reading keys, in steps, concurrently with readers.
//! 3. *Install* ([`routed`]): in the node, or in the halves that it was split into meanwhile, branches of these runs
//!    get a reference to the maplet and their value in it. A flush, a split or a merge passes the reference on with the
//!    branch. A compacted run leaves the trunk; its entries in the maplet remain, unused. Dropping the last branch that
//!    refers to a maplet frees it.
//! 4. *Idle*: once no other work has been owed for some time, two neighbours of about equal size are merged, whatever
//!    their tier, until a node has one maplet, so that lookups ask fewer.
//!
//! Invariants: a branch refers to a maplet only if its run was merged into it, under the value in the reference. A
//! maplet covers whole runs, so it answers for every slice of them. If a maplet cannot be read, lookups ask the runs'
//! own filters. Each installation replaces several neighbours by one and changes no other node (whose branches might
//! share a run), so the process ends.
//!
//! Cost: an entry is merged once for each fourfold growth of the group, and written with about 2 bytes.

use std::collections::HashSet;
use std::sync::Arc;

use super::choose::have_no_common_key;
use super::node::{Branch, Node};
use super::{Claim, Inner, Stbe, Trunk};
use crate::base::sync::Ordering::Relaxed;
use crate::base::{KeyRange, OwnerId, PAGE, Result, seeded};
use crate::filter::{FilterBuilder, Filters};
use crate::index::runs::MapletRef;
use crate::index::{Core, Progress};
use crate::run::Run;
use crate::run::maplet::{MapletWriter, Member};

/// Maximum number of runs in one maplet.
const MOST_RUNS: usize = 64;

/// Two filters whose sizes differ by more than this factor are not merged in idle time.
const FAR: u64 = 8;

/// A filter, and the runs of a node that it covers.
struct Unit {
    /// A run with a filter of its own, or a maplet.
    filter: Arc<Run>,
    /// The runs, with their values in the filter.
    runs: Vec<(OwnerId, u8)>,
}

impl Unit {
    /// About how many times its entries were merged. A run counts once, even if several branches refer to it.
    fn tier(&self, width: usize) -> u32 {
        (self.runs.len() - 1).checked_ilog(width).map_or(0, |log| log + 1)
    }

    /// Whether the sizes are close enough that merging does not rewrite a large filter for a few entries.
    fn is_near(&self, other: &Unit) -> bool {
        let (a, b) = (self.filter.meta().keys, other.filter.meta().keys);
        a.max(b) <= a.min(b) * FAR
    }

    /// Whether its fingerprints are long enough for the keys of all `units`: as selective as the filter of one run.
    fn has_room_for(&self, units: &[Unit]) -> bool {
        let meta = self.filter.meta();
        let keys: u64 = units.iter().map(|unit| unit.filter.meta().keys).sum();
        meta.filter.mergeable(meta.keys).is_some_and(|filter| keys.max(1).ilog2() + 8 <= u32::from(filter.bits))
    }

    /// The filter as input of a merge: maps its values to the new ones. New runs are appended to `numbered`.
    fn member(self, numbered: &mut Vec<OwnerId>) -> Member {
        // Entries of all other values are dropped.
        let mut values = vec![None; usize::from(u8::MAX) + 1];
        for (run, value) in self.runs {
            // A run that has two branches in the node, because nodes that shared it were merged, gets one number.
            let number = numbered.iter().position(|&other| other == run).unwrap_or(numbered.len());
            if number == numbered.len() {
                numbered.push(run);
            }
            values[usize::from(value)] = Some(number as u8);
        }
        Member { run: self.filter, values }
    }
}

/// Filters to merge.
struct Group {
    units: Vec<Unit>,
    /// The height of the node.
    height: u32,
    range: KeyRange,
}

impl Group {
    /// Estimated bytes to read and to write.
    fn bytes(&self) -> u64 {
        2 * PAGE as u64 * self.units.iter().map(|unit| u64::from(unit.filter.meta().filter.pages)).sum::<u64>()
    }

    fn filters(&self) -> Vec<OwnerId> {
        self.units.iter().map(|unit| unit.filter.meta().id).collect()
    }
}

/// Which neighbours are merged.
struct Rule<'a> {
    /// The number of neighbours.
    width: usize,
    /// Merge neighbours of about equal size, whatever their tier: there is time.
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

/// The first group in the subtree that has no maplet yet, the highest node first, because most lookups pass it.
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
    // Groups neighbours with the same maplet; a branch without one is a group of its own.
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

/// Whether no other branch of the node has one of these runs. Otherwise the run would be taken out of another group,
/// which would then need a new maplet, and so on without end.
fn are_whole(node: &Node, chunks: &[&[&Branch]]) -> bool {
    let run = |branch: &Branch| branch.slice.run().meta().id;
    let chosen: Vec<OwnerId> = chunks.iter().flat_map(|chunk| chunk.iter()).map(|branch| run(branch)).collect();
    node.branches.iter().filter(|branch| chosen.contains(&run(branch))).count() == chosen.len()
}

fn unit_of(chunk: &[&Branch]) -> Unit {
    let run = |branch: &Branch| branch.slice.run().meta().id;
    match (chunk, &chunk[0].route) {
        // A run whose maplet has no other branch left is a unit of its own again.
        ([only], _) => Unit { filter: only.slice.run().clone(), runs: vec![(run(only), 0)] },
        (_, Some(route)) => {
            let value = |branch: &Branch| branch.route.as_ref().map_or(0, |route| route.value);
            let mut runs: Vec<(OwnerId, u8)> = chunk.iter().map(|branch| (run(branch), value(branch))).collect();
            runs.sort_unstable();
            runs.dedup();
            Unit { filter: route.maplet.clone(), runs }
        }
        (_, None) => unreachable!("a branch without a maplet is a unit of its own"),
    }
}

/// Makes a maplet in steps.
pub(super) struct RouteJob {
    /// Bytes that it was estimated at.
    bytes: u64,
    /// The runs, in the order of their values.
    runs: Vec<OwnerId>,
    /// The node that they were chosen from.
    height: u32,
    range: KeyRange,
    /// The filters to read.
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
    /// A thread works on it; the estimated bytes.
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

/// State of the maplets to be made; guarded by `inner`.
#[derive(Default)]
pub(super) struct Routes {
    routing: Routing,
    /// Bytes of the next one, as of the last root swap; 0: none.
    waiting: u64,
    /// Filters that could not be read; they are excluded until a caller asks for a compaction.
    unreadable: HashSet<OwnerId>,
    /// The disk was full: no maplet is written before the next root swap.
    suspended: bool,
    /// No other work has been owed for some time.
    idle: bool,
}

impl Routes {
    /// Discards the parked job: the keyspace was dropped.
    pub fn clear(&mut self) {
        if matches!(self.routing, Routing::Parked(_)) {
            self.routing = Routing::Nothing;
        }
    }

    /// Retries what could not be read or written.
    pub fn forgive(&mut self) {
        self.unreadable.clear();
        self.suspended = false;
    }

    /// Retries after a full disk: space may have been freed.
    pub fn resume(&mut self) {
        self.suspended = false;
    }

    /// Sets whether the store is idle. Returns whether that is a change.
    pub fn rest(&mut self, idle: bool) -> bool {
        std::mem::replace(&mut self.idle, idle) != idle
    }
}

impl Stbe {
    /// The filter for a new run, with fingerprints long enough for merging into maplets `rounds` times.
    pub(super) fn filter(&self, rounds: u32) -> FilterBuilder {
        FilterBuilder::new(self.shape.filters, (self.shape.maplet_width as u64).pow(rounds))
    }

    /// REQUIRES: the caller holds `inner`.
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

    /// Estimated bytes of the maplet in progress or the next one; more may follow. REQUIRES: the caller holds `inner`.
    pub(super) fn route_bytes(&self, inner: &mut Inner) -> u64 {
        inner.routes.waiting = self.next_group(inner).map_or(0, |group| group.bytes().max(1));
        // While one is made, its inputs still count as waiting.
        inner.routes.routing.bytes().max(inner.routes.waiting)
    }

    /// Claims the parked maplet or the next one. REQUIRES: the caller holds `inner`.
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
            // Exclude filters without entries, which would be merged again and again.
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

    /// Discards a maplet that failed. It is optional: a full disk only postpones it.
    fn give_up_route(&self, filters: &[OwnerId], error: crate::Error) -> Result<Progress> {
        let mut inner = self.inner.lock();
        inner.routes.routing = Routing::Nothing;
        let full = matches!(error, crate::Error::DiskFull { .. });
        inner.routes.suspended |= full;
        if error.is_damage() {
            // Exclude all inputs without finding the damaged one: lookups still use their own filters, if readable.
            inner.routes.unreadable.extend(filters);
        }
        self.recount(&mut inner);
        if full { Ok(Progress::default()) } else { super::Progress::unless_damage(error) }
    }
}

/// `node` with the branches of `runs` referring to `maplet`, in the node of that height and range or the nodes that it
/// was split into; `None` if no such branch is left. Other nodes are not changed: if a run of their groups were taken
/// out, they would need a new maplet.
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
        let value = runs.iter().position(|&run| run == id);
        let value = seeded!(
            MapletMissesArrival: value.or((branch.route.is_none() && draft.is_some()).then_some(runs.len())),
            value
        );
        if let Some(value) = value {
            let route = MapletRef::new(maplet.clone(), value as u8, branch.slice.run());
            draft.get_or_insert_with(|| node.edit()).branches[i].route = Some(route);
        }
    }
    draft
}
