//! A node of the memtable's tree: sorted slots, searched by *heads*.
//!
//! ```text
//!   latch | len, prefix, edge | fences | heads  | 41… | 57… | 8a… |      the 8 key bytes after the prefix, big-endian
//!                                        refs   |  ·  |  ·  |  ·  |      the records
//!                              children  ·      ·     ·     ·            of an inner node: one more than slots
//! ```
//!
//! A search reads a record only if the record's head equals the head of the target. So the search touches one or two
//! cache lines in each node, instead of one for each comparison. This works well only if the heads of different keys
//! usually differ. So a head consists of the bytes that follow the *prefix*, the common bytes of the node's keys:
//!
//! * A node between two *fences* (the nearest separators left and right of it, in any ancestor) has the common leading
//!   bytes of its fences as its prefix. Every key between the fences shares this prefix.
//! * A node at an *edge* of the tree lacks a fence. The prefix of such a node consists of the common bytes of its
//!   present keys. In such a node, a search also compares the first bytes of the target with the prefix, and the
//!   insertion of a key that shares fewer bytes shortens the prefix.
//!
//! All fields are atomics under the node's [`Latch`]. A method that stores to fields requires that the latch is locked,
//! or that no other thread knows the node. A method that only loads fields may be called at any time, but its result is
//! valid only if a later check shows that the latch's version is unchanged. Before this check, the loaded numbers may
//! be inconsistent with each other. The methods of this module tolerate inconsistent numbers: they neither panic nor
//! loop forever. A loaded reference always refers to an existing record, because a slot is stored before the `len` that
//! includes it, and a record is stored before its slot.
//!
//! Invariants, while the latch is free: each head consists of the bytes of its record's key after the prefix; slots
//! ascend; an upper fence is above all slots; the lower fence never changes; the upper fence changes only when this
//! node is split.

use std::cmp::Ordering as Order;

use super::Target;
use super::arena::{Arena, Ref};
use super::latch::Latch;
use super::record::head;
use crate::base::sync::{AtomicU32, AtomicU64, EXPLORED, Ordering};
use crate::base::{MAX_KEY, seeded};

/// The number of slots of a node.
pub(super) const SLOTS: usize = if EXPLORED { 4 } else { 64 };
/// The value of a fence's reference that means "no fence".
pub(super) const NONE: Ref = Ref::MAX;

const _: () = assert!(SLOTS >= 4, "both halves of a split inner node have slots");
const _: () = assert!(SLOTS <= u16::MAX as usize, "the length has 16 bits");
const _: () = assert!(MAX_KEY <= u16::MAX as usize, "the prefix has 16 bits");

/// Node header, packed into one u64 so that it is read and written atomically.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Meta {
    pub(super) len: usize,
    /// The length of the prefix. All keys share this many leading bytes, or more.
    pub(super) prefix: usize,
    /// Whether the node lacks a fence.
    pub(super) edge: bool,
}

impl Meta {
    #[inline]
    fn pack(self) -> u64 {
        debug_assert!(self.len <= SLOTS && self.prefix <= MAX_KEY);
        self.len as u64 | (self.prefix as u64) << 16 | u64::from(self.edge) << 32
    }

    #[inline]
    fn unpack(word: u64) -> Meta {
        Meta { len: usize::from(word as u16), prefix: usize::from((word >> 16) as u16), edge: word >> 32 != 0 }
    }
}

/// The sorted slots of a node. A leaf consists of slots only.
#[derive(Debug)]
#[repr(C, align(64))]
pub(super) struct Slots {
    pub(super) latch: Latch,
    meta: AtomicU64,
    /// In a leaf: the number of insertions into it and into the leaves from which it was split. This number is stored
    /// under the latch.
    generation: AtomicU64,
    low: AtomicU32,
    high: AtomicU32,
    heads: [AtomicU64; SLOTS],
    refs: [AtomicU32; SLOTS],
}

/// An inner node.
#[derive(Debug)]
#[repr(C)]
pub(super) struct Inner {
    pub(super) slots: Slots,
    children: [AtomicU32; SLOTS + 1],
}

/// Moves each value at or above index `at` to the next higher index, and stores `value` at `at`.
macro_rules! shift_in {
    ($cells:expr, $at:expr, $len:expr, $value:expr) => {{
        let cells = &$cells[$at..=$len];
        for pair in cells.windows(2).rev() {
            pair[1].store(pair[0].load(Ordering::Relaxed), Ordering::Release);
        }
        cells[0].store($value, Ordering::Release);
    }};
}

impl Slots {
    /// Creates an empty node between two fences. For a node at an edge, `prefix` must be a valid length of the prefix.
    pub(super) fn new(prefix: usize, low: Ref, high: Ref) -> Slots {
        debug_assert!(low != high || low == NONE, "no key lies between equal fences");
        let meta = Meta { len: 0, prefix, edge: low == NONE || high == NONE };
        Slots {
            latch: Latch::new(),
            meta: AtomicU64::new(meta.pack()),
            generation: AtomicU64::new(0),
            low: AtomicU32::new(low),
            high: AtomicU32::new(high),
            heads: std::array::from_fn(|_| AtomicU64::new(0)),
            refs: std::array::from_fn(|_| AtomicU32::new(0)),
        }
    }

    #[inline]
    pub(super) fn meta(&self) -> Meta {
        Meta::unpack(self.meta.load(Ordering::Acquire))
    }

    /// REQUIRES: the caller holds the latch locked, or no other thread knows the node.
    fn set_meta(&self, meta: Meta) {
        self.meta.store(meta.pack(), Ordering::Release);
    }

    /// The record in a slot.
    #[inline]
    pub(super) fn record(&self, slot: usize) -> Ref {
        self.refs[slot].load(Ordering::Acquire)
    }

    /// Whether the record in a slot has the key and the seqno of `target`. If the heads differ, the answer is no, and
    /// the record is not read from memory. Reading the record would take as long as the rest of an insertion.
    #[inline]
    pub(super) fn holds(&self, arena: &Arena, meta: Meta, slot: usize, target: Target<'_>) -> bool {
        slot < meta.len
            && self.heads[slot].load(Ordering::Acquire) == head(target.key, meta.prefix)
            && arena.record(self.record(slot)).order(target).is_eq()
    }

    /// Whether the slot before `slot` holds a newer message of the key of `target`. `slot` is the position of `target`.
    /// As in [`Slots::holds`], the record is read only if the heads are equal.
    #[inline]
    pub(super) fn follows_newer(&self, arena: &Arena, meta: Meta, slot: usize, target: Target<'_>) -> bool {
        // This check suffices even if newer messages are in the previous leaf. In this case, this leaf's lower fence is
        // a message of the same key, and is in slot 0.
        slot > 0
            && self.heads[slot - 1].load(Ordering::Acquire) == head(target.key, meta.prefix)
            && arena.record(self.record(slot - 1)).is_of(target.key)
    }

    /// Whether `slot` holds a message of the key of `target`, or would hold one if the leaf were larger: then the upper
    /// fence is a message of the key. Versions are sorted from newest to oldest, so a chain continues to the right.
    /// REQUIRES: the caller holds the latch locked.
    pub(super) fn continues(&self, arena: &Arena, slot: usize, target: Target<'_>) -> bool {
        let at = if slot < self.meta().len { self.record(slot) } else { self.high() };
        at != NONE && arena.record(at).is_of(target.key)
    }

    pub(super) fn low(&self) -> Ref {
        self.low.load(Ordering::Acquire)
    }

    pub(super) fn high(&self) -> Ref {
        self.high.load(Ordering::Acquire)
    }

    /// The number of slots before `target`. If `or_at` is set, a slot equal to `target` is also counted.
    #[inline]
    pub(super) fn rank(&self, arena: &Arena, meta: Meta, target: Target<'_>, or_at: bool) -> usize {
        let Meta { len, prefix, edge } = meta;
        if edge && prefix > 0 && len > 0 {
            // Heads are comparable only for keys that share the prefix.
            let first = arena.record(self.record(0));
            if first.common_with(target.key) < prefix {
                return if first.order(target).is_lt() { len } else { 0 };
            }
        }
        let wanted = head(target.key, prefix);
        let heads = &self.heads[..len];
        let first = heads.partition_point(|head| head.load(Ordering::Acquire) < wanted);
        if heads.get(first).is_none_or(|head| head.load(Ordering::Acquire) != wanted) {
            return first;
        }
        let before = |at: &AtomicU32| match arena.record(at.load(Ordering::Acquire)).order(target) {
            Order::Less => true,
            Order::Equal => or_at,
            Order::Greater => false,
        };
        // Slots with the target's head mostly hold older messages of the target's key. So check the first of these
        // slots; a binary search among them would read several records from memory.
        if !before(&self.refs[first]) {
            return first;
        }
        let rest = first + 1;
        let ties = heads[rest..].partition_point(|head| head.load(Ordering::Acquire) == wanted);
        rest + self.refs[rest..rest + ties].partition_point(before)
    }

    /// Inserts a record into slot `at`.
    /// REQUIRES: the caller holds the latch locked, or no other thread knows the node.
    pub(super) fn insert(&self, arena: &Arena, at: usize, record: Ref) {
        debug_assert_ne!(record, NONE, "this reference stands for a missing fence");
        let meta = self.admit(arena, record);
        assert!(meta.len < SLOTS && at <= meta.len);
        shift_in!(self.heads, at, meta.len, arena.record(record).head(meta.prefix));
        shift_in!(self.refs, at, meta.len, record);
        self.set_meta(Meta { len: meta.len + 1, ..meta });
    }

    /// Returns the generation of a new insertion, which is one more than the generation of the previous insertion (002
    /// §3.6.4).
    /// REQUIRES: the caller holds the latch locked.
    #[inline]
    pub(super) fn next_generation(&self) -> u64 {
        let generation = self.generation.load(Ordering::Relaxed);
        self.generation.store(generation + 1, Ordering::Relaxed);
        generation
    }

    /// Shortens the prefix, if necessary, to the bytes that a new record shares with it.
    /// REQUIRES: the caller holds the latch locked, or no other thread knows the node.
    #[inline]
    fn admit(&self, arena: &Arena, record: Ref) -> Meta {
        let meta = self.meta();
        if !meta.edge || (meta.prefix == 0 && meta.len > 0) {
            return meta;
        }
        let record = arena.record(record);
        let shared = match meta.len {
            0 => record.key_len(),
            _ => arena.record(self.record(0)).common(record),
        };
        self.set_prefix(arena, shared.min(meta.prefix))
    }

    /// Changes the prefix, and all heads accordingly.
    /// REQUIRES: the caller holds the latch locked, or no other thread knows the node.
    fn set_prefix(&self, arena: &Arena, prefix: usize) -> Meta {
        let meta = self.meta();
        let changed = Meta { prefix, ..meta };
        if changed != meta {
            self.set_meta(changed);
            for (head, at) in self.heads.iter().zip(&self.refs).take(meta.len) {
                head.store(arena.record(at.load(Ordering::Relaxed)).head(prefix), Ordering::Release);
            }
        }
        changed
    }

    /// Creates a node, right of the fence `low`, with copies of the slots from `from` on.
    /// REQUIRES: the caller has claimed the latch.
    pub(super) fn tail(&self, arena: &Arena, from: usize, low: Ref) -> Slots {
        let (meta, high) = (self.meta(), self.high());
        assert!(0 < from && from < meta.len, "slot {from} of {} begins the right half", meta.len);
        let right = Slots::new(meta.prefix, low, high);
        // No thread inserts concurrently, since the node is claimed.
        let generation = seeded!(GenerationNotInherited: 0, self.generation.load(Ordering::Relaxed));
        right.generation.store(generation, Ordering::Relaxed);
        for i in from..meta.len {
            right.heads[i - from].store(self.heads[i].load(Ordering::Relaxed), Ordering::Relaxed);
            right.refs[i - from].store(self.refs[i].load(Ordering::Relaxed), Ordering::Relaxed);
        }
        right.set_meta(Meta { len: meta.len - from, ..right.meta() });
        right.refit(arena);
        right
    }

    /// Removes the slots from `len` on. Another node, right of the fence `high`, holds copies of these slots.
    /// REQUIRES: the caller holds the latch locked.
    pub(super) fn truncate(&self, arena: &Arena, len: usize, high: Ref) {
        let before = self.meta();
        assert!(0 < len && len < before.len, "slot {len} of {} begins the right half", before.len);
        self.set_meta(Meta { len, edge: self.low() == NONE, ..before });
        self.high.store(high, Ordering::Release);
        self.refit(arena);
    }

    /// Sets the prefix to the common bytes of the two fences. At an edge, the prefix does not change.
    /// REQUIRES: the caller holds the latch locked, or no other thread knows the node.
    fn refit(&self, arena: &Arena) {
        if !self.meta().edge {
            self.set_prefix(arena, arena.record(self.low()).common(arena.record(self.high())));
        }
    }
}

impl Inner {
    /// Creates a node without slots as the parent of `child`. `prefix` is the prefix length of `child`.
    pub(super) fn above(child: u32, prefix: usize) -> Inner {
        let children = std::array::from_fn(|i| AtomicU32::new(if i == 0 { child } else { 0 }));
        Inner { slots: Slots::new(prefix, NONE, NONE), children }
    }

    /// The child right of `rank` slots.
    #[inline]
    pub(super) fn child(&self, rank: usize) -> u32 {
        self.children[rank].load(Ordering::Acquire)
    }

    /// Inserts a separator into slot `at`, and `child` right of the separator.
    /// REQUIRES: the caller holds the latch locked, or no other thread knows the node.
    pub(super) fn insert(&self, arena: &Arena, at: usize, separator: Ref, child: u32) {
        let len = self.slots.meta().len;
        assert!(at <= len && len < SLOTS, "child {at} of {len} in a node that has room");
        shift_in!(self.children, at + 1, len + 1, child);
        self.slots.insert(arena, at, separator);
    }

    /// Creates a node, right of the fence `low`, with copies of the slots from `from` on, of the child just right of
    /// the fence, and of the children right of these slots.
    /// REQUIRES: the caller has claimed the latch.
    pub(super) fn tail(&self, arena: &Arena, from: usize, low: Ref) -> Inner {
        let len = self.slots.meta().len;
        let child = |i: usize| if from + i <= len { self.children[from + i].load(Ordering::Relaxed) } else { 0 };
        Inner { slots: self.slots.tail(arena, from, low), children: std::array::from_fn(|i| AtomicU32::new(child(i))) }
    }
}

#[cfg(test)]
impl Slots {
    /// The heads of the present slots.
    pub(super) fn heads(&self) -> Vec<u64> {
        self.heads[..self.meta().len].iter().map(|head| head.load(Ordering::Acquire)).collect()
    }

    /// The records of the present slots.
    pub(super) fn records(&self) -> Vec<Ref> {
        (0..self.meta().len).map(|slot| self.record(slot)).collect()
    }
}
