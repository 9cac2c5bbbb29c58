//! Conformance tests of keyspaces that are used as queues: rows are taken at their ends while others write and delete.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};

use pandodb::base::random::Rng;
use pandodb::{Error, Keyspace};

use crate::each;

fn key(number: u64) -> [u8; 8] {
    number.to_be_bytes()
}

/// The number of the popped key.
fn number(row: Option<(pandodb::Value, pandodb::Value)>) -> Option<u64> {
    row.map(|(key, _)| u64::from_be_bytes(key[..].try_into().expect("a key of eight bytes")))
}

#[test]
fn rows_are_taken_in_order_from_both_ends() {
    each(|case| {
        let (_place, store, keyspace) = case.fresh();
        for i in 0..1000 {
            keyspace.put(key(i), format!("job {i}")).unwrap();
        }
        store.pack().unwrap();
        for i in 0..400 {
            let (taken, job) = keyspace.pop_first().unwrap().unwrap();
            assert_eq!(*taken, key(i));
            assert_eq!(job, format!("job {i}").as_bytes());
            assert_eq!(number(keyspace.pop_last().unwrap()), Some(999 - i));
        }
        let rest: Vec<u64> = keyspace.iter().map(|row| number(row.ok()).unwrap()).collect();
        assert_eq!(rest, (400..600).collect::<Vec<_>>());
        for i in 400..600 {
            assert_eq!(number(keyspace.pop_first().unwrap()), Some(i));
        }
        assert!(keyspace.pop_first().unwrap().is_none() && keyspace.pop_last().unwrap().is_none());
        keyspace.put(key(7), []).unwrap();
        assert_eq!(number(keyspace.pop_last().unwrap()), Some(7));
        assert!(keyspace.first_key_value().unwrap().is_none());
    });
}

#[test]
fn pops_meet_what_others_wrote_and_deleted() {
    each(|case| {
        let (_place, store, keyspace) = case.fresh();
        let mut model = BTreeMap::new();
        let mut rng = Rng(11);
        let snapshot_every = 500;
        let mut snapshots = Vec::new();
        for step in 0..4000u64 {
            let at = rng.below(600);
            match rng.below(20) {
                0..7 => {
                    keyspace.put(key(at), key(step)).unwrap();
                    model.insert(at, step);
                }
                7 => {
                    keyspace.delete(key(at)).unwrap();
                    model.remove(&at);
                }
                8 if step % 16 == 0 => {
                    keyspace.delete_range(key(at)..key(at + 20)).unwrap();
                    model.retain(|key, _| !(at..at + 20).contains(key));
                }
                8 => {
                    let first = keyspace.first_key_value().unwrap();
                    assert_eq!(number(first), model.keys().next().copied());
                }
                9..17 => assert_eq!(number(keyspace.pop_first().unwrap()), model.pop_first().map(|row| row.0)),
                17 => {
                    keyspace.load_sorted([(key(at), key(step))]).unwrap();
                    model.insert(at, step);
                }
                _ => assert_eq!(number(keyspace.pop_last().unwrap()), model.pop_last().map(|row| row.0)),
            }
            if step % snapshot_every == 0 {
                snapshots.push((store.snapshot(), model.clone()));
            }
        }
        for (snapshot, model) in &snapshots {
            let at = keyspace.at(snapshot);
            let rows = at.iter().map(|row| row.unwrap()).map(|(key, value)| (key.to_vec(), value.to_vec()));
            assert!(rows.eq(model.iter().map(|(at, step)| (key(*at).to_vec(), key(*step).to_vec()))));
        }
    });
}

/// Pops rows until there is none, and marks each taken row.
fn consume(queue: &Keyspace, taken: &[AtomicU64], is_last: impl Fn() -> bool) {
    loop {
        let ends = is_last();
        match number(queue.pop_first().unwrap()) {
            Some(job) => assert_eq!(taken[job as usize].fetch_add(1, SeqCst), 0, "job {job} was taken twice"),
            None if ends => return,
            None => std::thread::yield_now(),
        }
    }
}

#[test]
fn every_row_is_taken_once() {
    each(|case| {
        let (_place, _store, keyspace) = case.fresh();
        let jobs: Vec<AtomicU64> = (0..2000).map(|_| AtomicU64::new(0)).collect();
        let producers = AtomicU64::new(2);
        std::thread::scope(|scope| {
            for producer in 0..2 {
                let (keyspace, producers) = (&keyspace, &producers);
                scope.spawn(move || {
                    // One producer writes at the tail, the other one also before the head.
                    for i in 0..1000 {
                        let job = if producer == 0 { 1000 + i } else { 999 - i };
                        keyspace.put(key(job), [1; 10]).unwrap();
                    }
                    producers.fetch_sub(1, SeqCst);
                });
            }
            for _ in 0..2 {
                scope.spawn(|| consume(&keyspace, &jobs, || producers.load(SeqCst) == 0));
            }
        });
        assert!(jobs.iter().all(|taken| taken.load(SeqCst) == 1), "a job was lost");
    });
}

#[test]
fn a_queue_continues_after_reopening_and_ends_with_its_keyspace() {
    each(|case| {
        let (place, store, keyspace) = case.fresh();
        (0..100).for_each(|i| keyspace.put(key(i), [1; 10]).unwrap());
        assert_eq!(number(keyspace.pop_first().unwrap()), Some(0));
        assert_eq!(number(keyspace.pop_first().unwrap()), Some(1));
        drop(keyspace);
        store.close().unwrap();
        let store = case.builder(&place).open().unwrap();
        let keyspace = store.keyspace_with("k", case.options()).unwrap();
        assert_eq!(number(keyspace.pop_first().unwrap()), Some(2));
        assert_eq!(number(keyspace.pop_first().unwrap()), Some(3));
        store.drop_keyspace("k").unwrap();
        assert!(matches!(keyspace.pop_first(), Err(Error::NoKeyspace { .. })));
        assert!(matches!(keyspace.pop_last(), Err(Error::NoKeyspace { .. })));
    });
}
