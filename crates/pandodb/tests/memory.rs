//! Measures the memory of thousands of keyspaces. This test has a process of its own, because it measures the memory of
//! the process.
#![cfg(target_os = "linux")]

use pandodb::Store;

const KEYSPACES: usize = 3_000;
const BUDGET: usize = 64 << 20;

/// The resident memory of this process, in bytes.
fn resident() -> usize {
    let status = std::fs::read_to_string("/proc/self/status").expect("Linux has it");
    let line = status.lines().find(|line| line.starts_with("VmRSS:")).expect("it is there");
    line.split_whitespace().nth(1).and_then(|kib| kib.parse::<usize>().ok()).expect("a number") << 10
}

fn open(dir: &std::path::Path) -> Store {
    Store::builder(dir.join("s")).memory_budget(BUDGET).open().expect("opens")
}

/// Puts one entry into each keyspace, and checks the memory of the store's parts and of the process.
fn put_into_each(store: &Store, round: &str) {
    for i in 0..KEYSPACES {
        let keyspace = store.keyspace(&format!("keyspace {i}")).expect("there or made");
        keyspace.put(round, "a value").expect("written");
        if i % 500 == 499 {
            let (resident, memory) = (resident(), store.stats().expect("told").memory);
            let counted = memory.memtables + memory.keyspaces + memory.pool + memory.rows;
            assert!(counted <= BUDGET as u64, "{i} keyspaces: {memory:?}");
            // A test binary uses about 10 MiB without any store.
            assert!(resident <= BUDGET + BUDGET / 10 + (10 << 20), "{i} keyspaces: {resident} bytes, {memory:?}");
            assert!(memory.keyspaces >= 1_000 * (i as u64 + 1), "a keyspace counts: {memory:?}");
        }
    }
}

#[test]
fn one_put_in_each_of_thousands_of_keyspaces_stays_in_the_budget() {
    let dir = tempfile::tempdir().expect("a directory");
    let store = open(dir.path());
    put_into_each(&store, "first");
    drop(store);
    let store = open(dir.path());
    assert_eq!(store.keyspaces().len(), KEYSPACES);
    put_into_each(&store, "second");
    put_into_each(&store, "third");
}
