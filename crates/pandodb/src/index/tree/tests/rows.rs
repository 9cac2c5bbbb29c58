//! Tests that rows from the row cache are the rows of the published root, whatever jobs do meanwhile.

use std::collections::BTreeMap;

use super::*;
use crate::base::key_hash;
use crate::index::testing::get;

const ROOM: Room = Room { bytes: 0, spare: 0, urgent: true };

/// Looks a key up several times, so that its row is cached if the tree accepts it.
fn ask(bench: &Bench<Tree>, key: &[u8]) -> Option<i64> {
    let at = bench.tree.view().through();
    let found = get(&bench.tree, key, at);
    (0..3).for_each(|_| assert_eq!(get(&bench.tree, key, at), found, "{}", key.escape_ascii()));
    found
}

fn hits(bench: &Bench<Tree>) -> u64 {
    bench.core.rows.stats().hits
}

/// The rows of the published root.
type Model = BTreeMap<Vec<u8>, i64>;

#[test]
fn cached_rows_equal_the_rows_of_the_published_root() {
    for seed in 0..12 {
        let has_buffers = seed % 3 == 2;
        let mut bench = if has_buffers { buffered(seed, 6, 1, 2 << 10) } else { bench(seed, 6) };
        // The rows that the tree holds up to each seqno.
        let mut models: Vec<(Seqno, Model)> = vec![(Seqno(0), Model::new())];
        for round in 0..60 {
            // Most memtables have no range tombstone, because one of them removes many rows.
            let deletes = if round % 7 == 6 && !has_buffers { 10 } else { 0 };
            match deletes {
                0 => bench.put(30, 300),
                _ => bench.feed(30, 300, deletes),
            }
            models.push((Seqno(bench.seqno), bench.model.clone()));
            for _ in 0..bench.random.below(20) {
                let (in_pieces, budget) = (bench.random.below(3) == 0, 1 + bench.random.below(2000));
                let stripes = bench.stripes();
                match in_pieces {
                    true => drop(bench.tree.relieve(ROOM, &|| stripes.clone()).unwrap()),
                    false => drop(bench.step(budget)),
                }
                let through = bench.tree.view().through();
                let (_, model) = models.iter().find(|(seqno, _)| *seqno == through).expect("a memtable ends there");
                for _ in 0..10 {
                    let key = bench.key(300);
                    assert_eq!(ask(&bench, &key), model.get(&key).copied(), "seed {seed}, round {round}");
                }
            }
        }
        assert!(hits(&bench) > 2000, "seed {seed}: {} hits", hits(&bench));
        bench.drain();
        bench.check();
    }
}

/// A tree with 2,000 rows, of which the row of key 100 is cached.
fn warm(seed: u64) -> (Bench<Tree>, Vec<u8>) {
    let mut bench = bench(seed, 6);
    let rows: Vec<_> = (0..2000i64).map(|i| (number(i as u64), Kind::Put, i.to_le_bytes().to_vec())).collect();
    apply(&mut bench, rows);
    let key = number(100);
    assert_eq!(ask(&bench, &key), Some(100));
    let before = hits(&bench);
    assert_eq!((ask(&bench, &key), hits(&bench)), (Some(100), before + 4), "the row is cached");
    (bench, key)
}

#[test]
fn rows_that_were_read_between_two_pieces_are_not_cached() {
    let (mut bench, key) = warm(1);
    let other = number(1900);
    let through = bench.seqno;
    let operations: Vec<_> = (0..2000).map(|i| (number(i), Kind::Put, -1 - i as i64)).collect();
    bench.tree.ingest(memtable_of(&operations, through + 1));
    bench.seqno += operations.len() as u64;
    let stripes = bench.stripes();
    assert!(bench.tree.relieve(ROOM, &|| stripes.clone()).unwrap().absorbed.is_none(), "a piece is published");
    let (before, rows) = (hits(&bench), bench.core.rows.stats().rows);
    // The memtable is newer than the published root, so neither its rows nor those of this root are served or cached.
    assert_eq!((ask(&bench, &key), ask(&bench, &other)), (Some(100), Some(1900)));
    assert_eq!((hits(&bench), bench.core.rows.stats().rows), (before, rows));
    // A reader of the old root offers its row later than the job has begun.
    let view = bench.tree.view();
    (0..2).for_each(|_| view.offer_row(&other, key_hash(&other), &1900i64.to_le_bytes(), Seqno(1901)));
    bench.pack_all();
    (0..2).for_each(|_| view.offer_row(&other, key_hash(&other), &1900i64.to_le_bytes(), Seqno(1901)));
    assert_eq!((ask(&bench, &key), ask(&bench, &other)), (Some(-101), Some(-1901)));
    assert!(hits(&bench) > before + 4, "the rows are cached again");
}

#[test]
fn a_job_that_is_repeated_updates_rows_again() {
    let (mut bench, key) = warm(2);
    let through = bench.seqno;
    let operations: Vec<_> = (0..2000).map(|i| (number(i), Kind::Put, -1 - i as i64)).collect();
    bench.tree.ingest(memtable_of(&operations, through + 1));
    bench.seqno += operations.len() as u64;
    // The job that has begun is dropped, because the next one has to run in pieces.
    bench.step(2000);
    let stripes = bench.stripes();
    assert!(bench.tree.relieve(ROOM, &|| stripes.clone()).unwrap().absorbed.is_none(), "a piece is published");
    assert_eq!(ask(&bench, &key), Some(100));
    bench.pack_all();
    let before = hits(&bench);
    assert_eq!((ask(&bench, &key), hits(&bench)), (Some(-101), before + 4), "the row was updated, not removed");
}

#[test]
fn range_tombstones_remove_the_rows_that_they_cover() {
    let (mut bench, key) = warm(3);
    let kept = number(300);
    ask(&bench, &kept);
    let before = bench.core.rows.stats().rows;
    bench.seqno += 1;
    let memtable = Memtable::new(0, Arc::new(ChunkPool::new(1)));
    memtable.insert_range(&RangeTombstone { range: KeyRange::new(number(50), number(200)), seqno: Seqno(bench.seqno) });
    bench.tree.ingest(SealedBatch::new(Arc::new(memtable), Seqno(bench.seqno)));
    bench.pack_all();
    assert_eq!(bench.core.rows.stats().rows, before - 1);
    assert_eq!((ask(&bench, &key), ask(&bench, &kept)), (None, Some(300)));
    bench.drain();
    assert_eq!((ask(&bench, &key), ask(&bench, &kept)), (None, Some(300)));
}

#[test]
fn a_tree_that_was_cleared_has_and_accepts_no_rows() {
    for is_busy in [false, true] {
        let (mut bench, key) = warm(4);
        let old = bench.tree.view();
        if is_busy {
            let operations: Vec<_> = (0..2000).map(|i| (number(i), Kind::Put, -1 - i as i64)).collect();
            bench.tree.ingest(memtable_of(&operations, bench.seqno + 1));
            bench.seqno += operations.len() as u64;
            bench.step(2000);
        }
        bench.tree.clear();
        assert_eq!(bench.core.rows.stats().rows, 0);
        let seqno = old.through();
        for view in [old, bench.tree.view()] {
            (0..3).for_each(|_| view.offer_row(&key, key_hash(&key), b"12345678", seqno));
        }
        assert_eq!((bench.core.rows.stats().rows, ask(&bench, &key)), (0, None), "busy: {is_busy}");
    }
}

#[test]
fn leaves_that_scans_read_count_against_the_row_cache() {
    let (bench, _) = warm(5);
    let (leaves, before) = (shape(&bench.tree).1 as u64, bench.core.rows.scanned_leaves());
    let reads = bench.core.data.stats().reads;
    scan(&bench.tree, Seqno(bench.seqno), false);
    let read = bench.core.rows.scanned_leaves() - before;
    // The pool is smaller than the tree. The scan has also read inner pages.
    assert!(read > leaves / 4 && read <= bench.core.data.stats().reads - reads, "{read} of {leaves} leaves");
}
