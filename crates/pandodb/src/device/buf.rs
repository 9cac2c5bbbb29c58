//! Page-aligned buffers, as direct I/O wants them, without a line of `unsafe`: a vector of pages that are aligned by
//! their type, seen as bytes through `zerocopy`.

use std::cell::RefCell;
use std::ops::{Deref, DerefMut};

use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout};

use crate::base::PAGE;

#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C, align(4096))]
struct Page([u8; PAGE]);

/// Bytes in whole, aligned pages. Always a multiple of 4,096 bytes long.
#[derive(Default)]
pub struct AlignedBuf {
    pages: Vec<Page>,
}

/// Buffers of 1, 2 and 4 pages that a thread keeps to be used again: reads of so few pages come by the hundred thousand, and
/// an allocator that has to align them leaves most of a page of nothing beside each.
const SPARE_SIZES: [usize; 3] = [1, 2, 4];
/// Pages in spare buffers of one size: as many as a thread has reads in flight.
const SPARE_PAGES: usize = 32;

thread_local! {
    static SPARES: RefCell<[Vec<Vec<Page>>; SPARE_SIZES.len()]> = const { RefCell::new([const { Vec::new() }; 3]) };
}

fn spare_size(pages: usize) -> Option<usize> {
    SPARE_SIZES.iter().position(|size| *size == pages)
}

impl Drop for AlignedBuf {
    fn drop(&mut self) {
        let Some(size) = spare_size(self.pages.len()) else { return };
        let pages = std::mem::take(&mut self.pages);
        // At the end of a thread there is nothing left to keep it in.
        let _ = SPARES.try_with(|spares| {
            let spares = &mut spares.borrow_mut()[size];
            if (spares.len() + 1) * pages.len() <= SPARE_PAGES {
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
        let spare = spare_size(pages).and_then(|size| SPARES.with(|spares| spares.borrow_mut()[size].pop()));
        match spare {
            Some(mut pages) => {
                pages.iter_mut().for_each(|page| page.0.fill(0));
                AlignedBuf { pages }
            }
            None => AlignedBuf { pages: Page::new_vec_zeroed(pages).expect("out of memory") },
        }
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
        self.pages.truncate(pages);
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
        self.pages.as_slice().as_bytes()
    }
}

impl DerefMut for AlignedBuf {
    #[inline]
    fn deref_mut(&mut self) -> &mut [u8] {
        self.pages.as_mut_slice().as_mut_bytes()
    }
}
