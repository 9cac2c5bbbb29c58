//! [`Segment`]: an append-only buffer in a piece of a slab. A segment holds rows of a [`Shard`](super::shard::Shard).
//!
//! Invariant: `len` bytes have been appended; the remaining bytes of the piece are never read.

use std::ops::{Deref, DerefMut};
use std::sync::Arc;

use crate::base::{Slab, Slot};

/// A piece of a slab, filled from its beginning. Dereferences to the appended bytes.
#[derive(Debug)]
pub(super) struct Segment {
    bytes: Slot<u8>,
    len: usize,
}

impl Segment {
    /// Creates an empty segment with the capacity of a piece of the slab.
    pub(super) fn new(slab: &Arc<Slab<u8>>) -> Segment {
        Segment { bytes: slab.take(), len: 0 }
    }

    /// Appends bytes.
    ///
    /// # Panics
    /// If the segment has no room for them.
    pub(super) fn append(&mut self, bytes: &[u8]) {
        self.bytes[self.len..][..bytes.len()].copy_from_slice(bytes);
        self.len += bytes.len();
        debug_assert!(self.len <= self.bytes.len(), "the bytes are inside the piece");
    }
}

impl Deref for Segment {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        &self.bytes[..self.len]
    }
}

impl DerefMut for Segment {
    fn deref_mut(&mut self) -> &mut [u8] {
        &mut self.bytes[..self.len]
    }
}
