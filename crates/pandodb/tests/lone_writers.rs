//! A writer of a store without background threads does the background work itself. A small write does a limited part of
//! it (`docs/decisions/0089-limits-of-one-writer.md`), and the memory of the memtables stays limited.

use pandodb::base::random::mix;
use pandodb::device::counting::FileClass;
use pandodb::device::{CountingDevice, MemDevice};
use pandodb::{Durability, IndexOptions, Keyspace, KeyspaceOptions, Store, StoreBuilder};

fn open(builder: StoreBuilder, index: &str) -> (Store, Keyspace) {
    open_with_workers(0, builder, index)
}

fn open_with_workers(workers: usize, builder: StoreBuilder, index: &str) -> (Store, Keyspace) {
    let store = builder.background_threads(workers).open().unwrap();
    let options = KeyspaceOptions::new().index(index.parse::<IndexOptions>().unwrap());
    let keyspace = store.keyspace_with("k", options).unwrap();
    (store, keyspace)
}

/// The bytes that each of 260,000 inserts reads and writes in all files.
fn moved_by_inserts(index: &str) -> Vec<u64> {
    moved_by_inserts_into(1, index)
}

/// The same with several keyspaces, which take the inserts in turns.
fn moved_by_inserts_into(keyspaces: usize, index: &str) -> Vec<u64> {
    let device = CountingDevice::new(MemDevice::new(), |_| FileClass::Data);
    let (store, first) = open(Store::builder("s").device(device.clone()).memtable_bytes(256 << 10), index);
    let options = KeyspaceOptions::new().index(index.parse::<IndexOptions>().unwrap());
    let others = (1..keyspaces).map(|i| store.keyspace_with(&format!("k{i}"), options.clone()).unwrap());
    let all: Vec<Keyspace> = std::iter::once(first).chain(others).collect();
    let mut moved = Vec::with_capacity(260_000);
    for (i, keyspace) in (0..260_000_u64).zip(all.iter().cycle()) {
        let before = device.counts().total();
        keyspace.put(mix(i).to_be_bytes(), [b'v'; 116]).unwrap();
        let after = device.counts().total();
        moved.push(after.read_bytes + after.write_bytes - before.read_bytes - before.write_bytes);
    }
    drop((all, store));
    moved
}

/// The limits are the measured bytes, rounded up. Without one of the three limits of the decision, at least one of the
/// trees exceeds its limit.
#[test]
fn one_insert_does_a_limited_part_of_the_work() {
    for (index, most) in [
        ("btree:page_kib=4", 96 << 10),
        ("betree:node_kib=32,page_kib=4,epsilon=75", 120 << 10),
        ("betree:node_kib=32,page_kib=4,epsilon=25", 132 << 10),
    ] {
        let worst = moved_by_inserts(index).into_iter().max().unwrap();
        assert!(worst <= most, "{index}: {worst} bytes, {most} allowed");
    }
}

/// The contract of the Nested B-tree (001 §5.1): any w inserts in a row move at most w·c·log_f(N/σ)·f/B blocks, and a
/// constant number of blocks. B is the number of records in a block of 4 KiB. c is 3: a merge reads and writes, and after
/// a costly flush, writers pay for a part of it in addition. This includes packing, the log and checkpoints. The constant
/// is 20 blocks, which is measured (19 and 13 blocks) and rounded up: a write may end one merge, whose last leaves, filter
/// and inner blocks it writes, and read the first leaves of all inputs of the next merge. A record of 124 bytes takes 140
/// bytes in a run, with its filter and its inner blocks.
#[test]
fn any_inserts_in_a_row_move_their_share_of_the_work_of_a_nested_tree() {
    for fanout in [3.0, 8.0_f64] {
        let moved = moved_by_inserts(&format!("nbtree:fanout={fanout}"));
        let depth = (moved.len() as f64 * 140.0 / (256 << 10) as f64).log(fanout);
        let share = 3.0 * depth * fanout * 140.0;
        for width in [1, 10, 100, 1_000, 10_000, 100_000] {
            let most = most_in_a_row(&moved, width);
            let more = (most as f64 - width as f64 * share) / 4096.0;
            assert!(more <= 20.0, "f {fanout}, {width} inserts: {most} bytes, {more:.0} blocks more than the share");
        }
    }
}

/// Checkpoints are prepared in steps for all keyspaces together, and flushes of all roots take turns. Measured: 66 kB with
/// eight keyspaces, 62 kB with one. It was four times as much while workers preferred keyspaces whose flush had begun, because
/// slices collected in the other roots.
#[test]
fn more_keyspaces_do_not_make_one_insert_larger() {
    let one = moved_by_inserts("nbtree").into_iter().max().unwrap();
    let many = moved_by_inserts_into(8, "nbtree").into_iter().max().unwrap();
    assert!(many <= one + one / 2, "{many} bytes with eight keyspaces, {one} with one");
}

/// The work that is owed at any time is at most the share of the inserts that fill a memtable, with a worker as well as
/// without. (c is 3, as above. A third of it was measured without a worker, and a fifth with one.)
#[test]
fn the_debt_of_a_nested_tree_is_bounded() {
    for (workers, fanout) in [(0, 3.0), (0, 8.0), (1, 3.0), (1, 8.0_f64)] {
        let builder = Store::builder("s").device(MemDevice::new()).memtable_bytes(256 << 10);
        let (store, keyspace) = open_with_workers(workers, builder, &format!("nbtree:fanout={fanout}"));
        for i in 0..200_000_u64 {
            keyspace.put(mix(i).to_be_bytes(), [b'v'; 116]).unwrap();
            if i % 500 == 0 && i > 0 {
                let depth = (i as f64 * 140.0 / (256 << 10) as f64).log(fanout).max(1.0);
                let most = 3.0 * depth * fanout * (256 << 10) as f64;
                let owed = store.stats().unwrap().debt_bytes as f64;
                assert!(
                    owed <= most,
                    "{workers} workers, f {fanout}, {i} inserts: {owed} bytes are owed, {most} allowed"
                );
            }
        }
    }
}

/// The greatest sum of `width` numbers in a row.
fn most_in_a_row(numbers: &[u64], width: usize) -> u64 {
    let mut sum: u64 = numbers[..width].iter().sum();
    let mut most = sum;
    for (new, old) in numbers[width..].iter().zip(numbers) {
        sum = sum + new - old;
        most = most.max(sum);
    }
    most
}

#[test]
fn small_memtables_do_not_pile_up_behind_large_batches() {
    for index in ["btree", "betree", "stbe", "nbtree"] {
        for (memtable, batch) in [(16 << 10, 50), (16 << 10, 2000), (64 << 10, 500)] {
            let builder = Store::builder("s").device(MemDevice::new()).memory_budget(8 << 20);
            let (store, keyspace) = open(builder.memtable_bytes(memtable), index);
            let mut memory = Vec::new();
            for first in (0..80_000_u64).step_by(batch as usize) {
                let mut rows = store.batch();
                (first..first + batch).for_each(|i| rows.put(&keyspace, mix(i).to_be_bytes(), [b'v'; 100]));
                rows.commit(Durability::Buffered).unwrap();
                memory.push(store.stats().unwrap().memory.memtables);
            }
            // A memtable takes at least one batch, with up to 60 bytes of memory for each row beside its 108 bytes.
            let (one, most) = (memtable as u64 + batch * 168, memory.iter().max().unwrap());
            assert!(*most <= 4 * one, "{index}, {memtable} bytes, batches of {batch}: {most} bytes in memtables");
        }
    }
}
