//! An allocator that counts, so that every run of a target proves that hostile input cannot ask for memory at will.
//!
//! Figures are kept for each thread: targets are single-threaded, and tests run beside each other.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

/// What a piece of work asked the allocator for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Demand {
    /// The largest single request, in bytes.
    pub largest: usize,
    /// The most that was held at a time beyond what was held before, in bytes.
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
    // A thread that is being torn down allocates without being counted.
    let _ = HELD.try_with(|held| {
        held.set(held.get() + bytes as isize);
        PEAK.set(PEAK.get().max(held.get()));
        LARGEST.set(LARGEST.get().max(bytes));
    });
}

fn gave(bytes: usize) {
    let _ = HELD.try_with(|held| held.set(held.get() - bytes as isize));
}

// SAFETY: every call is handed to the system's allocator unchanged; counting touches thread-local cells only, which
// need neither allocation nor destruction.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        took(layout.size());
        // SAFETY: the caller keeps the contract, which is the system allocator's.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        took(layout.size());
        // SAFETY: as above.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn dealloc(&self, place: *mut u8, layout: Layout) {
        gave(layout.size());
        // SAFETY: as above.
        unsafe { System.dealloc(place, layout) }
    }

    unsafe fn realloc(&self, place: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        gave(layout.size());
        took(size);
        // SAFETY: as above.
        unsafe { System.realloc(place, layout, size) }
    }
}

/// Does `work`; what it returns, and what it asked for on this thread.
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
