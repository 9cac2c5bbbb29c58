//! [`State`]: the parts and the root that belong together, and [`PartedTree`], which has the current state.
//!
//! ```text
//!   old parts     [      a      ][    b    ]         job has written the sealed memtable of a, and divided its child
//!                   sealed active   active
//!   new parts     [  a1  ][  a2 ][    b    ]         b stays; a1 and a2 share the old active memtable, sealed
//!                     └──┬───┘
//!                 old active memtable
//! ```

use std::sync::Arc;

use super::input::PartInput;
use super::part::{Active, Part, Sealed, Stack};
use super::view::PartView;
use crate::base::sync::{ArcSwap, AtomicU64, AtomicUsize, EXPLORED, Mutex, Ordering::Relaxed};
use crate::base::{Entry, Error, KeyRange, RangeTombstone, Result, Seqno, seeded};
use crate::index::pages::Root;
use crate::index::tree::Tree;
use crate::index::tree::space::SpaceCheck;
use crate::index::tree::view::TreeView;
use crate::index::tree::world::World;
use crate::memtable::ChunkPool;

/// With this number of memtables of bytes in memory, the heaviest parts are written, unless half of the pool is less.
const MEMTABLES: u64 = 8;
/// In an explored execution, which writes little, they are written with this part of a memtable in memory.
const EXPLORED_PART: u64 = 16;

/// The parts and the root that belong together.
pub(super) struct State {
    /// In order. They have all keys.
    pub(super) parts: Vec<Arc<Part>>,
    pub(super) tree: Arc<TreeView>,
}

impl State {
    /// One part without messages.
    pub(super) fn empty(tree: Arc<TreeView>, chunks: &Arc<ChunkPool>) -> State {
        State { parts: vec![Part::new(KeyRange::all(), chunks)], tree }
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
        for (i, from) in bounds.iter().enumerate() {
            let keys = KeyRange::new(from.as_slice(), bounds.get(i + 1).cloned().unwrap_or_default());
            let first = self.number_of(&keys.from);
            let same = Some(&self.parts[first]).filter(|part| part.keys == keys);
            if let Some(part) = same.filter(|part| !is_written(part)) {
                parts.push(part.clone());
                continue;
            }
            let (mut active, mut sealed) = (None, Vec::new());
            let old = self.parts.iter().enumerate().skip(first).take_while(|(_, part)| part.keys.overlaps(&keys));
            for (i, part) in old {
                let stack = stacks[i].get_or_insert_with(|| {
                    let (stack, bytes) = replace(part, input, to, same.is_some());
                    gone += bytes;
                    stack
                });
                active = same.map(|_| stack.active.clone());
                sealed.extend(stack.sealed.iter().filter_map(|sealed| clipped(sealed, &keys)));
            }
            parts.push(Part::with(keys, active.unwrap_or_else(|| Active::new(chunks)), sealed));
        }
        (State { parts, tree }, gone)
    }
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
        // How many messages are written is not known if the job has ended early, so a half is assumed.
        let kept = if rest.is_empty() { 0 } else { weight / 2 };
        gone += weight - kept;
        (!rest.is_empty()).then(|| sealed.clip(rest, kept))
    };
    stack.sealed = stack.sealed.into_iter().filter_map(&mut left).collect();
    (stack, gone)
}

/// The keys of a memtable of an old part that belong to a new one. A part of the weight goes with them.
fn clipped(sealed: &Arc<Sealed>, keys: &KeyRange) -> Option<Arc<Sealed>> {
    let clip = sealed.keys.intersect(keys);
    if clip.is_empty() {
        return None;
    }
    if keys.covers(&sealed.keys) {
        return Some(sealed.clone());
    }
    // How many messages belong to the clip is not known, so each clip takes a half of the rest, and the last one all.
    let weight = sealed.weight.load(Relaxed);
    let is_last = keys.to.is_empty() || !sealed.keys.to.is_empty() && sealed.keys.to <= keys.to;
    let share = if is_last { weight } else { weight / 2 };
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

/// A Bε-tree to which commits write directly.
pub struct PartedTree {
    pub(super) shared: Arc<Shared>,
    pub(super) view: Arc<PartView>,
    /// Held by the job that writes parts. It is the first lock that a thread takes.
    pub(super) writing: Mutex<()>,
    /// The last seqnos of the states that begun checkpoints will write. Until then, background jobs write no later
    /// message.
    pub(super) cuts: Mutex<Vec<Seqno>>,
    /// Values of more than this number of bytes are moved out of the tree by the next job.
    pub(super) inline_bytes: AtomicUsize,
    /// The bytes of the buffer of the root on disk.
    pub(super) root_buffer: AtomicU64,
    pub(super) space: SpaceCheck,
    /// The root that was opened has every message up to this seqno.
    pub(super) opened_through: Seqno,
    /// The state that the last checkpoint has described, or that was opened. Its pages are kept, because a checkpoint
    /// describes it again if not even the root can be read.
    pub(super) described: Mutex<World>,
    /// Damage that keeps messages from their pages. Commits are refused then, and checkpoints leave the messages in the
    /// buffer of the root.
    pub(super) stuck: Mutex<Option<Error>>,
}

impl PartedTree {
    /// Makes a tree to which commits write directly.
    pub fn new(tree: Tree) -> PartedTree {
        let (published, chunks) = (tree.published.load_full(), tree.core.chunks.clone());
        let opened_through = published.through;
        let described = Mutex::new(tree.inner.lock().world.clone());
        let current = ArcSwap::from_pointee(State::empty(published, &chunks));
        let (publishing, bytes) = (Mutex::default(), AtomicUsize::new(0));
        let shared = Arc::new(Shared { tree, chunks, current, publishing, bytes });
        PartedTree {
            view: Arc::new(PartView::new(shared.clone())),
            shared,
            writing: Mutex::default(),
            cuts: Mutex::default(),
            inline_bytes: AtomicUsize::new(usize::MAX),
            root_buffer: AtomicU64::new(0),
            space: SpaceCheck::default(),
            described,
            opened_through,
            stuck: Mutex::default(),
        }
    }

    /// The bytes in memory above which the heaviest parts are written.
    pub(super) fn most_bytes(&self) -> usize {
        let Tree { core, sizes, .. } = &self.shared.tree;
        let memtable = sizes.memtable_bytes;
        let most = if EXPLORED { memtable / EXPLORED_PART } else { memtable.saturating_mul(MEMTABLES) };
        usize::try_from(most).unwrap_or(usize::MAX).min(core.pool.budget() / 2)
    }

    /// The first keys of the children of a root, if they have buffers or are leaf nodes below a page with a buffer, and
    /// the bytes of the root's buffer. A root without a buffer counts as one child.
    ///
    /// # Errors
    /// If the root cannot be read.
    pub(super) fn bounds(&self, root: Option<Root>) -> Result<(Vec<Vec<u8>>, u64)> {
        let Tree { source, sizes, .. } = &self.shared.tree;
        let Some(Root { page, level }) = root.filter(|root| root.level >= sizes.levels.buffered_from) else {
            return Ok((vec![Vec::new()], 0));
        };
        let block = source.page(&page, level)?;
        let inner = page.inner(&block);
        let buffer = inner.buffer().map_or(0, |buffer| buffer.page.totals.bytes);
        let children = inner.children(&[]);
        let bounds = children.into_iter().filter(|child| !child.page.is_continued).map(|child| child.from).collect();
        Ok((bounds, buffer))
    }
}
