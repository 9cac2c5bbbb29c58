//! [`Client`]: a thread that executes the operations of a stream, times them and checks the answers.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use super::indexed::Buffers;
use super::recorder::{OpClass, Recorder};
use super::transactional::Counts;
use crate::engine::{Result, Session};
use crate::record::{Shape, Space, mix};
use crate::workload::set::{HOUR, SERIES, points_of};
use crate::workload::{Op, Stream, World};

/// The state that the threads of a workload share.
#[derive(Debug)]
pub struct Shared<'a> {
    /// The shape of keys and values.
    pub shape: &'a Shape,
    /// The expected contents of the store.
    pub world: &'a World,
    /// The number of records of the data set.
    pub records: u64,
    /// The number of client threads.
    pub threads: usize,
    /// The start time.
    pub started: Instant,
    /// Set when the time limit is reached or a thread has failed.
    pub stop: &'a AtomicBool,
    /// The number of finished operations, for the progress bar.
    pub done: &'a AtomicU64,
    /// The latency in nanoseconds of the slowest operation since this value was last read. Operations that took less
    /// than 1 ms are ignored.
    pub slowest: &'a AtomicU64,
    /// Operations per second that this thread issues (open loop); 0 for the maximum speed (closed loop).
    pub rate: f64,
}

/// The results of one thread.
#[derive(Debug)]
pub struct Outcome {
    /// The latencies of the operations.
    pub recorder: Recorder,
    /// The number of finished operations.
    pub ops: u64,
    /// The number of checked answers.
    pub checked: u64,
    /// The number of wrong answers among the checked answers.
    pub wrong: u64,
    /// The number of keys found and entries visited.
    pub found: u64,
    /// Bytes of keys and values written.
    pub user_bytes: u64,
    /// The number of rows, events or entries that were inserted, minus the number of those that were deleted.
    pub born: i64,
    /// The time from the start of the workload to the end of the last operation.
    pub end: Duration,
    /// The transactions of a transactional workload.
    pub transactions: Counts,
}

impl Outcome {
    /// The results before the first operation.
    pub(super) fn of(recorder: Recorder) -> Outcome {
        let (ops, checked, wrong, found, user_bytes, born, end, transactions) = Default::default();
        Outcome { recorder, ops, checked, wrong, found, user_bytes, born, end, transactions }
    }
}

/// The buffers and results of a thread.
pub struct Client<'a> {
    pub(super) shared: &'a Shared<'a>,
    pub(super) session: Box<dyn Session + 'a>,
    pub(super) key: Vec<u8>,
    end: Vec<u8>,
    pub(super) value: Vec<u8>,
    pub(super) keys: Vec<Vec<u8>>,
    pub(super) indexed: Buffers,
    /// The offset of the due times of this thread's operations, as a share of the time between two operations.
    turn: f64,
    pub(super) out: Outcome,
}

impl<'a> Client<'a> {
    /// Creates a client with an empty recorder. `turn`, from 0 to 1, shifts the due times of this client, so that they
    /// differ from the due times of other clients.
    pub fn new(shared: &'a Shared<'a>, session: Box<dyn Session + 'a>, turn: f64, recorder: Recorder) -> Client<'a> {
        let (key, end, value, keys, indexed) = Default::default();
        Client { shared, session, key, end, value, keys, indexed, turn, out: Outcome::of(recorder) }
    }

    /// Executes the operations of the stream until its end or until `stop` is set.
    ///
    /// # Errors
    /// The first error of the engine.
    pub fn run(mut self, stream: &mut Stream) -> Result<Outcome> {
        const REPORT: u64 = 64;
        const LONG: Duration = Duration::from_millis(1);
        let mut reported = 0;
        while !self.shared.stop.load(Relaxed) {
            let Some(due) = self.wait_until_due() else { break };
            let Some(op) = stream.next() else { break };
            if let Op::LoadSorted { space, rows, nonce } = op {
                self.load_sorted(space, rows, nonce)?;
                continue;
            }
            let (class, began, ended) = self.perform(op, stream)?;
            let started = self.shared.started;
            // In an open loop, an operation may have to wait for a slow earlier operation. This waiting time is part of
            // the latency.
            let since = if self.shared.rate > 0.0 { started + due } else { began };
            self.out.end = ended - started;
            let took = ended.saturating_duration_since(since);
            self.out.recorder.record(class, self.out.end, took);
            self.out.ops += 1;
            if took >= LONG {
                self.shared.slowest.fetch_max(took.as_nanos() as u64, Relaxed);
            }
            if took >= LONG || self.out.ops - reported >= REPORT {
                self.shared.done.fetch_add(self.out.ops - reported, Relaxed);
                reported = self.out.ops;
            }
        }
        Ok(self.out)
    }

    /// Waits until the next operation of an open loop is due, and returns the due time, measured from the start.
    /// Returns `None` if `stop` is set before the due time.
    fn wait_until_due(&self) -> Option<Duration> {
        if self.shared.rate <= 0.0 {
            return Some(Duration::ZERO);
        }
        // Each thread has an offset, so that operations of several threads are not due at the same time.
        let due = Duration::from_secs_f64((self.out.ops as f64 + self.turn) / self.shared.rate);
        // `sleep` is not exact, so the thread spins during the last 100 µs.
        const SPIN: Duration = Duration::from_micros(100);
        const NAP: Duration = Duration::from_millis(50);
        loop {
            match due.saturating_sub(self.shared.started.elapsed()) {
                Duration::ZERO => return Some(due),
                _ if self.shared.stop.load(Relaxed) => return None,
                left if left > SPIN => std::thread::sleep((left - SPIN).min(NAP)),
                _ => std::hint::spin_loop(),
            }
        }
    }

    /// Executes one operation. Returns the operation's class, start and end. The time from start to end includes
    /// neither the generation of keys and values nor the check of the answer.
    fn perform(&mut self, op: Op, stream: &Stream) -> Result<(OpClass, Instant, Instant)> {
        let shape = self.shared.shape;
        match op {
            Op::Put { space, number, nonce } => {
                shape.key(space, number, &mut self.key);
                shape.value(&self.key, nonce, &mut self.value);
                let is_new = !matches!(space, Space::Rows) || number >= self.shared.world.rows;
                self.out.born += i64::from(is_new);
                let bytes = (self.key.len() + self.value.len()) as u64;
                self.write(bytes, |session, key, value| session.put(key, value))
            }
            Op::Add { number, delta } => {
                shape.key(Space::Counters, number, &mut self.key);
                self.shared.world.added(number, delta);
                self.write(self.key.len() as u64 + 8, |session, key, _| session.merge_add(key, delta))
            }
            Op::Delete { number } => {
                shape.key(Space::Rows, number, &mut self.key);
                self.out.born -= 1;
                self.write(self.key.len() as u64, |session, key, _| session.delete(key))
            }
            Op::DeleteEvents { from, to } => {
                shape.key(Space::Events, from, &mut self.key);
                shape.key(Space::Events, to, &mut self.end);
                self.out.born -= (to - from) as i64;
                let began = Instant::now();
                self.session.delete_range(&self.key, &self.end)?;
                self.out.user_bytes += 2 * self.key.len() as u64;
                Ok((OpClass::Write, began, Instant::now()))
            }
            Op::Get { space, number } => self.get(space, number, stream.has_inserted(number)),
            Op::Modify { number, nonce } => self.modify(number, nonce, stream.has_inserted(number)),
            Op::Scan { number, len } => {
                shape.key(Space::Rows, number, &mut self.key);
                self.scan(number, len as usize)
            }
            Op::ScanPrefix { number, digits } => {
                shape.key(Space::Rows, number, &mut self.key);
                self.scan_prefix(shape.prefix_len(digits))
            }
            Op::MultiGet => self.multi_get(&stream.rows),
            Op::Pop { queue, number } => self.pop(queue, number),
            Op::ScanBack { number, len } => self.scan_back(number, len as usize),
            Op::LastHour { series } => self.last_hour(series),
            Op::PutIndexed { number, nonce } => self.put_indexed(number, nonce),
            Op::UpdateIndexed { number, nonce } => self.update_indexed(number, nonce),
            Op::LookupIndexed { group } => self.lookup_indexed(group),
            Op::LoadSorted { .. } => Err("a bulk load is not a single operation".into()),
        }
    }

    fn write(
        &mut self,
        bytes: u64,
        act: impl FnOnce(&mut dyn Session, &[u8], &[u8]) -> Result<()>,
    ) -> Result<(OpClass, Instant, Instant)> {
        let began = Instant::now();
        act(self.session.as_mut(), &self.key, &self.value)?;
        let ended = Instant::now();
        self.out.user_bytes += bytes;
        Ok((OpClass::Write, began, ended))
    }

    pub(super) fn check(&mut self, is_right: bool) {
        self.out.checked += 1;
        self.out.wrong += u64::from(!is_right);
    }

    pub(super) fn get(&mut self, space: Space, number: u64, is_mine: bool) -> Result<(OpClass, Instant, Instant)> {
        let shape = self.shared.shape;
        shape.key(space, number, &mut self.key);
        let began = Instant::now();
        let found = self.session.get(&self.key, &mut self.value)?;
        let ended = Instant::now();
        self.out.found += u64::from(found);
        let is_right = match found {
            true => space != Space::Absent && shape.is_value_of(&self.key, &self.value),
            // Another thread may not have inserted the row yet.
            false => space == Space::Absent || !(is_mine || self.shared.world.has_row(number)),
        };
        self.check(is_right);
        Ok((OpClass::Read, began, ended))
    }

    fn modify(&mut self, number: u64, nonce: u64, is_mine: bool) -> Result<(OpClass, Instant, Instant)> {
        let shape = self.shared.shape;
        let (_, began, read) = self.get(Space::Rows, number, is_mine)?;
        shape.value(&self.key, nonce, &mut self.value);
        let bytes = (self.key.len() + self.value.len()) as u64;
        let (_, again, ended) = self.write(bytes, |session, key, value| session.put(key, value))?;
        // The time between the read and the write, in which the value is checked and generated, is not counted.
        Ok((OpClass::Write, began + (again - read), ended))
    }

    fn scan(&mut self, number: u64, limit: usize) -> Result<(OpClass, Instant, Instant)> {
        let (shape, from, world) = (self.shared.shape, &self.key, self.shared.world);
        // A deleted row must not be the first entry; an existing row must be the first entry.
        let (has_first, is_deleted) = (world.has_row(number), world.is_deleted(number));
        let (mut is_right, mut visited) = (true, 0);
        let began = Instant::now();
        let found = self.session.scan(from, limit, &mut |key, value| {
            // Only the first entry is checked completely, because this check is part of the measured time.
            if visited == 0 {
                let is_first = key == from.as_slice();
                is_right &= key >= from.as_slice() && is_whole(shape, key, value);
                is_right &= is_first || !has_first;
                is_right &= !(is_first && is_deleted);
            }
            is_right &= touch(value);
            visited += 1;
        })?;
        let ended = Instant::now();
        self.out.found += found as u64;
        let least = if world.has_so_many_after(number, limit) { limit } else { usize::from(has_first) };
        self.check(is_right && found == visited && (least..=limit).contains(&found));
        Ok((OpClass::Scan, began, ended))
    }

    /// Visits rows downwards, from an existing or new row. Unlike in [`Client::scan`], the order of all entries is
    /// checked.
    fn scan_back(&mut self, number: u64, limit: usize) -> Result<(OpClass, Instant, Instant)> {
        let (shape, world) = (self.shared.shape, self.shared.world);
        shape.key(Space::Rows, number, &mut self.key);
        let (from, last, has_first) = (&self.key, &mut self.end, world.has_row(number));
        let (mut is_right, mut visited) = (true, 0);
        let began = Instant::now();
        let found = self.session.scan_back(from, limit, &mut |key, value| {
            if visited == 0 {
                is_right &= key <= from.as_slice() && is_whole(shape, key, value);
                is_right &= key == from.as_slice() || !has_first;
            } else {
                is_right &= key < last.as_slice();
            }
            last.clear();
            last.extend_from_slice(key);
            is_right &= touch(value);
            visited += 1;
        })?;
        let ended = Instant::now();
        self.out.found += found as u64;
        let least = if world.has_so_many_before(number, limit) { limit } else { usize::from(has_first) };
        self.check(is_right && found == visited && (least..=limit).contains(&found));
        Ok((OpClass::Scan, began, ended))
    }

    /// Visits the newest points of a series. The key of each point is checked, and the values of the first and the last.
    fn last_hour(&mut self, series: u64) -> Result<(OpClass, Instant, Instant)> {
        let shape = self.shared.shape;
        let points = points_of(series, self.shared.records);
        let limit = points.min(HOUR);
        let mut time = points - limit;
        shape.key(Space::Points { series: SERIES }, time * SERIES + series, &mut self.key);
        let mut is_right = true;
        let began = Instant::now();
        let found = self.session.scan(&self.key, limit as usize, &mut |key, value| {
            let word = |at: usize| Some(u64::from_be_bytes(key.get(at..at + 8)?.try_into().ok()?));
            is_right &= key.len() == 16 && word(0) == Some(series) && word(8) == Some(time) && value.len() == 16;
            if time + limit == points || time + 1 == points {
                is_right &= shape.is_value_of(key, value);
            }
            time += 1;
        })?;
        let ended = Instant::now();
        self.out.found += found as u64;
        self.check(is_right && found as u64 == limit && time == points);
        Ok((OpClass::Scan, began, ended))
    }

    /// Loads rows in key order through the bulk interface. The latency of a row is the time that the engine took from the
    /// receipt of the row to its request for the next row. So the sum of the latencies is the time spent in the engine,
    /// and the latency of the last row includes the commit.
    fn load_sorted(&mut self, space: Space, rows: u64, nonce: u64) -> Result<()> {
        let (shared, out) = (self.shared, &mut self.out);
        let mut numbers: Vec<u64> =
            if matches!(space, Space::Sorted { .. }) { Vec::new() } else { (0..rows).collect() };
        numbers.sort_unstable_by_key(|number| space.place(*number));
        let (mut made, mut given) = (0, None);
        let mut record = |given: &mut Option<Instant>| {
            let Some(began) = given.take() else { return };
            let ended = Instant::now();
            out.end = ended - shared.started;
            out.recorder.record(OpClass::Write, out.end, ended - began);
            out.ops += 1;
            shared.done.fetch_add(1, Relaxed);
        };
        let mut bytes = 0;
        let loaded = self.session.load_sorted(&mut |key, value| {
            record(&mut given);
            if made == rows || shared.stop.load(Relaxed) {
                given = Some(Instant::now());
                return false;
            }
            shared.shape.key(space, numbers.get(made as usize).copied().unwrap_or(made), key);
            shared.shape.value(key, mix(nonce ^ made), value);
            bytes += (key.len() + value.len()) as u64;
            made += 1;
            given = Some(Instant::now());
            true
        })?;
        out.end = shared.started.elapsed();
        out.user_bytes += bytes;
        out.born += made as i64;
        self.check(loaded == made);
        Ok(())
    }

    fn scan_prefix(&mut self, len: usize) -> Result<(OpClass, Instant, Instant)> {
        let (mut found, mut is_right) = (0, false);
        let mut from = self.key[..len].to_vec();
        let began = Instant::now();
        // The trait has no prefix iterator, so the client scans entries in blocks until a key has another prefix.
        'all: loop {
            const BLOCK: usize = 64;
            let (mut ended, mut last) = (false, Vec::new());
            let n = self.session.scan(&from, BLOCK, &mut |key, _| {
                ended |= !key.starts_with(&self.key[..len]);
                if !ended {
                    found += 1;
                    is_right |= key == self.key.as_slice();
                    last.clear();
                    last.extend_from_slice(key);
                }
            })?;
            if ended || n < BLOCK {
                break 'all;
            }
            last.push(0);
            from = last;
        }
        let ended = Instant::now();
        self.out.found += found;
        self.check(is_right);
        Ok((OpClass::Scan, began, ended))
    }

    fn multi_get(&mut self, rows: &[u64]) -> Result<(OpClass, Instant, Instant)> {
        let shape = self.shared.shape;
        self.keys.resize_with(rows.len(), Vec::new);
        for (key, row) in self.keys.iter_mut().zip(rows) {
            shape.key(Space::Rows, *row, key);
        }
        let mut is_right = true;
        let keys = &self.keys;
        let began = Instant::now();
        let found = self.session.multi_get(keys, &mut |i, value| {
            is_right &= i > 0 || shape.is_value_of(&keys[i], value);
        })?;
        let ended = Instant::now();
        self.out.found += found as u64;
        let all_there = rows.iter().all(|row| self.shared.world.has_row(*row));
        self.check(is_right && (found == rows.len() || !all_there));
        Ok((OpClass::Read, began, ended))
    }

    fn pop(&mut self, queue: u8, number: u64) -> Result<(OpClass, Instant, Instant)> {
        let shape = self.shared.shape;
        shape.key(Space::Queue(queue), 0, &mut self.key);
        let end = &mut self.end;
        let began = Instant::now();
        self.session.scan(&self.key, 1, &mut |key, _| end.clone_from(&key.to_vec()))?;
        self.session.delete(end)?;
        let ended = Instant::now();
        shape.key(Space::Queue(queue), number, &mut self.key);
        let is_right = self.key == self.end;
        self.check(is_right);
        self.out.user_bytes += self.key.len() as u64;
        self.out.born -= 1;
        Ok((OpClass::Write, began, ended))
    }
}

/// Reads each 4,096th byte of a value and the last one, as a program does that uses its values. An engine that maps its
/// files would otherwise return values that were not read from the device. Returns whether the value has any bytes.
fn touch(value: &[u8]) -> bool {
    std::hint::black_box(value.iter().step_by(4096).chain(value.last()).fold(0, |sum, byte| sum ^ byte));
    !value.is_empty()
}

/// Whether a value is the value of a row or of a counter.
fn is_whole(shape: &Shape, key: &[u8], value: &[u8]) -> bool {
    shape.is_value_of(key, value) || value.len() == 8
}
