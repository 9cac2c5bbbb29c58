//! [`PartInput`]: the messages in memory that a job writes.

use std::sync::Arc;

use super::merged::Merged;
use super::part::{Part, Sealed};
use crate::base::{EntryBlock, KeyRange, RangeTombstone, Result, Seqno};

/// How far down a job brings the messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reach {
    /// As far as the buffers require.
    Buffers,
    /// To the leaves.
    Leaves,
    /// To the buffer of the root. Nothing below the root is read or written.
    Root,
}

/// A part whose oldest memtables a job writes.
pub struct InputPart {
    pub part: Arc<Part>,
    /// These memtables, newest first.
    pub sealed: Vec<Arc<Sealed>>,
}

/// The messages in memory that a job writes.
pub struct PartInput {
    /// The parts, in the order of keys. Each has a memtable.
    pub parts: Vec<InputPart>,
    /// No message has a greater seqno.
    pub through: Seqno,
    /// The weights of all messages.
    pub bytes: u64,
    /// Values of more than this number of bytes are moved out of the tree.
    pub inline_bytes: usize,
    pub tombstones: Vec<RangeTombstone>,
    pub reach: Reach,
    /// A job ends after it has written about this number of bytes.
    pub piece_bytes: Option<u64>,
}

/// The messages of a [`PartInput`], one part after the other.
pub struct InputCursor {
    input: Arc<PartInput>,
    keys: KeyRange,
    /// The number of the next part.
    next: usize,
    open: Option<Merged>,
}

impl InputCursor {
    pub fn new(input: Arc<PartInput>, keys: KeyRange) -> InputCursor {
        let mut cursor = InputCursor { input, keys, next: 0, open: None };
        cursor.find();
        cursor
    }

    /// Finds the first part that does not end before the keys.
    fn find(&mut self) {
        let InputCursor { input, keys, .. } = self;
        self.next = input.parts.partition_point(|of| !of.part.keys.is_above(&keys.from));
        self.open = None;
    }

    /// Appends the next messages, about `max_bytes` bytes of them; nothing at the end.
    ///
    /// # Errors
    /// None: memtables are in memory.
    pub fn fill(&mut self, max_bytes: usize, out: &mut EntryBlock) -> Result<()> {
        let stop = out.bytes() + max_bytes;
        while out.bytes() < stop {
            if let Some(open) = &mut self.open {
                let before = out.len();
                open.fill(stop - out.bytes(), out)?;
                if out.len() == before {
                    self.open = None;
                }
                continue;
            }
            let Some(next) = self.input.parts.get(self.next).filter(|of| of.part.keys.overlaps(&self.keys)) else {
                return Ok(());
            };
            self.next += 1;
            let clipped = next.sealed.iter().map(|sealed| (sealed.keys.intersect(&self.keys), sealed.memtable.clone()));
            let memtables = clipped.filter(|(keys, _)| !keys.is_empty()).collect();
            self.open = Some(Merged::new(memtables, None, false));
        }
        Ok(())
    }

    /// Continues at `key`.
    pub fn seek(&mut self, key: &[u8]) {
        self.keys.from = key.to_vec();
        self.find();
    }
}
