//! Page-aligned buffers, as direct I/O wants them, without a line of `unsafe` here: pages that are aligned by
//! their type, in a vector or a mapping of their own, seen as bytes through `zerocopy`.

use std::cell::RefCell;
use std::ops::{Deref, DerefMut};

use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout};

use crate::base::{LargeVec, PAGE};

#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C, align(4096))]
struct Page([u8; PAGE]);

/// Bytes in whole, aligned pages. Always a multiple of 4,096 bytes long.
#[derive(Default)]
pub struct AlignedBuf {
    pages: Pages,
}

/// Where they are.
enum Pages {
    /// Up to 64 of them: kept by the thread for the next one.
    Few(Vec<Page>),
    /// More, in memory that goes back to the system.
    Many(LargeVec<Page>),
}

impl Default for Pages {
    fn default() -> Pages {
        Pages::Few(Vec::new())
    }
}

impl Deref for Pages {
    type Target = [Page];
    #[inline]
    fn deref(&self) -> &[Page] {
        match self {
            Pages::Few(pages) => pages,
            Pages::Many(pages) => pages,
        }
    }
}

impl DerefMut for Pages {
    #[inline]
    fn deref_mut(&mut self) -> &mut [Page] {
        match self {
            Pages::Few(pages) => pages,
            Pages::Many(pages) => pages,
        }
    }
}

/// Sizes of the buffers that a thread keeps to be used again: 1, 2, 4, … 64 pages. Small ones come by the hundred thousand, and an allocator that
/// has to align them leaves most of a page of nothing beside each. Between large ones it puts what lives longer, and then their space is not
/// used again as a whole: that cost scans of two threads 18 to 90 MiB (decision 0030).
const SIZES: usize = 7;
/// Spare buffers of each size: as many as a thread has reads in flight, of the small ones.
const SPARES: [usize; SIZES] = [32, 16, 8, 4, 4, 2, 2];

thread_local! {
    static SPARE: RefCell<[Vec<Vec<Page>>; SIZES]> = const { RefCell::new([const { Vec::new() }; SIZES]) };
}

/// The size that so many pages fit into: 2 to its power.
fn size_of(pages: usize) -> Option<usize> {
    let size = pages.next_power_of_two().trailing_zeros() as usize;
    (pages > 0 && size < SIZES).then_some(size)
}

impl Drop for AlignedBuf {
    fn drop(&mut self) {
        let Pages::Few(pages) = std::mem::take(&mut self.pages) else { return };
        let room = pages.capacity();
        let Some(size) = size_of(room).filter(|size| room == 1 << size) else { return };
        // At the end of a thread there is nothing left to keep it in.
        let _ = SPARE.try_with(|spares| {
            let spares = &mut spares.borrow_mut()[size];
            if spares.len() < SPARES[size] {
                spares.push(pages);
            }
        });
    }
}

impl AlignedBuf {
    /// A zeroed buffer of `pages` pages.
    ///
    /// # Panics
    /// If the allocator has no memory left; callers bound `pages` before they believe it.
    pub fn zeroed(pages: usize) -> AlignedBuf {
        AlignedBuf::spare(pages, Vec::clear).unwrap_or_else(|| AlignedBuf::new(pages))
    }

    /// A buffer of `pages` pages to read into: what is in it is what was in some buffer before.
    ///
    /// # Panics
    /// As [`AlignedBuf::zeroed`].
    pub fn to_read(pages: usize) -> AlignedBuf {
        AlignedBuf::spare(pages, |_| ()).unwrap_or_else(|| AlignedBuf::new(pages))
    }

    fn new(pages: usize) -> AlignedBuf {
        let Some(size) = size_of(pages) else {
            return AlignedBuf { pages: Pages::Many(LargeVec::zeroed(pages)) };
        };
        let mut new = Page::new_vec_zeroed(1 << size).expect("out of memory");
        new.truncate(pages);
        AlignedBuf { pages: Pages::Few(new) }
    }

    /// One that this thread has kept, prepared and filled up with zeros.
    fn spare(pages: usize, prepare: impl FnOnce(&mut Vec<Page>)) -> Option<AlignedBuf> {
        let size = size_of(pages)?;
        let mut spare = SPARE.try_with(|spares| spares.borrow_mut()[size].pop()).ok()??;
        prepare(&mut spare);
        spare.resize(pages, Page([0; PAGE]));
        Some(AlignedBuf { pages: Pages::Few(spare) })
    }

    /// A copy of `bytes`, padded with zeros to whole pages.
    pub fn from_bytes(bytes: &[u8]) -> AlignedBuf {
        let mut buf = AlignedBuf::zeroed(bytes.len().div_ceil(PAGE));
        buf[..bytes.len()].copy_from_slice(bytes);
        buf
    }

    /// The number of pages.
    pub fn pages(&self) -> usize {
        self.pages.len()
    }

    /// Keeps the first `pages` pages.
    pub fn truncate(&mut self, pages: usize) {
        match &mut self.pages {
            Pages::Few(few) => few.truncate(pages),
            Pages::Many(many) => many.truncate(pages),
        }
    }
}

impl std::fmt::Debug for AlignedBuf {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "AlignedBuf({} pages)", self.pages.len())
    }
}

impl Deref for AlignedBuf {
    type Target = [u8];
    #[inline]
    fn deref(&self) -> &[u8] {
        self.pages.as_bytes()
    }
}

impl DerefMut for AlignedBuf {
    #[inline]
    fn deref_mut(&mut self) -> &mut [u8] {
        self.pages.as_mut_bytes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_buffer_that_is_used_again_has_its_length_and_zeros_where_they_were_asked_for() {
        for pages in [1, 2, 3, 4, 5, 33, 64, 65, 200] {
            let mut first = AlignedBuf::zeroed(pages);
            assert_eq!((first.len(), first.pages()), (pages * PAGE, pages));
            assert_eq!(first.as_ptr() as usize % PAGE, 0);
            first.fill(0xa5);
            first.truncate(pages.div_ceil(2));
            drop(first);
            let again = AlignedBuf::to_read(pages);
            assert_eq!(again.len(), pages * PAGE);
            drop(again);
            let zeroed = AlignedBuf::zeroed(pages);
            assert!(zeroed.len() == pages * PAGE && zeroed.iter().all(|byte| *byte == 0), "{pages}");
        }
        assert_eq!(AlignedBuf::zeroed(0).len(), 0);
        assert_eq!(AlignedBuf::default().pages(), 0);
    }

    #[test]
    fn a_thread_keeps_few_buffers() {
        let kept = || SPARE.with(|spares| spares.borrow().iter().flatten().map(Vec::capacity).sum::<usize>());
        let most: usize = SPARES.iter().enumerate().map(|(size, count)| count << size).sum();
        for pages in 1..=80 {
            drop((0..40).map(|_| AlignedBuf::zeroed(pages)).collect::<Vec<_>>());
        }
        assert_eq!(kept(), most);
        assert!(most * PAGE < 2 << 20);
    }
}
