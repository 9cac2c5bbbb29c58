//! Tests of `Store::verify` concurrent with writers. `verify` must report no damage in an undamaged store, and must
//! report all real damage.
//!
//! ```text
//!   4 writers: puts, merges, large values, deletes, batches over several keyspaces   ┐
//!   1 thread:  keyspaces created, written and dropped; checkpoints; compactions      ├─▶ one tiny store in memory
//!   verify repeatedly: clean?  then flip a bit in the keyspace that no thread writes ┘
//!   verify repeatedly: does each report contain this damage, and nothing else?
//! ```
//!
//! Pages move from one keyspace to another all the time. The reason is that each drop takes three checkpoints, two of
//! which release freed pages. If `verify` did not read all keyspaces in the state of one moment, it would find pages
//! that seem to have two owners.
//!
//! A run is one call of `verify`. The seed determines the operations, but not how threads interleave.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use pandodb::device::{Device, MemDevice, OpenHow};
use pandodb::{Durability, Error, Keyspace, Result, Store};

use crate::drive::{Sizes, calmly, options};
use crate::indexes;
use crate::report::{Tally, Unit};
use crate::script::{Rng, SUMS};

/// The number of `verify` calls of a unit on the undamaged store.
const ROUNDS: u64 = 60;
/// The number of `verify` calls of a unit on the store with a damaged block.
const DAMAGED_ROUNDS: u64 = 4;
const WRITERS: u64 = 4;
/// The keyspaces that all writers write to. One of these keyspaces holds counters.
const SHARED: [&str; 4] = ["rows", SUMS, "more", "last"];
/// A keyspace that is written once at the start.
const QUIET: &str = "quiet";
/// The first bytes of each value in the quiet keyspace.
const MARK: [u8; 8] = *b"untouche";
/// The number of distinct keys of a keyspace. The number is small, so that the store stays small.
const KEYS: u64 = 300;

/// Runs a unit. Ignores a choice of steps, because this harness does not minimise failures.
pub fn run(unit: &Unit) -> Tally {
    let mut tally = Tally::default();
    match calmly(|| beside_writers(unit.seed, &mut tally)) {
        Ok(Ok(())) => {}
        Ok(Err(e)) => tally.fail(unit.seed, format!("the store failed although nothing was broken: {e}")),
        Err(panic) => tally.fail(unit.seed, panic),
    }
    indexes::count(indexes::kind(unit.seed), &mut tally);
    tally
}

fn key(number: u64) -> Vec<u8> {
    format!("key {number:06}").into_bytes()
}

/// Creates a store with all keyspaces. All data of the quiet keyspace is in its index.
fn open(seed: u64, device: Arc<MemDevice>) -> Result<Store> {
    let workers = 1 + (seed % 2) as usize;
    let store = Sizes::TINY.drawn(seed).builder(device).background_threads(workers).open()?;
    for name in SHARED {
        store.keyspace_with(name, options(name))?;
    }
    let quiet = store.keyspace_with(QUIET, options(QUIET))?;
    for i in 0..KEYS {
        // The value is incompressible, so that its bytes are in the file unchanged.
        let mut rng = Rng(i);
        let value: Vec<u8> = MARK.iter().copied().chain((0..92).map(|_| rng.next_u64() as u8)).collect();
        quiet.put(key(i), value)?;
    }
    store.settle()?;
    Ok(store)
}

/// Writes to the shared keyspaces until `done`.
fn write(store: &Store, seed: u64, done: &AtomicBool) -> Result<()> {
    let mut rng = Rng(seed);
    let spaces: Vec<Keyspace> =
        SHARED.iter().map(|name| store.keyspace_with(name, options(name))).collect::<Result<_>>()?;
    while !done.load(Relaxed) {
        let mut batch = store.batch();
        for _ in 0..1 + rng.below(40) {
            let (space, key) = (&spaces[rng.below(4) as usize], key(rng.below(KEYS)));
            match rng.below(20) {
                0 => batch.delete(space, key),
                1 => batch.delete_range(space, key.clone()..[key, b"x".to_vec()].concat()),
                // The counter keyspace accepts only numbers.
                2 | 3 if space.name() != SUMS => batch.put(space, key, vec![7; 3_000 + rng.below(6_000) as usize]),
                _ if space.name() == SUMS => batch.merge(space, key, 1i64.to_le_bytes()),
                _ => batch.put(space, key, vec![rng.next_u64() as u8; 20 + rng.below(200) as usize]),
            }
        }
        batch.commit(Durability::Buffered)?;
    }
    Ok(())
}

/// Creates, fills and drops keyspaces, and takes checkpoints, until `done`. Returns the number of drops.
fn come_and_go(store: &Store, seed: u64, done: &AtomicBool) -> Result<u64> {
    let (mut rng, mut dropped) = (Rng(seed), 0);
    while !done.load(Relaxed) {
        let name = format!("temp {}", rng.below(3));
        let keyspace = store.keyspace_with(&name, options(&name))?;
        for _ in 0..rng.below(60) {
            keyspace.put(key(rng.below(KEYS)), vec![3; 20 + rng.below(5_000) as usize])?;
        }
        // Settling is rare, because it takes long while four threads write.
        match rng.below(12) {
            0 => store.checkpoint()?,
            1 => keyspace.compact(..)?,
            2 => store.settle()?,
            _ => {}
        }
        store.drop_keyspace(&name)?;
        dropped += 1;
    }
    Ok(dropped)
}

/// Flips a bit in a block of the quiet keyspace, directly in the data file.
fn damage(device: &MemDevice, rng: &mut Rng) -> std::io::Result<()> {
    let file = device.open("data", OpenHow { write: true, ..OpenHow::default() })?;
    let mut bytes = vec![0; file.len()? as usize];
    let mut read = 0;
    // A concurrent checkpoint may truncate the file.
    while let more @ 1.. = file.read_at(read as u64, &mut bytes[read..])? {
        read += more;
    }
    bytes.truncate(read);
    let marks: Vec<usize> = (0..bytes.len() - MARK.len()).filter(|&at| bytes[at..].starts_with(&MARK)).collect();
    assert!(!marks.is_empty(), "no value of the quiet keyspace is in the data file");
    let at = marks[rng.below(marks.len() as u64) as usize] + 1;
    pandodb::device::write_all_at(&*file, at as u64, &[bytes[at] ^ 4])
}

/// Calls `verify` up to `rounds` times. If a report is wrong, `right` returns a description of the mistake. This
/// function returns the first such description.
fn verify(
    store: &Store,
    rounds: u64,
    tally: &mut Tally,
    right: impl Fn(&[Error]) -> Option<&'static str>,
) -> Result<Option<String>> {
    for round in 0..rounds {
        let report = store.verify()?;
        tally.runs += 1;
        tally.count("blocks", report.blocks);
        if let Some(wrong) = right(&report.problems) {
            return Ok(Some(format!("round {round}: {wrong}: {:?}", report.problems)));
        }
    }
    Ok(None)
}

fn beside_writers(seed: u64, tally: &mut Tally) -> Result<()> {
    let device = MemDevice::new();
    let store = open(seed, device.clone())?;
    let done = AtomicBool::new(false);
    let (wrong, dropped) = std::thread::scope(|scope| {
        let (store, done) = (&store, &done);
        let writers: Vec<_> = (0..WRITERS).map(|w| scope.spawn(move || write(store, seed << 8 | w, done))).collect();
        let comer = scope.spawn(move || come_and_go(store, !seed, done));
        // A panic is caught here, so that the other threads are always stopped.
        let wrong = calmly(|| look(store, &device, seed, tally));
        done.store(true, Relaxed);
        let written: Result<Vec<()>> = writers.into_iter().map(|w| w.join().expect("a writer panicked")).collect();
        let dropped = comer.join().expect("the thread that drops keyspaces panicked");
        (wrong, written.and(dropped))
    });
    tally.count("keyspaces dropped", dropped?);
    match wrong {
        Ok(wrong) => wrong?.into_iter().for_each(|wrong| tally.fail(seed, wrong)),
        Err(panic) => tally.fail(seed, panic),
    }
    Ok(())
}

/// Verifies the store, then damages it and verifies again. Returns what was wrong, if anything.
fn look(store: &Store, device: &MemDevice, seed: u64, tally: &mut Tally) -> Result<Option<String>> {
    let sound = |problems: &[Error]| (!problems.is_empty()).then_some("verify reported damage in a sound store");
    if let Some(wrong) = verify(store, ROUNDS, tally, sound)? {
        return Ok(Some(wrong));
    }
    damage(device, &mut Rng(seed)).expect("a device in memory does not fail");
    tally.count("damaged blocks", 1);
    let damaged = |problems: &[Error]| match problems {
        [] => Some("verify did not report the damage"),
        found if found.iter().all(|e| e.is_corruption() && !e.to_string().contains("two owners")) => None,
        _ => Some("verify reported more than the damage"),
    };
    verify(store, DAMAGED_ROUNDS, tally, damaged)
}
