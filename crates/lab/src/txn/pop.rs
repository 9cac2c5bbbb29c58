//! A queue. Consumers take the first row in a transaction, and producers push rows behind the last one with plain puts.
//!
//! One thread pushes and pops in turn. Of several threads, the even ones consume. Only pops are counted and timed. The
//! numbers of pushed rows come from one counter, so that rows of several producers may become visible out of order by a
//! few positions. A consumer that finds the queue empty is idle. A producer waits while the queue has 1,000 rows more
//! than at the start, so that the length of the queue stays about the same.
//!
//! The check: the rows that were loaded and pushed are the rows that were popped and that remain. It compares the
//! number of rows, the sum of their numbers and the sum of a hash of their numbers.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use super::program::{Program, Settings, Step, StepKind, Tally, Worker, expect};
use super::rows::{Key, Visit, fill, number, walk};
use crate::engine::Session;
use crate::failure::Result;
use crate::record::mix;
use crate::transactions::{Access, Verdict};

const QUEUE: u8 = b'q';
/// Positions in the tally. The first three are pushed minus popped rows.
const ROWS: usize = 0;
const SUM: usize = 1;
const HASHES: usize = 2;
/// The most rows by which the queue grows.
const SLACK: u64 = 1000;

/// The queue.
pub struct Queue {
    settings: Settings,
    /// The number of the next row.
    next: AtomicU64,
    /// The number of popped rows.
    popped: AtomicU64,
}

impl Queue {
    /// A queue with one loaded row for each record.
    pub fn new(settings: Settings) -> Queue {
        Queue { settings, next: AtomicU64::new(settings.records), popped: AtomicU64::new(0) }
    }
}

/// Counts a row that was pushed (`sign` 1) or popped (-1).
fn count(tally: &mut Tally, row: u64, sign: i64) {
    for (at, n) in [(ROWS, 1), (SUM, row as i64), (HASHES, mix(row) as i64)] {
        tally.0[at] = tally.0[at].wrapping_add(n.wrapping_mul(sign));
    }
}

impl Program for Queue {
    fn rows(&self, put: &mut Visit) -> Result<()> {
        let mut value = Vec::new();
        for row in 0..self.settings.records {
            fill(&mut value, self.settings.value_len, &[row as i64], row);
            put(&Key::of(QUEUE).u64(row), &value)?;
        }
        Ok(())
    }

    fn worker(&self, thread: usize) -> Box<dyn Worker + '_> {
        let (is_alone, consumes) = (self.settings.threads == 1, thread.is_multiple_of(2));
        Box::new(End { queue: self, is_alone, consumes, key: Vec::new(), value: Vec::new(), tally: Tally::default() })
    }

    fn check(&self, session: &mut dyn Session, tally: &Tally) -> Result<Vec<String>> {
        let (mut found, mut expected, mut complaints) = (Tally::default(), *tally, Vec::new());
        (0..self.settings.records).for_each(|row| count(&mut expected, row, 1));
        walk(session, QUEUE, &mut |_, value| {
            count(&mut found, number(value, 0)? as u64, 1);
            Ok(())
        })?;
        for (at, what) in [(ROWS, "rows in the queue"), (SUM, "sum of the rows"), (HASHES, "sum of the rows' hashes")] {
            expect(&mut complaints, what, found.0[at], expected.0[at]);
        }
        Ok(complaints)
    }
}

struct End<'a> {
    queue: &'a Queue,
    is_alone: bool,
    consumes: bool,
    key: Vec<u8>,
    value: Vec<u8>,
    tally: Tally,
}

impl End<'_> {
    fn push(&mut self, session: &mut dyn Session) -> Result<Step> {
        let Queue { settings, next, popped } = self.queue;
        let length = next.load(Relaxed).saturating_sub(popped.load(Relaxed));
        if !self.is_alone && length >= settings.records + SLACK {
            return Ok(Step { kind: StepKind::Waiting, ..Step::default() });
        }
        let row = next.fetch_add(1, Relaxed);
        let key = Key::of(QUEUE).u64(row);
        fill(&mut self.value, settings.value_len, &[row as i64], row);
        session.put(&key, &self.value)?;
        count(&mut self.tally, row, 1);
        let bytes = key.len() + self.value.len();
        Ok(Step { kind: StepKind::Aside, written: bytes as u64, born: bytes as i64, ..Step::once() })
    }

    fn pop(&mut self, session: &mut dyn Session) -> Result<Step> {
        let End { key, value, .. } = self;
        let attempts = session.transact(Access::Write, &mut |tx| {
            let found = tx.scan(&Key::of(QUEUE), &Key::of(QUEUE + 1), 1, &mut |first, row| {
                key.clear();
                key.extend_from_slice(first);
                value.clear();
                value.extend_from_slice(row);
            })?;
            if found == 0 {
                return Ok(Verdict::RollBack);
            }
            tx.delete(key)?;
            Ok(Verdict::Commit)
        })?;
        if !attempts.committed {
            return Ok(Step { attempts, kind: StepKind::Idle, ..Step::default() });
        }
        self.queue.popped.fetch_add(1, Relaxed);
        count(&mut self.tally, number(&self.value, 0)? as u64, -1);
        let born = -((self.key.len() + self.value.len()) as i64);
        Ok(Step { attempts, written: self.key.len() as u64, born, ..Step::default() })
    }
}

impl Worker for End<'_> {
    fn draw(&mut self) {
        self.consumes ^= self.is_alone;
    }

    fn run(&mut self, session: &mut dyn Session) -> Result<Step> {
        if self.consumes { self.pop(session) } else { self.push(session) }
    }

    fn tally(&self) -> Tally {
        self.tally
    }
}
