//! Little-endian integers and LEB128 varints: encoders, and a bounded reader for persisted bytes.
//!
//! A [`Reader`] never reads past its bytes. It compares every length with the remaining bytes before using the length.
//! It turns every violation into [`Error::Corruption`] with the offset of the reader.

use super::error::{Error, Result};

/// Appends `value` as LEB128: seven bits in each byte, least significant bits first, at most ten bytes.
#[inline]
pub fn put_varint(out: &mut Vec<u8>, mut value: u64) {
    let end = out.len() + varint_len(value);
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
    debug_assert_eq!(out.len(), end, "callers size blocks by `varint_len`");
}

/// Appends the length of `bytes` as a varint, then `bytes`.
#[inline]
pub fn put_bytes(out: &mut Vec<u8>, bytes: &[u8]) {
    put_varint(out, bytes.len() as u64);
    out.extend_from_slice(bytes);
}

/// The number of bytes that [`put_varint`] appends for `value`.
#[inline]
pub fn varint_len(value: u64) -> usize {
    ((64 - (value | 1).leading_zeros()) as usize).div_ceil(7)
}

/// Reads a varint at the start of `bytes`. Returns the value and the length of the varint in bytes, or `None` if the
/// varint is truncated or exceeds 64 bits.
#[inline]
pub fn get_varint(bytes: &[u8]) -> Option<(u64, usize)> {
    let first = *bytes.first()?;
    if first < 0x80 {
        return Some((u64::from(first), 1));
    }
    let mut value = 0u64;
    for (i, &byte) in bytes.iter().take(10).enumerate() {
        let part = u64::from(byte & 0x7f);
        if i == 9 && part > 1 {
            return None;
        }
        value |= part << (7 * i);
        if byte < 0x80 {
            debug_assert!(varint_len(value) <= i + 1, "no encoding is shorter than that of `put_varint`");
            return Some((value, i + 1));
        }
    }
    None
}

/// A bounded reader of persisted bytes.
#[derive(Clone, Debug)]
pub struct Reader<'a> {
    bytes: &'a [u8],
    at: usize,
    what: &'static str,
}

impl<'a> Reader<'a> {
    /// A reader of `bytes`. Its errors use `what` as the name of the structure.
    pub fn new(bytes: &'a [u8], what: &'static str) -> Reader<'a> {
        Reader { bytes, at: 0, what }
    }

    /// The number of bytes that have not been read yet.
    pub fn remaining(&self) -> usize {
        debug_assert!(self.at <= self.bytes.len(), "a reader stays within its bytes");
        self.bytes.len() - self.at
    }

    /// Whether all bytes have been read.
    pub fn is_empty(&self) -> bool {
        self.remaining() == 0
    }

    /// The offset of the next byte.
    pub fn position(&self) -> usize {
        self.at
    }

    /// A corruption error at the reader's position. The caller adds the file with [`Error::in_file`].
    pub fn corrupt(&self, detail: impl Into<String>) -> Error {
        Error::corruption(self.what, self.at as u64, detail)
    }

    /// Reads the next `len` bytes.
    #[inline]
    pub fn take(&mut self, len: usize) -> Result<&'a [u8]> {
        if len > self.remaining() {
            return Err(self.corrupt(format!("{len} bytes are needed, {} remain", self.remaining())));
        }
        let bytes = &self.bytes[self.at..self.at + len];
        self.at += len;
        Ok(bytes)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N]> {
        let mut out = [0; N];
        out.copy_from_slice(self.take(N)?);
        Ok(out)
    }

    /// Reads one byte.
    pub fn u8(&mut self) -> Result<u8> {
        Ok(self.array::<1>()?[0])
    }

    /// Reads two bytes, little-endian.
    pub fn u16(&mut self) -> Result<u16> {
        Ok(u16::from_le_bytes(self.array()?))
    }

    /// Reads four bytes, little-endian.
    pub fn u32(&mut self) -> Result<u32> {
        Ok(u32::from_le_bytes(self.array()?))
    }

    /// Reads eight bytes, little-endian.
    pub fn u64(&mut self) -> Result<u64> {
        Ok(u64::from_le_bytes(self.array()?))
    }

    /// Reads a varint.
    #[inline]
    pub fn varint(&mut self) -> Result<u64> {
        match get_varint(&self.bytes[self.at..]) {
            Some((value, len)) => {
                self.at += len;
                Ok(value)
            }
            None => Err(self.corrupt("varint cut off or too long")),
        }
    }

    /// Reads a varint that must not exceed `limit`.
    pub fn varint_max(&mut self, limit: u64) -> Result<u64> {
        let value = self.varint()?;
        if value > limit {
            return Err(self.corrupt(format!("{value} is over the limit of {limit}")));
        }
        Ok(value)
    }

    /// Reads the number of items that follow, each of at least `item_bytes` bytes. The number is limited by the
    /// remaining bytes, so a caller may size an allocation by it.
    pub fn count(&mut self, item_bytes: usize) -> Result<usize> {
        let limit = self.remaining() / item_bytes.max(1);
        Ok(self.varint_max(limit as u64)? as usize)
    }

    /// Reads a byte string that [`put_bytes`] wrote.
    pub fn bytes(&mut self) -> Result<&'a [u8]> {
        let len = self.varint_max(self.remaining() as u64)? as usize;
        self.take(len)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn varints_round_trip_at_every_length() {
        for shift in 0..64 {
            for value in [1u64 << shift, (1u64 << shift) - 1, u64::MAX >> shift] {
                let mut out = Vec::new();
                put_varint(&mut out, value);
                assert_eq!(out.len(), varint_len(value));
                assert_eq!(get_varint(&out), Some((value, out.len())));
                assert_eq!(get_varint(&out[..out.len() - 1]), None);
            }
        }
        assert_eq!(get_varint(&[0xff; 10]), None);
    }

    #[test]
    fn a_length_is_compared_with_the_remaining_bytes() {
        let mut out = Vec::new();
        put_varint(&mut out, u64::MAX);
        let error = Reader::new(&out, "test").bytes().unwrap_err();
        assert!(matches!(error, Error::Corruption { .. }), "{error}");
        assert!(Reader::new(&[5, 1, 2], "test").count(1).is_err());
    }
}
