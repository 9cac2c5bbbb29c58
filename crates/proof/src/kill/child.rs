//! The child process, which writes until the parent kills it.

use std::io::{self, Write};
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use pandodb::{Result, Store};

use super::WRITERS;
use super::bank::{self, Bank};
use super::workload::{Spaces, durability, fill, heads, open};
use crate::script::Rng;

/// If the parent does not kill the child, the child exits by itself after this number of batches of one writer.
const BATCHES: u64 = 2_000_000;

/// Opens the store in `folder` and writes batches. Prints a line for each acknowledged batch: `writer number`, followed
/// by `!` if the batch must survive a kill. `seed` and `round` determine the options of the store.
///
/// # Errors
/// The first error of the store.
pub fn child(folder: &Path, seed: u64, round: u64) -> Result<()> {
    let mut rng = Rng(seed ^ round << 32);
    let store = open(folder, seed, 1 + rng.below(2) as usize)?;
    let spaces = Spaces::open(&store)?;
    let bank = Bank::open(&store)?;
    if bank::is_open(seed) {
        bank.found(&store)?;
    }
    let heads = heads(&spaces)?;
    // Number of acknowledged batches of each writer. A commit that another thread begins after an acknowledgement must
    // be later in the log than the acknowledged batch.
    let acknowledged: Vec<AtomicU64> = heads.iter().map(|(head, _)| AtomicU64::new(*head)).collect();
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let writers: Vec<_> = (0..WRITERS)
            .map(|writer| {
                let (store, spaces, acknowledged, stop) = (&store, &spaces, &acknowledged, &stop);
                scope.spawn(move || {
                    write(store, spaces, writer, acknowledged, stop)
                        .inspect_err(|_| stop.store(true, Ordering::Relaxed))
                })
            })
            .collect();
        let tellers: Vec<_> = (0..if bank::is_open(seed) { bank::TELLERS } else { 0 })
            .map(|teller| {
                let (store, bank, stop) = (&store, &bank, &stop);
                let rng = Rng(seed ^ round << 32 ^ teller << 48);
                scope.spawn(move || bank.serve(store, rng, stop).inspect_err(|_| stop.store(true, Ordering::Relaxed)))
            })
            .collect();
        let maintenance = rng.chance(50);
        while maintenance && !stop.load(Ordering::Relaxed) && writers.iter().any(|writer| !writer.is_finished()) {
            std::thread::sleep(std::time::Duration::from_millis(5 + rng.below(20)));
            if rng.chance(70) { store.checkpoint()? } else { spaces.rows.compact(..)? }
        }
        writers.into_iter().try_for_each(|writer| writer.join().expect("a writer does not panic"))?;
        stop.store(true, Ordering::Relaxed);
        tellers.into_iter().try_for_each(|teller| teller.join().expect("a teller does not panic"))
    })
}

fn write(store: &Store, spaces: &Spaces, writer: u64, acknowledged: &[AtomicU64], stop: &AtomicBool) -> Result<()> {
    let first = acknowledged[writer as usize].load(Ordering::SeqCst);
    for number in first..first + BATCHES {
        if stop.load(Ordering::Relaxed) {
            break;
        }
        let seen: Vec<u64> = acknowledged.iter().map(|head| head.load(Ordering::SeqCst)).collect();
        let mut batch = store.batch();
        fill(&mut batch, spaces, writer, number, &seen);
        let promised = durability(writer, number);
        batch.commit(promised)?;
        acknowledged[writer as usize].store(number + 1, Ordering::SeqCst);
        let mark = if promised >= pandodb::Durability::Buffered { "!" } else { "" };
        // One write call per line. The line is short enough for the write to be atomic on a pipe. The write fails once
        // the parent has exited.
        if io::stdout().write_all(format!("{writer} {number}{mark}\n").as_bytes()).is_err() {
            break;
        }
    }
    Ok(())
}
