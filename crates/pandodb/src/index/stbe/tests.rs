//! Tests of the tree alone: random batches of counters are compared with a model. Compactions are suspended at every
//! point while memtables are packed, and while nodes are flushed, split and merged.

mod deletes;
mod routes;

use std::sync::Arc;

use super::choose::Choice;
use super::jobs::Stuck;
use super::node::{Branch, Node};
use super::scans::{PathSize, path_to};
use super::{Policy, Shape, Stbe};
use crate::base::sync::Ordering::Relaxed;
use crate::base::{Entry, EntryBlock, KeyRange, Kind, RangeTombstone, Result, Seqno, StoreId};
use crate::device::Device;
use crate::filter::Filters;
use crate::index::blobs::tests::an_index_never_walks_its_map;
use crate::index::runs::{Packs, Pieces};
use crate::index::testing::{changes_are_found, get, mark, operator, scan, suspend_jobs};
use crate::index::{Core, IdSource, Index, Inspect, Lookup, Room, RootRecord, SealedBatch, Step};
use crate::memtable::{ChunkPool, Memtable};
use crate::pool::Pool;
use crate::resolve::{Operator, Stripes};
use crate::rows::RowCache;
use crate::run::{Compression, Spare};
use crate::space::{DataFile, Prefetch};

const SHAPE: Shape = Shape {
    fanout: 3,
    memtable_bytes: 8 << 10,
    leaf_bytes: 24 << 10,
    policy: Policy::Product,
    filters: Filters::Maplet,
    compression: Compression::None,
    maplet_width: 2,
};

type Bench = crate::index::testing::Bench<Stbe>;

fn open_again(core: Core, operator: Option<Operator>, record: &RootRecord) -> Result<Stbe> {
    let mut prefetch = Prefetch::new(core.data.clone());
    Stbe::open(core, SHAPE, operator, record, &mut prefetch)
}

impl Bench {
    fn new(seed: u64) -> Bench {
        Bench::of(seed, |core| Stbe::create(core, SHAPE, Some(operator()), Seqno(0)))
    }
}

#[test]
fn the_map_of_large_values_is_never_fully_walked() {
    an_index_never_walks_its_map(Bench::new(1), |stbe, map| stbe.inner.lock().trunk.blobs = map);
}

#[test]
fn changes_since_a_snapshot_are_found() {
    (0..6).for_each(|seed| changes_are_found(&mut Bench::new(seed)));
}

#[test]
fn suspended_compactions_are_installed_after_flushes_and_splits() {
    for seed in 0..12 {
        let mut bench = Bench::new(seed);
        let mut deepest = 0;
        suspend_jobs(&mut bench, seed, 60, |tree| deepest = deepest.max(tree.stats().figure("levels")));
        let stats = bench.tree.stats();
        assert!(deepest >= if seed % 2 == 0 { 3 } else { 2 }, "seed {seed}: {deepest} levels");
        assert!(stats.figure("splits") > 0 && stats.figure("flushes") > 0 && stats.compactions > 0, "{stats:?}");
    }
}

#[test]
fn a_tree_shrinks_and_frees_its_pages_when_everything_is_deleted() {
    let mut bench = Bench::new(5);
    let empty = bench.core.data.stats().allocated_bytes;
    for _ in 0..60 {
        bench.feed(700, 40_000, 0);
        bench.pack_all();
    }
    bench.drain();
    assert!(bench.tree.stats().figure("levels") >= 3);
    bench.seqno += 1;
    let memtable = Memtable::new(0, Arc::new(ChunkPool::new(1)));
    memtable.insert_range(&RangeTombstone { range: KeyRange::all(), seqno: Seqno(bench.seqno) });
    bench.model.clear();
    bench.tree.ingest(SealedBatch::new(Arc::new(memtable), Seqno(bench.seqno)));
    bench.pack_all();
    bench.tree.compact(&KeyRange::all()).unwrap();
    bench.drain();
    bench.check();
    let stats = bench.tree.stats();
    assert_eq!((stats.figure("levels"), stats.figure("runs"), stats.entries), (1, 0, 0), "{stats:?}");
    for _ in 0..3 {
        bench.core.data.begin_checkpoint();
        bench.core.data.finish_checkpoint().unwrap();
    }
    assert_eq!(bench.core.data.stats().allocated_bytes, empty, "every page is freed");
}

/// A tree of several leaves with little pending work.
fn filled() -> Bench {
    let mut bench = Bench::new(8);
    for _ in 0..20 {
        bench.put(700, 40_000);
        bench.drain();
    }
    bench
}

/// Lets scans want every leaf of the tree. Returns the number of leaves.
fn want(tree: &Stbe) -> usize {
    let root = tree.inner.lock().trunk.root.clone();
    let scans = tree.inner.lock().trunk.scans.clone();
    let mut leaves = 0;
    root.walk(&mut |node| {
        if node.is_leaf() {
            leaves += 1;
            let oldest = node.branches.first().map_or(0, |branch| branch.bytes);
            let path = PathSize { runs: node.branches.len(), oldest, newer: node.own_bytes() - oldest };
            let spare = Spare { leaves: path.runs.saturating_sub(1) as u64, bytes: node.own_bytes().max(1) };
            scans.note(node, path, spare);
        }
    });
    assert!(tree.debt().optional_bytes > 0, "leaves are wanted");
    leaves
}

fn forced(tree: &Stbe) -> usize {
    tree.inner.lock().trunk.forced.len()
}

/// Until a request is fulfilled, each root swap flushes new data to its leaves. So a tree whose leaves are all wanted may
/// request only one of them at a time, and a fulfilled request goes although others are open.
#[test]
fn wanted_leaves_are_compacted_one_at_a_time() {
    let mut bench = filled();
    bench.put(700, 40_000);
    bench.pack_all();
    bench.drain();
    let leaves = want(&bench.tree);
    assert!(leaves > 3, "{leaves}");
    let (mut most, mut requests) = (0, 0);
    while !bench.step(1000).idle {
        let now = forced(&bench.tree);
        requests += usize::from(now > 0);
        most = most.max(now);
    }
    assert_eq!((most, forced(&bench.tree)), (1, 0));
    assert!(requests >= 1, "scans caused compactions");
    bench.check();

    bench.put(700, 40_000);
    bench.pack_all();
    bench.drain();
    let root = bench.tree.inner.lock().trunk.root.clone();
    let cut = root.children[root.children.len() / 2].node.range.from.clone();
    bench.tree.compact(&KeyRange::new(Vec::new(), cut.clone())).unwrap();
    bench.tree.compact(&KeyRange::new(cut, KeyRange::all().to)).unwrap();
    let mut seen = vec![forced(&bench.tree)];
    while !bench.step(1000).idle {
        seen.push(forced(&bench.tree));
    }
    seen.dedup();
    assert_eq!(seen, [2, 1, 0], "each request goes when it is fulfilled");
}

/// The last leaf of a tree, and the size of the runs on the path to it.
fn last_leaf(tree: &Stbe) -> (Arc<Node>, PathSize) {
    let root = tree.inner.lock().trunk.root.clone();
    let mut leaf = root.clone();
    while let Some(child) = leaf.children.last().map(|child| child.node.clone()) {
        leaf = child;
    }
    let path = path_to(&root, &leaf.range).1;
    (leaf, path)
}

/// A scan of the last leaf that reads `bytes` unneeded bytes in all of `runs` runs.
fn pay(tree: &Stbe, runs: usize, bytes: u64) {
    let (leaf, _) = last_leaf(tree);
    tree.published.load_full().note_spare(&leaf.range, Spare { leaves: runs as u64 - 1, bytes });
}

/// A tree whose leaves are one run each.
fn compacted() -> Bench {
    let bench = filled();
    bench.tree.compact(&KeyRange::all()).unwrap();
    bench.drain();
    let root = bench.tree.inner.lock().trunk.root.clone();
    assert!(root.height >= 2, "inner nodes between the root and the leaves");
    bench
}

/// Packs small memtables that have keys in all leaves.
fn pack_small(bench: &mut Bench, memtables: usize) {
    for _ in 0..memtables {
        bench.put(60, 40_000);
        bench.pack_all();
    }
}

/// Scans pay first for a compaction of the newer runs on a path, which costs little, and then for the rest.
#[test]
fn scans_pay_for_newer_runs_and_for_the_whole_leaf() {
    let mut bench = compacted();
    pack_small(&mut bench, 4);
    let (leaf, path) = last_leaf(&bench.tree);
    assert_eq!((leaf.branches.len(), path.runs), (1, 5), "four runs above a leaf of one run");
    let oldest = leaf.branches[0].id;
    // A quarter of each payment is for the whole leaf.
    let price = path.newer.max(path.oldest / 16) / 4;
    pay(&bench.tree, 5, price / 3 * 4 - 4);
    assert_eq!(bench.tree.debt().optional_bytes, 0, "not yet paid");
    pay(&bench.tree, 5, 16);
    assert_eq!(bench.tree.debt().optional_bytes, path.newer);
    bench.drain();
    let (leaf, path) = last_leaf(&bench.tree);
    assert_eq!((leaf.branches.len(), path.runs, leaf.branches[0].id), (2, 2, oldest), "the oldest run stays");
    assert_eq!(bench.tree.debt().optional_bytes, 0);

    let paid = leaf.paid.whole.load(Relaxed);
    assert!((price / 4..price).contains(&paid), "{paid} of {price}");
    pay(&bench.tree, 2, (path.oldest + path.newer) / 2 - paid - 1);
    assert_eq!(bench.tree.debt().optional_bytes, 0, "not yet paid");
    pay(&bench.tree, 2, 1);
    assert_eq!(bench.tree.debt().optional_bytes, path.oldest + path.newer);
    bench.drain();
    assert_eq!(last_leaf(&bench.tree).0.branches.len(), 1);
    bench.check();
}

/// When the whole leaf is paid while the newer runs still wait, both are one compaction, which counts once.
#[test]
fn a_paid_leaf_replaces_its_newer_runs() {
    let mut bench = compacted();
    pack_small(&mut bench, 4);
    let path = last_leaf(&bench.tree).1;
    pay(&bench.tree, 5, path.newer.max(path.oldest / 16) / 2);
    assert_eq!(bench.tree.debt().optional_bytes, path.newer);
    pay(&bench.tree, 2, path.oldest + path.newer);
    assert_eq!(bench.tree.debt().optional_bytes, path.oldest + path.newer);
    bench.drain();
    assert_eq!((last_leaf(&bench.tree).0.branches.len(), bench.tree.debt().optional_bytes), (1, 0));
    bench.check();
}

/// A run above a leaf that has no keys of the leaf is not counted. Otherwise scans would request a compaction of the newer
/// runs again and again, although there is only one.
#[test]
fn scans_ignore_runs_without_keys_of_a_leaf() {
    let mut bench = compacted();
    pack_small(&mut bench, 4);
    let path = last_leaf(&bench.tree).1;
    pay(&bench.tree, 5, path.newer.max(path.oldest / 16));
    bench.drain();
    let (leaf, path) = last_leaf(&bench.tree);
    assert_eq!((leaf.branches.len(), path.runs), (2, 2));

    // These keys are in another leaf below the same child of the root.
    let root = bench.tree.inner.lock().trunk.root.clone();
    let parent = root.children.last().unwrap().node.clone();
    let range = parent.children[0].node.range.clone();
    assert!(range.to <= leaf.range.from, "another leaf");
    let keys: Vec<Vec<u8>> = bench.model.keys().filter(|key| range.contains(key)).take(60).cloned().collect();
    let memtable = Memtable::new(0, Arc::new(ChunkPool::new(1)));
    for key in keys {
        bench.seqno += 1;
        let amount = bench.seqno as i64;
        memtable.insert(Entry { key: &key, seqno: Seqno(bench.seqno), kind: Kind::Put, value: &amount.to_le_bytes() });
        bench.model.insert(key, amount);
    }
    bench.tree.ingest(SealedBatch::new(Arc::new(memtable), Seqno(bench.seqno)));
    bench.pack_all();
    let root = bench.tree.inner.lock().trunk.root.clone();
    assert!(root.live_branches(root.children.len() - 1) > 0, "the root has a run for the child above the leaf");
    let (_, path) = last_leaf(&bench.tree);
    assert_eq!(path.runs, 2, "but not for the leaf");
    pay(&bench.tree, 2, path.oldest + path.newer);
    bench.drain();
    assert_eq!(last_leaf(&bench.tree).0.branches.len(), 1, "the whole leaf was compacted");
    bench.check();
}

/// A store on a full disk waits in `settle` until no requested work is left. So work that only makes scans faster may not
/// stay requested there, but what a caller requested does.
#[test]
fn relief_forgets_what_scans_requested() {
    let bench = filled();
    let relieve = |tree: &Stbe| {
        let room = Room { bytes: 1, spare: 4096, urgent: false };
        assert!(matches!(tree.relieve(room, &Stripes::default), Ok(progress) if progress.idle), "nothing fits");
    };
    want(&bench.tree);
    relieve(&bench.tree);
    assert_eq!(bench.tree.debt().optional_bytes, 0);

    // The same after a worker has turned them into requests.
    want(&bench.tree);
    let claim = bench.tree.claim(&Stripes::default).unwrap();
    assert!(claim.is_some() && forced(&bench.tree) > 0);
    drop(claim);
    bench.tree.inner.lock().merging.clear();
    relieve(&bench.tree);
    assert_eq!((bench.tree.debt().optional_bytes, forced(&bench.tree)), (0, 0));

    bench.tree.compact(&KeyRange::all()).unwrap();
    let requested = bench.tree.debt().requested_bytes;
    want(&bench.tree);
    let _ = bench.tree.relieve(Room { bytes: 1, spare: 4096, urgent: false }, &Stripes::default);
    assert_eq!((bench.tree.debt().requested_bytes, forced(&bench.tree)), (requested, 1), "a caller's request stays");
}

/// `Keyspace::approximate_len` promises not to wait for background work: the function reads a published view, which
/// counts its messages only once.
#[test]
fn entries_are_counted_without_the_trunks_lock() {
    let mut bench = Bench::new(3);
    for _ in 0..20 {
        bench.feed(700, 40_000, 0);
        bench.pack_all();
        let stats = bench.tree.stats();
        assert!(stats.entries > 0);
        let _held = bench.tree.inner.lock();
        assert_eq!(bench.tree.entries(), (stats.entries, stats.tombstones));
    }
    bench.feed(700, 40_000, 0);
    bench.pack_all();
    bench.tree.published.load().counted.set((7, 7)).expect("the view has not been counted yet");
    assert_eq!(bench.tree.entries(), (7, 7), "a view counts once");
}

#[test]
fn no_inner_node_keeps_fewer_than_half_of_the_fanout() {
    for seed in 0..6 {
        let mut bench = Bench::new(seed);
        for round in 0..90u64 {
            bench.put(600, 40_000);
            bench.drain();
            if round % 9 == 8 {
                // Some parts of the key space become empty while others grow.
                let memtable = Memtable::new(0, Arc::new(ChunkPool::new(1)));
                for _ in 0..3 {
                    let from = bench.random.below(30_000);
                    let range = KeyRange::new(format!("k{from:07}"), format!("k{:07}", from + 9_000));
                    bench.seqno += 1;
                    bench.model.retain(|key, _| !range.contains(key));
                    memtable.insert_range(&RangeTombstone { range, seqno: Seqno(bench.seqno) });
                }
                bench.tree.ingest(SealedBatch::new(Arc::new(memtable), Seqno(bench.seqno)));
                bench.drain();
                bench.tree.compact(&KeyRange::all()).unwrap();
                bench.drain();
            }
            let root = bench.tree.inner.lock().trunk.root.clone();
            root.walk(&mut |node| {
                assert!(node.children.len() <= SHAPE.fanout, "seed {seed}: a node of {}", node.children.len());
                for child in node.children.iter().filter(|child| !child.node.is_leaf()) {
                    let (many, alone) = (child.node.children.len(), node.children.len() == 1);
                    assert!(many >= SHAPE.fanout.div_ceil(2) || alone, "seed {seed}, round {round}: a node of {many}");
                }
            });
        }
        bench.check();
        assert!(bench.tree.stats().figure("merges") > 0);
    }
}

#[test]
fn a_forced_compaction_with_a_snapshot_ends() {
    let mut bench = Bench::new(9);
    bench.feed(500, 300, 20);
    bench.pack_all();
    bench.snapshots.push((Seqno(bench.seqno), bench.model.clone()));
    bench.feed(500, 300, 20);
    bench.pack_all();
    for _ in 0..2 {
        bench.tree.compact(&KeyRange::all()).unwrap();
        bench.drain();
        bench.check();
    }
    bench.snapshots.clear();
    bench.tree.compact(&KeyRange::all()).unwrap();
    bench.drain();
    let stats = bench.tree.stats();
    assert_eq!((stats.tombstones, stats.entries), (0, bench.model.len() as u64), "nothing superseded is left");
}

#[test]
fn a_reopened_trunk_equals_the_stored_one() {
    let mut bench = Bench::new(21);
    for _ in 0..50 {
        bench.feed(700, 20_000, 5);
        bench.pack_all();
        bench.step(20 << 10);
    }
    let cut = bench.tree.begin_checkpoint(Seqno::MAX).write(&Stripes::default).unwrap();
    let again = bench.tree.begin_checkpoint(Seqno::MAX).write(&Stripes::default).unwrap();
    assert_eq!(cut.root, again.root, "an unchanged trunk is not written twice");
    let (mut before, mut after) = (String::new(), String::new());
    bench.tree.describe(None, &mut before);
    let file = bench.device.open("data", crate::device::OpenHow { write: true, ..Default::default() }).unwrap();
    let data = DataFile::open(file, StoreId([3; 16])).unwrap();
    let core = Core {
        data: data.clone(),
        pool: Arc::new(Pool::new(256 << 10)),
        chunks: Arc::new(ChunkPool::new(1)),
        rows: RowCache::new(1 << 20),
        ids: Arc::new(IdSource::new(1 << 20)),
        repair: true,
        repairs: Arc::default(),
        share: Default::default(),
    };
    let reopened = open_again(core, Some(operator()), &cut.root).unwrap();
    reopened.describe(None, &mut after);
    assert_eq!(before, after);
    assert_eq!(scan(&reopened, Seqno(bench.seqno), false), bench.model.clone().into_iter().collect::<Vec<_>>());
    // Changing any byte of the record is harmless or is reported as corruption; the decoder never panics.
    let expected: Vec<_> = bench.model.clone().into_iter().collect();
    for i in 0..cut.root.bytes.len() {
        let mut record = cut.root.clone();
        record.bytes[i] ^= 0x55;
        let file = bench.device.open("data", crate::device::OpenHow { write: true, ..Default::default() }).unwrap();
        let data = DataFile::open(file, StoreId([3; 16])).unwrap();
        let core = Core {
            data,
            pool: Arc::new(Pool::new(256 << 10)),
            chunks: Arc::new(ChunkPool::new(1)),
            rows: RowCache::new(1 << 20),
            ids: Arc::new(IdSource::new(1 << 20)),
            repair: true,
            repairs: Arc::default(),
            share: Default::default(),
        };
        match open_again(core, Some(operator()), &record) {
            Err(e) => assert!(e.is_corruption(), "{e}"),
            Ok(tree) => assert_eq!(scan(&tree, Seqno(bench.seqno), false), expected, "byte {i} of the record"),
        }
    }
}

#[test]
fn a_sequential_load_moves_runs_down_without_rewriting() {
    let mut bench = Bench::new(1);
    for round in 0..120u64 {
        let memtable = Memtable::new(0, Arc::new(ChunkPool::new(1)));
        for i in 0..400u64 {
            bench.seqno += 1;
            let key = format!("k{:09}", round * 400 + i).into_bytes();
            let entry = Entry { key: &key, seqno: Seqno(bench.seqno), kind: Kind::Put, value: &[7; 40] };
            memtable.insert(entry);
        }
        bench.tree.ingest(SealedBatch::new(Arc::new(memtable), Seqno(bench.seqno)));
        bench.drain();
    }
    let stats = bench.tree.stats();
    assert!(stats.figure("levels") >= 3, "{stats:?}");
    let amplification = (stats.packed_bytes + stats.compacted_bytes) as f64 / stats.packed_bytes as f64;
    assert!(amplification < 1.1, "disjoint runs are moved, not rewritten: {amplification:.2}");
    assert!(stats.disk_bytes < stats.packed_bytes * 11 / 10, "no node keeps runs that it flushed: {stats:?}");
}

#[test]
fn small_batches_do_not_rewrite_a_leaf() {
    let mut bench = Bench::new(31);
    for _ in 0..15 {
        bench.feed(20, 200, 0);
        bench.pack_all();
    }
    // Make a leaf like the leaves of a deep tree: it has one large run, and parts of 14 memtables that were flushed
    // without a compaction.
    let mut leaf = bench.tree.inner.lock().trunk.root.edit();
    assert!(leaf.is_leaf() && leaf.branches.len() == 15);
    for (i, branch) in leaf.branches.iter_mut().enumerate() {
        (branch.bytes, branch.fresh) = if i == 0 { (100_000, false) } else { (200, true) };
    }
    let stuck = Stuck::default();
    let choose = |leaf: &Node| {
        let root = &Arc::new(leaf.edit());
        Choice { root, policy: Policy::Product, forced: &[], stuck: &stuck, merging: &[] }.first().expect("one")
    };
    assert_eq!(choose(&leaf).ids(), leaf.branches[1..].iter().map(|branch| branch.id).collect::<Vec<_>>());
    // Branches that were compacted here before are not compacted with each other again. This number of branches
    // triggers a compaction of the whole leaf.
    leaf.branches.iter_mut().for_each(|branch| branch.fresh = false);
    assert_eq!(choose(&leaf).branches.len(), 15);
    // The compaction is also triggered when the small runs together have a third of the large run's size.
    leaf.branches.iter_mut().skip(1).for_each(|branch| (branch.bytes, branch.fresh) = (3_000, true));
    assert_eq!(choose(&leaf).branches.len(), 15);
}

#[test]
fn the_parts_of_a_branch_weigh_no_more_than_the_branch() {
    let mut bench = Bench::new(32);
    for _ in 0..60 {
        bench.feed(300, 50_000, 0);
        bench.pack_all();
    }
    let root = bench.tree.inner.lock().trunk.root.clone();
    assert!(root.height >= 2, "branches are flushed more than once");
    let (mut slices, mut total) = (0, 0);
    root.walk(&mut |node| {
        for branch in &node.branches {
            let parts: u64 = branch.weights.iter().sum();
            assert!(parts <= branch.bytes + node.children.len() as u64, "{parts} of {}", branch.bytes);
        }
        total += node.own_bytes();
        let of = |branch: &Branch| branch.slice.bytes();
        slices += if node.is_leaf() { node.branches.iter().map(of).sum() } else { node.own_bytes() };
    });
    let packed = bench.tree.stats().packed_bytes;
    assert!(total <= packed + packed / 20, "{total} of {packed}");
    assert!(slices > packed + packed / 8, "the test needs parts smaller than a page: {slices} of {packed}");
}

#[test]
fn a_cold_child_does_not_retain_branches_for_a_hot_one() {
    let mut bench = Bench::new(33);
    // Use puts only, because range deletes would concern every child.
    let put = |bench: &mut Bench, count: u64, keys: u64| {
        bench.put(count, keys);
        bench.drain();
    };
    (0..60).for_each(|_| put(&mut bench, 700, 40_000));
    let before = bench.tree.stats();
    assert!(before.figure("levels") >= 3, "{before:?}");
    (0..300).for_each(|_| put(&mut bench, 300, 100));
    let (after, root) = (bench.tree.stats(), bench.tree.inner.lock().trunk.root.clone());
    assert!(root.branches.len() < 60, "{} branches wait in the root", root.branches.len());
    assert!(after.disk_bytes < before.disk_bytes * 3 / 2, "from {} to {} bytes", before.disk_bytes, after.disk_bytes);
    bench.check();
}

#[test]
fn pages_that_one_child_has_compacted_are_freed_while_others_need_the_run() {
    let mut bench = Bench::new(34);
    // The memtables have many pages, and several of them wait in the root.
    let shape = Shape { memtable_bytes: 64 << 10, leaf_bytes: 192 << 10, ..SHAPE };
    bench.tree = Stbe::create(bench.core.clone(), shape, Some(operator()), Seqno(0));
    let root = |bench: &Bench| bench.tree.inner.lock().trunk.root.clone();
    while root(&bench).children.len() < 2 || root(&bench).children.iter().any(|child| child.next == root(&bench).end())
    {
        bench.put(3_000, 30_000);
        bench.drain();
    }
    let (run, range, part) = {
        let root = root(&bench);
        let (branch, range) = (root.branches.last().unwrap(), root.children[0].node.range.clone());
        let part = branch.slice.clip(&range).unwrap().unwrap().held_pages();
        (branch.slice.run().clone(), range, part)
    };
    let owned = || run.owned().iter().map(|extent| u64::from(extent.pages)).sum::<u64>();
    let (before, view) = (owned(), bench.tree.view());
    assert!(part > 2, "the first child has {part} pages");
    bench.tree.compact(&range).unwrap();
    bench.drain();
    assert_eq!(owned(), before, "a view keeps its pages");
    drop(view);
    // Both neighbours need the leaf block at their common border.
    assert_eq!(owned(), before - (part - 1));
    let after = root(&bench);
    let waits = after.branches.iter().find(|branch| branch.slice.run().meta().id == run.meta().id).unwrap();
    assert!(!waits.slice.range().overlaps(&range) && waits.weights[0] == 0);
    assert_eq!(waits.bytes, waits.weights.iter().sum::<u64>());
    drop(after);
    bench.check();
}

#[test]
fn a_range_tombstone_over_everything_empties_the_tree() {
    for seed in 0..20 {
        let mut bench = Bench::new(seed);
        for _ in 0..30 + seed {
            bench.put(700, 40_000);
        }
        bench.drain();
        // Some memtables still wait above the leaves, and leaves are merged before the tombstone has reached all of
        // them.
        (0..seed % 4).for_each(|_| bench.put(700, 40_000));
        bench.pack_all();
        let memtable = Memtable::new(0, Arc::new(ChunkPool::new(1)));
        bench.seqno += 1;
        memtable.insert_range(&RangeTombstone { range: KeyRange::all(), seqno: Seqno(bench.seqno) });
        bench.model.clear();
        bench.tree.ingest(SealedBatch::new(Arc::new(memtable), Seqno(bench.seqno)));
        bench.drain();
        let stats = bench.tree.stats();
        assert_eq!(stats.entries, 0, "seed {seed}: {stats:?}");
        bench.check();
    }
}

#[test]
fn deletes_in_key_order_free_their_entries() {
    let mut bench = Bench::new(1);
    // Give the index some data first, so that no memtable is packed as the oldest data of the index.
    bench.feed(700, 40_000, 0);
    bench.drain();
    for round in 0..40u64 {
        let memtable = Memtable::new(0, Arc::new(ChunkPool::new(1)));
        for i in 0..1000u64 {
            let key = format!("l{:09}", round * 1000 + i).into_bytes();
            for kind in [Kind::Put, Kind::Delete] {
                bench.seqno += 1;
                let value: &[u8] = if kind == Kind::Put { &[7; 40] } else { &[] };
                memtable.insert(Entry { key: &key, seqno: Seqno(bench.seqno), kind, value });
            }
        }
        bench.tree.ingest(SealedBatch::new(Arc::new(memtable), Seqno(bench.seqno)));
        bench.drain();
    }
    let stats = bench.tree.stats();
    assert!(stats.tombstones < 10_000, "of 40,000: {stats:?}");
}
