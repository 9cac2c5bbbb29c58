//! The B+-tree over the arena, with concurrent readers and writers. A writer latches one or two nodes for a short time.
//!
//! ```text
//!   anchor ─▶ root          | separator | separator |          a separator is the first record right of it
//!                          ╱            │            ╲
//!                  | · | · | ·        | · | ·        | · | ·    inner nodes, on `height` levels
//!                 ╱    │
//!            leaf      leaf  …   [low fence, high fence)        leaves know their fences, not their neighbours
//! ```
//!
//! *Reading* takes no latch (*optimistic lock coupling*). A reader loads a node's version, loads values from the node,
//! loads the child's version, checks that the node's version is unchanged, and continues with the child. If the node's
//! version has changed, the reader restarts at the root.
//!
//! *Inserting* descends in the same way and finds the slot. The insertion then locks the leaf. Locking fails, and the
//! insertion restarts, if the leaf's version has changed since the search.
//!
//! *Splitting* is preemptive (002 §3.6.2). An insertion that reaches a full node during its descent splits the node
//! before it descends further. So the parent always has room for a separator. Steps of a split:
//!
//! 1. claim the full node; readers may still read it;
//! 2. build the right half, which no other thread can reach yet;
//! 3. lock the parent, if its version is still the version at which the descent passed it, and then lock the full node;
//! 4. insert the separator and the new half into the parent, and unlock the parent;
//! 5. remove the right half from the full node, and unlock the node.
//!
//! This is the shadow splitting of 002, in memory. The parent is locked only while one slot is inserted, not while half
//! a node is copied. A thread that finds the new half through the parent waits for step 5 before it reads the old half.
//! If a claim or lock fails, another thread is changing one of the nodes. In this case, if the full node is an inner
//! node, the insertion descends through it without splitting it. If the full node is a leaf, the insertion restarts at
//! the root. No step waits for a latch, so no order of latches is needed.
//!
//! Splits at the edges are uneven, so that insertions of ascending or descending keys leave full nodes behind. No
//! message or node is removed or freed before the tree is dropped, so the number of a node stays valid. The position of
//! a scan is a (key, seqno). A scan copies references from one leaf, at one version, and continues at the leaf's fence.
//! This costs one more search for each leaf of 64 slots. In return, leaves have no links to each other that a split
//! would have to update.
//!
//! Invariants: the records of all leaves, from left to right, strictly ascend in the order (key ascending, seqno
//! descending); a leaf is empty only if it is the root; see also [`super::node`].
//!
//! Source: 002 §3.6.2; Leis, Haubenschild, Neumann, *Optimistic Lock Coupling*, 2019.

use std::sync::Arc;

use super::arena::{Arena, ChunkPool, Ref, Tally};
use super::latch::{Latch, Locked, Version};
use super::node::{Inner, Meta, NONE, SLOTS, Slots};
use super::record::Scratch;
use super::table::Table;
use super::{Inserted, Target};
use crate::base::sync::{AtomicU64, Ordering, relax};
use crate::base::{Entry, Kind, MAX_KEY, key_hash};

/// The number of segments of a node table. These segments hold 268 million nodes, which is more than 32 GiB of records
/// need.
const NODE_SEGMENTS: usize = 26;

/// A chain of this many operands of one key in one leaf is long, and so is a chain that does not fit into its leaf.
const LONG_CHAIN: usize = SLOTS / 4;
/// One of this many insertions of operands checks whether there is a long chain.
const CHECK_EVERY: u64 = 64;

/// The location of the root.
#[derive(Debug)]
struct Anchor {
    latch: Latch,
    /// The root's number and level, in one word because they change together.
    root: AtomicU64,
}

/// A node's level and number. Leaves have level 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct NodeNo {
    pub(super) level: u32,
    pub(super) number: u32,
}

/// A reference to a node.
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

/// A node on the path of a descent, with the version at which the descent reached it.
#[derive(Clone, Copy)]
struct Stop<'a> {
    no: NodeNo,
    node: Node<'a>,
    version: Version,
}

/// The parent of a node in a descent: its version, and the slot at which the descent left it.
#[derive(Clone, Copy)]
enum Above<'a> {
    Anchor(Version),
    Inner(&'a Inner, Version, usize),
}

/// Consecutive records, copied from one leaf at one version.
#[derive(Debug)]
pub(super) struct Batch {
    refs: [Ref; SLOTS],
    len: usize,
    /// The leaf's fence in the direction of the scan; [`NONE`] at the end of the tree.
    pub(super) fence: Ref,
}

impl Batch {
    /// The records, in ascending order.
    #[inline]
    pub(super) fn refs(&self) -> &[Ref] {
        &self.refs[..self.len]
    }
}

/// The tree of a memtable; see the module documentation.
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

    /// The tally of all inserted messages.
    pub(super) fn tally(&self) -> Tally {
        self.arena.tally()
    }

    /// The current root.
    pub(super) fn root(&self) -> NodeNo {
        NodeNo::unpack(self.anchor.root.load(Ordering::Acquire))
    }

    /// The node with a number.
    #[inline]
    pub(super) fn node(&self, no: NodeNo) -> Node<'_> {
        match no.level {
            0 => Node::Leaf(self.leaves.get(no.number)),
            _ => Node::Inner(self.inners.get(no.number)),
        }
    }

    /// Adds a message; its (key, seqno) must be new. See [`Memtable::insert`](super::Memtable::insert).
    pub(super) fn insert(&self, entry: &Entry<'_>) -> Inserted {
        let record = self.arena.push(entry);
        let target = Target { key: entry.key, seqno: entry.seqno };
        let mut turn = 0;
        loop {
            if let Some(inserted) = self.try_insert(target, entry.kind, record) {
                return inserted;
            }
            relax(turn);
            turn += 1;
        }
    }

    /// One descent of an insertion; `None` means retry.
    fn try_insert(&self, target: Target<'_>, kind: Kind, record: Ref) -> Option<Inserted> {
        let (leaf, version) = self.descend_for_insert(target)?;
        let meta = leaf.meta();
        if meta.len == SLOTS {
            return None;
        }
        let at = leaf.rank(&self.arena, meta, target, false);
        let taken = leaf.holds(&self.arena, meta, at, target);
        let late = leaf.follows_newer(&self.arena, meta, at, target);
        let locked = leaf.latch.lock(version)?;
        // The lock succeeded, so the values that were loaded before the lock are consistent.
        if taken {
            drop(locked);
            panic!("seqno {} was given out twice for a key", target.seqno);
        }
        leaf.insert(&self.arena, at, record);
        let generation = leaf.next_generation();
        // The checked insertions are chosen at random, because writers often write some keys in turn.
        let is_checked = kind == Kind::Merge && key_hash(&target.seqno.0.to_le_bytes()).is_multiple_of(CHECK_EVERY);
        let is_long = is_checked && leaf.continues(&self.arena, at + LONG_CHAIN - 1, target);
        drop(locked);
        Some(Inserted { generation: (!late).then_some(generation), is_long })
    }

    /// The root, and the version of the anchor; `None` means retry.
    #[inline]
    fn start(&self) -> Option<(Stop<'_>, Version)> {
        let anchor = self.anchor.latch.read();
        let no = self.root();
        let node = self.node(no);
        let version = node.slots().latch.read();
        self.anchor.latch.is_still(anchor).then_some((Stop { no, node, version }, anchor))
    }

    /// Finds the leaf for `target` and splits full nodes on the way; `None` means retry.
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

    /// The child right of the first `rank` slots of `inner`, which is the node of `stop`. `None` if the node has
    /// changed, because the child may be the wrong one in this case.
    #[inline]
    fn enter<'a>(&'a self, inner: &Inner, stop: Stop<'_>, rank: usize) -> Option<Stop<'a>> {
        debug_assert!(stop.no.level > 0, "a leaf has no children");
        let no = NodeNo { level: stop.no.level - 1, number: inner.child(rank) };
        let node = self.node(no);
        let version = node.slots().latch.read();
        inner.slots.latch.is_still(stop.version).then_some(Stop { no, node, version })
    }

    /// Splits the full node `stop`, by the steps of the module documentation; `None` if another thread has changed or
    /// latched a node.
    #[cold]
    fn split(&self, above: Above<'_>, stop: Stop<'_>, target: Target<'_>) -> Option<()> {
        let slots = stop.node.slots();
        let claimed = slots.latch.claim(stop.version)?;
        let meta = slots.meta();
        // The claim succeeded, so the node has not changed since the caller saw that it was full.
        assert_eq!(meta.len, SLOTS, "a full node is split");
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

    /// Returns the slot that becomes the separator.
    /// REQUIRES: the caller has claimed the latch of `slots`, so that `meta` stays valid.
    fn place_of_split(&self, slots: &Slots, meta: Meta, target: Target<'_>) -> usize {
        let rank = slots.rank(&self.arena, meta, target, true);
        match () {
            () if slots.high() == NONE && rank == meta.len => meta.len - 2,
            () if slots.low() == NONE && rank == 0 => 1,
            () => meta.len / 2,
        }
    }

    /// Locks the parent of a full node, if the parent has room and is unchanged.
    fn lock_above<'a>(&'a self, above: Above<'a>) -> Option<Over<'a>> {
        match above {
            Above::Anchor(version) => Some(Over::Anchor(self.anchor.latch.lock(version)?)),
            // The parent is full. The descent passed it without splitting it, because another thread was splitting it.
            Above::Inner(inner, ..) if inner.slots.meta().len == SLOTS => None,
            Above::Inner(inner, version, rank) => Some(Over::Inner(inner, rank, inner.slots.latch.lock(version)?)),
        }
    }

    /// Descends to a leaf, choosing among the children of each node by `rank`. Returns the result of `take` for the
    /// leaf, after checking that the leaf was the right one and did not change during `take`.
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

    /// Returns the first record that is not before `target`; [`NONE`] if there is no such record.
    #[inline]
    pub(super) fn next(&self, target: Target<'_>) -> Ref {
        let child = |slots: &Slots, meta| slots.rank(&self.arena, meta, target, true);
        self.visit(child, |leaf, meta| {
            let at = leaf.rank(&self.arena, meta, target, false);
            // The fence is the first record of the next leaf.
            if at < meta.len { leaf.record(at) } else { leaf.high() }
        })
    }

    /// Returns the records of one leaf from `target` on, and the leaf's upper fence. If `after` is set, a record equal
    /// to `target` is left out.
    pub(super) fn ahead(&self, target: Target<'_>, after: bool) -> Batch {
        let child = |slots: &Slots, meta| slots.rank(&self.arena, meta, target, true);
        self.visit(child, |leaf, meta| {
            Batch::copy(leaf, leaf.rank(&self.arena, meta, target, after), meta.len, leaf.high())
        })
    }

    /// Returns the records of one leaf before `target`, or before the end of the tree, and the leaf's lower fence.
    pub(super) fn behind(&self, target: Option<Target<'_>>) -> Batch {
        // If a separator equals the target, the records before the target are left of the separator.
        let rank = |slots: &Slots, meta: Meta| target.map_or(meta.len, |to| slots.rank(&self.arena, meta, to, false));
        self.visit(rank, |leaf, meta| Batch::copy(leaf, 0, rank(leaf, meta), leaf.low()))
    }

    /// Returns all records of the leaf on the other side of a fence. Whatever splits occur, one leaf ends at this fence
    /// and the next leaf begins at it, so no slot needs to be searched.
    pub(super) fn beyond(&self, fence: Ref, reverse: bool) -> Batch {
        debug_assert_ne!(fence, NONE, "no leaf lies beyond the edge of the tree");
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
        let word = u64::from(self.level) << 32 | u64::from(self.number);
        debug_assert_eq!(NodeNo::unpack(word), self, "readers find the node");
        word
    }

    #[inline]
    fn unpack(word: u64) -> NodeNo {
        NodeNo { level: (word >> 32) as u32, number: word as u32 }
    }
}

/// The locked parent of a node that is being split.
enum Over<'a> {
    Anchor(Locked<'a>),
    Inner(&'a Inner, usize, Locked<'a>),
}

/// The new right half of a node that is being split. No other thread can reach it yet.
enum Half {
    Leaf(Box<Slots>),
    Inner(Box<Inner>),
}

impl Half {
    fn build(arena: &Arena, node: Node<'_>, at: usize, separator: Ref) -> Half {
        match node {
            Node::Leaf(leaf) => Half::Leaf(Box::new(leaf.tail(arena, at, separator))),
            // The separator moves to the parent.
            Node::Inner(inner) => Half::Inner(Box::new(inner.tail(arena, at + 1, separator))),
        }
    }

    /// Adds the new node to the tree's table and returns the node's number.
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
