//! The memory of memtables follows the writes, unless its size is fixed.

use pandodb::device::MemDevice;
use pandodb::{Store, StoreBuilder};

/// The most bytes of memtables while 60,000 rows are written.
fn most_memtable_bytes(builder: StoreBuilder) -> u64 {
    let store = builder.device(MemDevice::new()).memory_budget(4 << 20).background_threads(0).open().unwrap();
    let keyspace = store.keyspace("k").unwrap();
    let mut most = 0;
    for i in 0..60_000_u64 {
        keyspace.put(pandodb::base::random::mix(i).to_be_bytes(), [b'v'; 100]).unwrap();
        if i % 100 == 0 {
            most = most.max(store.stats().unwrap().memory.memtables);
        }
    }
    most
}

#[test]
fn memtables_grow_while_none_waits_to_be_packed() {
    let budget = 4 << 20;
    let most = most_memtable_bytes(Store::builder("s"));
    assert!(most > budget / 8 * 5 / 2 && most < budget / 16 * 13, "{most} bytes by default");
    let fixed = most_memtable_bytes(Store::builder("s").memtable_bytes(budget as usize / 8));
    assert!(fixed < budget / 8 * 5 / 2, "{fixed} bytes with a fixed size");
}

#[test]
fn a_large_memtable_gives_its_memory_back_when_no_write_comes() {
    let store = Store::builder("s").device(MemDevice::new()).memory_budget(4 << 20).open().unwrap();
    let keyspace = store.keyspace("k").unwrap();
    (0..6000_u64).for_each(|i| keyspace.put(i.to_be_bytes(), [b'v'; 100]).unwrap());
    let bytes = || store.stats().unwrap().memory.memtables;
    assert!(bytes() > 512 << 10, "{} bytes", bytes());
    let began = std::time::Instant::now();
    while bytes() > 512 << 10 {
        assert!(began.elapsed().as_secs() < 20, "{} bytes are left", bytes());
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
}
