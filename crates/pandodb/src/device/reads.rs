//! [`Reads`]: reads of one caller that do not wait for each other.
//!
//! ```text
//!   submit ──▶ waiting ──▶ queue of the device ──▶ in flight ──▶ complete: whichever ends first
//!                 │                                                 ▲
//!                 └── one alone, or no queue ────────── pread ──────┘
//! ```
//!
//! A read by itself is cheapest as a pread unless the device says otherwise ([`File::queue_serves_one`]), so the queue is asked
//! for when a second one is there, or when one is to be in flight while the caller does something else ([`Reads::start`]). It
//! is handed back as soon as nothing is in it. What
//! a queue leaves undone, short or interrupted reads, is finished here by pread; an error of the device is handed out.

use std::collections::VecDeque;
use std::io;
use std::sync::Arc;

use super::{AlignedBuf, Done, File, Queue, Read, read_exact_at};
use crate::base::{PAGE, SeededBug};

/// Reads that begin together at most, as far as the caller submits them at once. Each beginning is a system call.
const TOGETHER: usize = 4;

/// Several reads of a file, submitted and completed by one caller. Dropping it lets go of those in flight.
#[derive(Debug)]
pub struct Reads {
    file: Arc<dyn File>,
    queue: Option<Box<dyn Queue>>,
    /// Not in the queue yet, oldest first.
    waiting: VecDeque<Read>,
    /// In the queue.
    flying: usize,
}

impl Reads {
    /// No reads yet. Costs nothing.
    pub fn new(file: Arc<dyn File>) -> Reads {
        Reads { file, queue: None, waiting: VecDeque::new(), flying: 0 }
    }

    /// Notes a read of the whole buffer. It begins with [`Reads::start`], when [`Reads::complete`] has to wait, or when
    /// there are four of them: so the device is at work while its caller looks for what else to read.
    pub fn submit(&mut self, read: Read) {
        self.waiting.push_back(read);
        if self.waiting.len() == TOGETHER {
            self.start();
        }
    }

    /// Whether the device can read while its caller does something else, now.
    pub fn has_queue(&mut self) -> bool {
        if self.queue.is_none() {
            self.queue = self.file.queue();
        }
        self.queue.is_some()
    }

    /// Begins what was submitted, as far as the device reads while its caller does something else. Whether something is
    /// on its way.
    pub fn start(&mut self) -> bool {
        self.hand_over();
        if let Some(queue) = &mut self.queue {
            queue.start();
        }
        self.flying > 0
    }

    /// The next read that has ended, by its tag, with its buffer filled; waits if none has. `None` if there are none left.
    pub fn complete(&mut self) -> Option<(usize, io::Result<AlignedBuf>)> {
        let is_alone = |first: &Read| self.waiting.len() == 1 && !self.file.queue_serves_one(first.buf.len());
        if self.flying > 0 || !self.waiting.front().is_none_or(is_alone) {
            self.hand_over();
        }
        if self.flying == 0 {
            let read = self.waiting.pop_front()?;
            return Some(self.finish(Done { read, result: Err(io::ErrorKind::Interrupted.into()) }));
        }
        let done = self.queue.as_mut().and_then(|queue| queue.wait()).expect("a queue keeps what it takes in");
        self.flying -= 1;
        if self.flying == 0 {
            // Others want it, and between two rounds of reads there is time to do something else.
            self.queue = None;
        }
        Some(self.finish(done))
    }

    /// Gives the queue what it takes.
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
    }

    /// Reads what is missing.
    fn finish(&self, done: Done) -> (usize, io::Result<AlignedBuf>) {
        let Done { read: Read { tag, offset, mut buf }, result } = done;
        let missing = match result {
            Ok(n) if n >= buf.len() || SeededBug::ShortReadTaken.is_on() => None,
            // A direct file is asked for whole pages, at whole pages.
            Ok(n) => Some(n / PAGE * PAGE),
            Err(e) if is_undone(&e) => Some(0),
            Err(e) => return (tag, Err(e)),
        };
        let read = missing.map_or(Ok(()), |from| read_exact_at(&*self.file, offset + from as u64, &mut buf[from..]));
        (tag, read.map(|()| buf))
    }
}

/// Whether an error says that the queue has not tried, and nothing of the device.
fn is_undone(error: &io::Error) -> bool {
    use io::ErrorKind::{Interrupted, InvalidInput, OutOfMemory, Unsupported, WouldBlock};
    /// What Linux says of reads whose thread has ended before them.
    const CANCELED: i32 = 125;
    matches!(error.kind(), Interrupted | InvalidInput | OutOfMemory | Unsupported | WouldBlock)
        || error.raw_os_error() == Some(CANCELED)
}
