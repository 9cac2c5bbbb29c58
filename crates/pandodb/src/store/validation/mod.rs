//! [`Validation`]: decides under the sequencer whether a transaction may commit.
//!
//! ```text
//!   tickets    0 … read point │ … applied │ applied … next │ next
//!              seen           │ footprints, or searched    │ the transaction's own
//!   frontier   ──────────────────────────▶   each ticket below it: seen, disjoint, searched, or in doubt
//! ```
//!
//! 1. [`Validation::search`], without a lock, looks at the footprints of all tickets since the read point. A footprint
//!    that is disjoint from all that the transaction has read needs no search. Each other footprint is a *doubt*. If a
//!    footprint is missing, every key is in doubt.
//! 2. If there is a doubt, it searches the memtables and the index for a change of the keys in question. All tickets
//!    below `applied` are applied, so the search finds their changes exactly. A change is a conflict. During the
//!    search, the frontier moves on over the footprints of later tickets.
//! 3. [`Validation::check`], under the sequencer, moves the frontier over the few footprints that were left since then.
//!    If there is no doubt, nothing that the transaction has read was changed before its own ticket, and the ticket is
//!    drawn. Otherwise the transaction waits, without the sequencer, until the doubtful tickets are applied, and
//!    searches again, but only for the keys of these footprints.
//! 4. If a transaction has searched [`PATIENCE`] times, because concurrent commits keep adding footprints that may
//!    overlap its reads, it does the last search under the sequencer while no commit is in flight.
//!
//! So the order of the tickets is an order in which the transactions could have run one after the other: each reads
//! what it would read if it ran as a whole at its own ticket. A write without a ticket (a sorted load) is counted by
//! [`Writer::direct_writes`]; if the number has changed, everything is searched again.
//!
//! [`Writer::direct_writes`]: crate::store::writer::Writer::direct_writes

mod reads;

use std::cell::RefCell;
use std::sync::Arc;

pub use self::reads::ReadSet;
use super::footprints::Footprint;
use crate::base::{Error, Result, Seqno, seeded};
use crate::store::engine::Engine;
use crate::store::snapshot::Snapshot;
use crate::store::writer::{Sequencer, Writer};

/// The number of footprints that are looked at under the sequencer.
const MOST_UNDER_LOCK: u64 = 64;
/// After this number of searches a transaction searches under the sequencer.
const PATIENCE: u32 = 4;
/// The number of footprints that are looked at in one pause of a search, and before the first search.
const MOST_AT_ONCE: u64 = 1024;
/// More doubts than these are replaced by one that stands for all commits.
const MOST_DOUBTS: usize = 32;

/// The read point of a transaction, registered as long as this value exists.
#[derive(Debug)]
pub struct ReadFrom {
    /// The read point.
    pub snapshot: Snapshot,
    /// The number of writes without a ticket before it.
    direct_writes: u64,
}

impl ReadFrom {
    /// The newest read point.
    pub fn newest(engine: &Engine) -> ReadFrom {
        // Before the read point, so that a write in between is noticed.
        let direct_writes = engine.writer.direct_writes();
        ReadFrom { snapshot: Snapshot(Arc::new(engine.snapshots.register())), direct_writes }
    }
}

/// The validation of one commit.
pub struct Validation<'a> {
    reads: &'a ReadSet,
    /// The read point.
    point: Seqno,
    progress: RefCell<Progress>,
}

/// How far a validation has come.
struct Progress {
    /// No commit up to this seqno has changed what was read.
    since: Seqno,
    /// Each ticket below this number is searched, disjoint, or among the doubts.
    frontier: u64,
    /// Footprints of commits whose changes must still be searched.
    doubts: Vec<Footprint>,
    /// The number of writes without a ticket at the read point, or at the last look at it.
    direct_writes: u64,
    searches: u32,
}

impl<'a> Validation<'a> {
    /// A validation of `reads`, which were made at a read point. REQUIRES: `reads` are sorted.
    pub fn new(reads: &'a ReadSet, point: &ReadFrom) -> Validation<'a> {
        let since = seeded!(ReadPointAtCommit: Seqno::MAX, point.snapshot.0.seqno());
        let direct_writes = point.direct_writes;
        let progress = Progress { since, frontier: 0, doubts: Vec::new(), direct_writes, searches: 0 };
        Validation { reads, point: since, progress: RefCell::new(progress) }
    }

    /// Waits until all doubtful commits are applied, and searches for changes by them.
    ///
    /// # Errors
    /// [`Error::Conflict`] if there is a change; the errors of [`ReadSet::find_change`].
    pub fn search(&self, writer: &Writer) -> Result<()> {
        let mut progress = self.progress.borrow_mut();
        progress.searches += 1;
        progress.doubt_direct_writes(self.point, writer);
        // In this order, so that all visible tickets are below `applied`.
        let (visible, applied) = (writer.visible(), writer.applied());
        if progress.searches == 1 {
            progress.look_back(self.point, self.reads, writer);
        } else {
            progress.advance(self.reads, writer);
            writer.wait_until_applied(progress.frontier);
        }
        // Then each visible commit is disjoint, was searched before, or is searched now.
        let is_complete = progress.frontier >= applied;
        let (since, doubts) = (progress.since, std::mem::take(&mut progress.doubts));
        if !doubts.is_empty() {
            self.find_change(since, &doubts, &mut || progress.advance(self.reads, writer))?;
        }
        if is_complete {
            progress.since = visible.max(since);
        }
        progress.advance(self.reads, writer);
        Ok(())
    }

    fn find_change(&self, since: Seqno, doubts: &[Footprint], pause: &mut dyn FnMut()) -> Result<()> {
        let Some(change) = self.reads.find_change(self.point, since, doubts, pause)? else { return Ok(()) };
        let codec = change.keyspace.codec;
        let user = |key: &[u8]| if key.is_empty() { Vec::new() } else { codec.user(key).to_vec() };
        let (from, to) = (user(&change.range.from), user(&change.range.to));
        Err(Error::Conflict { keyspace: change.keyspace.name.clone(), from, to, attempts: 1 })
    }

    /// Whether the next [`Validation::check`] must run when no commit is in flight.
    pub fn wants_quiet(&self) -> bool {
        self.progress.borrow().searches >= PATIENCE
    }

    /// Decides whether the transaction may draw the next ticket, because nothing was changed. If not, it must search
    /// again. REQUIRES: the caller holds the sequencer; if the validation wants it quiet, all tickets are applied.
    ///
    /// # Errors
    /// The errors of [`Validation::search`].
    pub fn check(&self, writer: &Writer, sequencer: &Sequencer) -> Result<bool> {
        let is_quiet = self.wants_quiet();
        let (mut progress, next) = (self.progress.borrow_mut(), sequencer.next_ticket());
        debug_assert!(progress.frontier <= next, "a ticket was looked at before it was drawn");
        debug_assert!(!is_quiet || writer.applied() == next, "no commit is in flight");
        progress.doubt_direct_writes(self.point, writer);
        if next - progress.frontier > MOST_UNDER_LOCK && !is_quiet {
            return Ok(false);
        }
        (progress.frontier..next).for_each(|ticket| progress.look_at(ticket, self.reads, writer));
        progress.frontier = next;
        if progress.doubts.is_empty() {
            return Ok(true);
        }
        if !is_quiet {
            return Ok(false);
        }
        let doubts = std::mem::take(&mut progress.doubts);
        self.find_change(progress.since, &doubts, &mut || ()).map(|()| true)
    }
}

impl Progress {
    /// Puts everything since the read point in doubt if there was a write without a ticket. Such a write becomes
    /// visible before it is counted, so an earlier search may have passed its seqno without finding it.
    fn doubt_direct_writes(&mut self, point: Seqno, writer: &Writer) {
        let direct_writes = writer.direct_writes();
        if self.direct_writes != direct_writes {
            self.since = seeded!(LoadSearchedPast: self.since, point);
            self.direct_writes = direct_writes;
            self.doubt(Footprint::ANY);
        }
    }

    fn doubt(&mut self, footprint: Footprint) {
        if self.doubts.first() == Some(&Footprint::ANY) {
            return;
        }
        if footprint == Footprint::ANY || self.doubts.len() == MOST_DOUBTS {
            self.doubts = vec![Footprint::ANY];
        } else {
            self.doubts.push(footprint);
        }
    }

    /// Looks at the footprint of a ticket that was drawn.
    fn look_at(&mut self, ticket: u64, reads: &ReadSet, writer: &Writer) {
        match writer.footprints.get(ticket) {
            Some((_, footprint)) if reads.is_disjoint_from(&footprint) => {}
            Some((_, footprint)) => self.doubt(footprint),
            None => self.doubt(Footprint::ANY),
        }
    }

    /// Looks at the footprints of all tickets that are applied and are after the read point `since`.
    fn look_back(&mut self, since: Seqno, reads: &ReadSet, writer: &Writer) {
        self.frontier = seeded!(AppliedIsNext: writer.lock().next_ticket(), writer.applied());
        for ticket in (self.frontier.saturating_sub(MOST_AT_ONCE)..self.frontier).rev() {
            match writer.footprints.get(ticket) {
                // Seqnos ascend with the tickets, so the transaction has seen this one and all earlier ones.
                Some((last, _)) if last <= since => return,
                Some((_, footprint)) if reads.is_disjoint_from(&footprint) => {}
                Some((_, footprint)) => self.doubt(footprint),
                None => break,
            }
        }
        self.doubt(Footprint::ANY);
    }

    /// Moves the frontier over all footprints that were left.
    fn advance(&mut self, reads: &ReadSet, writer: &Writer) {
        // The bound matters only if others commit faster than this thread can look at their footprints.
        for _ in 0..MOST_AT_ONCE {
            match writer.footprints.get(self.frontier) {
                Some((_, footprint)) if reads.is_disjoint_from(&footprint) => {}
                Some((_, footprint)) => self.doubt(footprint),
                // A ticket that is not applied may not be drawn yet.
                None if self.frontier >= writer.applied() => return,
                None => self.doubt(Footprint::ANY),
            }
            self.frontier += 1;
        }
    }
}
