//! Reads that are compared with the model: point reads, scans from both ends, full comparisons.

use std::ops::Bound;

use pandodb::{KeyspaceAt, Range, Value};

use super::tables::{Bounds, Bytes, Model, SLOTS, Table, prefix_bounds, within};
use super::world::{HeldRange, World, Wrong, check};
use crate::script::Rng;

/// A keyspace at its newest state, or at a snapshot.
enum Reader {
    Now(pandodb::Keyspace),
    At(KeyspaceAt),
}

impl Reader {
    fn get(&self, key: &[u8]) -> pandodb::Result<Option<Value>> {
        match self {
            Reader::Now(keyspace) => keyspace.get(key),
            Reader::At(at) => at.get(key),
        }
    }

    fn contains(&self, key: &[u8]) -> pandodb::Result<bool> {
        match self {
            Reader::Now(keyspace) => keyspace.contains(key),
            Reader::At(at) => at.contains(key),
        }
    }

    fn multi_get(&self, keys: &[Vec<u8>]) -> pandodb::Result<Vec<Option<Value>>> {
        match self {
            Reader::Now(keyspace) => keyspace.multi_get(keys),
            Reader::At(at) => at.multi_get(keys),
        }
    }

    fn range(&self, bounds: &Bounds) -> Range {
        match self {
            Reader::Now(keyspace) => keyspace.range(bounds.clone()),
            Reader::At(at) => at.range(bounds.clone()),
        }
    }

    fn prefix(&self, prefix: &[u8]) -> Range {
        match self {
            Reader::Now(keyspace) => keyspace.prefix(prefix),
            Reader::At(at) => at.prefix(prefix),
        }
    }

    fn iter(&self) -> Range {
        match self {
            Reader::Now(keyspace) => keyspace.iter(),
            Reader::At(at) => at.iter(),
        }
    }
}

/// Formats bytes for a message: the first 40 bytes, and the length.
fn show(bytes: &[u8]) -> String {
    format!("\"{}\"({})", bytes[..bytes.len().min(40)].escape_ascii(), bytes.len())
}

fn show_option(value: Option<&[u8]>) -> String {
    value.map_or("nothing".into(), show)
}

/// The next row of a scan, every second time as a borrowed row.
fn step(range: &mut Range, backward: bool, count: usize) -> pandodb::Result<Option<(Vec<u8>, Vec<u8>)>> {
    if count.is_multiple_of(2) {
        let row = if backward { range.next_back() } else { range.next() };
        return Ok(row.transpose()?.map(|(key, value)| (key.to_vec(), value.to_vec())));
    }
    let row = if backward { range.next_row_back() } else { range.next_row() };
    Ok(row?.map(|(key, value)| (key.to_vec(), value.to_vec())))
}

impl World {
    /// Returns a reader of the keyspace in `slot`, at the newest state or at a random snapshot, with the expected table
    /// and a description.
    fn reader(&self, slot: usize, rng: &mut Rng) -> (Reader, std::sync::Arc<Table>, String) {
        let keyspace = self.keyspace(slot);
        let name = SLOTS[slot].0;
        if self.snapshots.is_empty() || rng.chance(40) {
            let table = self.model.table(slot).expect("it is there").clone();
            return (Reader::Now(keyspace.clone()), table, format!("`{name}`"));
        }
        let held = &self.snapshots[rng.index(self.snapshots.len())];
        let table = held.model.table(slot).cloned().unwrap_or_default();
        (Reader::At(keyspace.at(&held.snapshot)), table, format!("`{name}` at {}", held.snapshot.seqno()))
    }

    /// Draws a key: half of the time a key that exists, otherwise any key.
    fn some_key(&self, table: &Table, rng: &mut Rng) -> Vec<u8> {
        let key = self.config.key(rng);
        if rng.chance(50) {
            return key;
        }
        table.range(key.clone()..).next().map_or(key, |(found, _)| found.clone())
    }

    /// Looks up single keys with `get`, `contains` and `multi_get`.
    pub fn read_points(&mut self, slot: usize, rng: &mut Rng) -> Result<(), Wrong> {
        let reader = self.reader(slot, rng);
        let keys = (0..1 + rng.index(40)).map(|_| self.some_key(&reader.1, rng)).collect();
        self.read_with(reader, keys, rng)
    }

    /// Looks up the given keys with `get`, `contains` and `multi_get`.
    pub fn read_keys(&mut self, slot: usize, keys: Vec<Vec<u8>>, rng: &mut Rng) -> Result<(), Wrong> {
        let reader = self.reader(slot, rng);
        self.read_with(reader, keys, rng)
    }

    fn read_with(
        &mut self,
        (reader, table, what): (Reader, std::sync::Arc<Table>, String),
        keys: Vec<Vec<u8>>,
        rng: &mut Rng,
    ) -> Result<(), Wrong> {
        for key in keys.iter().take(8) {
            let (got, want) = (reader.get(key)?, table.get(key));
            check(got.as_deref() == want.map(|value| &**value), || {
                let (got, want) = (show_option(got.as_deref()), show_option(want.map(|value| &**value)));
                format!("get of {} in {what} gave {got}, not {want}", show(key))
            })?;
            let contains = reader.contains(key)?;
            check(contains == want.is_some(), || format!("contains of {} in {what} gave {contains}", show(key)))?;
            if let (Some(got), Some(want)) = (got, want)
                && rng.chance(10)
            {
                self.values.push((got, want.clone()));
            }
        }
        let got = reader.multi_get(&keys)?;
        check(got.len() == keys.len(), || format!("multi_get of {} gave {} answers", keys.len(), got.len()))?;
        for (key, got) in keys.iter().zip(&got) {
            let want = table.get(key).map(|value| &**value);
            check(got.as_deref() == want, || {
                let (got, want) = (show_option(got.as_deref()), show_option(want));
                format!("multi_get of {} in {what} gave {got}, not {want}", show(key))
            })?;
        }
        Ok(())
    }

    /// Draws bounds: included, excluded or unbounded. Sometimes the start is above the end.
    pub fn bounds(&self, rng: &mut Rng) -> Bounds {
        let (mut a, mut b) = (self.config.key(rng), self.config.key(rng));
        if a > b && rng.chance(95) {
            std::mem::swap(&mut a, &mut b);
        }
        let bound = |key: Vec<u8>, rng: &mut Rng| match rng.index(5) {
            0 => Bound::Unbounded,
            1 => Bound::Excluded(key),
            _ => Bound::Included(key),
        };
        (bound(a, rng), bound(b, rng))
    }

    /// Scans a range or a prefix, alternating between both ends. Keeps some scans open for later actions.
    pub fn read_range(&mut self, slot: usize, rng: &mut Rng) -> Result<(), Wrong> {
        let (reader, table, what) = self.reader(slot, rng);
        let (range, expect) = if rng.chance(35) {
            let prefix = self.config.prefix(rng);
            let expect = table.iter().filter(|(key, _)| key.starts_with(&prefix));
            (reader.prefix(&prefix), expect.map(|(key, value)| (key.clone(), value.clone())).collect())
        } else {
            let bounds = self.bounds(rng);
            (reader.range(&bounds), within(&table, &bounds))
        };
        let left = 0..expect.len();
        let mut held = HeldRange { slot, range, all: expect, left };
        let keep = rng.chance(15);
        let limit = if keep || rng.chance(20) { rng.index(30) } else { usize::MAX };
        let done = self.go_on(&mut held, limit, rng).map_err(|Wrong(why)| Wrong(format!("scan of {what}: {why}")))?;
        if keep && !done && self.ranges.len() < 4 {
            self.ranges.push(held);
        }
        Ok(())
    }

    /// Reads up to `limit` items from both ends and sometimes seeks. Returns true at the end of the scan.
    pub fn go_on(&self, held: &mut HeldRange, limit: usize, rng: &mut Rng) -> Result<bool, Wrong> {
        let backward = [0, 10, 50, 90, 100][rng.index(5)];
        let mut seeks = if rng.chance(30) { 1 + rng.index(4) } else { 0 };
        for step_number in 0..limit {
            if seeks > 0 && (held.left.is_empty() || rng.chance(10)) {
                seeks -= 1;
                let near = rng.chance(70).then(|| held.all.get(rng.index(held.all.len() + 1))).flatten();
                let key = near.map_or_else(|| self.config.key(rng), |(key, _)| key.clone());
                held.seek(rng.chance(backward), &key);
            }
            if step_number == 5
                && rng.chance(10)
                && let super::config::Disk::Simulated(device) = &self.disk
            {
                // The clock advances far enough for the scan to move to a newer view.
                device.advance_clock(std::time::Duration::from_secs(3));
            }
            let backward = rng.chance(backward);
            match (step(&mut held.range, backward, step_number)?, held.pop(backward)) {
                (None, None) => {
                    check(held.range.next().is_none() && held.range.next_back().is_none(), || {
                        "a scan returned an item after its end".into()
                    })?;
                    return Ok(true);
                }
                (Some((key, value)), Some((want_key, want_value))) => {
                    check(key == *want_key && *value == **want_value, || {
                        let (got, want) = (show(&value), show(want_value));
                        format!("item {step_number} is {} = {got}, not {} = {want}", show(&key), show(want_key))
                    })?;
                }
                (None, Some((key, _))) => return Err(Wrong(format!("item {step_number} is missing: {}", show(key)))),
                (Some((key, _)), None) => {
                    return Err(Wrong(format!("item {step_number} is unexpected: {}", show(&key))));
                }
            }
        }
        Ok(false)
    }

    /// Continues the scans that were kept open. If `finish` is set, reads each scan to its end.
    pub fn go_on_held(&mut self, finish: bool, rng: &mut Rng) -> Result<(), Wrong> {
        for mut held in std::mem::take(&mut self.ranges) {
            let limit = if finish { usize::MAX } else { rng.index(40) };
            let name = SLOTS[held.slot].0;
            let told = |Wrong(why)| Wrong(format!("scan of `{name}` that was kept open: {why}"));
            if !self.go_on(&mut held, limit, rng).map_err(told)? {
                self.ranges.push(held);
            }
        }
        Ok(())
    }

    /// Compares all contents of the store with the model, at the newest state and at every snapshot, forward and
    /// backward.
    pub fn compare_all(&self) -> Result<(), Wrong> {
        for slot in (0..SLOTS.len()).filter(|&slot| self.keyspaces[slot].is_some()) {
            let keyspace = self.keyspace(slot);
            self.compare(&Reader::Now(keyspace.clone()), &self.model, slot, "now".into())?;
            for held in &self.snapshots {
                let when = format!("at {}", held.snapshot.seqno());
                self.compare(&Reader::At(keyspace.at(&held.snapshot)), &held.model, slot, when)?;
            }
        }
        for (value, want) in &self.values {
            check(**value == **want, || format!("a value that was read changed from {}", show(want)))?;
        }
        Ok(())
    }

    fn compare(&self, reader: &Reader, model: &Model, slot: usize, when: String) -> Result<(), Wrong> {
        let table = model.table(slot).cloned().unwrap_or_default();
        let told = |Wrong(why)| Wrong(format!("all of `{}` {when}: {why}", SLOTS[slot].0));
        let expect: Vec<(Vec<u8>, Bytes)> = within(&table, &prefix_bounds(b""));
        for backward in [false, true] {
            let mut range = reader.iter();
            for (i, (key, value)) in (0..expect.len())
                .map(|i| if backward { expect.len() - 1 - i } else { i })
                .enumerate()
                .map(|(n, i)| (n, &expect[i]))
            {
                let got = step(&mut range, backward, i).map_err(Wrong::from).map_err(told)?;
                let right = got.as_ref().is_some_and(|(k, v)| **k == **key && **v == **value);
                check(right, || {
                    let got = got.map_or("the end".into(), |(k, v)| format!("{} = {}", show(&k), show(&v)));
                    format!("item {i} (backward: {backward}) is {got}, not {} = {}", show(key), show(value))
                })
                .map_err(told)?;
            }
            let more = range.next().transpose()?;
            check(more.is_none(), || format!("an unexpected key at the end (backward: {backward})")).map_err(told)?;
        }
        let keys = reader.iter().keys().count();
        check(keys == expect.len(), || format!("{keys} keys, not {}", expect.len())).map_err(told)
    }
}
