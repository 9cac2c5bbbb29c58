//! Maplets for branches that stay in a node for a long time: a lookup probes one filter per node instead of one filter
//! per run (002 §3.3).
//!
//! ```text
//!   root      b0  b1  b2  b3   b4  b5  b6  b7   b8  b9         fresh memtables, never compacted here
//!             └─ maplet 20 ─┘  └─ maplet 31 ─┘  own filters
//!              values 0 … 3     values 0 … 3
//! ```
//!
//! 1. *Choose* (`next_group`): find [`Shape::maplet_width`] neighbours (4 by default) that have about equally many
//!    runs. Each neighbour is either one run or all runs of one maplet. In the root, all runs qualify; they are packed
//!    memtables. In lower nodes, only runs that were compacted in that node qualify, because newly arrived runs will
//!    soon be compacted anyway. Leaves have no maplets. Runs with disjoint key ranges need no maplet: a lookup reads at
//!    most one of them.
//! 2. *Make* ([`RouteJob`]): merge the filters of the group in steps, concurrently with readers. No keys are read.
//! 3. *Install* ([`routed`]): the branches of these runs get a reference to the maplet and their value in it. These
//!    branches are in the node from which the group was chosen, or in its halves if the node was split during the job.
//!    A flush, a split or a merge passes the reference on with the branch. When a run is compacted, it leaves the
//!    trunk. Its entries remain in the maplet, but are no longer used. Dropping the last branch that refers to a maplet
//!    frees the maplet.
//! 4. *Idle*: once no other work has been pending for some time, two neighbours of about equal size are merged, even if
//!    their entries were merged a different number of times before. This continues until each node has one maplet, so
//!    that lookups probe fewer filters.
//!
//! Invariants: a branch refers to a maplet only if the filter of the branch's run was merged into the maplet with the
//! value in the reference. A maplet covers whole runs, so it answers for every slice of them. If a maplet cannot be
//! read, lookups probe the runs' own filters. Each installation replaces several neighbours in one node by one
//! neighbour. It changes no other node, even if another node has a branch of the same run. Therefore the number of
//! neighbours falls until no maplet is left to make.
//!
//! Cost: an entry is merged once each time its maplet becomes four times as large. Each time, the entry is written with
//! about 2 bytes.

use std::collections::HashSet;
use std::sync::Arc;

use super::choose::have_no_common_key;
use super::node::{Branch, Node};
use crate::base::{KeyRange, OwnerId, PAGE, Result, seeded};
use crate::index::Core;
use crate::index::runs::MapletRef;
use crate::run::Run;
use crate::run::maplet::{MapletWriter, Member};

/// Maximum number of runs in one maplet.
const MOST_RUNS: usize = 64;
const _: () = assert!(MOST_RUNS <= u8::MAX as usize, "the value of a run is a byte");

/// Two filters whose sizes differ by more than this factor are not merged in idle time.
const FAR: u64 = 8;

/// A filter, and the runs of a node that the filter covers.
struct Unit {
    /// A run with a filter of its own, or a maplet.
    filter: Arc<Run>,
    /// The runs, each with its value in the filter.
    runs: Vec<(OwnerId, u8)>,
}

impl Unit {
    /// The approximate number of times that the entries of the unit were merged. It is computed from the number of
    /// runs, in which a run counts once, even if several branches have this run.
    fn tier(&self, width: usize) -> u32 {
        (self.runs.len() - 1).checked_ilog(width).map_or(0, |log| log + 1)
    }

    /// Whether the sizes of the two filters are similar enough to merge them. Otherwise a merge would rewrite a large
    /// filter in order to add few entries.
    fn is_near(&self, other: &Unit) -> bool {
        let (a, b) = (self.filter.meta().keys, other.filter.meta().keys);
        a.max(b) <= a.min(b) * FAR
    }

    /// Whether the fingerprints are long enough for the keys of all `units`: the result must be as selective as the
    /// filter of one run.
    fn has_room_for(&self, units: &[Unit]) -> bool {
        let meta = self.filter.meta();
        let keys: u64 = units.iter().map(|unit| unit.filter.meta().keys).sum();
        meta.filter.mergeable(meta.keys).is_some_and(|filter| keys.max(1).ilog2() + 8 <= u32::from(filter.bits))
    }

    /// The filter as an input of a merge, with a map from its values to the new values. New runs are appended to
    /// `numbered`.
    fn member(self, numbered: &mut Vec<OwnerId>) -> Member {
        // Entries whose value belongs to none of these runs are dropped.
        let mut values = vec![None; usize::from(u8::MAX) + 1];
        for (run, value) in self.runs {
            // A run can have two branches in the node, because nodes that shared it were merged. Such a run gets one
            // number.
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
pub(super) struct Group {
    units: Vec<Unit>,
    /// The height of the node of the group.
    pub(super) height: u32,
    pub(super) range: KeyRange,
}

impl Group {
    /// Estimated bytes to read and to write for the maplet.
    pub(super) fn bytes(&self) -> u64 {
        2 * PAGE as u64 * self.units.iter().map(|unit| u64::from(unit.filter.meta().filter.pages)).sum::<u64>()
    }

    pub(super) fn filters(&self) -> Vec<OwnerId> {
        self.units.iter().map(|unit| unit.filter.meta().id).collect()
    }
}

/// The rule that says which neighbours are merged.
pub(super) struct Rule<'a> {
    /// The number of neighbours to merge.
    pub(super) width: usize,
    /// Whether the store is idle. If so, neighbours of about equal size are merged, even if their entries were merged a
    /// different number of times before.
    pub(super) idle: bool,
    /// Filters that could not be read. They are excluded.
    pub(super) unreadable: &'a HashSet<OwnerId>,
}

impl Rule<'_> {
    fn wants(&self, units: &[Unit]) -> bool {
        debug_assert_eq!(units.len(), self.width, "as many neighbours as are merged");
        let alike = |unit: &Unit| match self.idle {
            true => unit.is_near(&units[0]) && unit.has_room_for(units),
            false => unit.tier(self.width) == units[0].tier(self.width),
        };
        units.iter().all(|unit| alike(unit) && !self.unreadable.contains(&unit.filter.meta().id))
            && units.iter().map(|unit| unit.runs.len()).sum::<usize>() <= MOST_RUNS
    }
}

/// The first group in the subtree that has no maplet yet. Higher nodes are searched first, because more lookups pass
/// through them.
pub(super) fn waiting(node: &Arc<Node>, is_root: bool, rule: &Rule<'_>) -> Option<Group> {
    if node.is_leaf() {
        return None;
    }
    let below = || node.children.iter().find_map(|child| waiting(&child.node, false, rule));
    in_node(node, is_root, rule).or_else(below)
}

fn in_node(node: &Node, is_root: bool, rule: &Rule<'_>) -> Option<Group> {
    debug_assert!(!node.is_leaf() && rule.width >= 2, "maplets of several filters, above the leaves");
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
    Some(Group { units, height: node.height, range: KeyRange::clone(&node.range) })
}

/// Whether no branch of the node outside `chunks` has one of these runs. If one did, the run would be removed from
/// another group, which would then need a new maplet, and so on without end.
fn are_whole(node: &Node, chunks: &[&[&Branch]]) -> bool {
    let run = |branch: &Branch| branch.slice.run().meta().id;
    let chosen: Vec<OwnerId> = chunks.iter().flat_map(|chunk| chunk.iter()).map(|branch| run(branch)).collect();
    node.branches.iter().filter(|branch| chosen.contains(&run(branch))).count() == chosen.len()
}

fn unit_of(chunk: &[&Branch]) -> Unit {
    let run = |branch: &Branch| branch.slice.run().meta().id;
    debug_assert!(!chunk.is_empty());
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

/// A job that makes a maplet in steps.
pub(super) struct RouteJob {
    /// The estimated bytes of the job.
    pub(super) bytes: u64,
    /// The runs, in the order of their values.
    pub(super) runs: Vec<OwnerId>,
    /// The height of the node from which the runs were chosen.
    pub(super) height: u32,
    pub(super) range: KeyRange,
    /// The filters to read.
    pub(super) filters: Vec<OwnerId>,
    pub(super) writer: MapletWriter,
}

impl RouteJob {
    pub(super) fn new(core: &Core, group: Group, width: usize) -> Result<RouteJob> {
        let (bytes, filters) = (group.bytes(), group.filters());
        assert!(filters.len() >= 2, "a maplet replaces several filters");
        let entries: u64 = group.units.iter().map(|unit| unit.filter.meta().keys).sum();
        let mut runs = Vec::new();
        let members = group.units.into_iter().map(|unit| unit.member(&mut runs)).collect();
        assert!(runs.len() <= MOST_RUNS, "{} runs in one maplet", runs.len());
        let writer = MapletWriter::new(core.data.clone(), core.ids.next(), members, entries * width as u64)?;
        let writer = writer.cached_in(core.pool.clone());
        Ok(RouteJob { bytes, runs, height: group.height, range: group.range, filters, writer })
    }
}

/// The state of the maplet job. One maplet is made at a time.
#[derive(Default)]
pub(super) enum Routing {
    #[default]
    Nothing,
    Parked(Box<RouteJob>),
    /// A thread works on the job. The field is the estimated size of the job in bytes.
    Working(u64),
}

impl Routing {
    pub(super) fn bytes(&self) -> u64 {
        match self {
            Routing::Nothing => 0,
            Routing::Parked(job) => job.bytes,
            Routing::Working(bytes) => *bytes,
        }
    }
}

/// The state of the maplets to be made; guarded by `inner`.
#[derive(Default)]
pub(super) struct Routes {
    pub(super) routing: Routing,
    /// Bytes of the next maplet job, as computed at the last root swap; 0 if there is no such job.
    pub(super) waiting: u64,
    /// Filters that could not be read. They are excluded until a caller asks for a compaction.
    pub(super) unreadable: HashSet<OwnerId>,
    /// Whether a maplet could not be written because the disk was full. If so, no further maplet is written before the
    /// next root swap.
    pub(super) suspended: bool,
    /// Whether no other work has been pending for some time.
    pub(super) idle: bool,
}

impl Routes {
    /// Discards the parked job, because the keyspace was dropped.
    pub fn clear(&mut self) {
        if matches!(self.routing, Routing::Parked(_)) {
            self.routing = Routing::Nothing;
        }
    }

    /// Allows a retry of filters that could not be read and of maplets that could not be written.
    pub fn forgive(&mut self) {
        self.unreadable.clear();
        self.suspended = false;
    }

    /// Allows a retry after a full disk, because space may have been freed.
    pub fn resume(&mut self) {
        self.suspended = false;
    }

    /// Sets whether the store is idle. Returns whether the value changed.
    pub fn rest(&mut self, idle: bool) -> bool {
        std::mem::replace(&mut self.idle, idle) != idle
    }
}

/// A copy of `node` in which the branches of `runs` refer to `maplet`; `None` if no such branch is left. The call
/// changes only the node of the given height and range, or the nodes into which it was split. Other nodes that have one
/// of the runs are not changed, because this would remove the run from a group in that node, and the group would need a
/// new maplet.
pub(super) fn routed(
    node: &Arc<Node>,
    height: u32,
    range: &KeyRange,
    runs: &[OwnerId],
    maplet: &Arc<Run>,
) -> Option<Node> {
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
            debug_assert!(value <= MOST_RUNS, "the value of a run is a byte");
            let route = MapletRef::new(maplet.clone(), value as u8, branch.slice.run());
            draft.get_or_insert_with(|| node.edit()).branches[i].route = Some(route);
        }
    }
    draft
}
