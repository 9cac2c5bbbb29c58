//! A writer of a store without background threads does the background work itself. A small write does a limited part of
//! it (`docs/decisions/0089-limits-of-one-writer.md`), and the memory of the memtables stays limited.

use pandodb::base::random::mix;
use pandodb::device::counting::FileClass;
use pandodb::device::{CountingDevice, MemDevice};
use pandodb::{Durability, IndexOptions, Keyspace, KeyspaceOptions, Store, StoreBuilder};

/// The most bytes of a step of a writer.
const STEP: u64 = 64 << 10;

fn open(builder: StoreBuilder, index: &str) -> (Store, Keyspace) {
    let store = builder.background_threads(0).open().unwrap();
    let options = KeyspaceOptions::new().index(index.parse::<IndexOptions>().unwrap());
    let keyspace = store.keyspace_with("k", options).unwrap();
    (store, keyspace)
}

/// The most bytes that one of 260,000 inserts reads and writes in all files.
fn worst_insert(index: &str) -> u64 {
    let device = CountingDevice::new(MemDevice::new(), |_| FileClass::Data);
    let (store, keyspace) = open(Store::builder("s").device(device.clone()).memtable_bytes(256 << 10), index);
    let mut worst = 0;
    for i in 0..260_000_u64 {
        let before = device.counts().total();
        keyspace.put(mix(i).to_be_bytes(), [b'v'; 116]).unwrap();
        let after = device.counts().total();
        worst = worst.max(after.read_bytes + after.write_bytes - before.read_bytes - before.write_bytes);
    }
    drop((keyspace, store));
    worst
}

/// The limits are the measured bytes, rounded up. Without one of the three limits of the decision, at least one of the
/// trees exceeds its limit.
#[test]
fn one_insert_does_a_limited_part_of_the_work() {
    for (index, most) in [
        ("btree:page_kib=4", STEP * 13 / 4),
        ("betree:node_kib=32,page_kib=4,epsilon=75", STEP * 13 / 4),
        ("betree:node_kib=32,page_kib=4,epsilon=25", STEP * 4),
    ] {
        let worst = worst_insert(index);
        assert!(worst <= most, "{index}: {worst} bytes, {most} allowed");
    }
}

#[test]
fn small_memtables_do_not_pile_up_behind_large_batches() {
    for index in ["btree", "betree", "stbe"] {
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
