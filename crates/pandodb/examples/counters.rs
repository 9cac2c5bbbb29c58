//! Measures counters that get many merges: nanoseconds per merge, of the first read, of a second read, per repeated read,
//! and per pair of a merge and a read; for comparison, nanoseconds per read of a plain value.
//!
//! ```text
//!   cargo run --release -p pandodb --example counters -- [merges …]
//! ```
//!
//! The store is in memory, so the device costs nothing. The memtable holds all merges of one key. `spread` is the
//! time of a merge if the merges are distributed over 100,000 counters.

use std::time::Instant;

use pandodb::device::MemDevice;
use pandodb::{AddI64, Durability, Keyspace, KeyspaceOptions, Store};

/// The number of plain reads, and of pairs.
const READS: u64 = 2_000;

/// Nanoseconds of one of `n` calls.
fn each(n: u64, mut call: impl FnMut(u64)) -> u64 {
    let began = Instant::now();
    (0..n).for_each(&mut call);
    u64::try_from(began.elapsed().as_nanos()).unwrap_or(u64::MAX) / n.max(1)
}

fn add(counters: &Keyspace, key: &str) {
    counters.merge_with(key, 1_i64.to_le_bytes(), Durability::None).expect("merged");
}

fn get(keyspace: &Keyspace, key: &str) -> i64 {
    let value = keyspace.get(key).expect("read").expect("it is there");
    i64::from_le_bytes(value[..].try_into().expect("8 bytes"))
}

fn main() {
    let given: Vec<u64> = std::env::args().skip(1).filter_map(|word| word.parse().ok()).collect();
    let sizes = if given.is_empty() { vec![1_000, 10_000, 100_000, 400_000, 1_000_000] } else { given };
    println!("merges merge_ns spread_ns first_get_ns second_get_ns get_ns pair_ns plain_get_ns");
    for merges in sizes {
        let store = Store::builder("counters").device(MemDevice::new()).background_threads(1).open().expect("opens");
        let keyspace = |name: &str| store.keyspace_with(name, KeyspaceOptions::new().merge(AddI64)).expect("created");
        let (hot, plain, many) = (keyspace("hot"), keyspace("plain"), keyspace("many"));
        plain.put("k", 7_i64.to_le_bytes()).expect("put");
        // Without this, the first read would also measure how the code and its data get into the caches.
        (0..READS).for_each(|_| add(&many, "warm"));
        (0..READS).for_each(|_| assert!(get(&many, "warm") > 0 && get(&plain, "k") == 7));
        let merge = each(merges, |_| add(&hot, "k"));
        let first = each(1, |_| assert_eq!(get(&hot, "k"), merges as i64));
        let second = each(1, |_| assert_eq!(get(&hot, "k"), merges as i64));
        let again = each(READS, |_| assert_eq!(get(&hot, "k"), merges as i64));
        let pairs = READS.min(2_000_000_000 / second.max(1));
        let pair = each(pairs, |i| {
            add(&hot, "k");
            assert_eq!(get(&hot, "k"), (merges + i + 1) as i64);
        });
        let read = each(READS, |_| assert_eq!(get(&plain, "k"), 7));
        let keys: Vec<String> = (0..100_000).map(|i| format!("counter {i}")).collect();
        let spread = each(merges, |i| add(&many, &keys[(i * 7919 % 100_000) as usize]));
        println!("{merges} {merge} {spread} {first} {second} {again} {pair} {read}");
    }
}
