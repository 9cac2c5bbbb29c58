//! [`Stream`]: the sequence of operations of one thread. The same plan gives the same sequence.

use rand::{Rng, SeedableRng};
use rand_xoshiro::Xoshiro256PlusPlus;

use super::set::{SERIES, groups};
use super::world::MOST_COUNTERS;
use super::{Dist, Kind, Picker, Verb, Workload};
use crate::record::{Space, mix};

/// The number of operations that a digest covers.
const DIGESTED: u64 = 10_000;
/// In the workload `expiry`, the share of records that exist at a time is one divided by this number.
const EXPIRY_WINDOW: u64 = 4;
/// The number of range deletes in the time in which the window of existing events moves on by its own length.
const EXPIRY_DELETES: u64 = 16;
/// When a store is thinned, one row out of this number of rows stays.
pub const THINNED: u64 = 10;
/// The total number of entries in all queues is the number of records divided by this number.
const BACKLOG: u64 = 10;

/// One operation of a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Op {
    /// Put a value.
    Put {
        /// The kind of the record.
        space: Space,
        /// The number of the record.
        number: u64,
        /// The nonce from which the value is generated.
        nonce: u64,
    },
    /// Get a value.
    Get {
        /// The kind of the record.
        space: Space,
        /// The number of the record.
        number: u64,
    },
    /// Get a row and put it.
    Modify {
        /// The number of the row.
        number: u64,
        /// The nonce from which the value is generated.
        nonce: u64,
    },
    /// Visit entries from a row on.
    Scan {
        /// The number of the row.
        number: u64,
        /// The maximum number of entries.
        len: u32,
    },
    /// Visit the rows whose keys begin with the same `digits` digits as a row.
    ScanPrefix {
        /// The number of the row.
        number: u64,
        /// The number of hexadecimal digits.
        digits: usize,
    },
    /// Add to a counter.
    Add {
        /// The number of the counter.
        number: u64,
        /// The addend.
        delta: u64,
    },
    /// Delete a row.
    Delete {
        /// The number of the row.
        number: u64,
    },
    /// Delete events.
    DeleteEvents {
        /// The first event.
        from: u64,
        /// The first event after the range.
        to: u64,
    },
    /// Get the rows in [`Stream::rows`].
    MultiGet,
    /// Visit entries from a row downwards.
    ScanBack {
        /// The number of the row.
        number: u64,
        /// The maximum number of entries.
        len: u32,
    },
    /// Visit the newest points of a time series.
    LastHour {
        /// The number of the series.
        series: u64,
    },
    /// Put an indexed row with its index entry and its change record.
    PutIndexed {
        /// The number of the row.
        number: u64,
        /// The nonce from which the values are generated.
        nonce: u64,
    },
    /// Get an indexed row, and replace it, its index entry and its change record.
    UpdateIndexed {
        /// The number of the row.
        number: u64,
        /// The nonce from which the new values are generated.
        nonce: u64,
    },
    /// Get the rows of a group through the index.
    LookupIndexed {
        /// The number of the group.
        group: u64,
    },
    /// Load rows in key order through the engine's interface for bulk loading.
    LoadSorted {
        /// The kind of the rows: [`Space::Rows`] or [`Space::Sorted`].
        space: Space,
        /// The number of rows.
        rows: u64,
        /// The nonce from which the values are generated.
        nonce: u64,
    },
    /// Remove the first entry of a queue, which must be `number`.
    Pop {
        /// The number of the queue.
        queue: u8,
        /// The number of the entry at the head.
        number: u64,
    },
}

/// The parameters of a stream.
#[derive(Clone, Copy, Debug)]
pub struct StreamPlan {
    /// The workload.
    pub workload: &'static Workload,
    /// The distribution.
    pub dist: Dist,
    /// Seed of all random choices.
    pub seed: u64,
    /// The number of threads.
    pub threads: u64,
    /// The number of this thread.
    pub thread: u64,
    /// Total operations of all threads. A workload that processes all records ignores this number.
    pub ops: u64,
    /// The number of records that were loaded before the workload, or that the workload itself loads.
    pub records: u64,
    /// The number of rows that exist, from [`super::World::rows`].
    pub rows: u64,
    /// The number of the first new row.
    pub next_row: u64,
    /// The share of the insertions of [`Kind::LoadMixed`] that are in key order, in percent.
    pub seq_share: f64,
}

/// The operations of one thread.
#[derive(Debug)]
pub struct Stream {
    plan: StreamPlan,
    rng: Xoshiro256PlusPlus,
    picker: Picker,
    /// The number of operations left.
    left: u64,
    /// The number of operations generated.
    made: u64,
    /// The number of insertions generated.
    inserted: u64,
    /// The number of entries removed from the queue.
    popped: u64,
    /// All events below this number were deleted or never existed.
    expired: u64,
    digest: u64,
    /// The rows of the last [`Op::MultiGet`].
    pub rows: Vec<u64>,
}

impl Stream {
    /// Creates the stream of a plan.
    pub fn new(plan: StreamPlan) -> Stream {
        let total = match plan.workload.kind {
            Kind::Load | Kind::LoadSeq | Kind::LoadMixed | Kind::LoadPoints | Kind::LoadIndexed => plan.records,
            // The first thread loads all rows in one operation.
            Kind::LoadSorted | Kind::LoadSortedRows => 1,
            Kind::Thin => plan.records - plan.records.div_ceil(THINNED),
            Kind::Transactions(_) => 0,
            _ => plan.ops,
        };
        let share = total / plan.threads + u64::from(plan.thread < total % plan.threads);
        let seed =
            mix(plan.seed ^ mix(plan.thread)).wrapping_add(xxhash_rust::xxh3::xxh3_64(plan.workload.name.as_bytes()));
        Stream {
            rng: Xoshiro256PlusPlus::seed_from_u64(seed),
            picker: Picker::new(plan.dist, plan.records),
            left: share,
            made: 0,
            inserted: 0,
            popped: 0,
            expired: 0,
            digest: 0,
            rows: Vec::new(),
            plan,
        }
    }

    /// A hash of the first 10,000 operations of a plan. The hash depends only on the plan, not on how many operations
    /// are executed.
    pub fn digest_of(plan: StreamPlan) -> u64 {
        let mut stream = Stream::new(plan);
        stream.by_ref().take(DIGESTED as usize).for_each(drop);
        stream.digest
    }

    /// The number of rows, events or entries inserted up to now.
    pub fn inserted(&self) -> u64 {
        self.inserted
    }

    /// All events below this number are deleted.
    pub fn expired(&self) -> u64 {
        self.expired
    }

    /// The number of the record that this thread inserts next. `from` is the first number that is given to a record.
    fn next_number(&mut self, from: u64) -> u64 {
        let number = from + self.inserted * self.plan.threads + self.plan.thread;
        self.inserted += 1;
        number
    }

    /// Picks one of the loaded rows, so that insertions do not change which rows are popular. With [`Dist::Latest`],
    /// picks one of the latest rows.
    fn pick(&mut self) -> u64 {
        let newer = self.inserted * self.plan.threads;
        let rows = match self.plan.dist {
            Dist::Latest if newer > 0 => self.plan.next_row + newer,
            Dist::Latest => self.plan.rows,
            _ => self.plan.records,
        };
        self.picker.pick(rows, &mut self.rng)
    }

    /// Picks an indexed row. Each thread has rows of its own, so that no other thread changes the row between the read and
    /// the write of an update.
    fn pick_mine(&mut self) -> u64 {
        let StreamPlan { threads, thread, records, .. } = self.plan;
        let number = self.pick();
        let mine = number - number % threads + thread;
        debug_assert!(records >= threads, "each thread has a row");
        if mine < records { mine } else { mine - threads }
    }

    /// Whether this stream has inserted the row.
    pub fn has_inserted(&self, number: u64) -> bool {
        let Some(since) = number.checked_sub(self.plan.next_row) else { return false };
        since % self.plan.threads == self.plan.thread && since / self.plan.threads < self.inserted
    }

    fn put(&mut self, space: Space, number: u64) -> Op {
        Op::Put { space, number, nonce: self.rng.next_u64() }
    }

    fn load_mixed(&mut self) -> Op {
        let in_order = (self.rng.next_u64() >> 11) as f64 / (1u64 << 53) as f64 * 100.0 < self.plan.seq_share;
        // Each number is used once, by one of the two kinds of keys. Between the keys in order, there are gaps for the
        // random keys.
        let number = self.next_number(0);
        let stride = u64::MAX / self.plan.records.max(1);
        self.put(if in_order { Space::Sorted { stride } } else { Space::Rows }, number)
    }

    fn expiry(&mut self) -> Op {
        let window = self.plan.records / EXPIRY_WINDOW;
        let slice = (window / EXPIRY_DELETES).max(1);
        let at = self.inserted * self.plan.threads;
        if self.plan.thread == 0 && at >= self.expired + window + slice {
            let from = self.expired;
            self.expired += slice;
            return Op::DeleteEvents { from, to: self.expired };
        }
        let number = self.next_number(0);
        self.put(Space::Events, number)
    }

    fn queue(&mut self) -> Op {
        let queue = self.plan.thread as u8;
        let backlog = (self.plan.records / BACKLOG / self.plan.threads).max(1);
        if self.inserted - self.popped > backlog {
            self.popped += 1;
            return Op::Pop { queue, number: self.popped - 1 };
        }
        self.inserted += 1;
        self.put(Space::Queue(queue), self.inserted - 1)
    }

    fn mixed(&mut self, verbs: &[(u8, Verb)]) -> Op {
        let mut at = if verbs.len() == 1 { 0 } else { (self.rng.next_u64() % 100) as u8 };
        let verb = verbs.iter().find(|(share, _)| {
            let here = at < *share;
            at = at.saturating_sub(*share);
            here
        });
        let verb = verb.expect("the shares of a mix make a hundred").1;
        match verb {
            Verb::Insert => {
                let number = self.next_number(self.plan.next_row);
                self.put(Space::Rows, number)
            }
            Verb::Update => {
                let number = self.pick();
                self.put(Space::Rows, number)
            }
            Verb::Read => Op::Get { space: Space::Rows, number: self.pick() },
            Verb::ReadAbsent => Op::Get { space: Space::Absent, number: self.pick() },
            Verb::ReadModifyWrite => Op::Modify { number: self.pick(), nonce: self.rng.next_u64() },
            Verb::Scan(least, most) => {
                let more = self.rng.next_u64() % u64::from(most - least + 1);
                Op::Scan { number: self.pick(), len: least + more as u32 }
            }
            Verb::ScanBack(least, most) => {
                let more = self.rng.next_u64() % u64::from(most - least + 1);
                Op::ScanBack { number: self.pick(), len: least + more as u32 }
            }
            Verb::LastHour => Op::LastHour { series: self.rng.next_u64() % SERIES.min(self.plan.records) },
            Verb::UpdateIndexed => Op::UpdateIndexed { number: self.pick_mine(), nonce: self.rng.next_u64() },
            Verb::LookupIndexed => Op::LookupIndexed { group: self.rng.next_u64() % groups(self.plan.records) },
            Verb::ScanPrefix => {
                // Each digit divides the number of rows by 16. With this number of digits, about 16 rows share a
                // prefix.
                let digits = (self.plan.records.max(16) as f64 / 16.0).log(16.0).round() as usize;
                Op::ScanPrefix { number: self.pick(), digits }
            }
            Verb::Merge => Op::Add { number: self.pick() % MOST_COUNTERS, delta: 1 + self.rng.next_u64() % 100 },
            Verb::MultiGet(n) => {
                self.rows.clear();
                for _ in 0..n {
                    let row = self.pick();
                    self.rows.push(row);
                }
                Op::MultiGet
            }
        }
    }

    fn made(&mut self, op: Op) -> Op {
        self.made += 1;
        if self.made <= DIGESTED {
            let (kind, a, b) = match op {
                Op::Put { number, nonce, .. } => (1, number, nonce),
                Op::Get { number, .. } => (2, number, 0),
                Op::Modify { number, nonce } => (3, number, nonce),
                Op::Scan { number, len } => (4, number, u64::from(len)),
                Op::ScanPrefix { number, digits } => (5, number, digits as u64),
                Op::Add { number, delta } => (6, number, delta),
                Op::Delete { number } => (7, number, 0),
                Op::DeleteEvents { from, to } => (8, from, to),
                Op::MultiGet => (9, self.rows.iter().fold(0, |sum, row| mix(sum ^ row)), 0),
                Op::Pop { number, .. } => (10, number, 0),
                Op::ScanBack { number, len } => (11, number, u64::from(len)),
                Op::LastHour { series } => (12, series, 0),
                Op::PutIndexed { number, nonce } => (13, number, nonce),
                Op::UpdateIndexed { number, nonce } => (14, number, nonce),
                Op::LookupIndexed { group } => (15, group, 0),
                Op::LoadSorted { rows, nonce, .. } => (16, rows, nonce),
            };
            self.digest = mix(self.digest ^ mix(kind ^ mix(a ^ mix(b))));
        }
        op
    }
}

impl Iterator for Stream {
    type Item = Op;

    fn next(&mut self) -> Option<Op> {
        self.left = self.left.checked_sub(1)?;
        let op = match self.plan.workload.kind {
            Kind::Load => {
                let number = self.next_number(0);
                self.put(Space::Rows, number)
            }
            Kind::LoadSeq => {
                let number = self.next_number(0);
                self.put(Space::Sorted { stride: u64::MAX / self.plan.records.max(1) }, number)
            }
            Kind::LoadMixed => self.load_mixed(),
            Kind::LoadPoints => {
                let number = self.next_number(0);
                self.put(Space::Points { series: SERIES }, number)
            }
            Kind::LoadIndexed => Op::PutIndexed { number: self.next_number(0), nonce: self.rng.next_u64() },
            Kind::LoadSorted => {
                let space = Space::Sorted { stride: u64::MAX / self.plan.records.max(1) };
                Op::LoadSorted { space, rows: self.plan.records, nonce: self.rng.next_u64() }
            }
            Kind::LoadSortedRows => {
                Op::LoadSorted { space: Space::Rows, rows: self.plan.records, nonce: self.rng.next_u64() }
            }
            Kind::Mix(verbs) => self.mixed(verbs),
            Kind::Thin => {
                // This is the i-th number that is not a multiple of ten.
                let i = self.made * self.plan.threads + self.plan.thread;
                Op::Delete { number: i + i / (THINNED - 1) + 1 }
            }
            Kind::Expiry => self.expiry(),
            Kind::Queue => self.queue(),
            Kind::Transactions(_) => unreachable!("a stream of a transactional workload has no operations"),
        };
        Some(self.made(op))
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::workload::ALL;

    fn stream(name: &str, seed: u64, thread: u64) -> Stream {
        let workload = Workload::find(name).unwrap();
        let (records, rows, next_row) = (1000, 1000, 1000);
        let plan = StreamPlan {
            workload,
            dist: workload.dist,
            seed,
            threads: 2,
            thread,
            ops: 2000,
            records,
            rows,
            next_row,
            seq_share: 50.0,
        };
        Stream::new(plan)
    }

    #[test]
    fn the_same_seed_gives_the_same_operations() {
        for workload in ALL {
            let run = |seed, thread| {
                let mut stream = stream(workload.name, seed, thread);
                let ops: Vec<Op> = stream.by_ref().collect();
                (ops, stream.digest)
            };
            let first = run(1, 0);
            assert_eq!(first, run(1, 0), "{}", workload.name);
            assert_ne!(first.1, run(1, 1).1, "{}: threads differ", workload.name);
            let random = !matches!(workload.kind, Kind::Thin);
            assert_eq!(first.1 != run(2, 0).1, random, "{}: another seed", workload.name);
        }
    }

    #[test]
    fn a_load_and_a_thinning_touch_each_row_once() {
        for (name, expected) in [("load", (0..1000).collect()), ("delete", (0..1000).filter(|n| n % 10 != 0).collect())]
        {
            let numbers = [0, 1].into_iter().flat_map(|thread| stream(name, 1, thread)).map(|op| match op {
                Op::Put { number, .. } | Op::Delete { number } => number,
                other => panic!("{other:?}"),
            });
            let numbers: Vec<u64> = numbers.collect();
            assert_eq!(numbers.iter().copied().collect::<BTreeSet<u64>>(), expected, "{name}");
            assert_eq!(numbers.len(), expected.len(), "{name}: none twice");
        }
    }

    #[test]
    fn each_thread_updates_its_own_indexed_rows() {
        for thread in [0, 1] {
            for op in stream("secondary-update", 1, thread) {
                let Op::UpdateIndexed { number, .. } = op else { panic!("{op:?}") };
                assert!(number % 2 == thread && number < 1000, "{number}");
            }
        }
        assert_eq!(stream("load-sorted", 1, 0).count(), 1);
        assert_eq!(stream("load-sorted", 1, 1).count(), 0, "one thread loads all rows");
    }

    #[test]
    fn a_mix_has_its_shares() {
        let ops: Vec<Op> = stream("e", 1, 0).collect();
        let scans: Vec<u32> =
            ops.iter().filter_map(|op| if let Op::Scan { len, .. } = op { Some(*len) } else { None }).collect();
        assert!((930..970).contains(&scans.len()), "{}", scans.len());
        assert!(scans.iter().all(|len| (1..=100).contains(len)));
        assert_eq!(ops.len(), 1000, "half of the operations of two threads");
    }

    #[test]
    fn a_queue_pops_in_order_and_keeps_its_backlog() {
        let (mut pushed, mut popped) = (0, 0);
        for op in stream("queue", 1, 1) {
            match op {
                Op::Put { space: Space::Queue(1), number, .. } => {
                    assert_eq!(number, pushed);
                    pushed += 1;
                }
                Op::Pop { queue: 1, number } => {
                    assert_eq!(number, popped);
                    popped += 1;
                }
                other => panic!("{other:?}"),
            }
            assert!(pushed - popped <= 51);
        }
        assert!(popped > 400, "{popped}");
    }

    #[test]
    fn expiry_keeps_a_window() {
        let (mut newest, mut oldest) = (0, 0);
        for op in stream("expiry", 1, 0) {
            match op {
                Op::Put { number, .. } => newest = number,
                Op::DeleteEvents { from, to } => {
                    assert_eq!(from, oldest);
                    oldest = to;
                }
                other => panic!("{other:?}"),
            }
            assert!(newest - oldest <= 250 + 250 / 16 + 2, "{oldest}..{newest}");
        }
        assert!(oldest > 1500, "{oldest}");
    }
}
