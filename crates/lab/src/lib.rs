//! The lab: PandoDB measured against every rival, against its sources, and against theory.
#![forbid(unsafe_code)]
#![warn(missing_docs)]

pub mod engine;
pub mod line;
pub mod plot;
pub mod report;
