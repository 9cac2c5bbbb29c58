//! Tests of maplets in the trunk.

use super::super::node::{BranchId, Child};
use super::super::rebalance::{RebalanceCounters, Rebalancer, part_of};
use super::super::tree::Claim;
use super::super::trunk::Trunk;
use super::*;
use crate::base::PAGE;
use crate::device::OpenHow;
use crate::run::{Run, RunSlice};
use crate::space::BlockKind;

/// Records the results that a verification reports.
#[derive(Default)]
struct Said {
    pages: u64,
    problems: Vec<crate::Error>,
}

/// Verifies the current root.
fn verify(tree: &Stbe) -> Said {
    let (pin, mut said) = (tree.pin(), Said::default());
    pin.for_each_extent(&mut |extent| said.pages += u64::from(extent.pages));
    pin.check(&mut said).unwrap();
    said
}

impl crate::index::Visitor for Said {
    fn block(&mut self, _: BlockKind, _: u64) {}
    fn entry(&mut self, _: &Entry<'_>) {}
    fn problem(&mut self, error: crate::Error) {
        self.problems.push(error);
    }
}

fn maplets(tree: &Stbe) -> Vec<Arc<Run>> {
    let (mut found, root) = (Vec::<Arc<Run>>::new(), tree.inner.lock().trunk.root.clone());
    root.walk(&mut |node| found.extend(node.maplets().cloned()));
    found.sort_by_key(|maplet| maplet.meta().id);
    found.dedup_by_key(|maplet| maplet.meta().id);
    found
}

/// A tree with maplets in its root, where memtables wait for a flush.
fn routed(seed: u64) -> Bench {
    let mut bench = Bench::new(seed);
    while maplets(&bench.tree).is_empty() || bench.tree.stats().figure("levels") < 3 {
        // Leave out range deletes, which would keep the tree small.
        bench.put(700, 30_000);
        bench.drain();
    }
    bench
}

#[test]
fn maplets_cover_their_runs_and_are_freed_with_them() {
    for seed in 0..3 {
        let mut bench = Bench::new(seed);
        let empty = bench.core.data.stats().allocated_bytes;
        let (mut most, mut made) = (0, 0);
        for round in 0..100 {
            // Use memtables as large as configured, so that some of them wait in the root.
            bench.put(300, 30_000);
            if round % 16 == 15 {
                bench.feed(300, 30_000, 3);
            }
            // Do only a part of the work, so that runs are added and removed while a maplet is made.
            for _ in 0..bench.random.below(30) {
                let budget = 1 + bench.random.below(16 << 10);
                bench.step(budget);
            }
            most = most.max(maplets(&bench.tree).iter().map(|maplet| maplet.meta().keys).max().unwrap_or(0));
            if round % 10 == 9 {
                bench.check();
                let said = verify(&bench.tree);
                assert!(said.problems.is_empty(), "{:?}", said.problems);
            }
        }
        made += bench.tree.stats().figure("maplet_bytes");
        assert!(most > 500 && made > 0, "seed {seed}: {made} bytes of maplets, the largest of {most} entries");
        bench.tree.clear();
        for _ in 0..3 {
            bench.core.data.begin_checkpoint();
            bench.core.data.finish_checkpoint().unwrap();
        }
        let said = verify(&bench.tree);
        assert_eq!(
            (said.pages, bench.core.data.stats().allocated_bytes),
            (0, empty),
            "maplets are freed with their runs"
        );
    }
}

#[test]
fn a_maplet_reduces_filter_reads() {
    let bench = routed(3);
    let asked = |tree: &Stbe| {
        let mut asked = (0, 0);
        for i in 0..2_000u64 {
            // Look up keys between existing ones, so that no lookup ends early.
            let key = format!("k{:07}x", i * 15).into_bytes();
            let view = tree.view();
            let mut lookup = Lookup::new(crate::base::KeyCodec::Plain, &key, Seqno(bench.seqno));
            let (mut probe, mut block) = (view.probe(&lookup), None);
            while let Step::Need(request) = probe.step(block.take(), &mut lookup).unwrap() {
                block = request.load().unwrap();
            }
            asked = (asked.0 + lookup.tally.filters, asked.1 + lookup.tally.false_positives);
        }
        asked
    };
    let with = asked(&bench.tree);
    let bare = unrouted(&bench.tree.inner.lock().trunk.root);
    let mut inner = bench.tree.inner.lock();
    let trunk = Trunk { root: bare, ..inner.trunk.clone() };
    bench.tree.publish(&mut inner, trunk, &[]);
    drop(inner);
    let without = asked(&bench.tree);
    assert!(with.0 < without.0, "{with:?} with maplets, {without:?} without");
}

#[test]
fn an_idle_tree_merges_maplets_to_few_filters_per_path() {
    let mut bench = routed(4);
    let filters = |bench: &Bench| {
        let root = bench.tree.inner.lock().trunk.root.clone();
        let asked = root.branches.iter().map(|branch| match &branch.route {
            Some(route) => route.maplet.meta().id,
            None => branch.slice.run().meta().id,
        });
        let mut asked: Vec<_> = asked.collect();
        asked.dedup();
        asked.len()
    };
    // Make at least two filters of about equal size.
    while filters(&bench) < 3 {
        bench.put(300, 30_000);
        bench.drain();
    }
    let before = filters(&bench);
    bench.tree.on_idle();
    assert!(before > 1 && bench.tree.debt().total() > 0, "{before} filters in the root");
    bench.drain();
    let after = filters(&bench);
    assert!(after < before, "{after} of {before} filters in the root");
    bench.check();
    // The next memtable ends the idle state.
    bench.put(300, 30_000);
    bench.drain();
    assert!(!bench.tree.inner.lock().routes.rest(false), "it was still idle");
}

/// A copy of the trunk without maplet references.
fn unrouted(node: &Arc<Node>) -> Arc<Node> {
    let mut bare = node.edit();
    bare.branches.iter_mut().for_each(|branch| branch.route = None);
    bare.children.iter_mut().for_each(|child| child.node = unrouted(&child.node));
    Arc::new(bare)
}

#[test]
fn an_unreadable_maplet_only_costs_time() {
    let mut bench = routed(4);
    let cut = bench.tree.begin_checkpoint(Seqno::MAX).write(&Stripes::default).unwrap();
    let open = || bench.device.open("data", OpenHow { write: true, ..Default::default() }).unwrap();
    for maplet in maplets(&bench.tree) {
        for extent in maplet.owned() {
            let page = vec![0x5A; PAGE * extent.pages as usize];
            let mut buf = crate::device::AlignedBuf::zeroed(extent.pages as usize);
            buf.copy_from_slice(&page);
            crate::device::write_all_at(&*open(), extent.start.offset(), &buf).unwrap();
        }
    }
    let data = DataFile::open(open(), StoreId([3; 16])).unwrap();
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
    bench.tree = open_again(core.clone(), Some(operator()), &cut.root).unwrap();
    mark(&core, &bench.tree).unwrap();
    let said = verify(&bench.tree);
    assert!(said.problems.iter().any(|error| error.is_corruption()), "verification reports it");
    let (model, at) = (bench.model.clone(), Seqno(bench.seqno));
    for key in model.keys().take(500) {
        assert_eq!(get(&bench.tree, key, at), model.get(key).copied());
    }
    // Later runs get maplets again, without the unreadable ones.
    for _ in 0..30 {
        bench.feed(700, 30_000, 3);
        bench.pack_all();
        while !bench.step(1 << 20).idle {}
    }
    bench.check();
}

/// Runs of puts with overlapping key ranges.
fn slices(bench: &mut Bench, count: usize) -> Vec<Arc<RunSlice>> {
    for _ in 0..count {
        bench.put(200, 3_000);
        bench.pack_all();
    }
    let root = bench.tree.inner.lock().trunk.root.clone();
    assert!(root.is_leaf() && root.branches.len() == count);
    root.branches.iter().map(|branch| branch.slice.clone()).collect()
}

/// Publishes a trunk made by a test.
fn publish(bench: &Bench, root: Node) {
    root.assert_valid();
    let mut inner = bench.tree.inner.lock();
    let trunk = Trunk { root: Arc::new(root), ..inner.trunk.clone() };
    bench.tree.publish(&mut inner, trunk, &[]);
}

/// Two neighbouring empty leaves.
fn leaves() -> Vec<Child> {
    let ranges = [KeyRange::new("", "k0001500"), KeyRange::new("k0001500", "")];
    ranges.map(|range| Child { node: Arc::new(Node::new(range, 0)), next: 0 }).into()
}

/// Runs steps until no work is left.
fn drain_within(bench: &Bench, most: usize) {
    assert!((0..most).any(|_| bench.step(1 << 20).idle), "the work does not end:\n{}", described(&bench.tree));
    assert_eq!(bench.tree.debt().total(), 0, "debt without work");
}

fn described(tree: &Stbe) -> String {
    let mut out = String::new();
    tree.describe(None, &mut out);
    out
}

#[test]
fn a_run_with_two_branches_in_a_node_has_one_value() {
    let mut bench = Bench::new(3);
    let all = slices(&mut bench, 6);
    let mut root = Node::new(KeyRange::all(), 1);
    root.children = leaves();
    let add = |bench: &Bench, node: &mut Node, slice: &Arc<RunSlice>| {
        node.branches.push(node.branch(bench.tree.branch_id(), true, slice.clone(), u64::MAX).unwrap());
    };
    all[..2].iter().for_each(|slice| add(&bench, &mut root, slice));
    publish(&bench, root);
    drain_within(&bench, 100);
    // Split a node that has a maplet, merge its halves again, and add four more runs.
    let root = bench.tree.inner.lock().trunk.root.clone();
    assert!(root.branches.iter().all(|branch| branch.route.is_some()));
    let counters = RebalanceCounters::default();
    let rebalancer = Rebalancer {
        shape: SHAPE,
        ids: &bench.tree.branch_ids,
        counters: &counters,
        busy: &[],
        merging: &[],
        keep: &Stripes::default(),
        forced: &[],
        pieces: None,
    };
    let mut joined = rebalancer.join(&part_of(&root, 0, 1).unwrap(), &part_of(&root, 1, 2).unwrap());
    assert!(joined.branches.len() == 4 && joined.maplets().count() == 1);
    all[2..].iter().for_each(|slice| add(&bench, &mut joined, slice));
    publish(&bench, joined);
    drain_within(&bench, 100);
    bench.tree.on_idle();
    drain_within(&bench, 100);
    for (key, value) in &bench.model {
        assert_eq!(get(&bench.tree, key, Seqno(bench.seqno)), Some(*value), "{}", described(&bench.tree));
    }
}

#[test]
fn maplets_of_nodes_that_share_runs_are_not_remade_forever() {
    for (width, left, right, count) in
        [(2, &[0, 1][..], &[1, 2][..], 3), (4, &[0, 2, 3, 5], &[1, 2, 4, 5], 6), (2, &[0, 1, 2, 3], &[1, 2, 3, 0], 4)]
    {
        let mut bench = Bench::new(3);
        let all = slices(&mut bench, count);
        bench.tree.shape.maplet_width = width;
        let mut root = Node::new(KeyRange::all(), 2);
        for (leaf, list) in leaves().into_iter().zip([left, right]) {
            let mut node = Node::new(leaf.node.range.clone(), 1);
            node.children = vec![leaf];
            for &i in list {
                let slice = all[i].clip(&node.range).unwrap().unwrap();
                node.branches.push(node.branch(BranchId(1000 + i as u64), false, slice, u64::MAX).unwrap());
            }
            root.children.push(Child { node: Arc::new(node), next: 0 });
        }
        publish(&bench, root);
        drain_within(&bench, 400);
        assert!(bench.tree.stats().figure("maplets") >= 2);
        bench.tree.on_idle();
        drain_within(&bench, 400);
    }
}

#[test]
fn maplet_work_after_scattered_writes_ends() {
    for (seed, fanout) in [(0, 8), (1, 8), (2, 4)] {
        let mut bench = Bench::new(seed);
        bench.tree.shape = Shape { fanout, memtable_bytes: 4 << 10, leaf_bytes: 12 << 10, ..SHAPE };
        for round in 0..250 {
            let memtable = Memtable::new(0, Arc::new(ChunkPool::new(1)));
            let (span, from) = ([30_000, 12_000, 4_000][bench.random.below(3) as usize], bench.random.below(30_000));
            for _ in 0..200 {
                bench.seqno += 1;
                let key = format!("k{:07}", (from + bench.random.below(span)) % 30_000).into_bytes();
                let amount = bench.seqno as i64;
                bench.model.insert(key.clone(), amount);
                let value = amount.to_le_bytes();
                memtable.insert(Entry { key: &key, seqno: Seqno(bench.seqno), kind: Kind::Put, value: &value });
            }
            if round % 11 == 10 {
                let from = bench.random.below(25_000);
                let range = KeyRange::new(format!("k{from:07}"), format!("k{:07}", from + 7_000));
                bench.seqno += 1;
                bench.model.retain(|key, _| !range.contains(key));
                memtable.insert_range(&RangeTombstone { range, seqno: Seqno(bench.seqno) });
            }
            bench.tree.ingest(SealedBatch::new(Arc::new(memtable), Seqno(bench.seqno)));
            drain_within(&bench, 1_000);
            if round % 7 == 6 {
                bench.tree.on_idle();
                drain_within(&bench, 1_000);
            }
        }
        bench.check();
        assert!(bench.tree.stats().figure("maplet_bytes") > 0);
    }
}

#[test]
fn a_maplet_without_remaining_runs_leaves_no_debt() {
    let mut bench = Bench::new(3);
    let all = slices(&mut bench, 2);
    let mut root = Node::new(KeyRange::all(), 1);
    root.children = leaves();
    for slice in &all {
        root.branches.push(root.branch(bench.tree.branch_id(), true, slice.clone(), u64::MAX).unwrap());
    }
    publish(&bench, root);
    let stripes = bench.stripes();
    let Some(Claim::MapletRef(job)) = bench.tree.claim(&move || stripes.clone()).unwrap() else {
        panic!("a maplet waits")
    };
    // Another thread compacts both runs to the bottom while the job is parked.
    bench.tree.compact(&KeyRange::all()).unwrap();
    while !bench.step(1 << 20).idle {}
    bench.tree.step_route(job, 1 << 30).unwrap();
    drain_within(&bench, 100);
    assert_eq!(bench.tree.stats().figure("maplets"), 0);
    bench.check();
}
