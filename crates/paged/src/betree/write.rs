//! Upserts: from the root to the first buffer (000 §5.2.2, Listing 5.4).
//!
//! ```text
//!   height 1        exclusive:  root ─w─▶ apply
//!   separate root   shared:     root ─r─▶ child ─w─▶ put, or flush if no split is needed
//!                   exclusive:  root ─w─▶ child ─w─▶ split, put, or flush            only after the shared one failed
//!   textbook root   exclusive:  root ─w─▶ put, or flush; a full root is split first
//! ```
//!
//! With [`Buffers::Apart`], a write latches the node of the first buffer shared and puts its message into the front. Only
//! if the front or the buffer is full, it latches the node exclusively, which folds the front, and continues as above.
//!
//! Invariant: a node from which messages are flushed has a free pivot slot for each child that gets some. A full first
//! buffer has one message too many, so one child gets messages, and one free slot is enough. If the node has none, it is
//! split first, which needs a free slot in the root.

use super::{BeTree, Parent};
use crate::error::Result;
use crate::frame::{Pinned, ReadPage, WritePage};
use crate::layout::{Kind, header};
use crate::message::{Message, Op};
use crate::mistake::Mistake;
use crate::tree::Buffers;

/// A write without a timestamp.
#[derive(Clone, Copy, Debug)]
pub struct Write<'a> {
    pub key: u64,
    pub op: Op,
    pub value: &'a [u8],
}

impl<'a> Write<'a> {
    fn message(&self, stamp: u64) -> Message<'a> {
        Message { key: self.key, stamp, op: self.op, value: self.value }
    }
}

impl BeTree {
    /// An upsert under a root without a buffer.
    pub fn upsert_below_root(&self, write: &Write<'_>) -> Result<()> {
        if self.try_shared(write)? {
            return Ok(());
        }
        self.exclusive(write)
    }

    /// Shares the latch of the root. Returns `false` if that is not enough.
    fn try_shared(&self, write: &Write<'_>) -> Result<bool> {
        loop {
            let root = self.pin_root()?.read();
            if header::level(&root) == 0 {
                return Ok(false);
            }
            let (parent, mut child) = self.pin_child_for(root, write.key)?;
            if self.options.buffers == Buffers::Apart {
                let Some(pinned) = self.put_in_front(child.read(), write, Some(&parent)) else { return Ok(true) };
                child = pinned;
            }
            let mut child = child.write();
            let message = write.message(self.stamp());
            if !parent.is_unchanged() {
                continue;
            }
            drop(parent);
            let message = if Mistake::StampedAfterRoot.is_on() { write.message(self.stamp()) } else { message };
            if self.put(&mut child, message) {
                return Ok(true);
            }
            if self.adapt(&mut child) || self.layout.inner_of(&child).room(&child) == 0 {
                return Ok(false);
            }
            self.flush_first(child, message)?;
            return Ok(true);
        }
    }

    /// Puts the write into the front of the first buffer, if there is room and `parent` is unchanged. Otherwise returns
    /// the page without its latch.
    fn put_in_front<'a>(
        &self,
        page: ReadPage<'a>,
        write: &Write<'_>,
        parent: Option<&Parent<'_>>,
    ) -> Option<Pinned<'a>> {
        // A full buffer has an empty front, which stays empty.
        if header::kind(&page) == Kind::Buffered && header::messages(&page) < self.layout.node(&page).buffer.slots {
            let early = Mistake::StampedBeforeLock.is_on().then(|| self.stamp());
            let mut front = page.lock_front();
            let message = write.message(early.unwrap_or_else(|| self.stamp()));
            if parent.is_none_or(Parent::is_unchanged) && self.put_apart(&page, &mut front, message) {
                return None;
            }
        }
        Some(page.unlatch().0)
    }

    /// Applies the write to a root that is a leaf. Returns `false` if the leaf must be split first.
    fn put_in_leaf(&self, leaf: &mut WritePage<'_>, write: &Write<'_>) -> bool {
        let leaves = &self.layout.leaf;
        if leaves.is_full(leaf) && leaves.grows(leaf, write.key, write.op) {
            return false;
        }
        leaves.apply(leaf, write.message(0));
        true
    }

    /// Holds the root exclusively until no split can reach it any more.
    fn exclusive(&self, write: &Write<'_>) -> Result<()> {
        let mut root = self.pin_root()?.write();
        if header::level(&root) == 0 {
            if self.put_in_leaf(&mut root, write) {
                return Ok(());
            }
            self.lower_leaf(&mut root)?;
        }
        if self.layout.plain.room(&root) == 0 {
            self.distribute(&mut root)?;
        }
        debug_assert!(self.layout.plain.room(&root) > 0, "one child can be split");
        let i = self.layout.plain.child_for(&root, write.key);
        let mut child = self.write_child(&root, i)?;
        let message = write.message(self.stamp());
        if self.put(&mut child, message) {
            return Ok(());
        }
        if self.adapt(&mut child) || self.layout.inner_of(&child).room(&child) == 0 {
            let (pivot, right) = self.split_inner(&mut root, i, &mut child)?;
            if write.key >= pivot {
                child = right;
            }
        }
        drop(root);
        self.flush_first(child, message)
    }

    /// Moves the records of a root without a parent below a new node with a buffer, which becomes the root's only child.
    fn lower_leaf(&self, root: &mut WritePage<'_>) -> Result<()> {
        let (mut leaf, mut node) = (self.pages.create()?, self.pages.create()?);
        leaf.copy_from_slice(root);
        self.layout.first().init(&mut node, 1, leaf.no());
        self.layout.plain.init(root, 2, Kind::Plain, node.no());
        root.note_change();
        Ok(())
    }

    /// Moves the content of a root with a buffer, or of a leaf, to a new page below it. The new root has a buffer.
    fn lower(&self, root: &mut WritePage<'_>) -> Result<()> {
        let level = header::level(root) + 1;
        let mut below = self.pages.create()?;
        below.copy_from_slice(root);
        self.layout.first().init(root, level, below.no());
        root.forget_hints();
        root.forget_accesses();
        root.note_change();
        Ok(())
    }

    /// Distributes the children of a full root without a buffer to several new buffered nodes below it. Each gets at
    /// most half of the children that it could have, so that it can be split and flushed at once.
    fn distribute(&self, root: &mut WritePage<'_>) -> Result<()> {
        let (plain, first) = (&self.layout.plain, self.layout.first());
        let (level, children) = (header::level(root), header::count(root) + 1);
        let nodes = children.div_ceil(first.inner.pivots_max.div_ceil(2));
        assert!(nodes >= 2 && nodes <= plain.pivots_max, "a full root becomes at least two nodes, and holds them");
        let old = root.to_vec();
        let mut fresh: Vec<(u64, u64)> = Vec::with_capacity(nodes);
        for node in 0..nodes {
            let (from, to) = (node * children / nodes, (node + 1) * children / nodes);
            let mut page = self.pages.create()?;
            first.init(&mut page, level, plain.child(&old, from));
            for i in from + 1..to {
                first.inner.insert(&mut page, i - from - 1, plain.pivots.number(&old, i - 1), plain.child(&old, i));
            }
            let least = if from == 0 { 0 } else { plain.pivots.number(&old, from - 1) };
            fresh.push((least, page.no()));
        }
        plain.init(root, level + 1, Kind::Plain, fresh[0].1);
        for (i, &(least, page)) in fresh.iter().enumerate().skip(1) {
            plain.insert(root, i - 1, least, page);
        }
        root.note_change();
        Ok(())
    }

    /// An upsert into a root with a buffer.
    pub fn upsert_into_root(&self, write: &Write<'_>) -> Result<()> {
        let mut root = self.pin_root()?;
        if self.options.buffers == Buffers::Apart {
            let Some(pinned) = self.put_in_front(root.read(), write, None) else { return Ok(()) };
            root = pinned;
        }
        let mut root = root.write();
        if header::level(&root) == 0 {
            if self.put_in_leaf(&mut root, write) {
                return Ok(());
            }
            self.lower(&mut root)?;
        }
        let message = write.message(self.stamp());
        if self.put(&mut root, message) {
            return Ok(());
        }
        if self.adapt(&mut root) || self.layout.inner_of(&root).room(&root) == 0 {
            self.lower(&mut root)?;
            let mut child = self.write_child(&root, 0)?;
            self.split_inner(&mut root, 0, &mut child)?;
            let put = self.put(&mut root, message);
            assert!(put, "the buffer of the new root is empty");
            return Ok(());
        }
        self.flush_first(root, message)
    }
}
