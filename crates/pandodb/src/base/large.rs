//! [`LargeVec`]: a vector whose memory the system gets back when it goes.
//!
//! What background work fills and drops again, a megabyte or ten at a time, is the worst that an allocator can be given: it
//! learns from the first one that comes back that such pieces are to be kept, and then what lives longer is put between them, so that no
//! piece fits where one was before. Measured with glibc: 50 to 80 MiB that nobody used after a load of 2.5 GB, a quarter of the budget.
//!
//! So what is longer than [`LARGE`] is a [`Slab`] of one piece, a mapping of its own. Shorter ones are vectors.

use std::fmt;
use std::ops::{Deref, DerefMut};

use zerocopy::FromZeros;

use super::{PAGE, Slab, Slot};

/// Bytes from which on a mapping of its own is worth its page faults.
pub const LARGE: usize = 128 << 10;

/// Values in a row that are nothing but their bytes.
pub struct LargeVec<T> {
    /// All of them, while they are few.
    few: Vec<T>,
    many: Option<Slot<T>>,
    len: usize,
}

impl<T: FromZeros + Copy> LargeVec<T> {
    /// No values, and no memory.
    pub const fn new() -> LargeVec<T> {
        LargeVec { few: Vec::new(), many: None, len: 0 }
    }

    /// So many zeros.
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

    /// `len` zeros in a mapping of their own, even if `len` is below [`LARGE`].
    ///
    /// # Panics
    /// If there is no memory left.
    pub fn mapped(len: usize) -> LargeVec<T> {
        LargeVec { few: Vec::new(), many: Some(mapped(len)), len }
    }

    /// Adds a value at the end. Past [`LARGE`] bytes all are copied each time that they have doubled.
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
    }

    #[cold]
    fn push_slowly(&mut self, value: T) {
        let mut larger = mapped(self.len * 2 + 1);
        larger[..self.len].copy_from_slice(self);
        larger[self.len] = value;
        (self.few, self.many) = (Vec::new(), Some(larger));
    }

    /// The capacity of the mapping, in values; 0 if the vector has no mapping.
    pub fn room(&self) -> usize {
        self.many.as_ref().map_or(0, |many| many.len())
    }

    /// Sets the length to `len` values, if the mapping has that capacity; returns whether it has. Values past the old length are
    /// zeros or what an earlier, longer content left there.
    pub fn stretch(&mut self, len: usize) -> bool {
        let fits = self.many.is_some() && len <= self.room();
        if fits {
            self.len = len;
        }
        fits
    }

    /// Keeps the first `len` values, if there are more.
    pub fn truncate(&mut self, len: usize) {
        self.few.truncate(len);
        self.len = self.len.min(len);
    }
}

impl<T: FromZeros + Copy + PartialEq> LargeVec<T> {
    /// Of equal values in a row keeps one.
    pub fn dedup(&mut self) {
        // One look at where they are, not one for each of them.
        let values = &mut self[..];
        let mut kept = values.len().min(1);
        for i in 1..values.len() {
            if values[i] != values[kept - 1] {
                values[kept] = values[i];
                kept += 1;
            }
        }
        self.truncate(kept);
    }
}

/// Room for that many values at least, zeros, in a mapping of its own.
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
    fn it_is_a_vector_whatever_its_length() {
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
    fn a_mapping_is_stretched_as_far_as_it_goes() {
        let mut mapped = LargeVec::<u64>::mapped(PAGE);
        assert!(mapped.len() == PAGE && mapped.iter().all(|value| *value == 0));
        mapped.fill(7);
        mapped.truncate(3);
        assert!(mapped.stretch(PAGE) && mapped[..] == [7; PAGE]);
        assert!(!mapped.stretch(PAGE + 1) && mapped.len() == PAGE, "no room");
        assert!(!LargeVec::<u64>::zeroed(3).stretch(2), "no mapping");
    }

    #[test]
    fn zeros_are_zeros_where_others_stood() {
        for len in [0, 3, LARGE, LARGE * 3] {
            let mut large = LargeVec::<u64>::zeroed(len);
            assert!(large.len() == len && large.iter().all(|value| *value == 0));
            large.fill(u64::MAX);
        }
    }
}
