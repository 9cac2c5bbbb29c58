//! Tests of trees whose leaves are stored compressed.

use super::*;
use crate::base::{BlockAddr, PAGE};
use crate::blocks::BlockSource;
use crate::device::AlignedBuf;
use crate::index::pages::{LeafAhead, PageRef};
use crate::pool::Pool;
use crate::space::data::stored_pages;
use crate::space::{BlockKind, COMPRESSED_LEAVES};

/// Leaves of 16 KiB.
fn large(compression: Compression) -> Sizes {
    Sizes { compression, ..sizes(16 << 10, 6) }
}

fn bench_of(seed: u64, compression: Compression) -> Bench<Tree> {
    Bench::of(seed, |core| {
        let core = Core { pool: Arc::new(Pool::new(8 << 20)), ..core };
        Tree::create(core, large(compression), Seqno(0))
    })
}

/// A row whose value has 50 random bytes and `zeros` zeros.
fn row(bench: &mut Bench<Tree>, i: u64, zeros: usize) -> (Vec<u8>, Kind, Vec<u8>) {
    let mut value: Vec<u8> = (0..50).map(|_| bench.random.below(256) as u8).collect();
    value.resize(50 + zeros, 0);
    (number(i), Kind::Put, value)
}

/// Applies 3,000 rows.
fn load(bench: &mut Bench<Tree>, zeros: usize) {
    let rows: Vec<_> = (0..3000).map(|i| row(bench, i, zeros)).collect();
    apply(bench, rows);
}

/// All references to leaves.
fn leaves(tree: &Tree) -> Vec<PageRef> {
    let root = tree.inner.lock().world.root;
    Walk::new(tree.source.clone(), root).filter(|visit| visit.level == 0).map(|visit| visit.page).collect()
}

/// Removes all leaves from the pool.
fn empty_pool(tree: &Tree) {
    leaves(tree).iter().for_each(|leaf| tree.core.pool.forget(tree.source.owner(), leaf.addr.page));
}

/// All messages.
fn messages(tree: &Tree, reverse: bool) -> Vec<(Vec<u8>, Seqno, Vec<u8>)> {
    let mut cursor = tree.view().cursor(Arc::default(), reverse).unwrap();
    let mut block = crate::base::EntryBlock::new();
    cursor.fill(usize::MAX >> 1, &mut block).unwrap();
    let mut all: Vec<_> = block.iter().map(|entry| (entry.key.to_vec(), entry.seqno, entry.value.to_vec())).collect();
    if reverse {
        all.reverse();
    }
    all
}

#[test]
fn compressed_leaves_hold_the_same_messages_in_fewer_pages() {
    let [plain, packed] = [Compression::None, Compression::Lz4].map(|compression| {
        let mut bench = bench_of(1, compression);
        load(&mut bench, 100);
        shape(&bench.tree);
        bench
    });
    let disk = |bench: &Bench<Tree>| leaves(&bench.tree).iter().map(|leaf| u64::from(leaf.addr.pages)).sum::<u64>();
    let memory = |bench: &Bench<Tree>| leaves(&bench.tree).iter().map(|leaf| u64::from(leaf.memory_pages)).sum::<u64>();
    assert_eq!(memory(&plain), memory(&packed));
    assert!(disk(&plain) == memory(&plain) && disk(&packed) * 10 < disk(&plain) * 8, "{} pages", disk(&packed));
    assert!(leaves(&packed.tree).iter().filter(|leaf| leaf.is_compressed()).count() > 20);
    assert_eq!([&plain, &packed].map(|bench| bench.core.data.features()), [0, COMPRESSED_LEAVES]);
    let expected = messages(&plain.tree, false);
    assert_eq!(expected.len(), 3000);
    for reverse in [false, true] {
        empty_pool(&packed.tree);
        assert!(messages(&packed.tree, reverse) == expected, "reverse {reverse}");
    }
    let cut = packed.tree.begin_checkpoint(Seqno::MAX).write(&Stripes::default).unwrap();
    let opened = reopen(&packed, &cut.root, super::sizes(512, 6));
    assert!(messages(&opened, false) == expected, "after an opening");
    assert_eq!(shape(&opened), shape(&packed.tree));
}

#[test]
fn leaves_that_save_no_page_are_stored_uncompressed() {
    let mut bench = bench_of(2, Compression::Lz4);
    load(&mut bench, 0);
    assert!(leaves(&bench.tree).iter().all(|leaf| !leaf.is_compressed()));
    assert_eq!(bench.core.data.features(), 0);
    // Leaves of one page.
    let small = Sizes { compression: Compression::Lz4, ..sizes(4096, 6) };
    let mut bench = Bench::of(2, |core| Tree::create(core, small, Seqno(0)));
    load(&mut bench, 100);
    assert!(leaves(&bench.tree).iter().all(|leaf| leaf.memory_pages == 1 && !leaf.is_compressed()));
}

#[test]
fn jobs_read_and_replace_compressed_leaves() {
    for seed in 0..2 {
        let mut bench = bench_of(seed, Compression::Lz4);
        let mut compressed = 0;
        suspend_jobs(&mut bench, seed, 30, |tree| {
            shape(tree);
            compressed += leaves(tree).iter().filter(|leaf| leaf.is_compressed()).count();
        });
        assert!(compressed > 40, "seed {seed}: {compressed}");
    }
    changes_are_found(&mut bench_of(3, Compression::Lz4));
}

#[test]
fn leaves_of_buffers_are_compressed_too() {
    let sizes =
        Sizes { leaf: LeafLimits::new(16 << 10), compression: Compression::Lz4, ..with_buffers(6, 1, 64 << 10) };
    let mut bench = Bench::of(8, |core| Tree::create(core, sizes, Seqno(0)));
    let mut compressed = 0;
    for round in 0..30 {
        bench.put(1500, 30_000);
        bench.pack_all();
        if round % 5 == 4 {
            bench.check();
        }
        let root = bench.tree.inner.lock().world.root;
        let visits = Walk::new(bench.tree.source.clone(), root);
        compressed += visits.filter(|visit| visit.buffer_of.is_some() && visit.page.is_compressed()).count();
    }
    assert!(compressed > 20, "{compressed} leaves");
    verify(&bench);
    bench.drain();
    bench.check();
}

#[test]
fn a_long_leaf_is_compressed() {
    let limits = Sizes { leaf: LeafLimits { bytes: 512 << 10, group: 512 << 10 }, ..large(Compression::Lz4) };
    let mut bench = Bench::of(4, |core| Tree::create(core, limits, Seqno(0)));
    load(&mut bench, 300);
    let found = leaves(&bench.tree);
    assert!(found.iter().any(|leaf| leaf.memory_pages > 64 && leaf.is_compressed()), "{found:?}");
    empty_pool(&bench.tree);
    assert_eq!(messages(&bench.tree, false).len(), 3000);
}

#[test]
fn the_pool_holds_and_charges_uncompressed_leaves() {
    let mut bench = bench_of(5, Compression::Lz4);
    load(&mut bench, 100);
    let all = leaves(&bench.tree);
    let leaf = *all.iter().find(|leaf| leaf.is_compressed()).unwrap();
    let source = &bench.tree.source;
    // The job has offered the leaf, because the pool has room.
    let block = source.pooled_leaf(&leaf).expect("a new leaf is in the pool");
    assert_eq!((block.len(), stored_pages(&block)), (leaf.memory_bytes(), leaf.addr.pages));
    let offered = block.to_vec();
    drop(block);
    empty_pool(&bench.tree);
    let before = (source.pool().stats().bytes, bench.core.data.stats().read_bytes);
    let block = source.page(&leaf, 0).unwrap();
    let after = (source.pool().stats().bytes, bench.core.data.stats().read_bytes);
    assert!(block[16..] == offered[16..] && block[4] == BlockKind::TreeLeaf as u8, "offered as it is read");
    assert!(after.0 - before.0 >= leaf.memory_bytes() as u64, "charged with its size in memory");
    assert_eq!(after.1 - before.1, leaf.addr.bytes() as u64, "read with its size on disk");
    drop(block);
    // A scan caches the leaves that it reads, and counts the bytes that it reads ahead as they are in memory.
    empty_pool(&bench.tree);
    messages(&bench.tree, false);
    assert_eq!(source.pooled_leaf(&leaf).map(|leaf| leaf.len()), Some(leaf.memory_bytes()));
    let mut ahead = LeafAhead::default();
    ahead.want(source, leaf);
    assert_eq!(ahead.bytes(), leaf.memory_bytes());
    let reads = bench.core.data.stats().reads;
    messages(&bench.tree, true);
    assert_eq!(bench.core.data.stats().reads, reads);
}

#[test]
fn a_leaf_of_another_length_than_its_reference_is_refused() {
    let mut bench = bench_of(6, Compression::Lz4);
    load(&mut bench, 100);
    let leaf = *leaves(&bench.tree).iter().find(|leaf| leaf.is_compressed()).unwrap();
    let source = &bench.tree.source;
    let wrong = [
        PageRef { memory_pages: leaf.memory_pages + 1, ..leaf },
        PageRef { memory_pages: leaf.addr.pages, ..leaf },
        PageRef { addr: BlockAddr { pages: leaf.addr.pages + 1, ..leaf.addr }, ..leaf },
        PageRef { mark: leaf.mark + 1, ..leaf },
    ];
    for is_pooled in [false, true] {
        for page in wrong {
            if is_pooled {
                source.page(&leaf, 0).unwrap();
            } else {
                empty_pool(&bench.tree);
            }
            let errors =
                [source.page(&page, 0).err(), source.copy(&page, 0, page.addr).err(), source.leaf_once(&page).err()];
            assert!(errors.into_iter().all(|error| error.is_some_and(|e| e.is_corruption())), "{page:?}, {is_pooled}");
        }
    }
}

#[test]
fn changed_bytes_of_a_compressed_leaf_cause_no_panic_and_no_large_allocation() {
    let mut bench = bench_of(7, Compression::Lz4);
    load(&mut bench, 100);
    let leaf = *leaves(&bench.tree).iter().find(|leaf| leaf.is_compressed()).unwrap();
    let source = &bench.tree.source;
    let sound = bench.core.data.read(leaf.addr).unwrap();
    let read_with = |change: &dyn Fn(&mut [u8]), is_sealed: bool| {
        let mut block = AlignedBuf::from_bytes(&sound);
        change(&mut block);
        if is_sealed {
            bench.core.data.seal_block(&mut block, leaf.addr, source.owner(), BlockKind::TreeCompressedLeaf);
        }
        bench.core.data.write(leaf.addr.page, block).unwrap();
        source.pool().forget(source.owner(), leaf.addr.page);
        let results = [
            source.page(&leaf, 0).map(|block| block.len()),
            source.leaf_once(&leaf).map(|leaf| leaf.len()),
            source.copy(&leaf, 0, leaf.addr).map(|_| leaf.memory_bytes()),
        ];
        let failed = results.iter().filter(|result| result.as_ref().is_err_and(|e| e.is_corruption())).count();
        assert!(failed == 0 || failed == 3, "{results:?}");
        assert!(results.into_iter().flatten().all(|bytes| bytes == leaf.memory_bytes()));
        failed == 3
    };
    assert!(!read_with(&|_| {}, true), "the leaf as it was");
    let mut refused = 0;
    let changed = (16..leaf.addr.bytes()).step_by(7);
    for at in changed.clone() {
        refused += usize::from(read_with(&|block| block[at] ^= 0x81, true));
        assert!(read_with(&|block| block[at] ^= 1, false), "byte {at}: the checksum is wrong");
    }
    // Most bytes are those of random values, which may be any bytes.
    assert!(refused * 10 > changed.len(), "{refused} of {}", changed.len());
    let set = |at: usize, number: u32| move |block: &mut [u8]| block[at..at + 4].copy_from_slice(&number.to_le_bytes());
    let most = 1024 * PAGE as u32;
    for length in [0, 15, leaf.addr.bytes() as u32, leaf.memory_bytes() as u32 + 1, most, most + 1, u32::MAX] {
        assert!(read_with(&set(16, length), true), "length {length}");
    }
    for packed in [0, 1, leaf.addr.bytes() as u32 - 23, u32::MAX] {
        assert!(read_with(&set(20, packed), true), "packed {packed}");
    }
    // A leaf of the other kind.
    let mut block = AlignedBuf::from_bytes(&sound);
    bench.core.data.seal_block(&mut block, leaf.addr, source.owner(), BlockKind::TreeLeaf);
    bench.core.data.write(leaf.addr.page, block).unwrap();
    source.pool().forget(source.owner(), leaf.addr.page);
    assert!(source.page(&leaf, 0).is_err_and(|e| e.is_corruption()));
}
