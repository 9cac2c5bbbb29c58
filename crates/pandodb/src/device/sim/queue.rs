//! Reads in flight on the simulated machine.
//!
//! Reads complete in an order that is determined by the seed. Each read sees the file as it was at some moment between
//! the read's beginning and its end. Faults strike the read at its end. Each read advances the clock as much as a
//! blocking operation does.

use std::io;

use super::machine::SimFile;
use crate::device::content::Content;
use crate::device::{Done, Queue, Read};

/// The reads that one caller has in flight.
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
    /// The content that the read sees; `None` if the read sees the content at its end.
    seen: Option<Content>,
}

impl SimQueue {
    /// A queue for at most `depth` reads of a file.
    pub fn new(file: SimFile, depth: usize) -> Box<SimQueue> {
        assert!(depth > 0, "a queue has at least one read in flight");
        Box::new(SimQueue { file, depth, pushed: Vec::new(), flying: Vec::new() })
    }
}

impl Queue for SimQueue {
    fn push(&mut self, read: Read) -> Result<(), Read> {
        debug_assert!(self.pushed.len() + self.flying.len() <= self.depth, "over the depth of {}", self.depth);
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

#[cfg(test)]
mod tests {
    use std::collections::HashSet;
    use std::sync::Arc;

    use crate::base::PAGE;
    use crate::device::sim::{Fault, FaultKind, OpClass, SimDevice};
    use crate::device::{AlignedBuf, Device, File, OpenHow, Read, Reads, write_all_at};

    fn with_pages(seed: u64, pages: u8) -> (Arc<SimDevice>, Arc<dyn File>) {
        let sim = SimDevice::new(seed);
        let file = sim.open("a", OpenHow { create_new: true, direct: true, ..OpenHow::default() }).unwrap();
        for page in 0..pages {
            write_all_at(&*file, u64::from(page) * PAGE as u64, &AlignedBuf::from_bytes(&[page; PAGE])).unwrap();
        }
        (sim, file)
    }

    fn submit_all(file: &Arc<dyn File>, pages: usize) -> Reads {
        let mut reads = Reads::new(file.clone());
        for tag in 0..pages {
            reads.submit(Read { tag, offset: (tag * PAGE) as u64, buf: AlignedBuf::zeroed(1) });
        }
        reads
    }

    fn order(seed: u64) -> Vec<usize> {
        let (_sim, file) = with_pages(seed, 20);
        let mut reads = submit_all(&file, 20);
        let mut order = Vec::new();
        while let Some((tag, read)) = reads.complete() {
            assert_eq!(read.unwrap()[..], [tag as u8; PAGE]);
            order.push(tag);
        }
        order
    }

    #[test]
    fn reads_complete_in_an_order_that_follows_from_the_seed() {
        let in_turn: Vec<usize> = (0..20).collect();
        let mut sorted = order(1);
        assert_ne!(sorted, in_turn);
        assert_eq!(order(1), sorted);
        assert_ne!(order(2), sorted);
        sorted.sort_unstable();
        assert_eq!(sorted, in_turn);
    }

    #[test]
    fn a_read_in_flight_may_or_may_not_see_a_concurrent_write() {
        let seen = |seed| {
            let (_sim, file) = with_pages(seed, 2);
            let mut reads = submit_all(&file, 1);
            reads.start();
            file.write_at(0, &AlignedBuf::from_bytes(&[9; PAGE])).unwrap();
            reads.complete().unwrap().1.unwrap()[0]
        };
        let seen: HashSet<u8> = (0..20).map(seen).collect();
        assert_eq!(seen, HashSet::from([0, 9]));
    }

    #[test]
    fn faults_strike_reads_in_flight() {
        let (sim, file) = with_pages(3, 6);
        sim.set_fault(Some(Fault::once(FaultKind::IoError(OpClass::Read), 2)));
        let mut reads = submit_all(&file, 6);
        let failed = std::iter::from_fn(|| reads.complete()).filter(|(_, read)| read.is_err()).count();
        assert_eq!((failed, sim.faults_struck()), (1, 1));
        // These faults cause interrupted and short reads, which `Reads` completes.
        for kind in [FaultKind::Interrupted, FaultKind::ShortTransfer] {
            sim.set_fault(Some(Fault::sticky(kind, 0)));
            let mut reads = Reads::new(file.clone());
            for tag in 0..3 {
                reads.submit(Read { tag, offset: (tag * PAGE) as u64, buf: AlignedBuf::zeroed(3) });
            }
            while let Some((tag, read)) = reads.complete() {
                let buf = read.unwrap();
                assert!((0..3).all(|page| buf[page * PAGE..][..PAGE] == [(tag + page) as u8; PAGE]), "{kind:?}");
            }
            assert!(sim.faults_struck() >= 3, "{kind:?}");
        }
    }

    #[test]
    fn a_queue_outlives_its_handle_and_is_full_at_its_depth() {
        let (sim, file) = with_pages(4, 6);
        sim.set_queue_depth(2);
        let mut queue = file.queue().unwrap();
        drop(file);
        sim.remove("a").unwrap();
        let read = |tag| Read { tag, offset: 0, buf: AlignedBuf::zeroed(1) };
        queue.push(read(0)).unwrap();
        queue.push(read(1)).unwrap();
        assert_eq!(queue.push(read(2)).unwrap_err().tag, 2);
        assert_eq!(std::iter::from_fn(|| queue.wait()).count(), 2);
        assert!(sim.occupied() > 0, "still open");
        drop(queue);
        assert_eq!(sim.occupied(), 0, "removed and closed");
        sim.set_queue_depth(0);
        let file = sim.open("b", OpenHow { create_new: true, ..OpenHow::default() }).unwrap();
        assert!(file.queue().is_none());
    }
}
