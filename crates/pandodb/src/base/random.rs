//! A small random number generator (splitmix64 by Steele, Lea and Flood). The generator returns the same numbers for
//! the same seed on every machine. It is for simulations and tests, not for cryptography.

/// The difference between two consecutive states of the generator.
const STEP: u64 = 0x9e37_79b9_7f4a_7c15;

/// The generator; its state is the seed.
#[derive(Clone, Debug)]
pub struct Rng(pub u64);

impl Rng {
    /// The next number.
    pub fn next_u64(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(STEP);
        mix(self.0)
    }

    /// A number below `bound`, close to uniform for small bounds.
    pub fn below(&mut self, bound: u64) -> u64 {
        assert!(bound > 0, "no number is below zero");
        self.next_u64() % bound
    }

    /// An index below `bound`.
    pub fn index(&mut self, bound: usize) -> usize {
        self.below(bound as u64) as usize
    }

    /// Returns `true` with a probability of `percent` in 100.
    pub fn chance(&mut self, percent: u64) -> bool {
        self.below(100) < percent
    }

    /// `len` random bytes.
    pub fn bytes(&mut self, len: usize) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(len + 8);
        while bytes.len() < len {
            bytes.extend_from_slice(&self.next_u64().to_le_bytes());
        }
        bytes.truncate(len);
        bytes
    }
}

/// Hashes a number: a bijection in which every bit of the input affects all bits of the output (the finaliser of
/// splitmix64). Maps 0 to 0.
pub fn mix(x: u64) -> u64 {
    let x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

/// As [`mix`], but does not map 0 to 0. The result is the first number of a generator with the seed `x`.
pub fn scatter(x: u64) -> u64 {
    mix(x.wrapping_add(STEP))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_those_of_splitmix64() {
        // The first numbers of the reference implementation with the seed 1234567.
        let mut rng = Rng(1_234_567);
        let first = [6_457_827_717_110_365_317, 3_203_168_211_198_807_973, 9_817_491_932_198_370_423];
        assert_eq!([(); 3].map(|()| rng.next_u64()), first);
        assert_eq!((mix(0), scatter(1_234_567)), (0, first[0]));
    }
}
