//! Tests of caching: which blocks of a run enter the pool, when they enter, and when they leave.

use super::*;
use crate::base::PAGE;
use crate::blocks::BlockSource;
use crate::device::AlignedBuf;
use crate::pool::Keep;
use crate::space::BlockKind;

/// A run with tens of inner and filter blocks.
fn large(bench: &Bench, id: u64, cached: bool) -> Arc<RunSlice> {
    let mut builder = RunBuilder::new(bench.data.clone(), OwnerId(id), 8 << 20);
    if cached {
        builder = builder.cached_in(bench.pool.clone());
    }
    for i in 0..60_000u64 {
        let key = format!("user{:060}", i * 2);
        builder.push(Entry { key: key.as_bytes(), seqno: Seqno(i + 1), kind: Kind::Put, value: &[7; 40] }).unwrap();
    }
    bench.open(builder.finish().unwrap().unwrap())
}

/// Looks up the key that contains the number `i`. Returns whether the key was found.
fn probe(slice: &RunSlice, i: u64) -> bool {
    probe_leaves(slice, i).0
}

/// Looks up the keys that contain these numbers; none of the keys exists. Returns the number of leaves that were
/// searched.
fn misses(slice: &RunSlice, numbers: impl Iterator<Item = u64>) -> u64 {
    let leaves = numbers.map(|i| match probe_leaves(slice, i) {
        (true, _) => panic!("the key does not exist"),
        (false, leaves) => leaves,
    });
    leaves.sum()
}

/// Looks up the key that contains the number `i`. Returns whether the key was found, and the number of leaves that were
/// searched.
fn probe_leaves(slice: &RunSlice, i: u64) -> (bool, u64) {
    let mut leaves = 0;
    let key = format!("user{i:060}").into_bytes();
    let mut probe = RunProbe::new(crate::base::key_hash(&key));
    let mut block = None;
    loop {
        match probe.step(slice, &key, block.take()).unwrap() {
            ProbeStep::Need(addr, kind) => {
                leaves += u64::from(kind == BlockKind::RunLeaf);
                block = Some(slice.run().load(addr, kind).unwrap());
            }
            ProbeStep::Found(_) => return (true, leaves),
            ProbeStep::Done => return (false, leaves),
        }
    }
}

/// The number of pages above the leaves.
fn above(slice: &RunSlice) -> u64 {
    let above = slice.run().meta().above_leaves();
    above.end - above.start
}

#[test]
fn blocks_above_the_leaves_are_read_in_groups() {
    let bench = Bench::new();
    let slice = large(&bench, 1, false);
    assert!(above(&slice) > 20, "{}", above(&slice));
    let before = bench.data.stats().reads;
    let leaves = misses(&slice, (0..2_000).map(|i| i * 60 + 1));
    let reads = bench.data.stats().reads - before;
    assert!(reads.saturating_sub(leaves) <= 6, "{reads} reads, {leaves} of leaves");
}

#[test]
fn neighbours_are_not_read_into_a_full_pool() {
    let bench = Bench { pool: Arc::new(Pool::new(16 * (PAGE + 224))), ..Bench::new() };
    let slice = large(&bench, 1, false);
    let leaf = AlignedBuf::zeroed(1);
    for page in 0..16 {
        bench.pool.insert(OwnerId(9), BlockAddr { page: PageNo(page), pages: 1 }, Keep::Short, &leaf);
    }
    let before = bench.data.stats();
    assert!(probe(&slice, 4_000));
    let after = bench.data.stats();
    assert_eq!(after.read_bytes - before.read_bytes, (after.reads - before.reads) * PAGE as u64);
}

#[test]
fn a_damaged_neighbour_does_not_fail_the_requested_block() {
    let bench = Bench::new();
    let slice = large(&bench, 1, false);
    let meta = slice.run().meta().clone();
    // Damage a page of the filter, and an inner block that is read in the same group as the root.
    for position in [meta.filter.first + 1, meta.leaf_pages] {
        let addr = slice.run().address(position, 1).unwrap();
        bench.data.write(addr.page, AlignedBuf::from_bytes(&[0x5a; PAGE])).unwrap();
    }
    let root = slice.run().load(meta.root, BlockKind::RunInner).unwrap();
    assert_eq!(root.len(), meta.root.bytes());
    let bad = slice.run().address(meta.leaf_pages, 1).unwrap();
    assert!(slice.run().load(bad, BlockKind::RunInner).unwrap_err().is_corruption(), "damage is reported");
    let page = slice.run().address(meta.filter.first, 1).unwrap();
    slice.run().load(page, BlockKind::RunFilter).unwrap();
    let bad = slice.run().address(meta.filter.first + 1, 1).unwrap();
    assert!(slice.run().load(bad, BlockKind::RunFilter).unwrap_err().is_corruption());
}

#[test]
fn written_blocks_are_cached_and_leave_the_pool_with_their_run() {
    let bench = Bench::new();
    let slice = large(&bench, 1, true);
    let before = bench.data.stats().reads;
    let leaves = misses(&slice, (0..2_000).map(|i| i * 60 + 1));
    let reads = bench.data.stats().reads - before;
    assert!(reads <= leaves, "{reads} reads, {leaves} of leaves");
    let blocks = bench.pool.stats().blocks;
    assert!(blocks >= above(&slice), "{blocks}");
    let left = blocks - above(&slice);
    drop(slice);
    assert_eq!(bench.pool.stats().blocks, left, "only leaves stay, until they are evicted");
}
