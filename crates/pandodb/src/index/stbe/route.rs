//! Maplets for branches that stand together for long: one question a node instead of one a run (002 §3.3).
//!
//! ```text
//!   root      b0  b1  b2  b3   b4  b5  b6  b7   b8  b9         fresh memtables, never compacted here
//!             └─ maplet 20 ─┘  └─ maplet 31 ─┘  own filters
//!              values 0 … 3     values 0 … 3
//! ```
//!
//! 1. *Choose* ([`waiting`]): [`Shape::maplet_width`] neighbours (four) of about the same size that are not one yet, runs or what a maplet answers for,
//!    in a node above the leaves. In the root these are memtables; below it, what was compacted there: what has newly
//!    arrived is about to become one run anyway. Runs without a common key are told apart by their bounds.
//! 2. *Make* ([`RouteJob`]): their filters are merged without their keys, in steps, beside the readers.
//! 3. *Install* ([`Stbe::step_route`]): wherever the runs stand by then, branches say that the maplet is to be asked and for
//!    which value. A flush, a split or a merge hands that on with the branch; a run that is compacted leaves the trunk with
//!    its entries still in the maplet, which nobody asks for any more. The last branch that names it frees it.
//!
//! Invariants: a branch is routed to a maplet only if its run went into it; a maplet is about whole runs, so it answers for
//! every slice of them. A maplet that cannot be read answers "any": the runs are asked, without their filters.
//!
//! Cost: an entry is merged once for each fourfold of runs that stand together, and written with about 2 bytes.

use std::collections::HashSet;
use std::sync::Arc;

use super::choose::have_no_common_key;
use super::node::{Branch, Node, Route};
use super::{Claim, Inner, Stbe};
use crate::base::sync::Ordering::Relaxed;
use crate::base::{PAGE, Result, RunId, SeededBug};
use crate::filter::{FilterBuilder, Filters};
use crate::index::{Core, Progress};
use crate::run::Run;
use crate::run::maplet::{MapletWriter, Member};

/// A maplet of more runs is left as it is.
const MOST_RUNS: usize = 64;

/// A filter, and the runs of a node that it answers for.
struct Unit {
    /// A run, with a filter of its own, or a maplet.
    filter: Arc<Run>,
    /// Runs with what the filter answers for them.
    runs: Vec<(RunId, u8)>,
}

impl Unit {
    /// How often what is in it was merged, about.
    fn tier(&self, width: usize) -> u32 {
        (self.runs.len() - 1).checked_ilog(width).map_or(0, |log| log + 1)
    }

    /// What becomes of the filter's values if its runs get the next ones in `numbered`.
    fn member(self, numbered: &mut Vec<RunId>) -> Member {
        let mut values = Vec::new();
        for (run, value) in self.runs {
            if values.len() <= usize::from(value) {
                values.resize(usize::from(value) + 1, None);
            }
            values[usize::from(value)] = Some(numbered.len() as u8);
            numbered.push(run);
        }
        // Of other runs that it knows nothing is kept.
        values.resize(values.len().max(usize::from(u8::MAX) + 1), None);
        Member { run: self.filter, values }
    }
}

/// Filters that are to be made one.
struct Group(Vec<Unit>);

impl Group {
    /// Bytes to read and to write, about.
    fn bytes(&self) -> u64 {
        2 * PAGE as u64 * self.0.iter().map(|unit| u64::from(unit.filter.meta().filter.pages)).sum::<u64>()
    }
}

/// The first group under `root` that waits for its maplet, the highest node first: its runs are asked by most.
/// `unreadable`: filters that could not be read.
fn waiting(root: &Arc<Node>, width: usize, unreadable: &HashSet<RunId>) -> Option<Group> {
    let mut found = None;
    root.walk(&mut |node| {
        if found.is_none() && !node.is_leaf() {
            found = in_node(node, Arc::ptr_eq(node, root), width, unreadable);
        }
    });
    found
}

fn in_node(node: &Node, is_root: bool, width: usize, unreadable: &HashSet<RunId>) -> Option<Group> {
    let stays = |branch: &&Branch| {
        let meta = branch.slice.run().meta();
        (is_root || !branch.fresh) && meta.filter.mergeable(meta.keys).is_some()
    };
    let branches: Vec<&Branch> = node.branches.iter().filter(stays).collect();
    // Neighbours that the same maplet answers for; whoever has none stands alone.
    let same = |a: &&Branch, b: &&Branch| match (&a.route, &b.route) {
        (Some(a), Some(b)) => a.maplet.meta().id == b.maplet.meta().id,
        _ => false,
    };
    let chunks: Vec<&[&Branch]> = branches.chunk_by(same).collect();
    let units: Vec<Unit> = chunks.iter().map(|chunk| unit_of(chunk)).collect();
    let fits = |units: &[Unit]| {
        units
            .iter()
            .all(|unit| unit.tier(width) == units[0].tier(width) && !unreadable.contains(&unit.filter.meta().id))
            && units.iter().map(|unit| unit.runs.len()).sum::<usize>() <= MOST_RUNS
    };
    let overlap = |chunks: &[&[&Branch]]| {
        !have_no_common_key(chunks.iter().flat_map(|chunk| chunk.iter()).map(|branch| &*branch.slice))
    };
    let at = (0..=units.len().checked_sub(width)?)
        .find(|&at| fits(&units[at..at + width]) && overlap(&chunks[at..at + width]))?;
    Some(Group(units.into_iter().skip(at).take(width).collect()))
}

fn unit_of(chunk: &[&Branch]) -> Unit {
    let run = |branch: &Branch| branch.slice.run().meta().id;
    match (chunk, &chunk[0].route) {
        // A run that has outlived its fellows answers for itself again.
        ([only], _) => Unit { filter: only.slice.run().clone(), runs: vec![(run(only), 0)] },
        (_, Some(route)) => {
            let value = |branch: &Branch| branch.route.as_ref().map_or(0, |route| route.value);
            Unit {
                filter: route.maplet.clone(),
                runs: chunk.iter().map(|branch| (run(branch), value(branch))).collect(),
            }
        }
        (_, None) => unreachable!("branches without a maplet stand alone"),
    }
}

/// Makes a maplet, in steps.
pub(super) struct RouteJob {
    /// Bytes that it was chosen for.
    bytes: u64,
    /// The runs, by the value that they get.
    runs: Vec<RunId>,
    /// The filters that are read.
    filters: Vec<RunId>,
    writer: MapletWriter,
}

impl RouteJob {
    fn new(core: &Core, group: Group, width: usize) -> Result<RouteJob> {
        let bytes = group.bytes();
        let filters = group.0.iter().map(|unit| unit.filter.meta().id).collect();
        let entries: u64 = group.0.iter().map(|unit| unit.filter.meta().keys).sum();
        let mut runs = Vec::new();
        let members = group.0.into_iter().map(|unit| unit.member(&mut runs)).collect();
        let writer = MapletWriter::new(core.data.clone(), core.ids.next(), members, entries * width as u64)?;
        Ok(RouteJob { bytes, runs, filters, writer })
    }
}

/// One maplet is made at a time.
#[derive(Default)]
pub(super) enum Routing {
    #[default]
    Nothing,
    Parked(Box<RouteJob>),
    /// With so many bytes to go.
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

impl Inner {
    /// Bytes of maplets that are made or wait to be; more may wait behind the next one.
    pub(super) fn route_bytes(&self, stbe: &Stbe) -> u64 {
        // While one is made, its members still wait.
        self.routing.bytes().max(stbe.next_group(self).map_or(0, |group| group.bytes()))
    }
}

impl Stbe {
    /// The filter for a new run, good for maplets that are made in so many rounds.
    pub(super) fn filter(&self, rounds: u32) -> FilterBuilder {
        FilterBuilder::new(self.shape.filters, (self.shape.maplet_width as u64).pow(rounds))
    }

    fn next_group(&self, inner: &Inner) -> Option<Group> {
        let makes_maplets = self.shape.filters == Filters::Maplet;
        let waiting = || waiting(&inner.trunk.root, self.shape.maplet_width, &inner.unreadable);
        makes_maplets.then(waiting).flatten()
    }

    /// Claims a maplet to be made.
    pub(super) fn claim_route(&self, inner: &mut Inner) -> Option<Claim> {
        let job = match std::mem::take(&mut inner.routing) {
            working @ Routing::Working(_) => {
                inner.routing = working;
                return None;
            }
            Routing::Parked(job) => job,
            Routing::Nothing => {
                let group = self.next_group(inner)?;
                let filters: Vec<RunId> = group.0.iter().map(|unit| unit.filter.meta().id).collect();
                match RouteJob::new(&self.core, group, self.shape.maplet_width) {
                    Ok(job) => Box::new(job),
                    Err(e) => {
                        inner.unreadable.extend(filters);
                        return Some(Claim::Damage(e));
                    }
                }
            }
        };
        inner.routing = Routing::Working(job.bytes);
        Some(Claim::Route(job))
    }

    /// Goes on with a maplet; when it is complete, puts it into the trunk and swaps the root.
    pub(super) fn step_route(&self, mut job: Box<RouteJob>, budget: u64) -> Result<Progress> {
        let (bytes, done) = match job.writer.step(budget) {
            Ok(stepped) => stepped,
            Err(e) => return self.give_up_route(&job.filters, e),
        };
        if !done {
            let mut inner = self.inner.lock();
            inner.routing = if inner.cleared { Routing::Nothing } else { Routing::Parked(job) };
            return Ok(Progress { bytes, ..Progress::default() });
        }
        let RouteJob { runs, filters, writer, .. } = *job;
        let opened = writer.finish().and_then(|meta| {
            let open = |meta| Run::open(self.core.data.clone(), self.core.pool.clone(), meta);
            meta.map(open).transpose()
        });
        match opened {
            Ok(maplet) => {
                let mut inner = self.inner.lock();
                inner.routing = Routing::Nothing;
                if let Some(maplet) = maplet.filter(|_| !inner.cleared) {
                    self.counters.routed_bytes.fetch_add(maplet.meta().disk_bytes(), Relaxed);
                    let mut trunk = inner.trunk.clone();
                    if let Some(root) = routed(&trunk.root, &runs, &maplet) {
                        trunk.root = Arc::new(root);
                        self.publish(&mut inner, trunk, &[]);
                    }
                }
                Ok(Progress { bytes, ..Progress::default() })
            }
            Err(e) => self.give_up_route(&filters, e),
        }
    }

    fn give_up_route(&self, filters: &[RunId], error: crate::Error) -> Result<Progress> {
        let mut inner = self.inner.lock();
        inner.routing = Routing::Nothing;
        if error.is_damage() {
            // Which of them it was is not worth knowing: each still has its own filter, if that can be read.
            inner.unreadable.extend(filters);
        }
        self.recount(&inner);
        super::left_alone(error)
    }
}

/// The node with the branches of `runs`, in it and below, routed to `maplet`; `None` if there are none.
fn routed(node: &Arc<Node>, runs: &[RunId], maplet: &Arc<Run>) -> Option<Node> {
    let mut draft: Option<Node> = None;
    for (i, child) in node.children.iter().enumerate() {
        if let Some(child) = routed(&child.node, runs, maplet) {
            draft.get_or_insert_with(|| node.edit()).children[i].node = Arc::new(child);
        }
    }
    for (i, branch) in node.branches.iter().enumerate() {
        let id = branch.slice.run().meta().id;
        let mut value = runs.iter().position(|&run| run == id);
        if SeededBug::MapletMissesArrival.is_on() && branch.route.is_none() && draft.is_some() {
            value = value.or(Some(runs.len()));
        }
        if let Some(value) = value {
            let draft = draft.get_or_insert_with(|| node.edit());
            draft.branches[i].route = Some(Route::new(maplet.clone(), value as u8, branch.slice.run()));
        }
    }
    draft
}
