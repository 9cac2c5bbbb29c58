//! A slab: memory for pieces of one size, which the slab returns to the operating system when fewer pieces may be in
//! memory.
//!
//! Cached blocks and memtables share one memory budget, and memory moves between them hundreds of times a minute. A
//! general allocator keeps freed memory: a free page between two used pages does not return to the system. So if half
//! of the cached blocks were evicted, hardly any memory would become free for a memtable. In contrast, each piece of a
//! slab consists of whole pages of a mapping that belongs to the slab. An unneeded piece is *discarded*: its pages
//! return to the system, and its addresses stay reserved.
//!
//! ```text
//!   reserved addresses   |■■|■■|··|■■|□□|··|■■|                          |
//!                         in use  │     │                ▲ fresh: never touched
//!                         discarded     free: in memory
//! ```
//!
//! 1. [`Slab::take`] returns a free piece. If there is none, it returns a discarded piece, or else a fresh piece. When
//!    the reserved addresses are used up, a piece comes from the allocator. A piece also comes from the allocator if no
//!    memory can be mapped (systems other than Linux, pages larger than 4 KiB, miri, the explorer).
//! 2. The caller owns a piece ([`Slot`]) like a box. A dropped piece joins the free pieces if there are fewer than
//!    `spare` of them, or if all pieces in memory are within a limit ([`Slab::keep_within`]). Otherwise it is
//!    discarded.
//! 3. If the limit falls, free pieces are discarded until the rest is within the limit. Discarding a single piece takes
//!    some microseconds, because it interrupts the other processors. Pieces with consecutive numbers are discarded
//!    together.
//!
//! Invariants: the number of a piece is in exactly one place (a [`Slot`], the free list, the discarded list, the fresh
//! range, or the local variable of a thread that is discarding the piece), so two slots never overlap. The memory of a
//! new slot holds zeros or the values that an earlier slot of the same slab wrote. Zeros and earlier values are both
//! valid values of the slab's type.
//!
//! Source: our own design; page allocators generally separate reserving addresses from backing them with memory.
#![allow(unsafe_code)]

#[cfg(test)]
mod tests;

use std::collections::VecDeque;
use std::marker::PhantomData;
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;
use std::sync::Arc;

use rustix::mm::{Advice, MapFlags, ProtFlags};
use zerocopy::FromZeros;

use super::PAGE;
use crate::base::sync::{EXPLORED, Mutex};

/// Whether pieces can be mapped. They cannot under Miri, which does not support discarding. Under the explorer they are
/// not mapped, because each use of the slab's lock would be a switch point.
const MAPPED: bool = cfg!(all(target_os = "linux", not(miri))) && !EXPLORED;

/// A component that can release memory to memtables: the buffer pool. This interface is a trait because the models of
/// `crates/explore/loom` build memtables without a pool.
pub trait MemorySource: std::fmt::Debug + Send + Sync {
    /// Shrinks this component's budget by `bytes`.
    fn reserve(&self, bytes: usize);
    /// Returns `bytes` that an earlier [`MemorySource::reserve`] took.
    fn release(&self, bytes: usize);
}

/// A slab with pieces of `len` values each. Each slot holds a reference to its slab.
#[derive(Debug)]
pub struct Slab<T> {
    /// The number of values in a piece. The values of a piece fill whole pages.
    len: usize,
    reserved: Option<Reserved<T>>,
    pieces: Mutex<Pieces>,
    /// Makes the slab invariant in `T`. The owner of a slot may find values that an earlier owner wrote, so the types
    /// of both must be the same, including their lifetimes.
    exact: PhantomData<fn(T) -> T>,
}

/// The pieces of the reserved addresses that are not in use.
#[derive(Debug)]
struct Pieces {
    /// Pieces that are in memory. The last piece was used most recently.
    free: VecDeque<u32>,
    /// Pieces that are not in memory.
    discarded: Vec<u32>,
    /// The number of the first piece that was never used. All higher pieces were never used either.
    fresh: u32,
    /// Up to this number of free pieces stay in memory, whatever the limit is.
    spare: usize,
    /// More free pieces stay in memory as long as at most this number of pieces are in memory, used or not.
    within: usize,
    /// The number of pieces to which other memory amounts that counts against the limit ([`Slab::count_beside`]).
    beside: usize,
}

impl Pieces {
    /// The number of pieces that were used before and are not in use now.
    fn unused(&self) -> usize {
        self.free.len() + self.discarded.len()
    }

    /// The number of pieces in memory, with those beside the slab.
    fn in_memory(&self) -> usize {
        self.fresh as usize - self.discarded.len() + self.beside
    }

    /// Removes the free pieces that exceed the limit, those that were used longest ago first.
    fn take_excess(&mut self) -> Vec<u32> {
        let excess = self.in_memory().saturating_sub(self.within);
        self.free.drain(..excess.min(self.free.len().saturating_sub(self.spare))).collect()
    }
}

/// Mapped addresses for `pieces` pieces. Only touched pages occupy memory. The addresses are unmapped when this value
/// is dropped.
#[derive(Debug)]
struct Reserved<T> {
    at: NonNull<T>,
    bytes: usize,
    pieces: u32,
}

// SAFETY: the mapping belongs to no thread. Its bytes are accessed only through slots, each of which owns a separate
// part. A reference into a slot is sent to another thread only where a reference to `T` may be sent.
unsafe impl<T: Send> Send for Reserved<T> {}
// SAFETY: as for `Send`; a shared `Reserved` gives access only to the separate parts of the slots.
unsafe impl<T: Sync> Sync for Reserved<T> {}

impl<T: FromZeros> Slab<T> {
    /// A slab of pieces of `len` values. Reserves addresses for `most` pieces and occupies no memory yet. Up to `spare`
    /// returned pieces stay in memory, and more within the limit of [`Slab::keep_within`], which is 0 at first.
    ///
    /// # Panics
    /// If `len` values do not fill whole pages.
    pub fn new(len: usize, most: usize, spare: usize) -> Arc<Slab<T>> {
        let bytes = len * size_of::<T>();
        assert!(bytes > 0 && bytes.is_multiple_of(PAGE), "a piece is whole pages");
        let most = u32::try_from(most).unwrap_or(u32::MAX);
        const { assert!(align_of::<T>() <= PAGE, "a page is aligned as any value") };
        // If pieces are not whole pages of the system (which may be larger than 4 KiB), a single piece cannot be
        // discarded.
        let discards = MAPPED && bytes.is_multiple_of(rustix::param::page_size());
        let reserved = if discards { Reserved::new(bytes, most) } else { None };
        let (free, discarded) = (VecDeque::new(), Vec::new());
        let pieces = Pieces { free, discarded, fresh: 0, spare, within: 0, beside: 0 };
        Arc::new(Slab { len, reserved, pieces: Mutex::new(pieces), exact: PhantomData })
    }

    /// Takes a piece. The piece holds zeros or the values of an earlier owner. The call takes about 20 ns, plus the
    /// time of a page fault for each page of the piece that is not in memory.
    ///
    /// # Panics
    /// If there is no memory left.
    pub fn take(self: &Arc<Self>) -> Slot<T> {
        const { assert!(!std::mem::needs_drop::<T>(), "the values have no destructor") };
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

    /// A zeroed piece of `len` values from the allocator. The values need not fill whole pages.
    ///
    /// # Panics
    /// If there is no memory left.
    pub fn own(self: &Arc<Self>, len: usize) -> Slot<T> {
        const { assert!(!std::mem::needs_drop::<T>(), "the values have no destructor") };
        let own = <[T]>::new_box_zeroed_with_elems(len).expect("memory for a piece of a slab");
        Slot { values: NonNull::from(Box::leak(own)), slab: self.clone(), number: None }
    }

    fn number(&self) -> Option<u32> {
        let most = self.reserved.as_ref()?.pieces;
        let mut pieces = self.pieces.lock();
        debug_assert!(pieces.fresh <= most, "fresh pieces lie within the reserved addresses");
        debug_assert!(pieces.unused() <= pieces.fresh as usize, "a piece is in one list at most");
        let used = pieces.free.pop_back().or_else(|| pieces.discarded.pop());
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
        debug_assert!(number < pieces.fresh, "the slab has given out this piece");
        debug_assert!(pieces.unused() < pieces.fresh as usize, "a piece in use is in no list");
        if pieces.free.len() < pieces.spare || pieces.in_memory() <= pieces.within {
            return pieces.free.push_back(number);
        }
        drop(pieces);
        self.discard(vec![number]);
    }

    /// Lets returned pieces stay in memory as long as at most `within` pieces are in memory, used or not. Discards free
    /// pieces until this is so.
    ///
    /// `within` is called under the slab's lock, so that of several threads the last one sets the newest limit.
    pub fn keep_within(&self, within: impl FnOnce() -> usize) {
        self.adjust(|pieces| pieces.within = within());
    }

    /// Counts memory of the size of `more` pieces against the limit of [`Slab::keep_within`], and no longer that of
    /// `fewer` pieces.
    pub fn count_beside(&self, more: usize, fewer: usize) {
        self.adjust(|pieces| pieces.beside = pieces.beside + more - fewer);
    }

    fn adjust(&self, change: impl FnOnce(&mut Pieces)) {
        if self.reserved.is_none() {
            return;
        }
        let mut pieces = self.pieces.lock();
        change(&mut pieces);
        let excess = pieces.take_excess();
        drop(pieces);
        self.discard(excess);
    }

    /// Returns the memory of unused pieces, which are in no list, to the system.
    fn discard(&self, mut numbers: Vec<u32>) {
        let Some(reserved) = self.reserved.as_ref().filter(|_| !numbers.is_empty()) else { return };
        numbers.sort_unstable();
        for together in numbers.chunk_by(|a, b| a + 1 == *b) {
            reserved.discard(together[0], self.bytes(), together.len());
        }
        self.pieces.lock().discarded.append(&mut numbers);
    }
}

impl<T> Reserved<T> {
    fn new(piece: usize, pieces: u32) -> Option<Reserved<T>> {
        let bytes = piece.checked_mul(pieces as usize).filter(|bytes| *bytes > 0 && isize::try_from(*bytes).is_ok())?;
        let (prot, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE | MapFlags::NORESERVE);
        // SAFETY: a new mapping at an address that the kernel chooses overlaps no memory of this process.
        let at = unsafe { rustix::mm::mmap_anonymous(std::ptr::null_mut(), bytes, prot, flags).ok()? };
        // With huge pages, touching one piece would allocate memory for a whole huge page.
        // SAFETY: the range is the mapping that was just made.
        let _ = unsafe { rustix::mm::madvise(at, bytes, Advice::LinuxNoHugepage) };
        NonNull::new(at.cast::<T>()).map(|at| Reserved { at, bytes, pieces })
    }

    /// The first value of piece `number`, for pieces of `len` values.
    fn piece(&self, number: u32, len: usize) -> NonNull<T> {
        assert!(number < self.pieces, "a piece of the reserved addresses");
        // SAFETY: the piece begins within the mapping, which is one allocation of at most `isize::MAX` bytes.
        unsafe { self.at.add(number as usize * len) }
    }

    /// Returns the memory of `count` unused pieces, from piece `number` on, to the system. They read as zeros from then
    /// on.
    fn discard(&self, number: u32, bytes: usize, count: usize) {
        let at = self.piece(number, bytes / size_of::<T>());
        assert!(number as usize + count <= self.pieces as usize, "pieces of the reserved addresses");
        // SAFETY: the range is `count` pieces of the mapping. No slot owns one of these pieces now, so no code refers
        // to them. Zeros are valid values of `T`. If the system refuses, the old values stay.
        let _ = unsafe { rustix::mm::madvise(at.as_ptr().cast(), bytes * count, Advice::LinuxDontNeed) };
    }
}

impl<T> Drop for Reserved<T> {
    fn drop(&mut self) {
        // SAFETY: the range is the mapping that `new` made. Every slot keeps its slab alive, and the slab owns the
        // mapping, so no slot is left.
        let unmapped = unsafe { rustix::mm::munmap(self.at.as_ptr().cast(), self.bytes) };
        debug_assert!(unmapped.is_ok(), "{unmapped:?}");
    }
}

/// A piece of a slab, owned. Dereferences to its values.
pub struct Slot<T> {
    values: NonNull<[T]>,
    slab: Arc<Slab<T>>,
    /// The number of the piece in the slab; `None` if the slot is a box of its own.
    number: Option<u32>,
}

// SAFETY: a slot owns its values like a box.
unsafe impl<T: Send> Send for Slot<T> {}
// SAFETY: a shared slot hands out shared references to its values, like a shared box.
unsafe impl<T: Sync> Sync for Slot<T> {}

impl<T> Deref for Slot<T> {
    type Target = [T];

    #[inline]
    fn deref(&self) -> &[T] {
        // SAFETY: the values belong to a box, or to a piece of the mapping that the slab keeps alive. The pages of the
        // piece are zeros (valid by `FromZeros`) or were written as `T`s. Only this slot owns the values, so a holder
        // of `&self` may read them.
        unsafe { self.values.as_ref() }
    }
}

impl<T> DerefMut for Slot<T> {
    #[inline]
    fn deref_mut(&mut self) -> &mut [T] {
        // SAFETY: as in `deref`, and `&mut self` is the only access to the values.
        unsafe { self.values.as_mut() }
    }
}

impl<T> Drop for Slot<T> {
    fn drop(&mut self) {
        match self.number {
            Some(number) => self.slab.take_back(number),
            // SAFETY: without a number the slot was made from a box (`Slab::take`, `Slab::own`), and no code uses the
            // box any more.
            None => drop(unsafe { Box::from_raw(self.values.as_ptr()) }),
        }
    }
}

impl<T> std::fmt::Debug for Slot<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Slot({:?})", self.number)
    }
}
