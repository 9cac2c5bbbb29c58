//! Whether the handles of a store may be used: not once one of them has closed it, not in a forked child, and not by a merge
//! operator.
//!
//! # A store that is closed
//!
//! A close lets go of the store's lock, and then another opener, here or in another process, uses the pages again that this one
//! reads. The checksum of a block names its owner and its place, so a block of another owner is never taken for the right one, but
//! it looks like damage; a page that is punched out reads as zeros. So nothing that is read after the close may reach a caller:
//!
//! ```text
//!   reader   check ── reads memory and pages ── confirm: fence, closed? ──▶ no: the answer, or its error, counts
//!                                                                      └──▶ yes: `Error::Closed`, whatever was read
//!   closer                         closed = true ── … ── fence ── lock released ──▶ others may reuse pages
//! ```
//!
//! 1. [`Access::check`] stands before each operation: a late one does not begin.
//! 2. [`Access::confirm`] stands behind each read: if the store is open then, it was open when the last page was read, the lock was still
//!    held, and no other opener had touched a page.
//!
//! Nobody is counted and nobody waits: a read costs two loads of a line that is written once in a store's life
//! ([decision 0040](../../../../docs/decisions/0040-closed-stores.md)).
//!
//! # A process that was forked
//!
//! A child has a copy of the store's memory, in which other threads may have held locks for ever, none of its threads, and the same
//! open files. So an operation there fails before it takes a lock ([`Process`]), and what is dropped there takes none either: the
//! last handle leaves the engine as it is, and closes only its copy of the lock's file, so that the store can be opened when the
//! parent is gone ([decision 0042](../../../../docs/decisions/0042-forks-are-detected.md)).
//!
//! # A merge operator
//!
//! It runs in the middle of a read, or of a step of background work that a close and `settle` wait for. What it asks of a store
//! could wait for itself, so it is refused, whichever store it is ([`in_operator`]).
//!
//! Invariant: `closed` never goes back to `false`.

use crate::base::sync::{
    AtomicBool,
    Ordering::{Acquire, Relaxed, SeqCst},
    fence,
};
use crate::base::{Error, Result, SeededBug};
use crate::device::Process;
use crate::resolve::in_operator;

/// The one thing that every operation asks first. In a cache line of its own, which is not written while the store is open.
#[repr(align(64))]
#[derive(Debug)]
pub(crate) struct Access {
    closed: AtomicBool,
    opened_in: Process,
}

impl Access {
    /// Of a store that is being opened.
    pub(crate) fn new() -> Access {
        Access { closed: AtomicBool::new(false), opened_in: Process::current() }
    }

    /// Fails if the handles may not be used.
    ///
    /// # Errors
    /// [`Error::Closed`], [`Error::Forked`], [`Error::Reentrant`].
    #[inline]
    pub(crate) fn check(&self) -> Result<()> {
        if self.is_void() || self.is_inherited() || in_operator() { Err(self.refusal()) } else { Ok(()) }
    }

    /// The answer of a read, unless the store was closed meanwhile.
    ///
    /// # Errors
    /// [`Error::Closed`] in the place of the answer, or of what the read failed with.
    #[inline]
    pub(crate) fn confirm<T>(&self, answer: Result<T>) -> Result<T> {
        // What the read has loaded was loaded before `closed` is.
        fence(Acquire);
        if self.is_void() && !SeededBug::AnswerAfterClose.is_on() { Err(Error::Closed) } else { answer }
    }

    /// Whether the handles may not be used.
    #[inline]
    fn is_void(&self) -> bool {
        self.is_closed() && !SeededBug::ClosedHandleAnswers.is_on()
    }

    /// Whether a handle has closed the store.
    #[inline]
    pub(crate) fn is_closed(&self) -> bool {
        self.closed.load(Relaxed)
    }

    /// Whether this process is a forked child of the one that opened the store.
    #[inline]
    pub(crate) fn is_inherited(&self) -> bool {
        !self.opened_in.is_current()
    }

    /// Closes the store for all handles.
    pub(crate) fn close(&self) {
        self.closed.store(true, SeqCst);
        // Before anything that lets others in.
        fence(SeqCst);
    }

    #[cold]
    fn refusal(&self) -> Error {
        if self.is_void() {
            Error::Closed
        } else if self.is_inherited() {
            Error::Forked
        } else {
            Error::Reentrant
        }
    }
}
