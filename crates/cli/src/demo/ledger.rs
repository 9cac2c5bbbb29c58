//! The demo's store: events, and counters that are updated by merges, without reads.
//!
//! ```text
//! one flight = one atomic batch
//!   put    events      2001-02-14T06:30|ORD|1|012345  →  14,405,MDW
//!   merge  departures  ORD         + 1        (add_u64)
//!   merge  delays      ORD         + 14       (add_i64, minutes)
//!   merge  days        2001-02-14  + 1        (add_u64)
//! ```
//!
//! Since each batch updates events and counters together, the demo can recompute the counters from the events at any
//! time. Any difference shows that a batch was partially applied, applied twice, or lost.

use std::{collections::BTreeMap, path::Path, time::Instant};

use pandodb::{AddI64, AddU64, Durability, Keyspace, KeyspaceOptions, Store};

use super::flights::{Flight, parse_key};
use crate::{
    failure::{Failure, Outcome},
    kv,
    meter::Latencies,
};

/// The memory budget of the demo's store, in bytes.
pub const MEMORY_BUDGET: usize = 64 << 20;
/// The size of a memtable in bytes. It is small, so that the small data set makes a tree of several levels.
const MEMTABLE_BYTES: usize = 1 << 20;

/// The counters of a set of events.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// The number of departures by airport.
    pub departures: BTreeMap<String, u64>,
    /// The minutes of delay by airport of departure.
    pub delays: BTreeMap<String, i64>,
    /// The number of departures by day.
    pub days: BTreeMap<String, u64>,
}

impl Counters {
    /// Adds a flight to the counters.
    pub fn add(&mut self, flight: &Flight) {
        *self.departures.entry(flight.origin.clone()).or_default() += 1;
        *self.delays.entry(flight.origin.clone()).or_default() += flight.delay;
        *self.days.entry(flight.day().to_owned()).or_default() += 1;
    }

    /// The number of counters.
    pub fn len(&self) -> usize {
        self.departures.len() + self.delays.len() + self.days.len()
    }

    /// The number of counters that differ between `self` and `other`.
    pub fn off(&self, other: &Counters) -> usize {
        differences(&self.departures, &other.departures)
            + differences(&self.delays, &other.delays)
            + differences(&self.days, &other.days)
    }
}

fn differences<V: PartialEq>(a: &BTreeMap<String, V>, b: &BTreeMap<String, V>) -> usize {
    let only_in_b = b.keys().filter(|key| !a.contains_key(*key)).count();
    a.iter().filter(|(key, value)| b.get(*key) != Some(value)).count() + only_in_b
}

/// The result of checking the events of the store against the file.
#[derive(Debug)]
pub struct Recount {
    /// The counters, computed from the events.
    pub counters: Counters,
    /// For each line of the file, whether the store contains the event of the second load.
    pub second: Vec<bool>,
    /// The number of events of the first load.
    pub first: usize,
    /// The number of events whose key or value differs from the file.
    pub wrong: usize,
}

/// An open store with its keyspaces.
pub struct Ledger {
    /// The store.
    pub store: Store,
    /// The flights.
    pub events: Keyspace,
    departures: Keyspace,
    delays: Keyspace,
    days: Keyspace,
}

impl Ledger {
    /// Opens the store, or creates it.
    pub fn open(path: &Path) -> Outcome<Ledger> {
        let store = Store::builder(path).memory_budget(MEMORY_BUDGET).memtable_bytes(MEMTABLE_BYTES).open()?;
        Ok(Ledger {
            events: store.keyspace("events")?,
            departures: store.keyspace_with("departures", KeyspaceOptions::new().merge(AddU64))?,
            delays: store.keyspace_with("delays", KeyspaceOptions::new().merge(AddI64))?,
            days: store.keyspace_with("days", KeyspaceOptions::new().merge(AddU64))?,
            store,
        })
    }

    /// Writes one flight and its counters atomically. The write survives a kill of the process once this function
    /// returns.
    pub fn record(&self, flight: &Flight, pass: u8, index: usize, latencies: &mut Latencies) -> Outcome {
        let started = Instant::now();
        let mut batch = self.store.batch();
        batch.put(&self.events, flight.key(pass, index), flight.row());
        batch.merge(&self.departures, &flight.origin, 1u64.to_le_bytes());
        batch.merge(&self.delays, &flight.origin, flight.delay.to_le_bytes());
        batch.merge(&self.days, flight.day(), 1u64.to_le_bytes());
        batch.commit(Durability::Buffered)?;
        latencies.record(started.elapsed());
        Ok(())
    }

    /// Reads all counters.
    pub fn counters(&self) -> Outcome<Counters> {
        Ok(Counters {
            departures: read_counters(&self.departures, u64::from_le_bytes)?,
            delays: read_counters(&self.delays, i64::from_le_bytes)?,
            days: read_counters(&self.days, u64::from_le_bytes)?,
        })
    }

    /// Reads all events, compares each with the file and recomputes the counters.
    pub fn recount(&self, flights: &[Flight]) -> Outcome<Recount> {
        let mut recount =
            Recount { counters: Counters::default(), second: vec![false; flights.len()], first: 0, wrong: 0 };
        for entry in self.events.iter() {
            let (key, value) = entry?;
            let found = parse_key(&key).and_then(|(pass, index)| {
                let flight = flights.get(index)?;
                let same = flight.key(pass, index).as_bytes() == &*key && flight.row().as_bytes() == &*value;
                same.then_some((flight, pass, index))
            });
            match found {
                Some((flight, 1, _)) => {
                    recount.first += 1;
                    recount.counters.add(flight);
                }
                Some((flight, 2, index)) => {
                    recount.second[index] = true;
                    recount.counters.add(flight);
                }
                _ => recount.wrong += 1,
            }
        }
        Ok(recount)
    }

    /// Closes the store.
    pub fn close(self) -> Outcome {
        Ok(self.store.close()?)
    }
}

fn read_counters<N>(keyspace: &Keyspace, decode: fn([u8; 8]) -> N) -> Outcome<BTreeMap<String, N>> {
    let mut counters = BTreeMap::new();
    for entry in keyspace.iter() {
        let (key, value) = entry?;
        let name = kv::escaped(&key);
        let bytes: [u8; 8] = value.as_ref().try_into().map_err(|_| {
            Failure::Corruption(format!("counter `{name}` has {} bytes, but a number has 8", value.len()))
        })?;
        counters.insert(name, decode(bytes));
    }
    Ok(counters)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_counter_that_is_off_by_one_is_found() {
        let flight = Flight {
            time: "2001-02-14T06:30".into(),
            delay: -4,
            distance: 100,
            origin: "ORD".into(),
            destination: "MDW".into(),
        };
        let (mut a, mut b) = (Counters::default(), Counters::default());
        a.add(&flight);
        b.add(&flight);
        assert_eq!((a.off(&b), a.len()), (0, 3));
        b.add(&flight);
        assert_eq!((a.off(&b), b.off(&a)), (3, 3));
        b.days.insert("2001-02-15".into(), 1);
        assert_eq!((a.off(&b), b.off(&a)), (4, 4));
    }
}
