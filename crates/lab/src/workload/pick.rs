//! Picks the record of an operation: uniform, Zipf, or latest.

use rand::Rng;
use rand_distr::{Distribution, Zipf};
use serde::{Deserialize, Serialize};

use crate::record::mix;

/// The exponent of the Zipf distribution, as in YCSB.
pub const ZIPF_EXPONENT: f64 = 0.99;

/// A distribution over the records that exist.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Dist {
    /// All records are equally likely.
    Uniform,
    /// The r-th most popular record has a probability proportional to r^-0.99. Popular records are scattered over the
    /// key space and over the order of insertion.
    #[default]
    Zipf,
    /// Zipf by age: the newest record is the most popular.
    Latest,
    /// 99 % of the picks are one of 0.1 % of the records, which are scattered over the key space; the other picks are
    /// uniform.
    Hotspot,
}

/// The share of the picks of [`Dist::Hotspot`] that are hot, in percent.
const HOT_PICKS: u64 = 99;
/// One record out of this number of records is hot.
const HOT_RECORDS: u64 = 1000;

impl Dist {
    /// The name on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Dist::Uniform => "uniform",
            Dist::Zipf => "zipf",
            Dist::Latest => "latest",
            Dist::Hotspot => "hotspot",
        }
    }

    /// The distribution with this name.
    pub fn from_name(name: &str) -> Option<Dist> {
        [Dist::Uniform, Dist::Zipf, Dist::Latest, Dist::Hotspot].into_iter().find(|dist| dist.name() == name)
    }
}

/// Picks records of `0..n`, where `n` may grow.
#[derive(Clone, Debug)]
pub struct Picker {
    dist: Dist,
    zipf: Zipf<f64>,
    /// The number of records for which `zipf` was made. When the number of records has grown by a sixteenth, `zipf` is
    /// made again.
    made_for: u64,
}

impl Picker {
    /// Creates a picker for `n` records (at least one).
    pub fn new(dist: Dist, n: u64) -> Picker {
        Picker { dist, zipf: zipf(n), made_for: n.max(1) }
    }

    /// Picks one of `0..n`.
    pub fn pick(&mut self, n: u64, rng: &mut impl Rng) -> u64 {
        let n = n.max(1);
        if self.dist == Dist::Uniform {
            return scale(rng.next_u64(), n);
        }
        if self.dist == Dist::Hotspot {
            let hot = rng.next_u64() % 100 < HOT_PICKS;
            // The keys of records with neighbouring numbers are scattered, so the first numbers can be the hot ones.
            return scale(rng.next_u64(), if hot { n.div_ceil(HOT_RECORDS) } else { n });
        }
        if n > self.made_for + self.made_for / 16 || n < self.made_for {
            (self.zipf, self.made_for) = (zipf(n), n);
        }
        let rank = (self.zipf.sample(rng) as u64).clamp(1, self.made_for) - 1;
        match self.dist {
            Dist::Latest => n - 1 - rank,
            _ => scale(mix(rank), n),
        }
    }
}

fn zipf(n: u64) -> Zipf<f64> {
    Zipf::new(n.max(1) as f64, ZIPF_EXPONENT).expect("at least one record and a positive exponent")
}

/// Maps 64 random bits to `0..n` without a division.
fn scale(word: u64, n: u64) -> u64 {
    ((u128::from(word) * u128::from(n)) >> 64) as u64
}

#[cfg(test)]
mod tests {
    use rand::SeedableRng;
    use rand_xoshiro::Xoshiro256PlusPlus;

    use super::*;

    fn counts(dist: Dist, n: u64, picks: usize) -> Vec<u64> {
        let mut rng = Xoshiro256PlusPlus::seed_from_u64(1);
        let mut picker = Picker::new(dist, n);
        let mut counts = vec![0; n as usize];
        (0..picks).for_each(|_| counts[picker.pick(n, &mut rng) as usize] += 1);
        counts
    }

    #[test]
    fn uniform_picks_all_records_equally_often() {
        let counts = counts(Dist::Uniform, 100, 100_000);
        assert!(counts.iter().all(|&c| (800..1200).contains(&c)), "{counts:?}");
    }

    #[test]
    fn zipf_prefers_few_scattered_records() {
        // H(1000, 0.99) is about 7.73, so the most popular of 1,000 records has a probability of 12.9 %.
        let mut counts = counts(Dist::Zipf, 1000, 100_000);
        assert_ne!(counts.iter().max(), Some(&counts[0]), "popularity does not follow the order of insertion");
        counts.sort_unstable();
        assert!((12_000..15_000).contains(&counts[999]), "{}", counts[999]);
        assert!((5_500..8_000).contains(&counts[998]), "{}", counts[998]);
    }

    #[test]
    fn a_hotspot_gets_99_percent_of_the_picks() {
        let counts = counts(Dist::Hotspot, 100_000, 100_000);
        let hot: u64 = counts[..100].iter().sum();
        assert!((98_700..99_300).contains(&hot) && counts[..100].iter().all(|&n| n > 800), "{hot}");
        assert!(counts[100..].iter().sum::<u64>() > 700);
    }

    #[test]
    fn latest_prefers_the_newest_while_records_are_added() {
        let mut rng = Xoshiro256PlusPlus::seed_from_u64(1);
        let mut picker = Picker::new(Dist::Latest, 1000);
        for n in [1000, 1001, 5000] {
            let newest = (0..10_000).filter(|_| picker.pick(n, &mut rng) == n - 1).count();
            assert!((800..1600).contains(&newest), "{newest} of 10,000 at {n}");
        }
    }
}
