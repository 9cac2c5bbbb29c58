//! [`LargeVec`]: a vector whose memory returns to the operating system when the vector is dropped.
//!
//! Background work fills and drops vectors of 1 to 10 MB. General allocators handle that pattern badly. After the first
//! free, the allocator keeps pieces of that size instead of unmapping them. The allocator then puts longer-lived data
//! between these pieces, and later vectors no longer fit. With glibc, 50 to 80 MiB of memory (a quarter of the memory
//! budget) were unused after a load of 2.5 GB.
//!
//! So a vector longer than [`LARGE`] bytes is a [`Slab`] of one piece, which has a mapping of its own. A shorter vector
//! is an ordinary vector.
//!
//! Invariant: while `many` is `None`, `few` holds all values; otherwise `many` holds all values and `few` is empty.

use std::fmt;
use std::ops::{Deref, DerefMut};

use zerocopy::FromZeros;

use super::{PAGE, Slab, Slot};

/// The length in bytes above which the benefit of a mapping outweighs the cost of its page faults.
pub const LARGE: usize = 128 << 10;

const _: () = assert!(LARGE.is_multiple_of(PAGE), "values of any size change to a mapping at a page");

/// A vector of plain values (every byte pattern is valid, and there is no destructor).
pub struct LargeVec<T> {
    /// All values, while the vector has no mapping.
    few: Vec<T>,
    many: Option<Slot<T>>,
    len: usize,
}

impl<T: FromZeros + Copy> LargeVec<T> {
    /// A vector without values and without memory.
    pub const fn new() -> LargeVec<T> {
        LargeVec { few: Vec::new(), many: None, len: 0 }
    }

    /// A vector of `len` zeros.
    ///
    /// # Panics
    /// If there is no memory left.
    pub fn zeroed(len: usize) -> LargeVec<T> {
        let mut zeros = LargeVec { few: Vec::new(), many: None, len };
        if len.saturating_mul(size_of::<T>()) > LARGE {
            zeros.many = Some(mapped(len));
        } else {
            zeros.few = T::new_vec_zeroed(len).expect("memory for a few values");
        }
        zeros
    }

    /// A vector of `len` zeros in a mapping of its own, even if `len` is below [`LARGE`].
    ///
    /// # Panics
    /// If there is no memory left.
    pub fn mapped(len: usize) -> LargeVec<T> {
        LargeVec { few: Vec::new(), many: Some(mapped(len)), len }
    }

    /// Appends a value. If the vector is longer than [`LARGE`] bytes and full, its capacity doubles: all values are
    /// copied into a new mapping.
    ///
    /// # Panics
    /// If there is no memory left.
    #[inline]
    pub fn push(&mut self, value: T) {
        match &mut self.many {
            Some(many) if self.len < many.len() => many[self.len] = value,
            None if self.len < LARGE / size_of::<T>() => self.few.push(value),
            _ => self.push_slowly(value),
        }
        self.len += 1;
        debug_assert!(self.many.is_none() || self.few.is_empty(), "one of the two holds all values");
    }

    #[cold]
    fn push_slowly(&mut self, value: T) {
        debug_assert!(self.many.is_none() || self.len == self.room(), "a mapping grows when it is full");
        let mut larger = mapped(self.len * 2 + 1);
        larger[..self.len].copy_from_slice(self);
        larger[self.len] = value;
        (self.few, self.many) = (Vec::new(), Some(larger));
    }

    /// The capacity of the mapping, in values; 0 if the vector has no mapping.
    pub fn room(&self) -> usize {
        self.many.as_ref().map_or(0, |many| many.len())
    }

    /// If the capacity of the mapping is at least `len`, sets the length to `len` values and returns `true`; otherwise
    /// returns `false`. Values beyond the old length are zeros or remains of an earlier, longer content.
    pub fn stretch(&mut self, len: usize) -> bool {
        let fits = self.many.is_some() && len <= self.room();
        if fits {
            debug_assert!(self.few.is_empty(), "a mapping holds all values");
            self.len = len;
        }
        fits
    }

    /// Keeps the first `len` values and removes the others, if there are more.
    pub fn truncate(&mut self, len: usize) {
        self.few.truncate(len);
        self.len = self.len.min(len);
    }
}

impl<T: FromZeros + Copy + PartialEq> LargeVec<T> {
    /// Keeps one value of each group of equal adjacent values.
    pub fn dedup(&mut self) {
        // Dereference `self` once, instead of once for each value.
        let values = &mut self[..];
        let mut kept = values.len().min(1);
        for i in 1..values.len() {
            if values[i] != values[kept - 1] {
                values[kept] = values[i];
                kept += 1;
            }
        }
        self.truncate(kept);
        debug_assert!(self.windows(2).all(|pair| pair[0] != pair[1]), "no two adjacent values are equal");
    }
}

/// A zeroed mapping with capacity for at least `len` values.
fn mapped<T: FromZeros>(len: usize) -> Slot<T> {
    const { assert!(PAGE.is_multiple_of(size_of::<T>()) || size_of::<T>().is_multiple_of(PAGE), "whole pages of values") };
    Slab::new(len.next_multiple_of(PAGE.div_ceil(size_of::<T>())), 1, 0).take()
}

impl<T: FromZeros + Copy> Default for LargeVec<T> {
    fn default() -> LargeVec<T> {
        LargeVec::new()
    }
}

impl<T> Deref for LargeVec<T> {
    type Target = [T];

    #[inline]
    fn deref(&self) -> &[T] {
        self.many.as_ref().map_or(&self.few[..], |many| &many[..self.len])
    }
}

impl<T> DerefMut for LargeVec<T> {
    #[inline]
    fn deref_mut(&mut self) -> &mut [T] {
        match &mut self.many {
            Some(many) => &mut many[..self.len],
            None => &mut self.few[..],
        }
    }
}

impl<T> fmt::Debug for LargeVec<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "LargeVec({} values)", self.len)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_behaves_as_a_vector_at_every_length() {
        let few = LARGE / 8;
        for len in [0, 1, few - 1, few, few + 1, 2 * few, 2 * few + 1, 2 * few + 2, 5 * few + 77] {
            let mut large = LargeVec::new();
            (0..len as u64).for_each(|i| large.push(i / 3));
            assert!(large.iter().copied().eq((0..len as u64).map(|i| i / 3)), "{len}");
            assert_eq!(large.len(), len);
            large.dedup();
            assert!(large.iter().copied().eq(0..len.div_ceil(3) as u64), "{len}");
            large.push(7);
            assert_eq!((large.len(), large.last()), (len.div_ceil(3) + 1, Some(&7)));
            large.truncate(0);
            assert!(large.is_empty());
        }
    }

    #[test]
    fn a_mapping_is_stretched_up_to_its_capacity() {
        let mut mapped = LargeVec::<u64>::mapped(PAGE);
        assert!(mapped.len() == PAGE && mapped.iter().all(|value| *value == 0));
        mapped.fill(7);
        mapped.truncate(3);
        assert!(mapped.stretch(PAGE) && mapped[..] == [7; PAGE]);
        assert!(!mapped.stretch(PAGE + 1) && mapped.len() == PAGE, "no room");
        assert!(!LargeVec::<u64>::zeroed(3).stretch(2), "no mapping");
    }

    #[test]
    fn zeroed_memory_is_zero_even_if_it_is_reused() {
        for len in [0, 3, LARGE, LARGE * 3] {
            let mut large = LargeVec::<u64>::zeroed(len);
            assert!(large.len() == len && large.iter().all(|value| *value == 0));
            large.fill(u64::MAX);
        }
    }
}
