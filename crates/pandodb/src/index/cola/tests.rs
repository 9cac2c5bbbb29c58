//! Tests of the policy, the table and the tasks. Pieces are suspended at every point while memtables arrive. The
//! behaviour that a user sees is covered by test suites that run with every index.

use std::sync::Arc;

use super::choose::{BATCH, Growth, MAX_LEVEL};
use super::table::Table;
use super::{Cola, Sizes};
use crate::base::{Entry, KeyRange, Kind, OwnerId, RangeTombstone, Seqno};
use crate::device::{Device, OpenHow};
use crate::filter::Filters;
use crate::index::blobs::tests::an_index_never_walks_its_map;
use crate::index::runs::Part;
use crate::index::testing::{Bench, changes_are_found, operator, suspend_jobs};
use crate::index::{Core, Index, SealedBatch};
use crate::memtable::{ChunkPool, Memtable};
use crate::resolve::Stripes;
use crate::run::Compression;
use crate::space::Prefetch;

fn sizes(factor: u64) -> Sizes {
    Sizes {
        growth: Growth { factor, memtable_bytes: 8 << 10 },
        filters: Filters::Bloom,
        compression: Compression::None,
        operator: Some(operator()),
    }
}

fn bench(seed: u64, factor: u64) -> Bench<Cola> {
    Bench::of(seed, |core| Cola::create(core, sizes(factor), Seqno(0)))
}

fn table(cola: &Cola) -> Arc<Table> {
    let table = cola.inner.lock().world.table.clone();
    assert_eq!(table.problem(), None);
    table
}

#[test]
fn changes_since_a_snapshot_are_found() {
    (0..6).for_each(|seed| changes_are_found(&mut bench(seed, 3)));
}

#[test]
fn level_capacities_match_the_source() {
    let growth = |factor| Growth { factor, memtable_bytes: 10 };
    assert_eq!((1..5).map(|level| growth(2).capacity(level)).collect::<Vec<_>>(), [20, 40, 80, 160]);
    assert_eq!((1..4).map(|level| growth(4).capacity(level)).collect::<Vec<_>>(), [60, 240, 960]);
    assert_eq!(growth(64).capacity(MAX_LEVEL), u64::MAX);
    assert_eq!(growth(4).level_for(241), 3);
}

#[test]
fn the_map_of_large_values_is_never_fully_walked() {
    an_index_never_walks_its_map(bench(1, 2), |cola, map| cola.inner.lock().world.blobs = map);
}

#[test]
fn suspended_pieces_survive_arriving_memtables() {
    for (seed, factor) in [(0, 2), (1, 2), (2, 3), (3, 4), (4, 4), (5, 8)] {
        let mut bench = bench(seed, factor);
        let mut most = 0;
        suspend_jobs(&mut bench, seed, 70, |cola| most = most.max(table(cola).layers.len()));
        let layers = table(&bench.tree).layers.len() as u32;
        let stats = bench.tree.stats();
        assert!(stats.compactions > 5 && most > BATCH, "seed {seed}: {stats:?}");
        let deepest = sizes(factor).growth.level_for(stats.disk_bytes);
        assert!(layers <= deepest + BATCH as u32, "seed {seed}: {layers} layers, level {deepest} holds all");
    }
}

#[test]
fn write_amplification_stays_below_the_bound_of_the_growth_factor() {
    for factor in [2, 4, 8] {
        let mut bench = bench(9, factor);
        let batches = 96;
        for _ in 0..batches {
            bench.put(300, 1 << 40);
            bench.drain();
        }
        let stats = bench.tree.stats();
        let written = (stats.packed_bytes + stats.compacted_bytes) as f64 / stats.packed_bytes as f64;
        let memtables = stats.packed_bytes as f64 / (8 << 10) as f64;
        let bound = 1.0 + 0.5 * (factor - 1) as f64 * (memtables / 2.0).log(factor as f64).ceil();
        assert!(written > 1.5 && written < 1.3 * bound, "growth {factor}: {written} of {bound}");
    }
}

#[test]
fn a_load_in_key_order_moves_without_being_rewritten() {
    let mut bench = bench(1, 4);
    for batch in 0..40u64 {
        let memtable = Memtable::new(0, Arc::new(ChunkPool::new(1)));
        for i in 0..400u64 {
            bench.seqno += 1;
            let (key, amount) = (format!("k{:07}", batch * 400 + i).into_bytes(), i as i64);
            let value = amount.to_le_bytes();
            memtable.insert(Entry { key: &key, seqno: Seqno(bench.seqno), kind: Kind::Put, value: &value });
            bench.model.insert(key, amount);
        }
        bench.tree.ingest(SealedBatch::new(Arc::new(memtable), Seqno(bench.seqno)));
        bench.drain();
    }
    bench.check();
    let stats = bench.tree.stats();
    assert_eq!((stats.compactions, stats.figure("runs")), (0, 40), "{stats:?}");
    assert!(table(&bench.tree).layers.len() <= 4);
    // A request rewrites data that earlier tasks only moved.
    bench.tree.compact(&KeyRange::all()).unwrap();
    bench.drain();
    bench.check();
    assert_eq!(table(&bench.tree).layers.len(), 1);
    assert!(bench.tree.stats().compactions > 0);
}

#[test]
fn deletes_trigger_the_compaction_of_the_data_that_they_hide() {
    let mut bench = bench(4, 4);
    (0..24).for_each(|_| bench.put(600, 20_000));
    bench.drain();
    let before = bench.tree.stats().disk_bytes;
    let keys: Vec<Vec<u8>> = bench.model.keys().cloned().collect();
    for some in keys.chunks(700) {
        let memtable = Memtable::new(0, Arc::new(ChunkPool::new(1)));
        for key in some {
            bench.seqno += 1;
            memtable.insert(Entry { key, seqno: Seqno(bench.seqno), kind: Kind::Delete, value: &[] });
            bench.model.remove(key);
        }
        bench.tree.ingest(SealedBatch::new(Arc::new(memtable), Seqno(bench.seqno)));
        bench.drain();
    }
    bench.check();
    let after = bench.tree.stats();
    assert!(after.disk_bytes * 2 < before, "{before} bytes before, {after:?}");
}

#[test]
fn a_range_tombstone_over_everything_frees_all_pages_at_once() {
    let mut bench = bench(5, 4);
    let empty = bench.core.data.stats().allocated_bytes;
    (0..30).for_each(|_| bench.put(600, 20_000));
    bench.drain();
    bench.seqno += 1;
    let memtable = Memtable::new(0, Arc::new(ChunkPool::new(1)));
    memtable.insert_range(&RangeTombstone { range: KeyRange::all(), seqno: Seqno(bench.seqno) });
    bench.model.clear();
    bench.tree.ingest(SealedBatch::new(Arc::new(memtable), Seqno(bench.seqno)));
    let compactions = bench.tree.stats().compactions;
    bench.pack_all();
    assert_eq!(table(&bench.tree).layers.len(), 1, "only the tombstone is left");
    assert_eq!(bench.tree.stats().compactions, compactions);
    bench.tree.compact(&KeyRange::all()).unwrap();
    bench.drain();
    bench.check();
    let stats = bench.tree.stats();
    assert_eq!((stats.figure("runs"), stats.entries), (0, 0), "{stats:?}");
    for _ in 0..3 {
        bench.core.data.begin_checkpoint();
        bench.core.data.finish_checkpoint().unwrap();
    }
    assert_eq!(bench.core.data.stats().allocated_bytes, empty, "every page is freed");
}

#[test]
fn a_reopened_table_equals_the_stored_one() {
    for seed in 0..4 {
        let mut bench = bench(seed, 3);
        for _ in 0..20 {
            bench.feed(700, 20_000, 10);
            bench.step(32 << 10);
        }
        bench.pack_all();
        let cut = bench.tree.begin_checkpoint(Seqno::MAX).write(&Stripes::default).unwrap();
        let again = bench.tree.begin_checkpoint(Seqno::MAX).write(&Stripes::default).unwrap();
        assert_eq!(cut.root, again.root, "an unchanged table keeps its pages");
        let core = Core { data: DataFileOf(&bench).reopened(), ..bench.core.clone() };
        let mut prefetch = Prefetch::new(core.data.clone());
        let opened = Cola::open(core, sizes(3), &cut.root, &mut prefetch).unwrap();
        let shape = |table: &Table| -> Vec<(u32, Vec<(OwnerId, KeyRange)>)> {
            let part = |part: &Part| (part.slice.run().meta().id, part.slice.range().clone());
            table.layers.iter().map(|layer| (layer.level, layer.parts.iter().map(part).collect())).collect()
        };
        assert_eq!(shape(&table(&opened)), shape(&table(&bench.tree)));
        for at in 0..cut.root.bytes.len() {
            let mut record = cut.root.clone();
            record.bytes.truncate(at);
            let core = Core { data: DataFileOf(&bench).reopened(), ..bench.core.clone() };
            let mut prefetch = Prefetch::new(core.data.clone());
            assert!(at == 0 || Cola::open(core, sizes(3), &record, &mut prefetch).is_err(), "cut at {at}");
        }
    }
}

/// Reopens the data file of a bench. No page of the reopened file is marked as used.
struct DataFileOf<'a>(&'a Bench<Cola>);

impl DataFileOf<'_> {
    fn reopened(&self) -> Arc<crate::space::DataFile> {
        let file = self.0.device.open("data", OpenHow { write: true, ..OpenHow::default() }).unwrap();
        crate::space::DataFile::open(file, self.0.core.data.store_id()).unwrap()
    }
}

/// Damage excludes only the keys of the piece in which it was found. Everything else is compacted until no work is
/// left. Newer data of the excluded keys is compacted separately.
#[test]
fn a_damaged_leaf_excludes_only_its_piece_from_compaction() {
    for seed in 0..4 {
        let mut bench = bench(seed, 2);
        (0..40).for_each(|_| bench.put(600, 40_000));
        bench.drain();
        let oldest = table(&bench.tree).layers.last().unwrap().parts[0].slice.clone();
        let extent = oldest.run().owned()[0];
        let file = bench.device.open("data", OpenHow { write: true, ..OpenHow::default() }).unwrap();
        crate::device::write_all_at(&*file, extent.start.offset(), &[0x5A; 4096]).unwrap();
        let pages = (0..u64::from(extent.pages)).map(|page| crate::base::PageNo(extent.start.0 + page));
        pages.for_each(|page| bench.core.pool.forget(oldest.run().meta().id, page));
        drop(oldest);
        bench.tree.compact(&KeyRange::all()).unwrap();
        let mut damages = 0;
        for _ in 0..10_000 {
            let stripes = bench.stripes();
            let progress = bench.tree.step(1 << 20, &move || stripes.clone()).unwrap();
            damages += u64::from(progress.damage.is_some());
            if progress.idle {
                break;
            }
        }
        assert!(damages > 0 && bench.tree.debt().total() == 0, "seed {seed}: {damages} damages");
        assert!(bench.tree.stats().damaged > 0);
        for _ in 0..20 {
            bench.put(600, 40_000);
            while !bench.step(1 << 20).idle {}
        }
        let layers = table(&bench.tree).layers.len();
        assert!(layers < 12, "seed {seed}: {layers} layers above a damaged part");
    }
}
