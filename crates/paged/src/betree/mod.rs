//! The Bε-tree (000 ch. 3 and §5.2).
//!
//! ```text
//!   root         pivots only; writers share its latch              upsert ──▶ root ─r─▶ node ─w─▶ its buffer
//!   nodes        pivots │ buffer                                    full: flush the largest blocks, level by level
//!   leaves       records
//! ```
//!
//! 1. A write is a message. It is put into the buffer of a node below the root, where it is merged with an older message
//!    of its key (`write`).
//! 2. A full buffer passes messages on to children, until the rest fits (`flush`). The [`FlushPolicy`] chooses which ones
//!    (`choose`); in the source, these are the messages for the children with the most messages.
//! 3. A lookup collects the updates on its way, until it finds an insert, a delete or a record (`read`).
//!
//! **Heights.** A tree of height 1 is a leaf, latched exclusively by writers (Listing 5.4). When it is full, a
//! separate root and a node with a buffer are put above it, so every node between the root and the leaves has a buffer.
//! When the separate root is full, its children are distributed to several new nodes, which have fewer pivots
//! (000 §5.2.2). The root stays in its page. With [`RootKind::Textbook`] the root has a buffer, too.
//!
//! **Timestamps** are assigned under the exclusive latch of the first buffer, or under the lock of its front. If a thread
//! took one earlier, a thread with a later one could overtake it, and its message could be flushed before the earlier one
//! arrives. They are assigned before the root is released, or before its version is compared: a buffer is not the first
//! one any more after the root is distributed.
//!
//! **Buffers apart** ([`Buffers::Apart`](crate::Buffers)): a write puts its message into the *front* of the first buffer,
//! a small set of the newest messages beside the page, and shares the latch of the page. A thread that latches a page
//! exclusively merges the front into the buffer (`front`).
//!
//! Invariants ([`verify`](crate::Tree::verify) checks them): at most one message a key in a buffer; a message is newer
//! than all messages of its key below; buffers have at most as many messages as a leaf has records; with reserved slots,
//! no child has more messages in a buffer than its share. Under-full nodes are not merged (000 §5.2.1).

mod adapt;
mod choose;
mod flush;
mod read;
mod write;

use crate::buffer::{PageBuffer, Released};
use crate::error::Result;
use crate::frame::{Pinned, ReadPage, WritePage};
use crate::hints::Root;
use crate::layout::{Kind, Layout, header};
use crate::message::Op;
use crate::mistake::Mistake;
use crate::sync::{AtomicU64, Counter, Ordering};
use crate::tree::{BeOptions, Coupling, FlushCounts, FlushPolicy, RootKind, Shape, Tree};
use crate::verify;

/// Counts of flushes and splits, for statistics.
#[derive(Debug, Default)]
struct Counters {
    batches: Counter,
    messages: Counter,
    levels: Counter,
    node_splits: Counter,
    splits_instead: Counter,
    leaf_splits: Counter,
    moves: Counter,
}

/// Adds to a counter.
fn count(counter: &Counter, more: u64) {
    counter.fetch_add(more, Ordering::Relaxed);
}

/// The tree.
#[derive(Debug)]
pub struct BeTree {
    layout: Layout,
    pages: Box<dyn PageBuffer>,
    root: Root,
    options: BeOptions,
    counts: Counters,
    /// The next timestamp.
    clock: AtomicU64,
}

/// A node one of whose children is about to be latched.
#[derive(Debug)]
enum Parent<'a> {
    /// Its latch is held.
    Latched(ReadPage<'a>),
    /// It was released with this version.
    Released(Pinned<'a>, u64),
}

impl Parent<'_> {
    /// Whether the child is still the one for its key.
    fn is_unchanged(&self) -> bool {
        match self {
            Parent::Latched(page) => {
                debug_assert!(header::level(page) > 0, "a leaf has no children");
                true
            }
            Parent::Released(page, version) => page.version() == *version || Mistake::ChangedParentTrusted.is_on(),
        }
    }
}

impl BeTree {
    /// Creates an empty tree.
    ///
    /// # Errors
    /// The errors of the page buffer.
    pub fn create(layout: Layout, pages: Box<dyn PageBuffer>, options: BeOptions) -> Result<BeTree> {
        let root = {
            let mut page = pages.create()?;
            header::set_kind(&mut page, 0, Kind::Leaf);
            Root::new(page.no())
        };
        let (clock, counts) = (AtomicU64::new(1), Counters::default());
        Ok(BeTree { layout, pages, root, options, counts, clock })
    }

    /// The kind of a root above the leaves.
    fn kind_of_root(&self) -> Kind {
        match self.options.root {
            RootKind::Separate => Kind::Plain,
            RootKind::Textbook => Kind::Buffered,
        }
    }

    fn pin_root(&self) -> Result<Pinned<'_>> {
        self.pages.pin_child(&self.root.hints, self.root.child())
    }

    /// The child `i` of `parent`, latched exclusively.
    fn write_child(&self, parent: &WritePage<'_>, i: usize) -> Result<WritePage<'_>> {
        let child = self.layout.inner_of(parent).child_slot(parent, i);
        Ok(self.pages.pin_child(parent.hints(), child)?.write())
    }

    /// The child of `page` for `key`, latched by `latch`. `None` if the parent has changed after it was released.
    fn step<'a, P>(&'a self, page: ReadPage<'a>, key: u64, latch: impl FnOnce(Pinned<'a>) -> P) -> Result<Option<P>> {
        let (parent, child) = self.pin_child_for(page, key)?;
        let child = latch(child);
        Ok(parent.is_unchanged().then_some(child))
    }

    /// Pins the child of `page` for `key`. Also returns what protects this child until it is latched.
    fn pin_child_for<'a>(&'a self, page: ReadPage<'a>, key: u64) -> Result<(Parent<'a>, Pinned<'a>)> {
        let inner = self.layout.inner_of(&page);
        let child = inner.child_slot(&page, inner.child_for(&page, key));
        if self.options.coupling == Coupling::Latched {
            let child = self.pages.pin_child(page.hints(), child)?;
            return Ok((Parent::Latched(page), child));
        }
        let Released { parent, version, child } = self.pages.pin_child_unlatched(page, child)?;
        Ok((Parent::Released(parent, version), child))
    }

    /// A timestamp. The caller has the only access to the first buffer on the path of its key, or to the front of this
    /// buffer. It compares the version of the parent afterwards, or releases the latch of the parent afterwards.
    /// Otherwise the root could be distributed meanwhile, and the buffer would no longer be the first one.
    fn stamp(&self) -> u64 {
        // A thread that gets a later timestamp than a thread that has changed the root sees this change.
        self.clock.fetch_add(1, Ordering::AcqRel)
    }

    /// Splits the child `i` of `parent`, with its buffer. Returns the pivot and the new right half.
    fn split_inner<'a>(
        &'a self,
        parent: &mut WritePage<'_>,
        i: usize,
        child: &mut WritePage<'_>,
    ) -> Result<(u64, WritePage<'a>)> {
        debug_assert_eq!(header::kind(child), Kind::Buffered);
        let mut right = self.pages.create()?;
        let pivot = self.layout.node(child).split(child, &mut right);
        self.layout.inner_of(parent).insert(parent, i, pivot, right.no());
        parent.note_change();
        // Later flushes of the right half do not note that messages have left `child`, where a reader may have met them.
        child.note_change();
        count(&self.counts.node_splits, 1);
        self.narrow_half(child);
        self.narrow_half(&mut right);
        Ok((pivot, right))
    }
}

impl Tree for BeTree {
    fn upsert(&self, key: u64, op: Op, value: &[u8]) -> Result<()> {
        assert_eq!(value.len(), self.layout.sizes.value, "values have a fixed size");
        let write = write::Write { key, op, value };
        match self.options.root {
            RootKind::Separate => self.upsert_below_root(&write),
            RootKind::Textbook => self.upsert_into_root(&write),
        }
    }

    fn get(&self, key: u64, out: &mut Vec<u8>) -> Result<bool> {
        self.lookup(key, out)
    }

    fn range(&self, from: u64, limit: usize, row: &mut dyn FnMut(u64, &[u8])) -> Result<usize> {
        self.rows(from, limit, row)
    }

    fn verify(&self) -> Result<Shape> {
        let clock = self.clock.load(Ordering::Relaxed);
        let share = (self.options.policy == FlushPolicy::Reserved).then(|| self.layout.first().share());
        let rules = verify::Rules { root: self.kind_of_root(), inner: Kind::Buffered, clock, share };
        verify::check(&self.layout, &*self.pages, self.root.no, rules)
    }

    fn flushes(&self) -> FlushCounts {
        let get = |counter: &Counter| counter.load(Ordering::Relaxed);
        FlushCounts {
            batches: get(&self.counts.batches),
            messages: get(&self.counts.messages),
            levels: get(&self.counts.levels),
            node_splits: get(&self.counts.node_splits),
            splits_instead: get(&self.counts.splits_instead),
            leaf_splits: get(&self.counts.leaf_splits),
            moves: get(&self.counts.moves),
        }
    }

    fn pages(&self) -> &dyn PageBuffer {
        &*self.pages
    }

    fn layout(&self) -> &Layout {
        &self.layout
    }
}

#[cfg(all(test, not(feature = "explore")))]
mod tests {
    use super::*;
    use crate::buffer::{self, BufferConfig, BufferKind};
    use crate::layout::Sizes;

    #[test]
    fn a_split_is_noted_in_both_nodes_that_lose_messages() {
        let layout = Layout::new(Sizes { page: 256, value: 8, epsilon: 0.5 }).unwrap();
        let config = BufferConfig { kind: BufferKind::Optimal, page: 256, frames: 1, direct: false };
        let pages = buffer::create(&config, "".as_ref()).unwrap();
        let options = BeOptions { coupling: Coupling::Optimistic, ..BeOptions::SOURCE };
        let tree = BeTree::create(layout, pages, options).unwrap();
        (0..100).for_each(|key| tree.upsert(key, Op::Insert, &[0; 8]).unwrap());
        let (above, above_version) = tree.pages.read(tree.root.no).unwrap().unlatch();
        let mut root = tree.pages.write(tree.root.no).unwrap();
        let child = tree.layout.inner_of(&root).child(&root, 0);
        // Readers that have released a node before the split.
        let (reader, version) = tree.pages.read(child).unwrap().unlatch();
        let mut child = tree.pages.write(child).unwrap();
        drop(tree.split_inner(&mut root, 0, &mut child).unwrap());
        assert!(reader.version() > version && above.version() > above_version, "readers of either node restart");
    }
}
