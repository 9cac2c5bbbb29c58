//! [`Check`]: compares a bound of a source with costs that were measured for doubling numbers of records.
//!
//! ```text
//!   (N, measured, bound) … ──▶ ratio = measured / bound ──▶ all in a band?   slope over log₂ N about zero?  ──▶ verdict
//! ```
//!
//! The band allows for a constant factor. If the cost grows faster than the bound, the ratio rises. For example, assume
//! a bound of log(N/m) and six doublings from N/m = 16 on. If the cost is log²(N/m), the ratio rises by 10 % for each
//! doubling. If the cost is linear, the ratio rises by far more. The slope is the slope of the least-squares line of
//! ratio / mean ratio.

use serde::{Deserialize, Serialize};

/// The measured cost and the bound at one number of records.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Sample {
    /// N, the number of records.
    pub records: u64,
    /// The measured cost.
    pub measured: f64,
    /// The bound, without its constant.
    pub bound: f64,
}

impl Sample {
    /// The cost divided by the bound; infinite if the cost is positive and the bound is 0.
    pub fn ratio(&self) -> f64 {
        match (self.measured, self.bound) {
            (0.0, _) => 0.0,
            (measured, bound) => measured / bound.max(0.0),
        }
    }
}

/// The allowed slope: the change of the ratio per doubling, as a share of the mean ratio.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Slope {
    /// The slope must be between minus and plus this value, because the bound is tight.
    Flat(f64),
    /// The slope must be at most this value. The bound is only an upper bound, so the cost may grow more slowly.
    AtMost(f64),
    /// The slope is not judged. This is for a cost that has an upper limit for every N, but that may be far below the limit
    /// and grow towards it.
    Any,
}

impl Slope {
    fn allows(self, slope: f64) -> bool {
        match self {
            Slope::Flat(tolerance) => slope.abs() <= tolerance,
            Slope::AtMost(tolerance) => slope <= tolerance,
            Slope::Any => true,
        }
    }
}

/// The verdict on a claim.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "UPPERCASE")]
pub enum Verdict {
    /// The bound holds.
    Pass,
    /// The bound does not hold.
    Fail,
}

/// A claim about a cost.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Claim {
    /// The name for tables, such as `insert/log`.
    pub name: String,
    /// The claim as text, with the formula.
    pub claim: String,
    /// The source.
    pub source: String,
    /// The least and the greatest allowed ratio.
    pub ratio_band: (f64, f64),
    /// The allowed slope.
    pub slope_allowed: Slope,
}

/// A claim with its verdict.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Check {
    /// The index with its options. Empty for `stbe`, whose options are fixed.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub index: String,
    /// The claim.
    #[serde(flatten)]
    pub claim: Claim,
    /// The measurements.
    pub points: Vec<Sample>,
    /// The slope of the ratios: the change per doubling, as a share of the mean ratio.
    pub slope: f64,
    /// Whether the claim holds.
    pub verdict: Verdict,
}

impl Check {
    /// Judges a claim.
    ///
    /// # Panics
    /// If there are no points, because a claim must not pass without a measurement.
    pub fn judge(claim: Claim, points: Vec<Sample>) -> Check {
        assert!(!points.is_empty(), "a claim needs at least one measurement");
        let (low, high) = claim.ratio_band;
        let slope = slope(&points);
        let in_band = points.iter().all(|point| (low..=high).contains(&point.ratio()));
        let verdict = if in_band && claim.slope_allowed.allows(slope) { Verdict::Pass } else { Verdict::Fail };
        Check { index: String::new(), claim, points, slope, verdict }
    }

    /// Whether the claim holds.
    pub fn passes(&self) -> bool {
        self.verdict == Verdict::Pass
    }
}

/// The slope of the least-squares line of ratio / mean ratio over log₂ N. The slope is 0 for fewer than two sizes.
pub fn slope(points: &[Sample]) -> f64 {
    let count = points.len() as f64;
    let mean = |of: &dyn Fn(&Sample) -> f64| points.iter().map(of).sum::<f64>() / count;
    let x = |point: &Sample| (point.records.max(1) as f64).log2();
    let (mean_x, mean_ratio) = (mean(&x), mean(&Sample::ratio));
    let spread = mean(&|point| (x(point) - mean_x).powi(2));
    if spread == 0.0 || mean_ratio == 0.0 {
        return 0.0;
    }
    mean(&|point| (x(point) - mean_x) * (point.ratio() / mean_ratio - 1.0)) / spread
}

#[cfg(test)]
mod tests {
    use super::*;

    fn claim(high: f64, slope_allowed: Slope) -> Claim {
        let words = || String::from("x");
        Claim { name: words(), claim: words(), source: words(), ratio_band: (0.0, high), slope_allowed }
    }

    /// The costs and bounds at N = 2¹⁵ … 2²¹, with memtables of 2¹¹ records.
    fn series(cost: impl Fn(f64) -> f64, bound: impl Fn(f64) -> f64) -> Vec<Sample> {
        let size = |i: u32| f64::from(1 << i);
        (15..=21).map(|i| Sample { records: 1 << i, measured: cost(size(i)), bound: bound(size(i)) }).collect()
    }

    fn levels(n: f64) -> f64 {
        1.0 + (n / 2048.0).log(8.0)
    }

    #[test]
    fn a_cost_within_a_factor_passes() {
        let points = series(|n| 2.0 * levels(n), levels);
        assert!(slope(&points).abs() < 1e-9);
        assert!(Check::judge(claim(2.5, Slope::Flat(0.05)), points.clone()).passes());
        assert!(!Check::judge(claim(1.5, Slope::Flat(0.05)), points).passes(), "out of the band");
    }

    #[test]
    fn canary_growth_beyond_the_bound_fails_with_any_band() {
        type Canary = (&'static str, fn(f64) -> f64);
        let canaries: [Canary; 3] = [
            ("every flush rewrites everything", |n| n / 2048.0),
            ("a level too often", |n| levels(n).powi(2)),
            ("a square root", |n| n.sqrt()),
        ];
        for (what, cost) in canaries {
            for allowed in [Slope::Flat(0.05), Slope::AtMost(0.05)] {
                assert!(!Check::judge(claim(f64::MAX, allowed), series(cost, levels)).passes(), "{what}");
            }
        }
    }

    #[test]
    fn a_cost_that_grows_more_slowly_passes_an_upper_bound_but_not_a_tight_one() {
        let points = series(|_| 1.0, levels);
        assert!(!Check::judge(claim(2.0, Slope::Flat(0.05)), points.clone()).passes());
        assert!(Check::judge(claim(2.0, Slope::AtMost(0.05)), points).passes());
    }

    #[test]
    fn a_rate_may_approach_its_limit_but_not_exceed_it() {
        let points = series(|n| n / 2f64.powi(22), |_| 1.0);
        assert!(!Check::judge(claim(1.0, Slope::AtMost(0.05)), points.clone()).passes());
        assert!(Check::judge(claim(1.0, Slope::Any), points.clone()).passes());
        assert!(!Check::judge(claim(0.4, Slope::Any), points).passes());
    }

    #[test]
    fn a_bound_of_zero_allows_no_cost() {
        let point = |measured| vec![Sample { records: 8, measured, bound: 0.0 }];
        assert!(Check::judge(claim(1.0, Slope::AtMost(0.1)), point(0.0)).passes());
        assert!(!Check::judge(claim(1.0, Slope::AtMost(0.1)), point(0.1)).passes());
    }
}
