//! Measures queues: jobs are appended, then taken at the head one by one, in three ways.
//!
//! `cargo run --release -p pandodb --example queue -- [JOBS] [first|iter|range] [threads]`

use std::time::Instant;

use pandodb::device::MemDevice;
use pandodb::{Keyspace, Result, Store};

/// Takes the first job; returns whether there was one.
fn take(jobs: &Keyspace, how: &str) -> Result<bool> {
    if how == "first" {
        return Ok(jobs.pop_first()?.is_some());
    }
    let Some((key, _)) = jobs.iter().next().transpose()? else { return Ok(false) };
    if how == "range" {
        jobs.delete_range(..=key)?
    } else {
        jobs.delete(key)?
    }
    Ok(true)
}

fn main() -> Result<()> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let jobs: u64 = args.first().map_or(1_000_000, |jobs| jobs.parse().expect("a number of jobs"));
    let how = args.get(1).map_or("first", String::as_str);
    let store = Store::builder("queue").device(MemDevice::new()).memory_budget(64 << 20).open()?;
    let queue = store.keyspace("jobs")?;
    let started = Instant::now();
    for job in 0..jobs {
        queue.put(job.to_be_bytes(), [7; 100])?;
    }
    println!("put: {:.0} jobs/s", jobs as f64 / started.elapsed().as_secs_f64());
    for tenth in 0..10 {
        let started = Instant::now();
        for _ in 0..jobs / 10 {
            assert!(take(&queue, how)?, "jobs are left");
        }
        println!("tenth {tenth}: {:.0} pops/s", jobs as f64 / 10.0 / started.elapsed().as_secs_f64());
    }
    assert!(!take(&queue, how)?, "the queue is empty");
    Ok(())
}
