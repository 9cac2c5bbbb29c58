//! [`Reads`]: independent reads that one caller submits and that are in flight at the same time.
//!
//! ```text
//!   submit ──▶ waiting ──▶ queue of the device ──▶ in flight ──▶ complete: whichever ends first
//!                 │                                                 ▲
//!                 └── one alone, or no queue ────────── pread ──────┘
//! ```
//!
//! 1. [`Reads::submit`] collects reads. A single read is done by pread, unless the device reports that a queue is
//!    faster ([`File::queue_serves_one`]).
//! 2. If there is a second read, or if reads should run while the caller does other work ([`Reads::start`]), the reads
//!    go into a queue of the device.
//! 3. [`Reads::complete`] returns one finished read. The same call completes short or interrupted reads of the queue by
//!    pread. A device error is returned.
//!
//! Invariant: the queue is released as soon as it has no read in flight, because other callers need the queue.

use std::collections::VecDeque;
use std::io;
use std::sync::Arc;

use super::{AlignedBuf, Done, File, Queue, Read, read_exact_at};
use crate::base::{PAGE, SeededBug};

/// The number of submitted reads at which the queue is started. Each start is a system call.
const TOGETHER: usize = 4;

const _: () = assert!(TOGETHER > 1, "a single read is cheapest as a pread");

/// Several reads of a file that one caller submits and completes. Dropping this value abandons the reads in flight.
#[derive(Debug)]
pub struct Reads {
    file: Arc<dyn File>,
    queue: Option<Box<dyn Queue>>,
    /// Reads that are submitted but not in the queue, oldest first.
    waiting: VecDeque<Read>,
    /// The number of reads in the queue.
    flying: usize,
}

impl Reads {
    /// A set without reads. Creating the set does no I/O.
    pub fn new(file: Arc<dyn File>) -> Reads {
        Reads { file, queue: None, waiting: VecDeque::new(), flying: 0 }
    }

    /// Submits a read of the whole buffer. The read begins with [`Reads::start`], when [`Reads::complete`] has to wait,
    /// or with the fourth submitted read. So the device works while the caller determines further reads.
    pub fn submit(&mut self, read: Read) {
        self.waiting.push_back(read);
        if self.waiting.len() == TOGETHER {
            self.start();
        }
    }

    /// Whether the device has a queue for this caller now, so that the device can read while the caller does other
    /// work.
    pub fn has_queue(&mut self) -> bool {
        if self.queue.is_none() {
            self.queue = self.file.queue();
        }
        self.queue.is_some()
    }

    /// Begins the submitted reads, if the device can read while the caller does other work. Returns whether a read is
    /// in flight.
    pub fn start(&mut self) -> bool {
        self.hand_over();
        debug_assert!(self.flying == 0 || self.queue.is_some(), "reads in flight are in the queue");
        if let Some(queue) = &mut self.queue {
            queue.start();
        }
        self.flying > 0
    }

    /// Returns the next completed read, as its tag and its filled buffer. Waits if no read is complete. `None` if no
    /// reads are left.
    pub fn complete(&mut self) -> Option<(usize, io::Result<AlignedBuf>)> {
        let is_alone = |first: &Read| self.waiting.len() == 1 && !self.file.queue_serves_one(first.buf.len());
        if self.flying > 0 || !self.waiting.front().is_none_or(is_alone) {
            self.hand_over();
        }
        if self.flying == 0 {
            let read = self.waiting.pop_front()?;
            return Some(self.finish(Done { read, result: Err(io::ErrorKind::Interrupted.into()) }));
        }
        let done =
            self.queue.as_mut().and_then(|queue| queue.wait()).expect("a queue completes each read that it accepts");
        self.flying -= 1;
        if self.flying == 0 {
            // Other callers need the queue, and this caller may do other work before its next reads.
            self.queue = None;
        }
        Some(self.finish(done))
    }

    /// Moves submitted reads into the queue, up to its capacity.
    fn hand_over(&mut self) {
        if self.waiting.is_empty() || !self.has_queue() {
            return;
        }
        let Some(queue) = &mut self.queue else { return };
        while let Some(read) = self.waiting.pop_front() {
            match queue.push(read) {
                Ok(()) => self.flying += 1,
                Err(read) => {
                    self.waiting.push_front(read);
                    break;
                }
            }
        }
        if self.flying == 0 {
            self.queue = None;
        }
        debug_assert_eq!(self.queue.is_some(), self.flying > 0, "an idle queue is left to other callers");
    }

    /// Completes a read that was short or that the queue did not try, by pread.
    fn finish(&self, done: Done) -> (usize, io::Result<AlignedBuf>) {
        let Done { read: Read { tag, offset, mut buf }, result } = done;
        let missing = match result {
            Ok(n) if n >= buf.len() || SeededBug::ShortReadTaken.is_on() => None,
            // A direct file is read in whole pages, from a page boundary.
            Ok(n) => Some(n / PAGE * PAGE),
            Err(e) if is_undone(&e) => Some(0),
            Err(e) => return (tag, Err(e)),
        };
        debug_assert!(missing.is_none_or(|from| from <= buf.len()), "a queue reads no more than the buffer");
        let read = missing.map_or(Ok(()), |from| read_exact_at(&*self.file, offset + from as u64, &mut buf[from..]));
        (tag, read.map(|()| buf))
    }
}

/// Whether an error means that the queue did not try the read. Any other error comes from the device.
fn is_undone(error: &io::Error) -> bool {
    use io::ErrorKind::{Interrupted, InvalidInput, OutOfMemory, Unsupported, WouldBlock};
    /// Linux's error for reads whose submitting thread exited before they completed.
    const CANCELED: i32 = 125;
    matches!(error.kind(), Interrupted | InvalidInput | OutOfMemory | Unsupported | WouldBlock)
        || error.raw_os_error() == Some(CANCELED)
}
