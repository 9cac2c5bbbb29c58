//! [`Segment`]: bytes that are only appended to, in a piece of a slab.

use std::ops::{Deref, DerefMut};
use std::sync::Arc;

use crate::base::{Slab, Slot};

/// A piece of a slab, filled from its beginning. Dereferences to the bytes that were appended.
#[derive(Debug)]
pub(super) struct Segment {
    bytes: Slot<u8>,
    len: usize,
}

impl Segment {
    /// An empty one, with room for a piece of the slab.
    pub(super) fn new(slab: &Arc<Slab<u8>>) -> Segment {
        Segment { bytes: slab.take(), len: 0 }
    }

    /// Appends bytes.
    ///
    /// # Panics
    /// If there is no room for them.
    pub(super) fn append(&mut self, bytes: &[u8]) {
        self.bytes[self.len..][..bytes.len()].copy_from_slice(bytes);
        self.len += bytes.len();
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
