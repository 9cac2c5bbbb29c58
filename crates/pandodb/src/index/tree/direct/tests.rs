//! Tests of ranges in memory and of the jobs that write them. The behaviour that a user sees is covered by test suites
//! that run with every index.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::HotTree;
use crate::base::{Entry, EntryBlock, Kind, Seqno};
use crate::index::hot::HotRange;
use crate::index::testing::{Bench, changes_are_found, scan, suspend_jobs};
use crate::index::tree::tests::{self as tree_tests, shape, sizes, verify};
use crate::index::tree::{Sizes, Tree};
use crate::index::{DirectTools, DirectWriter, Index, RootRecord};
use crate::resolve::Stripes;

fn small(children: usize) -> Sizes {
    sizes(512, children)
}

fn bench(seed: u64, children: usize) -> Bench<HotTree> {
    Bench::of(seed, |core| HotTree::new(Tree::create(core, small(children), Seqno(0))))
}

/// Takes a checkpoint of everything.
fn checkpoint(bench: &Bench<HotTree>) -> RootRecord {
    let stripes = bench.stripes();
    let checkpoint = bench.tree.begin_checkpoint(Seqno(bench.seqno));
    assert_eq!(checkpoint.through(), Seqno(bench.seqno));
    checkpoint.write(&|| stripes.clone()).unwrap().root
}

fn reopen(bench: &Bench<HotTree>, record: &RootRecord) -> HotTree {
    HotTree::new(tree_tests::reopen(bench, record, small(5)))
}

#[test]
fn ranges_in_memory_and_the_tree_on_disk_are_one_index() {
    for (seed, children) in [(0, 4), (1, 5), (2, 16), (3, 200)] {
        let mut bench = bench(seed, children);
        let mut levels = 0;
        suspend_jobs(&mut bench, seed, 70, |tree| levels = levels.max(shape(&tree.shared.tree).0));
        verify(&bench);
        assert!(levels >= if children < 6 { 4 } else { 2 }, "seed {seed}: {levels} levels");
        assert!(bench.tree.shared.bytes() <= bench.tree.most_bytes());
    }
}

/// Regression: the memory was not bounded while no job ran in the background.
#[test]
fn commits_write_cold_ranges() {
    let mut bench = bench(3, 16);
    for _ in 0..30 {
        bench.feed(400, 30_000, 5);
        let (bytes, most) = (bench.tree.shared.bytes(), bench.tree.most_bytes());
        assert!(bytes < 2 * most, "{bytes} bytes, and {most} are allowed");
    }
    bench.check();
}

#[test]
fn changes_since_a_snapshot_are_found() {
    (0..6).for_each(|seed| changes_are_found(&mut bench(seed, 6)));
}

#[test]
fn a_checkpoint_has_exactly_the_messages_up_to_its_cut() {
    for seed in 0..20 {
        let mut bench = bench(seed, 5);
        for _ in 0..12 {
            bench.feed(300, 3000, 5);
            let (cut, model) = (Seqno(bench.seqno), bench.model.clone());
            // Later messages, folds of them, and jobs do not change what the checkpoint writes.
            let later = bench.operations(200, 3000, 5);
            let begun = bench.tree.begin_checkpoint(cut);
            bench.accept(later);
            if seed % 2 == 0 {
                bench.step(1 << 20);
            }
            let stripes = bench.stripes();
            let record = begun.write(&|| stripes.clone()).unwrap().root;
            assert_eq!(record.through, cut);
            shape(&bench.tree.shared.tree);
            verify(&bench);
            let opened = reopen(&bench, &record);
            assert_eq!(scan(&opened, Seqno::MAX, false), model.into_iter().collect::<Vec<_>>(), "seed {seed}");
            bench.check();
        }
    }
}

#[test]
fn messages_of_the_log_are_applied_above_the_checkpoint() {
    let mut bench = bench(7, 5);
    bench.feed(2000, 3000, 5);
    let record = checkpoint(&bench);
    let opened = reopen(&bench, &record);
    let keep = || Stripes { snapshots: Vec::new(), horizon: record.through };
    let tools = DirectTools { keep: &keep, room: &|_| Ok(()), inline_bytes: usize::MAX };
    for i in 0..500u64 {
        let (key, value) = (format!("k{:07}", i * 7).into_bytes(), (i as i64).to_le_bytes());
        let entry = Entry { key: &key, seqno: Seqno(record.through.0 + 1 + i), kind: Kind::Put, value: &value };
        opened.replay(&entry, &tools).unwrap();
        bench.model.insert(key, i as i64);
    }
    assert_eq!(scan(&opened, Seqno::MAX, true).len(), bench.model.len());
    bench.tree = opened;
    bench.seqno += 500;
    bench.check();
}

/// A view that a reader holds limits how far folds go, so the reader finds what it needs.
#[test]
fn a_reader_without_a_snapshot_finds_the_versions_of_its_read_point() {
    let mut bench = bench(9, 5);
    bench.put(500, 100);
    let (view, at, model) = (bench.tree.view(), Seqno(bench.seqno), bench.model.clone());
    for _ in 0..20 {
        bench.put(500, 100);
        bench.step(1 << 20);
    }
    let mut cursor = view.clone().cursor(Arc::default(), false).unwrap();
    let mut block = EntryBlock::new();
    let mut before = usize::MAX;
    while block.len() != before {
        before = block.len();
        cursor.fill(1 << 12, &mut block).unwrap();
    }
    let mut found = BTreeMap::new();
    for entry in block.iter().filter(|entry| entry.seqno <= at) {
        found.entry(entry.key.to_vec()).or_insert(i64::from_le_bytes(entry.value.try_into().unwrap()));
    }
    assert_eq!(found, model);
    drop((cursor, view));
    bench.put(500, 100);
    bench.put(500, 100);
    checkpoint(&bench);
    let entries = bench.tree.entries().0;
    assert!(entries < 300, "{entries} messages of 100 keys: folds have gone on");
}

/// Dropping a keyspace frees everything, and a job that is prepared for it has no effect.
#[test]
fn a_dropped_index_frees_its_pages() {
    let mut bench = bench(4, 5);
    bench.feed(2000, 3000, 5);
    checkpoint(&bench);
    bench.feed(300, 3000, 5);
    bench.tree.clear();
    assert_eq!(bench.tree.shared.bytes(), 0);
    let mut extents = 0;
    bench.tree.for_each_extent(&mut |_| extents += 1);
    let stripes = bench.stripes();
    let cut = bench.tree.begin_checkpoint(Seqno(bench.seqno)).write(&|| stripes.clone()).unwrap();
    assert!(cut.root.bytes.is_empty(), "nothing is left on disk");
    assert!(scan(&bench.tree, Seqno::MAX, false).is_empty());
}

/// Regression: the bytes of a dropped keyspace were counted again by a commit that was being prepared.
#[test]
fn a_commit_beside_a_drop_changes_no_count() {
    let mut bench = bench(5, 5);
    bench.feed(500, 300, 5);
    let pin = bench.tree.heat(b"k0000001").unwrap();
    for _ in 0..200 {
        bench.seqno += 1;
        let entry = Entry { key: b"k0000001", seqno: Seqno(bench.seqno), kind: Kind::Put, value: &[0; 8] };
        bench.tree.insert(Some(&pin), &entry);
    }
    bench.tree.clear();
    let stripes = bench.stripes();
    let keep = || stripes.clone();
    let tools = DirectTools { keep: &keep, room: &|_| Ok(()), inline_bytes: usize::MAX };
    bench.tree.fold_if_grown(&pin, &tools);
    assert_eq!((bench.tree.shared.bytes(), bench.tree.shared.unwritten()), (0, 0));
}

/// Regression: a job moved a value out of a leaf, for a range in memory that shares the leaf with a range that the job
/// has written. The value was leaked when the range was written without it.
#[test]
fn a_value_that_is_moved_out_for_another_range_is_freed_with_it() {
    let mut bench = Bench::of(5, |core| HotTree::new(Tree::create(core, sizes(64 << 10, 16), Seqno(0))));
    let write = |bench: &mut Bench<HotTree>, key: &[u8], kind: Kind, value: &[u8], inline_bytes: usize| {
        bench.seqno += 1;
        let entry = Entry { key, seqno: Seqno(bench.seqno), kind, value };
        let stripes = bench.stripes();
        let keep = || stripes.clone();
        let tools = DirectTools { keep: &keep, room: &|_| Ok(()), inline_bytes };
        let prepared = bench.tree.prepare(&mut [entry].into_iter(), &tools).unwrap();
        prepared.apply(&mut [entry.seqno].into_iter());
    };
    let has_values = |bench: &Bench<HotTree>| !bench.tree.shared.tree.inner.lock().world.blobs.is_empty();
    write(&mut bench, b"a", Kind::Put, &[1; 20_000], usize::MAX);
    write(&mut bench, b"b", Kind::Put, &[2; 8], usize::MAX);
    checkpoint(&bench);
    let mut ranges = bench.tree.shared.directory.lock().write();
    let whole = ranges.take().pop().unwrap();
    let mut contents = whole.contents.write();
    bench.tree.shared.forget(&mut contents);
    for (keys, mut part) in contents.divide(&whole.keys, 100, &[]) {
        bench.tree.shared.count_new(&mut part);
        ranges.insert(HotRange::new(keys, part, None));
    }
    assert_eq!(ranges.count(), 2, "two ranges share a leaf");
    drop((ranges, contents));
    write(&mut bench, b"b", Kind::Put, &[3; 8], 1000);
    checkpoint(&bench);
    assert!(has_values(&bench), "the value of the other range was moved out");
    write(&mut bench, b"a", Kind::Delete, &[], 1000);
    checkpoint(&bench);
    assert!(!has_values(&bench), "nothing refers to the value");
    verify(&bench);
}
