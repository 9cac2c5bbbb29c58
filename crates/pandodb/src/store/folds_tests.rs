//! Tests of [`super::folds`] through the public interface: how many operands the operator gets, and that every read
//! point sees the value that it should.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::{Durability, Keyspace, KeyspaceOptions, Snapshot, Store};
use crate::base::random::Rng;
use crate::base::sync::{AtomicUsize, Ordering::Relaxed};
use crate::device::MemDevice;
use crate::resolve::{AddI64, Append, MergeOperator};

/// An operator that counts the operands that it folds into values.
#[derive(Clone)]
struct Counted<O>(O, Arc<AtomicUsize>);

impl<O: MergeOperator> MergeOperator for Counted<O> {
    fn name(&self) -> &str {
        "counted"
    }
    fn validate(&self, operand: &[u8]) -> Result<(), String> {
        self.0.validate(operand)
    }
    fn full_merge(&self, key: &[u8], base: Option<&[u8]>, operands: &[&[u8]]) -> Option<Vec<u8>> {
        self.1.fetch_add(operands.len(), Relaxed);
        self.0.full_merge(key, base, operands)
    }
    fn partial_merge(&self, key: &[u8], older: &[u8], newer: &[u8]) -> Option<Vec<u8>> {
        self.0.partial_merge(key, older, newer)
    }
}

/// A store, a keyspace with the operator, and the number of operands that were folded since the last call of
/// `take_count`.
struct Bench {
    store: Store,
    keyspace: Keyspace,
    folded: Arc<AtomicUsize>,
}

impl Bench {
    fn new(operator: impl MergeOperator + Clone, memtable_bytes: usize) -> Bench {
        let builder = Store::builder("folds").device(MemDevice::new()).background_threads(0);
        let store = builder.memory_budget(64 << 20).memtable_bytes(memtable_bytes).open().expect("opens");
        let folded = Arc::new(AtomicUsize::new(0));
        let options = KeyspaceOptions::new().merge(Counted(operator, folded.clone()));
        let keyspace = store.keyspace_with("k", options).expect("created");
        Bench { store, keyspace, folded }
    }

    fn add(&self, key: &str, n: i64) {
        self.keyspace.merge_with(key, n.to_le_bytes(), Durability::None).expect("merged");
    }

    fn get(&self, key: &str) -> Option<i64> {
        self.keyspace.get(key).expect("read").map(|value| number(&value))
    }

    fn take_count(&self) -> usize {
        self.folded.swap(0, Relaxed)
    }
}

fn number(value: &[u8]) -> i64 {
    i64::from_le_bytes(value.try_into().expect("8 bytes"))
}

/// Also counters between other keys, and several of them in turn.
#[test]
fn commits_fold_long_chains_so_that_the_first_read_is_fast() {
    for (counters, others) in [(1, 0), (1, 3), (20, 0), (20, 1)] {
        let bench = Bench::new(AddI64, 16 << 20);
        let keys: Vec<String> = (0..counters).map(|i| format!("counter {i}")).collect();
        let each = 20_000 / counters;
        for i in 0..each {
            for key in &keys {
                bench.add(key, 1);
            }
            for other in 0..others {
                bench.add(&format!("counter 0 beside {i} {other}"), 1);
            }
        }
        let merges = each * counters;
        let ahead = bench.take_count();
        assert!(ahead <= 4 * merges, "commits folded {ahead} operands for {merges} merges");
        for key in &keys {
            assert_eq!(bench.get(key), Some(each as i64));
            let read = bench.take_count();
            assert!(read <= 800, "{read} operands of {each} for the first read of {key} with {others} others");
            assert_eq!(bench.keyspace.multi_get(&[key]).expect("read")[0].as_deref().map(number), Some(each as i64));
            assert!(bench.keyspace.contains(key).expect("read"));
            let again = bench.take_count();
            assert_eq!(again, 0, "operands for two more reads");
        }
    }
}

#[test]
fn pairs_of_a_merge_and_a_read_fold_few_operands() {
    let bench = Bench::new(AddI64, 16 << 20);
    (0..5000).for_each(|_| bench.add("k", 1));
    bench.take_count();
    for i in 0..2000 {
        bench.add("k", 1);
        assert_eq!(bench.get("k"), Some(5001 + i));
    }
    let folded = bench.take_count();
    assert!(folded <= 2000 + 800, "{folded} operands for 2000 pairs");
}

/// A batch may hold more operands of a key than a small commit may visit.
#[test]
fn a_large_batch_of_operands_of_one_key_is_folded_too() {
    let bench = Bench::new(AddI64, 16 << 20);
    let mut batch = bench.store.batch();
    (0..5000_i64).for_each(|i| batch.merge(&bench.keyspace, "k", i.to_le_bytes()));
    batch.commit(Durability::Buffered).expect("committed");
    assert!((4900..=10_100).contains(&bench.take_count()), "folded once or twice");
    assert_eq!(bench.get("k"), Some(4999 * 2500));
    assert!(bench.take_count() <= 800);
}

/// Lists grow without bound. If each commit that notices a long chain folded it, appending would be quadratic.
#[test]
fn long_lists_are_left_alone() {
    let bench = Bench::new(Append, 16 << 20);
    for _ in 0..20_000 {
        bench.keyspace.merge_with("list", "item,", Durability::None).expect("appended");
    }
    let folded = bench.take_count();
    assert!(folded < 2000, "commits folded {folded} operands");
    assert_eq!(bench.keyspace.get("list").expect("read").map(|list| list.len()), Some(100_000));
}

#[test]
fn a_deleted_counter_starts_again() {
    let bench = Bench::new(AddI64, 16 << 20);
    let many = |n: i64| (0..500).for_each(|_| bench.add("k", n));
    many(1);
    assert_eq!(bench.get("k"), Some(500));
    bench.keyspace.delete_range("a".."z").expect("deleted");
    assert_eq!(bench.get("k"), None, "the tombstone is newer than the fold");
    bench.add("k", 7);
    assert_eq!(bench.get("k"), Some(7), "the operand is above the tombstone, the fold below it");
    many(1);
    assert_eq!(bench.get("k"), Some(507));
    bench.keyspace.delete("k").expect("deleted");
    many(2);
    bench.keyspace.put("k", 9_i64.to_le_bytes()).expect("put");
    bench.add("k", 1);
    assert_eq!(bench.get("k"), Some(10));
    bench.keyspace.compact(..).expect("packed");
    bench.add("k", 1);
    assert_eq!(bench.get("k"), Some(11), "the view is newer than every fold");
}

/// Histories of two counters with snapshots and packs, compared with a map after every step.
#[test]
fn every_read_point_sees_its_own_value() {
    let mut used = 0;
    for seed in 0..20 {
        let bench = Bench::new(AddI64, if seed % 2 == 0 { 16 << 20 } else { 32 << 10 });
        let mut rng = Rng(seed + 1);
        let mut now: BTreeMap<&str, i64> = BTreeMap::new();
        let mut held: Vec<(Snapshot, BTreeMap<&str, i64>)> = Vec::new();
        let mut merges = 0;
        for _ in 0..300 {
            let key = ["a", "b"][rng.below(2) as usize];
            match rng.below(20) {
                0..9 => (0..rng.below(100)).for_each(|_| {
                    let n = rng.below(1000) as i64;
                    *now.entry(key).or_default() += n;
                    bench.add(key, n);
                    merges += 1;
                }),
                9 => {
                    bench.keyspace.put(key, 5_i64.to_le_bytes()).expect("put");
                    now.insert(key, 5);
                }
                10 => {
                    bench.keyspace.delete(key).expect("deleted");
                    now.remove(key);
                }
                11 => {
                    bench.keyspace.delete_range("a"..).expect("deleted");
                    now.clear();
                }
                12 => bench.keyspace.compact(..).expect("packed"),
                13..16 => held.push((bench.store.snapshot(), now.clone())),
                16 => held.truncate(held.len() / 2),
                _ => {}
            }
            held.drain(..held.len().saturating_sub(5));
            for key in ["a", "b"] {
                assert_eq!(bench.get(key), now.get(key).copied(), "{key} of seed {seed}");
                for (snapshot, then) in &held {
                    let got = bench.keyspace.at(snapshot).get(key).expect("read").map(|value| number(&value));
                    assert_eq!(got, then.get(key).copied(), "{key} at {} of seed {seed}", snapshot.seqno());
                }
            }
        }
        used += merges;
    }
    assert!(used > 100_000, "{used} merges make long chains");
}
