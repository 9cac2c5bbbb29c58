//! [`Writer`] assigns sequence numbers, and knows which commits are complete.
//!
//! ```text
//!   commit ── draw: seqnos, ticket ──▶ applies and logs itself, concurrently ──▶ finish ──▶ visible
//!   seal, checkpoint, drop ── quiesce: takes the sequencer, waits for all tickets ──▶ stands on an exact cut
//! ```
//!
//! Locks: only `sequencer`. A thread that holds a ticket does not take this lock before the ticket is finished.
//! Therefore a thread that holds the sequencer may wait for tickets.
//!
//! Invariants: tickets are drawn in the order of seqnos. A thread that holds [`Quiesced`] finds every seqno up to
//! [`Quiesced::last`] applied and visible, unless the store is poisoned ([`Quiesced::is_whole`]).

use std::sync::Arc;

use super::footprints::{Footprint, Footprints};
use super::poison::Poison;
use super::snapshot::Snapshots;
use super::watermark::{CachePadded, Watermark};
use crate::base::sync::{
    AtomicU64, EXPLORED, Mutex, MutexGuard,
    Ordering::{AcqRel, Acquire},
};
use crate::base::{Error, Result, SeededBug, Seqno, seeded};
use crate::wal::Log;

/// The maximum number of commits in flight. Further commits wait. Under the concurrency explorer the number is small,
/// so that the explorer also tries waiting threads.
const MOST_IN_FLIGHT: usize = if EXPLORED { 2 } else { 64 };

/// Assigns the order of writes, and has the log that contains the writes.
pub(crate) struct Writer {
    /// The log; `None` in a store that was opened for reading.
    pub log: Option<Log>,
    pub poison: Poison,
    snapshots: Arc<Snapshots>,
    sequencer: CachePadded<Mutex<Sequencer>>,
    /// The ticket up to which all commits are complete.
    watermark: Watermark,
    /// The keys of the latest commits, for transactions.
    pub footprints: Footprints,
    /// The number of changes of data without a ticket: sorted loads and drops. It is changed under the sequencer.
    direct_writes: AtomicU64,
}

/// The state that the lock `sequencer` guards.
pub(crate) struct Sequencer {
    next: Seqno,
    /// The ticket of the next commit.
    ticket: u64,
    /// Tickets below this number have a slot in the ring of the watermark.
    limit: u64,
}

impl Sequencer {
    /// The ticket that is drawn next.
    pub(crate) fn next_ticket(&self) -> u64 {
        self.ticket
    }
}

impl Writer {
    /// The writer of a store that is being opened. Its log is started later.
    pub(crate) fn new(snapshots: Arc<Snapshots>) -> Writer {
        Writer {
            log: None,
            poison: Poison::default(),
            snapshots,
            sequencer: CachePadded(Mutex::new(Sequencer { next: Seqno(1), ticket: 0, limit: 0 })),
            watermark: Watermark::new(MOST_IN_FLIGHT),
            footprints: Footprints::default(),
            direct_writes: AtomicU64::new(0),
        }
    }

    /// The log. Every store that is open for writing has one.
    ///
    /// # Errors
    /// [`Error::ReadOnly`].
    pub(crate) fn log(&self) -> Result<&Log> {
        self.log.as_ref().ok_or(Error::ReadOnly)
    }

    /// Continues the sequence numbers after `last`. REQUIRES: no commit is in flight, because the store is being
    /// opened.
    pub(crate) fn continue_after(&self, last: Seqno) {
        let mut sequencer = self.sequencer.lock();
        assert_eq!(sequencer.ticket, 0, "a store that is being opened has no commits");
        assert!(sequencer.next <= last.next(), "a seqno is given out once");
        sequencer.next = last.next();
    }

    /// Prevents all threads from drawing seqnos, as long as the returned guard exists. Does not wait for commits that
    /// have already drawn their seqnos.
    pub(crate) fn lock(&self) -> MutexGuard<'_, Sequencer> {
        self.sequencer.lock()
    }

    /// All messages up to this seqno are applied.
    pub(crate) fn visible(&self) -> Seqno {
        self.snapshots.visible()
    }

    /// All tickets below this number are applied: their messages are in the memtables or in an index.
    pub(crate) fn applied(&self) -> u64 {
        self.watermark.done()
    }

    /// The number of changes of data without a ticket.
    pub(crate) fn direct_writes(&self) -> u64 {
        self.direct_writes.load(Acquire)
    }

    /// Waits until all tickets below `end`, which were drawn, are applied.
    pub(crate) fn wait_until_applied(&self, end: u64) {
        self.watermark.wait(end);
    }

    /// Waits until all commits that have drawn a ticket are visible.
    pub(crate) fn catch_up(&self) {
        let (next, last) = {
            let sequencer = self.sequencer.lock();
            (sequencer.ticket, Seqno(sequencer.next.0 - 1))
        };
        self.watermark.wait(next);
        if next > 0 && !self.watermark.is_given_up(next - 1) {
            self.snapshots.advance(last);
        }
    }

    /// Draws `count` seqnos and a ticket, unless `check`, which runs under the sequencer, returns `false` or an error.
    /// Leaves the footprint of the commit, if there is one. If `is_quiet`, `check` runs when all earlier commits are
    /// applied.
    ///
    /// # Errors
    /// The errors of `check`. In this case nothing is drawn.
    #[inline]
    pub(crate) fn draw(
        &self,
        count: u32,
        footprint: Option<&Footprint>,
        is_quiet: bool,
        check: impl FnOnce(&Sequencer) -> Result<bool>,
    ) -> Result<Option<Ticket<'_>>> {
        assert!(count > 0, "a commit has operations");
        let mut sequencer = self.sequencer.lock();
        if is_quiet {
            // This wait ends like the one below.
            self.watermark.wait(sequencer.ticket);
        }
        if !check(&sequencer)? {
            return Ok(None);
        }
        if sequencer.ticket == sequencer.limit {
            // This wait ends: a thread that holds a ticket and has appended its record needs neither the sequencer nor
            // an append lock to finish.
            self.watermark.wait_for_slot(sequencer.ticket);
            sequencer.limit = self.watermark.limit();
        }
        debug_assert!(sequencer.ticket < sequencer.limit, "a ticket has a slot in the ring");
        let first = sequencer.next;
        let last = Seqno(first.0 + u64::from(count) - 1);
        let number = sequencer.ticket;
        sequencer.next = last.next();
        sequencer.ticket += 1;
        if let Some(footprint) = footprint {
            self.footprints.publish(number, last, footprint);
        }
        Ok(Some(Ticket { writer: self, number, first, last, is_complete: false }))
    }

    /// Takes the sequencer and waits until all assigned seqnos are applied and visible. A caller that makes a cut needs
    /// this. So does a caller that concludes from the next seqno, or from an empty memtable, that no earlier write is
    /// in progress. REQUIRES: the caller holds no ticket.
    pub(crate) fn quiesce(&self) -> Quiesced<'_> {
        #[cfg(test)]
        tests::QUIESCED.set(tests::QUIESCED.get() + 1);
        let sequencer = self.sequencer.lock();
        let awaited = seeded!(SealTooSoon: 0, sequencer.ticket);
        self.watermark.wait(awaited);
        let is_whole = sequencer.ticket == 0 || !self.watermark.is_given_up(sequencer.ticket - 1);
        if is_whole && awaited == sequencer.ticket {
            self.snapshots.advance(Seqno(sequencer.next.0 - 1));
        }
        Quiesced { sequencer, direct_writes: &self.direct_writes, has_changed_data: false, is_whole }
    }
}

/// The locked sequencer. All assigned seqnos are applied, and they are visible unless the store is poisoned.
pub(crate) struct Quiesced<'a> {
    sequencer: MutexGuard<'a, Sequencer>,
    direct_writes: &'a AtomicU64,
    /// Whether data was changed without a ticket.
    has_changed_data: bool,
    is_whole: bool,
}

impl Quiesced<'_> {
    /// The last seqno that was assigned.
    pub(crate) fn last(&self) -> Seqno {
        Seqno(self.sequencer.next.0 - 1)
    }

    /// Assigns the next seqno to a write without a ticket. The caller must make the seqno visible with
    /// [`Snapshots::advance`], also if the write fails and the seqno has no message. No other thread draws a seqno
    /// before this guard is dropped, so all lower seqnos are visible.
    pub(crate) fn assign(&mut self) -> Seqno {
        let seqno = self.sequencer.next;
        assert!(self.is_whole && seqno < Seqno::MAX, "every earlier commit is complete");
        self.sequencer.next = seqno.next();
        self.has_changed_data = true;
        seqno
    }

    /// Notes that a keyspace is dropped, or exists again, which is a change of all its data.
    pub(crate) fn note_drop(&mut self) {
        self.has_changed_data = true;
    }

    /// Whether every commit is applied completely. It is `false` if a commit failed in the middle: memtables may then
    /// hold a part of this commit.
    pub(crate) fn is_whole(&self) -> bool {
        self.is_whole
    }
}

impl Drop for Quiesced<'_> {
    /// Counts a change without a ticket when it is complete. A transaction that has searched for changes before notices
    /// the new number when it draws its ticket, because this guard still holds the sequencer.
    fn drop(&mut self) {
        if self.has_changed_data && !SeededBug::DirectWriteUncounted.is_on() {
            self.direct_writes.fetch_add(1, AcqRel);
        }
    }
}

/// A commit between the draw of its ticket and its end. Regardless of how the commit ends, no thread waits for it
/// afterwards: dropping an unfinished ticket poisons the store and gives up the ticket.
pub(crate) struct Ticket<'a> {
    writer: &'a Writer,
    number: u64,
    pub first: Seqno,
    pub last: Seqno,
    is_complete: bool,
}

impl Ticket<'_> {
    /// Finishes a commit that is applied and written: waits for all earlier commits, and makes the commit visible.
    ///
    /// # Errors
    /// [`Error::Indeterminate`] if an earlier commit failed.
    pub(crate) fn finish(mut self) -> Result<()> {
        self.is_complete = true;
        let Writer { watermark, snapshots, poison, .. } = self.writer;
        watermark.finish(self.number);
        watermark.wait(self.number + 1);
        if watermark.is_given_up(self.number) {
            // The record of this commit follows a record that may be missing. The next opening recovers this record
            // only if it also finds the earlier one.
            let first = poison.first().cloned().unwrap_or_else(|| "an earlier commit failed".into());
            return Err(Error::Indeterminate { first });
        }
        snapshots.advance(self.last);
        Ok(())
    }
}

impl Drop for Ticket<'_> {
    fn drop(&mut self) {
        if !self.is_complete {
            // If an error occurred, it has already poisoned the store, with its own message. A panic has not poisoned
            // it yet.
            let first = "a commit panicked; please report it with its message".into();
            self.writer.poison.set(&Error::Poisoned { first });
            self.writer.watermark.give_up(self.number);
        }
    }
}

#[cfg(test)]
pub(super) mod tests {
    use std::cell::Cell;

    use super::*;

    thread_local! {
        /// The number of times that this thread has quiesced the sequencer.
        pub(in super::super) static QUIESCED: Cell<u64> = const { Cell::new(0) };
    }

    fn draw(writer: &Writer, count: u32) -> Result<Ticket<'_>> {
        writer.draw(count, None, false, |_| Ok(true)).map(|ticket| ticket.expect("the check has passed"))
    }

    fn writer() -> Writer {
        Writer::new(Arc::default())
    }

    #[test]
    fn seqnos_are_drawn_in_order_and_become_visible_when_all_before_them_are_complete() {
        let writer = writer();
        let visible = || writer.snapshots.visible();
        let first = draw(&writer, 3).unwrap();
        assert_eq!((first.first, first.last), (Seqno(1), Seqno(3)));
        let second = draw(&writer, 1).unwrap();
        assert_eq!((second.first, second.last, visible()), (Seqno(4), Seqno(4), Seqno(0)));
        first.finish().unwrap();
        assert_eq!(visible(), Seqno(3));
        second.finish().unwrap();
        assert_eq!((visible(), writer.quiesce().last()), (Seqno(4), Seqno(4)));
    }

    #[test]
    fn a_refused_draw_takes_no_seqno() {
        let writer = writer();
        assert_eq!(writer.draw(7, None, false, |_| Err(Error::Closed)).map(|_| ()), Err(Error::Closed));
        assert!(writer.draw(7, None, false, |_| Ok(false)).is_ok_and(|ticket| ticket.is_none()));
        assert_eq!(writer.quiesce().last(), Seqno(0));
        draw(&writer, 1).unwrap().finish().unwrap();
        assert_eq!(writer.quiesce().last(), Seqno(1));
    }

    #[test]
    fn an_unfinished_ticket_poisons_the_writer_and_every_later_commit_is_indeterminate() {
        let writer = writer();
        let given_up = draw(&writer, 1).unwrap();
        let later = draw(&writer, 1).unwrap();
        drop(given_up);
        assert!(writer.poison.is_set());
        assert!(matches!(later.finish(), Err(Error::Indeterminate { .. })));
        let quiesced = writer.quiesce();
        assert!(!quiesced.is_whole(), "memtables may hold a part of it");
        assert_eq!(writer.snapshots.visible(), Seqno(0));
    }
}
