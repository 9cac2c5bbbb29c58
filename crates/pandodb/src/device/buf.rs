//! Page-aligned buffers for direct I/O.
//!
//! A buffer consists of pages, which are in a vector or in a mapping of their own. The type of a page guarantees its
//! alignment. The pages are viewed as bytes through `zerocopy`, so this file needs no `unsafe`.
//!
//! 1. [`AlignedBuf::zeroed`] and [`AlignedBuf::to_read`] reuse a kept buffer of the right size class. If no such buffer
//!    is kept, these functions allocate one.
//! 2. A dropped buffer of 1, 2 or 4 pages is kept by its thread, and a dropped buffer of 8 to 64 pages by the process,
//!    up to fixed numbers of buffers.
//!
//! Invariant: the address is page-aligned, and the length is a multiple of 4,096 bytes.

use std::cell::RefCell;
use std::ops::{Deref, DerefMut};

use parking_lot::Mutex;
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout};

use crate::base::{LargeVec, PAGE};

#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C, align(4096))]
struct Page([u8; PAGE]);

const _: () =
    assert!(std::mem::size_of::<Page>() == PAGE && align_of::<Page>() == PAGE, "direct I/O needs aligned pages");

/// Bytes in whole, aligned pages. The length is always a multiple of 4,096 bytes.
#[derive(Default)]
pub struct AlignedBuf {
    pages: Pages,
}

/// The pages of a buffer. The variant shows how the pages are allocated.
enum Pages {
    /// 1 to 4 pages, from the allocator. When the buffer is dropped, its thread may keep the pages for the next buffer.
    Few(Vec<Page>),
    /// More pages, in a mapping of their own. When the buffer is dropped, up to 64 pages may be kept for any thread;
    /// longer buffers are unmapped.
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

/// The number of size classes of kept buffers: 1, 2, 4, … 64 pages. Small buffers are allocated hundreds of thousands
/// of times, and to align a small buffer, an allocator wastes most of a page. An allocator puts longer-lived data
/// between large buffers, so that the space of freed buffers is too fragmented for new ones. Scans of two threads
/// wasted 18 to 90 MiB in this way, and each background thread 10 MiB (decisions 0030 and 0056).
const SIZES: usize = 7;
/// Buffers of the first 3 sizes (1, 2 and 4 pages) are kept by each thread.
const SMALL: usize = 3;
/// The number of buffers of each small size that a thread keeps. A thread may have 32 reads of 1 page in flight.
const SPARES: [usize; SMALL] = [32, 4, 2];
/// The number of buffers of each larger size that the process keeps for all of its threads together.
const SHARED: usize = 6;

const _: () = assert!(SMALL < SIZES, "some sizes are kept by threads, the larger ones by the process");

thread_local! {
    static SPARE: RefCell<[Vec<Vec<Page>>; SMALL]> = const { RefCell::new([const { Vec::new() }; SMALL]) };
}

/// The kept buffers of the larger sizes. A thread only tries these locks and never blocks on them. In a forked child, a
/// lock that another thread of the parent held at the time of the fork is never released. The child then uses the other
/// locks.
static SHARED_SPARE: [[Mutex<Option<LargeVec<Page>>>; SHARED]; SIZES - SMALL] =
    [const { [const { Mutex::new(None) }; SHARED] }; SIZES - SMALL];

/// The smallest size class with at least `pages` pages, as the exponent of its power of two.
fn size_of(pages: usize) -> Option<usize> {
    let size = pages.next_power_of_two().trailing_zeros() as usize;
    (pages > 0 && size < SIZES).then_some(size)
}

impl Drop for AlignedBuf {
    fn drop(&mut self) {
        match std::mem::take(&mut self.pages) {
            Pages::Few(pages) => keep(pages),
            Pages::Many(pages) => share(pages),
        }
    }
}

/// Keeps a small buffer for the next allocation of this thread, unless the thread already keeps enough buffers of that
/// size.
fn keep(pages: Vec<Page>) {
    let room = pages.capacity();
    let Some(size) = size_of(room).filter(|size| room == 1 << size && *size < SMALL) else { return };
    // While a thread exits, its thread-local storage may be gone already.
    let _ = SPARE.try_with(|spares| {
        let spares = &mut spares.borrow_mut()[size];
        if spares.len() < SPARES[size] {
            spares.push(pages);
            debug_assert!(spares.iter().all(|spare| spare.capacity() == 1 << size), "one size in a list");
        }
    });
}

/// Keeps a larger buffer for the next thread that needs one of its size. If [`SHARED`] buffers of that size are kept
/// already, unmaps the buffer.
fn share(mut pages: LargeVec<Page>) {
    let room = pages.room();
    let Some(size) = size_of(room).filter(|size| room == 1 << size && *size >= SMALL) else { return };
    for place in &SHARED_SPARE[size - SMALL] {
        if let Some(mut place) = place.try_lock()
            && place.is_none()
        {
            let is_whole = pages.stretch(room);
            assert!(is_whole, "the next owner may need all {room} pages");
            *place = Some(pages);
            return;
        }
    }
}

/// A kept buffer with capacity for `pages` pages, truncated to that length; `None` if no such buffer is kept.
fn kept(pages: usize) -> Option<AlignedBuf> {
    let size = size_of(pages)?;
    if size < SMALL {
        let mut spare = SPARE.try_with(|spares| spares.borrow_mut()[size].pop()).ok()??;
        debug_assert!(spare.capacity() >= pages, "a kept buffer of this size class has room for {pages} pages");
        spare.resize(pages, Page([0; PAGE]));
        return Some(AlignedBuf { pages: Pages::Few(spare) });
    }
    let mut spare = SHARED_SPARE[size - SMALL].iter().find_map(|place| place.try_lock()?.take())?;
    spare.truncate(pages);
    assert_eq!(spare.len(), pages, "a kept buffer of this size class has room");
    Some(AlignedBuf { pages: Pages::Many(spare) })
}

impl AlignedBuf {
    /// A zeroed buffer of `pages` pages.
    ///
    /// # Panics
    /// If memory cannot be allocated. A caller that reads `pages` from a file must check the number against a bound.
    pub fn zeroed(pages: usize) -> AlignedBuf {
        let Some(mut buf) = kept(pages) else { return AlignedBuf::new(pages) };
        buf.fill(0);
        buf
    }

    /// A buffer of `pages` pages to read into. The buffer holds the bytes of an earlier buffer, or zeros.
    ///
    /// # Panics
    /// As [`AlignedBuf::zeroed`].
    pub fn to_read(pages: usize) -> AlignedBuf {
        kept(pages).unwrap_or_else(|| AlignedBuf::new(pages))
    }

    fn new(pages: usize) -> AlignedBuf {
        let wanted = pages;
        let pages = match size_of(pages) {
            Some(size) if size < SMALL => {
                let mut new = Page::new_vec_zeroed(1 << size).expect("out of memory");
                new.truncate(pages);
                Pages::Few(new)
            }
            Some(size) => {
                let mut new = LargeVec::mapped(1 << size);
                new.truncate(pages);
                Pages::Many(new)
            }
            None => Pages::Many(LargeVec::zeroed(pages)),
        };
        assert_eq!(pages.len(), wanted, "callers read and write whole buffers");
        AlignedBuf { pages }
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

    /// Keeps the first `pages` pages and removes the others.
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
    fn a_reused_buffer_has_the_right_length_and_is_zeroed_on_request() {
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
    fn the_number_of_kept_buffers_is_bounded() {
        let most: usize = SPARES.iter().enumerate().map(|(size, count)| count << size).sum();
        for pages in 1..=80 {
            drop((0..40).map(|_| AlignedBuf::zeroed(pages)).collect::<Vec<_>>());
        }
        let kept: usize = SPARE.with(|spares| spares.borrow().iter().flatten().map(Vec::capacity).sum());
        assert_eq!(kept, most);
        assert!(most * PAGE < 256 << 10);
        // Other tests may hold some of the locks.
        let places = SHARED_SPARE.iter().flatten().filter_map(|place| place.try_lock()?.as_ref().map(LargeVec::room));
        let shared: usize = places.sum();
        assert!(shared * PAGE <= SHARED * (8 + 16 + 32 + 64) * PAGE && SHARED * 120 * PAGE < 3 << 20, "{shared}");
    }

    #[test]
    fn a_large_buffer_is_kept_for_another_thread() {
        // Other tests take and return buffers concurrently.
        let is_kept = || {
            let mut first = AlignedBuf::zeroed(13);
            first.fill(7);
            std::thread::spawn(move || drop(first)).join().unwrap();
            let all: Vec<AlignedBuf> = (0..=SHARED).map(|_| AlignedBuf::to_read(13)).collect();
            assert!(all.iter().all(|buf| buf.len() == 13 * PAGE));
            all.iter().any(|buf| buf.iter().all(|byte| *byte == 7))
        };
        assert!((0..100).any(|_| is_kept()), "the buffer was never kept");
    }
}
