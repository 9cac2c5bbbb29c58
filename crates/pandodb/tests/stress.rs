//! Two writers and a scanner, with workers compacting under them and a thread that asks for checkpoints and whole
//! compactions, on a real directory; once with one worker, once with four.
//!
//! The writers move amounts between counters in atomic batches of blind merges, so the sum over all counters is the
//! same at every moment: at every snapshot it must be what it was at first, and a scan forward must see what a scan
//! backward sees. A merge that is applied twice, lost, or visible without its other half changes the sum.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use pandodb::{AddI64, Durability, Keyspace, KeyspaceOptions, MergeOperator, Store};

const COUNTERS: u64 = 500;
const START: i64 = 1_000;
const TIME: Duration = Duration::from_secs(3);

fn key(i: u64) -> Vec<u8> {
    format!("account/{:05}", i * 7919 % COUNTERS).into_bytes()
}

fn next(state: &mut u64) -> u64 {
    *state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
    *state >> 33
}

/// Moves amounts until `stop`; returns how often.
fn write(store: &Store, counters: &Keyspace, log: &Keyspace, seed: u64, stop: &AtomicBool) -> u64 {
    let (mut state, mut moves) = (seed, 0);
    while !stop.load(Relaxed) {
        let (from, to, amount) = (next(&mut state) % COUNTERS, next(&mut state) % COUNTERS, next(&mut state) as i64);
        let mut batch = store.batch();
        batch.merge(counters, key(from), (-amount).to_le_bytes());
        batch.put(log, format!("{seed}/{moves:08}"), [b'x'; 100]);
        batch.merge(counters, key(to), amount.to_le_bytes());
        batch.commit(Durability::Buffered).expect("a commit");
        moves += 1;
        if moves % 512 == 0 {
            log.delete_range(format!("{seed}/{:08}", moves - 512)..format!("{seed}/{:08}", moves - 256))
                .expect("a delete");
        }
    }
    moves
}

/// The sum at one snapshot, from both ends.
fn sum(store: &Store, counters: &Keyspace) -> i64 {
    let snapshot = store.snapshot();
    let at = counters.at(&snapshot);
    let forward: Vec<(Vec<u8>, Vec<u8>)> =
        at.iter().map(|entry| entry.map(|(k, v)| (k.to_vec(), v.to_vec())).expect("a scan")).collect();
    let mut backward: Vec<(Vec<u8>, Vec<u8>)> =
        at.iter().rev().map(|entry| entry.map(|(k, v)| (k.to_vec(), v.to_vec())).expect("a scan")).collect();
    backward.reverse();
    assert_eq!(forward.len() as u64, COUNTERS, "at {}", snapshot.seqno());
    assert!(forward == backward, "the two directions differ at {}", snapshot.seqno());
    let number = |value: &[u8]| i64::from_le_bytes(value.try_into().expect("eight bytes"));
    forward.iter().map(|(_, value)| number(value)).fold(0, i64::wrapping_add)
}

#[test]
fn scans_see_whole_batches_while_writers_and_compactions_run() {
    run(1, AddI64);
}

#[test]
fn so_they_do_with_four_workers() {
    run(4, AddI64);
}

/// Asks for checkpoints and compactions until `stop`.
fn compact(store: &Store, counters: &Keyspace, stop: &AtomicBool) {
    while !stop.load(Relaxed) {
        store.checkpoint().expect("a checkpoint");
        std::thread::sleep(Duration::from_millis(100));
        counters.compact::<&[u8]>(..).expect("a compaction");
    }
}

/// Adds one too many whenever it folds: what a merge that is applied twice looks like.
struct OneTooMany;

impl MergeOperator for OneTooMany {
    fn name(&self) -> &str {
        "one_too_many"
    }

    fn validate(&self, operand: &[u8]) -> Result<(), String> {
        AddI64.validate(operand)
    }

    fn full_merge(&self, key: &[u8], base: Option<&[u8]>, operands: &[&[u8]]) -> Option<Vec<u8>> {
        let sum = AddI64.full_merge(key, base, operands)?;
        Some((i64::from_le_bytes(sum.try_into().ok()?).wrapping_add(1)).to_le_bytes().to_vec())
    }
}

/// The canary: a store that folds wrongly must not pass.
#[test]
fn an_operator_that_counts_too_much_is_noticed() {
    assert!(std::panic::catch_unwind(|| run(1, OneTooMany)).is_err(), "a wrong sum was not noticed");
}

fn run(workers: usize, operator: impl MergeOperator) {
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("s");
    let builder = || Store::builder(&path).memory_budget(4 << 20).memtable_bytes(64 << 10).fanout(3);
    let open = || builder().background_threads(workers).open().expect("a store");
    let store = open();
    let counters = store.keyspace_with("counters", KeyspaceOptions::new().merge(operator)).expect("a keyspace");
    let log = store.keyspace("log").expect("a keyspace");
    let mut batch = store.batch();
    (0..COUNTERS).for_each(|i| batch.put(&counters, key(i), START.to_le_bytes()));
    batch.commit(Durability::Buffered).expect("a commit");
    let total = COUNTERS as i64 * START;
    let stop = AtomicBool::new(false);
    let (moves, scans) = (AtomicU64::new(0), AtomicU64::new(0));
    std::thread::scope(|scope| {
        for seed in [1, 2] {
            let (store, counters, log, stop, moves) = (&store, &counters, &log, &stop, &moves);
            scope.spawn(move || moves.fetch_add(write(store, counters, log, seed, stop), Relaxed));
        }
        scope.spawn(|| compact(&store, &counters, &stop));
        let scanner = scope.spawn(|| {
            let started = Instant::now();
            while started.elapsed() < TIME {
                assert_eq!(sum(&store, &counters), total, "after {} scans", scans.load(Relaxed));
                scans.fetch_add(1, Relaxed);
            }
        });
        let outcome = scanner.join();
        stop.store(true, Relaxed);
        outcome.unwrap_or_else(|panic| std::panic::resume_unwind(panic));
    });
    store.settle().expect("settled");
    assert_eq!(sum(&store, &counters), total);
    let compactions: u64 = store.stats().expect("figures").keyspaces.iter().map(|k| k.index.compactions).sum();
    println!("{moves:?} moves, {scans:?} scans, {compactions} compactions");
    assert!(moves.load(Relaxed) > 500 && scans.load(Relaxed) > 10 && compactions > 0, "too little happened");
    drop((counters, log));
    store.close().expect("closed");
    let store = open();
    let counters = store.open_keyspace("counters").expect("open").expect("there");
    assert_eq!(sum(&store, &counters), total);
    assert!(store.verify().expect("verified").is_clean());
}
