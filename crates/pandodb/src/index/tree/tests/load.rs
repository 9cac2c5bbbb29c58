//! Tests of sorted loads: the tree that they build, its attachment, and the merge with older rows.

use std::collections::BTreeMap;

use super::*;
use crate::index::{FinishedLoad, SortedLoader};

const FULL: Room = Room { bytes: 0, spare: 0, urgent: true };

/// Writes rows, which are sorted. The load is not attached.
fn built<'a>(tree: &'a Tree, rows: &[(Vec<u8>, i64)]) -> Box<dyn FinishedLoad + 'a> {
    let mut load = tree.loader().unwrap().begin(0).unwrap();
    for (key, value) in rows {
        let value = value.to_le_bytes();
        load.push(&Entry { key, seqno: Seqno::UNASSIGNED, kind: Kind::Put, value: &value }).unwrap();
    }
    load.finish().unwrap()
}

/// Loads rows, as the store does. Returns the root record of the checkpoint.
fn load(bench: &mut Bench<Tree>, rows: &[(Vec<u8>, i64)]) -> crate::index::RootRecord {
    let stripes = bench.stripes();
    while bench.tree.debt().memory_bytes > 0 || bench.tree.has_waiting_load() {
        assert!(bench.tree.pack_one(&|| stripes.clone()).unwrap().is_some());
    }
    assert!(bench.tree.pack_one(&|| stripes.clone()).unwrap().is_none(), "a sweep is no packing");
    bench.seqno += 1;
    let mut load = built(&bench.tree, rows);
    load.stamp(Seqno(bench.seqno)).unwrap();
    let first = load.begin_checkpoint().unwrap().write(&Stripes::default).unwrap();
    let cut = load.begin_checkpoint().unwrap().write(&Stripes::default).unwrap();
    assert_eq!(first.root, cut.root, "a checkpoint that is repeated writes nothing again");
    load.attach().unwrap();
    let next = bench.tree.begin_checkpoint(Seqno::MAX).write(&Stripes::default).unwrap();
    assert_eq!(next.root, cut.root, "the next checkpoint describes the same state");
    verify(bench);
    for (key, value) in rows {
        bench.changes.push((Seqno(bench.seqno), KeyRange::point(key), Kind::Put));
        bench.model.insert(key.clone(), *value);
    }
    cut.root
}

fn counted(keys: impl Iterator<Item = u64>) -> Vec<(Vec<u8>, i64)> {
    keys.map(|i| (number(i), i as i64)).collect()
}

#[test]
fn a_load_into_an_empty_tree_is_its_tree() {
    for count in [1, 2, 25, 26, 300, 8000] {
        let mut bench = bench(count, 6);
        let root = load(&mut bench, &counted(0..count));
        assert_eq!(bench.tree.debt().total(), 0, "no work is left");
        let (levels, leaves) = shape(&bench.tree);
        // Rows of 8 bytes in leaves of 512 bytes, and 6 leaves in an inner page.
        assert!(leaves as u64 <= count.div_ceil(18), "{leaves} leaves");
        assert!(6u64.pow(levels - 1) < 36 * leaves as u64, "{levels} levels for {leaves} leaves");
        verify(&bench);
        bench.check();
        assert_eq!(scan(&bench.tree, Seqno(0), false), [], "older readers do not see the load");
        let opened = reopen(&bench, &root, sizes(512, 6));
        assert_eq!(shape(&opened), (levels, leaves));
        assert_eq!(scan(&opened, Seqno(bench.seqno), false), counted(0..count));
    }
}

#[test]
fn an_empty_load_changes_nothing_but_the_seqno() {
    let mut bench = bench(1, 6);
    load(&mut bench, &[]);
    assert_eq!((shape(&bench.tree), bench.tree.view().through()), ((0, 0), Seqno(1)));
    load(&mut bench, &counted(0..9));
    load(&mut bench, &[]);
    assert_eq!(bench.tree.view().through(), Seqno(3));
    bench.check();
}

/// Loads, memtables, sweeps and snapshots in any order, and merges that stop after any step. The rows are read before,
/// between and after the pieces of a merge.
fn mixed(seed: u64, sizes: &Sizes) {
    let mut bench = Bench::of(seed, |core| Tree::create(core, sizes.clone(), Seqno(0)));
    let empty = bench.core.data.stats().allocated_bytes;
    for round in 0..40 {
        match bench.random.below(3) {
            0 => {
                let keys = [600, 600, 9000][bench.random.below(3) as usize];
                let from = bench.random.below(keys);
                let (step, count) = (1 + bench.random.below(4), 1 + bench.random.below(400));
                let rows = counted((0..count).map(|i| from + i * step));
                let root = load(&mut bench, &rows);
                if bench.random.below(4) == 0 {
                    let opened = reopen(&bench, &root, sizes.clone());
                    let expected: Vec<_> = bench.model.clone().into_iter().collect();
                    assert_eq!(scan(&opened, Seqno(bench.seqno), false), expected, "seed {seed}");
                }
            }
            1 => bench.feed(60, 600, 10),
            _ => bench.put(60, 9000),
        }
        for _ in 0..bench.random.below(6) {
            let stripes = bench.stripes();
            match bench.random.below(4) == 0 {
                true => drop(bench.tree.relieve(FULL, &|| stripes.clone()).unwrap()),
                false => {
                    let budget = 1 + bench.random.below(4000);
                    drop(bench.step(budget));
                }
            }
            shape(&bench.tree);
            let through = bench.tree.view().through();
            if through == Seqno(bench.seqno) {
                let expected: Vec<_> = bench.model.clone().into_iter().collect();
                assert_eq!(scan(&bench.tree, through, false), expected, "seed {seed}, round {round}");
            }
        }
        if bench.random.below(4) == 0 {
            bench.snapshots.push((Seqno(bench.seqno), bench.model.clone()));
            let oldest = bench.snapshots.len().saturating_sub(3);
            bench.snapshots.drain(..oldest);
        }
        if round % 8 == 7 {
            verify(&bench);
            bench.check();
            verify(&bench);
        }
    }
    bench.snapshots.clear();
    bench.drain();
    bench.check();
    verify(&bench);
    bench.tree.clear();
    for _ in 0..2 {
        bench.core.data.begin_checkpoint();
        bench.core.data.finish_checkpoint().unwrap();
    }
    let stats = bench.core.data.stats();
    assert_eq!(stats.allocated_bytes - stats.quarantined_bytes, empty, "seed {seed}: no page is lost");
}

#[test]
fn loads_are_merged_with_older_rows_in_any_order_of_steps() {
    (0..60).for_each(|seed| mixed(seed, &sizes(512, 6)));
}

#[test]
fn loads_into_trees_with_buffers_are_merged() {
    for seed in 0..60 {
        let (children, level, bytes) = SHAPES[seed as usize % SHAPES.len()];
        mixed(seed, &with_buffers(children, level, bytes));
    }
}

#[test]
fn a_merge_keeps_the_bytes_of_rewritten_pages_small() {
    let mut bench = bench(7, 6);
    load(&mut bench, &counted((0..9000).map(|i| 2 * i)));
    load(&mut bench, &counted((0..9000).map(|i| 2 * i + 1)));
    assert!(bench.tree.debt().work_bytes > 0 && bench.tree.stats().figure("loaded_bytes") > 0);
    let stripes = bench.stripes();
    let mut pieces = 0;
    while bench.tree.has_waiting_load() {
        let before = bench.tree.stats().figure("loaded_bytes");
        bench.tree.relieve(FULL, &|| stripes.clone()).unwrap();
        assert!(bench.tree.stats().figure("loaded_bytes") < before, "each piece frees rows of the load");
        pieces += 1;
        assert_eq!(bench.tree.entries(), (18_000, 0), "each row is in one tree");
        shape(&bench.tree);
    }
    assert!(pieces > 5, "{pieces} pieces");
    bench.check();
    verify(&bench);
}

#[test]
fn a_reopened_tree_continues_a_merge() {
    for seed in 0..8 {
        let sizes = if seed % 2 == 0 { sizes(512, 6) } else { with_buffers(6, 1, 2000) };
        let mut bench = Bench::of(seed, |core| Tree::create(core, sizes.clone(), Seqno(0)));
        bench.feed(2000, 6000, 5);
        load(&mut bench, &counted((0..2000).map(|i| 2 * i + 1)));
        let stripes = bench.stripes();
        (0..seed / 2).for_each(|_| drop(bench.tree.relieve(FULL, &|| stripes.clone()).unwrap()));
        let cut = bench.tree.begin_checkpoint(Seqno::MAX).write(&Stripes::default).unwrap();
        let opened = reopen(&bench, &cut.root, sizes);
        assert!(opened.debt().work_bytes > 0, "the merge is work");
        let expected: Vec<_> = bench.model.clone().into_iter().collect();
        assert_eq!(scan(&opened, Seqno(bench.seqno), false), expected, "seed {seed}");
        while opened.debt().total() > 0 {
            opened.step(1 << 12, &|| stripes.clone()).unwrap();
        }
        assert_eq!(opened.stats().figure("loaded_bytes"), 0);
        assert_eq!(scan(&opened, Seqno(bench.seqno), true).len(), expected.len());
        assert_eq!(scan(&opened, Seqno(bench.seqno), false), expected, "seed {seed}, merged");
        shape(&opened);
    }
}

#[test]
fn a_load_that_is_dropped_frees_its_pages() {
    let mut bench = bench(8, 6);
    load(&mut bench, &counted(0..100));
    let before = bench.core.data.stats().allocated_bytes;
    let mut unfinished = bench.tree.loader().unwrap().begin(0).unwrap();
    for (key, _) in counted(0..9000) {
        unfinished.push(&Entry { key: &key, seqno: Seqno::UNASSIGNED, kind: Kind::Put, value: &[7; 300] }).unwrap();
    }
    drop(unfinished);
    assert_eq!(bench.core.data.stats().allocated_bytes, before, "not finished");
    let mut finished = built(&bench.tree, &counted(0..9000));
    finished.stamp(Seqno(bench.seqno + 1)).unwrap();
    drop(finished.begin_checkpoint().unwrap());
    drop(finished);
    let stats = bench.core.data.stats();
    assert_eq!(stats.allocated_bytes - stats.quarantined_bytes, before, "not attached");
    assert!(stats.quarantined_bytes > 0, "a superblock may reach the pages of a load that was stamped");
    bench.check();
}

#[test]
fn a_sweep_that_works_while_a_load_is_attached_is_discarded() {
    for is_parked in [false, true] {
        let mut bench = bench(9, 6);
        apply(
            &mut bench,
            (0..4000).map(|i| (number(i), Kind::Put, (i as i64).to_le_bytes().to_vec())).collect::<Vec<_>>(),
        );
        bench.model = counted(0..4000).into_iter().collect();
        bench.snapshots = vec![(Seqno(bench.seqno), bench.model.clone())];
        apply(&mut bench, (0..4000).map(|i| (number(i), Kind::Put, vec![1; 8])).collect::<Vec<_>>());
        bench.snapshots.clear();
        bench.tree.compact(&KeyRange::all()).unwrap();
        let stripes = bench.stripes();
        let rows = counted(500..700);
        let mut job = (!is_parked).then(|| bench.tree.claim(None, false, &|| stripes.clone()).unwrap().unwrap());
        if is_parked {
            bench.step(1000);
        }
        bench.seqno += 1;
        let mut load = built(&bench.tree, &rows);
        load.stamp(Seqno(bench.seqno)).unwrap();
        load.attach().unwrap();
        if let Some(job) = job.take() {
            bench.tree.work(job, u64::MAX).unwrap();
        }
        assert!(bench.tree.has_waiting_load(), "the sweep has not replaced the state with the load");
        bench.model = (0..4000).map(|i| (number(i), i64::from_le_bytes([1; 8]))).chain(rows).collect();
        bench.check();
        bench.drain();
        assert_eq!(bench.tree.stats().figure("older_versions"), 0, "the request is repeated");
        bench.check();
        verify(&bench);
    }
}

#[test]
fn changes_of_loads_are_found() {
    for seed in 0..6 {
        let mut bench = if seed % 2 == 0 { bench(seed, 6) } else { buffered(seed, 6, 1, 2000) };
        bench.feed(300, 600, 10);
        let since = Seqno(bench.seqno);
        load(&mut bench, &counted((0..100).map(|i| 5 * i)));
        for i in 0..500 {
            let key = number(i);
            let hashed = crate::base::HashedKey { key: &key, hash: crate::base::key_hash(&key) };
            let changed = |since| bench.tree.view().changed(hashed, since, crate::index::Changes::All).unwrap();
            assert_eq!(changed(since), i % 5 == 0, "key {i}");
            assert!(!changed(Seqno(bench.seqno)));
        }
        changes_are_found(&mut bench);
    }
}

#[test]
fn leaves_of_a_load_without_older_rows_between_their_keys_are_adopted() {
    for (is_buffered, keys) in [(false, 9000..18_000), (true, 9000..18_000), (false, 2000..7000), (true, 2000..7000)] {
        let mut bench = if is_buffered { buffered(1, 6, 1, 2000) } else { bench(1, 6) };
        let old = counted((0..9000).filter(|i| !(2000..7000).contains(i)));
        load(&mut bench, &old);
        let count = keys.clone().count() as u64;
        load(&mut bench, &counted(keys));
        let loaded = bench.tree.published.load().loaded.unwrap();
        let leaves = Walk::new(bench.tree.source.clone(), Some(loaded)).filter(|visit| visit.level == 0).count() as u64;
        let before = bench.tree.stats().figure("leaves_written");
        bench.drain();
        let written = bench.tree.stats().figure("leaves_written") - before;
        assert!(written < leaves / 3, "{written} of {leaves} leaves for {count} rows were written again");
        shape(&bench.tree);
        verify(&bench);
        bench.check();
    }
}

#[test]
fn small_loads_do_not_leave_small_leaves() {
    let mut bench = bench(2, 6);
    for i in 0..400 {
        load(&mut bench, &counted(i..i + 1));
        // Rows with keys far apart.
        load(&mut bench, &counted((0..9).map(|j| 1000 * j + i)));
    }
    bench.drain();
    let (_, leaves) = shape(&bench.tree);
    assert!(leaves < 4000 / 9, "{leaves} leaves");
    bench.check();
}

/// One older row for each leaf of the load: if all leaves were adopted, the older rows would be alone in their leaves.
#[test]
fn older_rows_between_leaves_are_joined_with_them() {
    let mut bench = bench(3, 6);
    load(&mut bench, &counted((0..9000).step_by(25)));
    load(&mut bench, &counted((0..9000).filter(|i| i % 25 > 0)));
    bench.drain();
    let (_, leaves) = shape(&bench.tree);
    assert!(leaves < 9000 / 12, "{leaves} leaves");
    bench.check();
}

/// A merge moves the references to large values, and not the values.
#[test]
fn large_values_are_no_debt_of_a_merge() {
    let mut bench = bench(4, 6);
    load(&mut bench, &counted(0..100));
    let mut load = bench.tree.loader().unwrap().begin(0).unwrap();
    for (key, _) in counted(0..100) {
        let (blob, mut value) = (bench.core.data.write_blob(&[7; 5000]).unwrap(), Vec::new());
        blob.encode(&mut value);
        load.push(&Entry { key: &key, seqno: Seqno::UNASSIGNED, kind: Kind::BlobPut, value: &value }).unwrap();
    }
    let mut load = load.finish().unwrap();
    load.stamp(Seqno(bench.seqno + 1)).unwrap();
    let root = load.begin_checkpoint().unwrap().write(&Stripes::default).unwrap().root;
    load.attach().unwrap();
    assert_eq!(bench.tree.entries().0, 200);
    let pages = bench.tree.inner.lock().world.pages.pages() * crate::base::PAGE as u64;
    for debt in [bench.tree.debt().work_bytes, reopen(&bench, &root, sizes(512, 6)).debt().work_bytes] {
        assert!(debt > 0 && debt <= pages, "{debt} bytes, and pages of {pages}");
    }
    let keep = Stripes { snapshots: Vec::new(), horizon: Seqno(bench.seqno + 1) };
    while bench.tree.debt().total() > 0 {
        bench.tree.step(1 << 20, &|| keep.clone()).unwrap();
    }
    assert_eq!(bench.tree.entries().0, 100);
}

/// A load behind the last key: its leaves are read and not written again. Each piece, which adopts a few of these tiny
/// leaves, writes the last leaf of the older tree, and no leaf of the rest of the load.
#[test]
fn a_load_behind_the_last_key_is_written_once() {
    let mut bench = bench(5, 6);
    load(&mut bench, &counted(0..9000));
    load(&mut bench, &counted(9000..18_000));
    let written = || bench.tree.stats().figure("leaves_written");
    let (before, mut bytes, mut steps) = (written(), 0, 0);
    while bench.tree.debt().total() > 0 {
        bytes += bench.step(8 << 10).bytes;
        steps += 1;
    }
    assert!(written() - before <= steps, "{} leaves in {steps} pieces", written() - before);
    assert!(bytes >= 9000 * 16 && steps > 16, "{bytes} bytes in {steps} pieces");
    bench.check();
}

/// Regression: a piece that had to rewrite many messages of one key before the first row of the load ended without this
/// row. The next piece did the same, so the merge never ended.
#[test]
fn each_piece_of_a_merge_merges_a_row() {
    // With some of these numbers of versions, the last leaf with versions has room for the row behind them.
    for versions in (6000..7500).step_by(30) {
        let mut sizes = sizes(512, 6);
        sizes.leaf.group = 16 << 10;
        let mut bench = Bench::of(6, |core| Tree::create(core, sizes, Seqno(0)));
        bench.snapshots = (1..=versions).map(|at| (Seqno(at), BTreeMap::new())).collect();
        let rows = (0..=versions).map(|i| (number(10 + i / versions), Kind::Put, i.to_le_bytes().to_vec()));
        apply(&mut bench, rows.collect::<Vec<_>>());
        bench.model = BTreeMap::from([(number(10), versions as i64 - 1), (number(11), versions as i64)]);
        assert_eq!(bench.tree.entries().0, versions + 1, "snapshots need all versions");
        load(&mut bench, &counted(12..15));
        let mut pieces = 0;
        while bench.tree.has_waiting_load() {
            bench.step(u64::MAX);
            pieces += 1;
            assert!(pieces <= 3, "a piece has merged no row");
        }
        shape(&bench.tree);
        bench.snapshots = vec![(Seqno(50), BTreeMap::from([(number(10), 49)]))];
        bench.check();
        verify(&bench);
    }
}
