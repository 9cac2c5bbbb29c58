//! `Store::verify` beside writers: never a fault that is not there, and always one that is.
//!
//! ```text
//!   4 writers: puts, merges, large values, deletes, batches over several keyspaces   ┐
//!   1 thread:  keyspaces created, written and dropped; checkpoints; compactions      ├─▶ one tiny store in memory
//!   verify, again and again: sound?  then a byte of a quiet keyspace is flipped:     ┘
//!   verify, again and again: does each report say so, and nothing else?
//! ```
//!
//! Pages go from one keyspace to another all the time: each drop takes three checkpoints, and two let go of what was freed. A
//! verification that does not look at one moment of all keyspaces finds pages with two owners.
//!
//! A run is a round of `verify`. What is done follows from the seed; how threads meet does not.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use pandodb::device::{Device, MemDevice, OpenHow};
use pandodb::{Durability, Error, Keyspace, Result, Store};

use crate::drive::{Sizes, calmly, options};
use crate::indexes;
use crate::report::{Tally, Unit};
use crate::script::{Rng, SUMS};

/// Rounds of a unit over a sound store,
const ROUNDS: u64 = 60;
/// and over one with a damaged block.
const DAMAGED_ROUNDS: u64 = 4;
const WRITERS: u64 = 4;
/// Keyspaces that everybody writes to; one of them has counters.
const SHARED: [&str; 4] = ["rows", SUMS, "more", "last"];
/// A keyspace that nobody writes to any more.
const QUIET: &str = "quiet";
/// What its values are made of.
const MARK: [u8; 8] = *b"untouche";
/// Distinct keys of a keyspace: stores stay small.
const KEYS: u64 = 300;

/// The unit of a seed. Its steps cannot be chosen.
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

/// A store with all keyspaces, the quiet one in its final place.
fn open(seed: u64, device: Arc<MemDevice>) -> Result<Store> {
    let workers = 1 + (seed % 2) as usize;
    let store = Sizes::TINY.drawn(seed).builder(device).background_threads(workers).open()?;
    for name in SHARED {
        store.keyspace_with(name, options(name))?;
    }
    let quiet = store.keyspace_with(QUIET, options(QUIET))?;
    for i in 0..KEYS {
        // Nothing for a compressor: the bytes are to stand in the file as they are.
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
                // Counters take numbers only.
                2 | 3 if space.name() != SUMS => batch.put(space, key, vec![7; 3_000 + rng.below(6_000) as usize]),
                _ if space.name() == SUMS => batch.merge(space, key, 1i64.to_le_bytes()),
                _ => batch.put(space, key, vec![rng.next_u64() as u8; 20 + rng.below(200) as usize]),
            }
        }
        batch.commit(Durability::Buffered)?;
    }
    Ok(())
}

/// Creates, fills and drops keyspaces, and takes checkpoints, until `done`. How many were dropped.
fn come_and_go(store: &Store, seed: u64, done: &AtomicBool) -> Result<u64> {
    let (mut rng, mut dropped) = (Rng(seed), 0);
    while !done.load(Relaxed) {
        let name = format!("temp {}", rng.below(3));
        let keyspace = store.keyspace_with(&name, options(&name))?;
        for _ in 0..rng.below(60) {
            keyspace.put(key(rng.below(KEYS)), vec![3; 20 + rng.below(5_000) as usize])?;
        }
        // Beside four writers the store is long in settling.
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

/// Flips a bit in a block of the quiet keyspace, behind the store's back.
fn damage(device: &MemDevice, rng: &mut Rng) -> std::io::Result<()> {
    let file = device.open("data", OpenHow { write: true, ..OpenHow::default() })?;
    let mut bytes = vec![0; file.len()? as usize];
    let mut read = 0;
    // A checkpoint may cut the end of the file off meanwhile.
    while let more @ 1.. = file.read_at(read as u64, &mut bytes[read..])? {
        read += more;
    }
    bytes.truncate(read);
    let marks: Vec<usize> = (0..bytes.len() - MARK.len()).filter(|&at| bytes[at..].starts_with(&MARK)).collect();
    assert!(!marks.is_empty(), "the quiet keyspace lies in the data file");
    let at = marks[rng.below(marks.len() as u64) as usize] + 1;
    pandodb::device::write_all_at(&*file, at as u64, &[bytes[at] ^ 4])
}

/// Verifies `rounds` times; `right` says what is wrong with a report.
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
            return Ok(Some(format!("round {round} beside writers: {wrong}: {:?}", report.problems)));
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
        // Whatever becomes of it, the others are told to end.
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

/// Verifies the store, then damages it and verifies again. What is wrong, if something is.
fn look(store: &Store, device: &MemDevice, seed: u64, tally: &mut Tally) -> Result<Option<String>> {
    let sound = |problems: &[Error]| (!problems.is_empty()).then_some("a fault that is not there");
    if let Some(wrong) = verify(store, ROUNDS, tally, sound)? {
        return Ok(Some(wrong));
    }
    damage(device, &mut Rng(seed)).expect("the device does what it is told");
    tally.count("damaged blocks", 1);
    let damaged = |problems: &[Error]| match problems {
        [] => Some("damage was not found"),
        found if found.iter().all(|e| e.is_corruption() && !e.to_string().contains("two owners")) => None,
        _ => Some("beside the damage a fault that is not there"),
    };
    verify(store, DAMAGED_ROUNDS, tally, damaged)
}
