//! The figures of the sources, measured again: what a document claims beside what we measure.
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
//! 1. A [`Figure`] is a value: what the paper measured, what it claims, which plans measure it here, what cannot be had.
//! 2. [`run()`] measures PandoDB; a rival's lines come from files and count where they [`fit`](results::fits) the plans.
//! 3. Each [`Claim`] computes its value from the lines, or says why there is none.
//!
//! Invariants: a claim without a measurement has a reason, never a zero; lines with wrong answers count nowhere; a claim
//! that depends on the machine gets a ratio and no verdict ([`Judge::Machine`]); both modes stand side by side, each named.

mod locality;
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

/// Who is measured here, whichever the mode: [`Results`] know which.
pub const OURS: &str = "pando-stbe";

/// What a paper says of a claim.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Paper {
    /// One number.
    Is(f64),
    /// A range.
    Between(f64, f64),
    /// No more than this.
    AtMost(f64),
    /// Words that are no number.
    Says(&'static str),
}

/// How a measured value is compared with the paper's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Judge {
    /// It depends on the machine and the size: the ratio is given, no verdict.
    Machine,
    /// It holds if the value is at least the paper's.
    More,
    /// It holds if the value is at most the paper's.
    Less,
}

/// One thing that a paper claims.
#[derive(Clone, Copy, Debug)]
pub struct Claim {
    /// What, in a few words.
    pub what: &'static str,
    /// What the paper says.
    pub paper: Paper,
    /// The unit: `/s`, `×`, `B/s`, `%`, or empty.
    pub unit: &'static str,
    /// Where it says so.
    pub from: &'static str,
    /// How to compare.
    pub judge: Judge,
    /// The value here.
    pub measure: fn(&Results) -> Answer,
}

/// A figure of a source.
#[derive(Debug)]
pub struct Figure {
    /// The document and the figure's number: `002-3.6`.
    pub id: &'static str,
    /// What it shows.
    pub title: &'static str,
    /// Where it is.
    pub source: &'static str,
    /// What the paper measured, and on what.
    pub setup: &'static str,
    /// Records of the paper's data set, for [`Scale::scale`].
    pub paper_records: u64,
    /// The paper's memory by its data.
    pub memory_share: f64,
    /// Bytes of a value; keys have 24.
    pub value_len: usize,
    /// What cannot be had here, or is had otherwise.
    pub missing: &'static [&'static str],
    /// Whether a claim needs to know what the device can do.
    pub needs_device: bool,
    /// What is claimed.
    pub claims: &'static [Claim],
    /// What is measured.
    pub steps: fn(&Figure, &Scale) -> Vec<Step>,
    /// The plots, each with its name for files.
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
];

impl Figure {
    /// The figure of that id.
    pub fn find(id: &str) -> Option<&'static Figure> {
        ALL.iter().copied().find(|figure| figure.id == id)
    }

    /// Bytes of a key and its value.
    pub fn record_bytes(&self) -> u64 {
        (KEY_LEN + self.value_len) as u64
    }
}
