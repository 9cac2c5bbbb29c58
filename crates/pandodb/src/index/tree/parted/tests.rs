//! Tests of parts in memory and of the jobs that write them. The behaviour that a user sees is covered by test suites
//! that run with every index.

use std::sync::Arc;

use super::PartedTree;
use crate::base::sync::AtomicU64;
use crate::base::sync::Ordering::{Relaxed, SeqCst};
use crate::base::{Entry, Kind, Seqno};
use crate::index::testing::{Bench, changes_are_found, get, scan, scan_view, suspend_jobs};
use crate::index::tree::Tree;
use crate::index::tree::sizes::LEAST_PIECE;
use crate::index::tree::tests::{self as tree_tests, SHAPES, shape, verify, with_buffers};
use crate::index::{DirectTools, DirectWriter, Index, Prepared, Room, RootRecord};
use crate::resolve::Stripes;

fn bench(seed: u64) -> Bench<PartedTree> {
    let (children, level, bytes) = SHAPES[seed as usize % SHAPES.len()];
    Bench::of(seed, |core| PartedTree::new(Tree::create(core, with_buffers(children, level, bytes), Seqno(0))))
}

/// Takes a checkpoint of everything.
fn checkpoint(bench: &Bench<PartedTree>) -> RootRecord {
    let stripes = bench.stripes();
    let checkpoint = bench.tree.begin_checkpoint(Seqno(bench.seqno));
    assert_eq!(checkpoint.through(), Seqno(bench.seqno));
    checkpoint.write(&|| stripes.clone()).unwrap().root
}

fn reopen(bench: &Bench<PartedTree>, record: &RootRecord, seed: u64) -> PartedTree {
    let (children, level, bytes) = SHAPES[seed as usize % SHAPES.len()];
    PartedTree::new(tree_tests::reopen(bench, record, with_buffers(children, level, bytes)))
}

/// The weight of all messages in memory, counted anew.
fn counted(tree: &PartedTree) -> usize {
    tree.shared.current.load().parts.iter().map(|part| part.stack.read().weight()).sum()
}

#[test]
fn parts_in_memory_and_the_tree_on_disk_are_one_index() {
    for seed in 0..6 {
        let mut bench = bench(seed);
        let (mut levels, mut parts) = (0, 0);
        suspend_jobs(&mut bench, seed, 70, |tree| {
            levels = levels.max(shape(&tree.shared.tree).0);
            parts = parts.max(tree.shared.current.load().parts.len());
        });
        verify(&bench);
        assert!(levels >= 3 && parts > 2, "seed {seed}: {levels} levels, {parts} parts");
        assert!(bench.tree.shared.bytes.load(Relaxed) <= bench.tree.most_bytes());
        assert_eq!(counted(&bench.tree), bench.tree.shared.bytes.load(Relaxed), "seed {seed}");
    }
}

#[test]
fn changes_since_a_snapshot_are_found() {
    (0..6).for_each(|seed| changes_are_found(&mut bench(seed)));
}

#[test]
fn a_checkpoint_has_exactly_the_messages_up_to_its_cut() {
    for seed in 0..24 {
        let mut bench = bench(seed);
        for _ in 0..12 {
            bench.feed(300, 3000, 5);
            let (cut, model) = (Seqno(bench.seqno), bench.model.clone());
            // Later messages and jobs do not change what the checkpoint writes.
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
            let opened = reopen(&bench, &record, seed);
            assert_eq!(scan(&opened, Seqno::MAX, false), model.into_iter().collect::<Vec<_>>(), "seed {seed}");
            bench.check();
        }
    }
}

/// The least room with which an index on a full disk works. The rest of the disk is left to a checkpoint.
fn least_room(bench: &Bench<PartedTree>) -> Room {
    let needed = bench.tree.unwritten_bytes();
    let room = |bytes| Room { bytes, spare: 0, urgent: true };
    let refused = bench.tree.relieve(room(needed), &|| bench.stripes());
    let is_empty = bench.tree.root_buffer.load(Relaxed) == 0 && bench.tree.shared.bytes.load(Relaxed) == 0;
    assert!(is_empty || matches!(refused, Err(crate::Error::DiskFull { .. })), "{refused:?}");
    room(needed + LEAST_PIECE)
}

#[test]
fn jobs_in_pieces_bring_the_messages_to_the_leaves() {
    for seed in 0..24 {
        let mut bench = bench(seed);
        for round in 0..40 {
            bench.feed(100, 3000, 10);
            let stripes = bench.stripes();
            match round % 3 {
                0 => drop(bench.tree.relieve(least_room(&bench), &|| stripes.clone()).unwrap()),
                1 => drop(bench.step(1 << 20)),
                _ => drop(checkpoint(&bench)),
            }
            shape(&bench.tree.shared.tree);
        }
        bench.check();
        verify(&bench);
    }
}

/// Regression: deletes that a checkpoint on a full disk had left in the buffer of the root stayed there, so they freed no
/// space.
#[test]
fn what_a_full_disk_leaves_in_the_root_is_passed_on() {
    // The trees of the last shape have no root with a buffer.
    for seed in (0..12).filter(|seed| seed % SHAPES.len() as u64 != SHAPES.len() as u64 - 1) {
        let mut bench = bench(seed);
        bench.feed(6000, 3000, 3);
        checkpoint(&bench);
        bench.drain();
        bench.feed(400, 3000, 40);
        bench.tree.is_short.store(true, Relaxed);
        checkpoint(&bench);
        let in_root = || bench.tree.root_buffer.load(Relaxed);
        assert_eq!(bench.tree.shared.bytes.load(Relaxed), 0, "all messages are on disk");
        assert!(in_root() > 0 && bench.tree.debt().total() >= in_root(), "seed {seed}");
        let stripes = bench.stripes();
        let mut turns = 0;
        if seed % 2 == 0 {
            while !bench.tree.relieve(least_room(&bench), &|| stripes.clone()).unwrap().idle {
                turns += 1;
                assert!(turns < 1000, "relief ends");
            }
            assert!(turns > 1, "relief works in pieces");
        } else {
            bench.tree.step(1 << 20, &|| stripes.clone()).unwrap();
        }
        // Only a job outside of relief shows that there is space again.
        assert_eq!((in_root(), bench.tree.is_short.load(Relaxed)), (0, seed % 2 == 0), "seed {seed}");
        shape(&bench.tree.shared.tree);
        bench.drain();
        bench.check();
        verify(&bench);
    }
}

#[test]
fn messages_of_the_log_are_applied_above_the_checkpoint() {
    let mut bench = bench(3);
    bench.feed(2000, 3000, 5);
    let record = checkpoint(&bench);
    let opened = reopen(&bench, &record, 3);
    let keep = || Stripes { snapshots: Vec::new(), horizon: record.through };
    let tools = DirectTools { keep: &keep, room: &|_| Ok(()), inline_bytes: usize::MAX };
    for i in 0..20_000u64 {
        let (key, value) = (format!("k{:07}", i * 7 % 30_000).into_bytes(), (i as i64).to_le_bytes());
        let entry = Entry { key: &key, seqno: Seqno(record.through.0 + 1 + i), kind: Kind::Put, value: &value };
        opened.replay(&entry, &tools).unwrap();
        opened.make_room(&|| Stripes { snapshots: Vec::new(), horizon: entry.seqno }).unwrap();
        bench.model.insert(key, i as i64);
        let (bytes, most) = (opened.shared.bytes.load(Relaxed), opened.most_bytes());
        assert!(bytes <= most + most / 4 + 100, "a replay takes {bytes} bytes, more than {most}");
    }
    assert_eq!(scan(&opened, Seqno::MAX, true).len(), bench.model.len());
    bench.tree = opened;
    bench.seqno += 20_000;
    bench.check();
}

/// A commit with a small seqno may be applied after one with a greater seqno, and after its part was sealed.
#[test]
fn late_messages_belong_to_the_memtable_with_their_seqnos() {
    let bench = bench(1);
    let keep = || Stripes { snapshots: Vec::new(), horizon: Seqno(4) };
    let tools = DirectTools { keep: &keep, room: &|_| Ok(()), inline_bytes: usize::MAX };
    let put = |value: &'static [u8; 8]| Entry { key: b"k", seqno: Seqno(0), kind: Kind::Put, value };
    let prepare = |value| bench.tree.prepare(&mut [put(value)].into_iter(), &tools).unwrap();
    let apply = |prepared: Box<dyn Prepared + '_>, seqno| prepared.apply(&mut [Seqno(seqno)].into_iter());
    let (late, early) = (prepare(&[7; 8]), prepare(&[9; 8]));
    apply(early, 9);
    bench.tree.compact(&crate::base::KeyRange::all()).unwrap();
    // The part is sealed, and not written, because the commit with seqno 7 is not applied.
    bench.tree.step(1 << 20, &|| Stripes { snapshots: Vec::new(), horizon: Seqno(6) }).unwrap();
    assert!(bench.tree.shared.current.load().tree.root.is_none());
    apply(late, 7);
    let newest = Some(i64::from_le_bytes([9; 8]));
    assert_eq!(get(&bench.tree, b"k", Seqno(20)), newest);
    assert_eq!(get(&bench.tree, b"k", Seqno(8)), Some(i64::from_le_bytes([7; 8])));
    apply(prepare(&[11; 8]), 11);
    bench.tree.step(1 << 20, &|| Stripes { snapshots: vec![Seqno(8)], horizon: Seqno(9) }).unwrap();
    assert!(bench.tree.shared.current.load().tree.root.is_some());
    assert_eq!(get(&bench.tree, b"k", Seqno(9)), newest);
    assert_eq!(get(&bench.tree, b"k", Seqno(8)), Some(i64::from_le_bytes([7; 8])));
    assert_eq!(get(&bench.tree, b"k", Seqno(20)), Some(i64::from_le_bytes([11; 8])));
}

/// A lookup and a scan that have the state before a job find all messages once.
#[test]
fn readers_of_an_old_state_count_each_operand_once() {
    for seed in 0..12 {
        let mut bench = bench(seed);
        bench.feed(3000, 600, 2);
        let expected = scan(&bench.tree, Seqno::MAX, false);
        let state = bench.tree.shared.current.load_full();
        checkpoint(&bench);
        bench.feed(500, 600, 2);
        let now = bench.tree.shared.current.swap(state);
        let at = Seqno(3000);
        assert_eq!(scan(&bench.tree, at, true).into_iter().rev().collect::<Vec<_>>(), expected, "seed {seed}");
        for (key, value) in expected.iter().step_by(17) {
            assert_eq!(get(&bench.tree, key, at), Some(*value));
        }
        bench.tree.shared.current.store(now);
        bench.check();
    }
}

/// Dropping a keyspace frees everything, and views that were pinned before keep their contents.
#[test]
fn a_dropped_index_frees_its_pages() {
    let mut bench = bench(4);
    bench.feed(2000, 3000, 5);
    checkpoint(&bench);
    bench.feed(300, 3000, 5);
    let view = bench.tree.view();
    bench.tree.clear();
    assert_eq!(bench.tree.shared.bytes.load(Relaxed), 0);
    let mut extents = 0;
    bench.tree.for_each_extent(&mut |_| extents += 1);
    assert_eq!(extents, 0);
    assert_eq!(scan_view(&view, Seqno::MAX, false).len(), bench.model.len(), "the view keeps its contents");
    assert!(scan(&bench.tree, Seqno::MAX, false).is_empty(), "later readers find nothing");
    let waiting = || bench.core.data.stats().quarantined_bytes;
    let before = waiting();
    drop(view);
    assert!(waiting() > before, "only the view has kept the pages");
    let stripes = bench.stripes();
    let cut = bench.tree.begin_checkpoint(Seqno(bench.seqno)).write(&|| stripes.clone()).unwrap();
    assert!(cut.root.bytes.is_empty(), "nothing is left on disk");
}

/// With damage below the root, a checkpoint keeps all messages in the buffer of the root, and commits are refused.
#[test]
fn a_damaged_page_below_the_root_does_not_stop_checkpoints() {
    let mut bench = bench(2);
    bench.feed(6000, 3000, 5);
    checkpoint(&bench);
    bench.feed(300, 3000, 5);
    let expected = bench.model.clone();
    bench.tree.note_damage(&crate::Error::corruption("a page", 0, "for the test"));
    let record = checkpoint(&bench);
    assert_eq!(bench.tree.shared.bytes.load(Relaxed), 0, "all messages are on disk");
    let keep = || bench.stripes();
    let tools = DirectTools { keep: &keep, room: &|_| Ok(()), inline_bytes: usize::MAX };
    let put = Entry { key: b"k", seqno: Seqno(0), kind: Kind::Put, value: b"v" };
    assert!(bench.tree.prepare(&mut [put].into_iter(), &tools).is_err_and(|e| e.is_damage()));
    assert_eq!(bench.tree.stats().damaged, 1);
    verify(&bench);
    assert_eq!(scan(&reopen(&bench, &record, 2), Seqno::MAX, false), expected.into_iter().collect::<Vec<_>>());
    bench.tree.compact(&crate::base::KeyRange::all()).unwrap();
    bench.drain();
    bench.feed(300, 3000, 5);
    bench.check();
    verify(&bench);
}

/// Several threads insert while jobs write and divide the parts.
#[test]
fn commits_beside_jobs_lose_nothing() {
    let bench = Arc::new(bench(0));
    let (threads, each) = (4u64, 3000u64);
    let seqnos = AtomicU64::new(1);
    // A lower bound of the seqno that each thread has drawn and not applied yet.
    let drawn: Vec<AtomicU64> = (0..threads).map(|_| AtomicU64::new(u64::MAX)).collect();
    std::thread::scope(|scope| {
        for (thread, drawn) in (0..).zip(&drawn) {
            let (bench, seqnos) = (&bench, &seqnos);
            scope.spawn(move || {
                let keep = || Stripes { snapshots: Vec::new(), horizon: Seqno(0) };
                let tools = DirectTools { keep: &keep, room: &|_| Ok(()), inline_bytes: usize::MAX };
                for i in 0..each {
                    let key = format!("k{:07}", (i * 7919 + thread) % 1000).into_bytes();
                    let add = Entry { key: &key, seqno: Seqno(0), kind: Kind::Merge, value: &1i64.to_le_bytes() };
                    let prepared = bench.tree.prepare(&mut [add].into_iter(), &tools).unwrap();
                    drawn.store(seqnos.load(SeqCst), SeqCst);
                    let seqno = seqnos.fetch_add(1, SeqCst);
                    prepared.apply(&mut [Seqno(seqno)].into_iter());
                    drawn.store(u64::MAX, SeqCst);
                }
            });
        }
        while seqnos.load(SeqCst) <= threads * each {
            let next = seqnos.load(SeqCst);
            let visible = drawn.iter().fold(next, |least, drawn| least.min(drawn.load(SeqCst))) - 1;
            bench.tree.step(1 << 20, &|| Stripes { snapshots: Vec::new(), horizon: Seqno(visible) }).unwrap();
        }
    });
    let sum: i64 = scan(&bench.tree, Seqno::MAX, false).into_iter().map(|(_, count)| count).sum();
    assert_eq!(sum, (threads * each) as i64);
}
