//! Reads in flight on the simulated machine.
//!
//! They end in an order that follows from the seed. What each one sees is what the file held at some moment between its
//! beginning and its end; what goes wrong with it goes wrong at its end. Time passes for one after the other, as for
//! operations that wait.

use std::io;

use super::machine::SimFile;
use crate::device::content::Content;
use crate::device::{Done, Queue, Read};

/// Reads of one caller in flight.
#[derive(Debug)]
pub(super) struct SimQueue {
    file: SimFile,
    depth: usize,
    pushed: Vec<Read>,
    flying: Vec<Flying>,
}

/// A read that has begun.
#[derive(Debug)]
struct Flying {
    read: Read,
    /// What it sees, if it has seen it already.
    seen: Option<Content>,
}

impl SimQueue {
    /// A queue for at most `depth` reads of a file.
    pub fn new(file: SimFile, depth: usize) -> Box<SimQueue> {
        Box::new(SimQueue { file, depth, pushed: Vec::new(), flying: Vec::new() })
    }
}

impl Queue for SimQueue {
    fn push(&mut self, read: Read) -> Result<(), Read> {
        if self.pushed.len() + self.flying.len() == self.depth {
            return Err(read);
        }
        self.pushed.push(read);
        Ok(())
    }

    fn start(&mut self) {
        let mut machine = self.file.machine.lock();
        for read in self.pushed.drain(..) {
            let early = machine.pick(2) == 0;
            let seen = early.then(|| machine.content(self.file.inode).clone());
            self.flying.push(Flying { read, seen });
        }
    }

    fn wait(&mut self) -> Option<Done> {
        self.start();
        if self.flying.is_empty() {
            return None;
        }
        let mut machine = self.file.machine.lock();
        let next = machine.pick(self.flying.len());
        let Flying { mut read, seen } = self.flying.swap_remove(next);
        let inode = self.file.inode;
        let seen = seen.unwrap_or_else(|| machine.content(inode).clone());
        let result: io::Result<usize> = self
            .file
            .transfer_unit(read.offset, &read.buf)
            .and_then(|unit| machine.read_of(inode, &seen, read.offset, &mut read.buf, unit));
        Some(Done { read, result })
    }
}
