//! Tests the checker with hand-made histories of one anomaly each. The checker must classify each anomaly correctly.

use pandodb::Isolation;

use super::check::{Anomaly, Checker};
use super::log::{
    Action, BROKEN, Creation, Domain, LISTS, Log, Outcome, ROWS, STRANGER, SUMS, Space, Write, mix, name_txn, txn,
    version,
};

/// A builder of a history. Every transaction has a thread of its own.
#[derive(Default)]
struct Story {
    log: Log,
    last: u64,
}

fn of(thread: u64, op: usize) -> u64 {
    version(txn(thread, 1), op)
}

impl Story {
    /// Commits writes, given as keyspace, action, key. The version of a write is computed by [`of`] from the thread and
    /// the position of the write.
    fn commit(&mut self, thread: u64, writes: &[(Space, Action, u32)]) -> &mut Story {
        self.last += writes.len() as u64;
        self.place(thread, writes, 0, 0, Outcome::At(self.last))
    }

    /// A transaction that reads at `begin`, writes, and ends with `outcome`. Each read is a keyspace, a key, the items
    /// that were seen, and the number of writes that precede the read.
    fn transact(
        &mut self,
        thread: u64,
        (begin, isolation): (u64, Isolation),
        reads: &[(Space, u32, Option<&[u64]>, u32)],
        writes: &[(Space, Action, u32)],
        outcome: Outcome,
    ) -> &mut Story {
        let from = (self.log.reads.len(), self.log.writes.len());
        for (space, key, items, own) in reads {
            self.log.own = *own;
            self.log.get(*space, *key, *items);
        }
        self.write(thread, writes);
        self.log.transaction(txn(thread, 1), (0, 0), (begin, isolation), outcome, from);
        self
    }

    /// A transaction that scans rows 0 to 9 and sees nothing, writes row 12, and is committed.
    fn scan_and_commit(&mut self, begin: u64) -> &mut Story {
        let from = (self.log.reads.len(), self.log.writes.len());
        self.log.read(ROWS, Domain::Span(0, 10), []);
        self.write(50, &[(ROWS, PUT, 12)]);
        self.last += 1;
        let outcome = Outcome::At(self.last);
        self.log.transaction(txn(50, 1), (0, 0), (begin, SERIAL), outcome, from);
        self
    }

    fn refuse(&mut self, thread: u64, writes: &[(Space, Action, u32)]) -> &mut Story {
        self.place(thread, writes, 0, 0, Outcome::Refused)
    }

    fn place(
        &mut self,
        thread: u64,
        writes: &[(Space, Action, u32)],
        floor: u64,
        begin: u64,
        outcome: Outcome,
    ) -> &mut Story {
        let from = self.log.writes.len();
        self.write(thread, writes);
        self.log.commit(txn(thread, 1), floor, begin, outcome, from);
        self
    }

    fn write(&mut self, thread: u64, writes: &[(Space, Action, u32)]) {
        let write = |(op, (space, action, key)): (usize, &(Space, Action, u32))| Write {
            space: *space,
            action: *action,
            key: *key,
            version: of(thread, op),
        };
        self.log.writes.extend(writes.iter().enumerate().map(write));
    }

    /// Reads some keys at a seqno.
    fn get(&mut self, at: u64, seen: &[(Space, u32, Option<&[u64]>)]) -> &mut Story {
        self.get_within(0, (at, at), seen)
    }

    fn get_within(&mut self, floor: u64, at: (u64, u64), seen: &[(Space, u32, Option<&[u64]>)]) -> &mut Story {
        let from = self.log.reads.len();
        seen.iter().for_each(|(space, key, items)| self.log.get(*space, *key, *items));
        self.log.look(txn(99, 1), floor, at, from);
        self
    }

    /// Scans rows 0 to 9 at a seqno.
    fn scan(&mut self, at: u64, seen: &[(u32, &[u64])]) -> &mut Story {
        let from = self.log.reads.len();
        self.log.read(ROWS, Domain::Span(0, 10), seen.iter().copied());
        self.log.look(txn(99, 1), 0, (at, at), from);
        self
    }

    fn found(&self) -> Vec<Anomaly> {
        let mut checker = Checker::new(16, 0);
        checker.window(std::slice::from_ref(&self.log));
        checker.findings.iter().map(|finding| finding.anomaly).collect()
    }

    #[track_caller]
    fn is(&self, anomaly: Anomaly) {
        assert_eq!(self.found(), [anomaly]);
    }

    #[track_caller]
    fn is_clean(&self) {
        assert_eq!(self.found(), []);
    }
}

const SERIAL: Isolation = Isolation::Serializable;
const SNAPSHOT: Isolation = Isolation::Snapshot;
const PUT: Action = Action::Put;
const MERGE: Action = Action::Merge;
const DELETE: Action = Action::Delete;

/// Two puts to row 1, by threads 1 and 2, at seqnos 1 and 2.
fn two_puts() -> Story {
    let mut story = Story::default();
    story.commit(1, &[(ROWS, PUT, 1)]).commit(2, &[(ROWS, PUT, 1)]);
    story
}

/// Three operands of list 1 and of sum 1, by threads 1 to 3, at seqnos 2, 4 and 6.
fn three_merges() -> Story {
    let mut story = Story::default();
    (1..=3).for_each(|thread| {
        story.commit(thread, &[(LISTS, MERGE, 1), (SUMS, MERGE, 1)]);
    });
    story
}

#[test]
fn a_correct_history_passes() {
    let (one, two) = ([of(1, 0)], [of(2, 0)]);
    let mut story = two_puts();
    story.get(0, &[(ROWS, 1, None)]).get(1, &[(ROWS, 1, Some(&one))]).get(2, &[(ROWS, 1, Some(&two)), (ROWS, 2, None)]);
    story.scan(0, &[]).scan(1, &[(1, &one)]).scan(2, &[(1, &two)]);
    story.commit(3, &[(ROWS, Action::DeleteRange(9), 0), (ROWS, PUT, 4), (ROWS, DELETE, 4), (ROWS, PUT, 5)]);
    story.scan(6, &[(5, &[of(3, 3)])]).get(6, &[(ROWS, 1, None), (ROWS, 4, None)]);
    story.is_clean();
    let mut story = three_merges();
    let sum = mix(of(1, 1)).wrapping_add(mix(of(2, 1)));
    story.get(4, &[(LISTS, 1, Some(&[of(1, 0), of(2, 0)])), (SUMS, 1, Some(&[sum]))]);
    story.commit(4, &[(LISTS, PUT, 1)]).commit(5, &[(LISTS, MERGE, 1), (SUMS, DELETE, 1)]);
    story.get(9, &[(LISTS, 1, Some(&[of(4, 0), of(5, 0)])), (SUMS, 1, None)]);
    story.is_clean();
}

#[test]
fn stale_future_aborted_and_strange_reads_are_classified() {
    two_puts().get(2, &[(ROWS, 1, Some(&[of(1, 0)]))]).is(Anomaly::StaleRead);
    two_puts().get(2, &[(ROWS, 1, None)]).is(Anomaly::StaleRead);
    two_puts().get(1, &[(ROWS, 1, Some(&[of(2, 0)]))]).is(Anomaly::FutureRead);
    two_puts().get(0, &[(ROWS, 1, Some(&[of(1, 0)]))]).is(Anomaly::FutureRead);
    let aborted = [of(3, 0)];
    two_puts().refuse(3, &[(ROWS, PUT, 1)]).get(2, &[(ROWS, 1, Some(&aborted))]).is(Anomaly::AbortedRead);
    two_puts().get(2, &[(ROWS, 1, Some(&[BROKEN]))]).is(Anomaly::StrangeRead);
    two_puts().scan(2, &[(1, &[of(2, 0)]), (STRANGER, &[of(2, 0)])]).is(Anomaly::StrangeRead);
    // A deleted value reappears.
    two_puts().commit(3, &[(ROWS, DELETE, 1)]).get(3, &[(ROWS, 1, Some(&[of(2, 0)]))]).is(Anomaly::StaleRead);
}

#[test]
fn half_batches_are_classified() {
    let batch = [(ROWS, PUT, 1), (ROWS, PUT, 2), (ROWS, DELETE, 3)];
    let half = |seen: &[(Space, u32, Option<&[u64]>)]| {
        let mut story = Story::default();
        story.commit(1, &[(ROWS, PUT, 3)]).commit(2, &batch).get(4, seen);
        story.is(Anomaly::HalfBatch);
    };
    half(&[(ROWS, 1, Some(&[of(2, 0)])), (ROWS, 2, None)]);
    half(&[(ROWS, 1, None), (ROWS, 2, Some(&[of(2, 1)]))]);
    half(&[(ROWS, 3, Some(&[of(1, 0)])), (ROWS, 2, Some(&[of(2, 1)]))]);
    // A snapshot between the operations of a batch is wrong, regardless of what it sees.
    let mut story = Story::default();
    story.commit(1, &batch).get(2, &[(ROWS, 9, None)]).is(Anomaly::HalfBatch);
}

#[test]
fn lost_doubled_and_reordered_merges_are_classified() {
    let (a, b, c) = (of(1, 0), of(2, 0), of(3, 0));
    let list = |seen: &[u64]| three_merges().get(6, &[(LISTS, 1, Some(seen))]).found();
    assert_eq!(list(&[a, b, c]), []);
    assert_eq!(list(&[a, c]), [Anomaly::LostMerge]);
    assert_eq!(list(&[a, b, b, c]), [Anomaly::DoubledMerge]);
    assert_eq!(list(&[a, c, b]), [Anomaly::MixedMerges]);
    assert_eq!(list(&[a, b]), [Anomaly::StaleRead]);
    let sum = |of_threads: &[u64]| {
        let sum = of_threads.iter().map(|thread| mix(of(*thread, 1))).fold(0, u64::wrapping_add);
        three_merges().get(4, &[(SUMS, 1, Some(&[sum]))]).found()
    };
    assert_eq!(sum(&[1, 2]), []);
    assert_eq!(sum(&[1]), [Anomaly::LostMerge]);
    assert_eq!(sum(&[1, 2, 2]), [Anomaly::DoubledMerge]);
    assert_eq!(sum(&[1, 2, 3]), [Anomaly::FutureRead]);
}

#[test]
fn phantoms_are_classified() {
    let (one, two) = ([of(1, 0)], [of(2, 0)]);
    let mut story = two_puts();
    story.commit(3, &[(ROWS, DELETE, 1), (ROWS, PUT, 7)]);
    let scan = |seen: &[(u32, &[u64])]| {
        let mut story = two_puts();
        story.commit(3, &[(ROWS, PUT, 7)]).commit(4, &[(ROWS, DELETE, 1)]).scan(4, seen).found()
    };
    let three = [of(3, 0)];
    assert_eq!(scan(&[(7, &three)]), []);
    assert_eq!(scan(&[]), [Anomaly::Phantom], "a missing key");
    assert_eq!(scan(&[(1, &two), (7, &three)]), [Anomaly::Phantom], "an extra key");
    assert_eq!(scan(&[(7, &three), (7, &three)]), [Anomaly::Phantom], "a key twice");
    assert_eq!(scan(&[(7, &three), (1, &one)]), [Anomaly::Phantom], "out of order");
    assert_eq!(scan(&[(7, &two)]), [Anomaly::StaleRead], "another key's value");
}

#[test]
fn violations_of_real_time_order_are_classified() {
    let two = [of(2, 0)];
    // Before this snapshot was taken, seqno 2 had been seen by a thread or acknowledged to a thread.
    two_puts().get_within(2, (1, 1), &[(ROWS, 1, Some(&[of(1, 0)]))]).is(Anomaly::StaleSnapshot);
    two_puts().get_within(2, (2, 2), &[(ROWS, 1, Some(&two))]).is_clean();
    two_puts().get(3, &[(ROWS, 1, Some(&two))]).is(Anomaly::FutureSnapshot);
    two_puts().place(3, &[(ROWS, PUT, 2)], 3, 0, Outcome::At(3)).is(Anomaly::EarlyCommit);
    two_puts().place(3, &[(ROWS, PUT, 2)], 2, 0, Outcome::At(3)).is_clean();
    two_puts().place(3, &[(ROWS, PUT, 2)], 0, 0, Outcome::At(2)).is(Anomaly::SharedSeqno);
    two_puts().place(3, &[(ROWS, PUT, 2)], 0, 0, Outcome::At(4)).is(Anomaly::LostSeqno);
}

#[test]
fn a_look_without_a_snapshot_must_hold_at_one_point_of_its_interval() {
    let (one, two) = ([of(1, 0)], [of(2, 0)]);
    two_puts().get_within(0, (0, 2), &[(ROWS, 1, Some(&one))]).is_clean();
    two_puts().get_within(0, (0, 2), &[(ROWS, 1, Some(&two))]).is_clean();
    two_puts().get_within(0, (0, 1), &[(ROWS, 1, Some(&two))]).is(Anomaly::FutureRead);
    two_puts().get_within(0, (1, 2), &[(ROWS, 1, None)]).is(Anomaly::StaleRead);
    // Each of the two values was right at some point, but they were never right at the same point.
    let mut story = two_puts();
    story.commit(3, &[(ROWS, PUT, 2)]);
    story.get_within(0, (0, 3), &[(ROWS, 1, Some(&one)), (ROWS, 2, Some(&[of(3, 0)]))]).is(Anomaly::StaleRead);
}

#[test]
fn a_finding_lists_the_transactions_around_it() {
    let mut checker = Checker::new(16, 0);
    checker.window(std::slice::from_ref(&two_puts().get(2, &[(ROWS, 1, Some(&[of(1, 0)]))]).log));
    let [finding] = &checker.findings[..] else { panic!("one finding") };
    assert!(finding.what.contains("rows/1"), "{finding}");
    assert!(finding.history.iter().any(|line| line.contains(&name_txn(txn(1, 1)))), "{:?}", finding.history);
    assert!(finding.history.iter().any(|line| line.contains(&name_txn(txn(2, 1)))), "{:?}", finding.history);
}

#[test]
fn a_window_continues_with_the_state_of_the_previous_one() {
    let mut checker = Checker::new(16, 0);
    checker.window(std::slice::from_ref(&two_puts().log));
    let mut next = Story { last: 2, ..Story::default() };
    next.get(2, &[(ROWS, 1, Some(&[of(2, 0)]))]).commit(3, &[(ROWS, PUT, 1)]).get(3, &[(ROWS, 1, Some(&[of(2, 0)]))]);
    checker.window(&[next.log]);
    assert_eq!(checker.at(), 3);
    let found: Vec<Anomaly> = checker.findings.iter().map(|finding| finding.anomaly).collect();
    assert_eq!(found, [Anomaly::StaleRead]);
}

#[test]
fn a_creation_accounts_for_one_missing_seqno_of_its_interval() {
    let story = |creations: &[(u64, u64)]| {
        let mut story = Story::default();
        story.commit(1, &[(ROWS, PUT, 1)]).last = 2;
        story.commit(2, &[(ROWS, PUT, 2)]).get(3, &[(ROWS, 2, Some(&[of(2, 0)]))]);
        story.log.creations = creations.iter().map(|&(floor, shown)| Creation { floor, shown }).collect();
        story.found()
    };
    assert_eq!(story(&[(1, 2)]), []);
    assert_eq!(story(&[(0, 9)]), []);
    assert_eq!(story(&[]), [Anomaly::LostSeqno]);
    assert_eq!(story(&[(2, 3)]), [Anomaly::LostSeqno, Anomaly::SharedSeqno], "the creation was later");
    assert_eq!(story(&[(1, 3), (1, 3)]), [Anomaly::SharedSeqno], "two creations cannot share a seqno");
}

#[test]
fn a_transaction_reads_its_read_point_and_its_own_writes() {
    let (one, own) = ([of(1, 0)], [of(3, 0)]);
    let writes = [(ROWS, PUT, 1), (ROWS, DELETE, 1), (LISTS, MERGE, 1)];
    let reads = |late| -> [(Space, u32, Option<&[u64]>, u32); 3] {
        [(ROWS, 1, Some(&one), 0), (ROWS, 1, Some(&own), 1), (ROWS, 1, late, 2)]
    };
    let story = |begin, late| {
        let mut story = Story::default();
        story.commit(1, &[(ROWS, PUT, 1)]);
        story.transact(3, (begin, SERIAL), &reads(late), &writes, Outcome::Refused).found()
    };
    assert_eq!(story(1, None), []);
    assert_eq!(story(1, Some(&own[..])), [Anomaly::AbortedRead], "its own delete is invisible");
    assert_eq!(story(0, None), [Anomaly::FutureRead], "the rollback does not excuse a wrong read");
    let mut merged = three_merges();
    let seen = [of(1, 0), of(2, 0), of(3, 0), of(4, 0)];
    merged.transact(4, (6, SERIAL), &[(LISTS, 1, Some(&seen), 1)], &[(LISTS, MERGE, 1)], Outcome::At(7)).is_clean();
}

#[test]
fn a_serialisable_transaction_holds_at_its_commit() {
    // Two transactions that each read what the other one writes.
    let skew = |isolation| {
        let mut story = Story::default();
        story.transact(1, (0, isolation), &[(ROWS, 2, None, 0)], &[(ROWS, PUT, 1)], Outcome::At(1));
        story.transact(2, (0, isolation), &[(ROWS, 1, None, 0)], &[(ROWS, PUT, 2)], Outcome::At(2)).found()
    };
    assert_eq!(skew(SERIAL), [Anomaly::WriteSkew]);
    assert_eq!(skew(SNAPSHOT), []);
    // Two transactions that read a key and then write it.
    let update = |isolation| {
        let mut story = Story::default();
        story.transact(1, (0, isolation), &[(ROWS, 1, None, 0)], &[(ROWS, PUT, 1)], Outcome::At(1));
        story.transact(2, (0, isolation), &[(ROWS, 1, None, 0)], &[(ROWS, PUT, 1)], Outcome::At(2)).found()
    };
    assert_eq!(update(SERIAL), [Anomaly::LostUpdate]);
    assert_eq!(update(SNAPSHOT), [Anomaly::LostUpdate]);
    // Blind writes, and reads that the transaction's own writes determine.
    let own = [of(2, 0)];
    let mut blind = Story::default();
    blind.commit(1, &[(ROWS, PUT, 1)]);
    blind.transact(2, (0, SERIAL), &[(ROWS, 1, Some(&own), 1)], &[(ROWS, PUT, 1)], Outcome::At(2)).is_clean();
}

#[test]
fn a_serialisable_scan_holds_at_its_commit() {
    let mut phantom = Story::default();
    phantom.commit(1, &[(ROWS, PUT, 4)]).scan_and_commit(0).is(Anomaly::Phantom);
    let mut outside = Story::default();
    outside.commit(1, &[(ROWS, PUT, 11)]).scan_and_commit(0).is_clean();
    // A key that exists neither before nor after is no phantom.
    let mut absent = Story::default();
    absent.commit(1, &[(ROWS, PUT, 4), (ROWS, DELETE, 4)]).scan_and_commit(0).is_clean();
}

#[test]
fn a_range_delete_beside_a_read_is_an_anomaly() {
    let one = [of(1, 0)];
    let mut story = Story::default();
    story.commit(1, &[(ROWS, PUT, 3)]).commit(2, &[(ROWS, Action::DeleteRange(9), 0)]);
    story.transact(3, (1, SERIAL), &[(ROWS, 3, Some(&one), 0)], &[(ROWS, PUT, 12)], Outcome::At(3));
    story.is(Anomaly::WriteSkew);
}

#[test]
fn the_first_committer_wins_under_snapshot_isolation() {
    let beside = |theirs: Action, mine: Action, space: Space| {
        let mut story = Story::default();
        story.commit(1, &[(space, PUT, 1)]).commit(2, &[(space, theirs, 1)]);
        story.transact(3, (1, SNAPSHOT), &[], &[(space, mine, 1)], Outcome::At(3)).found()
    };
    assert_eq!(beside(MERGE, MERGE, SUMS), []);
    assert_eq!(beside(PUT, MERGE, SUMS), [Anomaly::LostUpdate]);
    assert_eq!(beside(MERGE, PUT, SUMS), [Anomaly::LostUpdate]);
    assert_eq!(beside(DELETE, PUT, ROWS), [Anomaly::LostUpdate]);
    assert_eq!(beside(PUT, Action::DeleteRange(5), ROWS), [Anomaly::LostUpdate]);
    assert_eq!(beside(Action::DeleteRange(5), PUT, ROWS), [Anomaly::LostUpdate]);
    assert_eq!(beside(Action::DeleteRange(1), PUT, ROWS), [], "an empty range");
    // The delete of a key that had no value may be overlooked.
    let mut silent = Story::default();
    silent.commit(1, &[(ROWS, DELETE, 1)]);
    silent.transact(2, (0, SNAPSHOT), &[], &[(ROWS, PUT, 1)], Outcome::At(2)).is_clean();
}

#[test]
fn a_conflict_needs_a_cause() {
    let seen = [of(1, 0)];
    let refused = |reads: &[(Space, u32, Option<&[u64]>, u32)], isolation, begin| {
        let mut story = two_puts();
        story.commit(3, &[(SUMS, MERGE, 1)]);
        let writes = [(ROWS, PUT, 1), (SUMS, MERGE, 1)];
        story.transact(4, (begin, isolation), reads, &writes, Outcome::Conflict(3)).found()
    };
    let own = [of(4, 0)];
    assert_eq!(refused(&[(ROWS, 1, Some(&seen), 0)], SERIAL, 1), []);
    assert_eq!(refused(&[(ROWS, 2, None, 0)], SERIAL, 1), [Anomaly::FalseConflict], "another key");
    assert_eq!(refused(&[(SUMS, 2, None, 0)], SERIAL, 1), [Anomaly::FalseConflict], "another keyspace");
    assert_eq!(refused(&[(ROWS, 1, Some(&own), 1)], SERIAL, 1), [Anomaly::FalseConflict], "its own write");
    assert_eq!(refused(&[(ROWS, 1, Some(&[of(2, 0)]), 0)], SERIAL, 2), [Anomaly::FalseConflict], "no later commit");
    assert_eq!(refused(&[], SNAPSHOT, 1), []);
    assert_eq!(refused(&[], SNAPSHOT, 2), [Anomaly::FalseConflict], "two merges");
    // The cause must have been submitted before the conflict was reported.
    let mut late = two_puts();
    late.place(3, &[(ROWS, PUT, 2)], 2, 0, Outcome::At(3));
    late.transact(4, (2, SERIAL), &[(ROWS, 2, None, 0)], &[(ROWS, PUT, 9)], Outcome::Conflict(1));
    late.is(Anomaly::FalseConflict);
}
