//! Which process this is: whether it is still the one in which a store was opened, or a child that was forked since.
//!
//! A forked child has a copy of the store's memory, shares its files and its lock, and has none of its threads. Whatever it did
//! with that would be wrong, so it has to know. To ask the system for the number of the process is a system call; a read of cached
//! data takes little longer than that. So there is one page of memory that the kernel empties in a child (`MADV_WIPEONFORK`):
//!
//! ```text
//!   parent:  page = 1    a store remembers 1          page == 1: still here
//!   child:   page = 0    its copy remembers 1         page != 1: forked
//!            a store that the child opens itself: page = 2, remembers 2
//! ```
//!
//! To ask costs two loads. Where the system has no such page (before Linux 4.14, some sandboxes) each question is the system call.
//!
//! Invariant: a number is never given to two processes of which one descends from the other.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use super::mapped::word_wiped_by_fork;

/// The process in which something was made.
#[derive(Clone, Copy, Debug)]
pub struct Process {
    /// Holds `number` in that process; `None`: `number` is the system's.
    word: Option<&'static AtomicU64>,
    number: u64,
}

impl Process {
    /// This one.
    pub fn current() -> Process {
        static WORD: OnceLock<Option<&'static AtomicU64>> = OnceLock::new();
        /// Numbers given out so far, here and, up to the fork, by the processes that this one descends from.
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
        Process { word: Some(word), number }
    }

    /// Whether this still is that process.
    #[inline]
    pub fn is_current(&self) -> bool {
        let number = self.word.map_or_else(|| std::process::id().into(), |word| word.load(Relaxed));
        number == self.number
    }
}

#[cfg(test)]
impl Process {
    /// One that this process is not.
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
