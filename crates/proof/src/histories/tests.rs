//! Tests the checker with hand-made histories of one anomaly each. The checker must classify each anomaly correctly.

use super::check::{Anomaly, Checker, Rules};
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
        let write = |(op, (space, action, key)): (usize, &(Space, Action, u32))| Write {
            space: *space,
            action: *action,
            key: *key,
            version: of(thread, op),
        };
        self.log.writes.extend(writes.iter().enumerate().map(write));
        self.log.commit(txn(thread, 1), floor, begin, outcome, from);
        self
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

    fn found(&self, rules: Rules) -> Vec<Anomaly> {
        let mut checker = Checker::new(16, rules, 0);
        checker.window(std::slice::from_ref(&self.log));
        checker.findings.iter().map(|finding| finding.anomaly).collect()
    }

    #[track_caller]
    fn is(&self, anomaly: Anomaly) {
        assert_eq!(self.found(Rules::default()), [anomaly]);
    }

    #[track_caller]
    fn is_clean(&self) {
        assert_eq!(self.found(Rules::default()), []);
    }
}

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
    let list = |seen: &[u64]| three_merges().get(6, &[(LISTS, 1, Some(seen))]).found(Rules::default());
    assert_eq!(list(&[a, b, c]), []);
    assert_eq!(list(&[a, c]), [Anomaly::LostMerge]);
    assert_eq!(list(&[a, b, b, c]), [Anomaly::DoubledMerge]);
    assert_eq!(list(&[a, c, b]), [Anomaly::MixedMerges]);
    assert_eq!(list(&[a, b]), [Anomaly::StaleRead]);
    let sum = |of_threads: &[u64]| {
        let sum = of_threads.iter().map(|thread| mix(of(*thread, 1))).fold(0, u64::wrapping_add);
        three_merges().get(4, &[(SUMS, 1, Some(&[sum]))]).found(Rules::default())
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
        story.commit(3, &[(ROWS, PUT, 7)]).commit(4, &[(ROWS, DELETE, 1)]).scan(4, seen).found(Rules::default())
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
fn concurrent_writers_of_a_key_are_an_anomaly_only_if_the_first_committer_wins() {
    let overlapping = |begin: u64| {
        let mut story = two_puts();
        story.place(3, &[(ROWS, PUT, 1)], 2, begin, Outcome::At(3));
        (story.found(Rules::default()), story.found(Rules { first_committer_wins: true }))
    };
    assert_eq!(overlapping(1).0, []);
    // The transactions of threads 1 and 2 both began at seqno 0, so they are concurrent too.
    assert_eq!(overlapping(1).1, [Anomaly::LostUpdate; 2]);
    assert_eq!(overlapping(2).1, [Anomaly::LostUpdate]);
}

#[test]
fn a_finding_lists_the_transactions_around_it() {
    let mut checker = Checker::new(16, Rules::default(), 0);
    checker.window(std::slice::from_ref(&two_puts().get(2, &[(ROWS, 1, Some(&[of(1, 0)]))]).log));
    let [finding] = &checker.findings[..] else { panic!("one finding") };
    assert!(finding.what.contains("rows/1"), "{finding}");
    assert!(finding.history.iter().any(|line| line.contains(&name_txn(txn(1, 1)))), "{:?}", finding.history);
    assert!(finding.history.iter().any(|line| line.contains(&name_txn(txn(2, 1)))), "{:?}", finding.history);
}

#[test]
fn a_window_continues_with_the_state_of_the_previous_one() {
    let mut checker = Checker::new(16, Rules::default(), 0);
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
        story.found(Rules::default())
    };
    assert_eq!(story(&[(1, 2)]), []);
    assert_eq!(story(&[(0, 9)]), []);
    assert_eq!(story(&[]), [Anomaly::LostSeqno]);
    assert_eq!(story(&[(2, 3)]), [Anomaly::LostSeqno, Anomaly::SharedSeqno], "the creation was later");
    assert_eq!(story(&[(1, 3), (1, 3)]), [Anomaly::SharedSeqno], "two creations cannot share a seqno");
}
