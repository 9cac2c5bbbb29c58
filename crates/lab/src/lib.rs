//! The lab: PandoDB measured against every rival, against its sources, and against theory.
//!
//! ```text
//!   workload ──ops──▶ bench ──▶ engine::Engine (pando, or a rival's adapter)
//!                       │
//!                       └── line::Line, one JSON line a workload
//! ```
//!
//! * [`workload`]: what is done: YCSB, loads, merges, deletes, queues; a deterministic stream of operations a thread.
//! * [`mod@bench`]: does it, watches, and measures: rates over time, latencies, amplifications, memory.
//! * [`engine`]: what can be measured; [`pando`]: PandoDB as such. Rivals live in a crate of their own, which builds C++.
//! * [`mod@line`]: what was measured, as a line of JSON. [`report`] puts lines beside each other, as a page, pictures and tables;
//!   [`plot`] draws.
//! * [`figures`]: the figures of the sources, measured again: each claim beside what we measure.
//! * [`theory`]: costs against the bounds of the sources while N doubles.
//! * [`filters`]: the filters of runs and bundles, each by itself and for a node of several runs.
//! * [`pool`]: the buffer pool beside other designs, and what a second reader brings.
//!
//! It works without any rival. `pando bench` is its face.
#![forbid(unsafe_code)]
#![warn(missing_docs)]

pub mod bench;
pub mod engine;
pub mod figures;
pub mod filters;
pub mod line;
pub mod pando;
pub mod plot;
pub mod pool;
pub mod record;
pub mod report;
pub mod theory;
pub mod workload;
