//! Measures the memtable: nanoseconds per insert (with one writer and with several writers), per lookup, and per
//! message of a scan.
//!
//! ```text
//!   cargo run --release -p pandodb --example memtable -- [records] [rounds] [writers …]
//! ```
//!
//! Keys are 24 random bytes; values are 100 bytes. `wall` is the time from the first insert to the last insert, divided
//! by the number of all inserts. `cpu` is the time for which the writers were running on a core, divided by the same
//! number. If other programs use the machine at the same time, only `cpu` still shows the cost of the memtable. Each
//! measurement is printed as one line, so that `sort` can order the lines and a script can find the median.

use std::sync::{Arc, Barrier};
use std::time::Instant;

use pandodb::base::random::Rng;
use pandodb::base::{Entry, EntryBlock, KeyRange, Kind, Seqno};
use pandodb::memtable::{ChunkPool, Memtable};

const VALUE: [u8; 100] = [7; 100];

/// A random key.
fn random_key(rng: &mut Rng) -> [u8; 24] {
    rng.bytes(24).try_into().expect("24 bytes")
}

/// The number of nanoseconds for which this thread has been running on a core. It is 0 if the system does not report
/// it.
fn on_core() -> u64 {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap_or_default();
    text.split(' ').next().and_then(|number| number.parse().ok()).unwrap_or(0)
}

/// The generator of the keys of one writer.
fn keys_of(writer: u64) -> Rng {
    Rng(writer << 40 | 1)
}

/// Inserts `records` entries with `writers` threads. Returns `wall` and `cpu` per insert, in nanoseconds.
fn insert(memtable: &Memtable, records: u64, writers: u64) -> (f64, f64) {
    let start = Barrier::new(writers as usize + 1);
    let each = records / writers;
    let (wall, cpu) = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..writers)
            .map(|writer| {
                let start = &start;
                scope.spawn(move || {
                    let mut keys = keys_of(writer);
                    start.wait();
                    let before = on_core();
                    for i in 0..each {
                        let seqno = Seqno(i * writers + writer + 1);
                        memtable.insert(Entry { key: &random_key(&mut keys), seqno, kind: Kind::Put, value: &VALUE });
                    }
                    on_core() - before
                })
            })
            .collect();
        start.wait();
        let begin = Instant::now();
        let cpu: u64 = threads.into_iter().map(|thread| thread.join().expect("a writer")).sum();
        (begin.elapsed(), cpu)
    });
    let total = (each * writers) as f64;
    (wall.as_nanos() as f64 / total, cpu as f64 / total)
}

/// CPU nanoseconds per lookup of an existing key, and per message of a scan in blocks of 256 KiB.
fn read(memtable: &Memtable, records: u64) -> (f64, f64) {
    let (mut keys, before, mut found) = (keys_of(0), on_core(), 0u64);
    for _ in 0..records {
        memtable.get(&random_key(&mut keys), Seqno::MAX, &mut |entry| {
            found += u64::from(entry.value.len() == VALUE.len());
            false
        });
    }
    assert_eq!(found, records);
    let get = (on_core() - before) as f64 / records as f64;
    let (before, mut block, mut seen) = (on_core(), EntryBlock::new(), 0);
    let mut after: Option<(Vec<u8>, Seqno)> = None;
    loop {
        block.clear();
        let place = after.as_ref().map(|(key, seqno)| (&key[..], *seqno));
        memtable.fill(&KeyRange::all(), place, false, usize::MAX, 256 << 10, &mut block);
        let Some(last) = block.iter().last() else { break };
        (after, seen) = (Some((last.key.to_vec(), last.seqno)), seen + block.len());
    }
    (get, (on_core() - before) as f64 / seen as f64)
}

fn main() {
    let numbers: Vec<u64> = std::env::args().skip(1).map(|arg| arg.parse().expect("a number")).collect();
    let (records, rounds) = (numbers.first().copied().unwrap_or(1_000_000), numbers.get(1).copied().unwrap_or(5));
    let writers = numbers.get(2..).filter(|writers| !writers.is_empty()).unwrap_or(&[1, 2]);
    let chunks = Arc::new(ChunkPool::new(256));
    for _ in 0..rounds {
        for &writers in writers {
            let memtable = Memtable::new(0, chunks.clone());
            let (wall, cpu) = insert(&memtable, records, writers);
            let (get, scan) = read(&memtable, records / writers);
            println!("writers {writers}  wall {wall:6.1}  cpu {cpu:6.1}  get {get:6.1}  scan {scan:6.1}  ns");
        }
    }
}
