//! The B+-tree that the Bε-tree is compared with (000 §6.1). It has the same pages and the same techniques.
//!
//! ```text
//!   shared descent       root ─r─▶ inner ─r─▶ leaf ─w             a parent is released when its child is latched
//!   exclusive restart    root ─w─▶ inner ─w─▶ leaf ─w             full nodes are split on the way down
//! ```
//!
//! 1. A writer descends with shared latches and latches the leaf exclusively.
//! 2. If the record does not fit, it starts again with exclusive latches, and splits each full node that it meets. So
//!    the parent of a node has room for one more pivot, and at most two nodes are latched (and a new one).
//! 3. The root stays in its page: when it is full, its content moves to a new page below it.
//!
//! With [`Coupling::Optimistic`] a descending thread latches one node at a time. It notes the version of a node, releases
//! it, latches the child, and restarts from the root if the version has changed. Safe Rust cannot read bytes while
//! another thread may change them, so a reader still latches each node, shared, for the time of one binary search
//! (decision 0086).
//!
//! Invariants: a split increases the version of the parent before the child is released; nodes are never merged.

use crate::buffer::{PageBuffer, Released};
use crate::error::Result;
use crate::frame::{Pinned, ReadPage, WritePage};
use crate::hints::Root;
use crate::layout::{Kind, Layout, header};
use crate::message::{Message, Op};
use crate::mistake::Mistake;
use crate::tree::{Coupling, Shape, Tree};
use crate::verify;

/// The tree.
#[derive(Debug)]
pub struct BTree {
    layout: Layout,
    pages: Box<dyn PageBuffer>,
    root: Root,
    coupling: Coupling,
}

impl BTree {
    /// Creates an empty tree.
    ///
    /// # Errors
    /// The errors of the page buffer.
    pub fn create(layout: Layout, pages: Box<dyn PageBuffer>, coupling: Coupling) -> Result<BTree> {
        let root = {
            let mut page = pages.create()?;
            header::set_kind(&mut page, 0, Kind::Leaf);
            Root::new(page.no())
        };
        Ok(BTree { layout, pages, root, coupling })
    }

    fn pin_root(&self) -> Result<Pinned<'_>> {
        self.pages.pin_child(&self.root.hints, self.root.child())
    }

    /// The child of `page` for `key`, latched by `latch`. `None` if the parent has changed after it was released.
    fn step<'a, P>(&'a self, page: ReadPage<'a>, key: u64, latch: impl FnOnce(Pinned<'a>) -> P) -> Result<Option<P>> {
        let plain = &self.layout.plain;
        let child = plain.child_slot(&page, plain.child_for(&page, key));
        if self.coupling == Coupling::Latched {
            let child = latch(self.pages.pin_child(page.hints(), child)?);
            drop(page);
            return Ok(Some(child));
        }
        let Released { parent, version, child } = self.pages.pin_child_unlatched(page, child)?;
        let child = latch(child);
        let unchanged = parent.version() == version || Mistake::ChangedParentTrusted.is_on();
        Ok(unchanged.then_some(child))
    }

    /// The leaf for `key`, and the least key above its range.
    fn leaf_to_read(&self, key: u64) -> Result<(ReadPage<'_>, Option<u64>)> {
        'restart: loop {
            let (mut page, mut upper) = (self.pin_root()?.read(), None);
            while header::level(&page) > 0 {
                let plain = &self.layout.plain;
                upper = plain.upper(&page, plain.child_for(&page, key)).or(upper);
                match self.step(page, key, Pinned::read)? {
                    Some(child) => page = child,
                    None => continue 'restart,
                }
            }
            debug_assert!(upper.is_none_or(|upper| key < upper));
            return Ok((page, upper));
        }
    }

    /// The leaf for `key`, latched exclusively, after a shared descent.
    fn leaf_to_write(&self, key: u64) -> Result<WritePage<'_>> {
        'restart: loop {
            let mut page = self.pin_root()?.read();
            if header::level(&page) == 0 {
                drop(page);
                let root = self.pin_root()?.write();
                if header::level(&root) == 0 {
                    return Ok(root);
                }
                continue;
            }
            while header::level(&page) > 1 {
                match self.step(page, key, Pinned::read)? {
                    Some(child) => page = child,
                    None => continue 'restart,
                }
            }
            if let Some(leaf) = self.step(page, key, Pinned::write)? {
                return Ok(leaf);
            }
        }
    }

    fn is_full(&self, page: &[u8]) -> bool {
        match header::kind(page) {
            Kind::Leaf => self.layout.leaf.is_full(page),
            _ => self.layout.plain.room(page) == 0,
        }
    }

    /// Inserts with exclusive latches.
    fn insert_exclusive(&self, message: Message<'_>) -> Result<()> {
        let mut page = self.pin_root()?.write();
        if self.is_full(&page) {
            self.grow(&mut page)?;
        }
        while header::level(&page) > 0 {
            let i = self.layout.plain.child_for(&page, message.key);
            let mut child = self.pages.pin_child(page.hints(), self.layout.plain.child_slot(&page, i))?.write();
            if self.is_full(&child) {
                let (pivot, right) = self.split(&mut page, i, &mut child)?;
                if message.key >= pivot {
                    child = right;
                }
            }
            page = child;
        }
        self.layout.leaf.apply(&mut page, message);
        Ok(())
    }

    /// Moves the content of the root to a new page below it.
    fn grow(&self, root: &mut WritePage<'_>) -> Result<()> {
        let level = header::level(root) + 1;
        let mut below = self.pages.create()?;
        below.copy_from_slice(root);
        self.layout.plain.init(root, level, Kind::Plain, below.no());
        root.note_change();
        Ok(())
    }

    /// Splits the full child `i` of `parent`. Returns the pivot and the new right half.
    fn split(&self, parent: &mut WritePage<'_>, i: usize, child: &mut WritePage<'_>) -> Result<(u64, WritePage<'_>)> {
        let mut right = self.pages.create()?;
        let pivot = if header::level(child) == 0 {
            let middle = self.layout.leaf.keys.number(child, header::count(child) / 2);
            self.layout.leaf.split(child, &mut right, middle);
            middle
        } else {
            self.layout.plain.split(child, &mut right)
        };
        self.layout.plain.insert(parent, i, pivot, right.no());
        parent.note_change();
        debug_assert!(!self.is_full(child) && !self.is_full(&right), "both halves have room");
        Ok((pivot, right))
    }
}

impl Tree for BTree {
    fn upsert(&self, key: u64, op: Op, value: &[u8]) -> Result<()> {
        assert_eq!(value.len(), self.layout.sizes.value, "values have a fixed size");
        let message = Message { key, stamp: 0, op, value };
        {
            let mut leaf = self.leaf_to_write(key)?;
            let leaves = &self.layout.leaf;
            if !(leaves.is_full(&leaf) && leaves.grows(&leaf, key, op)) {
                leaves.apply(&mut leaf, message);
                return Ok(());
            }
        }
        self.insert_exclusive(message)
    }

    fn get(&self, key: u64, out: &mut Vec<u8>) -> Result<bool> {
        out.clear();
        let (leaf, _) = self.leaf_to_read(key)?;
        let value = self.layout.leaf.find(&leaf, key);
        out.extend_from_slice(value.unwrap_or_default());
        Ok(value.is_some())
    }

    fn range(&self, from: u64, limit: usize, row: &mut dyn FnMut(u64, &[u8])) -> Result<usize> {
        let (mut next, mut rows) = (Some(from), 0);
        while let Some(from) = next.filter(|_| rows < limit) {
            let (leaf, upper) = self.leaf_to_read(from)?;
            let (leaves, count) = (&self.layout.leaf, header::count(&leaf));
            for i in (leaves.keys.lower_bound(&leaf, count, from)..count).take(limit - rows) {
                row(leaves.keys.number(&leaf, i), leaves.values.get(&leaf, i));
                rows += 1;
            }
            debug_assert!(upper.is_none_or(|upper| upper > from), "each leaf is behind the one before");
            next = upper;
        }
        Ok(rows)
    }

    fn verify(&self) -> Result<Shape> {
        verify::check(
            &self.layout,
            &*self.pages,
            self.root.no,
            verify::Rules { root: Kind::Plain, inner: Kind::Plain, clock: 0, share: None },
        )
    }

    fn pages(&self) -> &dyn PageBuffer {
        &*self.pages
    }

    fn layout(&self) -> &Layout {
        &self.layout
    }
}
