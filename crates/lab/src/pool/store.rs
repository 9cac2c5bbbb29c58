//! Measures lookups by one thread and by two threads, in a store that has all its data in the pool.

use std::hint::black_box;

use pandodb::device::MemDevice;
use pandodb::{Durability, Store};
use serde::{Deserialize, Serialize};

use super::notes::{Lengths, Pair, TURNS};
use crate::engine::Result;
use crate::record::mix;

/// The parameters of the store and of the measurement.
#[derive(Clone, Copy, Debug)]
pub struct ReadersConfig {
    /// Rows.
    pub records: u64,
    /// Bytes of a value.
    pub value_bytes: u64,
    /// Whether the store is compacted into one run for each leaf before the lookups.
    pub compacted: bool,
    /// The number of rounds.
    pub rounds: u64,
    /// The number of notes (samples) in a round.
    pub notes: u64,
}

/// The measurements.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Readers {
    /// `readers`.
    pub kind: String,
    /// Rows.
    pub records: u64,
    /// Bytes of a value.
    pub value_bytes: u64,
    /// The number of runs in the store.
    pub runs: u64,
    /// The average number of blocks that a lookup requested from the pool.
    pub blocks: f64,
    /// The duration of a lookup.
    pub lookup: Pair,
    /// The duration of arithmetic without shared data. It shows the greatest gain from a second thread that the machine
    /// allowed during the measurement.
    pub control: Pair,
}

fn key(record: u64) -> [u8; 24] {
    let mut key = [0; 24];
    for (i, word) in (1..).zip(key.chunks_exact_mut(8)) {
        word.copy_from_slice(&mix(record.wrapping_mul(3).wrapping_add(i)).to_be_bytes());
    }
    key
}

/// Loads a store in memory. Once all data is in the pool, looks up rows uniformly.
///
/// # Errors
/// Errors of the store. Also if a row is missing, or if blocks were not in the pool.
pub fn readers(config: &ReadersConfig) -> Result<Readers> {
    let ReadersConfig { records, value_bytes, .. } = *config;
    let store = Store::builder("readers")
        .device(MemDevice::new())
        .memory_budget((4 * records * (value_bytes + 64)).max(16 << 20) as usize)
        .memtable_bytes(2 << 20)
        .durability(Durability::Buffered)
        .open()?;
    let keyspace = store.keyspace("default")?;
    for record in 0..records {
        keyspace.put(key(record), vec![7; value_bytes as usize])?;
    }
    store.pack()?;
    store.settle()?;
    if config.compacted {
        keyspace.compact(..)?;
    }
    for record in 0..records {
        keyspace.get(key(record))?.ok_or("a row is missing")?;
    }
    let before = store.stats()?;
    let (mut lookup, mut control) = (Lengths::default(), Lengths::default());
    for round in 0..config.rounds {
        lookup.round(config.notes, &|thread, note| {
            let seed = (round << 40) | ((thread as u64) << 32) | note;
            for turn in 0..TURNS {
                let record = mix(seed.wrapping_mul(TURNS) + turn) % records;
                let value = keyspace.get(key(record)).expect("read").expect("it is there");
                black_box(value[0]);
            }
        });
        control.round(config.notes / 8, &|thread, note| {
            black_box((0..20 * TURNS).fold(thread as u64 ^ note, |sum, i| mix(sum ^ i)));
        });
    }
    let stats = store.stats()?;
    if stats.reads > before.reads {
        return Err(format!("lookups read {} blocks that were not in the pool", stats.reads - before.reads).into());
    }
    let blocks = (stats.probed_blocks - before.probed_blocks) as f64 / (stats.gets - before.gets).max(1) as f64;
    let runs = stats.keyspaces.first().map_or(0, |keyspace| keyspace.index.figure("runs"));
    let (lookup, control) = (lookup.pair(), control.pair());
    Ok(Readers { kind: "readers".to_owned(), records, value_bytes, runs, blocks, lookup, control })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lookups_are_served_from_the_pool() {
        let config = ReadersConfig { records: 20_000, value_bytes: 100, compacted: false, rounds: 1, notes: 8 };
        let row = readers(&config).expect("read");
        assert!(row.blocks >= 2.0 && row.lookup.one_ns > 0.0 && row.control.one_ns > 0.0, "{row:?}");
    }
}
