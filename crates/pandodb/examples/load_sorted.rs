//! Measures sorted loads: `load_sorted DIR ROWS [index] [put|load|load2|beside]`. The rows have keys of 24 bytes and
//! values of 100 bytes of which one half is random. `put` writes the same rows as batches of 1,000, for comparison;
//! `load2` loads two halves into two keyspaces on two threads; `beside` puts single rows into the same keyspace during
//! the load, and also prints the longest put.
//!
//! Prints the wall time, the processor time of each row, the bytes written for each byte loaded, and the peak memory.

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

use pandodb::{Durability, IndexOptions, Keyspace, KeyspaceOptions, Store};

const KEY: usize = 24;
const VALUE: usize = 100;
const BUDGET: usize = 128 << 20;

/// The row with the number `i`; rows ascend with their numbers.
fn row(i: u64) -> ([u8; KEY], [u8; VALUE]) {
    let (mut key, mut value) = (*b"user0000................", [b'v'; VALUE]);
    key[8..16].copy_from_slice(&i.to_be_bytes());
    let mut word = i.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    for cell in value[..VALUE / 2].chunks_mut(8) {
        word ^= word << 13;
        word ^= word >> 7;
        word ^= word << 17;
        cell.copy_from_slice(&word.to_le_bytes()[..cell.len()]);
    }
    (key, value)
}

/// The processor time of this process, user and system, in units of 10 ms.
fn processor_time() -> Duration {
    let stat = std::fs::read_to_string("/proc/self/stat").expect("Linux");
    let fields: Vec<&str> = stat.rsplit(')').next().expect("a name").split_whitespace().collect();
    let ticks: u64 = fields[11].parse::<u64>().expect("utime") + fields[12].parse::<u64>().expect("stime");
    Duration::from_millis(ticks * 10)
}

/// The peak memory of this process in KiB.
fn peak_kib() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").expect("Linux");
    let line = status.lines().find(|line| line.starts_with("VmHWM")).expect("a peak");
    line.split_whitespace().nth(1).and_then(|kib| kib.parse().ok()).expect("a number")
}

fn put(store: &Store, rows: &Keyspace, range: std::ops::Range<u64>) -> pandodb::Result<()> {
    let mut batch = store.batch();
    for i in range {
        let (key, value) = row(i);
        batch.put(rows, key, value);
        if batch.len() == 1_000 {
            batch.commit(Durability::Buffered)?;
        }
    }
    batch.commit(Durability::Buffered)?;
    store.settle()
}

/// Puts single rows between the rows of the load until the load ends. Returns their number and the longest time of one.
fn put_until(rows: &Keyspace, stop: &AtomicBool) -> pandodb::Result<(u64, Duration)> {
    let (mut puts, mut longest) = (0, Duration::ZERO);
    while !stop.load(Relaxed) {
        let (mut key, value) = row(puts * 7_919 % 5_000_000);
        key[KEY - 1] = b'!';
        let began = Instant::now();
        rows.put(key, value)?;
        longest = longest.max(began.elapsed());
        puts += 1;
    }
    Ok((puts, longest))
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut args = std::env::args().skip(1);
    let (Some(directory), Some(count)) = (args.next(), args.next()) else {
        return Err("usage: load_sorted DIR ROWS [index] [put|load|load2|beside]".into());
    };
    let count: u64 = count.parse()?;
    let index: IndexOptions = args.next().as_deref().unwrap_or("stbe").parse()?;
    let how = args.next().unwrap_or_else(|| "load".into());
    let store = Store::builder(directory).memory_budget(BUDGET).open()?;
    let keyspace = |name| store.keyspace_with(name, KeyspaceOptions::new().index(index.clone()));
    let (one, two) = (keyspace("one")?, keyspace("two")?);
    let (began, processor) = (Instant::now(), processor_time());
    match how.as_str() {
        "put" => put(&store, &one, 0..count)?,
        "load" => assert_eq!(one.load_sorted((0..count).map(row))?, count),
        "load2" => std::thread::scope(|scope| {
            let other = scope.spawn(|| two.load_sorted((0..count / 2).map(row)));
            one.load_sorted((count / 2..count).map(row))?;
            other.join().expect("no panic").map(drop)
        })?,
        "beside" => {
            let stop = AtomicBool::new(false);
            let (puts, longest) = std::thread::scope(|scope| {
                let writer = scope.spawn(|| put_until(&one, &stop));
                let loaded = one.load_sorted((0..count).map(row));
                stop.store(true, Relaxed);
                let puts = writer.join().expect("no panic");
                loaded.and(puts)
            })?;
            println!("{puts} puts beside the load, the longest took {longest:?}");
        }
        other => return Err(format!("`{other}` is none of put, load, load2, beside").into()),
    }
    let (wall, busy) = (began.elapsed(), processor_time() - processor);
    let stats = store.stats()?;
    let bytes = count * (KEY + VALUE) as u64;
    let [mb_s, ns] = [bytes as f64 / 1e6 / wall.as_secs_f64(), busy.as_nanos() as f64 / count as f64];
    let figures = &stats.keyspaces[0].index;
    println!(
        "{how} {count} rows: {:.2} s, {mb_s:.0} MB/s, {ns:.0} ns of processor time a row, {:.3} bytes written a byte, \
         peak {} MiB, {} levels, {} runs, debt {}",
        wall.as_secs_f64(),
        stats.write_amplification(),
        peak_kib() >> 10,
        figures.figure("levels"),
        figures.figure("runs"),
        store.debt(),
    );
    Ok(store.close()?)
}
