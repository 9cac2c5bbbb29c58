//! Page-aligned buffers, as direct I/O wants them, without a line of `unsafe`: a vector of pages that are aligned by
//! their type, seen as bytes through `zerocopy`.

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

impl AlignedBuf {
    /// A zeroed buffer of `pages` pages.
    ///
    /// # Panics
    /// If the allocator has no memory left; callers bound `pages` before they believe it.
    pub fn zeroed(pages: usize) -> AlignedBuf {
        AlignedBuf { pages: Page::new_vec_zeroed(pages).expect("out of memory") }
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
