//! A slab: memory for many pieces of one size, which the system gets back as soon as fewer are in use.
//!
//! Cached blocks and memtables share one budget, and the memory goes from one to the other by the hundred times a minute. An
//! allocator keeps what it is given back: a page between two others that are in use stays the process's, and a cache that
//! has evicted half of its blocks to make room for a memtable has made none. Here each piece is whole pages of a mapping of
//! its own, and a piece that is not needed any more is *discarded*: the system takes its pages and leaves the addresses.
//!
//! ```text
//!   reserved addresses   |■■|■■|··|■■|□□|··|■■|                          |
//!                         in use  │     │                ▲ fresh: never touched
//!                         discarded     free: in memory, up to `spare` of them
//! ```
//!
//! 1. [`Slab::take`] hands out a free piece, else a discarded one, else a fresh one. Past the reserved addresses, and where nothing
//!    can be mapped (other systems than Linux, pages that are larger than ours, miri, the explorer), a piece comes from the allocator.
//! 2. A piece ([`Slot`]) is owned like a box and returns when it is dropped: among the free ones, or, if there are enough of
//!    those, discarded.
//!
//! Invariants: a number is in one [`Slot`] or in one of the two lists or fresh, or in nobody's sight while it is discarded; so two slots never overlap. What stands in a new slot is
//! zeros or what an earlier slot of the same slab had written: in both cases values of its type.
//!
//! Source: ours; the split of a reservation from what is backed by memory is that of every allocator of pages.
#![allow(unsafe_code)]

#[cfg(test)]
mod tests;

use std::marker::PhantomData;
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;
use std::sync::Arc;

use rustix::mm::{Advice, MapFlags, ProtFlags};
use zerocopy::FromZeros;

use super::PAGE;
use crate::base::sync::{EXPLORED, Mutex};

/// Whether pieces can be mapped: miri does not know how to discard, and under an explorer each lock is a point.
const MAPPED: bool = cfg!(all(target_os = "linux", not(miri))) && !EXPLORED;

/// Who has memory to lend: the buffer pool. A trait, since the models of `crates/explore/loom` build memtables without a pool.
pub trait Lender: std::fmt::Debug + Send + Sync {
    /// Makes do with so many bytes less.
    fn lend(&self, bytes: usize);
    /// Gets bytes back that were lent.
    fn take_back(&self, bytes: usize);
}

/// Pieces of `len` values each. Shared by its slots.
#[derive(Debug)]
pub struct Slab<T> {
    /// Values of a piece: whole pages of them.
    len: usize,
    reserved: Option<Reserved<T>>,
    pieces: Mutex<Pieces>,
    /// What one slot's owner has left another one's finds: both mean the same type, down to its lifetimes.
    exact: PhantomData<fn(T) -> T>,
}

/// Which pieces of the reserved addresses are not in use.
#[derive(Debug)]
struct Pieces {
    /// In memory; the last one was used last.
    free: Vec<u32>,
    /// Not in memory.
    discarded: Vec<u32>,
    /// This one and all after it were never used.
    fresh: u32,
    /// The most that are kept in memory.
    spare: usize,
}

/// Addresses for so many pieces, mapped, of which only what is touched takes memory. Unmapped when dropped.
#[derive(Debug)]
struct Reserved<T> {
    at: NonNull<T>,
    bytes: usize,
    pieces: u32,
}

// SAFETY: the mapping belongs to no thread, and its bytes are reached through slots only, each of which owns a part of its own; a
// reference into a slot goes to another thread only as one to a `T` may.
unsafe impl<T: Send> Send for Reserved<T> {}
// SAFETY: as above; a shared `Reserved` gives access to nothing but the slots' own parts.
unsafe impl<T: Sync> Sync for Reserved<T> {}

impl<T: FromZeros> Slab<T> {
    /// A slab of pieces of `len` values, up to `most` of them from addresses that are reserved here; no memory is taken yet. Up to
    /// `spare` pieces that come back stay in memory.
    ///
    /// # Panics
    /// If `len` values are not whole pages.
    pub fn new(len: usize, most: usize, spare: usize) -> Arc<Slab<T>> {
        let bytes = len * size_of::<T>();
        assert!(bytes > 0 && bytes.is_multiple_of(PAGE), "a piece is whole pages");
        let most = u32::try_from(most).unwrap_or(u32::MAX);
        const { assert!(align_of::<T>() <= PAGE, "a page is aligned as any value") };
        // Where the system's pages are larger than ours, a piece is not to be discarded by itself.
        let discards = MAPPED && bytes.is_multiple_of(rustix::param::page_size());
        let reserved = if discards { Reserved::new(bytes, most) } else { None };
        let pieces = Pieces { free: Vec::new(), discarded: Vec::new(), fresh: 0, spare };
        Arc::new(Slab { len, reserved, pieces: Mutex::new(pieces), exact: PhantomData })
    }

    /// A piece: zeros, or whatever an earlier owner has left. About 20 ns, and a page fault for each page that was not in memory.
    ///
    /// # Panics
    /// If there is no memory left.
    pub fn take(self: &Arc<Self>) -> Slot<T> {
        const { assert!(!std::mem::needs_drop::<T>(), "nobody drops the values") };
        let number = self.number();
        let values = match (number, &self.reserved) {
            (Some(number), Some(reserved)) => NonNull::slice_from_raw_parts(reserved.piece(number, self.len), self.len),
            _ => {
                let own = <[T]>::new_box_zeroed_with_elems(self.len).expect("memory for a piece of a slab");
                NonNull::from(Box::leak(own))
            }
        };
        Slot { values, slab: self.clone(), number }
    }

    /// A piece of so many values, which need not be whole pages, from the allocator: zeros.
    ///
    /// # Panics
    /// If there is no memory left.
    pub fn own(self: &Arc<Self>, len: usize) -> Slot<T> {
        const { assert!(!std::mem::needs_drop::<T>(), "nobody drops the values") };
        let own = <[T]>::new_box_zeroed_with_elems(len).expect("memory for a piece of a slab");
        Slot { values: NonNull::from(Box::leak(own)), slab: self.clone(), number: None }
    }

    fn number(&self) -> Option<u32> {
        let most = self.reserved.as_ref()?.pieces;
        let mut pieces = self.pieces.lock();
        let used = pieces.free.pop().or_else(|| pieces.discarded.pop());
        used.or_else(|| {
            let fresh = pieces.fresh;
            pieces.fresh += u32::from(fresh < most);
            (fresh < most).then_some(fresh)
        })
    }
}

impl<T> Slab<T> {
    fn bytes(&self) -> usize {
        self.len * size_of::<T>()
    }

    fn take_back(&self, number: u32) {
        let mut pieces = self.pieces.lock();
        if pieces.free.len() < pieces.spare {
            return pieces.free.push(number);
        }
        drop(pieces);
        if let Some(reserved) = &self.reserved {
            reserved.discard(number, self.bytes());
        }
        self.pieces.lock().discarded.push(number);
    }
}

impl<T> Reserved<T> {
    fn new(piece: usize, pieces: u32) -> Option<Reserved<T>> {
        let bytes = piece.checked_mul(pieces as usize).filter(|bytes| *bytes > 0 && isize::try_from(*bytes).is_ok())?;
        let (prot, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE | MapFlags::NORESERVE);
        // SAFETY: a new mapping at an address of the kernel's choice overlaps nothing of ours.
        let at = unsafe { rustix::mm::mmap_anonymous(std::ptr::null_mut(), bytes, prot, flags).ok()? };
        // A huge page would come back to memory as a whole for one piece of it.
        // SAFETY: the range is the mapping just made.
        let _ = unsafe { rustix::mm::madvise(at, bytes, Advice::LinuxNoHugepage) };
        NonNull::new(at.cast::<T>()).map(|at| Reserved { at, bytes, pieces })
    }

    /// The first value of a piece of so many values.
    fn piece(&self, number: u32, len: usize) -> NonNull<T> {
        assert!(number < self.pieces, "a piece of the reserved addresses");
        // SAFETY: the piece begins within the mapping, which is one allocation of at most `isize::MAX` bytes.
        unsafe { self.at.add(number as usize * len) }
    }

    /// Has the system take the memory of a piece that nobody uses: it reads as zeros from now on.
    fn discard(&self, number: u32, bytes: usize) {
        let at = self.piece(number, bytes / size_of::<T>());
        // SAFETY: the range is one piece of the mapping, which no slot owns now, so nothing refers to it. Zeros are values of `T`, and where the
        // system refuses, the old ones stay.
        let _ = unsafe { rustix::mm::madvise(at.as_ptr().cast(), bytes, Advice::LinuxDontNeed) };
    }
}

impl<T> Drop for Reserved<T> {
    fn drop(&mut self) {
        // SAFETY: the range is the mapping that `new` made, and every slot holds the slab that owns it: none is left.
        let unmapped = unsafe { rustix::mm::munmap(self.at.as_ptr().cast(), self.bytes) };
        debug_assert!(unmapped.is_ok(), "{unmapped:?}");
    }
}

/// A piece of a slab, owned. Dereferences to its values.
pub struct Slot<T> {
    values: NonNull<[T]>,
    slab: Arc<Slab<T>>,
    /// Which of the slab's pieces it is; `None` if it is a box of its own.
    number: Option<u32>,
}

// SAFETY: a slot owns its values as a box does.
unsafe impl<T: Send> Send for Slot<T> {}
// SAFETY: a shared slot gives out shared references to its values, as a shared box does.
unsafe impl<T: Sync> Sync for Slot<T> {}

impl<T> Deref for Slot<T> {
    type Target = [T];

    #[inline]
    fn deref(&self) -> &[T] {
        // SAFETY: the values are a box's, or a piece's of the mapping that the slab keeps alive; then its pages are zeros or were
        // written as `T`s, which zeros are by `FromZeros`. They are this slot's alone, so whoever has `&self` may read them.
        unsafe { self.values.as_ref() }
    }
}

impl<T> DerefMut for Slot<T> {
    #[inline]
    fn deref_mut(&mut self) -> &mut [T] {
        // SAFETY: as in `deref`, and `&mut self` is the only way to them.
        unsafe { self.values.as_mut() }
    }
}

impl<T> Drop for Slot<T> {
    fn drop(&mut self) {
        match self.number {
            Some(number) => self.slab.take_back(number),
            // SAFETY: without a number it was made from a box (`Slab::take`), and is not used any more.
            None => drop(unsafe { Box::from_raw(self.values.as_ptr()) }),
        }
    }
}

impl<T> std::fmt::Debug for Slot<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Slot({:?})", self.number)
    }
}
