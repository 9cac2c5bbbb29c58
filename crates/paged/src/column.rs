//! An array of fields of fixed width inside the bytes of a page.
//!
//! ```text
//!   page  │header│ k k k k … │ v   v   v   v   …        a column of keys (8 bytes), a column of values
//!          at ───┘   └─ width
//! ```
//!
//! Nodes keep each field in a column of its own, so that a binary search touches keys only. A column does not know how
//! many of its fields are in use; the node's header does.

use std::ops::Range;

/// The position and the width of a column.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Column {
    at: usize,
    width: usize,
}

impl Column {
    /// A column of fields of `width` bytes that starts at byte `at`.
    pub const fn new(at: usize, width: usize) -> Column {
        Column { at, width }
    }

    /// The byte behind `slots` fields.
    pub const fn end(self, slots: usize) -> usize {
        self.at + slots * self.width
    }

    /// The bytes of the fields `fields`.
    #[inline]
    pub fn bytes(self, fields: Range<usize>) -> Range<usize> {
        self.at + fields.start * self.width..self.at + fields.end * self.width
    }

    /// The field `i`.
    #[inline]
    pub fn get(self, page: &[u8], i: usize) -> &[u8] {
        &page[self.bytes(i..i + 1)]
    }

    /// The field `i` for changes.
    #[inline]
    pub fn get_mut(self, page: &mut [u8], i: usize) -> &mut [u8] {
        &mut page[self.bytes(i..i + 1)]
    }

    /// The field `i` of a column of numbers.
    #[inline]
    pub fn number(self, page: &[u8], i: usize) -> u64 {
        debug_assert_eq!(self.width, 8);
        let at = self.at + 8 * i;
        u64::from_le_bytes(page[at..at + 8].try_into().expect("eight bytes"))
    }

    /// Sets the field `i` of a column of numbers.
    #[inline]
    pub fn set_number(self, page: &mut [u8], i: usize, number: u64) {
        self.get_mut(page, i).copy_from_slice(&number.to_le_bytes());
    }

    /// The field `i` of a column of numbers of four bytes.
    #[inline]
    pub fn small(self, page: &[u8], i: usize) -> usize {
        debug_assert_eq!(self.width, 4);
        let at = self.at + 4 * i;
        u32::from_le_bytes(page[at..at + 4].try_into().expect("four bytes")) as usize
    }

    /// Sets the field `i` of a column of numbers of four bytes.
    #[inline]
    pub fn set_small(self, page: &mut [u8], i: usize, number: usize) {
        let number = u32::try_from(number).expect("a page of at most 4 MiB");
        self.get_mut(page, i).copy_from_slice(&number.to_le_bytes());
    }

    /// The first `len` fields of a column of numbers.
    #[inline]
    pub fn numbers(self, page: &[u8], len: usize) -> &[[u8; 8]] {
        debug_assert_eq!(self.width, 8);
        page[self.bytes(0..len)].as_chunks().0
    }

    /// Moves the fields from `i` on by `by` fields to the right; `len` fields are in use.
    #[inline]
    pub fn open(self, page: &mut [u8], i: usize, by: usize, len: usize) {
        debug_assert!(i <= len, "a gap inside the fields in use");
        page.copy_within(self.bytes(i..len), self.at + (i + by) * self.width);
    }

    /// Removes the fields `gone`; `len` fields are in use.
    #[inline]
    pub fn close(self, page: &mut [u8], gone: Range<usize>, len: usize) {
        debug_assert!(gone.start <= gone.end && gone.end <= len, "only fields in use are removed");
        page.copy_within(self.bytes(gone.end..len), self.at + gone.start * self.width);
    }

    /// Copies the fields `fields` of `from` to the fields of `to` that begin at `i`.
    #[inline]
    pub fn copy(self, from: &[u8], fields: Range<usize>, to: &mut [u8], i: usize) {
        let target = self.bytes(i..i + fields.len());
        to[target].copy_from_slice(&from[self.bytes(fields)]);
    }

    /// Copies the first `len` fields of `from` to the column `target` of `to`, which is as wide.
    #[inline]
    pub fn copy_to(self, from: &[u8], len: usize, target: Column, to: &mut [u8]) {
        debug_assert_eq!(self.width, target.width);
        to[target.bytes(0..len)].copy_from_slice(&from[self.bytes(0..len)]);
    }

    /// The number of fields below `key`; the first `len` fields are in ascending order.
    #[inline]
    pub fn lower_bound(self, page: &[u8], len: usize, key: u64) -> usize {
        self.partition(page, len, |field| field < key)
    }

    /// The number of fields that are at most `key`.
    #[inline]
    pub fn upper_bound(self, page: &[u8], len: usize, key: u64) -> usize {
        self.partition(page, len, |field| field <= key)
    }

    /// The field with the number `key`, or the place where it would be inserted.
    #[inline]
    pub fn find(self, page: &[u8], len: usize, key: u64) -> Result<usize, usize> {
        let i = self.lower_bound(page, len, key);
        if i < len && self.number(page, i) == key { Ok(i) } else { Err(i) }
    }

    #[inline]
    fn partition(self, page: &[u8], len: usize, left: impl Fn(u64) -> bool) -> usize {
        debug_assert_eq!(self.width, 8);
        self.numbers(page, len).partition_point(|&field| left(u64::from_le_bytes(field)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_found_moved_and_removed() {
        let (column, mut page) = (Column::new(3, 8), vec![0; 64]);
        for (i, number) in [10, 20, 30].into_iter().enumerate() {
            column.set_number(&mut page, i, number);
        }
        assert_eq!(column.find(&page, 3, 20), Ok(1));
        assert_eq!(column.find(&page, 3, 25), Err(2));
        assert_eq!((column.lower_bound(&page, 3, 20), column.upper_bound(&page, 3, 20)), (1, 2));
        column.open(&mut page, 1, 1, 3);
        column.set_number(&mut page, 1, 15);
        let read = |page: &[u8], len| (0..len).map(|i| column.number(page, i)).collect::<Vec<_>>();
        assert_eq!(read(&page, 4), [10, 15, 20, 30]);
        column.close(&mut page, 0..2, 4);
        assert_eq!(read(&page, 2), [20, 30]);
        let mut other = vec![0; 64];
        column.copy(&page, 1..2, &mut other, 0);
        assert_eq!(read(&other, 1), [30]);
        assert_eq!(column.end(2), 19);
    }
}
