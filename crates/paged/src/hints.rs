//! Hints: the frames in which the children of a page were found last (000 §8.5).
//!
//! ```text
//!   page in memory   │ bytes: … child 0  child 1  child 2 … │      addresses in the file
//!                    │ hints:      12       –        7       │      frame numbers, only in memory
//! ```
//!
//! LeanStore, which the source names, replaces the address of a child by a pointer to its frame (*swizzling*). Safe Rust
//! cannot write into a page that other readers have latched, too. So the pointers are in an array of atomics beside the
//! bytes, and the addresses stay.
//!
//! 1. A thread that has latched the parent reads the hint of the child, pins this frame, and checks that the frame has
//!    the wanted page (`Frame::pin_if_holds`).
//! 2. If the check fails, the thread uses the page table, and sets the hint.
//!
//! A hint may be wrong: the child was evicted, or children have moved to other slots because a pivot was inserted. An
//! eviction therefore does not search for the hints that lead to its frame.
//!
//! Invariant: the array belongs to a page in a frame, and is dropped when the frame gets another page. So there are at
//! most as many arrays as inner pages in memory.

use crate::frame::PageNo;
use crate::sync::{AtomicU32, Once, Ordering};

/// A child of a page, as a page buffer finds it.
#[derive(Clone, Copy, Debug)]
pub struct Child {
    /// The page.
    pub no: PageNo,
    /// The slot of the child in its parent.
    pub slot: usize,
    /// The number of slots that the parent has. If it changes, the hints of the parent must be dropped.
    pub slots: usize,
}

/// A hint for each slot of a page. Without memory until the first hint is set.
#[derive(Debug, Default)]
pub struct Hints(Once<Box<[AtomicU32]>>);

/// No frame.
const NONE: u32 = u32::MAX;

impl Hints {
    /// The frame in which the child was found last.
    #[inline]
    pub(crate) fn get(&self, child: Child) -> Option<u32> {
        let frame = self.0.get()?.get(child.slot)?.load(Ordering::Relaxed);
        (frame != NONE).then_some(frame)
    }

    /// Notes the frame of a child.
    pub(crate) fn set(&self, child: Child, frame: u32) {
        debug_assert!(child.slot < child.slots, "a slot of the parent");
        let none = || std::iter::repeat_with(|| AtomicU32::new(NONE)).take(child.slots).collect();
        let hints = self.0.get_or_init(none);
        debug_assert_eq!(hints.len(), child.slots, "the number of slots stays");
        hints[child.slot].store(frame, Ordering::Relaxed);
    }
}

/// The root of a tree: a child without a parent, with a hint of its own.
#[derive(Debug)]
pub struct Root {
    /// The page.
    pub no: PageNo,
    /// The hint.
    pub hints: Hints,
}

impl Root {
    /// The root in the page `no`.
    pub fn new(no: PageNo) -> Root {
        Root { no, hints: Hints::default() }
    }

    /// The root as the only child.
    #[inline]
    pub fn child(&self) -> Child {
        Child { no: self.no, slot: 0, slots: 1 }
    }
}

#[cfg(all(test, not(feature = "explore")))]
mod tests {
    use super::*;

    #[test]
    fn hints_are_per_slot_and_absent_at_first() {
        let hints = Hints::default();
        let child = |slot| Child { no: 9, slot, slots: 3 };
        assert_eq!(hints.get(child(2)), None, "no memory yet");
        hints.set(child(2), 0);
        hints.set(child(0), 7);
        assert_eq!([0, 1, 2].map(|slot| hints.get(child(slot))), [Some(7), None, Some(0)]);
        hints.set(child(2), 5);
        assert_eq!(hints.get(child(2)), Some(5));
    }
}
