//! Messages: the form of a write in the log, in memtables and in runs.
//!
//! A write is stored as a message: a key, a seqno, a [`Kind`] and a value. Messages of one key are ordered newest first
//! ([`Entry::order`]). A large value is stored in pages of its own, and the message of the value holds a [`BlobRef`].

use super::codec::{Reader, put_varint};
use super::error::Result;
use super::ids::{BlockAddr, Extent, PageNo, Seqno};
use super::range::KeyRange;

/// The effect of a message on its key. The numbers of the kinds are persisted (in log records and run blocks) and never
/// change.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(u8)]
pub enum Kind {
    /// The key has no value from this message on (a point tombstone).
    Delete = 0,
    /// The key has this value.
    Put = 1,
    /// The keyspace's operator folds this operand into the older value of the key, if the key has one.
    Merge = 2,
    /// The key has a value in extents of its own. The message holds a [`BlobRef`].
    BlobPut = 3,
    /// No key of a range has a value from this message on. This kind occurs only in logs and batches: memtables and
    /// runs store range tombstones separately from their entries.
    RangeDelete = 4,
}

impl Kind {
    /// Decodes a persisted kind; `None` if no kind has that number.
    #[inline]
    pub fn from_u8(byte: u8) -> Option<Kind> {
        let kind = match byte {
            0 => Kind::Delete,
            1 => Kind::Put,
            2 => Kind::Merge,
            3 => Kind::BlobPut,
            4 => Kind::RangeDelete,
            _ => return None,
        };
        debug_assert_eq!(kind as u8, byte, "writers store the discriminant");
        Some(kind)
    }
}

/// A borrowed point message with its key. Memtables, runs and cursors pass messages in this form.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry<'a> {
    /// The user key, 1 to 65,535 bytes.
    pub key: &'a [u8],
    /// The position of the message in the order of all writes.
    pub seqno: Seqno,
    /// The effect of the message. This field is never [`Kind::RangeDelete`].
    pub kind: Kind,
    /// The value of a put, the operand of a merge, or the encoded [`BlobRef`] of a blob put. Empty for a delete.
    pub value: &'a [u8],
}

impl Entry<'_> {
    /// The order of messages: keys in ascending order, and messages of one key newest first.
    #[inline]
    pub fn order(&self, other: &Entry<'_>) -> std::cmp::Ordering {
        self.key.cmp(other.key).then_with(|| other.seqno.cmp(&self.seqno))
    }
}

/// The address of a large value, and the checksum of its bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct BlobRef {
    /// The first page of the value. The value fills pages from this page on, and the last page is padded with zeros.
    pub page: PageNo,
    /// The length of the value in bytes.
    pub len: u64,
    /// CRC-32C of the value.
    pub crc: u32,
}

impl BlobRef {
    /// The pages that the value occupies.
    pub fn extent(&self) -> Extent {
        Extent { start: self.page, pages: self.len.div_ceil(super::PAGE as u64) as u32 }
    }

    /// The address of the value, as if the value were one block.
    pub fn addr(&self) -> BlockAddr {
        BlockAddr { page: self.page, pages: self.extent().pages }
    }

    /// Whether a large value with these fields can exist in a store.
    fn is_sound(&self) -> bool {
        self.len > 0 && self.len <= super::MAX_VALUE as u64 && self.page.0 < 1 << 48
    }

    /// Appends the persisted form: page (varint), length (varint), crc (4 bytes, little-endian).
    pub fn encode(&self, out: &mut Vec<u8>) {
        assert!(self.is_sound(), "readers reject {self:?}");
        let start = out.len();
        put_varint(out, self.page.0);
        put_varint(out, self.len);
        out.extend_from_slice(&self.crc.to_le_bytes());
        debug_assert_eq!(BlobRef::decode(&out[start..]).ok(), Some(*self), "readers decode what was written");
    }

    /// Decodes the bytes that [`BlobRef::encode`] wrote. Rejects a length above [`super::MAX_VALUE`].
    pub fn decode(bytes: &[u8]) -> Result<BlobRef> {
        let mut reader = Reader::new(bytes, "blob reference");
        let blob = BlobRef { page: PageNo(reader.varint()?), len: reader.varint()?, crc: reader.u32()? };
        if !blob.is_sound() || !reader.is_empty() {
            return Err(reader.corrupt("blob reference out of bounds"));
        }
        Ok(blob)
    }
}

/// A range delete in its stored form. The tombstone deletes every message that has a key in `range` and a smaller
/// seqno.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RangeTombstone {
    /// The keys that the tombstone covers.
    pub range: KeyRange,
    /// The position of the tombstone in the order of all writes. The tombstone covers only messages that are strictly
    /// older.
    pub seqno: Seqno,
}
