//! [`Access`] decides whether the handles of a store may be used. They may not be used after one of them has closed the
//! store, in a forked child, or inside a merge operator.
//!
//! # A store that is closed
//!
//! A close releases the store's lock. From that moment another process, or another opening in this process, may reuse
//! the pages that a slow read still reads. The checksum of a block covers its owner and its address. Therefore the
//! block of another owner is never accepted, but looks like damage. A page that was returned to the file system reads
//! as zeros. Therefore no result of a read that ends after the close may reach a caller:
//!
//! ```text
//!   reader   check ── reads memory and pages ── confirm: fence, closed? ──▶ no: return the result, or its error
//!                                                                      └──▶ yes: return `Error::Closed`
//!   closer                         closed = true ── … ── fence ── lock released ──▶ others may reuse pages
//! ```
//!
//! 1. Every operation begins with [`Access::check`]. An operation that begins after the close fails here.
//! 2. Every read ends with [`Access::confirm`]. If the store is open at this point, the store was also open when the
//!    last page was read. Therefore the store's lock was still held at that time, and no other opening had modified a
//!    page.
//!
//! Readers are not counted, and the close waits for no reader. A read costs two loads of a cache line that is written
//! only once in the life of an open store ([decision 0040](../../../../docs/decisions/0040-closed-stores.md)).
//!
//! # A process that was forked
//!
//! A forked child has a copy of the store's memory and the same open files, but none of the parent's threads. Locks in
//! this memory may be held forever, by threads that exist only in the parent. Therefore every operation in a child
//! fails before it takes a lock ([`Process`]). Dropping objects in a child also takes no lock. Dropping the last handle
//! in a child does not free the engine. It closes only the child's descriptor of the lock file. Therefore the child
//! does not keep the store locked after the parent has exited ([decision
//! 0042](../../../../docs/decisions/0042-forks-are-detected.md)).
//!
//! # A merge operator
//!
//! An operator runs inside a read, or inside a step of background work for which a close or `settle` waits. If the
//! operator called a store, the call could wait for the thread in which the operator runs. Therefore such calls fail,
//! for every store ([`in_operator`]).
//!
//! Invariant: `closed` changes from `false` to `true` once, and never back.

use crate::base::sync::{
    AtomicBool,
    Ordering::{Acquire, Relaxed, SeqCst},
    fence,
};
use crate::base::{Error, Result, SeededBug};
use crate::device::Process;
use crate::resolve::in_operator;

/// The state that every operation checks first. This state has its own cache line, which is not written while the store
/// is open.
#[repr(align(64))]
#[derive(Debug)]
pub(crate) struct Access {
    closed: AtomicBool,
    opened_in: Process,
}

impl Access {
    /// Makes the state for a store that this process is opening.
    pub(crate) fn new() -> Access {
        Access { closed: AtomicBool::new(false), opened_in: Process::current() }
    }

    /// Returns an error if the handles may not be used.
    ///
    /// # Errors
    /// [`Error::Closed`], [`Error::Forked`], [`Error::Reentrant`].
    #[inline]
    pub(crate) fn check(&self) -> Result<()> {
        if self.is_void() || self.is_inherited() || in_operator() { Err(self.refusal()) } else { Ok(()) }
    }

    /// Returns the result of a read, unless the store was closed before the read ended.
    ///
    /// # Errors
    /// [`Error::Closed`] instead of the result or the error of the read.
    #[inline]
    pub(crate) fn confirm<T>(&self, answer: Result<T>) -> Result<T> {
        // Orders the loads of the read before the load of `closed`.
        fence(Acquire);
        if self.is_void() && !SeededBug::AnswerAfterClose.is_on() { Err(Error::Closed) } else { answer }
    }

    /// Returns whether a close forbids the use of the handles.
    #[inline]
    fn is_void(&self) -> bool {
        self.is_closed() && !SeededBug::ClosedHandleAnswers.is_on()
    }

    /// Returns whether a handle has closed the store.
    #[inline]
    pub(crate) fn is_closed(&self) -> bool {
        self.closed.load(Relaxed)
    }

    /// Returns whether this process is a forked child of the process that opened the store.
    #[inline]
    pub(crate) fn is_inherited(&self) -> bool {
        !self.opened_in.is_current()
    }

    /// Closes the store for all handles. REQUIRES: at most one call for each store.
    pub(crate) fn close(&self) {
        assert!(!self.is_closed(), "REQUIRES: the store is closed once");
        self.closed.store(true, SeqCst);
        // Orders the change of `closed` before the release of the store's lock, because after the release other
        // openings may reuse pages.
        fence(SeqCst);
    }

    #[cold]
    fn refusal(&self) -> Error {
        if self.is_void() {
            Error::Closed
        } else if self.is_inherited() {
            Error::Forked
        } else {
            debug_assert!(in_operator(), "a refusal has one of three reasons");
            Error::Reentrant
        }
    }
}
