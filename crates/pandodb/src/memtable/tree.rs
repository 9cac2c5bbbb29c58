//! The B+-tree over the arena: many readers and many writers, each latching a node or two for a moment.
//!
//! ```text
//!   anchor ─▶ root          | separator | separator |          a separator is the first record right of it
//!                          ╱            │            ╲
//!                  | · | · | ·        | · | ·        | · | ·    inner nodes, on `height` levels
//!                 ╱    │
//!            leaf      leaf  …   [low fence, high fence)        leaves know their fences, not their neighbours
//! ```
//!
//! *Reading* takes nothing: load a node's version, load from the node, load the child's version, see that the node's is
//! still the same, go on with the child (*optimistic lock coupling*). If it is not, begin again at the root.
//!
//! *Inserting* goes down in the same way, finds the slot, and locks the leaf at the version at which it was searched.
//!
//! *Splitting* is preemptive (002 §3.6.2): who meets a full node on the way down splits it before going on, so that the
//! node above has room:
//!
//! 1. claim the full node: others go on reading it;
//! 2. build the right half, which nobody knows yet;
//! 3. lock the node above at the version at which it was passed, then the full node;
//! 4. put the separator and the new half into the node above, and let go of it;
//! 5. forget the right half in the full node, and let go of it.
//!
//! That is the paper's shadow splitting, in memory: the node above is held while a slot is put in, not while half a node is
//! copied; and whoever finds the new half through the node above waits for step 5 before it reads the old one. Where a
//! claim or lock is refused, somebody else is splitting: an inner node that is full is passed all the same, for a full leaf
//! one begins again at the root. All steps try and none waits, so the order of latches cannot be wrong.
//!
//! Appends at the right edge, and at the left, leave full nodes behind. Nothing is ever removed or freed, so a number of a
//! node stays good, and a position is a (key, seqno). A scan takes from one leaf what it wants, at one version, and goes on
//! at the leaf's fence: a search more for 64 slots, and no links between leaves that a split would have to mend.
//!
//! Invariants: (key ascending, seqno descending) is strictly ascending along the leaves; only a root may be an empty leaf;
//! see also [`super::node`].
//!
//! Source: 002 §3.6.2; Leis, Haubenschild, Neumann, *Optimistic Lock Coupling*, 2019.

use std::sync::Arc;

use super::Target;
use super::arena::{Arena, ChunkPool, Ref, Tally};
use super::latch::{Latch, Locked, Version};
use super::node::{Inner, Meta, NONE, SLOTS, Slots};
use super::record::Scratch;
use super::table::Table;
use crate::base::sync::{AtomicU64, Ordering, relax};
use crate::base::{Entry, MAX_KEY};

/// Segments of the tables of nodes: a quarter of a thousand million nodes, more than records of 32 GiB need.
const NODE_SEGMENTS: usize = 26;

/// Where the root is.
#[derive(Debug)]
struct Anchor {
    latch: Latch,
    /// Number and level in one word: they change together.
    root: AtomicU64,
}

/// A node's number; level 0 is that of the leaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct NodeNo {
    pub(super) level: u32,
    pub(super) number: u32,
}

/// A node, found.
#[derive(Clone, Copy)]
pub(super) enum Node<'a> {
    Leaf(&'a Slots),
    Inner(&'a Inner),
}

impl<'a> Node<'a> {
    #[inline]
    pub(super) fn slots(self) -> &'a Slots {
        match self {
            Node::Leaf(leaf) => leaf,
            Node::Inner(inner) => &inner.slots,
        }
    }
}

/// A node on the way down, at the version at which it was met.
#[derive(Clone, Copy)]
struct Stop<'a> {
    no: NodeNo,
    node: Node<'a>,
    version: Version,
}

/// What was passed on the way to a node, at which version, and where.
#[derive(Clone, Copy)]
enum Above<'a> {
    Anchor(Version),
    Inner(&'a Inner, Version, usize),
}

/// Records in a row, taken from one leaf at one moment.
#[derive(Debug)]
pub(super) struct Batch {
    refs: [Ref; SLOTS],
    len: usize,
    /// The leaf's fence on the far side; [`NONE`] at the end of the tree.
    pub(super) fence: Ref,
}

impl Batch {
    /// The records, ascending.
    #[inline]
    pub(super) fn refs(&self) -> &[Ref] {
        &self.refs[..self.len]
    }
}

/// See the module's documentation.
#[derive(Debug)]
pub(super) struct Tree {
    pub(super) arena: Arena,
    pub(super) leaves: Table<Box<Slots>, NODE_SEGMENTS>,
    pub(super) inners: Table<Box<Inner>, NODE_SEGMENTS>,
    anchor: Anchor,
}

impl Tree {
    /// Memory that an empty tree takes.
    pub(super) const EMPTY_BYTES: usize = size_of::<Tree>() + size_of::<Slots>();

    pub(super) fn new(pool: Arc<ChunkPool>) -> Tree {
        let (arena, leaves) = (Arena::new(pool), Table::new());
        arena.borrow_beside(Tree::EMPTY_BYTES);
        let root = NodeNo { level: 0, number: leaves.push(Box::new(Slots::new(MAX_KEY, NONE, NONE))) };
        let anchor = Anchor { latch: Latch::new(), root: AtomicU64::new(root.pack()) };
        Tree { arena, leaves, inners: Table::new(), anchor }
    }

    /// Memory in use, in bytes.
    #[inline]
    pub(super) fn bytes(&self) -> usize {
        self.arena.bytes()
    }

    /// What was put in.
    pub(super) fn tally(&self) -> Tally {
        self.arena.tally()
    }

    /// The root at this moment.
    pub(super) fn root(&self) -> NodeNo {
        NodeNo::unpack(self.anchor.root.load(Ordering::Acquire))
    }

    /// The node of a number.
    #[inline]
    pub(super) fn node(&self, no: NodeNo) -> Node<'_> {
        match no.level {
            0 => Node::Leaf(self.leaves.get(no.number)),
            _ => Node::Inner(self.inners.get(no.number)),
        }
    }

    /// Adds a message; its (key, seqno) must be new. The generation of its leaf, unless a newer one of its key was there.
    pub(super) fn insert(&self, entry: &Entry<'_>) -> Option<u64> {
        let record = self.arena.push(entry);
        let target = Target { key: entry.key, seqno: entry.seqno };
        let mut turn = 0;
        loop {
            if let Some(generation) = self.try_insert(target, record) {
                return generation;
            }
            relax(turn);
            turn += 1;
        }
    }

    /// One descent of an insertion; `None`: once more.
    fn try_insert(&self, target: Target<'_>, record: Ref) -> Option<Option<u64>> {
        let (leaf, version) = self.descend_for_insert(target)?;
        let meta = leaf.meta();
        if meta.len == SLOTS {
            return None;
        }
        let at = leaf.rank(&self.arena, meta, target, false);
        let taken = leaf.holds(&self.arena, meta, at, target);
        let late = leaf.follows_newer(&self.arena, meta, at, target);
        let locked = leaf.latch.lock(version)?;
        // Only now it is sure that all of this belonged together.
        if taken {
            drop(locked);
            panic!("seqno {} was given out twice for a key", target.seqno);
        }
        leaf.insert(&self.arena, at, record);
        let generation = leaf.next_generation();
        drop(locked);
        Some((!late).then_some(generation))
    }

    /// The root, and the version of the anchor.
    #[inline]
    fn start(&self) -> Option<(Stop<'_>, Version)> {
        let anchor = self.anchor.latch.read();
        let no = self.root();
        let node = self.node(no);
        let version = node.slots().latch.read();
        self.anchor.latch.is_still(anchor).then_some((Stop { no, node, version }, anchor))
    }

    /// The leaf for `target`: full nodes on the way are split.
    fn descend_for_insert(&self, target: Target<'_>) -> Option<(&Slots, Version)> {
        let (mut stop, anchor) = self.start()?;
        let mut above = Above::Anchor(anchor);
        loop {
            let slots = stop.node.slots();
            let meta = slots.meta();
            if meta.len == SLOTS && self.split(above, stop, target).is_some() {
                return None;
            }
            let inner = match stop.node {
                Node::Leaf(leaf) => return Some((leaf, stop.version)),
                Node::Inner(inner) => inner,
            };
            let rank = slots.rank(&self.arena, meta, target, true);
            above = Above::Inner(inner, stop.version, rank);
            stop = self.enter(inner, stop, rank)?;
        }
    }

    /// The child of `inner`, which is `stop`, right of so many slots; `None` if it may be the wrong one.
    #[inline]
    fn enter<'a>(&'a self, inner: &Inner, stop: Stop<'_>, rank: usize) -> Option<Stop<'a>> {
        let no = NodeNo { level: stop.no.level - 1, number: inner.child(rank) };
        let node = self.node(no);
        let version = node.slots().latch.read();
        inner.slots.latch.is_still(stop.version).then_some(Stop { no, node, version })
    }

    /// Splits the full node `stop`, by the steps of the module's documentation; `None` if somebody was in the way.
    #[cold]
    fn split(&self, above: Above<'_>, stop: Stop<'_>, target: Target<'_>) -> Option<()> {
        let slots = stop.node.slots();
        let claimed = slots.latch.claim(stop.version)?;
        let meta = slots.meta();
        let at = self.place_of_split(slots, meta, target);
        let separator = slots.record(at);
        let half = Half::build(&self.arena, stop.node, at, separator);
        let above = self.lock_above(above)?;
        let right = half.push(self);
        let locked = claimed.lock();
        match above {
            Over::Anchor(held) => {
                let root = Inner::above(stop.no.number, meta.prefix);
                root.insert(&self.arena, 0, separator, right);
                self.arena.charge_beside(size_of::<Inner>());
                let root = NodeNo { level: stop.no.level + 1, number: self.inners.push(Box::new(root)) };
                self.anchor.root.store(root.pack(), Ordering::Release);
                drop(held);
            }
            Over::Inner(inner, rank, held) => {
                inner.insert(&self.arena, rank, separator, right);
                drop(held);
            }
        }
        slots.truncate(&self.arena, at, separator);
        drop(locked);
        Some(())
    }

    /// The slot that becomes the separator.
    fn place_of_split(&self, slots: &Slots, meta: Meta, target: Target<'_>) -> usize {
        let rank = slots.rank(&self.arena, meta, target, true);
        match () {
            () if slots.high() == NONE && rank == meta.len => meta.len - 2,
            () if slots.low() == NONE && rank == 0 => 1,
            () => meta.len / 2,
        }
    }

    /// Locks what is above a full node, if it has room and stands as it was.
    fn lock_above<'a>(&'a self, above: Above<'a>) -> Option<Over<'a>> {
        match above {
            Above::Anchor(version) => Some(Over::Anchor(self.anchor.latch.lock(version)?)),
            // It was passed full, because somebody else was splitting it.
            Above::Inner(inner, ..) if inner.slots.meta().len == SLOTS => None,
            Above::Inner(inner, version, rank) => Some(Over::Inner(inner, rank, inner.slots.latch.lock(version)?)),
        }
    }

    /// Goes down to a leaf; `rank` chooses between a node's children. Returns what `take` takes from the leaf, once it is
    /// sure that it was the right one and stood still.
    #[inline]
    fn visit<R>(&self, rank: impl Fn(&Slots, Meta) -> usize, take: impl Fn(&Slots, Meta) -> R) -> R {
        let descend = || {
            let (mut stop, _) = self.start()?;
            loop {
                match stop.node {
                    Node::Inner(inner) => {
                        let rank = rank(&inner.slots, inner.slots.meta());
                        stop = self.enter(inner, stop, rank)?;
                    }
                    Node::Leaf(leaf) => {
                        let taken = take(leaf, leaf.meta());
                        return leaf.latch.is_still(stop.version).then_some(taken);
                    }
                }
            }
        };
        let mut turn = 0;
        loop {
            if let Some(taken) = descend() {
                return taken;
            }
            relax(turn);
            turn += 1;
        }
    }

    /// The first record that is not before `target`; [`NONE`] if there is none.
    #[inline]
    pub(super) fn next(&self, target: Target<'_>) -> Ref {
        let child = |slots: &Slots, meta| slots.rank(&self.arena, meta, target, true);
        self.visit(child, |leaf, meta| {
            let at = leaf.rank(&self.arena, meta, target, false);
            // The fence is the first record of the next leaf.
            if at < meta.len { leaf.record(at) } else { leaf.high() }
        })
    }

    /// The records from `target` on, or after it, as far as they are in one leaf; then the upper fence.
    pub(super) fn ahead(&self, target: Target<'_>, after: bool) -> Batch {
        let child = |slots: &Slots, meta| slots.rank(&self.arena, meta, target, true);
        self.visit(child, |leaf, meta| {
            Batch::copy(leaf, leaf.rank(&self.arena, meta, target, after), meta.len, leaf.high())
        })
    }

    /// The records before `target`, or before the end, as far as they are in one leaf; then the lower fence.
    pub(super) fn behind(&self, target: Option<Target<'_>>) -> Batch {
        // Where a separator is the target itself, what is before it is left of it.
        let rank = |slots: &Slots, meta: Meta| target.map_or(meta.len, |to| slots.rank(&self.arena, meta, to, false));
        self.visit(rank, |leaf, meta| Batch::copy(leaf, 0, rank(leaf, meta), leaf.low()))
    }

    /// All records of the leaf on the far side of a fence. It ends there, however often it was split: no slot is looked for.
    pub(super) fn beyond(&self, fence: Ref, reverse: bool) -> Batch {
        let mut place = Scratch::new();
        let target = self.arena.record(fence).place(&mut place);
        self.visit(
            |slots, meta| slots.rank(&self.arena, meta, target, !reverse),
            |leaf, meta| Batch::copy(leaf, 0, meta.len, if reverse { leaf.low() } else { leaf.high() }),
        )
    }
}

impl Batch {
    #[inline]
    fn copy(leaf: &Slots, from: usize, to: usize, fence: Ref) -> Batch {
        let mut batch = Batch { refs: [NONE; SLOTS], len: to.saturating_sub(from), fence };
        (from..to).zip(&mut batch.refs).for_each(|(slot, at)| *at = leaf.record(slot));
        batch
    }
}

impl NodeNo {
    fn pack(self) -> u64 {
        u64::from(self.level) << 32 | u64::from(self.number)
    }

    #[inline]
    fn unpack(word: u64) -> NodeNo {
        NodeNo { level: (word >> 32) as u32, number: word as u32 }
    }
}

/// What is above a node that is split, locked.
enum Over<'a> {
    Anchor(Locked<'a>),
    Inner(&'a Inner, usize, Locked<'a>),
}

/// The right half of a node, which nobody knows yet.
enum Half {
    Leaf(Box<Slots>),
    Inner(Box<Inner>),
}

impl Half {
    fn build(arena: &Arena, node: Node<'_>, at: usize, separator: Ref) -> Half {
        match node {
            Node::Leaf(leaf) => Half::Leaf(Box::new(leaf.tail(arena, at, separator))),
            // The separator moves up.
            Node::Inner(inner) => Half::Inner(Box::new(inner.tail(arena, at + 1, separator))),
        }
    }

    /// Gives it a number.
    fn push(self, tree: &Tree) -> u32 {
        match self {
            Half::Leaf(leaf) => {
                tree.arena.charge_beside(size_of::<Slots>());
                tree.leaves.push(leaf)
            }
            Half::Inner(inner) => {
                tree.arena.charge_beside(size_of::<Inner>());
                tree.inners.push(inner)
            }
        }
    }
}
