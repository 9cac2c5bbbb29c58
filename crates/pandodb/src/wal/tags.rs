//! Generations of memtable leaves beside the operations of a record: how 002 §3.6.4 orders what stands in several logs.
//!
//! ```text
//!   payload   | length of the operations, 4 bytes | operations | life | tag of each operation |
//! ```
//!
//! | bytes | |
//! | --- | --- |
//! | varint | life: the epoch of the log in whose memtables the operations were inserted |
//! | | for each operation: |
//! | varint | 0 without a generation; else 1 + that of its leaf, which the insertion moved on |
//! | varint | after a generation: the record's first seqno less the identity of the memtable |
//!
//! A range delete goes to no leaf, and an operation that found a newer message of its key in the memtable came too late for the
//! paper's order; neither has a generation. Of those that have one, on a key, in one memtable of one life, generations go up
//! with seqnos ([`crate::memtable::Memtable::insert`]): what recovery checks.
//!
//! Source: 002 §3.6.4.

use crate::base::codec::{Reader, put_varint};
use crate::base::{Result, Seqno};

/// Where an insertion met its leaf.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tag {
    /// The identity of the memtable: the seqno after which it began.
    pub memtable: Seqno,
    /// The leaf's generation, which no other insertion into it has.
    pub generation: u64,
}

/// The tags of a record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tags {
    /// The epoch in whose memtables the operations were inserted; a copy of the record keeps it.
    pub life: u32,
    /// Of each operation.
    pub tags: Vec<Option<Tag>>,
}

/// The most bytes that so many operations have when they are tagged.
pub fn tagged_bytes(ops: usize, count: u32) -> usize {
    const VARINT: usize = 10;
    4 + ops + VARINT + count as usize * 2 * VARINT
}

impl Tags {
    /// The payload of `ops`, a record that begins at `first`, with its tags.
    pub fn encode(&self, first: Seqno, ops: &[u8]) -> Vec<u8> {
        let mut out = Vec::with_capacity(tagged_bytes(ops.len(), self.tags.len() as u32));
        out.extend_from_slice(&(ops.len() as u32).to_le_bytes());
        out.extend_from_slice(ops);
        put_varint(&mut out, u64::from(self.life));
        for tag in &self.tags {
            match tag {
                None => put_varint(&mut out, 0),
                Some(Tag { memtable, generation }) => {
                    debug_assert!(*memtable < first);
                    put_varint(&mut out, 1 + generation);
                    put_varint(&mut out, first.0 - memtable.0);
                }
            }
        }
        out
    }

    /// Splits a payload into operations and tags.
    ///
    /// # Errors
    /// `Corruption` if it is none; `count` is how many operations the record has.
    pub fn split(payload: &[u8], first: Seqno, count: u32) -> Result<(&[u8], Tags)> {
        let mut reader = Reader::new(payload, "tagged log record");
        let length = reader.u32()? as usize;
        let ops = reader.take(length)?;
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
            return Err(reader.corrupt("bytes behind the last tag"));
        }
        Ok((ops, Tags { life, tags }))
    }
}
