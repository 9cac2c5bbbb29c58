//! Tests of the map of large values: its contents are compared with [`RangeSet`], and its cost and its form on disk are
//! checked.

use std::cell::Cell;
use std::collections::HashSet;
use std::sync::Arc;

use super::layout::MAX_RANGES;
use super::node::Node;
use super::{BlobMap, Fanout, MapRoot};
use crate::base::codec::{Reader, put_varint};
use crate::base::{Entry, Extent, KeyRange, Kind, PAGE, PageNo, Result, Seqno};
use crate::device::{AlignedBuf, MemDevice};
use crate::index::runs::Extents;
use crate::index::stored::Stored;
use crate::index::testing::{Bench, Random, core};
use crate::index::{Core, Index, RootRecord, SealedBatch};
use crate::memtable::{ChunkPool, Memtable};
use crate::pool::Pool;
use crate::resolve::Stripes;
use crate::space::ranges::RangeSet;
use crate::space::{BLOCK_HEADER, BlockKind, DataFile, Prefetch};

thread_local! {
    /// The number of ranges that iterations on this thread have visited.
    pub(in crate::index) static WALKED: Cell<u64> = const { Cell::new(0) };
}

const MILLION: u64 = 1_000_000;

fn empty(fanout: Fanout) -> BlobMap {
    BlobMap::new(Arc::new(Pool::new(1 << 20)), fanout)
}

/// A map of `count` ranges of one page with a gap of one page between them.
fn scattered(pool: &Arc<Pool>, count: u64) -> BlobMap {
    let mut map = BlobMap::new(pool.clone(), Fanout::PAGE);
    (0..count).for_each(|i| map.insert(100 + 2 * i, 1));
    map
}

fn nodes(map: &BlobMap) -> HashSet<*const Node> {
    let mut nodes = HashSet::new();
    if let Some(root) = &map.root {
        root.walk(&mut |node| {
            nodes.insert(std::ptr::from_ref(node));
        });
    }
    nodes
}

fn assert_same(map: &BlobMap, set: &RangeSet) {
    assert_eq!(map.problem(), None);
    assert!(map.iter().eq(set.iter()), "{:?} instead of {set:?}", map.iter().collect::<Vec<_>>());
    assert_eq!((map.len(), map.is_empty()), (set.len() as u64, set.is_empty()));
    assert_eq!(map.pages(), set.iter().map(|(_, len)| len).sum::<u64>());
}

/// The same core after reopening the file: no page is marked as used yet.
fn reopened(core: &Core, device: &MemDevice, repair: bool) -> Core {
    let data = DataFile::open(DataFile::open_raw(device, true).unwrap(), core.data.store_id()).unwrap();
    Core { data, repair, ..core.clone() }
}

fn load(core: &Core, root: MapRoot) -> Result<BlobMap> {
    BlobMap::load(core, root, &mut Prefetch::new(core.data.clone()))
}

/// Marks the pages of the map's nodes and of the large values as used, as opening a store does.
fn mark(map: &BlobMap, data: &DataFile) -> Result<()> {
    let mut result = Ok(());
    Extents::new(&mut |extent| {
        if result.is_ok() {
            result = data.mark(extent);
        }
    })
    .large_values(&map.pin());
    result
}

#[test]
fn random_changes_match_a_range_set() {
    let fanouts = [Fanout::new(4), Fanout::new(5), Fanout::new(9), Fanout::PAGE];
    for (seed, fanout) in (1..).zip(fanouts.into_iter().chain(fanouts.map(Fanout::with_bitmaps))) {
        let (mut random, space) = (Random(seed), 3000);
        let (mut map, mut set) = (empty(fanout), RangeSet::default());
        let mut versions: Vec<(BlobMap, RangeSet)> = Vec::new();
        let mut most_levels = 0;
        for step in 0..12_000u64 {
            let (start, len) = (random.below(space), 1 + random.below(6));
            // The map repeatedly grows to a dense set and shrinks to almost nothing.
            let grows = step / 2000 % 2 == 0;
            assert_eq!(map.contains(start, len), set.contains(start, len));
            assert_eq!(map.overlaps(start, len), set.overlaps(start, len));
            if grows && !set.overlaps(start, len) {
                map.insert(start, len);
                set.insert(start, len);
            } else if !grows {
                // Remove a part of a range at either end or in the middle, or remove all of the range.
                let at = random.below(1 + set.len() as u64) as usize;
                let found = set.iter().nth(at);
                if let Some((start, len)) = found {
                    let from = random.below(len);
                    let part = 1 + random.below(len - from);
                    map.remove(start + from, part);
                    set.remove(start + from, part);
                }
            }
            most_levels = most_levels.max(map.levels());
            if step % 97 == 0 {
                assert_same(&map, &set);
                versions.push((map.clone(), set.clone()));
            }
        }
        let least = if fanout.ranges == Fanout::PAGE.ranges { 1 } else { 2 };
        assert!(most_levels >= least, "{most_levels} levels of {fanout:?}");
        // No older version has changed.
        versions.iter().for_each(|(map, set)| assert_same(map, set));
        let all: Vec<(u64, u64)> = map.iter().collect();
        all.iter().for_each(|&(start, len)| map.remove(start, len));
        assert_same(&map, &RangeSet::default());
        assert_eq!(map.levels(), 0);
    }
}

#[test]
fn another_fanout_takes_effect_with_the_next_change() {
    let mut map = scattered(&Arc::new(Pool::new(1 << 20)), 900);
    assert_eq!(map.levels(), 1);
    map = map.with_fanout(Fanout::new(4));
    map.insert(2001, 1);
    map.remove(100, 1);
    assert_eq!(map.problem(), None);
    assert!(map.levels() > 3 && map.len() == 900, "{} levels, {} ranges", map.levels(), map.len());
}

#[test]
fn a_leaf_with_long_numbers_is_split_by_bytes() {
    let mut map = empty(Fanout::PAGE);
    let mut random = Random(7);
    for i in 0..3000 {
        // Use distant pages, of which the gaps take 7 bytes and the lengths up to 6 bytes each.
        map.insert((i << 36) + random.below(1 << 20), 1 + (1 << 35) - (1 << 20) - random.below(1 << 18));
    }
    assert_eq!((map.problem(), map.len()), (None, 3000));
    let core = core(&MemDevice::new());
    assert!(map.store(&core).is_ok(), "each node fits its page");
}

#[test]
#[should_panic(expected = "in the map already")]
fn an_overlapping_insert_panics() {
    let mut map = empty(Fanout::PAGE);
    map.insert(10, 5);
    map.insert(14, 2);
}

#[test]
#[should_panic(expected = "the removed range is not in the map")]
fn a_remove_of_a_missing_range_panics() {
    let mut map = empty(Fanout::PAGE);
    map.insert(10, 5);
    map.remove(14, 2);
}

/// The memory and the number of the nodes of `map` that are not in `before`.
fn copied(map: &BlobMap, before: &HashSet<*const Node>) -> (usize, usize) {
    let (mut count, mut bytes) = (0, 0);
    map.root.as_ref().expect("not empty").walk(&mut |node| {
        if !before.contains(&std::ptr::from_ref(node)) {
            count += 1;
            bytes += node.memory();
        }
    });
    (count, bytes)
}

#[test]
fn a_change_of_a_million_ranges_copies_one_path() {
    let pool = Arc::new(Pool::new(1 << 20));
    let map = scattered(&pool, MILLION);
    assert_eq!((map.len(), map.levels()), (MILLION, 3));
    let before = nodes(&map);
    let mut random = Random(11);
    let (mut most, mut sum) = ((0, 0), 0);
    for round in 0..200 {
        let mut next = map.clone();
        let at = 100 + 2 * random.below(MILLION);
        match round % 3 {
            // Pages next to existing ranges are always joined with them. This page lies between two ranges and joins
            // both.
            0 if at + 2 < 100 + 2 * MILLION => next.insert(at + 1, 1),
            _ => next.remove(at, 1),
        }
        let (count, bytes) = copied(&next, &before);
        most = (most.0.max(count), most.1.max(bytes));
        sum += count;
    }
    assert!(most.0 <= 2 * 3 && sum <= 200 * 4, "at most {} nodes, {sum} in all", most.0);
    assert!(most.1 <= 4 * 20 * MAX_RANGES, "{} bytes", most.1);
}

#[test]
fn later_changes_of_one_clone_copy_no_node_again() {
    let map = scattered(&Arc::new(Pool::new(1 << 20)), 100_000);
    let mut next = map.clone();
    next.remove(50_000, 1);
    let before = nodes(&next);
    (0..100).for_each(|i| next.remove(50_002 + 2 * i, 1));
    assert_eq!(nodes(&next), before, "all of them are in the leaf that was copied");
    assert_eq!((map.len(), next.len()), (100_000, 99_899));
}

#[test]
fn a_checkpoint_after_scattered_changes_writes_their_paths() {
    let core = core(&MemDevice::new());
    let mut map = scattered(&core.pool, MILLION);
    let written = |map: &BlobMap| {
        let before = core.data.stats().root_bytes;
        map.store(&core).unwrap();
        (core.data.stats().root_bytes - before) / PAGE as u64 / 2
    };
    assert_eq!(written(&map), nodes(&map).len() as u64);
    assert_eq!(written(&map), 0, "nothing has changed");
    let mut random = Random(5);
    for changes in [1, 10, 100] {
        let mut next = map.clone();
        (0..changes).for_each(|_| {
            let at = 100 + 2 * random.below(MILLION);
            if next.contains(at, 1) {
                next.remove(at, 1);
            }
        });
        let blocks = written(&next);
        assert!(blocks <= changes * u64::from(next.levels()), "{blocks} nodes for {changes} changes");
        map = next;
    }
    assert_eq!(map.problem(), None);
}

#[test]
fn bitmaps_keep_the_map_of_a_large_tree_small() {
    // Ten gigabytes of leaves of two pages. A quarter of the leaves was moved behind the others.
    let (core, leaves) = (core(&MemDevice::new()), 1_300_000);
    let sizes = [Fanout::PAGE, Fanout::PAGE.with_bitmaps()].map(|fanout| {
        let mut map = BlobMap::new(core.pool.clone(), fanout);
        let mut random = Random(3);
        map.insert(1000, 2 * leaves);
        for i in 0..leaves / 4 {
            let old = 1000 + 2 * random.below(leaves);
            if map.contains(old, 2) {
                map.remove(old, 2);
                map.insert(1000 + 2 * (leaves + i), 2);
            }
        }
        assert_eq!(map.problem(), None);
        let (held, written) = (core.pool.held(), core.data.stats().root_bytes);
        map.store(&core).unwrap();
        (held, (core.data.stats().root_bytes - written) / 2)
    });
    let [ranges, bitmaps] = sizes;
    assert!(bitmaps.1 < 500_000 && bitmaps.1 * 2 < ranges.1, "{sizes:?}");
    assert!(bitmaps.0 < 600_000 && bitmaps.0 * 4 < ranges.0, "{sizes:?}");
}

#[test]
fn a_hostile_bitmap_is_refused() {
    let device = MemDevice::new();
    let core = core(&device);
    let mut map = BlobMap::new(core.pool.clone(), Fanout::new(4).with_bitmaps());
    [300, 305, 310, 312, 383].into_iter().for_each(|page| map.insert(page, 1));
    let root = map.store(&core).unwrap();
    let stored = map.root.as_ref().unwrap().stored().unwrap();
    let words = [[0u8; 8].as_slice(), &[2, 0, 0, 0, 0, 0, 0, 0], &[0xff; 8]];
    for (base, word) in (0..300u64).flat_map(|base| words.map(|word| (base, word))) {
        let mut body = vec![0, 0];
        put_varint(&mut body, base);
        body.push(1);
        body.extend_from_slice(word);
        let mut block = AlignedBuf::from_bytes(&[0; PAGE]);
        block[BLOCK_HEADER..BLOCK_HEADER + 4].copy_from_slice(&(body.len() as u32).to_le_bytes());
        block[BLOCK_HEADER + 4..BLOCK_HEADER + 4 + body.len()].copy_from_slice(&body);
        for addr in stored.copies.0 {
            core.data.seal_block(&mut block, addr, stored.id, BlockKind::LargeValueMap);
            block = core.data.write(addr.page, block).unwrap();
        }
        let error = load(&reopened(&core, &device, true), root).err().expect("other sums than the root has");
        assert!(error.is_corruption(), "{error}");
    }
}

#[test]
fn a_long_range_beside_a_bitmap_copies_no_neighbour() {
    let mut map = empty(Fanout::PAGE.with_bitmaps());
    // More ranges than a list may have, over the most pages of a bitmap, and a long range that grows behind them.
    (0..8000).for_each(|i| map.insert(64 + 4 * i, 1));
    map.insert(100_000, 10);
    for i in 0..20 {
        let before = nodes(&map);
        let mut next = map.clone();
        next.insert(100_010 + i, 1);
        let (count, bytes) = copied(&next, &before);
        assert!(count <= 2 && bytes < 2000, "{count} nodes, {bytes} bytes");
        map = next;
    }
    assert_eq!((map.problem(), map.len()), (None, 8001));
}

#[test]
fn memory_is_charged_to_the_pool_while_a_version_needs_it() {
    let pool = Arc::new(Pool::new(1 << 20));
    let map = scattered(&pool, 10_000);
    let one = pool.held();
    assert!((10_000 * 16..10_000 * 50).contains(&one), "{one}");
    let mut next = map.clone();
    next.remove(100, 1);
    let both = pool.held();
    assert!(both > one && both < one + one / 4, "{one} {both}");
    drop(map);
    assert!(pool.held() < both);
    drop(next);
    assert_eq!(pool.held(), 0);
}

#[test]
fn a_stored_map_is_loaded_and_only_changed_nodes_are_rewritten() {
    let device = MemDevice::new();
    let core = core(&device);
    let mut map = BlobMap::new(core.pool.clone(), Fanout::new(5));
    let mut random = Random(9);
    // Use pages that the file has allocated, so that they can be marked as used.
    let extents: Vec<Extent> = (0..400).map(|_| core.data.alloc(1 + random.below(3) as u32).unwrap()).collect();
    let chosen: Vec<&Extent> = extents.iter().filter(|_| random.below(2) == 0).collect();
    chosen.iter().for_each(|extent| map.insert(extent.start.0, extent.pages.into()));
    assert!(map.levels() > 2);
    let root = map.store(&core).unwrap();
    assert_eq!(map.store(&core).unwrap(), root);

    let again = reopened(&core, &device, true);
    let reads = again.data.stats().reads;
    let loaded = load(&again, root).unwrap();
    let both = 2 * nodes(&map).len() as u64;
    assert_eq!(again.data.stats().reads - reads, both, "both copies of each node, once");
    assert!(loaded.iter().eq(map.iter()) && loaded.problem().is_none());
    let is_taken = |extent: &&Extent| again.data.is_taken(**extent);
    assert_eq!(chosen.iter().filter(|extent| is_taken(extent)).count(), 0);
    mark(&loaded, &again.data).unwrap();
    assert!(chosen.iter().all(is_taken) && !extents.iter().all(|extent| is_taken(&extent)));
    assert!(mark(&loaded, &again.data).unwrap_err().is_corruption(), "the pages have an owner already");
    again.data.end_marking();
    assert_eq!(again.data.stats().mirrored_bytes, both * PAGE as u64);
    let written = again.data.stats().written_bytes;
    assert_eq!(loaded.store(&again).unwrap(), root);
    assert_eq!(again.data.stats().written_bytes, written, "no node is dirty");

    let mut next = loaded.clone().with_fanout(Fanout::new(5));
    next.remove(chosen[0].start.0, chosen[0].pages.into());
    next.store(&again).unwrap();
    let blocks = (again.data.stats().written_bytes - written) / PAGE as u64;
    assert!((1..=2 * 2 * u64::from(next.levels())).contains(&blocks), "{blocks} blocks");
    let quarantined = || again.data.stats().quarantined_bytes;
    assert_eq!(quarantined(), 0, "the older version needs its nodes");
    drop(loaded);
    assert!(quarantined() > 0, "its own nodes are freed");
    drop(next);
    assert_eq!(quarantined(), both * PAGE as u64 + blocks * PAGE as u64);
}

/// Checks that no swap, no statistic and no checkpoint of an index visits all ranges of a large map. `set` installs a
/// map of a million ranges in the index.
pub(in crate::index) fn an_index_never_walks_its_map<I: Index>(mut bench: Bench<I>, set: impl Fn(&I, BlobMap)) {
    let core = bench.core.clone();
    // The pages of this map are far above the pages of the file.
    let mut map = BlobMap::new(core.pool.clone(), Fanout::PAGE);
    (0..MILLION).for_each(|i| map.insert((1 << 40) + 2 * i, 1));
    set(&bench.tree, map);
    bench.put(10, 100);
    bench.pack_all();
    bench.tree.begin_checkpoint(Seqno::MAX).write(&Stripes::default).unwrap();
    let blob_bytes = bench.tree.stats().disk_bytes;
    assert!(blob_bytes >= MILLION * PAGE as u64);
    let (walked, written) = (WALKED.get(), core.data.stats().root_bytes);
    let rounds = 5;
    for round in 0..rounds {
        let value = core.data.write_blob(&[7; 5000]).unwrap();
        let memtable = Memtable::new(0, Arc::new(ChunkPool::new(1)));
        bench.seqno += 1;
        let (seqno, mut message) = (Seqno(bench.seqno), Vec::new());
        value.encode(&mut message);
        memtable.insert(Entry { key: &[round], seqno, kind: Kind::BlobPut, value: &message });
        bench.tree.ingest(SealedBatch::new(Arc::new(memtable), seqno));
        bench.tree.compact(&KeyRange::all()).unwrap();
        bench.drain();
        let record = bench.tree.begin_checkpoint(Seqno::MAX).write(&Stripes::default).unwrap().root;
        assert!(record.bytes.len() <= RootRecord::MAX_BYTES);
    }
    let stats = bench.tree.stats();
    assert!(stats.disk_bytes > blob_bytes && stats.compactions > 0, "{stats:?}");
    assert_eq!(WALKED.get(), walked);
    let blocks = (core.data.stats().root_bytes - written) / PAGE as u64;
    // Each checkpoint writes the nodes on one path of the map and a few nodes of the index itself. Each node is written
    // in two copies.
    assert!(blocks <= u64::from(rounds) * 2 * (3 + 5), "{blocks} pages");
}

/// The body of a node, as defined in `persist`.
fn body(core: &Core, stored: Stored) -> Vec<u8> {
    let block = core.data.read_block(stored.copies.0[0], stored.id, BlockKind::LargeValueMap).unwrap();
    let at = BLOCK_HEADER + 4;
    let len = u32::from_le_bytes(block[BLOCK_HEADER..at].try_into().unwrap()) as usize;
    assert!(block[at + len..].iter().all(|byte| *byte == 0));
    block[at..at + len].to_vec()
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[test]
fn golden_bytes() {
    let core = core(&MemDevice::new());
    let root_bytes = |map: &BlobMap| {
        let mut out = Vec::new();
        map.store(&core).unwrap().encode(&mut out);
        assert!(out.len() <= MapRoot::MAX_BYTES);
        hex(&out)
    };
    let mut map = BlobMap::new(core.pool.clone(), Fanout::new(4));
    assert_eq!(root_bytes(&map), "00");
    map.insert(40, 3);
    map.insert(300, 2);
    // The bytes of the root are the levels, the number of ranges and the number of pages. The bytes of the address
    // follow: the owner, the length and the pages of both copies.
    assert_eq!(root_bytes(&map), concat!("010205", "01010140"));
    let leaf = map.root.as_ref().unwrap().stored().unwrap();
    assert_eq!(hex(&body(&core, leaf)), "00022803810202");
    [500, 502, 504].into_iter().for_each(|page| map.insert(page, 1));
    assert_eq!(root_bytes(&map), concat!("020508", "04010443"));
    let root = map.root.as_ref().unwrap().stored().unwrap();
    assert_eq!(hex(&body(&core, root)), concat!("0102", "280205", "02010241", "cc030303", "03010342"));
    let mut map = BlobMap::new(core.pool.clone(), Fanout::new(4).with_bitmaps());
    [300, 305, 310, 312, 383].into_iter().for_each(|page| map.insert(page, 1));
    let words = concat!("0000000000104201", "0000000000000080");
    map.store(&core).unwrap();
    let leaf = map.root.as_ref().unwrap().stored().unwrap();
    assert_eq!(hex(&body(&core, leaf)), format!("0000800202{words}"), "the first page is 256");
}

/// Overwrites copies of a node. `hit` lists the indexes of these copies.
fn damage(core: &Core, stored: Stored, hit: &[usize]) {
    for &copy in hit {
        core.data.write(stored.copies.0[copy].page, AlignedBuf::from_bytes(&[0xA5; PAGE])).unwrap();
    }
}

#[test]
fn a_damaged_copy_is_repaired_by_an_opening_for_writing() {
    let device = MemDevice::new();
    let core = core(&device);
    let mut map = scattered(&core.pool, 100).with_fanout(Fanout::new(4));
    map.remove(150, 1);
    let root = map.store(&core).unwrap();
    let nodes = map.pin().stored;
    assert!(nodes.len() > 20);
    nodes.iter().enumerate().for_each(|(i, stored)| damage(&core, *stored, &[i % 2]));
    let again = reopened(&core, &device, true);
    let loaded = load(&again, root).unwrap();
    assert!(loaded.iter().eq(map.iter()));
    let both = |stored: &Stored| stored.copies.mark(&again.data);
    loaded.pin().stored.iter().try_for_each(both).unwrap();
    again.data.end_marking();
    again.repairs.write(&again.data);
    nodes.iter().enumerate().for_each(|(i, stored)| damage(&core, *stored, &[1 - i % 2]));
    assert!(load(&reopened(&core, &device, false), root).unwrap().iter().eq(map.iter()), "the repaired copies serve");
}

#[test]
fn a_node_lost_in_both_copies_is_skipped_for_reading_and_refused_for_writing() {
    let device = MemDevice::new();
    let core = core(&device);
    let mut map = scattered(&core.pool, 100).with_fanout(Fanout::new(4));
    map.remove(150, 1);
    let root = map.store(&core).unwrap();
    for stored in map.pin().stored {
        let whole = stored.copies.0.map(|addr| core.data.read(addr).unwrap());
        damage(&core, stored, &[0, 1]);
        let error = load(&reopened(&core, &device, true), root).err().expect("it must know every page that is taken");
        assert!(error.is_corruption() && error.to_string().contains("`data`"), "{error}");
        let loaded = load(&reopened(&core, &device, false), root).unwrap();
        assert_eq!((loaded.len(), loaded.pages(), loaded.problem()), (map.len(), map.pages(), None));
        let set: HashSet<(u64, u64)> = map.iter().collect();
        assert!(loaded.iter().all(|range| set.contains(&range)) && loaded.iter().count() < set.len());
        let pinned = loaded.pin();
        assert!(pinned.lost.is_some_and(|e| e.is_corruption()) && !pinned.stored.contains(&stored));
        let copies = stored.copies.0.into_iter().zip(whole);
        copies.for_each(|(addr, block)| drop(core.data.write(addr.page, block).unwrap()));
    }
}

#[test]
fn every_flipped_byte_is_refused_or_harmless() {
    flip_bytes(Fanout::new(4));
    flip_bytes(Fanout::new(4).with_bitmaps());
}

fn flip_bytes(fanout: Fanout) {
    let device = MemDevice::new();
    let core = core(&device);
    let mut map = BlobMap::new(core.pool.clone(), fanout);
    (0..30).for_each(|i| map.insert(100 + 70 * i * i, 1 + i % 3));
    (0..30).for_each(|i| map.insert(200_000 + 5 * i, 1 + i % 3));
    assert!(map.levels() > 2);
    let root = map.store(&core).unwrap();
    let (mut refused, mut accepted) = (0, 0);
    let mut judge = |root: MapRoot, what: &str| match load(&reopened(&core, &device, true), root) {
        Err(e) => {
            assert!(e.is_corruption(), "{what}: {e}");
            refused += 1;
        }
        Ok(loaded) => {
            assert_eq!(loaded.problem(), None, "{what}");
            assert_eq!((loaded.len(), loaded.pages()), (map.len(), map.pages()), "{what}");
            accepted += 1;
        }
    };
    let blocks: Vec<(PageNo, AlignedBuf)> = map
        .pin()
        .stored
        .iter()
        .flat_map(|stored| stored.copies.0.map(|addr| (addr.page, core.data.read(addr).unwrap())))
        .collect();
    let restore = || {
        blocks.iter().for_each(|(page, block)| drop(core.data.write(*page, AlignedBuf::from_bytes(block)).unwrap()));
    };
    for stored in map.pin().stored {
        let whole = core.data.read(stored.copies.0[0]).unwrap();
        let end = BLOCK_HEADER + 4 + body(&core, stored).len();
        for (at, mask) in (BLOCK_HEADER..end + 1).flat_map(|at| [1, 2, 0x10, 0x80, 0xff].map(|mask| (at, mask))) {
            let mut block = AlignedBuf::from_bytes(&whole);
            block[at] ^= mask;
            for addr in stored.copies.0 {
                core.data.seal_block(&mut block, addr, stored.id, BlockKind::LargeValueMap);
                block = core.data.write(addr.page, block).unwrap();
            }
            judge(root, &format!("byte {at} of a node, mask {mask:#x}"));
            restore();
        }
    }
    let mut record = Vec::new();
    root.encode(&mut record);
    for (at, mask) in (0..record.len()).flat_map(|at| [1, 2, 0x10, 0x80, 0xff].map(|mask| (at, mask))) {
        let mut bytes = record.clone();
        bytes[at] ^= mask;
        match MapRoot::decode(&mut Reader::new(&bytes, "root record")) {
            Err(e) => assert!(e.is_corruption()),
            Ok(root) => {
                if let Err(e) = load(&reopened(&core, &device, true), root) {
                    assert!(e.is_corruption(), "byte {at} of the root record: {e}");
                }
            }
        }
    }
    assert!(refused > 1000 && accepted > 50, "{refused} refused, {accepted} accepted");
}
