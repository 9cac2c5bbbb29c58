//! Tests of maplets in the trunk.

use super::*;
use crate::device::OpenHow;
use crate::space::BlockKind;

/// What a verification says.
#[derive(Default)]
struct Said {
    extents: u64,
    problems: Vec<crate::Error>,
}

impl Visitor for Said {
    fn extent(&mut self, extent: Extent) {
        self.extents += u64::from(extent.pages);
    }
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

/// A tree whose root has maplets: memtables wait there for a flush.
fn routed(seed: u64) -> Bench {
    let mut bench = Bench::new(seed);
    while maplets(&bench.tree).is_empty() || bench.tree.stats().levels < 3 {
        bench.feed(700, 30_000, 3);
        bench.drain();
    }
    bench
}

#[test]
fn maplets_come_and_go_and_answer_for_their_runs() {
    for seed in 0..3 {
        let mut bench = Bench::new(seed);
        let empty = bench.core.data.stats().allocated_bytes;
        let (mut most, mut made) = (0, 0);
        for round in 0..100 {
            // As large as the tree takes a memtable to be: some of them wait in the root.
            bench.put(300, 30_000);
            if round % 16 == 15 {
                bench.feed(300, 30_000, 3);
            }
            // Not all of it, so that runs come and go while a maplet is made.
            for _ in 0..bench.random.below(30) {
                let budget = 1 + bench.random.below(16 << 10);
                bench.step(budget);
            }
            most = most.max(maplets(&bench.tree).iter().map(|maplet| maplet.meta().keys).max().unwrap_or(0));
            if round % 10 == 9 {
                bench.check();
                let mut said = Said::default();
                bench.tree.verify(&mut said).unwrap();
                assert!(said.problems.is_empty(), "{:?}", said.problems);
            }
        }
        made += bench.tree.stats().routed_bytes;
        assert!(most > 500 && made > 0, "seed {seed}: {made} bytes of maplets, the largest of {most} entries");
        bench.tree.clear();
        for _ in 0..3 {
            bench.core.data.begin_checkpoint();
            bench.core.data.finish_checkpoint().unwrap();
        }
        let mut said = Said::default();
        bench.tree.verify(&mut said).unwrap();
        assert_eq!(
            (said.extents, bench.core.data.stats().allocated_bytes),
            (0, empty),
            "maplets are freed with their runs"
        );
    }
}

#[test]
fn a_maplet_saves_questions() {
    let bench = routed(3);
    let asked = |tree: &Stbe| {
        let mut asked = (0, 0);
        for i in 0..2_000u64 {
            // Between the keys, so that nothing stops on the way.
            let key = format!("k{:07}x", i * 15).into_bytes();
            let view = tree.view();
            let mut lookup = Lookup::new(&key, Seqno(bench.seqno));
            let (mut probe, mut block) = (view.probe(&lookup), None);
            while let Step::Need(run, addr, kind) = probe.step(block.take(), &mut lookup).unwrap() {
                block = Some(run.load(addr, kind).unwrap());
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

/// The same trunk without routes.
fn unrouted(node: &Arc<Node>) -> Arc<Node> {
    let mut bare = node.edit();
    bare.branches.iter_mut().for_each(|branch| branch.route = None);
    bare.children.iter_mut().for_each(|child| child.node = unrouted(&child.node));
    Arc::new(bare)
}

#[test]
fn an_unreadable_maplet_costs_time_only() {
    let mut bench = routed(4);
    let cut = bench.tree.cut().unwrap();
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
    let core = Core { data, pool: Arc::new(Pool::new(256 << 10)), ids: Arc::new(IdSource::new(1 << 20)), mend: true };
    bench.tree = Stbe::open(core, SHAPE, Some(operator()), &cut.root).unwrap();
    let mut said = Said::default();
    bench.tree.verify(&mut said).unwrap();
    assert!(said.problems.iter().any(|error| error.is_corruption()), "verification sees it");
    let (model, at) = (bench.model.clone(), Seqno(bench.seqno));
    for key in model.keys().take(500) {
        assert_eq!(get(&bench.tree, key, at), model.get(key).copied());
    }
    // What comes later is routed again, past the unreadable ones.
    for _ in 0..30 {
        bench.feed(700, 30_000, 3);
        bench.pack_all();
        while !bench.step(1 << 20).idle {}
    }
    bench.check();
}
