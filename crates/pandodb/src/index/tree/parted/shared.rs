//! [`State`]: the parts and the root that belong together, and [`Shared`], which has the current state.
//!
//! ```text
//!   old parts     [      a      ][    b    ]         job has written the sealed memtable of a, and divided its child
//!                   sealed active   active
//!   new parts     [  a1  ][  a2 ][    b    ]         b stays; a1 and a2 share the old active memtable, sealed
//!                     └──┬───┘
//!                 old active memtable
//! ```

use std::sync::Arc;

use crate::base::sync::{ArcSwap, AtomicUsize, Mutex, Ordering::Relaxed};
use crate::base::{Entry, KeyRange, RangeTombstone, seeded};
use crate::index::parts::{Active, Part, PartInput, Sealed, Stack};
use crate::index::tree::Tree;
use crate::index::tree::view::TreeView;
use crate::memtable::ChunkPool;

/// The parts and the root that belong together.
pub(super) struct State {
    /// In order. They have all keys.
    pub(super) parts: Vec<Arc<Part>>,
    pub(super) tree: Arc<TreeView>,
}

impl State {
    /// Parts without messages, which begin at `bounds`.
    pub(super) fn empty(tree: Arc<TreeView>, bounds: &[Vec<u8>], chunks: &Arc<ChunkPool>) -> State {
        let ranges = (0..bounds.len()).map(|i| range_of(bounds, i));
        State { parts: ranges.map(|keys| Part::new(keys, chunks)).collect(), tree }
    }

    /// The number of the part with `key`.
    pub(super) fn number_of(&self, key: &[u8]) -> usize {
        self.parts.partition_point(|part| part.keys.from.as_slice() <= key) - 1
    }

    /// The part with `key`.
    pub(super) fn part_of(&self, key: &[u8]) -> &Arc<Part> {
        &self.parts[self.number_of(key)]
    }

    /// The parts with keys of a range.
    pub(super) fn overlapping(&self, range: &KeyRange) -> &[Arc<Part>] {
        let first = self.number_of(&range.from);
        let count = self.parts[first..].iter().take_while(|part| part.keys.overlaps(range)).count();
        &self.parts[first..first + count]
    }

    /// The state after a job has written `input` up to the key `to` (`None` is above all keys), and the weight of the
    /// messages that left memory. The new root is `tree`, and the new parts begin at `bounds`. The old parts that the new
    /// state lacks take no more messages.
    pub(super) fn after(
        &self,
        input: &PartInput,
        to: Option<&[u8]>,
        (tree, bounds): (Arc<TreeView>, &[Vec<u8>]),
        chunks: &Arc<ChunkPool>,
    ) -> (State, usize) {
        debug_assert!(bounds[0].is_empty() && bounds.is_sorted(), "the parts have all keys");
        let is_written = |part: &Arc<Part>| input.parts.iter().any(|of| Arc::ptr_eq(&of.part, part));
        // The memtables of the old parts that are replaced. They do not change any more.
        let mut stacks: Vec<Option<Stack>> = self.parts.iter().map(|_| None).collect();
        let (mut parts, mut gone) = (Vec::with_capacity(bounds.len()), 0);
        for i in 0..bounds.len() {
            let keys = range_of(bounds, i);
            let first = self.number_of(&keys.from);
            let same = Some(&self.parts[first]).filter(|part| part.keys == keys);
            if let Some(part) = same.filter(|part| !is_written(part)) {
                parts.push(part.clone());
                continue;
            }
            let (mut active, mut sealed) = (None, Vec::new());
            let old = self.parts.iter().enumerate().skip(first).take_while(|(_, part)| part.keys.overlaps(&keys));
            for (number, part) in old {
                let stack = stacks[number].get_or_insert_with(|| {
                    let (stack, bytes) = replace(part, input, to, same.is_some());
                    gone += bytes;
                    stack
                });
                active = same.map(|_| stack.active.clone());
                sealed.extend(stack.sealed.iter().filter_map(|sealed| clipped(sealed, &keys, &bounds[i + 1..])));
            }
            parts.push(Part::with(keys, active.unwrap_or_else(|| Active::new(chunks)), sealed));
        }
        (State { parts, tree }, gone)
    }
}

/// The keys of part `i`, if the parts begin at `bounds`.
fn range_of(bounds: &[Vec<u8>], i: usize) -> KeyRange {
    KeyRange::new(bounds[i].as_slice(), bounds.get(i + 1).cloned().unwrap_or_default())
}

/// Marks a part as replaced, and returns its memtables without those that a job has written up to the key `to`, and the
/// weight of these. If the bounds of the part change, the active memtable is among the sealed ones.
fn replace(part: &Part, input: &PartInput, to: Option<&[u8]>, keeps_bounds: bool) -> (Stack, usize) {
    let mut old = part.stack.write();
    assert!(!old.is_replaced, "a part of the current state takes messages");
    old.is_replaced = true;
    let mut stack = old.clone();
    drop(old);
    stack.is_replaced = false;
    if !keeps_bounds {
        stack.seal(&part.keys, None);
    }
    let written = input.parts.iter().find(|of| std::ptr::eq(&*of.part, part)).map_or(&[][..], |of| &of.sealed);
    let written = seeded!(PartWrittenKept: &[][..], written);
    let mut gone = 0;
    let mut left = |sealed: Arc<Sealed>| {
        if !written.iter().any(|written| Arc::ptr_eq(written, &sealed)) {
            return Some(sealed);
        }
        let rest = to.map_or(KeyRange::none(), |to| sealed.keys.intersect(&KeyRange::new(to, [])));
        let weight = sealed.weight.load(Relaxed);
        // How many messages are left is not known if the job has ended early. As long as some are, all count.
        if rest.is_empty() {
            gone += weight;
            return None;
        }
        Some(sealed.clip(rest, weight))
    };
    stack.sealed = stack.sealed.into_iter().filter_map(&mut left).collect();
    (stack, gone)
}

/// The keys of a memtable of an old part that belong to a new one. The weight is divided evenly, because how many
/// messages belong to each part is not known. The new parts behind this one begin at `later`.
fn clipped(sealed: &Arc<Sealed>, keys: &KeyRange, later: &[Vec<u8>]) -> Option<Arc<Sealed>> {
    let clip = sealed.keys.intersect(keys);
    if clip.is_empty() {
        return None;
    }
    if keys.covers(&sealed.keys) {
        return Some(sealed.clone());
    }
    let left = 1 + later.partition_point(|from| sealed.keys.is_above(from));
    let share = sealed.weight.load(Relaxed) / left;
    sealed.weight.fetch_sub(share, Relaxed);
    Some(sealed.clip(clip, share))
}

/// The parts that readers and writers share.
pub(super) struct Shared {
    /// The tree on disk.
    pub(super) tree: Tree,
    pub(super) chunks: Arc<ChunkPool>,
    pub(super) current: ArcSwap<State>,
    /// Held while the current state is replaced, and while parts are sealed.
    pub(super) publishing: Mutex<()>,
    /// The weight of all messages in memory.
    pub(super) bytes: AtomicUsize,
}

impl Shared {
    /// Inserts a message into the part of its key.
    pub(super) fn insert(&self, entry: Entry<'_>) {
        while !self.current.load().part_of(entry.key).insert(entry, &self.bytes) {
            self.wait();
        }
    }

    /// Inserts the pieces of a range tombstone into the parts.
    pub(super) fn insert_range(&self, tombstone: &RangeTombstone) {
        let mut rest = tombstone.clone();
        while !rest.range.is_empty() {
            let part = self.current.load().part_of(&rest.range.from).clone();
            if !part.insert_range(&rest, &self.bytes) {
                self.wait();
                continue;
            }
            if part.keys.to.is_empty() || seeded!(PartRangeDeleteInOnePart: true, false) {
                return;
            }
            rest.range = rest.range.intersect(&KeyRange::new(part.keys.to.as_slice(), []));
        }
    }

    /// Waits until the state that is being published is the current one.
    fn wait(&self) {
        drop(self.publishing.lock());
    }
}
