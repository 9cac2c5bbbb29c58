//! Concurrent writers, readers and cursors, checked against an ordered map.
//!
//! Each writer inserts its messages in turns. The number of the writer and the number of the turn determine the
//! messages. So a reader can check that each message that it finds is complete, and that it finds all messages of
//! finished turns.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::*};

use super::*;

const WRITERS: u64 = 3;
const TURNS: u64 = if cfg!(miri) { 24 } else { 6_000 };

/// Computes a key from the numbers of a writer and a turn.
type Key = fn(u64, u64) -> Vec<u8>;

fn mix(number: u64) -> u64 {
    let mixed = (number ^ (number >> 31)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    mixed ^ (mixed >> 29)
}

fn seqno(writer: u64, turn: u64) -> u64 {
    turn * WRITERS + writer + 1
}

/// A short or long value that identifies its message by the seqno.
fn value(seqno: u64) -> Vec<u8> {
    let len = [3, 20, 100, 400][(mix(seqno) % 4) as usize];
    (0..len).map(|i| (mix(seqno) >> (i % 8 * 8)) as u8).collect()
}

/// All messages that will be inserted, and the writer and turn of each.
struct Plan {
    rows: BTreeMap<(Vec<u8>, Reverse<u64>), (u64, u64)>,
    /// The number of turns that each writer has finished.
    done: [AtomicU64; WRITERS as usize],
}

impl Plan {
    fn new(key: Key) -> Plan {
        let turns = (0..WRITERS).flat_map(|writer| (0..TURNS).map(move |turn| (writer, turn)));
        let row = |(writer, turn)| ((key(writer, turn), Reverse(seqno(writer, turn))), (writer, turn));
        Plan { rows: turns.map(row).collect(), done: Default::default() }
    }

    /// The number of turns that each writer has finished at the time of this call.
    fn progress(&self) -> Vec<u64> {
        self.done.iter().map(|done| done.load(Acquire)).collect()
    }

    /// Checks that every found message is planned, and that every message that had to be found was found.
    fn compare(&self, found: Vec<Row>, inside: impl Fn(&(Vec<u8>, Reverse<u64>)) -> bool, progress: &[u64]) {
        let mut found = found.into_iter().peekable();
        for (place, &(writer, turn)) in self.rows.iter().filter(|(place, _)| inside(place)) {
            match found.next_if(|row| (&row.0, row.1) == (&place.0, place.1.0)) {
                Some(row) => assert!(row.3 == value(row.1), "a torn value"),
                None => assert!(turn >= progress[writer as usize], "writer {writer}, turn {turn}: not found"),
            }
        }
        assert_eq!(found.next(), None, "a message that was never inserted, or out of order");
    }
}

/// Looks up keys and scans from both ends until all writers are done.
fn read(memtable: &Memtable, plan: &Plan, key: Key, seed: u64) {
    for round in 0.. {
        let progress = plan.progress();
        let dice = mix(seed << 32 | round);
        let (writer, turn) = (dice % WRITERS, mix(dice) % TURNS);
        let (wanted, at) = (key(writer, turn), mix(dice + 1) % (WRITERS * TURNS) + 1);
        let versions = visited(memtable, &wanted, at, usize::MAX);
        plan.compare(versions, |place| place.0 == wanted && place.1.0 <= at, &progress);
        // Scan a range of about one hundredth of the keys, or, in some rounds, all keys.
        let (from, to) = match round % 16 {
            0 => (vec![], vec![]),
            _ => (wanted, key(dice % WRITERS, (turn + TURNS / 100) % TURNS)),
        };
        let (range, reverse) = (KeyRange::new(from, to), round % 2 == 1);
        if !range.is_empty() {
            let mut found = scan(memtable, &range, reverse, 1 + dice as usize % 200, usize::MAX);
            if reverse {
                found.reverse();
            }
            plan.compare(found, |place| range.contains(&place.0), &progress);
        }
        if progress.iter().all(|&done| done == TURNS) {
            return;
        }
    }
}

fn run(key: Key) {
    let (memtable, plan) = (memtable(), Plan::new(key));
    std::thread::scope(|scope| {
        for writer in 0..WRITERS {
            let (memtable, plan) = (&memtable, &plan);
            scope.spawn(move || {
                for turn in 0..TURNS {
                    let seqno = seqno(writer, turn);
                    put(memtable, &key(writer, turn), seqno, &value(seqno));
                    plan.done[writer as usize].store(turn + 1, Release);
                }
            });
        }
        for seed in 0..2 {
            let (memtable, plan) = (&memtable, &plan);
            scope.spawn(move || read(memtable, plan, key, seed));
        }
    });
    memtable.tree().unwrap().check();
    assert_eq!(memtable.len(), plan.rows.len());
    assert_eq!(memtable.seqno_range(), Some((Seqno(1), Seqno(WRITERS * TURNS))));
    let sizes = plan.rows.keys().map(|place| place.0.len() + value(place.1.0).len());
    assert_eq!(memtable.logical_bytes(), sizes.sum::<usize>() as u64);
    assert!(memtable.bytes() as u64 > memtable.logical_bytes());
    plan.compare(scan(&memtable, &KeyRange::all(), false, 1000, usize::MAX), |_| true, &[TURNS; WRITERS as usize]);
}

#[test]
fn writers_of_random_keys() {
    run(|writer, turn| mix(seqno(writer, turn)).to_be_bytes().to_vec());
}

/// All writers append, so they split the same leaves and the same inner nodes.
#[test]
fn writers_of_neighbouring_ascending_keys() {
    run(|writer, turn| [b"table/", &seqno(writer, turn).to_be_bytes()[..]].concat());
}

/// One writer appends, one prepends, and one does both. So prefixes at the edges become shorter while readers use them.
#[test]
fn writers_at_both_edges() {
    run(|writer, turn| {
        let side = if writer == 2 { turn % 2 } else { writer };
        let number = if side == 0 { 1 << 40 | seqno(writer, turn) } else { !(1 << 41 | seqno(writer, turn)) };
        [b"log/", &number.to_be_bytes()[..]].concat()
    });
}

/// There are few keys, so leaves are full of equal heads, and lookups continue from leaf to leaf.
#[test]
fn writers_of_many_versions_of_few_keys() {
    run(|writer, turn| vec![b'k'; 1 + (mix(seqno(writer, turn)) % 5) as usize]);
}

/// Range tombstones are inserted concurrently with messages.
#[test]
fn range_tombstones_concurrent_with_messages() {
    const COUNT: u64 = if cfg!(miri) { 40 } else { 4_000 };
    let (memtable, stop) = (memtable(), AtomicBool::new(false));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for i in 1..=COUNT {
                let range = KeyRange::new(i.to_be_bytes(), (i + 2).to_be_bytes());
                memtable.insert_range(&RangeTombstone { range, seqno: Seqno(2 * i) });
                assert_eq!(memtable.covering(&(i + 1).to_be_bytes(), Seqno::MAX), Seqno(2 * i));
            }
            stop.store(true, Release);
        });
        scope.spawn(|| {
            for i in 1..=COUNT {
                put(&memtable, &i.to_be_bytes(), 2 * i + 1, &value(i));
                assert_eq!(visited(&memtable, &i.to_be_bytes(), u64::MAX, 9).len(), 1);
            }
        });
        let mut seen = 0;
        while !stop.load(Acquire) {
            let fragments = memtable.fragments().len();
            assert!(fragments >= seen);
            seen = fragments;
        }
    });
    assert_eq!((memtable.len() as u64, memtable.fragments().is_empty()), (COUNT, false));
    assert_eq!(memtable.seqno_range(), Some((Seqno(2), Seqno(2 * COUNT + 1))));
}

/// `visit` may use the memtable and even insert into it.
#[test]
fn a_visit_may_insert() {
    let memtable = memtable();
    (1..=200).for_each(|seqno| put(&memtable, b"key", 2 * seqno, b""));
    let mut seen = 0;
    memtable.get(b"key", Seqno::MAX, &mut |entry| {
        put(&memtable, b"key", entry.seqno.0 + 1, b"");
        seen += 1;
        true
    });
    assert!((200..=400).contains(&seen) && memtable.len() == 200 + seen);
    memtable.tree().unwrap().check();
}
