//! The claims about the costs of the indexes, with their constants: [`mod@stbe`], [`nested`] (`nbtree`) and [`trees`]
//! (`btree` and `betree`).
//!
//! ```text
//!   Config ─▶ configurations, one for each ε or page size ─▶ measure … ─▶ judge: the claims of the family ─▶ Check …
//! ```
//!
//! An index without claims is refused, because the claims about another index would say nothing about it.

pub mod nested;
pub mod stbe;
pub mod trees;

use pandodb::{BetreeOptions, BtreeOptions, IndexKind, IndexOptions, NbtreeOptions};

use super::check::{Check, Claim, Sample, Slope};
use super::measure::{Config, Point};

/// The allowed slope per doubling for a tight bound. It is not 0, because the cost does not grow evenly: the number of
/// levels grows by whole levels, and many leaves split at the same time.
pub const TOLERANCE: f64 = 0.05;
/// The indexes that share their claims.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Family {
    /// The size-tiered Bε-tree.
    Stbe,
    /// The Nested B-tree.
    Nested,
    /// The trees of pages: `btree` and `betree`.
    Trees,
}

impl Family {
    /// The family of an index; `None` if there are no claims about it.
    pub fn of(kind: IndexKind) -> Option<Family> {
        match kind.name() {
            "stbe" => Some(Family::Stbe),
            "nbtree" => Some(Family::Nested),
            "btree" | "betree" => Some(Family::Trees),
            _ => None,
        }
    }
}

/// Data of at least this multiple of the model's memory counts as external. A smaller amount of data would mostly be
/// read from memory.
const SPILLED: u64 = 4;

/// A function that returns (measured cost, bound) for a point, or `None` if the claim does not apply to the size of the
/// point.
type Rule = Box<dyn Fn(&Point) -> Option<(f64, f64)>>;

fn rule(of: impl Fn(&Point) -> (f64, f64) + 'static) -> Rule {
    Box::new(move |point| Some(of(point)))
}

/// Judges all claims about the index at these sizes. Omits claims that apply to none of the sizes.
///
/// # Panics
/// If there are no claims about the index.
pub fn judge(config: &Config, points: &[Point]) -> Vec<Check> {
    let judge = |(claim, rule): (Claim, Rule)| {
        let sample = |point: &Point| {
            let (measured, bound) = rule(point)?;
            Some(Sample { records: point.records, measured, bound })
        };
        let samples: Vec<Sample> = points.iter().filter_map(sample).collect();
        let index = points.first().map(|point| point.index.clone()).unwrap_or_default();
        (!samples.is_empty()).then(|| Check { index, ..Check::judge(claim, samples) })
    };
    let claims = match Family::of(config.index.kind()).expect("there are claims about the index") {
        Family::Stbe => stbe::claims(config),
        Family::Nested => nested::claims(config),
        Family::Trees => trees::claims(config),
    };
    claims.into_iter().filter_map(judge).collect()
}

fn claim(name: &str, words: String, source: &str, ratio_band: (f64, f64), slope_allowed: Slope) -> Claim {
    Claim { name: name.to_owned(), claim: words, source: source.to_owned(), ratio_band, slope_allowed }
}

fn size_of(block: u64) -> String {
    let kib = block >> 10;
    if kib < 1024 { format!("{kib}K") } else { format!("{}M", kib >> 10) }
}

/// The configurations that are measured for an index: one, if the caller has chosen options. Otherwise two fan-outs of an
/// `nbtree`, and one without filters; or three page sizes of a `btree`, or three values of ε of a `betree`. The nodes of the
/// `betree` are so small that a tree has several levels.
///
/// # Errors
/// If there are no claims about the index, or about its options.
pub fn configurations(index: &IndexOptions) -> Result<Vec<IndexOptions>, String> {
    let name = index.kind().name();
    let has_options = index.chosen().next().is_some() || index.mode().is_some();
    match Family::of(index.kind()) {
        None => Err(format!("there are no claims about the costs of `{name}`; choose stbe, btree, betree or nbtree")),
        Some(Family::Stbe) if has_options => {
            Err("the claims about `stbe` are for its default options; leave the options out".to_owned())
        }
        Some(Family::Stbe) => Ok(vec![index.clone()]),
        Some(Family::Nested | Family::Trees) if has_options => Ok(vec![index.clone()]),
        Some(Family::Nested) => {
            let fanouts = [3, 8].map(|fanout| NbtreeOptions::new().fanout(fanout).into());
            Ok(fanouts.into_iter().chain([NbtreeOptions::new().filters(None).into()]).collect())
        }
        Some(Family::Trees) if name == "btree" => {
            Ok([4, 8, 16].map(|kib| BtreeOptions::new().page_kib(kib).into()).to_vec())
        }
        Some(Family::Trees) => {
            let nodes = BetreeOptions::new().node_kib(32).page_kib(4);
            Ok([25, 50, 75].map(|percent| nodes.clone().epsilon(percent).into()).to_vec())
        }
    }
}
