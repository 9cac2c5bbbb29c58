//! Tests on full disks of random sizes, all of them too small for the workload.
//!
//! A refused commit has no effect. Reads and deletes work. Space that is freed by deleting and compacting, or by
//! dropping a keyspace, can be written again. A reopened store contains all acknowledged writes.

use std::sync::Arc;

use pandodb::device::sim::SimDevice;
use pandodb::{Durability, Error, Store};

use crate::drive::{Sizes, calmly, contents, options};
use crate::report::Tally;
use crate::script::{ROWS, Rng, State, TEMP, key};

/// Limit of the reserve in bytes. The limit is higher than the default reserve of these stores.
const RESERVE: u64 = 1 << 20;

/// Fills a keyspace until a put is refused twice: once, and again after a checkpoint, which frees log segments. Returns
/// `false` if the disk never became full.
fn fill(store: &Store, state: &mut State, name: &str, seed: u64) -> Result<bool, Error> {
    let keyspace = store.keyspace_with(name, options(name))?;
    state.0.entry(name.to_owned()).or_default();
    let mut rng = Rng(seed);
    for i in 0..4_000 {
        let len = if rng.chance(10) { 2_000 } else { 150 };
        let value = vec![rng.next_u64() as u8; len];
        let mut put = keyspace.put_with(key(i), &value, Durability::Buffered);
        if let Err(Error::DiskFull { .. }) = put {
            match store.checkpoint() {
                Ok(()) | Err(Error::DiskFull { .. }) => {}
                Err(e) => return Err(e),
            }
            put = keyspace.put_with(key(i), &value, Durability::Buffered);
        }
        match put {
            Ok(()) => {
                state.0.get_mut(name).expect("just made").insert(key(i), value);
            }
            Err(Error::DiskFull { .. }) => return Ok(true),
            Err(e) => return Err(e),
        }
    }
    Ok(false)
}

/// Prefixes an error with the operation that failed.
fn during<T>(what: &str, result: Result<T, Error>) -> Result<T, String> {
    result.map_err(|e| format!("{what}: {e}"))
}

/// A new store on a disk of `budget` bytes. If the store cannot be opened because `budget` is too small, the disk gets
/// the size that the error gives.
fn made(sizes: Sizes, mut budget: u64) -> Result<(Arc<SimDevice>, u64, Store), String> {
    let mut told = false;
    loop {
        let device = SimDevice::new(budget);
        device.set_byte_budget(Some(budget));
        match sizes.open(device.clone()) {
            Err(Error::DiskTooSmall { needed, .. }) if !told => (told, budget) = (true, needed),
            opened => return Ok((device, budget, during("making a store", opened)?)),
        }
    }
}

/// Fills a disk of `budget` bytes, frees space, writes again, and reopens the store. With `by_drop`, space is freed by
/// dropping a keyspace; otherwise by deleting and compacting.
fn fill_and_free(sizes: Sizes, budget: u64, by_drop: bool) -> Result<(), String> {
    let (device, budget, store) = made(sizes, budget)?;
    let mut state = State::default();
    let name = if by_drop { TEMP } else { ROWS };
    assert!(during("filling", fill(&store, &mut state, name, budget))?, "budget {budget}: the disk must be full");
    assert_eq!(during("reading", contents(&store))?, state, "budget {budget}: reads on a full disk");
    let taken = state.0[name].len();
    if by_drop {
        during("dropping a keyspace", store.drop_keyspace(name))?;
        state.0.remove(name);
    } else {
        let rows = during("looking for a keyspace", store.open_keyspace(name))?.expect("it was made");
        during("deleting", rows.delete(key(1)))?;
        during("deleting a range", rows.delete_range(key(5)..))?;
        state.0.get_mut(name).expect("it was made").retain(|k, _| *k != key(1) && *k < key(5));
        assert_eq!(during("reading", contents(&store))?, state, "budget {budget}: deletes on a full disk");
        during("compacting", rows.compact(..))?;
    }
    during("settling", store.settle())?;
    during("filling again", fill(&store, &mut state, ROWS, budget + 1))?;
    let (first, second) = (taken, state.0[ROWS].len());
    // Fewer rows may fit than before: an early value of 2,000 bytes makes the store pack fewer rows into a run, and the
    // disk has space for only a few runs.
    assert!(
        second * 8 >= first,
        "budget {budget}: {first} rows fitted at first, only {second} after freeing the space"
    );
    assert_eq!(during("reading", contents(&store))?, state, "budget {budget}: after writing on");
    let image = device.image();
    drop(store);
    let (_, store) = during("opening again", sizes.open_image(&image, 1))?;
    assert_eq!(during("reading", contents(&store))?, state, "budget {budget}: after a reopening");
    assert!(during("verifying", store.verify())?.is_clean());
    Ok(())
}

/// Fills a disk, kills the store, and opens it again on the same full disk.
fn kill_when_full(sizes: Sizes, budget: u64) -> Result<(), String> {
    let (device, budget, store) = made(sizes, budget)?;
    let mut state = State::default();
    assert!(during("filling", fill(&store, &mut state, ROWS, budget))?, "budget {budget}: the disk must be full");
    let killed = device.image();
    drop(store);
    let device = SimDevice::from_image(&killed, 1);
    device.set_byte_budget(Some(budget));
    let store = during("opening", sizes.open(device.clone()))?;
    assert_eq!(during("reading", contents(&store))?, state, "budget {budget}: everything acknowledged is there");
    assert!(during("verifying", store.verify())?.is_clean(), "budget {budget}");
    during("dropping a keyspace", store.drop_keyspace(ROWS))?;
    state.0.clear();
    during("filling again", fill(&store, &mut state, ROWS, budget + 1))?;
    assert_eq!(during("reading", contents(&store))?, state, "budget {budget}: writing resumes");
    Ok(())
}

/// Tests disks of twelve sizes drawn from `number`.
pub fn run(number: u64) -> Tally {
    let mut tally = Tally::default();
    let mut rng = Rng(number);
    let index = Some(number);
    let tiny = Sizes { reserve: RESERVE, index, ..Sizes::TINY };
    let loggy = Sizes { reserve: RESERVE, index, ..Sizes::LOGGY };
    for round in 0..12 {
        let budget = (480 << 10) + rng.below(1_000_000);
        let (what, outcome) = match round % 4 {
            0 => ("fill, delete, fill again", calmly(|| fill_and_free(tiny, budget, false))),
            1 => ("fill, drop a keyspace, fill again", calmly(|| fill_and_free(tiny, budget, true))),
            2 => ("fill, kill, open", calmly(|| kill_when_full(tiny, budget))),
            _ => ("fill with a long log, kill, open", calmly(|| kill_when_full(loggy, budget))),
        };
        tally.runs += 1;
        tally.count("full disks", 1);
        if let Err(e) = outcome.and_then(|result| result) {
            tally.fail(number, format!("a disk of {budget} bytes, {what}: {e}"));
        }
    }
    tally
}
