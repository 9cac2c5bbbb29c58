//! The payload of a record: the operations of a batch, one after another.
//!
//! | bytes | |
//! | --- | --- |
//! | varint | keyspace id |
//! | 1 | [`Kind`] |
//! | varint, n | key. For a range delete, its lower bound (empty: from the first key) |
//! | varint, n | value, operand or blob reference. For a range delete, its upper bound (empty: to the last key). Absent for a delete |
//!
//! The operations take the record's seqnos in order.
//!
//! Invariant: decoding checks the same bounds as encoding, so a decoded operation can be applied without checking its
//! lengths again.

use crate::base::codec::{Reader, put_bytes, put_varint, varint_len};
use crate::base::{KeyspaceId, Kind, MAX_KEY, MAX_OPERAND, MAX_VALUE, Result};

/// The longest encoding of a blob reference: two varints and a checksum.
const MAX_BLOB_REF: usize = 24;
const _: () = assert!(MAX_BLOB_REF == 2 * 10 + size_of::<u32>(), "two varints of at most 10 bytes and a CRC-32C");
/// The longest bound of a range, in bytes. A bound may be the successor of the longest key.
const MAX_BOUND: usize = MAX_KEY + 1;

/// One operation of a batch, borrowed from the payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Op<'a> {
    /// The keyspace of the operation.
    pub keyspace: KeyspaceId,
    /// The kind of operation.
    pub kind: Kind,
    /// The key, 1 to `MAX_KEY` bytes. For a range delete, the lower bound, which may be empty.
    pub key: &'a [u8],
    /// The value, operand or encoded blob reference. Empty for a delete. For a range delete, the upper bound.
    pub value: &'a [u8],
}

/// Appends an operation. `a` and `b` are the key and the value (`b` is ignored for a delete), or the two bounds of a
/// range.
pub fn put_op(out: &mut Vec<u8>, keyspace: KeyspaceId, kind: Kind, a: &[u8], b: &[u8]) {
    let b = if kind == Kind::Delete { &[] } else { b };
    debug_assert!(
        key_fits(kind, a.len()) && b.len() <= max_value(kind),
        "{kind:?} of {} and {} bytes",
        a.len(),
        b.len()
    );
    put_varint(out, u64::from(keyspace.0));
    out.push(kind as u8);
    put_bytes(out, a);
    if kind != Kind::Delete {
        put_bytes(out, b);
    }
}

/// The number of bytes that [`put_op`] appends for an operation.
pub fn op_bytes(keyspace: KeyspaceId, kind: Kind, a: &[u8], b: &[u8]) -> usize {
    let counted = |bytes: &[u8]| varint_len(bytes.len() as u64) + bytes.len();
    let value = if kind == Kind::Delete { 0 } else { counted(b) };
    varint_len(u64::from(keyspace.0)) + 1 + counted(a) + value
}

fn key_fits(kind: Kind, len: usize) -> bool {
    if kind == Kind::RangeDelete { len <= MAX_BOUND } else { (1..=MAX_KEY).contains(&len) }
}

fn max_value(kind: Kind) -> usize {
    match kind {
        Kind::Delete => 0,
        Kind::Put => MAX_VALUE,
        Kind::Merge => MAX_OPERAND,
        Kind::BlobPut => MAX_BLOB_REF,
        Kind::RangeDelete => MAX_BOUND,
    }
}

/// Iterates over the operations of a payload. The iteration ends after an error.
#[derive(Clone, Debug)]
pub struct Ops<'a> {
    reader: Reader<'a>,
    failed: bool,
}

impl<'a> Ops<'a> {
    /// The operations of `payload`.
    pub fn new(payload: &'a [u8]) -> Ops<'a> {
        Ops { reader: Reader::new(payload, "log operation"), failed: false }
    }

    /// The number of bytes of the first operation of `payload`.
    pub(crate) fn first_bytes(payload: &[u8]) -> usize {
        let mut ops = Ops::new(payload);
        ops.next();
        ops.reader.position()
    }

    fn read(&mut self) -> Result<Op<'a>> {
        #[expect(clippy::cast_possible_truncation, reason = "the reader returns at most `u32::MAX`")]
        let keyspace = KeyspaceId(self.reader.varint_max(u64::from(u32::MAX))? as u32);
        let byte = self.reader.u8()?;
        let kind = Kind::from_u8(byte).ok_or_else(|| self.reader.corrupt(format!("no operation has kind {byte}")))?;
        let key = self.reader.bytes()?;
        if !key_fits(kind, key.len()) {
            return Err(self.reader.corrupt(format!("{kind:?} with a key of {} bytes", key.len())));
        }
        let value = if kind == Kind::Delete { &[][..] } else { self.reader.bytes()? };
        if value.len() > max_value(kind) {
            return Err(self.reader.corrupt(format!("{kind:?} with a value of {} bytes", value.len())));
        }
        Ok(Op { keyspace, kind, key, value })
    }
}

impl<'a> Iterator for Ops<'a> {
    type Item = Result<Op<'a>>;

    fn next(&mut self) -> Option<Result<Op<'a>>> {
        if self.failed || self.reader.is_empty() {
            return None;
        }
        let op = self.read();
        self.failed = op.is_err();
        Some(op)
    }
}
