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
    drop(slice);
    bench.pool.forget_all();
    assert_eq!(bench.pool.stats().blocks, 0, "a dropped run leaves no block in the pool");
}

/// Reads a range like a scan; returns the number of entries, and the pages that were read from the device.
fn scan_pages(bench: &Bench, slice: &Arc<RunSlice>, range: &KeyRange, reverse: bool, first: u32) -> (usize, u64) {
    let before = bench.data.stats().read_bytes;
    let entries = scan(slice, range, reverse, ReadAhead::Expecting(first)).len();
    (entries, (bench.data.stats().read_bytes - before) / PAGE as u64)
}

fn keys(range: std::ops::Range<u64>) -> KeyRange {
    KeyRange::new(format!("user{:060}", range.start * 2), format!("user{:060}", range.end * 2))
}

#[test]
fn a_scan_reads_no_page_twice_and_none_beyond_its_bound() {
    let bench = Bench::new();
    let slice = large(&bench, 1, false);
    misses(&slice, (0..2_000).map(|i| i * 60 + 1));
    // The inner blocks are in the pool now, and so are many leaves. A run without cached leaves has the same shape.
    let leaves = slice.run().meta().leaf_pages;
    for page in 0..leaves {
        bench.pool.forget(OwnerId(1), slice.run().address(page, 1).unwrap().page);
    }
    let rows = 60_000 / leaves + 1;
    for (at, reverse) in [(0, false), (1, true), (2, false), (3, true)] {
        for (len, first) in [(1, 1), (1, 64), (100, 1), (100, 64), (1_000, 3), (9_000, 64)] {
            let from = at * 12_000 + len;
            let range = keys(from..from + len);
            let (entries, read) = scan_pages(&bench, &slice, &range, reverse, first);
            assert_eq!(entries as u64, len);
            assert!(read <= len.div_ceil(rows - 2) + 2, "{read} pages for {len} of {rows} entries a page, {first}");
            let (entries, again) = scan_pages(&bench, &slice, &range, reverse, first);
            assert_eq!((entries as u64, again), (len, 0), "the pool has room for the leaves");
            for page in 0..leaves {
                bench.pool.forget(OwnerId(1), slice.run().address(page, 1).unwrap().page);
            }
        }
    }
}

#[test]
fn leaves_leave_the_pool_when_no_slice_spans_them() {
    let bench = Bench::new();
    let slice = large(&bench, 1, false);
    assert_eq!(scan(&slice, &KeyRange::all(), false, ReadAhead::Scan).len(), 60_000);
    let leaves = slice.run().meta().leaf_pages;
    let pooled = |run: &Run| {
        let page = |at| run.address(at, 1).unwrap().page;
        (0..leaves).filter(|at| bench.pool.glance(OwnerId(1), page(*at)).is_some()).count() as u64
    };
    assert_eq!(pooled(slice.run()), leaves, "the pool has room for all leaves");
    let low = slice.clip(&keys(0..6_000)).unwrap().unwrap();
    let run = slice.run().clone();
    drop(slice);
    bench.pool.forget_all();
    assert_eq!(pooled(&run), low.held_pages(), "the leaves of the clipped slice stay");
}
