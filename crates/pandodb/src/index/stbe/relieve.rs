//! Relief is the background work on a full disk. Relief first does the work that frees the most space in proportion to
//! the space that the work itself uses.
//!
//! ```text
//!   a memtable waits, and a piece would still fit afterwards ─▶ pack it completely: its log segments can go
//!   else: urgent:     the next leaf in key order with any garbage
//!         not urgent: the leaf with the highest share of garbage, if that is at least 1/16
//!   else: a pending compaction that fits without using the space reserved for deletes
//!         it does not fit, or nodes above hold branches for its leaf?  ─▶ flush them, split the leaf into leaves that fit
//!         ─▶ compact one of these and publish
//! ```
//!
//! Leaves are compacted in turn, because the longer a leaf was not compacted, the more deletes have reached it. When
//! the compaction of a leaf is published, the nodes above trim their parts of its inputs ([`Trim::Holes`]), so that all
//! unneeded pages are free.
//!
//! Packing a memtable of deletes at first uses space: for the entries of the deletes, and for one entry in every node
//! to which the new run is flushed. Therefore compactions precede packing when space is short, and continue until no
//! leaf has much garbage ([`Stbe::sweeps`]).
//!
//! An ordinary compaction holds its inputs until all of its output is written. Relief splits the leaf first, which
//! costs only trunk nodes. Then each part is compacted separately, and its inputs are freed separately. Later passes
//! over the trunk merge small neighbours again.
//!
//! Unfinished outputs are discarded, because other work makes better use of their space.
//!
//! The garbage of a leaf is an estimate, which can be too high. After a leaf is merged with its neighbour, its deletes
//! count again. Entries that a snapshot still needs also count as garbage. Without a limit, compactions that free
//! nothing could prevent packing forever. Therefore a limit holds: once compactions have read 4 times the bytes of the
//! tree, a waiting memtable is packed, or the caller gets the error ([`Inner::is_swept`]).

use std::sync::Arc;

use super::choose::{is_covered_by_range_delete, wiped_bytes};
use super::deletes::{Shares, entries};
use super::jobs::{Candidate, Cause, Merge, Merging, Stuck};
use super::node::{Branch, Node, Trim};
use super::rebalance::Pieces;
use super::tree::{Claim, Inner, Stbe};
use crate::base::{Error, KeyRange, Result};
use crate::index::runs::deletes::Stretch;
use crate::index::runs::relief::{WORTH, fits, in_shrinking_room};
use crate::index::runs::{MergeJob, Packs};
use crate::index::{Progress, Room};
use crate::resolve::Stripes;
use crate::run::Compression;

/// Once compactions have priority over packing, they continue while at least 1/SWEPT of some leaf is garbage.
const SWEPT: u64 = 8;
/// Once compactions have priority over packing, they keep this priority until the disk has space for this number of
/// packed memtables.
const MEMTABLES_A_SWEEP: u64 = 3;
/// Compactions precede a waiting memtable until they have read the bytes of the tree this number of times.
pub(super) const MOST_SWEPT: u64 = 4;
/// The maximum number of leaves that are split in order to find one compaction that fits.
const MOST_CUTS: u32 = 64;

const _: () = assert!(SWEPT <= WORTH, "a sweep ends no later than compactions without urgency");
const _: () = assert!(MOST_SWEPT > 1, "each leaf is compacted at least once");

/// Which compactions relief looks for.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Aim {
    /// Any compaction that frees space. If there is none, a compaction that is pending for another reason.
    Anything,
    /// Only compactions of leaves with much garbage.
    Sweep,
    /// A compaction of a leaf whose garbage is worth the cost. If there is none, a compaction that is pending for
    /// another reason.
    Owed,
}

impl Aim {
    fn of(room: Room) -> Aim {
        if room.urgent { Aim::Anything } else { Aim::Owed }
    }
}

/// The next action.
enum Relief {
    /// Compact this candidate, which fits.
    Merge(Box<Candidate>),
    /// Flush every branch for this leaf to the leaf, and split the leaf into pieces.
    Cut(Arc<Node>),
}

/// A leaf and the amount of its garbage.
struct Leaf {
    node: Arc<Node>,
    dead: u64,
    bytes: u64,
    /// Whether nodes above the leaf hold branches that are live for it.
    waits: bool,
}

impl Stbe {
    /// See [`crate::index::Index::relieve`].
    pub(super) fn relieve_in(&self, room: Room, keep: &dyn Fn() -> Stripes) -> Result<Progress> {
        self.give_up_optional();
        let merge = |aim| in_shrinking_room(room, |room| self.merge_one(room, aim, keep), || {});
        if let Some(aim) = self.sweeps(room) {
            match merge(aim) {
                Ok(progress) if progress.idle => {}
                Err(Error::DiskFull { .. }) => {}
                result => return result,
            }
            self.inner.lock().sweeping = false;
        }
        match self.pack_one(keep) {
            Ok(None) => merge(Aim::of(room)),
            Ok(Some(progress)) => {
                self.inner.lock().swept = 0;
                Ok(progress)
            }
            Err(full @ Error::DiskFull { .. }) if self.inner.lock().is_swept() => Err(full),
            Err(full @ Error::DiskFull { .. }) => match merge(Aim::Anything)? {
                progress if progress.idle => Err(full),
                progress => Ok(progress),
            },
            Err(e) => Err(e),
        }
    }

    /// Returns which compactions precede the packing of the next memtable, if any. While enough space for a compaction
    /// remains free, several memtables of deletes are packed one after another. The reason: the more deletes have
    /// reached a leaf, the more space its compaction frees. Then leaves are compacted until there is space for several
    /// memtables again, and after that until no leaf has much garbage. If compactions stopped as soon as there is space
    /// for one memtable, packing the next deletes would use up this space.
    fn sweeps(&self, room: Room) -> Option<Aim> {
        let waits = self.queue.first_bytes();
        let packed = waits + waits / 4;
        let mut inner = self.inner.lock();
        if inner.is_swept() {
            return None;
        }
        let least = if inner.sweeping { MEMTABLES_A_SWEEP * packed + 2 * room.spare } else { packed + room.spare };
        let is_short = waits > 0 && room.bytes < least;
        inner.sweeping |= is_short;
        match (is_short, inner.sweeping) {
            (true, _) => Some(Aim::Anything),
            (false, true) => Some(Aim::Sweep),
            (false, false) => None,
        }
    }

    /// Discards the parked compactions, with their partial outputs, and what scans requested: compactions that only make
    /// scans faster might not fit, and `settle` would wait for them.
    fn give_up_optional(&self) {
        let mut inner = self.inner.lock();
        inner.merging.retain(|merging| merging.parked.is_none());
        inner.trunk.scans.forget();
        inner.trunk.forced.retain(|request| !request.optional);
        self.recount(&mut inner);
    }

    /// Does one compaction that fits in `room`, from beginning to end.
    fn merge_one(&self, room: Room, aim: Aim, keep: &dyn Fn() -> Stripes) -> Result<Progress> {
        let (ticket, mut job) = match self.claim_relief(room, aim, keep)? {
            Some(Claim::Merge(ticket, job)) => (ticket, job),
            Some(Claim::Damage(e)) => return Progress::unless_damage(e),
            _ => return Ok(Progress { idle: true, ..Progress::default() }),
        };
        let mut done = 0;
        loop {
            let progress = self.step_merge(ticket, job, u64::MAX)?;
            done += progress.bytes;
            let mut inner = self.inner.lock();
            let parked = inner.merging.iter_mut().find(|merging| merging.ticket == ticket);
            match parked.and_then(|merging| merging.parked.take()) {
                Some(parked) => job = parked,
                None => {
                    if inner.swept == 0 {
                        inner.most_swept = MOST_SWEPT * (done + inner.bytes());
                    }
                    debug_assert!(inner.most_swept > 0 || done == 0, "the limit is set by the first compaction");
                    inner.swept += done;
                    return Ok(Progress { bytes: done, ..progress });
                }
            }
        }
    }

    /// Begins the next compaction that [`Stbe::relief`] chooses. Splits leaves until one compaction fits.
    fn claim_relief(&self, room: Room, aim: Aim, keep: &dyn Fn() -> Stripes) -> Result<Option<Claim>> {
        let mut inner = self.inner.lock();
        for _ in 0..MOST_CUTS {
            let candidate = match self.relief(&inner, room, aim) {
                None => return Ok(None),
                Some(Relief::Merge(candidate)) => Some(*candidate),
                // Splitting the leaf would not help, because the nodes for the pieces would use too much space
                // themselves.
                Some(Relief::Cut(leaf)) if room.bytes < room.spare && !fits(leaf.own_bytes(), room.bytes) => break,
                Some(Relief::Cut(leaf)) => {
                    self.cut_leaf(&mut inner, KeyRange::clone(&leaf.range), (room.bytes / 2).max(room.spare))?;
                    let piece = leaf_of(&inner.trunk.root, &leaf.range.from);
                    leaf_candidate(&piece, &inner.stuck)
                        .filter(|candidate| candidate.branches.len() > 1 && fits(candidate.bytes, room.bytes))
                }
            };
            if let Some(candidate) = candidate {
                inner.relieved_to.clone_from(&candidate.live[candidate.live.len() - 1].to);
                return Ok(Some(self.begin_merge(&mut inner, candidate, keep)));
            }
        }
        // A compaction is pending, but it does not fit on the disk.
        Err(Error::DiskFull { op: "compaction" })
    }

    /// The next piece of work within `room`. REQUIRES: the caller holds `inner`.
    fn relief(&self, inner: &Inner, room: Room, aim: Aim) -> Option<Relief> {
        // The space that can be used without using the space that deletes will need. This limit is needed because
        // readers, or nodes above, may keep the inputs of a compaction allocated for some time.
        let beside = room.bytes.saturating_sub(2 * room.spare);
        let for_dead = if aim == Aim::Owed { beside } else { room.bytes };
        let mut leaves = Vec::new();
        score(&inner.trunk.root, &[], false, &inner.stuck, &mut leaves);
        leaves.retain(|leaf| !inner.is_busy(&leaf.node.range));
        let of_leaf = |leaf: &Leaf| match leaf_candidate(&leaf.node, &inner.stuck) {
            Some(candidate) if !leaf.waits && fits(candidate.bytes, for_dead) => Relief::Merge(Box::new(candidate)),
            _ => Relief::Cut(leaf.node.clone()),
        };
        let least = match aim {
            Aim::Anything => u64::MAX,
            Aim::Sweep => SWEPT,
            Aim::Owed => WORTH,
        };
        // If relief is not urgent, skip leaves for which nodes above hold branches, because ordinary flushes will pass
        // these branches on.
        let may = |leaf: &&Leaf| aim != Aim::Owed || !leaf.waits;
        let worth = |leaf: &&Leaf| leaf.dead > 0 && leaf.dead.saturating_mul(least) >= leaf.bytes;
        let mut worthy = leaves.iter().filter(may).filter(worth).peekable();
        let chosen = if aim == Aim::Owed {
            worthy.max_by_key(|leaf| u128::from(leaf.dead) * 1024 / u128::from(leaf.bytes.max(1)))
        } else {
            let first = worthy.peek().copied();
            worthy.find(|leaf| leaf.node.range.from >= inner.relieved_to).or(first)
        };
        if let Some(leaf) = chosen {
            return Some(of_leaf(leaf));
        }
        if aim == Aim::Sweep {
            return None;
        }
        // A compaction that drops nothing never uses the space that deletes will need, even if relief is urgent.
        if beside < room.spare {
            return None;
        }
        // Skip compactions above the leaves, because they do not free the parts of their inputs that other nodes hold.
        let owed = self.choice(inner).all();
        let small = |candidate: &&Candidate| candidate.height == 0 && fits(candidate.bytes, beside);
        if let Some(candidate) = owed.iter().find(small) {
            return Some(Relief::Merge(Box::new(Candidate { trim: Trim::Holes, ..candidate.clone() })));
        }
        let root = &inner.trunk.root;
        // Skip a leaf that another thread compacts, because branches flushed to it now would be compacted twice.
        let ranges = owed.iter().flat_map(|candidate| &candidate.live);
        ranges.map(|range| leaf_of(root, &range.from)).find(|leaf| !inner.is_busy(&leaf.range)).map(Relief::Cut)
    }

    /// Flushes all branches for a leaf to this leaf, and splits the leaf into pieces of about `bytes`. REQUIRES: the
    /// caller holds `inner`.
    fn cut_leaf(&self, inner: &mut Inner, range: KeyRange, bytes: u64) -> Result<()> {
        assert!(bytes > 0 && !range.is_empty(), "a leaf is cut into pieces with data");
        let mut trunk = inner.trunk.clone();
        inner.relieved_to.clone_from(&range.to);
        self.rebalance_with(inner, &mut trunk, Some(&Pieces { range, bytes }))?;
        self.publish(inner, trunk, &[]);
        Ok(())
    }

    /// Begins a compaction. REQUIRES: the caller holds `inner`.
    pub(super) fn begin_merge(&self, inner: &mut Inner, candidate: Candidate, keep: &dyn Fn() -> Stripes) -> Claim {
        let (ids, live) = (candidate.ids(), candidate.live.clone());
        let (bytes, cause) = (candidate.bytes, candidate.cause);
        // The runs of leaves get no maplets.
        let filter = self.filter(u32::from(candidate.height > 0));
        // Compress only leaves, because they hold most of the data for the longest time.
        let compression = if candidate.height == 0 { self.shape.compression } else { Compression::None };
        let conflicts = inner.merging.iter().any(|merging| candidate.conflicts(&merging.ids, &merging.live));
        assert!(!conflicts, "two compactions would read the same messages");
        inner.keep = keep();
        let job = MergeJob::new(&self.core, candidate.inputs(), filter, inner.keep.clone(), self.operator.clone());
        match job.map(|job| job.with_compression(compression)) {
            Ok(job) => {
                let ticket = inner.next_ticket;
                inner.next_ticket += 1;
                debug_assert!(inner.merging.iter().all(|other| other.ticket < ticket), "tickets ascend");
                inner.merging.push(Merging { ticket, ids, live, bytes, cause, parked: None });
                Claim::Merge(ticket, Box::new(Merge { candidate, job }))
            }
            Err((run, e)) => {
                inner.leave(&candidate, Some(run), &e);
                self.recount(inner);
                Claim::Damage(e)
            }
        }
    }
}

impl Inner {
    /// Whether compactions have read as many bytes as the limit `most_swept` allows, so that a waiting memtable is
    /// packed next.
    fn is_swept(&self) -> bool {
        self.swept > self.most_swept
    }

    /// The bytes of all branches of all nodes. The bytes of a branch of an inner node are the sum of its weights for
    /// the children for which it is live.
    fn bytes(&self) -> u64 {
        let mut bytes = 0;
        self.trunk.root.walk(&mut |node| bytes += node.own_bytes());
        bytes
    }

    /// Whether a compaction is in progress in this range.
    fn is_busy(&self, range: &KeyRange) -> bool {
        self.merging.iter().any(|merging| merging.live.iter().any(|live| live.overlaps(range)))
    }
}

/// The leaf whose range contains a key.
fn leaf_of(root: &Arc<Node>, key: &[u8]) -> Arc<Node> {
    let mut node = root;
    while !node.is_leaf() {
        node = &node.children[node.child_for(key)].node;
    }
    debug_assert!(node.range.contains(key), "the children of a node partition its range");
    node.clone()
}

/// All readable branches of a leaf, as one compaction.
fn leaf_candidate(leaf: &Node, stuck: &Stuck) -> Option<Candidate> {
    debug_assert!(leaf.is_leaf(), "only leaves are compacted for their garbage");
    let begin = leaf.branches.iter().rposition(|branch| stuck.holds(branch)).map_or(0, |i| i + 1);
    let branches = leaf.branches[begin..].to_vec();
    let bytes = branches.iter().map(|branch| branch.bytes).sum();
    let live = vec![KeyRange::clone(&leaf.range)];
    (!branches.is_empty()).then_some(Candidate {
        branches,
        live,
        height: 0,
        bottom: begin == 0,
        bytes,
        cause: Cause::Due,
        trim: Trim::Holes,
    })
}

/// Appends the leaves under `node` to `out`. `above` are the deletes that nodes above hold for `node`. `waits` says
/// whether nodes above hold branches for `node`.
fn score(node: &Arc<Node>, above: &[(&Stretch, u64)], waits: bool, stuck: &Stuck, out: &mut Vec<Leaf>) {
    if node.is_leaf() {
        let (bytes, entries) = (node.own_bytes(), entries(node).max(1));
        let from_above: u64 = above.iter().map(|(_, count)| count).sum();
        let dead = dead_in(node, from_above, bytes, entries, stuck);
        out.push(Leaf { node: node.clone(), dead, bytes, waits });
        return;
    }
    let mut shares = Shares::new(node);
    above.iter().for_each(|&(stretch, count)| shares.add(stretch, count, |_| true));
    for (place, branch) in (0..).zip(&node.branches) {
        let lives = |i: usize| node.children[i].next <= place && branch.weights[i] > 0;
        branch.deletes.stretches().for_each(|stretch| shares.add(stretch, stretch.count(), lives));
    }
    for (i, child) in node.children.iter().enumerate() {
        let wiped = node
            .live(child)
            .iter()
            .any(|branch| branch.weights[i] > 0 && is_covered_by_range_delete(branch, &child.node.range));
        let waits = waits || node.live_branches(i) > 0;
        let first = out.len();
        score(&child.node, shares.of(i), waits, stuck, out);
        if wiped {
            out[first..].iter_mut().for_each(|leaf| leaf.dead = leaf.bytes);
        }
    }
}

/// Estimated bytes of a leaf that a compaction would drop.
fn dead_in(leaf: &Node, from_above: u64, bytes: u64, entries: u64, stuck: &Stuck) -> u64 {
    if leaf.branches.iter().any(|branch| stuck.holds(branch)) {
        return 0;
    }
    let Some((oldest, newer)) = leaf.branches.split_first() else { return from_above };
    let deletes = |branch: &Branch| branch.deletes.count();
    let own = newer.iter().map(deletes).sum::<u64>() + if oldest.fresh { deletes(oldest) } else { 0 };
    let hidden = u128::from(own + from_above) * u128::from(bytes) / u128::from(entries);
    u64::try_from(hidden).unwrap_or(u64::MAX).max(wiped_bytes(&leaf.branches)).min(bytes)
}
