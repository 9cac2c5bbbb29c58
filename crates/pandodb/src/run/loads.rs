//! [`Loads`]: reads several blocks at a time from the device into the pool.
//!
//! ```text
//!   ask ──▶ in the pool? ── yes ─▶ the block
//!             └─ no ─▶ being read? wait for that read │ else submit a read
//!   next ─▶ the block that arrives first: checked, cached, returned to one of the requesters that wait for it
//! ```
//!
//! A requester is a number that the caller chooses: a lookup of a `multi_get`, or a run of a scan. It requests one
//! thing at a time. Leaves of a scan are requested as raw pages, which bypass the pool ([`Need::Pages`]).
//!
//! Invariants: each request is answered exactly once, by [`Loads::ask`] or by [`Loads::next`]; a block that is being
//! read is not read a second time. Source: [decision 0021](../../../../docs/decisions/0021-reads-in-flight.md).

use super::reader::Run;
use crate::base::{BlockAddr, Result, SeededBug};
use crate::device::{AlignedBuf, Read, Reads};
use crate::pool::Block;
use crate::space::BlockKind;

/// A request for a part of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Need {
    /// A block, from the pool or, if it is not there, read into it.
    Block(BlockAddr, BlockKind),
    /// Unchecked pages that bypass the pool.
    Pages(BlockAddr),
}

/// The answer to a [`Need`].
pub enum Landed {
    /// A block.
    Block(Block),
    /// Pages.
    Pages(AlignedBuf),
}

impl Landed {
    /// The requested block.
    ///
    /// # Panics
    /// If it was not a block.
    pub fn block(self) -> Block {
        match self {
            Landed::Block(block) => block,
            Landed::Pages(_) => panic!("a block was requested"),
        }
    }

    /// The requested pages.
    ///
    /// # Panics
    /// If it were not pages.
    pub fn pages(self) -> AlignedBuf {
        match self {
            Landed::Pages(buf) => buf,
            Landed::Block(_) => panic!("pages were requested"),
        }
    }
}

impl Run {
    /// Loads what is needed, synchronously.
    pub(super) fn fetch(&self, need: Need) -> Result<Landed> {
        match need {
            Need::Block(addr, kind) => self.load(addr, kind).map(Landed::Block),
            Need::Pages(addr) => self.read(addr).map(Landed::Pages),
        }
    }
}

/// Reads of one caller that are in flight, and their requesters.
#[derive(Default)]
pub struct Loads<'r> {
    reads: Option<Reads>,
    /// By the tag of the read. Entries of completed reads are reused.
    flights: Vec<Flight<'r>>,
    vacant: Vec<usize>,
    /// Answers that are ready: requester and result.
    arrived: Vec<(usize, Result<Landed>)>,
}

/// A read in flight.
struct Flight<'r> {
    run: &'r Run,
    need: Need,
    /// The pages that are read: the block, perhaps with its neighbours.
    read: BlockAddr,
    first: usize,
    /// Further requesters, each with the block that it waits for.
    others: Vec<(usize, BlockAddr, BlockKind)>,
    landed: bool,
}

impl Flight<'_> {
    /// Whether this read includes the block at `addr`.
    fn brings(&self, run: &Run, addr: BlockAddr) -> bool {
        let end = |addr: BlockAddr| addr.page.0 + u64::from(addr.pages);
        let inside = self.read.page <= addr.page && end(addr) <= end(self.read);
        !self.landed && inside && matches!(self.need, Need::Block(..)) && self.run.meta().id == run.meta().id
    }
}

impl<'r> Loads<'r> {
    /// Requests a block or pages for requester `who`. Returns the block if the pool has it. Otherwise returns `None`,
    /// and [`Loads::next`] returns the answer later.
    ///
    /// # Errors
    /// As [`Run::load`].
    pub fn ask(&mut self, run: &'r Run, need: Need, who: usize) -> Result<Option<Landed>> {
        let read = match need {
            Need::Pages(addr) => addr,
            Need::Block(addr, kind) => {
                if let Some(block) = run.cached(addr, kind)? {
                    return Ok(Some(Landed::Block(block)));
                }
                if let Some(flight) = self.flights.iter_mut().find(|flight| flight.brings(run, addr)) {
                    flight.others.push((who, addr, kind));
                    return Ok(None);
                }
                run.reach(addr, kind)
            }
        };
        // If the read with the block's neighbours cannot be started, the block is read alone.
        let (read, buf) = match (run.data().begin_read(read, AlignedBuf::default()), need) {
            (Err(_), Need::Block(addr, _)) if addr != read => {
                (addr, run.data().begin_read(addr, AlignedBuf::default())?)
            }
            (begun, _) => (read, begun?),
        };
        let flight = Flight { run, need, read, first: who, others: Vec::new(), landed: false };
        let tag = match self.vacant.pop() {
            Some(tag) => {
                self.flights[tag] = flight;
                tag
            }
            None => {
                self.flights.push(flight);
                self.flights.len() - 1
            }
        };
        let reads = self.reads.get_or_insert_with(|| run.data().reads());
        reads.submit(Read { tag, offset: read.page.offset(), buf });
        Ok(None)
    }

    /// Waits for the next read and returns a requester with its answer; `None` if no request is open.
    #[expect(clippy::should_implement_trait, reason = "callers call `ask` between two calls")]
    pub fn next(&mut self) -> Option<(usize, Result<Landed>)> {
        if let Some(told) = self.arrived.pop() {
            return Some(told);
        }
        let (tag, done) = self.reads.as_mut()?.complete()?;
        let flight = &mut self.flights[tag];
        flight.landed = true;
        self.vacant.push(tag);
        let Flight { run, need, read, first, .. } = *flight;
        let buf = run.data().end_read(read, done);
        let (addr, kind) = match need {
            Need::Pages(_) => return Some((first, buf.map(Landed::Pages))),
            Need::Block(addr, kind) => (addr, kind),
        };
        let block = run.admit_from(read, buf, addr, kind);
        // The blocks that were read with it are in the pool.
        let other = |(at, of): (BlockAddr, BlockKind)| match (at, of) == (addr, kind) {
            true => block.clone(),
            false => run.load(at, of),
        };
        let others = flight.others.drain(..);
        self.arrived.extend(others.map(|(who, at, of)| (who, other((at, of)).map(Landed::Block))));
        let block = block.map(Landed::Block);
        let is_other =
            |other: &&mut Flight<'_>| !other.landed && matches!(other.need, Need::Block(_, other) if other == kind);
        if SeededBug::BlockForAnother.is_on()
            && let Some(other) = self.flights.iter_mut().find(is_other)
        {
            return Some((std::mem::replace(&mut other.first, first), block));
        }
        Some((first, block))
    }
}
