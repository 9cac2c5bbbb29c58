//! Generations of memtable leaves for the operations of a record. The system of 002 §3.6.4 orders the records of
//! several logs by these generations.
//!
//! ```text
//!   payload   | length of the operations, 4 bytes | operations | life | tag of each operation |
//! ```
//!
//! | bytes | |
//! | --- | --- |
//! | varint | life: the epoch into whose memtables the operations were inserted |
//! | | for each operation: |
//! | varint | 0 without a generation; otherwise 1 + the generation of the operation's leaf, which the insertion increments |
//! | varint | only with a generation: the record's first seqno minus the identity of the memtable |
//!
//! Two kinds of operations have no generation: a range delete, which is not inserted into a leaf, and an operation that
//! found a newer message of its key in the memtable, so that it has no place in the paper's order. For all other
//! operations, generations of one key in one memtable of one epoch ascend with seqnos
//! ([`crate::memtable::Memtable::insert`]). Recovery checks this order.
//!
//! Source: 002 §3.6.4.

use crate::base::codec::{Reader, put_varint};
use crate::base::{Result, Seqno};

/// The leaf of an insertion, and the leaf's generation at the time of the insertion.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tag {
    /// The identity of the memtable: the seqno after which the memtable began.
    pub memtable: Seqno,
    /// The leaf's generation, unique among the insertions into the leaf.
    pub generation: u64,
}

/// The tags of a record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tags {
    /// The epoch into whose memtables the operations were inserted. A copy of the record keeps this epoch.
    pub life: u32,
    /// The tag of each operation.
    pub tags: Vec<Option<Tag>>,
}

/// The maximum size of a tagged payload with `ops` bytes of operations and `count` operations.
pub fn tagged_bytes(ops: usize, count: u32) -> usize {
    const VARINT: usize = 10;
    4 + ops + VARINT + count as usize * 2 * VARINT
}

impl Tags {
    /// The tagged payload of a record whose first seqno is `first`: the operations `ops` with these tags.
    pub fn encode(&self, first: Seqno, ops: &[u8]) -> Vec<u8> {
        let length = u32::try_from(ops.len()).expect("a payload is shorter than 4 GiB");
        let count = u32::try_from(self.tags.len()).expect("a record takes fewer than 2^32 seqnos");
        let most = tagged_bytes(ops.len(), count);
        let mut out = Vec::with_capacity(most);
        out.extend_from_slice(&length.to_le_bytes());
        out.extend_from_slice(ops);
        put_varint(&mut out, u64::from(self.life));
        for tag in &self.tags {
            match tag {
                None => put_varint(&mut out, 0),
                Some(Tag { memtable, generation }) => {
                    debug_assert!(*memtable < first, "a memtable begins before its records");
                    put_varint(&mut out, 1 + generation);
                    put_varint(&mut out, first.0 - memtable.0);
                }
            }
        }
        debug_assert!(out.len() <= most, "the reservation covers the payload");
        debug_assert!(Tags::split(&out, first, count).is_ok_and(|(again, tags)| again == ops && tags == *self));
        out
    }

    /// Splits a payload into operations and tags.
    ///
    /// # Errors
    /// `Corruption` if the payload is malformed. `count` is the number of operations of the record.
    pub fn split(payload: &[u8], first: Seqno, count: u32) -> Result<(&[u8], Tags)> {
        let mut reader = Reader::new(payload, "tagged log record");
        let length = reader.u32()? as usize;
        let ops = reader.take(length)?;
        #[expect(clippy::cast_possible_truncation, reason = "the reader returns at most `u32::MAX`")]
        let life = reader.varint_max(u64::from(u32::MAX))? as u32;
        let mut tags = Vec::new();
        for _ in 0..count {
            let tag = match reader.varint()? {
                0 => None,
                more => {
                    let age = reader.varint_max(first.0)?;
                    Some(Tag { memtable: Seqno(first.0 - age), generation: more - 1 })
                }
            };
            tags.push(tag);
        }
        if !reader.is_empty() {
            return Err(reader.corrupt("bytes after the last tag"));
        }
        Ok((ops, Tags { life, tags }))
    }
}
