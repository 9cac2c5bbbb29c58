//! Measures the benefit of log streams. One thread or two threads make commits with keys of 24 bytes and values of 100
//! bytes. Rounds with one stream and rounds with two streams alternate.
//!
//! ```text
//! cargo run --release -p pandodb --example streams -- DIRECTORY ROUNDS
//! ```
//!
//! No memtable is sealed during the measurement, so only the commit path is measured. Each printed line has thousands
//! of commits per second: first the median, then the result of each round.

use std::path::Path;
use std::time::Instant;

use pandodb::{Durability, Result, Store};

/// The number of commits of all threads in a round, for each durability.
const COMMITS: [(Durability, u64); 3] =
    [(Durability::None, 400_000), (Durability::Buffered, 200_000), (Durability::Synced, 400)];

fn main() -> Result<()> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [directory, rounds] = &args[..] else {
        println!("DIRECTORY ROUNDS");
        return Ok(());
    };
    let rounds: usize = rounds.parse().unwrap_or(5);
    for (durability, commits) in COMMITS {
        for threads in [1, 2] {
            let mut rates = [Vec::new(), Vec::new()];
            for _ in 0..rounds {
                for streams in [1, 2] {
                    let rate = run(Path::new(directory), durability, commits, threads, streams)?;
                    rates[streams - 1].push(rate);
                }
            }
            for (streams, rates) in (1..).zip(&mut rates) {
                let all: Vec<String> = rates.iter().map(|rate| format!("{rate:.1}")).collect();
                rates.sort_by(f64::total_cmp);
                let median = rates[rates.len() / 2];
                println!("{durability:?} threads {threads} streams {streams} median {median:.1} of {}", all.join(" "));
            }
        }
    }
    Ok(())
}

/// Returns the speed in thousands of commits per second.
fn run(directory: &Path, durability: Durability, commits: u64, threads: u64, streams: usize) -> Result<f64> {
    let place = tempfile::tempdir_in(directory).expect("a place for the store");
    let store = Store::builder(place.path())
        .memory_budget(1 << 30)
        .memtable_bytes(256 << 20)
        .segment_bytes(16 << 20)
        .log_streams(streams)
        .open()?;
    let rows = store.keyspace("rows")?;
    let each = commits / threads;
    let started = Instant::now();
    std::thread::scope(|scope| {
        let writers: Vec<_> = (0..threads)
            .map(|thread| {
                let rows = &rows;
                scope.spawn(move || {
                    (0..each).try_for_each(|i| {
                        let number = (i * threads + thread).wrapping_mul(0x9e37_79b9_7f4a_7c15);
                        rows.put_with(format!("user{number:020}"), [7; 100], durability)
                    })
                })
            })
            .collect();
        writers.into_iter().try_for_each(|writer| writer.join().expect("no panic"))
    })?;
    Ok((each * threads) as f64 / started.elapsed().as_secs_f64() / 1e3)
}
