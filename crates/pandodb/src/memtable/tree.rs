//! The B+-tree over the arena: 64 slots a node, compared by *heads*.
//!
//! ```text
//!   inner   prefix "user00"   heads  | 41…  | 57…  | 8a… |        the 8 key bytes after the node's prefix, big-endian
//!                             refs   |  ·   |  ·   |  ·  |        records whose (key, seqno) separate the children
//!                          children  ·      ·      ·     ·
//!   leaf    prefix "user0057" heads  | 02…  | 02…  | 91… |  ⇄ next leaf
//!                             refs   |  ·   |  ·   |  ·  |
//! ```
//!
//! A search touches a record only where heads are equal, so that it costs a cache line or two a node and not a miss a
//! comparison. That needs heads that differ, hence the bytes *after* what the node's keys have in common:
//!
//! * a node between two fences (the separators left and right of it, in whichever ancestor) takes what the fences have in
//!   common, which every key between them shares too;
//! * a node at an edge of the tree lacks a fence and takes [`Tree::shared`], what all keys have in common. When a key
//!   comes that shares less, only the two edges are computed anew.
//!
//! Insertion splits full nodes on its way down, so that a parent always has room (002 §3.6.2; the concurrent form of it,
//! with latches by node, can come later without another layout). Appends at the right edge, and at the left, leave full
//! nodes behind. Nothing is ever removed.
//!
//! Invariants: (key ascending, seqno descending) is strictly ascending along the leaves; every head is the one of its
//! record and the node's prefix; a separator is the first record right of it; only a root may be an empty leaf.

use std::cmp::Ordering;
use std::sync::Arc;

use super::arena::{Arena, ChunkPool, Ref};
use crate::base::{Entry, Seqno};

/// Slots of a node.
pub(super) const SLOTS: usize = 64;
/// No leaf.
pub(super) const NONE: u32 = u32::MAX;

/// What is searched for: a key and a seqno, in the order of messages.
#[derive(Clone, Copy, Debug)]
pub(super) struct Target<'a> {
    pub(super) key: &'a [u8],
    pub(super) seqno: Seqno,
}

/// The sorted slots of a node.
#[derive(Debug)]
pub(super) struct Slots {
    pub(super) heads: [u64; SLOTS],
    pub(super) refs: [Ref; SLOTS],
    pub(super) len: usize,
    /// How many bytes all keys between the node's fences have in common.
    pub(super) prefix: usize,
}

#[derive(Debug)]
pub(super) struct Leaf {
    pub(super) slots: Slots,
    pub(super) next: u32,
    pub(super) previous: u32,
}

#[derive(Debug)]
pub(super) struct Inner {
    pub(super) slots: Slots,
    pub(super) children: [u32; SLOTS + 1],
}

/// The first 8 bytes of `key` after `prefix`, padded with zeros. Ascending with the key.
#[inline]
pub(super) fn head(key: &[u8], prefix: usize) -> u64 {
    let rest = &key[prefix..];
    match rest.first_chunk::<8>() {
        Some(bytes) => u64::from_be_bytes(*bytes),
        None => {
            let mut bytes = [0; 8];
            bytes[..rest.len()].copy_from_slice(rest);
            u64::from_be_bytes(bytes)
        }
    }
}

/// How many bytes `a` and `b` have in common.
pub(super) fn common(a: &[u8], b: &[u8]) -> usize {
    a.iter().zip(b).take_while(|(x, y)| x == y).count()
}

impl Slots {
    fn new(prefix: usize) -> Slots {
        Slots { heads: [0; SLOTS], refs: [0; SLOTS], len: 0, prefix }
    }

    /// How many slots are before `target`; with `or_at`, also one that is equal.
    #[inline]
    fn rank(&self, arena: &Arena, target: Target<'_>, or_at: bool) -> usize {
        let wanted = head(target.key, self.prefix);
        let heads = &self.heads[..self.len];
        let first = heads.partition_point(|&head| head < wanted);
        if heads.get(first) != Some(&wanted) {
            return first;
        }
        let ties = heads[first..].partition_point(|&head| head == wanted);
        first
            + self.refs[first..first + ties].partition_point(|&at| match order(arena, at, target) {
                Ordering::Less => true,
                Ordering::Equal => or_at,
                Ordering::Greater => false,
            })
    }

    fn insert(&mut self, at: usize, head: u64, record: Ref) {
        debug_assert!(self.len < SLOTS && at <= self.len);
        self.heads.copy_within(at..self.len, at + 1);
        self.refs.copy_within(at..self.len, at + 1);
        self.heads[at] = head;
        self.refs[at] = record;
        self.len += 1;
    }

    /// Moves the slots from `at` on to a new node.
    fn split_off(&mut self, at: usize) -> Slots {
        let mut right = Slots::new(self.prefix);
        right.len = self.len - at;
        right.heads[..right.len].copy_from_slice(&self.heads[at..self.len]);
        right.refs[..right.len].copy_from_slice(&self.refs[at..self.len]);
        self.len = at;
        right
    }

    /// Changes the prefix, and the heads with it.
    fn set_prefix(&mut self, arena: &Arena, prefix: usize) {
        if self.prefix == prefix {
            return;
        }
        self.prefix = prefix;
        for (slot, &at) in self.heads.iter_mut().zip(&self.refs[..self.len]) {
            *slot = head(arena.key(at).0, prefix);
        }
    }
}

/// The order of the record at `at` and `target`.
#[inline]
fn order(arena: &Arena, at: Ref, target: Target<'_>) -> Ordering {
    let (key, seqno) = arena.key(at);
    key.cmp(target.key).then_with(|| target.seqno.cmp(&seqno))
}

/// A gap between two neighbours of the order: before slot `slot` of leaf `leaf`.
#[derive(Clone, Copy, Debug)]
pub(super) struct Gap {
    leaf: u32,
    slot: usize,
}

/// A node on the way down, with the separators on both sides of it.
#[derive(Clone, Copy)]
struct Stop {
    node: u32,
    /// 0: a leaf.
    level: u32,
    low: Option<Ref>,
    high: Option<Ref>,
}

/// The tree with its arena.
#[derive(Debug)]
#[expect(clippy::vec_box, reason = "growing must not copy megabytes of nodes under the lock")]
pub(super) struct Tree {
    pub(super) arena: Arena,
    pub(super) leaves: Vec<Box<Leaf>>,
    pub(super) inners: Vec<Box<Inner>>,
    pub(super) root: u32,
    /// Inner nodes on the way to a leaf.
    pub(super) height: u32,
    pub(super) len: usize,
    /// How many bytes all keys have in common, and a record that has them.
    pub(super) shared: usize,
    pub(super) sample: Ref,
}

impl Tree {
    pub(super) fn new(pool: Arc<ChunkPool>) -> Tree {
        let root = Box::new(Leaf { slots: Slots::new(0), next: NONE, previous: NONE });
        Tree {
            arena: Arena::new(pool),
            leaves: vec![root],
            inners: Vec::new(),
            root: 0,
            height: 0,
            len: 0,
            shared: 0,
            sample: 0,
        }
    }

    /// Memory in use, in bytes.
    pub(super) fn bytes(&self) -> usize {
        self.arena.bytes() + self.leaves.len() * size_of::<Leaf>() + self.inners.len() * size_of::<Inner>()
    }

    /// Adds a message; its (key, seqno) must be new.
    pub(super) fn insert(&mut self, entry: &Entry<'_>) {
        let record = self.arena.push(entry);
        self.share(entry.key, record);
        let target = Target { key: entry.key, seqno: entry.seqno };
        let leaf = self.descend_for_insert(target);
        let slots = &mut self.leaves[leaf as usize].slots;
        let at = slots.rank(&self.arena, target, false);
        let taken = at < slots.len && order(&self.arena, slots.refs[at], target).is_eq();
        assert!(!taken, "seqno {} was given out twice for a key", entry.seqno);
        slots.insert(at, head(entry.key, slots.prefix), record);
        self.len += 1;
    }

    /// Lets `key` into what all keys have in common.
    fn share(&mut self, key: &[u8], record: Ref) {
        let shared = if self.len == 0 {
            self.sample = record;
            key.len()
        } else {
            common(&self.arena.key(self.sample).0[..self.shared], key)
        };
        if shared == self.shared {
            return;
        }
        self.shared = shared;
        for right in [false, true] {
            let mut node = self.root;
            for _ in 0..self.height {
                let inner = &mut self.inners[node as usize];
                inner.slots.set_prefix(&self.arena, shared);
                node = inner.children[if right { inner.slots.len } else { 0 }];
            }
            self.leaves[node as usize].slots.set_prefix(&self.arena, shared);
        }
    }

    /// The leaf for `target`, with room for it: full nodes on the way are split.
    fn descend_for_insert(&mut self, target: Target<'_>) -> u32 {
        let mut stop = Stop { node: self.root, level: self.height, low: None, high: None };
        if self.slots(stop).len == SLOTS {
            let mut root = Inner { slots: Slots::new(self.shared), children: [0; SLOTS + 1] };
            root.children[0] = self.root;
            self.inners.push(Box::new(root));
            self.root = (self.inners.len() - 1) as u32;
            self.height += 1;
            stop = Stop { node: self.root, level: self.height, ..stop };
        }
        while stop.level > 0 {
            let rank = self.inners[stop.node as usize].slots.rank(&self.arena, target, true);
            let child = self.child(stop, rank);
            stop = if self.slots(child).len == SLOTS { self.split_child(stop, rank, target) } else { child };
        }
        stop.node
    }

    fn slots(&self, stop: Stop) -> &Slots {
        match stop.level {
            0 => &self.leaves[stop.node as usize].slots,
            _ => &self.inners[stop.node as usize].slots,
        }
    }

    #[inline]
    fn child(&self, parent: Stop, rank: usize) -> Stop {
        let inner = &self.inners[parent.node as usize];
        let refs = &inner.slots.refs[..inner.slots.len];
        Stop {
            node: inner.children[rank],
            level: parent.level - 1,
            low: rank.checked_sub(1).map(|left| refs[left]).or(parent.low),
            high: refs.get(rank).copied().or(parent.high),
        }
    }

    /// Splits the full child number `rank` of a parent with room; returns the half for `target`.
    fn split_child(&mut self, parent: Stop, rank: usize, target: Target<'_>) -> Stop {
        let child = self.child(parent, rank);
        let slots = self.slots(child);
        let place = slots.rank(&self.arena, target, true);
        let at = match () {
            () if child.high.is_none() && place == slots.len => slots.len - 2,
            () if child.low.is_none() && place == 0 => 1,
            () => slots.len / 2,
        };
        let (separator, right) = match child.level {
            0 => self.split_leaf(child, at),
            _ => self.split_inner(child, at),
        };
        let inner = &mut self.inners[parent.node as usize];
        inner.children.copy_within(rank + 1..inner.slots.len + 1, rank + 2);
        inner.children[rank + 1] = right;
        inner.slots.insert(rank, head(self.arena.key(separator).0, inner.slots.prefix), separator);
        self.child(parent, rank + usize::from(order(&self.arena, separator, target).is_le()))
    }

    /// Moves the slots from `at` on to a new leaf; returns the separator and the new leaf.
    fn split_leaf(&mut self, child: Stop, at: usize) -> (Ref, u32) {
        let new = self.leaves.len() as u32;
        let leaf = &mut self.leaves[child.node as usize];
        let slots = leaf.slots.split_off(at);
        let separator = slots.refs[0];
        let right = Leaf { slots, next: leaf.next, previous: child.node };
        leaf.next = new;
        if right.next != NONE {
            self.leaves[right.next as usize].previous = new;
        }
        self.leaves.push(Box::new(right));
        let (left, right) = self.prefixes(child, separator);
        self.leaves[child.node as usize].slots.set_prefix(&self.arena, left);
        self.leaves[new as usize].slots.set_prefix(&self.arena, right);
        (separator, new)
    }

    /// Moves the slots after `at` to a new inner node and slot `at` up; returns that separator and the new node.
    fn split_inner(&mut self, child: Stop, at: usize) -> (Ref, u32) {
        let new = self.inners.len() as u32;
        let inner = &mut self.inners[child.node as usize];
        let slots = inner.slots.split_off(at + 1);
        inner.slots.len = at;
        let separator = inner.slots.refs[at];
        let mut children = [0; SLOTS + 1];
        children[..=slots.len].copy_from_slice(&inner.children[at + 1..at + 2 + slots.len]);
        self.inners.push(Box::new(Inner { slots, children }));
        let (left, right) = self.prefixes(child, separator);
        self.inners[child.node as usize].slots.set_prefix(&self.arena, left);
        self.inners[new as usize].slots.set_prefix(&self.arena, right);
        (separator, new)
    }

    /// The prefixes of the halves of `node`, split at `separator`.
    fn prefixes(&self, node: Stop, separator: Ref) -> (usize, usize) {
        let with = |fence: Option<Ref>| {
            fence.map_or(self.shared, |f| common(self.arena.key(f).0, self.arena.key(separator).0))
        };
        (with(node.low), with(node.high))
    }

    /// The gap before `target`; with `after`, the one after it, should it be there.
    pub(super) fn seek(&self, target: Target<'_>, after: bool) -> Gap {
        if self.len == 0 {
            return self.edge(false);
        }
        // Heads speak of keys that share the prefix only.
        let shared = &self.arena.key(self.sample).0[..self.shared];
        if !target.key.starts_with(shared) {
            return self.edge(target.key > shared);
        }
        let mut node = self.root;
        for _ in 0..self.height {
            let inner = &self.inners[node as usize];
            node = inner.children[inner.slots.rank(&self.arena, target, true)];
        }
        Gap { leaf: node, slot: self.leaves[node as usize].slots.rank(&self.arena, target, after) }
    }

    /// The gap before everything, or after everything.
    pub(super) fn edge(&self, last: bool) -> Gap {
        let mut node = self.root;
        for _ in 0..self.height {
            let inner = &self.inners[node as usize];
            node = inner.children[if last { inner.slots.len } else { 0 }];
        }
        Gap { leaf: node, slot: if last { self.leaves[node as usize].slots.len } else { 0 } }
    }

    /// The message after the gap; the gap moves behind it.
    #[inline]
    pub(super) fn forward(&self, gap: &mut Gap) -> Option<Entry<'_>> {
        let mut leaf = &self.leaves[gap.leaf as usize];
        if gap.slot == leaf.slots.len {
            if leaf.next == NONE {
                return None;
            }
            *gap = Gap { leaf: leaf.next, slot: 0 };
            leaf = &self.leaves[gap.leaf as usize];
            debug_assert!(leaf.slots.len > 0, "only a root may be empty, and it has no neighbours");
        }
        gap.slot += 1;
        Some(self.arena.entry(leaf.slots.refs[gap.slot - 1]))
    }

    /// The message before the gap; the gap moves before it.
    #[inline]
    pub(super) fn backward(&self, gap: &mut Gap) -> Option<Entry<'_>> {
        let mut leaf = &self.leaves[gap.leaf as usize];
        if gap.slot == 0 {
            if leaf.previous == NONE {
                return None;
            }
            leaf = &self.leaves[leaf.previous as usize];
            *gap = Gap { leaf: self.leaves[gap.leaf as usize].previous, slot: leaf.slots.len };
            debug_assert!(leaf.slots.len > 0, "only a root may be empty, and it has no neighbours");
        }
        gap.slot -= 1;
        Some(self.arena.entry(leaf.slots.refs[gap.slot]))
    }
}
