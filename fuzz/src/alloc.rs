//! A counting allocator. With it, every run of a target checks that malicious input cannot cause unbounded allocations.
//!
//! The allocator counts per thread, because targets are single-threaded and tests run concurrently.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

/// The allocations of a piece of work.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Demand {
    /// The largest single request, in bytes.
    pub largest: usize,
    /// The maximum number of bytes that were allocated at the same time, minus the bytes that were already allocated
    /// before the work.
    pub peak: usize,
}

thread_local! {
    static HELD: Cell<isize> = const { Cell::new(0) };
    static PEAK: Cell<isize> = const { Cell::new(0) };
    static LARGEST: Cell<usize> = const { Cell::new(0) };
}

struct Counting;

#[global_allocator]
static COUNTING: Counting = Counting;

fn took(bytes: usize) {
    // Allocations of a thread that is being destroyed are not counted.
    let _ = HELD.try_with(|held| {
        held.set(held.get() + bytes as isize);
        PEAK.set(PEAK.get().max(held.get()));
        LARGEST.set(LARGEST.get().max(bytes));
    });
}

fn gave(bytes: usize) {
    let _ = HELD.try_with(|held| held.set(held.get() - bytes as isize));
}

// SAFETY: every call is passed to the system's allocator unchanged. Counting accesses only thread-local cells, which
// need neither allocation nor destruction.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        took(layout.size());
        // SAFETY: the caller upholds the contract of `GlobalAlloc`, which is also the contract of the system allocator.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        took(layout.size());
        // SAFETY: as in `alloc`.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn dealloc(&self, place: *mut u8, layout: Layout) {
        gave(layout.size());
        // SAFETY: as in `alloc`.
        unsafe { System.dealloc(place, layout) }
    }

    unsafe fn realloc(&self, place: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        gave(layout.size());
        took(size);
        // SAFETY: as in `alloc`.
        unsafe { System.realloc(place, layout, size) }
    }
}

/// Runs `work`. Returns its result and its allocations on this thread.
pub fn measure<T>(work: impl FnOnce() -> T) -> (T, Demand) {
    let before = HELD.get();
    PEAK.set(before);
    LARGEST.set(0);
    let done = work();
    (done, Demand { largest: LARGEST.get(), peak: (PEAK.get() - before).max(0) as usize })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_are_counted() {
        let (kept, demand) = measure(|| {
            drop(vec![1u8; 1 << 20]);
            vec![1u8; 1 << 10]
        });
        assert_eq!((kept.len(), demand.largest, demand.peak), (1 << 10, 1 << 20, 1 << 20));
        let (_, demand) = measure(|| drop(std::hint::black_box((vec![0u8; 3000], vec![0u8; 2000]))));
        assert_eq!(demand, Demand { largest: 3000, peak: 5000 });
    }
}
