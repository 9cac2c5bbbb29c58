//! [`BlockLoads`]: reads that one caller has in flight at the same time.
//!
//! ```text
//!   ask ──▶ in the pool? ── yes ─▶ the block
//!             └─ no ─▶ does a read in flight include it? yes: wait for that read, no: submit a read
//!   next ─▶ the next read to complete: checked, cached, returned to one of the tasks that wait for it
//! ```
//!
//! A caller numbers its tasks: the lookups of a `multi_get`, the runs of a scan. Each task waits for one block or range
//! of pages at a time. The leaves of a scan are read as raw pages, without the pool ([`Need::Pages`]).

use super::BlockSource;
use crate::base::{BlockAddr, Result, seeded};
use crate::device::{AlignedBuf, Read, Reads};
use crate::pool::Block;
use crate::space::BlockKind;

/// A task's request to a source.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Need {
    /// A checked block, which is read through the pool.
    Block(BlockAddr, BlockKind),
    /// Raw pages, which are neither checked nor cached.
    Pages(BlockAddr),
}

impl Need {
    /// Fetches the requested block or pages immediately, from the pool or from disk.
    ///
    /// # Errors
    /// The errors of [`BlockSource::load`], or the I/O error of reading pages.
    pub fn fetch(self, source: &dyn BlockSource) -> Result<Loaded> {
        match self {
            Need::Block(addr, kind) => source.load(addr, kind).map(Loaded::Block),
            Need::Pages(addr) => source.data().read(addr).map(Loaded::Pages),
        }
    }
}

/// The result of a [`Need`].
pub enum Loaded {
    /// A block.
    Block(Block),
    /// Pages.
    Pages(AlignedBuf),
}

impl Loaded {
    /// The requested block.
    ///
    /// # Panics
    /// If pages were requested.
    pub fn block(self) -> Block {
        match self {
            Loaded::Block(block) => block,
            Loaded::Pages(_) => panic!("a block was requested"),
        }
    }

    /// The requested pages.
    ///
    /// # Panics
    /// If a block was requested.
    pub fn pages(self) -> AlignedBuf {
        match self {
            Loaded::Pages(buf) => buf,
            Loaded::Block(_) => panic!("pages were requested"),
        }
    }
}

/// The reads that one caller has in flight.
#[derive(Default)]
pub struct BlockLoads<'r> {
    reads: Option<Reads>,
    /// The reads, indexed by their tags. Entries of completed reads are reused.
    flights: Vec<Flight<'r>>,
    vacant: Vec<usize>,
    /// Results that [`BlockLoads::next`] still has to return, with their tasks.
    arrived: Vec<(usize, Result<Loaded>)>,
}

/// A read in flight.
struct Flight<'r> {
    source: &'r dyn BlockSource,
    need: Need,
    /// The pages that are read: the pages of the block, perhaps with neighbouring blocks.
    read: BlockAddr,
    /// The task that started the read.
    first: usize,
    /// Other tasks that wait for blocks in these pages.
    others: Vec<(usize, BlockAddr, BlockKind)>,
    completed: bool,
}

impl Flight<'_> {
    /// Whether this read includes the block at `addr` of `source`.
    fn brings(&self, source: &dyn BlockSource, addr: BlockAddr) -> bool {
        debug_assert!(!self.completed || self.others.is_empty(), "a completed read keeps no task waiting");
        !self.completed
            && self.read.covers(addr)
            && matches!(self.need, Need::Block(..))
            && self.source.owner() == source.owner()
    }
}

/// Whether all awaited blocks are in the pages that are read.
fn others_inside(others: &[(usize, BlockAddr, BlockKind)], read: BlockAddr) -> bool {
    others.iter().all(|(_, addr, _)| read.covers(*addr))
}

impl<'r> BlockLoads<'r> {
    /// Requests a block or pages for `task`. Returns the block if the pool has it; otherwise [`BlockLoads::next`] will
    /// return the result.
    ///
    /// # Errors
    /// The errors of [`BlockSource::load`].
    pub fn ask(&mut self, source: &'r dyn BlockSource, need: Need, task: usize) -> Result<Option<Loaded>> {
        debug_assert!(
            self.flights.iter().all(|flight| flight.completed || flight.first != task),
            "a task waits for one read at a time"
        );
        let read = match need {
            Need::Pages(addr) => addr,
            Need::Block(addr, kind) => {
                if let Some(block) = source.cached(addr, kind)? {
                    return Ok(Some(Loaded::Block(block)));
                }
                if let Some(flight) = self.flights.iter_mut().find(|flight| flight.brings(source, addr)) {
                    flight.others.push((task, addr, kind));
                    return Ok(None);
                }
                source.read_with(addr, kind)
            }
        };
        // If a read with neighbours cannot be started, read the block alone.
        let (read, buf) = match (source.data().begin_read(read, AlignedBuf::default()), need) {
            (Err(_), Need::Block(addr, _)) if addr != read => {
                (addr, source.data().begin_read(addr, AlignedBuf::default())?)
            }
            (begun, _) => (read, begun?),
        };
        let flight = Flight { source, need, read, first: task, others: Vec::new(), completed: false };
        let tag = match self.vacant.pop() {
            Some(tag) => {
                debug_assert!(self.flights[tag].completed, "an entry is reused after its read has completed");
                self.flights[tag] = flight;
                tag
            }
            None => {
                self.flights.push(flight);
                self.flights.len() - 1
            }
        };
        debug_assert_eq!(
            self.vacant.len(),
            self.flights.iter().filter(|flight| flight.completed).count(),
            "entries of completed reads are vacant"
        );
        let reads = self.reads.get_or_insert_with(|| source.data().reads());
        reads.submit(Read { tag, offset: read.page.offset(), buf });
        Ok(None)
    }

    /// Waits for the next result, and returns the task and the result. Returns `None` if no task waits.
    #[expect(clippy::should_implement_trait, reason = "tasks add requests between two calls")]
    pub fn next(&mut self) -> Option<(usize, Result<Loaded>)> {
        if let Some(answer) = self.arrived.pop() {
            return Some(answer);
        }
        let (tag, done) = self.reads.as_mut()?.complete()?;
        let flight = &mut self.flights[tag];
        assert!(!flight.completed, "a read completes once");
        flight.completed = true;
        self.vacant.push(tag);
        let Flight { source, need, read, first, .. } = *flight;
        let buf = source.data().end_read(read, done);
        let (addr, kind) = match need {
            Need::Pages(_) => return Some((first, buf.map(Loaded::Pages))),
            Need::Block(addr, kind) => (addr, kind),
        };
        debug_assert!(others_inside(&flight.others, read), "a task waits for a block that the read does not include");
        let block = source.admit(read, buf, addr, kind);
        // `admit` has also cached the neighbours that were read, so `load` finds them in the pool.
        let other = |(at, of): (BlockAddr, BlockKind)| match (at, of) == (addr, kind) {
            true => block.clone(),
            false => source.load(at, of),
        };
        let others = flight.others.drain(..);
        self.arrived.extend(others.map(|(task, at, of)| (task, other((at, of)).map(Loaded::Block))));
        let block = block.map(Loaded::Block);
        let is_other =
            |other: &&mut Flight<'_>| !other.completed && matches!(other.need, Need::Block(_, other) if other == kind);
        let other = seeded!(BlockForAnother: self.flights.iter_mut().find(is_other), None);
        let task = other.map_or(first, |other| std::mem::replace(&mut other.first, first));
        Some((task, block))
    }
}
