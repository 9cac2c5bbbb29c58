//! [`Loads`]: blocks on their way from the device into the pool, several at a time.
//!
//! ```text
//!   ask ──▶ in the pool? ── yes ─▶ the block
//!             └─ no ─▶ on its way already? wait beside who asked before │ else a read is submitted
//!   next ─▶ the block that arrives first: checked, cached, handed to one of those who wait for it
//! ```
//!
//! Whoever asks is a number of the caller's: a lookup of a `multi_get`, a run of a scan. It asks for one block at a time.

use super::reader::Run;
use crate::base::{BlockAddr, Result, SeededBug};
use crate::device::{AlignedBuf, Read, Reads};
use crate::pool::Block;
use crate::space::BlockKind;

/// Blocks of runs that one caller waits for.
#[derive(Default)]
pub struct Loads<'r> {
    reads: Option<Reads>,
    /// By the tag of the read; places of those that have arrived are used again.
    flights: Vec<Flight<'r>>,
    vacant: Vec<usize>,
    /// Who is to be told of what has arrived.
    arrived: Vec<(usize, Result<Block>)>,
}

/// A block that is being read.
struct Flight<'r> {
    run: &'r Run,
    addr: BlockAddr,
    kind: BlockKind,
    first: usize,
    others: Vec<usize>,
    landed: bool,
}

impl Flight<'_> {
    fn is_of(&self, run: &Run, addr: BlockAddr, kind: BlockKind) -> bool {
        !self.landed && self.run.meta().id == run.meta().id && (self.addr, self.kind) == (addr, kind)
    }
}

impl<'r> Loads<'r> {
    /// Asks for a block on behalf of `who`: the block if the pool has it, else nothing, and [`Loads::next`] will tell.
    ///
    /// # Errors
    /// As [`Run::load`].
    pub fn ask(&mut self, run: &'r Run, addr: BlockAddr, kind: BlockKind, who: usize) -> Result<Option<Block>> {
        if let Some(block) = run.cached(addr, kind)? {
            return Ok(Some(block));
        }
        if let Some(flight) = self.flights.iter_mut().find(|flight| flight.is_of(run, addr, kind)) {
            flight.others.push(who);
            return Ok(None);
        }
        let buf = run.data().begin_read(addr, AlignedBuf::default())?;
        let flight = Flight { run, addr, kind, first: who, others: Vec::new(), landed: false };
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
        reads.submit(Read { tag, offset: addr.page.offset(), buf });
        Ok(None)
    }

    /// A block that somebody has asked for, as soon as one is there; `None` if nobody waits.
    #[expect(clippy::should_implement_trait, reason = "between two calls others ask")]
    pub fn next(&mut self) -> Option<(usize, Result<Block>)> {
        if let Some(told) = self.arrived.pop() {
            return Some(told);
        }
        let (tag, read) = self.reads.as_mut()?.complete()?;
        let flight = &mut self.flights[tag];
        flight.landed = true;
        self.vacant.push(tag);
        let Flight { run, addr, kind, first, .. } = *flight;
        let block = run.data().end_read(addr, read).and_then(|buf| run.admit(addr, kind, buf));
        let others = flight.others.drain(..);
        self.arrived.extend(others.map(|who| (who, block.clone())));
        if SeededBug::BlockForAnother.is_on()
            && let Some(other) = self.flights.iter_mut().find(|other| !other.landed && other.kind == kind)
        {
            return Some((std::mem::replace(&mut other.first, first), block));
        }
        Some((first, block))
    }
}
