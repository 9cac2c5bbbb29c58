//! Keys and values, which are generated from a number and checked when they are read.
//!
//! ```text
//!   key of 20 bytes or more   tag (4) │ 16 hexadecimal digits of `place` │ filled with more digits of its hash
//!   shorter key               `place`, big-endian, filled with its low bytes again
//!   value                     hash of the key (8) │ nonce (8) │ noise, from an offset given by the nonce │ zeros
//! ```
//!
//! The `place` of a hashed record is a bijection of its number, so consecutive numbers give distinct keys in random
//! order. The `place` of an ordered record is proportional to the number, so that the records are spread over the whole
//! range. Values are noise and do not compress, except for the zeros that a plan requests. A value contains the hash of
//! its key, so that a wrong answer is detected.

use xxhash_rust::xxh3::xxh3_64;

/// The kind of a record, which determines its key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Space {
    /// Rows in random order, as in YCSB.
    Rows,
    /// Rows whose keys are in the order of their numbers. The keys are `stride` apart, so that a load of all rows fills
    /// the range evenly.
    Sorted {
        /// The distance between neighbouring keys.
        stride: u64,
    },
    /// Counters in random order.
    Counters,
    /// Keys that are never inserted.
    Absent,
    /// Events, whose keys are in the order of time.
    Events,
    /// Entries of a queue. The field is the number of the queue.
    Queue(u8),
}

impl Space {
    fn tag(self) -> [u8; 4] {
        match self {
            Space::Rows | Space::Sorted { .. } | Space::Absent => *b"user",
            Space::Counters => *b"cntr",
            Space::Events => *b"time",
            Space::Queue(n) => [b'q', b'0' + n / 100, b'0' + n / 10 % 10, b'0' + n % 10],
        }
    }

    /// The `place`, which is the number from which the key is made. Short keys have no tag, so the top bits of `place`
    /// distinguish the kinds of records.
    fn place(self, number: u64) -> u64 {
        match self {
            Space::Rows => mix(number),
            Space::Counters => mix(number | 1 << 62),
            Space::Absent => mix(number | 1 << 63),
            Space::Sorted { stride } => number.wrapping_mul(stride),
            Space::Events => number,
            Space::Queue(n) => u64::from(n) << 56 | number,
        }
    }
}

/// A bijection on 64-bit numbers whose results look random.
pub use pandodb::base::random::scatter as mix;

/// The minimum length of a key in bytes.
pub const MIN_KEY: usize = 8;
/// The minimum length in bytes of a value that can be checked. Shorter values are allowed but not checked.
pub const MIN_CHECKED_VALUE: usize = 16;
const TAGGED_KEY: usize = 20;
const NOISE: usize = 1 << 18;

/// The shape of records: the lengths of keys and values, and the noise for values.
#[derive(Debug)]
pub struct Shape {
    /// The length of a key in bytes, at least [`MIN_KEY`].
    pub key_len: usize,
    /// Bytes of a value.
    pub value_len: usize,
    /// The number of zero bytes at the end of a value, included in `value_len`.
    zeros: usize,
    noise: Vec<u8>,
}

impl Shape {
    /// Creates a shape. The noise is always the same.
    pub fn new(key_len: usize, value_len: usize) -> Shape {
        let words = (NOISE + value_len).div_ceil(8) as u64;
        Shape { key_len, value_len, zeros: 0, noise: (0..words).flat_map(|i| mix(i).to_le_bytes()).collect() }
    }

    /// Replaces the last `percent` percent of each value by zeros. The hash and the nonce are never replaced.
    #[must_use]
    pub fn with_zeros(self, percent: f64) -> Shape {
        let zeros = (self.value_len as f64 * percent / 100.0) as usize;
        Shape { zeros: zeros.min(self.value_len.saturating_sub(MIN_CHECKED_VALUE)), ..self }
    }

    /// Bytes of a key and a value together.
    pub fn record_bytes(&self) -> u64 {
        (self.key_len + self.value_len) as u64
    }

    /// Writes the key of a record into `key`.
    pub fn key(&self, space: Space, number: u64, key: &mut Vec<u8>) {
        key.clear();
        let place = space.place(number);
        if self.key_len >= TAGGED_KEY {
            key.extend_from_slice(&space.tag());
            hex(place, key);
            let mut more = place;
            while key.len() < self.key_len {
                more = mix(more);
                hex(more, key);
            }
        } else {
            key.extend_from_slice(&place.to_be_bytes());
            key.extend_from_slice(&place.to_be_bytes());
            key.extend_from_slice(&place.to_be_bytes());
        }
        key.truncate(self.key_len);
    }

    /// The length of the prefix of a row's key that contains the first `digits` hexadecimal digits. Short keys are
    /// binary and have two digits per byte.
    pub fn prefix_len(&self, digits: usize) -> usize {
        if self.key_len >= TAGGED_KEY { 4 + digits } else { digits.div_ceil(2) }.min(self.key_len)
    }

    /// Writes a value of a key into `value`. Each `nonce` gives a different value of the same key.
    pub fn value(&self, key: &[u8], nonce: u64, value: &mut Vec<u8>) {
        value.clear();
        value.extend_from_slice(&xxh3_64(key).to_le_bytes());
        value.extend_from_slice(&nonce.to_le_bytes());
        let from = (mix(nonce) as usize) % NOISE;
        let rest = self.value_len.saturating_sub(MIN_CHECKED_VALUE);
        value.extend_from_slice(&self.noise[from..from + rest - self.zeros]);
        value.resize(value.len() + self.zeros, 0);
        value.truncate(self.value_len);
    }

    /// Whether `value` is a complete, unmodified value of the key.
    pub fn is_value_of(&self, key: &[u8], value: &[u8]) -> bool {
        if value.len() != self.value_len {
            return false;
        }
        if value.len() < MIN_CHECKED_VALUE {
            return true;
        }
        let nonce = u64::from_le_bytes(value[8..16].try_into().expect("eight bytes"));
        let from = (mix(nonce) as usize) % NOISE;
        let (noise, zeros) = value[16..].split_at(value.len() - 16 - self.zeros);
        let made = noise == &self.noise[from..from + noise.len()] && zeros.iter().all(|&byte| byte == 0);
        value[..8] == xxh3_64(key).to_le_bytes() && made
    }
}

fn hex(word: u64, out: &mut Vec<u8>) {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    out.extend((0..16).rev().map(|i| DIGITS[(word >> (4 * i)) as usize & 15]));
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    fn key(shape: &Shape, space: Space, number: u64) -> Vec<u8> {
        let mut key = Vec::new();
        shape.key(space, number, &mut key);
        key
    }

    #[test]
    fn keys_differ_and_have_their_length() {
        for key_len in [8, 12, 19, 20, 24, 64] {
            let shape = Shape::new(key_len, 100);
            let spaces = [Space::Rows, Space::Counters, Space::Absent, Space::Queue(1), Space::Queue(2)];
            let keys: HashSet<Vec<u8>> = spaces
                .iter()
                .flat_map(|&space| (0..1000).map(move |n| (space, n)))
                .map(|(s, n)| key(&shape, s, n))
                .collect();
            assert_eq!(keys.len(), 5000);
            assert!(keys.iter().all(|key| key.len() == key_len));
        }
    }

    #[test]
    fn ordered_spaces_are_in_order() {
        for key_len in [8, 24] {
            let shape = Shape::new(key_len, 100);
            for space in [Space::Events, Space::Queue(7), Space::Sorted { stride: u64::MAX / 1000 }] {
                assert!((0..999).all(|n| key(&shape, space, n) < key(&shape, space, n + 1)), "{space:?}");
            }
        }
    }

    #[test]
    fn a_value_is_accepted_for_its_own_key_only() {
        let shape = Shape::new(24, 100);
        let (mine, other) = (key(&shape, Space::Rows, 1), key(&shape, Space::Rows, 2));
        let mut value = Vec::new();
        shape.value(&mine, 77, &mut value);
        assert!(value.len() == 100 && shape.is_value_of(&mine, &value) && !shape.is_value_of(&other, &value));
        value[50] ^= 1;
        assert!(!shape.is_value_of(&mine, &value), "a flipped bit is detected");
    }

    #[test]
    fn values_end_in_as_many_zeros_as_asked_for() {
        for (value_len, percent, zeros) in
            [(100, 50.0, 50), (100, 100.0, 84), (16, 50.0, 0), (9, 90.0, 0), (40, 0.0, 0)]
        {
            let shape = Shape::new(24, value_len).with_zeros(percent);
            let (mine, mut value) = (key(&shape, Space::Rows, 1), Vec::new());
            shape.value(&mine, u64::MAX, &mut value);
            assert!(value.len() == value_len && shape.is_value_of(&mine, &value));
            assert!(value.iter().rev().take_while(|&&byte| byte == 0).count().abs_diff(zeros) <= 2);
            if value_len > 16 {
                value[value_len - 1] ^= 1;
                assert!(!shape.is_value_of(&mine, &value));
            }
        }
    }
}
