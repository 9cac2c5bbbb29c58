//! Keys and values, which are generated from a number and checked when they are read.
//!
//! ```text
//!   key of 20 bytes or more   tag (4) │ 16 hexadecimal digits of `place` │ filled with more digits of its hash
//!   shorter key               `place`, big-endian, filled with its low bytes again
//!   point of a time series    number of the series, big-endian │ time, big-endian
//!   index entry               tag (4) │ 16 digits of the group │ 16 digits of the row's number
//!   value                     hash of the key (8) │ nonce (8) │ noise, from an offset given by the nonce │ zeros
//! ```
//!
//! The length of a key may depend on its `place`, and the length of a value on its nonce, so that both can be checked.
//!
//! The `place` of a hashed record is a bijection of its number, so consecutive numbers give distinct keys in random
//! order. The `place` of an ordered record is proportional to the number, so that the records are spread over the whole
//! range. Values are noise and do not compress, except for the zeros that a plan requests. A value contains the hash of
//! its key, so that a wrong answer is detected.

use rand::SeedableRng;
use rand_distr::{Distribution, LogNormal};
use rand_xoshiro::Xoshiro256PlusPlus;
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
    /// Points of this number of time series, which get one point each in turn. Keys need 16 bytes.
    Points {
        /// The number of series.
        series: u64,
    },
    /// Change records of indexed rows, in random order.
    Changes,
}

impl Space {
    fn tag(self) -> [u8; 4] {
        match self {
            Space::Rows | Space::Sorted { .. } | Space::Absent => *b"user",
            Space::Counters => *b"cntr",
            Space::Events => *b"time",
            Space::Points { .. } => *b"poin",
            Space::Changes => *b"chng",
            Space::Queue(n) => [b'q', b'0' + n / 100, b'0' + n / 10 % 10, b'0' + n % 10],
        }
    }

    /// The `place`, which is the number from which the key is made. Short keys have no tag, so the top bits of `place`
    /// distinguish the kinds of records.
    pub(crate) fn place(self, number: u64) -> u64 {
        match self {
            Space::Rows => mix(number),
            Space::Counters => mix(number | 1 << 62),
            Space::Absent => mix(number | 1 << 63),
            Space::Sorted { stride } => number.wrapping_mul(stride),
            Space::Events => number,
            Space::Points { series } => number % series,
            Space::Changes => mix(number | 1 << 61),
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
/// The least, the median and the greatest length of lognormal values, and the standard deviation of the logarithm.
const LOGNORMAL: (u16, f64, u16, f64) = (16, 128.0, 8 << 10, 1.2);
/// The number of precomputed lengths. The length of a value is one of them.
const LENGTHS: usize = 1 << 12;
const NOISE: usize = 1 << 18;

/// The shape of records: the lengths of keys and values, and the noise for values.
#[derive(Debug)]
pub struct Shape {
    /// The least length of a key in bytes, at least [`MIN_KEY`].
    pub key_len: usize,
    /// The greatest length of a key in bytes. If keys have several lengths, all lengths are equally likely.
    longest_key: usize,
    /// Bytes of a value; 0 if values have several lengths.
    pub value_len: usize,
    /// The lengths of values, if they have several lengths.
    lengths: Vec<u16>,
    /// The number of zero bytes at the end of a value, included in `value_len`.
    zeros: usize,
    noise: Vec<u8>,
}

impl Shape {
    /// Creates a shape. The noise is always the same.
    pub fn new(key_len: usize, value_len: usize) -> Shape {
        let words = (NOISE + value_len).div_ceil(8) as u64;
        let noise = (0..words).flat_map(|i| mix(i).to_le_bytes()).collect();
        Shape { key_len, longest_key: key_len, value_len, lengths: Vec::new(), zeros: 0, noise }
    }

    /// Gives keys lengths from `key_len` to `longest` bytes.
    ///
    /// # Panics
    /// If `key_len` is too short for keys of several lengths, or over `longest`.
    #[must_use]
    pub fn with_keys_up_to(self, longest: usize) -> Shape {
        assert!((TAGGED_KEY..=longest).contains(&self.key_len), "{} to {longest}", self.key_len);
        Shape { longest_key: longest, ..self }
    }

    /// Gives values lognormal lengths from 16 bytes to 8 KiB with a median of 128 bytes. The mean is about 260 bytes.
    #[must_use]
    pub fn with_lognormal_values(self) -> Shape {
        let (least, median, most, sigma) = LOGNORMAL;
        let lengths = LogNormal::new(median.ln(), sigma).expect("finite constants");
        let mut rng = Xoshiro256PlusPlus::seed_from_u64(1);
        let mut sample = || (lengths.sample(&mut rng) as u16).clamp(least, most);
        let lengths = (0..LENGTHS).map(|_| sample()).collect();
        let words = (NOISE + usize::from(most)).div_ceil(8) as u64;
        let noise = (0..words).flat_map(|i| mix(i).to_le_bytes()).collect();
        Shape { value_len: 0, lengths, zeros: 0, noise, ..self }
    }

    /// The greatest lengths of a key and of a value, in bytes.
    pub fn longest(&self) -> (usize, usize) {
        (self.longest_key, self.lengths.iter().copied().max().map_or(self.value_len, usize::from))
    }

    /// The length of the value with this nonce.
    fn len_of(&self, nonce: u64) -> usize {
        if self.lengths.is_empty() {
            return self.value_len;
        }
        // The top bits of the hash, because the low bits select the noise.
        usize::from(self.lengths[(mix(nonce) >> 52) as usize])
    }

    /// Replaces the last `percent` percent of each value by zeros. The hash and the nonce are never replaced.
    #[must_use]
    pub fn with_zeros(self, percent: f64) -> Shape {
        let zeros = (self.value_len as f64 * percent / 100.0) as usize;
        Shape { zeros: zeros.min(self.value_len.saturating_sub(MIN_CHECKED_VALUE)), ..self }
    }

    /// Bytes of a key and a value together; the mean if lengths differ.
    pub fn record_bytes(&self) -> u64 {
        let sum: u64 = self.lengths.iter().map(|len| u64::from(*len)).sum();
        let value = if self.lengths.is_empty() { self.value_len as u64 } else { sum / self.lengths.len() as u64 };
        (self.key_len + self.longest_key) as u64 / 2 + value
    }

    /// Writes the key of a record into `key`.
    pub fn key(&self, space: Space, number: u64, key: &mut Vec<u8>) {
        key.clear();
        let place = space.place(number);
        let mut len = self.key_len;
        if let Space::Points { series } = space {
            key.extend_from_slice(&place.to_be_bytes());
            key.extend_from_slice(&(number / series).to_be_bytes());
        } else if self.key_len >= TAGGED_KEY {
            key.extend_from_slice(&space.tag());
            hex(place, key);
            let mut more = place;
            len += mix(!place) as usize % (self.longest_key - self.key_len + 1);
            while key.len() < len {
                more = mix(more);
                hex(more, key);
            }
        } else {
            key.extend_from_slice(&place.to_be_bytes());
            key.extend_from_slice(&place.to_be_bytes());
            key.extend_from_slice(&place.to_be_bytes());
        }
        key.truncate(len);
    }

    /// Writes the key of the index entry of a row into `key`.
    pub fn index_key(group: u64, number: u64, key: &mut Vec<u8>) {
        key.clear();
        key.extend_from_slice(b"indx");
        hex(group, key);
        hex(number, key);
    }

    /// The nonce of a value, if the value is long enough to have one.
    pub fn nonce_of(value: &[u8]) -> Option<u64> {
        Some(u64::from_le_bytes(value.get(8..16)?.try_into().expect("eight bytes")))
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
        let len = self.len_of(nonce);
        let rest = len.saturating_sub(MIN_CHECKED_VALUE);
        value.extend_from_slice(&self.noise[from..from + rest - self.zeros]);
        value.resize(value.len() + self.zeros, 0);
        value.truncate(len);
    }

    /// Whether `value` is a complete, unmodified value of the key.
    pub fn is_value_of(&self, key: &[u8], value: &[u8]) -> bool {
        let Some(nonce) = Shape::nonce_of(value) else {
            return self.lengths.is_empty() && value.len() == self.value_len;
        };
        if value.len() != self.len_of(nonce) {
            return false;
        }
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
    fn lengths_are_spread_and_checked() {
        let shape = Shape::new(24, 0).with_lognormal_values();
        let (mine, mut value) = (key(&shape, Space::Rows, 1), Vec::new());
        let mut lengths: Vec<usize> = (0..100_000)
            .map(|nonce| {
                shape.value(&mine, nonce, &mut value);
                assert!(shape.is_value_of(&mine, &value));
                value.len()
            })
            .collect();
        value.push(0);
        assert!(!shape.is_value_of(&mine, &value) && !shape.is_value_of(&mine, &value[..15]));
        let mean = lengths.iter().sum::<usize>() / lengths.len();
        lengths.sort_unstable();
        assert_eq!((lengths[0], lengths[99_999] > 4000), (16, true), "{}", lengths[99_999]);
        assert!((120..136).contains(&lengths[50_000]), "{}", lengths[50_000]);
        assert!((mean as u64 + 24).abs_diff(shape.record_bytes()) < 4, "{mean}");
        let shape = Shape::new(24, 100).with_keys_up_to(256);
        let keys: Vec<Vec<u8>> = (0..10_000).map(|n| key(&shape, Space::Rows, n)).collect();
        let lengths: HashSet<usize> = keys.iter().map(Vec::len).collect();
        assert_eq!((lengths.iter().min(), lengths.iter().max(), shape.longest()), (Some(&24), Some(&256), (256, 100)));
        assert_eq!(keys.iter().map(|key| &key[..20]).collect::<HashSet<_>>().len(), 10_000, "places are unique");
    }

    #[test]
    fn points_are_ordered_by_series_and_time() {
        let (shape, space) = (Shape::new(16, 16), Space::Points { series: 1000 });
        assert_eq!(key(&shape, space, 2_007), [7_u64.to_be_bytes(), 2_u64.to_be_bytes()].concat());
        let mut entry = Vec::new();
        Shape::index_key(0xab, 3, &mut entry);
        assert_eq!(entry, b"indx00000000000000ab0000000000000003");
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
