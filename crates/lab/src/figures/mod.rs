//! Reproduces figures of the sources: compares the claims of a document with measurements of PandoDB.
//!
//! ```text
//!   Figure ──steps(Scale)──▶ bench::run on PandoDB ──▶ lines ──┐
//!                       lines of rivals, from files ──fit?──────┤
//!                       probe: what the device can do ──────────┤
//!                                                               ▼
//!                                    Results ──claims──▶ claim │ paper │ measured │ verdict
//!                                            └─plots───▶ SVG, PNG
//! ```
//!
//! 1. A [`Figure`] is a constant that holds the paper's setup, the paper's claims, the plans for measuring the claims
//!    with PandoDB, and the differences from the paper.
//! 2. [`run()`] measures PandoDB. The lines of rivals are read from files. Only lines that [`fit`](results::fits) the
//!    plans are used.
//! 3. Each [`Claim`] computes its value from the lines, or returns the reason why it has no value.
//!
//! Invariants: a claim without a measurement has a reason, never a zero. Lines with wrong answers are not used. A claim
//! that depends on the machine gets a ratio and no verdict ([`Judge::Machine`]). If both modes were measured, they are
//! shown next to each other, with their names.

mod locality;
mod nested;
pub mod probe;
pub mod results;
pub mod run;
pub mod show;
#[cfg(test)]
mod tests;
mod threads;
mod ycsb;

use crate::plot::Plot;

pub use results::{Answer, Results};
pub use run::{Scale, Step, run};

/// The name of the engine that the figures of 002 measure. The name is the same in both modes; [`Results`] contain the
/// mode. The figures of 001 measure several indexes ([`Step::index`]).
pub const OURS: &str = "pando-stbe";

/// The value of a claim in the paper.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Paper {
    /// A single number.
    Is(f64),
    /// A range of numbers.
    Between(f64, f64),
    /// An upper limit.
    AtMost(f64),
    /// A lower limit.
    AtLeast(f64),
    /// Text without a number.
    Says(&'static str),
}

/// The way to compare a measured value with the paper's value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Judge {
    /// The value depends on the machine and the size, so the report shows only the ratio, without a verdict.
    Machine,
    /// The claim holds if the measured value is at least the paper's value.
    More,
    /// The claim holds if the measured value is at most the paper's value.
    Less,
}

/// A claim of a paper.
#[derive(Clone, Copy, Debug)]
pub struct Claim {
    /// The quantity that the claim is about, in a few words.
    pub what: &'static str,
    /// The value in the paper.
    pub paper: Paper,
    /// The unit: `/s`, `×`, `B/s`, `%`, or empty.
    pub unit: &'static str,
    /// The section of the paper.
    pub from: &'static str,
    /// The way to compare the values.
    pub judge: Judge,
    /// Computes the measured value.
    pub measure: fn(&Results) -> Answer,
}

/// A figure of a source.
#[derive(Debug)]
pub struct Figure {
    /// The document and the figure's number: `002-3.6`.
    pub id: &'static str,
    /// The title.
    pub title: &'static str,
    /// The section and number in the document.
    pub source: &'static str,
    /// The paper's data and machine.
    pub setup: &'static str,
    /// The number of records in the paper's data set, for [`Scale::scale`].
    pub paper_records: u64,
    /// The paper's memory as a share of its data.
    pub memory_share: f64,
    /// Bytes of a key.
    pub key_len: usize,
    /// Bytes of a value.
    pub value_len: usize,
    /// The differences from the paper, and the parts of the figure that are not reproduced.
    pub missing: &'static [&'static str],
    /// Whether a claim needs the bandwidths of the device.
    pub needs_device: bool,
    /// The claims.
    pub claims: &'static [Claim],
    /// The runs that measure the figure.
    pub steps: fn(&Figure, &Scale) -> Vec<Step>,
    /// The plots, each with its file name.
    pub plots: fn(&Results) -> Vec<(&'static str, Plot)>,
}

/// Bytes of a key in all of 002 §3.7.
pub const KEY_LEN: usize = 24;

/// All figures, in the order of their documents.
pub const ALL: &[&Figure] = &[
    &ycsb::F3_1,
    &ycsb::F3_3A,
    &ycsb::F3_3B,
    &ycsb::F3_4,
    &ycsb::F3_5,
    &locality::F3_6,
    &locality::F3_7,
    &threads::F3_8,
    &threads::F3_9,
    &threads::F3_10,
    &nested::F4,
    &nested::F5,
    &nested::F6,
    &nested::F7,
    &nested::F8,
    &nested::F9,
];

impl Figure {
    /// Returns the figure with this id.
    pub fn find(id: &str) -> Option<&'static Figure> {
        ALL.iter().copied().find(|figure| figure.id == id)
    }

    /// Bytes of a key and its value.
    pub fn record_bytes(&self) -> u64 {
        (self.key_len + self.value_len) as u64
    }
}
