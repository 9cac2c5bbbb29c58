//! Keys and values of transactional workloads, and a walk over a table.
//!
//! ```text
//!   key     table (1 byte) │ numbers, big-endian        all tables are in one ordered map, as in the other workloads
//!   value   little-endian numbers │ filler that depends on the key
//! ```

use std::ops::Deref;

use crate::engine::Session;
use crate::failure::Result;
use crate::record::mix;

/// A function that gets the key and the value of a row.
pub type Visit<'a> = dyn FnMut(&[u8], &[u8]) -> Result<()> + 'a;

/// The number of rows that one scan of [`walk`] visits.
const CHUNK: usize = 10_000;
const LONGEST_KEY: usize = 32;

/// A key.
#[derive(Clone, Copy, Debug)]
pub struct Key {
    bytes: [u8; LONGEST_KEY],
    len: usize,
}

impl Key {
    /// The first key of a table.
    pub fn of(table: u8) -> Key {
        Key { bytes: [0; LONGEST_KEY], len: 0 }.with(&[table])
    }

    fn with(mut self, more: &[u8]) -> Key {
        self.bytes[self.len..self.len + more.len()].copy_from_slice(more);
        self.len += more.len();
        self
    }

    /// The key with another number.
    pub fn u64(self, number: u64) -> Key {
        self.with(&number.to_be_bytes())
    }

    /// The key with another number of 4 bytes.
    pub fn u32(self, number: u32) -> Key {
        self.with(&number.to_be_bytes())
    }
}

impl Deref for Key {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.bytes[..self.len]
    }
}

/// The number at a position of a value.
///
/// # Errors
/// If the value is too short, which means that the engine returned a wrong value.
pub fn number(value: &[u8], at: usize) -> Result<i64> {
    let bytes =
        value.get(at * 8..at * 8 + 8).ok_or_else(|| format!("a value of {} bytes is too short", value.len()))?;
    Ok(i64::from_le_bytes(bytes.try_into().expect("8 bytes")))
}

/// Sets the number at a position of a value that has this number.
pub fn set_number(value: &mut [u8], at: usize, number: i64) {
    value[at * 8..at * 8 + 8].copy_from_slice(&number.to_le_bytes());
}

/// Adds to the number at a position of a value.
///
/// # Errors
/// If the value is too short.
pub fn add_number(value: &mut [u8], at: usize, delta: i64) -> Result<()> {
    let sum = number(value, at)?.wrapping_add(delta);
    set_number(value, at, sum);
    Ok(())
}

/// Replaces a value by a new row of `len` bytes with these numbers. The filler after the numbers does not compress.
pub fn fill(value: &mut Vec<u8>, len: usize, numbers: &[i64], seed: u64) {
    value.clear();
    numbers.iter().for_each(|number| value.extend_from_slice(&number.to_le_bytes()));
    let mut word = seed;
    while value.len() < len {
        word = mix(word.wrapping_add(1));
        value.extend_from_slice(&word.to_le_bytes());
    }
    value.truncate(len.max(numbers.len() * 8));
}

/// Visits all rows of a table.
///
/// # Errors
/// The engine's error, or the error of `visit`.
pub fn walk(session: &mut dyn Session, table: u8, visit: &mut Visit) -> Result<()> {
    let mut from = vec![table];
    loop {
        let (mut last, mut is_over, mut failed) = (Vec::new(), false, None);
        let count = session.scan(&from, CHUNK, &mut |key, value| {
            is_over |= key.first() != Some(&table);
            if !is_over && failed.is_none() {
                failed = visit(key, value).err();
                last.clear();
                last.extend_from_slice(key);
            }
        })?;
        if let Some(failure) = failed {
            return Err(failure);
        }
        if is_over || count < CHUNK {
            return Ok(());
        }
        from = last;
        from.push(0);
    }
}
