//! Stranded space: space of holes that the file system has not freed.
//!
//! A copy-on-write file system stores the bytes of one write call together, and frees their space when none of these
//! bytes is in use any more. The model uses aligned pieces of a fixed size instead of the ranges of write calls.
//!
//! ```text
//!   piece     [ a  b  c  d ]      4 pages in use
//!   punch b   [ a  .  c  d ]      4 pages of space, 1 of them stranded
//!   write b   [ a  b' c  d ]      5 pages of space, 1 of them stranded
//!   punch all [ .  .  .  . ]      none
//! ```

use std::collections::BTreeMap;

use super::Inode;
use crate::base::PAGE;
use crate::device::content::Content;

/// The stranded space in each piece of each file.
pub(super) struct Stranded {
    unit: u64,
    /// The stranded space in bytes. Pieces without stranded space have no entry.
    bytes: BTreeMap<(Inode, u64), u64>,
}

impl Stranded {
    /// A model with pieces of `unit` bytes. With pieces of one page no space is ever stranded.
    pub fn new(unit: u64) -> Stranded {
        assert!(unit > 0 && unit.is_multiple_of(PAGE as u64), "pieces of {unit} bytes");
        Stranded { unit, bytes: BTreeMap::new() }
    }

    pub fn unit(&self) -> u64 {
        self.unit
    }

    /// The stranded space of all files.
    pub fn bytes(&self) -> u64 {
        self.bytes.values().sum()
    }

    /// Notes that the whole pages of this range are about to be removed from a file.
    /// REQUIRES: `content` still has these pages.
    pub fn leave(&mut self, inode: Inode, content: &Content, offset: u64, len: u64) {
        let page = PAGE as u64;
        let end = offset.saturating_add(len).min(content.len().next_multiple_of(page)) / page * page;
        let start = offset.next_multiple_of(page);
        if self.unit == page || start >= end {
            return;
        }
        let occupied = |from: u64, to: u64| to - from - content.missing(from, to - from);
        for piece in start / self.unit..end.div_ceil(self.unit) {
            let (from, to) = (piece * self.unit, (piece + 1) * self.unit);
            let going = occupied(start.max(from), end.min(to));
            debug_assert!(going.is_multiple_of(page) && going <= occupied(from, to), "whole pages of the piece");
            if going == occupied(from, to) {
                self.bytes.remove(&(inode, piece));
            } else if going > 0 {
                *self.bytes.entry((inode, piece)).or_default() += going;
            }
        }
    }

    /// Removes the entries of a deleted file.
    pub fn forget(&mut self, inode: Inode) {
        self.bytes.retain(|(of, _), _| *of != inode);
    }
}
