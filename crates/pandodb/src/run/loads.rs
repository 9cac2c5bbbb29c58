//! [`Loads`]: blocks on their way from the device into the pool, several at a time.
//!
//! ```text
//!   ask ──▶ in the pool? ── yes ─▶ the block
//!             └─ no ─▶ on its way already? wait beside who asked before │ else a read is submitted
//!   next ─▶ the block that arrives first: checked, cached, handed to one of those who wait for it
//! ```
//!
//! Whoever asks is a number of the caller's: a lookup of a `multi_get`, a run of a scan. It asks for one thing at a time. The
//! leaves of a scan are asked for as they lie in the file, past the pool ([`Need::Pages`]).

use super::reader::Run;
use crate::base::{BlockAddr, Result, SeededBug};
use crate::device::{AlignedBuf, Read, Reads};
use crate::pool::Block;
use crate::space::BlockKind;

/// What somebody needs of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Need {
    /// A block, from the pool or into it.
    Block(BlockAddr, BlockKind),
    /// Pages as they are, unchecked, past the pool.
    Pages(BlockAddr),
}

/// What somebody has needed.
pub enum Landed {
    /// A block.
    Block(Block),
    /// Pages.
    Pages(AlignedBuf),
}

impl Landed {
    /// The block that was asked for.
    ///
    /// # Panics
    /// If it was not a block.
    pub fn block(self) -> Block {
        match self {
            Landed::Block(block) => block,
            Landed::Pages(_) => panic!("a block was asked for"),
        }
    }

    /// The pages that were asked for.
    ///
    /// # Panics
    /// If it were not pages.
    pub fn pages(self) -> AlignedBuf {
        match self {
            Landed::Pages(buf) => buf,
            Landed::Block(_) => panic!("pages were asked for"),
        }
    }
}

impl Run {
    /// What is needed, one thing at a time.
    pub(super) fn fetch(&self, need: Need) -> Result<Landed> {
        match need {
            Need::Block(addr, kind) => self.load(addr, kind).map(Landed::Block),
            Need::Pages(addr) => self.read(addr).map(Landed::Pages),
        }
    }
}

/// Blocks of runs that one caller waits for.
#[derive(Default)]
pub struct Loads<'r> {
    reads: Option<Reads>,
    /// By the tag of the read; places of those that have arrived are used again.
    flights: Vec<Flight<'r>>,
    vacant: Vec<usize>,
    /// Who is to be told of what has arrived.
    arrived: Vec<(usize, Result<Landed>)>,
}

/// What is being read.
struct Flight<'r> {
    run: &'r Run,
    need: Need,
    /// What is read for it: more than the block, perhaps.
    read: BlockAddr,
    first: usize,
    /// Who else waits, and for what of it.
    others: Vec<(usize, BlockAddr, BlockKind)>,
    landed: bool,
}

impl Flight<'_> {
    /// Whether the block at `addr` is on its way with this.
    fn brings(&self, run: &Run, addr: BlockAddr) -> bool {
        let end = |addr: BlockAddr| addr.page.0 + u64::from(addr.pages);
        let inside = self.read.page <= addr.page && end(addr) <= end(self.read);
        !self.landed && inside && matches!(self.need, Need::Block(..)) && self.run.meta().id == run.meta().id
    }
}

impl<'r> Loads<'r> {
    /// Asks on behalf of `who`: hands out the block if the pool has it, else nothing, and [`Loads::next`] will tell.
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
        // Neighbours that cannot be read are not this block's fault.
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

    /// What somebody has asked for, as soon as something is there; `None` if nobody waits.
    #[expect(clippy::should_implement_trait, reason = "between two calls others ask")]
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
        // What came with it is in the pool.
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
