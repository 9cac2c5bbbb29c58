//! Fork detection: whether this process opened the store, or is a child that was forked after the store was opened.
//!
//! A forked child has a copy of the store's memory and shares the store's files and lock with its parent, but has none
//! of the store's threads. The child must not use the store, so each use of the store checks for a fork. A `getpid`
//! system call would take almost as long as a read of cached data. So the check reads a page of memory that the kernel
//! zeroes in a forked child (`MADV_WIPEONFORK`):
//!
//! ```text
//!   parent:  page = 1    its store remembers 1       page == 1: same process
//!   child:   page = 0    the copy remembers 1        page != 1: forked
//!            a store that the child opens itself: page = 2, remembers 2
//! ```
//!
//! The check costs two loads. If the system cannot provide such a page (Linux before 4.14, some sandboxes), the check
//! is the `getpid` system call.
//!
//! Invariant: if one of two processes descends from the other, the two never have the same number.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use super::mapped::word_wiped_by_fork;

/// The identity of the process in which a value was created.
#[derive(Clone, Copy, Debug)]
pub struct Process {
    /// The word that holds `number` in the process that created the value. If `None`, `number` is the process id.
    word: Option<&'static AtomicU64>,
    number: u64,
}

impl Process {
    /// The calling process.
    pub fn current() -> Process {
        static WORD: OnceLock<Option<&'static AtomicU64>> = OnceLock::new();
        /// How many numbers this process has assigned so far, plus how many its ancestors had assigned before they
        /// forked.
        static GIVEN: AtomicU64 = AtomicU64::new(0);
        let Some(word) = *WORD.get_or_init(word_wiped_by_fork) else {
            return Process { word: None, number: std::process::id().into() };
        };
        let mut number = word.load(Relaxed);
        if number == 0 {
            let next = GIVEN.fetch_add(1, Relaxed) + 1;
            number = match word.compare_exchange(0, next, Relaxed, Relaxed) {
                Ok(_) => next,
                Err(of_another_thread) => of_another_thread,
            };
        }
        assert_ne!(number, 0, "in a forked child the word is 0");
        Process { word: Some(word), number }
    }

    /// Whether the calling process created this value.
    #[inline]
    pub fn is_current(&self) -> bool {
        let number = self.word.map_or_else(|| std::process::id().into(), |word| word.load(Relaxed));
        number == self.number
    }
}

#[cfg(test)]
impl Process {
    /// An identity that differs from this one.
    pub fn other(self) -> Process {
        Process { number: self.number + 1, ..self }
    }
}

impl Default for Process {
    fn default() -> Process {
        Process::current()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_knows_itself_and_no_other() {
        let here = Process::current();
        assert!(here.is_current() && Process::current().is_current());
        assert!(here.word.is_some(), "this system wipes memory in forked children");
        assert!(!here.other().is_current());
        let by_id = Process { word: None, number: std::process::id().into() };
        assert!(by_id.is_current() && !by_id.other().is_current());
    }
}
