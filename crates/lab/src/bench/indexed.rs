//! The operations of the data set `Indexed`: rows, an index over a group that each row belongs to, and change records.
//!
//! ```text
//!   user‹row›            value with a nonce        the group follows from the nonce
//!   indx‹group›‹number›  number (8)                one entry for each row
//!   chng‹row›            value of 16 bytes         with the nonce of the row's value
//! ```
//!
//! The three kinds of records have different prefixes and share one ordered map, since the lab's trait has one map.
//!
//! Invariant: an index entry exists for each row, in the group of the row's value, and no other index entry exists. Each
//! thread updates rows of its own, so that the invariant also holds with several threads.

use std::time::Instant;

use super::client::Client;
use super::recorder::OpClass;
use crate::engine::{Result, Session, Write};
use crate::record::{Shape, Space, mix};
use crate::workload::set::{CHANGE, GROUP, groups};

/// The group of a row whose value has this nonce.
pub(super) fn group_of(nonce: u64, rows: u64) -> u64 {
    mix(nonce ^ 0x1d) % groups(rows)
}

/// The buffers of the operations.
#[derive(Debug, Default)]
pub(super) struct Buffers {
    change_key: Vec<u8>,
    change: Vec<u8>,
    old_entry: Vec<u8>,
    new_entry: Vec<u8>,
    /// The numbers of the rows of a lookup.
    numbers: Vec<u64>,
}

impl Buffers {
    /// Generates the change record and the new index entry of a row. `row_key` is the key of the row.
    fn fill(&mut self, shape: &Shape, number: u64, nonce: u64, rows: u64) {
        shape.key(Space::Changes, number, &mut self.change_key);
        shape.value(&self.change_key, nonce, &mut self.change);
        self.change.truncate(CHANGE);
        Shape::index_key(group_of(nonce, rows), number, &mut self.new_entry);
    }
}

/// Reads the number of the row from an index entry, or returns `None` if the entry is malformed or of another group.
fn row_of(group: u64, key: &[u8], value: &[u8], made: &mut Vec<u8>) -> Option<u64> {
    let number = u64::from_le_bytes(value.try_into().ok()?);
    Shape::index_key(group, number, made);
    (made.as_slice() == key).then_some(number)
}

impl Client<'_> {
    /// Puts a row with its index entry and its change record.
    pub(super) fn put_indexed(&mut self, number: u64, nonce: u64) -> Result<(OpClass, Instant, Instant)> {
        let shape = self.shared.shape;
        shape.key(Space::Rows, number, &mut self.key);
        shape.value(&self.key, nonce, &mut self.value);
        let buffers = &mut self.indexed;
        buffers.fill(shape, number, nonce, self.shared.records);
        let number = number.to_le_bytes();
        let writes = [
            Write::Put(&self.key, &self.value),
            Write::Put(&buffers.new_entry, &number),
            Write::Put(&buffers.change_key, &buffers.change),
        ];
        let began = Instant::now();
        self.session.write_batch(&writes)?;
        let ended = Instant::now();
        self.out.user_bytes += writes.iter().map(Write::bytes).sum::<u64>();
        self.out.born += 1;
        Ok((OpClass::Write, began, ended))
    }

    /// Reads a row, then commits a batch of 3 puts and 1 delete.
    pub(super) fn update_indexed(&mut self, number: u64, mut nonce: u64) -> Result<(OpClass, Instant, Instant)> {
        let (shape, rows) = (self.shared.shape, self.shared.records);
        let (_, began, read) = self.get(Space::Rows, number, true)?;
        let old = Shape::nonce_of(&self.value).map_or(u64::MAX, |old| group_of(old, rows));
        // A batch must not have two writes of one key, so the group must change, unless there is only one.
        while groups(rows) > 1 && group_of(nonce, rows) == old {
            nonce = mix(nonce);
        }
        shape.value(&self.key, nonce, &mut self.value);
        let buffers = &mut self.indexed;
        Shape::index_key(old, number, &mut buffers.old_entry);
        buffers.fill(shape, number, nonce, rows);
        let number = number.to_le_bytes();
        let writes = [
            Write::Put(&self.key, &self.value),
            Write::Put(&buffers.new_entry, &number),
            Write::Put(&buffers.change_key, &buffers.change),
            Write::Delete(&buffers.old_entry),
        ];
        let again = Instant::now();
        self.session.write_batch(&writes)?;
        let ended = Instant::now();
        self.out.user_bytes += writes.iter().map(Write::bytes).sum::<u64>();
        // As for a read-modify-write, the time between the read and the write is not counted.
        Ok((OpClass::Write, began + (again - read), ended))
    }

    /// Visits at most 10 index entries of a group, and gets their rows in one call.
    pub(super) fn lookup_indexed(&mut self, group: u64) -> Result<(OpClass, Instant, Instant)> {
        let (shape, rows) = (self.shared.shape, self.shared.records);
        let buffers = &mut self.indexed;
        let (mut is_right, mut ended_early) = (true, false);
        Shape::index_key(group, 0, &mut buffers.old_entry);
        let prefix = buffers.old_entry.len() - 16;
        buffers.numbers.clear();
        let began = Instant::now();
        self.session.scan(&buffers.old_entry, GROUP as usize, &mut |key, value| {
            ended_early |= !key.starts_with(&buffers.old_entry[..prefix]);
            if ended_early {
                return;
            }
            let number = row_of(group, key, value, &mut buffers.new_entry);
            // Numbers of a group ascend, since the number is the end of the key.
            is_right &= number.is_some_and(|number| buffers.numbers.last().is_none_or(|last| *last < number));
            buffers.numbers.extend(number);
        })?;
        let numbers = &buffers.numbers;
        self.keys.resize_with(numbers.len(), Vec::new);
        for (key, number) in self.keys.iter_mut().zip(numbers) {
            shape.key(Space::Rows, *number, key);
        }
        let keys = &self.keys;
        let mut moved = 0;
        let found = self.session.multi_get(keys, &mut |i, value| {
            is_right &= shape.is_value_of(&keys[i], value);
            let now = Shape::nonce_of(value).map(|nonce| group_of(nonce, rows));
            moved += u64::from(now != Some(group));
        })?;
        let ended = Instant::now();
        self.out.found += found as u64;
        // Another thread may move a row to another group between the scan and the lookups.
        let are_current = moved == 0 || self.shared.threads > 1;
        let all_found = found == self.indexed.numbers.len();
        self.check(is_right && all_found && are_current);
        Ok((OpClass::Scan, began, ended))
    }
}

/// Checks the invariant of this module for a sample of rows and of groups, without concurrent writers.
///
/// # Errors
/// The engine's error.
pub(super) fn verify(
    session: &mut dyn Session,
    shape: &Shape,
    rows: u64,
    sample: u64,
    check: &mut dyn FnMut(bool),
) -> Result<()> {
    let (mut key, mut value, mut entry, mut number_of_entry) = Default::default();
    for number in (0..rows).step_by((rows / sample).max(1) as usize) {
        shape.key(Space::Rows, number, &mut key);
        let mut is_right = session.get(&key, &mut value)? && shape.is_value_of(&key, &value);
        let nonce = Shape::nonce_of(&value).unwrap_or(0);
        Shape::index_key(group_of(nonce, rows), number, &mut entry);
        is_right &= session.get(&entry, &mut number_of_entry)? && number_of_entry == number.to_le_bytes();
        shape.key(Space::Changes, number, &mut key);
        is_right &= session.get(&key, &mut value)? && value.len() == CHANGE && Shape::nonce_of(&value) == Some(nonce);
        check(is_right);
    }
    for group in (0..groups(rows)).step_by((groups(rows) / sample).max(1) as usize) {
        let (mut numbers, mut is_right, mut has_ended) = (Vec::new(), true, false);
        Shape::index_key(group, 0, &mut entry);
        let prefix = entry[..entry.len() - 16].to_vec();
        session.scan(&entry, 100 * GROUP as usize, &mut |key, value| {
            has_ended |= !key.starts_with(&prefix);
            if !has_ended {
                let number = row_of(group, key, value, &mut Vec::new());
                is_right &= number.is_some();
                numbers.extend(number);
            }
        })?;
        for number in numbers {
            shape.key(Space::Rows, number, &mut key);
            is_right &= session.get(&key, &mut value)?;
            is_right &= Shape::nonce_of(&value).is_some_and(|nonce| group_of(nonce, rows) == group);
        }
        check(is_right);
    }
    Ok(())
}
