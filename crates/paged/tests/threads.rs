//! Several threads write and read at the same time; then the structure is verified and compared with a model.
#![cfg(not(feature = "explore"))]

mod common;

use common::{Model, Random, TREES, apply, compare, operation, tree, value};
use pandodb_paged::{BufferKind, Op, Tree};

const THREADS: u64 = 4;
const KEYS: u64 = 4_000;

/// The work of one thread. Returns what its keys must contain.
fn work(tree: &dyn Tree, seed: u64, thread: u64, operations: u64, counters: &[u64]) -> Model {
    let (mut random, mut model, mut out) = (Random(seed), Model::new(), Vec::new());
    for i in 0..operations {
        let key = random.below(KEYS / THREADS) * THREADS + thread;
        if !key.is_multiple_of(8) {
            let (op, value) = operation(&mut random);
            tree.upsert(key, op, &value).unwrap();
            apply(&mut model, key, op, &value);
        }
        if i % 4 == 0 {
            let key = counters[(random.below(counters.len() as u64)) as usize];
            tree.upsert(key, Op::Update, &value(1, 0)).unwrap();
        }
        let own = random.below(KEYS / THREADS) * THREADS + thread;
        let found = tree.get(own, &mut out).unwrap();
        assert!(own.is_multiple_of(8) || found.then_some(&out) == model.get(&own), "a thread misses its own write");
        if i % 64 == 0 {
            let mut last = None;
            tree.range(random.below(KEYS), 50, &mut |key, _| {
                assert!(last.is_none_or(|last| last < key), "keys ascend");
                last = Some(key);
            })
            .unwrap();
        }
    }
    model
}

/// Each thread writes its own keys, so the final content is known, and reads keys of all threads. One key in eight is a
/// counter that all threads increment.
fn stress(tree: &dyn Tree, seed: u64, operations: u64) -> (Model, u64) {
    let counters: Vec<u64> = (0..KEYS).step_by(8).collect();
    counters.iter().for_each(|&key| tree.upsert(key, Op::Insert, &value(0, 0)).unwrap());
    let models = std::thread::scope(|scope| {
        let counters = &counters;
        let start = |thread| scope.spawn(move || work(tree, seed * 100 + thread, thread, operations, counters));
        let threads: Vec<_> = (0..THREADS).map(start).collect();
        threads.into_iter().map(|thread| thread.join().expect("a thread")).collect::<Vec<_>>()
    });
    let mut all: Model = models.into_iter().flatten().collect();
    let mut increments = 0;
    for key in counters {
        let mut out = Vec::new();
        assert!(tree.get(key, &mut out).unwrap(), "counters are never deleted");
        increments += u64::from_le_bytes(out[..8].try_into().unwrap());
        all.insert(key, out);
    }
    (all, increments)
}

#[test]
fn no_write_is_lost_under_concurrency() {
    const OPERATIONS: u64 = 3_000;
    for kind in TREES {
        for (buffer, epsilon) in BufferKind::ALL.into_iter().zip([0.3, 0.5, 0.7, 0.8, 0.9]) {
            let fixture = tree(kind, 256, epsilon, buffer, 40);
            let (model, increments) = stress(&*fixture.tree, 5, OPERATIONS);
            let context = format!("{kind:?} {buffer:?}");
            assert_eq!(increments, THREADS * OPERATIONS.div_ceil(4), "{context}: increments");
            compare(&*fixture.tree, &model, KEYS, &context);
        }
    }
}

#[test]
fn a_counter_never_decreases_for_a_reader() {
    for kind in TREES {
        let fixture = tree(kind, 256, 0.5, BufferKind::TwoQueueSharded, 30);
        let tree = &*fixture.tree;
        (0..2_000).for_each(|key| tree.upsert(key, Op::Insert, &value(0, 0)).unwrap());
        std::thread::scope(|scope| {
            let writer = scope.spawn(|| {
                let mut random = Random(3);
                for _ in 0..6_000 {
                    // Skewed, so that the same keys are flushed again and again.
                    let key = random.below(40) * random.below(50);
                    tree.upsert(key, Op::Update, &value(1, 0)).unwrap();
                }
            });
            let (mut seen, mut random, mut out) = (vec![0; 2_000], Random(4), Vec::new());
            while !writer.is_finished() {
                let key = random.below(40) * random.below(50);
                assert!(tree.get(key, &mut out).unwrap(), "{kind:?}: key {key} is missing");
                let count = u64::from_le_bytes(out[..8].try_into().unwrap());
                assert!(count >= seen[key as usize], "{kind:?}: key {key} went from {} to {count}", seen[key as usize]);
                seen[key as usize] = count;
            }
            writer.join().expect("the writer");
        });
        tree.verify().unwrap();
    }
}
